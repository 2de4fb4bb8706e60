use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher as _},
};

use proptest::prelude::*;

use super::*;
use crate::ip::Tuple;
use crate::session::key::Zone;

/// Returns both functions, or one where the processor has no AES rounds.
fn hashers(key: HashKey) -> Vec<Hasher> {
    let mut all = vec![Hasher::new(key), Hasher::without_aes(key)];
    all.dedup_by_key(|hasher| hasher.kind());
    all
}

fn any_secret(random: &mut u64) -> HashKey {
    HashKey(std::array::from_fn(|_| draw(random)))
}

/// SplitMix64.
fn draw(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[test]
fn the_fallback_is_siphash_1_3() {
    // The standard library's is the same function, with a key of zeros.
    #[allow(deprecated)]
    let std_hash = |words: FlowWords| {
        let mut hasher =
            std::hash::BuildHasherDefault::<std::collections::hash_map::DefaultHasher>::default()
                .build_hasher();
        words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        hasher.finish()
    };
    let mut random = 1;
    for _ in 0..100 {
        let words = std::array::from_fn(|_| draw(&mut random));
        assert_eq!(sip13([0; 2], words), std_hash(words));
    }
}

proptest! {
    #[test]
    fn both_directions_have_one_hash_whatever_the_vnics(
        secret: [u64; 4], source: u128, destination: u128, ports: (u16, u16), vlan: u16, protocol: u8,
        vni in 0u32..1 << 24, slots: [u32; 4],
    ) {
        let tuple = Tuple { source, destination, source_port: ports.0, destination_port: ports.1, vlan, protocol };
        let [from, to, other_from, other_to] = slots.map(|slot| slot & 0xf_ffff);
        let key = Key::new(&tuple, Zone::of(vni), from, to);
        for hasher in hashers(HashKey(secret)) {
            let hash = hasher.hash(&key);
            prop_assert_eq!(hasher.hash(&key.reversed()), hash);
            prop_assert_eq!(hasher.hash(&Key::new(&tuple, Zone::of(vni), other_from, other_to)), hash);
            let mut batch = Vec::new();
            hasher.hash_each([key, key.reversed()].iter(), |key| key, |_, hash| batch.push(hash));
            prop_assert_eq!(batch, [hash, hash]);
        }
    }
}

/// Returns a key with these words, changed to valid ones.
fn changed(words: FlowWords) -> Key {
    let [a, b, c, d, ports, ends] = words;
    Key::from_words([a, b, c, d, ports, ends & 0xff_ff00])
}

/// Returns flows in a simple relation to another one. A hash that adds, folds or rotates its words
/// may give them the same value.
fn relatives(words: FlowWords, random: &mut u64) -> Vec<Key> {
    let mut all = Vec::new();
    let deltas = [
        1,
        1 << 8,
        1 << 15,
        1 << 31,
        1 << 32,
        1 << 48,
        1 << 63,
        0xffff << 48,
        u64::MAX,
        draw(random),
    ];
    let mut with = |changes: &[(usize, u64)]| {
        let mut words = words;
        changes.iter().for_each(|(at, word)| words[*at] = *word);
        all.push(changed(words));
    };
    for i in 0..6 {
        for delta in deltas {
            with(&[(i, words[i] ^ delta)]);
            with(&[(i, words[i].wrapping_add(delta))]);
            with(&[(i, words[i].rotate_left(delta.count_ones()))]);
        }
        for j in i + 1..6 {
            for delta in deltas {
                with(&[(i, words[i] ^ delta), (j, words[j] ^ delta)]);
                with(&[(i, words[i].wrapping_add(delta)), (j, words[j].wrapping_add(delta))]);
                with(&[(i, words[i].wrapping_add(delta)), (j, words[j].wrapping_sub(delta))]);
            }
            with(&[(i, words[j]), (j, words[i])]);
            with(&[(i, words[i] ^ words[j])]);
            with(&[(i, words[i].wrapping_add(words[j]))]);
        }
    }
    // Ports that go with other changes of the addresses: at each place of a word, at either end.
    for shift in (0..64).step_by(16) {
        for (end, port) in [(0, 48), (1, 48), (2, 32), (3, 32)] {
            let delta = 1 + draw(random) % 0xffff;
            let ports = words[4] ^ delta << port;
            with(&[(end, words[end] ^ delta << shift), (4, ports)]);
            with(&[
                (end, words[end].wrapping_add(delta << shift)),
                (4, words[4].wrapping_sub(delta << port)),
            ]);
        }
    }
    // One end's port with the other's address.
    let crossed =
        words[4] << 16 & (0xffff << 48) | words[4] >> 16 & (0xffff << 32) | words[4] & 0xffff_ffff;
    with(&[(4, crossed)]);
    all
}

/// Checks that no relation between words gives equal hashes with every key. Such a relation once
/// made it possible to fill the buckets of a chosen flow.
#[test]
fn no_relation_between_words_gives_equal_hashes() {
    let mut random = 7;
    let mut compared = 0u64;
    for round in 0..1000 {
        let mut words: FlowWords = std::array::from_fn(|_| draw(&mut random));
        // Half of them are as guests have them: a prefix, equal ends, small numbers.
        if round % 2 == 0 {
            (words[0], words[2], words[3]) = (0xfd00 << 48, 0xfd00 << 48, words[1]);
        }
        let key = changed(words);
        let relatives = relatives(key.words(), &mut random);
        for hasher in hashers(any_secret(&mut random)) {
            let hash = hasher.hash(&key);
            for other in relatives.iter().filter(|other| **other != key && other.reversed() != key)
            {
                compared += 1;
                assert_ne!(hasher.hash(other), hash, "{:?}: {key:?} and {other:?}", hasher.kind());
            }
        }
    }
    assert!(compared > 1_000_000, "{compared}");
}

/// A port that is folded into the interface identifier. A hash that adds them by XOR gives all of
/// these the same value.
#[test]
fn ports_do_not_make_up_for_interface_identifiers() {
    let mut random = 3;
    for hasher in (0..100).flat_map(|_| hashers(any_secret(&mut random))) {
        let mut seen = HashMap::new();
        for port in 0..1000u16 {
            let source = 0xfd00 << 112 | 0x1234_5678_9abc_def0 ^ u128::from(port) << 48;
            let destination = 0xfd00 << 112 | 2;
            let tuple = Tuple {
                source,
                destination,
                source_port: port,
                destination_port: 80,
                vlan: 0,
                protocol: 6,
            };
            *seen.entry(hasher.hash(&Key::new(&tuple, Zone::of(7), 1, 2))).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 1000, "{:?}", hasher.kind());
    }
}

#[test]
fn the_hash_spreads_neighbours() {
    let secret = [
        0x9e37_79b9_7f4a_7c15,
        0xd1b5_4a32_d192_ed03,
        0x8cb9_2ba7_2f3d_8dd7,
        0xaaaa_bbbb_cccc_dddd,
    ];
    for hasher in hashers(HashKey(secret)) {
        for part in [48, 32, 16, 0] {
            let mut used = HashMap::new();
            for (source, port) in
                (0..256u128).flat_map(|source| (0..256u16).map(move |port| (source, port)))
            {
                let (source, destination) = (0xffff_0a00_0001 + source, 0xffff_0a00_0002);
                let tuple = Tuple {
                    source,
                    destination,
                    source_port: port,
                    destination_port: 2,
                    vlan: 0,
                    protocol: 6,
                };
                *used
                    .entry((hasher.hash(&Key::new(&tuple, Zone::of(7), 1, 2)) >> part) as u16)
                    .or_insert(0u32) += 1;
            }
            // 65,536 keys in as many cells: Poisson with a mean of one.
            assert!(used.len() > 40_000, "{} cells used", used.len());
            assert!(used.values().max() < Some(&12), "{:?}", used.values().max());
        }
    }
}
