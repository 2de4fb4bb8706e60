//! Places of vnics, of the uplink and of other hosts in tables.

/// A vnic's place, with a number that tells successive users of the place apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct PortRef {
    pub slot: u32,
    pub incarnation: u32,
}

/// Most vnics a switch has: more than it can have descriptors. An FDB entry has room for 24 bits.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;

/// Where workers keep the uplink among the rings that they poll. No vnic has this slot: there is
/// one fewer than they could count.
pub(crate) const UPLINK: PortRef = PortRef { slot: MAX_SLOTS - 1, incarnation: 0 };

/// A peer's place (low half) and the generation of its user (high half). Odd generations are in
/// use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) struct PeerRef(pub u32);

impl PeerRef {
    pub fn new(index: usize, generation: u16) -> PeerRef {
        PeerRef(u32::from(generation) << 16 | index as u32)
    }

    pub fn index(self) -> usize {
        self.0 as usize & 0xffff
    }

    pub fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}
