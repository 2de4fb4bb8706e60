//! A table of numbers for readers that do not wait: made once, never changed.

/// Maps larger numbers to small ones, such as the addresses of vnics to their slots. Open
/// addressing, at most half full.
#[derive(Clone, Default)]
pub(crate) struct Numbers {
    /// Key + 1 and value; 0 is free.
    entries: Box<[(u64, u32)]>,
    shift: u32,
}

const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

impl Numbers {
    /// Makes the table. Of several values with one key, the first one counts.
    pub fn new(owners: impl Iterator<Item = (u64, u32)> + Clone) -> Numbers {
        let size = (owners.clone().count() * 2).next_power_of_two().max(4);
        let mut table = Numbers {
            entries: vec![(0, 0); size].into_boxed_slice(),
            shift: 64 - size.trailing_zeros(),
        };
        for (key, slot) in owners {
            let key = key + 1;
            let mut at = table.home(key);
            while let Some(entry) = table.entries.get_mut(at) {
                if entry.0 == key {
                    break;
                }
                if entry.0 == 0 {
                    *entry = (key, slot);
                    break;
                }
                at = (at + 1) & (size - 1);
            }
        }
        table
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(HASH) >> self.shift) as usize
    }

    /// Returns the value of a key below 2^63.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<u32> {
        let key = key + 1;
        let mut at = self.home(key);
        loop {
            let (found, slot) = *self.entries.get(at)?;
            if found == key {
                return Some(slot);
            }
            if found == 0 {
                return None;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }
}
