//! Packets that wait for their next hop: a router of this host asks for its machine.
//!
//! A packet is copied and waits until the machine answered, or did not. Then it goes all stages as
//! if it had just come, but it is not counted again. The thread that looks for neighbours tells the
//! workers when there is news. What finds no place is dropped: machines send it again.

use std::collections::VecDeque;

use butterfly_packet::udp;
use butterfly_vhost::{net::NetHeader, ring::Finish};

use super::copies::{LONGEST, copy};
use crate::engine::{
    batch::{Batch, BatchOrigin, Consumed, Verdict},
    place::PortRef,
};
use crate::stages::{asks::NEXT_HOP_LIMIT, context::Context, route::next_hop_of};
use crate::world::asking::{AskPlace, Asking};

/// Most packets that wait, of all senders, of one, and for one address.
const PACKETS: usize = 128;
const PER_SENDER: usize = 8;
const PER_ADDRESS: usize = 16;

/// A packet that waits.
pub(super) struct PennedHop {
    /// The vnic that sent it.
    pub(super) from: PortRef,
    /// Its next hop.
    to: AskPlace,
    /// The wait is over.
    due: bool,
    pub(super) frame: Vec<u8>,
}

/// The packets that wait at a worker, in the order in which they came.
pub(super) struct HopPen {
    packets: VecDeque<PennedHop>,
    /// Buffers for more.
    spare: Vec<Vec<u8>>,
}

impl HopPen {
    /// Allocates all that it will ever need; pages are touched when they are used.
    pub fn new() -> HopPen {
        HopPen {
            packets: VecDeque::with_capacity(PACKETS),
            spare: (0..PACKETS).map(|_| Vec::with_capacity(LONGEST)).collect(),
        }
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns whether a packet's wait is over.
    pub fn is_due(&self) -> bool {
        self.packets.iter().any(|packet| packet.due)
    }

    /// Copies the packets of a batch that are to wait. Drops those for which there is no place, and
    /// those that waited already.
    #[cold]
    #[inline(never)]
    pub fn take(&mut self, batch: &mut Batch<'_>, context: &Context<'_>) {
        let once = batch.origin == BatchOrigin::Port;
        for index in 0..batch.frames.len() {
            let waits = |verdict| verdict == Verdict::Consumed(Consumed::Waits);
            if !batch.metas().get(index).is_some_and(|meta| waits(meta.verdict)) {
                continue;
            }
            let taken = once && self.take_one(batch, index, context).is_some();
            let drop = Verdict::Drop(NEXT_HOP_LIMIT, context.sender.place.slot);
            if let Some(meta) = batch.parts().1.get_mut(index) {
                meta.verdict = if taken { Verdict::Later } else { drop };
            }
        }
    }

    fn take_one(
        &mut self,
        batch: &mut Batch<'_>,
        index: usize,
        context: &Context<'_>,
    ) -> Option<()> {
        let from = context.sender.place;
        let meta = *batch.metas().get(index)?;
        let to = next_hop_of(batch, index, context)?;
        let own = self.packets.iter().filter(|packet| packet.from == from).count();
        if own >= PER_SENDER {
            return None;
        }
        let is_full = |pen: &HopPen| {
            pen.packets.iter().filter(|packet| packet.to == to).count() >= PER_ADDRESS
        };
        let at_address = is_full(self).then_some(to);
        if at_address.is_some() || self.spare.is_empty() {
            self.make_room(own, at_address, context);
        }
        let has_room = !is_full(self);
        // The next guest may not take what this one left to others, so the sum is made here.
        let frame = batch.frames.frames().get(index)?;
        let is_partial = frame.offload && frame.net.flags & NetHeader::FLAG_NEEDS_CSUM != 0;
        let whole = !frame.offload || frame.net.gso_type == NetHeader::GSO_NONE;
        let mut frame = if has_room && whole { self.spare.pop()? } else { return None };
        if !copy(&batch.frames, index, &mut frame) {
            self.spare.push(frame);
            return None;
        }
        if is_partial {
            let start = meta.net.csum_start;
            let is_udp = meta.net.csum_offset == udp::CHECKSUM_OFFSET as u16;
            let field = start.saturating_add(meta.net.csum_offset);
            let finish = Finish::Checksum { start, field, udp: is_udp };
            finish.complete(&mut frame, Default::default());
        }
        self.packets.push_back(PennedHop { from, to, due: false, frame });
        Some(())
    }

    /// Drops the newest packet of the sender with most, of those that wait for an address or of
    /// all, for a sender that has `own`. Does so only if that sender has at least two more.
    fn make_room(&mut self, own: usize, to: Option<AskPlace>, context: &Context<'_>) {
        // One look for all senders, as this runs for every packet that finds all places taken.
        let mut counts = [(0, None::<PortRef>); PACKETS];
        for packet in &self.packets {
            if let Some(count) =
                counts.iter_mut().find(|it| it.1.is_none_or(|it| it == packet.from))
            {
                *count = (count.0 + 1, Some(packet.from));
            }
        }
        let is_one = |packet: &PennedHop| !packet.due && to.is_none_or(|to| packet.to == to);
        let waits = |from| self.packets.iter().any(|packet| packet.from == from && is_one(packet));
        let beyond = counts.iter().filter(|(count, _)| *count >= own + 2);
        let senders = beyond.filter_map(|(count, from)| Some((*count, (*from)?)));
        let most = senders.filter(|(_, from)| waits(*from)).max_by_key(|(count, _)| *count);
        let Some((_, from)) = most else { return };
        let newest = self.packets.iter().rposition(|it| it.from == from && is_one(it));
        let Some(packet) = newest.and_then(|at| self.packets.remove(at)) else { return };
        if let Some(sender) = context.snapshot.vnic(packet.from) {
            context.count_own(sender, NEXT_HOP_LIMIT, &packet.frame);
        }
        self.spare.push(packet.frame); // within its capacity
    }

    /// Looks whose next hop is not asked for any more: it is known by now, or stays unknown.
    #[cold]
    pub fn look(&mut self, asking: &Asking) {
        for packet in &mut self.packets {
            packet.due = packet.due || !asking.is_asked(packet.to);
        }
    }

    /// Ends all waits.
    pub fn end_waits(&mut self) {
        self.packets.iter_mut().for_each(|packet| packet.due = true);
    }

    /// Takes the first packet whose wait is over out of its place.
    pub fn next_due(&mut self) -> Option<PennedHop> {
        let at = self.packets.iter().position(|packet| packet.due)?;
        self.packets.remove(at)
    }

    /// Forgets a packet.
    pub fn end(&mut self, packet: PennedHop) {
        self.spare.push(packet.frame); // within its capacity
    }
}
