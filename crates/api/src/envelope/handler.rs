//! Handlers: what carries requests out, and how it refuses.

use crate::{Action, Caller, proto::Response};

/// Facts beside the request for the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Envelopes processed since the start, the one of this request included. A batch is one
    /// envelope.
    pub request_counter: u64,
    /// Caller of the request, if known.
    pub caller: Option<Caller>,
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
