//! A batch on its way through the stages: its frames, with the facts and the verdict on each.

use butterfly_vhost::{
    net::NetHeader,
    ring::{BATCH, Frames},
};

use crate::engine::{inside::Inside, place::PeerRef, reason::DropReason};

/// Verdict on a frame. The port of the sender is the batch's, not the frame's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// No stage decided yet.
    Undecided,
    /// Dropped and charged to the vnic in this slot.
    Drop(DropReason, u32),
    /// To the vnic in this slot.
    Deliver(u32),
    /// To another host.
    Tunnel(PeerRef),
    /// To every vnic of the network that may have it.
    Flood {
        /// The destination is a unicast address that is not known. Only vnics that may own several
        /// addresses get the frame.
        unknown: bool,
    },
    /// A flood of another host for which this turn has no time. The frame waits in a queue.
    Later,
}

/// Facts about a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Destination address as [`crate::engine::mac::number`].
    pub destination: u64,
    /// Source address likewise.
    pub source: u64,
    pub verdict: Verdict,
    /// The host that the frame came from, if its sender is a trunk; 0 if the table of peers had no
    /// room for that host.
    pub peer: PeerRef,
    /// Contents of the frame, if a vnic of the network is filtered.
    pub inside: Inside,
    /// The frame needs a checksum or segmentation, as the fields below say. They are stale
    /// otherwise.
    pub offload: bool,
    /// The header for receivers: rebuilt by the switch, not the guest's.
    pub net: NetHeader,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the payload of the segments.
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

/// Origin of the frames of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchOrigin {
    /// The port of their sender.
    Port,
    /// A flood of another host that waited because a turn had no time for it. It was counted when
    /// it came.
    Waited,
    /// A frame that the switch made in the name of the sender. It may say things that guests may
    /// not (RARP), and no counter counts it.
    Own,
}

/// The frames of one sender.
pub(crate) struct Batch<'a> {
    pub frames: Frames<'a>,
    /// Among them may be ARP or neighbour discovery.
    pub unusual: bool,
    /// One of them is to be cut into segments, if its receiver does not take it whole.
    pub segments: bool,
    pub origin: BatchOrigin,
    metas: &'a mut Metas,
}

impl<'a> Batch<'a> {
    pub fn new(frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch::of(BatchOrigin::Port, frames, metas)
    }

    pub fn of(origin: BatchOrigin, frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
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
