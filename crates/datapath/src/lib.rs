//! The packet path: batches from vnics, decided by stages, delivered with one copy.
//!
//! [`Switch`] is what the rest of the daemon sees. A worker ([`worker`]) takes a batch from a
//! vnic's transmit ring and walks it through the stages in this order: [`headers`] (parse),
//! [`antispoof`], [`claims`], [`offload`], [`forward`], [`filter`], [`deliver`]. What an IP packet
//! is, [`flow`] knows; what groups allow, [`rules`]; what was allowed before, [`session`].

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod announce;
mod antispoof;
mod batch;
mod bucket;
mod budget;
mod claims;
mod clock;
mod counters;
mod deliver;
mod drop_report;
mod drops;
mod events;
mod explain;
mod fdb;
mod filter;
mod flow;
mod forward;
mod front;
mod gone;
pub mod harness;
mod headers;
mod inside;
mod last_drops;
mod mac;
mod mirror;
mod numbers;
mod observe;
mod offload;
mod plane;
mod policy;
mod port;
mod pulse;
mod quota;
mod reason;
mod rules;
mod segment;
mod session;
mod sessions;
mod slab;
mod snapshot;
mod switch;
mod tally;
mod tap;
mod tunnel;
mod turn;
mod waiting;
mod watch;
mod worker;

pub use butterfly_guest::{Machine, Pings, Report as GuestReport, Times};
pub use butterfly_packet::mac::Mac;
pub use butterfly_vhost::{
    control::{DeviceStatus, Negotiated, Role},
    net::Features,
    port::Queue,
    ring::RingStatus,
};
pub use drop_report::{DropPlace, DropReport, DropRow, DroppedPacket, PlaceDrops};
pub use drops::{drops_document, reasons};
pub use events::{About, Happening, SwitchEvents, watched_drops};
pub use explain::{
    Explanation, Fate, Mark, NoAnswer, Origin, Question, Refused, Step, Target, Walk,
};
pub use front::Front;
pub use observe::{
    NetworkObservation, NetworkTunnel, Observation, PeerObservation, SessionObservation,
    UplinkObservation, VnicObservation,
};
pub use plane::{AddError, SessionConfig};
pub use policy::VnicPolicy;
pub use reason::{DropReason, ReasonInfo};
pub use rules::GroupChange;
pub use session::{FormerSessions, FormerTable, Timeouts, Unusable};
pub use sessions::{Admission, SessionEnd, SessionFilter, SessionRow, SessionTable};
pub use switch::{FdbKind, FdbRow, Switch, SwitchConfig, VnicReport, VnicSpec, WorkerReport};
pub use tap::{
    TapEnd, TapPacket, TapPoint, TapRead, TapRole, TapRule, TapSink, TapVerdict, TapWhat, Taps,
};
pub use tunnel::{
    GroupRow, LinkState, NeighbourRow, NetworkReport, PeerReport, Peers, RemoteMac, TunnelConfig,
    TunnelError, TunnelReport, TunnelSpec, UplinkReport, UplinkSpec,
};
