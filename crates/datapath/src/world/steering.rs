//! Steering: the pair of queues by which a machine with several gets each flow.
//!
//! A machine gets a flow by the pair by which it sends it, as its own processor then has both
//! directions. A table has an entry for each hash of flows, the same for both directions: the pair
//! that is wanted, and the one in use. An entry changes its pair only when the machine has read
//! everything of the old one, or got nothing by the entry for a while: so a flow stays in order. It
//! changes while the old one's ring is locked, and who delivers looks again when it has its locks.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use crate::engine::place::MAX_PAIRS;

const ENTRIES: usize = 1024;
/// In place of a pair: none yet.
const NONE: u8 = u8::MAX;
/// Tenths of a second, modulo 256, in which nothing came by an entry, after which its flows are not
/// in any ring any more.
const QUIET: u8 = 2;

#[derive(Default)]
struct Entry {
    /// The pair by which the machine sent last, or [`NONE`].
    wanted: AtomicU8,
    /// The pair by which it gets its flows, or [`NONE`].
    current: AtomicU8,
    /// Time of the last frame to it.
    seen: AtomicU8,
}

/// A machine's table. Any worker writes it.
pub(crate) struct Steering {
    key: [u64; 2],
    entries: Box<[Entry; ENTRIES]>,
}

impl Default for Steering {
    fn default() -> Steering {
        let key = [1, 2].map(|word| RandomState::new().hash_one(word));
        let entry = |_| Entry { wanted: NONE.into(), current: NONE.into(), seen: 0.into() };
        Steering { key, entries: Box::new(std::array::from_fn(entry)) }
    }
}

impl Steering {
    fn entry(&self, head: &[u8]) -> Option<&Entry> {
        self.entries.get(hash(self.key, head) as usize % ENTRIES)
    }

    /// Notes that the machine sent a frame by this pair.
    #[inline(always)]
    pub fn sent(&self, head: &[u8], pair: u8) {
        if let Some(entry) = self.entry(head)
            && entry.wanted.load(Relaxed) != pair
        {
            entry.wanted.store(pair, Relaxed);
        }
    }

    /// Returns the pair by which the machine gets a frame, with the number of its entry, and keeps
    /// that in mind if the frame is `real`. `open` has a bit for each pair that may be. `leaves`
    /// tells whether a flow may leave a pair, and keeps that pair's ring locked then, until this
    /// returns: the machine has read all that the ring held, or got nothing by the entry for a
    /// while, which it is told. `has_room` tells whether the machine gave a ring buffers: Linux
    /// does so a moment after it began to use a pair.
    #[inline(always)]
    pub fn choose(
        &self,
        head: &[u8],
        open: u16,
        (tenths, real): (u32, bool),
        (leaves, has_room): (impl Fn(u8, bool) -> bool, impl Fn(u8) -> bool),
    ) -> (u8, u16) {
        let hash = hash(self.key, head);
        let number = (hash as usize % ENTRIES) as u16;
        let Some(entry) = self.entries.get(usize::from(number)) else { return (0, 0) };
        let (wanted, current) = (entry.wanted.load(Relaxed), entry.current.load(Relaxed));
        let now = tenths as u8;
        let last = entry.seen.load(Relaxed);
        if real && last != now {
            entry.seen.store(now, Relaxed);
        }
        let is_open = |pair: u8| open.checked_shr(pair.into()).unwrap_or(0) & 1 == 1;
        // A flow that the machine never sent stays where it is.
        let wanted = match (is_open(wanted), is_open(current)) {
            (true, _) => wanted,
            (false, true) => current,
            (false, false) => nth(open, (hash >> 32) as u32),
        };
        let quiet = now.wrapping_sub(last) >= QUIET;
        if wanted == current || is_open(current) && !leaves(current, quiet) {
            return (current, number);
        }
        let to = match (has_room(wanted), is_open(current)) {
            (true, _) => wanted,
            (false, true) => current,
            (false, false) => 0,
        };
        if real && to != current {
            entry.current.store(to, Relaxed);
        }
        (to, number)
    }

    /// Returns whether the pair in use of an entry is this one.
    #[inline(always)]
    pub fn is_current(&self, (pair, number): (u8, u16)) -> bool {
        let entry = self.entries.get(usize::from(number));
        entry.is_none_or(|entry| entry.current.load(Relaxed) == pair)
    }

    #[cfg(test)]
    fn pair_of(
        &self,
        head: &[u8],
        open: u16,
        when: (u32, bool),
        look: (impl Fn(u8, bool) -> bool, impl Fn(u8) -> bool),
    ) -> u8 {
        self.choose(head, open, when, look).0
    }
}

/// Returns one of the pairs of which `open` has a bit, by a number; 0 if there are none.
fn nth(open: u16, number: u32) -> u8 {
    let nth = number.checked_rem(open.count_ones()).unwrap_or(0);
    let left = (0..nth).fold(open, |left, _| left & left.wrapping_sub(1));
    left.trailing_zeros().checked_rem(MAX_PAIRS as u32).unwrap_or(0) as u8
}

/// Returns a keyed hash of a frame's flow, the same for both directions: of addresses and ports, of
/// addresses alone if there are no ports or if it may be a fragment, of link addresses if it is not
/// IP or has a tag.
#[inline(always)]
fn hash(key: [u64; 2], head: &[u8]) -> u64 {
    let ends = |source: [u64; 2], destination: [u64; 2], protocol: u8| {
        let end = |[high, low]: [u64; 2]| mix(key, [high, low]);
        mix(key, [end(source).wrapping_add(end(destination)), protocol.into()])
    };
    match head {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, 0x45, ..] => {
            let parts = [word(head, 20, 2) & 0x3fff, word(head, 23, 1)];
            let [fragment, protocol] = parts;
            let ports = fragment == 0 && has_ports(protocol as u8);
            let port = |at| if ports { word(head, at, 2) } else { 0 };
            let end = |address, at| [port(at), word(head, address, 4)];
            ends(end(26, 34), end(30, 36), protocol as u8)
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, ..] => {
            let protocol = word(head, 20, 1) as u8;
            let port = |at| if has_ports(protocol) { word(head, at, 2) } else { 0 };
            let end = |address, at| {
                [word(head, address, 8), word(head, address + 8, 8).wrapping_add(port(at) << 48)]
            };
            ends(end(22, 54), end(38, 56), protocol)
        }
        _ => ends([0, word(head, 6, 6)], [0, word(head, 0, 6)], 0),
    }
}

/// TCP, UDP and SCTP begin with their ports.
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 132)
}

/// Returns so many bytes of a frame, at most eight, as a number. Missing ones count as none.
#[inline(always)]
fn word(head: &[u8], at: usize, len: usize) -> u64 {
    let bytes = head.get(at..).unwrap_or_default();
    bytes.iter().take(len).fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Mixes two words with a key.
#[inline(always)]
pub(crate) fn mix([a, b]: [u64; 2], [high, low]: [u64; 2]) -> u64 {
    let product = u128::from(high ^ a) * u128::from(low ^ b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::{build, mac::Mac};

    fn udp(source: u8, port: u16, back: bool) -> Vec<u8> {
        let ends = ([10, 0, 0, source], [10, 0, 1, 1]);
        let (from, to) = if back { (ends.1, ends.0) } else { ends };
        let ports = if back { (53, port) } else { (port, 53) };
        build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
            .ipv4(from, to)
            .udp(ports.0, ports.1, &[0; 20])
    }

    type Leaves = fn(u8, bool) -> bool;
    type HasRoom = fn(u8) -> bool;
    const READ: (Leaves, HasRoom) = (|_, _| true, |_| true);
    const UNREAD: (Leaves, HasRoom) = (|_, quiet| quiet, |_| true);

    #[test]
    fn a_flow_comes_by_the_pair_by_which_it_is_sent() {
        let steering = Steering::default();
        for port in 0..200 {
            let pair = (port % 4) as u8;
            steering.sent(&udp(1, port, false), pair);
            let got = steering.pair_of(&udp(1, port, true), 0b1111, (0, true), READ);
            assert_eq!(got, pair, "of the flow that was sent last");
        }
    }

    #[test]
    fn flows_that_are_only_received_are_spread() {
        let steering = Steering::default();
        let mut got = [0u32; MAX_PAIRS];
        for port in 0..2000 {
            got[usize::from(steering.pair_of(&udp(1, port, true), 0b10_1011, (0, true), READ))] +=
                1;
        }
        for (pair, flows) in got.into_iter().enumerate() {
            let expected = if 0b10_1011 >> pair & 1 == 1 { 350..650 } else { 0..1 };
            assert!(expected.contains(&flows), "{pair}: {got:?}");
        }
        // A pair that opens later leaves them where they are.
        let moved = |open| {
            (0..2000)
                .filter(|port| steering.pair_of(&udp(1, *port, true), open, (0, true), READ) == 2)
                .count()
        };
        assert_eq!(moved(0b11_1111), 0);
    }

    #[test]
    fn a_flow_moves_when_nothing_of_it_is_left_behind() {
        let steering = Steering::default();
        let (out, back) = (udp(1, 1, false), udp(1, 1, true));
        steering.sent(&out, 1);
        assert_eq!(steering.pair_of(&back, 0b111, (7, true), UNREAD), 1, "its first one");
        steering.sent(&out, 2);
        assert_eq!(steering.pair_of(&back, 0b111, (7, true), UNREAD), 1);
        assert_eq!(steering.pair_of(&back, 0b111, (8, true), UNREAD), 1);
        assert_eq!(steering.pair_of(&back, 0b111, (8, true), (|pair, _| pair == 1, |_| true)), 2);
        steering.sent(&out, 0);
        assert_eq!(steering.pair_of(&back, 0b111, (9, true), UNREAD), 2);
        assert_eq!(
            steering.pair_of(&back, 0b111, (11, true), UNREAD),
            0,
            "nothing came for a while"
        );
        // A pair that closed is left at once, and so is a wish for one.
        steering.sent(&out, 2);
        assert_eq!(steering.pair_of(&back, 0b110, (11, true), UNREAD), 2);
        assert_eq!(steering.pair_of(&back, 0b001, (11, true), UNREAD), 0);
        assert_eq!(steering.pair_of(&back, 0, (11, true), UNREAD), 0, "no pair is open");
    }

    /// A machine that begins to use a pair gives it buffers a moment later.
    #[test]
    fn a_pair_without_buffers_gets_nothing_yet() {
        let steering = Steering::default();
        let (out, back) = (udp(1, 1, false), udp(1, 1, true));
        let empty: (Leaves, HasRoom) = (|_, _| true, |pair| pair == 0);
        steering.sent(&out, 2);
        assert_eq!(steering.pair_of(&back, 0b111, (1, true), empty), 0);
        let unread_at_0: (Leaves, HasRoom) = (|pair, _| pair != 0, |_| true);
        assert_eq!(steering.pair_of(&back, 0b111, (1, true), unread_at_0), 0, "in order");
        assert_eq!(steering.pair_of(&back, 0b111, (1, true), READ), 2);
        steering.sent(&out, 1);
        assert_eq!(steering.pair_of(&back, 0b111, (1, true), empty), 2);
        assert_eq!(steering.pair_of(&back, 0b011, (1, true), empty), 0, "its pair closed");
    }

    /// An explanation changes nothing.
    #[test]
    fn what_is_not_real_leaves_no_trace() {
        let steering = Steering::default();
        let (out, back) = (udp(1, 1, false), udp(1, 1, true));
        steering.sent(&out, 1);
        assert_eq!(steering.pair_of(&back, 0b111, (1, false), READ), 1);
        steering.sent(&out, 2);
        assert_eq!(steering.pair_of(&back, 0b111, (1, true), UNREAD), 2, "it was nowhere yet");
    }

    #[test]
    fn fragments_go_by_addresses() {
        let steering = Steering::default();
        let fragment = |offset: u16, port: u16| {
            let mut frame = udp(1, port, true);
            frame[20..22].copy_from_slice(&offset.to_be_bytes());
            frame
        };
        let pairs: std::collections::BTreeSet<_> = (0..100)
            .map(|n| {
                steering.pair_of(
                    &fragment(if n == 0 { 0x2000 } else { n }, n),
                    0xf,
                    (0, true),
                    READ,
                )
            })
            .collect();
        assert_eq!(pairs.len(), 1);
        for short in [&[][..], &[0; 5], &[0; 13], &[8; 14]] {
            assert!(steering.pair_of(short, 0xffff, (0, true), READ) < 16);
        }
    }

    #[test]
    fn pairs_are_numbered_by_their_bits() {
        assert_eq!([0, 1, 2, 3].map(|number| nth(0b1_0011, number)), [0, 1, 4, 0]);
        assert_eq!((nth(0, 7), nth(1 << 15, 7), nth(u16::MAX, 15)), (0, 15, 15));
    }
}
