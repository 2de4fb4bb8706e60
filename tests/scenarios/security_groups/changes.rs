//! A change takes effect before the API answers, and only where it should.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use butterfly_api::{
    REVISION,
    client::Client,
    proto::{Message, MessageV0, Messages, Request},
};
use butterfly_packet::tcp::{ACK, SYN};
use butterfly_tests::{
    PATIENCE,
    frames::Choices,
    groups,
    net::{Net, filtered, ip4, ip6, open, segment, v4, v6},
};
use protobuf::MessageField;

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

/// Frames of each session in one volley.
const VOLLEY: usize = 8;

/// Sessions between the vnics; each of their frames has its own number.
struct Flows {
    /// Sender, receiver and port of each session.
    flows: Vec<(u8, u8, u16)>,
    sent: u64,
}

impl Flows {
    fn frame(&mut self, (from, to, port): (u8, u8, u16)) -> Vec<u8> {
        self.sent += 1;
        let ip = if port.is_multiple_of(2) { v4(from, to) } else { v6(from, to) };
        ip.udp(4000, port, &self.sent.to_be_bytes())
    }

    /// Sends a volley in each session. Returns the ports of those that arrived whole; none may
    /// arrive in part.
    fn volley(&mut self, net: &mut Net) -> BTreeSet<u16> {
        let mut whole = BTreeSet::new();
        for sender in [A, B, C] {
            let name = id(sender);
            let mut expected = Vec::new();
            for _ in 0..VOLLEY {
                for flow in self.flows.clone().into_iter().filter(|flow| flow.0 == sender) {
                    let frame = self.frame(flow);
                    net.station(name).send(&frame);
                    expected.push((flow.2, frame));
                }
            }
            let received: Vec<Vec<u8>> = net.received(name).into_values().flatten().collect();
            for flow in self.flows.iter().filter(|flow| flow.0 == sender) {
                let mine: Vec<_> = expected
                    .iter()
                    .filter(|(port, _)| *port == flow.2)
                    .map(|(_, frame)| frame)
                    .collect();
                // The received frames of this session, in their order.
                let got: Vec<_> = received.iter().filter(|frame| mine.contains(frame)).collect();
                assert!(
                    got.is_empty() || got == mine,
                    "{} of {VOLLEY} frames of {flow:?}",
                    got.len()
                );
                if !got.is_empty() {
                    whole.insert(flow.2);
                }
            }
        }
        whole
    }
}

fn id(n: u8) -> &'static str {
    ["a", "b", "c"][usize::from(n) - 1]
}

/// Taking back a rule, member or address ends the sessions that it admitted, before the next frame.
/// All frames of other sessions arrive.
#[test]
fn what_is_no_longer_allowed_ends_at_once() {
    let Some(mut net) =
        Net::new(&[open("a", A), filtered("b", B, "one two"), filtered("c", C, "three")])
    else {
        return;
    };
    net.group(
        "one",
        &["in udp 10-11 0.0.0.0/0", "in udp 10-11 ::/0", "in udp 20-21 @friends"],
        &[],
    );
    net.group(
        "two",
        &["in udp 30-31 0.0.0.0/0", "in udp 30-31 ::/0", "in udp 10-10 10.0.0.0/24"],
        &[],
    );
    net.group("friends", &[], &[&ip4(A), &ip6(A), &ip4(9)]);
    net.group(
        "three",
        &["out udp 40-41 0.0.0.0/0", "out udp 40-41 ::/0", "in udp 60-61 fd00::/16"],
        &[],
    );
    let flows = [10, 11, 20, 21, 30, 31].map(|port| (A, B, port)).into_iter();
    let mut flows = Flows {
        flows: flows.chain([(C, A, 40), (C, A, 41), (B, A, 50), (B, A, 51), (A, C, 61)]).collect(),
        sent: 0,
    };
    let all: BTreeSet<u16> = flows.flows.iter().map(|flow| flow.2).collect();
    assert_eq!(flows.volley(&mut net), all);
    let without = |ports: &[u16]| -> BTreeSet<u16> {
        all.iter().copied().filter(|port| !ports.contains(port)).collect()
    };
    // Each change, the ports of the sessions that it ends, and the request that undoes it.
    let changes: Vec<(Request, &[u16], Request)> = vec![
        (
            groups::rule_del("one", "in udp 10-11 0.0.0.0/0"),
            &[],
            groups::rule_add("one", "in udp 10-11 0.0.0.0/0"),
        ), // group "two" admits port 10, too
        (
            groups::rule_del("one", "in udp 10-11 ::/0"),
            &[11],
            groups::rule_add("one", "in udp 10-11 ::/0"),
        ),
        (groups::member_del("friends", &ip4(A)), &[20], groups::member_add("friends", &ip4(A))),
        (groups::member_del("friends", &ip6(A)), &[21], groups::member_add("friends", &ip6(A))),
        (groups::member_del("friends", &ip4(9)), &[], groups::member_add("friends", &ip4(9))),
        (
            groups::group_del("friends"),
            &[20, 21],
            groups::group_set("friends", &[], &[&ip4(A), &ip6(A), &ip4(9)]),
        ),
        (groups::nic_groups("b", &["one"]), &[30, 31], groups::nic_groups("b", &["one", "two"])),
        (
            groups::nic_groups("b", &["two"]),
            &[11, 20, 21],
            groups::nic_groups("b", &["two", "one"]),
        ),
        (
            groups::nic_groups("b", &[]),
            &[10, 11, 20, 21, 30, 31],
            groups::nic_groups("b", &["one", "two"]),
        ),
        (
            groups::rule_del("three", "out udp 40-41 0.0.0.0/0"),
            &[40],
            groups::rule_add("three", "out udp 40-41 0.0.0.0/0"),
        ),
        (
            groups::rule_del("three", "in udp 60-61 fd00::/16"),
            &[61],
            groups::rule_add("three", "in udp 60-61 fd00::/16"),
        ),
        // The first OUTBOUND rule of a vnic.
        (
            groups::rule_add("two", "out udp 51-51 fd00::1/128"),
            &[50],
            groups::rule_del("two", "out udp 51-51 fd00::1/128"),
        ),
        // Added rules and members end nothing.
        (
            groups::rule_add("one", "in udp 0-65535 0.0.0.0/0"),
            &[],
            groups::rule_del("one", "in udp 0-65535 0.0.0.0/0"),
        ),
        (groups::member_add("friends", &ip4(77)), &[], groups::member_del("friends", &ip4(77))),
        (groups::rule_add("unused", "in any - 0.0.0.0/0"), &[], groups::group_del("unused")),
    ];
    for round in 0..3 {
        for (change, ended, undo) in &changes {
            net.ask(change.clone());
            // A volley at once: no frame of an ended session may arrive.
            assert_eq!(flows.volley(&mut net), without(ended), "round {round}: {change:?}");
            net.ask(undo.clone());
            assert_eq!(flows.volley(&mut net), all, "round {round}: after {undo:?}");
        }
        // A removed address.
        net.host.update("b", &[&ip6(B)], false).unwrap();
        assert_eq!(flows.volley(&mut net), without(&[50]));
        net.host.update("b", &[&ip4(B), &ip6(B)], false).unwrap();
        assert_eq!(flows.volley(&mut net), all);
    }
}

/// Frames under way do not revive an ended TCP connection, in either direction.
#[test]
fn a_connection_is_cut_both_ways() {
    // Also while the daemon picks up connections that began before it.
    for pickup in ["0", "120"] {
        let Some(net) =
            Net::with(&["--tcp-pickup", pickup], &[open("a", A), filtered("b", B, "g")])
        else {
            return;
        };
        cut_both_ways(net);
    }
}

fn cut_both_ways(mut net: Net) {
    for (there, back, rule) in
        [(v4(A, B), v4(B, A), "in tcp 80-80 0.0.0.0/0"), (v6(A, B), v6(B, A), "in tcp 80-80 ::/0")]
    {
        net.rule_add("g", rule);
        let a = |flags, seq, ack, data: &[u8]| there.tcp(&segment((9, 80), flags, seq, ack), data);
        let b = |flags, seq, ack, data: &[u8]| back.tcp(&segment((80, 9), flags, seq, ack), data);
        net.exchange("a", &a(SYN, 100, 0, b""), "b", &b(SYN | ACK, 500, 101, b""));
        net.exchange("a", &a(ACK, 101, 501, b"data"), "b", &b(ACK, 501, 105, b"data"));
        net.rule_add("g", "in tcp 81-81 0.0.0.0/0");
        net.exchange("a", &a(ACK, 105, 505, b"data"), "b", &b(ACK, 505, 109, b"data"));
        net.rule_del("g", rule);
        // A frame of b comes first. Without its session it is a new packet, and no SYN.
        net.expect("b", &b(ACK, 509, 109, b"data"), "b.tcp-no-session");
        net.expect("a", &a(ACK, 109, 509, b"data"), "b.ingress-denied");
        net.rule_add("g", rule);
        net.expect("a", &a(ACK, 109, 509, b"data"), "a.tcp-no-session");
        net.exchange("a", &a(SYN, 9000, 0, b""), "b", &b(SYN | ACK, 1, 9001, b""));
        net.rule_del("g", rule);
    }
}

/// Makes a request that must succeed, on another thread's own client.
fn ask(client: &Client, request: Request) {
    let message = MessageV0 { request: MessageField::some(request), ..MessageV0::default() };
    let message = Message {
        revision: Some(REVISION),
        message_0: MessageField::some(message),
        ..Message::default()
    };
    let reply = client.call(&Messages { messages: vec![message], ..Messages::default() }).unwrap();
    assert!(reply.messages[0].message_0.response.status.status(), "{reply}");
}

/// Sends numbered frames from a to b until `done`, at most half a ring under way. Counts in `begun`
/// before each frame is sent, and in `arrived` at the receiver. Returns the number after the last
/// received one.
fn stream(
    net: &mut Net,
    [begun, arrived]: [&AtomicU64; 2],
    done: &dyn Fn() -> bool,
    lossless: bool,
) -> u64 {
    let (mut next, mut received) = (0, 0);
    let first = begun.load(SeqCst);
    let ip = v4(A, B);
    let mut silent = Instant::now();
    let mut lost = 0;
    while !done() {
        let sent = begun.load(SeqCst) - first;
        if sent - received - lost < 400 {
            let frame = ip.udp(4000, 53, &begun.fetch_add(1, SeqCst).to_be_bytes());
            net.station("a").send(&frame);
        } else if silent.elapsed() > Duration::from_millis(50) {
            assert!(!lossless, "nothing arrives: {:?}", net.host.show("b").dropped());
            lost = sent - received;
        }
        for frame in net.station("b").pending() {
            let number = u64::from_be_bytes(frame[42..50].try_into().unwrap());
            assert!(
                number >= next && (!lossless || number == first + received),
                "frame {number} after {next}, {received} received"
            );
            (next, received, silent) = (number + 1, received + 1, Instant::now());
            arrived.store(received, SeqCst);
        }
    }
    net.host.settle(&mut [net.stations.get_mut("a").unwrap()]);
    for frame in net.station("b").pending() {
        (next, received) =
            (u64::from_be_bytes(frame[42..50].try_into().unwrap()) + 1, received + 1);
    }
    if lossless {
        assert_eq!(
            received,
            begun.load(SeqCst) - first,
            "frames were lost: {:?}",
            net.host.show("b").dropped()
        );
    }
    arrived.store(received, SeqCst);
    next
}

/// A stream loses no frame while a thousand changes concern other sessions.
#[test]
fn a_stream_does_not_notice_changes_around_it() {
    let Some(mut net) = Net::new(&[filtered("a", A, "out"), filtered("b", B, "in")]) else {
        return;
    };
    net.group("in", &["in udp 53-53 @clients"], &[]);
    net.group("out", &["out udp 53-53 10.0.0.0/24"], &[]);
    net.group("clients", &[], &[&ip4(A)]);
    let endpoint = net.host.daemon().endpoint().to_owned();
    let done = AtomicBool::new(false);
    let arrived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client::connect(&endpoint, Some(PATIENCE)).unwrap();
            for n in 0..100 {
                let (member, port) = (format!("10.2.0.{n}"), 1000 + n);
                let rule = format!("in udp {port}-{port} @clients");
                for change in [
                    groups::member_add("clients", &member),
                    groups::rule_add("in", &rule),
                    groups::rule_add("more", "in udp 53-53 0.0.0.0/0"),
                    groups::nic_groups("b", &["more", "in"]),
                    groups::rule_add("out", &format!("out udp 53-{port} 10.0.0.0/8")),
                    groups::rule_del("out", &format!("out udp 53-{port} 10.0.0.0/8")),
                    groups::nic_groups("b", &["in"]),
                    groups::rule_del("more", "in udp 53-53 0.0.0.0/0"),
                    groups::rule_del("in", &rule),
                    groups::member_del("clients", &member),
                ] {
                    ask(&client, change);
                }
            }
            done.store(true, SeqCst);
        });
        stream(&mut net, [&AtomicU64::new(0), &arrived], &|| done.load(SeqCst), true)
    });
    assert!(arrived.load(SeqCst) > 1000, "{arrived:?}");
    assert_eq!((net.host.show("a").all_drops(), net.host.show("b").all_drops()), (0, 0));
    assert_eq!(net.host.daemon().sessions(Default::default()).0, 1);
}

/// A rule is removed in the middle of a stream: no frame that is sent after the API's answer
/// arrives.
#[test]
fn the_answer_means_now() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "g")]) else { return };
    let rule = "in udp 53-53 10.0.0.0/24";
    let begun = AtomicU64::new(0);
    for _ in 0..50 {
        net.rule_add("g", rule);
        let (cut, done, arrived) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let endpoint = net.host.daemon().endpoint().to_owned();
        let next = std::thread::scope(|scope| {
            scope.spawn(|| {
                let client = Client::connect(&endpoint, Some(PATIENCE)).unwrap();
                while arrived.load(SeqCst) < 200 {
                    std::thread::yield_now();
                }
                ask(&client, groups::rule_del("g", rule));
                let now = begun.load(SeqCst);
                cut.store(now, SeqCst);
                while begun.load(SeqCst) < now + 200 {
                    std::thread::yield_now();
                }
                done.store(true, SeqCst);
            });
            stream(&mut net, [&begun, &arrived], &|| done.load(SeqCst), false)
        });
        assert!(
            next <= cut.load(SeqCst),
            "{next} frames arrived, the answer came when {cut:?} were begun"
        );
    }
}

/// A sweep of all 65,536 ports finds exactly the open ones; after a change of rules, the new ones.
#[test]
fn a_port_sweep() {
    let options = ["--tcp-pickup", "0", "--sessions", "100000"];
    let Some(mut net) = Net::with(&options, &[open("a", A), filtered("b", B, "g other")]) else {
        return;
    };
    let mut choices = Choices::new(7);
    for (round, protocol) in ["udp", "tcp"].into_iter().enumerate() {
        let mut allowed = BTreeSet::from([0u16, 65535]);
        let mut rules = vec![
            format!("in {protocol} 0-0 0.0.0.0/0"),
            format!("in {protocol} 65535-65535 10.0.0.1/32"),
        ];
        for _ in 0..20 {
            let start = choices.between(1, 65000) as u16;
            let end = start + choices.between(0, 300) as u16;
            rules.push(format!("in {protocol} {start}-{end} 10.0.0.0/{}", choices.between(0, 30)));
            allowed.extend(start..=end);
        }
        // Rules that open nothing here: another source, protocol, family, or direction.
        for rule in [
            "in tcp 1-65000 10.0.0.9/32",
            "in udp 1-65000 10.0.0.9/32",
            "in sctp - 0.0.0.0/0",
            "in any - ::/0",
        ] {
            rules.push(rule.to_owned());
        }
        let (one, two) = rules.split_at(11);
        for (group, rules) in [("g", one), ("other", two)] {
            net.group(group, &rules.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        }
        let mut found = BTreeSet::new();
        for chunk in (0..=65535u16).collect::<Vec<_>>().chunks(512) {
            for port in chunk {
                let frame = match protocol {
                    "udp" => v4(A, B).udp(7, *port, b""),
                    _ => v4(A, B).tcp(&segment((7, *port), SYN, 1, 0), b""),
                };
                net.station("a").send(&frame);
            }
            for frame in net.received("a").remove("b").unwrap_or_default() {
                found.insert(u16::from_be_bytes([frame[36], frame[37]]));
            }
        }
        let (missing, extra): (Vec<_>, Vec<_>) =
            (allowed.difference(&found).collect(), found.difference(&allowed).collect());
        assert!(
            missing.is_empty() && extra.is_empty(),
            "round {round}, {protocol}: not found {missing:?}, found too {extra:?}"
        );
        let show = net.host.show("b");
        assert_eq!(show.dropped().keys().copied().collect::<Vec<_>>(), ["ingress-denied"]);
    }
}
