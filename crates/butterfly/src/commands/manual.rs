//! `butterfly generate`: the manual page and shell completions, made of the commands themselves.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{is_list, word};
use crate::line::reader::Arguments;
use crate::tree::{Action, Node};
use butterfly_manual::{KINDS, Page, bash, completions};
use clap::{Arg, ArgAction, Command};

/// `generate`.
pub fn node() -> Node {
    Node::run_on_tree(
        Command::new("generate")
            .about("Prints the manual page, or completions for a shell.")
            .arg(word("WHAT").value_parser(KINDS).help("manual, bash, zsh or fish"))
            .after_help("butterfly generate manual | man -l -\nbutterfly generate bash > /etc/bash_completion.d/butterfly"),
        print,
    )
}

fn print(root: &Node, arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let what = arguments.word(0).unwrap_or_default();
    let text = match what {
        "manual" => Some(page(root)),
        "bash" => Some(bash(&model(root))),
        shell => completions(shell, for_clap(model(root))),
    };
    let text = text.ok_or_else(|| {
        Failure::usage(format!("{what:?} cannot be generated: there are {}", KINDS.join(", ")))
    })?;
    session.print(text)
}

/// The commands from `node` on as clap's own tree.
pub fn model(node: &Node) -> Command {
    // `help` is a command of ours.
    let command = node.command.clone().disable_help_subcommand(true);
    node.nodes().iter().fold(command, |command, below| command.subcommand(model(below)))
}

/// Adds the facts that clap needs: options of the root belong to all commands.
fn for_clap(root: Command) -> Command {
    root.mut_args(|argument| argument.global(true))
}

fn page(root: &Node) -> String {
    let about = "drives the Butterfly virtual switch of a host";
    let mut page = Page::new("butterfly", 1, "Butterfly", about);
    page.section("SYNOPSIS");
    page.text("`butterfly` COMMAND [WORD...] [OPTION...] [`+` COMMAND ...]");
    page.section("DESCRIPTION");
    page.text(
        "Asks the `butterflyd` of a host to do something, and prints what came of it: vnics, the virtual network cards of machines; \
         security groups, which say what may reach them; and everything that an operator wants to know about packets.\n\n\
         Words come first and end at the first one that begins with a dash; options follow in any order. Commands of butterfly 0.13 ignore \
         options that they do not know, as they always did, and say so on standard error; all others refuse them. \
         `+` as a word of its own chains commands: they run in order, the first that fails ends the chain, and the global options of any \
         are those of all. `help` as the first word after a command prints its help.",
    );
    page.section("GLOBAL OPTIONS");
    page.arguments(root.command.get_arguments());
    for (option, short, help) in [
        ("help", 'h', "print the help of the command, or the general help"),
        ("version", 'V', "print the version"),
    ] {
        page.arguments([&Arg::new(option)
            .long(option)
            .short(short)
            .action(ArgAction::SetTrue)
            .help(help)]);
    }
    page.text("They may stand before the command, too.");
    page.section("COMMANDS");
    describe(&mut page, root, "butterfly");
    page.section("EXIT STATUS");
    page.term(
        "`0`",
        "Everything was done; what was to be deleted and is not there counts as done.",
    );
    page.term("`1`", "Something failed, or was not understood; standard error says what.");
    page.term(
        "`2`",
        "The answer is no: `butterfly explain` found that the packet does not arrive.",
    );
    page.section("ENVIRONMENT");
    page.term("`BUTTERFLY_ENDPOINT`", "The endpoint, where no option names it.");
    page.term("`BUTTERFLY_STRICT`", "As `--strict`, unless it is empty or 0.");
    page.term("`BUTTERFLY_KEY`", "The file with the key, where no option names it.");
    page.term("`BUTTERFLY_CONFIG`", "The client's file, instead of those below.");
    page.section("FILES");
    page.term(
        "`~/.config/butterfly/client.conf`, `/etc/butterfly/client.conf`",
        "Global options as lines NAME=VALUE, for `endpoint`, `key`, `timeout` and `legacy-encryption`, and comments that begin with #. \
         Options are stronger than the environment, that is stronger than the user's file, and that than the host's.",
    );
    page.section("EXAMPLES");
    page.example(&root.command.get_after_help().map(ToString::to_string).unwrap_or_default());
    page.section("SEE ALSO");
    page.text("`butterflyd`(8)");
    page.finish()
}

fn describe(page: &mut Page, node: &Node, before: &str) {
    for below in node.nodes() {
        let name = format!("{before} {}", below.name());
        let command = &below.command;
        if let Action::Choose(_) = below.action {
            describe(page, below, &name);
            continue;
        }
        let words = command.get_positionals().map(usage);
        page.subsection(&words.fold(name, |heading, word| format!("{heading} {word}")));
        let about = command.get_long_about().or(command.get_about());
        page.text(&about.map(ToString::to_string).unwrap_or_default());
        page.arguments(command.get_positionals());
        page.arguments(command.get_arguments().filter(|argument| !argument.is_positional()));
        page.example(&command.get_after_help().map(ToString::to_string).unwrap_or_default());
    }
}

fn usage(word: &Arg) -> String {
    let name = word
        .get_value_names()
        .unwrap_or_default()
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    match (word.is_required_set(), is_list(word)) {
        (true, false) => name,
        (true, true) => format!("{name}..."),
        (false, false) => format!("[{name}]"),
        (false, true) => format!("[{name}...]"),
    }
}
