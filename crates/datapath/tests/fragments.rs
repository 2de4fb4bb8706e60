//! Fragments that come before the first of their packet: by one queue, by two queues of two
//! workers, from another host.

use std::time::{Duration, Instant};

use butterfly_datapath::{
    GroupChange, Mac, Origin, SessionConfig, Timeouts, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{Guest, GuestConfig},
    memory::MemoryConfig,
};
use butterfly_model::{Cidr, Direction, GroupName, Limit, Limits, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

const VNI: u32 = 7;
const UDP: u8 = 17;
/// Bytes of a piece.
const PIECE: usize = 24;
/// Most fragments that wait, of all senders and of one; and how long.
const PEN: usize = 64;
const OF_ONE: usize = 8;
const WAIT: Duration = Duration::from_millis(2);

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn ip(n: u8) -> [u8; 4] {
    [10, 0, 0, n]
}

fn id(n: u8) -> String {
    format!("v{n:02}")
}

/// The piece with this number of a packet of `of` pieces, from one vnic to another one.
fn piece((from, to): (u8, u8), packet: usize, number: usize, of: usize) -> Vec<u8> {
    let link = build::ethernet(mac(from), mac(to));
    part(link, (ip(from), ip(to)), packet, number, of)
}

fn part(
    link: build::Link,
    (from, to): ([u8; 4], [u8; 4]),
    packet: usize,
    number: usize,
    of: usize,
) -> Vec<u8> {
    let mut payload = vec![number as u8; PIECE];
    if number == 0 {
        payload[..8].copy_from_slice(&[0, 9, 0, 53, 0, (of * PIECE) as u8, 0, 0]);
    }
    let ip = link.ipv4(from, to);
    ip.fragment(packet as u32, number * PIECE, number + 1 < of).payload(UDP, &payload)
}

/// A policy of a vnic: filtered, and lets UDP to port 53 in.
fn filtered(n: u8) -> VnicPolicy {
    let groups = vec![GroupName::new("g").unwrap()];
    VnicPolicy { ips: vec![ip(n).into()], groups, ..VnicPolicy::default() }
}

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn group(host: &Host) {
    let name = GroupName::new("g").unwrap();
    let all = Some(Cidr::new("0.0.0.0", 0).unwrap());
    let rule = Rule::new(Direction::Inbound, UDP.into(), (Some(53), Some(53)), all, None).unwrap();
    let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), [rule]).unwrap();
    host.change_group(&name, GroupChange::Declare(group)).unwrap();
}

fn vnic(host: &mut Host, n: u8, policy: &VnicPolicy) {
    host.declare(&id(n), mac(n), VNI, policy).unwrap();
    attach(host, &id(n));
}

fn attach(host: &mut Host, id: &str) {
    let config = GuestConfig::default();
    host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    host.moved();
}

/// Filtered vnics 0 to `n` - 1.
fn of(mut host: Host, n: u8) -> Host {
    group(&host);
    (0..n).for_each(|n| vnic(&mut host, n, &filtered(n)));
    host
}

fn put(guest: &mut Guest, frames: &[Vec<u8>]) {
    for frame in frames {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
}

/// Puts frames into a vnic's ring.
fn enqueue(host: &mut Host, n: u8, frames: &[Vec<u8>]) {
    put(host.guest(&id(n)).unwrap(), frames);
}

/// Returns what a vnic got.
fn got(host: &mut Host, n: u8) -> Vec<Vec<u8>> {
    let mut received = host.received().unwrap();
    let frames = received.remove(&id(n)).unwrap_or_default();
    assert!(received.is_empty(), "others got {:?}", received.keys());
    frames.into_iter().map(|(_, frame)| frame).collect()
}

/// Returns the counters that moved, without those of bytes.
fn moved(host: &mut Host) -> String {
    let moved = host.moved().into_iter().filter(|(name, _)| !name.ends_with("bytes"));
    moved.map(|(name, n)| format!("{name}={n}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_early_fragment_waits_for_its_first_one() {
    let mut host = of(Host::new().unwrap(), 2);
    let [first, second, last] = [0, 1, 2].map(|number| piece((0, 1), 1, number, 3));
    enqueue(&mut host, 0, &[last.clone(), second.clone()]);
    host.turn();
    assert_eq!(moved(&mut host), "v00.in.packets=2");
    enqueue(&mut host, 0, std::slice::from_ref(&first));
    host.turn();
    assert_eq!(got(&mut host, 1), [first], "it is not held up");
    host.settle();
    assert_eq!(got(&mut host, 1), [last.clone(), second]);
    assert_eq!(moved(&mut host), "v00.in.packets=1 v01.out.packets=3");
    // All of the packet was seen: the number may be used again.
    host.send(&id(0), &last, NetHeader::default()).unwrap();
    assert_eq!(moved(&mut host), "v00.drop.fragment-orphan=1 v00.in.packets=1");
}

/// The verdict on the first one holds: also if it is a refusal.
#[test]
fn what_comes_before_a_first_one_that_is_refused_is_dropped() {
    let mut host = of(Host::new().unwrap(), 2);
    let mut first = piece((0, 1), 1, 0, 2);
    first[14 + 20 + 3] = 54;
    enqueue(&mut host, 0, &[piece((0, 1), 1, 1, 2), first]);
    host.settle();
    assert_eq!(got(&mut host, 1), [[0u8; 0]; 0]);
    assert_eq!(
        moved(&mut host),
        "v00.drop.fragment-orphan=1 v00.in.packets=2 v01.drop.ingress-denied=1"
    );
}

#[test]
fn without_its_first_one_a_fragment_waits_two_milliseconds() {
    let mut host = of(Host::new().unwrap(), 2);
    host.heed_prices();
    let start = Instant::now();
    enqueue(&mut host, 0, &[piece((0, 1), 1, 1, 2)]);
    host.turn();
    assert_eq!(moved(&mut host), "v00.in.packets=1");
    let dropped = loop {
        host.turn();
        let moved = moved(&mut host);
        if !moved.is_empty() {
            break moved;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "still there");
    };
    // The tick of the counter may be a little off.
    assert!(start.elapsed() > WAIT * 9 / 10, "{:?}", start.elapsed());
    assert_eq!(dropped, "v00.drop.fragment-orphan=1");
    assert_eq!(got(&mut host, 1), [[0u8; 0]; 0]);
}

/// A sender with more than its places loses the others at once, and keeps its places.
#[test]
fn a_sender_has_eight_places() {
    let mut host = of(Host::new().unwrap(), 2);
    let late: Vec<_> = (0..OF_ONE + 2).map(|packet| piece((0, 1), packet, 1, 2)).collect();
    let first: Vec<_> = (0..OF_ONE + 2).map(|packet| piece((0, 1), packet, 0, 2)).collect();
    enqueue(&mut host, 0, &[late.clone(), first.clone()].concat());
    host.settle();
    assert_eq!(got(&mut host, 1), [&first[..], &late[..OF_ONE]].concat());
    assert_eq!(
        moved(&mut host),
        format!("v00.drop.fragment-orphan=2 v00.in.packets={0} v01.out.packets=18", 2 * late.len())
    );
}

/// All places of a worker are taken: who comes then is dropped at once, as an orphan of its own.
#[test]
fn a_worker_has_sixty_four_places() {
    let senders = (PEN / OF_ONE) as u8;
    let mut host = of(Host::new().unwrap(), senders + 2);
    let to = senders + 1;
    for n in 0..=senders {
        let late = (0..OF_ONE).map(|packet| piece((n, to), packet, 1, 2));
        let first = (0..OF_ONE).map(|packet| piece((n, to), packet, 0, 2));
        let frames: Vec<_> = late.chain(first).collect();
        enqueue(&mut host, n, &frames);
    }
    host.settle();
    assert_eq!(got(&mut host, to).len(), (2 * senders as usize + 1) * OF_ONE);
    let orphans: Vec<_> =
        host.moved().into_iter().filter(|(name, _)| name.contains(".drop.")).collect();
    let [(name, 8)] = &orphans[..] else { panic!("{orphans:?}") };
    assert!(name.ends_with("fragment-orphan"), "{name}");
    // Places come back.
    enqueue(&mut host, 0, &[piece((0, to), 99, 1, 2), piece((0, to), 99, 0, 2)]);
    host.settle();
    assert_eq!(got(&mut host, to).len(), 2);
}

/// A fragment longer than any place is dropped at once.
#[test]
fn what_is_too_long_does_not_wait() {
    let mut host = of(Host::new().unwrap(), 1);
    host.declare(&id(1), mac(1), VNI, &filtered(1)).unwrap();
    let config = GuestConfig { max_frame: 20_000, ..GuestConfig::default() };
    host.attach(&id(1), LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    host.moved();
    let ip = |len: usize| {
        let ip = build::ethernet(mac(1), mac(0)).ipv4(ip(1), ip(0));
        ip.fragment(1, PIECE, false).payload(UDP, &vec![1; len - 34])
    };
    for (len, waits) in [(9022, true), (9023, false)] {
        enqueue(&mut host, 1, &[ip(len)]);
        host.turn();
        let dropped = host.moved().contains_key("v01.drop.fragment-orphan");
        assert_eq!(!dropped, waits, "{len} bytes");
        host.settle();
        host.moved();
    }
}

/// A fragment that waits goes with its sender, and no successor in its slot sends it.
#[test]
fn a_vnic_is_removed_while_its_fragment_waits() {
    let mut host = of(Host::new().unwrap(), 2);
    enqueue(&mut host, 0, &[piece((0, 1), 1, 1, 2)]);
    host.turn();
    assert_eq!(moved(&mut host), "v00.in.packets=1");
    host.remove(&id(0));
    vnic(&mut host, 0, &filtered(0));
    enqueue(&mut host, 0, &[piece((0, 1), 1, 0, 2)]);
    host.settle();
    assert_eq!(got(&mut host, 1), [piece((0, 1), 1, 0, 2)]);
    assert_eq!(moved(&mut host), "v00.in.packets=1 v01.out.packets=1");
}

/// A receiver that is removed while a fragment waits gets nothing, nor does its successor.
#[test]
fn a_receiver_is_removed_while_a_fragment_waits() {
    let mut host = of(Host::new().unwrap(), 3);
    enqueue(&mut host, 0, &[piece((0, 1), 1, 1, 2)]);
    host.turn();
    host.remove(&id(1));
    host.declare(&id(9), mac(9), VNI + 1, &filtered(9)).unwrap();
    attach(&mut host, &id(9));
    enqueue(&mut host, 0, &[piece((0, 1), 1, 0, 2)]);
    host.settle();
    assert!(host.received().unwrap().is_empty());
}

/// Rules that end while a fragment waits do not let it pass.
#[test]
fn a_policy_changes_while_a_fragment_waits() {
    let mut host = of(Host::new().unwrap(), 2);
    enqueue(&mut host, 0, &[piece((0, 1), 1, 1, 3), piece((0, 1), 1, 0, 3)]);
    host.turn();
    host.update(&id(1), &VnicPolicy { groups: Vec::new(), ..filtered(1) }).unwrap();
    host.settle();
    assert_eq!(got(&mut host, 1), [piece((0, 1), 1, 0, 3)]);
    let drops = moved(&mut host);
    assert!(drops.contains("v00.drop.fragment-orphan=1"), "{drops}");
}

/// A frame that waits is neither counted, nor taken from a limit, nor copied to a mirror twice.
#[test]
fn a_fragment_that_waits_is_paid_for_once() {
    let mut host = of(Host::new().unwrap(), 1);
    let from_guest = Limit::new(0, 1, 0, 5).unwrap();
    let limits = Limits { from_guest, ..Limits::default() };
    vnic(&mut host, 1, &VnicPolicy { limits, ..filtered(1) });
    host.declare_mirror(&id(2), mac(2), VNI, &id(1)).unwrap();
    attach(&mut host, &id(2));
    let frames: Vec<_> = [(1, 1), (1, 0), (2, 1), (2, 0), (3, 0)]
        .map(|(packet, number)| piece((1, 0), packet, number, 2))
        .into();
    enqueue(&mut host, 1, &frames);
    host.settle();
    let mut received = host.received().unwrap();
    for n in [0, 2] {
        let mut frames = frames.clone();
        let mut got: Vec<_> = received.remove(&id(n)).unwrap_or_default();
        frames.sort();
        got.sort_by(|(_, a), (_, b)| a.cmp(b));
        assert!(got.iter().map(|(_, frame)| frame).eq(&frames), "{n} got {got:?}");
    }
    assert_eq!(moved(&mut host), "v00.out.packets=5 v01.in.packets=5 v02.out.packets=5");
    // The burst is used up by five.
    enqueue(&mut host, 1, &[piece((1, 0), 3, 1, 2)]);
    host.settle();
    assert_eq!(moved(&mut host), "");
}

/// An address that moves while a fragment of it waits stays where it is.
#[test]
fn a_fragment_that_waits_is_learnt_once() {
    let mut host = of(Host::new().unwrap(), 1);
    [1, 2, 3].into_iter().for_each(|n| vnic(&mut host, n, &bypass()));
    // Station 77 is behind vnic 1, then behind 2.
    let station = |number| piece((77, 0), 1, number, 2);
    enqueue(&mut host, 1, &[station(1)]);
    host.turn();
    let moves = build::ethernet(mac(77), mac(3)).payload(0x88b5, &[0; 46]);
    enqueue(&mut host, 2, std::slice::from_ref(&moves));
    host.turn();
    host.settle();
    host.received().unwrap();
    let to = build::ethernet(mac(3), mac(77)).payload(0x88b5, &[0; 46]);
    host.send(&id(3), &to, NetHeader::default()).unwrap();
    assert_eq!(got(&mut host, 2), [to]);
}

/// An explanation neither waits nor changes the table.
#[test]
fn an_explanation_leaves_the_table_alone() {
    let mut host = of(Host::new().unwrap(), 2);
    host.send(&id(0), &piece((0, 1), 1, 0, 2), NetHeader::default()).unwrap();
    got(&mut host, 1);
    let from = Origin::Vnic(id(0));
    for number in [1, 0] {
        host.explain_frame(&from, &piece((0, 1), 1, number, 2)).unwrap();
        host.explain_frame(&from, &piece((0, 1), 2, number, 2)).unwrap();
    }
    host.moved();
    host.settle();
    enqueue(&mut host, 0, &[piece((0, 1), 1, 1, 2), piece((0, 1), 2, 1, 2)]);
    host.settle();
    assert_eq!(got(&mut host, 1), [piece((0, 1), 1, 1, 2)]);
    assert_eq!(moved(&mut host), "v00.drop.fragment-orphan=1 v00.in.packets=2 v01.out.packets=1");
}

/// The time-out is the host's, also for what is known already.
#[test]
fn another_time_out_holds_at_once() {
    let mut host = of(Host::with_workers(2).unwrap(), 2);
    let timeouts = |fragment| Timeouts { fragment, ..Timeouts::default() };
    host.set_session_times(timeouts(5), 0);
    host.settle();
    host.send(&id(0), &piece((0, 1), 1, 0, 4), NetHeader::default()).unwrap();
    host.pass(4);
    host.send(&id(0), &piece((0, 1), 1, 1, 4), NetHeader::default()).unwrap();
    assert_eq!(got(&mut host, 1).len(), 2);
    host.set_session_times(timeouts(60), 0);
    host.pass(50);
    host.send(&id(0), &piece((0, 1), 1, 2, 4), NetHeader::default()).unwrap();
    assert_eq!(got(&mut host, 1).len(), 1);
    host.pass(6);
    host.send(&id(0), &piece((0, 1), 1, 3, 4), NetHeader::default()).unwrap();
    assert!(got(&mut host, 1).is_empty());
}

/// Pieces of packets come by two queues, which two workers serve, in every order.
#[test]
fn by_two_queues() {
    const PIECES: usize = 3;
    let mut host = of(Host::with_workers(2).unwrap(), 3);
    let mut second = host.pair_at(&id(0), 1, 1).unwrap();
    host.settle();
    host.moved();
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let mut packet = 0;
    for order in orders {
        for by in 0..1 << PIECES {
            // All at once, or with a turn of both workers after each.
            for turns in [false, true] {
                packet += 1;
                for (at, number) in order.into_iter().enumerate() {
                    let frame = [piece((0, 2), packet, number, PIECES)];
                    match by >> at & 1 {
                        0 => enqueue(&mut host, 0, &frame),
                        _ => put(&mut second, &frame),
                    }
                    if turns {
                        host.turn();
                    }
                }
                host.settle();
                while second.recv().unwrap().is_some() {}
                let mut all = got(&mut host, 2);
                all.sort();
                let mut sent: Vec<_> =
                    (0..PIECES).map(|number| piece((0, 2), packet, number, PIECES)).collect();
                sent.sort();
                let moved = moved(&mut host);
                assert_eq!(moved, "v00.in.packets=3 v02.out.packets=3", "{order:?} by {by:b}");
                assert_eq!(all, sent, "{order:?} by {by:b}");
            }
        }
    }
}

/// Multicast in fragments, the last one first, to more vnics than a turn has time for.
#[test]
fn early_fragments_of_a_flood_reach_everybody_once() {
    let mut host = of(Host::new().unwrap(), 1);
    let others = 70;
    for n in 1..=others {
        vnic(&mut host, n, &if n % 2 == 0 { bypass() } else { filtered(n) });
    }
    let link = || build::ethernet(mac(0), Mac([1, 0, 0x5e, 0, 0, 9]));
    let part = |number| part(link(), (ip(0), [224, 0, 0, 9]), 1, number, 3);
    enqueue(&mut host, 0, &[part(2), part(1), part(0)]);
    host.settle();
    let received = host.received().unwrap();
    for n in 1..=others {
        let frames = received[&id(n)].iter().map(|(_, frame)| frame.clone());
        assert_eq!(frames.collect::<Vec<_>>(), [part(0), part(2), part(1)], "{n}");
    }
    let moved = host.moved();
    assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
    assert_eq!((moved["v00.in.packets"], moved["v00.flooded"]), (3, 3));
}

/// A vnic that bypasses filters floods fragments without a first one: others that do get them.
#[test]
fn a_flood_without_a_first_one_is_for_vnics_that_bypass_filters() {
    let mut host = of(Host::new().unwrap(), 1);
    [1, 2].into_iter().for_each(|n| vnic(&mut host, n, &bypass()));
    let link = || build::ethernet(mac(1), Mac([1, 0, 0x5e, 0, 0, 9]));
    let late: Vec<_> =
        (0..OF_ONE + 1).map(|packet| part(link(), (ip(1), [224, 0, 0, 9]), packet, 1, 2)).collect();
    enqueue(&mut host, 1, &late);
    host.settle();
    // The last one found no place, and went at once.
    let mut order = late.clone();
    order.rotate_right(1);
    assert_eq!(got(&mut host, 2), order);
    assert_eq!(
        moved(&mut host),
        "v01.drop.fragment-orphan=9 v01.flooded=9 v01.in.packets=9 v02.out.packets=9"
    );
}

/// The same from another host, to one vnic and to a group.
#[test]
fn early_fragments_of_another_host_wait() {
    let mine = Mac([2, 0xbf, 0, 0, 0, 1]);
    let config = TunnelConfig::new([192, 168, 0, 1].into(), mine);
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = of(Host::with_tunnel(sessions, Some(&config)).unwrap(), 2);
    let outer = |inner: &[u8]| {
        let vxlan = [&[8, 0, 0, 0, 0, 0, VNI as u8, 0][..], inner].concat();
        let link = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 2]), mine);
        link.ipv4([192, 168, 0, 2], [192, 168, 0, 1]).udp(50_000, 4789, &vxlan)
    };
    let [first, second] = [0, 1].map(|number| piece((77, 0), 1, number, 2));
    host.arrive_together(&[outer(&second), outer(&first)]).unwrap();
    assert_eq!(got(&mut host, 0), [first.clone(), second.clone()]);
    assert_eq!(moved(&mut host), "uplink.in.packets=2 v00.out.packets=2 vni-7.in.packets=2");
    host.arrive_together(&[outer(&second)]).unwrap();
    assert!(got(&mut host, 0).is_empty());
    assert_eq!(
        moved(&mut host),
        "uplink.in.packets=1 vni-7.drop.fragment-orphan=1 vni-7.in.packets=1"
    );
    let link = || build::ethernet(mac(77), Mac([1, 0, 0x5e, 0, 0, 9]));
    let part = |number| outer(&part(link(), (ip(77), [224, 0, 0, 9]), 2, number, 2));
    host.arrive_together(&[part(1), part(0)]).unwrap();
    let received = host.received().unwrap();
    assert_eq!((received[&id(0)].len(), received[&id(1)].len()), (2, 2));
    assert!(!host.moved().keys().any(|name| name.contains(".drop.")));
}
