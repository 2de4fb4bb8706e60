//! Services of the processor for the packet path: the time stamp counter, AES rounds. And a clock
//! that outlives the process.

mod aes;

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

pub use aes::{Aes, FlowWords, RoundKeys};

/// The time stamp counter: constant rate on every processor this runs on (`constant_tsc`), not
/// serialising.
#[inline(always)]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor and reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Shortest time over which ticks are measured.
const MEASURED: Duration = Duration::from_millis(10);

static BEGAN: OnceLock<(Instant, u64)> = OnceLock::new();
static HZ: OnceLock<u64> = OnceLock::new();

/// Begins to measure [`tsc_hz`], so that nobody waits for it later. For the beginning of a program.
pub fn begin_to_measure() {
    BEGAN.get_or_init(both);
}

/// Ticks of [`tsc`] per second, measured once against the monotonic clock. Waits until the
/// measurement has taken long enough.
pub fn tsc_hz() -> u64 {
    *HZ.get_or_init(|| {
        let (start, first) = *BEGAN.get_or_init(both);
        std::thread::sleep(MEASURED.saturating_sub(start.elapsed()));
        let (end, last) = both();
        let (ticks, nanos) = (last - first, (end - start).as_nanos().max(1));
        u64::try_from(u128::from(ticks) * 1_000_000_000 / nanos).unwrap_or(1_000_000_000)
    })
}

/// Reads both clocks as close to each other as some attempts get them.
fn both() -> (Instant, u64) {
    let read = || {
        let before = tsc();
        let now = Instant::now();
        let apart = tsc().wrapping_sub(before);
        (apart, (now, before.wrapping_add(apart / 2)))
    };
    let first = read();
    let least =
        (0..4).map(|_| read()).fold(first, |least, it| if it.0 < least.0 { it } else { least });
    least.1
}

/// Returns the time since the host was started, including the time that it slept (CLOCK_BOOTTIME).
/// Every process reads the same, and it never goes back.
pub fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Not rustix, which dies of it under valgrind.
    // SAFETY: it writes a timespec, and nothing if there were no such clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Fetches the line of a word that will be used soon.
#[inline(always)]
pub fn prefetch(word: &std::sync::atomic::AtomicU64) {
    let at: *const _ = word;
    // SAFETY: a prefetch is a hint: it neither faults nor changes memory.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn ticks_are_plausible() {
        let hz = super::tsc_hz();
        assert!((500_000_000..10_000_000_000).contains(&hz), "{hz}");
    }
}
