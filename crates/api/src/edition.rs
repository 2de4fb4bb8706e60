//! Facts that both ends of the API share beside its messages.

/// The edition of the protocol that every message of ours carries. A receiver never checks it.
pub const REVISION: u32 = 6;

/// The largest request taken and the largest reply a [`crate::client::Client`] takes, in bytes: a
/// batch of a hundred thousand vnics fits.
///
/// Decoding multiplies the size of hostile input by about twenty, so this bounds the memory a
/// request can take.
pub const MAX_FRAME: usize = 16 << 20;
