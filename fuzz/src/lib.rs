//! Fuzz targets: each takes any bytes and panics if Butterfly does something wrong with them.
//!
//! * [`rings`]: a hostile guest's rings, descriptors and memory, behind the whole packet path, with
//!   sound guests beside it.
//! * [`control`]: a hostile front end's messages and descriptors.
//! * [`frames`]: frames with any virtio-net header, through the parsers and the packet path, to
//!   receivers of every kind.
//! * [`api`]: request frames of the API, and its text format.
//! * [`zmtp`]: connections to the API, from their first byte.

#![forbid(unsafe_code)]

pub mod api;
pub mod control;
pub mod frames;
mod input;
pub mod rings;
pub mod zmtp;

/// A target, which takes the bytes of an input.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 5] = [
    ("rings", rings::run),
    ("control", control::run),
    ("frames", frames::run),
    ("api", api::run),
    ("zmtp", zmtp::run),
];

/// The target with this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
