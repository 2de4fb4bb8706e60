//! The tunnel endpoint while it runs: its keeper, and the device of a vhost-user uplink.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use butterfly_uplink::{Info, Meter};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents},
    net::Features,
    port::PortEvents,
};

use crate::endpoint::{
    keeper::Keeper,
    open::{OpenedUplink, TunnelSpec, UplinkSpec, check_peer},
};
use crate::engine::events::{About, Happening, SwitchEvents};
use crate::engine::place::PollSource;
use crate::overlay::Tunnel;
use crate::plane::{Plane, attachment::Attachment};

/// A switch's handle of its tunnel endpoint.
pub(crate) struct EndpointSide {
    pub(crate) keeper: Arc<Keeper>,
    thread: Option<JoinHandle<()>>,
    pub spec: TunnelSpec,
    pub answers: bool,
    pub(crate) wire: Option<(Info, Meter)>,
    pub device: Option<Device>,
    /// True if the other end of a vhost-user uplink is there.
    pub(crate) attached: Arc<AtomicBool>,
}

/// Description of an uplink.
pub(crate) struct PortInfo {
    pub kind: String,
    pub interface: String,
    pub mode: String,
    pub note: Option<String>,
    pub queues: u32,
}

/// The link of a vhost-user uplink's control thread to the worker.
struct Link {
    attachment: Attachment,
    path: String,
    attached: Arc<AtomicBool>,
    keeper: Arc<Keeper>,
    events: Arc<dyn SwitchEvents>,
}

impl PortEvents for Link {
    fn tx_started(&self, kick: Option<std::os::fd::BorrowedFd<'_>>) {
        self.attachment.tx_started(kick);
    }

    fn tx_stopped(&self, kick: Option<std::os::fd::BorrowedFd<'_>>) {
        self.attachment.tx_stopped(kick);
    }
}

impl DeviceEvents for Link {
    fn attached(&self) {
        self.attached.store(true, Ordering::Relaxed);
        const TEXT: &str = "the uplink is attached";
        tracing::info!(path = self.path, "{TEXT}");
        self.events.happened(About::default(), Happening::UplinkUp(TEXT));
    }

    fn detached(&self, reason: &str) {
        self.attached.store(false, Ordering::Relaxed);
        tracing::warn!(path = self.path, reason, "the uplink is detached");
        self.events.happened(
            About::default(),
            Happening::UplinkDown(&format!("the uplink is detached: {reason}")),
        );
    }

    fn driving(&self, both: bool) {
        // Not before both queues run: frames for a device that only attached are lost.
        if both {
            self.keeper.returned();
        }
    }
}

/// The uplink without what the plane has taken.
pub(crate) struct Rest {
    pub control: crate::endpoint::control::ControlConfig,
    pub host: Option<crate::endpoint::keeper::HostSide>,
    pub wire: Option<(Info, Meter)>,
    pub ring: Option<Arc<butterfly_vhost::port::Port>>,
}

impl OpenedUplink {
    /// Splits off the part that the plane takes.
    pub fn split(self) -> (Tunnel, Rest) {
        let OpenedUplink { tunnel, control, host, wire, ring } = self;
        (tunnel, Rest { control, host, wire, ring })
    }
}

impl EndpointSide {
    /// Starts the keeper, and lets the worker look at the uplink.
    pub fn start(
        plane: &Arc<Plane>,
        spec: TunnelSpec,
        rest: Rest,
        ageing: u32,
        events: Arc<dyn SwitchEvents>,
    ) -> Result<EndpointSide, std::io::Error> {
        let Rest { control, host, wire, ring } = rest;
        let answers = control.answers;
        let keeper = Arc::new(Keeper::new(plane.clone(), control, host, ageing, events.clone()));
        for peer in &spec.peers {
            check_peer(*peer, spec.endpoint).map_err(std::io::Error::other)?;
        }
        plane.set_peers(spec.peers.clone(), BTreeMap::new()).map_err(|refused| {
            std::io::Error::other(format!("too many peers: no room for {refused:?}"))
        })?;
        let attached = Arc::new(AtomicBool::new(false));
        let device = match (ring, &spec.uplink) {
            (Some(port), UplinkSpec::VhostUser { path, role }) => {
                let handle = plane
                    .workers
                    .first()
                    .cloned()
                    .ok_or_else(|| std::io::Error::other("no worker"))?;
                let link = Link {
                    attachment: Attachment::uplink(handle),
                    path: path.display().to_string(),
                    attached: attached.clone(),
                    keeper: keeper.clone(),
                    events,
                };
                let config = DeviceConfig {
                    name: "uplink".to_owned(),
                    role: *role,
                    path: path.clone(),
                    port,
                    offered: Features::OFFERED,
                    events: Arc::new(link),
                };
                Some(Device::start(config).map_err(std::io::Error::other)?)
            }
            _ => {
                if let (Some(handle), Some(tunnel)) = (plane.workers.first(), &plane.shared.tunnel)
                {
                    tunnel.port.with_descriptor(|descriptor| {
                        handle.started(PollSource::Uplink, Some(descriptor))
                    });
                }
                None
            }
        };
        let running = keeper.clone();
        let thread =
            std::thread::Builder::new().name("keeper".into()).spawn(move || running.run())?;
        Ok(EndpointSide { keeper, thread: Some(thread), spec, answers, wire, device, attached })
    }

    /// Returns the description of the uplink; `None` if it leads nowhere.
    pub(crate) fn port(&self) -> Option<PortInfo> {
        match (&self.wire, &self.spec.uplink) {
            (Some((info, _)), _) => Some(PortInfo {
                kind: info.kind.to_owned(),
                interface: info.interface.clone(),
                mode: info.mode.to_owned(),
                note: info.note.clone(),
                queues: info.queues,
            }),
            (None, UplinkSpec::VhostUser { path, .. }) => Some(PortInfo {
                kind: "vhost-user".to_owned(),
                interface: path.display().to_string(),
                mode: "shared memory".to_owned(),
                note: None,
                queues: 1,
            }),
            (None, _) => None,
        }
    }

    /// Returns name, meaning and value of the counters of the port and the kernel.
    pub(crate) fn counted(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.wire.as_ref().map(|(_, meter)| meter.read().named().collect()).unwrap_or_default()
    }

    /// Leaves all groups, and ends the keeper. Workers must still run.
    pub fn stop(&mut self) {
        self.keeper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(device) = self.device.take() {
            device.stop();
        }
    }
}
