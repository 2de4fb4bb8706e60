//! Facts about a packet that was read.

use super::address::Address;
use super::{dhcp::Dhcp, discovery::Discovery, tcp::Segment};

/// Addresses, ports, protocol and VLAN of a frame, in its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tuple {
    pub source: Address,
    pub destination: Address,
    /// Source port; 0 if the protocol has no ports. For an echo, the requester's port is the
    /// identifier, and the other side's port is the type of the request (8 or 128).
    pub source_port: u16,
    pub destination_port: u16,
    /// 0 without tag, else [`super::TAGGED`] and the VLAN id.
    pub vlan: u16,
    /// Protocol; for IPv6, the one that the last extension header names.
    pub protocol: u8,
}

impl Tuple {
    /// Returns the same conversation seen from the other side.
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
    /// Place of a fragment; none for a whole packet, also for an atomic fragment (RFC 6946).
    pub fragment: Option<Piece>,
}

/// Contents of the transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum L4 {
    Tcp(Segment),
    Udp,
    /// UDP between the ports of DHCP or DHCPv6, in either direction, not fragmented.
    Dhcp(Dhcp),
    /// ICMP or ICMPv6 echo. A request whose identifier is its own type has the same tuple in both
    /// directions: only `request` tells whether the opener asks or the other side does.
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
    /// A fragment that is not the first. Its ports are 0, and for IPv6 the protocol is the one that
    /// the fragment header names.
    Fragment,
}

/// The packet that an ICMP error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quoted {
    /// The tuple as quoted: its source is the receiver of the error. The VLAN is that of the error.
    pub tuple: Tuple,
    /// Sequence number of a TCP segment.
    pub sequence: Option<u32>,
}

/// A fragment's place, in bytes of the fragmented payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub id: u32,
    /// Start; 0 for the first fragment.
    pub offset: u32,
    /// End, behind the last byte: above `offset`, at most 65535.
    pub end: u32,
    /// True if it is not the last fragment.
    pub more: bool,
}
