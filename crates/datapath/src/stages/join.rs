//! Joining: consecutive TCP segments from another host become one frame for a guest that takes it.
//!
//! Segments are joined where they lie next to each other in a batch and differ only in what a
//! sender's segmentation makes different: lengths, sequence number, identification and checksum.
//! Nothing waits for another batch. Each was judged by itself before. Its checksum is verified
//! while its payload is copied; a wrong one ends the frame before it, and is delivered alone, as it
//! came.

use std::ops::Range;

use butterfly_packet::{checksum::Sum, ethernet, ipv4, ipv6, protocol, tcp};
use butterfly_vhost::{
    net::{Features, NetHeader},
    ring::{Frames, Joined},
};

use crate::stages::outlet::Receive;

/// Frames below this length begin no joined one: that would cost more than it saves.
const SHORTEST: u32 = 256;
/// Most bytes of an IP packet.
const LARGEST: u32 = 0xffff;

/// A segment that may be joined with its neighbours. Offsets are in bytes from the frame's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    l3: usize,
    l4: usize,
    payload: usize,
    /// Bytes of payload, at least one.
    len: u32,
    sequence: u32,
    v6: bool,
    /// True if it has PSH, and so ends a frame.
    pushes: bool,
}

impl Segment {
    /// Reads the head of a frame of `len` bytes; `None` if it stays alone.
    #[inline(always)]
    fn read(head: &[u8], len: u32) -> Option<Segment> {
        let mut l3 = ethernet::HEADER_LEN;
        let mut kind = get(head, l3 - 2)?;
        if ethernet::is_vlan(kind) {
            l3 += 4;
            kind = get(head, l3 - 2)?;
        }
        let (l4, v6) = match kind {
            // No options, and no fragment.
            ethernet::IPV4
                if head.get(l3) == Some(&0x45)
                    && head.get(l3 + 9) == Some(&protocol::TCP)
                    && get(head, l3 + 6)? & !DONT_FRAGMENT == 0
                    && u32::from(get(head, l3 + 2)?) == len - l3 as u32
                    && Sum::of(head.get(l3..l3 + ipv4::MIN_LEN)?).is_valid() =>
            {
                (l3 + ipv4::MIN_LEN, false)
            }
            // No extensions.
            ethernet::IPV6
                if head.get(l3)? >> 4 == 6
                    && head.get(l3 + 6) == Some(&protocol::TCP)
                    && u32::from(get(head, l3 + 4)?) == len - (l3 + ipv6::LEN) as u32 =>
            {
                (l3 + ipv6::LEN, true)
            }
            _ => return None,
        };
        let segment = head.get(l4..)?;
        let [words, flags] = *segment.get(12..14)?.first_chunk()?;
        let pushes = flags == tcp::ACK | tcp::PSH;
        let header = usize::from(words >> 4) * 4;
        // Reserved bits are none, and nothing else is said than "more of the stream".
        if words & 0xf != 0 || !(pushes || flags == tcp::ACK) || header < tcp::MIN_LEN {
            return None;
        }
        let payload = l4 + header;
        let bytes = len.checked_sub(payload as u32)?;
        if bytes == 0 || payload > head.len() {
            return None;
        }
        let sequence = u32::from_be_bytes(*segment.get(4..8)?.first_chunk()?);
        Some(Segment { l3, l4, payload, len: bytes, sequence, v6, pushes })
    }

    /// Returns whether `next`, the segment behind this one, of which `head` is the head, only goes
    /// on with it. `own` is the head of this one.
    #[inline(always)]
    fn is_continued(&self, own: &[u8], next: &Segment, head: &[u8]) -> bool {
        let same = |range: Range<usize>| own.get(range.clone()) == head.get(range);
        let (l3, l4) = (self.l3, self.l4);
        (next.l3, next.l4, next.payload) == (l3, l4, self.payload)
            && next.sequence == self.sequence.wrapping_add(self.len)
            // MAC addresses, VLAN, EtherType; then addresses and ports.
            && same(0..l3)
            && same(l4 - if self.v6 { 32 } else { 8 }..l4 + 4)
            && if self.v6 {
                // Traffic class, flow label; next header, hop limit.
                same(l3..l3 + 4) && same(l3 + 6..l3 + 8)
            } else {
                // TOS; DF; TTL, protocol. The identification counts, unless nobody needs it (RFC
                // 6864).
                same(l3..l3 + 2)
                    && same(l3 + 6..l3 + 10)
                    && (get(own, l3 + 6).is_some_and(|bits| bits & DONT_FRAGMENT != 0)
                        || get(head, l3 + 4) == get(own, l3 + 4).map(|id| id.wrapping_add(1)))
            }
            // Acknowledgement, length of the header; window; urgent pointer, options.
            && same(l4 + 8..l4 + 13)
            && same(l4 + 14..l4 + 16)
            && same(l4 + 18..self.payload)
    }

    /// Returns the sum of all that the checksum covers in front of the payload.
    fn sum(&self, head: &[u8]) -> Option<Sum> {
        let header = head.get(self.l4..self.payload)?;
        Some(self.pseudo(head, header.len() as u32 + self.len)?.push(header))
    }

    /// Returns the sum of the pseudo header, with this length of a segment.
    fn pseudo(&self, head: &[u8], len: u32) -> Option<Sum> {
        let addresses = head.get(self.l4 - if self.v6 { 32 } else { 8 }..self.l4)?;
        let sum = Sum::of(addresses).push_u16(u16::from(protocol::TCP));
        Some(sum.push(&len.to_be_bytes()))
    }
}

const DONT_FRAGMENT: u16 = 0x4000;

/// Segments in a row that may become one frame.
pub(crate) struct Group {
    first: Segment,
    frames: Range<usize>,
    /// Bytes of payload.
    bytes: u32,
}

impl Group {
    /// Returns the index of the first one.
    pub fn start(&self) -> usize {
        self.frames.start
    }
}

/// Finds the next segments in a row, among some frames of a batch. Two at least.
pub(crate) fn next_group(frames: &Frames<'_>, range: Range<usize>) -> Option<Group> {
    let read = |index: usize| {
        let head = frames.head(index);
        let len = frames.frames().get(index).map_or(0, |frame| frame.len);
        Segment::read(head, len).map(|segment| (segment, head))
    };
    let is_long =
        |index: usize| frames.frames().get(index).is_some_and(|frame| frame.len >= SHORTEST);
    let mut at = range.start;
    while at + 1 < range.end {
        let Some((first, own)) = Some(at).filter(|at| is_long(*at)).and_then(read) else {
            at += 1;
            continue;
        };
        let (mut last, mut head, mut bytes, mut end) = (first, own, first.len, at + 1);
        // A shorter one is the last, and so is one that pushes.
        while end < range.end
            && last.len == first.len
            && !last.pushes
            && let Some((next, of_next)) = read(end)
            && next.len <= first.len
            && (first.payload - first.l3) as u32 + bytes + next.len <= LARGEST
            && last.is_continued(head, &next, of_next)
        {
            (last, head) = (next, of_next);
            bytes += next.len;
            end += 1;
        }
        if end > at + 1 {
            return Some(Group { first, frames: at..end, bytes });
        }
        at = end;
    }
    None
}

/// Returns whether a receiver with these features takes joined segments of some family.
pub(crate) fn takes(features: Features) -> bool {
    features.has(Features::GUEST_CSUM)
        && (features.has(Features::GUEST_TSO4) || features.has(Features::GUEST_TSO6))
}

/// Delivers a group as one frame, up to the first segment whose sum is wrong. Returns the frame
/// behind those that were delivered, and whether the group was.
#[inline(never)]
pub(crate) fn join<R: Receive>(ring: &mut R, frames: &Frames<'_>, group: &Group) -> (usize, bool) {
    let Group { first, frames: segments, bytes } = group;
    let needed = if first.v6 { Features::GUEST_TSO6 } else { Features::GUEST_TSO4 };
    if !ring.features().has(needed) {
        return (segments.start, false);
    }
    let joined = Joined {
        frames: segments.clone(),
        from: first.payload,
        bytes: *bytes,
        is_right: |index: usize, payload: Sum| {
            let head = frames.head(index);
            let read = Segment::read(head, frames.frames().get(index).map_or(0, |it| it.len));
            let sum = read.and_then(|segment| segment.sum(head));
            sum.is_some_and(|sum| sum.combine(payload).is_valid())
        },
        finish: |head: &mut [u8], count: usize, bytes: u32| {
            let last = frames.head((segments.start + count).saturating_sub(1));
            let pushes = last.get(first.l4 + 13).is_some_and(|flags| flags & tcp::PSH != 0);
            finish(first, head, count, bytes, pushes)
        },
    };
    // Who refuses the whole may have room for some: each is tried by itself.
    let to = segments.start + ring.deliver_joined(frames, joined).unwrap_or(0);
    (to, to == segments.end)
}

/// Rewrites the headers of the first segment for all of them, `bytes` of payload, of which the last
/// one pushes or not. Returns the header for the guest.
fn finish(first: &Segment, head: &mut [u8], count: usize, bytes: u32, pushes: bool) -> NetHeader {
    if count < 2 {
        return NetHeader::default();
    }
    rewrite(first, head, bytes, pushes).map_or(NetHeader::default(), |()| NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: if first.v6 { NetHeader::GSO_TCPV6 } else { NetHeader::GSO_TCPV4 },
        hdr_len: first.payload as u16,
        gso_size: first.len as u16,
        csum_start: first.l4 as u16,
        csum_offset: tcp::CHECKSUM_OFFSET as u16,
        num_buffers: 0,
    })
}

fn rewrite(first: &Segment, head: &mut [u8], bytes: u32, pushes: bool) -> Option<()> {
    let (l3, l4) = (first.l3, first.l4);
    let len = (first.payload - l4) as u32 + bytes;
    if first.v6 {
        put(head, l3 + 4, len as u16)?;
    } else {
        put(head, l3 + 2, (ipv4::MIN_LEN as u32 + len) as u16)?;
        put(head, l3 + ipv4::CHECKSUM_OFFSET, 0)?;
        let checksum = Sum::of(head.get(l3..l4)?).checksum();
        put(head, l3 + ipv4::CHECKSUM_OFFSET, checksum)?;
    }
    if pushes {
        *head.get_mut(l4 + 13)? |= tcp::PSH;
    }
    let pseudo = first.pseudo(head, len)?;
    put(head, l4 + tcp::CHECKSUM_OFFSET, pseudo.fold())
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

#[inline(always)]
fn get(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.first_chunk().map(|pair| u16::from_be_bytes(*pair))
}
