//! Vnics: put into the snapshot before their rings start, and taken out when those have stopped.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicU32},
};

use butterfly_model::Vni;
use butterfly_packet::mac::Mac;
use butterfly_vhost::port::Port;

use crate::engine::{counters::Counters, mac::number, place::MAX_SLOTS};
use crate::plane::{
    AddError, FIRST_VERSION, Plane,
    attachment::Attachment,
    mirrors::find_mirrors,
    networks::{rebuild_network, rehold},
    policies::{prepare, rules},
    updates::Update,
};
use crate::session::VnicSessions;
use crate::world::{
    bound::Bound,
    policy::VnicPolicy,
    relay::Relay,
    snapshot::{PortKind, Snapshot, Vnic, VnicShared},
};

/// Beginning of the ids of wires, which no vnic can have.
pub(crate) const WIRE: &str = "wire/";

/// Returns whether an id is that of a wire's port.
pub(crate) fn is_wire(id: &str) -> bool {
    id.starts_with(WIRE)
}

impl Plane {
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
        let (slot, inherited) = next.take_slot(id, vni);
        // A network's first vnic may bring its trunk.
        if slot + 2 > MAX_SLOTS {
            return Err(AddError::TooMany);
        }
        let network = next.by_vni.get(&vni).copied().unwrap_or_else(|| next.networks.vacant());
        self.next_version(&mut next);
        let mut rules = rules(policy, &mut state.groups);
        // A mirror may not count as a trusted sender.
        rules.bypass &= mirrors.is_none();
        let born = if inherited.is_some() { FIRST_VERSION } else { next.version };
        let is_wire = is_wire(id);
        let shared = inherited.unwrap_or_else(|| self.vnic_state(is_wire));
        shared.counters.grow(self.board.handles().len());
        prepare(&rules, &shared);
        let place = state.place(slot);
        let vnic = Arc::new(Vnic {
            id: id.into(),
            place,
            mac,
            order: order.unwrap_or(place.incarnation.into()),
            vni,
            network,
            kind: match mirrors {
                Some(of) => PortKind::Mirror(of.into()),
                None if is_wire => PortKind::Wire,
                None => PortKind::Vnic,
            },
            born,
            since: next.version,
            rules,
            shared,
        });
        // Before a worker can name it. Without its name, nobody is blamed.
        let _ = self.black_box.name(slot, id);
        next.vnics.set(slot, Some(vnic.clone()));
        self.add_trunk(&mut state, &mut next, vni, network);
        let remote = self.remote(&state, &next, vni, network);
        let trunk = remote.as_ref().map(|remote| remote.slot);
        rebuild_network(&mut next, vni, network, remote);
        rehold(&mut next, None, &vnic);
        state.by_id.insert(vnic.id.clone(), place);
        find_mirrors(&state, &mut next);
        self.name_slots([Some(slot), trunk].into_iter().flatten(), &next);
        // While vnics of a former process are declared again, nothing is learnt yet.
        let may_be_learnt = next.adopted.is_none();
        self.publish(next);
        self.updates.add(Update::VnicAdded);
        if may_be_learnt && !vnic.rules.bypass && mirrors.is_none() {
            // Its address is its own from now on.
            self.forget(|learnt| learnt.vni == vni && learnt.mac == number(mac));
        }
        self.settle();
        let (board, shared) = (self.board.clone(), vnic.shared.clone());
        Ok((vnic, Attachment::Vnic { board, place, vnic: shared }))
    }

    /// Makes the state of a vnic, or of what many machines are behind.
    pub(super) fn vnic_state(&self, crowd: bool) -> Arc<VnicShared> {
        Arc::new(VnicShared {
            port: Arc::new(Port::default()),
            counters: Counters::new(self.board.handles().len()),
            learnt: AtomicU32::new(0),
            floods: Default::default(),
            limits: Default::default(),
            crowd: crowd.then(Default::default),
            sessions: VnicSessions::default(),
            attached: AtomicU32::new(0),
            inherits: AtomicBool::new(false),
            presence: Default::default(),
            elsewhere: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            relay: Relay::default(),
            counted: Mutex::default(),
            bound: Bound::default(),
            driving: AtomicBool::new(false),
            announcing: Default::default(),
            steering: OnceLock::new(),
            serving: Default::default(),
            answered: Default::default(),
            cuts: Default::default(),
            dhcp: Default::default(),
            discovery: Default::default(),
            asks: Default::default(),
            probed: Default::default(),
        })
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
        let (now, keep) = (self.shared.clock.now(), next.times.tcp_pickup);
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
        self.board.forget(place);
        self.updates.add(Update::VnicRemoved);
        let slot = trunk.as_ref().map(|trunk| trunk.place.slot);
        self.forget(|learnt| learnt.place == place || Some(learnt.place.slot) == slot);
        self.settle();
        state.routed.ports.release(place);
        true
    }
}
