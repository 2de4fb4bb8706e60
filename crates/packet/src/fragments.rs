//! Cutting of IPv4 packets into fragments, as routers do it (RFC 791, 2.3 and 3.2; RFC 1812,
//! 4.2.2.7).

use std::ops::Range;

use crate::{
    Error,
    checksum::Sum,
    ipv4::{self, Ipv4},
};

/// Offset of the total length in a header.
const TOTAL_LEN: usize = 2;
/// Offset of flags and fragment offset in a header.
const PLACE: usize = 6;
/// Flag of the word at [`PLACE`]: more fragments follow.
const MORE: u16 = 0x2000;
/// Flag there that is reserved, and zero.
const RESERVED: u16 = 0x8000;
/// Bytes that one step of the fragment offset stands for.
const UNIT: usize = 8;
/// Option that ends all options.
const END_OF_OPTIONS: u8 = 0;
/// Option of one byte that means nothing.
const NO_OPERATION: u8 = 1;
/// Bit in the kind of an option that every fragment has to have.
const COPIED: u8 = 0x80;

/// Walks the fragments of an IPv4 packet, which may be a fragment itself.
///
/// ```
/// use butterfly_packet::{Mac, build, fragments::Fragments, ipv4::Ipv4};
/// let frame = build::ethernet(Mac::ZERO, Mac::ZERO)
///     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
///     .udp(1, 2, &[7; 72]);
/// let packet = &frame[14..];
/// let mut fragments = Fragments::new(packet, 76).unwrap();
/// assert_eq!(fragments.count(), 2);
/// let (header, payload) = fragments.next().unwrap();
/// assert_eq!((Ipv4::parse(header).unwrap().total_len(), payload), (76, 20..76));
/// let (header, payload) = fragments.next().unwrap();
/// assert_eq!((Ipv4::parse(header).unwrap().fragment_offset(), payload), (56, 76..100));
/// assert!(fragments.next().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Fragments {
    first: Header,
    later: Header,
    /// Flags and offset of the packet itself.
    place: u16,
    mtu: usize,
    /// Payload of the packet, as offsets from the first byte of its header.
    payload: Range<usize>,
    /// Start of the next fragment's payload.
    at: usize,
}

/// A header of a fragment.
#[derive(Clone, Copy, Debug)]
struct Header {
    bytes: [u8; ipv4::MAX_LEN],
    len: usize,
}

impl Header {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the most bytes of payload behind it in a fragment of `mtu` bytes that is not the
    /// last.
    fn step(&self, mtu: usize) -> usize {
        mtu.saturating_sub(self.len) / UNIT * UNIT
    }
}

impl Fragments {
    /// Begins to cut a packet into fragments of at most `mtu` bytes, header included. `packet` has
    /// at least its whole header, with a right length; payload is not read. Bytes behind the packet
    /// are not part of any fragment.
    ///
    /// [`Error::Malformed`]: this is no IPv4 or forbids fragments; it has the reserved flag or an
    /// option without a sense; it is a fragment whose successor would have no place, or that ends
    /// behind the longest packet there is; or no fragment has room for 8 bytes of payload.
    /// [`Error::Truncated`]: the header is incomplete.
    pub fn new(packet: &[u8], mtu: usize) -> Result<Fragments, Error> {
        let ip = Ipv4::parse(packet)?;
        let payload = ip.header_len()..ip.total_len();
        let place = packet.get(PLACE..).and_then(|rest| rest.first_chunk());
        let place = u16::from_be_bytes(*place.ok_or(Error::Truncated)?);
        let is_odd = ip.more_fragments() && !payload.len().is_multiple_of(UNIT);
        let end = ip.fragment_offset() + payload.len();
        if ip.dont_fragment() || place & RESERVED != 0 || is_odd || end > usize::from(u16::MAX) {
            return Err(Error::Malformed);
        }
        let mut copied = [0; ipv4::MAX_LEN];
        let copied = copied_options(ip.options(), &mut copied).ok_or(Error::Malformed)?;
        let headers = header(packet, ip.options()).zip(header(packet, copied));
        let (first, later) = headers.ok_or(Error::Malformed)?;
        let at = payload.start;
        let fits = first.step(mtu) >= UNIT;
        fits.then_some(Fragments { first, later, place, mtu, payload, at }).ok_or(Error::Malformed)
    }

    /// Returns the bytes of payload in the first fragment.
    pub fn first_payload(&self) -> usize {
        let all = self.payload.len();
        if all + self.first.len <= self.mtu { all } else { self.first.step(self.mtu) }
    }

    /// Returns the number of fragments from here on.
    pub fn count(&self) -> usize {
        let header = self.next_header();
        let left = self.payload.end - self.at;
        if left + header.len <= self.mtu {
            return usize::from(left > 0 || self.at == self.payload.start);
        }
        let left = left - header.step(self.mtu);
        let last = self.mtu - self.later.len;
        1 + left.saturating_sub(last).div_ceil(self.later.step(self.mtu).max(UNIT)) + 1
    }

    fn next_header(&self) -> &Header {
        if self.at == self.payload.start { &self.first } else { &self.later }
    }

    /// Returns the header of the next fragment, and its payload as offsets from the first byte of
    /// the packet's header; `None` after the last.
    #[expect(clippy::should_implement_trait, reason = "the header is lent")]
    pub fn next(&mut self) -> Option<(&[u8], Range<usize>)> {
        let is_first = self.at == self.payload.start;
        if self.at > self.payload.end || self.at == self.payload.end && !is_first {
            return None;
        }
        let header = *self.next_header();
        let left = self.payload.end - self.at;
        let is_last = left + header.len <= self.mtu;
        let len = if is_last { left } else { header.step(self.mtu) };
        let range = self.at..self.at + len;
        // The offset counts from the packet of which this one may be a fragment itself.
        let offset = (self.at - self.payload.start) / UNIT;
        let place = self.place.wrapping_add(offset as u16) | if is_last { 0 } else { MORE };
        self.at = if len == 0 { self.payload.end + 1 } else { range.end };
        let current = if is_first { &mut self.first } else { &mut self.later };
        let (total, bytes) = (current.len + len, current.bytes.get_mut(..current.len)?);
        put(bytes, TOTAL_LEN, total as u16)?;
        put(bytes, PLACE, place)?;
        put(bytes, ipv4::CHECKSUM_OFFSET, 0)?;
        let sum = Sum::of(bytes).checksum();
        put(bytes, ipv4::CHECKSUM_OFFSET, sum)?;
        Some((current.bytes(), range))
    }
}

/// Returns the header of a packet with these options, whose length is a multiple of four.
fn header(packet: &[u8], options: &[u8]) -> Option<Header> {
    let len = ipv4::MIN_LEN + options.len();
    let mut bytes = [0; ipv4::MAX_LEN];
    let (fixed, room) = bytes.split_at_mut_checked(ipv4::MIN_LEN)?;
    fixed.copy_from_slice(packet.get(..ipv4::MIN_LEN)?);
    room.get_mut(..options.len())?.copy_from_slice(options);
    let first = bytes.first_mut()?;
    *first = *first & 0xf0 | (len / 4) as u8;
    Some(Header { bytes, len })
}

/// Returns those options that every fragment has to have, filled up to a multiple of four bytes
/// (RFC 791, 3.1). `None` if one has no sense.
fn copied_options<'a>(options: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let (mut left, mut len) = (options, 0);
    while let Some((kind, rest)) = left.split_first() {
        let size = match *kind {
            END_OF_OPTIONS => break,
            NO_OPERATION => 1,
            _ => usize::from(*rest.first().unwrap_or(&0)),
        };
        if size == 0 || size == 1 && *kind != NO_OPERATION {
            return None;
        }
        let (option, rest) = left.split_at_checked(size)?;
        if kind & COPIED != 0 {
            room.get_mut(len..len + size)?.copy_from_slice(option);
            len += size;
        }
        left = rest;
    }
    let padded = len.next_multiple_of(4);
    room.get_mut(len..padded)?.fill(END_OF_OPTIONS);
    room.get(..padded)
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Mac, build};

    /// Fragments of a packet, whole.
    fn cut(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
        let mut fragments = Fragments::new(packet, mtu).ok()?;
        let count = fragments.count();
        let mut all = Vec::new();
        while let Some((header, payload)) = fragments.next() {
            all.push([header, &packet[payload]].concat());
        }
        assert_eq!(all.len(), count);
        Some(all)
    }

    fn parse(packet: &[u8]) -> Ipv4<'_> {
        let ip = Ipv4::parse(packet).unwrap();
        assert!(ip.checksum_is_valid());
        assert_eq!(ip.total_len(), packet.len());
        ip
    }

    /// Puts fragments together, in any order, as a receiver does (RFC 791, 3.2): the header is that
    /// of the first one.
    fn together(mut fragments: Vec<Vec<u8>>) -> Vec<u8> {
        fragments.sort_by_key(|fragment| parse(fragment).fragment_offset());
        let first = parse(&fragments[0]);
        let (start, last) = (first.fragment_offset(), parse(fragments.last().unwrap()));
        let mut whole = first.header().to_vec();
        for fragment in &fragments {
            let ip = parse(fragment);
            assert_eq!(ip.fragment_offset() - start, whole.len() - first.header_len());
            assert_eq!(ip.identification(), first.identification());
            whole.extend(ip.payload().unwrap());
        }
        let more = u16::from(last.more_fragments()) << 13;
        let len = whole.len() as u16;
        put(&mut whole, TOTAL_LEN, len).unwrap();
        put(&mut whole, PLACE, more | (start / 8) as u16).unwrap();
        put(&mut whole, ipv4::CHECKSUM_OFFSET, 0).unwrap();
        let sum = Sum::of(&whole[..first.header_len()]).checksum();
        put(&mut whole, ipv4::CHECKSUM_OFFSET, sum).unwrap();
        whole
    }

    /// Options in any order, as (kind, data), with their bytes filled up to whole words.
    fn options() -> impl Strategy<Value = (Vec<(u8, Vec<u8>)>, Vec<u8>)> {
        let one = (2..=u8::MAX, prop::collection::vec(any::<u8>(), 0..10));
        prop::collection::vec(one, 0..4).prop_map(|all| {
            let (mut kept, mut bytes) = (Vec::new(), Vec::new());
            for (kind, data) in all {
                let option = [&[kind, data.len() as u8 + 2][..], &data].concat();
                if bytes.len() + option.len() <= 40 {
                    bytes.extend(&option);
                    kept.push((kind, option));
                }
            }
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            (kept, bytes)
        })
    }

    fn packet(payload: usize, options: &[u8], place: Option<(usize, bool)>) -> Vec<u8> {
        let data: Vec<u8> = (0..payload).map(|n| ((n * 31) >> 3) as u8).collect();
        let ip = build::ethernet(Mac::ZERO, Mac::ZERO).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        let ip = ip.identification(77).options(options);
        let ip = match place {
            Some((offset, more)) => ip.fragment(77, offset, more),
            None => ip,
        };
        ip.payload(17, &data)[14..].to_vec()
    }

    proptest! {
        #[test]
        fn together_the_fragments_are_the_packet(
            payload in 0..5000_usize,
            mtu in 68..2000_usize,
            (listed, bytes) in options(),
            place in prop::option::of((0..7000_usize, any::<bool>())),
        ) {
            let place = place.map(|(units, more)| (units * 8, more));
            let more = place.is_some_and(|(_, more)| more);
            let payload = if more { payload / 8 * 8 } else { payload };
            let packet = packet(payload, &bytes, place);
            let fragments = cut(&packet, mtu).unwrap();
            let count = fragments.len();
            for (n, fragment) in fragments.iter().enumerate() {
                let ip = parse(fragment);
                prop_assert!(fragment.len() <= mtu);
                let is_last = n + 1 == count;
                prop_assert!(is_last || ip.more_fragments());
                prop_assert!(is_last || ip.payload().unwrap().len().is_multiple_of(8));
                // No fragment but the last has room for more.
                let room = mtu - ip.header_len();
                prop_assert!(is_last || room - ip.payload().unwrap().len() < 8);
                if n > 0 {
                    let copied: Vec<u8> = listed
                        .iter()
                        .filter(|(kind, _)| kind & 0x80 != 0)
                        .flat_map(|(_, option)| option.clone())
                        .collect();
                    let (own, rest) = ip.options().split_at(copied.len());
                    prop_assert_eq!(own, &copied[..]);
                    prop_assert!(rest.len() < 4 && rest.iter().all(|byte| *byte == 0));
                }
            }
            prop_assert_eq!(together(fragments), packet);
        }

        /// A router behind another one has smaller pieces: together they are the same.
        #[test]
        fn fragments_are_cut_again(payload in 0..4000_usize, mtus in [68..2000_usize, 68..2000]) {
            let packet = packet(payload, &[], None);
            let again = cut(&packet, mtus[0]).unwrap();
            let again = again.iter().flat_map(|piece| cut(piece, mtus[1]).unwrap()).collect();
            prop_assert_eq!(together(again), packet);
        }

        /// Nothing is longer, ends later or has more bytes than came.
        #[test]
        fn any_bytes_are_cut_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 20..200),
            words in 5..=15_u8,
            mtu in 0..300_usize,
        ) {
            let mut bytes = bytes;
            bytes[0] = 0x40 | words;
            let Ok(mut fragments) = Fragments::new(&bytes, mtu) else { return Ok(()) };
            let (count, ip) = (fragments.count(), Ipv4::parse(&bytes).unwrap());
            let (mut at, mut found) = (ip.header_len(), 0);
            while let Some((header, payload)) = fragments.next() {
                prop_assert_eq!(payload.start, at);
                prop_assert!(header.len() + payload.len() <= mtu);
                (at, found) = (payload.end, found + 1);
            }
            prop_assert_eq!((at, found), (ip.total_len(), count));
        }
    }

    #[test]
    fn what_may_not_be_cut_is_not() {
        let whole = packet(1000, &[], None);
        let mut forbids = whole.clone();
        forbids[6] |= 0x40;
        assert!(cut(&forbids, 500).is_none());
        assert!(cut(&whole, 27).is_none(), "no room for 8 bytes");
        assert_eq!(cut(&whole, 28).unwrap().len(), 125);
        assert!(cut(&packet(1000, &[], Some((65_528, false))), 500).is_none());
        assert_eq!(cut(&whole, 1020).unwrap(), std::slice::from_ref(&whole));
        assert_eq!(Fragments::new(&[0x65; 40], 500).unwrap_err(), Error::Malformed);
        assert_eq!(Fragments::new(&[], 500).unwrap_err(), Error::Truncated);
        let mut reserved = whole.clone();
        reserved[6] |= 0x80;
        assert!(cut(&reserved, 500).is_none());
        assert!(
            cut(&packet(1001, &[], Some((8, true))), 500).is_none(),
            "what follows has no place"
        );
    }

    /// RFC 791, 3.1: security, a loose source route and stream ids are in all fragments.
    #[test]
    fn options_are_copied_by_their_kind() {
        for (options, later) in [
            (&[1, 1, 7, 3, 4, 0, 0, 0][..], &[][..]),
            (&[131, 3, 4, 1], &[131, 3, 4, 0]),
            (&[1, 131, 3, 4], &[131, 3, 4, 0]),
            (&[136, 4, 1, 2, 7, 2, 130, 2], &[136, 4, 1, 2, 130, 2, 0, 0]),
            (&[0, 136, 4, 1], &[]),
        ] {
            let fragments = cut(&packet(200, options, None), 100).unwrap();
            assert_eq!(parse(&fragments[0]).options(), options);
            assert_eq!(parse(&fragments[1]).options(), later, "{options:?}");
        }
        for odd in [[130, 0, 1, 1], [130, 1, 1, 1], [130, 5, 1, 1], [1, 1, 1, 130]] {
            assert!(cut(&packet(200, &odd, None), 100).is_none(), "{odd:?}");
        }
    }
}
