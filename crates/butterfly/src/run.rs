//! Turns the words of the command line into commands that ran.

use crate::commands::root;
use crate::daemon::session::Session;
use crate::daemon::settings::{Given, Settings};
use crate::failure::Failure;
use crate::help;
use crate::line::options::global_options;
use crate::line::reader::{Arguments, count_leading, is_option};
use crate::line::slips::{meant, meant_word};
use crate::text::output::Output;
use crate::tree::{Action, Node};
use butterfly_api::REVISION;
use clap::Command;
use std::io;
use std::time::Duration;

/// Time for which commands that the original does not have wait for a reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Failed,
    /// The answer is no.
    Negative,
}

/// Runs the commands in `words` (without the program's name), in order, until
/// one does not succeed. Fails when standard output does.
pub fn run(words: &[String], output: &mut Output) -> io::Result<End> {
    let root = root();
    if words.is_empty() {
        output.print(help::page(&[&root]))?;
        return Ok(End::Failed);
    }
    let chain: Vec<Step> =
        words.split(|word| word == "+").map(|words| Step::find(&root, words)).collect();
    for (step, word) in chain.iter().flat_map(|step| step.all.iter().map(move |word| (step, word)))
    {
        match word.as_str() {
            "-h" | "--help" => output.print(help::page(&step.path))?,
            "-V" | "--version" => output.line(butterfly_version::line(REVISION))?,
            _ => continue,
        }
        return Ok(End::Succeeded);
    }
    if let ([step], true) = (chain.as_slice(), chain.iter().all(Step::asks_for_help)) {
        // A request for help alone gets it, even if the rest is wrong.
        return step.help(output);
    }
    // The global options of any command are those of all.
    let (mut given, mut replaced) = (Given::default(), Vec::new());
    for step in &chain {
        match step.give(&mut given) {
            Ok(more) => replaced.extend(more.into_iter().map(|what| (step, what))),
            Err(failure) => return step.report(failure, false, output),
        }
    }
    let settings = match (given.settings(), chain.first()) {
        (Ok(settings), _) => settings,
        (Err(failure), Some(step)) => return step.report(failure, false, output),
        (Err(_), None) => return Ok(End::Failed),
    };
    for (step, what) in replaced {
        match settings.strict {
            true => return step.report(unsent(&what), true, output),
            false => output.ignored(&what),
        }
    }
    if settings.strict {
        // Before the first one is carried out.
        for step in &chain {
            if let Some(failure) =
                step.arguments().and_then(|arguments| step.understood(&arguments)).err()
            {
                return step.report(failure, true, output);
            }
        }
    }
    for step in &chain {
        let end = step.run(&settings, output)?;
        output.flush()?;
        if end != End::Succeeded {
            return Ok(end);
        }
    }
    Ok(End::Succeeded)
}

/// Returns the failure of a wrong command line, of which nothing was done.
fn unsent(what: &str) -> Failure {
    Failure::usage(format!("{what}\nnothing was sent"))
}

/// One command of a chain.
struct Step<'t> {
    /// All its words.
    all: &'t [String],
    /// Global options before its first word.
    leading: &'t [String],
    /// The nodes its first words lead to, from the root.
    path: Vec<&'t Node>,
    /// The last of them.
    node: &'t Node,
    /// The words after those.
    words: &'t [String],
}

impl<'t> Step<'t> {
    /// Follows `words` down the tree as far as they name nodes.
    fn find(root: &'t Node, words: &'t [String]) -> Self {
        let (leading, after) = words.split_at(count_leading(words, &global_options()));
        let mut step = Self { all: words, leading, path: vec![root], node: root, words: after };
        while let Some((word, rest)) = step.words.split_first() {
            let Some(below) = step.node.nodes().iter().find(|below| below.name() == word) else {
                break;
            };
            step.path.push(below);
            step.node = below;
            step.words = rest;
        }
        step
    }

    /// The first word, if it is one.
    fn command(&self) -> Option<&'t str> {
        self.path.get(1).map(|node| node.name())
    }

    /// The command's words.
    fn name(&self) -> String {
        let names: Vec<&str> = self.path.iter().skip(1).map(|node| node.name()).collect();
        names.join(" ")
    }

    /// Adds its global options to those that others gave. Returns those that they replace.
    fn give(&self, given: &mut Given) -> Result<Vec<String>, Failure> {
        let mut replaced = given.take(&self.leading()?)?;
        replaced.extend(given.take(&self.arguments()?)?);
        Ok(replaced)
    }

    /// Reads the global options before the command.
    fn leading(&self) -> Result<Arguments, Failure> {
        Arguments::read(&Command::new("butterfly"), &global_options(), self.leading)
    }

    /// Reads the words after the command. Fails for those that a command of ours does not
    /// understand.
    fn arguments(&self) -> Result<Arguments, Failure> {
        let arguments = Arguments::read(&self.node.command, &global_options(), self.words)?;
        if self.is_ours() {
            self.understood(&arguments)?;
        }
        Ok(arguments)
    }

    /// True if the original does not have the command: no script relies on its answers.
    fn is_ours(&self) -> bool {
        !self.node.original && self.node.is_command()
    }

    /// Fails for words that it does not understand.
    fn understood(&self, arguments: &Arguments) -> Result<(), Failure> {
        match arguments.slips().first().filter(|_| self.node.is_command()) {
            Some(slip) => Err(unsent(&slip.told(&self.name()))),
            None => Ok(()),
        }
    }

    /// True if its help is to be printed. `help` is no command of its own.
    fn asks_for_help(&self) -> bool {
        let asks = self.words.first().is_some_and(|word| word == "help")
            || self.words.len() < self.node.help_below;
        asks && self.command().is_some()
    }

    /// Prints its help. A person who did not ask for it, but left words out, gets a short one.
    fn help(&self, output: &mut Output) -> io::Result<End> {
        match self.words.first().is_some_and(|word| word == "help") || !output.is_terminal() {
            true => output.print(help::page(&self.path))?,
            false => {
                let words = self
                    .node
                    .command
                    .get_positionals()
                    .skip(self.words.len())
                    .map(|word| word.get_id().as_str());
                let text = format!(
                    "{} missing, or options in place of the last",
                    words.collect::<Vec<_>>().join(", ")
                );
                output.complain(&self.in_short(&text));
            }
        }
        Ok(End::Succeeded)
    }

    /// Runs the command and tells why it failed, if it did.
    fn run(&self, settings: &Settings, output: &mut Output) -> io::Result<End> {
        if self.asks_for_help() {
            return self.help(output);
        }
        let outcome = match self.node.action {
            Action::Choose(_) => Err(self.wrong_choice()),
            Action::Run(handler) => self.execute(handler, settings, output),
            Action::RunOnTree(handler) => {
                let root = self.path.first().copied().unwrap_or(self.node);
                self.execute(
                    |arguments, session| handler(root, arguments, session),
                    settings,
                    output,
                )
            }
        };
        match outcome {
            Ok(()) => Ok(End::Succeeded),
            Err(failure) => self.report(failure, settings.strict, output),
        }
    }

    fn execute(
        &self,
        handler: impl Fn(&Arguments, &mut Session) -> Result<(), Failure>,
        settings: &Settings,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let arguments = self.arguments()?;
        // What was not understood may be what is missing.
        for slip in arguments.slips() {
            output.ignored(&slip.told(&self.name()));
        }
        arguments.check_mandatory(&self.node.command)?;
        // Scripts of the original start the daemon and let its commands wait.
        let patience = (!self.node.original).then_some(PATIENCE);
        let mut session = Session::new(settings, output, patience);
        handler(&arguments, &mut session)?;
        match settings.strict && session.is_doubtful() {
            true => {
                Err(Failure::said("--strict: it was done, and is a failure because of the note"))
            }
            false => Ok(()),
        }
    }

    /// Returns why the words after a shared word lead nowhere.
    fn wrong_choice(&self) -> Failure {
        let kind = format!("{} subcommand", self.name());
        let kind = kind.trim_start();
        match self.words.first() {
            Some(word) if is_option(word) && self.command().is_none() => {
                let advice = match meant(word, global_options().iter()) {
                    Some(option) => format!("did you mean {option}?"),
                    None => {
                        "options of a command go after it, as in `butterfly nic show vm-1 --json`"
                            .to_owned()
                    }
                };
                Failure::usage(format!("invalid {kind} {word}\nhelp: {advice}"))
            }
            Some(word) => {
                let names = self.node.nodes().iter().map(Node::name);
                let advice =
                    meant_word(word, names).map(|name| format!("\nhelp: did you mean {name}?"));
                Failure::usage(format!("invalid {kind} {word}{}", advice.unwrap_or_default()))
            }
            None => Failure::usage(""),
        }
    }

    /// A usage error for a person, in two lines.
    fn in_short(&self, text: &str) -> String {
        let lines: Vec<&str> =
            text.lines().map(|line| line.strip_prefix("help: ").unwrap_or(line)).collect();
        let name = format!("butterfly {}", self.name());
        let name = name.trim_end();
        format!("{name}: {}\n`{name} help` shows how it is used", lines.join("; "))
    }

    /// Prints why the command failed. Fails when standard output does. The text is short for
    /// people, with `strict`, and where no script expects otherwise.
    fn report(&self, failure: Failure, strict: bool, output: &mut Output) -> io::Result<End> {
        let short = output.is_terminal() || strict || self.is_ours();
        match failure {
            Failure::Said(text) => output.complain(&text),
            Failure::Usage(text) if short && !text.is_empty() => {
                output.complain(&self.in_short(&text));
                return Ok(End::Failed);
            }
            Failure::Usage(text) => {
                output.complain(&text);
                output.print(help::page(&self.path))?;
            }
            Failure::Negative => return Ok(End::Negative),
            Failure::Output(error) => return Err(error),
        }
        if let Some(command) = self.command() {
            output.complain(&format!("error in command: {command}"));
        }
        Ok(End::Failed)
    }
}
