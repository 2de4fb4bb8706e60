//! Deliveries: frames that are changed on their way into a guest.

use std::ops::Range;

use butterfly_packet::checksum::Sum;

use crate::net::NetHeader;

/// Work that remains when a frame is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Nothing.
    Nothing,
    /// An Internet checksum over everything from `start`, whose field lies at `field` (both offsets
    /// in the head). The field holds the sum of the pseudo-header.
    Checksum {
        /// First byte that is summed.
        start: u16,
        /// The checksum field.
        field: u16,
        /// UDP: a computed 0 is sent as 0xffff (RFC 768).
        udp: bool,
    },
}

impl Finish {
    /// Does it in a private copy of the head; `rest` is the sum of what follows the head.
    pub fn complete(self, head: &mut [u8], rest: Sum) {
        let Finish::Checksum { start, field, udp } = self else { return };
        let sum = Sum::of(head.get(usize::from(start)..).unwrap_or_default()).combine(rest);
        let value = if udp { sum.udp_checksum() } else { sum.checksum() };
        if let Some(to) = head.get_mut(usize::from(field)..usize::from(field) + 2) {
            to.copy_from_slice(&value.to_be_bytes());
        }
    }
}

/// One frame as a receiver gets it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The header for the receiver; `num_buffers` is filled in.
    pub net: NetHeader,
    /// The first bytes, already rewritten.
    pub head: &'a [u8],
    /// Index of the frame whose memory holds the rest.
    pub frame: usize,
    /// Offset of the rest in that frame.
    pub from: u32,
    /// Bytes of the rest behind the head.
    pub len: u32,
    /// Work that remains.
    pub finish: Finish,
}

/// Frames that become one.
pub struct Joined<R, F> {
    /// Those of the batch, in order.
    pub frames: Range<usize>,
    /// Offset of the payload in each of them, which lies in the head of the first one.
    pub from: usize,
    /// Bytes of all payloads together.
    pub bytes: u32,
    /// Says whether the payload of a frame, with this sum as it was copied, may be there.
    pub is_right: R,
    /// Changes the head of the first frame, up to the payload, for so many frames with so many
    /// bytes of payload. Returns the header for the receiver; `num_buffers` is filled in.
    pub finish: F,
}
