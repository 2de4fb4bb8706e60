//! Prefixes of vnics: machines make up addresses in them, which are theirs as declared ones are.

use std::{collections::BTreeMap, net::Ipv6Addr};

use butterfly_datapath::{GroupChange, Mac, RoutingChange, SoughtState, VnicPolicy};
use butterfly_model::{Dhcp, Direction, GroupName, Member, Network, Prefix, Rule, Subnet};
use butterfly_packet::{
    build::{self, Ip},
    ethernet::Ethernet,
    icmp::NdOptions,
    ipv6::Ipv6,
};

use crate::net::*;

type Six = [u16; 8];

/// Addresses that the machine of A makes up, and one in nobody's prefix.
const MADE_UP: Six = [0xfd00, 0x42, 0, 1, 0x1234, 0x5678, 0x9abc, 0xdef0];
const ANOTHER: Six = [0xfd00, 0x42, 0, 1, 0, 0, 0, 9];
const OUTSIDE: Six = [0xfd00, 0x42, 0, 2, 0, 0, 0, 9];
const SIX_B: Six = [0xfd00, 0x50, 0, 0, 0, 0, 0, 0xb];
const SIX_C: Six = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0xc];
/// A machine without a filter beside A.
const X: Machine = ("x", Mac([2, 0, 0, 0, 0, 0x77]), 42, [10, 0, 0, 77]);

const Y: Machine = ("y", Mac([2, 0, 0, 0, 0, 0x78]), 42, [10, 0, 0, 78]);

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

fn of_a(bypass: bool, prefixes: &[&str]) -> VnicPolicy {
    VnicPolicy { prefixes: prefixes.iter().map(|it| prefix(it)).collect(), ..policy(A.3, bypass) }
}

const ONE: &str = "fd00:42:0:1::/64";

fn declared(number: u32, four: (&str, &str), six: (&str, &str)) -> RoutingChange {
    let subnets = [four, six].map(|(block, own)| Subnet::parse(block, Some(own)).unwrap());
    let network = Network::new(vni(number), subnets.into(), None).unwrap();
    RoutingChange::DeclareNetwork(network.with_dhcp(Some(Dhcp::new(None).unwrap())).unwrap())
}

fn net(bypass: bool) -> Net {
    let mut net = Net::apart(&[], bypass);
    net.host.vnic(A.0, A.1, A.2, &of_a(bypass, &[ONE])).unwrap();
    for ((id, mac, vni, ip), six) in [(B, SIX_B), (C, SIX_C)] {
        let ips = vec![ip.into(), Ipv6Addr::from(six).into()];
        net.host.vnic(id, mac, vni, &VnicPolicy { ips, ..policy(ip, bypass) }).unwrap();
    }
    net.host.change_routing(declared(
        42,
        ("10.0.0.0/24", "10.0.0.1"),
        ("fd00:42::/56", "fd00:42::1"),
    ));
    net.host.change_routing(declared(
        50,
        ("10.1.0.0/24", "10.1.0.1"),
        ("fd00:50::/64", "fd00:50::1"),
    ));
    net.host.change_routing(router("r", &[42, 50]));
    net.host.settle();
    net.host.moved();
    net
}

/// A packet, and the one that a router makes of it.
fn passed(from: (Machine, Six), to: (Machine, Six), make: impl Fn(Ip) -> Vec<u8>) -> [Vec<u8>; 2] {
    let sent = make(build::ethernet(from.0.1, gateway()).ipv6(from.1, to.1));
    let arrives = make(build::ethernet(gateway(), to.0.1).ipv6(from.1, to.1).ttl(63));
    [sent, arrives]
}

/// A neighbour advertisement of a machine for an address, to another one.
fn claim(from: Machine, address: Six, to: (Machine, Six)) -> Vec<u8> {
    let mut body = Ipv6Addr::from(address).octets().to_vec();
    body.extend([2, 1]);
    body.extend(from.1.0);
    let ip = build::ethernet(from.1, to.0.1).ipv6(address, to.1).ttl(255);
    ip.icmp(136, 0, 0x2000_0000, &body)
}

/// The answer of a machine to the question of this host.
fn answer_to_host(from: Machine, address: Six) -> Vec<u8> {
    let mut body = Ipv6Addr::from(address).octets().to_vec();
    body.extend([2, 1]);
    body.extend(from.1.0);
    let to = [0xfe80, 0, 0, 0, 0xb0f1, 0x00ff, 0xfe00, 0];
    let ip = build::ethernet(from.1, Mac([0xb2, 0xf1, 0, 0, 0, 0])).ipv6(address, to).ttl(255);
    ip.icmp(136, 0, 0x6000_0000, &body)
}

/// A probe for an address (RFC 4862, 5.4.2).
fn probe(from: Machine, address: Six) -> Vec<u8> {
    let [.., high, low] = address;
    let group = [0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low];
    let ip = build::ethernet(from.1, Mac::of_group_v6(group.into())).ipv6([0; 8], group).ttl(255);
    ip.icmp(135, 0, 0, &Ipv6Addr::from(address).octets())
}

#[test]
fn made_up_addresses_are_the_vnic_s_own() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        net.admit("fd00::/16");
        for own in [MADE_UP, ANOTHER] {
            let [sent, arrives] = passed((A, own), (B, SIX_B), |ip| ip.udp(1000, 53, b"out"));
            net.passes(A, &sent, B, &arrives);
            let [sent, arrives] = passed((B, SIX_B), (A, own), |ip| ip.udp(53, 1000, b"back"));
            net.passes(B, &sent, A, &arrives);
            // Nobody asked for it, and it is found.
            let [sent, arrives] = passed((B, SIX_B), (A, own), |ip| ip.udp(7, 7, b"in"));
            net.passes(B, &sent, A, &arrives);
            // It probes for its own.
            assert!(net.send(A, &probe(A, own)).keys().eq(["c"]));
            let moved = net.host.moved();
            assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
        }
        // None of its prefix.
        let [sent, _] = passed((A, OUTSIDE), (B, SIX_B), |ip| ip.udp(1000, 53, b"x"));
        if bypass {
            continue;
        }
        net.drops(A, &sent, "spoofed-ip");
        net.drops(A, &probe(A, OUTSIDE), "bad-discovery");
        let straight = build::ethernet(A.1, C.1).ipv6(OUTSIDE, SIX_C).udp(1, 2, b"x");
        net.drops(A, &straight, "spoofed-ip");
        let straight = build::ethernet(A.1, C.1).ipv6(MADE_UP, SIX_C).udp(1, 2, b"x");
        net.passes(A, &straight, C, &straight);
    }
}

/// Vnics without a filter do not get what is of a filtered vnic's prefix.
#[test]
fn nobody_else_has_addresses_of_a_prefix() {
    let mut net = net(false);
    net.host.vnic(X.0, X.1, X.2, &policy(X.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    net.admit("fd00::/16");
    net.drops(X, &claim(X, MADE_UP, (C, SIX_C)), "ip-claimed");
    net.drops(X, &probe(X, MADE_UP), "ip-claimed");
    let [routed, _] = passed((X, MADE_UP), (B, SIX_B), |ip| ip.udp(1, 2, b"x"));
    net.drops(X, &routed, "ip-claimed");
    let straight = build::ethernet(X.1, C.1).ipv6(MADE_UP, SIX_C).udp(1, 2, b"x");
    net.drops(X, &straight, "ip-claimed");
    // What is of no prefix is free.
    let straight = build::ethernet(X.1, C.1).ipv6(OUTSIDE, SIX_C).udp(1, 2, b"x");
    net.passes(X, &straight, C, &straight);
    // Another filtered vnic does not get it, either.
    let other = build::ethernet(C.1, A.1).ipv6(ANOTHER, MADE_UP).udp(1, 2, b"x");
    net.drops(C, &other, "spoofed-ip");
}

/// A vnic that waits, with an address of another one's prefix by itself, opens and closes nothing:
/// both have it.
#[test]
fn an_address_by_itself_is_of_the_prefix_as_well() {
    for bypass in [true, false] {
        let mut net = net(false);
        net.host.vnic(X.0, X.1, X.2, &policy(X.3, true)).unwrap();
        net.admit("fd00::/16");
        let nine = VnicPolicy {
            ips: vec![Ipv6Addr::from(ANOTHER).into()],
            bypass,
            ..VnicPolicy::default()
        };
        net.host.vnic("behind", A.1, 42, &nine).unwrap();
        net.host.settle();
        net.host.moved();
        let straight = build::ethernet(X.1, C.1).ipv6(ANOTHER, SIX_C).udp(1, 2, b"x");
        let [routed, _] = passed((X, ANOTHER), (B, SIX_B), |ip| ip.udp(1, 2, b"x"));
        let all = [claim(X, ANOTHER, (C, SIX_C)), probe(X, ANOTHER), straight, routed];
        let is_claimed = |net: &mut Net| {
            all.iter().for_each(|frame| net.drops(X, frame, "ip-claimed"));
        };
        is_claimed(&mut net);
        // The one that has the MAC address gets what is for it, and sends.
        let [sent, arrives] = passed((B, SIX_B), (A, ANOTHER), |ip| ip.udp(7, 7, b"in"));
        net.passes(B, &sent, A, &arrives);
        let [sent, arrives] = passed((A, ANOTHER), (B, SIX_B), |ip| ip.udp(8, 8, b"out"));
        net.passes(A, &sent, B, &arrives);
        net.host.remove("behind");
        is_claimed(&mut net);
        net.passes(A, &sent, B, &arrives);
    }
}

/// A prefix under an address that one without a filter has by itself ends the sessions of others
/// from there.
#[test]
fn a_prefix_takes_an_address_from_others() {
    let mut net = net(false);
    net.host.update("a", &of_a(true, &[])).unwrap();
    net.host.vnic(X.0, X.1, X.2, &policy(X.3, true)).unwrap();
    net.admit("fd00::/16");
    let nine = VnicPolicy { ips: vec![Ipv6Addr::from(ANOTHER).into()], ..of_a(true, &[]) };
    net.host.vnic("behind", A.1, 42, &nine).unwrap();
    net.host.settle();
    let straight = build::ethernet(X.1, C.1).ipv6(ANOTHER, SIX_C).udp(1, 2, b"x");
    net.passes(X, &straight, C, &straight);
    net.host.moved();
    net.host.update("a", &of_a(false, &[ONE])).unwrap();
    net.drops(X, &straight, "ip-claimed");
    net.host.remove("behind");
    net.drops(X, &straight, "ip-claimed");
}

/// One machine makes up addresses without end, on a host that knows no blocks: it gets a small part
/// of what the network is asked for, and others are found.
#[test]
fn made_up_addresses_take_a_part_of_what_is_asked() {
    let mut net = net(false);
    let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    for (id, mac, vni, _) in [X, Y] {
        net.host.vnic(id, mac, vni, &open).unwrap();
    }
    net.host.begin_seeking();
    net.host.settle();
    net.host.pass(20);
    net.host.seek();
    net.host.received().unwrap();
    net.host.moved();
    let asked = |net: &Net| net.host.sought().len();
    let made_up = |n: u16| [0xfd00, 0x42, 0, 3, 0, 0, 1, n];
    let answer = |net: &mut Net, to: Six| {
        let [sent, _] = passed((B, SIX_B), (X, to), |ip| ip.udp(53, 1, b"x"));
        net.send(B, &sent)
    };
    for n in 0..64 {
        answer(&mut net, made_up(n));
    }
    assert_eq!(asked(&net), 8);
    assert_eq!(net.host.moved()["b.drop.next-hop-limit"], 56);
    // One in another block, and all that are in the gateway's, where no prefix can be.
    answer(&mut net, [0xfd00, 0x42, 0, 4, 0, 0, 0, 1]);
    for n in 0..20 {
        answer(&mut net, [0xfd00, 0x42, 0, 0, 0, 0, 2, n]);
    }
    assert_eq!(asked(&net), 8 + 1 + 20);
    // Looks, too: no more than half of them are for such blocks.
    for n in 0..2000 {
        answer(&mut net, made_up(n));
    }
    net.host.moved();
    answer(&mut net, [0xfd00, 0x42, 0, 0, 0, 0, 3, 1]);
    assert_eq!(asked(&net), 8 + 1 + 20 + 1);
    // A third machine is found, made-up address or not.
    for third in [[0xfd00, 0x42, 0, 4, 0, 0, 0, 1], [0xfd00, 0x42, 0, 0, 0, 0, 3, 1]] {
        net.host.seek();
        net.send(Y, &answer_to_host(Y, third));
        net.host.seek();
        net.host.received().unwrap();
        net.host.moved();
        let [sent, arrives] = passed((B, SIX_B), (Y, third), |ip| ip.udp(54, 1, b"x"));
        net.passes(B, &sent, Y, &arrives);
    }
}

/// One that answers for each of them fills no more than a part of what is found.
#[test]
fn made_up_addresses_take_a_part_of_what_is_found() {
    let mut net = net(false);
    let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    net.host.vnic(X.0, X.1, X.2, &open).unwrap();
    net.host.begin_seeking();
    net.host.settle();
    net.host.pass(20);
    let found = |net: &Net| {
        let all = net.host.sought();
        all.iter().filter(|it| it.state == SoughtState::Found).count()
    };
    let finds = |net: &mut Net, all: &[Six]| {
        for to in all {
            let [sent, _] = passed((B, SIX_B), (X, *to), |ip| ip.udp(53, 1, b"x"));
            net.send(B, &sent);
        }
        net.host.seek();
        for to in all {
            net.send(X, &answer_to_host(X, *to));
        }
        net.host.seek();
        net.host.pass(1);
        net.host.received().unwrap();
    };
    for second in 0..34 {
        let eight = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| [0xfd00, 0x42, 0, 3, 0, 0, second, n]);
        finds(&mut net, &eight);
    }
    assert_eq!(found(&net), 256);
    finds(&mut net, &[[0xfd00, 0x42, 0, 4, 0, 0, 0, 1], [0xfd00, 0x42, 0, 0, 0, 0, 0, 9]]);
    assert_eq!(found(&net), 258);
}

/// Sessions that a prefix allowed end with it.
#[test]
fn a_prefix_is_taken_back() {
    let mut net = net(false);
    net.admit("fd00::/16");
    let [out, arrives] = passed((A, MADE_UP), (B, SIX_B), |ip| ip.udp(1000, 53, b"out"));
    net.passes(A, &out, B, &arrives);
    let [back, _] = passed((B, SIX_B), (A, MADE_UP), |ip| ip.udp(53, 1000, b"back"));
    net.host.update("a", &of_a(false, &[])).unwrap();
    net.drops(A, &out, "spoofed-ip");
    assert!(!net.send(B, &back).contains_key("a"));
    net.host.moved();
    // An update of the prefix alone counts.
    net.host.update("a", &of_a(false, &[ONE])).unwrap();
    net.passes(A, &out, B, &arrives);
}

#[test]
fn a_prefix_is_a_member_of_a_group() {
    let mut net = net(false);
    let (open, web) = (GroupName::new("open").unwrap(), GroupName::new("web").unwrap());
    let ports = (Some(1), Some(65535));
    let rule = Rule::new(Direction::Inbound, 17, ports, None, Some(web.clone())).unwrap();
    net.host.change_group(&open, GroupChange::AddRule(rule)).unwrap();
    let [out, arrives] = passed((A, MADE_UP), (B, SIX_B), |ip| ip.udp(1000, 53, b"out"));
    // To have a prefix makes no member.
    net.drops_at(A, &out, B, "ingress-denied");
    // A member by itself hides no group of its prefix.
    let alone = Member::parse("fd00:42:0:1:1234:5678:9abc:def0").unwrap();
    let other = GroupName::new("other").unwrap();
    net.host.change_group(&other, GroupChange::AddMember(alone)).unwrap();
    let member = Member::Prefix(prefix(ONE));
    net.host.change_group(&web, GroupChange::AddMember(member)).unwrap();
    net.passes(A, &out, B, &arrives);
    net.host.change_group(&web, GroupChange::RemoveMember(member)).unwrap();
    net.drops_at(A, &out, B, "ingress-denied");
    net.host.change_group(&web, GroupChange::AddMember(alone)).unwrap();
    net.passes(A, &out, B, &arrives);
}

/// Options of a router's advertisement that tell of blocks: first address, flags, lifetimes; and
/// the flags of the message.
type Told = (u8, Vec<(Ipv6Addr, u8, u32, u32)>);

fn told(frame: &[u8]) -> Told {
    let link = Ethernet::parse(frame).unwrap();
    let message = Ipv6::parse(link.payload()).unwrap().payload().unwrap();
    assert_eq!(message[0], 134);
    let mut options = NdOptions::new(&message[16..]);
    let mut blocks = Vec::new();
    while let Some((kind, value)) = options.take_next().unwrap() {
        let number = |at: usize| u32::from_be_bytes(value[at..at + 4].try_into().unwrap());
        if kind == 3 {
            let first = <[u8; 16]>::try_from(&value[14..30]).unwrap();
            blocks.push((first.into(), value[1], number(2), number(6)));
        }
    }
    (message[5], blocks)
}

fn heard(net: &mut Net) -> BTreeMap<String, Vec<Told>> {
    net.host.seek();
    let got = net.host.received().unwrap();
    let frames = |all: Vec<(_, Vec<u8>)>| all.iter().map(|(_, frame)| told(frame)).collect();
    got.into_iter().map(|(id, all)| (id, frames(all))).collect()
}

/// The vnic alone hears of its prefix, when it asks and without; and that it is taken back.
#[test]
fn a_vnic_is_told_of_its_prefix() {
    let first = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let subnet = (first("fd00:42::"), 0x80, 86_400, 14_400);
    let own = (first("fd00:42:0:1::"), 0x40, 86_400, 14_400);
    let gone = (own.0, 0x40, 0, 0);
    let (managed, other) = (0xc0, 0x40);
    let mut net = net(false);
    net.host.pass(1);
    let got = heard(&mut net);
    assert_eq!(got["a"], [(other, vec![subnet, own])], "it has no address of DHCPv6");
    assert_eq!(got["c"], [(managed, vec![subnet])]);
    let all = [0xff02, 0, 0, 0, 0, 0, 0, 2];
    let ip = build::ethernet(A.1, Mac::of_group_v6(all.into())).ipv6([0; 8], all).ttl(255);
    let asked = ip.icmp(133, 0, 0, &[]);
    let answer = net.send(A, &asked);
    assert_eq!(told(&answer["a"][0]), (other, vec![subnet, own]));
    // With an address that is leased, both ways.
    let both = VnicPolicy {
        ips: vec![Ipv6Addr::from([0xfd00, 0x42, 0, 0, 0, 0, 0, 0xa]).into()],
        ..of_a(false, &[ONE])
    };
    net.host.update("a", &both).unwrap();
    net.host.pass(3);
    assert_eq!(heard(&mut net), [("a".to_owned(), vec![(managed, vec![subnet, own])])].into());
    // One that no subnet covers is not told.
    net.host.update("a", &of_a(false, &["fd00:43::/64"])).unwrap();
    net.host.pass(3);
    assert_eq!(heard(&mut net), [("a".to_owned(), vec![(managed, vec![subnet, gone])])].into());
    let answer = net.send(A, &asked);
    assert_eq!(told(&answer["a"][0]), (managed, vec![subnet]));
    // It comes back, and is heard by asking alone before it goes.
    net.host.update("a", &of_a(false, &["fd00:42:0:7::/64"])).unwrap();
    net.host.update("a", &of_a(false, &[ONE])).unwrap();
    net.host.pass(3);
    let seven = (first("fd00:42:0:7::"), 0x40, 0, 0);
    let got = heard(&mut net);
    assert_eq!(got.len(), 1);
    let (flags, blocks) = &got["a"][0];
    assert_eq!((*flags, &blocks[..2]), (other, &[subnet, own][..]));
    assert!(blocks.contains(&seven) && !blocks.contains(&gone), "{blocks:?}");
}

/// A network that has no router, and tells nothing any more, still takes a prefix back.
#[test]
fn a_prefix_is_taken_back_without_a_router() {
    let first: Ipv6Addr = "fd00:42:0:1::".parse().unwrap();
    let mut net = Net::apart(&[], false);
    net.host.vnic(A.0, A.1, A.2, &of_a(false, &[ONE])).unwrap();
    let blocks = [("10.0.0.0/24", "10.0.0.1"), ("fd00:42::/56", "fd00:42::1")];
    net.host.change_routing(declared(42, blocks[0], blocks[1]));
    net.host.settle();
    net.host.pass(1);
    let own = (first, 0x40, 86_400, 14_400);
    assert!(heard(&mut net)["a"][0].1.contains(&own));
    let subnets = blocks.map(|(block, own)| Subnet::parse(block, Some(own)).unwrap());
    let quiet = Network::new(vni(42), subnets.into(), None).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(quiet));
    net.host.pass(3);
    assert_eq!(heard(&mut net), BTreeMap::new(), "it is its own");
    net.host.update("a", &of_a(false, &[])).unwrap();
    net.host.pass(3);
    let got = heard(&mut net);
    assert_eq!(got["a"].iter().map(|it| &it.1[..]).collect::<Vec<_>>(), [[(first, 0x40, 0, 0)]]);
    net.host.pass(3);
    assert_eq!(heard(&mut net), BTreeMap::new(), "once, for now");
}
