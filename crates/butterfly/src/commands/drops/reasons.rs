//! Meanings of drop reasons, by name.

use butterfly_api::proto::DropListRes;
use butterfly_api::proto::drop_list_res::{Drop, Place, Reason};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The reasons that occur in an answer.
pub struct Reasons<'a>(HashMap<&'a str, &'a Reason>);

impl<'a> Reasons<'a> {
    pub fn of(found: &'a DropListRes) -> Self {
        Self(found.reason.iter().map(|reason| (reason.name(), reason)).collect())
    }

    /// Returns the reason of a drop, if the daemon gave its meaning.
    pub fn get(&self, drop: &Drop) -> Option<&'a Reason> {
        self.0.get(drop.reason()).copied()
    }

    /// True if VMs cause such drops by themselves, and no user misses the frames.
    pub fn is_harmless(&self, drop: &Drop) -> bool {
        self.get(drop).is_some_and(Reason::harmless)
    }
}

/// Age up to which a drop is a trouble of now, in milliseconds: long enough to be seen twice, and
/// short enough to go by itself.
const LATELY_MS: u64 = 60_000;

/// Returns the drops of the last minute that a user misses, with their places, most first.
pub fn lately(found: &DropListRes) -> Vec<(&Place, &Drop)> {
    let reasons = Reasons::of(found);
    let rows =
        found.place.iter().flat_map(|place| place.drop.iter().map(move |drop| (place, drop)));
    // When a drop was is not always known; how many there were lately is, but for a few seconds
    // only.
    let is_late =
        |drop: &Drop| drop.recent() > 0 || drop.last_ms.is_some_and(|age| age < LATELY_MS);
    let mut late: Vec<_> =
        rows.filter(|(_, drop)| is_late(drop) && !reasons.is_harmless(drop)).collect();
    late.sort_by_key(|(_, drop)| (Reverse(drop.recent()), drop.last_ms));
    late
}
