//! A small file of atomic words in memory, that outlives the process if another one keeps its
//! descriptor.
//!
//! A process that reads it after a crash must check what it finds.

use std::{
    io,
    ops::{Deref, Range},
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
        ftruncate, memfd_create,
    },
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};

/// No page of the kernel's is smaller.
const PAGE: usize = 4096;

/// The words.
#[derive(Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Makes a file of `len` words of zeros, whose length stays. Returns it, to be kept, and its
    /// words.
    pub fn create(name: &str, len: usize) -> io::Result<(OwnedFd, Words)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (len * size_of::<AtomicU64>()) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let words = Words::map(&file, len)?;
        Ok((file, words))
    }

    /// The words of a file that [`Words::create`] made, perhaps in another process. One of another
    /// length, or whose length may change, is refused.
    pub fn map(file: impl AsFd, len: usize) -> io::Result<Words> {
        let bytes = len * size_of::<AtomicU64>();
        let seals = fcntl_get_seals(&file)?;
        if fstat(&file)?.st_size != bytes as i64 || !seals.contains(SealFlags::SHRINK) || bytes == 0
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let file = file.as_fd().try_clone_to_owned()?;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Words { base, len, file })
    }

    /// Makes some of the words, which are whole pages, zeros, and gives their memory back.
    pub fn clear(&self, words: Range<usize>) -> io::Result<()> {
        let bytes = |words: usize| (words * size_of::<AtomicU64>()) as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, bytes(words.start), bytes(words.len()))?;
        Ok(())
    }

    /// Has memory for some of the words. Later none of them faults because there is none.
    pub fn have(&self, words: Range<usize>) -> io::Result<()> {
        let words = self.get(words).ok_or(io::ErrorKind::InvalidInput)?;
        let from = words.as_ptr().cast::<u8>();
        let before = from.addr() % PAGE;
        // SAFETY: mapped by us, from the beginning of a page; nothing in it changes.
        let had = unsafe {
            let from = from.sub(before).cast_mut().cast();
            madvise(from, before + size_of_val(words), Advice::LinuxPopulateWrite)
        };
        match had {
            // Kernels before 5.14 do not know it; there they are had when they are touched.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `len` words were mapped, page aligned, for as long as self lives. The file cannot
        // become shorter. All bytes are valid atomics, which may be shared.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; references into it borrow self.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len * size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn what_is_stored_is_found_by_whoever_has_the_file() {
        let (file, words) = Words::create("words", 1024).unwrap();
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        words.have(500..512).unwrap();
        assert!(words.have(500..1025).is_err());
        words[511].store(7, Relaxed);
        words[512].store(8, Relaxed);
        words[0].store(5, Relaxed);
        words.clear(512..1024).unwrap();
        drop(words);
        let again = Words::map(&file, 1024).unwrap();
        let found = [0, 511, 512].map(|at: usize| again[at].load(Relaxed));
        assert_eq!((again.len(), found), (1024, [5, 7, 0]));
    }

    #[test]
    fn files_that_may_change_or_have_another_length_are_refused() {
        let (file, _words) = Words::create("words", 512).unwrap();
        assert!(Words::map(&file, 511).is_err() && Words::map(&file, 1024).is_err());
        assert!(ftruncate(&file, 8).is_err(), "its length stays");
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4096).unwrap();
        assert!(Words::map(&open, 512).is_err());
        assert!(Words::map(std::fs::File::open("/dev/null").unwrap(), 512).is_err());
    }
}
