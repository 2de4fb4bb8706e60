//! Turns the bytes of a request into the bytes of its reply.
//!
//! The messages of a batch are answered in their order, each on its own: one that fails does not
//! stop the others. Nothing that arrives can end the process. A message that cannot be decoded is
//! answered as such, and so is a panic of the handler.

mod encrypted;
mod handler;
mod reply;
pub(crate) mod scan;
mod task;
mod weigh;

use std::{
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use protobuf::{Message as _, MessageField};
use tracing::{Level, debug, enabled, error, warn};
use zeroize::Zeroizing;

use crate::{
    Action, Caller, Requests,
    crypt::{Gate, Opened},
    decode,
    envelope::{
        encrypted::encrypted_part,
        reply::{
            HEADER, INTERNAL_ERROR, LONGEST, MARGIN, NOT_DECODABLE, SHORTEST, append, encoded,
            nothing_asked, refusal, refused, reply, status, success, too_long, undone,
        },
        task::{Next, Stage, answered},
    },
    proto::{Message, Messages, Request, Response, error},
    requests::KindOf,
    text,
};

pub use handler::{Answer, Context, Failure, Handler};
pub use task::Task;

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

impl<H: Handler> Envelope<H> {
    /// Makes a processor that has processed nothing yet.
    pub fn new(handler: H) -> Self {
        let context = Context { request_counter: 0, caller: None, sees_own_changes: false };
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
            if task.waits_for_commit() && self.handler.may_change() {
                self.handler.hand_over();
            }
            match self.handler.outcome() {
                Some(outcome) => self.settle(&mut task, &outcome),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Begins to answer the frame `request` of this caller: opens it, if it is encrypted.
    pub fn begin_task(&mut self, request: Vec<u8>, caller: Option<Caller>) -> Task {
        self.context =
            Context { request_counter: self.request_counter, caller, sees_own_changes: false };
        let mut task = Task {
            content: 0..request.len(),
            frame: Zeroizing::new(request),
            to: None,
            context: self.context,
            stage: Stage::Checked(0),
            answers: 0,
            reply: Vec::new(),
            declares: false,
            answered: 0,
            first_change: None,
            refused: None,
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
                Stage::CarriedOut(_) if self.has_to_wait(task) => return None,
                Stage::Kept => return None,
                Stage::CarriedOut(at) => self.carry_out_next(task, at),
                Stage::Answered => return Some(std::mem::take(&mut task.reply)),
            }
            if task.stage != Stage::Answered && !may() {
                return None;
            }
        }
    }

    /// True if a task has changes to make, and may not yet.
    pub fn has_to_wait(&self, task: &Task) -> bool {
        let begins = matches!(task.stage, Stage::CarriedOut(_)) && task.first_change.is_none();
        begins && task.declares && task.refused.is_none() && !self.handler.may_change()
    }

    /// The outcome of a commit is known that has the changes of a task. If it failed, each message
    /// from the first change on is answered so: what it did or saw is undone.
    pub fn settle(&mut self, task: &mut Task, outcome: &Result<(), Failure>) {
        if !task.waits_for_commit() {
            return;
        }
        if let (Err(failure), Some(first)) = (outcome, task.first_change) {
            task.reply = undone(&task.reply, first, failure).unwrap_or_else(|_| refused());
        }
        self.finish_as_it_is(task);
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
                Some(bytes) => {
                    let message = decode::<Message>(bytes).map_err(|error| error.to_string())?;
                    let request = message.message_0.request.as_ref();
                    task.declares |= request.and_then(Action::of).is_some_and(|it| it.declares());
                    message.message_0.message_id().len()
                }
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
            Ok(Next::End) | Err(_) if task.first_change.is_some() => {
                return task.stage = Stage::Kept;
            }
            Ok(Next::End) | Err(_) => return self.finish_as_it_is(task),
        };
        self.context.sees_own_changes = task.first_change.is_some();
        let made = self.handler.changes_made();
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
                let reply = catch_unwind(AssertUnwindSafe(|| {
                    self.message(&message, task.refused.as_ref())
                }));
                let Ok(mut reply) = reply else {
                    error!(
                        "a request was given up because of a defect in this program: please report it"
                    );
                    self.answered(false);
                    // What it changed before is committed with others all the same.
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
        if self.handler.changes_made() != made && task.first_change.is_none() {
            task.first_change = Some(task.answered);
        }
        task.answered += 1;
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

    fn message(&mut self, message: &Message, refused: Option<&Failure>) -> Message {
        self.begin(message.message_0.as_ref().and_then(|request| request.request.as_ref()));
        let Some(request) = message.message_0.as_ref() else {
            self.answered(false);
            self.not_understood("a message of a version that is not known");
            return refusal(error::Code::VERSION_NOT_MANAGED);
        };
        let answer = self.request(request.request.as_ref(), refused);
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

    fn request(&mut self, request: Option<&Request>, refused: Option<&Failure>) -> Answer {
        let Some(action) = request.and_then(Action::of) else {
            let failure = nothing_asked(request);
            self.not_understood(failure.help.as_deref().unwrap_or("a message without a request"));
            return Err(failure);
        };
        if let Some(failure) = refused.filter(|_| action.declares()) {
            return Err(failure.clone());
        }
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

/// The bytes of a message that may be decoded.
fn fit(frame: &[u8], place: Range<usize>) -> Option<&[u8]> {
    weigh::is_fit(frame, place.clone()).then(|| frame.get(place)).flatten()
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
