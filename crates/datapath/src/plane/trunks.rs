//! Trunks: the other hosts of each network, and the sessions that those opened.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use butterfly_packet::mac::Mac;

use crate::engine::place::{PeerRef, PortRef};
use crate::plane::{
    FIRST_VERSION, Plane, State,
    policies::{copy_with, rules},
    updates::Update,
};
use crate::world::{
    policy::VnicPolicy,
    rules::number as number_of_ip,
    snapshot::{Network, PortKind, Remote, Snapshot, Vnic},
};

impl Plane {
    /// Adds a network's trunk, which stands for its other hosts. Does nothing if there is one
    /// already, or no way to other hosts.
    pub(super) fn add_trunk(&self, state: &mut State, next: &mut Snapshot, vni: u32, network: u32) {
        if self.shared.tunnel.is_none()
            || self.is_external(state, vni)
            || next.networks.get(network).is_some_and(|network| network.remote.is_some())
        {
            return;
        }
        let (slot, inherited) = next.take_slot("", vni);
        let rules = rules(&VnicPolicy { bypass: true, ..VnicPolicy::default() }, &mut state.groups);
        let trunk = Vnic {
            id: "".into(),
            place: state.place(slot),
            mac: Mac::ZERO,
            order: 0,
            vni,
            network,
            kind: PortKind::Trunk,
            born: if inherited.is_some() { FIRST_VERSION } else { next.version },
            since: next.version,
            rules,
            shared: inherited.unwrap_or_else(|| self.vnic_state(true)),
        };
        next.vnics.set(slot, Some(Arc::new(trunk)));
    }

    /// Returns whether a network is an external: it is not on the underlay, so that no frame passes
    /// between that and a wire.
    pub(super) fn is_external(&self, state: &State, vni: u32) -> bool {
        butterfly_model::Vni::new(vni).is_ok_and(|vni| state.routed.is_external(vni))
    }

    /// Returns the other hosts of a network, for a snapshot with its trunk.
    pub(super) fn remote(
        &self,
        state: &State,
        next: &Snapshot,
        vni: u32,
        network: u32,
    ) -> Option<Remote> {
        let tunnel = self.shared.tunnel.as_ref()?;
        if self.is_external(state, vni) {
            return None;
        }
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
        // Hosts of neighbours stay.
        let let_go = |peer: &IpAddr| {
            if !state.routed.is_used(peer) {
                tunnel.peers.unconfigure(*peer);
            }
        };
        if !refused.is_empty() {
            new.difference(&old).for_each(let_go);
            return Err(refused);
        }
        old.difference(&new).for_each(let_go);
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

    /// Notes that a vnic's machine runs here from now on, with its addresses. Sessions that other
    /// hosts opened with these are decided again.
    pub fn is_here(&self, place: PortRef) {
        let state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let Some(vnic) = next.vnic(place).cloned() else { return };
        vnic.shared.leaving.store(false, Ordering::Relaxed);
        self.is_back(&vnic);
        if !vnic.shared.elsewhere.swap(false, Ordering::Relaxed) {
            return;
        }
        // A front end attaches before a live migration copies memory. Connections may be picked up
        // from when the machine runs.
        if vnic.shared.attached.load(Ordering::Relaxed) != 0 {
            vnic.shared.attached.store(self.shared.clock.now(), Ordering::Relaxed);
        }
        if vnic.rules.bypass {
            return;
        }
        self.decide_others_again(&mut next, vnic.network);
        self.publish(next);
        drop(state);
    }

    /// Has all sessions decided again that other hosts opened in a network, because a vnic of it
    /// owns its addresses from now on.
    pub(super) fn decide_others_again(&self, next: &mut Snapshot, network: u32) {
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
}
