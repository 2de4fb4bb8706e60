//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the epoch.
pub fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
