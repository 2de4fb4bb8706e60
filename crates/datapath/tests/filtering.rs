//! Security groups in packet walks: the packets that pass, the rule or session that admits them,
//! and the charge for a drop.

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, SessionFilter, Timeouts, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::{
    build::{self, Ip},
    protocol::{TCP, UDP},
    sctp,
    tcp::{ACK, FIN, RST, SYN},
};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

/// `in tcp 80-90 10.0.0.0/8`, `out udp 53 @dns`, `in any 0 ::/0`.
fn rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split(' ').collect();
    let [direction, protocol, ports, peer] = words[..] else { panic!("{text}") };
    let direction = if direction == "in" { Direction::Inbound } else { Direction::Outbound };
    let protocol = match protocol {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        "any" => -1,
        number => number.parse().unwrap(),
    };
    let (start, end) = ports.split_once('-').unwrap_or((ports, ports));
    let ports = (start.parse().ok(), end.parse().ok());
    match peer.strip_prefix('@') {
        Some(group) => Rule::new(direction, protocol, ports, None, Some(name(group))),
        None => {
            let (address, bits) = peer.split_once('/').unwrap();
            Rule::new(
                direction,
                protocol,
                ports,
                Some(Cidr::new(address, bits.parse().unwrap()).unwrap()),
                None,
            )
        }
    }
    .unwrap()
}

struct Net {
    host: Host,
}

impl Net {
    /// Vnics by id, address, IP addresses and groups; `*` for bypass.
    fn new(vnics: &[(&str, Mac, &str, &str)]) -> Net {
        Net::with(SessionConfig { capacity: 4096, ..SessionConfig::default() }, vnics)
    }

    fn with(sessions: SessionConfig, vnics: &[(&str, Mac, &str, &str)]) -> Net {
        let mut host = Host::with_sessions(sessions).unwrap();
        for (id, mac, ips, groups) in vnics {
            let config = GuestConfig::default();
            host.declare(id, *mac, 1, &policy(ips, groups)).unwrap();
            host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        }
        host.settle();
        host.moved();
        Net { host }
    }

    fn group(&self, group: &str, rules: &[&str], members: &[&str]) {
        let group =
            SecurityGroup::new(name(group), members, rules.iter().map(|text| rule(text))).unwrap();
        self.host.change_group(&group.name().clone(), GroupChange::Declare(group)).unwrap();
    }

    fn change(&self, group: &str, change: GroupChange) {
        self.host.change_group(&name(group), change).unwrap();
    }

    /// Sends a frame. Returns the receivers, or the drop.
    fn send(&mut self, from: &str, frame: &[u8]) -> String {
        self.host.send(from, frame, NetHeader::default()).unwrap();
        let received = self.host.received().unwrap();
        assert!(received.values().flatten().all(|(_, got)| got == frame), "changed on its way");
        let moved = self.host.moved();
        let drops = moved
            .keys()
            .filter(|name| name.contains(".drop."))
            .map(|name| name.replace("drop.", ""));
        received.keys().cloned().chain(drops).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn expect(&mut self, from: &str, frame: Vec<u8>, outcome: &str) {
        assert_eq!(self.send(from, &frame), outcome);
    }
}

fn policy(ips: &str, groups: &str) -> VnicPolicy {
    VnicPolicy {
        bypass: groups == "*",
        ips: ips.split_whitespace().map(|ip| ip.parse().unwrap()).collect(),
        groups: groups.split_whitespace().filter(|group| *group != "*").map(name).collect(),
        ..VnicPolicy::default()
    }
}

fn a_to_b() -> Ip {
    build::ethernet(A, B).ipv4(IP_A, IP_B)
}

fn b_to_a() -> Ip {
    build::ethernet(B, A).ipv4(IP_B, IP_A)
}

fn seg(ports: (u16, u16), flags: u8, sequence: u32, acknowledgement: u32) -> build::Tcp<'static> {
    build::Tcp {
        sequence,
        acknowledgement,
        window: 1000,
        ..build::Tcp::new(ports.0, ports.1, flags)
    }
}

fn two(groups_b: &str) -> Net {
    Net::new(&[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", groups_b)])
}

#[test]
fn rules_open_ports_and_replies_need_none() {
    let mut net = two("web");
    net.group("web", &["in udp 53 10.0.0.0/24"], &[]);
    net.expect("a", a_to_b().udp(1000, 53, b"?"), "b");
    net.expect("b", b_to_a().udp(53, 1000, b"!"), "a");
    net.expect("a", a_to_b().udp(1000, 54, b"?"), "b.ingress-denied");
    net.expect(
        "a",
        build::ethernet(A, B).ipv4([10, 0, 1, 1], IP_B).udp(1000, 53, b"?"),
        "b.ingress-denied",
    );
    // What b asks is answered, whatever the rules.
    net.expect("a", a_to_b().udp(5000, 6000, b"?"), "b.ingress-denied");
    net.expect("b", b_to_a().udp(6000, 5000, b"?"), "a");
    net.expect("a", a_to_b().udp(5000, 6000, b"!"), "b");
    // And not for ever.
    net.host.pass(61);
    net.expect("a", a_to_b().udp(5000, 6000, b"!"), "b.ingress-denied");
}

#[test]
fn a_vnic_speaks_with_its_own_addresses_only() {
    let mut net = two("all");
    net.group("all", &["in any 0 0.0.0.0/0", "out any 0 0.0.0.0/0"], &[]);
    let other = [10, 0, 0, 9];
    net.expect("b", build::ethernet(B, A).ipv4(other, IP_A).udp(1, 2, b""), "b.spoofed-ip");
    // Not even to answer: a calls b by an address that is not b's.
    net.expect("a", build::ethernet(A, B).ipv4(IP_A, other).udp(7, 8, b""), "b");
    net.expect("b", build::ethernet(B, A).ipv4(other, IP_A).udp(8, 7, b""), "b.spoofed-ip");
    net.host.update("b", &policy("10.0.0.2 10.0.0.9", "all")).unwrap();
    net.expect("b", build::ethernet(B, A).ipv4(other, IP_A).udp(8, 7, b""), "a");
    // An address that was taken away ends what it began.
    net.expect("b", build::ethernet(B, A).ipv4(other, IP_A).udp(30, 31, b""), "a");
    net.host.update("b", &policy("10.0.0.2", "all")).unwrap();
    net.expect("b", build::ethernet(B, A).ipv4(other, IP_A).udp(30, 31, b""), "b.spoofed-ip");
}

#[test]
fn outbound_rules_are_the_whole_egress() {
    let mut net = two("g");
    net.expect("b", b_to_a().udp(1, 99, b""), "a");
    net.group("g", &["out udp 53 10.0.0.1/32"], &[]);
    // The first one ends what the default let out.
    net.expect("b", b_to_a().udp(1, 99, b""), "b.egress-denied");
    net.expect("b", b_to_a().udp(1, 53, b""), "a");
    net.expect("a", a_to_b().udp(53, 1, b""), "b");
    net.change("g", GroupChange::RemoveRule(rule("out udp 53 10.0.0.1/32")));
    net.expect("b", b_to_a().udp(1, 99, b""), "a");
}

/// A server's message needs a rule, and is not let out because it comes in pieces.
#[test]
fn fragments_of_a_dhcp_server_take_a_rule() {
    let mut net = two("g");
    let mut reply = vec![2, 1, 6, 0];
    reply.resize(248, 0);
    let datagram = |ports: (u16, u16)| b_to_a().udp(ports.0, ports.1, &reply)[34..][..64].to_vec();
    let first = |id, ports| b_to_a().fragment(id, 0, true).payload(17, &datagram(ports));
    net.expect("b", first(1, (67, 68)), "b.egress-denied");
    net.expect("b", b_to_a().fragment(1, 64, false).payload(17, &[0; 64]), "b.fragment-orphan");
    net.expect("b", first(2, (67, 69)), "a");
    // A rule names the port for what is no answer of a server.
    net.group("g", &["out udp 68 10.0.0.0/8"], &[]);
    net.expect("b", first(3, (67, 68)), "b.egress-denied");
    net.expect("b", first(4, (69, 68)), "a");
}

/// Nor because a client asked in pieces, or because a router says it over IPv4.
#[test]
fn what_servers_and_routers_say_takes_a_rule() {
    let mut net = two("g");
    net.group("g", &["in udp 67 0.0.0.0/0"], &[]);
    let datagram = a_to_b().udp(68, 67, &[1; 248])[34..][..64].to_vec();
    net.expect("a", a_to_b().fragment(1, 0, true).payload(17, &datagram), "b");
    net.expect("a", a_to_b().fragment(1, 64, false).payload(17, &[0; 64]), "b");
    let datagram = b_to_a().udp(67, 68, &[2; 248])[34..][..64].to_vec();
    net.expect("b", b_to_a().fragment(1, 0, true).payload(17, &datagram), "b.egress-denied");
    for (kind, outcome) in [(5, "b.egress-denied"), (9, "b.egress-denied"), (13, "a")] {
        net.expect("b", b_to_a().icmp(kind, 0, 0, &[0; 28]), outcome);
    }
    net.group("g", &["out icmp - 10.0.0.0/8"], &[]);
    net.expect("b", b_to_a().icmp(5, 0, 0, &[0; 28]), "b.egress-denied");
    net.host.update("b", &VnicPolicy { router: true, ..policy("10.0.0.2", "g") }).unwrap();
    net.expect("b", b_to_a().icmp(5, 0, 0, &[0; 28]), "a");
}

/// Nothing of a UDP packet that an error quotes is hard to guess.
#[test]
fn a_few_errors_about_udp_pass_in_a_second() {
    let mut net = two("g");
    net.expect("b", b_to_a().udp(5000, 53, b"?"), "a");
    net.expect("b", b_to_a().udp(5001, 53, b"?"), "a");
    let error = |port| a_to_b().icmp(3, 3, 0, &b_to_a().udp(port, 53, b"?")[14..14 + 28]);
    for n in 0..6 {
        net.expect("a", error(5000), if n < 4 { "b" } else { "b.ingress-denied" });
    }
    net.expect("a", error(5001), "b");
    net.host.pass(1);
    net.expect("a", error(5000), "b");
    // A rule is no subject of this.
    net.group("g", &["in icmp - 10.0.0.0/8"], &[]);
    (0..9).for_each(|_| net.expect("a", error(5000), "b"));
}

/// A session lets errors about it through to its ends, not to another machine behind the same port.
#[test]
fn errors_go_to_whom_they_are_about() {
    let mut net = two("g");
    net.group("g", &["out udp 53 10.0.0.1/32"], &[]);
    let asked = b_to_a().udp(5000, 53, b"?");
    net.expect("b", asked, "a");
    let quote = a_to_b().udp(53, 5000, b"!")[14..14 + 28].to_vec();
    net.expect("b", b_to_a().icmp(3, 3, 0, &quote), "a");
    net.expect(
        "b",
        build::ethernet(B, A).ipv4(IP_B, [8, 8, 8, 8]).icmp(3, 3, 0, &quote),
        "b.egress-denied",
    );
}

#[test]
fn members_are_live() {
    let mut net = two("g");
    net.group("g", &["in udp 0-65535 @friends"], &[]);
    net.expect("a", a_to_b().udp(1, 2, b""), "b.ingress-denied");
    let ip: IpAddr = IpAddr::from(IP_A);
    net.change("friends", GroupChange::AddMember(ip.into()));
    net.expect("a", a_to_b().udp(1, 2, b""), "b");
    net.change("friends", GroupChange::AddMember(IpAddr::from([10, 0, 0, 77]).into()));
    net.change("friends", GroupChange::RemoveMember(IpAddr::from([10, 0, 0, 77]).into()));
    net.expect("a", a_to_b().udp(1, 2, b""), "b");
    net.change("friends", GroupChange::RemoveMember(ip.into()));
    net.expect("a", a_to_b().udp(1, 2, b""), "b.ingress-denied");
    net.change("friends", GroupChange::AddMember(ip.into()));
    net.expect("a", a_to_b().udp(1, 2, b""), "b");
    net.change("friends", GroupChange::Forget);
    net.expect("a", a_to_b().udp(1, 2, b""), "b.ingress-denied");
}

#[test]
fn a_rule_that_goes_cuts_only_what_it_admitted() {
    let mut net = two("one two");
    net.group("one", &["in udp 10 0.0.0.0/0", "in udp 20 0.0.0.0/0"], &[]);
    net.group("two", &["in udp 20 10.0.0.0/8"], &[]);
    for port in [10, 20] {
        net.expect("a", a_to_b().udp(5, port, b""), "b");
    }
    net.change("one", GroupChange::RemoveRule(rule("in udp 10 0.0.0.0/0")));
    net.change("one", GroupChange::RemoveRule(rule("in udp 20 0.0.0.0/0")));
    net.expect("a", a_to_b().udp(5, 10, b""), "b.ingress-denied");
    net.expect("a", a_to_b().udp(5, 20, b""), "b");
    net.host.update("b", &policy("10.0.0.2", "one")).unwrap();
    net.expect("a", a_to_b().udp(5, 20, b""), "b.ingress-denied");
}

/// A connection that is only remembered, so that its packets do not count for another one, is not
/// listed.
#[test]
fn a_connection_that_was_cut_is_not_listed() {
    let mut net = two("g");
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    let listed = |net: &Net| net.host.sessions(&SessionFilter::default(), 10).0;
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN, 100, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), SYN | ACK, 500, 101), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101, 501), b""), "b");
    assert_eq!(listed(&net), 1);
    net.change("g", GroupChange::RemoveRule(rule("in tcp 80 0.0.0.0/0")));
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101, 501), b"x"), "b.ingress-denied");
    assert_eq!(listed(&net), 0);
}

/// On a host whose networks end there, no vnic comes back from another host.
#[test]
fn a_connection_goes_with_its_vnic() {
    let mut net = two("g");
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN, 100, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), SYN | ACK, 500, 101), b""), "a");
    net.host.remove("a");
    net.host.pass(1);
    assert_eq!(net.host.sessions(&SessionFilter::default(), 10).0, 0);
}

/// Either end of a conversation may say that a packet of the other's did not arrive, whatever its
/// rules say of ICMP.
#[test]
fn an_opener_says_what_went_wrong_too() {
    let mut net = Net::new(&[("a", A, "10.0.0.1", "asks"), ("b", B, "10.0.0.2", "answers")]);
    net.group("asks", &["out udp 53 0.0.0.0/0"], &[]);
    net.group("answers", &["in udp 53 0.0.0.0/0"], &[]);
    net.expect("a", a_to_b().udp(5000, 53, b"question"), "b");
    let answer = b_to_a().udp(53, 5000, b"answer");
    net.expect("b", answer.clone(), "a");
    net.expect("a", a_to_b().icmp(3, 3, 0, &answer[14..14 + 28]), "b");
    // About what b never sent, it needs a rule.
    let never = b_to_a().udp(53, 5001, b"answer");
    net.expect("a", a_to_b().icmp(3, 3, 0, &never[14..14 + 28]), "a.egress-denied");
}

#[test]
fn a_connection_is_opened_by_syn_and_followed() {
    let mut net = Net::with(
        SessionConfig { capacity: 4096, tcp_pickup: 0, ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")],
    );
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 5, 5), b""), "a.tcp-no-session");
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN, 100, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), SYN | ACK, 500, 101), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101, 501), b"hello"), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), ACK, 501, 106), b"hello"), "a");
    // Far out of window, either way.
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101 + 200_000, 501), b"x"), "b.tcp-window");
    net.expect(
        "b",
        b_to_a().tcp(&seg((80, 9), ACK, 501u32.wrapping_sub(200_000), 106), b"x"),
        "b.tcp-window",
    );
    // A reset that is merely close ends nothing; the exact one does.
    net.expect("a", a_to_b().tcp(&seg((9, 80), RST, 110, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), ACK, 506, 106), b"more"), "a");
    net.expect("a", a_to_b().tcp(&seg((9, 80), RST, 106, 0), b""), "b");
    // A SYN on a closed record is decided afresh.
    net.change("g", GroupChange::RemoveRule(rule("in tcp 80 0.0.0.0/0")));
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN, 9000, 0), b""), "b.ingress-denied");
}

#[test]
fn a_connection_that_was_closed_makes_room() {
    let mut net = two("g");
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN, 100, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), SYN | ACK, 500, 101), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK | FIN, 101, 501), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), ACK | FIN, 501, 102), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 102, 502), b""), "b");
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN, 70_000_000, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), SYN | ACK, 9, 70_000_001), b""), "a");
}

#[test]
fn connections_are_picked_up_only_for_a_while() {
    let mut net = two("g");
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101, 501), b"x"), "b");
    net.expect("a", a_to_b().tcp(&seg((9, 81), ACK, 101, 501), b"x"), "b.ingress-denied");
    // A SYN+ACK shows the opener, which will ask again.
    net.expect("b", b_to_a().tcp(&seg((80, 7), SYN | ACK, 500, 101), b""), "b.tcp-no-session");
    net.host.pass(121);
    net.expect("a", a_to_b().tcp(&seg((8, 80), ACK, 101, 501), b"x"), "a.tcp-no-session");
}

/// The worker judges by other time-outs from the next batch on: no sweep comes in between.
#[test]
fn other_time_outs_hold_for_sessions_that_there_are() {
    let sessions = |udp_answered| Timeouts { udp_answered, ..Timeouts::default() };
    let mut net = Net::with(
        SessionConfig { capacity: 4096, timeouts: sessions(5), ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "asks"), ("b", B, "10.0.0.2", "answers")],
    );
    net.group("asks", &["out udp 53 0.0.0.0/0"], &[]);
    net.group("answers", &["in udp 53 0.0.0.0/0"], &[]);
    let answer = || b_to_a().udp(53, 5000, b"answer");
    let row = |net: &Net| net.host.sessions(&SessionFilter::default(), 10).1.pop().unwrap();
    net.expect("a", a_to_b().udp(5000, 53, b"question"), "b");
    net.expect("b", answer(), "a");
    assert_eq!(row(&net).expires, 5);
    net.host.set_session_times(sessions(100), 120);
    net.host.pass(50);
    let kept = row(&net);
    assert_eq!((kept.idle, kept.expires), (50, 50));
    net.expect("b", answer(), "a");
    net.host.pass(50);
    net.expect("b", answer(), "a");
    net.host.pass(50);
    net.host.set_session_times(sessions(49), 120);
    net.expect("b", answer(), "a.ingress-denied");
    // The sweep takes it away; the next question opens another.
    net.host.pass(1);
    assert_eq!(net.host.sessions(&SessionFilter::default(), 10).0, 0);
    net.expect("a", a_to_b().udp(5000, 53, b"question"), "b");
    net.expect("b", answer(), "a");
}

#[test]
fn the_time_for_picking_up_changes_while_frames_pass() {
    let mut net = two("g");
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    net.host.pass(121);
    net.expect("a", a_to_b().tcp(&seg((8, 80), ACK, 101, 501), b"x"), "a.tcp-no-session");
    net.host.set_session_times(Timeouts::default(), 200);
    net.expect("a", a_to_b().tcp(&seg((8, 80), ACK, 101, 501), b"x"), "b");
    net.host.set_session_times(Timeouts::default(), 0);
    net.expect("a", a_to_b().tcp(&seg((7, 80), ACK, 101, 501), b"x"), "a.tcp-no-session");
    // What was picked up goes on.
    net.expect("a", a_to_b().tcp(&seg((8, 80), ACK, 102, 501), b"x"), "b");
}

/// The rules admit a connection for its opener only. A SYN of the other side may meet a program
/// that listens there.
#[test]
fn a_syn_of_the_other_side_needs_a_rule() {
    let mut net = two("g");
    net.expect("b", b_to_a().tcp(&seg((80, 9), SYN, 500, 0), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((9, 80), SYN | ACK, 100, 501), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((80, 9), ACK, 501, 101), b""), "a");
    // The same for a connection that is picked up, whose windows are not known.
    net.expect("b", b_to_a().tcp(&seg((81, 9), ACK, 501, 101), b"x"), "a");
    let own = |net: &mut Net, outcome: &str| {
        for port in [80, 81] {
            net.expect("a", a_to_b().tcp(&seg((9, port), SYN, 101, 0), b""), outcome);
            net.expect("a", a_to_b().tcp(&seg((9, port), SYN, 70_000_000, 0), b""), outcome);
        }
    };
    own(&mut net, "b.ingress-denied");
    net.group("g", &["in tcp 80-81 0.0.0.0/0"], &[]);
    own(&mut net, "b");
    // It changed nothing: the connection goes on.
    net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101, 501), b"more"), "b");
    assert_eq!(net.host.sessions(&Default::default(), 10).0, 2);
}

#[test]
fn echo_is_answered_and_not_called() {
    let mut net = two("g");
    net.expect("b", b_to_a().ping(7, 1, b"x"), "a");
    net.expect("a", a_to_b().icmp(0, 0, 7 << 16 | 1, b"x"), "b");
    net.expect("a", a_to_b().icmp(0, 0, 8 << 16 | 1, b"x"), "b.ingress-denied");
    net.expect("a", a_to_b().ping(7, 1, b"x"), "b.ingress-denied");
}

#[test]
fn icmp_errors_reach_whom_they_are_about() {
    let mut net = Net::new(&[
        ("a", A, "10.0.0.1", "*"),
        ("b", B, "10.0.0.2", "g"),
        ("c", C, "10.0.0.3", "g"),
    ]);
    let asked = b_to_a().udp(6000, 5000, b"question");
    net.expect("b", asked.clone(), "a");
    let quote = &asked[14..14 + 28];
    net.expect("a", a_to_b().icmp(3, 3, 0, quote), "b");
    // From a router.
    net.expect("a", build::ethernet(A, B).ipv4([10, 9, 9, 9], IP_B).icmp(11, 0, 0, quote), "b");
    // To another vnic, or about nothing, or of a kind that is no error.
    net.expect(
        "a",
        build::ethernet(A, C).ipv4(IP_A, [10, 0, 0, 3]).icmp(3, 3, 0, quote),
        "c.ingress-denied",
    );
    let never = b_to_a().udp(6001, 5000, b"question");
    net.expect("a", a_to_b().icmp(3, 3, 0, &never[14..14 + 28]), "b.ingress-denied");
    net.expect("a", a_to_b().icmp(5, 1, 0, quote), "b.ingress-denied");
}

#[test]
fn an_error_finds_the_session_of_today() {
    let vnics = [("c", C, "10.0.0.3", "*"), ("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")];
    let mut net = Net::new(&vnics);
    let asked = b_to_a().udp(6000, 5000, b"question");
    net.expect("b", asked.clone(), "a");
    // a comes back in another place: what b had with it is over, and not yet out of the table.
    net.host.remove("c");
    net.host.remove("a");
    let config = GuestConfig::default();
    net.host.declare("a", A, 1, &policy("10.0.0.1", "*")).unwrap();
    net.host.attach("a", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    net.host.moved();
    net.expect("b", asked.clone(), "a");
    net.expect("a", a_to_b().icmp(3, 3, 0, &asked[14..14 + 28]), "b");
}

#[test]
fn fragments_follow_their_first() {
    let mut net = two("g");
    net.group("g", &["in udp 53 0.0.0.0/0"], &[]);
    let first = |id: u32, port: u16| {
        let udp = [
            0u8,
            9,
            (port >> 8) as u8,
            port as u8,
            0,
            40,
            0,
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
        ];
        a_to_b().fragment(id, 0, true).payload(UDP, &udp)
    };
    let rest = |id: u32| a_to_b().fragment(id, 24, false).payload(UDP, &[9; 16]);
    net.expect("a", rest(1), "a.fragment-orphan");
    net.expect("a", first(1, 53), "b");
    net.expect("a", rest(1), "b");
    // Complete: nothing more of it is expected.
    net.expect("a", rest(1), "a.fragment-orphan");
    net.expect("a", first(2, 54), "b.ingress-denied");
    net.expect("a", rest(2), "a.fragment-orphan");
    let tiny = a_to_b().fragment(3, 0, true).payload(TCP, &[0, 9, 0, 53, 0, 0, 0, 1]);
    net.expect("a", tiny, "a.tiny-fragment");
}

/// The admission of the first fragment must still hold for the others, at both ends.
#[test]
fn fragments_follow_while_what_admitted_the_first_holds() {
    let first = |ip: Ip, id| {
        ip.fragment(id, 0, true).payload(UDP, &[&[0, 9, 0, 53, 0, 40, 0, 0][..], &[7; 16]].concat())
    };
    let next = |ip: Ip, id| ip.fragment(id, 24, true).payload(UDP, &[7; 8]);
    let ping =
        |ip: Ip, id| ip.fragment(id, 0, true).payload(1, &[&[13, 0, 0, 0][..], &[7; 20]].concat());
    let rest = |ip: Ip, id| ip.fragment(id, 24, true).payload(1, &[7; 8]);
    let rules = [
        "in udp 53 0.0.0.0/0",
        "in icmp - 0.0.0.0/0",
        "out udp 53 0.0.0.0/0",
        "out icmp - 0.0.0.0/0",
    ];
    let without =
        |skipped: usize| (0..4).filter(|n| *n != skipped).map(|n| rules[n]).collect::<Vec<_>>();
    for skipped in 0..4 {
        let mut net = Net::new(&[
            ("a", A, "10.0.0.1", "*"),
            ("b", B, "10.0.0.2", "g"),
            ("c", C, "10.0.0.2", "*"),
        ]);
        net.group("g", &rules, &[]);
        net.expect("a", first(a_to_b(), 1), "b");
        net.expect("a", ping(a_to_b(), 2), "b");
        net.expect("b", first(b_to_a(), 3), "a");
        net.expect("b", ping(b_to_a(), 4), "a");
        net.group("g", &without(skipped), &[]);
        let of = |n: usize, to: &str, from: &str| {
            if n == skipped { format!("{from}.fragment-orphan") } else { to.to_owned() }
        };
        assert_eq!(net.send("a", &next(a_to_b(), 1)), of(0, "b", "a"));
        assert_eq!(net.send("a", &rest(a_to_b(), 2)), of(1, "b", "a"));
        assert_eq!(net.send("b", &next(b_to_a(), 3)), of(2, "a", "b"));
        assert_eq!(net.send("b", &rest(b_to_a(), 4)), of(3, "a", "b"));
        // To another vnic with the address, a packet has no first fragment.
        net.expect("a", next(build::ethernet(A, C).ipv4(IP_A, IP_B), 1), "c");
        net.group("g", &rules, &[]);
        net.expect("a", first(a_to_b(), 5), "b");
        net.expect("a", next(a_to_b(), 5), "b");
    }
    // To one that is filtered, by what another one was sent.
    let mut net = Net::new(&[
        ("a", A, "10.0.0.1", "*"),
        ("b", B, "10.0.0.2", "g"),
        ("c", C, "10.0.0.3", "g"),
    ]);
    net.group("g", &rules, &[]);
    net.expect("a", first(a_to_b(), 1), "b");
    net.expect("a", next(build::ethernet(A, C).ipv4(IP_A, IP_B), 1), "a.fragment-orphan");
    // Its receiver's policy, and its sender's, are others now.
    net.expect("a", first(a_to_b(), 2), "b");
    net.host.update("b", &policy("10.0.0.2", "")).unwrap();
    net.expect("a", next(a_to_b(), 2), "a.fragment-orphan");
    net.host.update("b", &policy("10.0.0.2", "g")).unwrap();
    net.expect("b", first(b_to_a(), 3), "a");
    net.host.update("b", &policy("10.0.0.2", "")).unwrap();
    net.expect("b", next(b_to_a(), 3), "b.fragment-orphan");
}

#[test]
fn the_same_addresses_elsewhere_are_somebody_else() {
    let mut net = Net::new(&[
        ("a", A, "10.0.0.1", "*"),
        ("b", B, "10.0.0.2", "g"),
        ("c", C, "10.0.0.1", "*"),
    ]);
    net.group("g", &["in udp 53 0.0.0.0/0"], &[]);
    net.expect("b", b_to_a().udp(1, 2, b""), "a");
    // c has a's address, but b talks to a.
    net.expect("c", build::ethernet(C, B).ipv4(IP_A, IP_B).udp(2, 1, b""), "b.ingress-denied");
    // Behind a tag it is another network.
    net.expect(
        "a",
        build::ethernet(A, B).vlan(5).ipv4(IP_A, IP_B).udp(2, 1, b""),
        "b.ingress-denied",
    );
    net.expect("b", build::ethernet(B, A).vlan(5).ipv4(IP_B, IP_A).udp(1, 2, b""), "a");
    net.expect("a", build::ethernet(A, B).vlan(5).ipv4(IP_A, IP_B).udp(2, 1, b""), "b");
    // A priority alone makes no other network.
    net.expect("a", build::ethernet(A, B).vlan(0).ipv4(IP_A, IP_B).udp(2, 1, b""), "b");
    net.expect("a", a_to_b().udp(2, 1, b""), "b");
}

#[test]
fn sctp_opens_by_init() {
    let mut net = two("g");
    net.group("g", &["in 132 0 0.0.0.0/0", "out udp 1 0.0.0.0/0"], &[]);
    net.expect("a", a_to_b().sctp((5, 6), 1, sctp::DATA, &[0; 12]), "a.sctp-no-session");
    net.expect("a", a_to_b().sctp((5, 6), 0, sctp::INIT, &[0; 16]), "b");
    net.expect("b", b_to_a().sctp((6, 5), 1, sctp::INIT_ACK, &[0; 16]), "a");
    // That the other end may answer does not let it begin.
    net.expect("b", b_to_a().sctp((6, 5), 0, sctp::INIT, &[0; 16]), "b.egress-denied");
}

#[test]
fn a_vnic_has_its_share_and_no_more() {
    let mut net = Net::with(
        SessionConfig { capacity: 256, ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")],
    );
    net.group("g", &["in udp 0-65535 0.0.0.0/0"], &[]);
    let answered = |net: &mut Net, port| {
        net.expect("a", a_to_b().udp(port, 9, b""), "b");
        net.expect("b", b_to_a().udp(9, port, b""), "a");
    };
    (0..4).for_each(|port| answered(&mut net, port));
    // A flood without answers takes a quarter of an eighth of 256 places. It takes none from a vnic
    // that is connected or will be.
    for port in 100..300 {
        net.expect("a", a_to_b().udp(port, 9, b""), "b");
        assert!(net.host.sessions(&Default::default(), 100).0 <= 8);
    }
    (4..8).for_each(|port| answered(&mut net, port));
    net.expect("a", a_to_b().udp(300, 9, b""), "a.session-share");
    (0..8).for_each(|port| net.expect("a", a_to_b().udp(port, 9, b""), "b"));
    // The other end has its own.
    (0..8).for_each(|port| net.expect("b", b_to_a().udp(port, 99, b""), "a"));
    // What ended makes room.
    net.host.pass(61);
    net.expect("a", a_to_b().udp(500, 9, b""), "b");
}

fn tcp(ports: (u16, u16), flags: u8, sequence: u32, acknowledgement: u32) -> build::Tcp<'static> {
    build::Tcp {
        sequence,
        acknowledgement,
        window: 4096,
        ..build::Tcp::new(ports.0, ports.1, flags)
    }
}

fn syn_received(net: &mut Net) {
    net.expect("a", a_to_b().tcp(&tcp((5, 6), SYN, 99, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&tcp((6, 5), SYN | ACK, 499, 100), b""), "a");
}

fn established(net: &mut Net) {
    syn_received(net);
    net.expect("a", a_to_b().tcp(&tcp((5, 6), ACK, 100, 500), b""), "b");
}

fn half_closed(net: &mut Net) {
    established(net);
    net.expect("a", a_to_b().tcp(&tcp((5, 6), FIN | ACK, 100, 500), b""), "b");
}

fn closing(net: &mut Net) {
    half_closed(net);
    net.expect("b", b_to_a().tcp(&tcp((6, 5), FIN | ACK, 500, 100), b""), "a");
}

fn time_wait(net: &mut Net) {
    closing(net);
    net.expect("b", b_to_a().tcp(&tcp((6, 5), ACK, 501, 101), b""), "a");
    net.expect("a", a_to_b().tcp(&tcp((5, 6), ACK, 101, 501), b""), "b");
}

fn closed(net: &mut Net) {
    established(net);
    net.expect("b", b_to_a().tcp(&tcp((6, 5), RST, 500, 0), b""), "a");
}

fn picked_up(net: &mut Net) {
    net.expect("a", a_to_b().tcp(&tcp((5, 6), ACK, 100, 500), b"data"), "b");
}

fn taken_up(net: &mut Net) {
    picked_up(net);
    net.expect("b", b_to_a().tcp(&tcp((6, 5), ACK, 500, 104), b""), "a");
}

fn asks(net: &mut Net) {
    net.expect("a", a_to_b().udp(7, 9, b"?"), "b");
}

fn talks(net: &mut Net) {
    asks(net);
    net.expect("b", b_to_a().udp(9, 7, b"!"), "a");
}

fn init(net: &mut Net) {
    net.expect("a", a_to_b().sctp((5, 6), 0, sctp::INIT, &[0; 16]), "b");
}

fn association(net: &mut Net) {
    init(net);
    net.expect("b", b_to_a().sctp((6, 5), 1, sctp::INIT_ACK, &[0; 16]), "a");
}

fn gre(net: &mut Net) {
    net.expect("a", a_to_b().payload(47, b"once"), "b");
}

fn tunnel(net: &mut Net) {
    gre(net);
    net.expect("b", b_to_a().payload(47, b"more"), "a");
}

fn ping(net: &mut Net) {
    net.expect("a", a_to_b().ping(7, 1, b""), "b");
}

/// A batch's changes to a session are kept until the batch ends, in a few places: two sessions that
/// want one place take turns.
#[test]
fn sessions_of_one_batch_do_not_forget_each_other() {
    let mut net = Net::with(
        SessionConfig { capacity: 65_536, ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")],
    );
    net.group("g", &["in tcp 0-65535 0.0.0.0/0", "out udp 1 0.0.0.0/0"], &[]);
    net.host.pass(130); // nothing is picked up from its middle any more
    let segment = |port: u16, flags, sequence, acknowledgement| {
        a_to_b().tcp(&tcp((port, 9), flags, sequence, acknowledgement), b"")
    };
    for port in 0..300 {
        net.expect("a", segment(port, SYN, 99, 0), "b");
        net.expect("b", b_to_a().tcp(&tcp((9, port), SYN | ACK, 499, 100), b""), "a");
        net.expect("a", segment(port, ACK, 100, 500), "b");
    }
    for reset in 0..24 {
        let others = (0..60).map(|n| segment(100 + (reset * 7 + n * 3) % 200, ACK, 100, 500));
        let (first, last) =
            (segment(reset, RST, 100, 0), a_to_b().tcp(&tcp((reset, 9), ACK, 100, 500), b"late"));
        let batch: Vec<Vec<u8>> = std::iter::once(first).chain(others).chain([last]).collect();
        assert_eq!(net.host.guest("a").unwrap().send_batch(&batch).unwrap(), batch.len());
        net.host.settle();
        net.host.received().unwrap();
    }
    net.host.pass(11);
    net.host.moved();
    for port in 0..24 {
        net.expect("b", b_to_a().tcp(&tcp((9, port), ACK, 500, 100), b""), "b.egress-denied");
    }
}

/// Sends frames of "a" as one batch.
fn batch(net: &mut Net, frames: &[Vec<u8>]) {
    assert_eq!(net.host.guest("a").unwrap().send_batch(frames).unwrap(), frames.len());
    net.host.settle();
    net.host.received().unwrap();
    net.host.moved();
}

/// Frames of one batch go to several receivers: each is judged by its own, and charged to it.
#[test]
fn each_frame_of_a_batch_has_its_own_receiver() {
    const D: Mac = Mac([2, 0, 0, 0, 0, 0xd]);
    let vnics = [
        ("a", A, "10.0.0.1", "*"),
        ("b", B, "10.0.0.2", "g"),
        ("c", C, "10.0.0.3", "h"),
        ("d", D, "10.0.0.4", "*"),
    ];
    let mut net = Net::new(&vnics);
    net.group("g", &["in tcp 80 0.0.0.0/0", "in udp 53 0.0.0.0/0"], &[]);
    net.group("h", &["in tcp 80 0.0.0.0/0", "in udp 54 0.0.0.0/0"], &[]);
    let to = |mac, n: u8| build::ethernet(A, mac).ipv4(IP_A, [10, 0, 0, n]);
    for (mac, n, id) in [(B, 2, "b"), (C, 3, "c")] {
        let back = build::ethernet(mac, A).ipv4([10, 0, 0, n], IP_A);
        net.expect("a", to(mac, n).tcp(&seg((5, 80), SYN, 99, 0), b""), id);
        net.expect(id, back.tcp(&seg((80, 5), SYN | ACK, 499, 100), b""), "a");
        net.expect("a", to(mac, n).tcp(&seg((5, 80), ACK, 100, 500), b""), id);
        net.expect("a", to(mac, n).udp(1, 51 + u16::from(n), b""), id);
    }
    // Out of window, known, denied; to b, c, d in turns.
    let far = |mac, n| to(mac, n).tcp(&seg((5, 80), ACK, 500_000, 500), b"x");
    let known = |mac, n: u8| to(mac, n).udp(1, 51 + u16::from(n), b"");
    let denied = |mac, n| to(mac, n).udp(1, 99, b"");
    let frames = [
        denied(D, 4),
        denied(B, 2),
        denied(C, 3),
        far(B, 2),
        far(C, 3),
        known(B, 2),
        known(C, 3),
        far(C, 3),
        denied(D, 4),
        known(B, 2),
        known(C, 3),
        denied(C, 3),
        far(B, 2),
    ];
    assert_eq!(net.host.guest("a").unwrap().send_batch(&frames).unwrap(), frames.len());
    net.host.settle();
    let received = net.host.received().unwrap();
    let counts = ["b", "c", "d"].map(|id| received.get(id).map_or(0, Vec::len));
    let moved = net.host.moved();
    let drops = |name: &str| moved.get(name).copied().unwrap_or(0);
    assert_eq!(counts, [2, 2, 2]);
    let names = [
        "b.drop.ingress-denied",
        "b.drop.tcp-window",
        "c.drop.ingress-denied",
        "c.drop.tcp-window",
    ];
    assert_eq!(names.map(drops), [1, 2, 2, 2]);
    assert_eq!(moved.keys().filter(|name| name.contains(".drop.")).count(), 4);
}

/// Of two that are filtered the receiver is charged; of one, that one.
#[test]
fn out_of_window_is_charged_to_who_is_protected() {
    for (group, charged) in [("g", "b.tcp-window"), ("*", "a.tcp-window")] {
        let mut net = Net::new(&[("a", A, "10.0.0.1", "g"), ("b", B, "10.0.0.2", group)]);
        net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
        established_at(&mut net, 80);
        net.expect("a", a_to_b().tcp(&seg((5, 80), ACK, 500_000, 500), b"x"), charged);
        net.expect("b", b_to_a().tcp(&seg((80, 5), ACK, 900_000, 100), b"x"), "a.tcp-window");
    }
}

/// To the second: 120 after it was attached, by either end's time.
#[test]
fn the_last_second_of_picking_up() {
    for (seconds, outcome) in [(119, "b"), (120, "a.tcp-no-session")] {
        let mut net = two("g");
        net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
        net.host.pass(seconds);
        net.expect("a", a_to_b().tcp(&seg((9, 80), ACK, 101, 501), b"x"), outcome);
    }
}

/// A batch changes a session in the same way, in whichever record it is.
#[test]
fn a_batch_knows_what_it_did_before() {
    let mut net = Net::with(
        SessionConfig { capacity: 65_536, ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")],
    );
    net.group("g", &["in tcp 0-65535 0.0.0.0/0"], &[]);
    for port in 0..300 {
        net.expect("a", a_to_b().tcp(&tcp((port, 9), SYN, 99, 0), b""), "b");
        net.expect("b", b_to_a().tcp(&tcp((9, port), SYN | ACK, 499, 100), b""), "a");
        net.expect("a", a_to_b().tcp(&tcp((port, 9), ACK, 100, 500), b""), "b");
    }
    for port in 0..300 {
        let (reset, late) = (tcp((port, 9), RST, 100, 0), tcp((port, 9), ACK, 100, 500));
        batch(
            &mut net,
            &[a_to_b().tcp(&reset, b""), a_to_b().tcp(&late, b"late"), a_to_b().tcp(&late, b"")],
        );
    }
    let (count, rows) = net.host.sessions(&SessionFilter::default(), 1000);
    assert_eq!(count, 300);
    for row in rows {
        assert_eq!(
            (row.state, row.packets, row.bytes),
            ("closed", [5, 1], [5 * 54 + 4, 54]),
            "{row:?}"
        );
    }
}

/// A session that ends in the middle of a batch leaves its record to the next one, with nothing of
/// its own.
#[test]
fn the_next_session_in_a_record_begins_anew() {
    let mut net = two("g");
    net.group("g", &["in tcp 80 0.0.0.0/0"], &[]);
    established_at(&mut net, 80);
    net.expect("b", b_to_a().tcp(&seg((80, 5), RST, 500, 0), b""), "a");
    let syn = a_to_b().tcp(&seg((5, 80), SYN, 70_000, 0), b"");
    batch(&mut net, &[a_to_b().tcp(&seg((5, 80), ACK, 100, 500), b"late"), syn.clone(), syn]);
    let rows = net.host.sessions(&SessionFilter::default(), 10).1;
    let found: Vec<_> = rows.iter().map(|row| (row.state, row.packets, row.bytes)).collect();
    assert_eq!(found, [("new", [2, 0], [2 * 54, 0])]);
    // Its numbers are those of its own SYN.
    net.expect("b", b_to_a().tcp(&seg((80, 5), SYN | ACK, 9, 70_001), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((5, 80), ACK, 70_001, 10), b""), "b");
}

fn established_at(net: &mut Net, port: u16) {
    net.expect("a", a_to_b().tcp(&seg((5, port), SYN, 99, 0), b""), "b");
    net.expect("b", b_to_a().tcp(&seg((port, 5), SYN | ACK, 499, 100), b""), "a");
    net.expect("a", a_to_b().tcp(&seg((5, port), ACK, 100, 500), b""), "b");
}

/// And so does one that makes way in the middle of a batch.
#[test]
fn a_session_that_makes_way_in_a_batch_leaves_nothing() {
    let mut net = Net::with(
        SessionConfig { capacity: 64, share: 100, ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")],
    );
    net.group("g", &["in udp 0-65535 0.0.0.0/0"], &[]);
    let used = |net: &Net| net.host.sessions(&SessionFilter::default(), 0).0;
    let mut port = 0;
    while used(&net) < 63 {
        if net.send("a", &a_to_b().udp(port, 9, b"")) == "b" {
            net.expect("b", b_to_a().udp(9, port, b""), "a");
        }
        port += 1;
    }
    while used(&net) < 64 {
        net.send("a", &a_to_b().udp(port, 9, b"")); // never answered
        port += 1;
    }
    let old = port - 1;
    let frame = |port: u16, len: usize| a_to_b().udp(port, 9, &vec![0; len]);
    for new in 1000..1040u16 {
        let known = if new == 1000 { old } else { new - 1 };
        batch(&mut net, &[frame(known, 0), frame(new, 100), frame(new, 50)]);
        let of = |port| SessionFilter { port: Some(port), ..SessionFilter::default() };
        let rows = net.host.sessions(&of(new), 10).1;
        assert_eq!(
            rows.iter().map(|row| (row.packets, row.bytes)).collect::<Vec<_>>(),
            [([2, 0], [234, 0])],
            "{new}"
        );
        assert_eq!((net.host.sessions(&of(known), 0).0, used(&net)), (0, 64));
    }
}

/// In its last second a session still lets frames through, in each direction; a second later it
/// does not.
#[test]
fn the_last_second_of_a_session() {
    for (seconds, passes) in [(30, true), (31, false)] {
        let mut net = two("g");
        net.group("g", &["out udp 1-9 0.0.0.0/0"], &[]);
        net.expect("b", b_to_a().udp(7, 9, b"?"), "a");
        net.host.pass(seconds);
        net.expect("a", a_to_b().udp(9, 7, b"!"), if passes { "b" } else { "b.ingress-denied" });
        net.host.pass(if passes { 60 } else { 0 });
        net.group("g", &["out udp 1-9 0.0.0.0/0", "out udp 99 0.0.0.0/0"], &[]);
        net.expect("a", a_to_b().udp(9, 7, b"!"), if passes { "b" } else { "b.ingress-denied" });
    }
}

/// An error passes by a session of its receiver, in the direction that is quoted.
#[test]
fn errors_quote_what_their_receiver_sent() {
    let mut net = Net::new(&[
        ("a", A, "10.0.0.1", "*"),
        ("b", B, "10.0.0.2", "g"),
        ("c", C, "10.0.0.3", "g"),
    ]);
    let asked = b_to_a().udp(6000, 5000, b"question");
    let answered = a_to_b().udp(5000, 6000, b"answer");
    net.expect("b", asked.clone(), "a");
    net.expect("a", answered.clone(), "b");
    let error = |from, to, (source, destination), quoted: &[u8]| {
        build::ethernet(from, to).ipv4(source, destination).icmp(3, 3, 0, &quoted[14..14 + 28])
    };
    net.expect("a", error(A, B, (IP_A, IP_B), &asked), "b");
    net.expect("b", error(B, A, (IP_B, IP_A), &answered), "a");
    // To another vnic, as if it had those addresses: neither end's packets are its own.
    net.expect("a", error(A, C, (IP_A, IP_B), &asked), "c.ingress-denied");
    net.expect("b", error(B, C, (IP_B, IP_A), &answered), "c.ingress-denied");
    // To one end about what the other one sent.
    net.expect("a", error(A, B, (IP_A, IP_A), &answered), "b.ingress-denied");
    // And about what was said between other ports, or in another protocol.
    net.expect("a", error(A, B, (IP_A, IP_B), &b_to_a().udp(6000, 5001, b"")), "b.ingress-denied");
    net.expect(
        "a",
        error(A, B, (IP_A, IP_B), &b_to_a().tcp(&seg((6000, 5000), ACK, 1, 1), b"")),
        "b.ingress-denied",
    );
}

/// Also of a vnic that came with the last change.
#[test]
fn a_new_vnic_is_an_end_of_its_sessions() {
    let mut net = two("g");
    net.expect("b", b_to_a().udp(1, 2, b""), "a");
    let of = |nic: &str| SessionFilter { nic: Some(nic.to_owned()), ..SessionFilter::default() };
    for nic in ["a", "b"] {
        let [row] = &net.host.sessions(&of(nic), 10).1[..] else { panic!("{nic}") };
        assert_eq!(
            (row.opener.nic.as_deref(), row.responder.nic.as_deref()),
            (Some("b"), Some("a"))
        );
    }
}

/// A filter lists, counts and flushes the same sessions.
#[test]
fn sessions_are_chosen_by_each_of_their_properties() {
    let mut net = Net::new(&[
        ("a", A, "10.0.0.1", "*"),
        ("b", B, "10.0.0.2", "g"),
        ("c", C, "10.0.0.3", "*"),
    ]);
    net.group("g", &["in any 0 0.0.0.0/0", "in any 0 ::/0"], &[]);
    net.expect("a", a_to_b().udp(1, 2, b""), "b");
    net.expect("a", a_to_b().tcp(&seg((1, 3), SYN, 1, 0), b""), "b");
    net.expect("c", build::ethernet(C, B).ipv4([10, 0, 0, 3], IP_B).udp(4, 2, b""), "b");
    net.expect("b", build::ethernet(B, C).vlan(7).ipv4(IP_B, [10, 0, 0, 3]).udp(5, 6, b""), "c");
    let all = SessionFilter::default();
    let of = |nic: &str| SessionFilter { nic: Some(nic.to_owned()), ..SessionFilter::default() };
    let address = |text: &str| SessionFilter {
        address: Some(text.parse().unwrap()),
        ..SessionFilter::default()
    };
    let port = |port| SessionFilter { port: Some(port), ..SessionFilter::default() };
    let protocol =
        |protocol| SessionFilter { protocol: Some(protocol), ..SessionFilter::default() };
    for (filter, count) in [
        (all.clone(), 4),
        (of("a"), 2),
        (of("b"), 4),
        (of("c"), 2),
        (of("d"), 0),
        (SessionFilter { vni: Some(1), ..all.clone() }, 4),
        (SessionFilter { vni: Some(2), ..all.clone() }, 0),
        (protocol(17), 3),
        (protocol(6), 1),
        (protocol(1), 0),
        (address("10.0.0.1"), 2),
        (address("10.0.0.2"), 4),
        (address("10.0.0.9"), 0),
        (port(1), 2),
        (port(2), 2),
        (port(6), 1),
        (port(7), 0),
        (SessionFilter { port: Some(2), ..of("a") }, 1),
        (SessionFilter { protocol: Some(6), port: Some(2), ..all.clone() }, 0),
    ] {
        let (found, rows) = net.host.sessions(&filter, 10);
        assert_eq!((found, rows.len() as u64), (count, count), "{filter:?}");
        assert_eq!(net.host.sessions(&filter, 1).1.len() as u64, count.min(1));
        assert_eq!(net.host.sessions(&filter, 0), (count, vec![]));
    }
    // All of a row.
    net.host.pass(3);
    net.expect(
        "c",
        build::ethernet(C, B).vlan(7).ipv4([10, 0, 0, 3], IP_B).udp(6, 5, b"answer"),
        "b",
    );
    net.host.pass(2);
    let [row] = &net.host.sessions(&port(6), 10).1[..] else { panic!() };
    assert_eq!((row.vni, row.vlan, row.protocol, row.state), (1, Some(7), 17, "answered"));
    assert_eq!((row.age, row.idle, row.expires), (5, 2, 58));
    assert_eq!((row.packets, row.bytes), ([1, 1], [46, 52]));
    let end = |end: &butterfly_datapath::SessionEnd| {
        (end.nic.clone().unwrap(), end.address.to_string(), end.port)
    };
    assert_eq!(end(&row.opener), ("b".to_owned(), "10.0.0.2".to_owned(), 5));
    assert_eq!(end(&row.responder), ("c".to_owned(), "10.0.0.3".to_owned(), 6));
    use butterfly_datapath::Admission;
    assert_eq!(row.rule, [Admission::DefaultEgress, Admission::Bypass]);
    let [row] = &net.host.sessions(&protocol(6), 10).1[..] else { panic!() };
    let admitted = Admission::Rule { group: name("g"), rule: rule("in any 0 0.0.0.0/0") };
    assert_eq!((&row.rule, row.vlan), (&[Admission::Bypass, admitted], None));
    // What a rule admitted that is gone is decided again, and says so.
    net.group("g", &["in udp 0-65535 0.0.0.0/0"], &[]);
    let [row] = &net.host.sessions(&protocol(6), 10).1[..] else { panic!() };
    assert_eq!(row.rule, [Admission::Bypass, Admission::Gone]);
    assert_eq!((net.host.flush_sessions(&of("d")), net.host.flush_sessions(&protocol(6))), (0, 1));
    assert_eq!((net.host.flush_sessions(&of("a")), net.host.sessions(&all, 0).0), (1, 2));
    // A vnic that is gone is no end of it.
    net.host.remove("c");
    assert!(
        net.host
            .sessions(&all, 10)
            .1
            .iter()
            .all(|row| row.opener.nic.is_none() || row.responder.nic.is_none())
    );
    assert_eq!((net.host.flush_sessions(&all), net.host.sessions(&all, 0).0), (2, 0));
}

/// How a session comes to be in a state, of which protocol; how long that lasts; and whether it
/// stays when there is no room for another.
type Kind = (fn(&mut Net), &'static str, u32, bool);

const KINDS: [Kind; 15] = [
    (syn_received, "6 syn-received", 30, false),
    (established, "6 established", 86_400, true),
    (half_closed, "6 half-closed", 21_600, true),
    (closing, "6 closing", 10, false),
    (time_wait, "6 time-wait", 240, false),
    (closed, "6 closed", 10, false),
    (picked_up, "6 picked-up", 30, false),
    (taken_up, "6 established", 86_400, true),
    (asks, "17 new", 30, false),
    (talks, "17 answered", 60, true),
    (init, "132 new", 30, false),
    (association, "132 established", 300, true),
    (gre, "47 new", 60, false),
    (tunnel, "47 answered", 60, true),
    (ping, "1 echo", 30, false),
];

/// One session of this kind, in a table of which each vnic has `share` percent.
fn one_session(share: u32, (talk, state, ..): Kind) -> Net {
    let config = SessionConfig { capacity: 64, share, ..SessionConfig::default() };
    let mut net = Net::with(config, &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")]);
    net.group("g", &["in any 0 0.0.0.0/0"], &[]);
    talk(&mut net);
    let rows = net.host.sessions(&Default::default(), 10).1;
    let found: Vec<String> =
        rows.iter().map(|row| format!("{} {}", row.protocol, row.state)).collect();
    assert_eq!(found, [state]);
    net
}

#[test]
fn who_is_connected_is_not_given_up_for_others() {
    for kind in KINDS {
        let mut net = one_session(1, kind);
        let outcome = net.send("a", &a_to_b().udp(1, 2, b""));
        assert_eq!(outcome, if kind.3 { "a.session-share" } else { "b" }, "{}", kind.1);
    }
}

#[test]
fn a_session_lasts_as_long_as_its_state() {
    for kind in KINDS {
        let mut net = one_session(25, kind);
        let left = |net: &Net| net.host.sessions(&Default::default(), 10).0;
        net.host.pass(kind.2);
        assert_eq!(left(&net), 1, "{}", kind.1);
        net.host.pass(1);
        assert_eq!(left(&net), 0, "{}", kind.1);
    }
}

#[test]
fn a_full_table_never_forgets_who_is_connected() {
    let mut net = Net::with(
        SessionConfig { capacity: 64, share: 100, ..SessionConfig::default() },
        &[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")],
    );
    net.group("g", &["in udp 0-65535 0.0.0.0/0"], &[]);
    let mut answered = Vec::new();
    for port in 0..200 {
        if net.send("a", &a_to_b().udp(port, 9, b"")) == "b" {
            net.expect("b", b_to_a().udp(9, port, b""), "a");
            answered.push(port);
        }
    }
    assert_eq!(answered.len(), 64);
    net.expect("a", a_to_b().udp(7777, 9, b""), "a.sessions-full");
    net.group("g", &["in udp 1 10.1.1.1/32"], &[]);
    net.group("g", &["in udp 0-65535 0.0.0.0/0"], &[]);
    for port in answered {
        net.expect("a", a_to_b().udp(port, 9, b""), "b");
    }
    // Those that were never answered make way for new ones.
    net.host.pass(70);
    for port in 1000..1200 {
        net.expect("a", a_to_b().udp(port, 9, b""), "b");
    }
}

#[test]
fn a_vnic_that_comes_back_begins_anew() {
    let mut net = two("g");
    net.expect("b", b_to_a().udp(1, 2, b""), "a");
    net.host.remove("b");
    net.host.declare("b", B, 1, &policy("10.0.0.2", "g")).unwrap();
    let config = GuestConfig::default();
    net.host.attach("b", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    net.host.moved();
    net.expect("a", a_to_b().udp(2, 1, b""), "b.ingress-denied");
}

#[test]
fn when_numbers_of_changes_begin_anew_nothing_is_forgotten() {
    let mut net = two("g");
    net.group("g", &["in udp 10 0.0.0.0/0", "in udp 20 0.0.0.0/0"], &[]);
    net.host.near_last_version();
    for port in [10, 20] {
        net.expect("a", a_to_b().udp(5, port, b""), "b");
    }
    net.expect("b", b_to_a().udp(77, 78, b""), "a");
    for round in 0..4 {
        net.change("g", GroupChange::AddRule(rule("in tcp 1 0.0.0.0/0")));
        net.change("g", GroupChange::RemoveRule(rule("in tcp 1 0.0.0.0/0")));
        net.expect("a", a_to_b().udp(5, 10, b""), "b");
        net.expect("a", a_to_b().udp(78, 77, b""), "b");
        assert_eq!(net.host.sessions(&Default::default(), 10).0, 3, "round {round}");
    }
    net.change("g", GroupChange::RemoveRule(rule("in udp 10 0.0.0.0/0")));
    net.expect("a", a_to_b().udp(5, 10, b""), "b.ingress-denied");
    net.expect("a", a_to_b().udp(5, 20, b""), "b");
}

/// Makes a net with its table in a file. Also returns a function that counts the sessions that
/// could go on if this daemon died now.
fn in_file(vnics: &[(&str, Mac, &str, &str)]) -> (Net, impl Fn(&Net) -> u64) {
    let file = |of: &str| Some(format!("butterfly-test-{of}-{}", std::process::id()));
    let sessions = |file| SessionConfig { capacity: 4096, file, ..SessionConfig::default() };
    let net = Net::with(sessions(file("walk")), vnics);
    let next = move |net: &Net| {
        let next = file("next");
        let path = std::path::Path::new("/dev/shm").join(next.as_deref().unwrap());
        std::fs::copy(net.host.session_file().unwrap(), path).unwrap();
        let host = Host::with_sessions(sessions(next)).unwrap();
        let [former] = host.former_tables() else { panic!("{:?}", host.former_tables()) };
        former.found.unwrap().sessions
    };
    (net, next)
}

#[test]
fn the_next_daemon_can_tell_whose_sessions_they_were() {
    let (mut net, next) = in_file(&[("a", A, "10.0.0.1", "*"), ("b", B, "10.0.0.2", "g")]);
    net.group("g", &["in udp 10 0.0.0.0/0"], &[]);
    assert_eq!(next(&net), 0);
    net.expect("a", a_to_b().udp(5, 10, b""), "b");
    net.expect("b", b_to_a().udp(77, 78, b""), "a");
    assert_eq!(next(&net), 2);
    // The same when the numbers of changes begin again.
    net.host.near_last_version();
    for round in 0..4 {
        net.change("g", GroupChange::AddRule(rule("in tcp 1 0.0.0.0/0")));
        net.expect("a", a_to_b().udp(6, 10, b""), "b");
        assert_eq!(next(&net), 3, "round {round}");
        net.change("g", GroupChange::RemoveRule(rule("in tcp 1 0.0.0.0/0")));
        assert_eq!(next(&net), 3, "round {round}");
    }
    // A later vnic in its slot is another one.
    net.host.remove("b");
    assert_eq!(next(&net), 0);
    net.host.declare("c", C, 1, &policy("10.0.0.3", "g")).unwrap();
    assert_eq!(next(&net), 0);
}

#[test]
fn discovery_speaks_for_oneself_whatever_the_rules() {
    let mut net = Net::new(&[("a", A, "fd00::1", "g"), ("b", B, "fd00::2", "*")]);
    net.group("g", &["out any 0 ::/0"], &[]);
    let (own, other) = (
        std::net::Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]),
        std::net::Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, 9]),
    );
    let advertise = |target: std::net::Ipv6Addr, mac: Mac| {
        let mut body = target.octets().to_vec();
        body.extend([2, 1]);
        body.extend(mac.0);
        build::ethernet(A, B).ipv6(own, [0xfd00u16, 0, 0, 0, 0, 0, 0, 2]).ttl(255).icmp(
            136,
            0,
            0x6000_0000,
            &body,
        )
    };
    net.expect("a", advertise(own, A), "b");
    net.expect("a", advertise(own, C), "a.bad-discovery");
    net.expect("a", advertise(other, A), "a.bad-discovery");
}

/// The rules that admitted them are still there, while others change.
#[test]
fn traffic_goes_on_while_members_come_and_go() {
    let mut net = two("g");
    net.group("g", &["in udp 0-65535 @friends"], &[]);
    net.change("friends", GroupChange::AddMember(IpAddr::from(IP_A).into()));
    let (changes, mut turns) = net.host.halves();
    // The worker is let go of in there in any case: otherwise a change would wait for it.
    std::thread::scope(move |scope| {
        let changing = scope.spawn(move || {
            for n in 0..100u32 {
                let member = IpAddr::from((0xac10_0000 + n).to_be_bytes());
                changes
                    .change_group(&name("friends"), GroupChange::AddMember(member.into()))
                    .unwrap();
                changes
                    .change_group(&name("friends"), GroupChange::RemoveMember(member.into()))
                    .unwrap();
            }
        });
        let (mut sent, mut received) = (0, 0);
        while !changing.is_finished() {
            turns
                .guest("a")
                .unwrap()
                .send(&a_to_b().udp(sent as u16 % 64, 9, b""), NetHeader::default())
                .unwrap();
            turns.turn();
            sent += 1;
            while turns.guest("b").unwrap().recv().unwrap().is_some() {
                received += 1;
            }
        }
        assert_eq!(received, sent);
    });
}
