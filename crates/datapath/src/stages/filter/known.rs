//! Known sessions: whether they hold, and what a frame changes in them.

use crate::engine::reason::DropReason;
use crate::ip::tcp::{self, Outcome};
use crate::session::{Found, State, is_unsettled};
use crate::stages::context::Context;
use crate::stages::filter::reasons::TCP_WINDOW;
use crate::stages::filter::room::SessionNotes;
use crate::world::snapshot::Vnic;

/// A refusal, and the slot of the vnic it is charged to.
pub(super) type Judgement = Result<(), (DropReason, u32)>;

/// Returns whether nothing was taken back since the session was decided.
#[inline(always)]
pub(super) fn is_current(found: &Found, context: &Context<'_>, receiver: &Vnic) -> bool {
    let stamp = found.admission.stamp;
    let [egress, ingress] = found.admission.cells;
    let cells = context.cells;
    let newest = context
        .sender
        .since
        .max(receiver.since)
        .max(cells.taken_back(egress))
        .max(cells.taken_back(ingress));
    stamp >= newest
}

/// Lets a frame pass by a session that holds, and notes it. `None` if the session is over.
#[inline(always)]
pub(super) fn pass(
    found: &Found,
    segment: Option<&tcp::Segment>,
    len: u32,
    receiver: &Vnic,
    context: &Context<'_>,
    notes: &mut SessionNotes,
) -> Option<Judgement> {
    let (note, track) = notes.of(found, context)?;
    if let Some(segment) = segment {
        let Some(next) = tcp::in_line(track, found.direction, segment) else {
            return pass_any(*found, segment, len, receiver, context, notes);
        };
        if next != *track {
            *track = next;
            note.moved = true;
        }
        note.refreshed = true;
    } else {
        note.refreshed = true;
        if found.direction == 1 {
            note.state = State::answered(note.state);
        }
    }
    note.packets += 1;
    note.bytes += u64::from(len);
    Some(Ok(()))
}

/// Lets a segment pass as [`pass`], if it is none of the commonest. The session is a copy, so that
/// [`pass`] need not have it in memory.
#[cold]
#[inline(never)]
fn pass_any(
    found: Found,
    segment: &tcp::Segment,
    len: u32,
    receiver: &Vnic,
    context: &Context<'_>,
    notes: &mut SessionNotes,
) -> Option<Judgement> {
    let (note, track) = notes.of(&found, context)?;
    let outcome = if note.unsettled {
        let record = context.table.record(found.index);
        let (now, outcome) = record.step(found.tenant(), found.direction, segment, context.now)?;
        // A settled connection is judged by this copy from now on.
        *track = now;
        note.unsettled = is_unsettled(&now);
        outcome
    } else {
        let (next, outcome) = tcp::step(*track, found.direction, segment);
        if outcome == Outcome::Pass {
            note.moved |= next != *track;
            note.refreshed = true;
            *track = next;
        }
        outcome
    };
    match outcome {
        Outcome::Pass | Outcome::PassUnrefreshed => {}
        // The slow path has asked before. No other path sees a SYN.
        Outcome::Refuse | Outcome::Ask => {
            return Some(Err((TCP_WINDOW, charged(context, receiver))));
        }
        Outcome::Reopen => return None,
    }
    note.packets += 1;
    note.bytes += u64::from(len);
    Some(Ok(()))
}

/// Returns the slot of the vnic that a refusal is charged to: the receiver if it is filtered.
fn charged(context: &Context<'_>, receiver: &Vnic) -> u32 {
    if receiver.rules.bypass { context.sender.place.slot } else { receiver.place.slot }
}
