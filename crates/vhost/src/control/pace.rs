//! A limit for how often a guest may make us work: so many times at once, and so many a second
//! after that.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Debug)]
pub(super) struct Pace {
    burst: u32,
    interval: Duration,
    /// Time at which the bucket would be full again.
    full_at: Instant,
}

impl Pace {
    pub fn new(burst: u32, per_second: u32) -> Pace {
        Pace { burst, interval: Duration::from_secs(1) / per_second, full_at: Instant::now() }
    }

    /// Takes one token. Returns how long to wait before acting on it.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.full_at = self.full_at.max(now) + self.interval;
        self.full_at.saturating_duration_since(now).saturating_sub(self.interval * self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_follows_is_paced() {
        let mut pace = Pace::new(3, 10);
        let start = Instant::now();
        let waits: Vec<_> = (0..5).map(|_| pace.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(pace.take(start + Duration::from_secs(10)), Duration::ZERO);
    }
}
