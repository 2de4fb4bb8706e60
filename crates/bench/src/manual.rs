//! butterfly-bench(1), and completions for shells, made of what `--help` is made of.

use butterfly_manual::{Page, completions};
use clap::CommandFactory;

use crate::options::Options;

/// Generates the document named by `--generate`: one of [`butterfly_manual::KINDS`].
pub fn generate(what: &str) -> Option<String> {
    if what == "manual" { Some(page()) } else { completions(what, Options::command()) }
}

fn page() -> String {
    let mut command = Options::command();
    // Without that it lacks --help.
    command.build();
    let mut page = Page::new(
        "butterfly-bench",
        1,
        "Butterfly",
        "loads, verifies and measures a vhost-user switch",
    );
    page.section("SYNOPSIS");
    page.text("`butterfly-bench` `--a` PATH `--b` PATH [OPTION...]\n\n`butterfly-bench` `--made` [OPTION...]");
    page.section("DESCRIPTION");
    page.text(
        "Is two virtual machines on one core, A and B, each on one vhost-user socket of a switch: of `butterflyd`(8), or of any other. \
         They send each other frames, and the program prints how many arrived, in what time, and with `--verify` whether every byte did.\n\n\
         A run has three parts. In the learning part every flow is seen twice in each direction, at the pace of `--learn`. The warm-up \
         goes at the wanted rate, and so do the seconds that are measured.\n\n\
         A is 02:00:00:00:00:01 with 10.0.0.1, B is 02:00:00:00:00:02 with 10.0.0.2. Flow I goes from port 1024 + I mod 32768 of A to \
         port 5001 + I / 32768 of B. Nobody answers ARP. With several sockets for \
         `--a` and `--b` there are as many pairs; the second one has 02:00:00:00:00:03 and 04.\n\n\
         `--dir lat` sends one frame at a time and measures its way, `--dir ping` the way to B and back; `--latency` measures the way of \
         each frame under a load. Times are kept in steps of less than one percent. `--ndr` and `--pdr` search for the highest rate with \
         no loss, or with some, as RFC 2544 has it: the rate is halved between one that passed and one that did not. `--pcap` plays \
         what a capture holds. `--connections` opens and closes TCP connections. `--made` makes frames without a switch, \
         which says what this machine can offer at most.\n\n\
         What is measured is the switch and these two machines together: give the switch a core of its own, and name its process with \
         `--watch-pid` for what it used.",
    );
    page.section("OPTIONS");
    page.arguments(command.get_arguments());
    page.section("EXIT STATUS");
    page.term("`0`", "The run is done, and nothing was wrong.");
    page.term(
        "`1`",
        "It could not run: a socket that nobody serves, a switch that does not forward.",
    );
    page.term("`2`", "Wrong options.");
    page.term("`3`", "Frames were corrupted, duplicated or reordered (`--verify`), or more were lost than `--max-loss` allows.");
    page.section("EXAMPLES");
    page.text(
        "Two NICs that do not filter, and what goes from A to B:\n\n\
         `butterfly nic add --id a --mac 02:00:00:00:00:01 --vni 1 --bypass-filtering + nic add --id b --mac 02:00:00:00:00:02 --vni 1 --bypass-filtering`\n\n\
         `butterfly-bench --a /run/butterfly/qemu-vhost-a --b /run/butterfly/qemu-vhost-b --watch-pid $(pidof butterflyd)`\n\n\
         Every byte, both ways, frames of all sizes: `--verify --size 60-9000 --dir bidi`. One-way latency: `--dir lat`. Round trips, \
         and a picture of them: `--dir ping --svg ping.svg`. The highest rate without loss: `--ndr --secs 10`. A capture ten times as fast: \
         `--pcap trace.pcap --speed 10 --verify`.",
    );
    page.section("SEE ALSO");
    page.text("`butterflyd`(8), `butterfly`(1)");
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_option() {
        let page = page().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        let help = Options::command().render_long_help().to_string();
        let (options, _) = help.split_once("\nExamples:").unwrap();
        let options: Vec<_> =
            options.split_whitespace().filter(|word| word.starts_with("--")).collect();
        assert!(options.len() > 20, "{options:?}");
        for option in options {
            let option = option.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
            assert!(page.contains(option), "{option}");
        }
    }

    #[test]
    fn there_are_completions_for_shells() {
        for kind in butterfly_manual::KINDS {
            assert!(generate(kind).unwrap().contains("butterfly"), "{kind}");
        }
        assert_eq!(generate("tcsh"), None);
    }
}
