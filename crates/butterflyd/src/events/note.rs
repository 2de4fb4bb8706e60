//! Something that happened, and the words for it.

use super::kind::Kind;
use butterfly_api::Caller;
use std::{borrow::Cow, sync::Arc};

/// An event, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub kind: Kind,
    /// The vnic that it is about.
    pub nic: Option<Arc<str>>,
    pub vni: Option<u32>,
    pub text: String,
    /// The request by which it came about.
    pub origin: Option<Origin>,
    /// True if that request was taken back as a whole, or if this is a part of taking it back.
    pub taken_back: bool,
}

/// A request, or a client without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its name in the protocol.
    pub request: Option<&'static str>,
    /// Caller of the request that caused it.
    pub caller: Option<Caller>,
}

/// Something that happened, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The first one's is 1.
    pub seq: u64,
    /// Milliseconds since the epoch.
    pub time: u64,
    pub kind: Kind,
    pub nic: Option<Arc<str>>,
    pub vni: Option<u32>,
    pub text: String,
    pub request: Option<Cow<'static, str>>,
    pub client: Option<Caller>,
    /// Number of similar events left out since the one before.
    pub more: u64,
    /// As in [`Note`].
    pub taken_back: bool,
}

impl Event {
    /// Returns the bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.text.capacity() + self.nic.as_ref().map_or(0, |nic| nic.len())
    }
}

impl Note {
    /// About the host, if nothing else is said.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, nic: None, vni: None, text: text.into(), origin: None, taken_back: false }
    }

    /// About this vnic.
    pub fn nic(self, id: &str, vni: u32) -> Self {
        Self { nic: Some(id.into()), vni: Some(vni), ..self }
    }
}

/// A number of things, as a reader expects it.
pub fn counted(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
