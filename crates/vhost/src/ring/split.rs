//! The part that both directions of a split virtqueue share: location, descriptors, indices,
//! notifications (virtio 1.2, 2.7).

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering, fence},
    },
};

pub use super::call::CallFd;
use super::{copy, door::Door, touches::Touches};
use crate::{
    dirty::DirtyLog,
    memory::{GuestMemory, Window},
    net::Features,
    sigbus,
};

const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;
const DESC_INDIRECT: u16 = 4;
const DESC_LEN: u32 = 16;
const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;
const MAX_SIZE: u16 = 32768;

/// Most descriptors one chain may have, indirect ones included, and most that a batch looks at.
pub(super) const CHAIN_BUDGET: u32 = 1024;

/// Everything that says where a ring lies and how it is used, as negotiated. Addresses are guest
/// physical.
#[derive(Clone)]
pub struct RingSetup {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Dirty log for stores, while the guest migrates.
    pub log: Option<Arc<DirtyLog>>,
    /// Negotiated features.
    pub features: Features,
    /// Number of descriptors, a power of two up to 32768.
    pub size: u16,
    /// Descriptor table.
    pub desc: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
    /// Guest physical address to log stores into the used ring at (VHOST_VRING_F_LOG).
    pub used_log: Option<u64>,
    /// Eventfd that interrupts the guest; without one it polls.
    pub call: Option<Arc<CallFd>>,
}

/// Reason why a ring could not be started.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)] // the texts say it
pub enum RingError {
    #[error("ring size {0} is not a power of two up to {MAX_SIZE}")]
    Size(u16),
    #[error("the {0} ring is not inside one memory region, or not aligned")]
    Place(&'static str),
}

/// A ring as the operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStatus {
    /// Number of descriptors.
    pub size: u16,
    /// True if the guest enabled it.
    pub enabled: bool,
    /// The device's position: the next available entry it takes.
    pub next_avail: u16,
    /// Position of the guest (available index).
    pub avail_idx: u16,
    /// The device's next used entry, as published.
    pub used_idx: u16,
    /// The guest's index was impossible; the ring rests until it is set up anew.
    pub broken: bool,
    /// The vnic is held: its rings are not served.
    pub held: bool,
}

/// A descriptor, read once.
#[derive(Clone, Copy)]
pub(super) struct Desc {
    pub addr: u64,
    pub len: u32,
    flags: u16,
    next: u16,
}

impl Desc {
    fn from_words(addr: u64, rest: u64) -> Desc {
        Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// The only descriptor of its chain, in the ring's own table, for the device to read.
    #[inline(always)]
    pub fn is_single_readable(self) -> bool {
        self.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0
    }

    /// The only descriptor of its chain, in the ring's own table, for the device to write.
    #[inline(always)]
    pub fn is_single_writable(self) -> bool {
        self.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == DESC_WRITE
    }

    pub fn is_writable(self) -> bool {
        self.flags & DESC_WRITE != 0
    }
}

/// A chain that breaks the rules of virtio 1.2, 2.7.5: a loop, an index or address out of range,
/// wrong flags.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadChain;

/// A started ring.
pub(crate) struct Split {
    pub memory: Arc<GuestMemory>,
    pub features: Features,
    pub header_len: usize,
    pub call: Option<Arc<CallFd>>,
    /// The ring is served: the guest enabled it, its vnic is not held, and it is not stale.
    pub enabled: bool,
    pub wanted: bool,
    pub held: bool,
    /// Number of its next entries that are older than what came by other rings.
    pub stale: u16,
    pub broken: bool,
    pub next_avail: u16,
    /// The guest's index as last read.
    pub avail_idx: u16,
    pub next_used: u16,
    published: u16,
    /// The way into the guest's memory.
    pub(super) door: Door,
    event_idx: bool,
    mask: u16,
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    pub hint: usize,
    /// Region of the last buffer.
    pub window: Window,
    /// Cost of touching the guest's memory.
    pub touches: Arc<Touches>,
}

// SAFETY: the pointers point into `memory`, which is Send and kept alive here. One thread at a time
// uses the ring (behind a lock). Memory shared with the guest is only accessed through atomics and
// the copy functions.
unsafe impl Send for Split {}

impl Split {
    /// Checks a setup and starts at `next`, both for the available and the used ring.
    pub fn new(setup: &RingSetup, next: u16) -> Result<Split, RingError> {
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
            memory: setup.memory.clone(),
            features: setup.features,
            header_len: setup.features.header_len(),
            call: setup.call.clone(),
            enabled: false,
            wanted: false,
            held: false,
            stale: 0,
            broken: false,
            next_avail: next,
            avail_idx: next,
            next_used: next,
            published: next,
            // SAFETY: as many bytes as were checked above, in memory that is kept here.
            door: unsafe { Door::new(setup.log.clone(), used, size, setup.used_log) },
            event_idx: setup.features.has(Features::EVENT_IDX),
            mask: size - 1,
            desc,
            avail,
            hint: 0,
            window: Window::NONE,
            touches: Touches::nobody(),
        })
    }

    pub const fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    pub fn status(&self) -> RingStatus {
        RingStatus {
            size: self.size(),
            enabled: self.wanted,
            next_avail: self.next_avail,
            avail_idx: self.avail_u16(1).load(Ordering::Relaxed),
            used_idx: self.published,
            broken: self.broken,
            held: self.held,
        }
    }

    /// Has the ring served if its guest wants that and its vnic is not held.
    pub fn serve(&mut self, wanted: bool, held: bool) {
        (self.wanted, self.held) = (wanted, held);
        self.enabled = wanted && !held && self.stale == 0;
    }

    /// Has the ring rest until so many entries were discarded.
    pub fn rest_as_stale(&mut self, stale: u16) {
        self.stale = stale;
        self.serve(self.wanted, self.held);
    }

    /// SET_VRING_ENABLE.
    pub fn want(&mut self, wanted: bool) {
        self.serve(wanted, self.held);
    }

    /// Holds the ring, or lets it go.
    pub fn hold(&mut self, held: bool) {
        self.serve(self.wanted, held);
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

    /// Looks at the guest's index again. Returns how many entries the guest made available that
    /// were not taken, `None` if the index is impossible.
    #[inline(always)]
    pub fn available(&mut self) -> Option<u16> {
        self.avail_idx = self.avail_u16(1).load(Ordering::Acquire);
        let n = self.avail_idx.wrapping_sub(self.next_avail);
        if n > self.size() {
            self.broken = true;
            return None;
        }
        Some(n)
    }

    /// Entries known to be available, without looking.
    #[inline(always)]
    pub fn known(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.next_avail)
    }

    /// Head of the chain `ahead` entries from the next one.
    #[inline(always)]
    pub fn head(&self, ahead: u16) -> u16 {
        let slot = self.next_avail.wrapping_add(ahead) & self.mask;
        self.avail_u16(2 + u32::from(slot)).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn prefetch_desc(&self, index: u16) {
        copy::prefetch_once(self.desc.as_ptr().wrapping_add(16 * usize::from(index & self.mask)));
    }

    #[inline(always)]
    pub fn prefetch_used(&self) {
        self.door.prefetch_used(self.next_used & self.mask);
    }

    /// A descriptor of the ring's table; `None` when the index is out of range.
    #[inline(always)]
    pub(super) fn desc(&self, index: u16) -> Option<Desc> {
        if index > self.mask {
            return None;
        }
        // SAFETY: index < size: inside the table that new() checked, which is aligned to 8.
        let (addr, rest) = unsafe {
            let at = self.desc.byte_add(16 * usize::from(index)).cast::<AtomicU64>();
            (at.as_ref().load(Ordering::Relaxed), at.add(1).as_ref().load(Ordering::Relaxed))
        };
        Some(Desc::from_words(addr, rest))
    }

    /// A buffer that lies whole in one region. `window` is a copy of [`Self::window`] that stays in
    /// registers.
    #[inline(always)]
    pub(super) fn whole(&self, addr: u64, len: u32, window: &mut Window) -> Option<NonNull<u8>> {
        match window.whole(addr, len) {
            Some(ptr) => Some(ptr),
            None => {
                *window = self.memory.window(addr)?;
                window.whole(addr, len)
            }
        }
    }

    /// Visits the descriptors of a chain in order, indirect ones too. `budget` is how many may
    /// still be looked at. A chain that is longer than the table it lies in is a loop.
    pub(super) fn walk(
        &self,
        head: u16,
        budget: &mut u32,
        mut visit: impl FnMut(&Split, Desc) -> Result<(), BadChain>,
    ) -> Result<(), BadChain> {
        let mut index = head;
        let mut left = u32::from(self.size());
        loop {
            *budget = budget.checked_sub(1).ok_or(BadChain)?;
            left = left.checked_sub(1).ok_or(BadChain)?;
            let desc = self.desc(index).ok_or(BadChain)?;
            if desc.flags & DESC_INDIRECT != 0 {
                // 2.7.5.3.1: INDIRECT and NEXT exclude each other, and it was negotiated.
                if desc.flags & DESC_NEXT != 0 || !self.features.has(Features::INDIRECT_DESC) {
                    return Err(BadChain);
                }
                return self.walk_indirect(desc, budget, visit);
            }
            visit(self, desc)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(());
            }
            index = desc.next;
        }
    }

    fn walk_indirect(
        &self,
        table: Desc,
        budget: &mut u32,
        mut visit: impl FnMut(&Split, Desc) -> Result<(), BadChain>,
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
            let mut raw = [0u8; DESC_LEN as usize];
            let at = table.addr.checked_add(u64::from(DESC_LEN * index)).ok_or(BadChain)?;
            self.read(at, &mut raw)?;
            let word = u128::from_le_bytes(raw);
            let desc = Desc::from_words(word as u64, (word >> 64) as u64);
            if desc.flags & DESC_INDIRECT != 0 {
                return Err(BadChain);
            }
            visit(self, desc)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(());
            }
            index = u32::from(desc.next);
            if index >= n {
                return Err(BadChain);
            }
        }
    }

    /// Copies guest memory, which may span regions.
    fn read(&self, guest_addr: u64, to: &mut [u8]) -> Result<(), BadChain> {
        let mut done = 0;
        let mut hint = self.hint;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = guest_addr.checked_add(done as u64).ok_or(BadChain)?;
            let span = self.memory.span(at, rest.len() as u32, &mut hint).ok_or(BadChain)?;
            // SAFETY: span.len <= rest.len(), and the span is mapped.
            unsafe { copy::copy(span.ptr.as_ptr(), rest.as_mut_ptr(), span.len as usize) };
            done += span.len as usize;
        }
        Ok(())
    }

    /// Writes the next used entry; the guest sees it after [`Self::publish`].
    #[inline(always)]
    pub fn push_used(&mut self, id: u16, len: u32) {
        self.door.used_entry(self.next_used, id, len);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows the guest every used entry written so far.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.door.used_index(self.next_used);
    }

    /// After [`Self::publish`]: whether the guest wants an interrupt for what was published since
    /// the last call (2.7.7.2).
    #[inline(always)]
    pub fn wants_call(&mut self) -> bool {
        let old = std::mem::replace(&mut self.published, self.next_used);
        if old == self.next_used || self.call.is_none() {
            return false;
        }
        // The guest writes its event field, then reads our index; we wrote our index and read its
        // event field.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.avail_u16(2 + u32::from(self.size())).load(Ordering::Relaxed);
            self.next_used.wrapping_sub(event).wrapping_sub(1) < self.next_used.wrapping_sub(old)
        } else {
            self.avail_u16(0).load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
        }
    }

    /// True if the guest asks for an interrupt as soon as the device uses the next entry, which it
    /// does when it has seen all used ones (virtio 1.2, 2.7.7.1). A field that is 0 may never have
    /// been written.
    pub fn awaits_next(&self) -> bool {
        let event = || self.avail_u16(2 + u32::from(self.size())).load(Ordering::Acquire);
        self.event_idx && self.published != 0 && event() == self.published
    }

    /// True if the guest has made entries available that the device did not take.
    pub fn has_entries(&self) -> bool {
        self.avail_u16(1).load(Ordering::Acquire) != self.next_avail
    }

    /// True if the device has all entries of the ring, so the guest has none.
    pub fn has_all_entries(&self) -> bool {
        let avail = self.avail_u16(1).load(Ordering::Acquire);
        avail.wrapping_sub(self.published) == self.size()
    }

    /// Asks the guest not to kick. With event indices the old event position stays behind, which
    /// says the same.
    pub fn disarm(&self) {
        if !self.event_idx {
            self.door.used_flags(USED_NO_NOTIFY);
        }
    }

    /// Asks the guest to kick for the next entry, then looks again. Returns whether the ring is
    /// still empty.
    pub fn arm(&mut self) -> bool {
        if self.event_idx {
            self.door.used_event(self.next_avail);
        } else {
            self.door.used_flags(0);
        }
        fence(Ordering::SeqCst);
        self.available().is_none_or(|n| n == 0)
    }

    /// True if a file behind the ring's memory or log became shorter than its mapping.
    #[inline(always)]
    pub fn poisoned(&self) -> bool {
        // Asked for each batch. Usually nothing is, anywhere.
        sigbus::any_poisoned() && self.holds_poisoned()
    }

    #[cold]
    fn holds_poisoned(&self) -> bool {
        self.memory.poisoned() || self.door.poisoned()
    }

    /// Moves the positions of a running ring to a new setup of it.
    pub fn take_positions(&mut self, old: &Split) {
        self.touches = old.touches.clone();
        self.stale = old.stale;
        self.serve(old.wanted, old.held);
        self.broken = old.broken;
        self.next_avail = old.next_avail;
        self.avail_idx = old.avail_idx;
        self.next_used = old.next_used;
        self.published = old.published;
    }

    /// The used index in the guest's memory: where the ring stands if `base` disagrees.
    pub fn used_idx_in_memory(&self) -> u16 {
        self.door.read_used_index()
    }
}
