//! Rules of externals, of routers that are attached to them, and of translations.

use super::{Blocks, Routed, bounded, owner_name};
use crate::{
    externals::{NatCounts, Owner},
    refused::Refused,
    vnics::Vnics,
};
use butterfly_model::{
    Cidr, External, ExternalId, Nat, NatPlace, NatRule, Network, Prefix, Route, Router, RouterId,
    Vni, WireDevice,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Most externals of a host.
const MAX_EXTERNALS: usize = 32;
/// Most devices by which they leave it.
const MAX_DEVICES: usize = 15;
/// Most addresses of pools of a host.
const MAX_POOL_ADDRESSES: usize = 64;
/// Most floating addresses and forwarded ports of a host.
const MAX_TRANSLATIONS: usize = 65_536;
/// Most routers at an external: each packet that comes from there is held against all of them.
const MAX_ROUTERS_AT_EXTERNAL: usize = 64;

impl Routed {
    /// The external called `id`.
    pub fn external(&self, id: &str) -> Option<&External> {
        self.externals.get(id)
    }

    /// All externals, in byte order of their ids.
    pub fn externals(&self) -> impl ExactSizeIterator<Item = &External> {
        self.externals.iter()
    }

    /// The routers that are attached to an external, in byte order of their ids.
    pub fn routers_at(&self, external: &ExternalId) -> impl Iterator<Item = &Router> {
        let ids = self.by_external.get(external).into_iter().flatten();
        ids.filter_map(|id| self.routers.get(id))
    }

    /// The translations of a router at an external, in the order of their outside addresses.
    pub fn nats(&self, router: &RouterId, external: &ExternalId) -> impl Iterator<Item = &Nat> {
        self.externals.nats(&(router.clone(), external.clone()))
    }

    /// The translation with this place at an external, and its router.
    pub fn nat(&self, external: &ExternalId, place: &NatPlace) -> Option<(&RouterId, &Nat)> {
        self.externals.nat(external, place)
    }

    /// All translations, in byte order of routers and externals.
    pub fn all_nats(&self) -> impl Iterator<Item = NatRule> {
        self.externals.owners().flat_map(|owner| {
            let of = |nat: &Nat| {
                let (router, external) = owner.clone();
                NatRule { router, external, nat: *nat }
            };
            self.externals.nats(owner).map(of).collect::<Vec<_>>()
        })
    }

    /// Returns how many translations there are.
    pub fn nat_counts(&self) -> NatCounts {
        self.externals.counts()
    }

    /// Returns how many routes all routers have, without those of their networks and externals.
    pub fn route_count(&self) -> usize {
        self.routes
    }

    /// Routers and externals between which there are translations.
    pub fn translating(&self) -> impl Iterator<Item = &(RouterId, ExternalId)> {
        self.externals.owners()
    }

    /// A router as the data path has it: attached to the numbers of its externals, and with the
    /// default routes that they give it. Those for which `has` is false are left out. `other` is an
    /// external in place of the one with its id.
    ///
    /// Of several externals with a gateway of one family, the first one in byte order gives the
    /// route. What none of them leads to goes by the first one that is on another host.
    pub fn lowered(
        &self,
        router: &Router,
        other: Option<&External>,
        has: impl Fn(&ExternalId) -> bool,
    ) -> Router {
        let mut lowered = router.clone();
        for (id, given) in router.externals() {
            lowered.detach_external(id.as_str());
            let other = other.filter(|other| other.id() == id);
            let external = other.or_else(|| self.externals.get(id.as_str()));
            let Some(external) = external.filter(|external| has(external.id())) else { continue };
            if let Some(over) = external.second_hop() {
                lowered.set_second_hop(lowered.second_hop().or(Some(over)));
                continue;
            }
            lowered.attach(external.vni(), given);
            let routes = external.default_routes();
            let missing: Vec<Route> =
                routes.into_iter().filter(|route| lowered.route(&route.to()).is_none()).collect();
            missing.into_iter().for_each(|route| drop(lowered.add_route(route)));
        }
        lowered
    }

    /// Returns whether no network, neighbour or external has this number.
    pub(crate) fn is_unused(&self, vni: Vni) -> bool {
        let neighbour = self.neighbours_after(Some(vni), None).next();
        !self.networks.contains_key(&vni)
            && self.externals.numbered(vni).is_none()
            && neighbour.is_none()
    }

    /// Name of what has an address of an external with this number: the host, or a router by a
    /// translation.
    pub(super) fn owner_outside(&self, vni: Vni, address: IpAddr) -> Option<String> {
        let external = self.externals.numbered(vni)?;
        if external.has_address(address) {
            return Some(format!("external {:?}", external.id().as_str()));
        }
        let router = self.externals.translated_by(external.id(), address)?;
        Some(format!("a translation of router {:?}", router.as_str()))
    }

    /// Name of the external with this number, if it has a wire and the gateway with this address.
    pub(super) fn gateway_outside(&self, vni: Vni, address: IpAddr) -> Option<String> {
        let external = self.externals.numbered(vni).filter(|external| external.wire().is_some())?;
        let is_gateway = external.gateways().any(|gateway| gateway == address);
        is_gateway.then(|| format!("a gateway of external {:?}", external.id().as_str()))
    }

    /// An address in a prefix that [`Self::owner_outside`] or [`Self::gateway_outside`] knows, and
    /// the name of what has it.
    pub(super) fn owner_outside_in(&self, vni: Vni, prefix: Prefix) -> Option<(IpAddr, String)> {
        let external = self.externals.numbered(vni)?;
        let own = external.addresses().iter().map(Cidr::address);
        let gateways = external.gateways().filter(|_| external.wire().is_some());
        let name = format!("external {:?}", external.id().as_str());
        let own = own.map(|address| (address, name.clone()));
        let gateways = gateways.map(|address| (address, format!("a gateway of {name}")));
        let mut beside = own.chain(gateways);
        beside.find(|(address, _)| prefix.contains(*address)).or_else(|| {
            let address = self.externals.translated_in(external.id(), prefix.cidr())?;
            Some((address, self.owner_outside(vni, address)?))
        })
    }

    /// Checks that machines may be in a network.
    pub(super) fn check_number(&self, vni: Vni) -> Result<(), Refused> {
        match self.externals.numbered(vni).filter(|external| !external.is_provider()) {
            Some(external) => {
                let external = external.id().as_str().to_owned();
                Err(Refused::NumberChosen { vni, external })
            }
            None => Ok(()),
        }
    }

    /// Checks an external in place of the one with its id, and the routers that are attached to it.
    pub(crate) fn check_external(&self, external: &External, vnics: &Vnics) -> Result<(), Refused> {
        let id = external.id();
        let name = || id.as_str().to_owned();
        let others = || self.externals.iter().filter(|other| other.id() != id);
        let host = || "this host".to_owned();
        bounded(others().count() + 1, MAX_EXTERNALS, "externals", host)?;
        self.check_its_number(external, vnics)?;
        check_wire(external, others())?;
        let translates = || self.externals.translated_at(id).next().is_some();
        if let Some(host) = external.via().filter(|_| translates()) {
            return Err(Refused::TranslatedThere { external: name(), host });
        }
        for address in external.addresses().iter().map(Cidr::address) {
            let vni = external.vni();
            let vnic = vnics.owner(vni, address);
            let vnic = vnic.map(|nic| format!("nic {:?}", nic.as_str()));
            let neighbour = || self.neighbour(vni, address).map(owner_name);
            if let Some(owner) = vnic.or_else(neighbour) {
                return Err(Refused::OutsideTaken { address, external: name(), owner });
            }
        }
        for gateway in external.gateways().filter(|_| external.wire().is_some()) {
            if let Some(nic) = vnics.owner(external.vni(), gateway) {
                let owner = format!("nic {:?}", nic.as_str());
                return Err(Refused::OutsideTaken { address: gateway, external: name(), owner });
            }
        }
        for address in self.externals.translated_at(id) {
            check_outside_address(external, address)?;
        }
        for router in self.routers_at(id) {
            self.check_attached(router, external)?;
            let mut own = Blocks::default();
            own.add(external.network())?;
            let networks = router.attachments().filter_map(|(vni, _)| self.networks.get(&vni));
            networks.into_iter().try_for_each(|network| own.check(network))?;
            let other = |(other, _): (&ExternalId, _)| match other == id {
                true => Some(external),
                false => self.externals.get(other.as_str()),
            };
            let externals: Vec<&External> = router.externals().filter_map(other).collect();
            let beside = externals.iter().filter(|other| other.id() != id);
            beside.into_iter().try_for_each(|other| own.check(other.network()))?;
            self.check_routes_by(router, None, &externals)?;
        }
        Ok(())
    }

    /// Checks that an external may have its number.
    fn check_its_number(&self, external: &External, vnics: &Vnics) -> Result<(), Refused> {
        let (id, vni) = (external.id(), external.vni());
        let name = id.as_str().to_owned();
        if let Some(old) = self.externals.get(id.as_str()).filter(|old| old.vni() != vni) {
            return Err(Refused::OtherNumber { external: name, old: old.vni(), new: vni });
        }
        let network = self.networks.get(&vni).map(|_| format!("network {vni}"));
        let mut others = self.externals.iter().filter(|other| other.id() != id);
        let other = others.find(|other| other.vni() == vni);
        let other = other.map(|other| format!("external {:?}", other.id().as_str()));
        let machine = || {
            let nic = vnics.in_network(vni).map(|nic| format!("nic {:?}", nic.as_str()));
            let neighbour = || self.neighbours_after(Some(vni), None).next().map(owner_name);
            nic.or_else(neighbour).filter(|_| !external.is_provider())
        };
        match network.or(other).or_else(machine) {
            Some(owner) => Err(Refused::NumberInUse { external: name, vni, owner }),
            None => Ok(()),
        }
    }

    /// Checks that an external may go: it is there, and nothing needs it.
    pub(crate) fn check_external_removal(&self, id: &ExternalId) -> Result<(), Refused> {
        let external = id.as_str().to_owned();
        if self.externals.get(id.as_str()).is_none() {
            return Err(Refused::ExternalMissing(external));
        }
        match self.routers_at(id).next() {
            Some(router) => {
                let router = router.id().as_str().to_owned();
                Err(Refused::ExternalInUse { external, router })
            }
            None => Ok(()),
        }
    }

    /// Checks that a router may go: it is there, and has no translations.
    pub(crate) fn check_router_removal(&self, id: &RouterId) -> Result<(), Refused> {
        self.check_there(id)?;
        self.check_left(id, |_| false)
    }

    /// Checks that a router has no translations at externals, but where it `stays`.
    fn check_left(
        &self,
        id: &RouterId,
        stays: impl Fn(&ExternalId) -> bool,
    ) -> Result<(), Refused> {
        match self.externals.translates(id).find(|(external, _)| !stays(external)) {
            Some((external, count)) => {
                let (router, external) = (id.as_str().to_owned(), external.as_str().to_owned());
                Err(Refused::StillTranslates { router, external, count })
            }
            None => Ok(()),
        }
    }

    /// Checks the externals that a router is attached to, and its addresses there.
    pub(super) fn check_outside(&self, router: &Router) -> Result<(), Refused> {
        for (id, _) in router.externals() {
            let external = self.externals.get(id.as_str());
            let external =
                external.ok_or_else(|| Refused::ExternalMissing(id.as_str().to_owned()))?;
            let name = || id.as_str().to_owned();
            let others = || self.routers_at(id).filter(|other| other.id() != router.id());
            bounded(others().count() + 1, MAX_ROUTERS_AT_EXTERNAL, "routers", || {
                format!("external {:?}", id.as_str())
            })?;
            let mac = router.id().gateway_mac();
            if let Some(other) = others().find(|other| other.id().gateway_mac() == mac) {
                let (router, other) = [router, other].map(|it| it.id().as_str().to_owned()).into();
                return Err(Refused::MacClashOutside { external: name(), router, other });
            }
            self.check_attached(router, external)?;
        }
        self.check_open(router, None)?;
        self.check_left(router.id(), |external| router.external(external.as_str()).is_some())
    }

    /// Checks the addresses that a router has at an external: the host has them there, and nothing
    /// else does.
    fn check_attached(&self, router: &Router, external: &External) -> Result<(), Refused> {
        let id = external.id();
        let given = router.external(id.as_str()).unwrap_or_default();
        for address in given.iter() {
            let name = id.as_str().to_owned();
            if !external.has_address(address) {
                return Err(Refused::NotAtExternal { address, external: name });
            }
            let has = |other: &&Router| {
                let given = other.external(id.as_str()).unwrap_or_default();
                other.id() != router.id() && given.iter().any(|other| other == address)
            };
            let other = self.routers_at(id).find(has).map(Router::id);
            let other = other.map(|other| format!("router {:?}", other.as_str()));
            let nat = || {
                let router = self.externals.translated_by(id, address)?;
                Some(format!("a translation of router {:?}", router.as_str()))
            };
            if let Some(owner) = other.or_else(nat) {
                return Err(Refused::OutsideTaken { address, external: name, owner });
            }
        }
        Ok(())
    }

    /// Checks that what comes from an external for an address inside has one way: public subnets,
    /// and all of IPv6, are those of one of its routers. `other` is a network in place of the one
    /// with its number.
    pub(super) fn check_ways_in(
        &self,
        router: &Router,
        other: Option<&Network>,
    ) -> Result<(), Refused> {
        let network = |vni| other.filter(|it| it.vni() == vni).or_else(|| self.networks.get(&vni));
        let reached = |router: &Router| {
            let networks = router.attachments().filter_map(|(vni, _)| network(vni));
            let of = |network| open_blocks(network).map(|block| (block, network.vni()));
            networks.flat_map(of).collect::<Vec<_>>()
        };
        let mine: BTreeMap<IpAddr, (Cidr, Vni)> =
            reached(router).into_iter().map(|it| (it.0.network(), it)).collect();
        if mine.is_empty() {
            return Ok(());
        }
        for (id, _) in router.externals() {
            for other in self.routers_at(id).filter(|other| other.id() != router.id()) {
                for (block, _) in reached(other) {
                    let before = mine.range(..=block.network()).next_back();
                    let mut near = before.into_iter().chain(mine.range(block.network()..).next());
                    if let Some((_, (cidr, vni))) = near.find(|(_, it)| it.0.overlaps(&block)) {
                        return Err(Refused::TwoWaysIn {
                            external: id.as_str().to_owned(),
                            cidr: *cidr,
                            vni: *vni,
                            router: router.id().as_str().to_owned(),
                            other: other.id().as_str().to_owned(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that no translation at an external of a router has an address that is reached there
    /// as it is, in one of the router's networks. `other` is a network in place of the one with its
    /// number.
    pub(super) fn check_open(
        &self,
        router: &Router,
        other: Option<&Network>,
    ) -> Result<(), Refused> {
        router.externals().try_for_each(|(id, _)| {
            let find = |block| self.externals.translated_in(id, block);
            self.check_open_at(id, router, other, find)
        })
    }

    /// The same at one external. `find` gives an address of translations in a block.
    fn check_open_at(
        &self,
        external: &ExternalId,
        router: &Router,
        other: Option<&Network>,
        find: impl Fn(Cidr) -> Option<IpAddr>,
    ) -> Result<(), Refused> {
        let network = |vni| other.filter(|it| it.vni() == vni).or_else(|| self.networks.get(&vni));
        for network in router.attachments().filter_map(|(vni, _)| network(vni)) {
            let found = open_blocks(network).find_map(|block| Some((block, find(block)?)));
            if let Some((cidr, address)) = found {
                let (external, router) = (external.as_str(), router.id().as_str());
                return Err(Refused::OutsideInside {
                    address,
                    external: external.to_owned(),
                    cidr,
                    vni: network.vni(),
                    router: router.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Checks the translations of a router at an external, in place of those that it has there.
    pub(crate) fn check_nats(
        &self,
        router: &RouterId,
        id: &ExternalId,
        nats: &[Nat],
        vnics: &Vnics,
    ) -> Result<(), Refused> {
        self.check_there(router)?;
        let external = self.externals.get(id.as_str());
        let external = external.ok_or_else(|| Refused::ExternalMissing(id.as_str().to_owned()))?;
        let names = || (router.as_str().to_owned(), id.as_str().to_owned());
        if let Some(host) = external.via().filter(|_| !nats.is_empty()) {
            return Err(Refused::TranslatedThere { external: names().1, host });
        }
        let attached = self.routers.get(router).and_then(|it| it.external(id.as_str()));
        if attached.is_none() && !nats.is_empty() {
            let (router, external) = names();
            return Err(Refused::NotAttached { router, external });
        }
        let old = NatCounts::of(self.nats(router, id));
        let all = self.externals.counts().with(NatCounts::of(nats), old);
        let host = || "this host".to_owned();
        bounded(all.pools, MAX_POOL_ADDRESSES, "addresses of SNAT", host)?;
        bounded(all.single(), MAX_TRANSLATIONS, "floating addresses and forwards", host)?;
        let mut places = BTreeSet::new();
        let mut whole = BTreeSet::new();
        let mut machines: BTreeMap<IpAddr, BTreeSet<_>> = BTreeMap::new();
        for nat in nats {
            let twice = || {
                let (_, external) = names();
                Refused::NatTwice { external, nat: nat.to_string() }
            };
            if !places.insert(nat.place()) {
                return Err(twice());
            }
            if let Nat::Floating { outside, .. } = nat {
                whole.insert(*outside);
            }
            self.check_nat(router, external, nat, vnics)?;
            // Answers leave by one address and port alone.
            if let Some((inside, end)) = nat.end() {
                let ends = machines.entry(inside).or_default();
                let whole = end.is_none() && !ends.is_empty() || ends.contains(&None);
                if whole || !ends.insert(end) {
                    let (_, external) = names();
                    return Err(Refused::NatTwoWays { external, nat: nat.to_string(), inside });
                }
            }
        }
        let addresses: BTreeSet<IpAddr> = nats.iter().map(Nat::outside).collect();
        let find = |block: Cidr| {
            let next = addresses.range(block.network()..).next().copied();
            next.filter(|address| block.contains(*address))
        };
        self.routers_at(id).try_for_each(|other| self.check_open_at(id, other, None, find))?;
        // A floating address is alone.
        let shared =
            nats.iter().find(|nat| nat.place().1.is_some() && whole.contains(&nat.outside()));
        match shared {
            Some(nat) => {
                let (_, external) = names();
                Err(Refused::NatTwice { external, nat: nat.to_string() })
            }
            None => Ok(()),
        }
    }

    /// Checks the outside address of a translation.
    fn check_nat(
        &self,
        router: &RouterId,
        external: &External,
        nat: &Nat,
        vnics: &Vnics,
    ) -> Result<(), Refused> {
        let (id, address) = (external.id(), nat.outside());
        check_outside_address(external, address)?;
        let given = |other: &&Router| {
            let given = other.external(id.as_str()).unwrap_or_default();
            given.iter().any(|other| other == address)
        };
        let other = self.externals.translated_by(id, address).filter(|other| *other != router);
        let other = other.map(|other| format!("a translation of router {:?}", other.as_str()));
        let own = || {
            let router = self.routers_at(id).find(given)?;
            Some(format!("router {:?}", router.id().as_str()))
        };
        let vni = external.vni();
        let vnic = || Some(format!("nic {:?}", vnics.owner(vni, address)?.as_str()));
        let neighbour = || self.neighbour(vni, address).map(owner_name);
        match other.or_else(own).or_else(vnic).or_else(neighbour) {
            Some(owner) => {
                let external = id.as_str().to_owned();
                Err(Refused::OutsideTaken { address, external, owner })
            }
            None => Ok(()),
        }
    }

    /// Adds an external in place of the one with its id.
    pub(crate) fn insert_external(&mut self, external: External) {
        self.externals.insert(external);
    }

    /// Takes an external out.
    pub(crate) fn remove_external(&mut self, id: &ExternalId) {
        self.externals.remove(id);
    }

    /// Gives a router exactly these translations at an external.
    pub(crate) fn set_nats(&mut self, router: RouterId, external: ExternalId, nats: Vec<Nat>) {
        self.externals.set_nats((router, external), nats);
    }

    /// Adds translations, unchecked, each in place of the one with its place. Returns the routers
    /// and externals whose translations have to be checked.
    pub(crate) fn name_nats(&mut self, rules: Vec<NatRule>) -> Result<BTreeSet<Owner>, Refused> {
        self.externals.name(rules).map_err(|rule| {
            let address = rule.nat.outside();
            let owner = "a translation of another router".to_owned();
            let external = rule.external.as_str().to_owned();
            Refused::OutsideTaken { address, external, owner }
        })
    }
}

/// The blocks of a network whose addresses are reached from outside as they are.
fn open_blocks(network: &Network) -> impl Iterator<Item = Cidr> {
    let blocks = network.subnets().iter().map(|subnet| subnet.cidr());
    blocks.filter(|block| network.is_public() || block.address().is_ipv6())
}

/// Checks that an address can be had outside: it is no gateway, and that of a host if it is in a
/// subnet of the external.
fn check_outside_address(external: &External, address: IpAddr) -> Result<(), Refused> {
    if external.gateways().any(|gateway| gateway == address) {
        let (external, owner) = (external.id().as_str().to_owned(), "its gateway".to_owned());
        return Err(Refused::OutsideTaken { address, external, owner });
    }
    match external.network().subnet_of(address) {
        Some(subnet) if !subnet.cidr().is_host(address) => Err(Refused::NotAHost(address)),
        _ => Ok(()),
    }
}

/// Checks that no other external has a wire.
fn check_wire<'a>(
    external: &External,
    others: impl Iterator<Item = &'a External>,
) -> Result<(), Refused> {
    let Some(wire) = external.wire() else { return Ok(()) };
    // A device that is made without a name is no other one's.
    let is_same = |other: &WireDevice| wire.name().is_some() && wire.name() == other.name();
    let (mut devices, mut own) = (BTreeSet::new(), 1);
    for other in others {
        let Some(device) = other.wire() else { continue };
        match device.name() {
            Some(name) => drop(devices.insert(name)),
            None => own += 1,
        }
        let kinds = wire.is_tap() != device.is_tap();
        if is_same(device) && (kinds || other.vlan() == external.vlan()) {
            let wire = match external.vlan() {
                Some(vlan) => format!("VLAN {vlan} of {wire}"),
                None => format!("{wire} without a VLAN"),
            };
            return Err(Refused::WireTaken { wire, owner: other.id().as_str().to_owned() });
        }
    }
    if let Some(name) = wire.name() {
        own -= 1;
        devices.insert(name);
    }
    let host = || "this host".to_owned();
    bounded(devices.len() + own, MAX_DEVICES, "interfaces of externals", host)
}
