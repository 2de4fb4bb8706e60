//! Chains: of buffers, as they are added, and as the device has used them.

/// One buffer of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes; 0 is allowed.
    pub len: u32,
    /// True if the device writes it.
    pub writable: bool,
}

/// Place of a chain's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// All in the ring's table.
    #[default]
    Direct,
    /// All in an indirect table (needs INDIRECT_DESC).
    Indirect,
    /// In the ring's table up to this number, the others in an indirect table behind them (virtio
    /// 1.2, 2.7.5.3.2). On a packed ring no chain may be so (2.8.19).
    IndirectAfter(u16),
}

/// A chain the device has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// Token with which the chain was added.
    pub token: u64,
    /// Bytes the device says it wrote.
    pub len: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) token: u64,
    /// Descriptors in the ring.
    pub(super) descs: u16,
    pub(super) writable: u32,
    /// Address and bytes of the indirect table.
    pub(super) table: Option<(u64, usize)>,
}

/// A descriptor of a chain in the ring, in either layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) len: u32,
    /// `DESC_WRITE` and `DESC_INDIRECT`.
    pub(super) flags: u16,
}
