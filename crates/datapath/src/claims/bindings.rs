//! Link-local addresses that machines made up: first come, first served (RFC 6620).
//!
//! A host need not make its link-local address of its MAC address (RFC 7217), and no operator declares it. So a vnic has those that it
//! was the first to probe for or to speak from. What a vnic has stands with the vnic, [`PER_VNIC`] words; the table only leads from an
//! address to the vnic, and an entry that the vnic's words do not bear out is as good as free. So nothing has to be cleaned up when
//! vnics go, and the table cannot be filled by one network: each vnic has four entries at most.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use butterfly_vhost::units::{Units, UnitsError};

use crate::{
    flow::Address,
    port::PortRef,
    snapshot::{Snapshot, Vnic},
};

/// Link-local addresses of one vnic at most, besides that of its MAC address. The oldest goes for a fifth.
pub(crate) const PER_VNIC: usize = 4;
/// 262,144 entries in 2 MiB, of which only what is used is ever touched.
const BUCKETS: u32 = 1 << 14;

/// The interface identifiers of a vnic's link-local addresses; 0: none.
#[derive(Default)]
pub(crate) struct Bound {
    identifiers: [AtomicU64; PER_VNIC],
    /// How many there were: which one goes next.
    count: AtomicU32,
}

impl Bound {
    fn at(&self, way: usize) -> u64 {
        self.identifiers.get(way).map_or(0, |word| word.load(Acquire))
    }

    /// Whether the vnic has this address.
    pub fn has(&self, address: Address) -> bool {
        identifier(address).is_some_and(|wanted| self.identifiers.iter().any(|word| word.load(Relaxed) == wanted))
    }

    /// The same, apart.
    pub fn copy(&self) -> Bound {
        let word = |way: usize| AtomicU64::new(self.at(way));
        Bound { identifiers: std::array::from_fn(word), count: AtomicU32::new(self.count.load(Relaxed)) }
    }
}

/// The interface identifier of a link-local address (RFC 4291, 2.5.6) that somebody may make up. One that is made of a MAC address belongs
/// to who has that.
fn identifier(address: Address) -> Option<u64> {
    let identifier = address as u64;
    let of_mac = identifier >> 24 & 0xffff == 0xfffe;
    (address >> 64 == 0xfe80 << 48 && identifier != 0 && !of_mac).then_some(identifier)
}

/// An entry: a vnic's place, which of its words, and a bit that tells it from a free one.
const fn entry(place: PortRef, way: usize) -> u64 {
    1 << 63 | (way as u64 & 3) << 56 | (place.slot as u64 & 0xff_ffff) << 32 | place.incarnation as u64
}

/// The table of all networks.
pub(crate) struct Bindings {
    units: Units,
    /// Guests choose addresses, and tenants have several networks; what they cannot know is which of them share a bucket.
    key: RandomState,
}

impl Bindings {
    pub fn new() -> Result<Bindings, UnitsError> {
        Bindings::with_buckets(BUCKETS)
    }

    fn with_buckets(buckets: u32) -> Result<Bindings, UnitsError> {
        Ok(Bindings { units: Units::anonymous(buckets as usize)?, key: RandomState::new() })
    }

    fn bucket(&self, vni: u32, identifier: u64) -> usize {
        // Keyed (SipHash), and of both words: with a sum of them, one network's addresses would collide with those of another.
        self.key.hash_one((vni, identifier)) as usize % self.units.len().max(1)
    }

    fn words(&self, bucket: usize) -> &[AtomicU64] {
        self.units.get(bucket).map_or(&[], |unit| &unit.0)
    }

    /// The vnic and identifier that an entry leads to, if there still is something.
    fn read(entry: u64, snapshot: &Snapshot) -> Option<(&Vnic, u64)> {
        let place = PortRef { slot: (entry >> 32) as u32 & 0xff_ffff, incarnation: entry as u32 };
        let vnic = snapshot.vnic(place).filter(|_| entry != 0)?;
        let identifier = vnic.shared.bound.at((entry >> 56) as usize & 3);
        (identifier != 0).then_some((vnic, identifier))
    }

    /// The vnic or trunk of a network that was the first with this address.
    pub fn holder<'s>(&self, address: Address, vni: u32, snapshot: &'s Snapshot) -> Option<&'s Vnic> {
        let wanted = identifier(address)?;
        let mut found =
            self.words(self.bucket(vni, wanted)).iter().filter_map(|word| Bindings::read(word.load(Acquire), snapshot));
        found.find(|(vnic, identifier)| vnic.vni == vni && *identifier == wanted).map(|(vnic, _)| vnic)
    }

    /// Gives an address to a vnic, or to the trunk, if nobody of its network has it. To be called by the worker that serves the vnic.
    pub fn bind(&self, address: Address, vnic: &Vnic, snapshot: &Snapshot) {
        let Some(wanted) = identifier(address) else { return };
        let bound = &vnic.shared.bound;
        if bound.has(address) || self.holder(address, vnic.vni, snapshot).is_some() {
            return;
        }
        let way = bound.count.fetch_add(1, Relaxed) as usize % PER_VNIC;
        let Some(word) = bound.identifiers.get(way) else { return };
        // Its old entry leads to nothing from now on.
        word.store(wanted, Release);
        // Another worker may have been faster with the same address for another vnic: the first entry counts.
        let is_ours = |holder: &Vnic| holder.place == vnic.place;
        if !self.enter(wanted, vnic, way, snapshot) || !self.holder(address, vnic.vni, snapshot).is_some_and(is_ours) {
            word.store(0, Release);
        }
    }

    /// Enters what a vnic has, for a table of its own.
    pub fn adopt(&self, vnic: &Vnic, snapshot: &Snapshot) {
        for way in 0..PER_VNIC {
            let identifier = vnic.shared.bound.at(way);
            if identifier != 0 {
                self.enter(identifier, vnic, way, snapshot);
            }
        }
    }

    /// Puts an entry into a free place of its bucket. Returns whether there was one.
    fn enter(&self, identifier: u64, vnic: &Vnic, way: usize, snapshot: &Snapshot) -> bool {
        let bucket = self.bucket(vnic.vni, identifier);
        let new = entry(vnic.place, way);
        self.words(bucket).iter().any(|word| {
            let old = word.load(Acquire);
            // Of a vnic that is gone, or that has another address there by now.
            let is_free = old == new
                || Bindings::read(old, snapshot).is_none_or(|(vnic, identifier)| self.bucket(vnic.vni, identifier) != bucket);
            is_free && word.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_made_up() {
        let of = |text: &str| identifier(text.parse::<std::net::Ipv6Addr>().unwrap().to_bits());
        assert_eq!(of("fe80::1:2:3:4"), Some(0x0001_0002_0003_0004));
        for other in ["fe80::", "fe80::ff:fe00:a", "fe80:0:0:1::1", "febf::1", "2001:db8::1", "::1", "ff02::1", "::ffff:10.0.0.1"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn entries_are_of_their_vnic_and_way() {
        let place = PortRef { slot: 0xf_fffe, incarnation: 7 };
        let all: std::collections::BTreeSet<u64> = (0..PER_VNIC).map(|way| entry(place, way)).collect();
        assert_eq!(all.len(), PER_VNIC);
        assert!(all.iter().all(|entry| (entry >> 32) as u32 & 0xff_ffff == place.slot && *entry as u32 == 7));
    }
}
