//! The packet path: batches from vnics, decided by stages, delivered with one copy.
//!
//! [`Switch`] is the interface for the rest of the daemon. The folders are floors, and imports go
//! down only (`tests/lib/imports.py`):
//!
//! | floor | holds |
//! |---|---|
//! | [`switch`] | vnics with their sockets, and the operator's questions |
//! | [`checkpoint`] | texts of what a successor goes on with: counters, learnt addresses |
//! | [`report`] | answers for an operator: drops, sessions, explanations, tunnels |
//! | [`endpoint`] | control side of the tunnel: ARP, discovery, groups, next hops |
//! | [`plane`] | control side of the packet path: changes of the snapshot |
//! | [`worker`] | the loop, turns, polling and sleeping |
//! | [`stages`] | each decides one thing about the frames of a batch |
//! | [`overlay`] | VXLAN: outer headers, other hosts, the uplink |
//! | [`world`] | all that a worker may know: vnics, networks, addresses, rules |
//! | [`session`] | conversations that were allowed |
//! | [`ip`] | contents of IP packets: pure functions over bytes |
//! | [`engine`] | batches, verdicts, drop reasons, counters, clock, tap |

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod checkpoint;
mod endpoint;
mod engine;
#[cfg(feature = "harness")]
pub mod harness;
mod ip;
mod overlay;
mod plane;
mod report;
mod session;
mod stages;
mod switch;
mod worker;
mod world;

pub use butterfly_guest::{
    Machine, Pings, Report as GuestReport, StationState, Times, WireConfig, WireLoss, WireReport,
    WireState,
};
pub use butterfly_packet::mac::Mac;
pub use butterfly_vhost::{
    control::{DeviceStatus, Negotiated, Role},
    net::Features,
    port::{Queue, QueueKind},
    ring::RingStatus,
};
pub use checkpoint::moved::{ExportedVnic, Imported, Moved, MovedVnic};
pub use checkpoint::{Former, Noted, TakenOver, check as check_checkpoint};
pub use engine::events::{About, Happening, SwitchEvents};
pub use engine::reason::{DropReason, ReasonInfo};
pub use engine::writer::MAX_WORKERS;
pub use plane::AddError;
pub use plane::moves::{ImportedSessions, NotAHost};
pub use plane::ports::PortsInUse;
pub use plane::routed::{NotInEffect, RoutingChange};
pub use plane::seek::{SoughtNeighbour, SoughtState};
pub use plane::sessions::{
    Admission, OutsideEnd, SessionEnd, SessionFilter, SessionRow, SessionTable,
};
pub use report::drops::{DropPlace, DropReport, DropRow, DroppedPacket, PlaceDrops};
pub use report::explain::{
    Explanation, Fate, Mark, NoAnswer, Origin, Question, Refused, Rewritten, Step, Target, Walk,
};
pub use report::observe::{
    NetworkObservation, NetworkTunnel, Observation, PeerObservation, SessionObservation,
    UplinkObservation, VnicObservation, WireObservation,
};
pub use report::watch::watched_drops;
pub use report::workers::WorkerReport;
pub use session::SessionConfig;
pub use session::{FormerSessions, FormerTable, Timeouts, Unusable, look_at};
pub use stages::reasons::{drops_document, reasons};
pub use switch::held::{Hold, check_front_end};
pub use switch::{
    Switch,
    config::{Precautions, SwitchConfig},
    declared::VnicSpec,
    fdb::{FdbKind, FdbRow},
    front::Front,
    status::VnicReport,
};
pub use world::policy::VnicPolicy;
pub use world::rules::GroupChange;
pub use {
    endpoint::{
        keeper::rows::{GroupRow, NeighbourRow},
        link::LinkState,
        open::{Peers, TunnelError, TunnelSpec, UplinkSpec, check_uplink},
        silence::Refusal as PeerRefusal,
    },
    overlay::TunnelConfig,
    report::tunnel::{NetworkReport, PeerReport, RemoteMac, TunnelReport, UplinkReport},
};
pub use {
    engine::tap::{TapPoint, TapRole, TapSink, TapWhat},
    report::taps::{TapEnd, TapPacket, TapRead, TapRule, TapVerdict, Taps},
};
