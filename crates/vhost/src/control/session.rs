//! What one front end negotiated and set up, and the rings that follow from it.
//!
//! Every message changes a value here; then [`Session::settle`] makes the port agree. A ring runs as soon as it has a size,
//! addresses inside the guest's memory and a kick message (not a kick: guests that found a used descriptor before would never give one),
//! until GET_VRING_BASE. No message resets the position of a ring that runs: QEMU sends SET_FEATURES and SET_VRING_ADDR again to
//! switch dirty logging.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::SystemTime,
};

use rustix::fs::fstat;
use vhost::vhost_user::VhostUserProtocolFeatures;

use super::{
    DeviceEvents,
    state::{DeviceState, Kick, LogState, RingAddresses, RingState},
    status::Negotiated,
};
use crate::{
    dirty::DirtyLog,
    memory::{GuestMemory, MAX_REGIONS, RegionSpec},
    net::Features,
    port::{Port, Queue},
    ring::{CallFd, RingSetup, is_eventfd},
};

/// Protocol features offered. The `vhost` crate refuses the messages of some others, or a front end would wait for what we do not do.
pub(super) const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::RESET_DEVICE);

/// Most descriptors of a ring (virtio 1.2, 2.7).
const MAX_RING_SIZE: u32 = 32768;

const QUEUES: [Queue; 2] = [Queue::Rx, Queue::Tx];

/// Why a message was refused: a clause for the operator.
#[derive(Debug)]
pub(super) struct Refused(pub String);

macro_rules! refuse {
    ($($text:tt)*) => { Refused(format!($($text)*)) };
}

/// A ring as the front end described it.
#[derive(Default)]
struct Ring {
    size: Option<u16>,
    addresses: Option<RingAddresses>,
    /// Where it starts.
    position: u16,
    kick: Option<Kick>,
    call: Option<Arc<CallFd>>,
    enabled: Option<bool>,
    running: bool,
    trouble: Option<String>,
}

struct Log {
    state: LogState,
    map: Arc<DirtyLog>,
}

/// One front end's view of the device.
pub(super) struct Session {
    name: Arc<str>,
    port: Arc<Port>,
    events: Arc<dyn DeviceEvents>,
    features: Option<Features>,
    protocol_features: Option<u64>,
    regions: Vec<RegionSpec>,
    memory: Arc<GuestMemory>,
    log: Option<Log>,
    rings: [Ring; 2],
    /// The transmit ring was announced to [`crate::port::PortEvents`] and not taken back.
    announced: bool,
}

impl Session {
    /// A front end that has said nothing yet.
    pub fn new(name: Arc<str>, port: Arc<Port>, events: Arc<dyn DeviceEvents>) -> Session {
        Session {
            name,
            port,
            events,
            features: None,
            protocol_features: None,
            regions: Vec::new(),
            memory: Arc::default(),
            log: None,
            rings: Default::default(),
            announced: false,
        }
    }

    /// Takes up what another device left. Rings that ran run again.
    pub fn restore(&mut self, state: DeviceState) -> Result<(), Refused> {
        let DeviceState { features, protocol_features, regions, log, rings } = state;
        if let Some(protocol_features) = protocol_features {
            self.set_protocol_features(protocol_features)?;
        }
        if let Some(features) = features {
            self.set_features(features)?;
        }
        self.set_memory(regions)?;
        if let Some(LogState { file, size, offset }) = log {
            self.set_log(file, size, offset)?;
        }
        for (index, ring) in (0u32..).zip(rings) {
            if let Some(size) = ring.size {
                self.set_size(index, u32::from(size))?;
            }
            if let Some(addresses) = ring.addresses {
                self.set_addresses(index, addresses)?;
            }
            self.set_position(index, u32::from(ring.position))?;
            if let Some(enabled) = ring.enabled {
                self.set_enabled(index, enabled)?;
            }
            self.set_call(index, ring.call)?;
            match ring.kick {
                Some(Kick::Polled) => self.set_kick(index, None)?,
                Some(Kick::Eventfd(kick)) => self.set_kick(index, Some(kick))?,
                None => {}
            }
        }
        Ok(())
    }

    /// A copy of everything, with descriptors of its own.
    pub fn export(&self) -> io::Result<DeviceState> {
        let ring = |queue: Queue| -> io::Result<RingState> {
            let ring = self.ring(queue);
            let running = self.port.status(queue).map(|status| status.used_idx);
            Ok(RingState {
                size: ring.size,
                addresses: ring.addresses,
                position: running.unwrap_or(ring.position),
                kick: match &ring.kick {
                    None => None,
                    Some(Kick::Polled) => Some(Kick::Polled),
                    Some(Kick::Eventfd(kick)) => Some(Kick::Eventfd(kick.try_clone()?)),
                },
                call: ring.call.as_ref().map(|call| call.fd().try_clone()).transpose()?,
                enabled: ring.enabled,
            })
        };
        let region = |spec: &RegionSpec| -> io::Result<RegionSpec> { Ok(RegionSpec { file: spec.file.try_clone()?, ..*spec }) };
        let log = |log: &Log| -> io::Result<LogState> { Ok(LogState { file: log.state.file.try_clone()?, ..log.state }) };
        Ok(DeviceState {
            features: self.features,
            protocol_features: self.protocol_features,
            regions: self.regions.iter().map(region).collect::<io::Result<_>>()?,
            log: self.log.as_ref().map(log).transpose()?,
            rings: [ring(Queue::Rx)?, ring(Queue::Tx)?],
        })
    }

    /// For the operator.
    pub fn negotiated(&self, since: SystemTime, peer_pid: Option<u32>) -> Negotiated {
        Negotiated {
            since,
            peer_pid,
            features: self.features,
            protocol_features: self.protocol_features,
            memory: self.memory.regions().collect(),
            logging: self.active_log().is_some(),
            rx_trouble: self.ring(Queue::Rx).trouble.clone(),
            tx_trouble: self.ring(Queue::Tx).trouble.clone(),
        }
    }

    /// Why the guest's memory cannot be used any more, if so.
    pub fn poisoned(&self) -> Option<&'static str> {
        if self.memory.poisoned() {
            Some("guest memory was truncated")
        } else if self.log.as_ref().is_some_and(|log| log.map.poisoned()) {
            Some("the dirty log was truncated")
        } else {
            None
        }
    }

    pub fn protocol_features(&self) -> u64 {
        self.protocol_features.unwrap_or(0)
    }

    pub fn features(&self) -> Option<Features> {
        self.features
    }

    fn ring(&self, queue: Queue) -> &Ring {
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

    /// Without protocol features a ring is enabled from its start; with them only SET_VRING_ENABLE enables it.
    fn enabled(&self, queue: Queue) -> bool {
        let negotiated = self.features.unwrap_or(Features::NONE).has(Features::PROTOCOL_FEATURES);
        self.ring(queue).enabled.unwrap_or(!negotiated)
    }

    fn active_log(&self) -> Option<&Log> {
        let wanted = self.features.unwrap_or(Features::NONE).has(Features::LOG_ALL);
        self.log.as_ref().filter(|_| wanted)
    }

    // ---- Features ----

    pub fn set_features(&mut self, features: Features) -> Result<(), Refused> {
        let unknown = features.without(Features::OFFERED);
        if unknown != Features::NONE {
            return Err(refuse!("these features were not offered: {unknown:?}"));
        }
        self.features = Some(features);
        self.settle_all();
        self.apply_enabled();
        Ok(())
    }

    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), Refused> {
        let unknown = features & !PROTOCOL_FEATURES.bits();
        if unknown != 0 {
            return Err(refuse!("these protocol features were not offered: {unknown:#x}"));
        }
        self.protocol_features = Some(features);
        Ok(())
    }

    // ---- Memory ----

    /// A whole table. Regions that stay as they are keep their mapping.
    pub fn set_memory(&mut self, regions: Vec<RegionSpec>) -> Result<(), Refused> {
        let refused = |error: crate::memory::MemoryError| Refused(error.to_string());
        let stays = |old: &RegionSpec| !self.memory.poisoned() && regions.iter().any(|new| same_region(old, new));
        let mut memory = (*self.memory).clone();
        let mut kept = Vec::new();
        for old in &self.regions {
            if stays(old) {
                kept.push((old.guest_addr, old.user_addr, old.size));
            } else {
                memory = memory.without_region(old.guest_addr, old.user_addr, old.size).map_err(refused)?;
            }
        }
        for new in &regions {
            let place = (new.guest_addr, new.user_addr, new.size);
            match kept.iter().position(|kept| *kept == place) {
                // Once: a table that names a region twice is refused as an overlap.
                Some(at) => drop(kept.swap_remove(at)),
                None => memory = memory.with_region(new).map_err(refused)?,
            }
        }
        self.regions = regions;
        self.use_memory(memory);
        Ok(())
    }

    pub fn add_region(&mut self, region: RegionSpec) -> Result<(), Refused> {
        let memory = self.memory.with_region(&region).map_err(|error| Refused(error.to_string()))?;
        self.regions.push(region);
        self.use_memory(memory);
        Ok(())
    }

    pub fn remove_region(&mut self, guest_addr: u64, user_addr: u64, size: u64) -> Result<(), Refused> {
        let memory = self.memory.without_region(guest_addr, user_addr, size).map_err(|error| Refused(error.to_string()))?;
        self.regions.retain(|r| (r.guest_addr, r.user_addr, r.size) != (guest_addr, user_addr, size));
        self.use_memory(memory);
        Ok(())
    }

    pub const fn max_regions() -> usize {
        MAX_REGIONS
    }

    fn use_memory(&mut self, memory: GuestMemory) {
        self.memory = Arc::new(memory);
        self.settle_all();
    }

    pub fn set_log(&mut self, file: OwnedFd, size: u64, offset: u64) -> Result<(), Refused> {
        let map = DirtyLog::map(&file, size, offset).map_err(|error| Refused(error.to_string()))?;
        self.log = Some(Log { state: LogState { file, size, offset }, map: Arc::new(map) });
        if self.active_log().is_some() {
            self.settle_all();
        }
        Ok(())
    }

    // ---- Rings ----

    pub fn set_size(&mut self, index: u32, size: u32) -> Result<(), Refused> {
        let queue = queue(index)?;
        if !size.is_power_of_two() || size > MAX_RING_SIZE {
            return Err(refuse!("a ring of {size} descriptors: it must be a power of two up to {MAX_RING_SIZE}"));
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

    /// Where the ring starts next time; one that runs goes on.
    pub fn set_position(&mut self, index: u32, position: u32) -> Result<(), Refused> {
        let queue = queue(index)?;
        self.ring_mut(queue).position =
            u16::try_from(position).map_err(|_| refuse!("a ring at {position}: positions of split rings have 16 bits"))?;
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

    pub fn set_kick(&mut self, index: u32, kick: Option<OwnedFd>) -> Result<(), Refused> {
        let queue = queue(index)?;
        let kick = match kick {
            None => Kick::Polled,
            Some(kick) => {
                is_eventfd(&kick).map_err(|error| refuse!("the {} ring's kick descriptor: {error}", queue.name()))?;
                own(&kick);
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

    pub fn set_call(&mut self, index: u32, call: Option<OwnedFd>) -> Result<(), Refused> {
        // QEMU with `queues=2` gives call and error descriptors to every ring it could have, long before it knows which ones are used.
        let Some(queue) = Queue::from_index(index) else { return Ok(()) };
        let call = match call {
            None => None,
            Some(call) => {
                own(&call);
                let call = CallFd::new(call).map_err(|error| refuse!("the {} ring's call descriptor: {error}", queue.name()))?;
                Some(Arc::new(call))
            }
        };
        self.ring_mut(queue).call = call.clone();
        if self.ring(queue).running {
            self.port.set_call(queue, call);
            // An interrupt may just have gone to the old descriptor, which nobody looks at any more.
            self.interrupt(queue);
        }
        Ok(())
    }

    /// The ring's error descriptor is never used, but a wrong one is an error all the same.
    pub fn set_error(&mut self, index: u32, error: Option<OwnedFd>) -> Result<(), Refused> {
        let Some(queue) = Queue::from_index(index) else { return Ok(()) };
        match error {
            Some(fd) => is_eventfd(&fd).map_err(|error| refuse!("the {} ring's error descriptor: {error}", queue.name())),
            None => Ok(()),
        }
    }

    pub fn set_enabled(&mut self, index: u32, enabled: bool) -> Result<(), Refused> {
        // QEMU with `queues=2` disables the rings that a guest without VIRTIO_NET_F_MQ does not use.
        if !enabled && Queue::from_index(index).is_none() {
            return Ok(());
        }
        let queue = queue(index)?;
        self.ring_mut(queue).enabled = Some(enabled);
        self.apply_enabled();
        Ok(())
    }

    /// RESET_OWNER: rings stop; everything else stays (the specification leaves that to the device).
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

    /// What the port is told about a ring. `Ok(None)`: something is not there yet.
    fn setup(&self, queue: Queue) -> Result<Option<RingSetup>, String> {
        let ring = self.ring(queue);
        let (Some(size), Some(at), Some(_)) = (ring.size, ring.addresses, &ring.kick) else { return Ok(None) };
        if self.regions.is_empty() && !ring.running {
            return Ok(None);
        }
        let guest = |what, user_addr| {
            let outside = || format!("its {what} at front-end address {user_addr:#x} is outside of the guest's memory");
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
            call: ring.call.clone(),
        }))
    }

    fn settle_all(&mut self) {
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
            if let Err(error) = self.port.start(queue, &setup, self.ring(queue).position, self.enabled(queue)) {
                return self.give_up(queue, error.to_string());
            }
            self.ring_mut(queue).running = true;
            // An interrupt that whoever drove the ring before owed to the guest, if it did.
            self.interrupt(queue);
        }
        self.ring_mut(queue).trouble = None;
        self.announce();
    }

    /// The ring cannot run where the front end put it; it starts as soon as a message makes it possible.
    fn give_up(&mut self, queue: Queue, why: String) {
        self.halt(queue);
        let trouble = format!("the {} ring cannot run: {why}", queue.name());
        if self.ring(queue).kick.is_some() && self.ring(queue).trouble.as_ref() != Some(&trouble) {
            tracing::warn!("nic {}: {trouble}", self.name);
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
            call.signal_shared();
        }
    }

    fn apply_enabled(&mut self) {
        for queue in QUEUES {
            if self.ring(queue).running {
                self.port.set_enabled(queue, self.enabled(queue));
            }
        }
        self.announce();
    }

    fn tx_kick(&self) -> Option<BorrowedFd<'_>> {
        match &self.ring(Queue::Tx).kick {
            Some(Kick::Eventfd(kick)) => Some(kick.as_fd()),
            _ => None,
        }
    }

    /// Tells whoever polls the transmit ring whether there is one.
    fn announce(&mut self) {
        if !self.ring(Queue::Tx).running || !self.enabled(Queue::Tx) {
            self.retract();
        } else if !self.announced {
            self.events.tx_started(self.tx_kick());
            self.announced = true;
        }
    }

    fn retract(&mut self) {
        if self.announced {
            self.events.tx_stopped(self.tx_kick());
            self.announced = false;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Rings first: what they use is unmapped and closed after this.
        self.stop_rings();
    }
}

fn queue(index: u32) -> Result<Queue, Refused> {
    Queue::from_index(index).ok_or_else(|| refuse!("there is no ring {index}: a vnic has rings 0 (rx) and 1 (tx)"))
}

/// The `vhost` crate receives descriptors that child processes would inherit.
fn own(fd: &OwnedFd) {
    let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
}

/// Whether two descriptions are of one place in one file.
fn same_region(old: &RegionSpec, new: &RegionSpec) -> bool {
    let place = |r: &RegionSpec| (r.guest_addr, r.user_addr, r.size, r.mmap_offset);
    place(old) == place(new)
        && match (fstat(&old.file), fstat(&new.file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
}
