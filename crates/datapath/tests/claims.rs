//! Claims in packet walks: the address of a filtered vnic belongs to no other vnic. Every counter
//! that moves is named.

use std::net::Ipv6Addr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build::{self, Link, Tcp},
    ethernet::{self, Llc, Tag},
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;
use proptest::prelude::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const D: Mac = Mac([2, 0, 0, 0, 0, 0xd]);
const FAR: Mac = Mac([2, 0, 0, 0, 9, 9]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];
const IP_C: [u8; 4] = [10, 0, 0, 3];
const V6_A: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xa);
const V6_B: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xb);
const V6_C: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xc);
const LOCAL_A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xa);
const VNI: u32 = 7;

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

/// Returns the policy of a filtered vnic, of a group that lets in all packets from members of
/// `trusted`.
fn filtered(ips: &[&str]) -> VnicPolicy {
    let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
    VnicPolicy { ip_anti_spoof: true, ips, groups: vec![group("inside")], ..VnicPolicy::default() }
}

fn bypass(ips: &[&str]) -> VnicPolicy {
    VnicPolicy {
        bypass: true,
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..VnicPolicy::default()
    }
}

struct World {
    host: Host,
}

impl World {
    /// a (trusted) and b are filtered, c bypasses filters, d is filtered without anti-spoofing;
    /// other hosts are at an uplink.
    fn new() -> World {
        let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
        let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
        let mut world = World { host: Host::with_tunnel(sessions, Some(&config)).unwrap() };
        let inside = SecurityGroup::new(
            group("inside"),
            &[] as &[&str],
            [Rule::new(Direction::Inbound, -1, (None, None), None, Some(group("trusted")))
                .unwrap()],
        );
        let trusted = SecurityGroup::new(group("trusted"), ["10.0.0.1", "2001:db8::a"], []);
        for declared in [inside, trusted] {
            let declared = declared.unwrap();
            world
                .host
                .change_group(&declared.name().clone(), GroupChange::Declare(declared))
                .unwrap();
        }
        world.add("a", A, &filtered(&["10.0.0.1", "2001:db8::a"]));
        world.add("b", B, &filtered(&["10.0.0.2", "2001:db8::b"]));
        world.add("c", C, &bypass(&[]));
        world.add("d", D, &VnicPolicy { ip_anti_spoof: false, ..filtered(&["10.0.0.4"]) });
        world.settle();
        world
    }

    fn add(&mut self, id: &str, mac: Mac, policy: &VnicPolicy) {
        let config = GuestConfig::default();
        self.host.declare(id, mac, VNI, policy).unwrap();
        self.host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        self.settle();
    }

    fn settle(&mut self) {
        self.host.settle();
        self.host.received().unwrap();
        self.host.left().unwrap();
        self.host.moved();
    }

    /// Sends a frame from a vnic. Returns the receivers and all counters that moved, except bytes.
    fn send(&mut self, from: &str, frame: &[u8]) -> String {
        self.host.send(from, frame, NetHeader::default()).unwrap();
        self.told()
    }

    /// Sends a frame from another host, and returns the same.
    fn arrives(&mut self, frame: &[u8]) -> String {
        let inner = frame.to_vec();
        let outer = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 2]), Mac([2, 0xbf, 0, 0, 0, 1]))
            .ipv4([192, 168, 0, 2], [192, 168, 0, 1])
            .udp(4789, 4789, &[&[8, 0, 0, 0, 0, 0, VNI as u8, 0][..], &inner].concat());
        self.host.arrive(&[outer]).unwrap();
        self.told()
    }

    fn told(&mut self) -> String {
        let received = self.host.received().unwrap();
        let left = self.host.left().unwrap().len();
        let moved = self.host.moved();
        let counted = |name: &&String| {
            !name.ends_with(".bytes") && !name.contains("packets") && !name.contains("flooded")
        };
        let drops = moved
            .iter()
            .filter(|(name, _)| counted(name))
            .map(|(name, n)| format!("{}={n}", name.replace("drop.", "")));
        let mut words: Vec<String> = received.keys().cloned().collect();
        words.extend((left > 0).then(|| "wire".to_owned()));
        words.extend(drops);
        words.join(" ")
    }
}

fn to_all(from: Mac) -> Link {
    build::ethernet(from, Mac::BROADCAST)
}

/// An advertisement (136), solicitation (135), router solicitation (133) or redirect (137) about an
/// address.
fn discovery(
    link: &Link,
    kind: u8,
    source: Ipv6Addr,
    target: Ipv6Addr,
    option: Option<Mac>,
) -> Vec<u8> {
    let mut body = match kind {
        133 => Vec::new(),
        137 => [target.octets(), target.octets()].concat(),
        _ => target.octets().to_vec(),
    };
    let option_kind = if kind == 136 || kind == 137 { 2 } else { 1 };
    body.extend(option.into_iter().flat_map(|mac| [&[option_kind, 1][..], &mac.0].concat()));
    let [.., x, y, z] = target.octets();
    let destination = match source.is_unspecified() {
        true => Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z]),
        false => Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    };
    link.clone().ipv6(source, destination).ttl(255).icmp(kind, 0, 0, &body)
}

/// Returns every ARP packet by which a port can claim an address.
fn arp_claims(from: Mac, address: [u8; 4]) -> Vec<(&'static str, Vec<u8>)> {
    let (all, one) = (to_all(from), build::ethernet(from, B));
    let plain = all.arp_request(address, IP_B);
    let of_802 = || {
        let mut frame = plain.clone();
        frame[15] = 6;
        frame
    };
    vec![
        ("request", plain.clone()),
        ("announcement", all.arp_request(address, address)),
        ("gratuitous reply", all.arp_reply(address, address)),
        ("reply to one", one.arp_reply(address, IP_B)),
        ("probe", all.arp_request([0, 0, 0, 0], address)),
        ("behind a tag", all.clone().vlan(5).arp_reply(address, address)),
        ("behind a priority", all.clone().vlan(0).arp_reply(address, address)),
        (
            "behind two tags",
            all.clone().tag(Tag { tpid: 0x88a8, tci: 5 }).vlan(6).arp_request(address, address),
        ),
        ("hardware of IEEE 802", of_802()),
        (
            "behind SNAP",
            all.llc(&Llc {
                dsap: 0xaa,
                ssap: 0xaa,
                control: 3,
                snap: Some((0, ethernet::ARP)),
                payload: &plain[14..],
            }),
        ),
    ]
}

/// Returns every message of neighbour discovery by which a port can claim an address.
fn discovery_claims(from: Mac, address: Ipv6Addr, own: Ipv6Addr) -> Vec<(&'static str, Vec<u8>)> {
    let all = build::ethernet(from, Mac([0x33, 0x33, 0, 0, 0, 1]));
    let none = Ipv6Addr::UNSPECIFIED;
    vec![
        ("advertisement", discovery(&all, 136, own, address, Some(from))),
        ("advertisement without link address", discovery(&all, 136, own, address, None)),
        ("advertisement from it", discovery(&all, 136, address, own, Some(from))),
        ("solicitation from it", discovery(&all, 135, address, V6_B, Some(from))),
        ("router solicitation from it", discovery(&all, 133, address, V6_B, Some(from))),
        ("probe", discovery(&all, 135, none, address, None)),
        ("advertisement behind a tag", discovery(&all.vlan(5), 136, own, address, Some(from))),
    ]
}

#[test]
fn nobody_claims_the_address_of_a_filtered_vnic() {
    let mut world = World::new();
    for (what, frame) in arp_claims(C, IP_A) {
        assert_eq!(world.send("c", &frame), "c.ip-claimed=1", "{what}");
    }
    for (what, frame) in arp_claims(D, IP_A) {
        assert_eq!(world.send("d", &frame), "d.ip-claimed=1", "{what}");
    }
    for (what, frame) in arp_claims(FAR, IP_A) {
        assert_eq!(world.arrives(&frame), "vni-7.ip-claimed=1", "{what}");
    }
    for address in [V6_A, LOCAL_A] {
        for (what, frame) in discovery_claims(C, address, V6_C) {
            assert_eq!(world.send("c", &frame), "c.ip-claimed=1", "{what} of {address}");
        }
        for (what, frame) in discovery_claims(FAR, address, V6_C) {
            assert_eq!(world.arrives(&frame), "vni-7.ip-claimed=1", "{what} of {address}");
        }
    }
}

/// A frame that claims nothing passes as before: about other addresses, from the owner, about
/// another vnic.
#[test]
fn what_claims_nothing_passes() {
    let mut world = World::new();
    for (what, frame) in arp_claims(C, IP_C) {
        let receivers = if what == "reply to one" { "b" } else { "a b d wire" };
        assert_eq!(world.send("c", &frame), receivers, "{what}");
    }
    for (what, frame) in discovery_claims(C, V6_C, V6_C) {
        // What hosts say to routers is not for a filtered vnic.
        let refused = "wire a.for-routers=1 b.for-routers=1 d.for-routers=1";
        let receivers = if what.starts_with("router") { refused } else { "a b d wire" };
        assert_eq!(world.send("c", &frame), receivers, "{what}");
    }
    let own = to_all(A).arp_reply(IP_A, IP_A);
    assert_eq!(world.send("a", &own), "b c d wire");
    // Asking for it is no claim.
    assert_eq!(world.send("c", &to_all(C).arp_request(IP_C, IP_A)), "a b d wire");
    let multicast = build::ethernet(C, Mac([0x33, 0x33, 0, 0, 0, 1]));
    assert_eq!(world.send("c", &discovery(&multicast, 135, V6_C, V6_A, Some(C))), "a b d wire");
    // A router says where on the link it is, truly; not elsewhere.
    let local_c = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xc);
    let one = build::ethernet(C, B);
    assert_eq!(
        world.send("c", &discovery(&one, 137, local_c, V6_A, Some(A))),
        "b.ingress-denied=1"
    );
    assert_eq!(world.send("c", &discovery(&one, 137, local_c, V6_A, Some(C))), "c.ip-claimed=1");
    // Discovery with another hop limit is invalid. Its source is no claim, and no rule lets it in.
    let spent = build::ethernet(C, B).ipv6(V6_C, V6_B).ttl(64).icmp(136, 0, 0, &V6_A.octets());
    assert_eq!(world.send("c", &spent), "b.ingress-denied=1");
}

/// The reason for all this: a rule that names the members of a group.
#[test]
fn a_rule_for_members_is_not_passed_by_who_is_none() {
    let mut world = World::new();
    let udp = |link: Link| link.ipv4(IP_A, IP_B).udp(4000, 53, b"");
    assert_eq!(world.send("a", &udp(build::ethernet(A, B))), "b");
    assert_eq!(world.send("c", &udp(build::ethernet(C, B))), "c.ip-claimed=1");
    assert_eq!(world.arrives(&udp(build::ethernet(FAR, B))), "vni-7.ip-claimed=1");
    let syn = build::ethernet(C, B).ipv4(IP_A, IP_B).tcp(&Tcp::new(1, 2, SYN), b"");
    assert_eq!(world.send("c", &syn), "c.ip-claimed=1");
    let six = build::ethernet(C, B).ipv6(V6_A, V6_B).udp(4000, 53, b"");
    assert_eq!(world.send("c", &six), "c.ip-claimed=1");
    // A flood: vnics that bypass filters have it all the same. The sender is charged for each other
    // vnic.
    let flood = to_all(C).ipv4(IP_A, [10, 0, 0, 255]).udp(4000, 53, b"");
    assert_eq!(world.send("c", &flood), "wire c.ip-claimed=3");
    // A fragment, and what would follow it.
    let first = build::ethernet(C, B)
        .ipv4(IP_A, IP_B)
        .fragment(9, 0, true)
        .payload(17, &[15, 160, 0, 53, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(world.send("c", &first), "c.ip-claimed=1");
    let second =
        build::ethernet(C, B).ipv4(IP_A, IP_B).fragment(9, 16, false).payload(17, &[0; 16]);
    assert_eq!(world.send("c", &second), "c.fragment-orphan=1");
}

#[test]
fn who_forwards_passes_packets_on_but_claims_nothing() {
    let mut world = World::new();
    let udp = build::ethernet(C, B).ipv4(IP_A, IP_B).udp(4000, 53, b"");
    assert_eq!(world.send("c", &udp), "c.ip-claimed=1");
    world.host.update("c", &VnicPolicy { forwards: true, ..bypass(&[]) }).unwrap();
    assert_eq!(world.send("c", &udp), "b");
    assert_eq!(world.send("c", &to_all(C).arp_reply(IP_A, IP_A)), "c.ip-claimed=1");
    // It forwards no more: what it began is decided again.
    world.host.update("c", &bypass(&[])).unwrap();
    assert_eq!(world.send("c", &udp), "c.ip-claimed=1");
}

/// VRRP: several vnics that declare an address share it, in any order, and no other vnic has it.
#[test]
fn an_address_of_several_is_their_common_one() {
    let mut world = World::new();
    let (from_c, from_d) =
        (to_all(C).arp_reply([10, 0, 0, 99], IP_B), to_all(D).arp_reply([10, 0, 0, 99], IP_B));
    assert_eq!(world.send("c", &from_c), "a b d wire");
    world
        .host
        .update("d", &VnicPolicy { ip_anti_spoof: false, ..filtered(&["10.0.0.99"]) })
        .unwrap();
    assert_eq!(world.send("c", &from_c), "c.ip-claimed=1");
    assert_eq!(world.send("d", &from_d), "a b c wire");
    world.host.update("c", &bypass(&["10.0.0.99"])).unwrap();
    assert_eq!(world.send("c", &from_c), "a b d wire");
    assert_eq!(world.send("d", &from_d), "a b c wire");
    let far = to_all(FAR).arp_reply([10, 0, 0, 99], IP_B);
    assert_eq!(world.arrives(&far), "vni-7.ip-claimed=1");
    world.host.update("d", &VnicPolicy { shared_ip: true, ..filtered(&["10.0.0.99"]) }).unwrap();
    assert_eq!(world.arrives(&far), "a b c d");
    world.host.update("d", &filtered(&["10.0.0.99"])).unwrap();
    assert_eq!(world.arrives(&far), "vni-7.ip-claimed=1");
    // The last filtered vnic gives it up, so that the address is not protected any more.
    world.host.update("d", &filtered(&[])).unwrap();
    assert_eq!(world.arrives(&far), "a b c d");
    world.host.remove("d");
}

/// Sessions that were made before the address had an owner are decided again when it gets one,
/// whatever came first.
#[test]
fn an_address_that_is_declared_later_ends_what_others_began_with_it() {
    let mut world = World::new();
    world.host.update("a", &filtered(&[])).unwrap();
    let udp = |mac| build::ethernet(mac, B).ipv4(IP_A, IP_B).udp(4000, 53, b"");
    let answer = |mac| build::ethernet(B, mac).ipv4(IP_B, IP_A).udp(53, 4000, b"");
    let (syn, ack) = (Tcp::new(1, 2, SYN), Tcp { sequence: 1, ..Tcp::new(1, 2, ACK) });
    let tcp = |segment: &Tcp<'_>| build::ethernet(FAR, B).ipv4(IP_A, IP_B).tcp(segment, b"");
    assert_eq!(world.send("c", &udp(C)), "b");
    assert_eq!(world.send("b", &answer(C)), "c");
    assert_eq!(world.arrives(&tcp(&syn)), "b");
    world.host.update("a", &filtered(&["10.0.0.1"])).unwrap();
    assert_eq!(world.send("c", &udp(C)), "c.ip-claimed=1");
    assert_eq!(world.arrives(&tcp(&ack)), "vni-7.ip-claimed=1");
    assert_eq!(world.arrives(&tcp(&syn)), "vni-7.ip-claimed=1");
    // b opened this session itself; its receiver's address does not matter.
    let asks = build::ethernet(B, C).ipv4(IP_B, IP_A).udp(5000, 53, b"");
    let answers = build::ethernet(C, B).ipv4(IP_A, IP_B).udp(53, 5000, b"");
    assert_eq!(world.send("b", &asks), "c");
    assert_eq!(world.send("c", &answers), "c.ip-claimed=1");
    world.host.remove("a");
    assert_eq!(world.send("c", &answers), "b");
    assert_eq!(world.send("c", &udp(C)), "b");
}

/// A connection that a vnic took along may go on. If one of its ends is still here, another host
/// may not take it over.
#[test]
fn connections_move_with_their_vnic_only() {
    let mut world = World::new();
    let (syn, syn_ack) =
        (Tcp::new(1, 2, SYN), Tcp { acknowledgement: 1, ..Tcp::new(2, 1, SYN | ACK) });
    let ack = Tcp { sequence: 1, acknowledgement: 1, ..Tcp::new(1, 2, ACK) };
    let (to_b, to_a) =
        (build::ethernet(A, B).ipv4(IP_A, IP_B), build::ethernet(B, A).ipv4(IP_B, IP_A));
    assert_eq!(world.send("a", &to_b.tcp(&syn, b"")), "b");
    assert_eq!(world.send("b", &to_a.tcp(&syn_ack, b"")), "a");
    assert_eq!(world.send("a", &to_b.tcp(&ack, b"")), "b");
    let from_far = build::ethernet(FAR, B).ipv4(IP_A, IP_B);
    assert_eq!(world.arrives(&from_far.tcp(&ack, b"")), "vni-7.ip-claimed=1");
    assert_eq!(world.send("a", &to_b.tcp(&ack, b"")), "b");
    world.host.remove("a");
    assert_eq!(world.arrives(&to_b.tcp(&ack, b"")), "b");
}

/// Networks repeat each other's addresses.
#[test]
fn an_address_is_claimed_in_its_network_only() {
    let mut world = World::new();
    let config = GuestConfig::default();
    for (id, mac, policy) in [("x", C, bypass(&[])), ("y", B, filtered(&["10.0.0.2"]))] {
        world.host.declare(id, mac, 8, &policy).unwrap();
        world.host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    world.settle();
    assert_eq!(world.send("x", &to_all(C).arp_reply(IP_A, IP_A)), "y wire");
    assert_eq!(world.send("x", &build::ethernet(C, B).ipv4(IP_A, IP_B).udp(1, 2, b"")), "y");
    assert_eq!(world.send("x", &to_all(C).arp_reply(IP_B, IP_B)), "x.ip-claimed=1");
}

const MADE_UP: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4);

fn probe(from: Mac, address: Ipv6Addr) -> Vec<u8> {
    let [.., x, y, z] = address.octets();
    discovery(
        &build::ethernet(from, Mac([0x33, 0x33, 0xff, x, y, z])),
        135,
        Ipv6Addr::UNSPECIFIED,
        address,
        None,
    )
}

fn advertisement(from: Mac, address: Ipv6Addr) -> Vec<u8> {
    discovery(
        &build::ethernet(from, Mac([0x33, 0x33, 0, 0, 0, 1])),
        136,
        address,
        address,
        Some(from),
    )
}

/// Duplicate address detection denies no vnic its address (RFC 4862, 5.4.3): a vnic probes and
/// answers for its own ones only.
#[test]
fn nobody_is_denied_an_address_by_who_does_not_have_it() {
    let mut world = World::new();
    assert_eq!(world.send("a", &probe(A, V6_A)), "b c d wire");
    assert_eq!(world.send("a", &probe(A, LOCAL_A)), "b c d wire");
    // Of another filtered vnic, of one that bypasses filters, of an unknown station.
    assert_eq!(world.send("a", &probe(A, V6_B)), "a.ip-claimed=1");
    let local_c = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xc);
    for address in [V6_C, local_c] {
        assert_eq!(world.send("a", &probe(A, address)), "a.bad-discovery=1", "{address}");
        assert_eq!(world.send("a", &advertisement(A, address)), "a.bad-discovery=1", "{address}");
    }
    // An address for which another host or c probes is theirs, though it is not declared.
    assert_eq!(world.arrives(&probe(FAR, MADE_UP)), "a b c d");
    assert_eq!(world.send("a", &probe(A, MADE_UP)), "a.bad-discovery=1");
    assert_eq!(world.send("a", &advertisement(A, MADE_UP)), "a.bad-discovery=1");
}

/// Returns messages that a machine sends from an address: a solicitation of b, an advertisement of
/// itself as a neighbour, and as a router.
fn speaks(from: Mac, address: Ipv6Addr) -> [Vec<u8>; 3] {
    let all = build::ethernet(from, Mac([0x33, 0x33, 0, 0, 0, 1]));
    let router = [&[0; 8][..], &[1, 1], &from.0].concat();
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    [
        discovery(&all, 135, address, V6_B, Some(from)),
        advertisement(from, address),
        all.ipv6(address, all_nodes).ttl(255).icmp(134, 0, 0x4000_1c20, &router),
    ]
}

const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

impl World {
    /// Sends from c, or from another host. A frame that passes goes to all.
    fn unfiltered(&mut self, from: Mac, frame: &[u8]) -> &'static str {
        let (told, all) = if from == C {
            (self.send("c", frame), "a b d wire")
        } else {
            (self.arrives(frame), "a b c d")
        };
        match told.as_str() {
            told if told == all => "passes",
            "c.ip-claimed=1" | "vni-7.ip-claimed=1" => "claimed",
            other => panic!("{other}"),
        }
    }
}

/// A machine that bypasses filters, or is on another host, has the addresses from which it was
/// heard, whether it was there first or later.
#[test]
fn what_an_unfiltered_machine_speaks_from_is_its_own() {
    for from in [C, FAR] {
        for said in speaks(from, GATEWAY) {
            let mut world = World::new();
            assert_eq!(world.unfiltered(from, &said), "passes");
            for (taker, mac) in [("a", A), ("b", B)] {
                assert_eq!(
                    world.send(taker, &probe(mac, GATEWAY)),
                    format!("{taker}.bad-discovery=1")
                );
                assert_eq!(
                    world.send(taker, &advertisement(mac, GATEWAY)),
                    format!("{taker}.bad-discovery=1")
                );
            }
            world.host.pass(3600);
            assert_eq!(world.send("a", &probe(A, GATEWAY)), "a.bad-discovery=1");
            speaks(from, GATEWAY)
                .iter()
                .for_each(|said| assert_eq!(world.unfiltered(from, said), "passes"));
        }
    }
}

/// Machines of other hosts push each other out of the places of a network, but no router.
#[test]
fn routers_are_remembered_before_others() {
    let nth = |n: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, n);
    let mut world = World::new();
    // It was heard as a machine like any other first.
    for said in [1, 2] {
        assert_eq!(world.arrives(&speaks(FAR, GATEWAY)[said]), "a b c d");
    }
    for n in 0..28 {
        assert_eq!(world.arrives(&advertisement(FAR, nth(n))), "a b c d");
    }
    (0..28)
        .for_each(|n| assert_eq!(world.send("a", &probe(A, nth(n))), "a.bad-discovery=1", "{n}"));
    assert_eq!(world.arrives(&probe(FAR, nth(28))), "a b c d");
    assert_eq!(world.send("a", &probe(A, nth(0))), "b c d wire");
    assert_eq!(world.send("a", &probe(A, nth(1))), "a.bad-discovery=1");
    assert_eq!(world.send("a", &probe(A, GATEWAY)), "a.bad-discovery=1");
}

/// RFC 6620, 3.2: a machine that takes an address has it for good if no other machine defends it.
#[test]
fn an_address_that_is_taken_may_be_defended() {
    for from in [C, FAR] {
        let [_, neighbour, router] = speaks(from, GATEWAY);
        let taken = |by_probe: bool, seconds| {
            let mut world = World::new();
            let said = if by_probe { probe(A, GATEWAY) } else { advertisement(A, GATEWAY) };
            assert_eq!(world.send("a", &said), "b c d wire");
            world.host.pass(seconds);
            world
        };
        for (by_probe, seconds, said, outcome) in [
            (true, 0, &neighbour, "passes"),
            (true, 2, &neighbour, "passes"),
            (true, 3, &neighbour, "claimed"),
            (false, 599, &neighbour, "passes"),
            (false, 600, &neighbour, "claimed"),
            // What a router says of itself always counts.
            (true, 3600, &router, "passes"),
            (false, 3600, &router, "passes"),
        ] {
            let mut world = taken(by_probe, seconds);
            assert_eq!(world.unfiltered(from, said), outcome, "{by_probe} {seconds}");
            let now = if outcome == "passes" { "a.bad-discovery=1" } else { "b c d wire" };
            assert_eq!(world.send("a", &probe(A, GATEWAY)), now, "{by_probe} {seconds}");
            assert_eq!(world.send("a", &advertisement(A, GATEWAY)), now, "{by_probe} {seconds}");
            assert_eq!(world.unfiltered(from, &neighbour), outcome);
        }
        // The owner hears a machine that spoke first and probes then: from then on it may defend.
        let mut world = taken(false, 10);
        assert_eq!(world.send("a", &probe(A, GATEWAY)), "b c d wire");
        world.host.pass(3);
        assert_eq!(world.unfiltered(from, &neighbour), "claimed");
    }
    // Its own frame that comes back takes nothing.
    let mut world = World::new();
    assert_eq!(world.send("a", &probe(A, GATEWAY)), "b c d wire");
    world.arrives(&advertisement(A, GATEWAY));
    assert_eq!(world.send("a", &advertisement(A, GATEWAY)), "b c d wire");
}

/// A probe that the owner does not hear takes nothing.
#[test]
fn a_probe_asks_who_has_the_address() {
    let mut world = World::new();
    let whole = probe(A, GATEWAY);
    for (at, byte) in [(0, 0x35), (5, 2), (53, 2)] {
        let mut elsewhere = whole.clone();
        elsewhere[at] = byte;
        let checksum = u16::from_be_bytes([elsewhere[56], elsewhere[57]]) - u16::from(at == 53);
        elsewhere[56..58].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(world.send("a", &elsewhere), "a.bad-discovery=1", "byte {at}");
    }
    let mut to_all = whole.clone();
    to_all[..6].fill(0xff);
    assert_eq!(world.send("a", &to_all), "b c d wire");
    assert_eq!(world.send("b", &probe(B, GATEWAY)), "b.ip-claimed=1");
}

/// A machine that comes from another host by live migration keeps what it made up there.
#[test]
fn made_up_addresses_come_along() {
    let mut world = World::new();
    const NEW: Mac = Mac([2, 0, 0, 0, 0, 0x1e]);
    assert_eq!(world.arrives(&advertisement(NEW, MADE_UP)), "a b c d");
    world.add("e", NEW, &filtered(&["10.0.0.5"]));
    assert_eq!(world.send("a", &advertisement(A, MADE_UP)), "a.bad-discovery=1");
    assert_eq!(world.send("e", &advertisement(NEW, MADE_UP)), "a b c d wire");
    assert_eq!(world.send("a", &probe(A, MADE_UP)), "a.ip-claimed=1");
}

/// A declared address belongs to no machine that made it up before.
#[test]
fn a_declared_address_is_no_longer_made_up() {
    let router = filtered(&["10.0.0.2", "2001:db8::b", "fe80::1"]);
    for (owner, mac, policy, all) in
        [("c", C, bypass(&["fe80::1"]), "a b d wire"), ("b", B, router, "a c d wire")]
    {
        let mut world = World::new();
        assert_eq!(world.send("a", &probe(A, GATEWAY)), "b c d wire");
        world.host.pass(3600);
        world.host.update(owner, &policy).unwrap();
        let refused = if owner == "b" { "a.ip-claimed=1" } else { "a.bad-discovery=1" };
        for said in [probe(A, GATEWAY), advertisement(A, GATEWAY)] {
            assert_eq!(world.send("a", &said), refused, "{owner}");
            assert_eq!(world.send(owner, &advertisement(mac, GATEWAY)), all, "{owner}");
        }
        let ask =
            build::ethernet(A, C).ipv6(GATEWAY, V6_C).udp(546, 547, &[1, 0, 0, 1, 0, 1, 0, 0]);
        assert_eq!(world.send("a", &ask), "a.spoofed-ip=1");
    }
    // Declared first: a machine that probes for it does not have it when the declaration goes.
    let mut world = World::new();
    world.host.update("c", &bypass(&["fe80::1"])).unwrap();
    assert_eq!(world.send("a", &probe(A, GATEWAY)), "a.bad-discovery=1");
    world.host.update("c", &bypass(&[])).unwrap();
    assert_eq!(world.send("b", &probe(B, GATEWAY)), "a c d wire");
    assert_eq!(world.send("a", &advertisement(A, GATEWAY)), "a.ip-claimed=1");
}

/// A filtered neighbour is no router: rules judge its error about another vnic's session, and it
/// takes no part of any share.
#[test]
fn errors_of_neighbours_need_a_rule() {
    let mut world = World::new();
    let to_c = || build::ethernet(B, C).ipv4(IP_B, IP_C);
    let opened = [
        to_c().ping(77, 1, b"x"),
        to_c().udp(5353, 53, b"x"),
        to_c().tcp(&Tcp::new(4000, 80, SYN), b""),
        to_c().payload(47, &[0; 20]),
    ];
    let error = |mac, ip: [u8; 4], quoted: &[u8]| {
        build::ethernet(mac, B).ipv4(ip, IP_B).icmp(3, 4, 1300, &quoted[14..quoted.len().min(42)])
    };
    for quoted in &opened {
        assert_eq!(world.send("b", quoted), "c");
        for _ in 0..6 {
            assert_eq!(world.send("d", &error(D, [10, 0, 0, 4], quoted)), "b.ingress-denied=1");
        }
        // Of the other end, or a router beyond it, four in a second; TCP is compared with what was
        // sent instead.
        let passed = (0..6).filter(|_| world.send("c", &error(C, IP_C, quoted)) == "b").count();
        assert_eq!(passed, if quoted[23] == 6 { 6 } else { 4 }, "protocol {}", quoted[23]);
    }
    let over = to_c().tcp(&Tcp { sequence: 1 << 30, ..Tcp::new(4000, 80, ACK) }, b"");
    assert_eq!(world.send("c", &error(C, IP_C, &over)), "b.ingress-denied=1");
    // By a rule, from any sender: trusted a.
    assert_eq!(world.send("a", &error(A, IP_A, &opened[0])), "b");
}

/// A filtered other end is believed, and none that lost its right.
#[test]
fn errors_of_the_other_end_are_believed_while_it_may_be_talked_to() {
    let mut world = World::new();
    let asked = build::ethernet(A, B).ipv4(IP_A, IP_B).udp(5353, 53, b"x");
    assert_eq!(world.send("a", &asked), "b");
    let error = build::ethernet(B, A).ipv4(IP_B, IP_A).icmp(3, 3, 0, &asked[14..42]);
    assert_eq!(world.send("b", &error), "a");
    // From c, through which b may be reached as well.
    let from_c = build::ethernet(C, A).ipv4(IP_C, IP_A).icmp(3, 3, 0, &asked[14..42]);
    assert_eq!(world.send("c", &from_c), "a");
    // b lets in no packets any more: it has no session that an error could be about.
    world
        .host
        .update("b", &VnicPolicy { groups: vec![], ..filtered(&["10.0.0.2", "2001:db8::b"]) })
        .unwrap();
    world.host.pass(1);
    assert_eq!(world.send("c", &from_c), "a.ingress-denied=1");
    assert_eq!(world.send("b", &error), "a.ingress-denied=1");
}

/// No port of a rule is looked for behind a protocol of its own.
#[test]
fn rules_about_ports_let_in_no_other_protocol() {
    let mut world = World::new();
    let any = butterfly_model::Cidr::new("::", 0).unwrap();
    let rule = Rule::new(Direction::Inbound, 17, (Some(80), Some(80)), Some(any), None).unwrap();
    let web = SecurityGroup::new(group("inside"), &[] as &[&str], [rule]).unwrap();
    world.host.change_group(&group("inside"), GroupChange::Declare(web)).unwrap();
    let udp = [0, 5, 0, 80, 0, 8, 0, 0];
    let extended = |kind| {
        build::ethernet(C, B)
            .ipv6(V6_C, V6_B)
            .payload(kind, &[&[17, 0, 1, 1, 0, 0, 0, 0][..], &udp].concat())
    };
    assert_eq!(world.send("c", &extended(60)), "b");
    for kind in [135, 139, 140] {
        assert_eq!(world.send("c", &extended(kind)), "b.ingress-denied=1", "{kind}");
    }
}

/// RFC 6620: an address that a machine made up is its own if it was the first, as long as it stays.
#[test]
fn made_up_addresses_are_first_come_first_served() {
    let mut world = World::new();
    assert_eq!(world.send("a", &probe(A, MADE_UP)), "b c d wire");
    assert_eq!(world.send("a", &advertisement(A, MADE_UP)), "b c d wire");
    // Between filtered vnics it is firm at once. No other vnic defended it either.
    for (from, mac) in [("b", B), ("d", D)] {
        assert_eq!(world.send(from, &probe(mac, MADE_UP)), format!("{from}.ip-claimed=1"));
    }
    world.host.pass(3);
    for (from, mac) in [("b", B), ("c", C), ("d", D)] {
        assert_eq!(world.send(from, &probe(mac, MADE_UP)), format!("{from}.ip-claimed=1"));
        assert_eq!(world.send(from, &advertisement(mac, MADE_UP)), format!("{from}.ip-claimed=1"));
    }
    assert_eq!(world.arrives(&advertisement(FAR, MADE_UP)), "vni-7.ip-claimed=1");
    // It is for neighbours on the link; what else comes from it needs a declaration, as ever.
    let udp = build::ethernet(A, B).ipv6(MADE_UP, V6_B).udp(1, 2, b"");
    assert_eq!(world.send("a", &udp), "a.spoofed-ip=1");
    // DHCPv6 is asked from it.
    let ask = build::ethernet(A, C).ipv6(MADE_UP, V6_C).udp(546, 547, &[1, 0, 0, 1, 0, 1, 0, 0]);
    assert!(!world.send("a", &ask).contains("spoofed-ip"));
    world.host.remove("a");
    assert_eq!(world.send("b", &probe(B, MADE_UP)), "c d wire");
    assert_eq!(world.send("b", &advertisement(B, MADE_UP)), "c d wire");
}

/// Four addresses at most: a machine that makes up more gives up the oldest, and other vnics may
/// have it.
#[test]
fn a_fifth_made_up_address_takes_the_place_of_the_first() {
    let mut world = World::new();
    let nth = |n: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, n);
    for n in 1..=5 {
        assert_eq!(world.send("a", &probe(A, nth(n))), "b c d wire", "{n}");
    }
    assert_eq!(world.send("b", &probe(B, nth(2))), "b.ip-claimed=1");
    assert_eq!(world.send("b", &probe(B, nth(1))), "a c d wire");
    assert_eq!(world.send("a", &probe(A, nth(1))), "a.ip-claimed=1");
    // However many it tries, it has four of them.
    for n in 100..400 {
        world.send("a", &probe(A, nth(n)));
    }
    let denied =
        (1..400).filter(|n| world.send("b", &probe(B, nth(*n))).contains("ip-claimed")).count();
    assert_eq!(denied, 4);
}

/// A vnic is declared before its machine comes from another host, and for some time after it left
/// for one.
#[test]
fn an_address_is_believed_to_be_on_another_host_while_it_may_be() {
    let mut world = World::new();
    let new = Mac([2, 0, 0, 0, 0, 0xe]);
    world.host.declare("e", new, VNI, &filtered(&["10.0.0.5"])).unwrap();
    let from = |mac| to_all(mac).arp_reply([10, 0, 0, 5], [10, 0, 0, 5]);
    let udp = build::ethernet(FAR, B).ipv4([10, 0, 0, 5], IP_B).udp(4000, 53, b"");
    world
        .host
        .change_group(
            &group("trusted"),
            GroupChange::AddMember(std::net::IpAddr::from([10, 0, 0, 5]).into()),
        )
        .unwrap();
    // Not here yet. No other vnic of this host has it all the same.
    assert_eq!(world.arrives(&from(FAR)), "a b c d e.not-attached=1");
    assert_eq!(world.arrives(&udp), "b");
    assert_eq!(world.send("c", &from(C)), "c.ip-claimed=1");
    // Here: what the other host began with it is decided again.
    let config = GuestConfig::default();
    world.host.attach("e", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    world.settle();
    assert_eq!(world.arrives(&from(FAR)), "vni-7.ip-claimed=1");
    assert_eq!(world.arrives(&udp), "vni-7.ip-claimed=1");
    // Its own frames come back by a loop: no claim against it.
    assert_eq!(world.arrives(&from(new)), "vni-7.mac-claimed=1");
    // It crashed: it keeps its address.
    drop(world.host.detach("e"));
    assert_eq!(world.arrives(&from(FAR)), "vni-7.ip-claimed=1");
    // It is heard from another host: it left. Else an export says so.
    world.arrives(&from(new));
    assert_eq!(world.arrives(&from(FAR)), "a b c d e.not-attached=1");
    world.host.attach("e", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    world.settle();
    assert_eq!(world.arrives(&from(FAR)), "vni-7.ip-claimed=1");
    drop(world.host.detach("e"));
    world.host.export("e");
    assert_eq!(world.arrives(&from(FAR)), "a b c d e.not-attached=1");
    assert_eq!(world.arrives(&udp), "b");
    assert_eq!(world.send("c", &from(C)), "c.ip-claimed=1");
    // A vnic that waits for its MAC address uses no address, though its machine runs: so the one
    // that left may use it.
    world.host.declare("twin", new, VNI, &filtered(&["10.0.0.5"])).unwrap();
    world.host.attach("twin", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    world.settle();
    assert_eq!(world.arrives(&from(FAR)), "a b c d e.not-attached=1");
    assert_eq!(world.arrives(&udp), "b");
    // Once it has it, it does.
    world.host.remove("e");
    world.settle();
    assert_eq!(world.arrives(&from(FAR)), "vni-7.ip-claimed=1");
    // And what was begun from there meanwhile ends.
    assert_eq!(world.arrives(&udp), "vni-7.ip-claimed=1");
}

/// A machine here that shares its address lets other hosts use it, until it goes and another one
/// has the address alone.
#[test]
fn what_a_sharer_allowed_ends_when_it_goes() {
    let mut world = World::new();
    world
        .host
        .change_group(
            &group("trusted"),
            GroupChange::AddMember(std::net::IpAddr::from([10, 0, 0, 5]).into()),
        )
        .unwrap();
    let sharer = VnicPolicy { shared_ip: true, ..filtered(&["10.0.0.5"]) };
    world.host.vnic("e", Mac([2, 0, 0, 0, 0, 0xe]), VNI, &sharer).unwrap();
    world.host.vnic("f", Mac([2, 0, 0, 0, 0, 0xf]), VNI, &filtered(&["10.0.0.5"])).unwrap();
    world.settle();
    let udp = build::ethernet(FAR, B).ipv4([10, 0, 0, 5], IP_B).udp(4000, 53, b"");
    assert_eq!(world.arrives(&udp), "b");
    assert_eq!(world.arrives(&udp), "b");
    world.host.remove("e");
    world.settle();
    assert_eq!(world.arrives(&udp), "vni-7.ip-claimed=1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No frame that a filtered vnic gets says that another port has an address of a third one,
    /// whatever is done to it.
    #[test]
    fn no_changed_frame_brings_a_claim_past(
        changes in prop::collection::vec((12usize..64, any::<u8>()), 0..3),
        which in any::<prop::sample::Index>(),
        cut in 20usize..100,
    ) {
        let mut all = arp_claims(C, IP_A);
        all.extend(discovery_claims(C, V6_A, V6_C));
        let (_, mut frame) = all.swap_remove(which.index(all.len()));
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(cut);
        let mut world = World::new();
        world.host.send("c", &frame, NetHeader::default()).unwrap();
        for (id, frames) in world.host.received().unwrap() {
            for (_, frame) in frames {
                prop_assert!(!believes(&frame), "{id}: {frame:02x?}");
            }
        }
    }
}

/// Returns whether a host would learn from it that this sender has the address of a. Reads it as
/// loosely as Linux does.
fn believes(frame: &[u8]) -> bool {
    let mut at = 12;
    while frame.len() >= at + 4 && [[0x81, 0], [0x88, 0xa8]].contains(&[frame[at], frame[at + 1]]) {
        at += 4;
    }
    let snap =
        frame.len() > at + 10 && frame[at] < 6 && frame[at + 2..at + 8] == [0xaa, 0xaa, 3, 0, 0, 0];
    let at = if snap { at + 8 } else { at };
    let Some(kind) = frame.get(at..at + 2) else { return false };
    let body = &frame[at + 2..];
    match kind {
        [8, 6]
            if body.len() >= 28
                && body[2..6] == [8, 0, 6, 4]
                && [[0, 1], [0, 6]].contains(&[body[0], body[1]]) =>
        {
            body[14..18] == IP_A || body[14..18] == [0; 4] && body[24..28] == IP_A
        }
        [0x86, 0xdd]
            if body.len() >= 40 + 24
                && body[0] >> 4 == 6
                && body[6] == 58
                && body[7] == 255
                && body[41] == 0 =>
        {
            let (source, kind, target) = (&body[8..24], body[40], &body[48..64]);
            let length = usize::from(body[4]) << 8 | usize::from(body[5]);
            let a = V6_A.octets();
            let says = kind == 136 && target == a
                || kind == 135 && (source == a || source == [0; 16] && target == a);
            length >= 24 && body.len() >= 40 + length && says
        }
        _ => false,
    }
}

/// A connection that comes along takes the place of what was known of it: it is no further copy.
#[test]
fn a_connection_that_moves_is_no_further_copy() {
    const IP_E: [u8; 4] = [10, 0, 0, 5];
    let mut world = World::new();
    let others = [("f", Mac([2, 0, 0, 0, 0, 0xf])), ("g", Mac([2, 0, 0, 0, 0, 0x10]))];
    others.iter().for_each(|(id, mac)| world.add(id, *mac, &bypass(&[])));
    // The same addresses and ports with four ports of the network: the trunk first, then three
    // vnics.
    let syn = |to| build::ethernet(A, to).ipv4(IP_A, IP_E).tcp(&Tcp::new(4000, 80, SYN), b"");
    assert_eq!(world.send("a", &syn(FAR)), "c f g wire");
    for (id, mac) in [("c", C), others[0], others[1]] {
        assert_eq!(world.send("a", &syn(mac)), id);
    }
    world.add("h", Mac([2, 0, 0, 0, 0, 0x11]), &bypass(&[]));
    assert_eq!(world.send("a", &syn(Mac([2, 0, 0, 0, 0, 0x11]))), "a.session-copies=1");
    // The machine behind the trunk comes here.
    world.add("e", FAR, &filtered(&["10.0.0.5"]));
    let answer = Tcp { acknowledgement: 1, ..Tcp::new(80, 4000, SYN | ACK) };
    assert_eq!(world.send("e", &build::ethernet(FAR, A).ipv4(IP_E, IP_A).tcp(&answer, b"")), "a");
}

/// Discovery needs no rule, so a filtered vnic sends it at a pace; and reports of listeners go to
/// groups.
#[test]
fn discovery_is_no_channel() {
    let mut world = World::new();
    let solicitation = discovery(&build::ethernet(A, B), 135, V6_A, V6_B, Some(A));
    let mut passed = |from: &str, frame: &[u8], seconds: u32| {
        world.host.pass(seconds);
        let outcomes: Vec<String> = (0..1100).map(|_| world.send(from, frame)).collect();
        let passed =
            outcomes.iter().take_while(|outcome| ["b", "wire"].contains(&outcome.as_str())).count();
        assert!(
            outcomes[passed..]
                .iter()
                .all(|outcome| *outcome == format!("{from}.discovery-limit=1")),
            "{from} {passed}"
        );
        passed
    };
    // Half of all, and one of 32 parts of the other half. Another part, now and then, has more
    // left.
    assert_eq!(passed("a", &solicitation, 0), 512 + 16);
    assert!((128 + 4..=128 + 16).contains(&passed("a", &solicitation, 1)));
    assert!((256 + 8..=256 + 16).contains(&passed("a", &solicitation, 2)));
    // Each vnic has its own; a vnic that bypasses filters is not limited.
    let of_c = discovery(&build::ethernet(C, B), 135, V6_C, V6_B, Some(C));
    assert_eq!(passed("c", &of_c, 0), 1100);
    assert_eq!(world.send("b", &discovery(&build::ethernet(B, A), 135, V6_B, V6_A, Some(B))), "a");

    // Whomever it says it to, no more than the whole.
    let mut world = World::new();
    let to = |n: u16| {
        let target = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, n);
        let group = Mac([0x33, 0x33, 0xff, 0, (n >> 8) as u8, n as u8]);
        discovery(&build::ethernet(A, group), 135, V6_A, target, Some(A))
    };
    let limited =
        (0..3000).filter(|n| world.send("a", &to(*n)).contains("discovery-limit")).count();
    assert_eq!(3000 - limited, 1024);

    let mut world = World::new();
    let report = |mac, destination: Ipv6Addr| {
        let alert = build::ethernet(A, mac)
            .ipv6(LOCAL_A, destination)
            .ttl(1)
            .extension(0, &[5, 2, 0, 0, 1, 0]);
        alert.icmp(143, 0, 1, &[&[4, 0, 0, 0][..], &[0xff; 16]].concat())
    };
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    assert_eq!(world.send("a", &report(Mac::of_group_v6(routers), routers)), "b c d wire");
    assert_eq!(world.send("a", &report(B, V6_B)), "a.bad-discovery=1");
    assert_eq!(world.send("a", &report(Mac::BROADCAST, V6_B)), "a.bad-discovery=1");
}

/// The rest of a multicast packet passes as long as its first fragment would: not when the rule was
/// taken back, nor the vnic's right.
#[test]
fn fragments_of_a_flood_end_with_their_rule() {
    const X: Mac = Mac([2, 0, 0, 0, 0, 0x12]);
    let group_ip = [239, 1, 1, 1];
    let rule = || {
        let to = butterfly_model::Cidr::new("239.1.1.1", 32).unwrap();
        Rule::new(Direction::Outbound, 17, (Some(53), Some(53)), Some(to), None).unwrap()
    };
    let whole = build::ethernet(X, Mac([1, 0, 0x5e, 1, 1, 1]))
        .ipv4([10, 0, 0, 9], group_ip)
        .udp(53, 53, &[7; 64]);
    let piece = |from: usize, to: usize, more| {
        let ip = build::ethernet(X, Mac([1, 0, 0x5e, 1, 1, 1]))
            .ipv4([10, 0, 0, 9], group_ip)
            .fragment(7, from, more);
        ip.payload(17, &whole[34 + from..34 + to])
    };
    for taken_back in [None, Some("rule"), Some("vnic")] {
        let mut world = World::new();
        let allow = SecurityGroup::new(group("out"), &[] as &[&str], [rule()]).unwrap();
        world.host.change_group(&group("out"), GroupChange::Declare(allow)).unwrap();
        let policy = VnicPolicy { groups: vec![group("out")], ..filtered(&["10.0.0.9"]) };
        world.add("x", X, &policy);
        let passes = |told: String| told.split(' ').any(|word| word == "c");
        assert!(passes(world.send("x", &piece(0, 32, true))));
        assert!(passes(world.send("x", &piece(32, 40, true))));
        match taken_back {
            Some("rule") => world
                .host
                .change_group(&group("out"), GroupChange::RemoveRule(rule()))
                .map(|_| ())
                .unwrap(),
            Some(_) => world.host.update("x", &VnicPolicy { ips: vec![], ..policy }).unwrap(),
            None => {}
        }
        let told = world.send("x", &piece(40, 48, true));
        assert_eq!(passes(told.clone()), taken_back.is_none(), "{taken_back:?}: {told}");
    }
}
