//! From the bytes of a request to the bytes of its reply.
//!
//! The messages of a batch are answered in their order, each on its own: one that fails does not stop the others. Nothing that
//! arrives can end the process: what cannot be decoded is answered as such, and so is a panic of the handler.

use crate::{
    Action, Caller, MAX_FRAME, REVISION, Requests,
    crypt::{self, Gate, Opened, ReplyTo},
    decode,
    proto::{Encrypted, Message, MessageV0, Messages, Request, Response, Status, error, message_v0},
    requests::KindOf,
    text,
};
use protobuf::{Message as _, MessageField, MessageFull};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{Level, debug, enabled, error, warn};

/// The longest reply, before it is encrypted.
const LONGEST: u64 = (MAX_FRAME - crypt::OVERHEAD) as u64;
/// A reply to a batch is full at so many bytes: what is left is room for whatever a change is answered.
const FULL: u64 = LONGEST - (1 << 20);

/// What a handler may want to know beside the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Envelopes processed since the start, the one of this request included. A batch is one envelope.
    pub request_counter: u64,
    /// Who made it, if that is known.
    pub caller: Option<Caller>,
}

/// What a handler makes of a request. In the response `status` is not its business: it follows from this being an error or not.
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

/// Why a request was not carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The text the protocol fixes for this failure, or where it fixes none the reason. Some failures have to come without.
    pub description: Option<String>,
    /// What exactly was refused, why, and what to do about it.
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

/// The bare `Message` that answers what is not a `Messages`: its revision and PARSE_ERROR. The protocol's wart: deployed servers
/// send exactly these bytes, and clients decode them as a `Messages` whose `encrypted` is empty.
const NOT_DECODABLE: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x00];
/// The same with INTERNAL_ERROR.
const INTERNAL_ERROR: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x01];

/// Answers envelopes with the help of a handler.
#[derive(Debug)]
pub struct Envelope<H> {
    handler: H,
    request_counter: u64,
    requests: Arc<Requests>,
    /// What is being answered, since when.
    current: Option<(KindOf, Instant)>,
    caller: Option<Caller>,
    gate: Option<Gate>,
}

impl<H: Handler> Envelope<H> {
    /// Nothing processed yet.
    pub fn new(handler: H) -> Self {
        Self { handler, request_counter: 0, requests: Arc::default(), current: None, caller: None, gate: None }
    }

    /// From now on only requests that `gate` opens are carried out.
    pub fn encrypted(self, gate: Gate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// The handler.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// The handler.
    pub fn handler_mut(&mut self) -> &mut H {
        &mut self.handler
    }

    /// What was answered so far, for any thread to read.
    pub fn requests(&self) -> Arc<Requests> {
        self.requests.clone()
    }

    /// The handler alone.
    pub fn into_handler(self) -> H {
        self.handler
    }

    /// The reply to the frame `request`, of which nobody knows from whom it comes.
    pub fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        self.answer_to(request, None)
    }

    /// The reply to the frame `request` of this caller.
    pub fn answer_to(&mut self, request: &[u8], caller: Option<Caller>) -> Vec<u8> {
        self.caller = caller;
        let Some(request) = self.decoded(request) else { return NOT_DECODABLE.to_vec() };
        let Some(gate) = &mut self.gate else { return self.clear(&request) };
        let Some(encrypted) = request.encrypted.as_ref() else {
            self.refuse("a request in clear text, where a key is wanted");
            return encoded(&Messages { messages: vec![refusal(error::Code::REJECTED)], ..Default::default() });
        };
        let reply = match gate.open(encrypted) {
            Opened::Introduced(reply) => reply,
            Opened::Refused(reply, why) => {
                self.refuse(&why);
                reply
            }
            Opened::Request(content, to) => self.within(&content, &to),
        };
        encoded(&Messages { encrypted: MessageField::some(reply), ..Default::default() })
    }

    /// The encrypted reply to what was in an encrypted request. It counts on its own.
    fn within(&mut self, content: &[u8], to: &ReplyTo) -> Encrypted {
        self.request_counter += 1;
        let reply = match self.decoded(content) {
            Some(request) => self.clear(&request),
            None => NOT_DECODABLE.to_vec(),
        };
        self.gate.as_ref().map(|gate| gate.seal(to, &reply)).unwrap_or_default()
    }

    /// Counts an envelope that is not looked into.
    fn refuse(&mut self, why: &str) {
        self.request_counter += 1;
        self.begin(None);
        self.answered(false);
        warn!("refused: {why}");
        self.not_understood(why);
    }

    fn decoded(&mut self, request: &[u8]) -> Option<Messages> {
        decode::<Messages>(request)
            .inspect_err(|error| {
                let why = format!("a request of {} bytes is not decodable: {error}", request.len());
                warn!("{why}");
                self.not_understood(&why);
                self.requests.count(self.requests.undecodable(), false, Duration::ZERO);
            })
            .ok()
    }

    fn clear(&mut self, request: &Messages) -> Vec<u8> {
        log("request", request);
        // A handler keeps its promises to itself by changing its state last: see `Handler::handle`.
        let reply = catch_unwind(AssertUnwindSafe(|| self.messages(request)));
        let Ok(reply) = reply else {
            error!("a request was given up because of a defect in this program: please report it");
            self.answered(false);
            return INTERNAL_ERROR.to_vec();
        };
        log("reply", &reply);
        encoded(&reply)
    }

    fn messages(&mut self, request: &Messages) -> Messages {
        self.request_counter += 1;
        let messages = if request.messages.is_empty() {
            // Nothing at all, or only something encrypted: for which there is no key, or under the key for a second time.
            self.begin(None);
            self.answered(false);
            self.not_understood("a request without messages, or encrypted where it cannot be");
            vec![refusal(error::Code::REJECTED)]
        } else {
            let mut size = 0;
            let within = |message: &Message| {
                // A reply that nobody can take is not made. One that does not fit is a long one: of a question, that changed nothing.
                let mut reply = if size <= FULL { self.message(message) } else { self.too_much(message) };
                if size <= FULL && size + reply.compute_size() > LONGEST {
                    reply = too_long(message);
                }
                size += reply.compute_size();
                reply
            };
            request.messages.iter().map(within).collect()
        };
        Messages { messages, ..Default::default() }
    }

    /// There is no room in the reply for what this would be answered.
    fn too_much(&mut self, message: &Message) -> Message {
        self.begin(message.message_0.as_ref().and_then(|request| request.request.as_ref()));
        self.answered(false);
        too_long(message)
    }

    fn message(&mut self, message: &Message) -> Message {
        self.begin(message.message_0.as_ref().and_then(|request| request.request.as_ref()));
        let Some(request) = message.message_0.as_ref() else {
            self.answered(false);
            self.not_understood("a message of a version that is not known");
            return refusal(error::Code::VERSION_NOT_MANAGED);
        };
        let answer = self.request(request.request.as_ref());
        self.answered(answer.is_ok());
        let response = match answer {
            Ok(response) => Response { status: MessageField::some(success()), ..response },
            Err(failure) => Response { status: MessageField::some(status(failure)), ..Default::default() },
        };
        reply(response, message)
    }

    fn begin(&mut self, request: Option<&Request>) {
        self.current = Some((self.requests.kind_of(request), Instant::now()));
    }

    fn answered(&mut self, success: bool) {
        if let Some((kind, since)) = self.current.take() {
            self.requests.count(kind, success, since.elapsed());
        }
    }

    fn request(&mut self, request: Option<&Request>) -> Answer {
        let Some(action) = request.and_then(Action::of) else {
            let failure = nothing_asked(request);
            self.not_understood(failure.help.as_deref().unwrap_or("a message without a request"));
            return Err(failure);
        };
        self.handler.handle(action, &self.context())
    }

    fn context(&self) -> Context {
        Context { request_counter: self.request_counter, caller: self.caller }
    }

    /// Whoever hears of it must not take the reply with it.
    fn not_understood(&mut self, why: &str) {
        let context = self.context();
        if catch_unwind(AssertUnwindSafe(|| self.handler.not_understood(why, &context))).is_err() {
            error!("a refusal could not be told because of a defect in this program: please report it");
        }
    }
}

fn nothing_asked(request: Option<&Request>) -> Failure {
    let failure = Failure::new("no request found");
    let unknown = request.and_then(|request| request.special_fields.unknown_fields().iter().map(|(number, _)| number).min());
    match unknown {
        None => failure,
        Some(number) => failure.with_help(format!(
            "field {number} of the request is not known to this version: the client may be newer than the daemon"
        )),
    }
}

fn too_long(message: &Message) -> Message {
    let failure = Failure::new("the reply to this batch is too long").with_help("ask in several batches");
    reply(Response { status: MessageField::some(status(failure)), ..Default::default() }, message)
}

/// A response to a message.
fn reply(response: Response, to: &Message) -> Message {
    let reply = MessageV0 {
        response: MessageField::some(response),
        message_id: to.message_0.as_ref().and_then(|request| request.message_id.clone()),
        ..Default::default()
    };
    Message { revision: Some(REVISION), message_0: MessageField::some(reply), ..Default::default() }
}

fn refusal(code: error::Code) -> Message {
    let error = crate::proto::Error { code: Some(code.into()), ..Default::default() };
    Message { revision: Some(REVISION), error: MessageField::some(error), ..Default::default() }
}

fn success() -> Status {
    Status { status: Some(true), ..Default::default() }
}

fn status(failure: Failure) -> Status {
    let error = message_v0::Error { description: failure.description, help: failure.help, ..Default::default() };
    Status { status: Some(false), error: MessageField::some(error), ..Default::default() }
}

fn encoded(reply: &Messages) -> Vec<u8> {
    reply.write_to_bytes().unwrap_or_else(|error| {
        error!("a reply could not be encoded: {error}");
        INTERNAL_ERROR.to_vec()
    })
}

fn log(what: &str, messages: &impl MessageFull) {
    // Text is made only if somebody reads it: a batch may be long.
    if enabled!(Level::DEBUG) {
        debug!("{what}:\n{}", text::print(messages).trim_end());
    }
}

#[cfg(test)]
mod encryption_tests;
#[cfg(test)]
mod tests;
