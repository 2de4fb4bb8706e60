//! Fuzz targets: each takes any bytes and panics if Butterfly does something wrong with them.
//!
//! * [`rings`]: a hostile guest's rings, descriptors and memory, behind the whole packet path, with
//!   sound guests beside it.
//! * [`control`]: a hostile front end's messages and descriptors.
//! * [`frames`]: frames with any virtio-net header, through the parsers and the packet path, to
//!   receivers of every kind.
//! * [`api`]: request frames of the API, and its text format.
//! * [`zmtp`]: connections to the API, from their first byte.
//! * [`sessions`]: tables of sessions that dead processes left, adopted.
//! * [`checkpoint`]: what a process finds that goes on for one that died.
//! * [`holder`]: front ends and daemons of the holder, and the packets between both.
//! * [`store`]: frames to and from the store's writer, and the records that follow from them.
//! * [`moved`]: what a client says that a vnic was on another host.
//! * [`dhcp`]: DHCP requests, through the codec and the packet path.

#![forbid(unsafe_code)]

pub mod api;
pub mod checkpoint;
pub mod control;
pub mod dhcp;
pub mod frames;
pub mod holder;
mod input;
pub mod moved;
pub mod rings;
pub mod sessions;
pub mod store;
pub mod zmtp;

/// A target, which takes the bytes of an input.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 11] = [
    ("rings", rings::run),
    ("control", control::run),
    ("frames", frames::run),
    ("api", api::run),
    ("zmtp", zmtp::run),
    ("sessions", sessions::run),
    ("checkpoint", checkpoint::run),
    ("holder", holder::run),
    ("store", store::run),
    ("moved", moved::run),
    ("dhcp", dhcp::run),
];

/// The target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
