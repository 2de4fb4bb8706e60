//! A split ring for measuring: its descriptors stay, and chains are known by their heads.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::{
    fast::owned::{Owned, Pieces},
    queue::DeviceError,
    ring::{AVAIL_NO_INTERRUPT, Desc, Ring, USED_NO_NOTIFY, passed},
};

/// A split ring. Entries of the available ring are written only when they change.
#[derive(Debug)]
pub(super) struct SplitChains {
    ring: Ring,
    event_idx: bool,
    mask: u16,
    /// Descriptors between two heads: chain `i` starts at descriptor `i << shift`.
    shift: u32,
    /// Contents of each entry of the available ring.
    entries: Vec<u16>,
    avail_idx: u16,
    notified: u16,
    last_used: u16,
}

impl SplitChains {
    pub(super) fn new(ring: Ring, event_idx: bool, shift: u32) -> SplitChains {
        let size = ring.size();
        let chains = SplitChains {
            ring,
            event_idx,
            mask: size - 1,
            shift,
            entries: vec![0; size.into()],
            avail_idx: 0,
            notified: 0,
            last_used: 0,
        };
        chains.suppress_interrupts();
        chains
    }

    #[inline]
    pub(super) fn describe(&mut self, chain: u16, pieces: Pieces) {
        let head = chain << self.shift;
        let next = if pieces.second.is_some() { head + 1 } else { 0 };
        self.ring.set_desc(head, Desc { next, ..pieces.first });
        if let Some(second) = pieces.second {
            self.ring.set_desc(next, second);
        }
    }

    #[inline]
    pub(super) fn push(&mut self, chain: u16) {
        let head = chain << self.shift;
        if let Some(entry) = self.entries.get_mut(usize::from(self.avail_idx & self.mask))
            && *entry != head
        {
            *entry = head;
            self.ring.avail_entry(self.avail_idx).store(head, Relaxed);
        }
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    #[inline]
    pub(super) fn show(&self) {
        self.ring.avail_idx().store(self.avail_idx, Release);
    }

    /// True if the device wants to be notified of what was shown since the last call.
    #[inline]
    pub(super) fn wanted(&mut self) -> bool {
        let wanted = if self.event_idx {
            passed(self.ring.avail_event().load(Relaxed), self.avail_idx, self.notified)
        } else {
            self.ring.used_flags().load(Relaxed) & USED_NO_NOTIFY == 0
        };
        self.notified = self.avail_idx;
        wanted
    }

    #[inline]
    pub(super) fn has_used(&self) -> bool {
        self.ring.used_idx().load(Acquire) != self.last_used
    }

    #[inline]
    pub(super) fn take(
        &mut self,
        owned: &mut Owned,
        max: usize,
        with: &mut impl FnMut(u16, Option<u32>),
    ) -> Result<usize, DeviceError> {
        let ready = self.ring.used_idx().load(Acquire).wrapping_sub(self.last_used);
        if ready == 0 {
            return Ok(0);
        }
        if ready > owned.outstanding {
            return Err(DeviceError::UsedIndex { moved: ready, outstanding: owned.outstanding });
        }
        let mut taken = 0;
        while usize::from(taken) < max.min(ready.into()) {
            let (id, len) = self.ring.used_entry(self.last_used);
            let chain = (id >> self.shift) as u16;
            if id > u32::from(self.mask) || u32::from(chain) << self.shift != id {
                return Err(DeviceError::UsedId(id));
            }
            let covered = owned.take((id, chain), len, ready - taken, with)?;
            self.last_used = self.last_used.wrapping_add(covered);
            taken += covered;
        }
        if self.event_idx {
            self.suppress_interrupts();
        }
        Ok(taken.into())
    }

    /// Does the same as [`crate::VirtQueue::suppress_interrupts`].
    #[inline]
    fn suppress_interrupts(&self) {
        let ring = &self.ring;
        if !self.event_idx {
            ring.avail_flags().store(AVAIL_NO_INTERRUPT, Relaxed);
            return;
        }
        // Seldom, since the device reads the line: the field is far from the used index for half of
        // its range.
        let event = ring.used_event().load(Relaxed);
        if self.last_used.wrapping_sub(event) > 0x4000 || self.last_used == 0 {
            ring.used_event().store(self.last_used.wrapping_sub(1), Relaxed);
        }
    }
}
