//! Rules open exactly the packets that they name, towards a vnic and out of it, in both families.

use butterfly_packet::{build::Ip, sctp, tcp::SYN};
use butterfly_tests::groups;
use butterfly_tests::net::{Net, filtered, ip4, ip6, open, segment, v4, v6};

const A: u8 = 1;
const B: u8 = 2;
/// GRE (RFC 2784), a protocol without ports.
const GRE: u8 = 47;

/// Kinds of packets that rules distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Tcp(u16),
    Udp(u16),
    Icmp,
    IcmpV6,
    Sctp,
    Gre,
}

const KINDS: [Kind; 13] = [
    Kind::Tcp(0),
    Kind::Tcp(79),
    Kind::Tcp(80),
    Kind::Tcp(90),
    Kind::Tcp(91),
    Kind::Tcp(65535),
    Kind::Udp(79),
    Kind::Udp(80),
    Kind::Udp(91),
    Kind::Icmp,
    Kind::IcmpV6,
    Kind::Sctp,
    Kind::Gre,
];

/// Returns the first packet of a new session; `number` makes it different from all before.
fn packet(kind: Kind, ip: &Ip, number: u16) -> Vec<u8> {
    match kind {
        Kind::Tcp(port) => ip.tcp(&segment((number, port), SYN, 1, 0), b""),
        Kind::Udp(port) => ip.udp(number, port, b"?"),
        Kind::Icmp | Kind::IcmpV6 => ip.ping(number, 1, b"?"),
        Kind::Sctp => ip.sctp((number, 80), 0, sctp::INIT, &[0; 16]),
        Kind::Gre => ip.payload(GRE, &number.to_be_bytes()),
    }
}

/// True for the kinds of packets that a rule should match.
type Matches = fn(Kind) -> bool;

/// Rules without direction and peer, and the kinds of packets that they should match.
const RULES: [(&str, Matches); 9] = [
    ("tcp 80-90", |kind| matches!(kind, Kind::Tcp(80..=90))),
    ("tcp 80-80", |kind| kind == Kind::Tcp(80)),
    ("tcp 0-65535", |kind| matches!(kind, Kind::Tcp(_))),
    ("udp 80-90", |kind| matches!(kind, Kind::Udp(80..=90))),
    ("icmp -", |kind| kind == Kind::Icmp),
    ("icmpv6 -", |kind| kind == Kind::IcmpV6),
    ("sctp -", |kind| kind == Kind::Sctp),
    ("47 -", |kind| kind == Kind::Gre),
    ("any -", |_| true),
];

/// Tests every kind of packet with every kind of rule, and peers of both families. `from` sends,
/// and the rule has this `direction`.
fn opens_exactly(
    direction: &str,
    from: (&str, u8),
    to: (&str, u8),
    refused: &str,
    nics: &[butterfly_tests::Nic],
) {
    let Some(mut net) = Net::new(nics) else { return };
    let peer = if direction == "in" { from.1 } else { to.1 };
    let peers = [
        (ip4(peer), 32, true, false),
        (ip6(peer), 128, false, true),
        ("0.0.0.0".into(), 0, true, false),
        ("::".into(), 0, false, true),
        (ip4(200), 24, true, false), // host bits mean nothing
        (ip6(200), 64, false, true),
        (ip4(200), 32, false, false),
        (ip6(200), 128, false, false),
        (ip4(64), 26, false, false),
    ];
    let mut number = 1;
    for (at, (rule, matches)) in RULES.into_iter().enumerate() {
        for (n, (address, bits, opens_v4, opens_v6)) in peers.iter().enumerate() {
            if n >= 4 && at % 4 != 0 {
                continue; // a few protocols are enough for these peers
            }
            let text = format!("{direction} {rule} {address}/{bits}");
            net.group("g", &[&text], &[]);
            for (ip, family) in [(v4(from.1, to.1), *opens_v4), (v6(from.1, to.1), *opens_v6)] {
                for kind in KINDS {
                    let is_v4 = address_family(&ip);
                    if (kind == Kind::Icmp && !is_v4) || (kind == Kind::IcmpV6 && is_v4) {
                        continue;
                    }
                    number += 1;
                    let allowed = family && matches(kind);
                    let frame = packet(kind, &ip, number);
                    let outcome = net.send(from.0, &frame);
                    assert_eq!(
                        outcome,
                        if allowed { to.0 } else { refused },
                        "{text}: {kind:?}, IPv{}",
                        if is_v4 { 4 } else { 6 }
                    );
                }
            }
        }
    }
}

/// Returns true for IPv4.
fn address_family(ip: &Ip) -> bool {
    ip.payload(0, b"")[12..14] == [8, 0]
}

#[test]
fn inbound_rules_open_what_they_say() {
    opens_exactly(
        "in",
        ("a", A),
        ("b", B),
        "b.ingress-denied",
        &[open("a", A), filtered("b", B, "g")],
    );
}

#[test]
fn outbound_rules_open_what_they_say() {
    opens_exactly(
        "out",
        ("b", B),
        ("a", A),
        "b.egress-denied",
        &[open("a", A), filtered("b", B, "g")],
    );
}

/// With a filter at both ends, the sender's egress and the receiver's ingress must allow a packet.
#[test]
fn both_ends_must_allow() {
    let Some(mut net) = Net::new(&[filtered("a", A, "out"), filtered("b", B, "in")]) else {
        return;
    };
    for (ip, any) in [(v4(A, B), "0.0.0.0/0"), (v6(A, B), "::/0")] {
        let (to_52, to_53) = (format!("out udp 52-52 {any}"), format!("out udp 53-53 {any}"));
        net.group("in", &[], &[]);
        net.group("out", &[], &[]);
        net.expect("a", &ip.udp(1, 53, b""), "b.ingress-denied");
        net.rule_add("in", &format!("in udp 53-53 {any}"));
        net.expect("a", &ip.udp(2, 53, b""), "b");
        net.rule_add("out", &to_52);
        net.expect("a", &ip.udp(3, 53, b""), "a.egress-denied");
        net.expect("a", &ip.udp(3, 52, b""), "b.ingress-denied");
        net.rule_add("out", &to_53);
        net.expect("a", &ip.udp(4, 53, b""), "b");
        // Rules of the other direction have no effect.
        net.group("in", &[&to_53], &[]);
        net.expect("a", &ip.udp(5, 53, b""), "b.ingress-denied");
    }
}

#[test]
fn rules_of_all_groups_cumulate() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "one two three")]) else {
        return;
    };
    net.group("one", &["in udp 1-1 0.0.0.0/0"], &[]);
    net.group("two", &["in udp 2-2 0.0.0.0/0", "in udp 5-9 0.0.0.0/0"], &[]);
    let opened = |net: &mut Net, source: u16| -> Vec<u16> {
        (0..12).filter(|port| net.send("a", &v4(A, B).udp(source, *port, b"")) == "b").collect()
    };
    assert_eq!(opened(&mut net, 1), [1, 2, 5, 6, 7, 8, 9]);
    // Group three did not exist when the vnic named it.
    net.group("three", &["in udp 8-11 0.0.0.0/0"], &[]);
    assert_eq!(opened(&mut net, 2), [1, 2, 5, 6, 7, 8, 9, 10, 11]);
    net.ask(groups::nic_groups("b", &["two"]));
    assert_eq!(opened(&mut net, 3), [2, 5, 6, 7, 8, 9]);
    net.ask(groups::nic_groups("b", &[]));
    assert!(opened(&mut net, 4).is_empty());
    net.ask(groups::nic_groups("b", &["one", "three"]));
    assert_eq!(opened(&mut net, 5), [1, 8, 9, 10, 11]);
    // The group is deleted, and made again with other rules.
    net.ask(groups::group_del("three"));
    assert_eq!(opened(&mut net, 6), [1]);
    net.group("three", &["in udp 3-3 0.0.0.0/0"], &[]);
    assert_eq!(opened(&mut net, 7), [1, 3]);
}

/// The filter looks up a group's members when a packet arrives.
#[test]
fn members_are_live() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g")]) else { return };
    net.group(
        "g",
        &["in udp 0-65535 @friends", "out tcp 0-65535 @friends", "out udp 0-65535 0.0.0.0/0"],
        &[],
    );
    let mut number = 0;
    let mut probe = |net: &mut Net, in4: bool, in6: bool| {
        number += 1;
        for (there, back, friend) in [(v4(A, B), v4(B, A), in4), (v6(A, B), v6(B, A), in6)] {
            net.expect(
                "a",
                &there.udp(number, 9, b""),
                if friend { "b" } else { "b.ingress-denied" },
            );
            let syn = back.tcp(&segment((number, 9), SYN, 1, 0), b"");
            net.expect("b", &syn, if friend { "a" } else { "b.egress-denied" });
        }
    };
    probe(&mut net, false, false); // the group does not exist yet
    net.member_add("friends", &ip4(A));
    probe(&mut net, true, false);
    net.member_add("friends", &ip6(A));
    net.member_add("friends", &ip4(77));
    probe(&mut net, true, true);
    net.member_del("friends", &ip4(77));
    net.member_del("friends", &ip4(A));
    probe(&mut net, false, true);
    net.group("friends", &[], &[&ip4(A)]);
    probe(&mut net, true, false);
    net.ask(groups::group_del("friends"));
    probe(&mut net, false, false);
    // Members that are not a.
    net.group("friends", &[], &[&ip4(B), &ip6(B), &ip4(3)]);
    probe(&mut net, false, false);
    net.group("friends", &[], &[&ip4(A), &ip6(A)]);
    probe(&mut net, true, true);
}

/// From its first OUTBOUND rule on, a vnic may send only what its rules name, in whatever order
/// vnic, group and rule were made.
#[test]
fn the_allow_list_holds_whatever_the_order_of_calls() {
    let rule = "out udp 53-53 10.0.0.1/32";
    let Some(mut net) = Net::new(&[open("a", A)]) else { return };
    let mut number = 0;
    let mut limited = |net: &mut Net, limited: bool| {
        number += 1;
        net.expect("b", &v4(B, A).udp(number, 53, b""), "a");
        net.expect(
            "b",
            &v4(B, A).udp(number, 54, b""),
            if limited { "b.egress-denied" } else { "a" },
        );
        net.expect(
            "b",
            &v6(B, A).udp(number, 53, b""),
            if limited { "b.egress-denied" } else { "a" },
        );
    };
    // First the rule, then the vnic.
    net.group("g", &[rule], &[]);
    net.attach(&filtered("b", B, "g"));
    limited(&mut net, true);
    // First the vnic and the group, then the rule.
    net.group("g", &[], &[]);
    limited(&mut net, false);
    net.rule_add("g", "in tcp 1-1 0.0.0.0/0");
    limited(&mut net, false);
    net.rule_add("g", rule);
    limited(&mut net, true);
    // The vnic gets the group after another group without OUTBOUND rules.
    net.ask(groups::nic_groups("b", &["empty"]));
    limited(&mut net, false);
    net.ask(groups::nic_groups("b", &["empty", "g"]));
    limited(&mut net, true);
    // The group is deleted and made anew.
    net.ask(groups::group_del("g"));
    limited(&mut net, false);
    net.group("g", &[rule], &[]);
    limited(&mut net, true);
    net.rule_del("g", rule);
    limited(&mut net, false);
    // A rule that matches no vnic.
    net.rule_add("g", "out udp 53-53 @nobody");
    net.expect("b", &v4(B, A).udp(900, 53, b""), "b.egress-denied");
    net.member_add("nobody", &ip4(A));
    limited(&mut net, true);
}
