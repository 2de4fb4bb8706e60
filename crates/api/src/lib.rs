//! The API of Butterfly: protobuf messages over ZeroMQ.

#![forbid(unsafe_code)]

#[allow(missing_docs)] // Generated; the .proto files document every field.
pub mod proto;

/// The protocol edition that replies and requests of ours carry.
pub const REVISION: u32 = 6;
