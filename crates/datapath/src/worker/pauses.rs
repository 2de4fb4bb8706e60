//! Pauses: rings of vnics that sent as much as they may, and are looked at again at a time of their
//! own. Meanwhile their guests are not asked to kick, and their frames wait where they are.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::engine::place::MAX_SLOTS;

/// Slots of vnics with a pause.
pub(super) struct Pauses {
    /// Ends of pauses, in ticks of the time stamp counter. Each slot is there once at most.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// A bit for each slot that is in `ends`.
    paused: Vec<u64>,
    /// Number of pauses that ended.
    ended: usize,
}

impl Pauses {
    /// Makes room for all vnics that there may be.
    pub fn new() -> Pauses {
        Pauses {
            ends: BinaryHeap::with_capacity(MAX_SLOTS as usize),
            paused: vec![0; MAX_SLOTS as usize / 64],
            ended: 0,
        }
    }

    /// Begins a pause, unless the slot has one.
    pub fn begin(&mut self, slot: u32, end: u64) {
        let Some(word) = self.paused.get_mut(slot as usize / 64) else { return };
        let bit = 1 << (slot % 64);
        if *word & bit == 0 {
            *word |= bit;
            self.ends.push(Reverse((end, slot)));
        }
    }

    /// Returns the end of the next pause.
    #[inline(always)]
    pub fn next(&self) -> Option<u64> {
        self.ends.peek().map(|Reverse((end, _))| *end)
    }

    /// Returns a number that is another one after each pause.
    pub fn turn(&self) -> usize {
        self.ended
    }

    /// Returns a slot whose pause ended before `now`, without it from then on.
    pub fn ended(&mut self, now: u64) -> Option<u32> {
        self.next().filter(|end| *end <= now)?;
        let Reverse((_, slot)) = self.ends.pop()?;
        self.ended = self.ended.wrapping_add(1);
        if let Some(word) = self.paused.get_mut(slot as usize / 64) {
            *word &= !(1 << (slot % 64));
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_in_order_and_each_slot_has_one() {
        let mut pauses = Pauses::new();
        for (slot, end) in [(5, 300), (70, 100), (5, 200), (MAX_SLOTS - 1, 200), (MAX_SLOTS, 1)] {
            pauses.begin(slot, end);
        }
        assert_eq!(pauses.next(), Some(100));
        let mut ended = |now| std::iter::from_fn(|| pauses.ended(now)).collect::<Vec<_>>();
        assert!(ended(99).is_empty());
        assert_eq!(ended(250), [70, MAX_SLOTS - 1]);
        assert_eq!(ended(300), [5]);
        pauses.begin(5, 400);
        assert_eq!(pauses.next(), Some(400));
    }
}
