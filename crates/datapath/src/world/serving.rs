//! Service of a vnic, or of a receive queue of the uplink: the worker that has each of its rings,
//! and what they cost.
//!
//! A ring has one worker at a time. The worker that has it gives it up between two batches, and the
//! next one takes it when the control side says so ([`crate::plane::board`]). So a ring in between
//! has nobody, and a worker that hears of a ring that it does not have lets it be.

use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::engine::place::MAX_PAIRS;

/// No worker. Larger than each number of one.
const NOBODY: u8 = u8::MAX;

/// Worker and cost of each transmit ring of a vnic, by pair.
pub(crate) struct Serving {
    by: [AtomicU8; MAX_PAIRS],
    /// Cycles spent, as far as the worker has told. Only the worker that has the ring writes.
    cycles: [AtomicU64; MAX_PAIRS],
    /// Tenths of a second, of the clock of drops, at which it sent to other hosts last.
    left: AtomicU32,
}

impl Default for Serving {
    fn default() -> Serving {
        Serving {
            by: [const { AtomicU8::new(NOBODY) }; MAX_PAIRS],
            cycles: [const { AtomicU64::new(0) }; MAX_PAIRS],
            left: AtomicU32::new(0),
        }
    }
}

impl Serving {
    /// Returns the worker that has a pair's transmit ring.
    pub fn by(&self, pair: u8) -> Option<usize> {
        let by = self.by.get(usize::from(pair))?.load(Acquire);
        (by != NOBODY).then_some(by.into())
    }

    /// Gives a ring that nobody has to a worker. The control side calls it, under the board's lock.
    pub fn give(&self, pair: u8, worker: usize) {
        if let (Some(by), Ok(worker)) = (self.by.get(usize::from(pair)), u8::try_from(worker)) {
            by.store(worker, Release);
        }
    }

    /// Takes a ring that nobody has. The worker to which it was moved calls it.
    pub fn take(&self, pair: u8, worker: usize) {
        if let (Some(by), Ok(worker)) = (self.by.get(usize::from(pair)), u8::try_from(worker)) {
            let _ = by.compare_exchange(NOBODY, worker, Release, Relaxed);
        }
    }

    /// Gives a ring up. A worker that may have it calls it, when it is through with it.
    pub fn give_up(&self, pair: u8, worker: usize) {
        if let (Some(by), Ok(worker)) = (self.by.get(usize::from(pair)), u8::try_from(worker)) {
            let _ = by.compare_exchange(worker, NOBODY, Release, Relaxed);
        }
    }

    /// Adds cycles that were spent on a ring. The worker that has it calls it.
    pub fn spend(&self, pair: u8, cycles: u64) {
        if let Some(cell) = self.cycles.get(usize::from(pair)) {
            cell.store(cell.load(Relaxed).wrapping_add(cycles), Relaxed);
        }
    }

    /// Notes that it sends to other hosts. Workers call it, each for pairs that it has.
    #[inline(always)]
    pub fn leaves(&self, tenths: u32) {
        // Written ten times per second, so that workers do not wait for each other's line.
        if self.left.load(Relaxed) != tenths {
            self.left.store(tenths, Relaxed);
        }
    }

    /// Returns the tenth of a second at which it sent to other hosts last.
    pub fn left(&self) -> u32 {
        self.left.load(Relaxed)
    }

    /// Returns the cycles that were spent on a ring.
    pub fn cycles(&self, pair: u8) -> u64 {
        self.cycles.get(usize::from(pair)).map_or(0, |cycles| cycles.load(Relaxed))
    }
}
