//! Networks that span hosts: two hosts in one process, joined by a simulated wire.

use std::{collections::BTreeMap, net::IpAddr};

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build::{self, Checksum, Ip, Tcp},
    checksum::Sum,
    ipv4::Ipv4,
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];
fn link_mac(n: u8) -> Mac {
    Mac([2, 0xbf, 0, 0, 0, n])
}

fn endpoint(n: u8, v6: bool) -> IpAddr {
    if v6 { format!("fd00::{n}").parse().unwrap() } else { IpAddr::from([192, 168, 0, n]) }
}

fn config(n: u8, v6: bool) -> TunnelConfig {
    TunnelConfig::new(endpoint(n, v6), link_mac(n))
}

fn host(config: &TunnelConfig) -> Host {
    Host::with_tunnel(SessionConfig { capacity: 4096, ..SessionConfig::default() }, Some(config))
        .unwrap()
}

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn filtered(ip: [u8; 4], groups: &[&str]) -> VnicPolicy {
    let groups = groups.iter().map(|name| GroupName::new(name).unwrap()).collect();
    VnicPolicy { ip_anti_spoof: true, ips: vec![ip.into()], groups, ..VnicPolicy::default() }
}

fn declare(host: &mut Host, id: &str, mac: Mac, vni: u32, policy: &VnicPolicy) {
    let config = GuestConfig { max_frame: 20_000, ..GuestConfig::default() };
    host.declare(id, mac, vni, policy).unwrap();
    host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
}

/// Carries frames between hosts, as a hub would, until nothing moves.
fn carry(hosts: &mut [&mut Host]) {
    loop {
        let left: Vec<Vec<Vec<u8>>> = hosts.iter_mut().map(|host| host.left().unwrap()).collect();
        if left.iter().all(Vec::is_empty) {
            return;
        }
        for (from, frames) in left.iter().enumerate() {
            for (to, host) in hosts.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                let _ = to;
                host.arrive(frames).unwrap();
            }
        }
    }
}

fn frames_of(host: &mut Host, id: &str) -> Vec<Vec<u8>> {
    host.received()
        .unwrap()
        .remove(id)
        .unwrap_or_default()
        .into_iter()
        .map(|(_, frame)| frame)
        .collect()
}

fn a_to_b() -> Ip {
    build::ethernet(A, B).ipv4(IP_A, IP_B)
}

fn b_to_a() -> Ip {
    build::ethernet(B, A).ipv4(IP_B, IP_A)
}

fn pair(v6: bool, a: &VnicPolicy, b: &VnicPolicy) -> (Host, Host) {
    let (mut one, mut two) = (host(&config(1, v6)), host(&config(2, v6)));
    declare(&mut one, "a", A, 42, a);
    declare(&mut two, "b", B, 42, b);
    (one, two)
}

/// Each learns where the other is.
fn meet(one: &mut Host, two: &mut Host) {
    one.send("a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B), NetHeader::NONE)
        .unwrap();
    carry(&mut [one, two]);
    two.send("b", &build::ethernet(B, A).arp_reply(IP_B, IP_A), NetHeader::NONE).unwrap();
    carry(&mut [one, two]);
    assert_eq!((frames_of(one, "a").len(), frames_of(two, "b").len()), (1, 1));
    one.moved();
    two.moved();
}

#[test]
fn a_broadcast_goes_to_the_group_and_its_answer_to_the_peer() {
    for v6 in [false, true] {
        let (mut one, mut two) = pair(v6, &bypass(), &bypass());
        let request = build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B);
        one.send("a", &request, NetHeader::NONE).unwrap();
        let left = one.left().unwrap();
        assert_eq!(left.len(), 1);
        let overhead = if v6 { 70 } else { 50 };
        assert_eq!(left[0][overhead..], request);
        if v6 {
            assert_eq!(left[0][..6], [0x33, 0x33, 0, 0, 0, 42]);
            assert_eq!(left[0][38..54], "ff00::2a".parse::<std::net::Ipv6Addr>().unwrap().octets());
        } else {
            assert_eq!(left[0][..6], [1, 0, 0x5e, 0, 0, 42]);
            assert_eq!(left[0][26..34], [192, 168, 0, 1, 230, 0, 0, 42]);
        }
        two.arrive(&left).unwrap();
        assert_eq!(frames_of(&mut two, "b"), [request]);
        let reply = build::ethernet(B, A).arp_reply(IP_B, IP_A);
        two.send("b", &reply, NetHeader::NONE).unwrap();
        let left = two.left().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((&left[0][..6], &left[0][6..12]), (&link_mac(1).0[..], &link_mac(2).0[..]));
        one.arrive(&left).unwrap();
        assert_eq!(frames_of(&mut one, "a"), [reply]);
        let ping = a_to_b().ping(1, 1, &[7; 300]);
        one.send("a", &ping, NetHeader::NONE).unwrap();
        carry(&mut [&mut one, &mut two]);
        assert_eq!(frames_of(&mut two, "b"), [ping]);
        assert!(one.moved().keys().chain(two.moved().keys()).all(|name| !name.contains("drop")));
    }
}

#[test]
fn named_peers_get_copies_and_a_frame_waits_for_its_next_hop() {
    let mut one = host(&config(1, false));
    declare(&mut one, "a", A, 42, &bypass());
    let (two, three) = (endpoint(2, false), endpoint(3, false));
    one.set_peers(vec![two], BTreeMap::from([(42, vec![three])])).unwrap();
    let request = build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B);
    one.send("a", &request, NetHeader::NONE).unwrap();
    one.send("a", &request, NetHeader::NONE).unwrap();
    assert_eq!(one.left().unwrap().len(), 0);
    // One for each waits, complete but for the link address; the second ones are lost.
    let waiting = one.punted();
    assert_eq!(waiting.len(), 2);
    assert!(waiting.iter().all(|frame| frame[50..] == request && frame[..6] == [0; 6]));
    assert_eq!(one.moved()["vni-42.drop.no-neighbour"], 2);
    one.set_neighbour(two, link_mac(2)).unwrap();
    one.set_neighbour(three, link_mac(3)).unwrap();
    one.send("a", &request, NetHeader::NONE).unwrap();
    let to: Vec<Vec<u8>> = one.left().unwrap().iter().map(|frame| frame[30..34].to_vec()).collect();
    assert_eq!(to, [[192, 168, 0, 2], [192, 168, 0, 3]]);
    one.set_peers(vec![three], BTreeMap::new()).unwrap();
    one.send("a", &request, NetHeader::NONE).unwrap();
    assert_eq!(one.left().unwrap().len(), 1);
    one.set_peers(vec![], BTreeMap::new()).unwrap();
    one.send("a", &request, NetHeader::NONE).unwrap();
    assert_eq!(one.left().unwrap()[0][..6], [1, 0, 0x5e, 0, 0, 42]);
}

/// A large segment cannot wait. It makes the next hop be asked for, once, and leaves the place to a
/// frame that can.
#[test]
fn a_large_segment_keeps_no_frame_from_waiting() {
    let mut one = host(&config(1, false));
    declare(&mut one, "a", A, 42, &bypass());
    one.set_peers(vec![endpoint(2, false)], BTreeMap::new()).unwrap();
    let large = segment(a_to_b(), (4000, 80), ACK, (1, 1), &[7; 10_000]);
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        gso_size: 1300,
        hdr_len: 54,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::NONE
    };
    one.send("a", &large, header).unwrap();
    one.send("a", &large, header).unwrap();
    let small = a_to_b().ping(1, 1, b"small");
    one.send("a", &small, NetHeader::NONE).unwrap();
    one.send("a", &large, header).unwrap();
    one.send("a", &small, NetHeader::NONE).unwrap();
    assert_eq!(one.left().unwrap().len(), 0);
    let asked = one.punted();
    assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), [0, 50 + small.len()]);
    assert_eq!(asked[1][50..], small);
    assert_eq!(one.moved()["vni-42.drop.no-neighbour"], 4);
    one.set_neighbour(endpoint(2, false), link_mac(2)).unwrap();
    one.send("a", &small, NetHeader::NONE).unwrap();
    assert_eq!(one.left().unwrap().len(), 1);
}

/// Several datagrams of UDP in one frame leave as packets of their own, each complete.
#[test]
fn datagrams_of_one_frame_are_packets_of_their_own() {
    for v6 in [false, true] {
        let (mut one, mut two) = pair(v6, &bypass(), &bypass());
        meet(&mut one, &mut two);
        let all: Vec<u8> = (0..9_900u32).map(|n| (n * 7 + n / 256) as u8).collect();
        let ip = a_to_b().identification(0xffff);
        let frame = ip.clone().checksum(Checksum::Partial).udp(4000, 53, &all);
        let header = NetHeader {
            flags: NetHeader::FLAG_NEEDS_CSUM,
            gso_type: NetHeader::GSO_UDP_L4,
            gso_size: 1200,
            csum_start: 34,
            csum_offset: 6,
            ..NetHeader::NONE
        };
        one.send("a", &frame, header).unwrap();
        carry(&mut [&mut one, &mut two]);
        let expected: Vec<_> = (0..)
            .zip(all.chunks(1200))
            .map(|(n, piece)| {
                ip.clone().identification(0xffffu16.wrapping_add(n)).udp(4000, 53, piece)
            })
            .collect();
        assert!(frames_of(&mut two, "b") == expected);
    }
}

fn open(port: u16) -> SecurityGroup {
    let any = Cidr::new("0.0.0.0", 0).unwrap();
    let rule =
        Rule::new(Direction::Inbound, 6, (Some(port.into()), Some(port.into())), Some(any), None)
            .unwrap();
    SecurityGroup::new(GroupName::new("web").unwrap(), [] as [&str; 0], [rule]).unwrap()
}

fn segment(
    from: Ip,
    ports: (u16, u16),
    flags: u8,
    (sequence, acknowledgement): (u32, u32),
    data: &[u8],
) -> Vec<u8> {
    from.tcp(
        &Tcp { sequence, acknowledgement, window: 1000, ..Tcp::new(ports.0, ports.1, flags) },
        data,
    )
}

/// A connection from a to port 80 of b, up to its first data.
fn connect(one: &mut Host, two: &mut Host) {
    let (out, back) = ((4000, 80), (80, 4000));
    for (from_a, frame) in [
        (true, segment(a_to_b(), out, SYN, (100, 0), b"")),
        (false, segment(b_to_a(), back, SYN | ACK, (500, 101), b"")),
        (true, segment(a_to_b(), out, ACK, (101, 501), b"")),
        (true, segment(a_to_b(), out, ACK, (101, 501), b"hello")),
        (false, segment(b_to_a(), back, ACK, (501, 106), b"")),
    ] {
        if from_a {
            one.send("a", &frame, NetHeader::NONE).unwrap()
        } else {
            two.send("b", &frame, NetHeader::NONE).unwrap()
        };
        carry(&mut [one, two]);
        let got = if from_a { frames_of(two, "b") } else { frames_of(one, "a") };
        assert_eq!(got, [frame]);
    }
}

#[test]
fn both_ends_are_filtered_where_they_are() {
    let (mut one, mut two) = pair(false, &filtered(IP_A, &[]), &filtered(IP_B, &["web"]));
    meet(&mut one, &mut two);
    let syn = segment(a_to_b(), (4000, 80), SYN, (100, 0), b"");
    one.send("a", &syn, NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert!(frames_of(&mut two, "b").is_empty());
    assert_eq!(two.moved()["b.drop.ingress-denied"], 1);
    two.change_group(&GroupName::new("web").unwrap(), GroupChange::Declare(open(80))).unwrap();
    connect(&mut one, &mut two);
    // The other direction may not be opened.
    two.send("b", &segment(b_to_a(), (4001, 80), SYN, (1, 0), b""), NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(one.moved()["a.drop.ingress-denied"], 1);
    two.change_group(&GroupName::new("web").unwrap(), GroupChange::Forget).unwrap();
    one.send("a", &segment(a_to_b(), (4000, 80), ACK, (106, 501), b"more"), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two]);
    assert!(frames_of(&mut two, "b").is_empty());
}

#[test]
fn a_vnic_that_moves_takes_its_connection_along() {
    let (mut one, mut two) = pair(false, &filtered(IP_A, &[]), &filtered(IP_B, &["web"]));
    for host in [&one, &two] {
        host.change_group(&GroupName::new("web").unwrap(), GroupChange::Declare(open(80))).unwrap();
    }
    meet(&mut one, &mut two);
    connect(&mut one, &mut two);
    // b goes to host one, where a is; then back.
    two.remove("b");
    declare(&mut one, "b", B, 42, &filtered(IP_B, &["web"]));
    one.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 106), b"data"), NetHeader::NONE)
        .unwrap();
    assert_eq!(frames_of(&mut one, "a").len(), 1);
    one.send("a", &segment(a_to_b(), (4000, 80), ACK, (106, 505), b""), NetHeader::NONE).unwrap();
    assert_eq!(frames_of(&mut one, "b").len(), 1);
    one.pass(1000); // whoever attached a moment ago may pick up anything: not any more
    one.remove("b");
    declare(&mut two, "b", B, 42, &filtered(IP_B, &["web"]));
    two.send("b", &build::ethernet(B, Mac::BROADCAST).arp_request(IP_B, IP_A), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(frames_of(&mut one, "a").len(), 1);
    one.send("a", &segment(a_to_b(), (4000, 80), ACK, (106, 505), b"again"), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(frames_of(&mut two, "b").len(), 1, "{:?} {:?}", one.moved(), two.moved());
    two.send("b", &segment(b_to_a(), (80, 4000), ACK, (505, 111), b""), NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(frames_of(&mut one, "a").len(), 1, "{:?} {:?}", one.moved(), two.moved());
    // What is no part of the connection is no part of it after the move either.
    one.send("a", &segment(a_to_b(), (4000, 80), ACK, (900_000, 505), b"x"), NetHeader::NONE)
        .unwrap();
    assert_eq!(one.moved()["a.drop.tcp-window"], 1);
}

/// a and b on host one, and a connection between them.
fn connected_on_one() -> (Host, Host) {
    let (mut one, two) = (host(&config(1, false)), host(&config(2, false)));
    declare(&mut one, "a", A, 42, &filtered(IP_A, &[]));
    declare(&mut one, "b", B, 42, &filtered(IP_B, &["web"]));
    for host in [&one, &two] {
        host.change_group(&GroupName::new("web").unwrap(), GroupChange::Declare(open(80))).unwrap();
    }
    for (from, frame) in [
        ("a", segment(a_to_b(), (4000, 80), SYN, (100, 0), b"")),
        ("b", segment(b_to_a(), (80, 4000), SYN | ACK, (500, 101), b"")),
        ("a", segment(a_to_b(), (4000, 80), ACK, (101, 501), b"")),
    ] {
        one.send(from, &frame, NetHeader::NONE).unwrap();
        assert_eq!(frames_of(&mut one, if from == "a" { "b" } else { "a" }), [frame]);
    }
    one.pass(1000); // whoever attached a moment ago may pick up anything: not any more
    (one, two)
}

/// b goes to host two, and says so.
fn b_leaves(one: &mut Host, two: &mut Host) {
    one.remove("b");
    declare(two, "b", B, 42, &filtered(IP_B, &["web"]));
    two.send("b", &build::ethernet(B, Mac::BROADCAST).arp_request(IP_B, IP_A), NetHeader::NONE)
        .unwrap();
    carry(&mut [one, two]);
    assert_eq!(frames_of(one, "a").len(), 1);
}

/// Housekeeping looks at all sessions every two seconds: not every connection has spoken since its
/// vnic moved.
#[test]
fn a_connection_that_rests_while_its_vnic_moves_goes_on() {
    for (rest, goes_on) in [(2, true), (119, true), (120, false)] {
        let (mut one, mut two) = connected_on_one();
        b_leaves(&mut one, &mut two);
        one.pass(rest);
        two.pass(rest);
        two.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 101), b"data"), NetHeader::NONE)
            .unwrap();
        carry(&mut [&mut one, &mut two]);
        assert_eq!(
            frames_of(&mut one, "a").len(),
            usize::from(goes_on),
            "{rest}: {:?}",
            one.moved()
        );
    }
}

/// Of each slot, the last eight that left it are remembered.
#[test]
fn a_connection_rests_whoever_had_the_slot_since() {
    for (others, goes_on) in [(1, true), (7, true), (8, false)] {
        let (mut one, mut two) = connected_on_one();
        b_leaves(&mut one, &mut two);
        for _ in 0..others {
            declare(&mut one, "e", Mac([2, 0, 0, 0, 0, 0xe]), 42, &bypass());
            one.remove("e");
        }
        one.pass(2);
        two.pass(2);
        two.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 101), b"data"), NetHeader::NONE)
            .unwrap();
        carry(&mut [&mut one, &mut two]);
        assert_eq!(
            frames_of(&mut one, "a").len(),
            usize::from(goes_on),
            "{others}: {:?}",
            one.moved()
        );
    }
}

#[test]
fn who_has_the_address_now_did_not_move() {
    let (mut one, mut two) = connected_on_one();
    b_leaves(&mut one, &mut two);
    // In b's place, and in one of its own.
    declare(&mut one, "e", Mac([2, 0, 0, 0, 0, 0xe]), 42, &bypass());
    declare(&mut one, "d", Mac([2, 0, 0, 0, 0, 0xd]), 42, &filtered(IP_B, &["web"]));
    two.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 101), b"data"), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(frames_of(&mut one, "a").len(), 0);
}

/// A connection goes to another host, or comes from there; between two vnics of one host it does
/// not.
#[test]
fn between_vnics_of_one_host_nothing_moves() {
    const E: Mac = Mac([2, 0, 0, 0, 0, 0xe]);
    let mut one = host(&config(1, false));
    declare(&mut one, "a", A, 42, &filtered(IP_A, &[]));
    declare(&mut one, "b", B, 42, &bypass());
    declare(&mut one, "e", E, 42, &bypass());
    for (from, frame) in [
        ("a", segment(a_to_b(), (4000, 80), SYN, (100, 0), b"")),
        ("b", segment(b_to_a(), (80, 4000), SYN | ACK, (500, 101), b"")),
        ("a", segment(a_to_b(), (4000, 80), ACK, (101, 501), b"")),
    ] {
        one.send(from, &frame, NetHeader::NONE).unwrap();
    }
    one.pass(1000); // nothing is picked up any more
    frames_of(&mut one, "a");
    one.moved();
    let other = build::ethernet(E, A).ipv4(IP_B, IP_A);
    one.send("e", &segment(other, (80, 4000), ACK, (501, 101), b"data"), NetHeader::NONE).unwrap();
    assert_eq!(
        (frames_of(&mut one, "a").len(), one.moved().get("a.drop.ingress-denied")),
        (0, Some(&1))
    );
    one.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 101), b"data"), NetHeader::NONE)
        .unwrap();
    assert_eq!(frames_of(&mut one, "a").len(), 1);
}

#[test]
fn versions_that_start_anew_leave_nothing_behind() {
    for anew in [false, true] {
        let (mut one, mut two) = connected_on_one();
        b_leaves(&mut one, &mut two);
        if anew {
            one.near_last_version();
        }
        for n in 0..4 {
            declare(&mut one, &format!("e{n}"), Mac([2, 0, 0, 0, 1, n]), 43, &bypass());
        }
        two.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 101), b"data"), NetHeader::NONE)
            .unwrap();
        carry(&mut [&mut one, &mut two]);
        assert_eq!(frames_of(&mut one, "a").len(), usize::from(!anew), "{anew}");
    }
}

/// The record of a connection from before its vnic left is out of date when the vnic comes back.
#[test]
fn a_connection_goes_there_and_back() {
    let (mut one, mut two) = pair(false, &filtered(IP_A, &[]), &filtered(IP_B, &["web"]));
    for host in [&one, &two] {
        host.change_group(&GroupName::new("web").unwrap(), GroupChange::Declare(open(80))).unwrap();
    }
    meet(&mut one, &mut two);
    connect(&mut one, &mut two);
    two.remove("b");
    declare(&mut one, "b", B, 42, &filtered(IP_B, &["web"]));
    let (mut sequence, data) = (106u32, [7; 1000]);
    for _ in 0..200 {
        one.send("a", &segment(a_to_b(), (4000, 80), ACK, (sequence, 501), &data), NetHeader::NONE)
            .unwrap();
        sequence += 1000;
        one.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, sequence), b""), NetHeader::NONE)
            .unwrap();
        assert_eq!(
            (
                frames_of(&mut one, "a").len(),
                one.moved().keys().filter(|name| name.contains("drop")).count()
            ),
            (1, 0)
        );
    }
    b_leaves(&mut one, &mut two);
    one.send("a", &segment(a_to_b(), (4000, 80), ACK, (sequence, 501), b"more"), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(frames_of(&mut two, "b").len(), 1, "{:?}", one.moved());
}

/// A station on another host that claims to be b, while b is here, gets no part of b's connections.
#[test]
fn a_vnic_that_is_here_did_not_move() {
    let (mut one, mut two) = connected_on_one();
    declare(&mut two, "c", C, 42, &bypass());
    let claim =
        segment(build::ethernet(C, A).ipv4(IP_B, IP_A), (80, 4000), ACK, (501, 101), b"claim");
    two.send("c", &claim, NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert!(frames_of(&mut one, "a").is_empty());
    one.send("b", &segment(b_to_a(), (80, 4000), ACK, (501, 101), b"truth"), NetHeader::NONE)
        .unwrap();
    assert_eq!(frames_of(&mut one, "a").len(), 1);
}

#[test]
fn what_leaves_is_complete() {
    for v6 in [false, true] {
        let config = TunnelConfig { udp6_checksum: v6, ..config(1, v6) };
        let (mut one, mut two) = (host(&config), host(&self::config(2, v6)));
        declare(&mut one, "a", A, 42, &bypass());
        declare(&mut two, "b", B, 42, &bypass());
        meet(&mut one, &mut two);
        // A partial checksum.
        let whole = a_to_b().udp(1, 2, b"some data to be summed");
        let mut partial = whole.clone();
        let pseudo = Sum::pseudo_v4(IP_A.into(), IP_B.into(), 17, 30).fold();
        partial[40..42].copy_from_slice(&pseudo.to_be_bytes());
        let header = NetHeader {
            flags: NetHeader::FLAG_NEEDS_CSUM,
            csum_start: 34,
            csum_offset: 6,
            ..NetHeader::NONE
        };
        one.send("a", &partial, header).unwrap();
        carry(&mut [&mut one, &mut two]);
        assert_eq!(frames_of(&mut two, "b"), [whole]);
        // A large segment.
        let data: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        let mut large = segment(a_to_b(), (4000, 80), ACK, (1, 1), &data);
        let pseudo = Sum::pseudo_v4(IP_A.into(), IP_B.into(), 6, (large.len() - 34) as u16).fold();
        large[50..52].copy_from_slice(&pseudo.to_be_bytes());
        let header = NetHeader {
            gso_type: NetHeader::GSO_TCPV4,
            gso_size: 1300,
            hdr_len: 54,
            csum_offset: 16,
            ..header
        };
        one.send("a", &large, header).unwrap();
        carry(&mut [&mut one, &mut two]);
        let segments = frames_of(&mut two, "b");
        assert_eq!(segments.len(), 8);
        let mut stream = Vec::<u8>::new();
        for segment in &segments {
            let ip = Ipv4::parse(&segment[14..]).unwrap();
            let payload = ip.payload().unwrap();
            assert!(
                ip.checksum_is_valid()
                    && Sum::pseudo_v4(IP_A.into(), IP_B.into(), 6, payload.len() as u16)
                        .push(payload)
                        .is_valid()
            );
            stream.extend(&payload[20..]);
        }
        assert_eq!(stream, data);
    }
}

#[test]
fn what_does_not_fit_is_too_big() {
    let (mut one, mut two) = pair(false, &bypass(), &bypass());
    meet(&mut one, &mut two);
    // 1500 bytes of MTU, of which 36 are the outer headers'.
    let frame = |len: usize| {
        let mut frame = a_to_b().dont_fragment().udp(1, 2, &vec![1; len - 42]);
        frame.truncate(len);
        frame
    };
    one.send("a", &frame(1464), NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(frames_of(&mut two, "b").len(), 1);
    one.send("a", &frame(1465), NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert!(frames_of(&mut two, "b").is_empty());
    assert_eq!(one.moved()["a.drop.too-big"], 1);
    let answers = frames_of(&mut one, "a");
    assert_eq!(answers.len(), 1);
    let ip = Ipv4::parse(&answers[0][14..]).unwrap();
    assert_eq!((ip.source(), ip.destination()), (IP_B.into(), IP_A.into()));
    let icmp = ip.payload().unwrap();
    assert_eq!(
        (icmp[0], icmp[1], &icmp[6..8], Sum::of(icmp).is_valid()),
        (3, 4, &1450u16.to_be_bytes()[..], true)
    );
    for _ in 0..1000 {
        one.send("a", &frame(1465), NetHeader::NONE).unwrap();
        frames_of(&mut one, "a");
    }
    let moved = one.moved();
    assert_eq!(moved["a.drop.too-big"], 1000);
    assert!(moved["a.out.packets"] <= 101, "{moved:?}");
}

/// A frame that gets no answer (broadcasts, a frame that may be fragmented, no IP) takes nothing
/// from the answers of a second.
#[test]
fn what_gets_no_answer_takes_none() {
    let (mut one, mut two) = pair(false, &bypass(), &bypass());
    meet(&mut one, &mut two);
    let data = [1; 1470];
    let silent = [
        a_to_b().udp(1, 2, &data),
        build::ethernet(A, Mac::BROADCAST).ipv4(IP_A, [255; 4]).dont_fragment().udp(1, 2, &data),
        build::ethernet(A, B).payload(0x88b5, &data),
    ];
    for _ in 0..100 {
        silent.iter().for_each(|frame| one.send("a", frame, NetHeader::NONE).unwrap());
    }
    assert!(frames_of(&mut one, "a").is_empty());
    one.send("a", &a_to_b().dont_fragment().udp(1, 2, &data), NetHeader::NONE).unwrap();
    assert_eq!(frames_of(&mut one, "a").len(), 1);
    assert_eq!(one.moved()["a.drop.too-big"], 301);
}

/// However many hosts it would have gone to.
#[test]
fn a_flood_that_is_too_big_is_one_drop_and_one_answer() {
    let mut one = host(&config(1, false));
    declare(&mut one, "a", A, 42, &bypass());
    one.set_peers(vec![endpoint(2, false), endpoint(3, false)], BTreeMap::new()).unwrap();
    one.send("a", &a_to_b().dont_fragment().udp(1, 2, &[1; 1450]), NetHeader::NONE).unwrap();
    assert_eq!(one.moved()["a.drop.too-big"], 1);
    assert_eq!(frames_of(&mut one, "a").len(), 1);
    assert!(one.left().unwrap().is_empty() && one.punted().is_empty());
}

#[test]
fn what_arrives_is_looked_at() {
    let (mut one, mut two) = pair(false, &bypass(), &filtered(IP_B, &[]));
    meet(&mut one, &mut two);
    one.send("a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B), NetHeader::NONE)
        .unwrap();
    let good = one.left().unwrap().remove(0);
    let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut case = |reason: &'static str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame[24..26].copy_from_slice(&[0, 0]);
        let sum = Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        cases.push((reason, frame));
    };
    case("not-ours", &|frame| frame[33] = 43); // another group
    case("not-ours", &|frame| frame[30..34].copy_from_slice(&[192, 168, 0, 3]));
    case("not-ours", &|frame| frame[37] = 0xb6); // another port
    case("not-ours", &|frame| frame[23] = 132);
    case("not-ours", &|frame| frame[12..14].copy_from_slice(&[0x88, 0xcc]));
    case("outer-malformed", &|frame| frame[26..30].copy_from_slice(&[192, 168, 0, 2])); // from ourselves
    case("outer-malformed", &|frame| frame[26..30].copy_from_slice(&[224, 0, 0, 1]));
    case("outer-malformed", &|frame| frame[17] = 0xff); // longer than it is
    case("outer-malformed", &|frame| frame[39] = 20); // no room for a frame
    case("outer-malformed", &|frame| frame[40..42].copy_from_slice(&[1, 2])); // wrong checksum
    case("outer-fragment", &|frame| frame[20] = 0x20);
    case("vxlan-flags", &|frame| frame[42] = 0x0c);
    case("vxlan-flags", &|frame| frame[49] = 1);
    case("unknown-vni", &|frame| {
        frame[48] = 43;
        frame[33] = 43;
    });
    let mut bad_sum = good.clone();
    bad_sum[24] ^= 1;
    cases.push(("outer-malformed", bad_sum));
    // Other protocols over UDP have less to say than VXLAN has to.
    let udp = |port: u16, payload: &[u8]| {
        build::ethernet(link_mac(1), link_mac(2))
            .ipv4([192, 168, 0, 1], [192, 168, 0, 2])
            .udp(4000, port, payload)
    };
    for payload in [&b""[..], &[1; 7], &[1; 8]] {
        cases.push(("not-ours", udp(53, payload)));
    }
    cases.push(("outer-malformed", udp(4789, &[1; 7])));
    // There are no ports.
    let mut cut = udp(53, b"");
    cut.truncate(34);
    cut[17] = 20;
    cut[24..26].copy_from_slice(&[0, 0]);
    let sum = Sum::of(&cut[14..34]).checksum();
    cut[24..26].copy_from_slice(&sum.to_be_bytes());
    cases.push(("outer-malformed", cut));
    for (reason, frame) in cases {
        two.moved();
        two.arrive(&[frame]).unwrap();
        let moved = two.moved();
        assert_eq!(moved.get(&format!("uplink.drop.{reason}")), Some(&1), "{reason}: {moved:?}");
        assert!(frames_of(&mut two, "b").is_empty(), "{reason}");
    }
    // Cut short anywhere, it is never delivered.
    for len in 14..good.len() {
        two.arrive(&[good[..len].to_vec()]).unwrap();
        assert!(frames_of(&mut two, "b").is_empty(), "{len}");
    }
    // Padding is no part of it, a checksum that is there has to be right, and a switch may leave
    // one tag.
    let mut padded = good.clone();
    padded.extend([9; 20]);
    let mut summed = good.clone();
    let pseudo = [&good[26..34], &[0, 17], &good[38..40], &good[34..]].concat();
    summed[40..42].copy_from_slice(&Sum::of(&pseudo).checksum().to_be_bytes());
    let mut tagged = good.clone();
    tagged.splice(12..12, [0x81, 0, 0xe0, 0]);
    for taken in [&padded, &summed, &tagged] {
        two.arrive(std::slice::from_ref(taken)).unwrap();
        assert_eq!(frames_of(&mut two, "b"), [good[50..].to_vec()], "{taken:02x?}");
    }
    tagged.splice(12..12, [0x81, 0, 0, 8]);
    two.arrive(&[tagged]).unwrap();
    assert!(frames_of(&mut two, "b").is_empty(), "two tags");
    // A source that a filtered vnic of this host owns.
    let mut claimed = good.clone();
    claimed[56..62].copy_from_slice(&B.0);
    two.moved();
    two.arrive(&[claimed]).unwrap();
    assert_eq!(two.moved()["vni-42.drop.mac-claimed"], 1);
}

#[test]
fn nothing_goes_back_to_where_it_came_from() {
    let (mut one, mut two) = pair(false, &bypass(), &bypass());
    let mut three = host(&config(3, false));
    declare(&mut three, "c", C, 42, &bypass());
    one.send("a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two, &mut three]);
    assert_eq!((frames_of(&mut two, "b").len(), frames_of(&mut three, "c").len()), (1, 1));
    three
        .send("c", &build::ethernet(C, A).ipv4([10, 0, 0, 3], IP_A).udp(1, 2, b""), NetHeader::NONE)
        .unwrap();
    carry(&mut [&mut one, &mut two, &mut three]);
    assert_eq!(frames_of(&mut one, "a").len(), 1);
    assert_eq!(two.moved().get("uplink.drop.not-ours"), Some(&1));
    // Host two knows both; a frame from one for the other is none of its business.
    one.send("a", &build::ethernet(A, C).ipv4(IP_A, [10, 0, 0, 3]).udp(1, 2, b""), NetHeader::NONE)
        .unwrap();
    let mut left = one.left().unwrap();
    left[0][30..34].copy_from_slice(&[230, 0, 0, 42]);
    let sum = {
        left[0][24..26].copy_from_slice(&[0, 0]);
        Sum::of(&left[0][14..34]).checksum()
    };
    left[0][24..26].copy_from_slice(&sum.to_be_bytes());
    two.arrive(&left).unwrap();
    assert!(two.left().unwrap().is_empty());
}

#[test]
fn strict_peers_are_the_only_ones_heard() {
    let mut one = host(&config(1, false));
    let mut two = host(&TunnelConfig { strict_peers: true, ..config(2, false) });
    declare(&mut one, "a", A, 42, &bypass());
    declare(&mut two, "b", B, 42, &bypass());
    let request = build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B);
    for (named, arrives) in [(false, 0), (true, 1)] {
        if named {
            two.set_peers(vec![endpoint(1, false)], BTreeMap::new()).unwrap();
        }
        one.send("a", &request, NetHeader::NONE).unwrap();
        carry(&mut [&mut one, &mut two]);
        assert_eq!(frames_of(&mut two, "b").len(), arrives);
    }
    assert_eq!(two.moved()["uplink.drop.unknown-peer"], 1);
}

/// The underlay is one VLAN, or none: a station in another VLAN of that wire is not heard, and all
/// frames that leave are tagged.
#[test]
fn the_underlay_is_one_vlan() {
    let in_vlan = |n, v6, vlan| host(&TunnelConfig { vlan, ..config(n, v6) });
    let tag = |frame: &[u8], tci: u16| {
        [&frame[..12], &[0x81, 0], &tci.to_be_bytes(), &frame[12..]].concat()
    };
    for (v6, vlan) in [(false, 0), (true, 0), (false, 42), (true, 42), (false, 4094)] {
        let (mut one, mut two) = (in_vlan(1, v6, vlan), in_vlan(2, v6, vlan));
        declare(&mut one, "a", A, 42, &bypass());
        declare(&mut two, "b", B, 42, &bypass());
        meet(&mut one, &mut two);
        let ping = a_to_b().ping(1, 1, &[7; 300]);
        one.send("a", &ping, NetHeader::NONE).unwrap();
        let left = one.left().unwrap().remove(0);
        let bare = if vlan == 0 { left.clone() } else { [&left[..12], &left[16..]].concat() };
        if vlan != 0 {
            assert_eq!(left[12..16], tag(&bare, vlan)[12..16]);
        }
        let overhead = if v6 { 70 } else { 50 };
        assert_eq!(bare[overhead..], ping);
        let variants = [
            (None, vlan == 0),
            (Some(0), vlan == 0),
            (Some(0xe000), vlan == 0),
            (Some(vlan), true),
            (Some(0xb000 | vlan), true),
            (Some(vlan + 1), false),
            (Some(vlan ^ 0x800), false),
        ];
        // The slow reader, too: an IPv4 header with another type of service is read by the quick
        // one, a checksum by both.
        for (tci, heard) in variants {
            let frame = tci.map_or(bare.clone(), |tci| tag(&bare, tci));
            two.moved();
            two.arrive(&[frame]).unwrap();
            let moved = two.moved();
            let expected = if heard { vec![ping.clone()] } else { Vec::new() };
            assert_eq!(frames_of(&mut two, "b"), expected, "{vlan} {tci:?} {moved:?}");
            assert_eq!(
                moved.get("uplink.drop.other-vlan").copied().unwrap_or(0),
                u64::from(!heard),
                "{vlan} {tci:?}"
            );
        }
        // A tag of another kind is none of ours, nor are two.
        let service = [&bare[..12], &[0x88, 0xa8], &vlan.to_be_bytes(), &bare[12..]].concat();
        for frame in [service, tag(&tag(&bare, 7), vlan), tag(&tag(&bare, vlan), 7)] {
            two.arrive(&[frame]).unwrap();
            assert!(frames_of(&mut two, "b").is_empty());
        }
        assert!(!two.moved().keys().any(|name| name.starts_with("b.")));
    }
}

/// A live migration: the machine of b goes from host two to host three, where its vnic was declared
/// before it came. It says nothing.
#[test]
fn a_machine_that_migrated_is_reached_without_a_word_of_it() {
    const D: Mac = Mac([2, 0, 0, 0, 0, 0xd]);
    for v6 in [false, true] {
        let [mut one, mut two, mut three] = [1, 2, 3].map(|n| host(&config(n, v6)));
        let b = VnicPolicy {
            ips: vec![IP_B.into(), "fd00::2".parse().unwrap()],
            ..filtered(IP_B, &["web"])
        };
        for host in [&one, &two, &three] {
            host.change_group(&GroupName::new("web").unwrap(), GroupChange::Declare(open(80)))
                .unwrap();
        }
        declare(&mut one, "a", A, 42, &bypass());
        declare(&mut two, "b", B, 42, &b);
        declare(&mut two, "d", D, 42, &bypass());
        declare(&mut three, "c", C, 42, &bypass());
        three.declare("b", B, 42, &b).unwrap();
        two.send(
            "b",
            &build::ethernet(B, Mac::BROADCAST).ipv4(IP_B, [255; 4]).udp(1, 2, b"here"),
            NetHeader::NONE,
        )
        .unwrap();
        carry(&mut [&mut one, &mut two, &mut three]);
        for (host, id) in [(&mut one, "a"), (&mut two, "d"), (&mut three, "c")] {
            assert_eq!(frames_of(host, id).len(), 1, "{id}");
        }
        let mut port = 1000;
        let mut reach = |one: &mut Host, two: &mut Host, three: &mut Host, moved: bool| {
            for (from, mac) in [("a", A), ("d", D), ("c", C)] {
                port += 1;
                let syn = segment(
                    build::ethernet(mac, B).ipv4([10, 0, 0, mac.0[5]], IP_B),
                    (port, 80),
                    SYN,
                    (100, 0),
                    b"",
                );
                let sender = match from {
                    "a" => &mut *one,
                    "d" => &mut *two,
                    _ => &mut *three,
                };
                sender.send(from, &syn, NetHeader::NONE).unwrap();
                carry(&mut [one, two, three]);
                let [at, other] =
                    if moved { [&mut *three, &mut *two] } else { [&mut *two, &mut *three] };
                assert_eq!(
                    (frames_of(at, "b"), frames_of(other, "b")),
                    (vec![syn], vec![]),
                    "{from}, moved: {moved}"
                );
            }
        };
        reach(&mut one, &mut two, &mut three, false);
        // While it has not come, nothing is announced.
        three.announce("b").unwrap();
        assert!(three.left().unwrap().is_empty() && !three.moved().contains_key("b.announced"));
        assert!(two.detach("b").is_some());
        let guest = GuestConfig { max_frame: 20_000, ..GuestConfig::default() };
        three.attach("b", LINUX, &guest, &MemoryConfig::new(guest.memory_needed())).unwrap();
        three.announce("b").unwrap();
        // RARP, ARP and an advertisement, four times, to everyone, and nothing of it is dropped
        // anywhere.
        carry(&mut [&mut one, &mut two, &mut three]);
        for (host, id) in [(&mut one, "a"), (&mut two, "d"), (&mut three, "c")] {
            let heard = frames_of(host, id);
            let kinds: Vec<u16> =
                heard.iter().map(|frame| u16::from_be_bytes([frame[12], frame[13]])).collect();
            assert_eq!(kinds, [0x8035, 0x0806, 0x86dd].repeat(4), "{id}");
            assert!(heard.iter().all(|frame| frame[6..12] == B.0));
        }
        assert_eq!(three.moved()["b.announced"], 12);
        reach(&mut one, &mut two, &mut three, true);
        // And back: the one that had it takes it up again.
        assert!(three.detach("b").is_some());
        two.attach("b", LINUX, &guest, &MemoryConfig::new(guest.memory_needed())).unwrap();
        two.announce("b").unwrap();
        carry(&mut [&mut one, &mut two, &mut three]);
        for (host, id) in [(&mut one, "a"), (&mut two, "d"), (&mut three, "c")] {
            frames_of(host, id);
        }
        reach(&mut one, &mut two, &mut three, false);
    }
}

/// A frame as another host sends it, from whatever address it likes.
fn outer(from: [u8; 4], to: [u8; 4], vni: u32, inner: &[u8]) -> Vec<u8> {
    let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), inner].concat();
    build::ethernet(link_mac(from[3]), link_mac(2)).ipv4(from, to).udp(50_000, 4789, &vxlan)
}

#[test]
fn a_strict_peer_is_heard_in_the_networks_it_was_named_for() {
    let mut two = host(&TunnelConfig { strict_peers: true, ..config(2, false) });
    declare(&mut two, "b", B, 7, &bypass());
    declare(&mut two, "c", C, 8, &bypass());
    let [one, other] = [endpoint(1, false), endpoint(3, false)];
    two.set_peers(vec![other], BTreeMap::from([(7, vec![one])])).unwrap();
    let to = |to: Mac| build::ethernet(A, to).ipv4(IP_A, IP_B).ping(1, 1, b"x");
    let frame = |from: u8, vni, mac| outer([192, 168, 0, from], [192, 168, 0, 2], vni, &to(mac));
    let arrives = |two: &mut Host, frames: &[Vec<u8>]| {
        let wire = two.wire().unwrap();
        for frame in frames {
            wire.enqueue(frame, NetHeader::default()).unwrap();
        }
        wire.flush();
        two.settle();
        let received = two.received().unwrap();
        ["b", "c"].map(|id| received.get(id).map_or(0, Vec::len))
    };
    // One after the other in a batch: what was found for one network is not true for the next.
    let frames = [
        frame(1, 7, B),
        frame(1, 8, C),
        frame(1, 7, B),
        frame(3, 7, B),
        frame(3, 8, C),
        frame(1, 8, C),
    ];
    assert_eq!(arrives(&mut two, &frames), [3, 1]);
    assert_eq!(two.moved()["uplink.drop.unknown-peer"], 2);
    two.set_peers(vec![other], BTreeMap::from([(7, vec![one]), (8, vec![one])])).unwrap();
    assert_eq!(arrives(&mut two, &frames), [3, 3]);
    two.set_peers(vec![other], BTreeMap::from([(8, vec![one])])).unwrap();
    assert_eq!(arrives(&mut two, &frames), [1, 3]);
    two.set_peers(Vec::new(), BTreeMap::new()).unwrap();
    assert_eq!(arrives(&mut two, &frames), [0, 0]);
}

/// 4,096 forged outer sources, and many more, of one network: hosts of others are learnt, and so is
/// what is behind them.
#[test]
fn forged_outer_sources_of_one_network_leave_room_for_the_hosts_of_others() {
    let mut two = host(&config(2, false));
    declare(&mut two, "b", B, 7, &bypass());
    declare(&mut two, "c", C, 8, &bypass());
    let ping = |from: Mac, to: Mac| build::ethernet(from, to).ipv4(IP_A, IP_B).ping(1, 1, b"x");
    for n in 0..20_000u32 {
        let [_, a, b, c] = n.to_be_bytes();
        two.arrive(&[outer([10, a, b, c], [192, 168, 0, 2], 7, &ping(Mac([2, 9, 0, a, b, c]), B))])
            .unwrap();
        frames_of(&mut two, "b");
    }
    let refused = two.moved()["vni-7.learn-refused"];
    assert!(refused >= 20_000 - 4_096, "{refused}");
    // A host of network 8 speaks once; the answer goes to it alone, not to the group.
    for n in 1..=100u8 {
        let station = Mac([2, 8, 0, 0, 0, n]);
        two.arrive(&[outer([192, 168, 1, n], [192, 168, 0, 2], 8, &ping(station, C))]).unwrap();
        frames_of(&mut two, "c");
        two.send("c", &ping(C, station), NetHeader::NONE).unwrap();
        let left = two.left().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0][30..34], [192, 168, 1, n], "host {n}");
    }
    assert!(!two.moved().contains_key("vni-8.learn-refused"));
}

/// 24 networks get as many forged stations as they take: another network learns its own.
#[test]
fn networks_that_learn_all_they_can_leave_room_for_another() {
    let mut two = host(&config(2, false));
    for vni in 1..=24u8 {
        declare(&mut two, &format!("v{vni}"), Mac([2, 0, 0, 0, 1, vni]), vni.into(), &bypass());
    }
    declare(&mut two, "b", B, 42, &bypass());
    let ping = |from: Mac, to: Mac| build::ethernet(from, to).ipv4(IP_A, IP_B).ping(1, 1, b"x");
    for vni in 1..=24u8 {
        for n in 0..8_300u32 {
            let [_, a, b, c] = n.to_be_bytes();
            let frame = ping(Mac([2, 9, vni, a, b, c]), Mac([2, 0, 0, 0, 1, vni]));
            two.arrive(&[outer([192, 168, 0, 1], [192, 168, 0, 2], vni.into(), &frame)]).unwrap();
        }
        frames_of(&mut two, "b");
    }
    let filled = two.learnt();
    assert!(filled > 90_000, "{filled}");
    two.moved();
    // Its part of half the table: 49,152 addresses for 25 networks.
    for n in 0..1_966u32 {
        let [_, _, b, c] = n.to_be_bytes();
        let frame = ping(Mac([2, 8, 0, 0, b, c]), B);
        two.arrive(&[outer([192, 168, 0, 1], [192, 168, 0, 2], 42, &frame)]).unwrap();
        frames_of(&mut two, "b");
    }
    assert_eq!(two.learnt(), filled + 1_966);
    assert!(!two.moved().contains_key("vni-42.learn-refused"));
}

/// An IPv6 address that stands for one of IPv4 is not that.
#[test]
fn a_mapped_address_is_nobody_s() {
    let mut two = host(&TunnelConfig { strict_peers: true, ..config(2, false) });
    declare(&mut two, "b", B, 42, &bypass());
    two.set_peers(vec![endpoint(1, false)], BTreeMap::new()).unwrap();
    let inner = [
        &[8, 0, 0, 0, 0, 0, 42, 0][..],
        &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B),
    ]
    .concat();
    let mapped = |n: u8| std::net::Ipv4Addr::new(192, 168, 0, n).to_ipv6_mapped();
    two.arrive(&[build::ethernet(link_mac(1), link_mac(2))
        .ipv6(mapped(1), mapped(2))
        .udp(50_000, 4789, &inner)])
        .unwrap();
    assert!(frames_of(&mut two, "b").is_empty());
    assert_eq!(two.moved()["uplink.drop.outer-malformed"], 1);
    let real = build::ethernet(link_mac(1), link_mac(2)).ipv4([192, 168, 0, 1], [192, 168, 0, 2]);
    two.arrive(&[real.udp(50_000, 4789, &inner)]).unwrap();
    assert_eq!(frames_of(&mut two, "b").len(), 1);
}

#[test]
fn a_host_that_is_alone_again_forgets() {
    let (mut one, mut two) = pair(false, &bypass(), &bypass());
    meet(&mut one, &mut two);
    assert_eq!(one.learnt(), 1);
    one.remove("a");
    assert_eq!(one.learnt(), 0);
    two.send("b", &build::ethernet(B, A).arp_reply(IP_B, IP_A), NetHeader::NONE).unwrap();
    carry(&mut [&mut one, &mut two]);
    assert_eq!(one.moved()["uplink.drop.unknown-vni"], 1);
    declare(&mut one, "a", A, 42, &bypass());
    meet(&mut one, &mut two);
}

/// From any bytes that arrive: each delivered frame was in a frame of that network, to us, of the
/// length that it says.
#[test]
fn garbage_on_the_wire_stays_there() {
    let (mut one, mut two) = pair(false, &bypass(), &bypass());
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % n as u64) as usize
    };
    one.send("a", &a_to_b().udp(1, 2, &[7; 100]), NetHeader::NONE).unwrap();
    let good = one.left().unwrap().remove(0);
    let (mut sent, mut delivered) = (0u64, 0u64);
    for _ in 0..20_000 {
        let mut frame = good.clone();
        for _ in 0..=next(3) {
            let at = next(70);
            frame[at] = if next(2) == 0 { next(256) as u8 } else { frame[at] ^ 1 << next(8) };
        }
        if next(4) == 0 {
            frame.truncate(14 + next(frame.len() - 13));
        }
        if next(2) == 0 && frame.len() > 34 {
            frame[24..26].copy_from_slice(&[0, 0]);
            let sum = Sum::of(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        sent += 1;
        two.arrive(std::slice::from_ref(&frame)).unwrap();
        for got in frames_of(&mut two, "b") {
            delivered += 1;
            let inner = frame.windows(got.len()).position(|part| part == got).unwrap();
            // Behind 50 bytes of headers, more with a tag or options, of which the last say the
            // network.
            assert!(
                inner >= 50 && frame[inner - 8..inner] == [8, 0, 0, 0, 0, 0, 42, 0],
                "{frame:02x?}"
            );
            assert!(
                [[192, 168, 0, 2], [230, 0, 0, 42]].contains(&frame[30..34].try_into().unwrap())
            );
        }
        two.punted();
    }
    assert!(delivered > 500 && delivered < sent / 2, "{delivered} of {sent}");
    let moved = two.moved();
    let drops: u64 = moved.iter().filter(|(name, _)| name.contains("drop")).map(|(_, n)| n).sum();
    assert!(drops > 5000, "{moved:?}");
}
