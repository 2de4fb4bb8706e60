//! Failures of a control exchange.

use std::{io, path::PathBuf};

use butterfly_vhost::net::Features;

use crate::memory::MemoryError;

/// A control exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket.
    #[error("vhost-user socket{}: {source}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Socket {
        /// Path of the socket, if it has one.
        path: Option<PathBuf>,
        /// Error of the system.
        source: io::Error,
    },
    /// The back end did not do what the message asked for, or broke the protocol.
    #[error("{what}: {source}")]
    Request {
        /// Message.
        what: &'static str,
        /// Error of the `vhost` crate.
        source: vhost::Error,
    },
    /// A message sent raw was refused.
    #[error("{what}: the back end answered {code}")]
    Refused {
        /// Message.
        what: &'static str,
        /// The code in its reply; not 0.
        code: u64,
    },
    /// A reply to something else.
    #[error("{what}: the back end answered to request {answered}")]
    WrongReply {
        /// Message.
        what: &'static str,
        /// Request number in the reply.
        answered: u32,
    },
    /// The back end does not offer a feature that was demanded.
    #[error("the back end does not offer {0:?}")]
    Missing(Features),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl From<io::Error> for ControlError {
    fn from(source: io::Error) -> ControlError {
        ControlError::Socket { path: None, source }
    }
}
