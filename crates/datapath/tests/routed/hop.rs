//! Second hops: a host without the outside reaches it by one that has it. Two hosts in one process.

use std::{collections::BTreeMap, net::IpAddr};

use butterfly_datapath::{Fate, Mac, Origin, Question, RoutingChange, Target, VnicPolicy};
use butterfly_model::{
    Cidr, External, ExternalId, ForwardProtocol, GroupName, Nat, Network, Router, RouterAddresses,
    RouterId, SecondHop, Subnet,
};
use butterfly_packet::{
    arp,
    build::{self, Ip, Tcp},
    tcp::{ACK, SYN},
};

use crate::explained::question;
use crate::hosts::{endpoint, host, outer, router_of};
use crate::net::*;

/// The router outside, behind the wire of host 1.
const X: Machine = (PORT, Mac([2, 0, 0, 0, 0, 0xe]), 77, [192, 0, 2, 1]);
const PORT: &str = "wire/world";
const WIRE: Mac = Mac([2, 0xbf, 0, 0, 0, 0x77]);
const WORLD: &str = "198.51.100.9";
const WORLD_V6: &str = "2001:db8:9::9";
const SHARED: &str = "192.0.2.9";
const FLOATING: &str = "192.0.2.80";
const FLOATING_V6: &str = "2001:db8::80";
const INSIDE_V6: &str = "fd00:42::a";
/// Offset of the inner frame, over IPv4.
const INNER: usize = 50;

fn external() -> External {
    let id = ExternalId::new("world").unwrap();
    let own = ["192.0.2.7/24", "2001:db8::7/64"];
    External::parse(id, vni(77), own, ["192.0.2.1", "2001:db8::1"]).unwrap()
}

fn inside(public: bool) -> RoutingChange {
    let blocks = [("10.0.0.0/24", "10.0.0.1"), ("fd00:42::/64", "fd00:42::1")];
    let subnets = blocks.map(|(block, own)| Subnet::parse(block, Some(own)).unwrap());
    let network = Network::new(vni(42), subnets.into(), None).unwrap().with_public(public);
    RoutingChange::DeclareNetwork(network)
}

/// The router of 42, which leads out by the external here, or by another host.
fn leads(over: Option<(IpAddr, u16)>) -> RoutingChange {
    let mut router = Router::new(RouterId::new("r").unwrap());
    router.attach(vni(42), RouterAddresses::default());
    match over {
        Some((host, mtu)) => router.set_second_hop(Some(SecondHop { host, mtu })),
        None => {
            router.attach(vni(77), RouterAddresses::default());
            external().default_routes().into_iter().for_each(|route| drop(router.add_route(route)));
        }
    }
    RoutingChange::DeclareRouter(router)
}

fn own_policy(bypass: bool) -> VnicPolicy {
    let ips = vec![A.3.into(), INSIDE_V6.parse().unwrap()];
    VnicPolicy { ips, ..policy(A.3, bypass) }
}

/// Host 1, which has the wire, and host 2 with [`A`].
fn pair(bypass: bool, public: bool) -> (Net, Net) {
    let (mut one, mut two) = (host(1, &[], true), host(2, &[], true));
    one.host.begin_seeking();
    one.host.change_routing(inside(public));
    one.host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    one.host.lay_wire(&external(), WIRE).unwrap();
    one.host.change_routing(leads(None));
    one.neighbour(A, Some(2));
    let mac = butterfly_model::Mac::parse(&A.1.to_string()).unwrap();
    let six = INSIDE_V6.parse().unwrap();
    let six = butterfly_model::Neighbour::new(vni(42), six, mac, Some(endpoint(2))).unwrap();
    one.host.change_routing(RoutingChange::DeclareNeighbour(six));
    for gateway in external().gateways() {
        let mac = butterfly_model::Mac::parse(&X.1.to_string()).unwrap();
        let outside = butterfly_model::Neighbour::new(vni(77), gateway, mac, None).unwrap();
        one.host.change_routing(RoutingChange::DeclareNeighbour(outside));
    }
    one.reaches(2);
    two.host.vnic(A.0, A.1, A.2, &own_policy(bypass)).unwrap();
    two.host.change_routing(inside(public));
    two.host.change_routing(leads(Some((endpoint(1), 1500))));
    two.reaches(1);
    for net in [&mut one, &mut two] {
        net.host.settle();
        net.host.received().unwrap();
        net.host.left().unwrap();
        net.host.moved();
    }
    (one, two)
}

fn translate(net: &Net, rules: &[Nat]) {
    let router = RouterId::new("r").unwrap();
    net.host.change_routing(RoutingChange::DeclareNat(router, vni(77), rules.to_vec()));
}

fn snat() -> Nat {
    Nat::snat(SHARED.parse().unwrap()).unwrap()
}

fn floats() -> [Nat; 2] {
    [(FLOATING, "10.0.0.10"), (FLOATING_V6, INSIDE_V6)].map(|(outside, inside)| {
        Nat::floating(outside.parse().unwrap(), inside.parse().unwrap()).unwrap()
    })
}

/// A header between two addresses, on a link.
fn ip(link: (Mac, Mac), from: &str, to: &str) -> Ip {
    let link = build::ethernet(link.0, link.1);
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from, to),
        _ => panic!("two families"),
    }
}

fn udp(ports: (u16, u16)) -> impl Fn(Ip) -> Vec<u8> {
    move |ip| ip.udp(ports.0, ports.1, b"x")
}

/// The frame by which host 2 has one of [`A`] led out.
fn hop(from: &str, to: &str, make: impl Fn(Ip) -> Vec<u8>) -> Vec<u8> {
    make(ip((gateway(), router_of(1)), from, to).ttl(63))
}

/// Takes frames from the wire of VNI 42, sent by host `n`.
fn arrive(net: &mut Net, n: u8, frame: &[u8]) -> BTreeMap<String, Vec<Vec<u8>>> {
    net.gets(&[outer((n, 1), 42, frame)])
}

#[track_caller]
fn drops(net: &mut Net, frame: &[u8], reason: &str) {
    net.host.moved();
    assert_eq!(arrive(net, 2, frame), BTreeMap::new());
    assert_eq!(net.drops_counted(), [(format!("vni-42.drop.{reason}"), 1)]);
    assert!(net.host.left().unwrap().is_empty());
}

#[track_caller]
fn to_wire(got: BTreeMap<String, Vec<Vec<u8>>>) -> Vec<u8> {
    let [(port, frames)]: [_; 1] = got.into_iter().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((port.as_str(), frames.len()), (PORT, 1));
    frames.into_iter().next().unwrap()
}

/// Sends from [`A`] by both hosts. Returns what leaves by the wire.
#[track_caller]
fn sends(one: &mut Net, two: &mut Net, to: &str, make: impl Fn(Ip) -> Vec<u8>) -> Vec<u8> {
    let from = if to.contains(':') { INSIDE_V6 } else { "10.0.0.10" };
    let left = two.leaves(A, &make(ip((A.1, gateway()), from, to)));
    assert_eq!(left.len(), 1, "{:?}", two.drops_counted());
    assert_eq!(left[0][INNER..], hop(from, to, &make));
    assert_eq!(left[0][INNER - 4..INNER - 1], [0, 0, 42]);
    let got = one.gets(&left);
    let left = to_wire(got);
    assert!(one.host.left().unwrap().is_empty());
    left
}

/// Has a frame come from outside, for [`A`]. Returns what that gets.
fn answers(one: &mut Net, two: &mut Net, frame: &[u8]) -> BTreeMap<String, Vec<Vec<u8>>> {
    let left = one.leaves(X, frame);
    assert_eq!(left.len(), 1, "{:?}", one.drops_counted());
    assert_eq!(left[0][INNER..INNER + 12], [A.1.0, router_of(1).0].concat());
    two.gets(&left)
}

#[test]
fn machines_share_the_address_of_another_host() {
    for bypass in [false, true] {
        let (mut one, mut two) = pair(bypass, false);
        translate(&one, &[snat()]);
        for round in 0..3 {
            let left = sends(&mut one, &mut two, WORLD, udp((5000, 53)));
            // The hop was taken once.
            assert_eq!(left, udp((5000, 53))(ip((WIRE, X.1), SHARED, WORLD).ttl(63)), "{round}");
            let answer = udp((53, 5000))(ip((X.1, WIRE), WORLD, SHARED));
            let arrives = udp((53, 5000))(ip((gateway(), A.1), WORLD, "10.0.0.10").ttl(63));
            let got = answers(&mut one, &mut two, &answer);
            assert_eq!(got, BTreeMap::from([("a".to_owned(), vec![arrives])]));
            assert_eq!((one.drops_counted(), two.drops_counted()), (vec![], vec![]));
        }
        assert_eq!(one.host.learnt(), 0, "no gateway has a place");
        assert_eq!((one.sessions(), two.sessions()), (0, u64::from(!bypass)));
    }
}

/// IPv4 and IPv6, whose inside addresses would leave as they are without translation.
#[test]
fn a_floating_address_leads_to_another_host() {
    let (mut one, mut two) = pair(true, false);
    translate(&one, &floats());
    for (inside, outside, world) in
        [("10.0.0.10", FLOATING, WORLD), (INSIDE_V6, FLOATING_V6, WORLD_V6)]
    {
        let kinds: [&dyn Fn(Ip) -> Vec<u8>; 3] =
            [&|ip| ip.udp(1000, 53, b"x"), &|ip| ip.tcp(&Tcp::new(1000, 80, SYN), b""), &|ip| {
                ip.ping(1, 2, b"x")
            }];
        for make in kinds {
            let left = sends(&mut one, &mut two, world, make);
            assert_eq!(left, make(ip((WIRE, X.1), outside, world).ttl(63)));
            let got = answers(&mut one, &mut two, &make(ip((X.1, WIRE), world, outside)));
            let arrives = make(ip((gateway(), A.1), world, inside).ttl(63));
            assert_eq!(got, BTreeMap::from([("a".to_owned(), vec![arrives])]));
        }
    }
    assert_eq!((one.drops_counted(), two.drops_counted()), (vec![], vec![]));
}

#[test]
fn a_public_network_leaves_by_another_host_as_it_is() {
    let (mut one, mut two) = pair(true, true);
    for (inside, world) in [("10.0.0.10", WORLD), (INSIDE_V6, WORLD_V6)] {
        let left = sends(&mut one, &mut two, world, udp((1000, 53)));
        assert_eq!(left, udp((1000, 53))(ip((WIRE, X.1), inside, world).ttl(63)));
        let got = answers(&mut one, &mut two, &udp((53, 1000))(ip((X.1, WIRE), world, inside)));
        assert_eq!(got.len(), 1);
    }
}

#[test]
fn a_port_of_another_host_is_forwarded() {
    let (mut one, mut two) = pair(false, false);
    two.admit("0.0.0.0/0");
    let outside = "192.0.2.70:8053".parse().unwrap();
    let to = "10.0.0.10:53".parse().unwrap();
    translate(&one, &[Nat::forward(ForwardProtocol::Udp, outside, to).unwrap()]);
    let asks = udp((4000, 8053))(ip((X.1, WIRE), WORLD, "192.0.2.70"));
    let arrives = udp((4000, 53))(ip((gateway(), A.1), WORLD, "10.0.0.10").ttl(63));
    let got = answers(&mut one, &mut two, &asks);
    assert_eq!(got, BTreeMap::from([("a".to_owned(), vec![arrives])]));
    let left = sends(&mut one, &mut two, WORLD, udp((53, 4000)));
    assert_eq!(left, udp((8053, 4000))(ip((WIRE, X.1), "192.0.2.70", WORLD).ttl(63)));
}

/// A machine that nobody declared: what it sends has it asked for, so its first answer finds it.
#[test]
fn a_machine_that_is_not_declared_is_asked_for() {
    let (mut one, mut two) = pair(true, false);
    two.host.begin_seeking();
    one.host.change_routing(RoutingChange::RemoveNeighbour(vni(42), A.3.into()));
    one.host.set_peers(vec![endpoint(2)], BTreeMap::new()).unwrap();
    one.host.pass(20);
    two.host.pass(20);
    translate(&one, &[snat()]);
    sends(&mut one, &mut two, WORLD, udp((5000, 53)));
    one.host.seek();
    let asked = one.host.left().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(two.gets(&asked).len(), 1);
    let own = router_of(1);
    let link = build::ethernet(A.1, own);
    let told = two.leaves(A, &link.arp(arp::REPLY, (A.1, A.3.into()), (own, [0; 4].into())));
    assert_eq!(told.len(), 1);
    one.gets(&told);
    one.host.seek();
    one.host.moved();
    let answer = udp((53, 5000))(ip((X.1, WIRE), WORLD, SHARED));
    assert_eq!(answers(&mut one, &mut two, &answer).len(), 1);
    assert_eq!(one.drops_counted(), []);
}

/// The gateway outside is asked for where nobody knows it, though nobody here sends there.
#[test]
fn the_gateway_outside_is_found() {
    let (mut one, mut two) = pair(true, false);
    translate(&one, &[snat()]);
    one.host.change_routing(RoutingChange::RemoveNeighbour(vni(77), X.3.into()));
    drops(&mut one, &hop("10.0.0.10", WORLD, udp((5000, 53))), "next-hop-unknown");
    one.host.seek();
    let own = "192.0.2.7".parse().unwrap();
    let asks = build::ethernet(WIRE, Mac::BROADCAST).arp(
        arp::REQUEST,
        (WIRE, own),
        (Mac::ZERO, X.3.into()),
    );
    let got = one.gets(&[]).remove(PORT).unwrap();
    assert!(got.iter().any(|frame| frame[..42] == asks[..42]), "{got:x?}");
    let told = build::ethernet(X.1, WIRE).arp(arp::REPLY, (X.1, X.3.into()), (WIRE, own));
    one.send(X, &told);
    one.host.seek();
    one.host.received().unwrap();
    sends(&mut one, &mut two, WORLD, udp((5000, 53)));
}

#[test]
fn only_what_leaves_by_the_wire_is_led_out() {
    let (mut one, _) = pair(true, false);
    translate(&one, &[snat()]);
    let own = |to: &str| hop("10.0.0.10", to, udp((5000, 53)));
    // Inside, also a machine of the same network, and the router itself.
    one.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
    one.host.vnic(B.0, B.1, B.2, &policy(B.3, true)).unwrap();
    let RoutingChange::DeclareRouter(mut router) = leads(None) else { panic!() };
    router.attach(vni(50), RouterAddresses::default());
    one.host.change_routing(RoutingChange::DeclareRouter(router.clone()));
    one.host.settle();
    drops(&mut one, &own("10.1.0.10"), "second-hop");
    drops(&mut one, &own("10.0.0.11"), "route-back");
    drops(&mut one, &own("10.1.0.1"), "second-hop");
    drops(&mut one, &own("10.1.0.99"), "next-hop-unknown");
    drops(&mut one, &own("224.0.0.5"), "route-group");
    // By a third host.
    let third = Cidr::new("203.0.113.0", 24).unwrap();
    router.set_second_hop(Some(SecondHop { host: endpoint(3), mtu: 1500 }));
    let everything = Cidr::new("0.0.0.0", 0).unwrap();
    let route = router.remove_route(&everything).unwrap();
    one.host.change_routing(RoutingChange::DeclareRouter(router.clone()));
    one.reaches(3);
    drops(&mut one, &own(WORLD), "second-hop");
    router.add_route(butterfly_model::Route::new(third, route.via().to_vec()).unwrap());
    one.host.change_routing(RoutingChange::DeclareRouter(router));
    to_wire(arrive(&mut one, 2, &own("203.0.113.9")));
    // To an address of this host, by which somebody inside is reached: it comes in again.
    one.host.change_routing(leads(None));
    let turned = to_wire(arrive(&mut one, 2, &own(SHARED)));
    assert_eq!((&turned[..6], &turned[6..12]), (&WIRE.0[..], &WIRE.0[..]));
    // Without a rule that translates it, and without the wire.
    translate(&one, &[]);
    drops(&mut one, &own(WORLD), "nat-no-rule");
    one.host.remove(PORT);
    drops(&mut one, &own(WORLD), "next-hop-unknown");
    one.host.change_routing(leads(Some((endpoint(3), 1500))));
    drops(&mut one, &own(WORLD), "second-hop");
    one.host.vnic(C.0, C.1, C.2, &policy(C.3, true)).unwrap();
    one.host.change_routing(RoutingChange::RemoveRouter(RouterId::new("r").unwrap()));
    drops(&mut one, &own(WORLD), "second-hop");
}

#[test]
fn who_sends_is_looked_at_again() {
    let (mut one, _) = pair(true, false);
    translate(&one, &[snat()]);
    let from = |source: &str| hop(source, WORLD, udp((5000, 53)));
    for source in ["10.1.0.10", "192.0.2.7", "10.0.0.1", "10.0.0.255", "127.0.0.1", "224.0.0.1"] {
        drops(&mut one, &from(source), "foreign-source");
    }
    let six = hop("fe80::a", WORLD_V6, udp((5000, 53)));
    drops(&mut one, &six, "foreign-source");
    // One that is declared to be on another host, and a filtered one that is here.
    one.neighbour(C, Some(3));
    drops(&mut one, &from("10.0.0.11"), "foreign-source");
    one.host.change_routing(RoutingChange::RemoveNeighbour(vni(42), C.3.into()));
    to_wire(arrive(&mut one, 2, &from("10.0.0.11")));
    one.host.vnic(C.0, C.1, C.2, &policy(C.3, false)).unwrap();
    one.host.settle();
    drops(&mut one, &from("10.0.0.11"), "own-source-routed");
    // From behind a machine of the network, which a route says.
    let RoutingChange::DeclareRouter(mut router) = leads(None) else { panic!() };
    router.add_route(butterfly_model::Route::parse("10.9.0.0/16", ["10.0.0.10"]).unwrap());
    one.host.change_routing(RoutingChange::DeclareRouter(router));
    to_wire(arrive(&mut one, 2, &from("10.9.0.1")));
}

#[test]
fn what_is_no_plain_packet_is_not_led_out() {
    let (mut one, _) = pair(true, false);
    translate(&one, &[snat()]);
    let link = || build::ethernet(gateway(), router_of(1));
    let tagged = link().vlan(7).ipv4(A.3, [198, 51, 100, 9]).udp(1, 2, b"x");
    drops(&mut one, &tagged, "router-mac");
    drops(&mut one, &link().payload(0x88b5, &[0; 46]), "router-mac");
    drops(&mut one, &link().arp_request(A.3, [10, 0, 0, 1]), "router-mac");
    let mut wrong = hop("10.0.0.10", WORLD, udp((1, 2)));
    wrong[24] ^= 1;
    drops(&mut one, &wrong, "ip-checksum");
    let over = udp((1, 2))(ip((gateway(), router_of(1)), "10.0.0.10", WORLD).ttl(0));
    drops(&mut one, &over, "ttl-expired");
    let long = hop("10.0.0.10", WORLD, |ip| ip.dont_fragment().udp(1, 2, &[0; 1480]));
    drops(&mut one, &long, "route-too-big");
    // To nobody else a gateway speaks.
    let mut other = hop("10.0.0.10", WORLD, udp((1, 2)));
    other[..6].copy_from_slice(&A.1.0);
    drops(&mut one, &other, "router-mac");
    other[..6].copy_from_slice(&router_of(3).0);
    drops(&mut one, &other, "router-mac");
}

/// Fragments follow their first one, which has the ports.
#[test]
fn fragments_are_led_out() {
    let (mut one, _) = pair(true, false);
    translate(&one, &[snat()]);
    let later = || hop("10.0.0.10", WORLD, |ip| ip.fragment(7, 64, false).payload(17, &[0; 72]));
    drops(&mut one, &later(), "nat-fragment");
    let head = [&[0x13, 0x88, 0, 53, 0, 136, 0, 0][..], &[0; 56]].concat();
    let first = hop("10.0.0.10", WORLD, |ip| ip.fragment(7, 0, true).payload(17, &head));
    let first = to_wire(arrive(&mut one, 2, &first));
    let rest = to_wire(arrive(&mut one, 2, &later()));
    assert_eq!((&first[26..30], &rest[26..30]), (&[192, 0, 2, 9][..], &[192, 0, 2, 9][..]));
    assert_eq!(first[18..20], rest[18..20], "one identification");
}

/// A machine on another host tells of its own packets alone.
#[test]
fn errors_about_packets_of_others_stay_inside() {
    let (mut one, mut two) = pair(true, false);
    translate(&one, &[snat()]);
    sends(&mut one, &mut two, WORLD, udp((5000, 53)));
    let quote = |inside: &str| {
        let packet = udp((53, 5000))(ip((X.1, WIRE), WORLD, inside))[14..].to_vec();
        move |ip: Ip| ip.icmp(3, 3, 0, &packet)
    };
    let left = arrive(&mut one, 2, &hop("10.0.0.10", WORLD, quote("10.0.0.10")));
    assert_eq!(to_wire(left)[26..30], [192, 0, 2, 9]);
    let forged = hop("10.0.0.11", WORLD, quote("10.0.0.10"));
    drops(&mut one, &forged, "nat-no-rule");
}

/// Of the outside only the host tells that leads there, whatever came before.
#[test]
fn the_outside_comes_by_one_host() {
    let (_, mut two) = pair(true, false);
    two.host.set_peers(vec![endpoint(3)], BTreeMap::new()).unwrap();
    let from = |n: u8| {
        let frame = udp((53, 5000))(ip((router_of(n), A.1), WORLD, "10.0.0.10").ttl(63));
        outer((n, 2), 42, &frame)
    };
    assert_eq!(two.gets(&[from(1)]).len(), 1);
    two.host.moved();
    two.host.arrive_together(&[from(1), from(3), from(1)]).unwrap();
    assert_eq!(two.gets(&[])["a"].len(), 2);
    assert_eq!(two.drops_counted(), [("vni-42.drop.foreign-source".to_owned(), 1)]);
    // And one that leads there no more does not.
    two.host.change_routing(leads(Some((endpoint(3), 1500))));
    assert_eq!(two.gets(&[from(1)]), BTreeMap::new());
    assert_eq!(two.gets(&[from(3)]).len(), 1);
    two.host.change_routing(RoutingChange::RemoveRouter(RouterId::new("r").unwrap()));
    two.host.moved();
    assert_eq!(two.gets(&[from(3)]), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("vni-42.drop.foreign-source".to_owned(), 1)]);
}

/// A frame that a third host passed on, to where a machine went, is still of the host that leads
/// out. Nothing is led out that a host passed on.
#[test]
fn frames_that_were_passed_on_keep_their_host() {
    let (mut one, mut two) = pair(true, false);
    translate(&one, &[snat()]);
    let passed_on = |ends, frame: &[u8]| {
        let mut frame = outer(ends, 42, frame);
        frame[40..42].copy_from_slice(&[0, 0]); // no checksum
        frame[42..46].copy_from_slice(&butterfly_packet::vxlan::PASSED_ON);
        frame
    };
    let answer = |n: u8| udp((53, 5000))(ip((router_of(n), A.1), WORLD, "10.0.0.10").ttl(63));
    let got = two.gets(&[passed_on((3, 2), &answer(1))]);
    assert_eq!(got.len(), 1, "{:?}", two.drops_counted());
    two.host.moved();
    assert_eq!(two.gets(&[passed_on((3, 2), &answer(3))]), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("vni-42.drop.foreign-source".to_owned(), 1)]);
    one.host.moved();
    let sent = passed_on((2, 1), &hop("10.0.0.10", WORLD, udp((5000, 53))));
    assert_eq!(one.gets(&[sent]), BTreeMap::new());
    assert_eq!(one.drops_counted(), [("vni-42.drop.second-hop".to_owned(), 1)]);
}

/// Nobody outside is a member of a group, whatever address is written as the source.
#[test]
fn nobody_behind_another_host_is_a_member() {
    let (mut one, mut two) = pair(false, false);
    translate(&one, &floats());
    // A member of a network that the router does not join.
    two.host.vnic("m", Mac([2, 0, 0, 0, 0, 0x1f]), 60, &policy([198, 51, 100, 9], false)).unwrap();
    two.host.settle();
    let name = GroupName::new("open").unwrap();
    let inbound = butterfly_model::Direction::Inbound;
    let ports = (Some(1), Some(65535));
    let rule = butterfly_model::Rule::new(inbound, 17, ports, None, Some(name.clone())).unwrap();
    two.host.change_group(&name, butterfly_datapath::GroupChange::AddRule(rule)).unwrap();
    two.host.moved();
    let asks = udp((4000, 53))(ip((X.1, WIRE), WORLD, FLOATING));
    assert_eq!(answers(&mut one, &mut two, &asks), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("a.drop.ingress-denied".to_owned(), 1)]);
    let block = two.admit("198.51.100.0/24");
    assert_eq!(answers(&mut one, &mut two, &asks).len(), 1);
    assert_eq!(two.sessions(), 1);
    // The session is decided again without that rule, by a packet of either direction.
    let change = |rule| butterfly_datapath::GroupChange::RemoveRule(rule);
    two.host.change_group(&name, change(block)).unwrap();
    two.host.moved();
    assert_eq!(answers(&mut one, &mut two, &asks), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("a.drop.ingress-denied".to_owned(), 1)]);
    assert_eq!(two.sessions(), 0);
}

#[test]
fn the_senders_host_refuses_what_does_not_fit() {
    let (_, mut two) = pair(true, false);
    let long = |ip: Ip| ip.dont_fragment().udp(1, 2, &[0; 1400]);
    assert_eq!(two.leaves(A, &long(ip((A.1, gateway()), "10.0.0.10", WORLD))).len(), 1);
    two.host.change_routing(leads(Some((endpoint(1), 1400))));
    let world = ("", Mac::ZERO, 0, [198, 51, 100, 9]);
    two.host.moved();
    let [sent, _] = routed(A, world, long);
    two.refuses(A, &sent, "route-too-big", (3, 4, 1400));
    let [late, _] = routed(A, world, |ip| ip.ttl(1).udp(1, 2, b"x"));
    two.refuses(A, &late, "ttl-expired", (11, 0, 0));
    // A declared route comes first.
    let RoutingChange::DeclareRouter(mut router) = leads(Some((endpoint(1), 1400))) else {
        panic!()
    };
    router.add_route(butterfly_model::Route::parse("0.0.0.0/0", [""; 0]).unwrap());
    two.host.change_routing(RoutingChange::DeclareRouter(router));
    let [sent, _] = routed(A, world, udp((1, 2)));
    two.refuses(A, &sent, "route-blackhole", (3, 0, 0));
    two.host.change_routing(crate::net::router("r", &[42]));
    two.refuses(A, &sent, "no-route", (3, 0, 0));
}

#[test]
fn an_explanation_names_the_host_that_leads_out() {
    let (one, two) = pair(false, false);
    translate(&one, &[snat()]);
    let asked = Question { to: Target::Address(WORLD.parse().unwrap()), ..question(true) };
    let told = two.host.explain(&asked).unwrap();
    let [there, back] = &told.walks[..] else { panic!("{told:?}") };
    assert_eq!(there.fate, Fate::Leaves(endpoint(1)), "{there:?}");
    let says = |text: &str| there.steps.iter().any(|step| step.text.contains(text));
    assert!(says("passes it on to host 192.168.0.1, which leads out"), "{there:?}");
    assert_eq!(back.fate, Fate::Delivered("a".into()), "{back:?}");
    // There, asked as `explain` of this host says, and from outside.
    let way = there.routed.unwrap();
    assert_eq!((way.vni, way.source, way.destination), (42, gateway(), router_of(1)));
    let far = Question {
        from: Origin::Outside(42),
        source: Some(A.3.into()),
        source_mac: Some(way.source),
        destination_mac: Some(way.destination),
        ..asked
    };
    let told = one.host.explain(&far).unwrap();
    let [there, ..] = &told.walks[..] else { panic!("{told:?}") };
    assert_eq!(there.fate, Fate::Delivered(PORT.into()), "{there:?}");
    let says = |text: &str| there.steps.iter().any(|step| step.text.contains(text));
    assert!(says("another host has it led out here: it passes on to VNI 77"), "{there:?}");
    assert!(says("with as many hops to go, as 192.0.2.9 port"), "{there:?}");
    let asked = Question {
        from: Origin::Vnic(PORT.into()),
        to: Target::Address(FLOATING.parse().unwrap()),
        source: Some(WORLD.parse().unwrap()),
        ..question(false)
    };
    translate(&one, &floats());
    let told = one.host.explain(&asked).unwrap();
    assert_eq!(told.walks[0].fate, Fate::Leaves(endpoint(2)), "{told:?}");
}

/// A connection of TCP that the rules let leave: each end of it is decided at the sender's host.
#[test]
fn a_connection_is_a_session_of_the_senders_host() {
    let (mut one, mut two) = pair(false, false);
    translate(&one, &[snat()]);
    let segment = |ports: (u16, u16), flags, (sequence, acknowledgement)| {
        let tcp = Tcp { sequence, acknowledgement, ..Tcp::new(ports.0, ports.1, flags) };
        move |ip: Ip| ip.tcp(&tcp, b"")
    };
    sends(&mut one, &mut two, WORLD, segment((4000, 80), SYN, (100, 0)));
    let answer = segment((80, 4000), SYN | ACK, (500, 101))(ip((X.1, WIRE), WORLD, SHARED));
    assert_eq!(answers(&mut one, &mut two, &answer).len(), 1);
    sends(&mut one, &mut two, WORLD, segment((4000, 80), ACK, (101, 501)));
    assert_eq!((one.sessions(), two.sessions()), (0, 1));
    // What nobody asked for is for nobody.
    let stray = segment((80, 4001), ACK, (1, 1))(ip((X.1, WIRE), WORLD, SHARED));
    one.host.moved();
    assert!(one.leaves(X, &stray).is_empty());
    assert_eq!(one.drops_counted(), [(format!("{PORT}.drop.nat-no-mapping"), 1)]);
}
