//! The table of sessions: bounded, shared by all workers, in memory that may outlive the process.
//!
//! A record is one unit of 128 bytes. Its first line says who talks to whom and what admitted it; established traffic only reads it.
//! The second holds what moves: last seen, counters, TCP state. Records never move and are never freed, so a reader needs no
//! protection but the sequence number in the first word: odd while the line changes. Buckets point to records; a writer holds the
//! bucket's lock.
//!
//! A flow has two buckets; the second is used, and looked at, only if the first overflowed.

#[cfg(test)]
mod audit;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
#[cfg(all(test, not(feature = "loom")))]
mod stress;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::{
    path::Path,
    sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{
    key::{HashKey, Key},
    layout::{self, HEAD_FREE, HEAD_FRESH, HEAD_USED, Here, Layout},
    memory::{AtomicU64, BUCKET_WORDS, Left, PATIENCE, Unit, Units, UnitsError, fence, prefetch, spin_loop, zero},
    names::{self, Name},
    record::{Admission, Life, Line1, Record},
    state::State,
};
use crate::flow::tcp::TcpState;

/// Two buckets share a unit.
const HALF_UNIT: usize = 8;
/// In a bucket's first word: the lock, and the number of its flows that are in their second bucket.
const LOCK: u64 = 1;
const OVERFLOW: u64 = 1 << 8;

/// Other buckets that are looked at for a session that may be evicted.
const NEIGHBOURS: u64 = 16;

/// Buckets that are looked at for a session of somebody who has too many, and sessions in them.
const SEARCHED: u64 = 256;
const LOOKED_AT: u32 = 64;

/// Why a session was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotInserted {
    /// No room, and nothing that may be evicted.
    Full,
    /// Somebody made it meanwhile, or is changing it at this moment.
    Exists,
}

/// A record that matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub index: u32,
    /// 0: the frame is the opener's; 1: the other end's.
    pub direction: usize,
    pub admission: Admission,
}

/// The table.
pub(crate) struct Table {
    units: Units,
    hash_key: HashKey,
    capacity: u32,
    /// Unit of the first bucket, and number of buckets minus one.
    buckets: usize,
    mask: u64,
    /// Unit of the first name, and number of names; there are none in memory that goes with the process.
    names: usize,
    slots: u32,
}

/// A bucket that is locked.
struct Locked<'a> {
    words: &'a [AtomicU64],
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.words.first() {
            word.fetch_and(!LOCK, Release);
        }
    }
}

fn tag(hash: u64) -> u64 {
    hash << 32
}

fn entry(hash: u64, index: u32) -> u64 {
    tag(hash) | (u64::from(index) + 1)
}

impl Table {
    /// A table of `capacity` records in this process's own memory.
    pub fn new(capacity: u32, hash_key: HashKey) -> Result<Table, UnitsError> {
        let layout = Layout::new(capacity, false);
        Ok(Table::of(Units::anonymous(layout.len)?, &layout, hash_key))
    }

    /// A table of `capacity` records in a file that has this name. What is there already is removed after `look` has seen it.
    pub fn in_file(
        capacity: u32,
        name: &str,
        hash_key: HashKey,
        here: Here,
        look: impl FnMut(&Path, Option<&Left>),
    ) -> Result<Table, UnitsError> {
        let layout = Layout::new(capacity, true);
        let table = Table::of(Units::file(layout.len, name, look)?, &layout, hash_key);
        // What identifies it comes last: without it, nobody takes it for a table.
        for (at, word) in layout::header(&layout, hash_key, here).into_iter().enumerate().rev() {
            table.head().word(at).store(word, Release);
        }
        Ok(table)
    }

    fn of(units: Units, layout: &Layout, hash_key: HashKey) -> Table {
        let Layout { capacity, buckets, mask, names, slots, .. } = *layout;
        Table { units, hash_key, capacity, buckets, mask, names, slots }
    }

    /// Says who is in a slot from now on: what is not said, nobody can tell who finds the file. Sessions are only to be made when it is said.
    pub fn name(&self, slot: u32, name: Option<&Name>) {
        if slot < self.slots
            && let Some(unit) = self.units.get(self.names + slot as usize)
        {
            names::write(unit, name);
        }
    }

    fn head(&self) -> Record<'_> {
        Record::of(self.units.first().unwrap_or_else(|| zero()))
    }

    /// What the table is made of.
    pub fn units(&self) -> &Units {
        &self.units
    }

    /// Most sessions it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Sessions in it now, those that timed out and were not swept yet included.
    pub fn used(&self) -> u32 {
        self.head().word(HEAD_USED).load(Relaxed) as u32
    }

    /// Where to look for a flow.
    #[inline(always)]
    pub fn hash(&self, key: &Key) -> u64 {
        self.hash_key.hash(key)
    }

    #[inline(always)]
    fn bucket(&self, at: u64) -> &[AtomicU64] {
        let at = at & self.mask;
        let Some(Unit(words)) = self.units.get(self.buckets + (at / 2) as usize) else { return &[] };
        let (first, second) = words.split_at(HALF_UNIT);
        let half = if at.is_multiple_of(2) { first } else { second };
        half.get(..BUCKET_WORDS).unwrap_or(half)
    }

    #[inline(always)]
    fn first(hash: u64) -> u64 {
        hash >> 32
    }

    /// Never the first: it differs in the lowest bit, and there are two buckets at least.
    #[inline(always)]
    fn second(hash: u64) -> u64 {
        (hash >> 32) ^ ((hash & 0xffff_ffff).wrapping_mul(0x5bd1_e995) | 1)
    }

    /// A record by its index.
    #[inline(always)]
    pub fn record(&self, index: u32) -> Record<'_> {
        Record::of(self.units.get(1 + index as usize).unwrap_or_else(|| zero()))
    }

    /// Fetches the bucket of a flow.
    #[inline(always)]
    pub fn prefetch_bucket(&self, hash: u64) {
        if let Some(word) = self.bucket(Self::first(hash)).first() {
            prefetch(word);
        }
    }

    /// The record that may be the flow's, and fetches it.
    #[inline(always)]
    pub fn candidate(&self, hash: u64) -> Option<u32> {
        let tag = tag(hash);
        for word in self.bucket(Self::first(hash)).iter().skip(1) {
            let entry = word.load(Relaxed);
            if entry & !0xffff_ffff == tag && entry as u32 != 0 {
                let index = (entry as u32).wrapping_sub(1);
                let record = self.record(index);
                prefetch(record.word(0));
                prefetch(record.word(8));
                return Some(index);
            }
        }
        None
    }

    /// Whether this record is the flow's, in either orientation.
    #[inline(always)]
    pub fn check(&self, index: u32, key: &Key) -> Option<Found> {
        let record = self.record(index);
        let (words, admission) = record.words().or_else(|| record.words())?;
        Some(Found { index, direction: key.direction_of(&words)?, admission })
    }

    /// The flow's record, wherever it is.
    pub fn lookup(&self, hash: u64, key: &Key) -> Option<Found> {
        self.find(hash, |found| found == key || *found == key.reversed()).and_then(|index| self.check(index, key))
    }

    /// A record among those of a hash.
    pub fn find(&self, hash: u64, mut wanted: impl FnMut(&Key) -> bool) -> Option<u32> {
        self.candidates(hash).find(|index| self.record(*index).read().is_some_and(|(found, _)| wanted(&found)))
    }

    /// The sessions of a hash, those included that have ended and were not swept yet.
    pub fn of_hash(&self, hash: u64) -> impl Iterator<Item = (u32, Key, Admission)> {
        self.candidates(hash).filter_map(|index| self.record(index).read().map(|(key, admission)| (index, key, admission)))
    }

    /// Records that may be those of a hash.
    fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        let first = self.bucket(Self::first(hash));
        let overflowed = first.first().is_some_and(|word| word.load(Acquire) >= OVERFLOW);
        let second = if overflowed { self.bucket(Self::second(hash)) } else { &[] };
        first.iter().skip(1).chain(second.iter().skip(1)).filter_map(move |word| {
            let entry = word.load(Acquire);
            (entry as u32).checked_sub(1).filter(|_| entry & !0xffff_ffff == tag(hash))
        })
    }

    /// Whether a flow has a record, or may have: one that its second bucket's lock guards can be in change while the first is held.
    fn may_exist(&self, hash: u64, key: &Key) -> bool {
        self.candidates(hash).any(|index| match self.record(index).line1() {
            Line1::Live(words, _) => key.direction_of(&words).is_some(),
            Line1::Free => false,
            Line1::Changing => true,
        })
    }

    fn try_lock(&self, at: u64) -> Option<Locked<'_>> {
        let words = self.bucket(at);
        let word = words.first()?;
        // Made only by whoever got the lock: its drop releases it.
        (word.load(Relaxed) & LOCK == 0 && word.fetch_or(LOCK, Acquire) & LOCK == 0).then(|| Locked { words })
    }

    fn lock(&self, at: u64) -> Option<Locked<'_>> {
        for _ in 0..PATIENCE {
            if let Some(locked) = self.try_lock(at) {
                return Some(locked);
            }
            spin_loop();
        }
        None
    }

    /// Adds a session. `may_evict` says of another one in the same buckets whether it may go; `gone` is told if it did.
    pub fn insert<'a>(
        &'a self,
        hash: u64,
        key: &Key,
        admission: Admission,
        life: &Life,
        mut may_evict: impl FnMut(&Record<'_>) -> bool,
        mut gone: impl FnMut(u32, &Key, &Admission),
    ) -> Result<u32, NotInserted> {
        let first = self.lock(Self::first(hash)).ok_or(NotInserted::Full)?;
        // A second look, under the lock: two workers may have had the same first frame.
        if self.may_exist(hash, key) {
            return Err(NotInserted::Exists);
        }
        let free = |locked: &Locked<'a>| locked.words.iter().skip(1).find(|word| word.load(Relaxed) == 0);
        let mut second = None;
        let mut place = free(&first);
        if place.is_none() {
            second = self.lock(Self::second(hash));
            place = second.as_ref().and_then(free);
        }
        if place.is_none() {
            place = self.evict(&first, &mut may_evict, &mut gone);
            if place.is_some() {
                second = None;
            }
        }
        if place.is_none() {
            place = second.as_ref().and_then(|second| self.evict(second, &mut may_evict, &mut gone));
        }
        let place = place.ok_or(NotInserted::Full)?;
        let index = match self.allocate() {
            Some(index) => index,
            None => {
                // No record is free: one of these buckets' sessions may be worth less than a new one.
                let own = [Some(&first), second.as_ref()].into_iter().flatten();
                let mut freed = own.filter_map(|locked| self.evict(locked, &mut may_evict, &mut gone)).next().is_some();
                for at in (1..=NEIGHBOURS).map(|ahead| Self::first(hash).wrapping_add(ahead)) {
                    if freed {
                        break;
                    }
                    freed = self.try_lock(at).is_some_and(|near| self.evict(&near, &mut may_evict, &mut gone).is_some());
                }
                freed.then(|| self.allocate()).flatten().ok_or(NotInserted::Full)?
            }
        };
        self.record(index).write(key, admission, life);
        if !first.words.as_ptr_range().contains(&std::ptr::from_ref(place))
            && let Some(word) = first.words.first()
        {
            word.fetch_add(OVERFLOW, AcqRel);
        }
        // Before anybody can find it and take it out again: the count is never below zero.
        self.head().word(HEAD_USED).fetch_add(1, Relaxed);
        place.store(entry(hash, index), Release);
        Ok(index)
    }

    /// Whether there would be room for another session, as far as can be seen without taking it.
    pub fn has_room(&self, hash: u64, may_evict: impl Fn(&Record<'_>) -> bool) -> bool {
        let sessions = |at: u64| self.bucket(at).iter().skip(1).map(|word| (word.load(Relaxed) as u32).checked_sub(1));
        let may_go = |at: u64| sessions(at).flatten().any(|index| may_evict(&self.record(index)));
        let own = [Self::first(hash), Self::second(hash)];
        let place = own.iter().any(|at| sessions(*at).any(|index| index.is_none()) || may_go(*at));
        let near = || (1..=NEIGHBOURS).map(|ahead| Self::first(hash).wrapping_add(ahead));
        place && (self.used() < self.capacity || own.into_iter().chain(near()).any(may_go))
    }

    /// Takes out one of the sessions near a hash that may go; `gone` is told. Returns whether there was one.
    pub fn make_room(
        &self,
        hash: u64,
        mut may_evict: impl FnMut(&Record<'_>) -> bool,
        mut gone: impl FnMut(u32, &Key, &Admission),
    ) -> bool {
        self.search(hash, &mut may_evict, |at, may_evict| {
            self.try_lock(at).is_some_and(|locked| self.evict(&locked, may_evict, &mut gone).is_some())
        })
    }

    /// Whether [`Self::make_room`] would make some.
    pub fn could_make_room(&self, hash: u64, mut may_evict: impl FnMut(&Record<'_>) -> bool) -> bool {
        self.search(hash, &mut may_evict, |_, _| true)
    }

    /// The first bucket near a hash that has a session which may go, and which serves. It looks at so many at most, since whoever opens
    /// sessions makes it look.
    fn search<M: FnMut(&Record<'_>) -> bool>(
        &self,
        hash: u64,
        may_evict: &mut M,
        mut serves: impl FnMut(u64, &mut M) -> bool,
    ) -> bool {
        let mut left = LOOKED_AT;
        for at in (0..=self.mask.min(SEARCHED)).map(|ahead| Self::first(hash).wrapping_add(ahead)) {
            let mut found = false;
            for word in self.bucket(at).iter().skip(1) {
                let Some(index) = (word.load(Relaxed) as u32).checked_sub(1) else { continue };
                let Some(fewer) = left.checked_sub(1) else { return false };
                left = fewer;
                found |= may_evict(&self.record(index));
            }
            if found && serves(at, may_evict) {
                return true;
            }
        }
        false
    }

    /// Takes out a session of a locked bucket that may go.
    fn evict<'a>(
        &self,
        locked: &Locked<'a>,
        may_evict: &mut impl FnMut(&Record<'_>) -> bool,
        gone: &mut impl FnMut(u32, &Key, &Admission),
    ) -> Option<&'a AtomicU64> {
        for word in locked.words.iter().skip(1) {
            let Some(index) = (word.load(Relaxed) as u32).checked_sub(1) else { continue };
            let record = self.record(index);
            if may_evict(&record)
                && let Some((key, admission)) = record.read()
            {
                self.take_out(locked, word, index, &key);
                gone(index, &key, &admission);
                return Some(word);
            }
        }
        None
    }

    fn take_out(&self, locked: &Locked<'_>, word: &AtomicU64, index: u32, key: &Key) {
        word.store(0, Release);
        self.record(index).erase();
        let home = self.bucket(Self::first(self.hash(key)));
        // It was in its second bucket.
        if !std::ptr::eq(home, locked.words)
            && let Some(word) = home.first()
        {
            word.fetch_sub(OVERFLOW, AcqRel);
        }
        // Before its record can be another one's: the count is never above the capacity.
        self.head().word(HEAD_USED).fetch_sub(1, Relaxed);
        self.free(index);
    }

    /// Writes what admitted a session anew, if the record still is this flow's. Returns whether it did.
    pub fn readmit(&self, index: u32, key: &Key, admission: Admission) -> bool {
        self.with(index, key, |_, _| self.record(index).readmit(key, admission))
    }

    /// Notes that the responder owns its address, if the record still is this flow's and nobody has decided it again since it was admitted
    /// by `stamp`: a newer decision may be that the address is not the responder's. What admitted it stays. Returns whether it did.
    pub fn answers(&self, index: u32, key: &Key, stamp: u32) -> bool {
        let mut noted = false;
        self.with(index, key, |_, _| {
            let record = self.record(index);
            noted = record.read().is_some_and(|(_, admission)| admission.stamp == stamp);
            if noted {
                record.set_answers();
            }
        });
        noted
    }

    /// Notes that policy took back a TCP connection, if the record still is this flow's. Returns whether it did.
    pub fn cut(&self, index: u32, key: &Key, now: u32) -> bool {
        self.with(index, key, |_, _| {
            let record = self.record(index);
            record.store_seen(now, State::Tcp(TcpState::Cut), &record.track());
        })
    }

    /// Takes out this record if it still is this flow's. Returns whether it did.
    pub fn remove(&self, index: u32, key: &Key) -> bool {
        self.with(index, key, |locked, word| self.take_out(locked, word, index, key))
    }

    /// Does something with a record that is in a bucket, under that bucket's lock.
    fn with(&self, index: u32, key: &Key, act: impl FnOnce(&Locked<'_>, &AtomicU64)) -> bool {
        let hash = self.hash(key);
        for at in [Self::first(hash), Self::second(hash)] {
            let Some(locked) = self.lock(at) else { continue };
            let wanted = entry(hash, index);
            if let Some(word) = locked.words.iter().skip(1).find(|word| word.load(Relaxed) == wanted)
                && self.record(index).read().is_some_and(|(found, _)| found == *key)
            {
                act(&locked, word);
                return true;
            }
        }
        false
    }

    /// Every session at some moment of the call.
    pub fn for_each(&self, mut visit: impl FnMut(u32, Record<'_>, Key, Admission)) {
        for at in 0..=self.mask {
            self.visit_bucket(at, &mut visit);
        }
    }

    /// The sessions of a part of the buckets: part `n` of `parts`.
    pub fn for_part(&self, n: u64, parts: u64, mut visit: impl FnMut(u32, Record<'_>, Key, Admission)) {
        let size = (self.mask + 1).div_ceil(parts);
        for at in n * size..((n + 1) * size).min(self.mask + 1) {
            self.visit_bucket(at, &mut visit);
        }
    }

    fn visit_bucket(&self, at: u64, visit: &mut impl FnMut(u32, Record<'_>, Key, Admission)) {
        for word in self.bucket(at).iter().skip(1) {
            let Some(index) = (word.load(Acquire) as u32).checked_sub(1) else { continue };
            let record = self.record(index);
            if let Some((key, admission)) = record.read_surely() {
                visit(index, record, key, admission);
            }
        }
    }

    /// A record nobody uses.
    fn allocate(&self) -> Option<u32> {
        let free = self.head().word_of(HEAD_FREE);
        let mut top = free.load(Acquire);
        while let Some(index) = (top as u32).checked_sub(1) {
            // May be read while another one takes it: then the count has changed and what was read is not used.
            let next = self.record(index).next_free();
            let new = (top & !0xffff_ffff).wrapping_add(1 << 32) | u64::from(next);
            match free.compare_exchange_weak(top, new, AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
        let fresh = self.head().word_of(HEAD_FRESH);
        let taken = fresh.fetch_update(AcqRel, Acquire, |n| (n < u64::from(self.capacity)).then_some(n + 1));
        taken.ok().map(|index| index as u32)
    }

    fn free(&self, index: u32) {
        let free = self.head().word_of(HEAD_FREE);
        let mut top = free.load(Acquire);
        loop {
            self.record(index).set_next_free(top as u32);
            fence(Release);
            let new = (top & !0xffff_ffff).wrapping_add(1 << 32) | (u64::from(index) + 1);
            match free.compare_exchange_weak(top, new, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}
