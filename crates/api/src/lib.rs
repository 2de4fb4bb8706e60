//! The API of Butterfly: protobuf messages over ZeroMQ.
//!
//! One request frame carries one serialized [`proto::Messages`], one reply frame answers it.
//! [`envelope`] turns the one into the other with the help of a [`Handler`], which only sees single
//! well-formed requests. [`server`] moves the frames. [`text`] is the format in which people read
//! and write messages.

#![forbid(unsafe_code)]

mod action;
mod caller;
pub mod client;
pub mod crypt;
mod decode;
mod edition;
mod endpoint;
pub mod envelope;
#[allow(missing_docs)] // Generated; the .proto files document every field.
pub mod proto;
mod requests;
pub mod server;
pub mod text;
mod unknown;
pub mod zmtp;

pub use action::Action;
pub use caller::Caller;
pub use decode::decode;
pub use edition::{MAX_FRAME, REVISION};
pub use envelope::{Answer, Context, Envelope, Failure, Handler, Task};
pub use requests::{RequestCount, Requests};
pub use unknown::knows_all;
