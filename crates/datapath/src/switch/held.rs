//! Things of the switch that the holder keeps, and that outlast this process: sockets of vnics with
//! their front ends, TAP devices, and the uplink's parts.

use std::{
    collections::BTreeMap,
    fmt::Display,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use butterfly_holder::client::{self, Held, Lease};
use butterfly_vhost::{
    control::{Device, DeviceConfig, Role, block_of, listen},
    ring::NoteTable,
};

use crate::endpoint::open::{Outlasting, PACKETS};
use crate::plane::{
    AddError,
    ports::{KeptPorts, PORTS},
};

/// The holder, and what a dead process left of vnics and devices that nobody took up yet.
pub struct Hold {
    lease: Arc<Lease>,
    /// True once the workers run. Rings that are taken up before need no control thread, whose
    /// start would only keep the workers waiting.
    runs: AtomicBool,
    /// Notes about packed rings, by which a successor finds where they stand.
    notes: Option<Arc<NoteTable>>,
    former: Mutex<BTreeMap<String, Held>>,
    devices: Mutex<BTreeMap<String, OwnedFd>>,
}

/// Id of a vhost-user uplink, which no vnic can have.
pub(crate) const UPLINK: &str = "\u{1}uplink";
/// Name of the part with notes about packed rings.
const RINGS: &str = "rings";
/// Beginning of the names of TAP devices.
const TAP: &str = "tap:";

/// Name of a vnic's TAP device.
pub(crate) fn tap_of(id: &str, birth: u64) -> String {
    format!("{TAP}{birth}:{id}")
}

/// Checks that the state of a front end, which another process noted, can be read here. Returns
/// the reason if not.
pub fn check_front_end(state: &[u8]) -> Result<(), String> {
    butterfly_vhost::control::check_state(state)
}

fn failed(why: impl ToString) -> AddError {
    AddError::Device(why.to_string())
}

fn side(role: Role) -> client::Role {
    match role {
        Role::Server => client::Role::Server,
        Role::Client => client::Role::Client,
    }
}

impl KeptPorts for Hold {
    fn take(&self, name: &str) -> Option<OwnedFd> {
        self.device(name)
    }

    fn keep(&self, name: &str, ports: BorrowedFd<'_>) -> std::io::Result<()> {
        self.lease.deposit(name, ports)
    }

    fn forget(&self, name: &str) {
        self.forget_device(name);
    }
}

impl Hold {
    /// Makes it of the lease, the vnics that were held, and those of `parts` that are devices or of
    /// the uplink.
    pub fn new(
        lease: Arc<Lease>,
        former: BTreeMap<String, Held>,
        parts: &mut BTreeMap<String, OwnedFd>,
    ) -> Hold {
        let all = std::mem::take(parts).into_iter();
        let (devices, others) = all.partition(|(name, _)| {
            [TAP, butterfly_uplink::xdp::PARTS, PACKETS, PORTS]
                .iter()
                .any(|kind| name.starts_with(kind))
        });
        *parts = others;
        Hold {
            notes: notes(&lease, parts.remove(RINGS), &former),
            lease,
            runs: AtomicBool::new(false),
            former: Mutex::new(former),
            devices: Mutex::new(devices),
        }
    }

    /// A TAP device, or another of its parts, that a dead process left.
    pub(crate) fn device(&self, name: &str) -> Option<OwnedFd> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    /// Has a TAP device kept.
    pub(crate) fn keep_device(&self, name: &str, device: BorrowedFd<'_>) {
        if let Err(error) = self.lease.deposit(name, device) {
            tracing::error!(name, %error, "a TAP device would not outlast this process");
        }
    }

    /// Has a device let go.
    pub(crate) fn forget_device(&self, name: &str) {
        if let Err(error) = self.lease.withdraw(name) {
            tracing::error!(name, %error, "the holder does not let go of a device");
        }
    }

    fn former(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a vnic that a dead process declared is served at this path.
    pub(crate) fn serves(&self, path: &Path) -> bool {
        self.former().values().any(|held| held.role == client::Role::Server && held.path == path)
    }

    /// From now on devices begin when they are opened: workers run.
    pub(crate) fn go(&self) {
        self.runs.store(true, Ordering::Release);
    }

    /// Opens a vnic's socket, or takes up what a dead process left of it. `birth` tells whether it
    /// is the same vnic. Before [`Hold::go`] whoever has the device begins it.
    pub(crate) fn open(
        &self,
        id: &str,
        birth: u64,
        config: DeviceConfig,
    ) -> Result<Device, AddError> {
        let mut device = self.made(id, birth, config)?;
        if self.runs.load(Ordering::Acquire) {
            device.begin().map_err(|error| {
                self.forget(id);
                failed(error)
            })?;
        }
        Ok(device)
    }

    fn made(&self, id: &str, birth: u64, mut config: DeviceConfig) -> Result<Device, AddError> {
        // Who connects to an uplink is a switch like this one: it may go without packed rings.
        config.notes = self.notes.clone().filter(|_| id != UPLINK);
        if let Some(held) = self.former().remove(id) {
            let role = side(config.role);
            if (held.birth, held.role, &held.path) == (birth, role, &config.path) {
                return Device::held(config, held.channel, held.former).map_err(failed);
            }
            self.lease.forget(id).map_err(silent)?;
            self.release_notes(&held);
        }
        let listener = match config.role {
            Role::Server => Some(listen(&config.path).map_err(failed)?),
            Role::Client => None,
        };
        let channel = self
            .lease
            .register(
                id,
                birth,
                side(config.role),
                &config.path,
                listener.as_ref().map(AsFd::as_fd),
            )
            .map_err(|error| {
                if listener.is_some() {
                    let _ = std::fs::remove_file(&config.path);
                }
                silent(error)
            })?;
        Device::held(config, channel, None).map_err(|error| {
            self.forget(id);
            failed(error)
        })
    }

    /// Checks that something could be given to the holder.
    pub(crate) fn may_keep(&self) -> Result<(), AddError> {
        match self.lease.holder_lives() {
            true => Ok(()),
            false => Err(silent("it is gone")),
        }
    }

    /// Has everything let go that is held for a vnic.
    pub(crate) fn forget(&self, id: &str) {
        if let Err(error) = self.lease.forget(id) {
            tracing::error!(nic = id, %error, "the holder does not let go of a vnic");
        }
    }

    /// Nobody takes up what was held for a vnic.
    fn release_notes(&self, held: &Held) {
        if let (Some(notes), Some(former)) = (&self.notes, &held.former)
            && let Some(block) = block_of(&former.state)
        {
            notes.release(block);
        }
    }

    /// Has everything let go that was held for vnics that nobody declared again. Returns their ids.
    pub(crate) fn let_go(&self) -> Vec<String> {
        // Rules of an external that is not in effect yet want their ports when it is.
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *devices).into_iter();
        let (ports, gone): (_, BTreeMap<_, _>) = all.partition(|(name, _)| name.starts_with(PORTS));
        *devices = ports;
        drop(devices);
        gone.keys().for_each(|name| self.forget_device(name));
        let gone = std::mem::take(&mut *self.former());
        for (id, held) in &gone {
            self.forget(id);
            self.release_notes(held);
        }
        gone.into_keys().collect()
    }
}

impl Outlasting for Hold {
    fn former(&self, beginning: &str) -> BTreeMap<String, OwnedFd> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *devices).into_iter();
        let (wanted, others) = all.partition(|(name, _)| name.starts_with(beginning));
        *devices = others;
        wanted
    }

    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> std::io::Result<()> {
        self.lease.deposit(name, file)
    }

    fn forget(&self, name: &str) {
        self.forget_device(name);
    }

    fn later(&self, files: Vec<(String, OwnedFd)>) -> Box<dyn FnOnce() + Send> {
        let lease = self.lease.clone();
        Box::new(move || {
            for (name, file) in files {
                if let Err(error) = lease.deposit(&name, file.as_fd()) {
                    tracing::error!(name, %error, "it would not outlast this process");
                }
            }
        })
    }
}

/// The table of notes about packed rings that a process left, or a new one.
///
/// Without it, packed rings that were in use rest until their drivers set them up anew, and others
/// are not offered.
fn notes(
    lease: &Lease,
    left: Option<OwnedFd>,
    former: &BTreeMap<String, Held>,
) -> Option<Arc<NoteTable>> {
    let states = former.values().filter_map(|held| held.former.as_ref());
    let blocks: Vec<u32> = states.filter_map(|former| block_of(&former.state)).collect();
    if let Some(left) = left {
        match NoteTable::of(left) {
            Ok(table) => {
                blocks.into_iter().for_each(|block| table.reserve(block));
                return Some(table);
            }
            Err(error) => tracing::error!(%error, "positions of packed rings are lost"),
        }
    }
    let made = NoteTable::create().and_then(|(file, table)| {
        lease.deposit(RINGS, file.as_fd())?;
        // States that name them do so until their front ends say something.
        blocks.into_iter().for_each(|block| table.withhold(block));
        Ok(table)
    });
    made.inspect_err(|error| tracing::error!(%error, "positions of packed rings cannot be kept"))
        .ok()
}

fn silent(error: impl Display) -> AddError {
    failed(format!(
        "the holder, which keeps the sockets of vnics, refuses: {error}; if it is gone, restart the daemon, which starts another one"
    ))
}
