//! A ring whose chains are known by their heads: the part shared by both directions.

use std::sync::atomic::{
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use butterfly_vhost::net::Features;

use crate::{
    memory::MemoryError,
    queue::{DeviceError, QueueLink},
    ring::{AVAIL_NO_INTERRUPT, Ring, USED_NO_NOTIFY, passed},
};

/// The part shared by both directions: a ring whose chains are known by their heads.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) link: QueueLink,
    event_idx: bool,
    in_order: bool,
    mask: u16,
    /// Descriptors between two heads: chain `i` starts at descriptor `i << shift`.
    pub(super) shift: u32,
    pub(super) chains: u16,
    /// Contents of each entry of the available ring.
    entries: Vec<u16>,
    pub(super) avail_idx: u16,
    notified: u16,
    pub(super) last_used: u16,
    pub(super) outstanding: u16,
    /// True for each chain that the device has.
    owned: Vec<bool>,
    /// Next chain in turn, with IN_ORDER.
    next_in_order: u16,
    pub(super) kicks: u64,
}

impl Core {
    pub(super) fn new(ring: Ring, features: Features, shift: u32) -> Result<Core, MemoryError> {
        let size = ring.size();
        let core = Core {
            link: QueueLink::new(ring)?,
            event_idx: features.has(Features::EVENT_IDX),
            in_order: features.has(Features::IN_ORDER),
            mask: size - 1,
            shift,
            chains: size >> shift,
            entries: vec![0; size.into()],
            avail_idx: 0,
            notified: 0,
            last_used: 0,
            outstanding: 0,
            owned: vec![false; (size >> shift).into()],
            next_in_order: 0,
            kicks: 0,
        };
        core.suppress_interrupts();
        Ok(core)
    }

    /// Makes a chain available with the next [`Self::publish`].
    #[inline]
    pub(super) fn push(&mut self, chain: u16) {
        let head = chain << self.shift;
        if let Some(entry) = self.entries.get_mut(usize::from(self.avail_idx & self.mask))
            && *entry != head
        {
            *entry = head;
            self.link.ring.avail_entry(self.avail_idx).store(head, Relaxed);
        }
        if let Some(owned) = self.owned.get_mut(usize::from(chain)) {
            *owned = true;
        }
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.outstanding += 1;
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        let ring = &self.link.ring;
        ring.avail_idx().store(self.avail_idx, Release);
        fence(SeqCst); // see VirtQueue::notify
        let wanted = if self.event_idx {
            passed(ring.avail_event().load(Relaxed), self.avail_idx, self.notified)
        } else {
            ring.used_flags().load(Relaxed) & USED_NO_NOTIFY == 0
        };
        self.notified = self.avail_idx;
        if wanted {
            self.kicks += 1;
            self.link.kick();
        }
    }

    /// Takes up to `max` used chains: chain and length, None for one that IN_ORDER left out.
    #[inline]
    pub(super) fn take(
        &mut self,
        max: usize,
        mut with: impl FnMut(u16, Option<u32>),
    ) -> Result<usize, DeviceError> {
        let ready = self.link.ring.used_idx().load(Acquire).wrapping_sub(self.last_used);
        if ready == 0 {
            return Ok(0);
        }
        if ready > self.outstanding {
            return Err(DeviceError::UsedIndex { moved: ready, outstanding: self.outstanding });
        }
        let mut taken = 0;
        while taken < max.min(ready.into()) {
            let (id, len) = self.link.ring.used_entry(self.last_used);
            let chain = (id >> self.shift) as u16;
            if id > u32::from(self.mask) || u32::from(chain) << self.shift != id {
                return Err(DeviceError::UsedId(id));
            }
            match self.owned.get_mut(usize::from(chain)) {
                Some(owned) if *owned => *owned = false,
                _ => return Err(DeviceError::UsedId(id)),
            }
            let mut covered = 1;
            if self.in_order {
                // Chains are used in turn, so the one named says how many of those before it go
                // along.
                covered = (chain.wrapping_sub(self.next_in_order) & (self.chains - 1)) + 1;
                if usize::from(covered) > usize::from(ready) - taken {
                    return Err(DeviceError::OutOfOrder(id));
                }
                for _ in 1..covered {
                    if let Some(owned) = self.owned.get_mut(usize::from(self.next_in_order)) {
                        *owned = false;
                    }
                    with(self.next_in_order, None);
                    self.next_in_order = (self.next_in_order + 1) & (self.chains - 1);
                }
                self.next_in_order = (chain + 1) & (self.chains - 1);
            }
            with(chain, Some(len));
            self.last_used = self.last_used.wrapping_add(covered);
            self.outstanding -= covered;
            taken += usize::from(covered);
        }
        if self.event_idx {
            self.suppress_interrupts();
        }
        Ok(taken)
    }

    /// Does the same as [`crate::VirtQueue::suppress_interrupts`].
    #[inline]
    fn suppress_interrupts(&self) {
        let ring = &self.link.ring;
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
