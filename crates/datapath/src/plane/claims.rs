//! Claims: vnics that wait for a MAC address that another vnic has.

use std::sync::atomic::Ordering;

use crate::engine::mac::number;
use crate::plane::{Plane, networks::rebuild_network};
use crate::world::{
    snapshot::{Snapshot, Vnic},
    waiting::claim_of,
};

impl Plane {
    /// Publishes a snapshot in which vnics of a network may get the address that they waited for.
    pub(super) fn publish_for_waiting(&self, mut next: Snapshot, network: u32) {
        let waited = self.waiting_in(network);
        let waits =
            |slot: &u32| next.networks.get(network).is_some_and(|network| network.waits(*slot));
        let filtered = |slot: &u32| next.vnics.get(*slot).is_some_and(|vnic| !vnic.rules.bypass);
        if waited.iter().any(|slot| !waits(slot) && filtered(slot)) {
            self.decide_others_again(&mut next, network);
        }
        self.publish(next);
        self.take_over(network, &waited);
    }

    /// Keeps a vnic's MAC address while the vnic is made again, so that no vnic that waits for the
    /// address gets it. Ends with [`Plane::give_up_address`].
    pub fn keep_address(&self, id: &str) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        next.kept =
            state.by_id.get(id).and_then(|place| next.vnic(*place)).and_then(|vnic| claim_of(vnic));
        self.publish(next);
    }

    /// Ends [`Plane::keep_address`]. If the vnic did not come back, a vnic that waited for its
    /// address gets it.
    pub fn give_up_address(&self) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let Some(kept) = next.kept.take() else { return };
        if let Some(at) = next.by_vni.get(&kept.vni).copied() {
            let remote = self.remote(&state, &next, kept.vni, at);
            rebuild_network(&mut next, kept.vni, at, remote);
            self.publish_for_waiting(next, at);
        } else {
            self.publish(next);
        }
    }

    /// Returns the slots of the vnics of a network that wait for their address.
    pub(super) fn waiting_in(&self, network: u32) -> Box<[u32]> {
        self.shared
            .snapshot
            .load()
            .networks
            .get(network)
            .map(|network| network.waiting.clone())
            .unwrap_or_default()
    }

    /// Announces the vnics that waited and have their address now, if their machines are there.
    /// Other hosts may have learnt the address elsewhere.
    pub(super) fn take_over(&self, network: u32, waited: &[u32]) {
        let snapshot = self.shared.snapshot.load();
        let waiting = self.waiting_in(network);
        let taken = waited.iter().filter(|slot| waiting.binary_search(slot).is_err());
        for vnic in taken.filter_map(|slot| snapshot.vnics.get(*slot)) {
            if vnic.shared.driving.load(Ordering::Relaxed) {
                vnic.shared.announcing.begin();
            }
            if !vnic.rules.bypass {
                self.forget(|learnt| learnt.vni == vnic.vni && learnt.mac == number(vnic.mac));
            }
        }
    }

    /// Returns the vnic that has the address for which another one waits.
    pub fn waits_for(&self, vnic: &Vnic) -> Option<String> {
        self.shared.snapshot.load().waits_for(vnic).map(|having| having.id.to_string())
    }
}
