//! The client's end: seals requests, opens their replies.

use super::{
    host::{now, random},
    key::Key,
    legacy,
    sealed::{Keys, Nonce},
};
use crate::{
    client::ClientError,
    decode,
    proto::{Encrypted, Messages, Sealed, encrypted, error, sealed},
};
use protobuf::{EnumOrUnknown, Message as _, MessageField};
use std::{cell::RefCell, fmt};
use zeroize::Zeroizing;

/// A daemon may begin an epoch while it is being asked, but not again and again.
const ATTEMPTS: usize = 4;

/// An encrypted request got no reply that could be read.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    /// The reply was in clear text, so anybody on the way may have written it. It is not read, but
    /// for the code if it was a refusal.
    #[error("the reply is not encrypted")]
    ClearReply(Option<error::Code>),
    /// Error in clear text: the daemon could or would not read the request.
    #[error("encrypted message error")]
    Error(Option<EnumOrUnknown<encrypted::error::Code>>),
    /// No reply under this key, or none to this request.
    #[error("cannot decrypt message")]
    Undecryptable,
    /// The reply holds nothing encrypted that is known, or that was asked for.
    #[error("nothing recognized in encrypted response")]
    Nothing,
    /// The daemon read the request and did not carry it out: its own words.
    #[error("{0}")]
    Refused(String),
    /// The request was for another epoch than the daemon's. It is only known that *that* daemon did
    /// not carry it out: an attacker in between may have passed it to another daemon with the key
    /// before.
    #[error("the daemon has a new epoch")]
    NewEpoch,
    /// The daemon begins one epoch after the other.
    #[error("the daemon asked {ATTEMPTS} times to seal the request again")]
    Restless,
    /// The system has none.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// Encrypts what a client sends, and takes nothing back that is not.
pub struct Cipher {
    key: Key,
    keys: Keys,
    legacy: bool,
    epoch: RefCell<Option<Vec<u8>>>,
}

impl Cipher {
    /// Sends requests under `key`, in the original's form with `legacy`.
    pub fn new(key: Key, legacy: bool) -> Self {
        Self { keys: Keys::of(&key), key, legacy, epoch: RefCell::new(None) }
    }

    /// Has `content` carried out: `round` sends a request and returns its reply. Returns what the
    /// reply holds. Only content that `only_asks` is sent more than once.
    pub(crate) fn exchange(
        &self,
        content: &[u8],
        only_asks: bool,
        mut round: impl FnMut(&[u8]) -> Result<Vec<u8>, ClientError>,
    ) -> Result<Zeroizing<Vec<u8>>, ClientError> {
        if self.legacy {
            let iv = random(getrandom::fill).map_err(EncryptionError::Random)?;
            let request = Encrypted {
                aes256cbc_sha512: Some(legacy::seal(&self.key, iv, content)),
                ..Default::default()
            };
            let reply = encrypted_reply(&round(&encode(request)?)?)?;
            let field = reply.aes256cbc_sha512.as_ref().ok_or(EncryptionError::Nothing)?;
            return Ok(legacy::open(&self.key, field).ok_or(EncryptionError::Undecryptable)?);
        }
        for _ in 0..ATTEMPTS {
            let (nonce, request) = self.request(content)?;
            let reply = encrypted_reply(&round(&encode(request)?)?)?;
            let field = reply.xchacha20_poly1305.as_ref().ok_or(EncryptionError::Nothing)?;
            let (_, reply) =
                self.keys.reply.open(&nonce, field).ok_or(EncryptionError::Undecryptable)?;
            let reply = decode::<Sealed>(&reply).map_err(|_| EncryptionError::Undecryptable)?;
            match reply.refusal.into_option() {
                None => return Ok(Zeroizing::new(reply.messages.ok_or(EncryptionError::Nothing)?)),
                Some(refusal) if refusal.code == Some(sealed::refusal::Code::EPOCH.into()) => {
                    let epoch = reply.epoch.ok_or(EncryptionError::Nothing)?;
                    let content_was_sent = self.epoch.replace(Some(epoch)).is_some();
                    if content_was_sent && !only_asks {
                        return Err(EncryptionError::NewEpoch.into());
                    }
                }
                Some(refusal) => {
                    return Err(EncryptionError::Refused(refusal.help().to_owned()).into());
                }
            }
        }
        Err(EncryptionError::Restless.into())
    }

    /// Makes the request for `content`. As long as no epoch is known, the request only asks for
    /// that.
    fn request(&self, content: &[u8]) -> Result<(Nonce, Encrypted), EncryptionError> {
        let epoch = self.epoch.borrow().clone();
        let messages = epoch.is_some().then(|| content.to_owned());
        let sealed = Sealed { time: Some(now()), epoch, messages, ..Default::default() };
        let sealed = Zeroizing::new(sealed.write_to_bytes().map_err(|_| EncryptionError::Nothing)?);
        let nonce = random(getrandom::fill)?;
        let field = self.keys.request.seal(&nonce, b"", &sealed).ok_or(EncryptionError::Nothing)?;
        Ok((nonce, Encrypted { xchacha20_poly1305: Some(field), ..Default::default() }))
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cipher").field("legacy", &self.legacy).finish_non_exhaustive()
    }
}

fn encode(encrypted: Encrypted) -> Result<Vec<u8>, ClientError> {
    let request = Messages { encrypted: MessageField::some(encrypted), ..Default::default() };
    request.write_to_bytes().map_err(ClientError::Encode)
}

/// The encrypted part of `reply`, which has to be one.
fn encrypted_reply(reply: &[u8]) -> Result<Encrypted, ClientError> {
    let reply = crate::client::decode_reply(reply)?;
    let Some(encrypted) = reply.encrypted.into_option() else {
        let code = reply
            .messages
            .first()
            .and_then(|message| message.error.as_ref())
            .and_then(|error| error.code);
        return Err(
            EncryptionError::ClearReply(code.and_then(|code| code.enum_value().ok())).into()
        );
    };
    match encrypted.error.as_ref() {
        Some(error) => Err(EncryptionError::Error(error.code).into()),
        None => Ok(encrypted),
    }
}

#[cfg(test)]
mod tests;
