//! Parameters of the driver for measuring, and the layout of its buffers.

use crate::ring::DESC_LEN;

/// Most frames or buffers taken in one go.
pub const BATCH: usize = 64;
pub(super) const LINE: usize = 64;

/// Parameters of a [`crate::FastGuest`].
#[derive(Clone, Copy, Debug)]
pub struct FastConfig {
    /// Entries of both rings: a power of two, unless they are packed.
    pub queue_size: u16,
    /// Longest frame to be sent.
    pub max_frame: usize,
    /// Bytes of a receive buffer, header included.
    pub rx_buffer: usize,
    /// Header and frame in two descriptors instead of one.
    pub header_apart: bool,
    /// Transmit chains in indirect tables (needs INDIRECT_DESC).
    pub indirect: bool,
}

impl FastConfig {
    /// Bytes of guest memory it needs.
    pub fn memory_needed(&self) -> u64 {
        let size = usize::from(self.queue_size);
        let buffers = size * (stride(self.max_frame) + stride(self.rx_buffer)) + 2 * LINE;
        (buffers + size * (2 * DESC_LEN + 64) + (1 << 20)).next_multiple_of(2 << 20) as u64
    }
}

/// Distance of buffers: room for a header that ends where a line does, then the frame. An odd
/// number of lines, so that buffers spread over all cache sets.
pub(super) fn stride(len: usize) -> usize {
    (LINE + len).next_multiple_of(LINE) | LINE
}
