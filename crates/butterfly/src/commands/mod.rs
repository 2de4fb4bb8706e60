//! All commands of the client.

mod apply;
mod drops;
mod events;
mod explain;
mod external;
mod fdb;
mod manual;
mod nat;
mod neighbour;
mod network;
mod nic;
mod notes;
mod peer;
mod process;
mod replay;
mod route;
mod router;
mod sessions;
mod sg;
mod show;
mod top;
mod tunnels;
mod upgrade;
mod uplink;
mod watch;
mod words;
mod workers;

use crate::line::options::global_options;
use crate::tree::Node;
use clap::Command;

/// Every command of the client. The root carries the global options.
pub fn root() -> Node {
    let command = Command::new("butterfly")
        .about("Drives the Butterfly virtual switch of one host.")
        .args(global_options())
        .after_help(
            "butterfly nic add --id vm-1 --mac 52:54:00:12:34:01 --vni 42 --ip 10.0.0.1\n\
             butterfly nic list + nic show vm-1 -e tcp://192.0.2.7:9999",
        );
    Node::choose(
        command,
        vec![
            nic::node(),
            sg::node(),
            show::node(),
            explain::node(),
            sessions::node(),
            process::status(),
            drops::node(),
            fdb::node(),
            top::node(),
            workers::node(),
            events::node(),
            tunnels::node(),
            uplink::node(),
            peer::node(),
            network::node(),
            router::node(),
            route::node(),
            external::node(),
            nat::snat(),
            nat::floating(),
            nat::forward(),
            nat::node(),
            neighbour::node(),
            watch::trace(),
            watch::capture(),
            replay::request(),
            replay::dump(),
            apply::node(),
            process::log_level(),
            upgrade::node(),
            process::shutdown(),
            manual::node(),
            words::help(),
            words::version(),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::reader::Arguments;
    use clap::Arg;

    fn each_command<'a>(node: &'a Node, visit: &mut impl FnMut(&'a Node)) {
        visit(node);
        for below in node.nodes() {
            each_command(below, visit);
        }
    }

    #[test]
    fn clap_finds_no_fault_in_the_model() {
        manual::model(&root()).debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_with_an_example() {
        each_command(&root(), &mut |node| {
            let name = node.name();
            assert!(node.command.get_about().is_some(), "{name}: no description");
            if node.is_command() {
                let example = node.command.get_after_help().expect(name).to_string();
                assert!(
                    example.starts_with("butterfly ") && example.contains(name),
                    "{name}: {example}"
                );
            }
            for argument in node.command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name} {}: no help", argument.get_id());
            }
        });
    }

    /// Returns spellings that a user who means `name` may try.
    fn misspellings(name: &str) -> Vec<String> {
        let last = name.chars().last().unwrap();
        let mut found = vec![
            format!("--{name}{last}"),
            format!("-{name}"),
            format!("--{}", name.to_uppercase()),
        ];
        if name.len() > 4 {
            let middle = name.len() / 2;
            let letters: Vec<char> = name.chars().collect();
            let mut swapped = letters.clone();
            swapped.swap(middle - 1, middle);
            let left_out = letters
                .iter()
                .enumerate()
                .filter(|(place, _)| *place != middle)
                .map(|(_, letter)| *letter);
            found.extend([
                format!("--{}", String::from_iter(left_out)),
                format!("--{}", String::from_iter(swapped)),
            ]);
        }
        found.retain(|word| *word != format!("--{name}"));
        found
    }

    #[test]
    fn a_misspelling_of_every_option_is_noticed() {
        let globals = global_options();
        let mut tried = 0;
        each_command(&root(), &mut |node| {
            if !node.is_command() {
                return;
            }
            for option in node.command.get_arguments().chain(&globals).filter_map(Arg::get_long) {
                for word in misspellings(option) {
                    let mut known = node.command.get_arguments().chain(&globals);
                    if known.any(|other| other.get_long() == word.strip_prefix("--")) {
                        continue; // it is another one
                    }
                    tried += 1;
                    let words = [word.clone(), "value".to_owned()];
                    // Refused, when it is about the key; else noticed, and understood.
                    let Ok(read) = Arguments::read(&node.command, &globals, &words) else {
                        continue;
                    };
                    let told: Vec<String> =
                        read.slips().iter().map(|slip| slip.told(node.name())).collect();
                    assert_eq!(told.len(), 1, "{} {word}: {told:?}", node.name());
                    let (_, guess) = told[0]
                        .split_once("did you mean --")
                        .unwrap_or_else(|| panic!("{word}: {told:?}"));
                    // --porto is as near to --port as to --proto.
                    let distance = |name: &str| {
                        strsim::damerau_levenshtein(word.trim_start_matches('-'), name)
                    };
                    let guess = guess.trim_end_matches('?');
                    assert!(
                        guess == option || distance(guess) <= distance(option),
                        "{} {word}: {told:?}",
                        node.name()
                    );
                }
            }
        });
        assert!(tried > 500, "{tried}");
    }

    #[test]
    fn the_commands_of_the_original_are_known() {
        let mut originals = 0;
        each_command(&root(), &mut |node| originals += usize::from(node.original));
        assert_eq!(originals, 23);
    }

    #[test]
    fn no_command_shadows_a_global_option() {
        let globals = global_options();
        each_command(&root(), &mut |node| {
            if node.is_command() {
                for own in node.command.get_arguments() {
                    assert!(
                        globals.iter().all(|global| {
                            global.get_id() != own.get_id()
                                && (own.get_short().is_none()
                                    || own.get_short() != global.get_short())
                        }),
                        "{} {}",
                        node.name(),
                        own.get_id()
                    );
                }
            }
        });
    }
}
