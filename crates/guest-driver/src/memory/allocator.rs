//! The allocator: stretches of guest memory for rings and buffers.

use crate::memory::{FreeRange, Memory, error::MemoryError, locked};

impl Memory {
    /// Allocates `size` bytes in one region at a multiple of `align` (a power of two). Not zeroed.
    pub fn alloc(&self, size: usize, align: usize) -> Result<u64, MemoryError> {
        self.take(size as u64, align as u64, |_| true)
    }

    /// Like [`Self::alloc`], in the region that holds `addr`.
    pub fn alloc_near(&self, addr: u64, size: usize, align: usize) -> Result<u64, MemoryError> {
        let region =
            self.mapping(addr, 1).ok_or(MemoryError::OutOfRange { addr, len: 1 })?.region.clone();
        self.take(size as u64, align as u64, |range| region.holds(range.start, 1))
    }

    fn take(
        &self,
        size: u64,
        align: u64,
        suits: impl Fn(&FreeRange) -> bool,
    ) -> Result<u64, MemoryError> {
        let size = size.max(1);
        let mut free = locked(&self.free);
        for at in 0..free.len() {
            let range = free[at];
            let Some(start) = range.start.checked_next_multiple_of(align) else { continue };
            if !suits(&range) || start > range.end || range.end - start < size {
                continue;
            }
            let rest = [
                FreeRange { start: range.start, end: start },
                FreeRange { start: start + size, end: range.end },
            ];
            free.splice(at..=at, rest.into_iter().filter(|range| range.start < range.end));
            return Ok(start);
        }
        Err(MemoryError::Exhausted(size))
    }

    /// Allocates a buffer whose first half ends one region and whose second half starts the next
    /// one in the guest's address space. There is one such place per boundary.
    pub fn alloc_across(&self, size: usize) -> Result<u64, MemoryError> {
        let first = size as u64 / 2;
        let second = size as u64 - first;
        let regions = self.regions();
        let mut free = locked(&self.free);
        for region in &regions {
            let boundary = region.guest_addr + region.size;
            let before = free
                .iter()
                .position(|range| range.end == boundary && range.end - range.start >= first);
            let after = free
                .iter()
                .position(|range| range.start == boundary && range.end - range.start >= second);
            if let (Some(before), Some(after)) = (before, after) {
                free[before].end -= first;
                free[after].start += second;
                free.retain(|range| range.start < range.end);
                return Ok(boundary - first);
            }
        }
        Err(MemoryError::Exhausted(size as u64))
    }

    /// Gives back what an allocation of `size` bytes returned.
    pub fn free(&self, addr: u64, size: usize) {
        let end = addr + (size as u64).max(1);
        let regions = self.regions();
        let mut free = locked(&self.free);
        for region in &regions {
            let start = addr.max(region.guest_addr);
            let end = end.min(region.guest_addr + region.size);
            if start < end {
                free.push(FreeRange { start, end });
            }
        }
        free.sort_unstable_by_key(|range| range.start);
        // Neighbours in one region become one; a region's boundary stays a boundary.
        let boundary = |addr| regions.iter().any(|region| region.guest_addr == addr);
        let mut merged: Vec<FreeRange> = Vec::with_capacity(free.len());
        for range in free.drain(..) {
            match merged.last_mut() {
                Some(last) if last.end == range.start && !boundary(range.start) => {
                    last.end = range.end
                }
                _ => merged.push(range),
            }
        }
        *free = merged;
    }

    /// Bytes not allocated.
    pub fn free_bytes(&self) -> u64 {
        locked(&self.free).iter().map(|range| range.end - range.start).sum()
    }
}
