//! Meters: token buckets that may run into debt.
//!
//! A token that is left allows to take more than there are: nothing goes until that is paid. So a
//! frame of any size passes, and no more passes in the long run. Atomics, as a vnic's queues may be
//! served by several workers: the time that passed is turned into tokens once, and each token is
//! taken once. Workers that look at the same time may each go into debt.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::atomics::{AtomicU64, same};

/// Tokens that come per second, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub per_second: u64,
    pub burst: u64,
}

/// Parts of a tick, as a power of two: less than one is lost each time that a meter is filled.
const PARTS: u32 = 4;

/// Tokens of one kind. A new one is full.
#[derive(Default)]
pub(crate) struct Meter {
    /// In two's complement: below 0 is debt.
    tokens: AtomicU64,
    /// Ticks of the time stamp counter that were turned into tokens, in parts.
    filled: AtomicU64,
}

impl Meter {
    /// Adds the tokens that came until `now`, in ticks of which there are `hz` in a second. Returns
    /// the tokens that there are.
    pub fn fill(&self, rate: Rate, now: u64, hz: u64) -> i64 {
        let (hz, per_second) = (u128::from(hz.max(1)) << PARTS, u128::from(rate.per_second.max(1)));
        let now = now << PARTS;
        let burst = i64::try_from(rate.burst).unwrap_or(i64::MAX);
        let filled = self.filled.load(Relaxed);
        let passed = u128::from(now.saturating_sub(filled));
        let earned = match filled {
            0 => u128::from(rate.burst), // for the first time
            _ => passed * per_second / hz,
        };
        if earned > 0 {
            // What is left of a token stays for the next time.
            let used = (earned * hz).div_ceil(per_second);
            let until = match filled {
                0 => now.max(1),
                _ => filled.saturating_add(u64::try_from(used).unwrap_or(u64::MAX)),
            };
            if self.filled.compare_exchange(filled, until, Relaxed, Relaxed).is_ok() {
                let earned = i64::try_from(earned).unwrap_or(i64::MAX);
                let more =
                    |tokens: u64| Some((tokens as i64).saturating_add(earned).min(burst) as u64);
                let _ = self.tokens.fetch_update(Relaxed, Relaxed, more);
            }
        }
        (self.tokens.load(Relaxed) as i64).min(burst)
    }

    /// Takes tokens, whether they are there or not.
    pub fn spend(&self, tokens: u64) {
        self.tokens.fetch_sub(tokens, Relaxed);
    }

    /// Returns the ticks after which there are so many tokens, if nobody takes any.
    pub fn wait(&self, wanted: i64, rate: Rate, hz: u64) -> u64 {
        let missing = wanted.saturating_sub(self.tokens.load(Relaxed) as i64);
        let missing = u128::try_from(missing).unwrap_or(0);
        let ticks = (missing * u128::from(hz)).div_ceil(u128::from(rate.per_second.max(1)));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Returns a meter of its own with the same contents.
    pub fn copy(&self) -> Meter {
        Meter { tokens: same(&self.tokens), filled: same(&self.filled) }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const HZ: u64 = 1_000_000_007;

    #[test]
    fn a_new_one_is_full_and_no_part_of_a_token_is_lost() {
        for per_second in [1, 3, 999, 1_000_000, 12_345_678_901] {
            let rate = Rate { per_second, burst: 50 };
            let meter = Meter::default();
            let begin = 1000 * HZ;
            assert_eq!(meter.fill(rate, begin, HZ), 50);
            let mut spent: u64 = 0;
            // Looks at a time that fits no token, for ten seconds.
            let step = (HZ / per_second).max(600) * 3 / 7;
            let mut now = begin;
            while now < begin + 10 * HZ && spent < 100_000_000 {
                now += step;
                let tokens = meter.fill(rate, now, HZ).max(0) as u64;
                meter.spend(tokens);
                spent += tokens;
            }
            let due =
                50 + (u128::from(now - begin) * u128::from(per_second) / u128::from(HZ)) as u64;
            // More than a burst that comes between two looks is not kept.
            if u128::from(step) * u128::from(per_second) < u128::from(HZ) * 50 {
                let lost = due.saturating_sub(spent);
                assert!(spent <= due && lost <= 1 + due / 10_000, "{per_second}: {spent} of {due}");
            } else {
                assert!(spent <= due);
            }
        }
    }

    #[test]
    fn a_debt_is_paid_before_anything_goes() {
        let rate = Rate { per_second: 1000, burst: 10 };
        let meter = Meter::default();
        assert_eq!(meter.fill(rate, HZ, HZ), 10);
        meter.spend(110);
        assert_eq!(meter.wait(1, rate, HZ), (u128::from(HZ) * 101).div_ceil(1000) as u64);
        assert!(meter.fill(rate, HZ + HZ / 11, HZ) < 0);
        assert_eq!(meter.copy().fill(rate, HZ + HZ / 5, HZ), 10);
        assert_eq!(meter.wait(-200, rate, HZ), 0);
    }

    #[test]
    fn a_smaller_burst_counts_at_once() {
        let meter = Meter::default();
        assert_eq!(meter.fill(Rate { per_second: 10, burst: 1000 }, HZ, HZ), 1000);
        assert_eq!(meter.fill(Rate { per_second: 10, burst: 5 }, HZ, HZ), 5);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use ::loom::{sync::Arc, thread};

    /// Two workers find that time passed: it is turned into tokens once.
    #[test]
    fn loom_a_meter_is_filled_once() {
        ::loom::model(|| {
            let meter = Arc::new(Meter::default());
            let rate = Rate { per_second: 100, burst: 50 };
            meter.fill(rate, 10, 1000);
            meter.spend(45);
            let turn = move |meter: &Meter| {
                meter.fill(rate, 30, 1000);
                meter.spend(1);
            };
            let other = {
                let meter = meter.clone();
                thread::spawn(move || turn(&meter))
            };
            turn(&meter);
            other.join().unwrap();
            // Two came, and two went.
            assert_eq!(meter.tokens.load(Relaxed) as i64, 5 + 2 - 2);
        });
    }
}
