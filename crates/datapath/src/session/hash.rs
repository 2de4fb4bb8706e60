//! The hash of sessions: a keyed pseudo-random function of every word of a flow, the same for both
//! directions.
//!
//! Guests choose addresses and ports. If changes of two words could cancel each other, a few flows
//! could fill the buckets of any other. So the hash is made of AES rounds where the processor has
//! them (`butterfly_mem::cpu`). Elsewhere it is SipHash-1-3 (Aumasson and Bernstein, 2012) of the
//! ends in ascending order. Neither includes the two vnics.

use butterfly_mem::cpu::{Aes, FlowWords, RoundKeys};

use crate::{engine::sip::sip13, session::key::Key};

/// Secret of the hash. Without it, an attacker cannot choose flows that collide.
#[derive(Clone, Copy)]
pub(crate) struct HashKey(pub [u64; 4]);

/// Function of a table, as its file names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HashKind {
    Aes = 1,
    Sip = 2,
}

impl HashKind {
    /// Returns the best function of this processor.
    pub fn here() -> HashKind {
        if Aes::detect().is_some() { HashKind::Aes } else { HashKind::Sip }
    }
}

/// The function, with its key.
#[derive(Clone, Copy)]
pub(crate) struct Hasher {
    key: HashKey,
    aes: Option<(Aes, RoundKeys)>,
}

impl Hasher {
    /// Returns the best function of this processor.
    pub fn new(key: HashKey) -> Hasher {
        Hasher { key, aes: Aes::detect().map(|aes| (aes, aes.keys(key.0))) }
    }

    /// Returns the function of a processor without AES rounds.
    #[cfg(test)]
    pub fn without_aes(key: HashKey) -> Hasher {
        Hasher { key, aes: None }
    }

    pub fn key(&self) -> HashKey {
        self.key
    }

    pub fn kind(&self) -> HashKind {
        if self.aes.is_some() { HashKind::Aes } else { HashKind::Sip }
    }

    /// Returns the hash, the same for both orientations of a flow, and for the same flow between
    /// other vnics.
    pub fn hash(&self, key: &Key) -> u64 {
        match &self.aes {
            Some((aes, rounds)) => aes.hash(rounds, &words(key)),
            None => sip(self.key, key),
        }
    }

    /// Hashes the flows of a batch, and passes each to `take` with its hash.
    #[inline(always)]
    pub fn hash_each<T>(
        &self,
        flows: impl Iterator<Item = T>,
        key: impl Fn(&T) -> &Key,
        mut take: impl FnMut(T, u64),
    ) {
        match &self.aes {
            Some((aes, rounds)) => aes.hash_each(rounds, flows, |flow| words(key(flow)), take),
            None => flows.for_each(|flow| {
                let hash = sip(self.key, key(&flow));
                take(flow, hash);
            }),
        }
    }
}

/// Returns the words that are hashed: all but the vnics.
#[inline(always)]
fn words(key: &Key) -> FlowWords {
    let [a, b, c, d, ports, ends] = key.words();
    [a, b, c, d, ports, ends & FLOW]
}

/// Mask of the VLAN, and of whether a router joins the ends, in the last word of a key.
const FLOW: u64 = 0xff_ff00;

fn sip(HashKey([k0, k1, ..]): HashKey, key: &Key) -> u64 {
    let [a, b, c, d, ports, ends] = key.words();
    let ascending = (a, b, ports >> 48) <= (c, d, ports >> 32 & 0xffff);
    let [a, b, c, d, ports, _] =
        if ascending { [a, b, c, d, ports, ends] } else { key.reversed().words() };
    sip13([k0, k1], [a, b, c, d, ports, ends & FLOW])
}

#[cfg(test)]
impl HashKey {
    /// Returns the hash in a table with this key.
    pub fn hash(&self, key: &Key) -> u64 {
        Hasher::new(*self).hash(key)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
