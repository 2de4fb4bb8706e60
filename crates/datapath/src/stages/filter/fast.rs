//! Reads plain TCP and UDP, the bulk of established traffic, with a few loads.

use butterfly_packet::protocol::{TCP, UDP};
use butterfly_vhost::ring::HEAD_MAX;

use crate::ip::{
    Address, Dhcp, Tuple, is_v4, mapped,
    tcp::{FIN, RST, SYN, Segment},
};

/// Start of IP, and of the transport header behind either family's plain header.
const L3: usize = 14;
const L4_V4: usize = L3 + 20;
const L4_V6: usize = L3 + 40;

/// Reads an untagged IPv4 packet without options or an IPv6 packet without extension headers,
/// whole, that carries TCP without SYN or RST, or UDP other than DHCP. Everything else is `None`:
/// the slow path tells what is wrong with it, if anything. Bytes beyond `len` are stale.
#[inline(always)]
pub(super) fn read(head: &[u8; HEAD_MAX], len: u32) -> Option<(Tuple, Option<Segment>)> {
    let room = (len as usize).checked_sub(L3)?;
    match be16::<12>(head) {
        0x0800 => {
            let total = usize::from(be16::<{ L3 + 2 }>(head));
            let [version, ..] = bytes::<L3, 4>(head);
            // Version 4, five words; no fragment (the bit "do not fragment" may be set).
            if version != 0x45 || be16::<{ L3 + 6 }>(head) & 0x3fff != 0 || total > room {
                return None;
            }
            let ends = (
                mapped(be32::<{ L3 + 12 }>(head).into()),
                mapped(be32::<{ L3 + 16 }>(head).into()),
            );
            let [protocol] = bytes::<{ L3 + 9 }, 1>(head);
            transport::<L4_V4>(head, protocol, total.checked_sub(20)?, ends)
        }
        0x86dd => {
            let payload = usize::from(be16::<{ L3 + 4 }>(head));
            let [version, ..] = bytes::<L3, 4>(head);
            let ends = (be128::<{ L3 + 8 }>(head), be128::<{ L3 + 24 }>(head));
            if version >> 4 != 6 || payload + 40 > room || is_v4(ends.0) || is_v4(ends.1) {
                return None;
            }
            let [protocol] = bytes::<{ L3 + 6 }, 1>(head);
            transport::<L4_V6>(head, protocol, payload, ends)
        }
        _ => None,
    }
}

/// Reads a transport header that starts at `AT`, of which `len` bytes are there.
#[inline(always)]
fn transport<const AT: usize>(
    head: &[u8; HEAD_MAX],
    protocol: u8,
    len: usize,
    (source, destination): (Address, Address),
) -> Option<(Tuple, Option<Segment>)> {
    let [a, b, c, d, e, f, g, h] = at::<AT, 8>(head);
    let (source_port, destination_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let tuple = Tuple { source, destination, source_port, destination_port, vlan: 0, protocol };
    match protocol {
        UDP => {
            let length = usize::from(u16::from_be_bytes([e, f]));
            let dhcp = Dhcp::between(source_port, destination_port, AT == L4_V6).is_some();
            (len >= 8 && length >= 8 && length <= len && !dhcp).then_some((tuple, None))
        }
        TCP => {
            let [.., i, j, k, l, offset, flags, m, n] = at::<AT, 16>(head);
            let header = usize::from(offset >> 4) * 4;
            if header < 20 || header > len || flags & (SYN | RST) != 0 {
                return None;
            }
            let segment = Segment {
                sequence: u32::from_be_bytes([e, f, g, h]),
                acknowledgement: u32::from_be_bytes([i, j, k, l]),
                window: u16::from_be_bytes([m, n]),
                length: (len - header) as u32 + u32::from(flags & FIN),
                flags,
                scale: None,
            };
            Some((tuple, Some(segment)))
        }
        _ => None,
    }
}

/// Bytes at a fixed position within the head.
#[inline(always)]
fn bytes<const AT: usize, const N: usize>(head: &[u8; HEAD_MAX]) -> [u8; N] {
    const { assert!(AT + N <= HEAD_MAX) };
    at::<AT, N>(head)
}

#[inline(always)]
fn at<const AT: usize, const N: usize>(head: &[u8; HEAD_MAX]) -> [u8; N] {
    // The position is a constant within the array: nothing of this is left when it is compiled.
    head.get(AT..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[inline(always)]
fn be16<const AT: usize>(head: &[u8; HEAD_MAX]) -> u16 {
    u16::from_be_bytes(bytes::<AT, 2>(head))
}

#[inline(always)]
fn be32<const AT: usize>(head: &[u8; HEAD_MAX]) -> u32 {
    u32::from_be_bytes(bytes::<AT, 4>(head))
}

#[inline(always)]
fn be128<const AT: usize>(head: &[u8; HEAD_MAX]) -> u128 {
    u128::from_be_bytes(bytes::<AT, 16>(head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{L4, parse::parse};
    use butterfly_packet::{
        Mac,
        build::{self, Ip},
    };
    use proptest::prelude::*;

    fn slot(frame: &[u8]) -> [u8; HEAD_MAX] {
        // What lies behind is of another frame.
        let mut slot = [0xee; HEAD_MAX];
        let n = frame.len().min(HEAD_MAX);
        slot[..n].copy_from_slice(&frame[..n]);
        slot
    }

    /// Checks that the fast path says the same as the slow path, or nothing.
    fn agrees(frame: &[u8]) -> bool {
        let fast = read(&slot(frame), frame.len() as u32);
        let slow = parse(&frame[..frame.len().min(HEAD_MAX)], L3, 0, frame.len() as u32);
        match fast {
            None => true,
            Some((tuple, segment)) => slow.is_ok_and(|packet| {
                let same = match packet.l4 {
                    L4::Udp => segment.is_none(),
                    L4::Tcp(slow) => segment == Some(slow),
                    _ => false,
                };
                same && packet.tuple == tuple && packet.fragment.is_none()
            }),
        }
    }

    fn links() -> [Ip; 2] {
        let link = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        [
            link.clone().ipv4([10, 0, 0, 1], [10, 0, 0, 2]),
            link.ipv6([1u16, 2, 3, 4, 5, 6, 7, 8], [8u16, 7, 6, 5, 4, 3, 2, 1]),
        ]
    }

    #[test]
    fn plain_traffic_is_read() {
        for ip in links() {
            for frame in [
                ip.udp(5, 6, b""),
                ip.udp(5, 6, &[1; 1000]),
                ip.tcp(&build::Tcp::new(5, 6, 0x10), b"x"),
            ] {
                assert!(read(&slot(&frame), frame.len() as u32).is_some());
                assert!(agrees(&frame));
            }
            for frame in [ip.tcp(&build::Tcp::new(5, 6, SYN), b""), ip.ping(1, 1, b"")] {
                assert_eq!(read(&slot(&frame), frame.len() as u32), None);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn never_says_what_the_parser_does_not(which in 0usize..4, changes in prop::collection::vec((12usize..80, any::<u8>()), 0..4), cut in 0usize..90) {
            let ip = &links()[which % 2];
            let mut frame = if which < 2 { ip.udp(5, 6, &[7; 20]) } else { ip.tcp(&build::Tcp::new(5, 6, 0x10), &[7; 20]) };
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            if cut >= 14 {
                frame.truncate(cut);
            }
            prop_assert!(agrees(&frame), "{frame:02x?}");
        }
    }

    /// The fast path takes every plain frame, to the byte, and no other. Any other frame costs a
    /// parser.
    #[test]
    fn plain_to_the_byte() {
        let fast = |frame: &[u8]| {
            assert!(agrees(frame), "{frame:02x?}");
            read(&slot(frame), frame.len() as u32).is_some()
        };
        let with = |frame: &[u8], at: usize, value: u8| {
            let mut frame = frame.to_vec();
            frame[at] = value;
            frame
        };
        for (v6, ip) in links().into_iter().enumerate() {
            let at = [34, 54][v6];
            let udp = ip.udp(5, 6, b"abcd");
            assert!(fast(&udp) && fast(&[&udp[..], &[0; 9]].concat()));
            assert!((0..udp.len()).all(|len| !fast(&udp[..len])));
            // A length within the packet; no header without its bytes.
            let lengths: Vec<u8> =
                (0..=255).filter(|len| fast(&with(&udp, at + 5, *len))).collect();
            assert_eq!(lengths, [8, 9, 10, 11, 12]);
            assert!(fast(&ip.udp(5, 6, b"")) && !fast(&ip.payload(17, &udp[at..][..7])));
            let tcp = |offset: u8, flags: u8, len: usize| {
                let mut bytes = vec![1; len];
                bytes[12..14].copy_from_slice(&[offset << 4, flags]);
                ip.payload(6, &bytes)
            };
            let offsets =
                |len| (0..16).filter(|offset| fast(&tcp(*offset, 0x10, len))).collect::<Vec<u8>>();
            assert_eq!(
                [offsets(19), offsets(20), offsets(23), offsets(24)],
                [vec![], vec![5], vec![5], vec![5, 6]]
            );
            assert_eq!(offsets(60), (5..16).collect::<Vec<u8>>());
            for flags in 0..=255 {
                assert_eq!(fast(&tcp(5, flags, 30)), flags & (SYN | RST) == 0, "{flags:#x}");
            }
            // DHCP is for the parser, in its family.
            for (ports, family) in [((68, 67), 0), ((67, 68), 0), ((546, 547), 1), ((547, 546), 1)]
            {
                assert_eq!(fast(&ip.udp(ports.0, ports.1, b"")), v6 != family, "{ports:?}");
                assert!(fast(&ip.udp(ports.0, 9, b"")) && fast(&ip.udp(9, ports.1, b"")));
                assert!(
                    fast(&ip.udp(ports.0, ports.0, b"")) && fast(&ip.udp(ports.1, ports.1, b""))
                );
            }
            assert!(!fast(&ip.payload(132, &[0; 40])) && !fast(&with(&udp, 13, 1)));
        }
        let [v4, v6] = links().map(|ip| ip.udp(5, 6, b"abcd"));
        // Versions and header lengths; "do not fragment" and its reserved neighbour, but no
        // fragment.
        for first in 0..=255 {
            assert_eq!(
                (fast(&with(&v4, 14, first)), fast(&with(&v6, 14, first))),
                (first == 0x45, first >> 4 == 6),
                "{first:#x}"
            );
            assert_eq!(fast(&with(&v4, 20, first)), first & 0x3f == 0, "{first:#x}");
            assert_eq!(fast(&with(&v4, 21, first)), first == 0);
        }
        let totals: Vec<u8> = (0..=255).filter(|total| fast(&with(&v4, 17, *total))).collect();
        assert_eq!(totals, [32]);
        let totals: Vec<u8> =
            (0..=255).filter(|total| fast(&with(&links()[0].udp(5, 6, b""), 17, *total))).collect();
        assert_eq!(totals, [28]);
        let link = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (mapped, other) = ([0u16, 0, 0, 0, 0, 0xffff, 0x0a00, 1], [1u16, 2, 3, 4, 5, 6, 7, 8]);
        assert!(
            !fast(&link.clone().ipv6(mapped, other).udp(5, 6, b""))
                && !fast(&link.ipv6(other, mapped).udp(5, 6, b""))
        );
    }
}
