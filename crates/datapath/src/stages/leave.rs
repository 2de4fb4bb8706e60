//! Departure: puts the outer header in front of frames that go to other hosts. A frame leaves
//! complete: checksums are finished, and segments are cut, on the way from the guest's memory to
//! the wire.

use std::{net::IpAddr, sync::atomic::Ordering::Relaxed};

use arrayvec::ArrayVec;
use butterfly_packet::{checksum::Sum, mac::Mac};
use butterfly_uplink::BURST;
use butterfly_vhost::{
    net::NetHeader,
    ring::{Delivery, FIELDS, Finish, Frames, HEAD_MAX, NotDelivered, OUTER_MAX, RxRing},
};

use crate::engine::place::PeerRef;
use crate::engine::{
    batch::{Batch, Meta, Verdict},
    counters::Counter,
    reason::DropReason,
};
use crate::ip::MALFORMED_IP;
use crate::overlay::{
    NO_NEIGHBOUR, Punted, TOO_BIG, Tunnel, UPLINK_DOWN, UPLINK_FULL,
    outer::{Outer, source_port},
    peers::PeerCounter,
};
use crate::stages::ways::{Way, next_way};
use crate::stages::{
    context::Context,
    cuts::{self, CutPacket},
    segment::Segments,
    turn::Turn,
};
use crate::stages::{
    leaving::{Held, Leaving},
    outlet::{Outlet, Receive},
};
use crate::world::snapshot::Vnic;

/// Most answers to the frames of one batch, without those of DHCP.
pub(crate) const ANSWERS: usize = 16;
/// Longest answer in bytes: an Ethernet frame of the usual size.
pub(crate) const ANSWER: usize = 1514;
/// Longest answer that says what became of a packet: it need not quote more.
pub(crate) const ERROR: usize = 320;
/// Identifications that a worker takes at once from those of all.
const IDENTIFICATIONS: u16 = 64;
/// Most answers to a vnic per second.
pub(crate) const ANSWERS_PER_SECOND: u32 = 100;

/// Answers to the frames of one batch that are kept for DHCP: a machine that pings its gateway
/// without end still renews its lease.
const FOR_LEASES: usize = 4;

/// A frame that answers the sender.
pub(crate) type Answer = ArrayVec<u8, ANSWER>;
/// Answers to the frames of one batch.
pub(crate) type Answers = ArrayVec<Answer, { ANSWERS + FOR_LEASES }>;

/// A worker's room for departures.
pub(crate) struct Departures {
    /// Identification of the next outer IPv4 packet; a multiple of [`IDENTIFICATIONS`] if the block
    /// is used up.
    identification: u16,
    /// Room for a packet that has an outer checksum over all of it.
    scratch: Box<[u8]>,
    /// Halves of the uplink, a bit for each, that have taken frames and not passed on all, so that
    /// they must be looked at again.
    pub pending: u32,
    /// Answers for the sender of the batch.
    pub answers: Box<Answers>,
}

impl Default for Departures {
    fn default() -> Self {
        Departures {
            identification: 0,
            pending: 0,
            scratch: vec![0; 0x1_0100].into(),
            answers: Box::default(),
        }
    }
}

/// Destination of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Peer(PeerRef),
    Group,
}

/// The bytes of one frame as they leave.
struct Parts<'a> {
    head: &'a [u8],
    from: u32,
    len: u32,
    finish: Finish,
}

/// Sends the frames for other hosts. The other side sees them when the result is published.
#[inline(never)] // one call per batch; measurements tell stages apart by it
pub(crate) fn leave<'a, O: Outlet>(
    batch: &Batch<'_>,
    context: &Context<'a>,
    tunnel: &'a Tunnel,
    departures: &mut Departures,
    turn: &Turn,
    outlet: &'a O,
) -> Leaving<'a> {
    context.sender.shared.serving.leaves(context.clock.tenths());
    let mut leaving = outlet.uplink(tunnel);
    if let Leaving::Ring(ring) = &mut leaving
        && let Some(ring) = ring.as_mut()
    {
        ring.prepare(batch.frames.len() as u16);
    }
    if let Some(tap) = context.tap().filter(crate::engine::tap::Tap::wants_outer) {
        leaving = leaving.tapped(tap);
    }
    let mut sending = Sending {
        tunnel,
        context,
        vni: 0,
        trunk: None,
        departures,
        outlet,
        current: None,
        queued: 0,
        packets: 0,
        bytes: 0,
        to: None,
    };
    if batch.exits().any() {
        let mut left = None;
        while let Some(way) = next_way(&mut left, batch.exits(), context) {
            sending.along(&mut leaving, batch, way, turn);
        }
    } else {
        let way = Way { exit: context.entry, has: |_| true };
        sending.along(&mut leaving, batch, way, turn);
    }
    leaving
}

impl<'a, 'c, O: Outlet> Sending<'a, 'c, O> {
    /// Sends the frames that leave by one network.
    #[inline(always)]
    fn along(
        &mut self,
        leaving: &mut Leaving<'_>,
        batch: &Batch<'_>,
        way: Way<'a, impl Fn(usize) -> bool>,
        turn: &Turn,
    ) {
        let Some(remote) = &way.exit.remote else { return };
        self.trunk = self.context.snapshot.vnics.get(remote.slot).map(|vnic| &**vnic);
        self.vni = way.exit.vni;
        self.current = None;
        let sending = self;
        let hosts = turn.hosts(way.exit.members.len(), remote.peers.len().max(1));
        for (index, meta) in batch.metas().iter().enumerate().filter(|(index, _)| (way.has)(*index))
        {
            match meta.verdict {
                Verdict::Flood { .. } if hosts.is_empty() => {}
                Verdict::Tunnel(peer) => {
                    sending.frame(leaving, &batch.frames, index, meta, To::Peer(peer));
                }
                Verdict::Flood { .. } if remote.peers.is_empty() => {
                    sending.frame(leaving, &batch.frames, index, meta, To::Group);
                }
                // A frame too big for one host is too big for all: that is one drop and one answer.
                Verdict::Flood { .. } => {
                    let mut to = remote.peers.get(hosts.clone()).unwrap_or_default().iter();
                    while to.next().is_some_and(|peer| {
                        sending.frame(leaving, &batch.frames, index, meta, To::Peer(*peer))
                    }) {}
                }
                _ => {}
            }
        }
        sending.count();
        sending.to = None;
    }
}

struct Sending<'a, 'c, O> {
    tunnel: &'a Tunnel,
    context: &'c Context<'a>,
    /// The network by which frames leave now, and its trunk.
    vni: u32,
    trunk: Option<&'a Vnic>,
    departures: &'c mut Departures,
    outlet: &'c O,
    /// The header of the last frame: the next one probably has the same.
    current: Option<(To, Outer)>,
    /// Packets since the wire was flushed.
    queued: usize,
    /// Packets sent to the last destination, not counted yet.
    packets: u64,
    bytes: u64,
    to: Option<To>,
}

impl<O: Outlet> Sending<'_, '_, O> {
    /// Sends one frame to one destination. Returns whether it fits the uplink.
    #[inline(always)]
    fn frame(
        &mut self,
        leaving: &mut Leaving<'_>,
        frames: &Frames<'_>,
        index: usize,
        meta: &Meta,
        to: To,
    ) -> bool {
        let len = frames.frames().get(index).map_or(0, |frame| frame.len);
        let packet = match meta.net.gso_size {
            size if meta.offload && size > 0 => u32::from(meta.payload) + u32::from(size),
            _ => len,
        };
        if packet > self.tunnel.largest() && !self.is_cut(meta) {
            self.too_big(frames, index, to);
            return false;
        }
        if self.current.as_ref().is_none_or(|(last, _)| *last != to) {
            self.current = self.header(to).map(|outer| (to, outer));
        }
        let outcome = if self.current.is_some() {
            self.send(leaving, frames, index, meta, len)
        } else {
            self.wait(frames, index, meta, len, to)
        };
        match outcome {
            Ok((packets, bytes)) => {
                if self.to != Some(to) {
                    self.count();
                    self.to = Some(to);
                }
                self.packets += packets;
                self.bytes += bytes;
            }
            Err(reason) => self.refuse(reason, to, frames, index),
        }
        true
    }

    /// Returns whether a router cuts a frame into packets that fit the uplink.
    #[cold]
    fn is_cut(&self, meta: &Meta) -> bool {
        let longest = u32::from(meta.l3) + u32::from(meta.cut.most);
        meta.offload && meta.cut.is_some() && longest <= self.tunnel.largest()
    }

    /// Counts the packets sent to one destination.
    #[inline(never)]
    fn count(&mut self) {
        let (packets, bytes) = (std::mem::take(&mut self.packets), std::mem::take(&mut self.bytes));
        let Some(to) = self.to.filter(|_| packets > 0) else { return };
        self.count_peer(to, PeerCounter::OutPackets, packets);
        self.count_peer(to, PeerCounter::OutBytes, bytes);
        if let Some(cells) =
            self.trunk.and_then(|trunk| trunk.shared.counters.of(self.context.worker))
        {
            cells.add(Counter::OutPackets, packets);
            cells.add(Counter::OutBytes, bytes);
        }
    }

    fn count_peer(&self, to: To, counter: PeerCounter, n: u64) {
        if let To::Peer(at) = to
            && O::SENDS
            && let Some(peer) = self.tunnel.peers.get(at)
        {
            peer.count(self.context.worker, counter, n);
        }
    }

    /// Drops a frame, and charges the network: it is no vnic's fault.
    #[cold]
    fn refuse(&self, reason: DropReason, to: To, frames: &Frames<'_>, index: usize) {
        self.count_peer(to, PeerCounter::Drops, 1);
        if let Some(tap) = self.context.tap() {
            tap.not_sent(index, reason);
        }
        let sender = self.context.sender;
        // A packet that cannot be cut is its sender's fault.
        let charged = if reason == MALFORMED_IP { Some(sender) } else { self.trunk };
        if let Some(charged) = charged {
            self.context.count_drop(charged, reason, frames, index);
        }
        self.outlet.not_sent(reason, charged.unwrap_or(sender).place.slot);
    }

    /// Returns the outer header for a destination; `None` if the next hop is not known.
    fn header(&self, to: To) -> Option<Outer> {
        self.outer(self.target(to)?)
    }

    /// Returns the outer header with these addresses. What came from another host is passed on.
    fn outer(&self, to: (Mac, IpAddr)) -> Option<Outer> {
        let make = if self.context.sender.is_trunk() { Outer::passed_on } else { Outer::new };
        make(&self.tunnel.source, to, self.vni)
    }

    /// Returns link and IP address of a destination; `None` if the next hop is not known.
    fn target(&self, to: To) -> Option<(Mac, IpAddr)> {
        match to {
            To::Group => Some(self.tunnel.groups.of(self.vni)),
            To::Peer(at) => {
                let peer = self.tunnel.peers.get(at)?;
                Some((peer.mac()?, crate::world::rules::address(peer.address())))
            }
        }
    }

    fn next_identification(&mut self) -> u16 {
        // Workers share the numbers in blocks.
        if self.departures.identification.is_multiple_of(IDENTIFICATIONS) {
            let block = self.tunnel.identifications.fetch_add(IDENTIFICATIONS, Relaxed);
            self.departures.identification = block;
        }
        let next = self.departures.identification;
        self.departures.identification = next.wrapping_add(1);
        next
    }

    /// Sends one frame, in segments if needed. Returns the number of packets, and their inner
    /// bytes.
    #[inline(always)]
    fn send(
        &mut self,
        leaving: &mut Leaving<'_>,
        frames: &Frames<'_>,
        index: usize,
        meta: &Meta,
        len: u32,
    ) -> Result<(u64, u64), DropReason> {
        let head = frames.head(index);
        let port = source_port(head);
        let id = self.next_identification();
        let Some((_, outer)) = &self.current else { return Err(NO_NEIGHBOUR) };
        if let Leaving::Ring(ring) = leaving
            && !meta.offload
            && !outer.owes_checksum()
        {
            let ring = ring.as_mut().ok_or(UPLINK_DOWN)?;
            ring.deliver_behind(frames, index, outer.front(), outer.fields(len, port, id))
                .map_err(not_sent)?;
            return Ok((1, len.into()));
        }
        self.send_completed(leaving, frames, index, meta, len, port)
    }

    #[inline(never)]
    fn send_completed(
        &mut self,
        leaving: &mut Leaving<'_>,
        frames: &Frames<'_>,
        index: usize,
        meta: &Meta,
        len: u32,
        port: u16,
    ) -> Result<(u64, u64), DropReason> {
        if meta.offload && meta.cut.is_some() {
            return self.send_cut(leaving, frames, (index, meta), port);
        }
        let head = frames.head(index);
        let whole = whole(head, meta, len);
        if !meta.offload || meta.net.gso_type == NetHeader::GSO_NONE {
            self.packet(leaving, frames, index, &whole, port)?;
            return Ok((1, len.into()));
        }
        let mut segments = Segments::new(meta, head, len);
        let (mut packets, mut bytes) = (0, 0);
        while let Some(segment) = segments.next() {
            let parts = Parts {
                head: segment.head,
                from: segment.from,
                len: segment.len,
                finish: whole.finish,
            };
            if let Err(reason) = self.packet(leaving, frames, index, &parts, port) {
                // When one segment does not fit, the next ones will not either: the frame is one
                // drop, and those before it were sent.
                match self.current {
                    Some((to, _)) if packets > 0 => self.refuse(reason, to, frames, index),
                    _ => return Err(reason),
                }
                break;
            }
            packets += 1;
            bytes += segment.head.len() as u64 + u64::from(segment.len);
        }
        Ok((packets, bytes))
    }

    /// Sends a frame in the fragments into which a router cuts it. All have the outer port of the
    /// whole, so that they stay in order.
    #[cold]
    #[inline(never)]
    fn send_cut(
        &mut self,
        leaving: &mut Leaving<'_>,
        frames: &Frames<'_>,
        (index, meta): (usize, &Meta),
        port: u16,
    ) -> Result<(u64, u64), DropReason> {
        // All of them, if it can be seen that there is room: without one the others are worth
        // nothing, and the receiver would keep them for long. A wire does not tell.
        if let Leaving::Ring(ring) | Leaving::Tapped(Held::Ring(ring), _) = leaving
            && let Some(ring) = ring.as_ref()
            && ring.offered().is_some_and(|free| free < meta.cut.packets)
        {
            return Err(UPLINK_FULL);
        }
        let (mut packets, mut bytes) = (0, 0);
        let sent =
            cuts::each(frames, (index, meta), MALFORMED_IP, |CutPacket { head, from, len }| {
                let parts = Parts { head, from, len, finish: Finish::Nothing };
                self.packet(leaving, frames, index, &parts, port)?;
                packets += 1;
                bytes += head.len() as u64 + u64::from(len);
                Ok(())
            });
        match (sent, self.current) {
            (Err(reason), Some((to, _))) if packets > 0 => self.refuse(reason, to, frames, index),
            (sent, _) => sent?,
        }
        Ok((packets, bytes))
    }

    fn packet(
        &mut self,
        leaving: &mut Leaving<'_>,
        frames: &Frames<'_>,
        index: usize,
        parts: &Parts<'_>,
        port: u16,
    ) -> Result<(), DropReason> {
        let id = self.next_identification();
        let Some((to, outer)) = &self.current else { return Err(NO_NEIGHBOUR) };
        if !O::SENDS {
            let (_, address) = self.target(*to).ok_or(NO_NEIGHBOUR)?;
            return self.outlet.would_leave(address, *to == To::Group);
        }
        let fields = outer.fields(parts.head.len() as u32 + parts.len, port, id);
        let total = outer.front().len() + parts.head.len() + parts.len as usize;
        match leaving {
            Leaving::Nothing => Err(UPLINK_DOWN),
            Leaving::Tapped(way, tap) => {
                // Put together first, so that the tap sees the bytes that leave.
                let packet = self.departures.scratch.get_mut(..total).ok_or(TOO_BIG)?;
                assemble(packet, outer, fields, frames, index, parts).ok_or(UPLINK_DOWN)?;
                match way {
                    Held::Ring(ring) => {
                        ring.as_mut().ok_or(UPLINK_DOWN)?.deliver_own(packet).map_err(not_sent)?
                    }
                    Held::Wire(wire) => {
                        if self.queued >= BURST {
                            self.queued = 0;
                            wire.flush();
                        }
                        wire.room(total).ok_or(UPLINK_FULL)?.copy_from_slice(packet);
                        wire.send();
                        self.queued += 1;
                    }
                }
                tap.left(packet);
                Ok(())
            }
            Leaving::Wire(wire) => {
                // There are more packets than frames, because of segments and copies. A batch that
                // fills the smallest queue goes on at once, to make room.
                if self.queued >= BURST {
                    self.queued = 0;
                    wire.flush();
                }
                let room = wire.room(total).ok_or(UPLINK_FULL)?;
                assemble(room, outer, fields, frames, index, parts).ok_or(UPLINK_DOWN)?;
                wire.send();
                self.queued += 1;
                Ok(())
            }
            Leaving::Ring(ring) => {
                let ring = ring.as_mut().ok_or(UPLINK_DOWN)?;
                if outer.owes_checksum() {
                    let room = self.departures.scratch.get_mut(..total).ok_or(TOO_BIG)?;
                    assemble(room, outer, fields, frames, index, parts).ok_or(UPLINK_DOWN)?;
                    ring.deliver_own(room).map_err(not_sent)
                } else {
                    into_ring(ring, &outer.bytes(fields), frames, index, parts)
                }
            }
        }
    }

    /// Keeps one frame that waits for its next hop; drops others.
    #[cold]
    fn wait(
        &mut self,
        frames: &Frames<'_>,
        index: usize,
        meta: &Meta,
        len: u32,
        to: To,
    ) -> Result<(u64, u64), DropReason> {
        let To::Peer(at) = to else { return Err(NO_NEIGHBOUR) };
        let peer = self.tunnel.peers.get(at).ok_or(NO_NEIGHBOUR)?;
        // A frame that is to be cut is not kept: its sender will repeat it. It does not take the
        // place of a frame that is kept. Without what is behind it a packet may be whole.
        let is_cut = meta.offload && meta.cut.is_some();
        let is_one = meta.net.gso_type == NetHeader::GSO_NONE && (!is_cut || meta.cut.packets == 1);
        let keep = !meta.offload || is_one;
        let address = crate::world::rules::address(peer.address());
        if let Some(said) = self.outlet.waits(peer, address, keep) {
            return said.map(|()| (1, len.into()));
        }
        if !(if keep { peer.may_wait() } else { peer.may_ask() }) {
            return Err(NO_NEIGHBOUR);
        }
        let target = (Mac::ZERO, crate::world::rules::address(peer.address()));
        let outer = self.outer(target).ok_or(NO_NEIGHBOUR)?;
        let head = frames.head(index);
        let len = if is_cut { cuts::len_of_packet(head, meta, len) } else { len };
        let head = head.get(..head.len().min(len as usize)).unwrap_or_default();
        let mut parts = whole(head, meta, len);
        if meta.net.flags & NetHeader::FLAG_NEEDS_CSUM == 0 {
            parts.finish = Finish::Nothing; // it only loses what is behind it
        }
        let fields = outer.fields(len, source_port(head), self.next_identification());
        let total = if keep { outer.front().len() + len as usize } else { 0 };
        let put = self.tunnel.punt.put(Punted::Waiting(at), total, |room| {
            room.is_empty() || assemble(room, &outer, fields, frames, index, &parts).is_some()
        });
        if !put {
            peer.stop_waiting();
        }
        if put && keep { Ok((1, len.into())) } else { Err(NO_NEIGHBOUR) }
    }

    #[cold]
    fn too_big(&mut self, frames: &Frames<'_>, index: usize, to: To) {
        let sender = self.context.sender;
        self.count_peer(to, PeerCounter::Drops, 1);
        self.context.count_drop(sender, TOO_BIG, frames, index);
        self.outlet.not_sent(TOO_BIG, sender.place.slot);
        if let Some(tap) = self.context.tap() {
            tap.too_big(index, TOO_BIG);
        }
        let answers = &mut self.departures.answers;
        let pace = &sender.shared.answered;
        let now = self.context.now;
        if answers.len() >= ANSWERS || pace.left(now, ANSWERS_PER_SECOND, ANSWERS_PER_SECOND) == 0 {
            return;
        }
        let mtu = self.tunnel.inner_mtu();
        let mut answer = [0u8; ERROR];
        if let Some(len) =
            butterfly_packet::icmp_error::too_big(frames.head(index), mtu, &mut answer)
            && let Some(bytes) = answer.get(..len)
        {
            let mut kept = Answer::new();
            if kept.try_extend_from_slice(bytes).is_ok() && answers.try_push(kept).is_ok() {
                // Only now: a frame without an answer takes no token.
                pace.take(now, ANSWERS_PER_SECOND, ANSWERS_PER_SECOND);
            }
        }
    }
}

fn whole<'a>(head: &'a [u8], meta: &Meta, len: u32) -> Parts<'a> {
    let finish = if meta.offload {
        Finish::Checksum {
            start: meta.net.csum_start,
            field: meta.net.csum_start + meta.net.csum_offset,
            udp: meta.net.csum_offset == butterfly_packet::udp::CHECKSUM_OFFSET as u16,
        }
    } else {
        Finish::Nothing
    };
    let from = head.len() as u32;
    Parts { head, from, len: len.saturating_sub(from), finish }
}

/// Writes a packet into private memory of exactly its length.
fn assemble(
    room: &mut [u8],
    outer: &Outer,
    fields: [u16; FIELDS],
    frames: &Frames<'_>,
    index: usize,
    parts: &Parts<'_>,
) -> Option<()> {
    let (header, inner) = room.split_at_mut_checked(outer.front().len())?;
    header.copy_from_slice(&outer.bytes(fields));
    let (head, rest) = inner.split_at_mut_checked(parts.head.len())?;
    head.copy_from_slice(parts.head);
    let mut sum = Sum::EMPTY;
    let wanted = (parts.finish != Finish::Nothing).then_some(&mut sum);
    if !frames.copy_to(index, parts.from, rest, wanted) {
        return None;
    }
    parts.finish.complete(head, sum);
    if outer.owes_checksum() {
        outer.finish(room);
    }
    Some(())
}

/// Writes a packet into a ring.
fn into_ring(
    ring: &mut RxRing,
    outer: &[u8],
    frames: &Frames<'_>,
    index: usize,
    parts: &Parts<'_>,
) -> Result<(), DropReason> {
    let mut head = [0u8; OUTER_MAX + HEAD_MAX];
    let both = head.get_mut(..outer.len() + parts.head.len()).ok_or(TOO_BIG)?;
    let (front, back) = both.split_at_mut_checked(outer.len()).ok_or(TOO_BIG)?;
    front.copy_from_slice(outer);
    back.copy_from_slice(parts.head);
    let finish = match parts.finish {
        Finish::Nothing => Finish::Nothing,
        Finish::Checksum { start, field, udp } => Finish::Checksum {
            start: start + outer.len() as u16,
            field: field + outer.len() as u16,
            udp,
        },
    };
    let delivery = Delivery {
        net: NetHeader::default(),
        head: both,
        frame: index,
        from: parts.from,
        len: parts.len,
        finish,
    };
    ring.deliver(frames, &delivery).map_err(not_sent)
}

/// Returns the reason for which a vhost-user uplink did not take a frame.
pub(crate) fn not_sent(why: NotDelivered) -> DropReason {
    match why {
        NotDelivered::Full | NotDelivered::Slow | NotDelivered::Resting => UPLINK_FULL,
        NotDelivered::TooLarge => TOO_BIG,
        NotDelivered::NotReady | NotDelivered::Held | NotDelivered::BadChain => UPLINK_DOWN,
    }
}
