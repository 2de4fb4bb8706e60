//! The control thread of a vnic whose front end another process holds: the holder, which stays when
//! this one dies.
//!
//! The holder owns the sockets. It hands out one message at a time, and says when a front end comes
//! and goes. What this thread says at the end of each is all that a successor gets: the reply, and
//! the whole state after it, in one packet. A message whose end was not said comes again to the
//! successor, whose state is the one before it. Every message of the protocol, carried out again
//! from there, leads to the same end.
//!
//! If the holder dies, the rings run on; the front end cannot be heard any more.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use butterfly_holder::client::{After, Channel, Former, Heard};
use butterfly_point::{Point, pass, pass_with};
use rustix::event::{PollFd, PollFlags};

use super::{
    gate::Gate,
    noted::Noted,
    pace::Pace,
    session::{Refused, Session},
    socket::Dialer,
    state::Name,
    status::Negotiated,
    thread::{CONNECTIONS, MEMORY_PATIENCE, REQUESTS, RETRY, Thread, share_wake_ups},
    wire::{self, Lost, Message},
};
use crate::ring::{NoteTable, Notes};

const ALONE: &str = "the holder is gone: the machine runs on, but its front end is not heard; restart \
                     the daemon when the machine may lose its network for a moment";
const INTERNAL: &str = "an internal error of the control channel; please report it";

/// A front end that is served.
pub(super) struct Served {
    gate: Gate,
    /// True once it has spoken.
    attached: bool,
    since: SystemTime,
    pid: Option<u32>,
    /// Time of its last message.
    heard: Instant,
    /// Never read: while it is open, the front end does not notice that the holder is gone.
    _connection: OwnedFd,
}

impl Served {
    fn new(
        session: Session,
        since: SystemTime,
        pid: Option<u32>,
        connection: OwnedFd,
    ) -> Result<Served, Refused> {
        let gate = Gate::new(session)
            .map_err(|error| Refused(format!("the control channel cannot be set up: {error}")))?;
        let heard = Instant::now();
        Ok(Served { gate, attached: false, since, pid, heard, _connection: connection })
    }

    /// Takes up a front end where another process left it. Its rings run when this returns.
    pub fn resume(
        mut session: Session,
        notes: Option<&Arc<NoteTable>>,
        former: Former,
    ) -> Result<Served, Refused> {
        let noted = Noted::read(&former.state)?;
        if let Some(notes) = notes {
            session.restore_notes(notes, noted.block);
        }
        let named = |((message, place), fd)| (Name { message, place }, fd);
        let mut kept: HashMap<Name, OwnedFd> = former.files.into_iter().map(named).collect();
        let (attached, pid) = (noted.attached, noted.pid);
        let since = UNIX_EPOCH.checked_add(Duration::from_secs(noted.since)).unwrap_or(UNIX_EPOCH);
        session.restore(noted.state(&mut kept)?)?;
        Ok(Served { attached, ..Served::new(session, since, pid, former.connection)? })
    }

    fn negotiated(&self) -> Negotiated {
        self.gate.session(|session| session.negotiated(self.since, self.pid))
    }

    /// Says the end of a message with the state after it. With `end` the front end goes.
    fn done(&self, to: &Channel, number: u64, reply: &[u8], end: Option<&str>) -> io::Result<()> {
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let noted = self.gate.session(|session| Noted::of(session, self.attached, since, self.pid));
        let keep: Vec<_> = noted.files().map(|name| (name.message, name.place)).collect();
        to.done(number, reply, Some(After { state: &noted.text(), keep: &keep }), end)
    }
}

/// The holder knows that the front end of these notes is gone.
fn forget(notes: Option<Arc<Notes>>) {
    if let Some(notes) = notes {
        notes.clear();
    }
}

/// Reason for which the thread's work ends.
enum Over {
    /// The owner asks it to stop.
    Stop,
    /// The holder is gone.
    Alone,
}

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Over {
        tracing::error!(%error, "the holder does not answer");
        Over::Alone
    }
}

/// Memory of a thread from one front end to the next.
struct Work {
    connections: Pace,
    requests: Pace,
    dialer: Dialer,
    /// The holder has a connection that we made.
    dialed: bool,
}

impl Thread {
    /// Serves the front ends of which `channel` tells, until it is asked to stop.
    pub(super) fn run_held(&self, channel: &Channel, former: Option<Result<Served, Refused>>) {
        share_wake_ups();
        let mut served = match former {
            None => None,
            Some(Ok(served)) => Some(served),
            Some(Err(Refused(why))) => {
                let why = format!("a former daemon left it, and it cannot go on: {why}");
                self.events.trouble(&why);
                // If the holder is gone, too, the first turn finds that.
                let _ = channel.cut(&why);
                None
            }
        };
        if let Some(served) = served.as_ref().filter(|served| served.attached) {
            self.resume(served.negotiated());
        }
        let mut work = Work {
            connections: Pace::new(CONNECTIONS.0, CONNECTIONS.1),
            requests: Pace::new(REQUESTS.0, REQUESTS.1),
            dialer: Dialer::default(),
            dialed: served.is_some(),
        };
        loop {
            let turn =
                catch_unwind(AssertUnwindSafe(|| self.turn(channel, &mut served, &mut work)));
            let turn = turn.unwrap_or_else(|_| {
                let notes = self.leave(&mut served, INTERNAL);
                channel.cut(INTERNAL).map(|()| forget(notes)).map_err(Over::from)
            });
            match turn {
                Ok(()) => {}
                Err(Over::Alone) => self.stay_alone(),
                Err(Over::Stop) => break,
            }
        }
        if served.take().is_some() {
            self.detach(&Lost::Stopped);
        }
    }

    /// Waits to be stopped, while the rings run on.
    fn stay_alone(&self) {
        self.shared.live().trouble = Some(ALONE.to_owned());
        self.events.trouble(ALONE);
        while !self.shared.stopping() {
            let mut wake = [PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN)];
            wire::wait(&mut wake, None);
            self.idle_wishes();
        }
    }

    /// Removes what is left of a front end. Returns its notes about packed rings: nobody else gets
    /// them before the holder knows that it is gone.
    #[must_use]
    fn leave(&self, served: &mut Option<Served>, reason: &str) -> Option<Arc<Notes>> {
        let gone = served.take()?;
        let notes = gone.gate.session(Session::notes);
        drop(gone);
        self.detach(&Lost::because(reason));
        notes
    }

    /// Grants wishes, and carries out what the holder says next. Waits for it if it says nothing.
    fn turn(
        &self,
        channel: &Channel,
        served: &mut Option<Served>,
        work: &mut Work,
    ) -> Result<(), Over> {
        self.shared.take_wake();
        if self.shared.stopping() {
            return Err(Over::Stop);
        }
        self.refuse_exports();
        if self.shared.take_poke()
            && let Some(why) =
                served.as_ref().and_then(|served| served.gate.session(Session::poisoned))
        {
            let notes = self.leave(served, why);
            channel.cut(why)?;
            forget(notes);
        }
        if let Some(event) = channel.receive()? {
            return self.hear(channel, event, served, work);
        }
        let patience = match served {
            Some(served) if served.gate.session(Session::awaits_memory) => {
                let left = MEMORY_PATIENCE.saturating_sub(served.heard.elapsed());
                if left.is_zero() {
                    let why = served.gate.change(Session::miss_memory);
                    let mut live = self.shared.live();
                    live.attached.iter_mut().for_each(|it| it.memory_trouble = Some(why));
                    return Ok(());
                }
                Some(left)
            }
            None if !work.dialed => self.dial(channel, work)?,
            _ => None,
        };
        let mut fds = [
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN),
        ];
        wire::wait(&mut fds, patience);
        Ok(())
    }

    /// Tries to connect to a front end that listens. Returns the time until the next attempt.
    fn dial(&self, channel: &Channel, work: &mut Work) -> Result<Option<Duration>, Over> {
        let Some(address) = &self.server else { return Ok(None) };
        match work.dialer.connect(address) {
            Ok(connection) => {
                self.shared.live().trouble = None;
                pass(Point::Dialed);
                channel.dialed(connection)?;
                pass(Point::DialGiven);
                work.dialed = true;
                Ok(None)
            }
            Err(error) => {
                let trouble = format!("cannot connect to the socket: {error}");
                self.shared.live().trouble = Some(trouble);
                Ok(Some(RETRY))
            }
        }
    }

    fn hear(
        &self,
        channel: &Channel,
        event: Heard,
        served: &mut Option<Served>,
        work: &mut Work,
    ) -> Result<(), Over> {
        match event {
            Heard::Connected { number, pid, connection } => {
                pass(Point::FrontCame);
                work.dialed = true;
                self.sleep_between(work.connections.take(Instant::now()));
                let mut session =
                    Session::new(self.port.clone(), self.offered, self.events.clone());
                session.begin(number, self.notes.as_ref().and_then(NoteTable::take));
                match Served::new(session, SystemTime::now(), pid, connection) {
                    Ok(new) => {
                        new.done(channel, number, &[], None)?;
                        pass(Point::FrontServed);
                        *served = Some(new);
                    }
                    Err(Refused(why)) => channel.done(number, &[], None, Some(&why))?,
                }
            }
            Heard::Message { number, bytes, files } => match served {
                Some(_) => self.carry_out(channel, number, &bytes, files, served, work)?,
                // It was cut a moment ago, and the holder did not know yet.
                None => channel.done(number, &[], None, None)?,
            },
            Heard::Gone { number, reason } => {
                pass(Point::FrontGone);
                work.dialed = false;
                // A message that was begun shows a front end that had come; an end without a word
                // does not.
                if let Some(silent) = served.as_ref().filter(|served| !served.attached)
                    && !matches!(&*reason, wire::CLOSED | wire::RESET)
                {
                    self.attach(silent.negotiated());
                }
                let notes = self.leave(served, &reason);
                pass(Point::FrontLeft);
                channel.done(number, &[], None, None)?;
                forget(notes);
            }
        }
        Ok(())
    }

    /// Carries out a front end's message.
    fn carry_out(
        &self,
        channel: &Channel,
        number: u64,
        bytes: &[u8],
        files: Vec<OwnedFd>,
        served: &mut Option<Served>,
        work: &mut Work,
    ) -> Result<(), Over> {
        let Some(serving) = served else { return Ok(()) };
        if !serving.attached {
            serving.attached = true;
            self.attach(serving.negotiated());
        }
        serving.heard = Instant::now();
        let outcome = match Message::read(bytes, files) {
            Ok(message) => {
                let header = message.header;
                pass_with(Point::MessageReceived, || header.name());
                serving.gate.change(|session| session.serve(number));
                let passed = serving.gate.pass(message);
                pass_with(Point::MessageCarriedOut, || header.name());
                self.shared.live().attached = Some(serving.negotiated());
                let end = passed.outcome.as_ref().err();
                pass_with(Point::MessageNoted, || header.name());
                serving.done(channel, number, &passed.reply, end.map(String::as_str))?;
                pass_with(Point::MessageDone, || header.name());
                passed.outcome
            }
            Err(Lost::Because(why)) => {
                serving.done(channel, number, &[], Some(&why))?;
                Err(why)
            }
            Err(Lost::Stopped) => return Err(Over::Stop),
        };
        match outcome {
            Ok(()) => self.sleep_between(work.requests.take(Instant::now())),
            Err(why) => forget(self.leave(served, &why)),
        }
        Ok(())
    }
}
