//! Mirrors and traces: the frames that workers copy.

use std::sync::Arc;

use crate::engine::tap::{Mirror, Selection};
use crate::plane::{Plane, State};
use crate::world::snapshot::{PortKind, Snapshot};

impl Plane {
    /// Sets the frames that workers copy for sinks. `choose` gets a function that finds the slot of
    /// a vnic.
    pub fn set_selection(
        &self,
        choose: impl FnOnce(&dyn Fn(&str) -> Option<u32>) -> Option<Arc<Selection>>,
    ) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        next.selection = choose(&|id| state.by_id.get(id).map(|place| place.slot));
        find_mirrors(&state, &mut next);
        self.publish(next);
    }
}

/// Finds the vnic that each mirror copies.
pub(super) fn find_mirrors(state: &State, next: &mut Snapshot) {
    let mut mirrors: Vec<Mirror> = Vec::new();
    for (_, vnic) in next.vnics.iter() {
        let PortKind::Mirror(target) = &vnic.kind else { continue };
        let target = state.by_id.get(target).and_then(|place| next.vnic(*place));
        // The desired state has no such mirrors. This is the wall between networks all the same.
        let target = target.filter(|target| target.vni == vnic.vni && !target.is_mirror());
        mirrors.extend(
            target.map(|target| Mirror { target: target.place.slot, mirror: vnic.place.slot }),
        );
    }
    next.selection = Selection::mirroring(next.selection.take(), mirrors);
}
