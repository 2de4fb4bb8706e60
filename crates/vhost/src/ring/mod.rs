//! The device's half of virtqueues, split (virtio 1.2, 2.7) and packed (2.8).
//!
//! [`TxRing`] takes frames from a guest into a [`FrameStore`]; [`RxRing`] copies them, once, into
//! another guest's buffers. [`vring`] is what both share; [`split`] and [`packed`] say where a ring
//! lies, with descriptors, used entries and notifications.

mod call;
mod copy;
mod delivery;
mod door;
mod frames;
mod front;
mod interrupts;
mod messenger;
mod note;
mod packed;
mod rx;
mod signaller;
mod space;
mod split;
mod touches;
mod tx;
mod vring;
mod walks;
mod writer;

pub use call::{CallError, CallFd, prepare_thread};
pub(crate) use call::{ensure_signaller, is_eventfd};
pub use delivery::{Delivery, Finish, Joined};
pub use frames::{
    BATCH, Frame, FrameFault, FrameStore, Frames, HEAD, HEAD_MAX, KEPT_MAX, MAX_FRAME, Slot,
};
pub use front::{FIELDS, Front, OUTER_MAX};
pub use interrupts::{InterruptReport, Interrupts};
pub(crate) use note::FRESH;
pub use note::{Note, NoteTable, Notes};
pub use rx::{NotDelivered, RxRing};
pub(crate) use space::MAX_SIZE;
pub use space::{RingError, RingSetup};
pub use touches::{TouchReport, Touches, look as look_at_workers, meter, own_memory};
pub use tx::{Discarded, Gathered, TxRing};
pub use vring::RingStatus;
pub(crate) use vring::Vring;

/// Brings the cache line of `value` closer, for reading.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    copy::prefetch_read(std::ptr::from_ref(value).cast());
}
