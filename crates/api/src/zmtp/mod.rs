//! The daemon's end of ZMTP 3.0 and 3.1, one connection at a time, as a state machine without any
//! input or output.
//!
//! It speaks RFC 23/ZMTP and 37/ZMTP 3.1 with the NULL mechanism. For REQ and DEALER sockets (and
//! ROUTER ones of proxies) it answers as ROUTER does (28/REQREP). It keeps a message only as far as
//! it is a request: the way back and the first part behind the empty delimiter. It counts and
//! forgets all other parts. So the memory of a connection is bounded: [`ALLOWANCE`] for requests,
//! [`LONGEST_ROUTE`] for the way back, [`LONGEST_COMMAND`] for a command. A longer request has the
//! room that its owner gave it.

mod handshake;
mod message;
mod refusal;

use handshake::{GREETING, Greeting};
use message::Incoming;
pub use refusal::{LONGEST_COMMAND, LONGEST_ROUTE, Refusal};
use std::collections::VecDeque;

/// Bytes that the requests of one connection take without asking for room.
pub const ALLOWANCE: usize = 2048;
/// Requests of one connection that wait to be answered.
const WAITING: usize = 16;
/// Bytes of a waiting request beside its own, about.
const OVERHEAD: usize = 64;
/// A reply up to this length is sent in one piece with what is before it.
const ONE_PIECE: usize = 4096;
/// Bytes of a heartbeat's context.
const LONGEST_CONTEXT: usize = 16;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A request, whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The way back, as frames.
    pub route: Vec<u8>,
    /// The first part behind the delimiter.
    pub body: Vec<u8>,
    /// Bytes of room that were given for it.
    pub room: usize,
}

impl Request {
    fn allowance(&self) -> usize {
        OVERHEAD + self.route.len() + if self.room == 0 { self.body.len() } else { 0 }
    }
}

/// Phase of a connection.
#[derive(Debug)]
enum Phase {
    Greeting(Greeting),
    /// The peer's READY is awaited.
    Metadata,
    Open,
}

/// The frame that is being received.
#[derive(Debug)]
struct Frame {
    flags: u8,
    left: u64,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    phase: Phase,
    header: Vec<u8>,
    frame: Option<Frame>,
    command: Vec<u8>,
    incoming: Incoming,
    requests: VecDeque<Request>,
    /// Bytes to send first, before `body`.
    head: Vec<u8>,
    body: Vec<u8>,
    sent: usize,
    /// The context of a heartbeat that is to be answered.
    pong: Option<Vec<u8>>,
}

impl Default for Connection {
    fn default() -> Self {
        Self::new()
    }
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new() -> Self {
        Self {
            phase: Phase::Greeting(Greeting::default()),
            header: Vec::new(),
            frame: None,
            command: Vec::new(),
            incoming: Incoming::default(),
            requests: VecDeque::new(),
            head: GREETING.to_vec(),
            body: Vec::new(),
            sent: 0,
            pong: None,
        }
    }

    /// Takes what was received, and returns how much of it. The rest is to be offered again when
    /// the connection [`Self::is_ready`] again.
    ///
    /// # Errors
    /// After a refusal the connection is to be closed.
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let mut rest = input;
        while !rest.is_empty() && self.is_ready() {
            let taken = match &mut self.phase {
                Phase::Greeting(greeting) => {
                    let (taken, whole) = greeting.take(rest)?;
                    if whole {
                        self.phase = Phase::Metadata;
                        self.head.extend_from_slice(handshake::READY);
                    }
                    taken
                }
                Phase::Metadata | Phase::Open => self.take_frame(rest)?,
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(input.len() - rest.len())
    }

    /// True if it takes input: neither room nor answers are to come first.
    pub fn is_ready(&self) -> bool {
        self.wanted().is_none()
            && self.requests.len() < WAITING
            && self.queued() < ALLOWANCE
            && !self.waits_for_its_turn()
    }

    /// The length of a request that needs more room than a connection has by itself.
    pub fn wanted(&self) -> Option<usize> {
        self.incoming.waiting.filter(|length| *length > ALLOWANCE)
    }

    /// Gives room for the request that [`Self::wanted`] it. Until the request is taken it counts as
    /// the connection's.
    pub fn give_room(&mut self) {
        if let Some(length) = self.wanted() {
            self.incoming.begin(length, length);
            self.end_of_part();
        }
    }

    /// Returns how many bytes it takes at least that belong to a request it has room for.
    pub fn expects(&self) -> usize {
        match &self.frame {
            Some(frame) if self.incoming.is_receiving() => {
                usize::try_from(frame.left).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }

    /// True if the handshake is over.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// True if a message has begun and is not complete.
    pub fn is_amid_a_message(&self) -> bool {
        self.is_open()
            && (self.frame.is_some() || !self.header.is_empty() || self.incoming.has_begun())
    }

    /// The room that was given and not taken with a request yet.
    pub fn room(&self) -> usize {
        self.incoming.room() + self.requests.iter().map(|request| request.room).sum::<usize>()
    }

    /// True if there is a request.
    pub fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The next request. It is answered by [`Self::reply`], and then the next one may be taken.
    pub fn take_request(&mut self) -> Option<Request> {
        let request = self.requests.pop_front();
        if !self.waits_for_its_turn()
            && let Some(length) = self.incoming.waiting
            && length <= ALLOWANCE
        {
            self.incoming.begin(length, 0);
            self.end_of_part();
        }
        request
    }

    /// Puts a reply behind what is to be sent.
    pub fn reply(&mut self, route: &[u8], body: Vec<u8>) {
        self.head.extend_from_slice(route);
        push_header(&mut self.head, 0, body.len());
        if body.len() <= ONE_PIECE && self.body.is_empty() {
            self.head.extend_from_slice(&body);
        } else {
            self.body = body;
        }
    }

    /// Returns the bytes to send next; empty if there are none.
    pub fn output(&self) -> &[u8] {
        match self.head.get(self.sent..) {
            Some(head) if !head.is_empty() => head,
            _ => self.body.get(self.sent.saturating_sub(self.head.len())..).unwrap_or_default(),
        }
    }

    /// Bytes that are to be sent.
    pub fn unsent(&self) -> usize {
        (self.head.len() + self.body.len()).saturating_sub(self.sent)
    }

    /// Records that so many bytes of the output were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.head.len() + self.body.len() {
            self.sent = 0;
            self.head.clear();
            self.head.shrink_to(ALLOWANCE);
            self.body = Vec::new();
            self.answer_heartbeat();
        }
    }

    /// Bytes that it holds of a message that is not whole and has no room.
    #[cfg(test)]
    fn incoming_bytes(&self) -> usize {
        self.incoming.held()
    }

    fn queued(&self) -> usize {
        self.requests.iter().map(Request::allowance).sum()
    }

    /// True if a short request waits until those before it are answered.
    fn waits_for_its_turn(&self) -> bool {
        self.incoming
            .waiting
            .is_some_and(|length| length <= ALLOWANCE && length + self.queued() > ALLOWANCE)
    }

    fn take_frame(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let Some(frame) = &mut self.frame else { return self.take_header(input) };
        let length = usize::try_from(frame.left).unwrap_or(usize::MAX).min(input.len());
        let part = input.get(..length).unwrap_or_default();
        frame.left -= length as u64;
        if frame.flags & COMMAND != 0 {
            self.command.extend_from_slice(part);
        } else {
            self.incoming.extend(part);
        }
        self.end_of_frame()?;
        Ok(length)
    }

    fn take_header(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let flags = *self.header.first().or(input.first()).unwrap_or(&0);
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Refusal::Flags(flags));
        }
        let length = if flags & LONG != 0 { 9 } else { 2 };
        let taken = input.len().min(length - self.header.len().min(length));
        self.header.extend_from_slice(input.get(..taken).unwrap_or_default());
        if self.header.len() == length {
            let left = self.header.iter().skip(1).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            self.header.clear();
            self.begin_frame(flags, left)?;
        }
        Ok(taken)
    }

    fn begin_frame(&mut self, flags: u8, left: u64) -> Result<(), Refusal> {
        self.frame = Some(Frame { flags, left });
        if flags & COMMAND != 0 {
            if left > LONGEST_COMMAND as u64 {
                return Err(Refusal::LongCommand(left));
            }
            self.command.clear();
        } else if !self.is_open() {
            return Err(Refusal::Handshake("a message came before its metadata"));
        } else {
            self.incoming.part(left)?;
            if let Some(length) = self.incoming.waiting.filter(|length| *length <= ALLOWANCE)
                && !self.waits_for_its_turn()
            {
                self.incoming.begin(length, 0);
            }
            if self.incoming.waiting.is_some() {
                return Ok(());
            }
        }
        self.end_of_frame()
    }

    /// A part that waited for room may be an empty one.
    fn end_of_part(&mut self) {
        // It is no command, so it cannot be refused.
        let _ = self.end_of_frame();
    }

    fn end_of_frame(&mut self) -> Result<(), Refusal> {
        let Some(frame) = self.frame.take_if(|frame| frame.left == 0) else { return Ok(()) };
        if frame.flags & COMMAND != 0 {
            let command = std::mem::take(&mut self.command);
            return self.obey(&command);
        }
        if let Some(request) = self.incoming.end_of_part(frame.flags & MORE != 0) {
            self.requests.push_back(request);
        }
        Ok(())
    }

    fn obey(&mut self, command: &[u8]) -> Result<(), Refusal> {
        if let Phase::Metadata = self.phase {
            handshake::check_ready(command)?;
            self.phase = Phase::Open;
        } else if let Some(heartbeat) = command.strip_prefix(b"\x04PING") {
            let context = heartbeat.get(2..).ok_or(Refusal::Heartbeat)?;
            // Of several that wait the newest is answered: any answer is a sign of life.
            self.pong = Some(context.get(..LONGEST_CONTEXT).unwrap_or(context).to_vec());
            if self.unsent() == 0 {
                self.answer_heartbeat();
            }
        }
        // Others, as those of subscribers, mean nothing to us.
        Ok(())
    }

    fn answer_heartbeat(&mut self) {
        if let Some(context) = self.pong.take() {
            push_header(&mut self.head, COMMAND, 5 + context.len());
            self.head.extend_from_slice(b"\x04PONG");
            self.head.extend_from_slice(&context);
        }
    }
}

/// The header of a frame.
fn push_header(to: &mut Vec<u8>, flags: u8, length: usize) {
    match u8::try_from(length) {
        Ok(length) => to.extend_from_slice(&[flags, length]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
