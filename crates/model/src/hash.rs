//! The hash that orders rules.

/// Returns the same as `std::hash<std::string>` of the 64-bit libstdc++ for `bytes`: MurmurHash64A
/// with its customary seed.
///
/// Deployed clients see the order it puts rules in and name rules by it, so it is part of the
/// protocol. It resists no attacker: do not put a stranger's choice into a hash table with it.
pub fn libstdcxx_hash(bytes: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
    const SEED: u64 = 0xc70f_6907;
    let shift_mix = |value: u64| value ^ (value >> 47);

    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        hash = (hash ^ shift_mix(word).wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
    }
    if !tail.is_empty() {
        let word = tail.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    }
    shift_mix(shift_mix(hash).wrapping_mul(MULTIPLIER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        for (text, hash) in [
            ("0-6-0-65535-/0-sg-42", 0x01b7_7c16_1261_11c3),
            ("0--1-0-1024-2001:db8:0:85a3::ac1f:8001/8-", 0xa0a5_c024_450e_bdd4),
            ("0-17-0-65535-1.2.3.0/24-", 0xe9dd_a2c7_b09f_8f12),
            ("0-6-1000-65535-/0-some-sg", 0xfbb4_608a_d37e_592b),
            // The text form of a rule, by which clients name it.
            ("direction: INBOUND\nprotocol: 42\nsecurity_group: \"sg-2\"\n", 0xcfdb_94f9_418c_88f1),
        ] {
            assert_eq!(libstdcxx_hash(text.as_bytes()), hash, "{text}");
        }
    }
}
