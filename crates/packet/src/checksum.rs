//! The internet checksum (RFC 1071, RFC 1624).

use std::net::{Ipv4Addr, Ipv6Addr};

/// A ones' complement sum over a stream of bytes, pushed in pieces of any length and alignment.
///
/// The sum is kept in memory order (16-bit words as the host loads them), so that bytes are never
/// swapped one by one; only [`Self::fold`] converts. A piece that starts at an odd position of the
/// stream is accounted for.
///
/// ```
/// use butterfly_packet::checksum::Sum;
/// let bytes = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// let checksum = Sum::of(&bytes).checksum();
/// assert_eq!(Sum::of(&bytes[..7]).push(&bytes[7..]).checksum(), checksum);
/// let mut sent = bytes;
/// sent[10..12].copy_from_slice(&checksum.to_be_bytes());
/// assert!(Sum::of(&sent).is_valid());
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sum {
    sum: u64,
    odd: bool,
}

impl Sum {
    /// Sum of no bytes.
    pub const EMPTY: Sum = Sum { sum: 0, odd: false };

    /// Continues a sum made elsewhere. `sum` is one of native-order 16-bit words, unfolded. `odd`
    /// is true if the number of bytes was odd: the last one then counts as if a zero byte followed.
    #[inline]
    pub const fn from_native(sum: u64, odd: bool) -> Sum {
        Sum { sum, odd }
    }

    /// Returns the sum of `bytes`.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        Sum { sum: native_sum(bytes), odd: bytes.len() % 2 == 1 }
    }

    /// Appends `bytes`.
    #[inline]
    #[must_use]
    pub fn push(self, bytes: &[u8]) -> Sum {
        self.combine(Sum::of(bytes))
    }

    /// Appends what `next` summed: the sum of both streams, one behind the other.
    #[inline]
    #[must_use]
    pub const fn combine(self, next: Sum) -> Sum {
        let addend = if self.odd { fold(next.sum).swap_bytes() as u64 } else { next.sum };
        Sum { sum: add(self.sum, addend), odd: self.odd != next.odd }
    }

    /// Appends a 16-bit number, given in host order, as it stands in the packet (network order).
    /// Position in the stream must be even.
    #[inline]
    #[must_use]
    pub const fn push_u16(self, value: u16) -> Sum {
        self.combine(Sum { sum: value.to_be() as u64, odd: false })
    }

    /// Sums the pseudo header of TCP, UDP and ICMPv6 over IPv4 (RFC 9293, 3.1); `len` of the
    /// segment in bytes.
    #[inline]
    pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Sum {
        Sum::of(&source.octets())
            .push(&destination.octets())
            .push_u16(protocol.into())
            .push_u16(len)
    }

    /// Sums the pseudo header over IPv6 (RFC 8200, 8.1); `len` of the upper-layer packet in bytes.
    #[inline]
    pub fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u32) -> Sum {
        Sum::of(&source.octets())
            .push(&destination.octets())
            .push(&len.to_be_bytes())
            .push_u16(protocol.into())
    }

    /// Returns the 16-bit sum in host order, not complemented. Over a stream that holds its own
    /// right checksum it is 0xffff.
    #[inline]
    pub const fn fold(self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// Returns the checksum to write, in host order: the complement of [`Self::fold`].
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns the checksum to write into a UDP header, in host order. Like [`Self::checksum`], but
    /// never 0, which means "none" (RFC 768).
    #[inline]
    pub const fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            sum => sum,
        }
    }

    /// True if a stream that holds its own checksum is intact.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

/// Returns a checksum after a 16-bit word it covers changed from `old` to `new` (RFC 1624, equation
/// 3). All three are in host order.
///
/// ```
/// use butterfly_packet::checksum::{Sum, update};
/// let before = Sum::of(&[0x12, 0x34, 64, 17]).checksum();
/// assert_eq!(update(before, 0x4011, 0x3f11), Sum::of(&[0x12, 0x34, 63, 17]).checksum());
/// ```
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = !checksum as u64 + !old as u64 + new as u64;
    !fold(sum)
}

/// Addition with end-around carry.
#[inline]
const fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}

#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[inline]
fn native_sum(bytes: &[u8]) -> u64 {
    // A u64 of 32-bit addends holds 2^32 of them: more than any slice of packet bytes has.
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let (halves, last) = rest.as_chunks::<2>();
    sum += halves.iter().map(|half| u64::from(u16::from_ne_bytes(*half))).sum::<u64>();
    if let [byte] = last {
        sum += u64::from(u16::from_ne_bytes([*byte, 0]));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition in RFC 1071, word by word.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn rfc_1071_example() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), 0xddf2);
        assert_eq!(sum.checksum(), 0x220d);
    }

    #[test]
    fn udp_never_sends_zero() {
        assert_eq!(Sum::of(&[0xff, 0xff]).checksum(), 0);
        assert_eq!(Sum::of(&[0xff, 0xff]).udp_checksum(), 0xffff);
    }

    #[test]
    fn carries_wrap_around() {
        let full = Sum::from_native(u64::MAX, false);
        assert_eq!(full.combine(full).fold(), 0xffff);
        assert_eq!(full.push_u16(1).fold(), 1);
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(Sum::of(&bytes).fold(), reference(&bytes));
        }

        #[test]
        fn pieces_equal_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..300), cuts in proptest::collection::vec(0usize..300, 0..5)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let sum = cuts.windows(2).fold(Sum::EMPTY, |sum, range| sum.push(&bytes[range[0]..range[1]]));
            prop_assert_eq!(sum.fold(), reference(&bytes));
        }

        #[test]
        fn update_equals_a_new_sum(mut bytes in proptest::collection::vec(any::<u8>(), 20), word in 0usize..10, new: u16) {
            bytes[0] = 0x45; // not all zero before or after
            let word = word.max(1);
            let before = Sum::of(&bytes).checksum();
            let old = u16::from_be_bytes([bytes[2 * word], bytes[2 * word + 1]]);
            bytes[2 * word..2 * word + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), Sum::of(&bytes).checksum());
        }
    }
}
