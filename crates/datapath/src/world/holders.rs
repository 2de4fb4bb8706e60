//! Holders of addresses in a network, as declared.

use std::sync::Arc;

use crate::engine::slab::Slab;
use crate::ip::{Address, discovery::link_local, upper};
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
pub(crate) struct Holders {
    exact: imbl::HashMap<Address, Holding>,
    /// Those of whole blocks, by the upper half of the addresses.
    prefixes: imbl::HashMap<u64, Holding>,
}

impl Holders {
    /// Returns the vnics that have an address, by itself or else by a prefix.
    pub fn get(&self, address: Address) -> Option<&Holding> {
        let by_prefix = || {
            let some = Some(&self.prefixes).filter(|prefixes| !prefixes.is_empty());
            some.and_then(|prefixes| prefixes.get(&upper(address)))
        };
        self.exact.get(&address).or_else(by_prefix)
    }

    /// Notes the addresses and prefixes of a vnic, which had or has these and is in `vnics` as it
    /// will be. Returns whether a vnic is excluded that was not before.
    pub fn change(
        &mut self,
        slot: u32,
        (of, of_prefixes): (impl Iterator<Item = Address>, impl Iterator<Item = u64>),
        vnics: &Slab<Vnic>,
    ) -> bool {
        let vnic = vnics.get(slot);
        let now: Vec<Address> = vnic.map(|vnic| addresses(vnic).collect()).unwrap_or_default();
        let tighter = change(&mut self.exact, slot, (of, &now), vnics);
        let now: Vec<u64> = vnic.map(|vnic| prefixes(vnic).collect()).unwrap_or_default();
        change(&mut self.prefixes, slot, (of_prefixes, &now), vnics) || tighter
    }
}

/// Notes of what a vnic is a holder: of those `of` that it has `now`.
fn change<K: Copy + Eq + std::hash::Hash>(
    holdings: &mut imbl::HashMap<K, Holding>,
    slot: u32,
    (of, now): (impl Iterator<Item = K>, &[K]),
    vnics: &Slab<Vnic>,
) -> bool {
    let mut tighter = false;
    for key in of {
        let old = holdings.get(&key);
        let mut slots: Vec<u32> = old.map(|holding| holding.slots.to_vec()).unwrap_or_default();
        match (slots.binary_search(&slot), now.contains(&key)) {
            (Err(at), true) => slots.insert(at, slot),
            (Ok(at), false) => drop(slots.remove(at)),
            _ => {}
        }
        if slots.is_empty() {
            holdings.remove(&key);
            continue;
        }
        let new = Holding::new(slots, vnics);
        tighter |= new.is_tighter(old);
        holdings.insert(key, new);
    }
    tighter
}

/// Returns the upper halves of all addresses that a vnic has by prefixes.
pub(crate) fn prefixes(vnic: &Vnic) -> impl Iterator<Item = u64> {
    let none = vnic.is_trunk() || vnic.is_mirror();
    vnic.rules.prefixes.iter().copied().filter(move |_| !none)
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
