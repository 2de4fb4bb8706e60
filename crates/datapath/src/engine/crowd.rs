//! A budget of many: what one of them uses up leaves the others something.
//!
//! Half of it is everybody's. The other half is divided among [`PARTS`], and who somebody is, by a
//! hash that nobody can know, says which part is theirs. So who takes all that can be had leaves
//! every other part as it is: its owners go on, slower. Whose part is whose changes every
//! [`ROUND`] seconds, so nobody shares one with the same neighbour for long.

use std::hash::{BuildHasher, RandomState};

/// Parts of the half that is divided.
const PARTS: usize = 32;

/// Seconds, a power of two, in which somebody has the same part.
const ROUND: u32 = 4;

/// Budgets of type `B` for many.
pub(crate) struct Crowd<B> {
    common: B,
    parts: [B; PARTS],
    key: RandomState,
}

impl<B: Default> Default for Crowd<B> {
    fn default() -> Crowd<B> {
        Crowd {
            common: B::default(),
            parts: std::array::from_fn(|_| B::default()),
            key: RandomState::new(),
        }
    }
}

impl<B> Crowd<B> {
    /// Whether `take` has something left, of the own part or of what is common. It is told what to
    /// divide by what all have together. `now` in seconds.
    pub fn take(&self, who: u128, now: u32, take: impl Fn(&B, u32) -> bool) -> bool {
        let own = self.parts.get(self.key.hash_one((who, now / ROUND)) as usize % PARTS);
        own.is_some_and(|part| take(part, 2 * PARTS as u32)) || take(&self.common, 2)
    }

    /// The same, apart.
    pub fn copy(&self, copy: impl Fn(&B) -> B) -> Crowd<B> {
        Crowd {
            common: copy(&self.common),
            parts: self.parts.each_ref().map(&copy),
            key: self.key.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pace::Pace;

    fn take(crowd: &Crowd<Pace>, who: u128, now: u32) -> bool {
        crowd.take(who, now, |pace, parts| pace.take(now, 640 / parts, 64 / parts))
    }

    /// One has half of all and its own part; of everybody together it is no more than all.
    #[test]
    fn one_leaves_the_others_their_parts() {
        let crowd = Crowd::default();
        let taken = |who, now| (0..1000).filter(|_| take(&crowd, who, now)).count();
        assert_eq!([taken(1, 5), taken(1, 6)], [320 + 10, 32 + 1]);
        let same = crowd.copy(Pace::copy);
        let others: usize = (2..2000).map(|who| taken(who, 6)).sum();
        // The others' parts are full; the first one's has nothing left.
        assert_eq!(others, 31 * 10);
        let again = (2..2000).filter(|who| take(&same, *who, 6)).count();
        assert_eq!(again, 31 * 10, "a copy has what was left then, and the same parts");
    }

    /// Who shares a part with one that takes everything does not do so in the next round.
    #[test]
    fn parts_change_hands() {
        let crowd = Crowd::<Pace>::default();
        let part = |who: u128, now| crowd.key.hash_one((who, now / ROUND)) as usize % PARTS;
        let shares = |now: u32| (1..1000).filter(|who| part(0, now) == part(*who, now)).collect();
        let rounds: [Vec<u128>; 3] = [0, ROUND - 1, ROUND].map(shares);
        assert_eq!(rounds[0], rounds[1]);
        let still = rounds[0].iter().filter(|who| rounds[2].contains(who)).count();
        assert!(still < rounds[0].len() / 2, "{still} of {}", rounds[0].len());
    }
}
