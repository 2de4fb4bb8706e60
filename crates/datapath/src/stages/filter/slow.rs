//! Decides everything but plain traffic of known sessions: new sessions, sessions that are decided
//! again, fragments, ICMP errors, discovery, DHCP, floods.
//!
//! A connection goes along with a vnic that moves to another host: its next segment comes from the
//! other place, which is a miss. The new session takes over the TCP marks of the old one, if the
//! segment fits its window; whether it may go on is decided as if its opener began it today. So the
//! TCP sessions of a departed vnic are kept for `--tcp-pickup` seconds, or until the new session is
//! there.

use crate::engine::{
    batch::{Batch, Consumed, Verdict},
    inside::Inside,
};
use crate::ip::L4;
use crate::stages::context::Context;
use crate::stages::filter::{far_end, known::Judgement, read::read, room::FilterRoom, zone_of};

mod decision;
mod floods;
mod fragments;
mod moved;
mod quoted;
mod rules;
mod sessions;

pub(crate) use floods::{admits_flooded, note_flooded};
pub(crate) use rules::{is_from_outside, rule_port, rules_say};

use decision::Decision;
use floods::judge_flooded;
use rules::{by_rules_leaves, leaves};

/// Judges a frame whose session is not known yet, or that has none.
#[inline(never)]
pub(super) fn judge(
    batch: &mut Batch<'_>,
    index: usize,
    context: &Context<'_>,
    room: &mut FilterRoom,
) -> Judgement {
    let Some(meta) = batch.metas().get(index).copied() else { return Ok(()) };
    if index == 0
        && matches!(meta.verdict, Verdict::Flood { .. })
        && let (Some(judged), Some(place)) = (room.judged, room.flooded.first_mut())
        && judged.version == context.snapshot.version
    {
        *place = judged.flooded;
        return Ok(());
    }
    let own = context.sender.place.slot;
    let exit = context.exit(batch.exits(), index);
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let read = match meta.inside {
        Inside::Ip { at, vlan } => Some(read(batch, index, at, vlan, len)),
        _ => None,
    };
    let receiver = match meta.verdict {
        Verdict::Deliver(slot) => Some(slot),
        // An address that no vnic here owns is on another host, if the network spans hosts. Then
        // the packet is part of one conversation, like any other.
        Verdict::Flood { unknown: true } if !context.sender.rules.bypass => {
            context.remote_of(exit).map(|remote| remote.slot)
        }
        Verdict::Tunnel(_) => far_end(batch.exits(), index, context).map(|remote| remote.slot),
        _ => None,
    };
    match (meta.verdict, read) {
        (Verdict::Deliver(_) | Verdict::Tunnel(_) | Verdict::Flood { .. }, Some(read))
            if receiver.is_some() =>
        {
            let packet = read.map_err(|reason| (reason, own))?;
            let Some(receiver) = receiver.and_then(|slot| context.snapshot.vnics.get(slot)) else {
                return Ok(());
            };
            let zone = zone_of(batch.exits().is_routed(index), receiver, context);
            Decision { context, receiver, packet: &packet, zone, len, index }.judge(room)
        }
        // A router answers: nobody's rules let it in. About later fragments it says nothing.
        (Verdict::Consumed(_) | Verdict::Drop(..), Some(read))
            if batch.is_answered(index) && !context.sender.rules.bypass =>
        {
            let packet = read.map_err(|reason| (reason, own))?;
            match packet.l4 {
                L4::Fragment => Ok(()),
                L4::Discovery(found) if meta.verdict == Verdict::Consumed(Consumed::Discovery) => {
                    // Who looks whether the address is free hears that it is not; nobody else does.
                    match found.source {
                        0 => Ok(()),
                        _ => leaves(context.sender, &packet, context).map(|_| ()),
                    }
                }
                _ => by_rules_leaves(context.sender, &packet, true, context)
                    .map(|_| ())
                    .map_err(|reason| (reason, own)),
            }
        }
        (Verdict::Flood { .. }, read) => {
            let unknown = meta.verdict == (Verdict::Flood { unknown: true });
            let before = room.judged.filter(|_| index == 0);
            let (flooded, judgement) =
                judge_flooded((index, meta.inside, read), before, unknown, context, room);
            if let Some(place) = room.flooded.get_mut(index) {
                *place = flooded;
            }
            judgement
        }
        _ => Ok(()),
    }
}
