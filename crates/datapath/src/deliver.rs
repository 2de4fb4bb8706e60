//! Delivery: one copy into each receiver's buffers, and the order in which guests see it.
//!
//! Floods first, receiver by receiver: only they may be repeated by a crash. Then frames with one receiver; then the sender's used
//! index, then the receivers'. A crash in between may lose a batch, never repeat it.

use std::sync::{Arc, MutexGuard};

use arrayvec::ArrayVec;
use butterfly_vhost::{
    cpu,
    net::{Features, NetHeader},
    ring::{BATCH, CallFd, Delivery, Finish, Frames, NotDelivered, RxRing},
};

use crate::{
    batch::{Batch, Context, Meta, Verdict},
    counters::Counter,
    drops::{DropReason, drop_reasons},
    forward::NO_RECEIVER,
    policy::{IP_HIDDEN, admits},
    segment::Segments,
    snapshot::Vnic,
};

drop_reasons! { 5;
    /// The receiving guest had no buffers left: it does not read fast enough.
    RING_FULL = "ring-full";
    /// The receiving vnic has no guest, or its driver did not start the receive queue.
    NOT_ATTACHED = "not-attached";
    /// The frame is larger than any buffer the receiving guest offers.
    RX_TOO_LARGE = "rx-too-large";
    /// A receive buffer of the guest breaks the rules: a loop, an index or address out of range, or wrong flags.
    RX_BAD_CHAIN = "rx-bad-chain";
    /// The vnic floods more than its share.
    FLOOD_LIMIT = "flood-limit";
}

/// Copies that a vnic's floods may cause per second, and at once.
const FLOOD_RATE: u64 = 1_000_000;
const FLOOD_BURST: u64 = 65_536;

/// Interrupts to send when no ring is held any more.
pub(crate) type Calls = Vec<Arc<CallFd>>;

fn call(calls: &mut Calls, call: Option<Arc<CallFd>>) {
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
            NotDelivered::TooLarge => RX_TOO_LARGE,
            NotDelivered::BadChain => RX_BAD_CHAIN,
        }
    }
}

/// What a receiver got of a batch.
#[derive(Default)]
struct Got {
    packets: u64,
    bytes: u64,
}

impl Got {
    fn count(&self, receiver: &Vnic, worker: usize) {
        if self.packets > 0
            && let Some(cells) = receiver.shared.counters.of(worker)
        {
            cells.add(Counter::OutPackets, self.packets);
            cells.add(Counter::OutBytes, self.bytes);
        }
    }
}

/// Carries out the verdicts and gives the frames back to the sender. Returns the slot that most of the next frames will go to.
pub(crate) fn deliver(mut batch: Batch<'_>, context: &Context<'_>, calls: &mut Calls) -> Option<u32> {
    let mut receivers = ArrayVec::<u32, BATCH>::new();
    let mut floods = 0u64;
    let mut last = None;
    for meta in batch.metas() {
        match meta.verdict {
            Verdict::Deliver(slot) if last == Some(slot) => {}
            Verdict::Deliver(slot) => {
                last = Some(slot);
                if !receivers.contains(&slot) {
                    // At most one per frame, and there are BATCH of them.
                    let _ = receivers.try_push(slot);
                }
            }
            Verdict::Flood { .. } => floods += 1,
            Verdict::Undecided | Verdict::Drop(..) => {}
        }
    }
    if floods > 0 {
        flood(&mut batch, context, calls, floods);
    }
    if receivers.len() > 1 {
        receivers.sort_unstable(); // the order in which rings are locked
    }

    let mut held = ArrayVec::<(MutexGuard<'_, Option<RxRing>>, &Vnic, Got), BATCH>::new();
    for slot in &receivers {
        let Some(receiver) = context.snapshot.vnics.get(*slot) else { continue };
        let mut guard = receiver.shared.port.rx();
        let mut got = Got::default();
        to_one(&batch, guard.as_mut(), receiver, context, &mut got, |meta| meta.verdict == Verdict::Deliver(*slot));
        let _ = held.try_push((guard, receiver, got));
    }
    for meta in batch.metas() {
        if let Verdict::Drop(reason, slot) = meta.verdict {
            count_drop(context, slot, reason);
        }
    }
    call(calls, batch.frames.release());
    for (guard, receiver, got) in &mut held {
        if let Some(ring) = guard.as_mut() {
            call(calls, ring.publish());
            if ring.poisoned() {
                ring.rest();
            }
        }
        got.count(receiver, context.worker);
    }
    last
}

#[cold]
fn count_drop(context: &Context<'_>, slot: u32, reason: DropReason) {
    if let Some(cells) = context.snapshot.vnics.get(slot).and_then(|vnic| vnic.shared.counters.of(context.worker)) {
        cells.drop(reason, 1);
    }
}

/// Writes those frames of a batch that `wanted` names into one receive ring, in order.
#[inline(always)]
fn to_one(
    batch: &Batch<'_>,
    ring: Option<&mut RxRing>,
    receiver: &Vnic,
    context: &Context<'_>,
    got: &mut Got,
    wanted: impl Fn(&Meta) -> bool,
) {
    let refuse = |reason| {
        if let Some(cells) = receiver.shared.counters.of(context.worker) {
            cells.drop(reason, 1);
        }
    };
    let Some(ring) = ring else {
        batch.metas().iter().filter(|meta| wanted(meta)).for_each(|_| refuse(NOT_ATTACHED));
        return;
    };
    for (index, (meta, frame)) in batch.metas().iter().zip(batch.frames.frames()).enumerate() {
        if !wanted(meta) {
            continue;
        }
        let head = batch.frames.head(index);
        let whole = Delivery {
            net: meta.net,
            head,
            frame: index,
            from: head.len() as u32,
            len: frame.len - (head.len() as u32).min(frame.len),
            finish: Finish::Nothing,
        };
        let outcome = if meta.net.flags == 0 {
            ring.deliver(&batch.frames, &whole).map(|()| {
                got.packets += 1;
                got.bytes += u64::from(frame.len);
            })
        } else {
            offloaded(ring, &batch.frames, meta, &whole, frame.len, got)
        };
        if let Err(why) = outcome {
            refuse(why.into());
        }
    }
}

/// A frame with a partial checksum or of several segments: as it is if the receiver takes that, else completed.
#[inline(never)]
fn offloaded(
    ring: &mut RxRing,
    frames: &Frames<'_>,
    meta: &Meta,
    whole: &Delivery<'_>,
    frame_len: u32,
    got: &mut Got,
) -> Result<(), NotDelivered> {
    let features = ring.features();
    let needed = match meta.net.gso_type & !NetHeader::GSO_ECN {
        NetHeader::GSO_TCPV4 => Features::GUEST_TSO4,
        NetHeader::GSO_TCPV6 => Features::GUEST_TSO6,
        _ => Features::NONE,
    };
    let ecn = if meta.net.gso_type & NetHeader::GSO_ECN != 0 { Features::GUEST_ECN } else { Features::NONE };
    let partial = features.has(Features::GUEST_CSUM);
    let checksum = Finish::Checksum {
        start: meta.net.csum_start,
        field: meta.net.csum_start + meta.net.csum_offset,
        udp: meta.net.csum_offset == butterfly_packet::udp::CHECKSUM_OFFSET as u16,
    };
    if meta.net.gso_type == NetHeader::GSO_NONE || (partial && features.has(needed.with(ecn))) {
        let delivery = if partial { *whole } else { Delivery { net: NetHeader::default(), finish: checksum, ..*whole } };
        ring.deliver(frames, &delivery)?;
        got.packets += 1;
        got.bytes += u64::from(frame_len);
        return Ok(());
    }
    let mut segments = Segments::new(meta, whole.head, frame_len);
    while let Some(segment) = segments.next() {
        let mut delivery = Delivery {
            net: NetHeader::default(),
            head: segment.head,
            frame: whole.frame,
            from: segment.from,
            len: segment.len,
            finish: checksum,
        };
        if partial {
            delivery.net = NetHeader { gso_type: NetHeader::GSO_NONE, gso_size: 0, hdr_len: 0, ..meta.net };
            delivery.finish = Finish::Nothing;
        }
        // When one segment does not fit, the next ones will not either: the frame is one drop.
        ring.deliver(frames, &delivery)?;
        got.packets += 1;
        got.bytes += segment.head.len() as u64 + u64::from(segment.len);
    }
    Ok(())
}

/// Copies the frames with several receivers: receivers outside, frames inside.
#[inline(never)]
fn flood(batch: &mut Batch<'_>, context: &Context<'_>, calls: &mut Calls, floods: u64) {
    let sender = context.sender;
    let members = &context.network.members;
    let others = members.len().saturating_sub(1) as u64;
    if let Some(cells) = sender.shared.counters.of(context.worker) {
        cells.add(Counter::Flooded, floods);
    }
    let mut tokens = refill(sender);
    let open = members.iter().any(|slot| {
        *slot != sender.place.slot && context.snapshot.vnics.get(*slot).is_some_and(|receiver| receiver.rules.bypass)
    });
    for meta in batch.parts().1 {
        if let Verdict::Flood { unknown } = meta.verdict {
            let reason = if others == 0 || (unknown && !open) {
                NO_RECEIVER
            } else if tokens < others {
                FLOOD_LIMIT
            } else {
                tokens -= others;
                continue;
            };
            meta.verdict = Verdict::Drop(reason, sender.place.slot);
        }
    }
    sender.shared.flood_tokens.store(tokens, std::sync::atomic::Ordering::Relaxed);

    for slot in members {
        let Some(receiver) = context.snapshot.vnics.get(*slot).filter(|vnic| vnic.place != sender.place) else { continue };
        let bypass = receiver.rules.bypass;
        let flooded = |meta: &Meta| matches!(meta.verdict, Verdict::Flood { unknown } if bypass || !unknown);
        if !batch.metas().iter().any(flooded) {
            continue;
        }
        if !bypass {
            for meta in batch.metas().iter().filter(|meta| flooded(meta)) {
                if let Err(reason) = admits(receiver, meta.inside) {
                    let charged = if reason == IP_HIDDEN { sender.place.slot } else { *slot };
                    count_drop(context, charged, reason);
                }
            }
        }
        let mut got = Got::default();
        let mut guard = receiver.shared.port.rx();
        to_one(batch, guard.as_mut(), receiver, context, &mut got, |meta| {
            flooded(meta) && (bypass || admits(receiver, meta.inside).is_ok())
        });
        let interrupt = guard.as_mut().and_then(|ring| {
            let interrupt = ring.publish();
            if ring.poisoned() {
                ring.rest();
            }
            interrupt
        });
        drop(guard);
        call(calls, interrupt);
        got.count(receiver, context.worker);
    }
}

/// The copies a vnic may cause now. Only the worker that owns its transmit ring comes here.
fn refill(sender: &Vnic) -> u64 {
    use std::sync::atomic::Ordering::Relaxed;
    let now = cpu::tsc();
    let passed = now.saturating_sub(sender.shared.flood_filled.load(Relaxed));
    let earned = u128::from(passed) * u128::from(FLOOD_RATE) / u128::from(cpu::tsc_hz().max(1));
    if earned == 0 {
        return sender.shared.flood_tokens.load(Relaxed);
    }
    sender.shared.flood_filled.store(now, Relaxed);
    let earned = u64::try_from(earned).unwrap_or(FLOOD_BURST);
    sender.shared.flood_tokens.load(Relaxed).saturating_add(earned).min(FLOOD_BURST)
}
