//! Drivers that can be connected, and how their queues are started.

use std::sync::Arc;

use butterfly_vhost::net::Features;

use crate::{guest::Guest, memory::Memory, queue::QueueLink};

/// A driver that a device can be connected to: [`crate::Guest`], and the one for measuring.
pub trait Nic {
    /// Features its driver works with.
    fn features(&self) -> Features;
    /// The guest's memory.
    fn memory(&self) -> &Arc<Memory>;
    /// Queue [`crate::RX`] or [`crate::TX`].
    fn link(&self, index: usize) -> &QueueLink;
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
    /// Positions at which the device goes on in the receive and transmit ring.
    pub base: [u16; 2],
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
            base: [0; 2],
            kick: true,
            call: true,
            enable: true,
            log: false,
        }
    }
}
