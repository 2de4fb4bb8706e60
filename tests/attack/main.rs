//! A hostile guest and its friends against a real daemon, while others use it: see run.sh.

#![forbid(unsafe_code)]

mod api;
mod bystanders;
mod caller;
mod cost;
mod latency;
mod random;
mod switch;
mod table;
mod villain;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use butterfly_tests::{Daemon, HostOptions, frames::Choices};

use bystanders::Bystanders;
use latency::Latency;
use switch::{PROMPT, Switch};
use villain::{Place, VNI};

/// Networks of bystanders. One pair (`true`) shares the villains' network.
const NETWORKS: [(u32, bool); 3] = [(20, false), (21, false), (VNI, true)];
/// Time between two questions to the API.
const ASK_EVERY: Duration = Duration::from_millis(500);

fn main() {
    let mut words = std::env::args().skip(1);
    let (mut seconds, mut seed) = (60, fresh_seed());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--cost" => return cost::run(),
            "--seed" => seed = words.next().and_then(|n| n.parse().ok()).expect("--seed NUMBER"),
            _ => {
                seconds = word.parse().expect("butterfly-attack [SECONDS] [--seed NUMBER] | --cost")
            }
        }
    }
    println!("seed {seed}: repeat with tests/attack/run.sh {seconds} --seed {seed}");
    attack(Duration::from_secs(seconds), seed);
    println!("attack: ok");
}

/// Asks the threads to end when it is dropped, after a panic too: the scope waits for them.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn fresh_seed() -> u64 {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    since.as_nanos() as u64 % 1_000_000_000
}

fn attack(time: Duration, seed: u64) {
    let begun = Instant::now();
    let switch = Switch(Daemon::start(&HostOptions::default()));
    let bystanders = Bystanders::start(&switch, &NETWORKS, Duration::from_micros(200));
    let mut feeder = villain::feeder(&switch);
    let known = Place::new(&switch, "villain", 1, VNI);
    let count = table::run(&switch, &known, &mut feeder);
    println!("{count} attacks with a known outcome, {:.1} s", begun.elapsed().as_secs_f32());
    bystanders.check();
    println!(
        "{} malformed requests, {} malformed command lines",
        api::malformed(&switch),
        api::options()
    );

    // The random attacks: two villains in the bystanders' network, one in a network of its own.
    let places: Vec<Place> = [VNI, VNI, 99]
        .iter()
        .zip(2..)
        .map(|(vni, n)| Place::new(&switch, &format!("villain-{n}"), n, *vni))
        .collect();
    let mut callers = [VNI, 99].map(|vni| (vni, caller::new(&switch, vni)));
    let latency = Latency::start(&switch);
    let settled = || {
        places
            .iter()
            .chain([&known])
            .for_each(|place| drop(switch.wait(&place.id, |show| !show.attached())));
        (switch.0.descriptors(), switch.0.threads(), switch.resident(), switch.0.guest_mappings())
    };
    let stop = AtomicBool::new(false);
    let mut slowest = Duration::ZERO;
    let warm = Instant::now();
    let end = (begun + time).max(warm + time / 2);
    let stop = &stop;
    let mut round = |until: Instant, seed: u64, slowest: &mut Duration| {
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(stop);
            for (place, seed) in places.iter().zip(seed..) {
                scope.spawn(move || random::run(place, seed * 1000, stop));
            }
            for (vni, caller) in &mut callers {
                let to: Vec<_> = places
                    .iter()
                    .filter(|place| place.vni == *vni)
                    .map(|place| place.mac)
                    .collect();
                scope.spawn(move || caller::call(caller, &to, seed * 1000 + 900, stop));
            }
            let mut choices = Choices::new(seed * 1000 + 999);
            let mut asked = Instant::now();
            random::sleep_until(until, || {
                bystanders.check();
                api::random(&switch, &mut choices);
                if asked.elapsed() > ASK_EVERY {
                    asked = Instant::now();
                    *slowest = (*slowest).max(switch.latency());
                    while feeder.vm.guest.recv().expect("a sound receive ring").is_some() {}
                }
            });
        });
    };
    // Caches and tables fill in the first third; afterwards nothing may grow.
    round(warm + (end - warm) / 3, seed, &mut slowest);
    let first = settled();
    round(end, seed + 100, &mut slowest);
    let last = settled();
    println!(
        "descriptors, threads, KiB resident, guest mappings: {first:?} after a third, {last:?} at the end"
    );
    let attached = places.iter().map(|place| switch.show(&place.id).attach_count()).sum::<u64>();
    assert!(attached > 0, "no hostile guest was ever attached");
    for place in &places {
        println!("{}: {:?}", place.id, switch::dropped(&switch.show(&place.id)));
    }
    latency.finish();
    let (arrived, pause) = bystanders.finish(&switch);
    println!(
        "{attached} hostile guests; bystanders: {arrived} frames, longest pause {pause:?}; slowest answer {slowest:?}"
    );
    assert!(slowest <= PROMPT, "the API took {slowest:?} for an answer");
    assert!(last.0 <= first.0 + 4, "descriptors grow");
    assert!(last.1 <= first.1, "threads grow");
    assert!(last.2 <= first.2 + first.2 / 10 + 4096, "memory grows");
    assert_eq!(last.3, first.3, "mappings of guests that are gone");
    println!("{:.1} s in all", begun.elapsed().as_secs_f32());
}
