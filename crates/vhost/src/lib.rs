//! vhost-user for network devices: control channel, guest memory, split virtqueues.
//!
//! All `unsafe` of the switch that touches guest memory lives here, behind types whose invariants
//! are checked once, when a guest hands something over. The driver's side is in `guest-driver`.

pub mod control;
pub mod dirty;
pub mod maps;
pub mod memory;
pub mod net;
pub mod port;
pub mod ring;
mod sigbus;
