//! Identifications of packets in fragments from addresses that machines share.
//!
//! Two machines behind one address may choose the same one, and would have their fragments mixed
//! where they are put together. So the router chooses (RFC 6864, 5.3), by a counter of the ends
//! that starts anywhere (RFC 7739, 5.3).

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::ip::Address;

/// Number of counters, which many ends share.
const COUNTERS: usize = 1024;

/// The counters.
pub(crate) struct Identifications {
    counters: Box<[AtomicU32]>,
    hasher: RandomState,
}

impl Identifications {
    /// Starts to count.
    pub fn new() -> Identifications {
        let counters = (0..COUNTERS).map(|_| AtomicU32::new(0)).collect();
        Identifications { counters, hasher: RandomState::new() }
    }

    /// Returns the identification of the next packet of a protocol between two addresses.
    pub fn next(&self, ends: (Address, Address), protocol: u8) -> u16 {
        self.next_of(1, ends, protocol)
    }

    /// Returns the first of so many identifications in a row.
    pub fn next_of(&self, packets: u32, ends: (Address, Address), protocol: u8) -> u16 {
        let hash = self.hasher.hash_one((ends, protocol));
        let counter = self.counters.get(hash as usize % COUNTERS);
        let count = counter.map_or(0, |counter| counter.fetch_add(packets, Relaxed));
        (count as u16).wrapping_add((hash >> 48) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_different_ones_in_a_row() {
        let ids = Identifications::new();
        let mut all: Vec<u16> = (0..=u16::MAX).map(|_| ids.next((1, 2), 17)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1 << 16, "none comes twice before all came");
        let first = ids.next_of(3, (1, 2), 17);
        assert_eq!(ids.next((1, 2), 17), first.wrapping_add(3));
    }
}
