//! The switch: vnics with their sockets, workers, and answers to the operator's questions.

pub(crate) mod front;
pub(crate) mod peers;
pub(crate) mod pulse;
pub(crate) mod reports;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    os::fd::BorrowedFd,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use butterfly_guest::{Guest, Report as GuestReport};
use butterfly_model::Vni;
use butterfly_packet::mac::Mac;
use butterfly_vhost::{
    control::{DeviceEvents, DeviceStatus, Role},
    net::Features,
    port::PortEvents,
    ring::{look_at_workers, prepare_thread},
};
use rustix::thread::CpuSet;

use crate::endpoint::{open::TunnelSpec, side::EndpointSide};
use crate::engine::{
    counters::{Counter, Totals},
    events::{About, Happening, SwitchEvents},
    mac::address,
    place::PeerRef,
    reason::ReasonInfo,
};
use crate::plane::{AddError, Plane, PlaneConfig, attachment::Attachment};
use crate::report::watch::Watch;
use crate::report::workers::{WorkerReport, worker};
use crate::session::{SessionConfig, Timeouts};
use crate::stages::reasons::reasons;
use crate::switch::front::{Front, HostFacts, OpenedFront, first};
use crate::worker::Worker;
use crate::world::{policy::VnicPolicy, snapshot::VnicShared};

/// The MTU of a network that ends at this host, for the daemon's own guests.
const USUAL_MTU: u32 = 1500;

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Processor of the worker; `None`, or one that does not exist, leaves it to the scheduler.
    pub core: Option<usize>,
    /// True if the worker never sleeps.
    pub poll: bool,
    /// Seconds after which a silent learnt address is forgotten.
    pub fdb_ageing: u32,
    /// Most sessions.
    pub sessions: u32,
    /// Name of the file of the table of sessions; without one it is in the process's own memory.
    pub session_file: Option<String>,
    /// Percent of the table that one network may have; a vnic may have half of that.
    pub session_share: u32,
    /// Seconds after a guest attached in which its TCP connections may be picked up mid-stream.
    pub tcp_pickup: u32,
    /// Seconds that sessions last without a frame.
    pub timeouts: Timeouts,
    /// True if guests are offered no checksum and segmentation offloads.
    pub no_offload: bool,
    /// The tunnel endpoint. Without it, networks end at this host.
    pub tunnel: Option<TunnelSpec>,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        let SessionConfig { capacity, file, share, tcp_pickup, timeouts, .. } =
            SessionConfig::default();
        SwitchConfig {
            core: None,
            poll: false,
            fdb_ageing: 300,
            sessions: capacity,
            session_file: file,
            session_share: share,
            tcp_pickup,
            timeouts,
            no_offload: false,
            tunnel: None,
        }
    }
}

/// A vnic as it is declared. Only its policy may change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicSpec {
    /// Its name.
    pub id: String,
    /// Its address.
    pub mac: Mac,
    /// Its network.
    pub vni: Vni,
    /// Its other side.
    pub front: Front,
    /// Its policy.
    pub policy: VnicPolicy,
    /// The vnic that this one mirrors, by its id; it need not exist. The mirror gets copies of all
    /// frames that the other vnic sends and receives, while that one is in the same network and no
    /// mirror itself. It gets nothing else, and sends nothing.
    pub sniff_target: Option<String>,
    /// Order of declaration. Of several vnics with one MAC address in a network, the first has it,
    /// together with others that bypass filters as it does. The rest wait, get nothing and may send
    /// nothing until it is gone.
    pub order: u64,
}

/// Row of a vnic, for the operator.
#[derive(Clone, Debug)]
pub struct VnicReport {
    /// As declared.
    pub spec: VnicSpec,
    /// The vnic that has its MAC address, if it waits for that.
    pub waits_for: Option<String>,
    /// Its socket, guest and rings.
    pub device: DeviceStatus,
    /// The daemon's own guest.
    pub guest: Option<GuestReport>,
    /// Frames and bytes received from the guest.
    pub received: (u64, u64),
    /// Frames and bytes delivered to the guest.
    pub delivered: (u64, u64),
    /// Frames of the guest that went to several receivers.
    pub flooded: u64,
    /// PollSource addresses that were not learnt because a bound was reached.
    pub learn_refused: u64,
    /// Frames that the switch sent in the guest's name to announce its place, as after a live
    /// migration.
    pub announced: u64,
    /// Sessions that it is an end of.
    pub sessions: u32,
    /// Count of every reason.
    pub drops: Vec<(ReasonInfo, u64)>,
}

/// Origin of an FDB entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum FdbKind {
    /// Declared with a vnic.
    Static,
    /// Learnt from frames.
    Learnt,
}

/// An address and the vnic it is behind.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct FdbRow {
    /// Network.
    pub vni: u32,
    /// Address.
    pub mac: Mac,
    /// Vnic; empty for an address on another host.
    pub id: String,
    /// The other host.
    pub peer: Option<IpAddr>,
    /// Its origin.
    pub kind: FdbKind,
    /// Seconds since it was last seen, for learnt ones.
    pub idle: Option<u32>,
}

struct Declared {
    spec: VnicSpec,
    open: OpenedFront,
}

/// The switch of a host.
pub struct Switch {
    plane: Arc<Plane>,
    vnics: Arc<Mutex<BTreeMap<String, Declared>>>,
    events: Arc<dyn SwitchEvents>,
    config: SwitchConfig,
    core: Option<usize>,
    threads: Vec<JoinHandle<()>>,
    pub(crate) side: Option<EndpointSide>,
    /// Held while peers change.
    pub(crate) changing_peers: Mutex<()>,
}

/// One vnic's link from its control thread to the worker and to the daemon.
struct Link {
    id: String,
    vni: u32,
    offered: Features,
    attachment: Attachment,
    events: Arc<dyn SwitchEvents>,
    shared: Arc<VnicShared>,
    plane: Arc<Plane>,
}

impl PortEvents for Link {
    fn tx_started(&self, kick: Option<BorrowedFd<'_>>) {
        self.attachment.tx_started(kick);
    }

    fn tx_stopped(&self, kick: Option<BorrowedFd<'_>>) {
        self.attachment.tx_stopped(kick);
    }
}

impl Link {
    fn happened(&self, what: Happening<'_>) {
        self.events.happened(About { nic: Some(&self.id), vni: Some(self.vni) }, what);
    }
}

impl DeviceEvents for Link {
    fn attached(&self) {
        self.shared.attached.store(self.plane.shared.clock.now(), Ordering::Relaxed);
        self.shared.presence.came();
        self.happened(Happening::Attached);
    }

    fn detached(&self, reason: &str) {
        self.shared.driving.store(false, Ordering::Relaxed);
        self.shared.presence.went();
        self.happened(Happening::Detached(reason));
    }

    fn negotiated(&self, accepted: Features) {
        self.happened(Happening::Negotiated { accepted, refused: self.offered.without(accepted) });
    }

    fn driving(&self, both: bool) {
        self.shared.driving.store(both, Ordering::Relaxed);
        if both {
            self.attachment.vnic().into_iter().for_each(|place| self.plane.is_here(place));
        } else if self.shared.leaving.load(Ordering::Relaxed) {
            self.shared.elsewhere.store(true, Ordering::Relaxed);
        }
        self.happened(Happening::Driving(both));
    }

    fn announce(&self) {
        self.shared.announcing.begin();
    }

    fn trouble(&self, why: &str) {
        self.happened(Happening::Trouble(why));
    }
}

impl Switch {
    /// Starts the workers.
    pub fn start(
        config: SwitchConfig,
        events: Arc<dyn SwitchEvents>,
    ) -> Result<Switch, std::io::Error> {
        let sessions = SessionConfig {
            capacity: config.sessions,
            file: config.session_file.clone(),
            share: config.session_share,
            tcp_pickup: config.tcp_pickup,
            timeouts: Timeouts {
                tcp_cut: config.timeouts.tcp_cut.max(config.tcp_pickup),
                ..config.timeouts
            },
            ..SessionConfig::default()
        };
        let opened = config
            .tunnel
            .as_ref()
            .map(crate::endpoint::open::open)
            .transpose()?
            .map(|opened| opened.split());
        let (tunnel, rest) = opened.unzip();
        let plane = Arc::new(Plane::new(PlaneConfig {
            workers: 1,
            fdb_ageing: config.fdb_ageing,
            sessions,
            tunnel,
        })?);
        let vnics = Arc::new(Mutex::new(BTreeMap::new()));
        // Not available_parallelism(): that counts those the daemon was confined to, whatever their
        // numbers.
        let exists =
            |core: &usize| Path::new(&format!("/sys/devices/system/cpu/cpu{core}")).exists();
        let core = config.core.filter(|core| *core < CpuSet::MAX_CPU && exists(core));
        if core != config.core {
            tracing::warn!(wanted = config.core, "no such processor: the worker is not pinned");
        }
        let mut threads = Vec::new();
        for handle in &plane.workers {
            let (shared, handle, poll) = (plane.shared.clone(), handle.clone(), config.poll);
            let name = format!("worker-{}", handle.index);
            let claimed = handle.claim();
            let id =
                claimed.ok_or_else(|| std::io::Error::other(format!("{name} runs already")))?;
            // Made in its own thread, so that its memory is near the processor that it runs on.
            let body = move || work(core, || Worker::new(shared, handle, id, poll));
            threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        let (keeper, watched, told) = (plane.clone(), Arc::clone(&vnics), Arc::clone(&events));
        let body = move || housekeeping(&keeper, &watched, &*told);
        threads.push(std::thread::Builder::new().name("housekeeping".into()).spawn(body)?);
        let mut switch = Switch {
            plane,
            vnics,
            events,
            config,
            core,
            threads,
            side: None,
            changing_peers: Mutex::default(),
        };
        if let (Some(spec), Some(rest)) = (switch.config.tunnel.clone(), rest) {
            switch.side = Some(EndpointSide::start(
                &switch.plane,
                spec,
                rest,
                switch.config.fdb_ageing,
                switch.events.clone(),
            )?);
        }
        Ok(switch)
    }

    pub(crate) fn shared_plane(&self) -> Arc<Plane> {
        self.plane.clone()
    }

    pub(crate) fn plane(&self) -> &Plane {
        &self.plane
    }

    fn vnics(&self) -> MutexGuard<'_, BTreeMap<String, Declared>> {
        self.vnics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host(&self) -> HostFacts {
        HostFacts { mtu: self.inner_mtu().unwrap_or(USUAL_MTU), worker: self.core }
    }

    /// Adds a vnic and opens its socket, or attaches the daemon's own guest. Its policy is in force
    /// before a guest can attach. On an error nothing has changed. No vnic may have the same id:
    /// the desired state has each once.
    pub fn add_vnic(&self, spec: VnicSpec) -> Result<(), AddError> {
        let mut vnics = self.vnics();
        debug_assert!(!vnics.contains_key(&spec.id), "vnic {} was not removed", spec.id);
        let ready = spec.front.prepare(&spec, self.host())?;
        let mirrors = spec.sniff_target.as_deref();
        let (vnic, attachment) = self.plane.insert_as(
            &spec.id,
            spec.mac,
            spec.vni,
            &spec.policy,
            mirrors,
            Some(spec.order),
        )?;
        let offered = if self.config.no_offload {
            Features::OFFERED.without(Features::OFFLOADS)
        } else {
            Features::OFFERED
        };
        let link = Arc::new(Link {
            id: spec.id.clone(),
            vni: spec.vni.number(),
            offered,
            attachment,
            events: self.events.clone(),
            shared: vnic.shared.clone(),
            plane: self.plane.clone(),
        });
        let events = self.events.clone();
        let told = Box::new(move |times| events.measured(times));
        match ready.open(&spec.id, vnic.shared.port.clone(), offered, link, told) {
            Ok(open) => {
                vnics.insert(spec.id.clone(), Declared { spec, open });
                Ok(())
            }
            Err(why) => {
                self.plane.remove(&spec.id);
                Err(why)
            }
        }
    }

    /// Checks whether a vnic could be made in place of the one with its id, which goes on
    /// meanwhile. Returns the error with which [`Switch::add_vnic`] would fail after that.
    pub fn may_replace(&self, spec: &VnicSpec) -> Result<(), AddError> {
        let old = self.vnics().get(&spec.id).map(|declared| declared.spec.front.clone());
        let old = old.ok_or_else(|| AddError::Unknown(spec.id.clone()))?;
        spec.front.may_replace(&old, spec, self.host())
    }

    /// Checks whether a vnic could be added, as far as that can be tried while others that go
    /// before it are still there. Returns the error with which [`Switch::add_vnic`] would fail.
    pub fn may_add(&self, spec: &VnicSpec) -> Result<(), AddError> {
        let taken = match &spec.front {
            Front::Socket { path, .. } => {
                self.vnics().values().any(|declared| declared.spec.front.serves(path))
            }
            Front::Inside(_) => false,
        };
        spec.front.may_open(spec, self.host(), taken)
    }

    /// Keeps a vnic's MAC address while the vnic is made again. No vnic that waits for it gets it
    /// until [`Switch::give_up_address`].
    pub fn keep_address(&self, id: &str) {
        self.plane.keep_address(id);
    }

    /// Ends [`Switch::keep_address`], whether the vnic came back or not.
    pub fn give_up_address(&self) {
        self.plane.give_up_address();
    }

    /// Gives a vnic another policy; its guest stays attached. When this returns, no worker uses the
    /// old one.
    pub fn update_vnic(&self, id: &str, policy: VnicPolicy) -> Result<(), AddError> {
        let mut vnics = self.vnics();
        let declared = vnics.get_mut(id).ok_or_else(|| AddError::Unknown(id.to_owned()))?;
        self.plane.update(id, &policy)?;
        if let Some(guest) = &declared.open.guest {
            guest.readdress(first(&policy.ips));
        }
        declared.spec.policy = policy;
        Ok(())
    }

    /// Notes that a vnic's machine leaves for another host: once its driver stops here, its
    /// addresses may be there. Returns whether there is such a vnic.
    pub fn export_vnic(&self, id: &str) -> bool {
        let Some(vnic) = self.plane.vnic(id) else { return false };
        vnic.shared.leaving.store(true, Ordering::Relaxed);
        if !vnic.shared.presence.attached() {
            vnic.shared.elsewhere.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Closes a vnic's socket, which detaches its guest, and forgets the vnic. Returns whether
    /// there was one.
    pub fn remove_vnic(&self, id: &str) -> bool {
        let mut vnics = self.vnics();
        let Some(declared) = vnics.remove(id) else { return false };
        declared.open.close();
        self.plane.remove(id);
        true
    }

    /// Returns the vnic with the MAC address for which another vnic waits.
    pub fn waits_for(&self, id: &str) -> Option<String> {
        self.plane.vnic(id).and_then(|vnic| self.plane.waits_for(&vnic))
    }

    /// Returns whether no machine can attach to a vnic any more: no guest is attached, and the
    /// socket that was made for it is gone.
    pub fn socket_is_gone(&self, id: &str) -> bool {
        let vnics = self.vnics();
        let Some(Declared { spec, open }) = vnics.get(id) else { return false };
        match &spec.front {
            Front::Socket { role: Role::Server, path } => {
                open.device.status().attached.is_none() && !path.exists()
            }
            Front::Socket { .. } | Front::Inside(_) => false,
        }
    }

    /// Returns a vnic for the operator.
    pub fn vnic(&self, id: &str) -> Option<VnicReport> {
        let (spec, device, guest) = {
            let vnics = self.vnics();
            let Declared { spec, open } = vnics.get(id)?;
            (spec.clone(), open.device.status(), open.guest.as_ref().map(Guest::report))
        };
        let vnic = self.plane.vnic(id);
        let totals = vnic.as_ref().map(|vnic| vnic.shared.counters.totals()).unwrap_or_default();
        Some(VnicReport {
            spec,
            waits_for: vnic.as_ref().and_then(|vnic| self.plane.waits_for(vnic)),
            device,
            guest,
            received: (totals.get(Counter::InPackets), totals.get(Counter::InBytes)),
            delivered: (totals.get(Counter::OutPackets), totals.get(Counter::OutBytes)),
            flooded: totals.get(Counter::Flooded),
            learn_refused: totals.get(Counter::LearnRefused),
            announced: totals.get(Counter::Announced),
            sessions: vnic.map_or(0, |vnic| vnic.shared.sessions.count()),
            drops: drops(&totals),
        })
    }

    /// Returns the ids of all vnics, sorted.
    pub fn ids(&self) -> Vec<String> {
        self.vnics().keys().cloned().collect()
    }

    /// Returns the drops of the whole host since it started, including vnics that are gone.
    pub fn host_drops(&self) -> Vec<(ReasonInfo, u64)> {
        drops(&self.plane.totals())
    }

    /// Returns all known addresses, of one network or of all, sorted.
    pub fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow> {
        let shared = &self.plane.shared;
        let snapshot = shared.snapshot.load();
        let wanted = |of: u32| vni.is_none_or(|vni| vni == of);
        let own = snapshot
            .vnics
            .iter()
            .filter(|(_, vnic)| {
                wanted(vnic.vni)
                    && !vnic.is_trunk()
                    && !vnic.is_mirror()
                    && snapshot.waits_for(vnic).is_none()
            })
            .map(|(_, vnic)| FdbRow {
                vni: vnic.vni,
                mac: vnic.mac,
                id: vnic.id.to_string(),
                peer: None,
                kind: FdbKind::Static,
                idle: None,
            });
        let learnt = shared
            .fdb
            .list(shared.clock.now())
            .into_iter()
            .filter(|entry| wanted(entry.vni))
            .filter_map(|entry| {
                let behind = snapshot.behind(entry.place)?;
                let tunnel = shared.tunnel.as_ref().filter(|_| behind.is_trunk());
                let peer =
                    tunnel.and_then(|tunnel| tunnel.peers.get(PeerRef(entry.place.incarnation)));
                Some(FdbRow {
                    vni: entry.vni,
                    mac: address(entry.mac),
                    id: behind.id.to_string(),
                    peer: peer.map(|peer| crate::world::rules::address(peer.address())),
                    kind: FdbKind::Learnt,
                    idle: Some(entry.idle),
                })
            });
        let mut rows: Vec<FdbRow> = own.chain(learnt).collect();
        rows.sort();
        rows
    }

    /// Returns the counters of each worker.
    pub fn workers(&self) -> Vec<WorkerReport> {
        self.plane
            .workers
            .iter()
            .map(|handle| worker(handle, self.core, self.config.poll))
            .collect()
    }

    /// Removes all vnics and ends all threads.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        for id in self.ids() {
            self.remove_vnic(&id);
        }
        if let Some(mut side) = self.side.take() {
            side.stop();
        }
        self.plane.shared.stop.store(true, Ordering::Release);
        self.plane.workers.iter().for_each(|worker| worker.wake());
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join(); // a worker that panicked has ended the process
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn drops(totals: &Totals) -> Vec<(ReasonInfo, u64)> {
    reasons().map(|info| (info, totals.drops(info.reason))).collect()
}

fn work(core: Option<usize>, make: impl FnOnce() -> Worker) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(why) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::warn!(core, %why, "cannot pin the worker");
        }
    }
    if let Err(why) = prepare_thread() {
        tracing::warn!(%why, "interrupting guests will cost the worker more: raise the sysctl fs.aio-max-nr");
    }
    // The loop must not panic. If it did, publications would wait for this thread for ever: a
    // restart is better.
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| make().run())).is_err() {
        tracing::error!("a worker panicked");
        std::process::abort();
    }
}

/// Runs all regular work: the clock, ageing, guests whose memory was taken away, the daemon's own
/// guests when the MTU changes, and the watch over counters.
fn housekeeping(
    plane: &Plane,
    vnics: &Mutex<BTreeMap<String, Declared>>,
    events: &dyn SwitchEvents,
) {
    const TICK: Duration = Duration::from_millis(100);
    /// Ticks in which every session is looked at once.
    const SWEEPS: u64 = 20;
    let mut ticks = 0u32;
    let mut watch = Watch::default();
    let inner_mtu = || plane.shared.tunnel.as_ref().map(|tunnel| tunnel.inner_mtu());
    let mut mtu = inner_mtu();
    while !plane.shared.stop.load(Ordering::Acquire) {
        plane.shared.clock.advance();
        look_at_workers();
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(10) {
            plane.expire();
            watch.look(plane, events);
        }
        plane.sweep(u64::from(ticks) % SWEEPS, SWEEPS);
        plane.announce();
        plane.sample_drops();
        for (_, vnic) in plane.shared.snapshot.load().vnics.iter() {
            if vnic.shared.port.is_tx_disabled()
                && let Some(worker) =
                    plane.workers.get(vnic.place.slot as usize % plane.workers.len().max(1))
            {
                worker.discard(vnic.place);
            }
            if vnic.shared.port.poisoned()
                && let Some(declared) =
                    vnics.lock().unwrap_or_else(PoisonError::into_inner).get(&*vnic.id)
            {
                declared.open.device.poke();
            }
        }
        // A vnic that is just being added is in the list, or will be made with the new MTU: the
        // thread that adds holds the list.
        if let Some(new) = inner_mtu().filter(|new| Some(*new) != mtu) {
            mtu = Some(new);
            let vnics = vnics.lock().unwrap_or_else(PoisonError::into_inner);
            vnics
                .values()
                .filter_map(|declared| declared.open.guest.as_ref())
                .for_each(|guest| guest.resize(new));
        }
        std::thread::park_timeout(TICK);
    }
}
