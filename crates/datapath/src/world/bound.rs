//! The link-local addresses of a vnic besides that of its MAC address.

use std::{
    ops::Range,
    sync::{
        Mutex, MutexGuard, TryLockError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

use crate::engine::atomics::same32;
use crate::ip::Address;

/// Places of a filtered vnic's addresses, besides the one of its MAC address; for a port without a
/// filter, places of routers' addresses. A fifth address replaces the oldest.
pub(crate) const FIRST: Range<usize> = 0..4;
/// Places of the addresses of other machines behind a port without a filter.
const OTHERS: Range<usize> = 4..PLACES;
pub(crate) const PLACES: usize = 32;
/// The interface identifiers of a vnic's link-local addresses; 0: none.
#[derive(Default)]
pub(crate) struct Bound {
    pub identifiers: [AtomicU64; PLACES],
    /// For a filtered vnic: the second until which other machines may defend the address. For a
    /// port without a filter: the MAC address that claimed it.
    pub about: [AtomicU64; PLACES],
    /// Number of addresses so far, in each range. Tells which one goes next.
    count: [AtomicU32; 2],
    /// Held while a worker binds an address: a vnic's queues may have several workers.
    binding: Mutex<()>,
}

pub(crate) fn at(words: &[AtomicU64; PLACES], way: usize) -> u64 {
    words.get(way).map_or(0, |word| word.load(Acquire))
}

impl Bound {
    pub fn way(&self, wanted: u64) -> Option<usize> {
        self.identifiers.iter().position(|word| word.load(Acquire) == wanted)
    }

    /// Returns whether the vnic has this address.
    pub fn has(&self, address: Address) -> bool {
        identifier(address).is_some_and(|wanted| self.way(wanted).is_some())
    }

    /// Takes the right to bind, without waiting. `None` if another worker binds an address of this
    /// vnic: the machine's next message is heard.
    pub fn try_bind(&self) -> Option<MutexGuard<'_, ()>> {
        match self.binding.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns a copy of its own.
    pub fn copy(&self) -> Bound {
        let copied =
            |words: &[AtomicU64; PLACES]| std::array::from_fn(|way| AtomicU64::new(at(words, way)));
        Bound {
            identifiers: copied(&self.identifiers),
            about: copied(&self.about),
            count: self.count.each_ref().map(same32),
            binding: Mutex::default(),
        }
    }

    /// Returns identifier, note and range (true: the first) of each address, the oldest first.
    pub fn list(&self) -> Vec<(u64, u64, bool)> {
        let ranges = [(FIRST, true), (OTHERS, false)].into_iter().zip(&self.count);
        let ways = ranges.flat_map(|((range, router), count)| {
            let (first, len) = (range.start, range.len());
            let next = count.load(Relaxed) as usize % len;
            (next..next + len).map(move |way| (first + way % len, router))
        });
        ways.map(|(way, router)| (at(&self.identifiers, way), at(&self.about, way), router))
            .filter(|(identifier, ..)| *identifier != 0)
            .collect()
    }

    /// Takes an address away, if it still is in its place.
    pub fn lose(&self, way: usize, identifier: u64) {
        if let Some(word) = self.identifiers.get(way) {
            let _ = word.compare_exchange(identifier, 0, AcqRel, Relaxed);
        }
    }

    /// Puts an address into the next place of its range. Returns the place. The caller holds the
    /// right to bind.
    pub fn put(&self, identifier: u64, about: u64, router: bool) -> Option<usize> {
        let (range, count) =
            if router { (FIRST, self.count.first()?) } else { (OTHERS, self.count.last()?) };
        let way = range.start + count.fetch_add(1, Relaxed) as usize % range.len();
        self.about.get(way)?.store(about, Relaxed);
        // Its old entry leads to nothing from now on.
        self.identifiers.get(way)?.store(identifier, Release);
        Some(way)
    }
}

/// Returns the interface identifier of a link-local address (RFC 4291, 2.5.6), if a machine may
/// make it up. One that is made of a MAC address belongs to the station with that MAC address.
pub(crate) fn identifier(address: Address) -> Option<u64> {
    let identifier = address as u64;
    let of_mac = identifier >> 24 & 0xffff == 0xfffe;
    (address >> 64 == 0xfe80 << 48 && identifier != 0 && !of_mac).then_some(identifier)
}
