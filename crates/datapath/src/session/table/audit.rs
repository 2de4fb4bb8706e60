//! Invariants of a table at rest, and sessions whose records show if they are mixed up.

use std::collections::HashSet;

use super::*;
use crate::ip::Tuple;
use crate::session::{NO_TRACK, Past, State, key::Zone};

pub(super) const HASH_KEY: HashKey = HashKey([
    0x9e37_79b9_7f4a_7c15,
    0xd1b5_4a32_d192_ed03,
    0x8cb9_2ba7_2f3d_8dd7,
    0xaaaa_bbbb_cccc_dddd,
]);

/// Returns flow number `n`.
pub(super) fn key(n: u32) -> Key {
    let tuple = Tuple {
        source: 0xffff_0a00_0000 + u128::from(n),
        destination: u128::from(n) << 96 | 1,
        source_port: n as u16,
        destination_port: 53,
        vlan: 0,
        protocol: 17,
    };
    Key::new(&tuple, Zone::of(7), n % 1000, 1000 + n % 7)
}

/// Returns the number of a [`key`].
pub(super) fn number(key: &Key) -> u32 {
    key.tuple().source as u32 & 0xff_ffff
}

/// Returns the verdict of version `stamp` on a flow. All of it depends on both.
pub(super) fn verdict(n: u32, stamp: u32) -> Admitted {
    let mixed = (n << 16 ^ stamp).wrapping_mul(0x9e37_79b1);
    Admitted { stamp, cells: [mixed, !mixed], answers: mixed.count_ones().is_multiple_of(2) }
}

/// Returns the second line of a flow's new record.
pub(super) fn life(n: u32) -> Life {
    Life { now: n, state: State::OtherNew, track: NO_TRACK, past: Past::NONE }
}

/// Checks that a record's verdict is one on its own flow.
pub(super) fn genuine(key: &Key, admission: Admitted) {
    assert_eq!(
        admission,
        verdict(number(key), admission.stamp),
        "a verdict on another flow than {}",
        number(key)
    );
}

impl Table {
    /// Adds flow `n`.
    pub(super) fn add(&self, n: u32, stamp: u32, may_evict: bool) -> Result<u32, NotInserted> {
        let key = key(n);
        self.insert(
            self.hash(&key),
            &key,
            verdict(n, stamp),
            &life(n),
            |_| may_evict,
            |_, gone, admission| genuine(gone, *admission),
        )
    }

    /// Returns the number of a bucket's flows that are in their second one.
    pub(super) fn overflow_of(&self, bucket: u64) -> u64 {
        super::overflow(self.bucket(bucket)[0].load(Acquire))
    }

    pub(super) fn get(&self, n: u32) -> Option<Found> {
        let key = key(n);
        self.lookup(self.hash(&key), &key)
    }

    /// Looks up a flow as the packet path does.
    pub(super) fn get_fast(&self, n: u32) -> Option<Found> {
        let key = key(n);
        self.check(self.candidate(self.hash(&key))?, &key)
    }

    /// Checks that every record is in one bucket or free, every flow has one record, and all counts
    /// are right. Returns the flows.
    pub(super) fn audit(&self) -> HashSet<u32> {
        let mut flows = HashSet::new();
        let mut indices = HashSet::new();
        let mut overflow = vec![0u64; self.mask as usize + 1];
        for at in 0..=self.mask {
            for word in self.bucket(at).iter().skip(1) {
                let word = word.load(Acquire);
                if word == 0 {
                    continue;
                }
                let index = (word as u32).checked_sub(1).expect("an entry has an index");
                assert!(indices.insert(index), "record {index} is in two places");
                let (key, admission) =
                    self.record(index).read().expect("what a bucket points to is in use");
                genuine(&key, admission);
                assert!(!self.record(index).is_held(), "record {index} is held");
                assert!(flows.insert(number(&key)), "flow {} has two records", number(&key));
                let hash = self.hash(&key);
                assert_eq!(word, entry(hash, index));
                let (first, second) =
                    (Table::first(hash) & self.mask, Table::second(hash) & self.mask);
                assert_ne!(first, second);
                assert!(at == first || at == second, "a record is in a bucket where nobody looks");
                if at != first {
                    overflow[first as usize] += 1;
                }
                let direction = self.lookup(hash, &key).map(|found| (found.index, found.direction));
                assert_eq!(direction, Some((index, 0)), "a record is not found");
            }
        }
        for (at, overflow) in overflow.iter().enumerate() {
            let word = self.bucket(at as u64)[0].load(Acquire);
            let counted = super::overflow(word);
            assert_eq!(
                (word & (OVERFLOW - 1), counted),
                (0, *overflow),
                "lock and overflow of bucket {at}"
            );
        }
        assert_eq!(self.used() as usize, flows.len());
        let mut next = self.head().word(HEAD_FREE).load(Acquire) as u32;
        while let Some(index) = next.checked_sub(1) {
            assert!(indices.insert(index), "record {index} is free and in use, or free twice");
            next = self.record(index).next_free();
        }
        let fresh = self.head().word(HEAD_FRESH).load(Acquire);
        assert!(fresh <= self.capacity.into());
        assert_eq!(indices.len() as u64, fresh, "a record is lost");
        flows
    }
}
