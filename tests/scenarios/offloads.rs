//! Checksums and large segments: unchanged between guests that take them, completed in software for
//! guests that do not, and dropped when the virtio-net header does not fit the frame.

use butterfly_guest_driver::{GuestConfig, Placement, Refill, Shape, VmConfig};
use butterfly_packet::{
    build::{self, Checksum, Ip, Tcp},
    tcp,
};
use butterfly_tests::{
    Host, Nic, Station,
    frames::{Choices, Packet, mac, pattern},
    station::{features, machine, usual},
};
use butterfly_vhost::net::{Features, NetHeader};

/// Length of a frame with the largest IPv6 packet behind a VLAN tag.
const LARGEST: usize = 14 + 4 + 40 + 65535;

const A: u32 = 1;
const B: u32 = 2;

fn v4() -> Ip {
    build::ethernet(mac(A), mac(B)).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).checksum(Checksum::Partial)
}

fn v6() -> Ip {
    let [a, b] =
        ["fd00::a", "fd00:1:2:3:4:5:6:b"].map(|ip| ip.parse::<std::net::Ipv6Addr>().unwrap());
    build::ethernet(mac(A), mac(B)).ipv6(a, b).checksum(Checksum::Partial)
}

fn tagged_v4() -> Ip {
    build::ethernet(mac(A), mac(B))
        .vlan(7)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .checksum(Checksum::Partial)
}

/// Returns a header that asks for the checksum of this frame.
fn wants_checksum(frame: &[u8]) -> NetHeader {
    let packet = Packet::read(frame);
    let start = frame.len() - packet.segment.len();
    let offset = if packet.protocol == 6 { 16 } else { 6 };
    NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        csum_start: start as u16,
        csum_offset: offset,
        ..NetHeader::default()
    }
}

/// Returns a header that asks for segments of `size` bytes of payload.
fn wants_segments(frame: &[u8], size: u16) -> NetHeader {
    let packet = Packet::read(frame);
    let gso_type = if packet.v4 { NetHeader::GSO_TCPV4 } else { NetHeader::GSO_TCPV6 };
    let hdr_len = (frame.len() - packet.tcp_payload().len()) as u16;
    NetHeader { gso_type, gso_size: size, hdr_len, ..wants_checksum(frame) }
}

/// Returns a header without the number of buffers, which depends on the receiver's ring.
fn on_any_ring(header: NetHeader) -> NetHeader {
    NetHeader { num_buffers: 0, ..header }
}

/// Returns frames with partial checksums: every kind of packet, with this payload.
fn partial_frames(payload: &[u8]) -> Vec<Vec<u8>> {
    let segment =
        Tcp { options: &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2], ..Tcp::new(4000, 80, tcp::ACK) };
    vec![
        v4().udp(4000, 53, payload),
        v4().tcp(&Tcp::new(4000, 80, tcp::ACK), payload),
        v4().options(&[0x94, 4, 0, 0]).tcp(&segment, payload),
        v4().options(&[1; 40]).udp(1, 2, payload),
        tagged_v4().tcp(&segment, payload),
        v6().udp(4000, 53, payload),
        v6().tcp(&segment, payload),
        v6().extension(0, &[5, 2, 0, 0]).extension(60, &[1, 30]).tcp(&segment, payload),
    ]
}

/// Returns receivers of all kinds: different features and different buffers.
fn receivers() -> Vec<(Features, VmConfig)> {
    let kinds = [
        features::LINUX,
        features::MODERN.with(Features::GUEST_CSUM),
        features::MODERN,
        Features::VERSION_1,
        Features::NONE,
        Features::GUEST_CSUM.with(Features::GUEST_TSO4),
        Features::VERSION_1
            .with(features::CHECKSUM)
            .with(Features::GUEST_TSO4)
            .with(Features::GUEST_TSO6)
            .with(Features::GUEST_ECN),
    ];
    let plain = kinds.map(|features| (features, machine(features, LARGEST)));
    // Buffers that end in the middle of headers and at odd bytes of the payload.
    let mut pieces = machine(features::MODERN, LARGEST);
    pieces.guest.rx_buffer = 611;
    pieces.guest.rx_shape =
        Shape { header_apart: false, pieces: 5, placement: Placement::Indirect };
    let mut odd = machine(Features::VERSION_1, LARGEST);
    odd.guest.rx_shape = Shape { header_apart: true, pieces: 18, placement: Placement::Direct };
    odd.guest.rx_size = 4096; // 128 chains: all segments of a frame at once
    plain.into_iter().chain([(features::MODERN, pieces), (Features::VERSION_1, odd)]).collect()
}

/// Returns two senders: one descriptor per frame, and many.
fn senders() -> [VmConfig; 2] {
    let plain = machine(features::LINUX, LARGEST);
    let mut pieces = machine(features::LINUX, LARGEST);
    pieces.guest.tx_shape =
        Shape { header_apart: true, pieces: 17, placement: Placement::Indirect };
    [plain, pieces]
}

/// Runs `each` for every sender with every receiver.
fn all_pairs(mut each: impl FnMut(&Host, &mut Station, &mut Station, Features)) {
    let host = Host::new();
    for sender in senders() {
        let mut a = host.station(&Nic::bypass("a", mac(A), 1), &sender);
        for (features, receiver) in receivers() {
            println!(
                "to {features:?}, {:?} of {} bytes",
                receiver.guest.rx_shape, receiver.guest.rx_buffer
            );
            let mut b = host.station(&Nic::bypass("b", mac(B), 1), &receiver);
            each(&host, &mut a, &mut b, features);
            assert!(host.show("b").dropped().is_empty(), "{:?}", host.show("b").dropped());
            host.remove("b");
        }
        assert!(host.show("a").dropped().is_empty(), "{:?}", host.show("a").dropped());
        host.remove("a");
    }
}

#[test]
fn partial_checksums() {
    let mut choices = Choices::new(1);
    all_pairs(|_, a, b, features| {
        for len in [
            0,
            1,
            2,
            17,
            60,
            61,
            62,
            63,
            100,
            1000,
            1459,
            1460,
            8999,
            choices.between(0, 8900),
            60_001,
        ] {
            for frame in partial_frames(&pattern(len as u64, len)) {
                let asked = wants_checksum(&frame);
                a.send_with(&frame, asked);
                let (header, received) = b.receive_with();
                if features.has(Features::GUEST_CSUM) {
                    assert_eq!(on_any_ring(header), asked);
                    assert!(received == frame, "a frame that needs nothing was changed");
                    continue;
                }
                assert_eq!(on_any_ring(header), NetHeader::default());
                let (packet, before) = (Packet::read(&received), Packet::read(&frame));
                assert!(
                    packet.is_complete(),
                    "checksum {:04x} of {} bytes",
                    packet.checksum(),
                    received.len()
                );
                // Only the checksum differs.
                assert_eq!((packet.ip, packet.segment.len()), (before.ip, before.segment.len()));
                let mut restored = received.clone();
                let at = usize::from(asked.csum_start + asked.csum_offset);
                restored[at..at + 2].copy_from_slice(&before.checksum().to_be_bytes());
                assert!(restored == frame);
            }
        }
    });
}

/// A computed UDP checksum of 0 is written as 0xffff, as 0 means none (RFC 768). TCP has no such
/// rule.
#[test]
fn a_checksum_of_zero() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &machine(features::LINUX, 9000));
    let mut b = host.station(&Nic::bypass("b", mac(B), 1), &machine(features::MODERN, 9000));
    for ip in [v4(), v6()] {
        for protocol in [6, 17] {
            let build = |payload: &[u8]| match protocol {
                6 => ip.tcp(&Tcp::new(1, 2, tcp::ACK), payload),
                _ => ip.udp(1, 2, payload),
            };
            // A payload that ends in its own checksum, instead of in 0, has the checksum 0.
            let mut payload = pattern(3, 100);
            payload.extend([0, 0]);
            let completed = complete(&mut a, &mut b, &build(&payload));
            payload.truncate(100);
            payload.extend(completed.to_be_bytes());
            let zero = complete(&mut a, &mut b, &build(&payload));
            assert_eq!(zero, if protocol == 17 { 0xffff } else { 0 });
        }
    }
}

/// Sends a frame with a partial checksum to a guest that needs a complete one. Returns the checksum
/// that arrives.
fn complete(a: &mut Station, b: &mut Station, frame: &[u8]) -> u16 {
    a.send_with(frame, wants_checksum(frame));
    let received = b.receive();
    assert!(Packet::read(&received).is_complete());
    Packet::read(&received).checksum()
}

/// Returns large TCP segments: (frame, segment size).
fn large_frames() -> Vec<(Vec<u8>, u16)> {
    let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let flags = tcp::ACK | tcp::PSH | tcp::FIN;
    let segment = Tcp {
        sequence: 0xffff_8000,
        acknowledgement: 77,
        options: &options,
        ..Tcp::new(4000, 80, flags)
    };
    let long_options = Tcp { options: &[1; 40], ..segment };
    let data = pattern(64, 65535);
    let mut large = Vec::new();
    for (ip, room) in
        [(v4().identification(0xfff0), 65535 - 20), (v6(), 65535), (tagged_v4(), 65535 - 20)]
    {
        large.push((ip.tcp(&segment, &data[..room - 32]), 1448));
        large.push((ip.tcp(&segment, &data[..room - 32]), 8948));
        large.push((ip.tcp(&long_options, &data[..room - 60]), 536));
        large.push((ip.tcp(&segment, &data[..2897]), 1448));
        large.push((ip.tcp(&segment, &data[..2896]), 1448));
        large.push((ip.tcp(&segment, &data[..1449]), 1448));
        large.push((ip.tcp(&segment, &data[..4001]), 432));
    }
    large.push((v4().options(&[1; 8]).tcp(&segment, &data[..30_000]), 1400));
    large.push((v6().extension(60, &[1, 4]).tcp(&segment, &data[..30_000]), 1400));
    large
}

/// Checks that `packets` are `frame` cut into pieces of `size` bytes by the rules of TCP.
#[track_caller]
fn assert_segments(packets: &[(NetHeader, Vec<u8>)], frame: &[u8], size: usize, complete: bool) {
    let whole = Packet::read(frame);
    let payload = whole.tcp_payload();
    let link = frame.len() - whole.ip.len() - whole.segment.len();
    let mut at = 0;
    for (index, (header, bytes)) in packets.iter().enumerate() {
        let packet = Packet::read(bytes);
        let (first, last) = (index == 0, index + 1 == packets.len());
        assert_eq!(bytes[..link], frame[..link], "Ethernet header");
        let len = packet.tcp_payload().len();
        assert_eq!(
            len,
            if last { payload.len() - at } else { size },
            "segment {index} of {}",
            packets.len()
        );
        assert!(packet.tcp_payload() == &payload[at..at + len], "payload of segment {index}");
        assert_eq!(packet.sequence(), whole.sequence().wrapping_add(at as u32));
        let once_last = if last { 0 } else { tcp::FIN | tcp::PSH };
        let once_first = if first { 0 } else { tcp::CWR };
        assert_eq!(
            packet.flags(),
            whole.flags() & !once_last & !once_first,
            "flags of segment {index}"
        );
        if complete {
            assert_eq!(on_any_ring(*header), NetHeader::default());
            assert!(packet.is_complete(), "checksum of segment {index}");
        } else {
            assert_eq!(on_any_ring(*header), wants_checksum(bytes));
            assert!(packet.is_partial(), "partial checksum of segment {index}");
        }
        // All other fields are unchanged.
        let (mut ip, mut original) = (packet.ip.to_vec(), whole.ip.to_vec());
        if packet.v4 {
            assert_eq!(packet.identification(), whole.identification().wrapping_add(index as u16));
            for header in [&mut ip, &mut original] {
                header[2..6].fill(0);
                header[10..12].fill(0);
            }
        } else {
            ip[4..6].fill(0);
            original[4..6].fill(0);
        }
        assert_eq!(ip, original, "IP header of segment {index}");
        let rest = |packet: &Packet<'_>| {
            let mut header = packet.segment[..packet.tcp_header()].to_vec();
            header[4..8].fill(0);
            header[13] = 0;
            header[16..18].fill(0);
            header
        };
        assert_eq!(rest(&packet), rest(&whole), "TCP header of segment {index}");
        at += len;
    }
    assert_eq!(at, payload.len());
}

#[test]
fn large_segments() {
    all_pairs(|_, a, b, features| {
        for (frame, size) in large_frames() {
            for ecn in [0, NetHeader::GSO_ECN] {
                let mut frame = frame.clone();
                let mut asked = wants_segments(&frame, size);
                asked.gso_type |= ecn;
                if ecn != 0 {
                    let flags = usize::from(asked.csum_start) + 13;
                    frame[flags] |= tcp::CWR;
                }
                let v4 = Packet::read(&frame).v4;
                let needed = if v4 { Features::GUEST_TSO4 } else { Features::GUEST_TSO6 };
                let needed =
                    needed.with(if ecn == 0 { Features::NONE } else { Features::GUEST_ECN });
                let partial = features.has(Features::GUEST_CSUM);
                a.send_with(&frame, asked);
                if partial && features.has(needed) {
                    let (header, received) = b.receive_with();
                    assert_eq!(on_any_ring(header), asked);
                    assert!(received == frame, "a frame that needs nothing was changed");
                    continue;
                }
                let count = Packet::read(&frame).tcp_payload().len().div_ceil(size.into());
                let packets: Vec<_> = (0..count).map(|_| b.receive_with()).collect();
                assert_segments(&packets, &frame, size.into(), !partial);
            }
        }
    });
}

/// Many large segments both ways at once, between guests that take them: they arrive unchanged,
/// with all shapes of chains.
#[test]
fn large_segments_both_ways() {
    let host = Host::new();
    let [plain, pieces] = senders();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &plain);
    let mut b = host.station(&Nic::bypass("b", mac(B), 1), &pieces);
    let there: Vec<_> = large_frames();
    let back: Vec<(Vec<u8>, u16)> = there
        .iter()
        .map(|(frame, size)| {
            let mut frame = frame.clone();
            frame[..6].copy_from_slice(&mac(A).0);
            frame[6..12].copy_from_slice(&mac(B).0);
            (frame, *size)
        })
        .collect();
    for _ in 0..10 {
        for ((frame, size), (reply, _)) in there.iter().zip(&back) {
            let asked = wants_segments(frame, *size);
            a.send_with(frame, asked);
            b.send_with(reply, asked);
            for (station, sent) in [(&mut b, frame), (&mut a, reply)] {
                let (header, received) = station.receive_with();
                assert_eq!((on_any_ring(header), &received == sent), (asked, true));
            }
        }
    }
    assert!(host.show("a").dropped().is_empty() && host.show("b").dropped().is_empty());
}

/// A large segment whose payload fits one segment arrives as a plain frame with a partial checksum.
#[test]
fn one_segment_is_no_large_one() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &machine(features::LINUX, 9000));
    let mut b = host.station(&Nic::bypass("b", mac(B), 1), &machine(features::LINUX, 9000));
    for len in [400, 1000, 1448] {
        let frame = v4().tcp(&Tcp::new(1, 2, tcp::ACK), &pattern(1, len));
        let mut asked = wants_segments(&frame, 1448);
        asked.gso_size = asked.gso_size.min(frame.len() as u16);
        a.send_with(&frame, asked);
        let (header, received) = b.receive_with();
        assert_eq!((on_any_ring(header), received == frame), (wants_checksum(&frame), true));
    }
}

/// Each receiver of a flooded frame gets it as its own features allow.
#[test]
fn a_flood_to_different_receivers() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &machine(features::LINUX, LARGEST));
    let nic = |n: u32| Nic::bypass(&format!("r{n}"), mac(100 + n), 1);
    let mut takes_all = host.station(&nic(1), &machine(features::LINUX, LARGEST));
    let mut takes_partial =
        host.station(&nic(2), &machine(features::MODERN.with(Features::GUEST_CSUM), LARGEST));
    let mut takes_nothing = host.station(&nic(3), &machine(features::MODERN, LARGEST));
    let mut before = host.counters();
    for (frame, size) in large_frames() {
        // To an unknown address.
        let asked = wants_segments(&frame, size);
        let count = Packet::read(&frame).tcp_payload().len().div_ceil(size.into());
        a.send_with(&frame, asked);
        let (header, received) = takes_all.receive_with();
        assert_eq!((on_any_ring(header), received == frame), (asked, true));
        for (station, complete) in [(&mut takes_partial, false), (&mut takes_nothing, true)] {
            let packets: Vec<_> = (0..count).map(|_| station.receive_with()).collect();
            assert_segments(&packets, &frame, size.into(), complete);
        }
        host.settle(&mut [&mut a]);
        let n = count as u64;
        host.moved(
            &mut before,
            &[("a.in", 1), ("a.flooded", 1), ("r1.out", 1), ("r2.out", n), ("r3.out", n)],
        );
    }
}

/// If a receiver's ring has room for some of the segments only, the rest is one drop.
#[test]
fn segments_meet_a_full_ring() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &machine(features::LINUX, LARGEST));
    let mut config = machine(features::MODERN, LARGEST);
    config.guest = GuestConfig { refill: Refill::Manually, rx_fill: Some(5), ..config.guest };
    let mut b = host.station(&Nic::bypass("b", mac(B), 1), &config);
    let frame = v4().tcp(&Tcp::new(1, 2, tcp::ACK), &pattern(1, 14_480));
    a.send_with(&frame, wants_segments(&frame, 1448));
    host.settle(&mut [&mut a]);
    let received = b.pending();
    assert_eq!(received.len(), 5);
    assert!(received.iter().all(|frame| Packet::read(frame).is_complete()));
    let show = host.show("b");
    assert_eq!(
        (show.delivered.0, show.dropped().into_iter().collect::<Vec<_>>()),
        (5, vec![("ring-full", 1)])
    );
}

/// The switch does not pass on header fields that the sender's flags do not ask for.
#[test]
fn nothing_of_the_senders_header_is_passed_on() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &machine(features::LINUX, 9000));
    let mut b = host.station(&Nic::bypass("b", mac(B), 1), &machine(features::LINUX, 9000));
    let frame = v4().tcp(&Tcp::new(1, 2, tcp::ACK), &pattern(1, 1000));
    let junk = NetHeader {
        hdr_len: 0xffff,
        gso_size: 0xffff,
        csum_start: 0xffff,
        csum_offset: 0xffff,
        num_buffers: 0xffff,
        ..NetHeader::default()
    };
    for flags in [0, NetHeader::FLAG_DATA_VALID, 4, 0x80, 0xfe] {
        a.send_with(&frame, NetHeader { flags, ..junk });
        let (header, received) = b.receive_with();
        assert_eq!(
            (header, received == frame),
            (NetHeader { num_buffers: 1, ..NetHeader::default() }, true),
            "flags {flags:#x}"
        );
    }
    // Of fields that it asked for, only the needed ones are passed on.
    let asked = NetHeader {
        flags: 0xff,
        gso_size: 0xffff,
        hdr_len: 0xffff,
        num_buffers: 0xffff,
        ..wants_checksum(&frame)
    };
    a.send_with(&frame, asked);
    assert_eq!(on_any_ring(b.receive_with().0), wants_checksum(&frame));
    let large = v4().tcp(&Tcp::new(1, 2, tcp::ACK), &pattern(1, 5000));
    a.send_with(
        &large,
        NetHeader { flags: 0xff, hdr_len: 3, num_buffers: 9, ..wants_segments(&large, 1448) },
    );
    assert_eq!(on_any_ring(b.receive_with().0), wants_segments(&large, 1448));
}

/// Returns headers that do not fit their frames: (the fault, header, frame).
fn lies() -> Vec<(&'static str, NetHeader, Vec<u8>)> {
    let segment = Tcp::new(1, 2, tcp::ACK);
    let data = pattern(1, 5000);
    let (t4, t6) = (v4().tcp(&segment, &data), v6().tcp(&segment, &data));
    let (u4, u6) = (v4().udp(1, 2, &data), v6().udp(1, 2, &data));
    let sum = wants_checksum;
    let gso = |frame: &[u8]| wants_segments(frame, 1448);
    let mut lies = vec![
        ("segments without a partial checksum", NetHeader { flags: 0, ..gso(&t4) }, t4.clone()),
        ("the wrong family", NetHeader { gso_type: NetHeader::GSO_TCPV6, ..gso(&t4) }, t4.clone()),
        ("the wrong family", NetHeader { gso_type: NetHeader::GSO_TCPV4, ..gso(&t6) }, t6.clone()),
        (
            "segments of UDP",
            NetHeader { gso_type: NetHeader::GSO_TCPV4, gso_size: 1448, ..sum(&u4) },
            u4.clone(),
        ),
        (
            "fragments of UDP",
            NetHeader { gso_type: NetHeader::GSO_UDP, gso_size: 1448, ..sum(&u4) },
            u4.clone(),
        ),
        ("datagrams of TCP", NetHeader { gso_type: NetHeader::GSO_UDP_L4, ..gso(&t4) }, t4.clone()),
        (
            "datagrams of a byte",
            NetHeader { gso_type: NetHeader::GSO_UDP_L4, gso_size: 1, ..sum(&u6) },
            u6.clone(),
        ),
        ("an unknown kind of segments", NetHeader { gso_type: 0x7f, ..gso(&t4) }, t4.clone()),
        ("ECN of nothing", NetHeader { gso_type: NetHeader::GSO_ECN, ..gso(&t4) }, t4.clone()),
        ("segments of nothing", NetHeader { gso_size: 0, ..gso(&t4) }, t4.clone()),
        ("segments of a byte", NetHeader { gso_size: 1, ..gso(&t4) }, t4.clone()),
        ("segments of 431 bytes", NetHeader { gso_size: 431, ..gso(&t6) }, t6.clone()),
        (
            "segments longer than the frame",
            NetHeader { gso_size: t4.len() as u16 + 1, ..gso(&t4) },
            t4.clone(),
        ),
        ("segments of 64 KiB", NetHeader { gso_size: 0xffff, ..gso(&t4) }, t4.clone()),
    ];
    for frame in [&t4, &t6, &u4, &u6] {
        let header = sum(frame);
        for start in [
            0,
            1,
            13,
            14,
            header.csum_start - 1,
            header.csum_start + 1,
            header.csum_start + 20,
            frame.len() as u16,
            0xffff,
        ] {
            lies.push((
                "where the checksum starts",
                NetHeader { csum_start: start, ..header },
                frame.clone(),
            ));
        }
        for offset in [
            0,
            2,
            header.csum_offset ^ 1,
            header.csum_offset + 2,
            if header.csum_offset == 16 { 6 } else { 16 },
            0xffff,
        ] {
            lies.push((
                "where the checksum goes",
                NetHeader { csum_offset: offset, ..header },
                frame.clone(),
            ));
        }
        // The frame is wrong, too.
        let edit = |at: usize, bytes: &[u8]| {
            let mut changed = frame.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            changed
        };
        let v4 = Packet::read(frame).v4;
        let length = if v4 { 16 } else { 18 };
        let claimed = u16::from_be_bytes([frame[length], frame[length + 1]]);
        lies.push((
            "an IP length beyond the frame",
            header,
            edit(length, &(claimed + 1).to_be_bytes()),
        ));
        lies.push((
            "an IP length without a transport header",
            header,
            edit(length, &(if v4 { 20u16 } else { 0 }).to_be_bytes()),
        ));
        lies.push(("another version", header, edit(14, &[0x55])));
        if v4 {
            lies.push(("a fragment", header, edit(20, &[0x20, 0])));
            lies.push(("a last fragment", header, edit(20, &[0, 1])));
            lies.push(("a longer IP header", header, edit(14, &[0x46])));
            lies.push(("a shorter IP header", header, edit(14, &[0x44])));
        }
        if header.csum_offset == 16 {
            let offset = usize::from(header.csum_start) + 12;
            lies.push(("a TCP header of 16 bytes", header, edit(offset, &[0x40])));
            // A header that ends behind the packet.
            let short = if v4 {
                self::v4().tcp(&segment, &data[..8])
            } else {
                v6().tcp(&segment, &data[..8])
            };
            let mut long_header = short.clone();
            long_header[offset] = 0xf0;
            lies.push(("a TCP header longer than its packet", sum(&short), long_header));
        }
        let mut padded = frame.clone();
        padded.extend([0; 7]);
        if header.csum_offset == 16 {
            lies.push(("segments with something behind the packet", gso(frame), padded));
        }
    }
    let arp = build::ethernet(mac(A), mac(B)).arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
    lies.push(("a checksum of ARP", sum(&t4), arp));
    let fragment = v6().fragment(1, 0, true).tcp(&segment, &data);
    lies.push(("a fragment of IPv6", NetHeader { csum_start: 62, ..sum(&t6) }, fragment));
    let far = build::ethernet(mac(A), mac(B));
    let far = (0..60)
        .fold(far, |link, tag| link.vlan(tag))
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .tcp(&segment, &data);
    lies.push((
        "headers beyond 256 bytes",
        NetHeader { csum_start: 14 + 240 + 20, ..sum(&t4) },
        far,
    ));
    lies
}

#[test]
fn lies_are_dropped() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(A), 1), &machine(features::LINUX, 9000));
    let mut b = host.station(&Nic::bypass("b", mac(B), 1), &machine(features::LINUX, 9000));
    let _plain = host.station(&Nic::bypass("c", mac(3), 1), &usual());
    let mut before = host.counters();
    for (what, header, frame) in lies() {
        println!("{what}: {header:?}");
        a.send_with(&frame, header);
        host.settle(&mut [&mut a]);
        assert_eq!(b.pending().len(), 0, "{what}");
        host.moved(&mut before, &[("a.in", 1), ("a.drop.bad-offload", 1)]);
        // With an empty header the switch does not look into the same frame, and it passes between
        // unfiltered vnics.
        a.send(&frame);
        b.expect(&frame);
        host.settle(&mut [&mut a]);
        host.moved(&mut before, &[("a.in", 1), ("b.out", 1)]);
    }
}
