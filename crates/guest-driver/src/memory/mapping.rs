//! Regions, and their mappings in this process.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    ptr::{self, NonNull},
    sync::Arc,
};

use rustix::{
    fs::MemfdFlags,
    mm::{MapFlags, ProtFlags},
};

use crate::memory::error::MemoryError;

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
    pub(super) fn holds(&self, addr: u64, len: u64) -> bool {
        addr >= self.guest_addr && len <= self.size && addr - self.guest_addr <= self.size - len
    }
}

/// A region and its mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) region: Region,
    pub(super) base: NonNull<u8>,
}

impl Mapping {
    /// Maps `size` bytes of a file at `offset`. A guest address of None is that of this process.
    pub(super) fn new(
        guest_addr: Option<u64>,
        size: u64,
        file: Arc<File>,
        offset: u64,
    ) -> Result<Mapping, MemoryError> {
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
        Ok(Mapping { region, base })
    }
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

pub(super) fn memfd(size: u64, huge: bool) -> Result<Arc<File>, MemoryError> {
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
