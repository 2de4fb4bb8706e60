//! Share of open files and mappings for memory regions and queues beyond the usual number.
//!
//! Each region takes an open file and a mapping, and a front end may announce 509 of them. Each
//! pair of queues takes four open files: a kick and a call descriptor for both rings. The process
//! has one limit of each for all front ends. A front end with more than most takes the surplus from
//! a share that is bounded.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use rustix::process::{Resource, getrlimit};

use crate::maps;

/// Regions that are not counted. A machine without memory that is added later has two or three.
const USUAL: usize = 8;
/// Open files of a pair of queues beyond the first.
const OF_A_PAIR: usize = 4;
/// Most pairs of queues beyond each front end's first, of all front ends together.
pub const MAX_FURTHER_PAIRS: usize = 1 << 16;
/// The largest share. It bounds the pairs, too.
const LARGEST: usize = OF_A_PAIR * MAX_FURTHER_PAIRS;

/// The share: a quarter of what may be open when it is first needed, and half of what may be
/// mapped.
fn share() -> usize {
    static SHARE: OnceLock<usize> = OnceLock::new();
    let files = || {
        usize::try_from(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4)
            .unwrap_or(usize::MAX)
    };
    *SHARE.get_or_init(|| files().min(maps::limit() / 2).min(LARGEST))
}

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Part of the share that one front end has; given back on drop.
#[derive(Debug, Default)]
pub(super) struct Unusual {
    taken: usize,
    regions: usize,
    further_pairs: usize,
}

/// The share is used up.
#[derive(Debug, thiserror::Error)]
#[error(
    "memory regions: {regions}, pairs of queues: {pairs}; each region beyond {USUAL} takes one, and each pair beyond the first {OF_A_PAIR}, of {share} \
     that all machines share, and those are used up: \
     give it fewer memory devices or queues, or raise the limit of open files (a quarter of which they are) and the sysctl vm.max_map_count (half of which)"
)]
pub(super) struct UsedUp {
    regions: usize,
    pairs: usize,
    share: usize,
}

impl Unusual {
    /// Takes or gives back what so many regions need.
    pub fn with_regions(&mut self, regions: usize) -> Result<(), UsedUp> {
        self.resize_in(&TAKEN, share(), regions, self.further_pairs)
    }

    /// Takes or gives back what so many pairs of queues beyond the first need.
    pub fn with_further_pairs(&mut self, pairs: usize) -> Result<(), UsedUp> {
        self.resize_in(&TAKEN, share(), self.regions, pairs)
    }

    /// Returns how many regions the front end may have at this moment, at most `most`.
    pub fn possible(&self, most: usize) -> usize {
        self.possible_in(&TAKEN, share(), most)
    }

    fn possible_in(&self, taken: &AtomicUsize, share: usize, most: usize) -> usize {
        let others = taken.load(Relaxed).saturating_sub(self.taken);
        let pairs = self.further_pairs * OF_A_PAIR;
        share.saturating_sub(others).saturating_sub(pairs).saturating_add(USUAL).min(most)
    }

    fn resize_in(
        &mut self,
        taken: &AtomicUsize,
        share: usize,
        regions: usize,
        further_pairs: usize,
    ) -> Result<(), UsedUp> {
        let wanted = regions.saturating_sub(USUAL) + further_pairs * OF_A_PAIR;
        let fits = |all: usize| {
            (all - self.taken)
                .checked_add(wanted)
                .filter(|all| wanted <= self.taken || *all <= share)
        };
        let used_up = UsedUp { regions, pairs: further_pairs + 1, share };
        taken.fetch_update(Relaxed, Relaxed, fits).map_err(|_| used_up)?;
        (self.taken, self.regions, self.further_pairs) = (wanted, regions, further_pairs);
        Ok(())
    }
}

impl Drop for Unusual {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.taken, Relaxed);
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
            let pairs = who.further_pairs;
            who.resize_in(&taken, 100, regions, pairs).map(|()| taken.load(Relaxed))
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
                "memory regions: 9, pairs of queues: 1; each region beyond 8 takes one, and each pair beyond the first 4, of 100 that all"
            ),
            "{refused}"
        );
        assert_eq!(resize(&mut one, 99 + USUAL).unwrap(), 99);
        assert_eq!(resize(&mut other, USUAL + 1).unwrap(), 100);
        assert_eq!(resize(&mut other, 0).unwrap(), 99);
        assert_eq!(resize(&mut one, 0).unwrap(), 0);
    }

    #[test]
    fn pairs_of_queues_count_beside_regions() {
        let taken = AtomicUsize::new(0);
        let (mut one, mut other) = (Unusual::default(), Unusual::default());
        one.resize_in(&taken, 100, USUAL + 40, 15).unwrap();
        assert_eq!((taken.load(Relaxed), one.possible_in(&taken, 100, 509)), (100, USUAL + 40));
        assert!(other.resize_in(&taken, 100, USUAL, 1).is_err(), "a pair needs four");
        assert_eq!((other.taken, other.further_pairs), (0, 0), "refused whole");
        one.resize_in(&taken, 100, USUAL + 40, 14).unwrap();
        other.resize_in(&taken, 100, USUAL, 1).unwrap();
        assert_eq!(other.possible_in(&taken, 100, 509), USUAL);
        one.resize_in(&taken, 100, 0, 0).unwrap();
        other.resize_in(&taken, 100, 0, 0).unwrap();
        assert_eq!(taken.load(Relaxed), 0);
    }
}
