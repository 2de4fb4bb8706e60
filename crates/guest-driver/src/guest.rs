//! Driver of a VM's network interface: frames in and out of a pair of virtqueues (virtio 1.2, 5.1).

mod config;
mod receiving;
mod sending;
mod shape;

use std::sync::Arc;

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    memory::{Memory, MemoryError},
    queue::{Buffer, Placement, VirtQueue},
};

pub use config::{GuestConfig, Refill};
pub use sending::SendError;
pub use shape::Shape;

/// Index of the receive queue in vhost-user messages.
pub const RX: usize = 0;
/// Index of the transmit queue in vhost-user messages.
pub const TX: usize = 1;

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
        self.rx.any_ring().clone().free();
        self.tx.any_ring().clone().free();
    }

    /// Resets the driver, as one that is loaded again does: rings zeroed, `features` in force,
    /// receive buffers posted. The device must have been stopped.
    pub fn reset(&mut self, features: Features) {
        self.features = features;
        self.rx.reset_at(features, self.config.first);
        self.tx.reset_at(features, self.config.first);
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

    /// Returns the layout that the features in force allow. `any`: the device must accept any
    /// layout all the same.
    fn allowed(&self, shape: Shape, any: bool) -> Shape {
        let any = any || self.features.0 & (Features::VERSION_1.0 | Features::ANY_LAYOUT.0) != 0;
        let indirect = self.features.has(Features::INDIRECT_DESC);
        let placement = match shape.placement {
            _ if !indirect => Placement::Direct,
            // No chain of a packed ring goes on in a table (virtio 1.2, 2.8.19).
            Placement::IndirectAfter(_) if self.features.has(Features::RING_PACKED) => {
                Placement::Indirect
            }
            placement => placement,
        };
        Shape { header_apart: shape.header_apart || !any, placement, ..shape }
    }
}
