//! vhost-user for network devices: control channel, guest memory, split virtqueues, and a simulated
//! guest.
//!
//! All `unsafe` of Butterfly that touches guest memory lives here, behind types whose invariants
//! are checked once, when a guest hands something over.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "Butterfly runs on Linux on x86-64 only: its rings rely on that processor's order of memory, and its cycle counter"
);

pub mod control;
pub mod cpu;
pub mod dirty;
pub mod driver;
pub mod maps;
pub mod memory;
pub mod net;
pub mod port;
pub mod ring;
mod sigbus;
pub mod units;
