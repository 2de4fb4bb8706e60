//! Packet walks of unfinished frames: partial checksums and large segments, to receivers that take
//! them and to receivers that do not, with any layout of the rings.

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
};
use butterfly_packet::{
    build::{self, Checksum},
    checksum::Sum,
    ethernet::Ethernet,
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol, tcp,
};
use butterfly_vhost::net::{Features, NetHeader};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const LEGACY: Features = Features::NONE;
const PLAIN: Features = Features::VERSION_1;

/// How a receiver is built.
struct Receiver {
    name: &'static str,
    features: Features,
    config: GuestConfig,
    memory: fn(u64) -> MemoryConfig,
}

fn receiver(name: &'static str, features: Features) -> Receiver {
    Receiver { name, features, config: GuestConfig::default(), memory: MemoryConfig::new }
}

impl Receiver {
    fn buffers(mut self, rx_size: u16, rx_buffer: usize) -> Receiver {
        (self.config.rx_size, self.config.rx_buffer) = (rx_size, rx_buffer);
        self
    }

    fn shape(mut self, shape: Shape) -> Receiver {
        self.config.rx_shape = shape;
        self
    }

    fn in_pieces_of_memory(mut self) -> Receiver {
        self.config.cross_regions = true;
        self.memory = |need| MemoryConfig::split(8, (need / 4).next_multiple_of(4096));
        self
    }
}

/// A Linux guest "a" that sends frames of up to 64 KiB, and "b".
fn pair(b: &Receiver) -> Host {
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    let mut host = Host::new().unwrap();
    host.declare("a", A, 1, &policy).unwrap();
    host.declare("b", B, 1, &policy).unwrap();
    let config = GuestConfig { max_frame: 65_550, ..GuestConfig::default() }.rings(64);
    host.attach("a", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.attach("b", b.features, &b.config, &(b.memory)(b.config.memory_needed())).unwrap();
    host.settle();
    host.moved();
    host
}

/// Sends from "a" and returns what "b" got.
fn send(host: &mut Host, frame: &[u8], header: NetHeader) -> Vec<(NetHeader, Vec<u8>)> {
    host.send("a", frame, header).unwrap();
    host.received().unwrap().remove("b").unwrap_or_default()
}

/// Returns receivers without offloads, for every way in which buffers can be laid out.
fn simple_receivers() -> Vec<Receiver> {
    let mergeable = PLAIN.with(Features::MRG_RXBUF);
    let indirect = Features::INDIRECT_DESC;
    vec![
        receiver("one buffer per frame", PLAIN),
        receiver("legacy, 10-byte header apart", LEGACY).shape(Shape::HEADER_APART),
        receiver("legacy, mergeable", Features::MRG_RXBUF),
        receiver("mergeable", mergeable),
        receiver("mergeable, tiny buffers", mergeable).buffers(256, 64),
        receiver("mergeable, odd buffers in pieces", mergeable)
            .buffers(256, 333)
            .shape(Shape::default().pieces(4)),
        receiver("indirect", PLAIN.with(indirect)).shape(Shape::default().pieces(3).indirect()),
        receiver(
            "indirect, mergeable, event index, in order",
            mergeable.with(indirect).with(Features::EVENT_IDX).with(Features::IN_ORDER),
        )
        .buffers(128, 700)
        .shape(Shape::HEADER_APART.indirect()),
        receiver("across regions", PLAIN).in_pieces_of_memory(),
        receiver("mergeable, across regions", mergeable).buffers(128, 512).in_pieces_of_memory(),
    ]
}

fn needs_checksum(csum_start: u16, csum_offset: u16) -> NetHeader {
    NetHeader { flags: NetHeader::FLAG_NEEDS_CSUM, csum_start, csum_offset, ..NetHeader::default() }
}

/// The same packet with a partial and with a complete checksum, and the header that asks for the
/// difference.
fn partial(v6: bool, udp: bool, tagged: bool, data: &[u8]) -> (Vec<u8>, Vec<u8>, NetHeader) {
    let make = |checksum| {
        let link = build::ethernet(A, B);
        let link = if tagged { link.vlan(7) } else { link };
        let ip = if v6 {
            link.ipv6(
                [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            )
        } else {
            link.ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        }
        .checksum(checksum);
        if udp {
            ip.udp(4000, 53, data)
        } else {
            ip.tcp(&build::Tcp::new(4000, 80, tcp::ACK), data)
        }
    };
    let l4 = 14 + if tagged { 4 } else { 0 } + if v6 { 40 } else { 20 };
    (
        make(Checksum::Partial),
        make(Checksum::Complete),
        needs_checksum(l4, if udp { 6 } else { 16 }),
    )
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn a_partial_checksum_stays_partial_for_who_takes_it() {
    let mut host = pair(&receiver("linux", LINUX));
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let (frame, _, header) = partial(v6, udp, false, &data(1001));
        // hdr_len is a hint and DATA_VALID not the sender's to say: neither arrives.
        let claims = NetHeader { flags: 3, hdr_len: 999, ..header };
        assert_eq!(
            send(&mut host, &frame, claims),
            [(NetHeader { num_buffers: 1, ..header }, frame)]
        );
    }
    assert!(host.moved().keys().all(|name| !name.contains("drop")));
}

#[test]
fn a_partial_checksum_is_completed_for_everybody_else() {
    for b in simple_receivers() {
        let mut host = pair(&b);
        for len in [0, 1, 2, 3, 50, 51, 74, 75, 76, 77, 201, 511, 512, 513, 1399, 1400] {
            for (v6, udp, tagged) in [
                (false, false, false),
                (false, true, true),
                (true, false, true),
                (true, true, false),
            ] {
                let (frame, complete, header) = partial(v6, udp, tagged, &data(len));
                let got = send(&mut host, &frame, header);
                let [(net, bytes)] = &got[..] else {
                    panic!("{}: {got:?}, {:?}", b.name, host.moved())
                };
                assert_eq!(*bytes, complete, "{}: {len} bytes, v6 {v6}, udp {udp}", b.name);
                assert_eq!(
                    NetHeader { num_buffers: 0, ..*net },
                    NetHeader::default(),
                    "{}",
                    b.name
                );
            }
        }
    }
}

/// RFC 768: a computed zero is sent as all ones, because zero says that there is none.
#[test]
fn a_udp_checksum_is_never_completed_to_zero() {
    let mut host = pair(&receiver("plain", PLAIN));
    for v6 in [false, true] {
        let (_, with_zeroes, _) = partial(v6, true, false, &[0, 0]);
        let l4 = if v6 { 54 } else { 34 };
        let (frame, complete, header) = partial(v6, true, false, &with_zeroes[l4 + 6..l4 + 8]);
        assert_eq!(complete[l4 + 6..l4 + 8], [0xff, 0xff]);
        assert_eq!(send(&mut host, &frame, header)[0].1, complete);
    }
}

fn large(v6: bool, len: usize) -> (Vec<u8>, NetHeader) {
    let (frame, _, header) = partial(v6, false, false, &data(len));
    let gso_type = if v6 { NetHeader::GSO_TCPV6 } else { NetHeader::GSO_TCPV4 };
    (frame, NetHeader { gso_type, gso_size: 1448, ..header })
}

#[test]
fn large_segments_pass_untouched_to_who_takes_them() {
    let ecn = Features::GUEST_ECN;
    let receivers = [
        receiver("linux", LINUX),
        receiver("linux, tiny buffers", LINUX).buffers(1024, 128),
        receiver("linux, huge pages of buffers in pieces", LINUX)
            .buffers(64, 65_562)
            .shape(Shape::default().pieces(17).indirect()),
        receiver("linux, across regions", LINUX.with(ecn)).in_pieces_of_memory(),
    ];
    for b in receivers {
        let mut host = pair(&b);
        for v6 in [false, true] {
            for len in [1449, 20_001, 65_400] {
                let (frame, header) = large(v6, len);
                let got = send(&mut host, &frame, header);
                let [(net, bytes)] = &got[..] else {
                    panic!("{}: {} frames, {:?}", b.name, got.len(), host.moved())
                };
                assert!(*bytes == frame, "{}: {len} bytes", b.name);
                let headers = if v6 { 74 } else { 54 };
                assert_eq!(
                    NetHeader { num_buffers: 0, ..*net },
                    NetHeader { hdr_len: headers, ..header },
                    "{}",
                    b.name
                );
                let buffers = (12 + frame.len()).div_ceil(b.config.rx_buffer);
                assert_eq!(usize::from(net.num_buffers), buffers, "{}", b.name);
            }
        }
    }
}

/// Checks a segment as a receiver would. Returns its payload.
fn payload(frame: &[u8], v6: bool, complete: bool) -> &[u8] {
    let packet = Ethernet::parse(frame).unwrap().payload();
    let (segment, pseudo) = if v6 {
        let ip = Ipv6::parse(packet).unwrap();
        let segment = ip.payload().unwrap();
        assert_eq!(segment.len() + 40, packet.len());
        (
            segment,
            Sum::pseudo_v6(ip.source(), ip.destination(), protocol::TCP, segment.len() as u32),
        )
    } else {
        let ip = Ipv4::parse(packet).unwrap();
        assert!(ip.checksum_is_valid());
        let segment = ip.payload().unwrap();
        assert_eq!(segment.len() + 20, packet.len());
        (
            segment,
            Sum::pseudo_v4(ip.source(), ip.destination(), protocol::TCP, segment.len() as u16),
        )
    };
    if complete {
        assert!(pseudo.push(segment).is_valid());
    } else {
        assert_eq!(segment[16..18], pseudo.fold().to_be_bytes());
    }
    &segment[20..]
}

#[test]
fn large_segments_are_cut_for_who_does_not_take_them() {
    let csum = Features::GUEST_CSUM;
    let mut receivers = simple_receivers();
    receivers.push(receiver(
        "partial checksums only",
        LINUX.without(Features::GUEST_TSO4).without(Features::GUEST_TSO6),
    ));
    receivers.push(receiver("partial checksums, legacy", csum));
    for b in receivers {
        let mut host = pair(&b);
        for v6 in [false, true] {
            for len in [1449, 2896, 5001] {
                let (frame, header) = large(v6, len);
                let got = send(&mut host, &frame, header);
                assert_eq!(
                    got.len(),
                    len.div_ceil(1448),
                    "{}: {len} bytes, {:?}",
                    b.name,
                    host.moved()
                );
                let mut stream = Vec::<u8>::new();
                for (net, bytes) in &got {
                    let complete = !b.features.has(csum);
                    stream.extend(payload(bytes, v6, complete));
                    let want = if complete {
                        NetHeader::default()
                    } else {
                        needs_checksum(header.csum_start, 16)
                    };
                    assert_eq!(NetHeader { num_buffers: 0, ..*net }, want, "{}", b.name);
                }
                assert!(stream == data(len), "{}: {len} bytes", b.name);
            }
        }
        let moved = host.moved();
        assert_eq!(moved["a.in.packets"], 6);
        assert_eq!(moved["b.out.packets"], 2 * (2 + 2 + 4));
        assert!(moved.keys().all(|name| !name.contains("drop")), "{}: {moved:?}", b.name);
    }
}

/// Several datagrams of UDP in one frame, of `size` bytes each but the last, and the datagrams.
fn datagrams(v6: bool, tagged: bool, len: usize, size: u16) -> (Vec<u8>, NetHeader, Vec<Vec<u8>>) {
    let all = data(len);
    let (frame, _, header) = partial(v6, true, tagged, &all);
    let header = NetHeader { gso_type: NetHeader::GSO_UDP_L4, gso_size: size, ..header };
    let l3 = if tagged { 18 } else { 14 };
    let pieces = all.chunks(size.into()).enumerate();
    let cut = pieces.map(|(index, piece)| {
        let (_, mut datagram, _) = partial(v6, true, tagged, piece);
        if !v6 {
            let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]).wrapping_add(index as u16);
            datagram[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            datagram[l3 + 10..l3 + 12].fill(0);
            let sum = Sum::of(&datagram[l3..l3 + 20]).checksum();
            datagram[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        datagram
    });
    (frame.clone(), header, cut.collect())
}

#[test]
fn datagrams_pass_untouched_to_who_takes_them_and_are_cut_for_others() {
    let partial = PLAIN.with(Features::MRG_RXBUF).with(Features::GUEST_CSUM);
    let takes = |features| partial.with(features);
    let receivers = [
        receiver("takes both", takes(Features::USO)),
        receiver("takes IPv4", takes(Features::GUEST_USO4)),
        receiver("takes IPv6, in tiny buffers", takes(Features::GUEST_USO6)).buffers(1024, 128),
        receiver("takes segments of TCP alone", LINUX),
        receiver("takes partial checksums", partial),
    ];
    for b in receivers.into_iter().chain(simple_receivers()) {
        let mut host = pair(&b);
        for (v6, tagged) in [(false, false), (true, false), (false, true), (true, true)] {
            let wanted = if v6 { Features::GUEST_USO6 } else { Features::GUEST_USO4 };
            for (len, size) in
                [(2401, 1200), (2400, 1200), (1000, 17), (6000, 1472), (3000, 300), (1473, 1472)]
            {
                let (frame, header, cut) = datagrams(v6, tagged, len, size);
                let what = format!("{}: {len} bytes, {size} each, IPv6 {v6}", b.name);
                let got = send(&mut host, &frame, header);
                if b.features.has(wanted) {
                    let [(net, bytes)] = &got[..] else { panic!("{what}: {}", got.len()) };
                    assert!(*bytes == frame, "{what}");
                    assert_eq!((net.gso_type, net.gso_size), (5, size), "{what}");
                    assert_eq!(usize::from(net.hdr_len), frame.len() - len, "{what}");
                    continue;
                }
                assert_eq!(got.len(), cut.len(), "{what}: {:?}", host.moved());
                for ((net, bytes), datagram) in got.iter().zip(&cut) {
                    assert_eq!((net.gso_type, net.gso_size), (0, 0), "{what}");
                    let l4 = usize::from(header.csum_start);
                    if b.features.has(Features::GUEST_CSUM) {
                        assert_eq!(net.flags, NetHeader::FLAG_NEEDS_CSUM, "{what}");
                        assert!(bytes[..l4 + 6] == datagram[..l4 + 6], "{what}");
                        assert!(bytes[l4 + 8..] == datagram[l4 + 8..], "{what}");
                    } else {
                        assert!(bytes == datagram, "{what}");
                    }
                }
            }
        }
    }
}

/// A receiver that takes TSO, but not of segments with ECN (virtio 1.2, 5.1.6.2).
#[test]
fn ecn_segments_need_their_own_feature() {
    let (frame, header) = large(false, 3000);
    let header = NetHeader { gso_type: header.gso_type | NetHeader::GSO_ECN, ..header };
    assert_eq!(send(&mut pair(&receiver("without", LINUX)), &frame, header).len(), 3);
    let got = send(&mut pair(&receiver("with", LINUX.with(Features::GUEST_ECN))), &frame, header);
    assert_eq!((got.len(), got[0].0.gso_type), (1, header.gso_type));
}

/// A frame that fits into one packet is one, with any size of segments.
#[test]
fn a_segment_that_needs_no_cut_is_a_plain_packet() {
    for len in [1400, 1448] {
        let (frame, header) = large(false, len);
        let got = send(&mut pair(&receiver("plain", PLAIN)), &frame, header);
        assert_eq!(got.len(), 1);
        assert_eq!(payload(&got[0].1, false, true), data(len));
        let got = send(&mut pair(&receiver("linux", LINUX)), &frame, header);
        let want = NetHeader { gso_type: 0, gso_size: 0, num_buffers: 1, ..header };
        assert_eq!(got, [(want, frame)]);
    }
}

/// A checksum of any protocol is completed if it starts where the transport header does and is
/// behind the bytes that a filter reads.
#[test]
fn checksums_of_other_protocols_are_completed() {
    for v6 in [false, true] {
        let link = build::ethernet(A, B);
        let ip = if v6 {
            link.ipv6([0xfd00u16, 0, 0, 0, 0, 0, 0, 1], [0xfd00u16, 0, 0, 0, 0, 0, 0, 2])
        } else {
            link.ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        };
        let l4 = if v6 { 54 } else { 34 };
        // UDP-Lite, DCCP, an experiment with its checksum far behind, ICMP of either family.
        for (protocol, field) in
            [(136, 6), (33, 6), (253, 0), (253, 180), (if v6 { 58 } else { 1 }, 2)]
        {
            let mut frame = ip.payload(protocol, &data(300));
            let at = usize::from(l4) + usize::from(field);
            frame[at..at + 2].copy_from_slice(&[0x12, 0x34]);
            let mut complete = frame.clone();
            let sum = Sum::of(&frame[l4.into()..]).checksum();
            let sum = if field == 6 && sum == 0 { 0xffff } else { sum };
            complete[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            let header = needs_checksum(l4, field);
            let mut host = pair(&receiver("plain", PLAIN));
            assert_eq!(
                send(&mut host, &frame, header),
                [(NetHeader { num_buffers: 1, ..NetHeader::default() }, complete)],
                "{protocol} {field}"
            );
            let mut host = pair(&receiver("linux", LINUX));
            assert_eq!(
                send(&mut host, &frame, header),
                [(NetHeader { num_buffers: 1, ..header }, frame)],
                "{protocol} {field}"
            );
        }
    }
}

#[test]
fn lies_about_offloads_are_refused() {
    let mut host = pair(&receiver("linux", LINUX));
    let (tcp4, h4) = large(false, 3000);
    let (tcp6, h6) = large(true, 3000);
    let (udp, _, hu) = partial(false, true, false, &data(3000));
    let mut dhcp = udp.clone();
    dhcp[34..38].copy_from_slice(&[0, 68, 0, 67]);
    let plain = NetHeader { gso_type: 0, gso_size: 0, ..h4 };
    let mut fragment = tcp4.clone();
    fragment[20] |= 0x20; // more fragments
    let mut longer = tcp4.clone();
    longer[16] = 0xff; // the IP length
    let mut shorter = tcp4.clone();
    shorter[16..18].copy_from_slice(&1000u16.to_be_bytes());
    let mut no_header = tcp4.clone();
    no_header[46] = 0x40; // a TCP header of 16 bytes
    let mut header_beyond = tcp4[..60].to_vec();
    header_beyond[16..18].copy_from_slice(&46u16.to_be_bytes());
    header_beyond[46] = 0xf0; // a TCP header of 60 bytes in a packet of 46
    let lldp = build::ethernet(A, B).payload(0x88cc, &[0; 100]);
    let icmp = build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ping(1, 1, &[0; 100]);
    let ip = build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let (sctp, other, far) =
        (ip.sctp((1, 2), 3, 1, &[0; 60]), ip.payload(253, &[0; 100]), ip.payload(253, &[0; 400]));
    let tags: Vec<u8> = [&tcp4[..12], &[0x81, 0, 0, 1].repeat(70), &tcp4[12..]].concat();
    let bad: Vec<(&str, &[u8], NetHeader)> = vec![
        ("segmentation without a checksum", &tcp4, NetHeader { flags: 0, ..h4 }),
        ("a checksum elsewhere", &tcp4, NetHeader { csum_start: 33, ..plain }),
        (
            "a checksum beyond the frame",
            &tcp4,
            NetHeader { csum_start: 0xfff0, csum_offset: 0xfff0, ..plain },
        ),
        ("a checksum field elsewhere", &tcp4, NetHeader { csum_offset: 6, ..plain }),
        ("a TCP checksum in UDP", &udp, NetHeader { csum_offset: 16, ..hu }),
        ("segments of nothing", &tcp4, NetHeader { gso_size: 0, ..h4 }),
        ("segments that multiply work", &tcp4, NetHeader { gso_size: 431, ..h4 }),
        ("segments beyond the frame", &tcp4, NetHeader { gso_size: 3055, ..h4 }),
        ("IPv6 as IPv4", &tcp6, NetHeader { gso_type: NetHeader::GSO_TCPV4, ..h6 }),
        ("IPv4 as IPv6", &tcp4, NetHeader { gso_type: NetHeader::GSO_TCPV6, ..h4 }),
        ("UDP as TCP", &udp, NetHeader { gso_type: NetHeader::GSO_TCPV4, gso_size: 1448, ..hu }),
        (
            "UDP fragmentation, which is not offered",
            &udp,
            NetHeader { gso_type: NetHeader::GSO_UDP, gso_size: 1448, ..hu },
        ),
        ("TCP as UDP", &tcp4, NetHeader { gso_type: NetHeader::GSO_UDP_L4, ..h4 }),
        (
            "datagrams that multiply work",
            &udp,
            NetHeader { gso_type: NetHeader::GSO_UDP_L4, gso_size: 19, ..hu },
        ),
        (
            "several messages of DHCP",
            &dhcp,
            NetHeader { gso_type: NetHeader::GSO_UDP_L4, gso_size: 300, ..hu },
        ),
        (
            "datagrams of nothing",
            &udp,
            NetHeader { gso_type: NetHeader::GSO_UDP_L4, gso_size: 0, ..hu },
        ),
        (
            "datagrams with ECN",
            &udp,
            NetHeader {
                gso_type: NetHeader::GSO_UDP_L4 | NetHeader::GSO_ECN,
                gso_size: 1448,
                ..hu
            },
        ),
        ("an unknown kind", &tcp4, NetHeader { gso_type: 0x7f, ..h4 }),
        ("ECN of nothing", &tcp4, NetHeader { gso_type: NetHeader::GSO_ECN, ..plain }),
        ("a fragment", &fragment, plain),
        ("an IP length beyond the frame", &longer, plain),
        ("segmentation of a part", &shorter, h4),
        ("a TCP header that is too short", &no_header, plain),
        ("a TCP header beyond the packet", &header_beyond, plain),
        ("not IP", &lldp, plain),
        ("a checksum in an identifier", &icmp, NetHeader { csum_offset: 4, ..plain }),
        ("a checksum in a message's kind", &icmp, NetHeader { csum_offset: 0, ..plain }),
        (
            "a checksum in the verification tag's place",
            &sctp,
            NetHeader { csum_offset: 8, ..plain },
        ),
        ("a checksum behind the packet", &other, NetHeader { csum_offset: 99, ..plain }),
        ("a checksum where nothing is read", &far, NetHeader { csum_offset: 230, ..plain }),
        (
            "a header behind everything that is read",
            &tags,
            NetHeader { csum_start: 34 + 280, ..plain },
        ),
        ("nothing but Ethernet", &tcp4[..14], plain),
    ];
    for (what, frame, header) in bad {
        assert_eq!(send(&mut host, frame, header), [], "{what}");
        let moved: Vec<String> = host.moved().into_keys().collect();
        assert_eq!(moved, ["a.drop.bad-offload", "a.in.bytes", "a.in.packets"], "{what}");
    }
    // Headers behind 128 bytes are read: so many tags are strange, but no lie.
    let tags: Vec<u8> = [&tcp4[..12], &[0x81, 0, 0, 1].repeat(30), &tcp4[12..]].concat();
    let header = NetHeader { csum_start: 34 + 120, ..h4 };
    assert_eq!(
        send(&mut host, &tags, header),
        [(NetHeader { num_buffers: 2, hdr_len: 174, ..header }, tags)]
    );
}

#[test]
fn a_frame_that_no_buffer_holds_is_dropped_by_name() {
    let mut host = pair(&receiver("small", PLAIN).buffers(256, 1000));
    let fits = build::ethernet(A, B).payload(0x88b5, &data(974));
    let large = build::ethernet(A, B).payload(0x88b5, &data(975));
    for _ in 0..300 {
        assert_eq!(send(&mut host, &large, NetHeader::default()), []);
    }
    assert_eq!(host.moved()["b.drop.rx-too-large"], 300);
    // And no buffer was lost by that.
    assert_eq!(send(&mut host, &fits, NetHeader::default()).len(), 1);
}

/// Segments that do not fit any more are one drop: of the frame.
#[test]
fn a_large_segment_that_fits_in_part_is_one_drop() {
    let mut host = pair(&receiver("three buffers", PLAIN).buffers(4, 2000));
    let (frame, header) = large(false, 1448 * 7);
    assert_eq!(send(&mut host, &frame, header).len(), 4);
    let moved = host.moved();
    assert_eq!((moved["b.out.packets"], moved["b.drop.ring-full"]), (4, 1));
}
