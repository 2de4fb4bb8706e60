//! The manual page and the completions say what the help says.

use crate::support::run;
use std::io::Write;
use std::process::{Command, Stdio};

/// Every command, with its help.
pub fn commands(path: &str) -> Vec<(String, String)> {
    let help = run(&format!("{path} help").replace("  ", " ")).out;
    let help = if path.is_empty() { run("--help").out } else { help };
    let Some((_, rest)) = help.split_once("subcommands:\n") else {
        return vec![(path.to_owned(), help)];
    };
    let names = rest
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.flat_map(|name| commands(format!("{path} {name}").trim())).collect()
}

/// Terms of a help page: options, and words.
fn terms(help: &str) -> Vec<&str> {
    let own = help.split("\nglobal options:").next().unwrap().split("\nexample:").next().unwrap();
    own.lines()
        .filter_map(|line| line.strip_prefix("    ")?.split("   ").next())
        .map(str::trim)
        .collect()
}

fn generated(what: &str) -> String {
    let ended = run(&format!("generate {what}"));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{what}");
    ended.out
}

/// Returns the complaints of a formatter.
fn complaints(program: &str, arguments: &[&str], page: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; make setup installs it"));
    let mut stdin = child.stdin.take().unwrap();
    let text = page.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    String::from_utf8_lossy(
        &[output.stderr, if program == "mandoc" { output.stdout } else { Vec::new() }].concat(),
    )
    .into_owned()
}

#[test]
fn the_page_has_every_command_with_all_that_its_help_has() {
    let page = generated("manual")
        .replace("\\-", "-")
        .replace("\\fB", "")
        .replace("\\fR", "")
        .replace("\\*(Aq", "'");
    let commands = commands("");
    assert!(commands.len() > 30, "{commands:?}");
    for (name, help) in commands {
        let heading = format!("\n.SS \"butterfly {name}");
        let section = page
            .split(&heading)
            .skip(1)
            .find(|rest| !rest.starts_with(|letter: char| letter.is_ascii_lowercase()));
        let section = section.unwrap_or_else(|| panic!("butterfly {name} is not in the page"));
        let section = section.split("\n.SS ").next().unwrap();
        for term in terms(&help) {
            assert!(
                section.contains(&format!("\n{term}\n")),
                "butterfly {name}: {term:?} is not in\n{section}"
            );
        }
    }
}

#[test]
fn formatters_find_no_fault_in_the_page() {
    let page = generated("manual");
    assert_eq!(complaints("groff", &["-man", "-ww", "-z", "-Tutf8"], &page), "");
    assert_eq!(complaints("man", &["--warnings", "-E", "UTF-8", "-l", "-"], &page), "");
    assert_eq!(complaints("mandoc", &["-T", "lint", "-W", "warning"], &page), "");
}

/// Returns the output of bash for `lines`, in which `completed WORD...` prints the completions of
/// the last word, as `client` names things.
fn in_bash(client: &str, lines: &str) -> String {
    let script = generated("bash")
        + &format!("butterfly() {{ {client}; }}\n")
        + "completed() { COMP_WORDS=(butterfly \"$@\") COMP_CWORD=$#; _butterfly; printf '%s\\n' \"${COMPREPLY[*]}\"; }\n"
        + lines;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script).unwrap();
    let output = Command::new("bash")
        .args(["--norc", "--noprofile"])
        .arg(file.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes() {
    // Files of our own: what a machine has in /etc is its business.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for name in ["host.conf", "hostname", "hosts", "other"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let (begun, files) =
        (format!("request {}", at("host")), ["host.conf", "hostname", "hosts"].map(at).join(" "));
    // Words, the one to be completed last; what may stand there.
    let rows = [
        ("n", "nat neighbour network nic"),
        ("nic sg a", "add"),
        ("nic sg ''", "list add del set"),
        ("sg rule ''", "add del list"),
        ("nic list + sg r", "rule"),
        ("nic list + wor", "workers"),
        ("nic add --enable", "--enable-antispoof"),
        ("nic add --packet-trace ''", "true false"),
        ("nic add --packet-trace t", "true"),
        ("nic list --end", "--endpoint"),
        ("sg rule add web --dir ''", "in out"),
        ("generate z", "zsh"),
        // Asked of the daemon.
        ("nic show ''", "nic list -t 300"),
        ("nic sg add vm-1 ''", "sg list -t 300"),
        ("nic sg add vm-1 web ''", "sg list -t 300"),
        ("sg rule add web --sg-members ''", "sg list -t 300"),
        ("router del ''", "router list --ids -t 300"),
        ("router del r1 ''", "router list --ids -t 300"),
        ("router attach ''", "router list --ids -t 300"),
        ("router attach r1 --vni ''", "network list --ids -t 300"),
        ("router detach r1 --vni ''", "network list --ids -t 300"),
        ("router attach r1 --external ''", "external list --ids -t 300"),
        ("snat add r1 --external ''", "external list --ids -t 300"),
        ("forward add 192.0.2.9:80 --proto ''", "tcp udp"),
        ("external del ''", "external list --ids -t 300"),
        ("route add ''", "router list --ids -t 300"),
        ("route list ''", "router list --ids -t 300"),
        ("network del --vni ''", "network list --ids -t 300"),
        ("nic add --vni ''", "network list --ids -t 300"),
        ("neighbour add --vni ''", "network list --ids -t 300"),
        ("neighbour list --vni ''", "network list --ids -t 300"),
        ("fdb ''", "network list --ids -t 300"),
        (begun.as_str(), files.as_str()),
        // Nothing to propose: a value of its own, and words behind options.
        ("nic add --mac ''", ""),
        ("nic show --json ''", ""),
        ("neighbour add --mac ''", ""),
        // One that exists would lose its attachments.
        ("router add ''", ""),
        ("bogus ''", ""),
    ];
    // The daemon's names are the words of the question here.
    let printed = in_bash(
        "printf '%s\\n' \"$@\"",
        &rows.map(|(words, _)| format!("completed {words}\n")).concat(),
    );
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed.len(), rows.len());
    for ((words, expected), found) in rows.into_iter().zip(printed) {
        let sorted = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(sorted(found), sorted(expected), "butterfly {words}");
    }
}

/// Any client of the API may choose names of groups.
#[test]
fn bash_runs_no_name_that_it_completes() {
    let folder = tempfile::tempdir().unwrap();
    let touch = format!("touch {}/touched", folder.path().display());
    let names = format!("$({touch})\n`{touch}`\n; {touch} #\n*\ntwo words\n\u{1b}[2J\n");
    let file = folder.path().join("names");
    std::fs::write(&file, &names).unwrap();
    let client = format!("cat {}", file.display());
    // A user who accepts a proposal has typed it: read back, it is the name.
    let lines = "completed nic sg add vm-1 '' >/dev/null\n\
                 eval \"printf '%s\\n' ${COMPREPLY[*]}\"\n\
                 completed nic show tw\n";
    assert_eq!(in_bash(&client, lines), format!("{names}two\\ words\n"));
    assert!(!folder.path().join("touched").exists());
}

#[test]
fn other_shells_have_the_commands_too() {
    for (shell, words) in
        [("zsh", ["antispoof", "_butterfly"]), ("fish", ["antispoof", "complete -c butterfly"])]
    {
        let script = generated(shell);
        assert!(words.iter().all(|word| script.contains(word)), "{shell}");
    }
    let ended = run("generate tcsh");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("there are manual, bash, zsh, fish"), "{}", ended.err);
}
