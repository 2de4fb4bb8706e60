//! The daemon's end: opens requests, seals their replies.

use super::{
    Key, Random, WINDOW,
    guard::{Guard, Refused},
    legacy, now, random,
    sealed::{Keys, Nonce},
};
use crate::{
    decode,
    proto::{Encrypted, Sealed, encrypted, sealed},
};
use protobuf::{Message as _, MessageField};
use std::fmt;
use zeroize::Zeroizing;

/// Decides which requests are those of somebody who has the key.
pub struct Gate {
    key: Key,
    keys: Keys,
    legacy: bool,
    guard: Guard,
    source: Random,
}

/// What an encrypted request turned out to be.
pub(crate) enum Opened {
    /// A request; its reply is to be sealed.
    Request(Zeroizing<Vec<u8>>, ReplyTo),
    /// Somebody who has the key asked for the epoch, or has to: that is its reply, and nothing more is to be said of it.
    Introduced(Encrypted),
    /// Its reply, and why.
    Refused(Encrypted, String),
}

/// How a reply has to be sealed.
pub(crate) enum ReplyTo {
    Legacy,
    Sealed(Nonce),
}

impl Gate {
    /// Takes requests under `key`; in the original's form only with `legacy`. Fails when the system has no random numbers.
    pub fn new(key: Key, legacy: bool) -> Result<Self, getrandom::Error> {
        Ok(Self { keys: Keys::of(&key), key, legacy, guard: Guard::new(getrandom::fill)?, source: getrandom::fill })
    }

    /// The same gate, on a system that ran out of random numbers.
    #[cfg(test)]
    pub(crate) fn without_random_numbers(self) -> Self {
        Self { source: |_| Err(getrandom::Error::UNSUPPORTED), ..self }
    }

    /// Opens the request `encrypted`.
    pub(crate) fn open(&mut self, encrypted: &Encrypted) -> Opened {
        match (&encrypted.xchacha20_poly1305, &encrypted.aes256cbc_sha512) {
            (Some(field), _) => self.open_sealed(field),
            (None, Some(field)) if self.legacy => match legacy::open(&self.key, field) {
                Some(content) => Opened::Request(content, ReplyTo::Legacy),
                None => unreadable(),
            },
            (None, Some(_)) => {
                refused(encrypted::error::Code::NOT_SUPPORTED, "a request in legacy encryption, which is switched off")
            }
            (None, None) => {
                refused(encrypted::error::Code::NOT_SUPPORTED, "an encrypted request without anything encrypted that is known")
            }
        }
    }

    fn open_sealed(&mut self, field: &[u8]) -> Opened {
        let Some((nonce, content)) = self.keys.request.open(b"", field) else { return unreadable() };
        // Whoever has the key can do better.
        let Ok(Sealed { time, epoch, messages, .. }) = decode::<Sealed>(&content) else { return unreadable() };
        let now = now();
        let introduces = messages.is_none();
        let refusal = match self.guard.admit(now, &nonce, epoch.as_deref().unwrap_or_default(), time.unwrap_or_default()) {
            Ok(()) if !introduces => {
                return Opened::Request(Zeroizing::new(messages.unwrap_or_default()), ReplyTo::Sealed(nonce));
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
                return refused(encrypted::error::Code::INTERNAL_ERROR, "an encrypted request, as there are no random numbers");
            }
        };
        let (code, help) = match &refusal {
            None => (sealed::refusal::Code::EPOCH, "seal the request again with this epoch"),
            Some(help) => (sealed::refusal::Code::CLOCK, help.as_str()),
        };
        let refused = sealed::Refusal { code: Some(code.into()), help: Some(help.to_owned()), ..Default::default() };
        let reply = self.seal_reply(&nonce, Sealed { refusal: MessageField::some(refused), ..self.stamped(now) });
        match refusal {
            None => Opened::Introduced(reply),
            Some(help) => Opened::Refused(reply, format!("an encrypted request with the wrong time: {help}")),
        }
    }

    /// The encrypted reply with `content`.
    pub(crate) fn seal(&self, to: &ReplyTo, content: &[u8]) -> Encrypted {
        match to {
            ReplyTo::Sealed(nonce) => {
                self.seal_reply(nonce, Sealed { messages: Some(content.to_owned()), ..self.stamped(now()) })
            }
            ReplyTo::Legacy => match random(self.source) {
                Ok(iv) => Encrypted { aes256cbc_sha512: Some(legacy::seal(&self.key, iv, content)), ..Default::default() },
                Err(_) => error(encrypted::error::Code::INTERNAL_ERROR),
            },
        }
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

/// What to do about a request whose time is so many milliseconds before ours.
fn clock_help(behind: i128) -> String {
    let seconds = behind.unsigned_abs().div_ceil(1000);
    let side = if behind > 0 { "behind" } else { "ahead of" };
    let window = WINDOW / 1000;
    format!(
        "the request is {seconds} s {side} the daemon's clock, {window} s are allowed: it was held up, or a clock is wrong; \
         compare `date -u` on both hosts, `timedatectl` tells whether they are synchronized"
    )
}
