//! Ends of a command that does not succeed.

use std::io;

/// Reason why a command failed. Each ends the process with exit code 1, but for an answer that is
/// no.
#[derive(Debug)]
pub enum Failure {
    /// The text goes to stderr.
    Said(String),
    /// The text goes to stderr, then the command's help to stdout.
    Usage(String),
    /// The command did its work, and the answer is no. The process ends with exit code 2.
    Negative,
    /// Standard output cannot be written to.
    Output(io::Error),
}

impl Failure {
    /// A failure explained by one text.
    pub fn said(text: impl Into<String>) -> Self {
        Self::Said(text.into())
    }

    /// A failure of the person at the keyboard: the text, then the help.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// The `value` of `option` could not be understood: it is not `expected`.
    pub fn not_recognized(option: &str, value: &str, expected: &str) -> Self {
        Self::Usage(format!(
            "--{option} argument not recognized\nhelp: {value:?} is not {expected}"
        ))
    }

    /// The same failure, with the help after it.
    pub fn with_help(self) -> Self {
        match self {
            Self::Said(text) => Self::Usage(text),
            other => other,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
