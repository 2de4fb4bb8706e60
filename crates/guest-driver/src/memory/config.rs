//! Parameters of a guest's memory: regions, pages, files.

/// Guest address of the region that [`MemoryConfig::new`] makes.
pub const DEFAULT_GUEST_ADDR: u64 = 0x4000_0000;

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

    pub(super) fn page(&self) -> u64 {
        if self.huge_pages { 2 << 20 } else { 4096 }
    }
}
