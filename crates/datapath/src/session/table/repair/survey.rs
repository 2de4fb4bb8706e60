//! A look at the buckets of a table that was left: those that are in order stay as they are.
//!
//! Only a process that was in the middle of something leaves them otherwise. To make all entries
//! anew takes most of the time of a repair, as each is at another place. To look at them takes two
//! walks in the order of memory.

use std::sync::atomic::Ordering::Relaxed;

use crate::session::{
    key::Key,
    pen::{Died, Pen},
    table::{OVERFLOW, Table, entry, overflow},
};

/// Place of a record's entry.
#[derive(Clone, Copy)]
struct Place {
    /// Number of its bucket plus one; 0 if no bucket has it.
    bucket: u32,
    /// The entry's half of the flow's hash.
    tag: u32,
}

/// Buckets in order, and where they have each record.
pub(super) struct Survey(Vec<Place>);

impl Survey {
    /// Looks at a table whose first `fresh` records were used. `None` unless no bucket is locked,
    /// each session is in one bucket of its flow, once, nothing else is in any, and counts of
    /// flows in their second bucket are right.
    pub(super) fn of(table: &Table, fresh: u32) -> Option<Survey> {
        let mut places = vec![Place { bucket: 0, tag: 0 }; fresh as usize];
        let mut counts = Vec::new();
        for at in 0..=table.mask {
            let (first, entries) = table.bucket(at).split_first()?;
            let first = first.load(Relaxed);
            // Locked, or none of our words.
            if !first.is_multiple_of(OVERFLOW) {
                return None;
            }
            if overflow(first) > 0 {
                counts.push((at as u32, overflow(first)));
            }
            let mut tags = [0; 7];
            for (entry, seen) in entries.iter().zip(0..) {
                let entry = entry.load(Relaxed);
                if entry == 0 {
                    continue;
                }
                let index = (entry as u32).checked_sub(1)?;
                let place = places.get_mut(index as usize).filter(|place| place.bucket == 0)?;
                let tag = (entry >> 32) as u32;
                // Flows with one hash may be one flow: that is looked at otherwise.
                let tags = tags.get_mut(..=seen)?;
                if tags.contains(&tag) && tag != 0 {
                    return None;
                }
                *tags.last_mut()? = tag;
                *place = Place { bucket: u32::try_from(at).ok()? + 1, tag };
            }
        }
        let mut seconds = Seconds::default();
        for (index, place) in places.iter().enumerate() {
            table.fetch_ahead(index as u32);
            match table.record(index as u32).words() {
                Some((words, _)) => {
                    let hash = table.hash(&Key::from_words(words));
                    if hash as u32 != place.tag {
                        return None;
                    }
                    let is = |home: u64| home & table.mask == u64::from(place.bucket) - 1;
                    if place.bucket == 0 {
                        return None;
                    }
                    if !is(Table::first(hash)) {
                        if !is(Table::second(hash)) {
                            return None;
                        }
                        seconds.count(Table::first(hash) & table.mask, place.tag);
                    }
                }
                None if place.bucket != 0 => return None,
                None => {}
            }
        }
        seconds.are(&counts, table).then_some(Survey(places))
    }

    /// Takes the entry of a record out that is freed, `key` being its flow's.
    pub(super) fn take_out(
        &self,
        table: &Table,
        index: u32,
        key: &Key,
        pen: &mut Pen,
    ) -> Result<(), Died> {
        let Some(place) = self.0.get(index as usize) else { return Ok(()) };
        let at = u64::from(place.bucket).wrapping_sub(1);
        let hash = table.hash(key);
        let wanted = entry(hash, index);
        let mut words = table.bucket(at).iter().skip(1);
        if let Some(word) = words.find(|word| word.load(Relaxed) == wanted) {
            pen.write(word, 0)?;
        }
        let first = Table::first(hash) & table.mask;
        if at != first
            && let Some(word) = table.bucket(first).first()
        {
            pen.write(word, word.load(Relaxed).wrapping_sub(OVERFLOW))?;
        }
        Ok(())
    }
}

/// Flows in their second bucket, by their first: few.
#[derive(Default)]
struct Seconds(Vec<(u32, u32)>);

impl Seconds {
    /// Counts a flow with this tag.
    fn count(&mut self, first: u64, tag: u32) {
        self.0.push((first as u32, tag));
    }

    /// True if buckets count just these, and none of these flows has another record in its first.
    fn are(mut self, counts: &[(u32, u64)], table: &Table) -> bool {
        self.0.sort_unstable();
        let mut groups = self.0.chunk_by(|one, other| one.0 == other.0);
        let fit = counts.iter().all(|(at, count)| {
            let group = groups.next().unwrap_or_default();
            let entries = table.bucket(u64::from(*at)).iter().skip(1);
            let mut tags = entries.map(|word| word.load(Relaxed)).filter(|entry| *entry != 0);
            group.len() as u64 == *count
                && group.iter().all(|(first, _)| first == at)
                && group.iter().is_sorted_by(|one, other| one.1 < other.1)
                && tags.all(|entry| group.iter().all(|(_, tag)| *tag != (entry >> 32) as u32))
        });
        fit && groups.next().is_none()
    }
}
