//! A whole state in one request: planned, then carried out as a whole or not at all.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    handlers::convert,
    host::limits,
    keeper::{Keeper, Mark},
};
use butterfly_api::{
    Answer, Failure,
    proto::{self, ApplyReq, ApplyRes, Response, apply_res},
};
use butterfly_control::{
    Change, Declaration, Desired, Difference, Object, Unnamed, What, differences, neighbour_name,
    plan,
};
use butterfly_model::{NicId, Vni};
use protobuf::{Message, MessageField};
use std::{cell::RefCell, collections::BTreeSet};
use tracing::{info, warn};

/// Bytes of a reply that may tell what changed; the rest is counted. A reply that is too long would
/// hide that it was done.
const TOLD: usize = 1 << 20;
/// Bytes of the details of one object.
const DETAILS: usize = 2000;
/// Name of the request in the protocol.
const REQUEST: &str = "apply";
/// The event of a vnic that goes and comes again in one plan.
const GIVES_WAY: &str =
    "removed to make way for another nic, and made again in the same apply: its traffic is cut";
/// Most names in a report of vnics that could not be restored.
const NAMES: usize = 20;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn apply(&mut self, request: &ApplyReq) -> Answer {
        let declaration = self.declaration(request)?;
        if declaration.is_empty() {
            return Err(Failure::new("the state is empty")
                .with_help("nothing was changed; to delete all there is, delete it by name"));
        }
        let named: Vec<NicId> = declaration.vnics.iter().map(|nic| nic.id.clone()).collect();
        let unnamed = if request.prune() { Unnamed::Go } else { Unnamed::Stay };
        let new = self.desired.with(declaration, unnamed).map_err(convert::refusal)?;
        let mut changes = plan(&self.desired, &new);
        let mut all = differences(&self.desired, &new, &changes);
        self.remake_what_is_gone(&named, &new, &mut changes, &mut all);
        self.can_carry_out(&changes, &new)?;
        // Before anything is cut.
        let cuts = self.cut_by(&all);
        if !request.dry_run() {
            self.carry_out_plan(changes)?;
            info!(objects = all.len(), cut_off = cuts.len(), "a whole state was applied");
        }
        Ok(Response { apply: MessageField::some(told(all, &cuts)), ..Default::default() })
    }

    /// Returns the vnics to which something is attached that loses its network.
    fn cut_by(&self, all: &[Difference]) -> BTreeSet<String> {
        all.iter()
            .filter(|row| row.object == Object::Vnic)
            .filter(|row| matches!(row.what, What::Remade | What::Removed))
            .filter(|row| self.is_attached(&row.name))
            .map(|row| row.name.clone())
            .collect()
    }

    /// Reads what the request declares. A refusal names the object.
    fn declaration(&self, request: &ApplyReq) -> Result<Declaration, Failure> {
        let mut all = Declaration::default();
        self.objects(request).try_for_each(|object| object.map(|object| all.join(object)))?;
        Ok(all)
    }

    /// Reads each object that the request declares. A refusal names it.
    pub(super) fn objects(
        &self,
        request: &ApplyReq,
    ) -> impl Iterator<Item = Result<Declaration, Failure>> {
        let nic = |declared: &proto::Nic| {
            let nic = convert::nic(declared, &self.socket_dir);
            let mut nic = nic.map_err(|failure| about("nic", declared.id(), failure))?;
            if declared.packet_trace.is_none() {
                nic.packet_trace = self.recorder.by_default();
            }
            Ok(Declaration { vnics: vec![nic], ..Declaration::default() })
        };
        let group = |declared: &proto::Sg| {
            let group = convert::security_group(declared);
            let group = group.map_err(|failure| about("security group", declared.id(), failure))?;
            Ok(Declaration { groups: vec![group], ..Declaration::default() })
        };
        let peer = |declared: &proto::TunnelPeer| {
            let peer = convert::peer(declared);
            let peer = peer.map_err(|failure| about("peer", declared.address(), failure))?;
            Ok(Declaration { peers: vec![peer], ..Declaration::default() })
        };
        let network = |declared: &proto::Network| {
            let network = convert::declared_network(declared);
            let name = declared.vni().to_string();
            let network = network.map_err(|failure| about("network", &name, failure))?;
            Ok(Declaration { networks: vec![network], ..Declaration::default() })
        };
        let router = |declared: &proto::Router| {
            let router = convert::router(declared);
            let router = router.map_err(|failure| about("router", declared.id(), failure))?;
            Ok(Declaration { routers: vec![router], ..Declaration::default() })
        };
        let neighbour = |declared: &proto::Neighbour| {
            let name = format!("{} of network {}", declared.address(), declared.vni());
            let neighbour = convert::neighbour(declared);
            let neighbour = neighbour.map_err(|failure| about("neighbour", &name, failure))?;
            Ok(Declaration { neighbours: vec![neighbour], ..Declaration::default() })
        };
        // Externals without a number get the highest ones that nothing of the request has either.
        let taken = RefCell::new(numbers(request));
        let external = move |declared: &proto::External| {
            let number = |id: &str| {
                let vni = self.desired.number_for(id, |vni| taken.borrow().contains(&vni))?;
                taken.borrow_mut().insert(vni);
                Ok(vni)
            };
            let external = convert::external(declared, number);
            let external = external.map_err(|failure| about("external", declared.id(), failure))?;
            Ok(Declaration { externals: vec![external], ..Declaration::default() })
        };
        let nat = |declared: &proto::Nat| {
            let nat = convert::nat(declared);
            let nat = nat.map_err(|failure| about("translation", declared.address(), failure))?;
            Ok(Declaration { nats: vec![nat], ..Declaration::default() })
        };
        let groups = request.security_group.iter().map(group);
        let networks = request.network.iter().map(network);
        let named = request.nic.iter().map(nic).chain(groups).chain(request.peer.iter().map(peer));
        let neighbours = request.neighbour.iter().map(neighbour);
        let routers = request.router.iter().map(router);
        let externals = request.external.iter().map(external);
        let nats = request.nat.iter().map(nat);
        named.chain(networks).chain(externals).chain(routers).chain(nats).chain(neighbours)
    }

    /// Makes vnics anew that are declared again although no VM can attach to them any more: the
    /// operator wants them to work.
    fn remake_what_is_gone(
        &self,
        named: &[NicId],
        new: &Desired,
        changes: &mut Vec<Change>,
        told: &mut Vec<Difference>,
    ) {
        let made: BTreeSet<NicId> = changes
            .iter()
            .filter_map(|change| match change {
                Change::AddVnic(nic) | Change::RemakeVnic(nic) => Some(nic.id.clone()),
                _ => None,
            })
            .collect();
        for id in named.iter().filter(|id| !made.contains(*id)) {
            let what = if self.dataplane.socket_is_gone(id.as_str()) {
                "socket, which was gone"
            } else if self.guest_is_gone(id.as_str()) {
                "interface, which was gone"
            } else {
                continue;
            };
            let Some(nic) = new.vnics().get(id.as_str()) else { continue };
            changes.retain(|change| !matches!(change, Change::ChangeVnic(nic) if nic.id == *id));
            changes.push(Change::RemakeVnic(nic.clone().into()));
            told.retain(|row| row.object != Object::Vnic || row.name != id.as_str());
            told.push(Difference {
                object: Object::Vnic,
                name: id.as_str().to_owned(),
                what: What::Remade,
                text: what.to_owned(),
            });
        }
    }

    /// Finds everything that this host would refuse before the first change, as far as it can be
    /// tried.
    fn can_carry_out(&self, changes: &[Change], new: &Desired) -> Result<(), Failure> {
        if let Some(beside) = new.vnics().len().checked_sub(1)
            && new.vnics().len() > self.desired.vnics().len()
        {
            let room = limits::room_beside(beside);
            room.map_err(|none| Failure::new(none.to_string()).with_help(none.help()))?;
        }
        for change in changes {
            match change {
                Change::NamePeer(_) | Change::UnnamePeer(_) => self.with_uplink()?,
                Change::AddVnic(nic) => {
                    self.recorder.check(nic).map_err(|why| about_change(change, why))?;
                    self.may_add(nic).map_err(|why| about_change(change, why))?;
                }
                Change::ChangeVnic(nic) => {
                    self.recorder.check(nic).map_err(|why| about_change(change, why))?;
                }
                Change::RemakeVnic(nic) => {
                    self.recorder.check(nic).map_err(|why| about_change(change, why))?;
                    let replaced = self.may_replace(nic);
                    replaced.map_err(|why| about_change(change, why))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes all changes; if one fails, what was before is made again.
    fn carry_out_plan(&mut self, changes: Vec<Change>) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        let before = self.desired.clone();
        let kept = self.keeper.as_ref().map(Keeper::mark);
        let mark = self.events.mark(REQUEST);
        let again = come_again(&changes);
        let mut cut = BTreeSet::new();
        for change in changes {
            // It may take long: systemd's watchdog sees it get on.
            self.turns.taken();
            let about = name_of(&change);
            let cuts = self.cut_by_change(&change);
            let outcome = self.change_of_plan(change, &again);
            // A change that was refused before it cut anything leaves the VM attached.
            cut.extend(cuts.filter(|id| outcome.is_ok() || !self.is_attached(id)));
            if let Err(failure) = outcome {
                let back = Back { state: &before, kept, mark };
                return Err(self.restored(back, cut, about.failure(failure)));
            }
        }
        Ok(())
    }

    /// Returns the vnic from which a change takes an attached VM.
    fn cut_by_change(&self, change: &Change) -> Option<String> {
        let id = match change {
            Change::RemakeVnic(nic) => nic.id.as_str(),
            Change::RemoveVnic(id) => id.as_str(),
            _ => return None,
        };
        self.is_attached(id).then(|| id.to_owned())
    }

    /// Makes one change of a plan. `again`: the vnics that go and come again.
    pub(super) fn change_of_plan(
        &mut self,
        change: Change,
        again: &BTreeSet<NicId>,
    ) -> Result<(), Failure> {
        match change {
            Change::RemoveVnic(id) if again.contains(&id) => self.remove(&id, GIVES_WAY),
            change => self.change(change),
        }
    }

    /// Goes back to an earlier state, and adds to `failure` what came of that. `cut`: the vnics
    /// that lost their VMs on the way to the new one.
    fn restored(
        &mut self,
        Back { state: before, kept, mark }: Back<'_>,
        mut cut: BTreeSet<String>,
        failure: Failure,
    ) -> Failure {
        // The store never hears of the way there, nor of the way back.
        if let (Some(keeper), Some(kept)) = (&mut self.keeper, kept) {
            keeper.take_back(kept);
            keeper.silent = true;
        }
        self.missing_wires.restoring = true;
        let back = plan(&self.desired, before);
        let again = come_again(&back);
        let mut lost = Vec::new();
        for change in back {
            self.turns.taken();
            let about = name_of(&change);
            cut.extend(self.cut_by_change(&change));
            if let Err(why) = self.change_of_plan(change, &again) {
                let why = about.failure(why).description.unwrap_or_default();
                warn!("a state could not be applied, and this not restored: {why}");
                lost.push(why);
            }
        }
        self.missing_wires.restoring = false;
        if let Some(keeper) = &mut self.keeper {
            keeper.silent = false;
            keeper.missing = None;
        }
        let again = !lost.is_empty() && self.note_missing(before.clone(), lost.clone());
        // If something is left of it, both directions stay in the record as they are.
        if lost.is_empty() {
            self.events.take_back(mark, REQUEST);
        }
        // Those that did not exist before were not anybody's.
        cut.retain(|id| before.vnics().get(id).is_some());
        let cut = names(&cut);
        let why = failure.description.as_deref().unwrap_or_default();
        warn!(cut_off = cut, "a state could not be applied and was taken back: {why}");
        let outcome = match (lost.len(), cut.is_empty()) {
            (0, true) => "everything is as it was before".to_owned(),
            (0, false) => format!(
                "everything is as it was before, but the virtual machines of these nics were cut off: {cut}"
            ),
            (more, _) => {
                lost.truncate(NAMES);
                let rest = match more - lost.len() {
                    0 => String::new(),
                    more => format!("; and {more} more"),
                };
                let again = if again { ", and is tried again" } else { "" };
                format!("this could not be restored{again}: {}{rest}", lost.join("; "))
            }
        };
        let help = match failure.help {
            Some(help) if !help.is_empty() => format!("{help}; {outcome}"),
            _ => outcome,
        };
        Failure { help: Some(help), ..failure }
    }
}

/// Way back to the state before a plan.
struct Back<'a> {
    state: &'a Desired,
    /// Changes that wait for the store since before it.
    kept: Option<Mark>,
    /// The newest event of before.
    mark: u64,
}

/// Returns the VNIs that a request names.
fn numbers(request: &ApplyReq) -> BTreeSet<Vni> {
    let nics = request.nic.iter().map(|nic| nic.vni());
    let networks = request.network.iter().map(|network| network.vni());
    let neighbours = request.neighbour.iter().map(|neighbour| neighbour.vni());
    let externals = request.external.iter().filter_map(|external| external.vni);
    let all = nics.chain(networks).chain(neighbours).chain(externals);
    all.filter_map(|number| Vni::new(number).ok()).collect()
}

/// Returns the vnics of a plan that go only to come again.
pub(super) fn come_again(changes: &[Change]) -> BTreeSet<NicId> {
    let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
    for change in changes {
        match change {
            Change::AddVnic(nic) => added.insert(&nic.id),
            Change::RemoveVnic(id) => removed.insert(id),
            _ => continue,
        };
    }
    added.intersection(&removed).map(|id| (*id).clone()).collect()
}

/// The object that a change is about.
pub(super) struct About(String);

impl About {
    pub(super) fn failure(&self, failure: Failure) -> Failure {
        let why = failure.description.unwrap_or_else(|| "it failed".to_owned());
        Failure { description: Some(format!("{}: {why}", self.0)), help: failure.help }
    }
}

pub(super) fn name_of(change: &Change) -> About {
    About(match change {
        Change::AddVnic(nic) | Change::ChangeVnic(nic) | Change::RemakeVnic(nic) => {
            format!("nic {:?}", nic.id.as_str())
        }
        Change::RemoveVnic(id) => format!("nic {:?}", id.as_str()),
        Change::DeclareGroup(group) => format!("security group {:?}", group.name().as_str()),
        Change::RemoveGroup(name)
        | Change::AddRule(name, _)
        | Change::RemoveRule(name, _)
        | Change::AddMember(name, _)
        | Change::RemoveMember(name, _) => format!("security group {:?}", name.as_str()),
        Change::NamePeer(peer) | Change::UnnamePeer(peer) => format!("peer {}", peer.address()),
        Change::DeclareNetwork(network) => format!("network {}", network.vni()),
        Change::RemoveNetwork(vni) => format!("network {vni}"),
        Change::DeclareRouter(router) => format!("router {:?}", router.id().as_str()),
        Change::RemoveRouter(id) => format!("router {:?}", id.as_str()),
        Change::DeclareExternal(external) => format!("external {:?}", external.id().as_str()),
        Change::RemoveExternal(id) => format!("external {:?}", id.as_str()),
        Change::DeclareNat(router, external, _) => {
            let (router, external) = (router.as_str(), external.as_str());
            format!("translations of router {router:?} at external {external:?}")
        }
        Change::DeclareNeighbour(neighbour) => {
            format!("neighbour {}", neighbour_name(neighbour.vni(), neighbour.address()))
        }
        Change::RemoveNeighbour(vni, address) => {
            format!("neighbour {}", neighbour_name(*vni, *address))
        }
    })
}

fn about_change(change: &Change, failure: Failure) -> Failure {
    name_of(change).failure(failure)
}

fn about(kind: &str, name: &str, failure: Failure) -> Failure {
    About(format!("{kind} {name:?}")).failure(failure)
}

/// The names of vnics, the first of them.
fn names(ids: &BTreeSet<String>) -> String {
    let told: Vec<&str> = ids.iter().map(String::as_str).take(NAMES).collect();
    let rest = match ids.len() - told.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{rest}", told.join(", "))
}

/// The differences, as many as a reply may tell.
fn told(all: Vec<Difference>, cuts: &BTreeSet<String>) -> ApplyRes {
    let count = all.len();
    let mut bytes = 0;
    let fits = |row: &apply_res::Change| {
        bytes += row.compute_size() as usize + 16;
        bytes <= TOLD
    };
    let change: Vec<_> =
        all.into_iter().map(|difference| row(difference, cuts)).take_while(fits).collect();
    let more = Some((count - change.len()) as u64).filter(|more| *more > 0);
    ApplyRes { change, more, ..Default::default() }
}

/// The text, cut where it becomes too long.
fn cut(mut text: String) -> String {
    if text.len() > DETAILS {
        let end = (0..=DETAILS).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str(" ...");
    }
    text
}

fn row(difference: Difference, cuts: &BTreeSet<String>) -> apply_res::Change {
    use apply_res::change;
    let vnic = difference.object == Object::Vnic;
    let cuts = vnic && cuts.contains(&difference.name);
    let object = match difference.object {
        Object::Vnic => change::Object::NIC,
        Object::Group => change::Object::SECURITY_GROUP,
        Object::Peer => change::Object::PEER,
        Object::Network => change::Object::NETWORK,
        Object::Router => change::Object::ROUTER,
        Object::Neighbour => change::Object::NEIGHBOUR,
        Object::External => change::Object::EXTERNAL,
        Object::Nat => change::Object::NAT,
    };
    let what = match difference.what {
        What::Added => change::What::ADDED,
        What::Changed => change::What::CHANGED,
        What::Remade => change::What::REMADE,
        What::Removed => change::What::REMOVED,
    };
    apply_res::Change {
        object: Some(object.into()),
        name: Some(difference.name),
        what: Some(what.into()),
        text: Some(cut(difference.text)).filter(|text| !text.is_empty()),
        cuts: Some(cuts),
        ..Default::default()
    }
}
