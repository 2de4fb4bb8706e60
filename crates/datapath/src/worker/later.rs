//! Frames that have no ring to wait in: floods of other hosts for which a turn has no time, and
//! announcements of the switch's own.
//!
//! A flood of a machine here stays in its ring until it is done. A flood of another host cannot be
//! put back, and the frames behind it are other networks'. So it is copied, and waits in a queue
//! that is served like a ring: some receivers in each turn, and paid for as any other ring pays.
//! Floods and announcements take turns. Each network has a few places. When all are taken, a
//! network with fewer floods takes a place of the network with most.
//!
//! Fragments that came before their first ones have a [`FragmentPen`] beside it, and packets whose
//! next hop is asked for a [`HopPen`].
//!
//! Frames that are passed on to another host wait, too, but only until the batch that they came by
//! is done: the uplink is held while it is served.

use std::{collections::VecDeque, sync::Arc};

use butterfly_vhost::ring::{BATCH, Frames};

use super::{
    copies::{LONGEST, copy},
    hops::HopPen,
    pen::FragmentPen,
};
use crate::engine::writer::Writer;
use crate::engine::{
    batch::{Batch, Verdict},
    last_drops::Dropped,
    place::{PeerRef, PortRef},
};
use crate::overlay::UPLINK_FULL;
use crate::stages::{context::Context, deliver::FLOOD_LIMIT, filter::Judged};
use crate::world::snapshot::{Snapshot, Vnic};

/// Most floods that wait, of all networks and of one.
const FLOODS: usize = 64;
const PER_NETWORK: usize = 8;
/// Most frames that are passed on at once: a batch.
pub(super) const RELAYED: usize = BATCH;
/// Most vnics that wait to be announced. Others have their turn in a later tick of housekeeping.
const ANNOUNCED: usize = 256;

/// A frame from another host.
pub(super) struct Flood {
    pub(super) vni: u32,
    pub(super) peer: PeerRef,
    /// Number of receivers that have it, and the decision on it.
    pub(super) done: u32,
    pub(super) judged: Option<Judged>,
    pub(super) frame: Vec<u8>,
}

/// A frame from another host, for a vnic that left for a third one.
pub(super) struct Relayed {
    pub(super) vni: u32,
    pub(super) to: PeerRef,
    pub(super) frame: Vec<u8>,
}

/// Sender of the switch's own frames.
pub(super) enum Speaker {
    /// The vnic at this place, whose name they are sent in.
    Vnic(PortRef),
    /// The routers of this host, in a network.
    Router(Arc<Vnic>),
}

/// Complete frames of the switch's own.
pub(super) struct Announcement {
    pub(super) from: Speaker,
    pub(super) frames: Arc<Vec<Vec<u8>>>,
    /// The next frame, and the number of receivers that have it.
    pub(super) at: usize,
    pub(super) done: u32,
    pub(super) judged: Option<Judged>,
}

/// The queues of a worker.
pub(super) struct Later {
    pub(super) floods: VecDeque<Flood>,
    /// Buffers for more floods.
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) announcements: VecDeque<Announcement>,
    pub(super) pen: FragmentPen,
    pub(super) hops: HopPen,
    /// The queue that had the last turn.
    last_served: LaterQueue,
    /// The network of the last flood.
    pub(super) last: u32,
    /// Frames to be passed on, and buffers for more.
    pub(super) relayed: Vec<Relayed>,
    pub(super) relay_spare: Vec<Vec<u8>>,
}

/// A queue of [`Later`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LaterQueue {
    Announcements,
    Floods,
    Fragments,
    /// Packets whose next hop is known now, or stays unknown.
    Hops,
}

impl LaterQueue {
    fn next(self) -> LaterQueue {
        match self {
            LaterQueue::Announcements => LaterQueue::Floods,
            LaterQueue::Floods => LaterQueue::Fragments,
            LaterQueue::Fragments => LaterQueue::Hops,
            LaterQueue::Hops => LaterQueue::Announcements,
        }
    }
}

impl Later {
    /// Allocates all that it will ever need; pages are touched when they are used.
    pub fn new() -> Later {
        Later {
            floods: VecDeque::with_capacity(FLOODS),
            spare: (0..FLOODS).map(|_| Vec::with_capacity(LONGEST)).collect(),
            announcements: VecDeque::with_capacity(ANNOUNCED),
            pen: FragmentPen::new(),
            hops: HopPen::new(),
            last_served: LaterQueue::Floods,
            last: 0,
            relayed: Vec::with_capacity(RELAYED),
            relay_spare: (0..RELAYED).map(|_| Vec::with_capacity(LONGEST)).collect(),
        }
    }

    /// Returns whether no flood and no announcement waits for a turn.
    pub fn is_empty(&self) -> bool {
        self.floods.is_empty() && self.announcements.is_empty()
    }

    /// Returns the queue whose turn it is, if one has a frame: they take turns.
    pub(super) fn next_queue(&mut self) -> Option<LaterQueue> {
        let first = self.last_served.next();
        let all = [first, first.next(), first.next().next(), first.next().next().next()];
        let next = all.into_iter().find(|queue| match queue {
            LaterQueue::Announcements => !self.announcements.is_empty(),
            LaterQueue::Floods => !self.floods.is_empty(),
            LaterQueue::Fragments => self.pen.is_due(),
            LaterQueue::Hops => self.hops.is_due(),
        })?;
        self.last_served = next;
        Some(next)
    }

    /// Copies the frames of a batch that are to wait. Drops frames for which there is no place.
    #[cold]
    pub fn take(&mut self, batch: &mut Batch<'_>, context: &Context<'_>) {
        let vni = context.sender.vni;
        let mut own = self.of(vni);
        let (frames, metas) = batch.parts();
        for (index, meta) in
            metas.iter_mut().enumerate().filter(|(_, meta)| meta.verdict == Verdict::Later)
        {
            if own < PER_NETWORK && self.spare.is_empty() {
                self.make_room(own, context);
            }
            if own == PER_NETWORK || !self.copy(frames, index, vni, meta.peer) {
                meta.verdict = Verdict::Drop(FLOOD_LIMIT, context.sender.place.slot);
                continue;
            }
            own += 1;
        }
    }

    /// Copies the frames of a batch that are to be passed on to another host. Drops those that are
    /// too long.
    #[cold]
    pub fn take_relayed(&mut self, batch: &mut Batch<'_>, context: &Context<'_>) {
        let vni = context.sender.vni;
        let (frames, metas) = batch.parts();
        for (index, meta) in metas.iter_mut().enumerate() {
            let Verdict::Tunnel(to) = meta.verdict else { continue };
            let frame = self.relay_spare.pop().and_then(|mut frame| {
                let copied = copy(frames, index, &mut frame);
                if !copied {
                    self.relay_spare.push(frame);
                    return None;
                }
                Some(frame)
            });
            match frame {
                Some(frame) => self.relayed.push(Relayed { vni, to, frame }),
                None => meta.verdict = Verdict::Drop(UPLINK_FULL, context.sender.place.slot),
            }
        }
    }

    fn of(&self, vni: u32) -> usize {
        self.floods.iter().filter(|flood| flood.vni == vni).count()
    }

    /// Drops the newest flood of the network that has most, for a network with `own` floods. Does
    /// so only if that network has at least two more, and if no receiver has that flood yet.
    fn make_room(&mut self, own: usize, context: &Context<'_>) {
        // One look for all networks, as this runs for every frame that finds all places taken.
        let mut counts = [(0, 0); FLOODS];
        for flood in &self.floods {
            if let Some(count) =
                counts.iter_mut().find(|(count, vni)| *count == 0 || *vni == flood.vni)
            {
                *count = (count.0 + 1, flood.vni);
            }
        }
        let most = counts.into_iter().max();
        let Some((_, vni)) = most.filter(|(count, _)| *count >= own + 2) else { return };
        let Some(at) = self.floods.iter().rposition(|flood| flood.vni == vni && flood.done == 0)
        else {
            return;
        };
        let Some(flood) = self.floods.remove(at) else { return };
        lose(&flood, (context.snapshot, context.worker, context.clock.tenths()));
        self.spare.push(flood.frame);
    }

    /// Drops all floods that wait. Announcements are made by another worker at a later tick.
    pub(super) fn drop_all(&mut self, context: (&Snapshot, Writer<'_>, u32)) {
        for flood in self.floods.drain(..) {
            if flood.done == 0 {
                lose(&flood, context);
            }
            self.spare.push(flood.frame);
        }
        for announcement in self.announcements.drain(..) {
            if let Speaker::Vnic(place) = announcement.from
                && let Some(vnic) = context.0.vnic(place)
            {
                vnic.shared.announcing.again();
            }
        }
    }

    fn copy(&mut self, frames: &Frames<'_>, index: usize, vni: u32, peer: PeerRef) -> bool {
        let Some(mut frame) = self.spare.pop() else { return false };
        if !copy(frames, index, &mut frame) {
            self.spare.push(frame);
            return false;
        }
        self.floods.push_back(Flood { vni, peer, done: 0, judged: None, frame });
        true
    }

    /// Takes the oldest flood of the next network out of its place.
    pub(super) fn next_flood(&mut self) -> Option<(usize, Flood)> {
        let after = |flood: &&Flood| flood.vni > self.last;
        let next = self.floods.iter().filter(after).map(|flood| flood.vni).min();
        let next = next.or_else(|| self.floods.iter().map(|flood| flood.vni).min())?;
        self.last = next;
        let at = self.floods.iter().position(|flood| flood.vni == next)?;
        self.floods.remove(at).map(|flood| (at, flood))
    }

    /// Takes a vnic that is to be announced. Returns whether there was room.
    pub fn announce(&mut self, from: Speaker, frames: Arc<Vec<Vec<u8>>>) -> bool {
        let room = self.announcements.len() < ANNOUNCED;
        if room {
            self.announcements.push_back(Announcement {
                from,
                frames,
                at: 0,
                done: 0,
                judged: None,
            });
        }
        room
    }
}

/// Counts a flood that is dropped.
fn lose(flood: &Flood, (snapshot, worker, when): (&Snapshot, Writer<'_>, u32)) {
    if let Some((_, trunk)) = snapshot.trunk(flood.vni) {
        let len = flood.frame.len() as u32;
        let dropped = Dropped { head: &flood.frame, len, when };
        trunk.shared.counters.drop(worker, FLOOD_LIMIT, &dropped);
    }
}
