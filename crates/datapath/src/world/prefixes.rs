//! Longest prefixes: which of many blocks of addresses is the smallest that has an address.
//!
//! A tree bitmap (Eatherton, Varghese, Dittia, 2004). A node is for six bits of the address: it
//! knows which prefixes end in it and which children it has, a bit for each. Both lie side by side,
//! so that a count of bits finds them. A look-up keeps the longest match on its way down, hence no
//! prefix is copied into others, and it reads a node for each six bits: four for a /24 of IPv4, and
//! the number that it leads to.
//!
//! Addresses stand at the upper end of a word, IPv4 in its upper 32 bits. A table is of one family.

use std::collections::BTreeMap;

/// Bits of an address that a node is for.
const STRIDE: u32 = 6;
/// Bits of a word with an address.
const WIDTH: u32 = u128::BITS;

/// Six bits of the addresses that have the same bits before.
#[derive(Clone, Copy, Default)]
struct Node {
    /// Prefixes that end here, by the one to six bits of theirs that are of this node: a 1, and
    /// those bits behind it, are the number of a bit. Bit 1 is the prefix of no bits, in the root.
    ends: u128,
    /// Children, by the six bits that lead there.
    children: u64,
    /// The first child. The others follow in the order of their bits.
    below: u32,
    /// The first value of [`Self::ends`], likewise.
    values: u32,
}

const _: () = assert!(size_of::<Node>() == 32, "two nodes in a cache line");

/// Bits in [`Node::ends`] of all prefixes that have an address, by the six bits of it.
const PATHS: [u128; 1 << STRIDE] = paths();

const fn paths() -> [u128; 1 << STRIDE] {
    let mut paths = [0; 1 << STRIDE];
    let mut left: &mut [u128] = &mut paths;
    let mut bits = 0;
    while let [path, rest @ ..] = left {
        let mut length = 0;
        while length <= STRIDE {
            *path |= 1 << (1 << length | bits >> (STRIDE - length));
            length += 1;
        }
        bits += 1;
        left = rest;
    }
    paths
}

/// Returns the first six bits of a word.
#[inline(always)]
fn first_bits(word: u128) -> u32 {
    (word >> (WIDTH - STRIDE)) as u32
}

/// Number of the bits below one, which is below 128.
#[inline(always)]
fn below(bits: u128, bit: u32) -> u32 {
    (bits & ((1 << bit) - 1)).count_ones()
}

/// Blocks of addresses of one family, each with a number. Made by [`PrefixBuilder`].
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// The root first.
    nodes: Box<[Node]>,
    values: Box<[u32]>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ends, {} children", self.ends.count_ones(), self.children.count_ones())
    }
}

impl Prefixes {
    /// Returns the number of the smallest block that has an address; `None` if none has it. Takes
    /// 22 steps at most, six of IPv4.
    #[inline]
    pub fn longest(&self, address: u128) -> Option<u32> {
        let mut best = None;
        let mut rest = address;
        let mut node = self.nodes.first()?;
        loop {
            let bits = first_bits(rest);
            let ends = node.ends & PATHS.get(bits as usize).copied().unwrap_or(0);
            if ends != 0 {
                // The longest one has the highest number.
                let last = WIDTH - 1 - ends.leading_zeros();
                best = Some(node.values + below(node.ends, last));
            }
            if node.children.wrapping_shr(bits) & 1 == 0 {
                break;
            }
            let child = node.below + below(node.children.into(), bits);
            let Some(next) = self.nodes.get(child as usize) else { break };
            node = next;
            rest <<= STRIDE;
        }
        self.values.get(best? as usize).copied()
    }
}

/// Puts prefixes together. An insertion moves what lies beside it in two nodes, however many
/// prefixes there are; 2^24 are the most.
pub(crate) struct PrefixBuilder {
    nodes: Arena<Node>,
    values: Arena<u32>,
}

impl PrefixBuilder {
    /// Makes one without prefixes.
    pub fn new() -> PrefixBuilder {
        let mut nodes = Arena::default();
        nodes.widen((0, 0), 0, Node::default());
        PrefixBuilder { nodes, values: Arena::default() }
    }

    /// Adds the block of all addresses that have their first `length` bits, 128 at most, in common
    /// with this one. A block that is there gets the number.
    pub fn insert(&mut self, address: u128, length: u32, number: u32) {
        let depth = length.saturating_sub(1) / STRIDE;
        let (mut at, mut rest) = (0, address);
        for _ in 0..depth {
            at = self.child(at, first_bits(rest));
            rest <<= STRIDE;
        }
        let inner = (length - depth * STRIDE).min(STRIDE);
        let bit = 1 << inner | first_bits(rest) >> (STRIDE - inner);
        let Some(node) = self.nodes.slots.get_mut(at) else { return };
        let before = below(node.ends, bit);
        if node.ends >> bit & 1 == 1 {
            let place = self.values.slots.get_mut((node.values + before) as usize);
            place.into_iter().for_each(|place| *place = number);
            return;
        }
        node.values = self.values.widen((node.values, node.ends.count_ones()), before, number);
        node.ends |= 1 << bit;
    }

    /// Returns the place of a node's child, which is made if it is not there.
    fn child(&mut self, at: usize, bits: u32) -> usize {
        let Some(node) = self.nodes.slots.get(at).copied() else { return at };
        let before = below(node.children.into(), bits);
        let mut first = node.below;
        if node.children >> bits & 1 == 0 {
            let children = (node.below, node.children.count_ones());
            first = self.nodes.widen(children, before, Node::default());
            if let Some(node) = self.nodes.slots.get_mut(at) {
                node.children |= 1 << bits;
                node.below = first;
            }
        }
        (first + before) as usize
    }

    /// Returns the table.
    pub fn finish(self) -> Prefixes {
        Prefixes { nodes: self.nodes.slots.into(), values: self.values.slots.into() }
    }
}

/// Room for runs of items that lie side by side.
#[derive(Default)]
struct Arena<T> {
    slots: Vec<T>,
    /// First slots of the runs that are free, by their lengths.
    free: BTreeMap<u32, Vec<u32>>,
}

impl<T: Copy + Default> Arena<T> {
    /// Puts an item into a run of so many, at this place among them. Returns where the run is now.
    fn widen(&mut self, (start, len): (u32, u32), at: u32, item: T) -> u32 {
        let free = self.free.get_mut(&(len + 1)).and_then(Vec::pop);
        let new = free.unwrap_or_else(|| {
            let new = self.slots.len();
            self.slots.resize(new + len as usize + 1, T::default());
            new as u32
        });
        let (from, to, middle) = (start as usize, new as usize, at as usize);
        self.slots.copy_within(from..from + middle, to);
        self.slots.copy_within(from + middle..from + len as usize, to + middle + 1);
        self.slots.get_mut(to + middle).into_iter().for_each(|slot| *slot = item);
        if len > 0 {
            self.free.entry(len).or_default().push(start);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Returns the first so many bits of a word.
    fn cut(address: u128, length: u32) -> u128 {
        address & u128::MAX.checked_shl(WIDTH - length).unwrap_or(0)
    }

    /// All blocks as a list, looked through from the longest one on.
    #[derive(Default)]
    struct Listed(BTreeMap<(u32, u128), u32>);

    impl Listed {
        fn longest(&self, address: u128) -> Option<u32> {
            let mut all = self.0.iter().rev();
            let found = all.find(|((length, block), _)| cut(address, *length) == *block);
            found.map(|(_, number)| *number)
        }
    }

    fn both(blocks: &[(u128, u32)]) -> (Prefixes, Listed) {
        let (mut builder, mut listed) = (PrefixBuilder::new(), Listed::default());
        for (number, (address, length)) in blocks.iter().enumerate() {
            builder.insert(*address, *length, number as u32);
            listed.0.insert((*length, cut(*address, *length)), number as u32);
        }
        (builder.finish(), listed)
    }

    fn agree(blocks: &[(u128, u32)], addresses: impl Iterator<Item = u128>) {
        let (table, listed) = both(blocks);
        for address in addresses {
            let found = table.longest(address);
            assert_eq!(found, listed.longest(address), "{address:032x} in {blocks:x?}");
        }
    }

    #[test]
    fn without_blocks_nothing_is_found() {
        assert_eq!(Prefixes::default().longest(7), None);
        assert_eq!(PrefixBuilder::new().finish().longest(7), None);
    }

    #[test]
    fn blocks_of_all_lengths_are_found() {
        for address in [0, u128::MAX, 0x2001_0db8_85a3_0000_1234_8a2e_0370_7334] {
            let all: Vec<(u128, u32)> = (0..=WIDTH).map(|length| (address, length)).collect();
            let near = |length: u32| address ^ 1_u128.checked_shl(WIDTH - 1 - length).unwrap_or(0);
            agree(&all, (0..WIDTH).map(near).chain([address]));
            // In the other order, and every other one.
            let some: Vec<_> = all.into_iter().rev().step_by(2).collect();
            agree(&some, (0..WIDTH).map(near).chain([address]));
        }
    }

    #[test]
    fn a_block_that_is_there_gets_another_number() {
        let block = (0x0a_u128 << 120, 8);
        let (table, _) = both(&[block, (0, 0), block]);
        assert_eq!(table.longest(block.0 | 7), Some(2));
        assert_eq!(table.longest(0), Some(1));
    }

    /// Few bits differ, so that blocks meet in nodes, and lie in each other.
    fn address() -> impl Strategy<Value = u128> {
        prop_oneof![
            any::<u128>(),
            (any::<u8>(), any::<u8>()).prop_map(|(high, low)| {
                u128::from(high & 0x83) << 120 | u128::from(low & 0xc1) << 96 | u128::from(low)
            }),
        ]
    }

    fn length() -> impl Strategy<Value = u32> {
        prop_oneof![0..=WIDTH, 0..=32_u32, Just(0), Just(WIDTH)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn it_finds_what_a_list_does(
            blocks in prop::collection::vec((address(), length()), 0..80),
            addresses in prop::collection::vec(address(), 1..40),
        ) {
            let near = blocks.iter().flat_map(|(block, length)| {
                let last = block | !cut(u128::MAX, *length);
                let first = cut(*block, *length);
                [*block, first, last, first.wrapping_sub(1), last.wrapping_add(1)]
            });
            agree(&blocks, near.clone().chain(addresses.iter().copied()));
        }
    }

    /// Room that runs left is used again.
    #[test]
    fn room_is_used_again() {
        let mut builder = PrefixBuilder::new();
        for number in 0..10_000_u32 {
            builder.insert(u128::from(number.wrapping_mul(0x9e37_79b9)) << 96, 24, number);
        }
        let used: u32 = builder.nodes.slots.iter().map(|node| node.ends.count_ones()).sum();
        let slots = builder.values.slots.len();
        assert!(slots < 2 * used as usize, "{slots} for {used}");
    }

    /// Prints how long tables of IPv4 take to make and to ask, and their sizes, of prefixes with
    /// the lengths that tables of the Internet have.
    #[test]
    #[ignore = "measures"]
    fn how_long_it_takes() {
        const LOOK_UPS: u32 = 4_000_000;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for count in [1_000, 100_000, 1_000_000] {
            let mut blocks = Vec::new();
            for _ in 0..count {
                let length = match random() % 100 {
                    0..60 => 24,
                    60..72 => 22,
                    72..82 => 23,
                    82..90 => 20,
                    90..95 => 19,
                    95..98 => 16,
                    _ => 21,
                };
                let address = u128::from(random() as u32 % 0xe000_0000) << 96;
                blocks.push((cut(address, length), length));
            }
            let begin = std::time::Instant::now();
            let mut builder = PrefixBuilder::new();
            for (number, (address, length)) in blocks.iter().enumerate() {
                builder.insert(*address, *length, number as u32);
            }
            let table = builder.finish();
            let made = begin.elapsed();
            let bytes = size_of_val(&*table.nodes) + size_of_val(&*table.values);
            let asked: Vec<u128> = (0..LOOK_UPS)
                .map(|_| {
                    blocks[random() as usize % blocks.len()].0 | u128::from(random() as u8) << 96
                })
                .collect();
            let begin = std::time::Instant::now();
            let found = asked.iter().filter(|address| table.longest(**address).is_some()).count();
            let each = begin.elapsed() / LOOK_UPS;
            assert_eq!(found, asked.len());
            println!("{count} prefixes: made in {made:?}, {bytes} bytes, {each:?} a look-up");
        }
    }
}
