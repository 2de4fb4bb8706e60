//! Events for the operator: a bounded record in memory. [`kind`] lists the sorts of events.
//!
//! The code that reports an event makes a [`Note`] and never waits. The record gives it a number
//! and a time, sums up events that come too fast, and forgets the oldest.

pub mod announce;
mod carried;
mod kind;
mod note;
mod pace;
mod ring;
mod switch;

pub use carried::RecordTaken;
pub use kind::Kind;
pub use note::{Event, Note, Origin, counted};
pub use ring::{Listing, Query};
pub use switch::note as switch_note;

use pace::Pace;
use ring::{Bounds, Ring};
use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Bounds of the record.
const BOUNDS: Bounds = Bounds { events: 10_000, bytes: 4 << 20, share: 1_000 };
/// Most bytes of a text: it may quote a message from outside.
const LONGEST: usize = 500;

/// The record. Clones are the same one.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

struct Shared {
    record: Mutex<Record>,
    began: Instant,
    started: AtomicU64,
}

struct Record {
    ring: Ring,
    pace: Pace,
}

impl Default for Events {
    fn default() -> Self {
        let record = Mutex::new(Record { ring: Ring::new(BOUNDS), pace: Pace::default() });
        Self(Arc::new(Shared {
            record,
            began: Instant::now(),
            started: milliseconds_since_epoch().into(),
        }))
    }
}

impl Events {
    /// Returns when the record began, in milliseconds since the epoch.
    pub fn started(&self) -> u64 {
        self.0.started.load(Ordering::Relaxed)
    }

    /// Records an event. Returns whether it is reported now: frequent events are only counted at
    /// times.
    pub fn note(&self, note: Note) -> bool {
        let now = self.now();
        let mut record = self.record();
        record.catch_up(now);
        let taken = record.pace.take(note, now);
        let told = taken.is_some();
        if let Some(note) = taken {
            record.ring.push(event(note, 0));
        }
        told
    }

    /// Returns the number of the newest event, after it has told those of earlier requests called
    /// `request` that were held back.
    pub fn mark(&self, request: &str) -> u64 {
        let mut record = self.record();
        let held = record.pace.release(|note| is_of(note.origin, request));
        for (note, more) in held {
            record.ring.push(event(note, more));
        }
        record.ring.last()
    }

    /// Marks the events after number `since` as taken back if a request called `request` caused
    /// them.
    pub fn take_back(&self, since: u64, request: &str) {
        let mut record = self.record();
        record.pace.held_mut().filter(|note| is_of(note.origin, request)).for_each(|note| {
            note.taken_back = true;
        });
        record
            .ring
            .after_mut(since)
            .filter(|event| event.request.as_deref() == Some(request))
            .for_each(|event| {
                event.taken_back = true;
            });
    }

    /// Returns the kept events that match a query.
    pub fn list(&self, query: &Query<'_>) -> Listing {
        self.catch_up().ring.list(query)
    }

    /// Returns the record after it has told what is due.
    fn catch_up(&self) -> MutexGuard<'_, Record> {
        let now = self.now();
        let mut record = self.record();
        record.catch_up(now);
        record
    }

    fn now(&self) -> u64 {
        self.0.began.elapsed().as_millis() as u64
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    /// Reports events that were held back and are due. They are needed only when a reader looks, so
    /// no thread has to wait for their time.
    fn catch_up(&mut self, now: u64) {
        for (note, more) in self.pace.due(now) {
            self.ring.push(event(note, more));
        }
    }
}

fn event(note: Note, more: u64) -> Event {
    let Note { kind, nic, vni, text, origin, taken_back } = note;
    Event {
        seq: 0,
        time: milliseconds_since_epoch(),
        kind,
        nic,
        vni,
        text: shortened(text),
        request: origin.and_then(|origin| origin.request).map(Cow::from),
        client: origin.and_then(|origin| origin.caller),
        more,
        taken_back,
    }
}

fn is_of(origin: Option<Origin>, request: &str) -> bool {
    origin.is_some_and(|origin| origin.request == Some(request))
}

/// A text without what is too much.
fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str(" ...");
    }
    text.shrink_to_fit();
    text
}

fn milliseconds_since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_api::Caller;

    #[test]
    fn texts_are_bounded() {
        assert_eq!(shortened("é".repeat(250)), "é".repeat(250));
        assert_eq!(
            shortened(format!("x{}", "é".repeat(5000))),
            format!("x{} ...", "é".repeat(249))
        );
    }

    #[test]
    fn what_is_noted_is_listed_with_its_time() {
        let events = Events::default();
        let origin = Some(Origin { request: Some("nic_add"), caller: Some(Caller::Local) });
        events.note(Note { origin, ..Note::new(Kind::NicAdded, "made").nic("n", 7) });
        let listing = events.list(&Query { limit: 10, ..Query::default() });
        let [event] = &listing.events[..] else { panic!("{listing:?}") };
        assert_eq!(
            (event.seq, event.kind, event.nic.as_deref(), event.vni),
            (1, Kind::NicAdded, Some("n"), Some(7))
        );
        assert_eq!(
            (event.request.as_deref(), event.more, &*event.text),
            (Some("nic_add"), 0, "made")
        );
        assert!((events.started()..=milliseconds_since_epoch()).contains(&event.time));
    }

    /// Neither those of others, nor those of an earlier request of that kind.
    #[test]
    fn the_events_of_one_request_are_taken_back() {
        let events = Events::default();
        let note = |request, text: &str| {
            let origin = Some(Origin { request: Some(request), caller: None });
            // More than are told at once.
            for _ in 0..150 {
                events.note(Note { origin, ..Note::new(Kind::SgDeclared, text) });
            }
        };
        note("apply", "before");
        let mark = events.mark("apply");
        note("sg_add", "other");
        note("apply", "mine");
        events.take_back(mark, "apply");
        let end = Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let listing = events.list(&Query { limit: usize::MAX, ..Query::default() });
            assert!(listing.events.iter().all(|event| event.taken_back == (event.text == "mine")));
            if listing.events.iter().any(|event| event.taken_back) {
                break;
            }
            assert!(Instant::now() < end, "{listing:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Events that come too fast are all counted.
    #[test]
    fn noise_is_summed_up() {
        let events = Events::default();
        for _ in 0..5000 {
            events.note(Note::new(Kind::GuestAttached, "x").nic("noisy", 7));
            events.note(Note::new(Kind::NicAdded, "x").nic("noisy", 7));
        }
        let told = || {
            let listing = events.list(&Query { limit: usize::MAX, ..Query::default() });
            let of = |kind| {
                listing
                    .events
                    .iter()
                    .filter(move |event| event.kind == kind)
                    .map(|event| event.more + 1)
                    .sum::<u64>()
            };
            (of(Kind::GuestAttached), of(Kind::NicAdded), listing.events.len())
        };
        let end = Instant::now() + std::time::Duration::from_secs(20);
        while (told().0, told().1) != (5000, 5000) {
            assert!(Instant::now() < end, "{:?}", told());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(told().2 < 200, "{:?}", told());
    }
}
