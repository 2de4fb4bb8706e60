//! Context of the stages: all that they need besides the batch.

use std::cell::Cell;

use butterfly_vhost::ring::Frames;

use crate::engine::tap::{Tap, TapNotes};
use crate::engine::writer::Writer;
use crate::engine::{
    batch::Exits, budget::Budget, clock::Clock, last_drops::Dropped, place::NetworkRef,
    reason::DropReason, tap::Selection,
};
use crate::overlay::Tunnel;
use crate::session::{Shares, Table, Timeouts};
use crate::stages::{filter::FragmentDecision, fragment_table::FragmentTable};
use crate::world::{
    asking::Asking,
    bindings::Bindings,
    far_cuts::FarCuts,
    fdb::Fdb,
    identifications::Identifications,
    limits::Room,
    nat::{Assumed, FirstTranslation, Sharing},
    ports::Sharer,
    rules::Cells,
    snapshot::{Network, Remote, Snapshot, Vnic},
};

/// Context of the stages: all that they need besides the batch.
pub(crate) struct Context<'a> {
    pub snapshot: &'a Snapshot,
    pub fdb: &'a Fdb,
    /// Addresses that are asked for.
    pub asking: &'a Asking,
    /// The sender.
    pub sender: &'a Vnic,
    /// The network by which the frames came: the sender's.
    pub entry: &'a Network,
    /// The worker, for its counters.
    pub worker: Writer<'a>,
    /// Seconds of the coarse clock.
    pub now: u32,
    /// The clock itself, for finer times.
    pub clock: &'a Clock,
    pub table: &'a Table,
    pub cells: &'a Cells,
    /// Link-local addresses that machines made up.
    pub bindings: &'a Bindings,
    /// Packets whose first fragments passed.
    pub fragments: &'a FragmentTable<FragmentDecision>,
    /// Packets whose first fragments were translated by their ports.
    pub nat_fragments: &'a FragmentTable<FirstTranslation>,
    /// Identifications of packets in fragments from addresses that machines share.
    pub identifications: &'a Identifications,
    pub shares: &'a Shares,
    /// The tunnel endpoint, if there is one.
    pub tunnel: Option<&'a Tunnel>,
    /// Sinks and mirrors, if there are any.
    pub watched: Option<&'a Selection>,
    pub notes: &'a TapNotes,
    /// Budget left to the turn. A batch from the uplink has several parts in one turn.
    pub budget: Cell<Budget>,
    /// Fragments of what other hosts sent, if this is a turn of the uplink.
    pub far_cuts: Option<&'a FarCuts>,
    /// Room of the sender, if its sending is limited and the batch begins a turn.
    pub room: Cell<Option<Room>>,
    /// Of a packet that is not sent, the port outside that it would get.
    pub assumed: Option<&'a Cell<Option<Assumed>>>,
}

impl<'a> Context<'a> {
    /// Returns the seconds that sessions last without a frame.
    pub fn timeouts(&self) -> &'a Timeouts {
        &self.snapshot.times.timeouts
    }

    /// Returns who looks for ports outside, and when.
    pub fn sharing(&self) -> Sharing<'a> {
        let sharer = Sharer { port: self.sender.place, is_trunk: self.sender.is_trunk() };
        Sharing { sharer, now: self.now, assumed: self.assumed }
    }

    /// Counts a dropped frame, charged to a vnic, and keeps its first bytes.
    #[cold]
    pub fn count_drop(
        &self,
        charged: &Vnic,
        reason: DropReason,
        frames: &Frames<'_>,
        index: usize,
    ) {
        charged.shared.counters.drop(self.worker, reason, &Dropped::of(frames, index, self.clock));
    }

    /// Counts a dropped frame of the switch's own, as [`Self::count_drop`] does.
    #[cold]
    pub fn count_own(&self, charged: &Vnic, reason: DropReason, frame: &[u8]) {
        let packet = Dropped { head: frame, len: frame.len() as u32, when: self.clock.tenths() };
        charged.shared.counters.drop(self.worker, reason, &packet);
    }

    /// Returns the tap, if there are sinks or mirrors.
    #[inline(always)]
    pub fn tap(&self) -> Option<Tap<'a>> {
        self.watched.map(|watched| Tap::of(watched, self.notes, self.worker))
    }

    /// Returns the network by which a frame of the batch leaves. A frame whose network does not
    /// exist leaves by none: `forward` drops it.
    #[inline(always)]
    pub fn exit(&self, exits: Exits<'_>, index: usize) -> &'a Network {
        match exits.of(index) {
            None => self.entry,
            Some(exit) => self.other(exit).unwrap_or(self.entry),
        }
    }

    /// Returns a network to which a frame crossed, if it exists.
    #[inline]
    pub fn other(&self, exit: NetworkRef) -> Option<&'a Network> {
        self.snapshot.networks.get(exit.0).map(|network| &**network)
    }

    /// Returns the other hosts of a network, unless the frames come from other hosts: nothing that
    /// came by the uplink returns to it.
    #[inline(always)]
    pub fn remote_of(&self, network: &'a Network) -> Option<&'a Remote> {
        network.remote.as_ref().filter(|_| !self.sender.is_trunk())
    }

    /// Returns the other hosts of the sender's network, likewise.
    #[inline(always)]
    pub fn remote(&self) -> Option<&'a Remote> {
        self.remote_of(self.entry)
    }
}
