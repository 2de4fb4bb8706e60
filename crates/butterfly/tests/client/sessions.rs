//! `sessions`, and what rules admitted.

use crate::refused;
use crate::support::{Daemon, Row, answer, check};

const TABLE: &str = "session_table { capacity: 1000000 used: 3 memory: \"huge pages of 2 MiB\" tcp_pickup: 120 share: 250000 \
                     timeout { name: \"tcp-new\" seconds: 30 description: \"TCP until both sides spoke\" } \
                     timeout { name: \"udp-answered\" seconds: 60 description: \"UDP with an answer\" } }";

/// One of each kind of end, protocol and admission.
const SESSIONS: &str = "session_list { matching: 4 \
    session { vni: 42 protocol: 6 \
              opener { nic_id: \"vm-1\" address: \"10.0.0.1\" port: 4000 } responder { nic_id: \"vm-2\" address: \"10.0.0.2\" port: 80 } \
              state: \"established\" age: 3700 idle: 2 expires: 86398 \
              opener_packets: 10 opener_bytes: 1000 responder_packets: 8 responder_bytes: 80000 \
              egress { kind: DEFAULT_EGRESS } \
              ingress { kind: RULE security_group: \"web\" rule { direction: INBOUND protocol: 6 port_start: 1000 port_end: 2000 \
                        cidr { address: \"10.0.0.0\" mask_size: 24 } } } } \
    session { vni: 7 vlan: 5 protocol: 17 \
              opener { address: \"2001:db8::1\" port: 53 } responder { nic_id: \"vm\\033[2J\" address: \"::1\" port: 54 } \
              state: \"new\" age: 1 idle: 1 expires: 29 opener_packets: 1 opener_bytes: 60 responder_packets: 0 responder_bytes: 0 \
              egress { kind: BYPASS } ingress { kind: GONE } } \
    session { vni: 7 protocol: 58 \
              opener { nic_id: \"a\" address: \"::1\" port: 77 } responder { nic_id: \"b\" address: \"::2\" port: 128 } \
              state: \"new\" age: 1 idle: 1 expires: 29 egress { kind: BYPASS } } \
    session { vni: 7 protocol: 47 \
              opener { nic_id: \"a\" address: \"::1\" port: 0 } responder { nic_id: \"b\" address: \"::2\" port: 0 } state: \"new\" } }";

#[test]
fn listed() {
    check(&[
        Row {
            line: "sessions @",
            asks: &[&["session_table: true", "session_list {filter {}}"]],
            answers: &[&[TABLE, SESSIONS]],
            out: "\
sessions: 3 of 1000000 in use, in huge pages of 2 MiB

network   proto   opener              responder             state              age  idle  packets       bytes  let out by      let in by
42        tcp     vm-1 10.0.0.1:4000  vm-2 10.0.0.2:80      established  1 h 1 min   2 s     10+8  1000+80000  default egress  web f44fac34f8667927
7 vlan 5  udp     [2001:db8::1]:53    vm\\u{1b}[2J [::1]:54  new                1 s   1 s      1+0        60+0  bypass          gone
7         icmpv6  a ::1 id 77         b ::2                 new                1 s   1 s      0+0         0+0  bypass          unknown
7         47      a ::1               b ::2                 new                0 s   0 s      0+0         0+0  unknown         unknown
",
            ..Row::default()
        },
        // More than are shown.
        Row {
            line: "sessions --limit 0 @",
            asks: &[&["session_table: true", "session_list {filter {} limit: 0}"]],
            answers: &[&["session_table { capacity: 8 used: 8 memory: \"m\" }", "session_list { matching: 7 }"]],
            out: "sessions: 8 of 8 in use, in m\n0 of 7 are shown: --limit N shows up to 10000, the options choose\n\n\
                  network  proto  opener  responder  state  age  idle  packets  bytes  let out by  let in by\n",
            ..Row::default()
        },
    ]);
}

#[test]
fn options_make_the_filter() {
    for (options, filter) in [
        ("vm-1", "nic_id: \"vm-1\""),
        ("--vni 16777215", "vni: 16777215"),
        ("--proto tcp", "protocol: 6"),
        ("--proto udp", "protocol: 17"),
        ("--proto icmp", "protocol: 1"),
        ("--proto icmpv6", "protocol: 58"),
        ("--proto sctp", "protocol: 132"),
        ("--proto 0", "protocol: 0"),
        ("--address 10.0.0.1", "address: \"10.0.0.1\""),
        ("--address ::1", "address: \"::1\""),
        ("--port 65535", "port: 65535"),
        (
            "a --vni 1 --proto 2 --address ::1 --port 3",
            "nic_id: \"a\" vni: 1 protocol: 2 address: \"::1\" port: 3",
        ),
    ] {
        let counted = format!("session_list {{filter {{{filter}}} limit: 0}}");
        let flushed = format!("session_flush {{{filter}}}");
        check(&[
            Row {
                line: &format!("sessions {options} --count @"),
                asks: &[&["session_table: true", &counted]],
                answers: &[&[TABLE, "session_list { matching: 12 }"]],
                out: "12\n",
                ..Row::default()
            },
            Row {
                line: &format!("sessions {options} --flush @"),
                asks: &[&[&flushed]],
                answers: &[&["session_flush { flushed: 3 }"]],
                out: "flushed: 3\n",
                ..Row::default()
            },
        ]);
    }
}

#[test]
fn options_are_refused() {
    for (options, err) in [
        (
            "--vni many",
            "--vni argument not recognized\nhelp: \"many\" is not a number from 0 to 16777215",
        ),
        (
            "--proto 256",
            "--proto argument not recognized\nhelp: \"256\" is not tcp, udp, icmp, icmpv6, sctp or a number from 0 to 255",
        ),
        (
            "--address 10.0.0.0/8",
            "--address argument not recognized\nhelp: \"10.0.0.0/8\" is not an IP address like 192.0.2.1 or 2001:db8::1",
        ),
        (
            "--port 65536",
            "--port argument not recognized\nhelp: \"65536\" is not a number from 0 to 65535",
        ),
        ("--limit all", "--limit argument not recognized\nhelp: \"all\" is not a number"),
        ("--count --flush", "--count, --flush and --timeouts are three commands: give one of them"),
        (
            "--timeouts --count",
            "--count, --flush and --timeouts are three commands: give one of them",
        ),
    ] {
        let line = format!("sessions {options} @");
        let err = format!("{err}\nerror in command: sessions\n");
        check(&[Row { line: &line, out: "short: sessions", err: &err, code: 1, ..Row::default() }]);
    }
    check(&[Row {
        line: "sessions x --count @",
        asks: &[&["session_table: true", "session_list {filter {nic_id: \"x\"} limit: 0}"]],
        answers: &[&[TABLE, refused!("NIC does not exist with id x")]],
        err: "error in response\ndescription: NIC does not exist with id x\nerror in command: sessions\n",
        code: 1,
        ..Row::default()
    }]);
}

#[test]
fn time_outs() {
    check(&[
        Row {
            line: "sessions --timeouts @",
            asks: &[&["session_table: true"]],
            answers: &[&[TABLE]],
            out: "\
sessions: 3 of 1000000 in use, in huge pages of 2 MiB
one network may have 250000, and one NIC may open half of that and receive as many
TCP connections are picked up in their middle for 120 s after the daemon started or a machine attached

time-out      seconds  of
tcp-new            30  TCP until both sides spoke
udp-answered       60  UDP with an answer
",
            ..Row::default()
        },
        Row {
            line: "sessions --timeouts @",
            asks: &[&["session_table: true"]],
            answers: &[&["session_table { capacity: 1 used: 0 memory: \"m\" tcp_pickup: 0 share: 1 }"]],
            out: "sessions: 0 of 1 in use, in m\none network may have 1, and one NIC may open half of that and receive as many\n\
                  TCP connections are never picked up in their middle\n\ntime-out  seconds  of\n",
            ..Row::default()
        },
    ]);
}

#[test]
fn for_programs() {
    let ask = |line: &str, answers: &[&str]| {
        let daemon = Daemon::new();
        let mut client = daemon.start(line);
        daemon.receive(line);
        daemon.send(&answer(answers));
        let ended = client.end();
        assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)), "{line}");
        serde_json::from_str::<serde_json::Value>(&ended.out).unwrap()
    };
    let table = serde_json::json!({
        "capacity": 1_000_000, "used": 3, "memory": "huge pages of 2 MiB", "tcp_pickup_s": 120, "share": 250_000,
        "timeouts_s": {"tcp-new": 30, "udp-answered": 60},
    });
    assert_eq!(ask("sessions --timeouts --json @", &[TABLE]), table);
    assert_eq!(
        ask("sessions --count --json @", &[TABLE, SESSIONS]),
        serde_json::json!({"matching": 4})
    );
    assert_eq!(
        ask("sessions --flush --json @", &["session_flush { flushed: 3 }"]),
        serde_json::json!({"flushed": 3})
    );
    // Programs see a cut by comparing the number with the list's length.
    let cut = ask("sessions --limit 0 --json @", &[TABLE, "session_list { matching: 10001 }"]);
    assert_eq!((&cut["matching"], &cut["sessions"]), (&10_001.into(), &serde_json::json!([])));
    let all = ask("sessions --json @", &[TABLE, SESSIONS]);
    assert_eq!((&all["table"], &all["matching"]), (&table, &4.into()));
    let sessions = all["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 4);
    let first = serde_json::json!({
        "vni": 42, "vlan": null, "protocol": 6,
        "opener": {"nic_id": "vm-1", "address": "10.0.0.1", "port": 4000, "outside": null},
        "responder": {"nic_id": "vm-2", "address": "10.0.0.2", "port": 80, "outside": null},
        "state": "established", "age_s": 3700, "idle_s": 2, "expires_s": 86398,
        "opener_packets": 10, "opener_bytes": 1000, "responder_packets": 8, "responder_bytes": 80000,
        "egress": {"kind": "DEFAULT_EGRESS"},
        "ingress": {"kind": "RULE", "security_group": "web", "hash": "f44fac34f8667927"},
    });
    assert_eq!(sessions[0], first);
    assert_eq!(sessions[1]["opener"]["nic_id"], serde_json::Value::Null);
    assert_eq!(sessions[1]["vlan"], 5);
}

const STATS: &str = "sg_rule_stats { rule { direction: INBOUND protocol: 6 port_start: 1000 port_end: 2000 \
                     cidr { address: \"10.0.0.0\" mask_size: 24 } } sessions: 7 } \
                     sg_rule_stats { rule { direction: OUTBOUND protocol: 42 security_group: \"sg-2\" } sessions: 0 }";

#[test]
fn rules_and_what_they_admitted() {
    check(&[
        Row {
            line: "sg rule list web --stats @",
            asks: &[&["sg_rule_stats: \"web\""]],
            answers: &[&[STATS]],
            out: "f44fac34f8667927 | direction: INBOUND - IP protocol: 6 - port start: 1000 - port end: 2000 - cidr: 10.0.0.0/24 - members of sg: Ø - sessions: 7\n\
                  b72ce319ceef3034 | direction: OUTBOUND - IP protocol: 42 - port start: Ø - port end: Ø - cidr: Ø - members of sg: sg-2 - sessions: 0\n",
            ..Row::default()
        },
        Row {
            line: "sg rule list web --stats @",
            asks: &[&["sg_rule_stats: \"web\""]],
            answers: &[&[refused!("Security Group not found")]],
            err: "error in response\ndescription: Security Group not found\nerror in command: sg\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "sg rule list web --json @",
            asks: &[&["sg_rule_list: \"web\""]],
            answers: &[&[
                "sg_rule_list { direction: INBOUND protocol: 42 security_group: \"sg-2\" }",
            ]],
            out: "{
  \"rules\": [
    {
      \"cidr\": null,
      \"direction\": \"INBOUND\",
      \"hash\": \"cfdb94f9418c88f1\",
      \"port_end\": null,
      \"port_start\": null,
      \"protocol\": 42,
      \"security_group\": \"sg-2\"
    }
  ]
}
",
            ..Row::default()
        },
        Row {
            line: "sg rule list web --json --stats @",
            asks: &[&["sg_rule_stats: \"web\""]],
            answers: &[&[
                "sg_rule_stats { rule { direction: INBOUND protocol: 6 port_start: 1000 port_end: 2000 \
                          cidr { address: \"10.0.0.0\" mask_size: 24 } } sessions: 7 }",
            ]],
            out: "{
  \"rules\": [
    {
      \"cidr\": \"10.0.0.0/24\",
      \"direction\": \"INBOUND\",
      \"hash\": \"f44fac34f8667927\",
      \"port_end\": 2000,
      \"port_start\": 1000,
      \"protocol\": 6,
      \"security_group\": null,
      \"sessions\": 7
    }
  ]
}
",
            ..Row::default()
        },
        Row {
            line: "sg list --json @",
            asks: &[&["sg_list: true"]],
            answers: &[&["sg_list: \"a\" sg_list: \"b\""]],
            out: "{\n  \"security_groups\": [\n    \"a\",\n    \"b\"\n  ]\n}\n",
            ..Row::default()
        },
        Row {
            line: "sg list --json @",
            asks: &[&["sg_list: true"]],
            out: "{\n  \"security_groups\": []\n}\n",
            ..Row::default()
        },
        Row {
            line: "sg member list web --json @",
            asks: &[&["sg_member_list: \"web\""]],
            answers: &[&["sg_member_list: \"::1\""]],
            out: "{\n  \"members\": [\n    \"::1\"\n  ]\n}\n",
            ..Row::default()
        },
    ]);
}
