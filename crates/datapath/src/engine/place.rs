//! Places of vnics, of the uplink and of other hosts in tables.

/// Place of a vnic, with a number that tells successive users of the place apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct PortRef {
    pub slot: u32,
    pub incarnation: u32,
}

/// Most vnics of a switch. File descriptors run out earlier. An FDB entry has room for 24 bits.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;

/// Place of the uplink among the rings that workers poll. No vnic has this slot: a switch takes one
/// vnic fewer than there are slots.
pub(crate) const UPLINK: PortRef = PortRef { slot: MAX_SLOTS - 1, incarnation: 0 };

/// Place of a peer (low half) and the generation of its user (high half). Odd generations are in
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
