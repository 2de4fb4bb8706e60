//! Externals and translations as declared, and by what they are found.

use butterfly_model::{Cidr, External, ExternalId, Nat, NatPlace, NatRule, RouterId, Vni};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// The translations of a router at an external.
pub(crate) type Owner = (RouterId, ExternalId);

/// All declared externals and translations.
///
/// An address outside belongs to one router. Nothing else is checked here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Externals {
    all: BTreeMap<ExternalId, External>,
    /// Translations by their owners. Never empty.
    lists: BTreeMap<Owner, BTreeMap<NatPlace, Nat>>,
    /// Owners of the addresses outside.
    addresses: BTreeMap<(ExternalId, IpAddr), RouterId>,
    /// Numbers of all translations.
    counts: NatCounts,
}

/// Numbers of translations by their kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatCounts {
    /// Addresses that machines share.
    pub pools: usize,
    /// Floating addresses.
    pub floating: usize,
    /// Forwarded ports.
    pub forwards: usize,
}

impl NatCounts {
    /// Counts translations.
    pub fn of<'a>(nats: impl IntoIterator<Item = &'a Nat>) -> Self {
        nats.into_iter().fold(Self::default(), |sum, nat| match nat {
            Nat::Snat { .. } => Self { pools: sum.pools + 1, ..sum },
            Nat::Floating { .. } => Self { floating: sum.floating + 1, ..sum },
            Nat::Forward { .. } => Self { forwards: sum.forwards + 1, ..sum },
        })
    }

    /// Returns the number of floating addresses and forwarded ports.
    pub fn single(&self) -> usize {
        self.floating + self.forwards
    }

    /// Counts with those of one list in place of those of another.
    pub(crate) fn with(self, new: Self, old: Self) -> Self {
        Self {
            pools: self.pools + new.pools - old.pools,
            floating: self.floating + new.floating - old.floating,
            forwards: self.forwards + new.forwards - old.forwards,
        }
    }
}

/// Equal if the same is declared.
impl PartialEq for Externals {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all && self.lists == other.lists
    }
}

impl Eq for Externals {}

impl Externals {
    pub fn get(&self, id: &str) -> Option<&External> {
        self.all.get(id)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &External> {
        self.all.values()
    }

    /// The external with this number. Looks at all, which are few.
    pub fn numbered(&self, vni: Vni) -> Option<&External> {
        self.all.values().find(|external| external.vni() == vni)
    }

    /// Adds an external in place of the one with its id.
    pub fn insert(&mut self, external: External) {
        self.all.insert(external.id().clone(), external);
    }

    pub fn remove(&mut self, id: &ExternalId) {
        self.all.remove(id);
    }

    /// The translations of a router at an external, in the order of their places.
    pub fn nats<'a>(&'a self, owner: &Owner) -> impl Iterator<Item = &'a Nat> + use<'a> {
        self.lists.get(owner).into_iter().flat_map(BTreeMap::values)
    }

    /// Those that have translations, in byte order of routers and externals.
    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.lists.keys()
    }

    /// The externals at which a router has translations, and how many.
    pub fn translates<'a>(
        &'a self,
        router: &'a RouterId,
    ) -> impl Iterator<Item = (&'a ExternalId, usize)> {
        let lists = self.lists.iter().skip_while(move |((other, _), _)| other < router);
        let mine = lists.take_while(move |((other, _), _)| other == router);
        mine.map(|((_, external), list)| (external, list.len()))
    }

    /// The router that has an address outside by a translation.
    pub fn translated_by(&self, external: &ExternalId, address: IpAddr) -> Option<&RouterId> {
        self.addresses.get(&(external.clone(), address))
    }

    /// The translation with this place at an external, and its router.
    pub fn nat(&self, external: &ExternalId, place: &NatPlace) -> Option<(&RouterId, &Nat)> {
        let router = self.translated_by(external, place.0)?;
        let list = self.lists.get(&(router.clone(), external.clone()))?;
        Some((router, list.get(place)?))
    }

    /// The addresses that routers have at an external by translations.
    pub fn translated_at<'a>(
        &'a self,
        external: &'a ExternalId,
    ) -> impl Iterator<Item = IpAddr> + 'a {
        let from = (external.clone(), IpAddr::from([0, 0, 0, 0]));
        let here = self.addresses.range(from..).take_while(move |((of, _), _)| of == external);
        here.map(|((_, address), _)| *address)
    }

    /// The first address in a block that a router has at an external by a translation.
    pub fn translated_in(&self, external: &ExternalId, block: Cidr) -> Option<IpAddr> {
        let from = (external.clone(), block.network());
        let ((of, address), _) = self.addresses.range(from..).next()?;
        (of == external && block.contains(*address)).then_some(*address)
    }

    /// Numbers of all translations.
    pub fn counts(&self) -> NatCounts {
        self.counts
    }

    /// Gives a router exactly these translations at an external.
    pub fn set_nats(&mut self, owner: Owner, nats: impl IntoIterator<Item = Nat>) {
        if let Some(old) = self.lists.remove(&owner) {
            self.counts = self.counts.with(NatCounts::default(), NatCounts::of(old.values()));
            for (address, _) in old.keys() {
                self.addresses.remove(&(owner.1.clone(), *address));
            }
        }
        let new: BTreeMap<NatPlace, Nat> = nats.into_iter().map(|nat| (nat.place(), nat)).collect();
        self.counts = self.counts.with(NatCounts::of(new.values()), NatCounts::default());
        for (address, _) in new.keys() {
            self.addresses.insert((owner.1.clone(), *address), owner.0.clone());
        }
        if !new.is_empty() {
            self.lists.insert(owner, new);
        }
    }

    /// Adds translations, each in place of the one with its place, whichever router has that.
    /// Returns the owners whose lists are others now; the first translation whose address another
    /// router keeps by something else, if there is one.
    pub fn name(&mut self, rules: Vec<NatRule>) -> Result<BTreeSet<Owner>, NatRule> {
        let mut lists = BTreeMap::<Owner, BTreeMap<NatPlace, Nat>>::new();
        let list_of = |externals: &Self, owner: &Owner| -> BTreeMap<NatPlace, Nat> {
            externals.lists.get(owner).cloned().unwrap_or_default()
        };
        for NatRule { router, external, nat } in &rules {
            if let Some((other, _)) = self.nat(external, &nat.place()).filter(|it| it.0 != router) {
                let other = (other.clone(), external.clone());
                let list = lists.entry(other.clone()).or_insert_with(|| list_of(self, &other));
                list.remove(&nat.place());
            }
            let owner = (router.clone(), external.clone());
            let list = lists.entry(owner.clone()).or_insert_with(|| list_of(self, &owner));
            list.insert(nat.place(), *nat);
        }
        let mut routers = BTreeMap::new();
        for rule in &rules {
            let (address, external) = (rule.nat.outside(), &rule.external);
            let keeps = |other: &RouterId| {
                let owner = (other.clone(), external.clone());
                let list = lists.get(&owner).or_else(|| self.lists.get(&owner));
                let first = list.and_then(|list| list.range((address, None)..).next());
                *other != rule.router && first.is_some_and(|(at, _)| at.0 == address)
            };
            let first = *routers.entry((external, address)).or_insert(&rule.router);
            if first != &rule.router || self.translated_by(external, address).is_some_and(keeps) {
                return Err(rule.clone());
            }
        }
        lists.keys().for_each(|owner| self.set_nats(owner.clone(), []));
        let owners = lists.keys().cloned().collect();
        for (owner, list) in lists {
            self.set_nats(owner, list.into_values());
        }
        Ok(owners)
    }
}
