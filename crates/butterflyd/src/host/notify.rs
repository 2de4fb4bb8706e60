//! Telling systemd how the daemon is, and its wish for signs of life.

use std::{env, time::Duration};

pub use butterfly_holder::notify::Notify;

/// Returns how often systemd wants a sign of life of this process, if it does.
pub fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    // Without the second, the first is for any process.
    let ours =
        number("WATCHDOG_PID").is_none_or(|process| process == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|time| ours && *time > 0).map(Duration::from_micros)
}
