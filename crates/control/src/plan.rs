//! The way from one state to another.
//!
//! Rules only allow. So that no moment lets anything through that neither the old state nor the new
//! one does, security groups lose members first and get new ones last, and the rules of a group are
//! exchanged when nobody has it who has it in one of the states only: before the vnics change if no
//! vnic leaves it, after them if none joins it. A group with both loses rules before and gets new
//! ones after.
//!
//! OUTBOUND rules are the exception: the first one of a vnic's groups ends "everything may leave".
//! A group that has such rules in one of the states has one while the vnics change, if need be one
//! that allows nothing.
//!
//! Attachments of routers that go, go first, and those that come, come last: no moment routes what
//! neither state does. Translations and neighbours go before them, and come after them. Networks
//! that lease addresses come before their vnics, and go after them.

mod groups;
mod routed;
mod vnics;

use crate::{change::Change, desired::Desired, peers::TunnelPeer};
use groups::Stages;
use routed::Routing;

/// The changes that lead from `old` to `new`, in an order in which each of them is valid.
///
/// Made one after the other they give `new`; two equal states need none. After each of them every
/// vnic gets and sends only packets that it may get and send in one of the two states. VMs are cut
/// off only if their vnic goes, or changes in a way that [`NicChange`](crate::NicChange) calls
/// [`Recreate`](crate::NicChange::Recreate), or has to give way to another one: its socket or MAC
/// address is meant for it, and they exchange theirs.
///
/// ```
/// # use butterfly_control::{Change, Declaration, Desired, Unnamed, plan};
/// # use butterfly_model::{GroupName, SecurityGroup};
/// let web = SecurityGroup::empty(GroupName::new("web").unwrap());
/// let file = Declaration { groups: vec![web.clone()], ..Declaration::default() };
/// let empty = Desired::default();
/// let full = empty.with(file, Unnamed::Stay).unwrap();
/// assert_eq!(plan(&empty, &full), [Change::DeclareGroup(web.clone())]);
/// assert_eq!(plan(&full, &empty), [Change::RemoveGroup(web.name().clone())]);
/// ```
pub fn plan(old: &Desired, new: &Desired) -> Vec<Change> {
    let Stages { fresh, shrink, early, late, grow } = Stages::between(old, new);
    let Routing { go, lease, leased, come: joined } = Routing::between((old, new));
    let vnics = vnics::plan(old.vnics(), new.vnics());
    let gone = |peer: &TunnelPeer| !new.peers().contains(peer);
    let come = |peer: &TunnelPeer| !old.peers().contains(peer);
    let unnamed = old.peers().iter().filter(gone).map(Change::UnnamePeer);
    let named = new.peers().iter().filter(come).map(Change::NamePeer);
    let before = go.into_iter().chain(lease).chain(fresh).chain(shrink).chain(early);
    let after = late.into_iter().chain(grow).chain(unnamed).chain(named).chain(leased);
    before.chain(vnics).chain(after).chain(joined).collect()
}
