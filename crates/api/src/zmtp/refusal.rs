//! Violations of the protocol by a peer.

use crate::MAX_FRAME;

/// Bytes of the longest way back: identities of proxies, with their frame headers and the
/// delimiter.
pub const LONGEST_ROUTE: usize = 512;
/// Bytes of the longest command: metadata of a socket, a heartbeat, the reason of an error.
pub const LONGEST_COMMAND: usize = 2048;
/// Parts of the longest message. Only the first behind the delimiter counts, so others have no use.
pub const MOST_PARTS: u32 = 1024;
/// Bytes of the longest message, parts without use included.
pub const LONGEST_MESSAGE: u64 = MAX_FRAME as u64 + (64 << 10);

/// Reason why a connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No peer of ours begins like that.
    #[error("it does not speak ZMTP, the protocol of ZeroMQ")]
    NotZmtp,
    /// A version that is too old.
    #[error("it speaks ZMTP {0}, and the API 3.0 and 3.1: use libzmq 4.0 or later")]
    Version(&'static str),
    /// Another security mechanism.
    #[error(
        "it wants the mechanism {0:?}, and the API has NULL only: see docs/encryption.md for the API's own encryption"
    )]
    Mechanism(String),
    /// A socket that does not ask and wait for replies.
    #[error("it is a socket of the type {0:?}, and the API answers REQ and DEALER")]
    SocketType(String),
    /// A handshake that breaks the protocol.
    #[error("its handshake is broken: {0}")]
    Handshake(&'static str),
    /// A frame that breaks the protocol.
    #[error("it sent a frame with the flags {0:#04x}, which ZMTP does not know")]
    Flags(u8),
    /// A command that is too long.
    #[error("it sent a command of {0} bytes, and the longest has {LONGEST_COMMAND}")]
    LongCommand(u64),
    /// A heartbeat that breaks the protocol.
    #[error("it sent a heartbeat without its time to live")]
    Heartbeat,
    /// A frame or a message that is too long.
    #[error("it sent a message of {0} bytes or more, and the longest request has {MAX_FRAME}")]
    LongMessage(u64),
    /// A message of too many parts.
    #[error("it sent a message of more than {MOST_PARTS} parts, and a request has one")]
    Parts,
}

impl Refusal {
    /// True if the peer never came as far as a request: another program, perhaps, that meant no
    /// harm.
    pub fn is_of_handshake(&self) -> bool {
        matches!(
            self,
            Self::NotZmtp
                | Self::Version(_)
                | Self::Mechanism(_)
                | Self::SocketType(_)
                | Self::Handshake(_)
        )
    }
}
