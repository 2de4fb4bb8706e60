//! A ring whose chains are bound to their buffers: the part shared by both directions.

use std::sync::atomic::{Ordering::SeqCst, fence};

use butterfly_vhost::net::Features;

use crate::{
    fast::{
        owned::{Owned, Pieces},
        packed::PackedChains,
        split::SplitChains,
    },
    memory::MemoryError,
    queue::{DeviceError, QueueLink},
    ring::AnyRing,
};

/// The part of a ring that its layout decides.
#[derive(Debug)]
enum Layout {
    Split(SplitChains),
    Packed(PackedChains),
}

/// The part shared by both directions: a ring, and the chains that go through it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) link: QueueLink,
    layout: Layout,
    pub(super) owned: Owned,
    pub(super) kicks: u64,
}

impl Core {
    /// Chains have up to `1 << shift` descriptors.
    pub(super) fn new(ring: AnyRing, features: Features, shift: u32) -> Result<Core, MemoryError> {
        let chains = ring.size() >> shift;
        let event_idx = features.has(Features::EVENT_IDX);
        let layout = match &ring {
            AnyRing::Split(ring) => Layout::Split(SplitChains::new(ring.clone(), event_idx, shift)),
            AnyRing::Packed(ring) => Layout::Packed(PackedChains::new(ring.clone(), chains)),
        };
        let owned = Owned::new(chains, features.has(Features::IN_ORDER));
        Ok(Core { link: QueueLink::new(ring)?, layout, owned, kicks: 0 })
    }

    /// Writes a chain's descriptors, which stay.
    #[inline]
    pub(super) fn describe(&mut self, chain: u16, pieces: Pieces) {
        match &mut self.layout {
            Layout::Split(layout) => layout.describe(chain, pieces),
            Layout::Packed(layout) => layout.describe(chain, pieces),
        }
    }

    /// Makes a chain available with the next [`Self::publish`].
    #[inline]
    pub(super) fn push(&mut self, chain: u16) {
        match &mut self.layout {
            Layout::Split(layout) => layout.push(chain),
            Layout::Packed(layout) => layout.push(chain),
        }
        self.owned.give(chain);
    }

    /// Lets the device see the chains that were pushed, without telling it.
    #[inline]
    pub(super) fn show(&mut self) {
        match &mut self.layout {
            Layout::Split(layout) => layout.show(),
            Layout::Packed(layout) => layout.show(),
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.show();
        fence(SeqCst); // see VirtQueue::notify
        let wanted = match &mut self.layout {
            Layout::Split(layout) => layout.wanted(),
            Layout::Packed(layout) => layout.wanted(),
        };
        if wanted {
            self.kicks += 1;
            self.link.kick();
        }
    }

    /// True if used chains wait.
    #[inline]
    pub(super) fn has_used(&self) -> bool {
        match &self.layout {
            Layout::Split(layout) => layout.has_used(),
            Layout::Packed(layout) => layout.has_used(),
        }
    }

    /// Takes up to `max` used chains, or some more if the last entry stands for several: chain and
    /// length, None for one that IN_ORDER left out.
    #[inline]
    pub(super) fn take(
        &mut self,
        max: usize,
        mut with: impl FnMut(u16, Option<u32>),
    ) -> Result<usize, DeviceError> {
        match &mut self.layout {
            Layout::Split(layout) => layout.take(&mut self.owned, max, &mut with),
            Layout::Packed(layout) => layout.take(&mut self.owned, max, &mut with),
        }
    }
}
