//! DHCP and routers in packet walks: messages that a filtered vnic may send without a rule, and
//! messages that a rule for everything does not include.

use std::net::{IpAddr, Ipv6Addr};

use butterfly_datapath::{
    GroupChange, Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];
const NOBODY: [u8; 4] = [0; 4];
const ALL: [u8; 4] = [255; 4];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

/// `in 17 67-68 0.0.0.0/0`, `out -1 - ::/0`.
fn rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split(' ').collect();
    let [direction, protocol, ports, block] = words[..] else { panic!("{text}") };
    let direction = if direction == "in" { Direction::Inbound } else { Direction::Outbound };
    let (start, end) = ports.split_once('-').unwrap_or((ports, ports));
    let (address, bits) = block.split_once('/').unwrap();
    let cidr = Cidr::new(address, bits.parse().unwrap()).unwrap();
    Rule::new(
        direction,
        protocol.parse().unwrap(),
        (start.parse().ok(), end.parse().ok()),
        Some(cidr),
        None,
    )
    .unwrap()
}

struct Net(Host);

impl Net {
    /// "a" bypasses filters; "b" and "c" have the groups of their names.
    fn new() -> Net {
        let mut host = Host::new().unwrap();
        for (id, mac, ip) in [("a", A, 1), ("b", B, 2), ("c", C, 3)] {
            let policy = VnicPolicy {
                bypass: id == "a",
                ips: vec![IpAddr::from([10, 0, 0, ip])],
                groups: vec![name(id)],
                ..VnicPolicy::default()
            };
            let config = GuestConfig::default();
            host.declare(id, mac, 1, &policy).unwrap();
            host.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        }
        host.settle();
        host.moved();
        Net(host)
    }

    fn group(&self, group: &str, rules: &[&str]) {
        let group = SecurityGroup::new(
            name(group),
            std::iter::empty::<&str>(),
            rules.iter().map(|text| rule(text)),
        )
        .unwrap();
        self.0.change_group(&group.name().clone(), GroupChange::Declare(group)).unwrap();
    }

    fn router(&mut self, id: &str, router: bool) {
        let ips = vec![IpAddr::from(if id == "b" { IP_B } else { [10, 0, 0, 3] })];
        self.0
            .update(
                id,
                &VnicPolicy { router, ips, groups: vec![name(id)], ..VnicPolicy::default() },
            )
            .unwrap();
    }

    /// Sends a frame. Returns the receivers, and the drops of the others.
    fn send(&mut self, from: &str, frame: &[u8]) -> String {
        self.0.send(from, frame, NetHeader::default()).unwrap();
        let received = self.0.received().unwrap();
        assert!(received.values().flatten().all(|(_, got)| got == frame), "changed on its way");
        let moved = self.0.moved();
        let drops = moved
            .keys()
            .filter(|name| name.contains(".drop."))
            .map(|name| name.replace("drop.", ""));
        received.keys().cloned().chain(drops).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn expect(&mut self, from: &str, frame: &[u8], outcome: &str) {
        assert_eq!(self.send(from, frame), outcome);
    }
}

/// A DHCP message of a client's exchange.
#[derive(Clone, Copy)]
struct Message<'a> {
    kind: u8,
    xid: u32,
    client: Mac,
    yours: [u8; 4],
    server: [u8; 4],
    rest: &'a [u8],
}

fn message(kind: u8, xid: u32, client: Mac) -> Message<'static> {
    Message { kind, xid, client, yours: NOBODY, server: NOBODY, rest: &[] }
}

impl Message<'_> {
    fn bytes(&self) -> Vec<u8> {
        let asks = matches!(self.kind, 1 | 3 | 4 | 7 | 8);
        let mut bytes = vec![if asks { 1 } else { 2 }, 1, 6, 0];
        bytes.extend(self.xid.to_be_bytes());
        bytes.resize(16, 0);
        bytes.extend(self.yours);
        bytes.resize(28, 0);
        bytes.extend(self.client.0);
        bytes.resize(236, 0);
        bytes.extend([99, 130, 83, 99, 53, 1, self.kind]);
        if self.server != NOBODY {
            bytes.extend([54, 4]);
            bytes.extend(self.server);
        }
        bytes.push(255);
        bytes.resize(300, 0);
        bytes.extend(self.rest);
        bytes
    }

    fn asked(&self, from: (Mac, [u8; 4]), to: (Mac, [u8; 4])) -> Vec<u8> {
        build::ethernet(from.0, to.0).ipv4(from.1, to.1).udp(68, 67, &self.bytes())
    }

    fn answered(&self, from: (Mac, [u8; 4]), to: (Mac, [u8; 4])) -> Vec<u8> {
        build::ethernet(from.0, to.0).ipv4(from.1, to.1).udp(67, 68, &self.bytes())
    }
}

const EVERYBODY: (Mac, [u8; 4]) = (Mac::BROADCAST, ALL);

fn discover(xid: u32) -> Vec<u8> {
    message(DISCOVER, xid, B).asked((B, NOBODY), EVERYBODY)
}

/// An answer of "a" to "b".
fn answer(kind: u8, xid: u32) -> Vec<u8> {
    Message { yours: IP_B, server: IP_A, ..message(kind, xid, B) }.answered((A, IP_A), (B, IP_B))
}

/// With an allow-list of one TCP port, as without any rule.
#[test]
fn a_client_gets_its_lease_and_renews_it() {
    for rules in [&["out 6 80-80 10.0.0.1/32"][..], &[]] {
        let mut net = Net::new();
        net.group("b", rules);
        net.expect("b", &discover(1), "a c.ingress-denied");
        net.expect("a", &answer(OFFER, 1), "b");
        net.expect(
            "b",
            &message(REQUEST, 1, B).asked((B, NOBODY), EVERYBODY),
            "a c.ingress-denied",
        );
        // Broadcast, as the client asked for: to it alone.
        net.expect(
            "a",
            &Message { yours: IP_B, server: IP_A, ..message(ACK, 1, B) }
                .answered((A, IP_A), EVERYBODY),
            "b c.ingress-denied",
        );
        // Ten days later, straight to the server.
        net.0.pass(864_000);
        net.expect("b", &message(REQUEST, 9, B).asked((B, IP_B), (A, IP_A)), "a");
        net.expect("a", &answer(ACK, 9), "b");
        // The next program in the machine has a transaction of its own, and both are open.
        net.expect("b", &discover(10), "a c.ingress-denied");
        net.expect("b", &discover(11), "a c.ingress-denied");
        net.expect("a", &answer(OFFER, 10), "b");
        net.expect("a", &answer(OFFER, 11), "b");
        net.0.pass(61);
        net.expect("a", &answer(OFFER, 11), "b.ingress-denied");
    }
}

#[test]
fn what_is_not_dhcp_does_not_leave_by_its_ports() {
    let mut net = Net::new();
    net.group("b", &["out 6 80-80 10.0.0.1/32"]);
    let broadcast =
        |payload: &[u8]| build::ethernet(B, Mac::BROADCAST).ipv4(NOBODY, ALL).udp(68, 67, payload);
    net.expect("b", &broadcast(b"tunnel"), "b.bad-dhcp");
    net.expect("b", &broadcast(&[1; 400]), "b.bad-dhcp");
    let behind = Message { rest: b"tunnel", ..message(DISCOVER, 1, B) };
    net.expect("b", &behind.asked((B, NOBODY), EVERYBODY), "b.bad-dhcp");
    let large = Message { rest: &[0; 1173], ..message(DISCOVER, 1, B) };
    net.expect("b", &large.asked((B, NOBODY), EVERYBODY), "b.bad-dhcp");
    net.expect(
        "b",
        &Message { rest: &[0; 1172], ..large }.asked((B, NOBODY), EVERYBODY),
        "a c.ingress-denied",
    );
    net.expect("b", &message(DISCOVER, 1, C).asked((B, NOBODY), EVERYBODY), "b.bad-dhcp");
    net.expect("b", &message(DISCOVER, 1, B).asked((B, [10, 0, 0, 9]), EVERYBODY), "b.spoofed-ip");
    // Behind the packet.
    let mut padded = discover(1);
    padded.extend([0; 6]);
    net.expect("b", &padded, "b.bad-dhcp");
}

#[test]
fn a_client_asks_servers_that_answered() {
    let mut net = Net::new();
    net.group("b", &["out 6 80-80 10.0.0.1/32"]);
    let renew = |xid, to| message(REQUEST, xid, B).asked((B, IP_B), to);
    // None is known after a start: one a minute.
    net.expect("b", &renew(1, (A, IP_A)), "a");
    net.expect("b", &renew(1, (A, IP_A)), "b.dhcp-limit");
    net.0.pass(59);
    net.expect("b", &renew(1, (A, [10, 0, 0, 77])), "b.dhcp-limit");
    net.0.pass(1);
    net.expect("b", &renew(2, (A, IP_A)), "a");
    net.expect("a", &answer(ACK, 2), "b");
    (0..4).for_each(|_| net.expect("b", &renew(3, (A, IP_A)), "a"));
    net.0.pass(3600);
    net.expect("b", &renew(4, (A, [10, 0, 0, 77])), "b.egress-denied");
    net.group("b", &["out 17 67-67 10.0.0.77/32"]);
    net.expect("b", &renew(4, (A, [10, 0, 0, 77])), "a");
}

#[test]
fn a_client_asks_and_is_answered_a_few_times() {
    let mut net = Net::new();
    net.group("b", &["out 6 80-80 10.0.0.1/32"]);
    let outcomes: Vec<_> = (0..10).map(|_| net.send("b", &discover(1))).collect();
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "a c.ingress-denied").count(),
        8,
        "{outcomes:?}"
    );
    assert_eq!(outcomes[9], "b.dhcp-limit");
    let outcomes: Vec<_> = (0..10).map(|_| net.send("a", &answer(OFFER, 1))).collect();
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "b").count(), 8, "{outcomes:?}");
    assert_eq!(outcomes[9], "b.ingress-denied");
    // Each second brings four, of each family.
    for _ in 0..3 {
        net.0.pass(1);
        let outcomes: Vec<_> = (0..10).map(|_| net.send("b", &discover(1))).collect();
        assert_eq!(
            outcomes.iter().filter(|outcome| *outcome == "a c.ingress-denied").count(),
            4,
            "{outcomes:?}"
        );
        assert_eq!(outcomes[4], "b.dhcp-limit");
    }
    // Several receive it, and it counts once.
    let broadcast = Message { yours: IP_B, ..message(OFFER, 1, B) }.answered((A, IP_A), EVERYBODY);
    let outcomes: Vec<_> = (0..10).map(|_| net.send("a", &broadcast)).collect();
    assert_eq!(
        outcomes.iter().filter(|outcome| *outcome == "b c.ingress-denied").count(),
        8,
        "{outcomes:?}"
    );
}

#[test]
fn answers_are_to_what_was_asked() {
    let mut net = Net::new();
    net.expect("b", &discover(7), "a c.ingress-denied");
    let good = Message { yours: IP_B, server: IP_A, ..message(OFFER, 7, B) };
    for (frame, why) in [
        (Message { xid: 8, ..good }.answered((A, IP_A), (B, IP_B)), "another transaction"),
        (Message { client: C, ..good }.answered((A, IP_A), (B, IP_B)), "another client"),
        (Message { kind: 9, ..good }.answered((A, IP_A), (B, IP_B)), "nothing that answers"),
        (Message { rest: b"x", ..good }.answered((A, IP_A), (B, IP_B)), "something behind it"),
        (good.answered((A, IP_A), (B, [10, 0, 0, 9])), "an address that it does not give"),
        (build::ethernet(A, B).ipv4(IP_A, IP_B).udp(67, 68, b"anything"), "no message"),
    ] {
        assert_eq!(net.send("a", &frame), "b.ingress-denied", "{why}");
    }
    net.expect("a", &good.answered((A, IP_A), (B, IP_B)), "b");
}

fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0.map(u16::from);
    Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
}

const GROUP: Mac = Mac([0x33, 0x33, 0, 1, 0, 2]);
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const CLIENT_ID: [u8; 14] = [0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0xb];
const SERVER_ID: [u8; 14] = [0, 2, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0xa];

fn asks6(from: Mac, to: (Mac, Ipv6Addr), kind: u8, rest: &[u8]) -> Vec<u8> {
    build::ethernet(from, to.0).ipv6(link_local(from), to.1).udp(
        546,
        547,
        &[&[kind, 0, 0, 9], &CLIENT_ID[..], rest].concat(),
    )
}

fn answers6(from: Mac, to: Mac, kind: u8, xid: u8) -> Vec<u8> {
    let message = [&[kind, 0, 0, xid], &CLIENT_ID[..], &SERVER_ID].concat();
    build::ethernet(from, to).ipv6(link_local(from), link_local(to)).udp(547, 546, &message)
}

#[test]
fn a_client_of_ipv6() {
    let mut net = Net::new();
    net.group("b", &["out 6 80-80 10.0.0.1/32"]);
    net.expect("b", &asks6(B, (GROUP, SERVERS), 1, b"tunnel"), "b.bad-dhcp");
    net.expect("b", &asks6(B, (A, link_local(A)), 1, &[]), "b.egress-denied");
    net.expect("a", &answers6(A, B, 2, 9), "b.ingress-denied");
    net.expect("b", &asks6(B, (GROUP, SERVERS), 1, &[]), "a c.ingress-denied");
    net.expect("a", &answers6(A, B, 2, 8), "b.ingress-denied");
    net.expect("a", &answers6(A, B, 10, 9), "b.ingress-denied");
    for n in 0..10 {
        net.expect("a", &answers6(A, B, 2, 9), if n < 8 { "b" } else { "b.ingress-denied" });
    }
}

/// "b" is a DHCP server by INBOUND rules alone, for a client that bypasses filters and one that
/// does not.
#[test]
fn a_server_answers_whom_a_rule_let_ask() {
    for outbound in [None, Some("out -1 - 0.0.0.0/0"), Some("out 6 80-80 10.0.0.1/32")] {
        let mut net = Net::new();
        let rules: Vec<&str> = ["in 17 67-68 0.0.0.0/0"].into_iter().chain(outbound).collect();
        net.group("b", &rules);
        for (id, client, ip, others) in
            [("a", A, IP_A, "b c.ingress-denied"), ("c", C, [10, 0, 0, 3], "a b")]
        {
            let offer = |xid, to: (Mac, [u8; 4])| {
                Message { yours: ip, server: IP_B, ..message(OFFER, xid, client) }
                    .answered((B, IP_B), to)
            };
            net.expect("b", &offer(5, (client, ip)), "b.egress-denied");
            net.expect(
                id,
                &message(DISCOVER, 5, client).asked((client, NOBODY), EVERYBODY),
                others,
            );
            net.expect("b", &offer(6, (client, ip)), "b.egress-denied");
            net.expect("b", &offer(5, (client, [10, 0, 0, 77])), "b.egress-denied");
            net.expect("b", &offer(5, (client, ip)), id);
            let everybody = if id == "a" { "a c.ingress-denied" } else { "a c" };
            net.expect("b", &offer(5, EVERYBODY), everybody);
            for n in 2..10 {
                net.expect(
                    "b",
                    &offer(5, (client, ip)),
                    if n < 8 { id } else { "b.egress-denied" },
                );
            }
            // A renewal is unicast both ways.
            net.expect(id, &message(REQUEST, 7, client).asked((client, ip), (B, IP_B)), "b");
            net.expect(
                "b",
                &Message { yours: ip, server: IP_B, ..message(ACK, 7, client) }
                    .answered((B, IP_B), (client, ip)),
                id,
            );
            net.0.pass(61);
            net.expect("b", &offer(7, (client, ip)), "b.egress-denied");
        }
        // A relay speaks from a server's port.
        net.expect(
            "a",
            &build::ethernet(A, B).ipv4(IP_A, IP_B).udp(67, 67, &message(DISCOVER, 1, C).bytes()),
            "b",
        );
        net.expect(
            "b",
            &build::ethernet(B, A).ipv4(IP_B, IP_A).udp(67, 67, &message(OFFER, 1, C).bytes()),
            "a",
        );
    }
}

/// A flood of requests to a server does not make it forget those of others. A guest cannot choose
/// which requests it replaces, and of a vnic without a filter only a few are noted.
#[test]
fn requests_of_one_do_not_push_out_those_of_others() {
    let mut net = Net::new();
    net.group("b", &["in 17 67-68 0.0.0.0/0"]);
    for round in 0..8 {
        let asks = message(DISCOVER, 0x7777 + round, C).asked((C, NOBODY), EVERYBODY);
        net.expect("c", &asks, "a b");
        for xid in 0..4096 {
            net.0
                .send(
                    "a",
                    &message(DISCOVER, 0x10_0000 + xid, A).asked((A, NOBODY), (B, IP_B)),
                    NetHeader::default(),
                )
                .unwrap();
            net.0.received().unwrap();
        }
        net.0.moved();
        let offer =
            Message { yours: [10, 0, 0, 3], server: IP_B, ..message(OFFER, 0x7777 + round, C) };
        net.expect("b", &offer.answered((B, IP_B), (C, [10, 0, 0, 3])), "c");
        net.0.pass(61);
    }
}

#[test]
fn a_server_of_ipv6() {
    let mut net = Net::new();
    net.group("b", &["in 17 547-547 fe80::/10"]);
    net.expect("b", &answers6(B, A, 2, 9), "b.egress-denied");
    net.expect("a", &asks6(A, (GROUP, SERVERS), 1, &[]), "b c.ingress-denied");
    net.expect("b", &answers6(B, C, 2, 9), "b.egress-denied");
    net.expect("b", &answers6(B, A, 2, 9), "a");
    net.expect("c", &asks6(C, (GROUP, SERVERS), 1, &[]), "a b");
    net.expect("b", &answers6(B, C, 2, 9), "c");
}

/// Everything is not DHCP: a wide rule lets requests in, and their answers do not leave.
#[test]
fn everything_makes_no_dhcp_server() {
    let mut net = Net::new();
    let asks = message(DISCOVER, 5, A).asked((A, NOBODY), EVERYBODY);
    let offer = Message { yours: IP_A, server: IP_B, ..message(OFFER, 5, A) };
    for (rules, served) in [
        (&["in -1 - 0.0.0.0/0", "out -1 - 0.0.0.0/0"][..], false),
        (&["in 17 0-65535 0.0.0.0/0"], false),
        (&["in 17 60-76 0.0.0.0/0"], false),
        (&["in -1 - 0.0.0.0/0", "out 17 68-68 0.0.0.0/0"], false),
        (&["in -1 - 0.0.0.0/0", "in 17 67-67 10.9.0.0/16"], false),
        (&["in 17 60-75 0.0.0.0/0"], true),
    ] {
        net.group("b", rules);
        net.expect("a", &asks, "b c.ingress-denied");
        net.expect(
            "b",
            &offer.answered((B, IP_B), (A, IP_A)),
            if served { "a" } else { "b.egress-denied" },
        );
        // Many clients look at their own port only.
        let odd = build::ethernet(B, A).ipv4(IP_B, IP_A).udp(1067, 68, &offer.bytes());
        let named = rules.contains(&"out 17 68-68 0.0.0.0/0");
        net.expect("b", &odd, if named { "a" } else { "b.egress-denied" });
        net.0.pass(61);
    }
}

/// Router advertisements and redirects of either family.
#[test]
fn everything_makes_no_router() {
    let mut net = Net::new();
    let everything = ["out -1 - 0.0.0.0/0", "out -1 - ::/0"];
    let named = ["out -1 - 0.0.0.0/0", "out -1 - ::/0", "out 58 - ::/0", "out 1 - 0.0.0.0/0"];
    let all_nodes = (Mac([0x33, 0x33, 0, 0, 0, 1]), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let advertisement = build::ethernet(B, all_nodes.0)
        .ipv6(link_local(B), all_nodes.1)
        .ttl(255)
        .icmp(134, 0, 0, &[0; 8]);
    let redirect =
        build::ethernet(B, A).ipv6(link_local(B), link_local(A)).ttl(255).icmp(137, 0, 0, &[0; 32]);
    let v4 = |kind| build::ethernet(B, A).ipv4(IP_B, IP_A).icmp(kind, 0, 0, &[0; 28]);
    for (rules, router) in
        [(&everything[..], false), (&everything[..], true), (&named[..], false), (&named[..], true)]
    {
        net.group("b", rules);
        net.router("b", router);
        let may = router && rules.len() > 2;
        net.expect("b", &advertisement, if may { "a c" } else { "b.bad-discovery" });
        net.expect("b", &redirect, if may { "a" } else { "b.bad-discovery" });
        for kind in [5, 9] {
            net.expect("b", &v4(kind), if may { "a" } else { "b.egress-denied" });
        }
        net.expect("b", &v4(13), "a");
    }
}

/// Requests that a rule lets out have a pace of their own: 64 at once, and 16 per second.
#[test]
fn by_a_rule_a_client_asks_more_often() {
    let mut net = Net::new();
    net.group("b", &["out 17 67-67 10.0.0.1/32"]);
    let relayed = build::ethernet(B, A).ipv4(IP_B, IP_A).udp(68, 67, &[1; 300]);
    let mut passed = || {
        let outcomes: Vec<String> = (0..100).map(|_| net.send("b", &relayed)).collect();
        let passed = outcomes.iter().take_while(|outcome| *outcome == "a").count();
        assert!(outcomes[passed..].iter().all(|outcome| outcome == "b.dhcp-limit"), "{outcomes:?}");
        net.0.pass(1);
        passed
    };
    assert_eq!([passed(), passed(), passed()], [64, 16, 16]);
}

/// A client knows the server that gave its lease and the last three that offered one.
#[test]
fn a_client_asks_the_servers_it_heard_of() {
    let mut net = Net::new();
    net.group("b", &["out 6 80-80 10.0.0.1/32"]);
    net.expect("b", &discover(1), "a c.ingress-denied");
    let server = |n: u8| [10, 0, 0, n];
    for n in 11..=14 {
        let offer = Message { yours: IP_B, server: server(n), ..message(OFFER, 1, B) };
        net.expect("a", &offer.answered((A, server(n)), (B, IP_B)), "b");
    }
    let given = Message { yours: IP_B, server: server(20), ..message(ACK, 1, B) };
    net.expect("a", &given.answered((A, server(20)), (B, IP_B)), "b");
    for (n, outcome) in [
        (20, "a"),
        (11, "b.egress-denied"),
        (12, "a"),
        (13, "a"),
        (14, "a"),
        (15, "b.egress-denied"),
    ] {
        net.expect("b", &message(REQUEST, 2, B).asked((B, IP_B), (A, server(n))), outcome);
    }
}

/// Each request of a vnic without a filter counts once in a second, to one server or to all.
#[test]
fn a_broadcast_request_is_noted_once() {
    for to in [EVERYBODY, (B, IP_B)] {
        let mut net = Net::new();
        net.group("b", &["in 17 67-67 0.0.0.0/0"]);
        for xid in 1..301 {
            net.0
                .send("a", &message(DISCOVER, xid, A).asked((A, NOBODY), to), NetHeader::default())
                .unwrap();
            net.0.received().unwrap();
        }
        let offer = |xid| {
            Message { yours: IP_A, server: IP_B, ..message(OFFER, xid, A) }
                .answered((B, IP_B), (A, IP_A))
        };
        let answered = |net: &mut Net, xids: std::ops::Range<u32>| {
            xids.filter(|xid| net.send("b", &offer(*xid)) == "a").count()
        };
        let noted = answered(&mut net, 1..301);
        assert!((255..=256).contains(&noted), "{noted}");
        net.0.pass(1);
        for xid in 1000..1100 {
            net.0
                .send("a", &message(DISCOVER, xid, A).asked((A, NOBODY), to), NetHeader::default())
                .unwrap();
            net.0.received().unwrap();
        }
        let noted = answered(&mut net, 1000..1100);
        assert!((60..=64).contains(&noted), "{noted}");
    }
}

/// A request is answered as long as the rule is there that let it in.
#[test]
fn no_answer_outlives_its_rule() {
    let mut net = Net::new();
    let offer = Message { yours: IP_A, server: IP_B, ..message(OFFER, 9, A) }
        .answered((B, IP_B), (A, IP_A));
    let request = message(DISCOVER, 9, A).asked((A, NOBODY), (B, IP_B));
    net.group("b", &["in 17 67-67 0.0.0.0/0"]);
    net.expect("a", &request, "b");
    net.expect("b", &offer, "a");
    net.group("b", &[]);
    net.expect("b", &offer, "b.egress-denied");
    // Nor is it one again when the rule comes back.
    net.group("b", &["in 17 67-67 0.0.0.0/0"]);
    net.expect("b", &offer, "b.egress-denied");
    net.expect("a", &request, "b");
    net.expect("b", &offer, "a");
}
