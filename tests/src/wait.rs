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

/// Times that [`undisturbed`] measures at most.
const TRIES: u32 = 5;

/// Measures processor time while no processor was taken away from this machine: else the kernel
/// counts what others did as ours. If that happens each time, the least counts.
pub fn undisturbed(mut measure: impl FnMut() -> f64) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        let before = stolen();
        let used = measure();
        least = least.min(used);
        let taken = stolen() - before;
        if taken == 0 {
            return used;
        }
        println!("measured {used:.2} while {taken} ticks of processors were taken away: again");
    }
    least
}

/// Returns ticks for which this machine's processors were given to others (proc(5): steal).
fn stolen() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let all = stat.lines().next().and_then(|line| line.split_whitespace().nth(8));
    all.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}
