//! A worker's turn at the uplink.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use butterfly_uplink::BURST;
use butterfly_vhost::ring::{BATCH, Frames, Gathered};

use super::{
    later::Later,
    rounds::{Looked, Worker},
    shared::Shared,
    walk::walk,
};
use crate::engine::tap::{Tap, TapNotes};
use crate::engine::writer::Writer;
use crate::engine::{
    batch::{Batch, BatchOrigin, Meta, Metas, Verdict},
    budget::Budget,
    counters::Counter,
    last_drops::Dropped,
    place::{MAX_HALVES, PeerRef, PollSource},
    reason::DropReason,
};
use crate::overlay::{
    Arrivals, Arrived, CONTROL_FULL, Own, Punted, SKIPPED, Tunnel, UNKNOWN_VNI, UPLINK_DOWN,
    UPLINK_FULL, UplinkPort,
};
use crate::stages::pipeline::Scratches;
use crate::stages::{
    deliver::{self, Calls},
    leave::{Departures, leave, not_sent},
    leaving::Leaving,
    outlet::Rings,
    turn::Turn,
};
use crate::world::{far_cuts::FarCuts, snapshot::Snapshot};

impl Worker {
    /// Serves one batch from a receive queue of the uplink.
    #[inline(never)]
    pub(super) fn serve_uplink(&mut self, at: usize, queue: u16, size: u16) -> Looked {
        let shared: &Shared = &self.shared;
        let Some(tunnel) = &shared.tunnel else { return Looked::Gone };
        // It comes back when it is let go.
        let held = shared.uplink_held.load(Relaxed);
        let line = self.outlet.0;
        self.far_cuts.begin();
        let mut desk = Desk {
            shared,
            tunnel,
            snapshot: &self.snapshot,
            worker: self.id.writer(),
            metas: &mut self.metas,
            scratches: &mut self.scratches,
            departures: &mut self.departures,
            calls: &mut self.calls,
            later: &mut self.later,
            budget: Budget::of(size),
            far_cuts: &self.far_cuts,
            notes: &self.notes,
            outlet: self.outlet,
        };
        let found = match &tunnel.port {
            UplinkPort::Ring(_) if held => return Looked::Gone,
            UplinkPort::Ring(port) => {
                let Some(mut guard) = port.try_tx() else { return Looked::Held };
                let Some(ring) = guard.as_mut() else { return Looked::Gone };
                match ring.available() {
                    None => return Looked::Gone,
                    Some(0) => return Looked::Empty,
                    Some(n) => ring.prefetch(n.min(size)),
                }
                line.serve_uplink();
                if self.polled.get(at).is_some_and(|polled| polled.rhythm.is_kicked()) {
                    ring.disarm(); // it has just come back by its kick
                }
                let Gathered::Frames(frames) = ring.gather_long(&mut self.store, size) else {
                    return Looked::Empty;
                };
                let n = frames.len();
                match is_to_skip(&shared.skip_uplink, queue) {
                    true => desk.skip(frames),
                    false => desk.take(frames),
                }
                if ring.poisoned() {
                    ring.rest();
                }
                n
            }
            UplinkPort::Wire(_) if held => return Looked::Gone,
            UplinkPort::Wire(wire) => {
                let Some(mut wire) = wire.try_inward(queue) else { return Looked::Held };
                line.serve_uplink();
                let n = wire.receive(size.into());
                if n == 0 {
                    return Looked::Empty;
                }
                desk.take(Frames::private(&mut self.store, (0..n).map(|index| wire.frame(index))));
                wire.release();
                n
            }
        };
        self.bill.used(Budget::of(size), desk.budget);
        if !self.later.relayed.is_empty() {
            self.pass_on();
        }
        if let Some(polled) = self.polled.get_mut(at) {
            polled.rhythm.find(self.now, &self.patience);
        }
        if !self.later.is_empty() {
            self.add(PollSource::Waiting);
        }
        Looked::Frames(found)
    }

    /// Sends the frames of a batch from the uplink that are for vnics which left for other hosts.
    /// The uplink is not held any more.
    #[cold]
    pub(super) fn pass_on(&mut self) {
        let Some(tunnel) = &self.shared.tunnel else { return };
        let relayed = &self.later.relayed;
        for run in relayed.chunk_by(|a, b| a.vni == b.vni) {
            let vni = run.first().map_or(0, |relayed| relayed.vni);
            let Some((network, trunk)) = self.snapshot.trunk(vni) else { continue };
            let context =
                self.shared.context(&self.snapshot, trunk, network, self.id.writer(), &self.notes);
            for (meta, relayed) in self.metas.iter_mut().zip(run) {
                *meta = Meta { verdict: Verdict::Tunnel(relayed.to), ..Meta::NEW };
            }
            let frames = run.iter().map(|relayed| relayed.frame.as_slice());
            let frames = Frames::private(&mut self.store, frames);
            let batch = Batch::of(BatchOrigin::Waited, frames, &mut self.metas);
            let departures = &mut self.departures;
            let leaving = leave(&batch, &context, tunnel, departures, &Turn::WHOLE, &self.outlet);
            deliver::call(&mut self.calls, leaving.publish(&mut departures.pending));
            // The sender is on another host. The next batch is somebody else's.
            departures.answers.clear();
        }
        let spare = self.later.relayed.drain(..).map(|relayed| relayed.frame);
        self.later.relay_spare.extend(spare);
    }

    /// Returns whether the uplink has to be polled on, after it was found empty many times in a
    /// row.
    #[cold]
    pub(super) fn uplink_stays(&mut self) -> bool {
        let Some(tunnel) = &self.shared.tunnel else { return false };
        match &tunnel.port {
            UplinkPort::Ring(port) => {
                let Some(mut guard) = port.try_tx() else { return true };
                let Some(ring) = guard.as_mut() else { return false };
                if ring.arm() {
                    return false;
                }
                ring.disarm();
                true
            }
            // Frames that came since the last look are an event of its descriptor.
            UplinkPort::Wire(_) => false,
        }
    }

    /// Has the halves of the uplink polled until they have passed on all frames.
    #[cold]
    pub(super) fn uplink_again(&mut self) {
        let halves = std::mem::take(&mut self.departures.pending);
        for half in (0..MAX_HALVES).filter(|half| halves >> half & 1 == 1) {
            self.add(PollSource::Outward(half as u8));
        }
    }

    /// Sends what a half of the uplink has still queued.
    #[cold]
    pub(super) fn see_off(&self, half: u8) -> Looked {
        let Some(UplinkPort::Wire(wire)) = self.shared.tunnel.as_ref().map(|tunnel| &tunnel.port)
        else {
            return Looked::Gone;
        };
        let Some(mut half) = wire.outward(half) else { return Looked::Gone };
        if half.pending() {
            half.flush();
        }
        if half.pending() { Looked::Held } else { Looked::Gone }
    }

    /// Sends the frames of the control thread.
    #[cold]
    pub(super) fn send_own(&mut self) {
        let Some(tunnel) = &self.shared.tunnel else { return };
        let mut leaving = Leaving::of(tunnel, self.outlet.1);
        let mut queued = 0;
        while let Some(Own { frame, counted }) = tunnel.punt.next_own() {
            // No queue holds fewer.
            if queued >= BURST
                && let Leaving::Wire(wire) = &mut leaving
            {
                queued = 0;
                wire.flush();
            }
            queued += 1;
            let sent = match &mut leaving {
                Leaving::Ring(ring) => match ring.as_mut() {
                    Some(ring) => ring.deliver_own(&frame).map_err(not_sent),
                    None => Err(UPLINK_DOWN),
                },
                Leaving::Wire(wire) => match wire.room(frame.len()) {
                    Some(room) => {
                        room.copy_from_slice(&frame);
                        wire.send();
                        Ok(())
                    }
                    None => Err(UPLINK_FULL),
                },
                Leaving::Nothing | Leaving::Tapped(..) => Err(UPLINK_DOWN),
            };
            if sent.is_ok()
                && let Some(watched) = self.notes.begin(self.snapshot.selection.as_deref())
            {
                Tap::of(watched, &self.notes, self.id.writer()).left(&frame);
            }
            match sent {
                Ok(()) if counted => {}
                Ok(()) => {
                    if let Some(cells) = tunnel.counters.of(self.id.writer()) {
                        cells.add(Counter::OutPackets, 1);
                        cells.add(Counter::OutBytes, frame.len() as u64);
                    }
                }
                Err(reason) => {
                    let packet = Dropped {
                        head: &frame,
                        len: frame.len() as u32,
                        when: self.shared.clock.tenths(),
                    };
                    tunnel.counters.drop(self.id.writer(), reason, &packet);
                }
            }
            tunnel.punt.sent(frame);
        }
        if let Some(call) = leaving.publish(&mut self.departures.pending) {
            call.signal();
        }
        // No other frame may come that would have the uplink looked at again.
        if self.departures.pending != 0 {
            self.uplink_again();
        }
    }
}

/// Takes a queue's order to give frames back unseen. Returns whether there was one.
#[inline(always)]
fn is_to_skip(queues: &AtomicU64, queue: u16) -> bool {
    let bit = 1u64.checked_shl(queue.into()).unwrap_or(0);
    queues.load(Relaxed) & bit != 0 && queues.fetch_and(!bit, Relaxed) & bit != 0
}

/// State for a batch from the uplink.
struct Desk<'a> {
    shared: &'a Shared,
    tunnel: &'a Tunnel,
    snapshot: &'a Snapshot,
    worker: Writer<'a>,
    metas: &'a mut Metas,
    scratches: &'a mut Scratches,
    departures: &'a mut Departures,
    calls: &'a mut Calls,
    later: &'a mut Later,
    /// Budget of the turn, which all networks of a batch share.
    budget: Budget,
    /// Fragments of the turn, likewise.
    far_cuts: &'a FarCuts,
    notes: &'a TapNotes,
    outlet: Rings,
}

/// Stands for the network of frames that are for none.
const NOBODY: u32 = u32::MAX;

impl Desk<'_> {
    /// Takes outer headers off, and gives each network its frames. Frames of one network in a row
    /// go together.
    fn take(&mut self, mut frames: Frames<'_>) {
        let now = self.shared.clock.now();
        let mut vnis = [NOBODY; BATCH];
        let mut peers = [PeerRef(0); BATCH];
        let mut last = NOBODY;
        let (mut packets, mut bytes) = (0, 0);
        let mut arrivals = Arrivals::new(self.tunnel, self.snapshot, self.worker, now);
        let tap = self
            .notes
            .begin(self.snapshot.selection.as_deref())
            .map(|watched| Tap::of(watched, self.notes, self.worker));
        if let Some(tap) = tap.filter(Tap::wants_outer) {
            tap.arrived(&frames);
        }
        for (index, (vni, from)) in vnis.iter_mut().zip(&mut peers).take(frames.len()).enumerate() {
            packets += 1;
            bytes += frames.frames().get(index).map_or(0, |frame| u64::from(frame.len));
            let known = |vni| vni == last || self.snapshot.vnis.get(u64::from(vni)).is_some();
            match arrivals.take(&mut frames, index, known) {
                Arrived::Inner { vni: found, peer } => {
                    *vni = found;
                    *from = peer.unwrap_or(PeerRef(0));
                    last = found;
                }
                Arrived::Control => {
                    let len = frames.frames().get(index).map_or(0, |frame| frame.len);
                    if !self.tunnel.punt.put(Punted::Control, len as usize, |room| {
                        frames.copy_to(index, 0, room, None)
                    }) {
                        self.drop(CONTROL_FULL, &frames, index);
                    }
                }
                Arrived::Dropped(reason) => {
                    self.drop(reason, &frames, index);
                    if let Some(tap) = tap {
                        tap.outer_dropped(&frames, index, reason);
                    }
                }
            }
        }
        arrivals.count();
        if let Some(cells) = self.tunnel.counters.of(self.worker) {
            cells.add(Counter::InPackets, packets);
            cells.add(Counter::InBytes, bytes);
        }
        let (vnis, peers) = (
            vnis.get(..frames.len()).unwrap_or_default(),
            peers.get(..frames.len()).unwrap_or_default(),
        );
        match vnis.first() {
            // The commonest batch. Its descriptors go back before receivers see the frames: a crash
            // repeats nothing.
            Some(vni) if *vni != NOBODY && vnis.iter().all(|other| other == vni) => {
                self.walk(frames, *vni, peers)
            }
            _ => {
                let mut at = 0;
                for run in vnis.chunk_by(|a, b| a == b) {
                    let range = at..at + run.len();
                    at = range.end;
                    if let (Some(vni), Some(peers)) = (run.first(), peers.get(range.clone()))
                        && *vni != NOBODY
                    {
                        self.walk(frames.part(range), *vni, peers);
                    }
                }
                self.give_back(frames);
            }
        }
    }

    /// Gives frames back to their ring.
    fn give_back(&mut self, mut frames: Frames<'_>) {
        deliver::call(self.calls, frames.release());
    }

    /// Gives frames back unseen.
    #[cold]
    fn skip(&mut self, frames: Frames<'_>) {
        (0..frames.len()).for_each(|index| self.drop(SKIPPED, &frames, index));
        self.give_back(frames);
    }

    fn walk(&mut self, frames: Frames<'_>, vni: u32, peers: &[PeerRef]) {
        let Some((network, trunk)) = self.snapshot.trunk(vni) else {
            (0..frames.len()).for_each(|index| self.drop(UNKNOWN_VNI, &frames, index));
            self.give_back(frames);
            return;
        };
        for (meta, peer) in self.metas.iter_mut().zip(peers) {
            meta.peer = *peer;
        }
        let mut context =
            self.shared.context(self.snapshot, trunk, network, self.worker, self.notes);
        context.far_cuts = Some(self.far_cuts);
        context.budget.set(self.budget);
        walk(
            Batch::new(frames, self.metas),
            &context,
            self.scratches,
            self.departures,
            self.calls,
            self.later,
            (0, self.outlet),
        );
        self.budget = context.budget.get();
    }

    /// Drops a frame, and charges the uplink.
    #[cold]
    fn drop(&self, reason: DropReason, frames: &Frames<'_>, index: usize) {
        self.tunnel.counters.drop(
            self.worker,
            reason,
            &Dropped::of(frames, index, &self.shared.clock),
        );
    }
}
