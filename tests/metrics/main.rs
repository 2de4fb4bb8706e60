//! A real Prometheus scrapes a real daemon: every alert fires on its trouble, and every query of
//! the dashboard finds series. A scrape of a large host is quick. See run.sh.

#![forbid(unsafe_code)]

mod prometheus;
mod small_world;

use std::{
    collections::BTreeSet,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use butterfly_layout::rehearsal::MARK;
use butterfly_tests::{
    Daemon, FAIL_POINTS, Host, Nic, eventually,
    frames::{mac, numbered},
    metrics::{Scrape, get},
    programs::{self, checked, program},
    station::usual,
};
use prometheus::{Prometheus, packaged};
use small_world::SmallWorld;

/// Alerts that only a very high load raises, which no test can make for certain, or defects of the
/// daemon. The test checks that the metrics of [`would_fire`] exist.
const NOT_HERE: [&str; 2] = ["ButterflyWorkerSaturated", "ButterflyNicHeld"];
/// Rules about metrics of daemons with a state directory, which these are not. The last five fire
/// in [`rules_about_the_daemon_itself_fire`].
const WITH_STATE: [&str; 7] = [
    "ButterflyRestartsAgainAndAgain",
    "ButterflyDegraded",
    "ButterflyChangesRefused",
    "ButterflyNotListening",
    "ButterflyHolderGone",
    "ButterflyUpgradeFailed",
    "ButterflyUpgradeUncommitted",
];

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
            let words =
                rule.query.split(|letter: char| !letter.is_ascii_alphabetic() && letter != '_');
            let metric = words.clone().find(|word| word.starts_with("butterfly_")).unwrap();
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

/// Starts a daemon with a state directory and metrics on a port, which are served or not.
fn with_state(dir: &Path, before: &[&str], port: u16, more: &[&str]) -> Daemon {
    let state = dir.join("state");
    let own = ["--state-dir", state.to_str().unwrap(), "--metrics"].map(str::to_owned);
    let address = format!("127.0.0.1:{port}");
    let more = more.iter().map(|word| word.to_string());
    let words: Vec<String> = own.into_iter().chain([address]).chain(more).collect();
    Daemon::launch(dir, before, &words)
}

/// A port that is free now, and is none that the system gives to others.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Trouble of the daemon itself raises its alert, and no other of these. The alert ends with it.
#[test]
fn rules_about_the_daemon_itself_fire() {
    let dir = tempfile::tempdir().unwrap();
    let (port, other) = (free_port(), free_port());
    let api = format!("ipc://{}/api", dir.path().display());
    let (taken, second) = (format!("tcp://127.0.0.1:{other}"), ["-e", &api]);
    let mut daemon = with_state(dir.path(), &[], port, &second).ready();
    let prometheus = Prometheus::start(daemon.metrics());
    let rules = prometheus.rules();
    let firing = || {
        let ours = rules.iter().filter(|rule| WITH_STATE[1..].contains(&&*rule.name));
        let firing = ours.filter(|rule| !prometheus.query(&rule.query).is_empty());
        firing.map(|rule| &*rule.name).collect::<Vec<_>>()
    };
    let fires = |names: &[&str]| eventually(&format!("{names:?} fire"), || firing() == names);
    let die = |daemon: &mut Daemon| {
        daemon.kill();
        daemon.wait_for_end();
    };
    fires(&[]);

    // A program that is none.
    let room = tempfile::Builder::new().prefix("butterfly-test-").tempdir_in("/var/lib").unwrap();
    let failing = room.path().join("failing");
    programs::write(&failing, &std::fs::read("/bin/false").unwrap());
    let failed = daemon.client(&["upgrade", failing.to_str().unwrap()]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    fires(&["ButterflyUpgradeFailed"]);
    daemon.client_ok(&["upgrade"]);
    fires(&[]);

    // A release that knows the next layout.
    let next = room.path().join("next");
    let mut whole = std::fs::read(checked("butterflyd")).unwrap();
    whole.extend(format!("{MARK}layout=2\n").into_bytes());
    programs::write(&next, &whole);
    daemon.client_ok(&["upgrade", next.to_str().unwrap()]);
    fires(&["ButterflyUpgradeUncommitted"]);
    daemon.client_ok(&["upgrade", program("butterflyd").to_str().unwrap()]);
    fires(&[]);

    // An endpoint that somebody has.
    die(&mut daemon);
    let somebody = TcpListener::bind(("127.0.0.1", other)).unwrap();
    daemon = with_state(dir.path(), &[], port, &[&second[..], &["-e", &taken]].concat()).ready();
    fires(&["ButterflyNotListening"]);
    let shown = daemon.client_ok(&["show"]);
    assert!(shown.contains(&format!("  not listened on: {taken}: ")), "{shown}");
    drop(somebody);
    fires(&[]);

    // Metrics whose place somebody has.
    die(&mut daemon);
    let other = free_port();
    let somebody = TcpListener::bind(("127.0.0.1", other)).unwrap();
    daemon = with_state(dir.path(), &[], other, &second).ready();
    let shown = daemon.client_ok(&["show"]);
    assert!(
        shown.contains(&format!("  not listened on: metrics on 127.0.0.1:{other}: ")),
        "{shown}"
    );
    drop(somebody);
    daemon.signal("HUP");
    eventually("metrics are served", || !daemon.client_ok(&["show"]).contains("not listened on"));

    // A store that cannot be used.
    die(&mut daemon);
    let (store, aside) = (dir.path().join("state/declared.redb"), dir.path().join("aside"));
    std::fs::rename(&store, &aside).unwrap();
    std::fs::create_dir(&store).unwrap();
    daemon = with_state(dir.path(), &[], port, &second).ready();
    fires(&["ButterflyChangesRefused"]);
    die(&mut daemon);
    std::fs::remove_dir(&store).unwrap();
    std::fs::rename(&aside, &store).unwrap();

    // Three starts that come to nothing, by a store that ends each.
    let armed = ["prlimit", "--core=0", "--", "env", FAIL_POINTS];
    daemon = with_state(dir.path(), &armed, port, &second).ready();
    daemon.client_ok(&["sg", "add", "poison-store"]);
    die(&mut daemon);
    eventually("one stays", || {
        daemon = with_state(dir.path(), &armed, port, &second);
        daemon.comes_up() && daemon.client_ok(&["show"]).contains("degraded")
    });
    fires(&["ButterflyDegraded"]);

    // Nobody holds connections for the next daemon.
    let shown: serde_json::Value =
        serde_json::from_str(&daemon.client_ok(&["show", "--json"])).unwrap();
    let holder = shown["holder"]["pid"].as_i64().unwrap() as i32;
    let holder = rustix::process::Pid::from_raw(holder).unwrap();
    rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
    eventually("it is told", || daemon.client_ok(&["show"]).contains(": gone"));
    fires(&["ButterflyDegraded", "ButterflyHolderGone"]);
    daemon.quit();
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

/// Documents name metrics and alerts that exist.
#[test]
fn documents_name_what_there_is() {
    let docs = prometheus::path("../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
    let rules = packaged("prometheus/butterfly-rules.yml");
    let (pages, metrics) = (["metrics.md", "operations.md", "reliability.md"], read("metrics.md"));
    let mut found = 0;
    for page in pages {
        let text = read(page);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words {
            let is_alert = word.strip_prefix("Butterfly").is_some_and(|rest| !rest.is_empty());
            let is_metric = word.strip_prefix("butterfly_").is_some_and(|rest| {
                !rest.is_empty()
                    && rest.bytes().all(|letter| letter.is_ascii_lowercase() || letter == b'_')
            });
            let exists = match (is_alert, is_metric) {
                (true, _) => rules.contains(&format!("- alert: {word}\n")),
                (_, true) => metrics.contains(&format!("\n| `{word}` | ")),
                _ => continue,
            };
            assert!(exists, "{page} names {word}");
            found += 1;
        }
    }
    assert!(found > 50, "{found}");
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
