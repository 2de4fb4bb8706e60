//! Recorder: runs a frame through the pipeline in a world of its own, and notes the decision of
//! each stage.

use std::sync::atomic::Ordering::Relaxed;

use butterfly_packet::{
    mac::Mac,
    translate::{Ends, ends},
};
use butterfly_vhost::ring::{FrameStore, Frames};

use super::{
    Fate, Refused, Rewritten, Step, Walk,
    probe::{Event, Probe},
    scratch::World,
    told::{self, FilterGrounds, Known},
    told6,
};
use crate::engine::{
    batch::{Batch, Consumed, Metas, Verdict},
    inside::Inside,
    place::PeerRef,
    reason::DropReason,
};
use crate::ip::{Address, L4, Packet, frame::inside};
use crate::plane::{Plane, sessions::Admission};
use crate::session::{Found, Key, Zone};
use crate::stages::{
    antispoof::Antispoof,
    claims::{self, Claims},
    context::Context,
    deliver::deliver,
    filter::{
        Filter, SESSIONS_FULL, far_end, full_shares, may_give_way, read_packet, rests, rules_say,
        zone_of,
    },
    forward::{Forward, NO_RECEIVER},
    headers::Headers,
    leave::Departures,
    masquerade::Masquerade,
    offload::Offload,
    pipeline::{self, Observer, Scratches},
    reasons::info,
    route::Route,
    stage::Stage,
    translate::{Translate, packet_of},
    turn::Cut,
};
use crate::world::snapshot::Vnic;

/// A drop, and the slot that it is charged to.
type Drop = (DropReason, u32);

/// Runs a frame from the vnic in this slot, or from the trunk. Also returns the slot in which the
/// frame met its receiver, and the ends by which the receiver knows it.
pub(super) fn record(
    plane: &Plane,
    world: &World<'_>,
    scratches: &mut Scratches,
    from: u32,
    frame: &[u8],
) -> (Walk, Option<u32>, Option<Ends>) {
    let walk = |fate, admitted, steps, routed| Walk {
        packet: told::packet(frame),
        frame: frame.to_vec(),
        steps,
        admitted,
        routed,
        fate,
    };
    let sender = world.snapshot.vnics.get(from);
    let network = sender.and_then(|sender| world.snapshot.networks.get(sender.network));
    let (Some(sender), Some(network)) = (sender, network) else {
        let nobody = Refused { reason: info(NO_RECEIVER), charged: String::new() };
        return (walk(Fate::Dropped(nobody), [None, None], Vec::new(), None), None, None);
    };
    let context = world.context(sender, network);
    let mut store = FrameStore::default();
    let mut metas = Metas::new();
    let mut batch = Batch::new(Frames::private(&mut store, std::iter::once(frame)), &mut metas);
    if sender.is_trunk() {
        // The host is not known. One that passed the frame on need not have the source's address.
        batch.parts().1.iter_mut().for_each(|meta| meta.peer = PeerRef::PASSED_ON);
    }
    let mut recorder = Recorder::new(plane, world, from, frame);
    pipeline::run(&mut batch, &context, scratches, &mut recorder);
    let Recorder { mut steps, drop, admitted, met, routed, verdict, .. } = recorder;
    let fate = match drop {
        Some(drop) => Fate::Dropped(refused(drop, &context)),
        None => {
            let probe = Probe::default();
            let (mut departures, mut calls) = (Departures::default(), Vec::new());
            let Scratches { filter, turn, .. } = scratches;
            let vni = context.exit(batch.exits(), 0).vni;
            deliver(
                &mut batch,
                &context,
                filter,
                &mut departures,
                &mut calls,
                turn.turn(),
                &&probe,
            );
            let answered = batch.metas().first().map(|meta| meta.verdict);
            match (verdict, answered) {
                (Verdict::Consumed(_), Some(Verdict::Drop(reason, slot))) => {
                    steps.push(told::dropped("answer", reason));
                    Fate::Dropped(refused((reason, slot), &context))
                }
                (Verdict::Consumed(Consumed::Dhcp6 | Consumed::Solicitation), _) => {
                    steps.push(told6::answered(&probe.answer(), &context));
                    Fate::Answered
                }
                (Verdict::Consumed(Consumed::Dhcp), _) => {
                    steps.push(told::leases(&probe.answer(), &context));
                    Fate::Answered
                }
                _ => tell(probe.events(), (verdict, vni), &context, &mut steps),
            }
        }
    };
    let ends = ends(packet_of(&batch, 0)).ok();
    (walk(fate, admitted, steps, routed), met, ends)
}

/// Notes the decisions of the stages on one frame.
struct Recorder<'a> {
    plane: &'a Plane,
    world: &'a World<'a>,
    from: u32,
    frame: &'a [u8],
    steps: Vec<Step>,
    drop: Option<Drop>,
    admitted: [Option<Admission>; 2],
    /// Slot in which the frame met its receiver.
    met: Option<u32>,
    /// Way on from a router.
    routed: Option<Rewritten>,
    /// Zone of the session between both.
    zone: Zone,
    /// Verdict of `forward`.
    verdict: Verdict,
    /// An address that the frame claims and that another vnic has.
    claimed: Option<Address>,
    packet: Option<Packet>,
    /// The session before the filter looked.
    known: Option<Known>,
    before: Option<Found>,
    said: Option<[Result<u32, DropReason>; 2]>,
}

impl Observer for Recorder<'_> {
    fn after(&mut self, stage: &'static str, batch: &mut Batch<'_>, context: &Context<'_>) {
        let verdict = batch.metas().first().map_or(Verdict::Undecided, |meta| meta.verdict);
        if let Some(before) = self.drop {
            // A router would tell of its drop, and the sender's rules do not let it ask.
            if let Verdict::Drop(reason, slot) = verdict
                && (reason, slot) != before
            {
                self.drop = Some((reason, slot));
                self.steps.pop();
                self.stopped(stage, reason, context);
            }
            return;
        }
        if let Verdict::Drop(reason, slot) = verdict {
            self.drop = Some((reason, slot));
            if stage != Filter::NAME {
                return self.stopped(stage, reason, context);
            }
        }
        if stage == Headers::NAME && batch.unusual {
            // The next stages tell only that it claims an address.
            self.claimed = claims::claimed(batch, 0, context);
        } else if stage == Claims::NAME {
            self.steps.push(told::source(context.sender));
        } else if stage == Offload::NAME {
            self.read(batch, context);
        } else if stage == Translate::NAME {
            if let Some(step) = told::translated(batch) {
                self.steps.push(step);
                // From here on the packet has the address inside.
                self.read(batch, context);
            }
        } else if stage == Route::NAME {
            let to = self.packet.as_ref().map(|packet| packet.tuple.destination);
            self.steps.extend(told::route(batch, to, context));
        } else if stage == Forward::NAME {
            self.verdict = verdict;
            self.looked_up(batch, context);
        } else if stage == Filter::NAME {
            self.filtered(context);
        } else if stage == Masquerade::NAME {
            let source = self.packet.as_ref().map(|packet| packet.tuple.source);
            self.steps.extend(told::masquerade(batch, source, context));
            self.routed = told::rewritten(batch, context);
        }
    }
}

impl<'a> Recorder<'a> {
    fn new(plane: &'a Plane, world: &'a World<'a>, from: u32, frame: &'a [u8]) -> Recorder<'a> {
        Recorder {
            plane,
            world,
            from,
            frame,
            steps: Vec::new(),
            drop: None,
            admitted: [None, None],
            met: None,
            routed: None,
            zone: Zone::of(0),
            verdict: Verdict::Undecided,
            claimed: None,
            packet: None,
            known: None,
            before: None,
            said: None,
        }
    }

    /// Notes a drop by a stage that tells nothing else.
    fn stopped(&mut self, stage: &'static str, reason: DropReason, context: &Context<'_>) {
        let name = match stage {
            Antispoof::NAME | Claims::NAME => "source",
            Forward::NAME | Cut::NAME => "lookup",
            other => other,
        };
        let mut step = told::dropped(name, reason);
        if let (Claims::NAME, Some(address)) = (stage, self.claimed) {
            step.details.extend(told::owner(address, context));
        }
        if stage == Route::NAME {
            step.details.extend(told::undelivered(self.frame, reason, context));
        }
        self.steps.push(step);
    }

    /// Reads the packet, and copies the switch's knowledge of it into this world.
    fn read(&mut self, batch: &mut Batch<'_>, context: &Context<'_>) {
        let vni = context.sender.vni;
        batch.read(inside);
        if let Some(Inside::Ip { at, vlan }) = batch.metas().first().map(|meta| meta.inside) {
            self.packet = read_packet(batch, 0, at, vlan, self.frame.len() as u32).ok();
        }
        let mac = |at: usize| {
            let bytes = self.frame.get(at..at + 6).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(Mac::ZERO, |bytes| Mac(*bytes))
        };
        self.world.take_stations(vni, [mac(0), mac(6)]);
        let Some(packet) = &self.packet else { return };
        self.world.take_neighbours(vni, packet.tuple.destination);
        let quoted = match &packet.l4 {
            L4::Error(quoted) => Some(quoted.tuple),
            _ => None,
        };
        for zone in self.world.zones(vni) {
            for tuple in [packet.tuple].into_iter().chain(quoted) {
                self.world.take_sessions(&Key::new(&tuple, zone, self.from, self.from));
            }
        }
    }

    fn receiver<'c>(&self, context: &Context<'c>) -> Option<&'c Vnic> {
        self.met.and_then(|slot| context.snapshot.vnics.get(slot)).map(|vnic| &**vnic)
    }

    /// Returns the key of the packet's session with its receiver.
    fn key(&self, context: &Context<'_>) -> Option<Key> {
        let packet = self.packet.as_ref()?;
        let receiver = self.receiver(context)?;
        Some(Key::new(&packet.tuple, self.zone, self.from, receiver.place.slot))
    }

    fn find(&self, context: &Context<'_>) -> Option<Found> {
        let key = self.key(context)?;
        context.table.lookup(context.table.hash(&key), &key)
    }

    /// Notes the packet's receiver, and the facts that the filter goes by.
    fn looked_up(&mut self, batch: &Batch<'_>, context: &Context<'_>) {
        self.steps.push(told::lookup(self.verdict, self.frame, batch, context));
        self.met = match self.verdict {
            Verdict::Deliver(slot) => Some(slot),
            // As in the filter: an address that no vnic here owns is on another host.
            Verdict::Tunnel(_) | Verdict::Flood { unknown: true } => {
                far_end(batch.exits(), 0, context).map(|remote| remote.slot)
            }
            _ => None,
        };
        if let Some(receiver) = self.receiver(context) {
            self.zone = zone_of(batch.exits().is_routed(0), receiver, context);
        }
        let real = &self.plane.shared.table;
        self.before = self.find(context);
        self.known = self.before.and_then(|found| Known::of(&found, context, real));
        if let (Some(packet), Some(receiver)) = (&self.packet, self.receiver(context)) {
            self.said = Some(rules_say(packet, receiver, self.zone, context));
        }
        self.make_room(context);
    }

    /// Discounts the sessions that would go for the new one. They are in the switch's table, not in
    /// this world's.
    fn make_room(&self, context: &Context<'_>) {
        let Some(key) = self.key(context) else { return };
        let real = &self.plane.shared.table;
        let mut full = full_shares(context, &key).peekable();
        let would_go = full.peek().is_some()
            && full.all(|whose| {
                !rests(context)
                    && real
                        .could_make_room(real.hash(&key), |record| whose.may_give(record, context))
            });
        if would_go {
            let ends = [self.from, key.slots().1];
            let ends = ends.iter().filter_map(|slot| context.snapshot.vnics.get(*slot));
            ends.for_each(|vnic| vnic.shared.sessions.forget());
            let home = context.snapshot.network(key.vni());
            home.into_iter().for_each(|network| network.sessions.store(0, Relaxed));
            context.shares.forget();
        }
    }

    /// Notes the decision of the filter.
    fn filtered(&mut self, context: &Context<'_>) {
        let real = &self.plane.shared.table;
        let after = self.find(context);
        let made =
            self.before.is_none_or(|before| after.is_some_and(|after| after.index != before.index));
        // This world's table has room, but the switch's may have none.
        if self.drop.is_none()
            && after.is_some()
            && made
            && let Some(key) = self.key(context)
            && !real.has_room(real.hash(&key), |record| may_give_way(record, key.vni(), context))
        {
            self.drop = Some((SESSIONS_FULL, self.from));
        }
        let decided = FilterGrounds {
            known: self.known.take(),
            before: self.before,
            after,
            drop: self.drop,
            receiver: self.receiver(context),
            packet: self.packet.as_ref(),
            said: self.said.take(),
        };
        self.admitted = told::filter(self.plane, context, &decided, &mut self.steps);
    }
}

fn refused((reason, slot): Drop, context: &Context<'_>) -> Refused {
    Refused { reason: info(reason), charged: id(slot, context) }
}

fn id(slot: u32, context: &Context<'_>) -> String {
    context.snapshot.vnics.get(slot).map(|vnic| vnic.id.to_string()).unwrap_or_default()
}

/// Tells the events of delivery. A frame with one receiver has one fate, a flood has many.
fn tell(
    events: Vec<Event>,
    (verdict, vni): (Verdict, u32),
    context: &Context<'_>,
    steps: &mut Vec<Step>,
) -> Fate {
    if let Verdict::Flood { .. } = verdict {
        return tell_flood(events, context, steps);
    }
    match events.into_iter().next() {
        Some(Event::Taken { slot, free }) => {
            if let Some(receiver) = context.snapshot.vnics.get(slot) {
                steps.push(told::delivery(receiver, free));
            }
            Fate::Delivered(id(slot, context))
        }
        Some(Event::Left { to, group }) => {
            steps.extend(told::leaves(context, vni, to, group));
            Fate::Leaves(to)
        }
        Some(Event::Waits(to)) => {
            steps.push(told::waits(to));
            Fate::Leaves(to)
        }
        Some(Event::Refused { reason, charged, .. }) => {
            steps.push(told::dropped("delivery", reason));
            Fate::Dropped(refused((reason, charged), context))
        }
        Some(Event::NotSent { reason, charged }) => {
            steps.push(told::dropped("tunnel", reason));
            Fate::Dropped(refused((reason, charged), context))
        }
        None if verdict == Verdict::Consumed(Consumed::Waits) => Fate::Waits,
        None if matches!(verdict, Verdict::Consumed(_)) => Fate::Answered,
        None => {
            steps.push(told::dropped("delivery", NO_RECEIVER));
            Fate::Dropped(refused((NO_RECEIVER, context.sender.place.slot), context))
        }
    }
}

fn tell_flood(events: Vec<Event>, context: &Context<'_>, steps: &mut Vec<Step>) -> Fate {
    let (mut here, mut away, mut drops) = (Vec::new(), Vec::new(), Vec::new());
    let (mut details, mut outside) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Refused { receiver: None, reason, charged } => {
                steps.push(told::dropped("delivery", reason));
                return Fate::Dropped(refused((reason, charged), context));
            }
            Event::Refused { receiver: Some(slot), reason, charged } => {
                details.push(format!("not {}: {}", id(slot, context), info(reason).name));
                drops.push(refused((reason, charged), context));
            }
            Event::Taken { slot, .. } => here.push(id(slot, context)),
            Event::Left { to, group } => {
                away.push(to);
                outside.extend(told::leaves(context, context.sender.vni, to, group));
            }
            Event::Waits(to) => {
                away.push(to);
                outside.push(told::waits(to));
            }
            Event::NotSent { reason, charged } => {
                outside.push(told::dropped("tunnel", reason));
                drops.push(refused((reason, charged), context));
            }
        }
    }
    steps.push(told::flooded(&here, details));
    steps.extend(outside);
    Fate::Flooded { here, away, refused: drops }
}
