//! vhost-user messages as bytes: for what the front end of the `vhost` crate does not send, or
//! would never send.
//!
//! The message format is that of QEMU's docs/interop/vhost-user.rst: request, flags and body length
//! as native 32-bit numbers, then the body; file descriptors travel with the first byte.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
pub use vhost::vhost_user::message::FrontendReq;

/// Bytes of a message header.
pub const HEADER_LEN: usize = 12;
/// Header flags: protocol version 1.
pub const VERSION: u32 = 1;
/// Header flag: this is a reply.
pub const REPLY: u32 = 4;
/// Header flag: the sender waits for a reply (REPLY_ACK).
pub const NEED_REPLY: u32 = 8;
/// Bit in the body of SET_VRING_KICK, CALL and ERR: no descriptor comes with it.
pub const NO_FD: u64 = 1 << 8;
/// Most descriptors one message carries here.
pub const MAX_FDS: usize = 32;

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Request number ([`FrontendReq`]).
    pub request: u32,
    /// Header flags.
    pub flags: u32,
    /// Body.
    pub body: Vec<u8>,
    /// Descriptors that came along.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The body's first 64-bit number, 0 if it is shorter.
    pub fn u64(&self) -> u64 {
        self.body.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

/// A header.
pub fn header(request: u32, flags: u32, body_len: u32) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    for (field, value) in bytes.chunks_exact_mut(4).zip([request, flags, body_len]) {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// A header and its body, with the length the body has.
pub fn message(request: FrontendReq, flags: u32, body: &[u8]) -> Vec<u8> {
    [&header(request as u32, flags, body.len() as u32)[..], body].concat()
}

/// A body of 64-bit numbers.
pub fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// A body of a queue index and a number (SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE,
/// SET_VRING_ENABLE).
pub fn vring_state(index: u32, value: u32) -> Vec<u8> {
    [index.to_ne_bytes(), value.to_ne_bytes()].concat()
}

/// Sends bytes as they are, `fds` with the first of them. Blocks at most as long as the stream's
/// write time-out.
pub fn send_bytes(stream: &UnixStream, mut bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("more than {MAX_FDS} descriptors"),
        ));
    }
    while !bytes.is_empty() {
        let bytes_left = [IoSlice::new(bytes)];
        // With a time-out, a signal ends the call even if its handler restarts others.
        let sent =
            retry_on_intr(|| sendmsg(stream, &bytes_left, &mut control, SendFlags::NOSIGNAL))?;
        control.clear();
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Receives one message. Blocks at most as long as the stream's read time-out between two pieces.
pub fn recv(stream: &UnixStream) -> io::Result<Message> {
    let mut fds = Vec::new();
    let mut head = [0; HEADER_LEN];
    fill(stream, &mut head, &mut fds)?;
    let field =
        |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let len = field(8) as usize;
    if len > 1 << 16 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {len} bytes"),
        ));
    }
    let mut body = vec![0; len];
    fill(stream, &mut body, &mut fds)?;
    Ok(Message { request: field(0), flags: field(4), body, fds })
}

fn fill(stream: &UnixStream, mut bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = retry_on_intr(|| {
            let room = &mut [IoSliceMut::new(bytes)];
            recvmsg(stream, room, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?
        .bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = bytes.split_at_mut(got).1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_carry_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        b.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let body = words(&[7, 9]);
        send_bytes(
            &a,
            &message(FrontendReq::SET_LOG_BASE, VERSION | NEED_REPLY, &body),
            &[a.as_fd(), b.as_fd()],
        )
        .unwrap();
        send_bytes(&a, &header(1, VERSION, 0), &[]).unwrap();
        let got = recv(&b).unwrap();
        assert_eq!((got.request, got.flags, got.u64()), (FrontendReq::SET_LOG_BASE as u32, 9, 7));
        assert_eq!((&got.body, got.fds.len()), (&body, 2));
        drop(got); // its descriptors keep the other end open
        assert_eq!(recv(&b).unwrap().request, 1);
        drop(a);
        assert_eq!(recv(&b).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
