//! Waiting for a MAC address that several vnics of a network declare. The first one in the order of
//! declaration has it, together with others that bypass filters as it does. The rest wait: they get
//! nothing and may send nothing until it is theirs.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::engine::mac::number;
use crate::world::{
    claim::Claim,
    snapshot::{Network, Snapshot, Vnic},
};

/// Returns the claim of a vnic; `None` for a mirror, which has no address.
pub(crate) fn claim_of(vnic: &Vnic) -> Option<Claim> {
    let Vnic { vni, mac, order, .. } = *vnic;
    (!vnic.is_mirror()).then_some(Claim { vni, mac, order, bypass: vnic.rules.bypass })
}

/// Returns the slots of a network's stations that wait, ascending. `kept` is the claim of a vnic
/// that is not there.
pub(crate) fn waiting(stations: &[&Arc<Vnic>], kept: Option<Claim>) -> Box<[u32]> {
    let there = stations.iter().filter_map(|vnic| Some((claim_of(vnic)?, Some(vnic.place.slot))));
    // Once the vnic is there again, it stands for itself.
    let kept = kept.filter(|kept| {
        !stations.iter().any(|vnic| (vnic.mac, vnic.order) == (kept.mac, kept.order))
    });
    let mut by_order: Vec<(Claim, Option<u32>)> =
        there.chain(kept.map(|kept| (kept, None))).collect();
    by_order.sort_unstable_by_key(|(claim, slot)| (claim.order, *slot));
    // Tells for each address whether its holder bypasses filters: such holders share it.
    let mut first: HashMap<_, bool> = HashMap::new();
    let mut slots: Vec<u32> = Vec::new();
    for (claim, slot) in by_order {
        match first.get(&claim.mac) {
            None => {
                first.insert(claim.mac, claim.bypass);
            }
            Some(true) if claim.bypass => {}
            Some(_) => slots.extend(slot),
        }
    }
    slots.sort_unstable();
    slots.into()
}

impl Network {
    /// Returns whether a vnic of it waits for its address.
    #[inline(always)]
    pub fn waits(&self, slot: u32) -> bool {
        !self.waiting.is_empty() && self.waiting.binary_search(&slot).is_ok()
    }
}

impl Snapshot {
    /// Returns whether other hosts may not have the addresses of a filtered vnic. That is so if its
    /// machine is here, and does not wait for its MAC address: a vnic that waits has no addresses.
    pub fn keeps_addresses(&self, vnic: &Vnic) -> bool {
        let waits =
            self.networks.get(vnic.network).is_some_and(|network| network.waits(vnic.place.slot));
        !waits && !vnic.shared.elsewhere.load(Relaxed)
    }

    /// Returns the vnic with the address for which another vnic waits.
    pub fn waits_for(&self, vnic: &Vnic) -> Option<&Arc<Vnic>> {
        let network =
            self.networks.get(vnic.network).filter(|network| network.waits(vnic.place.slot))?;
        if let Some(having) = network.macs.get(number(vnic.mac)) {
            return self.vnics.get(having);
        }
        // The address is no station's.
        let having = network
            .members
            .iter()
            .filter_map(|slot| self.vnics.get(*slot))
            .filter(|other| other.mac == vnic.mac);
        having.min_by_key(|other| (other.order, other.place.slot))
    }
}
