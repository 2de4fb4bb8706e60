//! The part that both directions of a virtqueue share: whose memory it lies in, whether it is
//! served, how far it is. Where entries lie and how they are shown is its layout's: [`Split`] or
//! [`Packed`].
//!
//! Chains are numbered in the order in which the guest made them available, without end; all
//! positions here are such numbers.

use std::sync::Arc;

use butterfly_point::{Point, pass};

use super::{
    call::CallFd,
    door::Door,
    note::{FRESH, MOST},
    packed::Packed,
    space::{CHAIN_BUDGET, Chains, RingError, RingSetup, Space},
    split::Split,
    touches::Touches,
};
use crate::{memory::Window, sigbus};

/// A ring as the operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStatus {
    /// Number of descriptors.
    pub size: u16,
    /// True if the guest enabled it.
    pub enabled: bool,
    /// True if it is packed. Positions have the wrap counter in their highest bit then.
    pub packed: bool,
    /// The device's position: the next available entry it takes.
    pub next_avail: u16,
    /// Position of the guest (available index).
    pub avail_idx: u16,
    /// The device's next used entry, as published.
    pub used_idx: u16,
    /// Number of entries that the guest has made available and the device has not taken.
    pub waiting: u16,
    /// The guest's index was impossible; the ring rests until it is set up anew.
    pub broken: bool,
    /// The vnic is held: its rings are not served.
    pub held: bool,
}

impl RingStatus {
    /// True if its guest has made anything available since its driver began.
    pub fn has_moved(&self) -> bool {
        let start = if self.packed { FRESH } else { 0 };
        self.avail_idx != start
    }
}

/// Layout of a ring: where its entries lie, and how they are shown.
pub(super) enum Layout {
    Split(Split),
    Packed(Box<Packed>),
}

/// A started ring.
pub(crate) struct Vring {
    pub(super) space: Space,
    pub call: Option<Arc<CallFd>>,
    /// The ring is served: the guest enabled it, its vnic is not held, and it is neither stale nor
    /// broken.
    pub enabled: bool,
    pub wanted: bool,
    pub held: bool,
    /// Number of its next entries that are older than what came by other rings.
    pub stale: u16,
    pub broken: bool,
    pub next_avail: u16,
    /// The guest's chains as far as they are known.
    pub avail_idx: u16,
    pub next_used: u16,
    /// Chains that the guest was told of when it was last asked whether it wants an interrupt.
    told: u16,
    /// The way into the guest's memory.
    pub(super) door: Door,
    pub(super) layout: Layout,
    /// Region of the last buffer.
    pub window: Window,
    /// Cost of touching the guest's memory.
    pub touches: Arc<Touches>,
    /// Most chains that a frame may have.
    pub most_of_a_frame: u16,
}

// SAFETY: the pointers of the layout point into the memory of `space`, which is Send and kept alive
// here. One thread at a time uses the ring (behind a lock). Memory shared with the guest is only
// accessed through atomics and the copy functions.
unsafe impl Send for Vring {}

impl Vring {
    /// Makes a ring whose next chain, available and used, has this number.
    fn new(setup: &RingSetup, layout: Layout, number: u16) -> Vring {
        Vring {
            space: Space::of(setup),
            call: setup.call.clone(),
            enabled: false,
            wanted: false,
            held: false,
            stale: 0,
            broken: false,
            next_avail: number,
            avail_idx: number,
            next_used: number,
            told: number,
            door: Door::new(setup.log.clone()),
            layout,
            window: Window::NONE,
            touches: Touches::nobody(),
            most_of_a_frame: if setup.is_packed() { MOST } else { u16::MAX },
        }
    }

    /// Starts a ring where the last device stopped. Of a split ring that is the used index in the
    /// guest's memory, of a packed one what its note says. Without that, as the guest had no device
    /// yet, it is `base` (SET_VRING_BASE). Returns it with whether another device drove it before.
    pub fn start(setup: &RingSetup, base: u16) -> Result<(Vring, bool), RingError> {
        if setup.is_packed() {
            let note = setup.note.clone().ok_or(RingError::Lost)?;
            let mut packed = Packed::new(setup, note)?;
            let door = Door::new(setup.log.clone());
            let position = packed.resume(&door, base)?;
            let vring = Vring::new(setup, Layout::Packed(Box::new(packed)), 0);
            return Ok((vring, position != FRESH));
        }
        let split = Split::new(setup)?;
        // Every frame taken is completed at once and in order. So the used index is the exact point
        // where the last device stopped. It wins over a different `base`, which a front end gives
        // if it resumes a device that died and counts on the available index.
        let used = split.used_index();
        Ok((Vring::new(setup, Layout::Split(split), used), used > 0))
    }

    /// Makes a ring in another place, to [go on](Self::take_positions) for one that runs.
    pub fn elsewhere(setup: &RingSetup) -> Result<Vring, RingError> {
        let layout = if setup.is_packed() {
            let note = setup.note.clone().ok_or(RingError::Lost)?;
            Layout::Packed(Box::new(Packed::new(setup, note)?))
        } else {
            Layout::Split(Split::new(setup)?)
        };
        Ok(Vring::new(setup, layout, 0))
    }

    pub fn size(&self) -> u16 {
        match &self.layout {
            Layout::Split(split) => split.size(),
            Layout::Packed(packed) => packed.size(),
        }
    }

    /// The place from which another device goes on (GET_VRING_BASE).
    pub fn position(&self) -> u16 {
        match &self.layout {
            Layout::Split(_) => self.next_used,
            Layout::Packed(packed) => packed.position(),
        }
    }

    pub fn status(&self) -> RingStatus {
        let (packed, avail_idx, waiting) = match &self.layout {
            Layout::Split(split) => {
                let avail = split.available_index();
                (false, avail, avail.wrapping_sub(self.next_avail))
            }
            Layout::Packed(packed) => {
                let waiting = packed.waiting();
                (true, packed.after(waiting), waiting)
            }
        };
        let next_avail = if packed { self.position() } else { self.next_avail };
        RingStatus {
            size: self.size(),
            enabled: self.wanted,
            packed,
            next_avail,
            avail_idx,
            used_idx: self.position(),
            waiting,
            broken: self.broken,
            held: self.held,
        }
    }

    /// Has the ring served if its guest wants that and its vnic is not held.
    pub fn serve(&mut self, wanted: bool, held: bool) {
        (self.wanted, self.held) = (wanted, held);
        self.enabled = wanted && !held && self.stale == 0 && !self.broken;
    }

    /// Has the ring rest until it is set up anew.
    pub fn rest(&mut self) {
        self.broken = true;
        self.enabled = false;
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

    /// Looks at what the guest made available again. Returns how many chains are known now that
    /// were not taken, `None` if the guest said something impossible. Of a packed ring no more
    /// than a batch is looked for.
    #[inline(always)]
    pub fn available(&mut self) -> Option<u16> {
        let Layout::Split(split) = &self.layout else {
            return self.available_packed(CHAIN_BUDGET);
        };
        self.avail_idx = split.available_index();
        let known = self.avail_idx.wrapping_sub(self.next_avail);
        if known > split.size() {
            self.rest();
            return None;
        }
        Some(known)
    }

    /// Does the same for a packed ring, and looks at so many descriptors at most.
    #[cold] // so that split rings get the registers
    #[inline(never)]
    pub fn available_packed(&mut self, budget: u32) -> Option<u16> {
        let known = self.known();
        let Layout::Packed(packed) = &mut self.layout else { return None };
        let Some(avail_idx) = packed.scan(self.avail_idx, known, budget) else {
            self.rest();
            return None;
        };
        self.avail_idx = avail_idx;
        Some(self.known())
    }

    /// True if a look for chains costs what their descriptors are.
    #[inline(always)]
    pub fn is_packed(&self) -> bool {
        matches!(self.layout, Layout::Packed(_))
    }

    /// Chains known to be available, without looking.
    #[inline(always)]
    pub fn known(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.next_avail)
    }

    /// Entries that are available and not taken: chains of a split ring, descriptors of a packed
    /// one. 0 if the guest said something impossible.
    pub fn entries(&mut self) -> u16 {
        match &self.layout {
            Layout::Split(_) => self.available().unwrap_or(0),
            Layout::Packed(packed) => packed.waiting(),
        }
    }

    /// Number of such entries that a chain is.
    pub fn entries_of(&self, head: u16) -> u16 {
        match &self.layout {
            Layout::Split(_) => 1,
            Layout::Packed(packed) => packed.descriptors(head),
        }
    }

    /// Most chains that may be known at a time.
    pub fn most_known(&self) -> u16 {
        match &self.layout {
            Layout::Split(split) => split.size(),
            Layout::Packed(packed) => packed.most_known(),
        }
    }

    /// Head of the chain `ahead` chains from the next one.
    #[inline(always)]
    pub fn head(&self, ahead: u16) -> u16 {
        let number = self.next_avail.wrapping_add(ahead);
        match &self.layout {
            Layout::Split(split) => split.head(number),
            Layout::Packed(packed) => packed.head(number),
        }
    }

    /// Asks for the lines of the ring that the next `n` chains need.
    #[inline(always)]
    pub fn prefetch(&self, ahead: impl Iterator<Item = u16>) {
        match &self.layout {
            Layout::Split(split) => {
                self.prefetch_of(split, ahead);
                split.used.prefetch(self.next_used);
            }
            Layout::Packed(packed) => self.prefetch_of(&**packed, ahead),
        }
    }

    #[inline(always)]
    fn prefetch_of(&self, chains: &impl Chains, ahead: impl Iterator<Item = u16>) {
        for ahead in ahead {
            chains.prefetch(chains.head(self.next_avail.wrapping_add(ahead)));
        }
    }

    /// Uses the next chain, of which `head` is the head, up to `len` bytes; the guest sees it after
    /// [`Self::publish`].
    #[inline(always)]
    pub fn push_used(&mut self, head: u16, len: u32) {
        self.push_part(head, len, false);
    }

    /// Does the same; with `more`, the next chain belongs to the same frame.
    #[inline(always)]
    pub fn push_part(&mut self, head: u16, len: u32, more: bool) {
        match &self.layout {
            Layout::Split(split) => split.used.entry(&self.door, self.next_used, head, len),
            Layout::Packed(_) => self.push_packed(len, more),
        }
        self.next_used = self.next_used.wrapping_add(1);
    }

    #[cold]
    #[inline(never)]
    fn push_packed(&mut self, len: u32, more: bool) {
        if let Layout::Packed(packed) = &mut self.layout {
            packed.push_used(self.next_used, len, more);
        }
    }

    /// Gives the next chains, whose heads these are, back to the guest, unchanged, and
    /// [publishes](Self::publish) that.
    #[inline(always)]
    pub fn release(&mut self, heads: impl ExactSizeIterator<Item = u16>) -> Option<Arc<CallFd>> {
        let count = heads.len() as u16;
        self.next_avail = self.next_avail.wrapping_add(count);
        let Layout::Split(split) = &self.layout else { return self.release_packed(count) };
        let mut at = self.next_used;
        for head in heads {
            split.used.entry(&self.door, at, head, 0);
            at = at.wrapping_add(1);
        }
        self.next_used = at;
        pass(Point::TxEntries);
        self.publish(Point::TxReleased)
    }

    #[cold]
    #[inline(never)]
    fn release_packed(&mut self, count: u16) -> Option<Arc<CallFd>> {
        if let Layout::Packed(packed) = &mut self.layout {
            packed.push_unused(self.next_used, count);
        }
        self.next_used = self.next_used.wrapping_add(count);
        pass(Point::TxEntries);
        self.publish(Point::TxReleased)
    }

    /// Shows the guest every used entry written so far, and then passes `point`. Returns how to
    /// interrupt the guest, if it wants that for what it was not told of (virtio 1.2, 2.7.7.2 and
    /// 2.8.10).
    #[inline(always)]
    pub fn publish(&mut self, point: Point) -> Option<Arc<CallFd>> {
        let Layout::Split(split) = &self.layout else { return self.publish_packed(point) };
        split.used.index(&self.door, self.next_used);
        pass(point);
        let old = std::mem::replace(&mut self.told, self.next_used);
        let call = self.call.as_ref().filter(|_| old != self.next_used)?;
        split.wants_call(old, self.next_used).then(|| call.clone())
    }

    #[cold]
    #[inline(never)]
    fn publish_packed(&mut self, point: Point) -> Option<Arc<CallFd>> {
        let Layout::Packed(packed) = &mut self.layout else { return None };
        packed.publish(&self.door, self.next_used);
        pass(point);
        let old = std::mem::replace(&mut self.told, self.next_used);
        if old == self.next_used || self.call.is_none() {
            // What was told counts, asked or not.
            packed.told();
            return None;
        }
        if packed.wants_call() { self.call.clone() } else { None }
    }

    /// True if the guest asks for an interrupt as soon as the device uses the next entry, which it
    /// does when it has seen all used ones.
    pub fn awaits_next(&self) -> bool {
        match &self.layout {
            Layout::Split(split) => split.awaits(self.told),
            // A guest that polls says nothing that would be passed.
            Layout::Packed(packed) => self.call.is_some() && packed.awaits_next(),
        }
    }

    /// True if the guest has made entries available that the device did not take.
    pub fn has_entries(&self) -> bool {
        match &self.layout {
            Layout::Split(split) => split.available_index() != self.next_avail,
            Layout::Packed(packed) => self.known() > 0 || packed.has_entries(),
        }
    }

    /// True if the device has all entries of the ring, so the guest has none.
    pub fn has_all_entries(&self) -> bool {
        match &self.layout {
            Layout::Split(split) => split.available_index().wrapping_sub(self.told) == split.size(),
            Layout::Packed(packed) => packed.has_all_entries(),
        }
    }

    /// Asks the guest not to kick.
    pub fn disarm(&mut self) {
        match &mut self.layout {
            Layout::Split(split) => split.disarm(&self.door),
            Layout::Packed(packed) => packed.disarm(&self.door),
        }
    }

    /// Asks the guest to kick for the next entry, then looks again. Returns whether the ring is
    /// still empty.
    pub fn arm(&mut self) -> bool {
        match &mut self.layout {
            Layout::Split(split) => split.arm(&self.door, self.next_avail),
            Layout::Packed(packed) => packed.arm(&self.door),
        }
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
        self.space.memory.poisoned() || self.door.poisoned()
    }

    /// Moves the positions of a running ring to a new setup of it. A ring of another layout is
    /// refused.
    pub fn take_positions(&mut self, old: &Vring) -> Result<(), RingError> {
        match (&mut self.layout, &old.layout) {
            (Layout::Split(_), Layout::Split(_)) => {
                self.next_avail = old.next_avail;
                self.avail_idx = old.avail_idx;
                self.next_used = old.next_used;
                self.told = old.told;
            }
            // Chains that are known and not taken are looked for anew.
            (Layout::Packed(new), Layout::Packed(old)) => new.go_on_for(old)?,
            _ => return Err(RingError::Layout),
        }
        self.touches = old.touches.clone();
        self.stale = old.stale;
        self.broken = old.broken;
        self.serve(old.wanted, old.held);
        Ok(())
    }
}
