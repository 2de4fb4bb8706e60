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
    /// Frames of other hosts that were passed on to the host for which the guest left.
    PassedOn,
}

impl Counter {
    /// All counters, each with the name under which a later release finds it.
    pub const NAMED: [(Counter, &'static str); 8] = [
        (Counter::InPackets, "in-packets"),
        (Counter::InBytes, "in-bytes"),
        (Counter::OutPackets, "out-packets"),
        (Counter::OutBytes, "out-bytes"),
        (Counter::Flooded, "flooded"),
        (Counter::LearnRefused, "learn-refused"),
        (Counter::Announced, "announced"),
        (Counter::PassedOn, "passed-on"),
    ];
}

const PLAIN: usize = 8;

/// One worker's counters of one vnic.
#[repr(align(128))]
pub(crate) struct CounterCells([AtomicU64; PLAIN + CAPACITY]);

impl Default for CounterCells {
    fn default() -> Self {
        CounterCells(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

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

    /// Adds what was counted elsewhere.
    pub fn merge(&self, totals: &Totals) {
        for (index, n) in totals.0.iter().enumerate().filter(|(_, n)| **n > 0) {
            self.add_at(index, *n);
        }
    }

    /// Counts drops without a packet to keep.
    pub fn drop(&self, reason: DropReason, n: u64) {
        self.add_at(PLAIN + reason.index(), n);
    }
}

/// A vnic's counters, and the packets that were dropped last.
pub(crate) struct Counters {
    cells: PerWorker<CounterCells>,
    /// Counts of the vnic on another host. The thread that answers requests adds to them.
    moved: CounterCells,
    last: PerWorker<LastDrops>,
}

impl Counters {
    pub fn new(workers: usize) -> Counters {
        Counters {
            cells: PerWorker::new(workers, CounterCells::default),
            moved: CounterCells::default(),
            last: PerWorker::new(workers, LastDrops::new),
        }
    }

    /// Makes the cells that are missing for so many workers.
    pub fn grow(&self, workers: usize) {
        self.cells.grow(workers, CounterCells::default);
        self.last.grow(workers, LastDrops::new);
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

    /// Adds counts of the vnic on another host.
    pub fn add_moved(&self, totals: &Totals) {
        for (cell, n) in self.moved.0.iter().zip(&totals.0).filter(|(_, n)| **n > 0) {
            cell.fetch_add(*n, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &CounterCells> {
        self.cells.iter().chain([&self.moved])
    }

    fn at(&self, index: usize) -> u64 {
        self.all()
            .filter_map(|cells| cells.0.get(index))
            .fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }

    /// Returns the sums of all counters over all workers.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for cells in self.all() {
            for (sum, cell) in totals.0.iter_mut().zip(&cells.0) {
                *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
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

    /// Adds to a counter what was counted elsewhere.
    pub fn add(&mut self, counter: Counter, n: u64) {
        if let Some(sum) = self.0.get_mut(counter as usize) {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Adds drops that were counted elsewhere.
    pub fn add_drops(&mut self, reason: DropReason, n: u64) {
        if let Some(sum) = self.0.get_mut(PLAIN + reason.index()) {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Keeps the drops and clears all other counters.
    pub fn drops_only(mut self) -> Totals {
        self.0.iter_mut().take(PLAIN).for_each(|sum| *sum = 0);
        self
    }

    /// Returns how much each is more than in `base`; 0 if it is less.
    pub fn beyond(&self, base: &Totals) -> Totals {
        let mut beyond = self.clone();
        beyond.0.iter_mut().zip(&base.0).for_each(|(n, base)| *n = n.saturating_sub(*base));
        beyond
    }

    pub fn merge(&mut self, other: &Totals) {
        for (sum, n) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.wrapping_add(*n);
        }
    }
}
