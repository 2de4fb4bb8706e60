//! A worker's turn at the frames that wait.

use std::sync::atomic::Ordering::Relaxed;

use butterfly_vhost::ring::Frames;

use super::{
    later::{Announcement, Flood},
    rounds::{Looked, Worker},
    walk::walk,
};
use crate::engine::{
    batch::{Batch, BatchOrigin},
    budget::Budget,
    counters::Counter,
};

impl Worker {
    /// Sends the next frame to some of its receivers.
    #[inline(never)]
    pub(super) fn serve_later(&mut self, size: u16) -> Looked {
        if self.later.is_empty() {
            return Looked::Gone;
        }
        let budget = Budget::of(size);
        self.bill.used(budget, budget);
        self.later.announces = !self.later.announces;
        let announces = self.later.announces || self.later.floods.is_empty();
        if announces && let Some(mut announcement) = self.later.announcements.pop_front() {
            if self.say(&mut announcement, budget) {
                self.later.announcements.push_back(announcement);
            }
        } else if let Some((at, mut flood)) = self.later.next_flood() {
            flood.done = self.carry_on(&mut flood, budget);
            // Back in its place: a network's floods keep their order.
            if flood.done > 0 {
                self.later.floods.insert(at, flood);
            } else {
                self.later.spare.push(flood.frame);
            }
        }
        // Counted when it came, or an announcement, which no counter counts.
        Looked::Frames(0)
    }

    /// Returns the number of receivers that have it; 0 for all.
    fn carry_on(&mut self, flood: &mut Flood, budget: Budget) -> u32 {
        let Some((network, trunk)) = self.snapshot.trunk(flood.vni) else { return 0 };
        if let Some(meta) = self.metas.iter_mut().next() {
            meta.peer = flood.peer;
        }
        self.outlet.0.serve_uplink();
        let from = flood.done as usize;
        let context =
            self.shared.context(&self.snapshot, trunk, network, self.id.writer(), &self.notes);
        context.budget.set(budget);
        self.scratches.filter.judged = flood.judged;
        let frames = Frames::private(&mut self.store, std::iter::once(flood.frame.as_slice()));
        let batch = Batch::of(BatchOrigin::Waited, frames, &mut self.metas);
        let walked = walk(
            batch,
            &context,
            &mut self.scratches,
            &mut self.departures,
            &mut self.calls,
            &mut self.later,
            (from, self.outlet),
        );
        self.bill.used(budget, context.budget.get());
        self.scratches.filter.judged = None;
        flood.judged = walked.judged;
        walked.flooded
    }

    /// Sends the next frame of an announcement, if the vnic's machine runs here. Returns whether
    /// there is more.
    fn say(&mut self, announcement: &mut Announcement, budget: Budget) -> bool {
        let vnic = self.snapshot.vnic(announcement.place);
        let vnic = vnic.filter(|vnic| vnic.shared.driving.load(Relaxed) && !vnic.is_mirror());
        let Some((sender, frame)) = vnic.zip(announcement.frames.get(announcement.at)) else {
            return false;
        };
        // A vnic that began to wait for its address meanwhile is not announced.
        let network = self
            .snapshot
            .networks
            .get(sender.network)
            .filter(|network| !network.waits(sender.place.slot));
        let Some(network) = network else { return false };
        self.outlet.0.serve_own();
        let from = announcement.done as usize;
        if from == 0
            && let Some(cells) = sender.shared.counters.of(self.id.writer())
        {
            cells.add(Counter::Announced, 1);
        }
        let context =
            self.shared.context(&self.snapshot, sender, network, self.id.writer(), &self.notes);
        context.budget.set(budget);
        self.scratches.filter.judged = announcement.judged;
        let frames = Frames::private(&mut self.store, std::iter::once(frame.as_slice()));
        let batch = Batch::of(BatchOrigin::Own, frames, &mut self.metas);
        let walked = walk(
            batch,
            &context,
            &mut self.scratches,
            &mut self.departures,
            &mut self.calls,
            &mut self.later,
            (from, self.outlet),
        );
        self.bill.used(budget, context.budget.get());
        self.scratches.filter.judged = None;
        (announcement.done, announcement.judged) = (walked.flooded, walked.judged);
        if walked.flooded == 0 {
            announcement.at += 1;
        }
        announcement.at < announcement.frames.len()
    }
}
