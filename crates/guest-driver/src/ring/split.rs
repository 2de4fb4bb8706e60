//! The memory of a split virtqueue: descriptor table, available ring, used ring (virtio 1.2, 2.7).
//!
//! [`Ring`] gives raw access to every field, the ones only a device may write included.

use std::sync::{
    Arc,
    atomic::{
        AtomicU16,
        Ordering::{self, Relaxed},
    },
};

use crate::{
    memory::{Memory, MemoryError, Span},
    ring::parts::{DESC_LEN, MAX_SIZE, RingAddr, part_lens},
};

/// Available ring flag: no interrupt, please.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Used ring flag: no notification, please.
pub const USED_NO_NOTIFY: u16 = 1;

/// A descriptor (`struct virtq_desc`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Desc {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// Next descriptor if [`super::DESC_NEXT`].
    pub next: u16,
}

impl Desc {
    fn words(self) -> [u64; 2] {
        [self.addr, u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48]
    }

    fn from_words([addr, rest]: [u64; 2]) -> Desc {
        Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; DESC_LEN] {
        let mut bytes = [0; DESC_LEN];
        let [addr, rest] = self.words();
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..].copy_from_slice(&rest.to_le_bytes());
        bytes
    }
}

/// The three parts of one ring. Indices into them are taken modulo the size.
#[derive(Clone, Debug)]
pub struct Ring {
    memory: Arc<Memory>,
    size: u16,
    mask: usize,
    desc: Span,
    avail: Span,
    used: Span,
}

impl Ring {
    /// Allocates a ring as guests lay it out: table, available ring, used ring on a page of its
    /// own. All zero.
    ///
    /// # Panics
    /// If `size` is not a power of two up to [`MAX_SIZE`].
    pub fn new(memory: &Arc<Memory>, size: u16) -> Result<Ring, MemoryError> {
        let ring = Ring::at(memory, size, RingAddr::allocate(memory, size)?)?;
        ring.clear();
        Ok(ring)
    }

    /// Makes a ring of parts that the caller allocated. Their contents stay as they are.
    ///
    /// # Panics
    /// If `size` is not a power of two up to [`MAX_SIZE`], or an address is not aligned.
    pub fn at(memory: &Arc<Memory>, size: u16, addr: RingAddr) -> Result<Ring, MemoryError> {
        assert!(
            size.is_power_of_two() && size <= MAX_SIZE,
            "ring size {size} is not a power of two up to {MAX_SIZE}"
        );
        let aligned = addr.desc.is_multiple_of(16)
            && addr.avail.is_multiple_of(2)
            && addr.used.is_multiple_of(4);
        assert!(aligned, "{addr:x?} is not aligned");
        let (desc, avail, used) = part_lens(size);
        Ok(Ring {
            memory: Arc::clone(memory),
            size,
            mask: usize::from(size) - 1,
            desc: memory.span(addr.desc, desc)?,
            avail: memory.span(addr.avail, avail)?,
            used: memory.span(addr.used, used)?,
        })
    }

    /// Gives the memory of a ring made by [`Self::new`] back. The device must have stopped.
    pub fn free(self) {
        self.addr().free(&self.memory, self.size);
    }

    /// Zeroes all three parts.
    pub fn clear(&self) {
        for part in [&self.desc, &self.avail, &self.used] {
            part.fill(0);
        }
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The memory it lies in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Guest-physical addresses.
    pub fn addr(&self) -> RingAddr {
        RingAddr { desc: self.desc.addr(), avail: self.avail.addr(), used: self.used.addr() }
    }

    /// Addresses in this process, which vhost-user front ends hand over.
    pub fn user_addr(&self) -> RingAddr {
        RingAddr {
            desc: self.desc.user_addr(),
            avail: self.avail.user_addr(),
            used: self.used.user_addr(),
        }
    }

    /// Reads a descriptor.
    #[inline]
    pub fn desc(&self, index: u16) -> Desc {
        let at = (usize::from(index) & self.mask) * DESC_LEN;
        Desc::from_words([
            self.desc.atomic_u64(at).load(Relaxed),
            self.desc.atomic_u64(at + 8).load(Relaxed),
        ])
    }

    /// Writes a descriptor. Visible to the device at the latest with the next Release store of the
    /// available index.
    #[inline]
    pub fn set_desc(&self, index: u16, desc: Desc) {
        let at = (usize::from(index) & self.mask) * DESC_LEN;
        let [addr, rest] = desc.words();
        self.desc.atomic_u64(at).store(addr, Relaxed);
        self.desc.atomic_u64(at + 8).store(rest, Relaxed);
    }

    /// Available ring: flags ([`AVAIL_NO_INTERRUPT`]).
    #[inline]
    pub fn avail_flags(&self) -> &AtomicU16 {
        self.avail.atomic_u16(0)
    }

    /// Available ring: index of the next entry to be filled.
    #[inline]
    pub fn avail_idx(&self) -> &AtomicU16 {
        self.avail.atomic_u16(2)
    }

    /// Available ring: an entry, the head of a chain.
    #[inline]
    pub fn avail_entry(&self, index: u16) -> &AtomicU16 {
        self.avail.atomic_u16(4 + 2 * (usize::from(index) & self.mask))
    }

    /// Available ring: interrupt when the used index passes this.
    #[inline]
    pub fn used_event(&self) -> &AtomicU16 {
        self.avail.atomic_u16(4 + 2 * usize::from(self.size))
    }

    /// Used ring: flags ([`USED_NO_NOTIFY`]). The device's.
    #[inline]
    pub fn used_flags(&self) -> &AtomicU16 {
        self.used.atomic_u16(0)
    }

    /// Used ring: index of the next entry to be filled. The device's.
    #[inline]
    pub fn used_idx(&self) -> &AtomicU16 {
        self.used.atomic_u16(2)
    }

    /// Used ring: head of a used chain, and bytes written into it.
    #[inline]
    pub fn used_entry(&self, index: u16) -> (u32, u32) {
        let at = 4 + 8 * (usize::from(index) & self.mask);
        (self.used.atomic_u32(at).load(Relaxed), self.used.atomic_u32(at + 4).load(Relaxed))
    }

    /// Writes a used entry, as a device does.
    #[inline]
    pub fn set_used_entry(&self, index: u16, id: u32, len: u32, order: Ordering) {
        let at = 4 + 8 * (usize::from(index) & self.mask);
        self.used.atomic_u32(at).store(id, Relaxed);
        self.used.atomic_u32(at + 4).store(len, order);
    }

    /// Used ring: notify when the available index passes this. The device's.
    #[inline]
    pub fn avail_event(&self) -> &AtomicU16 {
        self.used.atomic_u16(4 + 8 * usize::from(self.size))
    }

    /// Prefetches the used entry at `index`.
    #[inline]
    pub fn prefetch_used(&self, index: u16) {
        self.used.prefetch(4 + 8 * (usize::from(index) & self.mask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryConfig;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        let memory = Memory::new(&MemoryConfig::new(1 << 20)).unwrap();
        let ring = Ring::new(&memory, 4).unwrap();
        let addr = ring.addr();
        let desc = Desc { addr: 0x1122334455667788, len: 0x99aabbcc, flags: 0x0102, next: 0x0304 };
        ring.set_desc(1, desc);
        assert_eq!(ring.desc(1), desc);
        let bytes = memory.read_vec(addr.desc + 16, 16).unwrap();
        assert_eq!(
            bytes,
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99, 2, 1, 4, 3]
        );
        assert_eq!(bytes, desc.to_bytes());
        ring.avail_flags().store(1, Relaxed);
        ring.avail_idx().store(2, Relaxed);
        ring.avail_entry(3).store(3, Relaxed);
        ring.used_event().store(4, Relaxed);
        assert_eq!(
            memory.read_vec(addr.avail, 14).unwrap(),
            [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0]
        );
        ring.used_flags().store(1, Relaxed);
        ring.used_idx().store(2, Relaxed);
        ring.set_used_entry(3, 3, 4, Relaxed);
        ring.avail_event().store(5, Relaxed);
        let used = memory.read_vec(addr.used, 38).unwrap();
        assert_eq!(
            (&used[..4], &used[28..]),
            (&[1u8, 0, 2, 0][..], &[3u8, 0, 0, 0, 4, 0, 0, 0, 5, 0][..])
        );
        assert_eq!(ring.used_entry(7), (3, 4), "indices wrap");
    }

    #[test]
    fn largest_ring_fits_and_is_given_back() {
        let memory = Memory::new(&MemoryConfig::new(2 << 20)).unwrap();
        let before = memory.free_bytes();
        Ring::new(&memory, MAX_SIZE).unwrap().free();
        assert_eq!(memory.free_bytes(), before);
    }
}
