//! Encryption under the shared key, in both forms: the original's ([`legacy`]), which deployed
//! clients speak, and one that is sound ([`sealed`]).
//!
//! [`Gate`] is the daemon's end, [`Cipher`] the client's. Algorithms are those of well-kept crates;
//! here is only their order. The guide for clients in other languages is `docs/encryption.md`.

mod client;
mod gate;
mod guard;
mod host;
mod key;
mod legacy;
mod sealed;

pub use client::{Cipher, EncryptionError};
pub use gate::Gate;
pub(crate) use gate::{EncryptedFields, Opened, ReplyTo};
pub use key::{Key, KeyError, KeyFile};

/// Upper bound of the bytes that either form adds to a message.
pub const OVERHEAD: usize = 1024;
