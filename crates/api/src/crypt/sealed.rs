//! The sound form, `xchacha20_poly1305`: only a holder of the key can read, make, change or move a
//! message.
//!
//! A message is a nonce, then the content under XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03).
//! The nonce is long enough to be made at random. Each direction has a key of its own (HKDF, RFC
//! 5869), so that a request cannot come back as its reply. A reply is bound to the nonce of its
//! request, so that it answers nothing else.

use super::key::Key;
use chacha20poly1305::{
    KeyInit, Tag, XChaCha20Poly1305, XNonce,
    aead::{Aead, AeadInOut, Payload},
};
use hkdf::Hkdf;
use sha2::Sha256;
use std::ops::Range;
use zeroize::Zeroizing;

/// Bytes of what tells that content is sound.
const TAG: usize = 16;

/// Random number, one per message.
pub(super) type Nonce = [u8; 24];

/// The keys of both directions.
pub(super) struct Keys {
    pub(super) request: Sealer,
    pub(super) reply: Sealer,
}

/// The key of one direction.
pub(super) struct Sealer(XChaCha20Poly1305);

impl Keys {
    pub(super) fn of(key: &Key) -> Self {
        Self {
            request: Sealer::derived(key, b"butterfly api request"),
            reply: Sealer::derived(key, b"butterfly api reply"),
        }
    }
}

impl Sealer {
    fn derived(key: &Key, info: &[u8]) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        // It fails for more than 255 digests.
        let _ = Hkdf::<Sha256>::new(None, key.bytes()).expand(info, bytes.as_mut_slice());
        let key: &[u8; 32] = &bytes;
        Self(XChaCha20Poly1305::new(key.into()))
    }

    /// The field for `content`. A `nonce` serves once. None if that is longer than 256 GiB.
    pub(super) fn seal(&self, nonce: &Nonce, associated: &[u8], content: &[u8]) -> Option<Vec<u8>> {
        let sealed = self
            .0
            .encrypt(&XNonce::from(*nonce), Payload { msg: content, aad: associated })
            .ok()?;
        Some([nonce, sealed.as_slice()].concat())
    }

    /// Encrypts `content` at its place; the tag that goes behind it. The nonce goes before it.
    pub(super) fn seal_in_place(
        &self,
        nonce: &Nonce,
        associated: &[u8],
        content: &mut [u8],
    ) -> Option<[u8; TAG]> {
        self.0
            .encrypt_inout_detached(&XNonce::from(*nonce), associated, content.into())
            .ok()
            .map(Into::into)
    }

    /// Opens as [`Self::open`] does, in place. Returns the nonce, and the range of the content in
    /// `field`.
    pub(super) fn open_in_place(
        &self,
        associated: &[u8],
        field: &mut [u8],
    ) -> Option<(Nonce, Range<usize>)> {
        let (nonce, sealed) = field.split_first_chunk_mut::<24>()?;
        let (content, tag) = sealed.split_last_chunk_mut::<TAG>()?;
        let nonce = *nonce;
        let place = nonce.len()..nonce.len() + content.len();
        let tag = Tag::from(*tag);
        self.0
            .decrypt_inout_detached(&XNonce::from(nonce), associated, content.into(), &tag)
            .ok()?;
        Some((nonce, place))
    }

    /// Nonce and content of `field`, if it was made with this key and bound to the same.
    pub(super) fn open(
        &self,
        associated: &[u8],
        field: &[u8],
    ) -> Option<(Nonce, Zeroizing<Vec<u8>>)> {
        let (nonce, sealed) = field.split_first_chunk()?;
        let content =
            self.0.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: associated }).ok()?;
        Some((*nonce, Zeroizing::new(content)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(byte: u8) -> Keys {
        Keys::of(&Key::new([byte; 32]))
    }

    /// Made with libsodium (PyNaCl), and HKDF from Python's hmac: other people's clients can do it.
    const VECTOR: &str = "424242424242424242424242424242424242424242424242d34b2d22c789aeec6e1bd76585d1476386ceedc20d";

    #[test]
    fn the_vector_of_other_libraries() {
        let key = Key::new(std::array::from_fn(|place| place as u8));
        let field = Keys::of(&key).reply.seal(&[0x42; 24], &[0x17; 24], b"hello").unwrap();
        let hex: String = field.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, VECTOR);
    }

    #[test]
    fn what_is_refused() {
        let (keys, nonce) = (keys(1), [7; 24]);
        let good = keys.request.seal(&nonce, b"", b"content").unwrap();
        assert_eq!(good.len(), 24 + 7 + 16);
        let (found, content) = keys.request.open(b"", &good).unwrap();
        assert_eq!((found, content.as_slice()), (nonce, b"content".as_slice()));

        assert!(self::keys(2).request.open(b"", &good).is_none(), "another key");
        assert!(keys.reply.open(b"", &good).is_none(), "the other direction");
        assert!(keys.request.open(b"x", &good).is_none(), "bound to something");
        for cut in 0..good.len() {
            assert!(keys.request.open(b"", &good[..cut]).is_none(), "cut to {cut}");
        }
        assert!(keys.request.open(b"", &[good.as_slice(), b"x"].concat()).is_none(), "longer");
        for bit in 0..good.len() * 8 {
            let mut changed = good.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(keys.request.open(b"", &changed).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn a_reply_answers_its_own_request_only() {
        let keys = keys(1);
        let reply = keys.reply.seal(&[1; 24], &[2; 24], b"content").unwrap();
        assert!(keys.reply.open(&[2; 24], &reply).is_some());
        assert!(keys.reply.open(&[3; 24], &reply).is_none());
        assert!(keys.reply.open(&[], &reply).is_none());
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened(content: Vec<u8>, secret: [u8; 32], nonce: [u8; 24], bound: Vec<u8>) {
            let keys = Keys::of(&Key::new(secret));
            let field = keys.reply.seal(&nonce, &bound, &content).unwrap();
            let (found, opened) = keys.reply.open(&bound, &field).unwrap();
            prop_assert_eq!((found, opened.as_slice()), (nonce, content.as_slice()));
        }

        #[test]
        fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 0..400), secret: [u8; 32]) {
            let keys = Keys::of(&Key::new(secret));
            prop_assert!(keys.request.open(b"", &noise).is_none() && keys.reply.open(b"", &noise).is_none());
        }
    }
}
