//! The receive ring: frames on their way out of the switch, into a guest's buffers.

mod behind;
mod joined;
mod prepare;
mod room;
mod run;
mod spread;

use std::sync::Arc;

use butterfly_point::Point;

use crate::{
    net::Features,
    ring::{
        call::CallFd,
        door::Room,
        frames::BATCH,
        space::CHAIN_BUDGET,
        vring::{RingStatus, Vring},
        walks::Walks,
    },
};

/// Most pieces that one frame is spread over.
const MAX_PIECES: usize = 2048;

/// Reason why a frame did not get into a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDelivered {
    /// The guest has not enough buffers available now.
    Full,
    /// The guest disabled the ring, or broke it.
    NotReady,
    /// The vnic is held.
    Held,
    /// No buffer of this guest can hold a frame of this size.
    TooLarge,
    /// The guest's buffer chain breaks the rules of virtio 1.2, 2.7.5. It went back unused.
    BadChain,
    /// Finding room costs too much: the guest's buffers are in too many small pieces.
    Slow,
    /// Too many pages of the guest's memory were touched first by us, or touching one took long: it
    /// rests for a while.
    Resting,
}

/// A buffer of one descriptor, already checked and translated.
#[derive(Clone, Copy)]
struct Ready {
    /// None: the chain is not that simple.
    room: Room,
    id: u16,
}

/// A chain that takes part in a frame.
#[derive(Clone, Copy)]
struct Chain {
    id: u16,
    capacity: u32,
}

/// A guest's receive queue, as the device sees it.
pub struct RxRing {
    pub(crate) vring: Vring,
    /// Buffers ahead of `next_avail`, by their position modulo the size of this array, up to
    /// `prepared`.
    ready: Box<[Ready; BATCH]>,
    prepared: u16,
    /// Room for frames that need more than one piece.
    pieces: Vec<Room>,
    chains: Vec<Chain>,
    /// Cost of finding room so far.
    walks: Walks,
}

// SAFETY: the pointers point into the memory that `vring` keeps alive; the ring is used by one
// thread at a time.
unsafe impl Send for RxRing {}

impl RxRing {
    pub(crate) fn new(vring: Vring) -> RxRing {
        RxRing {
            prepared: vring.next_avail,
            vring,
            ready: Box::new([Ready { room: Room::NONE, id: 0 }; BATCH]),
            pieces: Vec::with_capacity(MAX_PIECES),
            chains: Vec::with_capacity(CHAIN_BUDGET as usize),
            walks: Walks::default(),
        }
    }

    /// For the operator.
    pub fn status(&self) -> RingStatus {
        self.vring.status()
    }

    /// Returns the features that the guest negotiated: they say which offloads it can take.
    #[inline(always)]
    pub fn features(&self) -> Features {
        self.vring.space.features
    }

    /// Returns why nothing is delivered, if the ring is not served.
    #[inline(always)]
    fn is_served(&self) -> Result<(), NotDelivered> {
        if self.vring.enabled {
            return Ok(());
        }
        Err(if self.vring.held { NotDelivered::Held } else { NotDelivered::NotReady })
    }

    /// Lets the ring rest until it is set up anew: what it points to is not the guest's memory any
    /// more.
    pub fn rest(&mut self) {
        self.vring.rest();
        self.forget_prepared();
    }

    /// True if the guest's memory or its dirty log was taken away.
    #[inline(always)]
    pub fn poisoned(&self) -> bool {
        self.vring.poisoned()
    }

    /// True if the guest has surely taken everything that was delivered: it asks for an interrupt
    /// for the next frame, or gave all buffers back.
    pub fn is_read(&self) -> bool {
        self.vring.awaits_next() || self.vring.has_all_entries()
    }

    /// Looks for chains, as [`Vring::available`] does, at the guest's cost: of a packed ring each
    /// of their descriptors is looked at.
    #[inline(always)]
    fn look(&mut self) -> Option<u16> {
        match self.vring.is_packed() {
            false => self.vring.available(),
            true => self.look_packed(),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_packed(&mut self) -> Option<u16> {
        let budget = self.walks.looks();
        self.vring.available_packed(budget)
    }

    /// True if the guest has made buffers available that are not used.
    pub fn has_room(&self) -> bool {
        self.vring.has_entries()
    }

    /// Shows the guest everything delivered so far. Returns how to interrupt it, if it wants that.
    #[inline(always)]
    pub fn publish(&mut self) -> Option<Arc<CallFd>> {
        self.walks.forget();
        self.vring.publish(Point::RxPublished)
    }
}
