//! Packets that pass.

use butterfly_packet::{Mac, build};
use butterfly_vhost::net::NetHeader;

use crate::net::*;

#[test]
fn a_machine_finds_its_gateway_and_nobody_else_hears_it_ask() {
    let mut net = Net::new(&[A, B, C], true);
    let ask = build::ethernet(A.1, Mac::BROADCAST).arp_request(A.3, GATEWAYS[0]);
    let answer = build::ethernet(gateway(), A.1).arp_reply(GATEWAYS[0], A.3);
    net.passes(A, &ask, A, &answer);
    // The gateway of another network is nobody there.
    let other = build::ethernet(A.1, Mac::BROADCAST).arp_request(A.3, GATEWAYS[1]);
    net.passes(A, &other, C, &other);
}

#[test]
fn a_packet_passes_from_one_network_to_the_other() {
    let mut net = Net::new(&[A, B, C], true);
    for payload in [&b""[..], &[7; 1000]] {
        let [sent, arrives] = routed(A, B, |ip| ip.udp(1000, 53, payload));
        net.passes(A, &sent, B, &arrives);
        let [sent, arrives] = routed(B, A, |ip| ip.udp(53, 1000, payload));
        net.passes(B, &sent, A, &arrives);
    }
    assert_eq!(net.sessions(), 0, "ends without filters have no sessions");
}

/// Both directions are one session, whichever end opens it; a stranger's answer needs a rule.
#[test]
fn both_ways_are_one_session() {
    let mut net = Net::new(&[A, B, C], false);
    let [there, there_arrives] = routed(A, B, |ip| ip.udp(1000, 53, b"?"));
    let [back, back_arrives] = routed(B, A, |ip| ip.udp(53, 1000, b"!"));
    net.admit("10.0.0.0/24");
    // The group lets in what comes from network 42 alone.
    assert_eq!(net.send(B, &back).len(), 0);
    assert_eq!(net.host.moved().get("a.drop.ingress-denied"), Some(&1));
    net.passes(A, &there, B, &there_arrives);
    assert_eq!(net.sessions(), 1);
    net.passes(B, &back, A, &back_arrives);
    net.passes(A, &there, B, &there_arrives);
    assert_eq!(net.sessions(), 1);
}

/// A session counts in the network of its zone, whichever end opened it, and until it is over.
#[test]
fn sessions_are_counted_where_they_are_released() {
    let mut net = Net::new(&[A, B, C], false);
    net.admit("10.0.0.0/8");
    for port in 1..=20 {
        for (from, to) in [(A, B), (B, A)] {
            let [sent, arrives] = routed(from, to, |ip| ip.udp(port, 1000 + port, b"x"));
            net.passes(from, &sent, to, &arrives);
        }
    }
    assert_eq!(net.sessions(), 40);
    assert_eq!(net.host.count_sessions().unwrap(), 40);
    net.host.remove("b");
    net.host.settle();
    net.host.count_sessions().unwrap();
    net.host.pass(2);
    assert_eq!(net.host.count_sessions().unwrap(), 0);
}

/// A session whose network is gone is taken off the end that is left, whichever end opened it.
#[test]
fn the_end_that_is_left_counts_no_session() {
    for gone in ["a", "b"] {
        let mut net = Net::new(&[A, B], false);
        net.admit("10.0.0.0/8");
        for (port, (from, to)) in [(1, (A, B)), (2, (B, A)), (3, (A, B))] {
            let [sent, arrives] = routed(from, to, |ip| ip.udp(port, 1000, b"x"));
            net.passes(from, &sent, to, &arrives);
        }
        assert_eq!(net.host.count_sessions().unwrap(), 3);
        net.host.remove(gone);
        net.host.pass(2);
        assert_eq!(net.host.count_sessions().unwrap(), 0, "{gone}");
    }
}

/// In any order, and again after what joined them was away.
#[test]
fn networks_are_joined_in_any_order() {
    let [sent, arrives] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
    let changes = [
        network(42, "10.0.0.0/24", "10.0.0.1", None),
        network(50, "10.1.0.0/24", "10.1.0.1", None),
        router("r", &[42, 50]),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut net = Net::apart(&[A, B], true);
        for at in order {
            assert!(net.send(A, &sent).is_empty());
            net.host.change_routing(changes[at].clone());
        }
        net.host.moved();
        net.passes(A, &sent, B, &arrives);
        net.host.change_routing(router("r", &[42]));
        net.refuses(A, &sent, "no-route", (3, 0, 0));
        net.host.change_routing(router("r", &[42, 50]));
        net.passes(A, &sent, B, &arrives);
    }
}

/// Nobody in its network is filtered. What is flooded there leaves no trace, also beside a packet
/// for a filtered machine behind the router: here the fragment of another packet with its number.
#[test]
fn what_is_flooded_without_filters_is_not_noted() {
    let mut net = Net::apart(&[A], true);
    net.host.vnic(B.0, B.1, B.2, &policy(B.3, false)).unwrap();
    net.join();
    net.admit("10.0.0.0/24");
    net.host.settle();
    net.host.moved();
    let first = |to| {
        let whole = build::ethernet(A.1, to).ipv4(A.3, B.3).udp(1000, 53, &[0; 64]);
        let ip = build::ethernet(A.1, to).ipv4(A.3, B.3).fragment(1, 0, true);
        ip.payload(17, &whole[34..66])
    };
    for frame in [first(Mac::BROADCAST), first(gateway())] {
        net.host.guest(A.0).unwrap().send(&frame, NetHeader::default()).unwrap();
    }
    net.host.settle();
    let received = net.host.received().unwrap();
    assert_eq!(received.get(B.0).map(Vec::len), Some(1), "{:?}", net.host.moved());
}
