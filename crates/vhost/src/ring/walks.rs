//! What finding room in a receive ring may cost, and who pays.
//!
//! The guest alone decides how many descriptors its buffers have, and the worker looks at each of them. A number that
//! real drivers stay below is normal and free. What a ring costs above it is the guest's debt, which it pays back with
//! time. In debt up to the limit, its frames are refused, and the senders of others lose nothing.

use super::rx::NotDelivered;
use crate::cpu;

/// Descriptors that are normal for one frame: Linux without mergeable buffers makes chains of 19, whatever comes.
const NORMAL: u32 = 20;
/// Bytes of a frame that are a further one. The smallest buffers of a driver that is in use hold 512.
const NORMAL_BYTES: u32 = 128;
/// Most descriptors above the normal that a ring is in debt for: one walk of the longest chain.
pub(super) const DEBT_LIMIT: u32 = 1024;
/// Descriptors of debt that a millisecond pays: at 20 ns each, 1/250 of a worker's time.
const PAID_PER_MS: u64 = 200;

/// A frame that did not fit.
#[derive(Clone, Copy)]
struct Failed {
    /// More than any frame has: there is none.
    need: u32,
    at: u16,
    why: NotDelivered,
}

/// What finding room in one ring has cost.
pub(super) struct Walks {
    /// Descriptors above the normal, not paid yet.
    debt: u32,
    /// The time stamp counter when it was last paid.
    paid: u64,
    /// Of this batch.
    failed: Failed,
}

/// Descriptors that a frame of this size may cost for free.
#[inline(always)]
fn normal(need: u32) -> u32 {
    NORMAL + need / NORMAL_BYTES
}

impl Default for Walks {
    fn default() -> Self {
        Walks { debt: 0, paid: 0, failed: Failed { need: u32::MAX, at: 0, why: NotDelivered::Full } }
    }
}

impl Walks {
    /// Descriptors that may be looked at for a frame of this size.
    #[inline(always)]
    pub fn allowed(&mut self, need: u32) -> u32 {
        if self.debt > 0 {
            self.pay(cpu::tsc());
        }
        normal(need) + (DEBT_LIMIT - self.debt)
    }

    #[cold]
    fn pay(&mut self, now: u64) {
        let per_ms = (cpu::tsc_hz() / 1000).max(1);
        let passed = now.saturating_sub(self.paid);
        let paid = u128::from(passed) * u128::from(PAID_PER_MS) / u128::from(per_ms);
        if paid > 0 {
            self.paid = now;
            self.debt = self.debt.saturating_sub(u32::try_from(paid).unwrap_or(u32::MAX));
        }
    }

    /// So many were looked at.
    #[inline(always)]
    pub fn spent(&mut self, need: u32, descriptors: u32) {
        let above = descriptors.saturating_sub(normal(need));
        if above > 0 {
            self.owe(above);
        }
    }

    #[cold]
    fn owe(&mut self, above: u32) {
        if self.debt == 0 {
            self.paid = cpu::tsc();
        }
        self.debt = (self.debt + above).min(DEBT_LIMIT);
    }

    /// Remembers that a frame of this size did not fit at this position.
    #[cold]
    pub fn failed(&mut self, at: u16, need: u32, why: NotDelivered) {
        self.failed = Failed { need, at, why };
    }

    /// Why a frame that is no larger did not fit at this position.
    #[inline(always)]
    pub fn has_failed(&self, at: u16, need: u32) -> Option<NotDelivered> {
        (need >= self.failed.need && self.failed.at == at).then_some(self.failed.why)
    }

    /// A batch ended: the guest may have changed what did not fit.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.failed.need = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drivers_need_is_free_and_more_is_a_debt_that_time_pays() {
        let mut walks = Walks::default();
        for need in [76, 1526, 65_562] {
            // Header apart, pages for the largest frame, mergeable buffers of 512 bytes.
            for descriptors in [2, 19, need / 512 + 1, need / 4096 + 3] {
                walks.spent(need, descriptors);
            }
        }
        assert_eq!((walks.debt, walks.allowed(76)), (0, 20 + 1024));
        walks.spent(76, 620);
        assert_eq!(walks.debt, 600);
        walks.spent(76, 1024);
        assert_eq!(walks.debt, DEBT_LIMIT, "it is never more");
        let begun = walks.paid;
        let ms = cpu::tsc_hz() / 1000;
        walks.pay(begun + ms);
        assert_eq!(walks.debt, 1024 - 200);
        walks.pay(begun + ms + ms / 1000);
        assert_eq!((walks.debt, walks.paid), (1024 - 200, begun + ms), "parts of a descriptor are not lost");
        walks.pay(begun + 7 * ms);
        assert_eq!(walks.debt, 0);
    }

    #[test]
    fn a_failure_is_about_frames_that_are_no_smaller_at_the_same_place() {
        let mut walks = Walks::default();
        walks.failed(7, 1000, NotDelivered::TooLarge);
        assert_eq!(walks.has_failed(7, 1000), Some(NotDelivered::TooLarge));
        assert_eq!((walks.has_failed(7, 999), walks.has_failed(8, 1000)), (None, None));
        walks.forget();
        assert_eq!(walks.has_failed(7, 1000), None);
    }
}
