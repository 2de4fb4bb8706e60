//! Replies: what refuses, what is too long, and the bytes of all.

use protobuf::{Message as _, MessageField};
use tracing::error;

use crate::{
    MAX_FRAME, REVISION, crypt,
    envelope::{handler::Failure, scan, task::MESSAGES},
    proto::{Message, MessageV0, Messages, Request, Response, Status, error, message_v0},
};

/// The longest reply, before it is encrypted.
pub(super) const LONGEST: u64 = (MAX_FRAME - crypt::OVERHEAD) as u64;
/// Least room left in a reply that is not full: the answer to any change fits.
pub(super) const MARGIN: u64 = 1 << 20;
/// The shortest answer to a message, but for its id.
pub(super) const SHORTEST: u64 = 32;
/// The tag and the length of an answer in a reply.
pub(super) const HEADER: u64 = 6;
/// Length from which on a reply has all the room that one may need.
const LARGE: usize = 256 << 10;

/// The bare `Message` that answers a frame that is no `Messages`: its revision and PARSE_ERROR. The
/// protocol's wart: deployed servers send exactly these bytes, and clients decode them as a
/// `Messages` whose `encrypted` is empty.
pub(super) const NOT_DECODABLE: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x00];
/// The same with INTERNAL_ERROR.
pub(super) const INTERNAL_ERROR: &[u8] = &[0x08, 0x06, 0x12, 0x02, 0x08, 0x01];

pub(super) fn nothing_asked(request: Option<&Request>) -> Failure {
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
pub(super) fn too_long(message: &Message, room: u64) -> Message {
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
pub(super) fn append(to: &mut Vec<u8>, answer: &Message) {
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
pub(super) fn refused() -> Vec<u8> {
    encoded(&Messages { messages: vec![refusal(error::Code::REJECTED)], ..Default::default() })
}

/// A reply whose answers from number `first` on are `failure`.
pub(super) fn undone(
    replied: &[u8],
    first: u64,
    failure: &Failure,
) -> Result<Vec<u8>, scan::Malformed> {
    let mut answers = scan::Fields::within(replied, 0..replied.len());
    let mut made = Vec::new();
    let mut number = 0;
    while let Some((field, content)) = answers.next()? {
        let (MESSAGES, scan::Content::Bytes(place)) = (field, content) else { continue };
        let mut answer = Message::parse_from_bytes(replied.get(place).unwrap_or_default())
            .unwrap_or_else(|_| Message::new());
        if number >= first {
            let status = MessageField::some(status(failure.clone()));
            answer = reply(Response { status, ..Default::default() }, &answer);
        }
        append(&mut made, &answer);
        number += 1;
    }
    Ok(made)
}

/// A response to a message.
pub(super) fn reply(response: Response, to: &Message) -> Message {
    let reply = MessageV0 {
        response: MessageField::some(response),
        message_id: to.message_0.as_ref().and_then(|request| request.message_id.clone()),
        ..Default::default()
    };
    Message { revision: Some(REVISION), message_0: MessageField::some(reply), ..Default::default() }
}

pub(super) fn refusal(code: error::Code) -> Message {
    let error = crate::proto::Error { code: Some(code.into()), ..Default::default() };
    Message { revision: Some(REVISION), error: MessageField::some(error), ..Default::default() }
}

pub(super) fn success() -> Status {
    Status { status: Some(true), ..Default::default() }
}

pub(super) fn status(failure: Failure) -> Status {
    let error = message_v0::Error {
        description: failure.description,
        help: failure.help,
        ..Default::default()
    };
    Status { status: Some(false), error: MessageField::some(error), ..Default::default() }
}

pub(super) fn encoded(reply: &Messages) -> Vec<u8> {
    reply.write_to_bytes().unwrap_or_else(|error| {
        error!("a reply could not be encoded: {error}");
        INTERNAL_ERROR.to_vec()
    })
}
