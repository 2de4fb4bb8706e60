//! Daemons that die at every kill point, one after the other, while guests send to each other, send
//! control messages, come and go, and a client changes what is declared: see run.sh.
//!
//! Every daemon but the first goes on for one that died, and dies at the next point. No front end
//! may notice anything; frames are numbered and compared.

#![forbid(unsafe_code)]

mod busy;
mod deaths;
mod inside;
mod logged;
mod plan;

use clap::Parser;

/// Options of the program.
#[derive(Clone, Debug, Parser)]
#[command(name = "butterfly-kill-points", about = "Kill a daemon between every two steps")]
struct Options {
    /// Every point once, with a few kinds of messages, instead of all kinds.
    #[arg(long)]
    short: bool,
    /// Only points whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// Times that all of it is done.
    #[arg(long, default_value_t = 1)]
    times: usize,
    /// Instead, so many deaths of a host in this process, at random points.
    #[arg(long)]
    inside: Option<u64>,
    /// Seed of the passages.
    #[arg(long)]
    seed: Option<u64>,
}

fn main() {
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let mut random = fastrand::Rng::with_seed(seed);
    if let Some(count) = options.inside {
        println!("seed {seed}: {count} deaths");
        inside::run(count, &mut random);
        println!("kill points: ok");
        return;
    }
    let mut all = Vec::new();
    for _ in 0..options.times {
        all.extend(plan::deaths(options.short, &options.only, &mut random));
    }
    println!("seed {seed}: {} deaths", all.len());
    deaths::run(&all);
    println!("kill points: ok");
}
