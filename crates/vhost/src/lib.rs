//! vhost-user for network devices: control channel, guest memory, split virtqueues, and a simulated
//! guest.
//!
//! All `unsafe` of Butterfly that touches guest memory lives here, behind types whose invariants
//! are checked once, when a guest hands something over.

pub mod control;
pub mod dirty;
pub mod driver;
pub mod maps;
pub mod memory;
pub mod net;
pub mod port;
pub mod ring;
mod sigbus;
