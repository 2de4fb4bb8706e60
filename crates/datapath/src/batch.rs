//! A batch on its way through the stages: the frames, and what is known and decided about each.

use std::cell::Cell;

use butterfly_vhost::{
    net::NetHeader,
    ring::{BATCH, Frames},
};

use crate::{
    budget::Budget,
    claims::Bindings,
    clock::Clock,
    fdb::Fdb,
    inside::Inside,
    last_drops::Dropped,
    reason::DropReason,
    rules::Cells,
    session::{Shares, Table, Timeouts},
    snapshot::{Network, Remote, Snapshot, Vnic},
    tap::{Notes, Selection, Tap},
    tunnel::{PeerRef, Tunnel},
};

/// What happens to a frame. The sender's port is that of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// No stage decided yet.
    Undecided,
    /// Dropped at the expense of the vnic in this slot.
    Drop(DropReason, u32),
    /// To the vnic in this slot.
    Deliver(u32),
    /// To another host.
    Tunnel(PeerRef),
    /// To every vnic of the network that may have it.
    Flood {
        /// The destination is a unicast address that nobody knows: only vnics that may own several
        /// addresses get it.
        unknown: bool,
    },
    /// The same, of another host: this turn has no time for it, so it waits in a queue.
    Later,
}

/// What is known of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Destination address as [`crate::mac::number`].
    pub destination: u64,
    /// Source address likewise.
    pub source: u64,
    pub verdict: Verdict,
    /// The host that it came from, if its sender is a trunk; 0 if there was no room for it among
    /// the peers.
    pub peer: PeerRef,
    /// What is inside, if someone in the network is filtered.
    pub inside: Inside,
    /// The frame needs something computed: the fields below say what. They are stale otherwise.
    pub offload: bool,
    /// The header for receivers: rebuilt, not the guest's.
    pub net: NetHeader,
    /// Where IP starts.
    pub l3: u16,
    /// Where the payload of the segments starts.
    pub payload: u16,
}

impl Meta {
    pub const NEW: Meta = Meta {
        destination: 0,
        source: 0,
        verdict: Verdict::Undecided,
        peer: PeerRef(0),
        inside: Inside::Unknown,
        offload: false,
        net: NetHeader {
            flags: 0,
            gso_type: 0,
            hdr_len: 0,
            gso_size: 0,
            csum_start: 0,
            csum_offset: 0,
            num_buffers: 0,
        },
        l3: 0,
        payload: 0,
    };
}

/// A worker's room for one batch.
pub(crate) type Metas = [Meta; BATCH];

/// Where the frames of a batch are from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// From their sender's port.
    Port,
    /// One flood of another host that a turn had no time for; it was counted when it came.
    Waited,
    /// One frame that the switch made, as if the sender had: it may say what guests may not (RARP),
    /// and counts for nobody.
    Own,
}

/// The frames of one sender.
pub(crate) struct Batch<'a> {
    pub frames: Frames<'a>,
    /// Among them may be ARP or neighbour discovery.
    pub unusual: bool,
    pub origin: Origin,
    metas: &'a mut Metas,
}

impl<'a> Batch<'a> {
    pub fn new(frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch::of(Origin::Port, frames, metas)
    }

    pub fn of(origin: Origin, frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch { frames, unusual: false, origin, metas }
    }

    #[inline(always)]
    pub fn metas(&self) -> &[Meta] {
        self.metas.get(..self.frames.len()).unwrap_or_default()
    }

    /// The frames and what is known of each, in the same order.
    #[inline(always)]
    pub fn parts(&mut self) -> (&mut Frames<'a>, &mut [Meta]) {
        let len = self.frames.len();
        (&mut self.frames, self.metas.get_mut(..len).unwrap_or_default())
    }
}

/// What stages need besides the batch.
pub(crate) struct Context<'a> {
    pub snapshot: &'a Snapshot,
    pub fdb: &'a Fdb,
    /// The sender.
    pub sender: &'a Vnic,
    /// Its network.
    pub network: &'a Network,
    /// Which worker this is, for its counters.
    pub worker: usize,
    /// Seconds of the coarse clock.
    pub now: u32,
    /// The clock itself, for what is finer and rare.
    pub clock: &'a Clock,
    pub table: &'a Table,
    pub cells: &'a Cells,
    /// Link-local addresses that machines made up.
    pub bindings: &'a Bindings,
    pub timeouts: &'a Timeouts,
    /// Seconds after an attachment in which connections may be picked up.
    pub tcp_pickup: u32,
    pub shares: &'a Shares,
    /// The way to other hosts.
    pub tunnel: Option<&'a Tunnel>,
    /// Somebody watches, and what delivery finds out for them.
    pub watched: Option<&'a Selection>,
    pub notes: &'a Notes,
    /// What is left of the turn, of which a batch from the uplink has several parts.
    pub budget: Cell<Budget>,
    /// A frame of the batch goes to several receivers. Set by `forward`.
    pub floods: Cell<bool>,
}

impl<'a> Context<'a> {
    /// Counts a dropped frame at the expense of a vnic, and keeps its first bytes.
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

    /// The same of a frame of our own.
    #[cold]
    pub fn count_own(&self, charged: &Vnic, reason: DropReason, frame: &[u8]) {
        let packet = Dropped { head: frame, len: frame.len() as u32, when: self.clock.tenths() };
        charged.shared.counters.drop(self.worker, reason, &packet);
    }

    /// The tap of those who watch.
    #[inline(always)]
    pub fn tap(&self) -> Option<Tap<'a>> {
        self.watched.map(|watched| Tap::of(watched, self.notes, self.worker))
    }

    /// The other hosts of the sender's network, unless the frames come from there: nothing goes
    /// back to where it came from.
    #[inline(always)]
    pub fn remote(&self) -> Option<&'a Remote> {
        self.network.remote.as_ref().filter(|_| !self.sender.trunk)
    }
}
