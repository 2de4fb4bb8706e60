//! Token buckets that cost next to nothing while there are tokens in them.
//!
//! Atomics, as a vnic's queues may be served by several workers: each token is taken once, and the
//! time that passed is turned into tokens once, by whichever worker exchanges `filled`.

use std::sync::atomic::Ordering::Relaxed;

use butterfly_mem::cpu;

use crate::engine::atomics::{AtomicU64, same};

/// Tokens of one vnic. New ones are counted when none is left.
#[derive(Default)]
pub(crate) struct Bucket {
    tokens: AtomicU64,
    /// Ticks of the time stamp counter when it was last filled.
    filled: AtomicU64,
}

impl Bucket {
    /// Takes a token and returns whether there was one. `rate` tokens come per second; `burst` are
    /// kept. The bucket is refilled only when it is empty, so up to twice `burst` may go at once.
    pub fn take(&self, rate: u64, burst: u64) -> bool {
        self.take_at(cpu::tsc, cpu::tsc_hz(), rate, burst)
    }

    fn take_at(&self, now: impl FnOnce() -> u64, hz: u64, rate: u64, burst: u64) -> bool {
        if self.one() {
            return true;
        }
        let now = now();
        let filled = self.filled.load(Relaxed);
        let passed = now.saturating_sub(filled);
        let earned = u128::from(passed) * u128::from(rate);
        // Avoids the division: a vnic without tokens comes here for each of its frames.
        if earned < u128::from(hz) {
            return false;
        }
        let earned = u64::try_from(earned / u128::from(hz.max(1))).unwrap_or(burst).min(burst);
        if self.filled.compare_exchange(filled, now, Relaxed, Relaxed).is_ok() {
            self.tokens.fetch_add(earned, Relaxed);
        }
        self.one()
    }

    fn one(&self) -> bool {
        self.tokens.fetch_update(Relaxed, Relaxed, |tokens| tokens.checked_sub(1)).is_ok()
    }

    /// Returns a bucket of its own with the same contents.
    pub fn copy(&self) -> Bucket {
        Bucket { tokens: same(&self.tokens), filled: same(&self.filled) }
    }
}

/// A bucket from which many tokens are taken at once. It is refilled before it is empty.
#[derive(Default)]
pub(crate) struct Purse {
    tokens: AtomicU64,
    filled: AtomicU64,
}

impl Purse {
    /// Adds the tokens that came since the last time: `rate` per second, and at most `burst` are
    /// kept.
    pub fn fill(&self, rate: u64, burst: u64) {
        self.fill_at(cpu::tsc(), cpu::tsc_hz(), rate, burst);
    }

    fn fill_at(&self, now: u64, hz: u64, rate: u64, burst: u64) {
        let filled = self.filled.load(Relaxed);
        let passed = now.saturating_sub(filled);
        let earned = u128::from(passed) * u128::from(rate) / u128::from(hz.max(1));
        if earned > 0 && self.filled.compare_exchange(filled, now, Relaxed, Relaxed).is_ok() {
            let earned = u64::try_from(earned).unwrap_or(burst);
            let more = |tokens: u64| Some(tokens.saturating_add(earned).min(burst));
            let _ = self.tokens.fetch_update(Relaxed, Relaxed, more);
        }
    }

    /// Takes `due` tokens if there are at least `needed`; returns whether there were.
    #[inline(always)]
    pub fn spend(&self, needed: u64, due: u64) -> bool {
        let less = |tokens: u64| (tokens >= needed).then(|| tokens - due.min(tokens));
        self.tokens.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    /// Returns a purse of its own with the same contents.
    pub fn copy(&self) -> Purse {
        Purse { tokens: same(&self.tokens), filled: same(&self.filled) }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// All tokens that are needed have to be there, although fewer are taken.
    #[test]
    fn what_is_needed_is_not_what_is_due() {
        let purse = Purse::default();
        purse.fill(1000, 50);
        assert!(purse.spend(50, 20) && !purse.spend(50, 20));
        assert!(purse.spend(30, 30) && !purse.copy().spend(1, 1));
    }

    /// Workers that take at the same time: each token is taken once.
    #[test]
    fn several_workers_take_no_more_than_there_are() {
        const HZ: u64 = 1_000_000;
        const ROUNDS: u64 = 2_000;
        let (bucket, purse) = (Bucket::default(), Purse::default());
        let pace = crate::engine::pace::Pace::default();
        let taken = std::sync::Mutex::new([0; 3]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut own = [0; 3];
                    for round in 1..=ROUNDS {
                        // A thousandth of a second passes in each round.
                        let now = HZ + round * (HZ / 1000);
                        own[0] += u64::from(bucket.take_at(|| now, HZ, 1000, 50));
                        purse.fill_at(now, HZ, 1000, 50);
                        own[1] += u64::from(purse.spend(1, 1));
                        own[2] += u64::from(pace.take(1 + round as u32 / 100, 50, 10));
                    }
                    let mut all = taken.lock().unwrap();
                    all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
                });
            }
        });
        let [bucket, purse, pace] = taken.into_inner().unwrap();
        // The tokens at the start, and those that come meanwhile.
        assert!(bucket <= 50 + ROUNDS && purse <= 50 + ROUNDS, "{bucket} {purse}");
        assert!(pace <= 50 + 10 * (ROUNDS / 100), "{pace}");
        assert!(bucket > ROUNDS / 4 && purse > ROUNDS / 4 && pace > 50, "{bucket} {purse} {pace}");
    }

    #[test]
    fn no_more_come_out_than_went_in() {
        const HZ: u64 = 1_000_000;
        let bucket = Bucket::default();
        let taken = |now: u64, tries: u64| {
            (0..tries).filter(|_| bucket.take_at(|| now, HZ, 1000, 50)).count()
        };
        // The purse begins full, at any time.
        assert_eq!(taken(HZ, 1000), 50);
        assert_eq!(taken(HZ + 999, 1000), 0);
        assert_eq!(taken(HZ + 1000, 1000), 1);
        assert_eq!(taken(HZ + 1999, 1000), 0);
        // Ten milliseconds, then an hour.
        assert_eq!(taken(HZ + 11_000, 1000), 10);
        assert_eq!(taken(3600 * HZ, 20), 20);
        assert_eq!(taken(3601 * HZ, 1000), 30 + 50);
        assert_eq!(taken(3601 * HZ, 1000), 0);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use ::loom::{sync::Arc, thread};

    /// Three workers take from what is left, and from what came since: one token each way.
    #[test]
    fn loom_no_token_is_taken_twice() {
        ::loom::model(|| {
            let bucket = Arc::new(Bucket { tokens: AtomicU64::new(1), filled: AtomicU64::new(10) });
            // One token came in ten ticks.
            let take = |bucket: &Bucket| u64::from(bucket.take_at(|| 20, 1000, 100, 50));
            let others = [(); 2].map(|()| {
                let bucket = bucket.clone();
                thread::spawn(move || take(&bucket))
            });
            let mut taken = take(&bucket);
            taken += others.into_iter().map(|other| other.join().unwrap()).sum::<u64>();
            let left = bucket.tokens.load(Relaxed);
            // Who finds another one filling it may go away without a token, but none is made up.
            assert!(taken + left <= 2 && taken >= 1, "{taken} taken, {left} left");
            assert_eq!(bucket.filled.load(Relaxed), 20);
            assert_eq!(taken + left, 2);
        });
    }

    /// A purse is filled once for the time that passed, whoever does it, and spent once.
    #[test]
    fn loom_a_purse_is_filled_once() {
        ::loom::model(|| {
            let purse = Arc::new(Purse { tokens: AtomicU64::new(0), filled: AtomicU64::new(10) });
            let turn = |purse: &Purse| {
                purse.fill_at(30, 1000, 100, 50);
                u64::from(purse.spend(1, 1))
            };
            let other = {
                let purse = purse.clone();
                thread::spawn(move || turn(&purse))
            };
            let spent = turn(&purse) + other.join().unwrap();
            assert_eq!(spent + purse.tokens.load(Relaxed), 2);
        });
    }
}
