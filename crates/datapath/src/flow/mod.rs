//! Flow: what an IP frame is to a filter: who talks to whom, with what, and where in a conversation
//! it stands.
//!
//! [`parse`] reads a frame as far as the transport header and refuses what cannot be read without
//! doubt; [`tcp`] says whether a segment fits its connection; [`fragments`] remembers what was
//! decided on first fragments; [`discovery`] and [`dhcp`] know the frames that need no rule.

use crate::reason::drop_reasons;

pub(crate) mod dhcp;
pub(crate) mod discovery;
pub(crate) mod fragments;
pub(crate) mod parse;
pub(crate) mod tcp;

pub(crate) use self::{dhcp::Dhcp, discovery::Discovery, tcp::Segment};

drop_reasons! { 6;
    /// The IP header contradicts itself or the bytes behind it: version, header length, lengths, extension headers.
    MALFORMED_IP = "malformed-ip" {
        cause: "a broken or hostile sender",
        remedy: "look at the packet with tcpdump in the machine that sends, and replace the program or driver that makes it",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The IP packet is longer than the frame.
    TRUNCATED = "truncated" {
        cause: "a broken or hostile sender, or a driver that cuts packets",
        remedy: "look at the packet with tcpdump in the machine that sends, and replace the program or driver that makes it",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The transport header is not within the first 256 bytes of the frame.
    HEADERS_TOO_LONG = "headers-too-long" {
        cause: "a long chain of IPv6 extension headers, or many VLAN tags; usually an attempt to go round a filter",
        remedy: "send it with fewer extension headers; between two vnics that were added with `--bypass-filtering` everything passes",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A first fragment without the whole transport header.
    TINY_FRAGMENT = "tiny-fragment" {
        cause: "an attempt to hide the ports from a filter",
        remedy: "find the program that sends it: no network stack makes such fragments by itself",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A fragment that repeats bytes of another one, or lies beyond the last.
    FRAGMENT_OVERLAP = "fragment-overlap" {
        cause: "a packet that was repeated in the network, or an attempt to go round a filter",
        remedy: "nothing for a few; else find the program that sends it, or avoid fragments: a smaller MTU in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A fragment whose first one was not let through, or not within the time-out for fragments (30 seconds by default).
    FRAGMENT_ORPHAN = "fragment-orphan" {
        cause: "a first fragment that was dropped (see the other reasons), came after this one, did not come, or was forgotten for others: 64 packets in fragments are kept of one vnic, and of all other hosts of a network; 1,024 in all, and a full table takes from the network, and there from the vnic, that has most",
        remedy: "look for the drop of the first fragment with `butterfly drops`; avoid fragments: a smaller MTU, or path MTU discovery, in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A fragmented packet with more gaps than are kept.
    FRAGMENTS_FULL = "fragments-full" {
        cause: "fragments of one packet in so wild an order that more than 16 stretches are missing between them",
        remedy: "avoid fragments: a smaller MTU, or path MTU discovery, in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// Neighbour discovery or multicast listener discovery that is invalid, or that speaks for somebody else.
    BAD_DISCOVERY = "bad-discovery" {
        cause: "an address that was not declared (also a probe for it, with `--enable-antispoof`), or a machine that wants to be a router",
        remedy: "declare the address too: `butterfly nic update --id NIC --ip ADDRESS..` (the whole list); a router needs `butterfly nic update --id NIC --router true` and `butterfly sg rule add SG --dir out --ip-proto 58 --cidr ::/0`; the first OUTBOUND rule of a vnic's groups ends \"everything may leave\", so add one for all else as well",
        charged: "the sender",
    }
    /// Neighbour discovery or multicast listener discovery that is as it should be, more of it than a machine needs: a vnic may send 1,024
    /// messages at once and 256 per second.
    DISCOVERY_LIMIT = "discovery-limit" {
        cause: "a machine that looks for the neighbours of a whole network (a scanner), answers thousands of them, or sends something else in this form",
        remedy: "look at what it sends with tcpdump in the machine; a machine that has to send more is to be declared anew with `butterfly nic add --id NIC ... --bypass-filtering`",
        charged: "the sender",
    }
    /// A DHCP request that is not shaped as one to its last option, or that asks for another station, and that no rule lets out.
    BAD_DHCP = "bad-dhcp" {
        cause: "a DHCP client that is broken or asks for another MAC address, such as a relay or a container's bridge in the machine; or something else that uses the ports of DHCP",
        remedy: "look at the request with tcpdump in the machine that sends; a relay needs an OUTBOUND rule, `butterfly sg rule add SG --dir out --ip-proto udp --port 67 --cidr SERVER/32`; the first OUTBOUND rule of a vnic's groups ends \"everything may leave\", so add one for all else as well",
        charged: "the sender",
    }
    /// More DHCP requests than a vnic may send without a rule: 8 at once and 4 per second of each family, and one a minute to a server that no answer named; or more than 64 at once and 16 per second by a rule.
    DHCP_LIMIT = "dhcp-limit" {
        cause: "a DHCP client that repeats itself without a pause; or one that renews a lease which is older than the daemon, at a server that does not answer",
        remedy: "find the program that sends them; a lease that is older than the daemon is renewed at its next request, or when the client asks by broadcast",
        charged: "the sender",
    }
}

/// An IPv6 address as a number, first byte highest; an IPv4 address as `::ffff:a.b.c.d`. No IPv6
/// packet with such an address gets as far as this (RFC 4291, 2.5.5.2: they are not for the wire),
/// so the families cannot be taken for each other.
pub(crate) type Address = u128;

const MAPPED: Address = 0xffff << 32;

/// An IPv4 address as [`Address`].
#[inline(always)]
pub(crate) const fn mapped(address: std::net::Ipv4Addr) -> Address {
    MAPPED | address.to_bits() as Address
}

/// Whether an address is IPv4.
#[inline(always)]
pub(crate) const fn is_v4(address: Address) -> bool {
    address >> 32 == MAPPED >> 32
}

/// Added to a VLAN id, tells "VLAN 0" from "no tag".
pub(crate) const TAGGED: u16 = 0x1000;

/// Who talks to whom, with what. In the direction of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tuple {
    pub source: Address,
    pub destination: Address,
    /// 0 where the protocol has no ports. Of an echo, the requester's port is the identifier, and
    /// the other side's the type of the request (8 or 128).
    pub source_port: u16,
    pub destination_port: u16,
    /// 0 without tag, else [`TAGGED`] and the VLAN id.
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
