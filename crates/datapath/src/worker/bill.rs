//! Bill of a turn: it begins where the one before ended, and the turn's ring pays for it.

use crate::engine::budget::Budget;
use crate::worker::fair::Cost;

/// The bill of the turn that is under way.
pub(super) struct Bill {
    /// The time stamp counter when it began, and whether rings without frames were looked at since.
    begun: u64,
    looked: bool,
    /// Cycles of it that interrupts took.
    signals: u64,
    /// Budget of the turn, and the part of it that was left.
    budget: Budget,
    left: Budget,
}

impl Bill {
    pub fn new() -> Bill {
        Bill { begun: 0, looked: false, signals: 0, budget: Budget::WHOLE, left: Budget::WHOLE }
    }

    /// Begins a round.
    #[inline(always)]
    pub fn begin(&mut self, now: u64) {
        self.begun = now;
        self.looked = false;
    }

    /// Notes that a ring was looked at, and had no turn.
    #[inline(always)]
    pub fn looked(&mut self) {
        self.looked = true;
    }

    /// Begins the turn of a ring. The looks at rings before it cost it nothing.
    #[inline(always)]
    pub fn open(&mut self, now: impl FnOnce() -> u64) {
        if self.looked {
            self.begin(now());
        }
    }

    /// Notes the budget of the turn, and the part of it that was left.
    #[inline(always)]
    pub fn used(&mut self, budget: Budget, left: Budget) {
        (self.budget, self.left) = (budget, left);
    }

    /// Notes the cycles that interrupts took.
    #[inline(always)]
    pub fn signals(&mut self, cycles: u64) {
        self.signals = cycles;
    }

    /// Ends the turn, and begins the next one. Returns its cycles, and those of them that
    /// interrupts took.
    #[inline(always)]
    pub fn close(&mut self, now: u64) -> (u64, u64) {
        let cycles = now.wrapping_sub(self.begun);
        self.begun = now;
        (cycles, std::mem::take(&mut self.signals))
    }

    /// Returns the cost of the turn that was closed last, which took so many frames. A flood of one
    /// frame is the work of many.
    #[cold]
    pub fn cost(&self, (cycles, signals): (u64, u64), frames: usize) -> Cost {
        Cost { cycles, signals, frames: frames.max(self.budget.used(self.left)) }
    }
}
