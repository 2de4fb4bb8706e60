//! A pace: packets that pass without a rule are limited to a few per second.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::atomics::{AtomicU64, same};

/// Seconds that a worker's reading of the clock may be behind that of another worker.
const LATE: u32 = 60;

/// Tokens, refilled once per second: the second (high half) and the tokens left in it (low half); 0
/// if none was ever taken.
#[derive(Default)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    /// Returns the number of tokens left.
    pub fn left(&self, now: u32, most: u32, per_second: u32) -> u32 {
        Self::of(self.0.load(Relaxed), now, most, per_second)
    }

    fn of(word: u64, now: u32, most: u32, per_second: u32) -> u32 {
        let (then, left) = ((word >> 32) as u32, word as u32);
        if word == 0 {
            return most;
        }
        let passed = Self::later(then, now).wrapping_sub(then);
        left.saturating_add(passed.saturating_mul(per_second)).min(most)
    }

    /// Returns the later one of two seconds: a worker may have read the clock before another one
    /// did.
    fn later(then: u32, now: u32) -> u32 {
        if then.wrapping_sub(now) < LATE { then } else { now }
    }

    /// Takes a token and returns whether there was one. Each token is taken once, by any worker.
    pub fn take(&self, now: u32, most: u32, per_second: u32) -> bool {
        self.change((now, most, per_second), |left| left.checked_sub(1))
    }

    /// Takes so many tokens, or all that are left.
    pub fn take_most(&self, tokens: u32, now: u32, most: u32, per_second: u32) {
        let taken = |left: u32| Some(left.saturating_sub(tokens));
        self.change((now, most, per_second), taken);
    }

    /// Leaves so many tokens of those that are left, if the change says how many. Returns whether
    /// it did.
    fn change(
        &self,
        (now, most, per_second): (u32, u32, u32),
        left: impl Fn(u32) -> Option<u32>,
    ) -> bool {
        let next = |word: u64| {
            let left = left(Self::of(word, now, most, per_second))?;
            let when = if word == 0 { now } else { Self::later((word >> 32) as u32, now) };
            Some(u64::from(when) << 32 | u64::from(left))
        };
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Returns a pace of its own with the same contents.
    pub fn copy(&self) -> Pace {
        Pace(same(&self.0))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Each second brings its tokens, up to the number kept. A pace that was never used is full.
    #[test]
    fn tokens_come_by_the_second() {
        let pace = Pace::default();
        let taken = |now| (0..100).filter(|_| pace.take(now, 10, 3)).count();
        assert_eq!([pace.left(0, 10, 3), pace.left(7, 10, 3)], [10, 10]);
        assert_eq!(
            [taken(100), taken(100), taken(101), taken(103), taken(106), taken(107)],
            [10, 0, 3, 6, 9, 3]
        );
        assert_eq!([taken(111), taken(100_000), taken(u32::MAX), taken(1)], [10, 10, 10, 6]);
        assert_eq!([pace.left(1, 10, 3), pace.left(2, 10, 3), pace.left(5, 10, 3)], [0, 3, 10]);
        // More than there are: what there is.
        pace.take_most(4, 5, 10, 3);
        assert_eq!(pace.left(5, 10, 3), 6);
        pace.take_most(11, 5, 10, 3);
        assert_eq!([pace.left(5, 10, 3), pace.left(6, 10, 3)], [0, 3]);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use ::loom::{sync::Arc, thread};

    /// Workers whose clocks differ by a second: the tokens of a second come once.
    #[test]
    fn loom_tokens_of_a_second_come_once() {
        ::loom::model(|| {
            let pace = Arc::new(Pace(AtomicU64::new(100 << 32 | 1)));
            let others = [100, 101].map(|now| {
                let pace = pace.clone();
                thread::spawn(move || u32::from(pace.take(now, 5, 1)))
            });
            let mut taken = u32::from(pace.take(101, 5, 1));
            taken += others.into_iter().map(|other| other.join().unwrap()).sum::<u32>();
            assert_eq!(taken + pace.left(101, 5, 1), 2);
        });
    }
}
