//! Kills a daemon again and again while its guests send to each other at full rate: see run.sh.
//!
//! Guests are pairs. Each numbers its frames, checks every byte of those that arrive, and never has
//! more under way than its peer has buffers for. So each frame arrives once and in order, but those
//! that a daemon had taken when it died: one batch at most for each worker.

#![forbid(unsafe_code)]

mod rounds;

use std::time::Duration;

use clap::Parser;

/// Options of the program.
#[derive(Clone, Debug, Parser)]
#[command(name = "butterfly-crash", about = "Kill a daemon under load and see what guests notice")]
struct Options {
    /// Pairs of guests.
    #[arg(long, default_value_t = 50)]
    pairs: usize,
    /// Kills.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Sessions, all pairs together. 0: guests are not filtered.
    #[arg(long, default_value_t = 100_000)]
    sessions: usize,
    /// Milliseconds between the death of a daemon and the start of the next one, as systemd's
    /// RestartSec.
    #[arg(long, default_value_t = 100)]
    restart_after: u64,
    /// Most milliseconds of traffic before a kill.
    #[arg(long, default_value_t = 300)]
    traffic: u64,
    /// Have another program go on in place of each kill.
    #[arg(long)]
    upgrades: bool,
    /// Seed of the moments.
    #[arg(long)]
    seed: Option<u64>,
    /// Most milliseconds that traffic may stand still: the median of all kills.
    #[arg(long, default_value_t = 300)]
    median: u64,
    /// Most milliseconds that traffic may stand still after any kill.
    #[arg(long, default_value_t = 500)]
    worst: u64,
}

fn main() {
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!(
        "seed {seed}: {} pairs, {} sessions, {} {}",
        options.pairs,
        options.sessions,
        options.rounds,
        if options.upgrades { "upgrades" } else { "kills" }
    );
    let mut stood = rounds::run(&options, seed);
    stood.sort();
    let at = |part: usize| stood.get((stood.len() - 1) * part / 100).copied().unwrap_or_default();
    let (median, worst) = (at(50), at(100));
    println!(
        "stand-still in ms: least {:.0}, median {:.0}, 90 % {:.0}, worst {:.0}",
        at(0).as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e3,
        at(90).as_secs_f64() * 1e3,
        worst.as_secs_f64() * 1e3
    );
    assert!(median <= Duration::from_millis(options.median), "the median is too long");
    assert!(worst <= Duration::from_millis(options.worst), "the longest is too long");
    println!("crash: ok");
}
