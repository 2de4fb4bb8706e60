//! The transmit ring: a guest's frames on their way into the switch.

use std::sync::Arc;

use butterfly_point::{Point, pass};

use super::{
    call::CallFd,
    copy,
    frames::{
        BATCH, Frame, FrameFault, FrameStore, Frames, HEAD, HEAD_LONG, MAX_BYTES, MAX_FRAME,
        MAX_SEGS, MIN_FRAME, Seg, Slot,
    },
    packed::Packed,
    space::{BadChain, CHAIN_BUDGET, Chains, Desc},
    touches,
    vring::{Layout, RingStatus, Vring},
};
use crate::{memory::Window, net::NetHeader};

/// A ring is disabled for half a second before what is in it is discarded.
const LOOKS_BEFORE_DISCARD: u8 = 5;
/// Most frames that are discarded at one look.
const MOST_DISCARDED: u16 = 1024;

/// A guest's transmit queue, as the device sees it.
pub struct TxRing {
    pub(crate) vring: Vring,
    /// Number of looks that found it disabled.
    idle_looks: u8,
}

/// Result of [`TxRing::gather`].
pub enum Gathered<'a> {
    /// Nothing to send, or the ring is disabled.
    Empty,
    /// The guest's index is impossible: the ring rests until it is set up anew.
    Broken,
    /// At least one frame.
    Frames(Frames<'a>),
}

/// Result of [`TxRing::discard`].
pub struct Discarded {
    /// Frames that went back to the guest, unsent.
    pub frames: u64,
    /// How to interrupt the guest, if it wants that.
    pub call: Option<Arc<CallFd>>,
    /// Something may be left, now or in a while: call it again.
    pub left: bool,
}

/// Reason why a chain was not opened.
enum ChainFault {
    /// The batch has no room for so many descriptors; by itself it may have.
    NoRoom,
    Fault(FrameFault),
}

impl TxRing {
    pub(crate) fn new(vring: Vring) -> TxRing {
        TxRing { vring, idle_looks: 0 }
    }

    /// SET_VRING_ENABLE. With `stale`, it is served when [`Self::discard`] gave back what it holds
    /// now.
    pub(crate) fn set_enabled(&mut self, enabled: bool, stale: bool) {
        self.vring.want(enabled);
        let stale = match (enabled, stale) {
            (false, _) => 0,
            (true, true) => self.vring.entries(),
            (true, false) => self.vring.stale,
        };
        self.vring.rest_as_stale(stale);
        self.idle_looks = 0;
    }

    /// True if the guest disabled it.
    pub(crate) fn is_disabled(&self) -> bool {
        !self.vring.wanted
    }

    /// True if the ring holds what is to be discarded, at once or after a while.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_disabled() || self.vring.stale > 0
    }

    /// Gives the frames of a disabled ring back to the guest, unsent (vhost-user, "Ring states").
    /// Housekeeping calls it ten times a second.
    ///
    /// The frames do not go back at once. A front end disables rings when it starts, and when it
    /// stops or moves its VM. The frames that wait then are to be sent afterwards, perhaps by
    /// another host. Only those of a ring that was enabled again while others went on go back at
    /// once; then the ring is served.
    pub fn discard(&mut self) -> Discarded {
        let nothing = |left| Discarded { frames: 0, call: None, left };
        if self.vring.broken || self.vring.enabled {
            return nothing(false);
        }
        if self.vring.held {
            return nothing(true);
        }
        if self.vring.stale == 0 && self.idle_looks < LOOKS_BEFORE_DISCARD {
            self.idle_looks += 1;
            return nothing(true);
        }
        touches::enter(&self.vring.touches);
        if touches::rests(&self.vring.touches) {
            return nothing(true);
        }
        let all = self.vring.entries();
        let stale = self.vring.stale;
        let due = if stale > 0 { stale.min(all) } else { all };
        let (mut frames, mut entries) = (0, 0u16);
        while entries < due
            && frames < MOST_DISCARDED
            && (self.vring.known() > 0 || self.vring.available().is_some_and(|n| n > 0))
        {
            let head = self.vring.head(0);
            entries = entries.saturating_add(self.vring.entries_of(head));
            self.vring.push_used(head, 0);
            self.vring.next_avail = self.vring.next_avail.wrapping_add(1);
            frames += 1;
        }
        let call = self.vring.publish(Point::TxReleased);
        touches::outside();
        // A guest may take back what it made available: then nothing of that is left.
        let all_done = entries >= due || frames < MOST_DISCARDED;
        self.vring.rest_as_stale(if all_done { 0 } else { stale.saturating_sub(entries) });
        Discarded { frames: frames.into(), call, left: !all_done }
    }

    /// For the operator.
    pub fn status(&self) -> RingStatus {
        self.vring.status()
    }

    /// True if the guest's memory or its dirty log was taken away.
    #[inline(always)]
    pub fn poisoned(&self) -> bool {
        self.vring.poisoned()
    }

    /// Lets the ring rest until it is set up anew: what it points to is not the guest's memory any
    /// more.
    pub fn rest(&mut self) {
        self.vring.rest();
    }

    /// Looks at the guest's index once. Returns how many chains are waiting: 0 if the ring is
    /// disabled, `None` if it is broken.
    #[inline(always)]
    pub fn available(&mut self) -> Option<u16> {
        if !self.vring.enabled {
            return if self.vring.broken { None } else { Some(0) };
        }
        // One that rests is asked again at the next turn: it is not empty, so it is not armed.
        if touches::rests(&self.vring.touches) {
            return Some(0);
        }
        self.vring.available()
    }

    /// Asks the guest not to kick, as long as the ring is polled.
    pub fn disarm(&mut self) {
        self.vring.disarm();
    }

    /// Asks the guest to kick for its next frame and looks again. Returns whether the ring is still
    /// empty: if not, poll it.
    pub fn arm(&mut self) -> bool {
        if !self.vring.enabled {
            return true;
        }
        self.vring.arm()
    }

    /// Fetches the ring's own lines of the first `n` waiting chains.
    #[inline(always)]
    pub fn prefetch(&self, n: u16) {
        // Backwards: what the processor fetches further on its own is behind us, not what the guest
        // is about to write.
        self.vring.prefetch((0..n.min(BATCH as u16)).step_by(4).rev());
    }

    /// Copies the first bytes of each waiting frame into header slots.
    ///
    /// Takes at most `most` and [`BATCH`] frames, 256 KiB and 1,024 descriptors of those that
    /// [`Self::available`] saw, and leaves the descriptors open until [`Frames::release`].
    /// Lengths and addresses are validated against the guest's memory table; a chain that fails is
    /// a frame with a [`FrameFault`] and the ring goes on (virtio 1.2, 2.7.13). Never blocks, never
    /// allocates.
    ///
    /// `meanwhile` is called with the number of frames once their contents are being fetched: time
    /// for the caller to prepare.
    #[inline]
    pub fn gather<'a>(
        &'a mut self,
        store: &'a mut FrameStore,
        most: u16,
        meanwhile: impl FnOnce(u16),
    ) -> Gathered<'a> {
        let n = usize::from(self.vring.known().min(most)).min(BATCH);
        if n == 0 || !self.vring.enabled {
            return if self.vring.broken { Gathered::Broken } else { Gathered::Empty };
        }
        touches::enter(&self.vring.touches);
        let count = self.open(store, n);
        if touches::metering() {
            self.touch(store, count);
        }
        meanwhile(count as u16);
        match (count, store.frames.first_mut(), store.slots.first_mut()) {
            (1, Some(frame), Some(slot)) if frame.fault.is_none() => {
                fill::<HEAD>(frame, slot, store.segs.as_slice(), self.vring.space.header_len);
            }
            _ => fill_all::<HEAD>(store, count, self.vring.space.header_len),
        }
        pass(Point::TxTaken);
        Gathered::Frames(Frames::gathered(self, store, count))
    }

    /// Gathers as [`Self::gather`] does, with as much of each frame as a slot holds: for frames
    /// with an outer header in front.
    pub fn gather_long<'a>(&'a mut self, store: &'a mut FrameStore, most: u16) -> Gathered<'a> {
        let n = usize::from(self.vring.known().min(most)).min(BATCH);
        if n == 0 || !self.vring.enabled {
            return if self.vring.broken { Gathered::Broken } else { Gathered::Empty };
        }
        touches::enter(&self.vring.touches);
        let count = self.open(store, n);
        if touches::metering() {
            self.touch(store, count);
        }
        fill_all::<HEAD_LONG>(store, count, self.vring.space.header_len);
        pass(Point::TxTaken);
        Gathered::Frames(Frames::gathered(self, store, count))
    }

    /// Opens up to `n` chains: first all descriptors, then all contents, so that the lines of a
    /// frame are on their way while the descriptors of others are read.
    #[inline(never)] // one call per batch, and its loop needs all registers
    fn open(&mut self, store: &mut FrameStore, n: usize) -> usize {
        let (count, window) = match &self.vring.layout {
            Layout::Split(split) => open_chains(&self.vring, split, store, n),
            Layout::Packed(packed) => open_packed(&self.vring, packed, store, n),
        };
        self.vring.window = window;
        count
    }

    /// Touches everything that will be copied: its pages are the sender's to pay for, not the
    /// receivers'.
    #[cold]
    fn touch(&self, store: &FrameStore, count: usize) {
        for frame in store.frames.iter().take(count) {
            let first = usize::from(frame.first_seg);
            for seg in store.segs.get(first..first + usize::from(frame.segs)).unwrap_or_default() {
                // SAFETY: the segment is mapped, as the ring is held.
                unsafe { copy::touch(seg.ptr.as_ptr(), seg.len as usize) };
            }
        }
    }
}

#[cold] // so that split rings get the registers
#[inline(never)]
fn open_packed(ring: &Vring, packed: &Packed, store: &mut FrameStore, n: usize) -> (usize, Window) {
    open_chains(ring, packed, store, n)
}

/// Opens the chains of `ring`, whose layout `chains` is. Returns their number, and the region of
/// the last one.
#[inline(always)]
fn open_chains(
    ring: &Vring,
    chains: &impl Chains,
    store: &mut FrameStore,
    n: usize,
) -> (usize, Window) {
    let header_len = ring.space.header_len;
    let mut budget = CHAIN_BUDGET;
    let mut bytes = 0;
    let mut segs = 0usize;
    let mut count = 0;
    let mut window = ring.window;
    for frame in store.frames.iter_mut().take(n) {
        let id = chains.head(ring.next_avail.wrapping_add(count as u16));
        frame.id = id;
        frame.fault = None;
        frame.offload = false;
        frame.skip = 0;
        frame.first_seg = segs as u16;
        let simple = match chains.first(id) {
            Some(desc) if desc.is_single_readable() => {
                simple(ring, desc, header_len as u32, &mut window)
            }
            _ => None,
        };
        if let (Some(seg), Some(to)) = (simple, store.segs.get_mut(segs)) {
            budget -= 1;
            copy::prefetch_read(seg.ptr.as_ptr().wrapping_sub(header_len));
            copy::prefetch_read(seg.ptr.as_ptr().wrapping_sub(header_len).wrapping_add(64));
            *to = seg;
            frame.len = seg.len;
            frame.segs = 1;
            frame.header_in_front = true;
            segs += 1;
        } else {
            frame.header_in_front = false;
            frame.len = 0;
            // Of a frame that turns out faulty nothing is ever stored: not even the head of one
            // before it.
            frame.head_len = 0;
            frame.segs = 0;
            match chain(ring, chains, id, &mut budget, store.segs.as_mut_slice(), segs) {
                Ok((net, len, used)) => {
                    frame.offload = net.flags != 0 || net.gso_type != NetHeader::GSO_NONE;
                    frame.net = net;
                    frame.len = len;
                    frame.segs = used as u16;
                    segs += used;
                }
                // Others used up what a batch may look at: this chain opens the next one.
                Err(ChainFault::NoRoom) if count > 0 => break,
                Err(ChainFault::NoRoom) => frame.fault = Some(FrameFault::BadChain),
                Err(ChainFault::Fault(fault)) => frame.fault = Some(fault),
            }
            // Simple chains need one descriptor each: leave enough for all that may follow.
            if budget < BATCH as u32 || segs > MAX_SEGS - BATCH {
                count += 1;
                break;
            }
        }
        bytes += frame.len;
        count += 1;
        if bytes >= MAX_BYTES {
            break;
        }
    }
    (count, window)
}

/// A chain of one descriptor that lies in one region and holds the virtio-net header and the
/// frame: what most drivers send. The segment starts behind the header.
#[inline(always)]
fn simple(ring: &Vring, desc: Desc, header_len: u32, window: &mut Window) -> Option<Seg> {
    // Shorter than the header wraps to more than any frame.
    let len = desc.len.wrapping_sub(header_len);
    if len.wrapping_sub(MIN_FRAME) > MAX_FRAME - MIN_FRAME {
        return None;
    }
    let start = ring.space.whole(desc.addr, desc.len, window)?;
    // SAFETY: header_len < desc.len, all of which is mapped.
    let ptr = unsafe { start.add(header_len as usize) };
    Some(Seg { ptr, len })
}

/// A chain of any shape. Segments go to `segs[first..]`. Returns the virtio-net header, the
/// frame's length and the number of segments.
#[inline(never)]
fn chain(
    ring: &Vring,
    chains: &impl Chains,
    id: u16,
    budget: &mut u32,
    segs: &mut [Seg],
    first: usize,
) -> Result<(NetHeader, u32, usize), ChainFault> {
    let mut raw = [0u8; NetHeader::LEN];
    let mut in_header = 0;
    let mut len = 0u32;
    let mut used = 0usize;
    let mut hint = ring.space.hint;
    let mut oversized = false;
    let mut full = false;
    let walked = chains.walk(&ring.space, id, budget, |space, desc| {
        if desc.is_writable() && !desc.of_packed_table {
            return Err(BadChain);
        }
        let (mut addr, mut left) = (desc.addr, desc.len);
        while left > 0 {
            let span = space.memory.span(addr, left, &mut hint).ok_or(BadChain)?;
            addr = addr.checked_add(u64::from(span.len)).ok_or(BadChain)?;
            left -= span.len;
            let take = (space.header_len - in_header).min(span.len as usize);
            if let Some(to) = raw.get_mut(in_header..in_header + take) {
                // SAFETY: take <= span.len and to has that length, which is that of a header at
                // most.
                unsafe { copy::small(span.ptr.as_ptr(), to.as_mut_ptr(), take) };
            }
            in_header += take;
            let rest = span.len - take as u32;
            if rest == 0 {
                continue;
            }
            len = len.saturating_add(rest);
            if len > MAX_FRAME {
                oversized = true;
                return Err(BadChain);
            }
            let Some(seg) = segs.get_mut(first + used) else {
                full = true;
                return Err(BadChain);
            };
            // SAFETY: take < span.len.
            *seg = Seg { ptr: unsafe { span.ptr.add(take) }, len: rest };
            used += 1;
        }
        Ok(())
    });
    match walked {
        Err(BadChain) if oversized => Err(ChainFault::Fault(FrameFault::Oversized)),
        Err(BadChain) if full || *budget == 0 => Err(ChainFault::NoRoom),
        Err(BadChain) => Err(ChainFault::Fault(FrameFault::BadChain)),
        Ok(()) if in_header < ring.space.header_len || len < MIN_FRAME => {
            Err(ChainFault::Fault(FrameFault::Short))
        }
        Ok(()) => Ok((NetHeader::from_bytes(raw), len, used)),
    }
}

/// Copies what stages look at into the slots.
#[inline(never)] // one call per batch, and its loop needs all registers
fn fill_all<const MOST: usize>(store: &mut FrameStore, count: usize, header_len: usize) {
    for (frame, slot) in store.frames.iter_mut().zip(store.slots.iter_mut()).take(count) {
        if frame.fault.is_none() {
            fill::<MOST>(frame, slot, store.segs.as_slice(), header_len);
        }
    }
}

/// Copies a frame's first bytes, and the virtio-net header if it was not read yet.
#[inline(always)]
fn fill<const MOST: usize>(frame: &mut Frame, slot: &mut Slot, segs: &[Seg], header_len: usize) {
    let Some(first) = segs.get(usize::from(frame.first_seg)) else { return };
    let want = (frame.len as usize).min(MOST);
    frame.head_len = want as u16;
    if frame.header_in_front {
        let mut raw = [0u8; NetHeader::LEN];
        // SAFETY: simple() placed the segment `header_len` bytes into its span, and header_len is
        // 10 or 12: 10 bytes are there. The two that may follow are num_buffers, which
        // means nothing here.
        unsafe {
            copy::copy_array::<{ NetHeader::LEGACY_LEN }>(
                first.ptr.as_ptr().sub(header_len),
                raw.as_mut_ptr(),
            )
        };
        if raw[0] | raw[1] != 0 {
            frame.offload = true;
            frame.net = NetHeader::from_bytes(raw);
        }
    }
    if first.len == frame.len {
        // SAFETY: want <= first.len; the slot has HEAD_MAX bytes.
        unsafe { copy::copy(first.ptr.as_ptr(), slot.0.as_mut_ptr(), want) };
    } else {
        fill_pieces(frame, slot, segs, want);
    }
}

#[inline(never)]
fn fill_pieces(frame: &Frame, slot: &mut Slot, segs: &[Seg], want: usize) {
    let first = usize::from(frame.first_seg);
    let mut at = 0;
    for seg in segs.get(first..first + usize::from(frame.segs)).unwrap_or_default() {
        let Some(room) = slot.0.get_mut(at..want) else { return };
        let n = room.len().min(seg.len as usize);
        // SAFETY: n is within both.
        unsafe { copy::copy(seg.ptr.as_ptr(), room.as_mut_ptr(), n) };
        at += n;
        if at == want {
            return;
        }
    }
}
