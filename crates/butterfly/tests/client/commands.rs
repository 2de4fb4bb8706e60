//! Contract of the commands: what each asks for, given its words.

use crate::refused;
use crate::support::{Daemon, Row, answer, asked_for, check, in_full, run};

#[test]
fn nic_add() {
    const MINIMAL: &str = "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42}";
    let path = &[&["nic_add { path: \"/tmp/qemu-vhost-a\" }"] as &[&str]];
    let out = "/tmp/qemu-vhost-a\n";
    for (options, asked) in [
        ("", MINIMAL),
        ("--vni=42", MINIMAL),
        (
            "--ip 10.0.0.1 --ip ::1 --sg web --sg ssh",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 ip: \"10.0.0.1\" ip: \"::1\" security_group: \"web\" security_group: \"ssh\"}",
        ),
        (
            "--ip 10.0.0.1 10.0.0.2 --sg web ssh",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 ip: \"10.0.0.1\" ip: \"10.0.0.2\" security_group: \"web\" security_group: \"ssh\"}",
        ),
        (
            "--enable-antispoof --router",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 ip_anti_spoof: true router: true}",
        ),
        (
            "--bypass-filtering --forwards --shared-ip",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 bypass_filtering: true forwards: true shared_ip: true}",
        ),
        (
            "--ip 10.0.0.1 --prefix fd00:1::/64 fd00:2::/64",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 ip: \"10.0.0.1\" prefix: \"fd00:1::/64\" prefix: \"fd00:2::/64\"}",
        ),
        (
            "--limit-in 1G --limit-in-packets 100k --limit-in-burst 1M --limit-out 1.5G",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 limits {in {bits: 1000000000 packets: 100000 burst_bytes: 1000000} out {bits: 1500000000}}}",
        ),
        (
            "--type VHOST_USER_SERVER --packet-trace false",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: VHOST_USER_SERVER packet_trace: false}",
        ),
        (
            "--type VHOST_USER_CLIENT",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: VHOST_USER_CLIENT}",
        ),
        (
            "--type VHOST_USER_CLIENT --path /run/a.sock",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: VHOST_USER_CLIENT path: \"/run/a.sock\"}",
        ),
        (
            "--type TAP --packet-trace true --trace-path /tmp/t",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: TAP packet_trace: true packet_trace_path: \"/tmp/t\"}",
        ),
        (
            "--type BENCH --btype ICMP_SND_LIKE --dip 10.0.0.9 --dmac 52:54:00:00:00:09",
            "nic_add {id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: BENCH btype: \"ICMP_SND_LIKE\" dip: \"10.0.0.9\" dmac: \"52:54:00:00:00:09\"}",
        ),
    ] {
        let line = format!("nic add --id a --mac 52:54:00:00:00:01 --vni 42 {options} @");
        check(&[Row { line: &line, asks: &[&[asked]], answers: path, out, ..Row::default() }]);
    }
}

#[test]
fn nic_release() {
    let held: &[&[&str]] = &[&["nic_release { was_held: true }"]];
    let not_held: &[&[&str]] = &[&["nic_release { was_held: false }"]];
    let row = |line, asks, answers, out| Row { line, asks, answers, out, ..Row::default() };
    check(&[
        row("nic release a @", &[&["nic_release: \"a\""]], held, "served again\n"),
        row("nic release a @", &[&["nic_release: \"a\""]], not_held, "nic a was not held\n"),
        row("nic release --all @", &[&["nic_release: \"\""]], held, "served again\n"),
        row("nic release --all @", &[&["nic_release: \"\""]], not_held, "nothing was held\n"),
        row(
            "nic release a --json @",
            &[&["nic_release: \"a\""]],
            held,
            "{\n  \"was_held\": true\n}\n",
        ),
    ]);
}

#[test]
fn upgrade_commit() {
    let asks: &[&[&str]] = &[&["upgrade_commit: true"]];
    let raised: &[&[&str]] = &[&["upgrade_commit { from: 1 to: 2 records: 7 }"]];
    let not: &[&[&str]] = &[&["upgrade_commit { from: 2 to: 2 records: 1 }"]];
    let row = |line, answers, out| Row { line, asks, answers, out, ..Row::default() };
    check(&[
        row(
            "upgrade --commit @",
            raised,
            "the store is rewritten in layout 2, after layout 1: 7 records; a release that does not \
             read layout 2 cannot go on any more\n",
        ),
        row(
            "upgrade --commit @",
            not,
            "the store is of the newest layout already, 2: nothing to do\n",
        ),
    ]);
    let both = run("upgrade /new --commit");
    assert_eq!(both.code, Some(1));
    assert!(both.err.contains("name a program, or give --commit"), "{}", both.err);
}

/// Accepted, as by the original, with a word about it.
#[test]
fn nic_add_says_what_has_no_effect() {
    for (options, asked, err) in [
        (
            "--bypass-filtering --sg web",
            "bypass_filtering: true security_group: \"web\"",
            "--sg: with --bypass-filtering nothing of this NIC is filtered",
        ),
        ("--dip 10.0.0.9", "dip: \"10.0.0.9\"", "--dip: it is for --type BENCH"),
        (
            "--type BENCH --btype ICMP_RCV_LIKE --dip 10.0.0.9",
            "type: BENCH btype: \"ICMP_RCV_LIKE\" dip: \"10.0.0.9\"",
            "--dip: it is for --btype ICMP_SND_LIKE",
        ),
        (
            "--enable-antispoof false",
            "ip_anti_spoof: true",
            "false: --enable-antispoof takes no value, it is on as soon as it is given",
        ),
        (
            "--id a --mac 52:54:00:00:00:02",
            "",
            "--mac 52:54:00:00:00:02: given again as 52:54:00:00:00:01, and the last one counts",
        ),
        (
            "--enable-antispof",
            "",
            "--enable-antispof: `nic add` has no such option; did you mean --enable-antispoof?",
        ),
    ] {
        let line = format!("nic add {options} --id a --mac 52:54:00:00:00:01 --vni 42 @");
        let asked = format!("nic_add {{id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 {asked}}}");
        let err = format!("ignored: {err}\n");
        check(&[Row {
            line: &line,
            asks: &[&[&asked]],
            answers: &[&["nic_add { path: \"p\" }"]],
            out: "p\n",
            err: &err,
            ..Row::default()
        }]);
    }
}

#[test]
fn nic_add_refuses() {
    for (options, err) in [
        (
            "--type VHOST",
            "--type argument not recognized\nhelp: \"VHOST\" is not VHOST_USER_SERVER, VHOST_USER_CLIENT, TAP or BENCH",
        ),
        (
            "--type vhost_user_server",
            "--type argument not recognized\nhelp: \"vhost_user_server\" is not VHOST_USER_SERVER, VHOST_USER_CLIENT, TAP or BENCH",
        ),
        (
            "--vni many",
            "--vni argument not recognized\nhelp: \"many\" is not a number from 0 to 16777215",
        ),
        (
            "--vni -1",
            "--vni argument not recognized\nhelp: \"-1\" is not a number from 0 to 16777215",
        ),
        (
            "--vni 4294967296",
            "--vni argument not recognized\nhelp: \"4294967296\" is not a number from 0 to 16777215",
        ),
        (
            "--packet-trace yes",
            "--packet-trace argument not recognized\nhelp: \"yes\" is not true or false",
        ),
        ("--trace-path /tmp/t", "--trace-path needs --packet-trace true"),
        ("--trace-path /tmp/t --packet-trace false", "--trace-path needs --packet-trace true"),
        (
            "--sg a,b",
            "--sg argument not recognized\nhelp: several groups are written --sg a b; one whose name has a comma is attached with `butterfly nic sg add`",
        ),
        (
            "--forwards",
            "--forwards needs --bypass-filtering: a filtered NIC sends from its own addresses only",
        ),
        ("--limit-out-packet-burst 5", "--limit-out-packet-burst needs --limit-out-packets"),
        (
            "--limit-in 1g",
            "--limit-in argument not recognized\nhelp: \"1g\" is not a whole number, or one with k, M, G or T behind it, as 100k or 1.5G",
        ),
        ("--path /run/a.sock", "--path needs --type VHOST_USER_CLIENT"),
        ("--path /run/a.sock --type VHOST_USER_SERVER", "--path needs --type VHOST_USER_CLIENT"),
    ] {
        let vni = if options.contains("--vni") { "" } else { "--vni 42" };
        let line = format!("nic add --id a --mac 52:54:00:00:00:01 {vni} {options} @");
        let err = format!("{err}\nerror in command: nic\n");
        check(&[Row { line: &line, out: "help: nic add", err: &err, code: 1, ..Row::default() }]);
    }
}

#[test]
fn nic_update() {
    for (options, asked) in [
        ("", "nic_update {id: \"a\"}"),
        ("--ip 10.0.0.1 --ip ::1", "nic_update {id: \"a\" ip: \"10.0.0.1\" ip: \"::1\"}"),
        ("--prefix fd00:1::/64", "nic_update {id: \"a\" prefix: \"fd00:1::/64\"}"),
        ("--prefix -e", "nic_update {id: \"a\" prefix: \"\"}"),
        ("--enable-antispoof true", "nic_update {id: \"a\" ip_anti_spoof: true}"),
        (
            "--forwards true --shared-ip false",
            "nic_update {id: \"a\" forwards: true shared_ip: false}",
        ),
        ("--enable-antispoof false", "nic_update {id: \"a\" ip_anti_spoof: false}"),
        ("--router true", "nic_update {id: \"a\" router: true}"),
        ("--limit-in 0", "nic_update {id: \"a\" limits {in {bits: 0}}}"),
        (
            "--packet-trace true --trace-path t",
            "nic_update {id: \"a\" packet_trace: true packet_trace_path: \"t\"}",
        ),
        // Clears, and is not the endpoint's option wherever it stands.
        ("--ip -e", "nic_update {id: \"a\" ip: \"\"}"),
        ("--ip -e --enable-antispoof true", "nic_update {id: \"a\" ip_anti_spoof: true ip: \"\"}"),
    ] {
        let line = format!("nic update --id a {options} @");
        check(&[Row { line: &line, asks: &[&[asked]], ..Row::default() }]);
    }
    check(&[Row {
        line: "nic update @ --id a --ip -e",
        asks: &[&["nic_update {id: \"a\" ip: \"\"}"]],
        ..Row::default()
    }]);
}

#[test]
fn nic_update_prints_help_on_failure() {
    for (options, err) in [
        ("--enable-antispoof", "--enable-antispoof needs a value"),
        (
            "--enable-antispoof maybe",
            "--enable-antispoof argument not recognized\nhelp: \"maybe\" is not true or false",
        ),
        (
            "--packet-trace 1",
            "--packet-trace argument not recognized\nhelp: \"1\" is not true or false",
        ),
        (
            "--ip -e --ip 10.0.0.1",
            "`--ip -e` clears all addresses and takes no other; name the endpoint with --endpoint",
        ),
        // Meant for another daemon than the one that would be asked.
        (
            "--ip -e tcp://192.0.2.1:9999",
            "`--ip -e` clears all addresses and takes no other; name the endpoint with --endpoint",
        ),
    ] {
        let line = format!("nic update @ --id a {options}");
        let err = format!("{err}\nerror in command: nic\n");
        check(&[Row {
            line: &line,
            out: "help: nic update",
            err: &err,
            code: 1,
            ..Row::default()
        }]);
    }
    check(&[Row {
        line: "nic update --id x @",
        asks: &[&["nic_update {id: \"x\"}"]],
        answers: &[&[refused!("NIC does not exist with id x")]],
        out: "help: nic update",
        err: "error in response\ndescription: NIC does not exist with id x\nerror in command: nic\n",
        code: 1,
    }]);
}

#[test]
fn nic_del_and_list() {
    check(&[
        Row { line: "nic del a @", asks: &[&["nic_del: \"a\""]], ..Row::default() },
        Row {
            line: "nic del a b c @",
            asks: &[&["nic_del: \"a\"", "nic_del: \"b\"", "nic_del: \"c\""]],
            ..Row::default()
        },
        Row {
            line: "nic list @",
            asks: &[&["nic_list: true"]],
            answers: &[&["nic_list: \"a\" nic_list: \"b\""]],
            out: "a\nb\n",
            ..Row::default()
        },
        Row { line: "nic list @", asks: &[&["nic_list: true"]], ..Row::default() },
    ]);
}

/// Details of the vnic `a` with these groups.
macro_rules! with_groups {
    ($($group:literal)*) => {
        concat!("nic_details { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1 ", $("security_group: \"", $group, "\" ",)* "}")
    };
}

#[test]
fn nic_sg() {
    let details: &[&str] = &["nic_details: \"a\""];
    let two: &[&str] = &[with_groups!("web" "db")];
    check(&[
        Row {
            line: "nic sg list a @",
            asks: &[details],
            answers: &[two],
            out: "web\ndb\n",
            ..Row::default()
        },
        Row {
            line: "nic sg list a @",
            asks: &[details],
            answers: &[&[with_groups!()]],
            ..Row::default()
        },
        Row {
            line: "nic sg list a --json @",
            asks: &[details],
            answers: &[two],
            out: "{\n  \"security_groups\": [\n    \"web\",\n    \"db\"\n  ]\n}\n",
            ..Row::default()
        },
        Row {
            line: "nic sg add a ssh apt ssh @",
            asks: &[
                details,
                &[
                    "nic_update {id: \"a\" security_group: \"apt\" security_group: \"db\" security_group: \"ssh\" security_group: \"web\"}",
                ],
            ],
            answers: &[two],
            ..Row::default()
        },
        Row { line: "nic sg add a db web @", asks: &[details], answers: &[two], ..Row::default() },
        Row {
            line: "nic sg del a web other @",
            asks: &[details, &["nic_update {id: \"a\" security_group: \"db\"}"]],
            answers: &[two],
            ..Row::default()
        },
        Row { line: "nic sg del a other @", asks: &[details], answers: &[two], ..Row::default() },
        // The last group goes too.
        Row {
            line: "nic sg del a web db @",
            asks: &[details, &["nic_update {id: \"a\" security_group: \"\"}"]],
            answers: &[two],
            ..Row::default()
        },
        Row {
            line: "nic sg set a x w @",
            asks: &[&["nic_update {id: \"a\" security_group: \"x\" security_group: \"w\"}"]],
            ..Row::default()
        },
        Row {
            line: "nic sg set a @",
            asks: &[&["nic_update {id: \"a\" security_group: \"\"}"]],
            ..Row::default()
        },
    ]);
}

#[test]
fn sg() {
    check(&[
        Row {
            line: "sg list @",
            asks: &[&["sg_list: true"]],
            answers: &[&["sg_list: \"db\" sg_list: \"web\""]],
            out: "db\nweb\n",
            ..Row::default()
        },
        Row { line: "sg add a @", asks: &[&["sg_add {id: \"a\"}"]], ..Row::default() },
        Row {
            line: "sg add a b @",
            asks: &[&["sg_add {id: \"a\"}", "sg_add {id: \"b\"}"]],
            ..Row::default()
        },
        Row {
            line: "sg del a b @",
            asks: &[&["sg_del: \"a\"", "sg_del: \"b\""]],
            ..Row::default()
        },
        // Every refusal of a batch is printed.
        Row {
            line: "sg add a b c @",
            asks: &[&["sg_add {id: \"a\"}", "sg_add {id: \"b\"}", "sg_add {id: \"c\"}"]],
            answers: &[&[refused!("first"), "", refused!("third")]],
            err: "error in response\ndescription: first\nerror in response\ndescription: third\nerror in command: sg\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

#[test]
fn sg_member() {
    check(&[
        // With and without a further word.
        Row {
            line: "sg member list a @",
            asks: &[&["sg_member_list: \"a\""]],
            answers: &[&["sg_member_list: \"10.0.0.2\" sg_member_list: \"::1\""]],
            out: "10.0.0.2\n::1\n",
            ..Row::default()
        },
        Row {
            line: "sg member add a 10.0.0.1 @",
            asks: &[&["sg_member_add {sg_id: \"a\" member: \"10.0.0.1\"}"]],
            ..Row::default()
        },
        Row {
            line: "sg member del a 10.0.0.1 @",
            asks: &[&["sg_member_del {sg_id: \"a\" member: \"10.0.0.1\"}"]],
            ..Row::default()
        },
        Row {
            line: "sg member add a 10.0.0.1 ::1 @",
            asks: &[&[
                "sg_member_add {sg_id: \"a\" member: \"10.0.0.1\"}",
                "sg_member_add {sg_id: \"a\" member: \"::1\"}",
            ]],
            ..Row::default()
        },
        // The original wants one word more, any.
        Row {
            line: "sg member del a ::1 word @",
            asks: &[&["sg_member_del {sg_id: \"a\" member: \"::1\"}"]],
            answers: &[&[""]],
            err: "ignored: word: it is no IP address\n",
            ..Row::default()
        },
        // Every refusal is printed.
        Row {
            line: "sg member del a x ::1 y ::2 @",
            asks: &[&[
                "sg_member_del {sg_id: \"a\" member: \"x\"}",
                "sg_member_del {sg_id: \"a\" member: \"::1\"}",
                "sg_member_del {sg_id: \"a\" member: \"y\"}",
                "sg_member_del {sg_id: \"a\" member: \"::2\"}",
            ]],
            answers: &[&[refused!("first"), "", refused!("third"), ""]],
            err: "error in response\ndescription: first\nerror in response\ndescription: third\nerror in command: sg\n",
            code: 1,
            ..Row::default()
        },
        // The endpoint comes from another command: nothing follows the words.
        Row {
            line: "sg list @ + sg member list a + sg member del a ::1",
            asks: &[
                &["sg_list: true"],
                &["sg_member_list: \"a\""],
                &["sg_member_del {sg_id: \"a\" member: \"::1\"}"],
            ],
            answers: &[&[""], &["sg_member_list: \"::1\""]],
            out: "::1\n",
            ..Row::default()
        },
    ]);
}

#[test]
fn shutdown() {
    check(&[Row { line: "shutdown @", asks: &[&["app_quit: true"]], ..Row::default() }]);
}

const SAVED: &str = "\
messages {
  revision: 6
  message_0 {
    request {
      nic_add {
        id: \"a\"
        mac: \"52:54:00:00:00:01\"
        vni: 42
        ip: \"10.0.0.1\"
        security_group: \"web\"
        type: VHOST_USER_CLIENT
        path: \"/run/a.sock\"
        packet_trace: false
      }
    }
  }
}
messages {
  revision: 6
  message_0 {
    request {
      sg_add {
        id: \"web\"
        member: \"10.0.0.1\"
        rule {
          direction: INBOUND
          protocol: -1
          cidr {
            address: \"::\"
            mask_size: 0
          }
        }
      }
    }
  }
}
messages {
  revision: 6
  message_0 {
    request {
      peer_add {
        address: \"10.9.0.2\"
      }
    }
  }
}
messages {
  revision: 6
  message_0 {
    request {
      peer_add {
        address: \"10.9.0.3\"
        vni: 42
      }
    }
  }
}
";

const SAVED_NIC: &str = "{ id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 ip: \"10.0.0.1\" security_group: \"web\" \
                         type: VHOST_USER_CLIENT path: \"/run/a.sock\" packet_trace: false }";
const SAVED_SG: &str = "{ id: \"web\" member: \"10.0.0.1\" rule { direction: INBOUND protocol: -1 cidr { address: \"::\" mask_size: 0 } } }";

#[test]
fn a_dump_is_replayed_as_it_was_printed() {
    let daemon = Daemon::new();
    let mut client = daemon.start("dump @");
    let request = daemon.receive("dump");
    let ids: Vec<_> =
        request.messages.iter().map(|message| message.message_0.message_id().to_owned()).collect();
    assert_eq!(ids, ["nics", "sgs"]);
    let asked = butterfly_api::text::print(&request);
    assert!(asked.contains("nic_details: \"\"") && asked.contains("sg_details: \"\""), "{asked}");
    daemon.send(&answer(&[&format!("nic_details {SAVED_NIC}"), &format!("sg_details {SAVED_SG}")]));
    let asked: Vec<String> = daemon.receive("dump").messages.iter().map(asked_for).collect();
    let asks = [
        "network_list: true",
        "external_list: true",
        "router_list: true",
        "nat_list: true",
        "neighbour_list {}",
        "peer_list: true",
    ];
    assert_eq!(asked, asks.map(in_full));
    daemon.send(&answer(&[
        "",
        "",
        "",
        "",
        "",
        "peer_list { address: \"10.9.0.2\" } peer_list { address: \"10.9.0.3\" vni: 42 }",
    ]));
    let dump = client.end();
    assert_eq!(dump.out, format!("{SAVED}\n# end of dump\n"));
    assert_eq!((dump.err.as_str(), dump.code), ("", Some(0)));

    std::fs::write(daemon.path("saved"), dump.out).unwrap();
    let mut client = daemon.start("request saved @");
    let request = daemon.receive("request");
    assert_eq!(butterfly_api::text::print(&request), SAVED);
    daemon.send(&answer(&["nic_add { path: \"/run/a.sock\" }", "", "", ""]));
    let replay = client.end();
    assert_eq!((replay.out.as_str(), replay.err.as_str(), replay.code), ("", "", Some(0)));
}

/// A script that asks for it learns whether the vnics of a file can work.
#[test]
fn who_is_strict_is_told_what_came_of_a_file() {
    let daemon = Daemon::new();
    let nic = |id: &str| {
        format!(
            "messages {{ revision: 6 message_0 {{ request {{ nic_add {{ id: \"{id}\" mac: \"52:54:00:00:00:01\" vni: 1 }} }} }} }}"
        )
    };
    std::fs::write(daemon.path("saved"), nic("a") + &nic("b")).unwrap();
    let mut client = daemon.start("request saved --strict @");
    daemon.receive("request");
    daemon.send(&answer(&["nic_add {}", "nic_add {}"]));
    assert_eq!(daemon.receive("nic show").messages.len(), 2);
    daemon.send(&answer(&[
        "nic_show { id: \"a\" missing_group: \"db\" }",
        "nic_show { id: \"b\" waits_for: \"a\" }",
    ]));
    let ended = client.end();
    assert_eq!(
        ended.err,
        "note: security group db does not exist: it allows nothing until it does (butterfly sg rule add db ...)\n\
         note: b waits for its MAC address, which a has: until that one is deleted it gets and sends nothing\n\
         --strict: it was done, and is a failure because of the note\nerror in command: request\n"
    );
    assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
}

#[test]
fn an_empty_daemon_makes_an_empty_dump() {
    let asks: &[&[&str]] = &[
        &["nic_details: \"\"", "sg_details: \"\""],
        &[
            "network_list: true",
            "external_list: true",
            "router_list: true",
            "nat_list: true",
            "neighbour_list {}",
            "peer_list: true",
        ],
    ];
    // An older daemon does not know what peers, networks, routers and neighbours are.
    let older: &[&[&str]] = &[&["", ""], &[refused!("no request found"); 6]];
    for answers in [&[][..], older] {
        check(&[Row { line: "dump @", asks, answers, out: "\n# end of dump\n", ..Row::default() }]);
    }
}

#[test]
fn request_prints_the_reply_if_asked() {
    let daemon = Daemon::new();
    std::fs::write(
        daemon.path("ask"),
        "# a comment\nmessages { revision: 6 message_0 { request { nic_list: true } } }",
    )
    .unwrap();
    let mut client = daemon.start("request ask --stdout @");
    daemon.receive("request");
    daemon.send(&answer(&["nic_list: \"a\""]));
    let ended = client.end();
    assert_eq!(
        ended.out,
        "messages {\n  revision: 6\n  message_0 {\n    response {\n      status {\n        status: true\n      }\n      \
         nic_list: \"a\"\n    }\n  }\n}\n"
    );
    assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)));
}

#[test]
fn request_reads_standard_input() {
    let daemon = Daemon::new();
    std::fs::write(daemon.path("saved"), SAVED).unwrap();
    let saved = std::fs::File::open(daemon.path("saved")).unwrap();
    let mut client = daemon.start_on("request - @", saved.into());
    assert_eq!(butterfly_api::text::print(&daemon.receive("request -")), SAVED);
    daemon.send(&answer(&["", "", "", ""]));
    let ended = client.end();
    assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.code), ("", "", Some(0)));
    let ended = daemon.start("request - @").end();
    assert_eq!(ended.err, "failed to open -\nthe file is empty\nerror in command: request\n");
}

#[test]
fn request_takes_a_dump_of_nothing_for_an_empty_file() {
    let daemon = Daemon::new();
    std::fs::write(daemon.path("saved"), "\n# end of dump\n").unwrap();
    let ended = daemon.start("request saved @").end();
    let said = "failed to open saved\nthere is no request in the file\nerror in command: request\n";
    assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.code), ("", said, Some(1)));
    daemon.assert_silent("request saved");
}

#[test]
fn apply_sends_the_whole_state_in_one_request() {
    const ROWS: &str = r#"apply { change { object: NIC name: "a" what: REMADE text: "vni 1 -> 2" cuts: true }
        change { object: NIC name: "b" what: REMOVED } change { object: NIC name: "c" what: REMOVED cuts: true }
        change { object: NIC name: "d" what: REMADE text: "path" cuts: false } change { object: SECURITY_GROUP name: "web" what: CHANGED text: "+10.0.0.1" }
        change { object: PEER name: "10.9.0.2\033" what: ADDED text: "for all networks" } more: 1 }"#;
    let rows = "! nic a is made anew, its VM is cut off: vni 1 -> 2\n- nic b\n- nic c is removed, its VM is cut off\n\
                ! nic d is made anew: path\n~ security group web: +10.0.0.1\n\
                + peer 10.9.0.2\\u{1b}: for all networks\n";
    let sum = "1 added, 1 changed, 2 made anew, 2 removed, and 1 object not listed";
    for (options, dry_run, prune, out) in [
        ("", false, false, format!("{rows}{sum}\n")),
        ("--prune", false, true, format!("{rows}{sum}\n")),
        ("--dry-run", true, false, format!("{rows}dry run: {sum}; nothing was changed\n")),
    ] {
        let daemon = Daemon::new();
        std::fs::write(daemon.path("saved"), format!("{SAVED}\n# end of dump\n \n")).unwrap();
        let line = format!("apply saved {options} @");
        let mut client = daemon.start(&line);
        let request = daemon.receive(&line);
        assert_eq!(request.messages.len(), 1);
        let peers = "peer { address: \"10.9.0.2\" } peer { address: \"10.9.0.3\" vni: 42 }";
        let state = format!(
            "apply {{ nic {SAVED_NIC} security_group {SAVED_SG} {peers} prune: {prune} dry_run: {dry_run} }}"
        );
        assert_eq!(asked_for(&request.messages[0]), in_full(&state));
        daemon.send(&answer(&[ROWS]));
        let ended = client.end();
        assert_eq!((ended.out, ended.err.as_str(), ended.code), (out, "", Some(0)), "{options}");
    }
    let daemon = Daemon::new();
    std::fs::write(daemon.path("saved"), format!("{SAVED}\n# end of dump\n")).unwrap();
    for (reply, out) in [
        (
            ROWS,
            r#"{"applied":false,"changes":[{"cuts":true,"name":"a","object":"nic","text":"vni 1 -> 2","what":"remade"}"#,
        ),
        ("apply { }", r#"{"applied":false,"changes":[],"more":0}"#),
    ] {
        let mut client = daemon.start("apply saved --dry-run --json @");
        daemon.receive("apply");
        daemon.send(&answer(&[reply]));
        let ended = client.end();
        let found: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        assert!(found.to_string().starts_with(out), "{found}");
    }
    let mut client = daemon.start("apply saved @");
    daemon.receive("apply");
    daemon.send(&answer(&[refused!("no request found")]));
    let ended = client.end();
    assert!(ended.err.contains("the daemon is older than this client"), "{}", ended.err);
}

#[test]
fn apply_sends_nothing_of_a_file_that_is_not_whole() {
    let daemon = Daemon::new();
    let cut = "it seems to be cut off: its last line is not `# end of dump`, as `butterfly dump` ends; add that line if all is there";
    for (content, why) in [
        (SAVED.to_owned(), cut),
        (format!("# end of dump\n{SAVED}"), cut),
        (format!("{SAVED}# end of dum"), cut),
        (SAVED[..SAVED.len() - 20].to_owned(), "it seems to be cut off: "),
        ("\n# end of dump\n".to_owned(), "it declares nothing"),
        (
            format!("{}\n# end of dump\n", SAVED.replace("security_group:", "security_grup:")),
            "it is no protobuf Messages in text format: 10:9: Nic has no field security_grup; did you mean security_group?",
        ),
        (
            format!("{}\n# end of dump\n", SAVED.replacen("revision: 6", "revision: 99", 1)),
            "message 1 of it, nic_add \"a\", has revision 99",
        ),
        (" \n".to_owned(), "it is empty: `butterfly dump` prints"),
        ("{}".to_owned(), "it looks like JSON, which apply does not read"),
        (
            format!(
                "{SAVED}messages {{ revision: 6 message_0 {{ request {{ nic_del: \"a\" }} }} }}\n# end of dump\n"
            ),
            "message 5 of it, nic_del \"a\", is not one of nic_add, sg_add, peer_add, network_add, external_add, router_add, nat_add and neighbour_add; `butterfly request` takes all kinds",
        ),
    ] {
        std::fs::write(daemon.path("saved"), content).unwrap();
        let ended = daemon.start("apply saved --prune @").end();
        let start = format!("saved is refused: {why}");
        let end = "; nothing was sent\nerror in command: apply\n";
        assert!(ended.err.starts_with(&start) && ended.err.ends_with(end), "{}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
    }
    std::fs::create_dir(daemon.path("folder")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(daemon.path("pipe")).status().unwrap();
    assert!(made.success());
    std::fs::write(daemon.path("bytes"), b"messages \xff").unwrap();
    for (name, why) in [
        ("folder", "it is a folder: name the file in it"),
        ("pipe", "it is a named pipe, which may never end"),
        ("bytes", "byte 10 of it is no UTF-8, so it is no text"),
        ("nowhere", "it cannot be read: No such file or directory"),
    ] {
        let ended = daemon.start(&format!("apply {name} @")).end();
        assert!(ended.err.starts_with(&format!("{name} is refused: {why}")), "{}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
    }
    daemon.assert_silent("apply");
}

/// A shell's `<(command)` is a pipe as well, and has an end.
#[test]
fn apply_reads_what_a_command_prints() {
    let daemon = Daemon::new();
    std::fs::write(daemon.path("saved"), format!("{SAVED}\n# end of dump\n")).unwrap();
    let mut client =
        daemon.start_on("apply - @", std::fs::File::open(daemon.path("saved")).unwrap().into());
    assert_eq!(daemon.receive("apply -").messages.len(), 1);
    daemon.send(&answer(&["apply { }"]));
    let ended = client.end();
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("nothing differs from the file\n", ""));
}

/// A script that asks for it learns what was probably not meant, of a dry run, too.
#[test]
fn who_is_strict_is_told_what_a_state_forgot() {
    for (options, end) in [
        ("", "--strict: it was done, and is a failure because of the note"),
        ("--dry-run", "--strict: nothing was changed, and it is a failure because of the note"),
    ] {
        let daemon = Daemon::new();
        let only = SAVED.split("messages").nth(1).unwrap();
        let file = format!("messages {only}\n# end of dump\n");
        std::fs::write(daemon.path("saved"), file).unwrap();
        let line = format!("apply saved --strict {options} @");
        let mut client = daemon.start(&line);
        let asked: Vec<String> = daemon.receive(&line).messages.iter().map(asked_for).collect();
        assert_eq!(asked, [in_full("nic_details: \"\""), in_full("sg_details: \"\"")]);
        daemon
            .send(&answer(&["nic_details { id: \"old\" mac: \"52:54:00:00:00:01\" vni: 42 }", ""]));
        assert!(asked_for(&daemon.receive(&line).messages[0]).starts_with("apply"));
        daemon.send(&answer(&["apply { change { object: NIC name: \"a\" what: ADDED } }"]));
        let ended = client.end();
        assert_eq!(
            ended.err,
            format!(
                "note: a waits for its MAC address, which old has: until that one is deleted it gets and sends nothing; the file does not name old: --prune removes it\n\
                 note: security group web of a does not exist: it allows nothing until it does (butterfly sg rule add web ...)\n\
                 {end}\nerror in command: apply\n"
            )
        );
        assert_eq!(ended.code, Some(1));
    }
}

#[test]
fn log_level() {
    check(&[
        Row {
            line: "log-level debug @",
            asks: &[&["app_config { log_level: \"debug\" }"]],
            ..Row::default()
        },
        Row {
            line: "log-level loud @",
            out: "short: log-level",
            err: "\"loud\" is no level: there are none, error, warning, info, debug\nerror in command: log-level\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

#[test]
fn request_names_what_failed() {
    let daemon = Daemon::new();
    std::fs::write(daemon.path("saved"), SAVED).unwrap();
    let mut client = daemon.start("request saved @");
    daemon.receive("request");
    daemon.send(&answer(&["", refused!("Bad Security Group format"), "", refused!("no uplink")]));
    let ended = client.end();
    assert_eq!(
        ended.err,
        "error in response\ndescription: Bad Security Group format\nrequest 2 of 4: sg_add \"web\"\n\
         error in response\ndescription: no uplink\nrequest 4 of 4: peer_add \"10.9.0.3\"\n2 of 4 requests were done, 2 not\nerror in command: request\n"
    );
    assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
}

#[test]
fn request_refuses_files_it_cannot_send() {
    let daemon = Daemon::new();
    std::fs::write(daemon.path("empty"), "\n").unwrap();
    std::fs::write(daemon.path("bad"), "messages { revision: 6 nonsense: 1 }").unwrap();
    std::fs::write(
        daemon.path("lacking"),
        "messages { revision: 6 message_0 { request { nic_update { ip: \"::1\" } } } }",
    )
    .unwrap();
    for (file, start) in [
        ("absent", "failed to open absent\nNo such file or directory (os error 2)\n"),
        ("empty", "failed to open empty\nthe file is empty\n"),
        ("bad", "bad is no protobuf Messages in text format: "),
        ("lacking", "lacking is no protobuf Messages in text format: "),
    ] {
        let ended = daemon.start(&format!("request {file} @")).end();
        assert!(ended.err.starts_with(start), "{file}: {}", ended.err);
        assert!(ended.err.ends_with("\nerror in command: request\n"), "{file}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{file}");
        daemon.assert_silent(file);
    }
}

/// A vnic that moves: the export is printed as it is, and read from a file.
#[test]
fn nic_export_and_import() {
    let answers =
        &[&["nic_export { fw_data { data: \"{}\" } sessions: 1 left_out: 0 }"] as &[&str]];
    for (line, asked) in [
        ("nic export a @", "nic_export: \"a\""),
        ("nic export a --to 192.0.2.7 @", "nic_export_to { id: \"a\" to: \"192.0.2.7\" }"),
    ] {
        check(&[Row { line, asks: &[&[asked]], answers, out: "{}\n", ..Row::default() }]);
    }
    let file = std::env::temp_dir().join(format!("butterfly-export-{}", std::process::id()));
    std::fs::write(&file, "{}").unwrap();
    let line = format!("nic import {} @", file.display());
    let imported = "nic_import { id: \"a\" taken: 2 known: 1 ended: 0 refused { name: \"it is over\" value: 3 } left_out: 4 }";
    check(&[Row {
        line: &line,
        asks: &[&["nic_import { data: \"{}\" }"]],
        answers: &[&[imported]],
        out: "a: 2 sessions taken over, 1 known here, 0 of an earlier import ended\nrefused: 3 (it is over)\nleft out by the other host: 4\n",
        ..Row::default()
    }]);
    std::fs::remove_file(&file).unwrap();
}
