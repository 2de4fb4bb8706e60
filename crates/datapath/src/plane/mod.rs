//! The control side of the packet path: puts vnics into the snapshot and takes them out, and waits
//! for the workers.

pub(crate) mod announce;
pub(crate) mod drop_window;
pub(crate) mod gone;
pub(crate) mod sessions;
pub(crate) mod updates;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use butterfly_model::{GroupName, Rule, Vni};
use butterfly_packet::mac::Mac;
use butterfly_vhost::port::{Port, PortEvents};

use crate::engine::writer::PerWorker;
use crate::engine::{
    clock::Clock,
    counters::{Counters, Totals},
    mac::number,
    numbers::Numbers,
    place::{MAX_SLOTS, PeerRef, PollSource, PortRef},
    slab::Slab,
    tap::{Mirror, Ring, Selection},
};
use crate::overlay::Tunnel;
use crate::plane::{
    drop_window::DropWindow,
    gone::Gone,
    updates::{Update, Updates},
};
pub use crate::session::SessionConfig;
use crate::session::{
    Admitted, FormerTable, HashKey, Here, Name, Shares, Table, VnicSessions, tally::Tally,
};
use crate::worker::{Handle, Shared};
use crate::world::{
    bindings::Bindings,
    bound::Bound,
    fdb::{self, Fdb, Learnt},
    holders::addresses,
    policy::VnicPolicy,
    rules::{Cells, GroupChange, Groups, MAX_CELLS, number as number_of_ip},
    snapshot::{Network, PortKind, Remote, Rules, Snapshot, Vnic, VnicShared},
    waiting::{claim_of, waiting},
};

fn rules(policy: &VnicPolicy, groups: &mut Groups) -> Rules {
    Rules::new(policy, groups.policy(&policy.groups))
}

/// Settings of a plane.
pub(crate) struct PlaneConfig {
    pub workers: usize,
    pub fdb_ageing: u32,
    pub sessions: SessionConfig,
    /// The tunnel endpoint, if there is one.
    pub tunnel: Option<Tunnel>,
}

/// Reason for which a vnic could not be added or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum AddError {
    #[error("no vnic with id {0}")]
    Unknown(String),
    #[error("{} vnics and networks are the most one host can have", MAX_SLOTS)]
    TooMany,
    #[error("{MAX_CELLS} rules are the most one host can have")]
    TooManyRules,
    #[error("{0}")]
    Device(String),
}

/// First version of a policy, with which session stamps begin. 0 is older than all.
const FIRST_VERSION: u32 = 1;
const LAST_VERSION: u32 = u32::MAX - 1;

/// The last vnics that left each slot, by the last version of the snapshot that they were in.
#[derive(Clone, Default)]
pub(crate) struct Departed(BTreeMap<(u32, u32), Departure>);

#[derive(Clone, Copy)]
struct Departure {
    /// First version of the snapshot that the vnic was in.
    first: u32,
    /// Second in which the vnic left.
    when: u32,
}

/// Most vnics remembered for one slot.
const MOST_DEPARTED: usize = 8;

impl Departed {
    /// Notes that a vnic left that was in these versions of the snapshot. Forgets vnics that left
    /// `keep` seconds ago or earlier.
    fn leaves(&mut self, slot: u32, (first, last): (u32, u32), now: u32, keep: u32) {
        self.0.retain(|_, gone| now.wrapping_sub(gone.when) < keep);
        self.0.insert((slot, last), Departure { first, when: now });
        let mut of_slot = self.0.range((slot, 0)..=(slot, u32::MAX)).map(|(key, _)| *key);
        if let (Some(oldest), MOST_DEPARTED..) = (of_slot.next(), of_slot.count()) {
            self.0.remove(&oldest);
        }
    }

    /// Returns whether a vnic that had this slot in this version left it in the last `seconds`.
    pub fn had(&self, slot: u32, stamp: u32, now: u32, seconds: u32) -> bool {
        let next = self.0.range((slot, stamp)..=(slot, u32::MAX)).next();
        next.is_some_and(|(_, gone)| gone.first <= stamp && now.wrapping_sub(gone.when) < seconds)
    }
}

/// State that changes under the lock.
struct State {
    by_id: HashMap<Arc<str>, PortRef>,
    incarnation: u32,
    groups: Groups,
    /// Tunnel endpoints that get floods: of all networks, and of some.
    peers: Vec<IpAddr>,
    peers_of: BTreeMap<u32, Vec<IpAddr>>,
}

impl State {
    /// Returns the place for the next user of a slot.
    fn place(&mut self, slot: u32) -> PortRef {
        self.incarnation = self.incarnation.wrapping_add(1);
        PortRef { slot, incarnation: self.incarnation }
    }
}

/// The shared part and its control side.
pub(crate) struct Plane {
    pub shared: Arc<Shared>,
    pub workers: Vec<Arc<Handle>>,
    state: Mutex<State>,
    /// Vnics that left a moment ago, maybe for another host, by slot. Behind a lock of its own, as
    /// housekeeping does not wait for changes.
    departed: Mutex<Departed>,
    /// Slot of the vnic that was announced last.
    pub announced: AtomicU32,
    /// Behind a lock of its own, as observers do not wait for changes.
    pub gone: Gone,
    pub tally: Tally,
    pub updates: Updates,
    /// Drop counts of some time ago.
    pub(crate) drop_window: Mutex<DropWindow>,
    /// Rings for the tap, one for each worker, while there are sinks.
    pub rings: Mutex<Option<Arc<PerWorker<Ring>>>>,
    /// Tables of sessions that were found at the start.
    pub former: Vec<FormerTable>,
}

/// Tells a vnic's worker when its transmit ring starts and stops.
pub(crate) struct Attachment {
    worker: Arc<Handle>,
    source: PollSource,
}

impl Attachment {
    /// Returns the place of the attached vnic, if it is one.
    pub fn vnic(&self) -> Option<PortRef> {
        match self.source {
            PollSource::Vnic(place) => Some(place),
            PollSource::Uplink | PollSource::Waiting => None,
        }
    }

    /// Makes the attachment of a vhost-user uplink.
    pub fn uplink(worker: Arc<Handle>) -> Attachment {
        Attachment { worker, source: PollSource::Uplink }
    }
}

impl PortEvents for Attachment {
    fn tx_started(&self, kick: Option<BorrowedFd<'_>>) {
        self.worker.started(self.source, kick);
    }

    fn tx_stopped(&self, kick: Option<BorrowedFd<'_>>) {
        self.worker.stopped(self.source, kick);
    }
}

impl Plane {
    pub fn new(config: PlaneConfig) -> Result<Plane, std::io::Error> {
        let PlaneConfig { workers, fdb_ageing, sessions, tunnel } = config;
        let clock = Clock::new();
        let key = HashKey(secrets()?);
        let mut former = Vec::new();
        let table = match &sessions.file {
            None => Table::new(sessions.capacity, key),
            Some(name) => {
                let here = Here::read();
                Table::in_file(sessions.capacity, name, key, here, |path, left| {
                    former.push(FormerTable::look(
                        path,
                        left,
                        &here,
                        &sessions.timeouts,
                        clock.now(),
                    ));
                })
            }
        };
        let table = table.map_err(std::io::Error::other)?;
        let shared = Shared {
            snapshot: ArcSwap::from_pointee(Snapshot {
                version: FIRST_VERSION,
                ..Snapshot::default()
            }),
            epoch: AtomicU64::new(0),
            fdb: Fdb::new(fdb_ageing),
            clock,
            stop: AtomicBool::new(false),
            cells: Cells::new().map_err(std::io::Error::other)?,
            shares: Shares::new(table.capacity(), sessions.share, sessions.rate),
            bindings: Bindings::new().map_err(std::io::Error::other)?,
            table,
            sessions,
            tunnel,
        };
        Ok(Plane {
            shared: Arc::new(shared),
            workers: (0..workers.max(1))
                .map(|index| Handle::new(index).map(Arc::new))
                .collect::<Result<_, _>>()?,
            state: Mutex::new(State {
                by_id: HashMap::new(),
                incarnation: 0,
                groups: Groups::default(),
                peers: Vec::new(),
                peers_of: BTreeMap::new(),
            }),
            departed: Mutex::default(),
            announced: AtomicU32::default(),
            gone: Gone::default(),
            tally: Tally::default(),
            updates: Updates::default(),
            drop_window: Mutex::default(),
            rings: Mutex::default(),
            former,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a vnic into the snapshot. When this returns, every worker filters it, and its rings may
    /// start.
    #[cfg(feature = "harness")]
    pub fn insert(
        &self,
        id: &str,
        mac: Mac,
        vni: Vni,
        policy: &VnicPolicy,
    ) -> Result<(Arc<Vnic>, Attachment), AddError> {
        self.insert_as(id, mac, vni, policy, None, None)
    }

    /// Puts a vnic into the snapshot. When this returns, every worker filters it, and its rings may
    /// start. The vnic may be a mirror of another vnic, which need not exist, and may have been
    /// declared before vnics that are there. Removes a vnic with the same id first.
    pub fn insert_as(
        &self,
        id: &str,
        mac: Mac,
        vni: Vni,
        policy: &VnicPolicy,
        mirrors: Option<&str>,
        order: Option<u64>,
    ) -> Result<(Arc<Vnic>, Attachment), AddError> {
        let vni = vni.number();
        // What is declared has each id once.
        self.remove(id);
        let mut state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let slot = next.vnics.vacant();
        // A network's first vnic may bring its trunk.
        if slot + 2 > MAX_SLOTS {
            return Err(AddError::TooMany);
        }
        let network = next.by_vni.get(&vni).copied().unwrap_or_else(|| next.networks.vacant());
        self.next_version(&mut next);
        let mut rules = rules(policy, &mut state.groups);
        // A mirror may not count as a trusted sender.
        rules.bypass &= mirrors.is_none();
        let shared = self.vnic_state(false);
        prepare(&rules, &shared);
        let place = state.place(slot);
        let vnic = Arc::new(Vnic {
            id: id.into(),
            place,
            mac,
            order: order.unwrap_or(place.incarnation.into()),
            vni,
            network,
            kind: mirrors.map_or(PortKind::Vnic, |of| PortKind::Mirror(of.into())),
            born: next.version,
            since: next.version,
            rules,
            shared,
        });
        next.vnics.set(slot, Some(vnic.clone()));
        self.add_trunk(&mut state, &mut next, vni, network);
        let remote = self.remote(&state, &next, vni, network);
        let trunk = remote.as_ref().map(|remote| remote.slot);
        rebuild_network(&mut next, vni, network, remote);
        rehold(&mut next, None, &vnic);
        state.by_id.insert(vnic.id.clone(), place);
        find_mirrors(&state, &mut next);
        self.name_slots([Some(slot), trunk].into_iter().flatten(), &next);
        self.publish(next);
        self.updates.add(Update::VnicAdded);
        if !vnic.rules.bypass && mirrors.is_none() {
            // Its address is its own from now on.
            self.forget(|learnt| learnt.vni == vni && learnt.mac == number(mac));
        }
        self.settle();
        let worker = self.worker_of(slot);
        Ok((vnic, Attachment { worker, source: PollSource::Vnic(place) }))
    }

    fn vnic_state(&self, trunk: bool) -> Arc<VnicShared> {
        Arc::new(VnicShared {
            port: Arc::new(Port::default()),
            counters: Counters::new(self.workers.len()),
            learnt: AtomicU32::new(0),
            floods: Default::default(),
            crowd: trunk.then(Default::default),
            sessions: VnicSessions::default(),
            attached: AtomicU32::new(0),
            presence: Default::default(),
            elsewhere: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            bound: Bound::default(),
            driving: AtomicBool::new(false),
            announcing: Default::default(),
            answered: Default::default(),
            dhcp: Default::default(),
            discovery: Default::default(),
        })
    }

    /// Adds a network's trunk, which stands for its other hosts. Does nothing if there is one
    /// already, or no way to other hosts.
    fn add_trunk(&self, state: &mut State, next: &mut Snapshot, vni: u32, network: u32) {
        if self.shared.tunnel.is_none()
            || next.networks.get(network).is_some_and(|network| network.remote.is_some())
        {
            return;
        }
        let slot = next.vnics.vacant();
        let rules = rules(&VnicPolicy { bypass: true, ..VnicPolicy::default() }, &mut state.groups);
        let trunk = Vnic {
            id: "".into(),
            place: state.place(slot),
            mac: Mac::ZERO,
            order: 0,
            vni,
            network,
            kind: PortKind::Trunk,
            born: next.version,
            since: next.version,
            rules,
            shared: self.vnic_state(true),
        };
        next.vnics.set(slot, Some(Arc::new(trunk)));
    }

    /// Returns the other hosts of a network, for a snapshot with its trunk.
    fn remote(&self, state: &State, next: &Snapshot, vni: u32, network: u32) -> Option<Remote> {
        let tunnel = self.shared.tunnel.as_ref()?;
        let known = next
            .networks
            .get(network)
            .and_then(|network| network.remote.as_ref())
            .map(|remote| remote.slot);
        let find = || {
            next.vnics
                .iter()
                .find(|(_, vnic)| vnic.is_trunk() && vnic.vni == vni)
                .map(|(slot, _)| slot)
        };
        let named = state.peers.iter().chain(state.peers_of.get(&vni).into_iter().flatten());
        let mut peers: Vec<PeerRef> =
            named.filter_map(|peer| tunnel.peers.find(number_of_ip(*peer))).collect();
        peers.sort_unstable();
        peers.dedup();
        Some(Remote { slot: known.or_else(find)?, peers: peers.into() })
    }

    /// Returns the named tunnel endpoints, of all networks and of some.
    pub fn peers(&self) -> (Vec<IpAddr>, BTreeMap<u32, Vec<IpAddr>>) {
        let state = self.state();
        (state.peers.clone(), state.peers_of.clone())
    }

    /// Sets the tunnel endpoints that get floods, in all networks and in some. If there is no room
    /// for some, returns those and changes nothing.
    pub fn set_peers(
        &self,
        all: Vec<IpAddr>,
        of: BTreeMap<u32, Vec<IpAddr>>,
    ) -> Result<(), Vec<IpAddr>> {
        let Some(tunnel) = &self.shared.tunnel else { return Ok(()) };
        let mut state = self.state();
        let named = |all: &[IpAddr], of: &BTreeMap<u32, Vec<IpAddr>>| -> BTreeSet<IpAddr> {
            all.iter().chain(of.values().flatten()).copied().collect()
        };
        let (old, new) = (named(&state.peers, &state.peers_of), named(&all, &of));
        let refused: Vec<IpAddr> =
            new.iter().copied().filter(|peer| tunnel.peers.configure(*peer).is_none()).collect();
        if !refused.is_empty() {
            new.difference(&old).for_each(|peer| tunnel.peers.unconfigure(*peer));
            return Err(refused);
        }
        old.difference(&new).for_each(|peer| tunnel.peers.unconfigure(*peer));
        (state.peers, state.peers_of) = (all, of);
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        for (vni, at) in HashMap::clone(&next.by_vni) {
            if let Some(network) = next.networks.get(at) {
                let network = Network {
                    remote: self.remote(&state, &next, vni, at),
                    ..Network::clone(network)
                };
                next.networks.set(at, Some(Arc::new(network)));
            }
        }
        self.publish(next);
        self.updates.add(Update::PeersChanged);
        Ok(())
    }

    fn worker_of(&self, slot: u32) -> Arc<Handle> {
        let index = slot as usize % self.workers.len();
        // There is at least one, and index is below their number.
        #[allow(clippy::indexing_slicing)]
        self.workers[index].clone()
    }

    /// Gives a vnic another policy. When this returns, no worker uses the old one.
    pub fn update(&self, id: &str, policy: &VnicPolicy) -> Result<(), AddError> {
        let mut state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let place = state.by_id.get(id).copied();
        let Some(old) = place.and_then(|place| next.vnic(place).cloned()) else {
            return Err(AddError::Unknown(id.to_owned()));
        };
        let mut rules = rules(policy, &mut state.groups);
        rules.bypass &= !old.is_mirror();
        if rules.declared_like(&old.rules) {
            return Ok(());
        }
        self.next_version(&mut next);
        // Its numbers may have begun again.
        let old = next.vnic(old.place).cloned().unwrap_or(old);
        let rebuild = rules.bypass != old.rules.bypass;
        let new = Arc::new(changed(&old, rules, next.version));
        next.vnics.set(old.place.slot, Some(new.clone()));
        if rebuild {
            let remote = self.remote(&state, &next, old.vni, old.network);
            rebuild_network(&mut next, old.vni, old.network, remote);
        }
        rehold(&mut next, Some(&old), &new);
        let waited = self.waiting_in(old.network);
        self.publish(next);
        self.take_over(old.network, &waited);
        self.updates.add(Update::VnicChanged);
        if !policy.bypass && old.rules.bypass {
            self.forget(|learnt| {
                learnt.place == old.place
                    || (learnt.vni == old.vni && learnt.mac == number(old.mac))
            });
        }
        Ok(())
    }

    /// Notes that a vnic's machine runs here from now on, with its addresses. Sessions that other
    /// hosts opened with these are decided again.
    pub fn is_here(&self, place: PortRef) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let Some(vnic) = next.vnic(place).cloned() else { return };
        vnic.shared.leaving.store(false, Ordering::Relaxed);
        if !vnic.shared.elsewhere.swap(false, Ordering::Relaxed) || vnic.rules.bypass {
            return;
        }
        self.decide_others_again(&mut next, vnic.network);
        self.publish(next);
        drop(state);
    }

    /// Has all sessions decided again that other hosts opened in a network, because a vnic of it
    /// owns its addresses from now on.
    fn decide_others_again(&self, next: &mut Snapshot, network: u32) {
        let trunk = next
            .networks
            .get(network)
            .and_then(|network| network.remote.as_ref())
            .map(|remote| remote.slot);
        let Some(trunk) = trunk.and_then(|slot| next.vnics.get(slot).cloned()) else { return };
        self.next_version(next);
        let again = Vnic { since: next.version, ..copy_with(&trunk, trunk.rules.clone()) };
        next.vnics.set(trunk.place.slot, Some(Arc::new(again)));
    }

    /// Publishes a snapshot in which vnics of a network may get the address that they waited for.
    fn publish_for_waiting(&self, mut next: Snapshot, network: u32) {
        let waited = self.waiting_in(network);
        let waits =
            |slot: &u32| next.networks.get(network).is_some_and(|network| network.waits(*slot));
        let filtered = |slot: &u32| next.vnics.get(*slot).is_some_and(|vnic| !vnic.rules.bypass);
        if waited.iter().any(|slot| !waits(slot) && filtered(slot)) {
            self.decide_others_again(&mut next, network);
        }
        self.publish(next);
        self.take_over(network, &waited);
    }

    /// Changes a security group. When this returns, no worker uses the old one. On an error nothing
    /// has changed.
    pub fn change_group(&self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        let mut state = self.state();
        let effect = state
            .groups
            .change(name, change, &self.shared.cells)
            .map_err(|_| AddError::TooManyRules)?;
        if effect.is_nothing() {
            return Ok(());
        }
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        self.next_version(&mut next);
        effect.change_members(&mut next.members);
        for (groups, policy) in &effect.policies {
            let affected: Vec<Arc<Vnic>> = next
                .vnics
                .iter()
                .map(|(_, vnic)| vnic)
                .filter(|vnic| vnic.rules.groups == *groups)
                .cloned()
                .collect();
            for old in affected {
                let rules = Rules { policy: policy.clone(), ..old.rules.clone() };
                next.vnics.set(old.place.slot, Some(Arc::new(changed(&old, rules, next.version))));
            }
        }
        // Before workers have the new rules: a decision by the old ones is older than this.
        for cell in &effect.taken_back {
            self.shared.cells.take_back(*cell, next.version);
        }
        self.publish(next);
        self.updates.add(Update::GroupChanged);
        Ok(())
    }

    /// Returns the rules of a group, each with the number of sessions it admitted.
    pub fn admissions(&self, name: &GroupName) -> Vec<(Rule, u64)> {
        let state = self.state();
        state
            .groups
            .rules_of(name)
            .map(|(rule, cell)| (rule.clone(), self.shared.cells.counted(cell)))
            .collect()
    }

    /// Returns all rules by their cells, each with the name of its group.
    pub fn rules_by_cell(&self) -> HashMap<u32, (GroupName, Rule)> {
        self.state().groups.rules_by_cell()
    }

    /// Returns the names of groups by their numbers, and the rules of groups that exist.
    pub fn groups_of(&self, numbers: &[u32]) -> Vec<(GroupName, Option<Vec<Rule>>)> {
        self.state().groups.declared(numbers)
    }

    /// Returns the number of a group, if its name was ever used.
    pub fn group_number(&self, name: &GroupName) -> Option<u32> {
        self.state().groups.known_number(name)
    }

    /// Sets the frames that workers copy for sinks. `choose` gets a function that finds the slot of
    /// a vnic.
    pub fn set_selection(
        &self,
        choose: impl FnOnce(&dyn Fn(&str) -> Option<u32>) -> Option<Arc<Selection>>,
    ) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        next.selection = choose(&|id| state.by_id.get(id).map(|place| place.slot));
        find_mirrors(&state, &mut next);
        self.publish(next);
    }

    /// Takes a vnic out of the snapshot. Its rings must have stopped. When this returns, no worker
    /// knows it.
    pub fn remove(&self, id: &str) -> bool {
        let mut state = self.state();
        let Some(place) = state.by_id.remove(id) else { return false };
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let Some(vnic) = next.vnic(place).cloned() else { return false };
        next.vnics.set(place.slot, None);
        find_mirrors(&state, &mut next);
        let remote = self.remote(&state, &next, vnic.vni, vnic.network);
        let trunk = remote.as_ref().map(|remote| remote.slot);
        rebuild_network(&mut next, vnic.vni, vnic.network, remote);
        rehold(&mut next, Some(&vnic), &vnic);
        // The last vnic of a network takes its trunk with it.
        let trunk = trunk.filter(|_| next.networks.get(vnic.network).is_none());
        let trunk = trunk.and_then(|slot| next.vnics.get(slot).cloned());
        if let Some(trunk) = &trunk {
            next.vnics.set(trunk.place.slot, None);
        }
        let (now, keep) = (self.shared.clock.now(), self.shared.sessions.tcp_pickup);
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.leaves(place.slot, (vnic.born, next.version), now, keep);
        drop(departed);
        if vnic.rules.shared_ip {
            // Other holders of its addresses may now be the only ones.
            self.decide_others_again(&mut next, vnic.network);
        }
        let leaving: Vec<Arc<Vnic>> =
            [Some(&vnic), trunk.as_ref()].into_iter().flatten().cloned().collect();
        self.gone.leaving(&leaving);
        self.publish_for_waiting(next, vnic.network);
        self.gone.left(&leaving);
        leaving.iter().for_each(|vnic| self.shared.table.name(vnic.place.slot, None));
        self.updates.add(Update::VnicRemoved);
        let slot = trunk.as_ref().map(|trunk| trunk.place.slot);
        self.forget(|learnt| learnt.place == place || Some(learnt.place.slot) == slot);
        self.settle();
        true
    }

    /// Keeps a vnic's MAC address while the vnic is made again, so that no vnic that waits for the
    /// address gets it. Ends with [`Plane::give_up_address`].
    pub fn keep_address(&self, id: &str) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        next.kept =
            state.by_id.get(id).and_then(|place| next.vnic(*place)).and_then(|vnic| claim_of(vnic));
        self.publish(next);
    }

    /// Ends [`Plane::keep_address`]. If the vnic did not come back, a vnic that waited for its
    /// address gets it.
    pub fn give_up_address(&self) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let Some(kept) = next.kept.take() else { return };
        if let Some(at) = next.by_vni.get(&kept.vni).copied() {
            let remote = self.remote(&state, &next, kept.vni, at);
            rebuild_network(&mut next, kept.vni, at, remote);
            self.publish_for_waiting(next, at);
        } else {
            self.publish(next);
        }
    }

    /// Returns the slots of the vnics of a network that wait for their address.
    fn waiting_in(&self, network: u32) -> Box<[u32]> {
        self.shared
            .snapshot
            .load()
            .networks
            .get(network)
            .map(|network| network.waiting.clone())
            .unwrap_or_default()
    }

    /// Announces the vnics that waited and have their address now, if their machines are there.
    /// Other hosts may have learnt the address elsewhere.
    fn take_over(&self, network: u32, waited: &[u32]) {
        let snapshot = self.shared.snapshot.load();
        let waiting = self.waiting_in(network);
        let taken = waited.iter().filter(|slot| waiting.binary_search(slot).is_err());
        for vnic in taken.filter_map(|slot| snapshot.vnics.get(*slot)) {
            if vnic.shared.driving.load(Ordering::Relaxed) {
                vnic.shared.announcing.begin();
            }
            if !vnic.rules.bypass {
                self.forget(|learnt| learnt.vni == vnic.vni && learnt.mac == number(vnic.mac));
            }
        }
    }

    /// Returns the vnic that has the address for which another one waits.
    pub fn waits_for(&self, vnic: &Vnic) -> Option<String> {
        self.shared.snapshot.load().waits_for(vnic).map(|having| having.id.to_string())
    }

    /// Returns vnics that left a moment ago, by slot.
    pub fn departed(&self) -> Departed {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the vnic with an id.
    pub fn vnic(&self, id: &str) -> Option<Arc<Vnic>> {
        let place = self.state().by_id.get(id).copied()?;
        self.shared.snapshot.load().vnic(place).cloned()
    }

    /// Looks at the place of a vnic, the snapshot, and the counts of vnics that are gone. No vnic
    /// comes or goes meanwhile.
    pub fn look<T>(
        &self,
        id: Option<&str>,
        look: impl FnOnce(Option<PortRef>, &Snapshot, &Totals) -> T,
    ) -> T {
        let state = self.state();
        let place = id.and_then(|id| state.by_id.get(id).copied());
        look(place, &self.shared.snapshot.load(), &self.gone.departed())
    }

    /// Returns the counters of the whole host, including vnics that are gone.
    pub fn totals(&self) -> Totals {
        let mut totals = self.gone.totals(&self.shared.snapshot).all;
        if let Some(tunnel) = &self.shared.tunnel {
            totals.merge(&tunnel.totals().drops_only());
        }
        totals
    }

    /// Counts a change of policy. When the numbers are used up, they begin again, and every session
    /// is decided again.
    fn next_version(&self, next: &mut Snapshot) {
        if next.version < LAST_VERSION {
            next.version += 1;
            return;
        }
        // Workers' decisions from now on have small numbers. Earlier decisions have large ones, and
        // are marked below.
        let before = self.shared.snapshot.load_full();
        // Their numbers mean nothing any more, and no vnic can take over their sessions.
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).0.clear();
        let all: Vec<Arc<Vnic>> = next.vnics.iter().map(|(_, vnic)| vnic.clone()).collect();
        for vnic in all {
            let anew = Vnic {
                born: FIRST_VERSION,
                since: FIRST_VERSION + 1,
                ..copy_with(&vnic, vnic.rules.clone())
            };
            next.vnics.set(vnic.place.slot, Some(Arc::new(anew)));
        }
        let all: Vec<(u32, Arc<Network>)> =
            next.networks.iter().map(|(at, network)| (at, network.clone())).collect();
        for (at, network) in all {
            next.networks.set(
                at,
                Some(Arc::new(Network { born: FIRST_VERSION, ..Network::clone(&network) })),
            );
        }
        self.shared.cells.take_back_all(FIRST_VERSION);
        next.version = FIRST_VERSION + 1;
        self.publish(next.clone());
        let here = |slot, stamp| before.vnics.get(slot).is_some_and(|vnic| vnic.born <= stamp);
        self.shared.table.for_each(|index, _, key, admission| {
            let (opener, responder) = key.slots();
            // A session of earlier, of a vnic that is gone: numbers do not tell that vnic from its
            // successor in the slot any more.
            let of_somebody_gone =
                !here(opener, admission.stamp) || !here(responder, admission.stamp);
            if admission.stamp > FIRST_VERSION + 1 && of_somebody_gone {
                if self.shared.table.remove(index, &key) {
                    self.shared.released(&before, &key, admission.stamp);
                }
                return;
            }
            // A number that stays large would count as new after any change. The table refuses only
            // records that a worker holds at this moment.
            let mut left = (admission.stamp > FIRST_VERSION).then_some(admission);
            while let Some(admission) = left {
                if self.shared.table.readmit(
                    index,
                    &key,
                    Admitted { stamp: FIRST_VERSION, ..admission },
                ) {
                    break;
                }
                let now = self.shared.table.record(index).read_surely();
                left = now
                    .filter(|(found, now)| *found == key && now.stamp > FIRST_VERSION)
                    .map(|(_, now)| now);
            }
        });
        // Not before the records: so the sessions of departed vnics belong to no vnic, whenever
        // this process dies.
        self.name_slots(next.vnics.iter().map(|(slot, _)| slot), next);
        next.version += 1;
    }

    /// Writes the vnics of these slots into the table, for a process that finds it.
    fn name_slots(&self, slots: impl Iterator<Item = u32>, snapshot: &Snapshot) {
        for slot in slots {
            let name = snapshot.vnics.get(slot).map(|vnic| Name {
                id: vnic.id.as_ref().into(),
                vni: vnic.vni,
                born: vnic.born,
            });
            self.shared.table.name(slot, name.as_ref());
        }
    }

    /// Moves the version near its end, for the harness.
    #[cfg(feature = "harness")]
    pub fn near_last_version(&self) {
        let next = Snapshot::clone(&self.shared.snapshot.load());
        self.publish(Snapshot { version: LAST_VERSION - 1, ..next });
    }

    /// Exchanges the snapshot and waits until every worker uses the new one: at most one batch, or
    /// the time to wake up.
    fn publish(&self, next: Snapshot) {
        self.shared.divide(&next);
        let old = self.shared.snapshot.swap(Arc::new(next));
        let epoch = self.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        // The other half is where a worker says that it runs.
        fence(Ordering::SeqCst);
        for worker in &self.workers {
            worker.wake();
        }
        for worker in &self.workers {
            let mut spins = 0u32;
            while worker.running.load(Ordering::Acquire)
                && worker.seen.load(Ordering::Acquire) < epoch
            {
                // Nothing to wait on: a worker that told us would have to make a system call.
                spins += 1;
                if spins < 100 {
                    std::thread::yield_now()
                } else {
                    std::thread::sleep(Duration::from_micros(20))
                }
            }
        }
        drop(old);
    }

    /// Removes learnt addresses that are too old.
    pub fn expire(&self) {
        self.forget(|_| false);
        self.settle();
    }

    /// Divides the room for learnt addresses among the networks of now. Removes addresses that are
    /// too many together, the most silent first.
    fn settle(&self) {
        let snapshot = self.shared.snapshot.load();
        let quota = &self.shared.fdb.quota;
        let held: Vec<u32> = snapshot
            .networks
            .iter()
            .map(|(_, network)| network.learnt.load(Ordering::Relaxed))
            .collect();
        if let Some(most) = quota.settle(fdb::CAPACITY, held.len() as u32, &held, 0) {
            let mut learnt = self.shared.fdb.list(self.shared.clock.now());
            learnt.sort_unstable_by_key(|learnt| learnt.idle);
            let mut kept: HashMap<u32, u32> = HashMap::new();
            learnt.retain(|learnt| {
                let kept = kept.entry(learnt.vni).or_default();
                *kept += 1;
                *kept > most
            });
            let gone: HashSet<(u32, u64)> =
                learnt.iter().map(|learnt| (learnt.vni, learnt.mac)).collect();
            self.forget(|learnt| gone.contains(&(learnt.vni, learnt.mac)));
        }
        if let Some(tunnel) = &self.shared.tunnel {
            tunnel.peers.settle(&snapshot.by_vni);
        }
    }

    fn forget(&self, gone: impl FnMut(&Learnt) -> bool) {
        let snapshot = self.shared.snapshot.load();
        self.shared.fdb.remove(self.shared.clock.now(), gone, |learnt| {
            if let Some(vnic) = snapshot.behind(learnt.place) {
                vnic.shared.learnt.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(network) =
                snapshot.by_vni.get(&learnt.vni).and_then(|at| snapshot.networks.get(*at))
            {
                self.shared.fdb.quota.give_back(&network.learnt);
            }
        });
    }
}

/// Returns a vnic with other rules.
pub(crate) fn copy_with(old: &Vnic, rules: Rules) -> Vnic {
    Vnic {
        id: old.id.clone(),
        place: old.place,
        mac: old.mac,
        order: old.order,
        vni: old.vni,
        network: old.network,
        kind: old.kind.clone(),
        born: old.born,
        since: old.since,
        rules,
        shared: old.shared.clone(),
    }
}

/// Makes what a vnic's rules need on the packet path.
fn prepare(rules: &Rules, shared: &VnicShared) {
    if !rules.bypass && !rules.policy.serves.is_empty() {
        shared.dhcp.serve();
    }
}

/// Returns a vnic with other rules, as of a version.
fn changed(old: &Vnic, rules: Rules, version: u32) -> Vnic {
    prepare(&rules, &old.shared);
    let since = if rules.takes_back(&old.rules) { version } else { old.since };
    Vnic { since, ..copy_with(old, rules) }
}

/// Returns secret random numbers.
fn secrets() -> Result<[u64; 4], std::io::Error> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0u8; 32];
    let read = std::fs::File::open(SOURCE)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    read.map_err(|error| {
        std::io::Error::new(error.kind(), format!("cannot read {SOURCE}: {error}"))
    })?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word) | 1);
    Ok(std::array::from_fn(|_| words.next().unwrap_or(1)))
}

/// Finds the vnic that each mirror copies.
fn find_mirrors(state: &State, next: &mut Snapshot) {
    let mut mirrors: Vec<Mirror> = Vec::new();
    for (_, vnic) in next.vnics.iter() {
        let PortKind::Mirror(target) = &vnic.kind else { continue };
        let target = state.by_id.get(target).and_then(|place| next.vnic(*place));
        // The desired state has no such mirrors. This is the wall between networks all the same.
        let target = target.filter(|target| target.vni == vnic.vni && !target.is_mirror());
        mirrors.extend(
            target.map(|target| Mirror { target: target.place.slot, mirror: vnic.place.slot }),
        );
    }
    next.selection = Selection::mirroring(next.selection.take(), mirrors);
}

/// Notes the holders of addresses after a vnic came, changed or went. Has the sessions decided
/// again of vnics that bypass filters in the network and do not forward: they may send from an
/// address that is not theirs any more.
fn rehold(snapshot: &mut Snapshot, old: Option<&Vnic>, new: &Vnic) {
    let Some(network) = snapshot
        .networks
        .get(new.network)
        .filter(|_| snapshot.by_vni.get(&new.vni) == Some(&new.network))
    else {
        return;
    };
    let mut network = Network::clone(network);
    let of = old.into_iter().flat_map(addresses).chain(addresses(new));
    let tighter = network.holders.change(new.place.slot, of, &snapshot.vnics);
    let others = network
        .members
        .clone()
        .into_iter()
        .chain(network.remote.as_ref().map(|remote| remote.slot));
    snapshot.networks.set(new.network, Some(Arc::new(network)));
    for slot in others.filter(|_| tighter) {
        if let Some(other) = snapshot
            .vnics
            .get(slot)
            .filter(|other| other.rules.bypass && !other.rules.forwards)
            .cloned()
        {
            let again = Vnic { since: snapshot.version, ..copy_with(&other, other.rules.clone()) };
            snapshot.vnics.set(slot, Some(Arc::new(again)));
        }
    }
}

fn rebuild_network(snapshot: &mut Snapshot, vni: u32, at: u32, remote: Option<Remote>) {
    let vnics: &Slab<Vnic> = &snapshot.vnics;
    let own =
        || vnics.iter().map(|(_, vnic)| vnic).filter(|vnic| vnic.vni == vni && !vnic.is_trunk());
    let mut members: Vec<&Arc<Vnic>> = own().filter(|vnic| !vnic.is_mirror()).collect();
    let waiting = waiting(&members, snapshot.kept.filter(|kept| kept.vni == vni));
    members.retain(|vnic| waiting.binary_search(&vnic.place.slot).is_err());
    // A vnic with a group address or none cannot receive.
    let stations = members.iter().filter(|vnic| !vnic.mac.is_group() && vnic.mac != Mac::ZERO);
    let learnt =
        snapshot.networks.get(at).map(|network| network.learnt.clone()).unwrap_or_default();
    let sessions =
        snapshot.networks.get(at).map(|network| network.sessions.clone()).unwrap_or_default();
    let holders =
        snapshot.networks.get(at).map(|network| network.holders.clone()).unwrap_or_default();
    let born = snapshot.networks.get(at).map_or(snapshot.version, |network| network.born);
    // The network stays while it has vnics, even if all of them are mirrors.
    let network = own().next().is_some().then(|| {
        Arc::new(Network {
            vni,
            members: members.iter().map(|vnic| vnic.place.slot).collect(),
            filtered: members.iter().any(|vnic| !vnic.rules.bypass),
            macs: Numbers::new(stations.clone().map(|vnic| (number(vnic.mac), vnic.place.slot))),
            waiting: waiting.clone(),
            holders,
            remote,
            learnt,
            sessions,
            born,
        })
    });
    let mut by_vni = HashMap::clone(&snapshot.by_vni);
    if network.is_some() {
        by_vni.insert(vni, at)
    } else {
        by_vni.remove(&vni)
    };
    snapshot.vnis = Arc::new(Numbers::new(by_vni.iter().map(|(vni, at)| (u64::from(*vni), *at))));
    snapshot.by_vni = Arc::new(by_vni);
    snapshot.networks.set(at, network);
}
