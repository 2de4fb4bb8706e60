//! Descriptors of memory regions. Each region comes with one, a front end may announce 509, and how many files may be open is
//! everybody's: whoever has more than most takes them from a share that is bounded.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use rustix::process::{Resource, getrlimit};

/// Regions that are not counted. A machine without memory that is added later has two or three.
const USUAL: usize = 8;

/// The share: a quarter of what may be open when it is first needed.
fn share() -> usize {
    static SHARE: OnceLock<usize> = OnceLock::new();
    let limit = || getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    *SHARE.get_or_init(|| usize::try_from(limit() / 4).unwrap_or(usize::MAX))
}

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// What one front end has of the share; given back when it goes.
#[derive(Debug, Default)]
pub(super) struct Unusual(usize);

/// The share is used up.
#[derive(Debug, thiserror::Error)]
#[error(
    "{regions} memory regions: beyond {USUAL} each takes one of {share} open files that all machines share, and those are used up: \
     give it fewer memory devices, or raise the limit of open files"
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

    fn resize_in(&mut self, taken: &AtomicUsize, share: usize, regions: usize) -> Result<(), UsedUp> {
        let wanted = regions.saturating_sub(USUAL);
        let fits = |all: usize| (all - self.0).checked_add(wanted).filter(|all| wanted <= self.0 || *all <= share);
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
        let resize = |who: &mut Unusual, regions| who.resize_in(&taken, 100, regions).map(|()| taken.load(Relaxed));
        assert_eq!(resize(&mut one, USUAL).unwrap(), 0);
        assert_eq!(resize(&mut one, 100 + USUAL).unwrap(), 100);
        assert_eq!(resize(&mut other, USUAL).unwrap(), 100);
        let refused = resize(&mut other, USUAL + 1).unwrap_err().to_string();
        assert!(refused.starts_with("9 memory regions: beyond 8 each takes one of 100 open files"), "{refused}");
        assert_eq!(resize(&mut one, 99 + USUAL).unwrap(), 99);
        assert_eq!(resize(&mut other, USUAL + 1).unwrap(), 100);
        assert_eq!(resize(&mut other, 0).unwrap(), 99);
        assert_eq!(resize(&mut one, 0).unwrap(), 0);
    }
}
