//! Scenarios of whole hosts with simulated guests: `cargo test -p butterfly-tests`. The package's
//! documentation tells how to run a scenario in a debugger.

#![forbid(unsafe_code)]

mod accounting;
mod agreement;
mod api;
mod api_bounds;
mod arguments;
mod behaviour;
mod client;
mod clients;
mod containers;
mod crashes;
mod drill;
mod drops;
mod events;
mod explain;
mod external;
mod filtering;
mod holder;
mod holder_upgrade;
mod hostile;

mod lasting;
mod layouts;
mod leases6;
mod lifecycle;
mod limits;
mod listening;
mod metrics;
mod mirror;
mod offloads;
mod packed;
mod pings;
mod poison;
mod process;
mod queues;
mod rings;
mod room;
mod routed_hosts;
mod routing;
mod second_hop;
mod security_groups;
mod sleeping;
mod switching;
mod tap;
mod tunnel_lasting;
mod upgrade;
mod uplink;
mod uplink_workers;
mod way_back;
mod workers;
