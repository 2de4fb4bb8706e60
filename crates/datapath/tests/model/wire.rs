//! Reads frames the slow way: by offset into a slice, from Ethernet up, sharing no code with the
//! switch.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names of drop reasons of which each is right.
pub type Reasons = &'static [&'static str];

/// Contents of an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Contents that filters do not look into.
    Other,
    /// ARP, which starts at this byte.
    Arp(usize),
    /// Reverse ARP.
    Rarp,
    /// IP that a filter cannot be sure about.
    Hidden,
    /// IP at this byte, behind this VLAN tag.
    Ip(usize, Option<u16>),
}

/// An IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub vlan: Option<u16>,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub hops: u8,
    pub fragment: Option<Fragment>,
    /// A fragment header is there, even if it says that nothing is cut off (RFC 6946).
    pub has_fragment_header: bool,
    /// Payload of IP and its extension headers, by IP's own length.
    pub upper: Vec<u8>,
    /// Nothing stands between the IP header and that, nothing behind it, and it is of 1,500 bytes
    /// at most.
    pub plain: bool,
    /// It came from the outside of an external, where nobody is a member of a group.
    pub stranger: bool,
}

/// Which part of a packet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub id: u32,
    pub offset: usize,
    pub more: bool,
    /// Bytes behind the fragment header (IPv4: behind the header).
    pub len: usize,
}

pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) << 8 | u16::from(bytes[at + 1])
}

pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// Bytes of a frame within which headers must end.
const HEADERS: usize = 256;

/// How much of a frame is looked at to find IP: tags beyond hide something.
const LOOKED_AT: usize = 128;

/// Returns the contents of a frame of at least 14 bytes.
pub fn carries(frame: &[u8]) -> Carries {
    let frame = &frame[..frame.len().min(LOOKED_AT)];
    let (mut at, mut tags) = (12, Vec::new());
    let is_tag = |kind: u16| [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300].contains(&kind);
    let mut kind = be16(frame, at);
    while is_tag(kind) {
        if frame.len() < at + 6 {
            return Carries::Hidden; // half a tag
        }
        tags.push(be16(frame, at + 2) & 0xfff);
        at += 4;
        kind = be16(frame, at);
    }
    at += 2;
    let version = frame.get(at).map(|byte| byte >> 4);
    match kind {
        0x0800 | 0x86dd => {
            let says = if kind == 0x0800 { 4 } else { 6 };
            if tags.len() < 2 && version == Some(says) {
                Carries::Ip(at, tags.first().copied().filter(|vlan| *vlan != 0))
            } else {
                Carries::Hidden
            }
        }
        0x0806 => Carries::Arp(at),
        0x8035 => Carries::Rarp,
        0..0x600 => behind_llc(frame, at),
        _ => Carries::Other,
    }
}

fn behind_llc(frame: &[u8], at: usize) -> Carries {
    let llc = &frame[at..];
    let whole = frame.len() >= LOOKED_AT; // what is cut off may be longer
    if llc.len() < 3 {
        return if whole { Carries::Hidden } else { Carries::Other };
    }
    if llc[..3] == [0xaa, 0xaa, 3] {
        if llc.len() < 8 {
            return if whole { Carries::Hidden } else { Carries::Other };
        }
        return match be16(llc, 6) {
            0x0800 | 0x86dd | 0x8100 | 0x88a8 | 0x9100 | 0x9200 | 0x9300 => Carries::Hidden,
            0x0806 => Carries::Arp(at + 8),
            0x8035 => Carries::Rarp,
            _ => Carries::Other,
        };
    }
    let ip_or_snap = |sap: u8| sap & 0xfe == 0x06 || sap & 0xfe == 0xaa;
    if ip_or_snap(llc[0]) || ip_or_snap(llc[1]) { Carries::Hidden } else { Carries::Other }
}

/// The IP packet at a byte of a frame, or why it is none.
pub fn packet(frame: &[u8], at: usize, vlan: Option<u16>) -> Result<Packet, Reasons> {
    let mut packet = if frame[at] >> 4 == 4 { v4(frame, at)? } else { v6(frame, at)? };
    packet.vlan = vlan;
    Ok(packet)
}

const MALFORMED: Reasons = &["malformed-ip"];
const TRUNCATED: Reasons = &["truncated"];
const TOO_LONG: Reasons = &["headers-too-long"];
const TINY: Reasons = &["tiny-fragment"];
/// A header that does not end before its packet does: its length is wrong, or the packet's is.
const MALFORMED_OR_TRUNCATED: Reasons = &["malformed-ip", "truncated"];

fn v4(frame: &[u8], at: usize) -> Result<Packet, Reasons> {
    let ip = &frame[at..];
    if ip.len() < 20 {
        return Err(TRUNCATED);
    }
    let header = usize::from(ip[0] & 15) * 4;
    let total = usize::from(be16(ip, 2));
    if header < 20 || total < header {
        return Err(MALFORMED);
    }
    if total > ip.len() {
        return Err(TRUNCATED);
    }
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]));
    let flags = be16(ip, 6);
    let (offset, more) = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
    let fragment = (offset > 0 || more).then(|| Fragment {
        id: be16(ip, 4).into(),
        offset,
        more,
        len: total - header,
    });
    can_be(fragment, header)?;
    let packet = Packet {
        vlan: None,
        source: address(12),
        destination: address(16),
        protocol: ip[9],
        hops: ip[8],
        fragment,
        has_fragment_header: fragment.is_some(),
        upper: ip[header..total].to_vec(),
        plain: header == 20 && total == ip.len() && total <= 1500,
        stranger: false,
    };
    upper_is_there(packet, at + header)
}

fn v6(frame: &[u8], at: usize) -> Result<Packet, Reasons> {
    let ip = &frame[at..];
    if ip.len() < 40 {
        return Err(TRUNCATED);
    }
    let end = 40 + usize::from(be16(ip, 4));
    // Jumbograms (RFC 2675) are for links that are not Ethernet; IPv4 in IPv6 addresses is not for
    // the wire (RFC 4291, 2.5.5.2).
    let mapped = |at: usize| ip[at..at + 12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if end == 40 || mapped(8) || mapped(24) {
        return Err(MALFORMED);
    }
    if end > ip.len() {
        return Err(TRUNCATED);
    }
    let ip = &ip[..end];
    let address = |at: usize| {
        let octets: [u8; 16] = ip[at..at + 16].try_into().unwrap();
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let (mut next, mut here, mut fragment, mut has_fragment_header) = (ip[6], 40, None, false);
    loop {
        let len = match next {
            0 if here > 40 => {
                return Err(if at + here >= HEADERS {
                    &["malformed-ip", "headers-too-long"]
                } else {
                    MALFORMED
                });
            }
            0 | 43 | 60 => 8 * (1 + usize::from(*ip.get(here + 1).ok_or(cut_short(at + here, 2))?)),
            51 => 4 * (2 + usize::from(*ip.get(here + 1).ok_or(cut_short(at + here, 2))?)),
            44 => 8,
            _ => break,
        };
        if here + len > ip.len() {
            // The first fragment must hold all headers (RFC 7112).
            return Err(if fragment.is_some() {
                &["tiny-fragment", "headers-too-long"]
            } else {
                cut_short(at + here, len)
            });
        }
        if at + here + len > HEADERS {
            return Err(TOO_LONG);
        }
        if next == 44 {
            if has_fragment_header {
                return Err(MALFORMED); // fragments of fragments
            }
            let field = be16(ip, here + 2);
            let (offset, more) = (usize::from(field & 0xfff8), field & 1 != 0);
            let found = Fragment { id: be32(ip, here + 4), offset, more, len: ip.len() - here - 8 };
            has_fragment_header = true;
            fragment = Some(found).filter(|found| found.offset > 0 || found.more);
        }
        next = ip[here];
        here += len;
        if fragment.is_some_and(|fragment| fragment.offset > 0) {
            break;
        }
    }
    can_be(fragment, 0)?;
    let packet = Packet {
        vlan: None,
        source: address(8),
        destination: address(24),
        protocol: next,
        hops: ip[7],
        fragment,
        has_fragment_header,
        upper: ip[here..].to_vec(),
        plain: here == 40 && at + end == frame.len() && end <= 1500,
        stranger: false,
    };
    upper_is_there(packet, at + here)
}

/// Checks whether there can be such a fragment, behind a header of so many bytes that count.
fn can_be(fragment: Option<Fragment>, header: usize) -> Result<(), Reasons> {
    let Some(Fragment { offset, more, len, .. }) = fragment else { return Ok(()) };
    if offset == 0 && len == 0 {
        return Err(TINY);
    }
    let fits = header + offset + len <= 65_535 && len > 0 && (!more || len % 8 == 0);
    if fits { Ok(()) } else { Err(MALFORMED) }
}

/// An extension header that leaves its packet, and maybe what is looked at, too.
fn cut_short(at: usize, len: usize) -> Reasons {
    if at + len > HEADERS {
        &["malformed-ip", "truncated", "headers-too-long"]
    } else {
        MALFORMED_OR_TRUNCATED
    }
}

/// Checks that the header of the upper layer is whole, where there must be one.
fn upper_is_there(packet: Packet, at: usize) -> Result<Packet, Reasons> {
    if packet.fragment.is_some_and(|fragment| fragment.offset > 0) {
        return Ok(packet);
    }
    let first = packet.fragment.is_some();
    let upper = &packet.upper;
    let needed = match packet.protocol {
        6 if upper.len() >= 13 && upper[12] >> 4 < 5 => {
            return Err(if first { &["tiny-fragment", "malformed-ip"] } else { MALFORMED });
        }
        6 if upper.len() >= 13 => usize::from(upper[12] >> 4) * 4,
        6 => 20,
        17 => 8,
        1 if packet.source.is_ipv4() => 8,
        58 if packet.source.is_ipv6() => 8,
        132 => 12,
        _ => 0,
    };
    if packet.protocol == 17 && upper.len() >= 8 {
        // Of a first fragment the rest is still to come.
        let len = usize::from(be16(upper, 4));
        if len < 8 || len > upper.len() && !first {
            return Err(if at + needed > HEADERS {
                &["malformed-ip", "headers-too-long"]
            } else {
                MALFORMED
            });
        }
    }
    if upper.len() < needed {
        return Err(if first {
            TINY
        } else if at + needed > HEADERS {
            cut_short(at, needed)
        } else {
            MALFORMED_OR_TRUNCATED
        });
    }
    if at + needed > HEADERS { Err(TOO_LONG) } else { Ok(packet) }
}
