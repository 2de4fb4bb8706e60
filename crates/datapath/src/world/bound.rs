//! The link-local addresses of a vnic besides that of its MAC address.

use std::{
    ops::Range,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use crate::ip::Address;

/// Where a filtered vnic's addresses stand, besides that of its MAC address; of a port that no
/// filter limits, those of routers. The oldest goes for a fifth.
pub(crate) const FIRST: Range<usize> = 0..4;
/// Where those of other machines behind such a port stand.
const OTHERS: Range<usize> = 4..PLACES;
pub(crate) const PLACES: usize = 32;
/// The interface identifiers of a vnic's link-local addresses; 0: none.
#[derive(Default)]
pub(crate) struct Bound {
    pub identifiers: [AtomicU64; PLACES],
    /// Of a filtered vnic: the second until which others may defend it. Of a port that no filter
    /// limits: the MAC address that spoke.
    pub about: [AtomicU64; PLACES],
    /// How many there were, of each range: which one goes next.
    count: [AtomicU32; 2],
}

pub(crate) fn at(words: &[AtomicU64; PLACES], way: usize) -> u64 {
    words.get(way).map_or(0, |word| word.load(Acquire))
}

impl Bound {
    pub fn way(&self, wanted: u64) -> Option<usize> {
        self.identifiers.iter().position(|word| word.load(Acquire) == wanted)
    }

    /// Whether the vnic has this address.
    pub fn has(&self, address: Address) -> bool {
        identifier(address).is_some_and(|wanted| self.way(wanted).is_some())
    }

    /// The same, apart.
    pub fn copy(&self) -> Bound {
        let copied =
            |words: &[AtomicU64; PLACES]| std::array::from_fn(|way| AtomicU64::new(at(words, way)));
        let count = self.count.each_ref().map(|count| AtomicU32::new(count.load(Relaxed)));
        Bound { identifiers: copied(&self.identifiers), about: copied(&self.about), count }
    }

    /// Takes an address away, if it still stands there.
    pub fn lose(&self, way: usize, identifier: u64) {
        if let Some(word) = self.identifiers.get(way) {
            let _ = word.compare_exchange(identifier, 0, AcqRel, Relaxed);
        }
    }

    /// Puts an address into the next place of its range. Which one that is.
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

/// The interface identifier of a link-local address (RFC 4291, 2.5.6) that somebody may make up.
/// One that is made of a MAC address belongs to who has that.
pub(crate) fn identifier(address: Address) -> Option<u64> {
    let identifier = address as u64;
    let of_mac = identifier >> 24 & 0xffff == 0xfffe;
    (address >> 64 == 0xfe80 << 48 && identifier != 0 && !of_mac).then_some(identifier)
}
