//! Handlers: what carries requests out, and how it refuses.

use crate::{Action, Caller, proto::Response};
use std::os::fd::BorrowedFd;

/// Facts beside the request for the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Envelopes processed since the start, the one of this request included. A batch is one
    /// envelope.
    pub request_counter: u64,
    /// Caller of the request, if known.
    pub caller: Option<Caller>,
    /// True if a message of this envelope before this one made changes that are not committed yet:
    /// it sees them. Others see committed state only.
    pub sees_own_changes: bool,
}

/// Answer of a handler to a request. It leaves `status` of the response alone: that follows from
/// this being an error or not.
pub type Answer = Result<Response, Failure>;

/// Carries out requests.
pub trait Handler {
    /// Carries out `action`. On a [`Failure`] everything must be as it was before.
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer;

    /// Hears of what is no request, which was refused without asking: `why` is a clause.
    fn not_understood(&mut self, why: &str, context: &Context) {
        let _ = (why, context);
    }

    /// Hears between two requests that the file of
    /// [`Server::on_call`](crate::server::Server::on_call) became readable.
    fn called(&mut self) {}

    /// True if another process is to go on in this one's place: what was asked until now is
    /// answered, for a moment, and then serving ends.
    fn passes_on(&self) -> bool {
        false
    }

    /// Number of changes made so far that a store has to keep. An envelope that raised it is
    /// answered when [`outcome`](Self::outcome) says so. Without a store it stays 0.
    fn changes_made(&self) -> u64 {
        0
    }

    /// True if changes may be made now: no group of them is in the store.
    fn may_change(&self) -> bool {
        true
    }

    /// Hands the changes that were made to the store, as one group.
    fn hand_over(&mut self) {}

    /// Hears what the store says. Returns the outcome of the group that was handed over, once. On a
    /// failure all its changes are undone.
    fn outcome(&mut self) -> Option<Result<(), Failure>> {
        None
    }

    /// A descriptor that is readable when [`outcome`](Self::outcome) has something to hear.
    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Reason why a request was not carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The text the protocol fixes for this failure, or where it fixes none the reason. Some
    /// failures have to come without.
    pub description: Option<String>,
    /// Details for the reader: the refused value, the reason, and the remedy.
    pub help: Option<String>,
}

impl Failure {
    /// A failure described by `description`.
    pub fn new(description: impl Into<String>) -> Self {
        Self { description: Some(description.into()), help: None }
    }

    /// The same failure, explained by `help`.
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}
