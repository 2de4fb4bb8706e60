//! Scenarios of whole hosts with simulated guests: `cargo test -p butterfly-tests`. The package's
//! documentation tells how to run a scenario in a debugger.

#![forbid(unsafe_code)]

mod accounting;
mod agreement;
mod api;
mod api_bounds;
mod arguments;
mod client;
mod containers;
mod drill;
mod drops;
mod events;
mod explain;
mod filtering;
mod hostile;
mod lifecycle;
mod metrics;
mod mirror;
mod offloads;
mod pings;
mod process;
mod rings;
mod security_groups;
mod sleeping;
mod switching;
mod tap;
mod uplink;
