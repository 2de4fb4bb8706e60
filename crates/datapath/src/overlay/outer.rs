//! The header in front of a frame on its way to another host: Ethernet, IP, UDP and VXLAN (RFC
//! 7348, 5).

use std::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use butterfly_packet::{
    checksum::Sum,
    ethernet,
    mac::Mac,
    vxlan::{PASSED_ON, PORT},
};
use butterfly_vhost::ring::{FIELDS, Front, OUTER_MAX};

/// Length of an Ethernet header, and of a VLAN's tag in it.
const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const VXLAN: usize = 8;
/// Length of the headers behind IP.
const BEHIND_IP: usize = UDP + VXLAN;
/// The VNI is valid, and no other flag is set (RFC 7348, 5).
const FLAGS: u8 = 0x08;
const TTL: u8 = 64;
const HOP_LIMIT: u8 = 255;
const PROTOCOL_UDP: u8 = 17;
/// First of the dynamic ports (RFC 6335, 6), from which source ports are taken.
const FIRST_PORT: u16 = 0xc000;

/// Returns the difference in bytes between an outer packet and the frame in it.
pub(crate) const fn overhead(v6: bool) -> u32 {
    (BEHIND_IP + if v6 { IPV6 } else { IPV4 }) as u32
}

/// Sender of outer packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub mac: Mac,
    pub ip: IpAddr,
    /// True if a UDP checksum is computed over IPv6 (RFC 8200, 8.1); else it is zero, as RFC 6935
    /// allows for tunnels.
    pub udp6_checksum: bool,
    /// The underlay's VLAN; 0: none.
    pub vlan: u16,
}

/// An outer header, complete except for the fields that differ from frame to frame.
#[derive(Clone, Copy)]
pub(crate) struct Outer {
    front: Front,
    /// Start of IP.
    l3: usize,
    v6: bool,
    checksum: bool,
    /// The sum of the words of an IPv4 header that are the same for every frame.
    constant: u32,
}

impl Outer {
    pub fn new(source: &Source, to: (Mac, IpAddr), vni: u32) -> Option<Outer> {
        Outer::with(source, to, vni, [FLAGS, 0, 0, 0])
    }

    /// Makes the header of a frame that another host sent here, and that is passed on to where its
    /// receiver went: the next host does not learn its sender behind this one.
    pub fn passed_on(source: &Source, to: (Mac, IpAddr), vni: u32) -> Option<Outer> {
        Outer::with(source, to, vni, PASSED_ON)
    }

    fn with(source: &Source, to: (Mac, IpAddr), vni: u32, flags: [u8; 4]) -> Option<Outer> {
        let mut bytes = ArrayVec::<u8, OUTER_MAX>::new();
        let mut put = |part: &[u8]| bytes.try_extend_from_slice(part).ok();
        let (mac, ip) = to;
        let v6 = matches!(source.ip, IpAddr::V6(_));
        put(&mac.0)?;
        put(&source.mac.0)?;
        if source.vlan != 0 {
            put(&ethernet::VLAN.to_be_bytes())?;
            put(&source.vlan.to_be_bytes())?;
        }
        match (source.ip, ip) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                put(&[0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0, 0, TTL, PROTOCOL_UDP, 0, 0])?;
                put(&from.octets())?;
                put(&to.octets())?;
            }
            (from, to) => {
                put(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, PROTOCOL_UDP, HOP_LIMIT])?;
                put(&six(from).octets())?;
                put(&six(to).octets())?;
            }
        }
        put(&[0, 0])?;
        put(&PORT.to_be_bytes())?;
        put(&[0, 0, 0, 0])?;
        put(&flags)?;
        put(&(vni << 8).to_be_bytes())?;
        let l3 = if source.vlan == 0 { ETHERNET } else { ETHERNET + TAG };
        let fields = if v6 {
            let l4 = l3 + IPV6;
            [l3 + 4, l3 + 4, l3 + 4, l4, l4 + 4]
        } else {
            let l4 = l3 + IPV4;
            [l3 + 2, l3 + 4, l3 + 10, l4, l4 + 4]
        };
        let constant = Sum::of(bytes.get(l3..l3 + IPV4)?).fold().into();
        Some(Outer {
            front: Front::new(&bytes, fields)?,
            l3,
            v6,
            checksum: v6 && source.udp6_checksum,
            constant,
        })
    }

    /// Returns the fields for a frame of `inner` bytes: lengths, identification and checksum of
    /// IPv4, the source port. The uplink's MTU keeps header and frame below 64 KiB.
    #[inline(always)]
    pub fn fields(&self, inner: u32, source_port: u16, identification: u16) -> [u16; FIELDS] {
        let udp = (BEHIND_IP as u32 + inner) as u16;
        if self.v6 {
            return [udp, udp, udp, source_port, udp];
        }
        let total = udp + IPV4 as u16;
        // Three words: one carry, and one more from adding it (RFC 1071, 2).
        let sum = self.constant + u32::from(total) + u32::from(identification);
        let sum = (sum & 0xffff) + (sum >> 16);
        [total, identification, !((sum & 0xffff) + (sum >> 16)) as u16, source_port, udp]
    }

    /// Returns the part that is the same for every frame.
    #[inline(always)]
    pub fn front(&self) -> &Front {
        &self.front
    }

    /// Returns the header of a frame, with its fields.
    pub fn bytes(&self, fields: [u16; FIELDS]) -> ArrayVec<u8, OUTER_MAX> {
        let mut bytes = ArrayVec::from([0; OUTER_MAX]);
        if let Ok(room) = bytes.as_mut_slice().try_into() {
            self.front.write(fields, room);
        }
        bytes.truncate(self.front.len());
        bytes
    }

    /// Returns whether a UDP checksum is to be computed.
    #[inline(always)]
    pub fn owes_checksum(&self) -> bool {
        self.checksum
    }

    /// Finishes the UDP checksum of a whole packet that starts with this header.
    pub fn finish(&self, packet: &mut [u8]) {
        let l3 = self.l3;
        let l4 = l3 + IPV6;
        let field = l4 + 6;
        let sum = match packet.get(l4..) {
            Some(segment) => {
                pseudo(packet.get(l3 + 8..l4), segment.len()).push(segment).udp_checksum()
            }
            None => return,
        };
        if let Some(to) = packet.get_mut(field..field + 2) {
            to.copy_from_slice(&sum.to_be_bytes());
        }
    }
}

fn pseudo(addresses: Option<&[u8]>, len: usize) -> Sum {
    Sum::of(addresses.unwrap_or_default())
        .push(&(len as u32).to_be_bytes())
        .push_u16(u16::from(PROTOCOL_UDP))
}

fn six(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Returns a source port made of the inner flow, so that receivers and the underlay spread flows
/// (RFC 7348, 5). Uses addresses and ports of plain IP, else the link addresses.
#[inline(always)]
pub(crate) fn source_port(head: &[u8]) -> u16 {
    // Only frames of this length or more are worth spreading. Their fields are at constant places,
    // so one length check does for all.
    match head.first_chunk::<READ>() {
        Some(head) => FIRST_PORT | (flow_hash(head) >> 48) as u16,
        None => short_frame(head),
    }
}

/// Bytes up to the ports of plain IPv6.
const READ: usize = 58;

/// Returns the port of a shorter frame: missing bytes count as zero.
#[cold]
#[inline(never)]
fn short_frame(head: &[u8]) -> u16 {
    let mut filled = [0; READ];
    filled.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
    FIRST_PORT | (flow_hash(&filled) >> 48) as u16
}

#[inline(always)]
fn flow_hash(head: &[u8; READ]) -> u64 {
    // A constant place within the array, so the compiler removes the comparison.
    let word = |at: usize| {
        head.get(at..)
            .and_then(|part| part.first_chunk())
            .map_or(0, |part| u64::from_ne_bytes(*part))
    };
    let short = |at: usize| {
        head.get(at..)
            .and_then(|part| part.first_chunk())
            .map_or(0, |part| u64::from(u32::from_ne_bytes(*part)))
    };
    match head {
        [
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            0x08,
            0x00,
            0x45,
            _,
            _,
            _,
            _,
            _,
            high,
            low,
            _,
            protocol,
            ..,
        ] => {
            let fragment = u16::from_be_bytes([*high, *low]) & 0x3fff != 0;
            let ports = if !fragment && has_ports(*protocol) { short(34) } else { 0 };
            mix(word(26), ports << 8 | u64::from(*protocol))
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, _, _, _, _, _, _, next, ..] => {
            let ports = if has_ports(*next) { short(54) } else { 0 };
            mix(mix(word(22), word(30)), mix(word(38), word(46)) ^ (ports << 8 | u64::from(*next)))
        }
        _ => mix(word(0), short(8)),
    }
}

/// Returns the ports of TCP, UDP and SCTP, which begin with them.
#[inline(always)]
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 132)
}

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xbf58_476d_1ce4_e5b9);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::{build, ipv4::Ipv4, ipv6::Ipv6, udp::Udp};
    use std::collections::HashSet;

    const MACS: [Mac; 2] = [Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2])];

    #[test]
    fn an_ipv4_header_is_the_contract_s() {
        let source =
            Source { mac: MACS[0], ip: "10.1.0.1".parse().unwrap(), udp6_checksum: true, vlan: 0 };
        let outer = Outer::new(&source, (MACS[1], "10.1.0.2".parse().unwrap()), 1337).unwrap();
        let bytes = outer.bytes(outer.fields(60, 0xc123, 7));
        let expected = [
            2, 0xbf, 0, 0, 0, 2, 2, 0xbf, 0, 0, 0, 1, 8, 0, // Ethernet
            0x45, 0, 0, 96, 0, 7, 0, 0, 64, 17, 0x66, 0x82, 10, 1, 0, 1, 10, 1, 0, 2, // IPv4
            0xc1, 0x23, 0x12, 0xb5, 0, 76, 0, 0, // UDP
            8, 0, 0, 0, 0, 5, 0x39, 0, // VXLAN
        ];
        assert_eq!(bytes[..], expected);
        assert!(!outer.owes_checksum());
        assert!(Ipv4::parse(&bytes[14..]).unwrap().checksum_is_valid());
        // In a VLAN it is the same behind a tag.
        let tagged = Source { vlan: 0xabc, ..source };
        let tagged = Outer::new(&tagged, (MACS[1], "10.1.0.2".parse().unwrap()), 1337).unwrap();
        let tagged = tagged.bytes(tagged.fields(60, 0xc123, 7));
        assert_eq!(
            (&tagged[..12], &tagged[12..16], &tagged[16..]),
            (&expected[..12], &[0x81, 0, 0x0a, 0xbc][..], &expected[12..])
        );
    }

    #[test]
    fn an_ipv6_header_has_the_right_length_and_a_checksum_if_asked() {
        for (udp6_checksum, vlan) in [(false, 0), (true, 0), (false, 42), (true, 42)] {
            let tag = if vlan == 0 { 0 } else { 4 };
            let source =
                Source { mac: MACS[0], ip: "fd00::1".parse().unwrap(), udp6_checksum, vlan };
            let outer =
                Outer::new(&source, (MACS[1], "fd00::2".parse().unwrap()), 0xff_ffff).unwrap();
            let inner = [0x5a; 61];
            let mut packet = outer.bytes(outer.fields(inner.len() as u32, 0xffff, 7)).to_vec();
            assert_eq!(packet.len(), 70 + tag);
            if vlan != 0 {
                assert_eq!(packet[12..18], [0x81, 0, 0, 42, 0x86, 0xdd]);
            }
            packet.extend(inner);
            assert_eq!(outer.owes_checksum(), udp6_checksum);
            if outer.owes_checksum() {
                outer.finish(&mut packet);
            }
            let ip = Ipv6::parse(&packet[14 + tag..]).unwrap();
            assert_eq!((ip.hop_limit(), ip.payload().unwrap().len()), (255, 16 + 61));
            let udp = Udp::parse(ip.payload().unwrap()).unwrap();
            assert_eq!((udp.source_port(), udp.destination_port()), (0xffff, PORT));
            let valid = Sum::pseudo_v6(ip.source(), ip.destination(), 17, 77)
                .push(ip.payload().unwrap())
                .is_valid();
            assert_eq!(valid, udp6_checksum);
            assert_eq!(udp.payload().unwrap()[..8], [8, 0, 0, 0, 0xff, 0xff, 0xff, 0]);
        }
    }

    #[test]
    fn source_ports_spread_over_flows_and_stay_for_one() {
        let link = build::ethernet(MACS[0], MACS[1]);
        let frame = |n: u16, v6: bool| {
            let link = link.clone();
            let ip = if v6 {
                link.ipv6([1u16; 8], [2u16; 8])
            } else {
                link.ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            };
            ip.udp(n, 80, b"x")
        };
        for v6 in [false, true] {
            let ports: HashSet<u16> = (0..1000).map(|n| source_port(&frame(n, v6))).collect();
            assert!(
                ports.len() > 900 && ports.iter().all(|port| *port >= 49152),
                "{}",
                ports.len()
            );
            assert_eq!(source_port(&frame(5, v6)), source_port(&frame(5, v6)));
        }
        assert!(source_port(&[]) >= 49152);
    }
}
