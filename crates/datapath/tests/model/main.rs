//! The switch against a model of it: random policy, traffic and changes go through both, and both must agree on who receives every
//! frame, and on the drop that is counted otherwise.
//!
//! The model ([`switch`], [`policy`], [`tcp`], [`wire`]) is plain and slow: lists that are searched from their start, a parser of its
//! own. Where the words leave something open ([`choices`]) it follows both ways until the switch shows which one it took.
//!
//! `MODEL_SECONDS=3600 cargo test -p butterfly-datapath --test model` runs for an hour, from a seed that it prints;
//! `MODEL_SEED=n` repeats the case of a seed.

mod cases;
mod check;
mod choices;
mod commands;
mod frames;
mod generate;
mod policy;
mod random;
mod real;
mod switch;
mod tcp;
mod wire;

use std::time::{Duration, Instant};

use check::{Tally, run, shrink};
use real::Real;

/// Frames of a run, unless it is told how long to take.
const FRAMES: u64 = 60_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

#[test]
fn the_switch_does_what_the_model_says() {
    let seconds = number("MODEL_SECONDS");
    let start = Instant::now();
    let only = number("MODEL_SEED");
    // An hour looks where no hour looked before; a short run is always the same.
    let first = only.unwrap_or_else(|| match seconds {
        Some(_) => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() << 24,
        None => 0,
    });
    println!("seeds from {first}");
    let mut tally = Tally::default();
    for seed in first.. {
        let case = generate::case(seed);
        if run(&case, &mut Real::new(), &mut tally).is_err() {
            let (case, failure) = shrink(case, Real::new, Duration::from_secs(30));
            panic!("seed {seed} (MODEL_SEED={seed} repeats it)\n{}{}", case.describe(), failure.text);
        }
        let over = match seconds {
            Some(seconds) => start.elapsed().as_secs() >= seconds,
            None => tally.frames >= FRAMES,
        };
        if over || only.is_some() {
            break;
        }
    }
    println!("{tally:?}, {:.1} s", start.elapsed().as_secs_f64());
    assert!(tally.lost * 50 <= tally.cases, "{tally:?}");
}
