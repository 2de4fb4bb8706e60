//! The commands as a tree: what each is called and takes, and what runs it.
//!
//! clap's model describes every command; help texts, and whatever else is
//! generated from the commands, read it. Words are not parsed by clap: see
//! [`crate::reader`].

use crate::{
    drops, events, explain, fdb, manual, nic, peer, process, replay, sessions, sg, show, top, tunnels, uplink, watch, words,
    workers,
};
use crate::{failure::Failure, reader::Arguments, session::Session};
use clap::{Arg, ArgAction, Command};

/// Runs one command.
pub type Handler = fn(&Arguments, &mut Session) -> Result<(), Failure>;

/// A command, or a word that other commands share.
pub struct Node {
    /// Name, description, arguments. Without the nodes below it.
    pub command: Command,
    /// What the word leads to.
    pub action: Action,
    /// With fewer words after it than this, the command prints its help and
    /// succeeds.
    pub help_below: usize,
    /// The original has it: what it does not know there it ignores. Others refuse that.
    pub original: bool,
}

/// What a word on the command line leads to.
pub enum Action {
    /// A command.
    Run(Handler),
    /// A choice of further words.
    Choose(Vec<Node>),
}

impl Node {
    /// A command that `handler` runs.
    pub fn run(command: Command, handler: Handler) -> Self {
        Self { command, action: Action::Run(handler), help_below: 0, original: false }
    }

    /// A word that one of `nodes` must follow.
    pub fn choose(command: Command, nodes: Vec<Node>) -> Self {
        Self { command, action: Action::Choose(nodes), help_below: 0, original: false }
    }

    /// The same command, which prints its help for fewer than `words` words.
    pub fn help_below(mut self, words: usize) -> Self {
        self.help_below = words;
        self
    }

    /// The same command, which the original has: scripts may give it options that it does not know.
    pub fn of_the_original(mut self) -> Self {
        self.original = true;
        self
    }

    /// The word itself.
    pub fn name(&self) -> &str {
        self.command.get_name()
    }

    /// The words that may follow; none for a command.
    pub fn nodes(&self) -> &[Node] {
        match &self.action {
            Action::Run(_) => &[],
            Action::Choose(nodes) => nodes,
        }
    }
}

/// Every command of the client. The root carries the global options.
pub fn root() -> Node {
    let command =
        Command::new("butterfly").about("Drives the Butterfly virtual switch of one host.").args(global_options()).after_help(
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
            watch::trace(),
            watch::capture(),
            replay::request(),
            replay::dump(),
            process::log_level(),
            process::shutdown(),
            manual::node(),
            words::help(),
            words::version(),
        ],
    )
}

/// Options that every command takes, before its own words or after them.
pub fn global_options() -> Vec<Arg> {
    vec![
        option("endpoint", "EP").short('e').help("ZeroMQ endpoint of the daemon (default: $BUTTERFLY_ENDPOINT, else tcp://127.0.0.1:9999)"),
        flag("verbose").short('v').help("print the request and the reply in text format"),
        option("timeout", "MS").short('t').help("milliseconds to wait for each operation, 0 for ever (default: 0, or 5000 for commands that butterfly 0.13 does not have)"),
        option("key", "PATH")
            .short('k')
            .help("file with the key that the daemon has: encrypt what is sent, and take no reply that is not (default: $BUTTERFLY_KEY)"),
        flag("legacy-encryption")
            .help("encrypt as butterfly 0.13 does, for a daemon that knows nothing else; it can be sent again by others"),
    ]
}

/// An option with one value; the last one given counts.
pub fn option(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).action(ArgAction::Set)
}

/// An option with one or more values, that may be repeated.
pub fn list(name: &'static str, value: &'static str) -> Arg {
    option(name, value).action(ArgAction::Append).num_args(1..)
}

/// An option without a value.
pub fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

/// Whether an argument takes several values.
pub fn is_list(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// A mandatory word after the command.
pub fn word(name: &'static str) -> Arg {
    Arg::new(name).value_name(name).required(true)
}

/// `--json` of the commands that have it.
pub fn json() -> Arg {
    flag("json").help("print JSON, for programs")
}

#[cfg(test)]
mod tests {
    use super::*;

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
            if matches!(node.action, Action::Run(_)) {
                let example = node.command.get_after_help().expect(name).to_string();
                assert!(example.starts_with("butterfly ") && example.contains(name), "{name}: {example}");
            }
            for argument in node.command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name} {}: no help", argument.get_id());
            }
        });
    }

    /// Spellings that somebody who means `name` may come up with.
    fn misspellings(name: &str) -> Vec<String> {
        let last = name.chars().last().unwrap();
        let mut found = vec![format!("--{name}{last}"), format!("-{name}"), format!("--{}", name.to_uppercase())];
        if name.len() > 4 {
            let middle = name.len() / 2;
            let letters: Vec<char> = name.chars().collect();
            let mut swapped = letters.clone();
            swapped.swap(middle - 1, middle);
            let left_out = letters.iter().enumerate().filter(|(place, _)| *place != middle).map(|(_, letter)| *letter);
            found.extend([format!("--{}", String::from_iter(left_out)), format!("--{}", String::from_iter(swapped))]);
        }
        found.retain(|word| *word != format!("--{name}"));
        found
    }

    #[test]
    fn a_misspelling_of_every_option_is_noticed() {
        let globals = global_options();
        let mut tried = 0;
        each_command(&root(), &mut |node| {
            let Action::Run(_) = node.action else { return };
            for option in node.command.get_arguments().chain(&globals).filter_map(Arg::get_long) {
                for word in misspellings(option) {
                    let mut known = node.command.get_arguments().chain(&globals);
                    if known.any(|other| other.get_long() == word.strip_prefix("--")) {
                        continue; // it is another one
                    }
                    tried += 1;
                    let words = [word.clone(), "value".to_owned()];
                    // Refused, when it is about the key; else noticed, and understood.
                    let Ok(read) = Arguments::read(&node.command, &globals, &words) else { continue };
                    let told: Vec<String> = read.slips().iter().map(|slip| slip.told(node.name())).collect();
                    assert_eq!(told.len(), 1, "{} {word}: {told:?}", node.name());
                    let (_, guess) = told[0].split_once("did you mean --").unwrap_or_else(|| panic!("{word}: {told:?}"));
                    // --porto is as near to --port as to --proto.
                    let distance = |name: &str| strsim::damerau_levenshtein(word.trim_start_matches('-'), name);
                    let guess = guess.trim_end_matches('?');
                    assert!(guess == option || distance(guess) <= distance(option), "{} {word}: {told:?}", node.name());
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
            if let Action::Run(_) = node.action {
                for own in node.command.get_arguments() {
                    assert!(
                        globals.iter().all(|global| {
                            global.get_id() != own.get_id()
                                && (own.get_short().is_none() || own.get_short() != global.get_short())
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
