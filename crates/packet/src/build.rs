//! Complete frames with right lengths and checksums, for tests and generators.
//!
//! ```
//! use butterfly_packet::{Mac, build};
//! let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
//! let ip = build::ethernet(a, b).vlan(5).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
//! let query = ip.udp(4000, 53, b"?");
//! let who_has = build::ethernet(a, Mac::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
//! # assert_eq!((query.len(), who_has.len()), (14 + 4 + 20 + 8 + 1, 14 + 28));
//! ```
//!
//! Payloads that do not fit a length field are cut off in that field only, so that frames with
//! lying lengths can be built.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{
    Mac, arp,
    checksum::Sum,
    ethernet::{self, Llc, Tag},
    icmp, ipv4, ipv6, protocol, sctp, tcp, udp, vxlan,
};

/// Starts a frame.
pub fn ethernet(source: Mac, destination: Mac) -> Link {
    Link { source, destination, tags: Vec::new() }
}

/// An Ethernet header to be.
#[derive(Clone, Debug)]
pub struct Link {
    source: Mac,
    destination: Mac,
    tags: Vec<Tag>,
}

impl Link {
    /// Adds a customer VLAN tag inside those already there. `id` is 0 to 4095; higher bits become
    /// priority and drop eligibility.
    pub fn vlan(self, id: u16) -> Link {
        self.tag(Tag { tpid: ethernet::VLAN, tci: id })
    }

    /// Adds any tag inside those already there.
    pub fn tag(mut self, tag: Tag) -> Link {
        self.tags.push(tag);
        self
    }

    fn header(&self, ethertype: u16) -> Vec<u8> {
        let mut frame = Vec::with_capacity(128);
        frame.extend(self.destination.0);
        frame.extend(self.source.0);
        for tag in &self.tags {
            frame.extend(tag.tpid.to_be_bytes());
            frame.extend(tag.tci.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame
    }

    /// Returns a frame of any type. `ethertype` is in host order.
    pub fn payload(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = self.header(ethertype);
        frame.extend(payload);
        frame
    }

    /// Returns an 802.3 frame with LLC, and SNAP if given.
    pub fn llc(&self, llc: &Llc<'_>) -> Vec<u8> {
        let len = if llc.snap.is_some() { Llc::SNAP_LEN } else { Llc::LEN } + llc.payload.len();
        let mut frame = self.header(len as u16);
        frame.extend([llc.dsap, llc.ssap, llc.control]);
        if let Some((organisation, id)) = llc.snap {
            let [_, organisation @ ..] = organisation.to_be_bytes();
            frame.extend(organisation);
            frame.extend(id.to_be_bytes());
        }
        frame.extend(llc.payload);
        frame
    }

    /// Returns an ARP packet about IPv4 over Ethernet.
    pub fn arp(&self, operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
        let mut packet = Vec::with_capacity(arp::LEN);
        packet.extend([0, 1, 8, 0, 6, 4]);
        packet.extend(operation.to_be_bytes());
        for (mac, ip) in [sender, target] {
            packet.extend(mac.0);
            packet.extend(ip.octets());
        }
        self.payload(ethernet::ARP, &packet)
    }

    /// Returns an ARP request from the frame's source.
    pub fn arp_request(&self, sender: impl Into<Ipv4Addr>, target: impl Into<Ipv4Addr>) -> Vec<u8> {
        self.arp(arp::REQUEST, (self.source, sender.into()), (Mac::ZERO, target.into()))
    }

    /// Returns an ARP reply from the frame's source to its destination.
    pub fn arp_reply(&self, sender: impl Into<Ipv4Addr>, target: impl Into<Ipv4Addr>) -> Vec<u8> {
        self.arp(arp::REPLY, (self.source, sender.into()), (self.destination, target.into()))
    }

    /// Goes on with IPv4.
    pub fn ipv4(self, source: impl Into<Ipv4Addr>, destination: impl Into<Ipv4Addr>) -> Ip {
        Ip::new(self, Addresses::V4(source.into(), destination.into()))
    }

    /// Goes on with IPv6.
    pub fn ipv6(self, source: impl Into<Ipv6Addr>, destination: impl Into<Ipv6Addr>) -> Ip {
        Ip::new(self, Addresses::V6(source.into(), destination.into()))
    }
}

#[derive(Clone, Copy, Debug)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// Contents of the upper layer's checksum field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// The right checksum.
    #[default]
    Complete,
    /// The pseudo header's sum: a device is to complete it (virtio 1.2, 5.1.6.2,
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Partial,
    /// Zero: none for UDP over IPv4, else wrong.
    Zero,
}

/// An IP header to be.
#[derive(Clone, Debug)]
pub struct Ip {
    link: Link,
    addresses: Addresses,
    ttl: u8,
    tos: u8,
    identification: u32,
    fragment: Option<(usize, bool)>,
    dont_fragment: bool,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    checksum: Checksum,
}

impl Ip {
    fn new(link: Link, addresses: Addresses) -> Ip {
        Ip {
            link,
            addresses,
            ttl: 64,
            tos: 0,
            identification: 0,
            fragment: None,
            dont_fragment: false,
            options: Vec::new(),
            extensions: Vec::new(),
            checksum: Checksum::Complete,
        }
    }

    /// Sets time to live or hop limit (64 unless set).
    pub fn ttl(mut self, ttl: u8) -> Ip {
        self.ttl = ttl;
        self
    }

    /// Sets type of service or traffic class.
    pub fn tos(mut self, tos: u8) -> Ip {
        self.tos = tos;
        self
    }

    /// IPv4: forbids fragmentation.
    pub fn dont_fragment(mut self) -> Ip {
        self.dont_fragment = true;
        self
    }

    /// IPv4: sets the identification, in host order, without fragmentation.
    pub fn identification(mut self, identification: u16) -> Ip {
        self.identification = identification.into();
        self
    }

    /// Makes it a fragment at `offset` (bytes, a multiple of 8). The caller cuts the payload,
    /// checksum included.
    pub fn fragment(mut self, identification: u32, offset: usize, more: bool) -> Ip {
        self.identification = identification;
        self.fragment = Some((offset, more));
        self
    }

    /// IPv4: options, padded to four bytes with end marks.
    pub fn options(mut self, options: &[u8]) -> Ip {
        self.options = options.to_vec();
        self.options.resize(options.len().next_multiple_of(4), 0);
        self
    }

    /// IPv6: an extension header of 8-byte units. `body` is what follows next header and length,
    /// padded with Pad1.
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Ip {
        let mut padded = body.to_vec();
        padded.resize((body.len() + 2).next_multiple_of(8) - 2, 0);
        self.extensions.push((kind, padded));
        self
    }

    /// Sets the contents of the upper layer's checksum field.
    pub fn checksum(mut self, checksum: Checksum) -> Ip {
        self.checksum = checksum;
        self
    }

    /// Returns a packet of any protocol.
    pub fn payload(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match self.addresses {
            Addresses::V4(source, destination) => self.v4(source, destination, protocol, payload),
            Addresses::V6(source, destination) => self.v6(source, destination, protocol, payload),
        }
    }

    fn v4(&self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header_len = ipv4::MIN_LEN + self.options.len();
        let (offset, more) = self.fragment.unwrap_or((0, false));
        let flags = u16::from(self.dont_fragment) << 14
            | u16::from(more) << 13
            | (offset / 8) as u16 & 0x1fff;
        let mut header = vec![0x40 | (header_len / 4) as u8 & 0xf, self.tos];
        header.extend(((header_len + payload.len()) as u16).to_be_bytes());
        header.extend((self.identification as u16).to_be_bytes());
        header.extend(flags.to_be_bytes());
        header.extend([self.ttl, protocol, 0, 0]);
        header.extend(source.octets());
        header.extend(destination.octets());
        header.extend(&self.options);
        let checksum = Sum::of(&header).checksum();
        put_u16(&mut header, ipv4::CHECKSUM_OFFSET, checksum);
        header.extend(payload);
        self.link.payload(ethernet::IPV4, &header)
    }

    fn v6(&self, source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        // Extension headers from the last to the first, since each names what follows it.
        let (mut next, mut rest) = (protocol, Vec::new());
        if let Some((offset, more)) = self.fragment {
            rest.extend([next, 0]);
            rest.extend((offset as u16 & 0xfff8 | u16::from(more)).to_be_bytes());
            rest.extend(self.identification.to_be_bytes());
            next = protocol::FRAGMENT;
        }
        for (kind, body) in self.extensions.iter().rev() {
            let mut header = vec![next, ((body.len() + 2) / 8 - 1) as u8];
            header.extend(body);
            header.append(&mut rest);
            (next, rest) = (*kind, header);
        }
        rest.extend(payload);
        let mut packet = (6 << 28 | u32::from(self.tos) << 20).to_be_bytes().to_vec();
        packet.extend((rest.len() as u16).to_be_bytes());
        packet.extend([next, self.ttl]);
        packet.extend(source.octets());
        packet.extend(destination.octets());
        debug_assert_eq!(packet.len(), ipv6::LEN);
        packet.extend(rest);
        self.link.payload(ethernet::IPV6, &packet)
    }

    fn pseudo(&self, protocol: u8, len: usize) -> Sum {
        match self.addresses {
            Addresses::V4(source, destination) => {
                Sum::pseudo_v4(source, destination, protocol, len as u16)
            }
            Addresses::V6(source, destination) => {
                Sum::pseudo_v6(source, destination, protocol, len as u32)
            }
        }
    }

    /// Sums `segment`, whose checksum field is still zero, and writes the field.
    fn upper(&self, protocol: u8, mut segment: Vec<u8>, at: usize) -> Vec<u8> {
        let pseudo = self.pseudo(protocol, segment.len());
        let field = match self.checksum {
            Checksum::Complete if protocol == protocol::UDP => pseudo.push(&segment).udp_checksum(),
            Checksum::Complete => pseudo.push(&segment).checksum(),
            Checksum::Partial => pseudo.fold(),
            Checksum::Zero => 0,
        };
        put_u16(&mut segment, at, field);
        self.payload(protocol, &segment)
    }

    /// Returns a UDP datagram. Ports are in host order.
    pub fn udp(&self, source_port: u16, destination_port: u16, payload: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(udp::LEN + payload.len());
        for field in [source_port, destination_port, (udp::LEN + payload.len()) as u16, 0] {
            datagram.extend(field.to_be_bytes());
        }
        datagram.extend(payload);
        self.upper(protocol::UDP, datagram, udp::CHECKSUM_OFFSET)
    }

    /// Returns a frame of another network in VXLAN. [`Checksum::Zero`] leaves UDP's out, as most
    /// endpoints do. Bits of `vni` above 24 are lost.
    pub fn vxlan(&self, source_port: u16, vni: u32, frame: &[u8]) -> Vec<u8> {
        self.udp(source_port, vxlan::PORT, &[&vxlan::header(vni)[..], frame].concat())
    }

    /// Returns a TCP segment.
    pub fn tcp(&self, segment: &Tcp<'_>, payload: &[u8]) -> Vec<u8> {
        let options_len = segment.options.len().next_multiple_of(4);
        let mut bytes = Vec::with_capacity(tcp::MIN_LEN + options_len + payload.len());
        bytes.extend(segment.source_port.to_be_bytes());
        bytes.extend(segment.destination_port.to_be_bytes());
        bytes.extend(segment.sequence.to_be_bytes());
        bytes.extend(segment.acknowledgement.to_be_bytes());
        bytes.extend([(((tcp::MIN_LEN + options_len) / 4) << 4) as u8, segment.flags]);
        bytes.extend(segment.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(segment.options);
        bytes.resize(tcp::MIN_LEN + options_len, 0);
        bytes.extend(payload);
        self.upper(protocol::TCP, bytes, tcp::CHECKSUM_OFFSET)
    }

    /// Returns an ICMP message, ICMPv6 over IPv6. `rest` is the four bytes behind the checksum, in
    /// host order.
    pub fn icmp(&self, kind: u8, code: u8, rest: u32, body: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, code, 0, 0];
        message.extend(rest.to_be_bytes());
        message.extend(body);
        if matches!(self.addresses, Addresses::V6(..)) {
            return self.upper(protocol::ICMPV6, message, icmp::CHECKSUM_OFFSET);
        }
        let checksum = Sum::of(&message).checksum();
        put_u16(&mut message, icmp::CHECKSUM_OFFSET, checksum);
        self.payload(protocol::ICMP, &message)
    }

    /// Returns an echo request. `id` and `sequence` are in host order.
    pub fn ping(&self, id: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
        let kind = match self.addresses {
            Addresses::V4(..) => icmp::v4::ECHO_REQUEST,
            Addresses::V6(..) => icmp::v6::ECHO_REQUEST,
        };
        self.icmp(kind, 0, u32::from(id) << 16 | u32::from(sequence), data)
    }

    /// Returns an SCTP packet of one chunk: source and destination port, verification tag, chunk.
    /// The CRC32c is left 0: nothing on the packet path verifies it.
    pub fn sctp(&self, ports: (u16, u16), tag: u32, chunk_type: u8, body: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(sctp::LEN + 4 + body.len());
        packet.extend(ports.0.to_be_bytes());
        packet.extend(ports.1.to_be_bytes());
        packet.extend(tag.to_be_bytes());
        packet.extend([0, 0, 0, 0, chunk_type, 0]);
        packet.extend((4 + body.len() as u16).to_be_bytes());
        packet.extend(body);
        packet.resize(packet.len().next_multiple_of(4), 0);
        self.payload(protocol::SCTP, &packet)
    }
}

/// Fields of a TCP header, numbers in host order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tcp<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Flags ([`tcp::SYN`] and so on).
    pub flags: u8,
    /// Window in bytes, not scaled.
    pub window: u16,
    /// Options, padded to four bytes with end marks.
    pub options: &'a [u8],
}

impl Tcp<'_> {
    /// A segment with these ports and flags, sequence numbers 0 and a full window.
    pub const fn new(source_port: u16, destination_port: u16, flags: u8) -> Self {
        Tcp {
            source_port,
            destination_port,
            sequence: 0,
            acknowledgement: 0,
            flags,
            window: 0xffff,
            options: &[],
        }
    }
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
