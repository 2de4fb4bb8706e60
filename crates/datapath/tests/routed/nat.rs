//! Translated addresses: machines inside that have an address outside.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr},
};

use butterfly_datapath::{
    Fate, GroupChange, Mac, Question, RoutingChange, SessionConfig, SessionFilter, Target,
    VnicPolicy, Walk, harness::Host,
};
use butterfly_model::{
    Cidr, Direction, External, ExternalId, ForwardProtocol, GroupName, Nat, Network, Router,
    RouterAddresses, RouterId, Rule, Subnet,
};
use butterfly_packet::{
    arp,
    build::{self, Checksum, Ip, Tcp},
    icmp::v6,
    neighbour,
    tcp::{ACK, FIN, RST, SYN},
};
use butterfly_vhost::net::NetHeader;

use crate::explained::question;
use crate::net::{A, C, Machine, Net, policy, vni};

/// The router outside, by which the rest of the world is reached.
pub const X: Machine = ("x", Mac([2, 0, 0, 0, 0, 0xe]), 77, [192, 0, 2, 1]);
/// A machine of another router, with the address of [`A`].
const TWIN: Machine = ("t", Mac([2, 0, 0, 0, 0, 0xd]), 43, A.3);
/// Machines of the world.
pub const WORLD: &str = "198.51.100.9";
const WORLD_V6: &str = "2001:db8:9::9";
/// Addresses outside of [`A`].
pub const OUTSIDE: &str = "192.0.2.80";
const OUTSIDE_V6: &str = "2001:db8::80";
const INSIDE_V6: &str = "fd00:42::a";

pub fn router_mac(id: &str) -> Mac {
    Mac(RouterId::new(id).unwrap().gateway_mac())
}

pub fn external() -> External {
    let id = ExternalId::new("world").unwrap();
    let own = ["192.0.2.7/24", "2001:db8::7/64"];
    External::parse(id, vni(77), own, ["192.0.2.1", "2001:db8::1"]).unwrap()
}

/// A router of a network and of the external, without an address of its own there.
pub fn attached(id: &str, network: u32) -> RoutingChange {
    let mut router = Router::new(RouterId::new(id).unwrap());
    router.attach(vni(network), RouterAddresses::default());
    // Addresses that nobody else has here: builders of a router give it one of the external's.
    router.attach(vni(77), RouterAddresses::default());
    external().default_routes().into_iter().for_each(|route| drop(router.add_route(route)));
    RoutingChange::DeclareRouter(router)
}

pub fn inside(number: u32, six: &str) -> RoutingChange {
    let blocks = [("10.0.0.0/24", "10.0.0.1".to_owned()), (six, six.replace("::/64", "::1"))];
    let subnets = blocks.map(|(block, own)| Subnet::parse(block, Some(&own)).unwrap());
    RoutingChange::DeclareNetwork(Network::new(vni(number), subnets.into(), None).unwrap())
}

pub fn floating(outside: &str, inside: &str) -> Nat {
    Nat::floating(outside.parse().unwrap(), inside.parse().unwrap()).unwrap()
}

pub fn translate(net: &Net, router: &str, rules: &[Nat]) {
    let router = RouterId::new(router).unwrap();
    net.host.change_routing(RoutingChange::DeclareNat(router, vni(77), rules.to_vec()));
}

/// [`A`], [`C`] and [`TWIN`] inside, [`X`] outside; [`A`] has an address outside in each family.
pub fn net(bypass: bool) -> Net {
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    declared(Host::with_sessions(sessions).unwrap(), bypass)
}

pub fn declared(mut host: Host, bypass: bool) -> Net {
    for (id, mac, vni, ip) in [A, C, TWIN] {
        let six: &[IpAddr] = if id == A.0 { &[INSIDE_V6.parse().unwrap()] } else { &[] };
        let ips = [IpAddr::from(ip)].iter().chain(six).copied().collect();
        let policy = VnicPolicy { ips, ..policy(ip, bypass) };
        host.vnic(id, mac, vni, &policy).unwrap();
    }
    let ips = vec![X.3.into(), "2001:db8::1".parse().unwrap()];
    host.vnic(X.0, X.1, X.2, &VnicPolicy { ips, forwards: true, ..policy(X.3, true) }).unwrap();
    host.change_routing(inside(42, "fd00:42::/64"));
    host.change_routing(inside(43, "fd00:43::/64"));
    host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    host.change_routing(RoutingChange::DeclareWire(external()));
    host.change_routing(attached("r", 42));
    host.change_routing(attached("s", 43));
    host.settle();
    host.moved();
    let net = Net { host };
    translate(&net, "r", &[floating(OUTSIDE, "10.0.0.10"), floating(OUTSIDE_V6, INSIDE_V6)]);
    net
}

/// A header between two addresses, on a link.
pub fn ip(link: (Mac, Mac), from: &str, to: &str) -> Ip {
    let link = build::ethernet(link.0, link.1);
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from, to),
        _ => panic!("two families"),
    }
}

/// A packet of [`A`] as it sends it, and as it leaves.
fn out(from: &str, outside: &str, to: &str, make: impl Fn(Ip) -> Vec<u8>) -> [Vec<u8>; 2] {
    let gateway = router_mac("r");
    [make(ip((A.1, gateway), from, to)), make(ip((gateway, X.1), outside, to).ttl(63))]
}

/// A packet of the world as it comes, and as [`A`] gets it.
fn into(from: &str, outside: &str, to: &str, make: impl Fn(Ip) -> Vec<u8>) -> [Vec<u8>; 2] {
    let gateway = router_mac("r");
    [make(ip((X.1, gateway), from, outside)), make(ip((gateway, A.1), from, to).ttl(63))]
}

const FAMILIES: [(&str, &str, &str); 2] =
    [("10.0.0.10", OUTSIDE, WORLD), (INSIDE_V6, OUTSIDE_V6, WORLD_V6)];

pub fn admit(net: &mut Net, from: &str, protocol: u8) {
    let (address, bits) = from.split_once('/').unwrap();
    let block = Cidr::new(address, bits.parse().unwrap()).unwrap();
    let ports = if protocol == 1 { (None, None) } else { (Some(1), Some(65535)) };
    let rule = Rule::new(Direction::Inbound, protocol.into(), ports, Some(block), None).unwrap();
    let name = GroupName::new("open").unwrap();
    net.host.change_group(&name, GroupChange::AddRule(rule)).unwrap();
}

#[test]
fn a_floating_address_is_one_machine_in_both_directions() {
    let mut net = net(true);
    for (here, outside, there) in FAMILIES {
        let kinds: [&dyn Fn(Ip) -> Vec<u8>; 6] = [
            &|ip| ip.udp(1000, 53, b"a question"),
            &|ip| ip.tcp(&Tcp::new(1000, 80, SYN), b""),
            &|ip| ip.tcp(&Tcp::new(1000, 80, ACK), &[7; 1000]),
            &|ip| ip.ping(1, 2, b"x"),
            &|ip| ip.sctp((1, 2), 3, 0, b"chunk"),
            &|ip| ip.payload(50, b"encrypted"),
        ];
        for make in kinds {
            let [sent, arrives] = out(here, outside, there, make);
            net.passes(A, &sent, X, &arrives);
            let [sent, arrives] = into(there, outside, here, make);
            net.passes(X, &sent, A, &arrives);
        }
    }
    assert_eq!(net.sessions(), 0, "ends without filters have no sessions");
}

/// UDP's 0 stays; what the sender left to a device is right when the device has done it.
#[test]
fn sums_that_are_not_there_stay_so() {
    let mut net = net(true);
    let none = |ip: Ip| ip.checksum(Checksum::Zero).udp(1000, 53, b"x");
    let [sent, arrives] = out("10.0.0.10", OUTSIDE, WORLD, none);
    net.passes(A, &sent, X, &arrives);
    let [sent, arrives] = into(WORLD, OUTSIDE, "10.0.0.10", none);
    net.passes(X, &sent, A, &arrives);
    for (here, outside, there) in FAMILIES {
        let l4 = if here.contains(':') { 54 } else { 34 };
        for (field, kind) in [(16, 6), (6, 17)] {
            let make = |ip: Ip| match kind {
                6 => ip.tcp(&Tcp::new(1000, 80, ACK), b"partial"),
                _ => ip.udp(1000, 80, b"partial"),
            };
            let partial = |ip: Ip| make(ip.checksum(Checksum::Partial));
            let header = NetHeader {
                flags: NetHeader::FLAG_NEEDS_CSUM,
                csum_start: l4,
                csum_offset: field,
                ..NetHeader::default()
            };
            for (from, to, [sent, arrives]) in [
                (A, X, out(here, outside, there, partial)),
                (X, A, into(there, outside, here, partial)),
            ] {
                net.host.send(from.0, &sent, header).unwrap();
                let received = net.host.received().unwrap();
                let [(net_header, frame)] = &received[to.0][..] else { panic!("{received:?}") };
                assert_eq!(net_header.flags, NetHeader::FLAG_NEEDS_CSUM);
                assert_eq!(frame, &arrives);
            }
        }
    }
    assert!(!net.host.moved().keys().any(|name| name.contains(".drop.")));
}

/// Rules and sessions know addresses inside: what the world opens needs a rule, its answers none.
#[test]
fn groups_see_addresses_inside() {
    let mut net = net(false);
    let question = |ip: Ip| ip.udp(1000, 53, b"?");
    let [there, there_left] = out("10.0.0.10", OUTSIDE, WORLD, question);
    let [back, back_came] = into(WORLD, OUTSIDE, "10.0.0.10", |ip| ip.udp(53, 1000, b"!"));
    net.drops_at(X, &back, A, "ingress-denied");
    net.passes(A, &there, X, &there_left);
    net.passes(X, &back, A, &back_came);
    assert_eq!(net.sessions(), 1);
    let rows = net.host.sessions(&SessionFilter::default(), 10).1;
    let [opener, responder] = [&rows[0].opener, &rows[0].responder];
    assert_eq!(opener.address.to_string(), "10.0.0.10");
    let outside = opener.outside.as_ref().unwrap();
    assert_eq!(
        (outside.vni, outside.address.to_string(), outside.port),
        (77, OUTSIDE.into(), 1000)
    );
    assert_eq!((responder.address.to_string(), &responder.outside), (WORLD.into(), &None));
    // Another port, which only a rule lets in.
    let [opens, came] = into(WORLD, OUTSIDE, "10.0.0.10", |ip| ip.udp(7, 8, b"opens"));
    net.drops_at(X, &opens, A, "ingress-denied");
    admit(&mut net, "198.51.100.0/24", 17);
    net.passes(X, &opens, A, &came);
    assert_eq!(net.sessions(), 2);
    assert_eq!(net.host.count_sessions().unwrap(), 2);
}

/// The router says who has the addresses outside, and nobody else does.
#[test]
fn the_router_answers_for_addresses_outside() {
    let mut net = net(true);
    let ask = build::ethernet(X.1, Mac::BROADCAST).arp(
        arp::REQUEST,
        (X.1, X.3.into()),
        (Mac::ZERO, OUTSIDE.parse().unwrap()),
    );
    let got = net.send(X, &ask);
    let own = router_mac("r");
    let answer = build::ethernet(own, X.1).arp(
        arp::REPLY,
        (own, OUTSIDE.parse().unwrap()),
        (X.1, X.3.into()),
    );
    assert_eq!(got[X.0][0][..42], answer[..42]);
    let target: Ipv6Addr = OUTSIDE_V6.parse().unwrap();
    let asker: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let message = [&[0; 4][..], &target.octets(), &[1, 1], &X.1.0].concat();
    let group = Mac([0x33, 0x33, 0xff, 0, 0, 0x80]);
    let to: Ipv6Addr = "ff02::1:ff00:80".parse().unwrap();
    let link = build::ethernet(X.1, group).ipv6(asker, to).ttl(255);
    let ask = link.icmp(v6::NEIGHBOUR_SOLICITATION, 0, 0, &message[4..]);
    let got = net.send(X, &ask);
    let answer = neighbour::advertisement((X.1, asker), (own, target));
    assert_eq!(got[X.0], [answer.to_vec()]);
    let claim = build::ethernet(X.1, Mac::BROADCAST).arp(
        arp::REPLY,
        (X.1, OUTSIDE.parse().unwrap()),
        (X.1, OUTSIDE.parse().unwrap()),
    );
    net.host.moved();
    net.drops(X, &claim, "gateway-claimed");
}

/// An error is translated with what it quotes, whichever end it is about.
#[test]
fn errors_are_translated_with_what_they_quote() {
    let mut net = net(true);
    for (here, outside, there) in FAMILIES {
        let hop = if here.contains(':') { "2001:db8:7::7" } else { "203.0.113.7" };
        let (kind, code) = if here.contains(':') { (v6::UNREACHABLE, 4) } else { (3, 3) };
        let question = |ip: Ip| ip.udp(1000, 53, b"a question");
        let error = |quoted: Vec<u8>| move |ip: Ip| ip.icmp(kind, code, 0, &quoted[14..]);
        // A hop outside tells of a packet of A, which left by the address outside.
        let quotes =
            [question(ip((X.1, X.1), outside, there)), question(ip((X.1, X.1), here, there))];
        let gateway = router_mac("r");
        let sent = error(quotes[0].clone())(ip((X.1, gateway), hop, outside));
        let arrives = error(quotes[1].clone())(ip((gateway, A.1), hop, here).ttl(63));
        net.passes(X, &sent, A, &arrives);
        // One about a packet that is not of A.
        let other = error(question(ip((X.1, X.1), there, outside)));
        net.drops(X, &other(ip((X.1, gateway), hop, outside)), "nat-quote");
        // A tells of a packet of the world.
        let quotes =
            [question(ip((X.1, X.1), there, here)), question(ip((X.1, X.1), there, outside))];
        let sent = error(quotes[0].clone())(ip((A.1, gateway), here, there));
        let arrives = error(quotes[1].clone())(ip((gateway, X.1), outside, there).ttl(63));
        net.passes(A, &sent, X, &arrives);
    }
    // A machine without an address outside tells of one that has it: as that one.
    let gateway = router_mac("r");
    let quoted = |to| ip((X.1, X.1), WORLD, to).udp(1000, 53, b"a question")[14..].to_vec();
    let sent = ip((C.1, gateway), "10.0.0.11", WORLD).icmp(11, 0, 0, &quoted("10.0.0.10"));
    let arrives = ip((gateway, X.1), OUTSIDE, WORLD).ttl(63).icmp(11, 0, 0, &quoted(OUTSIDE));
    net.passes(C, &sent, X, &arrives);
    // No quote tells an address inside that has none outside.
    let tells = |from: (Mac, &str)| {
        ip((from.0, gateway), from.1, WORLD).icmp(11, 0, 0, &quoted("10.0.0.11"))
    };
    net.drops(C, &tells((C.1, "10.0.0.11")), "nat-quote");
    net.drops(A, &tells((A.1, "10.0.0.10")), "nat-quote");
}

/// Each fragment has the address, the first one the sum. One that comes early waits untranslated.
#[test]
fn fragments_are_translated_each() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        admit(&mut net, "198.51.100.0/24", 17);
        for (here, outside, there) in &FAMILIES[..if bypass { 2 } else { 1 }] {
            let whole = |ip: Ip| ip.udp(1000, 53, &[7; 120]);
            let l4 = if here.contains(':') { 54 } else { 34 };
            // The sum of the whole packet stands in the first fragment.
            let piece = |ends: [Ip; 2], first: bool| {
                ends.map(|ip| {
                    let all = whole(ip.clone())[l4..].to_vec();
                    let (offset, range) = if first { (0, 0..64) } else { (64, 64..128) };
                    ip.fragment(9, offset, first).payload(17, &all[range])
                })
            };
            let gateway = router_mac("r");
            let outwards =
                || [ip((A.1, gateway), here, there), ip((gateway, X.1), outside, there).ttl(63)];
            let inwards =
                || [ip((X.1, gateway), there, outside), ip((gateway, A.1), there, here).ttl(63)];
            for first in [true, false] {
                let [sent, arrives] = piece(outwards(), first);
                net.passes(A, &sent, X, &arrives);
                let [sent, arrives] = piece(inwards(), first);
                net.passes(X, &sent, A, &arrives);
            }
            let tiny = ip((A.1, gateway), here, there).fragment(10, 0, true);
            net.drops(A, &tiny.payload(6, &[7; 8]), "tiny-fragment");
        }
    }
    let mut net = net(false);
    admit(&mut net, "198.51.100.0/24", 17);
    let gateway = router_mac("r");
    let all = ip((X.1, gateway), WORLD, "10.0.0.10").udp(1000, 53, &[7; 120])[34..].to_vec();
    let sent = ip((X.1, gateway), WORLD, OUTSIDE).udp(1000, 53, &[7; 120])[34..].to_vec();
    let late: fn(&[u8], Ip) -> Vec<u8> =
        |bytes, ip| ip.fragment(9, 64, false).payload(17, &bytes[64..]);
    let first: fn(&[u8], Ip) -> Vec<u8> =
        |bytes, ip| ip.fragment(9, 0, true).payload(17, &bytes[..64]);
    let guest = net.host.guest(X.0).unwrap();
    for make in [late, first] {
        let frame = make(&sent, ip((X.1, gateway), WORLD, OUTSIDE));
        guest.send(&frame, NetHeader::default()).unwrap();
    }
    net.host.settle();
    let got: Vec<_> = net.host.received().unwrap().remove(A.0).unwrap();
    let frames: Vec<_> = got.into_iter().map(|(_, frame)| frame).collect();
    let arrives = || ip((gateway, A.1), WORLD, "10.0.0.10").ttl(63);
    assert_eq!(frames, [first(&all, arrives()), late(&all, arrives())]);
}

/// Packets that no rule translates do not leave, and a rule that goes is gone at once.
#[test]
fn nothing_leaves_untranslated() {
    let mut net = net(true);
    let gateway = router_mac("r");
    let other = ip((C.1, gateway), "10.0.0.11", WORLD).udp(1, 2, b"x");
    net.drops(C, &other, "nat-no-rule");
    // IPv6 needs no translation.
    let six = |from: Mac, ttl| {
        ip((from, if from == C.1 { gateway } else { X.1 }), "fd00:42::c", WORLD_V6)
            .ttl(ttl)
            .udp(1, 2, b"x")
    };
    net.passes(C, &six(C.1, 64), X, &six(gateway, 63));
    let [there, there_left] = out("10.0.0.10", OUTSIDE, WORLD, |ip| ip.udp(1, 2, b"x"));
    let [back, back_came] = into(WORLD, OUTSIDE, "10.0.0.10", |ip| ip.udp(2, 1, b"x"));
    net.passes(A, &there, X, &there_left);
    translate(&net, "r", &[]);
    net.drops(A, &there, "nat-no-rule");
    net.drops(X, &back, "no-route");
    // To the address inside nobody comes, also beside what is translated.
    translate(&net, "r", &[floating(OUTSIDE, "10.0.0.10")]);
    let direct = ip((X.1, gateway), WORLD, "10.0.0.10").udp(2, 1, b"x");
    let guest = net.host.guest(X.0).unwrap();
    for frame in [&back, &direct, &back, &direct] {
        guest.send(frame, NetHeader::default()).unwrap();
    }
    net.host.settle();
    let got = net.host.received().unwrap();
    assert_eq!(got[A.0].iter().map(|(_, frame)| frame).collect::<Vec<_>>(), [&back_came; 2]);
    assert_eq!(net.host.moved().get("x.drop.no-route"), Some(&2));
    // Another machine has the address from now on.
    translate(&net, "r", &[floating(OUTSIDE, "10.0.0.11")]);
    net.drops(A, &there, "nat-no-rule");
    let to_c = ip((gateway, C.1), WORLD, "10.0.0.11").ttl(63).udp(2, 1, b"x");
    net.passes(X, &back, C, &to_c);
}

/// Two tenants may have one block: each router knows its own machines.
#[test]
fn routers_with_one_block_stay_apart() {
    let mut net = net(true);
    translate(&net, "s", &[floating("192.0.2.81", "10.0.0.10")]);
    let [own, other] = [router_mac("r"), router_mac("s")];
    let make = |ip: Ip| ip.udp(1, 2, b"x");
    let to = |outside, gateway| make(ip((X.1, gateway), WORLD, outside));
    let came = |gateway, to: Machine| make(ip((gateway, to.1), WORLD, "10.0.0.10").ttl(63));
    net.passes(X, &to(OUTSIDE, own), A, &came(own, A));
    net.passes(X, &to("192.0.2.81", other), TWIN, &came(other, TWIN));
    // Each has its own addresses alone.
    net.drops(X, &to("192.0.2.81", own), "no-route");
    let left = |from: Machine, gateway| make(ip((from.1, gateway), "10.0.0.10", WORLD));
    let leaves = |outside, gateway| make(ip((gateway, X.1), outside, WORLD).ttl(63));
    net.passes(A, &left(A, own), X, &leaves(OUTSIDE, own));
    net.passes(TWIN, &left(TWIN, other), X, &leaves("192.0.2.81", other));
    // Nobody inside reaches an address outside of this host, by either router.
    for outside in [OUTSIDE, "192.0.2.81"] {
        let hairpin = make(ip((A.1, own), "10.0.0.10", outside));
        net.drops(A, &hairpin, "nat-hairpin");
    }
}

/// A drop behind the translation shows the packet as it came, and no error tells of it.
#[test]
fn what_does_not_pass_is_as_it_came() {
    let mut net = net(true);
    let gateway = router_mac("r");
    let late = ip((X.1, gateway), WORLD, OUTSIDE).ttl(1).udp(1, 2, b"x");
    net.drops(X, &late, "ttl-expired");
    let places = net.host.drop_report(Some(X.0)).unwrap().places;
    let head = places.iter().flat_map(|place| &place.rows).map(|row| &row.head).next().unwrap();
    assert_eq!(head[..], late[..head.len()]);
    assert!(head.len() >= 42);
    translate(&net, "r", &[floating(OUTSIDE, "10.0.0.99")]);
    let nobody = ip((X.1, gateway), WORLD, OUTSIDE).udp(1, 2, b"x");
    net.drops(X, &nobody, "next-hop-unknown");
}

/// From inside the answer comes to the address outside; from outside the machine inside is named.
#[test]
fn an_explanation_tells_both_addresses() {
    let net = net(false);
    let to = Target::Address(WORLD.parse().unwrap());
    let told = net.host.explain(&Question { to, ..question(true) }).unwrap();
    let [there, back] = &told.walks[..] else { panic!("{told:?}") };
    assert_eq!(there.fate, Fate::Delivered(X.0.into()), "{there:?}");
    assert_eq!(back.fate, Fate::Delivered(A.0.into()), "{back:?}");
    let texts = |walk: &Walk, stage: &str| -> Vec<String> {
        let steps = walk.steps.iter().filter(|step| step.stage == stage);
        steps.map(|step| step.text.clone()).collect()
    };
    assert!(texts(there, "masquerade")[0].ends_with("as 192.0.2.80"), "{there:?}");
    assert_eq!(texts(back, "translate"), ["192.0.2.80 is 10.0.0.10 inside"]);
    assert_eq!(net.sessions(), 0, "nothing was sent");
}

/// A port outside is a port of one machine, in both directions; everything else of the address is
/// nobody's.
#[test]
fn a_forwarded_port_is_one_machines() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        let forward = |protocol, port: u16, to: &str| {
            let outside = format!("192.0.2.9:{port}").parse().unwrap();
            Nat::forward(protocol, outside, to.parse().unwrap()).unwrap()
        };
        let rules = [
            forward(ForwardProtocol::Udp, 53, "10.0.0.10:1053"),
            forward(ForwardProtocol::Tcp, 80, "10.0.0.11:80"),
        ];
        translate(&net, "r", &rules);
        let gateway = router_mac("r");
        let inwards = |make: &dyn Fn(Ip) -> Vec<u8>| make(ip((X.1, gateway), WORLD, "192.0.2.9"));
        let opens = inwards(&|ip| ip.udp(7, 53, b"opens"));
        if !bypass {
            // Groups see the port inside.
            net.drops_at(X, &opens, A, "ingress-denied");
            admit(&mut net, "198.51.100.0/24", 17);
            admit(&mut net, "198.51.100.0/24", 6);
        }
        let came = ip((gateway, A.1), WORLD, "10.0.0.10").ttl(63).udp(7, 1053, b"opens");
        net.passes(X, &opens, A, &came);
        let answer = ip((A.1, gateway), "10.0.0.10", WORLD).udp(1053, 7, b"answers");
        let left = ip((gateway, X.1), "192.0.2.9", WORLD).ttl(63).udp(53, 7, b"answers");
        net.passes(A, &answer, X, &left);
        let opens = inwards(&|ip| ip.tcp(&Tcp::new(7, 80, SYN), b""));
        let came = ip((gateway, C.1), WORLD, "10.0.0.11").ttl(63).tcp(&Tcp::new(7, 80, SYN), b"");
        net.passes(X, &opens, C, &came);
        assert_eq!(net.sessions(), if bypass { 0 } else { 2 });
        // Errors are found by the ports that they quote.
        let quote = |end: &str, port| ip((X.1, X.1), end, WORLD).udp(port, 7, b"answers");
        let error = |end: Vec<u8>| move |ip: Ip| ip.icmp(3, 3, 0, &end[14..]);
        let sent = inwards(&error(quote("192.0.2.9", 53)));
        let came = error(quote("10.0.0.10", 1053))(ip((gateway, A.1), WORLD, "10.0.0.10").ttl(63));
        net.passes(X, &sent, A, &came);
        net.drops(X, &inwards(&error(quote("192.0.2.9", 54))), "nat-quote");
        for (make, reason) in [
            (&(|ip: Ip| ip.udp(7, 54, b"x")) as &dyn Fn(Ip) -> Vec<u8>, "nat-no-mapping"),
            (&|ip: Ip| ip.tcp(&Tcp::new(7, 53, SYN), b""), "nat-no-mapping"),
            (&|ip: Ip| ip.ping(1, 2, b"x"), "nat-no-mapping"),
            (
                &|ip: Ip| ip.fragment(9, 0, true).payload(17, &[0, 7, 0, 54, 0, 99, 0, 0]),
                "nat-no-mapping",
            ),
            (&|ip: Ip| ip.fragment(9, 8, false).payload(132, &[0, 7, 0, 53]), "nat-no-mapping"),
        ] {
            net.drops(X, &inwards(make), reason);
        }
        // The machine's other ports have no address outside.
        let other = ip((A.1, gateway), "10.0.0.10", WORLD).udp(1054, 7, b"x");
        net.drops(A, &other, "nat-no-rule");
    }
}

/// A host whose table of sessions is a file of its own, which goes with it.
struct Kept {
    net: Net,
}

impl Kept {
    /// The host number `n` of this test, which goes on with the sessions of another one.
    fn new(n: u32, of: Option<&Kept>) -> Kept {
        let name = format!("butterfly-test-nat-{}-{n}", std::process::id());
        if let Some(of) = of {
            let file = of.net.host.session_file().unwrap();
            fs::copy(file, file.with_file_name(&name)).unwrap();
        }
        let (file, adopt) = (Some(name), true);
        let sessions = SessionConfig { capacity: 4096, file, adopt, ..SessionConfig::default() };
        let mut net = declared(Host::with_sessions(sessions).unwrap(), false);
        net.host.all_declared();
        Kept { net }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.net.host.session_file().map(fs::remove_file);
    }
}

/// The successor of a host that died translates as before, and lets in what answers, and nothing
/// else.
#[test]
fn a_translated_session_goes_on_after_a_crash() {
    let mut first = Kept::new(1, None);
    let [there, there_left] = out("10.0.0.10", OUTSIDE, WORLD, |ip| ip.udp(1000, 53, b"?"));
    first.net.passes(A, &there, X, &there_left);
    let mut second = Kept::new(2, Some(&first));
    second.net.host.moved();
    assert_eq!(second.net.sessions(), 1);
    let [back, back_came] = into(WORLD, OUTSIDE, "10.0.0.10", |ip| ip.udp(53, 1000, b"!"));
    second.net.passes(X, &back, A, &back_came);
    second.net.passes(A, &there, X, &there_left);
    let [other, _] = into(WORLD, OUTSIDE, "10.0.0.10", |ip| ip.udp(53, 1001, b"!"));
    second.net.drops_at(X, &other, A, "ingress-denied");
    assert_eq!(second.net.sessions(), 1);
}

/// A machine without filters leaves from no address of a filtered one, which would be translated.
#[test]
fn nobody_leaves_from_the_address_of_a_filtered_machine() {
    let mut net = net(false);
    let b: Machine = ("b", Mac([2, 0, 0, 0, 0, 0xb]), 42, [10, 0, 0, 12]);
    net.host.vnic(b.0, b.1, b.2, &policy(b.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    let forged = ip((b.1, router_mac("r")), "10.0.0.10", WORLD).udp(1, 2, b"x");
    net.drops(b, &forged, "ip-claimed");
}

/// Rules for members of a group are about machines inside: anybody outside may write their
/// addresses, also of networks that the router does not join.
#[test]
fn nobody_outside_is_a_member() {
    let mut net = net(false);
    let member: Machine = ("m", Mac([2, 0, 0, 0, 0, 0x1e]), 43, [172, 16, 0, 7]);
    net.host.vnic(member.0, member.1, member.2, &policy(member.3, false)).unwrap();
    net.host.settle();
    let name = GroupName::new("open").unwrap();
    let ports = (Some(1), Some(65535));
    let rule = Rule::new(Direction::Inbound, 17, ports, None, Some(name.clone())).unwrap();
    let members =
        [C.3, member.3].map(|ip| GroupChange::AddMember(std::net::IpAddr::from(ip).into()));
    for change in [GroupChange::AddRule(rule)].into_iter().chain(members) {
        net.host.change_group(&name, change).unwrap();
    }
    net.host.moved();
    let beside = ip((C.1, A.1), "10.0.0.11", "10.0.0.10").udp(1, 2, b"a member");
    net.passes(C, &beside, A, &beside);
    let [forged, came] = into("172.16.0.7", OUTSIDE, "10.0.0.10", |ip| ip.udp(1, 2, b"x"));
    net.drops_at(X, &forged, A, "ingress-denied");
    // A rule for a block is about anybody.
    admit(&mut net, "172.16.0.0/12", 17);
    net.passes(X, &forged, A, &came);
}

/// A filtered machine is no router on the way: it has no address outside by what it quotes.
#[test]
fn a_filtered_machine_tells_of_its_own_packets_alone() {
    let mut net = net(false);
    let gateway = router_mac("r");
    let quoted = |to| ip((X.1, X.1), WORLD, to).udp(1000, 53, b"a question")[14..].to_vec();
    let tells = |to| ip((C.1, gateway), "10.0.0.11", WORLD).icmp(3, 1, 0, &quoted(to));
    net.drops(C, &tells("10.0.0.10"), "nat-no-rule");
    let rules = [floating(OUTSIDE, "10.0.0.10"), floating("192.0.2.81", "10.0.0.11")];
    translate(&net, "r", &rules);
    net.drops(C, &tells("10.0.0.10"), "nat-quote");
    let own = ip((gateway, X.1), "192.0.2.81", WORLD).ttl(63).icmp(3, 1, 0, &quoted("192.0.2.81"));
    net.passes(C, &tells("10.0.0.11"), X, &own);
}

/// Nothing leaves as an address that a machine of another router has outside.
#[test]
fn nobody_leaves_untranslated_as_anothers_address_outside() {
    let mut net = net(true);
    let subnet = Subnet::parse("203.0.113.0/24", Some("203.0.113.1")).unwrap();
    let public = Network::new(vni(43), vec![subnet], None).unwrap().with_public(true);
    net.host.change_routing(RoutingChange::DeclareNetwork(public));
    let p: Machine = ("p", Mac([2, 0, 0, 0, 0, 0x1f]), 43, [203, 0, 113, 80]);
    net.host.vnic(p.0, p.1, p.2, &policy(p.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    let gateway = router_mac("s");
    let sent = ip((p.1, gateway), "203.0.113.80", WORLD).udp(1, 2, b"x");
    let leaves = ip((gateway, X.1), "203.0.113.80", WORLD).ttl(63).udp(1, 2, b"x");
    net.passes(p, &sent, X, &leaves);
    translate(&net, "r", &[floating("203.0.113.80", "10.0.0.10")]);
    net.drops(p, &sent, "nat-untranslated");
}

/// Errors quote packets of their own family, and headers that are not at hand are read.
#[test]
fn what_is_hard_to_read_is_translated_or_dropped() {
    let mut net = net(true);
    let gateway = router_mac("r");
    let six = ip((X.1, X.1), WORLD_V6, INSIDE_V6).udp(1000, 53, b"a question");
    let sent = ip((A.1, gateway), "10.0.0.10", WORLD).icmp(3, 1, 0, &six[14..]);
    net.drops(A, &sent, "nat-quote");
    let long = |ip: Ip| {
        let udp = ip.clone().udp(1, 2, b"x")[54..].to_vec();
        let mut all = vec![17, 19, 1, 156]; // a pad of 160 bytes
        all.resize(160, 0);
        all.extend(udp);
        ip.payload(60, &all)
    };
    let [sent, arrives] = into(WORLD_V6, OUTSIDE_V6, INSIDE_V6, long);
    net.passes(X, &sent, A, &arrives);
    let [sent, arrives] = out(INSIDE_V6, OUTSIDE_V6, WORLD_V6, long);
    net.passes(A, &sent, X, &arrives);
}

/// Makes a packet of a header.
type Make<'a> = &'a dyn Fn(Ip) -> Vec<u8>;

/// Address outside that the machines of router `r` share.
pub const SHARED: &str = "192.0.2.9";

pub fn snat(outside: &str) -> Nat {
    Nat::snat(outside.parse().unwrap()).unwrap()
}

/// [`A`] and [`C`] behind one address.
pub fn shared(bypass: bool) -> Net {
    let net = net(bypass);
    translate(&net, "r", &[snat(SHARED)]);
    net
}

pub fn text(machine: Machine) -> String {
    IpAddr::from(machine.3).to_string()
}

/// A packet of a machine inside, to the world.
fn sent(from: Machine, make: &dyn Fn(Ip) -> Vec<u8>) -> Vec<u8> {
    make(ip((from.1, router_mac("r")), &text(from), WORLD))
}

/// Sends a packet of a machine inside. Returns the port, or identifier, by which it leaves.
#[track_caller]
pub fn leaves(net: &mut Net, from: Machine, to: &str, kind: u8, port: u16) -> u16 {
    let gateway = router_mac("r");
    let make = |ip: Ip, port| match kind {
        6 => ip.tcp(&Tcp::new(port, 80, SYN), b""),
        17 => ip.udp(port, 53, b"?"),
        _ => ip.ping(port, 1, b"x"),
    };
    let got = net.send(from, &make(ip((from.1, gateway), &text(from), to), port));
    let [frame] = &got[X.0][..] else { panic!("{got:?}") };
    let at = if kind == 1 { 38 } else { 34 };
    let left = u16::from_be_bytes([frame[at], frame[at + 1]]);
    // All else, with all sums, is as if it had been sent so.
    assert_eq!(frame, &make(ip((gateway, X.1), SHARED, to).ttl(63), left));
    let moved = net.host.moved();
    assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
    left
}

/// Sends the world's answer to what left by `left`. Asserts that the machine gets it by its own
/// port.
#[track_caller]
fn answered(net: &mut Net, to: Machine, kind: u8, (left, port): (u16, u16)) {
    let gateway = router_mac("r");
    let make = |ip: Ip, port| match kind {
        6 => ip.tcp(&Tcp { acknowledgement: 1, ..Tcp::new(80, port, SYN | ACK) }, b""),
        17 => ip.udp(53, port, b"!"),
        _ => ip.icmp(0, 0, u32::from(port) << 16 | 1, b"x"),
    };
    let comes = make(ip((X.1, gateway), WORLD, SHARED), left);
    let came = make(ip((gateway, to.1), WORLD, &text(to)).ttl(63), port);
    net.passes(X, &comes, to, &came);
}

/// Two machines use the same port at once, and each gets its own answers.
#[test]
fn machines_share_an_address_outside() {
    for bypass in [true, false] {
        let mut net = shared(bypass);
        for kind in [6, 17, 1] {
            let of_a = leaves(&mut net, A, WORLD, kind, 5000);
            let of_c = leaves(&mut net, C, WORLD, kind, 5000);
            assert_eq!(of_a, 5000, "the first one keeps its port");
            assert_ne!(of_c, 5000);
            if kind == 17 {
                assert_eq!(of_c % 2, 0, "of the same parity");
            }
            answered(&mut net, C, kind, (of_c, 5000));
            answered(&mut net, A, kind, (of_a, 5000));
            // To whomever it is, a port inside is one outside.
            let others = ["198.51.100.10", "203.0.113.5"];
            for to in others {
                assert_eq!(leaves(&mut net, C, to, kind, 5000), of_c);
            }
        }
        assert!(leaves(&mut net, A, WORLD, 17, 53) >= 1024);
    }
}

/// Sessions and groups decide of filtered machines; of others anybody outside uses a port.
#[test]
fn nobody_outside_makes_a_mapping() {
    for bypass in [true, false] {
        let mut net = shared(bypass);
        let gateway = router_mac("r");
        let comes = |from: &str, port| ip((X.1, gateway), from, SHARED).udp(53, port, b"!");
        net.drops(X, &comes(WORLD, 5000), "nat-no-mapping");
        let syn = ip((X.1, gateway), WORLD, SHARED).tcp(&Tcp::new(80, 5000, SYN), b"");
        net.drops(X, &syn, "nat-no-mapping");
        assert_eq!(leaves(&mut net, A, WORLD, 17, 5000), 5000);
        let other = comes("203.0.113.5", 5000);
        match bypass {
            true => {
                let came = ip((gateway, A.1), "203.0.113.5", "10.0.0.10").ttl(63);
                net.passes(X, &other, A, &came.udp(53, 5000, b"!"));
            }
            false => net.drops_at(X, &other, A, "ingress-denied"),
        }
        net.drops(X, &comes(WORLD, 5001), "nat-no-mapping");
        // An echo is answered by who asked: its identifier is no way in.
        assert_eq!(leaves(&mut net, A, WORLD, 1, 6000), 6000);
        let ping = ip((X.1, gateway), WORLD, SHARED).ping(6000, 1, b"x");
        net.drops(X, &ping, "nat-no-mapping");
        // The machine's other traffic has no port to share.
        let kinds: [(Make<'_>, &str); 5] = [
            (&|ip| ip.payload(50, b"encrypted"), "nat-protocol"),
            (&|ip| ip.sctp((1, 2), 3, 0, b"chunk"), "nat-protocol"),
            (&|ip| ip.icmp(0, 0, 6001 << 16, b"x"), "nat-protocol"),
            (&|ip| ip.fragment(9, 0, true).payload(50, &[7; 64]), "nat-protocol"),
            (&|ip| ip.fragment(9, 64, false).payload(50, &[7; 64]), "nat-protocol"),
        ];
        if bypass {
            for (make, reason) in kinds {
                net.drops(A, &sent(A, make), reason);
            }
        }
        // IPv6 is nobody's to share.
        let six = |link, ttl| ip(link, INSIDE_V6, WORLD_V6).ttl(ttl).udp(1, 2, b"x");
        net.passes(A, &six((A.1, gateway), 64), X, &six((gateway, X.1), 63));
    }
}

/// Errors find the machine by what they quote, in both directions.
#[test]
fn errors_find_the_machine_that_shares() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    for kind in [17, 6, 1] {
        assert_eq!(leaves(&mut net, A, WORLD, kind, 5000), 5000);
        let left = leaves(&mut net, C, WORLD, kind, 5000);
        let make = |ip: Ip, port| match kind {
            6 => ip.tcp(&Tcp::new(port, 80, SYN), b""),
            17 => ip.udp(port, 53, b"a question"),
            _ => ip.ping(port, 1, b"x"),
        };
        let quote = |from: &str, port| make(ip((X.1, X.1), from, WORLD), port)[14..].to_vec();
        let hop = "203.0.113.7";
        let comes = |quoted: Vec<u8>| ip((X.1, gateway), hop, SHARED).icmp(11, 0, 0, &quoted);
        let came = ip((gateway, C.1), hop, "10.0.0.11").ttl(63);
        let came = came.icmp(11, 0, 0, &quote("10.0.0.11", 5000));
        net.passes(X, &comes(quote(SHARED, left)), C, &came);
        net.drops(X, &comes(quote(SHARED, left.wrapping_add(1))), "nat-quote");
    }
    // C tells of an answer that it got by its port outside.
    let left = leaves(&mut net, C, WORLD, 17, 5000);
    let quote = |to: &str, port| ip((X.1, X.1), WORLD, to).udp(53, port, b"!")[14..].to_vec();
    let told = |quoted: Vec<u8>| ip((C.1, gateway), "10.0.0.11", WORLD).icmp(3, 3, 0, &quoted);
    let tells = ip((gateway, X.1), SHARED, WORLD).ttl(63).icmp(3, 3, 0, &quote(SHARED, left));
    net.passes(C, &told(quote("10.0.0.11", 5000)), X, &tells);
    net.drops(C, &told(quote("10.0.0.11", 5001)), "nat-quote");
}

/// A port goes when its time is over, and not by what comes from outside.
#[test]
fn ports_outside_are_given_for_a_time() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    let comes = |port| ip((X.1, gateway), WORLD, SHARED).udp(53, port, b"!");
    assert_eq!(leaves(&mut net, A, WORLD, 17, 5000), 5000);
    net.host.pass(200);
    answered(&mut net, A, 17, (5000, 5000));
    net.host.pass(90);
    answered(&mut net, A, 17, (5000, 5000));
    net.host.pass(30);
    net.drops(X, &comes(5000), "nat-no-mapping");
    // TCP whose machine acknowledged an answer lasts for two hours, else four minutes.
    assert_eq!(leaves(&mut net, A, WORLD, 6, 5000), 5000);
    assert_eq!(leaves(&mut net, A, WORLD, 6, 5002), 5002);
    answered(&mut net, A, 6, (5002, 5002));
    answered(&mut net, A, 6, (5000, 5000));
    let says = |flags, payload: &[u8]| {
        ip((A.1, gateway), "10.0.0.10", WORLD)
            .tcp(&Tcp { acknowledgement: 1, ..Tcp::new(5000, 80, flags) }, payload)
    };
    assert_eq!(net.send(A, &says(ACK, b""))[X.0].len(), 1);
    net.host.pass(7400);
    answered(&mut net, A, 6, (5000, 5000));
    let late = ip((X.1, gateway), WORLD, SHARED).tcp(&Tcp::new(80, 5002, SYN | ACK), b"");
    net.drops(X, &late, "nat-no-mapping");
    // Anybody outside may send a reset to a machine without filters: that ends nothing.
    let reset = ip((X.1, gateway), WORLD, SHARED).tcp(&Tcp::new(80, 5000, RST), b"");
    assert_eq!(net.send(X, &reset)[A.0].len(), 1);
    assert_eq!(net.send(A, &says(ACK, b""))[X.0].len(), 1);
    net.host.pass(300);
    answered(&mut net, A, 6, (5000, 5000));
    // Its own end does, and what acknowledges the other's end does not undo that.
    for flags in [FIN | ACK, ACK] {
        assert_eq!(net.send(A, &says(flags, b""))[X.0].len(), 1);
    }
    net.host.pass(300);
    let late = ip((X.1, gateway), WORLD, SHARED).tcp(&Tcp::new(80, 5000, SYN | ACK), b"");
    net.drops(X, &late, "nat-no-mapping");
    // Another machine may have it then.
    assert_eq!(leaves(&mut net, C, WORLD, 6, 5002), 5002);
}

/// A connection that follows one that was reset by the same port, at once: what was reset ends
/// before the next one begins, also where the machine sends both in one batch.
#[test]
fn a_port_lasts_that_is_used_anew_at_once() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    let says = |flags, payload: &[u8]| {
        ip((A.1, gateway), "10.0.0.10", WORLD)
            .tcp(&Tcp { acknowledgement: 1, ..Tcp::new(5000, 80, flags) }, payload)
    };
    for (first, last) in [(SYN, ACK), (ACK, 0)] {
        for flags in [SYN, ACK] {
            assert_eq!(net.send(A, &says(flags, b""))[X.0].len(), 1);
        }
        // The next one opens, or carries bytes of another connection.
        let payload: &[u8] = if first == SYN { b"" } else { b"bytes" };
        for frame in [says(RST, b""), says(first, payload)] {
            net.host.guest(A.0).unwrap().send(&frame, NetHeader::default()).unwrap();
        }
        net.host.settle();
        assert_eq!(net.host.received().unwrap()[X.0].len(), 2);
        if last != 0 {
            assert_eq!(net.send(A, &says(last, b""))[X.0].len(), 1);
        }
        net.host.moved();
        net.host.pass(3600);
        answered(&mut net, A, 6, (5000, 5000));
    }
}

/// A machine has its share of the ports, and nobody else suffers.
#[test]
fn a_machine_that_scans_has_its_share() {
    let mut net = shared(true);
    for port in 0..4096 {
        leaves(&mut net, A, WORLD, 17, 10_000 + port);
    }
    let more = sent(A, &|ip| ip.udp(9000, 53, b"?"));
    net.drops(A, &more, "nat-share");
    assert_eq!(leaves(&mut net, C, WORLD, 17, 9000), 9000);
    assert_eq!(leaves(&mut net, A, WORLD, 17, 10_000), 10_000);
    net.host.pass(400);
    assert_eq!(leaves(&mut net, A, WORLD, 17, 9000), 9000);
}

/// A machine has one of several addresses; when a rule goes, nothing leaves by it any more.
#[test]
fn a_pool_that_shrinks_takes_its_machines_along() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    assert_eq!(leaves(&mut net, A, WORLD, 17, 5000), 5000);
    let there = sent(A, &|ip| ip.udp(5000, 53, b"?"));
    let forward = Nat::forward(
        ForwardProtocol::Udp,
        "192.0.2.9:5000".parse().unwrap(),
        "10.0.0.11:53".parse().unwrap(),
    );
    // A forwarded port is nobody's to share, and what else was declared stays.
    translate(&net, "r", &[snat(SHARED), forward.unwrap()]);
    let moved = leaves(&mut net, A, WORLD, 17, 5000);
    assert_ne!(moved, 5000);
    let to_c = |ip: Ip| ip.udp(7, 53, b"x");
    let comes = ip((X.1, gateway), WORLD, SHARED).udp(7, 5000, b"x");
    net.passes(X, &comes, C, &to_c(ip((gateway, C.1), WORLD, "10.0.0.11").ttl(63)));
    translate(&net, "r", &[snat(SHARED)]);
    answered(&mut net, A, 17, (moved, 5000));
    // From inside it is not reached by its address outside.
    let turned = ip((C.1, gateway), "10.0.0.11", SHARED).udp(7, moved, b"x");
    net.drops(C, &turned, "nat-hairpin");
    translate(&net, "r", &[]);
    net.drops(A, &there, "nat-no-rule");
    net.drops(X, &ip((X.1, gateway), WORLD, SHARED).udp(53, moved, b"!"), "no-route");
    // One that comes again knows nothing of before, once everybody has let go of it.
    net.host.pass(1);
    translate(&net, "r", &[snat(SHARED)]);
    net.drops(X, &ip((X.1, gateway), WORLD, SHARED).udp(53, moved, b"!"), "nat-no-mapping");
    // Of several addresses a machine has one, for all its ports.
    translate(&net, "r", &["192.0.2.9", "192.0.2.10", "192.0.2.11"].map(snat));
    let outside = |net: &mut Net, port| {
        let got = net.send(A, &sent(A, &|ip: Ip| ip.udp(port, 53, b"?")));
        got[X.0][0][26..30].to_vec()
    };
    let first = outside(&mut net, 5000);
    assert!((5001..5050).all(|port| outside(&mut net, port) == first));
}

/// When an address comes, what a machine has by another one goes on; new ends have the new one.
#[test]
fn an_address_that_comes_ends_no_conversation() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    let outside = |net: &mut Net, port| {
        let got = net.send(A, &sent(A, &|ip: Ip| ip.udp(port, 53, b"?")));
        got[X.0][0][26..30].to_vec()
    };
    assert_eq!(leaves(&mut net, A, WORLD, 17, 5000), 5000);
    let mut rules = vec![snat(SHARED)];
    // One of several comes to be the machine's own.
    let moved = (20..200).find(|n| {
        rules.push(snat(&format!("192.0.2.{n}")));
        translate(&net, "r", &rules);
        if outside(&mut net, 7000 + n) == [192, 0, 2, *n as u8] {
            return true;
        }
        rules.pop();
        translate(&net, "r", &rules);
        false
    });
    assert!(moved.is_some());
    assert_eq!(leaves(&mut net, A, WORLD, 17, 5000), 5000);
    answered(&mut net, A, 17, (5000, 5000));
    // An error about it finds its way, and once it is over it begins at the new one.
    let quoted = ip((X.1, X.1), SHARED, WORLD).udp(5000, 53, b"a question")[14..].to_vec();
    let error = ip((X.1, gateway), "203.0.113.7", SHARED).icmp(11, 0, 0, &quoted);
    assert_eq!(net.send(X, &error)[A.0].len(), 1);
    net.host.pass(400);
    assert_eq!(outside(&mut net, 5000), [192, 0, 2, moved.unwrap() as u8]);
}

/// A machine that gets an address of its own, or whose vnic goes, is not reached by what it shared.
#[test]
fn who_has_lost_a_port_gets_nothing_by_it() {
    let mut net = shared(true);
    let gateway = router_mac("r");
    let comes = |port| ip((X.1, gateway), WORLD, SHARED).udp(53, port, b"!");
    assert_eq!(leaves(&mut net, A, WORLD, 17, 5000), 5000);
    translate(&net, "r", &[snat(SHARED), floating(OUTSIDE, "10.0.0.10")]);
    net.drops(X, &comes(5000), "nat-no-mapping");
    translate(&net, "r", &[snat(SHARED)]);
    answered(&mut net, A, 17, (5000, 5000));
    // The next machine with its address hears nothing of its conversations.
    net.host.remove(A.0);
    let heir: Machine = ("heir", Mac([2, 0, 0, 0, 0, 0x33]), A.2, A.3);
    net.host.vnic(heir.0, heir.1, heir.2, &policy(heir.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    net.drops(X, &comes(5000), "nat-no-mapping");
}

/// A packet that cannot be translated opens nothing.
#[test]
fn what_cannot_be_translated_opens_nothing() {
    let mut net = shared(true);
    let mut tiny = sent(A, &|ip: Ip| ip.udp(5000, 53, b"?"));
    tiny.truncate(38); // its header is cut behind the ports
    tiny[16..18].copy_from_slice(&24_u16.to_be_bytes());
    tiny[24..26].copy_from_slice(&[0, 0]);
    let sum = butterfly_packet::checksum::Sum::of(&tiny[14..34]).checksum();
    tiny[24..26].copy_from_slice(&sum.to_be_bytes());
    net.drops(A, &tiny, "malformed-ip");
    let comes = ip((X.1, router_mac("r")), WORLD, SHARED).udp(53, 5000, b"!");
    net.drops(X, &comes, "nat-no-mapping");
}

/// An explanation tells the port that a packet would get, and takes none.
#[test]
fn an_explanation_tells_the_port_outside() {
    let mut net = shared(false);
    let to = Target::Address(WORLD.parse().unwrap());
    let told = net.host.explain(&Question { to, ..question(true) }).unwrap();
    let [there, back] = &told.walks[..] else { panic!("{told:?}") };
    assert_eq!(there.fate, Fate::Delivered(X.0.into()), "{there:?}");
    assert_eq!(back.fate, Fate::Delivered(A.0.into()), "{back:?}");
    let step = there.steps.iter().find(|step| step.stage == "masquerade").unwrap();
    let (_, port) = step.text.rsplit_once(", as 192.0.2.9 port ").unwrap();
    let port: u16 = port.parse().unwrap();
    let gateway = router_mac("r");
    let comes = ip((X.1, gateway), WORLD, SHARED).udp(53, port, b"!");
    net.drops(X, &comes, "nat-no-mapping");
}

/// The successor of a host that died gives the same ports, and lets in what answers.
#[test]
fn shared_ports_outlast_a_crash() {
    let mut first = Kept::new(3, None);
    translate(&first.net, "r", &[snat(SHARED)]);
    assert_eq!(leaves(&mut first.net, A, WORLD, 17, 5000), 5000);
    let left = leaves(&mut first.net, C, WORLD, 17, 5000);
    let mut second = Kept::new(4, Some(&first));
    second.net.host.moved();
    second.net.host.take_ports(&first.net.host).unwrap();
    translate(&second.net, "r", &[snat(SHARED)]);
    answered(&mut second.net, C, 17, (left, 5000));
    answered(&mut second.net, A, 17, (5000, 5000));
    assert_eq!(leaves(&mut second.net, C, WORLD, 17, 5000), left);
    assert_eq!(second.net.host.kept_ports(), 1);
    translate(&second.net, "r", &[]);
    assert_eq!(second.net.host.kept_ports(), 0, "they go with their rule");
}
