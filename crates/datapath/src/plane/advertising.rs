//! Times at which vnics are told of routers without asking (RFC 4861, 6.2.4).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak},
};

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
    /// Place of the network that had its turn last.
    pub served: u32,
    /// Frames that workers were given: they let go of them when all are sent.
    given: Vec<Weak<Vec<Vec<u8>>>>,
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

    /// Returns the second in which a vnic was told last; `None` comes first.
    pub fn last(&self, place: PortRef) -> Option<u32> {
        self.told.get(&place).map(|told| told.last)
    }

    /// Notes that a worker is given these frames.
    pub fn send(&mut self, frames: &Arc<Vec<Vec<u8>>>) {
        self.given.push(Arc::downgrade(frames));
    }

    /// Returns the number of frames that workers were given and did not send yet. Of frames that
    /// were given together all count until the last is sent.
    pub fn under_way(&mut self) -> usize {
        self.given.retain(|frames| frames.strong_count() > 0);
        self.given.iter().filter_map(Weak::upgrade).map(|frames| frames.len()).sum()
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
    fn frames_count_until_they_are_sent() {
        let mut advertising = Advertising::default();
        let [first, second] = [2, 3].map(|n| Arc::new(vec![vec![0_u8; 100]; n]));
        advertising.send(&first);
        advertising.send(&second);
        assert_eq!(advertising.under_way(), 5);
        drop(first);
        assert_eq!((advertising.under_way(), advertising.given.len()), (3, 1));
        drop(second);
        assert_eq!((advertising.under_way(), advertising.given.len()), (0, 0));
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
