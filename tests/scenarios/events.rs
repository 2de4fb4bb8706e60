//! The record of events shows what really happened: a guest or a request makes each cause, and the
//! real client reads the events.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use butterfly_api::proto::Request;
use butterfly_guest_driver::Vm;
use butterfly_packet::build;
use butterfly_tests::{
    Daemon, Host, Kind, Nic, PATIENCE, eventually,
    frames::{mac, numbered},
    groups,
    net::{Net, filtered, ip4, open, v4},
    programs::program,
    station::usual,
};
use serde_json::Value;

/// An event as the client prints it for programs.
struct Event(Value);

impl Event {
    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn kind(&self) -> &str {
        self.text("kind")
    }

    fn seq(&self) -> u64 {
        self.0["seq"].as_u64().unwrap_or_else(|| panic!("no event: {}", self.0))
    }

    /// Returns the number of events that this one stands for.
    fn count(&self) -> u64 {
        1 + self.0["more"].as_u64().unwrap()
    }
}

/// Returns the events that `butterfly events` prints with these options.
fn events(daemon: &Daemon, words: &[&str]) -> Vec<Event> {
    let text = daemon.client_ok(&[&["events"], words, &["--json"]].concat());
    text.lines().map(|line| Event(serde_json::from_str(line).unwrap())).collect()
}

/// Returns all recorded events of one vnic or of all.
fn all<'a>(daemon: &Daemon, nic: impl IntoIterator<Item = &'a str>) -> Vec<Event> {
    let mut words: Vec<&str> = nic.into_iter().collect();
    words.extend(["--since", "0"]);
    events(daemon, &words)
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(Event::kind).collect()
}

/// Waits for the newest event of this kind about this vnic.
#[track_caller]
fn wait_for(daemon: &Daemon, nic: &str, kind: &str) -> Event {
    let mut found = None;
    eventually(&format!("{kind} of {nic:?}"), || {
        let nic = (!nic.is_empty()).then_some(nic);
        found = all(daemon, nic).into_iter().rfind(|event| event.kind() == kind);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn guests_come_and_go() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let first = all(daemon, None);
    assert_eq!((kinds(&first), first[0].seq()), (vec!["daemon-started"], 1));
    assert!(first[0].text("text").contains(daemon.endpoint()), "{}", first[0].0);

    let arrives = ["guest-attached", "features-negotiated", "queues-started"];
    let station = host.station(&Nic::bypass("a", mac(1), 7), &usual());
    eventually("the driver is up", || {
        kinds(&all(daemon, ["a"])) == [&["nic-added"], &arrives[..]].concat()
    });
    let told = all(daemon, ["a"]);
    assert!(told.iter().all(|event| event.0["vni"] == 7 && event.text("nic_id") == "a"));
    let show = host.show("a");
    let features = told[2].text("text").strip_prefix("took ").unwrap();
    let (took, refused) = features.split_once("; refused ").unwrap();
    assert_eq!(sorted(took), show.negotiated);
    assert_eq!(sorted(refused), show.refused);

    // The guest stops in order and comes back.
    let gone = station.detach();
    eventually("it left", || !host.show("a").attached);
    let reason = host.show("a").last_detach.unwrap();
    let mut expected =
        [&["nic-added"], &arrives[..], &["queues-stopped", "guest-detached"]].concat();
    let told = all(daemon, ["a"]);
    assert_eq!(kinds(&told), expected);
    assert_eq!(
        told.last().unwrap().text("text"),
        format!("the virtual machine detached: {reason}")
    );
    let station = gone.back();
    expected.extend(arrives);
    eventually("it is back", || kinds(&all(daemon, ["a"])) == expected);
    // The guest is killed: the only event is that it left.
    let gone = station.crash();
    expected.push("guest-detached");
    eventually("it left", || kinds(&all(daemon, ["a"])) == expected);
    // The driver restarts on the same connection.
    let mut station = gone.back();
    station.vm.restart().unwrap();
    expected.extend(arrives);
    expected.extend(["queues-stopped", "queues-started"]);
    eventually("it is back", || kinds(&all(daemon, ["a"])) == expected);
    // The vnic is removed under its guest.
    host.remove("a");
    expected.extend(["guest-detached", "nic-removed"]);
    let told = all(daemon, ["a"]);
    assert_eq!(kinds(&told), expected);
    assert!(told[told.len() - 2].text("text").ends_with("the vnic was removed"));
    assert!(told.windows(2).all(|pair| pair[0].seq() < pair[1].seq()
        && pair[0].0["time_ms"].as_u64() <= pair[1].0["time_ms"].as_u64()));
}

fn sorted(names: &str) -> std::collections::BTreeSet<String> {
    names.split(' ').map(str::to_owned).collect()
}

#[test]
fn changes_and_who_asked_for_them() {
    let Some(net) = Net::new(&[filtered("a", 1, "web")]) else { return };
    let daemon = net.host.daemon();
    let last = all(daemon, None).last().unwrap().seq().to_string();
    net.rule_add("web", "in tcp 80-90 10.0.0.0/8");
    net.rule_add("web", "out any - @peers");
    net.member_add("peers", "10.0.0.9");
    net.member_add("peers", "fd00::9");
    net.member_del("peers", "10.0.0.9");
    net.rule_del("web", "in tcp 80-90 10.0.0.0/8");
    net.ask(groups::nic_groups("a", &["web", "db"]));
    net.ask(groups::group_del("web"));
    // A repeated change and a refused one make no event of a change.
    net.member_add("peers", "fd00::9");
    assert!(daemon.ask(groups::member_add("peers", "nonsense")).is_err());
    daemon.client_ok(&["sg", "member", "add", "peers", "10.0.0.7"]);
    let told: Vec<String> = events(daemon, &["--since", &last])
        .iter()
        .map(|event| format!("{} {} {}", event.kind(), event.text("request"), event.text("text")))
        .collect();
    let expected = [
        "sg-declared sg_rule_add security group \"web\" has 1 rule and 0 members",
        "sg-rule-added sg_rule_add security group \"web\": outbound any protocol to members of \"peers\"",
        "sg-declared sg_member_add security group \"peers\" has 0 rules and 1 member",
        "sg-member-added sg_member_add security group \"peers\": fd00::9",
        "sg-member-removed sg_member_del security group \"peers\": 10.0.0.9",
        "sg-rule-removed sg_rule_del security group \"web\": inbound tcp 80-90 from 10.0.0.0/8",
        "nic-updated nic_update changed in place: security groups +db",
        "sg-removed sg_del security group \"web\" deleted",
        "egress-opened sg_del may send anything now: security group \"web\" has no OUTBOUND rule any more, nor has another of its groups",
    ];
    assert_eq!(told[..9], expected);
    assert!(
        told[9].starts_with("request-failed sg_member_add refused: ")
            && told[9].contains("nonsense"),
        "{}",
        told[9]
    );
    assert_eq!(told[10..], ["sg-member-added sg_member_add security group \"peers\": 10.0.0.7"]);
    let told = events(daemon, &["--since", &last]);
    assert!(told.iter().all(|event| event.text("client") == "a local process"), "{}", told[0].0);
}

#[test]
fn failed_requests_are_told_but_not_for_ever() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    daemon.ask(Daemon::nic_add(&Nic::bypass("a", mac(1), 7))).unwrap();
    let show = |id: &str| Request { nic_show: Some(id.to_owned()), ..Request::default() };
    for n in 0..20 {
        let answers = daemon.ask_all((0..100).map(|m| show(&format!("nobody-{n}-{m}"))).collect());
        assert!(answers.iter().all(Result::is_err));
    }
    let failed = || {
        all(daemon, None)
            .into_iter()
            .filter(|event| event.kind() == "request-failed")
            .collect::<Vec<_>>()
    };
    eventually("all are accounted for", || failed().iter().map(Event::count).sum::<u64>() == 2000);
    let failed = failed();
    assert!(failed.len() < 50, "{}", failed.len());
    assert_eq!(failed[0].text("text"), "refused: NIC does not exist with id nobody-0-0");
    assert!(failed.iter().all(|event| event.text("request") == "nic_show"));
    assert_eq!(kinds(&all(daemon, ["a"])), ["nic-added"]);
    // A request that cannot be decoded makes an event, too.
    let text = daemon.client_ok(&["events", "--last", "1"]);
    assert!(text.contains("request-failed"), "{text}");
}

/// The numbers in all events add up to the drop counter.
#[test]
fn addresses_that_are_not_their_own() {
    let nics = [filtered("a", 1, "g"), open("b", 2), filtered("f", 3, "g")];
    let Some(mut net) = Net::new(&nics) else { return };
    let spoofed_ip =
        build::ethernet(mac(1), mac(2)).ipv4([10, 0, 0, 99], [10, 0, 0, 2]).udp(1, 2, b"x");
    let spoofed_mac = numbered(mac(77), mac(2), 1, 1, 100);
    let advertisement =
        build::ethernet(mac(1), mac(2)).ipv6(net_addr(1), net_addr(2)).icmp(134, 0, 0, &[0; 8]);
    let claimed = numbered(mac(3), mac(1), 1, 1, 100);
    for (from, frame, reason, times) in [
        ("a", &spoofed_ip, "spoofed-ip", 3),
        ("a", &spoofed_mac, "spoofed-mac", 5),
        ("a", &advertisement, "bad-discovery", 1),
        ("b", &claimed, "mac-claimed", 2),
    ] {
        for _ in 0..times {
            net.expect(from, frame, &format!("{from}.{reason}"));
        }
        let event = wait_for(net.host.daemon(), from, reason);
        assert_eq!((event.0["vni"].as_u64(), event.text("nic_id")), (Some(1), from));
    }
    // More spoofed frames for a while: the daemon does not record an event for each.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        net.expect("a", &spoofed_ip, "a.spoofed-ip");
    }
    let daemon = net.host.daemon();
    let told = || {
        all(daemon, ["a"])
            .into_iter()
            .filter(|event| event.kind() == "spoofed-ip")
            .collect::<Vec<_>>()
    };
    let frames =
        |event: &Event| event.text("text").split(' ').next().unwrap().parse::<u64>().unwrap();
    eventually("all are told", || {
        told().iter().map(frames).sum::<u64>() == net.host.show("a").drops("spoofed-ip")
    });
    assert!(told().len() <= 4, "{}", told().len());
    assert!(
        told()[0]
            .text("text")
            .ends_with("dropped: The source address is not one of the sending vnic's.")
    );
}

fn net_addr(n: u8) -> std::net::Ipv6Addr {
    butterfly_tests::net::addr6(n)
}

#[test]
fn a_table_that_fills_up() {
    let Some(mut net) = Net::with(
        &["--sessions", "64", "--session-share", "100"],
        &[open("a", 1), filtered("b", 2, "g")],
    ) else {
        return;
    };
    net.group("g", &["in udp 0-65535 10.0.0.0/24"], &[]);
    let mut refused = 0;
    for port in 1..=150 {
        let outcome = net.send("a", &v4(1, 2).udp(port, 53, b"?"));
        match outcome.as_str() {
            "b" => net.expect("b", &v4(2, 1).udp(53, port, b"!"), "a"),
            outcome => {
                assert!(outcome.ends_with(".sessions-full"), "{outcome}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    let daemon = net.host.daemon();
    let full = wait_for(daemon, "", "sessions-nearly-full");
    assert!(full.text("text").contains(" of 64 sessions"), "{}", full.0);
    let counted = |nic: &str| net.host.show(nic).drops("sessions-full");
    let nic = if counted("a") > 0 { "a" } else { "b" };
    wait_for(daemon, nic, "sessions-full");
    daemon.flush_sessions(Default::default());
    let room = wait_for(daemon, "", "sessions-room");
    assert!(
        room.seq() > full.seq() && room.text("text") == "0 of 64 sessions are in use",
        "{}",
        room.0
    );
    assert!(kinds(&all(daemon, None)).contains(&"sessions-flushed"));
}

/// An event tells that one vnic has used up its share of the session table.
#[test]
fn a_share_that_is_used_up() {
    let Some(mut net) = Net::with(
        &["--sessions", "480", "--session-share", "10"],
        &[open("a", 1), filtered("b", 2, "g")],
    ) else {
        return;
    };
    net.group("g", &["in udp 0-65535 10.0.0.0/24"], &[]);
    for port in 1..=6 {
        net.exchange("a", &v4(1, 2).udp(port, 53, b"?"), "b", &v4(2, 1).udp(53, port, b"!"));
    }
    let outcomes: Vec<String> =
        (7..=20).map(|port| net.send("a", &v4(1, 2).udp(port, 53, b"?"))).collect();
    let nic = outcomes
        .last()
        .unwrap()
        .strip_suffix(".session-share")
        .unwrap_or_else(|| panic!("{outcomes:?}"));
    let daemon = net.host.daemon();
    wait_for(daemon, nic, "session-share");
    assert!(!kinds(&all(daemon, None)).contains(&"sessions-nearly-full"));
}

/// Each change of the uplink is once in the record and once in the log.
#[test]
fn an_uplink_that_comes_and_goes() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("uplink");
    let daemon = Daemon::start_with(
        &[],
        &["--uplink".to_owned(), format!("vhost-user:{}", socket.display())],
    );
    let wire = Vm::connect(&socket, &usual(), PATIENCE).unwrap();
    wait_for(&daemon, "", "uplink-up");
    drop(wire);
    wait_for(&daemon, "", "uplink-down");
    let told = all(&daemon, None);
    assert_eq!(kinds(&told), ["daemon-started", "uplink-up", "uplink-down"]);
    for text in ["the uplink is attached", "the uplink is detached"] {
        assert_eq!(daemon.log().matches(text).count(), 1, "{}", daemon.log());
    }
}

#[test]
fn a_queue_that_its_guest_breaks() {
    let Some(host) = Host::process() else { return };
    let mut station = host.station(&Nic::bypass("a", mac(1), 7), &usual());
    let guest = &mut station.vm.guest;
    let ring = guest.tx().ring();
    let used = ring.used_idx().load(Ordering::Acquire);
    ring.avail_idx().store(used.wrapping_add(300), Ordering::Release);
    guest.tx_mut().kick();
    let event = wait_for(host.daemon(), "a", "queue-broken");
    assert!(event.text("text").starts_with("the guest's tx queue "), "{}", event.0);
    // There is still only one event.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(
        kinds(&all(host.daemon(), ["a"])).iter().filter(|kind| **kind == "queue-broken").count(),
        1
    );
    let _station = station.reboot(&usual());
    wait_for(host.daemon(), "a", "guest-detached");
}

/// A client that follows the events, with the lines that it prints.
struct Follower {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    fn start(daemon: &Daemon, words: &[&str]) -> Follower {
        let mut command = Command::new(program("butterfly"));
        command.arg("events").args(words).args(["--follow", "-e", daemon.endpoint()]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Follower { child, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line of the client")
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn who_follows_sees_events_within_a_second() {
    let Some(host) = Host::process() else { return };
    let follower = Follower::start(host.daemon(), &[]);
    let started = follower.next();
    assert!(started.contains(" #1 daemon-started "), "{started}");
    // One of five must be quick, as other programs use this machine too.
    let mut seen: Vec<Duration> = (1..=5)
        .map(|n| {
            let cause = Instant::now();
            host.daemon().ask(Daemon::nic_add(&Nic::bypass(&format!("v{n}"), mac(n), 7))).unwrap();
            let line = follower.next();
            assert!(
                line.contains(&format!(
                    " #{} nic-added            v{n} (VNI 7)  made: MAC ",
                    n + 1
                )),
                "{line}"
            );
            cause.elapsed()
        })
        .collect();
    seen.sort();
    assert!(seen[2] < Duration::from_secs(1), "{seen:?}");
    // A guest that attaches, and one that leaves.
    let late = Nic::bypass("late", mac(9), 7);
    host.daemon().ask(Daemon::nic_add(&late)).unwrap();
    let vm = Vm::connect(host.dir().join("qemu-vhost-late"), &usual(), PATIENCE).unwrap();
    for kind in ["nic-added", "guest-attached", "features-negotiated", "queues-started"] {
        let line = follower.next();
        assert!(line.contains(&format!(" {kind} ")) && line.contains(" late (VNI 7)  "), "{line}");
    }
    drop(vm);
    let line = follower.next();
    assert!(line.contains(" guest-detached "), "{line}");
}

#[test]
fn who_follows_one_vnic_hears_of_that_one() {
    let Some(host) = Host::process() else { return };
    let everything = Follower::start(host.daemon(), &["--json"]);
    let one = Follower::start(host.daemon(), &["wanted", "--since", "1"]);
    for (n, id) in ["other", "wanted", "another", "wanted-not"].into_iter().enumerate() {
        host.daemon().ask(Daemon::nic_add(&Nic::bypass(id, mac(n as u32), 7))).unwrap();
    }
    host.daemon()
        .ask(Request { nic_del: Some("wanted".to_owned()), ..Request::default() })
        .unwrap();
    assert!(one.next().contains(" #3 nic-added            wanted (VNI 7) "));
    assert!(
        one.next().contains(
            " #6 nic-removed          wanted (VNI 7)  deleted [nic_del by a local process]"
        )
    );
    let seqs: Vec<u64> =
        (0..6).map(|_| Event(serde_json::from_str(&everything.next()).unwrap()).seq()).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
}

/// A client that follows goes on with the next daemon.
#[test]
fn who_follows_goes_on_after_a_restart() {
    let Some(host) = Host::process() else { return };
    let room = tempfile::tempdir().unwrap();
    drop(host);
    let daemon = Daemon::start_in(room.path(), &[], &[]);
    let follower = Follower::start(&daemon, &[]);
    assert!(follower.next().contains(" #1 daemon-started "));
    for n in 0..3 {
        daemon.ask(Daemon::nic_add(&Nic::bypass(&format!("v{n}"), mac(n), 7))).unwrap();
        assert!(follower.next().contains("nic-added"));
    }
    drop(daemon);
    let daemon = Daemon::start_in(room.path(), &[], &[]);
    assert_eq!(follower.next(), "the daemon was restarted: numbers begin anew");
    assert!(follower.next().contains(" #1 daemon-started "));
    daemon.ask(Daemon::nic_add(&Nic::filtered("new", mac(1), 7).ips(&[&ip4(1)]))).unwrap();
    assert!(follower.next().contains(" #2 nic-added "));
}
