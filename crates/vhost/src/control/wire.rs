//! Receives and sends one vhost-user message at a time, complete: bounded in size, in descriptors
//! and in time.
//!
//! The receive functions of the `vhost` crate are not used on a guest's connection, because a guest
//! can hold them:
//! - They wait for the rest of a half-sent message for ever: they take a receive time-out for an
//!   interruption and repeat.
//! - After more than 32 descriptors they start over in the middle of the message.
//! - Their replies wait for a guest that does not read.
//! - Child processes would inherit the descriptors that they receive.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    cmsg_space,
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
    },
};
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

use super::shared::Shared;

/// Time limit of a message from its first to its last byte, and of a reply until it is taken. Front
/// ends send with one system call.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// A front end left between two messages.
pub(super) const CLOSED: &str = "the front end closed the connection";
/// The front end left without reading what we sent, or its listening socket went away before it
/// accepted us.
pub(super) const RESET: &str = "the front end closed the connection without reading our answers";

const HEADER_LEN: usize = 12;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// Reason why a connection cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// We are asked to stop.
    Stopped,
    /// A sentence for the operator.
    Because(String),
}

impl Lost {
    pub fn because(reason: impl Into<String>) -> Lost {
        Lost::Because(reason.into())
    }
}

/// `struct vhost_user_msg` without its payload; fields in the machine's byte order, as the protocol
/// says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub request: u32,
    flags: u32,
    size: u32,
}

impl Header {
    /// A request.
    pub fn new(request: FrontendReq, size: usize) -> Header {
        Header { request: request.into(), flags: VERSION, size: size as u32 }
    }

    pub fn wants_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// For people.
    pub fn name(self) -> String {
        FrontendReq::try_from(self.request)
            .map_or_else(|()| format!("request {}", self.request), |code| format!("{code:?}"))
    }

    fn from_bytes(bytes: [u8; HEADER_LEN]) -> Header {
        let word = |i: usize| {
            u32::from_ne_bytes(std::array::from_fn(|n| bytes.get(i * 4 + n).copied().unwrap_or(0)))
        };
        Header { request: word(0), flags: word(1), size: word(2) }
    }

    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let words = [self.request, self.flags, self.size].map(u32::to_ne_bytes);
        let mut bytes = [0; HEADER_LEN];
        for (to, from) in bytes.iter_mut().zip(words.as_flattened()) {
            *to = *from;
        }
        bytes
    }

    /// Checks the header of a request: its version, flags and size.
    fn check(self) -> Result<(), Lost> {
        let known = VERSION_MASK | REPLY | NEED_REPLY;
        if self.flags & VERSION_MASK != VERSION
            || self.flags & !known != 0
            || self.flags & REPLY != 0
        {
            let Header { request, flags, .. } = self;
            return Err(Lost::because(format!(
                "what the peer sent is not a vhost-user request (number {request:#x}, flags {flags:#x})"
            )));
        }
        if self.size as usize > MAX_MSG_SIZE {
            let (name, size) = (self.name(), self.size);
            return Err(Lost::because(format!(
                "the front end announced a {name} of {size} bytes; at most {MAX_MSG_SIZE} are accepted"
            )));
        }
        Ok(())
    }
}

/// A whole request.
#[derive(Debug)]
pub(super) struct Message {
    pub header: Header,
    pub body: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl Message {
    /// Reads a whole request that another process received.
    pub fn read(bytes: &[u8], files: Vec<OwnedFd>) -> Result<Message, Lost> {
        let (head, body) = bytes
            .split_first_chunk()
            .ok_or_else(|| Lost::because("the front end sent half a message"))?;
        let header = Header::from_bytes(*head);
        header.check()?;
        if header.size as usize != body.len() {
            return Err(Lost::because("the front end sent half a message"));
        }
        Ok(Message { header, body: body.to_vec(), files })
    }

    /// The acknowledgement of a request that needs one: zero for success.
    pub fn ack(header: Header) -> Vec<u8> {
        let mut reply =
            Header { request: header.request, flags: VERSION | REPLY, size: 8 }.to_bytes().to_vec();
        reply.extend_from_slice(&0u64.to_ne_bytes());
        reply
    }
}

/// Waits for a message's first byte, or for anything else in `fds`.
pub(super) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    // An interruption or a shortage is a wake-up without events; callers look at the clock
    // themselves.
    if poll(fds, timeout.as_ref()).is_err() {
        for fd in fds {
            fd.clear_revents();
        }
    }
}

/// Waits until `connection` is ready, we are asked to stop, or the time is over.
fn wait_for(
    connection: BorrowedFd<'_>,
    what: PollFlags,
    shared: &Shared,
    until: Instant,
    late: &str,
) -> Result<(), Lost> {
    loop {
        if shared.stopping() {
            return Err(Lost::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Lost::because(late));
        }
        let mut fds = [
            PollFd::from_borrowed_fd(connection, what),
            PollFd::from_borrowed_fd(shared.wake_fd(), PollFlags::IN),
        ];
        wait(&mut fds, Some(left));
        if fds.iter().skip(1).any(|wake| !wake.revents().is_empty()) {
            // Other wishes wait for the end of the message.
            shared.take_wake();
        }
        if fds.first().is_some_and(|connection| !connection.revents().is_empty()) {
            return Ok(());
        }
    }
}

/// Receives one request. Call it when the connection is readable.
pub(super) fn receive(connection: &OwnedFd, shared: &Shared) -> Result<Message, Lost> {
    let until = Instant::now() + PATIENCE;
    let mut files = Vec::new();
    let mut bytes = [0; HEADER_LEN];
    fill(connection, &mut bytes, &mut files, shared, until, true)?;
    let header = Header::from_bytes(bytes);
    header.check()?;
    let mut body = vec![0; header.size as usize];
    fill(connection, &mut body, &mut files, shared, until, false)?;
    Ok(Message { header, body, files })
}

fn fill(
    connection: &OwnedFd,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
    shared: &Shared,
    until: Instant,
    first: bool,
) -> Result<(), Lost> {
    let mut done = 0;
    while let Some(room) = buffer.get_mut(done..).filter(|room| !room.is_empty()) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(connection, &mut [IoSliceMut::new(room)], &mut control, flags)
        {
            Ok(received) => received,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait_for(
                    connection.as_fd(),
                    PollFlags::IN,
                    shared,
                    until,
                    "the front end sent half a message and then nothing more",
                )?;
                continue;
            }
            Err(Errno::CONNRESET) => return Err(Lost::because(RESET)),
            Err(error) => {
                return Err(Lost::because(format!("receiving from the front end failed: {error}")));
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) && files.len() < MAX_ATTACHED_FD_ENTRIES {
            return Err(Lost::because(
                "this process has no descriptors left for those of the front end: raise its limit of open files",
            ));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || files.len() > MAX_ATTACHED_FD_ENTRIES {
            return Err(Lost::because(format!(
                "the front end sent more than {MAX_ATTACHED_FD_ENTRIES} descriptors with one message"
            )));
        }
        if received.bytes == 0 {
            return Err(Lost::because(if first && done == 0 {
                CLOSED
            } else {
                "the front end closed the connection in the middle of a message"
            }));
        }
        done += received.bytes;
    }
    Ok(())
}

/// Sends a reply.
pub(super) fn reply(connection: &OwnedFd, mut bytes: &[u8], shared: &Shared) -> Result<(), Lost> {
    let until = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        match send(connection, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                wait_for(
                    connection.as_fd(),
                    PollFlags::OUT,
                    shared,
                    until,
                    "the front end does not read our answers",
                )?;
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Lost::because(CLOSED)),
            Err(error) => {
                return Err(Lost::because(format!("answering the front end failed: {error}")));
            }
        }
    }
    Ok(())
}

/// Sends a whole request into a socket that has room for it.
pub(super) fn forward(to: impl AsFd, message: &Message) -> rustix::io::Result<()> {
    let files: Vec<_> = message.files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::MSGSIZE);
    }
    let header = message.header.to_bytes();
    let slices = [IoSlice::new(&header), IoSlice::new(&message.body)];
    let sent = sendmsg(to, &slices, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == HEADER_LEN + message.body.len() { Ok(()) } else { Err(Errno::AGAIN) }
}
