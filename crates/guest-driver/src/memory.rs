//! Guest memory as the guest has it: files, regions, buffers.
//!
//! Addresses are guest-physical unless said otherwise. Each region has a mapping of its own. So
//! addresses that follow each other in the guest do not in this process, and a buffer across two
//! regions is a real one.

mod allocator;
mod config;
mod error;
mod mapping;
mod span;
pub mod transfer;

use std::{
    fs::File,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use crate::memory::mapping::{Mapping, memfd};

pub use config::{DEFAULT_GUEST_ADDR, MemoryConfig};
pub use error::MemoryError;
pub use mapping::Region;
pub use span::Span;

/// A guest's memory: shared files, mapped, with an allocator of buffers.
#[derive(Debug)]
pub struct Memory {
    mappings: RwLock<Vec<Arc<Mapping>>>,
    free: Mutex<Vec<FreeRange>>,
    page: u64,
    huge_pages: bool,
}

/// An unallocated stretch that lies in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FreeRange {
    start: u64,
    end: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Creates and maps the memory.
    pub fn new(config: &MemoryConfig) -> Result<Arc<Memory>, MemoryError> {
        let page = config.page();
        let memory = Arc::new(Memory {
            mappings: RwLock::new(Vec::new()),
            free: Mutex::new(Vec::new()),
            page,
            huge_pages: config.huge_pages,
        });
        for (guest_addr, size) in &config.regions {
            if *size == 0 || !size.is_multiple_of(page) {
                return Err(MemoryError::BadRegion {
                    guest_addr: guest_addr.unwrap_or(0),
                    size: *size,
                    page,
                });
            }
        }
        let total = config.regions.iter().map(|(_, size)| size).sum();
        let shared =
            if config.separate_files { None } else { Some(memfd(total, config.huge_pages)?) };
        let mut offset = 0;
        for (guest_addr, size) in &config.regions {
            match &shared {
                Some(file) => memory.map(*guest_addr, *size, Arc::clone(file), offset)?,
                None => memory.map(*guest_addr, *size, memfd(*size, config.huge_pages)?, 0)?,
            };
            offset += size;
        }
        Ok(memory)
    }

    /// Adds a region with a file of its own, as memory hot-plug does.
    pub fn add_region(&self, guest_addr: Option<u64>, size: u64) -> Result<Region, MemoryError> {
        if size == 0 || !size.is_multiple_of(self.page) {
            return Err(MemoryError::BadRegion {
                guest_addr: guest_addr.unwrap_or(0),
                size,
                page: self.page,
            });
        }
        self.map(guest_addr, size, memfd(size, self.huge_pages)?, 0)
    }

    fn map(
        &self,
        guest_addr: Option<u64>,
        size: u64,
        file: Arc<File>,
        offset: u64,
    ) -> Result<Region, MemoryError> {
        let mapping = Arc::new(Mapping::new(guest_addr, size, file, offset)?);
        let region = mapping.region.clone();
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |other: &Region| {
            region.guest_addr < other.guest_addr.saturating_add(other.size)
                && other.guest_addr < region.guest_addr.saturating_add(size)
        };
        if region.guest_addr.checked_add(size).is_none()
            || mappings.iter().any(|other| overlaps(&other.region))
        {
            return Err(MemoryError::BadRegion {
                guest_addr: region.guest_addr,
                size,
                page: self.page,
            });
        }
        mappings.push(mapping);
        locked(&self.free)
            .push(FreeRange { start: region.guest_addr, end: region.guest_addr + size });
        Ok(region)
    }

    /// Takes a region away, as memory unplug does. Spans into it stay usable; nothing is allocated
    /// from it any more.
    pub fn remove_region(&self, guest_addr: u64) -> Option<Region> {
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        let at = mappings.iter().position(|mapping| mapping.region.guest_addr == guest_addr)?;
        let region = mappings.remove(at).region.clone();
        locked(&self.free).retain(|range| !region.holds(range.start, 1));
        Some(region)
    }

    /// The regions, in the order in which they were added.
    pub fn regions(&self) -> Vec<Region> {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        mappings.iter().map(|mapping| mapping.region.clone()).collect()
    }

    /// Address in this process of a guest address, which front ends use for rings.
    pub fn user_addr(&self, addr: u64) -> Option<u64> {
        let mapping = self.mapping(addr, 1)?;
        Some(mapping.region.user_addr + (addr - mapping.region.guest_addr))
    }

    fn mapping(&self, addr: u64, len: u64) -> Option<Arc<Mapping>> {
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        mappings.iter().find(|mapping| mapping.region.holds(addr, len)).cloned()
    }

    /// The stretch of `len` bytes at `addr`, which must lie in one region.
    pub fn span(&self, addr: u64, len: usize) -> Result<Span, MemoryError> {
        let mapping = self
            .mapping(addr, len as u64)
            .ok_or(MemoryError::OutOfRange { addr, len: len as u64 })?;
        let offset = (addr - mapping.region.guest_addr) as usize;
        Ok(Span { mapping, offset, len, addr })
    }

    /// Writes bytes, across regions if need be.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.pieces(addr, bytes.len(), |span, range| span.write(0, &bytes[range]))
    }

    /// Reads bytes, across regions if need be.
    pub fn read(&self, addr: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.pieces(addr, bytes.len(), |span, range| span.read(0, &mut bytes[range]))
    }

    /// Reads `len` bytes.
    pub fn read_vec(&self, addr: u64, len: usize) -> Result<Vec<u8>, MemoryError> {
        let mut bytes = vec![0; len];
        self.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    /// Calls `with` for each region's part of a stretch.
    fn pieces(
        &self,
        addr: u64,
        len: usize,
        mut with: impl FnMut(Span, std::ops::Range<usize>),
    ) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < len {
            let outside = MemoryError::OutOfRange { addr, len: len as u64 };
            let at = addr.checked_add(done as u64).ok_or(outside)?;
            let mapping =
                self.mapping(at, 1).ok_or(MemoryError::OutOfRange { addr, len: len as u64 })?;
            let offset = (at - mapping.region.guest_addr) as usize;
            let part = (len - done).min(mapping.region.size as usize - offset);
            with(Span { mapping, offset, len: part, addr: at }, done..done + part);
            done += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_across_regions_is_one_for_the_guest() {
        let memory = Memory::new(&MemoryConfig::split(3, 4096)).unwrap();
        let addr = memory.alloc_across(1000).unwrap();
        assert_eq!(addr, DEFAULT_GUEST_ADDR + 4096 - 500);
        let bytes: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        memory.write(addr, &bytes).unwrap();
        assert_eq!(memory.read_vec(addr, 1000).unwrap(), bytes);
        assert!(memory.span(addr, 1000).is_err());
        assert_eq!(memory.span(addr + 500, 500).unwrap().read_array(0), [bytes[500], bytes[501]]);
        assert_eq!(memory.alloc_across(1000).unwrap(), DEFAULT_GUEST_ADDR + 8192 - 500);
        assert!(memory.alloc_across(1000).is_err());
        memory.free(addr, 1000);
        assert_eq!(memory.alloc_across(1000).unwrap(), addr);
    }

    #[test]
    fn allocation_gives_back_what_it_took() {
        let memory = Memory::new(&MemoryConfig::split(2, 8192)).unwrap();
        let all = memory.free_bytes();
        let taken: Vec<(u64, usize)> = [100, 4096, 5000, 64]
            .iter()
            .map(|size| (memory.alloc(*size, 64).unwrap(), *size))
            .collect();
        for (i, (a, a_len)) in taken.iter().enumerate() {
            assert_eq!(a % 64, 0);
            assert!(memory.span(*a, *a_len).is_ok(), "in one region");
            for (b, b_len) in &taken[..i] {
                assert!(a + *a_len as u64 <= *b || b + *b_len as u64 <= *a, "no overlap");
            }
        }
        assert!(memory.alloc(8192, 1).is_err());
        taken.iter().for_each(|(addr, size)| memory.free(*addr, *size));
        assert_eq!(memory.free_bytes(), all);
        assert!(memory.alloc(8192, 1).is_ok() && memory.alloc(8192, 1).is_ok());
    }

    #[test]
    fn outside_is_refused() {
        let memory = Memory::new(&MemoryConfig::new(4096)).unwrap();
        for (addr, len) in
            [(0, 1), (DEFAULT_GUEST_ADDR - 1, 2), (DEFAULT_GUEST_ADDR + 4095, 2), (u64::MAX, 2)]
        {
            assert!(memory.write(addr, &vec![0; len]).is_err(), "{addr:#x}");
            assert!(memory.span(addr, len).is_err(), "{addr:#x}");
        }
        assert!(Memory::new(&MemoryConfig::new(100)).is_err());
        assert!(memory.add_region(Some(DEFAULT_GUEST_ADDR), 4096).is_err());
    }

    #[test]
    fn regions_come_and_go() {
        let memory = Memory::new(&MemoryConfig::new(4096)).unwrap();
        let region = memory.add_region(Some(0x8000_0000), 8192).unwrap();
        let addr = memory.alloc(8192, 1).unwrap();
        assert_eq!(addr, region.guest_addr);
        let span = memory.span(addr, 8192).unwrap();
        assert_eq!(span.user_addr(), region.user_addr);
        memory.remove_region(addr).unwrap();
        span.write(8000, b"still mapped");
        assert!(memory.span(addr, 1).is_err());
        assert_eq!(memory.regions().len(), 1);
    }

    #[test]
    fn identity_addresses() {
        let memory = Memory::new(&MemoryConfig::identity(8192)).unwrap();
        let region = &memory.regions()[0];
        assert_eq!(region.guest_addr, region.user_addr);
        assert_eq!(memory.user_addr(region.guest_addr + 5), Some(region.user_addr + 5));
    }
}
