//! Writing a frame into several pieces of a guest's memory.

use std::ptr::NonNull;

use butterfly_packet::checksum::Sum;

use super::door::{Door, Room};

/// Writes bytes one after the other into pieces.
pub(super) struct Writer<'a> {
    pieces: std::slice::Iter<'a, Room>,
    at: Option<Room>,
    door: &'a Door,
}

impl<'a> Writer<'a> {
    #[inline]
    pub fn new(pieces: &'a [Room], door: &'a Door) -> Writer<'a> {
        let mut pieces = pieces.iter();
        let at = pieces.next().copied();
        Writer { pieces, at, door }
    }

    /// At most `want` bytes of room at the current position, which moves on.
    #[inline]
    fn room(&mut self, want: u32) -> Option<Room> {
        loop {
            match self.at.as_mut()? {
                piece if piece.len() > 0 => return Some(piece.take(want)),
                _ => self.at = self.pieces.next().copied(),
            }
        }
    }

    #[inline]
    pub fn skip(&mut self, mut bytes: u32) {
        while bytes > 0
            && let Some(room) = self.room(bytes)
        {
            bytes -= room.len();
        }
    }

    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        // SAFETY: a slice is mapped.
        unsafe { self.mapped(NonNull::from(bytes).cast(), bytes.len() as u32, None) };
    }

    /// Copies `len` bytes to the current position and moves on.
    ///
    /// # Safety
    /// They must be mapped at `from`.
    #[inline(always)]
    pub unsafe fn mapped(
        &mut self,
        mut from: NonNull<u8>,
        mut len: u32,
        mut sum: Option<&mut Sum>,
    ) {
        while len > 0
            && let Some(room) = self.room(len)
            && let Some(mut store) = self.door.store(&room, room.len())
        {
            let n = room.len();
            // SAFETY: n <= len, which are mapped by the caller's promise; they are asked for
            // together.
            unsafe {
                match &mut sum {
                    None => store.mapped(from, n),
                    Some(sum) => store.mapped_and_summed(from, n, sum),
                }
                from = from.add(n as usize);
            }
            len -= n;
        }
    }
}
