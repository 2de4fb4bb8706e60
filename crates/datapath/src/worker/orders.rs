//! Orders of the rest of the daemon, carried out by the worker.

use super::{handle::Order, later::LATER, rounds::Worker};
use crate::engine::place::PortRef;
use crate::stages::headers::TX_DISABLED;
use butterfly_mem::cpu;
use std::sync::PoisonError;

impl Worker {
    #[cold]
    pub(super) fn obey(&mut self) {
        self.adopt();
        let mut orders = std::mem::take(&mut self.orders);
        std::mem::swap(
            &mut *self.handle.orders.lock().unwrap_or_else(PoisonError::into_inner),
            &mut orders,
        );
        for order in orders.drain(..) {
            match order {
                Order::Started { place, kicked } => {
                    self.timed.retain(|other| *other != place);
                    if !kicked && self.timed.len() < self.timed.capacity() {
                        self.timed.push(place);
                    }
                    // The slot's former user may still be there.
                    if let Some(polled) =
                        self.polled.iter_mut().find(|polled| polled.place.slot == place.slot)
                    {
                        if polled.place != place {
                            polled.account = self.fair.open(false, cpu::tsc());
                        }
                        polled.place = place;
                        polled.flooded = 0;
                    }
                    self.add(place);
                }
                Order::Stopped(place) => self.timed.retain(|other| *other != place),
                Order::Discard(place) => self.discard(place),
                Order::Announce { place, frames } => {
                    if !self.later.announce(place, frames)
                        && let Some(vnic) = self.snapshot.vnic(place)
                    {
                        vnic.shared.announcing.again();
                    }
                    self.add(LATER);
                }
            }
        }
        self.orders = orders;
    }

    fn discard(&mut self, place: PortRef) {
        let Some(vnic) = self.snapshot.vnic(place) else { return };
        let Some(mut guard) = vnic.shared.port.try_tx() else { return };
        let Some((frames, call)) = guard.as_mut().map(|ring| ring.discard()) else { return };
        drop(guard);
        if let Some(cells) = vnic.shared.counters.of(self.handle.index).filter(|_| frames > 0) {
            cells.drop(TX_DISABLED, frames);
        }
        if let Some(call) = call {
            call.signal();
        }
    }
}
