//! The commands as a tree: what each is called and takes, and what runs it.
//!
//! clap's model describes every command; help texts, and whatever else is
//! generated from the commands, read it. Words are not parsed by clap: see
//! [`crate::reader`].

use crate::{
    drops, events, explain, fdb, manual, nic, peer, process, replay, sessions, sg, top, tunnels, uplink, watch, workers,
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
        Self { command, action: Action::Run(handler), help_below: 0 }
    }

    /// A word that one of `nodes` must follow.
    pub fn choose(command: Command, nodes: Vec<Node>) -> Self {
        Self { command, action: Action::Choose(nodes), help_below: 0 }
    }

    /// The same command, which prints its help for fewer than `words` words.
    pub fn help_below(mut self, words: usize) -> Self {
        self.help_below = words;
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
            process::shutdown(),
            manual::node(),
        ],
    )
}

/// Options that every command takes, after its own words.
pub fn global_options() -> Vec<Arg> {
    vec![
        option("endpoint", "EP").short('e').help("ZeroMQ endpoint of the daemon (default: tcp://127.0.0.1:9999)"),
        flag("verbose").short('v').help("print the request and the reply in text format"),
        option("timeout", "MS").short('t').help("milliseconds to wait for each operation (default: 0, for ever)"),
        option("key", "PATH")
            .short('k')
            .help("file with the key that the daemon has: encrypt what is sent, and take no reply that is not"),
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
