//! Mappings that this process has for front ends.
//!
//! The kernel allows a process `vm.max_map_count` of them: 65,530 unless the operator raised it.
//! Beyond that the repair of a truncated memory ([`crate::sigbus`]) fails, too, and the process
//! would end. So mappings that front ends can cause are counted, and some are kept back.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Kept back: for the repair, for libraries, allocators and workers. A daemon without vnics has
/// about 150.
const RESERVE: usize = 4096;
/// Limit assumed of a kernel that does not state one.
const USUAL_LIMIT: usize = 65_530;
/// Mappings of a thread: its stack, the page that guards it, and what its allocator may take.
pub(crate) const OF_A_THREAD: usize = 3;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A number of mappings; given back on drop.
#[derive(Debug)]
pub(crate) struct Maps(usize);

/// Error of asking for another mapping when all are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {limit} mappings that virtual machines may have are in use: raise the sysctl vm.max_map_count, \
     as /usr/lib/sysctl.d/50-butterfly.conf of the package does, and start the daemon anew; or give machines fewer memory devices"
)]
pub struct TooManyMaps {
    /// Mappings that front ends may have together.
    pub limit: usize,
}

impl Maps {
    pub fn take(n: usize) -> Result<Maps, TooManyMaps> {
        let limit = limit();
        let fits = |taken: usize| taken.checked_add(n).filter(|all| *all <= limit);
        TAKEN.fetch_update(Relaxed, Relaxed, fits).map_err(|_| TooManyMaps { limit })?;
        Ok(Maps(n))
    }
}

impl Drop for Maps {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Relaxed);
    }
}

static LIMIT: OnceLock<usize> = OnceLock::new();

/// Returns how many mappings front ends may have together.
pub(crate) fn limit() -> usize {
    *LIMIT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        bound(text.trim().parse().unwrap_or(USUAL_LIMIT))
    })
}

fn bound(max_map_count: usize) -> usize {
    max_map_count.saturating_sub(RESERVE.min(max_map_count / 4))
}

/// For tests, before anything is mapped: as on a host with this `vm.max_map_count`. Returns how
/// many mappings front ends may have.
#[doc(hidden)]
pub fn pretend(max_map_count: usize) -> usize {
    *LIMIT.get_or_init(|| bound(max_map_count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_kept_back_on_every_host() {
        assert_eq!(bound(65_530), 61_434);
        assert_eq!(bound(1_048_576), 1_044_480);
        assert_eq!(bound(4000), 3000);
        assert!(limit() <= 1 << 31);
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let all = Maps::take(limit() + 1).unwrap_err();
        assert_eq!(all.limit, limit());
        let before = TAKEN.load(Relaxed);
        drop(Maps::take(2).unwrap());
        // Other tests map meanwhile, but not so much.
        assert!(TAKEN.load(Relaxed) < before + 1000);
    }
}
