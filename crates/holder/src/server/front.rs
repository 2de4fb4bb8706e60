//! A front end's connection: whole messages in, replies out.
//!
//! Of a message only the frame is read: version, flags, size, and the number of descriptors.

use std::{
    io::IoSliceMut,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use rustix::{
    cmsg_space,
    io::{Errno, ioctl_fionread},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, Shutdown,
        recvmsg, send, shutdown, sockopt::socket_peercred,
    },
};

use crate::{
    closer::{Closer, Debt},
    protocol::{MAX_FILES, MAX_KEPT, MAX_MESSAGE, Malformed},
    server::passing::{Giver, Pass, Taker},
};

/// Bytes of a header.
const HEADER: usize = 12;
/// Most bytes of a body.
const MAX_BODY: usize = 4096;
/// Most descriptors of a message.
const MAX_ATTACHED: usize = 32;
/// A front end that blocks may have so many bytes unread before it sleeps.
const MUCH: u64 = 64 << 10;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// Requests that are always answered (vhost-user specification, "Front-end message types"):
/// GET_FEATURES, SET_LOG_BASE, GET_VRING_BASE, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_CONFIG,
/// GET_INFLIGHT_FD, GET_MAX_MEM_SLOTS.
const ANSWERED: [u32; 8] = [1, 6, 11, 15, 17, 24, 31, 36];

/// A process, as long as the host runs: number and start.
pub type Process = (u32, u64);

/// Result of reading.
pub enum Read {
    Nothing,
    Message(Vec<u8>, Vec<OwnedFd>),
    /// The connection cannot go on: why.
    Lost(String),
}

pub struct Front {
    fd: OwnedFd,
    pub pid: Option<u32>,
    pub process: Option<Process>,
    /// Its process left once and came back: it will again.
    pub returns: bool,
    /// It said something.
    pub spoke: bool,
    pub connected: Instant,
    /// A message that is not whole yet, and since when.
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
    begun: Option<Instant>,
    /// The rest of a reply, and since when it waits.
    reply: Vec<u8>,
    unread: Option<Instant>,
}

impl Front {
    pub fn new(fd: OwnedFd, left: Option<Process>) -> Front {
        let pid = socket_peercred(&fd)
            .ok()
            .and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
        let process = pid.and_then(|pid| Some((pid, started(pid)?)));
        Front {
            fd,
            pid,
            process,
            returns: process.is_some() && process == left,
            spoke: false,
            connected: Instant::now(),
            bytes: Vec::new(),
            files: Vec::new(),
            begun: None,
            reply: Vec::new(),
            unread: None,
        }
    }

    /// True if nothing of a reply is left to be written.
    pub fn is_answered(&self) -> bool {
        self.reply.is_empty()
    }

    /// Time since which half a message is there, or a reply is not read.
    pub fn half_since(&self) -> Option<Instant> {
        self.begun.into_iter().chain(self.unread).min()
    }

    /// Why the front end goes when that was too long.
    pub fn late(&self) -> &'static str {
        if self.unread.is_some() {
            "the front end does not read our answers"
        } else {
            "the front end sent half a message and then nothing more"
        }
    }

    /// True if it said something that was not read.
    pub fn says_more(&self) -> bool {
        ioctl_fionread(&self.fd).is_ok_and(|bytes| bytes > 0)
    }

    /// True if it may soon sleep until something is read.
    pub fn says_much(&self) -> bool {
        ioctl_fionread(&self.fd).is_ok_and(|bytes| bytes > MUCH)
    }

    /// Has the front end see its connection end.
    pub fn shut(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    pub fn discard(self, debt: &Debt, closer: &mut Closer) {
        closer.discard_of(debt, self.files.into_iter().chain([self.fd]));
    }

    /// Begins to send a reply.
    pub fn answer(&mut self, reply: Vec<u8>) {
        if !reply.is_empty() {
            self.reply = reply;
            self.unread = Some(Instant::now());
        }
    }

    /// Sends more of a reply. Returns why the connection cannot go on, if so.
    pub fn flush(&mut self) -> Result<(), String> {
        while !self.reply.is_empty() {
            match send(&self.fd, &self.reply, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.reply.drain(..n.min(self.reply.len()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err("the front end closed the connection".to_owned());
                }
                Err(error) => return Err(format!("answering the front end failed: {error}")),
            }
        }
        self.unread = None;
        Ok(())
    }

    /// Reads one message, or a part of it. Sets `exhausted` if descriptors were lost for want of
    /// room in this process.
    pub fn read(&mut self) -> Read {
        loop {
            let wanted = match self.wanted() {
                Ok(0) => {
                    self.begun = None;
                    self.spoke = true;
                    return Read::Message(
                        std::mem::take(&mut self.bytes),
                        std::mem::take(&mut self.files),
                    );
                }
                Ok(wanted) => wanted,
                Err(why) => return Read::Lost(why),
            };
            match self.receive(wanted) {
                Ok(true) => {}
                Ok(false) => return Read::Nothing,
                Err(why) => return Read::Lost(why),
            }
        }
    }

    /// Bytes that the message still lacks.
    fn wanted(&self) -> Result<usize, String> {
        let Some((header, body)) = self.bytes.split_first_chunk::<HEADER>() else {
            return Ok(HEADER - self.bytes.len());
        };
        let (request, flags, size) = words(header);
        let known = VERSION_MASK | REPLY | NEED_REPLY;
        if flags & VERSION_MASK != VERSION || flags & !known != 0 || flags & REPLY != 0 {
            return Err(format!(
                "what the peer sent is not a vhost-user request (number {request:#x}, flags {flags:#x})"
            ));
        }
        if size as usize > MAX_BODY {
            return Err(format!(
                "the front end announced a message (request {request}) of {size} bytes; at most {MAX_BODY} are accepted"
            ));
        }
        Ok((size as usize).saturating_sub(body.len()))
    }

    /// Receives at most so many bytes. False if there are none now.
    fn receive(&mut self, wanted: usize) -> Result<bool, String> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let had = self.bytes.len();
        self.bytes.resize(had + wanted, 0);
        let room = self.bytes.get_mut(had..).unwrap_or_default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.fd, &mut [IoSliceMut::new(room)], &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                self.files.extend(received);
            }
        }
        let count = received.as_ref().map_or(0, |received| received.bytes);
        self.bytes.truncate(had + count);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNRESET) => {
                return Err(
                    "the front end closed the connection without reading our answers".to_owned()
                );
            }
            Err(error) => return Err(format!("receiving from the front end failed: {error}")),
        };
        if received.flags.contains(ReturnFlags::CTRUNC) && self.files.len() < MAX_ATTACHED {
            return Err(
                "the holder has no descriptors left for those of the front end: raise its limit of open files".to_owned(),
            );
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > MAX_ATTACHED {
            return Err(format!(
                "the front end sent more than {MAX_ATTACHED} descriptors with one message"
            ));
        }
        if count == 0 {
            return Err(if had == 0 {
                "the front end closed the connection".to_owned()
            } else {
                "the front end closed the connection in the middle of a message".to_owned()
            });
        }
        self.begun.get_or_insert_with(Instant::now);
        Ok(true)
    }
}

impl Pass for Front {
    fn give<'a>(&'a self, to: &mut Giver<'a>) {
        to.file(&self.fd);
        to.maybe(&self.pid, |to, pid| to.number((*pid).into()));
        to.maybe(&self.process, give_process);
        to.flag(self.returns);
        to.flag(self.spoke);
        to.since(self.connected);
        to.list(&self.bytes);
        to.all(self.files.iter(), Giver::file);
        to.maybe(&self.begun, |to, begun| to.since(*begun));
        to.list(&self.reply);
        to.maybe(&self.unread, |to, unread| to.since(*unread));
    }

    fn take(from: &mut Taker<'_>) -> Result<Front, Malformed> {
        Ok(Front {
            fd: from.file()?,
            pid: from.maybe(Taker::u32)?,
            process: from.maybe(take_process)?,
            returns: from.flag()?,
            spoke: from.flag()?,
            connected: from.time()?,
            bytes: from.list(MAX_MESSAGE)?,
            // More than a message may have are let go with the front end.
            files: from.all(MAX_KEPT, Taker::file)?,
            begun: from.maybe(Taker::time)?,
            reply: from.list(MAX_MESSAGE)?,
            unread: from.maybe(Taker::time)?,
        })
    }
}

pub fn give_process(to: &mut Giver<'_>, (pid, started): &Process) {
    to.number((*pid).into());
    to.number(*started);
}

pub fn take_process(from: &mut Taker<'_>) -> Result<Process, Malformed> {
    Ok((from.u32()?, from.number()?))
}

impl AsFd for Front {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Request, flags and size of a header.
fn words(header: &[u8; HEADER]) -> (u32, u32, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    let word = u32::from_ne_bytes;
    (word([a, b, c, d]), word([e, f, g, h]), word([i, j, k, l]))
}

/// True if the front end waits for an answer to a message.
pub fn wants_reply(message: &[u8]) -> bool {
    let Some((header, _)) = message.split_first_chunk() else { return false };
    let (request, flags, _) = words(header);
    flags & NEED_REPLY != 0 || ANSWERED.contains(&request)
}

/// Moment at which a process began, in clock ticks since the host's start (proc_pid_stat(5), field
/// 22).
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}
