//! The API of Butterfly: protobuf messages over ZeroMQ.
//!
//! One request frame carries one serialized [`proto::Messages`], one reply frame answers it. [`envelope`] turns the one into the
//! other with the help of a [`Handler`], which only sees single well-formed requests; [`server`] moves the frames; [`text`] is
//! the format in which people read and write messages.

#![forbid(unsafe_code)]

mod action;
mod caller;
pub mod client;
pub mod crypt;
mod decode;
mod endpoint;
pub mod envelope;
#[allow(missing_docs)] // Generated; the .proto files document every field.
pub mod proto;
mod requests;
pub mod server;
pub mod text;
pub mod zmtp;

pub use action::Action;
pub use caller::Caller;
pub use decode::decode;
pub use envelope::{Answer, Context, Envelope, Failure, Handler, Task};
pub use requests::{RequestCount, Requests};

/// The edition of the protocol that every message of ours carries. A receiver never checks it.
pub const REVISION: u32 = 6;

/// The largest request taken and the largest reply a [`client::Client`] takes, in bytes: a batch of a hundred thousand vnics fits.
///
/// Decoding multiplies the size of hostile input by about twenty, so this bounds the memory a request can take.
pub const MAX_FRAME: usize = 16 << 20;
