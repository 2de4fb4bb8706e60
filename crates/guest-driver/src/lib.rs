//! Driver side: a simulated guest, good enough to run every scenario in one process.
//!
//! * [`Memory`]: guest memory as shared files, in one or more regions.
//! * [`Ring`], [`PackedRing`]: the raw fields of a split ring and of a packed one. [`VirtQueue`]:
//!   the driver's half of either, by the book; RING_PACKED decides.
//! * [`Guest`]: a driver with a pair of queues, that sends and receives frames.
//! * [`Connection`], [`Listener`]: the control channel, either side of the socket; [`raw`] for
//!   anything else on it.
//! * [`FastGuest`]: a driver for measuring, that neither allocates nor copies more than it must.
//! * [`Vm`]: a guest with its control channel, that comes and goes.
//!
//! ```no_run
//! use std::time::Duration;
//! use butterfly_guest_driver::{Vm, VmConfig};
//! use butterfly_vhost::net::NetHeader;
//! let second = Duration::from_secs(1);
//! let mut vm = Vm::connect("/run/vnic-1", &VmConfig::default(), second)?;
//! vm.guest.send(&[0xff; 60], NetHeader::default())?;
//! while let Some((header, frame)) = vm.guest.recv_wait(second)? {
//!     println!("{header:?}: {} bytes", frame.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

pub mod control;
pub mod fast;
pub mod guest;
pub mod memory;
pub mod queue;
pub mod raw;
pub mod ring;
#[cfg(test)]
mod tests;
pub mod vm;

pub use control::{
    Connection, ControlError, DirtyLog, Listener, MemoryMessages, Nic, Pairs, Positions,
    ProtocolFeatures, Start, positions,
};
pub use fast::{FastConfig, FastGuest};
pub use guest::{Guest, GuestConfig, GuestStats, RX, Refill, SendError, Shape, TX};
pub use memory::{Memory, MemoryConfig, MemoryError, Region, Span};
pub use queue::{
    AddError, Buffer, DeviceError, KickPolicy, Placement, QueueLink, QueueStats, Used, VirtQueue,
};
pub use ring::{AnyRing, Desc, PackedDesc, PackedEvent, PackedRing, Position, Ring, RingAddr};
pub use vm::{DetachedVm, Vm, VmConfig};
