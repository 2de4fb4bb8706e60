//! The limit of open files: every virtual machine needs some.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// Open files a vnic with a virtual machine takes: its socket, the connection, two rings with three each, memory.
const PER_VNIC: u64 = 16;
/// What we take if we may choose; beyond that tables in the kernel cost memory.
const WANTED: u64 = 1 << 20;
/// Below this somebody will run into the limit.
const COMFORTABLE: u64 = 1 << 14;

/// Raises the limit as far as it goes, and says how far that is.
pub fn raise_open_files() {
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum;
    // Only a privileged process may raise the hard limit too.
    let more = Rlimit { current: Some(WANTED), maximum: Some(hard.unwrap_or(WANTED).max(WANTED)) };
    let all = Rlimit { current: hard, maximum: hard };
    if now.current.is_some_and(|current| current < WANTED) && setrlimit(Resource::Nofile, more).is_err() {
        if let Err(error) = setrlimit(Resource::Nofile, all) {
            warn!("the limit of open files cannot be raised: {error}");
        }
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let vnics = limit / PER_VNIC;
    if limit < COMFORTABLE {
        warn!("{limit} files may be open, enough for about {vnics} vnics; {HOW_TO_RAISE}");
    } else {
        info!("{limit} files may be open, enough for about {vnics} vnics");
    }
}

/// What to do when open files run out.
pub const HOW_TO_RAISE: &str = "raise the hard limit of open files (LimitNOFILE= of the systemd unit, or ulimit -Hn)";

/// Whether so many files are open that one more vnic may fail for that.
pub fn open_files_are_used_up() -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return false };
    // If even the list cannot be opened, they are.
    std::fs::read_dir("/proc/self/fd").map_or(true, |open| open.count() as u64 + PER_VNIC >= limit)
}
