//! The receive ring: frames on their way out of the switch, into a guest's buffers.

use std::{ops::Range, ptr::NonNull, sync::Arc};

use butterfly_packet::checksum::Sum;

use super::{
    copy::{self, LINE},
    door::{Room, Through},
    frames::{BATCH, Delivery, Finish, Frame, Frames, HEAD, HEAD_MAX, finish_checksum},
    front::{FIELDS, Front, OUTER_MAX},
    split::{BadChain, CHAIN_BUDGET, CallFd, RingStatus, Split},
    touches,
    walks::Walks,
    writer::Writer,
};
use crate::net::{Features, NetHeader};

/// Bytes of the next frame that are fetched ahead: a frame of the usual MTU.
const AHEAD: usize = 1536;
/// Most pieces that one frame is spread over.
const MAX_PIECES: usize = 2048;
/// Most empty descriptors of one chain. Drivers make none; each costs a look and brings no room.
const MAX_EMPTY: u32 = 4;

/// Reason why a frame did not get into a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDelivered {
    /// The guest has not enough buffers available now.
    Full,
    /// The guest disabled the ring, or broke it.
    NotReady,
    /// No buffer of this guest can hold a frame of this size.
    TooLarge,
    /// The guest's buffer chain breaks the rules of virtio 1.2, 2.7.5. It went back unused.
    BadChain,
    /// Finding room costs too much: the guest's buffers are in too many small pieces.
    Slow,
    /// Too many pages of the guest's memory were touched first by us, or touching one took long: it
    /// rests for a while.
    Resting,
}

/// A buffer of one descriptor, already checked and translated.
#[derive(Clone, Copy)]
struct Ready {
    /// None: the chain is not that simple.
    room: Room,
    id: u16,
}

/// A chain that takes part in a frame.
#[derive(Clone, Copy)]
struct Chain {
    id: u16,
    capacity: u32,
}

/// A guest's receive queue, as the device sees it.
pub struct RxRing {
    pub(crate) split: Split,
    /// Buffers ahead of `next_avail`, by their position modulo the size of this array, up to
    /// `prepared`.
    ready: Box<[Ready; BATCH]>,
    prepared: u16,
    /// Room for frames that need more than one piece.
    pieces: Vec<Room>,
    chains: Vec<Chain>,
    /// Cost of finding room so far.
    walks: Walks,
}

// SAFETY: the pointers point into the memory that `split` keeps alive; the ring is used by one
// thread at a time.
unsafe impl Send for RxRing {}

impl RxRing {
    pub(crate) fn new(split: Split) -> RxRing {
        RxRing {
            prepared: split.next_avail,
            split,
            ready: Box::new([Ready { room: Room::NONE, id: 0 }; BATCH]),
            pieces: Vec::with_capacity(MAX_PIECES),
            chains: Vec::with_capacity(CHAIN_BUDGET as usize),
            walks: Walks::default(),
        }
    }

    /// For the operator.
    pub fn status(&self) -> RingStatus {
        self.split.status()
    }

    /// Returns the features that the guest negotiated: they say which offloads it can take.
    #[inline(always)]
    pub fn features(&self) -> Features {
        self.split.features
    }

    /// Lets the ring rest until it is set up anew: what it points to is not the guest's memory any
    /// more.
    pub fn rest(&mut self) {
        self.split.broken = true;
        self.forget_prepared();
    }

    /// True if the guest's memory or its dirty log was taken away.
    pub fn poisoned(&self) -> bool {
        self.split.poisoned()
    }

    /// Starts fetching the lines of the ring that the next `n` frames need.
    #[inline(always)]
    pub fn prefetch(&mut self, n: u16) {
        if self.split.known() < n {
            let _ = self.split.available();
        }
        for ahead in (0..n.min(self.split.known()).min(BATCH as u16)).step_by(4) {
            self.split.prefetch_desc(self.split.head(ahead));
        }
        self.split.prefetch_used();
    }

    /// Reads and checks the next buffers, up to `n`, and fetches their first lines for writing.
    /// Without this, delivering does it.
    #[inline]
    pub fn prepare(&mut self, n: u16) {
        if self.split.broken || !self.split.enabled {
            return;
        }
        touches::enter(&self.split.touches);
        if touches::rests(&self.split.touches) {
            return self.forget_prepared();
        }
        let n = n.min(BATCH as u16);
        let have = self.prepared.wrapping_sub(self.split.next_avail);
        if have >= n {
            return;
        }
        if self.split.known() < n && self.split.available().is_none() {
            return;
        }
        let n = n.min(self.split.known());
        let mut window = self.split.window;
        for ahead in have..n {
            let id = self.split.head(ahead);
            let mut ready = Ready { room: Room::NONE, id };
            if let Some(desc) = self.split.desc(id)
                && desc.is_single_writable()
                && let Some(ptr) = self.split.whole(desc.addr, desc.len, &mut window)
            {
                // SAFETY: whole() found it mapped, in memory that `split` keeps.
                ready.room = unsafe { Room::new(ptr, desc.len, desc.addr) };
                let (header, frame) =
                    (ptr.as_ptr(), ptr.as_ptr().wrapping_add(self.split.header_len));
                if header.addr() / LINE == frame.addr() / LINE {
                    copy::prefetch_write(frame);
                    copy::prefetch_write(header.wrapping_add(LINE));
                } else {
                    // A header in a line of its own: usually it is there already and needs no
                    // store.
                    copy::prefetch_read(header);
                    copy::prefetch_write(frame);
                }
            }
            if let Some(slot) =
                self.ready.get_mut(usize::from(self.split.next_avail.wrapping_add(ahead)) % BATCH)
            {
                *slot = ready;
            }
        }
        self.split.window = window;
        self.prepared = self.split.next_avail.wrapping_add(n);
    }

    /// Writes the frames `range` of a batch as they are into the guest's buffers, one buffer each.
    /// The guest sees them after [`Self::publish`]. Stops before the first frame that does not
    /// fit into the next prepared buffer: that one is for [`Self::deliver_one`]. Returns how
    /// many it wrote, and their bytes.
    #[inline(always)]
    pub fn deliver_run(&mut self, frames: &Frames<'_>, range: Range<usize>) -> (usize, u64) {
        let (at, bytes) = match self.split.door.unlogged() {
            Some(door) => self.deliver_through(&door, frames, range.clone()),
            None => self.deliver_through(&&self.split.door, frames, range.clone()),
        };
        let done = at - range.start;
        self.split.next_avail = self.split.next_avail.wrapping_add(done as u16);
        self.split.next_used = self.split.next_used.wrapping_add(done as u16);
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
        let header_len = self.split.header_len;
        let first = self.split.next_avail.wrapping_add(before);
        let used = self.split.next_used.wrapping_add(before);
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
            door.used_entry(used.wrapping_add(done), ready.id, need);
            done += 1;
            bytes += u64::from(frame.len);
        }
        (done, bytes)
    }

    /// Starts fetching what a frame holds behind its head, and the buffer at a position for it,
    /// while another one is copied.
    #[inline(never)] // short frames need the registers
    fn fetch(&self, frames: &Frames<'_>, index: usize, position: u16) {
        let (Some(frame), Some(ready)) =
            (frames.frames().get(index), self.ready.get(usize::from(position) % BATCH))
        else {
            return;
        };
        frames.prefetch(frame, AHEAD);
        ready.room.prefetch(HEAD, AHEAD.min(frame.len as usize));
    }

    /// Does the same as [`Self::deliver_run`], for one frame, with any number of buffers.
    ///
    /// Finds room for the complete frame before it writes the first byte. Never waits: the guest's
    /// index is looked at once more before a frame is refused as [`NotDelivered::Full`].
    #[inline(never)]
    pub fn deliver_one(&mut self, frames: &Frames<'_>, index: usize) -> Result<(), NotDelivered> {
        let head = frames.head(index);
        let len = frames.frames().get(index).map_or(0, |frame| frame.len);
        let from = head.len() as u32;
        let delivery = Delivery {
            net: NetHeader::default(),
            head,
            frame: index,
            from,
            len: len.saturating_sub(from),
            finish: Finish::Nothing,
        };
        self.deliver(frames, &delivery)
    }

    /// Writes a frame with a header in front of it, as it is otherwise, into the guest's next
    /// buffers.
    #[inline(always)]
    pub fn deliver_behind(
        &mut self,
        frames: &Frames<'_>,
        index: usize,
        front: &Front,
        fields: [u16; FIELDS],
    ) -> Result<(), NotDelivered> {
        let (Some(frame), Some(slot)) = (frames.frames.get(index), frames.slots.get(index)) else {
            return Err(NotDelivered::BadChain);
        };
        let header_len = self.split.header_len;
        let at = self.split.next_avail;
        let need = (header_len + front.len()) as u32 + frame.len;
        let ready = self.ready.get(usize::from(at) % BATCH).copied();
        let prepared = self.prepared != at;
        let Some(ready) = ready.filter(|ready| prepared && need <= ready.room.len()) else {
            return self.deliver_behind_spread(frames, index, front, fields);
        };
        let Some(mut store) = self.split.door.store(&ready.room, need) else {
            return Err(NotDelivered::TooLarge);
        };
        let head_len = usize::from(frame.head_len).min(HEAD_MAX);
        if frame.len as usize > head_len {
            self.fetch(frames, index + 1, at.wrapping_add(1));
        }
        // SAFETY: as in deliver_run(); `front` is asked for, too.
        unsafe {
            store.empty_header(header_len);
            store.front(front, fields);
            store.mapped(NonNull::from(&slot.0).cast(), head_len as u32);
        }
        if frame.len as usize > head_len {
            let mut pieces = frames.pieces_of(frame, head_len as u32);
            while let Some((from, len)) = pieces.next() {
                // SAFETY: as in deliver_run().
                unsafe { store.mapped(from, len) };
            }
        }
        drop(store);
        self.split.push_used(ready.id, need);
        self.split.next_avail = at.wrapping_add(1);
        Ok(())
    }

    #[inline(never)]
    fn deliver_behind_spread(
        &mut self,
        frames: &Frames<'_>,
        index: usize,
        front: &Front,
        fields: [u16; FIELDS],
    ) -> Result<(), NotDelivered> {
        let mut outer = [0; OUTER_MAX];
        front.write(fields, &mut outer);
        let outer = outer.get(..front.len()).unwrap_or_default();
        let head = frames.head(index);
        let len = frames.frames().get(index).map_or(0, |frame| frame.len);
        let (mut both, at) = ([0u8; OUTER_MAX + HEAD_MAX], outer.len() + head.len());
        let both = both.get_mut(..at).ok_or(NotDelivered::TooLarge)?;
        both.get_mut(..outer.len()).ok_or(NotDelivered::TooLarge)?.copy_from_slice(outer);
        both.get_mut(outer.len()..).ok_or(NotDelivered::TooLarge)?.copy_from_slice(head);
        let from = head.len() as u32;
        let rest = len.saturating_sub(from);
        let net = NetHeader::default();
        self.deliver(
            frames,
            &Delivery { net, head: both, frame: index, from, len: rest, finish: Finish::Nothing },
        )
    }

    /// Writes a frame of our own.
    pub fn deliver_own(&mut self, frame: &[u8]) -> Result<(), NotDelivered> {
        if self.split.broken || !self.split.enabled {
            return Err(NotDelivered::NotReady);
        }
        self.may_be_touched()?;
        let need = (self.split.header_len + frame.len()) as u32;
        self.find_room(need)?;
        let header =
            NetHeader { num_buffers: self.chains.len() as u16, ..NetHeader::default() }.to_bytes();
        let header = header.get(..self.split.header_len).unwrap_or_default();
        let mut writer = Writer::new(&self.pieces, &self.split.door);
        writer.bytes(header);
        writer.bytes(frame);
        self.use_up(need);
        Ok(())
    }

    /// The chains that were found hold `need` bytes now.
    fn use_up(&mut self, need: u32) {
        let mut left = need;
        for chain in &self.chains {
            let len = left.min(chain.capacity);
            left -= len;
            self.split.push_used(chain.id, len);
        }
        self.consume(self.chains.len() as u16);
    }

    /// Does the same as [`Self::deliver_one`], for a frame that is changed on its way.
    pub fn deliver(
        &mut self,
        frames: &Frames<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<(), NotDelivered> {
        if self.split.broken || !self.split.enabled {
            return Err(NotDelivered::NotReady);
        }
        self.may_be_touched()?;
        let need = self.split.header_len as u32 + delivery.head.len() as u32 + delivery.len;
        self.deliver_spread(frames, delivery, need)
    }

    /// Checks that the guest's memory may be touched now.
    #[inline(always)]
    fn may_be_touched(&self) -> Result<(), NotDelivered> {
        if touches::metering() {
            touches::enter(&self.split.touches);
            if touches::rests(&self.split.touches) {
                return Err(NotDelivered::Resting);
            }
        }
        Ok(())
    }

    /// A frame that needs several descriptors or buffers, or whose checksum is to be computed.
    #[inline(never)]
    fn deliver_spread(
        &mut self,
        frames: &Frames<'_>,
        delivery: &Delivery<'_>,
        need: u32,
    ) -> Result<(), NotDelivered> {
        self.find_room(need)?;
        let mut finished;
        let mut head = delivery.head;
        let header = NetHeader { num_buffers: self.chains.len() as u16, ..delivery.net }.to_bytes();
        let header = header.get(..self.split.header_len).unwrap_or_default();

        // The rest first, because the checksum, which covers it, stands in the head.
        let mut sum = Sum::EMPTY;
        let mut writer = Writer::new(&self.pieces, &self.split.door);
        writer.skip((header.len() + head.len()) as u32);
        let mut source = frames
            .pieces(delivery.frame, delivery.from, delivery.len)
            .ok_or(NotDelivered::BadChain)?;
        while let Some((from, len)) = source.next() {
            // SAFETY: mapped as long as the batch is not released.
            unsafe {
                writer.mapped(
                    from,
                    len,
                    if delivery.finish == Finish::Nothing { None } else { Some(&mut sum) },
                )
            };
        }
        if let Finish::Checksum { start, field, udp } = delivery.finish {
            finished = [0u8; OUTER_MAX + HEAD_MAX];
            let private = finished.get_mut(..head.len()).ok_or(NotDelivered::TooLarge)?;
            private.copy_from_slice(head);
            finish_checksum(private, start, field, udp, sum);
            head = private;
        }
        let mut writer = Writer::new(&self.pieces, &self.split.door);
        writer.bytes(header);
        writer.bytes(head);
        self.use_up(need);
        Ok(())
    }

    /// Collects chains until `need` bytes fit, into `chains` and `pieces`.
    ///
    /// The cost is bounded per ring and batch, for any buffers of the guest: see [`Walks`].
    fn find_room(&mut self, need: u32) -> Result<(), NotDelivered> {
        if let Some(why) = self.known_to_fail(need) {
            return Err(why);
        }
        let at = self.split.next_avail;
        let Some(allowed) = self.walks.allowed(at, need) else { return Err(NotDelivered::Slow) };
        let mut budget = allowed.min(CHAIN_BUDGET);
        let given = budget;
        let found = self.search(need, &mut budget, given == CHAIN_BUDGET);
        self.walks.spent(need, given - budget);
        match found {
            Ok(()) | Err(NotDelivered::BadChain) => {}
            Err(why) => {
                self.walks.failed(at, need, why);
                if why == NotDelivered::Slow {
                    self.walks.too_few(at, need, allowed);
                }
            }
        }
        found
    }

    /// Returns why a frame of this size cannot fit: one that is no larger was refused already, and
    /// nothing has changed.
    #[inline(always)]
    fn known_to_fail(&mut self, need: u32) -> Option<NotDelivered> {
        let why = self.walks.has_failed(self.split.next_avail, need)?;
        if why == NotDelivered::Full {
            let before = self.split.avail_idx;
            if self.split.available().is_some() && self.split.avail_idx != before {
                return None;
            }
        }
        Some(why)
    }

    /// `whole`: the budget is what the longest chain needs, not what a debt has left of it.
    #[inline(always)]
    fn search(&mut self, need: u32, budget: &mut u32, whole: bool) -> Result<(), NotDelivered> {
        self.pieces.clear();
        self.chains.clear();
        let mergeable = self.split.features.has(Features::MRG_RXBUF);
        let mut room = 0u32;
        while room < need {
            let taken = self.chains.len() as u16;
            if taken > 0 && !mergeable {
                return Err(NotDelivered::TooLarge);
            }
            if taken == self.split.known() {
                match self.split.available() {
                    None => return Err(NotDelivered::NotReady),
                    Some(n) if n == taken => {
                        // A frame that the whole ring cannot hold will never fit.
                        return Err(if taken == self.split.size() {
                            NotDelivered::TooLarge
                        } else {
                            NotDelivered::Full
                        });
                    }
                    Some(_) => {}
                }
            }
            let id = self.split.head(taken);
            let walked = self.collect(id, budget);
            let Ok(capacity) = walked else {
                if *budget == 0 && !whole {
                    return Err(NotDelivered::Slow);
                }
                if *budget == 0 && taken > 0 {
                    return Err(NotDelivered::TooLarge);
                }
                // Back to the guest with it, and with those before it, which the frame will not
                // use.
                for chain in &self.chains {
                    self.split.push_used(chain.id, 0);
                }
                self.split.push_used(id, 0);
                self.consume(taken + 1);
                return Err(NotDelivered::BadChain);
            };
            if self.chains.len() == self.chains.capacity() {
                return Err(NotDelivered::TooLarge);
            }
            self.chains.push(Chain { id, capacity });
            room = room.saturating_add(capacity);
            if capacity < self.split.header_len as u32 {
                return Err(NotDelivered::TooLarge);
            }
        }
        Ok(())
    }

    /// Adds the pieces of a chain. Returns how many bytes they hold.
    #[inline(always)]
    fn collect(&mut self, id: u16, budget: &mut u32) -> Result<u32, BadChain> {
        let mut capacity = 0u32;
        let mut empty = 0;
        let mut hint = self.split.hint;
        let pieces = &mut self.pieces;
        self.split.walk(id, budget, |split, desc| {
            if !desc.is_writable() {
                return Err(BadChain);
            }
            if desc.len == 0 {
                empty += 1;
                return if empty > MAX_EMPTY { Err(BadChain) } else { Ok(()) };
            }
            let (mut addr, mut left) = (desc.addr, desc.len);
            while left > 0 {
                let span = split.memory.span(addr, left, &mut hint).ok_or(BadChain)?;
                if pieces.len() == pieces.capacity() {
                    return Err(BadChain);
                }
                // SAFETY: the span is mapped, in memory that `split` keeps.
                pieces.push(unsafe { Room::new(span.ptr, span.len, addr) });
                capacity = capacity.saturating_add(span.len);
                addr = addr.checked_add(u64::from(span.len)).ok_or(BadChain)?;
                left -= span.len;
            }
            Ok(())
        })?;
        Ok(capacity)
    }

    fn consume(&mut self, chains: u16) {
        let next = self.split.next_avail.wrapping_add(chains);
        if self.prepared.wrapping_sub(self.split.next_avail) < chains {
            self.prepared = next;
        }
        self.split.next_avail = next;
    }

    /// Shows the guest everything delivered so far. Returns how to interrupt it, if it wants that.
    #[inline]
    pub fn publish(&mut self) -> Option<Arc<CallFd>> {
        self.walks.forget();
        self.split.publish();
        if self.split.wants_call() { self.split.call.clone() } else { None }
    }

    /// Forgets buffers looked at in advance: they were translated by an old memory table.
    pub(crate) fn forget_prepared(&mut self) {
        self.prepared = self.split.next_avail;
    }
}
