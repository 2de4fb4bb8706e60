//! The pen of a repair: its stores can be counted, so that tests end a repair at any of them.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::session::memory::AtomicU64;

/// Writes words of a table that is repaired.
pub(super) struct Pen {
    /// Stores that it may still make.
    left: u64,
}

/// The process of a repair is dead, as a test says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Died;

impl Pen {
    /// Makes a pen whose process does not die.
    pub fn new() -> Pen {
        Pen { left: u64::MAX }
    }

    /// Makes a pen whose process dies after so many stores.
    #[cfg(all(test, not(feature = "loom")))]
    pub fn that_dies_after(stores: u64) -> Pen {
        Pen { left: stores }
    }

    /// Writes a word, unless it has that value already. Stores are made in this order.
    #[inline(always)]
    pub fn write(&mut self, word: &AtomicU64, value: u64) -> Result<(), Died> {
        if word.load(Relaxed) == value {
            return Ok(());
        }
        self.left = self.left.checked_sub(1).ok_or(Died)?;
        word.store(value, Release);
        Ok(())
    }
}
