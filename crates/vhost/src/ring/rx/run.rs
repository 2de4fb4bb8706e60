//! Frames as they are, one buffer each: the fast way.

use std::{ops::Range, ptr::NonNull};

use butterfly_point::{Point, pass};

use crate::ring::{
    door::{Logged, Room, Through, Unlogged},
    frames::{BATCH, Frame, Frames, HEAD_MAX},
    rx::{NotDelivered, RxRing},
    space::Chains,
    touches,
    vring::Layout,
};

impl RxRing {
    /// Writes the frames `range` of a batch as they are into the guest's buffers, one buffer each.
    /// The guest sees them after [`Self::publish`]. Stops before the first frame that does not
    /// fit into the next prepared buffer: that one is for [`Self::deliver_one`]. Returns how
    /// many it wrote, and their bytes.
    #[inline(always)]
    pub fn deliver_run(&mut self, frames: &Frames<'_>, range: Range<usize>) -> (usize, u64) {
        let door = &self.vring.door;
        let (at, bytes) = match &self.vring.layout {
            Layout::Split(split) if door.is_unlogged() => {
                self.deliver_through(&Unlogged(&split.used), frames, range.clone())
            }
            Layout::Split(split) => {
                self.deliver_through(&Logged(door, &split.used), frames, range.clone())
            }
            Layout::Packed(_) => self.deliver_through(&door, frames, range.clone()),
        };
        let done = at - range.start;
        if let Layout::Packed(packed) = &mut self.vring.layout {
            let header_len = self.vring.space.header_len as u32;
            let frames = frames.frames().get(range.start..at).unwrap_or_default();
            for (number, frame) in (0u16..).zip(frames) {
                let number = self.vring.next_used.wrapping_add(number);
                packed.push_used(number, header_len + frame.len, false);
            }
        }
        self.vring.next_avail = self.vring.next_avail.wrapping_add(done as u16);
        self.vring.next_used = self.vring.next_used.wrapping_add(done as u16);
        (done, bytes)
    }

    /// Returns the first frame that was not written, and the bytes of those before.
    #[inline(always)]
    fn deliver_through(
        &self,
        door: &impl Through,
        frames: &Frames<'_>,
        range: Range<usize>,
    ) -> (usize, u64) {
        let (mut at, mut bytes) = (range.start, 0);
        loop {
            let done = (at - range.start) as u16;
            let (short, of_short) = self.deliver_alike::<false>(door, done, frames, at..range.end);
            at += usize::from(short);
            bytes += of_short;
            // One that is in its slot was not written because it does not fit.
            let is_long = |frame: &Frame| frame.len > u32::from(frame.head_len);
            if at == range.end || !frames.frames().get(at).is_some_and(is_long) {
                break;
            }
            let (long, of_long) =
                self.deliver_alike::<true>(door, done.wrapping_add(short), frames, at..range.end);
            at += usize::from(long);
            bytes += of_long;
            if at == range.end || long == 0 {
                break;
            }
        }
        (at, bytes)
    }

    /// The same of those that are all in their slots, or of those that are not, up to the first
    /// that is otherwise. `before` buffers are written already, and not yet taken.
    #[inline(never)] // its loop needs all registers
    fn deliver_alike<const LONG: bool>(
        &self,
        door: &impl Through,
        before: u16,
        frames: &Frames<'_>,
        range: Range<usize>,
    ) -> (u16, u64) {
        let header_len = self.vring.space.header_len;
        let first = self.vring.next_avail.wrapping_add(before);
        let used = self.vring.next_used.wrapping_add(before);
        let room = self.prepared.wrapping_sub(first);
        let (mut done, mut bytes) = (0u16, 0u64);
        let (start, end) = (range.start, range.end);
        for (frame, slot) in frames.run(range) {
            let Some(ready) = self.ready.get(usize::from(first.wrapping_add(done)) % BATCH) else {
                break;
            };
            let need = header_len as u32 + frame.len;
            let head_len = usize::from(frame.head_len).min(HEAD_MAX);
            if done == room || (frame.len as usize > head_len) != LONG {
                break;
            }
            let Some(mut store) = door.store(&ready.room, need) else { break };
            // SAFETY: header_len is 10 or 12 and head_len at most frame.len, which are asked for
            // together, and HEAD_MAX, which a slot has.
            unsafe {
                store.empty_header(header_len);
                store.mapped(NonNull::from(&slot.0).cast(), head_len as u32);
            }
            if LONG {
                let next = start + usize::from(done) + 1;
                if next < end {
                    self.fetch(frames, next, first.wrapping_add(done).wrapping_add(1));
                }
                let mut pieces = frames.pieces_of(frame, head_len as u32);
                while let Some((from, len)) = pieces.next() {
                    // SAFETY: mapped as long as the batch is not released; the pieces add up to at
                    // most frame.len - head_len.
                    unsafe { store.mapped(from, len) };
                }
            }
            drop(store);
            pass(Point::RxWritten);
            door.used_entry(used.wrapping_add(done), ready.id, need);
            pass(Point::RxEntry);
            done += 1;
            bytes += u64::from(frame.len);
        }
        (done, bytes)
    }

    /// Does the same as [`Self::deliver_one`] for the first frame of a batch, which may be the only
    /// one: nothing is read ahead.
    #[inline(always)]
    pub fn deliver_first(&mut self, frames: &Frames<'_>) -> Result<(), NotDelivered> {
        // Buffers that were read already are not read again.
        let done = match self.prepared == self.vring.next_avail {
            true => self.deliver_at_once(frames).is_some(),
            false => self.deliver_run(frames, 0..1).0 == 1,
        };
        if done { Ok(()) } else { self.deliver_one(frames, 0) }
    }

    /// Writes the first frame of a batch as it is, if it fits into the next buffer and that has one
    /// descriptor.
    #[inline(always)]
    fn deliver_at_once(&mut self, frames: &Frames<'_>) -> Option<()> {
        // What is refused, and what is counted, is done there.
        if touches::metering() || !self.vring.enabled {
            return None;
        }
        let Layout::Split(split) = &self.vring.layout else { return None };
        touches::enter(&self.vring.touches);
        let (frame, slot) = frames.each().next()?;
        if self.vring.known() == 0 {
            let avail_idx = split.available_index();
            let known = avail_idx.wrapping_sub(self.vring.next_avail);
            // An index that is impossible is found there, too.
            if known == 0 || known > split.size() {
                return None;
            }
            self.vring.avail_idx = avail_idx;
        }
        let id = split.head(self.vring.next_avail);
        let desc = split.first(id).filter(|desc| desc.is_single_writable())?;
        let mut window = self.vring.window;
        let ptr = self.vring.space.whole(desc.addr, desc.len, &mut window)?;
        self.vring.window = window;
        // SAFETY: whole() found it mapped, in memory that `vring` keeps.
        let room = unsafe { Room::new(ptr, desc.len, desc.addr) };
        let need = self.vring.space.header_len as u32 + frame.len;
        let head_len = usize::from(frame.head_len).min(HEAD_MAX);
        let mut store = self.vring.door.store(&room, need)?;
        // SAFETY: header_len is 10 or 12 and head_len at most frame.len, which are asked for
        // together, and HEAD_MAX, which a slot has.
        unsafe {
            store.empty_header(self.vring.space.header_len);
            store.mapped(NonNull::from(&slot.0).cast(), head_len as u32);
        }
        let mut pieces = frames.pieces_of(frame, head_len as u32);
        while let Some((from, len)) = pieces.next() {
            // SAFETY: mapped as long as the batch is not released; the pieces add up to at most
            // frame.len - head_len.
            unsafe { store.mapped(from, len) };
        }
        drop(store);
        pass(Point::RxWritten);
        split.used.entry(&self.vring.door, self.vring.next_used, id, need);
        self.vring.next_used = self.vring.next_used.wrapping_add(1);
        pass(Point::RxEntry);
        self.vring.next_avail = self.vring.next_avail.wrapping_add(1);
        self.forget_prepared();
        Some(())
    }
}
