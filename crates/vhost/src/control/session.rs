//! State that one front end negotiated and set up, and the rings that follow from it.
//!
//! Every message changes a value here; then [`Session::settle`] makes the port agree. A ring runs
//! from the moment it has a size, addresses inside the guest's memory and a kick message, until
//! GET_VRING_BASE. It does not wait for the first kick: a guest whose buffers are available already
//! will never give one. No message resets the position of a ring that runs: QEMU sends SET_FEATURES
//! and SET_VRING_ADDR again to switch dirty logging.

macro_rules! refuse {
    ($($text:tt)*) => { Refused(format!($($text)*)) };
}

mod rings;

use std::{io, sync::Arc, time::SystemTime};

use rustix::fs::fstat;
use vhost::vhost_user::VhostUserProtocolFeatures;

use rings::Rings;

use super::{
    descriptors::Unusual,
    events::DeviceEvents,
    state::{DeviceState, Kick, LogState, Name, Named, RingState},
    status::Negotiated,
};
use crate::{
    dirty::DirtyLog,
    memory::{GuestMemory, MAX_REGIONS, MemoryError, RegionSpec},
    net::Features,
    port::{Port, Queue},
    ring::{NoteTable, Notes},
};

/// Protocol features offered. The `vhost` crate refuses the messages of some others, or a front end
/// would wait for what we do not do.
pub(super) const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::RARP)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::RESET_DEVICE);

/// Warning for the operator if the VM's memory looks as if it were not shared.
const PRIVATE: &str = "its memory seems not to be shared: nothing that the machine writes is to be seen here, so no packet passes; its memory \
                       back end needs share=on (libvirt: <access mode='shared'/>)";
/// Warning for the operator if the VM has no memory to share.
const ABSENT: &str = "its memory cannot be shared: its driver is up and no memory was announced, so no packet passes; it needs a memory back end \
                      with share=on (libvirt: <access mode='shared'/>)";

/// Reason for refusing a message: a clause for the operator.
#[derive(Debug)]
pub(super) struct Refused(pub String);

struct Log {
    state: Named<LogState>,
    map: Arc<DirtyLog>,
}

/// One front end's view of the device.
pub(super) struct Session {
    port: Arc<Port>,
    offered: Features,
    events: Arc<dyn DeviceEvents>,
    features: Option<Features>,
    protocol_features: Option<u64>,
    regions: Vec<Named<RegionSpec>>,
    unusual: Unusual,
    memory: Arc<GuestMemory>,
    log: Option<Log>,
    rings: Rings,
    /// Both rings of the first pair ran when that was last told.
    driving: bool,
    /// A ring started where another device had left it, and the owner has not heard of it yet.
    resumed: bool,
    /// Warning about memory that was reported, while nothing speaks against it.
    memory_trouble: Option<&'static str>,
    /// Number of the message that is carried out, for names of its descriptors.
    message: u64,
    /// Another device's state is being taken up.
    restoring: bool,
    /// Number of the message that told of the front end.
    connection: u64,
    /// Notes about packed rings, where those may be.
    notes: Option<Arc<Notes>>,
    /// Another process's notes about rings that are taken up are not there.
    notes_are_lost: bool,
}

impl Session {
    /// This message told of the front end. It is offered packed rings if these can be noted.
    pub fn begin(&mut self, message: u64, notes: Option<Arc<Notes>>) {
        (self.connection, self.message) = (message, message);
        self.use_notes(notes);
    }

    fn use_notes(&mut self, notes: Option<Arc<Notes>>) {
        if notes.is_some() {
            self.offered = self.offered.with(Features::RING_PACKED);
        }
        self.notes = notes;
    }

    /// Notes about its packed rings.
    pub fn notes(&self) -> Option<Arc<Notes>> {
        self.notes.clone()
    }

    /// Block of the notes about its packed rings.
    pub fn block(&self) -> Option<u32> {
        self.notes.as_ref().map(|notes| notes.block())
    }

    /// Number of the message that told of the front end.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// The next changes are those of this message.
    pub fn serve(&mut self, message: u64) {
        self.message = message;
    }

    /// Names the descriptor at this place of the message that is carried out.
    pub fn name<T>(&self, place: usize, it: T) -> Named<T> {
        Named { name: Name { message: self.message, place: place as u32 }, it }
    }

    /// The front end wants the machine to be announced: SEND_RARP, of QEMU after a live migration
    /// if the guest cannot do it itself.
    pub fn send_rarp(&self) {
        self.events.announce();
    }

    /// A front end that has said nothing yet.
    pub fn new(port: Arc<Port>, offered: Features, events: Arc<dyn DeviceEvents>) -> Session {
        port.interrupts().attached();
        Session {
            port,
            // Only where a successor finds its place.
            offered: offered.without(Features::RING_PACKED),
            events,
            features: None,
            protocol_features: None,
            regions: Vec::new(),
            unusual: Unusual::default(),
            memory: Arc::default(),
            log: None,
            rings: Rings::default(),
            driving: false,
            resumed: false,
            memory_trouble: None,
            message: 0,
            restoring: false,
            connection: 0,
            notes: None,
            notes_are_lost: false,
        }
    }

    /// Uses the notes that another device of this host left; without them packed rings rest until
    /// their driver sets them up anew.
    pub fn restore_notes(&mut self, table: &Arc<NoteTable>, block: Option<u32>) {
        let notes = block.and_then(|block| table.take_up(block));
        self.notes_are_lost = notes.is_none();
        self.use_notes(notes.or_else(|| table.take()));
    }

    /// Takes up what another device of this host left. Rings that ran run again, and nobody has to
    /// hear where the machine is.
    pub fn restore(&mut self, state: DeviceState) -> Result<(), Refused> {
        self.restoring = true;
        self.events.resuming(true);
        let restored = self.take_up(state);
        self.events.resuming(false);
        self.restoring = false;
        self.log_used_rings();
        restored
    }

    fn take_up(&mut self, state: DeviceState) -> Result<(), Refused> {
        let DeviceState { connection, features, protocol_features, regions, log, rings } = state;
        self.connection = connection;
        if let Some(protocol_features) = protocol_features {
            self.set_protocol_features(protocol_features)?;
        }
        if let Some(features) = features {
            self.set_features(features)?;
        }
        self.set_memory(regions)?;
        if let Some(log) = log {
            self.set_log(log)?;
        }
        for (index, ring) in (0u32..).zip(rings) {
            if let Some(size) = ring.size {
                self.set_size(index, u32::from(size))?;
            }
            if let Some(addresses) = ring.addresses {
                self.set_addresses(index, addresses)?;
            }
            self.restore_position(index, &ring);
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
            Ok(RingState {
                size: ring.size,
                addresses: ring.addresses,
                position: self.position(queue),
                given: ring.given,
                set: ring.set,
                lost: ring.lost,
                kick: match &ring.kick {
                    None => None,
                    Some(Kick::Polled) => Some(Kick::Polled),
                    Some(Kick::Eventfd(kick)) => {
                        Some(Kick::Eventfd(kick.with(Arc::new(kick.it.try_clone()?))))
                    }
                },
                call: match &ring.call {
                    None => None,
                    Some(call) => Some(call.with(call.it.fd().try_clone()?)),
                },
                enabled: ring.enabled,
            })
        };
        let region = |spec: &Named<RegionSpec>| -> io::Result<Named<RegionSpec>> {
            Ok(spec.with(RegionSpec { file: spec.it.file.try_clone()?, ..spec.it }))
        };
        let log = |Log { state, .. }: &Log| -> io::Result<Named<LogState>> {
            Ok(state.with(LogState { file: state.it.file.try_clone()?, ..state.it }))
        };
        Ok(DeviceState {
            connection: self.connection,
            features: self.features,
            protocol_features: self.protocol_features,
            regions: self.regions.iter().map(region).collect::<io::Result<_>>()?,
            log: self.log.as_ref().map(log).transpose()?,
            rings: self.known_rings().map(ring).collect::<io::Result<_>>()?,
        })
    }

    /// Rings up to the last of which anything is kept, at least the first pair.
    pub fn known_rings(&self) -> impl Iterator<Item = Queue> {
        let last = Queue::all().rev().find(|queue| self.ring(*queue).is_known());
        let pairs = last.map_or(0, Queue::pair) + 1;
        Queue::all().take(2 * pairs)
    }

    /// For the operator.
    pub fn negotiated(&self, since: SystemTime, peer_pid: Option<u32>) -> Negotiated {
        Negotiated {
            since,
            peer_pid,
            offered: self.offered,
            features: self.features,
            protocol_features: self.protocol_features,
            memory: self.memory.regions().collect(),
            memory_trouble: self.memory_trouble,
            logging: self.active_log().is_some(),
            troubles: Queue::all()
                .filter_map(|queue| Some((queue, self.ring(queue).trouble.clone()?)))
                .collect(),
        }
    }

    /// Returns why the guest's memory cannot be used any more, if so.
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

    pub fn offered(&self) -> Features {
        self.offered
    }

    /// The protocol features of the front end, if it said them.
    pub fn protocol(&self) -> Option<u64> {
        self.protocol_features
    }

    /// Memory regions as the front end gave them.
    pub fn regions(&self) -> &[Named<RegionSpec>] {
        &self.regions
    }

    /// The dirty log, used or not.
    pub fn log(&self) -> Option<&Named<LogState>> {
        self.log.as_ref().map(|log| &log.state)
    }

    /// Position of the device in a ring.
    pub fn position(&self, queue: Queue) -> u16 {
        let running = self.port.status(queue).map(|status| status.used_idx);
        running.unwrap_or(self.ring(queue).position)
    }

    pub fn features(&self) -> Option<Features> {
        self.features
    }

    fn active_log(&self) -> Option<&Log> {
        let wanted = self.features.unwrap_or(Features::NONE).has(Features::LOG_ALL);
        self.log.as_ref().filter(|_| wanted)
    }

    // ---- Features ----

    pub fn set_features(&mut self, features: Features) -> Result<(), Refused> {
        let unknown = features.without(self.offered);
        if unknown != Features::NONE {
            return Err(refuse!("these features were not offered: {unknown:?}"));
        }
        let before = self.features.replace(features);
        if before == Some(features) {
            // QEMU says it once for each pair of queues.
            return Ok(());
        }
        if before.map(|before| before.without(Features::LOG_ALL))
            != Some(features.without(Features::LOG_ALL))
        {
            self.events.negotiated(features);
        }
        self.settle_all();
        self.apply_all_enabled();
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

    /// Takes a complete table. Regions that stay as they are keep their mapping.
    pub fn set_memory(&mut self, regions: Vec<Named<RegionSpec>>) -> Result<(), Refused> {
        let refused = |error: crate::memory::MemoryError| Refused(error.to_string());
        let stays = |old: &RegionSpec| {
            !self.memory.poisoned() && regions.iter().any(|new| same_region(old, &new.it))
        };
        let mut memory = (*self.memory).clone();
        let mut kept = Vec::new();
        for Named { it: old, .. } in &self.regions {
            if stays(old) {
                kept.push((old.guest_addr, old.user_addr, old.size));
            } else {
                memory = memory
                    .without_region(old.guest_addr, old.user_addr, old.size)
                    .map_err(refused)?;
            }
        }
        for Named { it: new, .. } in &regions {
            let place = (new.guest_addr, new.user_addr, new.size);
            match kept.iter().position(|kept| *kept == place) {
                // Once: a table that names a region twice is refused as an overlap.
                Some(at) => drop(kept.swap_remove(at)),
                None => memory = memory.with_region(new).map_err(refused)?,
            }
        }
        self.unusual.with_regions(regions.len()).map_err(|error| Refused(error.to_string()))?;
        self.regions = regions;
        self.use_memory(memory);
        Ok(())
    }

    /// True if the front end may say the same for each pair of queues. QEMU 7.2 adds and removes
    /// regions once for each.
    fn repeats(&self) -> bool {
        self.features.is_some_and(|features| features.has(Features::MQ))
    }

    pub fn add_region(&mut self, region: Named<RegionSpec>) -> Result<(), Refused> {
        let known = |old: &Named<RegionSpec>| same_region(&old.it, &region.it);
        if self.repeats() && self.regions.iter().any(known) {
            return Ok(());
        }
        let memory =
            self.memory.with_region(&region.it).map_err(|error| Refused(error.to_string()))?;
        self.unusual
            .with_regions(self.regions.len() + 1)
            .map_err(|error| Refused(error.to_string()))?;
        self.regions.push(region);
        self.use_memory(memory);
        Ok(())
    }

    pub fn remove_region(
        &mut self,
        guest_addr: u64,
        user_addr: u64,
        size: u64,
    ) -> Result<(), Refused> {
        let memory = match self.memory.without_region(guest_addr, user_addr, size) {
            Err(MemoryError::NoSuchRegion(_)) if self.repeats() => return Ok(()),
            removed => removed.map_err(|error| Refused(error.to_string()))?,
        };
        self.regions.retain(|Named { it: r, .. }| {
            (r.guest_addr, r.user_addr, r.size) != (guest_addr, user_addr, size)
        });
        let _ = self.unusual.with_regions(self.regions.len()); // fewer are always had
        self.use_memory(memory);
        Ok(())
    }

    /// Returns how many regions the front end may have at this moment.
    pub fn max_regions(&self) -> usize {
        self.unusual.possible(MAX_REGIONS)
    }

    /// True if the driver is up and the front end announced no memory. QEMU starts the driver just
    /// before it announces memory.
    pub fn awaits_memory(&self) -> bool {
        self.features.is_some() && self.regions.is_empty() && self.memory_trouble.is_none()
    }

    /// Records that the wait for memory was long enough.
    pub fn miss_memory(&mut self) -> &'static str {
        self.memory_trouble = Some(ABSENT);
        self.events.trouble(ABSENT);
        ABSENT
    }

    fn use_memory(&mut self, memory: GuestMemory) {
        self.memory_trouble = None;
        self.port.touches().costs(memory.pages_of_a_fault());
        self.memory = Arc::new(memory);
        self.settle_all();
    }

    pub fn set_log(&mut self, state: Named<LogState>) -> Result<(), Refused> {
        let LogState { file, size, offset } = &state.it;
        let map =
            DirtyLog::map(file, *size, *offset).map_err(|error| Refused(error.to_string()))?;
        self.log = Some(Log { state, map: Arc::new(map) });
        if self.active_log().is_some() {
            self.settle_all();
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Leaving is reported by itself.
        self.driving = false;
        // Rings first: what they use is unmapped and closed after this.
        self.stop_rings();
    }
}

/// True if both descriptions name one place in one file.
fn same_region(old: &RegionSpec, new: &RegionSpec) -> bool {
    let place = |r: &RegionSpec| (r.guest_addr, r.user_addr, r.size, r.mmap_offset);
    place(old) == place(new)
        && match (fstat(&old.file), fstat(&new.file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
}
