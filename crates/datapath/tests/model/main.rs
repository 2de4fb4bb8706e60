//! The switch against a model of it: random policy, traffic and changes go through both. Both must
//! agree on the receivers of every frame, and on the drop that is counted otherwise.
//!
//! The model ([`switch`], [`policy`], [`router`], [`nat`], [`tcp`], [`wire`]) is plain and slow:
//! lists that are searched from their start, a parser of its own. Where the specification leaves a
//! choice open ([`choices`]) it follows both ways until the switch shows which one it took. Of
//! networks that span hosts it has two models and hands frames from one to the other ([`world`]).
//!
//! `MODEL_SECONDS=3600 cargo test -p butterfly-datapath --test model` runs for an hour, from a seed
//! that it prints; `MODEL_SEED=n` repeats the case of a seed.

mod cases;
mod check;
mod choices;
mod claims;
mod commands;
mod dhcp;
mod explained;
mod far;
mod frames;
mod generate;
mod limits;
mod nat;
mod policy;
mod random;
mod real;
mod routed;
mod router;
mod spanning;
mod switch;
mod tcp;
mod translated;
mod wire;
mod world;

use std::time::{Duration, Instant};

use check::{Tally, run, shrink};
use commands::Case;
use explained::Explained;
use real::Real;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

#[test]
fn the_switch_does_what_the_model_says() {
    compare(generate::case, 60_000, Real::new);
}

/// Both ends are filtered, each where it is, and vnics go from host to host.
#[test]
fn the_switches_of_two_hosts_do_what_the_model_says() {
    compare(generate::case_of_two, 30_000, Real::new);
}

/// Networks, and routers between some of them, come and go.
#[test]
fn the_router_does_what_the_model_says() {
    compare(routed::case, 20_000, Real::new);
}

/// Each of two hosts routes what its own machines send, as far as it knows where others are.
#[test]
fn routers_of_two_hosts_do_what_the_model_says() {
    compare(routed::case_of_two, 10_000, Real::new);
}

/// A router translates between networks and the outside of an external, by rules that come and go.
#[test]
fn translations_are_what_the_model_says() {
    compare(translated::case, 12_000, Real::new);
}

/// The explanation of a frame before it is sent comes true, and explaining changes nothing.
#[test]
fn explanations_say_what_the_switch_does() {
    compare(generate::case, 4_000, Explained::new);
    compare(generate::case_of_two, 4_000, Explained::new);
    compare(routed::case, 2_000, Explained::new);
}

/// Runs cases until there were so many frames, unless it is told how long to take. Cases have one
/// worker and two in turn; of two, both serve each vnic, one after the other.
fn compare<S: check::Switch>(make: fn(u64) -> Case, frames: u64, switch: fn(usize, usize) -> S) {
    let seconds = number("MODEL_SECONDS");
    let start = Instant::now();
    let only = number("MODEL_SEED");
    // An hour looks where no hour looked before; a short run is always the same.
    let first = only.unwrap_or_else(|| match seconds {
        Some(_) => {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
                << 24
        }
        None => 0,
    });
    println!("seeds from {first}");
    let mut tally = Tally::default();
    for seed in first.. {
        let case = make(seed);
        let (hosts, workers) = (case.hosts, 1 + seed as usize % 2);
        if run(&case, &mut switch(hosts, workers), &mut tally).is_err() {
            let (case, failure) = shrink(case, || switch(hosts, workers), Duration::from_secs(30));
            panic!(
                "seed {seed}, {workers} workers (MODEL_SEED={seed} repeats it)\n{}{}",
                case.describe(),
                failure.text
            );
        }
        let over = match seconds {
            Some(seconds) => start.elapsed().as_secs() >= seconds,
            None => tally.frames >= frames,
        };
        if over || only.is_some() {
            break;
        }
    }
    println!("{tally:?}, {:.1} s", start.elapsed().as_secs_f64());
    assert!(tally.lost * 50 <= tally.cases, "{tally:?}");
}
