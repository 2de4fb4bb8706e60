//! Externals, and translations at them.

use crate::refused;
use crate::support::{Daemon, Row, answer, asked_for, check, in_full};
use serde_json::{Value, json};

const EXTERNALS: &str = r#"
    external_list { id: "internet" uplink: "eth1" vni: 16777215 address: "192.0.2.7/24"
        gateway: "192.0.2.1" chosen: true not_in_effect: "there is no interface \"eth1\"" }
    external_list { id: "office" uplink: "tap:out" vlan: 7 vni: 77 mtu: 1400
        address: "198.51.100.7/24" address: "2001:db8::7/64" }"#;
const NATS: &str = r#"
    nat_list { router: "r1" kind: SNAT external: "internet" address: "192.0.2.9" }
    nat_list { router: "r1" kind: FORWARD external: "internet" address: "192.0.2.9"
        inside: "10.5.0.10" protocol: 6 port: 443 to_port: 8443 }
    nat_list { router: "r1" kind: FLOATING external: "internet" address: "192.0.2.80"
        inside: "10.5.0.10" }"#;

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
            "external  uplink   vlan       vni  address                         gateway     mtu  in effect\n\
             internet  eth1        -  16777215  192.0.2.7/24                    192.0.2.1     -  no: there is no interface \"eth1\"\n\
             office    tap:out     7        77  198.51.100.7/24 2001:db8::7/64  -          1400  yes\n",
        ),
        row("external list --ids @", "internet\noffice\n"),
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
          "addresses": ["192.0.2.7/24"], "gateways": ["192.0.2.1"], "mtu_bytes": null,
          "not_in_effect": "there is no interface \"eth1\"" },
        { "id": "office", "uplink": "tap:out", "vlan": 7, "vni": 77, "vni_chosen": false,
          "addresses": ["198.51.100.7/24", "2001:db8::7/64"], "gateways": [], "mtu_bytes": 1400,
          "not_in_effect": null },
    ] });
    assert_eq!(printed("external list --json @", EXTERNALS), expected);
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
            out: "router  external  kind      address            to\n\
                  r1      internet  snat      192.0.2.9          -\n\
                  r1      internet  forward   192.0.2.9:443/tcp  10.5.0.10:8443\n\
                  r1      internet  floating  192.0.2.80         10.5.0.10\n",
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
        "to_port": 8443 });
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
        ("external add x --uplink eth1", "--address is mandatory"),
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
    let expected = ["network_add {", external, external, "router_add {", nat, nat, "nic_add {"];
    assert_eq!(kinds, expected);

    std::fs::write(daemon.path("saved"), dump.out).unwrap();
    let mut client = daemon.start("apply saved @");
    let request = daemon.receive("apply");
    let externals = EXTERNALS
        .replace("external_list {", "external {")
        .replace(" vni: 16777215", "")
        .replace("chosen: true not_in_effect: \"there is no interface \\\"eth1\\\"\"", "");
    let nats = NATS.replace("nat_list {", "nat {");
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
