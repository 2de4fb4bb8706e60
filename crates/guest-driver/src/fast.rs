//! A driver for measuring: no allocation, no copies but the caller's, buffers bound to their
//! descriptors for good.
//!
//! [`crate::VirtQueue`] can do everything; this driver does one thing fast. Descriptors are written
//! once. Entries of the available ring are written only when they change; a device that uses chains
//! in order makes them stay. Each batch touches each index once. Buffers that the device returns
//! are checked as thoroughly.

use std::{
    sync::{
        Arc,
        atomic::{
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    time::Duration,
};

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    control::Nic,
    guest::RX,
    memory::{Memory, MemoryError, Span},
    queue::{DeviceError, QueueLink},
    ring::{
        AVAIL_NO_INTERRUPT, DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, Desc, Ring,
        USED_NO_NOTIFY, passed,
    },
};

/// Most frames or buffers taken in one go.
pub const BATCH: usize = 64;
const LINE: usize = 64;

/// Parameters of a [`FastGuest`].
#[derive(Clone, Copy, Debug)]
pub struct FastConfig {
    /// Entries of both rings.
    pub queue_size: u16,
    /// Longest frame to be sent.
    pub max_frame: usize,
    /// Bytes of a receive buffer, header included.
    pub rx_buffer: usize,
    /// Header and frame in two descriptors instead of one.
    pub header_apart: bool,
    /// Transmit chains in indirect tables (needs INDIRECT_DESC).
    pub indirect: bool,
}

impl FastConfig {
    /// Bytes of guest memory it needs.
    pub fn memory_needed(&self) -> u64 {
        let size = usize::from(self.queue_size);
        let buffers = size * (stride(self.max_frame) + stride(self.rx_buffer)) + 2 * LINE;
        (buffers + size * (2 * DESC_LEN + 64) + (1 << 20)).next_multiple_of(2 << 20) as u64
    }
}

/// Distance of buffers: room for a header that ends where a line does, then the frame. An odd
/// number of lines, so that buffers spread over all cache sets.
fn stride(len: usize) -> usize {
    (LINE + len).next_multiple_of(LINE) | LINE
}

/// Both queues of a guest, for measuring.
#[derive(Debug)]
pub struct FastGuest {
    memory: Arc<Memory>,
    features: Features,
    /// The receive queue.
    pub rx: FastRx,
    /// The transmit queue.
    pub tx: FastTx,
}

impl FastGuest {
    /// Builds a driver in `memory` as if `features` had been negotiated, with all receive buffers
    /// posted.
    pub fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &FastConfig,
    ) -> Result<FastGuest, MemoryError> {
        let rx = FastRx::new(memory, features, config)?;
        let tx = FastTx::new(memory, features, config)?;
        Ok(FastGuest { memory: Arc::clone(memory), features, rx, tx })
    }
}

impl Nic for FastGuest {
    fn features(&self) -> Features {
        self.features
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn link(&self, index: usize) -> &QueueLink {
        if index == RX { &self.rx.core.link } else { &self.tx.core.link }
    }
}

/// The part shared by both directions: a ring whose chains are known by their heads.
#[derive(Debug)]
struct Core {
    link: QueueLink,
    event_idx: bool,
    in_order: bool,
    mask: u16,
    /// Descriptors between two heads: chain `i` starts at descriptor `i << shift`.
    shift: u32,
    chains: u16,
    /// Contents of each entry of the available ring.
    entries: Vec<u16>,
    avail_idx: u16,
    notified: u16,
    last_used: u16,
    outstanding: u16,
    /// True for each chain that the device has.
    owned: Vec<bool>,
    /// Next chain in turn, with IN_ORDER.
    next_in_order: u16,
    kicks: u64,
}

impl Core {
    fn new(ring: Ring, features: Features, shift: u32) -> Result<Core, MemoryError> {
        let size = ring.size();
        let core = Core {
            link: QueueLink::new(ring)?,
            event_idx: features.has(Features::EVENT_IDX),
            in_order: features.has(Features::IN_ORDER),
            mask: size - 1,
            shift,
            chains: size >> shift,
            entries: vec![0; size.into()],
            avail_idx: 0,
            notified: 0,
            last_used: 0,
            outstanding: 0,
            owned: vec![false; (size >> shift).into()],
            next_in_order: 0,
            kicks: 0,
        };
        core.suppress_interrupts();
        Ok(core)
    }

    /// Makes a chain available with the next [`Self::publish`].
    #[inline]
    fn push(&mut self, chain: u16) {
        let head = chain << self.shift;
        if let Some(entry) = self.entries.get_mut(usize::from(self.avail_idx & self.mask))
            && *entry != head
        {
            *entry = head;
            self.link.ring.avail_entry(self.avail_idx).store(head, Relaxed);
        }
        if let Some(owned) = self.owned.get_mut(usize::from(chain)) {
            *owned = true;
        }
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.outstanding += 1;
    }

    #[inline]
    fn publish(&mut self) {
        let ring = &self.link.ring;
        ring.avail_idx().store(self.avail_idx, Release);
        fence(SeqCst); // see VirtQueue::notify
        let wanted = if self.event_idx {
            passed(ring.avail_event().load(Relaxed), self.avail_idx, self.notified)
        } else {
            ring.used_flags().load(Relaxed) & USED_NO_NOTIFY == 0
        };
        self.notified = self.avail_idx;
        if wanted {
            self.kicks += 1;
            self.link.kick();
        }
    }

    /// Takes up to `max` used chains: chain and length, None for one that IN_ORDER left out.
    #[inline]
    fn take(
        &mut self,
        max: usize,
        mut with: impl FnMut(u16, Option<u32>),
    ) -> Result<usize, DeviceError> {
        let ready = self.link.ring.used_idx().load(Acquire).wrapping_sub(self.last_used);
        if ready == 0 {
            return Ok(0);
        }
        if ready > self.outstanding {
            return Err(DeviceError::UsedIndex { moved: ready, outstanding: self.outstanding });
        }
        let mut taken = 0;
        while taken < max.min(ready.into()) {
            let (id, len) = self.link.ring.used_entry(self.last_used);
            let chain = (id >> self.shift) as u16;
            if id > u32::from(self.mask) || u32::from(chain) << self.shift != id {
                return Err(DeviceError::UsedId(id));
            }
            match self.owned.get_mut(usize::from(chain)) {
                Some(owned) if *owned => *owned = false,
                _ => return Err(DeviceError::UsedId(id)),
            }
            let mut covered = 1;
            if self.in_order {
                // Chains are used in turn, so the one named says how many of those before it go
                // along.
                covered = (chain.wrapping_sub(self.next_in_order) & (self.chains - 1)) + 1;
                if usize::from(covered) > usize::from(ready) - taken {
                    return Err(DeviceError::OutOfOrder(id));
                }
                for _ in 1..covered {
                    if let Some(owned) = self.owned.get_mut(usize::from(self.next_in_order)) {
                        *owned = false;
                    }
                    with(self.next_in_order, None);
                    self.next_in_order = (self.next_in_order + 1) & (self.chains - 1);
                }
                self.next_in_order = (chain + 1) & (self.chains - 1);
            }
            with(chain, Some(len));
            self.last_used = self.last_used.wrapping_add(covered);
            self.outstanding -= covered;
            taken += usize::from(covered);
        }
        if self.event_idx {
            self.suppress_interrupts();
        }
        Ok(taken)
    }

    /// Does the same as [`crate::VirtQueue::suppress_interrupts`].
    #[inline]
    fn suppress_interrupts(&self) {
        let ring = &self.link.ring;
        if !self.event_idx {
            ring.avail_flags().store(AVAIL_NO_INTERRUPT, Relaxed);
            return;
        }
        // Seldom, since the device reads the line: the field is far from the used index for half of
        // its range.
        let event = ring.used_event().load(Relaxed);
        if self.last_used.wrapping_sub(event) > 0x4000 || self.last_used == 0 {
            ring.used_event().store(self.last_used.wrapping_sub(1), Relaxed);
        }
    }
}

/// The transmit queue.
#[derive(Debug)]
pub struct FastTx {
    core: Core,
    pool: Span,
    stride: usize,
    max_frame: usize,
    header_len: usize,
    indirect: Option<Span>,
    header_apart: bool,
    /// Length each chain's descriptors say.
    lens: Vec<u32>,
    /// Chains the device does not have: a queue, oldest first.
    free: Vec<u16>,
    free_at: usize,
    free_count: usize,
    sent: u64,
}

/// A transmit buffer to be filled.
#[derive(Debug)]
pub struct TxFrame<'a> {
    pool: &'a Span,
    at: usize,
    room: usize,
    header_len: usize,
}

impl TxFrame<'_> {
    /// Writes frame bytes at `at`. Panics if they are beyond the longest frame.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room);
        self.pool.write(self.at + at, bytes);
    }

    /// Writes the virtio-net header, which is all zero unless written, and stays as it is for later
    /// frames in this buffer.
    #[inline]
    pub fn write_header(&self, header: NetHeader) {
        let header = header.to_bytes();
        self.pool
            .write(self.at - self.header_len, header.get(..self.header_len).unwrap_or_default());
    }
}

impl FastTx {
    fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &FastConfig,
    ) -> Result<FastTx, MemoryError> {
        let legacy = features.0 & (Features::VERSION_1.0 | Features::ANY_LAYOUT.0) == 0;
        let header_apart = config.header_apart || legacy;
        let ring = Ring::new(memory, config.queue_size)?;
        let shift = u32::from(header_apart && !config.indirect && config.queue_size > 1);
        let core = Core::new(ring, features, shift)?;
        let stride = stride(config.max_frame);
        let len = stride * usize::from(core.chains);
        let pool = memory.span(memory.alloc(len, LINE)?, len)?;
        pool.fill(0);
        let indirect = match config.indirect {
            true => {
                let len = usize::from(core.chains) * 2 * DESC_LEN;
                Some(memory.span(memory.alloc(len, LINE)?, len)?)
            }
            false => None,
        };
        let tx = FastTx {
            pool,
            stride,
            max_frame: config.max_frame,
            header_len: features.header_len(),
            indirect,
            header_apart,
            lens: vec![0; core.chains.into()],
            free: (0..core.chains).collect(),
            free_at: 0,
            free_count: core.chains.into(),
            sent: 0,
            core,
        };
        (0..tx.core.chains).for_each(|chain| tx.describe(chain, 0));
        Ok(tx)
    }

    /// Returns the offset of a chain's frame in the pool.
    #[inline]
    fn frame_at(&self, chain: u16) -> usize {
        usize::from(chain) * self.stride + LINE
    }

    /// Writes a chain's descriptors for a frame of `len` bytes.
    fn describe(&self, chain: u16, len: u32) {
        let frame = self.pool.addr() + self.frame_at(chain) as u64;
        let header_len = self.header_len as u32;
        let header =
            Desc { addr: frame - u64::from(header_len), len: header_len, flags: 0, next: 0 };
        let together = Desc { len: header_len + len, ..header };
        let apart = Desc { addr: frame, len, flags: 0, next: 0 };
        let head = chain << self.core.shift;
        let ring = &self.core.link.ring;
        match &self.indirect {
            None if self.header_apart => {
                ring.set_desc(head, Desc { flags: DESC_NEXT, next: head + 1, ..header });
                ring.set_desc(head + 1, apart);
            }
            None => ring.set_desc(head, together),
            Some(tables) => {
                let at = usize::from(chain) * 2 * DESC_LEN;
                let table = if self.header_apart {
                    [Desc { flags: DESC_NEXT, next: 1, ..header }, apart]
                } else {
                    [together, Desc::default()]
                };
                tables.write(at, &table[0].to_bytes());
                tables.write(at + DESC_LEN, &table[1].to_bytes());
                let entries = if self.header_apart { 2 } else { 1 };
                let len = (entries * DESC_LEN) as u32;
                ring.set_desc(
                    head,
                    Desc { addr: tables.addr() + at as u64, len, flags: DESC_INDIRECT, next: 0 },
                );
            }
        }
    }

    /// Frames handed to the device.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Notifications sent.
    pub fn kicks(&self) -> u64 {
        self.core.kicks
    }

    /// Frames the device has not used yet, as of the last [`Self::reclaim`].
    pub fn outstanding(&self) -> u16 {
        self.core.outstanding
    }

    /// Takes back what the device has used.
    #[inline]
    pub fn reclaim(&mut self) -> Result<usize, DeviceError> {
        let chains = usize::from(self.core.chains);
        let (free, mut end) = (&mut self.free, self.free_at + self.free_count);
        let taken = self.core.take(usize::MAX, |chain, _| {
            if let Some(place) = free.get_mut(end & (chains - 1)) {
                *place = chain;
            }
            end += 1;
        })?;
        self.free_count += taken;
        Ok(taken)
    }

    /// Sends up to `max` frames: `fill` writes each into its buffer and returns its length. Returns
    /// how many there was room for.
    #[inline]
    pub fn send(
        &mut self,
        max: usize,
        mut fill: impl FnMut(TxFrame<'_>) -> usize,
    ) -> Result<usize, DeviceError> {
        if self.free_count < max {
            self.reclaim()?;
        }
        let count = max.min(self.free_count);
        if count == 0 {
            return Ok(0);
        }
        let mask = usize::from(self.core.chains) - 1;
        for _ in 0..count {
            let Some(&chain) = self.free.get(self.free_at & mask) else { break };
            self.free_at += 1;
            let frame = TxFrame {
                pool: &self.pool,
                at: self.frame_at(chain),
                room: self.max_frame,
                header_len: self.header_len,
            };
            let len = fill(frame) as u32;
            if self.lens.get(usize::from(chain)) != Some(&len) {
                self.describe(chain, len);
                if let Some(known) = self.lens.get_mut(usize::from(chain)) {
                    *known = len;
                }
            }
            self.core.push(chain);
        }
        self.free_at &= mask;
        self.free_count -= count;
        self.sent += count as u64;
        self.core.publish();
        Ok(count)
    }

    /// Waits until the device has used everything. False after `timeout`.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        let deadline = std::time::Instant::now() + timeout;
        loop {
            self.reclaim()?;
            if self.core.outstanding == 0 {
                return Ok(true);
            }
            if std::time::Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }
}

/// The receive queue. Each buffer is one descriptor, also for a legacy guest, whose driver would
/// put the header apart.
#[derive(Debug)]
pub struct FastRx {
    core: Core,
    pool: Span,
    stride: usize,
    /// Bytes of a buffer.
    buffer: u32,
    header_len: usize,
    mergeable: bool,
    /// Used buffers of the batch in hand: where the bytes are in the pool, and how many.
    batch: Vec<(usize, u32)>,
    chains: Vec<u16>,
    received: u64,
}

/// A received frame in its buffers. They go back to the device after the call that was given it.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    pool: &'a Span,
    /// The first piece without its header, then the others.
    pieces: &'a [(usize, u32)],
    header_len: usize,
    len: usize,
}

impl RxFrame<'_> {
    /// Bytes of the frame, without header.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Buffers it came in.
    #[inline]
    pub fn buffers(&self) -> usize {
        self.pieces.len()
    }

    /// Its virtio-net header.
    #[inline]
    pub fn header(&self) -> NetHeader {
        let mut bytes = [0; NetHeader::LEN];
        if let (Some((at, _)), Some(bytes)) =
            (self.pieces.first(), bytes.get_mut(..self.header_len))
        {
            self.pool.read(*at, bytes);
        }
        NetHeader::from_bytes(bytes)
    }

    /// The first bytes, as many as fit. Returns how many there are.
    #[inline]
    pub fn read(&self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for (i, (at, len)) in self.pieces.iter().enumerate() {
            let skip = if i == 0 { self.header_len } else { 0 };
            let room = bytes.split_at_mut(done).1;
            let now = (*len as usize - skip).min(room.len());
            self.pool.read(at + skip, room.split_at_mut(now).0);
            done += now;
            if done == bytes.len() {
                break;
            }
        }
        done
    }
}

impl FastRx {
    fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &FastConfig,
    ) -> Result<FastRx, MemoryError> {
        let core = Core::new(Ring::new(memory, config.queue_size)?, features, 0)?;
        let stride = stride(config.rx_buffer);
        let len = stride * usize::from(core.chains);
        let pool = memory.span(memory.alloc(len, LINE)?, len)?;
        let mut rx = FastRx {
            core,
            pool,
            stride,
            buffer: config.rx_buffer as u32,
            header_len: features.header_len(),
            mergeable: features.has(Features::MRG_RXBUF),
            batch: Vec::with_capacity(config.queue_size.into()),
            chains: Vec::with_capacity(config.queue_size.into()),
            received: 0,
        };
        for chain in 0..rx.core.chains {
            let addr = rx.pool.addr() + rx.buffer_at(chain) as u64;
            rx.core
                .link
                .ring
                .set_desc(chain, Desc { addr, len: rx.buffer, flags: DESC_WRITE, next: 0 });
            rx.core.push(chain);
        }
        // Published, but the device is not told: it looks when it is started.
        rx.core.link.ring.avail_idx().store(rx.core.avail_idx, Release);
        Ok(rx)
    }

    /// Returns the offset of a buffer in the pool: the frame, behind its header, starts a line.
    #[inline]
    fn buffer_at(&self, chain: u16) -> usize {
        usize::from(chain) * self.stride + LINE - self.header_len
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Notifications sent.
    pub fn kicks(&self) -> u64 {
        self.core.kicks
    }

    /// True if used buffers wait.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.core.link.ring.used_idx().load(Acquire) != self.core.last_used
    }

    /// Takes what was received, at least [`BATCH`] buffers of it if there are as many, and gives
    /// the buffers back. Returns the number of frames.
    #[inline]
    pub fn poll(&mut self, mut with: impl FnMut(RxFrame<'_>)) -> Result<usize, DeviceError> {
        self.batch.clear();
        self.chains.clear();
        self.collect(BATCH)?;
        let (mut frames, mut next) = (0, 0);
        while let Some(&(at, len)) = self.batch.get(next) {
            if (len as usize) < self.header_len {
                return Err(DeviceError::ShortHeader(len));
            }
            let count = if self.mergeable { self.merged(at, next)? } else { 1 };
            let pieces = self.batch.get(next..next + count).unwrap_or_default();
            let len = pieces.iter().map(|(_, len)| *len as usize).sum::<usize>() - self.header_len;
            with(RxFrame { pool: &self.pool, pieces, header_len: self.header_len, len });
            next += count;
            frames += 1;
        }
        if frames > 0 {
            for chain in &self.chains {
                self.core.push(*chain);
            }
            self.core.publish();
            self.received += frames as u64;
        }
        Ok(frames)
    }

    /// Appends up to `max` used buffers to the batch.
    #[inline]
    fn collect(&mut self, max: usize) -> Result<usize, DeviceError> {
        let (stride, base, buffer, pool) =
            (self.stride, LINE - self.header_len, self.buffer, &self.pool);
        let (batch, chains, mut excess) = (&mut self.batch, &mut self.chains, None);
        let taken = self.core.take(max, |chain, len| {
            let at = usize::from(chain) * stride + base;
            let len = len.unwrap_or(buffer);
            if len > buffer {
                excess = Some(len);
            }
            pool.prefetch(at);
            pool.prefetch(at + LINE);
            batch.push((at, len));
            chains.push(chain);
        })?;
        match excess {
            Some(len) => Err(DeviceError::UsedLen { len, writable: buffer }),
            None => Ok(taken),
        }
    }

    /// Number of buffers of the frame whose first is batch entry `first`; collects those missing.
    #[inline]
    fn merged(&mut self, at: usize, first: usize) -> Result<usize, DeviceError> {
        let claimed = u16::from_le_bytes(self.pool.read_array(at + 10));
        let mut available = self.batch.len() - first;
        if usize::from(claimed) > available {
            available += self.collect(usize::from(claimed) - available)?;
        }
        if claimed == 0 || usize::from(claimed) > available {
            return Err(DeviceError::NumBuffers { claimed, available: available as u16 });
        }
        Ok(claimed.into())
    }
}
