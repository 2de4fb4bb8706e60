//! A whole switch in one thread, for packet walks, measurements of fixed work, and fuzzing: in-memory rings of simulated guests, no
//! sockets, no threads, no root.

use std::{collections::BTreeMap, os::fd::AsFd, sync::Arc};

use butterfly_packet::mac::Mac;
use butterfly_vhost::{
    dirty,
    driver::{
        DirtyLog,
        guest::{Guest, GuestConfig, RX, TX},
        memory::{Memory, MemoryConfig},
    },
    memory::{GuestMemory, RegionSpec},
    net::{Features, NetHeader},
    port::{PortEvents, Queue},
    ring::{CallFd, RingSetup},
};

use crate::{
    counters::{Counter, Totals},
    drops::reasons,
    plane::{AddError, Attachment, Plane, VnicPolicy},
    snapshot::Vnic,
    worker::Worker,
};

/// Anything that goes wrong in a harness is the end of a test.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

struct Attached {
    vnic: Arc<Vnic>,
    attachment: Attachment,
    guest: Option<Guest>,
}

/// A host whose only worker does a turn when told to.
pub struct Host {
    plane: Plane,
    worker: Worker,
    vnics: BTreeMap<String, Attached>,
    last: BTreeMap<String, u64>,
}

/// What arrived at each guest, in order.
pub type Received = BTreeMap<String, Vec<(NetHeader, Vec<u8>)>>;

/// Features of a modern Linux guest.
pub const LINUX: Features = Features(
    Features::VERSION_1.0
        | Features::MRG_RXBUF.0
        | Features::INDIRECT_DESC.0
        | Features::EVENT_IDX.0
        | Features::CSUM.0
        | Features::GUEST_CSUM.0
        | Features::GUEST_TSO4.0
        | Features::GUEST_TSO6.0
        | Features::HOST_TSO4.0
        | Features::HOST_TSO6.0,
);

impl Host {
    /// A host without vnics.
    pub fn new() -> Result<Host, Error> {
        let plane = Plane::new(1, 300)?;
        let handle = plane.workers.first().ok_or("no worker")?.clone();
        let worker = Worker::new(plane.shared.clone(), handle, false);
        Ok(Host { plane, worker, vnics: BTreeMap::new(), last: BTreeMap::new() })
    }

    /// Declares a vnic. No guest is attached yet.
    pub fn declare(&mut self, id: &str, mac: Mac, vni: u32, policy: &VnicPolicy) -> Result<(), AddError> {
        let (vnic, attachment) = self.plane.insert(id, mac, vni, policy)?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        Ok(())
    }

    /// Changes a vnic's policy.
    pub fn update(&mut self, id: &str, policy: &VnicPolicy) -> Result<(), AddError> {
        self.plane.update(id, policy)
    }

    /// Removes a vnic and its guest.
    pub fn remove(&mut self, id: &str) {
        self.detach(id);
        self.vnics.remove(id);
        self.plane.remove(id);
        self.last.retain(|name, _| !name.starts_with(&format!("{id}.")));
    }

    /// Attaches a guest of this shape to a vnic.
    pub fn attach(&mut self, id: &str, features: Features, config: &GuestConfig, memory: &MemoryConfig) -> Result<(), Error> {
        let memory = Memory::new(memory)?;
        let guest = Guest::new(&memory, features, config)?;
        let attached = self.vnics.get_mut(id).ok_or("no such vnic")?;
        attach_rings(&attached.vnic, &attached.attachment, &guest, features)?;
        attached.guest = Some(guest);
        Ok(())
    }

    /// A vnic with a guest as Linux makes them.
    pub fn vnic(&mut self, id: &str, mac: Mac, vni: u32, policy: &VnicPolicy) -> Result<(), Error> {
        self.declare(id, mac, vni, policy)?;
        let config = GuestConfig::default();
        self.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))
    }

    /// Logs every store into a guest's memory from now on, as while it migrates. Its rings go on where they are.
    pub fn log(&mut self, id: &str, log: &DirtyLog) -> Result<(), Error> {
        let Attached { vnic, attachment, guest } = self.vnics.get(id).ok_or("no such vnic")?;
        let guest = guest.as_ref().ok_or("no guest")?;
        let file = log.region();
        let log = Arc::new(dirty::DirtyLog::map(&file.file.try_clone()?.into(), file.size, file.file_offset)?);
        let [rx, tx] = setups(guest, guest.features(), Some(&log))?;
        let kick = Some(guest.queue(TX).kick_fd().as_fd());
        attachment.tx_stopped(kick);
        vnic.shared.port.replace(Some(&tx), Some(&rx))?;
        attachment.tx_started(kick);
        Ok(())
    }

    /// Takes a vnic's guest away.
    pub fn detach(&mut self, id: &str) -> Option<Guest> {
        let attached = self.vnics.get_mut(id)?;
        attached.attachment.tx_stopped(attached.guest.as_ref().map(|guest| guest.queue(TX).kick_fd().as_fd()));
        attached.vnic.shared.port.stop(Queue::Tx);
        attached.vnic.shared.port.stop(Queue::Rx);
        attached.guest.take()
    }

    /// A vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }

    /// Lets the worker look at every ring once. Returns whether a frame was found.
    pub fn turn(&mut self) -> bool {
        self.worker.turn()
    }

    /// Turns until nothing is left to do.
    pub fn settle(&mut self) {
        while self.turn() {}
    }

    /// Puts a frame into a guest's ring and lets the switch work.
    pub fn send(&mut self, id: &str, frame: &[u8], header: NetHeader) -> Result<(), Error> {
        self.guest(id).ok_or("no guest")?.send(frame, header)?;
        self.settle();
        Ok(())
    }

    /// What arrived at each guest since the last call, in order.
    pub fn received(&mut self) -> Result<Received, Error> {
        let mut all = BTreeMap::new();
        for (id, attached) in &mut self.vnics {
            let Some(guest) = &mut attached.guest else { continue };
            let mut frames = Vec::new();
            while let Some(frame) = guest.recv()? {
                frames.push(frame);
            }
            if !frames.is_empty() {
                all.insert(id.clone(), frames);
            }
        }
        Ok(all)
    }

    /// Every counter that changed since the last call, by name, with its increase.
    pub fn moved(&mut self) -> BTreeMap<String, u64> {
        let mut now = BTreeMap::new();
        for (id, attached) in &self.vnics {
            named(id, &attached.vnic.shared.counters.totals(), &mut now);
        }
        let moved = now
            .iter()
            .filter_map(|(name, n)| {
                let increase = n - self.last.get(name).copied().unwrap_or(0);
                (increase > 0).then(|| (name.clone(), increase))
            })
            .collect();
        self.last = now;
        moved
    }

    /// Lets seconds of the coarse clock pass, with what housekeeping does in them.
    pub fn pass(&mut self, seconds: u32) {
        self.plane.shared.clock.pass(seconds);
        self.plane.expire();
    }

    /// Number of learnt addresses in force.
    pub fn learnt(&self) -> usize {
        self.plane.shared.fdb.list(self.plane.shared.clock.now()).len()
    }
}

/// What a guest says about its rings: receive, transmit.
fn setups(guest: &Guest, features: Features, log: Option<&Arc<dirty::DirtyLog>>) -> Result<[RingSetup; 2], Error> {
    let specs = guest
        .memory()
        .regions()
        .iter()
        .map(|region| {
            Ok(RegionSpec {
                guest_addr: region.guest_addr,
                size: region.size,
                user_addr: region.user_addr,
                mmap_offset: region.file_offset,
                file: region.file.try_clone()?.into(),
            })
        })
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    let memory = Arc::new(GuestMemory::map(specs)?);
    let setup = |index| -> Result<RingSetup, Error> {
        let ring = guest.queue(index);
        let addr = ring.ring().addr();
        Ok(RingSetup {
            memory: memory.clone(),
            log: log.cloned(),
            features,
            size: ring.ring().size(),
            desc: addr.desc,
            avail: addr.avail,
            used: addr.used,
            used_log: log.map(|_| addr.used),
            call: Some(Arc::new(CallFd::new(ring.call_fd().try_clone()?)?)),
        })
    };
    Ok([setup(RX)?, setup(TX)?])
}

fn attach_rings(vnic: &Vnic, attachment: &Attachment, guest: &Guest, features: Features) -> Result<(), Error> {
    let [rx, tx] = setups(guest, features, None)?;
    vnic.shared.port.start(Queue::Rx, &rx, 0, true)?;
    vnic.shared.port.start(Queue::Tx, &tx, 0, true)?;
    attachment.tx_started(Some(guest.queue(TX).kick_fd().as_fd()));
    Ok(())
}

fn named(id: &str, totals: &Totals, into: &mut BTreeMap<String, u64>) {
    let plain = [
        ("in.packets", Counter::InPackets),
        ("in.bytes", Counter::InBytes),
        ("out.packets", Counter::OutPackets),
        ("out.bytes", Counter::OutBytes),
        ("flooded", Counter::Flooded),
        ("learn-refused", Counter::LearnRefused),
    ];
    for (name, counter) in plain {
        into.insert(format!("{id}.{name}"), totals.get(counter));
    }
    for info in reasons() {
        into.insert(format!("{id}.drop.{}", info.name), totals.drops(info.reason));
    }
}
