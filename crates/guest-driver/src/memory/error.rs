//! Failures of a guest's memory.

use std::io;

/// The guest has no such memory, or none left.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Not inside the guest's regions.
    #[error(
        "guest address {addr:#x} with {len} bytes is outside the guest's memory (or not in one piece)"
    )]
    OutOfRange {
        /// Guest-physical address.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The allocator has no free stretch of that size.
    #[error("no {0} free bytes in guest memory: give the guest more (MemoryConfig)")]
    Exhausted(u64),
    /// Regions overlap, or a size is not a multiple of the page size.
    #[error(
        "region {guest_addr:#x} of {size} bytes overlaps another or is not whole pages of {page}"
    )]
    BadRegion {
        /// Guest-physical address.
        guest_addr: u64,
        /// Bytes.
        size: u64,
        /// Page size in force.
        page: u64,
    },
    /// The system refused.
    #[error("cannot {what}: {source}{hint}")]
    System {
        /// Step that failed.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
        /// Advice for the reader.
        hint: &'static str,
    },
}
