//! The ZeroMQ end of a client.

use crate::{
    Action, MAX_FRAME,
    crypt::{Cipher, EncryptionError},
    proto::{Message, Messages},
};
use protobuf::Message as _;
use std::time::Duration;
use zmq::{Context, Socket, SocketType};

/// A request got no usable reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is none.
    #[error(
        "cannot connect to {endpoint}: {reason}; an endpoint looks like tcp://127.0.0.1:9999 or ipc:///run/butterfly.sock"
    )]
    Connect {
        /// The endpoint as it was given.
        endpoint: String,
        /// ZeroMQ's error.
        reason: zmq::Error,
    },
    /// The request could not be queued in time.
    #[error("send timeout")]
    SendTimeout,
    /// No reply came in time: no daemon listens there, or it is stuck.
    #[error("receive timeout")]
    ReceiveTimeout,
    /// The request lacks a required field.
    #[error("the request cannot be encoded: {0}")]
    Encode(protobuf::Error),
    /// The reply is not a message.
    #[error("the reply cannot be decoded: {0}")]
    Decode(protobuf::Error),
    /// ZeroMQ itself failed.
    #[error("ZeroMQ failed: {0}")]
    Zmq(#[from] zmq::Error),
    /// No encrypted reply to an encrypted request.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
}

/// A connection to a daemon.
pub struct Client {
    socket: Socket,
    cipher: Option<Box<Cipher>>,
}

impl Client {
    /// Connects to `endpoint`, in the background: a daemon that is not there shows as a time-out.
    /// Each request may take `timeout` to leave and again as long for its reply; without one it
    /// waits for ever.
    pub fn connect(endpoint: &str, timeout: Option<Duration>) -> Result<Self, ClientError> {
        let refused = |reason| ClientError::Connect { endpoint: endpoint.to_owned(), reason };
        crate::endpoint::check(endpoint).map_err(refused)?;
        let socket = Context::new().socket(SocketType::REQ)?;
        // A request that was not sent must not keep the process from ending.
        socket.set_linger(0)?;
        socket.set_maxmsgsize(MAX_FRAME as i64)?;
        socket.set_ipv6(endpoint.contains('['))?;
        // After a time-out the next request may be sent at once; a reply that comes late is thrown
        // away.
        socket.set_req_relaxed(true)?;
        socket.set_req_correlate(true)?;
        // Not `immediate`: it throws away a reply that was received from a server which then
        // closed, as on `app_quit`.
        let timeout =
            timeout.map_or(-1, |timeout| i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX));
        socket.set_sndtimeo(timeout)?;
        socket.set_rcvtimeo(timeout)?;
        socket.connect(endpoint).map_err(refused)?;
        Ok(Self { socket, cipher: None })
    }

    /// Encrypts requests of [`Self::call`] from now on, and accepts no reply in clear text.
    pub fn encrypted(self, cipher: Cipher) -> Self {
        Self { cipher: Some(Box::new(cipher)), ..self }
    }

    /// Sends `request` and waits for its reply, bytes both.
    pub fn exchange(&self, request: &[u8]) -> Result<Vec<u8>, ClientError> {
        self.send(request)?;
        self.receive()
    }

    fn send(&self, request: &[u8]) -> Result<(), ClientError> {
        self.socket.send(request, 0).map_err(|error| match error {
            zmq::Error::EAGAIN => ClientError::SendTimeout,
            other => other.into(),
        })
    }

    fn receive(&self) -> Result<Vec<u8>, ClientError> {
        loop {
            return match self.socket.recv_bytes(0) {
                Ok(reply) => Ok(reply),
                Err(zmq::Error::EAGAIN) => Err(ClientError::ReceiveTimeout),
                // A signal that the program handles: the reply is still to come.
                Err(zmq::Error::EINTR) => continue,
                Err(other) => Err(other.into()),
            };
        }
    }

    /// Sends `request` and waits for its reply.
    pub fn call(&self, request: &Messages) -> Result<Messages, ClientError> {
        self.round_trip(request, |bytes| self.exchange(bytes))
    }

    /// Does the same as [`Self::call`], with a say about a late reply.
    ///
    /// If no reply came within `patience`, it calls `late` once, and goes on waiting if that
    /// returns true. Else it ends as a time-out.
    pub fn call_patiently(
        &self,
        request: &Messages,
        patience: Duration,
        late: impl FnOnce() -> bool,
    ) -> Result<Messages, ClientError> {
        let patience = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
        let mut late = Some(late);
        self.round_trip(request, |bytes| {
            self.send(bytes)?;
            // Interrupted by a signal, it is just called early.
            if late.is_some()
                && self.socket.poll(zmq::POLLIN, patience).unwrap_or(0) == 0
                && let Some(late) = late.take()
                && !late()
            {
                return Err(ClientError::ReceiveTimeout);
            }
            self.receive()
        })
    }

    fn round_trip(
        &self,
        request: &Messages,
        mut exchange: impl FnMut(&[u8]) -> Result<Vec<u8>, ClientError>,
    ) -> Result<Messages, ClientError> {
        let bytes = request.write_to_bytes().map_err(ClientError::Encode)?;
        match &self.cipher {
            None => decode_reply(&exchange(&bytes)?),
            Some(cipher) => decode_reply(&cipher.exchange(&bytes, only_asks(request), exchange)?),
        }
    }
}

/// True if carrying it out leaves nothing behind.
fn only_asks(request: &Messages) -> bool {
    let asks = |message: &Message| {
        let request = message.message_0.as_ref().and_then(|message| message.request.as_ref());
        request.and_then(Action::of).is_none_or(|action| !action.changes())
    };
    request.messages.iter().all(asks)
}

/// Decodes a reply.
///
/// A daemon answers what it cannot decode with a bare `Message`, which happens to decode as a
/// `Messages` with nothing in it: it becomes a `Messages` with that one message.
pub fn decode_reply(reply: &[u8]) -> Result<Messages, ClientError> {
    let messages = crate::decode::<Messages>(reply).map_err(ClientError::Decode)?;
    let nothing_encrypted = messages.encrypted.as_ref().is_none_or(|encrypted| {
        encrypted.error.is_none()
            && encrypted.aes256cbc_sha512.is_none()
            && encrypted.xchacha20_poly1305.is_none()
    });
    if messages.messages.is_empty()
        && nothing_encrypted
        && let Ok(bare) = crate::decode::<Message>(reply)
    {
        return Ok(Messages { messages: vec![bare], ..Default::default() });
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::error::Code;

    #[test]
    fn the_bare_message_is_understood() {
        for (last, code) in [(0, Code::PARSE_ERROR), (1, Code::INTERNAL_ERROR)] {
            let reply = decode_reply(&[8, 6, 0x12, 2, 8, last]).unwrap();
            assert_eq!(reply.messages.len(), 1);
            assert_eq!(reply.messages[0].error.code(), code);
        }
    }

    #[test]
    fn other_replies_stay_as_they_are() {
        assert_eq!(decode_reply(b"").unwrap(), Messages::new());
        let encrypted =
            crate::text::parse::<Messages>("encrypted { error { code: REJECTED } }").unwrap();
        assert_eq!(decode_reply(&encrypted.write_to_bytes().unwrap()).unwrap(), encrypted);
        assert!(matches!(decode_reply(b"\xff"), Err(ClientError::Decode(_))));
    }
}
