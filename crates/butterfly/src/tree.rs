//! The tree of commands: the name and arguments of each, and the function that runs it.
//!
//! clap's model describes every command; help texts, and everything else that is generated from the
//! commands, read it. Words are not parsed by clap: see [`crate::line::reader`].

use crate::{daemon::session::Session, failure::Failure, line::reader::Arguments};
use clap::Command;

/// Runs one command.
pub type Handler = fn(&Arguments, &mut Session) -> Result<(), Failure>;

/// Runs one that is about the commands themselves: all of them come with it.
pub type TreeHandler = fn(&Node, &Arguments, &mut Session) -> Result<(), Failure>;

/// A command, or a word that other commands share.
pub struct Node {
    /// Name, description, arguments. Without the nodes below it.
    pub command: Command,
    /// Action to which the word leads.
    pub action: Action,
    /// Number of words after it below which the command prints its help and succeeds.
    pub help_below: usize,
    /// The original has it: what it does not know there it ignores. Others refuse that.
    pub original: bool,
}

/// Action to which a word on the command line leads.
pub enum Action {
    /// A command.
    Run(Handler),
    /// A command about the commands.
    RunOnTree(TreeHandler),
    /// A choice of further words.
    Choose(Vec<Node>),
}

impl Node {
    /// A command that `handler` runs.
    pub fn run(command: Command, handler: Handler) -> Self {
        Self { command, action: Action::Run(handler), help_below: 0, original: false }
    }

    /// A command about the commands, that `handler` runs.
    pub fn run_on_tree(command: Command, handler: TreeHandler) -> Self {
        Self { command, action: Action::RunOnTree(handler), help_below: 0, original: false }
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

    /// A command, and no choice of further words.
    pub fn is_command(&self) -> bool {
        !matches!(self.action, Action::Choose(_))
    }

    /// The words that may follow; none for a command.
    pub fn nodes(&self) -> &[Node] {
        match &self.action {
            Action::Run(_) | Action::RunOnTree(_) => &[],
            Action::Choose(nodes) => nodes,
        }
    }
}
