//! A token bucket that costs next to nothing while there are tokens in it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use butterfly_mem::cpu;

/// Tokens of one vnic. Only the worker that owns its transmit ring takes any; new ones are counted
/// when none is left.
#[derive(Default)]
pub(crate) struct Bucket {
    tokens: AtomicU64,
    /// Ticks of the time stamp counter when it was last filled.
    filled: AtomicU64,
}

impl Bucket {
    /// Takes a token, if there is one: `rate` come per second, and at most `burst` are kept. As
    /// what was kept is filled up only when it is used up, twice as many may go at once.
    pub fn take(&self, rate: u64, burst: u64) -> bool {
        self.take_at(cpu::tsc, cpu::tsc_hz(), rate, burst)
    }

    fn take_at(&self, now: impl FnOnce() -> u64, hz: u64, rate: u64, burst: u64) -> bool {
        let left = self.tokens.load(Relaxed);
        if let Some(left) = left.checked_sub(1) {
            self.tokens.store(left, Relaxed);
            return true;
        }
        let now = now();
        let passed = now.saturating_sub(self.filled.load(Relaxed));
        let earned = u128::from(passed) * u128::from(rate);
        // Without the division: who has used up its own makes us come here for each frame.
        if earned < u128::from(hz) {
            return false;
        }
        let earned = u64::try_from(earned / u128::from(hz.max(1))).unwrap_or(burst).min(burst);
        self.filled.store(now, Relaxed);
        self.tokens.store(earned.saturating_sub(1), Relaxed);
        earned > 0
    }

    /// One like this.
    pub fn copy(&self) -> Bucket {
        let same = |word: &AtomicU64| AtomicU64::new(word.load(Relaxed));
        Bucket { tokens: same(&self.tokens), filled: same(&self.filled) }
    }
}

/// Tokens of which many are taken at once, and fewer than there have to be.
#[derive(Default)]
pub(crate) struct Purse {
    tokens: AtomicU64,
    filled: AtomicU64,
}

impl Purse {
    /// The tokens there are: `rate` come per second, and at most `burst` are kept. Only the worker
    /// that owns the transmit ring comes here.
    pub fn fill(&self, rate: u64, burst: u64) -> u64 {
        let now = cpu::tsc();
        let passed = now.saturating_sub(self.filled.load(Relaxed));
        let earned = u128::from(passed) * u128::from(rate) / u128::from(cpu::tsc_hz().max(1));
        if earned == 0 {
            return self.tokens.load(Relaxed);
        }
        self.filled.store(now, Relaxed);
        let earned = u64::try_from(earned).unwrap_or(burst);
        self.tokens.load(Relaxed).saturating_add(earned).min(burst)
    }

    /// Notes how many are left of those that [`Self::fill`] found.
    pub fn leave(&self, tokens: u64) {
        self.tokens.store(tokens, Relaxed);
    }

    /// Takes `due` if there are as many as are needed.
    pub fn spend(&self, needed: u64, due: u64, rate: u64, burst: u64) -> bool {
        let tokens = self.fill(rate, burst);
        self.leave(if tokens >= needed { tokens - due.min(tokens) } else { tokens });
        tokens >= needed
    }

    /// One like this.
    pub fn copy(&self) -> Purse {
        let same = |word: &AtomicU64| AtomicU64::new(word.load(Relaxed));
        Purse { tokens: same(&self.tokens), filled: same(&self.filled) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that are needed have to be there; less is taken.
    #[test]
    fn what_is_needed_is_not_what_is_due() {
        let purse = Purse::default();
        assert!(purse.spend(50, 20, 1000, 50) && !purse.spend(50, 20, 0, 50));
        assert!(purse.spend(30, 30, 0, 50) && !purse.copy().spend(1, 1, 0, 50));
    }

    #[test]
    fn no_more_come_out_than_went_in() {
        const HZ: u64 = 1_000_000;
        let bucket = Bucket::default();
        let taken = |now: u64, tries: u64| {
            (0..tries).filter(|_| bucket.take_at(|| now, HZ, 1000, 50)).count()
        };
        // It begins full, whenever that is.
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
