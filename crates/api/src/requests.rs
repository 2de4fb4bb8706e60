//! Counts the answered requests of each kind, their outcomes, and the time they took.
//!
//! Kinds are the fields of the protocol's `Request`, found by reflection: a new one is counted
//! without a word here.

use crate::proto::Request;
use protobuf::{MessageFull, reflect::FieldDescriptor};
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Kind of a request that asks for nothing that this version knows, with its place behind all
/// fields.
const NOTHING: &str = "none";
/// Kind of a frame that is no envelope at all.
const UNDECODABLE: &str = "undecodable";

/// Counts. The server writes, any thread reads.
pub struct Requests {
    fields: Vec<FieldDescriptor>,
    kinds: Vec<Kind>,
}

struct Kind {
    name: String,
    succeeded: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Counts of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCount<'a> {
    /// Name of the field in the protocol; `none` for what asks for nothing that is known,
    /// `undecodable` for what is no envelope.
    pub request: &'a str,
    /// Those answered with success.
    pub succeeded: u64,
    /// All others.
    pub failed: u64,
    /// The time all of them took.
    pub time: Duration,
}

/// Which kind a request is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KindOf(usize);

impl Default for Requests {
    fn default() -> Self {
        let mut fields: Vec<_> = Request::descriptor().fields().collect();
        // As for `Action::of`, the lowest number wins.
        fields.sort_by_key(FieldDescriptor::number);
        let kind = |name: &str| Kind {
            name: name.to_owned(),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        };
        let kinds = fields
            .iter()
            .map(|field| kind(field.name()))
            .chain([kind(NOTHING), kind(UNDECODABLE)])
            .collect();
        Self { fields, kinds }
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl Requests {
    /// Every kind there is, whether it was asked for or not.
    pub fn list(&self) -> impl Iterator<Item = RequestCount<'_>> {
        self.kinds.iter().map(|kind| RequestCount {
            request: &kind.name,
            succeeded: kind.succeeded.load(Relaxed),
            failed: kind.failed.load(Relaxed),
            time: Duration::from_nanos(kind.nanoseconds.load(Relaxed)),
        })
    }

    /// Adds what a former process counted. Returns whether there is a kind of this name.
    pub fn add_former(&self, former: &RequestCount<'_>) -> bool {
        let Some(kind) = self.kinds.iter().find(|kind| kind.name == former.request) else {
            return false;
        };
        kind.succeeded.fetch_add(former.succeeded, Relaxed);
        kind.failed.fetch_add(former.failed, Relaxed);
        let time = u64::try_from(former.time.as_nanos()).unwrap_or(u64::MAX);
        kind.nanoseconds.fetch_add(time, Relaxed);
        true
    }

    pub(crate) fn kind_of(&self, request: Option<&Request>) -> KindOf {
        let set = request
            .and_then(|request| self.fields.iter().position(|field| field.has_field(request)));
        KindOf(set.unwrap_or(self.fields.len()))
    }

    pub(crate) fn undecodable(&self) -> KindOf {
        KindOf(self.fields.len() + 1)
    }

    pub(crate) fn count(&self, KindOf(kind): KindOf, success: bool, time: Duration) {
        let Some(kind) = self.kinds.get(kind) else { return };
        let outcome = if success { &kind.succeeded } else { &kind.failed };
        outcome.fetch_add(1, Relaxed);
        kind.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}
