//! Peers: the tunnel endpoints of other hosts, learnt from their frames or named by the operator.
//!
//! One bounded table for all networks. Workers look up without locks and may add a peer, if
//! necessary in place of a peer that is not needed; the control thread removes. A reference carries
//! a generation, so that facts about a peer that is gone do not count for its successor in the
//! table.
//!
//! An attacker who forges outer sources creates peers. So each learnt peer is held by the network
//! that it was first heard in, and networks share the room that named peers leave: half of it is
//! reserved for them in equal parts.

mod peer;
mod places;
mod row;
mod shares;

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*},
    },
};

use crate::engine::{place::PeerRef, quota::Quota, writer::PerWorker};
use crate::ip::Address;
use crate::overlay::peers::{
    peer::{Counted, IDLE, NOBODY},
    shares::PeerRoom,
};
use crate::world::rules::address as ip_of;

pub(crate) use peer::{Peer, PeerCounter};
pub(crate) use row::PeerRow;

/// Most peers.
pub(crate) const MAX_PEERS: usize = 4096;
/// Number of buckets, one for each possible peer: a bucket that overflows is one in a million.
const BUCKETS: usize = 4096;
const WAYS: usize = 8;

/// The table of peers.
pub(crate) struct PeerTable {
    peers: Box<[Peer]>,
    buckets: Box<[[AtomicU16; WAYS]]>,
    seeds: [u64; 2],
    room: Mutex<PeerRoom>,
}

impl PeerTable {
    pub fn new(workers: usize) -> PeerTable {
        let peer = || Peer {
            generation: AtomicU16::new(0),
            address: Default::default(),
            mac: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            configured: AtomicBool::new(false),
            holder: AtomicU32::new(NOBODY),
            waiting: AtomicU8::new(IDLE),
            counted: PerWorker::new(workers, Counted::default),
            began: Default::default(),
        };
        let room = PeerRoom {
            free: (0..MAX_PEERS as u16).rev().collect(),
            // At most as many networks hold a peer as there are peers. Removed entries leave room
            // in a map that is at most half full.
            held: HashMap::with_capacity(2 * MAX_PEERS + 2),
            quota: Quota::new(MAX_PEERS as u32),
            networks: 1,
            named: 0,
        };
        PeerTable {
            peers: (0..MAX_PEERS).map(|_| peer()).collect(),
            buckets: (0..BUCKETS).map(|_| Default::default()).collect(),
            seeds: [0, 1].map(|n| RandomState::new().hash_one(n)),
            room: Mutex::new(room),
        }
    }

    /// Makes the counters that are missing for so many workers.
    pub fn grow(&self, workers: usize) {
        self.peers.iter().for_each(|peer| peer.counted.grow(workers, Counted::default));
    }

    fn room(&self) -> MutexGuard<'_, PeerRoom> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bucket of an address. Addresses are forged, so the seeds are secret: an attacker
    /// cannot tell which addresses share a bucket.
    #[inline(always)]
    fn bucket(&self, address: Address) -> Option<&[AtomicU16; WAYS]> {
        let [one, two] = self.seeds;
        let mixed = mix(mix(address as u64 ^ one) ^ (address >> 64) as u64 ^ two);
        self.buckets.get(mixed as usize % BUCKETS)
    }

    /// Returns a peer, unless its place has a new user.
    #[inline(always)]
    pub fn get(&self, at: PeerRef) -> Option<&Peer> {
        self.peers.get(at.index()).filter(|peer| {
            peer.generation.load(Acquire) == at.generation() && at.generation() % 2 == 1
        })
    }

    /// Returns the place of a peer.
    #[inline(always)]
    pub fn find(&self, address: Address) -> Option<PeerRef> {
        for way in self.bucket(address)? {
            let Some(index) = usize::from(way.load(Acquire)).checked_sub(1) else { continue };
            let Some(peer) = self.peers.get(index) else { continue };
            let generation = peer.generation.load(Acquire);
            if peer.address() == address && generation % 2 == 1 {
                return Some(PeerRef::new(index, generation));
            }
        }
        None
    }

    /// Returns all peers, by address.
    pub fn list(&self, now: u32) -> Vec<PeerRow> {
        let row = |(index, peer): (usize, &Peer)| {
            let generation = peer.generation.load(Acquire);
            let seen = peer.seen.load(Relaxed);
            let counters = peer.counts();
            (generation % 2 == 1).then(|| PeerRow {
                at: PeerRef::new(index, generation),
                address: ip_of(peer.address()),
                mac: peer.mac(),
                configured: peer.configured.load(Relaxed),
                idle: (seen != 0).then(|| now.saturating_sub(seen)),
                counters,
            })
        };
        let mut rows: Vec<PeerRow> = self.peers.iter().enumerate().filter_map(row).collect();
        rows.sort_by_key(|row| row.address);
        rows
    }
}

/// Mixes a number by the finalizer of SplitMix64: every bit matters for every bit.
#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests;
