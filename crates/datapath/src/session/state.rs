//! States of sessions, and how long each lasts without a frame.
//!
//! A session is *established* when its other end has spoken: in TCP after the handshake, or after a
//! segment of the other side if the connection was picked up in its middle; in UDP, SCTP and
//! protocols without ports after an answer. An echo never is. A full table gives up sessions that
//! are over first, then those that are not established, and never an established one.
//!
//! A connection that a change of policy took back is *cut* and stays in the table for a while.
//! Without that memory, the next packet of the end that may open connections would look like one of
//! a connection older than the daemon, and be picked up. The memory is lost when the session is
//! flushed, given up for lack of room, or when one end leaves the host.

use butterfly_packet::protocol;

use crate::ip::tcp::TcpState;

/// State of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Tcp(TcpState),
    UdpNew,
    UdpAnswered,
    Echo,
    SctpNew,
    SctpEstablished,
    OtherNew,
    OtherAnswered,
}

/// Seconds without a frame after which a session ends, by protocol and state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// TCP, until the handshake is complete; picked up from its middle, until the other side
    /// answers.
    pub tcp_new: u32,
    /// TCP, connected.
    pub tcp_established: u32,
    /// TCP, one side has ended.
    pub tcp_half_closed: u32,
    /// TCP, both sides have ended and not everything is acknowledged, or it was reset.
    pub tcp_closing: u32,
    /// TCP, after the last acknowledgement.
    pub tcp_time_wait: u32,
    /// TCP, cut by a change of policy: time in which neither end can have it picked up from its
    /// middle. A switch uses at least its time for picking up.
    pub tcp_cut: u32,
    /// UDP, not answered yet.
    pub udp_new: u32,
    /// UDP, answered.
    pub udp_answered: u32,
    /// ICMP and ICMPv6 echo.
    pub icmp_echo: u32,
    /// SCTP, until the handshake is complete.
    pub sctp_new: u32,
    /// SCTP, connected.
    pub sctp_established: u32,
    /// Every other protocol.
    pub other: u32,
    /// Fragments, after their first one.
    pub fragment: u32,
    /// DHCP, until the server answers.
    pub dhcp: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            tcp_new: 30,
            tcp_established: 86400,
            tcp_half_closed: 21600,
            tcp_closing: 10,
            tcp_time_wait: 240,
            tcp_cut: 120,
            udp_new: 30,
            udp_answered: 60,
            icmp_echo: 30,
            sctp_new: 30,
            sctp_established: 300,
            other: 60,
            fragment: 30,
            dhcp: 60,
        }
    }
}

/// Returns TCP's state of a [`State::number`]. Any other number is the state that ends soonest.
#[inline(always)]
pub(crate) const fn tcp_state(number: u8) -> TcpState {
    match number {
        0 => TcpState::New,
        1 => TcpState::SynReceived,
        2 => TcpState::PickedUp,
        3 => TcpState::Established,
        4 => TcpState::HalfClosed,
        5 => TcpState::Closing,
        6 => TcpState::TimeWait,
        8 => TcpState::Cut,
        _ => TcpState::Closed,
    }
}

impl State {
    /// Returns the number by which it is stored.
    #[inline(always)]
    pub const fn number(self) -> u8 {
        match self {
            State::Tcp(state) => state as u8,
            State::UdpNew => 16,
            State::UdpAnswered => 17,
            State::Echo => 18,
            State::SctpNew => 19,
            State::SctpEstablished => 20,
            State::OtherNew => 21,
            State::OtherAnswered => 22,
        }
    }

    /// Returns the state of a [`Self::number`]. Any other number is the state that ends soonest.
    #[inline(always)]
    pub fn from_number(number: u8) -> State {
        match number {
            0..16 => State::Tcp(tcp_state(number)),
            16 => State::UdpNew,
            17 => State::UdpAnswered,
            18 => State::Echo,
            19 => State::SctpNew,
            20 => State::SctpEstablished,
            21 => State::OtherNew,
            22 => State::OtherAnswered,
            _ => State::Tcp(TcpState::Closed),
        }
    }

    /// Returns the number of the state that an answer leads to, from a state's number.
    #[inline(always)]
    pub const fn answered(number: u8) -> u8 {
        const UNANSWERED: u32 = 1 << State::UdpNew.number()
            | 1 << State::SctpNew.number()
            | 1 << State::OtherNew.number();
        number + (UNANSWERED >> (number % 32) & 1) as u8
    }

    /// Returns the protocol that has it.
    pub const fn protocol(self) -> &'static str {
        match self {
            State::Tcp(_) => "tcp",
            State::UdpNew | State::UdpAnswered => "udp",
            State::Echo => "icmp-echo",
            State::SctpNew | State::SctpEstablished => "sctp",
            State::OtherNew | State::OtherAnswered => "other",
        }
    }

    /// Returns whether sessions of an IP protocol can be in it.
    pub const fn is_of(self, protocol: u8) -> bool {
        let own = matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        match self {
            State::Tcp(_) => protocol == protocol::TCP,
            State::UdpNew | State::UdpAnswered => protocol == protocol::UDP,
            State::Echo => matches!(protocol, protocol::ICMP | protocol::ICMPV6),
            State::SctpNew | State::SctpEstablished => protocol == protocol::SCTP,
            State::OtherNew | State::OtherAnswered => !own,
        }
    }

    /// Returns its name in outputs.
    pub const fn name(self) -> &'static str {
        match self {
            State::Tcp(TcpState::New) => "new",
            State::Tcp(TcpState::SynReceived) => "syn-received",
            State::Tcp(TcpState::PickedUp) => "picked-up",
            State::Tcp(TcpState::Established) | State::SctpEstablished => "established",
            State::Tcp(TcpState::HalfClosed) => "half-closed",
            State::Tcp(TcpState::Closing) => "closing",
            State::Tcp(TcpState::TimeWait) => "time-wait",
            State::Tcp(TcpState::Closed) => "closed",
            State::Tcp(TcpState::Cut) => "cut",
            State::UdpNew | State::SctpNew | State::OtherNew => "new",
            State::UdpAnswered | State::OtherAnswered => "answered",
            State::Echo => "echo",
        }
    }

    /// Returns whether both ends have sent and neither has ended. Such a session is never evicted
    /// for another one.
    pub const fn is_established(self) -> bool {
        matches!(
            self,
            State::Tcp(TcpState::Established | TcpState::HalfClosed)
                | State::UdpAnswered
                | State::SctpEstablished
                | State::OtherAnswered
        )
    }
}

impl Timeouts {
    /// Returns the time-outs of a switch that picks up connections for so many seconds: as long as
    /// it may pick one up, it remembers the cut ones.
    pub(crate) fn with_pickup(self, tcp_pickup: u32) -> Timeouts {
        Timeouts { tcp_cut: self.tcp_cut.max(tcp_pickup), ..self }
    }

    /// Returns the seconds that a state lasts.
    #[inline(always)]
    pub(crate) const fn of(&self, state: State) -> u32 {
        match state {
            State::Tcp(TcpState::New | TcpState::SynReceived | TcpState::PickedUp) => self.tcp_new,
            State::Tcp(TcpState::Established) => self.tcp_established,
            State::Tcp(TcpState::HalfClosed) => self.tcp_half_closed,
            State::Tcp(TcpState::Closing | TcpState::Closed) => self.tcp_closing,
            State::Tcp(TcpState::TimeWait) => self.tcp_time_wait,
            State::Tcp(TcpState::Cut) => self.tcp_cut,
            State::UdpNew => self.udp_new,
            State::UdpAnswered => self.udp_answered,
            State::Echo => self.icmp_echo,
            State::SctpNew => self.sctp_new,
            State::SctpEstablished => self.sctp_established,
            State::OtherNew | State::OtherAnswered => self.other,
        }
    }

    /// Returns the seconds that each state lasts, by its number.
    pub(crate) fn by_number(&self) -> [u32; 32] {
        std::array::from_fn(|number| self.of(State::from_number(number as u8)))
    }

    /// Returns whether a session in this state with its last frame at `seen` has ended by `now`.
    #[inline(always)]
    pub(crate) const fn over(&self, state: State, seen: u32, now: u32) -> bool {
        now.wrapping_sub(seen) as i32 > 0 && now.wrapping_sub(seen) > self.of(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 16] = [
        State::Tcp(TcpState::New),
        State::Tcp(TcpState::SynReceived),
        State::Tcp(TcpState::PickedUp),
        State::Tcp(TcpState::Established),
        State::Tcp(TcpState::HalfClosed),
        State::Tcp(TcpState::Closing),
        State::Tcp(TcpState::TimeWait),
        State::Tcp(TcpState::Closed),
        State::Tcp(TcpState::Cut),
        State::UdpNew,
        State::UdpAnswered,
        State::Echo,
        State::SctpNew,
        State::SctpEstablished,
        State::OtherNew,
        State::OtherAnswered,
    ];

    /// The numbers stand in files that a next daemon reads.
    #[test]
    fn states_have_these_numbers() {
        let numbers: Vec<u8> = (0..9).chain(16..23).collect();
        assert_eq!(ALL.map(State::number).to_vec(), numbers);
        for number in 0..=255 {
            let expected = ALL.into_iter().find(|state| state.number() == number);
            assert_eq!(
                State::from_number(number),
                expected.unwrap_or(State::Tcp(TcpState::Closed)),
                "{number}"
            );
        }
    }

    #[test]
    fn an_answer_changes_what_waits_for_one() {
        for state in ALL {
            let answered = match state {
                State::UdpNew => State::UdpAnswered,
                State::SctpNew => State::SctpEstablished,
                State::OtherNew => State::OtherAnswered,
                other => other,
            };
            assert_eq!(State::answered(state.number()), answered.number(), "{state:?}");
        }
    }

    #[test]
    fn states_are_of_their_protocols() {
        for (protocol, first, last) in
            [(6, 0, 8), (17, 16, 17), (1, 18, 18), (58, 18, 18), (132, 19, 20)]
        {
            let of: Vec<u8> = ALL
                .iter()
                .filter(|state| state.is_of(protocol))
                .map(|state| state.number())
                .collect();
            let expected: Vec<u8> = ALL
                .iter()
                .map(|state| state.number())
                .filter(|n| (first..=last).contains(n))
                .collect();
            // ICMP that is no echo is of "other", too.
            let other: &[u8] = if matches!(protocol, 1 | 58) { &[21, 22] } else { &[] };
            assert_eq!(of, [&expected, other].concat(), "{protocol}");
        }
        let of: Vec<State> = ALL.into_iter().filter(|state| state.is_of(47)).collect();
        assert_eq!(of, [State::OtherNew, State::OtherAnswered]);
    }

    #[test]
    fn each_state_lasts_its_time() {
        let timeouts = Timeouts {
            tcp_new: 1,
            tcp_established: 2,
            tcp_half_closed: 3,
            tcp_closing: 4,
            tcp_time_wait: 5,
            tcp_cut: 6,
            udp_new: 7,
            udp_answered: 8,
            icmp_echo: 9,
            sctp_new: 10,
            sctp_established: 11,
            other: 12,
            fragment: 13,
            dhcp: 14,
        };
        let times = [1, 1, 1, 2, 3, 4, 5, 4, 6, 7, 8, 9, 10, 11, 12, 12];
        let by_number = timeouts.by_number();
        for (state, seconds) in ALL.into_iter().zip(times) {
            assert_eq!(
                (timeouts.of(state), by_number[usize::from(state.number())]),
                (seconds, seconds),
                "{state:?}"
            );
            assert!(
                !timeouts.over(state, 100, 100 + seconds)
                    && timeouts.over(state, 100, 101 + seconds),
                "{state:?}"
            );
            // Seen by a worker whose clock is a second ahead; and when the clock wraps around.
            assert!(!timeouts.over(state, 101, 100) && !timeouts.over(state, u32::MAX, 0));
            assert!(timeouts.over(state, u32::MAX, seconds));
        }
        // A number of no state lasts as long as the state that ends soonest.
        assert_eq!((by_number[9], by_number[31]), (4, 4));
    }
}
