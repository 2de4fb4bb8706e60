//! Search for the highest rate with no more than some loss (RFC 2544, 26.1): NDR, the rate without
//! any loss, and PDR, that with a part lost. Bisection between a rate that passed and one that did
//! not.

use serde::Serialize;

/// A trial at one rate.
#[derive(Serialize, Clone, Copy, Debug)]
pub struct Trial {
    /// Frames a second and direction that were wanted; absent flat out.
    pub rate: Option<u64>,
    /// Frames a second and direction that the switch was given.
    pub offered: f64,
    /// Part of them that was lost, 0 to 1.
    pub loss: f64,
    /// True if no more was lost than allowed, and the rate was kept.
    pub passed: bool,
}

/// Outcome of a search.
#[derive(Serialize, Clone, Debug)]
pub struct Found {
    /// Part of the frames that may be lost, 0 to 1: 0 for NDR.
    pub allowed: f64,
    /// The highest rate that passed, in frames a second and direction; 0: none did.
    pub rate: f64,
    /// All trials, in order.
    pub trials: Vec<Trial>,
}

/// State of a search.
#[derive(Clone, Debug)]
pub struct Search {
    allowed: f64,
    /// Part of the rate to which the result is exact.
    precision: f64,
    /// Rates between which the limit is.
    passed: f64,
    failed: Option<f64>,
    /// Rate that was offered in the best trial that passed.
    best: f64,
    most: Option<u64>,
    trials: Vec<Trial>,
}

/// Part of a rate that has to be offered, or the trial says nothing about that rate.
const KEPT: f64 = 0.99;

impl Search {
    /// Begins a search up to `most`, or up to what can be offered.
    pub fn new(allowed: f64, precision: f64, most: Option<u64>) -> Search {
        Search {
            allowed,
            precision,
            passed: 0.0,
            failed: None,
            best: 0.0,
            most,
            trials: Vec::new(),
        }
    }

    /// Returns the rate of the next trial: `None` inside is flat out. `None`: the search is over.
    pub fn next(&self) -> Option<Option<u64>> {
        if self.trials.is_empty() {
            return Some(self.most);
        }
        let failed = self.failed?;
        let between = ((self.passed + failed) / 2.0).floor();
        (failed - self.passed > failed * self.precision && between > self.passed)
            .then_some(Some(between as u64))
    }

    /// Takes the outcome of that trial.
    pub fn tried(&mut self, rate: Option<u64>, offered: f64, loss: f64) -> Trial {
        let kept = rate.is_none_or(|rate| offered >= rate as f64 * KEPT);
        let passed = kept && loss <= self.allowed;
        let tried = rate.map_or(offered, |rate| rate as f64);
        match passed {
            true => {
                self.passed = self.passed.max(tried);
                self.best = self.best.max(offered.min(tried));
            }
            false => self.failed = Some(self.failed.map_or(tried, |failed| failed.min(tried))),
        }
        let trial = Trial { rate, offered, loss, passed };
        self.trials.push(trial);
        trial
    }

    /// Ends the search.
    pub fn found(self) -> Found {
        Found { allowed: self.allowed, rate: self.best, trials: self.trials }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a switch that loses what is above `limit`, with a generator that makes `most`.
    fn search(allowed: f64, limit: f64, most: f64, bound: Option<u64>) -> Found {
        let mut search = Search::new(allowed, 0.01, bound);
        while let Some(rate) = search.next() {
            let offered = rate.map_or(most, |rate| (rate as f64).min(most));
            search.tried(rate, offered, (1.0 - limit / offered).max(0.0));
            assert!(search.trials.len() < 40);
        }
        search.found()
    }

    #[test]
    fn the_limit_is_found_to_a_percent() {
        for limit in [10.0, 12_345.0, 3e6, 9.9e6] {
            let found = search(0.0, limit, 1e7, None);
            assert!(found.rate <= limit && found.rate >= limit * 0.98 - 1.0, "{limit}: {found:?}");
            assert!(found.trials.iter().filter(|trial| trial.passed).all(|it| it.loss == 0.0));
        }
        let found = search(0.1, 1e6, 1e7, None);
        assert!((1.07e6..1.112e6).contains(&found.rate), "{}", found.rate);
    }

    #[test]
    fn what_cannot_be_offered_is_not_found() {
        // Nothing is lost at all: the result is what the generator makes.
        assert_eq!(search(0.0, 1e9, 5e6, None).rate, 5e6);
        assert_eq!(search(0.0, 1e9, 5e6, Some(2_000_000)).rate, 2e6);
        let found = search(0.0, 1e9, 5e6, Some(8_000_000));
        assert!((4.9e6..=5.06e6).contains(&found.rate), "{}", found.rate);
        // All is lost.
        assert_eq!(search(0.0, 0.0, 5e6, None).rate, 0.0);
    }
}
