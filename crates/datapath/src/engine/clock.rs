//! A coarse clock for the packet path, written by the housekeeping thread.
//!
//! Counts seconds since the host was started, which are the same for every process. Counts tenths
//! of a second since the switch was started.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use butterfly_mem::cpu::since_boot;

pub(crate) struct Clock {
    start: Duration,
    seconds: AtomicU32,
    tenths: AtomicU32,
}

impl Clock {
    pub fn new() -> Clock {
        let clock =
            Clock { start: since_boot(), seconds: AtomicU32::new(0), tenths: AtomicU32::new(0) };
        clock.advance();
        clock
    }

    /// Seconds since the host was started.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.seconds.load(Ordering::Relaxed)
    }

    /// Tenths of a second since the switch was started.
    #[inline(always)]
    pub fn tenths(&self) -> u32 {
        self.tenths.load(Ordering::Relaxed)
    }

    pub fn advance(&self) {
        let now = since_boot();
        // Second 0 means "never" where times are stored.
        let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX).max(1);
        self.seconds.store(seconds, Ordering::Relaxed);
        let elapsed = now.saturating_sub(self.start);
        self.tenths
            .store(u32::try_from(elapsed.as_millis() / 100).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Lets time pass, for the harness.
    #[cfg(feature = "harness")]
    pub fn pass(&self, seconds: u32) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
        self.pass_tenths(seconds.saturating_mul(10));
    }

    /// Lets less than a second pass, for the harness.
    #[cfg(feature = "harness")]
    pub fn pass_tenths(&self, tenths: u32) {
        self.tenths.fetch_add(tenths, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process can tell the age of a time that another process wrote.
    #[test]
    fn every_clock_tells_the_same_time() {
        let uptime = || {
            std::fs::read_to_string("/proc/uptime")
                .unwrap()
                .split('.')
                .next()
                .unwrap()
                .parse::<u32>()
                .unwrap()
        };
        let before = uptime();
        let first = Clock::new();
        std::thread::sleep(Duration::from_millis(300));
        let second = Clock::new();
        first.advance();
        // The second may have ended between the two.
        assert!(
            (before.max(1)..=uptime() + 1).contains(&first.now()),
            "{} {}",
            before,
            first.now()
        );
        assert!(second.now() <= first.now() && first.now() - second.now() <= 1);
        assert!(
            first.tenths() >= 3 && second.tenths() == 0,
            "{} {}",
            first.tenths(),
            second.tenths()
        );
    }
}
