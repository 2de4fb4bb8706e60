//! Translation of addresses and ports in IP packets, with all sums that cover them.
//!
//! A packet may be cut: only its first bytes are at hand. Sums change by what changed in the bytes
//! that they cover (RFC 1624), so a wrong sum stays as wrong as it was. An ICMP error quotes a
//! packet, which is translated as well (RFC 5508, 4.1).

use std::net::IpAddr;

use crate::{
    Error, be16, icmp,
    ipv4::{self, Ipv4},
    ipv6::{self, Ipv6},
    protocol::{DCCP, ICMP, ICMPV6, SCTP, TCP, UDP, UDP_LITE},
    tcp, udp,
};

/// End of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Source => Side::Destination,
            Side::Destination => Side::Source,
        }
    }
}

/// End that a packet gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Address, of the packet's family.
    pub address: IpAddr,
    /// Port of TCP, UDP, UDP-Lite, DCCP, or identifier of an ICMP echo. `None` leaves it as it is.
    pub port: Option<u16>,
}

/// Sum over the transport header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Complete: it covers the pseudo header and all that follows.
    Complete,
    /// Partial: that of the pseudo header, not complemented. Somebody adds the rest (virtio 1.2,
    /// 5.1.6.2).
    Partial,
}

/// Ends of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The packet's source.
    pub source: IpAddr,
    /// The packet's destination.
    pub destination: IpAddr,
    /// The packet's protocol.
    pub protocol: u8,
    /// Ports, source first; of an echo the identifier, twice. `None` if the packet has none, or
    /// they are not at hand.
    pub ports: Option<[u16; 2]>,
    /// Start of the transport header, in bytes from the IP header; `None` of a fragment that is not
    /// the first.
    pub transport: Option<usize>,
    /// The packet is a fragment, the first or a later one.
    pub fragment: bool,
}

/// Ones' complement sum of the differences between the words that went and those that came.
#[derive(Clone, Copy, Default)]
struct Difference(u32);

impl Difference {
    /// Returns a sum, not complemented, after these changes of what it covers.
    fn on(self, sum: u16) -> u16 {
        let sum = self.0 + u32::from(sum);
        let sum = (sum >> 16) + (sum & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    /// Returns a checksum after these changes (RFC 1624, equation 3).
    fn on_checksum(self, checksum: u16) -> u16 {
        !self.on(!checksum)
    }

    fn and(self, other: Difference) -> Difference {
        Difference(self.0 + other.0)
    }
}

/// Writes `new` at an even offset. Returns what changed.
fn write(bytes: &mut [u8], at: usize, new: &[u8]) -> Result<Difference, Error> {
    let place = at.checked_add(new.len()).and_then(|end| bytes.get_mut(at..end));
    let place = place.ok_or(Error::Truncated)?;
    let mut difference = 0;
    for (old, new) in place.chunks_exact(2).zip(new.chunks_exact(2)) {
        let number = |word: &[u8]| u32::from(be16(word, 0).unwrap_or_default());
        difference += (0xffff - number(old)) + number(new);
    }
    place.copy_from_slice(new);
    Ok(Difference(difference))
}

/// Parts of a packet that a translation touches, as offsets from its first byte.
#[derive(Clone, Copy)]
struct Parts {
    addresses: usize,
    /// Bytes of an address.
    len: usize,
    /// The header's own sum.
    sum: Option<usize>,
    protocol: u8,
    /// Start of the transport header; `None` of a fragment that is not the first.
    transport: Option<usize>,
    fragment: bool,
    /// End of the packet, as its header says.
    end: usize,
}

/// Finds the parts of a packet, or of one that an error quotes.
fn parts(bytes: &[u8]) -> Result<Parts, Error> {
    match bytes.first().map(|first| first >> 4) {
        Some(6) => {
            let ip = Ipv6::parse(bytes)?;
            let upper = ip.upper_layer()?;
            let later = upper.fragment.is_some_and(|fragment| fragment.offset() != 0);
            let fragment = upper.fragment.is_some_and(|fragment| !fragment.is_atomic());
            Ok(Parts {
                addresses: 8,
                len: 16,
                sum: None,
                protocol: upper.protocol,
                transport: (!later).then_some(upper.offset),
                fragment,
                end: ipv6::LEN + ip.payload_len(),
            })
        }
        _ => {
            let ip = Ipv4::parse(bytes)?;
            Ok(Parts {
                addresses: 12,
                len: 4,
                sum: Some(ipv4::CHECKSUM_OFFSET),
                protocol: ip.protocol(),
                transport: (ip.fragment_offset() == 0).then_some(ip.header_len()),
                fragment: ip.is_fragment(),
                end: ip.total_len(),
            })
        }
    }
}

/// Offset of a transport header's sum, and whether it covers the addresses.
fn sum_of(protocol: u8) -> Option<(usize, bool)> {
    match protocol {
        TCP => Some((tcp::CHECKSUM_OFFSET, true)),
        UDP | UDP_LITE | DCCP => Some((udp::CHECKSUM_OFFSET, true)),
        ICMPV6 => Some((icmp::CHECKSUM_OFFSET, true)),
        ICMP => Some((icmp::CHECKSUM_OFFSET, false)),
        _ => None,
    }
}

/// Returns whether the first bytes of a message of ICMP are those of an echo.
fn is_echo(protocol: u8, kind: u8) -> bool {
    match protocol {
        ICMP => matches!(kind, icmp::v4::ECHO_REQUEST | icmp::v4::ECHO_REPLY),
        ICMPV6 => matches!(kind, icmp::v6::ECHO_REQUEST | icmp::v6::ECHO_REPLY),
        _ => false,
    }
}

/// Offset of a side's port in the transport header that begins with `head`: of an echo, the
/// identifier. `None` if it has none.
fn port_at(protocol: u8, head: &[u8], side: Side) -> Option<usize> {
    match protocol {
        TCP | UDP | UDP_LITE | DCCP | SCTP => Some(if side == Side::Source { 0 } else { 2 }),
        ICMP | ICMPV6 => is_echo(protocol, *head.first()?).then_some(4),
        _ => None,
    }
}

/// Translates one end of a packet, which begins with its IP header. A fragment that is not the
/// first gets the address alone.
///
/// [`Error::Truncated`]: the transport header's sum or port is not at hand. [`Error::Malformed`]:
/// the header contradicts itself, the address is of the other family, or the packet has no port.
/// Nothing has changed then.
pub fn translate(
    packet: &mut [u8],
    side: Side,
    to: &End,
    transport: Transport,
) -> Result<(), Error> {
    let parts = parts(packet)?;
    if let Some(start) = parts.transport {
        let head = packet.get(start..).ok_or(Error::Truncated)?;
        let sum = sum_of(parts.protocol).map(|(at, _)| at);
        let port = to.port.map(|_| port_place(head, parts.protocol, side)).transpose()?;
        if [sum, port].into_iter().flatten().any(|at| be16(head, at).is_none()) {
            return Err(Error::Truncated);
        }
    }
    let changed = header(packet, &parts, side, to)?;
    let Some(start) = parts.transport else { return Ok(()) };
    let head = packet.get_mut(start..).ok_or(Error::Truncated)?;
    let port = port(head, parts.protocol, side, to)?;
    let Some((at, covers)) = sum_of(parts.protocol) else { return Ok(()) };
    let old = be16(head, at).ok_or(Error::Truncated)?;
    let new = match transport {
        // The rest, the ports too, is not in it yet.
        Transport::Partial if covers => changed.on(old),
        Transport::Partial => old,
        // RFC 768: 0 is none.
        Transport::Complete if parts.protocol == UDP && old == 0 => 0,
        Transport::Complete => {
            let of = if covers { changed.and(port) } else { port };
            match of.on_checksum(old) {
                0 if parts.protocol == UDP => 0xffff,
                sum => sum,
            }
        }
    };
    write(head, at, &new.to_be_bytes()).map(|_| ())
}

/// Bytes of a [`Plain`] packet that are read: a header of IPv4 and one of TCP, without options.
pub const PLAIN_LEN: usize = 40;

/// Plain packet, as nearly all are: whole IPv4 without options that carries TCP or UDP. What this
/// does to these, [`ends`] and [`translate`] do to any, with many more instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    /// The packet's source.
    pub source: u32,
    /// The packet's destination.
    pub destination: u32,
    /// Protocol: TCP or UDP.
    pub protocol: u8,
    /// Ports, source first.
    pub ports: [u16; 2],
    /// Flags of TCP; 0 of UDP.
    pub flags: u8,
    /// True if it carries bytes of TCP.
    pub has_payload: bool,
}

impl Plain {
    /// Reads a packet that begins with its IP header and has `room` bytes, of which more than its
    /// headers need not be right. `None` if it is not plain.
    #[inline(always)]
    pub fn read(head: &[u8; PLAIN_LEN], room: usize) -> Option<Plain> {
        let &[version, _, l0, l1, _, _, f0, f1, _, protocol, _, _, ref rest @ ..] = head;
        let &[s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1, ref rest @ ..] = rest;
        let &[_, _, _, _, _, _, _, _, offset, flags, ..] = rest;
        let total = usize::from(u16::from_be_bytes([l0, l1]));
        // It may be forbidden to cut it.
        let is_whole = f0 & 0x3f == 0 && f1 == 0 && total <= room;
        let is_tcp = protocol == TCP;
        let (least, header) = match is_tcp {
            true => (20, usize::from(offset >> 4) * 4),
            false => (8, 8),
        };
        let fits = header >= least && total >= 20 + header;
        if version != 0x45 || !is_whole || !fits || !is_tcp && protocol != UDP {
            return None;
        }
        Some(Plain {
            source: u32::from_be_bytes([s0, s1, s2, s3]),
            destination: u32::from_be_bytes([d0, d1, d2, d3]),
            protocol,
            ports: [u16::from_be_bytes([p0, p1]), u16::from_be_bytes([q0, q1])],
            flags: if is_tcp { flags } else { 0 },
            has_payload: is_tcp && total > 20 + header,
        })
    }

    /// Translates one end of such a packet to an address and port.
    #[inline(always)]
    pub fn translate(
        head: &mut [u8; PLAIN_LEN],
        side: Side,
        (address, port): (u32, u16),
        transport: Transport,
    ) {
        // All sums are read as they stand: they are the same in either byte order (RFC 1071, 2).
        let Ok(words) = <&mut [[u8; 4]; 10]>::try_from(head.as_chunks_mut().0) else { return };
        let [_, _, own, source, destination, ports, udp, _, _, tcp] = words;
        let [_, protocol, own @ ..] = own;
        let is_udp = *protocol == UDP;
        let [p0, p1, q0, q1] = *ports;
        let port = port.to_be_bytes();
        let (from, from_port) = match side {
            Side::Source => (source, replace(ports, [p0, p1], [port, [q0, q1]])),
            Side::Destination => (destination, replace(ports, [q0, q1], [[p0, p1], port])),
        };
        let old = u32::from_ne_bytes(*from);
        *from = address.to_be_bytes();
        let changed = u64::from(!old) + u64::from(u32::from_ne_bytes(*from));
        let of_port = u64::from(!from_port) + u64::from(u16::from_ne_bytes(port));
        *own = follow(*own, changed);
        let sum = if is_udp { udp.last_chunk_mut() } else { tcp.first_chunk_mut() };
        let Some(sum) = sum else { return };
        *sum = match transport {
            Transport::Partial => fold(u64::from(u16::from_ne_bytes(*sum)) + changed).to_ne_bytes(),
            // RFC 768: 0 is none.
            Transport::Complete if is_udp && *sum == [0; 2] => *sum,
            Transport::Complete => match follow(*sum, changed + of_port) {
                [0, 0] if is_udp => [0xff; 2],
                sum => sum,
            },
        };
    }
}

/// Writes both ports. Returns the one that goes, as it stood.
#[inline(always)]
fn replace(ports: &mut [u8; 4], old: [u8; 2], [[a, b], [c, d]]: [[u8; 2]; 2]) -> u16 {
    *ports = [a, b, c, d];
    u16::from_ne_bytes(old)
}

/// Returns a sum of less than 2^34 in 16 bits, with all carries.
#[inline(always)]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Returns a checksum after this difference (RFC 1624, equation 3).
#[inline(always)]
fn follow(checksum: [u8; 2], difference: u64) -> [u8; 2] {
    let old = !u16::from_ne_bytes(checksum);
    (!fold(u64::from(old) + difference)).to_ne_bytes()
}

/// Writes the identification of an IPv4 packet, which begins with its header, and the header's sum.
///
/// [`Error::Malformed`]: it is no IPv4 packet. [`Error::Truncated`]: the header is not at hand.
pub fn identify(packet: &mut [u8], identification: u16) -> Result<(), Error> {
    Ipv4::parse(packet)?;
    let changed = write(packet, ipv4::IDENTIFICATION_OFFSET, &identification.to_be_bytes())?;
    let old = be16(packet, ipv4::CHECKSUM_OFFSET).ok_or(Error::Truncated)?;
    write(packet, ipv4::CHECKSUM_OFFSET, &changed.on_checksum(old).to_be_bytes()).map(|_| ())
}

/// Writes the address of one side, and the header's own sum. Returns what changed in the address.
fn header(packet: &mut [u8], parts: &Parts, side: Side, to: &End) -> Result<Difference, Error> {
    let at = parts.addresses + if side == Side::Source { 0 } else { parts.len };
    let changed = match to.address {
        IpAddr::V4(ip) if parts.len == 4 => write(packet, at, &ip.octets())?,
        IpAddr::V6(ip) if parts.len == 16 => write(packet, at, &ip.octets())?,
        _ => return Err(Error::Malformed),
    };
    if let Some(at) = parts.sum {
        let old = be16(packet, at).ok_or(Error::Truncated)?;
        write(packet, at, &changed.on_checksum(old).to_be_bytes())?;
    }
    Ok(changed)
}

/// Writes the port of one side. Returns what changed.
fn port(head: &mut [u8], protocol: u8, side: Side, to: &End) -> Result<Difference, Error> {
    let Some(port) = to.port else { return Ok(Difference::default()) };
    let at = port_place(head, protocol, side)?;
    write(head, at, &port.to_be_bytes())
}

/// Returns the offset of a side's port that may change.
fn port_place(head: &[u8], protocol: u8, side: Side) -> Result<usize, Error> {
    if head.is_empty() {
        return Err(Error::Truncated);
    }
    // The sum of SCTP is no sum of words (RFC 9260, 6.8).
    port_at(protocol, head, side).filter(|_| protocol != SCTP).ok_or(Error::Malformed)
}

/// Offset of the quoted packet in an ICMP error that begins with its IP header, and its end.
/// `None` if the packet is no error.
fn quote_in(packet: &[u8], parts: &Parts) -> Option<(usize, usize)> {
    let start = parts.transport?;
    let is_error = match (parts.protocol, packet.get(start)?) {
        // RFC 792: unreachable, source quench, redirect, time exceeded, parameter problem.
        (ICMP, 3..=5 | 11 | 12) => true,
        // RFC 4443, 2.1: all below 128 are errors.
        (ICMPV6, 1..=127) => true,
        _ => false,
    };
    is_error.then_some((start + icmp::LEN, parts.end))
}

/// Returns whether a packet, which begins with its IP header, is an ICMP error.
pub fn is_error(packet: &[u8]) -> bool {
    parts(packet).is_ok_and(|parts| quote_in(packet, &parts).is_some())
}

/// Returns the ends of a packet, which begins with its IP header.
///
/// [`Error::Malformed`]: its header contradicts itself. [`Error::Truncated`]: the header is not at
/// hand.
pub fn ends(packet: &[u8]) -> Result<Ends, Error> {
    let parts = parts(packet)?;
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = packet.get(at..)?;
        match parts.len {
            4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
            _ => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        }
    };
    let ports = parts.transport.and_then(|at| {
        let head = packet.get(at..)?;
        let port = |side| be16(head, port_at(parts.protocol, head, side)?);
        Some([port(Side::Source)?, port(Side::Destination)?])
    });
    Ok(Ends {
        source: address(parts.addresses).ok_or(Error::Truncated)?,
        destination: address(parts.addresses + parts.len).ok_or(Error::Truncated)?,
        protocol: parts.protocol,
        ports,
        transport: parts.transport,
        fragment: parts.fragment,
    })
}

/// Returns the ends of the packet that an ICMP error quotes.
///
/// [`Error::Malformed`]: the packet is no error, or what it quotes is no IP packet.
/// [`Error::Truncated`]: the quoted headers are not at hand.
pub fn quote(packet: &[u8]) -> Result<Ends, Error> {
    let outer = parts(packet)?;
    let (start, end) = quote_in(packet, &outer).ok_or(Error::Malformed)?;
    ends(packet.get(start..end.min(packet.len())).ok_or(Error::Truncated)?)
}

/// Translates one end of the packet that an ICMP error quotes, and the error's sum. The error
/// begins with its IP header, of which nothing changes.
///
/// Errors are those of [`quote`]. A port, or a sum in the quoted transport header, changes if it is
/// quoted and at hand: hosts do not compare quoted sums (RFC 5508, 4.1).
pub fn translate_quote(packet: &mut [u8], side: Side, to: &End) -> Result<(), Error> {
    let outer = parts(packet)?;
    let (start, end) = quote_in(packet, &outer).ok_or(Error::Malformed)?;
    let end = end.min(packet.len());
    let quoted = packet.get_mut(start..end).ok_or(Error::Truncated)?;
    let inner = parts(quoted)?;
    let before = inner.sum.and_then(|at| be16(quoted, at));
    let address = header(quoted, &inner, side, to)?;
    let mut all = address.and(between(before, inner.sum.and_then(|at| be16(quoted, at))));
    let head = inner.transport.and_then(|at| quoted.get_mut(at..)).unwrap_or_default();
    let there = port_at(inner.protocol, head, side).is_some_and(|at| head.len() >= at + 2);
    let moved = if there { port(head, inner.protocol, side, to)? } else { Difference::default() };
    all = all.and(moved);
    if let Some((at, covers)) = sum_of(inner.protocol)
        && let Some(old) = be16(head, at)
        && (old != 0 || inner.protocol != UDP)
    {
        let of = if covers { address.and(moved) } else { moved };
        let new = match of.on_checksum(old) {
            0 if inner.protocol == UDP => 0xffff,
            sum => sum,
        };
        all = all.and(write(head, at, &new.to_be_bytes())?);
    }
    let at = outer.transport.map_or(0, |at| at + icmp::CHECKSUM_OFFSET);
    let old = be16(packet, at).ok_or(Error::Truncated)?;
    write(packet, at, &all.on_checksum(old).to_be_bytes()).map(|_| ())
}

/// Returns the difference between two words, if there are two.
fn between(old: Option<u16>, new: Option<u16>) -> Difference {
    let both = old.zip(new).map(|(old, new)| 0xffff - u32::from(old) + u32::from(new));
    Difference(both.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Mac,
        build::{self, Checksum, Ip, Tcp},
        checksum::Sum,
    };

    /// Offset of IP behind Ethernet.
    const L3: usize = 14;

    fn ip(from: IpAddr, to: IpAddr) -> Ip {
        let link = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from, to),
            _ => panic!("two families"),
        }
    }

    /// Contents of a packet.
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Tcp,
        Udp,
        Ping,
        Esp,
    }

    fn packet(ip: &Ip, kind: Kind, (from, to): (u16, u16), data: &[u8]) -> Vec<u8> {
        match kind {
            Kind::Tcp => ip.tcp(&Tcp::new(from, to, 0x10), data),
            Kind::Udp => ip.udp(from, to, data),
            Kind::Ping => ip.ping(from, 1, data),
            Kind::Esp => ip.payload(50, data),
        }
    }

    fn addresses() -> impl Strategy<Value = [IpAddr; 3]> {
        prop_oneof![
            any::<[[u8; 4]; 3]>().prop_map(|all| all.map(|ip| Ipv4Addr::from(ip).into())),
            any::<[[u8; 16]; 3]>().prop_map(|all| all.map(|ip| Ipv6Addr::from(ip).into())),
        ]
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop::sample::select(vec![Kind::Tcp, Kind::Udp, Kind::Ping, Kind::Esp])
    }

    fn sums() -> impl Strategy<Value = Checksum> {
        prop::sample::select(vec![Checksum::Complete, Checksum::Partial])
    }

    proptest! {
        /// Plain packets are read and translated as all others, whatever their bytes are.
        #[test]
        fn plain_packets_are_no_exception(
            mut head in proptest::array::uniform32(any::<u8>()),
            rest in proptest::array::uniform8(any::<u8>()),
            udp in any::<bool>(),
            no_sum in any::<bool>(),
            offset in 4u8..8,
            total in 20u16..80,
            side in prop::sample::select(vec![Side::Source, Side::Destination]),
            partial in any::<bool>(),
            to in any::<(u32, u16)>(),
        ) {
            head[0] = 0x45;
            head[2..4].copy_from_slice(&total.to_be_bytes());
            head[6] &= 0x40;
            head[7] = 0;
            head[9] = if udp { UDP } else { TCP };
            let mut bytes = [0; PLAIN_LEN];
            bytes[..32].copy_from_slice(&head);
            bytes[32..].copy_from_slice(&rest);
            bytes[32] = offset << 4;
            if udp && no_sum {
                bytes[26..28].copy_from_slice(&[0; 2]);
            }
            let least = if udp { 28 } else { 20 + usize::from(offset) * 4 };
            let is_plain = usize::from(total) >= least && (udp || offset >= 5);
            let plain = Plain::read(&bytes, 80);
            prop_assert_eq!(plain.is_some(), is_plain);
            prop_assert!(Plain::read(&bytes, usize::from(total) - 1).is_none());
            for (at, other) in [(0, 0x46), (0, 0x65), (6, 0x20), (6, 1), (7, 1), (9, ICMP)] {
                let mut bytes = bytes;
                bytes[at] = other;
                prop_assert!(Plain::read(&bytes, 80).is_none());
            }
            let Some(plain) = plain else { return Ok(()) };
            let any = ends(&bytes).unwrap();
            let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
            prop_assert_eq!(any.source, address(plain.source));
            prop_assert_eq!(any.destination, address(plain.destination));
            prop_assert_eq!(any.protocol, plain.protocol);
            prop_assert_eq!((any.ports, any.fragment), (Some(plain.ports), false));
            prop_assert_eq!(plain.flags, if udp { 0 } else { bytes[33] });
            prop_assert_eq!(plain.has_payload, !udp && usize::from(total) > least);
            let transport = if partial { Transport::Partial } else { Transport::Complete };
            let mut expected = bytes;
            let end = End { address: address(to.0), port: Some(to.1) };
            translate(&mut expected, side, &end, transport).unwrap();
            Plain::translate(&mut bytes, side, to, transport);
            prop_assert_eq!(bytes, expected);
        }

        /// A packet becomes the one that its sender would have made from the other end.
        #[test]
        fn a_packet_is_as_if_it_was_made_so(
            [from, to, new] in addresses(),
            kind in kinds(),
            sum in sums(),
            ports in any::<[u16; 3]>(),
            moves in any::<bool>(),
            source in any::<bool>(),
            data in prop::collection::vec(any::<u8>(), 20..60),
        ) {
            let moves = moves && !matches!(kind, Kind::Esp);
            let [here, there, other] = ports;
            let other = if moves { other } else { if source { here } else { there } };
            let is_ping = matches!(kind, Kind::Ping);
            let (side, ends, between) = match source {
                true => (Side::Source, (new, to), (other, there)),
                false if is_ping => (Side::Destination, (from, new), (if moves { other } else { here }, 0)),
                false => (Side::Destination, (from, new), (here, other)),
            };
            // ICMP has no partial sum here, and 0 is the sum of none.
            let sum = if is_ping { Checksum::Complete } else { sum };
            let mut bytes = packet(&ip(from, to).checksum(sum), kind, (here, there), &data);
            let expected = packet(&ip(ends.0, ends.1).checksum(sum), kind, between, &data);
            let end = End { address: new, port: moves.then_some(other) };
            let transport = match sum {
                Checksum::Partial => Transport::Partial,
                _ => Transport::Complete,
            };
            translate(&mut bytes[L3..], side, &end, transport).unwrap();
            prop_assert_eq!(bytes, expected);
        }

        /// An error about the packet of one becomes an error about that of the other.
        #[test]
        fn a_quote_is_as_if_it_was_made_so(
            [from, to, new] in addresses(),
            kind in kinds(),
            (here, there, other) in any::<(u16, u16, u16)>(),
            source in any::<bool>(),
            data in prop::collection::vec(any::<u8>(), 0..40),
            cut in (4..14_usize).prop_map(|words| words * 2),
        ) {
            let moves = !matches!(kind, Kind::Esp);
            let is_ping = matches!(kind, Kind::Ping);
            let between = match source {
                true => (other, there),
                false if is_ping => (other, 0),
                false => (here, other),
            };
            let (side, ends) = match source {
                true => (Side::Source, (new, to)),
                false => (Side::Destination, (from, new)),
            };
            let old = packet(&ip(from, to), kind, (here, there), &data);
            let new_one = packet(&ip(ends.0, ends.1), kind, between, &data);
            let len = if from.is_ipv4() { 20 } else { 40 } + cut;
            let quote_of = |frame: &[u8]| frame[L3..frame.len().min(L3 + len)].to_vec();
            let (kind, code) = if from.is_ipv4() { (3, 3) } else { (1, 4) };
            // The error itself goes between others, whose addresses stay.
            let error = |quoted: &[u8]| ip(to, to).icmp(kind, code, 0, quoted);
            let mut bytes = error(&quote_of(&old));
            let end = End { address: new, port: moves.then_some(other) };
            translate_quote(&mut bytes[L3..], side, &end).unwrap();
            prop_assert_eq!(&bytes, &error(&quote_of(&new_one)));
            let found = quote(&bytes[L3..]).unwrap();
            prop_assert_eq!((found.source, found.destination), ends);
        }

        /// Bytes of any kind are read and written within their bounds.
        #[test]
        fn any_bytes_are_safe(
            bytes in prop::collection::vec(any::<u8>(), 0..128),
            first in prop::sample::select(vec![0x45_u8, 0x4f, 0x60, 0x46]),
            port in any::<Option<u16>>(),
        ) {
            let mut bytes = bytes;
            bytes.first_mut().into_iter().for_each(|byte| *byte = first);
            for address in [IpAddr::from([9; 4]), IpAddr::from([9; 16])] {
                for side in [Side::Source, Side::Destination] {
                    let end = End { address, port };
                    let _ = translate(&mut bytes.clone(), side, &end, Transport::Complete);
                    let _ = translate(&mut bytes.clone(), side, &end, Transport::Partial);
                    let _ = translate_quote(&mut bytes.clone(), side, &end);
                    let _ = quote(&bytes);
                }
            }
        }
    }

    /// RFC 768: no sum stays none, and a sum that comes out as 0 is written as 0xffff.
    #[test]
    fn zero_is_no_sum_of_udp() {
        let (from, to) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let address = IpAddr::from([198, 51, 100, 7]);
        let end = End { address, port: Some(9) };
        let mut none = ip(from, to).checksum(Checksum::Zero).udp(1, 2, b"x");
        translate(&mut none[L3..], Side::Source, &end, Transport::Complete).unwrap();
        assert_eq!(none, ip(address, to).checksum(Checksum::Zero).udp(9, 2, b"x"));
        let mut seen = 0;
        for port in 0..=u16::MAX {
            let mut frame = ip(from, to).udp(1, 2, b"ab");
            let end = End { address, port: Some(port) };
            translate(&mut frame[L3..], Side::Source, &end, Transport::Complete).unwrap();
            assert_ne!(frame[L3 + 26..L3 + 28], [0, 0], "{port}");
            seen += u32::from(frame[L3 + 26..L3 + 28] == [0xff, 0xff]);
        }
        assert_eq!(seen, 1);
    }

    /// UDP-Lite and DCCP cover addresses as UDP does, SCTP does not; its ports cannot change.
    #[test]
    fn other_protocols_have_their_sums() {
        let (from, to) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let address = IpAddr::from([198, 51, 100, 7]);
        let made = |from: IpAddr, protocol: u8| {
            let IpAddr::V4(source) = from else { panic!() };
            let mut bytes = vec![0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4];
            let pseudo = Sum::pseudo_v4(source, [192, 0, 2, 1].into(), protocol, 12);
            let sum = pseudo.push(&bytes).checksum();
            bytes[6..8].copy_from_slice(&sum.to_be_bytes());
            ip(from, to).payload(protocol, &bytes)
        };
        for protocol in [UDP_LITE, DCCP] {
            let mut frame = made(from, protocol);
            let end = End { address, port: None };
            translate(&mut frame[L3..], Side::Source, &end, Transport::Complete).unwrap();
            assert_eq!(frame, made(address, protocol));
        }
        let mut sctp = ip(from, to).sctp((1, 2), 3, 0, b"");
        let end = End { address, port: None };
        translate(&mut sctp[L3..], Side::Source, &end, Transport::Complete).unwrap();
        assert_eq!(sctp, ip(address, to).sctp((1, 2), 3, 0, b""));
        let end = End { address, port: Some(1) };
        let refused = translate(&mut sctp[L3..], Side::Source, &end, Transport::Complete);
        assert_eq!(refused, Err(Error::Malformed));
    }

    /// A packet is as if it had been sent with the other identification.
    #[test]
    fn an_identification_is_written_with_its_sum() {
        let (from, to) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let sent = |id| ip(from, to).fragment(id, 64, true).payload(UDP, &[7; 64]);
        for (old, new) in [(1, 2), (0, 0xffff), (0xffff, 0), (7, 7), (0x1234, 0xedcb)] {
            let mut frame = sent(old);
            identify(&mut frame[L3..], new as u16).unwrap();
            assert_eq!(frame, sent(new));
        }
        let six = &mut ip([1; 16].into(), [2; 16].into()).udp(1, 2, b"x")[L3..];
        assert_eq!(identify(six, 1), Err(Error::Malformed));
        assert_eq!(identify(&mut [0x45; 8], 1), Err(Error::Truncated));
    }

    /// Of later fragments the header alone changes; a first one has to have the sum.
    #[test]
    fn fragments_have_a_sum_in_the_first() {
        for (from, to, address) in [
            (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]), IpAddr::from([9; 4])),
            (IpAddr::from([1; 16]), IpAddr::from([2; 16]), IpAddr::from([9; 16])),
        ] {
            let end = End { address, port: None };
            let later = |from| ip(from, to).fragment(1, 64, false).payload(TCP, &[7; 64]);
            let mut frame = later(from);
            translate(&mut frame[L3..], Side::Source, &end, Transport::Complete).unwrap();
            assert_eq!(frame, later(address));
            let mut tiny = ip(from, to).fragment(1, 0, true).payload(TCP, &[7; 8]);
            let refused = translate(&mut tiny[L3..], Side::Source, &end, Transport::Complete);
            assert_eq!(refused, Err(Error::Truncated));
        }
    }
}
