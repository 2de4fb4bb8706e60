//! Time and chance, as this host has them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Largest difference of a client's and a daemon's clock, and longest time under way of a request:
/// milliseconds.
pub const WINDOW: u64 = 60_000;

/// Fills its argument with random bytes. Tests have others than the system's.
pub type Random = fn(&mut [u8]) -> Result<(), getrandom::Error>;

/// Returns `N` random bytes.
pub fn random<const N: usize>(source: Random) -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    source(&mut bytes).map(|()| bytes)
}

/// Milliseconds since 1970, by this host's clock.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
