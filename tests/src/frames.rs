//! Frames that say what they are, so that every byte can be checked where they arrive.

use butterfly_packet::{build, mac::Mac};

/// For experiments (IEEE 802, 9.2.4): not IP, so that filters let it through.
pub const EXPERIMENT: u16 = 0x88b5;

/// Shortest numbered frame.
pub const MIN_NUMBERED: usize = 14 + 16;

/// The address of the `n`th station.
pub fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([0x02, 0xb0, a, b, c, d])
}

/// `len` bytes that depend on `seed`, all of them.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    // splitmix64
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A frame of `len` bytes of a stream: the stream's and the frame's number, then a pattern that depends on both.
pub fn numbered(from: Mac, to: Mac, stream: u64, number: u64, len: usize) -> Vec<u8> {
    assert!(len >= MIN_NUMBERED, "a numbered frame has at least {MIN_NUMBERED} bytes");
    let mut payload = Vec::with_capacity(len - 14);
    payload.extend(stream.to_be_bytes());
    payload.extend(number.to_be_bytes());
    payload.extend(pattern(stream.rotate_left(32) ^ number, len - MIN_NUMBERED));
    build::ethernet(from, to).payload(EXPERIMENT, &payload)
}

/// The stream's and the frame's number, if every byte is what [`numbered`] wrote.
pub fn read_numbered(frame: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| frame.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    let (stream, number) = (word(14)?, word(22)?);
    let same = frame.get(12..14)? == EXPERIMENT.to_be_bytes()
        && frame.get(MIN_NUMBERED..)? == pattern(stream.rotate_left(32) ^ number, frame.len() - MIN_NUMBERED);
    same.then_some((stream, number))
}

/// A small, reproducible source of choices.
#[derive(Clone, Debug)]
pub struct Choices(u64);

impl Choices {
    /// From a seed.
    pub fn new(seed: u64) -> Choices {
        Choices(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        let bytes = pattern(self.0, 8);
        let word = bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        (word % bound as u64) as usize
    }

    /// One of them.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A length between `from` and `to`, both included.
    pub fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }
}
