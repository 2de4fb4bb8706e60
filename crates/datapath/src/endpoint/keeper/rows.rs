//! The keeper's rows for the operator: groups and next hops.

use std::net::IpAddr;

use butterfly_packet::mac::Mac;

use crate::endpoint::{keeper::Keeper, link::LinkState, silence::Told};
use crate::engine::place::PeerRef;

/// A group that a network has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct GroupRow {
    /// Network.
    pub vni: u32,
    /// Group.
    pub group: IpAddr,
}

/// A next hop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourRow {
    /// Its address.
    pub address: IpAddr,
    /// Its link address, if it is known.
    pub mac: Option<Mac>,
    /// State of its resolution.
    pub state: String,
    /// Seconds since it was confirmed.
    pub age: Option<u32>,
}

impl Keeper {
    /// Returns the state of the uplink's interface, if it has one.
    pub fn link(&self) -> Option<LinkState> {
        self.state().host.as_ref()?.link.state()
    }

    /// Returns the groups that networks have joined.
    pub fn groups(&self) -> Vec<GroupRow> {
        let rows = self.state().control.groups(self.now());
        rows.into_iter()
            .filter_map(|row| Some(GroupRow { vni: row.vni?, group: row.address }))
            .collect()
    }

    /// Returns the next hops, and the addresses that the kernel is asked for.
    pub fn neighbours(&self) -> Vec<NeighbourRow> {
        let state = self.state();
        let rows = state.control.neighbours(self.now()).into_iter().map(|row| NeighbourRow {
            address: row.address,
            mac: row.mac,
            state: row.state.to_owned(),
            age: row.age.map(|age| (age / 1000) as u32),
        });
        let asked = state.asked.values().map(|asked| NeighbourRow {
            address: asked.via,
            mac: None,
            state: "asking the host".to_owned(),
            age: None,
        });
        rows.chain(asked).collect()
    }

    /// Returns the state of a peer that does not answer, at second `clock`.
    pub fn silence(&self, peer: PeerRef, clock: u32) -> Told {
        self.state().silences.told(peer, clock)
    }

    /// Returns name, meaning and value of the counters of frames for the endpoint.
    pub fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.state().control.counts().list().collect()
    }
}
