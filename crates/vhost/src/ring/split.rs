//! Split virtqueues (virtio 1.2, 2.7): a table of descriptors, and two rings with an index each.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU16, AtomicU64, Ordering, fence},
};

use super::{
    copy,
    door::{Door, UsedRing},
    space::{BadChain, Chains, DESC_LEN, Desc, MAX_SIZE, RingError, RingSetup, Space},
};
use crate::net::Features;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;

/// Place of a split ring. Its chains' numbers are those of the rings' indices.
pub(super) struct Split {
    event_idx: bool,
    mask: u16,
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    pub used: UsedRing,
}

impl Split {
    /// Checks a setup.
    pub fn new(setup: &RingSetup) -> Result<Split, RingError> {
        let size = setup.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(RingError::Size(size));
        }
        let n = u32::from(size);
        let place = |what, addr, len, align| {
            setup.memory.ring_span(addr, len, align).map(|s| s.ptr).ok_or(RingError::Place(what))
        };
        // The two event fields at the ends are counted always, as they are present in every layout
        // QEMU and Linux use.
        let desc = place("descriptor", setup.desc, DESC_LEN * n, 8)?;
        let avail = place("available", setup.avail, 6 + 2 * n, 2)?;
        let used = place("used", setup.used, 6 + 8 * n, 4)?;
        Ok(Split {
            event_idx: setup.features.has(Features::EVENT_IDX),
            mask: size - 1,
            desc,
            avail,
            // SAFETY: as many bytes as were checked above, in memory that is kept as long as this.
            used: unsafe { UsedRing::new(used, size, setup.used_log) },
        })
    }

    pub const fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// The `n`th 16-bit field of the available ring.
    #[inline(always)]
    fn avail_u16(&self, n: u32) -> &AtomicU16 {
        debug_assert!(n < 3 + u32::from(self.size()));
        // SAFETY: n <= size + 2 at every caller (a masked index plus 2, or a constant field). That
        // is inside the 6 + 2 * size bytes that new() checked, which are aligned to 2. Atomics may
        // be shared with the guest.
        unsafe { self.avail.cast::<AtomicU16>().add(n as usize).as_ref() }
    }

    /// The guest's index.
    #[inline(always)]
    pub fn available_index(&self) -> u16 {
        self.avail_u16(1).load(Ordering::Acquire)
    }

    /// The used index in the guest's memory: where the ring stands.
    pub fn used_index(&self) -> u16 {
        self.used.read_index()
    }

    /// The descriptor with an index; `None` when it is out of range.
    #[inline(always)]
    fn desc(&self, index: u16) -> Option<Desc> {
        if index > self.mask {
            return None;
        }
        // SAFETY: index < size: inside the table that new() checked, which is aligned to 8.
        let (addr, rest) = unsafe {
            let at = self.desc.byte_add(16 * usize::from(index)).cast::<AtomicU64>();
            (at.as_ref().load(Ordering::Relaxed), at.add(1).as_ref().load(Ordering::Relaxed))
        };
        Some(Desc::split(addr, rest))
    }

    /// Returns whether the guest wants an interrupt for what was published from `old` to `new`.
    #[inline(always)]
    pub fn wants_call(&self, old: u16, new: u16) -> bool {
        // The guest writes its event field, then reads our index; we wrote our index and read its
        // event field.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.avail_u16(2 + u32::from(self.size())).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.avail_u16(0).load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
        }
    }

    /// True if the guest asks for an interrupt for the entry at this used index (virtio 1.2,
    /// 2.7.7.1). A field that is 0 may never have been written.
    pub fn awaits(&self, published: u16) -> bool {
        let event = || self.avail_u16(2 + u32::from(self.size())).load(Ordering::Acquire);
        self.event_idx && published != 0 && event() == published
    }

    /// Asks the guest not to kick. With event indices the old event position stays behind, which
    /// says the same.
    pub fn disarm(&self, door: &Door) {
        if !self.event_idx {
            self.used.flags(door, USED_NO_NOTIFY);
        }
    }

    /// Asks the guest to kick for the next entry, before whoever called looks again.
    pub fn arm(&self, door: &Door, next_avail: u16) {
        if self.event_idx {
            self.used.event(door, next_avail);
        } else {
            self.used.flags(door, 0);
        }
        fence(Ordering::SeqCst);
    }
}

impl Chains for Split {
    #[inline(always)]
    fn head(&self, number: u16) -> u16 {
        self.avail_u16(2 + u32::from(number & self.mask)).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn first(&self, head: u16) -> Option<Desc> {
        self.desc(head)
    }

    #[inline(always)]
    fn prefetch(&self, head: u16) {
        copy::prefetch_once(self.desc.as_ptr().wrapping_add(16 * usize::from(head & self.mask)));
    }

    #[inline(always)]
    fn walk(
        &self,
        space: &Space,
        head: u16,
        budget: &mut u32,
        mut visit: impl FnMut(&Space, Desc) -> Result<(), BadChain>,
    ) -> Result<(), BadChain> {
        let mut index = head;
        let mut left = u32::from(self.size());
        loop {
            *budget = budget.checked_sub(1).ok_or(BadChain)?;
            left = left.checked_sub(1).ok_or(BadChain)?;
            let desc = self.desc(index).ok_or(BadChain)?;
            if desc.is_indirect() {
                // 2.7.5.3.1: INDIRECT and NEXT exclude each other, and it was negotiated.
                if desc.has_next() || !space.features.has(Features::INDIRECT_DESC) {
                    return Err(BadChain);
                }
                return walk_indirect(space, desc, budget, visit);
            }
            visit(space, desc)?;
            if !desc.has_next() {
                return Ok(());
            }
            index = desc.next;
        }
    }
}

#[inline(always)]
fn walk_indirect(
    space: &Space,
    table: Desc,
    budget: &mut u32,
    mut visit: impl FnMut(&Space, Desc) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    if table.len == 0 || !table.len.is_multiple_of(DESC_LEN) {
        return Err(BadChain);
    }
    let n = table.len / DESC_LEN;
    let mut index = 0;
    let mut left = n;
    loop {
        *budget = budget.checked_sub(1).ok_or(BadChain)?;
        left = left.checked_sub(1).ok_or(BadChain)?;
        let (addr, rest) = space.read_indirect(table.addr, index)?;
        let desc = Desc::split(addr, rest);
        if desc.is_indirect() {
            return Err(BadChain);
        }
        visit(space, desc)?;
        if !desc.has_next() {
            return Ok(());
        }
        index = u32::from(desc.next);
        if index >= n {
            return Err(BadChain);
        }
    }
}
