//! The tunnel endpoint and its uplink, for the operator.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use butterfly_packet::mac::Mac;
use butterfly_uplink::{Info, Meter};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents},
    net::Features,
    port::PortEvents,
};

use super::{
    PeerRef, Tunnel, TunnelSpec, UPLINK, UplinkSpec,
    endpoint::{Opened, Peers, TunnelError, check_peer},
    keeper::{GroupRow, Keeper, NeighbourRow},
    link::LinkState,
    peers::PeerRow,
};
use crate::{
    counters::{Counter, Totals},
    drops::reasons,
    events::{About, Happening, SwitchEvents},
    mac::address,
    observe::pair,
    plane::{Attachment, Plane},
    reason::ReasonInfo,
    switch::Switch,
};

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Its tunnel endpoint.
    pub address: IpAddr,
    /// Link address of the next hop, if it is known.
    pub mac: Option<Mac>,
    /// The operator named it.
    pub named: bool,
    /// Networks that it was named for; if there are none, and it was named, for all.
    pub vnis: Vec<u32>,
    /// Seconds since something came from it.
    pub idle: Option<u32>,
    /// Frames and bytes from it, without outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent to it, without outer headers.
    pub sent: (u64, u64),
    /// Frames for it that were dropped on their way out.
    pub drops: u64,
}

/// An address that was learnt on another host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteMac {
    /// Network.
    pub vni: u32,
    /// Address.
    pub mac: Mac,
    /// The host.
    pub peer: IpAddr,
    /// Seconds since it was last seen.
    pub idle: u32,
}

/// What a network has to do with other hosts.
#[derive(Clone, Debug)]
pub struct NetworkReport {
    /// Network.
    pub vni: u32,
    /// Frames and bytes from other hosts.
    pub received: (u64, u64),
    /// Frames and bytes to other hosts.
    pub sent: (u64, u64),
    /// Every reason there is, with its count: drops that are no vnic's.
    pub drops: Vec<(ReasonInfo, u64)>,
}

/// The tunnel endpoint.
#[derive(Clone, Debug)]
pub struct TunnelReport {
    /// Its address.
    pub endpoint: IpAddr,
    /// Its link address.
    pub mac: Mac,
    /// ARP, ND and pings are answered by us, not by the host.
    pub answers: bool,
    /// Only peers that were named are heard.
    pub strict_peers: bool,
    /// Largest IP packet of a virtual machine that fits, in bytes: `host_mtu` for QEMU.
    pub inner_mtu: u32,
    /// Groups that are joined.
    pub groups: Vec<GroupRow>,
    /// Other hosts.
    pub peers: Vec<PeerReport>,
    /// Addresses behind them.
    pub learnt: Vec<RemoteMac>,
    /// Next hops that we look for ourselves.
    pub neighbours: Vec<NeighbourRow>,
    /// Networks.
    pub networks: Vec<NetworkReport>,
    /// What became of frames for the endpoint itself: name, meaning, number.
    pub control: Vec<(&'static str, &'static str, u64)>,
}

/// The uplink.
#[derive(Clone, Debug)]
pub struct UplinkReport {
    /// `af_xdp`, `tap` or `vhost-user`.
    pub kind: String,
    /// The network interface, or the socket.
    pub interface: String,
    /// How frames move.
    pub mode: String,
    /// Why they do not move in a better way, if that is known.
    pub note: Option<String>,
    /// Receive queues.
    pub queues: u32,
    /// Our link address on it.
    pub mac: Mac,
    /// Largest IP packet on it, in bytes.
    pub mtu: u32,
    /// Largest IP packet of a virtual machine that fits, in bytes.
    pub inner_mtu: u32,
    /// What it computes for us.
    pub offloads: Vec<String>,
    /// Frames and bytes received, with outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent, with outer headers as far as they are the endpoint's own, without
    /// where they are of networks.
    pub sent: (u64, u64),
    /// Every reason there is, with its count: drops that are no network's.
    pub drops: Vec<(ReasonInfo, u64)>,
    /// What the port and the kernel counted: name, meaning, number.
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// Whether the other end of a vhost-user port is there.
    pub attached: Option<bool>,
    /// What its network interface was found to be a second ago, if it has one.
    pub state: Option<LinkState>,
    /// The VLAN of all frames on it; 0: none.
    pub vlan: u16,
    /// Why frames of other VLANs may pass for the underlay's, if they may.
    pub vlan_doubt: Option<String>,
}

/// What a switch has of its tunnel endpoint.
pub(crate) struct Side {
    pub(super) keeper: Arc<Keeper>,
    thread: Option<JoinHandle<()>>,
    spec: TunnelSpec,
    answers: bool,
    pub(super) wire: Option<(Info, Meter)>,
    device: Option<Device>,
    /// The other end of a vhost-user uplink is there.
    pub(super) attached: Arc<AtomicBool>,
}

/// What an uplink is.
pub(super) struct PortInfo {
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
        // Not before: what is said to one that only attached is lost.
        if both {
            self.keeper.returned();
        }
    }
}

/// The uplink without what the plane has taken.
pub(crate) struct Rest {
    pub control: super::control::ControlConfig,
    pub host: Option<super::keeper::HostSide>,
    pub wire: Option<(Info, Meter)>,
    pub ring: Option<Arc<butterfly_vhost::port::Port>>,
}

impl Opened {
    /// What the plane takes, and the rest.
    pub fn split(self) -> (Tunnel, Rest) {
        let Opened { tunnel, control, host, wire, ring } = self;
        (tunnel, Rest { control, host, wire, ring })
    }
}

impl Side {
    /// Starts the keeper, and lets the worker look at the uplink.
    pub fn start(
        plane: &Arc<Plane>,
        spec: TunnelSpec,
        rest: Rest,
        ageing: u32,
        events: Arc<dyn SwitchEvents>,
    ) -> Result<Side, std::io::Error> {
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
                    tunnel
                        .port
                        .with_descriptor(|descriptor| handle.started(UPLINK, Some(descriptor)));
                }
                None
            }
        };
        let running = keeper.clone();
        let thread =
            std::thread::Builder::new().name("keeper".into()).spawn(move || running.run())?;
        Ok(Side { keeper, thread: Some(thread), spec, answers, wire, device, attached })
    }

    /// What the uplink is; `None` if it is nothing that leads out.
    pub(super) fn port(&self) -> Option<PortInfo> {
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

    /// What the port and the kernel counted: name, meaning, number.
    pub(super) fn counted(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.wire.as_ref().map(|(_, meter)| meter.read().named().collect()).unwrap_or_default()
    }

    /// Says good-bye to groups, and ends the keeper. Workers must still run.
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

fn drops(totals: &Totals) -> Vec<(ReasonInfo, u64)> {
    reasons().map(|info| (info, totals.drops(info.reason))).collect()
}

/// What `learn-refused` means.
const LEARN_REFUSED: &str =
    "frames whose sender was not learnt: too many addresses in its network, or too many hosts";

impl Switch {
    pub(super) fn side(&self) -> Option<(&Side, &Tunnel)> {
        Some((self.side.as_ref()?, self.plane().shared.tunnel.as_ref()?))
    }

    /// Frames and bytes sent by networks, those that are gone included, and by the endpoint itself.
    pub(super) fn sent(&self, own: &Totals) -> (u64, u64) {
        let plane = self.plane();
        let mut sent = plane.gone.totals(&plane.shared.snapshot).trunks;
        sent.merge(own);
        pair(&sent, Counter::OutPackets, Counter::OutBytes)
    }

    /// The tunnel endpoint; `None` if networks end at this host.
    pub fn tunnel(&self) -> Option<TunnelReport> {
        let (side, tunnel) = self.side()?;
        let shared = &self.plane().shared;
        let snapshot = shared.snapshot.load();
        let now = shared.clock.now();
        let named = self.peers();
        let rows = tunnel.peers.list(now);
        let known: BTreeMap<PeerRef, IpAddr> =
            rows.iter().map(|row| (row.at, row.address)).collect();
        let peer = |row: &PeerRow| PeerReport {
            address: row.address,
            mac: row.mac,
            named: row.configured,
            vnis: match named.all.contains(&row.address) {
                true => Vec::new(),
                false => named
                    .of
                    .iter()
                    .filter(|(_, of)| of.contains(&row.address))
                    .map(|(vni, _)| *vni)
                    .collect(),
            },
            idle: row.idle,
            received: row.received(),
            sent: (row.sent(), row.sent_bytes()),
            drops: row.drops(),
        };
        let mut learnt: Vec<RemoteMac> = shared
            .fdb
            .list(now)
            .into_iter()
            .filter_map(|entry| {
                let trunk = snapshot.vnics.get(entry.place.slot).filter(|vnic| vnic.trunk)?;
                let peer = *known.get(&PeerRef(entry.place.incarnation))?;
                Some(RemoteMac { vni: trunk.vni, mac: address(entry.mac), peer, idle: entry.idle })
            })
            .collect();
        learnt.sort();
        let mut networks: Vec<NetworkReport> = snapshot
            .vnics
            .iter()
            .filter(|(_, vnic)| vnic.trunk)
            .map(|(_, trunk)| {
                let totals = trunk.shared.counters.totals();
                NetworkReport {
                    vni: trunk.vni,
                    received: pair(&totals, Counter::InPackets, Counter::InBytes),
                    sent: pair(&totals, Counter::OutPackets, Counter::OutBytes),
                    drops: drops(&totals),
                }
            })
            .collect();
        networks.sort_by_key(|network| network.vni);
        let trunks = snapshot.vnics.iter().filter(|(_, vnic)| vnic.trunk);
        let refused = trunks
            .map(|(_, trunk)| trunk.shared.counters.totals().get(Counter::LearnRefused))
            .sum();
        let mut groups = side.keeper.groups();
        groups.sort();
        Some(TunnelReport {
            endpoint: tunnel.source.ip,
            mac: tunnel.source.mac,
            answers: side.answers,
            strict_peers: side.spec.strict_peers,
            inner_mtu: tunnel.inner_mtu(),
            groups,
            peers: rows.iter().map(peer).collect(),
            learnt,
            neighbours: side.keeper.neighbours(),
            networks,
            control: side
                .keeper
                .counts()
                .into_iter()
                .chain([("learn-refused", LEARN_REFUSED, refused)])
                .collect(),
        })
    }

    /// Largest IP packet of a virtual machine that reaches other hosts, in bytes; `None` if there
    /// is no uplink.
    pub fn inner_mtu(&self) -> Option<u32> {
        self.side().map(|(_, tunnel)| tunnel.inner_mtu())
    }

    /// The uplink; `None` if there is none.
    pub fn uplink(&self) -> Option<UplinkReport> {
        let (side, tunnel) = self.side()?;
        let totals = tunnel.totals();
        let PortInfo { kind, interface, mode, note, queues } = side.port()?;
        Some(UplinkReport {
            kind,
            interface,
            mode,
            note,
            queues,
            mac: tunnel.source.mac,
            mtu: tunnel.mtu.load(Ordering::Relaxed),
            inner_mtu: tunnel.inner_mtu(),
            offloads: Vec::new(),
            received: pair(&totals, Counter::InPackets, Counter::InBytes),
            sent: self.sent(&totals),
            drops: drops(&totals),
            counters: side.counted(),
            attached: side.device.as_ref().map(|device| device.status().attached.is_some()),
            state: side.keeper.link(),
            vlan: tunnel.vlan,
            vlan_doubt: side.wire.as_ref().and_then(|(info, _)| info.tags.clone()),
        })
    }

    /// The peers that were named.
    pub fn peers(&self) -> Peers {
        let (all, of) = self.plane().peers();
        Peers { all, of }
    }

    /// Names a peer for all networks, or for one. Returns whether that is new.
    pub fn add_peer(&self, peer: IpAddr, vni: Option<u32>) -> Result<bool, TunnelError> {
        let (_, tunnel) = self.side().ok_or(TunnelError::NoUplink)?;
        check_peer(peer, tunnel.source.ip)?;
        self.change_peers(vni, |list| {
            let new = !list.contains(&peer);
            if new {
                list.push(peer);
            }
            new
        })
    }

    /// Takes that back. Returns whether it was named.
    pub fn remove_peer(&self, peer: IpAddr, vni: Option<u32>) -> Result<bool, TunnelError> {
        self.side().ok_or(TunnelError::NoUplink)?;
        self.change_peers(vni, |list| {
            let before = list.len();
            list.retain(|other| *other != peer);
            list.len() != before
        })
    }

    fn change_peers(
        &self,
        vni: Option<u32>,
        change: impl FnOnce(&mut Vec<IpAddr>) -> bool,
    ) -> Result<bool, TunnelError> {
        if let Some(vni) = vni.filter(|vni| *vni > 0xff_ffff) {
            return Err(TunnelError::BadVni(vni));
        }
        // One change at a time: what is changed was read a moment ago.
        let _held = self.changing_peers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peers = self.peers();
        let changed = match vni {
            None => change(&mut peers.all),
            Some(vni) => change(peers.of.entry(vni).or_default()),
        };
        peers.of.retain(|_, list| !list.is_empty());
        if changed {
            peers.check()?;
            let Peers { all, of } = peers;
            let refused = self.plane().set_peers(all, of);
            refused.map_err(|refused| {
                refused.first().copied().map_or(TunnelError::NoUplink, TunnelError::Full)
            })?;
        }
        Ok(changed)
    }
}
