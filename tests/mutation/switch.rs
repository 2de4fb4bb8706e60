//! Which mistake is made in this run: the environment says.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const UNKNOWN: u32 = u32::MAX;
static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Returns whether mutant `number` is on. 0 is nobody's number.
#[inline]
pub fn mutant(number: u32) -> bool {
    match ACTIVE.load(Relaxed) {
        UNKNOWN => ask() == number,
        active => active == number,
    }
}

#[cold]
fn ask() -> u32 {
    let active = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    ACTIVE.store(active, Relaxed);
    active
}

/// A constant that somebody mistook.
pub trait Changed: Sized {
    /// Returns another value.
    fn changed(self) -> Self;
}

macro_rules! changed {
    ($($number:ty)*) => {
        $(impl Changed for $number {
            fn changed(self) -> Self {
                // All ones are twice themselves and one.
                if self == !0 { self - 1 } else { self.wrapping_mul(2).wrapping_add(1) }
            }
        })*
    };
}

changed!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 isize);

impl Changed for std::time::Duration {
    fn changed(self) -> Self {
        self.saturating_mul(2) + std::time::Duration::from_secs(1)
    }
}
