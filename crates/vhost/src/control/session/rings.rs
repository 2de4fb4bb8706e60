//! The rings of a session: what messages say about them, and what follows for the port.

use std::{
    ops::{Index, IndexMut},
    os::fd::OwnedFd,
    sync::Arc,
};

use super::{PRIVATE, Refused, Session};
use crate::{
    control::state::{Kick, Named, RingAddresses, RingState},
    net::Features,
    port::{MAX_PAIRS, Queue, QueueKind},
    ring::{CallFd, FRESH, MAX_SIZE, Note, RingError, RingSetup, is_eventfd},
};

/// Position of a packed ring that is lost, as whoever asks is told: it stays lost if it is to start
/// there. No ring of fewer than [`MAX_SIZE`] descriptors can.
const NOWHERE: u16 = MAX_SIZE - 1;
/// The rings of the first pair.
const FIRST: [Queue; 2] = [Queue::RX, Queue::TX];

/// A ring as the front end described it.
#[derive(Default)]
pub(crate) struct Ring {
    pub size: Option<u16>,
    pub addresses: Option<RingAddresses>,
    /// Position at which the ring starts.
    pub position: u16,
    /// A message said so. Otherwise its driver begins.
    pub given: bool,
    /// Number of the message that said where it starts, or that all begin anew.
    pub set: Option<u64>,
    /// True if it is packed, another process drove it, and that process's notes are lost.
    pub lost: bool,
    pub kick: Option<Kick>,
    pub call: Option<Named<Arc<CallFd>>>,
    pub enabled: Option<bool>,
    pub running: bool,
    /// The transmit ring was announced to [`crate::port::PortEvents`] and not taken back.
    pub announced: bool,
    /// The transmit ring was disabled while that of the first pair went on.
    pub lapsed: bool,
    pub trouble: Option<String>,
}

impl Ring {
    /// True if the front end said anything that is kept.
    pub fn is_known(&self) -> bool {
        self.size.is_some()
            || self.addresses.is_some()
            || self.enabled.is_some()
            || self.position != 0
            || self.set.is_some()
            || self.has_descriptors()
    }

    /// True if descriptors are kept for it, or it may run without one.
    fn has_descriptors(&self) -> bool {
        self.kick.is_some() || self.call.is_some()
    }
}

/// All rings of a session.
#[derive(Default)]
pub(super) struct Rings([Ring; Queue::COUNT]);

impl Rings {
    pub fn iter(&self) -> std::slice::Iter<'_, Ring> {
        self.0.iter()
    }

    fn iter_mut(&mut self) -> std::slice::IterMut<'_, Ring> {
        self.0.iter_mut()
    }
}

impl Index<Queue> for Rings {
    type Output = Ring;

    fn index(&self, queue: Queue) -> &Ring {
        &self.0[queue.index()] // a queue's index is below COUNT
    }
}

impl IndexMut<Queue> for Rings {
    fn index_mut(&mut self, queue: Queue) -> &mut Ring {
        &mut self.0[queue.index()]
    }
}

impl Session {
    /// Pairs of rings that there may be.
    pub fn pairs(&self) -> usize {
        if self.offered.has(Features::MQ) { MAX_PAIRS } else { 1 }
    }

    fn queue(&self, index: u32) -> Result<Queue, Refused> {
        let pairs = self.pairs();
        Queue::from_index(index)
            .filter(|queue| queue.pair() < pairs)
            .ok_or_else(|| refuse!("there is no ring {index}: the last is {}", 2 * pairs - 1))
    }

    pub fn ring(&self, queue: Queue) -> &Ring {
        &self.rings[queue]
    }

    fn ring_mut(&mut self, queue: Queue) -> &mut Ring {
        &mut self.rings[queue]
    }

    /// Takes or gives back the share that descriptors of further pairs need.
    fn count_pairs(&mut self) -> Result<(), Refused> {
        let has = |queue: &Queue| self.ring(*queue).has_descriptors();
        let pairs = Queue::all().filter(|queue| queue.kind() == QueueKind::Tx);
        let further = pairs.skip(1).filter(|tx| has(tx) || has(&tx.other())).count();
        self.unusual.with_further_pairs(further).map_err(|error| Refused(error.to_string()))
    }

    /// Without protocol features a ring is enabled from its start; with them only SET_VRING_ENABLE
    /// enables it.
    fn enabled(&self, queue: Queue) -> bool {
        let negotiated = self.features.unwrap_or(Features::NONE).has(Features::PROTOCOL_FEATURES);
        self.ring(queue).enabled.unwrap_or(!negotiated)
    }

    pub fn set_size(&mut self, index: u32, size: u32) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        let most = u32::from(MAX_SIZE);
        if !(1..=most).contains(&size) || !(self.is_packed() || size.is_power_of_two()) {
            let what = if self.is_packed() { "from 1" } else { "a power of two" };
            return Err(refuse!("a ring of {size} descriptors: it must be {what} up to {most}"));
        }
        let changed = self.ring(queue).size.map(u32::from) != Some(size);
        self.ring_mut(queue).size = Some(size as u16);
        if changed {
            self.settle(queue);
        }
        Ok(())
    }

    pub fn set_addresses(&mut self, index: u32, addresses: RingAddresses) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        self.ring_mut(queue).addresses = Some(addresses);
        self.settle(queue);
        Ok(())
    }

    /// Sets the position at which the ring starts next time; one that runs goes on.
    pub fn set_position(&mut self, index: u32, position: u32) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        // Of packed rings available entries are in the lower half, and used ones, which are the
        // same, in the upper one. It may be said before it is known which they are.
        let twice = self.features.is_none() && position >> 16 == position & 0xffff;
        let position = if self.is_packed() || twice {
            position as u16
        } else {
            u16::try_from(position).map_err(|_| {
                refuse!("a ring at {position}: positions of split rings have 16 bits")
            })?
        };
        let message = self.message;
        let ring = self.ring_mut(queue);
        if !ring.running {
            (ring.position, ring.given) = (position, true);
            (ring.set, ring.lost) = (Some(message), ring.lost && position == NOWHERE);
        }
        Ok(())
    }

    /// Does the same as the message of another process of which a state tells.
    pub fn restore_position(&mut self, index: u32, state: &RingState) {
        if let Ok(queue) = self.queue(index) {
            let lost = state.lost || self.notes_are_lost && self.is_packed();
            let ring = self.ring_mut(queue);
            (ring.position, ring.given) = (state.position, state.given);
            (ring.set, ring.lost) = (state.set, lost);
        }
    }

    /// True if its rings are packed.
    pub fn is_packed(&self) -> bool {
        self.features.is_some_and(|features| features.has(Features::RING_PACKED))
    }

    /// Stops a ring. Returns its position: of a packed one both as available and as used.
    pub fn stop_ring(&mut self, index: u32) -> Result<u32, Refused> {
        let queue = self.queue(index)?;
        self.halt(queue);
        // Closed only now: the announcement was taken back.
        self.ring_mut(queue).kick = None;
        self.ring_mut(queue).trouble = None;
        let _ = self.count_pairs(); // fewer are always had
        let ring = self.ring(queue);
        let position = u32::from(if ring.lost { NOWHERE } else { ring.position });
        Ok(if self.is_packed() { position | position << 16 } else { position })
    }

    pub fn set_kick(
        &mut self,
        index: u32,
        kick: Option<Named<Arc<OwnedFd>>>,
    ) -> Result<(), Refused> {
        let queue = self.queue(index)?;
        let kick = match kick {
            None => Kick::Polled,
            Some(kick) => {
                is_eventfd(&kick.it)
                    .map_err(|error| refuse!("the {queue}'s kick descriptor: {error}"))?;
                own(&kick.it);
                Kick::Eventfd(kick)
            }
        };
        self.retract(queue);
        self.ring_mut(queue).kick = Some(kick);
        self.count_pairs()?;
        if self.ring(queue).running {
            self.announce(queue);
        } else {
            self.settle(queue);
        }
        Ok(())
    }

    pub fn set_call(&mut self, index: u32, call: Option<Named<OwnedFd>>) -> Result<(), Refused> {
        // A front end may give call and error descriptors to rings that it will not use.
        let Ok(queue) = self.queue(index) else { return Ok(()) };
        let call = match call {
            None => None,
            Some(Named { name, it: call }) => {
                own(&call);
                let call = CallFd::new(call, self.port.interrupts().clone());
                let call =
                    call.map_err(|error| refuse!("the {queue}'s call descriptor: {error}"))?;
                Some(Named { name, it: Arc::new(call) })
            }
        };
        self.ring_mut(queue).call = call.clone();
        self.count_pairs()?;
        if self.ring(queue).running {
            self.port.set_call(queue, call.map(|call| call.it));
            // An interrupt may just have gone to the old descriptor, which the guest no longer
            // watches.
            self.interrupt(queue);
        }
        Ok(())
    }

    /// The ring's error descriptor is never used, but a wrong one is an error all the same.
    pub fn set_error(&mut self, index: u32, error: Option<OwnedFd>) -> Result<(), Refused> {
        let Ok(queue) = self.queue(index) else { return Ok(()) };
        match error {
            Some(fd) => {
                is_eventfd(&fd).map_err(|error| refuse!("the {queue}'s error descriptor: {error}"))
            }
            None => Ok(()),
        }
    }

    pub fn set_enabled(&mut self, index: u32, enabled: bool) -> Result<(), Refused> {
        // A front end may disable rings that its guest does not use.
        if !enabled && self.queue(index).is_err() {
            return Ok(());
        }
        let queue = self.queue(index)?;
        let before = self.enabled(queue);
        self.ring_mut(queue).enabled = Some(enabled);
        self.note_lapse(queue, before);
        self.apply_enabled(queue);
        self.tell_driving();
        Ok(())
    }

    /// True if the guest sends by its first pair.
    fn others_go_on(&self) -> bool {
        self.ring(Queue::TX).running && self.enabled(Queue::TX)
    }

    /// Notes a transmit ring that its guest ceases to use while it uses others: what is left in it
    /// will be older than what comes by them.
    fn note_lapse(&mut self, queue: Queue, before: bool) {
        let now = self.enabled(queue);
        if queue == Queue::TX && !now {
            // All pause.
            self.rings.iter_mut().for_each(|ring| ring.lapsed = false);
        } else if queue.kind() == QueueKind::Tx && before && !now {
            let lapsed = self.ring(queue).running && self.others_go_on();
            self.ring_mut(queue).lapsed = lapsed;
        }
    }

    /// RESET_OWNER: rings stop; everything else stays (the specification leaves that to the
    /// device).
    pub fn stop_rings(&mut self) {
        for queue in Queue::all() {
            self.halt(queue);
            let ring = self.ring_mut(queue);
            ring.kick = None;
            ring.enabled = None;
            ring.trouble = None;
        }
        let _ = self.count_pairs(); // fewer are always had
    }

    /// RESET_DEVICE: as after the connection was made, but memory and protocol features stay.
    pub fn reset(&mut self) {
        self.stop_rings();
        self.rings = Rings::default();
        // Where a ring stood does not count any more, and whoever repeats this says the same.
        let message = self.message;
        self.rings.iter_mut().for_each(|ring| ring.set = Some(message));
        let _ = self.count_pairs(); // none
        self.features = None;
        self.log = None;
    }

    // ---- What follows ----

    /// Builds the setup that the port gets for a ring. Returns `Ok(None)` if something is missing
    /// yet.
    fn setup(&self, queue: Queue) -> Result<Option<RingSetup>, String> {
        let ring = self.ring(queue);
        let (Some(size), Some(at), Some(_)) = (ring.size, ring.addresses, &ring.kick) else {
            return Ok(None);
        };
        if self.regions.is_empty() && !ring.running {
            return Ok(None);
        }
        let guest = |what, user_addr| {
            let outside = || {
                format!(
                    "its {what} at front-end address {user_addr:#x} is outside of the guest's memory"
                )
            };
            self.memory.user_to_guest(user_addr).ok_or_else(outside)
        };
        Ok(Some(RingSetup {
            memory: self.memory.clone(),
            log: self.active_log().map(|log| log.map.clone()),
            features: self.features.unwrap_or(Features::NONE),
            size,
            desc: guest("descriptor table", at.desc)?,
            avail: guest("available ring", at.avail)?,
            used: guest("used ring", at.used)?,
            used_log: at.used_log,
            call: ring.call.as_ref().map(|call| call.it.clone()),
            note: self.note(queue)?,
        }))
    }

    /// The note about a packed ring; `None` if it is lost.
    fn note(&self, queue: Queue) -> Result<Option<Note>, String> {
        let ring = self.ring(queue);
        let Some(notes) = self.notes.as_ref().filter(|_| self.is_packed() && !ring.lost) else {
            return Ok(None);
        };
        let note = notes.note(queue.index(), ring.set.unwrap_or(self.connection));
        note.map(Some).map_err(|error| format!("there is no memory for its position: {error}"))
    }

    /// Marks the used rings in the dirty log. A device that died may have moved a used index and
    /// not marked it; it marked what the guest finds by that index before it moved it.
    pub(super) fn log_used_rings(&self) {
        let Some(log) = self.active_log() else { return };
        for ring in self.rings.iter().filter(|_| self.is_packed()) {
            if let (Some(size), Some(at)) = (ring.size, ring.addresses) {
                for (user, len) in [(at.desc, 16 * u64::from(size)), (at.used, 4)] {
                    if let Some(guest) = self.memory.user_to_guest(user) {
                        log.map.mark(guest, len);
                    }
                }
            }
        }
        for ring in self.rings.iter().filter(|_| !self.is_packed()) {
            if let (Some(size), Some(RingAddresses { used_log: Some(at), .. })) =
                (ring.size, ring.addresses)
            {
                // Flags, index, entries, and the index for notifications (virtio 1.2, 2.7.8).
                log.map.mark(at, 6 + 8 * u64::from(size));
            }
        }
    }

    pub(super) fn settle_all(&mut self) {
        Queue::all().for_each(|queue| self.settle(queue));
    }

    /// Makes the port's ring what the session says: starts it, moves it or stops it.
    fn settle(&mut self, queue: Queue) {
        let setup = match self.setup(queue) {
            // Another process drove it, and where it stands is not noted.
            Ok(Some(RingSetup { note: Some(note), .. })) if self.restoring && !note.is_begun() => {
                self.ring_mut(queue).lost = true;
                return self.give_up(queue, RingError::Lost.to_string());
            }
            Ok(Some(setup)) => setup,
            Ok(None) => return,
            Err(why) => return self.give_up(queue, why),
        };
        if self.ring(queue).running {
            if let Err(error) = self.port.replace(queue, &setup) {
                return self.give_up(queue, error.to_string());
            }
            // What its old place said about notifications may not hold in the new one.
            self.retract(queue);
        } else {
            let ring = self.ring(queue);
            let base = match (ring.position, ring.given) {
                (0, false) if self.is_packed() => FRESH,
                (position, _) => position,
            };
            match self.port.start(queue, &setup, base, self.enabled(queue)) {
                // Its guest came from another device: that of another host.
                Ok(resumed) => self.resumed |= resumed && !self.restoring,
                Err(error) => return self.give_up(queue, error.to_string()),
            }
            // What a dead device's guest had given up may have been so for long.
            let lapsed = self.restoring && self.others_go_on() && !self.enabled(queue);
            let ring = self.ring_mut(queue);
            (ring.running, ring.lapsed) = (true, lapsed);
            // The device that drove the ring before may still owe the guest an interrupt.
            self.interrupt(queue);
        }
        self.ring_mut(queue).trouble = None;
        self.announce(queue);
    }

    /// The ring cannot run where the front end put it; it starts as soon as a message makes it
    /// possible.
    fn give_up(&mut self, queue: Queue, why: String) {
        self.halt(queue);
        let trouble = format!("the {queue} cannot run: {why}");
        if self.ring(queue).kick.is_some() && self.ring(queue).trouble.as_ref() != Some(&trouble) {
            self.events.trouble(&trouble);
        }
        self.ring_mut(queue).trouble = Some(trouble);
    }

    /// Stops a ring; its kick descriptor stays open.
    fn halt(&mut self, queue: Queue) {
        if let Some(position) = self.port.stop(queue) {
            self.ring_mut(queue).position = position;
        }
        self.ring_mut(queue).running = false;
        self.announce(queue);
    }

    fn interrupt(&self, queue: Queue) {
        if let Some(call) = &self.ring(queue).call {
            call.it.signal_shared();
        }
    }

    pub(super) fn apply_all_enabled(&mut self) {
        Queue::all().for_each(|queue| self.apply_enabled(queue));
        self.tell_driving();
    }

    fn apply_enabled(&mut self, queue: Queue) {
        if self.ring(queue).running {
            let enabled = self.enabled(queue);
            let lapsed = enabled && std::mem::take(&mut self.ring_mut(queue).lapsed);
            self.port.set_enabled(queue, enabled, lapsed);
        }
        self.announce(queue);
    }

    fn kick_of(&self, queue: Queue) -> Option<&Arc<OwnedFd>> {
        match &self.ring(queue).kick {
            Some(Kick::Eventfd(kick)) => Some(&kick.it),
            _ => None,
        }
    }

    /// Tells the worker that polls a transmit ring whether there is one, and all receivers of
    /// events whether the driver is up.
    fn announce(&mut self, queue: Queue) {
        self.tell_driving();
        if queue.kind() == QueueKind::Rx {
            return;
        }
        if !self.ring(queue).running || !self.enabled(queue) {
            self.retract(queue);
        } else if !self.ring(queue).announced {
            self.events.tx_started(queue.pair(), self.kick_of(queue));
            self.ring_mut(queue).announced = true;
        }
    }

    fn tell_driving(&mut self) {
        let both = FIRST.into_iter().all(|queue| self.ring(queue).running && self.enabled(queue));
        if both != std::mem::replace(&mut self.driving, both) {
            self.events.driving(both);
            if both && std::mem::take(&mut self.resumed) {
                self.events.announce();
            }
            self.memory_trouble = (both && self.looks_private()).then_some(PRIVATE);
            if let Some(why) = self.memory_trouble {
                self.events.trouble(why);
            }
        }
    }

    /// True if the driver is up and its VM never wrote anything that we can see.
    ///
    /// A front end with private memory gives a file that looks like any other, but only we read it.
    /// Rings may be empty at first. The beginning of a VM's memory is not: firmware, loader and
    /// kernel have been there.
    fn looks_private(&self) -> bool {
        const BEGINNING: u32 = 1 << 20;
        let blank = |queue| {
            let Ring { addresses: Some(at), size: Some(size), .. } = self.ring(queue) else {
                return false;
            };
            let size = u32::from(*size);
            let avail = if self.is_packed() { 4 } else { 4 + 2 * size };
            let parts = [(at.desc, 16 * size), (at.avail, avail)];
            parts.into_iter().all(|(user, len)| {
                self.memory.user_to_guest(user).is_some_and(|at| self.memory.is_blank(at, len))
            })
        };
        FIRST.into_iter().all(blank)
            && self
                .memory
                .regions()
                .next()
                .is_some_and(|first| self.memory.is_blank(first.guest_addr, BEGINNING))
    }

    fn retract(&mut self, queue: Queue) {
        if std::mem::take(&mut self.ring_mut(queue).announced) {
            self.events.tx_stopped(queue.pair(), self.kick_of(queue));
        }
    }
}

/// The `vhost` crate receives descriptors that child processes would inherit.
fn own(fd: &OwnedFd) {
    let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
}
