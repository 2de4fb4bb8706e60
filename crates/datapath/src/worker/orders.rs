//! Orders of the rest of the daemon, carried out by the worker.

use super::{
    halves::FormerHalf,
    handle::Order,
    later::Speaker,
    rounds::{Polled, Worker, serving},
    under_way::Parcel,
};
use crate::engine::{
    mac::number,
    place::{PollSource, PortRef},
    reserved::{is_host, is_reserved},
};
use crate::stages::headers::TX_DISABLED;
use butterfly_mem::cpu;
use butterfly_point::{Point, pass};
use butterfly_vhost::ring::Discarded;
use std::sync::{
    PoisonError,
    atomic::{Ordering, fence},
};

impl Worker {
    #[cold]
    pub(super) fn obey(&mut self) {
        self.adopt();
        self.handle.told.store(false, Ordering::Relaxed);
        // What was ordered before the flag was set is there.
        fence(Ordering::SeqCst);
        let mut orders = std::mem::take(&mut self.orders);
        std::mem::swap(
            &mut *self.handle.orders.lock().unwrap_or_else(PoisonError::into_inner),
            &mut orders,
        );
        for order in orders.drain(..) {
            match order {
                // Nobody sends them again for long, so they wait for room.
                order if is_advertisement(&order) => {
                    if self.adverts.len() < self.adverts.capacity() {
                        self.adverts.push(order);
                    }
                }
                Order::Started { source, kicked } => {
                    self.look_by_time(source, !kicked && self.has(source));
                    // The slot's former user may still be there.
                    let same = |polled: &&mut Polled| match (polled.source, source) {
                        (
                            PollSource::Queue { place: old, pair: old_pair },
                            PollSource::Queue { place: new, pair: new_pair },
                        ) => old.slot == new.slot && old_pair == new_pair,
                        (old, new) => old == new,
                    };
                    if let Some(polled) = self.polled.iter_mut().find(same) {
                        if polled.source != source {
                            polled.account = self.fair.open(false, cpu::tsc());
                        }
                        polled.source = source;
                        polled.flooded = 0;
                    }
                    if let PollSource::Queue { place, pair } = source {
                        self.discard(place, pair);
                    }
                    self.add(source);
                }
                Order::Take { place, pair, timed, parcel } => {
                    self.take(PollSource::of((place, pair)), timed, parcel);
                }
                Order::GiveUp { place, pair } => self.give_up(PollSource::of((place, pair))),
                Order::Weigh => self.weigh(),
                Order::Look(source) => {
                    if source == PollSource::Waiting {
                        self.later.hops.look(&self.shared.asking);
                    }
                    self.add(source);
                }
                Order::Stopped(source) => self.timed.retain(|other| *other != source),
                Order::Discard { place, pair } => {
                    if self.discard(place, pair) {
                        self.add(PollSource::Queue { place, pair });
                    }
                }
                // Questions: without room they are sent again in a second.
                Order::Ask { asker, frames } => {
                    self.later.announce(Speaker::Router(asker), frames);
                    self.add(PollSource::Waiting);
                }
                Order::Announce { place, frames } => {
                    if !self.later.announce(Speaker::Vnic(place), frames)
                        && let Some(vnic) = self.snapshot.vnic(place)
                    {
                        vnic.shared.announcing.again();
                    }
                    self.add(PollSource::Waiting);
                }
            }
        }
        self.orders = orders;
        if !self.adverts.is_empty() {
            self.advertise();
        }
    }

    /// Sends advertisements, the oldest first, as many as there is room for. Others wait until
    /// there is.
    fn advertise(&mut self) {
        let later = &mut self.later;
        let mut room = true;
        self.adverts.retain(|order| {
            if let Order::Ask { asker, frames } = order {
                room = room && later.announce(Speaker::Router(asker.clone()), frames.clone());
            }
            !room
        });
        self.add(PollSource::Waiting);
        if !self.adverts.is_empty() {
            self.handle.told.store(true, Ordering::Relaxed);
        }
    }

    /// Has a source looked at each millisecond, or no more.
    fn look_by_time(&mut self, source: PollSource, timed: bool) {
        self.timed.retain(|other| *other != source);
        if timed && self.timed.len() < self.timed.capacity() {
            self.timed.push(source);
        }
    }

    /// Takes a ring that a former worker gave up, with what that one left.
    fn take(&mut self, source: PollSource, timed: bool, parcel: Option<Parcel>) {
        let Some((serving, pair)) = self.serving(source) else { return };
        serving.take(pair, self.handle.index);
        self.look_by_time(source, timed);
        self.add(source);
        let former = parcel.as_ref().and_then(|parcel| parcel.former);
        let former = former.filter(|former| former.is_not(self.outlet.1));
        let flooded = parcel.map_or(0, |parcel| self.under_way.unpack(parcel));
        let theirs = self.polled.iter_mut().find(|polled| polled.source == source);
        theirs.into_iter().for_each(|polled| polled.flooded = flooded);
        if let Some(former) = former {
            self.formers.add(source, former);
        }
        pass(Point::Taken);
    }

    /// Gives up a ring, if the worker has it.
    fn give_up(&mut self, source: PollSource) {
        self.timed.retain(|other| *other != source);
        let at = self.polled.iter().position(|polled| polled.source == source);
        let polled = at.map(|at| self.leave(at));
        let former = self.formers.take(source);
        let mut parcel = self.under_way.pack(source, polled.map_or(0, |polled| polled.flooded));
        parcel.former = self
            .serving(source)
            .and_then(|(serving, _)| FormerHalf::of(&self.shared, serving, former, self.outlet.1));
        *self.handle.parcel.lock().unwrap_or_else(PoisonError::into_inner) = Some(parcel);
        // Last: who sees it takes the parcel.
        if let Some((serving, pair)) = self.serving(source) {
            serving.give_up(pair, self.handle.index);
        }
    }

    /// Tells the cycles that were spent on each ring.
    fn weigh(&mut self) {
        for polled in &mut self.polled {
            if let Some((serving, pair)) = serving(&self.snapshot, &self.shared, polled.source) {
                serving.spend(pair, std::mem::take(&mut polled.spent));
            }
        }
    }

    /// Returns whether nothing is left to be discarded: the ring may be served now.
    fn discard(&mut self, place: PortRef, pair: u8) -> bool {
        let Some(vnic) = self.snapshot.vnic(place) else { return false };
        self.outlet.0.serve(place.slot);
        let discarded = vnic.shared.port.discard(pair.into());
        self.outlet.0.rest();
        let Some(Discarded { frames, call, left }) = discarded else { return false };
        if let Some(cells) = vnic.shared.counters.of(self.id.writer()).filter(|_| frames > 0) {
            cells.drop(TX_DISABLED, frames);
        }
        if let Some(call) = call {
            call.signal();
        }
        !left
    }
}

/// Returns whether an order is to send advertisements: these come from the MAC address of a router,
/// and questions from that of a host.
fn is_advertisement(order: &Order) -> bool {
    let is_router = |mac: u64| is_reserved(mac) && !is_host(mac);
    matches!(order, Order::Ask { asker, .. } if is_router(number(asker.mac)))
}
