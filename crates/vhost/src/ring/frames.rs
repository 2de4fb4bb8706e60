//! A batch of frames taken from a guest: the first bytes in private slots, the rest still in the
//! guest's memory.

use std::{ops::Range, ptr::NonNull, sync::Arc};

use butterfly_packet::checksum::Sum;

use super::{
    call::CallFd,
    copy::{self, LINE},
    touches,
    tx::TxRing,
};
use crate::net::NetHeader;

/// Most frames of a batch.
pub const BATCH: usize = 64;
/// Bytes of each frame that are copied into its private slot.
pub const HEAD: usize = 128;
/// The same of frames that have an outer header: all of [`HEAD`] behind the longest of them.
pub(super) const HEAD_LONG: usize = 128 + 80;
/// Bytes that a slot can hold when the parser asks for more.
pub const HEAD_MAX: usize = 256;
/// Bytes of a frame that [`Frames::keep`] has room for: an IP packet of 1,500 bytes behind Ethernet
/// and two VLAN tags.
pub const KEPT_MAX: usize = 1500 + 14 + 8;
/// Largest frame that is taken from a guest: the largest IP packet behind Ethernet and two VLAN
/// tags. The largest is one of IPv6, whose length does not count the header (RFC 8200, 3).
pub const MAX_FRAME: u32 = 65535 + 40 + 14 + 8;
/// Smallest frame: an Ethernet header.
pub(super) const MIN_FRAME: u32 = 14;
/// Most bytes of a batch; the frame that reaches it is the last.
pub(super) const MAX_BYTES: u32 = 256 * 1024;
pub(super) const MAX_SEGS: usize = 1024;

/// Reason why a frame could not be taken. Its descriptors go back to the guest like those of any
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// A loop, an index or address out of range, or wrong flags (virtio 1.2, 2.7.5).
    BadChain,
    /// Shorter than a virtio-net and an Ethernet header.
    Short,
    /// Longer than [`MAX_FRAME`].
    Oversized,
}

/// Description of one frame of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The guest asks for a checksum or segmentation: see `net`, which is stale otherwise.
    pub offload: bool,
    /// The guest's virtio-net header: claims, not facts.
    pub net: NetHeader,
    /// Length in bytes, from the descriptors.
    pub len: u32,
    /// Set when the frame could not be taken; it has no content then.
    pub fault: Option<FrameFault>,
    pub(super) head_len: u16,
    /// Bytes of its memory in front of it: an outer header that was taken off.
    pub(super) skip: u16,
    pub(super) first_seg: u16,
    pub(super) segs: u16,
    /// The chain's head, for its used entry.
    pub(super) id: u16,
    /// The virtio-net header stands in front of the only segment and was not read yet.
    pub(super) header_in_front: bool,
}

impl Frame {
    /// Number of its bytes that are in its slot, from where receivers get them.
    #[inline(always)]
    pub fn at_hand(&self) -> usize {
        self.head_len.into()
    }

    /// Number of pieces that it lies in.
    pub fn pieces(&self) -> u32 {
        self.segs.into()
    }

    pub(super) const EMPTY: Frame = Frame {
        offload: false,
        net: NetHeader::NONE,
        len: 0,
        fault: None,
        head_len: 0,
        skip: 0,
        first_seg: 0,
        segs: 0,
        id: 0,
        header_in_front: false,
    };
}

/// A contiguous piece of a frame in guest memory.
#[derive(Clone, Copy)]
pub(super) struct Seg {
    pub ptr: NonNull<u8>,
    pub len: u32,
}

/// The private copy of a frame's first bytes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Slot(pub(super) [u8; HEAD_MAX]);

impl Slot {
    /// Returns the frame's first bytes: an Ethernet header at least, unless the frame has a
    /// [`FrameFault`]. Bytes beyond its length, or beyond [`HEAD`], belong to other frames.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8; HEAD_MAX] {
        &self.0
    }

    /// Returns the same, to be rewritten: what [`Self::bytes`] returns of the frame is delivered.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8; HEAD_MAX] {
        &mut self.0
    }
}

/// A worker's room for one batch. What is in it can be seen only through [`Frames`], while what it
/// came from is held.
pub struct FrameStore {
    pub(super) slots: Box<[Slot; BATCH]>,
    pub(super) frames: Box<[Frame; BATCH]>,
    pub(super) segs: Box<[Seg; MAX_SEGS]>,
    /// Complete frames, for each call of [`Frames::keep`]. Pages that no caller asks for are never
    /// touched.
    pub(super) kept: Box<[[u8; KEPT_MAX]]>,
}

// SAFETY: the pointers in `segs` are used only by Frames, which borrows the memory that they point
// into.
unsafe impl Send for FrameStore {}

impl Default for FrameStore {
    fn default() -> Self {
        FrameStore {
            slots: Box::new([Slot([0; HEAD_MAX]); BATCH]),
            frames: Box::new([Frame::EMPTY; BATCH]),
            segs: Box::new([Seg { ptr: NonNull::dangling(), len: 0 }; MAX_SEGS]),
            kept: vec![[0; KEPT_MAX]; BATCH].into_boxed_slice(),
        }
    }
}

/// A batch: frames gathered from a ring, whose descriptors stay open until [`Self::release`],
/// frames in private memory, or a part of either.
pub struct Frames<'a> {
    /// Ring that gets the descriptors back.
    pub(super) ring: Option<&'a mut TxRing>,
    pub(super) frames: &'a mut [Frame],
    /// One slot per frame.
    pub(super) slots: &'a mut [Slot],
    /// Segments of all frames. The memory they point to is borrowed for `'a`.
    pub(super) segs: &'a mut [Seg],
    /// One buffer per frame.
    pub(super) kept: &'a mut [[u8; KEPT_MAX]],
}

/// Bytes of a frame are read that were not needed before: of the sender's memory, if it has a ring.
#[inline(always)]
fn read_more_of(ring: &Option<&mut TxRing>) {
    if touches::metering()
        && let Some(ring) = ring
    {
        touches::enter(&ring.vring.touches);
    }
}

impl<'a> Frames<'a> {
    /// The first `count` frames of a store that was filled from `ring`.
    pub(super) fn gathered(
        ring: &'a mut TxRing,
        store: &'a mut FrameStore,
        count: usize,
    ) -> Frames<'a> {
        let frames = store.frames.get_mut(..count).unwrap_or_default();
        let slots = store.slots.get_mut(..count).unwrap_or_default();
        let kept = store.kept.get_mut(..count).unwrap_or_default();
        Frames { ring: Some(ring), frames, slots, segs: store.segs.as_mut_slice(), kept }
    }

    /// Frames in private memory that does not change, complete and without offloads; at most
    /// [`BATCH`] of them.
    pub fn private(
        store: &'a mut FrameStore,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> Frames<'a> {
        touches::outside();
        let mut count = 0;
        let places = store.frames.iter_mut().zip(store.slots.iter_mut()).zip(store.segs.iter_mut());
        for (bytes, ((frame, slot), seg)) in frames.zip(places) {
            let fault = match bytes.len() {
                len if len < MIN_FRAME as usize => Some(FrameFault::Short),
                len if len > MAX_FRAME as usize => Some(FrameFault::Oversized),
                _ => None,
            };
            let bytes = if fault.is_some() { &[] } else { bytes };
            let head_len = bytes.len().min(HEAD_MAX);
            if let (Some(to), Some(from)) = (slot.0.get_mut(..head_len), bytes.get(..head_len)) {
                to.copy_from_slice(from);
            }
            *seg = Seg { ptr: NonNull::from(bytes).cast(), len: bytes.len() as u32 };
            *frame = Frame {
                len: bytes.len() as u32,
                fault,
                head_len: head_len as u16,
                first_seg: count as u16,
                segs: 1,
                ..Frame::EMPTY
            };
            count += 1;
        }
        let frames = store.frames.get_mut(..count).unwrap_or_default();
        let slots = store.slots.get_mut(..count).unwrap_or_default();
        let kept = store.kept.get_mut(..count).unwrap_or_default();
        Frames { ring: None, frames, slots, segs: store.segs.as_mut_slice(), kept }
    }

    /// Number of frames, at most [`BATCH`].
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.frames.len().min(BATCH)
    }

    /// True if nothing was gathered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All frames in the order in which they came.
    #[inline(always)]
    pub fn frames(&self) -> &[Frame] {
        self.frames
    }

    /// All frames with their header slots.
    #[inline(always)]
    pub fn each(&self) -> impl Iterator<Item = (&Frame, &Slot)> {
        self.frames.iter().zip(self.slots.iter())
    }

    /// The frames with their header slots, which may be rewritten.
    #[inline(always)]
    pub fn each_mut(&mut self) -> impl Iterator<Item = (&Frame, &mut Slot)> {
        self.frames.iter().zip(self.slots.iter_mut())
    }

    /// Some of the frames with their header slots.
    #[inline(always)]
    pub(super) fn run(&self, range: Range<usize>) -> impl Iterator<Item = (&Frame, &Slot)> {
        let frames = self.frames.get(range.clone()).unwrap_or_default();
        frames.iter().zip(self.slots.get(range).unwrap_or_default())
    }

    /// Some of the frames as a batch of their own. Releasing it gives nothing back: that is done
    /// once, for all.
    pub fn part(&mut self, range: Range<usize>) -> Frames<'_> {
        let frames = self.frames.get_mut(range.clone()).unwrap_or_default();
        let slots = self.slots.get_mut(range.clone()).unwrap_or_default();
        let kept = self.kept.get_mut(range).unwrap_or_default();
        Frames { ring: None, frames, slots, segs: self.segs, kept }
    }

    /// Keeps the first `n` frames. The others stay in their ring, as if they had not been taken.
    pub fn truncate(&mut self, n: usize) {
        let n = n.min(self.frames.len());
        self.frames = std::mem::take(&mut self.frames).get_mut(..n).unwrap_or_default();
        self.slots = std::mem::take(&mut self.slots).get_mut(..n).unwrap_or_default();
    }

    /// The private copy of a frame's first bytes: min([`HEAD`], length) of them, more after
    /// [`Self::extend_head`].
    #[inline(always)]
    pub fn head(&self, index: usize) -> &[u8] {
        match (self.slots.get(index), self.frames.get(index)) {
            (Some(slot), Some(frame)) => {
                slot.0.get(..usize::from(frame.head_len)).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Returns the same as [`Self::head`], to be rewritten: these bytes are delivered.
    #[inline(always)]
    pub fn head_mut(&mut self, index: usize) -> &mut [u8] {
        match (self.slots.get_mut(index), self.frames.get(index)) {
            (Some(slot), Some(frame)) => {
                slot.0.get_mut(..usize::from(frame.head_len)).unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    /// Copies more of a frame into its slot, up to [`HEAD_MAX`] bytes. Bytes that were there
    /// already are not read again.
    pub fn extend_head(&mut self, index: usize) -> &[u8] {
        self.extend_to(index, HEAD_MAX);
        self.head(index)
    }

    fn extend_to(&mut self, index: usize, most: usize) {
        let Some(frame) = self.frames.get(index).copied() else { return };
        let have = usize::from(frame.head_len);
        let want = (frame.len as usize).min(most);
        if want > have
            && let Some(slot) = self.slots.get_mut(index)
        {
            read_more_of(&self.ring);
            let mut pieces = Pieces::new(self.segs, &frame, have as u32, (want - have) as u32);
            let mut at = have;
            while let Some((ptr, len)) = pieces.next() {
                let Some(room) = slot.0.get_mut(at..at + len as usize) else { break };
                // SAFETY: the piece is mapped (what it is part of is borrowed by self); the room
                // has the same length.
                unsafe { copy::copy(ptr.as_ptr(), room.as_mut_ptr(), len as usize) };
                at += len as usize;
            }
            if let Some(frame) = self.frames.get_mut(index) {
                frame.head_len = at as u16;
            }
        }
    }

    /// Copies a complete frame into private memory, and has it delivered from there from now on.
    ///
    /// So the bytes that the caller judges are those that arrive, even if the guest writes
    /// meanwhile. Bytes that are in the slot already are not read again. Returns `None`, and leaves
    /// the frame as it was, if it is longer than [`KEPT_MAX`] or has a fault.
    pub fn keep(&mut self, index: usize) -> Option<&[u8]> {
        let frame = self.frames.get(index).copied().filter(|frame| frame.fault.is_none())?;
        let len = frame.len as usize;
        let place = usize::from(frame.first_seg);
        let room = self.kept.get_mut(index)?.get_mut(..len)?;
        // Kept before: it must not be copied onto itself.
        if self.segs.get(place)?.ptr.as_ptr() == room.as_mut_ptr() {
            return self.kept.get(index)?.get(..len);
        }
        let head = usize::from(frame.head_len).min(len);
        room.get_mut(..head)?.copy_from_slice(self.slots.get(index)?.0.get(..head)?);
        read_more_of(&self.ring);
        let mut pieces = Pieces::new(self.segs, &frame, head as u32, (len - head) as u32);
        let mut at = head;
        while let Some((ptr, piece)) = pieces.next() {
            let to = room.get_mut(at..at + piece as usize)?;
            // SAFETY: the piece is mapped (what it is part of is borrowed by self) and not in
            // `kept`, as this frame was not kept before; `to` has the same length.
            unsafe { copy::copy(ptr.as_ptr(), to.as_mut_ptr(), to.len()) };
            at += to.len();
        }
        if at != len {
            return None;
        }
        let whole = self.kept.get(index)?.get(..len)?;
        // Read only, and borrowed for as long as the frames are.
        *self.segs.get_mut(place)? = Seg { ptr: NonNull::from(whole).cast(), len: frame.len };
        let frame = self.frames.get_mut(index)?;
        (frame.segs, frame.skip) = (1, 0);
        Some(whole)
    }

    /// Takes `n` bytes off the front of a frame, which are in its slot: an outer header. `len`
    /// bytes are left of it; what follows is padding. Returns whether there were as many, and
    /// as many as an Ethernet header has.
    #[inline(always)]
    pub fn strip(&mut self, index: usize, n: usize, len: u32) -> bool {
        let (Some(frame), Some(slot)) = (self.frames.get_mut(index), self.slots.get_mut(index))
        else {
            return false;
        };
        let head = usize::from(frame.head_len);
        if n > head
            || len < MIN_FRAME
            || len > frame.len.wrapping_sub(n as u32)
            || n as u32 > frame.len
        {
            return false;
        }
        slot.0.copy_within(n..head, 0);
        frame.head_len = (head - n).min(len as usize) as u16;
        frame.len = len;
        frame.offload = false;
        frame.skip += n as u16;
        if head - n < HEAD {
            self.extend_to(index, HEAD);
        }
        true
    }

    /// The sum of a range of a frame, as it is in its memory. `None` if the frame is not that long.
    #[inline(never)] // it would push other code of its callers apart
    pub fn sum(&self, index: usize, from: u32, len: u32) -> Option<Sum> {
        let mut pieces = self.pieces(index, from, len)?;
        read_more_of(&self.ring);
        let mut sum = Sum::EMPTY;
        let mut private = [0u8; 512];
        let mut left = len as usize;
        while let Some((ptr, piece)) = pieces.next() {
            let (piece, mut at) = (piece as usize, 0);
            while at < piece {
                let room = private.get_mut(..(piece - at).min(512))?;
                // SAFETY: the piece is mapped (what it is part of is borrowed by self), and has as
                // many bytes behind `at` as the room.
                unsafe {
                    let ptr = ptr.as_ptr().add(at);
                    copy::copy_and_sum(ptr, room.as_mut_ptr(), room.len(), &mut sum);
                }
                at += room.len();
            }
            left -= piece;
        }
        (left == 0).then_some(sum)
    }

    /// Copies a range of a frame, which may be in its slot only in parts, adding it to `sum`.
    /// Returns whether the frame is that long and `to` was filled.
    pub fn copy_to(
        &self,
        index: usize,
        from: u32,
        to: &mut [u8],
        mut sum: Option<&mut Sum>,
    ) -> bool {
        let Some(mut pieces) =
            u32::try_from(to.len()).ok().and_then(|len| self.pieces(index, from, len))
        else {
            return false;
        };
        read_more_of(&self.ring);
        let mut at = 0;
        while let Some((ptr, len)) = pieces.next() {
            let len = len as usize;
            let Some(room) = to.get_mut(at..at + len) else { return false };
            let (ptr, room) = (ptr.as_ptr(), room.as_mut_ptr());
            // SAFETY: the piece is mapped (what it is part of is borrowed by self); the room has
            // the same length.
            unsafe {
                match sum.as_deref_mut() {
                    Some(sum) => copy::copy_and_sum(ptr, room, len, sum),
                    None => copy::copy(ptr, room, len),
                }
            }
            at += len;
        }
        at == to.len()
    }

    /// Gives the descriptors of all frames back to the guest and shows it, once. Returns how to
    /// interrupt it, if it wants that.
    pub fn release(&mut self) -> Option<Arc<CallFd>> {
        touches::own_memory();
        let ring = &mut self.ring.take()?.vring;
        ring.release(self.frames.iter().map(|frame| frame.id))
    }

    /// Everything of a frame from a position on.
    #[inline(always)]
    pub(super) fn pieces_of(&self, frame: &Frame, from: u32) -> Pieces<'_> {
        Pieces::new(self.segs, frame, from, frame.len.saturating_sub(from))
    }

    /// Asks for what a frame holds behind its head, up to so many bytes from its beginning.
    #[inline(always)]
    pub(super) fn prefetch(&self, frame: &Frame, to: usize) {
        let from = usize::from(frame.head_len);
        let mut pieces = Pieces::new(
            self.segs,
            frame,
            from as u32,
            (frame.len as usize).min(to).saturating_sub(from) as u32,
        );
        while let Some((at, len)) = pieces.next() {
            (0..len as usize)
                .step_by(LINE)
                .for_each(|line| copy::prefetch_read(at.as_ptr().wrapping_add(line)));
        }
    }

    /// A range of a frame; `None` if the frame is not that long.
    pub(super) fn pieces(&self, index: usize, from: u32, len: u32) -> Option<Pieces<'_>> {
        let frame = self.frames.get(index)?;
        let end = from.checked_add(len)?;
        (end <= frame.len).then(|| Pieces::new(self.segs, frame, from, len))
    }
}

/// Iterates over the contiguous pieces of a range of a frame.
pub(super) struct Pieces<'a> {
    segs: std::slice::Iter<'a, Seg>,
    skip: u32,
    left: u32,
}

impl<'a> Pieces<'a> {
    #[inline(always)]
    fn new(segs: &'a [Seg], frame: &Frame, from: u32, len: u32) -> Pieces<'a> {
        let first = usize::from(frame.first_seg);
        let segs = segs.get(first..first + usize::from(frame.segs)).unwrap_or_default();
        Pieces { segs: segs.iter(), skip: from + u32::from(frame.skip), left: len }
    }

    /// The next piece; it is mapped as long as the batch is not released.
    #[inline(always)]
    pub fn next(&mut self) -> Option<(NonNull<u8>, u32)> {
        while self.left > 0 {
            let seg = self.segs.next()?;
            if self.skip >= seg.len {
                self.skip -= seg.len;
                continue;
            }
            let len = (seg.len - self.skip).min(self.left);
            // SAFETY: skip < seg.len: inside the segment.
            let ptr = unsafe { seg.ptr.add(self.skip as usize) };
            self.skip = 0;
            self.left -= len;
            return Some((ptr, len));
        }
        None
    }
}
