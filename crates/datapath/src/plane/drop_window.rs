//! Drop counts of some seconds ago, for rates.

use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError},
};

use crate::engine::{place::Place, reason::DropReason};
use crate::plane::Plane;
use crate::stages::reasons::counted;

/// Period between two looks at the counts, in tenths of a second. A rate is that of the last one to
/// two periods.
const PERIOD: u32 = 50;

/// Every reason that counted a drop, by place.
pub(crate) type DropCounts = HashMap<Place, Vec<(DropReason, u64)>>;

/// The counts at one moment.
#[derive(Default)]
pub(crate) struct Sample {
    pub when: u32,
    pub counts: DropCounts,
}

/// The counts some time ago.
#[derive(Default)]
pub(crate) struct DropWindow {
    pub older: Sample,
    newer: Sample,
}

impl DropWindow {
    pub fn look(&mut self, now: u32, counts: impl FnOnce() -> DropCounts) {
        if now.wrapping_sub(self.newer.when) >= PERIOD {
            self.older = std::mem::replace(&mut self.newer, Sample { when: now, counts: counts() });
        }
    }

    /// Begins anew: what was counted until now counts for no rate.
    fn begin(&mut self, now: u32, counts: impl Fn() -> DropCounts) {
        let sample = || Sample { when: now, counts: counts() };
        (self.older, self.newer) = (sample(), sample());
    }

    /// Returns a place's count at the start of the window.
    pub fn before(&self, place: Place, reason: DropReason) -> u64 {
        let counts = self.older.counts.get(&place).map(Vec::as_slice).unwrap_or_default();
        counts.iter().find(|(other, _)| *other == reason).map_or(0, |(_, count)| *count)
    }
}

impl Plane {
    pub fn drop_window(&self) -> MutexGuard<'_, DropWindow> {
        self.drop_window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the counts of this moment, if a period is over. Housekeeping calls it.
    pub fn sample_drops(&self) {
        // Housekeeping does not wait for the lock: a tick later is soon enough.
        if let Ok(mut window) = self.drop_window.try_lock() {
            window.look(self.shared.clock.tenths(), || self.drop_counts());
        }
    }

    /// Begins the window anew, after counters of a former process were added.
    pub fn forget_drop_rates(&self) {
        self.drop_window().begin(self.shared.clock.tenths(), || self.drop_counts());
    }

    fn drop_counts(&self) -> DropCounts {
        let snapshot = self.shared.snapshot.load();
        let vnics = snapshot
            .vnics
            .iter()
            .map(|(_, vnic)| (Place::Port(vnic.place), vnic.shared.counters.totals()));
        let uplink = self.shared.tunnel.iter().map(|tunnel| (Place::Uplink, tunnel.totals()));
        let lists = vnics.chain(uplink).map(|(place, totals)| {
            let list: Vec<_> = counted(&totals).map(|(info, count)| (info.reason, count)).collect();
            (place, list)
        });
        lists.filter(|(_, list)| !list.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::place::PortRef;

    const A: Place = Place::Port(PortRef { slot: 1, incarnation: 1 });
    const B: Place = Place::Port(PortRef { slot: 1, incarnation: 2 });

    #[test]
    fn the_window_is_one_to_two_periods_long() {
        let mut window = DropWindow::default();
        let (reason, other) = (DropReason::of_index(0), DropReason::of_index(1));
        let counts = |n| move || DropCounts::from([(A, vec![(reason, n)])]);
        window.look(PERIOD - 1, || unreachable!("too early"));
        assert_eq!((window.older.when, window.before(A, reason)), (0, 0));
        window.look(PERIOD, counts(7));
        assert_eq!((window.older.when, window.before(A, reason)), (0, 0));
        window.look(2 * PERIOD - 1, || unreachable!("too early"));
        window.look(2 * PERIOD + 3, counts(9));
        assert_eq!((window.older.when, window.before(A, reason)), (PERIOD, 7));
        // The successor in a place does not inherit its counts.
        assert_eq!((window.before(B, reason), window.before(A, other)), (0, 0));
        window.look(3 * PERIOD + 3, counts(9));
        assert_eq!((window.older.when, window.before(A, reason)), (2 * PERIOD + 3, 9));
    }
}
