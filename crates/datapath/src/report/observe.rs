//! All counters, for monitoring.
//!
//! A reader that comes every few seconds must not be felt. So this takes no lock that a worker
//! takes, or that a request or a guest's control thread may hold for long. It reads the snapshot
//! and counters, and none of the other state that a request can ask for.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use butterfly_guest::{GuestWatch, Report, WireState};

use crate::endpoint::side::EndpointSide;
use crate::engine::{counters::Counter, reason::ReasonInfo};
use crate::plane::{Plane, ports::PortsInUse, vnics::WIRE};
use crate::report::uplink::observe_uplink;
use crate::report::{
    counts::{happened, pair},
    workers::WorkerReport,
};
use crate::stages::reasons::reasons;
use crate::world::snapshot::Vnic;

/// All counters, at about one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Vnics in the order of their places.
    pub vnics: Vec<VnicObservation>,
    /// Networks that have vnics here.
    pub networks: Vec<NetworkObservation>,
    /// Workers.
    pub workers: Vec<WorkerReport>,
    /// Count of every reason: drops of the whole host since it started, including vnics that are
    /// gone.
    pub drops: Vec<(ReasonInfo, u64)>,
    /// The table of sessions.
    pub sessions: SessionObservation,
    /// Changes that were published to workers: kind and number.
    pub updates: Vec<(&'static str, u64)>,
    /// The uplink.
    pub uplink: Option<UplinkObservation>,
    /// Wires of externals, by the externals' ids.
    pub wires: Vec<WireObservation>,
    /// Addresses outside that machines share.
    pub ports: Vec<PortsInUse>,
}

/// A wire of an external. Its traffic and drops are those of its port, a vnic.
#[derive(Clone, Debug)]
pub struct WireObservation {
    /// Id of the external.
    pub external: String,
    /// State of its interface.
    pub state: WireState,
    /// Frames that it lost by itself, by reason, without reasons that did not occur.
    pub losses: Vec<(&'static str, u64)>,
}

/// A vnic.
#[derive(Clone, Debug)]
pub struct VnicObservation {
    /// Its name.
    pub id: Arc<str>,
    /// Its network.
    pub vni: u32,
    /// True if a guest is attached.
    pub attached: bool,
    /// Pairs of queues by which its guest receives.
    pub queues: u32,
    /// Its rings are held.
    pub held: bool,
    /// Number of attachments.
    pub attachments: u64,
    /// Frames and bytes received from the guest.
    pub received: (u64, u64),
    /// Frames and bytes delivered to the guest.
    pub delivered: (u64, u64),
    /// Frames of the guest that went to several receivers.
    pub flooded: u64,
    /// Frames whose source was not learnt because a bound was reached.
    pub learn_refused: u64,
    /// Frames that the switch sent in the guest's name to announce its place.
    pub announced: u64,
    /// Frames of other hosts that were passed on to the host for which the guest left.
    pub passed_on: u64,
    /// Times that its transmit ring had to wait, as the guest sent more than its limit allows.
    pub limit_waits: u64,
    /// Addresses learnt behind it.
    pub learnt: u32,
    /// Sessions that it is an end of.
    pub sessions: u32,
    /// Drops by reason, without reasons that did not occur.
    pub drops: Vec<(&'static str, u64)>,
}

/// A network.
#[derive(Clone, Debug)]
pub struct NetworkObservation {
    /// Its number.
    pub vni: u32,
    /// Vnics in it on this host.
    pub vnics: usize,
    /// Addresses learnt in it.
    pub learnt: u32,
    /// Sessions in it.
    pub sessions: u32,
    /// Traffic with other hosts, if there is an uplink.
    pub tunnel: Option<NetworkTunnel>,
}

/// A network's traffic with other hosts.
#[derive(Clone, Debug)]
pub struct NetworkTunnel {
    /// Frames and bytes from other hosts.
    pub received: (u64, u64),
    /// Frames and bytes to other hosts.
    pub sent: (u64, u64),
    /// Drops that are no vnic's, by reason, without reasons that did not occur.
    pub drops: Vec<(&'static str, u64)>,
}

/// The table of sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionObservation {
    /// Most sessions it can hold.
    pub capacity: u32,
    /// Sessions in it.
    pub used: u32,
    /// Most sessions of one network; a vnic has half of that.
    pub share: u32,
    /// Protocol, state and number of sessions, for all states, as of the last sweep: two seconds
    /// ago at most, or 100 ms for each 50,000 sessions if that is longer.
    pub states: Vec<(&'static str, &'static str, u32)>,
}

/// The uplink and the tunnel endpoint.
#[derive(Clone, Debug, Default)]
pub struct UplinkObservation {
    /// `af_xdp`, `tap` or `vhost-user`.
    pub kind: String,
    /// The network interface, or the socket.
    pub interface: String,
    /// How frames move.
    pub mode: String,
    /// True if frames can leave: the interface is up, or the other end of a vhost-user port is
    /// there.
    pub up: bool,
    /// Largest IP packet on it, in bytes.
    pub mtu: u32,
    /// Frames and bytes received, with outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent, without outer headers for frames of networks.
    pub sent: (u64, u64),
    /// Drops that are no network's, by reason, without reasons that did not occur.
    pub drops: Vec<(&'static str, u64)>,
    /// Counters of the port and the kernel.
    pub port: Vec<(&'static str, u64)>,
    /// Counters of frames for the endpoint itself.
    pub control: Vec<(&'static str, u64)>,
    /// Other hosts, by address.
    pub peers: Vec<PeerObservation>,
}

/// Another host.
#[derive(Clone, Debug)]
pub struct PeerObservation {
    /// Its tunnel endpoint.
    pub address: IpAddr,
    /// True if the operator named it.
    pub named: bool,
    /// True if the link address of its next hop is known.
    pub neighbour_known: bool,
    /// Seconds since the last frame from it.
    pub idle: Option<u32>,
    /// Frames and bytes from it, without outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent to it, without outer headers.
    pub sent: (u64, u64),
    /// Frames for it that were dropped on their way out.
    pub drops: u64,
}

/// Reads all counters. Takes some microseconds per vnic, and holds up no other thread.
pub(crate) fn observe(
    plane: &Plane,
    workers: Vec<WorkerReport>,
    side: Option<&EndpointSide>,
) -> Observation {
    let (vnics, networks) = snapshot(plane);
    let table = &plane.shared.table;
    let totals = plane.totals();
    Observation {
        vnics,
        networks,
        workers,
        drops: reasons().map(|info| (info, totals.drops(info.reason))).collect(),
        sessions: SessionObservation {
            capacity: table.capacity(),
            used: table.used(),
            // A share without a bound is shown as the capacity.
            share: plane.shared.shares.network.min(table.capacity()),
            states: plane.tally.list().collect(),
        },
        updates: plane.updates.list(),
        uplink: side.and_then(|side| observe_uplink(plane, side)),
        wires: Vec::new(),
        ports: plane.ports_in_use(),
    }
}

/// Reads what the guest behind a wire tells. `id` is that of its port.
pub(crate) fn observe_wire(id: &str, guest: &GuestWatch) -> Option<WireObservation> {
    let Report::Wire(report) = guest.report() else { return None };
    let lost = report.losses.iter().filter(|loss| loss.frames > 0);
    Some(WireObservation {
        external: id.strip_prefix(WIRE)?.to_owned(),
        state: report.state,
        losses: lost.map(|loss| (loss.name, loss.frames)).collect(),
    })
}

fn snapshot(plane: &Plane) -> (Vec<VnicObservation>, Vec<NetworkObservation>) {
    let snapshot = plane.shared.snapshot.load_full();
    let vnics = snapshot
        .vnics
        .iter()
        .filter(|(_, vnic)| !vnic.is_trunk())
        .map(|(_, vnic)| observe_vnic(vnic))
        .collect();
    let mut networks: Vec<NetworkObservation> = snapshot
        .by_vni
        .iter()
        .filter_map(|(vni, at)| {
            let network = snapshot.networks.get(*at)?;
            let trunk = network.remote.as_ref().and_then(|remote| snapshot.vnics.get(remote.slot));
            Some(NetworkObservation {
                vni: *vni,
                vnics: network.members.len(),
                learnt: network.learnt.load(Relaxed),
                sessions: network.sessions.load(Relaxed),
                tunnel: trunk.map(|trunk| {
                    let totals = trunk.shared.counters.totals();
                    NetworkTunnel {
                        received: pair(&totals, Counter::InPackets, Counter::InBytes),
                        sent: pair(&totals, Counter::OutPackets, Counter::OutBytes),
                        drops: happened(&totals),
                    }
                }),
            })
        })
        .collect();
    networks.sort_by_key(|network| network.vni);
    (vnics, networks)
}

fn observe_vnic(vnic: &Vnic) -> VnicObservation {
    let (shared, totals) = (&vnic.shared, vnic.shared.counters.totals());
    VnicObservation {
        id: vnic.id.clone(),
        vni: vnic.vni,
        attached: shared.presence.attached(),
        queues: shared.port.open().count_ones(),
        held: shared.port.is_held(),
        attachments: shared.presence.attachments(),
        received: pair(&totals, Counter::InPackets, Counter::InBytes),
        delivered: pair(&totals, Counter::OutPackets, Counter::OutBytes),
        flooded: totals.get(Counter::Flooded),
        learn_refused: totals.get(Counter::LearnRefused),
        announced: totals.get(Counter::Announced),
        passed_on: totals.get(Counter::PassedOn),
        limit_waits: shared.limits.from_guest.waits(),
        learnt: shared.learnt.load(Relaxed),
        sessions: shared.sessions.count(),
        drops: happened(&totals),
    }
}
