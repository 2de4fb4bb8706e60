//! A vnic: its socket, the front end that is attached, and what was not carried out yet.

#[cfg(feature = "harness")]
pub mod harness;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
        },
    },
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    net::{SocketFlags, accept_with},
};

use crate::{
    closer::{Closer, Debt},
    protocol::{
        self, Event, MAX_KEPT, MAX_MESSAGE, MAX_STATE, Malformed, Name, Received, Role, Word,
    },
    say,
    server::{
        front::{Front, Process, Read, give_process, take_process, wants_reply},
        passing::{Giver, Pass, Taker},
        times::Times,
    },
};

/// Daemons that may die on one message.
pub const TRIES: u8 = 3;
/// Parts of a try. One that ends in order counts for a single part: as a rule nobody is to blame,
/// but it may be stopped because the message made it hang.
pub const PARTS: u8 = 16;

/// Words of a daemon that are heard in a turn.
const WORDS: usize = 4;

/// How a daemon left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It said before that it ends, or became another program.
    InOrder,
    /// Otherwise. The message that it had may be why.
    Died,
}

/// A vnic as the daemon registered it.
pub struct Registered {
    pub birth: u64,
    pub role: Role,
    pub path: PathBuf,
}

/// Something that the daemon has to carry out.
enum What {
    Connected { pid: Option<u32> },
    Message { bytes: Vec<u8>, files: Vec<OwnedFd> },
    Gone { reason: String },
}

/// Something under way: one thing at most.
struct Pending {
    number: u64,
    what: What,
    /// The daemon of now knows it.
    handed: bool,
    /// [`PARTS`] for each daemon that got it and has it, or died; one for each that ended in order.
    blame: u8,
    since: Instant,
}

pub struct Vnic {
    registered: Registered,
    /// Device and inode of the socket file, if it is ours to remove.
    file: Option<(u64, u64)>,
    listener: Option<OwnedFd>,
    channel: Option<OwnedFd>,
    front: Option<Front>,
    /// A front end that waits until the other one is gone.
    second: Option<OwnedFd>,
    state: Vec<u8>,
    kept: BTreeMap<Name, OwnedFd>,
    number: u64,
    pending: Option<Pending>,
    /// The front end that left last, after it had spoken.
    left: Option<Process>,
    /// Descriptors that the closer does not have yet.
    debt: Debt,
}

impl Pass for What {
    fn give<'a>(&'a self, to: &mut Giver<'a>) {
        match self {
            What::Connected { pid } => {
                to.byte(0);
                to.maybe(pid, |to, pid| to.number((*pid).into()));
            }
            What::Message { bytes, files } => {
                to.byte(1);
                to.list(bytes);
                to.all(files.iter(), Giver::file);
            }
            What::Gone { reason } => {
                to.byte(2);
                to.text(reason);
            }
        }
    }

    fn take(from: &mut Taker<'_>) -> Result<What, Malformed> {
        Ok(match from.byte()? {
            0 => What::Connected { pid: from.maybe(Taker::u32)? },
            1 => What::Message {
                bytes: from.list(MAX_MESSAGE)?,
                files: from.all(MAX_KEPT, Taker::file)?,
            },
            2 => What::Gone { reason: from.text()? },
            _ => return Err(Malformed),
        })
    }
}

impl Pass for Pending {
    fn give<'a>(&'a self, to: &mut Giver<'a>) {
        to.number(self.number);
        self.what.give(to);
        to.flag(self.handed);
        to.byte(self.blame / PARTS);
        to.since(self.since);
    }

    fn take(from: &mut Taker<'_>) -> Result<Pending, Malformed> {
        Ok(Pending {
            number: from.number()?,
            what: What::take(from)?,
            handed: from.flag()?,
            blame: from.byte()?.saturating_mul(PARTS),
            since: from.time()?,
        })
    }
}

impl Pass for Vnic {
    fn give<'a>(&'a self, to: &mut Giver<'a>) {
        to.number(self.registered.birth);
        to.role(self.registered.role);
        to.list(self.registered.path.as_os_str().as_bytes());
        to.maybe(&self.file, |to, (device, inode)| {
            to.number(*device);
            to.number(*inode);
        });
        to.maybe(&self.listener, Giver::file);
        to.maybe(&self.channel, Giver::file);
        to.maybe(&self.front, |to, front| front.give(to));
        to.maybe(&self.second, Giver::file);
        to.list(&self.state);
        to.all(self.kept.iter(), |to, ((message, place), file)| {
            to.number(*message);
            to.number((*place).into());
            to.file(file);
        });
        to.number(self.number);
        to.maybe(&self.pending, |to, pending| pending.give(to));
        to.maybe(&self.left, give_process);
    }

    fn take(from: &mut Taker<'_>) -> Result<Vnic, Malformed> {
        let vnic = Vnic {
            registered: Registered {
                birth: from.number()?,
                role: from.role()?,
                path: OsString::from_vec(from.path()?).into(),
            },
            file: from.maybe(|from| Ok((from.number()?, from.number()?)))?,
            listener: from.maybe(Taker::file)?,
            channel: from.maybe(Taker::file)?,
            front: from.maybe(Front::take)?,
            second: from.maybe(Taker::file)?,
            state: from.list(MAX_STATE)?,
            kept: from
                .all(MAX_KEPT, |from| Ok(((from.number()?, from.u32()?), from.file()?)))?
                .into_iter()
                .collect(),
            number: from.number()?,
            pending: from.maybe(Pending::take)?,
            left: from.maybe(take_process)?,
            debt: Debt::default(),
        };
        let listens = vnic.registered.role == Role::Server;
        let has_front = vnic.front.is_some();
        // What belongs to a front end is there with one.
        let is_alone = vnic.state.is_empty() && vnic.kept.is_empty() && vnic.pending.is_none();
        match listens == vnic.listener.is_some() && (has_front || is_alone) {
            true => Ok(vnic),
            false => Err(Malformed),
        }
    }
}

impl Vnic {
    pub fn new(registered: Registered, listener: Option<OwnedFd>) -> Vnic {
        let file = listener.as_ref().and_then(|_| {
            let file = fs::symlink_metadata(&registered.path).ok()?;
            Some((file.dev(), file.ino()))
        });
        Vnic {
            registered,
            file,
            listener,
            channel: None,
            front: None,
            second: None,
            state: Vec::new(),
            kept: BTreeMap::new(),
            number: 0,
            pending: None,
            left: None,
            debt: Debt::default(),
        }
    }

    /// Count of its descriptors that the closer does not have yet.
    pub fn debt(&self) -> &Debt {
        &self.debt
    }

    pub fn registered(&self) -> &Registered {
        &self.registered
    }

    /// The state that a successor goes on from, and the descriptors that it names.
    pub fn state(&self) -> (Option<&[u8]>, BTreeMap<Name, BorrowedFd<'_>>) {
        let ends = matches!(&self.pending, Some(Pending { what: What::Gone { .. }, .. }));
        if self.front.is_none() || self.state.is_empty() || ends {
            return (None, BTreeMap::new());
        }
        (Some(&self.state), self.kept.iter().map(|(name, fd)| (*name, fd.as_fd())).collect())
    }

    /// The connection of its front end.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.front.as_ref().map(AsFd::as_fd)
    }

    pub fn get_daemon(&mut self, channel: OwnedFd) {
        self.lose_daemon(Left::Died);
        self.channel = Some(channel);
    }

    /// Takes the vnic from its daemon, and has the next one carry out what this one had not.
    pub fn lose_daemon(&mut self, left: Left) {
        self.channel = None;
        if let Some(pending) = &mut self.pending
            && std::mem::take(&mut pending.handed)
            && left == Left::InOrder
        {
            pending.blame = pending.blame.saturating_sub(PARTS - 1);
        }
    }

    /// Removes the socket file, if it is still the one of the listening socket.
    pub fn remove_file(&self) {
        let path = &self.registered.path;
        if let (Some(ours), Ok(file)) = (self.file, fs::symlink_metadata(path))
            && (file.dev(), file.ino()) == ours
        {
            let _ = fs::remove_file(path);
        }
    }

    /// Lets everything go.
    pub fn discard(mut self, closer: &mut Closer) {
        self.drop_pending(closer);
        closer.discard_of(&self.debt, std::mem::take(&mut self.kept).into_values());
        closer.discard_of(&self.debt, self.second.take());
        if let Some(front) = self.front.take() {
            front.shut();
            front.discard(&self.debt, closer);
        }
    }

    /// Adds what is to be waited for. Returns the time at which it is too long.
    pub fn watch<'a>(
        &'a self,
        times: &Times,
        deaf: bool,
        rests: bool,
        fds: &mut Vec<PollFd<'a>>,
    ) -> Option<Instant> {
        let mut until: Option<Instant> = None;
        let mut by = |time: Instant| until = Some(until.map_or(time, |until| until.min(time)));
        if let Some(channel) = &self.channel {
            fds.push(PollFd::new(channel, PollFlags::IN));
            if self.pending.as_ref().is_some_and(|pending| !pending.handed) {
                by(Instant::now() + Duration::from_millis(1));
            }
        }
        if let Some(listener) = &self.listener
            && self.second.is_none()
            && !rests
        {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        if let Some(front) = &self.front {
            if !front.is_answered() {
                fds.push(PollFd::new(front, PollFlags::OUT));
            } else if self.pending.is_none() && !self.debt.is_high() {
                fds.push(PollFd::new(front, PollFlags::IN));
            }
            if let Some(since) = front.half_since() {
                by(since + times.patience);
            }
            if self.second.is_some() && !front.spoke {
                by(front.connected + times.patience);
            }
            if deaf && let Some(pending) = &self.pending {
                // Looked at now and then: it may say more while nobody reads it.
                by((pending.since + self.deaf_for(front, times))
                    .max(Instant::now() + times.patience / 10));
            }
        }
        until
    }

    fn deaf_for(&self, front: &Front, times: &Times) -> Duration {
        if front.returns { times.returns } else { times.stays }
    }

    /// Does what can be done without waiting.
    pub fn turn(
        &mut self,
        times: &Times,
        deaf: bool,
        closer: &mut Closer,
        exhausted: &mut Option<Instant>,
    ) {
        self.hear_daemon(closer);
        if let Some(front) = &mut self.front
            && let Err(why) = front.flush()
        {
            self.send_away(why, closer);
        }
        self.accept(closer, exhausted);
        self.read(closer);
        self.look_at_clock(times, deaf, closer);
        self.hand_out(closer);
    }

    fn hear_daemon(&mut self, closer: &mut Closer) {
        for _ in 0..WORDS {
            let Some(channel) = &self.channel else { return };
            let (word, files) = match protocol::receive::<Word>(channel) {
                Ok(Received::Nothing) => return,
                Ok(Received::Packet(word, files)) => (word, files),
                // Its lease ends, too, or it is mad: it hears nothing of this vnic any more. What
                // it has is the next one's when this one has left.
                Ok(Received::End) => {
                    self.channel = None;
                    return;
                }
                Err(error) => {
                    self.channel = None;
                    say(format_args!("a daemon says of a vnic what nobody understands: {error}"));
                    return;
                }
            };
            match (word, files) {
                (Word::Dialed, mut files) => {
                    let connection = files.pop();
                    closer.discard_of(&self.debt, files);
                    let idle = self.front.is_none() && self.registered.role == Role::Client;
                    match connection {
                        Some(connection) if idle => self.connect(connection),
                        other => closer.discard_of(&self.debt, other),
                    }
                }
                (Word::Done { number, reply, after, end }, files) => {
                    closer.discard_of(&self.debt, files);
                    self.done(number, reply, after, end, closer);
                }
                (Word::Cut { reason }, files) => {
                    closer.discard_of(&self.debt, files);
                    self.send_away(reason, closer);
                }
            }
        }
    }

    fn done(
        &mut self,
        number: u64,
        reply: Vec<u8>,
        after: Option<(Vec<u8>, Vec<Name>)>,
        end: Option<String>,
        closer: &mut Closer,
    ) {
        // A message may have given way to the end of its front end meanwhile.
        let Some(pending) = self.pending.take_if(|it| it.number == number && it.handed) else {
            return;
        };
        match pending.what {
            What::Gone { .. } => return self.forget(closer),
            What::Connected { .. } => {}
            What::Message { files, .. } => {
                let named = files.into_iter().zip(0..).map(|(fd, place)| ((number, place), fd));
                match &after {
                    Some(_) => self.kept.extend(named),
                    None => closer.discard_of(&self.debt, named.map(|(_, fd)| fd)),
                }
            }
        }
        if let Some((state, keep)) = after {
            self.state = state;
            let mut had = std::mem::take(&mut self.kept);
            self.kept = keep.into_iter().filter_map(|name| had.remove_entry(&name)).collect();
            closer.discard_of(&self.debt, had.into_values());
        }
        let Some(front) = &mut self.front else { return };
        front.answer(reply);
        match (front.flush(), end) {
            // A refusal was answered as far as it goes: the front end may say it to its operator.
            (_, Some(why)) | (Err(why), None) => self.send_away(why, closer),
            (Ok(()), None) => {}
        }
    }

    fn connect(&mut self, connection: OwnedFd) {
        let front = Front::new(connection, self.left.take());
        let pid = front.pid;
        self.front = Some(front);
        self.begin(What::Connected { pid });
    }

    fn begin(&mut self, what: What) {
        self.number += 1;
        let number = self.number;
        self.pending =
            Some(Pending { number, what, handed: false, blame: 0, since: Instant::now() });
    }

    fn drop_pending(&mut self, closer: &mut Closer) {
        if let Some(Pending { what: What::Message { files, .. }, .. }) = self.pending.take() {
            closer.discard_of(&self.debt, files);
        }
    }

    /// Ends the connection. The daemon, if there is one, still has to let go.
    fn send_away(&mut self, reason: String, closer: &mut Closer) {
        let Some(front) = &self.front else { return };
        if matches!(&self.pending, Some(Pending { what: What::Gone { .. }, .. })) {
            return;
        }
        front.shut();
        if front.spoke {
            self.left = front.process;
        }
        self.drop_pending(closer);
        self.begin(What::Gone { reason });
        if self.channel.is_none() {
            // A successor goes on with nothing of it.
            self.pending = None;
            self.forget(closer);
        }
    }

    /// Lets go what is left of a front end.
    fn forget(&mut self, closer: &mut Closer) {
        self.state.clear();
        closer.discard_of(&self.debt, std::mem::take(&mut self.kept).into_values());
        if let Some(front) = self.front.take() {
            front.discard(&self.debt, closer);
        }
        if let Some(next) = self.second.take() {
            self.connect(next);
        }
    }

    fn accept(&mut self, closer: &mut Closer, exhausted: &mut Option<Instant>) {
        let Some(listener) = self.listener.as_ref().filter(|_| self.second.is_none()) else {
            return;
        };
        if exhausted.is_some_and(|since| since.elapsed() < Duration::from_millis(200)) {
            return;
        }
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => self.came(connection, closer),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => *exhausted = Some(Instant::now()),
        }
    }

    /// Takes a front end that came to the listening socket.
    fn came(&mut self, connection: OwnedFd, closer: &mut Closer) {
        if self.front.is_none() && self.pending.is_none() {
            self.connect(connection);
        } else {
            closer.discard_of(&self.debt, self.second.replace(connection));
        }
    }

    fn read(&mut self, closer: &mut Closer) {
        let Some(front) = &mut self.front else { return };
        // What it gives has to be closed some day: nobody gives faster than that goes.
        if self.pending.is_some() || !front.is_answered() || self.debt.is_high() {
            return;
        }
        match front.read() {
            Read::Nothing => {}
            Read::Message(bytes, files) => self.begin(What::Message { bytes, files }),
            Read::Lost(why) => self.send_away(why, closer),
        }
    }

    fn look_at_clock(&mut self, times: &Times, deaf: bool, closer: &mut Closer) {
        let Some(front) = &self.front else { return };
        let late = |since: Instant, patience: Duration| since.elapsed() >= patience;
        if front.half_since().is_some_and(|since| late(since, times.patience)) {
            let why = front.late().to_owned();
            return self.send_away(why, closer);
        }
        if self.second.is_some() && !front.spoke && late(front.connected, times.patience) {
            let why = "the peer said nothing, and another front end was waiting";
            return self.send_away(why.to_owned(), closer);
        }
        let Some(pending) = self.pending.as_ref().filter(|_| deaf) else { return };
        let patience = self.deaf_for(front, times);
        let waits = match &pending.what {
            What::Message { bytes, .. } => wants_reply(bytes) || front.says_much(),
            What::Connected { .. } => front.says_more(),
            What::Gone { .. } => false,
        };
        if waits && late(pending.since, patience) {
            let why = format!("no daemon answered for {} s", patience.as_secs());
            self.send_away(why, closer);
        }
    }

    fn hand_out(&mut self, closer: &mut Closer) {
        let Some(pending) = &mut self.pending else { return };
        let Some(channel) = self.channel.as_ref().filter(|_| !pending.handed) else { return };
        let number = pending.number;
        let sent = match &pending.what {
            What::Message { .. } if pending.blame >= TRIES * PARTS => {
                let why =
                    format!("{TRIES} daemons or more ended while they carried out its message");
                return self.send_away(why, closer);
            }
            What::Connected { pid } => {
                let connection: Vec<_> = self.front.iter().map(AsFd::as_fd).collect();
                protocol::send(channel, &Event::Connected { number, pid: *pid }, &connection)
            }
            What::Message { bytes, files } => {
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                protocol::send(channel, &Event::Message { number, bytes: bytes.clone() }, &files)
            }
            What::Gone { reason } => {
                protocol::send(channel, &Event::Gone { number, reason: reason.clone() }, &[])
            }
        };
        // Without room it is tried again; a daemon that is gone is noticed elsewhere.
        if sent.is_ok() {
            pending.handed = true;
            // Only a message has a bound: daemons may die while one front end waits, without end.
            pending.blame = pending.blame.saturating_add(PARTS);
        }
    }
}
