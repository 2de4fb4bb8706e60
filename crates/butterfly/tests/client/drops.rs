//! `drops`: what was dropped and what to do about it.

use crate::support::{Daemon, Row, answer, asked_for, check, in_full, run};
use serde_json::{Value, json};

const REASONS: &str = r#"
  reason { name: "ring-full" description: "No buffers left." cause: "it is slow" remedy: "`butterfly nic show NIC`, more NIC" charged: "the receiver" }
  reason { name: "same-port" description: "It came from there." cause: "a bridge" remedy: "`butterfly fdb VNI`" charged: "the sender" }
"#;

fn list(time: u64, counts: [u64; 2]) -> String {
    let [full, same] = counts;
    format!(
        r#"drop_list {{ time_ms: {time} window_ms: 5000 total: 12345
  place {{ kind: NIC nic_id: "vm-1" vni: 42
    drop {{ reason: "ring-full" count: {full} recent: 10 last_ms: 3249 last_packet: "vni 42: a > b" remedy: "`butterfly nic show NIC`, port 443" }}
    drop {{ reason: "same-port" count: 1 recent: 0 last_ms: 3600000 }} }}
  place {{ kind: NETWORK vni: 7 drop {{ reason: "same-port" count: {same} recent: 500 }} }}
  place {{ kind: UPLINK drop {{ reason: "of-tomorrow" count: 3 recent: 0 last_ms: 0 last_packet: "\033[2J" }} }}
  place {{ kind: GONE drop {{ reason: "ring-full" count: 9 }} }}
  {REASONS} left_out: 2 }}"#
    )
}

const PAGE: &str = r"drops of the whole host: 12345 frames; rates are those of the last 5.0 s

vm-1 (vni 42)
  ring-full      100 frames  2.0 per s  last 3.2 s ago
    packet  vni 42: a > b
    means   No buffers left.
    do      `butterfly nic show vm-1`, port 443
  same-port        1 frame     0 per s  last 1 h 0 min ago
    means   It came from there.
    do      `butterfly fdb 42`

network 7, from and to other hosts
  same-port    12000 frames  100 per s  last: not known
    means   It came from there.
    do      `butterfly fdb 7`

uplink
  of-tomorrow      3 frames    0 per s  last 0.0 s ago
    packet  \u{1b}[2J

vnics and networks that are gone
  ring-full        9 frames
    means   No buffers left.
    do      `butterfly nic show NIC`, more NIC

2 more vnics or networks dropped something: ask for one
";

#[test]
fn drops_are_a_page() {
    let found = list(60_000, [100, 12_000]);
    let asks: &[&[&str]] = &[&["drop_list {}"]];
    check(&[
        Row { line: "drops @", asks, answers: &[&[&found]], out: PAGE, ..Row::default() },
        Row {
            line: "drops @",
            asks,
            answers: &[&["drop_list { time_ms: 5 window_ms: 5 total: 0 }"]],
            out: "drops of the whole host: none\n",
            ..Row::default()
        },
        Row {
            line: "drops vm-1 @",
            asks: &[&["drop_list {nic_id: \"vm-1\"}"]],
            answers: &[&["drop_list { }"]],
            out: "drops of vm-1: none\n",
            ..Row::default()
        },
        // A daemon that has just started has no time to divide by.
        Row {
            line: "drops @",
            asks,
            answers: &[&[
                "drop_list { total: 1 place { kind: UPLINK drop { reason: \"r\" count: 1 recent: 1 last_ms: 0 } } }",
            ]],
            out: "drops of the whole host: 1 frame\n\nuplink\n  r  1 frame     last 0.0 s ago\n",
            ..Row::default()
        },
        Row {
            line: "drops @",
            asks,
            answers: &[&[
                "drop_list { total: 5 reason { name: \"r\" description: \"Noise.\" remedy: \"nothing\" harmless: true } \
                          place { kind: UPLINK drop { reason: \"r\" count: 4 last_ms: 0 last_packet: \"p\" } drop { reason: \"s\" count: 1 } } }",
            ]],
            out: "\
drops of the whole host: 5 frames, 4 of them harmless

uplink
  r  4 frames    last 0.0 s ago
    packet  p
    means   Harmless. Noise.
  s  1 frame     last: not known
",
            ..Row::default()
        },
        Row {
            line: "drops @",
            asks,
            err: "no list of drops received\nerror in command: drops\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

#[test]
fn drops_are_json() {
    let daemon = Daemon::new();
    let mut client = daemon.start("drops --json @");
    daemon.receive("drops");
    daemon.send(&answer(&[&list(60_000, [100, 12_000])]));
    let found: Value = serde_json::from_str(&client.end().out).unwrap();
    assert_eq!(
        (&found["uptime_ms"], &found["rate_window_ms"], &found["total"], &found["left_out"]),
        (&json!(60_000), &json!(5000), &json!(12_345), &json!(2))
    );
    let places = found["places"].as_array().unwrap();
    let kinds: Vec<_> = places.iter().map(|place| place["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["nic", "network", "uplink", "gone"]);
    assert_eq!(
        (&places[0]["nic_id"], &places[0]["vni"], &places[2]["vni"]),
        (&json!("vm-1"), &json!(42), &Value::Null)
    );
    assert_eq!(
        places[0]["drops"][0],
        json!({
            "reason": "ring-full", "count": 100, "rate": 2.0, "last_age_ms": 3249, "last_packet": "vni 42: a > b",
            "description": "No buffers left.", "cause": "it is slow", "remedy": "`butterfly nic show vm-1`, port 443",
            "charged": "the receiver", "harmless": false,
        })
    );
    assert_eq!(
        places[3]["drops"][0],
        json!({
            "reason": "ring-full", "count": 9, "rate": null, "last_age_ms": null, "last_packet": null,
            "description": "No buffers left.", "cause": "it is slow", "remedy": "`butterfly nic show NIC`, more NIC",
            "charged": "the receiver", "harmless": false,
        })
    );
}

/// Piped: a line of JSON each second, with the rates since the one before, until the reader closes
/// the pipe.
#[test]
fn drops_are_watched() {
    let daemon = Daemon::new();
    let mut client = daemon.start("drops --watch --json @");
    for (time, counts, rates) in [
        (60_000, [100, 12_000], [2.0, 100.0]),
        (61_000, [107, 12_000], [7.0, 0.0]),
        (63_000, [108, 12_010], [0.5, 5.0]),
    ] {
        let request = daemon.receive("drops");
        assert_eq!(asked_for(&request.messages[0]), in_full("drop_list {}"));
        daemon.send(&answer(&[&list(time, counts)]));
        let found: Value = serde_json::from_str(&client.line()).unwrap();
        let rate = |place: usize| found["places"][place]["drops"][0]["rate"].as_f64().unwrap();
        assert_eq!([rate(0), rate(1)], rates);
    }
    drop(client);
    // A page for people has no control characters where no terminal is.
    let mut client = daemon.start("drops vm-1 --watch @");
    loop {
        // The other client may have asked once more.
        let request = asked_for(&daemon.receive("drops").messages[0]);
        daemon.send(&answer(&[&list(60_000, [100, 12_000])]));
        if request == in_full("drop_list {nic_id: \"vm-1\"}") {
            break;
        }
    }
    let lines: Vec<String> = (0..4).map(|_| client.line()).collect();
    assert!(lines[0].ends_with(" UTC") && lines[0].starts_with("20"), "{lines:?}");
    assert_eq!(
        lines[1..4],
        ["drops of vm-1: 12345 frames; rates are those of the last 5.0 s", "", "vm-1 (vni 42)"]
    );
}

#[test]
fn reasons_are_explained_without_a_daemon() {
    let ended = run("drops --explain ring-full");
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    for words in [
        "ring-full\n\nThe receiving guest had no buffers left",
        "- Usual cause: ",
        "- What to do: ",
        "- Charged to: the receiver",
    ] {
        assert!(ended.out.contains(words), "{words} is not in {}", ended.out);
    }
    let ended = run("drops --explain nonsense");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    assert!(
        ended.err.starts_with(
            "no drop reason is called nonsense\nhelp: the reasons are bad-chain, short, "
        ),
        "{}",
        ended.err
    );
    for line in [
        "drops vm-1 --explain short",
        "drops --watch --explain short",
        "drops --json --explain short",
    ] {
        let ended = run(line);
        assert_eq!(ended.code, Some(1), "{line}");
        assert!(
            ended.err.starts_with("butterfly drops: --explain prints one section"),
            "{}",
            ended.err
        );
    }
}
