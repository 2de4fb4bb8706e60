//! Delivery: one copy into each receiver's buffers, and the order in which guests see it.
//!
//! Floods first, receiver by receiver; then frames with one receiver, then copies for mirrors; then
//! the sender's used index, then the receivers'. A crash in between may lose a batch, never repeat
//! it, but for floods and copies.

use std::{cell::Cell, ops::Range, sync::Arc};

use arrayvec::ArrayVec;
use butterfly_vhost::{
    net::{Features, NetHeader},
    ring::{BATCH, CallFd, Delivery, Finish, Frames, NotDelivered},
};

use crate::engine::writer::Writer;
use crate::engine::{
    batch::{Batch, Meta, Verdict},
    counters::Counter,
    place::likely_of,
    reason::{DropReason, drop_reasons},
    reserved::is_host,
};
use crate::ip::MALFORMED_IP;
use crate::stages::{
    answers::consume,
    asks::may_hear_frame,
    context::Context,
    cuts::{self, CutPacket},
    filter::{FilterRoom, admits_flooded, note_flooded},
    forward::nobody,
    join,
    leave::{Departures, leave},
    leaving::Leaving,
    mirror::{mirror, mirror_answer},
    outlet::{Outlet, Receive},
    segment::{self, Segments},
    take::take,
    turn::{Turn, packets, weight},
    ways::next_way,
};
use crate::world::{
    limits::Limit,
    snapshot::{Budgets, Network, PortKind, Vnic},
    steering::Steering,
};

drop_reasons! { 5;
    /// The receiving guest had no buffers left: it does not read fast enough.
    RING_FULL = "ring-full" {
        cause: "the machine is slower than what is sent to it, which is normal under overload; or it is stopped",
        remedy: "give the machine more processor time, or a longer ring: `rx_queue_size=1024` on QEMU's `-device virtio-net-pci`; `butterfly nic show NIC` tells how full it is",
        charged: "the receiver",
    }
    /// The receiving vnic has no guest, or its driver did not start the receive queue.
    NOT_ATTACHED = "not-attached" {
        cause: "a machine that boots, has crashed, or was cut off when the daemon started anew",
        remedy: "`butterfly nic show NIC` tells whether one is attached, and why the last one went: start it, or see \"A machine does not attach\" in docs/troubleshooting.md",
        charged: "the receiver",
    }
    /// The frame is larger than any buffer the receiving guest offers.
    RX_TOO_LARGE = "rx-too-large" {
        cause: "the sender's MTU is larger than the receiver's, and the receiver has no mergeable buffers",
        remedy: "give both the same MTU, or the receiver mergeable buffers: `mrg_rxbuf=on` on QEMU's `-device virtio-net-pci`",
        charged: "the receiver",
    }
    /// A receive buffer of the guest breaks the rules: a loop, an index or address out of range, or
    /// wrong flags.
    RX_BAD_CHAIN = "rx-bad-chain" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "look into the machine's kernel log and replace its virtio-net driver; `butterfly nic show NIC` tells the state of its rings",
        charged: "the receiver",
    }
    /// The receiving guest's buffers are in so many small pieces that finding room in them costs
    /// too much.
    RX_SLOW = "rx-slow" {
        cause: "a broken or hostile virtio driver in the machine, which would take the worker's time from others",
        remedy: "replace the machine's virtio-net driver, or give it larger buffers: one descriptor for each 128 bytes of a frame, and 20 more, are free",
        charged: "the receiver",
    }
    /// The receiving vnic rests: the switch had to touch too much of its memory first, or to sleep
    /// for a page of it.
    RX_RESTING = "rx-resting" {
        cause: "memory that the machine has not got from the host yet, that a balloon took back, or that is in swap: each page costs the switch a page fault, and of those each vnic has a budget",
        remedy: "give the machine's memory back end `prealloc=on`, and the host enough memory for its machines; `butterfly nic show NIC` tells how many pages that were",
        charged: "the receiver",
    }
    /// The receiving vnic is held: the switch ended twice while it touched the vnic's rings.
    HELD = "held" {
        cause: "a fault of the switch that something in the machine sets off, by what it sends or by the buffers that it offers",
        remedy: "`butterfly nic show NIC` tells why and for how long; `butterfly nic release NIC` lets it go at once; please report it, with the log of the daemon that ended",
        charged: "the receiver",
    }
    /// The vnic floods more than its share.
    FLOOD_LIMIT = "flood-limit" {
        cause: "a loop inside the machine, or a scan of addresses that nobody has",
        remedy: "look at the packet's destination: break the loop, or stop the scan, in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// More is sent to the vnic than its limit allows.
    RATE_LIMITED = "rate-limited" {
        cause: "others send more to the machine than `--limit-out` of its vnic allows; streams of TCP slow down by that",
        remedy: "`butterfly nic show NIC` tells the limit, and `butterfly nic update --id NIC --limit-out 2G` changes it; senders on your hosts are better slowed down by `--limit-in` of their own vnics, which loses nothing",
        charged: "the receiver",
    }
}

/// Copies that a vnic's floods may cause per second, and at once. A copy of a large frame counts as
/// several.
const FLOOD_RATE: u64 = 1_000_000;
const FLOOD_BURST: u64 = 65_536;
/// Interrupts to send once no ring is held any more.
pub(crate) type Calls = Vec<Arc<CallFd>>;

#[inline(always)]
pub(crate) fn call(calls: &mut Calls, call: Option<Arc<CallFd>>) {
    if let Some(call) = call {
        if calls.len() < calls.capacity() {
            calls.push(call);
        } else {
            call.signal(); // more receivers than fit: rather early than allocated
        }
    }
}

impl From<NotDelivered> for DropReason {
    fn from(why: NotDelivered) -> DropReason {
        match why {
            NotDelivered::Full => RING_FULL,
            NotDelivered::NotReady => NOT_ATTACHED,
            NotDelivered::Held => HELD,
            NotDelivered::TooLarge => RX_TOO_LARGE,
            NotDelivered::BadChain => RX_BAD_CHAIN,
            NotDelivered::Slow => RX_SLOW,
            NotDelivered::Resting => RX_RESTING,
        }
    }
}

/// Counts of a receiver in a batch.
#[derive(Default)]
pub(crate) struct Got {
    packets: u64,
    bytes: u64,
}

impl Got {
    pub fn one(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    pub fn count(&self, receiver: &Vnic, worker: Writer<'_>) {
        if self.packets > 0
            && let Some(cells) = receiver.shared.counters.of(worker)
        {
            cells.add(Counter::OutPackets, self.packets);
            cells.add(Counter::OutBytes, self.bytes);
        }
    }
}

/// The pair of queues by which vnics get what is for several: floods, copies and answers.
pub(crate) const FIRST_PAIR: u8 = 0;

/// A receiver of some frames of a batch, by one of its pairs of queues.
#[derive(Clone, Copy)]
struct Receiver {
    slot: u32,
    pair: u8,
    frames: u16,
}

/// The pair of queues for each frame of a batch, where its receiver has several, and the entry of
/// its steering that says so.
type Pairs = [(u8, u16); BATCH];

/// Most times that a batch is steered anew, as other workers moved its flows meanwhile.
const STEERS: usize = 4;

type Receivers = ArrayVec<Receiver, BATCH>;

/// Receive rings that are locked, with what their vnics got.
type Opened<'a, O> = ArrayVec<(<O as Outlet>::Held<'a>, &'a Vnic, Got), BATCH>;

/// Kinds of frames other than those with one receiver on this host.
#[derive(Default)]
struct Planned {
    floods: bool,
    tunnelled: bool,
    drops: bool,
}

/// Counts the receivers that get frames of their own, with the number of frames.
fn plan(batch: &Batch<'_>, receivers: &mut Receivers) -> Planned {
    let mut planned = Planned::default();
    let mut current = Receiver { slot: u32::MAX, pair: FIRST_PAIR, frames: 0 };
    for meta in batch.metas() {
        match meta.verdict {
            Verdict::Deliver(slot) if slot == current.slot => current.frames += 1,
            Verdict::Deliver(slot) => {
                note(receivers, current);
                current = Receiver { slot, frames: 1, ..current };
            }
            Verdict::Tunnel(_) => planned.tunnelled = true,
            Verdict::Flood { .. } => planned.floods = true,
            Verdict::Drop(..) => planned.drops = true,
            Verdict::Undecided | Verdict::Later | Verdict::Consumed(_) => {}
        }
    }
    note(receivers, current);
    if receivers.len() > 1 {
        // The order in which rings are locked.
        receivers.sort_unstable_by_key(|receiver| receiver.slot);
    }
    planned
}

/// Returns the pair of queues for each frame whose receiver has several, and makes of each receiver
/// as many as it has such pairs; `None` if no receiver has.
#[inline(always)]
fn steer<O: Outlet>(
    batch: &Batch<'_>,
    context: &Context<'_>,
    receivers: &mut Receivers,
) -> Option<ArrayVec<Pairs, 1>> {
    let steers = |receiver: &Receiver| steering_of(context, receiver.slot).is_some();
    if !receivers.iter().any(steers) {
        return None;
    }
    Some(steer_each(batch, context, receivers, O::SENDS))
}

/// Returns the steering of a vnic that has several pairs of queues.
#[inline(always)]
fn steering_of<'a>(context: &Context<'a>, slot: u32) -> Option<(&'a Vnic, &'a Steering)> {
    let vnic = context.snapshot.vnics.get(slot)?;
    Some((vnic, vnic.shared.steering.get()?))
}

#[cold]
#[inline(never)]
fn steer_each(
    batch: &Batch<'_>,
    context: &Context<'_>,
    receivers: &mut Receivers,
    real: bool,
) -> ArrayVec<Pairs, 1> {
    let mut pairs = [(FIRST_PAIR, 0); BATCH];
    let tenths = context.clock.tenths();
    receivers.clear();
    for (index, (meta, pair)) in batch.metas().iter().zip(&mut pairs).enumerate() {
        let Verdict::Deliver(slot) = meta.verdict else { continue };
        if let Some((vnic, steering)) = steering_of(context, slot) {
            let port = &vnic.shared.port;
            // What comes before it in this batch is not read.
            let chosen = |pair| receivers.iter().any(|it| (it.slot, it.pair) == (slot, pair));
            let left = Cell::new(None);
            let leaves = |pair, quiet| {
                let ring = port.to_leave(pair, quiet).filter(|_| quiet || !chosen(pair));
                let leaves = ring.is_some();
                left.set(ring); // locked until the entry has its new pair
                leaves
            };
            let look = (leaves, |pair| port.has_room(pair));
            let head = batch.frames.head(index);
            *pair = steering.choose(head, port.open(), (tenths, real), look);
        }
        note(receivers, Receiver { slot, pair: pair.0, frames: 1 });
    }
    receivers.sort_unstable_by_key(|receiver| (receiver.slot, receiver.pair));
    ArrayVec::from([pairs])
}

/// Returns whether each frame still goes by the pair that was chosen. The rings are locked.
fn as_steered(batch: &Batch<'_>, context: &Context<'_>, pairs: &Pairs) -> bool {
    batch.metas().iter().zip(pairs).all(|(meta, pair)| {
        let Verdict::Deliver(slot) = meta.verdict else { return true };
        steering_of(context, slot).is_none_or(|(_, steering)| steering.is_current(*pair))
    })
}

fn note(receivers: &mut Receivers, run: Receiver) {
    if run.frames == 0 {
        return;
    }
    let same = |receiver: &&mut Receiver| (receiver.slot, receiver.pair) == (run.slot, run.pair);
    match receivers.iter_mut().find(same) {
        Some(receiver) => receiver.frames += run.frames,
        // At most one per frame, and there are BATCH of them.
        None => drop(receivers.try_push(run)),
    }
}

/// Carries out the verdicts, as far as this turn goes, and gives the frames back to the sender.
///
/// Returns where most of the next frames will go, see [`likely_of`], and whether all is done. If
/// not, the only frame stays in its ring.
#[inline(never)] // one call per batch; measurements tell stages apart by it
pub(crate) fn deliver<O: Outlet>(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    room: &FilterRoom,
    departures: &mut Departures,
    calls: &mut Calls,
    turn: &Turn,
    outlet: &O,
) -> (Option<u32>, bool) {
    let mut receivers = Receivers::new();
    let planned = plan(batch, &mut receivers);
    let mut pairs = steer::<O>(batch, context, &mut receivers);
    if planned.drops {
        count_drops(batch, context);
    }
    if batch.answers != 0 {
        consume(batch, context, departures);
    }
    if planned.floods {
        flood_all(batch, context, room, calls, turn, outlet);
    }
    let done = !turn.part
        || batch.metas().iter().all(|meta| !matches!(meta.verdict, Verdict::Flood { .. }));
    let mut held = Opened::<O>::new();
    if let Some([pairs]) = pairs.as_mut().map(ArrayVec::as_mut_slice) {
        to_pairs(batch, context, outlet, (&mut receivers, pairs), &mut held);
    } else {
        for Receiver { slot, frames, .. } in &receivers {
            let Some(receiver) = context.snapshot.vnics.get(*slot) else { continue };
            let mut guard = outlet.open(receiver, FIRST_PAIR);
            let mut got = Got::default();
            if let Some(ring) = guard.as_mut() {
                ring.prepare(*frames);
            }
            to_one(batch, guard.as_mut(), receiver, context, outlet, &mut got, |_, meta| {
                meta.verdict == Verdict::Deliver(*slot)
            });
            let _ = held.try_push((guard, receiver, got));
        }
    }
    // Its lock is the last that is taken, but for those of mirrors.
    let leaving = match context.tunnel {
        // Frames from other hosts stay: the worker holds the uplink while it serves it.
        Some(tunnel)
            if (planned.tunnelled || planned.floods)
                && (context.remote().is_some() || may_leave_by_another(batch, context)) =>
        {
            leave(batch, context, tunnel, departures, turn, outlet)
        }
        _ => Leaving::Nothing,
    };
    if let Some(tap) = context.tap() {
        if done {
            take(&tap, batch, context, room);
        }
        let flooded = planned.floods.then_some(turn);
        mirror(batch, context, (&tap, room), (slots(&receivers), flooded), calls, outlet);
    }
    if !done {
        batch.frames.truncate(0);
    }
    call(calls, batch.frames.release());
    for (guard, receiver, got) in &mut held {
        if let Some(ring) = guard.as_mut() {
            call(calls, ring.show());
        }
        got.count(receiver, context.worker);
    }
    call(calls, leaving.publish(&mut departures.pending));
    held.clear(); // dropping it would move it
    if !departures.answers.is_empty() {
        answer(context, departures, calls, outlet);
    }
    let most = receivers.iter().max_by_key(|receiver| receiver.frames);
    (most.map(|receiver| likely_of(receiver.slot, receiver.pair)), done)
}

/// Returns the slots of sorted receivers, each once.
fn slots(receivers: &[Receiver]) -> impl Iterator<Item = u32> {
    receivers.chunk_by(|a, b| a.slot == b.slot).filter_map(|same| Some(same.first()?.slot))
}

/// Writes the frames of a batch into receive rings, some of which are of vnics with several pairs.
/// All are locked first: another worker may have moved a flow since its pair was chosen.
#[cold]
#[inline(never)]
fn to_pairs<'a, O: Outlet>(
    batch: &Batch<'_>,
    context: &Context<'a>,
    outlet: &'a O,
    (receivers, pairs): (&mut Receivers, &mut Pairs),
    held: &mut Opened<'a, O>,
) {
    for tries in (0..=STEERS).rev() {
        for Receiver { slot, pair, .. } in &*receivers {
            let Some(receiver) = context.snapshot.vnics.get(*slot) else { continue };
            let _ = held.try_push((outlet.open(receiver, *pair), receiver, Got::default()));
        }
        if tries == 0 || as_steered(batch, context, pairs) {
            break;
        }
        held.clear();
        let anew = steer_each(batch, context, receivers, O::SENDS);
        pairs.iter_mut().zip(anew.iter().flatten()).for_each(|(old, new)| *old = *new);
    }
    let known = receivers.iter().filter(|it| context.snapshot.vnics.get(it.slot).is_some());
    for ((guard, receiver, got), Receiver { slot, pair, frames }) in held.iter_mut().zip(known) {
        outlet.writes(receiver);
        if let Some(ring) = guard.as_mut() {
            ring.prepare(*frames);
        }
        to_one(batch, guard.as_mut(), receiver, context, outlet, got, |index, meta| {
            meta.verdict == Verdict::Deliver(*slot)
                && pairs.get(index).is_some_and(|chosen| chosen.0 == *pair)
        });
    }
}

/// Returns the receiver of a batch of one frame that needs nothing but a copy: one receiver, by its
/// first pair of queues, without a limit, and nobody watches.
#[inline(always)]
pub(crate) fn lone<'a>(batch: &Batch<'_>, context: &Context<'a>) -> Option<&'a Vnic> {
    let [Meta { verdict: Verdict::Deliver(slot), .. }] = batch.metas() else { return None };
    let plain = |receiver: &&Vnic| {
        context.watched.is_none()
            && receiver.rules.limits.to_guest.is_none()
            && receiver.shared.port.open() <= 1
    };
    context.snapshot.vnics.get(*slot).map(|vnic| &**vnic).filter(plain)
}

/// Does the work of [`deliver`] for the frame of [`lone`].
#[inline(never)] // as `deliver`; it saves no registers for that one's loops
pub(crate) fn deliver_lone<O: Outlet>(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    calls: &mut Calls,
    receiver: &Vnic,
    outlet: &O,
) {
    let mut got = Got::default();
    let mut guard = outlet.open(receiver, FIRST_PAIR);
    let len = batch.frames.frames().first().map_or(0, |frame| frame.len);
    let delivered = match (guard.as_mut(), batch.metas().first()) {
        (Some(ring), Some(meta)) if meta.offload => {
            offloaded(ring, &batch.frames, 0, meta, len, &mut got)
        }
        (Some(ring), _) => {
            let delivered = ring.deliver_first(&batch.frames);
            delivered.map(|()| got.one(len as usize)).map_err(DropReason::from)
        }
        (None, _) => Err(NOT_ATTACHED),
    };
    if let Err(why) = delivered {
        refuse(context, outlet, receiver, &batch.frames, 0, why);
    }
    call(calls, batch.frames.release());
    if let Some(ring) = guard.as_mut() {
        call(calls, ring.show());
    }
    got.count(receiver, context.worker);
}

/// Returns whether a frame crossed to a network that may have other hosts.
#[inline(always)]
fn may_leave_by_another(batch: &Batch<'_>, context: &Context<'_>) -> bool {
    batch.exits().any() && !context.sender.is_trunk()
}

/// Gives the sender of a batch the answers to its frames.
#[cold]
fn answer<O: Outlet>(
    context: &Context<'_>,
    departures: &mut Departures,
    calls: &mut Calls,
    outlet: &O,
) {
    let mut guard = outlet.open(context.sender, FIRST_PAIR);
    let mut got = Got::default();
    if let Some(ring) = guard.as_mut() {
        for frame in departures.answers.iter() {
            let delivered = ring.deliver_own(frame);
            match delivered {
                Ok(()) => got.one(frame.len()),
                Err(why) => context.count_own(context.sender, why.into(), frame),
            }
            if let Some(tap) = context.tap() {
                tap.answer(
                    frame,
                    context.sender.vni,
                    context.sender.place,
                    delivered.err().map(Into::into),
                );
                if delivered.is_ok() {
                    mirror_answer(frame, context, &tap, calls, outlet);
                }
            }
        }
        call(calls, ring.show());
    } else {
        let lost = departures.answers.iter();
        lost.for_each(|frame| context.count_own(context.sender, NOT_ATTACHED, frame));
    }
    departures.answers.clear();
    got.count(context.sender, context.worker);
}

/// Counts the frames that the stages dropped.
#[cold]
fn count_drops(batch: &Batch<'_>, context: &Context<'_>) {
    for (index, meta) in batch.metas().iter().enumerate() {
        if let Verdict::Drop(reason, slot) = meta.verdict {
            count_drop(context, slot, reason, &batch.frames, index);
        }
    }
}

#[cold]
fn count_drop(
    context: &Context<'_>,
    slot: u32,
    reason: DropReason,
    frames: &Frames<'_>,
    index: usize,
) {
    if let Some(vnic) = context.snapshot.vnics.get(slot) {
        context.count_drop(vnic, reason, frames, index);
    }
}

/// Counts a frame that a receiver did not get.
#[cold]
#[inline(never)]
fn refuse<O: Outlet>(
    context: &Context<'_>,
    outlet: &O,
    receiver: &Vnic,
    frames: &Frames<'_>,
    index: usize,
    reason: DropReason,
) {
    // A packet that cannot be cut is its sender's fault.
    let charged = if reason == MALFORMED_IP { context.sender } else { receiver };
    context.count_drop(charged, reason, frames, index);
    outlet.refused(Some(receiver), reason, charged.place.slot);
    if let Some(tap) = context.tap() {
        tap.not_delivered(index, receiver.place.slot, reason);
    }
}

/// Writes the frames of a batch that `wanted` names into one receive ring, in order.
#[inline(always)]
pub(crate) fn to_one<O: Outlet>(
    batch: &Batch<'_>,
    ring: Option<&mut O::Ring>,
    receiver: &Vnic,
    context: &Context<'_>,
    outlet: &O,
    got: &mut Got,
    wanted: impl Fn(usize, &Meta) -> bool,
) {
    let Some(ring) = ring else {
        let refuse = |index| refuse(context, outlet, receiver, &batch.frames, index, NOT_ATTACHED);
        let refused = batch.metas().iter().enumerate().filter(|(index, meta)| wanted(*index, meta));
        refused.for_each(|(index, _)| refuse(index));
        return;
    };
    match &receiver.rules.limits.to_guest {
        None => copies(batch, ring, receiver, context, outlet, got, wanted),
        Some(limit) => limited(batch, ring, (receiver, limit), context, outlet, got, wanted),
    }
}

/// Writes into a ring as much of what is for it as its limit allows.
#[cold]
#[inline(never)]
fn limited<O: Outlet>(
    batch: &Batch<'_>,
    ring: &mut O::Ring,
    (receiver, limit): (&Vnic, &Limit),
    context: &Context<'_>,
    outlet: &O,
    got: &mut Got,
    wanted: impl Fn(usize, &Meta) -> bool,
) {
    let limiter = &receiver.shared.limits.to_guest;
    let mut room = limiter.room(limit);
    let (mut beyond, mut due) = (0u64, 0);
    for (index, meta) in batch.metas().iter().enumerate() {
        let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
        if !wanted(index, meta) {
            continue;
        }
        let packets = packets(meta, len);
        if room.take(packets, len.into()) {
            due += packets;
        } else {
            beyond |= 1 << index;
            refuse(context, outlet, receiver, &batch.frames, index, RATE_LIMITED);
        }
    }
    let before = (got.packets, got.bytes);
    copies(batch, ring, receiver, context, outlet, got, |index, meta| {
        beyond >> index & 1 == 0 && wanted(index, meta)
    });
    // It does not pay for what its ring had no room for.
    let (packets, bytes) = (got.packets - before.0, got.bytes - before.1);
    limiter.spend(limit, if packets == 0 { 0 } else { due }, bytes);
}

/// Does the work of [`to_one`].
#[inline(always)]
fn copies<O: Outlet>(
    batch: &Batch<'_>,
    ring: &mut O::Ring,
    receiver: &Vnic,
    context: &Context<'_>,
    outlet: &O,
    got: &mut Got,
    wanted: impl Fn(usize, &Meta) -> bool,
) {
    let refuse = |index, reason| refuse(context, outlet, receiver, &batch.frames, index, reason);
    let metas = batch.metas();
    let mut at = 0;
    while let Some(meta) = metas.get(at) {
        if !wanted(at, meta) {
            at += 1;
        } else if meta.offload {
            let len = batch.frames.frames().get(at).map_or(0, |frame| frame.len);
            if let Err(why) = offloaded(ring, &batch.frames, at, meta, len, got) {
                refuse(at, why);
            }
            at += 1;
        } else {
            let run = metas
                .iter()
                .enumerate()
                .skip(at)
                .take_while(|(index, meta)| wanted(*index, meta) && !meta.offload);
            let end = at + run.count();
            // Frames of this host's guests are as large as their senders want.
            if context.sender.is_trunk() && end - at > 1 && join::takes(ring.features()) {
                at = joined(ring, batch, at..end, got, refuse);
            }
            plain(ring, batch, at..end, got, refuse);
            at = end;
        }
    }
}

/// Writes frames as they are into one receive ring, in order.
#[inline(always)]
fn plain<R: Receive>(
    ring: &mut R,
    batch: &Batch<'_>,
    frames: Range<usize>,
    got: &mut Got,
    refuse: impl Fn(usize, DropReason),
) {
    let Range { start: mut at, end } = frames;
    while at < end {
        let (done, bytes) = ring.deliver_run(&batch.frames, at..end);
        got.packets += done as u64;
        got.bytes += bytes;
        at += done;
        if at < end {
            match ring.deliver_one(&batch.frames, at) {
                Ok(()) => got.one(batch.frames.frames().get(at).map_or(0, |it| it.len as usize)),
                Err(why) => refuse(at, why.into()),
            }
            at += 1;
        }
    }
}

/// Writes frames from other hosts into the ring of a guest that takes consecutive segments as one.
/// Returns the first frame that is left: none, unless a sum was wrong. Then nothing more is joined:
/// what was copied in vain is at most as much as was copied for good.
#[inline(never)]
fn joined<R: Receive>(
    ring: &mut R,
    batch: &Batch<'_>,
    frames: Range<usize>,
    got: &mut Got,
    refuse: impl Fn(usize, DropReason),
) -> usize {
    let Range { start: mut at, end } = frames;
    while at < end {
        match join::next_group(&batch.frames, at..end) {
            None => return at,
            Some(group) => {
                plain(ring, batch, at..group.start(), got, &refuse);
                let (to, done) = join::join(ring, &batch.frames, &group);
                let parts = batch.frames.frames().get(group.start()..to).unwrap_or_default();
                parts.iter().for_each(|frame| got.one(frame.len as usize));
                at = to;
                if !done {
                    break;
                }
            }
        }
    }
    at
}

/// Delivers a frame with a partial checksum or of several segments, as it is if the receiver takes
/// that, else completed; or one that a router cuts.
#[inline(never)]
fn offloaded<R: Receive>(
    ring: &mut R,
    frames: &Frames<'_>,
    index: usize,
    meta: &Meta,
    frame_len: u32,
    got: &mut Got,
) -> Result<(), DropReason> {
    if meta.cut.is_some() {
        return cut(ring, frames, (index, meta), got);
    }
    let head = frames.head(index);
    let from = head.len() as u32;
    let whole = Delivery {
        net: meta.net,
        head,
        frame: index,
        from,
        len: frame_len.saturating_sub(from),
        finish: Finish::Nothing,
    };
    let features = ring.features();
    let needed = match meta.net.gso_type & !NetHeader::GSO_ECN {
        NetHeader::GSO_TCPV4 => Features::GUEST_TSO4,
        NetHeader::GSO_TCPV6 => Features::GUEST_TSO6,
        NetHeader::GSO_UDP_L4 if segment::is_v6(meta, head) => Features::GUEST_USO6,
        NetHeader::GSO_UDP_L4 => Features::GUEST_USO4,
        _ => Features::NONE,
    };
    let ecn = if meta.net.gso_type & NetHeader::GSO_ECN != 0 {
        Features::GUEST_ECN
    } else {
        Features::NONE
    };
    let partial = features.has(Features::GUEST_CSUM);
    let checksum = Finish::Checksum {
        start: meta.net.csum_start,
        field: meta.net.csum_start + meta.net.csum_offset,
        udp: meta.net.csum_offset == butterfly_packet::udp::CHECKSUM_OFFSET as u16,
    };
    if meta.net.gso_type == NetHeader::GSO_NONE || (partial && features.has(needed.with(ecn))) {
        let delivery = if partial {
            whole
        } else {
            Delivery { net: NetHeader::default(), finish: checksum, ..whole }
        };
        ring.deliver(frames, &delivery)?;
        got.packets += 1;
        got.bytes += u64::from(frame_len);
        return Ok(());
    }
    let mut segments = Segments::new(meta, head, frame_len);
    while let Some(segment) = segments.next() {
        let mut delivery = Delivery {
            net: NetHeader::default(),
            head: segment.head,
            frame: index,
            from: segment.from,
            len: segment.len,
            finish: checksum,
        };
        if partial {
            delivery.net =
                NetHeader { gso_type: NetHeader::GSO_NONE, gso_size: 0, hdr_len: 0, ..meta.net };
            delivery.finish = Finish::Nothing;
        }
        // When one segment does not fit, the next ones will not either: the frame is one drop.
        ring.deliver(frames, &delivery)?;
        got.packets += 1;
        got.bytes += segment.head.len() as u64 + u64::from(segment.len);
    }
    Ok(())
}

/// Delivers a frame in the fragments into which a router cuts it. All of them, if it can be seen
/// that there is room: without one the others are worth nothing, and the receiver would keep them
/// for long. When one does not fit all the same, the next ones will not either: the frame is one
/// drop.
#[cold]
#[inline(never)]
fn cut<R: Receive>(
    ring: &mut R,
    frames: &Frames<'_>,
    (index, meta): (usize, &Meta),
    got: &mut Got,
) -> Result<(), DropReason> {
    // Each takes a buffer at least.
    if ring.offered().is_some_and(|free| free < meta.cut.packets) {
        return Err(RING_FULL);
    }
    cuts::each(frames, (index, meta), MALFORMED_IP, |CutPacket { head, from, len }| {
        let (net, finish) = (NetHeader::default(), Finish::Nothing);
        ring.deliver(frames, &Delivery { net, head, frame: index, from, len, finish })?;
        got.one(head.len() + len as usize);
        Ok(())
    })
}

/// Copies the frames with several receivers to those of this turn.
#[inline(always)]
fn flood_all<O: Outlet>(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    room: &FilterRoom,
    calls: &mut Calls,
    turn: &Turn,
    outlet: &O,
) {
    if batch.exits().any() {
        flood_crossing(batch, context, room, calls, turn, outlet);
    } else {
        flood(batch, context, room, calls, (context.entry, turn), outlet);
    }
}

/// Copies the frames of a batch of which some leave by other networks, one network at a time:
/// floods of the others are set aside meanwhile.
#[cold]
#[inline(never)]
fn flood_crossing<O: Outlet>(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    room: &FilterRoom,
    calls: &mut Calls,
    turn: &Turn,
    outlet: &O,
) {
    let mut left = None;
    while let Some(way) = next_way(&mut left, batch.exits(), context) {
        // Who is in a network is looked at for a flood alone: nothing else paid for it.
        let floods = |(index, meta): (usize, &Meta)| {
            matches!(meta.verdict, Verdict::Flood { .. }) && (way.has)(index)
        };
        if !batch.metas().iter().enumerate().any(floods) {
            continue;
        }
        let mut aside = ArrayVec::<(usize, Verdict), BATCH>::new();
        for (index, meta) in batch.parts().1.iter_mut().enumerate() {
            if matches!(meta.verdict, Verdict::Flood { .. }) && !(way.has)(index) {
                let _ = aside.try_push((index, meta.verdict));
                meta.verdict = Verdict::Undecided;
            }
        }
        flood(batch, context, room, calls, (way.exit, turn), outlet);
        for (index, verdict) in aside {
            if let Some(meta) = batch.parts().1.get_mut(index) {
                meta.verdict = verdict;
            }
        }
    }
}

/// Copies frames with several receivers that leave by one network: receivers outside, frames
/// inside.
#[inline(never)]
fn flood<O: Outlet>(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    room: &FilterRoom,
    calls: &mut Calls,
    (exit, turn): (&Network, &Turn),
    outlet: &O,
) {
    let sender = context.sender;
    let members = &exit.members;
    let away = context.remote_of(exit).map_or(0, |remote| remote.peers.len().max(1));
    let own = usize::from(members.binary_search(&sender.place.slot).is_ok());
    let others = (members.len() - own + away) as u64;
    let floods =
        batch.metas().iter().filter(|meta| matches!(meta.verdict, Verdict::Flood { .. })).count();
    if turn.is_first()
        && let Some(cells) = sender.shared.counters.of(context.worker)
    {
        cells.add(Counter::Flooded, floods as u64);
    }
    // Machines of other hosts have parts of their own.
    let crowd = sender.shared.crowd.as_deref();
    if crowd.is_none() {
        sender.shared.floods.fill(FLOOD_RATE, FLOOD_BURST);
    }
    let open = away > 0
        || members.iter().any(|slot| {
            *slot != sender.place.slot
                && context.snapshot.vnics.get(*slot).is_some_and(|receiver| receiver.rules.bypass)
        });
    let (frames, metas) = batch.parts();
    for (index, (meta, frame)) in metas.iter_mut().zip(frames.frames()).enumerate() {
        if let Verdict::Flood { unknown } = meta.verdict {
            let each = weight(meta, frame.len, frame.pieces());
            // All copies must be allowed when the first is made; each turn pays for its own.
            let due = turn.share(others as usize + own).saturating_sub(if turn.is_first() {
                own
            } else {
                0
            }) as u64;
            let cost = if turn.is_first() { others } else { due }.saturating_mul(each);
            let reason = if others == 0 || (unknown && !open) {
                nobody(meta.destination)
            } else if sender.shared.floods.spend(cost, due.saturating_mul(each))
                || crowd.is_some_and(|crowd| {
                    of_crowd(crowd, meta.source, (cost, due.saturating_mul(each)), context)
                })
            {
                continue;
            } else {
                FLOOD_LIMIT
            };
            meta.verdict = Verdict::Drop(reason, sender.place.slot);
            context.count_drop(sender, reason, frames, index);
            outlet.refused(None, reason, sender.place.slot);
        }
    }

    // Questions of routers are for who may have addresses that are not declared.
    let may_ask = !matches!(sender.kind, PortKind::Vnic);
    let asks = may_ask && batch.metas().iter().any(|meta| is_host(meta.source));
    for slot in turn.members(members) {
        let Some(receiver) =
            context.snapshot.vnics.get(*slot).filter(|vnic| vnic.place != sender.place)
        else {
            continue;
        };
        let bypass = receiver.rules.bypass;
        let flooded = |index: usize, meta: &Meta| {
            matches!(meta.verdict, Verdict::Flood { unknown } if bypass || !unknown)
                && (!asks
                    || !is_host(meta.source)
                    || bypass
                        && may_hear_frame(receiver, batch.frames.head(index), meta, context.now))
        };
        if !batch.metas().iter().enumerate().any(|(index, meta)| flooded(index, meta)) {
            continue;
        }
        if !bypass {
            let each = batch.metas().iter().enumerate();
            for (index, _) in each.filter(|(index, meta)| flooded(*index, meta)) {
                match admits_flooded(room, index, receiver, context) {
                    Ok(()) => note_flooded(room, index, receiver, context),
                    Err((reason, charged)) => {
                        count_drop(context, charged, reason, &batch.frames, index);
                        outlet.refused(Some(receiver), reason, charged);
                    }
                }
            }
        }
        let mut got = Got::default();
        let mut guard = outlet.open(receiver, FIRST_PAIR);
        if let Some(ring) = guard.as_mut() {
            ring.prepare(floods as u16);
        }
        to_one(batch, guard.as_mut(), receiver, context, outlet, &mut got, |index, meta| {
            flooded(index, meta)
                && (bypass || admits_flooded(room, index, receiver, context).is_ok())
        });
        let interrupt = guard.as_mut().and_then(Receive::show);
        drop(guard);
        call(calls, interrupt);
        got.count(receiver, context.worker);
    }
}

/// Takes the copies that are due for a machine of another host. Returns whether the machine may
/// cause so many.
#[inline(never)]
fn of_crowd(
    crowd: &Budgets,
    source: u64,
    (needed, due): (u64, u64),
    context: &Context<'_>,
) -> bool {
    crowd.floods.take(source.into(), context.now, |purse, parts| {
        purse.fill(FLOOD_RATE / u64::from(parts), FLOOD_BURST / u64::from(parts));
        purse.spend(needed, due)
    })
}
