//! Ground of both layouts of a ring: the guest's memory with the features that were negotiated, and
//! descriptors.

use std::{ptr::NonNull, sync::Arc};

use super::{call::CallFd, copy, note::Note};
use crate::{
    dirty::DirtyLog,
    memory::{GuestMemory, Window},
    net::Features,
};

const DESC_NEXT: u16 = 1;
const DESC_WRITE: u16 = 2;
const DESC_INDIRECT: u16 = 4;
/// Bytes of a descriptor, in either layout.
pub(super) const DESC_LEN: u32 = 16;
/// Most descriptors of a ring (virtio 1.2, 2.7 and 2.8.10.1).
pub(crate) const MAX_SIZE: u16 = 32768;

/// Most descriptors one chain may have, indirect ones included, and most that a batch looks at.
pub(super) const CHAIN_BUDGET: u32 = 1024;

/// Everything that says where a ring lies and how it is used, as negotiated. Addresses are guest
/// physical.
#[derive(Clone)]
pub struct RingSetup {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Dirty log for stores, while the guest migrates.
    pub log: Option<Arc<DirtyLog>>,
    /// Negotiated features.
    pub features: Features,
    /// Number of descriptors, a power of two up to 32768; of a packed ring any number up to that.
    pub size: u16,
    /// Descriptor table; of a packed ring the ring.
    pub desc: u64,
    /// Available ring; of a packed ring the driver's event suppression structure.
    pub avail: u64,
    /// Used ring; of a packed ring the device's event suppression structure.
    pub used: u64,
    /// Guest physical address to log stores into the used ring at (VHOST_VRING_F_LOG).
    pub used_log: Option<u64>,
    /// Eventfd that interrupts the guest; without one it polls.
    pub call: Option<Arc<CallFd>>,
    /// Place where the position of a packed ring is noted.
    pub note: Option<Note>,
}

impl RingSetup {
    /// True if it is a packed ring.
    pub fn is_packed(&self) -> bool {
        self.features.has(Features::RING_PACKED)
    }
}

/// Reason why a ring could not be started.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)] // the texts say it
pub enum RingError {
    #[error("ring size {0} is not a power of two up to {MAX_SIZE}")]
    Size(u16),
    #[error("ring size {0} is not a number from 1 to {MAX_SIZE}")]
    PackedSize(u16),
    #[error("the {0} ring is not inside one memory region, or not aligned")]
    Place(&'static str),
    #[error("position {0:#x} is outside of a packed ring with {1} descriptors")]
    Position(u16, u16),
    #[error(
        "where this packed ring stands is not known: its note is lost or damaged; have the guest load its driver again, or restart it"
    )]
    Lost,
    #[error("a ring that runs cannot become packed or split")]
    Layout,
}

/// A descriptor, read once.
#[derive(Clone, Copy)]
pub(super) struct Desc {
    pub addr: u64,
    pub len: u32,
    flags: u16,
    /// Of a split ring: the next one of its chain.
    pub next: u16,
    /// True if it is in a packed ring's indirect table. DPDK's driver (22.11) says there of the
    /// header that it sends that the device is to write it, so a sender's direction does not count.
    pub of_packed_table: bool,
}

impl Desc {
    /// One of a split ring or of an indirect table (virtio 1.2, 2.7.5).
    #[inline(always)]
    pub fn split(addr: u64, rest: u64) -> Desc {
        let (flags, next) = ((rest >> 32) as u16, (rest >> 48) as u16);
        Desc { addr, len: rest as u32, flags, next, of_packed_table: false }
    }

    /// One of a packed ring or of its indirect tables (virtio 1.2, 2.8.13).
    #[inline(always)]
    pub fn packed(addr: u64, rest: u64) -> Desc {
        let flags = (rest >> 48) as u16;
        Desc { addr, len: rest as u32, flags, next: 0, of_packed_table: false }
    }

    /// One of a packed ring's indirect table.
    #[inline(always)]
    pub fn of_packed_table(addr: u64, rest: u64) -> Desc {
        Desc { of_packed_table: true, ..Desc::packed(addr, rest) }
    }

    /// The only descriptor of its chain, in the ring's own table, for the device to read.
    #[inline(always)]
    pub fn is_single_readable(self) -> bool {
        self.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0
    }

    /// The only descriptor of its chain, in the ring's own table, for the device to write.
    #[inline(always)]
    pub fn is_single_writable(self) -> bool {
        self.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == DESC_WRITE
    }

    pub fn is_writable(self) -> bool {
        self.flags & DESC_WRITE != 0
    }

    pub fn is_indirect(self) -> bool {
        self.flags & DESC_INDIRECT != 0
    }

    pub fn has_next(self) -> bool {
        self.flags & DESC_NEXT != 0
    }
}

/// A chain that breaks the rules of virtio 1.2, 2.7.5 or 2.8: a loop, an index or address out of
/// range, wrong flags.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadChain;

/// Chains as a loop over a batch sees them, whatever the layout.
pub(super) trait Chains {
    /// Name of the chain with this number, by which the others ask for it.
    fn head(&self, number: u16) -> u16;
    /// The first descriptor of a chain; `None` when there is none.
    fn first(&self, head: u16) -> Option<Desc>;
    /// Asks for the line of a chain's first descriptor.
    fn prefetch(&self, head: u16);
    /// Visits the descriptors of a chain in order, indirect ones too. `budget` is how many may
    /// still be looked at. A chain that is longer than the table it lies in is a loop.
    fn walk(
        &self,
        space: &Space,
        head: u16,
        budget: &mut u32,
        visit: impl FnMut(&Space, Desc) -> Result<(), BadChain>,
    ) -> Result<(), BadChain>;
}

/// The guest's memory as a ring reaches it.
pub(super) struct Space {
    pub memory: Arc<GuestMemory>,
    pub features: Features,
    pub header_len: usize,
    pub hint: usize,
}

impl Space {
    pub fn of(setup: &RingSetup) -> Space {
        Space {
            memory: setup.memory.clone(),
            features: setup.features,
            header_len: setup.features.header_len(),
            hint: 0,
        }
    }

    /// A buffer that lies whole in one region. `window` is a copy of the ring's that stays in
    /// registers.
    #[inline(always)]
    pub fn whole(&self, addr: u64, len: u32, window: &mut Window) -> Option<NonNull<u8>> {
        match window.whole(addr, len) {
            Some(ptr) => Some(ptr),
            None => {
                *window = self.memory.window(addr)?;
                window.whole(addr, len)
            }
        }
    }

    /// Reads a descriptor of an indirect table: its two words.
    #[inline(always)]
    pub fn read_indirect(&self, table: u64, index: u32) -> Result<(u64, u64), BadChain> {
        let mut raw = [0u8; DESC_LEN as usize];
        let at = table.checked_add(u64::from(DESC_LEN) * u64::from(index)).ok_or(BadChain)?;
        self.read(at, &mut raw)?;
        let word = u128::from_le_bytes(raw);
        Ok((word as u64, (word >> 64) as u64))
    }

    /// Copies guest memory, which may span regions.
    #[inline(always)]
    fn read(&self, guest_addr: u64, to: &mut [u8]) -> Result<(), BadChain> {
        let mut done = 0;
        let mut hint = self.hint;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = guest_addr.checked_add(done as u64).ok_or(BadChain)?;
            let span = self.memory.span(at, rest.len() as u32, &mut hint).ok_or(BadChain)?;
            // SAFETY: span.len <= rest.len(), and the span is mapped.
            unsafe { copy::copy(span.ptr.as_ptr(), rest.as_mut_ptr(), span.len as usize) };
            done += span.len as usize;
        }
        Ok(())
    }
}
