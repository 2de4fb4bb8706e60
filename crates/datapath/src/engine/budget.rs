//! Budget of a turn: the copies and visits left to it.

use butterfly_vhost::ring::BATCH;

/// Most copies of one turn.
const COPIES: u64 = 1024;
/// Most visits to receivers' rings in one turn: after each the guest may want an interrupt.
const VISITS: u64 = 64;
/// Copies and visits left to a turn.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    /// Copies of small frames into rings that are at hand.
    pub copies: u64,
    /// Visits to receivers' rings.
    pub visits: u64,
}

impl Budget {
    pub const WHOLE: Budget = Budget { copies: COPIES, visits: VISITS };

    /// Budget of an explanation: one frame, however many receivers it has.
    pub const UNBOUNDED: Budget = Budget { copies: u64::MAX, visits: u64::MAX };

    /// Returns the budget of a turn of so many frames. A full batch has all of it.
    #[inline(always)]
    pub fn of(frames: u16) -> Budget {
        let part = |whole: u64| whole / BATCH as u64 * u64::from(frames);
        Budget { copies: part(COPIES), visits: part(VISITS) }
    }

    /// Returns the part of the budget that was used, in frames. A flood of one frame is the work of
    /// many.
    #[inline(always)]
    pub fn used(self, left: Budget) -> usize {
        let parts = |used: u64, whole: u64| used.div_ceil(whole / BATCH as u64);
        let copies = parts(self.copies.saturating_sub(left.copies), COPIES);
        copies.max(parts(self.visits.saturating_sub(left.visits), VISITS)) as usize
    }
}
