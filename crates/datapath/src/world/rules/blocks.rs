//! Blocks of addresses, and the search for those that an address is in.

/// Blocks (CIDR) of one family, compiled: one binary search finds the smallest block around an
/// address, its parents lead to the larger ones. Addresses are 128-bit numbers, IPv4 mapped into
/// IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks<T> {
    /// First addresses of ranges with the same smallest block; ascending, the first is 0.
    starts: Box<[u128]>,
    /// The smallest block from there on; `NONE` where there is none.
    smallest: Box<[u32]>,
    blocks: Box<[Block<T>]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block<T> {
    parent: u32,
    value: T,
}

const NONE: u32 = u32::MAX;

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Blocks { starts: Box::new([]), smallest: Box::new([]), blocks: Box::new([]) }
    }
}

impl<T> Blocks<T> {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Compiles different blocks, given by their first and last address. Each is within another one
    /// or separate from it.
    pub fn new(mut blocks: Vec<(u128, u128, T)>) -> Blocks<T> {
        // Larger ones before those that they contain.
        blocks.sort_by_key(|(first, last, _)| (*first, std::cmp::Reverse(*last)));
        let (mut starts, mut smallest, mut compiled) =
            (Vec::new(), Vec::new(), Vec::<Block<T>>::new());
        let mut open: Vec<(u32, u128)> = Vec::new();
        let mut begin = |at: u128, block: u32| {
            if starts.last() == Some(&at) {
                smallest.pop();
                starts.pop();
            }
            starts.push(at);
            smallest.push(block);
        };
        begin(0, NONE);
        for (first, last, value) in blocks {
            while let Some((_, end)) = open.pop_if(|(_, end)| *end < first) {
                // Below the largest address, as another block begins after it.
                begin(end + 1, open.last().map_or(NONE, |(parent, _)| *parent));
            }
            let index = compiled.len() as u32;
            compiled.push(Block { parent: open.last().map_or(NONE, |(parent, _)| *parent), value });
            open.push((index, last));
            begin(first, index);
        }
        while let Some((_, end)) = open.pop() {
            if let Some(next) = end.checked_add(1) {
                begin(next, open.last().map_or(NONE, |(parent, _)| *parent));
            }
        }
        Blocks { starts: starts.into(), smallest: smallest.into(), blocks: compiled.into() }
    }

    /// Returns the values of all blocks that an address is in, the smallest block first.
    #[inline]
    pub fn around(&self, address: u128) -> impl Iterator<Item = &T> {
        let at = self.starts.partition_point(|start| *start <= address).wrapping_sub(1);
        let mut next = self.smallest.get(at).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let block = self.blocks.get(next as usize)?;
            next = block.parent;
            Some(&block.value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn block(address: u128, bits: u32) -> (u128, u128) {
        let hosts = u128::MAX.checked_shr(bits).unwrap_or(0);
        (address & !hosts, address | hosts)
    }

    proptest! {
        #[test]
        fn exactly_the_blocks_around(blocks in prop::collection::vec((0u8..32, 120u32..=128), 0..20), high in prop::bool::ANY, wanted in 0u8..40) {
            // At both ends of all addresses, where sums overflow.
            let place = |n: u8| if high { u128::MAX - u128::from(n) } else { u128::from(n) };
            let mut all: BTreeSet<(u128, u128)> = blocks.iter().map(|(n, bits)| block(place(*n), *bits)).collect();
            all.insert(block(place(3), 0));
            let blocks = Blocks::new(all.iter().map(|(first, last)| (*first, *last, (*first, *last))).collect());
            let address = place(wanted);
            let mut expected: Vec<_> = all.iter().filter(|(first, last)| (*first..=*last).contains(&address)).copied().collect();
            expected.sort_by_key(|(first, last)| last - first);
            prop_assert_eq!(blocks.around(address).copied().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn no_blocks_are_around_nothing() {
        assert_eq!(Blocks::<u8>::new(Vec::new()).around(7).count(), 0);
        assert_eq!(Blocks::<u8>::default().around(u128::MAX).count(), 0);
    }

    /// The first and the last address there are, among many blocks.
    #[test]
    fn the_ends_of_all_addresses() {
        let hosts = (1..40u128).map(|n| (2 * n, 2 * n, n));
        let all: Vec<_> = hosts.chain([(0, u128::MAX, 0), (u128::MAX, u128::MAX, 99)]).collect();
        let blocks = Blocks::new(all);
        let around = |address| blocks.around(address).copied().collect::<Vec<_>>();
        assert_eq!(
            [around(0), around(1), around(2), around(3), around(78)],
            [vec![0], vec![0], vec![1, 0], vec![0], vec![39, 0]]
        );
        assert_eq!([around(u128::MAX), around(u128::MAX - 1)], [vec![99, 0], vec![0]]);
        // Without one around all others.
        let blocks = Blocks::new((1..40u128).map(|n| (2 * n, 2 * n, n)).collect());
        assert_eq!(
            [0, 1, 2, 78, 79].map(|address| blocks.around(address).count()),
            [0, 0, 1, 1, 0]
        );
    }
}
