//! A coarse clock for the packet path: seconds since the switch started, written by the housekeeping thread.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

pub(crate) struct Clock {
    start: Instant,
    seconds: AtomicU32,
}

impl Clock {
    pub fn new() -> Clock {
        // Second 0 means "never" where times are stored.
        Clock { start: Instant::now(), seconds: AtomicU32::new(1) }
    }

    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.seconds.load(Ordering::Relaxed)
    }

    pub fn advance(&self) {
        let seconds = u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX - 1);
        self.seconds.store(seconds.saturating_add(1), Ordering::Relaxed);
    }

    /// For the harness: lets time pass.
    pub fn pass(&self, seconds: u32) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}
