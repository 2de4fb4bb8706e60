//! The rings of a session: what messages say about them, and what follows for the port.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::{PRIVATE, Refused, Session};
use crate::{
    control::state::{Kick, Named, RingAddresses},
    net::Features,
    port::Queue,
    ring::{CallFd, RingSetup, is_eventfd},
};

/// Most descriptors of a ring (virtio 1.2, 2.7).
const MAX_RING_SIZE: u32 = 32768;

const QUEUES: [Queue; 2] = [Queue::Rx, Queue::Tx];

/// A ring as the front end described it.
#[derive(Default)]
pub(crate) struct Ring {
    pub size: Option<u16>,
    pub addresses: Option<RingAddresses>,
    /// Position at which the ring starts.
    pub position: u16,
    pub kick: Option<Kick>,
    pub call: Option<Named<Arc<CallFd>>>,
    pub enabled: Option<bool>,
    pub running: bool,
    pub trouble: Option<String>,
}

impl Session {
    pub fn ring(&self, queue: Queue) -> &Ring {
        let [rx, tx] = &self.rings;
        match queue {
            Queue::Rx => rx,
            Queue::Tx => tx,
        }
    }

    fn ring_mut(&mut self, queue: Queue) -> &mut Ring {
        let [rx, tx] = &mut self.rings;
        match queue {
            Queue::Rx => rx,
            Queue::Tx => tx,
        }
    }

    /// Without protocol features a ring is enabled from its start; with them only SET_VRING_ENABLE
    /// enables it.
    fn enabled(&self, queue: Queue) -> bool {
        let negotiated = self.features.unwrap_or(Features::NONE).has(Features::PROTOCOL_FEATURES);
        self.ring(queue).enabled.unwrap_or(!negotiated)
    }

    pub fn set_size(&mut self, index: u32, size: u32) -> Result<(), Refused> {
        let queue = queue(index)?;
        if !size.is_power_of_two() || size > MAX_RING_SIZE {
            return Err(refuse!(
                "a ring of {size} descriptors: it must be a power of two up to {MAX_RING_SIZE}"
            ));
        }
        let changed = self.ring(queue).size.map(u32::from) != Some(size);
        self.ring_mut(queue).size = Some(size as u16);
        if changed {
            self.settle(queue);
        }
        Ok(())
    }

    pub fn set_addresses(&mut self, index: u32, addresses: RingAddresses) -> Result<(), Refused> {
        let queue = queue(index)?;
        self.ring_mut(queue).addresses = Some(addresses);
        self.settle(queue);
        Ok(())
    }

    /// Sets the position at which the ring starts next time; one that runs goes on.
    pub fn set_position(&mut self, index: u32, position: u32) -> Result<(), Refused> {
        let queue = queue(index)?;
        self.ring_mut(queue).position = u16::try_from(position)
            .map_err(|_| refuse!("a ring at {position}: positions of split rings have 16 bits"))?;
        Ok(())
    }

    /// Stops a ring. Returns its position.
    pub fn stop_ring(&mut self, index: u32) -> Result<u16, Refused> {
        let queue = queue(index)?;
        self.halt(queue);
        // Closed only now: the announcement was taken back.
        self.ring_mut(queue).kick = None;
        self.ring_mut(queue).trouble = None;
        Ok(self.ring(queue).position)
    }

    pub fn set_kick(&mut self, index: u32, kick: Option<Named<OwnedFd>>) -> Result<(), Refused> {
        let queue = queue(index)?;
        let kick = match kick {
            None => Kick::Polled,
            Some(kick) => {
                is_eventfd(&kick.it).map_err(|error| {
                    refuse!("the {} ring's kick descriptor: {error}", queue.name())
                })?;
                own(&kick.it);
                Kick::Eventfd(kick)
            }
        };
        if queue == Queue::Tx {
            self.retract();
        }
        self.ring_mut(queue).kick = Some(kick);
        if self.ring(queue).running {
            self.announce();
        } else {
            self.settle(queue);
        }
        Ok(())
    }

    pub fn set_call(&mut self, index: u32, call: Option<Named<OwnedFd>>) -> Result<(), Refused> {
        // QEMU with `queues=2` gives call and error descriptors to every ring it could have, long
        // before it knows which ones are used.
        let Some(queue) = Queue::from_index(index) else { return Ok(()) };
        let call = match call {
            None => None,
            Some(Named { name, it: call }) => {
                own(&call);
                let call = CallFd::new(call, self.port.interrupts().clone());
                let call = call.map_err(|error| {
                    refuse!("the {} ring's call descriptor: {error}", queue.name())
                })?;
                Some(Named { name, it: Arc::new(call) })
            }
        };
        self.ring_mut(queue).call = call.clone();
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
        let Some(queue) = Queue::from_index(index) else { return Ok(()) };
        match error {
            Some(fd) => is_eventfd(&fd)
                .map_err(|error| refuse!("the {} ring's error descriptor: {error}", queue.name())),
            None => Ok(()),
        }
    }

    pub fn set_enabled(&mut self, index: u32, enabled: bool) -> Result<(), Refused> {
        // QEMU with `queues=2` disables the rings that a guest without VIRTIO_NET_F_MQ does not
        // use.
        if !enabled && Queue::from_index(index).is_none() {
            return Ok(());
        }
        let queue = queue(index)?;
        self.ring_mut(queue).enabled = Some(enabled);
        self.apply_enabled();
        Ok(())
    }

    /// RESET_OWNER: rings stop; everything else stays (the specification leaves that to the
    /// device).
    pub fn stop_rings(&mut self) {
        for queue in QUEUES {
            self.halt(queue);
            let ring = self.ring_mut(queue);
            ring.kick = None;
            ring.enabled = None;
            ring.trouble = None;
        }
    }

    /// RESET_DEVICE: as after the connection was made, but memory and protocol features stay.
    pub fn reset(&mut self) {
        self.stop_rings();
        self.rings = Default::default();
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
        }))
    }

    /// Marks the used rings in the dirty log. A device that died may have moved a used index and
    /// not marked it; it marked what the guest finds by that index before it moved it.
    pub(super) fn log_used_rings(&self) {
        let Some(log) = self.active_log() else { return };
        for ring in &self.rings {
            if let (Some(size), Some(RingAddresses { used_log: Some(at), .. })) =
                (ring.size, ring.addresses)
            {
                // Flags, index, entries, and the index for notifications (virtio 1.2, 2.7.8).
                log.map.mark(at, 6 + 8 * u64::from(size));
            }
        }
    }

    pub(super) fn settle_all(&mut self) {
        for queue in QUEUES {
            self.settle(queue);
        }
    }

    /// Makes the port's ring what the session says: starts it, moves it or stops it.
    fn settle(&mut self, queue: Queue) {
        let setup = match self.setup(queue) {
            Ok(Some(setup)) => setup,
            Ok(None) => return,
            Err(why) => return self.give_up(queue, why),
        };
        if self.ring(queue).running {
            let (tx, rx) = match queue {
                Queue::Tx => (Some(&setup), None),
                Queue::Rx => (None, Some(&setup)),
            };
            if let Err(error) = self.port.replace(tx, rx) {
                return self.give_up(queue, error.to_string());
            }
            if queue == Queue::Tx {
                // What its old place said about notifications may not hold in the new one.
                self.retract();
            }
        } else {
            match self.port.start(queue, &setup, self.ring(queue).position, self.enabled(queue)) {
                // Its guest came from another device: that of another host.
                Ok(position) => self.resumed |= position > 0 && !self.restoring,
                Err(error) => return self.give_up(queue, error.to_string()),
            }
            self.ring_mut(queue).running = true;
            // The device that drove the ring before may still owe the guest an interrupt.
            self.interrupt(queue);
        }
        self.ring_mut(queue).trouble = None;
        self.announce();
    }

    /// The ring cannot run where the front end put it; it starts as soon as a message makes it
    /// possible.
    fn give_up(&mut self, queue: Queue, why: String) {
        self.halt(queue);
        let trouble = format!("the {} ring cannot run: {why}", queue.name());
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
        self.announce();
    }

    fn interrupt(&self, queue: Queue) {
        if let Some(call) = &self.ring(queue).call {
            call.it.signal_shared();
        }
    }

    pub(super) fn apply_enabled(&mut self) {
        for queue in QUEUES {
            if self.ring(queue).running {
                self.port.set_enabled(queue, self.enabled(queue));
            }
        }
        self.announce();
    }

    fn tx_kick(&self) -> Option<BorrowedFd<'_>> {
        match &self.ring(Queue::Tx).kick {
            Some(Kick::Eventfd(kick)) => Some(kick.it.as_fd()),
            _ => None,
        }
    }

    /// Tells the worker that polls the transmit ring whether there is one, and all receivers of
    /// events whether the driver is up.
    fn announce(&mut self) {
        self.tell_driving();
        if !self.ring(Queue::Tx).running || !self.enabled(Queue::Tx) {
            self.retract();
        } else if !self.announced {
            self.events.tx_started(self.tx_kick());
            self.announced = true;
        }
    }

    fn tell_driving(&mut self) {
        let both = QUEUES.into_iter().all(|queue| self.ring(queue).running && self.enabled(queue));
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
            let parts = [(at.desc, 16 * u32::from(*size)), (at.avail, 4 + 2 * u32::from(*size))];
            parts.into_iter().all(|(user, len)| {
                self.memory.user_to_guest(user).is_some_and(|at| self.memory.is_blank(at, len))
            })
        };
        QUEUES.into_iter().all(blank)
            && self
                .memory
                .regions()
                .next()
                .is_some_and(|first| self.memory.is_blank(first.guest_addr, BEGINNING))
    }

    fn retract(&mut self) {
        if self.announced {
            self.events.tx_stopped(self.tx_kick());
            self.announced = false;
        }
    }
}

fn queue(index: u32) -> Result<Queue, Refused> {
    Queue::from_index(index)
        .ok_or_else(|| refuse!("there is no ring {index}: a vnic has rings 0 (rx) and 1 (tx)"))
}

/// The `vhost` crate receives descriptors that child processes would inherit.
fn own(fd: &OwnedFd) {
    let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
}
