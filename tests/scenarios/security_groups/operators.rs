//! The operator's view of sessions, and the session table after a restart of the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use butterfly_api::proto::session_admission::Kind as Admitted;
use butterfly_packet::tcp::{ACK, FIN, PSH, SYN};
use butterfly_tests::{
    Daemon, Host, Kind, eventually,
    groups::rule,
    net::{Net, filtered, ip4, ip6, open, segment, v4, v6},
};
use serde_json::{Value, json};

const A: u8 = 1;
const B: u8 = 2;

/// Runs the client and reads its JSON.
fn read(net: &Net, line: &str) -> Value {
    let text = net.host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn said(net: &Net, line: &str) -> String {
    net.host.daemon().client_ok(&line.split(' ').collect::<Vec<_>>())
}

/// Returns a net with three sessions between a and b, and a fourth with c.
fn talkative() -> Option<Net> {
    let nics = [open("a", A), filtered("b", B, "web"), filtered("c", 3, "web")];
    let mut net = Net::new(&nics)?;
    net.group(
        "web",
        &["in tcp 80-80 10.0.0.0/24", "in udp 53-53 @friends", "in udp 9-9 0.0.0.0/0"],
        &[],
    );
    net.group("friends", &[], &[&ip4(A), &ip6(A)]);
    let (there, back) = (v4(A, B), v4(B, A));
    net.exchange(
        "a",
        &there.tcp(&segment((5000, 80), SYN, 1, 0), b""),
        "b",
        &back.tcp(&segment((80, 5000), SYN | ACK, 1, 2), b""),
    );
    net.expect("a", &there.tcp(&segment((5000, 80), ACK | PSH, 2, 2), b"question"), "b");
    net.exchange("a", &v6(A, B).udp(4000, 53, b"?"), "b", &v6(B, A).udp(53, 4000, b"!"));
    net.expect("b", &back.ping(7, 1, b"x"), "a");
    net.expect("c", &v4(3, A).udp(1, 2, b""), "a");
    Some(net)
}

#[test]
fn sessions_are_listed() {
    let Some(mut net) = talkative() else { return };
    let all = read(&net, "sessions --json");
    assert_eq!(
        (&all["matching"], &all["table"]["used"], all["sessions"].as_array().unwrap().len()),
        (&json!(4), &json!(4), 4)
    );
    let of_b = read(&net, "sessions b --json");
    assert_eq!(of_b["matching"], 3);
    let one = |protocol: u64| {
        of_b["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["protocol"] == protocol)
            .unwrap()
            .clone()
    };
    let tcp = one(6);
    let end = |nic: &str, address: &str, port: u16| json!({ "nic_id": nic, "address": address, "port": port, "outside": null });
    assert_eq!(tcp["opener"], end("a", "10.0.0.1", 5000));
    assert_eq!(tcp["responder"], end("b", "10.0.0.2", 80));
    assert_eq!(
        (&tcp["vni"], &tcp["state"], &tcp["vlan"]),
        (&json!(1), &json!("established"), &Value::Null)
    );
    assert_eq!((&tcp["opener_packets"], &tcp["responder_packets"]), (&json!(2), &json!(1)));
    assert_eq!((&tcp["opener_bytes"], &tcp["responder_bytes"]), (&json!(54 + 54 + 8), &json!(54)));
    assert!(
        tcp["age_s"].as_u64().unwrap() < 60 && tcp["expires_s"].as_u64().unwrap() > 80_000,
        "{tcp}"
    );
    assert_eq!(
        (&tcp["egress"]["kind"], &tcp["ingress"]["kind"]),
        (&json!("BYPASS"), &json!("RULE"))
    );
    assert_eq!(tcp["ingress"]["security_group"], "web");
    // Other commands show the rule with the same hash.
    let hash = tcp["ingress"]["hash"].as_str().unwrap().to_owned();
    let listed = said(&net, "sg rule list web");
    let line = listed
        .lines()
        .find(|line| line.starts_with(&hash))
        .unwrap_or_else(|| panic!("no {hash} in {listed}"));
    assert!(line.contains("80"), "{line}");
    let udp = one(17);
    assert_eq!(
        (&udp["state"], &udp["opener"]["address"], &udp["ingress"]["kind"]),
        (&json!("answered"), &json!("fd00::1"), &json!("RULE"))
    );
    let echo = one(1);
    assert_eq!(
        (&echo["state"], &echo["opener"]["port"], &echo["responder"]["port"]),
        (&json!("echo"), &json!(7), &json!(8))
    );
    assert_eq!(
        (&echo["egress"]["kind"], &echo["ingress"]["kind"]),
        (&json!("DEFAULT_EGRESS"), &json!("BYPASS"))
    );
    // The same as text.
    let page = said(&net, "sessions b");
    assert!(
        page.contains("established") && page.contains("10.0.0.1") && page.contains("fd00::2"),
        "{page}"
    );
    // More packets: the next look shows the new counts.
    for n in 0..100u32 {
        net.expect("a", &v4(A, B).tcp(&segment((5000, 80), ACK, 10 + n, 2), b"x"), "b");
    }
    let tcp = read(&net, "sessions b --proto tcp --json")["sessions"][0].clone();
    assert_eq!(
        (&tcp["opener_packets"], &tcp["opener_bytes"]),
        (&json!(102), &json!(54 + 62 + 100 * 55))
    );
    net.expect("a", &v4(A, B).tcp(&segment((5000, 80), FIN | ACK, 110, 2), b""), "b");
    assert_eq!(read(&net, "sessions b --proto tcp --json")["sessions"][0]["state"], "half-closed");
}

#[test]
fn sessions_are_chosen_counted_and_ended() {
    let Some(mut net) = talkative() else { return };
    let count = |net: &Net, options: &str| -> u64 {
        let plain = said(net, &format!("sessions {options} --count").replace("  ", " "));
        plain.trim().parse().unwrap_or_else(|_| panic!("{plain}"))
    };
    for (options, expected) in [
        ("", 4),
        ("a", 4),
        ("b", 3),
        ("c", 1),
        ("--vni 1", 4),
        ("--vni 2", 0),
        ("--proto tcp", 1),
        ("--proto 17", 2),
        ("--proto icmpv6", 0),
        ("--address 10.0.0.1", 3),
        ("--address fd00::2", 1),
        ("--address 10.0.0.3", 1),
        ("--port 53", 1),
        ("--port 80 --proto udp", 0),
        ("b --port 4000 --address fd00::1 --vni 1 --proto udp", 1),
    ] {
        assert_eq!(count(&net, options), expected, "{options}");
    }
    assert_eq!(read(&net, "sessions --limit 2 --json")["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(said(&net, "sessions b --proto tcp --flush").trim(), "flushed: 1");
    assert_eq!((count(&net, ""), count(&net, "--proto tcp")), (3, 0));
    // The next frame of the ended session is new, and no SYN. All other sessions go on.
    net.expect("a", &v4(A, B).tcp(&segment((5000, 80), ACK, 10, 2), b""), "a.tcp-no-session");
    net.expect("a", &v6(A, B).udp(4000, 53, b"?"), "b");
    net.expect("a", &v4(A, 3).udp(2, 1, b""), "c");
    // Rules let packets in again; the answers to b's questions need a new question.
    assert_eq!(said(&net, "sessions --flush").trim(), "flushed: 3");
    net.expect("a", &v4(A, B).icmp(0, 0, 7 << 16 | 1, b"x"), "b.ingress-denied");
    net.expect("a", &v6(A, B).udp(4000, 53, b"?"), "b");
    net.expect("a", &v4(A, 3).udp(2, 1, b""), "c.ingress-denied");
    assert_eq!(count(&net, ""), 1);
    // The sessions of a removed vnic end after a while.
    net.host.remove("b");
    eventually("the sessions of a vnic that is gone go", || count(&net, "") == 0);
}

#[test]
fn rules_say_what_they_admitted() {
    let Some(mut net) = talkative() else { return };
    let counts = |net: &Net| -> Vec<u64> {
        let order = ["in tcp 80-80 10.0.0.0/24", "in udp 53-53 @friends", "in udp 9-9 0.0.0.0/0"];
        let stats = net.host.daemon().rule_stats("web");
        let of = |text| {
            stats
                .iter()
                .find(|(listed, _)| *listed == rule(text))
                .unwrap_or_else(|| panic!("{text}: {stats:?}"))
                .1
        };
        order.into_iter().map(of).collect()
    };
    assert_eq!(counts(&net), [1, 1, 0]);
    for port in 0..10 {
        for _ in 0..3 {
            net.expect("a", &v4(A, B).udp(port, 9, b""), "b"); // one session per port
            net.expect("b", &v4(B, A).udp(9, port, b""), "a");
        }
        net.expect("a", &v4(A, B).udp(port, 10, b""), "b.ingress-denied");
    }
    assert_eq!(counts(&net), [1, 1, 10]);
    net.expect("a", &v4(A, 3).udp(1, 9, b""), "c"); // another vnic of the same group
    assert_eq!(counts(&net), [1, 1, 11]);
    let page = said(&net, "sg rule list web --stats");
    assert!(
        page.lines().count() == 3 && page.lines().any(|line| line.ends_with("sessions: 11")),
        "{page}"
    );
    let rows = read(&net, "sg rule list web --stats --json");
    assert_eq!(
        rows["rules"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|row| row["sessions"].as_u64())
            .sum::<u64>(),
        13,
        "{rows}"
    );
    // The rule that admitted a session is gone: the session shows that until its next frame.
    net.rule_del("web", "in tcp 80-80 10.0.0.0/24");
    let (_, sessions) = net.host.daemon().sessions(Default::default());
    let tcp =
        sessions.iter().find(|session| session.protocol() == 6).expect("nothing was sent since");
    assert_eq!(tcp.ingress.kind(), Admitted::GONE);
    net.expect("a", &v4(A, B).tcp(&segment((5000, 80), ACK, 10, 2), b""), "b.ingress-denied");
    assert_eq!(said(&net, "sessions --proto tcp --count").trim(), "0");
}

/// Makes groups by commands, and once more from the output of `dump`.
#[test]
fn groups_in_the_operators_words() {
    let Some(mut net) = Net::new(&[open("a", A), filtered("b", B, "")]) else { return };
    for line in [
        "sg add empty",
        "sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0",
        "sg rule add web --ip-proto udp --port-start 50 --port-end 60 --sg-members clients",
        "sg rule add web --dir out --ip-proto all --cidr 10.0.0.0/24",
        "sg member add clients 10.0.0.1 + sg member add clients fd00::1",
        "nic sg add b web empty",
    ] {
        said(&net, line);
    }
    assert_eq!(said(&net, "sg list"), "clients\nempty\nweb\n");
    assert_eq!(said(&net, "nic sg list b"), "empty\nweb\n");
    net.expect("a", &v4(A, B).udp(1, 50, b""), "b");
    net.expect("a", &v6(A, B).udp(1, 60, b""), "b");
    net.expect("a", &v4(A, B).udp(1, 61, b""), "b.ingress-denied");
    net.expect("b", &v6(B, A).udp(1, 99, b""), "b.egress-denied");
    let dumped = said(&net, "dump");
    let file = net.host.dir().join("dump");
    fs::write(&file, &dumped).unwrap();
    // A new daemon with nothing but the dump.
    let Some(mut other) = Net::new(&[]) else { return };
    said(&other, &format!("request {}", file.display()));
    let dir = |net: &Net| net.host.dir().display().to_string();
    assert_eq!(said(&other, "dump"), dumped.replace(&dir(&net), &dir(&other)));
    other.attach(&open("a", A));
    other.attach(&filtered("b", B, "web empty"));
    other.expect("a", &v4(A, B).udp(1, 50, b""), "b");
    other.expect("a", &v4(A, B).udp(1, 61, b""), "b.ingress-denied");
    // Deleted members and groups let nothing in.
    said(&net, "sg member del clients 10.0.0.1 + nic sg del b empty");
    net.expect("a", &v4(A, B).udp(1, 50, b""), "b.ingress-denied");
    net.expect("a", &v6(A, B).udp(1, 60, b""), "b");
    let hash = said(&net, "sg rule list web")
        .lines()
        .find(|line| line.contains("IP protocol: 17"))
        .unwrap()[..16]
        .to_owned();
    said(&net, &format!("sg rule del web {hash}"));
    net.expect("a", &v6(A, B).udp(1, 60, b""), "b.ingress-denied");
    said(&net, "sg del web clients empty");
    assert_eq!(said(&net, "sg list"), "");
    net.expect("b", &v6(B, A).udp(1, 99, b""), "a");
}

/// Returns the path of a daemon's session table.
fn table_file(daemon: &Daemon) -> PathBuf {
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).unwrap();
    let names = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let mut names: Vec<&str> =
        names.filter(|name| name.contains("/butterfly-") && !name.contains("/memfd:")).collect();
    names.dedup();
    let [name] = names[..] else { panic!("one file of sessions, not {names:?}") };
    name.into()
}

fn conversation(dir: &Path) -> Net {
    let host = Host::of(Daemon::start_in(dir, &[], &["--tcp-pickup".into(), "0".into()]));
    let mut net = Net::of(host);
    net.group("g", &["in udp 53-53 0.0.0.0/0"], &[]);
    net.attach(&open("a", A));
    net.attach(&filtered("b", B, "g"));
    // The new daemon does not know what b asked before.
    assert_eq!(net.host.daemon().session_table().used(), 0);
    net.expect("a", &v4(A, B).udp(2, 1, b"!"), "b.ingress-denied");
    net.exchange("b", &v4(B, A).udp(1, 2, b"?"), "a", &v4(A, B).udp(2, 1, b"!"));
    net.exchange("a", &v4(A, B).udp(9, 53, b"?"), "b", &v4(B, A).udp(53, 9, b"!"));
    assert_eq!(net.host.daemon().session_table().used(), 2);
    net
}

/// After a crash the next daemon logs what is in the old table, and replaces it. A clean stop
/// removes the table.
#[test]
fn the_table_and_restarts() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let started = Instant::now();
    // Each change of the file, and the log of the next daemon about it.
    type Change = fn(&mut Vec<u8>);
    let rounds: [(Change, &str); 6] = [
        (|_| {}, "2 sessions end with theirs (last frame "),
        (|file| file.fill(0xa5), "it is no table of sessions"),
        (Vec::clear, "it is shorter than its header says"),
        (|file| file.truncate(100_000), "it is shorter than its header says"),
        (|file| file[8] = 1, "its layout has version 1,"),
        (|file| file[88] ^= 1, "it is of another boot"),
    ];
    let said = |expected: &str, from: usize| {
        let log = fs::read_to_string(room.path().join("log")).unwrap();
        let told = log[from..]
            .lines()
            .find(|line| line.contains("was left by a daemon that died"))
            .unwrap_or_default();
        assert!(
            told.contains(expected) && told.is_empty() == expected.is_empty(),
            "{expected:?} is not in {told:?}"
        );
        // The log counts in the host's time, not in that of the killed daemon.
        let idle = told.split_once("(last frame ").and_then(|(_, rest)| rest.split(' ').next());
        let idle = idle.map(|idle| idle.parse::<u64>().unwrap());
        assert!(idle.unwrap_or_default() <= started.elapsed().as_secs() + 1, "{told}");
        log.len()
    };
    let (mut expected, mut logged) = ("", 0);
    for (change, next) in rounds {
        let mut net = conversation(room.path());
        logged = said(expected, logged);
        let file = table_file(net.host.daemon());
        assert!(file.exists());
        net.host.daemon().signal("KILL");
        net.host.daemon_mut().wait_for_end();
        assert!(file.exists(), "a crash leaves it");
        // Files of huge pages do not support `write`.
        if file.starts_with("/dev/shm") {
            let mut bytes = fs::read(&file).unwrap();
            change(&mut bytes);
            fs::write(&file, bytes).unwrap();
            expected = next;
        } else {
            expected = rounds[0].1;
        }
    }
    let mut net = conversation(room.path());
    said(expected, logged);
    let file = table_file(net.host.daemon());
    net.host.daemon().signal("TERM");
    assert_eq!(net.host.daemon_mut().wait_for_end().code(), Some(0));
    assert!(!file.exists(), "a clean stop removes it");
}

/// A daemon does not start under the name of one that runs, and leaves its table alone.
#[test]
fn a_table_in_use_is_not_touched() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let mut net = conversation(room.path());
    let table = table_file(net.host.daemon());
    let other = tempfile::tempdir().unwrap();
    let first = Daemon::start_in(other.path(), &[], &["--name".into(), "one".into()]);
    assert_ne!(table_file(&first), table);
    let own = format!("ipc://{}/other", room.path().display());
    let mut second =
        Daemon::launch(room.path(), &[], &["--name".into(), "one".into(), "-e".into(), own]);
    assert_eq!(second.wait_for_end().code(), Some(1));
    let said = net.host.daemon().log();
    assert!(
        said.contains(
            "in use by another process: stop it first, or give this one a name of its own"
        ),
        "{said}"
    );
    assert!(table_file(&first).exists());
    assert!(table_file(net.host.daemon()).exists());
    net.expect("a", &v4(A, B).udp(2, 1, b"!"), "b");
    assert_eq!(net.host.daemon().session_table().used(), 2);
}
