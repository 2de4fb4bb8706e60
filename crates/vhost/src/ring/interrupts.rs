//! Cost of a vnic's interrupts. Costly interrupts are measured and taken away from the worker.
//!
//! A signal wakes everything that waits for the eventfd, inside the call that sends it. The front
//! end decides how much waits: with a million epoll watches on the eventfd each signal takes 94 ms.
//! So each signal is measured. A vnic whose signals cost more than [`NORMAL`] by [`EXCESS`] in sum
//! is *apart*: its signals are sent by the messenger ([`super::messenger`]).
//!
//! A worker that loses its processor within a signal measures the same. Therefore being apart is a
//! suspicion at first. The messenger measures each signal by its own processor time. [`STRIKES`]
//! costly ones confirm it, and the vnic stays apart until its front end attaches anew. Without them
//! it returns when its probation is over. Each probation is twice as long as the one before. It
//! belongs to the vnic, not to the front end: attaching anew buys no costly signal.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use butterfly_mem::cpu;

/// Nanoseconds that a signal may take. One that wakes a sleeping thread takes 1 to 2 us on
/// hardware, 9 us in a virtual machine.
const NORMAL: u64 = 20_000;
/// Nanoseconds beyond that, in sum, for which a vnic is set apart: one signal of 50 us, about what
/// a full batch takes.
const EXCESS: u64 = 30_000;
/// A vnic's excess decays by a 128th of the time that passes.
const DECAY: u32 = 7;
/// Costly signals of the messenger that confirm a suspicion. One may be the hypervisor's doing.
const STRIKES: u32 = 3;
/// The first probation, and how often it is doubled at most: 1 s to 17 min.
const PROBATION: u64 = 1_000_000_000;
const DOUBLED: u32 = 10;

const PROMPT: u8 = 0;
const SUSPECT: u8 = 1;
const SLOW: u8 = 2;

/// A vnic's interrupts. Times are ticks of the time stamp counter.
#[derive(Debug)]
pub struct Interrupts {
    mode: AtomicU8,
    excess: AtomicU64,
    excess_at: AtomicU64,
    until: AtomicU64,
    suspected: AtomicU32,
    strikes: AtomicU32,
    costly: AtomicU64,
    confirmed: AtomicU64,
    worst_ns: AtomicU64,
    hz: u64,
}

/// A vnic's interrupts for the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptReport {
    /// Signals for which the vnic was set apart, since it was added.
    pub costly: u64,
    /// Number of times that slow signals were confirmed.
    pub confirmed: u64,
    /// A thread of their own sends them now, as they are slow.
    pub apart: bool,
    /// The longest, in nanoseconds.
    pub worst_ns: u64,
}

impl Default for Interrupts {
    fn default() -> Interrupts {
        Interrupts {
            mode: AtomicU8::new(PROMPT),
            excess: AtomicU64::new(0),
            excess_at: AtomicU64::new(0),
            until: AtomicU64::new(0),
            suspected: AtomicU32::new(0),
            strikes: AtomicU32::new(0),
            costly: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            worst_ns: AtomicU64::new(0),
            hz: cpu::tsc_hz(),
        }
    }
}

impl Interrupts {
    /// True if the messenger has to send the signals.
    #[inline(always)]
    pub(super) fn apart(&self) -> bool {
        self.mode.load(Relaxed) != PROMPT
    }

    /// True if the signals are certainly slow.
    pub(super) fn slow(&self) -> bool {
        self.mode.load(Relaxed) == SLOW
    }

    /// A signal of a worker took so many ticks, up to `now`.
    #[inline(always)]
    pub(super) fn took(&self, ticks: u64, now: u64) {
        // 2^15 ticks are 20 us at 1.6 GHz, and less on faster processors.
        if ticks >> 15 != 0 {
            self.consider(self.nanos(ticks), now);
        }
    }

    #[cold]
    fn consider(&self, ns: u64, now: u64) {
        if self.too_much(ns, now) {
            self.suspect(now);
        }
    }

    /// A signal of the messenger took so much processor time. Returns whether the vnic's signals
    /// are known to be slow.
    pub(super) fn judge(&self, ns: u64, now: u64) -> bool {
        if self.too_much(ns, now) {
            if self.strikes.fetch_add(1, Relaxed) + 1 >= STRIKES
                && self.mode.swap(SLOW, Relaxed) != SLOW
            {
                self.confirmed.fetch_add(1, Relaxed);
            }
            // As long again.
            let times = self.suspected.load(Relaxed).saturating_sub(1);
            self.probation(now, times);
        } else if self.mode.load(Relaxed) == SUSPECT && self.until.load(Relaxed) <= now {
            self.strikes.store(0, Relaxed);
            self.mode.store(PROMPT, Relaxed);
        }
        self.slow()
    }

    /// A front end attached: what is known of the one before may not hold of it, which is to be
    /// seen.
    pub(crate) fn attached(&self) {
        self.strikes.store(0, Relaxed);
        if self.mode.load(Relaxed) == SLOW {
            self.probation(cpu::tsc(), self.suspected.fetch_add(1, Relaxed));
            self.mode.store(SUSPECT, Relaxed);
        }
    }

    /// For the operator.
    pub fn report(&self) -> InterruptReport {
        InterruptReport {
            costly: self.costly.load(Relaxed),
            confirmed: self.confirmed.load(Relaxed),
            apart: self.slow(),
            worst_ns: self.worst_ns.load(Relaxed),
        }
    }

    fn nanos(&self, ticks: u64) -> u64 {
        u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(self.hz.max(1)))
            .unwrap_or(u64::MAX)
    }

    fn ticks(&self, nanos: u64) -> u64 {
        u64::try_from(u128::from(nanos) * u128::from(self.hz) / 1_000_000_000).unwrap_or(u64::MAX)
    }

    /// Adds a signal to the vnic's excess. Returns whether that is too much now; then it begins
    /// anew.
    fn too_much(&self, ns: u64, now: u64) -> bool {
        self.worst_ns.fetch_max(ns, Relaxed);
        let over = ns.saturating_sub(NORMAL);
        let passed = self.nanos(now.saturating_sub(self.excess_at.fetch_max(now, Relaxed)));
        let sum = |excess: u64| excess.saturating_sub(passed >> DECAY).saturating_add(over);
        let too_much = |excess: u64| over > 0 && excess >= EXCESS;
        // Several workers may signal one machine.
        let add = |excess| Some(if too_much(sum(excess)) { 0 } else { sum(excess) });
        let before = self.excess.fetch_update(Relaxed, Relaxed, add).unwrap_or(0);
        too_much(sum(before))
    }

    fn suspect(&self, now: u64) {
        self.costly.fetch_add(1, Relaxed);
        self.strikes.store(0, Relaxed);
        self.probation(now, self.suspected.fetch_add(1, Relaxed));
        // One that is slow stays it.
        let _ = self.mode.compare_exchange(PROMPT, SUSPECT, Relaxed, Relaxed);
    }

    /// Begins a probation; `times` there were before.
    fn probation(&self, now: u64, times: u32) {
        self.until.store(now.saturating_add(self.ticks(PROBATION << times.min(DOUBLED))), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Makes interrupts with a counter of nanoseconds.
    fn interrupts() -> Interrupts {
        Interrupts { hz: SECOND, ..Interrupts::default() }
    }

    #[test]
    fn one_slow_signal_or_many_slowish_ones_set_apart() {
        let one = interrupts();
        one.took(49_000, 1);
        assert!(!one.apart());
        let one = interrupts();
        one.took(51_000, 1);
        assert!(one.apart());
        // 45 us each are as bad.
        let many = interrupts();
        many.took(45_000, 1);
        assert!(!many.apart());
        many.took(45_000, 100_000);
        assert!(many.apart());
        // Normal ones never are, however many; nor is a single one now and then.
        let normal = interrupts();
        (1..100_000).for_each(|n| normal.took(20_000, n * 20_000));
        assert!(!normal.apart());
        (1..100).for_each(|n| normal.took(45_000, n * SECOND));
        assert!(!normal.apart());
    }

    #[test]
    fn a_suspect_returns_and_every_suspicion_lasts_twice_as_long() {
        let of = interrupts();
        let mut now = 1;
        for times in 0..14u32 {
            of.took(60_000, now);
            let lasts = SECOND << times.min(10);
            assert!(!of.judge(5_000, now + lasts - 1) && of.apart(), "{times}");
            now += lasts;
            assert!(!of.judge(5_000, now) && !of.apart(), "{times}");
        }
        assert_eq!(
            of.report(),
            InterruptReport { costly: 14, confirmed: 0, apart: false, worst_ns: 60_000 }
        );
    }

    #[test]
    fn a_strike_begins_the_probation_anew() {
        let of = interrupts();
        of.took(60_000, 1);
        assert!(!of.judge(60_000, SECOND + 1) && of.apart(), "it was costly again");
        assert!(!of.judge(1_000, 2 * SECOND) && of.apart());
        assert!(!of.judge(1_000, 2 * SECOND + 1) && !of.apart());
    }

    #[test]
    fn three_strikes_confirm_it_until_another_front_end_is_seen_to_be_better() {
        let of = interrupts();
        of.took(60_000, 1);
        assert!(!of.judge(60_000, 2) && !of.judge(60_000, 3) && of.judge(60_000, 4));
        assert!(of.judge(1_000, 1000 * SECOND), "no time makes it better");
        of.attached();
        assert!(of.apart() && !of.slow(), "it is on probation");
        assert!(!of.judge(1_000, cpu::tsc()), "and that is not over yet");
        assert!(of.apart());
        assert!(!of.judge(1_000, u64::MAX));
        assert!(!of.apart());
        assert_eq!((of.report().costly, of.report().confirmed), (1, 1));
    }
}
