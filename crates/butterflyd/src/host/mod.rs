//! The host that the daemon runs on: open files, interfaces, signals, systemd.

pub mod answers;
pub mod limits;
pub mod listen;
pub mod mtu;
pub mod notify;
pub mod signals;
pub mod time;
pub mod watchdog;
