//! Errors about packets: ICMP (RFC 792, RFC 1191; RFC 1812, 4.3) and ICMPv6 "packet too big" (RFC
//! 4443, 3.2).
//!
//! An error of a router comes from its address. A switch has none, so that its "too big" comes from
//! the packet's destination. Nothing is answered that RFC 1122, 3.2.2 and RFC 4443, 2.4 forbid to
//! answer: an ICMP error, several receivers, an unclear sender, a fragment that is not the first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Mac,
    checksum::Sum,
    ethernet::{self, Ethernet},
    icmp,
    ipv4::{self, Ipv4},
    ipv6::{self, Ipv6},
    protocol,
};

/// Error of a router about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpError {
    /// Time exceeded in transit.
    Expired,
    /// No way leads to the network.
    NoNetwork,
    /// The network is there, the machine is not.
    NoHost,
    /// The router itself does not speak the protocol.
    NoProtocol,
    /// The router itself has nothing at the port.
    NoPort,
    /// The packet is too long, and must not be cut. The number is the length in bytes of the
    /// longest IP packet that would have passed.
    TooBig(u32),
}

impl IcmpError {
    /// Type, code, and the four bytes behind the checksum (RFC 792; RFC 1191, 4).
    fn v4(self) -> (u8, u8, u32) {
        use icmp::v4::{FRAGMENTATION_NEEDED, TIME_EXCEEDED, UNREACHABLE};
        match self {
            IcmpError::Expired => (TIME_EXCEEDED, 0, 0),
            IcmpError::NoNetwork => (UNREACHABLE, 0, 0),
            IcmpError::NoHost => (UNREACHABLE, 1, 0),
            IcmpError::NoProtocol => (UNREACHABLE, 2, 0),
            IcmpError::NoPort => (UNREACHABLE, 3, 0),
            IcmpError::TooBig(mtu) => (UNREACHABLE, FRAGMENTATION_NEEDED, mtu.min(u16::MAX.into())),
        }
    }

    /// The same of ICMPv6 (RFC 4443, 3). `pointer` is where the packet names its protocol.
    fn v6(self, pointer: u32) -> (u8, u8, u32) {
        use icmp::v6::{PACKET_TOO_BIG, PARAMETER_PROBLEM, TIME_EXCEEDED, UNREACHABLE};
        match self {
            IcmpError::Expired => (TIME_EXCEEDED, 0, 0),
            IcmpError::NoNetwork => (UNREACHABLE, 0, 0),
            IcmpError::NoHost => (UNREACHABLE, 3, 0),
            IcmpError::NoProtocol => (PARAMETER_PROBLEM, 1, pointer),
            IcmpError::NoPort => (UNREACHABLE, 4, 0),
            IcmpError::TooBig(mtu) => (PACKET_TOO_BIG, 0, mtu),
        }
    }
}

/// Bytes of the longest answer: a tagged frame with the smallest IPv6 MTU.
pub const MAX_LEN: usize = ethernet::HEADER_LEN + ethernet::TAG_LEN + MAX_V6;
/// Longest IPv6 packet that needs no discovery of its own (RFC 4443, 2.4 c).
const MAX_V6: usize = 1280;
/// Longest IPv4 packet that every host takes (RFC 1812, 4.3.2.3).
const MAX_V4: usize = 576;
/// Bytes behind the IP header that let a sender find out what it sent (RFC 792).
const MIN_QUOTE: usize = 8;
const TTL: u8 = 64;
/// Precedence of ICMP errors: internetwork control (RFC 1812, 4.3.2.5).
const TOS: u8 = 0xc0;

/// Writes the frame that tells the sender of `head` that its packet is larger than `mtu`. Returns
/// its length in bytes.
///
/// `head` is a frame's beginning, as much of it as there is: the answer quotes no more. `mtu` is
/// the largest IP packet in bytes (without Ethernet header) that would have fitted, if the frame
/// has no VLAN tag; a tag takes its bytes from it. The answer has the frame's MAC addresses
/// exchanged and its VLAN tag. It takes what room there is in `out`, up to [`MAX_LEN`] bytes; 128
/// always hold one without IPv6 extension headers.
///
/// Returns `None` if the packet must not be answered:
///
/// - It is no IPv4 with "don't fragment" and no IPv6.
/// - It has more than one tag.
/// - It came from or went to a group.
/// - It is an ICMP error or a later fragment.
/// - It is not well-formed.
///
/// Also `None` if it or `out` is too short. Never allocates.
///
/// ```
/// use butterfly_packet::{Mac, build, icmp_error::{MAX_LEN, too_big}};
/// let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// let ip = build::ethernet(a, b).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
/// let mut answer = [0; MAX_LEN];
/// assert_eq!(too_big(&ip.clone().udp(1, 2, &[0; 1472]), 1400, &mut answer), None);
/// let len = too_big(&ip.dont_fragment().udp(1, 2, &[0; 1472]), 1400, &mut answer);
/// assert!(len.is_some_and(|len| len <= 576 + 14));
/// ```
pub fn too_big(head: &[u8], mtu: u32, out: &mut [u8]) -> Option<usize> {
    let frame = Ethernet::parse(head).ok()?;
    if frame.source().is_group() || frame.destination().is_group() {
        return None;
    }
    let mut tags = frame.tags();
    let _ = tags.next();
    let packet = tags.rest();
    let link = head.get(12..head.len() - packet.len())?;
    let mtu = mtu.saturating_sub(link.len() as u32 - 2); // all but the type is a tag
    let mut out = Writer { bytes: out, at: 0 };
    out.put(&frame.source().0)?;
    out.put(&frame.destination().0)?;
    out.put(link)?;
    match tags.ethertype() {
        ethernet::IPV4 => v4(packet, None, IcmpError::TooBig(mtu), &mut out),
        ethernet::IPV6 => v6(packet, None, IcmpError::TooBig(mtu), &mut out),
        _ => None,
    }
}

/// Writes the frame by which a router tells the sender of `head`, a frame without VLAN tag, what
/// became of its packet. Returns its length in bytes.
///
/// It comes from this MAC address, and from the router's address in the sender's network, which has
/// to be of the packet's family. Quotes and refuses as [`too_big`] does; that a packet of IPv4
/// forbids its fragmentation counts for [`IcmpError::TooBig`] alone. Never allocates.
///
/// ```
/// use butterfly_packet::{Mac, build, icmp_error::{IcmpError, of_router}};
/// let (a, router) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// let packet = build::ethernet(a, router).ipv4([10, 0, 0, 1], [10, 1, 0, 2]).udp(1, 2, b"x");
/// let mut answer = [0; 590];
/// let from = (router, "10.0.0.254".parse().unwrap());
/// let len = of_router(&packet, from, IcmpError::Expired, &mut answer);
/// assert_eq!(len, Some(14 + 20 + 8 + 29));
/// ```
pub fn of_router(
    head: &[u8],
    (mac, address): (Mac, IpAddr),
    error: IcmpError,
    out: &mut [u8],
) -> Option<usize> {
    let frame = Ethernet::parse(head).ok()?;
    if frame.source().is_group() || frame.destination().is_group() {
        return None;
    }
    let mut tags = frame.tags();
    if tags.next().is_some() {
        return None;
    }
    let kind = tags.ethertype();
    let mut out = Writer { bytes: out, at: 0 };
    out.put(&frame.source().0)?;
    out.put(&mac.0)?;
    out.put(&kind.to_be_bytes())?;
    match (kind, address) {
        (ethernet::IPV4, IpAddr::V4(from)) => v4(tags.rest(), Some(from), error, &mut out),
        (ethernet::IPV6, IpAddr::V6(from)) => v6(tags.rest(), Some(from), error, &mut out),
        _ => None,
    }
}

/// Writes an error about a packet, from an address: from the packet's destination if it is `None`.
fn v4(
    packet: &[u8],
    from: Option<Ipv4Addr>,
    error: IcmpError,
    out: &mut Writer<'_>,
) -> Option<usize> {
    let ip = Ipv4::parse(packet).ok()?;
    if matches!(error, IcmpError::TooBig(_)) && !ip.dont_fragment()
        || ip.fragment_offset() != 0
        || !ipv4::is_host(ip.source())
        || !ipv4::is_host(ip.destination())
    {
        return None;
    }
    let quote =
        packet.get(..ip.total_len().min(packet.len()).min(MAX_V4 - ipv4::MIN_LEN - icmp::LEN))?;
    let payload = quote.get(ip.header_len()..)?;
    if payload.len() < MIN_QUOTE
        || ip.protocol() == protocol::ICMP && icmp::v4::is_error(*payload.first()?)
    {
        return None;
    }
    let least = ip.header_len() + MIN_QUOTE;
    let quote = out.what_fits(quote, ipv4::MIN_LEN + icmp::LEN, least)?;

    let total = (ipv4::MIN_LEN + icmp::LEN + quote.len()) as u16;
    let start = out.at;
    out.put(&[0x45, TOS])?;
    out.put(&total.to_be_bytes())?;
    // "Don't fragment": no identification is owed (RFC 6864, 4.1).
    out.put(&[0, 0, 0x40, 0, TTL, protocol::ICMP, 0, 0])?;
    out.put(&from.unwrap_or(ip.destination()).octets())?;
    out.put(&ip.source().octets())?;
    out.sum(start, start + ipv4::CHECKSUM_OFFSET, Sum::EMPTY)?;

    let start = out.at;
    let (kind, code, rest) = error.v4();
    out.put(&[kind, code, 0, 0])?;
    out.put(&rest.to_be_bytes())?;
    out.put(quote)?;
    out.sum(start, start + icmp::CHECKSUM_OFFSET, Sum::EMPTY)?;
    Some(out.at)
}

/// The same of IPv6.
fn v6(
    packet: &[u8],
    from: Option<Ipv6Addr>,
    error: IcmpError,
    out: &mut Writer<'_>,
) -> Option<usize> {
    let ip = Ipv6::parse(packet).ok()?;
    if !is_host_v6(ip.source()) || !is_host_v6(ip.destination()) {
        return None;
    }
    // Without an end of the extension headers it may be an error or not: then it counts as one.
    let upper = ip.upper_layer().ok()?;
    if upper.fragment.is_some_and(|fragment| fragment.offset() != 0) {
        return None;
    }
    let from = from.unwrap_or(ip.destination());
    let quote = packet.get(
        ..(ipv6::LEN + ip.payload_len()).min(packet.len()).min(MAX_V6 - ipv6::LEN - icmp::LEN),
    )?;
    let payload = quote.get(upper.offset..)?;
    let silent = |kind| icmp::v6::is_error(kind) || kind == icmp::v6::REDIRECT;
    if payload.len() < MIN_QUOTE || upper.protocol == protocol::ICMPV6 && silent(*payload.first()?)
    {
        return None;
    }
    let quote = out.what_fits(quote, ipv6::LEN + icmp::LEN, upper.offset + MIN_QUOTE)?;

    let len = (icmp::LEN + quote.len()) as u16;
    out.put(&[0x60, 0, 0, 0])?;
    out.put(&len.to_be_bytes())?;
    out.put(&[protocol::ICMPV6, TTL])?;
    out.put(&from.octets())?;
    out.put(&ip.source().octets())?;

    let start = out.at;
    let (kind, code, rest) = error.v6(names_upper(&ip)?);
    out.put(&[kind, code, 0, 0])?;
    out.put(&rest.to_be_bytes())?;
    out.put(quote)?;
    let pseudo = Sum::pseudo_v6(from, ip.source(), protocol::ICMPV6, len.into());
    out.sum(start, start + icmp::CHECKSUM_OFFSET, pseudo)?;
    Some(out.at)
}

/// Returns the offset of the byte that names the protocol of the upper layer: in the last extension
/// header the first one.
fn names_upper(ip: &Ipv6<'_>) -> Option<u32> {
    let (mut walk, mut at) = (ip.extensions(), NEXT_HEADER);
    while let Some(extension) = walk.take_next().ok()? {
        at = extension.offset as u32;
    }
    Some(at)
}

/// Offset of the next header in a header of IPv6.
const NEXT_HEADER: u32 = 6;

fn is_host_v6(ip: Ipv6Addr) -> bool {
    !ip.is_multicast() && !ip.is_unspecified() && !ip.is_loopback()
}

/// Fills a slice from its beginning.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// `None` if there is no room.
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.at..self.at + bytes.len())?.copy_from_slice(bytes);
        self.at += bytes.len();
        Some(())
    }

    /// Returns as much of `quote` as there is room for behind `headers` bytes, but at least
    /// `least`.
    fn what_fits<'a>(&self, quote: &'a [u8], headers: usize, least: usize) -> Option<&'a [u8]> {
        let room = self.bytes.len().saturating_sub(self.at + headers);
        quote.get(..room.min(quote.len())).filter(|quote| quote.len() >= least)
    }

    /// Writes the checksum of everything from `start` on, and of `pseudo`, to `field`, which is
    /// still zero.
    fn sum(&mut self, start: usize, field: usize, pseudo: Sum) -> Option<()> {
        let checksum = pseudo.push(self.bytes.get(start..self.at)?).checksum();
        self.bytes.get_mut(field..field + 2)?.copy_from_slice(&checksum.to_be_bytes());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        build::{self, Ip},
        icmp::Icmp,
    };
    use proptest::{collection::vec, prelude::*};

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn answer(head: &[u8], room: usize) -> Option<Vec<u8>> {
        let mut out = vec![0xaa; room];
        let len = too_big(head, 1400, &mut out)?;
        out.truncate(len);
        Some(out)
    }

    fn ipv4() -> Ip {
        build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).dont_fragment()
    }

    fn ipv6() -> Ip {
        build::ethernet(A, B).ipv6([0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2])
    }

    #[test]
    fn fragmentation_needed_byte_for_byte() {
        let head = &ipv4().udp(4000, 53, &[0; 1472])[..14 + 28];
        // IP: 45c0+0038+0000+4000+4001+0a00+0002+0a00+0001 = d9fc, complement 2603. Quote's IP
        // header sums to ffff, its UDP header is 0fa0+0035+05c8+its checksum; with
        // 0304+0578 before it.
        let udp_sum = u16::from_be_bytes([head[40], head[41]]);
        let sum =
            [0x0304u32, 0x0578, 0xffff, 0x0fa0, 0x0035, 0x05c8, udp_sum.into()].iter().sum::<u32>();
        let [high, low] = (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes();
        let mut expected = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        expected.extend([
            0x45, 0xc0, 0, 56, 0, 0, 0x40, 0, 64, 1, 0x26, 0x03, 10, 0, 0, 2, 10, 0, 0, 1,
        ]);
        expected.extend([3, 4, high, low, 0, 0, 0x05, 0x78]);
        expected.extend(&head[14..]);
        assert_eq!(answer(head, 1500).unwrap(), expected);
    }

    #[test]
    fn packet_too_big_byte_for_byte() {
        let head = &ipv6().udp(4000, 53, &[0; 1452])[..14 + 48];
        let answer = answer(head, 1500).unwrap();
        let mut expected = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        expected.extend([0x60, 0, 0, 0, 0, 56, 58, 64]);
        expected.extend(&head[38..54]);
        expected.extend(&head[22..38]);
        expected.extend([2, 0, answer[56], answer[57], 0, 0, 0x05, 0x78]);
        expected.extend(&head[14..]);
        assert_eq!(answer, expected);
        let message = Ipv6::parse(&answer[14..]).unwrap().payload().unwrap();
        let ends = ["fd00::2".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert!(Sum::pseudo_v6(ends[0], ends[1], protocol::ICMPV6, 56).push(message).is_valid());
    }

    #[test]
    fn one_tag_is_kept_and_two_are_not_answered() {
        let tagged =
            |ids: &[u16]| ids.iter().fold(build::ethernet(A, B), |link, id| link.vlan(*id));
        let frame =
            tagged(&[7]).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).dont_fragment().udp(1, 2, &[0; 1472]);
        let answer = answer(&frame[..128], 1500).unwrap();
        assert_eq!(answer[12..18], [0x81, 0, 0, 7, 8, 0]);
        assert_eq!(answer[44..46], 1396u16.to_be_bytes(), "the tag needs room too");
        assert!(Ipv4::parse(&answer[18..]).unwrap().checksum_is_valid());
        let frame = tagged(&[7, 8])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .dont_fragment()
            .udp(1, 2, &[0; 1472]);
        assert_eq!(super::too_big(&frame, 1400, &mut [0; 1500]), None);
    }

    #[test]
    fn as_much_is_quoted_as_fits() {
        let frames =
            [(ipv4().udp(1, 2, &[0; 1472]), 14 + 576), (ipv6().udp(1, 2, &[0; 1452]), 14 + 1280)];
        for (frame, longest) in frames {
            assert_eq!(answer(&frame, 2000).unwrap().len(), longest);
            assert_eq!(answer(&frame, 300).unwrap().len(), 300);
            assert!(answer(&frame, 128).is_some());
        }
        // 14 + 20 + 8 in front of 20 + 8.
        let frame = ipv4().udp(1, 2, &[0; 1472]);
        assert_eq!(answer(&frame, 70).unwrap().len(), 70);
        assert_eq!(answer(&frame, 69), None);
        assert!(answer(&frame[..42], 1500).is_some());
        assert_eq!(answer(&frame[..41], 1500), None);
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let big = [0; 1472];
        let link = || build::ethernet(A, B);
        let quote = ipv4().udp(1, 2, &big);
        let v6 = |source: [u16; 8], destination: [u16; 8]| {
            link().ipv6(source, destination).udp(1, 2, &big)
        };
        let (a, b) = ([0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2]);
        for (what, frame) in [
            ("may be fragmented", link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, &big)),
            ("later fragment", ipv4().fragment(1, 1480, false).payload(17, &big)),
            ("later fragment, v6", ipv6().fragment(1, 1448, true).payload(17, &big)),
            (
                "to a group",
                link().ipv4([10, 0, 0, 1], [224, 0, 0, 5]).dont_fragment().udp(1, 2, &big),
            ),
            ("to everyone", link().ipv4([10, 0, 0, 1], [255; 4]).dont_fragment().udp(1, 2, &big)),
            (
                "from a group",
                link().ipv4([239, 0, 0, 1], [10, 0, 0, 1]).dont_fragment().udp(1, 2, &big),
            ),
            ("from nobody", link().ipv4([0; 4], [10, 0, 0, 1]).dont_fragment().udp(1, 2, &big)),
            (
                "from loopback",
                link().ipv4([127, 0, 0, 1], [10, 0, 0, 1]).dont_fragment().udp(1, 2, &big),
            ),
            ("to a group, v6", v6(a, [0xff02, 0, 0, 0, 0, 0, 0, 1])),
            ("from nobody, v6", v6([0; 8], b)),
            ("to a group's MAC", build::ethernet(A, Mac::BROADCAST).ipv6(a, b).udp(1, 2, &big)),
            ("from a group's MAC", build::ethernet(Mac::BROADCAST, B).ipv6(a, b).udp(1, 2, &big)),
            ("an error", ipv4().icmp(3, 3, 0, &quote)),
            ("a redirect", ipv4().icmp(5, 0, 0, &quote)),
            ("an error, v6", ipv6().icmp(1, 4, 0, &quote)),
            ("a redirect, v6", ipv6().icmp(137, 0, 0, &quote)),
            (
                "an error behind options",
                ipv6().extension(protocol::DESTINATION_OPTIONS, &[1, 4]).icmp(2, 0, 0, &quote),
            ),
            ("no IP", link().payload(0x88b5, &big)),
        ] {
            assert_eq!(answer(&frame, 1500), None, "{what}");
        }
        let hidden =
            ipv6().extension(protocol::DESTINATION_OPTIONS, &[1; 200]).icmp(2, 0, 0, &quote);
        assert_eq!(answer(&hidden[..128], 1500), None, "the upper layer is not in sight");
        for frame in [
            ipv4().ping(1, 1, &big),
            ipv6().ping(1, 1, &big),
            ipv4().fragment(1, 0, true).payload(17, &big),
        ] {
            assert!(answer(&frame, 1500).is_some());
        }
    }

    #[test]
    fn a_router_says_who_it_is_and_what_became_of_the_packet() {
        let from = (B, [10, 0, 0, 254].into());
        let frame =
            build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 1, 0, 2]).ttl(1).udp(1, 2, &[5; 99]);
        for (error, kind, code, rest) in [
            (IcmpError::Expired, 11, 0, 0),
            (IcmpError::NoNetwork, 3, 0, 0),
            (IcmpError::NoHost, 3, 1, 0),
            (IcmpError::NoProtocol, 3, 2, 0),
            (IcmpError::NoPort, 3, 3, 0),
        ] {
            let mut out = [0; 1600];
            let len = of_router(&frame, from, error, &mut out).unwrap();
            assert_eq!((&out[..6], &out[6..12]), (&A.0[..], &B.0[..]));
            let ip = Ipv4::parse(&out[14..len]).unwrap();
            assert!(ip.checksum_is_valid());
            assert_eq!(
                (ip.source(), ip.destination()),
                ([10, 0, 0, 254].into(), [10, 0, 0, 1].into())
            );
            let message = ip.payload().unwrap();
            assert!(Sum::of(message).is_valid());
            let read = Icmp::parse(message).unwrap();
            assert_eq!((read.kind(), read.code(), read.rest_of_header()), (kind, code, rest));
            assert_eq!(read.body(), &frame[14..]);
            assert_eq!(
                of_router(&out[..len], from, error, &mut [0; 1600]),
                None,
                "no errors about errors"
            );
        }
    }

    #[test]
    fn a_router_says_the_same_by_ipv6() {
        let own = [0xfd00, 0, 0, 0, 0, 0, 0, 0xfe];
        let from = (B, Ipv6Addr::from(own).into());
        let frame = ipv6().ttl(1).udp(1, 2, &[5; 99]);
        let a = [0xfd00, 0, 0, 0, 0, 0, 0, 1];
        for (error, kind, code, rest) in [
            (IcmpError::Expired, 3, 0, 0),
            (IcmpError::NoNetwork, 1, 0, 0),
            (IcmpError::NoHost, 1, 3, 0),
            (IcmpError::NoProtocol, 4, 1, 6),
            (IcmpError::NoPort, 1, 4, 0),
            (IcmpError::TooBig(1300), 2, 0, 1300),
        ] {
            let mut out = [0; 1600];
            let len = of_router(&frame, from, error, &mut out).unwrap();
            let expected = build::ethernet(B, A).ipv6(own, a).icmp(kind, code, rest, &frame[14..]);
            assert_eq!(out[..len], expected);
            assert_eq!(of_router(&out[..len], from, error, &mut [0; 1600]), None);
        }
        // Behind extension headers the last one names the protocol.
        let extended =
            ipv6().extension(protocol::DESTINATION_OPTIONS, &[1, 4]).payload(89, &[2; 9]);
        let mut out = [0; 1600];
        let len = of_router(&extended, from, IcmpError::NoProtocol, &mut out).unwrap();
        let expected = build::ethernet(B, A).ipv6(own, a).icmp(4, 1, 40, &extended[14..]);
        assert_eq!(out[..len], expected);
        let four = (B, [10, 0, 0, 254].into());
        assert_eq!(of_router(&frame, four, IcmpError::Expired, &mut [0; 1600]), None);
    }

    #[test]
    fn a_router_tells_the_mtu_to_who_forbids_fragments_alone() {
        let from = (B, [10, 0, 0, 254].into());
        let error = IcmpError::TooBig(1400);
        let mut out = [0; 600];
        let may = build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 1, 0, 2]).udp(1, 2, &[0; 1472]);
        assert_eq!(of_router(&may, from, error, &mut out), None);
        assert!(of_router(&may, from, IcmpError::Expired, &mut out).is_some());
        let len = of_router(&ipv4().udp(1, 2, &[0; 1472]), from, error, &mut out).unwrap();
        assert_eq!(out[34..36], [3, 4]);
        assert_eq!(out[38..42], [0, 0, 0x05, 0x78]);
        assert_eq!(len, 14 + 576);
        let tagged =
            build::ethernet(A, B).vlan(7).ipv4([10, 0, 0, 1], [10, 1, 0, 2]).udp(1, 2, b"x");
        assert_eq!(of_router(&tagged, from, IcmpError::Expired, &mut out), None);
    }

    proptest! {
        /// Nothing panics, for any frame; and an answer is well-formed and itself never answered.
        #[test]
        fn answers_are_valid_and_final(kind in 0usize..4, noise in vec(any::<u8>(), 0..200), flips in vec((0usize..80, any::<u8>()), 0..4),
                                       len in 0usize..300, room in 0usize..1400) {
            let mut frame = match kind {
                0 => ipv4().udp(1, 2, &noise),
                1 => ipv6().udp(1, 2, &noise),
                2 => build::ethernet(A, B).vlan(3).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).dont_fragment().options(&[1; 5]).payload(6, &noise),
                _ => noise,
            };
            for (at, byte) in flips {
                if let Some(to) = frame.get_mut(at) {
                    *to = byte;
                }
            }
            frame.truncate(len);
            if let Some(answer) = answer(&frame, room) {
                prop_assert!(answer.len() <= MAX_LEN);
                let mut tags = Ethernet::parse(&answer).unwrap().tags();
                tags.by_ref().for_each(drop);
                let (sum, message) = match tags.ethertype() {
                    ethernet::IPV4 => {
                        let ip = Ipv4::parse(tags.rest()).unwrap();
                        prop_assert!(ip.checksum_is_valid());
                        (Sum::EMPTY, ip.payload().unwrap())
                    }
                    _ => {
                        let ip = Ipv6::parse(tags.rest()).unwrap();
                        let message = ip.payload().unwrap();
                        (Sum::pseudo_v6(ip.source(), ip.destination(), protocol::ICMPV6, message.len() as u32), message)
                    }
                };
                prop_assert!(sum.push(message).is_valid());
                prop_assert!(Icmp::parse(message).unwrap().body().len() >= 28);
                prop_assert_eq!(super::too_big(&answer, 1400, &mut [0; MAX_LEN]), None);
            }
        }
    }
}
