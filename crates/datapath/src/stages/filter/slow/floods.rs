//! Floods: judged once for the sender, and for each receiver when they are delivered.

use crate::engine::inside::Inside;
use crate::engine::reason::DropReason;
use crate::ip::{FRAGMENT_ORPHAN, L4, Packet};
use crate::stages::context::Context;
use crate::stages::filter::FragmentDecision;
use crate::stages::filter::dhcp::{self};
use crate::stages::filter::known::Judgement;
use crate::stages::filter::reasons::IP_HIDDEN;
use crate::stages::filter::room::FilterRoom;
use crate::stages::filter::room::{Flooded, Judged};
use crate::stages::filter::slow::fragments::{fragment_key, later};
use crate::stages::filter::slow::rules::{by_rules_or_discovery, leaves};
use crate::world::snapshot::Vnic;

/// Judges a frame with several receivers as far as its sender goes. Returns the part by which its
/// receivers are judged. With `before`, some receivers have the frame, and the decision of then may
/// not hold any more.
pub(super) fn judge_flooded(
    (index, inside, read): (usize, Inside, Option<Result<Packet, DropReason>>),
    before: Option<Judged>,
    unknown: bool,
    context: &Context<'_>,
    room: &mut FilterRoom,
) -> (Flooded, Judgement) {
    let sender = context.sender;
    let own = sender.place.slot;
    let unreadable = |reason| {
        let judgement = if sender.rules.bypass { Ok(()) } else { Err((reason, own)) };
        (Flooded::Unreadable(reason), judgement)
    };
    let packet = match read {
        None if inside == Inside::HiddenIp => {
            return unreadable(IP_HIDDEN);
        }
        None => return (Flooded::NotIp, Ok(())),
        Some(Err(reason)) => return unreadable(reason),
        Some(Ok(packet)) => packet,
    };
    if let (Some(Judged { flooded: Flooded::Packet(first), .. }), Some(piece)) =
        (before, &packet.fragment)
        && let Some(of) = &first.fragment
        && fragment_key(&first, of, context) == fragment_key(&packet, piece, context)
    {
        // These bytes are already noted as passed: the frame is not another copy.
        return match leaves(sender, &first, context) {
            Ok(_) => (Flooded::Packet(first), Ok(())),
            Err((reason, _)) if sender.rules.bypass => (Flooded::Unreadable(reason), Ok(())),
            Err(refused) => (Flooded::Unreadable(refused.0), Err(refused)),
        };
    }
    match (&packet.l4, &packet.fragment) {
        (L4::Fragment, Some(piece)) => {
            let key = fragment_key(&packet, piece, context);
            match later(index, key, piece, context, room) {
                Ok(FragmentDecision { receiver: None, stamp, cells: [egress, _], packet })
                    if stamp >= sender.since.max(context.cells.taken_back(egress)) =>
                {
                    (Flooded::Packet(packet), Ok(()))
                }
                Ok(_) => unreadable(FRAGMENT_ORPHAN),
                Err(reason) => unreadable(reason),
            }
        }
        (_, fragment) => {
            let egress = match leaves(sender, &packet, context) {
                Ok(cell) => cell,
                // Receivers that bypass filters may have it all the same.
                Err((reason, _)) if sender.rules.bypass => {
                    return (Flooded::Unreadable(reason), Ok(()));
                }
                Err(refused) => return (Flooded::Unreadable(refused.0), Err(refused)),
            };
            if let Some(piece) = fragment {
                let decided = FragmentDecision {
                    receiver: None,
                    stamp: context.snapshot.version,
                    cells: [egress, 0],
                    packet,
                };
                let key = fragment_key(&packet, piece, context);
                if let Err(reason) = context.fragments.first(key, *piece, decided, context.now) {
                    return unreadable(reason);
                }
            }
            let mut answered = None;
            if let L4::Dhcp(found) = &packet.l4 {
                dhcp::left(found, &packet.tuple, context);
                // No filtered vnic gets a frame for an unknown station.
                answered =
                    if unknown { None } else { dhcp::flooded_to(found, &packet.tuple, context) };
            }
            (answered.map_or(Flooded::Packet(packet), |slot| Flooded::Answer(packet, slot)), Ok(()))
        }
    }
}

/// Checks whether a receiver of a flood lets it in. A refusal names the vnic that it is charged to.
/// Notes nothing, because delivery asks more than once.
pub(crate) fn admits_flooded(
    room: &FilterRoom,
    index: usize,
    receiver: &Vnic,
    context: &Context<'_>,
) -> Judgement {
    if receiver.rules.bypass {
        return Ok(());
    }
    match room.flooded.get(index) {
        Some(Flooded::NotIp) => Ok(()),
        // Decided and counted when its sender was judged.
        Some(Flooded::Answer(_, slot)) if *slot == receiver.place.slot => Ok(()),
        Some(Flooded::Packet(packet) | Flooded::Answer(packet, _)) => {
            by_rules_or_discovery(receiver, packet, context)
                .map(|_| ())
                .map_err(|reason| (reason, receiver.place.slot))
        }
        Some(Flooded::Unreadable(reason)) => Err((*reason, context.sender.place.slot)),
        None => Err((IP_HIDDEN, context.sender.place.slot)),
    }
}

/// Notes that a flood enters a filtered receiver that [`admits_flooded`] it. The caller calls it
/// once for each.
pub(crate) fn note_flooded(
    room: &FilterRoom,
    index: usize,
    receiver: &Vnic,
    context: &Context<'_>,
) {
    if let Some(Flooded::Packet(packet)) = room.flooded.get(index)
        && let L4::Dhcp(found) = &packet.l4
        && found.request
    {
        dhcp::entered(found, receiver, &packet.tuple, context);
    }
}
