//! Errors of opening and asking: what was refused, why, what to do.

use std::io;

/// Failed action and its reason, as a sentence for an operator.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    text: String,
    /// Error kind of the system call. It is in the text; as a source it would be printed twice.
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

    /// Returns the kind of the system's error, if it was one.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        self.kind
    }
}
