//! Machines that nobody declared: asked for by ARP and neighbour discovery.

use std::collections::BTreeMap;

use butterfly_datapath::{Mac, SoughtState, VnicPolicy};
use butterfly_packet::{arp, build};
use butterfly_vhost::net::NetHeader;

use crate::hosts::{between, endpoint, host, outer, router_of};
use crate::net::*;

/// A machine behind [`OPEN`], which bypasses filters and has no declared address.
const X: Machine = ("open", Mac([2, 0, 0, 0, 0, 0xe]), 50, [10, 1, 0, 20]);
/// The router address of a host without a tunnel.
const OWN: Mac = Mac([0xb2, 0xf1, 0, 0, 0, 0]);

type Got = BTreeMap<String, Vec<Vec<u8>>>;

impl Net {
    /// Frames that machines got since the last look.
    fn got(&mut self) -> Got {
        let received = self.host.received().unwrap();
        let frames = |all: Vec<(NetHeader, Vec<u8>)>| all.into_iter().map(|(_, frame)| frame);
        received.into_iter().map(|(id, all)| (id, frames(all).collect())).collect()
    }

    /// Has due questions sent. Returns what machines got.
    fn seeks(&mut self) -> Got {
        self.host.seek();
        self.got()
    }

    /// Lets a second pass, and has due questions sent.
    fn second(&mut self) -> Got {
        self.host.pass(1);
        self.seeks()
    }

    fn states(&self) -> Vec<(String, SoughtState)> {
        self.host.sought().into_iter().map(|it| (it.address.to_string(), it.state)).collect()
    }
}

/// [`A`] and its router, and in the other network a vnic that may have any address. Its guest runs
/// for long.
fn net() -> Net {
    let mut net = Net::new(&[A, B], false);
    net.admit("10.0.0.0/8");
    let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    net.host.vnic(X.0, X.1, X.2, &open).unwrap();
    net.host.begin_seeking();
    net.host.settle();
    net.host.pass(20);
    net.got();
    net.host.moved();
    net
}

fn one(id: &str, frame: Vec<u8>) -> Got {
    BTreeMap::from([(id.to_owned(), vec![frame])])
}

/// The question for [`X`]'s address.
fn question(to: Mac) -> Vec<u8> {
    let mut frame =
        build::ethernet(OWN, to).arp(arp::REQUEST, (OWN, [0; 4].into()), (Mac::ZERO, X.3.into()));
    frame.resize(60, 0);
    frame
}

/// The answer of a machine with this MAC address.
fn answer(mac: Mac) -> Vec<u8> {
    build::ethernet(mac, OWN).arp(arp::REPLY, (mac, X.3.into()), (OWN, [0; 4].into()))
}

fn udp(port: u16) -> impl Fn(build::Ip) -> Vec<u8> {
    move |ip| ip.udp(1000, port, b"x")
}

/// The packet waits for the answer, and all that follow go by it.
#[test]
fn a_machine_that_answers_is_found() {
    let mut net = net();
    let [sent, arrives] = routed(A, X, udp(53));
    assert_eq!(net.send(A, &sent), Got::new());
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Asked)]);
    assert_eq!(net.send(X, &answer(X.1)), Got::new());
    assert_eq!(net.seeks(), one("open", arrives));
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Found)]);
    for _ in 0..3 {
        let [sent, arrives] = routed(A, X, udp(53));
        net.passes(A, &sent, X, &arrives);
    }
    assert_eq!(net.seeks(), Got::new());
}

/// Three questions, a second apart; then the sender is told, and for five seconds nobody is asked.
#[test]
fn who_is_silent_is_asked_three_times() {
    let mut net = net();
    let [sent, _] = routed(A, X, udp(53));
    assert_eq!(net.send(A, &sent), Got::new());
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    assert_eq!(net.seeks(), Got::new());
    for _ in 0..2 {
        assert_eq!(net.second(), one("open", question(Mac::BROADCAST)));
    }
    net.host.moved();
    let told = net.second();
    assert_eq!(told.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!((told["a"].len(), &told["a"][0][34..36]), (1, &[3, 1][..]));
    net.counts_one(A, "next-hop-unknown");
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Silent)]);
    for _ in 0..4 {
        net.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
        assert_eq!(net.second(), Got::new());
    }
    // Then again.
    net.second();
    assert_eq!(net.send(A, &sent), Got::new());
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
}

/// Answers count if somebody is asked, once, from whom they name.
#[test]
fn forged_answers_do_not_count() {
    let mut net = net();
    let [sent, arrives] = routed(A, X, udp(53));
    let other = Mac([2, 0, 0, 0, 0, 0x66]);
    // Nobody asked.
    assert_eq!(net.send(X, &answer(X.1)), Got::new());
    assert_eq!(net.states(), []);
    net.send(A, &sent);
    // The question was not sent yet.
    net.send(X, &answer(X.1));
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    let reply = |mac: Mac, sender, target: (Mac, [u8; 4])| {
        build::ethernet(mac, OWN).arp(arp::REPLY, sender, (target.0, target.1.into()))
    };
    let ours = (OWN, [0; 4]);
    let group = Mac([3, 0, 0, 0, 0, 1]);
    for wrong in [
        reply(X.1, (other, X.3.into()), ours), // of somebody else
        reply(other, (X.1, X.3.into()), ours),
        reply(X.1, (X.1, [10, 1, 0, 21].into()), ours), // about another address
        reply(X.1, (X.1, [10, 0, 0, 20].into()), ours),
        reply(X.1, (X.1, X.3.into()), (X.1, [0; 4])), // to another
        reply(X.1, (X.1, X.3.into()), (OWN, [10, 1, 0, 1])),
        reply(group, (group, X.3.into()), ours), // of no station
        reply(Mac::ZERO, (Mac::ZERO, X.3.into()), ours),
        build::ethernet(X.1, OWN).vlan(5).arp_reply(X.3, [0; 4]),
        build::ethernet(X.1, OWN).arp_request(X.3, [0; 4]),
        build::ethernet(X.1, OWN).arp_request(X.3, X.3),
        build::ethernet(X.1, Mac::BROADCAST).arp_reply(X.3, X.3),
    ] {
        net.host.send(X.0, &wrong, NetHeader::default()).unwrap();
        net.seeks();
        assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Asked)], "{wrong:x?}");
    }
    net.host.moved();
    // A router has no such answer to give, and a filtered vnic has what is declared.
    for (from, frame, reason) in [
        (X, reply(gateway(), (gateway(), X.3.into()), ours), "router-mac"),
        (X, reply(X.1, (X.1, GATEWAYS[1].into()), ours), "gateway-claimed"),
        (B, reply(B.1, (B.1, X.3.into()), ours), "spoofed-arp"),
        (X, reply(X.1, (X.1, B.3.into()), ours), "ip-claimed"),
    ] {
        net.host.send(from.0, &frame, NetHeader::default()).unwrap();
        net.seeks();
        assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Asked)], "{frame:x?}");
        net.counts_one(from, reason);
    }
    // The first one that is right counts, and no later one.
    net.send(X, &answer(X.1));
    net.drops(X, &answer(other), "no-answer");
    assert_eq!(net.seeks(), one("open", arrives.clone()));
    net.drops(X, &answer(other), "no-answer");
    net.seeks();
    net.passes(A, &sent, X, &arrives);
}

fn probe(address: [u8; 4]) -> Vec<u8> {
    build::ethernet(X.1, Mac::BROADCAST).arp_request([0; 4], address)
}

/// A guest that may be probing for its own address hears no question: it would take it for a
/// conflict.
#[test]
fn nobody_is_asked_within_ten_seconds_of_an_attach_or_a_probe() {
    let mut net = net();
    let [sent, _] = routed(A, X, udp(53));
    for (passed, is_heard) in [(9, false), (10, true)] {
        net.host.send(X.0, &probe(X.3), NetHeader::default()).unwrap();
        // Others in between, which the guest may have, too.
        for last in 60..63 {
            net.host.send(X.0, &probe([10, 1, 0, last]), NetHeader::default()).unwrap();
        }
        net.got();
        net.host.pass(passed);
        net.send(A, &sent);
        assert_eq!(net.seeks().contains_key("open"), is_heard, "{passed}");
        for _ in 0..20 {
            net.second();
        }
    }
    for (passed, is_heard) in [(9, false), (10, true)] {
        let guest = net.host.detach("open").unwrap();
        net.host.go_on("open", guest).unwrap();
        net.host.settle();
        net.host.pass(passed);
        net.send(A, &sent);
        assert_eq!(net.seeks().contains_key("open"), is_heard, "{passed}");
        for _ in 0..20 {
            net.second();
        }
    }
}

/// A guest that probes for another address, or by neighbour discovery, takes no question by ARP
/// for a conflict. Nor does one that says that it has the address.
#[test]
fn a_probe_for_another_address_keeps_no_question_away() {
    let mut net = net();
    let [sent, _] = routed(A, X, udp(53));
    let target = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    let other = build::ethernet(X.1, Mac::BROADCAST)
        .ipv6([0; 8], [0xff02, 0, 0, 0, 0, 1, 0xff00, 7])
        .ttl(255)
        .icmp(135, 0, 0, &target);
    for frame in
        [probe([10, 1, 0, 77]), other, build::ethernet(X.1, Mac::BROADCAST).arp_request(X.3, X.3)]
    {
        net.host.send(X.0, &frame, NetHeader::default()).unwrap();
        net.got();
        net.send(A, &sent);
        assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
        for _ in 0..20 {
            net.second();
        }
    }
}

/// On a host without routers, too: the routers of others ask there.
#[test]
fn a_host_without_routers_notes_probes() {
    let mut two = host(2, &[], false);
    two_has(&mut two, false, &VnicPolicy { bypass: true, ..VnicPolicy::default() });
    two.host.settle();
    two.host.pass(20);
    two.got();
    let mut asked = question(Mac::BROADCAST);
    asked[6..12].copy_from_slice(&router_of(1).0);
    asked[22..28].copy_from_slice(&router_of(1).0);
    let asked = [outer((1, 2), 50, &asked)];
    assert_eq!(two.gets(&asked).keys().collect::<Vec<_>>(), ["open"]);
    two.host.send("open", &probe(X.3), NetHeader::default()).unwrap();
    two.got();
    assert_eq!(two.gets(&asked), Got::new());
    two.host.pass(9);
    assert_eq!(two.gets(&asked), Got::new());
    two.host.pass(1);
    assert_eq!(two.gets(&asked).keys().collect::<Vec<_>>(), ["open"]);
}

/// A machine that was found, and whose guest may be probing now, is not asked, and stays.
#[test]
fn a_machine_that_may_not_be_asked_stays_found() {
    let mut net = net();
    let [sent, arrives] = routed(A, X, udp(53));
    net.send(A, &sent);
    net.seeks();
    net.send(X, &answer(X.1));
    net.seeks();
    net.host.pass(58);
    net.passes(A, &sent, X, &arrives);
    let guest = net.host.detach("open").unwrap();
    net.host.go_on("open", guest).unwrap();
    net.host.settle();
    for second in 0..9 {
        assert_eq!(net.second(), Got::new(), "{second}");
        net.passes(A, &sent, X, &arrives);
    }
    assert_eq!(net.second(), one("open", question(X.1)));
    net.send(X, &answer(X.1));
    net.seeks();
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Found)]);
}

/// A vnic whose machine does not run is asked nothing, and is found when it runs.
#[test]
fn a_vnic_that_does_not_run_is_asked_later() {
    let mut net = net();
    let [sent, arrives] = routed(A, X, udp(53));
    let guest = net.host.detach("open").unwrap();
    net.host.settle();
    net.send(A, &sent);
    for _ in 0..4 {
        assert!(!net.second().contains_key("open"));
    }
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Silent)]);
    net.host.go_on("open", guest).unwrap();
    net.host.settle();
    net.host.pass(12);
    net.seeks();
    net.send(A, &sent);
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    net.send(X, &answer(X.1));
    assert_eq!(net.seeks(), one("open", arrives));
}

/// An answer whose place finds no room is no way: the address stays asked for.
#[test]
fn a_machine_without_a_place_is_not_found() {
    let mut net = net();
    let [sent, _] = routed(A, X, udp(53));
    net.send(A, &sent);
    net.seeks();
    let mac = |n: u32| Mac([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
    let mut n = 0;
    loop {
        let before = net.host.learnt();
        let hello = build::ethernet(mac(n), X.1).payload(0x88b5, &[0; 46]);
        net.host.send(X.0, &hello, NetHeader::default()).unwrap();
        n += 1;
        if net.host.learnt() == before {
            break;
        }
    }
    net.got();
    net.host.moved();
    net.drops(X, &answer(mac(n)), "next-hop-limit");
    net.seeks();
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Asked)]);
}

/// 256 questions a second, in a network. Others come in the next second, before any is asked again.
#[test]
fn questions_of_a_network_have_a_pace() {
    let mut net = net();
    net.host.change_routing(network(50, "10.1.0.0/16", "10.1.0.1", None));
    for n in 0..5u8 {
        let id = ["s0", "s1", "s2", "s3", "s4"][usize::from(n)];
        let from: Machine = (id, Mac([2, 2, 0, 0, 0, n]), 42, [10, 0, 0, 100 + n]);
        net.host.vnic(from.0, from.1, from.2, &policy(from.3, true)).unwrap();
        net.host.settle();
        for last in 0..64 {
            let [sent, _] = routed(from, ("", Mac::ZERO, 50, [10, 1, 1 + n, last]), udp(53));
            net.host.send(from.0, &sent, NetHeader::default()).unwrap();
        }
    }
    net.got();
    assert_eq!(net.states().len(), 5 * 64);
    net.host.moved();
    let asked = |got: Got| -> std::collections::BTreeSet<Vec<u8>> {
        got.get("open").into_iter().flatten().map(|frame| frame[38..42].to_vec()).collect()
    };
    let first = asked(net.seeks());
    assert_eq!(first.len(), 256);
    assert_eq!(net.seeks(), Got::new());
    let moved = net.host.moved();
    assert!(!moved.keys().any(|name| name.starts_with("open.drop")), "{moved:?}");
    let second = asked(net.second());
    assert_eq!(second.len(), 256);
    assert_eq!(first.union(&second).count(), 5 * 64);
}

/// A sender with fewer packets takes the newest place of the one with most.
#[test]
fn a_third_sender_finds_a_place() {
    let mut net = net();
    let third: Machine = ("third", Mac([2, 0, 0, 0, 0, 0x13]), 42, [10, 0, 0, 0x13]);
    for it in [C, third] {
        net.host.vnic(it.0, it.1, it.2, &policy(it.3, true)).unwrap();
    }
    net.host.settle();
    net.host.moved();
    for (from, many) in [(A, 8), (C, 8), (third, 1)] {
        for port in 0..many {
            let [sent, _] = routed(from, X, udp(100 + port));
            net.send(from, &sent);
        }
    }
    let moved = net.host.moved();
    let drops: Vec<_> = moved.iter().filter(|(name, _)| name.contains(".drop.")).collect();
    assert_eq!(drops.iter().map(|(_, count)| **count).sum::<u64>(), 1, "{moved:?}");
    assert_eq!(moved.get("third.drop.next-hop-limit"), None);
    net.seeks();
    net.send(X, &answer(X.1));
    let got = net.seeks().remove("open").unwrap();
    let [_, arrives] = routed(third, X, udp(100));
    assert_eq!(got.len(), 16);
    assert!(got.contains(&arrives));
}

/// Declared addresses are never asked for, and count before what was found.
#[test]
fn what_is_declared_is_not_overridden() {
    let mut net = net();
    // A vnic whose machine does not run.
    net.host.detach("b");
    net.host.settle();
    let [sent, _] = routed(A, B, udp(53));
    net.host.moved();
    let _ = net.seeks();
    // Another host may have it: nobody says so.
    let quiet = |net: &mut Net, sent: &[u8]| {
        net.send(A, sent);
        net.counts_one(A, "next-hop-unknown");
        assert_eq!((net.seeks(), net.states()), (Got::new(), vec![]));
    };
    net.host.depart("b").ok();
    net.host.moved();
    quiet(&mut net, &sent);
    // A gateway of another router, the network's own addresses.
    for last in [0, 255] {
        let [sent, _] = routed(A, ("", Mac::ZERO, 50, [10, 1, 0, last]), udp(53));
        net.send(A, &sent);
        net.counts_one(A, "route-group");
        assert_eq!((net.seeks(), net.states()), (Got::new(), vec![]));
    }
    // A neighbour, also one that is declared when it was found.
    let [sent, arrives] = routed(A, X, udp(53));
    net.send(A, &sent);
    net.seeks();
    net.send(X, &answer(X.1));
    assert_eq!(net.seeks(), one("open", arrives));
    net.neighbour(("", Mac([2, 0, 0, 0, 0, 0x77]), X.2, X.3), None);
    net.host.moved();
    net.send(A, &sent);
    net.counts_one(A, "next-hop-unknown");
    net.second();
    assert_eq!(net.states(), []);
}

/// A machine that is used is asked again, itself. One that is not, or is silent, is forgotten.
#[test]
fn what_was_found_is_asked_again() {
    let mut net = net();
    let [sent, arrives] = routed(A, X, udp(53));
    net.send(A, &sent);
    net.seeks();
    net.send(X, &answer(X.1));
    net.seeks();
    net.host.pass(40);
    net.passes(A, &sent, X, &arrives);
    net.host.pass(21);
    assert_eq!(net.seeks(), Got::new());
    assert_eq!(net.seeks(), one("open", question(X.1)));
    net.passes(A, &sent, X, &arrives);
    // Another one may not answer what that one is asked.
    let other = Mac([2, 0, 0, 0, 0, 0x66]);
    net.drops(X, &answer(other), "no-answer");
    net.seeks();
    net.passes(A, &sent, X, &arrives);
    // It is another one by now: three questions stay without an answer, then all are asked.
    for _ in 0..2 {
        assert_eq!(net.second(), one("open", question(X.1)));
    }
    assert_eq!(net.second(), Got::new());
    net.send(A, &sent);
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    net.send(X, &answer(other));
    let [_, arrives] = routed(A, (X.0, other, X.2, X.3), udp(53));
    assert_eq!(net.seeks(), one("open", arrives.clone()));
    net.passes(A, &sent, X, &arrives);
    // Silent: three questions, then packets ask anew.
    net.host.pass(50);
    net.passes(A, &sent, X, &arrives);
    net.host.pass(11);
    net.seeks();
    assert_eq!(net.seeks(), one("open", question(other)));
    for _ in 0..2 {
        assert_eq!(net.second(), one("open", question(other)));
    }
    assert_eq!(net.second(), Got::new());
    assert_eq!(net.states(), []);
    net.send(A, &sent);
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    net.send(X, &answer(X.1));
    net.seeks();
    // Nobody needs it.
    net.host.pass(61);
    assert_eq!(net.seeks(), Got::new());
    assert_eq!(net.states(), []);
}

/// A scan of a network costs the machine that scans. Others find their machines.
#[test]
fn a_scan_costs_who_scans() {
    let mut net = net();
    net.host.vnic(C.0, C.1, C.2, &policy(C.3, false)).unwrap();
    net.host.settle();
    net.host.moved();
    for round in 0..4u8 {
        for last in 30..200 {
            let to = ("", Mac::ZERO, 50, [10, 1, 0, last]);
            let [sent, _] = routed(A, to, udp(53));
            net.host.send(A.0, &sent, NetHeader::default()).unwrap();
        }
        net.got();
        let drops = net.host.moved();
        assert!(drops["a.drop.next-hop-limit"] >= 100, "{round}: {drops:?}");
        let is_asked = |(_, state): &(String, SoughtState)| *state == SoughtState::Asked;
        assert_eq!(net.states().into_iter().filter(is_asked).count(), 64);
        let [sent, arrives] = routed(C, (X.0, X.1, 50, [10, 1, 0, 201 + round]), udp(53));
        net.send(C, &sent);
        let questions = net.seeks();
        assert!(questions["open"].len() <= 65, "{}", questions["open"].len());
        let mut reply = answer(X.1);
        reply[31] = 201 + round;
        net.send(X, &reply);
        assert_eq!(net.seeks(), one("open", arrives));
        net.host.moved();
    }
}

/// Eight packets of a sender wait; in the order in which they came.
#[test]
fn few_packets_wait() {
    let mut net = net();
    for port in 0..20 {
        let [sent, _] = routed(A, X, udp(100 + port));
        net.send(A, &sent);
    }
    let moved = net.host.moved();
    assert_eq!(moved["a.drop.next-hop-limit"], 12, "{moved:?}");
    net.seeks();
    net.send(X, &answer(X.1));
    let got = net.seeks();
    let expected: Vec<_> = (0..8).map(|port| routed(A, X, udp(100 + port))[1].clone()).collect();
    assert_eq!(got, BTreeMap::from([("open".to_owned(), expected)]));
}

/// A checksum that the guest left to its card is made before the packet waits.
#[test]
fn a_packet_waits_with_its_checksum() {
    let mut net = net();
    let [whole, arrives] = routed(A, X, |ip| ip.udp(1000, 53, b"some text"));
    let mut partial = whole.clone();
    let pseudo = butterfly_packet::checksum::Sum::pseudo_v4(A.3.into(), X.3.into(), 17, 17);
    partial[40..42].copy_from_slice(&pseudo.fold().to_be_bytes());
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..NetHeader::default()
    };
    net.host.send(A.0, &partial, header).unwrap();
    assert_eq!(net.got(), Got::new());
    net.seeks();
    net.send(X, &answer(X.1));
    assert_eq!(net.seeks(), one("open", arrives));
}

/// A machine on another host, which that host may or may not know by declaration.
#[test]
fn machines_of_other_hosts_are_asked_for() {
    for declared in [false, true] {
        let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        let (mut one, mut two) = (host(1, &[A], false), host(2, &[], false));
        let id = two_has(&mut two, declared, &open);
        for (net, other) in [(&mut one, 2), (&mut two, 1)] {
            net.join();
            net.admit("10.0.0.0/8");
            net.host.set_peers(vec![endpoint(other)], BTreeMap::new()).unwrap();
            net.reaches(other);
            net.host.begin_seeking();
            net.host.pass(20);
            net.host.settle();
            net.host.left().unwrap();
            net.got();
            net.host.moved();
        }
        let far = (id, X.1, X.2, X.3);
        let [sent, _] = routed(A, far, udp(53));
        assert_eq!(one.leaves(A, &sent), Vec::<Vec<u8>>::new(), "{declared}");
        one.host.seek();
        let asked = one.host.left().unwrap();
        let mut expected = question(Mac::BROADCAST);
        expected[6..12].copy_from_slice(&router_of(1).0);
        expected[22..28].copy_from_slice(&router_of(1).0);
        assert_eq!(asked.iter().map(|it| &it[50..]).collect::<Vec<_>>(), [&expected[..]]);
        // Only who may have the address hears it.
        assert_eq!(two.gets(&asked), one_of(id, expected), "{declared}");
        assert_eq!(two.drops_counted(), []);
        let reply = build::ethernet(X.1, router_of(1)).arp(
            arp::REPLY,
            (X.1, X.3.into()),
            (router_of(1), [0; 4].into()),
        );
        // Nothing else goes to the router of the other host.
        two.host.moved();
        let to_router =
            |ttl: u8| build::ethernet(X.1, router_of(1)).ipv4(X.3, A.3).ttl(ttl).udp(1, 2, b"x");
        for other in [to_router(64), to_router(255)] {
            assert_eq!(two.leaves(far, &other), Vec::<Vec<u8>>::new());
            assert_eq!(two.drops_counted(), [(format!("{id}.drop.gateway-not-here"), 1)]);
        }
        let answered = two.leaves(far, &reply);
        assert_eq!(answered.iter().map(|it| &it[50..]).collect::<Vec<_>>(), [&reply[..]]);
        // From another host it is another machine's: of the first one that answers.
        assert_eq!(one.gets(&answered), Got::new());
        one.host.seek();
        let left = one.host.left().unwrap();
        assert_eq!(left.len(), 1, "{declared}");
        assert_eq!(left[0][50..], between(1, A, far, udp(53)));
        assert_eq!(left[0][30..34], [192, 168, 0, 2]);
        assert_eq!(one.drops_counted(), []);
        // It is known, and asked by unicast when it is old.
        let [sent, _] = routed(A, far, udp(54));
        assert_eq!(one.leaves(A, &sent).len(), 1);
        one.host.pass(40);
        one.leaves(A, &sent);
        one.host.pass(21);
        one.host.seek();
        one.host.seek();
        let again = one.host.left().unwrap();
        assert_eq!(again.iter().map(|it| &it[50..56]).collect::<Vec<_>>(), [&X.1.0[..]]);
        assert_eq!(two.gets(&again)[id].len(), 1);
    }
}

fn two_has(two: &mut Net, declared: bool, open: &VnicPolicy) -> &'static str {
    two.host.vnic("open", Mac([2, 0, 0, 0, 0, 0x31]), 50, open).unwrap();
    two.host
        .vnic("filtered", Mac([2, 0, 0, 0, 0, 0x32]), 50, &policy([10, 1, 0, 32], false))
        .unwrap();
    if declared {
        two.host.vnic("x", X.1, X.2, &policy(X.3, false)).unwrap();
        return "x";
    }
    "open"
}

fn one_of(id: &str, frame: Vec<u8>) -> Got {
    one(id, frame)
}

/// Answers from the wire count under the same conditions, and for undeclared addresses.
#[test]
fn forged_answers_of_other_hosts_do_not_count() {
    let mut net = host(1, &[A], false);
    net.join();
    net.admit("10.0.0.0/8");
    net.host.set_peers(vec![endpoint(2)], BTreeMap::new()).unwrap();
    net.reaches(2);
    net.host.begin_seeking();
    net.host.pass(20);
    net.host.settle();
    net.neighbour(("", B.1, 50, B.3), Some(2));
    let own = router_of(1);
    let reply = |mac: Mac, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])| {
        build::ethernet(mac, own).arp(
            arp::REPLY,
            (sender.0, sender.1.into()),
            (target.0, target.1.into()),
        )
    };
    let right = reply(X.1, (X.1, X.3), (own, [0; 4]));
    net.got();
    net.host.left().unwrap();
    let drops = |net: &mut Net, frame: &[u8], reason: &str| {
        net.host.moved();
        assert_eq!(net.gets(&[outer((2, 1), 50, frame)]), Got::new());
        assert_eq!(net.drops_counted(), [(format!("vni-50.drop.{reason}"), 1)], "{frame:x?}");
    };
    drops(&mut net, &right, "no-answer"); // nobody asked
    let [sent, _] = routed(A, X, udp(53));
    net.leaves(A, &sent);
    net.host.seek();
    assert_eq!(net.host.left().unwrap().len(), 1);
    for wrong in [
        reply(X.1, (A.1, X.3), (own, [0; 4])),
        reply(X.1, (X.1, B.3), (own, [0; 4])), // declared
        reply(X.1, (X.1, [10, 1, 0, 21]), (own, [0; 4])),
        reply(X.1, (X.1, X.3), (own, [10, 1, 0, 9])),
        reply(X.1, (X.1, X.3), (X.1, [0; 4])),
    ] {
        drops(&mut net, &wrong, "no-answer");
        net.host.seek();
    }
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Asked)]);
    net.host.left().unwrap();
    assert_eq!(net.gets(&[outer((2, 1), 50, &right)]), Got::new());
    net.host.seek();
    assert_eq!(net.host.left().unwrap().len(), 1);
    drops(&mut net, &right, "no-answer"); // once
}

/// A machine on another host is found by neighbour discovery, and its answer alone gets there.
#[test]
fn machines_of_other_hosts_are_found_by_neighbour_discovery() {
    let (mut one, mut two) = (host(1, &[A], false), host(2, &[], false));
    let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    let id = two_has(&mut two, false, &open);
    let x = (id, X.1, X.2, X.3);
    for (net, other) in [(&mut one, 2), (&mut two, 1)] {
        net.join();
        for (vni, block, own) in
            [(42, "fd00:42::/64", "fd00:42::1"), (50, "fd00:50::/64", "fd00:50::1")]
        {
            net.host.change_routing(network(vni, block, own, None));
        }
        net.host.set_peers(vec![endpoint(other)], BTreeMap::new()).unwrap();
        net.reaches(other);
        net.host.begin_seeking();
        net.host.pass(20);
    }
    let ips = vec![A.3.into(), std::net::Ipv6Addr::from(SIX_A).into()];
    one.host.update(A.0, &VnicPolicy { ips, ..policy(A.3, true) }).unwrap();
    for net in [&mut one, &mut two] {
        net.host.settle();
        net.host.left().unwrap();
        net.got();
        net.host.moved();
    }
    let sent = build::ethernet(A.1, gateway()).ipv6(SIX_A, SIX_X).udp(1, 2, b"x");
    assert_eq!(one.leaves(A, &sent), Vec::<Vec<u8>>::new());
    one.host.seek();
    let asked = one.host.left().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(two.gets(&asked)[id].len(), 1);
    let link = std::net::Ipv6Addr::from(butterfly_link(router_of(1))).segments();
    let advertisement = |hops: u8, kind: u8| {
        build::ethernet(X.1, router_of(1)).ipv6(SIX_X, link).ttl(hops).icmp(
            kind,
            0,
            0x6000_0000,
            &about_x(2, X.1),
        )
    };
    two.host.moved();
    for wrong in [advertisement(64, 136), advertisement(255, 128)] {
        assert_eq!(two.leaves(x, &wrong), Vec::<Vec<u8>>::new());
        assert_eq!(two.drops_counted(), [(format!("{id}.drop.gateway-not-here"), 1)]);
    }
    let answered = two.leaves(x, &advertisement(255, 136));
    assert_eq!(answered.len(), 1);
    assert_eq!(one.gets(&answered), Got::new());
    one.host.seek();
    let left = one.host.left().unwrap();
    assert_eq!(left.len(), 1);
    let arrives = build::ethernet(router_of(1), X.1).ipv6(SIX_A, SIX_X).ttl(63).udp(1, 2, b"x");
    assert_eq!(left[0][50..], arrives);
}

/// Link-local address of a MAC address (RFC 4291, appendix A).
fn butterfly_link(mac: Mac) -> [u8; 16] {
    let [a, b, c, d, e, f] = mac.0;
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// Another host's question has to be from its own router address, and to be one.
#[test]
fn forged_questions_are_dropped() {
    let mut two = host(2, &[B], true);
    two.join();
    two.host.pass(20);
    two.host.settle();
    two.host.moved();
    let of = |n: u8| build::ethernet(router_of(n), Mac::BROADCAST);
    let ask = |n: u8, sender: Mac, from: [u8; 4]| {
        of(n).arp(arp::REQUEST, (sender, from.into()), (Mac::ZERO, B.3.into()))
    };
    for (frame, reason) in [
        (ask(3, router_of(3), [0; 4]), "forged-router"),
        (ask(1, A.1, [0; 4]), "router-mac"),
        (ask(1, router_of(1), [10, 1, 0, 9]), "router-mac"),
        (ask(1, router_of(1), GATEWAYS[1]), "router-mac"),
        (of(1).arp(arp::REPLY, (router_of(1), [0; 4].into()), (B.1, B.3.into())), "router-mac"),
        // Of a gateway, and of a machine that nobody here has in another vnic's place.
        (
            of(1).arp(arp::REQUEST, (router_of(1), [0; 4].into()), (Mac::ZERO, GATEWAYS[1].into())),
            "no-receiver",
        ),
    ] {
        assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]), Got::new(), "{reason}");
        assert_eq!(two.drops_counted(), [(format!("vni-50.drop.{reason}"), 1)], "{frame:x?}");
        assert_eq!(two.host.learnt(), 0, "nobody learns from it");
    }
    let frame = ask(1, router_of(1), [0; 4]);
    assert_eq!(two.gets(&[outer((1, 2), 50, &frame)]).len(), 1);
    // Nobody but that host hears what is sent to it, and from a vnic nothing is.
    let stray = build::ethernet(B.1, router_of(3)).arp_reply(B.3, [0; 4]);
    assert!(two.leaves(B, &stray).is_empty());
    assert_eq!(two.drops_counted(), [("b.drop.gateway-not-here".to_owned(), 1)]);
}

const SIX_A: [u16; 8] = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0xa];
const SIX_X: [u16; 8] = [0xfd00, 0x50, 0, 0, 0, 0, 0x12, 0x3456];
/// Link-local address of [`OWN`].
const OWN_LINK: [u16; 8] = [0xfe80, 0, 0, 0, 0xb0f1, 0x00ff, 0xfe00, 0];

/// Body of a neighbour message about [`SIX_X`], with a MAC address.
fn about_x(option: u8, mac: Mac) -> Vec<u8> {
    let target = std::net::Ipv6Addr::from(SIX_X).octets();
    [&target[..], &[option, 1], &mac.0].concat()
}

fn advertisement(mac: Mac, to: [u16; 8]) -> build::Ip {
    build::ethernet(mac, OWN).ipv6(SIX_X, to).ttl(255)
}

/// The same by neighbour discovery.
#[test]
fn a_machine_is_found_by_neighbour_discovery() {
    let mut net = net();
    for (vni, block, own) in
        [(42, "fd00:42::/64", "fd00:42::1"), (50, "fd00:50::/64", "fd00:50::1")]
    {
        net.host.change_routing(network(vni, block, own, None));
    }
    let ips = vec![A.3.into(), std::net::Ipv6Addr::from(SIX_A).into()];
    net.host.update(A.0, &VnicPolicy { ips, ..policy(A.3, false) }).unwrap();
    net.host.settle();
    net.host.moved();
    let sent = build::ethernet(A.1, gateway()).ipv6(SIX_A, SIX_X).udp(1, 2, b"x");
    let arrives = build::ethernet(gateway(), X.1).ipv6(SIX_A, SIX_X).ttl(63).udp(1, 2, b"x");
    assert_eq!(net.send(A, &sent), Got::new());
    let group = [0xff02, 0, 0, 0, 0, 1, 0xff12, 0x3456];
    let asked = build::ethernet(OWN, Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]))
        .ipv6(OWN_LINK, group)
        .ttl(255)
        .icmp(135, 0, 0, &about_x(1, OWN));
    assert_eq!(net.seeks(), one("open", asked));
    let flags = 0x6000_0000;
    let right = advertisement(X.1, OWN_LINK).icmp(136, 0, flags, &about_x(2, X.1));
    let mut bad_sum = right.clone();
    bad_sum[56] ^= 1;
    let other = Mac([2, 0, 0, 0, 0, 0x66]);
    for wrong in [
        bad_sum,
        advertisement(X.1, OWN_LINK).ttl(254).icmp(136, 0, flags, &about_x(2, X.1)),
        advertisement(X.1, OWN_LINK).icmp(136, 1, flags, &about_x(2, X.1)),
        advertisement(X.1, OWN_LINK).icmp(136, 0, flags, &about_x(1, X.1)),
        advertisement(X.1, OWN_LINK).icmp(136, 0, flags, &about_x(2, other)),
        advertisement(X.1, OWN_LINK).icmp(136, 0, flags, &about_x(2, X.1)[..16]),
        advertisement(X.1, OWN_LINK).icmp(135, 0, 0, &about_x(1, X.1)),
        advertisement(X.1, SIX_A).icmp(136, 0, flags, &about_x(2, X.1)),
        right[..right.len() - 8].to_vec(),
        build::ethernet(X.1, OWN).arp_reply([10, 1, 0, 20], [0; 4]),
    ] {
        net.host.send(X.0, &wrong, NetHeader::default()).unwrap();
        assert_eq!(net.seeks(), Got::new(), "{wrong:x?}");
        let states: Vec<_> = net.states().into_iter().map(|(_, state)| state).collect();
        assert_eq!(states, [SoughtState::Asked], "{wrong:x?}");
    }
    net.host.moved();
    assert_eq!(net.send(X, &right), Got::new());
    assert_eq!(net.seeks(), one("open", arrives.clone()));
    net.passes(A, &sent, X, &arrives);
}

/// The answer comes by another worker than the one at which the packet waits.
#[test]
fn workers_share_what_was_found() {
    let mut host = butterfly_datapath::harness::Host::with(Default::default(), None, 2).unwrap();
    let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    host.vnic(A.0, A.1, A.2, &policy(A.3, true)).unwrap();
    host.vnic(C.0, C.1, C.2, &policy(C.3, true)).unwrap();
    host.vnic(X.0, X.1, X.2, &open).unwrap();
    host.settle();
    for (id, worker) in [(A.0, 0), (C.0, 1), (X.0, 1)] {
        host.move_to(id, worker);
    }
    let mut net = Net { host };
    net.join();
    net.host.begin_seeking();
    net.host.pass(20);
    net.host.settle();
    net.got();
    let [from_a, arrives_a] = routed(A, X, udp(53));
    let [from_c, arrives_c] = routed(C, X, udp(54));
    for (from, frame) in [(A, &from_a), (C, &from_c)] {
        assert_eq!(net.send(from, frame), Got::new());
    }
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    net.send(X, &answer(X.1));
    let mut got = net.seeks();
    let mut expected = vec![arrives_a, arrives_c];
    expected.sort();
    got.values_mut().for_each(|frames| frames.sort());
    assert_eq!(got, BTreeMap::from([("open".to_owned(), expected)]));
}

/// Explanations say what is known, and what would be asked; they ask nobody.
#[test]
fn an_explanation_tells_who_would_be_asked() {
    use butterfly_datapath::{Fate, Origin, Question, Target};
    let mut net = net();
    let question_of = Question {
        from: Origin::Vnic("a".into()),
        to: Target::Address(X.3.into()),
        source: None,
        source_mac: None,
        destination_mac: None,
        protocol: 17,
        source_port: Some(1000),
        destination_port: Some(53),
        flags: None,
        icmp: None,
        length: None,
        reply: false,
    };
    let told = |net: &Net| {
        let told = net.host.explain(&question_of).unwrap();
        let steps = told.walks[0].steps.iter();
        let texts = steps.map(|step| format!("{}: {:?}", step.text, step.details));
        (told.walks[0].fate.clone(), texts.collect::<Vec<_>>().join("\n"))
    };
    for _ in 0..2 {
        let (fate, text) = told(&net);
        assert_eq!(fate, Fate::Waits);
        assert!(
            text.contains("the router of VNI 50 asks who has 10.1.0.20: nobody told"),
            "{text}"
        );
        assert_eq!((net.states(), net.seeks()), (vec![], Got::new()));
    }
    let [sent, _] = routed(A, X, udp(53));
    net.send(A, &sent);
    net.seeks();
    assert_eq!(told(&net).0, Fate::Waits);
    net.send(X, &answer(X.1));
    net.seeks();
    let (fate, text) = told(&net);
    assert_eq!(fate, Fate::Delivered("open".into()), "{text}");
    assert!(text.contains("02:00:00:00:00:0e answered for 10.1.0.20"), "{text}");
}
