//! Vnics whose machines leave for another host, in conversations that a router joins.

use std::collections::BTreeMap;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, SessionFilter, Timeouts, TunnelConfig, harness::Host,
};
use butterfly_model::{Cidr, Direction, GroupName, Rule};
use butterfly_packet::{
    build::{Ip, Tcp},
    tcp::{ACK, SYN},
};

use crate::{
    hosts::{endpoint, host},
    net::*,
};

/// A session of both networks, on a host that has a tunnel.
fn talking() -> Net {
    let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&config)).unwrap();
    for (id, mac, vni, ip) in [A, B] {
        host.vnic(id, mac, vni, &policy(ip, false)).unwrap();
    }
    let mut net = Net { host };
    net.join();
    net.host.settle();
    net.admit("10.0.0.0/8");
    for (from, to, ports) in [(A, B, (1000, 53)), (B, A, (53, 1000))] {
        let [sent, arrives] = routed(from, to, |ip| ip.udp(ports.0, ports.1, b"x"));
        assert_eq!(net.send(from, &sent)[to.0], [arrives]);
    }
    assert_eq!(net.host.count_sessions().unwrap(), 1);
    net
}

/// Two hosts with the same networks, router and neighbours. A and B run on the first one; the
/// machines of `comes` are declared on the second, where nobody runs yet.
fn cloud(comes: &[Machine]) -> (Net, Net) {
    let (one, two) = (host(1, &[A, B], false), host(2, &[], false));
    let (mut one, mut two) = (one, two);
    for (id, mac, vni, ip) in comes {
        two.host.declare(id, *mac, *vni, &policy(*ip, false)).unwrap();
    }
    for net in [&mut one, &mut two] {
        net.join();
        net.host.set_session_times(Timeouts::default(), 0);
    }
    // Only A may open anything, and only while it runs on the first host.
    for (protocol, port) in [(17, 53), (6, 80)] {
        let block = Cidr::new("10.0.0.0", 24).unwrap();
        let ports = (Some(port), Some(port));
        let rule = Rule::new(Direction::Inbound, protocol, ports, Some(block), None).unwrap();
        let name = GroupName::new("open").unwrap();
        for net in [&one, &two] {
            net.host.change_group(&name, GroupChange::AddRule(rule.clone())).unwrap();
        }
    }
    (one, two)
}

/// The frames of a conversation, by who sends them and how many went before.
fn say(from_a: bool, tcp: bool, n: u32) -> impl Fn(Ip) -> Vec<u8> {
    move |ip| {
        let (source, destination) = match (from_a, tcp) {
            (true, false) => (1000, 53),
            (false, false) => (53, 1000),
            (true, true) => (4000, 80),
            (false, true) => (80, 4000),
        };
        if !tcp {
            return ip.udp(source, destination, &[n as u8]);
        }
        let flags = match (from_a, n) {
            (true, 0) => SYN,
            (false, 0) => SYN | ACK,
            _ => ACK,
        };
        let (sequence, other) = if from_a { (100, 500) } else { (500, 100) };
        let (sequence, acknowledgement) = match (from_a, n) {
            (true, 0) => (sequence, 0),
            (_, n) => (sequence + n.min(1), other + 1),
        };
        let segment = Tcp { sequence, acknowledgement, ..Tcp::new(source, destination, flags) };
        ip.tcp(&segment, b"")
    }
}

/// Has A and B speak, on these hosts, both ways. After the first rounds B begins: nothing of A's
/// tells of a connection that goes on then.
#[track_caller]
fn both_hear(a: &mut Net, b: Option<&mut Net>, tcp: bool, n: u32) {
    let (from_a, from_b) = (routed(A, B, say(true, tcp, n)), routed(B, A, say(false, tcp, n)));
    let expected =
        |to: &str, frame: &Vec<u8>| BTreeMap::from([(to.to_owned(), vec![frame.clone()])]);
    let [sent, arrives] = from_a;
    let [answer, answered] = from_b;
    match b {
        None => {
            for b_speaks in [n > 2, n <= 2] {
                let got = if b_speaks { a.send(B, &answer) } else { a.send(A, &sent) };
                let right = if b_speaks { ("a", &answered) } else { ("b", &arrives) };
                assert_eq!(got, expected(right.0, right.1), "{:?}", a.drops_counted());
            }
        }
        Some(b) => {
            let left = b.leaves(B, &answer);
            let got = a.gets(&left);
            let drops = [a.drops_counted(), b.drops_counted()];
            assert_eq!(got, expected("a", &answered), "{drops:?}");
            let left = a.leaves(A, &sent);
            assert_eq!(b.gets(&left), expected("b", &arrives));
        }
    }
}

/// The second end of a conversation goes to another host and comes back, with its sessions. No rule
/// would let an answer in by itself.
#[test]
fn a_routed_session_goes_along() {
    for tcp in [false, true] {
        let (mut one, mut two) = cloud(&[B]);
        (0..2).for_each(|n| both_hear(&mut one, None, tcp, n));
        let moved = |from: &Net, to: &Net| {
            let exported = from.host.export_vnic("b").unwrap();
            assert_eq!((exported.sessions, exported.left_out), (1, 0));
            let imported = to.host.import_vnic(&exported.text).unwrap().unwrap();
            assert_eq!(imported.sessions.refused, BTreeMap::new());
            imported.sessions.taken
        };
        assert_eq!(moved(&one, &two), 1);
        one.neighbour(B, Some(2));
        two.neighbour(A, Some(1));
        one.reaches(2);
        two.reaches(1);
        one.host.leaves("b", Some(endpoint(2))).unwrap();
        one.host.depart("b").unwrap();
        two.host.arrives("b").unwrap();
        both_hear(&mut one, Some(&mut two), tcp, 2);
        both_hear(&mut one, Some(&mut two), tcp, 3);
        for net in [&one, &two] {
            let rows = net.host.sessions(&SessionFilter::default(), 10).1;
            let far = rows.iter().filter(|row| row.packets.iter().all(|packets| *packets > 0));
            assert!(far.count() >= 1, "{rows:?}");
        }
        // It comes back.
        moved(&two, &one);
        two.host.leaves("b", Some(endpoint(1))).unwrap();
        two.host.depart("b").unwrap();
        one.host.arrives("b").unwrap();
        both_hear(&mut one, None, tcp, 4);
        // All of it ends.
        for net in [&mut one, &mut two] {
            net.host.pass(90_000);
            net.host.remove("b");
            net.host.pass(2);
            assert_eq!(net.host.count_sessions().unwrap(), 0);
        }
    }
}

/// The first end goes: what it opened is known where it comes to, and here.
#[test]
fn the_opener_of_a_routed_session_takes_it_along() {
    for tcp in [false, true] {
        let (mut one, mut two) = cloud(&[A]);
        (0..2).for_each(|n| both_hear(&mut one, None, tcp, n));
        let exported = one.host.export_vnic("a").unwrap();
        let imported = two.host.import_vnic(&exported.text).unwrap().unwrap();
        assert_eq!((imported.sessions.taken, imported.sessions.refused), (1, BTreeMap::new()));
        one.neighbour(A, Some(2));
        two.neighbour(B, Some(1));
        one.reaches(2);
        two.reaches(1);
        one.host.leaves("a", Some(endpoint(2))).unwrap();
        one.host.depart("a").unwrap();
        two.host.arrives("a").unwrap();
        both_hear(&mut two, Some(&mut one), tcp, 2);
        both_hear(&mut two, Some(&mut one), tcp, 3);
    }
}

/// Both ends meet on one host again, which has a record of its own of each.
#[test]
fn both_ends_of_a_routed_session_meet() {
    for tcp in [false, true] {
        let (mut one, mut two) = cloud(&[A, B]);
        (0..2).for_each(|n| both_hear(&mut one, None, tcp, n));
        for (id, machine) in [("b", B), ("a", A)] {
            let exported = one.host.export_vnic(id).unwrap();
            let imported = two.host.import_vnic(&exported.text).unwrap().unwrap();
            assert_eq!(imported.sessions.refused, BTreeMap::new(), "{id}");
            one.neighbour(machine, Some(2));
            one.reaches(2);
            one.host.leaves(id, Some(endpoint(2))).unwrap();
            one.host.depart(id).unwrap();
            two.host.arrives(id).unwrap();
            if id == "b" {
                two.neighbour(A, Some(1));
                two.reaches(1);
                both_hear(&mut one, Some(&mut two), tcp, 2);
            }
        }
        both_hear(&mut two, None, tcp, 3);
        both_hear(&mut two, None, tcp, 4);
    }
}

/// A machine that left a moment ago is found where it went to, before anybody declares it there.
#[test]
fn a_machine_that_left_is_found_where_it_went() {
    let (mut one, _) = cloud(&[]);
    one.host.meets(endpoint(2), 50, Mac([2, 0xbf, 0, 0, 0, 2])).unwrap();
    one.host.leaves("b", Some(endpoint(2))).unwrap();
    let [sent, arrives] = routed(A, B, say(true, false, 0));
    one.passes(A, &sent, B, &arrives);
    one.host.depart("b").unwrap();
    let left = one.leaves(A, &sent);
    assert_eq!((left.len(), &left[0][30..34]), (1, &[192, 168, 0, 2][..]));
    assert_eq!(one.drops_counted(), []);
}

/// An import names a conversation that no router here could have passed on.
#[test]
fn a_session_without_its_router_is_refused() {
    let (mut one, two) = cloud(&[B]);
    both_hear(&mut one, None, false, 0);
    two.host.change_routing(router("r", &[50]));
    let exported = one.host.export_vnic("b").unwrap();
    let imported = two.host.import_vnic(&exported.text).unwrap().unwrap();
    let refused = BTreeMap::from([("no router here leads to its other end", 1)]);
    assert_eq!((imported.sessions.taken, imported.sessions.refused), (0, refused));
    assert_eq!(two.host.count_sessions().unwrap(), 0);
}

/// The smaller network is the one that its row names.
#[test]
fn a_routed_session_is_found_by_either_network() {
    let net = talking();
    for (vni, found) in [(42, 1), (50, 1), (51, 0)] {
        let filter = SessionFilter { vni: Some(vni), ..SessionFilter::default() };
        assert_eq!(net.host.sessions(&filter, 10).0, found, "{vni}");
    }
}
