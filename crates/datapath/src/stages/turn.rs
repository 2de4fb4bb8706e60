//! Turn: bounds the work of one turn of a worker, for which all other rings wait.
//!
//! A turn is one batch of one ring. Gathering bounds the frames taken from the sender; this bounds
//! the work with them, over all receivers together. The unit is a copy of a small frame into a ring
//! that is at hand, some 100 ns. Frames that do not fit stay in their ring and open the next turn;
//! a flood that does not fit by itself goes to some of its receivers in each turn.
//!
//! The cut comes before the filter: no frame is judged, counted or traced before its turn.

use std::ops::Range;

use butterfly_vhost::net::NetHeader;

use crate::engine::budget::Budget;
use crate::engine::{
    batch::{Batch, BatchOrigin, Exits, Meta, Verdict},
    reason::ReasonInfo,
    reserved::is_host,
};
use crate::stages::{
    context::Context,
    forward::keep_from_routers,
    stage::{Stage, StageConfig},
};
use crate::world::snapshot::Network;

/// Copies that a visit counts as: its lines are in no cache.
const VISIT: u64 = 4;
/// Copies that a segment counts as: its headers are rewritten, its payload is summed, and the
/// receiver's lines are cold.
const SEGMENT: u64 = 4;
/// Bytes that count as one copy.
const BYTES: u32 = 2048;
/// Pieces of the sender's memory that count as one copy.
const PIECES: u64 = 8;
/// Pieces that count as one copy for a segment, which looks for its payload among them.
const PIECES_OF_SEGMENT: u64 = 64;

/// Part of a batch that one turn carries out.
pub(crate) struct Turn {
    /// Receivers of floods, by position: the members of the network, then its other hosts.
    pub receivers: Range<usize>,
    /// True if other receivers of the only frame, a flood, are left for the next turn.
    pub part: bool,
    /// True if floods of another host are left for a turn of their own: [`Verdict::Later`].
    pub later: bool,
}

impl Turn {
    /// A turn that carries out everything.
    pub const WHOLE: Turn = Turn { receivers: 0..usize::MAX, part: false, later: false };

    /// Returns whether this is the first turn of its floods.
    pub fn is_first(&self) -> bool {
        self.receivers.start == 0
    }

    /// Returns the number of this turn's receivers, of `all`.
    pub fn share(&self, all: usize) -> usize {
        self.receivers.end.min(all) - self.receivers.start.min(all)
    }

    /// Returns the receivers that are vnics here.
    pub fn members<'a>(&self, members: &'a [u32]) -> &'a [u32] {
        let end = self.receivers.end.min(members.len());
        members.get(self.receivers.start.min(end)..end).unwrap_or_default()
    }

    /// Returns the receivers that are other hosts, of `hosts`, which come behind `members` vnics.
    pub fn hosts(&self, members: usize, hosts: usize) -> Range<usize> {
        let end = self.receivers.end.saturating_sub(members).min(hosts);
        self.receivers.start.saturating_sub(members).min(end)..end
    }
}

/// Returns the number of segments or fragments that a frame may have to be cut into.
fn segments(meta: &Meta, len: u32) -> u64 {
    match meta.net.gso_size {
        _ if meta.offload && meta.cut.is_some() => meta.cut.packets.into(),
        size if meta.offload && size > 0 => {
            u64::from(len.saturating_sub(meta.payload.into()).div_ceil(size.into()))
        }
        _ => 0,
    }
}

/// Returns the number of packets that a frame counts as: its segments, if it has several.
pub(crate) fn packets(meta: &Meta, len: u32) -> u64 {
    segments(meta, len).max(1)
}

/// Returns the number of copies that one copy of this frame, in so many pieces, counts as. A
/// receiver may need it cut into segments.
pub(crate) fn weight(meta: &Meta, len: u32, pieces: u32) -> u64 {
    let pieces = u64::from(pieces);
    let cut = segments(meta, len) * (SEGMENT + pieces / PIECES_OF_SEGMENT);
    1 + cut.max(u64::from(len / BYTES) + pieces / PIECES)
}

/// Returns the number of a network's vnics that floods are for, and that of all receivers.
fn flooded_to(exit: &Network, context: &Context<'_>) -> (u64, usize) {
    let (members, remote) = (exit.members.len(), context.remote_of(exit));
    (members as u64, members + remote.map_or(0, |remote| remote.peers.len().max(1)))
}

/// Cuts a batch to the work of one turn.
pub(crate) struct Cut;

/// Scratch of the turn.
pub(crate) struct CutScratch {
    /// Number of receivers that have the first frame already, if that is a flood.
    pub from: usize,
    /// True if the batch had to be looked at.
    looked: bool,
    /// Part of it that was carried out then.
    turn: Turn,
}

impl CutScratch {
    /// Returns the part of the batch that this turn carries out.
    pub fn turn(&self) -> &Turn {
        if self.looked { &self.turn } else { &WHOLE }
    }
}

static WHOLE: Turn = Turn::WHOLE;

impl Stage for Cut {
    const NAME: &'static str = "turn";
    const REASONS: &'static [ReasonInfo] = &[];
    type Scratch = CutScratch;

    fn scratch(_: &StageConfig<'_>) -> CutScratch {
        CutScratch { from: 0, looked: false, turn: Turn::WHOLE }
    }

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, scratch: &mut CutScratch) {
        // Plain frames with one receiver always fit.
        scratch.looked = batch.segments || batch.floods || context.watched.is_some();
        if scratch.looked {
            scratch.turn = turn(batch, context, scratch.from);
        }
    }
}

/// Cuts a batch to the work of one turn. `from` is the number of receivers that have its first
/// frame already, if that is a flood.
///
/// Frames from other hosts cannot be put back: of those that do not fit, floods are for later.
#[inline(never)]
fn turn(batch: &mut Batch<'_>, context: &Context<'_>, from: usize) -> Turn {
    // Without a tunnel there is no other host.
    let is_odd = |meta: &Meta| is_host(meta.destination);
    let may_be = batch.floods && context.tunnel.is_some() && !context.sender.is_trunk();
    if may_be && batch.metas().iter().any(is_odd) {
        keep_from_routers(batch, context);
    }
    if batch.exits().any() {
        return turn_of_crossing(batch, context, from);
    }
    let here = flooded_to(context.entry, context);
    cut(batch, context, from, |_, _| here)
}

#[cold]
#[inline(never)]
fn turn_of_crossing(batch: &mut Batch<'_>, context: &Context<'_>, from: usize) -> Turn {
    cut(batch, context, from, |exits, index| flooded_to(context.exit(exits, index), context))
}

/// Cuts a batch. `floods_to` returns how many a frame is for, if it is a flood.
#[inline(always)]
fn cut(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    from: usize,
    floods_to: impl Fn(Exits<'_>, usize) -> (u64, usize),
) -> Turn {
    let trunk = context.sender.is_trunk() && batch.origin == BatchOrigin::Port;
    let mirrors =
        |slot: u32| context.watched.map_or(0, |watched| watched.mirrors_of(slot).len()) as u64;
    let all_mirrors = context.watched.map_or(0, |watched| watched.mirrors()) as u64;
    let own_mirrors = mirrors(context.sender.place.slot);
    let Budget { mut copies, mut visits } = context.budget.get();
    let mut room = context.room.get();
    let (mut flooded, mut later) = (false, false);
    let mut last = None;
    let mut taken = 0;
    let (frames, metas, exits) = batch.all_parts();
    for (index, (meta, frame)) in metas.iter_mut().zip(frames.frames()).enumerate() {
        // The first one had room before the batch began.
        if let Some(room) = &mut room
            && !room.take(packets(meta, frame.len), frame.len.into())
        {
            break;
        }
        let (cost, rings, flood) = match meta.verdict {
            Verdict::Drop(..) => (0, 0, false),
            Verdict::Flood { .. } => {
                let (members, all) = floods_to(exits, index);
                let rings = if flooded { 0 } else { members + all_mirrors };
                (
                    rings * VISIT
                        + (all as u64 + all_mirrors) * weight(meta, frame.len, frame.pieces()),
                    rings,
                    true,
                )
            }
            // Frames for the same receiver visit its ring once.
            verdict => {
                let copied = if let Verdict::Deliver(slot) = verdict { mirrors(slot) } else { 0 };
                let rings = if last == Some(verdict) { 0 } else { 1 + copied };
                last = Some(verdict);
                (
                    unicast(meta, frame.len, frame.pieces()) * (1 + own_mirrors + copied),
                    rings,
                    false,
                )
            }
        };
        let fits = cost <= copies && rings <= visits;
        if taken == 0 && flood && !trunk && (!fits || from > 0) {
            let (_, all) = floods_to(exits, index);
            let each = VISIT + weight(meta, frame.len, frame.pieces());
            let now = (copies / each).clamp(1, visits.max(1));
            let end = from.saturating_add(now as usize);
            batch.frames.truncate(1);
            context.budget.set(Budget {
                copies: copies.saturating_sub(now * each),
                visits: visits.saturating_sub(now),
            });
            return Turn { receivers: from..end, part: end < all, later: false };
        }
        if !fits && trunk && flood {
            meta.verdict = Verdict::Later;
            later = true;
        } else if !fits && !trunk && taken > 0 {
            break;
        } else {
            copies = copies.saturating_sub(cost);
            visits = visits.saturating_sub(rings);
            flooded |= flood;
        }
        taken += 1;
    }
    batch.frames.truncate(taken);
    context.budget.set(Budget { copies, visits });
    Turn { later, ..Turn::WHOLE }
}

/// Returns the number of copies that a frame with one receiver counts as.
fn unicast(meta: &Meta, len: u32, pieces: u32) -> u64 {
    let (segments, pieces) = (segments(meta, len), u64::from(pieces));
    let bytes = u64::from(len / BYTES);
    let cut = segments * (SEGMENT + pieces / PIECES_OF_SEGMENT);
    1 + cut.max(bytes) + owed(meta, segments, (bytes, pieces))
}

/// Returns the number of copies that the sums count as which have to be complete before a packet is
/// cut into fragments: all of it is read once more.
fn owed(meta: &Meta, segments: u64, (bytes, pieces): (u64, u64)) -> u64 {
    let owes = meta.offload && meta.cut.is_some();
    if !owes || meta.net.flags & NetHeader::FLAG_NEEDS_CSUM == 0 {
        return 0;
    }
    // Each datagram of several is looked for among the pieces.
    let several = if meta.net.gso_size > 0 { segments } else { 0 };
    bytes + pieces / PIECES + several * (pieces / PIECES_OF_SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::FrameCut;

    /// A frame in many pieces: each fragment is looked for among them, and a sum reads them all.
    #[test]
    fn pieces_and_sums_of_cut_packets_cost() {
        let cut = FrameCut { most: 1450, packets: 46 };
        let meta = Meta { offload: true, cut, ..Meta::NEW };
        assert_eq!(unicast(&meta, 65_535, 1), 1 + 46 * 4);
        assert_eq!(unicast(&meta, 65_535, 960), 1 + 46 * (4 + 15));
        let net = NetHeader { flags: NetHeader::FLAG_NEEDS_CSUM, ..NetHeader::NONE };
        let owes = Meta { net, ..meta };
        assert_eq!(unicast(&owes, 65_535, 960), 1 + 46 * (4 + 15) + 31 + 120);
        // A large packet in two: the sum is nearly all of it.
        let two = Meta { cut: FrameCut { packets: 2, ..cut }, ..owes };
        assert_eq!(unicast(&two, 65_535, 1), 1 + 31 + 31);
        // Each datagram has a sum.
        let datagrams = Meta { net: NetHeader { gso_size: 2000, ..net }, ..owes };
        assert_eq!(unicast(&datagrams, 65_535, 960), 1 + 46 * (4 + 15) + 31 + 120 + 46 * 15);
        // What is not cut costs as ever.
        let whole = Meta { cut: FrameCut::NONE, ..owes };
        assert_eq!(unicast(&whole, 65_535, 960), 1 + 31);
    }
}
