//! Routing: what joins the networks of this host, as workers see it.

use std::{collections::BTreeSet, fmt, net::Ipv4Addr, sync::Arc};

use butterfly_model as model;
use butterfly_packet::Mac;

use crate::engine::{
    mac::{address as mac_of, number},
    reserved::TRANSLATED,
};
use crate::ip::{Address, discovery::link_local, is_v4, mapped, upper};
use crate::world::{
    leases::Leasing,
    leases6::Leasing6,
    outside::Outside,
    prefixes::{PrefixBuilder, Prefixes},
    rules::{address as ip_of, number as number_of_ip},
    ways::{Course, Leads, OtherHost, Passage},
};

/// All addresses of both families.
const EVERYTHING: [Block; 2] = [
    Block { first: mapped(Ipv4Addr::UNSPECIFIED), last: mapped(Ipv4Addr::BROADCAST) },
    Block { first: 0, last: Address::MAX },
];

/// A block of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    first: Address,
    last: Address,
}

impl Block {
    /// Makes a block of one that was declared.
    pub fn new(cidr: &model::Cidr) -> Block {
        let first = number_of_ip(cidr.network());
        let bits = if cidr.network().is_ipv4() { 32 } else { 128 };
        let free = bits - u32::from(cidr.mask_size()).min(bits);
        let beyond = 1u128.checked_shl(free).map_or(u128::MAX, |all| all - 1);
        Block { first, last: first | beyond }
    }

    /// Number of leading bits that its addresses have in common, in their family.
    fn bits(&self) -> u32 {
        let free = (self.last - self.first).count_ones();
        if is_v4(self.first) { 32 - free.min(32) } else { 128 - free }
    }

    /// Returns whether an address is in the block.
    #[inline(always)]
    pub fn has(&self, address: Address) -> bool {
        (self.first..=self.last).contains(&address)
    }

    /// Returns whether no machine has an address: the network's own, or its broadcast (RFC 1122,
    /// 3.2.1.3), of a block of IPv4 that has more than two.
    #[inline(always)]
    pub fn is_nobodys(&self, address: Address) -> bool {
        is_v4(address)
            && self.last - self.first > 1
            && (address == self.first || address == self.last)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", model::canonical(ip_of(self.first)), self.bits())
    }
}

/// Place of a router in a network that it joins.
#[derive(Debug)]
struct Interface {
    block: Block,
    vni: u32,
    /// Its addresses are known outside: they are of IPv6, or the network is public.
    public: bool,
}

/// A block of addresses that a router knows.
#[derive(Debug)]
pub(crate) struct RouteEntry {
    pub block: Block,
    pub leads: Leads,
}

const _: () = assert!(size_of::<RouteEntry>() <= 64, "an entry is one cache line");

/// A router: the networks that it joins, and where it leads beyond them.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Blocks of all its networks, ascending. No two of them overlap.
    interfaces: Box<[Interface]>,
    /// Its own addresses in them, ascending.
    addresses: Box<[Address]>,
    /// Blocks of its networks, and those of its routes.
    entries: Box<[RouteEntry]>,
    /// Number of routes, which come before the blocks of networks.
    routes: usize,
    /// Places in [`Self::entries`], of both families.
    v4: Prefixes,
    v6: Prefixes,
}

/// Returns an address as a table of its family has it.
fn key(address: Address) -> u128 {
    if is_v4(address) { address << 96 } else { address }
}

impl Joined {
    /// Makes a router. `networks` returns what is declared of a network.
    pub fn new<'a>(
        router: &model::Router,
        networks: impl Fn(model::Vni) -> Option<&'a model::Network>,
    ) -> Joined {
        let joined = router.attachments().filter_map(|(vni, _)| Some((vni, networks(vni)?)));
        let mut interfaces: Vec<Interface> = joined
            .flat_map(|(vni, network)| {
                let blocks = network.subnets().iter().map(|subnet| Block::new(&subnet.cidr()));
                blocks.map(move |block| {
                    let public = network.is_public() || !is_v4(block.first);
                    Interface { block, vni: vni.number(), public }
                })
            })
            .collect();
        interfaces.sort_unstable_by_key(|interface| interface.block.first);
        let given = router.attachments().filter_map(|(vni, given)| {
            networks(vni).map(|network| given.in_network(network).map(number_of_ip))
        });
        let mut addresses: Vec<Address> = given.flatten().collect();
        addresses.sort_unstable();
        let connected = |address: Address| {
            let after = interfaces.partition_point(|it| it.block.first <= address);
            let nearest = after.checked_sub(1).and_then(|at| interfaces.get(at));
            let network = nearest.filter(|interface| interface.block.has(address));
            network.map(|interface| Passage::new(address, interface.vni))
        };
        let declared = router.routes().map(|route| {
            let via = route.via().iter().copied().map(number_of_ip);
            let leads = match route.via() {
                [] => Leads::Nowhere,
                _ => Leads::Via(via.filter_map(connected).collect()),
            };
            RouteEntry { block: Block::new(&route.to()), leads }
        });
        let over = router.second_hop().map(|it| OtherHost {
            endpoint: number_of_ip(it.host),
            mac: number(Mac(model::host_mac(it.host))),
            mtu: it.mtu.into(),
        });
        // What is declared comes first.
        let over = over.into_iter().flat_map(|it| EVERYTHING.map(|block| (block, it)));
        let missing = over
            .filter(|(block, _)| !router.routes().any(|route| Block::new(&route.to()) == *block));
        let over =
            missing.map(|(block, it)| RouteEntry { block, leads: Leads::Over(Box::new(it)) });
        // Of one block, the network itself comes before a route.
        let own = interfaces
            .iter()
            .map(|it| RouteEntry { block: it.block, leads: Leads::Connected(it.vni) });
        let entries: Box<[RouteEntry]> = declared.chain(over).chain(own).collect();
        let (mut v4, mut v6) = (PrefixBuilder::new(), PrefixBuilder::new());
        for (at, RouteEntry { block, .. }) in entries.iter().enumerate() {
            let table = if is_v4(block.first) { &mut v4 } else { &mut v6 };
            table.insert(key(block.first), block.bits(), at as u32);
        }
        let (v4, v6) = (v4.finish(), v6.finish());
        let routes = entries.len() - interfaces.len();
        let (interfaces, addresses) = (interfaces.into(), addresses.into());
        Joined { interfaces, addresses, entries, routes, v4, v6 }
    }

    /// Returns the smallest block that it knows and that has an address: of one of its networks, or
    /// of a route. `None` if there is none.
    #[inline]
    pub fn route_to(&self, address: Address) -> Option<&RouteEntry> {
        if self.routes == 0 {
            // The blocks of its networks alone, in the order of `interfaces`.
            let after = self.entries.partition_point(|it| it.block.first <= address);
            let nearest = self.entries.get(after.checked_sub(1)?)?;
            return nearest.block.has(address).then_some(nearest);
        }
        let table = if is_v4(address) { &self.v4 } else { &self.v6 };
        self.entries.get(table.longest(key(address))? as usize)
    }

    /// Returns whether an address is the router's own, in any of its networks.
    #[inline]
    pub fn has(&self, address: Address) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// Returns whether no machine has an address in the network to which it belongs.
    pub fn is_nobodys(&self, address: Address) -> bool {
        let after = self.interfaces.partition_point(|it| it.block.first <= address);
        let nearest = after.checked_sub(1).and_then(|at| self.interfaces.get(at));
        nearest.is_some_and(|it| it.block.is_nobodys(address))
    }

    /// Returns the network to which an address belongs, by its number, whatever routes there are.
    /// `None` if no network of the router has it.
    #[inline]
    pub fn connected(&self, address: Address) -> Option<u32> {
        self.interface_of(address).map(|interface| interface.vni)
    }

    #[inline]
    fn interface_of(&self, address: Address) -> Option<&Interface> {
        let after = self.interfaces.partition_point(|it| it.block.first <= address);
        let nearest = self.interfaces.get(after.checked_sub(1)?)?;
        nearest.block.has(address).then_some(nearest)
    }

    /// Returns whether an address is one of a network that is known in the outside network `from`.
    pub fn is_known_outside(&self, address: Address, from: u32) -> bool {
        self.interface_of(address).is_some_and(|it| it.public && it.vni != from)
    }
}

/// A router's place in one network.
#[derive(Debug)]
pub(crate) struct Gateway {
    /// Its MAC address, as [`number`].
    pub mac: u64,
    /// Its addresses there.
    pub addresses: Box<[Address]>,
    pub router: Arc<Joined>,
}

impl Gateway {
    /// Returns the networks by which the router leads to an address.
    fn networks_to(&self, address: Address) -> impl Iterator<Item = u32> {
        let (connected, ways) = match self.router.route_to(address).map(|route| &route.leads) {
            Some(Leads::Connected(vni)) => (Some(*vni), &[][..]),
            Some(Leads::Via(ways)) => (None, &ways[..]),
            Some(Leads::Nowhere | Leads::Over(_)) | None => (None, &[][..]),
        };
        connected.into_iter().chain(ways.iter().map(|way| way.vni))
    }
}

/// Declaration of a network, and those who route there.
#[derive(Debug)]
pub(crate) struct Routing {
    pub gateways: Box<[Gateway]>,
    /// Addresses of gateways, ascending, and the places of these.
    addresses: Box<[(Address, u32)]>,
    /// The networks that its routers join, each once, this one too, ascending.
    pub networks: Box<[u32]>,
    /// Blocks that its machines have addresses of.
    subnets: Box<[Block]>,
    /// Longest IP packet, in bytes; `u32::MAX` if none is declared.
    pub mtu: u32,
    /// DHCP of the network, if it is declared.
    pub leasing: Option<Box<Leasing>>,
    /// DHCPv6 and advertisements, if a router has an address of IPv6 in it and it is no external.
    /// Quiet, but for the routers' link-local addresses, where nothing is leased.
    pub leasing6: Option<Box<Leasing6>>,
    /// Its outside, if it is an external.
    pub outside: Option<Box<Outside>>,
    /// Its IPv4 addresses leave by externals untranslated.
    pub public: bool,
}

impl Routing {
    /// Returns what it gives by DHCPv6, and tells in advertisements.
    pub fn leasing6(&self) -> Option<&Leasing6> {
        self.leasing6.as_deref()
    }

    /// Makes the routing of a declared network. `routers` are those that join it.
    pub fn new<'a>(
        network: &model::Network,
        routers: impl Iterator<Item = (&'a model::Router, Arc<Joined>)>,
        outside: impl FnOnce(&[Gateway]) -> Option<Outside>,
    ) -> Routing {
        let gateway = |(router, joined): (&model::Router, Arc<Joined>)| {
            let given = router.attachment(network.vni())?;
            let addresses = given.in_network(network).map(number_of_ip).collect();
            let mac = number(Mac(router.id().gateway_mac()));
            Some(Gateway { mac, addresses, router: joined })
        };
        let gateways: Box<[Gateway]> = routers.filter_map(gateway).collect();
        let interfaces = gateways.iter().flat_map(|gateway| &gateway.router.interfaces);
        let networks: BTreeSet<u32> = interfaces.map(|interface| interface.vni).collect();
        let each = (0_u32..).zip(gateways.iter());
        let mut addresses: Vec<(Address, u32)> =
            each.flat_map(|(at, it)| it.addresses.iter().map(move |own| (*own, at))).collect();
        let outside = outside(&gateways).map(Box::new);
        let joined: Vec<_> = gateways.iter().map(|it| (it.mac, &*it.addresses)).collect();
        let leasing6 = Leasing6::new(network, &joined).filter(|_| outside.is_none());
        if leasing6.is_some() {
            // By these machines know the routers that advertise themselves.
            let local = |it: &Gateway| link_local(mac_of(it.mac));
            addresses.extend((0..).zip(gateways.iter()).map(|(at, it)| (local(it), at)));
        }
        addresses.sort_unstable();
        addresses.dedup_by_key(|(address, _)| *address);
        let declared = network.mtu().map_or(u32::MAX, u32::from);
        Routing {
            networks: networks.into_iter().collect(),
            leasing: Leasing::new(network, &gateways).map(Box::new),
            leasing6: leasing6.map(Box::new),
            public: network.is_public(),
            gateways,
            addresses: addresses.into(),
            subnets: network.subnets().iter().map(|subnet| Block::new(&subnet.cidr())).collect(),
            mtu: outside.as_ref().map_or(declared, |outside| outside.mtu.min(declared)),
            outside,
        }
    }

    /// Returns the gateway with this MAC address.
    #[inline(always)]
    pub fn by_mac(&self, mac: u64) -> Option<&Gateway> {
        self.gateways.iter().find(|gateway| gateway.mac == mac & !TRANSLATED)
    }

    /// Returns the address of a gateway that a machine of the network knows it by: the one in the
    /// machine's block, else the first of its family.
    pub fn address_for(&self, gateway: &Gateway, machine: Address) -> Option<Address> {
        let block = self.subnets.iter().find(|block| block.has(machine));
        let near = |address: &&Address| block.is_some_and(|block| block.has(**address));
        let same = |address: &&Address| is_v4(**address) == is_v4(machine);
        let mut addresses = gateway.addresses.iter();
        addresses.clone().find(near).or_else(|| addresses.find(same)).copied()
    }

    /// Returns the MAC address that answers for an address: a gateway's, or this host's on a wire.
    pub fn answers_for(&self, address: Address) -> Option<u64> {
        match &self.outside {
            Some(outside) => outside.answers_for(address),
            None => self.by_address(address).map(|gateway| gateway.mac),
        }
    }

    /// Returns the MAC address of all routers on the network's wire, as [`number`]; [`u64::MAX`],
    /// which is none, if it has no wire.
    #[inline(always)]
    pub fn wire_mac(&self) -> u64 {
        self.outside.as_ref().map_or(u64::MAX, |outside| match outside.mac {
            0 => u64::MAX,
            mac => mac,
        })
    }

    /// Returns the gateway to which a packet from a wire goes: that which has its destination, else
    /// the only one whose router has it in a network that is known outside, which is not `own`, the
    /// number of this one.
    pub fn on_wire(&self, destination: Address, own: u32) -> Option<&Gateway> {
        let knows = |gateway: &&Gateway| gateway.router.is_known_outside(destination, own);
        let only = || {
            let mut all = self.gateways.iter().filter(knows);
            all.next().filter(|_| all.next().is_none())
        };
        self.by_address(destination).or_else(only)
    }

    /// Returns the gateway that has an address.
    pub fn by_address(&self, address: Address) -> Option<&Gateway> {
        let at = self.addresses.binary_search_by_key(&address, |(it, _)| *it).ok()?;
        self.gateways.get(self.addresses.get(at)?.1 as usize)
    }

    /// Returns the MAC address of the gateway by which a machine of the network reaches an address,
    /// or that has it: none if another machine of the network may have it, or there is no gateway.
    pub fn way_out(&self, address: Address) -> Option<u64> {
        if let Some(mac) = self.answers_for(address) {
            return Some(mac);
        }
        let inside = self.subnets.iter().any(|block| block.has(address));
        let wire = self.outside.as_ref().map_or(0, |outside| outside.mac);
        if wire != 0 {
            return Some(wire).filter(|_| !inside);
        }
        let leads = |gateway: &&Gateway| gateway.router.route_to(address).is_some();
        let speaks =
            |gateway: &&Gateway| gateway.addresses.iter().any(|own| is_v4(*own) == is_v4(address));
        let mut gateways = self.gateways.iter().filter(speaks);
        let best = gateways.clone().find(leads).or_else(|| gateways.next());
        best.filter(|_| !inside).map(|gateway| gateway.mac)
    }

    /// Returns the network beside this one, of number `own`, by which a router leads to an address,
    /// and the gateway of that router. `None` if none does.
    pub fn beyond(&self, address: Address, own: u32) -> Option<(&Gateway, u32)> {
        self.all_beyond(address, own).next()
    }

    /// Returns all such networks, and the addresses of the machines there that may get what a flow
    /// has for an address, those first that it prefers. Not for workers.
    pub fn nexts(&self, address: Address, own: u32, course: Course) -> Vec<(u32, Address)> {
        let routes = self.gateways.iter().filter_map(|it| it.router.route_to(address));
        let ways = |route: &RouteEntry| match &route.leads {
            Leads::Connected(vni) => vec![(*vni, address)],
            Leads::Via(ways) => {
                course.order(ways).iter().map(|way| (way.vni, way.address)).collect()
            }
            Leads::Nowhere | Leads::Over(_) => Vec::new(),
        };
        routes.flat_map(ways).filter(|(vni, _)| *vni != own).collect()
    }

    /// Returns all such networks and gateways.
    pub fn all_beyond(&self, address: Address, own: u32) -> impl Iterator<Item = (&Gateway, u32)> {
        let each = self.gateways.iter();
        each.flat_map(move |it| it.networks_to(address).map(move |vni| (it, vni)))
            .filter(move |(_, vni)| *vni != own)
    }

    /// Returns the hosts by which routers of the network lead to an address outside, and the
    /// gateways of these routers.
    pub fn overs(&self, address: Address) -> impl Iterator<Item = (&Gateway, &OtherHost)> {
        self.gateways.iter().filter_map(move |it| match &it.router.route_to(address)?.leads {
            Leads::Over(host) => Some((it, &**host)),
            _ => None,
        })
    }

    /// Returns the machines by which routers of the network lead to an address: the networks that
    /// they are in, and their addresses.
    pub fn ways_to(&self, address: Address) -> impl Iterator<Item = (u32, Address)> {
        let routes = self.gateways.iter().filter_map(move |it| it.router.route_to(address));
        let ways = |route: &'_ RouteEntry| match &route.leads {
            Leads::Via(ways) => ways.to_vec(),
            _ => Vec::new(),
        };
        routes.flat_map(ways).map(|way| (way.vni, way.address))
    }

    /// Returns the networks that its routers join, for those that add to them.
    pub fn joined(&self) -> BTreeSet<u32> {
        self.networks.iter().copied().collect()
    }

    /// Returns the upper half of an address of a block that may be one vnic's prefix, in which it
    /// makes up as many addresses as it likes: a part of a larger subnet, and none with an address
    /// of a gateway, which no prefix has.
    #[cold]
    pub fn block_of(&self, address: Address) -> Option<u64> {
        let block = upper(address);
        let is_part = |subnet: &Block| subnet.has(address) && subnet.bits() < 64;
        let has_gateway =
            |gateway: &Gateway| gateway.addresses.iter().any(|it| upper(*it) == block);
        let may_be = !is_v4(address) && self.subnets.iter().any(is_part);
        (may_be && !self.gateways.iter().any(has_gateway)).then_some(block)
    }

    /// Returns whether a machine of the network may have an address.
    #[inline(always)]
    pub fn owns(&self, address: Address) -> bool {
        self.subnets.iter().any(|block| block.has(address) && !block.is_nobodys(address))
    }
}
