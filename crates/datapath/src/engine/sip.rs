//! SipHash-1-3 (Aumasson and Bernstein, 2012) of whole words: a keyed pseudo-random function.

/// Hashes words with a key. Nobody without the key foretells hashes, whatever others are seen.
#[inline(always)]
pub(crate) fn sip13<const N: usize>([k0, k1]: [u64; 2], words: [u64; N]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    // The last byte is the length.
    let length = (size_of::<[u64; N]>() as u64) << 56;
    for word in words.into_iter().chain([length]) {
        let [v0, v1, v2, v3] = v;
        let [v0, v1, v2, v3] = round([v0, v1, v2, v3 ^ word]);
        v = [v0 ^ word, v1, v2, v3];
    }
    let [v0, v1, v2, v3] = v;
    let [v0, v1, v2, v3] = round(round(round([v0, v1, v2 ^ 0xff, v3])));
    v0 ^ v1 ^ v2 ^ v3
}

fn round([v0, v1, v2, v3]: [u64; 4]) -> [u64; 4] {
    let v0 = v0.wrapping_add(v1);
    let v1 = v1.rotate_left(13) ^ v0;
    let v0 = v0.rotate_left(32);
    let v2 = v2.wrapping_add(v3);
    let v3 = v3.rotate_left(16) ^ v2;
    let v0 = v0.wrapping_add(v3);
    let v3 = v3.rotate_left(21) ^ v0;
    let v2 = v2.wrapping_add(v1);
    let v1 = v1.rotate_left(17) ^ v2;
    [v0, v1, v2.rotate_left(32), v3]
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use super::*;

    /// Returns the hash of the standard library's SipHash-1-3, whose key is 0.
    fn theirs(words: &[u64]) -> u64 {
        let mut theirs = std::hash::DefaultHasher::new();
        words.iter().for_each(|word| theirs.write_u64(*word));
        theirs.finish()
    }

    #[test]
    fn it_is_siphash_1_3() {
        for word in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(sip13([0, 0], [word]), theirs(&[word]));
            assert_eq!(sip13([0, 0], [word, 7, 9]), theirs(&[word, 7, 9]));
        }
        assert_ne!(sip13([1, 0], [7]), sip13([0, 1], [7]));
    }
}
