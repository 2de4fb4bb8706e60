//! Bounds the cost of finding room in a receive ring, and charges it to the guest.
//!
//! The guest alone decides how many descriptors its buffers have, and the worker looks at each of
//! them. A number that real drivers stay below is normal and free. The cost above it is the guest's
//! debt, which it pays back with time. Frames for a guest in debt up to the limit are refused.
//! Other senders lose nothing.

use std::cell::Cell;

use butterfly_mem::cpu;

use super::{rx::NotDelivered, space::CHAIN_BUDGET};

/// Descriptors that are normal for one frame: Linux without mergeable buffers always makes chains
/// of 19.
const NORMAL: u32 = 20;
/// Bytes of a frame that are a further one. The smallest buffers of a driver that is in use hold
/// 512.
const NORMAL_BYTES: u32 = 128;
/// Most descriptors above the normal that a ring is in debt for: one walk of the longest chain.
pub(super) const DEBT_LIMIT: u32 = 1024;
/// Descriptors of debt that a millisecond pays: at 20 ns each, 1/250 of a worker's time.
const PAID_PER_MS: u64 = 200;

/// The same of all rings that a worker writes to, together: many of them in one turn cost no more
/// than two.
const POOL_LIMIT: u32 = 2 * DEBT_LIMIT;
const POOL_PAID_PER_MS: u64 = 1000;

/// A frame that did not fit.
#[derive(Clone, Copy)]
struct Failed {
    /// More than any frame has: there is none.
    need: u32,
    at: u16,
    why: NotDelivered,
}

/// A buffer for which the allowance was too small. It is walked again when there is twice as much,
/// so that a steady stream of frames does not spend what time pays back.
#[derive(Clone, Copy)]
struct Slow {
    at: u16,
    /// Descriptors above the normal; 0 if there is no such buffer.
    allowed: u32,
}

/// Descriptors above the normal that were looked at, and are not paid yet.
#[derive(Clone, Copy)]
struct Debt {
    descriptors: u32,
    /// The time stamp counter when it was last paid.
    paid: u64,
}

impl Debt {
    const NONE: Debt = Debt { descriptors: 0, paid: 0 };

    #[cold]
    fn pay(&mut self, now: u64, per_ms: u64) {
        let passed = now.saturating_sub(self.paid);
        let paid =
            u128::from(passed) * u128::from(per_ms) / u128::from((cpu::tsc_hz() / 1000).max(1));
        if paid > 0 {
            self.paid = now;
            self.descriptors =
                self.descriptors.saturating_sub(u32::try_from(paid).unwrap_or(u32::MAX));
        }
    }

    #[cold]
    fn owe(&mut self, above: u32, limit: u32) {
        if self.descriptors == 0 {
            self.paid = cpu::tsc();
        }
        self.descriptors = (self.descriptors + above).min(limit);
    }
}

thread_local! {
    /// Debt of this worker.
    static POOL: Cell<Debt> = const { Cell::new(Debt::NONE) };
}

/// Cost of finding room in one ring.
pub(super) struct Walks {
    debt: Debt,
    /// Failures of this batch.
    failed: Failed,
    slow: Slow,
}

/// Descriptors that a frame of this size may cost for free.
#[inline(always)]
fn normal(need: u32) -> u32 {
    NORMAL + need / NORMAL_BYTES
}

impl Default for Walks {
    fn default() -> Self {
        Walks {
            debt: Debt::NONE,
            failed: Failed { need: u32::MAX, at: 0, why: NotDelivered::Full },
            slow: Slow { at: 0, allowed: 0 },
        }
    }
}

impl Walks {
    /// Descriptors that may be looked at for a frame of this size at this position; `None` if too
    /// few to try.
    #[inline(always)]
    pub fn allowed(&mut self, at: u16, need: u32) -> Option<u32> {
        let mut pool = POOL.get();
        if (pool.descriptors | self.debt.descriptors) > 0 {
            self.pay(&mut pool);
        }
        let above = (DEBT_LIMIT - self.debt.descriptors).min(POOL_LIMIT - pool.descriptors);
        let slow = self.slow.allowed > 0
            && self.slow.at == at
            && above < (2 * self.slow.allowed).min(DEBT_LIMIT);
        (!slow).then_some(normal(need) + above)
    }

    /// Records that `allowed` descriptors were too few for the buffer at this position.
    #[cold]
    pub fn too_few(&mut self, at: u16, need: u32, allowed: u32) {
        self.slow = Slow { at, allowed: allowed.saturating_sub(normal(need)).max(1) };
    }

    #[cold]
    fn pay(&mut self, pool: &mut Debt) {
        let now = cpu::tsc();
        pool.pay(now, POOL_PAID_PER_MS);
        POOL.set(*pool);
        self.debt.pay(now, PAID_PER_MS);
    }

    /// Records that a chain of so many descriptors cannot be used. Of a packed ring each of them
    /// was looked at to find it, and others are paid for when a frame is written into them.
    #[cold]
    pub fn wasted(&mut self, descriptors: u16) {
        let above = u32::from(descriptors).saturating_sub(NORMAL);
        if above > 0 {
            self.owe(above.min(DEBT_LIMIT));
        }
    }

    /// Descriptors that may be looked at now to find chains: no more than is normal for one frame,
    /// if almost all is owed that may be.
    #[cold]
    pub fn looks(&mut self) -> u32 {
        let mut pool = POOL.get();
        self.pay(&mut pool);
        let near = |limit| limit - limit / 16;
        let owes = self.debt.descriptors > near(DEBT_LIMIT) || pool.descriptors > near(POOL_LIMIT);
        if owes { NORMAL } else { CHAIN_BUDGET }
    }

    /// Records that so many descriptors were looked at.
    #[inline(always)]
    pub fn spent(&mut self, need: u32, descriptors: u32) {
        let above = descriptors.saturating_sub(normal(need));
        if above > 0 {
            self.owe(above);
        }
    }

    #[cold]
    fn owe(&mut self, above: u32) {
        self.debt.owe(above, DEBT_LIMIT);
        let mut pool = POOL.get();
        pool.owe(above, POOL_LIMIT);
        POOL.set(pool);
    }

    /// Remembers that a frame of this size did not fit at this position.
    #[cold]
    pub fn failed(&mut self, at: u16, need: u32, why: NotDelivered) {
        self.failed = Failed { need, at, why };
    }

    /// Returns why a frame that is no larger did not fit at this position.
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
        assert_eq!((walks.debt.descriptors, walks.allowed(0, 76)), (0, Some(20 + 1024)));
        walks.spent(76, 620);
        assert_eq!(walks.debt.descriptors, 600);
        walks.spent(76, 1024);
        let debt = &mut walks.debt;
        assert_eq!(debt.descriptors, DEBT_LIMIT, "it is never more");
        let begun = debt.paid;
        let ms = cpu::tsc_hz() / 1000;
        debt.pay(begun + ms, PAID_PER_MS);
        assert_eq!(debt.descriptors, 1024 - 200);
        debt.pay(begun + ms + ms / 1000, PAID_PER_MS);
        assert_eq!(
            (debt.descriptors, debt.paid),
            (1024 - 200, begun + ms),
            "parts of a descriptor are not lost"
        );
        debt.pay(begun + 7 * ms, PAID_PER_MS);
        assert_eq!(debt.descriptors, 0);
    }

    #[test]
    fn rings_of_one_worker_share_a_pool() {
        let mut rings: Vec<Walks> = (0..64).map(|_| Walks::default()).collect();
        let begun = cpu::tsc();
        let mut above = 0;
        for ring in &mut rings {
            let allowed = ring.allowed(0, 76).unwrap();
            ring.spent(76, allowed);
            above += allowed - normal(76);
        }
        let paid = (cpu::tsc() - begun) * POOL_PAID_PER_MS / (cpu::tsc_hz() / 1000);
        assert!(
            u64::from(above) <= u64::from(POOL_LIMIT) + paid + 64,
            "{above} descriptors, {paid} paid meanwhile"
        );
        let mut sound = Walks::default();
        assert!(sound.allowed(0, 76) >= Some(normal(76)), "who needs no more gets that always");
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
