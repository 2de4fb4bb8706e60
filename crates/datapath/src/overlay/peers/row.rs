//! A peer's row, for the operator.

use std::net::IpAddr;

use butterfly_packet::mac::Mac;

use crate::engine::place::PeerRef;
use crate::overlay::peers::peer::PeerCounter;

/// Row of a peer, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerRow {
    pub at: PeerRef,
    pub address: IpAddr,
    pub mac: Option<Mac>,
    pub configured: bool,
    /// Seconds since the last frame from it.
    pub idle: Option<u32>,
    pub counters: [u64; 5],
}

impl PeerRow {
    fn of(&self, counter: PeerCounter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// Returns frames and bytes from it.
    pub fn received(&self) -> (u64, u64) {
        (self.of(PeerCounter::InPackets), self.of(PeerCounter::InBytes))
    }

    /// Returns frames sent to it.
    pub fn sent(&self) -> u64 {
        self.of(PeerCounter::OutPackets)
    }

    /// Returns bytes sent to it.
    pub fn sent_bytes(&self) -> u64 {
        self.of(PeerCounter::OutBytes)
    }

    /// Returns frames for it that were dropped.
    pub fn drops(&self) -> u64 {
        self.of(PeerCounter::Drops)
    }
}
