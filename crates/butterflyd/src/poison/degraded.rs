//! A start with less: the store is left alone, as three starts in a row came to nothing.

use butterfly_control::Desired;
use butterfly_store::Client;
use rustix::event::{EventfdFlags, eventfd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Time after which the store is opened.
const PAUSE: Duration = Duration::from_secs(600);

/// A store that is left alone for a while.
pub struct Degraded {
    why: String,
    until: Instant,
    /// Directory of the store.
    pub directory: PathBuf,
    /// State that the configuration declares.
    pub configured: Desired,
    pub open: fn(&Path) -> io::Result<Client>,
    /// Never readable: with it, the daemon looks at the time now and then.
    idle: OwnedFd,
}

fn pause() -> Duration {
    // Tests do not wait so long.
    #[cfg(debug_assertions)]
    if let Some(seconds) = std::env::var("BUTTERFLY_DEGRADED_S").ok().and_then(|s| s.parse().ok()) {
        return Duration::from_secs(seconds);
    }
    PAUSE
}

impl Degraded {
    /// Leaves a store alone that `open` opens.
    pub fn new(
        directory: PathBuf,
        configured: Desired,
        open: fn(&Path) -> io::Result<Client>,
    ) -> io::Result<Self> {
        let why = "three starts in a row came to nothing, so the store is not read and changes are refused: see the log, then restart the daemon";
        Ok(Self {
            why: why.to_owned(),
            until: Instant::now() + pause(),
            directory,
            configured,
            open,
            idle: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Returns whether it is time to open the store.
    pub fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }

    /// Returns the reason, for the operator.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Returns the seconds until the store is opened.
    pub fn left(&self) -> u64 {
        self.until.saturating_duration_since(Instant::now()).as_secs()
    }

    /// Returns a file with which the daemon looks at the time now and then.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.idle.as_fd()
    }
}
