//! Front of a vnic: the other side, and how it is opened.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use butterfly_guest::{Guest, Machine, Prepared, Vnic};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents, Role, may_listen},
    net::Features,
    port::Port,
};

use crate::plane::AddError;
use crate::switch::{
    declared::VnicSpec,
    held::{Hold, tap_of},
};

/// Other side of a vnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Front {
    /// A virtual machine, by way of a vhost-user socket.
    Socket {
        /// The side that owns the socket.
        role: Role,
        /// Path of the socket.
        path: PathBuf,
    },
    /// A guest that the daemon runs itself.
    Inside(Machine),
}

/// The host's properties for such a guest.
#[derive(Clone, Copy)]
pub(crate) struct HostFacts {
    /// Largest IP packet of its network, in bytes.
    pub mtu: u32,
    /// The processor of a worker.
    pub worker: Option<usize>,
}

/// A vnic's other side before the vnic is there: everything that can fail was done.
pub(crate) enum Ready {
    Socket { role: Role, path: PathBuf },
    Inside(Prepared),
}

/// A vnic's other side.
pub(crate) struct OpenedFront {
    pub device: Device,
    pub guest: Option<Guest>,
}

fn failed(why: impl ToString) -> AddError {
    AddError::Device(why.to_string())
}

impl Front {
    /// Prepares the other side of a vnic.
    pub(crate) fn prepare(
        &self,
        spec: &VnicSpec,
        host: HostFacts,
        hold: Option<&Hold>,
    ) -> Result<Ready, AddError> {
        match self {
            Front::Socket { role, path } => Ok(Ready::Socket { role: *role, path: path.clone() }),
            Front::Inside(machine) => {
                let vnic = Vnic {
                    id: spec.id.clone(),
                    mac: spec.mac,
                    ip: first(&spec.policy.ips),
                    mtu: host.mtu,
                    worker: host.worker,
                };
                let name = tap_of(&spec.id, spec.birth);
                let former = hold.and_then(|hold| hold.device(&name));
                let ready = machine.prepare(vnic, former).map_err(failed)?;
                if let (Some(hold), Some(device)) = (hold, ready.device()) {
                    hold.keep_device(&name, device);
                }
                Ok(Ready::Inside(ready))
            }
        }
    }

    /// Has the holder let go of it.
    pub(crate) fn forget(&self, id: &str, birth: u64, hold: &Hold) {
        match self {
            Front::Socket { .. } => hold.forget(id),
            Front::Inside(Machine::Tap { .. } | Machine::WireTap { .. }) => {
                hold.forget_device(&tap_of(id, birth))
            }
            Front::Inside(_) => {}
        }
    }

    /// Checks whether it could be opened in place of an open one. Tries everything that can fail,
    /// beside that one.
    pub(crate) fn may_replace(
        &self,
        old: &Front,
        spec: &VnicSpec,
        host: HostFacts,
    ) -> Result<(), AddError> {
        match (self, old) {
            (Front::Socket { role: Role::Client, .. }, _) => Ok(()),
            (Front::Socket { path, .. }, _) => may_serve(path, old.serves(path)),
            (Front::Inside(machine), _) => {
                // The old one gives up the name.
                let same = matches!(old, Front::Inside(old) if old.is_beside(machine));
                try_machine(machine, spec, host, !same)
            }
        }
    }

    /// Checks whether it could be opened for a vnic that is added. `taken`: another vnic of ours
    /// serves the socket's path, and may give it up before.
    ///
    /// The name of an interface is not tried, as it may belong to a vnic that goes before.
    pub(crate) fn may_open(
        &self,
        spec: &VnicSpec,
        host: HostFacts,
        taken: bool,
    ) -> Result<(), AddError> {
        match self {
            Front::Socket { role: Role::Client, .. } => Ok(()),
            Front::Socket { path, .. } => may_serve(path, taken),
            Front::Inside(machine) => try_machine(machine, spec, host, false),
        }
    }

    /// Returns whether its socket is served at this path.
    pub(crate) fn serves(&self, wanted: &Path) -> bool {
        matches!(self, Front::Socket { path, role: Role::Server } if path == wanted)
    }
}

/// Checks whether a socket could be served at a path. One of ours that is `taken` now is only
/// checked for its folder.
fn may_serve(path: &Path, taken: bool) -> Result<(), AddError> {
    if !taken {
        return may_listen(path).map_err(failed);
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(failed(format!("no socket can be made in {}: no such folder", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Makes a machine of our own and drops it, under the name of the vnic or any other.
fn try_machine(
    machine: &Machine,
    spec: &VnicSpec,
    host: HostFacts,
    named: bool,
) -> Result<(), AddError> {
    let vnic = Vnic {
        id: if named { spec.id.clone() } else { String::new() },
        mac: spec.mac,
        ip: first(&spec.policy.ips),
        mtu: host.mtu,
        worker: host.worker,
    };
    machine.prepare(vnic, None).map(drop).map_err(failed)
}

/// Returns the address of a vnic that the daemon's own guest uses.
pub(crate) fn first(ips: &[IpAddr]) -> Option<IpAddr> {
    ips.first().copied()
}

impl Ready {
    /// Opens it. The daemon's own guest is attached when this returns; `told` gets its
    /// measurements.
    pub fn open(
        self,
        spec: &VnicSpec,
        port: Arc<Port>,
        offered: Features,
        events: Arc<dyn DeviceEvents>,
        told: butterfly_guest::Told,
        hold: Option<&Hold>,
    ) -> Result<OpenedFront, AddError> {
        let name = &*spec.id;
        match self {
            Ready::Socket { role, path } => {
                let config = DeviceConfig {
                    name: name.to_owned(),
                    role,
                    path,
                    port,
                    offered,
                    events,
                    notes: None,
                };
                let device = match hold {
                    Some(hold) => hold.open(name, spec.birth, config)?,
                    None => Device::start(config).map_err(failed)?,
                };
                Ok(OpenedFront { device, guest: None })
            }
            Ready::Inside(machine) => {
                let (device, connection, farewell) =
                    Device::start_inside(name, port, offered, events).map_err(failed)?;
                let guest = machine.attach(connection, farewell, told).map_err(failed)?;
                Ok(OpenedFront { device, guest: Some(guest) })
            }
        }
    }
}

impl OpenedFront {
    /// Detaches the guest and closes it. Removes all of the daemon's own guest.
    pub fn close(self) {
        // The event names the end of the vnic as the reason, not that of its guest.
        self.device.stop();
        if let Some(guest) = self.guest {
            guest.stop();
        }
    }
}
