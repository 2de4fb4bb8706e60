//! Frames of every kind: what is read, refused, asked for.

use butterfly_packet::{
    Mac, be16,
    build::{self, Ip},
    protocol,
    tcp::{ACK, FIN, SYN},
};
use proptest::prelude::*;

use super::*;
use crate::ip::{
    Dhcp, Discovery, L4, Piece, Quoted, Segment, TAGGED, Tuple, is_v4,
    reasons::{HEADERS_TOO_LONG, TINY_FRAGMENT},
};

const A4: [u8; 4] = [10, 0, 0, 1];
const B4: [u8; 4] = [10, 0, 0, 2];
const A6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const B6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2];
const MALFORMED: Result<Packet, Fault> = Err(Fault::Drop(MALFORMED_IP));
const TOO_LONG: Result<Packet, Fault> = Err(Fault::Drop(HEADERS_TOO_LONG));
const TINY: Result<Packet, Fault> = Err(Fault::Drop(TINY_FRAGMENT));

fn link() -> build::Link {
    build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
}

fn ip4() -> Ip {
    link().ipv4(A4, B4)
}

fn ip6() -> Ip {
    link().ipv6(A6, B6)
}

fn both() -> [Ip; 2] {
    [ip4(), ip6()]
}

/// Reads a frame as the switch does: with 128 bytes first, then with 256.
fn read(frame: &[u8]) -> Result<Packet, Fault> {
    let some = |n: usize| parse(&frame[..frame.len().min(n)], 14, 0, frame.len() as u32);
    match some(128) {
        Err(Fault::NeedMore) => {
            let found = some(256);
            assert_ne!(found, Err(Fault::NeedMore));
            found
        }
        found => found,
    }
}

fn l4(frame: &[u8]) -> L4 {
    read(frame).unwrap().l4
}

fn ports(frame: &[u8]) -> (u16, u16) {
    let tuple = read(frame).unwrap().tuple;
    (tuple.source_port, tuple.destination_port)
}

/// Changes a byte of the IP packet.
fn with(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[14 + at] = value;
    frame
}

fn tcp_bytes(options: usize, payload: usize) -> Vec<u8> {
    let mut bytes = vec![
        0,
        80,
        1,
        0,
        0,
        0,
        0,
        5,
        0,
        0,
        0,
        9,
        (((20 + options) / 4) << 4) as u8,
        ACK,
        1,
        0,
        0,
        0,
        0,
        0,
    ];
    bytes.resize(20 + options + payload, 0);
    bytes
}

#[test]
fn a_tuple_in_both_families() {
    let frame = link().vlan(7).ipv4(A4, B4).udp(4000, 53, b"?");
    let packet = parse(&frame, 18, TAGGED | 7, frame.len() as u32).unwrap();
    let tuple = Tuple {
        source: 0xffff_0a00_0001,
        destination: 0xffff_0a00_0002,
        source_port: 4000,
        destination_port: 53,
        vlan: TAGGED | 7,
        protocol: 17,
    };
    assert_eq!(packet, Packet { tuple, l4: L4::Udp, fragment: None });
    let packet = read(&ip6().udp(4000, 53, b"?")).unwrap();
    let tuple = Tuple {
        source: 0x2001_0db8 << 96 | 1,
        destination: 0x2001_0db8 << 96 | 2,
        vlan: 0,
        ..tuple
    };
    assert_eq!(packet, Packet { tuple, l4: L4::Udp, fragment: None });
    assert_eq!(tuple.reversed().reversed(), tuple);
    assert_eq!((tuple.reversed().source, tuple.reversed().source_port), (tuple.destination, 53));
}

#[test]
fn tcp_lengths_flags_and_scale() {
    for ip in both() {
        let mut header = build::Tcp::new(1, 2, SYN);
        (header.sequence, header.acknowledgement, header.options) =
            (7, 9, &[2, 4, 5, 0xb4, 1, 3, 3, 15]);
        let segment = Segment {
            sequence: 7,
            acknowledgement: 9,
            window: 0xffff,
            length: 1,
            flags: SYN,
            scale: Some(14),
        };
        assert_eq!(l4(&ip.tcp(&header, b"")), L4::Tcp(segment));
        // Only a SYN negotiates; FIN and payload count.
        header.flags = FIN | ACK;
        let segment = Segment { length: 4, flags: FIN | ACK, scale: None, ..segment };
        assert_eq!(l4(&ip.tcp(&header, b"abc")), L4::Tcp(segment));
    }
}

#[test]
fn padding_is_not_payload() {
    for ip in both() {
        let mut frame = ip.tcp(&build::Tcp::new(1, 2, ACK), b"");
        frame.resize(frame.len() + 40, 0xee);
        let L4::Tcp(segment) = l4(&frame) else { panic!() };
        assert_eq!(segment.length, 0);
    }
}

#[test]
fn bad_tcp() {
    for ip in both() {
        assert_eq!(read(&ip.payload(6, &tcp_bytes(0, 0)[..19])), MALFORMED);
        for offset in 0..5u8 {
            let mut bytes = tcp_bytes(0, 100);
            bytes[12] = offset << 4;
            assert_eq!(read(&ip.payload(6, &bytes)), MALFORMED, "{offset}");
        }
        assert_eq!(read(&ip.payload(6, &tcp_bytes(40, 0)[..59])), MALFORMED);
        assert!(read(&ip.payload(6, &tcp_bytes(40, 0))).is_ok());
    }
}

#[test]
fn bad_udp() {
    for ip in both() {
        for (length, good) in [(0, false), (7, false), (8, true), (10, true), (11, false)] {
            let found = read(&ip.payload(17, &[0, 1, 0, 2, 0, length, 0, 0, 9, 9]));
            assert_eq!(found.is_ok(), good, "{length}");
            assert!(good || found == MALFORMED);
        }
        assert_eq!(read(&ip.payload(17, &[0, 1, 0, 2, 0, 8, 0])), MALFORMED);
    }
}

#[test]
fn bad_ipv4_headers() {
    let frame = ip4().udp(1, 2, b"abcd");
    assert_eq!(read(&with(frame.clone(), 0, 0x44)), MALFORMED); // 16 bytes of header
    assert_eq!(read(&with(frame.clone(), 0, 0x55)), MALFORMED); // version 5
    assert_eq!(read(&with(frame.clone(), 0, 0x05)), MALFORMED);
    assert_eq!(read(&with(frame.clone(), 3, 19)), MALFORMED); // total length below the header's
    assert_eq!(read(&with(frame.clone(), 3, 33)), Err(Fault::Drop(TRUNCATED))); // one more than there is
    assert_eq!(read(&frame[..33]), Err(Fault::Drop(TRUNCATED)));
    assert_eq!(read(&frame[..14]), Err(Fault::Drop(TRUNCATED)));
    let mut options = ip4().options(&[1; 40]).udp(1, 2, b"");
    assert!(read(&options).is_ok());
    options.truncate(14 + 40);
    assert_eq!(read(&options), Err(Fault::Drop(TRUNCATED)));
}

#[test]
fn bad_ipv6_headers() {
    let frame = ip6().udp(1, 2, b"abcd");
    assert_eq!(read(&with(frame.clone(), 5, 0)), MALFORMED); // jumbogram
    assert_eq!(read(&with(frame.clone(), 5, 13)), Err(Fault::Drop(TRUNCATED)));
    assert_eq!(read(&frame[..14 + 39]), Err(Fault::Drop(TRUNCATED)));
    // IPv4 in disguise, on either side.
    let disguise = [0, 0, 0, 0, 0, 0xffff, 0x0a00, 1];
    assert_eq!(read(&link().ipv6(disguise, B6).udp(1, 2, b"")), MALFORMED);
    assert_eq!(read(&link().ipv6(A6, disguise).udp(1, 2, b"")), MALFORMED);
}

#[test]
fn extension_headers_in_any_order() {
    use protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, ROUTING};
    for chain in [
        &[HOP_BY_HOP][..],
        &[ROUTING, DESTINATION_OPTIONS],
        &[DESTINATION_OPTIONS, ROUTING, DESTINATION_OPTIONS],
        &[HOP_BY_HOP, DESTINATION_OPTIONS, ROUTING],
    ] {
        let ip = chain.iter().fold(ip6(), |ip, kind| ip.extension(*kind, &[0; 14]));
        assert_eq!(
            (ports(&ip.udp(1, 2, b"")), l4(&ip.udp(1, 2, b""))),
            ((1, 2), L4::Udp),
            "{chain:?}"
        );
    }
    // Authentication header: 24 bytes, counted in fours.
    let mut bytes = vec![17, 4];
    bytes.resize(24, 0);
    bytes.extend([0, 1, 0, 2, 0, 8, 0, 0]);
    assert_eq!(ports(&ip6().payload(51, &bytes)), (1, 2));
    assert_eq!(
        read(&ip6().extension(ROUTING, &[]).extension(HOP_BY_HOP, &[]).udp(1, 2, b"")),
        MALFORMED
    );
    assert_eq!(l4(&ip6().extension(ROUTING, &[]).payload(59, b"")), L4::Other);
}

#[test]
fn an_extension_header_beyond_the_packet() {
    for (kind, bytes) in [
        (60, &[17, 1, 0, 0, 0, 0, 0, 0][..]),
        (60, &[17]),
        (51, &[17, 9, 0, 0, 0, 0, 0, 0]),
        (44, &[17, 0, 0]),
    ] {
        assert_eq!(read(&ip6().payload(kind, bytes)), MALFORMED, "{kind} {bytes:?}");
    }
}

#[test]
fn headers_must_be_within_256_bytes() {
    // 14 + 40 + 8 * n, then 8 of UDP: the frame's 256th byte is the last that counts.
    let with_options =
        |n: usize, more: usize| ip6().extension(60, &vec![0; n * 8 - 2]).udp(1, 2, &vec![0; more]);
    assert_eq!(ports(&with_options(24, 300)), (1, 2));
    assert_eq!(read(&with_options(25, 300)), TOO_LONG);
    // Nothing is behind these 256 bytes but more chain.
    assert_eq!(read(&with_options(60, 300)), TOO_LONG);
    // A short one is asked for once.
    let frame = with_options(12, 300);
    assert_eq!(parse(&frame[..128], 14, 0, frame.len() as u32), Err(Fault::NeedMore));
    assert!(parse(&frame[..256], 14, 0, frame.len() as u32).is_ok());
    // TCP options at the end.
    let tcp = ip6().extension(60, &[0; 22 * 8 - 2]).payload(6, &tcp_bytes(8, 100));
    assert_eq!(read(&tcp), TOO_LONG);
}

#[test]
fn a_whole_short_frame_is_never_asked_for_again() {
    for ip in both() {
        let frame = ip.udp(1, 2, b"");
        for len in 14..frame.len() {
            assert_ne!(read(&frame[..len]), Err(Fault::NeedMore));
            assert!(read(&frame[..len]).is_err());
        }
        // Bytes of a slot behind the frame are not the frame's.
        let mut slot = frame.clone();
        slot.resize(128, 0x45);
        assert_eq!(parse(&slot, 14, 0, frame.len() as u32), read(&frame));
    }
}

#[test]
fn fragments_and_their_places() {
    for ip in both() {
        let first = read(&ip.clone().fragment(9, 0, true).payload(6, &tcp_bytes(4, 8))).unwrap();
        assert_eq!(first.fragment, Some(Piece { id: 9, offset: 0, end: 32, more: true }));
        assert!(matches!(first.l4, L4::Tcp(_)) && first.tuple.source_port == 80);
        let next = read(&ip.clone().fragment(9, 32, true).payload(6, &[0; 16])).unwrap();
        assert_eq!(
            (next.l4, next.fragment),
            (L4::Fragment, Some(Piece { id: 9, offset: 32, end: 48, more: true }))
        );
        assert_eq!(
            (next.tuple.source_port, next.tuple.destination_port, next.tuple.protocol),
            (0, 0, 6)
        );
        let last = read(&ip.clone().fragment(9, 48, false).payload(6, &[0; 3])).unwrap();
        assert_eq!(last.fragment, Some(Piece { id: 9, offset: 48, end: 51, more: false }));
        // Lengths of all but the last are multiples of eight, and there is something in them.
        assert_eq!(read(&ip.clone().fragment(9, 32, true).payload(6, &[0; 15])), MALFORMED);
        assert_eq!(read(&ip.clone().fragment(9, 32, false).payload(6, &[])), MALFORMED);
        // Beyond the largest packet.
        assert_eq!(read(&ip.fragment(9, 65528, false).payload(6, &[0; 8])), MALFORMED);
    }
    // The header of IPv4 counts too.
    assert_eq!(read(&ip4().fragment(9, 65512, false).payload(6, &[0; 8])), MALFORMED);
    assert!(read(&ip4().fragment(9, 65504, false).payload(6, &[0; 8])).is_ok());
}

#[test]
fn a_first_fragment_holds_the_transport_header() {
    let cases: [(u8, Vec<u8>); 4] = [
        (6, tcp_bytes(12, 0)),
        (17, vec![0, 1, 0, 2, 4, 0, 0, 0]),
        (132, vec![0; 16]),
        (6, tcp_bytes(0, 0)),
    ];
    for ip in both() {
        for (protocol, bytes) in &cases {
            let first = |len: usize| {
                read(&ip.clone().fragment(1, 0, true).payload(*protocol, &bytes[..len]))
            };
            let need = match protocol {
                6 => usize::from(bytes[12] >> 4) * 4,
                17 => 8,
                _ => 12,
            };
            for len in (0..bytes.len()).step_by(8) {
                assert_eq!(first(len) == TINY, len < need, "{protocol} {len}");
            }
            let mut whole = bytes.clone();
            whole.resize(bytes.len().next_multiple_of(8), 0);
            assert!(read(&ip.clone().fragment(1, 0, true).payload(*protocol, &whole)).is_ok());
        }
    }
    assert!(matches!(
        l4(&ip4().fragment(1, 0, true).payload(1, &[8, 0, 0, 0, 0, 5, 0, 1])),
        L4::Echo { .. }
    ));
    // RFC 7112: nor may the chain go on in the next one.
    let cut = [6, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(read(&ip6().fragment(1, 0, true).payload(60, &cut)), TINY);
    assert_eq!(read(&ip6().fragment(1, 0, true).payload(60, &[6, 9, 0, 0, 0, 0, 0, 0])), TINY);
}

#[test]
fn an_atomic_fragment_is_whole() {
    let packet = read(&ip6().fragment(77, 0, false).udp(1, 2, b"abc")).unwrap();
    assert_eq!((packet.l4, packet.fragment, packet.tuple.source_port), (L4::Udp, None, 1));
    assert_eq!(read(&ip6().fragment(77, 0, false).payload(17, &[0, 1])), MALFORMED);
}

#[test]
fn a_fragment_of_a_fragment() {
    let inner = [17, 0, 0, 1, 0, 0, 0, 7, 0, 1, 0, 2, 0, 8, 0, 0];
    for (offset, more) in [(0, true), (0, false)] {
        assert_eq!(read(&ip6().fragment(1, offset, more).payload(44, &inner)), MALFORMED);
    }
    // The headers of a fragment that is not the first are not read further.
    assert_eq!(l4(&ip6().fragment(1, 8, true).payload(44, &inner)), L4::Fragment);
}

#[test]
fn echoes_of_both_families() {
    for (ip, request, reply) in [(ip4(), 8, 0), (ip6(), 128, 129)] {
        let asked = ip.icmp(request, 0, 0x1234_0001, b"x");
        let answered = ip.icmp(reply, 0, 0x1234_0001, b"x");
        assert_eq!(
            (l4(&asked), ports(&asked)),
            (L4::Echo { request: true }, (0x1234, request.into()))
        );
        assert_eq!(
            (l4(&answered), ports(&answered)),
            (L4::Echo { request: false }, (request.into(), 0x1234))
        );
        assert_eq!(l4(&ip.icmp(request, 1, 0, b"")), L4::Icmp { kind: request, code: 1 });
    }
    assert_eq!(l4(&ip4().icmp(13, 0, 0, &[0; 12])), L4::Icmp { kind: 13, code: 0 });
    assert_eq!(read(&ip4().payload(1, &[8, 0, 0, 0, 0, 1, 0])), MALFORMED);
    assert_eq!(read(&ip6().payload(58, &[128, 0, 0, 0, 0, 1, 0])), MALFORMED);
    // The other family's ICMP is nothing special.
    assert_eq!(l4(&ip4().payload(58, &[128, 0, 0, 0, 0, 1, 0, 1])), L4::Other);
    assert_eq!(l4(&ip6().payload(1, &[8, 0, 0, 0, 0, 1, 0, 1])), L4::Other);
}

#[test]
fn errors_quote_both_families() {
    for (ip, inner, kinds, request, reply) in [
        (ip4(), link().ipv4(B4, A4), &[3u8, 11, 12][..], 8u8, 0u8),
        (ip6(), link().ipv6(B6, A6), &[1, 2, 3, 4], 128, 129),
    ] {
        let outer = read(&ip.icmp(kinds[0], 0, 0, b"")).unwrap();
        assert_eq!(outer.l4, L4::Icmp { kind: kinds[0], code: 0 }); // quotes nothing
        let reversed = outer.tuple.reversed();
        let mut header = build::Tcp::new(1, 2, ACK);
        header.sequence = 0xdead;
        let icmp = outer.tuple.protocol;
        for (quote, protocol, ports, sequence) in [
            (inner.tcp(&header, b""), 6, (1, 2), Some(0xdead)),
            (inner.udp(3, 4, b""), 17, (3, 4), None),
            (inner.sctp((5, 6), 0, 1, b""), 132, (5, 6), None),
            (inner.icmp(request, 0, 0x7_0001, b""), icmp, (7, request.into()), None),
            (inner.icmp(reply, 0, 0x7_0001, b""), icmp, (request.into(), 7), None),
            (inner.payload(47, &[]), 47, (0, 0), None),
        ] {
            let tuple =
                Tuple { source_port: ports.0, destination_port: ports.1, protocol, ..reversed };
            for kind in kinds {
                assert_eq!(
                    l4(&ip.icmp(*kind, 9, 0, &quote[14..])),
                    L4::Error(Quoted { tuple, sequence })
                );
            }
            // Eight bytes of the transport header are enough, seven are not.
            if protocol != 47 {
                let header = if quote[14] >> 4 == 4 { 20 } else { 40 };
                assert!(matches!(
                    l4(&ip.icmp(kinds[0], 0, 0, &quote[14..14 + header + 8])),
                    L4::Error(_)
                ));
                assert!(matches!(
                    l4(&ip.icmp(kinds[0], 0, 0, &quote[14..14 + header + 7])),
                    L4::Icmp { .. }
                ));
            }
        }
        // Nothing that could have a session: other ICMP, errors, the rest of a fragment,
        // another version.
        for quote in [
            inner.icmp(kinds[0], 0, 0, &[0; 60]),
            inner.icmp(250, 0, 0, b""),
            inner.clone().fragment(1, 8, false).payload(17, &[0; 8]),
            vec![0; 90],
            vec![0xff; 90],
        ] {
            assert_eq!(
                l4(&ip.icmp(kinds[0], 2, 0, &quote[14..])),
                L4::Icmp { kind: kinds[0], code: 2 }
            );
        }
    }
    let disguise = link().ipv6([0, 0, 0, 0, 0, 0xffff, 0x0a00, 1], B6).udp(1, 2, b"");
    assert!(matches!(l4(&ip6().icmp(1, 0, 0, &disguise[14..])), L4::Icmp { .. }));
    // Source quench and redirect are not among them.
    assert!(matches!(l4(&ip4().icmp(5, 0, 0, &ip4().udp(1, 2, b"")[14..])), L4::Icmp { .. }));
}

#[test]
fn a_quote_out_of_sight_is_asked_for_then_left() {
    let quote = link().ipv6(B6, A6).extension(60, &[0; 30]).udp(1, 2, b"");
    let frame = ip6().icmp(1, 0, 0, &quote[14..]);
    assert_eq!(parse(&frame[..128], 14, 0, frame.len() as u32), Err(Fault::NeedMore));
    assert!(matches!(l4(&frame), L4::Error(_)));
    let quote = link().ipv6(B6, A6).extension(60, &[0; 158]).udp(1, 2, b"");
    assert!(matches!(l4(&ip6().icmp(1, 0, 0, &quote[14..])), L4::Icmp { .. }));
}

#[test]
fn sctp_chunks() {
    for ip in both() {
        for (kind, init, abort, shutdown_complete) in [
            (1, true, false, false),
            (6, false, true, false),
            (14, false, false, true),
            (0, false, false, false),
        ] {
            assert_eq!(
                l4(&ip.sctp((1, 2), 0, kind, b"")),
                L4::Sctp { init, abort, shutdown_complete }
            );
        }
        assert_eq!(
            l4(&ip.payload(132, &[1; 12])),
            L4::Sctp { init: false, abort: false, shutdown_complete: false }
        );
        assert_eq!(read(&ip.payload(132, &[0; 11])), MALFORMED);
    }
}

#[test]
fn dhcp_is_told_from_udp() {
    let bootp = [1; 300];
    let frame = link().ipv4([0; 4], [255; 4]).udp(68, 67, &bootp);
    let dhcp = Dhcp { request: true, v6: false, at: Some((28, 328)), message: None };
    assert_eq!((l4(&frame), ports(&frame)), (L4::Dhcp(dhcp), (68, 67)));
    assert_eq!(
        l4(&ip6().udp(547, 546, &[7, 0, 0, 9])),
        L4::Dhcp(Dhcp { request: false, v6: true, at: Some((48, 52)), message: None })
    );
    assert_eq!(l4(&ip4().udp(546, 547, &[1, 0, 0, 0])), L4::Udp);
    assert_eq!(l4(&ip6().udp(68, 67, &bootp)), L4::Udp);
    // A fragment of one is UDP like any other.
    let datagram = &frame[34..];
    assert_eq!(l4(&ip4().fragment(1, 0, true).payload(17, &datagram[..240])), L4::Udp);
    // A DHCP packet that is not plain from the header to its end is read no further.
    let trailer = link().ipv4([0; 4], [255; 4]).payload(17, &[datagram, &[1]].concat());
    for frame in [
        link().ipv4([0; 4], [255; 4]).options(&[1; 4]).udp(68, 67, &bootp),
        ip6().extension(60, &[]).udp(546, 547, &[1, 0, 0, 0]),
        link().ipv4([0; 4], [255; 4]).udp(68, 67, &[1; 1473]),
        trailer,
    ] {
        assert!(matches!(l4(&frame), L4::Dhcp(Dhcp { at: None, .. })), "{frame:02x?}");
    }
    assert!(matches!(
        l4(&ip4().udp(68, 67, &[1; 1472])),
        L4::Dhcp(Dhcp { at: Some((28, 1500)), .. })
    ));
}

#[test]
fn what_has_no_ports() {
    for ip in both() {
        for protocol in [2, 47, 50, 59, 115, 253] {
            assert_eq!(
                (l4(&ip.payload(protocol, &[9; 9])), ports(&ip.payload(protocol, &[9; 9]))),
                (L4::Other, (0, 0))
            );
        }
    }
    assert_eq!(l4(&ip4().payload(51, &[6, 4, 0, 0])), L4::Other); // over IPv4 nobody looks behind AH
}

#[test]
fn discovery_is_read_with_its_envelope() {
    let target = std::net::Ipv6Addr::from(B6).octets();
    let good = ip6().ttl(255).icmp(135, 0, 0, &target);
    let valid =
        |frame: &[u8]| matches!(l4(frame), L4::Discovery(Discovery { kind: 135, valid: true, .. }));
    assert!(valid(&good));
    assert!(!valid(&ip6().ttl(254).icmp(135, 0, 0, &target)));
    assert!(!valid(&ip6().ttl(255).fragment(3, 0, false).icmp(135, 0, 0, &target)));
    assert!(!valid(&ip6().ttl(255).icmp(135, 0, 0, &target[..15])));
    // Options that go on: all of them are looked at, as far as can be.
    for (options, expected) in [(8, true), (20, true), (40, false)] {
        let mut body = target.to_vec();
        (0..options).for_each(|_| body.extend([14, 1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(valid(&ip6().ttl(255).icmp(135, 0, 0, &body)), expected, "{options}");
        body.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(!valid(&ip6().ttl(255).icmp(135, 0, 0, &body)), "{options}");
    }
}

/// Bytes of a frame that must be at hand. With one less, more are asked for; with more, the
/// result is the same.
#[test]
fn needed_to_the_byte() {
    let udp = |ip: &Ip| ip.udp(1, 2, &[0; 300]);
    for (v6, ip) in [(false, ip4()), (true, ip6())] {
        let l4 = if v6 { 54 } else { 34 };
        let [error, strange] = if v6 { [1, 200] } else { [3, 13] };
        let quoting = |quote: Vec<u8>| ip.icmp(error, 0, 0, &quote[14..]);
        for (frame, needed, why) in [
            (udp(&ip), l4 + 8, "UDP"),
            (ip.payload(6, &tcp_bytes(0, 300)), l4 + 20, "TCP"),
            (ip.payload(6, &tcp_bytes(8, 300)), l4 + 28, "TCP with options"),
            (ip.payload(132, &[0; 300]), l4 + 16, "SCTP and the head of its chunk"),
            (ip.icmp(strange, 0, 0, &[0; 300]), l4 + 8, "ICMP"),
            (ip.ping(1, 2, &[0; 300]), l4 + 8, "an echo"),
            (ip.payload(47, &[0; 300]), l4, "no ports"),
            (
                ip.clone().fragment(1, 0, true).payload(17, &[0, 1, 0, 2, 1, 48, 0, 0].repeat(38)),
                l4 + if v6 { 16 } else { 8 },
                "first",
            ),
            (
                ip.clone().fragment(1, 8, true).payload(17, &[0; 304]),
                l4 + if v6 { 8 } else { 0 },
                "another fragment",
            ),
            (quoting(udp(&ip)), 2 * l4 - 14 + 16, "quoted UDP"),
            (quoting(ip.ping(1, 2, &[0; 300])), 2 * l4 - 14 + 16, "a quoted echo"),
            (quoting(ip.payload(47, &[0; 300])), 2 * l4 - 14 + 8, "quoted, without ports"),
        ] {
            let len = frame.len() as u32;
            let some = |n: usize| parse(&frame[..n.min(frame.len())], 14, 0, len);
            for n in 0..needed {
                assert_eq!(some(n), Err(Fault::NeedMore), "{why}, IPv6 {v6}: {n} of {needed}");
            }
            assert!(some(256).is_ok(), "{why}, IPv6 {v6}: {:?}", some(256));
            assert!((needed..256).all(|n| some(n) == some(256)), "{why}, IPv6 {v6}: {needed}");
        }
    }
    // Options of IPv4, extension headers, and a header that starts late.
    for (frame, needed) in [
        (ip4().options(&[1; 8]).udp(1, 2, &[0; 300]), 14 + 28 + 8),
        (ip6().extension(60, &[0; 14]).udp(1, 2, &[0; 300]), 54 + 16 + 8),
        (ip6().extension(60, &[]).extension(43, &[]).payload(59, &[0; 300]), 54 + 16),
    ] {
        let some = |n: usize| parse(&frame[..n], 14, 0, frame.len() as u32);
        assert_eq!(
            (some(needed - 1), some(needed).is_ok()),
            (Err(Fault::NeedMore), true),
            "{needed}"
        );
    }
    let mut late = vec![0; 106];
    late.extend(&ip4().options(&[1; 4]).payload(47, &[0; 10])[14..]);
    late.resize(140, 0);
    assert_eq!(parse(&late[..128], 106, 0, 140), Err(Fault::NeedMore));
    assert!(parse(&late[..130], 106, 0, 140).is_ok());
    // Of discovery, the whole message; not what pads the frame.
    let mut frame = ip6().ttl(255).icmp(
        135,
        0,
        0,
        &[&std::net::Ipv6Addr::from(B6).octets()[..], &[1, 1, 2, 0, 0, 0, 0, 1]].concat(),
    );
    let len = frame.len();
    frame.resize(len + 20, 0xee);
    let some = |n: usize| parse(&frame[..n], 14, 0, frame.len() as u32);
    assert_eq!((len, some(len - 1)), (86, Err(Fault::NeedMore)));
    assert!(matches!(
        some(len),
        Ok(Packet { l4: L4::Discovery(Discovery { valid: true, link_source: Some(_), .. }), .. })
    ));
}

#[test]
fn ports_are_zero_where_there_are_none() {
    let errors =
        |ip: &Ip, kind| [ip.icmp(kind, 0, 0, &ip.udp(3, 4, b"")[14..]), ip.icmp(kind, 0, 0, b"")];
    let mut frames = [errors(&ip4(), 3), errors(&ip6(), 1)].concat();
    for ip in both() {
        frames.extend([
            ip.payload(47, &[1; 20]),
            ip.clone().fragment(1, 8, false).payload(17, &[1; 20]),
        ]);
    }
    frames.extend([
        ip4().icmp(13, 0, 7, &[1; 20]),
        ip6().icmp(200, 0, 7, &[1; 20]),
        ip6().ttl(255).icmp(135, 0, 0, &[1; 16]),
    ]);
    for frame in frames {
        assert_eq!(ports(&frame), (0, 0), "{:?}", l4(&frame));
    }
}

/// An error may be about the first fragment of a packet, which has the ports, but not about
/// another one.
#[test]
fn quoted_fragments() {
    for (ip, inner, kind) in [(ip4(), link().ipv4(B4, A4), 3), (ip6(), link().ipv6(B6, A6), 1)] {
        let quote = |offset, more| {
            inner.clone().fragment(1, offset, more).payload(17, &[0, 3, 0, 4, 0, 8, 0, 0])
        };
        let L4::Error(quoted) = l4(&ip.icmp(kind, 0, 0, &quote(0, true)[14..])) else { panic!() };
        assert_eq!(
            (quoted.tuple.source_port, quoted.tuple.destination_port, quoted.tuple.protocol),
            (3, 4, 17)
        );
        assert_eq!(quoted.tuple.source, read(&inner.udp(1, 2, b"")).unwrap().tuple.source);
        for (offset, more) in [(8, true), (8, false), (65_528, false)] {
            assert_eq!(
                l4(&ip.icmp(kind, 0, 0, &quote(offset, more)[14..])),
                L4::Icmp { kind, code: 0 },
                "{offset}"
            );
        }
    }
    // IPv4 in disguise, on either side.
    let disguise = [0, 0, 0, 0, 0, 0xffff, 0x0a00, 1];
    for inner in [link().ipv6(disguise, A6), link().ipv6(B6, disguise)] {
        assert!(matches!(l4(&ip6().icmp(1, 0, 0, &inner.udp(1, 2, b"")[14..])), L4::Icmp { .. }));
    }
}

/// The largest packet there can be, put together: 65,535 bytes, of which an IPv4 header is a
/// part.
#[test]
fn the_largest_packet_in_fragments() {
    let last = |ip: Ip, offset: usize, len: usize| {
        read(&ip.fragment(9, offset, false).payload(6, &vec![0; len]))
    };
    assert_eq!(last(ip6(), 65_528, 7).unwrap().fragment.unwrap().end, 65_535);
    assert_eq!(last(ip6(), 65_528, 8), MALFORMED);
    assert_eq!(last(ip4(), 65_504, 11).unwrap().fragment.unwrap().end, 65_515);
    assert_eq!(last(ip4(), 65_504, 12), MALFORMED);
    assert_eq!(last(ip4().options(&[1; 4]), 65_504, 8), MALFORMED);
    assert!(last(ip4().options(&[1; 4]), 65_504, 7).is_ok());
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(vec![]),
        Just(ip4().udp(68, 67, &[1; 60])),
        Just(ip4().tcp(&build::Tcp::new(1, 2, SYN), b"x")),
        Just(ip4().icmp(3, 0, 0, &ip4().tcp(&build::Tcp::new(1, 2, SYN), b"x")[14..])),
        Just(ip6().udp(546, 547, &[1; 60])),
        Just(
            ip6()
                .extension(0, &[])
                .extension(43, &[])
                .fragment(1, 0, true)
                .tcp(&build::Tcp::new(1, 2, SYN), b"x")
        ),
        Just(ip6().ttl(255).icmp(135, 0, 0, &[2; 40])),
        Just(ip6().icmp(1, 0, 0, &ip6().extension(60, &[]).udp(1, 2, b"x")[14..])),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (start, prop::collection::vec(any::<u8>(), 0..300), changes).prop_map(
        |(mut frame, rest, changes)| {
            frame.extend(rest);
            for (at, value) in changes {
                if !frame.is_empty() {
                    let at = at.index(frame.len());
                    frame[at] = value;
                }
            }
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Any bytes: no panic, never a request for more than there is. The result does not depend
    /// on bytes behind the packet or on how many were at hand first.
    #[test]
    fn arbitrary_frames(frame in any_frame(), at in 0usize..40, missing in 0u32..2000) {
        let len = frame.len() as u32 + if frame.len() >= 256 { missing } else { 0 };
        let all = parse(&frame, at, 0, len);
        prop_assert_ne!(all, Err(Fault::NeedMore));
        let some = parse(&frame[..frame.len().min(128)], at, 0, len);
        prop_assert!(some == Err(Fault::NeedMore) || some == all, "{:?} {:?}", some, all);
        if let Ok(packet) = all {
            let v4 = is_v4(packet.tuple.source);
            prop_assert_eq!(v4, is_v4(packet.tuple.destination));
            let start = &frame[at..];
            let end = if v4 { be16(start, 2).unwrap().into() } else { 40 + usize::from(be16(start, 4).unwrap()) };
            prop_assert!(at + end <= len as usize);
            if let Some(piece) = packet.fragment {
                prop_assert!(piece.offset < piece.end && piece.end <= 65535);
                prop_assert_eq!(packet.l4 == L4::Fragment, piece.offset != 0);
            }
            if at + end <= frame.len() {
                let mut padded = frame.clone();
                padded[at + end..].fill(0x5a);
                prop_assert_eq!(parse(&padded, at, 0, len), all);
            }
        }
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), at: usize, len: u32) {
        let _ = parse(&bytes, at, 0, len);
        let _ = parse(&bytes, at % 20, 0, len);
    }
}
