//! Security groups as the packet path sees them: the compiled rules of a vnic's groups.
//!
//! Rules only allow. A new session costs one search among blocks of addresses, one look at the
//! groups of the peer, and one search among ports, with any number of rules. It costs that four
//! times at most, as large groups are compiled once for all vnics that have them. Vnics with the
//! same groups share one compiled policy.
//!
//! Members are one persistent map from an address to the groups that have it: a member more copies
//! a few nodes and compiles nothing. A changed rule compiles its peer anew, no other one.
//!
//! "Everything" does not mean packets that only servers and routers send. Rules that name such
//! packets, of at most 16 ports, are compiled apart ([`NARROW`]), so a wide rule beside them admits
//! none of it.

mod blocks;
mod by_peer;
mod cells;
mod groups;
mod layers;
mod ports;

pub(crate) use cells::{Cells, MAX_CELLS};
pub use groups::GroupChange;
pub(crate) use groups::Groups;
pub(crate) use layers::{Allowance, Layers, Members, NARROW, Policy, address, number};
pub(crate) use ports::Allowed;
