//! Who has a MAC address that several vnics of a network declare: the first, in the order of
//! declaration, and with it those who bypass filters as it does. The others wait: they get nothing
//! and may send nothing until it is theirs.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    engine::mac::number,
    world::claim::Claim,
    world::snapshot::{Network, Snapshot, Vnic},
};

/// The claim of a vnic; `None` of a mirror, which has no address.
pub(crate) fn claim_of(vnic: &Vnic) -> Option<Claim> {
    let Vnic { vni, mac, order, .. } = *vnic;
    (!vnic.is_mirror()).then_some(Claim { vni, mac, order, bypass: vnic.rules.bypass })
}

/// Slots of those of a network's stations that wait, ascending. `kept`: the claim of one that is
/// not there.
pub(crate) fn waiting(stations: &[&Arc<Vnic>], kept: Option<Claim>) -> Box<[u32]> {
    let there = stations.iter().filter_map(|vnic| Some((claim_of(vnic)?, Some(vnic.place.slot))));
    // Once it is there again it stands for itself.
    let kept = kept.filter(|kept| {
        !stations.iter().any(|vnic| (vnic.mac, vnic.order) == (kept.mac, kept.order))
    });
    let mut by_order: Vec<(Claim, Option<u32>)> =
        there.chain(kept.map(|kept| (kept, None))).collect();
    by_order.sort_unstable_by_key(|(claim, slot)| (claim.order, *slot));
    // Whether who has an address bypasses filters: those who do share it.
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
    /// Whether a vnic of it waits for its address.
    #[inline(always)]
    pub fn waits(&self, slot: u32) -> bool {
        !self.waiting.is_empty() && self.waiting.binary_search(&slot).is_ok()
    }
}

impl Snapshot {
    /// Whether other hosts may not have the addresses of a filtered vnic: its machine is here, and
    /// does not wait for its MAC address, which would make it speak for none.
    pub fn keeps_addresses(&self, vnic: &Vnic) -> bool {
        let waits =
            self.networks.get(vnic.network).is_some_and(|network| network.waits(vnic.place.slot));
        !waits && !vnic.shared.elsewhere.load(Relaxed)
    }

    /// Who has the address that a vnic waits for.
    pub fn waits_for(&self, vnic: &Vnic) -> Option<&Arc<Vnic>> {
        let network =
            self.networks.get(vnic.network).filter(|network| network.waits(vnic.place.slot))?;
        if let Some(having) = network.macs.get(number(vnic.mac)) {
            return self.vnics.get(having);
        }
        // Of an address that is no station's.
        let having = network
            .members
            .iter()
            .filter_map(|slot| self.vnics.get(*slot))
            .filter(|other| other.mac == vnic.mac);
        having.min_by_key(|other| (other.order, other.place.slot))
    }
}
