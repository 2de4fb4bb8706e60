//! Records of a batch for the tap: written once, when every verdict is known and before the sender
//! has its frames back.

use butterfly_mem::cpu;

use crate::engine::{
    batch::{Batch, Meta, Verdict},
    place::PortRef,
    reason::DropReason,
    tap::{FrameFate, Takers, Tap, TapPoint, TapRecord, TapRole, plain},
};
use crate::stages::{
    context::Context,
    filter::{FilterRoom, admits_flooded, session_of},
};

/// Copies the frames of a batch that sinks want.
#[cold]
#[inline(never)]
pub(crate) fn take(tap: &Tap<'_>, batch: &Batch<'_>, context: &Context<'_>, room: &FilterRoom) {
    if !tap.records() {
        return;
    }
    let now = cpu::tsc();
    let cycles = now.wrapping_sub(tap.start()) / batch.frames.len().max(1) as u64;
    let frame =
        Taken { tap, batch, context, room, now, cycles: u32::try_from(cycles).unwrap_or(u32::MAX) };
    // A frame that waits is recorded when it goes.
    for (index, meta) in
        batch.metas().iter().enumerate().filter(|(_, meta)| meta.verdict != Verdict::Later)
    {
        frame.one(index, meta);
    }
}

/// A batch that is being taken.
struct Taken<'t, 'a, 'b> {
    tap: &'t Tap<'a>,
    batch: &'t Batch<'b>,
    context: &'t Context<'t>,
    room: &'t FilterRoom,
    now: u64,
    cycles: u32,
}

impl<'a> Taken<'_, 'a, '_> {
    fn one(&self, index: usize, meta: &Meta) {
        let (tap, sender) = (self.tap, self.context.sender);
        let refusals = tap.refusals(index);
        let (to, reason) = match meta.verdict {
            Verdict::Drop(reason, slot) => (Some(slot), Some(reason)),
            Verdict::Deliver(slot) => (Some(slot), refusals.first),
            Verdict::Tunnel(_) => (None, refusals.first),
            Verdict::Flood { .. } | Verdict::Undecided | Verdict::Later | Verdict::Consumed(_) => {
                (None, None)
            }
        };
        let mut wanted = Takers::new();
        tap.whole(sender.vni, reason, &mut wanted);
        for sink in tap.selection().of_slot(sender.place.slot).iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Sent, reason));
        }
        if let Some(to) = to.filter(|to| *to != sender.place.slot) {
            for sink in tap.selection().of_slot(to).iter().filter(|sink| sink.turn()) {
                let _ = wanted.try_push((sink, TapRole::Received, reason));
            }
        }
        let flood = match meta.verdict {
            Verdict::Flood { unknown } => Some(unknown),
            _ => None,
        };
        if wanted.is_empty() && (flood.is_none() || !tap.selection().any_slot()) {
            return;
        }
        let mut record = self.record(index, meta, to, reason);
        if let Some(unknown) = flood {
            self.flooded(index, unknown, &mut record, &mut wanted);
        }
        tap.put(record, &mut wanted, &self.batch.frames, index);
    }

    fn record(
        &self,
        index: usize,
        meta: &Meta,
        to: Option<u32>,
        reason: Option<DropReason>,
    ) -> TapRecord {
        let context = self.context;
        let place = |slot: u32| {
            let vnic = context.snapshot.vnics.get(slot);
            vnic.map_or(PortRef { slot, incarnation: 0 }, |vnic| vnic.place)
        };
        let (fate, to_peer) = match meta.verdict {
            Verdict::Deliver(_) => (FrameFate::Deliver, 0),
            Verdict::Tunnel(peer) => (FrameFate::Tunnel, peer.0),
            Verdict::Flood { .. } => (FrameFate::Flood, 0),
            Verdict::Drop(..) => (FrameFate::Drop, 0),
            Verdict::Consumed(_) => (FrameFate::Consume, 0),
            Verdict::Undecided | Verdict::Later => (FrameFate::Open, 0),
        };
        let mut record = TapRecord {
            vni: context.sender.vni,
            from: context.sender.place,
            peer: if context.sender.is_trunk() { meta.peer.0 } else { 0 },
            fate,
            to_peer,
            reason,
            cycles: self.cycles,
            ..plain(TapPoint::Network, self.now)
        };
        if let Some(to) = to {
            record.to = place(to);
        }
        if let Some((cells, reply)) = session_of(self.batch, index, context) {
            (record.cells, record.session, record.reply) = (cells, true, reply);
        }
        record
    }

    /// Records the receivers of a flood, and the vnics that did not get it. Sinks of receivers get
    /// the receiver's own outcome.
    fn flooded(
        &self,
        index: usize,
        unknown: bool,
        record: &mut TapRecord,
        wanted: &mut Takers<'a>,
    ) {
        let (tap, context) = (self.tap, self.context);
        let refusals = tap.refusals(index);
        let exit = context.exit(self.batch.exits(), index);
        let away = context.remote_of(exit).map_or(0, |remote| remote.peers.len().max(1) as u32);
        record.to.slot = if refusals.too_big { 0 } else { away.saturating_sub(refusals.away) };
        record.reason = refusals.first;
        let (mut offered, mut denied) = (0, 0);
        // Counted before the first record is written: the record may go out in parts.
        for (_, judgement) in self.receivers(index, unknown) {
            offered += 1;
            if let Err((reason, _)) = judgement {
                denied += 1;
                record.reason = record.reason.or(Some(reason));
            }
        }
        record.refused = denied + refusals.here + refusals.away;
        record.delivered = (offered - denied).saturating_sub(refusals.here);
        if !tap.selection().any_slot() {
            return;
        }
        for (slot, judgement) in self.receivers(index, unknown) {
            for sink in tap.selection().of_slot(slot).iter().filter(|sink| sink.turn()) {
                let reason = match judgement {
                    Err((reason, _)) => Ok(Some(reason)),
                    Ok(()) => tap.refusal(index, slot),
                };
                let Ok(reason) = reason else {
                    sink.lose();
                    continue;
                };
                if wanted.is_full() {
                    tap.put(*record, wanted, &self.batch.frames, index);
                }
                let _ = wanted.try_push((sink, TapRole::Received, reason));
            }
        }
    }

    /// Returns the vnics that a flood is for, with the verdicts of their policies.
    fn receivers(
        &self,
        index: usize,
        unknown: bool,
    ) -> impl Iterator<Item = (u32, Result<(), (DropReason, u32)>)> {
        let context = self.context;
        let exit = context.exit(self.batch.exits(), index);
        let vnics = exit.members.iter().filter_map(|slot| context.snapshot.vnics.get(*slot));
        let receivers = vnics.filter(move |vnic| {
            vnic.place != context.sender.place && (vnic.rules.bypass || !unknown)
        });
        receivers
            .map(move |vnic| (vnic.place.slot, admits_flooded(self.room, index, vnic, context)))
    }
}
