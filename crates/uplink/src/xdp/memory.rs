//! Memory shared with the kernel: mappings, and the frames in one.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Bytes before the first chunk, for what a successor has to know.
pub const HEAD: usize = 4096;

/// A mapping of this process, writable, all pages there from the start.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is not bound to the thread that made it. What is in it, its users look after.
unsafe impl Send for Mapping {}
// SAFETY: it gives out pointers, and changes nothing by itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of our own.
    #[cfg(test)]
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        // SAFETY: without an address to map at, no other mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        Mapping::new(start.cast(), len)
    }

    /// A part of a descriptor, shared with the kernel.
    pub fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let start = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset)
        }?;
        Mapping::new(start.cast(), len)
    }

    fn new(start: *mut u8, len: usize) -> io::Result<Mapping> {
        Ok(Mapping { start: NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns a pointer to `count` values of type `T`, `offset` bytes behind its start; `None` if
    /// they are not all inside, or not aligned.
    pub fn pointer<T>(&self, offset: usize, count: usize) -> Option<NonNull<T>> {
        let end = count.checked_mul(size_of::<T>())?.checked_add(offset)?;
        // SAFETY: `offset` is not beyond the end of the mapping, since `end` is not.
        let pointer = (end <= self.len).then(|| unsafe { self.start.add(offset) }.cast::<T>())?;
        pointer.is_aligned().then_some(pointer)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are of a mapping that this value alone owns; pointers into it
        // live in values that hold it. The kernel keeps pages it still uses by references
        // of its own.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The frames of one AF_XDP socket: a mapping in chunks of one size, each lent to the kernel or
/// ours. They are in a memory file, behind its head, so that another process can go on with them.
///
/// The process that keeps the file meanwhile never maps it, and a successor maps it when the one
/// before is gone. So only the kernel and this process write here.
pub struct Umem {
    mapping: Mapping,
    chunk: usize,
    file: OwnedFd,
}

impl Umem {
    /// `count` chunks of `chunk` bytes, a power of two.
    pub fn create(chunk: u32, count: u32) -> io::Result<Umem> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("butterfly-uplink", flags)?;
        let len = chunk as usize * count as usize;
        ftruncate(&file, (HEAD + len) as u64)?;
        fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?;
        Umem::of(file, chunk, len)
    }

    /// Returns how many chunks a former process made a memory file for, if it is one.
    pub fn count(file: BorrowedFd<'_>, chunk: u32) -> io::Result<u64> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        Ok(size.saturating_sub(HEAD as u64) / u64::from(chunk.max(1)))
    }

    /// Takes one that a former process made, which need not be what it seems.
    pub fn adopt(file: OwnedFd, chunk: u32, count: u32) -> io::Result<Umem> {
        let len = chunk as usize * count as usize;
        // Without this seal, what is mapped may go away.
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if !sealed || size != (HEAD + len) as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a memory file of {size} bytes, sealed: {sealed}"),
            ));
        }
        Umem::of(file, chunk, len)
    }

    fn of(file: OwnedFd, chunk: u32, len: usize) -> io::Result<Umem> {
        let mapping = Mapping::shared(file.as_fd(), HEAD as u64, len)?;
        Ok(Umem { mapping, chunk: chunk as usize, file })
    }

    /// The memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The memory, to be registered.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the beginning of the chunk that `address` is in.
    #[inline]
    fn chunk_of(&self, address: u64) -> u64 {
        address & !(self.chunk as u64 - 1)
    }

    /// Returns a pointer to `len` bytes at `address` (from the start of the memory); `None` if they
    /// are not all in one chunk.
    #[inline]
    fn place(&self, address: u64, len: usize) -> Option<NonNull<u8>> {
        let in_chunk = (address - self.chunk_of(address)) as usize;
        (in_chunk + len <= self.chunk)
            .then(|| self.mapping.pointer(usize::try_from(address).ok()?, len))?
    }

    /// The bytes of a frame; `None` if they are not all in one chunk.
    ///
    /// # Safety
    ///
    /// The chunk is ours: the kernel gave it to us, and does not have it again as long as the
    /// result lives.
    #[inline]
    pub unsafe fn frame(&self, address: u64, len: usize) -> Option<&[u8]> {
        let place = self.place(address, len)?;
        // SAFETY: `place` found `len` bytes inside the mapping, initialised since it was made of
        // zeroes. The kernel does not write to them (the caller's promise), nor does another
        // process (see the type), nor anybody else here: chunks that receive are never written
        // here (the promise to `frame_mut`).
        Some(unsafe { slice::from_raw_parts(place.as_ptr(), len) })
    }

    /// The bytes of a frame, to be written.
    ///
    /// # Safety
    ///
    /// As for [`Self::frame`], and no other reference into the chunk lives as long as the result.
    #[inline]
    #[allow(clippy::mut_from_ref)] // each chunk has one owner, which is the caller
    pub unsafe fn frame_mut(&self, address: u64, len: usize) -> Option<&mut [u8]> {
        let place = self.place(address, len)?;
        // SAFETY: as above; the caller promises that there is no other reference to these bytes.
        Some(unsafe { slice::from_raw_parts_mut(place.as_ptr(), len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_within_one_chunk() {
        let umem = Umem::create(2048, 2).unwrap();
        let inside = |address, len| umem.place(address, len).is_some();
        assert!(
            inside(0, 2048)
                && inside(2048, 2048)
                && inside(256, 1792)
                && inside(4095, 1)
                && inside(7, 0)
        );
        assert!(
            !inside(256, 1793)
                && !inside(4096, 1)
                && !inside(u64::MAX, 1)
                && !inside(0, usize::MAX - 4096)
        );
        assert_eq!(umem.chunk_of(2047), 0);
        assert_eq!(umem.chunk_of(2304), 2048);
    }

    #[test]
    fn a_memory_file_that_may_shrink_or_has_another_size_is_refused() {
        let made = Umem::create(2048, 2).unwrap();
        let copy = || made.file().try_clone_to_owned().unwrap();
        assert!(Umem::adopt(copy(), 2048, 2).is_ok());
        assert!(Umem::adopt(copy(), 2048, 4).is_err());
        assert!(Umem::adopt(copy(), 4096, 2).is_err());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = memfd_create("open", flags).unwrap();
        ftruncate(&open, (HEAD + 4096) as u64).unwrap();
        assert!(Umem::adopt(open, 2048, 2).is_err(), "it may shrink under us");
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(Umem::adopt(pipe, 2048, 2).is_err());
    }

    #[test]
    fn values_are_inside_and_aligned() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.pointer::<u64>(4088, 1).is_some());
        assert!(mapping.pointer::<u64>(4089, 1).is_none());
        assert!(mapping.pointer::<u64>(4, 1).is_none());
        assert!(mapping.pointer::<u64>(0, usize::MAX).is_none());
        assert!(mapping.pointer::<u8>(usize::MAX, 1).is_none());
    }
}
