//! Holders of addresses in a network, as declared.

use std::sync::Arc;

use crate::engine::slab::Slab;
use crate::ip::{Address, discovery::link_local, upper};
use crate::world::snapshot::{Network, Snapshot, Vnic};

/// The vnics of this host that have an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holding {
    /// Their slots, ascending.
    slots: Arc<[u32]>,
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

    fn has(&self, slot: u32) -> bool {
        self.slots.binary_search(&slot).is_ok()
    }
}

/// Those who have an address: by itself, by its prefix, or some by this and some by that. One of
/// these two is there.
#[derive(Clone, Copy)]
pub(crate) struct HeldBy<'a> {
    exact: Option<&'a Holding>,
    prefix: Option<&'a Holding>,
}

impl<'a> HeldBy<'a> {
    fn new(exact: Option<&'a Holding>, prefix: Option<&'a Holding>) -> Option<HeldBy<'a>> {
        (exact.is_some() || prefix.is_some()).then_some(HeldBy { exact, prefix })
    }

    fn holdings(self) -> impl Iterator<Item = &'a Holding> {
        self.exact.into_iter().chain(self.prefix)
    }

    fn is_filtered(self) -> bool {
        self.holdings().any(|holding| holding.filtered)
    }

    fn is_shared(self) -> bool {
        self.holdings().any(|holding| holding.shared)
    }

    /// Returns the slots of the vnics, each once.
    pub fn slots(self) -> impl Iterator<Item = u32> {
        let exact = self.exact.map_or(&[][..], |holding| &holding.slots);
        let prefix = self.prefix.map_or(&[][..], |holding| &holding.slots);
        let more = prefix.iter().filter(|slot| exact.binary_search(slot).is_err());
        exact.iter().chain(more).copied()
    }

    /// Returns the slot of the vnic that alone has the address.
    pub fn alone(self) -> Option<u32> {
        let mut slots = self.slots();
        slots.next().filter(|_| slots.next().is_none())
    }

    /// Returns the slot of the vnic that alone has the address, those apart that get nothing as
    /// they wait for a MAC address.
    pub fn one(self, network: &Network) -> Option<u32> {
        let mut slots = self.slots().filter(|slot| !network.waits(*slot));
        slots.next().filter(|_| slots.next().is_none())
    }

    /// Returns whether this vnic, or the trunk, may not have the address.
    pub fn excludes(self, vnic: &Vnic, snapshot: &Snapshot) -> bool {
        let has = || self.holdings().any(|holding| holding.has(vnic.place.slot));
        let others = self.is_filtered() && !has();
        others && !(vnic.is_trunk() && (self.is_shared() || self.is_elsewhere(snapshot)))
    }

    /// Returns whether the filtered holders have not come here yet, or left for another host.
    /// Returns false if there are too many to look at.
    fn is_elsewhere(self, snapshot: &Snapshot) -> bool {
        const MOST: usize = 16;
        let mut filtered = self
            .slots()
            .filter_map(|slot| snapshot.vnics.get(slot))
            .filter(|vnic| !vnic.rules.bypass);
        let number: usize = self.holdings().map(|holding| holding.slots.len()).sum();
        number <= MOST && !filtered.any(|vnic| snapshot.keeps_addresses(vnic))
    }

    /// Returns whether it may exclude a vnic that `old` did not. (A vnic that does not have the
    /// address any more is told apart by itself.)
    fn is_tighter(self, old: Option<HeldBy<'_>>) -> bool {
        let loose = |old: HeldBy<'_>| !old.is_filtered() || old.is_shared() && !self.is_shared();
        self.is_filtered() && old.is_none_or(loose)
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
    /// Returns the vnics that have an address.
    pub fn get(&self, address: Address) -> Option<HeldBy<'_>> {
        HeldBy::new(self.exact.get(&address), self.by_prefix(address))
    }

    fn by_prefix(&self, address: Address) -> Option<&Holding> {
        let some = Some(&self.prefixes).filter(|prefixes| !prefixes.is_empty());
        some.and_then(|prefixes| prefixes.get(&upper(address)))
    }

    fn of_block(&self, upper: &u64) -> Option<HeldBy<'_>> {
        HeldBy::new(None, self.prefixes.get(upper))
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
        let before = self.clone();
        let now: Vec<Address> = vnic.map(|vnic| addresses(vnic).collect()).unwrap_or_default();
        let of: Vec<Address> = of.collect();
        change(&mut self.exact, slot, (of.iter().copied(), &now), vnics);
        let now: Vec<u64> = vnic.map(|vnic| prefixes(vnic).collect()).unwrap_or_default();
        let of_prefixes: Vec<u64> = of_prefixes.collect();
        change(&mut self.prefixes, slot, (of_prefixes.iter().copied(), &now), vnics);
        let is_tighter = |new: Option<HeldBy<'_>>, old: Option<HeldBy<'_>>| {
            new.is_some_and(|new| new.is_tighter(old))
        };
        of.iter().any(|at| is_tighter(self.get(*at), before.get(*at)))
            || of_prefixes.iter().any(|at| is_tighter(self.of_block(at), before.of_block(at)))
    }
}

/// Notes of what a vnic is a holder: of those `of` that it has `now`.
fn change<K: Copy + Eq + std::hash::Hash>(
    holdings: &mut imbl::HashMap<K, Holding>,
    slot: u32,
    (of, now): (impl Iterator<Item = K>, &[K]),
    vnics: &Slab<Vnic>,
) {
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
        holdings.insert(key, Holding::new(slots, vnics));
    }
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
