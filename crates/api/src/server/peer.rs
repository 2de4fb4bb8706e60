//! A client's connection: its socket, its caller, its state, and the time since when it has that
//! state.

use super::bounds::{HANDSHAKE, PATIENCE, SLOW, SLOWEST};
use crate::{Caller, zmtp::Connection};
use rustix::event::epoll::EventFlags;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// Clients that share a turn, and are counted together: a host, or a process of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A host; of IPv6 the link, as one host has all of its addresses.
    Host(u128),
    Process(i32),
}

/// Identity of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) origin: Origin,
    pub(super) caller: Caller,
    /// Its port, or its user.
    detail: u32,
}

impl Who {
    pub(super) fn of_host(address: SocketAddr) -> Self {
        let ip = address.ip().to_canonical();
        let origin = match ip {
            // A process on this host has all 16 million of them.
            IpAddr::V4(ip) if ip.is_loopback() => u128::from(Ipv4Addr::LOCALHOST.to_bits()),
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() & u128::MAX << 64,
        };
        Self {
            origin: Origin::Host(origin),
            caller: Caller::Host(ip),
            detail: address.port().into(),
        }
    }

    pub(super) fn of_process(process: i32, user: u32) -> Self {
        Self { origin: Origin::Process(process), caller: Caller::Local, detail: user }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Host(_) => write!(f, "{} port {}", self.caller, self.detail),
            Origin::Process(0) => {
                write!(f, "a process of another namespace, of user {}", self.detail)
            }
            Origin::Process(process) => write!(f, "process {process} of user {}", self.detail),
        }
    }
}

/// Bytes that go one way, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    since: Instant,
    whole: usize,
    pub(super) done: usize,
}

impl Transfer {
    pub(super) fn of(whole: usize, now: Instant) -> Self {
        Self { since: now, whole, done: 0 }
    }

    /// Bytes a second so far, if they are too few after `grace`.
    pub(super) fn slow_rate(&self, now: Instant, grace: Duration) -> Option<usize> {
        let time = now.saturating_duration_since(self.since);
        let rate = (self.done as f64 / time.as_secs_f64().max(0.001)) as usize;
        (time >= grace && rate < SLOW).then_some(rate)
    }

    fn is_overdue(&self, now: Instant) -> bool {
        let allowed = PATIENCE + Duration::from_secs((self.whole / SLOWEST) as u64);
        now.saturating_duration_since(self.since) > allowed
    }
}

/// A connection.
pub(super) struct Peer {
    /// None: it is closed, and what it asked for is still being done.
    pub(super) socket: Option<OwnedFd>,
    pub(super) who: Who,
    pub(super) machine: Connection,
    /// Bytes that were received and cannot be looked at yet.
    pub(super) kept: Vec<u8>,
    /// Events that the poll looks for.
    pub(super) interest: EventFlags,
    /// A request of it waits to be answered.
    pub(super) asks: bool,
    /// True if it waits for room.
    pub(super) waits: bool,
    /// Bytes of a reply that are counted as unread.
    pub(super) owed: usize,
    pub(super) receiving: Option<Transfer>,
    pub(super) sending: Option<Transfer>,
    accepted: Instant,
    /// Time at which it did something last.
    pub(super) active: Instant,
}

impl Peer {
    pub(super) fn new(socket: OwnedFd, who: Who, now: Instant) -> Self {
        Self {
            socket: Some(socket),
            who,
            machine: Connection::new(),
            kept: Vec::new(),
            interest: EventFlags::empty(),
            asks: false,
            waits: false,
            owed: 0,
            receiving: None,
            sending: None,
            accepted: now,
            active: now,
        }
    }

    /// Bytes that it has of what all clients share.
    pub(super) fn holds(&self) -> usize {
        self.owed + self.machine.room()
    }

    /// Returns why a slow client is to be cut when others wait for what it holds.
    pub(super) fn slow(&self, now: Instant, grace: Duration) -> Option<Cut> {
        let reads = self
            .sending
            .filter(|_| self.owed > 0)
            .and_then(|sending| sending.slow_rate(now, grace));
        if let Some(rate) = reads {
            return Some(Cut::SlowReader { rate, of: self.owed });
        }
        let receiving =
            self.receiving.filter(|_| self.machine.expects() > 0 && self.machine.room() > 0)?;
        receiving.slow_rate(now, grace).map(|rate| Cut::SlowRequest { rate })
    }

    /// Returns the events to be looked for now.
    pub(super) fn wanted_interest(&self) -> EventFlags {
        let mut interest = EventFlags::empty();
        if self.kept.is_empty() && self.machine.is_ready() {
            interest |= EventFlags::IN;
        }
        if !self.machine.output().is_empty() {
            interest |= EventFlags::OUT;
        }
        interest
    }

    /// Returns why its time is over, if it is.
    pub(super) fn overdue(&self, now: Instant) -> Option<Cut> {
        if !self.machine.is_open() {
            return (now.saturating_duration_since(self.accepted) > HANDSHAKE)
                .then_some(Cut::Handshake);
        }
        if let Some(sending) = self.sending.filter(|sending| sending.is_overdue(now)) {
            return Some(Cut::Unread { sent: sending.done, of: sending.whole });
        }
        // What waits for its turn is not late by its own fault.
        let receiving =
            self.receiving.filter(|receiving| !self.waits && receiving.is_overdue(now))?;
        Some(Cut::Unfinished { received: receiving.done })
    }

    /// Ranks how much it deserves its place when there are too many: the lowest goes first.
    pub(super) fn rank(&self) -> (u8, Instant) {
        let class = match () {
            () if !self.machine.is_open() => 0,
            () if self.socket.is_none() => 1,
            () if !self.asks && self.machine.unsent() == 0 && !self.machine.is_amid_a_message() => {
                2
            }
            () if !self.asks => 3,
            () => 4,
        };
        (class, self.active)
    }
}

/// Reason for cutting a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cut {
    #[error("{0}")]
    Refused(#[from] crate::zmtp::Refusal),
    #[error("it did not end its handshake within {} s", HANDSHAKE.as_secs())]
    Handshake,
    #[error("it did not end its message, of which {received} bytes came")]
    Unfinished { received: usize },
    #[error("it read {sent} bytes of its reply of {of}, and no more")]
    Unread { sent: usize, of: usize },
    #[error(
        "it sends a request at {rate} bytes a second, and others wait for the room that it takes"
    )]
    SlowRequest { rate: usize },
    #[error(
        "it reads a reply of {of} bytes at {rate} bytes a second, and others wait for the room that it takes"
    )]
    SlowReader { rate: usize, of: usize },
    #[error(
        "there are {connections} connections, {theirs} of them of its host or process, and another client came"
    )]
    Crowded { connections: usize, theirs: usize },
}

impl Cut {
    /// True if the client never came as far as a request.
    pub(super) fn is_of_handshake(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_of_handshake(),
            Self::Handshake => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::bounds::GRACE, *};
    use std::os::unix::net::UnixStream;

    const SECOND: Duration = Duration::from_secs(1);

    fn peer(now: Instant) -> Peer {
        let (socket, _) = UnixStream::pair().unwrap();
        Peer::new(socket.into(), Who::of_process(7, 0), now)
    }

    fn open(now: Instant) -> Peer {
        let mut peer = peer(now);
        let mut handshake = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
        handshake.extend(b"NULL");
        handshake.resize(64, 0);
        handshake.extend(b"\x04\x06\x05READY");
        assert_eq!(peer.machine.feed(&handshake), Ok(handshake.len()));
        peer.machine.sent(peer.machine.unsent());
        peer
    }

    #[test]
    fn a_handshake_has_its_time() {
        let now = Instant::now();
        assert_eq!(peer(now).overdue(now + HANDSHAKE), None);
        assert_eq!(peer(now).overdue(now + HANDSHAKE + SECOND), Some(Cut::Handshake));
        assert_eq!(open(now).overdue(now + 1000 * SECOND), None, "who is idle stays");
    }

    #[test]
    fn a_message_has_its_time() {
        let now = Instant::now();
        let mut peer = open(now);
        peer.receiving = Some(Transfer { done: 5, ..Transfer::of(1 << 20, now) });
        // Half a minute, and a second for each 64 KiB.
        assert_eq!(peer.overdue(now + 46 * SECOND), None);
        assert_eq!(peer.overdue(now + 47 * SECOND), Some(Cut::Unfinished { received: 5 }));
        peer.waits = true;
        assert_eq!(peer.overdue(now + 47 * SECOND), None, "it waits for others");
    }

    #[test]
    fn a_reply_has_its_time() {
        let now = Instant::now();
        let mut peer = open(now);
        peer.sending = Some(Transfer::of(128 << 10, now));
        assert_eq!(peer.overdue(now + 32 * SECOND), None);
        assert_eq!(peer.overdue(now + 33 * SECOND), Some(Cut::Unread { sent: 0, of: 128 << 10 }));
    }

    #[test]
    fn who_is_slow_is_known_after_a_while() {
        let now = Instant::now();
        let transfer = Transfer { done: SLOW, ..Transfer::of(16 << 20, now) };
        assert_eq!(transfer.slow_rate(now + GRACE / 2, GRACE), None);
        assert_eq!(transfer.slow_rate(now + SECOND, GRACE), None);
        assert_eq!(transfer.slow_rate(now + 4 * SECOND, GRACE), Some(SLOW / 4));
    }

    #[test]
    fn who_goes_first_when_there_are_too_many() {
        let now = Instant::now();
        let idle = open(now);
        let mut asks = open(now);
        asks.asks = true;
        let mut gone = open(now);
        gone.socket = None;
        let mut amid = open(now);
        amid.machine.feed(&[1, 0]).unwrap();
        let order = [peer(now), gone, idle, amid, asks];
        assert!(order.is_sorted_by(|a, b| a.rank() < b.rank()));
    }

    #[test]
    fn addresses_of_one_host_are_one_origin() {
        let of = |address: &str| Who::of_host(address.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:1").origin, of("[2001:db8::ffff:2]:2").origin);
        assert_ne!(of("[2001:db8::1]:1").origin, of("[2001:db8:0:1::1]:1").origin);
        assert_eq!(of("127.200.3.4:1").origin, of("127.0.0.1:2").origin);
        assert_eq!(of("127.200.3.4:1").caller, Caller::Host("127.200.3.4".parse().unwrap()));
        assert_eq!(of("[::ffff:192.0.2.1]:5").origin, of("192.0.2.1:7").origin);
        assert_eq!(of("[::ffff:192.0.2.1]:5").to_string(), "192.0.2.1 port 5");
        assert_eq!(of("192.0.2.1:5").caller, Caller::Host("192.0.2.1".parse().unwrap()));
        assert_eq!(Who::of_process(7, 0).to_string(), "process 7 of user 0");
    }
}
