//! Fate of numbered frames: seen once, twice, late, never.

/// Frames that may arrive this late and still be told from duplicates.
const WINDOW: u64 = 1 << 16;

/// Follows the sequence numbers that arrive.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// One bit per number of the last [`WINDOW`].
    seen: Vec<u64>,
    /// Every number below was sent before the newest that arrived.
    next: u64,
    /// Different numbers that arrived.
    pub unique: u64,
    /// Frames that arrived again.
    pub duplicated: u64,
    /// Frames that arrived after a later one.
    pub reordered: u64,
}

impl Sequence {
    pub fn new() -> Sequence {
        Sequence {
            seen: vec![0; (WINDOW / 64) as usize],
            next: 0,
            unique: 0,
            duplicated: 0,
            reordered: 0,
        }
    }

    /// The number that low 32 bits stand for: the nearest to what is expected next.
    pub fn extend(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.next as u32) as i32;
        self.next.saturating_add_signed(ahead.into())
    }

    /// A frame arrived.
    pub fn arrived(&mut self, number: u64) {
        if number >= self.next {
            // Forget what leaves the window, number by number, or all at once after a long gap.
            if number - self.next >= WINDOW {
                self.seen.fill(0);
            } else {
                (self.next..=number).for_each(|passed| self.mark(passed, false));
            }
            self.next = number + 1;
        } else if self.next - number > WINDOW {
            // Too late to know whether it is the first of its kind: older than anything a ring can
            // hold.
            self.reordered += 1;
            return;
        } else if self.is_seen(number) {
            self.duplicated += 1;
            return;
        } else {
            self.reordered += 1;
        }
        self.mark(number, true);
        self.unique += 1;
    }

    fn place(number: u64) -> (usize, u64) {
        ((number % WINDOW / 64) as usize, 1 << (number % 64))
    }

    fn is_seen(&self, number: u64) -> bool {
        let (word, bit) = Sequence::place(number);
        self.seen[word] & bit != 0
    }

    fn mark(&mut self, number: u64, seen: bool) {
        let (word, bit) = Sequence::place(number);
        if seen {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: impl IntoIterator<Item = u64>) -> (u64, u64, u64) {
        let mut sequence = Sequence::new();
        numbers.into_iter().for_each(|number| sequence.arrived(number));
        (sequence.unique, sequence.duplicated, sequence.reordered)
    }

    #[test]
    fn tells_gaps_repeats_and_latecomers_apart() {
        assert_eq!(of([0, 1, 2, 3]), (4, 0, 0));
        assert_eq!(of([0, 3, 4]), (3, 0, 0));
        assert_eq!(of([0, 1, 1, 2, 0]), (3, 2, 0));
        assert_eq!(of([0, 2, 1, 3]), (4, 0, 1));
        assert_eq!(of([0, 2, 1, 1]), (3, 1, 1));
    }

    #[test]
    fn the_window_moves_on() {
        assert_eq!(of((0..3 * WINDOW).chain([3 * WINDOW - 1, 2 * WINDOW])), (3 * WINDOW, 2, 0));
        assert_eq!(of([0, 10 * WINDOW, 10 * WINDOW - 5, 10 * WINDOW - 5]), (3, 1, 1));
        assert_eq!(of([WINDOW, 2 * WINDOW + 1, WINDOW]), (2, 0, 1), "too old to tell");
    }

    #[test]
    fn low_halves_find_their_number() {
        let mut sequence = Sequence::new();
        assert_eq!(sequence.extend(5), 5);
        sequence.arrived(0xffff_fffe);
        assert_eq!(sequence.extend(0xffff_fff0), 0xffff_fff0);
        assert_eq!(sequence.extend(3), 0x1_0000_0003);
    }
}
