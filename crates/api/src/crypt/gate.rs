//! The daemon's end: opens requests, seals their replies.

use super::{
    guard::{Guard, Refused},
    host::{Random, WINDOW, now, random},
    key::Key,
    legacy,
    sealed::{Keys, Nonce},
};
use crate::{
    envelope::scan::{Content, Fields, push_header, push_varint},
    proto::{Encrypted, Messages, Sealed, encrypted, sealed},
};
use protobuf::{Message as _, MessageField};
use std::{fmt, ops::Range};
use zeroize::Zeroizing;

/// Decides which requests come from a client that has the key.
pub struct Gate {
    key: Key,
    keys: Keys,
    legacy: bool,
    guard: Guard,
    source: Random,
}

/// Place and form of the encrypted content of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EncryptedFields {
    pub(crate) sealed: Option<Range<usize>>,
    pub(crate) legacy: Option<Range<usize>>,
}

/// Result of opening an encrypted request.
pub(crate) enum Opened {
    /// A request, and where in the frame it is now; its reply is to be sealed.
    Request(Range<usize>, ReplyTo),
    /// A client that has the key asked for the epoch, or has to. This is its reply, and nothing
    /// more is to be said of it.
    Introduced(Encrypted),
    /// Its reply, and why.
    Refused(Encrypted, String),
}

/// Way in which a reply has to be sealed.
pub(crate) enum ReplyTo {
    Legacy,
    Sealed(Nonce),
}

impl Gate {
    /// Takes requests under `key`; in the original's form only with `legacy`. Fails when the system
    /// has no random numbers.
    pub fn new(key: Key, legacy: bool) -> Result<Self, getrandom::Error> {
        Ok(Self {
            keys: Keys::of(&key),
            key,
            legacy,
            guard: Guard::new(getrandom::fill)?,
            source: getrandom::fill,
        })
    }

    /// The same gate, on a system that ran out of random numbers.
    #[cfg(test)]
    pub(crate) fn without_random_numbers(self) -> Self {
        Self { source: |_| Err(getrandom::Error::UNSUPPORTED), ..self }
    }

    /// Opens the encrypted request in `frame`, at its place: a copy would take as much again.
    pub(crate) fn open(&mut self, frame: &mut [u8], fields: &EncryptedFields) -> Opened {
        match (&fields.sealed, &fields.legacy) {
            (Some(field), _) => self.open_sealed(frame, field.clone()),
            (None, Some(field)) if self.legacy => {
                let start = field.start;
                let content = frame
                    .get_mut(field.clone())
                    .and_then(|field| legacy::open_in_place(&self.key, field));
                match content {
                    Some(content) => {
                        Opened::Request(start + content.start..start + content.end, ReplyTo::Legacy)
                    }
                    None => unreadable(),
                }
            }
            (None, Some(_)) => refused(
                encrypted::error::Code::NOT_SUPPORTED,
                "a request in legacy encryption, which is switched off",
            ),
            (None, None) => refused(
                encrypted::error::Code::NOT_SUPPORTED,
                "an encrypted request without anything encrypted that is known",
            ),
        }
    }

    fn open_sealed(&mut self, frame: &mut [u8], field: Range<usize>) -> Opened {
        let opened = frame
            .get_mut(field.clone())
            .and_then(|bytes| self.keys.request.open_in_place(b"", bytes));
        let Some((nonce, content)) = opened else { return unreadable() };
        // A client that has the key can do better.
        let Some(SealedFields { time, epoch, messages }) =
            sealed_fields(frame, field.start + content.start..field.start + content.end)
        else {
            return unreadable();
        };
        let epoch = epoch.and_then(|epoch| frame.get(epoch)).unwrap_or_default();
        let now = now();
        let introduces = messages.is_none();
        let refusal = match self.guard.admit(now, &nonce, epoch, time) {
            Ok(()) if !introduces => {
                return Opened::Request(messages.unwrap_or_default(), ReplyTo::Sealed(nonce));
            }
            // With the right epoch already.
            Ok(()) | Err(Refused::Epoch) => None,
            Err(Refused::Clock(behind)) => Some(clock_help(behind)),
            Err(Refused::Repeated) => {
                return refused(
                    encrypted::error::Code::REJECTED,
                    "an encrypted request that was here before: somebody repeats what was sent",
                );
            }
            Err(Refused::NoEpoch) => {
                return refused(
                    encrypted::error::Code::INTERNAL_ERROR,
                    "an encrypted request, as there are no random numbers",
                );
            }
        };
        let (code, help) = match &refusal {
            None => (sealed::refusal::Code::EPOCH, "seal the request again with this epoch"),
            Some(help) => (sealed::refusal::Code::CLOCK, help.as_str()),
        };
        let refused = sealed::Refusal {
            code: Some(code.into()),
            help: Some(help.to_owned()),
            ..Default::default()
        };
        let reply = self.seal_reply(
            &nonce,
            Sealed { refusal: MessageField::some(refused), ..self.stamped(now) },
        );
        match refusal {
            None => Opened::Introduced(reply),
            Some(help) => {
                Opened::Refused(reply, format!("an encrypted request with the wrong time: {help}"))
            }
        }
    }

    /// Encrypts `reply`, at its place.
    pub(crate) fn seal(&self, to: &ReplyTo, reply: &mut Vec<u8>) {
        let sealed = match to {
            ReplyTo::Sealed(nonce) => self.seal_in_place(nonce, reply),
            ReplyTo::Legacy => random(self.source).ok().and_then(|iv| {
                let field = legacy::seal_in_place(&self.key, iv, reply)?;
                wrap(reply, 2, field, &[]);
                Some(())
            }),
        };
        if sealed.is_none() {
            let encrypted = MessageField::some(error(encrypted::error::Code::INTERNAL_ERROR));
            *reply =
                Messages { encrypted, ..Default::default() }.write_to_bytes().unwrap_or_default();
        }
    }

    fn seal_in_place(&self, to: &Nonce, reply: &mut Vec<u8>) -> Option<()> {
        let nonce: Nonce = random(self.source).ok()?;
        let mut head = Vec::new();
        push_varint(&mut head, TIME << 3);
        push_varint(&mut head, now());
        push_header(&mut head, EPOCH, self.guard.epoch().len());
        head.extend_from_slice(self.guard.epoch());
        push_header(&mut head, SEALED_MESSAGES, reply.len());
        reply.splice(0..0, head);
        let tag = self.keys.reply.seal_in_place(&nonce, to, reply)?;
        reply.extend_from_slice(&tag);
        let field = nonce.len() + reply.len();
        wrap(reply, 100, field, &nonce);
        Some(())
    }

    fn stamped(&self, now: u64) -> Sealed {
        Sealed { time: Some(now), epoch: Some(self.guard.epoch().to_vec()), ..Default::default() }
    }

    fn seal_reply(&self, to: &Nonce, content: Sealed) -> Encrypted {
        let sealed = random(self.source)
            .ok()
            .zip(content.write_to_bytes().ok().map(Zeroizing::new))
            .and_then(|(nonce, content)| self.keys.reply.seal(&nonce, to, &content));
        match sealed {
            Some(field) => Encrypted { xchacha20_poly1305: Some(field), ..Default::default() },
            None => error(encrypted::error::Code::INTERNAL_ERROR),
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("legacy", &self.legacy).finish_non_exhaustive()
    }
}

/// The fields of [`Sealed`], in clear text.
struct SealedFields {
    time: u64,
    epoch: Option<Range<usize>>,
    messages: Option<Range<usize>>,
}

const TIME: u64 = 1;
const EPOCH: u32 = 2;
const SEALED_MESSAGES: u32 = 3;

fn sealed_fields(frame: &[u8], range: Range<usize>) -> Option<SealedFields> {
    let mut fields = Fields::within(frame, range);
    let mut found = SealedFields { time: 0, epoch: None, messages: None };
    while let Some((number, content)) = fields.next().ok()? {
        match (number, content) {
            (1, Content::Varint(time)) => found.time = time,
            (EPOCH, Content::Bytes(place)) => found.epoch = Some(place),
            (SEALED_MESSAGES, Content::Bytes(place)) => found.messages = Some(place),
            _ => {}
        }
    }
    Some(found)
}

/// Makes what is the end of a field of [`Encrypted`], `length` bytes with `begin` before it, a
/// whole `Messages`.
fn wrap(content: &mut Vec<u8>, number: u32, length: usize, begin: &[u8]) {
    let mut inner = Vec::new();
    push_header(&mut inner, number, length);
    let mut head = Vec::new();
    push_header(&mut head, 2, inner.len() + length);
    head.extend_from_slice(&inner);
    head.extend_from_slice(begin);
    content.splice(0..0, head);
}

fn error(code: encrypted::error::Code) -> Encrypted {
    let error = encrypted::Error { code: Some(code.into()), ..Default::default() };
    Encrypted { error: MessageField::some(error), ..Default::default() }
}

fn refused(code: encrypted::error::Code, why: &str) -> Opened {
    Opened::Refused(error(code), why.to_owned())
}

fn unreadable() -> Opened {
    refused(
        encrypted::error::Code::REJECTED,
        "an encrypted request that was not made with this daemon's key, or was damaged on its way",
    )
}

/// Returns the advice for a request whose time is so many milliseconds before ours.
fn clock_help(behind: i128) -> String {
    let seconds = behind.unsigned_abs().div_ceil(1000);
    let side = if behind > 0 { "behind" } else { "ahead of" };
    let window = WINDOW / 1000;
    format!(
        "the request is {seconds} s {side} the daemon's clock, {window} s are allowed: it was held up, or a clock is wrong; \
         compare `date -u` on both hosts, `timedatectl` tells whether they are synchronized"
    )
}
