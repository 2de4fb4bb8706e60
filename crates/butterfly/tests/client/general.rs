//! Contract of the command line: help, version, chains, options.

use crate::refused;
use crate::support::{Daemon, Row, answer, check, help, run};

#[test]
fn without_arguments_general_help_and_failure() {
    check(&[Row { line: "", out: "help: ", code: 1, ..Row::default() }]);
}

#[test]
fn dash_help_anywhere_is_the_help_of_the_command() {
    for (line, words) in [
        ("-h", ""),
        ("--help", ""),
        ("-e tcp://127.0.0.1:1 --help", ""),
        ("nic -h", "nic"),
        ("nic add --help", "nic add"),
        ("nic add --mac --help", "nic add"),
        ("-v nic add vm-1 -h", "nic add"),
        ("nic list + sg -h", "sg"),
        ("bogus -h", ""),
        ("help", ""),
        ("help nic", "nic"),
        ("help nic add", "nic add"),
        ("-v help sg rule", "sg rule"),
    ] {
        check(&[Row { line, out: &format!("help: {words}"), ..Row::default() }]);
    }
    check(&[Row {
        line: "help nic ad",
        err: "there is no command ad; did you mean add?\nerror in command: help\n",
        code: 1,
        ..Row::default()
    }]);
}

#[test]
fn dash_version_anywhere_is_one_line() {
    for line in ["-V", "--version", "nic list -V", "nic list + --version", "version"] {
        let ended = run(line);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}");
        let rest = ended.out.strip_prefix("butterfly version: \"").unwrap();
        let (version, rest) = rest.split_once("\" proto revision: \"6\" commit: \"").unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let (commit, rest) = rest.split_once("\" date: \"").unwrap();
        assert!(
            commit == "unknown" || commit.bytes().all(|letter| letter.is_ascii_hexdigit()),
            "{commit}"
        );
        let date = rest.strip_suffix(" \"\n").unwrap();
        assert!(date == "unknown" || date.split_whitespace().count() == 5, "{date}");
    }
}

#[test]
fn unknown_subcommands_are_named_and_helped() {
    for (line, kind, path) in [
        ("bogus", "", ""),
        ("--colour nic list", "", ""),
        ("nic bogus", "nic ", "nic"),
        ("nic sg bogus", "nic sg ", "nic sg"),
        ("sg bogus", "sg ", "sg"),
        ("sg rule bogus", "sg rule ", "sg rule"),
        ("sg member bogus", "sg member ", "sg member"),
    ] {
        let unknown = line.strip_prefix(path).unwrap().split_whitespace().next().unwrap();
        let mut err = format!("invalid {kind}subcommand {unknown}\n");
        if unknown.starts_with('-') {
            err.push_str(
                "help: options of a command go after it, as in `butterfly nic show vm-1 --json`\n",
            );
        }
        if let Some(first) = path.split_whitespace().next() {
            err.push_str(&format!("error in command: {first}\n"));
        }
        check(&[Row { line, out: &format!("help: {path}"), err: &err, code: 1, ..Row::default() }]);
    }
}

#[test]
fn a_word_that_needs_another_prints_its_help() {
    for (line, first) in
        [("nic", "nic"), ("nic sg", "nic"), ("sg", "sg"), ("sg rule", "sg"), ("sg member", "sg")]
    {
        let err = format!("error in command: {first}\n");
        check(&[Row { line, out: &format!("help: {line}"), err: &err, code: 1, ..Row::default() }]);
    }
}

const COMMANDS: [&str; 84] = [
    "show",
    "sg show",
    "log-level",
    "help",
    "version",
    "nic add",
    "nic update",
    "nic del",
    "nic list",
    "nic details",
    "nic stats",
    "nic show",
    "nic sg list",
    "nic sg add",
    "nic sg del",
    "nic sg set",
    "sg list",
    "sg add",
    "sg del",
    "sg rule list",
    "sg rule add",
    "sg rule del",
    "sg member list",
    "sg member add",
    "sg member del",
    "status",
    "shutdown",
    "request",
    "dump",
    "apply",
    "drops",
    "fdb",
    "workers",
    "tunnels",
    "uplink",
    "peer list",
    "peer add",
    "peer del",
    "network list",
    "network add",
    "network del",
    "router list",
    "router add",
    "router del",
    "router attach",
    "router detach",
    "route list",
    "route add",
    "route del",
    "external list",
    "external add",
    "external del",
    "snat add",
    "snat del",
    "floating add",
    "floating del",
    "forward add",
    "forward del",
    "nat list",
    "neighbour list",
    "neighbour add",
    "neighbour del",
    "trace",
    "capture",
    "explain",
    "sessions",
    "top",
    "events",
    "generate",
    "peer",
    "network",
    "router",
    "route",
    "external",
    "snat",
    "floating",
    "forward",
    "nat",
    "neighbour",
    "nic",
    "nic sg",
    "sg rule",
    "sg member",
    "sg",
];

#[test]
fn help_in_the_first_place_is_the_help_of_that_command() {
    let mut pages: Vec<String> = COMMANDS.iter().map(|command| help(command)).collect();
    for (command, page) in COMMANDS.iter().zip(&pages) {
        assert!(page.lines().next().unwrap().ends_with("[options...]"), "{command}");
        assert!(page.contains("\n\nglobal options:\n    -e, --endpoint EP "), "{command}");
        assert!(
            page.lines().all(|line| line.trim_end() == line),
            "{command}: blanks at the end of a line"
        );
    }
    pages.sort();
    pages.dedup();
    assert_eq!(pages.len(), COMMANDS.len(), "each command has a page of its own");
    // With anything behind it, and anywhere in a chain. Elsewhere it is a word like others.
    check(&[
        Row { line: "nic add help --id a --mac @ --vni", out: "help: nic add", ..Row::default() },
        Row { line: "sg rule del help web", out: "help: sg rule del", ..Row::default() },
        Row {
            line: "sg add a help @",
            asks: &[&["sg_add {id: \"a\"}", "sg_add {id: \"help\"}"]],
            ..Row::default()
        },
    ]);
}

#[test]
fn a_word_that_needs_another_lists_them() {
    for (words, below) in [
        ("", "nic sg status request dump shutdown"),
        ("nic", "add update del list details stats sg"),
        ("nic sg", "list add del set"),
        ("sg", "list add del rule member"),
        ("sg rule", "list add del"),
        ("sg member", "list add del"),
    ] {
        let page = help(words);
        let heading = format!("\n\n{} subcommands:\n", format!("butterfly {words}").trim_end());
        let (_, list) =
            page.split_once(&heading).unwrap_or_else(|| panic!("{heading} is not in {page}"));
        let listed: Vec<&str> = list.lines().take_while(|line| !line.is_empty()).collect();
        assert!(
            listed.iter().all(|line| line.starts_with("    ") && !line.starts_with("     ")),
            "{page}"
        );
        for word in below.split(' ') {
            assert!(
                listed.iter().any(|line| line.split_whitespace().next() == Some(word)),
                "{word} is not in {page}"
            );
        }
    }
}

#[test]
fn missing_mandatory_arguments_print_help_and_fail() {
    for (line, missing, command) in [
        ("nic add @", "--id, --mac, --vni are", "nic add"),
        ("nic add --mac 00:00:00:00:00:01 --vni 1 @", "--id is", "nic add"),
        ("nic add --id a --vni 1 @", "--mac is", "nic add"),
        ("nic add --id a --mac 00:00:00:00:00:01 @", "--vni is", "nic add"),
        ("nic update @ --ip 1.1.1.1", "--id is", "nic update"),
        ("nic del @", "NIC is", "nic del"),
        ("nic stats @", "NIC is", "nic stats"),
        ("nic show @", "NIC is", "nic show"),
        ("nic sg list @", "NIC is", "nic sg list"),
        ("nic sg add a @", "SG is", "nic sg add"),
        ("nic sg del @", "NIC, SG are", "nic sg del"),
        ("nic sg set @", "NIC is", "nic sg set"),
        ("nic sg set a", "SG is", "nic sg set"),
        ("sg add @", "SG is", "sg add"),
        ("peer add @", "IP is", "peer add"),
        ("peer del --vni 1 @", "IP is", "peer del"),
        ("sg del @", "SG is", "sg del"),
        ("sg rule list @", "SG is", "sg rule list"),
        ("sg rule add --ip-proto all --cidr 0.0.0.0/0 @", "SG is", "sg rule add"),
        ("sg member list @", "SG is", "sg member list"),
        ("sg member add a @", "IP is", "sg member add"),
        ("sg member del a @", "IP is", "sg member del"),
        ("request @", "FILE is", "request"),
        ("apply @ --prune", "FILE is", "apply"),
    ] {
        let first = command.split_whitespace().next().unwrap();
        let err = format!("{missing} mandatory\nerror in command: {first}\n");
        let ours = ["nic show", "peer add", "peer del", "apply"].contains(&command);
        let told = if ours { "short" } else { "help" };
        check(&[Row {
            line,
            out: &format!("{told}: {command}"),
            err: &err,
            code: 1,
            ..Row::default()
        }]);
    }
}

/// A word that stands where it means nothing may be the one that is missing.
#[test]
fn a_missing_word_that_stands_behind_an_option_is_told_of() {
    let said = "ignored: a: `nic details` takes no such word; words come before the options\nNIC is mandatory\nerror in command: nic\n";
    check(&[Row {
        line: "nic details @ a",
        out: "help: nic details",
        err: said,
        code: 1,
        ..Row::default()
    }]);
    let said = "ignored: a: words come before the options, and --json takes no value\nNIC is mandatory\nerror in command: nic\n";
    check(&[Row {
        line: "nic details @ --json a",
        out: "help: nic details",
        err: said,
        code: 1,
        ..Row::default()
    }]);
}

#[test]
fn known_options_need_their_value() {
    for (line, option, command) in [
        ("nic add --id", "--id", "nic add"),
        ("nic list -e", "-e", "nic list"),
        ("nic list --timeout", "--timeout", "nic list"),
    ] {
        let err = format!("{option} needs a value\nerror in command: nic\n");
        check(&[Row {
            line,
            out: &format!("help: {command}"),
            err: &err,
            code: 1,
            ..Row::default()
        }]);
    }
}

/// Runs in a network of its own: a daemon may listen there in this one.
#[test]
fn without_an_endpoint_the_daemon_of_this_host_is_asked() {
    let output = std::process::Command::new("unshare")
        .args([
            "--map-root-user",
            "--net",
            env!("CARGO_BIN_EXE_butterfly"),
            "nic",
            "list",
            "-t",
            "100",
        ])
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.starts_with("Error, receive timeout\ntcp://127.0.0.1:9999: "), "{err}");
    assert_eq!((output.stdout.as_slice(), output.status.code()), (b"".as_slice(), Some(1)));
}

/// Each command of a chain has its own connection: the daemon may go between two of them.
#[test]
fn each_command_connects_anew() {
    let daemon = Daemon::new();
    let events = daemon.connections();
    let mut client = daemon.start("nic list @ + sg list + nic list");
    for _ in 0..3 {
        daemon.receive("a chain");
        daemon.send(&answer(&[""]));
        assert!(events.recv_multipart(0).is_ok(), "a connection for each");
    }
    assert_eq!(client.end().code, Some(0));
}

/// A shell shows the end by this signal as 139.
#[test]
fn a_crash_is_left_to_the_system() {
    use std::os::unix::process::ExitStatusExt;
    let daemon = Daemon::new();
    let mut command = std::process::Command::new("prlimit");
    command.args([
        "--core=0",
        env!("CARGO_BIN_EXE_butterfly"),
        "nic",
        "list",
        "-t",
        "20000",
        "-e",
        &daemon.endpoint(),
    ]);
    let mut client = command.spawn().unwrap();
    daemon.receive("nic list");
    // A fault comes again by itself, after Rust's runtime looked whether the stack is full.
    let ended = loop {
        match client.try_wait().unwrap() {
            Some(status) => break status,
            None => drop(
                std::process::Command::new("kill")
                    .args(["-s", "SEGV", &client.id().to_string()])
                    .status(),
            ),
        }
    };
    assert_eq!(ended.signal(), Some(11));
}

#[test]
fn commands_are_chained_in_order() {
    check(&[
        Row {
            line: "nic add --id a --mac 52:54:00:00:00:01 --vni 1 + sg add x + nic list @",
            asks: &[
                &["nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1}"],
                &["sg_add {id: \"x\"}"],
                &["nic_list: true"],
            ],
            answers: &[&["nic_add { path: \"/tmp/a\" }"], &[""], &["nic_list: \"a\""]],
            out: "/tmp/a\na\n",
            ..Row::default()
        },
        // The endpoint of any command is that of all.
        Row {
            line: "nic list @ + sg list",
            asks: &[&["nic_list: true"], &["sg_list: true"]],
            ..Row::default()
        },
        Row {
            line: "nic list @ + nic stats x + nic list",
            asks: &[&["nic_list: true"], &["nic_stats: \"x\""]],
            answers: &[&[""], &[refused!("NIC does not exist with id x")]],
            err: "error in response\ndescription: NIC does not exist with id x\nerror in command: nic\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "nic list -e tcp://127.0.0.1:1 + sg list @",
            asks: &[&["nic_list: true"], &["sg_list: true"]],
            err: "ignored: --endpoint tcp://127.0.0.1:1: another follows, and a global option is that of the whole chain\n",
            ..Row::default()
        },
        // What comes later is not looked at before its turn.
        Row {
            line: "nic list @ + sg add",
            asks: &[&["nic_list: true"]],
            out: "help: sg add",
            err: "SG is mandatory\nerror in command: sg\n",
            code: 1,
            ..Row::default()
        },
        Row { line: "+ nic list @", out: "help: ", code: 1, ..Row::default() },
        Row {
            line: "nic list @ +",
            asks: &[&["nic_list: true"]],
            out: "help: ",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "nic list+ @",
            out: "help: nic",
            err: "invalid nic subcommand list+\nhelp: did you mean list?\nerror in command: nic\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

#[test]
fn verbose_shows_both_messages() {
    const EXPECTED: &str = "\
#########################
# Message to be sent:
messages {
  revision: 6
  message_0 {
    request {
      nic_list: true
    }
  }
}
#########################
Received clear response
#########################
# Received message:
messages {
  revision: 6
  message_0 {
    response {
      status {
        status: true
      }
      nic_list: \"vm-1\"
    }
  }
}
#########################
vm-1
";
    for line in ["nic list @ -v", "nic list --verbose @"] {
        check(&[Row {
            line,
            asks: &[&["nic_list: true"]],
            answers: &[&["nic_list: \"vm-1\""]],
            out: EXPECTED,
            ..Row::default()
        }]);
    }
    // JSON stays JSON.
    let daemon = Daemon::new();
    let mut client = daemon.start("workers @ --json -v");
    daemon.receive("workers");
    daemon.send(&answer(&[""]));
    let ended = client.end();
    assert_eq!(ended.out, "{\n  \"workers\": []\n}\n");
    assert!(
        ended.err.starts_with("#########################\n# Message to be sent:\n"),
        "{}",
        ended.err
    );
}

#[test]
fn a_daemon_that_does_not_answer_is_a_time_out() {
    let daemon = Daemon::new();
    let mut client = daemon.start("nic list @ -t 100");
    daemon.receive("nic list");
    let ended = client.end();
    let hint = "does not answer: is that butterflyd, and can it run? look at its log and at the load of the host";
    let endpoint = daemon.endpoint();
    assert_eq!(
        ended.err,
        format!(
            "Error, receive timeout\nsomebody listens on {endpoint} and {hint}\nerror in command: nic\n"
        )
    );
    assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
}

#[test]
fn a_daemon_that_is_not_there_is_a_time_out() {
    let daemon = Daemon::new();
    drop(std::os::unix::net::UnixListener::bind(daemon.path("dead")).unwrap());
    let nowhere = |path: &str| format!("ipc://{}", daemon.path(path));
    for (endpoint, met) in [
        (nowhere("nobody"), "No such file or directory (os error 2)"),
        (nowhere("dead"), "Connection refused (os error 111)"),
        ("tcp://127.0.0.1:1".into(), "Connection refused (os error 111)"),
        ("tcp://[::1]:1".into(), "Connection refused (os error 111)"),
    ] {
        let ended = daemon.start(&format!("nic list --timeout 100 -e {endpoint}")).end();
        let hint = "butterflyd is not running there: start it, or name its endpoint with --endpoint EP or BUTTERFLY_ENDPOINT";
        assert_eq!(
            ended.err,
            format!("Error, receive timeout\n{endpoint}: {met}\n{hint}\nerror in command: nic\n")
        );
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
    }
}

/// Scripts of the original start a daemon and let its commands wait; people want to know at once.
#[test]
fn commands_of_our_own_do_not_wait_for_nobody() {
    let daemon = Daemon::new();
    drop(std::os::unix::net::UnixListener::bind(daemon.path("dead")).unwrap());
    let nowhere = |path: &str| format!("ipc://{}", daemon.path(path));
    let (absent, refused) =
        ("No such file or directory (os error 2)", "Connection refused (os error 111)");
    for (line, endpoint, met) in [
        ("show", nowhere("nobody"), absent),
        ("drops", nowhere("dead"), refused),
        ("log-level info", "tcp://127.0.0.1:1".to_owned(), refused),
        ("nic show a", "tcp://[::1]:1".to_owned(), refused),
        ("explain --from a --to b", "tcp://localhost:1".to_owned(), refused),
    ] {
        let begun = std::time::Instant::now();
        let ended = daemon.start(&format!("{line} -e {endpoint}")).end();
        let hint = "butterflyd is not running there: start it, or name its endpoint with --endpoint EP or BUTTERFLY_ENDPOINT";
        let err = format!("no daemon: {endpoint}: {met}\n{hint}\n");
        assert!(ended.err.starts_with(&err), "{line}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
        // Not the five seconds in which a daemon that is there may answer.
        assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{line}");
    }
    // A time-out that is given is for a daemon that is yet to come.
    let ended = daemon.start(&format!("drops -t 300 -e {}", nowhere("nobody"))).end();
    assert!(ended.err.starts_with("Error, receive timeout\n"), "{}", ended.err);
    let mut client = daemon.start("drops -t 0 @");
    daemon.receive("drops");
    assert!(client.complaint().starts_with("no reply yet: "));
}

/// Without a time-out it waits for ever, but not without a word.
#[test]
fn who_waits_is_told_why() {
    let daemon = Daemon::new();
    let mut client = daemon.start("nic list @");
    daemon.receive("nic list");
    assert_eq!(
        client.complaint(),
        format!(
            "no reply yet: somebody listens on {} and does not answer: is that butterflyd, and can it run? look at its log and \
             at the load of the host\n",
            daemon.endpoint()
        )
    );
    daemon.send(&answer(&["nic_list: \"a\""]));
    let ended = client.end();
    assert_eq!((ended.out.as_str(), ended.code), ("a\n", Some(0)));
    assert_eq!(ended.err, "still waiting; Ctrl-C ends that, and -t MS limits it\n");
}

#[test]
fn time_outs_and_endpoints_are_checked() {
    for value in ["soon", "-1", "4294967296", ""] {
        let line = format!("nic list @ -t {}", if value.is_empty() { "''" } else { value });
        check(&[Row {
            line: &line,
            out: "help: nic list",
            err: &format!(
                "--timeout argument not recognized\nhelp: {value:?} is not a number of milliseconds from 0 to 4294967295\n\
                 error in command: nic\n"
            ),
            code: 1,
            ..Row::default()
        }]);
    }
    for nonsense in ["nonsense", "127.0.0.1:9999", "tcp://127.0.0.1", "tcp://127.0.0.1:80000"] {
        let ended = run(&format!("nic list -e {nonsense}"));
        let help = "an endpoint looks like tcp://127.0.0.1:9999 or ipc:///run/butterfly.sock";
        let err = format!(
            "cannot connect to {nonsense}: Invalid argument; {help}\nerror in command: nic\n"
        );
        assert_eq!(ended.err, err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let daemon = Daemon::new();
    for (target, code, err) in [
        (
            "/dev/full",
            1,
            "cannot write to standard output: No space left on device (os error 28)\n",
        ),
        ("/dev/null", 0, ""),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_butterfly"))
            .arg("--help")
            .current_dir(daemon.directory.path())
            .stdout(std::fs::OpenOptions::new().write(true).open(target).unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), err);
    }
}

#[test]
fn a_reader_that_left_needs_no_explanation() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_butterfly"))
        .arg("--help")
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!((output.stderr.as_slice(), output.status.code()), (b"".as_slice(), Some(1)));
}

#[test]
fn words_are_text() {
    use std::os::unix::ffi::OsStrExt;
    let word = std::ffi::OsStr::from_bytes(b"\xff");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_butterfly"))
        .args(["nic".as_ref(), word])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "argument \"\\xFF\" is not UTF-8\n");
    assert_eq!((output.stdout.as_slice(), output.status.code()), (b"".as_slice(), Some(1)));
}

#[test]
fn a_refusal_comes_after_what_was_printed() {
    check(&[Row {
        line: "nic list @ + nic details x",
        asks: &[&["nic_list: true"], &["nic_details: \"x\""]],
        answers: &[&["nic_list: \"a\""], &[refused!("NIC: x not found")]],
        out: "a\n",
        err: "error in response\ndescription: NIC: x not found\nerror in command: nic\n",
        code: 1,
    }]);
}
