//! A batch on its way through the stages: the frames, and what is known and decided about each.

use butterfly_vhost::{
    net::NetHeader,
    ring::{BATCH, Frames},
};

use crate::engine::{inside::Inside, place::PeerRef, reason::DropReason};

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
    /// Destination address as [`crate::engine::mac::number`].
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
    /// One of them is to be cut into segments, if its receiver does not take it whole.
    pub segments: bool,
    pub origin: Origin,
    metas: &'a mut Metas,
}

impl<'a> Batch<'a> {
    pub fn new(frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch::of(Origin::Port, frames, metas)
    }

    pub fn of(origin: Origin, frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch { frames, unusual: false, segments: false, origin, metas }
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
