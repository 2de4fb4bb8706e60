//! `butterfly explain` predicts what happens to the packet when a guest sends it.

use std::process::Output;

use butterfly_packet::{
    build,
    tcp::{ACK, SYN},
};
use butterfly_tests::{
    Nic,
    frames::mac,
    net::{Net, filtered, ip4, ip6, open, segment, v4 as ipv4, v6},
};
use serde_json::Value;

const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;
/// ICMP timestamp request (RFC 792).
const TIMESTAMP: u8 = 13;

/// Asks for an explanation. Returns the outcome of the last packet, as [`Net::send`] does, and the
/// whole answer.
#[track_caller]
fn ask(net: &Net, question: &str) -> (String, Value) {
    let words: Vec<&str> = ["explain", "--json"].into_iter().chain(question.split(' ')).collect();
    let output = net.host.daemon().client(&words);
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error} in {output:?}"));
    let allowed = answer["allowed"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if allowed { 0 } else { 2 }), "{output:?}");
    let walk = answer["hosts"][0]["walks"].as_array().unwrap().last().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or("vni-1").to_owned();
    let mut fate: Vec<String> = walk["nics"].as_array().unwrap().iter().map(text).collect();
    let drops = walk["drops"].as_array().unwrap();
    fate.extend(
        drops.iter().map(|drop| format!("{}.{}", text(&drop["nic_id"]), text(&drop["reason"]))),
    );
    (fate.join(" "), walk)
}

/// Asserts that the explanation is this outcome, that asking changes no counter, and that the frame
/// then has this outcome.
#[track_caller]
fn comes_true(net: &mut Net, question: &str, from: &str, frame: &[u8], outcome: &str) -> Value {
    let before = net.host.counters();
    let (said, walk) = ask(net, question);
    assert_eq!(said, outcome, "{question}: {walk:#}");
    net.host.moved(&mut before.clone(), &[]);
    net.expect(from, frame, outcome);
    walk
}

fn steps(walk: &Value, stage: &str) -> String {
    let steps = walk["steps"].as_array().unwrap().iter().filter(|step| step["stage"] == stage);
    let text = |step: &Value| {
        let details =
            step["details"].as_array().unwrap().iter().map(|detail| detail.as_str().unwrap());
        std::iter::once(step["text"].as_str().unwrap())
            .chain(details)
            .collect::<Vec<_>>()
            .join("\n")
    };
    steps.map(text).collect::<Vec<_>>().join("\n")
}

/// A full share of the session table: of sessions that may be replaced, and of others.
#[test]
fn a_full_share_is_seen() {
    let nics = [open("a", A), filtered("b", B, "web")];
    let Some(mut net) = Net::with(&["--sessions", "480", "--session-share", "10"], &nics) else {
        return;
    };
    net.group("web", &["in udp 0-65535 0.0.0.0/0"], &[]);
    let question = |port: u16| format!("--from a --to b --proto udp --port {port} --sport 7");
    let there = |port| ipv4(A, B).udp(7, port, b"");
    (1..=6).for_each(|port| net.expect("a", &there(port), "b"));
    comes_true(&mut net, &question(7), "a", &there(7), "b");
    for port in 11..=16 {
        net.exchange("a", &there(port), "b", &ipv4(B, A).udp(port, 7, b""));
    }
    comes_true(&mut net, &question(17), "a", &there(17), "a.session-share");
    // Established sessions go on.
    comes_true(&mut net, &question(16), "a", &there(16), "b");
}

#[test]
fn explanations_come_true() {
    let nics = [filtered("a", A, "web"), filtered("b", B, "web missing"), open("c", C)];
    let Some(mut net) = Net::new(&nics) else { return };
    net.group(
        "web",
        &[
            "in tcp 80-90 10.0.0.0/24",
            "in tcp 443-443 @admins",
            "in icmp - ::/0",
            "in icmpv6 - ::/0",
        ],
        &[],
    );
    let there = ipv4(A, B);
    let syn = |port| there.tcp(&segment((49152, port), SYN, 1, 0), b"");

    let walk =
        comes_true(&mut net, "--from a --to b --port 443", "a", &syn(443), "b.ingress-denied");
    let tried = steps(&walk, "ingress");
    for line in [
        "group missing: does not exist",
        "group web: 4 INBOUND rules: 2 about other protocols, 1 about other ports, 1 about other peers",
        "fits but for its ports: tcp 80-90 from 10.0.0.0/24",
        "fits but for its peers: tcp 443 from members of admins",
        "no other group would let it in",
    ] {
        assert!(tried.contains(line), "{tried}");
    }
    // The remedy can be pasted: it has the packet's own values, and the only group of the vnic that
    // refused it.
    let (said, walk) = ask(&net, "--from b --to a --port 443");
    assert_eq!(said, "a.ingress-denied");
    let remedy = walk["drops"][0]["remedy"].as_str().unwrap();
    let rule =
        format!("`butterfly sg rule add web --ip-proto tcp --port 443 --cidr {}/32`", ip4(B));
    let member = format!("`butterfly sg member add admins {}`", ip4(B));
    let (first, second) = remedy.split_once("; else ").expect(remedy);
    assert!(first.contains(&member) && second.contains(&rule), "{remedy}");
    // The link-local address of b's MAC address, which b owns without a declaration.
    let [m0, m1, m2, m3, m4, m5] = mac(B.into()).0;
    let local =
        format!("fe80::{m0:02x}{m1:02x}:{m2:02x}ff:fe{m3:02x}:{m4:02x}{m5:02x}", m0 = m0 ^ 2);
    assert_eq!(ask(&net, &format!("--from a --to {local}")).0, "b");
    // A group that would let the packet in if b was in it, and groups that would not.
    net.group("support", &["in tcp 400-500 10.0.0.1/32"], &[]);
    net.group("other", &["out tcp 443-443 10.0.0.1/32", "in tcp 443-443 10.0.0.2/32"], &[]);
    let (_, walk) = ask(&net, "--from a --to b --port 443");
    let tried = steps(&walk, "ingress");
    assert!(
        tried.ends_with(
            "\ngroup support would let it in, but b is not in it: `butterfly nic sg add b support`"
        ),
        "{tried}"
    );
    let remedy = walk["drops"][0]["remedy"].as_str().unwrap();
    assert!(
        remedy.contains("if b belongs to support: `butterfly nic sg add b support`"),
        "{remedy}"
    );
    net.member_add("admins", &ip4(A));
    let walk = comes_true(&mut net, "--from a --to b --port 443", "a", &syn(443), "b");
    assert_eq!(walk["ingress"]["security_group"], "web");
    assert!(steps(&walk, "session").starts_with("new"), "{walk:#}");

    // The session lets the answer and the next packets pass.
    let answer = ipv4(B, A).tcp(&segment((443, 49152), SYN | ACK, 1, 2), b"");
    let (said, walk) = ask(&net, "--from a --to b --port 443 --reply");
    assert_eq!(said, "a", "{walk:#}");
    assert!(steps(&walk, "session").contains("passes as an answer"), "{walk:#}");
    net.expect("b", &answer, "a");
    let walk = comes_true(
        &mut net,
        "--from a --to b --port 443 --flags ack",
        "a",
        &there.tcp(&segment((49152, 443), ACK, 2, 2), b""),
        "b",
    );
    assert!(steps(&walk, "session").contains("syn-received, opened by a"), "{walk:#}");
    // A changed rule ends the session: the explanation says so before the next packet.
    net.member_del("admins", &ip4(A));
    let (said, _) = ask(&net, "--from a --to b --port 443 --flags ack");
    assert_eq!(said, "b.ingress-denied");
    net.expect("a", &there.tcp(&segment((49152, 443), ACK, 2, 2), b""), "b.ingress-denied");

    comes_true(&mut net, "--from a --to b --port 80", "a", &syn(80), "b");
    comes_true(
        &mut net,
        "--from a --to b --port 81 --flags ack",
        "a",
        &there.tcp(&segment((49152, 81), ACK, 1, 1), b""),
        "a.tcp-no-session",
    );
    comes_true(
        &mut net,
        "--from a --to b --port 9 --proto udp",
        "a",
        &there.udp(49152, 9, b""),
        "b.ingress-denied",
    );
    let ping = |ip: build::Ip| ip.ping(1, 1, b"");
    comes_true(&mut net, "--from a --to fd00::2", "a", &ping(v6(A, B)), "b");
    comes_true(&mut net, "--from a --to 10.0.0.2", "a", &ping(ipv4(A, B)), "b.ingress-denied");
    comes_true(
        &mut net,
        "--from a --to b --icmp 13",
        "a",
        &there.icmp(TIMESTAMP, 0, 0x1_0001, b""),
        "b.ingress-denied",
    );
    let link = build::ethernet(mac(A.into()), mac(B.into()));
    let spoofed = link.clone().ipv4([10, 0, 0, 77], [10, 0, 0, 2]);
    let walk = comes_true(
        &mut net,
        "--from a --to b --port 80 --src 10.0.0.77",
        "a",
        &spoofed.tcp(&segment((49152, 80), SYN, 1, 0), b""),
        "a.spoofed-ip",
    );
    assert!(steps(&walk, "egress").contains("10.0.0.77 is not an address of a"), "{walk:#}");
    let forged = build::ethernet(mac(9), mac(B.into())).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let question = format!("--from a --to b --port 80 --src-mac {}", mac(9));
    comes_true(
        &mut net,
        &question,
        "a",
        &forged.tcp(&segment((49152, 80), SYN, 1, 0), b""),
        "a.spoofed-mac",
    );
    // An unfiltered vnic sends with the address of another vnic.
    let claimed = build::ethernet(mac(A.into()), mac(B.into())).ipv4([10, 0, 0, 3], [10, 0, 0, 2]);
    let question = format!("--from c --to b --port 80 --src-mac {}", mac(A.into()));
    comes_true(
        &mut net,
        &question,
        "c",
        &claimed.tcp(&segment((49152, 80), SYN, 1, 0), b""),
        "c.mac-claimed",
    );
    // A broadcast: c has no filter, b has no rule.
    let all = build::ethernet(mac(A.into()), butterfly_packet::Mac::BROADCAST)
        .ipv4([10, 0, 0, 1], [255, 255, 255, 255]);
    comes_true(
        &mut net,
        "--from a --to 255.255.255.255 --proto udp --port 9",
        "a",
        &all.udp(49152, 9, b""),
        "c b.ingress-denied",
    );

    // An OUTBOUND rule makes an allow-list for what leaves.
    net.rule_add("web", "out tcp 80-80 10.0.0.2/32");
    let walk = comes_true(
        &mut net,
        "--from a --to c --port 22",
        "a",
        &ipv4(A, C).tcp(&segment((49152, 22), SYN, 1, 0), b""),
        "a.egress-denied",
    );
    assert!(
        steps(&walk, "egress").contains("group web: 1 OUTBOUND rule: 1 about other ports"),
        "{walk:#}"
    );
}

#[test]
fn guests_that_cannot_take_it_are_told() {
    let nics = [open("a", A), open("b", B)];
    let Some(mut net) = Net::new(&nics) else { return };
    let other = Nic { vni: 7, ..open("d", 4) };
    net.attach(&other);
    let frame = ipv4(A, B).tcp(&segment((49152, 80), SYN, 1, 0), b"");
    comes_true(&mut net, "--from a --to b --port 80", "a", &frame, "b");
    // Addresses of another network, and unknown ones.
    for to in ["d", &ip4(4), "10.9.9.9"] {
        let (said, walk) = ask(&net, &format!("--from a --to {to} --port 80"));
        assert_eq!((said.as_str(), &walk["fate"]), ("", &Value::from("no-address")));
        assert_eq!(
            steps(&walk, "lookup").contains("d has it, in VNI 7"),
            to != "10.9.9.9",
            "{walk:#}"
        );
    }
    // The receiver's guest leaves.
    drop(net.stations.remove("b"));
    butterfly_tests::eventually("b left", || !net.host.show("b").attached);
    comes_true(&mut net, "--from a --to b --port 80", "a", &frame, "b.not-attached");
}

#[test]
fn questions_without_an_answer_are_errors() {
    let Some(net) = Net::new(&[open("a", A)]) else { return };
    let ask = |words: &str| -> Output {
        let words: Vec<&str> = std::iter::once("explain").chain(words.split(' ')).collect();
        net.host.daemon().client(&words)
    };
    for (question, why) in [
        ("--from a", "--to is mandatory"),
        ("--from nobody --to a", "NIC does not exist with id nobody"),
        ("--from a --to nobody", "NIC does not exist with id nobody"),
        ("--from outside --to a", "needs --vni, or --external"),
        ("--from outside --vni 1 --to a", "--src is mandatory"),
        ("--from outside --vni 1 --src 10.0.0.9 --to a", "without an uplink"),
        ("--from a --to a --proto tcp", "needs a destination port"),
        ("--from a --to a --proto xyz", "--proto argument not recognized"),
        ("--from a --to a --port 80 --flags sin", "--flags argument not recognized"),
        ("--from a --to a --size 20", "too few"),
        ("--from a --to 10.0.0.1 --src fd00::1", "different families"),
        ("--from a --to a --mac 02:00", "no MAC address"),
        ("--from a --to a --far-endpoint ipc:///nowhere/api -t 200", "/nowhere/api"),
    ] {
        let output = ask(question);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{question}: {output:?}");
        assert!(stderr.contains(why), "{question}: {stderr}");
    }
}

/// Explanations of DHCP and neighbour discovery use whole messages, as a VM would send them.
#[test]
fn dhcp_and_discovery_are_whole_messages() {
    let nics = [filtered("a", A, "web"), open("b", B)];
    let Some(net) = Net::new(&nics) else { return };
    net.group("web", &["in tcp 80-90 10.0.0.0/24"], &[]);
    let asked = |question: &str| ask(&net, question).0;
    assert_eq!(
        asked("--from a --to 255.255.255.255 --src 0.0.0.0 --proto udp --sport 68 --port 67"),
        "b"
    );
    assert_eq!(
        asked(
            "--from a --to 255.255.255.255 --src 0.0.0.0 --proto udp --sport 68 --port 67 --size 548"
        ),
        "b"
    );
    // The filter admits a DHCP answer by its request, and there was none.
    assert_eq!(asked("--from a --to b --proto udp --sport 67 --port 68"), "a.egress-denied");
    let words = |kind: u8| format!("--from a --to {} --icmp {kind}", ip6(B));
    assert_eq!(asked(&words(135)), "b");
    assert_eq!(asked(&words(136)), "b");
    assert_eq!(asked(&words(134)), "a.bad-discovery");
}
