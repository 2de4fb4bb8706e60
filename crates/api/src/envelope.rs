//! Turns the bytes of a request into the bytes of its reply.
//!
//! The messages of a batch are answered in their order, each on its own: one that fails does not
//! stop the others. Nothing that arrives can end the process. A message that cannot be decoded is
//! answered as such, and so is a panic of the handler.

use crate::{
    Action, Caller, MAX_FRAME, REVISION, Requests,
    crypt::{self, EncryptedFields, Gate, Opened, ReplyTo},
    decode,
    proto::{Message, MessageV0, Messages, Request, Response, Status, error, message_v0},
    requests::KindOf,
    text,
};
use protobuf::{Message as _, MessageField};
use scan::{Content, Fields};
use std::{
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{Level, debug, enabled, error, warn};
use zeroize::Zeroizing;

pub(crate) mod scan;
mod weigh;

/// The longest reply, before it is encrypted.
const LONGEST: u64 = (MAX_FRAME - crypt::OVERHEAD) as u64;
/// Least room left in a reply that is not full: the answer to any change fits.
const MARGIN: u64 = 1 << 20;
/// The shortest answer to a message, but for its id.
const SHORTEST: u64 = 32;
/// The tag and the length of an answer in a reply.
const HEADER: u64 = 6;
/// Length from which on a reply has all the room that one may need.
const LARGE: usize = 256 << 10;

/// Fields that are stepped over in one turn.
const FIELDS: usize = 10_000;

/// The field of [`Messages`] with messages.
const MESSAGES: u32 = 1;
/// The field of [`Messages`] with encrypted content.
const ENCRYPTED: u32 = 2;

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

/// The bare `Message` that answers a frame that is no `Messages`: its revision and PARSE_ERROR. The
/// protocol's wart: deployed servers send exactly these bytes, and clients decode them as a
/// `Messages` whose `encrypted` is empty.
const NOT_DECODABLE: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x00];
/// The same with INTERNAL_ERROR.
const INTERNAL_ERROR: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x01];

/// Answers envelopes with the help of a handler.
#[derive(Debug)]
pub struct Envelope<H> {
    handler: H,
    request_counter: u64,
    requests: Arc<Requests>,
    /// Kind of the request that is being answered, and the time since when.
    current: Option<(KindOf, Instant)>,
    context: Context,
    gate: Option<Gate>,
}

/// A request that is being answered, message by message.
///
/// Between two of them others may be answered. It holds one decoded message at a time, however many
/// arrived: first all are decoded to see that they can be, and then each again when it is carried
/// out.
pub struct Task {
    frame: Zeroizing<Vec<u8>>,
    /// Range of the messages in the frame.
    content: Range<usize>,
    to: Option<ReplyTo>,
    context: Context,
    stage: Stage,
    /// The shortest answers to all messages that have none yet.
    answers: u64,
    reply: Vec<u8>,
}

/// Progress of a request. Places are those where the next message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Checked(usize),
    CarriedOut(usize),
    Answered,
}

impl Task {
    /// Bytes of the reply so far.
    pub fn reply_so_far(&self) -> usize {
        self.reply.len()
    }

    fn next_message(&self, at: usize) -> Result<Next, scan::Malformed> {
        let mut fields = Fields::within(&self.frame, at..self.content.end);
        for _ in 0..FIELDS {
            match fields.next()? {
                None => return Ok(Next::End),
                Some((MESSAGES, Content::Bytes(place))) => {
                    return Ok(Next::Message(place, fields.position()));
                }
                // Nothing of it counts in clear text, but it has to be sound.
                Some((ENCRYPTED, Content::Bytes(place))) => {
                    encrypted_fields(&fields, place)?;
                }
                Some(_) => {}
            }
        }
        Ok(Next::Nothing(fields.position()))
    }
}

/// Next part of an envelope, and the offset of the part behind it.
enum Next {
    Message(Range<usize>, usize),
    /// Many fields that are unknown.
    Nothing(usize),
    End,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<H: Handler> Envelope<H> {
    /// Makes a processor that has processed nothing yet.
    pub fn new(handler: H) -> Self {
        let context = Context { request_counter: 0, caller: None };
        Self {
            handler,
            request_counter: 0,
            requests: Arc::default(),
            current: None,
            context,
            gate: None,
        }
    }

    /// Carries out only requests that `gate` opens, from now on.
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

    /// Returns the counts of answered requests, for any thread to read.
    pub fn requests(&self) -> Arc<Requests> {
        self.requests.clone()
    }

    /// The handler alone.
    pub fn into_handler(self) -> H {
        self.handler
    }

    /// Returns the reply to the frame `request`, whose caller is not known.
    pub fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        self.answer_to(request.to_vec(), None)
    }

    /// The reply to the frame `request` of this caller.
    pub fn answer_to(&mut self, request: Vec<u8>, caller: Option<Caller>) -> Vec<u8> {
        let mut task = self.begin_task(request, caller);
        loop {
            if let Some(reply) = self.go_on(&mut task, || true) {
                return reply;
            }
        }
    }

    /// Begins to answer the frame `request` of this caller: opens it, if it is encrypted.
    pub fn begin_task(&mut self, request: Vec<u8>, caller: Option<Caller>) -> Task {
        self.context = Context { request_counter: self.request_counter, caller };
        let mut task = Task {
            content: 0..request.len(),
            frame: Zeroizing::new(request),
            to: None,
            context: self.context,
            stage: Stage::Checked(0),
            answers: 0,
            reply: Vec::new(),
        };
        if self.gate.is_some() {
            self.open(&mut task);
        }
        task
    }

    /// Goes on as long as `may` says; the reply, when all is answered.
    pub fn go_on(&mut self, task: &mut Task, mut may: impl FnMut() -> bool) -> Option<Vec<u8>> {
        self.context = task.context;
        loop {
            match task.stage {
                Stage::Checked(at) => self.check_next(task, at),
                Stage::CarriedOut(at) => self.carry_out_next(task, at),
                Stage::Answered => return Some(std::mem::take(&mut task.reply)),
            }
            if task.stage != Stage::Answered && !may() {
                return None;
            }
        }
    }

    fn open(&mut self, task: &mut Task) {
        let found = match encrypted_part(&task.frame, task.content.clone()) {
            Err(error) => {
                self.undecodable(&task.frame, &error);
                return answered(task, NOT_DECODABLE);
            }
            Ok(None) => {
                self.refuse("a request in clear text, where a key is wanted");
                return answered(task, &refused());
            }
            Ok(Some(found)) => found,
        };
        let Some(gate) = &mut self.gate else { return };
        let reply = match gate.open(&mut task.frame, &found) {
            Opened::Introduced(reply) => reply,
            Opened::Refused(reply, why) => {
                self.refuse(&why);
                reply
            }
            Opened::Request(content, to) => {
                // It counts on its own.
                self.count_envelope(task);
                task.stage = Stage::Checked(content.start);
                task.content = content;
                task.to = Some(to);
                return;
            }
        };
        answered(
            task,
            &encoded(&Messages { encrypted: MessageField::some(reply), ..Default::default() }),
        );
    }

    /// Counts an envelope.
    fn count_envelope(&mut self, task: &mut Task) {
        self.request_counter += 1;
        self.context.request_counter = self.request_counter;
        task.context = self.context;
    }

    /// Counts an envelope that is not looked into.
    fn refuse(&mut self, why: &str) {
        self.request_counter += 1;
        self.context.request_counter = self.request_counter;
        self.begin(None);
        self.answered(false);
        warn!("refused: {why}");
        self.not_understood(why);
    }

    fn undecodable(&mut self, request: &[u8], error: &dyn fmt::Display) {
        let why = format!("a request of {} bytes is not decodable: {error}", request.len());
        warn!("{why}");
        self.not_understood(&why);
        self.requests.count(self.requests.undecodable(), false, Duration::ZERO);
    }

    /// Decodes the next message to see that it can be: what is not sound as a whole is not carried
    /// out in part.
    fn check_next(&mut self, task: &mut Task, at: usize) {
        let decoded = task.next_message(at).map_err(|error| error.to_string()).and_then(|next| {
            let (place, next) = match next {
                Next::End => return Ok(None),
                Next::Nothing(next) => return Ok(Some((0, 0, next))),
                Next::Message(place, next) => (place, next),
            };
            let id = match fit(&task.frame, place.clone()) {
                Some(bytes) => decode::<Message>(bytes)
                    .map_err(|error| error.to_string())?
                    .message_0
                    .message_id()
                    .len(),
                None => 0,
            };
            Ok(Some((SHORTEST, id as u64, next)))
        });
        match decoded {
            Err(error) => {
                self.undecodable(&task.frame[task.content.clone()], &error);
                self.finish(task, NOT_DECODABLE);
            }
            Ok(Some((answer, id, next))) => {
                task.answers += answer + id;
                task.stage = Stage::Checked(next);
                if task.answers > LONGEST - MARGIN {
                    self.refuse("a request of so many messages that their answers are longer than any reply");
                    self.finish(task, &refused());
                }
            }
            Ok(None) => {
                self.count_envelope(task);
                task.stage = Stage::CarriedOut(task.content.start);
                if task.answers == 0 {
                    // Nothing at all, or only something encrypted: for which there is no key, or
                    // under the key for a second time.
                    self.begin(None);
                    self.answered(false);
                    self.not_understood(
                        "a request without messages, or encrypted where it cannot be",
                    );
                    self.finish(task, &refused());
                }
            }
        }
    }

    /// Carries out the next message, and puts its answer behind the reply.
    fn carry_out_next(&mut self, task: &mut Task, at: usize) {
        let (place, next) = match task.next_message(at) {
            Ok(Next::Message(place, next)) => (place, next),
            Ok(Next::Nothing(next)) => return task.stage = Stage::CarriedOut(next),
            Ok(Next::End) | Err(_) => return self.finish_as_it_is(task),
        };
        let message =
            fit(&task.frame, place.clone()).and_then(|bytes| decode::<Message>(bytes).ok());
        let id = message.as_ref().map_or(0, |message| message.message_0.message_id().len());
        task.answers = task.answers.saturating_sub(SHORTEST + id as u64);
        // A reply that no client can take is not made.
        let room = LONGEST.saturating_sub(task.reply.len() as u64 + task.answers);
        let reply = match message {
            None => self.too_heavy(place.len()),
            Some(message) if room < MARGIN => self.too_much(&message, room),
            Some(message) => {
                log("request", &message);
                // A handler keeps its promises to itself by changing its state last: see
                // `Handler::handle`.
                let reply = catch_unwind(AssertUnwindSafe(|| self.message(&message)));
                let Ok(mut reply) = reply else {
                    error!(
                        "a request was given up because of a defect in this program: please report it"
                    );
                    self.answered(false);
                    return self.finish(task, INTERNAL_ERROR);
                };
                // One that does not fit is a long one: of a question, that changed nothing.
                if reply.compute_size() + HEADER > room {
                    reply = too_long(&message, room);
                }
                log("reply", &reply);
                reply
            }
        };
        append(&mut task.reply, &reply);
        task.stage = Stage::CarriedOut(next);
    }

    fn finish(&self, task: &mut Task, reply: &[u8]) {
        task.reply = reply.to_vec();
        self.finish_as_it_is(task);
    }

    fn finish_as_it_is(&self, task: &mut Task) {
        if let Some((to, gate)) = task.to.as_ref().zip(self.gate.as_ref()) {
            gate.seal(to, &mut task.reply);
        }
        if task.reply.capacity() > task.reply.len() * 2 {
            task.reply.shrink_to_fit();
        }
        task.stage = Stage::Answered;
    }

    /// Answers that the reply has no room for the answer to this message.
    fn too_much(&mut self, message: &Message, room: u64) -> Message {
        self.begin(message.message_0.as_ref().and_then(|request| request.request.as_ref()));
        self.answered(false);
        too_long(message, room)
    }

    /// A message that is small here and large when it is decoded.
    fn too_heavy(&mut self, length: usize) -> Message {
        self.begin(None);
        self.answered(false);
        let limit = weigh::MOST >> 20;
        let help = format!(
            "its {length} bytes would take more than {limit} MiB of memory: ask for less at once, as by sg_member_add"
        );
        self.not_understood(&format!("a message is too large: {help}"));
        let failure = Failure::new("the message is too large").with_help(help);
        reply(
            Response { status: MessageField::some(status(failure)), ..Default::default() },
            &Message::new(),
        )
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
            Err(failure) => {
                Response { status: MessageField::some(status(failure)), ..Default::default() }
            }
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
        self.handler.handle(action, &self.context)
    }

    /// A handler that panics on the report must not take the reply with it.
    fn not_understood(&mut self, why: &str) {
        let context = self.context;
        if catch_unwind(AssertUnwindSafe(|| self.handler.not_understood(why, &context))).is_err() {
            error!(
                "a refusal could not be told because of a defect in this program: please report it"
            );
        }
    }
}

fn nothing_asked(request: Option<&Request>) -> Failure {
    let failure = Failure::new("no request found");
    let unknown = request.and_then(|request| {
        request.special_fields.unknown_fields().iter().map(|(number, _)| number).min()
    });
    match unknown {
        None => failure,
        Some(number) => failure.with_help(format!(
            "field {number} of the request is not known to this version: the client may be newer than the daemon"
        )),
    }
}

/// The answer to what gets none, in so much room.
fn too_long(message: &Message, room: u64) -> Message {
    let failure =
        Failure::new("the reply to this batch is too long").with_help("ask in several batches");
    let answer = |failure| {
        reply(
            Response { status: MessageField::some(status(failure)), ..Default::default() },
            message,
        )
    };
    let told = answer(failure);
    if told.compute_size() + HEADER <= room { told } else { answer(Failure::default()) }
}

/// Puts an answer behind a reply, as [`Messages`] has it.
fn append(to: &mut Vec<u8>, answer: &Message) {
    let length = answer.compute_size() as usize;
    let needed = to.len() + length + HEADER as usize;
    if needed > to.capacity() && needed > LARGE {
        // Once for all: a reply that moves again and again leaves holes behind it.
        to.reserve_exact(MAX_FRAME + crypt::OVERHEAD - to.len());
    }
    let before = to.len();
    scan::push_header(to, MESSAGES, length);
    if let Err(error) = answer.write_to_vec(to) {
        error!("a reply could not be encoded: {error}");
        to.truncate(before);
        to.extend_from_slice(&refused());
    }
}

/// The [`Messages`] that refuses a whole request.
fn refused() -> Vec<u8> {
    encoded(&Messages { messages: vec![refusal(error::Code::REJECTED)], ..Default::default() })
}

/// The bytes of a message that may be decoded.
fn fit(frame: &[u8], place: Range<usize>) -> Option<&[u8]> {
    weigh::is_fit(frame, place.clone()).then(|| frame.get(place)).flatten()
}

/// Returns the place and form of the encrypted part of an envelope.
fn encrypted_part(
    frame: &[u8],
    range: Range<usize>,
) -> Result<Option<EncryptedFields>, scan::Malformed> {
    let mut fields = Fields::within(frame, range);
    let mut found: Option<EncryptedFields> = None;
    // Behind that many others it is not looked for.
    for _ in 0..FIELDS {
        let Some(field) = fields.next()? else { break };
        if let (ENCRYPTED, Content::Bytes(place)) = field {
            // Of several the last counts, form by form, as decoding has it.
            let before = found.take().unwrap_or_default();
            let EncryptedFields { sealed, legacy } = encrypted_fields(&fields, place)?;
            found = Some(EncryptedFields {
                sealed: sealed.or(before.sealed),
                legacy: legacy.or(before.legacy),
            });
        }
    }
    Ok(found)
}

fn encrypted_fields(
    fields: &Fields<'_>,
    place: Range<usize>,
) -> Result<EncryptedFields, scan::Malformed> {
    let mut found = EncryptedFields::default();
    let mut fields = fields.inside(place);
    while let Some((number, content)) = fields.next()? {
        match (number, content) {
            // An error, which means nothing in a request.
            (1, Content::Bytes(place)) => {
                let mut fields = fields.inside(place);
                while fields.next()?.is_some() {}
            }
            (2, Content::Bytes(place)) => found.legacy = Some(place),
            (100, Content::Bytes(place)) => found.sealed = Some(place),
            _ => {}
        }
    }
    Ok(found)
}

/// Ends a task with a reply as it is.
fn answered(task: &mut Task, reply: &[u8]) {
    task.reply = reply.to_vec();
    task.stage = Stage::Answered;
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
    let error = message_v0::Error {
        description: failure.description,
        help: failure.help,
        ..Default::default()
    };
    Status { status: Some(false), error: MessageField::some(error), ..Default::default() }
}

fn encoded(reply: &Messages) -> Vec<u8> {
    reply.write_to_bytes().unwrap_or_else(|error| {
        error!("a reply could not be encoded: {error}");
        INTERNAL_ERROR.to_vec()
    })
}

fn log(what: &str, message: &Message) {
    // Text is made only if the log wants it: a batch may be long.
    if enabled!(Level::DEBUG) {
        let messages = Messages { messages: vec![message.clone()], ..Default::default() };
        debug!("{what}:\n{}", text::print(&messages).trim_end());
    }
}

#[cfg(test)]
mod encryption_tests;
#[cfg(test)]
mod tests;
