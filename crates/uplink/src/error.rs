//! Errors of opening and asking: what was refused, why, what to do.

use std::io;

/// What could not be done and why, as a sentence for an operator.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    text: String,
    /// Of the system call. It is in the text; as a source it would be printed twice.
    kind: Option<io::ErrorKind>,
}

impl Error {
    /// A refusal of our own.
    pub fn refused(text: impl Into<String>) -> Error {
        Error { text: text.into(), kind: None }
    }

    /// A system call failed: `what` could not be done.
    pub fn failed(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        let (what, source) = (what.into(), source.into());
        Error { text: format!("{what}: {source}"), kind: Some(source.kind()) }
    }

    /// Appends what to do about it.
    pub fn help(mut self, help: &str) -> Error {
        self.text.push_str("; ");
        self.text.push_str(help);
        self
    }

    /// What kind of error of the system it was, if it was one.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        self.kind
    }
}
