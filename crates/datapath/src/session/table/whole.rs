//! Invariants of any table at rest, for tests and fuzzing; and tables as dead processes leave them.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use crate::session::{
    hash::{HashKey, Hasher},
    layout::{self, HEAD_FREE, HEAD_FRESH, HEAD_HASH, HEAD_USED, Here, Layout, REPAIRING},
    memory::{Units, UnitsError},
    table::{OVERFLOW, Table, entry, overflow},
};

impl Table {
    /// Makes a table with names in this process's own memory.
    pub(crate) fn with_names(capacity: u32, key: HashKey) -> Result<Table, UnitsError> {
        let layout = Layout::new(capacity, true);
        let hasher = Hasher::new(key);
        let table = Table::of(Units::anonymous(layout.len)?, &layout, hasher);
        let here = Here { boot: [1, 2], host: [3, 4] };
        table.set_words(layout::header(&layout, &hasher, here));
        Ok(table)
    }

    /// Returns all of its memory, each word as it was at some moment.
    pub(crate) fn words(&self) -> Vec<u64> {
        let words = self.units.iter().flat_map(|unit| &unit.0);
        words.map(|word| word.load(Relaxed)).collect()
    }

    /// Writes its memory from the first word on.
    pub(crate) fn set_words(&self, from: impl IntoIterator<Item = u64>) {
        let words = self.units.iter().flat_map(|unit| &unit.0);
        words.zip(from).for_each(|(word, value)| word.store(value, Relaxed));
    }

    /// Writes its memory, but for what a process checks before it adopts a table.
    pub(crate) fn set_left(&self, words: &[u64]) {
        let own = self.words();
        let fresh = |word: u64| word % (u64::from(self.capacity) + 1);
        let word = |at: usize, own: u64, left: u64| match at {
            HEAD_FREE | HEAD_USED => left,
            HEAD_FRESH => fresh(left),
            HEAD_HASH => own | left & REPAIRING,
            0..16 => own,
            _ => left,
        };
        let pairs = own.into_iter().zip(words).enumerate();
        self.set_words(pairs.map(|(at, (own, left))| word(at, own, *left)));
    }

    /// Checks that every record is free or in one bucket, where it is found, that no flow has two,
    /// and that all counts are right. Returns the number of sessions.
    pub(crate) fn whole(&self) -> Result<u64, String> {
        let (mut indices, mut flows) = (HashSet::new(), HashSet::new());
        let mut away = vec![0; self.mask as usize + 1];
        for at in 0..=self.mask {
            for word in self.bucket(at).iter().skip(1).map(|word| word.load(Relaxed)) {
                let Some(index) = (word as u32).checked_sub(1) else {
                    if word != 0 {
                        return Err(format!("bucket {at} has an entry without a record"));
                    }
                    continue;
                };
                let key = self.record(index).read().map(|(key, _)| key);
                let key =
                    key.ok_or_else(|| format!("record {index} is in a bucket, not in use"))?;
                if !indices.insert(index) {
                    return Err(format!("record {index} is in two places"));
                }
                if !flows.insert(key.words())
                    || (flows.contains(&key.reversed().words()) && key != key.reversed())
                {
                    return Err(format!("record {index} is of a flow that has another one"));
                }
                let hash = self.hash(&key);
                let (first, second) =
                    (Self::first(hash) & self.mask, Self::second(hash) & self.mask);
                if word != entry(hash, index) || ![first, second].contains(&at) {
                    return Err(format!("record {index} is in a wrong place"));
                }
                if self.lookup(hash, &key).is_none_or(|found| found.index != index) {
                    return Err(format!("record {index} is not found"));
                }
                if at != first
                    && let Some(away) = away.get_mut(first as usize)
                {
                    *away += 1;
                }
            }
        }
        for (at, away) in (0..).zip(away) {
            let word = self.bucket(at).first().map_or(0, |word| word.load(Relaxed));
            if overflow(word) != away || !word.is_multiple_of(OVERFLOW) {
                return Err(format!("bucket {at} begins with {word:#x}, and {away} are away"));
            }
        }
        let used = indices.len() as u64;
        if u64::from(self.used()) != used {
            return Err(format!("{} are counted, {used} are there", self.used()));
        }
        let word = |at| self.head().word(at).load(Relaxed);
        let mut next = word(HEAD_FREE) as u32;
        while let Some(index) = next.checked_sub(1) {
            if !self.record(index).is_free() || !indices.insert(index) {
                return Err(format!("record {index} is in the free list wrongly"));
            }
            next = self.record(index).next_free();
        }
        let fresh = word(HEAD_FRESH);
        if let Some(index) = indices.iter().find(|index| self.record(**index).is_held()) {
            return Err(format!("the second line of record {index} is held"));
        }
        if indices.len() as u64 != fresh || indices.iter().any(|index| u64::from(*index) >= fresh) {
            return Err(format!("{} records are in use or free, of {fresh}", indices.len()));
        }
        if word(HEAD_HASH) & REPAIRING != 0 {
            return Err("it is being repaired".into());
        }
        Ok(used)
    }
}
