//! The host's table of fragmented packets, for all workers: see [`Fragments`].

use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Release},
    },
};

use crate::engine::reason::DropReason;
use crate::ip::{
    Packet, Piece,
    fragments::{FragmentKey, Fragments},
};
use crate::session::Timeouts;

/// Decision on the first fragment of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FragmentDecision {
    /// Slot of the receiver; `None` if it was a flood.
    pub receiver: Option<u32>,
    pub stamp: u32,
    pub cells: [u32; 2],
    /// The first fragment: later ones of a flood are judged by it.
    pub packet: Packet,
}

/// Decisions on first fragments, by whichever worker they came.
///
/// Its lock is a leaf: it is taken for one fragment at a time, and no other is taken under it.
pub(crate) struct FragmentTable {
    table: Mutex<Fragments<FragmentDecision>>,
    /// Number of first fragments that were remembered, to be looked at without the lock.
    firsts: AtomicU32,
}

impl FragmentTable {
    /// Allocates all memory it will ever use.
    pub fn new(timeouts: &Timeouts) -> FragmentTable {
        FragmentTable {
            table: Mutex::new(Fragments::new(timeouts.fragment)),
            firsts: AtomicU32::new(0),
        }
    }

    /// Uses another time-out from now on, also for what is known already.
    pub fn retime(&self, timeouts: &Timeouts) {
        self.table().set_life(timeouts.fragment);
    }

    /// Remembers the decision on a first fragment that passes.
    pub(super) fn first(
        &self,
        key: FragmentKey,
        piece: Piece,
        decided: FragmentDecision,
        now: u32,
    ) -> Result<(), DropReason> {
        let mut table = self.table();
        let remembered = table.first(key, piece, decided, now);
        self.firsts.store(table.firsts(), Release);
        remembered
    }

    /// Judges a fragment that is not the first.
    pub(super) fn later(
        &self,
        key: FragmentKey,
        piece: Piece,
        now: u32,
    ) -> Result<FragmentDecision, DropReason> {
        self.table().later(key, piece, now)
    }

    /// Returns a look at the table if a first fragment came since the last one, whose number is
    /// `seen`. Never waits: while another worker has the table, there is no news yet.
    pub fn news(&self, seen: &mut u32) -> Option<FragmentLook<'_>> {
        let firsts = self.firsts.load(Acquire);
        if *seen == firsts {
            return None;
        }
        let table = match self.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        *seen = firsts;
        Some(FragmentLook(table))
    }

    fn table(&self) -> MutexGuard<'_, Fragments<FragmentDecision>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at the table.
pub(crate) struct FragmentLook<'a>(MutexGuard<'a, Fragments<FragmentDecision>>);

impl FragmentLook<'_> {
    /// Returns whether the first fragment of a packet is known.
    pub fn has(&self, key: &FragmentKey, now: u32) -> bool {
        self.0.has(key, now)
    }
}
