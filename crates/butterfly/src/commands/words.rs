//! `butterfly help` and `butterfly version`: about the client itself.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::help;
use crate::line::options::{json, word};
use crate::line::reader::Arguments;
use crate::line::slips::meant_word;
use crate::tree::Node;
use butterfly_api::REVISION;
use clap::Command;
use serde_json::json;

/// `help`.
pub fn help() -> Node {
    Node::run_on_tree(
        Command::new("help")
            .about("Prints the general help, or that of a command.")
            .arg(word("COMMAND").required(false).num_args(1..).help("words of the command"))
            .after_help("butterfly help nic add"),
        print_help,
    )
}

/// `version`.
pub fn version() -> Node {
    Node::run(
        Command::new("version")
            .about("Prints the version of the client; that of the daemon is in `butterfly show`.")
            .arg(json())
            .after_help("butterfly version"),
        print_version,
    )
}

fn print_help(root: &Node, arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let mut path = vec![root];
    for word in arguments.words_from(0) {
        let nodes = path.last().map(|node| node.nodes()).unwrap_or_default();
        let Some(below) = nodes.iter().find(|below| below.name() == word) else {
            let advice = meant_word(word, nodes.iter().map(Node::name))
                .map(|name| format!("; did you mean {name}?"));
            return Err(Failure::said(format!(
                "there is no command {word}{}",
                advice.unwrap_or_default()
            )));
        };
        path.push(below);
    }
    session.print(help::page(&path))
}

fn print_version(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    match session.wants_json(arguments) {
        true => {
            session.json(&json!({ "version": env!("CARGO_PKG_VERSION"), "revision": REVISION }))
        }
        false => session.line(butterfly_version::line(REVISION)),
    }
}
