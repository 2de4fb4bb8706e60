//! Frames between guest memory and a file, without a copy in between.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use crate::memory::span::Span;

/// Most pieces that go out in one call.
pub const MAX_PIECES: usize = 64;

fn done(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl Span {
    /// Reads once from a file into the `len` bytes at `at`. Returns how many came.
    ///
    /// # Panics
    /// If they are not inside the span.
    pub fn read_from(&self, at: usize, len: usize, file: BorrowedFd<'_>) -> io::Result<usize> {
        let to = self.at(at, len);
        // SAFETY: `to` is valid for `len` bytes (see `at`), to which there are no references; that
        // others may access them meanwhile only decides what they read.
        done(unsafe { libc::read(file.as_raw_fd(), to.cast(), len) })
    }

    /// Writes pieces of the span to a file with one call: where each begins, and its bytes. Returns
    /// how many bytes went.
    ///
    /// # Panics
    /// If one is not inside the span.
    pub fn write_to(&self, pieces: &[(usize, usize)], file: BorrowedFd<'_>) -> io::Result<usize> {
        let mut vectors = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_PIECES];
        let vectors = vectors.get_mut(..pieces.len()).ok_or(io::ErrorKind::InvalidInput)?;
        for (vector, (at, len)) in vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: self.at(*at, *len).cast(), iov_len: *len };
        }
        // SAFETY: each vector names bytes inside the span (see `at`), which the kernel only reads;
        // that others may write them meanwhile only decides what it reads. There are at
        // most `MAX_PIECES` vectors, which fits an `int`.
        done(unsafe { libc::writev(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::AsFd,
    };

    use super::*;
    use crate::memory::{Memory, MemoryConfig};

    #[test]
    fn bytes_go_through_files_as_they_are() {
        let memory = Memory::new(&MemoryConfig::new(4096)).unwrap();
        let span = memory.span(memory.alloc(64, 64).unwrap(), 64).unwrap();
        let (mut reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"hello, world").unwrap();
        assert_eq!(span.read_from(10, 54, reader.as_fd()).unwrap(), 12);
        assert_eq!(span.read_array(10), *b"hello, world");
        assert_eq!(span.write_to(&[(17, 5), (15, 2), (10, 5)], writer.as_fd()).unwrap(), 12);
        let mut got = [0; 12];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"world, hello");
        let many = [(0, 1); MAX_PIECES + 1];
        assert!(span.write_to(&many, writer.as_fd()).is_err());
    }
}
