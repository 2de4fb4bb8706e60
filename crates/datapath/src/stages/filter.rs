//! Filter: decides statefully which packets pass to and from a filtered vnic.
//!
//! A frame of a known session passes by it, whatever the rules. For any other frame, the sender's
//! groups decide whether it may leave and the receiver's whether it may enter; if so, it makes a
//! session. Four passes over a batch make a lookup's misses overlap: read all frames, hash them,
//! find all records, then judge. Frames other than plain TCP or UDP take [`slow`].

mod dhcp;
mod fast;
mod fragment_decision;
mod known;
pub(crate) mod read;
mod reasons;
mod room;
mod session_of;
mod share;
mod slow;

use butterfly_vhost::ring::{Slot, own_memory};

use crate::engine::{
    batch::{Batch, Consumed, Exits, Meta, Verdict},
    inside::Inside,
    reason::ReasonInfo,
};
use crate::ip::frame::inside;
use crate::session::{Key, Zone};
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};
use crate::world::snapshot::{Network, Remote, Vnic};

pub(crate) use fragment_decision::FragmentDecision;
use known::{Judgement, is_current, pass};
pub(crate) use read::read as read_packet;
pub(crate) use reasons::*;
use room::SessionNotes;
pub(crate) use room::{FilterRoom, Judged};
use room::{Flow, Path};
pub(crate) use session_of::session_of;
pub(crate) use share::{
    counted, full_shares, has_room, may_give_way, opener_number, released, rests,
};
pub(crate) use slow::{admits_flooded, is_from_outside, note_flooded, rule_port, rules_say};

/// Decides by sessions and rules. Its scratch says which vnics may have floods.
pub(crate) struct Filter;

impl Stage for Filter {
    const NAME: &'static str = "filter";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = FilterRoom;

    fn scratch(config: &StageConfig<'_>) -> FilterRoom {
        FilterRoom::new(config.timeouts)
    }

    fn retime(scratch: &mut FilterRoom, config: &StageConfig) {
        scratch.retime(config.timeouts);
    }

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, scratch: &mut FilterRoom) {
        if concerns(batch, context) {
            filter(batch, context, scratch);
        }
    }
}

/// Decides all frames that go to one vnic, and whether floods may leave. Floods meet each
/// receiver's policy when they are delivered.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn filter(batch: &mut Batch<'_>, context: &Context<'_>, room: &mut FilterRoom) {
    batch.read(inside);
    let mut pending = if batch.exits().any() {
        read_crossing(batch, context, room)
    } else {
        let own = Zone::of(context.sender.vni);
        read(
            batch,
            context,
            room,
            |_, _| context.entry,
            |_, _| context.entry.remote.as_ref(),
            |_, _, _| own,
        )
    };
    if batch.answers != 0 {
        read_answered(batch, room, &mut pending);
    }
    // What follows touches the table of sessions, not the sender's memory.
    own_memory();
    match (pending.fast, batch.frames.len()) {
        (false, _) => {}
        (true, 1) => find_lone(context, room),
        (true, _) => {
            hash(batch, context, room);
            find(batch, context, room);
        }
    }
    if pending.fast || pending.slow {
        judge(batch, context, room);
    }
}

/// Returns whether a vnic of the networks by which the frames come and leave is filtered.
#[inline(always)]
fn concerns(batch: &Batch<'_>, context: &Context<'_>) -> bool {
    context.entry.filtered || batch.exits().any() && concerns_exit(batch, context)
}

#[inline(never)]
fn concerns_exit(batch: &Batch<'_>, context: &Context<'_>) -> bool {
    (0..batch.frames.len()).any(|index| context.exit(batch.exits(), index).filtered)
}

#[derive(Default)]
struct Pending {
    fast: bool,
    slow: bool,
}

#[inline(never)]
fn read_crossing(batch: &mut Batch<'_>, context: &Context<'_>, room: &mut FilterRoom) -> Pending {
    let exit = |exits: Exits<'_>, index| context.exit(exits, index);
    let far = |exits: Exits<'_>, index| far_end(exits, index, context);
    // Frames of a batch tend to have the receiver of the one before. With other hosts a vnic is in
    // two zones.
    let from_others = context.sender.is_trunk();
    let trunk = context.remote().map_or(u32::MAX, |remote| remote.slot);
    let own = Zone::of(context.sender.vni);
    let mut last = (u32::MAX, own);
    let zone_to = |exits: Exits<'_>, index: usize, receiver| {
        if last.0 == receiver && receiver != trunk && !from_others {
            return last.1;
        }
        let vnic = context.snapshot.vnics.get(receiver);
        let zone = vnic.map_or(own, |vnic| zone_of(exits.is_routed(index), vnic, context));
        last = (receiver, zone);
        zone
    };
    read(batch, context, room, exit, far, zone_to)
}

/// Returns the far end of the session of a frame that leaves for another host: of a routed one the
/// other hosts of the *sender's* network, from which its answers come.
pub(crate) fn far_end<'a>(
    exits: Exits<'_>,
    index: usize,
    context: &Context<'a>,
) -> Option<&'a Remote> {
    match exits.is_routed(index) {
        true => context.remote(),
        false => context.remote_of(context.exit(exits, index)),
    }
}

/// Returns the zone of the session of a frame and its receiver. `routed`: a router passes the frame
/// on, of this host or of another one. If another host has one of the ends, the network of the
/// other end is what this host knows it by.
#[inline]
pub(crate) fn zone_of(routed: bool, receiver: &Vnic, context: &Context<'_>) -> Zone {
    let (here, there) = (context.sender.vni, receiver.vni);
    if routed && here == there { Zone::routed(here) } else { Zone::between(here, there) }
}

/// Has the slow path ask whether what a router answers may leave its sender. A lease needs no rule,
/// nor who asks for routers, and a request is read only once it is answered.
#[cold]
fn read_answered(batch: &Batch<'_>, room: &mut FilterRoom, pending: &mut Pending) {
    for (index, flow) in room.flows.iter_mut().enumerate().take(batch.frames.len()) {
        let leases = |meta: &Meta| {
            let what =
                [Consumed::Dhcp, Consumed::Dhcp6, Consumed::Solicitation].map(Verdict::Consumed);
            what.contains(&meta.verdict)
        };
        if batch.is_answered(index) && !batch.metas().get(index).is_some_and(leases) {
            flow.path = Path::Slow;
            pending.slow = true;
        }
    }
}

/// First pass: reads each frame. `exit` returns the network by which it leaves, `far` the end that
/// other hosts are, `zone_to` the zone of its session with a receiver.
#[inline(always)]
fn read<'a>(
    batch: &mut Batch<'_>,
    context: &Context<'a>,
    room: &mut FilterRoom,
    exit: impl Fn(Exits<'_>, usize) -> &'a Network,
    far: impl Fn(Exits<'_>, usize) -> Option<&'a Remote>,
    mut zone_to: impl FnMut(Exits<'_>, usize, u32) -> Zone,
) -> Pending {
    let sender = context.sender;
    let bypass = sender.rules.bypass;
    let mut pending = Pending::default();
    let (frames, metas, exits) = batch.all_parts();
    let mut last = (u32::MAX, false);
    let each = frames.each().zip(metas.iter_mut()).zip(room.flows.iter_mut()).enumerate();
    for (index, (((frame, slot), meta), flow)) in each {
        flow.path = Path::Done;
        let receiver = match meta.verdict {
            Verdict::Deliver(receiver) => receiver,
            Verdict::Tunnel(_) => match far(exits, index) {
                Some(remote) => remote.slot,
                None => continue,
            },
            Verdict::Flood { .. } => {
                // Of a batch that is here for what routers pass on.
                if exit(exits, index).filtered {
                    flow.path = Path::Slow;
                    pending.slow = true;
                }
                continue;
            }
            _ => continue,
        };
        if last.0 != receiver {
            last = (
                receiver,
                context.snapshot.vnics.get(receiver).is_some_and(|vnic| vnic.rules.bypass),
            );
        }
        if bypass && last.1 {
            continue;
        }
        match meta.inside {
            Inside::Ip { .. } => {}
            Inside::HiddenIp => {
                // The sender that hides IP is to blame.
                meta.verdict = Verdict::Drop(IP_HIDDEN, sender.place.slot);
                continue;
            }
            Inside::Arp(_) | Inside::Rarp | Inside::NonIp => continue,
        }
        flow.receiver = receiver;
        flow.path = Path::Slow;
        if let Some((tuple, segment)) = fast::read(Slot::bytes(slot), frame.len) {
            flow.path = Path::Fast;
            flow.tcp = segment.is_some();
            if let Some(segment) = segment {
                flow.segment = segment;
            }
            flow.key =
                Key::new(&tuple, zone_to(exits, index, receiver), sender.place.slot, receiver);
            pending.fast = true;
        } else {
            pending.slow = true;
        }
    }
    pending
}

/// Does the second and the third pass for a batch of one, for which nothing is fetched ahead.
fn find_lone(context: &Context<'_>, room: &mut FilterRoom) {
    if let Some(flow) = room.flows.first_mut() {
        flow.hash = context.table.hash(&flow.key);
        flow.candidate = context.table.candidate(flow.hash);
    }
}

/// Second pass: fetches the bucket of each flow.
fn hash(batch: &Batch<'_>, context: &Context<'_>, room: &mut FilterRoom) {
    let flows = room.flows.get_mut(..batch.frames.len()).unwrap_or_default().iter_mut();
    context.table.hash_each(
        flows.filter(|flow| flow.path == Path::Fast),
        |flow| &flow.key,
        |flow, hash| flow.hash = hash,
    );
}

/// Third pass: fetches the record of each flow.
fn find(batch: &Batch<'_>, context: &Context<'_>, room: &mut FilterRoom) {
    for flow in room.flows.get_mut(..batch.frames.len()).unwrap_or_default() {
        if flow.path == Path::Fast {
            flow.candidate = context.table.candidate(flow.hash);
        }
    }
}

/// Fourth pass: judges, in the order of the frames, and writes what changed.
fn judge(batch: &mut Batch<'_>, context: &Context<'_>, room: &mut FilterRoom) {
    let mut receiver: Option<&Vnic> = None;
    for index in 0..batch.frames.len() {
        let Some(flow) = room.flows.get(index) else { break };
        let judgement = match flow.path {
            Path::Done => continue,
            Path::Fast => {
                if receiver.is_none_or(|vnic| vnic.place.slot != flow.receiver) {
                    receiver = context.snapshot.vnics.get(flow.receiver).map(|vnic| &**vnic);
                }
                let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
                match receiver
                    .and_then(|receiver| established(flow, len, receiver, context, &mut room.notes))
                {
                    Some(Ok(())) => continue,
                    Some(refused) => refused,
                    None => slow::judge(batch, index, context, room),
                }
            }
            Path::Slow => slow::judge(batch, index, context, room),
        };
        if let Err((reason, slot)) = judgement
            && let Some(meta) = batch.parts().1.get_mut(index)
        {
            meta.verdict = Verdict::Drop(reason, slot);
        }
    }
    room.notes.flush(context);
}

/// Passes a frame by its session, if that is known and nothing about it has changed.
#[inline(always)]
fn established(
    flow: &Flow,
    len: u32,
    receiver: &Vnic,
    context: &Context<'_>,
    notes: &mut SessionNotes,
) -> Option<Judgement> {
    let found = context.table.check(flow.candidate?, &flow.key)?;
    if !is_current(&found, context, receiver) || (found.direction == 1 && !found.admission.answers)
    {
        return None;
    }
    let segment = if flow.tcp { Some(&flow.segment) } else { None };
    pass(&found, segment, len, receiver, context, notes)
}
