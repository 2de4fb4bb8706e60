//! The driver's half of a packed ring (virtio 1.2, 2.8): where it is, and its free buffer ids.

use crate::{
    queue::chain::Piece,
    ring::{DESC_NEXT, DESC_WRITE, PackedDesc, PackedEvent, PackedRing, Position},
};

/// The driver's half of a packed ring. Chains are known by their buffer ids.
///
/// Ids come from a stack whose first one is the highest, so that few chains have the position of
/// their descriptors as their id: a device that takes one for the other is noticed.
#[derive(Debug)]
pub(super) struct PackedHalf {
    pub(super) ring: PackedRing,
    event_idx: bool,
    /// Free buffer ids, a stack.
    ids: Vec<u16>,
    /// Place of the next chain.
    next: Position,
    /// First descriptors of chains that were added and not published: index, and the number that
    /// makes it available.
    held: Vec<(u16, u64)>,
    pub(super) published: Position,
    /// Descriptors published since the device was last told, or might have been.
    unannounced: u16,
    /// Place of the next used descriptor.
    pub(super) last_used: Position,
}

impl PackedHalf {
    /// Begins at `first` in a zeroed ring.
    pub(super) fn new(ring: PackedRing, event_idx: bool, first: Position) -> PackedHalf {
        let size = ring.size();
        // What lies before this place was used in laps before, and zeroes look used in each lap
        // whose wrap counter is 0: those that the next such lap comes to must not be zero.
        let used = PackedDesc { flags: Position::START.used(), ..PackedDesc::default() };
        let laps = if first.wrap { 0..first.index } else { first.index..size };
        laps.for_each(|index| ring.set_desc(index, used));
        PackedHalf {
            event_idx,
            ids: (0..size).collect(),
            next: first,
            held: Vec::with_capacity(size.into()),
            published: first,
            unannounced: 0,
            last_used: first,
            ring,
        }
    }

    /// Writes a chain of `count` descriptors, for which there is room. Returns its id.
    pub(super) fn write(&mut self, count: usize, pieces: impl Iterator<Item = Piece>) -> u16 {
        let id = self.ids.pop().unwrap_or_default();
        let first = self.next;
        for (number, Piece { addr, len, flags }) in (1..).zip(pieces) {
            let at = self.next;
            // The id of all but the last is reserved. A wrong one finds devices that read it.
            let (more, id) = if number < count { (DESC_NEXT, !id) } else { (0, id) };
            let desc = PackedDesc { addr, len, id, flags: flags | more | at.available() };
            if at == first {
                self.ring.set_addr(at.index, addr);
                self.held.push((at.index, desc.word()));
            } else {
                self.ring.set_desc(at.index, desc);
            }
            self.next = at.after(1, self.ring.size());
        }
        self.unannounced = self.unannounced.saturating_add(count as u16);
        id
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        for (index, word) in self.held.drain(..) {
            self.ring.set_word(index, word);
        }
        self.published = self.next;
    }

    /// Counts what was published since the last call as announced. Returns None if that is nothing,
    /// else whether the device wants to be notified of it.
    pub(super) fn announce(&mut self) -> Option<bool> {
        let unpublished = distance(self.published, self.next, self.ring.size());
        let moved = (self.unannounced - unpublished).min(self.ring.size());
        if moved == 0 {
            return None;
        }
        let event = self.ring.device_event();
        self.unannounced = unpublished;
        Some(event.wants(self.published, moved, self.ring.size()))
    }

    /// Returns buffer id and written bytes of the used descriptor at `at`, if there is one.
    #[inline]
    pub(super) fn used_at(&self, at: Position) -> Option<(u16, u32)> {
        let desc = PackedDesc::from_words(0, self.ring.word(at.index));
        // Without WRITE nothing was written, and the length has no meaning (2.8.4).
        let len = if desc.flags & DESC_WRITE != 0 { desc.len } else { 0 };
        at.is_used(desc.flags).then_some((desc.id, len))
    }

    /// Goes on behind a used chain.
    pub(super) fn taken(&mut self, id: u16, descs: u16) {
        self.ids.push(id);
        self.last_used = self.last_used.after(descs, self.ring.size());
    }

    pub(super) fn arm(&self) {
        let event =
            if self.event_idx { PackedEvent::at(self.last_used) } else { PackedEvent::ENABLE };
        self.ring.set_driver_event(event);
    }

    pub(super) fn suppress(&self) {
        self.ring.set_driver_event(PackedEvent::DISABLE);
    }
}

/// Descriptors from one place to another, less than a lap or exactly one on.
fn distance(from: Position, to: Position, size: u16) -> u16 {
    if from.wrap == to.wrap { to.index - from.index } else { size - from.index + to.index }
}
