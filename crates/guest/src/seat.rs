//! A guest at its place: attached to the switch, asleep until there is something to do.

use std::{
    net::IpAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use butterfly_guest_driver::{Connection, ControlError, Start};
use butterfly_vhost::net::Features;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    error::Error,
    nic::{NEEDED, Nic, NicError},
    station::{Offloads, Station},
};

/// Time for which a guest that pings or answers looks for the next frame before it sleeps.
const AWAKE: Duration = Duration::from_micros(200);

/// Wishes of the guest's owner.
pub(crate) struct Wishes {
    /// A wish comes like an interrupt of the receive queue: every descriptor less is room for more
    /// vnics.
    wake: Arc<OwnedFd>,
    stop: AtomicBool,
    ip: Mutex<Option<IpAddr>>,
    /// Another MTU; 0: none was wished since it was asked for.
    mtu: AtomicU32,
}

impl Wishes {
    fn wake(&self) {
        // Full means that it is readable, which is all that is wanted.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub fn readdress(&self, ip: Option<IpAddr>) {
        *self.ip.lock().unwrap_or_else(PoisonError::into_inner) = ip;
        self.wake();
    }

    pub fn resize(&self, mtu: u32) {
        self.mtu.store(mtu, Ordering::Release);
        self.wake();
    }
}

/// Reason why a guest ends.
pub(crate) enum End {
    /// Its owner stopped it.
    Stopped,
    /// The switch closed the control channel, and knows why.
    Closed,
    /// Something else: a sentence without a full stop.
    Because(String),
}

impl End {
    /// Returns the reason, if the switch does not know it.
    pub fn reason(self) -> Option<String> {
        match self {
            End::Stopped | End::Closed => None,
            End::Because(reason) => Some(reason),
        }
    }
}

impl From<NicError> for End {
    fn from(error: NicError) -> End {
        End::Because(format!(
            "an error of a queue between the switch and its own guest, please report it: {error}"
        ))
    }
}

/// A guest that is attached.
pub(crate) struct Seat {
    pub nic: Nic,
    /// The guest stays as long as this is open.
    channel: UnixStream,
    wishes: Arc<Wishes>,
    /// Time at which a ping or its answer came last.
    last: Option<Instant>,
    /// True if it has a processor that is not the worker's: it may look again instead of sleeping.
    pub looks: bool,
}

impl Seat {
    /// Notes how many pings, or answers to them, came just now. Other frames do not keep the guest
    /// awake.
    pub fn noticed(&mut self, pings: usize) {
        if pings > 0 {
            self.last = Some(Instant::now());
        }
    }

    /// True if nothing has arrived for a while.
    ///
    /// While something arrives, another look is worth more than sleep: a round trip that is
    /// measured waits for no thread to wake up. Another thread on this processor goes first.
    pub fn is_quiet(&self) -> bool {
        let quiet = self.last.is_none_or(|last| !self.looks || last.elapsed() > AWAKE);
        if !quiet {
            std::thread::yield_now();
        }
        quiet
    }

    /// Attaches with the `wanted` features, as far as they are offered; frames of a TAP device may
    /// leave to the switch what it accepts from a guest. The queues run when this returns.
    pub fn take(
        stream: UnixStream,
        (station, wanted): (Option<&Station>, Features),
        ip: Option<IpAddr>,
    ) -> Result<Seat, Error> {
        let channel = stream.try_clone()?;
        let mut connection = Connection::new(stream)?;
        let wanted = match station.is_some_and(Station::knows_uso) {
            true => wanted.with(Features::USO),
            false => wanted,
        };
        let features = connection.negotiate(wanted, Connection::usual_protocol())?;
        if !features.has(NEEDED) {
            return Err(ControlError::Missing(NEEDED.without(features)).into());
        }
        if let Some(station) = station {
            station.set_offloads(Offloads {
                checksum: features.has(Features::CSUM),
                tso4: features.has(Features::HOST_TSO4),
                tso6: features.has(Features::HOST_TSO6),
                ecn: features.has(Features::HOST_ECN),
                uso: features.has(Features::HOST_USO),
            })?;
        }
        let nic = Nic::new(features)?;
        connection.start(&nic, &Start::default())?;
        let wishes = Wishes {
            wake: nic.interrupt().clone(),
            stop: AtomicBool::new(false),
            ip: Mutex::new(ip),
            mtu: AtomicU32::new(0),
        };
        Ok(Seat { nic, channel, wishes: Arc::new(wishes), last: None, looks: false })
    }

    /// Returns the means to wish something of it.
    pub fn wishes(&self) -> Arc<Wishes> {
        self.wishes.clone()
    }

    /// True if it is to end.
    pub fn stopping(&self) -> bool {
        self.wishes.stop.load(Ordering::Acquire)
    }

    /// The MTU of its network, if that has changed since it was asked for.
    pub fn new_mtu(&self) -> Option<u32> {
        Some(self.wishes.mtu.swap(0, Ordering::AcqRel)).filter(|mtu| *mtu > 0)
    }

    /// Its IP address.
    pub fn ip(&self) -> Option<IpAddr> {
        *self.wishes.ip.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a frame was delivered, `file` can be read and there is room for what comes from
    /// it, something is wished, or `timeout` is over. Returns whether `file` only reports
    /// errors.
    pub fn sleep(
        &mut self,
        file: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<bool, End> {
        let room = file.is_none() || self.nic.room()? > 0;
        let mut broken = false;
        if self.nic.arm(room) {
            let [received, sent] = self.nic.interrupts();
            let other = file.filter(|_| room).unwrap_or(sent);
            let fds = [self.channel.as_fd(), received, other];
            let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let timeout = timeout.map(|time| Timespec {
                tv_sec: time.as_secs() as i64,
                tv_nsec: time.subsec_nanos().into(),
            });
            // Interrupted by a signal: a guest that has nothing to do sleeps again.
            let _ = poll(&mut fds, timeout.as_ref());
            let [channel, _, other] = fds.map(|fd| fd.revents());
            if !channel.is_empty() {
                return Err(if self.stopping() { End::Stopped } else { End::Closed });
            }
            broken = file.is_some()
                && room
                && other.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        }
        self.nic.disarm();
        Ok(broken)
    }
}
