//! Writers of shared state: cells that one worker writes, and the right to write them.
//!
//! Cells of this kind are changed by a load and a store. Two threads that did so at once would lose
//! counts, or mix two records. So each worker has a [`WorkerId`], which can neither be copied nor
//! be lent to another thread, and [`PerWorker`] gives a cell only to who shows one.

use std::{cell::Cell, marker::PhantomData, sync::OnceLock};

use crossbeam_utils::CachePadded;

/// Most workers of a switch.
pub const MAX_WORKERS: usize = 32;

/// Number of a worker, and its right to write its own cells. There is one of each number: it moves
/// with its worker.
#[derive(Debug)]
pub(crate) struct WorkerId {
    index: usize,
    /// Not shared by threads.
    alone: PhantomData<Cell<()>>,
}

/// The right to write a worker's cells, lent by its [`WorkerId`]. It stays in the worker's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    index: usize,
    alone: PhantomData<&'a Cell<()>>,
}

impl WorkerId {
    /// Makes a number. Who makes it has to make it once: see `Handle`.
    pub const fn new(index: usize) -> WorkerId {
        WorkerId { index, alone: PhantomData }
    }

    /// Lends the right to write.
    #[inline(always)]
    pub fn writer(&self) -> Writer<'_> {
        Writer { index: self.index, alone: PhantomData }
    }
}

/// A cell for each worker, which that worker alone writes and any thread may read. A cell that was
/// made stays, also when its worker ends: what was counted is not forgotten. Cells have lines of
/// their own: what one worker writes takes no line from another.
pub(crate) struct PerWorker<T> {
    first: CachePadded<T>,
    further: [OnceLock<Box<CachePadded<T>>>; MAX_WORKERS - 1],
}

impl<T> PerWorker<T> {
    /// Makes a cell for each of `workers`.
    pub fn new(workers: usize, make: impl Fn() -> T) -> PerWorker<T> {
        let cells = PerWorker { first: make().into(), further: [const { OnceLock::new() }; _] };
        cells.grow(workers, make);
        cells
    }

    /// Makes the cells that are missing for so many workers.
    pub fn grow(&self, workers: usize, make: impl Fn() -> T) {
        for cell in self.further.iter().take(workers.saturating_sub(1)) {
            cell.get_or_init(|| Box::new(make().into()));
        }
    }

    /// Returns the writer's own cell. `None` if these cells are of a switch with fewer workers.
    #[inline(always)]
    pub fn of(&self, writer: Writer<'_>) -> Option<&T> {
        match writer.index.checked_sub(1) {
            None => Some(&self.first),
            Some(further) => self.further.get(further)?.get().map(|cell| &***cell),
        }
    }

    /// Returns all cells, to be read.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let further = self.further.iter().filter_map(|cell| cell.get());
        std::iter::once(&*self.first).chain(further.map(|cell| &***cell))
    }
}

/// Refuses to compile if a type has a trait: two implementations would fit then.
macro_rules! never {
    ($type:ty: $trait:path) => {
        const _: fn() = || {
            trait Either<A> {
                fn which() {}
            }
            impl<T> Either<()> for T {}
            struct Has;
            impl<T: $trait> Either<Has> for T {}
            let _ = <$type as Either<_>>::which;
        };
    };
}

// Two threads cannot have one worker's right: no identity is copied, and no right leaves a thread.
never!(WorkerId: Clone);
never!(WorkerId: Sync);
never!(Writer<'static>: Send);
