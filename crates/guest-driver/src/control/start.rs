//! Drivers that can be connected, and how their queues are started.

use std::sync::Arc;

use butterfly_vhost::{net::Features, port::Queue};

use crate::{guest::Guest, memory::Memory, queue::QueueLink};

/// A driver that a device can be connected to: [`crate::Guest`], and the one for measuring.
pub trait Nic {
    /// Features its driver works with.
    fn features(&self) -> Features;
    /// The guest's memory.
    fn memory(&self) -> &Arc<Memory>;
    /// Pairs of queues.
    fn pairs(&self) -> usize {
        1
    }
    /// A queue by its index: [`crate::RX`] or [`crate::TX`] of the first pair, and so on; below
    /// twice [`Self::pairs`].
    fn link(&self, index: usize) -> &QueueLink;
}

/// A driver of several pairs of queues in one memory.
pub struct Pairs<'a> {
    /// The first pair.
    pub first: &'a Guest,
    /// The others.
    pub further: &'a [Guest],
}

impl Nic for Pairs<'_> {
    fn features(&self) -> Features {
        self.first.features()
    }

    fn memory(&self) -> &Arc<Memory> {
        self.first.memory()
    }

    fn pairs(&self) -> usize {
        1 + self.further.len()
    }

    fn link(&self, index: usize) -> &QueueLink {
        let pair = (index / 2).checked_sub(1).map_or(self.first, |further| &self.further[further]);
        pair.link(index % 2)
    }
}

/// A position for each queue that there may be, as SET_VRING_BASE says it: an index, or 15 bits and
/// the wrap counter of a packed ring. A queue without one begins where its driver did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Positions([Option<u16>; Queue::COUNT]);

impl Positions {
    /// Position of a queue.
    pub fn get(&self, index: usize) -> Option<u16> {
        self.0.get(index).copied().flatten()
    }

    /// Gives a queue a position.
    ///
    /// # Panics
    /// If there may be no such queue.
    pub fn set(&mut self, index: usize, position: u16) {
        self.0[index] = Some(position);
    }
}

/// Equal if each queue has that position.
impl PartialEq<[u16; Queue::COUNT]> for Positions {
    fn eq(&self, other: &[u16; Queue::COUNT]) -> bool {
        self.0 == other.map(Some)
    }
}

impl Nic for Guest {
    fn features(&self) -> Features {
        Guest::features(self)
    }

    fn memory(&self) -> &Arc<Memory> {
        Guest::memory(self)
    }

    fn link(&self, index: usize) -> &QueueLink {
        self.queue(index).as_ref()
    }
}

/// Positions of the first pair's queues, receive first, and none for others.
pub fn positions([rx, tx]: [u16; 2]) -> Positions {
    let mut all = Positions::default();
    all.set(0, rx);
    all.set(1, tx);
    all
}

/// Way of announcing guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryMessages {
    /// One SET_MEM_TABLE.
    #[default]
    Table,
    /// One ADD_MEM_REG per region (needs CONFIGURE_MEM_SLOTS).
    Slots,
}

/// Parameters of starting a guest's queues.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Announce memory so; None: it is known already.
    pub memory: Option<MemoryMessages>,
    /// Positions at which the device goes on in the rings.
    pub base: Positions,
    /// Hand over kick descriptors; without, the device must poll.
    pub kick: bool,
    /// Hand over call descriptors; without, the device cannot interrupt.
    pub call: bool,
    /// Enable the rings at the end.
    pub enable: bool,
    /// Log stores into the used rings (VHOST_VRING_F_LOG).
    pub log: bool,
}

impl Default for Start {
    fn default() -> Start {
        Start {
            memory: Some(MemoryMessages::Table),
            base: Positions::default(),
            kick: true,
            call: true,
            enable: true,
            log: false,
        }
    }
}
