//! The dirty log: one bit for each 4 KiB page of guest memory, set when the device stored into it
//! (VHOST_F_LOG_ALL).
//!
//! The front end reads it while guests run to learn what to copy again during live migration.

use std::{
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU8, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{
    maps::{Maps, TooManyMaps},
    memory::{Backing, BackingError},
    sigbus,
};

const LOG_PAGE: u64 = 4096;
/// Largest log: for 32 TiB of guest addresses.
const MAX_LOG: u64 = 1 << 30;

/// Reason for refusing a log.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum LogError {
    #[error("a dirty log of {0} bytes: it may have 1 to {MAX_LOG}")]
    Size(u64),
    #[error("the dirty log needs {needed} bytes of its file, which has {have}")]
    FileTooSmall { needed: u64, have: u64 },
    #[error("the dirty log {0}")]
    Backing(#[from] BackingError),
    #[error("cannot map the dirty log: {0}")]
    Map(rustix::io::Errno),
    #[error("cannot map the dirty log: {0}")]
    Maps(#[from] TooManyMaps),
}

/// A mapped log (SET_LOG_BASE).
pub struct DirtyLog {
    base: NonNull<u8>,
    len: usize,
    bits: NonNull<AtomicU8>,
    bytes: u64,
    guard: sigbus::Guard,
    _counted: Maps,
}

// SAFETY: the log is only accessed through atomics.
unsafe impl Send for DirtyLog {}
// SAFETY: as above.
unsafe impl Sync for DirtyLog {}

impl DirtyLog {
    /// Maps `size` bytes of `file` from `offset`. The file must be that large.
    pub fn map(file: &OwnedFd, size: u64, offset: u64) -> Result<DirtyLog, LogError> {
        if size == 0 || size > MAX_LOG {
            return Err(LogError::Size(size));
        }
        let end = offset.checked_add(size).ok_or(LogError::Size(size))?;
        let backing = Backing::of(file.as_fd())?;
        if backing.size < end {
            return Err(LogError::FileTooSmall { needed: end, have: backing.size });
        }
        // The mapping starts and ends on page boundaries of the file.
        let start = offset / backing.page * backing.page;
        let len =
            (end - start).checked_next_multiple_of(backing.page).ok_or(LogError::Size(size))?;
        let len = usize::try_from(len).map_err(|_| LogError::Size(size))?;
        let skip = usize::try_from(offset - start).map_err(|_| LogError::Size(size))?;
        let counted = Maps::take(1)?;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                start,
            )
        }
        .map_err(LogError::Map)?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or(LogError::Map(rustix::io::Errno::NOMEM))?;
        // SAFETY: skip < len.
        let bits = unsafe { base.add(skip) }.cast();
        let guard = sigbus::Guard::new(base.as_ptr() as usize, len, backing.page as usize);
        Ok(DirtyLog { base, len, bits, bytes: size, guard, _counted: counted })
    }

    /// True if the file became shorter than its mapping: pages marked since then are lost.
    pub fn poisoned(&self) -> bool {
        self.guard.poisoned()
    }

    /// Marks the pages of `len` bytes at a guest address. Pages beyond the log are ignored: the
    /// front end said how much it wants to know.
    pub(crate) fn mark(&self, guest_addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        let first = guest_addr / LOG_PAGE;
        let last = guest_addr.saturating_add(len - 1) / LOG_PAGE;
        for page in first..=last {
            let byte = page / 8;
            if byte >= self.bytes {
                return;
            }
            // SAFETY: byte < self.bytes, which lie in the mapping; AtomicU8 has no alignment.
            let bits = unsafe { self.bits.add(byte as usize).as_ref() };
            bits.fetch_or(1 << (page % 8), Ordering::Relaxed);
        }
    }
}

impl Drop for DirtyLog {
    fn drop(&mut self) {
        self.guard.release();
        // SAFETY: made in map() and unmapped once; rings hold the log in an Arc.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn marks_each_page_touched_and_none_beyond() {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let log = DirtyLog::map(&file, 2, 0).unwrap();
        log.mark(4095, 2);
        log.mark(8 * 4096, 1);
        log.mark(16 * 4096, 1); // page 16 is beyond two bytes
        log.mark(u64::MAX, 5);
        let mut bytes = [0; 3];
        rustix::io::pread(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [0b11, 0b1, 0]);
    }

    #[test]
    fn a_short_file_is_refused() {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 10).unwrap();
        assert!(matches!(
            DirtyLog::map(&file, 11, 0),
            Err(LogError::FileTooSmall { needed: 11, have: 10 })
        ));
        assert!(matches!(DirtyLog::map(&file, 1, u64::MAX), Err(LogError::Size(1))));
        assert!(matches!(DirtyLog::map(&file, MAX_LOG + 1, 0), Err(LogError::Size(_))));
        assert!(matches!(DirtyLog::map(&file, 0, 0), Err(LogError::Size(0))));
    }

    #[test]
    fn a_truncated_log_takes_marks_and_says_so() {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let log = DirtyLog::map(&file, 8192, 0).unwrap();
        log.mark(0, 1);
        assert!(!log.poisoned());
        ftruncate(&file, 0).unwrap();
        log.mark(8 * 4096 * 4097, 1);
        assert!(log.poisoned());
    }
}
