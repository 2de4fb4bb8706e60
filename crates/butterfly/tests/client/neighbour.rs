//! Neighbours: declared ones, and those that routers asked for.

use crate::refused;
use crate::support::{Daemon, Row, answer, asked_for, check, in_full};
use serde_json::{Value, json};

const NEIGHBOURS: &str = r#"
    neighbour_list { vni: 42 address: "10.0.0.9" mac: "52:54:00:00:00:09" host: "192.0.2.2" }
    neighbour_list { vni: 1337 address: "2001:db8::9" mac: "52:54:00:00:00:0A" }"#;

/// The same with those that routers asked for.
const ALL: &str = r#"
    neighbour_list { vni: 42 address: "10.0.0.9" mac: "52:54:00:00:00:09" host: "192.0.2.2" }
    neighbour_list { vni: 1337 address: "2001:db8::9" mac: "52:54:00:00:00:0A" }
    neighbour_sought { vni: 42 address: "10.0.0.7" source: "asked" state: "silent" }
    neighbour_sought {
        vni: 42 address: "10.0.0.30" mac: "52:54:00:00:00:1E" source: "asked" state: "found" age_s: 7
    }"#;

const TABLE: &str = r#" vni  address      mac                host       source    state   age
  42  10.0.0.7     -                  -          asked     silent    -
  42  10.0.0.9     52:54:00:00:00:09  192.0.2.2  declared  -         -
  42  10.0.0.30    52:54:00:00:00:1E  -          asked     found   7 s
1337  2001:db8::9  52:54:00:00:00:0A  -          declared  -         -
"#;

#[test]
fn neighbours_are_declared_listed_and_taken_back() {
    let row = |line, asks| Row { line, asks, ..Row::default() };
    check(&[
        row(
            "neighbour add --vni 42 --ip 10.0.0.9 --mac 52:54:00:00:00:09 @",
            &[&[r#"neighbour_add { vni: 42 address: "10.0.0.9" mac: "52:54:00:00:00:09" }"#]],
        ),
        row(
            "neighbour add --host 192.0.2.2 --mac 52:54:00:00:00:09 --ip ::9 --vni 42 @",
            &[&[
                r#"neighbour_add { vni: 42 address: "::9" mac: "52:54:00:00:00:09" host: "192.0.2.2" }"#,
            ]],
        ),
        row(
            "neighbour del --vni 42 --ip 10.0.0.9 @",
            &[&[r#"neighbour_del { vni: 42 address: "10.0.0.9" }"#]],
        ),
        Row {
            line: "neighbour add --vni 42 --ip 10.0.0.1 --mac 52:54:00:00:00:09 @",
            asks: &[&[r#"neighbour_add { vni: 42 address: "10.0.0.1" mac: "52:54:00:00:00:09" }"#]],
            answers: &[&[refused!("10.0.0.1 of network 42 belongs to router r")]],
            err: "error in response\ndescription: 10.0.0.1 of network 42 belongs to router r\nerror in command: neighbour\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "neighbour list @",
            asks: &[&["neighbour_list { sought: true }"]],
            answers: &[&[ALL]],
            out: TABLE,
            ..Row::default()
        },
        Row {
            line: "neighbour list --vni 7 @",
            asks: &[&["neighbour_list { vni: 7 sought: true }"]],
            out: "vni  address  mac  host  source  state  age\n",
            ..Row::default()
        },
        Row {
            line: "neighbour list --vni 7 --json @",
            asks: &[&["neighbour_list { vni: 7 sought: true }"]],
            out: "{\n  \"neighbours\": []\n}\n",
            ..Row::default()
        },
    ]);
    let daemon = Daemon::new();
    let mut client = daemon.start("neighbour list --json @");
    daemon.receive("neighbour list");
    daemon.send(&answer(&[ALL]));
    let printed: Value = serde_json::from_str(&client.end().out).unwrap();
    let expected = json!({ "neighbours": [
        { "vni": 42, "address": "10.0.0.7", "mac": null, "host": null, "source": "asked",
          "state": "silent", "age_s": null },
        { "vni": 42, "address": "10.0.0.9", "mac": "52:54:00:00:00:09", "host": "192.0.2.2",
          "source": "declared", "state": null, "age_s": null },
        { "vni": 42, "address": "10.0.0.30", "mac": "52:54:00:00:00:1E", "host": null,
          "source": "asked", "state": "found", "age_s": 7 },
        { "vni": 1337, "address": "2001:db8::9", "mac": "52:54:00:00:00:0A", "host": null,
          "source": "declared", "state": null, "age_s": null },
    ] });
    assert_eq!(printed, expected);
}

/// Nothing is sent of what cannot be meant.
#[test]
fn what_is_no_neighbour_is_refused_by_the_client() {
    for (line, why) in [
        ("add --ip 10.0.0.9 --mac 52:54:00:00:00:09", "--vni is mandatory"),
        ("add --vni 42 --mac 52:54:00:00:00:09", "--ip is mandatory"),
        ("add --vni 42 --ip 10.0.0.9", "--mac is mandatory"),
        ("del --vni 42", "--ip is mandatory"),
        ("list --vni x", "\"x\" is not a number from 0 to 16777215"),
        ("del --vni x --ip 10.0.0.9", "\"x\" is not a number from 0 to 16777215"),
    ] {
        let daemon = Daemon::new();
        let line = format!("neighbour {line} @");
        let ended = daemon.start(&line).end();
        daemon.assert_silent(&line);
        assert!(ended.err.contains(why), "{line}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
    }
}

/// An operator who asks for it learns of changes that changed nothing. Another spelling is the same
/// address.
#[test]
fn strict_tells_that_there_was_no_neighbour() {
    let (line, asked) = (
        "neighbour del --vni 1337 --ip ::9 --strict @",
        r#"neighbour_del { vni: 1337 address: "::9" }"#,
    );
    let err = "note: there was no neighbour ::9 of network 1337: nothing changed\n\
               --strict: it was done, and is a failure because of the note\nerror in command: neighbour\n";
    let (asks, answers): (&[&[&str]], &[&[&str]]) =
        (&[&["neighbour_list { vni: 1337 }"], &[asked]], &[&[NEIGHBOURS]]);
    check(&[Row { line, asks, answers, err, code: 1, ..Row::default() }]);
    let line = "neighbour del --vni 1337 --ip 2001:db8:0::9 --strict @";
    let asked = r#"neighbour_del { vni: 1337 address: "2001:db8:0::9" }"#;
    check(&[Row {
        line,
        asks: &[&["neighbour_list { vni: 1337 }"], &[asked]],
        answers,
        ..Row::default()
    }]);
}

/// A reply holds 65,536 neighbours at most: the client asks for those behind them.
#[test]
fn a_long_list_comes_in_parts() {
    let daemon = Daemon::new();
    let mut client = daemon.start("neighbour list --vni 42 @");
    daemon.receive("neighbour list");
    let part: String = (0..65_536u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n);
            format!(
                "neighbour_list {{ vni: 42 address: \"{address}\" mac: \"52:54:00:00:00:09\" }} "
            )
        })
        .collect();
    daemon.send(&answer(&[&part]));
    let request = daemon.receive("neighbour list");
    let asked = asked_for(&request.messages[0]);
    let expected = "neighbour_list { vni: 42 after { vni: 42 address: \"10.0.255.255\" } }";
    assert_eq!(asked, in_full(expected));
    daemon.send(&answer(&[NEIGHBOURS]));
    let ended = client.end();
    assert_eq!((ended.out.lines().count(), ended.code), (1 + 65_536 + 2, Some(0)), "{}", ended.err);
}

/// Neighbours come behind networks and routers, before vnics.
#[test]
fn a_dump_has_neighbours_and_is_applied() {
    let daemon = Daemon::new();
    let mut client = daemon.start("dump @");
    daemon.receive("dump");
    let nic = "{ id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: TAP }";
    daemon.send(&answer(&[&format!("nic_details {nic}"), ""]));
    daemon.receive("dump");
    daemon.send(&answer(&["network_list { vni: 42 }", "", "", "", NEIGHBOURS, ""]));
    let dump = client.end();
    let kinds: Vec<&str> =
        dump.out.lines().map(str::trim).filter(|line| line.contains("_add {")).collect();
    assert_eq!(kinds, ["network_add {", "neighbour_add {", "neighbour_add {", "nic_add {"]);

    std::fs::write(daemon.path("saved"), dump.out).unwrap();
    let mut client = daemon.start("apply saved --prune @");
    let request = daemon.receive("apply");
    let neighbours = NEIGHBOURS.replace("neighbour_list {", "neighbour {");
    let state = format!(
        "apply {{ nic {nic} prune: true dry_run: false network {{ vni: 42 }} {neighbours} }}"
    );
    assert_eq!(asked_for(&request.messages[0]), in_full(&state));
    daemon.send(&answer(&[
        "apply { change { object: NEIGHBOUR name: \"10.0.0.9 of network 42\" what: CHANGED \
         text: \"host none -> 192.0.2.2\" } }",
    ]));
    let ended = client.end();
    let out = "~ neighbour 10.0.0.9 of network 42: host none -> 192.0.2.2\n1 changed\n";
    assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.code), (out, "", Some(0)));
}
