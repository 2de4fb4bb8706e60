//! The session table is shared fairly, and older TCP connections are picked up only for a while.

use std::time::Duration;

use butterfly_packet::tcp::{ACK, PSH};
use butterfly_tests::net::{Net, filtered, open, segment, v4};

const A: u8 = 1;
const B: u8 = 2;

/// Of 256 sessions, a network may have half, a vnic may open 64, and 16 of those to one other vnic.
/// Established sessions stay when a share is full.
#[test]
fn a_table_that_is_full() {
    let options = ["--sessions", "256", "--session-share", "50"];
    let nics = [open("a", A), filtered("b", B, "g"), open("c", 3), filtered("d", 4, "g")];
    let Some(mut net) = Net::with(&options, &nics) else { return };
    net.group("g", &["in udp 0-65535 10.0.0.0/24"], &[]);
    let talk = |net: &mut Net, port| {
        net.exchange("a", &v4(A, B).udp(port, 53, b"?"), "b", &v4(B, A).udp(53, port, b"!"))
    };
    (1..=10).for_each(|port| talk(&mut net, port));
    // A flood gets its share and no more: each new session replaces one without an answer.
    for port in 100..200 {
        net.expect("a", &v4(A, B).udp(port, 53, b"?"), "b");
    }
    let used = net.host.daemon().session_table().used();
    assert_eq!(used, 16);
    // Answered sessions go on during the flood, and new ones that are answered get in.
    (1..=10).for_each(|port| talk(&mut net, port));
    (11..=16).for_each(|port| talk(&mut net, port));
    assert_eq!(net.host.daemon().session_table().used(), used);
    // Then the share is full of answered sessions, and new ones are dropped.
    let beyond: Vec<String> =
        (200..220).map(|port| net.send("a", &v4(A, B).udp(port, 53, b"?"))).collect();
    assert!(beyond.iter().all(|outcome| outcome.ends_with(".session-share")), "{beyond:?}");
    (1..=16).for_each(|port| talk(&mut net, port));
    // Bypass vnics among themselves need no session.
    net.exchange("a", &v4(A, 3).udp(1, 2, b"?"), "c", &v4(3, A).udp(2, 1, b"!"));
    assert_eq!(net.host.daemon().session_table().used(), used);
    // Other vnics have their own share, also towards the same VM.
    net.expect("c", &v4(3, B).udp(1, 53, b"?"), "b");
    net.expect("c", &v4(3, 4).udp(1, 53, b"?"), "d");
    // Ended sessions make room.
    assert_eq!(net.host.daemon().flush_sessions(Default::default()), 18);
    net.expect("a", &v4(A, B).udp(200, 53, b"?"), "b");
}

/// A TCP connection that is older than the daemon, or than the vnic, goes on. After the time for
/// picking up, no guest can claim to have one.
#[test]
fn connections_from_before() {
    let vnics = [open("a", A), filtered("b", B, "g")];
    let Some(mut net) = Net::with(&["--tcp-pickup", "3"], &vnics) else { return };
    net.group("g", &["in tcp 80-80 0.0.0.0/0", "out tcp 443-443 0.0.0.0/0"], &[]);
    let data = |ports, seq, ack| v4(A, B).tcp(&segment(ports, ACK | PSH, seq, ack), b"data");
    let answer = |ports, seq, ack| v4(B, A).tcp(&segment(ports, ACK | PSH, seq, ack), b"data");
    // Connections that the rules would let begin.
    net.exchange("a", &data((9, 80), 1000, 5000), "b", &answer((80, 9), 5000, 1004));
    net.exchange("b", &answer((9, 443), 1000, 5000), "a", &data((443, 9), 5000, 1004));
    net.expect("a", &data((9, 81), 1000, 5000), "b.ingress-denied");
    net.expect("b", &answer((9, 444), 1000, 5000), "b.egress-denied");
    // The time has to pass; the daemon's clock counts whole seconds.
    std::thread::sleep(Duration::from_millis(4100));
    net.expect("a", &data((10, 80), 1000, 5000), "a.tcp-no-session");
    net.expect("b", &answer((10, 443), 1000, 5000), "b.tcp-no-session");
    net.exchange("a", &data((9, 80), 1004, 5004), "b", &answer((80, 9), 5004, 1008));
    // The guest of b comes back with a new front end.
    net.comes_back("b");
    net.exchange("a", &data((11, 80), 1000, 5000), "b", &answer((80, 11), 5000, 1004));
}
