//! A whole switch in one thread, for packet walks, measurements of fixed work, and fuzzing:
//! in-memory rings of simulated guests, no sockets, no threads, no root.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use butterfly_guest_driver::{
    DirtyLog,
    guest::{Guest, GuestConfig, RX, TX},
    memory::{Memory, MemoryConfig},
};
use butterfly_model::{GroupName, Vni};
use butterfly_packet::mac::Mac;
use butterfly_vhost::{
    dirty,
    memory::{GuestMemory, RegionSpec},
    net::{Features, NetHeader},
    port::{Port, PortEvents, Queue},
    ring::{CallFd, RingSetup},
};

use crate::engine::counters::{Counter, Totals};
#[cfg(test)]
use crate::engine::writer::PerWorker;
use crate::overlay::{Tunnel, TunnelConfig, UplinkPort};
use crate::plane::{
    AddError, Plane, PlaneConfig,
    attachment::Attachment,
    sessions::{SessionFilter, SessionRow},
};
use crate::report::{
    drops::DropReport,
    explain::{Explanation, NoAnswer, Origin, Question, Walk},
};
use crate::session::{FormerTable, SessionConfig};
use crate::stages::{pipeline::STAGES, reasons::reasons};
use crate::worker::{Handle, Worker};
use crate::world::{
    policy::VnicPolicy,
    rules::{GroupChange, number as number_of_ip},
    snapshot::Vnic,
};

/// Any error of a harness ends a test.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

struct Attached {
    vnic: Arc<Vnic>,
    attachment: Attachment,
    guest: Option<Guest>,
}

/// A host whose workers do a turn when a test says so. It has one, or those of
/// [`Host::with_workers`].
pub struct Host {
    plane: std::sync::Arc<Plane>,
    /// The other end of the uplink's rings.
    wire: Option<Guest>,
    workers: Vec<Worker>,
    vnics: BTreeMap<String, Attached>,
    last: BTreeMap<String, u64>,
}

/// Frames that arrived at each guest, in order.
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

/// Features of an uplink: complete frames in large buffers.
pub const WIRE: Features =
    Features(Features::VERSION_1.0 | Features::MRG_RXBUF.0 | Features::EVENT_IDX.0);

/// Returns the names of all stages, in order, and of delivery with the departure to other hosts
/// that is a part of it. Instruction counts use these names.
pub fn stages() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).chain(["leave", "deliver"]).collect()
}

impl Host {
    /// Makes a host without vnics.
    pub fn new() -> Result<Host, Error> {
        Host::with_sessions(SessionConfig { capacity: 65_536, ..SessionConfig::default() })
    }

    /// Makes a host with these settings of sessions.
    pub fn with_sessions(sessions: SessionConfig) -> Result<Host, Error> {
        Host::with_tunnel(sessions, None)
    }

    /// Makes a host that is a tunnel endpoint. Its uplink is a ring of a simulated guest, which
    /// stands for the wire.
    pub fn with_tunnel(
        sessions: SessionConfig,
        config: Option<&TunnelConfig>,
    ) -> Result<Host, Error> {
        Host::make(sessions, config, 1)
    }

    /// Makes a host with several workers. Each vnic's transmit ring is served by one of them.
    pub fn with_workers(workers: usize) -> Result<Host, Error> {
        let sessions = SessionConfig { capacity: 65_536, ..SessionConfig::default() };
        Host::make(sessions, None, workers)
    }

    fn make(
        sessions: SessionConfig,
        config: Option<&TunnelConfig>,
        workers: usize,
    ) -> Result<Host, Error> {
        let port = Arc::new(Port::default());
        let tunnel = config
            .map(|config| Tunnel::new(config, UplinkPort::Ring(port.clone()), workers))
            .transpose()?;
        let plane = Plane::new(PlaneConfig { workers, fdb_ageing: 300, sessions, tunnel })?;
        let wire = match config {
            None => None,
            Some(_) => {
                let config = GuestConfig::default();
                let memory = Memory::new(&MemoryConfig::new(config.memory_needed()))?;
                let guest = Guest::new(&memory, WIRE, &config)?;
                let handle = plane.workers.first().ok_or("no worker")?.clone();
                attach_rings(&port, &Attachment::uplink(handle), &guest, WIRE)?;
                Some(guest)
            }
        };
        Host::of(plane, wire)
    }

    fn of(plane: Plane, wire: Option<Guest>) -> Result<Host, Error> {
        let worker = |handle: &Arc<Handle>| {
            let id = handle.claim().ok_or("no worker")?;
            Ok::<_, Error>(Worker::without_prices(plane.shared.clone(), handle.clone(), id))
        };
        Ok(Host {
            workers: plane.workers.iter().map(worker).collect::<Result<_, _>>()?,
            plane: plane.into(),
            wire,
            vnics: BTreeMap::new(),
            last: BTreeMap::new(),
        })
    }

    /// Makes a host whose uplink is a port of its own kind.
    #[cfg(test)]
    pub(crate) fn on_wire(
        config: &TunnelConfig,
        wire: Box<dyn butterfly_uplink::Uplink>,
    ) -> Result<Host, Error> {
        let tunnel = Tunnel::new(
            config,
            UplinkPort::Wire(PerWorker::from(Box::new([std::sync::Mutex::new(wire)]))),
            1,
        )?;
        let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
        let plane = Plane::new(PlaneConfig {
            workers: 1,
            fdb_ageing: 300,
            sessions,
            tunnel: Some(tunnel),
        })?;
        Host::of(plane, None)
    }

    /// Returns the control side, and the worker.
    #[cfg(test)]
    pub(crate) fn inside(&mut self) -> (&Plane, &mut Worker) {
        (&self.plane, &mut self.workers[0])
    }

    /// Returns the tunnel endpoint's state for workers.
    #[cfg(test)]
    pub(crate) fn tunnel(&self) -> Option<&Tunnel> {
        self.plane.shared.tunnel.as_ref()
    }

    /// Sets the tunnel endpoints that get floods, in all networks and in some.
    pub fn set_peers(
        &self,
        all: Vec<IpAddr>,
        of: BTreeMap<u32, Vec<IpAddr>>,
    ) -> Result<(), Vec<IpAddr>> {
        self.plane.set_peers(all, of)
    }

    /// Sets the link address of a peer's next hop.
    pub fn set_neighbour(&self, peer: IpAddr, mac: Mac) -> Result<(), Error> {
        let tunnel = self.plane.shared.tunnel.as_ref().ok_or("no tunnel")?;
        let peer = tunnel
            .peers
            .find(number_of_ip(peer))
            .and_then(|at| tunnel.peers.get(at))
            .ok_or("no such peer")?;
        peer.set_mac(Some(mac));
        peer.stop_waiting();
        Ok(())
    }

    /// Returns the other end of the uplink.
    pub fn wire(&mut self) -> Option<&mut Guest> {
        self.wire.as_mut()
    }

    /// Returns the frames that left through the uplink since the last call.
    pub fn left(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let wire = self.wire.as_mut().ok_or("no tunnel")?;
        let mut frames = Vec::new();
        while let Some((_, frame)) = wire.recv()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Puts frames into the uplink, as if they arrived.
    pub fn arrive(&mut self, frames: &[Vec<u8>]) -> Result<(), Error> {
        for frame in frames {
            self.wire.as_mut().ok_or("no tunnel")?.send(frame, NetHeader::default())?;
            self.settle();
        }
        Ok(())
    }

    /// Returns frames for the endpoint itself, and frames that wait for a next hop, as the control
    /// thread would get them.
    pub fn punted(&self) -> Vec<Vec<u8>> {
        let Some(tunnel) = &self.plane.shared.tunnel else { return Vec::new() };
        let mut frames = Vec::new();
        while let Some((_, frame)) = tunnel.punt.take() {
            frames.push(frame.clone());
            tunnel.punt.give_back(frame);
        }
        frames
    }

    /// Declares a vnic. No guest is attached yet.
    pub fn declare(
        &mut self,
        id: &str,
        mac: Mac,
        vni: u32,
        policy: &VnicPolicy,
    ) -> Result<(), AddError> {
        let (vnic, attachment) = self.plane.insert(id, mac, network(vni)?, policy)?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        Ok(())
    }

    /// Declares a mirror of another vnic.
    pub fn declare_mirror(
        &mut self,
        id: &str,
        mac: Mac,
        vni: u32,
        target: &str,
    ) -> Result<(), AddError> {
        let (vnic, attachment) = self.plane.insert_as(
            id,
            mac,
            network(vni)?,
            &VnicPolicy::default(),
            Some(target),
            None,
        )?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        Ok(())
    }

    /// Changes a vnic's policy.
    pub fn update(&mut self, id: &str, policy: &VnicPolicy) -> Result<(), AddError> {
        self.plane.update(id, policy)
    }

    /// Changes a security group.
    pub fn change_group(&self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        self.plane.change_group(name, change)
    }

    /// Moves the numbers of changes near their end.
    pub fn near_last_version(&mut self) {
        self.plane.near_last_version();
        self.settle();
    }

    fn taps(&self) -> crate::report::taps::Taps {
        crate::report::taps::Taps::new(self.plane.clone())
    }

    /// Explains the fate of a packet.
    pub fn explain(&self, question: &Question) -> Result<Explanation, NoAnswer> {
        crate::report::explain::explain(&self.plane, question)
    }

    /// Explains the fate of a frame, from this vnic, or from the other hosts of a network.
    pub fn explain_frame(&self, from: &Origin, frame: &[u8]) -> Option<Walk> {
        crate::report::explain::explain_frame(&self.plane, from, frame)
    }

    /// Returns the tables of sessions that were found at the start.
    pub fn former_tables(&self) -> &[FormerTable] {
        &self.plane.former
    }

    /// Returns the file of the table of sessions.
    pub fn session_file(&self) -> Option<&Path> {
        self.plane.shared.table.units().path()
    }

    /// Removes sessions. Returns their number.
    pub fn flush_sessions(&self, filter: &SessionFilter) -> u64 {
        self.plane.flush_sessions(filter)
    }

    /// Returns the number of sessions that match, and the first `limit` of them.
    pub fn sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>) {
        self.plane.list_sessions(filter, limit)
    }

    /// Removes a vnic and its guest.
    pub fn remove(&mut self, id: &str) {
        self.detach(id);
        self.vnics.remove(id);
        self.plane.remove(id);
        self.last.retain(|name, _| !name.starts_with(&format!("{id}.")));
    }

    /// Makes a vnic again, and calls `between` between its end and its return.
    pub fn remake(
        &mut self,
        id: &str,
        mac: Mac,
        policy: &VnicPolicy,
        between: impl FnOnce(&mut Host),
    ) -> Result<(), Error> {
        let (order, vni) = self
            .vnics
            .get(id)
            .map(|attached| (attached.vnic.order, attached.vnic.vni))
            .ok_or("no such vnic")?;
        self.plane.keep_address(id);
        self.remove(id);
        between(self);
        let (vnic, attachment) =
            self.plane.insert_as(id, mac, network(vni)?, policy, None, Some(order))?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        self.plane.give_up_address();
        let config = GuestConfig::default();
        self.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))
    }

    /// Attaches a guest of this shape to a vnic.
    pub fn attach(
        &mut self,
        id: &str,
        features: Features,
        config: &GuestConfig,
        memory: &MemoryConfig,
    ) -> Result<(), Error> {
        let memory = Memory::new(memory)?;
        let guest = Guest::new(&memory, features, config)?;
        let attached = self.vnics.get_mut(id).ok_or("no such vnic")?;
        attach_rings(&attached.vnic.shared.port, &attached.attachment, &guest, features)?;
        attached.vnic.shared.attached.store(self.plane.shared.clock.now(), Ordering::Relaxed);
        attached.vnic.shared.driving.store(true, Ordering::Relaxed);
        attached.guest = Some(guest);
        self.plane.is_here(attached.vnic.place);
        Ok(())
    }

    /// Adds a vnic with a guest as Linux makes them.
    pub fn vnic(&mut self, id: &str, mac: Mac, vni: u32, policy: &VnicPolicy) -> Result<(), Error> {
        self.declare(id, mac, vni, policy)?;
        let config = GuestConfig::default();
        self.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))
    }

    /// Logs every store into a guest's memory from now on, as while it migrates. Its rings go on
    /// where they are.
    pub fn log(&mut self, id: &str, log: &DirtyLog) -> Result<(), Error> {
        let Attached { vnic, attachment, guest } = self.vnics.get(id).ok_or("no such vnic")?;
        let guest = guest.as_ref().ok_or("no guest")?;
        let file = log.region();
        let log = Arc::new(dirty::DirtyLog::map(
            &file.file.try_clone()?.into(),
            file.size,
            file.file_offset,
        )?);
        let [rx, tx] = setups(guest, guest.features(), Some(&log))?;
        let kick = Some(guest.queue(TX).kick_fd().as_fd());
        attachment.tx_stopped(kick);
        vnic.shared.port.replace(Some(&tx), Some(&rx))?;
        attachment.tx_started(kick);
        Ok(())
    }

    /// Notes that a vnic's guest, which was taken away, is on another host now.
    pub fn export(&mut self, id: &str) {
        if let Some(attached) = self.vnics.get(id) {
            attached.vnic.shared.elsewhere.store(true, Ordering::Relaxed);
        }
    }

    /// Takes a vnic's guest away.
    pub fn detach(&mut self, id: &str) -> Option<Guest> {
        let attached = self.vnics.get_mut(id)?;
        attached.vnic.shared.driving.store(false, Ordering::Relaxed);
        attached
            .attachment
            .tx_stopped(attached.guest.as_ref().map(|guest| guest.queue(TX).kick_fd().as_fd()));
        attached.vnic.shared.port.stop(Queue::Tx);
        attached.vnic.shared.port.stop(Queue::Rx);
        attached.guest.take()
    }

    /// Returns a vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }

    /// Lets every worker look at its rings once. Returns whether a frame was found.
    pub fn turn(&mut self) -> bool {
        self.workers.iter_mut().fold(false, |found, worker| worker.turn() | found)
    }

    /// Lets every worker work in a thread of its own while `play` plays the guests. Returns when
    /// that is over and nothing is left to do.
    pub fn at_once<T>(&mut self, play: impl FnOnce(&mut Guests<'_>) -> T) -> T {
        let Host { workers, vnics, .. } = self;
        let over = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            for worker in workers.iter_mut() {
                scope.spawn(|| while worker.turn() || !over.load(Ordering::Acquire) {});
            }
            let result = play(&mut Guests { vnics });
            over.store(true, Ordering::Release);
            result
        });
        self.settle();
        result
    }

    /// Counts the cost of batches from now on, as a switch does. Until then turns depend only on
    /// the frames in the rings.
    pub fn heed_prices(&mut self) {
        self.workers.iter_mut().for_each(Worker::heed_prices);
    }

    /// Returns the cycles of the longest batch of one ring since the last look.
    pub fn longest_turn(&self) -> u64 {
        self.plane
            .workers
            .first()
            .map_or(0, |worker| worker.stats.longest.swap(0, std::sync::atomic::Ordering::Relaxed))
    }

    /// Takes turns until nothing is left to do.
    pub fn settle(&mut self) {
        while self.turn() {}
    }

    /// Splits the host for two threads: one changes groups, the other is the worker. A change waits
    /// for the worker as in a switch. So the worker's thread must go on with turns until all
    /// changes are made, or let go of it.
    pub fn halves(&mut self) -> (Changes<'_>, Turns<'_>) {
        let Host { plane, workers, vnics, .. } = self;
        plane.workers.iter().for_each(|handle| handle.running.store(true, Ordering::SeqCst));
        (Changes { plane }, Turns { plane, workers, vnics })
    }

    /// Puts a frame into a guest's ring and lets the switch work.
    pub fn send(&mut self, id: &str, frame: &[u8], header: NetHeader) -> Result<(), Error> {
        self.guest(id).ok_or("no guest")?.send(frame, header)?;
        self.settle();
        Ok(())
    }

    /// Sets the sinks of the tap.
    pub fn watch(&mut self, sinks: &[Arc<crate::engine::tap::TapSink>]) {
        self.taps().select(sinks);
        self.settle();
    }

    /// Visits what was copied since the last call.
    pub fn watched(&self, mut visit: impl FnMut(&crate::report::taps::TapPacket<'_>)) {
        let mut read = crate::report::taps::TapRead::default();
        while {
            let more = self.taps().take(&mut read);
            self.taps().visit(&mut read, &mut visit);
            more
        } {}
    }

    /// Returns the frames that arrived at each guest since the last call, in order.
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

    /// Returns every counter that changed since the last call, by name, with its increase.
    pub fn moved(&mut self) -> BTreeMap<String, u64> {
        let mut now = BTreeMap::new();
        for (id, attached) in &self.vnics {
            named(id, &attached.vnic.shared.counters.totals(), &mut now);
        }
        for (_, trunk) in
            self.plane.shared.snapshot.load().vnics.iter().filter(|(_, vnic)| vnic.is_trunk())
        {
            named(&format!("vni-{}", trunk.vni), &trunk.shared.counters.totals(), &mut now);
        }
        if let Some(tunnel) = &self.plane.shared.tunnel {
            named("uplink", &tunnel.totals(), &mut now);
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
        self.plane.sweep(0, 1);
    }

    /// Lets tenths of a second pass on the clock of drops.
    pub fn pass_tenths(&mut self, tenths: u32) {
        self.plane.shared.clock.pass_tenths(tenths);
        self.plane.sample_drops();
    }

    /// Has a vnic announced once, in one of the next turns.
    pub fn announce_once(&mut self, id: &str) -> Result<(), Error> {
        self.vnics.get(id).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        self.plane.announce();
        Ok(())
    }

    /// Has these vnics announced, if there is room in the next tick of housekeeping, and lets that
    /// pass.
    pub fn announce_in_a_tick(&mut self, ids: &[String]) -> Result<(), Error> {
        for id in ids {
            self.vnics.get(id.as_str()).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        }
        self.plane.announce();
        self.settle();
        Ok(())
    }

    /// Has these vnics announced. The worker is busy for some ticks of housekeeping, then it has
    /// nothing else to do.
    pub fn announce_while_busy(&mut self, ids: &[String], ticks: usize) -> Result<(), Error> {
        for id in ids {
            self.vnics.get(id.as_str()).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        }
        for _ in 0..ticks {
            self.plane.announce();
        }
        for _ in 0..100 {
            self.settle();
            self.plane.announce();
        }
        self.settle();
        Ok(())
    }

    /// Has a vnic announced, as after a live migration, and lets the rounds of that pass.
    pub fn announce(&mut self, id: &str) -> Result<(), Error> {
        self.vnics.get(id).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        for _ in 0..20 {
            self.plane.announce();
            self.settle();
        }
        Ok(())
    }

    /// Returns the drops of one vnic, which must exist, or of all.
    pub fn drop_report(&self, id: Option<&str>) -> Result<DropReport, Error> {
        crate::report::drops::drop_report(&self.plane, id).ok_or_else(|| "no such vnic".into())
    }

    /// Returns the number of learnt addresses in force.
    pub fn learnt(&self) -> usize {
        self.plane.shared.fdb.list(self.plane.shared.clock.now()).len()
    }
}

/// The half that changes groups: see [`Host::halves`].
pub struct Changes<'a> {
    plane: &'a Plane,
}

impl Changes<'_> {
    /// Changes a security group. When this returns, the worker does not use the old one any more.
    pub fn change_group(&self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        self.plane.change_group(name, change)
    }
}

/// The guests while the workers are busy: see [`Host::at_once`].
pub struct Guests<'a> {
    vnics: &'a mut BTreeMap<String, Attached>,
}

impl Guests<'_> {
    /// Returns a vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }
}

/// The half with the workers and the guests: see [`Host::halves`].
pub struct Turns<'a> {
    plane: &'a Plane,
    workers: &'a mut [Worker],
    vnics: &'a mut BTreeMap<String, Attached>,
}

impl Turns<'_> {
    /// Returns a vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }

    /// Lets every worker look at its rings once. Returns whether a frame was found.
    pub fn turn(&mut self) -> bool {
        self.workers.iter_mut().fold(false, |found, worker| worker.turn() | found)
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.plane.workers.iter().for_each(|handle| handle.running.store(false, Ordering::SeqCst));
    }
}

/// Returns a guest's setups of its rings: receive, transmit.
fn setups(
    guest: &Guest,
    features: Features,
    log: Option<&Arc<dirty::DirtyLog>>,
) -> Result<[RingSetup; 2], Error> {
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
            call: Some(Arc::new(CallFd::new(ring.call_fd().try_clone()?, Arc::default())?)),
        })
    };
    Ok([setup(RX)?, setup(TX)?])
}

fn attach_rings(
    port: &Port,
    attachment: &Attachment,
    guest: &Guest,
    features: Features,
) -> Result<(), Error> {
    let [rx, tx] = setups(guest, features, None)?;
    port.start(Queue::Rx, &rx, 0, true)?;
    port.start(Queue::Tx, &tx, 0, true)?;
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
        ("announced", Counter::Announced),
    ];
    for (name, counter) in plain {
        into.insert(format!("{id}.{name}"), totals.get(counter));
    }
    for info in reasons() {
        into.insert(format!("{id}.drop.{}", info.name), totals.drops(info.reason));
    }
}

/// Returns the network that a test names by its number.
fn network(vni: u32) -> Result<Vni, AddError> {
    Vni::new(vni).map_err(|error| AddError::Device(error.to_string()))
}
