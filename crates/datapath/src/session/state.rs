//! States of sessions, and how long each lasts without a frame.

use butterfly_packet::protocol;

use crate::flow::tcp::TcpState;

/// Where a session stands.
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
    /// TCP, until the handshake is complete; picked up from its middle, until the other side answers.
    pub tcp_new: u32,
    /// TCP, connected.
    pub tcp_established: u32,
    /// TCP, one side has ended.
    pub tcp_half_closed: u32,
    /// TCP, both sides have ended and not everything is acknowledged, or it was reset.
    pub tcp_closing: u32,
    /// TCP, after the last acknowledgement.
    pub tcp_time_wait: u32,
    /// TCP, cut by a change of policy: for so long it is not picked up from its middle, by whichever end. A switch takes at least its
    /// time for picking up.
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
    /// How long fragments may follow their first one.
    pub fragment: u32,
    /// How long a DHCP server may take to answer.
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

/// TCP's state of a [`State::number`]; anything else is the state that ends soonest.
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
    /// As it is stored.
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

    /// Of [`Self::number`]; anything else is the state that ends soonest.
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

    /// Number of the state that an answer leads to, from a state's number.
    #[inline(always)]
    pub const fn answered(number: u8) -> u8 {
        const UNANSWERED: u32 = 1 << State::UdpNew.number() | 1 << State::SctpNew.number() | 1 << State::OtherNew.number();
        number + (UNANSWERED >> (number % 32) & 1) as u8
    }

    /// The protocol that has it.
    pub const fn protocol(self) -> &'static str {
        match self {
            State::Tcp(_) => "tcp",
            State::UdpNew | State::UdpAnswered => "udp",
            State::Echo => "icmp-echo",
            State::SctpNew | State::SctpEstablished => "sctp",
            State::OtherNew | State::OtherAnswered => "other",
        }
    }

    /// Whether sessions of an IP protocol can be in it.
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

    /// For people.
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

    /// Both ends have spoken and neither has ended: it is never evicted for another one.
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
    /// Seconds a state lasts.
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

    /// Seconds each state lasts, by its number.
    pub(crate) fn by_number(&self) -> [u32; 32] {
        std::array::from_fn(|number| self.of(State::from_number(number as u8)))
    }

    /// Whether a session in this state, last seen then, has ended by `now`.
    #[inline(always)]
    pub(crate) const fn over(&self, state: State, seen: u32, now: u32) -> bool {
        now.wrapping_sub(seen) as i32 > 0 && now.wrapping_sub(seen) > self.of(state)
    }
}
