//! Externals, and translations at them.

use crate::refused;
use crate::support::{Daemon, Row, answer, asked_for, check, in_full};
use serde_json::{Value, json};

const EXTERNALS: &str = r#"
    external_list { id: "internet" uplink: "eth1" vni: 16777215 address: "192.0.2.7/24"
        gateway: "192.0.2.1" chosen: true not_in_effect: "there is no interface \"eth1\"" }
    external_list { id: "office" uplink: "tap:out" vlan: 7 vni: 77 mtu: 1400
        address: "198.51.100.7/24" address: "2001:db8::7/64" }
    external_list { id: "second" vni: 16777214 via: "198.18.0.1" chosen: true }"#;
const NATS: &str = r#"
    nat_list { router: "r1" kind: SNAT external: "internet" address: "192.0.2.9"
        tcp_ports: 5 udp_ports: 6 echo_ids: 0 }
    nat_list { router: "r1" kind: FORWARD external: "internet" address: "192.0.2.9"
        inside: "10.5.0.10" protocol: 6 port: 443 to_port: 8443 }
    nat_list { router: "r1" kind: FLOATING external: "internet" address: "192.0.2.80"
        inside: "10.5.0.10" }"#;

/// The part of a list that is no declaration.
const USED: &str = "tcp_ports: 5 udp_ports: 6 echo_ids: 0";

/// The object that a command prints when the daemon answers so.
fn printed(line: &str, response: &str) -> Value {
    let daemon = Daemon::new();
    let mut client = daemon.start(line);
    daemon.receive(line);
    daemon.send(&answer(&[response]));
    serde_json::from_str(&client.end().out).unwrap()
}

#[test]
fn externals_are_declared_listed_and_taken_back() {
    for (line, asked) in [
        (
            "external add internet --uplink eth1 --address 192.0.2.7/24 --gateway 192.0.2.1 @",
            r#"external_add { id: "internet" uplink: "eth1" address: "192.0.2.7/24" gateway: "192.0.2.1" }"#,
        ),
        (
            "external add x --vni 77 --vlan 7 --uplink tap:out --mtu 1400 --address 198.51.100.7/24 2001:db8::7/64 @",
            r#"external_add { id: "x" vni: 77 vlan: 7 uplink: "tap:out" mtu: 1400 address: "198.51.100.7/24" address: "2001:db8::7/64" }"#,
        ),
        (
            "external add x --vni 77 --address 198.51.100.7/24 @",
            r#"external_add { id: "x" vni: 77 address: "198.51.100.7/24" }"#,
        ),
        (
            "external add internet --via 192.0.2.1 --mtu 1400 @",
            r#"external_add { id: "internet" via: "192.0.2.1" mtu: 1400 }"#,
        ),
        ("external del internet @", r#"external_del: "internet""#),
        (
            "router attach r1 --external internet --address 192.0.2.7 @",
            r#"router_attach { router: "r1" external: "internet" address: "192.0.2.7" }"#,
        ),
        (
            "router detach r1 --external internet @",
            r#"router_detach { router: "r1" external: "internet" }"#,
        ),
        ("network add --vni 42 --public @", "network_add { vni: 42 public: true }"),
    ] {
        check(&[Row { line, asks: &[&[asked]], ..Row::default() }]);
    }
    let row = |line, out| Row {
        line,
        asks: &[&["external_list: true"]],
        answers: &[&[EXTERNALS]],
        out,
        ..Row::default()
    };
    check(&[
        row(
            "external list @",
            "external  uplink   vlan       vni  address                         gateway    via          mtu  in effect\n\
             internet  eth1        -  16777215  192.0.2.7/24                    192.0.2.1  -              -  no: there is no interface \"eth1\"\n\
             office    tap:out     7        77  198.51.100.7/24 2001:db8::7/64  -          -           1400  yes\n\
             second    -           -  16777214  -                               -          198.18.0.1     -  yes\n",
        ),
        row("external list --ids @", "internet\noffice\nsecond\n"),
        Row {
            line: "external list --json @",
            asks: &[&["external_list: true"]],
            out: "{\n  \"externals\": []\n}\n",
            ..Row::default()
        },
        Row {
            line: "external del internet @",
            asks: &[&["external_del: \"internet\""]],
            answers: &[&[refused!("router r1 is attached to it")]],
            err: "error in response\ndescription: router r1 is attached to it\nerror in command: external\n",
            code: 1,
            ..Row::default()
        },
    ]);
    let expected = json!({ "externals": [
        { "id": "internet", "uplink": "eth1", "vlan": null, "vni": 16777215, "vni_chosen": true,
          "addresses": ["192.0.2.7/24"], "gateways": ["192.0.2.1"], "via": null, "mtu_bytes": null,
          "not_in_effect": "there is no interface \"eth1\"",
          "trouble": "there is no interface \"eth1\"", "wire": null },
        { "id": "office", "uplink": "tap:out", "vlan": 7, "vni": 77, "vni_chosen": false,
          "addresses": ["198.51.100.7/24", "2001:db8::7/64"], "gateways": [], "via": null, "mtu_bytes": 1400,
          "not_in_effect": null, "trouble": null, "wire": null },
        { "id": "second", "uplink": null, "vlan": null, "vni": 16777214, "vni_chosen": true,
          "addresses": [], "gateways": [], "via": "198.18.0.1", "mtu_bytes": null,
          "not_in_effect": null, "trouble": null, "wire": null },
    ] });
    assert_eq!(printed("external list --json @", EXTERNALS), expected);
}

const WIRES: &str = r#"
    external_list { id: "internet" uplink: "eth1" vni: 16777215 address: "192.0.2.7/24" chosen: true
        wire { interface: "eth1" trouble: "its interface eth1 is down" in_packets: 7 in_bytes: 700
            out_packets: 5 out_bytes: 500 drop { reason: "no-route" count: 2 description: "None leads there." }
            drop { reason: "rarp" count: 4 harmless: true }
            loss { reason: "wire-tx-full" count: 1 description: "Too slow." remedy: "`ethtool eth1`" } } }
    external_list { id: "lab" vni: 77 address: "198.51.100.7/24" }
    external_list { id: "office" uplink: "tap" vlan: 7 vni: 78 address: "198.51.100.7/24"
        wire { interface: "tap3" in_packets: 1 in_bytes: 60 out_packets: 0 out_bytes: 0 } }"#;

/// Losses of a wire are told with what to do, and an interface by which nothing passes.
#[test]
fn wires_are_told() {
    check(&[Row {
        line: "external list @",
        asks: &[&["external_list: true"]],
        answers: &[&[WIRES]],
        out: "external  uplink  vlan       vni  address          gateway  via  mtu  in effect\n\
              internet  eth1       -  16777215  192.0.2.7/24     -        -      -  no: its interface eth1 is down\n\
              lab       -          -        77  198.51.100.7/24  -        -      -  yes\n\
              office    tap        7        78  198.51.100.7/24  -        -      -  yes\n\
              \n\
              wire/internet: wire-tx-full: 1 frame so far\n  Too slow.\n  what to do: `ethtool eth1`\n",
        ..Row::default()
    }]);
    let told = printed("external list --json @", WIRES);
    let wire = json!({
        "interface": "eth1", "in_packets": 7, "in_bytes": 700, "out_packets": 5, "out_bytes": 500,
        "drops": [{ "reason": "no-route", "count": 2 }, { "reason": "rarp", "count": 4 }],
        "losses": [{ "reason": "wire-tx-full", "count": 1, "description": "Too slow.",
            "remedy": "`ethtool eth1`" }],
    });
    assert_eq!(told["externals"][0]["wire"], wire);
    assert_eq!(told["externals"][0]["trouble"], "its interface eth1 is down");
}

/// Externals are on the screen of the host, and what is wrong with them.
#[test]
fn externals_are_shown_with_the_host() {
    let health = "app_health { version: \"1\" start_date: 0 current_date: 0 networks: 2 routers: 1 routes: 3 \
                  externals: 3 nats: 1 }";
    let ask = |line: &str| {
        let daemon = Daemon::new();
        let mut client = daemon.start(line);
        for answers in [
            &[health][..],
            &["", "", "session_table { capacity: 1000 used: 7 }"],
            &[
                "drop_list { window_ms: 5000 place { kind: NIC nic_id: \"wire/internet\" vni: 16777215 \
               drop { reason: \"no-route\" count: 2 recent: 2 last_ms: 100 } } }",
            ],
            &[""],
            &[WIRES],
        ] {
            daemon.receive(line);
            daemon.send(&answer(answers));
        }
        client.end().out
    };
    let out = ask("show @");
    for part in [
        "  routers           1; 2 networks, 3 routes, 3 externals, 1 translation\n",
        "externals\n\
         \x20 external  wire         in effect  in  bytes  out  bytes  drops  lost\n\
         \x20 internet  eth1         no          7    700    5    500      6     1\n\
         \x20 lab       -            yes         -      -    -      -      -     -\n\
         \x20 office    tap3 vlan 7  yes         1     60    0      0      0     0\n",
        "wrong now\n  external internet: its interface eth1 is down\n",
        "  wire/internet: no-route: 2 frames so far, last 0.1 s ago: `butterfly drops --explain no-route`\n",
    ] {
        assert!(out.contains(part), "{part}{out}");
    }
    let told: Value = serde_json::from_str(&ask("show --json @")).unwrap();
    let counts = ["networks", "routers", "routes", "translations"].map(|name| told[name].clone());
    assert_eq!(counts, [2, 1, 3, 1].map(Value::from));
    let [first, lab] = [&told["externals"][0], &told["externals"][1]];
    assert_eq!((&first["in_effect"], &first["wire"]["out_packets"]), (&false.into(), &5.into()));
    assert_eq!((&lab["in_effect"], &lab["wire"]), (&true.into(), &Value::Null));
}

/// A wire is a row among the vnics, but no NIC.
#[test]
fn wires_are_rows_of_top() {
    let ask = |line: &str| {
        let daemon = Daemon::new();
        let mut client = daemon.start(line);
        for _ in 0..2 {
            daemon.receive(line);
            daemon.send(&answer(&["", "session_table { capacity: 9 used: 7 }", "", ""]));
            daemon.receive(line);
            daemon.send(&answer(&[WIRES]));
        }
        client.end().out
    };
    let out = ask("top --once --interval 200 @");
    assert!(out.starts_with("0 NICs  0 packets/s"), "{out}");
    for part in [
        "nic                 vni  machine  in/s",
        "\nwire/internet  16777215  down        0",
        "\nwire/office          78  up          0",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let told: Value = serde_json::from_str(&ask("top --once --interval 200 --json @")).unwrap();
    let first = &told["nics"][0];
    assert_eq!((&first["id"], &first["is_wire"]), (&"wire/internet".into(), &true.into()));
    let drops: Vec<&String> =
        first["drops_by_reason_per_second"].as_object().unwrap().keys().collect();
    assert_eq!(drops, ["no-route", "wire-tx-full"]);
}

/// Somebody behind an external sends, by its id.
#[test]
fn packets_come_from_an_external() {
    let told = "explain { allowed: true vni: 16777215 external: \"internet\" destination_mac: \"m\" \
                walk { packet: \"p\" fate: DELIVERED nic_id: \"a\" routed { vni: 77 external: \"lab\" } } }";
    let row = |line, out, code, err| Row { line, out, code, err, ..Row::default() };
    check(&[
        Row {
            line: "explain --from outside --external internet --src 198.51.100.1 --to 192.0.2.80 --port 80 @",
            asks: &[&[
                "explain { to_address: \"192.0.2.80\" protocol: 6 destination_port: 80 source: \"198.51.100.1\" external: \"internet\" }",
            ]],
            answers: &[&[told]],
            out: "p\ndelivered to a\n",
            ..Row::default()
        },
        row(
            "explain --from outside --src 198.51.100.1 --to a @",
            "",
            1,
            "butterfly explain: --from outside needs --vni, or --external\n`butterfly explain help` shows how it is used\n",
        ),
        row(
            "explain --from outside --vni 7 --external x --src 198.51.100.1 --to a @",
            "",
            1,
            "butterfly explain: --vni and --external say the same, where a packet comes from: give one of them\n`butterfly explain help` shows how it is used\n",
        ),
        row(
            "explain --from a --external x --to b @",
            "",
            1,
            "butterfly explain: --vni and --external go with --from outside: a NIC is in its own network\n`butterfly explain help` shows how it is used\n",
        ),
    ]);
    let told = printed(
        "explain --from outside --external internet --src 198.51.100.1 --to a --json @",
        told,
    );
    let host = &told["hosts"][0];
    assert_eq!((&host["external"], &host["vni"]), (&"internet".into(), &16_777_215.into()));
    assert_eq!(host["walks"][0]["routed"]["external"], "lab");
}

#[test]
fn sessions_have_ends_outside() {
    let end =
        |outside| format!("opener {{ nic_id: \"a\" address: \"10.5.0.10\" port: 4000 {outside} }}");
    let told = |end: &str| {
        format!(
            "session_list {{ matching: 1 session {{ vni: 50 protocol: 6 {end} responder {{ address: \"198.51.100.1\" port: 443 }} }} }}"
        )
    };
    let told = told(&end("outside { external: \"internet\" address: \"192.0.2.80\" port: 4001 }"));
    let ask = |line: &str| {
        let daemon = Daemon::new();
        let mut client = daemon.start(line);
        daemon.receive(line);
        daemon.send(&answer(&["session_table { capacity: 9 used: 1 }", &told]));
        client.end().out
    };
    let out = ask("sessions @");
    assert!(
        out.contains("  a 10.5.0.10:4000 (192.0.2.80:4001 outside)  198.51.100.1:443  "),
        "{out}"
    );
    let told: Value = serde_json::from_str(&ask("sessions --json @")).unwrap();
    let session = &told["sessions"][0];
    let outside = json!({ "external": "internet", "address": "192.0.2.80", "port": 4001 });
    assert_eq!(session["opener"]["outside"], outside);
    assert_eq!(session["responder"]["outside"], Value::Null);
}

#[test]
fn translations_are_added_listed_and_taken_back() {
    let outside = r#"external: "internet""#;
    for (line, asked) in [
        (
            "snat add r1 --external internet --address 192.0.2.9 @",
            format!(r#"nat_add {{ router: "r1" kind: SNAT {outside} address: "192.0.2.9" }}"#),
        ),
        (
            "snat del r1 --external internet --address 192.0.2.9 @",
            format!(r#"nat_del {{ router: "r1" kind: SNAT {outside} address: "192.0.2.9" }}"#),
        ),
        (
            "floating add 192.0.2.80 --router r1 --external internet --to 10.5.0.10 @",
            format!(
                r#"nat_add {{ router: "r1" kind: FLOATING {outside} address: "192.0.2.80" inside: "10.5.0.10" }}"#
            ),
        ),
        (
            "floating del 192.0.2.80 --external internet @",
            format!(r#"nat_del {{ kind: FLOATING {outside} address: "192.0.2.80" }}"#),
        ),
        (
            "forward add 192.0.2.9:443 --router r1 --external internet --proto tcp --to 10.5.0.10:8443 @",
            format!(
                r#"nat_add {{ router: "r1" kind: FORWARD {outside} address: "192.0.2.9" inside: "10.5.0.10" protocol: 6 port: 443 to_port: 8443 }}"#
            ),
        ),
        (
            "forward del 192.0.2.9:53 --external internet --proto udp @",
            format!(
                r#"nat_del {{ kind: FORWARD {outside} address: "192.0.2.9" protocol: 17 port: 53 }}"#
            ),
        ),
    ] {
        check(&[Row { line, asks: &[&[&asked]], ..Row::default() }]);
    }
    check(&[
        Row {
            line: "nat list @",
            asks: &[&["nat_list: true"]],
            answers: &[&[NATS]],
            out: "router  external  kind      address            to              ports in use\n\
                  r1      internet  snat      192.0.2.9          -               tcp 5, udp 6, icmp 0\n\
                  r1      internet  forward   192.0.2.9:443/tcp  10.5.0.10:8443  -\n\
                  r1      internet  floating  192.0.2.80         10.5.0.10       -\n",
            ..Row::default()
        },
        Row {
            line: "nat list --json @",
            asks: &[&["nat_list: true"]],
            out: "{\n  \"nat\": []\n}\n",
            ..Row::default()
        },
    ]);
    let printed = printed("nat list --json @", NATS);
    let forward = json!({ "router": "r1", "external": "internet", "kind": "forward",
        "address": "192.0.2.9", "inside": "10.5.0.10", "protocol": "tcp", "port": 443,
        "to_port": 8443, "tcp_ports": null, "udp_ports": null, "echo_ids": null });
    assert_eq!(printed["nat"][1], forward);
}

/// Nothing is sent of what cannot be meant.
#[test]
fn what_cannot_be_meant_is_refused_by_the_client() {
    for (line, why) in [
        (
            "external add x --address 192.0.2.7/24",
            "an external leads out by an interface, --uplink",
        ),
        ("external add x --vni 7 --vlan 7 --address 192.0.2.7/24", "--vlan needs --uplink"),
        ("external add x --uplink eth1", "an external needs --address"),
        ("external add x --via 192.0.2.1 --uplink eth1", "give --uplink there, and not here"),
        ("external add x --via 192.0.2.1 --vni 7", "give --vni there, and not here"),
        (
            "external add x --via 192.0.2.1 --address 192.0.2.7/24",
            "give --address there, and not here",
        ),
        (
            "external add x --uplink eth1 --vlan x --address 192.0.2.7/24",
            "\"x\" is not a number from 1 to 4094",
        ),
        ("router attach r1", "an attachment needs its network, --vni, or its external, --external"),
        ("router attach r1 --vni 42 --external x", "--vni and --external exclude each other"),
        ("snat add r1 --external x", "--address is mandatory"),
        ("floating add 192.0.2.80 --router r1 --external x", "--to is mandatory"),
        (
            "forward add 192.0.2.9 --router r1 --external x --proto tcp --to 10.5.0.10:80",
            "write 192.0.2.80:443",
        ),
        (
            "forward add 192.0.2.9:80 --router r1 --external x --proto tcp --to 10.5.0.10:0",
            "--to: port 0 is out of range",
        ),
        (
            "forward add 192.0.2.9:80 --router r1 --external x --proto sctp --to 10.5.0.10:80",
            "--proto is tcp or udp",
        ),
        ("forward del 192.0.2.9:80 --external x", "--proto is mandatory"),
    ] {
        let daemon = Daemon::new();
        let line = format!("{line} @");
        let ended = daemon.start(&line).end();
        daemon.assert_silent(&line);
        assert!(ended.err.contains(why), "{line}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
    }
}

#[test]
fn strict_tells_that_nothing_changed() {
    for (line, list, answered, asked, note) in [
        (
            "external del x --strict @",
            "external_list: true",
            EXTERNALS,
            "external_del: \"x\"",
            "there was no external x: nothing changed",
        ),
        (
            "floating del 192.0.2.9 --external internet --strict @",
            "nat_list: true",
            NATS,
            "nat_del { kind: FLOATING external: \"internet\" address: \"192.0.2.9\" }",
            "there was no such translation of 192.0.2.9 at external internet: nothing changed",
        ),
    ] {
        let command = line.split(' ').next().unwrap();
        let err = format!(
            "note: {note}\n--strict: it was done, and is a failure because of the note\n\
             error in command: {command}\n"
        );
        let (asks, answers): (&[&[&str]], &[&[&str]]) = (&[&[list], &[asked]], &[&[answered]]);
        check(&[Row { line, asks, answers, err: &err, code: 1, ..Row::default() }]);
    }
    let line = "floating del 192.0.2.80 --external internet --strict @";
    let asked = "nat_del { kind: FLOATING external: \"internet\" address: \"192.0.2.80\" }";
    let (asks, answers): (&[&[&str]], &[&[&str]]) = (&[&["nat_list: true"], &[asked]], &[&[NATS]]);
    check(&[Row { line, asks, answers, ..Row::default() }]);
}

/// Externals come before routers, translations behind them. A number that was chosen stays here.
#[test]
fn a_dump_has_externals_and_translations_and_is_applied() {
    let daemon = Daemon::new();
    let mut client = daemon.start("dump @");
    daemon.receive("dump");
    let nic = "{ id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: TAP }";
    daemon.send(&answer(&[&format!("nic_details {nic}"), ""]));
    daemon.receive("dump");
    let router = "{ id: \"r1\" attachment { external: \"internet\" } }";
    let routers = format!("router_list {router}");
    daemon.send(&answer(&["network_list { vni: 42 }", EXTERNALS, &routers, NATS, "", ""]));
    let dump = client.end();
    let kinds: Vec<&str> =
        dump.out.lines().map(str::trim).filter(|line| line.contains("_add {")).collect();
    let (external, nat) = ("external_add {", "nat_add {");
    let before = ["network_add {", external, external, external, "router_add {"];
    let expected = [&before[..], &[nat, nat, nat, "nic_add {"]].concat();
    assert_eq!(kinds, expected);

    std::fs::write(daemon.path("saved"), dump.out).unwrap();
    let mut client = daemon.start("apply saved @");
    let request = daemon.receive("apply");
    let externals = EXTERNALS
        .replace("external_list {", "external {")
        .replace(" vni: 16777215", "")
        .replace(" vni: 16777214", "")
        .replace("\"198.18.0.1\" chosen: true", "\"198.18.0.1\"")
        .replace("chosen: true not_in_effect: \"there is no interface \\\"eth1\\\"\"", "");
    let nats = NATS.replace("nat_list {", "nat {").replace(USED, "");
    let state = format!(
        "apply {{ nic {nic} prune: false dry_run: false network {{ vni: 42 }} \
         router {router} {externals} {nats} }}"
    );
    assert_eq!(asked_for(&request.messages[0]), in_full(&state));
    daemon.send(&answer(&[
        "apply { change { object: EXTERNAL name: \"internet\" what: ADDED } \
         change { object: NAT name: \"192.0.2.9 at external \\\"internet\\\"\" what: REMOVED } }",
    ]));
    let ended = client.end();
    let out = "+ external internet\n- nat 192.0.2.9 at external \"internet\"\n1 added, 1 removed\n";
    assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.code), (out, "", Some(0)));
}
