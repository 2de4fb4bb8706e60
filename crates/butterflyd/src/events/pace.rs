//! Limits the rate of one kind of event about one vnic: noise is summed up.
//!
//! An event that comes too fast is held back: the newest of a kind, and how many there were. It is
//! reported when its time has come.

use super::{kind::Kind, note::Note};
use std::{collections::HashMap, sync::Arc};

/// Milliseconds between two looks at what is held back.
const LOOK: u64 = 50;
/// Vnics and kinds that are remembered before those are forgotten that would be told at once
/// anyway.
const REMEMBERED: usize = 1024;

/// A vnic, or none, and a kind.
type Key = (Option<Arc<str>>, Kind);

/// Events that were held back.
struct Held {
    newest: Note,
    /// Those before it.
    more: u64,
}

/// Times are milliseconds of a clock that never goes back.
#[derive(Default)]
pub struct Pace {
    /// Time at which all events of a key would have been reported at its even pace.
    told: HashMap<Key, u64>,
    held: HashMap<Key, Held>,
    next_look: u64,
}

impl Pace {
    /// The note, if it may be told now; else it is held back.
    pub fn take(&mut self, note: Note, now: u64) -> Option<Note> {
        let key = (note.nic.clone(), note.kind);
        if let Some(held) = self.held.get_mut(&key) {
            held.more += 1;
            held.newest = note;
            return None;
        }
        if self.may(&key, now) {
            return Some(note);
        }
        self.held.insert(key, Held { newest: note, more: 0 });
        None
    }

    /// Returns events that were held back and may be reported now, each with the number of similar
    /// ones left out.
    pub fn due(&mut self, now: u64) -> Vec<(Note, u64)> {
        if self.held.is_empty() || now < self.next_look {
            return Vec::new();
        }
        self.next_look = now + LOOK;
        let keys: Vec<Key> = self.held.keys().cloned().collect();
        let due: Vec<Key> = keys.into_iter().filter(|key| self.may(key, now)).collect();
        due.iter()
            .filter_map(|key| self.held.remove(key))
            .map(|held| (held.newest, held.more))
            .collect()
    }

    /// Returns events that are held back and wanted, each with the number of similar ones left out.
    pub fn release(&mut self, wanted: impl Fn(&Note) -> bool) -> Vec<(Note, u64)> {
        let released = self.held.extract_if(|_, held| wanted(&held.newest));
        released.map(|(_, held)| (held.newest, held.more)).collect()
    }

    /// Events that are held back.
    pub fn held_mut(&mut self) -> impl Iterator<Item = &mut Note> {
        self.held.values_mut().map(|held| &mut held.newest)
    }

    /// True if an event of this key may be reported now; if so it counts as reported.
    fn may(&mut self, key: &Key, now: u64) -> bool {
        if self.told.len() > REMEMBERED {
            self.told.retain(|_, even| *even > now);
        }
        let limit = key.1.limit();
        let every = limit.every.as_millis() as u64;
        let even = self.told.get(key).copied().unwrap_or(0).max(now);
        if even - now > every * u64::from(limit.burst.saturating_sub(1)) {
            return false;
        }
        self.told.insert(key.clone(), even + every);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(nic: &str, text: u64) -> Note {
        Note::new(Kind::GuestAttached, text.to_string()).nic(nic, 1)
    }

    #[test]
    fn a_burst_is_told_then_the_newest_with_the_number_of_the_others() {
        let mut pace = Pace::default();
        let told = (0..1000).filter_map(|n| pace.take(note("a", n), 5)).count();
        assert_eq!(told, 10);
        assert!(pace.take(note("b", 0), 5).is_some(), "another one is not held back by it");
        assert!(pace.due(900).is_empty());
        let due = pace.due(1005);
        let [(newest, 989)] = &due[..] else { panic!("{due:?}") };
        assert_eq!(newest.text, "999");
        // A second later there is room for one, ten seconds later for ten.
        assert!(pace.take(note("a", 0), 1005).is_none());
        assert_eq!(pace.due(2005).len(), 1);
        assert_eq!((0..20).filter_map(|n| pace.take(note("a", n), 13_000)).count(), 10);
    }

    #[test]
    fn nobody_is_remembered_for_ever() {
        let mut pace = Pace::default();
        for n in 0..5000 {
            assert!(pace.take(note(&n.to_string(), 0), 2000 * n).is_some());
        }
        assert!(pace.told.len() <= REMEMBERED + 1, "{}", pace.told.len());
    }
}
