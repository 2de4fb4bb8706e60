//! Link-local addresses that machines made up: first come, first served (RFC 6620).
//!
//! A host need not make its link-local address of its MAC address (RFC 7217), and no operator
//! declares it. So a filtered vnic has the addresses that it was the first to probe for or to send
//! from.
//!
//! A machine that is older than the daemon does not probe again. So addresses that are used behind
//! a port without a filter are noted as well, and no filtered vnic gets them. And a filtered vnic's
//! address is its own only if no other machine defended it for a while. Until then a machine behind
//! such a port takes it back, and a router does so whenever it advertises.
//!
//! A vnic's addresses are kept with the vnic, in [`PLACES`] words; the table only leads from an
//! address to the vnic. An entry that the vnic's words do not confirm counts as free. So nothing
//! has to be cleaned up when vnics go, and no network can fill the table.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

use butterfly_mem::units::{Units, UnitsError};

use crate::engine::{mac::number, place::PortRef};
use crate::ip::Address;
use crate::world::{
    bound::{FIRST, PLACES, at, identifier},
    snapshot::{Snapshot, Vnic},
};

/// Seconds in which other machines may defend an address after a probe. One more than detection
/// takes by default (RFC 4862, 5.1), as seconds are not whole.
const PROBED: u32 = 3;
/// Seconds in which other machines may defend an address that is used without a probe that its
/// owner could hear. Machines ask each other, and routers, more often than that.
const SPOKEN: u32 = 600;
/// Buckets: 131,072 entries in 1 MiB, of which only used ones are ever touched.
const BUCKETS: u32 = 1 << 14;

/// Role in which a machine claims an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Voice {
    /// About to take it; it asks the address's owner.
    Probing,
    /// Sends from it, or for it.
    Speaking,
    /// A router that advertises itself.
    Router,
}

/// Holder of an address.
pub(crate) struct Holder<'s> {
    pub vnic: &'s Vnic,
    way: usize,
}

impl Holder<'_> {
    /// Returns whether the holder loses the address to the speaker, or to a machine behind the
    /// speaker's port.
    pub fn gives_way(&self, speaker: &Vnic, voice: Voice, now: u32) -> bool {
        let about = at(&self.vnic.shared.bound.about, self.way);
        match (self.vnic.rules.bypass, speaker.rules.bypass) {
            (false, true) => voice == Voice::Router || u64::from(now) < about,
            // The machine came here from there.
            (true, false) => about == number(speaker.mac),
            _ => false,
        }
    }
}

/// Makes an entry: a vnic's place, the number of its word, and a bit that tells it from a free one.
const fn entry(place: PortRef, way: usize) -> u64 {
    1 << 63
        | (way as u64 & 31) << 56
        | (place.slot as u64 & 0xff_ffff) << 32
        | place.incarnation as u64
}

/// The table of all networks.
pub(crate) struct Bindings {
    units: Units,
    /// Secret key of the hash. Guests choose addresses, and tenants have several networks, but they
    /// cannot know which addresses share a bucket.
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
        // Keyed (SipHash), and of both words: with a sum of them, one network's addresses would
        // collide with those of another.
        self.key.hash_one((vni, identifier)) as usize % self.units.len().max(1)
    }

    fn words(&self, bucket: usize) -> &[AtomicU64] {
        self.units.get(bucket).map_or(&[], |unit| &unit.0)
    }

    /// Returns the holder that an entry leads to, and the identifier, if it still has one.
    fn read(entry: u64, snapshot: &Snapshot) -> Option<(Holder<'_>, u64)> {
        let place = PortRef { slot: (entry >> 32) as u32 & 0xff_ffff, incarnation: entry as u32 };
        let vnic = snapshot.vnic(place).filter(|_| entry != 0)?;
        let way = (entry >> 56) as usize & 31;
        let identifier = at(&vnic.shared.bound.identifiers, way);
        (identifier != 0).then_some((Holder { vnic, way }, identifier))
    }

    /// Returns the vnic or trunk of a network that was the first with this address.
    pub fn holder<'s>(
        &self,
        address: Address,
        vni: u32,
        snapshot: &'s Snapshot,
    ) -> Option<Holder<'s>> {
        let wanted = identifier(address)?;
        let mut found = self
            .words(self.bucket(vni, wanted))
            .iter()
            .filter_map(|word| Bindings::read(word.load(Acquire), snapshot));
        found
            .find(|(holder, identifier)| holder.vnic.vni == vni && *identifier == wanted)
            .map(|(holder, _)| holder)
    }

    /// Gives an address to a vnic, or to the trunk, because a machine behind it with the MAC
    /// address `source` claims it. Does so only if the address has no holder in its network, or the
    /// holder gives way.
    pub fn bind(
        &self,
        address: Address,
        vnic: &Vnic,
        source: u64,
        voice: Voice,
        now: u32,
        snapshot: &Snapshot,
    ) {
        let Some(wanted) = identifier(address) else { return };
        let (bound, filtered) = (&vnic.shared.bound, !vnic.rules.bypass);
        let Some(_binding) = bound.try_bind() else { return };
        let router = filtered || voice == Voice::Router;
        let about = match voice {
            _ if !filtered => source,
            Voice::Probing => u64::from(now.saturating_add(PROBED)),
            _ => u64::from(now.saturating_add(SPOKEN)),
        };
        if let Some(way) = bound.way(wanted) {
            let Some(word) = bound.about.get(way) else { return };
            if filtered {
                // Any defender was asked by now.
                word.fetch_min(about, Relaxed);
                return;
            }
            if !router || FIRST.contains(&way) {
                word.store(about, Relaxed);
                return;
            }
            bound.lose(way, wanted);
        } else if let Some(holder) = self.holder(address, vnic.vni, snapshot) {
            // A message of the holder's own machine came back by a loop, or from another host.
            if source == number(holder.vnic.mac) && !filtered || !holder.gives_way(vnic, voice, now)
            {
                return;
            }
            holder.vnic.shared.bound.lose(holder.way, wanted);
        }
        let Some(way) = bound.put(wanted, about, router) else { return };
        // Another worker may have been faster with the same address for another vnic: the first
        // entry counts.
        let is_ours = |holder: Holder<'_>| holder.vnic.place == vnic.place;
        if !self.enter(wanted, vnic, way, snapshot)
            || !self.holder(address, vnic.vni, snapshot).is_some_and(is_ours)
        {
            bound.lose(way, wanted);
        }
    }

    /// Gives an address to a vnic, or to the trunk, that had it in a former process: with the note
    /// of [`Bound::list`](crate::world::bound::Bound::list). The same rules hold as for one that is
    /// bound for the first time. Returns whether it has the address.
    pub fn bind_again(
        &self,
        vnic: &Vnic,
        (identifier, about, router): (u64, u64, bool),
        now: u32,
        snapshot: &Snapshot,
    ) -> bool {
        let address = 0xfe80 << 112 | Address::from(identifier);
        let voice = if router { Voice::Router } else { Voice::Speaking };
        self.bind(address, vnic, about, voice, now, snapshot);
        let bound = &vnic.shared.bound;
        let Some(way) = bound.way(identifier) else { return false };
        if !vnic.rules.bypass
            && let Some(word) = bound.about.get(way)
        {
            // It was asked for then, not now.
            word.fetch_min(about, Relaxed);
        }
        true
    }

    /// Enters a vnic's addresses, for a table of an explanation.
    pub fn adopt(&self, vnic: &Vnic, snapshot: &Snapshot) {
        for way in 0..PLACES {
            let identifier = at(&vnic.shared.bound.identifiers, way);
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
                || Bindings::read(old, snapshot).is_none_or(|(holder, identifier)| {
                    self.bucket(holder.vnic.vni, identifier) != bucket
                });
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
        for other in [
            "fe80::",
            "fe80::ff:fe00:a",
            "fe80:0:0:1::1",
            "febf::1",
            "2001:db8::1",
            "::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn entries_are_of_their_vnic_and_way() {
        let place = PortRef { slot: 0xf_fffe, incarnation: 7 };
        let all: std::collections::BTreeSet<u64> =
            (0..PLACES).map(|way| entry(place, way)).collect();
        assert_eq!(all.len(), PLACES);
        assert!(
            all.iter()
                .all(|entry| (entry >> 32) as u32 & 0xff_ffff == place.slot && *entry as u32 == 7)
        );
    }
}
