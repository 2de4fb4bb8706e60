//! Atomics of state that several workers change, and copies of them for explanations, which work on
//! what they copied. With the feature `loom` they are those of the model checker loom.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicU64, fence};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicU64, fence};

/// Returns an atomic of its own with the same value.
pub(crate) fn same(word: &AtomicU64) -> AtomicU64 {
    AtomicU64::new(word.load(Relaxed))
}

/// Returns an atomic of its own with the same value.
pub(crate) fn same32(word: &AtomicU32) -> AtomicU32 {
    AtomicU32::new(word.load(Relaxed))
}
