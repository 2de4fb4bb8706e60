//! Times at which vnics are told of routers without asking (RFC 4861, 6.2.4).

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    net::Ipv6Addr,
    sync::{Arc, Weak},
};

use butterfly_packet::Mac;

use crate::engine::place::PortRef;
use crate::world::leases6::{Leasing6, VALID};

/// Shortest and longest time between two advertisements to a vnic, in seconds (RFC 4861, 6.2.1).
const SHORTEST: u32 = 200;
const LONGEST: u32 = 600;
/// Least time after which a vnic hears of a change (MIN_DELAY_BETWEEN_RAS).
const LEAST: u32 = 3;
/// Most blocks of a network that are taken back at a time: as many as it may have. The oldest is
/// forgotten first.
const WITHDRAWN: usize = 8;

/// Most routers of a network that count as told, and left, since the last look. So many more than
/// a network tells of leave only if whoever declares changes its mind many times in a second.
const LEFT: usize = 16;

/// Routers and blocks that a network told before a change. Its machines may have asked and heard it
/// at any moment, not only when a look found that it was due.
#[derive(Default)]
pub(super) struct Untold {
    /// Routers, the oldest first.
    pub routers: Vec<Mac>,
    /// Blocks of the link, the oldest first.
    pub blocks: Vec<(Ipv6Addr, u8)>,
}

impl Untold {
    /// Returns what a network told until now, and does not tell from now on.
    pub fn of(before: &Leasing6, after: Option<&Leasing6>) -> Untold {
        let stays = |mac: &Mac| after.is_some_and(|it| it.routers().any(|other| other == *mac));
        let blocks = after.map_or(&[][..], Leasing6::prefixes);
        Untold {
            routers: before.routers().filter(|mac| !stays(mac)).collect(),
            blocks: before.prefixes().iter().filter(|it| !blocks.contains(it)).copied().collect(),
        }
    }

    /// Returns whether all is still told.
    pub fn is_empty(&self) -> bool {
        self.routers.is_empty() && self.blocks.is_empty()
    }

    /// Adds what is told no more since a later change. The newest stay.
    pub fn add(&mut self, later: Untold) {
        self.routers.extend(later.routers);
        self.routers.drain(..self.routers.len().saturating_sub(LEFT));
        self.blocks.extend(later.blocks);
        self.blocks.drain(..self.blocks.len().saturating_sub(LEFT));
    }
}

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
    /// Blocks that networks told, by VNI.
    pub links: HashMap<u32, OnLink>,
    /// Prefixes that vnics were told to be their own.
    pub own: HashMap<PortRef, OnLink>,
}

/// Blocks that the vnics of a network were told to be of the link, or one of them to be its own: 16
/// at most, with their lengths.
#[derive(Default)]
pub(super) struct OnLink {
    now: Box<[(Ipv6Addr, u8)]>,
    /// Those that are no longer of it, and since when, the oldest first.
    gone: VecDeque<((Ipv6Addr, u8), u32)>,
}

impl OnLink {
    /// Notes the blocks of a network. Those that it told before are taken back for as long as a
    /// vnic that missed it may believe them.
    pub fn look(&mut self, prefixes: &[(Ipv6Addr, u8)], now: u32) {
        if *self.now != *prefixes {
            let left = self.now.iter().filter(|block| !prefixes.contains(block));
            self.gone.extend(left.map(|block| (*block, now)));
            self.now = prefixes.into();
        }
        self.gone
            .retain(|(block, since)| !prefixes.contains(block) && now.wrapping_sub(*since) < VALID);
        let beyond = self.gone.len().saturating_sub(WITHDRAWN);
        self.gone.drain(..beyond);
    }

    /// Notes blocks of which machines may have heard, as they asked before this look.
    pub fn heard(&mut self, blocks: &[(Ipv6Addr, u8)], now: u32) {
        for block in blocks.iter().filter(|block| !self.now.contains(block)) {
            self.gone.retain(|(other, _)| other != block);
            self.gone.push_back((*block, now));
        }
    }

    /// Does the same for those of its blocks that the network still has.
    pub fn keep(&mut self, has: impl Fn(&(Ipv6Addr, u8)) -> bool, now: u32) {
        self.gone.retain(|(block, _)| !has(block));
        let left: Vec<_> = self.now.iter().copied().filter(has).collect();
        self.look(&left, now);
    }

    /// Returns the blocks that are taken back.
    pub fn gone(&self) -> Vec<(Ipv6Addr, u8)> {
        self.gone.iter().map(|(block, _)| *block).collect()
    }

    /// Returns whether it has anything to remember.
    pub fn is_empty(&self) -> bool {
        self.now.is_empty() && self.gone.is_empty()
    }
}

/// Advertisements to a vnic.
#[derive(Clone)]
pub(super) struct Advertised {
    last: u32,
    next: u32,
    /// Hash of the last ones; `None` if it may have heard others since.
    contents: Option<u64>,
    /// Routers that were told.
    routers: Arc<[Mac]>,
}

impl Advertising {
    /// Returns whether a vnic is to be told now. Clocks that went back make it due.
    pub fn is_due(&self, place: PortRef, contents: u64, now: u32) -> bool {
        self.told.get(&place).is_none_or(|told| {
            let passed = now.wrapping_sub(told.last);
            passed >= told.next.wrapping_sub(told.last)
                || told.contents != Some(contents) && passed >= LEAST
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
        self.told.insert(
            place,
            Advertised { last: now, next, contents: Some(contents), routers: routers.clone() },
        );
    }

    /// Notes that a vnic may have asked, and heard of these routers, too.
    pub fn note_asked(&mut self, place: PortRef, routers: &[Mac], now: u32) {
        let new = || Advertised {
            last: now.wrapping_sub(LEAST),
            next: now,
            contents: None,
            routers: Arc::default(),
        };
        let told = self.told.entry(place).or_insert_with(new);
        let others = routers.iter().filter(|mac| !told.routers.contains(mac));
        let all: Vec<Mac> = told.routers.iter().chain(others).copied().collect();
        let newest = all.len().saturating_sub(LEFT);
        told.routers = all.into_iter().skip(newest).collect();
        told.contents = None;
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
    fn blocks_are_taken_back_for_a_day() {
        let block = |n: u16| (Ipv6Addr::from([0xfd00, n, 0, 0, 0, 0, 0, 0]), 64);
        let mut link = OnLink::default();
        link.look(&[block(1), block(2)], 10);
        assert_eq!(link.gone(), []);
        link.look(&[block(2)], 20);
        assert_eq!(link.gone(), [block(1)]);
        link.look(&[block(2)], 19 + VALID);
        assert_eq!(link.gone(), [block(1)]);
        link.look(&[block(2)], 20 + VALID);
        assert_eq!(link.gone(), []);
        // One that comes back is of the link.
        link.look(&[], 30);
        link.look(&[block(2)], 40);
        assert_eq!(link.gone(), []);
        // The newest are kept.
        for n in 3..40 {
            link.look(&[block(n)], 50);
        }
        assert_eq!(link.gone(), (31..39).map(block).collect::<Vec<_>>());
        link.look(&[], 50 + VALID);
        link.look(&[], 50 + 2 * VALID);
        assert!(link.is_empty());
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
