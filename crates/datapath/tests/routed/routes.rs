//! Routes: blocks that routers lead to by machines, and what comes from behind these.

use std::collections::{BTreeMap, BTreeSet};

use butterfly_datapath::{Fate, Mac, Origin, Question, RoutingChange, Target, VnicPolicy};
use butterfly_model::{Neighbour, Route, Router, RouterAddresses, RouterId};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

use crate::{explained::question, hosts, net::*};

/// Machines of network 50 that pass packets on.
const V: Machine = ("v", Mac([2, 0, 0, 0, 0, 0x11]), 50, [10, 1, 0, 8]);
const W: Machine = ("w", Mac([2, 0, 0, 0, 0, 0x12]), 50, [10, 1, 0, 9]);
const X: Machine = ("x", Mac([2, 0, 0, 0, 0, 0x13]), 50, [10, 1, 0, 7]);

/// A machine behind another one: frames for it are that one's.
fn behind((id, mac, vni, _): Machine, ip: [u8; 4]) -> Machine {
    (id, mac, vni, ip)
}

/// A net whose router has routes.
fn net(machines: &[Machine], routes: &[(&str, &[&str])]) -> Net {
    let net = Net::new(machines, true);
    net.host.change_routing(leading("r", &[42, 50], routes));
    net
}

#[test]
fn a_route_leads_by_a_machine_and_back() {
    let mut net = net(&[A, B, V], &[("192.0.2.0/24", &["10.1.0.8"])]);
    let far = behind(V, [192, 0, 2, 5]);
    for round in 0..2 {
        let [sent, arrives] = routed(A, far, |ip| ip.udp(1000, 53, &[round; 9]));
        net.passes(A, &sent, V, &arrives);
        let [sent, arrives] = routed(far, A, |ip| ip.udp(53, 1000, &[round; 9]));
        net.passes(V, &sent, A, &arrives);
    }
    let [sent, _] = routed(A, behind(V, [192, 0, 3, 5]), |ip| ip.udp(1, 2, b""));
    net.refuses(A, &sent, "no-route", (3, 0, 0));
    // The machine is not there any more.
    let [sent, _] = routed(A, far, |ip| ip.udp(1, 2, b""));
    net.host.remove("v");
    net.host.settle();
    net.host.moved();
    net.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
}

/// Sources are those of the sender's network, and those to which the router leads by the sender
/// itself.
#[test]
fn only_the_machine_of_a_route_speaks_for_those_behind_it() {
    let routes: &[(&str, &[&str])] = &[
        ("192.0.2.0/24", &["10.1.0.8"]),
        ("192.0.2.128/25", &["10.1.0.9"]),
        ("0.0.0.0/0", &["10.1.0.9"]),
    ];
    let mut net = net(&[A, B, V, W], routes);
    for (from, source, passes) in [
        (V, [192, 0, 2, 5], true),
        (V, [192, 0, 2, 200], false), // by a longer prefix behind another one
        (V, [8, 8, 8, 8], false),
        (W, [192, 0, 2, 200], true),
        (W, [8, 8, 8, 8], true),
        (W, [192, 0, 2, 5], false),
        (W, [127, 0, 0, 1], false),
        (W, [224, 0, 0, 1], false),
        (W, [10, 0, 0, 1], false),  // the router's own
        (W, [10, 0, 0, 10], false), // of another network
        (B, [192, 0, 2, 5], false),
        (B, [8, 8, 8, 8], false),
        (A, [192, 0, 2, 5], false),
        (A, [8, 8, 8, 8], false),
    ] {
        let to = if from == A { B } else { A };
        let [sent, arrives] = routed(behind(from, source), to, |ip| ip.udp(53, 1000, b"x"));
        match passes {
            true => net.passes(from, &sent, to, &arrives),
            false => net.drops(from, &sent, "foreign-source"),
        }
    }
}

/// A vnic with filters sends from its own addresses, whatever is behind it.
#[test]
fn a_filtered_machine_speaks_for_itself_alone() {
    let mut net = Net::new(&[A, V], false);
    net.host.change_routing(leading("r", &[42, 50], &[("192.0.2.0/24", &["10.1.0.8"])]));
    net.admit("0.0.0.0/0");
    let far = behind(V, [192, 0, 2, 5]);
    let [sent, _] = routed(far, A, |ip| ip.udp(53, 1000, b"x"));
    net.drops(V, &sent, "spoofed-ip");
    let [sent, arrives] = routed(A, far, |ip| ip.udp(53, 1000, b"x"));
    net.passes(A, &sent, V, &arrives);
}

/// Nobody speaks as a filtered vnic of a network, also if a part of that is behind a machine.
#[test]
fn a_filtered_vnic_of_a_part_is_nobody_elses() {
    for bypass in [true, false] {
        let mut net = Net::apart(&[V, B], true);
        net.host.vnic(A.0, A.1, A.2, &policy(A.3, bypass)).unwrap();
        net.join();
        net.host.change_routing(leading("r", &[42, 50], &[("10.0.0.10/32", &["10.1.0.8"])]));
        net.host.change_routing(network(60, "10.2.0.0/24", "10.2.0.1", None));
        net.host.vnic("z", Mac([2, 0, 0, 0, 0, 0x33]), 60, &policy([10, 2, 0, 9], true)).unwrap();
        let routes: &[(&str, &[&str])] = &[("10.0.0.10/32", &["10.1.0.8"])];
        net.host.change_routing(leading("r", &[42, 50, 60], routes));
        net.host.settle();
        net.host.moved();
        let z = ("z", Mac([2, 0, 0, 0, 0, 0x33]), 60, [10, 2, 0, 9]);
        let [sent, arrives] = routed(behind(V, A.3), z, |ip| ip.udp(53, 1000, b"x"));
        match bypass {
            true => net.passes(V, &sent, z, &arrives),
            false => net.drops(V, &sent, "foreign-source"),
        }
    }
}

/// A route lets nobody speak as a filtered vnic of any network that a router of the receiver's
/// network joins, nor as a neighbour or a router of it, nor from addresses that are nobody's.
#[test]
fn a_route_lets_nobody_speak_as_a_vnic_of_another_router() {
    let z = ("z", Mac([2, 0, 0, 0, 0, 0x33]), 60, [10, 2, 0, 9]);
    let near = ("near", Mac([2, 0, 0, 0, 0, 0x34]), 42, [10, 0, 0, 12]);
    for bypass in [true, false] {
        let mut net = Net::apart(&[V, B], true);
        for (id, mac, vni, ip) in [A, z, near] {
            net.host.vnic(id, mac, vni, &policy(ip, id != "a" && bypass)).unwrap();
        }
        net.admit("0.0.0.0/0");
        net.join();
        net.host.change_routing(network(60, "10.2.0.0/24", "10.2.0.1", None));
        // The sender's router knows nothing of network 60, which another one joins to 42.
        net.host.change_routing(leading("r", &[42, 50], &[("0.0.0.0/0", &["10.1.0.8"])]));
        let mut other = Router::new(RouterId::new("s").unwrap());
        other.attach(vni(60), RouterAddresses::default());
        other.attach(vni(42), RouterAddresses::parse(["10.0.0.2"]).unwrap());
        net.host.change_routing(RoutingChange::DeclareRouter(other));
        let resident = Neighbour::new(
            vni(60),
            [10, 2, 0, 20].into(),
            butterfly_model::Mac::parse("02:00:00:00:00:55").unwrap(),
            None,
        );
        net.host.change_routing(RoutingChange::DeclareNeighbour(resident.unwrap()));
        net.host.settle();
        net.host.moved();
        for (source, passes) in [
            ([8, 8, 8, 8], true),
            (z.3, bypass),
            ([10, 2, 0, 10], true),
            ([10, 2, 0, 20], false),
            ([10, 2, 0, 1], false),
            ([10, 2, 0, 0], false),
            ([10, 2, 0, 255], false),
            ([10, 0, 0, 2], false),
        ] {
            let [sent, arrives] = routed(behind(V, source), A, |ip| ip.udp(53, 1000, b"x"));
            match passes {
                true => net.passes(V, &sent, A, &arrives),
                false => net.drops(V, &sent, "foreign-source"),
            }
        }
    }
}

/// Of an address that two vnics have nobody knows who is meant.
#[test]
fn only_who_alone_has_the_address_of_a_way_speaks_for_those_behind() {
    let mut net = net(&[A, V, W], &[("192.0.2.0/24", &["10.1.0.8"])]);
    let [sent, arrives] = routed(behind(V, [192, 0, 2, 5]), A, |ip| ip.udp(53, 1000, b"x"));
    net.passes(V, &sent, A, &arrives);
    net.host.vnic("other", X.1, X.2, &policy(V.3, true)).unwrap();
    net.host.settle();
    net.host.moved();
    net.drops(V, &sent, "foreign-source");
}

/// Any machine may take the MAC address of a neighbour that is no vnic: none speaks for those
/// behind it.
#[test]
fn nobody_here_speaks_for_those_behind_a_neighbour() {
    let mut net = net(&[A, V, W], &[("192.0.2.0/24", &["10.1.0.7"])]);
    let mac = butterfly_model::Mac::parse(&X.1.to_string()).unwrap();
    let neighbour = Neighbour::new(vni(50), X.3.into(), mac, None).unwrap();
    net.host.change_routing(RoutingChange::DeclareNeighbour(neighbour));
    net.host.moved();
    for from in [V, W] {
        let behind = (from.0, X.1, X.2, [192, 0, 2, 5]);
        let [sent, _] = routed(behind, A, |ip| ip.udp(53, 1000, b"x"));
        net.drops(from, &sent, "foreign-source");
    }
}

#[test]
fn the_longest_prefix_decides() {
    let routes: &[(&str, &[&str])] = &[
        ("0.0.0.0/0", &["10.1.0.8"]),
        ("192.0.2.0/24", &["10.1.0.9"]),
        ("192.0.2.128/25", &[]),
        ("192.0.2.129/32", &["10.1.0.8"]),
        ("10.1.0.0/24", &["10.1.0.9"]), // the network itself comes before
        ("10.1.0.10/32", &["10.1.0.9"]),
        ("10.1.0.0/16", &[]),
    ];
    let mut net = net(&[A, B, V, W, X], routes);
    for (destination, by) in [
        ([8, 8, 8, 8], Some(V)),
        ([192, 0, 2, 5], Some(W)),
        ([192, 0, 2, 128], None),
        ([192, 0, 2, 129], Some(V)),
        ([192, 0, 2, 130], None),
        ([192, 0, 3, 0], Some(V)),
        (X.3, Some(X)),
        (B.3, Some(W)),
        ([10, 1, 1, 1], None),
        ([10, 2, 1, 1], Some(V)),
    ] {
        let [sent, arrives] =
            routed(A, behind(by.unwrap_or(V), destination), |ip| ip.udp(1, 2, b"x"));
        match by {
            Some(machine) => net.passes(A, &sent, machine, &arrives),
            None => net.refuses(A, &sent, "route-blackhole", (3, 0, 0)),
        }
    }
}

/// Returns by which machine each flow goes, of frames that are sent in one batch. None is lost.
fn ways(net: &mut Net, ports: std::ops::Range<u16>) -> BTreeMap<u16, String> {
    let mut all = BTreeMap::new();
    for port in ports {
        let sent = build::ethernet(A.1, gateway()).ipv4(A.3, [192, 0, 2, 5]).udp(port, 53, b"x");
        net.host.guest(A.0).unwrap().send(&sent, NetHeader::default()).unwrap();
        net.host.guest(A.0).unwrap().send(&sent, NetHeader::default()).unwrap();
        if port % 16 == 15 {
            take(net, &mut all);
        }
    }
    take(net, &mut all);
    all
}

/// Takes what machines got: of each flow, by one of them.
fn take(net: &mut Net, all: &mut BTreeMap<u16, String>) {
    net.host.settle();
    for (id, frames) in net.host.received().unwrap() {
        for (_, frame) in frames {
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            let before = all.insert(port, id.clone());
            assert!(before.is_none_or(|before| before == id), "{port}");
        }
    }
}

/// A flow keeps its way while that works. When a way goes its flows alone move, and come back with
/// it. Each flow and each answer of it are of one way.
#[test]
fn flows_keep_their_ways() {
    let routes: &[(&str, &[&str])] = &[("192.0.2.0/24", &["10.1.0.8", "10.1.0.9", "10.1.0.7"])];
    let mut net = net(&[A, V, W, X], routes);
    let before = ways(&mut net, 1000..1160);
    assert_eq!(before.len(), 160);
    let count = |id: &str| before.values().filter(|way| *way == id).count();
    assert!(["v", "w", "x"].iter().all(|id| count(id) > 30), "{before:?}");
    assert_eq!(ways(&mut net, 1000..1160), before);
    // In another order it is the same.
    let routes: &[(&str, &[&str])] = &[("192.0.2.0/24", &["10.1.0.7", "10.1.0.9", "10.1.0.8"])];
    net.host.change_routing(leading("r", &[42, 50], routes));
    assert_eq!(ways(&mut net, 1000..1160), before);
    net.host.remove("w");
    net.host.settle();
    let without = ways(&mut net, 1000..1160);
    assert_eq!(without.len(), 160);
    let to: BTreeSet<&str> = without.values().map(String::as_str).collect();
    assert_eq!(to, BTreeSet::from(["v", "x"]));
    for (port, way) in &before {
        assert!(way == "w" || without[port] == *way, "{port} moved from {way}");
    }
    net.host.vnic(W.0, W.1, W.2, &policy(W.3, true)).unwrap();
    net.host.settle();
    assert_eq!(ways(&mut net, 1000..1160), before);
    for gone in ["v", "w", "x"] {
        net.host.remove(gone);
    }
    net.host.settle();
    net.host.moved();
    let [sent, _] = routed(A, behind(V, [192, 0, 2, 5]), |ip| ip.udp(1, 2, b""));
    net.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
}

/// Two routers lead to each other's machines by the same two in between: both directions of a flow
/// go by one of these.
#[test]
fn answers_go_by_the_way_of_the_questions() {
    let d = ("d", Mac([2, 0, 0, 0, 0, 0xd]), 60, [10, 2, 0, 10]);
    let by: &[&str] = &["10.1.0.8", "10.1.0.9"];
    let mut net = net(&[A, V, W, d], &[("10.2.0.0/24", by)]);
    net.host.change_routing(network(60, "10.2.0.0/24", "10.2.0.1", None));
    let mut other = Router::new(RouterId::new("s").unwrap());
    other.attach(vni(60), RouterAddresses::default());
    other.attach(vni(50), RouterAddresses::parse(["10.1.0.2"]).unwrap());
    other.add_route(Route::parse("10.0.0.0/24", by).unwrap());
    let mac = Mac(other.id().gateway_mac());
    net.host.change_routing(RoutingChange::DeclareRouter(other));
    let mut all = BTreeSet::new();
    for port in 1000..1040 {
        let there = build::ethernet(A.1, gateway()).ipv4(A.3, d.3).udp(port, 53, b"?");
        let back = build::ethernet(d.1, mac).ipv4(d.3, A.3).udp(53, port, b"!");
        let by: BTreeSet<String> =
            net.send(A, &there).into_keys().chain(net.send(d, &back).into_keys()).collect();
        assert_eq!(by.len(), 1, "{port}: {by:?}");
        all.extend(by);
    }
    assert_eq!(all.len(), 2);
}

/// An error about a packet that came by a way goes back by it, whichever machine sends it.
#[test]
fn errors_go_by_the_way_of_their_flow() {
    let routes: &[(&str, &[&str])] = &[("192.0.2.0/24", &["10.1.0.8", "10.1.0.9", "10.1.0.7"])];
    let mut net = net(&[A, V, W, X], routes);
    let flows = ways(&mut net, 1000..1032);
    for (port, by) in &flows {
        let quote = build::ethernet(V.1, A.1).ipv4([192, 0, 2, 5], A.3).udp(53, *port, b"x");
        let ip = build::ethernet(A.1, gateway()).ipv4(A.3, [192, 0, 2, 5]);
        let got = net.send(A, &ip.icmp(3, 3, 0, &quote[14..]));
        assert_eq!(got.into_keys().collect::<Vec<_>>(), std::slice::from_ref(by), "{port}");
    }
    assert_eq!(flows.values().collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn fragments_of_a_packet_go_by_one_way() {
    let routes: &[(&str, &[&str])] = &[("192.0.2.0/24", &["10.1.0.8", "10.1.0.9", "10.1.0.7"])];
    let mut net = net(&[A, V, W, X], routes);
    let mut all = BTreeSet::new();
    for last in 1..30 {
        let to = [192, 0, 2, last];
        let whole = build::ethernet(A.1, gateway()).ipv4(A.3, to).udp(1000, 53, &[7; 64]);
        let part = |offset: usize, more: bool, bytes: std::ops::Range<usize>| {
            let ip = build::ethernet(A.1, gateway()).ipv4(A.3, to).fragment(1, offset, more);
            ip.payload(17, &whole[34..][bytes])
        };
        let mut by = BTreeSet::new();
        for frame in [part(0, true, 0..32), part(32, true, 32..64), part(64, false, 64..72)] {
            by.extend(net.send(A, &frame).into_keys());
        }
        assert_eq!(by.len(), 1, "{last}: {by:?}");
        all.extend(by);
    }
    assert_eq!(all.len(), 3);
}

/// The sender reaches the machine without the router.
#[test]
fn a_machine_of_the_senders_network_is_no_way() {
    let mut net = net(&[B, V, A], &[("192.0.2.0/24", &["10.1.0.8"])]);
    let [sent, _] = routed(B, behind(V, [192, 0, 2, 5]), |ip| ip.udp(1, 2, b"x"));
    net.drops(B, &sent, "route-back");
}

/// Two routers whose routes lead to each other by machines that pass on what they get.
#[test]
fn a_circle_ends() {
    let mut net = Net::new(&[A, V], true);
    let routes: &[(&str, &[&str])] =
        &[("192.0.2.0/25", &["10.1.0.8"]), ("192.0.2.128/25", &["10.0.0.10"])];
    net.host.change_routing(leading("r", &[42, 50], routes));
    let mut other = Router::new(RouterId::new("s").unwrap());
    for (number, address) in [(42, "10.0.0.2"), (50, "10.1.0.2")] {
        other.attach(vni(number), RouterAddresses::parse([address]).unwrap());
    }
    let mac = Mac(other.id().gateway_mac());
    for (to, via) in [("192.0.2.0/25", "10.0.0.10"), ("192.0.2.128/25", "10.1.0.8")] {
        other.add_route(Route::parse(to, [via]).unwrap());
    }
    net.host.change_routing(RoutingChange::DeclareRouter(other));
    net.host.moved();
    // To the one from A, which it tells that it sends for 192.0.2.200; to the other one from V.
    let ends = ([192, 0, 2, 200], [192, 0, 2, 5]);
    let mut frame = build::ethernet(A.1, gateway()).ipv4(ends.0, ends.1).ttl(6).udp(1, 2, b"x");
    let (mut from, mut turns) = (A, 0);
    loop {
        let got = net.send(from, &frame);
        let to = if from == A { V } else { A };
        let Some(frames) = got.get(to.0) else { break };
        frame = frames[0].clone();
        frame[..6].copy_from_slice(&if to == A { gateway() } else { mac }.0);
        frame[6..12].copy_from_slice(&to.1.0);
        from = to;
        turns += 1;
        let drops = net.drops_counted();
        assert!(drops.is_empty() && turns < 10, "{turns}: {drops:?}");
    }
    assert_eq!(turns, 5);
    net.counts_one(from, "ttl-expired");
}

#[test]
fn routes_of_ipv6_lead_likewise() {
    let mut net = Net::apart(&[], true);
    let of = |v6: &str| VnicPolicy {
        ips: vec![v6.parse().unwrap()],
        bypass: true,
        ..policy([0; 4], true)
    };
    for (machine, v6) in [(A, "fd00::10"), (V, "fd01::8"), (W, "fd01::9")] {
        net.host.vnic(machine.0, machine.1, machine.2, &of(v6)).unwrap();
    }
    net.host.change_routing(network(42, "fd00::/64", "fd00::1", None));
    net.host.change_routing(network(50, "fd01::/64", "fd01::1", None));
    let routes: &[(&str, &[&str])] = &[
        ("::/0", &["fd01::8"]),
        ("2001:db8::/32", &["fd01::9"]),
        ("2001:db8:1::/48", &["fd01::8"]),
        ("2001:db8:1::7/128", &[]),
        ("2001:db8:2::/47", &["fd01::9", "fd01::8"]),
    ];
    net.host.change_routing(leading("r", &[42, 50], routes));
    net.host.settle();
    net.host.moved();
    let send = |net: &mut Net, from: Machine, source: &str, to: &str, port: u16| {
        let (source, to): (std::net::Ipv6Addr, std::net::Ipv6Addr) =
            (source.parse().unwrap(), to.parse().unwrap());
        let sent = build::ethernet(from.1, gateway()).ipv6(source, to).udp(port, 53, b"x");
        net.send(from, &sent).into_keys().next()
    };
    for (to, by) in [
        ("2600::1", Some("v")),
        ("2001:db8::1", Some("w")),
        ("2001:db8:1::1", Some("v")),
        ("2001:db8:1:ffff::", Some("v")),
    ] {
        assert_eq!(send(&mut net, A, "fd00::10", to, 1).as_deref(), by, "{to}");
    }
    net.host.moved();
    // The error goes to the sender.
    assert_eq!(send(&mut net, A, "fd00::10", "2001:db8:1::7", 1).as_deref(), Some("a"));
    net.counts_one(A, "route-blackhole");
    let by: BTreeSet<_> =
        (0..20).filter_map(|port| send(&mut net, A, "fd00::10", "2001:db8:3::1", port)).collect();
    assert_eq!(by.len(), 2, "{by:?}");
    // Ports tell flows apart also where they are beyond the bytes that are at hand at first.
    let by: BTreeSet<_> = (0..20)
        .filter_map(|port| {
            let ip = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap();
            let ip = build::ethernet(A.1, gateway()).ipv6(ip("fd00::10"), ip("2001:db8:3::1"));
            let sent = ip.extension(60, &[0; 126]).udp(port, 53, b"x");
            net.send(A, &sent).into_keys().next()
        })
        .collect();
    assert_eq!(by.len(), 2, "{by:?}");
    assert_eq!(send(&mut net, W, "2001:db8::5", "fd00::10", 1).as_deref(), Some("a"));
    assert_eq!(send(&mut net, V, "2001:db8::5", "fd00::10", 1), None);
    assert_eq!(send(&mut net, V, "::ffff:192.0.2.1", "fd00::10", 1), None);
}

/// The machine of a route is on another host: what it gets crosses as what is for a neighbour does,
/// and what it sends is of a source to which a router here leads back.
#[test]
fn routes_lead_over_hosts() {
    for bypass in [true, false] {
        let (mut one, mut two) = (hosts::host(1, &[A], bypass), hosts::host(2, &[V, X], true));
        let routes: &[(&str, &[&str])] = &[("192.0.2.0/24", &["10.1.0.8"])];
        for (net, machine, other) in [(&mut one, V, 2), (&mut two, A, 1)] {
            net.join();
            net.host.change_routing(leading("r", &[42, 50], routes));
            net.neighbour(machine, Some(other));
            net.reaches(other);
            net.host.moved();
        }
        if !bypass {
            one.admit("0.0.0.0/0");
        }
        let far = behind(V, [192, 0, 2, 5]);
        let udp = || hosts::udp((1000, 53));
        let [sent, arrives] = routed(A, far, udp());
        let left = one.leaves(A, &sent);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0][46..49], [0, 0, 50], "VNI");
        assert_eq!(left[0][50..], hosts::between(1, A, far, udp()));
        assert_eq!(two.gets(&left), BTreeMap::from([("v".to_owned(), vec![arrives])]));
        let [sent, arrives] = routed(far, A, udp());
        let left = two.leaves(V, &sent);
        assert_eq!(one.gets(&left), BTreeMap::from([("a".to_owned(), vec![arrives])]));
        assert_eq!(one.drops_counted(), []);
        // The first host does not know the route any more.
        one.host.change_routing(router("r", &[42, 50]));
        assert_eq!(one.gets(&left), BTreeMap::new());
        let drops = one.drops_counted();
        assert!(drops.iter().all(|(name, _)| name.contains("foreign-source")), "{drops:?}");
        assert_eq!(drops.len(), 1);
    }
}

/// A part of a network is behind a machine of another host: nobody there speaks as a filtered vnic
/// that runs here.
#[test]
fn a_route_lets_no_host_speak_as_a_vnic_here() {
    let mut one = hosts::host(1, &[A, B], false);
    one.join();
    let routes: &[(&str, &[&str])] = &[("10.1.0.10/32", &["10.2.0.8"])];
    one.host.change_routing(network(60, "10.2.0.0/24", "10.2.0.1", None));
    one.host.change_routing(leading("r", &[42, 50, 60], routes));
    one.neighbour(W, Some(2));
    one.reaches(2);
    one.admit("0.0.0.0/0");
    one.host.moved();
    let frame = hosts::between(2, B, A, hosts::udp((1, 2)));
    assert_eq!(one.gets(&[hosts::outer((2, 1), 42, &frame)]), BTreeMap::new());
    let drops = one.drops_counted();
    assert!(drops.iter().any(|(name, _)| name.contains("own-source-routed")), "{drops:?}");
}

#[test]
fn an_explanation_names_the_route() {
    let routes: &[(&str, &[&str])] =
        &[("192.0.2.0/24", &["10.1.0.8", "10.1.0.9"]), ("192.0.2.128/25", &[])];
    let net = net(&[A, V, W], routes);
    let question = |to: [u8; 4]| Question { to: Target::Address(to.into()), ..question(false) };
    let told = net.host.explain(&question([192, 0, 2, 5])).unwrap();
    let route = told.walks[0].steps.iter().find(|step| step.stage == "route").unwrap();
    let by = |ip: &str| {
        format!("the gateway of VNI 42 passes it on to VNI 50, by the route 192.0.2.0/24 via {ip}")
    };
    assert!([by("10.1.0.8"), by("10.1.0.9")].contains(&route.text), "{route:?}");
    let told = net.host.explain(&question([192, 0, 2, 200])).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!(refused.reason.name, "route-blackhole");
    // Also the route for which a packet is not passed on.
    let details = |question: &Question, reason: &str| {
        let told = net.host.explain(question).unwrap();
        let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
        assert_eq!(refused.reason.name, reason);
        let steps = &told.walks[0].steps;
        steps.iter().find(|step| step.stage == "route").unwrap().details.clone()
    };
    let from = |id: &str, source: Option<[u8; 4]>, to: [u8; 4]| Question {
        from: Origin::Vnic(id.into()),
        source: source.map(Into::into),
        ..question(to)
    };
    let ways = |there: &str| format!("the route 192.0.2.0/24 leads {there} via 10.1.0.8, 10.1.0.9");
    let back = from("v", None, [192, 0, 2, 5]);
    assert_eq!(details(&back, "route-back"), [ways("there")]);
    let foreign = from("a", Some([192, 0, 2, 5]), V.3);
    assert_eq!(details(&foreign, "foreign-source"), [ways("to the source")]);
}
