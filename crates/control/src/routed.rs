//! Networks, routers, neighbours and externals as declared, and what they must not share.

mod outside;

use crate::{externals::Externals, refused::Refused, vnics::Vnics};
use butterfly_model::{
    Cidr, External, ExternalId, Mac, Neighbour, Network, Prefix, Router, RouterAddresses, RouterId,
    Vni,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    ops::Bound,
};

/// Most networks of a host.
pub(crate) const MAX_NETWORKS: usize = 16_384;
/// Most routers of a host.
pub(crate) const MAX_ROUTERS: usize = 4_096;
/// Most subnets of a network.
pub(crate) const MAX_SUBNETS: usize = 8;
/// Most routers that are attached to a network.
pub(crate) const MAX_ROUTERS_OF_NETWORK: usize = 8;
/// Most networks that a router joins.
pub(crate) const MAX_NETWORKS_OF_ROUTER: usize = 64;
/// Most routes of a router.
pub(crate) const MAX_ROUTES_OF_ROUTER: usize = 1024;
/// Most routes of a host.
pub(crate) const MAX_ROUTES: usize = 65_536;
/// Most ways of a route.
pub(crate) const MAX_WAYS: usize = 16;
/// Most ways of all routes of a host: so many that one answer lists all its routers.
pub(crate) const MAX_WAYS_OF_HOST: usize = 65_536;
/// Most neighbours of a host.
pub(crate) const MAX_NEIGHBOURS: usize = 262_144;

/// All declared networks, routers, neighbours, externals and translations.
///
/// A network need not be declared: without that it has no subnets, and no router joins it. It may
/// have neighbours.
#[derive(Clone, Debug, Default)]
pub struct Routed {
    networks: BTreeMap<Vni, Network>,
    routers: BTreeMap<RouterId, Router>,
    /// Routers by the networks that they join. Never with an empty set.
    by_vni: BTreeMap<Vni, BTreeSet<RouterId>>,
    neighbours: BTreeMap<(Vni, IpAddr), Neighbour>,
    externals: Externals,
    /// Routers by the externals that they are attached to. Never with an empty set.
    by_external: BTreeMap<ExternalId, BTreeSet<RouterId>>,
    /// Number of routes of all routers.
    routes: usize,
    /// Number of ways of all of these.
    ways: usize,
}

/// Equal if the same is declared.
impl PartialEq for Routed {
    fn eq(&self, other: &Self) -> bool {
        self.networks == other.networks
            && self.routers == other.routers
            && self.neighbours == other.neighbours
            && self.externals == other.externals
    }
}

impl Eq for Routed {}

impl Routed {
    /// The declared network with this number.
    pub fn network(&self, vni: Vni) -> Option<&Network> {
        self.networks.get(&vni)
    }

    /// All declared networks, in the order of their numbers.
    pub fn networks(&self) -> impl ExactSizeIterator<Item = &Network> {
        self.networks.values()
    }

    /// The router called `id`.
    pub fn router(&self, id: &str) -> Option<&Router> {
        self.routers.get(id)
    }

    /// All routers, in byte order of their ids.
    pub fn routers(&self) -> impl ExactSizeIterator<Item = &Router> {
        self.routers.values()
    }

    /// The routers that join a network, in byte order of their ids.
    pub fn routers_of(&self, vni: Vni) -> impl Iterator<Item = &Router> {
        let ids = self.by_vni.get(&vni).into_iter().flatten();
        ids.filter_map(|id| self.routers.get(id))
    }

    /// The router that has the address `ip` in a network.
    pub fn has_address(&self, vni: Vni, ip: IpAddr) -> Option<&RouterId> {
        let network = self.networks.get(&vni)?;
        self.routers_of(vni).find(|router| has(router, network, ip)).map(Router::id)
    }

    /// Checks that no router or external has an address of a machine in a network, and that
    /// machines may be in it.
    fn check_machine(&self, vni: Vni, address: IpAddr) -> Result<(), Refused> {
        let router = self.has_address(vni, address);
        let owner = router.map(|router| format!("router {:?}", router.as_str()));
        match owner.or_else(|| self.owner_outside(vni, address)) {
            Some(owner) => Err(Refused::AddressTaken { address, vni, owner }),
            None => self.check_number(vni),
        }
    }

    /// Checks addresses and prefixes of a vnic: as those of any machine, and none has that of a
    /// gateway behind a wire.
    pub(crate) fn check_vnic(
        &self,
        (vni, mac): (Vni, &Mac),
        mut addresses: impl Iterator<Item = IpAddr>,
        mut prefixes: impl Iterator<Item = Prefix>,
    ) -> Result<(), Refused> {
        self.check_number(vni)?;
        prefixes.try_for_each(|prefix| {
            let owner = self.router_in(vni, prefix);
            let owner = owner.or_else(|| self.owner_outside_in(vni, prefix));
            match owner.or_else(|| self.neighbour_in((vni, mac), prefix)) {
                Some((address, owner)) => {
                    Err(Refused::PrefixHasOther { prefix, vni, address, owner })
                }
                None => Ok(()),
            }
        })?;
        addresses.try_for_each(|address| {
            self.check_machine(vni, address)?;
            match self.gateway_outside(vni, address) {
                Some(owner) => Err(Refused::AddressTaken { address, vni, owner }),
                None => Ok(()),
            }
        })
    }

    /// False if a network is declared, and no subnet of it covers a vnic's prefix: its routers
    /// neither tell of it nor lead to all of it.
    pub fn may_route(&self, vni: Vni, prefix: Prefix) -> bool {
        let Some(network) = self.networks.get(&vni) else { return true };
        let mut blocks = network.subnets().iter().map(|it| it.cidr());
        let covers =
            |it: Cidr| it.mask_size() <= Prefix::BITS && it.contains(prefix.first().into());
        blocks.any(covers)
    }

    /// A declared neighbour in a prefix whose MAC address is another one than `mac`, and its name:
    /// one of this MAC address is the vnic's machine.
    fn neighbour_in(&self, (vni, mac): (Vni, &Mac), prefix: Prefix) -> Option<(IpAddr, String)> {
        let ends = (vni, prefix.first().into())..=(vni, prefix.last().into());
        let mut within = self.neighbours.range(ends).map(|(_, neighbour)| neighbour);
        let other = within.find(|neighbour| neighbour.mac().octets() != mac.octets())?;
        Some((other.address(), owner_name(other)))
    }

    /// A router's address in a prefix, and the name of the router.
    fn router_in(&self, vni: Vni, prefix: Prefix) -> Option<(IpAddr, String)> {
        let network = self.networks.get(&vni)?;
        self.routers_of(vni).find_map(|router| {
            let mut own = router.attachment(vni)?.in_network(network);
            let address = own.find(|address| prefix.contains(*address))?;
            Some((address, format!("router {:?}", router.id().as_str())))
        })
    }

    /// The declared neighbour with an address in a network.
    pub fn neighbour(&self, vni: Vni, address: IpAddr) -> Option<&Neighbour> {
        self.neighbours.get(&(vni, address))
    }

    /// All declared neighbours, in the order of their networks and addresses, IPv4 first.
    pub fn neighbours(&self) -> impl ExactSizeIterator<Item = &Neighbour> {
        self.neighbours.values()
    }

    /// The declared neighbours of a network, or of all, behind one, which need not be declared.
    /// Looks at none before it.
    pub fn neighbours_after(
        &self,
        vni: Option<Vni>,
        after: Option<(Vni, IpAddr)>,
    ) -> impl Iterator<Item = &Neighbour> {
        let first = |vni: Vni| Bound::Included((vni, IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let from = match (vni, after) {
            (Some(vni), Some(after)) if after.0 < vni => first(vni),
            (_, Some(after)) => Bound::Excluded(after),
            (Some(vni), None) => first(vni),
            (None, None) => Bound::Unbounded,
        };
        let all = self.neighbours.range((from, Bound::Unbounded)).map(|(_, neighbour)| neighbour);
        all.take_while(move |neighbour| vni.is_none_or(|vni| neighbour.vni() == vni))
    }

    /// Checks a network in place of the one with its number, and the routers that join it.
    pub(crate) fn check_network(&self, network: &Network, vnics: &Vnics) -> Result<(), Refused> {
        let vni = network.vni();
        let there = self.networks.contains_key(&vni);
        bounded(self.networks.len() + usize::from(!there), MAX_NETWORKS, "networks", || {
            "this host".to_owned()
        })?;
        bounded(network.subnets().len(), MAX_SUBNETS, "subnets", || format!("network {vni}"))?;
        if let Some(external) = self.externals.numbered(vni) {
            let external = external.id().as_str().to_owned();
            return Err(Refused::NumberOfExternal { vni, external });
        }
        let mut own = Blocks::default();
        own.add(network)?;
        for router in self.routers_of(vni) {
            let given = router.attachment(vni).unwrap_or_default();
            self.check_addresses(router.id(), given, network, vnics)?;
            self.check_routes(router, Some(network))?;
            self.check_ways_in(router, Some(network))?;
            self.check_open(router, Some(network))?;
            let outside = router.externals().filter_map(|(id, _)| self.externals.get(id.as_str()));
            outside.into_iter().try_for_each(|external| own.check(external.network()))?;
        }
        let beside = self.beside(self.routers_of(vni).flat_map(joined).collect(), None);
        let others = beside.iter().filter(|other| **other != vni);
        others.filter_map(|other| self.networks.get(other)).try_for_each(|other| own.check(other))
    }

    /// Returns all networks that are joined by a router which joins one of these, but for one
    /// router. Looks at each router once, however many of them it joins.
    fn beside(&self, networks: BTreeSet<Vni>, but: Option<&RouterId>) -> BTreeSet<Vni> {
        let ids = networks.iter().filter_map(|vni| self.by_vni.get(vni)).flatten();
        let ids: BTreeSet<&RouterId> = ids.filter(|id| Some(*id) != but).collect();
        ids.into_iter().filter_map(|id| self.routers.get(id)).flat_map(joined).collect()
    }

    /// Checks a router in place of the one with its id.
    pub(crate) fn check_router(&self, router: &Router, vnics: &Vnics) -> Result<(), Refused> {
        let id = router.id();
        let there = self.routers.contains_key(id);
        bounded(self.routers.len() + usize::from(!there), MAX_ROUTERS, "routers", || {
            "this host".to_owned()
        })?;
        let networks = router.attachments().len() + router.externals().len();
        bounded(networks, MAX_NETWORKS_OF_ROUTER, "networks", || {
            format!("router {:?}", id.as_str())
        })?;
        let mut own = Blocks::default();
        for (vni, given) in router.attachments() {
            if let Some(external) = self.externals.numbered(vni) {
                let external = external.id().as_str().to_owned();
                return Err(Refused::NumberOfExternal { vni, external });
            }
            let network = self.networks.get(&vni).ok_or(Refused::NetworkMissing(vni))?;
            own.add(network)?;
            let others = || self.routers_of(vni).filter(|other| other.id() != id);
            bounded(others().count() + 1, MAX_ROUTERS_OF_NETWORK, "routers", || {
                format!("network {vni}")
            })?;
            if let Some(other) = others().find(|other| other.id().gateway_mac() == id.gateway_mac())
            {
                let (router, other) = (id.as_str().to_owned(), other.id().as_str().to_owned());
                return Err(Refused::MacClash { vni, router, other });
            }
            self.check_addresses(id, given, network, vnics)?;
        }
        bounded(router.routes().len(), MAX_ROUTES_OF_ROUTER, "routes", || {
            format!("router {:?}", id.as_str())
        })?;
        let before = self.routers.get(id).map_or(0, |before| before.routes().len());
        let routes = self.routes - before + router.routes().len();
        bounded(routes, MAX_ROUTES, "routes", || "this host".to_owned())?;
        let before = self.routers.get(id).map_or(0, ways_of);
        let ways = self.ways - before + ways_of(router);
        bounded(ways, MAX_WAYS_OF_HOST, "ways of routes", || "this host".to_owned())?;
        self.check_outside(router)?;
        for (external, _) in router.externals() {
            let external = self.externals.get(external.as_str());
            external.map_or(Ok(()), |external| own.add(external.network()))?;
        }
        self.check_ways_in(router, None)?;
        self.check_routes(router, None)?;
        let mine: BTreeSet<Vni> = joined(router).collect();
        let beside = self.beside(mine.clone(), Some(id));
        let others = beside.difference(&mine);
        others.filter_map(|other| self.networks.get(other)).try_for_each(|other| own.check(other))
    }

    /// Checks the addresses that a router has in a network: each is a host's there, and neither a
    /// vnic's, a neighbour's nor another router's.
    fn check_addresses(
        &self,
        id: &RouterId,
        given: RouterAddresses,
        network: &Network,
        vnics: &Vnics,
    ) -> Result<(), Refused> {
        let vni = network.vni();
        let mut none = true;
        for address in given.in_network(network) {
            none = false;
            let subnet = network.subnet_of(address);
            let subnet = subnet.ok_or(Refused::NotInSubnet { address, vni })?;
            if !subnet.cidr().is_host(address) {
                return Err(Refused::NotAHost(address));
            }
            let others = self.routers_of(vni).filter(|other| other.id() != id);
            let router = others.into_iter().find(|other| has(other, network, address));
            let router = router.map(|other| format!("router {:?}", other.id().as_str()));
            let vnic = || vnics.owner(vni, address);
            let vnic = || vnic().map(|nic| format!("nic {:?}", nic.as_str()));
            let neighbour = || self.neighbour(vni, address).map(owner_name);
            if let Some(owner) = router.or_else(vnic).or_else(neighbour) {
                return Err(Refused::AddressTaken { address, vni, owner });
            }
        }
        if none {
            return Err(Refused::NoGateway { router: id.as_str().to_owned(), vni });
        }
        Ok(())
    }

    /// Checks the machines by which a router's routes lead: each has the address of a host in a
    /// subnet that the router joins, and not the router's own. `other` is a network in place of the
    /// one with its number.
    fn check_routes(&self, router: &Router, other: Option<&Network>) -> Result<(), Refused> {
        let externals = router.externals().filter_map(|(id, _)| self.externals.get(id.as_str()));
        self.check_routes_by(router, other, &externals.collect::<Vec<_>>())
    }

    /// The same, with these externals.
    fn check_routes_by(
        &self,
        router: &Router,
        other: Option<&Network>,
        externals: &[&External],
    ) -> Result<(), Refused> {
        if router.routes().len() == 0 {
            return Ok(());
        }
        let network = |vni| other.filter(|it| it.vni() == vni).or_else(|| self.networks.get(&vni));
        let mut subnets = BTreeMap::new();
        let mut own = BTreeSet::new();
        for (vni, given) in router.attachments() {
            let Some(network) = network(vni) else { continue };
            let blocks = network.subnets().iter().map(|subnet| subnet.cidr());
            subnets.extend(blocks.map(|block| (block.network(), block)));
            own.extend(given.in_network(network));
        }
        for external in externals {
            let blocks = external.network().subnets().iter().map(|subnet| subnet.cidr());
            subnets.extend(blocks.map(|block| (block.network(), block)));
            own.extend(external.addresses().iter().map(Cidr::address));
        }
        let id = || router.id().as_str().to_owned();
        for route in router.routes() {
            let to = route.to();
            bounded(route.via().len(), MAX_WAYS, "ways", || {
                format!("the route of router {:?} to {to}", id())
            })?;
            for via in route.via().iter().copied() {
                // No two subnets of a router overlap.
                let near = subnets.range(..=via).next_back().map(|(_, block)| block);
                match near.filter(|block| block.contains(via)) {
                    None => return Err(Refused::ViaNotConnected { router: id(), to, via }),
                    Some(block) if !block.is_host(via) => return Err(Refused::NotAHost(via)),
                    Some(_) if own.contains(&via) => {
                        return Err(Refused::ViaIsRouter { router: id(), to, via });
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Checks that a network may go: it is there, and no router joins it.
    pub(crate) fn check_removal(&self, vni: Vni) -> Result<(), Refused> {
        if !self.networks.contains_key(&vni) {
            return Err(Refused::NetworkMissing(vni));
        }
        match self.routers_of(vni).next() {
            Some(router) => {
                let router = router.id().as_str().to_owned();
                Err(Refused::StillAttached { vni, router })
            }
            None => Ok(()),
        }
    }

    /// Checks that there is a router of this name.
    pub(crate) fn check_there(&self, id: &RouterId) -> Result<(), Refused> {
        match self.routers.contains_key(id) {
            true => Ok(()),
            false => Err(Refused::RouterMissing(id.as_str().to_owned())),
        }
    }

    /// Checks a neighbour in place of the one with its address: no router has that. A vnic may, as
    /// all hosts may have one list of neighbours; but one that has it by its prefix has its MAC
    /// address, too.
    pub(crate) fn check_neighbour(
        &self,
        neighbour: &Neighbour,
        vnics: &Vnics,
    ) -> Result<(), Refused> {
        let (vni, address) = (neighbour.vni(), neighbour.address());
        let there = self.neighbour(vni, address).is_some();
        let count = self.neighbours.len() + usize::from(!there);
        bounded(count, MAX_NEIGHBOURS, "neighbours", || "this host".to_owned())?;
        let owner = vnics.with_prefix(vni, address);
        if let Some(nic) = owner.filter(|nic| nic.mac.octets() != neighbour.mac().octets()) {
            let owner = format!("nic {:?}, by its prefix", nic.id.as_str());
            return Err(Refused::AddressTaken { address, vni, owner });
        }
        self.check_machine(vni, address)
    }

    /// Checks that there is a neighbour with this address.
    pub(crate) fn check_neighbour_there(&self, vni: Vni, address: IpAddr) -> Result<(), Refused> {
        match self.neighbour(vni, address) {
            Some(_) => Ok(()),
            None => Err(Refused::NeighbourMissing { address, vni }),
        }
    }

    /// Adds a network in place of the one with its number.
    pub(crate) fn insert_network(&mut self, network: Network) {
        self.networks.insert(network.vni(), network);
    }

    /// Takes a network out.
    pub(crate) fn remove_network(&mut self, vni: Vni) {
        self.networks.remove(&vni);
    }

    /// Adds a router in place of the one with its id.
    pub(crate) fn insert_router(&mut self, router: Router) {
        self.remove_router(router.id());
        for vni in joined(&router) {
            self.by_vni.entry(vni).or_default().insert(router.id().clone());
        }
        for (external, _) in router.externals() {
            self.by_external.entry(external.clone()).or_default().insert(router.id().clone());
        }
        self.routes += router.routes().len();
        self.ways += ways_of(&router);
        self.routers.insert(router.id().clone(), router);
    }

    /// Adds a neighbour in place of the one with its address.
    pub(crate) fn insert_neighbour(&mut self, neighbour: Neighbour) {
        self.neighbours.insert((neighbour.vni(), neighbour.address()), neighbour);
    }

    /// Takes a neighbour out.
    pub(crate) fn remove_neighbour(&mut self, vni: Vni, address: IpAddr) {
        self.neighbours.remove(&(vni, address));
    }

    /// Takes a router out.
    pub(crate) fn remove_router(&mut self, id: &RouterId) {
        let Some(router) = self.routers.remove(id) else { return };
        self.routes -= router.routes().len();
        self.ways -= ways_of(&router);
        for vni in joined(&router) {
            let Some(ids) = self.by_vni.get_mut(&vni) else { continue };
            ids.remove(id);
            if ids.is_empty() {
                self.by_vni.remove(&vni);
            }
        }
        for (external, _) in router.externals() {
            let Some(ids) = self.by_external.get_mut(external) else { continue };
            ids.remove(id);
            if ids.is_empty() {
                self.by_external.remove(external);
            }
        }
    }
}

/// The name of a neighbour in a refusal.
fn owner_name(neighbour: &Neighbour) -> String {
    format!("the declared neighbour {}", neighbour.mac())
}

/// The number of ways of all routes of a router.
fn ways_of(router: &Router) -> usize {
    router.routes().map(|route| route.via().len()).sum()
}

/// The networks that a router joins.
fn joined(router: &Router) -> impl Iterator<Item = Vni> + use<> {
    router.attachments().map(|(vni, _)| vni).collect::<Vec<_>>().into_iter()
}

/// True if a router has an address in a network that it joins.
fn has(router: &Router, network: &Network, address: IpAddr) -> bool {
    let given = router.attachment(network.vni());
    given.is_some_and(|given| given.in_network(network).any(|other| other == address))
}

fn bounded(
    count: usize,
    most: usize,
    what: &'static str,
    owner: impl FnOnce() -> String,
) -> Result<(), Refused> {
    if count > most { Err(Refused::TooMany { owner: owner(), what, most }) } else { Ok(()) }
}

/// Blocks of which no two have an address in common, by their first addresses.
#[derive(Default)]
struct Blocks(BTreeMap<IpAddr, (Cidr, Vni)>);

impl Blocks {
    /// Adds the subnets of a network. Fails if one overlaps another block.
    fn add(&mut self, network: &Network) -> Result<(), Refused> {
        for subnet in network.subnets() {
            self.check_block(subnet.cidr(), network.vni())?;
            self.0.insert(subnet.cidr().network(), (subnet.cidr(), network.vni()));
        }
        Ok(())
    }

    /// Checks that no subnet of a network overlaps one of the blocks.
    fn check(&self, network: &Network) -> Result<(), Refused> {
        let mut subnets = network.subnets().iter();
        subnets.try_for_each(|subnet| self.check_block(subnet.cidr(), network.vni()))
    }

    /// Of two blocks that overlap one is in the other, so only the two neighbours can.
    fn check_block(&self, cidr: Cidr, vni: Vni) -> Result<(), Refused> {
        let first = cidr.network();
        let before = self.0.range(..=first).next_back();
        let mut near = before.into_iter().chain(self.0.range(first..).next());
        match near.find(|(_, (other, _))| other.overlaps(&cidr)) {
            Some((_, (other, of))) => {
                Err(Refused::Overlap { cidr, vni, other: *other, other_vni: *of })
            }
            None => Ok(()),
        }
    }
}
