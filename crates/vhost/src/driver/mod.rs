//! Driver side: a simulated guest, good enough to run every scenario in one process.
//!
//! * [`Memory`]: guest memory as shared files, in one or more regions.
//! * [`Ring`]: the raw fields of a split ring. [`VirtQueue`]: the driver's half of it, by the book.

pub mod memory;
pub mod ring;

pub use memory::{Memory, MemoryConfig, MemoryError, Region, Span};
pub use ring::{Desc, Ring, RingAddr};
