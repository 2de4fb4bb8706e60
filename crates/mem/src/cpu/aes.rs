//! A keyed hash made of the processor's AES rounds: of flows, the same for both directions.
//!
//! Words 0 and 1 are one end's address, 2 and 3 the other's. Word 4 begins with the ports of both
//! ends, 16 bits each; what follows them, and word 5, is common to both directions. An address
//! takes two rounds, its port is added, and two more follow, so no choice of addresses and ports
//! makes up for another. The sum of both ends and what is common take three.

use core::arch::x86_64::{
    __m128i, _mm_add_epi64, _mm_aesenc_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x,
    _mm_slli_epi64, _mm_srli_epi64, _mm_srli_si128, _mm_xor_si128,
};

/// The processor has AES rounds: only [`Aes::detect`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Aes(());

/// Keys of the rounds.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct RoundKeys([[u64; 2]; 8]);

/// Words of a flow: two ends, ports, and what both directions have in common.
pub type FlowWords = [u64; 6];

/// Tells the round keys apart that come of one secret: digits of pi.
const ROUND: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

impl Aes {
    /// Asks the processor.
    pub fn detect() -> Option<Aes> {
        std::arch::is_x86_feature_detected!("aes").then_some(Aes(()))
    }

    /// Makes round keys of a secret.
    pub fn keys(self, secret: [u64; 4]) -> RoundKeys {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { derive(secret) }
    }

    /// The hash of one flow.
    pub fn hash(self, keys: &RoundKeys, words: &FlowWords) -> u64 {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { one(keys, words) }
    }

    /// Hashes flows, and hands each its hash. One call for many: nothing is inlined across the
    /// border of such a function.
    pub fn hash_each<T>(
        self,
        keys: &RoundKeys,
        flows: impl Iterator<Item = T>,
        words: impl Fn(&T) -> FlowWords,
        take: impl FnMut(T, u64),
    ) {
        // SAFETY: `self` exists, so the processor has the instructions.
        unsafe { each(keys, flows, words, take) }
    }
}

#[target_feature(enable = "aes")]
fn vector([low, high]: [u64; 2]) -> __m128i {
    _mm_set_epi64x(high as i64, low as i64)
}

#[target_feature(enable = "aes")]
fn derive([a, b, c, d]: [u64; 4]) -> RoundKeys {
    let (first, second, round) = (vector([a, b]), vector([c, d]), vector(ROUND));
    let mut counter = vector([0; 2]);
    RoundKeys(std::array::from_fn(|_| {
        counter = _mm_add_epi64(counter, round);
        let mut state = _mm_xor_si128(counter, first);
        for key in [second, first, second, first] {
            state = _mm_aesenc_si128(state, key);
        }
        let high = _mm_cvtsi128_si64(_mm_srli_si128::<8>(state));
        [_mm_cvtsi128_si64(state) as u64, high as u64]
    }))
}

#[target_feature(enable = "aes")]
fn one(RoundKeys(keys): &RoundKeys, words: &FlowWords) -> u64 {
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *keys;
    let [a, b, c, d, ports, common] = *words;
    let end = |address: __m128i, port: __m128i| {
        let state = _mm_xor_si128(address, vector(k0));
        let state = _mm_aesenc_si128(_mm_aesenc_si128(state, vector(k1)), vector(k2));
        let state = _mm_xor_si128(state, port);
        _mm_aesenc_si128(_mm_aesenc_si128(state, vector(k3)), vector(k4))
    };
    let both = _mm_cvtsi64_si128(ports as i64);
    let source = end(vector([a, b]), _mm_srli_epi64::<48>(both));
    let destination = end(vector([c, d]), _mm_srli_epi64::<48>(_mm_slli_epi64::<16>(both)));
    let state =
        _mm_xor_si128(_mm_add_epi64(source, destination), vector([ports & 0xffff_ffff, common]));
    let state = _mm_aesenc_si128(_mm_aesenc_si128(state, vector(k5)), vector(k6));
    _mm_cvtsi128_si64(_mm_aesenc_si128(state, vector(k7))) as u64
}

#[target_feature(enable = "aes")]
fn each<T>(
    keys: &RoundKeys,
    flows: impl Iterator<Item = T>,
    words: impl Fn(&T) -> FlowWords,
    mut take: impl FnMut(T, u64),
) {
    for flow in flows {
        let hash = one(keys, &words(&flow));
        take(flow, hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_by_one_is_as_all_at_once() {
        let Some(aes) = Aes::detect() else { return };
        let keys = aes.keys([1, 2, 3, 4]);
        let flows: Vec<FlowWords> =
            (0..64).map(|n| std::array::from_fn(|word| n * 6 + word as u64)).collect();
        let mut all = Vec::new();
        aes.hash_each(&keys, flows.iter(), |flow| **flow, |_, hash| all.push(hash));
        assert_eq!(all, flows.iter().map(|flow| aes.hash(&keys, flow)).collect::<Vec<_>>());
        let mut keys = keys.0.to_vec();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 8);
    }
}
