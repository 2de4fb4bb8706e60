//! Serial numbers, compared modulo 2^32 (RFC 9293, 3.4).

/// Returns how far `a` is ahead of `b` in serial arithmetic; negative if behind.
#[inline(always)]
pub(super) const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// Returns the later one.
#[inline(always)]
pub(crate) const fn later(a: u32, b: u32) -> u32 {
    if ahead(a, b) > 0 { a } else { b }
}

/// Returns whether `value` is from `low` to `high`, both included.
#[inline(always)]
pub(super) const fn between(low: u32, value: u32, high: u32) -> bool {
    value.wrapping_sub(low) <= high.wrapping_sub(low) && ahead(high, low) >= 0
}
