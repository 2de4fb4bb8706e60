//! Holders of addresses in a network, as declared.

use std::sync::Arc;

use crate::engine::slab::Slab;
use crate::ip::{Address, discovery::link_local};
use crate::world::snapshot::{Snapshot, Vnic};

/// The vnics of this host that have an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Their slots, ascending.
    pub slots: Arc<[u32]>,
    /// True if one of them is filtered: then no other vnic may have the address.
    filtered: bool,
    /// True if vnics of other hosts have it, too.
    shared: bool,
}

impl Holding {
    fn new(slots: Vec<u32>, vnics: &Slab<Vnic>) -> Holding {
        let filtered: Vec<&Arc<Vnic>> = slots
            .iter()
            .filter_map(|slot| vnics.get(*slot))
            .filter(|vnic| !vnic.rules.bypass)
            .collect();
        let shared = filtered.iter().any(|vnic| vnic.rules.shared_ip);
        Holding { filtered: !filtered.is_empty(), shared, slots: slots.into() }
    }

    /// Returns whether this vnic, or the trunk, may not have the address.
    pub fn excludes(&self, vnic: &Vnic, snapshot: &Snapshot) -> bool {
        let others = self.filtered && self.slots.binary_search(&vnic.place.slot).is_err();
        others && !(vnic.is_trunk() && (self.shared || self.is_elsewhere(snapshot)))
    }

    /// Returns whether the filtered holders have not come here yet, or left for another host.
    /// Returns false if there are too many to look at.
    fn is_elsewhere(&self, snapshot: &Snapshot) -> bool {
        const MOST: usize = 16;
        let mut filtered = self
            .slots
            .iter()
            .filter_map(|slot| snapshot.vnics.get(*slot))
            .filter(|vnic| !vnic.rules.bypass);
        self.slots.len() <= MOST && !filtered.any(|vnic| snapshot.keeps_addresses(vnic))
    }

    /// Returns whether it may exclude a vnic that `old` did not. (A vnic that does not have the
    /// address any more is told apart by itself.)
    fn is_tighter(&self, old: Option<&Holding>) -> bool {
        self.filtered && old.is_none_or(|old| !old.filtered || old.shared && !self.shared)
    }
}

/// The holders of all addresses of a network. A copy shares all that does not change, and a look-up
/// takes the same time with any number of them.
#[derive(Clone, Default)]
pub(crate) struct Holders(imbl::HashMap<Address, Holding>);

impl Holders {
    /// Returns the vnics that have an address.
    pub fn get(&self, address: Address) -> Option<&Holding> {
        self.0.get(&address)
    }

    /// Notes the addresses of a vnic, which had or has these and is in `vnics` as it will be.
    /// Returns whether a vnic is excluded that was not before.
    pub fn change(
        &mut self,
        slot: u32,
        of: impl Iterator<Item = Address>,
        vnics: &Slab<Vnic>,
    ) -> bool {
        let now: Vec<Address> =
            vnics.get(slot).map(|vnic| addresses(vnic).collect()).unwrap_or_default();
        let mut tighter = false;
        for address in of {
            let old = self.0.get(&address);
            let mut slots: Vec<u32> = old.map(|holding| holding.slots.to_vec()).unwrap_or_default();
            match (slots.binary_search(&slot), now.contains(&address)) {
                (Err(at), true) => slots.insert(at, slot),
                (Ok(at), false) => drop(slots.remove(at)),
                _ => {}
            }
            if slots.is_empty() {
                self.0.remove(&address);
                continue;
            }
            let new = Holding::new(slots, vnics);
            tighter |= new.is_tighter(old);
            self.0.insert(address, new);
        }
        tighter
    }
}

/// Returns the addresses that a vnic has without asking: the declared ones, and for a filtered vnic
/// the link-local one of its MAC address.
pub(crate) fn addresses(vnic: &Vnic) -> impl Iterator<Item = Address> {
    const NONE: [Address; 2] = [0, crate::ip::mapped(std::net::Ipv4Addr::UNSPECIFIED)];
    let none = vnic.is_trunk() || vnic.is_mirror();
    let declared = vnic.rules.own.iter().copied().filter(|address| !NONE.contains(address));
    let local = (!vnic.rules.bypass).then(|| link_local(vnic.mac));
    declared.chain(local).filter(move |_| !none)
}
