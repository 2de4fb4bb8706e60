//! A host under test: scenarios declare vnics on it, attach guests to them and read its counters.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Mutex,
};

use butterfly_guest_driver::{Connection, Listener, Vm, VmConfig};
use butterfly_packet::mac::Mac;

use crate::{
    daemon::Daemon,
    in_process::InProcess,
    station::Station,
    wait::{PATIENCE, eventually},
};

/// A vnic as a scenario declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its id.
    pub id: String,
    /// Its MAC address.
    pub mac: Mac,
    /// Its network.
    pub vni: u32,
    /// Its IP addresses.
    pub ips: Vec<String>,
    /// The vnic has no filter.
    pub bypass: bool,
    /// The daemon checks the senders in ARP packets.
    pub anti_spoof: bool,
    /// The front end owns the socket.
    pub client: bool,
    /// Path of its socket, if not the usual one.
    pub path: Option<PathBuf>,
    /// Its security groups.
    pub groups: Vec<String>,
    /// The vnic that this one mirrors.
    pub mirror_of: Option<String>,
}

impl Nic {
    /// A vnic without a filter.
    pub fn bypass(id: &str, mac: Mac, vni: u32) -> Nic {
        Nic { bypass: true, ..Nic::filtered(id, mac, vni) }
    }

    /// A vnic with a filter and without an IP address.
    pub fn filtered(id: &str, mac: Mac, vni: u32) -> Nic {
        Nic {
            id: id.to_owned(),
            mac,
            vni,
            ips: Vec::new(),
            bypass: false,
            anti_spoof: false,
            client: false,
            path: None,
            groups: Vec::new(),
            mirror_of: None,
        }
    }

    /// A mirror of another vnic.
    pub fn mirror(id: &str, mac: Mac, vni: u32, target: &str) -> Nic {
        Nic { mirror_of: Some(target.to_owned()), ..Nic::filtered(id, mac, vni) }
    }

    /// Makes the front end the owner of the socket.
    pub fn client(self) -> Nic {
        Nic { client: true, ..self }
    }

    /// Sets the IP addresses.
    pub fn ips(self, ips: &[&str]) -> Nic {
        Nic { ips: ips.iter().map(|ip| (*ip).to_owned()).collect(), ..self }
    }

    /// Sets the security groups.
    pub fn groups(self, groups: &[&str]) -> Nic {
        Nic { groups: groups.iter().map(|group| (*group).to_owned()).collect(), ..self }
    }

    /// Makes the daemon check the senders in ARP packets.
    pub fn anti_spoof(self) -> Nic {
        Nic { anti_spoof: true, ..self }
    }
}

/// A ring as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueShow {
    /// `rx` or `tx`.
    pub name: String,
    /// Number of descriptors.
    pub size: u32,
    /// The daemon runs this ring.
    pub running: bool,
    /// The guest enabled it.
    pub enabled: bool,
    /// The guest wrote an impossible index.
    pub broken: bool,
    /// Used index.
    pub used: u32,
    /// The guest's available index.
    pub guest_avail: u32,
}

/// A vnic as an operator sees it.
#[derive(Clone, Debug, Default)]
pub struct Show {
    /// A guest is attached.
    pub attached: bool,
    /// `server` or `client`.
    pub role: String,
    /// Number of guests that attached so far.
    pub attach_count: u64,
    /// Reason for which the last guest was detached.
    pub last_detach: Option<String>,
    /// Features that the guest accepted.
    pub negotiated: BTreeSet<String>,
    /// Features that the guest was offered and did not accept.
    pub refused: BTreeSet<String>,
    /// Its rings.
    pub queues: Vec<QueueShow>,
    /// Guest address and size of each memory region.
    pub memory: Vec<(u64, u64)>,
    /// Frames and bytes received from the guest.
    pub received: (u64, u64),
    /// Frames and bytes delivered to the guest.
    pub delivered: (u64, u64),
    /// Frames of the guest that went to several receivers.
    pub flooded: u64,
    /// Addresses not learnt because a bound was reached.
    pub learn_refused: u64,
    /// Every drop reason with its count.
    pub drops: BTreeMap<String, u64>,
}

impl Show {
    /// The count of a drop reason, which must exist.
    #[track_caller]
    pub fn drops(&self, reason: &str) -> u64 {
        *self
            .drops
            .get(reason)
            .unwrap_or_else(|| panic!("there is no drop reason {reason}: {:?}", self.drops.keys()))
    }

    /// Sum of all drops.
    pub fn all_drops(&self) -> u64 {
        self.drops.values().sum()
    }

    /// The drop reasons that counted something.
    pub fn dropped(&self) -> BTreeMap<&str, u64> {
        self.drops.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (name.as_str(), *n)).collect()
    }

    /// Counters of packets by name, without zeros.
    fn counters(&self) -> BTreeMap<String, u64> {
        let plain = [
            ("in", self.received.0),
            ("out", self.delivered.0),
            ("flooded", self.flooded),
            ("learn-refused", self.learn_refused),
        ];
        let plain = plain.into_iter().map(|(name, n)| (name.to_owned(), n));
        let drops = self.drops.iter().map(|(name, n)| (format!("drop.{name}"), *n));
        plain.chain(drops).filter(|(_, n)| *n > 0).collect()
    }
}

/// An entry of the forwarding database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FdbEntry {
    /// Network.
    pub vni: u32,
    /// Address.
    pub mac: String,
    /// The vnic it is behind.
    pub id: String,
    /// True if the entry was learnt, false if it was declared.
    pub learnt: bool,
}

/// Counters of all workers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Frames taken from guests and completely processed.
    pub packets: u64,
    /// Batches of these frames.
    pub batches: u64,
    /// Times a worker slept.
    pub sleeps: u64,
    /// Cycles in which there was something to do.
    pub busy_cycles: u64,
    /// Rings polled now.
    pub active_rings: u64,
}

/// Options of a host.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// The worker polls and never sleeps.
    pub poll: bool,
    /// Seconds after which a learnt address is forgotten; None: the default.
    pub fdb_ageing: Option<u32>,
}

/// Implementation of a host: a daemon, or a switch in this process.
pub(crate) trait Backend: Send + Sync {
    fn add(&self, nic: &Nic) -> Result<PathBuf, String>;
    fn update(&self, id: &str, ips: &[String], anti_spoof: bool) -> Result<(), String>;
    fn remove(&self, id: &str);
    fn show(&self, id: &str) -> Option<Show>;
    fn ids(&self) -> Vec<String>;
    fn fdb(&self, vni: Option<u32>) -> Vec<FdbEntry>;
    fn work(&self) -> Work;
    fn dir(&self) -> &Path;
}

/// Kind of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A `butterflyd` process.
    Daemon,
    /// The daemon's switch in this process.
    Switch,
}

impl Kind {
    /// Returns the kind that the environment variable `BUTTERFLY_TESTS` asks for.
    pub fn wanted() -> Kind {
        match std::env::var("BUTTERFLY_TESTS").as_deref() {
            Ok("switch") => Kind::Switch,
            Ok("daemon") | Err(_) => Kind::Daemon,
            Ok(other) => panic!("BUTTERFLY_TESTS is {other:?}; it may be daemon or switch"),
        }
    }
}

enum Running {
    Daemon(Daemon),
    Switch(Box<InProcess>),
}

/// A host under test, which ends when this value is dropped.
pub struct Host {
    running: Running,
    /// Frames sent by vnics that were removed since.
    gone: Mutex<u64>,
}

impl Default for Host {
    fn default() -> Self {
        Host::new()
    }
}

impl Host {
    /// Starts a host as an operator would.
    pub fn new() -> Host {
        Host::with(&HostOptions::default())
    }

    /// Starts a host with options.
    pub fn with(options: &HostOptions) -> Host {
        let running = match Kind::wanted() {
            Kind::Daemon => Running::Daemon(Daemon::start(options)),
            Kind::Switch => Running::Switch(Box::new(InProcess::start(options))),
        };
        Host { running, gone: Mutex::new(0) }
    }

    /// Starts a daemon for scenarios that need a process. Returns None if `BUTTERFLY_TESTS` asks
    /// for a switch.
    pub fn process() -> Option<Host> {
        Host::process_with(&HostOptions::default())
    }

    /// As [`Self::process`], with options.
    pub fn process_with(options: &HostOptions) -> Option<Host> {
        match Kind::wanted() {
            Kind::Daemon => Some(Host::of(Daemon::start(options))),
            Kind::Switch => {
                println!("skipped: it needs a daemon");
                None
            }
        }
    }

    /// Returns a host with a daemon that runs already.
    pub fn of(daemon: Daemon) -> Host {
        Host { running: Running::Daemon(daemon), gone: Mutex::new(0) }
    }

    /// The daemon.
    ///
    /// # Panics
    /// If the host is a switch in this process.
    #[track_caller]
    pub fn daemon(&self) -> &Daemon {
        match &self.running {
            Running::Daemon(daemon) => daemon,
            Running::Switch(_) => panic!("this host is no process"),
        }
    }

    /// As [`Self::daemon`], to wait for its end.
    #[track_caller]
    pub fn daemon_mut(&mut self) -> &mut Daemon {
        match &mut self.running {
            Running::Daemon(daemon) => daemon,
            Running::Switch(_) => panic!("this host is no process"),
        }
    }

    fn backend(&self) -> &dyn Backend {
        match &self.running {
            Running::Daemon(daemon) => daemon,
            Running::Switch(switch) => switch.as_ref(),
        }
    }

    /// Declares a vnic. Returns the path of its socket.
    pub fn add(&self, nic: &Nic) -> Result<PathBuf, String> {
        let sent = || self.backend().show(&nic.id).map_or(0, |show| show.received.0);
        let before = sent();
        let result = self.backend().add(nic);
        if sent() < before {
            *self.gone.lock().unwrap() += before; // the vnic was made anew and counts from 0
        }
        result
    }

    /// Changes a vnic's IP addresses, and whether ARP senders are checked.
    pub fn update(&self, id: &str, ips: &[&str], anti_spoof: bool) -> Result<(), String> {
        let ips: Vec<String> = ips.iter().map(|ip| (*ip).to_owned()).collect();
        self.backend().update(id, &ips, anti_spoof)
    }

    /// Removes a vnic.
    pub fn remove(&self, id: &str) {
        let sent = self.backend().show(id).map_or(0, |show| show.received.0);
        self.backend().remove(id);
        *self.gone.lock().unwrap() += sent;
    }

    /// Returns the state of a vnic, which must exist.
    #[track_caller]
    pub fn show(&self, id: &str) -> Show {
        self.backend().show(id).unwrap_or_else(|| panic!("there is no vnic {id}"))
    }

    /// The ids of all vnics.
    pub fn ids(&self) -> Vec<String> {
        self.backend().ids()
    }

    /// The forwarding database, sorted.
    pub fn fdb(&self, vni: Option<u32>) -> Vec<FdbEntry> {
        self.backend().fdb(vni)
    }

    /// The learnt addresses of a network, each with the vnic that it is behind.
    pub fn learnt(&self, vni: u32) -> BTreeMap<String, String> {
        let entries = self.fdb(Some(vni)).into_iter();
        entries.filter(|entry| entry.learnt).map(|entry| (entry.mac, entry.id)).collect()
    }

    /// Returns the counters of the workers.
    pub fn work(&self) -> Work {
        self.backend().work()
    }

    /// Declares a vnic and attaches a guest to it.
    #[track_caller]
    pub fn station(&self, nic: &Nic, config: &VmConfig) -> Station {
        if nic.client {
            let path = self.client_path(nic);
            let listener = Listener::bind(&path).unwrap();
            assert_eq!(self.add(nic).unwrap(), path);
            let vm = Vm::accept(&listener, config, PATIENCE).unwrap();
            return self.running(Station {
                nic: nic.clone(),
                path,
                listener: Some(listener),
                vm,
                config: config.clone(),
            });
        }
        let path = self.add(nic).unwrap();
        let vm = Vm::connect(&path, config, PATIENCE).unwrap();
        self.running(Station { nic: nic.clone(), path, listener: None, vm, config: config.clone() })
    }

    /// The socket of a vnic whose front end listens.
    fn client_path(&self, nic: &Nic) -> PathBuf {
        nic.path.clone().unwrap_or_else(|| self.dir().join(format!("qemu-vhost-{}", nic.id)))
    }

    /// The directory of the sockets, which scenarios may use for other files too.
    pub fn dir(&self) -> &Path {
        self.backend().dir()
    }

    fn running(&self, mut station: Station) -> Station {
        // Without REPLY_ACK the front end got no replies: the daemon may still read its messages.
        station.vm.connection.sync().unwrap();
        station
    }

    /// Opens a new connection to a vnic. With a listener the front end owns the socket.
    #[track_caller]
    pub fn connection(&self, path: &Path, listener: Option<&Listener>) -> Connection {
        match listener {
            Some(listener) => listener.accept(PATIENCE).unwrap(),
            None => Connection::connect(path, PATIENCE).unwrap(),
        }
    }

    /// Waits until the switch has processed everything that these stations sent.
    #[track_caller]
    pub fn settle(&self, stations: &mut [&mut Station]) {
        for station in stations {
            assert!(station.vm.guest.drain(PATIENCE).unwrap(), "{} is not served", station.nic.id);
        }
        // A vnic counts a frame when it takes the frame; the worker counts it after its delivery.
        eventually("everything was worked off", || {
            let taken: u64 = self
                .ids()
                .iter()
                .filter_map(|id| self.backend().show(id))
                .map(|show| show.received.0)
                .sum();
            self.work().packets == taken + *self.gone.lock().unwrap()
        });
    }

    /// Returns the counters of all vnics, named `ID.COUNTER`.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for id in self.ids() {
            let show = self.show(&id);
            all.extend(show.counters().into_iter().map(|(name, n)| (format!("{id}.{name}"), n)));
        }
        all
    }

    /// Asserts that exactly these counters moved since `before`, by these numbers. Then stores the
    /// current counters in `before`.
    #[track_caller]
    pub fn moved(&self, before: &mut BTreeMap<String, u64>, expected: &[(&str, u64)]) {
        // A fragment waits for its first one before it is dropped.
        for (name, n) in expected.iter().filter(|(name, _)| name.ends_with("fragment-orphan")) {
            let of = |counters: &BTreeMap<String, u64>| counters.get(*name).copied().unwrap_or(0);
            let enough = of(before) + n;
            eventually("the fragment has waited", || of(&self.counters()) >= enough);
        }
        let now = self.counters();
        let mut moved: BTreeMap<String, i128> =
            now.iter().map(|(name, n)| (name.clone(), i128::from(*n))).collect();
        for (name, n) in before.iter() {
            *moved.entry(name.clone()).or_default() -= i128::from(*n);
        }
        moved.retain(|_, n| *n != 0);
        let expected: BTreeMap<String, i128> =
            expected.iter().map(|(name, n)| ((*name).to_owned(), i128::from(*n))).collect();
        assert_eq!(moved, expected);
        *before = now;
    }
}
