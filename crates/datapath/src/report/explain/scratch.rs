//! The world that a packet is walked in: copies of all that concerns it, so that stages may change
//! them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::engine::atomics::same32;
use crate::engine::writer::WorkerId;
use crate::engine::{
    bucket::{Bucket, Purse},
    counters::Counters,
    inside::Inside,
    mac::{address, number},
    pace::Pace,
};
use crate::engine::{budget::Budget, tap::TapNotes};
use crate::ip::{Address, frame::inside, parse::parse, tcp::Track};
use crate::plane::policies::copy_with;
use crate::session::{Key, Life, Past, Shares, Table, Zone};
use crate::stages::{context::Context, filter::FragmentDecision, fragment_table::FragmentTable};
use crate::worker::Shared;
use crate::world::{
    asking::Asking,
    bindings::Bindings,
    fdb::Fdb,
    identifications::Identifications,
    nat::{Assumed, FirstTranslation},
    rules::Cells,
    snapshot::{Budgets, Network, Snapshot, Vnic, VnicShared},
};

use butterfly_packet::mac::Mac;

/// Room for the sessions of one packet and its answer.
const SESSIONS: u32 = 1024;

/// The copies.
pub(super) struct World<'a> {
    pub shared: &'a Shared,
    pub snapshot: Snapshot,
    pub table: Table,
    cells: Cells,
    bindings: Bindings,
    fragments: FragmentTable<FragmentDecision>,
    nat_fragments: FragmentTable<FirstTranslation>,
    identifications: Identifications,
    fdb: Fdb,
    asking: Asking,
    notes: TapNotes,
    shares: Shares,
    /// The port outside that the packet would get.
    assumed: std::cell::Cell<Option<Assumed>>,
    /// Writes the counters of the copies, which have this one writer.
    writer: WorkerId,
}

impl<'a> World<'a> {
    /// Copies all that concerns packets of a network, also in those that a router joins to it.
    /// `None` if there is no memory for it.
    pub fn new(shared: &'a Shared, snapshot: &Snapshot, vni: u32) -> Option<World<'a>> {
        // The counts of vnics that wait are the switch's.
        let mut own = Snapshot { adopted: None, ..snapshot.clone() };
        let joined = snapshot.network(vni).and_then(|network| network.routing.as_ref());
        let mut networks = joined.map(|routing| routing.joined()).unwrap_or_default();
        networks.insert(vni);
        networks.iter().for_each(|vni| copy_network(&mut own, *vni));
        let bindings = Bindings::new().ok()?;
        own.vnics
            .iter()
            .filter(|(_, vnic)| networks.contains(&vnic.vni))
            .for_each(|(_, vnic)| bindings.adopt(vnic, &own));
        Some(World {
            shared,
            snapshot: own,
            table: Table::like(&shared.table, SESSIONS).ok()?,
            cells: Cells::new().ok()?,
            bindings,
            fragments: FragmentTable::new(&snapshot.times.timeouts),
            nat_fragments: FragmentTable::new(&snapshot.times.timeouts),
            identifications: Identifications::new(),
            fdb: Fdb::new(shared.fdb.ageing()),
            asking: shared.asking.copy(),
            notes: TapNotes::default(),
            shares: shared.shares.copy(),
            assumed: std::cell::Cell::new(None),
            writer: WorkerId::new(0),
        })
    }

    /// Copies the switch's knowledge of the places of stations.
    pub fn take_stations(&self, vni: u32, stations: [Mac; 2]) {
        let now = self.shared.clock.now();
        for station in stations.map(number) {
            if let Some(place) = self.shared.fdb.lookup(vni, station, now) {
                self.fdb.learn(vni, station, place, now, true);
            }
        }
    }

    /// Copies the switch's knowledge of the places of neighbours to which routers of a network may
    /// pass on what is for an address.
    pub fn take_neighbours(&self, vni: u32, of: Address) {
        let routing = self.snapshot.network(vni).and_then(|network| network.routing.as_ref());
        let Some(routing) = routing else { return };
        let joined = routing.joined().into_iter().map(|vni| (vni, of));
        for (vni, of) in joined.chain(routing.ways_to(of)) {
            let declared = self.snapshot.neighbours.get(vni, of).map(|declared| declared.mac);
            let found = || self.snapshot.found.get(vni, of).map(|found| found.mac);
            if let Some(mac) = declared.or_else(found) {
                self.take_stations(vni, [address(mac); 2]);
            }
        }
    }

    /// Copies the switch's sessions of a conversation.
    pub fn take_sessions(&self, key: &Key) {
        let real = &self.shared.table;
        // Returns nothing, so that all are visited.
        real.find_map(real.hash(key), |index, stored, admission| {
            let line = real.record(index).line2();
            let (state, track) = (line.state, line.track);
            let life = Life { now: line.seen, state, track, past: Past::NONE };
            // The session may be known from the packet before. Then that packet's changes count.
            let _ = self.table.insert(
                self.table.hash(&stored),
                &stored,
                admission,
                &life,
                |_| false,
                |_, _, _| (),
            );
            for cell in admission.cells {
                self.cells.take_back(cell, self.shared.cells.taken_back(cell));
            }
            None::<()>
        });
    }

    /// Returns the progress of the connection of a TCP segment from this slot. Also returns whether
    /// that end opened it (0) or the other one did (1).
    pub fn reached(&self, frame: &[u8], vni: u32, from: u32) -> Option<(Track, usize)> {
        let Inside::Ip { at, vlan } = inside(frame) else { return None };
        let tuple = parse(frame, at.into(), vlan, frame.len() as u32).ok()?.tuple;
        let real = &self.shared.table;
        self.zones(vni).into_iter().find_map(|zone| {
            let key = Key::new(&tuple, zone, from, from);
            real.find_map(real.hash(&key), |index, stored, _| {
                let direction = match stored.slots() {
                    _ if stored.zone() != zone => return None,
                    (opener, _) if opener == from && stored.tuple() == tuple => 0,
                    (_, responder) if responder == from && stored.tuple().reversed() == tuple => 1,
                    _ => return None,
                };
                Some((real.record(index).line2().track, direction))
            })
        })
    }

    /// Returns the zones that a session of a network's vnic may be in: the network itself, and of
    /// routed sessions the smaller one of both networks.
    pub fn zones(&self, vni: u32) -> Vec<Zone> {
        let network = self.snapshot.network(vni);
        let joined = network.and_then(|network| Some(network.routing.as_ref()?.joined()));
        let lower = joined.into_iter().flatten().filter(|other| *other <= vni);
        lower.map(Zone::routed).chain([Zone::of(vni)]).collect()
    }

    /// Returns the context of the stages, for frames of this sender.
    pub fn context<'c>(&'c self, sender: &'c Vnic, entry: &'c Network) -> Context<'c> {
        Context {
            snapshot: &self.snapshot,
            fdb: &self.fdb,
            asking: &self.asking,
            sender,
            entry,
            worker: self.writer.writer(),
            now: self.shared.clock.now(),
            clock: &self.shared.clock,
            table: &self.table,
            cells: &self.cells,
            bindings: &self.bindings,
            fragments: &self.fragments,
            nat_fragments: &self.nat_fragments,
            identifications: &self.identifications,
            shares: &self.shares,
            tunnel: self.shared.tunnel.as_ref(),
            // No tap watches a packet that is not sent.
            watched: None,
            notes: &self.notes,
            budget: std::cell::Cell::new(Budget::UNBOUNDED),
            far_cuts: None,
            room: std::cell::Cell::new(None),
            assumed: Some(&self.assumed),
        }
    }
}

/// Copies the counts of a network, and of its vnics.
fn copy_network(own: &mut Snapshot, vni: u32) {
    let Some(at) = own.by_vni.get(&vni).copied() else { return };
    let Some(network) = own.networks.get(at).cloned() else { return };
    let trunk = network.remote.as_ref().map(|remote| remote.slot);
    for slot in network.members.iter().copied().chain(trunk) {
        if let Some(vnic) = own.vnics.get(slot).cloned() {
            let rules = vnic.rules.clone();
            let copy = Vnic { shared: counts(&vnic.shared), ..copy_with(&vnic, rules) };
            own.vnics.set(slot, Some(Arc::new(copy)));
        }
    }
    let copy = Network {
        learnt: same32(&network.learnt).into(),
        sessions: same32(&network.sessions).into(),
        ..Network::clone(&network)
    };
    own.networks.set(at, Some(Arc::new(copy)));
}

/// Copies the counts and memory of a vnic. Its rings are shared, but not touched here.
fn counts(shared: &VnicShared) -> Arc<VnicShared> {
    let VnicShared {
        port,
        learnt,
        floods,
        limits,
        crowd,
        sessions,
        attached,
        inherits,
        elsewhere,
        bound,
        driving,
        serving: _,
        steering,
        answered,
        cuts,
        dhcp,
        discovery,
        asks,
        probed,
        ..
    } = shared;
    Arc::new(VnicShared {
        port: port.clone(),
        counters: Counters::new(1),
        learnt: same32(learnt),
        floods: floods.copy(),
        limits: limits.copy(),
        crowd: crowd.as_ref().map(|crowd| {
            Box::new(Budgets {
                sessions: crowd.sessions.copy(Bucket::copy),
                floods: crowd.floods.copy(Purse::copy),
                dhcp: crowd.dhcp.copy(Pace::copy),
            })
        }),
        sessions: sessions.copy(),
        attached: same32(attached),
        inherits: AtomicBool::new(inherits.load(Relaxed)),
        presence: Default::default(),
        elsewhere: AtomicBool::new(elsewhere.load(Relaxed)),
        leaving: AtomicBool::new(false),
        relay: Default::default(),
        counted: Default::default(),
        bound: bound.copy(),
        driving: AtomicBool::new(driving.load(Relaxed)),
        announcing: Default::default(),
        serving: Default::default(),
        steering: steering.clone(),
        answered: answered.copy(),
        cuts: cuts.copy(),
        dhcp: dhcp.copy(),
        discovery: discovery.copy(Pace::copy),
        asks: asks.copy(),
        probed: probed.copy(),
    })
}
