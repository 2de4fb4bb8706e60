//! A worker's turn at the frames that wait.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use butterfly_vhost::ring::Frames;

use super::{
    hops::PennedHop,
    later::{Announcement, Flood, LaterQueue, Speaker},
    pen::Penned,
    rounds::{Looked, Worker},
    walk::walk,
};
use crate::engine::{
    batch::{Batch, BatchOrigin},
    budget::Budget,
    counters::Counter,
    place::PeerRef,
};
use crate::stages::filter::Judged;
use crate::world::snapshot::Vnic;

/// Number of receivers that have a frame already, and the decision on it; 0 at its beginning and
/// end.
type Progress = (u32, Option<Judged>);

impl Worker {
    /// Sends the next frame to some of its receivers.
    #[inline(never)]
    pub(super) fn serve_later(&mut self, size: u16) -> Looked {
        let Some(queue) = self.later.next_queue() else { return Looked::Gone };
        let budget = Budget::of(size);
        self.bill.used(budget, budget);
        match queue {
            LaterQueue::Announcements => {
                if let Some(mut announcement) = self.later.announcements.pop_front()
                    && self.say(&mut announcement, budget)
                {
                    self.later.announcements.push_back(announcement);
                }
            }
            LaterQueue::Floods => {
                if let Some((at, mut flood)) = self.later.next_flood() {
                    self.flood(&mut flood, budget);
                    // Back in its place: a network's floods keep their order.
                    if flood.done > 0 {
                        self.later.floods.insert(at, flood);
                    } else {
                        self.later.spare.push(flood.frame);
                    }
                }
            }
            LaterQueue::Hops => {
                if let Some(hop) = self.later.hops.next_due() {
                    self.go_on(&hop, budget);
                    self.later.hops.end(hop);
                }
            }
            LaterQueue::Fragments => {
                if let Some((at, mut penned)) = self.later.pen.next_due() {
                    self.let_go(&mut penned, budget);
                    match penned.done {
                        0 => self.later.pen.end(penned),
                        _ => self.later.pen.put_back(at, penned),
                    }
                }
            }
        }
        // Counted when it came, or an announcement, which no counter counts.
        Looked::Frames(0)
    }

    /// Sends a flood of another host to some of its receivers.
    fn flood(&mut self, flood: &mut Flood, budget: Budget) {
        let trunk = self.snapshot.trunk(flood.vni).map(|(_, trunk)| Speaker::Vnic(trunk.place));
        self.outlet.0.serve_uplink();
        let (by, progress) = ((BatchOrigin::Waited, flood.peer), (flood.done, flood.judged));
        (flood.done, flood.judged) =
            self.carry_on(trunk.as_ref(), by, &flood.frame, progress, budget);
    }

    /// Lets a fragment go its way, or be dropped.
    fn let_go(&mut self, penned: &mut Penned, budget: Budget) {
        match self.snapshot.vnic(penned.from).is_some_and(|vnic| vnic.is_trunk()) {
            true => self.outlet.0.serve_uplink(),
            false => self.outlet.0.serve(penned.from.slot),
        }
        let (by, progress) = ((BatchOrigin::Penned, penned.peer), (penned.done, penned.judged));
        let from = Speaker::Vnic(penned.from);
        (penned.done, penned.judged) =
            self.carry_on(Some(&from), by, &penned.frame, progress, budget);
        if !self.later.relayed.is_empty() {
            self.pass_on();
        }
    }

    /// Has a packet that waited for its next hop go its way, or dropped.
    fn go_on(&mut self, hop: &PennedHop, budget: Budget) {
        self.outlet.0.serve(hop.from.slot);
        let by = (BatchOrigin::Penned, PeerRef(0));
        let from = Speaker::Vnic(hop.from);
        // It has one receiver.
        let _ = self.carry_on(Some(&from), by, &hop.frame, (0, None), budget);
    }

    /// Sends the next frame of an announcement, if the vnic's machine runs here, or the next
    /// question. Returns whether there is more.
    fn say(&mut self, announcement: &mut Announcement, budget: Budget) -> bool {
        let Some(frame) = announcement.frames.get(announcement.at) else { return false };
        if let Speaker::Vnic(place) = announcement.from {
            let vnic = self.snapshot.vnic(place);
            let runs = |vnic: &&Arc<Vnic>| vnic.shared.driving.load(Relaxed) && !vnic.is_mirror();
            let Some(sender) = vnic.filter(runs) else { return false };
            // A vnic that began to wait for its address meanwhile is not announced.
            let network = self.snapshot.networks.get(sender.network);
            if network.is_none_or(|network| network.waits(sender.place.slot)) {
                return false;
            }
            if announcement.done == 0
                && let Some(cells) = sender.shared.counters.of(self.id.writer())
            {
                cells.add(Counter::Announced, 1);
            }
        }
        self.outlet.0.serve_own();
        let by = (BatchOrigin::Own, PeerRef(0));
        let progress = (announcement.done, announcement.judged);
        (announcement.done, announcement.judged) =
            self.carry_on(Some(&announcement.from), by, frame, progress, budget);
        if announcement.done == 0 {
            announcement.at += 1;
        }
        announcement.at < announcement.frames.len()
    }

    /// Carries a frame on to some of its receivers, unless its sender is gone.
    fn carry_on(
        &mut self,
        from: Option<&Speaker>,
        (origin, peer): (BatchOrigin, PeerRef),
        frame: &[u8],
        (done, judged): Progress,
        budget: Budget,
    ) -> Progress {
        let sender = from.and_then(|from| match from {
            Speaker::Vnic(place) => self.snapshot.vnic(*place),
            Speaker::Router(asker) => Some(asker),
        });
        let Some(sender) = sender else { return (0, None) };
        let network = self.snapshot.networks.get(sender.network);
        // The network of a router's own frame may be another one by now.
        let Some(network) = network.filter(|it| it.vni == sender.vni) else { return (0, None) };
        if let Some(meta) = self.metas.iter_mut().next() {
            meta.peer = peer;
        }
        let context =
            self.shared.context(&self.snapshot, sender, network, self.id.writer(), &self.notes);
        context.budget.set(budget);
        self.scratches.filter.judged = judged;
        let frames = Frames::private(&mut self.store, std::iter::once(frame));
        let batch = Batch::of(origin, frames, &mut self.metas);
        let walked = walk(
            batch,
            &context,
            &mut self.scratches,
            &mut self.departures,
            &mut self.calls,
            &mut self.later,
            (done as usize, self.outlet),
        );
        self.bill.used(budget, context.budget.get());
        self.scratches.filter.judged = None;
        (walked.flooded, walked.judged)
    }
}
