//! Shares of the table: a part for each network, and what is too much or too old.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::atomic::{AtomicU32, Ordering::*},
};

use crate::engine::quota::Quota;
use crate::overlay::peers::{
    MAX_PEERS, PeerTable,
    peer::{NOBODY, Peer},
};

/// Free places, and the number of peers that each network holds.
pub(super) struct PeerRoom {
    pub(super) free: Vec<u16>,
    /// Number of peers by the network that holds them, without networks that hold none. A worker
    /// never makes it grow: see [`PeerTable::new`].
    pub(super) held: HashMap<u32, AtomicU32>,
    pub(super) quota: Quota,
    /// Networks on this host.
    pub(super) networks: u32,
    /// Number of named peers.
    pub(super) named: u32,
}

impl PeerRoom {
    pub(super) fn held(&self, vni: u32) -> u32 {
        self.held.get(&vni).map_or(0, |held| held.load(Relaxed))
    }

    /// Counts a peer of a network.
    pub(super) fn take(&mut self, vni: u32) {
        self.quota.take(self.held.entry(vni).or_default());
    }

    /// Frees a peer from its holder.
    pub(super) fn release(&mut self, peer: &Peer) {
        let vni = peer.holder.swap(NOBODY, Relaxed);
        let Some(held) = self.held.get(&vni) else { return };
        self.quota.give_back(held);
        if held.load(Relaxed) == 0 {
            self.held.remove(&vni);
        }
    }
}

impl PeerTable {
    /// Removes learnt peers that were silent for `ageing` seconds.
    pub fn expire(&self, now: u32, ageing: u32) {
        let mut room = self.room();
        for (index, peer) in self.unnamed() {
            if now.saturating_sub(peer.seen.load(Relaxed)) > ageing {
                self.take_out(index, peer, &mut room);
            }
        }
        self.divide(&mut room);
    }

    /// Divides the room among the networks that are on this host now. Networks that are gone hold
    /// no peers any more.
    pub fn settle(&self, networks: &HashMap<u32, u32>) {
        let mut room = self.room();
        for (_, peer) in
            self.unnamed().filter(|(_, peer)| !networks.contains_key(&peer.holder.load(Relaxed)))
        {
            room.release(peer);
        }
        room.networks = networks.len() as u32;
        self.divide(&mut room);
    }

    /// Returns the learnt peers. The caller holds the lock.
    fn unnamed(&self) -> impl Iterator<Item = (usize, &Peer)> + Clone {
        let known = self
            .peers
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.generation.load(Relaxed) % 2 == 1);
        known.filter(|(_, peer)| !peer.configured.load(Relaxed))
    }

    /// Gives each network its part. Removes peers beyond the parts, and without a holder, if they
    /// are too many together: the most silent first.
    pub(super) fn divide(&self, room: &mut PeerRoom) {
        let capacity = MAX_PEERS as u32 - room.named;
        // Peers without a holder get at most half of the common half.
        let nobodys = self.keep(room, |vni| vni == NOBODY, capacity / 4);
        let held: Vec<u32> = room.held.values().map(|held| held.load(Relaxed)).collect();
        if let Some(most) = room.quota.settle(capacity, room.networks, &held, nobodys) {
            self.keep(room, |vni| vni != NOBODY, most);
        }
    }

    /// Leaves each of `holders` at most so many peers: those that were heard last. Returns the
    /// number of peers that are left.
    fn keep(&self, room: &mut PeerRoom, holders: impl Fn(u32) -> bool, most: u32) -> u32 {
        let mut all: Vec<(usize, &Peer)> =
            self.unnamed().filter(|(_, peer)| holders(peer.holder.load(Relaxed))).collect();
        all.sort_unstable_by_key(|(_, peer)| Reverse(peer.seen.load(Relaxed)));
        let mut kept: HashMap<u32, u32> = HashMap::new();
        for (index, peer) in all {
            let kept = kept.entry(peer.holder.load(Relaxed)).or_default();
            if *kept < most {
                *kept += 1;
            } else {
                self.take_out(index, peer, room);
            }
        }
        kept.values().sum()
    }
}
