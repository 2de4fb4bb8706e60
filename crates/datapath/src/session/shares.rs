//! Shares of the table, for a network, for a vnic, and for one opener at one receiver.
//!
//! Half of the table is reserved, one part for each network that has filtered vnics; the rest is
//! common. A network within its part is never refused because of others: networks beyond their
//! parts share the common rest. With more networks, parts shrink at once, and sessions beyond them
//! drain by time-outs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::engine::atomics::same32;
use crate::engine::bucket::Bucket;

/// The shares of a table.
pub(crate) struct Shares {
    capacity: u32,
    /// Most sessions of a network.
    pub network: u32,
    /// Most sessions that a vnic opens, and most that other vnics open to it.
    pub vnic: u32,
    /// Most sessions that one opener has at one vnic.
    pub opener: u32,
    /// New sessions of a vnic per second.
    pub rate: u32,
    /// Sessions reserved for each network.
    part: AtomicU32,
    /// Sessions that are not reserved, and networks' sessions beyond their parts.
    common: AtomicU32,
    beyond: AtomicU32,
}

/// A vnic's share is half of its network's, and an opener's a quarter of that.
const VNICS: u32 = 2;
const OPENERS: u32 = 4;

impl Shares {
    /// Makes the shares of a table of which a network may have so many percent. With 100 there is
    /// no bound, for vnics neither.
    pub fn new(capacity: u32, percent: u32, rate: u32) -> Shares {
        let network = match percent {
            0..100 => ((u64::from(capacity) * u64::from(percent) / 100) as u32).max(1),
            _ => u32::MAX,
        };
        let of =
            |share: u32, parts: u32| if share == u32::MAX { share } else { (share / parts).max(1) };
        let vnic = of(network, VNICS);
        let (part, beyond) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
        Shares {
            capacity,
            network,
            vnic,
            opener: of(vnic, OPENERS),
            rate,
            part,
            common: AtomicU32::new(0),
            beyond,
        }
    }

    /// Divides the table again. `networks` gives for each one whether it has filtered vnics, and
    /// its sessions. Changes meanwhile may be counted wrongly, so this is repeated now and then.
    pub fn divide<I: Iterator<Item = (bool, u32)>>(&self, networks: impl Fn() -> I) {
        let filtered = networks().filter(|(filtered, _)| *filtered).count() as u32;
        let part = (self.capacity / 2 / filtered.max(1)).min(self.network);
        self.part.store(part, Relaxed);
        self.common.store(self.capacity.saturating_sub(part.saturating_mul(filtered)), Relaxed);
        let beyond = networks()
            .map(|(filtered, sessions)| sessions.saturating_sub(if filtered { part } else { 0 }));
        self.beyond.store(beyond.fold(0, u32::saturating_add), Relaxed);
    }

    /// Returns the number of sessions reserved for a network.
    pub fn part(&self, filtered: bool) -> u32 {
        if filtered { self.part.load(Relaxed) } else { 0 }
    }

    /// Counts one more session of a network that had so many.
    pub fn entered(&self, filtered: bool, before: u32) {
        if before >= self.part(filtered) {
            self.beyond.fetch_add(1, Relaxed);
        }
    }

    /// Counts one session less of a network that had so many.
    pub fn left(&self, filtered: bool, before: u32) {
        if before > self.part(filtered) {
            less(&self.beyond);
        }
    }

    /// Returns whether the common part has room.
    pub fn has_common(&self) -> bool {
        self.beyond.load(Relaxed) < self.common.load(Relaxed)
    }

    /// Forgets the sessions beyond the parts of networks, for an explanation.
    pub fn forget(&self) {
        self.beyond.store(0, Relaxed);
    }

    /// Returns a copy with counts of its own.
    pub fn copy(&self) -> Shares {
        let Shares { capacity, network, vnic, opener, rate, part, common, beyond } = self;
        let (part, common, beyond) = (same32(part), same32(common), same32(beyond));
        Shares {
            capacity: *capacity,
            network: *network,
            vnic: *vnic,
            opener: *opener,
            rate: *rate,
            part,
            common,
            beyond,
        }
    }
}

/// Subtracts one, but never from zero. Returns the value before.
pub(crate) fn less(count: &AtomicU32) -> u32 {
    count.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).unwrap_or(0)
}

/// Counts of the sessions of one vnic.
#[derive(Default)]
pub(crate) struct VnicSessions {
    /// Sessions that it opened.
    pub opened: AtomicU32,
    /// Sessions that others opened to it.
    pub received: AtomicU32,
    pub openers: Openers,
    /// Sessions that it may still open.
    pub budget: Bucket,
    /// Time until which no other session of the vnic is searched to make room, in ticks of the time
    /// stamp counter.
    pub rests: AtomicU64,
}

impl VnicSessions {
    /// Returns the number of sessions that it is an end of.
    pub fn count(&self) -> u32 {
        self.opened.load(Relaxed).saturating_add(self.received.load(Relaxed))
    }

    /// Forgets its sessions, for an explanation in which some of them went.
    pub fn forget(&self) {
        self.openers
            .0
            .iter()
            .chain([&self.opened, &self.received])
            .for_each(|n| n.store(0, Relaxed));
    }

    /// Returns a copy with counts of its own.
    pub fn copy(&self) -> VnicSessions {
        let VnicSessions { opened, received, openers, budget, rests } = self;
        let openers = Openers(openers.0.iter().map(same32).collect());
        let rests = AtomicU64::new(rests.load(Relaxed));
        VnicSessions {
            opened: same32(opened),
            received: same32(received),
            openers,
            budget: budget.copy(),
            rests,
        }
    }
}

/// Number of a vnic's sessions per opener; never too few. Openers whose hashes meet in both rows
/// are counted together. As the sum is bounded, only an opener with many sessions can disturb
/// another, and the hash is secret.
pub(crate) struct Openers(Box<[AtomicU32]>);

/// Counters in each of two rows.
const ROW: usize = 128;

impl Default for Openers {
    fn default() -> Openers {
        Openers((0..2 * ROW).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Openers {
    fn cells(&self, hash: u64) -> [Option<&AtomicU32>; 2] {
        [hash as usize % ROW, ROW + (hash >> 32) as usize % ROW].map(|at| self.0.get(at))
    }

    /// Returns the number of sessions of the opener with this hash.
    pub fn count(&self, hash: u64) -> u32 {
        self.cells(hash).into_iter().flatten().map(|cell| cell.load(Relaxed)).min().unwrap_or(0)
    }

    /// Counts one session more of the opener.
    pub fn add(&self, hash: u64) {
        self.cells(hash).into_iter().flatten().for_each(|cell| _ = cell.fetch_add(1, Relaxed));
    }

    /// Counts one session less of the opener.
    pub fn remove(&self, hash: u64) {
        self.cells(hash).into_iter().flatten().for_each(|cell| _ = less(cell));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_parts_of_each_other() {
        let of = |capacity, percent| {
            let shares = Shares::new(capacity, percent, 1);
            (shares.network, shares.vnic, shares.opener)
        };
        assert_eq!(of(1_000_000, 25), (250_000, 125_000, 31_250));
        assert_eq!(of(64, 1), (1, 1, 1));
        assert_eq!(of(64, 100), (u32::MAX, u32::MAX, u32::MAX));
    }

    #[test]
    fn half_is_reserved_and_no_network_has_more_reserved_than_it_may_have() {
        let shares = Shares::new(1000, 25, 1);
        for (networks, part) in [(0, 250), (1, 250), (2, 250), (3, 166), (10, 50), (501, 0)] {
            shares.divide(|| (0..networks).map(|_| (true, 0)));
            assert_eq!((shares.part(true), shares.part(false)), (part, 0), "{networks} networks");
            assert_eq!(shares.common.load(Relaxed), 1000 - networks * part);
        }
    }

    proptest! {
        /// Counting step by step agrees with counting at once.
        #[test]
        fn what_is_beyond_is_counted(counts in prop::collection::vec((any::<bool>(), 0u32..40), 1..8),
            steps in prop::collection::vec((0usize..8, any::<bool>()), 0..200)) {
            let shares = Shares::new(100, 100, 1);
            let mut counts = counts;
            shares.divide(|| counts.iter().copied());
            for (which, more) in steps {
                let which = which % counts.len();
                let (filtered, count) = &mut counts[which];
                if more {
                    shares.entered(*filtered, *count);
                    *count += 1;
                } else if *count > 0 {
                    shares.left(*filtered, *count);
                    *count -= 1;
                }
            }
            let counted = shares.beyond.load(Relaxed);
            shares.divide(|| counts.iter().copied());
            prop_assert_eq!(counted, shares.beyond.load(Relaxed));
        }

        /// One opener among many others: its count is never too small, and sessions that ended are
        /// not counted.
        #[test]
        fn an_opener_is_counted(hashes in prop::collection::vec(any::<u64>(), 1..40), n in 1u32..50) {
            let openers = Openers::default();
            hashes.iter().for_each(|hash| (0..n).for_each(|_| openers.add(*hash)));
            for hash in &hashes {
                prop_assert!(openers.count(*hash) >= n);
            }
            for hash in &hashes {
                (0..n).for_each(|_| openers.remove(*hash));
            }
            prop_assert!(hashes.iter().all(|hash| openers.count(*hash) == 0));
        }
    }

    #[test]
    fn a_share_is_part_of_all_or_no_bound() {
        let network = |capacity, percent| Shares::new(capacity, percent, 1).network;
        assert_eq!(
            [network(1000, 99), network(1000, 100), network(1000, 101)],
            [990, u32::MAX, u32::MAX]
        );
        assert_eq!([network(0, 50), network(1000, 0), network(u32::MAX, 50)], [1, 1, u32::MAX / 2]);
        let shares = Shares::new(u32::MAX, 100, u32::MAX);
        assert_eq!(
            (shares.network, shares.vnic, shares.opener, shares.rate),
            (u32::MAX, u32::MAX, u32::MAX, u32::MAX)
        );
        let rated = Shares::new(64, 1, 77).copy();
        assert_eq!((rated.network, rated.vnic, rated.opener, rated.rate), (1, 1, 1, 77));
    }

    #[test]
    fn nothing_has_less_than_nothing() {
        let count = AtomicU32::new(2);
        assert_eq!([less(&count), less(&count), less(&count)], [2, 1, 0]);
        assert_eq!(count.load(Relaxed), 0);
    }

    /// The common part has room until networks beyond their parts have all of it, to the last
    /// session.
    #[test]
    fn what_is_common_ends() {
        let shares = Shares::new(100, 100, 1);
        // Two parts of 25 are reserved; one that is not filtered has none.
        shares.divide(|| [(true, 25), (true, 60), (false, 14)].into_iter());
        assert_eq!((shares.part(true), shares.part(false), shares.has_common()), (25, 0, true));
        shares.entered(true, 24); // within its part
        assert!(shares.has_common());
        shares.entered(true, 25);
        assert!(!shares.has_common() && !shares.copy().has_common());
        shares.left(true, 25); // within its part
        assert!(!shares.has_common());
        shares.left(true, 26);
        assert!(shares.has_common());
        shares.entered(false, 0);
        assert!(!shares.has_common());
        shares.left(false, 1);
        assert!(shares.has_common());
    }

    /// Openers that meet in one row are told apart by the other.
    #[test]
    fn openers_have_two_rows() {
        let rows = ROW as u64;
        let of = |first: u64, second: u64| second << 32 | first;
        for (one, other) in
            [(of(5, 6), of(5, 7)), (of(5, 6), of(4, 6)), (of(rows - 1, 0), of(0, rows - 1))]
        {
            let openers = Openers::default();
            openers.add(one);
            openers.add(one);
            assert_eq!((openers.count(one), openers.count(other)), (2, 0));
            openers.add(other);
            assert_eq!((openers.count(one), openers.count(other)), (2, 1));
            openers.remove(one);
            assert_eq!((openers.count(one), openers.count(other)), (1, 1));
            // Both rows wrap around behind their last counter.
            assert_eq!(openers.count(one + rows + (rows << 32)), 1);
        }
    }

    #[test]
    fn a_vnic_s_sessions_are_both_kinds() {
        let vnic = VnicSessions::default();
        vnic.opened.store(3, Relaxed);
        vnic.received.store(u32::MAX, Relaxed);
        vnic.openers.add(9);
        vnic.rests.store(8, Relaxed);
        let copy = vnic.copy();
        assert_eq!(
            (vnic.count(), copy.opened.load(Relaxed), copy.received.load(Relaxed)),
            (u32::MAX, 3, u32::MAX)
        );
        assert_eq!(
            (copy.openers.count(9), copy.openers.count(10), copy.rests.load(Relaxed)),
            (1, 0, 8)
        );
        copy.openers.add(9);
        assert_eq!((vnic.openers.count(9), copy.openers.count(9)), (1, 2));
    }
}
