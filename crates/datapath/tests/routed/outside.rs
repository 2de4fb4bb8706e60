//! Externals whose outside is a vnic: who enters, and who leaves.

use butterfly_datapath::{Mac, RoutingChange};
use butterfly_model::{External, ExternalId, Network, Router, RouterAddresses, RouterId, Subnet};
use butterfly_packet::{arp, build};

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
    net.host.change_routing(inside(public)).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(external().network().clone())).unwrap();
    net.host.change_routing(RoutingChange::DeclareWire(external())).unwrap();
    net.host.change_routing(attached()).unwrap();
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
    net.host.change_routing(inside(true)).unwrap();
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
