//! Learnt addresses: forgotten by age, with their vnic, and when networks share the room anew.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering,
};

use crate::plane::Plane;
use crate::world::fdb::{self, Learnt};

impl Plane {
    /// Removes learnt addresses that are too old.
    pub fn expire(&self) {
        if self.shared.fdb.may_have_aged(self.shared.clock.now()) {
            self.forget(|_| false);
        }
        self.settle();
    }

    /// Divides the room for learnt addresses among the networks of now. Removes addresses that are
    /// too many together, the most silent first.
    pub(super) fn settle(&self) {
        let snapshot = self.shared.snapshot.load();
        let quota = &self.shared.fdb.quota;
        let held: Vec<u32> = snapshot
            .networks
            .iter()
            .map(|(_, network)| network.learnt.load(Ordering::Relaxed))
            .collect();
        if let Some(most) = quota.settle(fdb::CAPACITY, held.len() as u32, &held, 0) {
            let mut learnt = self.shared.fdb.list(self.shared.clock.now());
            learnt.sort_unstable_by_key(|learnt| learnt.idle);
            let mut kept: HashMap<u32, u32> = HashMap::new();
            learnt.retain(|learnt| {
                let kept = kept.entry(learnt.vni).or_default();
                *kept += 1;
                *kept > most
            });
            let gone: HashSet<(u32, u64)> =
                learnt.iter().map(|learnt| (learnt.vni, learnt.mac)).collect();
            self.forget(|learnt| gone.contains(&(learnt.vni, learnt.mac)));
        }
        if let Some(tunnel) = &self.shared.tunnel {
            tunnel.peers.settle(&snapshot.by_vni);
        }
    }

    pub(super) fn forget(&self, gone: impl FnMut(&Learnt) -> bool) {
        let snapshot = self.shared.snapshot.load();
        self.shared.fdb.remove(self.shared.clock.now(), gone, |learnt| {
            if let Some(vnic) = snapshot.behind(learnt.place) {
                vnic.shared.learnt.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(network) =
                snapshot.by_vni.get(&learnt.vni).and_then(|at| snapshot.networks.get(*at))
            {
                self.shared.fdb.quota.give_back(&network.learnt);
            }
        });
    }
}
