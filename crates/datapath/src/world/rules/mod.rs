//! Security groups as the packet path sees them: what the groups of a vnic allow, compiled.
//!
//! Rules only allow. All that a new session costs is one search among blocks of addresses, one look
//! at the groups the peer is a member of, and one search among ports, however many rules there are;
//! and that at most four times, as large groups are compiled once for all vnics that have them.
//! Vnics with the same groups share one compiled policy.

mod blocks;
mod by_peer;
mod cells;
mod groups;
mod layers;
mod ports;

pub(crate) use cells::{Cells, MAX_CELLS};
pub use groups::GroupChange;
pub(crate) use groups::Groups;
pub(crate) use layers::{Layers, Members, NARROW, Policy, Side, address, number};
pub(crate) use ports::Allowed;
