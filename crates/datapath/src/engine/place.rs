//! Places of vnics, of the uplink and of other hosts in tables.

/// Place of a vnic, with a number that tells successive users of the place apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct PortRef {
    pub slot: u32,
    pub incarnation: u32,
}

/// Most vnics of a switch. File descriptors run out earlier. An FDB entry has room for 24 bits.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;

/// Returns a vnic's slot and one of its pairs of queues as one number: the slot alone for the first
/// pair.
pub(crate) const fn likely_of(slot: u32, pair: u8) -> u32 {
    (slot % MAX_SLOTS) | ((pair as u32) << MAX_SLOTS.trailing_zeros())
}

/// Returns what [`likely_of`] was made of.
pub(crate) const fn of_likely(likely: u32) -> (u32, u8) {
    (likely % MAX_SLOTS, (likely >> MAX_SLOTS.trailing_zeros()) as u8)
}

/// Place of a network in the snapshot that a batch is judged by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NetworkRef(pub u32);

/// Most pairs of queues of a vnic.
pub(crate) const MAX_PAIRS: usize = butterfly_vhost::port::MAX_PAIRS;

/// Most receive queues of an uplink.
pub(crate) const MAX_UPLINK_QUEUES: usize = 4096;
/// Most halves by which an uplink sends: as many as a word has bits.
pub(crate) const MAX_HALVES: usize = 32;

/// A ring that has one worker at a time: the transmit ring of a pair of a vnic's queues, or a
/// receive queue of the uplink ([`uplink_ring`]).
pub(crate) type RingPlace = (PortRef, u8);

/// Returns the place of a receive queue of the uplink. No vnic has such a slot.
pub(crate) const fn uplink_ring(queue: u16) -> RingPlace {
    (PortRef { slot: MAX_SLOTS + queue as u32, incarnation: 0 }, 0)
}

/// Returns the queue of the uplink that a place is of; `None` for a vnic's.
pub(crate) const fn uplink_queue(place: PortRef) -> Option<u16> {
    match place.slot.checked_sub(MAX_SLOTS) {
        Some(queue) => Some(queue as u16),
        None => None,
    }
}

/// Origin of frames that a worker polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PollSource {
    /// The transmit ring of a pair of a vnic's queues, the first of which is 0.
    Queue { place: PortRef, pair: u8 },
    /// Frames that arrive from other hosts, by a receive queue of the uplink.
    Uplink(u16),
    /// Frames that a half of the uplink has queued and that the kernel does not take by itself.
    Outward(u8),
    /// Frames that have no ring to wait in, and wait in the worker's memory.
    Waiting,
}

impl PollSource {
    /// Returns the transmit ring of a vnic's first pair.
    #[cfg(test)]
    pub const fn first(place: PortRef) -> PollSource {
        PollSource::Queue { place, pair: 0 }
    }

    /// Returns the source of a ring.
    pub const fn of((place, pair): RingPlace) -> PollSource {
        match uplink_queue(place) {
            Some(queue) => PollSource::Uplink(queue),
            None => PollSource::Queue { place, pair },
        }
    }

    /// Returns the slot of the vnic, if it is one's.
    pub const fn slot(self) -> Option<u32> {
        match self {
            PollSource::Queue { place, .. } => Some(place.slot),
            PollSource::Uplink(_) | PollSource::Outward(_) | PollSource::Waiting => None,
        }
    }
}

/// Port that a report is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Place {
    /// A vnic, or the trunk of a network.
    Port(PortRef),
    /// The uplink, for frames of no network.
    Uplink,
}

/// Place of a peer (low half) and the generation of its user (high half). Odd generations are in
/// use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) struct PeerRef(pub u32);

impl PeerRef {
    /// Stands for the host behind which the sender of a frame is that another host passed on: it is
    /// not known, and no peer has this place.
    pub const PASSED_ON: PeerRef = PeerRef(u32::MAX);

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
