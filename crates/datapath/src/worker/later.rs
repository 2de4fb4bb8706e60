//! Frames that have no ring to wait in: floods of other hosts for which a turn has no time, and announcements of the switch's own.
//!
//! What a machine here floods stays in its ring until it is done; what came from another host cannot be put back, and the frames behind
//! it are other networks'. So it is copied, and waits in a queue that is served like a ring: some receivers in each turn, and paid for
//! as any other ring pays. Each network has a few places.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use butterfly_vhost::ring::Frames;

use super::{Found, Worker, walk};
use crate::{
    batch::{Batch, Context, Origin, Verdict},
    counters::Counter,
    deliver::FLOOD_LIMIT,
    snapshot::PortRef,
    tunnel::{PeerRef, UPLINK},
};

/// Where workers keep the queue among the rings that they poll. No vnic has this slot.
pub(super) const LATER: PortRef = PortRef { slot: UPLINK.slot - 1, incarnation: 0 };
/// Floods that wait, of all networks and of one.
const FLOODS: usize = 64;
const PER_NETWORK: usize = 8;
/// Longest of them: what jumbo frames of 9,000 bytes are, behind Ethernet and two VLAN tags.
const LONGEST: usize = 9022;
/// Vnics that wait to be announced. Others are announced in the next round.
const ANNOUNCED: usize = 256;

/// A frame from another host.
struct Flood {
    vni: u32,
    peer: PeerRef,
    /// How many receivers have it.
    done: u32,
    frame: Vec<u8>,
}

/// Complete frames that are sent as if the vnic had.
struct Announcement {
    place: PortRef,
    frames: Arc<Vec<Vec<u8>>>,
    /// The next one, and how many receivers have it.
    at: usize,
    done: u32,
}

/// The queues of a worker.
pub(super) struct Later {
    floods: VecDeque<Flood>,
    /// Room for others.
    spare: Vec<Vec<u8>>,
    announcements: VecDeque<Announcement>,
}

impl Later {
    /// Everything it will ever need; pages are touched when they are used.
    pub fn new() -> Later {
        Later {
            floods: VecDeque::with_capacity(FLOODS),
            spare: (0..FLOODS).map(|_| Vec::with_capacity(LONGEST)).collect(),
            announcements: VecDeque::with_capacity(ANNOUNCED),
        }
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.floods.is_empty() && self.announcements.is_empty()
    }

    /// Copies the frames of a batch that are to wait. Those for which there is no place are dropped.
    #[cold]
    pub fn take(&mut self, batch: &mut Batch<'_>, context: &Context<'_>) {
        let vni = context.sender.vni;
        let mut places = PER_NETWORK.saturating_sub(self.floods.iter().filter(|flood| flood.vni == vni).count());
        let (frames, metas) = batch.parts();
        for (index, meta) in metas.iter_mut().enumerate().filter(|(_, meta)| meta.verdict == Verdict::Later) {
            if places == 0 || !self.copy(frames, index, vni, meta.peer) {
                meta.verdict = Verdict::Drop(FLOOD_LIMIT, context.sender.place.slot);
                continue;
            }
            places -= 1;
        }
    }

    fn copy(&mut self, frames: &Frames<'_>, index: usize, vni: u32, peer: PeerRef) -> bool {
        let len = frames.frames().get(index).map_or(0, |frame| frame.len as usize);
        if len > LONGEST {
            return false;
        }
        let Some(mut frame) = self.spare.pop() else { return false };
        frame.clear();
        frame.resize(len, 0); // within its capacity
        if !frames.copy_to(index, 0, &mut frame, None) {
            self.spare.push(frame);
            return false;
        }
        self.floods.push_back(Flood { vni, peer, done: 0, frame });
        true
    }

    /// A vnic is to be announced.
    pub fn announce(&mut self, place: PortRef, frames: Arc<Vec<Vec<u8>>>) {
        if self.announcements.len() < ANNOUNCED {
            self.announcements.push_back(Announcement { place, frames, at: 0, done: 0 });
        }
    }
}

impl Worker {
    /// Some receivers of the frame that has waited longest.
    #[inline(never)]
    pub(super) fn serve_later(&mut self) -> Found {
        if let Some(mut flood) = self.later.floods.pop_front() {
            flood.done = self.carry_on(&flood);
            if flood.done > 0 {
                self.later.floods.push_front(flood);
            } else {
                self.later.spare.push(flood.frame);
            }
        } else if let Some(mut announcement) = self.later.announcements.pop_front() {
            if self.say(&mut announcement) {
                self.later.announcements.push_front(announcement);
            }
        } else {
            return Found::Gone;
        }
        // It was counted when it came, or is nobody's.
        Found::Frames(0)
    }

    /// Returns how many receivers have it; 0: all of them.
    fn carry_on(&mut self, flood: &Flood) -> u32 {
        let Some((network, trunk)) = self.snapshot.trunk(flood.vni) else { return 0 };
        if let Some(meta) = self.metas.first_mut() {
            meta.peer = flood.peer;
        }
        let from = flood.done as usize;
        let context = self.shared.context(&self.snapshot, trunk, network, self.handle.index, &self.notes);
        let context = Context { again: from > 0, ..context };
        let frames = Frames::private(&mut self.store, std::iter::once(flood.frame.as_slice()));
        let batch = Batch::of(Origin::Waited, frames, &mut self.metas);
        walk(batch, &context, &mut self.room, &mut self.departures, &mut self.calls, &mut self.later, from).flooded
    }

    /// Sends the next frame of an announcement, if the vnic's machine runs here. Returns whether there is more.
    fn say(&mut self, announcement: &mut Announcement) -> bool {
        let vnic = self.snapshot.vnic(announcement.place).filter(|vnic| vnic.shared.driving.load(Relaxed));
        let Some((sender, frame)) = vnic.zip(announcement.frames.get(announcement.at)) else { return false };
        let Some(network) = self.snapshot.networks.get(sender.network) else { return false };
        let from = announcement.done as usize;
        if from == 0
            && let Some(cells) = sender.shared.counters.of(self.handle.index)
        {
            cells.add(Counter::Announced, 1);
        }
        let context = self.shared.context(&self.snapshot, sender, network, self.handle.index, &self.notes);
        let context = Context { again: from > 0, ..context };
        let frames = Frames::private(&mut self.store, std::iter::once(frame.as_slice()));
        let batch = Batch::of(Origin::Own, frames, &mut self.metas);
        let walked = walk(batch, &context, &mut self.room, &mut self.departures, &mut self.calls, &mut self.later, from);
        announcement.done = walked.flooded;
        if walked.flooded == 0 {
            announcement.at += 1;
        }
        announcement.at < announcement.frames.len()
    }
}
