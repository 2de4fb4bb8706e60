//! Failures of a queue: the device's mistakes, and chains that could not be added.

use crate::memory::MemoryError;

/// The device broke the rules of the ring. The queue cannot be trusted any more; reset it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The used index is further ahead than chains are outstanding. On a packed ring: a descriptor
    /// is used, and no chain is outstanding.
    #[error("{moved} more chains are used, but only {outstanding} are outstanding")]
    UsedIndex {
        /// Distance from the last entry taken.
        moved: u16,
        /// Chains the device owns.
        outstanding: u16,
    },
    /// A used entry names a chain the device does not own.
    #[error("used entry for {0}, which is not the head or buffer id of an outstanding chain")]
    UsedId(u32),
    /// IN_ORDER was negotiated, and a used entry names a chain beyond what the used index covers.
    #[error("used entry for {0} is out of order")]
    OutOfOrder(u32),
    /// A used length is more than the chain's writable bytes.
    #[error("used length {len}, but the chain has {writable} writable bytes")]
    UsedLen {
        /// Length that the device claims to have written.
        len: u32,
        /// Length that it could have written.
        writable: u32,
    },
    /// A received frame is shorter than its header.
    #[error("received {0} bytes: less than a virtio-net header")]
    ShortHeader(u32),
    /// `num_buffers` is 0, or more than 1 without MRG_RXBUF, or not all of them are used yet.
    #[error("num_buffers is {claimed}, but {available} buffers are used")]
    NumBuffers {
        /// Number of buffers in the header.
        claimed: u16,
        /// Number of buffers that are there.
        available: u16,
    },
    /// Entries are used, interrupts were asked for, and none came.
    #[error("used entries without the interrupt that was asked for")]
    MissedInterrupt,
}

/// A chain could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// Not enough free descriptors now.
    #[error("the ring is full")]
    Full,
    /// No buffers, more than the ring can ever hold, or a readable one behind a writable one.
    #[error("not a chain: {0}")]
    Shape(&'static str),
    /// No memory for an indirect table.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
