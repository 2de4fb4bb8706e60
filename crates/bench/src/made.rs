//! Frames made in memory, as for a switch that takes them at once: the most that a load can be.

use std::{
    io::Write,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use butterfly_guest_driver::{FastGuest, Memory, MemoryConfig, Nic, TX, ring::USED_NO_NOTIFY};
use butterfly_vhost::net::Features;

use crate::{
    frames::{Frames, Kind, Part},
    options::Options,
};

/// Batches between looks at the clock.
const ROUNDS: usize = 1000;

/// Makes frames for the measured seconds. Prints how many a second in each, and returns the median.
pub fn made(options: &Options, out: &mut dyn Write) -> anyhow::Result<f64> {
    options.run_on_core()?;
    let config = options.config(options.largest());
    let memory = MemoryConfig::new(config.memory_needed());
    let memory = Memory::new(&if options.huge { memory.huge() } else { memory })?;
    let mut guest = FastGuest::new(&memory, Features::VERSION_1, &config)?;
    // Nobody has to be told of frames.
    guest.link(TX).ring.split().used_flags().store(USED_NO_NOTIFY, Ordering::Relaxed);
    let mut frames = Frames::new(options, 0, Kind::Data, Part::Counted);
    let burst = usize::from(options.burst);
    let mut used = 0u16;
    let mut seconds = Vec::new();
    for second in 1..=options.secs {
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < Duration::from_secs(1) {
            for _ in 0..ROUNDS {
                let sent = guest.tx.send(burst, |frame| frames.fill(&frame))?;
                let ring = guest.link(TX).ring.split();
                for _ in 0..sent {
                    let head = ring.avail_entry(used).load(Ordering::Relaxed);
                    ring.set_used_entry(used, head.into(), 0, Ordering::Relaxed);
                    used = used.wrapping_add(1);
                }
                ring.used_idx().store(used, Ordering::Release);
                count += sent as u64;
            }
        }
        let rate = count as f64 / begin.elapsed().as_secs_f64() / 1e6;
        writeln!(out, "  t={second} {rate:.3} million frames")?;
        out.flush()?;
        seconds.push(rate);
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or_default();
    writeln!(
        out,
        "RESULT made size={} flows={} {median:.3} million frames per second (median)",
        options.size, options.flows
    )?;
    Ok(median)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn frames_are_made_without_a_switch() {
        for line in
            ["", "--flows 1000 --size imix", "--verify", "--features indirect --header-apart"]
        {
            let words = ["", "--made", "--secs", "1"].into_iter().chain(line.split_whitespace());
            let options = Options::try_parse_from(words).unwrap();
            let mut out = Vec::new();
            let rate = made(&options, &mut out).unwrap();
            let told = String::from_utf8(out).unwrap();
            assert!(rate > 0.01 && told.contains("RESULT made size="), "{line}: {told}");
        }
    }
}
