//! Known addresses, for the operator: declared with vnics, and learnt.

use std::net::IpAddr;

use butterfly_packet::mac::Mac;

use crate::engine::{mac::address, place::PeerRef};
use crate::switch::Switch;

/// Origin of an FDB entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum FdbKind {
    /// Declared with a vnic.
    Static,
    /// Learnt from frames.
    Learnt,
}

/// An address and the vnic it is behind.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct FdbRow {
    /// Network.
    pub vni: u32,
    /// Address.
    pub mac: Mac,
    /// Vnic; empty for an address on another host.
    pub id: String,
    /// The other host.
    pub peer: Option<IpAddr>,
    /// Its origin.
    pub kind: FdbKind,
    /// Seconds since it was last seen, for learnt ones.
    pub idle: Option<u32>,
}

impl Switch {
    /// Returns all known addresses, of one network or of all, sorted.
    pub fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow> {
        let shared = &self.plane.shared;
        let snapshot = shared.snapshot.load();
        let wanted = |of: u32| vni.is_none_or(|vni| vni == of);
        let own = snapshot
            .vnics
            .iter()
            .filter(|(_, vnic)| {
                wanted(vnic.vni)
                    && !vnic.is_trunk()
                    && !vnic.is_mirror()
                    && snapshot.waits_for(vnic).is_none()
            })
            .map(|(_, vnic)| FdbRow {
                vni: vnic.vni,
                mac: vnic.mac,
                id: vnic.id.to_string(),
                peer: None,
                kind: FdbKind::Static,
                idle: None,
            });
        let learnt = shared
            .fdb
            .list(shared.clock.now())
            .into_iter()
            .filter(|entry| wanted(entry.vni))
            .filter_map(|entry| {
                let behind = snapshot.behind(entry.place)?;
                let tunnel = shared.tunnel.as_ref().filter(|_| behind.is_trunk());
                let peer =
                    tunnel.and_then(|tunnel| tunnel.peers.get(PeerRef(entry.place.incarnation)));
                Some(FdbRow {
                    vni: entry.vni,
                    mac: address(entry.mac),
                    id: behind.id.to_string(),
                    peer: peer.map(|peer| crate::world::rules::address(peer.address())),
                    kind: FdbKind::Learnt,
                    idle: Some(entry.idle),
                })
            });
        let mut rows: Vec<FdbRow> = own.chain(learnt).collect();
        rows.sort();
        rows
    }
}
