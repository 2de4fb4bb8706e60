//! The tunnel endpoint and its uplink, for the operator.

use std::{collections::BTreeMap, net::IpAddr, sync::atomic::Ordering};

use butterfly_packet::mac::Mac;

use crate::endpoint::side::{EndpointSide, PortInfo};
use crate::endpoint::{
    keeper::rows::{GroupRow, NeighbourRow},
    link::LinkState,
    open::Peers,
    silence::{Refusal, Told},
};
use crate::engine::place::PeerRef;
use crate::engine::{
    counters::{Counter, Totals},
    mac::address,
    reason::ReasonInfo,
};
use crate::overlay::peers::PeerRow;
use crate::plane::Plane;
use crate::report::counts::pair;
use crate::stages::reasons::reasons;
use crate::worker::Shared;
use crate::world::snapshot::Snapshot;

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Its tunnel endpoint.
    pub address: IpAddr,
    /// Link address of the next hop, if it is known.
    pub mac: Option<Mac>,
    /// True if the operator named it, by itself, or as a host of neighbours or one that leads out.
    pub named: bool,
    /// Networks that it was named for. Empty for a peer that was named for all, or for none.
    pub vnis: Vec<u32>,
    /// True if it was named as a host of neighbours, or as one that leads out, alone.
    pub of_neighbours: bool,
    /// Seconds since the last frame from it.
    pub idle: Option<u32>,
    /// Frames and bytes from it, without outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent to it, without outer headers.
    pub sent: (u64, u64),
    /// Frames for it that were dropped on their way out.
    pub drops: u64,
    /// Seconds since the first frame to it without an answer, and the number of such frames.
    pub unanswered: Option<(u32, u64)>,
    /// Reason for which frames to it arrive nowhere, and the seconds since it was first reported.
    pub refusal: Option<(Refusal, u32)>,
}

/// An address that was learnt behind another host.
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

/// Traffic of a network with other hosts.
#[derive(Clone, Debug)]
pub struct NetworkReport {
    /// Network.
    pub vni: u32,
    /// Frames and bytes from other hosts.
    pub received: (u64, u64),
    /// Frames and bytes to other hosts.
    pub sent: (u64, u64),
    /// Count of every reason: drops that are no vnic's.
    pub drops: Vec<(ReasonInfo, u64)>,
}

/// The tunnel endpoint.
#[derive(Clone, Debug)]
pub struct TunnelReport {
    /// Its address.
    pub endpoint: IpAddr,
    /// Its link address.
    pub mac: Mac,
    /// True if the switch answers ARP, ND and pings, not the host.
    pub answers: bool,
    /// True if only named peers are heard.
    pub strict_peers: bool,
    /// Largest IP packet of a virtual machine that fits, in bytes: `host_mtu` for QEMU.
    pub inner_mtu: u32,
    /// Groups that are joined.
    pub groups: Vec<GroupRow>,
    /// Other hosts.
    pub peers: Vec<PeerReport>,
    /// Addresses behind them.
    pub learnt: Vec<RemoteMac>,
    /// Next hops that the switch looks for itself.
    pub neighbours: Vec<NeighbourRow>,
    /// Networks.
    pub networks: Vec<NetworkReport>,
    /// Counters of frames for the endpoint itself: name, meaning, value.
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
    /// Reason for not using a better mode, if known.
    pub note: Option<String>,
    /// Receive queues.
    pub queues: u32,
    /// The switch's link address on it.
    pub mac: Mac,
    /// Largest IP packet on it, in bytes.
    pub mtu: u32,
    /// Largest IP packet of a virtual machine that fits, in bytes.
    pub inner_mtu: u32,
    /// Offloads that it does for the switch.
    pub offloads: Vec<String>,
    /// Frames and bytes received, with outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent: with outer headers for the endpoint's own frames, without for frames
    /// of networks.
    pub sent: (u64, u64),
    /// Count of every reason: drops that are no network's.
    pub drops: Vec<(ReasonInfo, u64)>,
    /// Counters of the port and the kernel: name, meaning, value.
    pub counters: Vec<(&'static str, &'static str, u64)>,
    /// True if the other end of a vhost-user port is there.
    pub attached: Option<bool>,
    /// State of its network interface a second ago, if it has one.
    pub state: Option<LinkState>,
    /// The VLAN of all frames on it; 0: none.
    pub vlan: u16,
    /// Reason for which frames of other VLANs may count as the underlay's, if they may.
    pub vlan_doubt: Option<String>,
}

fn drops(totals: &Totals) -> Vec<(ReasonInfo, u64)> {
    reasons().map(|info| (info, totals.drops(info.reason))).collect()
}

/// Meaning of `learn-refused`.
const LEARN_REFUSED: &str =
    "frames whose sender was not learnt: too many addresses in its network, or too many hosts";

/// Returns frames and bytes sent by networks, including those that are gone, and by the endpoint
/// itself.
pub(crate) fn sent(plane: &Plane, own: &Totals) -> (u64, u64) {
    let mut sent = plane.gone.totals(&plane.shared.snapshot).trunks;
    sent.merge(own);
    pair(&sent, Counter::OutPackets, Counter::OutBytes)
}

/// Returns the tunnel endpoint; `None` if networks end at this host.
pub(crate) fn tunnel(plane: &Plane, side: &EndpointSide) -> Option<TunnelReport> {
    let shared = &plane.shared;
    let tunnel = shared.tunnel.as_ref()?;
    let snapshot = shared.snapshot.load();
    let now = shared.clock.now();
    let (all, of) = plane.peers();
    let named = Peers { all, of };
    let rows = tunnel.peers.list(now);
    let peer = |row: &PeerRow| peer(row, side.keeper.silence(row.at, now), &named);
    let trunks = snapshot.vnics.iter().filter(|(_, vnic)| vnic.is_trunk());
    let refused =
        trunks.map(|(_, trunk)| trunk.shared.counters.totals().get(Counter::LearnRefused)).sum();
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
        learnt: learnt(shared, &snapshot, &rows),
        neighbours: side.keeper.neighbours(),
        networks: networks(&snapshot),
        control: side
            .control_counts()
            .into_iter()
            .chain([("learn-refused", LEARN_REFUSED, refused)])
            .collect(),
    })
}

/// Returns another host, with the networks that it is named for.
fn peer(row: &PeerRow, told: Told, named: &Peers) -> PeerReport {
    let for_all = named.all.contains(&row.address);
    let of = named.of.iter().filter(|(_, of)| !for_all && of.contains(&row.address));
    let vnis: Vec<u32> = of.map(|(vni, _)| *vni).collect();
    PeerReport {
        unanswered: told.unanswered,
        refusal: told.refusal,
        address: row.address,
        mac: row.mac,
        named: row.configured,
        of_neighbours: row.configured && !for_all && vnis.is_empty(),
        vnis,
        idle: row.idle,
        received: row.received(),
        sent: (row.sent(), row.sent_bytes()),
        drops: row.drops(),
    }
}

/// Returns the addresses that were learnt from other hosts, sorted.
fn learnt(shared: &Shared, snapshot: &Snapshot, rows: &[PeerRow]) -> Vec<RemoteMac> {
    let known: BTreeMap<PeerRef, IpAddr> = rows.iter().map(|row| (row.at, row.address)).collect();
    let mut learnt: Vec<RemoteMac> = shared
        .fdb
        .list(shared.clock.now())
        .into_iter()
        .filter_map(|entry| {
            let trunk = snapshot.vnics.get(entry.place.slot).filter(|vnic| vnic.is_trunk())?;
            let peer = *known.get(&PeerRef(entry.place.incarnation))?;
            Some(RemoteMac { vni: trunk.vni, mac: address(entry.mac), peer, idle: entry.idle })
        })
        .collect();
    learnt.sort();
    learnt
}

/// Returns the counters of networks with other hosts, sorted.
fn networks(snapshot: &Snapshot) -> Vec<NetworkReport> {
    let mut networks: Vec<NetworkReport> = snapshot
        .vnics
        .iter()
        .filter(|(_, vnic)| vnic.is_trunk())
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
    networks
}

/// Returns the uplink; `None` if there is none.
pub(crate) fn uplink(plane: &Plane, side: &EndpointSide) -> Option<UplinkReport> {
    let tunnel = plane.shared.tunnel.as_ref()?;
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
        sent: sent(plane, &totals),
        drops: drops(&totals),
        counters: side.counted(),
        attached: side.device.as_ref().map(|device| device.status().attached.is_some()),
        state: side.link(),
        vlan: tunnel.vlan,
        vlan_doubt: side.wire.as_ref().and_then(|(info, _)| info.tags.clone()),
    })
}
