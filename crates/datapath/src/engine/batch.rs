//! A batch on its way through the stages: its frames, with the facts and the verdict on each.

use std::net::{IpAddr, Ipv4Addr};

use butterfly_packet::translate::End;
use butterfly_vhost::{
    net::NetHeader,
    ring::{BATCH, Frames},
};

use crate::engine::{
    inside::Inside,
    place::{NetworkRef, PeerRef},
    reason::DropReason,
    reserved::TRANSLATED,
};

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
    /// The frame waits in a queue of the worker: a flood of another host for which this turn has
    /// no time, or a fragment that came before its first one.
    Later,
    /// To a router of this host, or the network itself, which answers it: nobody else gets it.
    Consumed(Consumed),
}

/// Questions that a router of this host answers, or the network itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consumed {
    /// A machine asks for the MAC address of a gateway (RFC 826).
    Arp,
    /// A machine asks for the MAC address of a gateway by neighbour discovery (RFC 4861).
    Discovery,
    /// A machine asks a router whether it is there (RFC 792; RFC 4443, 4.1).
    Echo,
    /// Its next hop is asked for: it waits for the answer.
    Waits,
    /// A machine asks its network for an address, by DHCP of IPv4 (RFC 2131).
    Dhcp,
    /// The same by DHCPv6 (RFC 8415).
    Dhcp6,
    /// A machine asks for the routers of its network (RFC 4861).
    Solicitation,
}

/// Way of a frame through a router: it leaves by another network, with other MAC addresses. Of a
/// frame that a router of another host passed on, which stays in its network, the source address
/// alone counts: see [`Hop::from_far`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// Destination and source addresses that it gets, as they stand in a frame. The source is that
    /// of the gateway in the other network, or of this host if the receiver is on another one.
    pub macs: [u8; 12],
    /// Network by which the frame leaves.
    pub exit: NetworkRef,
}

/// Destination of a hop that has none: it counts for nothing, but tells it from [`Hop::NONE`].
const FROM_FAR: [u8; 6] = [0, 0, 0, 0, 0, 1];

impl Hop {
    /// Returns whether a router made it. Tests have frames leave by another network as they are.
    #[inline(always)]
    pub fn is_routed(&self) -> bool {
        self.macs != Hop::NONE.macs
    }

    /// Returns whether it leads by a wire to this host itself: from and to its MAC address there.
    pub fn turns(&self) -> bool {
        let (to, from) = self.macs.split_at(6);
        self.is_routed() && to == from
    }

    pub const NONE: Hop = Hop { macs: [0; 12], exit: NetworkRef(0) };

    /// Returns the way of a frame that a router of another host passed on, in the network `stays`:
    /// it gets this source address, or keeps its own.
    pub fn from_far(gateway: Option<[u8; 6]>, stays: NetworkRef) -> Hop {
        let [m0, m1, m2, m3, m4, m5] = FROM_FAR;
        let mut macs = [m0, m1, m2, m3, m4, m5, 0, 0, 0, 0, 0, 0];
        let sender = macs.iter_mut().skip(6);
        sender.zip(gateway.unwrap_or_default()).for_each(|(to, byte)| *to = byte);
        Hop { macs, exit: stays }
    }

    /// Returns whether it is the way of such a frame.
    pub fn is_from_far(&self) -> bool {
        self.macs.starts_with(&FROM_FAR)
    }
}

/// Facts about a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Destination address as [`crate::engine::mac::number`]. Of a frame whose IP destination was
    /// translated, that of its router with the bit [`crate::engine::reserved::TRANSLATED`].
    pub destination: u64,
    /// Source address by which it came, likewise.
    pub source: u64,
    pub verdict: Verdict,
    /// The host that the frame came from, if its sender is a trunk; 0 if the table of peers had no
    /// room for that host.
    pub peer: PeerRef,
    /// Contents of the frame, once a stage wanted them: see [`Batch::read`].
    pub inside: Inside,
    /// The frame needs a checksum, segmentation or fragmentation, as the fields below say. They are
    /// stale otherwise.
    pub offload: bool,
    /// The header for receivers: rebuilt by the switch, not the guest's.
    pub net: NetHeader,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the payload of the segments.
    pub payload: u16,
    /// The packets that a router cuts it into.
    pub cut: FrameCut,
}

/// Cut of a frame: its packet, or each of its datagrams, becomes fragments of IPv4. Or its segments
/// of TCP become shorter: then there is no longest packet, but a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameCut {
    /// Longest packet in bytes that may leave; 0 if the frame is not cut.
    pub most: u16,
    /// Number of packets, of all datagrams together. A frame of one loses what is behind it.
    pub packets: u16,
}

impl FrameCut {
    pub const NONE: FrameCut = FrameCut { most: 0, packets: 0 };

    /// Returns whether it is one into fragments.
    #[inline(always)]
    pub fn is_some(self) -> bool {
        self.most != 0
    }
}

impl Meta {
    pub const NEW: Meta = Meta {
        destination: 0,
        source: 0,
        verdict: Verdict::Undecided,
        peer: PeerRef(0),
        inside: Inside::NonIp,
        offload: false,
        net: NetHeader::NONE,
        l3: 0,
        payload: 0,
        cut: FrameCut::NONE,
    };
}

const _: () = assert!(size_of::<Meta>() <= 64, "facts about a frame are one cache line");

/// A worker's room for one batch.
pub(crate) struct Metas {
    each: [Meta; BATCH],
    /// Ways of the frames that leave by another network: see [`Exits`].
    hops: [Hop; BATCH],
    /// Destinations that frames had outside: see [`Batch::outside`].
    outside: [End; BATCH],
}

/// End of no frame.
const NOWHERE: End = End { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), port: None };

impl Metas {
    pub fn new() -> Box<Metas> {
        let (each, hops, outside) = ([Meta::NEW; BATCH], [Hop::NONE; BATCH], [NOWHERE; BATCH]);
        Box::new(Metas { each, hops, outside })
    }

    /// Returns the facts, for what is known before the batch begins.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Meta> {
        self.each.iter_mut()
    }
}

/// Networks by which the frames of a batch leave. All of them came by one network, and most leave
/// by the same: only others have an entry.
#[derive(Clone, Copy)]
pub(crate) struct Exits<'a> {
    /// A bit for each frame that leaves by another network.
    crossed: u64,
    hops: &'a [Hop; BATCH],
}

const _: () = assert!(BATCH <= u64::BITS as usize, "a mask has a bit for each frame");

impl Exits<'_> {
    /// Returns the network by which a frame leaves; `None` if it came by the same.
    #[inline(always)]
    pub fn of(&self, index: usize) -> Option<NetworkRef> {
        if self.crossed == 0 || !is_set(self.crossed, index) {
            return None;
        }
        self.hops.get(index).map(|hop| hop.exit)
    }

    /// Returns whether a router passes a frame on, or if its sender is a trunk, one of another host
    /// did.
    #[inline(always)]
    pub fn is_routed(&self, index: usize) -> bool {
        is_set(self.crossed, index) && self.hops.get(index).is_some_and(Hop::is_routed)
    }

    /// Returns whether any frame leaves by another network than the one by which it came.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.crossed != 0
    }

    /// Returns a bit for each of those frames.
    #[inline(always)]
    pub fn crossed(&self) -> u64 {
        self.crossed
    }
}

/// Returns whether a mask has the bit of a frame.
#[inline(always)]
fn is_set(mask: u64, index: usize) -> bool {
    mask.wrapping_shr(index as u32) & 1 == 1
}

/// Origin of the frames of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchOrigin {
    /// The port of their sender.
    Port,
    /// A flood of another host that waited because a turn had no time for it. It was counted when
    /// it came.
    Waited,
    /// A fragment that waited for its first one. It was counted, and its source learnt, when it
    /// came.
    Penned,
    /// A frame that the switch made in the name of the sender. It may say things that guests may
    /// not (RARP), and no counter counts it.
    Own,
}

/// The frames of one sender.
pub(crate) struct Batch<'a> {
    pub frames: Frames<'a>,
    /// Among them may be ARP or neighbour discovery.
    pub unusual: bool,
    /// One of them asks for an offload.
    pub offloads: bool,
    /// One of them is to be cut: into segments, if its receiver does not take it whole, or into
    /// fragments.
    pub segments: bool,
    /// One of them goes to several receivers.
    pub floods: bool,
    /// One of them came from another host and is to be passed on to a third one.
    pub relays: bool,
    /// The destination of one of them was translated, or one leaves by the outside of an external.
    pub outward: bool,
    /// A bit for each frame that a router of this host answers, or of whose drop it tells.
    pub answers: u64,
    /// A bit for each frame whose packet a router cuts.
    pub cuts: u64,
    /// A bit for each fragment whose destination was translated by ports.
    pub pieces: u64,
    pub origin: BatchOrigin,
    /// True if [`Meta::inside`] was read.
    read: bool,
    crossed: u64,
    metas: &'a mut Metas,
}

impl<'a> Batch<'a> {
    pub fn new(frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch::of(BatchOrigin::Port, frames, metas)
    }

    pub fn of(origin: BatchOrigin, frames: Frames<'a>, metas: &'a mut Metas) -> Batch<'a> {
        Batch {
            frames,
            unusual: false,
            offloads: false,
            segments: false,
            floods: false,
            relays: false,
            outward: false,
            answers: 0,
            cuts: 0,
            pieces: 0,
            origin,
            read: false,
            crossed: 0,
            metas,
        }
    }

    /// Notes that a stage read the contents of all frames, while it had their first bytes at hand.
    #[inline(always)]
    pub fn was_read(&mut self) {
        self.read = true;
    }

    /// Reads the contents of all frames, if no stage has, by `inside`.
    #[inline(always)]
    pub fn read(&mut self, inside: impl Fn(&[u8]) -> Inside) {
        if !self.read {
            self.read_each(inside);
        }
    }

    #[cold]
    fn read_each(&mut self, inside: impl Fn(&[u8]) -> Inside) {
        for (index, meta) in self.metas.each.iter_mut().take(self.frames.len()).enumerate() {
            meta.inside = inside(self.frames.head(index));
        }
        self.read = true;
    }

    /// Has a frame leave by this network.
    #[cfg_attr(not(any(test, feature = "every-second")), expect(dead_code, reason = "tests do it"))]
    pub fn cross(&mut self, index: usize, network: NetworkRef) {
        if let Some(hop) = self.metas.hops.get_mut(index) {
            *hop = Hop { exit: network, ..Hop::NONE };
            self.crossed |= 1 << index;
        }
    }

    /// Returns the frames, their facts, and the ways of those that are to leave by another network:
    /// for a router, which then says by [`Self::route`] which ones do.
    #[inline(always)]
    pub fn parts_and_hops(&mut self) -> (&mut Frames<'a>, &mut [Meta], &mut [Hop; BATCH]) {
        let Metas { each, hops, .. } = &mut *self.metas;
        let len = self.frames.len();
        (&mut self.frames, each.get_mut(..len).unwrap_or_default(), hops)
    }

    /// Has a router pass frames on, by other networks than they came by. `routed` has a bit for
    /// each.
    #[inline(always)]
    pub fn route(&mut self, routed: u64) {
        self.crossed |= routed;
    }

    /// Returns a bit for each frame that leaves by another network.
    #[inline(always)]
    pub fn crossed(&self) -> u64 {
        self.crossed
    }

    /// Returns whether a router of this host answers a frame, or tells of its drop.
    pub fn is_answered(&self, index: usize) -> bool {
        is_set(self.answers, index)
    }

    /// Returns the way of a frame that leaves by another network, or came from one.
    #[inline(always)]
    pub fn hop(&self, index: usize) -> Option<Hop> {
        self.metas.hops.get(index).copied().filter(|_| is_set(self.crossed, index))
    }

    /// Notes that the destination of a frame, which goes to this router, was translated. `outside`
    /// is what it was.
    pub fn translate(&mut self, index: usize, router: u64, outside: End) {
        if let Some(place) = self.metas.outside.get_mut(index)
            && let Some(meta) = self.metas.each.get_mut(index)
        {
            *place = outside;
            meta.destination = router | TRANSLATED;
            self.outward = true;
        }
    }

    /// Returns the destination that a frame had before it was translated.
    pub fn outside(&self, index: usize) -> Option<End> {
        let is_translated = self.metas().get(index)?.destination & TRANSLATED != 0;
        self.metas.outside.get(index).copied().filter(|_| is_translated)
    }

    /// Rewrites the header of a frame in its slot, from where receivers get it. The length stays,
    /// and so do the contents that [`Meta::inside`] tells and the source by which it came: that is
    /// what is learnt, and whose budgets are used.
    #[cfg_attr(not(feature = "every-second"), expect(dead_code, reason = "tests do it"))]
    pub fn rewrite(&mut self, index: usize, rewrite: impl FnOnce(&mut [u8])) {
        let head = self.frames.head_mut(index);
        rewrite(head);
        if let (Some(meta), Some([d0, d1, d2, d3, d4, d5])) =
            (self.metas.each.get_mut(index), head.first_chunk())
        {
            meta.destination = u64::from_le_bytes([*d0, *d1, *d2, *d3, *d4, *d5, 0, 0]);
        }
    }

    /// Returns the networks by which the frames leave.
    #[inline(always)]
    pub fn exits(&self) -> Exits<'_> {
        Exits { crossed: self.crossed, hops: &self.metas.hops }
    }

    #[inline(always)]
    pub fn metas(&self) -> &[Meta] {
        self.metas.each.get(..self.frames.len()).unwrap_or_default()
    }

    /// The frames and what is known of each, in the same order.
    #[inline(always)]
    pub fn parts(&mut self) -> (&mut Frames<'a>, &mut [Meta]) {
        let (frames, metas, _) = self.all_parts();
        (frames, metas)
    }

    /// Returns also the networks by which the frames leave.
    #[inline(always)]
    pub fn all_parts(&mut self) -> (&mut Frames<'a>, &mut [Meta], Exits<'_>) {
        let len = self.frames.len();
        let exits = Exits { crossed: self.crossed, hops: &self.metas.hops };
        (&mut self.frames, self.metas.each.get_mut(..len).unwrap_or_default(), exits)
    }
}
