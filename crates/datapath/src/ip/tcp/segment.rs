//! Segments: the numbers of a TCP header that a connection is judged by.

use butterfly_packet::tcp::{ACK, FIN, Options, RST, SYN, Tcp};

/// A segment's numbers. Serial ones are compared modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub sequence: u32,
    /// Acknowledged sequence number; meaningless without [`ACK`].
    pub acknowledgement: u32,
    /// Window, not scaled.
    pub window: u16,
    /// Number of its sequence numbers: its payload, and one for SYN and FIN each. For a first
    /// fragment, the payload that it holds.
    pub length: u32,
    pub flags: u8,
    /// Window scale in its SYN, at most 14.
    pub scale: Option<u8>,
}

/// Largest window scale (RFC 7323, 2.3).
pub(super) const MAX_SCALE: u8 = 14;

impl Segment {
    /// Makes a segment from a header and the length of the payload behind it.
    #[inline]
    pub fn new(header: &Tcp<'_>, payload: u32) -> Segment {
        let flags = header.flags();
        let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let scale = if flags & SYN == 0 { None } else { window_scale(header) };
        Segment {
            sequence: header.sequence(),
            acknowledgement: header.acknowledgement(),
            window: header.window(),
            length: payload + controls,
            flags,
            scale,
        }
    }

    #[inline(always)]
    pub(super) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the sequence number behind it.
    #[inline(always)]
    pub(super) const fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.length)
    }

    /// Returns whether it opens a connection: SYN, and none of the flags that contradict it.
    #[inline]
    pub const fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// Returns whether [`crate::ip::tcp::pick_up`] can make a record of it: part of a live
    /// connection. An answer to a SYN does not count, because its opener is known and will try
    /// again.
    #[inline]
    pub const fn picks_up(&self) -> bool {
        self.flags & (ACK | RST | SYN) == ACK
    }
}

fn window_scale(header: &Tcp<'_>) -> Option<u8> {
    let (_, value) = header.options().find(|(kind, _)| *kind == Options::WINDOW_SCALE)?;
    match *value {
        [scale] => Some(scale.min(MAX_SCALE)),
        _ => None,
    }
}
