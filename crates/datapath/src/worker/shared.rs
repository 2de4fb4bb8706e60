//! State shared by all threads of a switch.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwap;

use crate::engine::writer::Writer;
use crate::engine::{budget::Budget, clock::Clock, tap::TapNotes};
use crate::overlay::Tunnel;
use crate::session::{Key, Shares, Table};
use crate::stages::{
    context::Context,
    filter::{FragmentDecision, released},
    fragment_table::FragmentTable,
};
use crate::world::{
    asking::Asking,
    bindings::Bindings,
    fdb::Fdb,
    identifications::Identifications,
    nat::FirstTranslation,
    rules::Cells,
    snapshot::{Network, Snapshot, Vnic},
};

/// State shared by all threads of a switch.
pub(crate) struct Shared {
    pub snapshot: ArcSwap<Snapshot>,
    /// Counts publications of snapshots.
    pub epoch: AtomicU64,
    pub fdb: Fdb,
    /// Addresses that are asked for.
    pub asking: Asking,
    pub clock: Clock,
    pub stop: AtomicBool,
    pub table: Table,
    /// Link-local addresses that machines made up.
    pub bindings: Bindings,
    /// Packets whose first fragments passed.
    pub fragments: FragmentTable<FragmentDecision>,
    /// Packets whose first fragments were translated by their ports.
    pub nat_fragments: FragmentTable<FirstTranslation>,
    /// Identifications of packets in fragments from addresses that machines share.
    pub identifications: Identifications,
    pub cells: Cells,
    pub shares: Shares,
    /// The tunnel endpoint, if there is one.
    pub tunnel: Option<Tunnel>,
    /// Frames from the uplink are not looked at.
    pub uplink_held: AtomicBool,
    /// Of each queue of a vhost-user uplink, a bit: the frames that its ring begins with are given
    /// back unseen, as the process before ended by one of them.
    pub skip_uplink: AtomicU64,
}

impl Shared {
    /// Returns the context of the stages, for frames of this sender.
    #[inline(always)]
    pub fn context<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        sender: &'a Vnic,
        entry: &'a Network,
        worker: Writer<'a>,
        notes: &'a TapNotes,
    ) -> Context<'a> {
        Context {
            snapshot,
            fdb: &self.fdb,
            asking: &self.asking,
            sender,
            entry,
            worker,
            now: self.clock.now(),
            clock: &self.clock,
            table: &self.table,
            cells: &self.cells,
            bindings: &self.bindings,
            fragments: &self.fragments,
            nat_fragments: &self.nat_fragments,
            identifications: &self.identifications,
            shares: &self.shares,
            tunnel: self.tunnel.as_ref(),
            watched: notes.begin(snapshot.selection.as_deref()),
            notes,
            budget: Cell::new(Budget::WHOLE),
            far_cuts: None,
            room: Cell::new(None),
            assumed: None,
        }
    }

    /// Divides the table among the networks of a snapshot, and counts their sessions beyond their
    /// parts.
    pub fn divide(&self, snapshot: &Snapshot) {
        let counted = |network: &Network| (network.has_part(), network.sessions.load(Relaxed));
        self.shares.divide(|| snapshot.networks.iter().map(|(_, network)| counted(network)));
    }

    /// Notes that a session is gone that was last decided by version `stamp`.
    pub fn released(&self, snapshot: &Snapshot, key: &Key, stamp: u32) {
        released(snapshot, &self.table, &self.shares, key, stamp);
    }
}
