//! Carries out one change of the desired state.
//!
//! The desired state is asked first: it knows the rules. Then everything that may fail on this host
//! is done, and the desired state follows: what is refused has not happened. What changes one
//! member or one rule never touches the others, of which there may be 100,000.

use super::{Daemon, nic::refusal, security_group::limits_egress};
use crate::{
    dataplane::Dataplane,
    events::{Kind, counted},
    handlers::convert,
    recorder::Recorder,
};
use butterfly_api::Failure;
use butterfly_control::{
    Change, NicChange, Prepared, TunnelPeer, about_external, about_neighbour, about_network,
    about_router, member_of, neighbour_name, rule_of,
};
use butterfly_datapath::{GroupChange, RoutingChange};
use butterfly_model::{GroupName, Nat, Nic, Vni};
use std::collections::BTreeSet;

impl<D: Dataplane> Daemon<D> {
    /// Carries out `change`. On an error nothing has changed, unless it says so.
    pub(super) fn change(&mut self, change: Change) -> Result<(), Failure> {
        match change {
            Change::AddVnic(nic) => self.add(*nic),
            Change::ChangeVnic(nic) => self.change_in_place(*nic, Recorder::prepare_or_go_without),
            Change::RemakeVnic(nic) => {
                let reasons = self.reasons(&nic);
                self.recreate(*nic, &reasons)
            }
            Change::RemoveVnic(id) => self.remove(&id, "deleted"),
            change => {
                let prepared = self.prepare(change)?;
                let limited = self.limited_egress(prepared.change());
                let (kind, text) = self.carry_out_change(prepared.change())?;
                match kind {
                    // Single rules, members and neighbours come in thousands.
                    Kind::SgRuleAdded
                    | Kind::SgRuleRemoved
                    | Kind::SgMemberAdded
                    | Kind::SgMemberRemoved
                    | Kind::NeighbourDeclared
                    | Kind::NeighbourRemoved
                    | Kind::NatDeclared
                    | Kind::NatRemoved => self.note(kind, text),
                    _ => self.tell(kind, text),
                }
                self.commit(prepared);
                if let Some(name) = limited {
                    self.tell_of_egress(name.as_str(), true);
                }
                Ok(())
            }
        }
    }

    /// The group that a change is about, if it limits what its vnics send and may not any more.
    fn limited_egress(&self, change: &Change) -> Option<GroupName> {
        let name = match change {
            Change::DeclareGroup(group) => group.name(),
            Change::RemoveGroup(name) | Change::RemoveRule(name, _) => name,
            _ => return None,
        };
        let limits = self.desired.groups().get(name).is_some_and(limits_egress);
        limits.then(|| name.clone())
    }

    /// Asks the desired state whether it may change so.
    pub(super) fn prepare(&self, change: Change) -> Result<Prepared, Failure> {
        self.desired.prepare(change).map_err(convert::refusal)
    }

    /// The properties because of which a vnic is made anew.
    fn reasons(&self, new: &Nic) -> Vec<&'static str> {
        let old = self.desired.vnics().get(new.id.as_str());
        match old.map(|old| NicChange::between(old, new)) {
            Some(NicChange::Recreate(reasons)) => reasons,
            _ => Vec::new(),
        }
    }

    /// Has the data path carry out a change of a group, a peer, or of what is routed. Returns the
    /// event that it is.
    fn carry_out_change(&mut self, change: &Change) -> Result<(Kind, String), Failure> {
        let mut group =
            |name: &GroupName, change| self.dataplane.change_group(name, change).map_err(refusal);
        Ok(match change {
            Change::DeclareGroup(new) => {
                group(new.name(), GroupChange::Declare(new.clone()))?;
                let rules = counted(new.rules().len() as u64, "rule");
                let members = counted(new.members().len() as u64, "member");
                let name = new.name().as_str();
                let text = format!("security group {name:?} has {rules} and {members}");
                (Kind::SgDeclared, text)
            }
            Change::RemoveGroup(name) => {
                group(name, GroupChange::Forget)?;
                (Kind::SgRemoved, format!("security group {:?} deleted", name.as_str()))
            }
            Change::AddRule(name, rule) => {
                group(name, GroupChange::AddRule(rule.clone()))?;
                (Kind::SgRuleAdded, rule_of(name.as_str(), rule))
            }
            Change::RemoveRule(name, rule) => {
                group(name, GroupChange::RemoveRule(rule.clone()))?;
                (Kind::SgRuleRemoved, rule_of(name.as_str(), rule))
            }
            Change::AddMember(name, member) => {
                group(name, GroupChange::AddMember(*member))?;
                (Kind::SgMemberAdded, member_of(name.as_str(), *member))
            }
            Change::RemoveMember(name, member) => {
                group(name, GroupChange::RemoveMember(*member))?;
                (Kind::SgMemberRemoved, member_of(name.as_str(), *member))
            }
            Change::NamePeer(peer) => {
                let named = self.dataplane.add_peer(peer.address(), peer.vni());
                named.map_err(|error| Failure::new(error.to_string()))?;
                let text = format!("peer {} is named for {}", peer.address(), of(peer.vni()));
                (Kind::PeerNamed, text)
            }
            Change::UnnamePeer(peer) => {
                let gone = self.dataplane.remove_peer(peer.address(), peer.vni());
                gone.map_err(|error| Failure::new(error.to_string()))?;
                (Kind::PeerUnnamed, self.unnamed(peer))
            }
            Change::DeclareNetwork(network) => {
                self.route(RoutingChange::DeclareNetwork(network.clone()))?;
                let text = format!("network {}: {}", network.vni(), about_network(network));
                (Kind::NetworkDeclared, text)
            }
            Change::RemoveNetwork(vni) => {
                self.route(RoutingChange::RemoveNetwork(*vni))?;
                (Kind::NetworkRemoved, format!("network {vni} is not declared any more"))
            }
            Change::DeclareRouter(router) => {
                self.route(RoutingChange::DeclareRouter(self.lowered(router, None)))?;
                let id = router.id().as_str();
                (Kind::RouterDeclared, format!("router {id:?}: {}", about_router(router)))
            }
            Change::RemoveRouter(id) => {
                self.route(RoutingChange::RemoveRouter(id.clone()))?;
                (Kind::RouterRemoved, format!("router {:?} deleted", id.as_str()))
            }
            Change::DeclareNeighbour(neighbour) => {
                self.route(RoutingChange::DeclareNeighbour(neighbour.clone()))?;
                let name = neighbour_name(neighbour.vni(), neighbour.address());
                let text = format!("neighbour {name}: {}", about_neighbour(neighbour));
                (Kind::NeighbourDeclared, text)
            }
            Change::RemoveNeighbour(vni, address) => {
                self.route(RoutingChange::RemoveNeighbour(*vni, *address))?;
                let name = neighbour_name(*vni, *address);
                (Kind::NeighbourRemoved, format!("neighbour {name} deleted"))
            }
            Change::DeclareExternal(external) => {
                self.declare_wire(external)?;
                let text = about_external(external);
                (Kind::ExternalDeclared, format!("external {:?}: {text}", external.id().as_str()))
            }
            Change::RemoveExternal(id) => {
                self.remove_wire(id)?;
                (Kind::ExternalRemoved, format!("external {:?} deleted", id.as_str()))
            }
            Change::DeclareNat(router, external, nats) => {
                let old = self.desired.routed().nats(router, external);
                let old: Vec<Nat> = old.copied().collect();
                self.declare_nat(router, external, nats)?;
                let (kind, text) = told_nats(&old, nats);
                let (router, external) = (router.as_str(), external.as_str());
                (kind, format!("router {router:?} at external {external:?}: {text}"))
            }
            // Vnics have handlers of their own.
            Change::AddVnic(_)
            | Change::ChangeVnic(_)
            | Change::RemakeVnic(_)
            | Change::RemoveVnic(_) => return Err(Failure::new("a vnic is changed otherwise")),
        })
    }

    /// Has the data path route otherwise.
    pub(super) fn route(&mut self, change: RoutingChange) -> Result<(), Failure> {
        self.dataplane.change_routing(change).map_err(|error| Failure::new(error.to_string()))
    }

    /// A peer that is not named any more, and the networks for which it still is.
    fn unnamed(&self, peer: &TunnelPeer) -> String {
        let same = |other: &TunnelPeer| other.address() == peer.address() && other != peer;
        let still = self.desired.peers().iter().filter(same).filter_map(|other| other.vni());
        let still: Vec<String> = still.map(|vni| vni.to_string()).collect();
        let still = match still.is_empty() {
            true => String::new(),
            false => format!("; it still is for network {}: peer del --vni", still.join(", ")),
        };
        format!("peer {} is not named any more for {}{still}", peer.address(), of(peer.vni()))
    }
}

/// Most translations that an event names.
const NATS_NAMED: usize = 16;

/// Translations that come and go, in words.
fn told_nats(old: &[Nat], new: &[Nat]) -> (Kind, String) {
    let only = |of: &[Nat], other: &[Nat], sign: char| -> Vec<String> {
        let other: BTreeSet<&Nat> = other.iter().collect();
        of.iter().filter(|nat| !other.contains(nat)).map(|nat| format!("{sign}{nat}")).collect()
    };
    let (come, gone) = (only(new, old, '+'), only(old, new, '-'));
    let kind = if come.is_empty() { Kind::NatRemoved } else { Kind::NatDeclared };
    let mut all = [come, gone].concat();
    let more = all.len().saturating_sub(NATS_NAMED);
    all.truncate(NATS_NAMED);
    all.extend((more > 0).then(|| format!("and {more} more")));
    (kind, all.join(", "))
}

fn of(vni: Option<Vni>) -> String {
    vni.map_or_else(|| "all networks".to_owned(), |vni| format!("network {vni}"))
}
