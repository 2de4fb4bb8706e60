//! The tunnel endpoint while it runs: its keeper, and the device of a vhost-user uplink.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use butterfly_uplink::{
    Counters, Info, Meter, tap,
    xdp::{self, Ending},
};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents},
    net::Features,
    port::PortEvents,
};

use crate::endpoint::{
    keeper::Keeper,
    link::LinkState,
    open::{FormerUplink, OpenedUplink, TunnelSpec, UplinkSpec, check_peer},
};
use crate::engine::{
    events::{About, Happening, SwitchEvents},
    place::uplink_ring,
};
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
    former: Mutex<FormerEvents>,
    /// Fate of a former process's uplink on an interface, if there was one.
    pub(crate) former_uplink: Option<FormerUplink>,
    ending: Option<Ending>,
    /// Why the uplink could not be opened, if it could not.
    pub(crate) missing: Option<String>,
    /// True if a successor has to open the interface anew.
    pub(crate) opened_anew: bool,
}

/// Counts of the port, and of frames for the endpoint itself, of former processes.
#[derive(Default)]
struct FormerEvents {
    port: BTreeMap<&'static str, u64>,
    control: BTreeMap<&'static str, u64>,
}

/// Name, meaning and value of a counter.
type CountRow = (&'static str, &'static str, u64);

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
    fn tx_started(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        self.attachment.tx_started(pair, kick);
    }

    fn tx_stopped(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        self.attachment.tx_stopped(pair, kick);
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
    pub former: Option<FormerUplink>,
    pub ending: Option<Ending>,
    pub missing: Option<String>,
    pub opened_anew: bool,
}

impl OpenedUplink {
    /// Splits off the part that the plane takes.
    pub fn split(self) -> (Tunnel, Rest) {
        let OpenedUplink {
            tunnel,
            control,
            host,
            wire,
            ring,
            former,
            ending,
            missing,
            opened_anew,
        } = self;
        (tunnel, Rest { control, host, wire, ring, former, ending, missing, opened_anew })
    }
}

impl EndpointSide {
    /// Starts the keeper, and lets workers look at the uplink. `start` starts the device of a
    /// vhost-user uplink.
    pub fn start(
        plane: &Arc<Plane>,
        spec: TunnelSpec,
        rest: Rest,
        events: Arc<dyn SwitchEvents>,
        start: impl FnOnce(DeviceConfig) -> Result<Device, String>,
    ) -> Result<EndpointSide, std::io::Error> {
        let Rest { control, host, wire, ring, former, ending, missing, opened_anew } = rest;
        let answers = control.answers;
        let keeper = Arc::new(Keeper::new(plane.clone(), control, host, events.clone()));
        for peer in &spec.peers {
            check_peer(*peer, spec.endpoint).map_err(std::io::Error::other)?;
        }
        plane.set_peers(spec.peers.clone(), BTreeMap::new()).map_err(|refused| {
            std::io::Error::other(format!("too many peers: no room for {refused:?}"))
        })?;
        let attached = Arc::new(AtomicBool::new(false));
        let device = match (ring, &spec.uplink) {
            (Some(port), UplinkSpec::VhostUser { path, role }) => {
                let tunnel = plane.shared.tunnel.as_ref();
                let serving = tunnel.and_then(|tunnel| tunnel.serving.first()).cloned();
                let serving = serving.ok_or_else(|| std::io::Error::other("no tunnel"))?;
                let link = Link {
                    attachment: Attachment::Uplink { board: plane.board.clone(), serving },
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
                    // One pair is served, and what leaves is UDP, each packet by itself.
                    offered: Features::OFFERED.without(Features::MQ.with(Features::USO)),
                    events: Arc::new(link),
                    notes: None,
                };
                Some(start(config).map_err(std::io::Error::other)?)
            }
            _ => {
                if let Some(tunnel) = &plane.shared.tunnel {
                    let queues = tunnel.port.descriptors()?.into_iter().map(Arc::new);
                    for ((queue, serving), readable) in (0..).zip(&tunnel.serving).zip(queues) {
                        plane.board.started(uplink_ring(queue), serving, Some(&readable));
                    }
                }
                None
            }
        };
        let running = keeper.clone();
        let thread =
            std::thread::Builder::new().name("keeper".into()).spawn(move || running.run())?;
        Ok(EndpointSide {
            keeper,
            thread: Some(thread),
            spec,
            answers,
            wire,
            device,
            attached,
            former: Mutex::default(),
            former_uplink: former,
            ending,
            missing,
            opened_anew,
        })
    }

    /// Returns the description of the uplink.
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
            (None, UplinkSpec::Xdp { interface, .. }) => Some(self.not_open(xdp::KIND, interface)),
            (None, UplinkSpec::Tap { name }) => {
                Some(self.not_open(tap::KIND, name.as_deref().unwrap_or_default()))
            }
        }
    }

    fn not_open(&self, kind: &str, interface: &str) -> PortInfo {
        PortInfo {
            kind: kind.to_owned(),
            interface: interface.to_owned(),
            mode: "not open".to_owned(),
            note: self.missing.clone(),
            queues: 0,
        }
    }

    /// Returns the state of the uplink's interface, if it has one.
    pub(crate) fn link(&self) -> Option<LinkState> {
        match self.missing {
            Some(_) => Some(LinkState::NotOpen),
            None => self.keeper.link(),
        }
    }

    /// Returns the counters of the port and the kernel.
    pub(crate) fn counted(&self) -> Vec<CountRow> {
        with(self.port_counts(), &self.former().port)
    }

    /// Returns the counters of frames for the endpoint itself.
    pub(crate) fn control_counts(&self) -> Vec<CountRow> {
        with(self.keeper.counts(), &self.former().control)
    }

    /// Adds what former processes counted. A port that went on counting by itself is not counted
    /// twice. Returns the names that no counter has.
    pub(crate) fn add_former(
        &self,
        port: &BTreeMap<Cow<'static, str>, u64>,
        control: &BTreeMap<Cow<'static, str>, u64>,
    ) -> Vec<String> {
        let mut former = self.former();
        let mut unknown = Vec::new();
        let now = [self.port_counts(), self.keeper.counts()];
        let FormerEvents { port: to_port, control: to_control } = &mut *former;
        for ((now, told), into) in now.iter().zip([port, control]).zip([to_port, to_control]) {
            for (name, count) in told {
                match now.iter().find(|(known, ..)| known == name) {
                    Some((known, _, now)) => {
                        into.insert(known, count.saturating_sub(*now));
                    }
                    None => unknown.push(name.to_string()),
                }
            }
        }
        unknown
    }

    fn port_counts(&self) -> Vec<CountRow> {
        let counters = match (&self.wire, &self.missing) {
            (Some((_, meter)), _) => meter.read(),
            // What former processes counted goes on.
            (None, Some(_)) => Counters::default(),
            (None, None) => return Vec::new(),
        };
        counters.named().collect()
    }

    fn former(&self) -> MutexGuard<'_, FormerEvents> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves all groups, ends the keeper, and lets go of the interface. Workers must still run.
    pub fn stop(&mut self) {
        self.keeper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(device) = self.device.take() {
            device.stop();
        }
        if let Some(ending) = self.ending.take() {
            ending.end();
        }
    }
}

/// Returns counts with those of former processes added.
fn with(mut counts: Vec<CountRow>, former: &BTreeMap<&'static str, u64>) -> Vec<CountRow> {
    for (name, _, count) in &mut counts {
        *count = count.wrapping_add(former.get(name).copied().unwrap_or(0));
    }
    counts
}
