//! Announcements of a vnic that are still to be sent.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Ticks of housekeeping, a tenth of a second each, from the first round on, and the ticks that are
/// left at each round.
const TICKS: u32 = 16;
const ROUNDS: [u32; 4] = [TICKS, TICKS - 2, TICKS - 7, 1];
/// Ticks until a vnic's last announcement; 0 if none is left.
#[derive(Default)]
pub(crate) struct Announcing(AtomicU32);

impl Announcing {
    /// Begins the announcements; starts again if they are under way.
    pub fn begin(&self) {
        self.0.store(TICKS, Relaxed);
    }

    /// True if announcements are left.
    pub fn is_under_way(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    /// Repeats the last tick, whose round was not taken.
    pub fn again(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Lets a tick pass. Returns whether there is a round in it, which waits if there is no room.
    pub fn tick(&self, room: bool) -> bool {
        let left = self.0.load(Relaxed);
        let due = ROUNDS.contains(&left);
        if left > 0 && (room || !due) {
            // If the announcements begin again at this moment, the exchange fails and the new start
            // stays.
            let _ = self.0.compare_exchange(left, left - 1, Relaxed, Relaxed);
        }
        due && room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_and_end_and_wait_for_room() {
        let announcing = Announcing::default();
        assert!(!announcing.tick(true) && !announcing.is_under_way(), "nothing is to be said");
        announcing.begin();
        assert!((0..5).all(|_| !announcing.tick(false)), "the first round waits");
        let rounds: Vec<usize> = (0..100).filter(|_| announcing.tick(true)).collect();
        assert_eq!(rounds, [0, 2, 7, 15]);
        // A round that was not taken is due again, and so are those behind it.
        announcing.begin();
        assert!(announcing.tick(true));
        announcing.again();
        let rounds: Vec<usize> = (0..100).filter(|_| announcing.tick(true)).collect();
        assert_eq!(rounds, [0, 2, 7, 15]);
        // A vnic that begins again and again is announced once per tick at most.
        announcing.begin();
        assert!(announcing.tick(true));
        announcing.begin();
        assert!(announcing.tick(true));
    }
}
