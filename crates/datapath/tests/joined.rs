//! Packet walks of consecutive TCP segments from another host: a guest that takes large segments
//! gets them as one frame, and a stream that was cut and joined is that stream.

use std::net::IpAddr;

use butterfly_datapath::{
    Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
};
use butterfly_packet::{
    build::{self, Tcp},
    checksum::Sum,
    tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG},
};
use butterfly_vhost::net::{Features, NetHeader};
use proptest::prelude::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const VNI: u32 = 7;

/// A host with the guest "b", which takes this.
fn host(features: Features, config: GuestConfig) -> Host {
    let tunnel = TunnelConfig::new(IpAddr::from([192, 168, 0, 2]), Mac([2, 0xbf, 0, 0, 0, 2]));
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&tunnel)).unwrap();
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    host.declare("b", B, VNI, &policy).unwrap();
    host.attach("b", features, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    host.moved();
    host
}

fn linux() -> Host {
    host(LINUX, GuestConfig::default())
}

/// Has frames arrive from the first host, in one batch, and returns what "b" got.
fn arrive(host: &mut Host, frames: &[Vec<u8>]) -> Vec<(NetHeader, Vec<u8>)> {
    let link = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2]));
    let outer = link.ipv4([192, 168, 0, 1], [192, 168, 0, 2]);
    let wire = host.wire().unwrap();
    for frame in frames {
        wire.enqueue(&outer.vxlan(49_999, VNI, frame), NetHeader::default()).unwrap();
    }
    wire.flush();
    host.settle();
    host.received().unwrap().remove("b").unwrap_or_default()
}

/// A segment as it is sent. What is not said is that of the one before.
#[derive(Clone, Debug)]
struct Segment {
    v6: bool,
    vlan: bool,
    sequence: u32,
    identification: u16,
    tos: u8,
    ttl: u8,
    fixed: bool,
    flags: u8,
    window: u16,
    acknowledgement: u32,
    options: Vec<u8>,
    source: u8,
    port: u16,
    wrong: bool,
    data: Vec<u8>,
}

impl Segment {
    fn new(v6: bool, len: usize) -> Segment {
        Segment {
            v6,
            vlan: false,
            sequence: u32::MAX - 2500,
            identification: 0xfffe,
            tos: 0,
            ttl: 64,
            fixed: false,
            flags: ACK,
            window: 500,
            acknowledgement: 77,
            options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            source: 1,
            port: 4000,
            wrong: false,
            data: (0..len).map(|i| (i * 7 % 251) as u8).collect(),
        }
    }

    fn after(&self) -> Segment {
        Segment {
            sequence: self.sequence.wrapping_add(self.data.len() as u32),
            identification: self.identification.wrapping_add(1),
            data: self.data.iter().map(|byte| byte.wrapping_add(3)).collect(),
            ..self.clone()
        }
    }

    fn frame(&self) -> Vec<u8> {
        let link = build::ethernet(A, B);
        let link = if self.vlan { link.vlan(9) } else { link };
        let last = [10, 0, 0, self.source];
        let ip = if self.v6 {
            let source = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.source];
            link.ipv6(source, [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9])
        } else {
            link.ipv4(last, [10, 0, 0, 9]).identification(self.identification)
        };
        let ip = ip.ttl(self.ttl).tos(self.tos);
        let ip = if self.fixed && !self.v6 { ip.dont_fragment() } else { ip };
        let tcp = Tcp {
            sequence: self.sequence,
            acknowledgement: self.acknowledgement,
            window: self.window,
            options: &self.options,
            ..Tcp::new(self.port, 80, self.flags)
        };
        let mut frame = ip.tcp(&tcp, &self.data);
        if self.wrong {
            *frame.last_mut().unwrap() ^= 0x40;
        }
        frame
    }
}

/// Cuts a frame as a guest's segmentation does, by the header alone: what the guest's stack takes
/// for one packet are these. Frames without an offload are returned as they are.
fn cut(net: &NetHeader, frame: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(net.flags & NetHeader::FLAG_DATA_VALID, 0, "no sum is vouched for by a mark");
    if net.gso_type == NetHeader::GSO_NONE {
        assert_eq!(net.flags, 0);
        return vec![frame.to_vec()];
    }
    assert_eq!(net.flags, NetHeader::FLAG_NEEDS_CSUM);
    assert_eq!(net.csum_offset, 16);
    let (l4, payload) = (usize::from(net.csum_start), usize::from(net.hdr_len));
    let v6 = net.gso_type == NetHeader::GSO_TCPV6;
    let l3 = l4 - if v6 { 40 } else { 20 };
    let addresses = l4 - if v6 { 32 } else { 8 }..l4;
    let pseudo = |frame: &[u8], len: usize| {
        Sum::of(&frame[addresses.clone()]).push_u16(6).push(&(len as u32).to_be_bytes())
    };
    let own = u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]);
    assert_eq!(own, pseudo(frame, frame.len() - l4).fold(), "the pseudo header's sum");
    let length = l3 + if v6 { 4 } else { 2 };
    let whole = usize::from(u16::from_be_bytes([frame[length], frame[length + 1]]));
    assert_eq!(whole + if v6 { l4 } else { l3 }, frame.len(), "the packet's length");
    let chunks: Vec<&[u8]> = frame[payload..].chunks(usize::from(net.gso_size)).collect();
    let count = chunks.len();
    assert!(count > 1, "one segment is no large one");
    let mut offset = 0;
    let mut all = Vec::new();
    for (n, chunk) in chunks.into_iter().enumerate() {
        let mut one = [&frame[..payload], chunk].concat();
        let len = one.len() - l4;
        if v6 {
            one[l3 + 4..l3 + 6].copy_from_slice(&(len as u16).to_be_bytes());
        } else {
            one[l3 + 2..l3 + 4].copy_from_slice(&((len + 20) as u16).to_be_bytes());
            let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]).wrapping_add(n as u16);
            one[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            assert!(Sum::of(&frame[l3..l4]).is_valid());
            one[l3 + 10..l3 + 12].fill(0);
            let checksum = Sum::of(&one[l3..l4]).checksum();
            one[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        let sequence = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
        one[l4 + 4..l4 + 8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
        offset += chunk.len() as u32;
        if n + 1 < count {
            one[l4 + 13] &= !PSH;
        }
        one[l4 + 16..l4 + 18].fill(0);
        let checksum = pseudo(&one, len).push(&one[l4..]).checksum();
        one[l4 + 16..l4 + 18].copy_from_slice(&checksum.to_be_bytes());
        all.push(one);
    }
    all
}

fn cut_all(got: &[(NetHeader, Vec<u8>)]) -> Vec<Vec<u8>> {
    got.iter().flat_map(|(net, frame)| cut(net, frame)).collect()
}

fn stream(first: Segment, count: usize) -> Vec<Segment> {
    std::iter::successors(Some(first), |last| Some(last.after())).take(count).collect()
}

fn frames(segments: &[Segment]) -> Vec<Vec<u8>> {
    segments.iter().map(Segment::frame).collect()
}

#[test]
fn segments_in_a_row_become_one_frame() {
    for v6 in [false, true] {
        for vlan in [false, true] {
            let mut segments = stream(Segment { vlan, ..Segment::new(v6, 1000) }, 12);
            // The last one is shorter, and pushes.
            segments[11].data.truncate(333);
            segments[11].flags |= PSH;
            let sent = frames(&segments);
            let mut host = linux();
            let got = arrive(&mut host, &sent);
            assert_eq!(got.len(), 1, "IPv6: {v6}, VLAN: {vlan}");
            assert_eq!(usize::from(got[0].0.gso_size), 1000);
            assert_eq!(cut_all(&got), sent);
            // They count as what they are.
            let moved = host.moved();
            let bytes: usize = sent.iter().map(Vec::len).sum();
            assert_eq!((moved["b.out.packets"], moved["b.out.bytes"]), (12, bytes as u64));
        }
    }
}

#[test]
fn what_is_more_than_a_packet_can_be_is_several() {
    let segments = stream(Segment::new(false, 1400), 60);
    let sent = frames(&segments);
    let got = arrive(&mut linux(), &sent);
    // 46 of 1,400 bytes and 52 of headers are 64,452; the uplink gives up to 64 frames at a time.
    assert!(got[0].1.len() > 64_000 && got.len() <= 4, "{:?}", got.len());
    assert_eq!(cut_all(&got), sent);
}

/// A change in the fourth of six segments, and how many frames then come.
type Change = (&'static str, fn(&mut Segment), usize);

#[test]
fn what_says_more_than_go_on_is_not_joined() {
    // The segments after it go on with the changed ones, so 3 and 3 are joined, or 3, 1 and 2.
    let changes: &[Change] = &[
        ("nothing", |_| {}, 1),
        ("TOS", |s| s.tos = 1, 2),
        ("TTL", |s| s.ttl = 63, 2),
        ("window", |s| s.window = 501, 2),
        ("acknowledgement", |s| s.acknowledgement = 78, 2),
        ("options", |s| s.options[7] = 9, 2),
        ("fewer options", |s| s.options.truncate(0), 2),
        ("a gap", |s| s.sequence = s.sequence.wrapping_add(1), 2),
        ("an overlap", |s| s.sequence = s.sequence.wrapping_sub(1), 2),
        ("another source", |s| s.source = 2, 2),
        ("another port", |s| s.port = 4001, 2),
        ("another VLAN", |s| s.vlan = true, 2),
        ("longer", |s| s.data.resize(1300, 7), 2),
    ];
    let alone: &[Change] = &[
        ("FIN", |s| s.flags |= FIN, 3),
        ("RST", |s| s.flags |= RST, 3),
        ("SYN", |s| s.flags |= SYN, 3),
        ("URG", |s| s.flags |= URG, 3),
        ("CWR", |s| s.flags |= CWR, 3),
        ("ECE", |s| s.flags |= ECE, 3),
        ("no ACK", |s| s.flags = 0, 3),
        // It ends what is before it.
        ("PSH", |s| s.flags |= PSH, 2),
        ("shorter", |s| s.data.truncate(900), 2),
        ("of four", |s| s.data.truncate(4), 2),
    ];
    for v6 in [false, true] {
        for (name, change, count) in changes {
            let mut segments = stream(Segment::new(v6, 1000), 4);
            change(&mut segments[3]);
            let after = segments[3].after();
            segments.extend(stream(after, 2));
            let sent = frames(&segments);
            let got = arrive(&mut linux(), &sent);
            assert_eq!(cut_all(&got), sent, "{name}, IPv6: {v6}");
            assert_eq!(got.len(), *count, "{name}, IPv6: {v6}");
        }
        for (name, change, count) in alone {
            let mut segments = stream(Segment::new(v6, 1000), 4);
            change(&mut segments[3]);
            let after = Segment { flags: ACK, ..segments[3].after() };
            segments.extend(stream(Segment { data: vec![8; 1000], ..after }, 2));
            let sent = frames(&segments);
            let got = arrive(&mut linux(), &sent);
            assert_eq!(cut_all(&got), sent, "{name}, IPv6: {v6}");
            assert_eq!(got.len(), *count, "{name}, IPv6: {v6}");
        }
    }
}

#[test]
fn identifications_count_unless_the_packet_may_not_be_cut() {
    let mut segments = stream(Segment::new(false, 1000), 6);
    segments[3].identification ^= 0x5500;
    let got = arrive(&mut linux(), &frames(&segments));
    assert_eq!(got.len(), 3);
    segments.iter_mut().for_each(|segment| segment.fixed = true);
    let got = arrive(&mut linux(), &frames(&segments));
    assert_eq!(got.len(), 1);
    segments[4].fixed = false;
    let got = arrive(&mut linux(), &frames(&segments));
    assert_eq!(got.len(), 3, "one with DF and one without");
}

/// A segment with a wrong sum comes as it was sent, without a mark, and the others come, too.
#[test]
fn a_wrong_sum_is_delivered_alone() {
    for v6 in [false, true] {
        for at in 0..6 {
            let mut segments = stream(Segment::new(v6, 1000), 6);
            segments[at].wrong = true;
            let sent = frames(&segments);
            let mut host = linux();
            let got = arrive(&mut host, &sent);
            assert_eq!(cut_all(&got), sent, "the {at}th, IPv6: {v6}");
            assert!(got.iter().any(|(net, frame)| net.flags == 0 && *frame == sent[at]));
            assert_eq!(host.moved()["b.out.packets"], 6);
            // In the next batch they are joined again.
            assert_eq!(arrive(&mut host, &frames(&stream(Segment::new(v6, 1000), 6))).len(), 1);
        }
    }
}

/// A wrong sum of the IPv4 header, a wrong length.
#[test]
fn headers_that_are_wrong_stay_alone() {
    for (at, len) in [(24, 0), (16, 0), (17, 3)] {
        let mut sent = frames(&stream(Segment::new(false, 1000), 4));
        sent[1][at] ^= 1;
        sent[1].extend(vec![0; len]);
        let got = arrive(&mut linux(), &sent);
        assert_eq!(cut_all(&got), sent);
        assert_eq!(got.len(), 3);
    }
}

#[test]
fn guests_get_what_they_take() {
    let without = |bits: Features| Features(LINUX.0 & !bits.0);
    let families = |features: Features| {
        [false, true].map(|v6| {
            let sent = frames(&stream(Segment::new(v6, 1000), 6));
            let got = arrive(&mut host(features, GuestConfig::default()), &sent);
            assert_eq!(cut_all(&got), sent);
            got.len()
        })
    };
    assert_eq!(families(LINUX), [1, 1]);
    assert_eq!(families(without(Features::GUEST_TSO4)), [6, 1]);
    assert_eq!(families(without(Features::GUEST_TSO6)), [1, 6]);
    assert_eq!(families(without(Features::GUEST_CSUM)), [6, 6]);
    assert_eq!(families(Features::VERSION_1), [6, 6]);
    assert_eq!(families(Features::NONE), [6, 6]);
}

/// Buffers that are small, in pieces, or one large one.
#[test]
fn any_buffers_do() {
    let large = Features(LINUX.0 & !Features::MRG_RXBUF.0);
    let shapes = [
        (LINUX, 256, 64, Shape::default()),
        (LINUX, 256, 333, Shape::default().pieces(4)),
        (LINUX, 128, 700, Shape::HEADER_APART.indirect()),
        (large, 32, 65_600, Shape::default()),
        (large, 32, 65_600, Shape::default().pieces(3).indirect()),
    ];
    for (features, rx_size, rx_buffer, rx_shape) in shapes {
        let config = GuestConfig { rx_size, rx_buffer, rx_shape, ..GuestConfig::default() };
        let mut host = host(features, config);
        for _ in 0..20 {
            let sent = frames(&stream(Segment::new(false, 1000), 10));
            let got = arrive(&mut host, &sent);
            assert_eq!(cut_all(&got), sent, "{rx_buffer}");
            assert_eq!(got.len(), 1, "{rx_buffer}");
        }
    }
}

/// A ring without room for the whole gets what fits, in order.
#[test]
fn a_full_ring_gets_what_fits() {
    let config = GuestConfig { rx_size: 8, rx_buffer: 1200, ..GuestConfig::default() };
    let sent = frames(&stream(Segment::new(false, 1000), 12));
    let mut host = host(LINUX, config);
    let got = arrive(&mut host, &sent);
    assert_eq!(cut_all(&got), sent[..8]);
    assert_eq!(host.moved()["b.drop.ring-full"], 4);
}

/// Makes a segment that mostly goes on with the one before.
fn next(kind: u8, last: &Segment) -> Segment {
    let mut next = last.after();
    match kind {
        0 => next.flags ^= PSH,
        1 => next.wrong = true,
        2 => next.data.truncate(next.data.len().div_ceil(2)),
        3 => next.data.extend([1, 2, 3]),
        4 => next.sequence = next.sequence.wrapping_add(5),
        5 => next.options[11] = next.options[11].wrapping_add(1),
        6 => next.flags ^= FIN,
        7 => next.source ^= 2,
        8 => next.v6 = !next.v6,
        9 => next.identification = 5,
        10 => next.vlan = !next.vlan,
        _ => {}
    }
    if kind != 1 {
        next.wrong = false;
    }
    next
}

proptest! {
    /// A stream, cut and joined, is that stream, whatever its segments are.
    #[test]
    fn a_joined_stream_is_that_stream(
        v6 in any::<bool>(),
        len in prop_oneof![Just(1000usize), 1..1400usize],
        kinds in proptest::collection::vec(0..40u8, 1..64),
        buffer in prop_oneof![Just(1526usize), 300..4000usize],
    ) {
        let mut segments = vec![Segment::new(v6, len)];
        for kind in kinds {
            let mut one = next(kind, segments.last().unwrap());
            one.data.truncate(1400);
            segments.push(one);
        }
        let sent = frames(&segments);
        let config = GuestConfig { rx_size: 1024, rx_buffer: buffer, ..GuestConfig::default() };
        let got = arrive(&mut host(LINUX, config), &sent);
        prop_assert_eq!(cut_all(&got), sent);
    }
}
