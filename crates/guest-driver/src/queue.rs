//! The driver's half of a virtqueue, split (virtio 1.2, 2.7) or packed (2.8): RING_PACKED decides.
//!
//! It goes by the book. Descriptors are written before the available index, or the first flags of
//! their chain (Release). Used entries are read after the used index, or together with their flags
//! (Acquire). A full fence stands between publishing and looking at
//! the other side's suppression. Everything that the device returns is checked against what it was
//! given; [`DeviceError`] names its mistake.

mod adding;
mod chain;
mod error;
mod interrupts;
mod link;
mod packed;
mod split;
mod taking;

use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc};

use butterfly_vhost::net::Features;

use crate::{
    memory::{Memory, MemoryError},
    queue::{chain::Chain, packed::PackedHalf, split::SplitHalf},
    ring::{AnyRing, PackedRing, Position, Ring, RingAddr},
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

/// The part of a queue that the layout of its ring decides.
#[derive(Debug)]
enum Half {
    Split(SplitHalf),
    Packed(PackedHalf),
}

impl Half {
    /// Begins on a zeroed ring, at a position as SET_VRING_BASE says it.
    fn new(ring: &AnyRing, features: Features, first: u16) -> Half {
        let event_idx = features.has(Features::EVENT_IDX);
        let in_order = features.has(Features::IN_ORDER);
        match ring.clone() {
            AnyRing::Split(ring) => Half::Split(SplitHalf::new(ring, event_idx, in_order, first)),
            AnyRing::Packed(ring) => {
                Half::Packed(PackedHalf::new(ring, event_idx, Position::from_bits(first)))
            }
        }
    }
}

/// The driver's half of one queue.
#[derive(Debug)]
pub struct VirtQueue {
    link: QueueLink,
    half: Half,
    in_order: bool,
    indirect: bool,
    kick_policy: KickPolicy,
    interrupts: bool,
    free_count: u16,
    /// Outstanding chains by head, or by buffer id on a packed ring.
    chains: Vec<Option<Chain>>,
    /// Ids of chains in the order they were made available (with IN_ORDER).
    order: VecDeque<u16>,
    outstanding: u16,
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
    /// A queue on a new ring of `size` entries, up to 32,768; a split ring wants a power of two.
    pub fn new(
        memory: &Arc<Memory>,
        size: u16,
        features: Features,
    ) -> Result<VirtQueue, MemoryError> {
        VirtQueue::on(AnyRing::new(memory, size, features)?, features)
    }

    /// A queue on a ring placed by the caller; clears it. Of `features`, RING_PACKED, EVENT_IDX,
    /// INDIRECT_DESC and IN_ORDER matter.
    pub fn on(ring: impl Into<AnyRing>, features: Features) -> Result<VirtQueue, MemoryError> {
        let link = QueueLink::new(ring.into().laid_out_for(features))?;
        let size = usize::from(link.ring.size());
        let mut queue = VirtQueue {
            half: Half::new(&link.ring, features, link.first),
            link,
            in_order: false,
            indirect: false,
            kick_policy: KickPolicy::Standard,
            interrupts: false,
            free_count: 0,
            chains: vec![None; size],
            order: VecDeque::with_capacity(size),
            outstanding: 0,
            batch: (0, 0),
            stats: QueueStats::default(),
        };
        queue.reset(features);
        Ok(queue)
    }

    /// Starts afresh, as a driver does after a device reset: the ring is zeroed, what was
    /// outstanding is forgotten, `features` are in force. The device must have been stopped.
    ///
    /// # Panics
    /// If the ring cannot have the layout of `features`; see [`AnyRing::laid_out_for`].
    pub fn reset(&mut self, features: Features) {
        self.reset_at(features, None);
    }

    /// Starts afresh at a position as SET_VRING_BASE says it, as if all before it had been used
    /// and forgotten; None: where a fresh ring begins. On a packed ring its 15 bits are taken
    /// modulo the size.
    ///
    /// # Panics
    /// As [`Self::reset`] does.
    pub fn reset_at(&mut self, features: Features, first: Option<u16>) {
        for chain in &mut self.chains {
            if let Some((addr, len)) = chain.take().and_then(|chain| chain.table) {
                self.link.ring.memory().free(addr, len);
            }
        }
        self.in_order = features.has(Features::IN_ORDER);
        self.indirect = features.has(Features::INDIRECT_DESC);
        self.link.ring = self.link.ring.clone().laid_out_for(features);
        self.link.ring.clear();
        self.link.first = match (first, &self.link.ring) {
            (None, ring) => ring.start(),
            (Some(first), AnyRing::Split(_)) => first,
            (Some(first), AnyRing::Packed(ring)) => {
                let Position { index, wrap } = Position::from_bits(first);
                Position { index: index % ring.size(), wrap }.bits()
            }
        };
        self.half = Half::new(&self.link.ring, features, self.link.first);
        self.order.clear();
        self.free_count = self.link.ring.size();
        self.outstanding = 0;
        self.batch = (0, 0);
        self.suppress_interrupts();
    }

    /// The memory of a split ring, for looking at it or spoiling it.
    ///
    /// # Panics
    /// If the ring is packed.
    pub fn ring(&self) -> &Ring {
        self.link.ring.split()
    }

    /// The memory of a packed ring, for looking at it or spoiling it.
    ///
    /// # Panics
    /// If the ring is split.
    pub fn packed_ring(&self) -> &PackedRing {
        self.link.ring.packed()
    }

    /// The ring's memory, in either layout.
    pub fn any_ring(&self) -> &AnyRing {
        &self.link.ring
    }

    /// Guest-physical addresses of the ring's parts.
    pub fn ring_addr(&self) -> RingAddr {
        self.link.ring.addr()
    }

    /// Entries of the ring.
    pub fn size(&self) -> u16 {
        self.link.ring.size()
    }

    /// Position at which a device that knows nothing of the ring begins, as SET_VRING_BASE says it.
    pub fn first(&self) -> u16 {
        self.link.first
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

    /// Free descriptors in the ring.
    pub fn free_descs(&self) -> u16 {
        self.free_count
    }

    /// Chains the device owns, published or not.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Returns the available index as last published, or the position behind what was published on
    /// a packed ring.
    pub fn published(&self) -> u16 {
        match &self.half {
            Half::Split(half) => half.published,
            Half::Packed(half) => half.published.bits(),
        }
    }
}
