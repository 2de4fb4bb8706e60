//! butterflyd(8), and completions for shells, made of what `--help` is made of.

use crate::config::{keys::keys, options::Options};
use butterfly_manual::{KINDS, Page, completions};
use clap::CommandFactory;

/// Generates the document named by `--generate`.
pub fn generate(what: &str) -> Result<String, String> {
    let made = if what == "manual" { Some(page()) } else { completions(what, Options::command()) };
    made.ok_or_else(|| format!("{what:?} cannot be generated: there are {}", KINDS.join(", ")))
}

fn page() -> String {
    let mut command = Options::command();
    // Without that it lacks --help.
    command.build();
    let mut page = Page::new(
        "butterflyd",
        8,
        "Butterfly",
        "a virtual switch for the virtual machines of a host",
    );
    page.section("SYNOPSIS");
    page.text("`butterflyd` `-i` IP `-s` DIR [OPTION...]\n\n`butterflyd` `-c` FILE [OPTION...]\n\n`butterflyd` `--upgrade-holder` DIR");
    page.section("DESCRIPTION");
    page.text(
        "Gives every virtual network card (vnic) a vhost-user socket that QEMU attaches to. Each vnic lives in a network of its own number \
         (VNI); networks span hosts over VXLAN; security groups filter every vnic. There is one daemon per host, and `butterfly`(1) \
         tells it what to do.\n\n\
         It runs in the foreground until a signal or a client stops it. With `--state-dir` machines do not notice that it ends and starts \
         again, and what was declared is kept; else vnics are declared again after a restart (`butterfly dump`, `butterfly apply`).",
    );
    page.section("OPTIONS");
    page.arguments(command.get_arguments());
    configuration_file(&mut page);
    page.section("SIGNALS");
    page.term(
        "`SIGINT`, `SIGQUIT`, `SIGTERM`",
        "Stop: machines are detached, sockets and the table of sessions removed. A second one ends the process at once. `butterfly shutdown` \
         does the same. With `--state-dir` a signal leaves all that to the next daemon: the holder, a process that keeps it, waits ten seconds \
         for that and then takes it down; `butterfly shutdown` takes it down at once.",
    );
    page.term(
        "`SIGHUP`",
        "Read the configuration file again, with the command line of the start, and check all of it. If something is wrong, nothing changes, and \
         the log and an event tell what it is. Else these change at once, where the configuration says something else than before: `log-level`, \
         `metrics` (the new address is served before the old one is closed), `peer`, `fdb-ageing`, `tcp-pickup` and the time-outs, also of sessions \
         that there are. What clients changed stays. Every other setting takes effect at the next start, and the log and the event name it. \
         A terminal that is closed sends SIGHUP, too: the daemon goes on.",
    );
    page.text("Nothing else is handled. SIGSEGV and SIGABRT are defects: please report them.");
    page.section("EXIT STATUS");
    page.term("`0`", "It was stopped, by a signal or by a client.");
    page.term(
        "`1`",
        "It cannot start, or cannot go on: an address in use, a name of another daemon, an uplink that cannot be opened. \
         With `--upgrade-holder`: the holder did not become this program, and standard error says why.",
    );
    page.term(
        "`2`",
        "Wrong options or a wrong configuration. To start it again is useless, and its unit does not. With `--state-dir` machines stay \
         connected, without traffic, until it is mended and the daemon started.",
    );
    page.term(
        "`134`, `139`",
        "As shells tell it: ended by SIGABRT, which is what the watchdog sends too, or by SIGSEGV.",
    );
    page.section("LOG");
    page.text(
        "To syslog as `butterfly`, facility local0, and to standard error; with `--no-syslog` to standard error only. Under systemd it goes to \
         the journal instead, with fields: `PRIORITY`, and where they apply `NIC` (a vnic's id), `VNI`, `REASON`, `EVENT` (a name of those \
         in docs/events.md), `PEER`, `UPLINK`.\n\n\
         `butterfly request` with an `app_config` changes the level while it runs. Standard output has a line when a socket is \
         made, and when a machine comes and goes.",
    );
    page.section("ENVIRONMENT");
    page.term(
        "`NOTIFY_SOCKET`",
        "systemd is told there when the API answers, and when the daemon stops.",
    );
    page.term(
        "`WATCHDOG_USEC`",
        "systemd gets a sign of life in this time while packet thread and API take turns. A stuck packet thread ends the signs at once, a stuck \
         API after ten times this long; systemd starts the daemon again then.",
    );
    page.term("`JOURNAL_STREAM`", "Tells that standard error is the journal.");
    page.section("FILES");
    page.term("`/etc/butterfly/butterflyd.ini`", "The configuration that the systemd unit names.");
    page.term("SOCKET-DIR`/qemu-vhost-`ID", "The socket of the vnic ID.");
    page.term("`/dev/shm/butterfly-`NUMBER", "The table of sessions, unless a hugetlbfs has it.");
    page.term("`/tmp/butterfly-`PID`-`ID`.pcap`", "What `--packet-trace` records.");
    page.section("SEE ALSO");
    page.text("`butterfly`(1), `systemctl`(1), `journalctl`(1)");
    page.finish()
}

fn configuration_file(page: &mut Page) {
    page.section("CONFIGURATION FILE");
    page.text(
        "Groups of KEY = VALUE; lines that begin with # are comments. What stands there is stronger than the command line, and a key that \
         looks like a misspelt one is refused. `/etc/butterfly/butterflyd.ini` explains every key with its default. Options that are there once or \
         more take all their values in one key, with spaces between.",
    );
    let named = |wanted: &str, same: bool| {
        let names =
            keys().filter(|(group, key, option)| *group == wanted && (key == option) == same);
        names.map(|(_, key, _)| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    };
    page.term("[general] KEY", &format!("as the option of that name: {}", named("general", true)));
    page.term(
        "[timeouts] NAME",
        &format!("as `--timeout` NAME=SECONDS: {}", named("timeouts", false)),
    );
    for (group, key, option) in
        keys().filter(|(group, key, option)| *group != "timeouts" && key != option)
    {
        let value = if option.starts_with("no-") { "false: " } else { "" };
        page.term(&format!("[{group}] `{key}`"), &format!("{value}as `--{option}`"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_option_and_key() {
        let page = page().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        let help = Options::command().render_long_help().to_string();
        let options: Vec<_> =
            help.split_whitespace().filter(|word| word.starts_with("--")).collect();
        assert!(options.len() > 30, "{options:?}");
        for option in options {
            let option = option.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
            assert!(page.contains(option), "{option}");
        }
        let section = page
            .split("\n.SH \"CONFIGURATION FILE\"\n")
            .nth(1)
            .unwrap()
            .split("\n.SH ")
            .next()
            .unwrap();
        let words: Vec<_> = section.split([' ', ',', '\n']).collect();
        for (_, key, _) in keys() {
            assert!(words.contains(&key), "{key}");
        }
    }

    #[test]
    fn what_cannot_be_generated_is_told() {
        for what in KINDS {
            assert!(generate(what).unwrap().contains("butterflyd"), "{what}");
        }
        assert!(generate("tcsh").unwrap_err().contains("manual, bash, zsh, fish"));
    }
}
