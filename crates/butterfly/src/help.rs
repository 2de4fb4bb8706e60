//! Help pages, generated from the model of the commands.

use crate::line::options::{global_options, is_list};
use crate::tree::{Action, Node};
use clap::{Arg, ArgAction, Command};
use std::fmt::Write;

/// The help of the last node of `path`, which starts at the root.
pub fn page(path: &[&Node]) -> String {
    let names: Vec<&str> = path.iter().map(|node| node.name()).collect();
    let name = names.join(" ");
    let Some(node) = path.last() else {
        return String::new();
    };
    let mut page = match &node.action {
        Action::Run(_) | Action::RunOnTree(_) => {
            format!("usage: {name}{} [options...]\n", positional_usage(&node.command))
        }
        Action::Choose(_) => format!("usage: {name} SUBCOMMAND ... [options...]\n"),
    };
    let command = &node.command;
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        section(&mut page, "", [about.to_string()]);
    }
    match &node.action {
        Action::Choose(nodes) => {
            let rows = nodes.iter().map(|below| {
                let about = below.command.get_about().map(ToString::to_string);
                (below.name().to_owned(), about.unwrap_or_default())
            });
            section(&mut page, &format!("{name} subcommands:"), columns(rows));
        }
        Action::Run(_) | Action::RunOnTree(_) => {
            let words = command.get_positionals().map(describe);
            section(&mut page, "arguments:", columns(words));
            let options = command.get_arguments().filter(|it| !it.is_positional()).map(describe);
            section(&mut page, "options:", columns(options));
        }
    }
    if let Some(example) = command.get_after_help() {
        let lines: Vec<String> =
            example.to_string().lines().map(|line| format!("    {line}")).collect();
        section(&mut page, "example:", lines);
    }
    let globals = global_options();
    let mut rows: Vec<_> = globals.iter().map(describe).collect();
    rows.push(("-h, --help".into(), "print this help".into()));
    rows.push(("-V, --version".into(), "print the version".into()));
    section(&mut page, "global options:", columns(rows));
    page
}

/// A blank line, the heading and the lines; nothing when there are no lines.
fn section(page: &mut String, heading: &str, lines: impl IntoIterator<Item = String>) {
    for (place, line) in lines.into_iter().enumerate() {
        if place == 0 {
            page.push('\n');
            if !heading.is_empty() {
                page.push_str(heading);
                page.push('\n');
            }
        }
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{line}");
    }
}

/// Indented rows: a term and what it means, the meanings aligned.
fn columns(rows: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
    rows.iter().map(|(term, meaning)| format!("    {term:width$}   {meaning}")).collect()
}

fn describe(argument: &Arg) -> (String, String) {
    let mut term = argument.get_short().map(|letter| format!("-{letter}")).unwrap_or_default();
    if let Some(long) = argument.get_long() {
        if !term.is_empty() {
            term.push_str(", ");
        }
        term.push_str("--");
        term.push_str(long);
    }
    if !matches!(argument.get_action(), ArgAction::SetTrue) {
        if !term.is_empty() {
            term.push(' ');
        }
        term.push_str(&value_name(argument));
        if is_list(argument) {
            term.push_str("...");
        }
    }
    let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
    if argument.is_required_set() && !argument.is_positional() {
        meaning.push_str(" (mandatory)");
    }
    (term, meaning)
}

fn positional_usage(command: &Command) -> String {
    command.get_positionals().fold(String::new(), |mut usage, word| {
        let name = value_name(word);
        let _ = match (word.is_required_set(), is_list(word)) {
            (true, false) => write!(usage, " {name}"),
            (true, true) => write!(usage, " {name} [{name}..]"),
            (false, false) => write!(usage, " [{name}]"),
            (false, true) => write!(usage, " [{name}..]"),
        };
        usage
    })
}

fn value_name(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names.first().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::root;
    use crate::line::options::{list, option, word};

    #[test]
    fn a_page_has_the_usual_shape() {
        let command = Command::new("add")
            .about("Adds a thing.")
            .arg(word("SG").num_args(1..).help("group"))
            .arg(option("id", "ID").required(true).help("its id"))
            .arg(list("ip", "IP").help("addresses"))
            .after_help("butterfly add x");
        let node = Node::run(command, |_, _| Ok(()));
        let root = root();
        let page = page(&[&root, &node]);
        let (own, globals) = page.split_once("\nglobal options:\n").unwrap();
        assert_eq!(
            own,
            "usage: butterfly add SG [SG..] [options...]\n\n\
             Adds a thing.\n\n\
             arguments:\n    SG...   group\n\n\
             options:\n    --id ID      its id (mandatory)\n    --ip IP...   addresses\n\n\
             example:\n    butterfly add x\n"
        );
        for option in
            ["-e, --endpoint EP ", "-v, --verbose ", "-t, --timeout MS ", "-k, --key PATH "]
        {
            assert!(globals.contains(&format!("    {option}")), "{globals}");
        }
    }

    #[test]
    fn the_general_help_lists_the_first_words() {
        let root = root();
        let page = page(&[&root]);
        assert!(page.starts_with("usage: butterfly SUBCOMMAND"));
        assert!(page.contains("\nbutterfly subcommands:\n    nic "));
        for name in [
            "sg",
            "status",
            "drops",
            "fdb",
            "workers",
            "events",
            "tunnels",
            "uplink",
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
            "request",
            "dump",
            "shutdown",
        ] {
            assert!(page.contains(&format!("\n    {name} ")), "{name}");
        }
    }
}
