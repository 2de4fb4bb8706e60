//! The driver's half of a split virtqueue (virtio 1.2, 2.7).
//!
//! It goes by the book. Descriptors are written before the available index (Release). Used entries
//! are read after the used index (Acquire). A full fence stands between publishing and looking at
//! the other side's suppression. Everything that the device returns is checked against what it was
//! given; [`DeviceError`] names its mistake.

mod adding;
mod chain;
mod error;
mod interrupts;
mod link;
mod taking;

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering::Acquire},
};

use butterfly_vhost::net::Features;

use crate::{
    memory::{Memory, MemoryError},
    queue::chain::Chain,
    ring::Ring,
};

pub use chain::{Buffer, Placement, Used};
pub use error::{AddError, DeviceError};
pub use link::QueueLink;

/// Time at which the device is notified of new chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KickPolicy {
    /// Unless it suppressed notifications (virtio 1.2, 2.7.7 and 2.7.10).
    #[default]
    Standard,
    /// Always, even if the device asked for less.
    Always,
    /// Not at all.
    Never,
}

/// Counts of a queue since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    /// Chains made available.
    pub added: u64,
    /// Chains used by the device.
    pub used: u64,
    /// Notifications sent.
    pub kicks: u64,
    /// Notifications left out because the device did not want them.
    pub suppressed: u64,
    /// Interrupts taken from the call descriptor.
    pub interrupts: u64,
}

/// The driver's half of one queue.
#[derive(Debug)]
pub struct VirtQueue {
    link: QueueLink,
    event_idx: bool,
    in_order: bool,
    indirect: bool,
    kick_policy: KickPolicy,
    interrupts: bool,
    /// Free descriptors, a stack (without IN_ORDER).
    free: Vec<u16>,
    /// Next descriptor to be used (with IN_ORDER, which takes them in table order).
    next_desc: u16,
    free_count: u16,
    /// Successor of each descriptor of an outstanding chain: our own copy, as the ring's may be
    /// overwritten.
    following: Vec<u16>,
    /// Outstanding chains by head.
    chains: Vec<Option<Chain>>,
    /// Heads in the order they were made available (with IN_ORDER).
    order: VecDeque<u16>,
    outstanding: u16,
    avail_idx: u16,
    published: u16,
    notified: u16,
    last_used: u16,
    /// Chains that the last used entry still covers, and the length of its last one, with IN_ORDER.
    batch: (u16, u32),
    stats: QueueStats,
}

impl AsRef<QueueLink> for VirtQueue {
    fn as_ref(&self) -> &QueueLink {
        &self.link
    }
}

impl VirtQueue {
    /// A queue on a new ring of `size` entries (a power of two up to 32,768).
    pub fn new(
        memory: &Arc<Memory>,
        size: u16,
        features: Features,
    ) -> Result<VirtQueue, MemoryError> {
        VirtQueue::on(Ring::new(memory, size)?, features)
    }

    /// A queue on a ring placed by the caller; clears it. Of `features`, EVENT_IDX, INDIRECT_DESC
    /// and IN_ORDER matter.
    pub fn on(ring: Ring, features: Features) -> Result<VirtQueue, MemoryError> {
        let size = usize::from(ring.size());
        let mut queue = VirtQueue {
            link: QueueLink::new(ring)?,
            event_idx: false,
            in_order: false,
            indirect: false,
            kick_policy: KickPolicy::Standard,
            interrupts: false,
            free: Vec::with_capacity(size),
            next_desc: 0,
            free_count: 0,
            following: vec![0; size],
            chains: vec![None; size],
            order: VecDeque::with_capacity(size),
            outstanding: 0,
            avail_idx: 0,
            published: 0,
            notified: 0,
            last_used: 0,
            batch: (0, 0),
            stats: QueueStats::default(),
        };
        queue.reset(features);
        Ok(queue)
    }

    /// Starts afresh, as a driver does after a device reset: the ring is zeroed, what was
    /// outstanding is forgotten, `features` are in force. The device must have been stopped.
    pub fn reset(&mut self, features: Features) {
        for chain in &mut self.chains {
            if let Some((addr, len)) = chain.take().and_then(|chain| chain.table) {
                self.link.ring.memory().free(addr, len);
            }
        }
        self.event_idx = features.has(Features::EVENT_IDX);
        self.in_order = features.has(Features::IN_ORDER);
        self.indirect = features.has(Features::INDIRECT_DESC);
        self.link.ring.clear();
        self.free.clear();
        self.free.extend((0..self.link.ring.size()).rev());
        self.order.clear();
        self.free_count = self.link.ring.size();
        (self.next_desc, self.outstanding) = (0, 0);
        (self.avail_idx, self.published, self.notified, self.last_used) = (0, 0, 0, 0);
        self.batch = (0, 0);
        self.suppress_interrupts();
    }

    /// The ring's memory, for looking at it or spoiling it.
    pub fn ring(&self) -> &Ring {
        &self.link.ring
    }

    /// Written to notify the device.
    pub fn kick_fd(&self) -> &Arc<OwnedFd> {
        &self.link.kick
    }

    /// Written by the device to interrupt.
    pub fn call_fd(&self) -> &Arc<OwnedFd> {
        &self.link.call
    }

    /// Replaces the notification policy.
    pub fn set_kick_policy(&mut self, policy: KickPolicy) {
        self.kick_policy = policy;
    }

    /// Chooses whether [`Self::wait`] sleeps until the device interrupts (true) or polls (false,
    /// the default).
    pub fn set_interrupts(&mut self, interrupts: bool) {
        self.interrupts = interrupts;
    }

    /// Counters.
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// Free descriptors in the ring's table.
    pub fn free_descs(&self) -> u16 {
        self.free_count
    }

    /// Chains the device owns, published or not.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// The available index as last published.
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Returns the position at which a device that lost its state goes on: the used index, since
    /// every chain before it was used in order.
    pub fn restart_position(&self) -> u16 {
        self.link.ring.used_idx().load(Acquire)
    }
}
