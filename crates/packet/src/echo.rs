//! Echo: a router that is asked whether it is there (RFC 792; RFC 1122, 3.2.2.6; RFC 4443, 4.2).

use crate::{
    checksum::{Sum, update},
    ethernet::{self, Ethernet},
    icmp::{self, v4, v6},
    ipv4::{self, Ipv4},
    ipv6::{self, Ipv6},
    protocol,
};

const TTL: u8 = 64;
const L3: usize = ethernet::HEADER_LEN;

/// Returns the length in bytes of the echo request in a frame, Ethernet header and all, without
/// padding. `head` is the frame's beginning. `None` if it is none that [`answer`] answers: it is
/// tagged, a fragment, has options or extension headers, or is something else.
pub fn request(head: &[u8]) -> Option<usize> {
    let frame = Ethernet::parse(head).ok()?;
    if frame.source().is_group() || frame.tags().next().is_some() {
        return None;
    }
    let packet = head.get(L3..)?;
    let (header, total, kind) = match frame.tags().ethertype() {
        ethernet::IPV4 => {
            let ip = Ipv4::parse(packet).ok()?;
            let is_plain = ip.header_len() == ipv4::MIN_LEN
                && ip.fragment_offset() == 0
                && !ip.more_fragments()
                && ip.protocol() == protocol::ICMP;
            (ipv4::MIN_LEN, ip.total_len(), is_plain.then_some(v4::ECHO_REQUEST)?)
        }
        ethernet::IPV6 => {
            let ip = Ipv6::parse(packet).ok()?;
            let is_plain = *packet.get(NEXT_HEADER)? == protocol::ICMPV6;
            (ipv6::LEN, ipv6::LEN + ip.payload_len(), is_plain.then_some(v6::ECHO_REQUEST)?)
        }
        _ => return None,
    };
    let is_request = packet.get(header..header + 2)? == [kind, 0];
    (is_request && total >= header + icmp::LEN).then_some(L3 + total)
}

/// Offset of the next header in a header of IPv6.
const NEXT_HEADER: usize = 6;

/// Makes the answer to an echo request of the request itself, a whole frame. Returns its length in
/// bytes; `None`, and leaves the frame as it was, if that is no [`request`] or not whole.
///
/// A request with a wrong checksum gets an answer with one.
///
/// ```
/// use butterfly_packet::{Mac, build, echo};
/// let (a, router) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// let ip = build::ethernet(a, router).ipv4([10, 0, 0, 1], [10, 0, 0, 254]);
/// let mut frame = ip.ping(7, 1, b"x");
/// assert_eq!(echo::answer(&mut frame), Some(14 + 20 + 8 + 1));
/// assert_eq!((&frame[..6], frame[34]), (&a.0[..], 0));
/// ```
pub fn answer(frame: &mut [u8]) -> Option<usize> {
    let len = request(frame)?;
    let (link, packet) = frame.get_mut(..len)?.split_first_chunk_mut::<L3>()?;
    let is_v4 = packet.first()? >> 4 == 4;
    let header = if is_v4 { ipv4::MIN_LEN } else { ipv6::LEN };
    let (header, message) = packet.split_at_mut_checked(header)?;
    let [kind, _, high, low, ..] = message else { return None };
    swap(link, 0, 6);
    let answer = if is_v4 { v4::ECHO_REPLY } else { v6::ECHO_REPLY };
    // The addresses of the pseudo header change places, which no sum sees.
    let sum =
        update(u16::from_be_bytes([*high, *low]), u16::from(*kind) << 8, u16::from(answer) << 8);
    [*high, *low] = sum.to_be_bytes();
    *kind = answer;
    if is_v4 {
        swap(header, 12, 16);
        // One packet, whole: no identification is owed (RFC 6864, 4.1).
        header.get_mut(4..12)?.copy_from_slice(&[0, 0, 0x40, 0, TTL, protocol::ICMP, 0, 0]);
        let sum = Sum::of(header).checksum();
        let field = ipv4::CHECKSUM_OFFSET..ipv4::CHECKSUM_OFFSET + 2;
        header.get_mut(field)?.copy_from_slice(&sum.to_be_bytes());
    } else {
        swap(header, 8, 24);
        *header.get_mut(HOP_LIMIT)? = TTL;
    }
    Some(len)
}

/// Offset of the hop limit in a header of IPv6.
const HOP_LIMIT: usize = 7;

/// Exchanges the addresses at two offsets, which reach up to each other.
fn swap(bytes: &mut [u8], one: usize, other: usize) {
    let len = other - one;
    if let Some((left, right)) = bytes.get_mut(one..other + len).map(|both| both.split_at_mut(len))
    {
        left.swap_with_slice(right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Mac,
        build::{self, Ip},
    };
    use proptest::{collection::vec, prelude::*};

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn ip() -> Ip {
        build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 254])
    }

    #[test]
    fn what_is_asked_comes_back() {
        for len in [0, 1, 56, 1472, 8000] {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut frame = ip().ttl(3).tos(0x28).identification(77).ping(9, 4, &payload);
            let whole = frame.len();
            frame.resize(whole.max(60), 0xaa); // padding
            assert_eq!(request(&frame[..frame.len().min(64)]), Some(whole));
            let len = answer(&mut frame).unwrap();
            let reply = build::ethernet(B, A).ipv4([10, 0, 0, 254], [10, 0, 0, 1]);
            let expected = reply.tos(0x28).dont_fragment().icmp(0, 0, 9 << 16 | 4, &payload);
            assert_eq!(frame[..len], expected);
            assert_eq!(answer(&mut frame), None, "an answer gets none");
        }
    }

    #[test]
    fn what_is_asked_by_ipv6_comes_back() {
        let (a, b) = ([0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2]);
        for len in [0, 1, 56, 1452] {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut frame = build::ethernet(A, B).ipv6(a, b).ttl(3).ping(9, 4, &payload);
            let whole = frame.len();
            assert_eq!(request(&frame[..whole.min(64)]), Some(whole));
            assert_eq!(answer(&mut frame), Some(whole));
            let reply = build::ethernet(B, A).ipv6(b, a).icmp(129, 0, 9 << 16 | 4, &payload);
            assert_eq!(frame, reply);
            assert_eq!(answer(&mut frame), None, "an answer gets none");
        }
        let extended = build::ethernet(A, B).ipv6(a, b);
        let extended = extended.extension(protocol::DESTINATION_OPTIONS, &[1, 4]).ping(1, 1, b"x");
        assert_eq!(answer(&mut extended.clone()), None);
    }

    #[test]
    fn nothing_else_is_answered() {
        let tagged = build::ethernet(A, B).vlan(5).ipv4([10, 0, 0, 1], [10, 0, 0, 254]);
        for mut frame in [
            tagged.ping(1, 1, b"x"),
            ip().options(&[1, 1]).ping(1, 1, b"x"),
            ip().fragment(1, 0, true).ping(1, 1, &[0; 64]),
            ip().fragment(1, 64, false).ping(1, 1, &[0; 64]),
            ip().udp(1, 2, b"x"),
            ip().icmp(8, 1, 0, b"x"),
            ip().icmp(13, 0, 0, b"x"),
            build::ethernet(Mac::BROADCAST, B)
                .ipv4([10, 0, 0, 1], [10, 0, 0, 254])
                .ping(1, 1, b"x"),
            ip().ping(1, 1, &[0; 64])[..60].to_vec(),
        ] {
            let before = frame.clone();
            assert_eq!(answer(&mut frame), None, "{before:02x?}");
            assert_eq!(frame, before);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(noise in vec(any::<u8>(), 0..120), flips in vec((0usize..60, any::<u8>()), 0..4), kind: bool) {
            let mut frame = if kind { ip().ping(1, 1, &noise) } else { noise };
            for (at, byte) in flips {
                if let Some(to) = frame.get_mut(at) {
                    *to = byte;
                }
            }
            let asked = request(&frame);
            let answered = answer(&mut frame);
            prop_assert!(answered.is_none() || answered == asked);
        }
    }
}
