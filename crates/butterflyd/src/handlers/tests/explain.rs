//! Questions about packets.

use super::{NIC, host::Host};
use butterfly_datapath::{Mac, Origin, Question, Target};

#[test]
fn a_question_is_passed_on_and_its_answer_told() {
    let mut host = Host::new();
    host.succeeds(NIC);
    let answer = host.succeeds(
        r#"explain { from_nic: "n" to_nic: "n" protocol: 6 source_port: 7 destination_port: 8 source: "10.0.0.3"
           source_mac: "02:00:00:00:00:03" destination_mac: "02:00:00:00:00:04" tcp_flags: 16 length: 100 reply: true }"#,
    );
    let question = Question {
        from: Origin::Vnic("n".into()),
        to: Target::Vnic("n".into()),
        source: Some([10, 0, 0, 3].into()),
        source_mac: Some(Mac([2, 0, 0, 0, 0, 3])),
        destination_mac: Some(Mac([2, 0, 0, 0, 0, 4])),
        protocol: 6,
        source_port: Some(7),
        destination_port: Some(8),
        flags: Some(16),
        icmp: None,
        length: Some(100),
        reply: true,
    };
    assert_eq!(host.fake().question.take(), Some(question));
    let step = r#"step { stage: "lookup" mark: NOTE text: "because of VNI 51" detail: "more of VNI 510, VNI 51: VNI x" } egress { kind: DEFAULT_EGRESS }"#;
    let drop = |of: &str| format!(r#"drop {{ reason: "bad-chain"{of} description: "#);
    assert!(
        answer.starts_with(&format!(
            r#"explain {{ allowed: false vni: 1 destination_mac: "02:00:00:00:00:09" walk {{ packet: "a packet" {step} fate: FLOODED nic_id: "n" host: "192.0.2.9" {}"#,
            drop("")
        )),
        "{answer}"
    );
    assert!(answer.contains(&format!(r#"fate: DROPPED {}"#, drop(r#" nic_id: "n""#))), "{answer}");
    let routed = r#"routed { vni: 51 source_mac: "b2:f0:00:00:00:01" destination_mac: "02:00:00:00:00:0a" }"#;
    assert_eq!(answer.matches(routed).count(), 2, "{answer}");
}

#[test]
fn what_is_not_said_is_as_a_guest_would_have_it() {
    let mut host = Host::new();
    host.succeeds(NIC);
    for (to, protocol) in [
        (r#"to_nic: "n""#, 1),
        (r#"to_address: "2001:db8::1" destination_mac: "02:00:00:00:00:04""#, 58),
    ] {
        host.succeeds(&format!("explain {{ vni: 5 {to} icmp_type: 3 }}"));
        let question = host.fake().question.take().unwrap();
        assert_eq!(
            (question.from, question.protocol, question.icmp),
            (Origin::Outside(5), protocol, Some((3, 0)))
        );
    }
}

#[test]
fn questions_that_say_nothing_are_refused() {
    let mut host = Host::new();
    host.succeeds(NIC);
    for (question, description, help) in [
        (r#"to_nic: "n""#, "nobody sends", "from_nic"),
        (r#"from_nic: "n""#, "for nobody", "to_address"),
        (r#"from_nic: "m" to_nic: "n""#, "m", ""),
        (r#"from_nic: "n" to_nic: "m""#, "m", ""),
        (r#"from_nic: "n" to_address: "10.0.0""#, "Bad IP format", ""),
        (r#"from_nic: "n" to_nic: "n" source_mac: "02:00""#, "no MAC address", ""),
        (r#"from_nic: "n" to_nic: "n" protocol: 256"#, "out of range", ""),
        (r#"from_nic: "n" to_nic: "n" destination_port: 65536"#, "out of range", ""),
        (
            r#"from_nic: "n" to_address: "10.0.0.7""#,
            "no NIC of this host has 10.0.0.7",
            "--far-endpoint",
        ),
    ] {
        let (said, more) = host.fails(&format!("explain {{ {question} }}"));
        assert!(said.contains(description) && more.contains(help), "{question}: {said}, {more}");
    }
}

/// The query has an answer, and the answer is no.
#[test]
fn one_that_waits_for_its_mac_address_gets_nothing() {
    let mut host = Host::new();
    host.succeeds(NIC);
    host.succeeds(&NIC.replace("\"n\"", "\"twin\""));
    let answer = host.succeeds("explain { from_nic: \"n\" to_nic: \"twin\" }");
    for part in [
        "allowed: false vni: 1 destination_mac: \"42:00:00:00:00:aA\" walk { packet: \"a packet for twin\"",
        "mark: STOP text: \"twin waits for its MAC address, which n has: it gets nothing until that one is gone\"",
        "detail: \"what to do: `butterfly nic del n`, or give one of the two another MAC address\" } fate: NO_ADDRESS",
    ] {
        assert!(answer.contains(part), "{part} is not in {answer}");
    }
}
