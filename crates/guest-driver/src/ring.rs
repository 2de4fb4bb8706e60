//! The memory of virtqueues, split (virtio 1.2, 2.7) and packed (2.8).
//!
//! [`Ring`] and [`PackedRing`] give raw access to every field, the ones only a device may write
//! included: what a field means and in which order fields may be touched is
//! [`crate::VirtQueue`]'s business. A hostile driver is written on these. [`AnyRing`] is one of
//! both.

mod any;
mod packed;
mod parts;
mod split;

pub use any::AnyRing;
pub use packed::{
    EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, PACKED_AVAIL, PACKED_USED, PackedDesc, PackedEvent,
    PackedRing, Position,
};
pub use parts::{
    DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, MAX_SIZE, RingAddr, part_lens, passed,
};
pub use split::{AVAIL_NO_INTERRUPT, Desc, Ring, USED_NO_NOTIFY};
