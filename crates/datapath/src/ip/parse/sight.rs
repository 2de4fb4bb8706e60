//! Bytes at hand: what is needed and is not there is asked for, or a reason to drop.

use crate::engine::reason::DropReason;
use crate::ip::reasons::{HEADERS_TOO_LONG, TRUNCATED};

/// Most bytes of a frame that are read.
pub(crate) const MOST: usize = 256;

/// Reason for not returning a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The headers go on behind these bytes: more of the frame is needed, [`MOST`] bytes at most.
    NeedMore,
    /// The frame has to be dropped.
    Drop(DropReason),
}

/// The bytes at hand of a packet.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    /// From the IP header on.
    pub(super) packet: &'a [u8],
    /// True if the caller can give more bytes.
    pub(super) more: bool,
}

impl Sight<'_> {
    /// Returns the fault for needed bytes of the packet that are not at hand.
    pub(super) const fn missing(&self) -> Fault {
        if self.more { Fault::NeedMore } else { Fault::Drop(HEADERS_TOO_LONG) }
    }

    /// Returns the fault if the first `len` bytes of the frame's IP part are not at hand.
    pub(super) const fn missing_of(&self, len: usize, room: usize) -> Fault {
        if room < len { Fault::Drop(TRUNCATED) } else { self.missing() }
    }
}
