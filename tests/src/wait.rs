//! Waiting for conditions that have no event.

use std::time::{Duration, Instant};

/// Time limit of all waits: only a hanging program takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `what` holds, at most [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(PATIENCE, what, holds);
}

/// Waits until `what` holds, at most `limit`.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
