//! How far those come who want more than a router gives them.

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy, harness::Host,
};
use butterfly_model::{Cidr, Direction, GroupName, RouterId, Rule};
use butterfly_packet::build;

use crate::net::*;

/// A neighbour of [`A`] that bypasses filters.
const X: Machine = ("x", Mac([2, 0, 0, 0, 0, 0xd]), 42, [10, 0, 0, 12]);

/// [`A`] and [`B`], filtered, and [`X`].
fn with_bypass(forwards: bool) -> Net {
    let mut net = Net::apart(&[A, B], false);
    let policy = VnicPolicy { forwards, ..policy(X.3, true) };
    net.host.vnic(X.0, X.1, X.2, &policy).unwrap();
    net.join();
    net.host.settle();
    net.host.moved();
    net
}

/// A packet to the gateway of network 42, from a machine and a source that need not be its own.
fn from(machine: Machine, source: [u8; 4]) -> [Vec<u8>; 2] {
    routed((machine.0, machine.1, machine.2, source), B, |ip| ip.udp(1, 2, b"x"))
}

#[test]
fn a_filtered_machine_is_routed_as_itself_only() {
    let mut net = Net::new(&[A, B, C], false);
    net.admit("0.0.0.0/0");
    let [sent, arrives] = from(A, A.3);
    net.passes(A, &sent, B, &arrives);
    net.drops(A, &from(A, C.3)[0], "spoofed-ip");
    net.drops(A, &from(A, [10, 1, 0, 11])[0], "foreign-source");
}

/// A vnic that forwards is trusted with the addresses of its own network, and with no other's.
#[test]
fn a_neighbour_s_address_opens_no_rule_behind_the_router() {
    let mut net = with_bypass(false);
    net.admit("10.0.0.10/32");
    let [sent, arrives] = from(A, A.3);
    net.passes(A, &sent, B, &arrives);
    let [forged, arrives] = from(X, A.3);
    net.drops(X, &forged, "ip-claimed");

    let mut net = with_bypass(true);
    net.admit("10.0.0.0/8");
    net.passes(X, &forged, B, &arrives);
    net.drops(X, &from(X, [10, 1, 0, 11])[0], "foreign-source");
}

#[test]
fn who_bypasses_filters_does_not_bypass_those_of_others() {
    let mut net = with_bypass(false);
    let [sent, arrives] = from(X, X.3);
    assert!(net.send(X, &sent).is_empty());
    assert_eq!(net.host.moved().get("b.drop.ingress-denied"), Some(&1));
    net.admit("10.0.0.12/32");
    net.passes(X, &sent, B, &arrives);
}

/// Two tenants with the same addresses, each with a router.
#[test]
fn ends_of_two_routers_never_meet() {
    let (a2, b2): (Machine, Machine) =
        (("a2", Mac([2, 0, 0, 0, 1, 0xa]), 43, A.3), ("b2", Mac([2, 0, 0, 0, 1, 0xb]), 51, B.3));
    let mut net = Net::new(&[A, B, a2, b2], false);
    net.host.change_routing(network(43, "10.0.0.0/24", "10.0.0.1", None));
    net.host.change_routing(network(51, "10.1.0.0/24", "10.1.0.1", None));
    net.host.change_routing(router("s", &[43, 51]));
    net.admit("10.0.0.0/24");
    let other = Mac(RouterId::new("s").unwrap().gateway_mac());
    let packet = |ip: build::Ip| ip.udp(1, 2, b"x");
    let [sent, arrives] = routed(A, B, packet);
    let [mut sent2, mut arrives2] = routed(a2, b2, packet);
    sent2[..6].copy_from_slice(&other.0);
    arrives2[6..12].copy_from_slice(&other.0);
    for sessions in [[1, 2], [2, 2]] {
        net.passes(A, &sent, B, &arrives);
        assert_eq!(net.sessions(), sessions[0]);
        net.passes(a2, &sent2, b2, &arrives2);
        assert_eq!(net.sessions(), sessions[1]);
    }
    // The other tenant's gateway is nobody in this network.
    let mut astray = sent.clone();
    astray[..6].copy_from_slice(&other.0);
    net.drops(A, &astray, "gateway-not-here");
    // Nor does anybody stand in for a machine that is gone.
    net.host.remove("b2");
    net.host.settle();
    net.host.moved();
    let told = net.send(a2, &sent2);
    assert_eq!(told.keys().collect::<Vec<_>>(), ["a2"], "its own router tells it");
    net.counts_one(a2, "next-hop-unknown");
}

/// Neither packets for a gateway nor questions for one, whoever they say they are from.
#[test]
fn nothing_of_another_host_is_routed() {
    let link = |n| Mac([2, 0xbf, 0, 0, 0, n]);
    let endpoint = |n: u8| [192, 168, 0, n];
    let config = TunnelConfig::new(endpoint(1).into(), link(1));
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&config)).unwrap();
    for (id, mac, vni, ip) in [A, B] {
        host.vnic(id, mac, vni, &policy(ip, true)).unwrap();
    }
    let mut net = Net { host };
    net.join();
    net.host.settle();
    let elsewhere: Machine = ("", Mac([2, 0, 0, 0, 0, 0xee]), 42, [10, 0, 0, 99]);
    let [packet, _] = routed(elsewhere, B, |ip| ip.udp(1, 2, b"x"));
    let ask = build::ethernet(elsewhere.1, Mac::BROADCAST).arp_request(elsewhere.3, GATEWAYS[0]);
    let tagged = [&packet[..12], &[0x81, 0, 0, 5], &packet[12..]].concat();
    let other = build::ethernet(elsewhere.1, gateway()).payload(0x88b5, &[0; 46]);
    let said = build::ethernet(elsewhere.1, gateway()).arp_reply(elsewhere.3, A.3);
    for inner in [packet, ask, tagged, other, said] {
        net.host.left().unwrap();
        net.host.moved();
        let outer = build::ethernet(link(2), link(1)).ipv4(endpoint(2), endpoint(1));
        net.host.arrive(&[outer.vxlan(50_000, 42, &inner)]).unwrap();
        assert!(net.host.received().unwrap().is_empty());
        assert!(net.host.left().unwrap().is_empty());
        let moved = net.host.moved();
        assert_eq!(moved.get("vni-42.drop.gateway-from-wire"), Some(&1), "{moved:?}");
    }
    // And nothing is routed to it, though it was heard.
    let [mut sent, _] = routed(B, elsewhere, |ip| ip.udp(1, 2, b"x"));
    sent[..6].copy_from_slice(&gateway().0);
    net.refuses(B, &sent, "next-hop-unknown", (3, 1, 0));
}

/// Nobody speaks with the address of a gateway, by the router or to a neighbour.
#[test]
fn nobody_has_the_address_of_a_gateway() {
    let mut net = Net::new(&[A], true);
    net.host.vnic(C.0, C.1, C.2, &policy(C.3, false)).unwrap();
    net.host.vnic(B.0, B.1, B.2, &policy(B.3, false)).unwrap();
    net.host.settle();
    net.host.moved();
    net.admit("0.0.0.0/0");
    let routed = build::ethernet(A.1, gateway()).ipv4(GATEWAYS[0], B.3).udp(1, 2, b"x");
    net.drops(A, &routed, "foreign-source");
    let straight = build::ethernet(A.1, C.1).ipv4(GATEWAYS[0], C.3).udp(1, 2, b"x");
    net.drops(A, &straight, "ip-claimed");
}

/// A filtered machine whose rules let out TCP alone.
fn reticent() -> Net {
    let mut net = Net::new(&[A], false);
    net.host.vnic(B.0, B.1, B.2, &policy(B.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    let (ports, all) = ((Some(1), Some(65535)), Cidr::new("0.0.0.0", 0).unwrap());
    let rule = Rule::new(Direction::Outbound, 6, ports, Some(all), None).unwrap();
    let open = GroupName::new("open").unwrap();
    net.host.change_group(&open, GroupChange::AddRule(rule)).unwrap();
    net
}

/// Errors of the router tell nobody what its rules keep from it.
#[test]
fn an_error_needs_the_senders_rules() {
    let mut net = reticent();
    let to = |at: [u8; 4]| build::ethernet(A.1, gateway()).ipv4(A.3, at);
    for frame in [
        to(B.3).ttl(1).udp(1, 2, b"x"),
        to([192, 0, 2, 1]).udp(1, 2, b"x"),
        to([10, 1, 0, 77]).udp(1, 2, b"x"),
        to(GATEWAYS[0]).udp(1, 53, b"x"),
    ] {
        net.drops(A, &frame, "egress-denied");
    }
    let syn = build::Tcp::new(1, 2, butterfly_packet::tcp::SYN);
    net.refuses(A, &to(B.3).ttl(1).tcp(&syn, b""), "ttl-expired", (11, 0, 0));
}

/// DHCP needs no rule in one network; by a router it would be a way past them.
#[test]
fn dhcp_by_a_router_needs_a_rule() {
    let mut net = reticent();
    let ask = build::ethernet(A.1, gateway()).ipv4(A.3, B.3).udp(68, 67, &[1; 300]);
    net.drops(A, &ask, "egress-denied");
    let answer = build::ethernet(B.1, gateway()).ipv4(B.3, A.3).udp(67, 68, &[2; 300]);
    assert!(net.send(B, &answer).is_empty());
    assert_eq!(net.host.moved().get("a.drop.ingress-denied"), Some(&1));
}

/// Nor does a machine of a third network, which is on no way between them, know of a conversation.
#[test]
fn a_third_network_forges_no_errors() {
    let third: Machine = ("e", Mac([2, 0, 0, 0, 0, 0xe]), 51, [10, 2, 0, 10]);
    let mut net = Net::new(&[A, B], false);
    net.host.vnic(third.0, third.1, third.2, &policy(third.3, true)).unwrap();
    net.host.change_routing(network(51, "10.2.0.0/24", "10.2.0.1", None));
    net.host.change_routing(router("r", &[42, 50, 51]));
    net.host.settle();
    net.admit("10.0.0.0/24");
    let [there, there_arrives] = routed(A, B, |ip| ip.udp(1000, 53, b"?"));
    assert_eq!(net.send(A, &there)["b"], [there_arrives]);
    let [back, _] = routed(B, A, |ip| ip.udp(53, 1000, b"!"));
    assert_eq!(net.send(B, &back).len(), 1);
    net.host.moved();
    let quote = &there[14..];
    let forged = build::ethernet(third.1, gateway()).ipv4(third.3, A.3).icmp(3, 3, 0, quote);
    assert!(net.send(third, &forged).is_empty());
    assert_eq!(net.host.moved().get("a.drop.ingress-denied"), Some(&1));
}

/// A flood beside routed packets is for the sender's network: nobody looks at who is in the
/// networks of the others, as nothing paid for that.
#[test]
fn a_flood_beside_routed_packets_walks_no_other_network() {
    let shortest = |crowd: u16| {
        let mut net = Net::new(&[A, B, C], true);
        for n in 0..crowd {
            let mac = Mac([2, 0, 0, 1, (n >> 8) as u8, n as u8]);
            net.host.declare(&format!("m{n}"), mac, 50, &policy([10, 9, 0, 1], true)).unwrap();
        }
        net.host.settle();
        let flood = build::ethernet(A.1, Mac::BROADCAST).payload(0x88b5, &[0; 46]);
        let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
        let turn = |_| {
            let guest = net.host.guest("a").unwrap();
            guest.reclaim().unwrap();
            for frame in [&flood, &sent] {
                guest.enqueue(frame, Default::default()).unwrap();
            }
            guest.flush();
            let begin = std::time::Instant::now();
            while net.host.turn() {}
            let took = begin.elapsed();
            let got = net.host.received().unwrap();
            assert_eq!((got["b"].len(), got["c"].len()), (1, 1), "both are there");
            took
        };
        (0..30).map(turn).min().unwrap()
    };
    let (few, many) = (shortest(1), shortest(1000));
    assert!(many < 4 * few, "{many:?} with 1,000 vnics in the other network, {few:?} with one");
}
