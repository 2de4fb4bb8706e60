//! The driver's half of a split ring (virtio 1.2, 2.7): where it is, and its free descriptors.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::{
    queue::chain::Piece,
    ring::{AVAIL_NO_INTERRUPT, DESC_NEXT, Desc, Ring, USED_NO_NOTIFY, passed},
};

/// The driver's half of a split ring. Chains are known by their heads.
#[derive(Debug)]
pub(super) struct SplitHalf {
    pub(super) ring: Ring,
    event_idx: bool,
    in_order: bool,
    /// Free descriptors, a stack (without IN_ORDER).
    free: Vec<u16>,
    /// Next descriptor to be used (with IN_ORDER, which takes them in table order).
    next_desc: u16,
    /// Successor of each descriptor of an outstanding chain: our own copy, as the ring's may be
    /// overwritten.
    following: Vec<u16>,
    avail_idx: u16,
    pub(super) published: u16,
    notified: u16,
    last_used: u16,
}

impl SplitHalf {
    /// Begins at index `first` of a zeroed ring.
    pub(super) fn new(ring: Ring, event_idx: bool, in_order: bool, first: u16) -> SplitHalf {
        let size = ring.size();
        if first != 0 {
            ring.avail_idx().store(first, Relaxed);
            ring.used_idx().store(first, Release);
        }
        SplitHalf {
            event_idx,
            in_order,
            free: (0..size).rev().collect(),
            next_desc: 0,
            following: vec![0; size.into()],
            avail_idx: first,
            published: first,
            notified: first,
            last_used: first,
            ring,
        }
    }

    /// Writes a chain, for which there is room. Returns its head.
    pub(super) fn write(&mut self, pieces: impl Iterator<Item = Piece>) -> u16 {
        let mut head = None;
        let mut previous: Option<(u16, Desc)> = None;
        for Piece { addr, len, flags } in pieces {
            let index = self.take_desc();
            let desc = Desc { addr, len, flags, next: 0 };
            if let Some((at, mut before)) = previous.replace((index, desc)) {
                (before.flags, before.next) = (before.flags | DESC_NEXT, index);
                self.following[usize::from(at)] = index;
                self.ring.set_desc(at, before);
            }
            head.get_or_insert(index);
        }
        if let Some((at, desc)) = previous {
            self.ring.set_desc(at, desc);
        }
        let head = head.unwrap_or_default();
        self.ring.avail_entry(self.avail_idx).store(head, Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        head
    }

    fn take_desc(&mut self) -> u16 {
        if self.in_order {
            let index = self.next_desc;
            self.next_desc = (index + 1) & (self.ring.size() - 1);
            return index;
        }
        self.free.pop().unwrap_or_default()
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.ring.avail_idx().store(self.avail_idx, Release);
        self.published = self.avail_idx;
    }

    /// Counts what was published since the last call as announced. Returns None if that is nothing,
    /// else whether the device wants to be notified of it.
    pub(super) fn announce(&mut self) -> Option<bool> {
        if self.published == self.notified {
            return None;
        }
        let wanted = if self.event_idx {
            passed(self.ring.avail_event().load(Relaxed), self.published, self.notified)
        } else {
            self.ring.used_flags().load(Relaxed) & USED_NO_NOTIFY == 0
        };
        self.notified = self.published;
        Some(wanted)
    }

    /// Used entries that were not taken.
    #[inline]
    pub(super) fn ready(&self) -> u16 {
        self.ring.used_idx().load(Acquire).wrapping_sub(self.last_used)
    }

    /// Returns id and length of the next used entry, which is there.
    pub(super) fn used(&self) -> (u32, u32) {
        self.ring.used_entry(self.last_used)
    }

    /// Goes on behind a used chain.
    pub(super) fn taken(&mut self, head: u16, descs: u16) {
        if !self.in_order {
            let mut index = head;
            for _ in 0..descs {
                self.free.push(index);
                index = self.following[usize::from(index)];
            }
        }
        self.last_used = self.last_used.wrapping_add(1);
        if self.event_idx && self.last_used & 0x3fff == 0 {
            // An event field left behind comes near again after 65,536 chains.
            self.suppress();
        }
    }

    pub(super) fn arm(&self) {
        self.ring.avail_flags().store(0, Relaxed);
        if self.event_idx {
            self.ring.used_event().store(self.last_used, Relaxed);
        }
    }

    pub(super) fn suppress(&self) {
        if self.event_idx {
            self.ring.avail_flags().store(0, Relaxed); // MUST be 0 with EVENT_IDX (2.7.7.1)
            self.ring.used_event().store(self.last_used.wrapping_sub(1), Relaxed);
        } else {
            self.ring.avail_flags().store(AVAIL_NO_INTERRUPT, Relaxed);
        }
    }
}
