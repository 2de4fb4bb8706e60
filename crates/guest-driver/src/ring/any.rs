//! A ring of either layout.

use std::sync::Arc;

use butterfly_vhost::net::Features;

use crate::{
    memory::{Memory, MemoryError},
    ring::{
        packed::{PackedRing, Position},
        parts::RingAddr,
        split::Ring,
    },
};

/// A ring's memory, in the layout that the features in force want.
#[derive(Clone, Debug)]
pub enum AnyRing {
    /// Without RING_PACKED.
    Split(Ring),
    /// With RING_PACKED.
    Packed(PackedRing),
}

impl From<Ring> for AnyRing {
    fn from(ring: Ring) -> AnyRing {
        AnyRing::Split(ring)
    }
}

impl From<PackedRing> for AnyRing {
    fn from(ring: PackedRing) -> AnyRing {
        AnyRing::Packed(ring)
    }
}

impl AnyRing {
    /// Allocates a ring, all zero, with room for either layout.
    ///
    /// # Panics
    /// If the layout cannot have that size ([`Ring::new`], [`PackedRing::new`]).
    pub fn new(
        memory: &Arc<Memory>,
        size: u16,
        features: Features,
    ) -> Result<AnyRing, MemoryError> {
        if features.has(Features::RING_PACKED) {
            PackedRing::new(memory, size).map(AnyRing::Packed)
        } else {
            Ring::new(memory, size).map(AnyRing::Split)
        }
    }

    /// Returns the ring in the layout of `features`, in the same place. The contents stay.
    ///
    /// # Panics
    /// If the layout cannot have that size, or the ring's parts that the caller allocated are too
    /// short for it.
    pub fn laid_out_for(self, features: Features) -> AnyRing {
        let (size, addr, memory) = (self.size(), self.addr(), Arc::clone(self.memory()));
        let other = match (features.has(Features::RING_PACKED), self) {
            (true, AnyRing::Split(_)) => PackedRing::at(&memory, size, addr).map(AnyRing::Packed),
            (false, AnyRing::Packed(_)) => Ring::at(&memory, size, addr).map(AnyRing::Split),
            (_, same) => return same,
        };
        match other {
            Ok(ring) => ring,
            Err(error) => panic!("the ring's parts have no room for the other layout: {error}"),
        }
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        match self {
            AnyRing::Split(ring) => ring.size(),
            AnyRing::Packed(ring) => ring.size(),
        }
    }

    /// The memory it lies in.
    pub fn memory(&self) -> &Arc<Memory> {
        match self {
            AnyRing::Split(ring) => ring.memory(),
            AnyRing::Packed(ring) => ring.memory(),
        }
    }

    /// Guest-physical addresses. Of a packed ring `avail` is the driver's event suppression, `used`
    /// the device's, as in vhost-user.
    pub fn addr(&self) -> RingAddr {
        match self {
            AnyRing::Split(ring) => ring.addr(),
            AnyRing::Packed(ring) => ring.addr(),
        }
    }

    /// Addresses in this process, which vhost-user front ends hand over.
    pub fn user_addr(&self) -> RingAddr {
        match self {
            AnyRing::Split(ring) => ring.user_addr(),
            AnyRing::Packed(ring) => ring.user_addr(),
        }
    }

    /// Zeroes all parts.
    pub fn clear(&self) {
        match self {
            AnyRing::Split(ring) => ring.clear(),
            AnyRing::Packed(ring) => ring.clear(),
        }
    }

    /// Gives the memory of a ring made by [`Self::new`] back. The device must have stopped.
    pub fn free(self) {
        match self {
            AnyRing::Split(ring) => ring.free(),
            AnyRing::Packed(ring) => ring.free(),
        }
    }

    /// Returns the position at which a fresh ring begins, as SET_VRING_BASE says it.
    pub fn start(&self) -> u16 {
        match self {
            AnyRing::Split(_) => 0,
            AnyRing::Packed(_) => Position::START.bits(),
        }
    }

    /// The fields of a split ring.
    ///
    /// # Panics
    /// If it is packed.
    pub fn split(&self) -> &Ring {
        match self {
            AnyRing::Split(ring) => ring,
            AnyRing::Packed(_) => panic!("the ring is packed: it has no available or used ring"),
        }
    }

    /// The fields of a packed ring.
    ///
    /// # Panics
    /// If it is split.
    pub fn packed(&self) -> &PackedRing {
        match self {
            AnyRing::Packed(ring) => ring,
            AnyRing::Split(_) => panic!("the ring is split: RING_PACKED was not negotiated"),
        }
    }
}
