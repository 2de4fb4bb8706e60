//! Making way: sessions move to their other bucket when a new one finds both of its own full.
//!
//! Readers take no lock, so the new place is written before the old one is cleared. A session that
//! leaves its home is counted there first: a reader that does not find it any more looks into the
//! second bucket. A reader may miss a session that comes home, first there and then in its old
//! place: the bucket's count of moves tells the reader to look again. A mover holds the locks of
//! both buckets, so none of a home's flows moves while another thread holds the home's lock.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::session::memory::AtomicU64;
use crate::session::table::{Locked, MOVES, OVERFLOW, Table, entry};

/// Most sessions that make way for one that makes way: with one, some hundred buckets are looked
/// at.
const DEEPER: u32 = 1;

/// A session that could move.
struct Move {
    hash: u64,
    index: u32,
    /// The bucket it would move to.
    to: u64,
    /// True if it leaves its home.
    leaves: bool,
}

impl Table {
    /// Frees a place in one of these buckets, which are full. Waits for no lock.
    pub(super) fn make_way<'a>(&'a self, full: [Option<&Locked<'a>>; 2]) -> Option<&'a AtomicU64> {
        (0..=DEEPER).find_map(|deeper| {
            full.into_iter().flatten().find_map(|locked| self.move_one(locked, deeper))
        })
    }

    fn move_one<'a>(&'a self, from: &Locked<'a>, deeper: u32) -> Option<&'a AtomicU64> {
        for word in from.words.iter().skip(1) {
            let Some(planned) = self.planned(from.at, word) else { continue };
            // Buckets that are held already are full, and refused by this.
            let Some(to) = self.try_lock(planned.to) else { continue };
            let place = to.free().or_else(|| self.move_one(&to, deeper.checked_sub(1)?));
            if let Some(place) = place {
                self.carry(&planned, word, place);
                return Some(word);
            }
        }
        None
    }

    /// Returns the move of the session in a bucket's place.
    fn planned(&self, at: u64, word: &AtomicU64) -> Option<Move> {
        let index = (word.load(Acquire) as u32).checked_sub(1)?;
        let hash = self.hash(&self.record(index).read()?.0);
        let leaves = Self::first(hash) & self.mask == at & self.mask;
        let to = if leaves { Self::second(hash) } else { Self::first(hash) };
        Some(Move { hash, index, to, leaves })
    }

    /// Moves a session from one place to another; both buckets are held.
    fn carry(&self, planned: &Move, from: &AtomicU64, to: &AtomicU64) {
        let Some(home) = self.bucket(Self::first(planned.hash)).first() else { return };
        let entry = entry(planned.hash, planned.index);
        if planned.leaves {
            home.fetch_add(MOVES + OVERFLOW, AcqRel);
            to.store(entry, Release);
            from.store(0, Release);
        } else {
            to.store(entry, Release);
            home.fetch_add(MOVES, AcqRel);
            from.store(0, Release);
            home.fetch_sub(OVERFLOW, AcqRel);
        }
    }

    /// Returns whether [`Self::make_way`] would free a place in this bucket, as far as can be seen
    /// without locks.
    pub(super) fn could_make_way(&self, at: u64) -> bool {
        (0..=DEEPER).any(|deeper| self.could_move_one(at, deeper))
    }

    fn could_move_one(&self, at: u64, deeper: u32) -> bool {
        self.bucket(at).iter().skip(1).filter_map(|word| self.planned(at, word)).any(|planned| {
            let free = |word: &AtomicU64| word.load(Relaxed) == 0;
            let room = self.bucket(planned.to).iter().skip(1).any(free);
            room || deeper
                .checked_sub(1)
                .is_some_and(|deeper| self.could_move_one(planned.to, deeper))
        })
    }
}
