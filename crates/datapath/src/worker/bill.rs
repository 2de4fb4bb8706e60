//! What a turn costs: it begins where the one before ended, and its ring pays for it.

use crate::engine::budget::Budget;
use crate::worker::fair::Cost;

/// The bill of the turn that is under way.
pub(super) struct Bill {
    /// The time stamp counter when it began, and whether rings that had nothing were looked at
    /// since.
    begun: u64,
    looked: bool,
    /// What interrupts took of it, in cycles.
    signals: u64,
    /// What it may use, and what it left of that.
    budget: Budget,
    left: Budget,
}

impl Bill {
    pub fn new() -> Bill {
        Bill { begun: 0, looked: false, signals: 0, budget: Budget::WHOLE, left: Budget::WHOLE }
    }

    /// A round begins.
    #[inline(always)]
    pub fn begin(&mut self, now: u64) {
        self.begun = now;
        self.looked = false;
    }

    /// A ring was looked at, and no turn came of it.
    #[inline(always)]
    pub fn looked(&mut self) {
        self.looked = true;
    }

    /// A ring is looked at. Those before it cost it nothing.
    #[inline(always)]
    pub fn open(&mut self, now: impl FnOnce() -> u64) {
        if self.looked {
            self.begin(now());
        }
    }

    /// The turn had this budget, and left so much of it.
    #[inline(always)]
    pub fn used(&mut self, budget: Budget, left: Budget) {
        (self.budget, self.left) = (budget, left);
    }

    /// Interrupts took so many cycles of it.
    #[inline(always)]
    pub fn signals(&mut self, cycles: u64) {
        self.signals = cycles;
    }

    /// Ends the turn, and begins the next one. Returns what it cost, and what interrupts took of
    /// that, in cycles.
    #[inline(always)]
    pub fn close(&mut self, now: u64) -> (u64, u64) {
        let cycles = now.wrapping_sub(self.begun);
        self.begun = now;
        (cycles, std::mem::take(&mut self.signals))
    }

    /// The cost of the turn that was closed last, which took so many frames: a flood of one frame
    /// is the work of many.
    #[cold]
    pub fn cost(&self, (cycles, signals): (u64, u64), frames: usize) -> Cost {
        Cost { cycles, signals, frames: frames.max(self.budget.used(self.left)) }
    }
}
