//! Guest memory as the guest has it: files, regions, buffers.
//!
//! Addresses are guest-physical unless said otherwise. Each region has a mapping of its own. So
//! addresses that follow each other in the guest do not in this process, and a buffer across two
//! regions is a real one.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU16, AtomicU32, AtomicU64},
    },
};

use rustix::{
    fs::MemfdFlags,
    mm::{MapFlags, ProtFlags},
};

/// Guest address of the region that [`MemoryConfig::new`] makes.
pub const DEFAULT_GUEST_ADDR: u64 = 0x4000_0000;

/// The guest has no such memory, or none left.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Not inside the guest's regions.
    #[error(
        "guest address {addr:#x} with {len} bytes is outside the guest's memory (or not in one piece)"
    )]
    OutOfRange {
        /// Guest-physical address.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The allocator has no free stretch of that size.
    #[error("no {0} free bytes in guest memory: give the guest more (MemoryConfig)")]
    Exhausted(u64),
    /// Regions overlap, or a size is not a multiple of the page size.
    #[error(
        "region {guest_addr:#x} of {size} bytes overlaps another or is not whole pages of {page}"
    )]
    BadRegion {
        /// Guest-physical address.
        guest_addr: u64,
        /// Bytes.
        size: u64,
        /// Page size in force.
        page: u64,
    },
    /// The system refused.
    #[error("cannot {what}: {source}{hint}")]
    System {
        /// Step that failed.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
        /// Advice for the reader.
        hint: &'static str,
    },
}

/// Parameters of a guest's memory.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Guest-physical address and size of each region. An address of None makes it equal to the
    /// address in this process.
    pub regions: Vec<(Option<u64>, u64)>,
    /// Back it with 2 MB huge pages; sizes must be multiples.
    pub huge_pages: bool,
    /// One file per region instead of one file with the regions at different offsets.
    pub separate_files: bool,
}

impl MemoryConfig {
    /// One region of `size` bytes at [`DEFAULT_GUEST_ADDR`].
    pub fn new(size: u64) -> MemoryConfig {
        MemoryConfig {
            regions: vec![(Some(DEFAULT_GUEST_ADDR), size)],
            huge_pages: false,
            separate_files: false,
        }
    }

    /// `count` regions of `size` bytes each that follow each other in the guest's address space.
    pub fn split(count: usize, size: u64) -> MemoryConfig {
        let regions =
            (0..count as u64).map(|i| (Some(DEFAULT_GUEST_ADDR + i * size), size)).collect();
        MemoryConfig { regions, huge_pages: false, separate_files: false }
    }

    /// Guest-physical addresses are this process's addresses, as with DPDK's virtio-user.
    pub fn identity(size: u64) -> MemoryConfig {
        MemoryConfig { regions: vec![(None, size)], huge_pages: false, separate_files: false }
    }

    /// Uses 2 MB huge pages.
    pub fn huge(mut self) -> MemoryConfig {
        self.huge_pages = true;
        self
    }

    fn page(&self) -> u64 {
        if self.huge_pages { 2 << 20 } else { 4096 }
    }
}

/// One region, as a vhost-user front end describes it.
#[derive(Clone, Debug)]
pub struct Region {
    /// First guest-physical address.
    pub guest_addr: u64,
    /// First address in this process.
    pub user_addr: u64,
    /// Bytes.
    pub size: u64,
    /// Offset of the region in the file.
    pub file_offset: u64,
    /// The file. Truncating it makes everybody's accesses fail with SIGBUS, the driver's too.
    pub file: Arc<File>,
}

impl Region {
    /// True if `len` bytes at guest address `addr` are inside.
    fn holds(&self, addr: u64, len: u64) -> bool {
        addr >= self.guest_addr && len <= self.size && addr - self.guest_addr <= self.size - len
    }
}

/// A region and its mapping.
#[derive(Debug)]
struct Mapping {
    region: Region,
    base: NonNull<u8>,
}

// SAFETY: the mapping is shared memory without thread affinity. It is accessed through raw copies
// and atomics only, never as Rust references to plain data, and unmapped by the last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above: no method hands out exclusive access.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and size are those of the mmap that made this mapping. No pointer into it is
        // left: Spans keep the Mapping alive.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.region.size as usize) };
    }
}

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

fn memfd(size: u64, huge: bool) -> Result<Arc<File>, MemoryError> {
    let flags = MemfdFlags::CLOEXEC
        | if huge { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
    let hint = if huge {
        "; reserve huge pages, as root: echo 512 > /proc/sys/vm/nr_hugepages"
    } else {
        ""
    };
    let failed = |what| move |source: io::Error| MemoryError::System { what, source, hint };
    let fd = rustix::fs::memfd_create("guest", flags)
        .map_err(|e| failed("create guest memory")(e.into()))?;
    let file = File::from(fd);
    file.set_len(size).map_err(failed("size guest memory"))?;
    Ok(Arc::new(file))
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
        let length = size as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice, which replaces
        // nothing.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file.as_fd(),
                offset,
            )
        };
        let base = base
            .and_then(|base| NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::FAULT))
            .map_err(|e| MemoryError::System {
                what: "map guest memory",
                source: e.into(),
                hint: "",
            })?;
        let user_addr = base.as_ptr() as u64;
        let region = Region {
            guest_addr: guest_addr.unwrap_or(user_addr),
            user_addr,
            size,
            file_offset: offset,
            file,
        };
        let mapping = Arc::new(Mapping { region: region.clone(), base });
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

/// A stretch of guest memory in one region. Keeps the mapping alive. Its accesses are checked
/// against its length; what the other side of the shared memory does meanwhile decides what is
/// read, nothing else.
#[derive(Clone, Debug)]
pub struct Span {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
    addr: u64,
}

impl Span {
    /// Guest-physical address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Address of the first byte in this process.
    #[inline]
    pub fn user_addr(&self) -> u64 {
        self.mapping.region.user_addr + self.offset as u64
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of `len` bytes at `at`.
    ///
    /// # Panics
    /// If they are not inside the span: a mistake of the caller, never of the device.
    #[inline]
    pub(super) fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(
            len <= self.len && at <= self.len - len,
            "guest memory span of {} bytes: {at} + {len}",
            self.len
        );
        // SAFETY: offset + len was inside the mapping when the span was made, at + len is inside
        // the span (checked above), and the span keeps the mapping alive.
        unsafe { self.mapping.base.as_ptr().add(self.offset + at) }
    }

    /// Writes bytes. Panics if they do not fit.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: `to` is valid for that many bytes (see `at`), and guest memory is mapped by us
        // alone, so it does not overlap a Rust slice. The device may access it at the same time.
        // That is a race on bytes to which no reference exists; the device reads them at its own
        // risk.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Fills with one byte.
    #[inline]
    pub fn fill(&self, byte: u8) {
        // SAFETY: as in `write`.
        unsafe { ptr::write_bytes(self.at(0, self.len), byte, self.len) }
    }

    /// Reads bytes. Panics if there are not as many.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.at(at, bytes.len());
        // SAFETY: as in `write`, the other way round; any byte is a valid u8.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Reads `N` bytes. Panics if there are not as many.
    #[inline]
    pub fn read_array<const N: usize>(&self, at: usize) -> [u8; N] {
        let from = self.at(at, N).cast::<[u8; N]>();
        // SAFETY: valid for N bytes, and [u8; N] has alignment 1 and no invalid values.
        unsafe { ptr::read_unaligned(from) }
    }

    /// Asks the processor to fetch the line at `at`. Never faults; nothing happens outside the
    /// span.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if at < self.len {
            let line = self.at(at, 1).cast_const().cast();
            // SAFETY: prefetching is a hint without architectural effect, on an address inside the
            // mapping.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line) }
        }
    }

    #[inline]
    fn aligned<T>(&self, at: usize) -> *mut T {
        let pointer = self.at(at, size_of::<T>()).cast::<T>();
        assert!(
            pointer.is_aligned(),
            "guest memory at {:#x} is not aligned",
            self.addr + at as u64
        );
        pointer
    }

    /// The number at `at` as an atomic. Panics if it is not aligned or not inside.
    #[inline]
    pub fn atomic_u16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: aligned and inside the mapping, which outlives the span. Other accesses to ring
        // fields are atomic too. A device that does otherwise only makes the value arbitrary.
        unsafe { AtomicU16::from_ptr(self.aligned(at)) }
    }

    /// The number at `at` as an atomic. Panics if it is not aligned or not inside.
    #[inline]
    pub fn atomic_u32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as in `atomic_u16`.
        unsafe { AtomicU32::from_ptr(self.aligned(at)) }
    }

    /// The number at `at` as an atomic. Panics if it is not aligned or not inside.
    #[inline]
    pub fn atomic_u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `atomic_u16`.
        unsafe { AtomicU64::from_ptr(self.aligned(at)) }
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
