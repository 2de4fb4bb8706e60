//! A budget for many users: a user that takes all it can leaves something for the others.
//!
//! Half of the budget is common. The other half is divided among [`PARTS`] parts. A hash with a
//! secret key maps each user to a part. A user that takes all it can leaves every other part
//! untouched, so the users of those parts go on, slower. The mapping changes every [`ROUND`]
//! seconds, so that no user shares a part with the same neighbour for long.

use std::hash::{BuildHasher, RandomState};

/// Parts of the half that is divided.
const PARTS: usize = 32;

/// Seconds for which a user keeps its part. A power of two.
const ROUND: u32 = 4;

/// Budgets of type `B`, common and divided.
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
    /// Returns whether `take` finds something in the user's own part or in the common half.
    ///
    /// `take` gets a number by which it divides the budget of all users together. `now` is in
    /// seconds.
    pub fn take(&self, who: u128, now: u32, take: impl Fn(&B, u32) -> bool) -> bool {
        let own = self.parts.get(self.key.hash_one((who, now / ROUND)) as usize % PARTS);
        own.is_some_and(|part| take(part, 2 * PARTS as u32)) || take(&self.common, 2)
    }

    /// Returns a crowd of its own, with copies of all budgets and the same parts.
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

    /// A user gets the common half and its own part. All users together get no more than the whole.
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

    /// A user that shares a part with a greedy one has another part in the next round.
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
