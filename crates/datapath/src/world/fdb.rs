//! Learnt addresses: the vnic behind which a MAC address was last seen (IEEE 802.1Q, 8.8).
//!
//! One bounded table for all networks. Workers look up without locks; a thread that adds, moves or
//! removes an entry holds its buckets. A lookup that races with a change may return an entry of
//! another key. The caller checks that the vnic it names is the one of that incarnation and in the
//! right network, so no race can carry a frame into another network.
//!
//! An address may be in either of two buckets, and takes the emptier one. The table has more places
//! than [`CAPACITY`], so that an address within the bounds finds one: no network can fill the
//! buckets of another.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use butterfly_point::{Point, pass};

use crate::engine::{place::PortRef, quota::Quota};

/// Most addresses learnt in one network.
pub(crate) const MAX_PER_NETWORK: u32 = 8192;
/// Most addresses learnt behind one vnic.
pub(crate) const MAX_PER_VNIC: u32 = 4096;
/// Most addresses learnt in all networks: 60 percent of the places. Half of them are reserved, in
/// equal parts.
pub(crate) const CAPACITY: u32 = 98_304;

const BUCKETS: usize = 1 << 15;
const WAYS: usize = 5;

#[derive(Default)]
struct Entry {
    /// Low 16 bits of the VNI, then the address; 0: free.
    key: AtomicU64,
    /// High 8 bits of the VNI, slot (24 bits), incarnation (32 bits).
    value: AtomicU64,
    seen: AtomicU32,
}

#[derive(Default)]
#[repr(align(128))]
struct Bucket {
    entries: [Entry; WAYS],
    lock: Mutex<()>,
}

const _: () = assert!(size_of::<Bucket>() == 128);

/// The table.
pub(crate) struct Fdb {
    buckets: Box<[Bucket]>,
    /// Room of each network.
    pub quota: Quota,
    /// Seconds until a silent address is forgotten. Written by the thread that changes settings; a
    /// worker may use the old one once more.
    ageing: AtomicU32,
    /// No entry was seen last before this second, so none is too old before it is.
    oldest: AtomicU32,
    /// Secret seed of the hash: guests choose addresses, but cannot know which of them share a
    /// bucket.
    seed: u64,
}

/// An entry, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learnt {
    pub vni: u32,
    pub mac: u64,
    pub place: PortRef,
    pub idle: u32,
}

/// Outcome of learning an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learning {
    /// The address was known there.
    Known,
    /// The address is new: the caller counts it.
    New,
    /// The address was behind another vnic until now, whose count falls.
    Moved(PortRef),
    /// No room, or another thread is changing the bucket.
    Refused,
}

const fn key(vni: u32, mac: u64) -> u64 {
    ((vni as u64 & 0xffff) << 48) | mac
}

const fn value(vni: u32, place: PortRef) -> u64 {
    ((vni as u64 >> 16) << 56) | ((place.slot as u64 & 0xff_ffff) << 32) | place.incarnation as u64
}

const fn place(value: u64) -> PortRef {
    PortRef { slot: (value >> 32) as u32 & 0xff_ffff, incarnation: value as u32 }
}

impl Entry {
    /// Returns whether it is this address's.
    #[inline(always)]
    fn is(&self, vni: u32, mac: u64) -> bool {
        self.key.load(Ordering::Relaxed) == key(vni, mac)
            && self.value.load(Ordering::Relaxed) >> 56 == u64::from(vni) >> 16
    }

    fn is_free(&self) -> bool {
        self.key.load(Ordering::Relaxed) == 0
    }

    /// Fills a free entry.
    fn fill(&self, key: u64, value: u64, seen: u32) {
        // Who sees the new value sees that the entry lost its old key.
        self.value.store(value, Ordering::Release);
        self.seen.store(seen, Ordering::Relaxed);
        pass(Point::StationHalf);
        self.key.store(key, Ordering::Release);
        pass(Point::StationLearnt);
    }
}

impl Bucket {
    /// Locks the bucket without waiting. `None` if another thread holds it: the next frame will
    /// see.
    fn try_hold(&self) -> Option<MutexGuard<'_, ()>> {
        match self.lock.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn free(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is_free())
    }

    fn used(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.is_free()).count()
    }
}

impl Fdb {
    pub fn new(ageing: u32) -> Fdb {
        let seed = RandomState::new().hash_one(BUCKETS);
        Fdb {
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            quota: Quota::new(CAPACITY),
            ageing: AtomicU32::new(ageing),
            oldest: AtomicU32::new(0),
            seed,
        }
    }

    /// Returns the seconds after which a silent address is forgotten.
    pub fn set_ageing(&self, ageing: u32) {
        self.ageing.store(ageing, Ordering::Relaxed);
    }

    pub fn ageing(&self) -> u32 {
        self.ageing.load(Ordering::Relaxed)
    }

    /// Returns the two buckets that an address may be in; they may be one.
    #[inline(always)]
    fn homes(&self, vni: u32, mac: u64) -> [usize; 2] {
        // The finalizer of SplitMix64: every bit of network, address and seed matters for every
        // bit.
        let x = mac ^ u64::from(vni).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed;
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ x >> 31;
        [x as usize % BUCKETS, (x >> 32) as usize % BUCKETS]
    }

    #[inline(always)]
    fn is_fresh(&self, seen: u32, now: u32) -> bool {
        now.saturating_sub(seen) < self.ageing.load(Ordering::Relaxed)
    }

    /// Returns the place where an address was last seen, unless that is too long ago.
    #[inline]
    pub fn lookup(&self, vni: u32, mac: u64, now: u32) -> Option<PortRef> {
        for home in self.homes(vni, mac) {
            for entry in &self.buckets.get(home)?.entries {
                if entry.key.load(Ordering::Acquire) == key(vni, mac) {
                    let found = entry.value.load(Ordering::Acquire);
                    let same = entry.key.load(Ordering::Relaxed) == key(vni, mac)
                        && found >> 56 == u64::from(vni) >> 16;
                    if same && self.is_fresh(entry.seen.load(Ordering::Relaxed), now) {
                        return Some(place(found));
                    }
                }
            }
        }
        None
    }

    /// Notes that `mac` was seen behind `at`. `room` says whether a new entry is within the
    /// caller's bounds.
    #[inline]
    pub fn learn(&self, vni: u32, mac: u64, at: PortRef, now: u32, room: bool) -> Learning {
        let homes = self.homes(vni, mac);
        for bucket in homes.iter().filter_map(|home| self.buckets.get(*home)) {
            for entry in &bucket.entries {
                if entry.key.load(Ordering::Acquire) == key(vni, mac)
                    && entry.value.load(Ordering::Relaxed) == value(vni, at)
                {
                    let seen = entry.seen.load(Ordering::Relaxed);
                    if !self.is_fresh(seen, now) {
                        break;
                    }
                    if seen != now {
                        entry.seen.store(now, Ordering::Relaxed);
                    }
                    return Learning::Known;
                }
            }
        }
        self.learn_slow(homes, vni, mac, at, now, room).unwrap_or(Learning::Refused)
    }

    #[cold]
    fn learn_slow(
        &self,
        homes: [usize; 2],
        vni: u32,
        mac: u64,
        at: PortRef,
        now: u32,
        room: bool,
    ) -> Option<Learning> {
        let [one, two] = homes;
        let (first, second) = (self.buckets.get(one)?, self.buckets.get(two)?);
        // A refused address holds no lock: a vnic with all it may have keeps sending.
        if !room && !first.entries.iter().chain(&second.entries).any(|entry| entry.is(vni, mac)) {
            return None;
        }
        let _held = (first.try_hold()?, if one == two { None } else { Some(second.try_hold()?) });
        let (wanted_key, wanted_value) = (key(vni, mac), value(vni, at));
        if let Some(entry) =
            first.entries.iter().chain(&second.entries).find(|entry| entry.is(vni, mac))
        {
            entry.seen.store(now, Ordering::Relaxed);
            let found = entry.value.load(Ordering::Relaxed);
            if found == wanted_value {
                return Some(Learning::Known);
            }
            entry.value.store(wanted_value, Ordering::Release);
            return Some(Learning::Moved(place(found)));
        }
        if !room {
            return None;
        }
        // Old entries are removed by remove(), which counts: only free ones are taken here.
        let emptier = if second.used() < first.used() { second } else { first };
        let entry = emptier.free().or_else(|| self.make_room(homes))?;
        entry.fill(wanted_key, wanted_value, now);
        self.oldest.fetch_min(now, Ordering::Relaxed);
        Some(Learning::New)
    }

    /// Moves an entry of these buckets, which the caller holds, to its other bucket. Returns its
    /// place.
    fn make_room(&self, homes: [usize; 2]) -> Option<&Entry> {
        for home in homes {
            for entry in &self.buckets.get(home)?.entries {
                let Some((learnt, _)) = self.read(entry, 0) else { continue };
                let [one, two] = self.homes(learnt.vni, learnt.mac);
                let other = if one == home { two } else { one };
                if homes.contains(&other) {
                    continue;
                }
                let bucket = self.buckets.get(other)?;
                let Some(_held) = bucket.try_hold() else { continue };
                let Some(free) = bucket.free() else { continue };
                let [key, value] =
                    [&entry.key, &entry.value].map(|word| word.load(Ordering::Relaxed));
                // The entry is in both for a moment: a reader finds it in one of them.
                let seen = entry.seen.load(Ordering::Relaxed);
                free.fill(key, value, seen);
                entry.key.store(0, Ordering::Release);
                self.oldest.fetch_min(seen, Ordering::Relaxed); // a walk may have missed both
                return Some(entry);
            }
        }
        None
    }

    /// True if an entry may be too old: reading the whole table to find none is dear.
    pub fn may_have_aged(&self, now: u32) -> bool {
        !self.is_fresh(self.oldest.load(Ordering::Relaxed), now)
    }

    /// Removes entries for which `gone` is true, or that are too old. For the housekeeping thread
    /// and for changes of vnics.
    pub fn remove(
        &self,
        now: u32,
        mut gone: impl FnMut(&Learnt) -> bool,
        mut removed: impl FnMut(&Learnt),
    ) {
        self.oldest.store(u32::MAX, Ordering::Relaxed);
        let mut oldest = now;
        for bucket in &self.buckets {
            if bucket.entries.iter().all(|entry| entry.key.load(Ordering::Relaxed) == 0) {
                continue;
            }
            let _held = bucket.lock.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in &bucket.entries {
                let Some((learnt, fresh)) = self.read(entry, now) else { continue };
                if !fresh || gone(&learnt) {
                    entry.key.store(0, Ordering::Release);
                    removed(&learnt);
                } else {
                    oldest = oldest.min(entry.seen.load(Ordering::Relaxed));
                }
            }
        }
        self.oldest.fetch_min(oldest, Ordering::Relaxed);
    }

    fn read(&self, entry: &Entry, now: u32) -> Option<(Learnt, bool)> {
        let found = entry.key.load(Ordering::Acquire);
        if found == 0 {
            return None;
        }
        let value = entry.value.load(Ordering::Relaxed);
        let seen = entry.seen.load(Ordering::Relaxed);
        let vni = (((value >> 56) as u32) << 16) | (found >> 48) as u32;
        let learnt = Learnt {
            vni,
            mac: found & 0xffff_ffff_ffff,
            place: place(value),
            idle: now.saturating_sub(seen),
        };
        Some((learnt, self.is_fresh(seen, now)))
    }

    /// Returns all entries in force.
    pub fn list(&self, now: u32) -> Vec<Learnt> {
        let entries = self.buckets.iter().flat_map(|bucket| &bucket.entries);
        entries
            .filter_map(|entry| self.read(entry, now))
            .filter(|(_, fresh)| *fresh)
            .map(|(learnt, _)| learnt)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PortRef = PortRef { slot: 1, incarnation: 10 };
    const B: PortRef = PortRef { slot: 0xff_fffe, incarnation: u32::MAX };

    #[test]
    fn learns_moves_and_ages() {
        let fdb = Fdb::new(300);
        assert_eq!(fdb.lookup(42, 5, 1), None);
        assert_eq!(fdb.learn(42, 5, A, 1, true), Learning::New);
        assert_eq!(fdb.learn(42, 5, A, 2, true), Learning::Known);
        assert_eq!(fdb.lookup(42, 5, 2), Some(A));
        assert_eq!(fdb.learn(42, 5, B, 3, false), Learning::Moved(A));
        assert_eq!(fdb.lookup(42, 5, 302), Some(B));
        assert_eq!(fdb.lookup(42, 5, 303), None);
        let mut removed = Vec::new();
        fdb.remove(303, |_| false, |learnt| removed.push(*learnt));
        assert_eq!(removed, [Learnt { vni: 42, mac: 5, place: B, idle: 300 }]);
        assert_eq!(fdb.learn(42, 5, A, 303, true), Learning::New);
    }

    #[test]
    fn networks_do_not_mix() {
        let fdb = Fdb::new(300);
        // The same low 16 bits and address.
        assert_eq!(fdb.learn(0x01_002a, 5, A, 1, true), Learning::New);
        assert_eq!(fdb.lookup(0x02_002a, 5, 1), None);
        assert_eq!(fdb.learn(0x02_002a, 5, B, 1, true), Learning::New);
        assert_eq!((fdb.lookup(0x01_002a, 5, 1), fdb.lookup(0x02_002a, 5, 1)), (Some(A), Some(B)));
        assert_eq!(
            fdb.list(1).iter().map(|l| l.vni).collect::<std::collections::BTreeSet<_>>(),
            [0x01_002a, 0x02_002a].into()
        );
    }

    /// The same machines in every network, and networks with many machines that differ little: none
    /// of that fills a bucket.
    #[test]
    fn equal_addresses_in_many_networks_find_room() {
        let fdb = Fdb::new(300);
        for vni in 0..500 {
            assert_eq!(
                fdb.learn(vni, 0x0500_0000_0002, A, 1, true),
                Learning::New,
                "network {vni}"
            );
            assert_eq!(
                fdb.learn(vni, 0x8000_0000_0002 + (u64::from(vni & 0x7f) << 40), A, 1, true),
                Learning::New,
                "network {vni}"
            );
        }
    }

    /// As many addresses as there may be, of networks with random numbers: every one finds a place,
    /// and is found there.
    #[test]
    fn as_many_addresses_as_there_may_be_find_room() {
        let fdb = Fdb::new(300);
        let address = |n: u32| (n % 24, 0x0200_0000_0000 + u64::from(n));
        for n in 0..CAPACITY {
            let (vni, mac) = address(n);
            assert_eq!(fdb.learn(vni, mac, A, 1, true), Learning::New, "address {n}");
        }
        for n in 0..CAPACITY {
            let (vni, mac) = address(n);
            assert_eq!(fdb.lookup(vni, mac, 1), Some(A), "address {n}");
        }
        assert_eq!(fdb.list(1).len(), CAPACITY as usize);
    }

    #[test]
    fn the_table_is_walked_only_when_an_entry_may_be_too_old() {
        let fdb = Fdb::new(300);
        let walk = |now: u32| {
            let mut removed = 0;
            fdb.remove(now, |_| false, |_| removed += 1);
            removed
        };
        assert_eq!(walk(10), 0);
        assert!(!fdb.may_have_aged(309) && fdb.may_have_aged(310), "empty since 10");
        assert_eq!(fdb.learn(1, 1, A, 20, true), Learning::New);
        assert_eq!(fdb.learn(1, 2, A, 30, true), Learning::New);
        assert_eq!((walk(310), walk(315)), (0, 0));
        assert!(!fdb.may_have_aged(319) && fdb.may_have_aged(320));
        assert_eq!(fdb.learn(1, 1, A, 319, true), Learning::Known);
        assert_eq!(walk(320), 0, "it was seen meanwhile");
        assert!(!fdb.may_have_aged(329) && fdb.may_have_aged(330));
        assert_eq!(walk(330), 1);
        assert!(!fdb.may_have_aged(618) && fdb.may_have_aged(619));
        // The setting counts when it changes, and an entry by the clock of who learns it.
        fdb.set_ageing(10);
        assert!(fdb.may_have_aged(331));
        assert_eq!(walk(331), 1);
        assert_eq!(fdb.learn(1, 3, A, 328, true), Learning::New);
        assert!(!fdb.may_have_aged(337) && fdb.may_have_aged(338));
    }

    #[test]
    fn a_full_table_refuses_and_keeps() {
        let fdb = Fdb::new(300);
        let places = (BUCKETS * WAYS) as u64;
        let known: Vec<u64> =
            (1..2 * places).filter(|mac| fdb.learn(1, *mac, A, 1, true) == Learning::New).collect();
        assert!(known.len() as u64 > places * 9 / 10, "{}", known.len());
        assert_eq!(fdb.list(1).len(), known.len());
        assert!(
            known.iter().all(|mac| fdb.lookup(1, *mac, 1) == Some(A)),
            "entries were moved, and none was lost"
        );
        assert_eq!(fdb.learn(1, known[0], B, 1, false), Learning::Moved(A));
        assert_eq!(fdb.learn(2, known[0], A, 1, false), Learning::Refused);
    }
}
