//! The control thread of one socket: waits for a front end, serves it until it leaves, and so on.
//!
//! It serves one front end at a time, in the order in which they connect. A second one waits in the
//! socket's backlog until the first leaves. A restarted VM does that while its old process is still
//! ending. The status shows that a front end waits. A front end whose process is gone has left: the
//! kernel closes its end. One that connects and says nothing (a probe, a forgotten `nc`) gives way
//! to the next after a second. One that has spoken stays, even if its guest's driver is not up yet.

use std::{
    num::NonZeroU64,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    event::{PollFd, PollFlags},
    net::{SocketAddrUnix, sockopt::socket_peercred},
    thread::set_current_timer_slack,
};

use super::{
    events::DeviceEvents,
    gate::Gate,
    session::Session,
    shared::Shared,
    socket::Dialer,
    state::Exported,
    status::{Detach, Negotiated},
    wire::{self, Lost, PATIENCE},
};
use crate::{net::Features, port::Port, ring::NoteTable};

/// A client tries to connect so often: QEMU as a server blocks at its start until we come.
pub(super) const RETRY: Duration = Duration::from_millis(80);
/// Allowed delay, so that threads wake together: at most 100 ms in all.
const SLACK: Duration = Duration::from_millis(15);
/// Before the next attempt after accepting failed, which is when descriptors are used up.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Requests at once and per second; the front end has to wait beyond that. QEMU needs some 40 to
/// set up a device. A guest that masks its interrupts all the time causes a few hundred a second.
pub(super) const REQUESTS: (u32, u32) = (4096, 2000);
/// Connections at once and per second.
pub(super) const CONNECTIONS: (u32, u32) = (20, 20);

/// Time in which a front end whose driver is up has to announce memory.
pub(super) const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// Reason for detaching a front end when the device stops.
const REMOVED: &str = "the vnic was removed";

/// Has this thread wake together with others. A host may have many of them: those that wait for
/// their next look wake together. If it is refused, each wakes alone.
pub(super) fn share_wake_ups() {
    let _ = set_current_timer_slack(NonZeroU64::new(SLACK.as_nanos() as u64));
}

/// Everything the thread needs.
pub(super) struct Thread {
    /// Address to connect to in the client role; as a server, [`Shared::listener`] is there.
    pub server: Option<SocketAddrUnix>,
    pub port: Arc<Port>,
    pub offered: Features,
    /// Place of notes about packed rings, of a front end that the holder holds.
    pub notes: Option<Arc<NoteTable>>,
    pub events: Arc<dyn DeviceEvents>,
    pub shared: Arc<Shared>,
    /// The front end is in this process, and will not come again.
    pub inside: bool,
}

/// A front end that is connected.
pub(super) struct Connection {
    pub socket: OwnedFd,
    pub session: Session,
    /// True once the front end has spoken.
    pub attached: bool,
}

impl Thread {
    /// Runs until it is asked to stop, or no further front end can come.
    ///
    /// `next` is a front end that is there already: another process served it before, or it is in
    /// this process.
    pub fn run(&self, mut next: Option<Connection>) {
        share_wake_ups();
        let mut pace = super::pace::Pace::new(CONNECTIONS.0, CONNECTIONS.1);
        loop {
            let connection = match next.take() {
                Some(connection) => connection,
                None => {
                    self.sleep(pace.take(Instant::now()));
                    let Some(socket) = self.next_front_end() else { return };
                    let session =
                        Session::new(self.port.clone(), self.offered, self.events.clone());
                    Connection { socket, session, attached: false }
                }
            };
            let lost = catch_unwind(AssertUnwindSafe(|| self.serve(connection)));
            let lost = lost.unwrap_or_else(|_| {
                Lost::because("an internal error of the control channel; please report it")
            });
            self.detach(&lost);
            if lost == Lost::Stopped {
                return;
            }
        }
    }

    /// Sleeps, or less if it is to stop.
    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.shared.stopping() {
                return;
            }
            let mut wake = [PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN)];
            wire::wait(&mut wake, Some(left));
            if !wake.iter().all(|fd| fd.revents().is_empty()) {
                self.idle_wishes();
            }
        }
    }

    /// Answers wishes while no front end is attached.
    pub(super) fn idle_wishes(&self) {
        self.shared.take_wake();
        self.shared.take_poke();
        self.refuse_exports();
    }

    /// Says that there is no state to export.
    pub(super) fn refuse_exports(&self) {
        for wish in self.shared.take_exports() {
            let _ = wish.send(None);
        }
    }

    /// The next front end; `None` to stop.
    fn next_front_end(&self) -> Option<OwnedFd> {
        let mut dialer = Dialer::default();
        loop {
            if self.shared.stopping() {
                return None;
            }
            let (found, retry) = match (&self.shared.listener, &self.server) {
                (Some(listener), _) => {
                    let wake = PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN);
                    wire::wait(
                        &mut [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN), wake],
                        None,
                    );
                    self.idle_wishes();
                    (listener.accept(), ACCEPT_RETRY)
                }
                // A client waits for a server that is not there yet, or one whose backlog is full.
                (None, Some(address)) => (dialer.connect(address).map(Some), RETRY),
                (None, None) => return None,
            };
            let trouble = match found {
                Ok(Some(connection)) => {
                    self.shared.live().trouble = None;
                    return Some(connection);
                }
                Ok(None) => continue,
                Err(error) if self.server.is_some() => {
                    format!("cannot connect to the socket: {error}")
                }
                Err(error) => {
                    format!(
                        "cannot accept a front end: {error}; if descriptors are used up, raise the limit of open files"
                    )
                }
            };
            self.shared.live().trouble = Some(trouble);
            self.sleep(retry);
        }
    }

    /// Serves a front end. Its rings are stopped and everything it gave us is closed and unmapped
    /// when this returns.
    fn serve(&self, connection: Connection) -> Lost {
        let Connection { socket, session, mut attached } = connection;
        let peer_pid = socket_peercred(&socket)
            .ok()
            .and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
        let since = (Instant::now(), SystemTime::now());
        let mut gate = match Gate::new(session) {
            Ok(gate) => gate,
            Err(error) => {
                return Lost::because(format!("the control channel cannot be set up: {error}"));
            }
        };
        let mut pace = super::pace::Pace::new(REQUESTS.0, REQUESTS.1);
        let negotiated =
            |gate: &Gate| gate.session(|session| session.negotiated(since.1, peer_pid));
        if attached {
            self.attach(negotiated(&gate));
        }
        loop {
            if let Err(lost) = self.wait_for_message(&socket, &gate, (!attached).then_some(since.0))
            {
                return lost;
            }
            let message = match wire::receive(&socket, &self.shared) {
                Ok(message) => message,
                Err(lost) => {
                    // A message that was begun shows a front end that had come; an end without a
                    // word does not.
                    if !attached
                        && lost != Lost::because(wire::CLOSED)
                        && lost != Lost::because(wire::RESET)
                    {
                        self.attach(negotiated(&gate));
                    }
                    return lost;
                }
            };
            if !attached {
                attached = true;
                self.attach(negotiated(&gate));
            }
            let passed = gate.pass(message);
            self.shared.live().attached = Some(negotiated(&gate));
            // A refusal is sent too: the front end may say it to its own operator.
            if let Err(lost) = wire::reply(&socket, &passed.reply, &self.shared)
                && (passed.outcome.is_ok() || lost == Lost::Stopped)
            {
                return lost;
            }
            if let Err(reason) = passed.outcome {
                return Lost::Because(reason);
            }
            self.sleep_between(pace.take(Instant::now()));
        }
    }

    /// Sleeps as [`Self::sleep`] does; wishes wait until it is over.
    pub(super) fn sleep_between(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.shared.stopping() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            wire::wait(
                &mut [PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN)],
                Some(left),
            );
            self.shared.take_wake();
        }
    }

    /// Waits until the front end speaks or leaves, and grants wishes meanwhile. `silent_since` is
    /// given while it has not spoken.
    fn wait_for_message(
        &self,
        socket: &OwnedFd,
        gate: &Gate,
        silent_since: Option<Instant>,
    ) -> Result<(), Lost> {
        let listener = self.shared.listener.as_ref().filter(|_| silent_since.is_some());
        let mut others = false;
        let begun = Instant::now();
        loop {
            self.shared.take_wake();
            if self.shared.stopping() {
                return Err(Lost::Stopped);
            }
            if self.shared.take_poke()
                && let Some(why) = gate.session(Session::poisoned)
            {
                return Err(Lost::because(why));
            }
            self.grant_exports(socket, gate);
            let patience = match silent_since {
                Some(since) if others => {
                    let left = PATIENCE.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(Lost::because(
                            "the peer said nothing, and another front end was waiting",
                        ));
                    }
                    Some(left)
                }
                _ if gate.session(Session::awaits_memory) => {
                    let left = MEMORY_PATIENCE.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        let why = gate.change(Session::miss_memory);
                        self.shared
                            .live()
                            .attached
                            .iter_mut()
                            .for_each(|attached| attached.memory_trouble = Some(why));
                        continue;
                    }
                    Some(left)
                }
                _ => None,
            };
            let peer = PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN);
            let wake = PollFd::from_borrowed_fd(self.shared.wake_fd(), PollFlags::IN);
            let ready = match listener.filter(|_| !others) {
                None => {
                    let mut fds = [peer, wake];
                    wire::wait(&mut fds, patience);
                    fds.map(|fd| !fd.revents().is_empty())[0]
                }
                Some(listener) => {
                    let mut fds =
                        [peer, wake, PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
                    wire::wait(&mut fds, patience);
                    let ready = fds.map(|fd| !fd.revents().is_empty());
                    others = ready[2];
                    ready[0]
                }
            };
            if ready {
                return Ok(());
            }
        }
    }

    /// Answers wishes for the state of the connection.
    fn grant_exports(&self, socket: &OwnedFd, gate: &Gate) {
        for wish in self.shared.take_exports() {
            let exported = gate
                .session(Session::export)
                .and_then(|state| Ok(Exported { connection: socket.try_clone()?, state }));
            // The asking thread may have given up.
            let _ = wish.send(exported.ok());
        }
    }

    pub(super) fn attach(&self, negotiated: Negotiated) {
        self.count(negotiated);
        self.events.attached();
    }

    /// As [`Self::attach`], for a front end that another device attached.
    pub(super) fn resume(&self, negotiated: Negotiated) {
        self.count(negotiated);
        self.events.resumed();
    }

    fn count(&self, negotiated: Negotiated) {
        let mut live = self.shared.live();
        live.attach_count += 1;
        live.attached = Some(negotiated);
    }

    /// Removes all that is left of the front end. One that never spoke causes no event.
    pub(super) fn detach(&self, lost: &Lost) {
        let mut live = self.shared.live();
        let farewell = live.farewell.take();
        let reason = match (lost, &farewell) {
            (Lost::Stopped, _) => REMOVED,
            (Lost::Because(_), Some(said)) => said,
            (Lost::Because(reason), None) => reason,
        };
        if *lost != Lost::Stopped && self.inside {
            live.trouble = Some(reason.to_owned());
        }
        let attached = live.attached.take().is_some();
        if attached || !matches!(reason, wire::CLOSED | wire::RESET | REMOVED) {
            live.last_detach = Some(Detach { reason: reason.to_owned(), at: SystemTime::now() });
        }
        drop(live);
        if attached {
            self.events.detached(reason);
        }
    }
}
