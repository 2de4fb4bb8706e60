//! Parts of scenarios: a host with vnics ([`Host`]), guests on them ([`Station`]), and traffic that
//! is checked byte for byte and packet for packet ([`traffic`]).
//!
//! The host is a real `butterflyd` in a process of its own, with its sockets in a temporary
//! directory. With `BUTTERFLY_TESTS=switch` in the environment it is the daemon's switch inside the
//! test program instead, which is easier to debug. Scenarios that need a process are skipped then.

#![forbid(unsafe_code)]

mod daemon;
pub mod frames;
pub mod groups;
pub mod host;
mod in_process;
pub mod metrics;
pub mod net;
pub mod pairs;
pub mod programs;
pub mod runbook;
pub mod station;
pub mod traffic;
pub mod wait;

pub use daemon::{Daemon, FAIL_POINTS, workers};
pub use host::{Host, HostOptions, Kind, Nic, Show};
pub use station::{Station, features};
pub use wait::{PATIENCE, eventually, undisturbed, within};
