//! Counters: one set per vnic and worker, written by that worker alone and summed by the reader.
//!
//! `in` counts what the switch took from a guest, faulty frames included; `out` what it gave to it.
//! A frame with one receiver is in exactly one `out` or one drop, a flood in one per receiver. A
//! segment that is cut for a receiver is one `in`, and one `out` per piece; if only some pieces
//! fit, the frame is one drop, too. A frame that waits for a next hop is `out`.
//!
//! Drops are charged to:
//!
//! | drop | charged |
//! |---|---|
//! | malformed, spoofed, hidden or lying frames, too many floods, no receiver | the sender |
//! | refused by a policy | the vnic whose policy it is |
//! | frames of other hosts, no next hop, no room on the uplink | the network (its trunk) |
//! | frames on the uplink that are no network's | the uplink |
//! | too large for the uplink | the sender |
//! | no buffers, bad buffers, no guest | the receiver |

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::{
    last_drops::{Dropped, LastDrop, LastDrops},
    reason::{CAPACITY, DropReason},
    writer::{PerWorker, Writer},
};

/// Counters other than drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    /// Frames received from the guest.
    InPackets,
    /// Their bytes, without virtio-net headers.
    InBytes,
    /// Frames delivered to the guest.
    OutPackets,
    /// Their bytes, without virtio-net headers.
    OutBytes,
    /// Frames of the guest that went to several receivers.
    Flooded,
    /// Source addresses that were not learnt because a bound was reached.
    LearnRefused,
    /// Frames that the switch sent in the guest's name to announce its place.
    Announced,
}

const PLAIN: usize = 8;

/// One worker's counters of one vnic.
#[repr(align(128))]
pub(crate) struct CounterCells([AtomicU64; PLAIN + CAPACITY]);

impl CounterCells {
    fn add_at(&self, index: usize, n: u64) {
        if let Some(cell) = self.0.get(index) {
            // The only writer: no read-modify-write needed.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub fn add(&self, counter: Counter, n: u64) {
        self.add_at(counter as usize, n);
    }

    /// Counts drops without a packet to keep.
    pub fn drop(&self, reason: DropReason, n: u64) {
        self.add_at(PLAIN + reason.index(), n);
    }
}

/// A vnic's counters, and the packets that were dropped last.
pub(crate) struct Counters {
    cells: PerWorker<CounterCells>,
    last: PerWorker<LastDrops>,
}

impl Counters {
    pub fn new(workers: usize) -> Counters {
        Counters {
            cells: PerWorker::new(workers, || {
                CounterCells(std::array::from_fn(|_| AtomicU64::new(0)))
            }),
            last: PerWorker::new(workers, LastDrops::new),
        }
    }

    /// Counts a worker's drop and keeps the packet.
    #[cold]
    pub fn drop(&self, worker: Writer<'_>, reason: DropReason, packet: &Dropped<'_>) {
        if let (Some(cells), Some(last)) = (self.cells.of(worker), self.last.of(worker)) {
            cells.add_at(PLAIN + reason.index(), 1);
            last.keep(reason, packet);
        }
    }

    /// Returns the packets that were dropped last, at most one of each reason.
    pub fn last_drops(&self) -> Vec<LastDrop> {
        let mut all: Vec<LastDrop> = self.last.iter().flat_map(LastDrops::list).collect();
        all.sort_by_key(|drop| (drop.reason.index(), std::cmp::Reverse(drop.when)));
        all.dedup_by_key(|drop| drop.reason);
        all
    }

    /// Returns the worker's own cells.
    #[inline(always)]
    pub fn of(&self, worker: Writer<'_>) -> Option<&CounterCells> {
        self.cells.of(worker)
    }

    /// Returns the sum of one counter over all workers.
    pub fn get(&self, counter: Counter) -> u64 {
        self.at(counter as usize)
    }

    /// Returns the number of drops for one reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.at(PLAIN + reason.index())
    }

    fn at(&self, index: usize) -> u64 {
        self.cells
            .iter()
            .filter_map(|cells| cells.0.get(index))
            .map(|cell| cell.load(Ordering::Relaxed))
            .sum()
    }

    /// Returns the sums of all counters over all workers.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for cells in self.cells.iter() {
            for (sum, cell) in totals.0.iter_mut().zip(&cells.0) {
                *sum += cell.load(Ordering::Relaxed);
            }
        }
        totals
    }
}

/// Sums of counters at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Totals([u64; PLAIN + CAPACITY]);

impl Default for Totals {
    fn default() -> Self {
        Totals([0; PLAIN + CAPACITY])
    }
}

impl Totals {
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize).copied().unwrap_or(0)
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.0.get(PLAIN + reason.index()).copied().unwrap_or(0)
    }

    /// Adds drops that were counted elsewhere.
    pub fn add_drops(&mut self, reason: DropReason, n: u64) {
        if let Some(sum) = self.0.get_mut(PLAIN + reason.index()) {
            *sum += n;
        }
    }

    /// Keeps the drops and clears all other counters.
    pub fn drops_only(mut self) -> Totals {
        self.0.iter_mut().take(PLAIN).for_each(|sum| *sum = 0);
        self
    }

    pub fn merge(&mut self, other: &Totals) {
        for (sum, n) in self.0.iter_mut().zip(&other.0) {
            *sum += n;
        }
    }
}
