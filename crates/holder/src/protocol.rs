//! Packets between the holder and a daemon.
//!
//! Both ends are SOCK_SEQPACKET, so a packet is whole or not there. Numbers are in the order of the
//! processor; a text or a list begins with its length in 32 bits. Both sides take the other's
//! packets for hostile: lengths are checked, and what is left over is an error.

use std::{
    cell::RefCell,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

/// Version of the packets, which has to be the same on both sides. A holder stays when daemons are
/// upgraded, so it should never change: words are only ever added, behind those that are there,
/// which does not raise it. A holder that does not know a word ends the lease of who says it.
pub const VERSION: u32 = 1;
/// Remedy if a daemon and a holder do not understand each other.
pub const REMEDY: &str = "start the release of the daemon again that went on with it, upgrade the holder \
     (`systemctl reload butterfly-holder`), then the daemon; or, if all machines may be cut off until they \
     reconnect, end the holder (`systemctl restart butterfly-holder`) and start the daemon then";
/// Beginning of the name of a part that is a file, whose path follows: the file is removed when
/// everything ends, if it still is the one at that path.
pub const FILE: &str = "file:";
/// Beginning of the name of a part that is a listening socket. When everything ends, nobody has it
/// any more before the daemon hears so.
pub const LISTEN: &str = "listen:";
/// Name of the part that the holder itself adds: a file with the version of its program.
pub const PROGRAM: &str = "holder:program";
/// Bytes of that file: the version, and zeros.
pub const PROGRAM_BYTES: usize = 64;
/// Most descriptors in one packet (`SCM_MAX_FD` of Linux).
pub const MAX_FILES: usize = 253;
/// Most bytes of a vnic's state: 509 regions of memory take 76 KB at most.
pub const MAX_STATE: usize = 128 << 10;
/// Most descriptors that are kept for a vnic.
pub const MAX_KEPT: usize = 600;
/// Most bytes of a front end's message: a header and its body.
pub const MAX_MESSAGE: usize = 12 + 4096;
/// Most bytes of a reason, a path or a name.
pub const MAX_TEXT: usize = 4096;
/// Most bytes of a packet.
pub const MAX_PACKET: usize = MAX_STATE + MAX_MESSAGE + MAX_TEXT + 12 * MAX_KEPT + 256;

/// Name of a descriptor that a front end gave: number of its message, and place in it.
pub type Name = (u64, u32);

/// The side that owns a vnic's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We listen.
    Server,
    /// The front end listens.
    Client,
}

/// Words of a daemon on its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first word: its version.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// A new vnic. A server's listening socket comes along.
    Register {
        /// The vnic's id.
        id: String,
        /// Number that no other declaration of it had.
        birth: u64,
        /// The side that owns the socket.
        role: Role,
        /// The socket.
        path: Vec<u8>,
    },
    /// A vnic goes, with everything that is held for it.
    Drop {
        /// The vnic's id.
        id: String,
    },
    /// A descriptor to keep, which comes along, in place of one with the same name.
    Deposit {
        /// Its name.
        name: String,
    },
    /// A descriptor not to keep any more.
    Withdraw {
        /// Its name.
        name: String,
    },
    /// The daemon took over what it wants, and runs.
    Ready,
    /// It ends, and another one is to come soon.
    Stopping,
    /// Everything ends.
    End,
    /// The daemon's process becomes another program: the lease passes to what the same process
    /// claims next. So it stays until the daemon says [`Order::Ready`].
    Renew,
    /// Question for the states of all front ends: [`Answer::State`] for each, then
    /// [`Answer::Complete`].
    States,
    /// The first word of a daemon that cannot begin, as its configuration is wrong: everything is
    /// held until another one comes, however long that takes. A holder of a release before this
    /// word hangs up.
    Stay,
    /// The first word of an operator's program, which comes along: the holder is to become it. A
    /// holder of a release before this word hangs up.
    Upgrade,
}

/// Words of the holder on a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lease is the daemon's. What is held follows.
    Granted {
        /// Number of the lease.
        term: u64,
        /// Leases that ended without a word.
        crashes: u64,
        /// Seconds since the holder started.
        up: u64,
        /// Milliseconds since the last lease ended; 0 for the first one.
        gap: u64,
    },
    /// A descriptor that was deposited; it comes along.
    Part {
        /// Its name.
        name: String,
    },
    /// A vnic. Its channel comes along, and the connection of its front end if there is a state;
    /// kept descriptors come in packets of [`Answer::Files`].
    Vnic {
        /// The vnic's id.
        id: String,
        /// As it was registered.
        birth: u64,
        /// As it was registered.
        role: Role,
        /// As it was registered.
        path: Vec<u8>,
        /// A front end is there, with this state.
        state: Option<Vec<u8>>,
        /// Names of its descriptors.
        kept: Vec<Name>,
    },
    /// More descriptors of the vnic before, in the order of their names.
    Files,
    /// The end of it.
    Complete,
    /// A vnic was registered. Its channel comes along.
    Registered,
    /// It was done.
    Done,
    /// It was not done.
    Refused {
        /// Why.
        why: String,
    },
    /// Another daemon has the lease.
    Busy {
        /// Its process.
        pid: u32,
    },
    /// A front end's state.
    State {
        /// The vnic's id.
        id: String,
        /// As the daemon gave it.
        state: Vec<u8>,
    },
}

/// Words of the holder on a vnic's channel: one at a time, until its end was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A front end came. A copy of its connection comes along.
    Connected {
        /// Number of this event.
        number: u64,
        /// Its process, if known.
        pid: Option<u32>,
    },
    /// A front end's message, header and body. Its descriptors come along.
    Message {
        /// Number of this event.
        number: u64,
        /// Header and body.
        bytes: Vec<u8>,
    },
    /// The front end is gone.
    Gone {
        /// Number of this event.
        number: u64,
        /// Why: a sentence without a full stop.
        reason: String,
    },
}

/// Words of a daemon on a vnic's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The end of an event, with everything that follows from it.
    Done {
        /// Number of the event.
        number: u64,
        /// Reply to the front end; empty for none.
        reply: Vec<u8>,
        /// The vnic's state and the descriptors that it needs; `None`: as before.
        after: Option<(Vec<u8>, Vec<Name>)>,
        /// Reason for which the front end is to go.
        end: Option<String>,
    },
    /// The front end is to go.
    Cut {
        /// Why.
        reason: String,
    },
    /// The daemon connected to a front end that listens; the connection comes along.
    Dialed,
}

/// A packet that is not understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet between daemon and holder is not understood")]
pub struct Malformed;

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// Something that is sent as a packet.
pub trait Packet: Sized {
    /// Appends it to `to`.
    fn write(&self, to: &mut Vec<u8>);
    /// Reads it. All bytes must be used.
    fn read(bytes: &[u8]) -> Result<Self, Malformed>;
}

/// Reads numbers, texts and lists.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn bytes(&mut self, most: usize) -> Result<Vec<u8>, Malformed> {
        let len = self.u32()? as usize;
        if len > most {
            return Err(Malformed);
        }
        self.take(len).map(<[u8]>::to_vec)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes(MAX_TEXT)?).map_err(|_| Malformed)
    }

    fn names(&mut self) -> Result<Vec<Name>, Malformed> {
        let count = self.u32()? as usize;
        if count > MAX_KEPT {
            return Err(Malformed);
        }
        (0..count).map(|_| Ok((self.u64()?, self.u32()?))).collect()
    }

    pub(crate) fn maybe<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn role(&mut self) -> Result<Role, Malformed> {
        match self.u8()? {
            0 => Ok(Role::Server),
            1 => Ok(Role::Client),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn end<T>(self, read: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(read) } else { Err(Malformed) }
    }
}

pub(crate) fn bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_ne_bytes());
    to.extend(bytes);
}

/// A text, cut where it is too long.
pub(crate) fn text(to: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|at| text.is_char_boundary(*at));
    bytes(to, text.get(..end.unwrap_or(0)).unwrap_or_default().as_bytes());
}

fn names(to: &mut Vec<u8>, names: &[Name]) {
    to.extend((names.len() as u32).to_ne_bytes());
    for (message, place) in names {
        to.extend(message.to_ne_bytes());
        to.extend(place.to_ne_bytes());
    }
}

pub(crate) fn maybe<T>(to: &mut Vec<u8>, it: &Option<T>, write: impl FnOnce(&mut Vec<u8>, &T)) {
    to.push(it.is_some().into());
    if let Some(it) = it {
        write(to, it);
    }
}

pub(crate) fn role(to: &mut Vec<u8>, role: Role) {
    to.push((role == Role::Client).into());
}

impl Packet for Order {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Order::Hello { version } => {
                to.push(0);
                to.extend(version.to_ne_bytes());
            }
            Order::Register { id, birth, role: side, path } => {
                to.push(1);
                text(to, id);
                to.extend(birth.to_ne_bytes());
                role(to, *side);
                bytes(to, path);
            }
            Order::Drop { id } => {
                to.push(2);
                text(to, id);
            }
            Order::Deposit { name } => {
                to.push(3);
                text(to, name);
            }
            Order::Withdraw { name } => {
                to.push(4);
                text(to, name);
            }
            Order::Ready => to.push(5),
            Order::Stopping => to.push(6),
            Order::End => to.push(7),
            Order::Renew => to.push(8),
            Order::States => to.push(9),
            Order::Stay => to.push(10),
            Order::Upgrade => to.push(11),
        }
    }

    fn read(bytes: &[u8]) -> Result<Order, Malformed> {
        let mut from = Reader(bytes);
        let order = match from.u8()? {
            0 => Order::Hello { version: from.u32()? },
            1 => Order::Register {
                id: from.text()?,
                birth: from.u64()?,
                role: from.role()?,
                path: from.bytes(MAX_TEXT)?,
            },
            2 => Order::Drop { id: from.text()? },
            3 => Order::Deposit { name: from.text()? },
            4 => Order::Withdraw { name: from.text()? },
            5 => Order::Ready,
            6 => Order::Stopping,
            7 => Order::End,
            8 => Order::Renew,
            9 => Order::States,
            10 => Order::Stay,
            11 => Order::Upgrade,
            _ => return Err(Malformed),
        };
        from.end(order)
    }
}

impl Packet for Answer {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Answer::Granted { term, crashes, up, gap } => {
                to.push(0);
                [term, crashes, up, gap].into_iter().for_each(|n| to.extend(n.to_ne_bytes()));
            }
            Answer::Part { name } => {
                to.push(1);
                text(to, name);
            }
            Answer::Vnic { id, birth, role: side, path, state, kept } => {
                to.push(2);
                text(to, id);
                to.extend(birth.to_ne_bytes());
                role(to, *side);
                bytes(to, path);
                maybe(to, state, |to, state| bytes(to, state));
                names(to, kept);
            }
            Answer::Files => to.push(3),
            Answer::Complete => to.push(4),
            Answer::Registered => to.push(5),
            Answer::Done => to.push(6),
            Answer::Refused { why } => {
                to.push(7);
                text(to, why);
            }
            Answer::Busy { pid } => {
                to.push(8);
                to.extend(pid.to_ne_bytes());
            }
            Answer::State { id, state } => {
                to.push(9);
                text(to, id);
                bytes(to, state);
            }
        }
    }

    fn read(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut from = Reader(bytes);
        let answer = match from.u8()? {
            0 => Answer::Granted {
                term: from.u64()?,
                crashes: from.u64()?,
                up: from.u64()?,
                gap: from.u64()?,
            },
            1 => Answer::Part { name: from.text()? },
            2 => Answer::Vnic {
                id: from.text()?,
                birth: from.u64()?,
                role: from.role()?,
                path: from.bytes(MAX_TEXT)?,
                state: from.maybe(|from| from.bytes(MAX_STATE))?,
                kept: from.names()?,
            },
            3 => Answer::Files,
            4 => Answer::Complete,
            5 => Answer::Registered,
            6 => Answer::Done,
            7 => Answer::Refused { why: from.text()? },
            8 => Answer::Busy { pid: from.u32()? },
            9 => Answer::State { id: from.text()?, state: from.bytes(MAX_STATE)? },
            _ => return Err(Malformed),
        };
        from.end(answer)
    }
}

impl Packet for Event {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Event::Connected { number, pid } => {
                to.push(0);
                to.extend(number.to_ne_bytes());
                maybe(to, pid, |to, pid| to.extend(pid.to_ne_bytes()));
            }
            Event::Message { number, bytes: message } => {
                to.push(1);
                to.extend(number.to_ne_bytes());
                bytes(to, message);
            }
            Event::Gone { number, reason } => {
                to.push(2);
                to.extend(number.to_ne_bytes());
                text(to, reason);
            }
        }
    }

    fn read(bytes: &[u8]) -> Result<Event, Malformed> {
        let mut from = Reader(bytes);
        let event = match from.u8()? {
            0 => Event::Connected { number: from.u64()?, pid: from.maybe(Reader::u32)? },
            1 => Event::Message { number: from.u64()?, bytes: from.bytes(MAX_MESSAGE)? },
            2 => Event::Gone { number: from.u64()?, reason: from.text()? },
            _ => return Err(Malformed),
        };
        from.end(event)
    }
}

impl Packet for Word {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Word::Done { number, reply, after, end } => {
                to.push(0);
                to.extend(number.to_ne_bytes());
                bytes(to, reply);
                maybe(to, after, |to, (state, keep)| {
                    bytes(to, state);
                    names(to, keep);
                });
                maybe(to, end, |to, end| text(to, end));
            }
            Word::Cut { reason } => {
                to.push(1);
                text(to, reason);
            }
            Word::Dialed => to.push(2),
        }
    }

    fn read(bytes: &[u8]) -> Result<Word, Malformed> {
        let mut from = Reader(bytes);
        let word = match from.u8()? {
            0 => Word::Done {
                number: from.u64()?,
                reply: from.bytes(MAX_MESSAGE)?,
                after: from.maybe(|from| Ok((from.bytes(MAX_STATE)?, from.names()?)))?,
                end: from.maybe(Reader::text)?,
            },
            1 => Word::Cut { reason: from.text()? },
            2 => Word::Dialed,
            _ => return Err(Malformed),
        };
        from.end(word)
    }
}

/// Sends a packet, without waiting.
pub fn send(
    to: impl AsFd,
    packet: &impl Packet,
    files: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut bytes = Vec::new();
    packet.write(&mut bytes);
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::MSGSIZE);
    }
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(to.as_fd(), &[IoSlice::new(&bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
}

/// Result of listening to a connection.
#[derive(Debug)]
pub enum Received<P> {
    /// A packet with descriptors.
    Packet(P, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    End,
}

thread_local! {
    /// Room for a packet. Nothing but what was received is read: it need not be empty.
    static ROOM: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_PACKET]);
}

/// Receives a packet, without waiting.
pub fn receive<P: Packet>(from: impl AsFd) -> io::Result<Received<P>> {
    ROOM.with_borrow_mut(|room| receive_into(room, from.as_fd()))
}

fn receive_into<P: Packet>(bytes: &mut [u8], from: BorrowedFd<'_>) -> io::Result<Received<P>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(error.into()),
            Ok(received) => break received,
        }
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    if received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(Malformed.into());
    }
    // No packet is empty.
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    let packet = P::read(bytes.get(..received.bytes).unwrap_or_default())?;
    Ok(Received::Packet(packet, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<P: Packet + PartialEq + std::fmt::Debug>(all: &[P]) {
        for packet in all {
            let mut bytes = Vec::new();
            packet.write(&mut bytes);
            assert!(bytes.len() <= MAX_PACKET);
            assert_eq!(P::read(&bytes).as_ref(), Ok(packet));
            for short in 0..bytes.len() {
                assert!(P::read(&bytes[..short]).is_err(), "{packet:?} cut to {short}");
            }
            bytes.push(0);
            assert!(P::read(&bytes).is_err(), "{packet:?} with more behind it");
        }
    }

    #[test]
    fn packets_are_read_as_they_were_written() {
        let (id, name) = ("a".to_owned(), "sessions".to_owned());
        let path = b"/x\xff".to_vec();
        there_and_back(&[
            Order::Hello { version: 7 },
            Order::Register { id: id.clone(), birth: 9, role: Role::Server, path: path.clone() },
            Order::Drop { id: id.clone() },
            Order::Deposit { name: name.clone() },
            Order::Withdraw { name: name.clone() },
            Order::Ready,
            Order::Stopping,
            Order::End,
            Order::Renew,
            Order::States,
            Order::Stay,
            Order::Upgrade,
        ]);
        there_and_back(&[
            Answer::Granted { term: 1, crashes: 2, up: 3, gap: 4 },
            Answer::Part { name },
            Answer::Vnic {
                id,
                birth: 9,
                role: Role::Client,
                path,
                state: Some(vec![1; MAX_STATE]),
                kept: vec![(5, 6); MAX_KEPT],
            },
            Answer::Files,
            Answer::Complete,
            Answer::Registered,
            Answer::Done,
            Answer::Refused { why: "no".to_owned() },
            Answer::Busy { pid: 4 },
            Answer::State { id: "b".to_owned(), state: vec![1; 9] },
        ]);
        there_and_back(&[
            Event::Connected { number: 1, pid: None },
            Event::Connected { number: 1, pid: Some(2) },
            Event::Message { number: 1, bytes: vec![3; 100] },
            Event::Gone { number: 1, reason: "it left".to_owned() },
        ]);
        there_and_back(&[
            Word::Done {
                number: 1,
                reply: vec![4; 20],
                after: Some((vec![1, 2], vec![(1, 2)])),
                end: Some("no".to_owned()),
            },
            Word::Done { number: 1, reply: Vec::new(), after: None, end: None },
            Word::Cut { reason: "no".to_owned() },
            Word::Dialed,
        ]);
    }

    /// A reason that is too long is cut, and not in the middle of a letter.
    #[test]
    fn long_texts_are_cut() {
        let long = "ö".repeat(MAX_TEXT);
        let mut bytes = Vec::new();
        Word::Cut { reason: format!("x{long}") }.write(&mut bytes);
        let Ok(Word::Cut { reason }) = Word::read(&bytes) else { panic!("it is read") };
        assert_eq!(reason.len(), MAX_TEXT - 1);
    }

    /// Lists and texts beyond their bounds are refused.
    #[test]
    fn bounds_hold() {
        let mut many = Vec::new();
        Word::Done {
            number: 1,
            reply: Vec::new(),
            after: Some((Vec::new(), vec![(1, 2); MAX_KEPT + 1])),
            end: None,
        }
        .write(&mut many);
        assert_eq!(Word::read(&many), Err(Malformed));
        let mut large = Vec::new();
        Event::Message { number: 1, bytes: vec![0; MAX_MESSAGE + 1] }.write(&mut large);
        assert_eq!(Event::read(&large), Err(Malformed));
    }
}
