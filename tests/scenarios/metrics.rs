//! The metrics for Prometheus agree with what guests sent and received, packet for packet, and with
//! the client.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use butterfly_api::proto::Request;
use butterfly_guest_driver::{GuestConfig, Refill};
use butterfly_packet::{
    build,
    mac::Mac,
    tcp::{ACK, SYN},
};
use butterfly_tests::{
    Daemon, Host, Kind, Nic, Station, eventually,
    frames::{Choices, mac, numbered},
    metrics::{Scrape, get},
    net::{Net, filtered, open, segment, v4},
    station::{features, machine, usual},
};
use serde_json::Value;

const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];

fn daemon(more: &[&str]) -> Option<Host> {
    if Kind::wanted() != Kind::Daemon {
        println!("skipped: it needs a daemon");
        return None;
    }
    let options: Vec<String> = METRICS.iter().chain(more).map(|word| (*word).to_owned()).collect();
    Some(Host::of(Daemon::start_with(&[], &options)))
}

fn show(daemon: &Daemon, id: &str) -> Value {
    serde_json::from_str(&daemon.client_ok(&["nic", "show", id, "--json"])).unwrap()
}

/// Asserts that the client and Prometheus have the same numbers for a vnic.
#[track_caller]
fn agree(scrape: &Scrape, shown: &Value) {
    let (id, vni) = (shown["id"].as_str().unwrap(), shown["vni"].as_u64().unwrap());
    let own = format!("{{nic=\"{id}\",vni=\"{vni}\"}}");
    for (metric, field) in [
        ("in_packets_total", "in_packets"),
        ("in_bytes_total", "in_bytes"),
        ("out_packets_total", "out_packets"),
        ("out_bytes_total", "out_bytes"),
        ("flooded_packets_total", "flooded"),
        ("learn_refused_packets_total", "learn_refused"),
        ("attachments_total", "attach_count"),
    ] {
        assert_eq!(
            Some(scrape.count(&format!("butterfly_nic_{metric}{own}"))),
            shown[field].as_u64(),
            "{id}: {metric}"
        );
    }
    assert_eq!(
        scrape.count(&format!("butterfly_nic_attached{own}")) == 1,
        shown["attached"].as_bool().unwrap(),
        "{id}"
    );
    let drops = shown["drops"].as_array().unwrap().iter();
    let drops = drops.map(|drop| {
        (format!("{}\"}}", drop["reason"].as_str().unwrap()), drop["count"].as_f64().unwrap())
    });
    let happened: BTreeMap<String, f64> = drops.filter(|(_, count)| *count > 0.0).collect();
    let start = format!("butterfly_nic_drops_total{{nic=\"{id}\",vni=\"{vni}\",reason=\"");
    let told: BTreeMap<String, f64> =
        scrape.starting(&start).map(|(reason, count)| (reason.to_owned(), count)).collect();
    assert_eq!(told, happened, "{id}");
}

#[test]
fn metrics_are_what_guests_sent_and_received() {
    let Some(host) = daemon(&[]) else { return };
    let mut slow = machine(features::LINUX, 9000);
    slow.guest = GuestConfig { refill: Refill::Manually, ..slow.guest }.rings(32);
    let mut stations = Vec::new();
    for vni in [1, 2] {
        for (nic, config) in [
            (Nic::bypass("open", mac(1), vni), &usual()),
            (Nic::bypass("slow", mac(2), vni), &slow),
            (Nic::filtered("filtered", mac(3), vni), &usual()),
        ] {
            stations.push(host.station(&Nic { id: format!("{vni}-{}", nic.id), ..nic }, config));
        }
        host.add(&Nic::bypass(&format!("{vni}-empty"), mac(4), vni)).unwrap();
    }
    let mut choices = Choices::new(2);
    let mut sent = vec![(0u64, 0u64); stations.len()];
    let mut received = sent.clone();
    let take = |n: usize, station: &mut Station, received: &mut Vec<(u64, u64)>| {
        for frame in station.pending() {
            received[n] = (received[n].0 + 1, received[n].1 + frame.len() as u64);
        }
        station.vm.guest.refill(usize::MAX);
    };
    for number in 0..3_000 {
        let n = choices.below(stations.len());
        let (own, len) = (stations[n].mac(), choices.between(60, 2000));
        let frame = match choices.below(8) {
            // Also with source addresses of others.
            0 => numbered(mac(choices.between(1, 4) as u32), mac(2), 1, number, len),
            1 => numbered(own, Mac::BROADCAST, 1, number, len),
            2 => build::ethernet(own, mac(3))
                .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
                .udp(1, 2, b"refused"),
            _ => numbered(own, mac(choices.between(1, 4) as u32), 1, number, len),
        };
        stations[n].send(&frame);
        sent[n] = (sent[n].0 + 1, sent[n].1 + frame.len() as u64);
        // The slow guests take frames so rarely that their rings always fill up.
        let takes = |n: usize| number % if n % 3 == 1 { 1000 } else { 100 } == 0;
        let due = stations.iter_mut().enumerate().filter(|(n, _)| takes(*n));
        due.for_each(|(n, station)| take(n, station, &mut received));
    }
    host.settle(&mut stations.iter_mut().collect::<Vec<_>>());
    stations.iter_mut().enumerate().for_each(|(n, station)| take(n, station, &mut received));

    let daemon = host.daemon();
    let total: u64 = sent.iter().map(|(packets, _)| packets).sum();
    // The daemon reuses a page for some milliseconds.
    eventually("the page is of now", || {
        Scrape::of(daemon).of_workers("packets_total", "") == total
    });
    let scrape = Scrape::of(daemon);
    for (n, station) in stations.iter().enumerate() {
        let of = |metric: &str| {
            scrape.count(&format!(
                "butterfly_nic_{metric}_total{{nic=\"{}\",vni=\"{}\"}}",
                station.nic.id, station.nic.vni
            ))
        };
        assert_eq!((of("in_packets"), of("in_bytes")), sent[n], "{}", station.nic.id);
        assert_eq!((of("out_packets"), of("out_bytes")), received[n], "{}", station.nic.id);
    }
    host.ids().iter().for_each(|id| agree(&scrape, &show(daemon, id)));

    // The host's drops are the sum of all vnics'.
    let mut drops: BTreeMap<String, f64> = BTreeMap::new();
    for id in host.ids() {
        for (reason, count) in host.show(&id).dropped() {
            *drops.entry(format!("{reason}\"}}")).or_default() += count as f64;
        }
    }
    for reason in ["ring-full", "not-attached", "spoofed-mac", "ingress-denied"] {
        assert!(drops.contains_key(&format!("{reason}\"}}")), "no {reason}");
    }
    let told = |scrape: &Scrape| -> BTreeMap<String, f64> {
        let all = scrape
            .starting("butterfly_drops_total{reason=\"")
            .map(|(reason, count)| (reason.to_owned(), count));
        all.filter(|(_, count)| *count > 0.0).collect()
    };
    assert_eq!(told(&scrape), drops);
    let buckets = scrape.of_workers("batch_packets_bucket", ",le=\"+Inf\"");
    assert_eq!(buckets, scrape.of_workers("batches_total", ""));
    assert_eq!(scrape.of_workers("batch_packets_sum", ""), total);
    assert_eq!(scrape.count("butterfly_network_nics{vni=\"2\"}"), 4);
    assert_eq!(scrape.count("butterfly_policy_updates_total{kind=\"nic-added\"}"), 8);
    assert_eq!(
        scrape.count("butterfly_api_requests_total{request=\"nic_add\",outcome=\"success\"}"),
        8
    );

    // A removed vnic has no series, and the host keeps its drops.
    host.remove("1-slow");
    eventually("a nic that is gone has no series", || {
        Scrape::of(daemon).starting("butterfly_nic_sessions{nic=\"1-slow\"").next().is_none()
    });
    assert_eq!(told(&Scrape::of(daemon)), drops);
    let output = daemon.client(&["nic", "show", "1-slow"]);
    assert!(!output.status.success());
    eventually("the refusal is counted", || {
        Scrape::of(daemon)
            .count("butterfly_api_requests_total{request=\"nic_show\",outcome=\"failure\"}")
            > 0
    });
}

#[test]
fn sessions_are_counted_by_state() {
    let options = [&METRICS[..], &["--tcp-pickup", "0"]].concat();
    let Some(mut net) = Net::with(&options, &[open("a", 1), filtered("b", 2, "web")]) else {
        return;
    };
    net.group("web", &["in tcp 80 0.0.0.0/0", "in udp 53 0.0.0.0/0"], &[]);
    let (there, back) = (v4(1, 2), v4(2, 1));
    net.expect("a", &there.tcp(&segment((5000, 80), SYN, 100, 0), b""), "b");
    net.expect("b", &back.tcp(&segment((80, 5000), SYN | ACK, 900, 101), b""), "a");
    net.expect("a", &there.tcp(&segment((5000, 80), ACK, 101, 901), b""), "b");
    net.expect("a", &there.tcp(&segment((5001, 80), SYN, 100, 0), b""), "b");
    for port in 0..3 {
        net.exchange("a", &there.udp(6000 + port, 53, b"?"), "b", &back.udp(53, 6000 + port, b"!"));
    }
    net.expect("a", &there.udp(7000, 53, b"?"), "b");
    let daemon = net.host.daemon();
    let states = || -> Vec<(String, u64)> {
        let scrape = Scrape::of(daemon);
        let states = scrape.starting("butterfly_sessions{").filter(|(_, count)| *count > 0.0);
        states.map(|(state, count)| (state.replace(['"', '}'], ""), count as u64)).collect()
    };
    let expected =
        [("tcp", "established", 1), ("tcp", "new", 1), ("udp", "answered", 3), ("udp", "new", 1)];
    let expected: Vec<_> = expected
        .map(|(protocol, state, count)| (format!("protocol={protocol},state={state}"), count))
        .into();
    eventually("a sweep counted them", || states() == expected);
    let scrape = Scrape::of(daemon);
    assert_eq!(scrape.count("butterfly_session_table_used"), 6);
    assert_eq!(scrape.count("butterfly_nic_sessions{nic=\"b\",vni=\"1\"}"), 6);
    assert_eq!(scrape.count("butterfly_network_sessions{vni=\"1\"}"), 6);
    daemon.client_ok(&["sessions", "--flush"]);
    eventually("a sweep found none", || states().is_empty());
    assert_eq!(Scrape::of(daemon).count("butterfly_session_table_used"), 0);
}

/// A scrape does not wake the worker, and does not wait for a slow API request.
#[test]
fn a_scrape_wakes_no_worker_and_waits_for_no_request() {
    let Some(host) = daemon(&[]) else { return };
    let (mut a, mut b) = (
        host.station(&Nic::bypass("a", mac(1), 1), &usual()),
        host.station(&Nic::bypass("b", mac(2), 1), &usual()),
    );
    a.send(&numbered(mac(1), mac(2), 1, 1, 60));
    b.receive();
    host.settle(&mut [&mut a, &mut b]);
    let daemon = host.daemon();
    eventually("the worker sleeps", || host.work().active_rings == 0);
    let before = host.work();
    for _ in 0..20 {
        Scrape::of(daemon);
    }
    let after = host.work();
    assert_eq!((before.sleeps, before.busy_cycles), (after.sleeps, after.busy_cycles));

    // A slow request: a batch of vnics, each of which waits for the worker and opens a socket.
    let address = daemon.metrics();
    let adds: Vec<Request> = (0..400)
        .map(|n| Daemon::nic_add(&Nic::bypass(&format!("n{n}"), mac(100 + n), 2)))
        .collect();
    let nics = |scrape: &Scrape| scrape.get("butterfly_network_nics{vni=\"2\"}").unwrap_or(0.0);
    std::thread::scope(|scope| {
        let request = scope.spawn(|| {
            let begun = Instant::now();
            assert!(daemon.ask_all(adds).iter().all(Result::is_ok));
            begun.elapsed()
        });
        let (mut during, mut slowest) = (0, Duration::ZERO);
        loop {
            let begun = Instant::now();
            let (status, page) = get(address, "/metrics").unwrap();
            assert_eq!(status, 200);
            match nics(&Scrape::read(&page)) {
                0.0 => {}
                400.0 => break,
                _ => {
                    during += 1;
                    slowest = slowest.max(begun.elapsed());
                }
            }
        }
        let took = request.join().unwrap();
        assert!(during > 3, "{during} scrapes while a request took {took:?}");
        assert!(slowest < took / 3, "a scrape took {slowest:?} while a request took {took:?}");
    });
}

#[test]
fn a_port_that_is_taken_is_a_start_error() {
    let Some(host) = daemon(&[]) else { return };
    let address = host.daemon().metrics().to_string();
    let dir = tempfile::tempdir().unwrap();
    let mut other = Daemon::launch(dir.path(), &[], &["--metrics".to_owned(), address.clone()]);
    assert_eq!(other.wait_for_end().code(), Some(1));
    let expected = format!("butterflyd: cannot serve metrics on {address}: Address already in use");
    assert!(other.log().contains(&expected), "{}", other.log());
}
