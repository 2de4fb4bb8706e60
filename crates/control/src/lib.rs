//! The desired state of a host: everything that an operator declared, and the way from one state to
//! another.
//!
//! [`Desired`] is the only authority on what is declared. It keeps what was said (the spelling of a
//! MAC address, the host bits of a block, the order of members) beside what it means, and it can
//! only hold what is valid: its rules are checked here and nowhere else. [`plan()`] says which
//! [`Change`]s lead from one state to another. No I/O: whether this host can carry a change out is
//! for the caller to find out, between [`Desired::prepare`] and [`Desired::commit`].
//!
//! ```
//! use butterfly_control::{Change, Declaration, Desired, TunnelPeer, Unnamed, plan};
//!
//! let peer = TunnelPeer::new("192.0.2.7".parse().unwrap(), None).unwrap();
//! let file = Declaration { peers: vec![peer], ..Declaration::default() };
//! let old = Desired::default();
//! let new = old.with(file, Unnamed::Stay).unwrap();
//! let changes = plan(&old, &new);
//! assert_eq!(changes, [Change::NamePeer(peer)]);
//!
//! let mut state = old.clone();
//! for change in changes {
//!     let prepared = state.prepare(change).unwrap();
//!     state.commit(prepared);
//! }
//! assert_eq!(state, new);
//! assert_eq!(plan(&state, &new), []);
//! ```

#![forbid(unsafe_code)]

mod change;
mod desired;
mod difference;
mod externals;
mod neighbour;
mod object;
mod outside;
mod peers;
mod plan;
mod refused;
mod routed;
mod vnics;
mod words;

pub use change::{Change, NicChange};
pub use desired::{Declaration, Desired, Prepared, Unnamed};
pub use difference::{about_network, about_router, differences};
pub use externals::NatCounts;
pub use neighbour::{about_neighbour, neighbour_name};
pub use object::{Difference, Object, What};
pub use outside::{about_external, about_nat, nat_name};
pub use peers::{Peers, TunnelPeer};
pub use plan::plan;
pub use refused::Refused;
pub use routed::Routed;
pub use vnics::Vnics;
pub use words::{difference, member_of, rule_of};
