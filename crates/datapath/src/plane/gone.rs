//! Counters of the whole host: of present, leaving and departed vnics, each counted exactly once.
//!
//! The sums that an observer sees never decrease, and the observer never waits for a change of the
//! snapshot: vnics that leave are noted before they do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::engine::counters::Totals;
use crate::world::snapshot::{Snapshot, Vnic};

/// Counters of vnics that left, and vnics that are about to leave.
#[derive(Default)]
pub(crate) struct Gone(Mutex<State>);

#[derive(Default)]
struct State {
    vnics: Totals,
    trunks: Totals,
    /// Vnics that the snapshot may still have, and for which workers may still count.
    leaving: Vec<Arc<Vnic>>,
}

/// Sums of the whole host.
pub(crate) struct HostTotals {
    /// Sums of vnics, with the drops of trunks.
    pub all: Totals,
    /// Sums of trunks alone: frames from and to other hosts.
    pub trunks: Totals,
}

/// The counters of the whole host by vnic, each counted exactly once.
pub(crate) struct HostParts {
    /// Vnics and trunks of the snapshot.
    pub present: Vec<(Arc<Vnic>, Totals)>,
    /// Sum of the vnics that are not there any more.
    pub vnics: Totals,
    /// Sum of the trunks that are not there any more.
    pub trunks: Totals,
}

impl Gone {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that these vnics are about to leave the snapshot.
    pub fn leaving(&self, vnics: &[Arc<Vnic>]) {
        self.state().leaving.extend_from_slice(vnics);
    }

    /// Notes that these vnics have left it. No worker counts for them any more.
    pub fn left(&self, vnics: &[Arc<Vnic>]) {
        let mut state = self.state();
        for vnic in vnics {
            state.leaving.retain(|other| other.place != vnic.place);
            let totals = vnic.shared.counters.totals();
            if vnic.is_trunk() { state.trunks.merge(&totals) } else { state.vnics.merge(&totals) }
        }
    }

    /// Returns the counts of vnics that have left, with the drops of their trunks.
    pub fn departed(&self) -> Totals {
        let state = self.state();
        let mut totals = state.vnics.clone();
        totals.merge(&state.trunks.clone().drops_only());
        totals
    }

    /// Adds what a former process counted for vnics, and for trunks, that are not there any more.
    pub fn add_former(&self, vnics: &Totals, trunks: &Totals) {
        let mut state = self.state();
        state.vnics.merge(vnics);
        state.trunks.merge(trunks);
    }

    /// Returns the counts of all vnics, each apart while it is in the snapshot.
    pub fn parts(&self, snapshot: &ArcSwap<Snapshot>) -> HostParts {
        let state = self.state();
        // Loaded under the lock: see `totals`.
        let snapshot = snapshot.load();
        let (mut vnics, mut trunks) = (state.vnics.clone(), state.trunks.clone());
        for vnic in state.leaving.iter().filter(|vnic| snapshot.vnic(vnic.place).is_none()) {
            let totals = vnic.shared.counters.totals();
            if vnic.is_trunk() { trunks.merge(&totals) } else { vnics.merge(&totals) }
        }
        let present = snapshot
            .vnics
            .iter()
            .map(|(_, vnic)| (vnic.clone(), vnic.shared.counters.totals()))
            .collect();
        HostParts { present, vnics, trunks }
    }

    /// Returns the counts of all vnics, including those of the snapshot.
    pub fn totals(&self, snapshot: &ArcSwap<Snapshot>) -> HostTotals {
        let state = self.state();
        // Loaded under the lock: a vnic in neither list is counted already.
        let snapshot = snapshot.load();
        let (mut vnics, mut trunks) = (state.vnics.clone(), state.trunks.clone());
        let leaving = state.leaving.iter().filter(|vnic| snapshot.vnic(vnic.place).is_none());
        for vnic in snapshot.vnics.iter().map(|(_, vnic)| vnic).chain(leaving) {
            let totals = vnic.shared.counters.totals();
            if vnic.is_trunk() { trunks.merge(&totals) } else { vnics.merge(&totals) }
        }
        // A frame that passes a trunk is counted at its vnic.
        vnics.merge(&trunks.clone().drops_only());
        HostTotals { all: vnics, trunks }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use butterfly_packet::mac::Mac;

    use crate::engine::counters::Counter;
    use crate::plane::{Plane, PlaneConfig, nowhere};
    use crate::session::SessionConfig;
    use crate::stages::reasons::reasons;
    use crate::world::policy::VnicPolicy;

    /// An observer counts everything once while vnics come and go: sums never decrease, and none is
    /// lost.
    #[test]
    fn sums_never_decrease() {
        let sessions = SessionConfig { capacity: 64, ..SessionConfig::default() };
        let plane = Plane::new(PlaneConfig {
            workers: 1,
            fdb_ageing: 300,
            sessions,
            tunnel: None,
            black_box: nowhere(),
        })
        .unwrap();
        let reason = reasons().next().unwrap().reason;
        let sums = || {
            let totals = plane.gone.totals(&plane.shared.snapshot).all;
            (totals.get(Counter::InPackets), totals.drops(reason))
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut last = sums();
                while !done.load(Ordering::Acquire) {
                    let now = sums();
                    assert!(now.0 >= last.0 && now.1 >= last.1, "{last:?}, then {now:?}");
                    last = now;
                }
            });
            let vni = butterfly_model::Vni::new(1).unwrap();
            for round in 0..2_000u32 {
                let id = format!("n{}", round % 3);
                plane.remove(&id);
                let (vnic, _) = plane
                    .insert(
                        &id,
                        Mac([2, 0, 0, 0, 0, (round % 3) as u8]),
                        vni,
                        &VnicPolicy::default(),
                    )
                    .unwrap();
                let cells = vnic
                    .shared
                    .counters
                    .of(crate::engine::writer::WorkerId::new(0).writer())
                    .unwrap();
                cells.add(Counter::InPackets, 1);
                cells.drop(reason, 2);
            }
            done.store(true, Ordering::Release);
            watcher.join().unwrap();
        });
        assert_eq!(sums(), (2_000, 4_000));
    }
}
