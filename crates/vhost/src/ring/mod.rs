//! The device's half of split virtqueues (virtio 1.2, 2.7).
//!
//! [`TxRing`] takes frames from a guest into a [`FrameStore`]; [`RxRing`] copies them, once, into
//! another guest's buffers. [`split`] is what both share: where a ring lies, descriptors, indices,
//! notifications.

mod call;
mod copy;
mod delivery;
mod door;
mod frames;
mod front;
mod interrupts;
mod messenger;
mod rx;
mod signaller;
mod split;
mod touches;
mod tx;
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
pub use rx::{NotDelivered, RxRing};
pub(crate) use split::Split;
pub use split::{RingError, RingSetup, RingStatus};
pub use touches::{TouchReport, Touches, look as look_at_workers, meter, own_memory};
pub use tx::{Discarded, Gathered, TxRing};

/// Brings the cache line of `value` closer, for reading.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    copy::prefetch_read(std::ptr::from_ref(value).cast());
}
