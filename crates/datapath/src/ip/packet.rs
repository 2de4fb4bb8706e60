//! What is known of a packet once it is read.

use super::address::Address;
use super::{dhcp::Dhcp, discovery::Discovery, tcp::Segment};

/// Who talks to whom, with what. In the direction of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tuple {
    pub source: Address,
    pub destination: Address,
    /// 0 where the protocol has no ports. Of an echo, the requester's port is the identifier, and
    /// the other side's the type of the request (8 or 128).
    pub source_port: u16,
    pub destination_port: u16,
    /// 0 without tag, else [`super::TAGGED`] and the VLAN id.
    pub vlan: u16,
    /// Of IPv6, what the last extension header names.
    pub protocol: u8,
}

impl Tuple {
    /// The same conversation seen from the other side.
    #[inline(always)]
    pub const fn reversed(self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }
}

/// A parsed frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub tuple: Tuple,
    pub l4: L4,
    /// None of a whole packet, also of an atomic fragment (RFC 6946).
    pub fragment: Option<Piece>,
}

/// What the transport header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum L4 {
    Tcp(Segment),
    Udp,
    /// UDP between the ports of DHCP or DHCPv6, in either direction, not fragmented.
    Dhcp(Dhcp),
    /// ICMP or ICMPv6 echo. A request whose identifier is its own type reads the same in both
    /// directions: whether the opener asks or the other side does is told by `request` only.
    Echo {
        request: bool,
    },
    /// Other ICMP and ICMPv6, and errors that quote nothing that could have a session.
    Icmp {
        kind: u8,
        code: u8,
    },
    /// ICMP 3, 11, 12 or ICMPv6 1 to 4.
    Error(Quoted),
    /// Neighbour or multicast listener discovery, valid or not.
    Discovery(Discovery),
    /// First chunk of the packet.
    Sctp {
        init: bool,
        abort: bool,
        shutdown_complete: bool,
    },
    /// A protocol without ports, or ESP.
    Other,
    /// A fragment that is not the first: ports are 0, and of IPv6 the protocol is what the fragment
    /// header names.
    Fragment,
}

/// The packet an ICMP error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quoted {
    /// As quoted: the source is who the error is for. The VLAN is that of the error.
    pub tuple: Tuple,
    /// Of TCP.
    pub sequence: Option<u32>,
}

/// A fragment's place, in bytes of the fragmented payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub id: u32,
    /// 0 of the first.
    pub offset: u32,
    /// Behind its last byte, above `offset`, at most 65535.
    pub end: u32,
    /// Whether it is not the last.
    pub more: bool,
}
