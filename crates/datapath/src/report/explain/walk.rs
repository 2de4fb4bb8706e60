//! The walk: the stages of the packet path, one after the other, with one packet.

use std::{net::IpAddr, sync::atomic::Ordering::Relaxed};

use butterfly_packet::{ethernet::Ethernet, mac::Mac};
use butterfly_vhost::ring::{BATCH, FrameStore, Frames};

use crate::report::explain::{
    Fate, Refused, Step, Walk,
    scratch::World,
    told::{self, Decided},
};
use crate::{
    engine::{
        batch::{Batch, Meta, Verdict},
        inside::Inside,
        mac::number,
        place::PeerRef,
        reason::DropReason,
    },
    ip::{L4, Packet},
    overlay::{NO_NEIGHBOUR, TOO_BIG, Tunnel, UPLINK_DOWN},
    plane::Plane,
    session::{Key, Shares},
    stages::{
        antispoof::antispoof,
        claims::{claimed, claims},
        deliver::{FLOOD_LIMIT, NOT_ATTACHED, RING_FULL, may_flood},
        filter::{
            Room, SESSIONS_FULL, Share, admits_flooded, filter, full_shares, may_give_way,
            read_packet, rests, rules_say,
        },
        forward::{NO_RECEIVER, forward, nobody},
        headers::headers,
        offload::offload,
        reasons::info,
        site::Context,
    },
    world::{rules::address, snapshot::Vnic},
};

/// Walks a frame from the vnic in this slot, or from the trunk. Also says in which slot it met its
/// receiver.
pub(super) fn walk(
    plane: &Plane,
    world: &World<'_>,
    room: &mut Room,
    from: u32,
    frame: &[u8],
) -> (Walk, Option<u32>) {
    let mut steps = Vec::new();
    let walk = |fate, admitted, steps| Walk {
        packet: told::packet(frame),
        frame: frame.to_vec(),
        steps,
        admitted,
        fate,
    };
    let nobody = || Fate::Dropped(Refused { reason: info(NO_RECEIVER), charged: String::new() });
    let sender = world.snapshot.vnics.get(from);
    let network = sender.and_then(|sender| world.snapshot.networks.get(sender.network));
    let (Some(sender), Some(network)) = (sender, network) else {
        return (walk(nobody(), [None, None], steps), None);
    };
    let context = world.context(sender, network);

    let mut store = FrameStore::default();
    let mut metas = Box::new([Meta::NEW; BATCH]);
    let mut batch = Batch::new(Frames::private(&mut store, std::iter::once(frame)), &mut metas);
    let stopped = |batch: &Batch<'_>| match batch.metas().first().map(|meta| meta.verdict) {
        Some(Verdict::Drop(reason, slot)) => Some((reason, slot)),
        _ => None,
    };
    let end = |steps: &mut Vec<Step>, stage, drop: Drop| {
        steps.push(told::dropped(stage, drop.0));
        Fate::Dropped(refused(drop, &context))
    };

    headers(&mut batch, &context);
    if let Some(drop) = stopped(&batch) {
        let fate = end(&mut steps, "headers", drop);
        return (walk(fate, [None, None], steps), None);
    }
    antispoof(&mut batch, &context);
    if let Some(drop) = stopped(&batch) {
        let fate = end(&mut steps, "source", drop);
        return (walk(fate, [None, None], steps), None);
    }
    if batch.unusual {
        let address = claimed(&mut batch, 0, &context);
        claims(&mut batch, &context);
        if let Some(drop) = stopped(&batch) {
            let fate = end(&mut steps, "source", drop);
            if let (Some(step), Some(address)) = (steps.last_mut(), address) {
                step.details.extend(told::owner(address, &context));
            }
            return (walk(fate, [None, None], steps), None);
        }
    }
    steps.push(told::source(sender));
    offload(&mut batch, &context);
    let inside = match batch.metas().first().map(|meta| meta.inside) {
        Some(Inside::Ip { at, vlan }) => Inside::Ip { at, vlan },
        // Nobody in the network is filtered, so nobody looked.
        _ => crate::ip::frame::inside(batch.frames.head(0)),
    };
    let packet = match inside {
        Inside::Ip { at, vlan } => read_packet(&mut batch, 0, at, vlan, frame.len() as u32).ok(),
        _ => None,
    };
    let mac = |at: usize| {
        frame
            .get(at..at + 6)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(Mac::ZERO, |bytes| Mac(*bytes))
    };
    world.take_stations(sender.vni, [mac(0), mac(6)]);
    if let Some(packet) = &packet {
        world.take_sessions(&Key::new(&packet.tuple, sender.vni, from, from));
        if let L4::Error(quoted) = &packet.l4 {
            world.take_sessions(&Key::new(&quoted.tuple, sender.vni, from, from));
        }
    }
    forward(&mut batch, &context);
    if let Some(drop) = stopped(&batch) {
        let fate = end(&mut steps, "lookup", drop);
        return (walk(fate, [None, None], steps), None);
    }
    let verdict = batch.metas().first().map_or(Verdict::Undecided, |meta| meta.verdict);
    steps.push(told::lookup(verdict, frame, &context));
    let met = match verdict {
        Verdict::Deliver(slot) => Some(slot),
        Verdict::Tunnel(_) => context.remote().map(|remote| remote.slot),
        // As the filter has it: what nobody here owns is somewhere else.
        Verdict::Flood { unknown: true } => context.remote().map(|remote| remote.slot),
        _ => None,
    };
    let receiver = met.and_then(|slot| world.snapshot.vnics.get(slot));
    let find = |packet: &Packet| {
        let key = Key::new(&packet.tuple, sender.vni, from, receiver?.place.slot);
        context.table.lookup(context.table.hash(&key), &key)
    };
    let before = packet.as_ref().and_then(find);
    let row = before.and_then(|found| told::Known::of(&found, &context, &plane.shared.table));
    // Its own table has none of the sessions that would go for another one.
    let real = &plane.shared.table;
    let mut unbounded = world.context(sender, network);
    let no_shares = Shares::unbounded();
    unbounded.shares = &no_shares;
    let gives = |whose: Share, key: &Key| {
        real.could_make_room(real.hash(key), |record| whose.may_give(record, &context))
    };
    let room_is_made = packet.as_ref().zip(receiver).is_some_and(|(packet, receiver)| {
        let key = Key::new(&packet.tuple, sender.vni, from, receiver.place.slot);
        full_shares(&context, &key).all(|whose| !rests(&context) && gives(whose, &key))
    });
    let said = packet
        .as_ref()
        .zip(receiver)
        .map(|(packet, receiver)| rules_say(packet, receiver, &context));
    filter(&mut batch, if room_is_made { &unbounded } else { &context }, room);
    let after = packet.as_ref().and_then(find);
    let mut drop = stopped(&batch);
    // Its own table has room: that of the switch may have none.
    let made = before.is_none_or(|before| after.is_some_and(|after| after.index != before.index));
    if let (None, Some(packet), Some(receiver), true, true) =
        (drop, &packet, receiver, after.is_some(), made)
    {
        let key = Key::new(&packet.tuple, sender.vni, from, receiver.place.slot);
        if !real.has_room(real.hash(&key), |record| may_give_way(record, &context)) {
            drop = Some((SESSIONS_FULL, from));
        }
    }
    let decided =
        Decided { known: row, before, after, drop, receiver, packet: packet.as_ref(), said };
    let admitted = told::filter(plane, &context, &decided, &mut steps);
    let fate = match drop {
        Some(drop) => Fate::Dropped(refused(drop, &context)),
        None => deliver(verdict, frame, &context, room, &mut steps),
    };
    (walk(fate, admitted, steps), met)
}

/// A drop, and the slot that it is charged to.
type Drop = (DropReason, u32);

/// Who gets it, as delivery would find them.
fn deliver(
    verdict: Verdict,
    frame: &[u8],
    context: &Context<'_>,
    room: &Room,
    steps: &mut Vec<Step>,
) -> Fate {
    let outcome = match verdict {
        Verdict::Deliver(slot) => match context.snapshot.vnics.get(slot) {
            None => Err((NOT_ATTACHED, slot)),
            Some(receiver) => takes(receiver).map_err(|reason| (reason, slot)).map(|free| {
                steps.push(told::delivery(receiver, free));
                Fate::Delivered(receiver.id.to_string())
            }),
        },
        Verdict::Tunnel(peer) => leaves(frame, context, peer).map(|(to, step)| {
            steps.push(step);
            Fate::Leaves(to)
        }),
        Verdict::Flood { unknown } => flood(unknown, frame, context, room, steps),
        Verdict::Drop(reason, slot) => Err((reason, slot)),
        Verdict::Undecided | Verdict::Later => Err((NO_RECEIVER, context.sender.place.slot)),
    };
    outcome.unwrap_or_else(|drop| {
        let stage = if matches!(verdict, Verdict::Tunnel(_)) { "tunnel" } else { "delivery" };
        steps.push(told::dropped(stage, drop.0));
        Fate::Dropped(refused(drop, context))
    })
}

fn refused((reason, slot): Drop, context: &Context<'_>) -> Refused {
    let charged =
        context.snapshot.vnics.get(slot).map(|vnic| vnic.id.to_string()).unwrap_or_default();
    Refused { reason: info(reason), charged }
}

/// The same for what goes to several.
fn flood(
    unknown: bool,
    frame: &[u8],
    context: &Context<'_>,
    room: &Room,
    steps: &mut Vec<Step>,
) -> Result<Fate, Drop> {
    let own = context.sender.place.slot;
    let others = context
        .network
        .members
        .iter()
        .filter(|slot| **slot != own)
        .filter_map(|slot| context.snapshot.vnics.get(*slot));
    let others: Vec<_> = others.filter(|receiver| receiver.rules.bypass || !unknown).collect();
    let remote = context.remote();
    if others.is_empty() && remote.is_none() {
        let destination = Ethernet::parse(frame).map_or(0, |frame| number(frame.destination()));
        return Err((nobody(destination), own));
    }
    // As the limit counts: whoever may not have it, too.
    let members = context.network.members.len() - usize::from(!context.sender.trunk);
    let copies = members + remote.map_or(0, |remote| remote.peers.len().max(1));
    if !may_flood(context.sender, copies as u64, frame.len() as u32) {
        return Err((FLOOD_LIMIT, own));
    }
    let (mut here, mut away, mut drops) = (Vec::new(), Vec::new(), Vec::new());
    let mut details = Vec::new();
    for receiver in others {
        let slot = receiver.place.slot;
        match admits_flooded(room, 0, receiver, context)
            .and_then(|()| takes(receiver).map_err(|reason| (reason, slot)))
        {
            Ok(_) => here.push(receiver.id.to_string()),
            Err(drop) => {
                details.push(format!("not {}: {}", receiver.id, drop.0.name()));
                drops.push(refused(drop, context));
            }
        }
    }
    steps.push(told::flooded(&here, details));
    if let (Some(remote), Some(tunnel)) = (remote, context.tunnel) {
        let group = [tunnel.groups.of(context.sender.vni).1];
        let sent: Vec<_> = match remote.peers.is_empty() {
            true => vec![
                fits(frame, context, tunnel)
                    .map(|()| (group[0], told::leaves(context, tunnel, &group, true))),
            ],
            false => remote.peers.iter().map(|peer| leaves(frame, context, *peer)).collect(),
        };
        for sent in sent {
            match sent {
                Ok((to, step)) => {
                    away.push(to);
                    steps.push(step);
                }
                Err(drop) => {
                    steps.push(told::dropped("tunnel", drop.0));
                    drops.push(refused(drop, context));
                    // Too big for one is too big for all.
                    if drop.0 == TOO_BIG {
                        break;
                    }
                }
            }
        }
    }
    Ok(Fate::Flooded { here, away, refused: drops })
}

/// Times that a ring is looked for while a worker has it.
const LOOKS: u32 = 64;

/// Buffers that a guest offers; or why it gets nothing. Waits for no worker: who has the ring all
/// the time delivers to it.
fn takes(receiver: &Vnic) -> Result<Option<u16>, DropReason> {
    for _ in 0..LOOKS {
        if let Some(ring) = receiver.shared.port.try_rx() {
            return match ring.as_ref().map(|ring| ring.status()) {
                Some(ring) if ring.enabled && !ring.broken => {
                    match ring.avail_idx.wrapping_sub(ring.next_avail) {
                        0 => Err(RING_FULL),
                        free => Ok(Some(free)),
                    }
                }
                _ => Err(NOT_ATTACHED),
            };
        }
        std::thread::yield_now();
    }
    Ok(None)
}

/// Whether it fits the uplink, and that is up.
fn fits(frame: &[u8], context: &Context<'_>, tunnel: &Tunnel) -> Result<(), Drop> {
    let own = context.sender.place.slot;
    if frame.len() as u64 > u64::from(tunnel.largest()) {
        return Err((TOO_BIG, own));
    }
    let trunk = context.remote().map_or(own, |remote| remote.slot);
    if tunnel.down.load(Relaxed) || tunnel.port.is_down() {
        Err((UPLINK_DOWN, trunk))
    } else {
        Ok(())
    }
}

/// The host that it leaves for.
fn leaves(frame: &[u8], context: &Context<'_>, peer: PeerRef) -> Result<(IpAddr, Step), Drop> {
    let own = context.sender.place.slot;
    let trunk = context.remote().map_or(own, |remote| remote.slot);
    let tunnel = context.tunnel.ok_or((UPLINK_DOWN, trunk))?;
    fits(frame, context, tunnel)?;
    let peer = tunnel.peers.get(peer).ok_or((NO_NEIGHBOUR, trunk))?;
    let to = address(peer.address());
    match peer.mac() {
        Some(_) => Ok((to, told::leaves(context, tunnel, &[to], false))),
        None if peer.is_waited_for() => Err((NO_NEIGHBOUR, trunk)),
        None => Ok((to, told::waits(to))),
    }
}
