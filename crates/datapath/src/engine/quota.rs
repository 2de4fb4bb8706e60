//! Room of a bounded table, shared by networks: half of it is reserved, in equal parts, and the
//! other half is common.
//!
//! A network with less than its part finds room, however much other networks have. Entries beyond
//! its part come out of the common half, first come, first served. With more networks the parts
//! shrink: networks that then have too much together are told, and give entries back.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The room of one table.
pub(crate) struct Quota {
    capacity: AtomicU32,
    /// Entries reserved for each network.
    part: AtomicU32,
    /// Entries of networks beyond their parts.
    common: AtomicU32,
}

impl Quota {
    /// Makes room for `capacity` entries, of one network so far.
    pub fn new(capacity: u32) -> Quota {
        Quota {
            capacity: AtomicU32::new(capacity),
            part: AtomicU32::new(capacity / 2),
            common: AtomicU32::new(0),
        }
    }

    /// Returns the number of entries reserved for each network.
    pub fn part(&self) -> u32 {
        self.part.load(Relaxed)
    }

    fn common_half(&self) -> u32 {
        let capacity = self.capacity.load(Relaxed);
        capacity - capacity / 2
    }

    /// Returns whether a network that has `held` entries may have one more.
    #[inline]
    pub fn has_room(&self, held: u32) -> bool {
        held < self.part() || self.common.load(Relaxed) < self.common_half()
    }

    /// Counts an entry of a network.
    pub fn take(&self, held: &AtomicU32) {
        if held.fetch_add(1, Relaxed) >= self.part() {
            self.common.fetch_add(1, Relaxed);
        }
    }

    /// Counts one entry of a network less.
    pub fn give_back(&self, held: &AtomicU32) {
        let before = held.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).unwrap_or(0);
        if before > self.part() {
            let _ = self.common.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        }
    }

    /// Sets the number of entries and of networks, with the entries that each network holds.
    /// Entries without a network (`nobodys`) count as common.
    ///
    /// Returns the most entries that any network may have, if the networks together exceed the
    /// common half. Networks with more give entries back.
    pub fn settle(&self, capacity: u32, networks: u32, held: &[u32], nobodys: u32) -> Option<u32> {
        let part = capacity / 2 / networks.max(1);
        self.capacity.store(capacity, Relaxed);
        self.part.store(part, Relaxed);
        let beyond: Vec<u32> = held
            .iter()
            .map(|held| held.saturating_sub(part))
            .filter(|beyond| *beyond > 0)
            .collect();
        let used = beyond.iter().copied().fold(nobodys, u32::saturating_add);
        self.common.store(used, Relaxed);
        let room = self.common_half().saturating_sub(nobodys);
        (used > self.common_half()).then(|| part + level(beyond, room))
    }
}

/// Returns the highest level to which each of `wanted` can be filled, with `room` for all together.
fn level(mut wanted: Vec<u32>, room: u32) -> u32 {
    wanted.sort_unstable();
    let (mut room, mut left) = (room, wanted.len() as u32);
    for want in wanted {
        let equal = room / left.max(1);
        if want >= equal {
            return equal;
        }
        room -= want;
        left -= 1;
    }
    room
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_network_within_its_part_finds_room_though_others_have_all_the_rest() {
        let quota = Quota::new(100);
        let [greedy, modest] = [0, 0].map(AtomicU32::new);
        assert_eq!(quota.settle(100, 2, &[0, 0], 0), None);
        while quota.has_room(greedy.load(Relaxed)) {
            quota.take(&greedy);
        }
        assert_eq!((quota.part(), greedy.load(Relaxed)), (25, 75));
        for _ in 0..25 {
            assert!(quota.has_room(modest.load(Relaxed)));
            quota.take(&modest);
        }
        assert!(!quota.has_room(modest.load(Relaxed)));
        quota.give_back(&greedy);
        assert!(quota.has_room(modest.load(Relaxed)) && quota.has_room(greedy.load(Relaxed)));
    }

    #[test]
    fn a_network_more_makes_those_with_most_give_back() {
        let quota = Quota::new(100);
        // A single network may have everything.
        assert_eq!(quota.settle(100, 1, &[100], 0), None);
        assert_eq!(quota.settle(100, 2, &[100, 0], 0), Some(75));
        // Beyond 10 each: 60, 30 and 2 of 50; the smallest keeps its own.
        assert_eq!(quota.settle(100, 5, &[70, 40, 12, 1, 0], 0), Some(34));
        // Entries without a network take from the common half.
        assert_eq!(quota.settle(100, 5, &[34, 34, 12, 1, 0], 4), Some(32));
    }

    proptest! {
        /// Networks come and go, take and give back. The table is never over-full, and no network
        /// within its part is refused.
        #[test]
        fn shares_hold_whatever_happens(
            capacity in 8u32..500,
            steps in prop::collection::vec((0usize..8, 0u8..20), 1..800),
        ) {
            let quota = Quota::new(capacity);
            let mut networks: Vec<AtomicU32> = vec![AtomicU32::new(0)];
            for (at, step) in steps {
                let count = networks.len();
                match step {
                    0 if count < 8 => networks.push(AtomicU32::new(0)),
                    1 if count > 1 => drop(networks.swap_remove(at % count)),
                    2..=5 => {
                        let held = &networks[at % count];
                        if held.load(Relaxed) > 0 {
                            quota.give_back(held);
                        }
                    }
                    _ => {
                        let held = &networks[at % count];
                        let within = held.load(Relaxed) < capacity / 2 / count as u32;
                        let room = quota.has_room(held.load(Relaxed));
                        prop_assert!(room || !within);
                        if room {
                            quota.take(held);
                        }
                    }
                }
                if step < 2 {
                    let held = || networks.iter().map(|held| held.load(Relaxed)).collect::<Vec<_>>();
                    if let Some(most) = quota.settle(capacity, networks.len() as u32, &held(), 0) {
                        for held in &networks {
                            held.fetch_min(most, Relaxed);
                        }
                        prop_assert_eq!(quota.settle(capacity, networks.len() as u32, &held(), 0), None);
                    }
                }
                prop_assert!(networks.iter().map(|held| held.load(Relaxed)).sum::<u32>() <= capacity);
            }
        }
    }
}
