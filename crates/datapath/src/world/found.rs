//! Neighbours that answered: where machines are that nobody declared, as ARP and neighbour
//! discovery told.
//!
//! A part of the snapshot, which the thread that looks for neighbours changes: see
//! [`crate::plane::seek`]. What is declared never gets an entry, and counts before one.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::ip::Address;

/// Most neighbours found, of all networks and of one. Half of them are reserved for networks, in
/// equal parts.
pub(crate) const CAPACITY: u32 = 65_536;
pub(crate) const MAX_PER_NETWORK: u32 = 8192;
/// Most of a block in which one machine may make up as many addresses as it likes.
pub(crate) const MAX_PER_BLOCK: u32 = MAX_PER_NETWORK / 32;

/// A machine that answered.
#[derive(Debug)]
pub(crate) struct FoundNeighbour {
    /// Its MAC address, as [`crate::engine::mac::number`].
    pub mac: u64,
    /// Second of its last answer. Written by the thread that looks for neighbours.
    pub heard: AtomicU32,
    /// Second of the last packet to it. Written by any worker: each writes about the same.
    used: AtomicU32,
}

impl FoundNeighbour {
    pub fn new(mac: u64, now: u32) -> FoundNeighbour {
        FoundNeighbour { mac, heard: AtomicU32::new(now), used: AtomicU32::new(now) }
    }

    /// Notes that a packet goes to it.
    #[inline]
    pub fn is_used(&self, now: u32) {
        if self.used.load(Relaxed) != now {
            self.used.store(now, Relaxed);
        }
    }

    /// Returns the seconds since its last answer, and since the last packet to it.
    pub fn ages(&self, now: u32) -> (u32, u32) {
        let since = |second: &AtomicU32| now.saturating_sub(second.load(Relaxed));
        (since(&self.heard), since(&self.used))
    }
}

/// All neighbours found, by network and address. A copy shares all that does not change.
#[derive(Clone, Default)]
pub(crate) struct FoundTable(imbl::HashMap<(u32, Address), Arc<FoundNeighbour>>);

impl FoundTable {
    /// Returns the machine that answered for an address in a network.
    pub fn get(&self, vni: u32, address: Address) -> Option<&Arc<FoundNeighbour>> {
        self.0.get(&(vni, address))
    }

    /// Adds one, in place of the one with its address. Returns whether there was none.
    pub fn insert(&mut self, at: (u32, Address), found: FoundNeighbour) -> bool {
        self.0.insert(at, Arc::new(found)).is_none()
    }

    /// Removes one. Returns whether there was one.
    pub fn remove(&mut self, at: (u32, Address)) -> bool {
        self.0.remove(&at).is_some()
    }

    /// Returns whether none was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = ((u32, Address), &Arc<FoundNeighbour>)> {
        self.0.iter().map(|(at, found)| (*at, found))
    }
}
