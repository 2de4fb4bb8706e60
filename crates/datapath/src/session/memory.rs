//! Memory of the table: atomics, and units of them.
//!
//! With the feature `loom` they are those of the model checker loom, and everything is small enough
//! to try all interleavings.

#[cfg(not(feature = "loom"))]
mod real {
    pub(crate) use std::{
        hint::spin_loop,
        sync::atomic::{AtomicU64, fence},
        thread::yield_now,
    };

    pub(crate) use butterfly_mem::{
        cpu::prefetch,
        units::{Fate, Left, Unit, Units, UnitsError},
    };

    /// Tries for a lock: its holder needs some hundred cycles, unless it is interrupted.
    pub(crate) const PATIENCE: u32 = 2000;
    /// Looks at a line that is in change: as above.
    pub(crate) const LOOKS: u32 = 2000;
    /// Searches for a flow that may have moved. Each one more needs another flow to move meanwhile.
    pub(crate) const LOOKS_AGAIN: u32 = 100;
    /// Fewest records.
    pub(crate) const MIN_SESSIONS: u32 = 64;
    /// Records for each bucket, before their number is rounded up to a power of two.
    pub(crate) const PER_BUCKET: u64 = 5;
    /// Words of a bucket: the lock and what it counts, then entries.
    pub(crate) const BUCKET_WORDS: usize = 8;

    static ZERO: Unit = Unit([const { AtomicU64::new(0) }; 16]);

    /// Returns an atomic for an index out of range, which never happens. Only zeros are ever read
    /// from it.
    #[inline(always)]
    pub(crate) fn zero<'a>() -> &'a Unit {
        &ZERO
    }
}

#[cfg(feature = "loom")]
mod model {
    use std::{ops::Deref, path::Path};

    use butterfly_mem::units::Memory;
    pub(crate) use butterfly_mem::units::{Fate, Left, UnitsError};
    pub(crate) use loom::{
        hint::spin_loop,
        sync::atomic::{AtomicU64, fence},
        thread::yield_now,
    };

    pub(crate) const PATIENCE: u32 = 3;
    /// One: a line that stays in change must be possible, and a waiting thread lets the others go
    /// on.
    pub(crate) const LOOKS: u32 = 1;
    pub(crate) const LOOKS_AGAIN: u32 = 3;
    pub(crate) const MIN_SESSIONS: u32 = 1;
    pub(crate) const PER_BUCKET: u64 = 2;
    pub(crate) const BUCKET_WORDS: usize = 3;

    /// A unit, as [`butterfly_mem::units::Unit`].
    #[derive(Debug)]
    pub(crate) struct Unit(pub [AtomicU64; 16]);

    /// Units, as [`butterfly_mem::units::Units`], always in the process's own memory.
    #[derive(Debug)]
    pub(crate) struct Units(Vec<Unit>);

    impl Units {
        pub fn map_ahead(&self, _: std::ops::Range<usize>) {}

        pub fn anonymous(len: usize) -> Result<Units, UnitsError> {
            Ok(Units((0..len).map(|_| Unit(std::array::from_fn(|_| AtomicU64::new(0)))).collect()))
        }

        pub fn file(
            len: usize,
            _name: &str,
            _look: impl FnMut(&Path, Option<&Left>) -> Fate,
        ) -> Result<Units, UnitsError> {
            Units::anonymous(len)
        }

        pub fn adopted(&self) -> bool {
            false
        }

        pub fn memory(&self) -> Memory {
            Memory::Anonymous
        }

        pub fn path(&self) -> Option<&Path> {
            None
        }
    }

    impl Deref for Units {
        type Target = [Unit];

        fn deref(&self) -> &[Unit] {
            &self.0
        }
    }

    pub(crate) fn prefetch(_: &AtomicU64) {}

    pub(crate) fn zero<'a>() -> &'a Unit {
        panic!("an index is out of range")
    }
}

#[cfg(feature = "loom")]
pub(crate) use model::*;
#[cfg(not(feature = "loom"))]
pub(crate) use real::*;
