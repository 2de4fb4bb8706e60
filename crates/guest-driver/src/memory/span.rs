//! Spans: stretches of guest memory in one region, with every access checked.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU32, AtomicU64},
    },
};

use crate::memory::mapping::Mapping;

/// A stretch of guest memory in one region. Keeps the mapping alive. Its accesses are checked
/// against its length; what the other side of the shared memory does meanwhile decides what is
/// read, nothing else.
#[derive(Clone, Debug)]
pub struct Span {
    pub(super) mapping: Arc<Mapping>,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) addr: u64,
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

    /// The two numbers at `at` as atomics. Panics if they are not aligned or not inside.
    #[inline]
    pub fn atomic_u64_pair(&self, at: usize) -> &[AtomicU64; 2] {
        // SAFETY: as in `atomic_u16`; an array has no padding, and the alignment of its elements.
        unsafe { &*self.aligned::<[AtomicU64; 2]>(at) }
    }

    /// The number at `at` as an atomic. Panics if it is not aligned or not inside.
    #[inline]
    pub fn atomic_u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `atomic_u16`.
        unsafe { AtomicU64::from_ptr(self.aligned(at)) }
    }
}
