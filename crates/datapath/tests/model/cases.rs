//! The model's own tests: each sentence of what filters do, by hand; and that the comparison
//! notices a switch that is wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use butterfly_packet::{
    Mac,
    build::{self, Tcp},
};

use crate::{
    check::{Seen, Switch, Tally, run},
    choices::Choices,
    claims::Bound,
    commands::Case,
    generate,
    policy::{Declared, Direction, Group, Peer, Rule, is_in},
    router::{Change, Routes},
    switch::{Model, Outcome, RoutedSession},
    tcp::{ACK, FIN, RST, SYN},
    world,
};

pub const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
pub const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
pub const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
pub const STATION: Mac = Mac([2, 0, 0, 0, 0, 0xee]);
pub const IP_A: [u8; 4] = [10, 0, 0, 1];
pub const IP_B: [u8; 4] = [10, 0, 0, 2];
pub const IP_C: [u8; 4] = [10, 0, 0, 3];

fn six(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)
}

pub fn vnic(mac: Mac, n: u8, groups: &[&'static str]) -> Declared {
    let ips = vec![Ipv4Addr::new(10, 0, 0, n).into(), six(n.into()).into()];
    Declared {
        mac: mac.0,
        vni: 1,
        bypass: false,
        ip_anti_spoof: true,
        forwards: false,
        shared_ip: false,
        router: false,
        ips,
        groups: groups.to_vec(),
        bound: Bound::default(),
    }
}

pub fn rule(
    direction: Direction,
    protocol: Option<u8>,
    ports: (u16, u16),
    block: &str,
    mask: u8,
) -> Rule {
    Rule { direction, protocol, ports, peer: Peer::Cidr(block.parse().unwrap(), mask) }
}

use Direction::{Inbound, Outbound};

/// Makes a model. a: filtered, without groups. b: filtered, of group "web", which has these rules.
/// c: bypasses filters. All have been there for long.
fn world(rules: Vec<Rule>) -> Model {
    let mut model = Model::new();
    model.insert("a", vnic(A, 1, &[]));
    model.insert("b", vnic(B, 2, &["web"]));
    model.insert("c", Declared { bypass: true, ..vnic(C, 3, &[]) });
    model.groups.push(Group { name: "web", members: vec![], rules });
    model.pass(1000);
    model
}

fn any() -> Rule {
    rule(Inbound, None, (0, 0), "0.0.0.0", 0)
}

/// Sends a frame with exactly one right outcome. Returns the receivers, or the drops.
#[track_caller]
fn send(model: &mut Model, from: &str, frame: &[u8]) -> String {
    let results = Choices::all(|choices| {
        let mut model = model.clone();
        let outcome = model.send(from, frame, choices);
        (model, outcome)
    });
    assert_eq!(
        results.len(),
        1,
        "{:?}",
        results.iter().map(|(_, outcome)| outcome).collect::<Vec<_>>()
    );
    let (after, outcome) = results.into_iter().next().unwrap();
    *model = after;
    say(&outcome)
}

/// Returns the receivers of a frame, and the drops that were counted.
pub fn say(outcome: &Outcome) -> String {
    let drops = outcome.drops.iter().map(|drop| {
        drop.iter()
            .map(|(vnic, reason)| format!("{vnic}: {reason}"))
            .collect::<Vec<_>>()
            .join(" or ")
    });
    let receivers = outcome.receivers.iter().map(|name| format!("> {name}"));
    receivers.chain(drops).collect::<Vec<_>>().join(", ")
}

pub fn udp(from: (Mac, [u8; 4], u16), to: (Mac, [u8; 4], u16)) -> Vec<u8> {
    build::ethernet(from.0, to.0).ipv4(from.1, to.1).udp(from.2, to.2, b"?")
}

pub fn tcp(
    from: (Mac, [u8; 4], u16),
    to: (Mac, [u8; 4], u16),
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
) -> Vec<u8> {
    let segment = Tcp { sequence, acknowledgement, window: 4096, ..Tcp::new(from.2, to.2, flags) };
    build::ethernet(from.0, to.0).ipv4(from.1, to.1).tcp(&segment, &[])
}

const A80: (Mac, [u8; 4], u16) = (A, IP_A, 80);
pub const A4: (Mac, [u8; 4], u16) = (A, IP_A, 4000);
pub const B80: (Mac, [u8; 4], u16) = (B, IP_B, 80);
const C4: (Mac, [u8; 4], u16) = (C, IP_C, 4000);

#[test]
fn what_is_not_ip_passes_what_hides_ip_does_not() {
    let mut model = world(vec![any()]);
    let arp = build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B);
    assert_eq!(send(&mut model, "a", &arp), "> b, > c");
    assert_eq!(
        send(&mut model, "a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_B, IP_A)),
        "a: spoofed-arp"
    );
    assert_eq!(send(&mut model, "a", &build::ethernet(A, B).payload(0x88cc, &[0; 46])), "> b");
    assert_eq!(send(&mut model, "a", &build::ethernet(A, B).payload(0x8035, &[0; 46])), "a: rarp");
    let stacked = build::ethernet(C, B).vlan(1).vlan(2).ipv4(IP_C, IP_B).udp(1, 2, b"");
    assert_eq!(send(&mut model, "c", &stacked), "c: ip-hidden");
    assert_eq!(send(&mut model, "a", &udp((B, IP_A, 1), B80)), "a: spoofed-mac");
}

#[test]
fn two_ends_that_bypass_filters_are_not_looked_at() {
    let mut model = world(vec![any()]);
    model.insert("d", Declared { bypass: true, ..vnic(STATION, 4, &[]) });
    let mut frame = udp(C4, (STATION, [10, 0, 0, 4], 1));
    frame[14] = 0x41;
    assert_eq!(send(&mut model, "c", &frame), "> d");
    let mut frame = udp(C4, B80);
    frame[14] = 0x41;
    assert_eq!(send(&mut model, "c", &frame), "c: malformed-ip");
    let frame = udp(C4, B80);
    assert_eq!(send(&mut model, "c", &frame[..frame.len() - 1]), "c: truncated");
    let long = build::ethernet(C, B).ipv6(six(3), six(2)).extension(60, &[0; 220]).udp(1, 2, b"");
    assert_eq!(send(&mut model, "c", &long), "c: headers-too-long");
}

#[test]
fn replies_belong_to_their_session_and_only_between_its_ports() {
    let mut model = world(vec![rule(Inbound, Some(17), (80, 80), "10.0.0.1", 32)]);
    assert_eq!(send(&mut model, "a", &udp(A4, B80)), "> b");
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "> a");
    // No other vnic may answer, and not to any other vnic.
    assert_eq!(send(&mut model, "c", &udp((C, IP_B, 80), A4)), "c: ip-claimed");
    assert_eq!(send(&mut model, "b", &udp(B80, (C, IP_A, 4000))), "> c");
    assert_eq!(send(&mut model, "b", &udp((B, IP_B, 81), A4)), "a: ingress-denied");
    // Behind a tag it is another conversation.
    let tagged = build::ethernet(B, A).vlan(5).ipv4(IP_B, IP_A).udp(80, 4000, b"");
    assert_eq!(send(&mut model, "b", &tagged), "a: ingress-denied");
    // 60 seconds after the last answer.
    model.pass(59);
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "> a");
    model.pass(61);
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "a: ingress-denied");
}

#[test]
fn egress_is_for_own_addresses_and_for_what_outbound_rules_name() {
    let mut model = world(vec![any()]);
    assert_eq!(send(&mut model, "a", &udp((A, IP_C, 4000), B80)), "a: spoofed-ip");
    assert_eq!(send(&mut model, "b", &udp(B80, C4)), "> c");
    // The first one takes the right to send anything away, from sessions too.
    model.groups[0].rules.push(rule(Outbound, Some(17), (53, 53), "10.0.0.0", 24));
    assert_eq!(send(&mut model, "b", &udp(B80, C4)), "b: egress-denied");
    assert_eq!(send(&mut model, "b", &udp(B80, (C, IP_C, 53))), "> c");
    assert_eq!(send(&mut model, "b", &udp(B80, (C, [10, 0, 1, 3], 53))), "b: egress-denied");
    // A reply is no matter of egress.
    assert_eq!(send(&mut model, "c", &udp(C4, B80)), "> b");
    assert_eq!(send(&mut model, "b", &udp(B80, C4)), "> c");
}

fn dhcp(from: (Mac, [u8; 4]), to: (Mac, [u8; 4]), op: u8, xid: u8, chaddr: Mac) -> Vec<u8> {
    let mut message = vec![op, 1, 6, 0, 0, 0, 0, xid];
    message.resize(28, 0);
    message.extend(chaddr.0);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99, 53, 1, op, 255]);
    if op == 2 {
        message[16..20].copy_from_slice(&to.1);
    }
    let (source, destination) = if op == 1 { (68, 67) } else { (67, 68) };
    build::ethernet(from.0, to.0).ipv4(from.1, to.1).udp(source, destination, &message)
}

#[test]
fn dhcp_works_for_the_client_that_asked() {
    let mut model = world(vec![rule(Outbound, Some(6), (1, 1), "::", 0)]);
    let nobody = [0; 4];
    let all = [255; 4];
    assert_eq!(
        send(&mut model, "b", &dhcp((B, nobody), (Mac::BROADCAST, all), 1, 7, B)),
        "> c, a: ingress-denied"
    );
    assert_eq!(
        send(&mut model, "b", &dhcp((B, nobody), (Mac::BROADCAST, all), 1, 7, C)),
        "b: bad-dhcp"
    );
    assert_eq!(send(&mut model, "c", &dhcp((C, IP_C), (B, IP_B), 2, 8, B)), "b: ingress-denied");
    assert_eq!(send(&mut model, "c", &dhcp((C, IP_C), (B, IP_B), 2, 7, A)), "b: ingress-denied");
    for answer in 0..9 {
        assert_eq!(
            send(&mut model, "c", &dhcp((C, IP_C), (B, IP_B), 2, 7, B)),
            if answer < 8 { "> b" } else { "b: ingress-denied" }
        );
    }
    assert_eq!(send(&mut model, "b", &dhcp((B, IP_B), (C, IP_C), 2, 7, C)), "b: egress-denied");
    for request in 0..8 {
        let outcome = if request < 7 { "> c, a: ingress-denied" } else { "b: dhcp-limit" };
        assert_eq!(
            send(&mut model, "b", &dhcp((B, nobody), (Mac::BROADCAST, all), 1, 7, B)),
            outcome
        );
    }
    model.pass(61);
    assert_eq!(send(&mut model, "c", &dhcp((C, IP_C), (B, IP_B), 2, 7, B)), "b: ingress-denied");
    let identifiers = [0, 1, 0, 3, 1, 2, 3, 0, 2, 0, 3, 1, 2, 4];
    let dhcp6 =
        |from: Mac, to: Mac, addresses: (Ipv6Addr, Ipv6Addr), ports: (u16, u16), kind: u8| {
            let message =
                [&[kind, 0, 0, 9], &identifiers[..if kind == 1 { 7 } else { 14 }]].concat();
            build::ethernet(from, to).ipv6(addresses.0, addresses.1).udp(ports.0, ports.1, &message)
        };
    let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
    assert_eq!(send(&mut model, "b", &dhcp6(B, C, (link_local(B), servers), (546, 547), 1)), "> c");
    assert_eq!(send(&mut model, "c", &dhcp6(C, B, (six(3), link_local(B)), (547, 546), 2)), "> b");
    model.pass(61);
    assert_eq!(
        send(&mut model, "c", &dhcp6(C, B, (six(3), link_local(B)), (547, 546), 2)),
        "b: ingress-denied"
    );
}

#[test]
fn a_dhcp_server_answers_whom_a_narrow_rule_let_ask() {
    for (ports, outcome) in [((60, 75), "> c"), ((60, 76), "b: egress-denied"), ((67, 68), "> c")] {
        let mut model = world(vec![
            rule(Inbound, Some(17), ports, "0.0.0.0", 0),
            rule(Outbound, None, (0, 0), "0.0.0.0", 0),
        ]);
        let answer = dhcp((B, IP_B), (C, IP_C), 2, 7, C);
        assert_eq!(send(&mut model, "b", &answer), "b: egress-denied");
        assert_eq!(send(&mut model, "c", &dhcp((C, [0; 4]), (B, [255; 4]), 1, 7, C)), "> b");
        assert_eq!(send(&mut model, "b", &answer), outcome);
    }
}

fn link_local(mac: Mac) -> Ipv6Addr {
    let IpAddr::V6(ip) = vnic(mac, 0, &[]).link_local() else { panic!() };
    ip
}

#[test]
fn discovery_works_for_filtered_vnics_and_is_honest() {
    let mut model = world(vec![]);
    let multicast = Mac([0x33, 0x33, 0, 0, 0, 1]);
    let body = |target: Ipv6Addr, option: [u8; 2], mac: Mac| {
        [&target.octets()[..], &option, &mac.0].concat()
    };
    let nd = |from: Mac, to: Mac, source: Ipv6Addr, kind: u8, body: &[u8]| {
        build::ethernet(from, to).ipv6(source, six(9)).ttl(255).icmp(kind, 0, 0, body)
    };
    assert_eq!(
        send(&mut model, "a", &nd(A, multicast, six(1), 135, &body(six(2), [1, 1], A))),
        "> b, > c"
    );
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
    let probe = build::ethernet(A, multicast).ipv6(Ipv6Addr::UNSPECIFIED, group).ttl(255).icmp(
        135,
        0,
        0,
        &six(1).octets(),
    );
    assert_eq!(send(&mut model, "a", &probe), "> b, > c");
    assert_eq!(
        send(&mut model, "b", &nd(B, A, link_local(B), 136, &body(six(2), [2, 1], B))),
        "> a"
    );
    for (message, what) in [
        (nd(B, A, six(2), 136, &body(six(3), [2, 1], B)), "somebody else's address"),
        (nd(B, A, six(2), 136, &body(six(2), [2, 1], A)), "somebody else's MAC address"),
        (nd(B, A, six(2), 136, &body(six(2), [2, 0], B)), "an empty option"),
        (nd(B, A, six(2), 136, &body(six(2), [2, 2], B)), "an option that is not whole"),
        (
            build::ethernet(B, A).ipv6(six(2), six(1)).icmp(136, 0, 0, &body(six(2), [2, 1], B)),
            "hop limit 64",
        ),
    ] {
        assert_eq!(send(&mut model, "b", &message), "b: bad-discovery", "{what}");
    }
    let taken = nd(B, A, six(2), 136, &body(six(1), [2, 1], B));
    assert_eq!(send(&mut model, "b", &taken), "b: ip-claimed");
    assert_eq!(
        send(&mut model, "b", &nd(B, multicast, link_local(B), 134, &[0; 8])),
        "b: egress-denied or b: bad-discovery"
    );
    assert_eq!(send(&mut model, "c", &nd(C, multicast, link_local(C), 134, &[0; 8])), "> a, > b");
    assert_eq!(send(&mut model, "c", &nd(C, B, link_local(C), 137, &[0; 32])), "b: ingress-denied");
    model.groups[0].rules.push(rule(Outbound, Some(58), (0, 0), "::", 0));
    model.vnic("b").unwrap().declared.ips.push(link_local(B).into());
    let advertisement = nd(B, multicast, link_local(B), 134, &[0; 8]);
    assert_eq!(send(&mut model, "b", &advertisement), "b: egress-denied or b: bad-discovery");
    model.vnic("b").unwrap().declared.router = true;
    assert_eq!(send(&mut model, "b", &nd(B, multicast, link_local(B), 134, &[0; 8])), "> a, > c");
    // None of it opened anything.
    assert_eq!(model.sessions(), 0);
}

#[test]
fn ingress_is_closed_but_for_rules() {
    let mut model = world(vec![]);
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "a: ingress-denied");
    assert_eq!(send(&mut model, "c", &udp(C4, B80)), "b: ingress-denied");
    model.groups[0].rules.push(rule(Inbound, Some(17), (80, 81), "10.0.0.3", 31));
    assert_eq!(send(&mut model, "c", &udp(C4, B80)), "> b");
    assert_eq!(send(&mut model, "c", &udp(C4, (B, IP_B, 82))), "b: ingress-denied");
    assert_eq!(send(&mut model, "a", &udp(A4, B80)), "b: ingress-denied");
    let ping = build::ethernet(C, B).ipv4(IP_C, IP_B).ping(1, 1, b"");
    assert_eq!(send(&mut model, "c", &ping), "b: ingress-denied");
}

#[test]
fn rules_match_family_block_and_members() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert!(is_in(ip("10.0.0.7"), ip("10.0.0.200"), 24));
    assert!(!is_in(ip("10.0.1.7"), ip("10.0.0.200"), 24));
    assert!(is_in(ip("1.2.3.4"), ip("9.9.9.9"), 0));
    assert!(!is_in(ip("::1"), ip("0.0.0.0"), 0));
    assert!(!is_in(ip("0.0.0.1"), ip("::1"), 128));
    assert!(is_in(ip("2001:db8::5"), ip("2001:db8::4"), 127));

    let mut model = world(vec![Rule { peer: Peer::Group("db"), ..any() }]);
    let (frame, six_frame) =
        (udp(C4, B80), build::ethernet(C, B).ipv6(six(3), six(2)).udp(1, 2, b""));
    assert_eq!(send(&mut model, "c", &frame), "b: ingress-denied");
    model.group("db").members.push(Ipv4Addr::from(IP_C).into());
    assert_eq!(send(&mut model, "c", &frame), "> b");
    assert_eq!(send(&mut model, "c", &six_frame), "b: ingress-denied");
    model.group("db").members.clear();
    assert_eq!(send(&mut model, "c", &frame), "b: ingress-denied");

    // A block of the other family is no peer.
    let mut model = world(vec![
        rule(Inbound, Some(1), (0, 0), "::", 0),
        rule(Inbound, Some(58), (0, 0), "::", 0),
    ]);
    let ping = |frame: build::Ip| frame.ping(1, 1, b"");
    assert_eq!(
        send(&mut model, "c", &ping(build::ethernet(C, B).ipv4(IP_C, IP_B))),
        "b: ingress-denied"
    );
    assert_eq!(send(&mut model, "c", &ping(build::ethernet(C, B).ipv6(six(3), six(2)))), "> b");
}

#[test]
fn several_receivers_are_decided_each_and_nothing_is_remembered() {
    let mut model = world(vec![any()]);
    let all = udp(C4, (Mac::BROADCAST, [255; 4], 80));
    assert_eq!(send(&mut model, "c", &all), "> b, a: ingress-denied");
    assert_eq!(send(&mut model, "c", &udp(C4, (STATION, IP_B, 80))), "c: no-receiver");
    model.insert("d", Declared { bypass: true, ..vnic(Mac([2, 0, 0, 0, 0, 0xd]), 4, &[]) });
    assert_eq!(send(&mut model, "a", &udp(A4, (STATION, IP_B, 80))), "> c, > d");
    assert_eq!(model.sessions(), 0);
}

#[test]
fn tcp_begins_with_a_syn_and_stays_in_its_window() {
    let mut model = world(vec![rule(Inbound, Some(6), (80, 80), "0.0.0.0", 0)]);
    assert_eq!(
        send(&mut model, "a", &tcp(A4, B80, ACK, 5, 5)),
        "a: tcp-no-session or b: tcp-no-session"
    );
    assert_eq!(
        send(&mut model, "a", &tcp(A4, B80, RST, 5, 5)),
        "a: tcp-no-session or b: tcp-no-session"
    );
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, SYN, 99, 0)), "> b");
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, SYN | ACK, 499, 100)), "> a");
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, ACK, 100, 500)), "> b");
    assert_eq!(
        send(&mut model, "b", &tcp(B80, A4, ACK, 0x4000_0000, 100)),
        "b: tcp-window or a: tcp-window"
    );
    assert_eq!(
        send(&mut model, "b", &tcp(B80, A4, ACK, 500, 0x4000_0000)),
        "b: tcp-window or a: tcp-window"
    );
    model.pass(86_399);
    assert_eq!(
        send(&mut model, "b", &tcp(B80, A4, ACK, 0x4000_0000, 100)),
        "b: tcp-window or a: tcp-window"
    );
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, ACK, 500, 100)), "> a");
    model.pass(86_399);
    // Only one that is expected ends it.
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, RST, 501, 0)), "> a");
    model.pass(2);
    assert_eq!(
        send(&mut model, "b", &tcp(B80, A4, ACK, 500, 100)),
        "a: ingress-denied or b: tcp-no-session or a: tcp-no-session"
    );
}

#[test]
fn a_closed_connection_may_be_opened_again_from_the_side_that_policy_lets() {
    for reset in [true, false] {
        let mut model = world(vec![rule(Inbound, Some(6), (80, 80), "0.0.0.0", 0)]);
        send(&mut model, "a", &tcp(A4, B80, SYN, 99, 0));
        send(&mut model, "b", &tcp(B80, A4, SYN | ACK, 499, 100));
        send(&mut model, "a", &tcp(A4, B80, ACK, 100, 500));
        // Open: a SYN of b is none of it, wherever it is; one of a may show b that a has forgotten
        // it.
        assert_eq!(send(&mut model, "b", &tcp(B80, A4, SYN, 0x5000_0000, 0)), "a: ingress-denied");
        assert_eq!(send(&mut model, "b", &tcp(B80, A4, SYN, 500, 0)), "a: ingress-denied");
        assert_eq!(send(&mut model, "a", &tcp(A4, B80, SYN, 0x5000_0000, 0)), "> b");
        if reset {
            assert_eq!(send(&mut model, "a", &tcp(A4, B80, RST, 100, 0)), "> b");
        } else {
            assert_eq!(send(&mut model, "a", &tcp(A4, B80, FIN | ACK, 100, 500)), "> b");
            assert_eq!(send(&mut model, "b", &tcp(B80, A4, FIN | ACK, 500, 101)), "> a");
            assert_eq!(send(&mut model, "a", &tcp(A4, B80, ACK, 101, 501)), "> b");
        }
        assert_eq!(send(&mut model, "b", &tcp(B80, A4, SYN, 0x5000_0000, 0)), "a: ingress-denied");
        assert_eq!(send(&mut model, "a", &tcp(A4, B80, SYN, 0x5000_0000, 0)), "> b");
    }
}

#[test]
fn tcp_is_picked_up_for_two_minutes_if_policy_would_let_it_begin() {
    for (wait, result) in [(119, "> b"), (120, "a: tcp-no-session or b: tcp-no-session")] {
        let mut model = world(vec![rule(Inbound, Some(6), (80, 80), "0.0.0.0", 0)]);
        model.remove("a");
        model.insert("a", vnic(A, 1, &[]));
        model.pass(wait);
        assert_eq!(send(&mut model, "a", &tcp(A4, B80, ACK, 5, 9)), result);
    }
}

#[test]
fn an_end_with_something_behind_it_is_none() {
    let mut model = world(vec![rule(Inbound, Some(6), (80, 80), "0.0.0.0", 0)]);
    let data = |sequence: u32, acknowledgement: u32| {
        let segment = Tcp { sequence, acknowledgement, window: 4096, ..Tcp::new(80, 4000, ACK) };
        build::ethernet(B, A).ipv4(IP_B, IP_A).tcp(&segment, &[0; 20])
    };
    send(&mut model, "a", &tcp(A4, B80, SYN, 99, 0));
    send(&mut model, "b", &tcp(B80, A4, SYN | ACK, 499, 100));
    send(&mut model, "a", &tcp(A4, B80, ACK, 100, 500));
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, FIN | ACK, 500, 100)), "> a");
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, FIN | ACK, 100, 501)), "> b");
    assert_eq!(send(&mut model, "b", &data(501, 101)), "> a");
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, ACK, 101, 521)), "> b");
    // The connection is alive: a SYN of a shows b that a forgot it, one of b is not let in.
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, SYN, 0x5000_0000, 0)), "> b");
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, SYN, 0x5000_0000, 0)), "a: ingress-denied");
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, FIN | ACK, 521, 101)), "> a");
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, ACK, 101, 522)), "> b");
    // Both ended, and know it.
    model.pass(239);
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, FIN | ACK, 521, 101)), "> a");
}

#[test]
fn a_stranger_ends_only_what_policy_does_not_admit() {
    let web = rule(Inbound, Some(17), (80, 80), "0.0.0.0", 0);
    for (gone, sessions) in [(false, 1), (true, 0)] {
        let mut model = world(vec![web.clone()]);
        send(&mut model, "a", &udp(A4, (B, IP_C, 80))); // an address that is not b's
        if gone {
            model.groups[0].rules.clear();
        }
        assert_eq!(send(&mut model, "b", &udp((B, IP_C, 80), A4)), "b: spoofed-ip");
        assert_eq!(model.sessions(), sessions);
    }
}

#[test]
fn a_reset_that_ends_nothing_keeps_nothing_alive() {
    let mut model = world(vec![rule(Inbound, Some(6), (80, 80), "0.0.0.0", 0)]);
    send(&mut model, "a", &tcp(A4, B80, SYN, 99, 0));
    model.pass(20);
    // Of an opener that found an older connection at the other end.
    let older = tcp(A4, B80, RST, 100, 0);
    let results = Choices::all(|choices| {
        let mut model = model.clone();
        model.send("a", &older, choices);
        model.pass(11);
        model.sessions()
    });
    assert!(results.iter().all(|sessions| *sessions == 0), "{results:?}");
}

#[test]
fn what_an_error_quotes_is_not_ended_by_it() {
    let web = rule(Inbound, Some(17), (80, 80), "0.0.0.0", 0);
    let mut model = world(vec![web.clone()]);
    let frame = udp(A4, B80);
    send(&mut model, "a", &frame);
    let error = build::ethernet(B, A).ipv4(IP_B, IP_A).icmp(3, 3, 0, &frame[14..42]);
    model.groups[0].rules.clear();
    assert_eq!(send(&mut model, "b", &error), "a: ingress-denied");
    model.groups[0].rules.push(web);
    assert_eq!(send(&mut model, "b", &error), "> a");
    // A quote whose own length leaves no room for its header is invalid.
    let mut short = error.clone();
    short[42 + 3] = 4;
    assert_eq!(send(&mut model, "b", &short), "a: ingress-denied");
}

#[test]
fn echo_is_a_session_other_icmp_is_none() {
    let mut model = world(vec![rule(Inbound, Some(1), (0, 0), "0.0.0.0", 0)]);
    let echo = |from: Mac, to: Mac, ips: ([u8; 4], [u8; 4]), kind: u8, id: u32| {
        build::ethernet(from, to).ipv4(ips.0, ips.1).icmp(kind, 0, id << 16, b"")
    };
    assert_eq!(send(&mut model, "b", &echo(B, A, (IP_B, IP_A), 0, 1)), "a: ingress-denied");
    assert_eq!(send(&mut model, "a", &echo(A, B, (IP_A, IP_B), 8, 1)), "> b");
    assert_eq!(send(&mut model, "b", &echo(B, A, (IP_B, IP_A), 0, 1)), "> a");
    assert_eq!(send(&mut model, "b", &echo(B, A, (IP_B, IP_A), 0, 2)), "a: ingress-denied");
    assert_eq!(send(&mut model, "b", &echo(B, A, (IP_B, IP_A), 8, 1)), "a: ingress-denied");
    assert_eq!(send(&mut model, "a", &echo(A, B, (IP_A, IP_B), 13, 1)), "> b");
    assert_eq!(send(&mut model, "b", &echo(B, A, (IP_B, IP_A), 14, 1)), "a: ingress-denied");
    model.pass(31);
    assert_eq!(send(&mut model, "b", &echo(B, A, (IP_B, IP_A), 0, 1)), "a: ingress-denied");
}

#[test]
fn an_error_reaches_who_sent_what_it_quotes() {
    let mut model = world(vec![rule(Inbound, Some(17), (80, 80), "0.0.0.0", 0)]);
    let error = |from: (Mac, [u8; 4]), to: (Mac, [u8; 4]), quoted: &[u8]| {
        build::ethernet(from.0, to.0).ipv4(from.1, to.1).icmp(3, 3, 0, &quoted[14..42])
    };
    let frame = udp(A4, B80);
    assert_eq!(send(&mut model, "b", &error((B, IP_B), (A, IP_A), &frame)), "a: ingress-denied");
    assert_eq!(send(&mut model, "a", &frame), "> b");
    assert_eq!(send(&mut model, "b", &error((B, IP_B), (A, IP_A), &frame)), "> a");
    // Of b's answers a knows nothing, and c sent nothing.
    assert_eq!(send(&mut model, "c", &error((C, IP_C), (B, IP_B), &frame)), "b: ingress-denied");
    model.pass(29);
    assert_eq!(send(&mut model, "b", &error((B, IP_B), (A, IP_A), &frame)), "> a");
    model.pass(2);
    assert_eq!(send(&mut model, "b", &error((B, IP_B), (A, IP_A), &frame)), "a: ingress-denied");
}

#[test]
fn fragments_follow_the_first() {
    let mut model = world(vec![rule(Inbound, Some(17), (80, 80), "0.0.0.0", 0)]);
    let whole = build::ethernet(A, B).ipv4(IP_A, IP_B).udp(4000, 80, &[0; 64]);
    let part = |id: u32, from: usize, to: usize, more: bool| {
        build::ethernet(A, B)
            .ipv4(IP_A, IP_B)
            .fragment(id, from, more)
            .payload(17, &whole[34 + from..34 + to])
    };
    assert_eq!(send(&mut model, "a", &part(1, 32, 72, false)), "a: fragment-orphan");
    assert_eq!(send(&mut model, "a", &part(1, 0, 32, true)), "> b");
    assert_eq!(send(&mut model, "a", &part(1, 32, 64, true)), "> b");
    assert_eq!(send(&mut model, "a", &part(1, 56, 72, false)), "a: fragment-overlap");
    assert_eq!(send(&mut model, "a", &part(2, 32, 64, true)), "a: fragment-orphan");
    let tiny = build::ethernet(A, B).ipv4(IP_A, IP_B).fragment(3, 0, true).payload(6, &[0x50; 16]);
    assert_eq!(send(&mut model, "a", &tiny), "a: tiny-fragment");
    model.pass(30);
    assert_eq!(send(&mut model, "a", &part(1, 64, 72, false)), "a: fragment-orphan");
}

#[test]
fn what_is_taken_away_cuts_what_it_admitted_and_nothing_else() {
    let web = rule(Inbound, Some(17), (80, 80), "10.0.0.0", 24);
    let mut model = world(vec![web.clone()]);
    send(&mut model, "a", &udp(A4, B80));
    send(&mut model, "c", &udp(C4, B80));
    // Another rule admits what one of them was.
    model.groups[0].rules = vec![rule(Inbound, None, (0, 0), "10.0.0.3", 32)];
    assert_eq!(send(&mut model, "c", &udp(C4, B80)), "> b");
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "a: ingress-denied");
    assert_eq!(send(&mut model, "a", &udp(A4, B80)), "b: ingress-denied");
    // What comes back finds no session, but a rule.
    model.groups[0].rules.push(web);
    assert_eq!(send(&mut model, "a", &udp(A4, B80)), "> b");
    // An address that is no longer its own.
    model.vnic("a").unwrap().declared.ips.clear();
    assert_eq!(send(&mut model, "a", &udp(A4, B80)), "a: spoofed-ip");
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "a: ingress-denied");
}

#[test]
fn a_connection_that_was_cut_is_not_picked_up_from_the_other_end() {
    let web = rule(Inbound, Some(6), (80, 80), "10.0.0.0", 24);
    let mut model = world(vec![web.clone()]);
    send(&mut model, "a", &tcp(A4, B80, SYN, 99, 0));
    send(&mut model, "b", &tcp(B80, A4, SYN | ACK, 499, 100));
    send(&mut model, "a", &tcp(A4, B80, ACK, 100, 500));
    model.groups[0].rules.clear();
    // b may open connections, and its answers are none.
    let denied = "b: ingress-denied";
    assert!(send(&mut model, "b", &tcp(B80, A4, ACK, 500, 100)).contains("tcp-no-session"));
    assert!(send(&mut model, "a", &tcp(A4, B80, ACK, 100, 500)).contains(denied));
    assert!(send(&mut model, "a", &tcp(A4, B80, SYN, 99, 0)).contains(denied));
    assert!(send(&mut model, "b", &tcp(B80, A4, ACK, 500, 100)).contains("tcp-no-session"));
    // Admitted again, it has to begin again.
    model.groups[0].rules.push(web);
    assert!(send(&mut model, "a", &tcp(A4, B80, ACK, 100, 500)).contains("tcp-no-session"));
    assert_eq!(send(&mut model, "a", &tcp(A4, B80, SYN, 7000, 0)), "> b");
    assert_eq!(send(&mut model, "b", &tcp(B80, A4, SYN | ACK, 900, 7001)), "> a");
}

#[test]
fn whoever_comes_back_is_somebody_else() {
    let mut model = world(vec![rule(Inbound, Some(17), (80, 80), "10.0.0.0", 24)]);
    send(&mut model, "a", &udp(A4, B80));
    model.remove("a");
    model.insert("a", vnic(A, 1, &[]));
    assert_eq!(send(&mut model, "b", &udp(B80, A4)), "a: ingress-denied");
}

#[test]
fn a_station_that_moves_brings_no_session() {
    let mut model = world(vec![rule(Inbound, Some(17), (80, 80), "10.0.0.1", 32)]);
    model.insert("d", Declared { bypass: true, ..vnic(Mac([2, 0, 0, 0, 0, 0xd]), 4, &[]) });
    let there = (STATION, [10, 0, 0, 9], 53);
    assert_eq!(
        send(&mut model, "c", &udp(there, (Mac::BROADCAST, [255; 4], 1))),
        "> d, a: ingress-denied, b: ingress-denied"
    );
    assert_eq!(send(&mut model, "a", &udp(A80, there)), "> c");
    assert_eq!(send(&mut model, "c", &udp(there, A80)), "> a");
    // It sends from another port: that may be another machine.
    assert_eq!(send(&mut model, "d", &udp(there, A80)), "a: ingress-denied");
    assert_eq!(send(&mut model, "a", &udp(A80, there)), "> d");
    assert_eq!(send(&mut model, "d", &udp(there, A80)), "> a");
}

/// Switches that are the model, but for one mistake.
struct Mistaken {
    hosts: Vec<Model>,
    mistake: fn(&mut Model),
}

impl Switch for Mistaken {
    const EARLY: usize = 0;

    fn insert(&mut self, host: usize, name: &str, declared: &Declared) {
        let name = crate::commands::NAMES.into_iter().find(|known| *known == name).unwrap();
        self.hosts[host].insert(name, declared.clone());
    }
    fn remove(&mut self, host: usize, name: &str) {
        let name = crate::commands::NAMES.into_iter().find(|known| *known == name).unwrap();
        self.hosts[host].remove(name);
    }
    fn update(&mut self, host: usize, name: &str, declared: &Declared) {
        self.hosts[host].changed();
        self.hosts[host].vnic(name).unwrap().declared = declared.clone();
    }
    fn change(&mut self, host: usize, change: &crate::commands::Command) {
        crate::check::change_groups(&mut self.hosts[host], change);
    }
    fn route(&mut self, host: usize, _: &Change, routes: &Routes) {
        self.hosts[host].declare(routes);
    }
    fn routed_sessions(&mut self, host: usize) -> Vec<RoutedSession> {
        let all = self.hosts[host].routed_sessions();
        all.into_iter().map(|(session, _)| session).collect()
    }
    fn pass(&mut self, seconds: u32) {
        self.hosts.iter_mut().for_each(|model| model.pass(seconds));
    }
    fn send(&mut self, host: usize, name: &str, frames: &[Vec<u8>]) -> Vec<Seen> {
        let mut all = vec![Seen::default(); self.hosts.len()];
        for frame in frames {
            self.hosts.iter_mut().for_each(self.mistake);
            let outcomes = world::send(&mut self.hosts, host, name, frame, &mut Choices::default());
            // What left changed on the way.
            let left = outcomes[host].becomes.clone().unwrap_or_else(|| frame.clone());
            for (at, (seen, outcome)) in all.iter_mut().zip(&outcomes).enumerate() {
                note(seen, outcome, if at == host { frame } else { &left });
            }
        }
        all
    }
    fn arrive(&mut self, host: usize, from: u8, vni: u32, frame: &[u8]) -> Vec<Seen> {
        let mut all = vec![Seen::default(); self.hosts.len()];
        self.hosts.iter_mut().for_each(self.mistake);
        let mut choices = Choices::default();
        let outcome = world::arrive(&mut self.hosts[host], (host, from), vni, frame, &mut choices);
        note(&mut all[host], &outcome, frame);
        all
    }
}

/// Adds what became of a frame on one host.
fn note(seen: &mut Seen, outcome: &Outcome, frame: &[u8]) {
    for arrives in outcome.arrives(frame) {
        let receivers = outcome.receivers.iter();
        seen.received.extend(receivers.map(|name| ((*name).to_owned(), arrives.clone())));
    }
    for (vnic, reason) in outcome.drops.iter().map(|drop| drop[0]) {
        *seen.drops.entry((vnic.to_owned(), reason.to_owned())).or_default() += 1;
    }
}

/// In how many of the first cases a mistake shows.
pub fn disagreements(make: fn(u64) -> Case, mistake: fn(&mut Model)) -> usize {
    disagreements_among(60, make, mistake)
}

/// The same of more cases, for a mistake that shows in few.
pub fn disagreements_among(cases: u64, make: fn(u64) -> Case, mistake: fn(&mut Model)) -> usize {
    let is_wrong = |case: &Case| {
        let mut switch = Mistaken { hosts: world::hosts(case.hosts), mistake };
        run(case, &mut switch, &mut Tally::default()).is_err()
    };
    (0..cases).map(make).filter(is_wrong).count()
}

#[test]
fn a_switch_that_is_right_is_found_right() {
    assert_eq!(disagreements(generate::case, |_| {}), 0);
}

#[test]
fn a_switch_that_is_wrong_is_found_wrong() {
    let found = [
        disagreements(generate::case, Model::forget_sessions),
        disagreements(generate::case, Model::learn_nothing),
        disagreements(generate::case, |model| {
            model.groups.iter_mut().for_each(|group| group.members.clear())
        }),
        disagreements_among(120, generate::case, |model| {
            model.vnics.iter_mut().for_each(|vnic| vnic.declared.ips.push(crate::commands::v4(4)));
        }),
        disagreements(generate::case, |model| {
            model.vnics.iter_mut().for_each(|vnic| vnic.declared.groups.truncate(1))
        }),
    ];
    assert!(found.iter().all(|cases| *cases >= 5), "{found:?}");
}
