//! Interrupts: asked for, suppressed, waited for.

use std::{
    sync::atomic::{Ordering::SeqCst, fence},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::queue::{Half, VirtQueue, error::DeviceError};

/// An interrupt that was asked for comes within this time after the used index, or it was
/// forgotten.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(2);

impl VirtQueue {
    /// Asks for an interrupt at the next used entry. Returns false if one is there already, which
    /// may not interrupt.
    pub fn arm_interrupt(&mut self) -> bool {
        match &self.half {
            Half::Split(half) => half.arm(),
            Half::Packed(half) => half.arm(),
        }
        fence(SeqCst); // pairs with the device's, between its used entry and its look at our field
        !self.has_used()
    }

    /// Asks for no interrupts. On a split ring with EVENT_IDX that can only be put far off: one
    /// comes at the latest 65,535 entries later.
    pub fn suppress_interrupts(&mut self) {
        match &self.half {
            Half::Split(half) => half.suppress(),
            Half::Packed(half) => half.suppress(),
        }
    }

    /// Takes interrupts from the call descriptor; their number.
    pub fn take_interrupts(&mut self) -> u64 {
        let mut count = [0; 8];
        let taken = match rustix::io::read(&*self.link.call, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        };
        self.stats.interrupts += taken;
        taken
    }

    /// Waits until a used chain can be taken. Ok(false) after `timeout` without one.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        let deadline = Instant::now() + timeout;
        if !self.interrupts {
            while !self.has_used() {
                if Instant::now() >= deadline {
                    return Ok(false);
                }
                std::thread::yield_now();
            }
            return Ok(true);
        }
        while !self.has_used() && self.arm_interrupt() {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.poll_call(left) {
                if !self.has_used() {
                    self.suppress_interrupts();
                    return Ok(false);
                }
                // It came in the last moment; its interrupt must follow, unless the device is off
                // its core.
                if !self.poll_call(INTERRUPT_LIMIT) {
                    return Err(DeviceError::MissedInterrupt);
                }
            }
            self.take_interrupts();
        }
        self.suppress_interrupts();
        Ok(true)
    }

    /// True if the call descriptor is readable within `timeout`.
    fn poll_call(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&*self.link.call, PollFlags::IN)];
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        loop {
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {} // a signal: wait again
                result => return result == Ok(1),
            }
        }
    }
}
