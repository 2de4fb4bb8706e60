//! Repair of a table whose process died, before any thread reads it.
//!
//! Records are the truth. From them all else is made anew: buckets with their locks, counts and
//! entries (unless they are in order, as where another program goes on), the list of free records,
//! the number of sessions, and, by the caller, the counts of vnics and networks. The number of
//! records that were ever used stays. Records that were in change, that cannot be, or whose vnics
//! left, are freed. So are connections in whose handshake a worker died while it wrote their marks;
//! of others the lock is taken away.
//!
//! A repair may end at any store, and the next process repairs again. The mark in the header stands
//! from the first store to the last. In between:
//! 1. buckets are emptied, unless they are in order ([`survey`]);
//! 2. each session that can go on gets the stamp [`FOUND_GOOD`] in one store, all others go: until
//!    all are done, names are as they were, and tell earlier vnics' records by their stamps;
//! 3. all names begin with the first version;
//! 4. sessions get the first version as their stamp. Names are there before: no session is older
//!    than its vnic.

use std::sync::atomic::Ordering::Relaxed;

use crate::session::{
    former::{FormerSessions, survivor},
    key::Key,
    layout::{HEAD_FREE, HEAD_FRESH, HEAD_HASH, HEAD_USED, REPAIRING},
    names::{self, Name},
    pen::{Died, Pen},
    record::{FIRST_STAMP, FOUND_GOOD, Record},
    state::Timeouts,
    table::{Locked, OVERFLOW, Table, entry},
};
use survey::Survey;

/// Records whose buckets are fetched ahead: memory takes as long as some of them.
const AHEAD: u32 = 8;

impl Table {
    /// Repairs an adopted table. Returns its sessions: each is decided again at its next frame.
    pub(crate) fn repair(&self, timeouts: &Timeouts, now: u32) -> FormerSessions {
        // This pen's process does not die.
        self.repair_with(&mut Pen::new(), timeouts, now).unwrap_or_default()
    }

    /// Repairs as [`Self::repair`], with a pen whose process may die.
    pub(in crate::session) fn repair_with(
        &self,
        pen: &mut Pen,
        timeouts: &Timeouts,
        now: u32,
    ) -> Result<FormerSessions, Died> {
        let head = self.head();
        let mark = head.word_of(HEAD_HASH);
        let again = mark.load(Relaxed) & REPAIRING != 0;
        // All of it is touched: thousands of page faults would take a third of the time.
        let fresh = head.word(HEAD_FRESH).load(Relaxed).min(self.capacity.into()) as usize;
        self.units.map_ahead(0..1 + fresh);
        self.units.map_ahead(self.buckets..self.names);
        // A repair that died may have left no entry of a session that is there.
        let survey = if again { None } else { Survey::of(self, fresh as u32) };
        pen.write(mark, mark.load(Relaxed) | REPAIRING)?;
        if survey.is_none() {
            for at in 0..=self.mask {
                self.bucket(at).iter().try_for_each(|word| pen.write(word, 0))?;
            }
        }
        let owners = self.owners();
        let (mut found, mut used, mut free) = (FormerSessions::default(), 0, 0);
        for (index, record) in self.ever_used() {
            self.fetch_ahead(index);
            let survivor = survivor(&record, &owners, again, timeouts, now);
            let survivor = match &survey {
                Some(_) => survivor,
                None => {
                    self.fetch_bucket_of(index + AHEAD);
                    survivor.filter(|survivor| self.put_back(index, &survivor.key))
                }
            };
            match survivor {
                Some(survivor) => {
                    record.let_go(pen)?;
                    record.restamp(FOUND_GOOD, pen)?;
                    found.count(survivor.line.state, survivor.line.seen, now);
                    used += 1;
                }
                None => {
                    if let (Some(survey), Some((words, _))) = (&survey, record.words()) {
                        survey.take_out(self, index, &Key::from_words(words), pen)?;
                    }
                    found.unusable += u64::from(!record.is_free());
                    record.clear(free, pen)?;
                    free = index + 1;
                }
            }
        }
        let top = head.word_of(HEAD_FREE);
        pen.write(top, top.load(Relaxed) & !0xffff_ffff | u64::from(free))?;
        pen.write(head.word_of(HEAD_USED), used)?;
        for (slot, name) in owners.iter().enumerate() {
            if let Some(unit) = self.units.get(self.names + slot) {
                names::begin_again(unit, name.as_ref(), pen)?;
            }
        }
        for (index, record) in self.ever_used() {
            self.fetch_ahead(index);
            if record.words().is_some() {
                record.restamp(FIRST_STAMP, pen)?;
            }
        }
        pen.write(mark, mark.load(Relaxed) & !REPAIRING)?;
        Ok(found)
    }

    /// Fetches the bucket in which a record will be put.
    fn fetch_bucket_of(&self, index: u32) {
        if index >= self.capacity {
            return;
        }
        if let Some((words, _)) = self.record(index).words() {
            self.prefetch_bucket(self.hash(&Key::from_words(words)));
        }
    }

    /// Returns the vnics by slot, as they are named.
    pub(crate) fn owners(&self) -> Vec<Option<Name>> {
        let units = self.units.iter().skip(self.names).take(self.slots as usize);
        units.map(names::read_unit).collect()
    }

    fn ever_used(&self) -> impl Iterator<Item = (u32, Record<'_>)> {
        let fresh = self.head().word(HEAD_FRESH).load(Relaxed).min(self.capacity.into());
        (0..fresh as u32).map(|index| (index, self.record(index)))
    }

    /// Puts a record into a bucket of its flow. Returns whether it did: not if there is no room, or
    /// if the flow has a record already.
    fn put_back(&self, index: u32, key: &Key) -> bool {
        let hash = self.hash(key);
        let Some(first) = self.lock(Self::first(hash)) else { return false };
        if self.may_add(hash, key).is_err() {
            return false;
        }
        let mut at_home = true;
        let mut second = None;
        let mut place = first.free();
        if place.is_none() {
            at_home = false;
            second = self.lock(Self::second(hash));
            place = second.as_ref().and_then(Locked::free);
        }
        let place = place.or_else(|| {
            let place = self.make_way([Some(&first), second.as_ref()])?;
            at_home = first.words.as_ptr_range().contains(&std::ptr::from_ref(place));
            Some(place)
        });
        let Some(place) = place else { return false };
        if !at_home && let Some(word) = first.words.first() {
            word.fetch_add(OVERFLOW, Relaxed);
        }
        place.store(entry(hash, index), Relaxed);
        true
    }
}

mod survey;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
