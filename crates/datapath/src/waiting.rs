//! Who has a MAC address that several vnics of a network declare: the first, in the order of declaration, and with it those who bypass
//! filters as it does. The others wait: they get nothing and may send nothing until it is theirs.

use std::{collections::HashMap, sync::Arc};

use crate::{
    headers::number,
    snapshot::{Network, Snapshot, Vnic},
};

/// Slots of those of a network's stations that wait, ascending.
pub(crate) fn waiting(stations: &[&Arc<Vnic>]) -> Box<[u32]> {
    let mut by_order: Vec<&Arc<Vnic>> = stations.to_vec();
    by_order.sort_unstable_by_key(|vnic| (vnic.order, vnic.place.slot));
    // Whether who has an address bypasses filters: those who do share it.
    let mut first: HashMap<_, bool> = HashMap::new();
    let mut slots: Vec<u32> = Vec::new();
    for vnic in by_order {
        match first.get(&vnic.mac) {
            None => {
                first.insert(vnic.mac, vnic.rules.bypass);
            }
            Some(true) if vnic.rules.bypass => {}
            Some(_) => slots.push(vnic.place.slot),
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
    /// Who has the address that a vnic waits for.
    pub fn waits_for(&self, vnic: &Vnic) -> Option<&Arc<Vnic>> {
        let network = self.networks.get(vnic.network).filter(|network| network.waits(vnic.place.slot))?;
        if let Some(having) = network.macs.get(number(vnic.mac)) {
            return self.vnics.get(having);
        }
        // Of an address that is no station's.
        let having = network.members.iter().filter_map(|slot| self.vnics.get(*slot)).filter(|other| other.mac == vnic.mac);
        having.min_by_key(|other| (other.order, other.place.slot))
    }
}
