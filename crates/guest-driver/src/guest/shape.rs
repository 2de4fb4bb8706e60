//! Shapes: the layout of header and frame in a chain.

use crate::queue::{Buffer, Placement};

/// Layout of header and frame in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The virtio-net header has a descriptor of its own.
    pub header_apart: bool,
    /// Into how many descriptors the rest is cut, about evenly; at least 1.
    pub pieces: usize,
    /// Place of the descriptors.
    pub placement: Placement,
}

impl Default for Shape {
    /// Header and frame in one descriptor.
    fn default() -> Shape {
        Shape { header_apart: false, pieces: 1, placement: Placement::Direct }
    }
}

impl Shape {
    /// Header alone, frame behind it.
    pub const HEADER_APART: Shape =
        Shape { header_apart: true, pieces: 1, placement: Placement::Direct };

    /// Returns the shape with its descriptors in an indirect table.
    pub const fn indirect(self) -> Shape {
        Shape { placement: Placement::Indirect, ..self }
    }

    /// Cut into `pieces` descriptors.
    pub const fn pieces(self, pieces: usize) -> Shape {
        Shape { pieces, ..self }
    }

    /// Descriptors of the ring's table that one chain takes.
    pub(super) fn ring_descs(&self) -> usize {
        let all = self.pieces.max(1) + usize::from(self.header_apart);
        match self.placement {
            Placement::Direct => all,
            Placement::Indirect => 1,
            Placement::IndirectAfter(direct) => (usize::from(direct) + 1).min(all),
        }
    }

    /// Writes the chain's buffers for `len` bytes at `addr`, of which the first `header` are the
    /// header.
    pub(super) fn cut(
        &self,
        addr: u64,
        header: usize,
        len: usize,
        writable: bool,
        out: &mut Vec<Buffer>,
    ) {
        out.clear();
        let mut push = |from: usize, to: usize| {
            out.push(Buffer { addr: addr + from as u64, len: (to - from) as u32, writable });
        };
        let start = if self.header_apart { header.min(len) } else { 0 };
        if self.header_apart {
            push(0, start);
        }
        let pieces = self.pieces.max(1);
        for i in 0..pieces {
            push(start + (len - start) * i / pieces, start + (len - start) * (i + 1) / pieces);
        }
    }
}
