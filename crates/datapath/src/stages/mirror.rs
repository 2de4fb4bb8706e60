//! Mirrors: vnics that get copies of all frames that another vnic of their network sends and
//! receives.
//!
//! A copy is made like those of floods: once, from the sender's memory into the mirror's buffers,
//! and completed if its guest does not take offloads. Only the mirror's ring bounds it. Copies are
//! made when the receivers of a frame are known, and before the sender has the frame back. So a
//! crash may repeat a copy, as it may a flood's. Nothing else is ever delivered to a mirror: its
//! lock is taken when others are held, and none is taken while it is.

use crate::engine::batch::{Batch, Meta, Verdict};
use crate::engine::tap::Tap;
use crate::stages::{
    context::Context,
    deliver::{Calls, FIRST_PAIR, Got, NOT_ATTACHED, call, to_one},
    filter::{FilterRoom, admits_flooded},
    outlet::{Outlet, Receive},
    turn::Turn,
    ways::next_way,
};
use crate::world::snapshot::Vnic;

/// Copies the frames that a batch's sender sent, and those that its receivers got. The receivers
/// are the vnics of this turn if something is `flooded`, and else `receivers`.
#[cold]
#[inline(never)]
pub(crate) fn mirror<O: Outlet>(
    batch: &Batch<'_>,
    context: &Context<'_>,
    (tap, room): (&Tap<'_>, &FilterRoom),
    (receivers, flooded): (impl Iterator<Item = u32>, Option<&Turn>),
    calls: &mut Calls,
    outlet: &O,
) {
    let selection = tap.selection();
    if !selection.has_mirrors() {
        return;
    }
    let sender = context.sender.place.slot;
    let whole =
        |index: usize| batch.frames.frames().get(index).is_some_and(|frame| frame.fault.is_none());
    for at in selection.mirrors_of(sender).iter().filter(|_| flooded.is_none_or(Turn::is_first)) {
        // A frame that waits is copied when it goes.
        let sent = |index, meta: &Meta| whole(index) && meta.verdict != Verdict::Later;
        copy(batch, context, at.mirror, calls, outlet, sent);
    }
    let mut received = |target: u32| {
        let Some(receiver) = context.snapshot.vnics.get(target).filter(|_| target != sender) else {
            return;
        };
        let mirrors = selection.mirrors_of(target);
        if mirrors.is_empty() {
            return;
        }
        let refused = tap.refused(target);
        for at in mirrors {
            copy(batch, context, at.mirror, calls, outlet, |index, meta| {
                sent_to(receiver, index, meta, context, room)
                    && refused.checked_shr(index as u32).unwrap_or(0) & 1 == 0
            });
        }
    };
    match flooded {
        // Others of a batch that is whole are members, too.
        Some(turn) => {
            let mut left = None;
            while let Some(way) = next_way(&mut left, batch.exits(), context) {
                turn.members(&way.exit.members).iter().copied().for_each(&mut received);
            }
        }
        None => receivers.for_each(&mut received),
    }
}

/// Returns whether a frame was for this vnic.
fn sent_to(
    receiver: &Vnic,
    index: usize,
    meta: &Meta,
    context: &Context<'_>,
    room: &FilterRoom,
) -> bool {
    match meta.verdict {
        Verdict::Deliver(slot) => slot == receiver.place.slot,
        Verdict::Flood { unknown } => {
            (receiver.rules.bypass || !unknown)
                && admits_flooded(room, index, receiver, context).is_ok()
        }
        Verdict::Drop(..)
        | Verdict::Tunnel(_)
        | Verdict::Undecided
        | Verdict::Later
        | Verdict::Consumed(_) => false,
    }
}

fn copy<O: Outlet>(
    batch: &Batch<'_>,
    context: &Context<'_>,
    mirror: u32,
    calls: &mut Calls,
    outlet: &O,
    wanted: impl Fn(usize, &Meta) -> bool,
) {
    let Some(mirror) = context.snapshot.vnics.get(mirror) else { return };
    let mut guard = outlet.open(mirror, FIRST_PAIR);
    let mut got = Got::default();
    if let Some(ring) = guard.as_mut() {
        ring.prepare(batch.frames.len() as u16);
    }
    to_one(batch, guard.as_mut(), mirror, context, outlet, &mut got, wanted);
    let interrupt = guard.as_mut().and_then(Receive::show);
    drop(guard);
    call(calls, interrupt);
    got.count(mirror, context.worker);
}

/// Copies a frame that the switch itself gave to the sender of a batch.
#[cold]
pub(crate) fn mirror_answer<O: Outlet>(
    frame: &[u8],
    context: &Context<'_>,
    tap: &Tap<'_>,
    calls: &mut Calls,
    outlet: &O,
) {
    for at in tap.selection().mirrors_of(context.sender.place.slot) {
        let Some(mirror) = context.snapshot.vnics.get(at.mirror) else { continue };
        let mut guard = outlet.open(mirror, FIRST_PAIR);
        let Some(ring) = guard.as_mut() else {
            context.count_own(mirror, NOT_ATTACHED, frame);
            continue;
        };
        let mut got = Got::default();
        match ring.deliver_own(frame) {
            Ok(()) => got.one(frame.len()),
            Err(why) => context.count_own(mirror, why.into(), frame),
        }
        let interrupt = ring.show();
        drop(guard);
        call(calls, interrupt);
        got.count(mirror, context.worker);
    }
}
