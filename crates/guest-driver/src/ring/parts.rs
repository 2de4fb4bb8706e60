//! Words that rings of both layouts have in common.

use crate::memory::{Memory, MemoryError};

/// Descriptor flag: the chain goes on at `next`.
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;

/// Bytes of a descriptor.
pub const DESC_LEN: usize = 16;
/// Largest ring (virtio 1.2, 2.7).
pub const MAX_SIZE: u16 = 32768;

/// Addresses of a ring's parts, as vhost-user names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingAddr {
    /// Descriptor table, or the ring of descriptors of a packed ring; a multiple of 16.
    pub desc: u64,
    /// Available ring, a multiple of 2; or the driver's event suppression, a multiple of 4.
    pub avail: u64,
    /// Used ring, or the device's event suppression; a multiple of 4.
    pub used: u64,
}

impl RingAddr {
    /// Allocates the parts of a ring as guests lay them out, with room for both layouts.
    pub(super) fn allocate(memory: &Memory, size: u16) -> Result<RingAddr, MemoryError> {
        let (desc, avail, used) = part_lens(size);
        let used_at = (desc + avail).next_multiple_of(4096);
        let start = memory.alloc(used_at + used, 4096)?;
        Ok(RingAddr { desc: start, avail: start + desc as u64, used: start + used_at as u64 })
    }

    /// Gives back what [`Self::allocate`] took.
    pub(super) fn free(self, memory: &Memory, size: u16) {
        let (_, _, used) = part_lens(size);
        memory.free(self.desc, (self.used - self.desc) as usize + used);
    }
}

/// Bytes of the parts of a split ring of `size` entries, with event fields.
pub const fn part_lens(size: u16) -> (usize, usize, usize) {
    let size = size as usize;
    (DESC_LEN * size, 6 + 2 * size, 6 + 8 * size)
}

/// True if an index that went from `old` to `new` passed `event` (virtio 1.2, 2.7.7,
/// `vring_need_event`).
#[inline]
pub const fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_count_modulo_2_to_the_16() {
        assert!(passed(5, 6, 5) && !passed(6, 6, 5) && !passed(4, 6, 5));
        assert!(passed(0xffff, 0, 0xffff) && passed(0, 2, 0xfffe) && !passed(2, 2, 0xfffe));
        assert!(!passed(3, 3, 3), "nothing moved");
    }
}
