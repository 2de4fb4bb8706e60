//! Contract of the error texts, and of what is a success although it may look wrong.

use crate::refused;
use crate::support::{Daemon, Row, answer, asked_for, check, in_full};
use butterfly_api::proto::Messages;
use butterfly_api::text;

#[test]
fn refusals_are_told_with_their_help() {
    for (status, err) in [
        (
            "status { status: false error { description: \"NIC: x not found\" } }",
            "error in response\ndescription: NIC: x not found\n",
        ),
        (
            "status { status: false error { description: \"Bad NIC format\" help: \"ports are 0 to 65535\" } }",
            "error in response\ndescription: Bad NIC format\nhelp: ports are 0 to 65535\n",
        ),
        ("status { status: false }", "error in response\n no details provided\n"),
        (
            "status { status: false error { help: \"try\" } }",
            "error in response\n no details provided\nhelp: try\n",
        ),
    ] {
        let err = format!("{err}error in command: nic\n");
        check(&[Row {
            line: "nic details x @",
            asks: &[&["nic_details: \"x\""]],
            answers: &[&[status]],
            err: &err,
            code: 1,
            ..Row::default()
        }]);
    }
}

#[test]
fn what_no_reply_may_be() {
    for (reply, err) in [
        (
            "messages { revision: 6 error { code: REJECTED } }",
            "error in response: REJECTED\nhelp: a daemon with a key refuses what is in clear text: name its key with -k PATH",
        ),
        (
            "messages { revision: 6 error { code: VERSION_NOT_MANAGED } }",
            "error in response: VERSION_NOT_MANAGED",
        ),
        ("messages { revision: 6 error { code: PARSE_ERROR } }", "error in response: PARSE_ERROR"),
        (
            "messages { revision: 6 error { code: INTERNAL_ERROR } }",
            "error in response: INTERNAL_ERROR",
        ),
        (
            "messages { revision: 6 error { code: EMPTY_REQUEST } }",
            "error in response: EMPTY_REQUEST",
        ),
        ("encrypted { error { code: REJECTED } }", "Encrypted message error: REJECTED"),
        ("encrypted { error { code: NOT_SUPPORTED } }", "Encrypted message error: NOT_SUPPORTED"),
        ("encrypted { error { code: INTERNAL_ERROR } }", "Encrypted message error: INTERNAL_ERROR"),
        ("encrypted { }", "error: nothing recognized in encrypted response"),
        ("encrypted { aes256cbc_sha512: \"0123\" }", "Error, cannot decrypt message"),
        ("", "error: no message in response"),
        ("messages { revision: 6 }", "error: no message recognized in response"),
        ("messages { revision: 6 message_0 { } }", "error: no response in MessageV0"),
    ] {
        let reply: Messages = text::parse(reply).unwrap();
        let ended = ended_after("nic list @", |daemon| daemon.send(&reply));
        assert_eq!(ended, (String::new(), format!("{err}\nerror in command: nic\n"), Some(1)));
    }
}

#[test]
fn what_is_no_protobuf() {
    for bytes in [b"\xff\xff".as_slice(), b"\x0a\x02\x12\x00", b"\x0a\xff\xff\xff\xff\x0f"] {
        let ended = ended_after("nic list @", |daemon| daemon.send_bytes(bytes));
        assert_eq!(
            ended,
            (
                String::new(),
                "Error while decoding response\nerror in command: nic\n".into(),
                Some(1)
            )
        );
    }
    // What it cannot decode, and a defect of its own, a daemon answers with a bare message.
    for (code, name) in [(0, "PARSE_ERROR"), (1, "INTERNAL_ERROR")] {
        let ended =
            ended_after("nic list @", |daemon| daemon.send_bytes(&[8, 6, 0x12, 2, 8, code]));
        let err = format!("error in response: {name}\nerror in command: nic\n");
        assert_eq!(ended, (String::new(), err, Some(1)));
    }
}

#[test]
fn replies_are_counted() {
    let ended = ended_after("nic del a b @", |daemon| daemon.send(&answer(&[""])));
    let err = "error: 2 requests were sent, 1 were answered\nerror in command: nic\n";
    assert_eq!(ended, (String::new(), err.into(), Some(1)));
    let ended = ended_after("nic list @", |daemon| daemon.send(&answer(&["", ""])));
    assert_eq!(ended.2, Some(1));
}

fn ended_after(line: &str, reply: impl FnOnce(&Daemon)) -> (String, String, Option<i32>) {
    let daemon = Daemon::new();
    let mut client = daemon.start(line);
    daemon.receive(line);
    reply(&daemon);
    let ended = client.end();
    (ended.out, ended.err, ended.code)
}

#[test]
fn a_success_must_hold_the_result() {
    for (line, asked, err) in [
        ("nic stats a @", "nic_stats: \"a\"", "no nic stats received"),
        ("nic details a @", "nic_details: \"a\"", "no nic details received"),
        ("nic sg list a @", "nic_details: \"a\"", "no nic details received"),
        ("nic show a @", "nic_show: \"a\"", "no nic description received"),
        (
            "nic add --id a --mac 52:54:00:00:00:01 --vni 1 @",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1}",
            "no nic add result received",
        ),
        ("status @", "app_status: true", "no status received"),
    ] {
        let first = line.split_whitespace().next().unwrap();
        let err = format!("{err}\nerror in command: {first}\n");
        check(&[Row { line, asks: &[&[asked]], err: &err, code: 1, ..Row::default() }]);
    }
}

/// An empty id asks for every vnic: none of them was meant.
#[test]
fn an_empty_id_is_nobody() {
    let all: &[&str] = &["nic_details { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1 }"];
    for line in ["nic details '' @", "nic sg del '' web @"] {
        check(&[Row {
            line,
            asks: &[&["nic_details: \"\""]],
            answers: &[all],
            err: "no nic details received\nerror in command: nic\n",
            code: 1,
            ..Row::default()
        }]);
    }
}

/// Every request about something unknown that the daemon refuses.
#[test]
fn refused_by_the_daemon_is_exit_code_1() {
    const UNKNOWN_NIC: &str = refused!("NIC does not exist with id x");
    const UNKNOWN_SG: &str = refused!("Security Group not found");
    for (line, asked, refusal) in [
        ("nic stats x @", "nic_stats: \"x\"", UNKNOWN_NIC),
        ("nic details x @", "nic_details: \"x\"", UNKNOWN_NIC),
        ("nic show x @", "nic_show: \"x\"", UNKNOWN_NIC),
        ("nic sg list x @", "nic_details: \"x\"", UNKNOWN_NIC),
        ("nic sg add x g @", "nic_details: \"x\"", UNKNOWN_NIC),
        ("nic sg del x g @", "nic_details: \"x\"", UNKNOWN_NIC),
        ("nic sg set x g @", "nic_update {id: \"x\" security_group: \"g\"}", UNKNOWN_NIC),
        ("sg rule list x @", "sg_rule_list: \"x\"", UNKNOWN_SG),
        ("sg rule del x 0123456789abcdef @", "sg_rule_list: \"x\"", UNKNOWN_SG),
        ("sg member list x @", "sg_member_list: \"x\"", UNKNOWN_SG),
        (
            "sg member add x 1.2.3 @",
            "sg_member_add {sg_id: \"x\" member: \"1.2.3\"}",
            refused!("Bad IP format"),
        ),
        ("drops @", "drop_list {}", refused!("no")),
        ("drops x --watch @", "drop_list {nic_id: \"x\"}", UNKNOWN_NIC),
        ("fdb @", "fdb_list {}", refused!("no")),
        ("workers @", "worker_list: true", refused!("no")),
        ("tunnels @", "tunnel_show {}", refused!("no")),
        ("uplink @", "uplink_show: true", refused!("no")),
        ("peer list @", "peer_list: true", refused!("no")),
        ("peer add ::1 @", "peer_add {address: \"::1\"}", refused!("no")),
        ("network list @", "network_list: true", refused!("no")),
        ("network del --vni 7 @", "network_del: 7", refused!("no")),
        ("router list @", "router_list: true", refused!("no")),
        ("router del r @", "router_del: \"r\"", refused!("no")),
        ("route list @", "router_list: true", refused!("no")),
        (
            "route del r --to ::/0 @",
            "route_del { router: \"r\" cidr { address: \"::\" mask_size: 0 } }",
            refused!("no"),
        ),
        ("external list @", "external_list: true", refused!("no")),
        ("external del x @", "external_del: \"x\"", refused!("no")),
        ("nat list @", "nat_list: true", refused!("no")),
        ("neighbour list @", "neighbour_list { sought: true }", refused!("no")),
        (
            "neighbour del --vni 7 --ip ::1 @",
            "neighbour_del { vni: 7 address: \"::1\" }",
            refused!("no"),
        ),
        ("dump @", "nic_details: \"\"", refused!("no")),
        ("shutdown @", "app_quit: true", refused!("no")),
    ] {
        let daemon = Daemon::new();
        let mut client = daemon.start(line);
        let request = daemon.receive(line);
        assert_eq!(asked_for(&request.messages[0]), in_full(asked), "{line}");
        daemon.send(&answer(&[refusal]));
        let ended = client.end();
        assert!(ended.err.starts_with("error in response\ndescription: "), "{line}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
    }
}

/// The client accepts silently all that the daemon accepts silently.
#[test]
fn accepted_by_the_daemon_is_exit_code_0() {
    let details: &[&str] = &["nic_details { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1 }"];
    check(&[
        // A duplicate, and one without an address.
        Row {
            line: "nic add --id a --mac 52:54:00:00:00:01 --vni 1 @",
            asks: &[&["nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1}"]],
            answers: &[&["nic_add { path: \"p\" }"]],
            out: "p\n",
            ..Row::default()
        },
        Row { line: "nic del unknown @", asks: &[&["nic_del: \"unknown\""]], ..Row::default() },
        Row {
            line: "nic sg del a absent @",
            asks: &[&["nic_details: \"a\""]],
            answers: &[details],
            ..Row::default()
        },
        Row { line: "sg del unknown @", asks: &[&["sg_del: \"unknown\""]], ..Row::default() },
        Row {
            line: "sg rule list empty @",
            asks: &[&["sg_rule_list: \"empty\""]],
            ..Row::default()
        },
        Row {
            line: "sg member list empty @",
            asks: &[&["sg_member_list: \"empty\""]],
            ..Row::default()
        },
    ]);
}
