//! Departed vnics: the last of each slot, by the versions of the snapshot that they were in.

use std::collections::BTreeMap;

/// The last vnics that left each slot, by the last version of the snapshot that they were in.
#[derive(Clone, Default)]
pub(crate) struct Departed(pub(super) BTreeMap<(u32, u32), Departure>);

#[derive(Clone, Copy)]
pub(super) struct Departure {
    /// First version of the snapshot that the vnic was in.
    first: u32,
    /// Second in which the vnic left.
    when: u32,
}

/// Most vnics remembered for one slot.
const MOST_DEPARTED: usize = 8;

impl Departed {
    /// Notes that a vnic left that was in these versions of the snapshot. Forgets vnics that left
    /// `keep` seconds ago or earlier.
    pub(super) fn leaves(&mut self, slot: u32, (first, last): (u32, u32), now: u32, keep: u32) {
        self.0.retain(|_, gone| now.wrapping_sub(gone.when) < keep);
        self.0.insert((slot, last), Departure { first, when: now });
        let mut of_slot = self.0.range((slot, 0)..=(slot, u32::MAX)).map(|(key, _)| *key);
        if let (Some(oldest), MOST_DEPARTED..) = (of_slot.next(), of_slot.count()) {
            self.0.remove(&oldest);
        }
    }

    /// Returns whether a vnic that had this slot in this version left it in the last `seconds`.
    pub fn had(&self, slot: u32, stamp: u32, now: u32, seconds: u32) -> bool {
        let next = self.0.range((slot, stamp)..=(slot, u32::MAX)).next();
        next.is_some_and(|(_, gone)| gone.first <= stamp && now.wrapping_sub(gone.when) < seconds)
    }
}
