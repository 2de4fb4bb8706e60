//! A packed ring for measuring: chains are written anew each time, as the device overwrites their
//! descriptors, and are known by their buffer ids.

use crate::{
    fast::owned::{Owned, Pieces},
    queue::DeviceError,
    ring::{DESC_WRITE, Desc, PackedDesc, PackedEvent, PackedRing, Position},
};

/// A packed ring. A chain's number is its buffer id.
#[derive(Debug)]
pub(super) struct PackedChains {
    ring: PackedRing,
    size: u16,
    /// Descriptors of each chain.
    pieces: Vec<Pieces>,
    next: Position,
    /// The first descriptor that was pushed and not shown: index, and the number that makes it
    /// available. The device looks at no other before it.
    held: Option<(u16, u64)>,
    /// Descriptors pushed since the device was last told, or might have been.
    unannounced: u16,
    last_used: Position,
}

impl PackedChains {
    pub(super) fn new(ring: PackedRing, chains: u16) -> PackedChains {
        ring.set_driver_event(PackedEvent::DISABLE);
        PackedChains {
            size: ring.size(),
            ring,
            pieces: vec![Pieces::default(); chains.into()],
            next: Position::START,
            held: None,
            unannounced: 0,
            last_used: Position::START,
        }
    }

    #[inline]
    pub(super) fn describe(&mut self, chain: u16, pieces: Pieces) {
        if let Some(place) = self.pieces.get_mut(usize::from(chain)) {
            *place = pieces;
        }
    }

    #[inline]
    pub(super) fn push(&mut self, chain: u16) {
        let Some(&Pieces { first, second }) = self.pieces.get(usize::from(chain)) else { return };
        self.write(chain, first);
        if let Some(second) = second {
            self.write(chain, second);
        }
    }

    #[inline]
    fn write(&mut self, id: u16, Desc { addr, len, flags, .. }: Desc) {
        let at = self.next;
        let desc = PackedDesc { addr, len, id, flags: flags | at.available() };
        if self.held.is_none() {
            self.ring.set_addr(at.index, addr);
            self.held = Some((at.index, desc.word()));
        } else {
            self.ring.set_desc(at.index, desc);
        }
        self.next = at.after(1, self.size);
        self.unannounced = self.unannounced.saturating_add(1);
    }

    #[inline]
    pub(super) fn show(&mut self) {
        if let Some((index, word)) = self.held.take() {
            self.ring.set_word(index, word);
        }
    }

    /// True if the device wants to be notified of what was shown since the last call.
    #[inline]
    pub(super) fn wanted(&mut self) -> bool {
        let moved = self.unannounced.min(self.size);
        self.unannounced = 0;
        moved != 0 && self.ring.device_event().wants(self.next, moved, self.size)
    }

    #[inline]
    pub(super) fn has_used(&self) -> bool {
        self.last_used.is_used((self.ring.word(self.last_used.index) >> 48) as u16)
    }

    #[inline]
    pub(super) fn take(
        &mut self,
        owned: &mut Owned,
        max: usize,
        with: &mut impl FnMut(u16, Option<u32>),
    ) -> Result<usize, DeviceError> {
        let mut taken = 0;
        while taken < max {
            let used = PackedDesc::from_words(0, self.ring.word(self.last_used.index));
            if !self.last_used.is_used(used.flags) {
                break;
            }
            // Without WRITE nothing was written, and the length has no meaning (virtio 1.2, 2.8.4).
            let len = if used.flags & DESC_WRITE != 0 { used.len } else { 0 };
            if owned.outstanding == 0 {
                return Err(DeviceError::UsedIndex { moved: 1, outstanding: 0 });
            }
            let reach = owned.outstanding;
            let mut descs = 0;
            let pieces = &self.pieces;
            let covered =
                owned.take((used.id.into(), used.id), len, reach, &mut |chain: u16, len| {
                    let two = pieces.get(usize::from(chain)).is_some_and(|p| p.second.is_some());
                    descs += 1 + u16::from(two);
                    with(chain, len);
                })?;
            self.last_used = self.last_used.after(descs, self.size);
            taken += usize::from(covered);
        }
        Ok(taken)
    }
}
