//! The limit of open files: every virtual machine needs some.
//!
//! When they are used up things fail in places that cannot cope: a machine cannot attach. So a vnic
//! is refused while there is still enough for all that are there, and clients of the API have a
//! part of their own.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// Open files of a vnic with its machine: its socket, the connection, two rings, the log, and
/// memory while it is mapped.
const PER_VNIC: u64 = 16;
/// Those of everything else: workers, the log, the first [`FEWEST_CONNECTIONS`] clients of the API.
const RESERVED: u64 = 64;
/// Connections to the API that there may be under any limit.
const FEWEST_CONNECTIONS: u64 = 16;
/// Connections to the API that there are at most.
const MOST_CONNECTIONS: u64 = 1024;
/// One of so many open files may be a client's.
const OF_A_CLIENT: u64 = 16;
/// Open files that we take if we may choose; beyond that tables in the kernel cost memory.
const WANTED: u64 = 1 << 20;
/// Open files below which an operator will run into the limit.
const COMFORTABLE: u64 = 1 << 14;
/// Advice to the operator.
const HOW_TO_RAISE: &str = "raise the hard limit of open files (LimitNOFILE= of the systemd unit, or ulimit -Hn) and restart";

/// Raises the limit as far as it goes, and says how far that is.
pub fn raise_open_files() {
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum;
    // Only a privileged process may raise the hard limit too.
    let more = Rlimit { current: Some(WANTED), maximum: Some(hard.unwrap_or(WANTED).max(WANTED)) };
    let all = Rlimit { current: hard, maximum: hard };
    if now.current.is_some_and(|current| current < WANTED) {
        let raised =
            setrlimit(Resource::Nofile, more).or_else(|_| setrlimit(Resource::Nofile, all));
        if let Err(error) = raised {
            warn!("the limit of open files cannot be raised: {error}");
        }
    }
    let limit = open_files();
    let vnics = most_vnics(limit);
    if limit < COMFORTABLE {
        warn!("{limit} files may be open, enough for {vnics} vnics; {HOW_TO_RAISE}");
    } else {
        info!("{limit} files may be open, enough for {vnics} vnics");
    }
}

/// Every vnic there may be is there already.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} files may be open, which is enough for {vnics} nics and no more")]
pub struct NoRoom {
    limit: u64,
    vnics: u64,
}

impl NoRoom {
    /// Returns the advice to the operator.
    pub fn help(&self) -> &'static str {
        HOW_TO_RAISE
    }
}

/// Checks that there are open files for one vnic more than `present`.
pub fn room_beside(present: usize) -> Result<(), NoRoom> {
    room(present as u64, open_files())
}

fn room(present: u64, limit: u64) -> Result<(), NoRoom> {
    let vnics = most_vnics(limit);
    if present < vnics { Ok(()) } else { Err(NoRoom { limit, vnics }) }
}

/// Returns how many connections to the API there may be.
pub fn connections() -> usize {
    connections_of(open_files()) as usize
}

fn connections_of(limit: u64) -> u64 {
    (limit / OF_A_CLIENT).clamp(FEWEST_CONNECTIONS, MOST_CONNECTIONS)
}

fn most_vnics(limit: u64) -> u64 {
    limit.saturating_sub(RESERVED + connections_of(limit) - FEWEST_CONNECTIONS) / PER_VNIC
}

fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_vnic_that_has_enough_is_taken() {
        for (limit, vnics) in
            [(0, 0), (64, 0), (79, 0), (80, 1), (1024, 57), (4096, 237), (WANTED, 65469)]
        {
            assert_eq!(room(vnics, limit), Err(NoRoom { limit, vnics }), "{limit}");
            assert!(vnics == 0 || room(vnics - 1, limit).is_ok(), "{limit}");
        }
    }
}
