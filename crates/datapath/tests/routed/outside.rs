//! Externals whose outside is a vnic: who enters, and who leaves.

use butterfly_datapath::{Fate, Mac, NoAnswer, Origin, Question, RoutingChange, Target};
use butterfly_model::{External, ExternalId, Network, Router, RouterAddresses, RouterId, Subnet};
use butterfly_packet::{arp, build};

use crate::explained::question;
use crate::net::{A, Machine, Net, gateway, routed, vni};

/// A router outside, by which the rest of the world is reached.
const X: Machine = ("x", Mac([2, 0, 0, 0, 0, 0xe]), 77, [192, 0, 2, 1]);
/// A machine of the world.
const WORLD: [u8; 4] = [198, 51, 100, 9];
/// Address of the router outside.
const OWN: [u8; 4] = [192, 0, 2, 7];

fn external() -> External {
    let id = ExternalId::new("world").unwrap();
    External::parse(id, vni(77), ["192.0.2.7/24", "192.0.2.8/24"], ["192.0.2.1"]).unwrap()
}

/// A router of 42 and of the external, with an address there.
fn attached() -> RoutingChange {
    let mut router = Router::new(RouterId::new("r").unwrap());
    router.attach(vni(42), RouterAddresses::default());
    router.attach(vni(77), RouterAddresses::parse(["192.0.2.7"]).unwrap());
    external().default_routes().into_iter().for_each(|route| drop(router.add_route(route)));
    RoutingChange::DeclareRouter(router)
}

fn inside(public: bool) -> RoutingChange {
    let subnet = Subnet::parse("10.0.0.0/24", Some("10.0.0.1")).unwrap();
    let network = Network::new(vni(42), vec![subnet], None).unwrap();
    RoutingChange::DeclareNetwork(network.with_public(public))
}

/// [`A`] inside and [`X`] outside.
fn net(public: bool) -> Net {
    let net = Net::apart(&[A, X], true);
    net.host.change_routing(inside(public));
    net.host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    net.host.change_routing(RoutingChange::DeclareWire(external()));
    net.host.change_routing(attached());
    net
}

fn udp(ip: build::Ip) -> Vec<u8> {
    ip.udp(1000, 2000, b"over the router")
}

fn world() -> Machine {
    (X.0, X.1, X.2, WORLD)
}

#[test]
fn a_public_network_is_reached_and_reaches_the_world() {
    let mut net = net(true);
    let [sent, arrives] = routed(A, world(), udp);
    net.passes(A, &sent, X, &arrives);
    let [sent, arrives] = routed(world(), A, udp);
    net.passes(X, &sent, A, &arrives);
}

#[test]
fn a_network_that_is_not_public_is_neither() {
    let mut net = net(false);
    net.drops(A, &routed(A, world(), udp)[0], "nat-no-rule");
    net.drops(X, &routed(world(), A, udp)[0], "no-route");
    // It may become so.
    net.host.change_routing(inside(true));
    let [sent, arrives] = routed(A, world(), udp);
    net.passes(A, &sent, X, &arrives);
}

#[test]
fn a_source_inside_does_not_come_from_outside() {
    let mut net = net(true);
    for source in [[10, 0, 0, 10], [10, 0, 0, 77]] {
        let forged = (X.0, X.1, X.2, source);
        net.drops(X, &routed(forged, A, udp)[0], "inside-source");
    }
    for source in [OWN, [127, 0, 0, 1], [192, 0, 2, 255]] {
        let forged = (X.0, X.1, X.2, source);
        net.drops(X, &routed(forged, A, udp)[0], "foreign-source");
    }
}

#[test]
fn nobody_outside_gets_errors() {
    let mut net = net(true);
    let mut sent = routed(world(), A, |ip| ip.ttl(1).udp(1000, 2000, b"late"))[0].clone();
    net.drops(X, &sent, "ttl-expired");
    sent[30..34].copy_from_slice(&[10, 0, 0, 99]);
    sent[22] = 64;
    sent[24..26].copy_from_slice(&[0, 0]);
    let sum = butterfly_packet::checksum::Sum::of(&sent[14..34]).checksum();
    sent[24..26].copy_from_slice(&sum.to_be_bytes());
    net.drops(X, &sent, "next-hop-unknown");
}

#[test]
fn the_router_answers_for_its_address_outside() {
    let mut net = net(false);
    let ask = |of: [u8; 4]| {
        let link = build::ethernet(X.1, Mac::BROADCAST);
        link.arp(arp::REQUEST, (X.1, X.3.into()), (Mac::ZERO, of.into()))
    };
    let got = net.send(X, &ask(OWN));
    let answer =
        build::ethernet(gateway(), X.1).arp(arp::REPLY, (gateway(), OWN.into()), (X.1, X.3.into()));
    assert_eq!(got.get("x").map(|all| all[0][..42].to_vec()), Some(answer[..42].to_vec()));
    // Another one of this host, which no router has: without a wire nobody answers.
    assert!(!net.send(X, &ask([192, 0, 2, 8])).contains_key("x"));
}

/// This host's MAC address on the wire, and the port to it.
const WIRE: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
const PORT: &str = "wire/world";
/// A machine behind the wire: the router outside.
const FAR: Machine = (PORT, X.1, 77, X.3);

/// [`A`] inside, and a wire outside, on which the gateway was found.
fn wired(public: bool) -> Net {
    let mut net = Net::apart(&[A], true);
    net.host.begin_seeking();
    net.host.change_routing(inside(public));
    net.host.change_routing(RoutingChange::DeclareNetwork(external().network().clone()));
    net.host.lay_wire(&external(), WIRE).unwrap();
    net.host.change_routing(attached());
    net.host.settle();
    net.host.moved();
    net
}

/// Frames that left by the wire.
fn left(net: &mut Net) -> Vec<Vec<u8>> {
    let got = net.host.received().unwrap().remove(PORT).unwrap_or_default();
    got.into_iter().map(|(_, frame)| frame).collect()
}

/// Tells a wire who has the address of the gateway outside.
fn answers(net: &mut Net) {
    let link = build::ethernet(X.1, WIRE);
    let answer = link.arp(arp::REPLY, (X.1, X.3.into()), (WIRE, OWN.into()));
    assert_eq!(net.send(FAR, &answer), [].into());
    net.host.seek();
}

/// The frame that a router makes of one from inside, for the gateway outside.
fn outward(mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&WIRE.0);
    frame
}

#[test]
fn the_gateway_outside_is_asked_for_from_an_address_of_this_host() {
    let mut net = wired(true);
    let [sent, arrives] = routed(A, (X.0, X.1, X.2, WORLD), udp);
    assert_eq!(net.send(A, &sent), [].into());
    net.host.seek();
    let asked = build::ethernet(WIRE, Mac::BROADCAST).arp(
        arp::REQUEST,
        (WIRE, OWN.into()),
        (Mac::ZERO, X.3.into()),
    );
    let all = left(&mut net);
    assert!(all.iter().any(|frame| frame[..42] == asked[..42]), "{all:x?}");
    answers(&mut net);
    // What waited goes on, and so does all that follows.
    assert_eq!(left(&mut net), [outward(arrives.clone())]);
    net.host.moved();
    net.passes(A, &sent, FAR, &outward(arrives));
}

#[test]
fn a_wire_leads_to_the_router_that_has_the_destination() {
    let mut net = wired(true);
    let mut sent = routed((PORT, X.1, 77, WORLD), A, udp);
    sent[0][..6].copy_from_slice(&WIRE.0);
    net.passes(FAR, &sent[0], A, &sent[1]);
    for (to, reason) in [([10, 0, 1, 1], "no-route"), ([8, 8, 8, 8], "no-route")] {
        let far = (A.0, A.1, A.2, to);
        let mut frame = routed((PORT, X.1, 77, WORLD), far, udp)[0].clone();
        frame[..6].copy_from_slice(&WIRE.0);
        net.drops(FAR, &frame, reason);
    }
    let mut forged = routed((PORT, X.1, 77, A.3), A, udp)[0].clone();
    forged[..6].copy_from_slice(&WIRE.0);
    net.drops(FAR, &forged, "inside-source");
}

#[test]
fn a_wire_hears_the_addresses_of_this_host_three_times() {
    let mut net = wired(false);
    let mut told = std::collections::BTreeMap::<[u8; 4], usize>::new();
    for _ in 0..6 {
        net.host.pass(1);
        net.host.seek();
        for frame in left(&mut net) {
            assert_eq!((&frame[..6], &frame[6..12]), (&[0xff; 6][..], &WIRE.0[..]));
            assert_eq!(frame[28..32], frame[38..42], "sender and target");
            *told.entry(frame[28..32].try_into().unwrap()).or_default() += 1;
        }
    }
    assert_eq!(told, [(OWN, 3), ([192, 0, 2, 8], 3)].into());
}

#[test]
fn a_wire_asks_for_addresses_of_this_host_and_gets_its_own() {
    let mut net = wired(false);
    for of in [OWN, [192, 0, 2, 8]] {
        let ask = build::ethernet(X.1, Mac::BROADCAST).arp(
            arp::REQUEST,
            (X.1, X.3.into()),
            (Mac::ZERO, of.into()),
        );
        let got = net.send(FAR, &ask);
        let answer =
            build::ethernet(WIRE, X.1).arp(arp::REPLY, (WIRE, of.into()), (X.1, X.3.into()));
        assert_eq!(got.get(PORT).map(|all| all[0][..42].to_vec()), Some(answer[..42].to_vec()));
        // And says that it is there.
        let link = build::ethernet(X.1, WIRE).ipv4(X.3, of);
        let got = net.send(FAR, &link.icmp(8, 0, 0x0001_0002, b"there?"));
        assert_eq!(got.get(PORT).map(Vec::len), Some(1), "{got:?}");
    }
}

#[test]
fn reserved_addresses_do_not_come_by_a_wire() {
    let mut net = wired(true);
    let mut sent = routed((PORT, gateway(), 77, WORLD), A, udp);
    sent[0][..6].copy_from_slice(&WIRE.0);
    net.drops(FAR, &sent[0], "router-mac");
}

/// Vnics of the external's network are joined with the wire.
#[test]
fn a_provider_network_is_bridged_with_its_wire() {
    let mut net = wired(true);
    let p: Machine = ("p", Mac([2, 0, 0, 0, 0, 0x1d]), 77, [192, 0, 2, 50]);
    net.host.vnic("p", p.1, 77, &crate::net::policy(p.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    let frame = build::ethernet(X.1, p.1).ipv4(X.3, p.3).udp(1, 2, b"in");
    net.passes(FAR, &frame, p, &frame);
    let frame = build::ethernet(p.1, X.1).ipv4(p.3, X.3).udp(2, 1, b"out");
    net.passes(p, &frame, FAR, &frame);
    // Nobody there is the gateway outside but who is behind the wire.
    let link = build::ethernet(p.1, Mac::BROADCAST);
    let claim = link.arp(arp::REQUEST, (p.1, X.3.into()), (Mac::ZERO, X.3.into()));
    net.drops(p, &claim, "gateway-claimed");
}

#[test]
fn a_wire_that_goes_leads_nowhere() {
    let mut net = wired(true);
    net.host.remove(PORT);
    net.host.change_routing(RoutingChange::RemoveWire(vni(77)));
    let sent = routed(A, (X.0, X.1, X.2, WORLD), udp)[0].clone();
    net.refuses(A, &sent, "next-hop-unknown", (3, 1, 0)); // host unreachable
}

#[test]
fn a_packet_is_followed_to_the_wire_and_from_it() {
    let mut net = wired(true);
    let [sent, _] = routed(A, (X.0, X.1, X.2, WORLD), udp);
    net.send(A, &sent);
    net.host.seek();
    left(&mut net);
    answers(&mut net);
    left(&mut net);
    let question = Question { to: Target::Address(WORLD.into()), ..question(true) };
    let told = net.host.explain(&question).unwrap();
    let [there, back] = &told.walks[..] else { panic!("{told:?}") };
    assert_eq!(there.fate, Fate::Delivered(PORT.into()), "{there:?}");
    assert_eq!(back.fate, Fate::Delivered("a".into()), "{back:?}");
    let question = Question {
        from: Origin::Vnic(PORT.into()),
        to: Target::Address(A.3.into()),
        source: Some(WORLD.into()),
        ..question
    };
    let told = net.host.explain(&question).unwrap();
    assert_eq!(told.destination_mac, WIRE);
    assert_eq!(told.walks[0].fate, Fate::Delivered("a".into()), "{told:?}");
    // Who is outside of the external's network is behind its wire.
    let outside = Question { from: Origin::Outside(77), ..question };
    assert_eq!(net.host.explain(&outside), Ok(told));
    let nobody = Question { source: None, ..outside };
    assert_eq!(net.host.explain(&nobody), Err(NoAnswer::NeedsSource));
    let inside = Question { from: Origin::Outside(42), source: Some(WORLD.into()), ..nobody };
    assert_eq!(net.host.explain(&inside), Err(NoAnswer::NoUplink(42)));
}

/// Packets to the outside go by the wire, also if a vnic there sends as the gateway outside.
#[test]
fn nobody_beside_the_wire_takes_what_goes_outside() {
    let mut net = wired(true);
    let p: Machine = ("p", Mac([2, 0, 0, 0, 0, 0x1d]), 77, [192, 0, 2, 50]);
    net.host.vnic("p", p.1, 77, &crate::net::policy(p.3, true)).unwrap();
    let [sent, arrives] = routed(A, (X.0, X.1, X.2, WORLD), udp);
    // Before the gateway is found its MAC address is anybody's.
    let early = build::ethernet(X.1, Mac([2, 0, 0, 0, 0, 0x99])).ipv4(p.3, X.3).udp(1, 2, b"x");
    net.send(p, &early);
    net.send(A, &sent);
    net.host.seek();
    left(&mut net);
    answers(&mut net);
    left(&mut net);
    net.host.moved();
    let before = build::ethernet(X.1, p.1).ipv4(p.3, X.3).udp(1, 2, b"moves");
    net.drops(p, &before, "mac-claimed");
    net.passes(A, &sent, FAR, &outward(arrives));
}

/// A host with many addresses asks for the gateway at once, and tells each address three times, and
/// then nothing.
#[test]
fn announcements_keep_no_question_waiting() {
    let mut net = wired(false);
    let rules = (0..500_u16).map(|n| {
        let [high, low] = n.to_be_bytes();
        let (outside, inside) = ([198, 18, high, low], [10, 9, high, low]);
        butterfly_model::Nat::floating(outside.into(), inside.into()).unwrap()
    });
    let router = RouterId::new("r").unwrap();
    let mut rules: Vec<_> = rules.collect();
    let inside = butterfly_model::Nat::floating([198, 19, 0, 1].into(), A.3.into()).unwrap();
    rules.push(inside);
    net.host.change_routing(RoutingChange::DeclareNat(router.clone(), vni(77), rules.clone()));
    net.host.pass(1);
    net.host.seek();
    let mut told = std::collections::BTreeMap::<[u8; 4], usize>::new();
    let mut note = |frames: Vec<Vec<u8>>| {
        for frame in frames.iter().filter(|frame| frame[28..32] == frame[38..42]) {
            *told.entry(frame[28..32].try_into().unwrap()).or_default() += 1;
        }
    };
    note(left(&mut net));
    // In the same second.
    assert_eq!(net.send(A, &routed(A, (X.0, X.1, X.2, WORLD), udp)[0]), [].into());
    net.host.seek();
    let asked = left(&mut net);
    assert!(asked.iter().any(|frame| frame[38..42] == X.3 && frame[28..32] == OWN), "{asked:x?}");
    answers(&mut net);
    note(left(&mut net));
    for _ in 0..20 {
        net.host.pass(1);
        net.host.seek();
        note(left(&mut net));
    }
    assert_eq!(told.len(), 503);
    assert!(told.values().all(|times| *times == 3), "{told:?}");
    // Those that come later are told; those that stay are not told again.
    let late = butterfly_model::Nat::floating([198, 19, 0, 2].into(), [10, 0, 0, 3].into());
    rules.push(late.unwrap());
    net.host.change_routing(RoutingChange::DeclareNat(router, vni(77), rules));
    let mut frames = Vec::new();
    for _ in 0..5 {
        net.host.pass(1);
        net.host.seek();
        frames.extend(left(&mut net));
    }
    let targets: Vec<_> = frames.iter().filter(|frame| frame[28..32] == frame[38..42]).collect();
    assert_eq!(targets.len(), 3);
    assert!(targets.iter().all(|frame| frame[38..42] == [198, 19, 0, 2]), "{targets:x?}");
}
