//! Fragments into which routers cut what other hosts sent, which cannot be put back: a turn of the
//! uplink makes so many, and one sender leaves some to the others.

use std::cell::{Cell, RefCell};

use arrayvec::ArrayVec;
use butterfly_vhost::ring::BATCH;

use crate::ip::Address;

/// Most fragments of a turn, over all networks. A sender takes no more than it leaves to others, so
/// one alone has half.
const FRAGMENTS_OF_UPLINK: u32 = 512;

/// Fragments of what other hosts sent, in one turn of the uplink.
#[derive(Default)]
pub(crate) struct FarCuts {
    taken: Cell<u32>,
    /// Networks and addresses of their senders, of which each frame has one, and their parts.
    parts: RefCell<ArrayVec<((u32, Address), u32), BATCH>>,
}

impl FarCuts {
    /// Begins a turn.
    #[inline(always)]
    pub fn begin(&self) {
        self.taken.set(0);
    }

    /// Takes room for so many fragments of a sender. Returns whether there was as much.
    pub fn take(&self, sender: (u32, Address), fragments: u32) -> bool {
        let Ok(mut parts) = self.parts.try_borrow_mut() else { return false };
        let taken = self.taken.get();
        if taken == 0 {
            parts.clear(); // they are of another turn
        }
        let found = parts.iter().position(|(who, _)| *who == sender).unwrap_or(parts.len());
        if found == parts.len() && parts.try_push((sender, 0)).is_err() {
            return false;
        }
        let Some((_, part)) = parts.get_mut(found) else { return false };
        let own = part.saturating_add(fragments);
        if own > FRAGMENTS_OF_UPLINK.saturating_sub(taken.saturating_add(fragments)) {
            return false;
        }
        *part = own;
        self.taken.set(taken + fragments);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_leaves_as_much_as_it_takes() {
        let cuts = FarCuts::default();
        let taken = |who, each| {
            let count = (0..1000).filter(|_| cuts.take(who, each)).count();
            count as u32 * each
        };
        assert_eq!([taken((7, 1), 1), taken((7, 2), 1), taken((8, 1), 1)], [256, 128, 64]);
        let others: u32 = (3..60).map(|who| taken((9, who), 1)).sum();
        assert!(others <= 64);
        assert!(!cuts.take((7, 1), 1));
        cuts.begin();
        assert_eq!([taken((7, 1), 152), taken((7, 2), 152), taken((7, 3), 7)], [152, 152, 98]);
    }

    /// Each frame of a turn may be of another sender.
    #[test]
    fn there_is_a_part_for_each_frame() {
        let cuts = FarCuts::default();
        assert!((0..BATCH as u128).all(|who| cuts.take((7, who), 2)));
    }
}
