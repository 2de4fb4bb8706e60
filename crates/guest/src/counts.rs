//! Counts of a guest's thread, for other threads.

use std::sync::atomic::AtomicU64;

use crate::{
    losses::{Lost, WireCounts},
    ping::Record,
    turned::TurnedCounts,
};

/// Counts of the thread.
#[derive(Default)]
pub(crate) struct Counts {
    /// Frames that a TAP device did not take.
    pub refused: AtomicU64,
    pub wire: WireCounts,
    pub turned: TurnedCounts,
    pub pings: Record,
}

impl Counts {
    /// Returns what was lost of frames for this host itself, or said to be from it.
    pub fn turned(&self) -> Lost {
        let (turned_full, own_source) = (self.turned.full(), self.turned.forged());
        Lost { turned_full, own_source, ..Lost::default() }
    }
}
