//! The guest's driver: virtqueues as a Linux guest has them, with mergeable receive buffers and all
//! offloads.
//!
//! Buffers lie in two stretches of memory, and are read and written where they are.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use butterfly_guest_driver::{
    AddError, Buffer, DeviceError, Memory, MemoryConfig, MemoryError, Placement, QueueLink, RX,
    Span, VirtQueue,
};
use butterfly_vhost::net::{Features, NetHeader};

/// Features that the driver works with, as far as they are offered.
pub const WANTED: Features = Features(
    Features::VERSION_1.0
        | Features::MRG_RXBUF.0
        | Features::EVENT_IDX.0
        | Features::CSUM.0
        | Features::GUEST_CSUM.0
        | Features::GUEST_TSO4.0
        | Features::GUEST_TSO6.0
        | Features::GUEST_ECN.0
        | Features::HOST_TSO4.0
        | Features::HOST_TSO6.0
        | Features::HOST_ECN.0,
);
/// Features without which the driver cannot work: they say how long a header is.
pub const NEEDED: Features = Features(Features::VERSION_1.0 | Features::MRG_RXBUF.0);

/// Receive buffers, and the bytes of each.
///
/// A segment of 64 KiB takes five, so there is room for 200. That is more than a few connections
/// have under way by default (6 MiB each), so that TCP is not slowed by frames that find none.
/// Memory is taken by the page, as frames need it.
const RX_BUFFERS: u16 = 1024;
const RX_BUFFER: usize = 16 << 10;
/// Transmit buffers. The last one used is used first, so that idle vnics cost little memory.
const TX_BUFFERS: u16 = 128;
/// Bytes of a transmit buffer: a header, and the longest IP packet behind an Ethernet header with
/// two tags.
pub const TX_BUFFER: usize = (NetHeader::LEN + 14 + 8 + 65_535 + 64) & !63;

/// The switch did what no device may do, or the driver is wrong: nothing goes on.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Chain(#[from] AddError),
}

/// A driver with one pair of queues.
pub struct Nic {
    memory: Arc<Memory>,
    features: Features,
    rx: VirtQueue,
    tx: VirtQueue,
    rx_pool: Span,
    tx_pool: Span,
    tx_free: Vec<usize>,
    /// The frame in hand: its buffers, and where its bytes are, header first.
    taken: Vec<usize>,
    pieces: Vec<(usize, usize)>,
}

impl Nic {
    /// Makes a driver that was given `features`, with all its receive buffers posted.
    pub fn new(features: Features) -> Result<Nic, MemoryError> {
        let pools = [usize::from(RX_BUFFERS) * RX_BUFFER, usize::from(TX_BUFFERS) * TX_BUFFER];
        // Rings of 1,024 and 128 take less than the rest.
        let memory = Memory::new(&MemoryConfig::new(
            (pools[0] + pools[1] + (256 << 10)).next_multiple_of(4096) as u64,
        ))?;
        let pool = |len| memory.span(memory.alloc(len, 4096)?, len);
        let mut nic = Nic {
            rx: VirtQueue::new(&memory, RX_BUFFERS, features)?,
            tx: VirtQueue::new(&memory, TX_BUFFERS, features)?,
            rx_pool: pool(pools[0])?,
            tx_pool: pool(pools[1])?,
            memory: memory.clone(),
            features,
            tx_free: (0..TX_BUFFERS.into()).rev().collect(),
            taken: Vec::with_capacity(RX_BUFFERS.into()),
            pieces: Vec::with_capacity(RX_BUFFERS.into()),
        };
        // The ring is empty: there is room for all of them.
        nic.taken.extend(0..usize::from(RX_BUFFERS));
        let _ = nic.give_back();
        nic.rx.publish();
        Ok(nic)
    }

    /// Takes up to `max` frames that the switch delivered: `with` gets the memory and the pieces of
    /// each, where they begin and how long they are. The first one begins with the virtio-net
    /// header. Returns how many there were.
    pub fn receive(
        &mut self,
        max: usize,
        mut with: impl FnMut(&Span, &[(usize, usize)]),
    ) -> Result<usize, NicError> {
        let mut frames = 0;
        while frames < max && self.take()? {
            with(&self.rx_pool, &self.pieces);
            self.give_back()?;
            frames += 1;
        }
        if frames > 0 {
            self.rx.publish();
            self.rx.notify();
        }
        Ok(frames)
    }

    fn take(&mut self) -> Result<bool, NicError> {
        self.pieces.clear();
        if !self.take_buffer()? {
            return Ok(false);
        }
        let Some(&(at, len)) = self.pieces.first() else { return Ok(false) };
        if len < NetHeader::LEN {
            return Err(DeviceError::ShortHeader(len as u32).into());
        }
        // The last field of the header is the number of buffers.
        let claimed = u16::from_le_bytes(self.rx_pool.read_array(at + NetHeader::LEN - 2));
        let available = self.rx.used_ready().saturating_add(1);
        if claimed == 0 || claimed > available {
            return Err(DeviceError::NumBuffers { claimed, available }.into());
        }
        for _ in 1..claimed {
            self.take_buffer()?;
        }
        Ok(true)
    }

    fn take_buffer(&mut self) -> Result<bool, NicError> {
        let Some(used) = self.rx.pop()? else { return Ok(false) };
        let buffer = used.token as usize;
        self.taken.push(buffer);
        self.pieces.push((buffer * RX_BUFFER, used.len as usize));
        Ok(true)
    }

    fn give_back(&mut self) -> Result<(), NicError> {
        for buffer in self.taken.drain(..) {
            let addr = self.rx_pool.addr() + (buffer * RX_BUFFER) as u64;
            self.rx.add(
                &[Buffer { addr, len: RX_BUFFER as u32, writable: true }],
                Placement::Direct,
                buffer as u64,
            )?;
        }
        Ok(())
    }

    /// Returns how many frames can be sent now.
    pub fn room(&mut self) -> Result<usize, NicError> {
        while let Some(used) = self.tx.pop()? {
            self.tx_free.push(used.token as usize);
        }
        Ok(self.tx_free.len())
    }

    /// Sends up to `max` frames, as many as there is room for. Returns how many there were.
    ///
    /// `fill` gets the memory, and the offset of the next frame with its header. It returns how
    /// many of the [`TX_BUFFER`] bytes the frame takes; `None` ends the batch.
    pub fn send(
        &mut self,
        max: usize,
        mut fill: impl FnMut(&Span, usize) -> Option<usize>,
    ) -> Result<usize, NicError> {
        if self.tx_free.len() < max {
            self.room()?;
        }
        let mut frames = 0;
        while frames < max
            && let Some(&buffer) = self.tx_free.last()
            && let Some(len) = fill(&self.tx_pool, buffer * TX_BUFFER)
        {
            let addr = self.tx_pool.addr() + (buffer * TX_BUFFER) as u64;
            self.tx.add(
                &[Buffer { addr, len: len.min(TX_BUFFER) as u32, writable: false }],
                Placement::Direct,
                buffer as u64,
            )?;
            self.tx_free.pop();
            frames += 1;
        }
        if frames > 0 {
            self.tx.publish();
            self.tx.notify();
        }
        Ok(frames)
    }

    /// Asks to be interrupted by the next frame, and if there is no `room` when there is some
    /// again. Returns false if that is so already.
    pub fn arm(&mut self, room: bool) -> bool {
        self.rx.arm_interrupt() && (room || self.tx.arm_interrupt())
    }

    /// Takes that back.
    pub fn disarm(&mut self) {
        for queue in [&mut self.rx, &mut self.tx] {
            queue.take_interrupts();
            queue.suppress_interrupts();
        }
    }

    /// Returns the descriptor that interrupts of the receive queue make readable.
    pub fn interrupt(&self) -> &Arc<OwnedFd> {
        self.rx.call_fd()
    }

    /// Returns the descriptors that interrupts make readable.
    pub fn interrupts(&self) -> [BorrowedFd<'_>; 2] {
        [self.rx.call_fd().as_fd(), self.tx.call_fd().as_fd()]
    }
}

impl butterfly_guest_driver::Nic for Nic {
    fn features(&self) -> Features {
        self.features
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn link(&self, index: usize) -> &QueueLink {
        if index == RX { self.rx.as_ref() } else { self.tx.as_ref() }
    }
}
