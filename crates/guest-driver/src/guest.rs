//! Driver of a VM's network interface: frames in and out of a pair of virtqueues (virtio 1.2, 5.1).

use std::{sync::Arc, time::Duration};

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    memory::{Memory, MemoryError},
    queue::{AddError, Buffer, DeviceError, KickPolicy, Placement, VirtQueue},
};

/// Index of the receive queue in vhost-user messages.
pub const RX: usize = 0;
/// Index of the transmit queue in vhost-user messages.
pub const TX: usize = 1;

/// Layout of header and frame in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The virtio-net header has a descriptor of its own.
    pub header_apart: bool,
    /// Into how many descriptors the rest is cut, about evenly; at least 1.
    pub pieces: usize,
    /// Place of the descriptors.
    pub placement: Placement,
}

impl Default for Shape {
    /// Header and frame in one descriptor.
    fn default() -> Shape {
        Shape { header_apart: false, pieces: 1, placement: Placement::Direct }
    }
}

impl Shape {
    /// Header alone, frame behind it.
    pub const HEADER_APART: Shape =
        Shape { header_apart: true, pieces: 1, placement: Placement::Direct };

    /// Returns the shape with its descriptors in an indirect table.
    pub const fn indirect(self) -> Shape {
        Shape { placement: Placement::Indirect, ..self }
    }

    /// Cut into `pieces` descriptors.
    pub const fn pieces(self, pieces: usize) -> Shape {
        Shape { pieces, ..self }
    }

    /// Descriptors of the ring's table that one chain takes.
    fn ring_descs(&self) -> usize {
        let all = self.pieces.max(1) + usize::from(self.header_apart);
        match self.placement {
            Placement::Direct => all,
            Placement::Indirect => 1,
            Placement::IndirectAfter(direct) => (usize::from(direct) + 1).min(all),
        }
    }

    /// Writes the chain's buffers for `len` bytes at `addr`, of which the first `header` are the
    /// header.
    fn cut(&self, addr: u64, header: usize, len: usize, writable: bool, out: &mut Vec<Buffer>) {
        out.clear();
        let mut push = |from: usize, to: usize| {
            out.push(Buffer { addr: addr + from as u64, len: (to - from) as u32, writable });
        };
        let start = if self.header_apart { header.min(len) } else { 0 };
        if self.header_apart {
            push(0, start);
        }
        let pieces = self.pieces.max(1);
        for i in 0..pieces {
            push(start + (len - start) * i / pieces, start + (len - start) * (i + 1) / pieces);
        }
    }
}

/// Time at which used receive buffers are given back to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Refill {
    /// Each as soon as its frame was taken.
    #[default]
    Immediately,
    /// Only by [`Guest::refill`].
    Manually,
}

/// Parameters of a [`Guest`].
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Entries of the receive ring.
    pub rx_size: u16,
    /// Entries of the transmit ring.
    pub tx_size: u16,
    /// Bytes of a receive chain, header included. Without MRG_RXBUF it must hold the largest
    /// frame.
    pub rx_buffer: usize,
    /// Largest frame that can be sent, without header.
    pub max_frame: usize,
    /// Layout of receive chains, as far as the features in force allow it.
    ///
    /// Without INDIRECT_DESC there are no indirect tables. A legacy guest without ANY_LAYOUT has
    /// the header apart unless buffers are merged (virtio 1.2, 5.1.6.6 and 2.7.4.1).
    pub rx_shape: Shape,
    /// Layout of transmit chains, as far as the features in force allow it.
    pub tx_shape: Shape,
    /// Receive buffers given to the device at the start; None: as many as fit.
    pub rx_fill: Option<usize>,
    /// Time at which receive buffers are given back.
    pub refill: Refill,
    /// Place a buffer across every boundary of regions, half of them for receiving.
    pub cross_regions: bool,
    /// Policy of notifying the device.
    pub kicks: KickPolicy,
    /// True if waiting sleeps until the device interrupts; else it polls.
    pub interrupts: bool,
    /// True if `num_buffers` must be 1 without MRG_RXBUF, as virtio 1.2, 5.1.6.4.1 wants it. DPDK
    /// leaves it as it was.
    pub strict: bool,
}

impl Default for GuestConfig {
    /// Rings of 256, 2 KiB receive buffers, frames up to 9,216 bytes, everything else as simple as
    /// possible.
    fn default() -> GuestConfig {
        GuestConfig {
            rx_size: 256,
            tx_size: 256,
            rx_buffer: 2048,
            max_frame: 9216,
            rx_shape: Shape::default(),
            tx_shape: Shape::default(),
            rx_fill: None,
            refill: Refill::Immediately,
            cross_regions: false,
            kicks: KickPolicy::Standard,
            interrupts: false,
            strict: true,
        }
    }
}

impl GuestConfig {
    /// Rings of `size` entries both ways.
    pub fn rings(mut self, size: u16) -> GuestConfig {
        (self.rx_size, self.tx_size) = (size, size);
        self
    }

    /// Bytes of guest memory that rings and buffers need, with room for indirect tables and
    /// alignment.
    pub fn memory_needed(&self) -> u64 {
        let rings = [self.rx_size, self.tx_size].map(|size| 26 * u64::from(size) + 3 * 4096);
        let rx = u64::from(self.rx_size) * self.rx_buffer.next_multiple_of(64) as u64;
        let tx =
            u64::from(self.tx_size) * (self.max_frame + NetHeader::LEN).next_multiple_of(64) as u64;
        let chain = |shape: &Shape| (shape.pieces as u64 + 2) * 16;
        let tables = u64::from(self.rx_size) * chain(&self.rx_shape)
            + u64::from(self.tx_size) * chain(&self.tx_shape);
        (rings[0] + rings[1] + rx + tx + 2 * tables + (1 << 20)).next_multiple_of(2 << 20)
    }
}

/// A frame could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The transmit ring has no room now.
    #[error("the transmit ring is full")]
    Full,
    /// Longer than [`GuestConfig::max_frame`].
    #[error("a frame of {0} bytes is longer than the guest's buffers")]
    TooLong(usize),
    /// The device broke the rules when it returned sent buffers.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The chain could not be built.
    #[error(transparent)]
    Chain(AddError),
}

impl From<AddError> for SendError {
    fn from(error: AddError) -> SendError {
        match error {
            AddError::Full => SendError::Full,
            other => SendError::Chain(other),
        }
    }
}

/// Frames and bytes of a guest, without headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GuestStats {
    /// Frames made available to the device.
    pub sent: u64,
    /// Frames taken.
    pub received: u64,
    /// Receive buffers those took.
    pub rx_buffers: u64,
}

/// A guest's driver with one pair of queues.
#[derive(Debug)]
pub struct Guest {
    memory: Arc<Memory>,
    config: GuestConfig,
    features: Features,
    rx: VirtQueue,
    tx: VirtQueue,
    /// Guest address of each receive buffer; a chain's token is the index.
    rx_slots: Vec<u64>,
    /// Receive buffers the device does not have.
    rx_free: Vec<usize>,
    tx_slots: Vec<u64>,
    tx_free: Vec<usize>,
    chain: Vec<Buffer>,
    stats: GuestStats,
}

/// Buffers of `len` bytes, at most `crossing` of them across region boundaries.
fn buffers(
    memory: &Memory,
    count: usize,
    len: usize,
    crossing: usize,
) -> Result<Vec<u64>, MemoryError> {
    let mut all: Vec<u64> =
        (0..count.min(crossing)).map_while(|_| memory.alloc_across(len).ok()).collect();
    while all.len() < count {
        all.push(memory.alloc(len, 64)?);
    }
    Ok(all)
}

impl Guest {
    /// Builds a driver in `memory` as if `features` had been negotiated, with receive buffers
    /// posted. Notifies no device: hand it [`Memory::regions`] and the queues, or use
    /// [`crate::Connection`].
    pub fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &GuestConfig,
    ) -> Result<Guest, MemoryError> {
        let rx_chains = (usize::from(config.rx_size) / config.rx_shape.ring_descs()).max(1);
        let tx_len = config.max_frame + NetHeader::LEN;
        let rx = VirtQueue::new(memory, config.rx_size, features)?;
        let tx = VirtQueue::new(memory, config.tx_size, features)?;
        let boundaries =
            if config.cross_regions { memory.regions().len().saturating_sub(1) } else { 0 };
        let rx_slots = buffers(memory, rx_chains, config.rx_buffer, boundaries.div_ceil(2))?;
        let tx_slots = buffers(memory, config.tx_size.into(), tx_len, boundaries)?;
        let mut guest = Guest {
            memory: Arc::clone(memory),
            config: config.clone(),
            features,
            rx,
            tx,
            rx_slots,
            rx_free: Vec::new(),
            tx_slots,
            tx_free: Vec::new(),
            chain: Vec::new(),
            stats: GuestStats::default(),
        };
        for queue in [&mut guest.rx, &mut guest.tx] {
            queue.set_kick_policy(config.kicks);
            queue.set_interrupts(config.interrupts);
        }
        guest.reset(features);
        Ok(guest)
    }

    /// Gives all its guest memory back. The device must have stopped.
    pub fn free(mut self) {
        self.rx.reset(self.features);
        self.tx.reset(self.features);
        for addr in &self.rx_slots {
            self.memory.free(*addr, self.config.rx_buffer);
        }
        for addr in &self.tx_slots {
            self.memory.free(*addr, self.config.max_frame + NetHeader::LEN);
        }
        self.rx.ring().clone().free();
        self.tx.ring().clone().free();
    }

    /// Resets the driver, as one that is loaded again does: rings zeroed, `features` in force,
    /// receive buffers posted. The device must have been stopped.
    pub fn reset(&mut self, features: Features) {
        self.features = features;
        self.rx.reset(features);
        self.tx.reset(features);
        self.rx_free = (0..self.rx_slots.len()).rev().collect();
        self.tx_free = (0..self.tx_slots.len()).rev().collect();
        self.refill(self.config.rx_fill.unwrap_or(usize::MAX));
    }

    /// Features in force.
    pub fn features(&self) -> Features {
        self.features
    }

    /// The guest's memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The configuration it was built with.
    pub fn config(&self) -> &GuestConfig {
        &self.config
    }

    /// Changes when receive buffers are given back.
    pub fn set_refill(&mut self, refill: Refill) {
        self.config.refill = refill;
    }

    /// Changes the layout of chains sent from now on.
    pub fn set_tx_shape(&mut self, shape: Shape) {
        self.config.tx_shape = shape;
    }

    /// The receive queue.
    pub fn rx(&self) -> &VirtQueue {
        &self.rx
    }

    /// The transmit queue.
    pub fn tx(&self) -> &VirtQueue {
        &self.tx
    }

    /// The receive queue, for spoiling it.
    pub fn rx_mut(&mut self) -> &mut VirtQueue {
        &mut self.rx
    }

    /// The transmit queue, for spoiling it.
    pub fn tx_mut(&mut self) -> &mut VirtQueue {
        &mut self.tx
    }

    /// Queue [`RX`] or [`TX`].
    pub fn queue(&self, index: usize) -> &VirtQueue {
        if index == RX { &self.rx } else { &self.tx }
    }

    /// Counters.
    pub fn stats(&self) -> GuestStats {
        self.stats
    }

    /// Receive buffers the device has, used ones included.
    pub fn rx_posted(&self) -> usize {
        self.rx_slots.len() - self.rx_free.len()
    }

    /// Gives up to `max` receive buffers to the device, and notifies it. Returns how many.
    pub fn refill(&mut self, max: usize) -> usize {
        let mut count = 0;
        while count < max {
            let Some(slot) = self.rx_free.pop() else { break };
            let shape = self.allowed(self.config.rx_shape, self.features.has(Features::MRG_RXBUF));
            let header = self.features.header_len();
            shape.cut(self.rx_slots[slot], header, self.config.rx_buffer, true, &mut self.chain);
            if self.rx.add(&self.chain, shape.placement, slot as u64).is_err() {
                self.rx_free.push(slot); // no descriptor, or no memory for its table: later
                break;
            }
            count += 1;
        }
        if count > 0 {
            self.rx.publish();
            self.rx.notify();
        }
        count
    }

    /// Takes back the buffers of frames the device has sent. Returns how many.
    pub fn reclaim(&mut self) -> Result<usize, DeviceError> {
        let mut count = 0;
        while let Some(used) = self.tx.pop()? {
            self.tx_free.push(used.token as usize);
            count += 1;
        }
        Ok(count)
    }

    /// Returns the layout that the features in force allow. `any`: the device must accept any
    /// layout all the same.
    fn allowed(&self, shape: Shape, any: bool) -> Shape {
        let any = any || self.features.0 & (Features::VERSION_1.0 | Features::ANY_LAYOUT.0) != 0;
        let indirect = self.features.has(Features::INDIRECT_DESC);
        let placement = if indirect { shape.placement } else { Placement::Direct };
        Shape { header_apart: shape.header_apart || !any, placement, ..shape }
    }

    /// Adds a frame to the transmit ring; the device sees it after [`Self::flush`].
    pub fn enqueue(&mut self, frame: &[u8], header: NetHeader) -> Result<(), SendError> {
        let shape = self.allowed(self.config.tx_shape, false);
        self.enqueue_with(frame, header, shape.placement, |addr, header_len, len, chain| {
            shape.cut(addr, header_len, len, false, chain);
        })
    }

    /// Like [`Self::enqueue`], cut into descriptors at `cuts`: ascending positions counted from the
    /// header's first byte. Equal ones make empty descriptors.
    pub fn enqueue_cut(
        &mut self,
        frame: &[u8],
        header: NetHeader,
        cuts: &[usize],
        placement: Placement,
    ) -> Result<(), SendError> {
        self.enqueue_with(frame, header, placement, |addr, _, len, chain| {
            chain.clear();
            let mut from = 0;
            for cut in cuts.iter().copied().chain([len]) {
                let to = cut.clamp(from, len);
                chain.push(Buffer {
                    addr: addr + from as u64,
                    len: (to - from) as u32,
                    writable: false,
                });
                from = to;
            }
        })
    }

    fn enqueue_with(
        &mut self,
        frame: &[u8],
        header: NetHeader,
        placement: Placement,
        cut: impl FnOnce(u64, usize, usize, &mut Vec<Buffer>),
    ) -> Result<(), SendError> {
        if frame.len() > self.config.max_frame {
            return Err(SendError::TooLong(frame.len()));
        }
        self.reclaim()?;
        let Some(slot) = self.tx_free.pop() else { return Err(SendError::Full) };
        let addr = self.tx_slots[slot];
        let header_len = self.features.header_len();
        let result = self.fill(addr, &header.to_bytes()[..header_len], frame).and_then(|()| {
            cut(addr, header_len, header_len + frame.len(), &mut self.chain);
            self.tx.add(&self.chain, placement, slot as u64)
        });
        match result {
            Ok(_) => {
                self.stats.sent += 1;
                Ok(())
            }
            Err(error) => {
                self.tx_free.push(slot);
                Err(error.into())
            }
        }
    }

    fn fill(&self, addr: u64, header: &[u8], frame: &[u8]) -> Result<(), AddError> {
        self.memory.write(addr, header)?;
        self.memory.write(addr + header.len() as u64, frame)?;
        Ok(())
    }

    /// Publishes what was enqueued, and notifies the device if it wants to know.
    pub fn flush(&mut self) {
        self.tx.publish();
        self.tx.notify();
    }

    /// Sends one frame.
    pub fn send(&mut self, frame: &[u8], header: NetHeader) -> Result<(), SendError> {
        self.enqueue(frame, header)?;
        self.flush();
        Ok(())
    }

    /// Sends frames with empty headers, as many as there is room for, published at once. Returns
    /// how many.
    pub fn send_batch<F: AsRef<[u8]>>(
        &mut self,
        frames: impl IntoIterator<Item = F>,
    ) -> Result<usize, SendError> {
        let mut count = 0;
        for frame in frames {
            match self.enqueue(frame.as_ref(), NetHeader::default()) {
                Ok(()) => count += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(error),
            }
        }
        self.flush();
        Ok(count)
    }

    /// Sends one frame, waiting up to `timeout` for room.
    pub fn send_wait(
        &mut self,
        frame: &[u8],
        header: NetHeader,
        timeout: Duration,
    ) -> Result<(), SendError> {
        loop {
            match self.send(frame, header) {
                Err(SendError::Full) => {
                    if !self.tx.wait(timeout)? {
                        return Err(SendError::Full);
                    }
                }
                result => return result,
            }
        }
    }

    /// Waits until the device has used every frame sent. False after `timeout`.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        loop {
            self.reclaim()?;
            if self.tx.outstanding() == 0 {
                return Ok(true);
            }
            if !self.tx.wait(timeout)? {
                return Ok(false);
            }
        }
    }

    /// Takes the next received frame, merged from its buffers.
    pub fn recv(&mut self) -> Result<Option<(NetHeader, Vec<u8>)>, DeviceError> {
        let Some(first) = self.rx.pop()? else { return Ok(None) };
        let header_len = self.features.header_len();
        if (first.len as usize) < header_len {
            return Err(DeviceError::ShortHeader(first.len));
        }
        let mut bytes = self.take_buffer(first.token, first.len);
        let mut header = [0; NetHeader::LEN];
        header[..header_len].copy_from_slice(&bytes[..header_len]);
        let header = NetHeader::from_bytes(header);
        bytes.drain(..header_len);
        let buffers = self.merged(header)?;
        for taken in 1..buffers {
            let missing = DeviceError::NumBuffers { claimed: buffers, available: taken };
            let next = self.rx.pop()?.ok_or(missing)?;
            bytes.append(&mut self.take_buffer(next.token, next.len));
        }
        self.stats.received += 1;
        self.stats.rx_buffers += u64::from(buffers);
        if self.config.refill == Refill::Immediately {
            self.refill(usize::MAX);
        }
        Ok(Some((header, bytes)))
    }

    /// Number of buffers the frame with this header is in.
    fn merged(&self, header: NetHeader) -> Result<u16, DeviceError> {
        let claimed = header.num_buffers;
        if self.features.has(Features::MRG_RXBUF) {
            let available = self.rx.used_ready().saturating_add(1);
            return if claimed == 0 || claimed > available {
                Err(DeviceError::NumBuffers { claimed, available })
            } else {
                Ok(claimed)
            };
        }
        if self.config.strict && self.features.has(Features::VERSION_1) && claimed != 1 {
            return Err(DeviceError::NumBuffers { claimed, available: 1 });
        }
        Ok(1)
    }

    fn take_buffer(&mut self, token: u64, len: u32) -> Vec<u8> {
        let slot = token as usize;
        self.rx_free.push(slot);
        // Cannot fail: the length was checked against the chain, and the chain is inside the
        // guest's memory.
        self.memory.read_vec(self.rx_slots[slot], len as usize).unwrap_or_default()
    }

    /// Takes the next received frame, waiting up to `timeout` for it.
    pub fn recv_wait(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<(NetHeader, Vec<u8>)>, DeviceError> {
        if self.rx.wait(timeout)? { self.recv() } else { Ok(None) }
    }
}
