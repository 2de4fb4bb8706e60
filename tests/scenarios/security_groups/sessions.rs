//! Packets of a session pass whatever the rules say, and no other packets do.

use std::time::Duration;

use butterfly_packet::{
    build::{self, Ip},
    mac::Mac,
    protocol::{TCP, UDP},
    sctp,
    tcp::{ACK, FIN, PSH, RST, SYN},
};
use butterfly_tests::{
    Nic,
    frames::mac,
    net::{Net, addr6, filtered, open, segment, v4, v6},
};

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

/// Returns packets there and back, of both families.
fn ways(from: u8, to: u8) -> [(Ip, Ip); 2] {
    [(v4(from, to), v4(to, from)), (v6(from, to), v6(to, from))]
}

/// Runs a conversation of each protocol, opened by `from`. Only the first packet of each needs a
/// rule.
fn converse(net: &mut Net, (from, from_n): (&str, u8), (to, to_n): (&str, u8)) {
    for (there, back) in ways(from_n, to_n) {
        let tcp = |ip: &Ip, ports, flags, seq, ack, data: &[u8]| {
            ip.tcp(&segment(ports, flags, seq, ack), data)
        };
        for round in 0..2u32 {
            // The connection is closed by both sides and opened again.
            let base = round * 1_000_000;
            net.expect(from, &tcp(&there, (5000, 80), SYN, base + 100, 0, b""), to);
            net.expect(to, &tcp(&back, (80, 5000), SYN | ACK, base + 900, base + 101, b""), from);
            net.expect(
                from,
                &tcp(&there, (5000, 80), ACK | PSH, base + 101, base + 901, b"question"),
                to,
            );
            net.expect(
                to,
                &tcp(&back, (80, 5000), ACK | PSH, base + 901, base + 109, b"answer"),
                from,
            );
            net.expect(from, &tcp(&there, (5000, 80), FIN | ACK, base + 109, base + 907, b""), to);
            net.expect(to, &tcp(&back, (80, 5000), FIN | ACK, base + 907, base + 110, b""), from);
            net.expect(from, &tcp(&there, (5000, 80), ACK, base + 110, base + 908, b""), to);
        }
        for _ in 0..3 {
            net.exchange(from, &there.udp(5000, 53, b"?"), to, &back.udp(53, 5000, b"!"));
        }
        let reply = if back.payload(0, b"")[12..14] == [8, 0] { 0 } else { 129 };
        for sequence in 1..4 {
            net.exchange(
                from,
                &there.ping(7, sequence, b"x"),
                to,
                &back.icmp(reply, 0, 7 << 16 | u32::from(sequence), b"x"),
            );
        }
        net.exchange(
            from,
            &there.sctp((5, 6), 0, sctp::INIT, &[0; 16]),
            to,
            &back.sctp((6, 5), 1, sctp::INIT_ACK, &[0; 16]),
        );
        net.exchange(
            from,
            &there.sctp((5, 6), 2, sctp::DATA, &[0; 12]),
            to,
            &back.sctp((6, 5), 1, sctp::DATA, &[0; 12]),
        );
        net.exchange(from, &there.payload(47, b"GRE"), to, &back.payload(47, b"GRE"));
    }
}

/// Asserts that new questions of `from` are not part of the sessions that the other end opened.
fn asks_back(net: &mut Net, (from, from_n): (&str, u8), to: u8, refused: &str) {
    for (there, _) in ways(from_n, to) {
        net.expect(from, &there.tcp(&segment((80, 5001), SYN, 1, 0), b""), refused);
        net.expect(from, &there.udp(53, 5001, b"?"), refused);
        net.expect(from, &there.udp(54, 5000, b"?"), refused);
        net.expect(from, &there.ping(8, 1, b"x"), refused);
        net.expect(from, &there.sctp((6, 7), 0, sctp::INIT, &[0; 16]), refused);
        net.expect(from, &there.payload(48, b"?"), refused);
    }
}

/// Answers leave a vnic that may open no sessions itself.
#[test]
fn what_was_asked_is_answered() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g")]) else { return };
    net.group("g", &["in any - 0.0.0.0/0", "in any - ::/0", "out any - @nobody"], &[]);
    converse(&mut net, ("a", A), ("b", B));
    asks_back(&mut net, ("b", B), A, "b.egress-denied");
}

/// Answers reach a vnic to which no other may open a session.
#[test]
fn its_own_questions_are_answered() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g")]) else { return };
    converse(&mut net, ("b", B), ("a", A));
    asks_back(&mut net, ("a", A), B, "b.ingress-denied");
}

/// Both ends have filters, and neither lets the other open a session.
#[test]
fn between_two_filtered_ends() {
    let Some(mut net) = Net::new(&[filtered("a", A, "a"), filtered("b", B, "b")]) else { return };
    net.group("a", &["out any - 10.0.0.2/32", "out any - fd00::2/128"], &[]);
    net.group("b", &["in any - 10.0.0.1/32", "in any - fd00::1/128", "out any - @nobody"], &[]);
    converse(&mut net, ("a", A), ("b", B));
    asks_back(&mut net, ("b", B), A, "b.egress-denied");
    net.rule_del("b", "out any - @nobody");
    asks_back(&mut net, ("b", B), A, "a.ingress-denied");
}

/// Returns the states of all sessions.
fn states(net: &Net) -> Vec<String> {
    net.host
        .daemon()
        .sessions(Default::default())
        .1
        .iter()
        .map(|session| session.state().to_owned())
        .collect()
}

/// Ends all sessions. Returns their number.
fn flush(net: &Net) -> u64 {
    net.host.daemon().flush_sessions(Default::default())
}

/// RFC 5961: guessed segments do not end or take over a connection.
#[test]
fn tcp_out_of_turn() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g")]) else { return };
    net.group("g", &["in tcp 80-80 10.0.0.0/24", "in tcp 80-80 fd00::/64"], &[]);
    for (there, back) in ways(A, B) {
        let a = |flags, seq, ack| there.tcp(&segment((9, 80), flags, seq, ack), b"");
        let b = |flags, seq, ack| back.tcp(&segment((80, 9), flags, seq, ack), b"");
        for flags in [ACK, SYN | ACK, FIN | ACK, RST, RST | ACK, 0] {
            net.expect("a", &a(flags, 1, 1), "a.tcp-no-session");
        }
        net.exchange("a", &a(SYN, 100, 0), "b", &b(SYN | ACK, 500, 101));
        net.exchange("a", &a(ACK, 101, 501), "b", &b(ACK, 501, 101));
        for far in [200_000, 0x8000_0000, 0u32.wrapping_sub(200_000)] {
            net.expect(
                "a",
                &there.tcp(&segment((9, 80), ACK, 101u32.wrapping_add(far), 501), b"x"),
                "b.tcp-window",
            );
            net.expect(
                "b",
                &back.tcp(&segment((80, 9), ACK, 501u32.wrapping_add(far), 101), b"x"),
                "b.tcp-window",
            );
        }
        net.expect("a", &a(RST, 150, 0), "b"); // within the window: it passes and ends nothing
        net.exchange("a", &a(ACK, 101, 501), "b", &b(ACK, 501, 101));
        // A RST with the exact number ends the session: the next one with these ports is new.
        assert_eq!(states(&net), ["established"]);
        net.expect("b", &b(RST, 501, 0), "a");
        assert_eq!(states(&net), ["closed"]);
        net.exchange("a", &a(SYN, 70_000_000, 0), "b", &b(SYN | ACK, 9, 70_000_001));
        net.expect("a", &a(ACK, 70_000_001, 10), "b");
        assert_eq!((states(&net), flush(&net)), (vec!["established".to_owned()], 1));
    }
}

#[test]
fn icmp_errors_reach_the_owner() {
    let nics = [open("a", A), filtered("b", B, "b"), filtered("c", C, "c")];
    let Some(mut net) = Net::new(&nics) else { return };
    // A vnic with OUTBOUND rules may send errors about packets that it received, too.
    net.group(
        "b",
        &[
            "out any - @nobody",
            "out udp 5000-5000 0.0.0.0/0",
            "out udp 5000-5000 ::/0",
            "in udp 7-7 ::/0",
            "in udp 7-7 0.0.0.0/0",
        ],
        &[],
    );
    for (family, errors) in
        [(4, [(3, 3), (3, 4), (11, 0), (12, 0)]), (6, [(1, 4), (2, 0), (3, 0), (4, 0)])]
    {
        let ip = |from: u8, to: u8| if family == 4 { v4(from, to) } else { v6(from, to) };
        let router = |to: u8| {
            let link = build::ethernet(mac(A.into()), mac(to.into()));
            if family == 4 {
                link.ipv4([192, 0, 2, 1], [10, 0, 0, to])
            } else {
                link.ipv6("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap(), addr6(to))
            }
        };
        let quoted = if family == 4 { 28 } else { 48 };
        let mut quote = Vec::new();
        // A new session for each error: the filter passes only a few errors per session and second.
        for (port, (kind, code)) in (6000..).step_by(10).zip(errors) {
            let asked = ip(B, A).udp(port, 5000, b"question");
            net.expect("b", &asked, "a");
            quote = asked[14..14 + quoted].to_vec();
            let quote = &quote[..];
            net.expect("a", &ip(A, B).icmp(kind, code, 0, quote), "b");
            net.expect("a", &router(B).icmp(kind, code, 0, quote), "b");
            // Errors to another vnic, without a quote, and about a packet that b did not send.
            net.expect("a", &router(C).icmp(kind, code, 0, quote), "c.ingress-denied");
            let never = ip(B, A).udp(port + 1, 5000, b"question");
            net.expect(
                "a",
                &ip(A, B).icmp(kind, code, 0, &never[14..14 + quoted]),
                "b.ingress-denied",
            );
            let others = ip(A, B).udp(5000, port, b"answer");
            net.expect(
                "a",
                &ip(A, B).icmp(kind, code, 0, &others[14..14 + quoted]),
                "b.ingress-denied",
            );
        }
        // A quote in a message that is no error opens nothing.
        net.expect(
            "a",
            &ip(A, B).icmp(if family == 4 { 5 } else { 100 }, 1, 0, &quote),
            "b.ingress-denied",
        );
        // The other way round: b answers a question with an error.
        let asked = ip(A, B).udp(6000, 7, b"question");
        net.expect("a", &asked, "b");
        net.expect("b", &ip(B, A).icmp(errors[0].0, errors[0].1, 0, &asked[14..14 + quoted]), "a");
        let never = ip(A, B).udp(6001, 7, b"question");
        net.expect(
            "b",
            &ip(B, A).icmp(errors[0].0, errors[0].1, 0, &never[14..14 + quoted]),
            "b.egress-denied",
        );
    }
}

#[test]
fn fragments_follow_their_first() {
    let nics = [open("a", A), filtered("b", B, "g"), open("c", C)];
    let Some(mut net) = Net::new(&nics) else { return };
    net.group(
        "g",
        &[
            "in udp 53-53 0.0.0.0/0",
            "in udp 53-53 ::/0",
            "out udp 1-1 0.0.0.0/0",
            "out udp 1-1 ::/0",
        ],
        &[],
    );
    for (there, back) in ways(A, B) {
        let first = |ip: &Ip, id, port: u16| {
            let header = [&[0, 9][..], &port.to_be_bytes(), &[0, 56, 0, 0]].concat();
            ip.clone().fragment(id, 0, true).payload(UDP, &[&header[..], &[7; 16]].concat())
        };
        let next = |ip: &Ip, id, at, more| ip.clone().fragment(id, at, more).payload(UDP, &[9; 16]);
        net.expect("a", &next(&there, 1, 24, false), "a.fragment-orphan");
        net.expect("a", &first(&there, 1, 53), "b");
        // The same fragment from another vnic belongs to no packet.
        net.expect("c", &next(&there, 1, 24, true), "c.fragment-orphan");
        net.expect("a", &next(&there, 1, 24, true), "b");
        net.expect("a", &next(&there, 1, 40, false), "b");
        net.expect("a", &first(&there, 2, 54), "b.ingress-denied");
        net.expect("a", &next(&there, 2, 24, false), "a.fragment-orphan");
        net.expect(
            "a",
            &there.clone().fragment(3, 0, true).payload(TCP, &[0, 9, 0, 53, 0, 0, 0, 1]),
            "a.tiny-fragment",
        );
        net.expect("a", &first(&there, 4, 53), "b");
        net.expect("a", &next(&there, 4, 16, true), "a.fragment-overlap");
        // Fragments from the filtered vnic.
        net.expect("b", &first(&back, 5, 1), "a");
        net.expect("b", &next(&back, 5, 24, false), "a");
        net.expect("b", &first(&back, 6, 2), "b.egress-denied");
        net.expect("b", &next(&back, 6, 24, false), "b.fragment-orphan");
        // Whole packets still pass.
        net.expect("a", &there.udp(9, 53, b"?"), "b");
    }
}

/// Packets that have a session's addresses, and come from another vnic or go to another.
#[test]
fn a_session_is_between_two_vnics() {
    let nics = [
        open("a", A),
        filtered("b", B, ""),
        open("c", C),
        filtered("d", 4, ""),
        Nic { vni: 2, ..open("a2", A) },
    ];
    let Some(mut net) = Net::new(&nics) else { return };
    net.attach(&Nic { vni: 2, ..filtered("b2", B, "") });
    for (there, back) in ways(B, A) {
        net.exchange("b", &there.udp(1, 2, b"?"), "a", &back.udp(2, 1, b"!"));
        // A third vnic uses the session's IP addresses.
        let (c, d) = (mac(C.into()), mac(4));
        let mut forged = back.udp(2, 1, b"!");
        forged[6..12].copy_from_slice(&c.0);
        net.expect("c", &forged, "b.ingress-denied");
        // A packet of the session goes to a third vnic.
        let mut stray = back.udp(2, 1, b"!");
        stray[..6].copy_from_slice(&d.0);
        net.expect("a", &stray, "d.ingress-denied");
        // A filtered vnic sends with a's IP address.
        let mut taken = back.udp(2, 1, b"!");
        taken[6..12].copy_from_slice(&d.0);
        net.expect("d", &taken, "d.spoofed-ip");
        // The same packet in another network, and in another VLAN.
        net.expect("a2", &back.udp(2, 1, b"!"), "b2.ingress-denied");
        let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
        net.expect("a", &tagged(&back.udp(2, 1, b"!")), "b.ingress-denied");
        net.exchange("b", &tagged(&there.udp(1, 2, b"?")), "a", &tagged(&back.udp(2, 1, b"!")));
        net.expect("a", &back.udp(2, 1, b"!"), "b");
    }
}

/// A peer's address is suddenly behind another vnic.
#[test]
fn a_peer_that_moves_begins_anew() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g"), open("c", C)]) else {
        return;
    };
    net.group("g", &["in tcp 22-22 0.0.0.0/0"], &[]);
    let roaming = mac(50);
    let there = build::ethernet(mac(B.into()), roaming).ipv4([10, 0, 0, B], [10, 0, 0, 50]);
    let back = build::ethernet(roaming, mac(B.into())).ipv4([10, 0, 0, 50], [10, 0, 0, B]);
    let syn = there.tcp(&segment((9, 80), SYN, 100, 0), b"");
    let answer = |flags, seq, ack| back.tcp(&segment((80, 9), flags, seq, ack), b"");
    net.expect(
        "a",
        &build::ethernet(roaming, Mac::BROADCAST).arp_request([10, 0, 0, 50], [10, 0, 0, 1]),
        "b c",
    );
    net.expect("b", &syn, "a");
    net.expect("a", &answer(SYN | ACK, 500, 101), "b");
    net.expect("b", &there.tcp(&segment((9, 80), ACK, 101, 501), b"data"), "a");
    net.exchange("b", &there.udp(1, 2, b"?"), "a", &back.udp(2, 1, b"!"));
    // The address turns up behind c: sessions of b with a do not let it in.
    net.expect("c", &answer(ACK, 501, 105), "b.ingress-denied");
    net.expect("c", &back.udp(2, 1, b"!"), "b.ingress-denied");
    // b goes on with c as with a new peer.
    net.expect("b", &there.tcp(&segment((9, 80), ACK, 105, 501), b"data"), "b.tcp-no-session");
    net.exchange("b", &there.udp(1, 2, b"?"), "c", &back.udp(2, 1, b"!"));
}

#[test]
fn floods_reach_those_who_let_them_in() {
    let nics = [open("a", A), filtered("b", B, "g"), open("c", C), filtered("d", 4, "")];
    let Some(mut net) = Net::new(&nics) else { return };
    net.group("g", &["in udp 7-7 10.0.0.0/24", "in udp 7-7 fd00::/64"], &[]);
    let (all4, all6) = ([255; 4], "ff02::1".parse::<std::net::Ipv6Addr>().unwrap());
    for to in [Mac::BROADCAST, Mac([0x33, 0x33, 0, 0, 0, 1])] {
        for from in [A, C] {
            let link = || build::ethernet(mac(from.into()), to);
            for ip in [link().ipv4([10, 0, 0, from], all4), link().ipv6(addr6(from), all6)] {
                let (id, other) = if from == A { ("a", "c") } else { ("c", "a") };
                let mut open = ["b", other];
                open.sort_unstable();
                net.expect(
                    id,
                    &ip.udp(1, 7, b"?"),
                    &format!("{} d.ingress-denied", open.join(" ")),
                );
                net.expect(
                    id,
                    &ip.udp(1, 8, b"?"),
                    &format!("{other} b.ingress-denied d.ingress-denied"),
                );
            }
        }
        // A flood from a filtered vnic is judged once on its way out, and once by each receiver.
        let flood = build::ethernet(mac(B.into()), to).ipv4([10, 0, 0, B], all4);
        net.expect("b", &flood.udp(8, 9, b"?"), "a c d.ingress-denied");
        // The flood opened no session.
        net.expect("a", &v4(A, B).udp(9, 8, b"!"), "b.ingress-denied");
    }
    net.rule_add("g", "out tcp 1-1 0.0.0.0/0");
    net.expect(
        "b",
        &build::ethernet(mac(B.into()), Mac::BROADCAST).ipv4([10, 0, 0, B], all4).udp(8, 9, b"?"),
        "b.egress-denied",
    );
}

/// Sessions end after the configured time-outs, which the client shows.
#[test]
fn silence_ends_a_session() {
    let options = [
        "--tcp-pickup",
        "0",
        "--sessions",
        "5000",
        "--timeout",
        "udp-new=1",
        "--timeout",
        "udp-answered=3",
    ];
    let Some(mut net) = Net::with(&options, &[open("a", A), filtered("b", B, "")]) else { return };
    let shown = net.host.daemon().session_table();
    let seconds =
        |name: &str| shown.timeout.iter().find(|row| row.name() == name).map(|row| row.seconds());
    assert_eq!(
        (seconds("udp-new"), seconds("udp-answered")),
        (Some(1), Some(3)),
        "{:?}",
        shown.timeout
    );
    assert_eq!((shown.capacity(), shown.share(), shown.tcp_pickup()), (5000, 1250, 0));
    net.expect("b", &v4(B, A).udp(1, 2, b"?"), "a");
    net.exchange("b", &v4(B, A).udp(3, 4, b"?"), "a", &v4(A, B).udp(4, 3, b"!"));
    // The time has to pass; the daemon's clock counts whole seconds.
    std::thread::sleep(Duration::from_millis(2100));
    net.expect("a", &v4(A, B).udp(2, 1, b"!"), "b.ingress-denied");
    net.expect("a", &v4(A, B).udp(4, 3, b"!"), "b");
    std::thread::sleep(Duration::from_millis(4100));
    net.expect("a", &v4(A, B).udp(4, 3, b"!"), "b.ingress-denied");
}
