//! Fragments through translations by ports: shared addresses and forwards.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use butterfly_datapath::{Fate, Mac, Origin, RoutingChange, VnicPolicy, harness::Host};
use butterfly_model::{ForwardProtocol, Nat, Network, Subnet};
use butterfly_packet::{
    build::{self, Ip, Tcp},
    protocol::{ICMP, TCP, UDP},
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

use crate::nat::{
    SHARED, WORLD, X, admit, attached, declared, external, floating, inside, ip, leaves,
    router_mac, shared, snat, text, translate,
};
use crate::net::{A, C, Machine, Net, policy, vni};

/// Bytes of a fragment, of which a packet of `DATA` has four.
const PIECE: usize = 64;
const DATA: usize = 200;

/// A packet of a machine inside, and its answer: what is behind the header of IP.
#[derive(Clone, Copy, Debug)]
enum Said {
    Question,
    Answer,
}

fn data() -> Vec<u8> {
    (0..DATA).map(|n| n as u8).collect()
}

/// A whole packet of a protocol, of the machine's `port`, or to it.
fn whole(ip: &Ip, protocol: u8, port: u16, said: Said) -> Vec<u8> {
    let ports = match said {
        Said::Question => (port, 53),
        Said::Answer => (53, port),
    };
    match (protocol, said) {
        (TCP, _) => ip.tcp(&Tcp::new(ports.0, ports.1, ACK), &data()),
        (UDP, _) => ip.udp(ports.0, ports.1, &data()),
        (_, Said::Question) => ip.ping(port, 1, &data()),
        (_, Said::Answer) => ip.icmp(0, 0, u32::from(port) << 16 | 1, &data()),
    }
}

/// Fragments of a packet, in order.
fn cut(ip: &Ip, protocol: u8, id: u16, port: u16, said: Said) -> Vec<Vec<u8>> {
    let all = &whole(ip, protocol, port, said)[34..];
    let pieces = all.chunks(PIECE).enumerate();
    let count = all.len().div_ceil(PIECE);
    pieces
        .map(|(n, piece)| {
            let ip = ip.clone().fragment(id.into(), n * PIECE, n + 1 < count);
            ip.payload(protocol, piece)
        })
        .collect()
}

/// Fragments of a packet of a machine inside to the world, as it sends them.
fn sent(from: Machine, protocol: u8, id: u16, port: u16) -> Vec<Vec<u8>> {
    let ip = ip((from.1, router_mac("r")), &text(from), WORLD);
    cut(&ip, protocol, id, port, Said::Question)
}

/// The same as they leave.
fn left(outside: &str, protocol: u8, id: u16, port: u16) -> Vec<Vec<u8>> {
    let ip = ip((router_mac("r"), X.1), outside, WORLD).ttl(63);
    cut(&ip, protocol, id, port, Said::Question)
}

/// Fragments of an answer of the world to a port outside.
fn comes(outside: &str, protocol: u8, id: u16, port: u16) -> Vec<Vec<u8>> {
    let ip = ip((X.1, router_mac("r")), WORLD, outside);
    cut(&ip, protocol, id, port, Said::Answer)
}

/// The same as a machine gets them.
fn came(to: Machine, protocol: u8, id: u16, port: u16) -> Vec<Vec<u8>> {
    let ip = ip((router_mac("r"), to.1), WORLD, &text(to)).ttl(63);
    cut(&ip, protocol, id, port, Said::Answer)
}

fn id_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[18], frame[19]])
}

/// Puts frames into a ring at once. Returns what a machine gets; others get nothing.
#[track_caller]
fn send(net: &mut Net, from: Machine, frames: &[Vec<u8>], to: Machine) -> Vec<Vec<u8>> {
    let guest = net.host.guest(from.0).unwrap();
    for frame in frames {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
    net.host.settle();
    got(net, to)
}

#[track_caller]
fn got(net: &mut Net, to: Machine) -> Vec<Vec<u8>> {
    let mut all = net.host.received().unwrap();
    let own = all.remove(to.0).unwrap_or_default();
    assert!(all.is_empty(), "others got {all:?}");
    own.into_iter().map(|(_, frame)| frame).collect()
}

/// Counts of drops that moved.
fn drops(net: &mut Net) -> Vec<(String, u64)> {
    net.host.moved().into_iter().filter(|(name, _)| name.contains(".drop.")).collect()
}

#[track_caller]
fn dropped(net: &mut Net, at: Machine, reason: &str, count: u64) {
    assert_eq!(drops(net), [(format!("{}.drop.{reason}", at.0), count)]);
}

/// Sends fragments outwards. Asserts that all leave by one identification, in any order, and
/// returns it.
#[track_caller]
fn all_leave(
    net: &mut Net,
    from: Machine,
    frames: &[Vec<u8>],
    (outside, protocol, port): (&str, u8, u16),
) -> u16 {
    let all = send(net, from, frames, X);
    let ids: BTreeSet<u16> = all.iter().map(|frame| id_of(frame)).collect();
    assert_eq!((all.len(), ids.len()), (frames.len(), 1), "{:?}", drops(net));
    let id = *ids.first().unwrap();
    let expected: BTreeSet<_> = left(outside, protocol, id, port).into_iter().collect();
    // The sum in the first one is that of the whole packet from the other end.
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(drops(net), []);
    id
}

/// Sends fragments inwards. Asserts that a machine gets all of them, in any order.
#[track_caller]
fn all_come(net: &mut Net, frames: &[Vec<u8>], to: Machine, expected: Vec<Vec<u8>>) {
    let all = send(net, X, frames, to);
    assert_eq!(drops(net), []);
    let expected: BTreeSet<_> = expected.into_iter().collect();
    assert_eq!(all.len(), expected.len());
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
}

/// The order in which four fragments come.
const ORDERS: [[usize; 4]; 4] = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [3, 0, 1, 2]];

fn ordered(frames: &[Vec<u8>], order: [usize; 4]) -> Vec<Vec<u8>> {
    assert_eq!(frames.len(), order.len());
    order.into_iter().map(|at| frames[at].clone()).collect()
}

/// Two machines use the same port, and both get their answers, whichever fragment comes first.
#[test]
fn packets_go_out_and_back_in_fragments() {
    for bypass in [true, false] {
        let mut net = shared(bypass);
        for protocol in if bypass { &[UDP, ICMP, TCP][..] } else { &[UDP, ICMP] } {
            let outside = [A, C].map(|from| leaves(&mut net, from, WORLD, *protocol, 5000));
            assert_ne!(outside[0], outside[1]);
            for (n, order) in (0..).zip(ORDERS) {
                for (who, port) in [A, C].into_iter().zip(outside) {
                    let frames = ordered(&sent(who, *protocol, n, 5000), order);
                    all_leave(&mut net, who, &frames, (SHARED, *protocol, port));
                    let frames = ordered(&comes(SHARED, *protocol, n, port), order);
                    all_come(&mut net, &frames, who, came(who, *protocol, n, 5000));
                }
            }
        }
    }
}

/// A port is opened by a first fragment as by a whole packet, and by no other.
#[test]
fn a_first_fragment_opens_what_the_whole_would() {
    for bypass in [true, false] {
        let mut net = shared(bypass);
        for protocol in [UDP, ICMP] {
            assert_eq!(send(&mut net, X, &comes(SHARED, protocol, 1, 5000), A), [[0_u8; 0]; 0]);
            let moved = drops(&mut net);
            assert_eq!(
                moved,
                [("x.drop.nat-fragment".into(), 3), ("x.drop.nat-no-mapping".into(), 1)]
            );
            all_leave(&mut net, A, &sent(A, protocol, 1, 5000), (SHARED, protocol, 5000));
            all_come(&mut net, &comes(SHARED, protocol, 2, 5000), A, came(A, protocol, 2, 5000));
        }
        // An echo that nobody asked for, and its answer.
        let ping = ip((X.1, router_mac("r")), WORLD, SHARED);
        let ping = cut(&ping, ICMP, 3, 5000, Said::Question);
        assert_eq!(send(&mut net, X, &ping[..1], A), [[0_u8; 0]; 0]);
        dropped(&mut net, X, "nat-no-mapping", 1);
        let answer = ip((A.1, router_mac("r")), &text(A), WORLD);
        let answer = cut(&answer, ICMP, 3, 7000, Said::Answer);
        if bypass {
            assert_eq!(send(&mut net, A, &answer[..1], X), [[0_u8; 0]; 0]);
            dropped(&mut net, A, "nat-protocol", 1);
        }
    }
}

fn forward(outside: &str, to: &str) -> Nat {
    let (outside, to) = (outside.parse().unwrap(), to.parse().unwrap());
    Nat::forward(ForwardProtocol::Udp, outside, to).unwrap()
}

#[test]
fn forwarded_ports_have_their_fragments() {
    for bypass in [true, false] {
        let mut net = shared(bypass);
        translate(&net, "r", &[forward("192.0.2.9:53", "10.0.0.10:1053")]);
        if !bypass {
            // The first one tells what the rules say, for all.
            assert_eq!(send(&mut net, X, &comes(SHARED, UDP, 9, 53), A), [[0_u8; 0]; 0]);
            let refused = [("a.drop.ingress-denied".into(), 1), ("x.drop.nat-fragment".into(), 3)];
            assert_eq!(drops(&mut net), refused);
            admit(&mut net, "198.51.100.0/24", UDP);
        }
        for (n, order) in (0..).zip(ORDERS) {
            let frames = ordered(&comes(SHARED, UDP, n, 53), order);
            all_come(&mut net, &frames, A, came(A, UDP, n, 1053));
            let frames = ordered(&sent(A, UDP, n, 1053), order);
            all_leave(&mut net, A, &frames, (SHARED, UDP, 53));
        }
        // Another port of the machine has no address outside.
        assert_eq!(send(&mut net, A, &sent(A, UDP, 9, 1054)[..1], X), [[0_u8; 0]; 0]);
        dropped(&mut net, A, "nat-no-rule", 1);
    }
}

/// No receiver sees bytes twice, also without a filter; once all of a packet was seen, its number
/// may be used again.
#[test]
fn fragments_pass_once() {
    let mut net = shared(true);
    assert_eq!(leaves(&mut net, A, WORLD, UDP, 5000), 5000);
    for inwards in [true, false] {
        let (from, to) = if inwards { (X, A) } else { (A, X) };
        let pieces = match inwards {
            true => comes(SHARED, UDP, 1, 5000),
            false => sent(A, UDP, 1, 5000),
        };
        let mut pass = |frames: &[&Vec<u8>]| {
            let frames: Vec<_> = frames.iter().map(|frame| (*frame).clone()).collect();
            (send(&mut net, from, &frames, to).len(), drops(&mut net))
        };
        let counted = |reason: &str, n| vec![(format!("{}.drop.{reason}", from.0), n)];
        let [first, second, third, last] = &pieces[..] else { panic!() };
        assert_eq!(pass(&[first, second]), (2, vec![]));
        assert_eq!(pass(&[first, second]), (0, counted("fragment-overlap", 2)));
        assert_eq!(pass(&[third, third]), (1, counted("fragment-overlap", 1)));
        // Some bytes of the second and the third one.
        let (ends, said, port) = match inwards {
            true => (ip((X.1, router_mac("r")), WORLD, SHARED), Said::Answer, 5000),
            false => (ip((A.1, router_mac("r")), &text(A), WORLD), Said::Question, 5000),
        };
        let bytes = &whole(&ends, UDP, port, said)[34 + 96..34 + 160];
        let beside = ends.fragment(1, 96, true).payload(UDP, bytes);
        assert_eq!(pass(&[&beside]), (0, counted("fragment-overlap", 1)));
        assert_eq!(pass(&[last]), (1, vec![]));
        assert_eq!(pass(&[last]), (0, counted("nat-fragment", 1)));
        // The number again, twice in one batch.
        let all = [first, second, third, last];
        assert_eq!(pass(&[all, all].concat()), (8, vec![]));
    }
}

/// A first fragment has to have the whole header of its protocol, and opens nothing else.
#[test]
fn a_first_fragment_may_be_too_short() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    translate(&net, "r", &[snat(SHARED), forward("192.0.2.9:53", "10.0.0.10:1053")]);
    for (protocol, len) in [(TCP, 8), (TCP, 16)] {
        let tiny = |ip: Ip| ip.fragment(1, 0, true).payload(protocol, &[7; 20][..len]);
        // Padding is not of the packet.
        let mut padded = tiny(ip((A.1, gateway), &text(A), WORLD));
        padded.resize(60, 0);
        for frame in [tiny(ip((A.1, gateway), &text(A), WORLD)), padded] {
            net.drops(A, &frame, "tiny-fragment");
        }
        net.drops(X, &tiny(ip((X.1, gateway), WORLD, SHARED)), "tiny-fragment");
    }
    let pieces = ip((X.1, gateway), WORLD, SHARED).tcp(&Tcp::new(80, 0x0707, SYN), b"");
    net.drops(X, &pieces, "nat-no-mapping");
}

/// A sender has 64 packets under way, of which the oldest goes; others lose none.
#[test]
fn a_sender_loses_its_own_packets() {
    let mut net = shared(true);
    let port = leaves(&mut net, C, WORLD, UDP, 6000);
    let of_c = sent(C, UDP, 7, 6000);
    assert_eq!(send(&mut net, C, &of_c[..1], X).len(), 1);
    for id in 0..65 {
        assert_eq!(send(&mut net, A, &sent(A, UDP, id, 5000)[..1], X).len(), 1);
    }
    assert_eq!(drops(&mut net), []);
    assert_eq!(send(&mut net, A, &sent(A, UDP, 0, 5000)[1..2], X).len(), 0);
    dropped(&mut net, A, "nat-fragment", 1);
    assert_eq!(send(&mut net, A, &sent(A, UDP, 1, 5000)[1..2], X).len(), 1);
    let rest = send(&mut net, C, &of_c[1..], X);
    assert_eq!(rest, left(SHARED, UDP, id_of(&rest[0]), port)[1..]);
    assert_eq!(drops(&mut net), []);
}

/// One that comes early waits for two milliseconds, and eight of a sender do.
#[test]
fn early_fragments_wait_for_a_moment() {
    for inwards in [true, false] {
        let mut net = shared(true);
        assert_eq!(leaves(&mut net, A, WORLD, UDP, 5000), 5000);
        let (from, to) = if inwards { (X, A) } else { (A, X) };
        let pieces = |id| match inwards {
            true => comes(SHARED, UDP, id, 5000),
            false => sent(A, UDP, id, 5000),
        };
        let early: Vec<_> = (0..10).map(|id| pieces(id)[1].clone()).collect();
        let first: Vec<_> = (0..10).map(|id| pieces(id)[0].clone()).collect();
        assert_eq!(send(&mut net, from, &[early.clone(), first].concat(), to).len(), 18);
        dropped(&mut net, from, "nat-fragment", 2);
        net.host.heed_prices();
        let start = Instant::now();
        let guest = net.host.guest(from.0).unwrap();
        guest.enqueue(&pieces(20)[1], NetHeader::default()).unwrap();
        guest.flush();
        net.host.turn();
        assert_eq!(drops(&mut net), []);
        let dropped = loop {
            net.host.turn();
            let dropped = drops(&mut net);
            if !dropped.is_empty() {
                break dropped;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "still there");
        };
        assert!(start.elapsed() > Duration::from_micros(1800), "{:?}", start.elapsed());
        assert_eq!(dropped, [(format!("{}.drop.nat-fragment", from.0), 1)]);
    }
}

/// Frames that a turn leaves in their ring are judged again, as if they had not been seen.
#[test]
fn what_stays_in_its_ring_is_translated_once() {
    let mut net = shared(true);
    assert_eq!(leaves(&mut net, A, WORLD, UDP, 5000), 5000);
    for n in 0..70 {
        let mac = Mac([2, 0, 0, 0, 1, n]);
        let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        net.host.vnic(&format!("n{n}"), mac, X.2, &policy).unwrap();
    }
    net.host.settle();
    net.host.moved();
    // A flood to all of them is more than one turn has time for.
    let flood = build::ethernet(X.1, Mac::BROADCAST).payload(0x88b5, &[0; 46]);
    let pieces = comes(SHARED, UDP, 1, 5000);
    let guest = net.host.guest(X.0).unwrap();
    for frame in pieces.iter().flat_map(|piece| [&flood, piece]) {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
    assert!(net.host.turn());
    assert!(net.host.received().unwrap().get(A.0).is_none_or(|got| got.len() < 4), "in one turn");
    net.host.settle();
    let moved = net.host.moved();
    assert_eq!(moved.get("a.out.packets"), Some(&4), "{moved:?}");
    assert_eq!(moved.get("n0.out.packets"), Some(&4));
    assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
}

/// When a translation goes, so do the fragments that would follow by it, also if it comes again.
#[test]
fn fragments_do_not_outlive_their_translation() {
    let mut net = shared(true);
    assert_eq!(leaves(&mut net, A, WORLD, UDP, 5000), 5000);
    let rules = [snat(SHARED), forward("192.0.2.9:53", "10.0.0.10:1053")];
    translate(&net, "r", &rules);
    let packets = [
        (A, X, sent(A, UDP, 1, 5000)),
        (X, A, comes(SHARED, UDP, 1, 5000)),
        (X, A, comes(SHARED, UDP, 2, 53)),
    ];
    for (from, to, pieces) in &packets {
        assert_eq!(send(&mut net, *from, &pieces[..2], *to).len(), 2);
    }
    translate(&net, "r", &[]);
    for ((from, to, pieces), reason) in packets.iter().zip(["nat-no-rule", "no-route", "no-route"])
    {
        assert_eq!(send(&mut net, *from, &pieces[2..3], *to).len(), 0);
        dropped(&mut net, *from, reason, 1);
    }
    net.host.pass(1);
    // The port is another machine's, and the address another router's.
    translate(&net, "r", &[snat(SHARED), forward("192.0.2.9:53", "10.0.0.11:1053")]);
    for (from, to, pieces) in &packets {
        assert_eq!(send(&mut net, *from, &pieces[2..3], *to).len(), 0);
        dropped(&mut net, *from, "nat-fragment", 1);
    }
    // By an address of its own each passes alone.
    translate(&net, "r", &[floating(SHARED, "10.0.0.10")]);
    let (from, to, pieces) = &packets[1];
    assert_eq!(send(&mut net, *from, &pieces[3..], *to).len(), 1);
}

/// Machines behind one address do not mix their fragments where they are put together.
#[test]
fn machines_that_share_an_address_share_no_identification() {
    let mut net = shared(true);
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        for from in [A, C] {
            let all = send(&mut net, from, &sent(from, UDP, 7, 5000), X);
            let ids: BTreeSet<u16> = all.iter().map(|frame| id_of(frame)).collect();
            assert_eq!((all.len(), ids.len()), (4, 1));
            assert!(seen.insert(ids), "twice");
        }
    }
    assert_eq!(drops(&mut net), []);
}

/// An error about a packet in fragments quotes the first of them.
#[test]
fn errors_about_fragments_find_the_machine() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    let port = [A, C].map(|from| leaves(&mut net, from, WORLD, UDP, 5000))[1];
    let quote = |pieces: Vec<Vec<u8>>, n: usize| pieces[n][14..14 + 28].to_vec();
    let error = |ip: Ip, quoted: &[u8]| ip.icmp(11, 1, 0, quoted);
    let hop = "203.0.113.7";
    let of = |n| quote(cut(&ip((X.1, X.1), SHARED, WORLD), UDP, 3, port, Said::Question), n);
    let to_c = quote(cut(&ip((X.1, X.1), &text(C), WORLD), UDP, 3, 5000, Said::Question), 0);
    let sent = error(ip((X.1, gateway), hop, SHARED), &of(0));
    let arrives = error(ip((gateway, C.1), hop, &text(C)).ttl(63), &to_c);
    net.passes(X, &sent, C, &arrives);
    // A later one has no ports, and errors themselves are not cut.
    net.drops(X, &error(ip((X.1, gateway), hop, SHARED), &of(1)), "nat-quote");
    let body = error(ip((X.1, gateway), hop, SHARED), &[&of(0)[..], &[0; 4]].concat());
    let piece = ip((X.1, gateway), hop, SHARED).fragment(5, 0, true).payload(ICMP, &body[34..]);
    net.drops(X, &piece, "nat-fragment");
}

/// A machine of a public network leaves as it is, but by the ports of an address outside that it
/// has.
#[test]
fn a_public_machine_may_have_forwarded_ports() {
    let mut net = shared(true);
    let subnet = Subnet::parse("203.0.113.0/24", Some("203.0.113.1")).unwrap();
    let public = Network::new(vni(43), vec![subnet], None).unwrap().with_public(true);
    net.host.change_routing(RoutingChange::DeclareNetwork(public));
    let p: Machine = ("p", Mac([2, 0, 0, 0, 0, 0x1f]), 43, [203, 0, 113, 80]);
    net.host.vnic(p.0, p.1, p.2, &policy(p.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    translate(&net, "s", &[forward("192.0.2.19:53", "203.0.113.80:1053")]);
    let gateway = router_mac("s");
    for (n, order) in (1..).zip(ORDERS) {
        for (from, outside, port) in [(1053, "192.0.2.19", 53), (2000, "203.0.113.80", 2000)] {
            let id = n * 10_000 + from;
            let sent = cut(&ip((p.1, gateway), &text(p), WORLD), UDP, id, from, Said::Question);
            let all = send(&mut net, p, &ordered(&sent, order), X);
            let leaves = ip((gateway, X.1), outside, WORLD).ttl(63);
            let new = id_of(&all[0]);
            let expected: BTreeSet<_> =
                cut(&leaves, UDP, new, port, Said::Question).into_iter().collect();
            assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
            assert!(from != 2000 || new == id, "nobody shares its address");
        }
    }
    assert_eq!(drops(&mut net), []);
}

/// This host's MAC address on the wire, and what is behind it.
const WIRE: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
const FAR: Machine = ("wire/world", X.1, 77, X.3);

/// Behind a wire each address is a sender of its own.
#[test]
fn the_world_is_many_senders() {
    let mut net = Net::apart(&[A], true);
    net.host.begin_seeking();
    net.host.change_routing(inside(42, "fd00:42::/64"));
    net.host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    net.host.lay_wire(&external(), WIRE).unwrap();
    net.host.change_routing(attached("r", 42));
    translate(&net, "r", &[forward("192.0.2.9:53", "10.0.0.10:1053")]);
    net.host.settle();
    net.host.moved();
    let _ = net.host.received().unwrap();
    let comes = |from: u8, id| {
        let ip = ip((X.1, WIRE), &format!("198.51.100.{from}"), SHARED);
        cut(&ip, UDP, id, 53, Said::Answer)
    };
    let pieces = |n: usize| {
        let each = (1..=5).flat_map(|from| (0..9).map(move |id| (from, id)));
        each.map(|(from, id)| comes(from, id)[n].clone()).collect::<Vec<_>>()
    };
    // Eight of each address may wait, and 32 of all: of the fifth one none.
    let all = send(&mut net, FAR, &[pieces(1), pieces(0)].concat(), A);
    assert_eq!(all.len(), 45 + 32);
    dropped(&mut net, FAR, "nat-fragment", 4 + 9);
    // 64 packets of each address are under way.
    let first: Vec<_> = (6..=205).map(|from| comes(from, 1)[0].clone()).collect();
    let second: Vec<_> = (6..=205).map(|from| comes(from, 1)[1].clone()).collect();
    for frames in first.chunks(50).chain(second.chunks(50)) {
        let count = send(&mut net, FAR, frames, A).len();
        assert_eq!(count, 50, "{:?}", drops(&mut net));
    }
    // Whoever forges addresses takes room from the world alone.
    translate(&net, "r", &[snat("192.0.2.10"), forward("192.0.2.9:53", "10.0.0.10:1053")]);
    let own = sent(A, UDP, 1, 5000);
    assert_eq!(send(&mut net, A, &own[..1], FAR).len(), 0, "the next hop is asked for");
    net.host.seek();
    let answer = build::ethernet(X.1, WIRE).arp_reply(X.3, [192, 0, 2, 7]);
    net.host.send(FAR.0, &answer, NetHeader::default()).unwrap();
    net.host.seek();
    net.host.settle();
    assert!(net.host.received().unwrap()[FAR.0].iter().any(|(_, frame)| frame[12..14] == [8, 0]));
    for from in 0..=255 {
        let firsts: Vec<_> = (100..120).map(|id| comes(from, id)[0].clone()).collect();
        assert_eq!(send(&mut net, FAR, &firsts, A).len(), 20);
    }
    assert_eq!(drops(&mut net), []);
    assert_eq!(send(&mut net, A, &own[1..], FAR).len(), 3);
    let lost: Vec<_> = (0..=255).map(|from| comes(from, 100)[1].clone()).collect();
    let lost: usize = lost.chunks(8).map(|frames| send(&mut net, FAR, frames, A).len()).sum();
    assert!(lost < 256, "{lost} of 5,120 packets have room");
    let [(name, _)] = &drops(&mut net)[..] else { panic!() };
    assert_eq!(name, "wire/world.drop.nat-fragment");
}

/// A packet that is not sent changes nothing: its rest has no first one.
#[test]
fn explanations_are_of_one_fragment() {
    let mut net = shared(true);
    let from = Origin::Vnic(A.0.into());
    let pieces = sent(A, UDP, 1, 5000);
    let told = net.host.explain_frame(&from, &pieces[0]).unwrap();
    assert_eq!(told.fate, Fate::Delivered(X.0.into()), "{told:?}");
    let told = net.host.explain_frame(&from, &pieces[1]).unwrap();
    let Fate::Dropped(refused) = &told.fate else { panic!("{told:?}") };
    assert_eq!(refused.reason.name, "nat-fragment");
    assert_eq!(send(&mut net, A, &pieces[1..2], X).len(), 0);
    dropped(&mut net, A, "nat-fragment", 1);
}

/// Fragments come by two queues, which two workers serve, in every order.
#[test]
fn by_two_queues() {
    for bypass in [true, false] {
        let host = Host::with_workers(2).unwrap();
        let mut net = declared(host, bypass);
        translate(&net, "r", &[snat(SHARED)]);
        assert_eq!(leaves(&mut net, A, WORLD, UDP, 5000), 5000);
        for (from, to) in [(X, A), (A, X)] {
            let mut second = net.host.pair_at(from.0, 1, 1).unwrap();
            net.host.settle();
            net.host.moved();
            let mut id = 0;
            for order in ORDERS {
                for by in 0..16 {
                    for turns in [false, true] {
                        id += 1;
                        let pieces = match from.0 {
                            "x" => comes(SHARED, UDP, id, 5000),
                            _ => sent(A, UDP, id, 5000),
                        };
                        for (at, frame) in ordered(&pieces, order).iter().enumerate() {
                            let guest = match by >> at & 1 {
                                0 => net.host.guest(from.0).unwrap(),
                                _ => &mut second,
                            };
                            guest.enqueue(frame, NetHeader::default()).unwrap();
                            guest.flush();
                            if turns {
                                net.host.turn();
                            }
                        }
                        net.host.settle();
                        while second.recv().unwrap().is_some() {}
                        let all = got(&mut net, to);
                        assert_eq!(drops(&mut net), [], "{order:?} by {by:b}");
                        assert_eq!(all.len(), 4, "{order:?} by {by:b}");
                    }
                }
            }
        }
    }
}

/// The same while both workers run: inwards nothing is lost, as an entry is seen only behind the
/// filter's decision.
#[test]
fn by_two_queues_at_once() {
    for bypass in [true, false] {
        let mut net = declared(Host::with_workers(2).unwrap(), bypass);
        translate(&net, "r", &[snat(SHARED)]);
        assert_eq!(leaves(&mut net, A, WORLD, UDP, 5000), 5000);
        let mut second = net.host.pair_at(X.0, 1, 1).unwrap();
        net.host.settle();
        net.host.moved();
        let lost = net.host.at_once(|guests| {
            for id in 0..400_u16 {
                let order = ORDERS[usize::from(id) % ORDERS.len()];
                let frames = ordered(&comes(SHARED, UDP, id, 5000), order);
                let by = id / 4 % 16;
                for (at, frame) in frames.iter().enumerate() {
                    let guest = match by >> at & 1 {
                        0 => guests.guest(X.0).unwrap(),
                        _ => &mut second,
                    };
                    guest.enqueue(frame, NetHeader::default()).unwrap();
                    guest.flush();
                }
                let start = Instant::now();
                let mut count = 0;
                while count < frames.len() {
                    count += usize::from(guests.guest(A.0).unwrap().recv().unwrap().is_some());
                    if start.elapsed() > Duration::from_secs(20) {
                        return Some((order, by, count));
                    }
                }
            }
            None
        });
        assert_eq!((lost, drops(&mut net)), (None, vec![]));
    }
}

/// So it is for a filtered machine: nobody outside uses up the places of all others there.
#[test]
fn the_world_is_many_senders_to_a_filter() {
    let mut net = Net::apart(&[A], false);
    net.host.begin_seeking();
    net.host.change_routing(inside(42, "fd00:42::/64"));
    net.host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    net.host.lay_wire(&external(), WIRE).unwrap();
    net.host.change_routing(attached("r", 42));
    translate(&net, "r", &[forward("192.0.2.9:53", "10.0.0.10:1053")]);
    net.admit("198.51.100.0/24");
    net.host.settle();
    net.host.moved();
    let _ = net.host.received().unwrap();
    let comes = |from: u8, id| {
        let ip = ip((X.1, WIRE), &format!("198.51.100.{from}"), SHARED);
        cut(&ip, UDP, id, 53, Said::Answer)
    };
    let one = comes(1, 1);
    assert_eq!(send(&mut net, FAR, &one[..1], A).len(), 1);
    for from in 2..=9 {
        let firsts: Vec<_> = (1..=20).map(|id| comes(from, id)[0].clone()).collect();
        assert_eq!(send(&mut net, FAR, &firsts, A).len(), 20);
    }
    assert_eq!(send(&mut net, FAR, &one[1..], A).len(), one.len() - 1, "{:?}", drops(&mut net));
}
