//! Times at which vnics are told of routers without asking (RFC 4861, 6.2.4).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use std::sync::Arc;

use butterfly_packet::Mac;

use crate::engine::place::PortRef;

/// Shortest and longest time between two advertisements to a vnic, in seconds (RFC 4861, 6.2.1).
const SHORTEST: u32 = 200;
const LONGEST: u32 = 600;
/// Least time after which a vnic hears of a change (MIN_DELAY_BETWEEN_RAS).
const LEAST: u32 = 3;
/// State of advertisements.
#[derive(Default)]
pub(super) struct Advertising {
    /// Vnics that were told.
    pub told: HashMap<PortRef, Advertised>,
    /// Hash of what is told, and of what times are made.
    pub hash: RandomState,
}

/// Advertisements to a vnic.
#[derive(Clone)]
pub(super) struct Advertised {
    last: u32,
    next: u32,
    /// Hash of the last ones.
    contents: u64,
    /// Routers that were told.
    routers: Arc<[Mac]>,
}

impl Advertising {
    /// Returns whether a vnic is to be told now. Clocks that went back make it due.
    pub fn is_due(&self, place: PortRef, contents: u64, now: u32) -> bool {
        self.told.get(&place).is_none_or(|told| {
            let passed = now.wrapping_sub(told.last);
            passed >= told.next.wrapping_sub(told.last)
                || told.contents != contents && passed >= LEAST
        })
    }

    /// Returns the routers that a vnic was told, and that are none any more.
    pub fn gone(&self, place: PortRef, routers: &[Mac]) -> impl Iterator<Item = Mac> {
        let told = self.told.get(&place).into_iter().flat_map(|told| told.routers.iter());
        told.copied().filter(|mac| !routers.contains(mac))
    }

    /// Notes that a vnic is told of these routers now.
    pub fn note(&mut self, place: PortRef, (contents, routers): (u64, &Arc<[Mac]>), now: u32) {
        let jitter = self.hash.hash_one((place.slot, place.incarnation, now)) as u32;
        let next = now.wrapping_add(SHORTEST + jitter % (LONGEST - SHORTEST + 1));
        self.told.insert(place, Advertised { last: now, next, contents, routers: routers.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: PortRef = PortRef { slot: 7, incarnation: 1 };

    const OLD: Mac = Mac([1; 6]);
    const NEW: Mac = Mac([2; 6]);

    #[test]
    fn times_between_advertisements() {
        let mut advertising = Advertising::default();
        assert!(advertising.is_due(PLACE, 1, 5), "a vnic that came");
        let mut seen = std::collections::HashSet::new();
        let mut now = 5;
        for _ in 0..100 {
            advertising.note(PLACE, (1, &[].into()), now);
            assert!((0..SHORTEST).all(|passed| !advertising.is_due(PLACE, 1, now + passed)));
            let next = (SHORTEST..).find(|passed| advertising.is_due(PLACE, 1, now + passed));
            assert!(next.is_some_and(|next| next <= LONGEST), "{next:?}");
            seen.insert(next);
            now += next.unwrap();
        }
        assert!(seen.len() > 50, "they are not all the same");
    }

    #[test]
    fn a_change_is_told_soon() {
        let mut advertising = Advertising::default();
        advertising.note(PLACE, (1, &[OLD, NEW].into()), 100);
        assert!(!advertising.is_due(PLACE, 2, 102), "not at once again");
        assert!(advertising.is_due(PLACE, 2, 103));
        assert!(!advertising.is_due(PLACE, 1, 103));
        assert!(advertising.gone(PLACE, &[NEW]).eq([OLD]));
        assert_eq!(advertising.gone(PLACE, &[NEW, OLD]).count(), 0);
    }
}
