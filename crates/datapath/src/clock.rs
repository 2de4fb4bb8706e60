//! A coarse clock for the packet path: seconds, and tenths of them, since the switch started, written by the housekeeping thread.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

pub(crate) struct Clock {
    start: Instant,
    seconds: AtomicU32,
    tenths: AtomicU32,
}

impl Clock {
    pub fn new() -> Clock {
        // Second 0 means "never" where times are stored.
        Clock { start: Instant::now(), seconds: AtomicU32::new(1), tenths: AtomicU32::new(0) }
    }

    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.seconds.load(Ordering::Relaxed)
    }

    /// Tenths of a second since the start.
    #[inline(always)]
    pub fn tenths(&self) -> u32 {
        self.tenths.load(Ordering::Relaxed)
    }

    pub fn advance(&self) {
        let elapsed = self.start.elapsed();
        let seconds = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX - 1);
        self.seconds.store(seconds.saturating_add(1), Ordering::Relaxed);
        self.tenths.store(u32::try_from(elapsed.as_millis() / 100).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// For the harness: lets time pass.
    pub fn pass(&self, seconds: u32) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
        self.pass_tenths(seconds.saturating_mul(10));
    }

    /// For the harness: lets less than a second pass.
    pub fn pass_tenths(&self, tenths: u32) {
        self.tenths.fetch_add(tenths, Ordering::Relaxed);
    }
}
