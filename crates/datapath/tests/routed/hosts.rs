//! Two hosts in one process, joined by a simulated wire: each routes what its own machines send.

use std::{collections::BTreeMap, net::IpAddr};

use butterfly_datapath::{
    Fate, Mac, Origin, Question, Rewritten, RoutingChange, SessionConfig, SessionFilter,
    TunnelConfig, harness::Host,
};
use butterfly_model::{Neighbour, host_mac};
use butterfly_packet::{
    build::{self, Ip, Tcp},
    checksum::Sum,
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

use crate::{explained::question, net::*};

/// Machines of a third network, which the router joins only where a test says so.
const D: Machine = ("d", Mac([2, 0, 0, 0, 0, 0xd]), 60, [10, 2, 0, 10]);

pub fn endpoint(n: u8) -> IpAddr {
    IpAddr::from([192, 168, 0, n])
}

pub fn link(n: u8) -> Mac {
    Mac([2, 0xbf, 0, 0, 0, n])
}

/// Router address of a host.
pub fn router_of(n: u8) -> Mac {
    Mac(host_mac(endpoint(n)))
}

/// Host `n`, which has these machines.
pub fn host(n: u8, machines: &[Machine], bypass: bool) -> Net {
    let config = TunnelConfig::new(endpoint(n), link(n));
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&config)).unwrap();
    for (id, mac, vni, ip) in machines {
        host.vnic(id, *mac, *vni, &policy(*ip, bypass)).unwrap();
    }
    host.settle();
    host.moved();
    Net { host }
}

impl Net {
    /// Declares that a machine is on a host.
    pub fn neighbour(&self, (_, mac, number, ip): Machine, host: Option<u8>) {
        let mac = butterfly_model::Mac::parse(&mac.to_string()).unwrap();
        let neighbour = Neighbour::new(vni(number), ip.into(), mac, host.map(endpoint)).unwrap();
        self.host.change_routing(RoutingChange::DeclareNeighbour(neighbour));
    }

    /// Has the link address of another host, which ARP would find.
    pub fn reaches(&self, n: u8) {
        self.host.set_neighbour(endpoint(n), link(n)).unwrap();
    }

    /// Sends a frame. Returns what left for other hosts.
    pub fn leaves(&mut self, from: Machine, frame: &[u8]) -> Vec<Vec<u8>> {
        self.host.send(from.0, frame, NetHeader::default()).unwrap();
        self.host.left().unwrap()
    }

    /// Takes frames from the wire. Returns what machines got.
    pub fn gets(&mut self, frames: &[Vec<u8>]) -> BTreeMap<String, Vec<Vec<u8>>> {
        self.host.arrive(frames).unwrap();
        let received = self.host.received().unwrap();
        let frames = |all: Vec<(NetHeader, Vec<u8>)>| all.into_iter().map(|(_, frame)| frame);
        received.into_iter().map(|(id, all)| (id, frames(all).collect())).collect()
    }

    /// Names and numbers of drops since the last call.
    pub fn drops_counted(&mut self) -> Vec<(String, u64)> {
        let moved = self.host.moved();
        moved.into_iter().filter(|(name, _)| name.contains("drop.")).collect()
    }
}

/// A on host 1, B on host 2, and a router that both hosts have.
fn apart(bypass: bool) -> (Net, Net) {
    let (mut one, mut two) = (host(1, &[A], bypass), host(2, &[B], bypass));
    for (net, machine, other) in [(&mut one, B, 2), (&mut two, A, 1)] {
        net.join();
        net.neighbour(machine, Some(other));
        net.reaches(other);
        if !bypass {
            net.admit("10.0.0.0/8");
        }
        net.host.moved();
    }
    (one, two)
}

/// A frame of a VNI that host `n` sends to host `to`.
pub fn outer((n, to): (u8, u8), vni: u32, frame: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(at)) = (endpoint(n), endpoint(to)) else { panic!() };
    build::ethernet(link(n), link(to)).ipv4(from, at).vxlan(50_000, vni, frame)
}

/// The frame by which host `n` sends on what `from` sent to its gateway, for `to`.
pub fn between(n: u8, from: Machine, to: Machine, make: impl Fn(Ip) -> Vec<u8>) -> Vec<u8> {
    let [_, mut frame] = routed(from, to, make);
    frame[6..12].copy_from_slice(&router_of(n).0);
    frame
}

pub fn udp(ports: (u16, u16)) -> impl Fn(Ip) -> Vec<u8> {
    move |ip| ip.udp(ports.0, ports.1, b"x")
}

/// Offset of the inner frame, over IPv4.
const INNER: usize = 50;

/// The other host routes the answer: it comes from that host's router address, into the network of
/// who asked.
#[test]
fn an_answer_of_another_host_is_explained() {
    for bypass in [false, true] {
        let (one, two) = apart(bypass);
        let question = question(true);
        let told = one.host.explain(&question).unwrap();
        let [there, back] = &told.walks[..] else { panic!("{told:?}") };
        assert_eq!(there.fate, Fate::Leaves(endpoint(2)), "{there:?}");
        let way = Rewritten { vni: B.2, source: router_of(1), destination: B.1 };
        assert_eq!(there.routed, Some(way));
        assert_eq!(back.fate, Fate::Delivered("a".into()), "{back:?}");
        assert_eq!(back.frame[..12], [A.1.0, router_of(2).0].concat());
        // There, asked as `explain` of the first host says.
        let from = Origin::Outside(B.2);
        let source = Some(A.3.into());
        let told = two.host.explain(&Question { from, source, ..question }).unwrap();
        let [there, back] = &told.walks[..] else { panic!("{told:?}") };
        assert_eq!(there.fate, Fate::Delivered("b".into()), "{there:?}");
        assert_eq!(back.fate, Fate::Leaves(endpoint(1)), "{back:?}");
    }
}

#[test]
fn each_host_routes_what_its_machines_send() {
    for bypass in [false, true] {
        let (mut one, mut two) = apart(bypass);
        for round in 0..3 {
            let ways = [(&A, &B, 1, 50, (1000, 53)), (&B, &A, 2, 42, (53, 1000))];
            for (from, to, n, vni, ports) in ways {
                let (here, there) =
                    if n == 1 { (&mut one, &mut two) } else { (&mut two, &mut one) };
                let [sent, arrives] = routed(*from, *to, udp(ports));
                let left = here.leaves(*from, &sent);
                assert_eq!(left.len(), 1, "{round}");
                assert_eq!(left[0][INNER..], between(n, *from, *to, udp(ports)));
                assert_eq!(left[0][INNER - 4..INNER - 1], u32::to_be_bytes(vni)[1..]);
                let got = there.gets(&left);
                assert_eq!(got, BTreeMap::from([(to.0.to_owned(), vec![arrives])]), "{round}");
                assert_eq!((here.drops_counted(), there.drops_counted()), (vec![], vec![]));
            }
        }
        let expected = if bypass { 0 } else { 1 };
        for net in [&one, &two] {
            assert_eq!((net.sessions(), net.host.count_sessions().unwrap()), (expected, expected));
        }
    }
}

/// IPv6 as IPv4.
#[test]
fn ipv6_is_routed_between_hosts() {
    const SIX: [[u16; 8]; 2] =
        [[0xfd00, 0x42, 0, 0, 0, 0, 0, 0xa], [0xfd00, 0x50, 0, 0, 0, 0, 0, 0xb]];
    let six = SIX.map(std::net::Ipv6Addr::from);
    let (mut one, mut two) = (host(1, &[], false), host(2, &[], false));
    for (net, (id, mac, vni, ip), own) in [(&mut one, A, six[0]), (&mut two, B, six[1])] {
        let policy = butterfly_datapath::VnicPolicy {
            ips: vec![ip.into(), own.into()],
            ..policy(ip, false)
        };
        net.host.vnic(id, mac, vni, &policy).unwrap();
    }
    for (net, (_, mac, number, _), other, n) in [(&mut one, B, six[1], 2), (&mut two, A, six[0], 1)]
    {
        for (vni, block) in [(42, "fd00:42::/64"), (50, "fd00:50::/64")] {
            let own = block.replace("/64", "1");
            net.host.change_routing(network(vni, block, &own, None));
        }
        net.host.change_routing(router("r", &[42, 50]));
        let mac = butterfly_model::Mac::parse(&mac.to_string()).unwrap();
        let neighbour = Neighbour::new(vni(number), other.into(), mac, Some(endpoint(n))).unwrap();
        net.host.change_routing(RoutingChange::DeclareNeighbour(neighbour));
        net.reaches(n);
        net.host.settle();
    }
    let block = butterfly_model::Cidr::new("fd00:42::", 64).unwrap();
    let ports = (Some(53), Some(53));
    let inbound = butterfly_model::Direction::Inbound;
    let rule = butterfly_model::Rule::new(inbound, 17, ports, Some(block), None).unwrap();
    let name = butterfly_model::GroupName::new("open").unwrap();
    two.host.change_group(&name, butterfly_datapath::GroupChange::AddRule(rule)).unwrap();
    for _ in 0..2 {
        let frame = |from: Mac, to: Mac, hops, b_sends: bool| {
            let (source, destination, ports) = match b_sends {
                false => (SIX[0], SIX[1], (1000, 53)),
                true => (SIX[1], SIX[0], (53, 1000)),
            };
            build::ethernet(from, to)
                .ipv6(source, destination)
                .ttl(hops)
                .udp(ports.0, ports.1, b"x")
        };
        let left = one.leaves(A, &frame(A.1, gateway(), 64, false));
        assert_eq!(left[0][INNER..], frame(router_of(1), B.1, 63, false));
        let got = two.gets(&left);
        assert_eq!(got, BTreeMap::from([("b".into(), vec![frame(gateway(), B.1, 63, false)])]));
        // No rule lets the answer in by itself.
        let left = two.leaves(B, &frame(B.1, gateway(), 64, true));
        let got = one.gets(&left);
        assert_eq!(got, BTreeMap::from([("a".into(), vec![frame(gateway(), A.1, 63, true)])]));
    }
    // A source of its link alone, or of this network, is not routed.
    for source in [[0xfe80, 0, 0, 0, 0, 0, 0, 0xa], SIX[1], [0xfd00, 0x42, 0, 0, 0, 0, 0, 1]] {
        let frame = build::ethernet(router_of(1), B.1).ipv6(source, SIX[1]).udp(1000, 53, b"x");
        drops_arrived(&mut two, &frame, "foreign-source");
    }
}

/// The rules of both ends are asked, each where its machine is.
#[test]
fn rules_hold_on_both_hosts() {
    let (mut one, mut two) = apart(false);
    let rule = two.admit("10.0.0.0/16");
    let all = two.admit("10.0.0.0/8");
    let name = butterfly_model::GroupName::new("open").unwrap();
    let remove = |rule| butterfly_datapath::GroupChange::RemoveRule(rule);
    two.host.change_group(&name, remove(all)).unwrap();
    let [sent, _] = routed(A, B, udp((1000, 53)));
    let left = one.leaves(A, &sent);
    assert_eq!(two.gets(&left).len(), 1);
    // What B opens needs a rule of A's, and has it; what A opens needs one of B's.
    two.host.change_group(&name, remove(rule)).unwrap();
    let left = one.leaves(A, &sent);
    assert_eq!(two.gets(&left), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("b.drop.ingress-denied".to_owned(), 1)]);
    let [sent, _] = routed(B, A, udp((7, 8)));
    let left = two.leaves(B, &sent);
    assert_eq!(one.gets(&left).len(), 1);
}

/// TCP of both directions, in which only the first segment opens anything.
#[test]
fn a_connection_is_one_session_on_each_host() {
    let (mut one, mut two) = apart(false);
    let name = butterfly_model::GroupName::new("open").unwrap();
    for net in [&mut one, &mut two] {
        net.host.set_session_times(butterfly_datapath::Timeouts::default(), 0);
        let block = butterfly_model::Cidr::new("10.0.0.0", 8).unwrap();
        let ports = (Some(80), Some(80));
        let inbound = butterfly_model::Direction::Inbound;
        let rule = butterfly_model::Rule::new(inbound, 6, ports, Some(block), None).unwrap();
        net.host.change_group(&name, butterfly_datapath::GroupChange::AddRule(rule)).unwrap();
    }
    let segment = |from_a: bool, flags, (sequence, acknowledgement)| {
        let (source_port, destination_port) = if from_a { (4000, 80) } else { (80, 4000) };
        let bare = Tcp::new(source_port, destination_port, flags);
        let tcp = Tcp { sequence, acknowledgement, ..bare };
        move |ip: Ip| ip.tcp(&tcp, b"")
    };
    for (from_a, flags, numbers) in [
        (true, SYN, (100, 0)),
        (false, SYN | ACK, (500, 101)),
        (true, ACK, (101, 501)),
        (false, ACK, (501, 101)),
    ] {
        let (from, to) = if from_a { (A, B) } else { (B, A) };
        let [sent, arrives] = routed(from, to, segment(from_a, flags, numbers));
        let (here, there) = if from_a { (&mut one, &mut two) } else { (&mut two, &mut one) };
        let left = here.leaves(from, &sent);
        assert_eq!(there.gets(&left), BTreeMap::from([(to.0.to_owned(), vec![arrives])]));
    }
    for net in [&one, &two] {
        let rows = net.host.sessions(&SessionFilter::default(), 10).1;
        assert_eq!(rows.len(), 1);
        assert!(format!("{:?}", rows[0]).to_lowercase().contains("established"), "{rows:?}");
    }
    // An answer to nothing.
    let [stray, _] = routed(B, A, segment(false, ACK, (501, 101)));
    let mut stray = stray;
    stray[34..36].copy_from_slice(&81u16.to_be_bytes()); // from another port
    stray[50..52].copy_from_slice(&[0, 0]);
    assert!(two.leaves(B, &stray).is_empty());
    let drops = two.drops_counted();
    assert_eq!(drops, [("b.drop.tcp-no-session".to_owned(), 1)]);
}

/// Nobody here leads to other hosts without a tunnel, and none without a declaration.
#[test]
fn who_is_not_declared_is_not_reached() {
    let (mut one, _) = apart(false);
    let [sent, _] = routed(A, ("", Mac::ZERO, 50, [10, 1, 0, 11]), udp((1, 2)));
    one.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
    assert!(one.host.left().unwrap().is_empty());
    one.host.change_routing(RoutingChange::RemoveNeighbour(vni(50), B.3.into()));
    let [sent, _] = routed(A, B, udp((1, 2)));
    one.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
    // The same on a host that has no tunnel.
    let mut alone = Net::new(&[A, C], true);
    alone.neighbour(B, Some(2));
    alone.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
}

/// The host of a neighbour is the one that was declared last.
#[test]
fn a_neighbour_moves() {
    let (mut one, _) = apart(true);
    one.neighbour(B, Some(3));
    one.reaches(3);
    let [sent, _] = routed(A, B, udp((1, 2)));
    let left = one.leaves(A, &sent);
    assert_eq!(left[0][30..34], [192, 168, 0, 3]);
    // Here, as soon as its machine runs here.
    one.host.vnic(B.0, B.1, B.2, &policy(B.3, true)).unwrap();
    one.host.settle();
    one.host.moved();
    let [sent, arrives] = routed(A, B, udp((1, 2)));
    one.passes(A, &sent, B, &arrives);
    // And there again, when it left.
    one.host.depart("b").unwrap();
    let left = one.leaves(A, &sent);
    assert_eq!(left[0][30..34], [192, 168, 0, 3]);
}

/// Without its host, a machine is where its MAC address was heard last.
#[test]
fn a_neighbour_without_a_host_is_where_it_was_heard() {
    let (mut one, _) = apart(true);
    one.neighbour(B, None);
    let [sent, _] = routed(A, B, udp((1, 2)));
    one.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
    let hello = build::ethernet(B.1, Mac::BROADCAST).arp_request(B.3, [10, 1, 0, 77]);
    assert_eq!(one.gets(&[outer((2, 1), 50, &hello)]), BTreeMap::new());
    one.host.moved();
    let left = one.leaves(A, &sent);
    assert_eq!(left[0][30..34], [192, 168, 0, 2]);
    assert_eq!(left[0][INNER..], between(1, A, B, udp((1, 2))));
    // Behind a vnic of this host.
    let appliance = ("e", Mac([2, 0, 0, 0, 0, 0xe]), 50, [10, 1, 0, 99]);
    one.host.vnic(appliance.0, appliance.1, appliance.2, &policy(appliance.3, true)).unwrap();
    one.host.settle();
    one.host.moved();
    one.host.send("e", &hello, NetHeader::default()).unwrap();
    one.host.left().unwrap();
    one.host.moved();
    let [sent, arrives] = routed(A, B, udp((1, 2)));
    assert_eq!(one.send(A, &sent), BTreeMap::from([("e".to_owned(), vec![arrives])]));
}

/// The gateway of the sender's network tells the MTU that the tunnel leaves.
#[test]
fn a_packet_that_the_tunnel_does_not_take_is_told() {
    let (mut one, _) = apart(true);
    let big = |len: usize| move |ip: Ip| ip.dont_fragment().udp(1, 2, &vec![0; len - 28]);
    let declared = 1400;
    let [sent, _] = routed(A, B, big(1401));
    one.refuses(A, &sent, "route-too-big", (3, 4, declared));
    one.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
    let [sent, _] = routed(A, B, big(1450));
    assert_eq!(one.leaves(A, &sent).len(), 1);
    let [sent, _] = routed(A, B, big(1451));
    one.refuses(A, &sent, "route-too-big", (3, 4, 1450));
    assert!(one.host.left().unwrap().is_empty());
}

/// A router address is that of the host that the outer source names.
#[test]
fn no_host_speaks_as_the_router_of_another() {
    let (_, mut two) = apart(true);
    let frame = between(1, A, B, udp((1, 2)));
    assert_eq!(two.gets(&[outer((3, 2), 50, &frame)]), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("vni-50.drop.forged-router".to_owned(), 1)]);
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]).len(), 1);
    // Nor as a gateway, also as itself.
    let mut frame = frame;
    frame[6..12].copy_from_slice(&gateway().0);
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]), BTreeMap::new());
    assert_eq!(two.drops_counted(), [("vni-50.drop.router-mac".to_owned(), 1)]);
}

/// Drops of what arrived in VNI 50.
#[track_caller]
fn drops_arrived(net: &mut Net, frame: &[u8], reason: &str) {
    net.host.moved();
    assert_eq!(net.gets(&[outer((1, 2), 50, frame)]), BTreeMap::new());
    assert!(net.host.left().unwrap().is_empty());
    assert_eq!(net.drops_counted(), [(format!("vni-50.drop.{reason}"), 1)]);
}

#[test]
fn a_source_that_no_router_leads_to_is_foreign() {
    for bypass in [false, true] {
        let (_, mut two) = apart(bypass);
        let from = |ip: [u8; 4]| between(1, ("", A.1, 42, ip), B, udp((1, 2)));
        let own = [[10, 1, 0, 77], [10, 0, 0, 1], [10, 1, 0, 1]];
        let nobodys = [[10, 7, 0, 1], [224, 0, 0, 1], [10, 0, 0, 0], [10, 0, 0, 255]];
        for source in own.into_iter().chain(nobodys) {
            drops_arrived(&mut two, &from(source), "foreign-source");
        }
        assert_eq!(two.gets(&[outer((1, 2), 50, &from(A.3))]).len(), 1);
    }
}

/// A filtered machine that runs here speaks here.
#[test]
fn the_address_of_a_machine_here_is_not_routed_from_elsewhere() {
    let (_, mut two) = apart(false);
    two.host.vnic(A.0, A.1, A.2, &policy(A.3, false)).unwrap();
    two.host.settle();
    drops_arrived(&mut two, &between(1, A, B, udp((1, 2))), "own-source-routed");
    // Another one of that network may.
    let frame = between(1, C, B, udp((1, 2)));
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]).len(), 1);
    two.host.moved();
    // When its machine runs there, that is where it speaks.
    two.host.depart("a").unwrap();
    let frame = between(1, A, B, udp((1, 2)));
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]).len(), 1);
}

/// One vnic with that address, which another host has, too.
#[test]
fn a_shared_address_is_routed_from_elsewhere() {
    let (_, mut two) = apart(false);
    let shared = butterfly_datapath::VnicPolicy { shared_ip: true, ..policy(A.3, false) };
    two.host.vnic(A.0, A.1, A.2, &shared).unwrap();
    two.host.settle();
    let frame = between(1, A, B, udp((1, 2)));
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]).len(), 1);
}

#[test]
fn routers_pass_on_ip_for_one_machine() {
    for bypass in [false, true] {
        let (_, mut two) = apart(bypass);
        let of = |to: Mac| build::ethernet(router_of(1), to);
        drops_arrived(&mut two, &of(B.1).payload(0x88b5, &[0; 46]), "router-mac");
        drops_arrived(&mut two, &of(Mac::BROADCAST).payload(0x88b5, &[0; 46]), "router-mac");
        let group = of(Mac([1, 0, 0x5e, 0, 0, 5])).ipv4(A.3, [224, 0, 0, 5]).udp(1, 2, b"x");
        drops_arrived(&mut two, &group, "route-group");
        let tagged = of(B.1).vlan(7).ipv4(A.3, B.3).udp(1, 2, b"x");
        drops_arrived(&mut two, &tagged, "router-mac");
        let mut wrong = between(1, A, B, udp((1, 2)));
        wrong[24] ^= 1;
        drops_arrived(&mut two, &wrong, "ip-checksum");
        // ARP, also of the router itself.
        let ask = of(Mac::BROADCAST).arp_request([0; 4], B.3);
        let claim = of(Mac::BROADCAST).arp_request(GATEWAYS[1], B.3);
        // A question of a router, which its guest does not hear: it came a moment ago.
        drops_arrived(&mut two, &ask, "no-receiver");
        drops_arrived(&mut two, &claim, "router-mac");
        assert_eq!(two.host.learnt(), 0, "nobody learns a router's address");
    }
}

/// A host that has no router takes what others routed, and leaves it as it came.
#[test]
fn a_host_without_routers_takes_what_others_routed() {
    let mut two = host(2, &[B], false);
    two.admit("10.0.0.0/8");
    two.host.moved();
    let frame = between(1, A, B, udp((1, 2)));
    let got = two.gets(&[outer((1, 2), 50, &frame)]);
    assert_eq!(got, BTreeMap::from([("b".to_owned(), vec![frame])]));
    assert_eq!(two.drops_counted(), []);
    // The same packet without a router is another conversation.
    assert_eq!(two.host.count_sessions().unwrap(), 1);
    let switched = build::ethernet(A.1, B.1).ipv4(A.3, B.3).udp(1, 2, b"x");
    assert_eq!(two.gets(&[outer((1, 2), 50, &switched)]).len(), 1);
    assert_eq!(two.host.count_sessions().unwrap(), 2);
}

/// A network without vnics here is here as long as a router of this host leads to it.
#[test]
fn a_network_is_here_while_a_router_joins_it() {
    let mut one = host(1, &[A], true);
    let stray = outer((2, 1), 50, &build::ethernet(B.1, C.1).payload(0x88b5, &[0; 46]));
    assert_eq!(one.gets(std::slice::from_ref(&stray)), BTreeMap::new());
    assert_eq!(one.drops_counted(), [("uplink.drop.unknown-vni".to_owned(), 1)]);
    one.join();
    one.neighbour(B, Some(2));
    one.reaches(2);
    one.host.moved();
    let [sent, _] = routed(A, B, udp((1, 2)));
    assert_eq!(one.leaves(A, &sent).len(), 1);
    for change in [router("r", &[42]), router("r", &[42, 50])] {
        one.host.change_routing(change);
    }
    assert_eq!(one.leaves(A, &sent).len(), 1);
    // A vnic that comes and goes changes nothing.
    one.host.vnic(D.0, D.1, 50, &policy(D.3, true)).unwrap();
    one.host.settle();
    one.host.remove(D.0);
    assert_eq!(one.leaves(A, &sent).len(), 1);
    one.host.change_routing(router("r", &[42]));
    one.host.moved();
    assert_eq!(one.gets(&[stray]), BTreeMap::new());
    assert_eq!(one.drops_counted(), [("uplink.drop.unknown-vni".to_owned(), 1)]);
    one.refuses(A, &sent, "no-route", (3, 0, 0));
}

/// A segment of more bytes than one frame has is cut on the way into the tunnel, with the header
/// that the router wrote.
#[test]
fn segments_leave_with_the_header_of_the_router() {
    let (mut one, mut two) = apart(true);
    one.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
    let payload: Vec<u8> = (0..2000u32).map(|n| n as u8).collect();
    let tcp = Tcp { sequence: 100, ..Tcp::new(4000, 80, ACK) };
    let [mut sent, _] = routed(A, B, |ip| ip.tcp(&tcp, &payload));
    let pseudo = Sum::pseudo_v4(A.3.into(), B.3.into(), 6, 20 + 2000);
    sent[50..52].copy_from_slice(&pseudo.fold().to_be_bytes());
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::default()
    };
    one.host.send("a", &sent, header).unwrap();
    let left = one.host.left().unwrap();
    assert_eq!(left.len(), 2);
    let mut got = Vec::new();
    for frame in &left {
        let inner = &frame[INNER..];
        assert_eq!((&inner[..6], &inner[6..12], inner[22]), (&B.1.0[..], &router_of(1).0[..], 63));
        assert!(Sum::of(&inner[14..34]).is_valid());
        got.extend_from_slice(&inner[54..]);
    }
    assert_eq!(got, payload);
    let arrived = two.gets(&left);
    assert!(arrived["b"].iter().all(|frame| frame[6..12] == gateway().0));
}

/// A router that is not there any more leads nobody in, unless the network is not declared at all.
#[test]
fn a_detached_router_takes_nothing_of_other_hosts() {
    let (_, mut two) = apart(true);
    two.host.change_routing(router("r", &[42]));
    drops_arrived(&mut two, &between(1, A, B, udp((1, 2))), "foreign-source");
}

/// A machine that is not here any more: others of its network do not hear what was for it.
#[test]
fn what_another_host_routed_is_not_flooded() {
    let listener = ("e", Mac([2, 0, 0, 0, 0, 0xe]), 50, [10, 1, 0, 99]);
    for joined in [false, true] {
        let mut two = host(2, &[listener], true);
        if joined {
            two.join();
        }
        drops_arrived(&mut two, &between(1, A, B, udp((1, 2))), "no-receiver");
        // As a switch does it, without a router.
        let switched = build::ethernet(C.1, B.1).payload(0x88b5, &[0; 46]);
        assert_eq!(two.gets(&[outer((1, 2), 50, &switched)]).len(), 1);
    }
}

/// Another host cannot know whose an address is here.
#[test]
fn nobody_speaks_as_a_neighbour_to_another_host() {
    let (mut one, _) = apart(false);
    one.host.vnic(C.0, C.1, C.2, &policy(C.3, true)).unwrap();
    one.host.settle();
    one.host.moved();
    let [mut sent, _] = routed(A, B, udp((1, 2)));
    sent[6..12].copy_from_slice(&C.1.0);
    one.drops(C, &sent, "ip-claimed");
    assert!(one.host.left().unwrap().is_empty());
    let [own, _] = routed(C, B, udp((1, 2)));
    assert_eq!(one.leaves(C, &own).len(), 1);
    // A router of its own may.
    one.host.remove(C.0);
    let forwards = butterfly_datapath::VnicPolicy { forwards: true, ..policy(C.3, true) };
    one.host.vnic(C.0, C.1, C.2, &forwards).unwrap();
    one.host.settle();
    assert_eq!(one.leaves(C, &sent).len(), 1);
}

/// All hosts may have one list, in which they are themselves. A host of another family than the
/// tunnel's is none.
#[test]
fn a_neighbour_of_a_host_that_cannot_be_is_not_reached() {
    let (mut one, _) = apart(true);
    let [sent, _] = routed(A, B, udp((1, 2)));
    one.neighbour(B, Some(1));
    one.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
    assert!(one.host.set_neighbour(endpoint(1), link(1)).is_err(), "it is no peer of its own");
    let mac = butterfly_model::Mac::parse(&B.1.to_string()).unwrap();
    let far = Some("fd00::2".parse().unwrap());
    let neighbour = Neighbour::new(vni(50), B.3.into(), mac, far).unwrap();
    one.host.change_routing(RoutingChange::DeclareNeighbour(neighbour));
    one.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
    one.neighbour(B, Some(2));
    one.reaches(2);
    assert_eq!(one.leaves(A, &sent).len(), 1);
}

/// Fragments that somebody switches are none of a packet that a router passed on, whatever they
/// say.
#[test]
fn fragments_of_both_ways_are_apart() {
    let (_, mut two) = apart(false);
    let piece = |ip: Ip, byte: u8| {
        let payload = [&[0, 1, 0, 2, 0, 72, 0, 0][..], &[byte; 64]].concat();
        ip.fragment(7, 0, true).payload(17, &payload)
    };
    let switched = piece(build::ethernet(C.1, B.1).ipv4(A.3, B.3), 1);
    assert_eq!(two.gets(&[outer((1, 2), 50, &switched)]).len(), 1);
    let frame = between(1, A, B, |ip| piece(ip, 2));
    let got = two.gets(&[outer((1, 2), 50, &frame)]);
    assert_eq!(got.len(), 1, "{:?}", two.drops_counted());
    // And the end of each, of which another one has no beginning.
    let last = |ip: Ip| ip.fragment(7, 72, false).payload(17, &[3; 8]);
    let frame = between(1, A, B, last);
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]).len(), 1);
    let switched = last(build::ethernet(C.1, B.1).ipv4(A.3, B.3));
    assert_eq!(two.gets(&[outer((1, 2), 50, &switched)]).len(), 1);
    two.host.moved();
    assert!(two.gets(&[outer((1, 2), 50, &switched)]).is_empty());
}

/// A later fragment of another host waits for its first one, and is still of that host then.
#[test]
fn fragments_that_come_early_wait_for_their_first() {
    let (_, mut two) = apart(false);
    let payload = [&[0, 1, 0, 2, 0, 72, 0, 0][..], &[7; 64]].concat();
    let first = |ip: Ip| ip.fragment(7, 0, true).payload(17, &payload);
    let last = |ip: Ip| ip.fragment(7, 72, false).payload(17, &[3; 8]);
    let frames: Vec<Vec<u8>> = [between(1, A, B, last), between(1, A, B, first)]
        .iter()
        .map(|frame| outer((1, 2), 50, frame))
        .collect();
    two.host.arrive_together(&frames).unwrap();
    let got = two.gets(&[]);
    assert_eq!(got.get("b").map(Vec::len), Some(2), "{:?}", two.drops_counted());
    assert!(got["b"].iter().all(|frame| frame[6..12] == gateway().0));
    assert_eq!(two.drops_counted(), []);
}
