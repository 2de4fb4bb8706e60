//! Kills: the daemon dies under traffic, and another one goes on.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use butterfly_tests::{
    Daemon, Host,
    groups::group_set,
    pairs::{GROUP, Pair, Plan, nic},
};

use crate::Options;

/// Most frames that one death costs: the batch of the only worker.
const BATCH: u64 = 64;
/// Time until traffic goes on after a kill, at the very most.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(dir: &Path, options: &Options) -> Daemon {
    let state = dir.join("state");
    let words = [
        "--state-dir".to_owned(),
        state.display().to_string(),
        "--sessions".to_owned(),
        (options.sessions * 3).max(10_000).to_string(),
        "--session-share".to_owned(),
        "100".to_owned(),
    ];
    Daemon::launch(dir, &[], &words)
}

/// Runs the rounds. Returns how long traffic stood still in each: the longest of all pairs.
pub fn run(options: &Options, seed: u64) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(seed);
    let room = tempfile::tempdir().expect("a directory");
    let mut host = Host::of(start(room.path(), options).ready());
    let filtered = options.sessions > 0;
    if filtered {
        let rules = ["in udp 1-65535 10.77.0.0/16"];
        host.daemon().ask(group_set(GROUP, &rules, &[])).expect("a group");
    }
    for pair in 0..options.pairs {
        for end in 0..2 {
            host.add(&nic(pair, end, filtered)).expect("a vnic");
        }
    }
    let flows = options.sessions / options.pairs.max(1) / 2;
    let plan = Plan::flows(flows);
    let mut pairs: Vec<Pair> =
        (0..options.pairs).map(|pair| Pair::attach(room.path(), pair, &plan)).collect();
    // Until every flow has its session.
    let begun = Instant::now();
    while pairs.iter().any(|pair| pair.arrived().iter().any(|n| *n < 2 * flows as u64)) {
        pairs.iter_mut().for_each(Pair::turn);
        assert!(begun.elapsed() < PATIENCE * 6, "traffic does not begin");
    }
    println!("ready after {:.1} s", begun.elapsed().as_secs_f64());
    let mut stood = Vec::new();
    let mut lost: u64 = pairs.iter().map(Pair::lost).sum();
    assert_eq!(lost, 0, "frames are lost without any kill");
    for round in 0..options.rounds {
        let until =
            Instant::now() + Duration::from_millis(random.u64(20..=options.traffic.max(20)));
        while Instant::now() < until {
            pairs.iter_mut().for_each(Pair::turn);
        }
        pairs.iter_mut().for_each(Pair::begin);
        let before: Vec<_> = pairs.iter().map(Pair::arrived).collect();
        // While it has frames of many guests to do.
        pairs.iter_mut().take(random.usize(..options.pairs)).for_each(Pair::turn);
        host = match options.upgrades {
            true => upgrade(host, &mut pairs, &before),
            false => kill(host, &mut pairs, &before, room.path(), options),
        };
        pairs.iter_mut().for_each(Pair::check);
        let still = pairs.iter().map(Pair::longest).max().unwrap_or_default();
        let now_lost: u64 = pairs.iter().map(Pair::lost).sum();
        println!(
            "round {round}: stood still for {:.0} ms, {} frames lost",
            still.as_secs_f64() * 1e3,
            now_lost - lost
        );
        let most = if options.upgrades { 0 } else { BATCH };
        assert!(now_lost - lost <= most, "a death costs one batch, and an upgrade nothing");
        lost = now_lost;
        stood.push(still);
        if round % 4 == 0 {
            pairs.iter_mut().for_each(Pair::ask);
        }
    }
    let ids = host.ids();
    assert_eq!(ids.len(), options.pairs * 2, "vnics are still declared: {ids:?}");
    for id in ids {
        let show = host.show(&id);
        assert!(show.attached, "{id} is attached");
    }
    host.daemon_mut().quit();
    pairs.iter_mut().for_each(Pair::gone);
    stood
}

/// True once a thousand frames more than before have arrived each way.
fn onward(pairs: &[Pair], from: &[[u64; 2]]) -> bool {
    pairs
        .iter()
        .zip(from)
        .all(|(pair, from)| pair.arrived().iter().zip(from).all(|(now, from)| *now >= *from + 1000))
}

/// Kills the daemon, and starts another one, as a service manager would.
fn kill(
    mut host: Host,
    pairs: &mut [Pair],
    before: &[[u64; 2]],
    room: &Path,
    options: &Options,
) -> Host {
    let killed = Instant::now();
    host.daemon().kill();
    let mut dead = None;
    let mut next = None;
    while !onward(pairs, before) {
        pairs.iter_mut().for_each(Pair::turn);
        if dead.is_none() && host.daemon_mut().has_ended() {
            dead = Some(Instant::now());
        }
        let pause = Duration::from_millis(options.restart_after);
        if next.is_none() && dead.is_some_and(|dead| dead.elapsed() >= pause) {
            next = Some(start(room, options));
        }
        if killed.elapsed() > PATIENCE {
            let log = next.map(|daemon| daemon.log()).unwrap_or_default();
            panic!("traffic does not go on; the daemon wrote:\n{log}");
        }
    }
    Host::of(next.expect("traffic needs a daemon").ready())
}

/// Has the program that is there go on in the daemon's place. Its traffic goes on until then.
fn upgrade(host: Host, pairs: &mut [Pair], before: &[[u64; 2]]) -> Host {
    std::thread::scope(|scope| {
        let daemon = host.daemon();
        let client = scope.spawn(|| daemon.client_ok(&["upgrade"]));
        let begun = Instant::now();
        while !(client.is_finished() && onward(pairs, before)) {
            pairs.iter_mut().for_each(Pair::turn);
            assert!(begun.elapsed() < PATIENCE, "it takes too long: {}", daemon.log());
        }
        let told = client.join().unwrap_or_else(|_| panic!("refused: {}", daemon.log()));
        println!("{}", told.lines().next().unwrap_or_default());
        // Until each has heard of the other again.
        let after: Vec<_> = pairs.iter().map(Pair::arrived).collect();
        let goes_on = |pairs: &[Pair]| {
            pairs
                .iter()
                .zip(&after)
                .all(|(pair, from)| pair.arrived().iter().zip(from).all(|(now, from)| now > from))
        };
        while !goes_on(pairs) {
            pairs.iter_mut().for_each(Pair::turn);
            assert!(begun.elapsed() < PATIENCE, "traffic does not go on: {}", daemon.log());
        }
    });
    host
}
