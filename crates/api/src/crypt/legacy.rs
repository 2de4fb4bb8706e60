//! The original's encryption, `aes256cbc_sha512`, as it is on the wire: AES-256-CBC with its
//! directions exchanged.
//!
//! The sender *decrypts*, the receiver encrypts. The original's description does not say so, and a
//! program that follows it cannot talk to an original. The digest tells that the key is the same,
//! and protects nothing else: an attacker who saw a message can send it again, at any time.

use super::key::Key;
use aes::{
    Aes256,
    cipher::{Array, BlockModeDecrypt, BlockModeEncrypt, KeyIvInit},
};
use sha2::{Digest, Sha512};
use std::ops::Range;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const BLOCK: usize = 16;
const DIGEST: usize = 64;
/// An IV, a digest, and the padding of nothing.
const SHORTEST: usize = BLOCK + DIGEST + BLOCK;

/// The field for `content`. An `iv` serves once.
pub(super) fn seal(key: &Key, iv: [u8; BLOCK], content: &[u8]) -> Vec<u8> {
    let mut field = content.to_vec();
    seal_in_place(key, iv, &mut field);
    field
}

/// Makes `content` the field for it; its length.
pub(super) fn seal_in_place(key: &Key, iv: [u8; BLOCK], content: &mut Vec<u8>) -> Option<usize> {
    let padding = BLOCK - content.len() % BLOCK;
    let digest = Sha512::digest(&content);
    content.reserve_exact(BLOCK + DIGEST + padding);
    content.splice(0..0, iv.into_iter().chain(digest));
    content.resize(content.len() + padding, padding as u8);
    let (blocks, _) = Array::slice_as_chunks_mut(content.get_mut(BLOCK..)?);
    cbc::Decryptor::<Aes256>::new(key.bytes().into(), &iv.into()).decrypt_blocks(blocks);
    Some(content.len())
}

/// The content of `field`, if it was made with this key.
///
/// As the original does, it takes a padding of 0 and looks at the last byte of a padding only.
pub(super) fn open(key: &Key, field: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut clear = Zeroizing::new(field.to_vec());
    let place = open_in_place(key, &mut clear)?;
    clear.get(place).map(|content| Zeroizing::new(content.to_vec()))
}

/// Opens as [`open`] does, in place. Returns the range of the content in `field`.
pub(super) fn open_in_place(key: &Key, field: &mut [u8]) -> Option<Range<usize>> {
    if field.len() < SHORTEST || !field.len().is_multiple_of(BLOCK) {
        return None;
    }
    let (iv, clear) = field.split_first_chunk_mut::<BLOCK>()?;
    let (blocks, _) = Array::slice_as_chunks_mut(clear);
    cbc::Encryptor::<Aes256>::new(key.bytes().into(), (&*iv).into()).encrypt_blocks(blocks);

    let padding = usize::from(*clear.last()?);
    let padded_well = padding <= BLOCK;
    // The digest is computed for any padding: the time that a refusal takes tells nothing of it.
    let end = clear.len() - if padded_well { padding } else { 0 };
    let (digest, content) = clear.get(..end)?.split_at_checked(DIGEST)?;
    let same = Sha512::digest(content).ct_eq(digest);
    (bool::from(same) && padded_well).then_some(BLOCK + DIGEST..BLOCK + end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> Key {
        Key::new(std::array::from_fn(|place| place as u8))
    }

    /// Made by the original's routine.
    const VECTOR: &str = "00000000000000000000000000000000\
        53617fbc4dee10da6b1eb1c1853011ea2ec2107e10fb45232445e379a96ceda8\
        a6bbecd9e7caaef5340bf85144bdcd94a895408a27e4fbe3376304402c7d0ce1\
        0c8e6a42fffb030f280541d32cf41912";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn the_vector_of_the_original() {
        assert_eq!(seal(&key(), [0; 16], b"hello"), bytes(VECTOR));
        assert_eq!(open(&key(), &bytes(VECTOR)).unwrap().as_slice(), b"hello");
    }

    #[test]
    fn lengths() {
        for (content, field) in [
            (0, 96),
            (5, 96),
            (15, 96),
            (16, 112),
            (31, 112),
            (32, 128),
            (33, 128),
            (100_000, 100_096),
        ] {
            let content = vec![0x5a; content];
            let sealed = seal(&key(), [9; 16], &content);
            assert_eq!(sealed.len(), field);
            assert_eq!(open(&key(), &sealed).unwrap().as_slice(), content);
        }
    }

    /// Seals as [`seal`] does, with the padding that is given.
    fn padded(content: &[u8], padding: &[u8]) -> Vec<u8> {
        let mut clear = Sha512::digest(content).to_vec();
        clear.extend_from_slice(content);
        clear.extend_from_slice(padding);
        let (blocks, rest) = Array::slice_as_chunks_mut(&mut clear);
        assert!(rest.is_empty());
        cbc::Decryptor::<Aes256>::new(key().bytes().into(), &[0; 16].into()).decrypt_blocks(blocks);
        [vec![0; 16], clear].concat()
    }

    #[test]
    fn paddings() {
        let eleven = |last: u8| [[0xee; 10].as_slice(), &[last]].concat();
        for (what, content, padding, taken) in [
            ("usual", &b"hello"[..], vec![11; 11], true),
            ("only the last byte counts", b"hello", eleven(11), true),
            ("the wrong length", b"hello", eleven(10), false),
            ("more than a block", b"hello", eleven(17), false),
            ("far too much", b"hello", eleven(255), false),
            ("none: the content ends with 0", b"sixteen bytes..\0", vec![], true),
            ("none, where there is one", b"hello", eleven(0), false),
            ("a whole block", b"sixteen bytes...", vec![16; 16], true),
        ] {
            let opened = open(&key(), &padded(content, &padding));
            assert_eq!(
                opened.as_ref().map(|opened| opened.as_slice()),
                taken.then_some(content),
                "{what}"
            );
        }
    }

    #[test]
    fn what_is_refused() {
        let good = bytes(VECTOR);
        for cut in 0..good.len() {
            assert!(open(&key(), &good[..cut]).is_none(), "cut to {cut}");
        }
        assert!(open(&key(), &[good.clone(), vec![0; 16]].concat()).is_none(), "a block too many");
        assert!(open(&Key::new([7; 32]), &good).is_none(), "another key");
        // A client that follows the description of the original, and encrypts.
        let digest = Sha512::digest(b"hello");
        let mut textbook = [digest.as_slice(), b"hello", &[11; 11]].concat();
        let (blocks, _) = Array::slice_as_chunks_mut(&mut textbook);
        cbc::Encryptor::<Aes256>::new(key().bytes().into(), &[0; 16].into()).encrypt_blocks(blocks);
        assert!(open(&key(), &[vec![0; 16], textbook].concat()).is_none(), "the usual direction");
    }

    /// All bits but those of padding that the receiver ignores. A change of the last block changes
    /// the last byte, almost always.
    #[test]
    fn a_changed_bit_shows() {
        let good = seal(&key(), [3; 16], b"sixteen bytes...");
        for bit in 0..(good.len() - 16) * 8 {
            let mut changed = good.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&key(), &changed).is_none(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened(content: Vec<u8>, secret: [u8; 32], iv: [u8; 16]) {
            let key = Key::new(secret);
            let opened = open(&key, &seal(&key, iv, &content)).unwrap();
            prop_assert_eq!(opened.as_slice(), content);
        }

        #[test]
        fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 0..400), secret: [u8; 32]) {
            prop_assert!(open(&Key::new(secret), &noise).is_none());
        }

        #[test]
        fn whole_blocks_of_noise_are_refused(blocks in proptest::collection::vec(any::<[u8; 16]>(), 6..40), secret: [u8; 32]) {
            prop_assert!(open(&Key::new(secret), blocks.as_flattened()).is_none());
        }
    }
}
