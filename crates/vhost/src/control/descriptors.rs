//! Share of open files and mappings for memory regions beyond the usual number.
//!
//! Each region takes an open file and a mapping, and a front end may announce 509 of them. The
//! process has one limit of each for all front ends. A front end with more regions than most takes
//! the surplus from a share that is bounded.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use rustix::process::{Resource, getrlimit};

use crate::maps;

/// Regions that are not counted. A machine without memory that is added later has two or three.
const USUAL: usize = 8;

/// The share: a quarter of what may be open when it is first needed, and half of what may be
/// mapped.
fn share() -> usize {
    static SHARE: OnceLock<usize> = OnceLock::new();
    let files = || {
        usize::try_from(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4)
            .unwrap_or(usize::MAX)
    };
    *SHARE.get_or_init(|| files().min(maps::limit() / 2))
}

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Regions that one front end has of the share; given back on drop.
#[derive(Debug, Default)]
pub(super) struct Unusual(usize);

/// The share is used up.
#[derive(Debug, thiserror::Error)]
#[error(
    "{regions} memory regions: beyond {USUAL} each takes one of {share} that all machines share, and those are used up: \
     give it fewer memory devices, or raise the limit of open files (a quarter of which they are) and the sysctl vm.max_map_count (half of which)"
)]
pub(super) struct UsedUp {
    regions: usize,
    share: usize,
}

impl Unusual {
    /// Takes or gives back what so many regions need.
    pub fn resize(&mut self, regions: usize) -> Result<(), UsedUp> {
        self.resize_in(&TAKEN, share(), regions)
    }

    /// Returns how many regions the front end may have at this moment, at most `most`.
    pub fn possible(&self, most: usize) -> usize {
        self.possible_in(&TAKEN, share(), most)
    }

    fn possible_in(&self, taken: &AtomicUsize, share: usize, most: usize) -> usize {
        let others = taken.load(Relaxed).saturating_sub(self.0);
        share.saturating_sub(others).saturating_add(USUAL).min(most)
    }

    fn resize_in(
        &mut self,
        taken: &AtomicUsize,
        share: usize,
        regions: usize,
    ) -> Result<(), UsedUp> {
        let wanted = regions.saturating_sub(USUAL);
        let fits = |all: usize| {
            (all - self.0).checked_add(wanted).filter(|all| wanted <= self.0 || *all <= share)
        };
        taken.fetch_update(Relaxed, Relaxed, fits).map_err(|_| UsedUp { regions, share })?;
        self.0 = wanted;
        Ok(())
    }
}

impl Drop for Unusual {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_many_shares_with_others() {
        let taken = AtomicUsize::new(0);
        let (mut one, mut other) = (Unusual::default(), Unusual::default());
        let resize = |who: &mut Unusual, regions| {
            who.resize_in(&taken, 100, regions).map(|()| taken.load(Relaxed))
        };
        assert_eq!(resize(&mut one, USUAL).unwrap(), 0);
        assert_eq!(
            (one.possible_in(&taken, 100, 509), one.possible_in(&taken, 100, 50)),
            (108, 50)
        );
        assert_eq!(resize(&mut one, 100 + USUAL).unwrap(), 100);
        assert_eq!(
            (one.possible_in(&taken, 100, 509), other.possible_in(&taken, 100, 509)),
            (108, USUAL)
        );
        assert_eq!(resize(&mut other, USUAL).unwrap(), 100);
        let refused = resize(&mut other, USUAL + 1).unwrap_err().to_string();
        assert!(
            refused.starts_with(
                "9 memory regions: beyond 8 each takes one of 100 that all machines share"
            ),
            "{refused}"
        );
        assert_eq!(resize(&mut one, 99 + USUAL).unwrap(), 99);
        assert_eq!(resize(&mut other, USUAL + 1).unwrap(), 100);
        assert_eq!(resize(&mut other, 0).unwrap(), 99);
        assert_eq!(resize(&mut one, 0).unwrap(), 0);
    }
}
