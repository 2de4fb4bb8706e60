//! The desired state.

use crate::{
    change::{Change, NicChange},
    peers::{Peers, TunnelPeer},
    refused::Refused,
    routed::Routed,
    vnics::Vnics,
};
use butterfly_model::{
    External, ExternalId, GroupName, NatRule, Neighbour, Network, Nic, NicId, Router, RouterId,
    Rule, SecurityGroup, Vni,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

/// Everything that is declared on a host. Holds only what is valid together.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    vnics: Vnics,
    groups: BTreeMap<GroupName, SecurityGroup>,
    peers: Peers,
    routed: Routed,
    /// Counts changes: a change is prepared for one state.
    version: u64,
}

/// Equal if everything is echoed alike and means the same. The order of peers means nothing, nor
/// does that of vnics of different MAC addresses.
impl PartialEq for Desired {
    fn eq(&self, other: &Self) -> bool {
        let of = |state: &Self| (state.vnics.len(), state.groups.len(), state.peers.len());
        of(self) == of(other)
            && self.vnics == other.vnics
            && self.groups == other.groups
            && self.peers == other.peers
            && self.routed == other.routed
    }
}

impl Eq for Desired {}

/// A change that may be made, of the state that it was prepared for.
#[derive(Debug)]
#[must_use = "a change that is not committed has not happened"]
pub struct Prepared {
    change: Change,
    version: u64,
}

impl Prepared {
    /// The change.
    pub fn change(&self) -> &Change {
        &self.change
    }
}

/// Objects that a file, or another source of a whole state, declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Vnics, in the order of declaration.
    pub vnics: Vec<Nic>,
    /// Security groups.
    pub groups: Vec<SecurityGroup>,
    /// Tunnel endpoints of other hosts.
    pub peers: Vec<TunnelPeer>,
    /// Networks.
    pub networks: Vec<Network>,
    /// Routers, each with all its attachments.
    pub routers: Vec<Router>,
    /// Neighbours.
    pub neighbours: Vec<Neighbour>,
    /// Externals.
    pub externals: Vec<External>,
    /// Translations.
    pub nats: Vec<NatRule>,
}

impl Declaration {
    /// True if it declares nothing.
    pub fn is_empty(&self) -> bool {
        self.vnics.is_empty()
            && self.groups.is_empty()
            && self.peers.is_empty()
            && self.networks.is_empty()
            && self.routers.is_empty()
            && self.neighbours.is_empty()
            && self.externals.is_empty()
            && self.nats.is_empty()
    }

    /// Adds what another one declares.
    pub fn join(&mut self, other: Declaration) {
        self.vnics.extend(other.vnics);
        self.groups.extend(other.groups);
        self.peers.extend(other.peers);
        self.networks.extend(other.networks);
        self.routers.extend(other.routers);
        self.neighbours.extend(other.neighbours);
        self.externals.extend(other.externals);
        self.nats.extend(other.nats);
    }
}

/// The fate of objects that a [`Declaration`] does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unnamed {
    /// They stay as they are.
    Stay,
    /// They go.
    Go,
}

impl Desired {
    /// A number that every change of the state changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The vnics.
    pub fn vnics(&self) -> &Vnics {
        &self.vnics
    }

    /// The security groups that exist, in byte order of their names. Vnics and rules may name
    /// others.
    pub fn groups(&self) -> &BTreeMap<GroupName, SecurityGroup> {
        &self.groups
    }

    /// The tunnel endpoints that were named.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The networks, routers and neighbours.
    pub fn routed(&self) -> &Routed {
        &self.routed
    }

    /// The change that declares `nic`: an addition, or what [`NicChange`] says; none if it is
    /// declared so already.
    pub fn declare(&self, nic: Nic) -> Option<Change> {
        let Some(old) = self.vnics.get(nic.id.as_str()) else {
            return Some(Change::AddVnic(nic.into()));
        };
        match NicChange::between(old, &nic) {
            NicChange::Nothing => None,
            NicChange::InPlace => Some(Change::ChangeVnic(nic.into())),
            NicChange::Recreate(_) => Some(Change::RemakeVnic(nic.into())),
        }
    }

    /// Checks whether `change` may be made. The state stays as it is until
    /// [`commit`](Self::commit): whatever else may fail is tried in between.
    ///
    /// Fails with the first rule that the state would break, or if what is to be changed is not
    /// there.
    pub fn prepare(&self, change: Change) -> Result<Prepared, Refused> {
        self.check(&change)?;
        Ok(Prepared { change, version: self.version })
    }

    /// Makes a change. Never fails: a change that was prepared for another state than this one is
    /// checked again, and is not made if it is refused now.
    pub fn commit(&mut self, prepared: Prepared) {
        let Prepared { change, version } = prepared;
        debug_assert_eq!(version, self.version, "prepared for another state: {change:?}");
        if version == self.version || self.check(&change).is_ok() {
            self.version += 1;
            self.make(change);
        }
    }

    fn check(&self, change: &Change) -> Result<(), Refused> {
        let there = |id: &NicId| {
            let found = self.vnics.get(id.as_str());
            found.ok_or_else(|| Refused::NicMissing(id.as_str().to_owned()))
        };
        let group = |name: &GroupName| match self.groups.contains_key(name) {
            true => Ok(()),
            false => Err(Refused::GroupMissing(name.as_str().to_owned())),
        };
        match change {
            Change::AddVnic(nic) if self.vnics.get(nic.id.as_str()).is_some() => {
                Err(Refused::NicExists(nic.id.as_str().to_owned()))
            }
            Change::AddVnic(nic) => self.check_vnic(nic),
            Change::ChangeVnic(nic) => match NicChange::between(there(&nic.id)?, nic) {
                NicChange::Nothing | NicChange::InPlace => self.check_vnic(nic),
                NicChange::Recreate(_) => Err(Refused::NotInPlace(nic.id.as_str().to_owned())),
            },
            Change::RemakeVnic(nic) => there(&nic.id).and_then(|_| self.check_vnic(nic)),
            Change::RemoveVnic(id) => there(id).map(drop),
            Change::DeclareGroup(_) => Ok(()),
            Change::RemoveGroup(name)
            | Change::AddRule(name, _)
            | Change::RemoveRule(name, _)
            | Change::AddMember(name, _)
            | Change::RemoveMember(name, _) => group(name),
            Change::NamePeer(peer) => self.peers.check(peer),
            Change::UnnamePeer(_) => Ok(()),
            Change::DeclareNetwork(network) => self.routed.check_network(network, &self.vnics),
            Change::RemoveNetwork(vni) => self.routed.check_removal(*vni),
            Change::DeclareRouter(router) => self.routed.check_router(router, &self.vnics),
            Change::RemoveRouter(id) => self.routed.check_router_removal(id),
            Change::DeclareNeighbour(neighbour) => {
                self.routed.check_neighbour(neighbour, &self.vnics)
            }
            Change::RemoveNeighbour(vni, address) => {
                self.routed.check_neighbour_there(*vni, *address)
            }
            Change::DeclareExternal(external) => self.routed.check_external(external, &self.vnics),
            Change::RemoveExternal(id) => self.routed.check_external_removal(id),
            Change::DeclareNat(router, external, nats) => {
                self.routed.check_nats(router, external, nats, &self.vnics)
            }
        }
    }

    /// Checks a vnic by itself, against all others, and against the routers of its network.
    fn check_vnic(&self, nic: &Nic) -> Result<(), Refused> {
        self.vnics.check(nic)?;
        Vnics::check_routed(nic, &self.routed)
    }

    fn make(&mut self, change: Change) {
        match change {
            Change::AddVnic(nic) | Change::ChangeVnic(nic) | Change::RemakeVnic(nic) => {
                self.vnics.insert(*nic);
            }
            Change::RemoveVnic(id) => drop(self.vnics.remove(id.as_str())),
            Change::DeclareGroup(group) => {
                drop(self.groups.insert(group.name().clone(), group));
            }
            Change::RemoveGroup(name) => drop(self.groups.remove(&name)),
            Change::AddRule(name, rule) => self.edit(&name, |group| group.add_rule(rule)),
            Change::RemoveRule(name, rule) => self.edit(&name, |group| group.remove_rule(&rule)),
            Change::AddMember(name, member) => self.edit(&name, |group| group.add_member(member)),
            Change::RemoveMember(name, member) => {
                self.edit(&name, |group| group.remove_member(member));
            }
            Change::NamePeer(peer) => self.peers.insert(peer),
            Change::UnnamePeer(peer) => self.peers.remove(&peer),
            Change::DeclareNetwork(network) => self.routed.insert_network(network),
            Change::RemoveNetwork(vni) => self.routed.remove_network(vni),
            Change::DeclareRouter(router) => self.routed.insert_router(router),
            Change::RemoveRouter(id) => self.routed.remove_router(&id),
            Change::DeclareNeighbour(neighbour) => self.routed.insert_neighbour(neighbour),
            Change::RemoveNeighbour(vni, address) => self.routed.remove_neighbour(vni, address),
            Change::DeclareExternal(external) => self.routed.insert_external(external),
            Change::RemoveExternal(id) => self.routed.remove_external(&id),
            Change::DeclareNat(router, external, nats) => {
                self.routed.set_nats(router, external, nats);
            }
        }
    }

    fn edit(&mut self, name: &GroupName, edit: impl FnOnce(&mut SecurityGroup) -> bool) {
        self.groups.get_mut(name).map(edit);
    }

    /// This state with what `declaration` says: objects that it names are as it says, others
    /// [stay or go](Unnamed).
    ///
    /// A vnic that is declared already keeps its place among those of its MAC address; others come
    /// behind them, in the order of the declaration. A rule without ports, of a protocol that has
    /// none, stands for all rules of the group that differ from it in nothing but ports: those are
    /// not echoed, so that a state that was read back is still the same.
    ///
    /// Fails with the first rule that the new state would break, and if an object is named twice.
    pub fn with(&self, declaration: Declaration, unnamed: Unnamed) -> Result<Self, Refused> {
        let Declaration { vnics, groups, peers, networks, routers, neighbours, externals, nats } =
            declaration;
        let mut new = match unnamed {
            Unnamed::Stay => self.clone(),
            Unnamed::Go => Self::default(),
        };
        new.version = self.version + 1;
        let outside = new.name_outside(externals, nats)?;
        let named = new.name_routed(networks, routers)?;
        let named_neighbours = new.name_neighbours(neighbours)?;
        new.declare_vnics(&self.vnics, vnics)?;
        new.check_named(&named)?;
        new.check_outside(&outside)?;
        new.check_neighbours(&named_neighbours)?;
        let mut names = BTreeSet::new();
        for group in groups {
            if !names.insert(group.name().clone()) {
                return Err(Refused::GroupTwice(group.name().as_str().to_owned()));
            }
            let group = match self.groups.get(group.name()) {
                Some(old) => with_unechoed_ports(group, old),
                None => group,
            };
            new.groups.insert(group.name().clone(), group);
        }
        for peer in peers {
            new.peers.check(&peer)?;
            new.peers.insert(peer);
        }
        Ok(new)
    }

    /// Declares networks and routers, unchecked. Returns those that have to be.
    fn name_routed(
        &mut self,
        networks: Vec<Network>,
        routers: Vec<Router>,
    ) -> Result<(BTreeSet<Vni>, BTreeSet<RouterId>), Refused> {
        let (mut vnis, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for network in networks {
            if !vnis.insert(network.vni()) {
                return Err(Refused::NetworkTwice(network.vni()));
            }
            self.routed.insert_network(network);
        }
        for router in routers {
            if !ids.insert(router.id().clone()) {
                return Err(Refused::RouterTwice(router.id().as_str().to_owned()));
            }
            self.routed.insert_router(router);
        }
        Ok((vnis, ids))
    }

    /// Declares externals and translations, unchecked. Returns those that have to be: translations
    /// by the routers and externals that have them.
    fn name_outside(
        &mut self,
        externals: Vec<External>,
        nats: Vec<NatRule>,
    ) -> Result<Outside, Refused> {
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        for external in externals {
            if !ids.insert(external.id().clone()) {
                return Err(Refused::ExternalTwice(external.id().as_str().to_owned()));
            }
            self.routed.insert_external(external);
        }
        for rule in &nats {
            if !places.insert((rule.external.clone(), rule.nat.place())) {
                let external = rule.external.as_str().to_owned();
                return Err(Refused::NatTwice { external, nat: rule.nat.to_string() });
            }
        }
        Ok((ids, self.routed.name_nats(nats)?))
    }

    /// Checks the named externals and translations against everything, once all of it is there.
    fn check_outside(&self, (ids, owners): &Outside) -> Result<(), Refused> {
        for external in ids.iter().filter_map(|id| self.routed.external(id.as_str())) {
            self.routed.check_external(external, &self.vnics)?;
        }
        for (router, external) in owners {
            let nats: Vec<_> = self.routed.nats(router, external).copied().collect();
            self.routed.check_nats(router, external, &nats, &self.vnics)?;
        }
        Ok(())
    }

    /// The highest VNI that nothing has, neither here nor by `also`: the number of an external that
    /// is declared without one. One that has a chosen number keeps it.
    pub fn number_for(&self, id: &str, also: impl Fn(Vni) -> bool) -> Result<Vni, Refused> {
        if let Some(old) = self.routed.external(id).filter(|old| !old.is_provider()) {
            return Ok(old.vni());
        }
        let vnics: BTreeSet<Vni> = self.vnics.iter().map(|nic| nic.vni).collect();
        let is_free =
            |vni: &Vni| !vnics.contains(vni) && !also(*vni) && self.routed.is_unused(*vni);
        let mut numbers = (0..=Vni::MAX).rev().filter_map(|number| Vni::new(number).ok());
        numbers.find(is_free).ok_or_else(|| Refused::NoNumber(id.to_owned()))
    }

    /// Declares neighbours, unchecked. Returns those that have to be.
    fn name_neighbours(
        &mut self,
        neighbours: Vec<Neighbour>,
    ) -> Result<BTreeSet<(Vni, IpAddr)>, Refused> {
        let mut named = BTreeSet::new();
        for neighbour in neighbours {
            let (vni, address) = (neighbour.vni(), neighbour.address());
            if !named.insert((vni, address)) {
                return Err(Refused::NeighbourTwice { address, vni });
            }
            self.routed.insert_neighbour(neighbour);
        }
        Ok(named)
    }

    /// Checks the named neighbours against everything, once all of it is there.
    fn check_neighbours(&self, named: &BTreeSet<(Vni, IpAddr)>) -> Result<(), Refused> {
        let mut neighbours = named.iter().filter_map(|at| self.routed.neighbour(at.0, at.1));
        neighbours.try_for_each(|neighbour| self.routed.check_neighbour(neighbour, &self.vnics))
    }

    /// Checks the named networks and routers against everything, once all of it is there.
    fn check_named(
        &self,
        (vnis, ids): &(BTreeSet<Vni>, BTreeSet<RouterId>),
    ) -> Result<(), Refused> {
        for network in vnis.iter().filter_map(|vni| self.routed.network(*vni)) {
            self.routed.check_network(network, &self.vnics)?;
        }
        for router in ids.iter().filter_map(|id| self.routed.router(id.as_str())) {
            self.routed.check_router(router, &self.vnics)?;
        }
        Ok(())
    }

    /// Each is checked against those that stay and those before it. As all rules are about pairs,
    /// that is enough.
    fn declare_vnics(&mut self, old: &Vnics, vnics: Vec<Nic>) -> Result<(), Refused> {
        let mut ids = BTreeSet::new();
        for nic in &vnics {
            if !ids.insert(nic.id.clone()) {
                return Err(Refused::NicTwice(nic.id.as_str().to_owned()));
            }
            self.vnics.remove(nic.id.as_str());
        }
        let mut behind = old.next_order();
        for nic in vnics {
            self.check_vnic(&nic)?;
            let order = old.order(&nic);
            let order = if order < old.next_order() {
                order
            } else {
                behind += 1;
                behind
            };
            self.vnics.insert_at(nic, order);
        }
        Ok(())
    }
}

/// Externals, and routers that translate at one.
type Outside = (BTreeSet<ExternalId>, BTreeSet<(RouterId, ExternalId)>);

/// A group with those rules of an earlier one that it means without saying their ports.
fn with_unechoed_ports(mut group: SecurityGroup, old: &SecurityGroup) -> SecurityGroup {
    let mut unechoed: HashMap<String, Vec<&Rule>> = HashMap::new();
    for rule in old.rules().filter(|rule| rule.ports().is_none()) {
        let silent = rule.without_ports();
        if silent != *rule {
            unechoed.entry(silent.identity()).or_default().push(rule);
        }
    }
    if unechoed.is_empty() {
        return group;
    }
    let said: Vec<Rule> = group.rules().cloned().collect();
    for rule in said {
        let Some(meant) = unechoed.get(&rule.identity()) else { continue };
        if !old.has_rule(&rule) {
            group.remove_rule(&rule);
        }
        for rule in meant {
            group.add_rule((*rule).clone());
        }
    }
    group
}
