//! Output of a run: lines while it goes on, a result, and the same as JSON.

use std::{fs::File, io::Write, path::Path};

use anyhow::Context;
use serde::Serialize;

use crate::{histogram::Latency, options::Options, search::Found};

/// One measured second.
#[derive(Serialize, Clone, Copy, Debug)]
pub struct Second {
    /// Which, from 1.
    pub t: u64,
    /// Million frames received a second.
    pub rx_mpps: f64,
    /// Million frames sent a second.
    pub tx_mpps: f64,
    /// Gigabits received a second, without preamble, gap and FCS.
    pub rx_gbps: f64,
    /// Share of its core the generator had.
    pub cpu: f64,
    /// Share of its core the busiest watched thread had.
    pub switch_cpu: Option<f64>,
    /// Frames per batch received.
    pub rx_burst: f64,
    /// True if generator and switch each had more than 98 % of a core.
    pub valid: bool,
}

/// Frames that one VM, or one of each pair, sent and received since learning.
#[derive(Serialize, Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Frames the switch took.
    pub sent: u64,
    /// Frames received that the other VM sent and that are intact, as far as looked at.
    pub received: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Frames received that the other VM did not send.
    pub strays: u64,
    /// Frames of the other VM with a wrong byte or length (--verify).
    pub corrupt: u64,
    /// Frames the other VM sent that never arrived.
    pub lost: u64,
    /// Frames that arrived after later ones (--verify).
    pub reordered: u64,
    /// Frames that arrived again (--verify).
    pub duplicated: u64,
    /// Notifications the VM sent to the switch.
    pub kicks: u64,
    /// Frames that arrived at the VM's interface, for whichever address, and that this host had no
    /// room for: not the switch's losses.
    pub missed: u64,
}

/// Connections of a run.
#[derive(Serialize, Clone, Debug, Default)]
pub struct Connections {
    /// SYNs that the switch took.
    pub opened: u64,
    /// Connections for which A got a SYN and ACK.
    pub established: u64,
    /// Connections of which A saw the end.
    pub closed: u64,
    /// Connections that never came to their end.
    pub lost: u64,
    /// Connections that ended in each measured second.
    pub per_second: Vec<u64>,
}

impl Connections {
    /// Returns the median of connections per second.
    pub fn median(&self) -> u64 {
        let mut all = self.per_second.clone();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        all.fold(Counts::default(), |sum, one| Counts {
            sent: sum.sent + one.sent,
            received: sum.received + one.received,
            received_bytes: sum.received_bytes + one.received_bytes,
            strays: sum.strays + one.strays,
            corrupt: sum.corrupt + one.corrupt,
            lost: sum.lost + one.lost,
            reordered: sum.reordered + one.reordered,
            duplicated: sum.duplicated + one.duplicated,
            kicks: sum.kicks + one.kicks,
            missed: sum.missed + one.missed,
        })
    }
}

/// Million frames a second, over the valid seconds.
#[derive(Serialize, Clone, Copy, Default, Debug)]
pub struct Rates {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

/// The result of a run.
#[derive(Serialize, Clone, Debug)]
pub struct Report {
    /// Parameters of the load: sizes as given, flows, direction, protocol.
    pub size: String,
    pub pairs: usize,
    pub flows: u32,
    pub new_sessions: bool,
    pub dir: String,
    pub proto: &'static str,
    pub verify: bool,
    pub seed: u64,
    pub rate: Option<u64>,
    /// Ring features in force, A's.
    pub features: Vec<String>,
    pub queue_size: u16,
    /// Each measured second.
    pub seconds: Vec<Second>,
    pub valid_seconds: usize,
    /// Received, both VMs together.
    pub mpps: Rates,
    pub latency: Option<Latency>,
    pub search: Option<Found>,
    pub connections: Option<Connections>,
    /// Counts of A and B since learning, over all pairs.
    pub a: Counts,
    pub b: Counts,
    /// Reasons why the run failed.
    pub failures: Vec<String>,
}

/// Minimum, median and maximum; zeros of nothing.
pub fn rates(seconds: &[Second]) -> Rates {
    let mut valid: Vec<f64> =
        seconds.iter().filter(|second| second.valid).map(|second| second.rx_mpps).collect();
    valid.sort_by(f64::total_cmp);
    match (valid.first(), valid.last()) {
        (Some(min), Some(max)) => Rates { min: *min, median: valid[valid.len() / 2], max: *max },
        _ => Rates::default(),
    }
}

/// Returns why a run failed: nothing wrong may have arrived, and not too little.
pub fn failures(options: &Options, a: &Counts, b: &Counts) -> Vec<String> {
    let mut failures = Vec::new();
    for (name, counts) in [("A", a), ("B", b)] {
        let mut check = |count: u64, limit: u64, what: &str| {
            if count > limit {
                failures.push(format!("VM {name}: {count} frames {what}"));
            }
        };
        check(counts.corrupt, 0, "arrived corrupted");
        check(counts.duplicated, 0, "arrived twice");
        check(counts.reordered, 0, "arrived out of order");
        if let Some(limit) = options.max_loss {
            check(counts.lost, limit, &format!("were lost on the way, more than {limit}"));
        }
    }
    failures
}

impl Report {
    /// For people.
    pub fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let what =
            if self.new_sessions { "new sessions".into() } else { format!("flows={}", self.flows) };
        let pairs = if self.pairs > 1 { format!("pairs={} ", self.pairs) } else { String::new() };
        write!(out, "RESULT {} {pairs}{what} size={} {}", self.dir, self.size, self.proto)?;
        if let Some(l) = &self.latency {
            let what = if self.dir == "ping" { "round trip" } else { "one-way" };
            write!(
                out,
                " {what} min={:.2}us p50={:.2} p90={:.2} p99={:.2} p99.9={:.2} p99.99={:.2} p99.999={:.2} max={:.2} n={} timeouts={}",
                l.min_us,
                l.p50_us,
                l.p90_us,
                l.p99_us,
                l.p999_us,
                l.p9999_us,
                l.p99999_us,
                l.max_us,
                l.samples,
                l.timeouts
            )?;
        }
        if let Some(all) = &self.connections {
            write!(
                out,
                " {} connections per second (median), {} opened, {} established, {} closed, {} lost",
                all.median(),
                all.opened,
                all.established,
                all.closed,
                all.lost
            )?;
        }
        if let Some(found) = &self.search {
            write!(
                out,
                " {} {:.3} Mpps with at most {} % lost ({} trials)",
                if found.allowed > 0.0 { "PDR" } else { "NDR" },
                found.rate / 1e6,
                found.allowed * 100.0,
                found.trials.len()
            )?;
        } else if !self.seconds.is_empty() {
            write!(
                out,
                " Mpps min {:.3} med {:.3} max {:.3} ({} of {} seconds valid)",
                self.mpps.min,
                self.mpps.median,
                self.mpps.max,
                self.valid_seconds,
                self.seconds.len()
            )?;
        }
        writeln!(out)?;
        if self.connections.is_some() {
            return Ok(());
        }
        for (name, c) in [("A", &self.a), ("B", &self.b)] {
            write!(
                out,
                "  VM {name}: sent {} received {} lost on the way to it {} strays {}",
                c.sent, c.received, c.lost, c.strays
            )?;
            if self.verify {
                write!(
                    out,
                    " corrupt {} duplicated {} reordered {}",
                    c.corrupt, c.duplicated, c.reordered
                )?;
            }
            writeln!(out, " kicks {}", c.kicks)?;
            if c.missed > 0 {
                writeln!(
                    out,
                    "  VM {name}: this host had no room for {} frames of its interface: the switch did not lose them",
                    c.missed
                )?;
            }
        }
        Ok(())
    }

    /// Writes the files that the options name.
    pub fn write(&self, options: &Options) -> anyhow::Result<()> {
        if let Some(path) = &options.json {
            let json = serde_json::to_string_pretty(self)?;
            match path == Path::new("-") {
                true => println!("{json}"),
                false => write(path, &json)?,
            }
        }
        if let Some(path) = &options.csv {
            write(path, self.csv().trim_end())?;
        }
        Ok(())
    }

    /// Returns each trial, or each second, as a line of values with their names before.
    fn csv(&self) -> String {
        if let Some(found) = &self.search {
            let line = |trial: &crate::search::Trial| {
                let rate = trial.rate.map(|rate| rate.to_string()).unwrap_or_default();
                format!("{rate},{:.0},{:.6},{}\n", trial.offered, trial.loss, trial.passed)
            };
            let lines: String = found.trials.iter().map(line).collect();
            return format!("rate_pps,offered_pps,loss,passed\n{lines}");
        }
        let line = |second: &Second| {
            let switch = second.switch_cpu.map(|share| format!("{share:.4}")).unwrap_or_default();
            format!(
                "{},{:.6},{:.6},{:.4},{:.4},{switch},{:.2},{}\n",
                second.t,
                second.rx_mpps,
                second.tx_mpps,
                second.rx_gbps,
                second.cpu,
                second.rx_burst,
                second.valid
            )
        };
        let lines: String = self.seconds.iter().map(line).collect();
        format!("second,rx_mpps,tx_mpps,rx_gbps,cpu,switch_cpu,rx_burst,valid\n{lines}")
    }
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || File::create(path).and_then(|mut file| writeln!(file, "{text}"));
    write().with_context(|| format!("cannot write {}", path.display()))
}

impl Second {
    /// For people.
    pub fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let switch = self.switch_cpu.map(|share| format!(" switch {share:.3}")).unwrap_or_default();
        writeln!(
            out,
            "  t={} rx {:.3} tx {:.3} Mpps {:.2} Gbit/s cpu {:.3}{switch} rxburst {:.1}{}",
            self.t,
            self.rx_mpps,
            self.tx_mpps,
            self.rx_gbps,
            self.cpu,
            self.rx_burst,
            if self.valid { "" } else { " invalid" }
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn second(rx_mpps: f64, valid: bool) -> Second {
        Second {
            t: 1,
            rx_mpps,
            tx_mpps: 0.0,
            rx_gbps: 0.0,
            cpu: 1.0,
            switch_cpu: None,
            rx_burst: 0.0,
            valid,
        }
    }

    #[test]
    fn only_valid_seconds_count() {
        let rates =
            rates(&[second(3.0, true), second(9.0, false), second(1.0, true), second(2.0, true)]);
        assert_eq!((rates.min, rates.median, rates.max), (1.0, 2.0, 3.0));
        assert_eq!(super::rates(&[second(9.0, false)]).median, 0.0);
    }

    #[test]
    fn what_fails() {
        let parse = |line: &str| {
            Options::try_parse_from(
                ["", "--a", "x", "--b", "y", "--verify"].into_iter().chain(line.split_whitespace()),
            )
            .unwrap()
        };
        let fine = Counts { lost: 5, strays: 2, ..Counts::default() };
        assert!(failures(&parse(""), &fine, &fine).is_empty());
        assert!(failures(&parse("--max-loss 5"), &fine, &fine).is_empty());
        assert_eq!(failures(&parse("--max-loss 4"), &fine, &Counts::default()).len(), 1);
        for wrong in [
            Counts { corrupt: 1, ..fine },
            Counts { duplicated: 1, ..fine },
            Counts { reordered: 1, ..fine },
        ] {
            assert_eq!(failures(&parse(""), &fine, &wrong).len(), 1);
        }
    }
}
