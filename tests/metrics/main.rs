//! A real Prometheus scrapes a real daemon: every alert fires on its trouble, and every query of
//! the dashboard finds series. A scrape of a large host is quick. See run.sh.

#![forbid(unsafe_code)]

mod prometheus;
mod small_world;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use butterfly_tests::{
    Daemon, Host, Nic, eventually,
    frames::{mac, numbered},
    metrics::{Scrape, get},
    station::usual,
};
use prometheus::{Prometheus, packaged};
use small_world::SmallWorld;

/// Alerts that only a very high load raises, which no test can make for certain, or defects of the
/// daemon. The test checks that the metrics of [`would_fire`] exist.
const NOT_HERE: [&str; 2] = ["ButterflyWorkerSaturated", "ButterflyNicHeld"];
/// Rules about metrics of daemons with a state directory, which these are not.
const WITH_STATE: [&str; 1] = ["ButterflyRestartsAgainAndAgain"];

/// No alert fires on a healthy daemon; all fire on one in trouble.
#[test]
fn rules_and_dashboard_mean_something() {
    let mut world = SmallWorld::new();
    let prometheus = Prometheus::start(world.host.daemon().metrics());
    world.talk();
    prometheus.scrapes_twice_more();
    let rules = prometheus.rules();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in &rules {
        for annotation in ["summary", "description", "runbook"] {
            assert!(!rule.annotation(annotation).is_empty(), "{} has no {annotation}", rule.name);
        }
        let firing = prometheus.query(&rule.query);
        assert!(firing.is_empty(), "{} fires though all is well: {firing:?}", rule.name);
    }

    world.trouble(|| prometheus.scrapes_twice_more());
    prometheus.scrapes_twice_more();
    let after: BTreeSet<&str> = ["ButterflyDown", "ButterflyRestarted"].into();
    for rule in rules.iter().filter(|rule| !after.contains(&*rule.name)) {
        if WITH_STATE.contains(&&*rule.name) {
            let metric = rule.query.split(['(', '[']).nth(1).unwrap_or_default();
            assert!(include_str!("../../docs/metrics.md").contains(metric), "{metric}");
            continue;
        }
        let firing = prometheus.query(&rule.query);
        if NOT_HERE.contains(&&*rule.name) {
            assert!(
                !prometheus.query(would_fire(&rule.query)).is_empty(),
                "{}: its metrics do not exist",
                rule.name
            );
        } else {
            assert!(!firing.is_empty(), "{} does not fire: {}", rule.name, rule.query);
        }
    }
    let dashboard = packaged("grafana/butterfly.json");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let (mut queries, mut empty) = (0, Vec::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            if prometheus.query(&filled_in(query)).is_empty() {
                empty.push(format!("panel {}: {query}", panel["title"]));
            }
            queries += 1;
        }
    }
    assert!(empty.is_empty(), "these have no series: {empty:#?}");
    assert!(queries > 40, "{queries}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let (selector, label) = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "))
            .unwrap();
        let values = prometheus.query(&format!("count by ({label}) ({})", filled_in(selector)));
        assert!(!values.is_empty(), "variable {}: {query} has no values", variable["name"]);
    }

    let metrics = world.host.daemon().metrics();
    world.end();
    let rule = |name: &str| rules.iter().find(|rule| rule.name == name).unwrap();
    eventually("Prometheus sees that the daemon is gone", || {
        !prometheus.query(&rule("ButterflyDown").query).is_empty()
    });
    let again = Daemon::start_with(&[], &["--metrics".to_owned(), metrics.to_string()]);
    eventually("Prometheus sees that it was restarted", || {
        !prometheus.query(&rule("ButterflyRestarted").query).is_empty()
    });
    eventually("and that it is there", || {
        prometheus.query(&rule("ButterflyDown").query).is_empty()
    });
    drop(again);
}

/// Returns the left side of a comparison with a threshold.
fn would_fire(query: &str) -> &str {
    let parts = query.rsplit_once(" > ").or_else(|| query.rsplit_once(" == "));
    parts.unwrap_or_else(|| panic!("no threshold: {query}")).0
}

/// Returns a query of the dashboard as Grafana sends it when everything is selected.
fn filled_in(query: &str) -> String {
    let query = query.replace("$__rate_interval", "1m").replace("$job", "butterfly");
    let query = ["$instance", "$vni", "$nic"]
        .iter()
        .fold(query, |query, variable| query.replace(variable, ".*"));
    assert!(!query.contains('$'), "{query}");
    query
}

/// Prometheus' own tool checks the format and the names.
#[test]
fn promtool_finds_nothing_wrong() {
    let mut world = SmallWorld::new();
    world.talk();
    let (_, page) = get(world.host.daemon().metrics(), "/metrics").unwrap();
    prometheus::promtool(&["check", "metrics"], &page);
    prometheus::promtool(
        &["check", "rules", prometheus::path("prometheus/butterfly-rules.yml").to_str().unwrap()],
        "",
    );
    world.end();
}

/// The alert for drops leaves out every harmless reason, and only reasons that exist.
#[test]
fn harmless_drops_raise_no_alert() {
    let rules =
        std::fs::read_to_string(prometheus::path("prometheus/butterfly-rules.yml")).unwrap();
    let (_, rest) = rules.split_once("butterfly_drops_total{reason!~\"").unwrap();
    let left_out: Vec<&str> = rest.split_once('"').unwrap().0.split('|').collect();
    let names: Vec<&str> = butterfly_datapath::reasons().map(|info| info.name).collect();
    for reason in butterfly_datapath::reasons().filter(|info| info.harmless) {
        assert!(left_out.contains(&reason.name), "{}", reason.name);
    }
    for name in left_out {
        assert!(names.contains(&name), "no reason is called {name}");
    }
}

/// Bounds the processor time of the thread that serves metrics, as other programs use the machine
/// too.
#[test]
fn a_thousand_nics_are_scraped_quickly() {
    const NICS: u32 = 1_000;
    const LIMIT: Duration = Duration::from_millis(50);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    )
    .unwrap();
    let host =
        Host::of(Daemon::start_with(&[], &["--metrics".to_owned(), "127.0.0.1:0".to_owned()]));
    let daemon = host.daemon();
    let mut sender = host.station(&Nic::bypass("sender", mac(0), 1), &usual());
    let adds = (1..NICS).map(|n| {
        Daemon::nic_add(&Nic::bypass(
            &format!("nic-with-a-name-of-usual-length-{n}"),
            mac(n),
            1 + n % 100,
        ))
    });
    assert!(daemon.ask_all(adds.collect()).iter().all(Result::is_ok));
    // Each vnic of the sender's network has a drop (`not-attached`), others have none.
    sender.send(&numbered(mac(0), butterfly_packet::mac::Mac::BROADCAST, 1, 1, 60));
    host.settle(&mut [&mut sender]);
    eventually("everybody is there", || {
        Scrape::of(daemon).starting("butterfly_nic_attached{").count() == NICS as usize
    });
    let scrapes = 10;
    let spent = || daemon.cpu_time_of("metrics");
    let (before, mut fastest) = (spent(), Duration::MAX);
    for _ in 0..scrapes {
        // Longer than the daemon reuses a page.
        std::thread::sleep(Duration::from_millis(500));
        let begun = Instant::now();
        assert_eq!(get(daemon.metrics(), "/metrics").unwrap().0, 200);
        fastest = fastest.min(begun.elapsed());
    }
    let each = (spent() - before) / scrapes;
    println!("{NICS} nics: a scrape takes {each:?} of a processor; the fastest took {fastest:?}");
    assert!(each < LIMIT && fastest < LIMIT, "{each:?}, {fastest:?}");
}
