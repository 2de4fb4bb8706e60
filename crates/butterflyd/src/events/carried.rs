//! The record as a text, with which a successor goes on after a crash.
//!
//! Numbers go on, so a reader that follows the record misses nothing and sees nothing twice. Events
//! that were held back when the process died are lost; they had no number yet.

use super::{Events, kind::Kind, note::Event, ring::Ring, shortened};
use butterfly_api::Caller;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, sync::atomic::Ordering};

/// Most bytes of a vnic's or a request's name: longer ones were forged.
const LONGEST_NAME: usize = 512;

/// One event.
#[derive(Serialize, Deserialize)]
struct Carried<'a> {
    seq: u64,
    time: u64,
    kind: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nic: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    text: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<Cow<'a, str>>,
    /// An address, or `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<Cow<'a, str>>,
    #[serde(default)]
    more: u64,
    #[serde(default)]
    taken_back: bool,
}

/// The whole text.
#[derive(Serialize, Deserialize)]
struct RecordText<'a> {
    layout: u32,
    started: u64,
    last: u64,
    #[serde(borrow)]
    events: Vec<Carried<'a>>,
}

/// Account of a record that was taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordTaken {
    /// Events that are kept again.
    pub events: usize,
    /// Those that are not.
    pub refused: usize,
    /// The reason for which nothing was read.
    pub problem: Option<String>,
}

impl Events {
    /// Returns a number that is another one whenever the record is.
    pub fn version(&self) -> u64 {
        self.catch_up().ring.version()
    }

    /// Notes the record, in at most `room` bytes. Leaves out the oldest events if there is no room.
    /// Returns the text and the version that it is of.
    pub fn note_record(&self, room: usize) -> (Vec<u8>, u64) {
        let (events, last, version) = {
            let record = self.catch_up();
            let events: Vec<Event> = record.ring.all().cloned().collect();
            (events, record.ring.last(), record.ring.version())
        };
        let mut kept = events.as_slice();
        loop {
            let text = RecordText {
                layout: butterfly_layout::in_force(),
                started: self.started(),
                last,
                events: kept.iter().map(carried).collect(),
            };
            let bytes = serde_json::to_vec(&text).unwrap_or_default();
            if bytes.len() <= room {
                return (bytes, version);
            }
            if kept.is_empty() {
                return (Vec::new(), version);
            }
            let left_out = kept.len() - kept.len() * (room * 9 / 10) / bytes.len();
            kept = kept.get(left_out..).unwrap_or_default();
        }
    }

    /// Goes on with the record of a former process. What was noted here until now gets numbers
    /// behind those.
    pub fn take_over(&self, text: &[u8]) -> RecordTaken {
        let mut taken = RecordTaken::default();
        if text.is_empty() {
            return taken;
        }
        let read = serde_json::from_slice::<RecordText<'_>>(text).map_err(|why| why.to_string());
        let read = read.and_then(|read| butterfly_layout::check(read.layout).map(|()| read));
        let read = match read {
            Ok(read) => read,
            Err(why) => {
                taken.problem = Some(format!("the events were not read: {why}"));
                return taken;
            }
        };
        let mut record = self.catch_up();
        let bounds = record.ring.bounds();
        let newer = std::mem::replace(&mut record.ring, Ring::new(bounds));
        // A number that was never given leaves room for as many as there will be.
        let last = read.last.min(u64::MAX / 2);
        for carried in read.events {
            let wanted = carried.seq > record.ring.last() && carried.seq <= last;
            match known(carried).filter(|_| wanted) {
                Some(event) => {
                    record.ring.push_as(event);
                    taken.events += 1;
                }
                None => taken.refused += 1,
            }
        }
        record.ring.go_on_behind(last);
        newer.all().cloned().for_each(|event| record.ring.push(event));
        self.0.started.store(read.started, Ordering::Relaxed);
        taken
    }
}

fn carried(event: &Event) -> Carried<'_> {
    Carried {
        seq: event.seq,
        time: event.time,
        kind: event.kind.name().into(),
        nic: event.nic.as_deref().map(Cow::from),
        vni: event.vni,
        text: Cow::from(&*event.text),
        request: event.request.as_deref().map(Cow::from),
        client: event.client.map(|client| match client {
            Caller::Host(address) => address.to_string().into(),
            Caller::Local => "local".into(),
        }),
        more: event.more,
        taken_back: event.taken_back,
    }
}

/// Returns an event that may be kept here.
fn known(carried: Carried<'_>) -> Option<Event> {
    let short =
        |name: &Option<Cow<'_, str>>| name.as_ref().is_none_or(|name| name.len() <= LONGEST_NAME);
    if !short(&carried.nic) || !short(&carried.request) {
        return None;
    }
    let client = match carried.client.as_deref() {
        None => None,
        Some("local") => Some(Caller::Local),
        Some(address) => Some(Caller::Host(address.parse().ok()?)),
    };
    Some(Event {
        seq: carried.seq,
        time: carried.time,
        kind: Kind::ALL.iter().copied().find(|kind| kind.name() == carried.kind)?,
        nic: carried.nic.map(|nic| (*nic).into()),
        vni: carried.vni,
        text: shortened(carried.text.into_owned()),
        request: carried.request.map(|request| request.into_owned().into()),
        client,
        more: carried.more,
        taken_back: carried.taken_back,
    })
}

#[cfg(test)]
mod tests;
