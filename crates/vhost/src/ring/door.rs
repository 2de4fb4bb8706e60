//! The door: every store into a guest's memory goes through it, payload, headers and used ring
//! alike.
//!
//! It checks bounds, and marks in the dirty log what was stored, after it was stored
//! (VHOST_F_LOG_ALL): live migration depends on no store that goes another way. Nothing else in
//! this crate stores where a guest can see it.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering},
    },
};

use butterfly_packet::checksum::Sum;
use butterfly_point::{Point, pass};

use super::{
    copy::{self, LINE},
    front::{FIELDS, Front},
};
use crate::{dirty::DirtyLog, net::NetHeader};

/// Guest memory that may be stored into.
#[derive(Clone, Copy)]
pub(super) struct Room {
    ptr: NonNull<u8>,
    len: u32,
    /// Guest address for the dirty log.
    addr: u64,
}

impl Room {
    pub const NONE: Room = Room { ptr: NonNull::dangling(), len: 0, addr: 0 };

    /// Describes memory at a guest address.
    ///
    /// # Safety
    /// `len` bytes must be mapped for writing at `ptr`, for as long as the ring has that memory,
    /// and be a guest's: nothing in them is ever referred to.
    #[inline(always)]
    pub unsafe fn new(ptr: NonNull<u8>, len: u32, addr: u64) -> Room {
        Room { ptr, len, addr }
    }

    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Asks for the lines of a range for writing, as far as it goes.
    #[inline(always)]
    pub fn prefetch(&self, from: usize, to: usize) {
        for at in (from..to.min(self.len as usize)).step_by(LINE) {
            copy::prefetch_write(self.ptr.as_ptr().wrapping_add(at));
        }
    }

    /// Takes at most `want` bytes off its beginning.
    pub fn take(&mut self, want: u32) -> Room {
        let taken = Room { len: self.len.min(want), ..*self };
        // SAFETY: at most self.len: inside the range, or at its end.
        self.ptr = unsafe { self.ptr.add(taken.len as usize) };
        self.len -= taken.len;
        self.addr = self.addr.saturating_add(taken.len.into());
        taken
    }
}

/// A ring's door.
pub(super) struct Door {
    log: Option<Arc<DirtyLog>>,
}

impl Door {
    pub fn new(log: Option<Arc<DirtyLog>>) -> Door {
        Door { log }
    }

    /// Begins to store `need` bytes; `None` if there is less room.
    #[inline(always)]
    pub fn store(&self, room: &Room, need: u32) -> Option<Store<'_>> {
        (need <= room.len).then(|| Store {
            at: room.ptr,
            left: need,
            addr: room.addr,
            need,
            log: self.log.as_deref(),
        })
    }

    /// True if nothing is logged: a caller with many stores need not ask each time.
    #[inline(always)]
    pub fn is_unlogged(&self) -> bool {
        self.log.is_none()
    }

    /// True if the dirty log's file became shorter than its mapping.
    pub fn poisoned(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.poisoned())
    }

    /// Marks bytes behind `base`, a guest address in the log.
    #[inline(always)]
    fn mark(&self, base: Option<u64>, byte: usize, len: u64) {
        if let Some(log) = &self.log {
            mark_used(log, base, byte as u64, len);
        }
    }
}

#[cold]
#[inline(never)]
fn mark_used(log: &DirtyLog, base: Option<u64>, byte: u64, len: u64) {
    if let Some(base) = base {
        pass(Point::LogUnmarked);
        log.mark(base.saturating_add(byte), len);
        pass(Point::LogMarked);
    }
}

/// The used ring of a split virtqueue, as [`Door`]s store into it.
pub(super) struct UsedRing {
    at: NonNull<u8>,
    /// Number of entries less one.
    mask: u16,
    /// Guest address for the dirty log (VHOST_VRING_F_LOG).
    log_addr: Option<u64>,
}

impl UsedRing {
    /// # Safety
    /// A used ring of `size` entries, a power of two, with its event field must be mapped for
    /// writing at `at`: 6 + 8 * `size` bytes, aligned to 4. It must stay so for as long as this
    /// exists.
    pub unsafe fn new(at: NonNull<u8>, size: u16, log_addr: Option<u64>) -> UsedRing {
        UsedRing { at, mask: size.wrapping_sub(1), log_addr }
    }

    /// Asks for the line of an entry.
    #[inline(always)]
    pub fn prefetch(&self, slot: u16) {
        copy::prefetch_write(self.at.as_ptr().wrapping_add(4 + 8 * usize::from(slot & self.mask)));
    }

    /// Stores an entry; slots beyond the end are those at the beginning.
    #[inline(always)]
    pub fn entry(&self, door: &Door, slot: u16, id: u16, len: u32) {
        let byte = self.put(slot, id, len);
        door.mark(self.log_addr, byte, 8);
    }

    /// Returns where in the ring it is.
    #[inline(always)]
    fn put(&self, slot: u16, id: u16, len: u32) -> usize {
        let byte = 4 + 8 * usize::from(slot & self.mask);
        // SAFETY: the size is a power of two, so the slot is below it: inside the ring, by new()'s
        // promise, and aligned to 4. Atomics may be shared with the guest.
        unsafe {
            let at = self.at.byte_add(byte).cast::<AtomicU32>();
            at.as_ref().store(u32::from(id), Ordering::Relaxed);
            at.add(1).as_ref().store(len, Ordering::Relaxed);
        }
        byte
    }

    /// Stores the ring's flags.
    #[inline(always)]
    pub fn flags(&self, door: &Door, flags: u16) {
        self.field(0).store(flags, Ordering::Relaxed);
        door.mark(self.log_addr, 0, 2);
    }

    /// Stores the used index: the guest sees what was stored before.
    #[inline(always)]
    pub fn index(&self, door: &Door, index: u16) {
        self.field(2).store(index, Ordering::Release);
        door.mark(self.log_addr, 2, 2);
    }

    /// The used index as it stands in the guest's memory.
    pub fn read_index(&self) -> u16 {
        self.field(2).load(Ordering::Acquire)
    }

    /// Stores the event field behind the entries.
    pub fn event(&self, door: &Door, index: u16) {
        let byte = 4 + 8 * (usize::from(self.mask) + 1);
        self.field(byte).store(index, Ordering::Relaxed);
        door.mark(self.log_addr, byte, 2);
    }

    #[inline(always)]
    fn field(&self, byte: usize) -> &AtomicU16 {
        debug_assert!(byte <= 4 + 8 * (usize::from(self.mask) + 1) && byte.is_multiple_of(2));
        // SAFETY: byte is 0, 2 or 4 + 8 * size at every caller above: inside the ring, by new()'s
        // promise, and even.
        unsafe { self.at.byte_add(byte).cast::<AtomicU16>().as_ref() }
    }
}

/// The descriptors of a packed virtqueue and the device's event suppression structure, as [`Door`]s
/// store into them (virtio 1.2, 2.8). The dirty log gets their guest addresses.
pub(super) struct PackedRing {
    ring: NonNull<u8>,
    size: u16,
    ring_addr: u64,
    event: NonNull<u8>,
    event_addr: u64,
}

impl PackedRing {
    /// # Safety
    /// `size` descriptors must be mapped for writing at `ring`: 16 * `size` bytes, aligned to 8.
    /// Four bytes must be at `event`, aligned to 4. Both must stay so for as long as this exists.
    pub unsafe fn new(
        (ring, ring_addr): (NonNull<u8>, u64),
        size: u16,
        (event, event_addr): (NonNull<u8>, u64),
    ) -> PackedRing {
        PackedRing { ring, size, ring_addr, event, event_addr }
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// Asks for the line of a descriptor.
    #[inline(always)]
    pub fn prefetch(&self, place: u16) {
        copy::prefetch_once(self.ring.as_ptr().wrapping_add(16 * usize::from(place)));
    }

    /// One of the two words of a descriptor: its address, or length, id and flags. Places beyond
    /// the end are the last one.
    #[inline(always)]
    fn word(&self, place: u16, second: bool) -> &AtomicU64 {
        let place = place.min(self.size.wrapping_sub(1));
        let byte = 16 * usize::from(place) + 8 * usize::from(second);
        // SAFETY: the place is below the size: inside the ring, by new()'s promise, and aligned to
        // 8. Atomics may be shared with the guest.
        unsafe { self.ring.byte_add(byte).cast::<AtomicU64>().as_ref() }
    }

    /// A descriptor's address.
    #[inline(always)]
    pub fn addr(&self, place: u16) -> u64 {
        self.word(place, false).load(Ordering::Relaxed)
    }

    /// A descriptor's length, id and flags. What the guest stored before it made the descriptor
    /// available is seen afterwards.
    #[inline(always)]
    pub fn rest(&self, place: u16) -> u64 {
        self.word(place, true).load(Ordering::Acquire)
    }

    /// Stores a used entry, which the guest sees at once, with all that was stored before.
    #[inline(always)]
    pub fn used(&self, door: &Door, place: u16, rest: u64) {
        self.word(place, true).store(rest, Ordering::Release);
        if let Some(log) = &door.log {
            mark_used(log, Some(self.ring_addr), 16 * u64::from(place) + 8, 8);
        }
    }

    /// Stores the event suppression structure.
    pub fn suppress(&self, door: &Door, event: u32) {
        // SAFETY: four bytes, aligned to 4, by new()'s promise. Atomics may be shared.
        unsafe { self.event.cast::<AtomicU32>().as_ref() }.store(event, Ordering::Relaxed);
        door.mark(Some(self.event_addr), 0, 4);
    }
}

/// Way through which frames are stored: a door that logs, or one that need not ask.
pub(super) trait Through {
    fn store(&self, room: &Room, need: u32) -> Option<Store<'_>>;
    fn used_entry(&self, slot: u16, id: u16, len: u32);
}

/// Stores nothing of which a log is to know.
pub(super) struct Unlogged<'a>(pub &'a UsedRing);

impl Through for Unlogged<'_> {
    #[inline(always)]
    fn store(&self, room: &Room, need: u32) -> Option<Store<'_>> {
        (need <= room.len).then_some(Store {
            at: room.ptr,
            left: need,
            addr: room.addr,
            need,
            log: None,
        })
    }

    #[inline(always)]
    fn used_entry(&self, slot: u16, id: u16, len: u32) {
        self.0.put(slot, id, len);
    }
}

/// Stores what a log is to know.
pub(super) struct Logged<'a>(pub &'a Door, pub &'a UsedRing);

impl Through for Logged<'_> {
    #[inline(always)]
    fn store(&self, room: &Room, need: u32) -> Option<Store<'_>> {
        self.0.store(room, need)
    }

    #[inline(always)]
    fn used_entry(&self, slot: u16, id: u16, len: u32) {
        self.1.entry(self.0, slot, id, len);
    }
}

/// Stores frames alone: their used entries would be seen at once.
impl Through for &Door {
    #[inline(always)]
    fn store(&self, room: &Room, need: u32) -> Option<Store<'_>> {
        Door::store(self, room, need)
    }

    #[inline(always)]
    fn used_entry(&self, _slot: u16, _id: u16, _len: u32) {}
}

/// A store under way, from the beginning of its room on. Its pages are marked on drop.
///
/// [`Door::store`] checks once that the requested length has room. The callers that store the parts
/// promise that these are no longer, and debug assertions check it again. A check for each part
/// costs 4 % of a small frame's instructions.
pub(super) struct Store<'a> {
    at: NonNull<u8>,
    left: u32,
    addr: u64,
    need: u32,
    log: Option<&'a DirtyLog>,
}

impl Store<'_> {
    /// The next `len` bytes, from memory that may change meanwhile.
    ///
    /// # Safety
    /// They must be mapped at `from`, and with what was stored before be no more than was asked
    /// for.
    #[inline(always)]
    pub unsafe fn mapped(&mut self, from: NonNull<u8>, len: u32) {
        // SAFETY: mapped by the caller's promise; there is room for `left` bytes at `at`.
        unsafe {
            let to = self.advance(len);
            copy::copy(from.as_ptr(), to.as_ptr(), len as usize);
        }
    }

    /// A header with these fields, in network byte order.
    ///
    /// # Safety
    /// With what was stored before it must be no more than was asked for.
    #[inline(always)]
    pub unsafe fn front(&mut self, front: &Front, fields: [u16; FIELDS]) {
        // SAFETY: as above; each field lies in the header, by Front::new()'s promise.
        unsafe {
            let to = self.advance(front.len() as u32).as_ptr();
            copy::copy_header(front.bytes().as_ptr(), to, front.len());
            for (at, value) in front.fields(fields) {
                copy::put(value.to_be(), to.add(at));
            }
        }
    }

    /// Stores as [`Self::mapped`] does, and adds the stored bytes to a sum.
    ///
    /// # Safety
    /// As [`Self::mapped`].
    pub unsafe fn mapped_and_summed(&mut self, from: NonNull<u8>, len: u32, sum: &mut Sum) {
        // SAFETY: as above.
        unsafe {
            let to = self.advance(len);
            copy::copy_and_sum(from.as_ptr(), to.as_ptr(), len as usize, sum);
        }
    }

    /// A header of this length, 10 or 12, that says nothing: everything is zero but num_buffers,
    /// which a legacy header does not have. What is there already is not stored again.
    ///
    /// # Safety
    /// With what was stored before it must be no more than was asked for.
    #[inline(always)]
    pub unsafe fn empty_header(&mut self, header_len: usize) {
        // SAFETY: there is room for a header of this form, by the caller's promise.
        unsafe {
            let to = self.advance(header_len as u32).as_ptr();
            copy::refresh(0u64, to);
            if header_len == NetHeader::LEN {
                copy::refresh(u32::from_le_bytes([0, 0, 1, 0]), to.add(8));
            } else {
                copy::refresh(0u16, to.add(8));
            }
        }
    }

    /// Returns the place of the next `len` bytes.
    ///
    /// # Safety
    /// At most `left`.
    #[inline(always)]
    unsafe fn advance(&mut self, len: u32) -> NonNull<u8> {
        debug_assert!(len <= self.left, "{len} bytes into room for {}", self.left);
        let at = self.at;
        // SAFETY: inside the room, or at its end, by the caller's promise.
        self.at = unsafe { at.add(len as usize) };
        self.left = self.left.wrapping_sub(len);
        at
    }
}

impl Drop for Store<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(log) = self.log {
            mark(log, self.addr, self.need);
        }
    }
}

/// Only machines that migrate have a log.
#[cold]
#[inline(never)]
fn mark(log: &DirtyLog, addr: u64, len: u32) {
    pass(Point::LogUnmarked);
    log.mark(addr, u64::from(len));
    pass(Point::LogMarked);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A door before some memory, and room of `len` bytes in it.
    fn with(len: u32, test: impl FnOnce(&Door, Room)) -> Vec<u8> {
        let mut memory = vec![0xaau8; 64];
        assert!(len <= 48);
        // SAFETY: 64 bytes, of which `len` from the 8th on are given away.
        let room = unsafe { Room::new(NonNull::from(&mut memory[8]), len, 0x1000) };
        test(&Door::new(None), room);
        memory
    }

    #[test]
    fn what_is_asked_for_is_stored_and_no_more_is_given() {
        let bytes = [1u8, 2, 3, 4, 5, 6];
        let memory = with(10, |door, room| {
            assert!(door.store(&room, 11).is_none(), "more than there is room for");
            let mut store = door.store(&room, 6).unwrap();
            let mut sum = Sum::EMPTY;
            // SAFETY: six bytes are there, and were asked for.
            unsafe {
                store.mapped(NonNull::from(&bytes[0]), 4);
                store.mapped_and_summed(NonNull::from(&bytes[4]), 2, &mut sum);
            }
            assert_eq!(sum.fold(), Sum::of(&[5, 6]).fold());
        });
        assert_eq!(memory[8..16], [1, 2, 3, 4, 5, 6, 0xaa, 0xaa]);
        assert!(memory[..8].iter().chain(&memory[14..]).all(|byte| *byte == 0xaa));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "4 bytes into room for 2")]
    fn a_promise_that_is_broken_is_found_by_tests() {
        let bytes = [0u8; 8];
        with(10, |door, room| {
            let mut store = door.store(&room, 6).unwrap();
            // SAFETY: not true, of the second: it is refused before anything is stored.
            unsafe {
                store.mapped(NonNull::from(&bytes[0]), 4);
                store.mapped(NonNull::from(&bytes[0]), 4);
            }
        });
    }

    #[test]
    fn room_is_given_away_once() {
        with(10, |door, mut room| {
            let (first, second, none) = (room.take(4), room.take(20), room.take(1));
            assert_eq!((first.len(), second.len(), none.len(), room.len()), (4, 6, 0, 0));
            assert_eq!((first.addr, second.addr), (0x1000, 0x1004));
            assert!(door.store(&second, 7).is_none() && door.store(&none, 1).is_none());
        });
    }

    #[test]
    fn headers_have_both_forms() {
        let memory = with(40, |door, mut room| {
            for len in [12, 10] {
                // SAFETY: as many as were asked for.
                unsafe { door.store(&room.take(len), len).unwrap().empty_header(len as usize) };
            }
        });
        assert_eq!(memory[8..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(memory[20..31], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa]);
    }

    #[test]
    fn the_used_ring_is_never_left() {
        let mut used = [u64::MAX; 10];
        let door = Door::new(None);
        // SAFETY: 6 + 8 * 8 bytes of 80, aligned to 8.
        let ring = unsafe { UsedRing::new(NonNull::from(&mut used[0]).cast(), 8, None) };
        for slot in [0, 7, 8, u16::MAX] {
            ring.entry(&door, slot, slot, 5);
        }
        ring.flags(&door, 1);
        ring.index(&door, 9);
        ring.event(&door, 3);
        assert_eq!(ring.read_index(), 9);
        let bytes: Vec<u8> = used.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[..12], [1, 0, 9, 0, 8, 0, 0, 0, 5, 0, 0, 0], "slot 8 is slot 0");
        assert_eq!(bytes[60..70], [0xff, 0xff, 0, 0, 5, 0, 0, 0, 3, 0], "slot 65535 is slot 7");
        assert!(bytes[70..].iter().all(|byte| *byte == 0xff));
    }
}
