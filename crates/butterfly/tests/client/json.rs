//! `--json`: an object at the top, times in words and as numbers.

use crate::support::{Daemon, answer, help, run};
use serde_json::{Value, json};

/// Returns the output of the client for these answers.
fn printed(line: &str, answers: &[&[&str]]) -> Value {
    let daemon = Daemon::new();
    let mut client = daemon.start(&format!("{line} --json @"));
    for responses in answers {
        daemon.receive(line);
        daemon.send(&answer(responses));
    }
    let ended = client.end();
    assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)), "{line}");
    serde_json::from_str(&ended.out)
        .unwrap_or_else(|error| panic!("{line}: {error} in {}", ended.out))
}

#[test]
fn commands_of_the_original_print_objects() {
    let add = "nic add --id a --mac 52:54:00:00:00:01 --vni 1";
    for (line, answers, expected) in [
        ("nic list", &["nic_list: \"a\" nic_list: \"b\""], json!({ "nics": ["a", "b"] })),
        (add, &["nic_add { path: \"/run/a\" }"], json!({ "id": "a", "path": "/run/a" })),
        (
            "nic stats a",
            &["nic_stats { in: 7 out: 8 }"],
            json!({ "id": "a", "in_bytes": 7, "out_bytes": 8, "pings": null }),
        ),
        (
            "nic details a",
            &[
                "nic_details { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1 ip: \"10.0.0.1\" type: TAP path: \"t\" }",
            ],
            json!({
                "id": "a", "mac": "52:54:00:00:00:01", "vni": 1, "ip": ["10.0.0.1"], "prefix": [], "security_group": [], "ip_anti_spoof": false,
                "sniff_target_nic_id": null, "bypass_filtering": false, "forwards": false, "shared_ip": false, "router": false,
                "limits": null, "type": "TAP", "path": "t", "netns": null, "packet_trace": false, "packet_trace_path": null, "btype": null,
                "dip": null, "dmac": null,
            }),
        ),
        (
            "status",
            &[
                "app_health { version: \"1.2.3\" start_date: 1000000000 current_date: 1000000007 request_counter: 3 nics: 2 security_groups: 1 }",
            ],
            json!({
                "version": "1.2.3", "start_date": "2001-09-09T01:46:40Z", "start_date_s": 1_000_000_000,
                "current_date": "2001-09-09T01:46:47Z", "current_date_s": 1_000_000_007, "uptime_s": 7, "request_counter": 3,
                "nics": 2, "security_groups": 1,
            }),
        ),
    ] {
        assert_eq!(printed(line, &[answers]), expected, "{line}");
    }
}

#[test]
fn a_commit_of_an_upgrade_is_an_object() {
    let commit: &[&str] = &["upgrade_commit { from: 1 to: 2 records: 7 }"];
    let expected = json!({ "from": 1, "to": 2, "records": 7 });
    assert_eq!(printed("upgrade --commit", &[commit]), expected);
}

#[test]
fn dumps_and_replies_are_objects_too() {
    let nics = "nic_details { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1 type: TAP }";
    let peer = "peer_list { address: \"10.9.0.2\" }";
    let found = printed("dump", &[&[nics, ""], &["", "", "", "", "", peer]]);
    let asked = |place: usize| found["messages"][place]["message_0"]["request"].clone();
    assert_eq!(
        asked(0),
        json!({ "nic_add": { "id": "a", "mac": "52:54:00:00:00:01", "vni": 1, "type": "TAP" } })
    );
    assert_eq!(asked(1), json!({ "peer_add": { "address": "10.9.0.2" } }));

    let daemon = Daemon::new();
    std::fs::write(
        daemon.path("ask"),
        "messages { revision: 6 message_0 { request { nic_list: true } } }",
    )
    .unwrap();
    let mut client = daemon.start("request ask --json @");
    daemon.receive("request");
    daemon.send(&answer(&["nic_list: \"a\""]));
    let reply: Value = serde_json::from_str(&client.end().out).unwrap();
    assert_eq!(reply["messages"][0]["message_0"]["response"]["nic_list"], json!(["a"]));
}

#[test]
fn the_version_is_json_too() {
    let found: Value = serde_json::from_str(&run("version --json").out).unwrap();
    assert_eq!(found, json!({ "version": env!("CARGO_PKG_VERSION"), "revision": 6 }));
}

/// Those without it print nothing, or what is no data.
#[test]
fn every_command_that_prints_has_it() {
    let silent = [
        "nic update",
        "nic del",
        "nic sg add",
        "nic sg del",
        "nic sg set",
        "sg add",
        "sg del",
        "sg rule add",
        "sg rule del",
        "sg member add",
        "sg member del",
        "peer add",
        "peer del",
        "network add",
        "network del",
        "router add",
        "router del",
        "router attach",
        "router detach",
        "route add",
        "route del",
        "external add",
        "external del",
        "snat add",
        "snat del",
        "floating add",
        "floating del",
        "forward add",
        "forward del",
        "neighbour add",
        "neighbour del",
        "log-level",
        "shutdown",
        "capture",
        "generate",
        "nic export",
        "help",
    ];
    for name in crate::manual::commands("").into_iter().map(|(name, _)| name) {
        let has = help(&name).contains("\n    --json");
        assert_eq!(has, !silent.contains(&name.as_str()), "{name}");
    }
}
