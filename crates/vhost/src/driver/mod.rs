//! Driver side: a simulated guest, good enough to run every scenario in one process.
//!
//! * [`Memory`]: guest memory as shared files, in one or more regions.
//! * [`Ring`]: the raw fields of a split ring. [`VirtQueue`]: the driver's half of it, by the book.
//! * [`Guest`]: a NIC with a pair of queues, that sends and receives frames.

pub mod guest;
pub mod memory;
pub mod queue;
pub mod ring;
#[cfg(test)]
mod tests;

pub use guest::{Guest, GuestConfig, GuestStats, RX, Refill, SendError, Shape, TX};
pub use memory::{Memory, MemoryConfig, MemoryError, Region, Span};
pub use queue::{AddError, Buffer, DeviceError, KickPolicy, Placement, QueueStats, Used, VirtQueue};
pub use ring::{Desc, Ring, RingAddr};
