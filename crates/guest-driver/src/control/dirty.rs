//! The dirty log: pages that the device wrote while a machine migrates.

use std::sync::Arc;

use crate::memory::{Memory, MemoryConfig, MemoryError, Region};

/// A bitmap of the guest's 4 KiB pages that a device wrote to, shared with it.
#[derive(Debug)]
pub struct DirtyLog {
    memory: Arc<Memory>,
    pub(super) region: Region,
}

impl DirtyLog {
    /// Bytes that one bit stands for.
    pub const PAGE: u64 = 4096;

    /// A log long enough for all of a guest's memory.
    pub fn new(guest: &Memory) -> Result<DirtyLog, MemoryError> {
        let end =
            guest.regions().iter().map(|region| region.guest_addr + region.size).max().unwrap_or(0);
        DirtyLog::with_len((end / Self::PAGE).div_ceil(8))
    }

    /// A log of so many bytes at least, even if that is too short.
    pub fn with_len(bytes: u64) -> Result<DirtyLog, MemoryError> {
        let size = bytes.max(1).next_multiple_of(4096);
        let config = MemoryConfig { regions: vec![(Some(0), size)], ..MemoryConfig::new(0) };
        let memory = Memory::new(&config)?;
        let region = memory.regions().swap_remove(0);
        Ok(DirtyLog { memory, region })
    }

    /// The log's file, as a region whose addresses mean nothing.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// True if the page that holds a guest address is marked.
    pub fn is_dirty(&self, addr: u64) -> bool {
        let page = addr / Self::PAGE;
        let mut byte = [0];
        self.memory.read(page / 8, &mut byte).is_ok() && byte[0] & 1 << (page % 8) != 0
    }

    /// First addresses of all marked pages, ascending.
    pub fn dirty_pages(&self) -> Vec<u64> {
        let bytes = self.memory.read_vec(0, self.region.size as usize).unwrap_or_default();
        let bits = bytes.iter().enumerate().flat_map(|(at, byte)| {
            (0..8u64)
                .filter(move |bit| byte & 1 << bit != 0)
                .map(move |bit| (at as u64 * 8 + bit) * Self::PAGE)
        });
        bits.collect()
    }

    /// Unmarks all pages. Not atomic against a device that marks at the same time.
    pub fn clear(&self) {
        if let Ok(span) = self.memory.span(0, self.region.size as usize) {
            span.fill(0);
        }
    }
}
