//! The table of sessions: bounded, shared by all workers, in memory that may outlive the process.
//!
//! A record is one unit of 128 bytes. Its first line has the key and the admission; established
//! traffic only reads it. The second has all that changes: last frame, counters, TCP state. Records
//! never move and are never freed. So a reader needs no protection except the sequence number in
//! the first word: odd while the line changes. Buckets point to records; a writer holds the
//! bucket's lock. Writers of the second line take a lock in it ([`crate::session::held`]).
//!
//! A flow has two buckets; the second is used, and looked at, only if the first overflowed. If both
//! are full, other flows make way ([`relocate`]), and others for those: in a table that is 95 %
//! full one flow in a million finds no room.

#[cfg(test)]
mod audit;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
mod relocate;
mod repair;
#[cfg(all(test, not(feature = "loom")))]
mod stress;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
#[cfg(all(any(test, feature = "harness"), not(feature = "loom")))]
mod whole;

use std::{
    path::Path,
    sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use butterfly_point::{Point, pass};

use crate::session::{
    hash::{HashKey, Hasher},
    key::Key,
    layout::{self, HEAD_FREE, HEAD_FRESH, HEAD_HASH_KEY, HEAD_USED, HEAD_VERSION, Here, Layout},
    memory::{
        AtomicU64, BUCKET_WORDS, Fate, LOOKS_AGAIN, Left, PATIENCE, Unit, Units, UnitsError, fence,
        prefetch, spin_loop, zero,
    },
    names::{self, Name},
    record::{Admitted, Life, Line1, Record},
};

/// Two buckets share a unit.
const HALF_UNIT: usize = 8;
/// In a bucket's first word: the lock, the number of its flows that are in their second bucket, and
/// the number of moves of its flows between their buckets.
const LOCK: u64 = 1;
const OVERFLOW: u64 = 1 << 8;
const MOVES: u64 = 1 << 32;

/// Most sessions of the same addresses, protocol, ports and VLAN in one network, between different
/// vnics. All have one hash, so more would fill the buckets of it.
pub(crate) const MAX_COPIES: usize = 4;

/// Other buckets that are searched for a session that may be evicted.
const NEIGHBOURS: u64 = 16;

/// Buckets that are searched for a session of a vnic or network with too many, and sessions in
/// them.
const SEARCHED: u64 = 256;
const LOOKED_AT: u32 = 64;

/// Records that are fetched ahead where all are walked.
const RECORDS_AHEAD: u32 = 16;
/// Buckets by which the records of a bucket are fetched ahead when all sessions are walked. The
/// bucket itself is fetched twice as far ahead.
const BUCKETS_AHEAD: u64 = 8;

/// Reason for which a session was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotInserted {
    /// No room, and nothing that may be evicted.
    Full,
    /// Another thread made it meanwhile, or is changing it at this moment.
    Exists,
    /// The most sessions of the same addresses and ports are there already, between other vnics.
    Copies,
}

/// A record that matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub index: u32,
    /// 0 for a frame of the opener; 1 for one of the other end.
    pub direction: usize,
    pub admission: Admitted,
    /// Index of the record in the low half, the session's number in the highest bits: one word, as
    /// the packet path compares it for each frame.
    pub session: u64,
}

impl Found {
    /// Returns the session's number in its record: see [`Record::tenant`].
    #[inline(always)]
    pub fn tenant(&self) -> u16 {
        (self.session >> 48) as u16
    }
}

/// The table.
pub(crate) struct Table {
    units: Units,
    hasher: Hasher,
    capacity: u32,
    /// Unit of the first bucket, and number of buckets minus one.
    buckets: usize,
    mask: u64,
    /// Unit of the first name, and number of names. A table that goes with the process has none.
    names: usize,
    slots: u32,
}

/// A bucket that is locked.
struct Locked<'a> {
    /// Its number.
    at: u64,
    words: &'a [AtomicU64],
}

impl<'a> Locked<'a> {
    /// Returns a free place.
    fn free(&self) -> Option<&'a AtomicU64> {
        self.words.iter().skip(1).find(|word| word.load(Relaxed) == 0)
    }
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

/// Returns the number of a bucket's flows that are in their second one, by its first word.
fn overflow(word: u64) -> u64 {
    word % MOVES / OVERFLOW
}

fn entry(hash: u64, index: u32) -> u64 {
    tag(hash) | (u64::from(index) + 1)
}

impl Table {
    /// Makes a table of `capacity` records in this process's own memory.
    pub fn new(capacity: u32, hash_key: HashKey) -> Result<Table, UnitsError> {
        let layout = Layout::new(capacity, false);
        Ok(Table::of(Units::anonymous(layout.len)?, &layout, Hasher::new(hash_key)))
    }

    /// Makes a table in this process's own memory, with the same hash as another one.
    pub fn like(other: &Table, capacity: u32) -> Result<Table, UnitsError> {
        let layout = Layout::new(capacity, false);
        Ok(Table::of(Units::anonymous(layout.len)?, &layout, other.hasher))
    }

    /// Makes a table of `capacity` records in a file with this name. `look` says what becomes of an
    /// older file: one that is adopted must have this size, and is repaired by the caller.
    pub fn in_file(
        capacity: u32,
        name: &str,
        hash_key: HashKey,
        here: Here,
        look: impl FnMut(&Path, Option<&Left>) -> Fate,
    ) -> Result<Table, UnitsError> {
        let layout = Layout::new(capacity, true);
        let mut hasher = Hasher::new(hash_key);
        let table = Table::of(Units::file(layout.len, name, look)?, &layout, hasher);
        if table.units.adopted() {
            let key = |at: usize| table.head().word(HEAD_HASH_KEY + at).load(Relaxed);
            hasher = Hasher::new(HashKey(std::array::from_fn(key)));
            return Ok(Table { hasher, ..table });
        }
        // The identifying word is written last: without it, the file does not count as a table.
        for (at, word) in layout::header(&layout, &hasher, here).into_iter().enumerate().rev() {
            table.head().word(at).store(word, Release);
        }
        Ok(table)
    }

    /// Gives the table the version of the layout in force.
    pub fn follow_layout(&self) {
        let version = layout::version(butterfly_layout::in_force());
        self.head().word(HEAD_VERSION).store(version, Release);
    }

    fn of(units: Units, layout: &Layout, hasher: Hasher) -> Table {
        let Layout { capacity, buckets, mask, names, slots, .. } = *layout;
        Table { units, hasher, capacity, buckets, mask, names, slots }
    }

    /// Names the vnic in a slot, for a later process that finds the file. Sessions of the slot are
    /// only made after that.
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

    /// Returns the table's memory.
    pub fn units(&self) -> &Units {
        &self.units
    }

    /// Returns the most sessions that it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of sessions in it, including those that timed out and were not swept yet.
    pub fn used(&self) -> u32 {
        self.head().word(HEAD_USED).load(Relaxed) as u32
    }

    /// Returns the hash of a flow.
    pub fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash(key)
    }

    /// Returns the hashes of many flows, and fetches the bucket of each.
    #[inline(always)]
    pub fn hash_each<T>(
        &self,
        flows: impl Iterator<Item = T>,
        key: impl Fn(&T) -> &Key,
        mut take: impl FnMut(T, u64),
    ) {
        self.hasher.hash_each(flows, key, |flow, hash| {
            self.prefetch_bucket(hash);
            take(flow, hash);
        });
    }

    #[inline(always)]
    fn bucket(&self, at: u64) -> &[AtomicU64] {
        let at = at & self.mask;
        let Some(Unit(words)) = self.units.get(self.buckets + (at / 2) as usize) else {
            return &[];
        };
        let (first, second) = words.split_at(HALF_UNIT);
        let half = if at.is_multiple_of(2) { first } else { second };
        half.get(..BUCKET_WORDS).unwrap_or(half)
    }

    #[inline(always)]
    fn first(hash: u64) -> u64 {
        hash >> 32
    }

    /// Returns the second bucket. It is never the first: they differ in the lowest bit, and there
    /// are two buckets at least.
    #[inline(always)]
    fn second(hash: u64) -> u64 {
        (hash >> 32) ^ ((hash & 0xffff_ffff).wrapping_mul(0x5bd1_e995) | 1)
    }

    /// Returns a record by its index.
    #[inline(always)]
    pub fn record(&self, index: u32) -> Record<'_> {
        Record::of(self.units.get(1 + index as usize).unwrap_or_else(|| zero()))
    }

    /// Fetches a record that is looked at soon, while they are walked in their order. The processor
    /// fetches ahead by itself, but not beyond a page.
    fn fetch_ahead(&self, index: u32) {
        let record = self.record((index + RECORDS_AHEAD).min(self.capacity - 1));
        prefetch(record.word(0));
        prefetch(record.word(8));
    }

    /// Fetches the bucket of a flow.
    #[inline(always)]
    fn prefetch_bucket(&self, hash: u64) {
        if let Some(word) = self.bucket(Self::first(hash)).first() {
            prefetch(word);
        }
    }

    /// Returns the record that may be the flow's, and fetches it.
    #[inline(always)]
    pub fn candidate(&self, hash: u64) -> Option<u32> {
        let first = entry(hash, 0);
        for word in self.bucket(Self::first(hash)).iter().skip(1) {
            // An entry is a tag, and behind it an index plus one.
            let above = word.load(Relaxed).wrapping_sub(first);
            if above < u64::from(u32::MAX) {
                let index = above as u32;
                let record = self.record(index);
                prefetch(record.word(0));
                prefetch(record.word(8));
                return Some(index);
            }
        }
        None
    }

    /// Returns whether this record is the flow's, in either orientation.
    #[inline(always)]
    pub fn check(&self, index: u32, key: &Key) -> Option<Found> {
        let record = self.record(index);
        let (words, admission, number) = record.live().or_else(|| record.live())?;
        let session = number | u64::from(index);
        Some(Found { index, direction: key.direction_of(&words)?, admission, session })
    }

    /// Returns the flow's record, in either bucket.
    pub fn lookup(&self, hash: u64, key: &Key) -> Option<Found> {
        self.find(hash, |found| found == key || *found == key.reversed())
            .and_then(|index| self.check(index, key))
    }

    /// Returns a record among those of a hash.
    pub fn find(&self, hash: u64, wanted: impl Fn(&Key) -> bool) -> Option<u32> {
        self.find_map(hash, |index, found, _| wanted(&found).then_some(index))
    }

    /// Returns the first result of `make` for the sessions of a hash, including those that have
    /// ended and were not swept yet. A session that moves meanwhile is not missed, but may be seen
    /// twice.
    pub fn find_map<T>(
        &self,
        hash: u64,
        mut make: impl FnMut(u32, Key, Admitted) -> Option<T>,
    ) -> Option<T> {
        for _ in 0..LOOKS_AGAIN {
            let before = self.moves(hash);
            let mut all = self.candidates(hash);
            let found = all.find_map(|index| {
                let (key, admission) = self.record(index).read()?;
                make(index, key, admission)
            });
            fence(Acquire);
            if found.is_some() || self.moves(hash) == before {
                return found;
            }
        }
        None
    }

    /// Returns the number of moves of flows of this home. A search that finds nothing is repeated
    /// if one moved.
    fn moves(&self, hash: u64) -> u64 {
        self.bucket(Self::first(hash)).first().map_or(0, |word| word.load(Acquire) / MOVES)
    }

    /// Returns records that may be those of a hash. Asks whether the first bucket overflowed only
    /// after searching it: a flow that left it meanwhile was counted before it left.
    fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        let first = self.bucket(Self::first(hash));
        let second = move || match first.first() {
            Some(word) if overflow(word.load(Acquire)) > 0 => self.bucket(Self::second(hash)),
            _ => &[],
        };
        let words = first
            .iter()
            .skip(1)
            .chain(std::iter::once_with(second).flat_map(|bucket| bucket.iter().skip(1)));
        words.filter_map(move |word| {
            let entry = word.load(Acquire);
            (entry as u32).checked_sub(1).filter(|_| entry & !0xffff_ffff == tag(hash))
        })
    }

    /// Returns whether a flow may have another record. The caller holds the first bucket's lock: no
    /// flow of this hash moves then. A record that the second bucket's lock guards can be in
    /// change.
    fn may_add(&self, hash: u64, key: &Key) -> Result<(), NotInserted> {
        let mut copies = 0;
        for index in self.candidates(hash) {
            match self.record(index).line1() {
                Line1::Live(words, _) if key.direction_of(&words).is_some() => {
                    return Err(NotInserted::Exists);
                }
                Line1::Live(words, _) => {
                    copies += usize::from(key.is_copy_of(&Key::from_words(words)))
                }
                Line1::Free => {}
                Line1::Changing => return Err(NotInserted::Exists),
            }
        }
        if copies < MAX_COPIES { Ok(()) } else { Err(NotInserted::Copies) }
    }

    fn try_lock(&self, at: u64) -> Option<Locked<'_>> {
        let at = at & self.mask;
        let words = self.bucket(at);
        let word = words.first()?;
        // Made only by the thread that got the lock: its drop releases it.
        (word.load(Relaxed) & LOCK == 0 && word.fetch_or(LOCK, Acquire) & LOCK == 0)
            .then(|| Locked { at, words })
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

    /// Adds a session. `may_evict` says whether another one in the same buckets may go; `gone` is
    /// told if it did.
    pub fn insert(
        &self,
        hash: u64,
        key: &Key,
        admission: Admitted,
        life: &Life,
        mut may_evict: impl FnMut(&Record<'_>) -> bool,
        mut gone: impl FnMut(u32, &Key, &Admitted),
    ) -> Result<u32, NotInserted> {
        let first = self.lock(Self::first(hash)).ok_or(NotInserted::Full)?;
        // A second look, under the lock: two workers may have had the same first frame.
        self.may_add(hash, key)?;
        let mut second = None;
        let mut place = first.free();
        if place.is_none() {
            second = self.lock(Self::second(hash));
            place = second.as_ref().and_then(Locked::free);
        }
        if place.is_none() && self.used() < self.capacity {
            place = self.make_way([Some(&first), second.as_ref()]);
        }
        if place.is_none() {
            place = self.evict(&first, &mut may_evict, &mut gone);
            if place.is_some() {
                second = None;
            }
        }
        if place.is_none() {
            place =
                second.as_ref().and_then(|second| self.evict(second, &mut may_evict, &mut gone));
        }
        let place = place.ok_or(NotInserted::Full)?;
        let index = match self.allocate() {
            Some(index) => index,
            None => {
                // No record is free: one of these buckets' sessions may be worth less than a new
                // one.
                let own = [Some(&first), second.as_ref()].into_iter().flatten();
                let mut freed = own
                    .filter_map(|locked| self.evict(locked, &mut may_evict, &mut gone))
                    .next()
                    .is_some();
                for at in (1..=NEIGHBOURS).map(|ahead| Self::first(hash).wrapping_add(ahead)) {
                    if freed {
                        break;
                    }
                    freed = self
                        .try_lock(at)
                        .is_some_and(|near| self.evict(&near, &mut may_evict, &mut gone).is_some());
                }
                freed.then(|| self.allocate()).flatten().ok_or(NotInserted::Full)?
            }
        };
        self.record(index).write(key, admission, life);
        pass(Point::SessionWritten);
        if !first.words.as_ptr_range().contains(&std::ptr::from_ref(place))
            && let Some(word) = first.words.first()
        {
            word.fetch_add(OVERFLOW, AcqRel);
        }
        // Counted before any thread can find it and remove it again: the count is never below zero.
        self.head().word(HEAD_USED).fetch_add(1, Relaxed);
        pass(Point::SessionCounted);
        place.store(entry(hash, index), Release);
        pass(Point::SessionLinked);
        Ok(index)
    }

    /// Returns whether there would be room for another session, as far as can be seen without
    /// locks.
    pub fn has_room(&self, hash: u64, may_evict: impl Fn(&Record<'_>) -> bool) -> bool {
        let sessions = |at: u64| {
            self.bucket(at).iter().skip(1).map(|word| (word.load(Relaxed) as u32).checked_sub(1))
        };
        let may_go = |at: u64| sessions(at).flatten().any(|index| may_evict(&self.record(index)));
        let own = [Self::first(hash), Self::second(hash)];
        let place = own.iter().any(|at| {
            sessions(*at).any(|index| index.is_none()) || may_go(*at) || self.could_make_way(*at)
        });
        let near = || (1..=NEIGHBOURS).map(|ahead| Self::first(hash).wrapping_add(ahead));
        place && (self.used() < self.capacity || own.into_iter().chain(near()).any(may_go))
    }

    /// Removes one of the sessions near a hash that may go, and tells `gone`. Returns whether there
    /// was one.
    pub fn make_room(
        &self,
        hash: u64,
        mut may_evict: impl FnMut(&Record<'_>) -> bool,
        mut gone: impl FnMut(u32, &Key, &Admitted),
    ) -> bool {
        self.search(hash, &mut may_evict, |at, may_evict| {
            self.try_lock(at)
                .is_some_and(|locked| self.evict(&locked, may_evict, &mut gone).is_some())
        })
    }

    /// Returns whether [`Self::make_room`] would remove a session.
    pub fn could_make_room(
        &self,
        hash: u64,
        mut may_evict: impl FnMut(&Record<'_>) -> bool,
    ) -> bool {
        self.search(hash, &mut may_evict, |_, _| true)
    }

    /// Returns the first usable bucket near a hash that has a session which may go. The search is
    /// bounded, since a guest that opens sessions causes it.
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

    /// Removes a session of a locked bucket that may go.
    fn evict<'a>(
        &self,
        locked: &Locked<'a>,
        may_evict: &mut impl FnMut(&Record<'_>) -> bool,
        gone: &mut impl FnMut(u32, &Key, &Admitted),
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
        pass(Point::SessionUnlinked);
        self.record(index).erase();
        let home = self.bucket(Self::first(self.hash(key)));
        // It was in its second bucket.
        if !std::ptr::eq(home, locked.words)
            && let Some(word) = home.first()
        {
            word.fetch_sub(OVERFLOW, AcqRel);
        }
        // Counted before its record can be another session's: the count is never above the
        // capacity.
        self.head().word(HEAD_USED).fetch_sub(1, Relaxed);
        self.free(index);
    }

    /// Replaces the admission of a session, if the record still is this flow's. Returns whether it
    /// did.
    pub fn readmit(&self, index: u32, key: &Key, admission: Admitted) -> bool {
        self.with(index, None, key, |_, _| self.record(index).readmit(key, admission))
    }

    /// Notes that the responder owns its address. Does so only if the record still is this flow's
    /// and has the admission of `stamp`: a newer decision may be that the address is not the
    /// responder's. The admission stays. Returns whether it did.
    pub fn answers(&self, index: u32, key: &Key, stamp: u32) -> bool {
        let mut noted = false;
        self.with(index, None, key, |_, _| {
            let record = self.record(index);
            noted = record.read().is_some_and(|(_, admission)| admission.stamp == stamp);
            if noted {
                record.set_answers();
            }
        });
        noted
    }

    /// Notes that a change of policy took back a TCP connection, if it is not over. Returns whether
    /// it did.
    pub fn cut(&self, found: &Found, key: &Key, now: u32) -> bool {
        let index = found.index;
        self.with(index, Some(found.tenant()), key, |_, _| self.record(index).cut(now))
    }

    /// Removes a session, if it is not over. A new one between the same ends, which another worker
    /// made in the same record, stays. Returns whether it did.
    pub fn end(&self, found: &Found, key: &Key) -> bool {
        let index = found.index;
        let take_out = |locked: &Locked<'_>, word: &AtomicU64| {
            self.take_out(locked, word, index, key);
        };
        self.with(index, Some(found.tenant()), key, take_out)
    }

    /// Removes this record if it still is this flow's. Returns whether it did.
    pub fn remove(&self, index: u32, key: &Key) -> bool {
        self.with(index, None, key, |locked, word| self.take_out(locked, word, index, key))
    }

    /// Calls `act` for a record in a bucket, under that bucket's lock, if it has this flow, and in
    /// the session of this number if one is given.
    fn with(
        &self,
        index: u32,
        tenant: Option<u16>,
        key: &Key,
        act: impl FnOnce(&Locked<'_>, &AtomicU64),
    ) -> bool {
        let hash = self.hash(key);
        let wanted = entry(hash, index);
        for _ in 0..LOOKS_AGAIN {
            let before = self.moves(hash);
            for at in [Self::first(hash), Self::second(hash)] {
                let Some(locked) = self.lock(at) else { continue };
                if let Some(word) =
                    locked.words.iter().skip(1).find(|word| word.load(Relaxed) == wanted)
                    && self.record(index).read().is_some_and(|(found, _)| found == *key)
                    && tenant.is_none_or(|tenant| self.record(index).tenant() == tenant)
                {
                    act(&locked, word);
                    return true;
                }
            }
            if self.moves(hash) == before {
                break;
            }
        }
        false
    }

    /// Visits every session at some moment of the call, once: by records, which do not move.
    pub fn for_each(&self, mut visit: impl FnMut(u32, Record<'_>, Key, Admitted)) {
        let fresh = self.head().word(HEAD_FRESH).load(Acquire).min(self.capacity.into());
        for index in 0..fresh as u32 {
            self.fetch_ahead(index);
            let record = self.record(index);
            if let Some((key, admission)) = record.read_surely() {
                visit(index, record, key, admission);
            }
        }
    }

    /// Visits the sessions of a part of the buckets: part `n` of `parts`. A session that moves
    /// meanwhile may be missed, or visited twice.
    pub fn for_part(
        &self,
        n: u64,
        parts: u64,
        mut visit: impl FnMut(u32, Record<'_>, Key, Admitted),
    ) {
        let size = (self.mask + 1).div_ceil(parts);
        for at in n * size..((n + 1) * size).min(self.mask + 1) {
            self.fetch_bucket_ahead(at);
            self.visit_bucket(at, &mut visit);
        }
    }

    /// Fetches what the walk over buckets comes to soon: a bucket, and the records of a nearer one,
    /// which is there by then.
    fn fetch_bucket_ahead(&self, at: u64) {
        if let Some(word) = self.bucket((at + 2 * BUCKETS_AHEAD) & self.mask).first() {
            prefetch(word);
        }
        for word in self.bucket((at + BUCKETS_AHEAD) & self.mask).iter().skip(1) {
            if let Some(index) = (word.load(Relaxed) as u32).checked_sub(1) {
                let record = self.record(index);
                prefetch(record.word(0));
                prefetch(record.word(8));
            }
        }
    }

    fn visit_bucket(&self, at: u64, visit: &mut impl FnMut(u32, Record<'_>, Key, Admitted)) {
        for word in self.bucket(at).iter().skip(1) {
            let Some(index) = (word.load(Acquire) as u32).checked_sub(1) else { continue };
            let record = self.record(index);
            if let Some((key, admission)) = record.read_surely() {
                visit(index, record, key, admission);
            }
        }
    }

    /// Takes a free record.
    fn allocate(&self) -> Option<u32> {
        let free = self.head().word_of(HEAD_FREE);
        let mut top = free.load(Acquire);
        while let Some(index) = (top as u32).checked_sub(1) {
            // Another thread may take it meanwhile. Then the count has changed and the value is not
            // used.
            let next = self.record(index).next_free();
            let new = (top & !0xffff_ffff).wrapping_add(1 << 32) | u64::from(next);
            match free.compare_exchange_weak(top, new, AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
        let fresh = self.head().word_of(HEAD_FRESH);
        let taken = fresh
            .fetch_update(AcqRel, Acquire, |n| (n < u64::from(self.capacity)).then_some(n + 1));
        let index = taken.ok()? as u32;
        self.record(index).begin();
        Some(index)
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
