//! Routing: has workers see what is declared of networks, routers and neighbours.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use butterfly_model::Vni;

use crate::engine::place::MAX_SLOTS;
use crate::ip::Address;
use crate::overlay::impossible;
use crate::plane::{
    Plane, State,
    advertising::Untold,
    networks::{leases, rebuild_network},
    ports::{KeptPorts, PortsInUse},
    routed::{NotInEffect, RoutingChange},
    secrets,
    updates::Update,
};
use crate::world::{
    neighbours::Whereabouts,
    outside::WirePlace,
    routing::Routing,
    rules::{address, number as number_of_ip},
    snapshot::{Network, Snapshot, Vnic},
};

impl Plane {
    /// Changes what is declared of a network, router or neighbour. Returns when no worker goes by
    /// the old state any more. The caller checks that the whole makes sense. Fails for a wire that
    /// this host cannot have, and for addresses whose ports find no memory; nothing has changed
    /// then. `kept` keeps these.
    pub fn change_routing(
        &self,
        change: RoutingChange,
        kept: &dyn KeptPorts,
    ) -> Result<(), NotInEffect> {
        let mut state = self.state();
        if let RoutingChange::DeclareNat(router, vni, rules) = &change {
            let ports = &mut state.routed.ports;
            let [secret, other, ..] = secrets().map_err(|why| NotInEffect(why.to_string()))?;
            let of_now = (self.shared.clock.now(), [secret, other]);
            let opened = ports.open((router, *vni), rules, kept, of_now);
            opened.map_err(|(address, why)| {
                NotInEffect(format!(
                    "machines cannot share {address}: no memory for its ports: {why}"
                ))
            })?;
            ports.part((router, *vni), rules, kept);
        }
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        match &change {
            RoutingChange::DeclareNeighbour(neighbour) => {
                let old = next.neighbours.declare(neighbour);
                self.change_host(&mut state, neighbour.host(), host_of(old));
            }
            RoutingChange::RemoveNeighbour(vni, address) => {
                let old = next.neighbours.remove(vni.number(), number_of_ip(*address));
                self.change_host(&mut state, None, host_of(old));
            }
            RoutingChange::DeclareRouter(router) => {
                let old = state.routed.leads_out(router.id());
                self.change_host(&mut state, router.second_hop().map(|it| it.host), old);
            }
            RoutingChange::RemoveRouter(id) => {
                let old = state.routed.leads_out(id);
                self.change_host(&mut state, None, old);
            }
            _ => {}
        }
        let nat = match &change {
            RoutingChange::DeclareNat(router, vni, rules) => {
                Some((router.clone(), *vni, rules.clone()))
            }
            _ => None,
        };
        let concerned = state.routed.change(change);
        if !concerned.is_empty() {
            let mut all = HashMap::clone(&next.routings);
            let mut untold = Vec::new();
            for (vni, routing) in state.routed.routings(concerned.clone()) {
                let vni = vni.number();
                match &routing {
                    Some(routing) => all.insert(vni, routing.clone()),
                    None => all.remove(&vni),
                };
                let here = next.by_vni.get(&vni).copied();
                if let Some((at, network)) = here.and_then(|at| Some((at, next.networks.get(at)?)))
                {
                    if let Some(before) = network.routing.as_deref().and_then(Routing::leasing6) {
                        let after = routing.as_deref().and_then(Routing::leasing6);
                        untold.push((vni, Untold::of(before, after)));
                    }
                    let may_be_routed = routing.is_some() || network.remote.is_some();
                    let mut network = Network { routing, may_be_routed, ..Network::clone(network) };
                    network.leases = leases(&network, &next.vnics);
                    next.networks.set(at, Some(Arc::new(network)));
                }
            }
            next.routings = Arc::new(all);
            state.routed.untold(untold);
        }
        let before = next.by_vni.clone();
        let leaving = self.join(&mut state, &mut next, concerned);
        let is_other = !Arc::ptr_eq(&before, &next.by_vni);
        self.gone.leaving(&leaving);
        self.publish(next);
        if let Some((router, vni, rules)) = nat {
            state.routed.ports.forward((&router, vni), &rules);
        }
        state.routed.ports.close();
        self.gone.left(&leaving);
        leaving.iter().for_each(|trunk| self.shared.table.name(trunk.place.slot, None));
        let slots: BTreeSet<u32> = leaving.iter().map(|trunk| trunk.place.slot).collect();
        if !slots.is_empty() {
            self.forget(|learnt| slots.contains(&learnt.place.slot));
        }
        if is_other {
            self.settle();
        }
        self.updates.add(Update::RoutingChanged);
        Ok(())
    }

    /// Returns how many ports are in use of each address that machines share: for the operator.
    pub fn ports_in_use(&self) -> Vec<PortsInUse> {
        let snapshot = self.shared.snapshot.load();
        let outsides =
            snapshot.routings.iter().filter_map(|(vni, it)| Some((*vni, it.outside.as_ref()?)));
        let pools = outsides.flat_map(|(vni, outside)| {
            outside.nat.pools().map(move |pool| {
                let [tcp, udp, echo] = pool.ports.used();
                PortsInUse { vni, address: pool.address, tcp, udp, echo }
            })
        });
        let mut all: Vec<PortsInUse> = pools.collect();
        all.sort_unstable_by_key(|it| (it.vni, it.address));
        // Networks behind the external know its translations, too.
        all.dedup_by_key(|it| (it.vni, it.address));
        all
    }

    /// Frees ports outside that are over, in part `n` of `parts`.
    pub fn sweep_ports(&self, n: usize, parts: usize) {
        if let Some(mut state) = self.try_state().filter(|_| n == 0) {
            state.routed.ports.close();
        }
        let snapshot = self.shared.snapshot.load();
        let outsides = snapshot.routings.values().filter_map(|routing| routing.outside.as_ref());
        for pool in outsides.flat_map(|outside| outside.nat.pools()) {
            pool.ports.sweep(n, parts, self.shared.clock.now());
        }
    }

    /// Notes the place of this host on the wire of an external, or that it has none. Counts from
    /// the next change of the external on.
    pub fn set_wire(&self, vni: Vni, place: Option<WirePlace>) {
        self.state().routed.set_wire(vni, place);
    }

    /// Notes that a neighbour is on this host now, and was there before, or that these lead out for
    /// a router. The tunnel knows hosts of neighbours as it knows those that are named.
    fn change_host(&self, state: &mut State, new: Option<IpAddr>, old: Option<IpAddr>) {
        if new == old {
            return;
        }
        let Some(tunnel) = &self.shared.tunnel else { return };
        let other = |host: &IpAddr| may_be_host(*host, tunnel.own);
        let new = new.filter(other);
        if let Some(new) = new
            && (state.routed.host_is_used(new) || tunnel.peers.find(number_of_ip(new)).is_none())
        {
            // Without room for it, nothing is routed there until there is some.
            let _ = tunnel.peers.configure(new);
        }
        if let Some(old) = old.filter(other).filter(|old| state.routed.host_is_left(*old))
            && !is_named(state, &old)
        {
            tunnel.peers.unconfigure(old);
        }
    }

    /// Has networks with a router and no vnic here, so that packets leave by them for other hosts,
    /// and externals without other hosts. Returns the trunks of those that go.
    fn join(
        &self,
        state: &mut State,
        next: &mut Snapshot,
        concerned: BTreeSet<Vni>,
    ) -> Vec<Arc<Vnic>> {
        let mut leaving = Vec::new();
        for vni in concerned.into_iter().map(Vni::number) {
            let here = next.by_vni.get(&vni).copied();
            let joined = next.is_joined(vni);
            let external = self.is_external(state, vni);
            let has = here.and_then(|at| next.networks.get(at)?.remote.as_ref());
            let trunk = has.map(|remote| remote.slot);
            match here {
                Some(at) if external && trunk.is_some() => {
                    rebuild_network(next, vni, at, None);
                    if let Some(trunk) = trunk.and_then(|slot| next.vnics.get(slot).cloned()) {
                        next.vnics.set(trunk.place.slot, None);
                        leaving.push(trunk);
                    }
                }
                _ if external => {}
                // It was an external.
                Some(at) if trunk.is_none() && self.shared.tunnel.is_some() => {
                    if next.vnics.vacant() >= MAX_SLOTS {
                        continue; // nothing is switched to other hosts there
                    }
                    self.next_version(next);
                    self.add_trunk(state, next, vni, at);
                    let remote = self.remote(state, next, vni, at);
                    let trunk = remote.as_ref().map(|remote| remote.slot);
                    rebuild_network(next, vni, at, remote);
                    self.name_slots(trunk.into_iter(), next);
                }
                None if joined && self.shared.tunnel.is_some() => {
                    if next.vnics.vacant() >= MAX_SLOTS {
                        continue; // nothing is routed to other hosts there
                    }
                    let at = next.networks.vacant();
                    self.next_version(next);
                    self.add_trunk(state, next, vni, at);
                    let remote = self.remote(state, next, vni, at);
                    let trunk = remote.as_ref().map(|remote| remote.slot);
                    rebuild_network(next, vni, at, remote);
                    self.name_slots(trunk.into_iter(), next);
                }
                Some(at) if !joined => {
                    let remote = self.remote(state, next, vni, at);
                    let trunk = remote.as_ref().map(|remote| remote.slot);
                    let is_empty =
                        !next.vnics.iter().any(|(_, vnic)| vnic.vni == vni && !vnic.is_trunk());
                    if !is_empty {
                        continue;
                    }
                    rebuild_network(next, vni, at, remote);
                    if let Some(trunk) = trunk.and_then(|slot| next.vnics.get(slot).cloned()) {
                        next.vnics.set(trunk.place.slot, None);
                        leaving.push(trunk);
                    }
                }
                _ => {}
            }
        }
        leaving
    }
}

/// Returns the host of a neighbour, if that is declared.
fn host_of(neighbour: Option<Whereabouts>) -> Option<IpAddr> {
    neighbour.and_then(|it| it.host).map(address)
}

/// Returns whether an address may be the tunnel endpoint of another host: it is not ours, and of
/// the same family.
fn may_be_host(host: IpAddr, own: Address) -> bool {
    address(own).is_ipv4() == host.is_ipv4() && !impossible(number_of_ip(host), own)
}

/// Returns whether the operator names a tunnel endpoint.
fn is_named(state: &State, peer: &IpAddr) -> bool {
    state.peers.contains(peer) || state.peers_of.values().any(|peers| peers.contains(peer))
}
