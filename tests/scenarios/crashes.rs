//! Random changes of what is declared, and crashes at random moments: of the daemon, of the store's
//! writer, of both, of all processes at once.
//!
//! The model is a daemon that never dies and gets each change that was answered. After each crash
//! both must declare the same: every answered change is there, one without an answer is there whole
//! or not at all.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use butterfly_api::proto::{ApplyReq, Nic, NicUpdateReq, Request, Sg, TunnelPeer, nic};
use butterfly_tests::{Daemon, PATIENCE, eventually, frames::mac, groups};
use fastrand::Rng;
use protobuf::MessageField;

use crate::lasting::{Place, kill, processes_with};

/// Ids of vnics, names of groups, members and peers there may be.
const NICS: u32 = 8;
const GROUPS: u32 = 4;
const PEERS: u32 = 5;
/// Steps between two crashes, on average.
const STEPS: u32 = 12;

/// A random list of names.
fn some(random: &mut Rng, most: u32, name: impl Fn(u32) -> String) -> Vec<String> {
    (0..most).filter(|_| random.u32(..3) == 0).map(name).collect()
}

fn group(n: u32) -> String {
    format!("g{n}")
}

fn vnic(random: &mut Rng) -> Nic {
    let n = random.u32(..NICS);
    let mut vnic = Nic {
        id: Some(format!("n{n}")),
        mac: Some(mac(0x100 + random.u32(..2) * 0x10 + n).to_string()),
        vni: Some(1 + random.u32(..2)),
        ip: some(random, 3, |ip| format!("10.{n}.0.{}", ip + 1)),
        security_group: some(random, GROUPS, group),
        ..Nic::default()
    };
    if random.u32(..4) == 0 {
        vnic.set_type(nic::Type::VHOST_USER_CLIENT);
    }
    if random.u32(..4) == 0 {
        vnic.bypass_filtering = Some(true);
    }
    if random.u32(..4) == 0 {
        vnic.ip_anti_spoof = Some(true);
    }
    vnic
}

fn rule(random: &mut Rng) -> String {
    let direction = if random.bool() { "in" } else { "out" };
    let peer = match random.u32(..3) {
        0 => format!("@{}", group(random.u32(..GROUPS))),
        n => format!("10.{n}.0.0/16"),
    };
    format!("{direction} tcp {} {peer}", random.u32(1..5))
}

fn whole_group(random: &mut Rng) -> Sg {
    let rules: Vec<String> = (0..random.u32(..4)).map(|_| rule(random)).collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let members = some(random, 3, |n| format!("10.0.0.{n}"));
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let request = groups::group_set(&group(random.u32(..GROUPS)), &rules, &members);
    request.sg_add.unwrap_or_default()
}

fn peer(random: &mut Rng) -> TunnelPeer {
    let vni = (random.u32(..3) == 0).then(|| 1 + random.u32(..2));
    let address = format!("42.0.0.{}", 10 + random.u32(..PEERS));
    TunnelPeer { address: Some(address), vni, ..TunnelPeer::default() }
}

/// A random change. It may be one that is refused.
fn change(random: &mut Rng) -> Request {
    let name = group(random.u32(..GROUPS));
    let id = format!("n{}", random.u32(..NICS));
    match random.u32(..20) {
        0..5 => Request { nic_add: MessageField::some(vnic(random)), ..Request::default() },
        5..7 => Request { nic_del: Some(id), ..Request::default() },
        7..9 => {
            let update = NicUpdateReq {
                id: Some(id),
                ip: some(random, 3, |n| format!("10.9.{n}.1")),
                security_group: some(random, GROUPS, group),
                ip_anti_spoof: random.bool().then(|| random.bool()),
                ..NicUpdateReq::default()
            };
            Request { nic_update: MessageField::some(update), ..Request::default() }
        }
        9..11 => Request { sg_add: MessageField::some(whole_group(random)), ..Request::default() },
        11 => groups::group_del(&name),
        12 => groups::rule_add(&name, &rule(random)),
        13 => groups::rule_del(&name, &rule(random)),
        14 => groups::member_add(&name, &format!("10.0.0.{}", random.u32(..3))),
        15 => groups::member_del(&name, &format!("10.0.0.{}", random.u32(..3))),
        16 => Request { peer_add: MessageField::some(peer(random)), ..Request::default() },
        17 => Request { peer_del: MessageField::some(peer(random)), ..Request::default() },
        _ => {
            let mut apply = ApplyReq { prune: Some(random.u32(..3) == 0), ..ApplyReq::default() };
            (0..random.u32(..5)).for_each(|_| apply.nic.push(vnic(random)));
            (0..random.u32(..3)).for_each(|_| apply.security_group.push(whole_group(random)));
            (0..random.u32(..3)).for_each(|_| apply.peer.push(peer(random)));
            Request { apply: MessageField::some(apply), ..Request::default() }
        }
    }
}

/// Processes that a crash ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    Daemon,
    Writer,
    Both,
    /// The holder, too: only the store is left, as after a loss of power.
    All,
}

/// A device of this host's own names.
fn tap() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("mo{}x{}", std::process::id() % 100_000, COUNT.fetch_add(1, Relaxed))
}

/// A daemon on a state that dies again and again, and one that does not.
struct Both {
    place: Place,
    options: Vec<String>,
    daemon: Option<Daemon>,
    model: Daemon,
    /// Answered, refused, unanswered changes; of these, those that are there.
    counts: [u64; 4],
}

impl Both {
    fn start() -> Option<Both> {
        let place = Place::new()?;
        let uplink = || ["--uplink".to_owned(), format!("tap:{}", tap())];
        let mut options = place.options();
        options.extend(uplink());
        let daemon = Daemon::start_in(place.0.path(), &[], &options);
        let model = Daemon::start_with(&[], &uplink());
        Some(Both { place, options, daemon: Some(daemon), model, counts: [0; 4] })
    }

    fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("it runs")
    }

    fn writer(&self) -> Option<u32> {
        let state = self.place.state();
        processes_with(&["--write-store", state.to_str()?]).first().copied()
    }

    /// Kills, and starts what does not start by itself.
    fn crash(&mut self, crash: Crash) {
        if crash == Crash::All {
            // The holder first: it must not notice.
            self.place.holder().into_iter().for_each(kill);
        }
        if crash != Crash::Daemon {
            self.writer().into_iter().for_each(kill);
        }
        if crash != Crash::Writer {
            self.daemon().kill();
            self.daemon().wait_for_end();
        }
    }

    fn go_on(&mut self, crash: Crash) {
        if crash != Crash::Writer {
            if crash == Crash::All {
                eventually("the holder is gone", || self.place.holder().is_none());
            }
            self.daemon = Some(Daemon::start_in(self.place.0.path(), &[], &self.options));
        }
    }

    /// Everything declared, as text. The store does not keep the order of peers, which means
    /// nothing.
    fn dump(daemon: &Daemon) -> String {
        let dir = daemon.dir().display().to_string();
        let text = daemon.client_ok(&["dump"]).replace(&dir, "DIR");
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let text = lines.join("\n");
        let mut objects: Vec<_> = text.split("messages {").collect();
        objects.sort_unstable();
        objects.concat()
    }

    /// Fails unless both declare the same.
    fn same(&mut self, after: &str) {
        let (is, should_be) = (Both::dump(self.daemon()), Both::dump(&self.model));
        assert!(is == should_be, "{after}: declared is\n{is}\nand should be\n{should_be}");
    }

    /// Makes a change, and crashes meanwhile if that is wanted, after some time.
    fn step(&mut self, request: &Request, crash: Option<(Crash, Duration)>) {
        let endpoint = self.daemon().endpoint().to_owned();
        let answer = std::thread::scope(|scope| {
            let patience = if crash.is_some() { Duration::from_secs(1) } else { PATIENCE };
            let asked = scope.spawn(move || Daemon::try_ask(&endpoint, patience, request.clone()));
            if let Some((crash, after)) = crash {
                std::thread::sleep(after);
                self.crash(crash);
            }
            asked.join().expect("no panic")
        });
        if let Some((crash, _)) = crash {
            self.go_on(crash);
        }
        // In the moment between two deaths: the writer's or the holder's, and the daemon's.
        let not_kept = |why: &str| {
            ["not kept", "the store failed", "the holder"].iter().any(|it| why.contains(it))
        };
        match answer {
            Ok(Ok(_)) => {
                self.counts[0] += 1;
                self.model.ask(request.clone()).expect("what was carried out is valid");
            }
            Ok(Err(why)) if not_kept(&why) => self.counts[1] += 1,
            Ok(Err(why)) => {
                self.counts[1] += 1;
                let refused = self.model.ask(request.clone());
                assert_eq!(refused.map(drop), Err(why.clone()), "{request}");
            }
            Err(_) => {
                assert!(crash.is_some(), "no answer, and nobody died: {request}");
                self.counts[2] += 1;
                // There whole, or not at all.
                if Both::dump(self.daemon()) != Both::dump(&self.model) {
                    self.counts[3] += 1;
                    self.model.ask(request.clone()).expect("what was carried out is valid");
                }
            }
        }
        if crash.is_some() {
            self.same(&format!("after {crash:?} and {request}"));
            self.keeps_changes();
        }
    }

    /// Waits until changes are kept again: a writer that died is started again.
    fn keeps_changes(&mut self) {
        let daemon = self.daemon.as_ref().expect("it runs");
        eventually("changes are kept again", || {
            let request = groups::group_set("again", &[], &[]);
            daemon.ask(request).is_ok() && daemon.ask(groups::group_del("again")).is_ok()
        });
    }
}

/// Makes so many changes, with crashes.
fn changes_and_crashes(steps: u64) {
    let Some(mut both) = Both::start() else { return };
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let begun = Instant::now();
    let mut crashes = 0;
    for _ in 0..steps {
        let request = change(&mut random);
        let crash = (random.u32(..STEPS) == 0).then(|| {
            let kinds = [Crash::Daemon, Crash::Daemon, Crash::Writer, Crash::Both, Crash::All];
            let after = Duration::from_micros(random.u64(..2500));
            (*random.choice(&kinds).expect("some"), after)
        });
        crashes += u64::from(crash.is_some());
        both.step(&request, crash);
    }
    both.same("at the end");
    let [answered, refused, silent, there] = both.counts;
    println!(
        "{steps} changes with {crashes} crashes in {:.0} s: {answered} carried out, {refused} \
         refused, {silent} without an answer, of which {there} are there",
        begun.elapsed().as_secs_f64()
    );
    both.daemon().quit();
}

#[test]
fn what_is_declared_survives_crashes_at_random_moments() {
    changes_and_crashes(300);
}

#[test]
#[ignore = "long: 10,000 changes with some 800 crashes"]
fn what_is_declared_survives_many_crashes_at_random_moments() {
    changes_and_crashes(10_000);
}
