//! What is on the other side of a vnic, and how it is opened.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use butterfly_guest::{Guest, Machine, Prepared, Vnic};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents, Role, may_listen},
    net::Features,
    port::Port,
};

use crate::{plane::AddError, switch::VnicSpec};

/// What is on the other side of a vnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Front {
    /// A virtual machine, by way of a vhost-user socket.
    Socket {
        /// Who owns the socket.
        role: Role,
        /// Where it is.
        path: PathBuf,
    },
    /// A guest of our own.
    Inside(Machine),
}

/// What a guest of our own has to know of the host.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    /// Largest IP packet of its network, in bytes.
    pub mtu: u32,
    /// The processor that is a worker's.
    pub worker: Option<usize>,
}

/// A vnic's other side before the vnic is there: what can be refused was made.
pub(crate) enum Ready {
    Socket { role: Role, path: PathBuf },
    Inside(Prepared),
}

/// A vnic's other side.
pub(crate) struct Opened {
    pub device: Device,
    pub guest: Option<Guest>,
}

fn failed(why: impl ToString) -> AddError {
    AddError::Device(why.to_string())
}

impl Front {
    /// Prepares it for a vnic.
    pub(crate) fn prepare(&self, spec: &VnicSpec, host: Host) -> Result<Ready, AddError> {
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
                machine.prepare(vnic).map(Ready::Inside).map_err(failed)
            }
        }
    }

    /// Whether it could be opened in place of another one, which is open: tries what may be
    /// refused, beside that one.
    pub(crate) fn may_replace(
        &self,
        old: &Front,
        spec: &VnicSpec,
        host: Host,
    ) -> Result<(), AddError> {
        match (self, old) {
            (Front::Socket { role: Role::Client, .. }, _) => Ok(()),
            // Its own socket is there for it.
            (Front::Socket { path, .. }, Front::Socket { path: old, role: Role::Server })
                if path == old =>
            {
                Ok(())
            }
            (Front::Socket { path, .. }, _) => may_listen(path).map_err(failed),
            (Front::Inside(machine), _) => {
                // What has the name now gives it up.
                let same = matches!(old, Front::Inside(old) if old.is_beside(machine));
                let id = if same { String::new() } else { spec.id.clone() };
                let vnic = Vnic {
                    id,
                    mac: spec.mac,
                    ip: first(&spec.policy.ips),
                    mtu: host.mtu,
                    worker: host.worker,
                };
                machine.prepare(vnic).map(drop).map_err(failed)
            }
        }
    }
}

/// The address of a vnic that its own guest uses.
pub(crate) fn first(ips: &[IpAddr]) -> Option<IpAddr> {
    ips.first().copied()
}

impl Ready {
    /// Opens it. A guest of our own is attached when this returns; `told` hears of what it
    /// measures.
    pub fn open(
        self,
        name: &str,
        port: Arc<Port>,
        offered: Features,
        events: Arc<dyn DeviceEvents>,
        told: butterfly_guest::Told,
    ) -> Result<Opened, AddError> {
        match self {
            Ready::Socket { role, path } => {
                let config =
                    DeviceConfig { name: name.to_owned(), role, path, port, offered, events };
                Ok(Opened { device: Device::start(config).map_err(failed)?, guest: None })
            }
            Ready::Inside(machine) => {
                let (device, connection, farewell) =
                    Device::start_inside(name, port, offered, events).map_err(failed)?;
                let guest = machine.attach(connection, farewell, told).map_err(failed)?;
                Ok(Opened { device, guest: Some(guest) })
            }
        }
    }
}

impl Opened {
    /// Detaches whoever is attached and closes it. Of a guest of our own nothing is left.
    pub fn close(self) {
        // The vnic ends, not its guest: that is the reason that is told.
        self.device.stop();
        if let Some(guest) = self.guest {
            guest.stop();
        }
    }
}
