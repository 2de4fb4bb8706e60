//! Times in steps of less than one percent, at any length and in constant memory.

use serde::Serialize;

/// Steps of each doubling, a power of two.
const STEPS: u64 = 1 << BITS;
const BITS: u32 = 7;
/// Steps up to 2^32 ns, some four seconds; longer times count as that.
const ALL: usize = (STEPS * (32 - BITS as u64 + 1)) as usize;

/// How often each time occurred, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    least: u32,
    most: u32,
}

/// Times of frames, in microseconds.
#[derive(Serialize, Clone, Debug)]
pub struct Latency {
    pub min_us: f64,
    pub mean_us: f64,
    /// Half of the frames took at most so long.
    pub p50_us: f64,
    /// 90 %.
    pub p90_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p999_us: f64,
    /// 99.99 %.
    pub p9999_us: f64,
    /// 99.999 %.
    pub p99999_us: f64,
    pub max_us: f64,
    /// Frames measured.
    pub samples: u64,
    /// Frames that did not arrive within 100 milliseconds, where one is sent at a time.
    pub timeouts: u64,
    /// Steps that occurred: their upper ends, and the frames in them.
    pub histogram: Vec<(f64, u64)>,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; ALL], count: 0, sum: 0, least: u32::MAX, most: 0 }
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u32) {
        if let Some(count) = self.counts.get_mut(step(ns)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += u64::from(ns);
        self.least = self.least.min(ns);
        self.most = self.most.max(ns);
    }

    /// Adds what another one counted.
    pub fn join(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, others)| *own += others);
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    /// Returns the time that this share of all, 0 to 1, took at most.
    fn at(&self, share: f64) -> f64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return f64::from(end(step).min(self.most)) / 1000.0;
            }
        }
        0.0
    }

    /// Returns the times in words for people and programs.
    pub fn latency(&self, timeouts: u64) -> Latency {
        let us = |ns: u32| f64::from(ns) / 1000.0;
        let occurred = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Latency {
            min_us: if self.count > 0 { us(self.least) } else { 0.0 },
            mean_us: self.sum as f64 / self.count.max(1) as f64 / 1000.0,
            p50_us: self.at(0.5),
            p90_us: self.at(0.9),
            p99_us: self.at(0.99),
            p999_us: self.at(0.999),
            p9999_us: self.at(0.9999),
            p99999_us: self.at(0.99999),
            max_us: us(self.most),
            samples: self.count,
            timeouts,
            histogram: occurred.map(|(step, count)| (us(end(step)), *count)).collect(),
        }
    }
}

/// Returns the step of a time.
#[inline]
fn step(ns: u32) -> usize {
    let doublings = (u32::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    (u64::from(doublings) * STEPS + u64::from(ns >> doublings)) as usize
}

/// Returns the longest time of a step.
fn end(step: usize) -> u32 {
    let doublings = ((step as u64) >> BITS).saturating_sub(1);
    let first = (step as u64 - doublings * STEPS) << doublings;
    u32::try_from(first + (1 << doublings) - 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_narrow_and_have_no_gaps() {
        let mut last = None;
        for step in 0..ALL {
            let end = end(step);
            let begin = last.map_or(0, |last: u32| last + 1);
            assert_eq!((super::step(begin), super::step(end)), (step, step), "{step}");
            assert!(u64::from(end - begin) * 100 <= u64::from(end), "{begin} to {end}");
            last = Some(end);
        }
        assert_eq!(last, Some(u32::MAX));
    }

    #[test]
    fn shares_are_those_of_sorted_times() {
        let mut rng = crate::rng::Rng::new(3);
        let (mut histogram, mut other) = (Histogram::new(), Histogram::new());
        let mut all: Vec<u32> = (0..100_000).map(|_| 1000 << rng.below(12)).collect();
        for (n, ns) in all.iter().enumerate() {
            if n % 2 == 0 { &mut histogram } else { &mut other }.add(*ns);
        }
        histogram.join(&other);
        all.sort_unstable();
        for share in [0.001, 0.5, 0.9, 0.999, 0.99999, 1.0] {
            let right = f64::from(all[((1e5 * share) as usize).clamp(1, 99_999) - 1]) / 1000.0;
            let got = histogram.at(share);
            assert!(got >= right && got <= right * 1.01, "{share}: {got}, {right}");
        }
        let latency = histogram.latency(7);
        assert_eq!((latency.samples, latency.timeouts), (100_000, 7));
        assert_eq!(latency.histogram.iter().map(|(_, count)| count).sum::<u64>(), 100_000);
        assert_eq!(Histogram::new().latency(0).p99_us, 0.0);
    }
}
