//! The newest events, within bounds.
//!
//! No vnic has more than its share of the room, nor has any kind of event without a vnic. So noise
//! about one does not push out the events of others.

use super::{kind::Kind, note::Event};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// Room.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Events at most.
    pub events: usize,
    /// Bytes at most that they take.
    pub bytes: usize,
    /// Events at most about one vnic, or of one kind about none.
    pub share: usize,
}

/// Owner of the share that an event counts for.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Subject {
    Nic(Arc<str>),
    Kind(Kind),
}

impl Subject {
    fn of(event: &Event) -> Self {
        match &event.nic {
            Some(nic) => Self::Nic(nic.clone()),
            None => Self::Kind(event.kind),
        }
    }
}

/// Query to a ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// Only events with higher numbers.
    pub since: u64,
    /// At most so many.
    pub limit: usize,
    /// Only those about this vnic.
    pub nic: Option<&'a str>,
    /// The newest of them, not the oldest.
    pub newest: bool,
}

/// Answer of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Events in their order.
    pub events: Vec<Event>,
    /// Number at which the next query goes on.
    pub next: u64,
    /// Events between there and where this one began that are gone.
    pub lost: u64,
}

/// The events that are kept, by their numbers.
pub struct Ring {
    bounds: Bounds,
    events: BTreeMap<u64, Event>,
    /// The numbers of those about each subject, ascending.
    of: HashMap<Subject, VecDeque<u64>>,
    bytes: usize,
    last: u64,
    /// Counts changes.
    version: u64,
}

impl Ring {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, events: BTreeMap::new(), of: HashMap::new(), bytes: 0, last: 0, version: 0 }
    }

    /// Adds an event, which gets the next number. A subject with too many loses its oldest.
    pub fn push(&mut self, event: Event) {
        self.push_as(Event { seq: self.last + 1, ..event });
    }

    /// Adds an event with its number, which is above all others.
    pub fn push_as(&mut self, event: Event) {
        self.last = event.seq;
        self.version += 1;
        let subject = Subject::of(&event);
        self.bytes += event.bytes();
        self.events.insert(event.seq, event);
        let own = self.of.entry(subject).or_default();
        own.push_back(self.last);
        if own.len() > self.bounds.share
            && let Some(oldest) = own.front().copied()
        {
            self.remove(oldest);
        }
        while self.events.len() > self.bounds.events || self.bytes > self.bounds.bytes {
            let Some((oldest, _)) = self.events.first_key_value() else { return };
            self.remove(*oldest);
        }
    }

    /// Has the next event get a number behind this one.
    pub fn go_on_behind(&mut self, last: u64) {
        self.last = self.last.max(last);
        self.version += 1;
    }

    /// Returns the kept events in their order.
    pub fn all(&self) -> impl Iterator<Item = &Event> {
        self.events.values()
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Returns a number that is another one after each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of the newest event.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The kept events after a number.
    pub fn after_mut(&mut self, since: u64) -> impl Iterator<Item = &mut Event> {
        self.version += 1;
        self.events.range_mut(since.saturating_add(1)..).map(|(_, event)| event)
    }

    /// Takes out the oldest of its subject.
    fn remove(&mut self, seq: u64) {
        let Some(event) = self.events.remove(&seq) else { return };
        self.bytes -= event.bytes();
        let subject = Subject::of(&event);
        if let Some(own) = self.of.get_mut(&subject) {
            own.pop_front();
            if own.is_empty() {
                self.of.remove(&subject);
            }
        }
    }

    /// Returns the kept events that match a query.
    pub fn list(&self, query: &Query<'_>) -> Listing {
        let Query { since, limit, nic, newest } = *query;
        // A number that was not given yet is one of another daemon, before this one: there is
        // nothing after it.
        let since = since.min(self.last);
        let wanted = |event: &&Event| nic.is_none_or(|nic| event.nic.as_deref() == Some(nic));
        let after = self.events.range(since + 1..).map(|(_, event)| event).filter(wanted);
        let (events, next): (Vec<Event>, u64) = if newest {
            let mut events: Vec<Event> = after.rev().take(limit).cloned().collect();
            events.reverse();
            (events, self.last)
        } else {
            let mut events: Vec<Event> = after.take(limit.saturating_add(1)).cloned().collect();
            let more = events.len() > limit;
            events.truncate(limit);
            let next =
                if more { events.last().map_or(since, |event| event.seq) } else { self.last };
            (events, next)
        };
        let kept = self
            .events
            .range(since + 1..=next.max(since + 1))
            .filter(|(seq, _)| **seq <= next)
            .count() as u64;
        Listing { events, next, lost: next - since - kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { events: 100, bytes: 1 << 20, share: 20 };

    fn event(nic: Option<&str>, kind: Kind, text: &str) -> Event {
        Event {
            seq: 0,
            time: 0,
            kind,
            nic: nic.map(Into::into),
            vni: None,
            text: text.to_owned(),
            request: None,
            client: None,
            more: 0,
            taken_back: false,
        }
    }

    fn about(nic: &str) -> Event {
        event(Some(nic), Kind::GuestAttached, "x")
    }

    fn all() -> Query<'static> {
        Query { limit: usize::MAX, ..Query::default() }
    }

    fn numbers(listing: &Listing) -> Vec<u64> {
        listing.events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn numbers_begin_at_one_and_the_oldest_go() {
        let mut ring = Ring::new(BOUNDS);
        assert_eq!(ring.list(&all()), Listing { events: Vec::new(), next: 0, lost: 0 });
        for n in 0..130 {
            ring.push(about(&(n % 10).to_string()));
        }
        let listing = ring.list(&all());
        assert_eq!(numbers(&listing), (31..=130).collect::<Vec<_>>());
        assert_eq!((listing.next, listing.lost), (130, 30));
        assert_eq!(ring.of.values().map(VecDeque::len).sum::<usize>(), 100);
    }

    #[test]
    fn one_who_makes_noise_pushes_out_only_its_own() {
        let mut ring = Ring::new(BOUNDS);
        for n in 0..5 {
            ring.push(about(&n.to_string()));
        }
        ring.push(event(None, Kind::DaemonStarted, "x"));
        for _ in 0..10_000 {
            ring.push(about("noisy"));
            ring.push(event(None, Kind::RequestFailed, "x"));
        }
        let listing = ring.list(&all());
        assert_eq!(listing.events.len(), 6 + 20 + 20);
        assert_eq!(numbers(&listing)[..6], [1, 2, 3, 4, 5, 6]);
        assert_eq!(listing.lost, 20_006 - 46);
        assert_eq!(ring.of.len(), 8);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut ring = Ring::new(Bounds { bytes: 10_000, ..BOUNDS });
        for n in 0..90 {
            ring.push(event(Some(&n.to_string()), Kind::GuestAttached, &"x".repeat(500)));
            let bytes: usize = ring.events.values().map(Event::bytes).sum();
            assert!(bytes == ring.bytes && bytes <= 10_000);
        }
        assert!(ring.events.len() >= 10 && ring.events.contains_key(&90));
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_hears_what_it_missed() {
        let mut ring = Ring::new(BOUNDS);
        for n in 0..50 {
            ring.push(about(&(n % 10).to_string()));
        }
        let page =
            |ring: &Ring, since, limit| ring.list(&Query { since, limit, ..Query::default() });
        let mut since = 0;
        for _ in 0..5 {
            let listing = page(&ring, since, 10);
            assert_eq!(numbers(&listing), (since + 1..=since + 10).collect::<Vec<_>>());
            assert_eq!(listing.lost, 0);
            since = listing.next;
        }
        assert_eq!(page(&ring, 50, 10), Listing { events: Vec::new(), next: 50, lost: 0 });
        // The ring wraps: 51 to 80 are gone.
        for n in 0..130 {
            ring.push(about(&(n % 10).to_string()));
        }
        let listing = page(&ring, 50, 10);
        assert_eq!((numbers(&listing), listing.lost), ((81..=90).collect(), 30));
        let listing = page(&ring, listing.next, 10);
        assert_eq!((numbers(&listing), listing.lost), ((91..=100).collect(), 0), "said once");
        // A number of an earlier daemon.
        assert_eq!(page(&ring, 1000, 10), Listing { events: Vec::new(), next: 180, lost: 0 });
        assert_eq!(page(&ring, u64::MAX, 10).next, 180);
    }

    #[test]
    fn one_vnic_and_the_newest() {
        let mut ring = Ring::new(BOUNDS);
        for n in 0..50 {
            ring.push(about(&(n % 10).to_string()));
        }
        let of = |since, limit, newest| {
            numbers(&ring.list(&Query { since, limit, nic: Some("3"), newest }))
        };
        assert_eq!(of(0, 10, false), [4, 14, 24, 34, 44]);
        assert_eq!(of(0, 2, false), [4, 14]);
        assert_eq!(of(0, 2, true), [34, 44]);
        assert_eq!(of(34, 10, true), [44]);
        assert_eq!(of(0, 0, true), [0; 0]);
        let none = ring.list(&Query { since: 3, limit: 0, ..Query::default() });
        assert_eq!(
            (none.events.len(), none.next, none.lost),
            (0, 3, 0),
            "who takes nothing stays where it was"
        );
        assert_eq!(ring.list(&Query { nic: Some("3"), ..all() }).next, 50);
    }
}
