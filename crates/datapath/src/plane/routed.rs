//! Declared networks, routers and neighbours, as the data path keeps them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use butterfly_model::{External, Nat, Neighbour, Network as Declared, Router, RouterId, Vni};
use butterfly_packet::Mac;

use crate::engine::{mac::number, place::PortRef};
use crate::plane::{advertising::Untold, ports::SharedPorts};
use crate::world::{
    nat::NatTable,
    outside::{Outside, WirePlace},
    ports::PortsOf,
    routing::{Gateway, Joined, Routing},
    rules::number as number_of_ip,
    snapshot::Rules,
};

/// A change of the networks that are declared, of the routers that join them, or of their
/// neighbours. It was checked against everything that is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutingChange {
    /// A network comes, or has these subnets and this MTU from now on.
    DeclareNetwork(Declared),
    /// A network is not declared any more; no router joins it.
    RemoveNetwork(Vni),
    /// A router comes, or joins exactly these networks from now on.
    DeclareRouter(Router),
    /// A router goes.
    RemoveRouter(RouterId),
    /// A neighbour comes, or has this MAC address and host from now on.
    DeclareNeighbour(Neighbour),
    /// The neighbour with this address in this network goes.
    RemoveNeighbour(Vni, IpAddr),
    /// A declared network has an outside from now on: a wire, or without one its vnics here. On an
    /// error nothing has changed.
    DeclareWire(External),
    /// A network has no outside any more.
    RemoveWire(Vni),
    /// A router has exactly these translations at the external with this number from now on.
    DeclareNat(RouterId, Vni, Vec<Nat>),
}

/// Error of a change that this host cannot put into effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotInEffect(pub String);

/// Returns the networks that a router joins.
fn networks_of(router: Option<&Router>) -> BTreeSet<Vni> {
    router.into_iter().flat_map(Router::attachments).map(|(vni, _)| vni).collect()
}

/// Declared networks and routers.
#[derive(Default)]
pub(super) struct Routed {
    networks: BTreeMap<Vni, Declared>,
    routers: BTreeMap<RouterId, Router>,
    /// Hosts of declared neighbours, and those that lead out for routers, and of how many of both.
    /// Never 0.
    hosts: BTreeMap<IpAddr, usize>,
    /// Networks that are externals.
    externals: BTreeMap<Vni, External>,
    /// Places of this host on the wires of externals that have one.
    wires: BTreeMap<Vni, WirePlace>,
    /// Translations of routers at externals. No list is empty.
    nat: BTreeMap<(Vni, RouterId), Vec<Nat>>,
    /// Ports of the addresses that machines of routers share.
    pub ports: SharedPorts,
    /// Routers and blocks that networks told in advertisements and tell no more, by VNI, since the
    /// last look at it.
    pub untold: BTreeMap<u32, Untold>,
    /// Prefixes that vnics had and have no more, since the last look: the newest.
    pub untold_prefixes: HashMap<PortRef, Vec<(Ipv6Addr, u8)>>,
}

impl Routed {
    /// Keeps what networks told and tell no more, until somebody looks.
    pub fn untold(&mut self, of: Vec<(u32, Untold)>) {
        for (vni, untold) in of.into_iter().filter(|(_, untold)| !untold.is_empty()) {
            self.untold.entry(vni).or_default().add(untold);
        }
    }

    /// Keeps the prefixes that a vnic had and has no more, until somebody looks.
    pub fn untold_prefixes(&mut self, place: PortRef, old: &Rules, new: &Rules) {
        /// As many as are taken back.
        const MOST: usize = 8;
        let gone = old.prefixes.iter().filter(|upper| !new.has_prefix(**upper));
        let gone: Vec<_> = gone.map(|it| (Ipv6Addr::from(u128::from(*it) << 64), 64)).collect();
        if !gone.is_empty() {
            let all = self.untold_prefixes.entry(place).or_default();
            all.extend(gone);
            all.drain(..all.len().saturating_sub(MOST));
        }
    }

    /// Carries out a change. Returns the networks whose routing is another one now.
    pub fn change(&mut self, change: RoutingChange) -> BTreeSet<Vni> {
        match change {
            RoutingChange::DeclareNetwork(network) => {
                let vni = network.vni();
                self.networks.insert(vni, network);
                self.with_neighbours(vni)
            }
            RoutingChange::RemoveNetwork(vni) => {
                self.networks.remove(&vni);
                self.with_neighbours(vni)
            }
            RoutingChange::DeclareRouter(router) => {
                let new = networks_of(Some(&router));
                let old = self.routers.insert(router.id().clone(), router);
                networks_of(old.as_ref()).into_iter().chain(new).collect()
            }
            RoutingChange::RemoveRouter(id) => networks_of(self.routers.remove(&id).as_ref()),
            // The snapshot has them.
            RoutingChange::DeclareNeighbour(_) | RoutingChange::RemoveNeighbour(..) => {
                BTreeSet::new()
            }
            RoutingChange::DeclareWire(external) => {
                let vni = external.vni();
                self.externals.insert(vni, external);
                BTreeSet::from([vni])
            }
            RoutingChange::RemoveWire(vni) => {
                self.externals.remove(&vni);
                self.wires.remove(&vni);
                BTreeSet::from([vni])
            }
            RoutingChange::DeclareNat(router, vni, rules) => {
                match rules.is_empty() {
                    true => self.nat.remove(&(vni, router)),
                    false => self.nat.insert((vni, router), rules),
                };
                BTreeSet::from([vni])
            }
        }
    }

    /// Returns the host that leads out for a router, if one does.
    pub fn leads_out(&self, router: &RouterId) -> Option<IpAddr> {
        self.routers.get(router)?.second_hop().map(|it| it.host)
    }

    /// Notes that a neighbour is on a host. Returns whether it is the first one there.
    pub fn host_is_used(&mut self, host: IpAddr) -> bool {
        let neighbours = self.hosts.entry(host).or_default();
        *neighbours += 1;
        *neighbours == 1
    }

    /// Notes that a neighbour is not on a host any more. Returns whether it was the last one there.
    pub fn host_is_left(&mut self, host: IpAddr) -> bool {
        let Some(neighbours) = self.hosts.get_mut(&host) else { return false };
        *neighbours -= 1;
        *neighbours == 0 && self.hosts.remove(&host).is_some()
    }

    /// Returns whether a neighbour is on a host.
    pub fn is_used(&self, host: &IpAddr) -> bool {
        self.hosts.contains_key(host)
    }

    /// Returns a network, and those from which its routers lead to it.
    fn with_neighbours(&self, vni: Vni) -> BTreeSet<Vni> {
        let joins = |router: &&Router| router.attachment(vni).is_some();
        let others = self.routers.values().filter(joins);
        others.flat_map(|router| networks_of(Some(router))).chain([vni]).collect()
    }

    /// Notes the place of this host on the wire of an external, or that it has none.
    pub fn set_wire(&mut self, vni: Vni, place: Option<WirePlace>) {
        match place {
            Some(place) => self.wires.insert(vni, place),
            None => self.wires.remove(&vni),
        };
    }

    /// Returns whether a network is an external.
    pub fn is_external(&self, vni: Vni) -> bool {
        self.externals.contains_key(&vni)
    }

    /// Returns the outside of a network. `gateways` are its routers' places there.
    fn outside(&self, vni: Vni, gateways: &[Gateway]) -> Option<Outside> {
        let external = self.externals.get(&vni)?;
        let own = gateways.iter().flat_map(|it| it.addresses.iter().map(|own| (*own, it.mac)));
        let of_external = self.nat.iter().filter(|((of, _), _)| *of == vni);
        let translated = of_external.flat_map(|((_, router), rules)| {
            let mac = number(Mac(router.gateway_mac()));
            rules.iter().map(move |rule| (number_of_ip(rule.outside()), mac))
        });
        let of_external = self.nat.iter().filter(|((of, _), _)| *of == vni);
        let rules =
            of_external.map(|((_, router), it)| (number(Mac(router.gateway_mac())), &it[..]));
        let wire = self.wires.get(&vni).copied();
        let ports = |router, address: Ipv4Addr| {
            let of = PortsOf { router, vni: vni.number(), address: address.to_bits() };
            self.ports.of(&of)
        };
        let nat = NatTable::new(rules, ports);
        Some(Outside::new(external, wire, own.chain(translated), nat))
    }

    /// Makes the routing of these networks. `None` for those that are not declared.
    pub fn routings(&self, of: BTreeSet<Vni>) -> impl Iterator<Item = (Vni, Option<Arc<Routing>>)> {
        let mut joined = BTreeMap::<&RouterId, Arc<Joined>>::new();
        for router in self.routers.values() {
            if router.attachments().any(|(vni, _)| of.contains(&vni)) {
                let made = Joined::new(router, |vni| self.networks.get(&vni));
                joined.insert(router.id(), Arc::new(made));
            }
        }
        of.into_iter().map(move |vni| {
            let routers = joined.iter().filter_map(|(id, joined)| {
                let router = self.routers.get(*id)?;
                router.attachment(vni).map(|_| (router, joined.clone()))
            });
            let declared = self.networks.get(&vni);
            let outside = |gateways: &[Gateway]| self.outside(vni, gateways);
            (vni, declared.map(|network| Arc::new(Routing::new(network, routers, outside))))
        })
    }
}
