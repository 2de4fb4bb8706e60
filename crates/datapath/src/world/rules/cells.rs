//! A cell per rule: the version in which its admissions were last taken back, and the number of
//! sessions it admitted.
//!
//! Rules only allow, so an addition touches no session. A change that takes something back raises
//! the *version* of the snapshot. It notes the version in the cell of the rule that went (or whose
//! group lost a member), or in the vnic (`since`: an address, a group or the default egress that
//! went). A session carries the version that admitted it (`stamp`) and the cells of both rules that
//! did. If a cell or `since` is newer than the stamp, the session's next frame is decided again, in
//! the direction of the opener. All others go on. Cells are written before the snapshot is
//! published: a worker that still decides by the old rules does so under an old stamp.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use butterfly_mem::units::{Units, UnitsError};

/// Most rules a host can have, in all groups.
pub(crate) const MAX_CELLS: u32 = 1 << 20;
const PER_UNIT: u32 = 8;

/// All cells. Cell 0 stands for "no rule was needed" and is never taken back.
#[derive(Debug)]
pub(crate) struct Cells(Units);

impl Cells {
    pub fn new() -> Result<Cells, UnitsError> {
        Ok(Cells(Units::anonymous((MAX_CELLS / PER_UNIT) as usize)?))
    }

    #[inline(always)]
    fn word(&self, cell: u32, which: u32) -> Option<&AtomicU64> {
        self.0.get((cell / PER_UNIT) as usize)?.0.get((2 * (cell % PER_UNIT) + which) as usize)
    }

    /// Returns the version of the policy that took back admissions of the rule. Older decisions are
    /// to be made again.
    #[inline(always)]
    pub fn taken_back(&self, cell: u32) -> u32 {
        self.word(cell, 0).map_or(u32::MAX, |word| word.load(Relaxed) as u32)
    }

    /// Has sessions decided again that an older version admitted.
    pub fn take_back(&self, cell: u32, version: u32) {
        if cell != 0
            && let Some(word) = self.word(cell, 0)
        {
            word.store(version.into(), Relaxed);
        }
    }

    /// Does as [`Self::take_back`] for all cells, and overrides later versions.
    pub fn take_back_all(&self, version: u32) {
        (1..MAX_CELLS)
            .filter(|cell| self.taken_back(*cell) > version)
            .for_each(|cell| self.take_back(cell, version));
    }

    /// Counts a session that the cell's rule admitted.
    pub fn count(&self, cell: u32) {
        if let Some(word) = self.word(cell, 1) {
            word.fetch_add(1, Relaxed);
        }
    }

    /// Adds sessions that the rule admitted in a former process.
    pub fn add_former(&self, cell: u32, n: u64) {
        if let Some(word) = self.word(cell, 1) {
            word.fetch_add(n, Relaxed);
        }
    }

    /// Returns the number of sessions admitted.
    pub fn counted(&self, cell: u32) -> u64 {
        self.word(cell, 1).map_or(0, |word| word.load(Relaxed))
    }

    /// Makes a cell ready for another rule.
    pub fn reset_count(&self, cell: u32) {
        if let Some(word) = self.word(cell, 1) {
            word.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cells of one unit, of the next, and the last one of all.
    #[test]
    fn each_cell_has_its_own_words() {
        let cells = Cells::new().unwrap();
        let all = || (1..=17).chain([MAX_CELLS - 1]);
        for cell in all() {
            cells.take_back(cell, 100 + cell);
            (0..cell % 20).for_each(|_| cells.count(cell));
        }
        let of = |cell: u32| (cells.taken_back(cell), cells.counted(cell));
        all().for_each(|cell| assert_eq!(of(cell), (100 + cell, u64::from(cell % 20)), "{cell}"));
        cells.reset_count(8);
        assert_eq!([of(7), of(8), of(9)], [(107, 7), (108, 0), (109, 9)]);
    }

    /// Cell 0, which stands for no rule, holds for ever; a missing cell never holds.
    #[test]
    fn the_first_cell_and_those_that_there_are_not() {
        let cells = Cells::new().unwrap();
        cells.take_back(0, 9);
        cells.count(MAX_CELLS);
        assert_eq!(cells.taken_back(0), 0);
        assert_eq!((cells.taken_back(MAX_CELLS), cells.counted(MAX_CELLS)), (u32::MAX, 0));
        assert_eq!(cells.taken_back(MAX_CELLS - 1), 0);
    }

    #[test]
    fn all_are_taken_back_to_one_version_at_most() {
        let cells = Cells::new().unwrap();
        for (cell, version) in [(1, 49), (2, 50), (3, 51), (MAX_CELLS - 1, u32::MAX)] {
            cells.take_back(cell, version);
        }
        cells.take_back_all(50);
        assert_eq!(
            [1, 2, 3, 4, MAX_CELLS - 1].map(|cell| cells.taken_back(cell)),
            [49, 50, 50, 0, 50]
        );
    }
}
