//! Everything that is counted, for monitoring.
//!
//! Whoever reads this every few seconds must be felt by nobody: it takes no lock that a worker
//! takes, or that a request or a guest's control thread may hold for long. So it knows what is in
//! the snapshot and in counters, and not what a request can ask for besides.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    counters::{Counter, Totals},
    drops::reasons,
    plane::Plane,
    reason::ReasonInfo,
    snapshot::Vnic,
    switch::{Switch, WorkerReport},
};

/// Everything that is counted, at about one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Vnics in the order of their places.
    pub vnics: Vec<VnicObservation>,
    /// Networks that have vnics here.
    pub networks: Vec<NetworkObservation>,
    /// Workers.
    pub workers: Vec<WorkerReport>,
    /// Every reason there is, with its count: drops of the whole host since it started, of vnics
    /// that are gone included.
    pub drops: Vec<(ReasonInfo, u64)>,
    /// The table of sessions.
    pub sessions: SessionObservation,
    /// Changes that workers were given: their kind and number.
    pub updates: Vec<(&'static str, u64)>,
    /// The way to other hosts.
    pub uplink: Option<UplinkObservation>,
}

/// A vnic.
#[derive(Clone, Debug)]
pub struct VnicObservation {
    /// Its name.
    pub id: Arc<str>,
    /// Its network.
    pub vni: u32,
    /// A guest is attached.
    pub attached: bool,
    /// How often one attached.
    pub attachments: u64,
    /// Frames and bytes received from the guest.
    pub received: (u64, u64),
    /// Frames and bytes delivered to the guest.
    pub delivered: (u64, u64),
    /// Frames of the guest that went to several receivers.
    pub flooded: u64,
    /// Frames whose source was not learnt because a bound was reached.
    pub learn_refused: u64,
    /// Frames that said for the guest where it is now.
    pub announced: u64,
    /// Addresses learnt behind it.
    pub learnt: u32,
    /// Sessions that it is an end of.
    pub sessions: u32,
    /// Drops by reason, without reasons that did not happen.
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
    /// What it has to do with other hosts, if there is an uplink.
    pub tunnel: Option<NetworkTunnel>,
}

/// A network's traffic with other hosts.
#[derive(Clone, Debug)]
pub struct NetworkTunnel {
    /// Frames and bytes from other hosts.
    pub received: (u64, u64),
    /// Frames and bytes to other hosts.
    pub sent: (u64, u64),
    /// Drops that are no vnic's by reason, without reasons that did not happen.
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
    /// Protocol, state and number, of all states there are, as of the last sweep: two seconds ago
    /// at most.
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
    /// Frames can leave: the interface is up, or the other end of a vhost-user port is there.
    pub up: bool,
    /// Largest IP packet on it, in bytes.
    pub mtu: u32,
    /// Frames and bytes received, with outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent; without outer headers where they are of networks.
    pub sent: (u64, u64),
    /// Drops that are no network's by reason, without reasons that did not happen.
    pub drops: Vec<(&'static str, u64)>,
    /// What the port and the kernel counted.
    pub port: Vec<(&'static str, u64)>,
    /// What became of frames for the endpoint itself.
    pub control: Vec<(&'static str, u64)>,
    /// Other hosts, by address.
    pub peers: Vec<PeerObservation>,
}

/// Another host.
#[derive(Clone, Debug)]
pub struct PeerObservation {
    /// Its tunnel endpoint.
    pub address: IpAddr,
    /// The operator named it.
    pub named: bool,
    /// The link address of its next hop is known.
    pub neighbour_known: bool,
    /// Seconds since something came from it.
    pub idle: Option<u32>,
    /// Frames and bytes from it, without outer headers.
    pub received: (u64, u64),
    /// Frames and bytes sent to it, without outer headers.
    pub sent: (u64, u64),
    /// Frames for it that were dropped on their way out.
    pub drops: u64,
}

/// What changes what workers know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    VnicAdded,
    VnicChanged,
    VnicRemoved,
    GroupChanged,
    PeersChanged,
}

/// Counts them.
#[derive(Default)]
pub(crate) struct Updates([AtomicU64; Self::NAMES.len()]);

impl Updates {
    /// In the order of [`Update`].
    const NAMES: [&str; 5] =
        ["nic-added", "nic-changed", "nic-removed", "group-changed", "peers-changed"];

    /// Workers have been given one.
    pub fn add(&self, update: Update) {
        if let Some(cell) = self.0.get(update as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    fn list(&self) -> Vec<(&'static str, u64)> {
        Self::NAMES
            .into_iter()
            .zip(&self.0)
            .map(|(name, cell)| (name, cell.load(Relaxed)))
            .collect()
    }
}

/// Two counters that belong together.
pub(crate) fn pair(totals: &Totals, packets: Counter, bytes: Counter) -> (u64, u64) {
    (totals.get(packets), totals.get(bytes))
}

/// Drops without reasons that did not happen.
pub(crate) fn happened(totals: &Totals) -> Vec<(&'static str, u64)> {
    reasons()
        .map(|info| (info.name, totals.drops(info.reason)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

impl Switch {
    /// Everything that is counted. Takes some microseconds per vnic, and nobody waits for it.
    pub fn observe(&self) -> Observation {
        let plane = self.plane();
        let (vnics, networks) = snapshot(plane);
        let table = &plane.shared.table;
        let totals = plane.totals();
        Observation {
            vnics,
            networks,
            workers: self.workers(),
            drops: reasons().map(|info| (info, totals.drops(info.reason))).collect(),
            sessions: SessionObservation {
                capacity: table.capacity(),
                used: table.used(),
                // As a number of sessions: all of them is no bound.
                share: plane.shared.shares.network.min(table.capacity()),
                states: plane.tally.list().collect(),
            },
            updates: plane.updates.list(),
            uplink: self.observe_uplink(),
        }
    }
}

fn snapshot(plane: &Plane) -> (Vec<VnicObservation>, Vec<NetworkObservation>) {
    let snapshot = plane.shared.snapshot.load_full();
    let vnics = snapshot
        .vnics
        .iter()
        .filter(|(_, vnic)| !vnic.trunk)
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
        attachments: shared.presence.attachments(),
        received: pair(&totals, Counter::InPackets, Counter::InBytes),
        delivered: pair(&totals, Counter::OutPackets, Counter::OutBytes),
        flooded: totals.get(Counter::Flooded),
        learn_refused: totals.get(Counter::LearnRefused),
        announced: totals.get(Counter::Announced),
        learnt: shared.learnt.load(Relaxed),
        sessions: shared.sessions.count(),
        drops: happened(&totals),
    }
}

/// Whether a guest is there, and how often one came. Its control thread writes.
#[derive(Default)]
pub(crate) struct Presence {
    /// Times a guest came and times it went: an odd sum is one that is there.
    changes: AtomicU64,
}

impl Presence {
    /// A guest came.
    pub fn came(&self) {
        self.changes.fetch_or(1, Relaxed);
    }

    /// It went.
    pub fn went(&self) {
        self.changes.store((self.changes.load(Relaxed) + 1) & !1, Relaxed);
    }

    /// One is there.
    pub fn attached(&self) -> bool {
        self.changes.load(Relaxed) % 2 == 1
    }

    /// How often one came.
    pub fn attachments(&self) -> u64 {
        self.changes.load(Relaxed).div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_comes_and_goes() {
        let presence = Presence::default();
        let now = || (presence.attached(), presence.attachments());
        assert_eq!(now(), (false, 0));
        presence.went();
        assert_eq!(now(), (false, 0), "one that never came");
        presence.came();
        assert_eq!(now(), (true, 1));
        presence.went();
        presence.went();
        assert_eq!(now(), (false, 1));
        presence.came();
        assert_eq!(now(), (true, 2));
    }

    #[test]
    fn every_kind_of_update_has_its_own_number() {
        let updates = Updates::default();
        let all = [
            Update::VnicAdded,
            Update::VnicChanged,
            Update::VnicRemoved,
            Update::GroupChanged,
            Update::PeersChanged,
        ];
        for (n, update) in all.into_iter().enumerate() {
            (0..=n).for_each(|_| updates.add(update));
        }
        assert!(updates.list().into_iter().map(|(_, n)| n).eq(1..=all.len() as u64));
    }
}
