//! The way of a batch through all stages.

use super::{later::Later, pen::Awaited, under_way};
use crate::engine::writer::Writer;
use crate::engine::{
    batch::{Batch, BatchOrigin},
    counters::Counter,
};
use crate::ip::fragments::FragmentKey;
use crate::stages::{
    context::Context,
    deliver::{Calls, deliver, deliver_lone, lone},
    filter::Judged,
    leave::Departures,
    nat_fragments::PieceScratch,
    outlet::Rings,
    pipeline::{self, Scratches},
    turn,
};
use crate::world::{limits::Limit, snapshot::Vnic};

/// Outcome of a batch.
pub(super) struct Walked {
    /// Slot and pair that most of the next frames will go to, as one number.
    pub likely: Option<u32>,
    /// Frames that were taken. Frames that did not fit the turn stay in their ring.
    pub frames: usize,
    /// Receivers that have an unfinished flood, the decision on it, and the hash that recognises
    /// its bytes.
    pub flooded: u32,
    pub judged: Option<Judged>,
    pub print: Option<u64>,
}

/// Runs all stages, in order. `from` is the number of receivers that have the first frame already,
/// if it is a flood.
#[inline(always)]
pub(super) fn walk(
    mut batch: Batch<'_>,
    context: &Context<'_>,
    scratches: &mut Scratches,
    departures: &mut Departures,
    calls: &mut Calls,
    later: &mut Later,
    (from, outlet): (usize, Rings),
) -> Walked {
    #[cfg(debug_assertions)]
    crate::engine::fail_points::frames(&batch.frames);
    scratches.turn.from = from;
    pipeline::run(&mut batch, context, scratches, &mut ());
    let lone = lone(&batch, context);
    if lone.is_none() {
        wait(&mut batch, context, scratches, later, from);
    }
    let cut = &scratches.turn;
    let n = batch.frames.len();
    let counts = batch.origin == BatchOrigin::Port;
    let bytes = batch.frames.frames().iter().map(|frame| u64::from(frame.len)).sum();
    let part = lone.is_none() && cut.turn().part;
    let print = if part { under_way::print(&mut batch.frames) } else { None };
    let (likely, done) = match lone {
        Some(receiver) => {
            deliver_lone(&mut batch, context, calls, receiver, &outlet);
            (Some(receiver.place.slot), true)
        }
        None => {
            let turn = cut.turn();
            deliver(&mut batch, context, &scratches.filter, departures, calls, turn, &outlet)
        }
    };
    if !done {
        let judged = scratches.filter.first_flood(context.snapshot.version);
        return Walked {
            likely,
            frames: 0,
            flooded: cut.turn().receivers.end as u32,
            judged,
            print,
        };
    }
    if counts {
        count_in(context.sender, context.worker, bytes, n);
        if let Some(limit) = &context.sender.rules.limits.from_guest {
            spend(context.sender, limit, &batch, bytes);
        }
    }
    Walked { likely, frames: n, flooded: 0, judged: None, print: None }
}

/// Has frames wait that the stages do not send on now.
#[inline(never)] // a lone frame is none of these, and pays nothing for them
fn wait(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    scratches: &mut Scratches,
    later: &mut Later,
    from: usize,
) {
    if scratches.turn.turn().later {
        later.take(batch, context);
    }
    if !scratches.filter.early.is_empty() {
        pen(batch, context, &mut scratches.filter.early, later, from);
    }
    if !scratches.translate.early.is_empty() || !scratches.masquerade.early.is_empty() {
        let pieces = [&mut scratches.translate, &mut scratches.masquerade];
        pen_untranslated(batch, context, pieces, later, from);
    }
    if batch.relays {
        later.take_relayed(batch, context);
    }
    if batch.answers != 0 {
        later.hops.take(batch, context);
    }
}

/// Has early fragments wait, once. Of a flood that some receivers have already, nothing waits.
#[cold]
#[inline(never)]
fn pen(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    early: &mut Vec<(usize, FragmentKey)>,
    later: &mut Later,
    from: usize,
) {
    if from == 0 && batch.origin != BatchOrigin::Penned {
        later.pen.take(early, Awaited::Decision, batch, context);
    }
    early.clear();
}

/// Has fragments wait, once, whose first ones were not translated yet: those that come in by an
/// outside, or those that leave. What the other list has is of a batch that was cut before them.
#[cold]
#[inline(never)]
fn pen_untranslated(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    pieces: [&mut PieceScratch; 2],
    later: &mut Later,
    from: usize,
) {
    let routing = context.entry.routing.as_ref();
    let enters = routing.is_some_and(|routing| routing.outside.is_some());
    for (PieceScratch { early, .. }, its) in pieces.into_iter().zip([enters, !enters]) {
        if its && from == 0 && batch.origin != BatchOrigin::Penned {
            later.pen.take(early, Awaited::Translation, batch, context);
        }
        early.clear();
    }
}

/// Charges a batch that went to the limit of its sender.
#[cold]
#[inline(never)]
fn spend(sender: &Vnic, limit: &Limit, batch: &Batch<'_>, bytes: u64) {
    let all = batch.metas().iter().zip(batch.frames.frames());
    let packets = all.map(|(meta, frame)| turn::packets(meta, frame.len)).sum();
    sender.shared.limits.from_guest.spend(limit, packets, bytes);
}

pub(crate) fn count_in(sender: &Vnic, worker: Writer<'_>, bytes: u64, n: usize) {
    if let Some(cells) = sender.shared.counters.of(worker) {
        cells.add(Counter::InPackets, n as u64);
        cells.add(Counter::InBytes, bytes);
    }
}
