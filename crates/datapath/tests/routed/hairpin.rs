//! Hairpins: machines inside reach each other by addresses outside of this host. What leaves by the
//! wire to this host itself comes in again: here the test is behind the wire, and gives it back.

use std::net::IpAddr;

use butterfly_datapath::{
    Fate, Mac, Origin, Question, RoutingChange, SessionConfig, Target, VnicPolicy, harness::Host,
};
use butterfly_model::{
    External, ExternalId, Nat, Network, Router, RouterAddresses, RouterId, Subnet,
};
use butterfly_packet::{
    build::{self, Ip},
    checksum::Sum,
};

use crate::explained::question;
use crate::net::{A, C, Machine, Net, policy, vni};

/// A machine of another router, with the address of [`A`].
const TWIN: Machine = ("t", Mac([2, 0, 0, 0, 0, 0xd]), 43, A.3);
/// A vnic of the external's network.
const PROVIDER: Machine = ("p", Mac([2, 0, 0, 0, 0, 0x1d]), 77, [192, 0, 2, 50]);
/// This host's MAC address on the wire, the port to it, and the router behind it.
const WIRE: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
const PORT: Machine = ("wire/world", WIRE, 77, [192, 0, 2, 1]);
const FAR: Mac = Mac([2, 0, 0, 0, 0, 0xe]);
/// Addresses outside: of [`A`], of [`TWIN`], and the one that the others of [`A`]'s network share.
const OF_A: [u8; 4] = [192, 0, 2, 80];
const OF_TWIN: [u8; 4] = [192, 0, 2, 81];
const SHARED: [u8; 4] = [192, 0, 2, 9];

fn external() -> External {
    let id = ExternalId::new("world").unwrap();
    let own = ["192.0.2.7/24", "2001:db8::7/64"];
    External::parse(id, vni(77), own, ["192.0.2.1", "2001:db8::1"]).unwrap()
}

fn attached(id: &str, network: u32) -> RoutingChange {
    let mut router = Router::new(RouterId::new(id).unwrap());
    router.attach(vni(network), RouterAddresses::default());
    router.attach(vni(77), RouterAddresses::default());
    external().default_routes().into_iter().for_each(|route| drop(router.add_route(route)));
    RoutingChange::DeclareRouter(router)
}

fn inside(number: u32, public: bool) -> RoutingChange {
    let six = format!("fd00:{number}::/64");
    let blocks = [("10.0.0.0/24", "10.0.0.1".to_owned()), (&six, six.replace("::/64", "::1"))];
    let subnets = blocks.map(|(block, own)| Subnet::parse(block, Some(&own)).unwrap());
    let network = Network::new(vni(number), subnets.into(), None).unwrap();
    RoutingChange::DeclareNetwork(network.with_public(public))
}

/// The address of IPv6 of a machine.
fn six(network: u32, last: u8) -> IpAddr {
    format!("fd00:{network}::{last:x}").parse().unwrap()
}

fn floating(outside: IpAddr, inside: IpAddr) -> Nat {
    Nat::floating(outside, inside).unwrap()
}

fn translate(net: &Net, router: &str, rules: Vec<Nat>) {
    let router = RouterId::new(router).unwrap();
    net.host.change_routing(RoutingChange::DeclareNat(router, vni(77), rules));
}

/// [`A`] and [`C`] behind one router, [`TWIN`] behind another one, and a wire outside.
fn net(bypass: bool) -> Net {
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_sessions(sessions).unwrap();
    for (id, mac, number, ip) in [A, C, TWIN, PROVIDER] {
        let ips = vec![ip.into(), six(number, ip[3])];
        let policy = VnicPolicy { ips, ..policy(ip, bypass || number == 77) };
        host.vnic(id, mac, number, &policy).unwrap();
    }
    host.change_routing(inside(42, false));
    host.change_routing(inside(43, false));
    host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    host.lay_wire(&external(), WIRE).unwrap();
    host.change_routing(attached("r", 42));
    host.change_routing(attached("s", 43));
    host.settle();
    host.moved();
    let mut net = Net { host };
    let of_a = floating(OF_A.into(), A.3.into());
    let shared = Nat::snat(SHARED.into()).unwrap();
    translate(&net, "r", vec![of_a, shared]);
    translate(&net, "s", vec![floating(OF_TWIN.into(), TWIN.3.into())]);
    if !bypass {
        net.admit("192.0.2.0/24");
    }
    net
}

fn router_mac(id: &str) -> Mac {
    Mac(RouterId::new(id).unwrap().gateway_mac())
}

fn gateway_of(machine: Machine) -> Mac {
    router_mac(if machine.2 == 43 { "s" } else { "r" })
}

/// A packet of a machine to an address, by its gateway.
fn to(from: Machine, to: [u8; 4]) -> Ip {
    build::ethernet(from.1, gateway_of(from)).ipv4(from.3, to)
}

/// Sends a packet, which leaves by the wire to this host itself. Returns the frame.
#[track_caller]
fn leaves(net: &mut Net, from: Machine, frame: &[u8]) -> Vec<u8> {
    let mut got = net.send(from, frame);
    let moved = net.host.moved();
    let all = got.remove(PORT.0).unwrap_or_else(|| panic!("{got:?} {moved:?}"));
    let [frame] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&frame[..6], &frame[6..12]), (&WIRE.0[..], &WIRE.0[..]));
    frame.clone()
}

/// Gives a frame back that left by the wire. Returns what a machine gets, and asserts that it is
/// whole.
#[track_caller]
fn comes_in(net: &mut Net, frame: &[u8], receiver: Machine) -> Vec<u8> {
    let mut got = net.send(PORT, frame);
    let moved = net.host.moved();
    let all = got.remove(receiver.0).unwrap_or_else(|| panic!("{got:?} {moved:?}"));
    let [frame] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&frame[..6], &frame[6..12]), (&receiver.1.0[..], &gateway_of(receiver).0[..]));
    assert!(Sum::of(&frame[14..34]).is_valid());
    frame.clone()
}

fn ends(frame: &[u8]) -> ([u8; 4], [u8; 4]) {
    (frame[26..30].try_into().unwrap(), frame[30..34].try_into().unwrap())
}

/// The receiver sees the address outside, and answers to it (RFC 4787, REQ-9); so does a machine of
/// another router with the same addresses inside. Filters at both ends judge it.
#[test]
fn machines_are_reached_by_addresses_outside() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        for (from, of, receiver, at) in [
            (C, SHARED, A, OF_A),
            (A, OF_A, TWIN, OF_TWIN),
            (TWIN, OF_TWIN, A, OF_A),
            (A, OF_A, A, OF_A),
        ] {
            let sent = to(from, at).udp(5000, 7000, b"there?");
            let out = leaves(&mut net, from, &sent);
            assert_eq!(ends(&out), (of, at), "{bypass}");
            let got = comes_in(&mut net, &out, receiver);
            assert_eq!(ends(&got), (of, receiver.3));
            let port = u16::from_be_bytes([got[34], got[35]]);
            // And back.
            let sent = to(receiver, of).udp(7000, port, b"here");
            let out = leaves(&mut net, receiver, &sent);
            assert_eq!(ends(&out), (at, of));
            let got = comes_in(&mut net, &out, from);
            assert_eq!(ends(&got), (at, from.3));
            assert_eq!(got[34..38], [7000_u16.to_be_bytes(), 5000_u16.to_be_bytes()].concat());
        }
    }
}

/// Rules that admit the addresses inside do not: the receiver sees those outside. A port that
/// nobody has is nobody's.
#[test]
fn rules_see_the_address_outside() {
    let mut net = net(false);
    net.host.update("a", &VnicPolicy { groups: Vec::new(), ..policy(A.3, false) }).unwrap();
    let sent = to(C, OF_A).udp(5000, 7000, b"there?");
    let out = leaves(&mut net, C, &sent);
    net.drops_at(PORT, &out, A, "ingress-denied");
    let sent = to(A, SHARED).udp(5000, 7000, b"there?");
    net.host.update("a", &policy(A.3, false)).unwrap();
    let out = leaves(&mut net, A, &sent);
    net.drops(PORT, &out, "nat-no-mapping");
}

/// A packet whose source is not translated would be answered inside, so it does not leave; where
/// the receiver's router leads out to that source, it does.
#[test]
fn answers_would_not_come_by_the_address() {
    let mut net = net(true);
    net.host.change_routing(inside(42, true));
    let sent = to(C, OF_A).udp(5000, 7000, b"there?");
    net.drops(C, &sent, "nat-hairpin");
    let outside: IpAddr = "2001:db8::80".parse().unwrap();
    translate(&net, "s", vec![floating(outside, six(43, 10))]);
    let link = |from: Machine| build::ethernet(from.1, gateway_of(from));
    let packet = |from: Machine, source: IpAddr| match (source, outside) {
        (IpAddr::V6(source), IpAddr::V6(outside)) => link(from).ipv6(source, outside),
        _ => panic!("another family"),
    };
    let sent = packet(A, six(42, 10)).udp(5000, 7000, b"there?");
    let out = leaves(&mut net, A, &sent);
    let got = net.send(PORT, &out);
    assert_eq!(got.keys().collect::<Vec<_>>(), [TWIN.0], "{:?}", net.host.moved());
}

/// Nobody but this host is this host: not behind the wire with an address of ours, nor a vnic of
/// the external's network with its MAC address.
#[test]
fn nobody_else_comes_in_so() {
    let mut net = net(true);
    let forged = build::ethernet(FAR, WIRE).ipv4(SHARED, OF_A).udp(1, 2, b"x");
    net.drops(PORT, &forged, "foreign-source");
    let forged = build::ethernet(WIRE, WIRE).ipv4(SHARED, OF_A).udp(1, 2, b"x");
    net.drops(PROVIDER, &forged, "mac-claimed");
    assert_eq!(net.host.learnt(), 0);
    // A source of this host is one all the same if a router has it inside.
    let forged = build::ethernet(WIRE, WIRE).ipv4(C.3, OF_A).udp(1, 2, b"x");
    net.drops(PORT, &forged, "inside-source");
    // It turns once.
    let out = build::ethernet(WIRE, WIRE).ipv4(OF_A, [192, 0, 2, 99]).udp(1, 2, b"x");
    net.drops(PORT, &out, "no-route");
}

/// Errors about such packets find their way back.
#[test]
fn errors_come_back() {
    let mut net = net(false);
    let sent = to(C, OF_A).udp(5000, 7000, b"there?");
    let out = leaves(&mut net, C, &sent);
    let got = comes_in(&mut net, &out, A);
    let error = to(A, SHARED).icmp(3, 3, 0, &got[14..]);
    let out = leaves(&mut net, A, &error);
    assert_eq!(ends(&out), (OF_A, SHARED));
    let got = comes_in(&mut net, &out, C);
    assert_eq!(ends(&got), (OF_A, C.3));
    // The quote is what was sent.
    assert_eq!((&got[54..58], &got[58..62]), (&C.3[..], &OF_A[..]));
    assert_eq!(got[62..66], sent[34..38]);
}

#[test]
fn an_explanation_tells_that_it_comes_in_again() {
    let net = net(true);
    let target = Target::Address(OF_A.into());
    let from = Origin::Vnic(C.0.into());
    let asked = Question { from, to: target, ..question(false) };
    let told = net.host.explain(&asked).unwrap();
    let walk = &told.walks[0];
    assert_eq!(walk.fate, Fate::Delivered(PORT.0.into()), "{walk:?}");
    let says = |text: &str| walk.steps.iter().any(|step| step.text.contains(text));
    assert!(says("comes in again by the wire"), "{walk:?}");
}
