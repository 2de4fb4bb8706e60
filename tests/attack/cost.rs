//! Cost of an attack for others: the daemon's busy cycles per packet of bystanders, with and
//! without the attack, in interleaved rounds.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use butterfly_tests::{Daemon, HostOptions};

use crate::{
    bystanders::Bystanders,
    random::{self, Tally},
    switch::Switch,
    villain::Place,
};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(6);
/// Largest allowed ratio of the cost with an attack to the cost without.
const LIMIT: f64 = 1.05;

/// Measures and prints. Needs a machine with no other load.
pub fn run() {
    let switch = Switch(Daemon::start(&HostOptions::default()));
    let bystanders = Bystanders::start(&switch, &[(20, false)], Duration::ZERO);
    let place = Place::new(&switch, "villain", 1, 99);
    let stop = AtomicBool::new(false);
    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    for at in 0..ROUNDS {
        quiet.push(round(&switch, &bystanders));
        stop.store(false, Ordering::Relaxed);
        let (cost, tally) = std::thread::scope(|scope| {
            let villain = scope.spawn(|| random::run(&place, at as u64, &stop));
            let cost = round(&switch, &bystanders);
            stop.store(true, Ordering::Relaxed);
            (cost, villain.join().unwrap_or_else(|_| Tally::default()))
        });
        attacked.push(cost);
        println!(
            "round {at}: {:.0} cycles per packet without, {cost:.0} with {} hostile guests of {} steps",
            quiet[at], tally.guests, tally.steps
        );
    }
    let (without, with) = (median(quiet), median(attacked));
    bystanders.finish(&switch);
    println!(
        "medians: {without:.0} without, {with:.0} with an attack: {:+.1} %",
        (with / without - 1.0) * 100.0
    );
    assert!(with <= without * LIMIT, "an attack costs the others more than 5 %");
}

/// Measures for one round. Returns the busy cycles of all workers per frame that a bystander
/// received.
fn round(switch: &Switch, bystanders: &Bystanders) -> f64 {
    let cycles = || switch.workers().iter().map(|worker| worker.busy_cycles()).sum::<u64>();
    let (before, arrived) = (cycles(), bystanders.arrived());
    std::thread::sleep(ROUND);
    bystanders.check();
    (cycles() - before) as f64 / (bystanders.arrived() - arrived).max(1) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
