//! One ring shared with the kernel: one side produces entries, the other consumes them (Linux,
//! Documentation/networking/af_xdp.rst).
//!
//! Indices count on for ever; an entry's place is its index modulo the size. Each side writes its
//! own index only, after it is done with the entries before it.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering, fence},
};

use rustix::net::xdp::XdpRingOffset;

use super::memory::Mapping;

/// Entry of a ring.
///
/// # Safety
///
/// Every pattern of bits is a value, and there is no padding.
pub unsafe trait Entry: Copy {}

// SAFETY: a number.
unsafe impl Entry for u64 {}

/// A frame in the receive or transmit ring (`struct xdp_desc`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Offset from the start of the frames' memory.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Flags; none are used.
    pub options: u32,
}

// SAFETY: numbers, 8 + 4 + 4 bytes at an alignment of 8.
unsafe impl Entry for Descriptor {}

/// State that both sides see.
struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Holds all of the above.
    _mapping: Mapping,
}

// SAFETY: the pointers are into the mapping that goes with them, which is bound to no thread.
unsafe impl<T: Entry> Send for Shared<T> {}

impl<T: Entry> Shared<T> {
    /// Maps a ring of `size` entries, a power of two.
    fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Shared<T>> {
        let at = |offset: u64| {
            usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        };
        let entries = at(offsets.desc)?;
        let mapping = Mapping::shared(fd, page, entries + size as usize * size_of::<T>())?;
        let no_flags = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's AF_XDP rings have no flags (Linux 5.4 and later do)",
            )
        };
        Shared::new(
            mapping,
            [
                at(offsets.producer)?,
                at(offsets.consumer)?,
                at(offsets.flags.ok_or_else(no_flags)?)?,
            ],
            entries,
            size,
        )
    }

    /// A ring in `mapping`: producer index, consumer index and flags at `words`.
    fn new(
        mapping: Mapping,
        words: [usize; 3],
        entries: usize,
        size: u32,
    ) -> io::Result<Shared<T>> {
        let [producer, consumer, flags] =
            words.map(|offset| mapping.pointer(offset, 1).ok_or(io::ErrorKind::InvalidData));
        let (producer, consumer, flags) = (producer?, consumer?, flags?);
        let entries = mapping.pointer(entries, size as usize).ok_or(io::ErrorKind::InvalidData)?;
        debug_assert!(size.is_power_of_two());
        Ok(Shared { producer, consumer, flags, entries, size, _mapping: mapping })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: points to four aligned bytes of the mapping that `self` holds; the kernel
        // accesses them atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }

    /// Returns a pointer to the entry of an index.
    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: `entries` points to `size` entries of the mapping, and the masked index is below
        // that.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

/// Our end of a ring that we fill: fill ring, transmit ring.
pub struct Producer<T> {
    ring: Shared<T>,
    /// Index of the next entry to write.
    next: u32,
    /// Consumer index of the kernel at our last look.
    seen: u32,
}

impl<T: Entry> Producer<T> {
    /// Maps the ring of `fd` at `page`.
    pub fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Producer<T>> {
        Ok(Producer { ring: Shared::map(fd, page, offsets, size)?, next: 0, seen: 0 })
    }

    /// Appends an entry, not yet shown; `false` if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.seen) >= self.ring.size {
            // Acquire: the kernel has read the entries that it gave back.
            self.seen = self.ring.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.seen) >= self.ring.size {
                return false;
            }
        }
        // SAFETY: the place is inside the ring, and less than a ring's size ahead of the consumer:
        // the kernel does not look at it before it is published.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the kernel everything appended.
    #[inline]
    pub fn publish(&mut self) {
        // Release: entries, and the frames they name, are written before.
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// True if something appended was not consumed yet.
    #[inline]
    pub fn outstanding(&self) -> bool {
        self.consumed() != self.next
    }

    /// Returns the consumer index of the kernel.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.ring.consumer().load(Ordering::Acquire)
    }

    /// True if the kernel wants to be woken after something was published.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag, then looks at the ring; we publish, then look at the flag. One
        // of us sees the other.
        fence(Ordering::SeqCst);
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Our end of a ring that the kernel fills: receive ring, completion ring.
pub struct Consumer<T> {
    ring: Shared<T>,
    /// Index of the next entry to read.
    next: u32,
    /// Producer index of the kernel at our last look.
    seen: u32,
}

impl<T: Entry> Consumer<T> {
    /// Maps the ring of `fd` at `page`.
    pub fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Consumer<T>> {
        Ok(Consumer { ring: Shared::map(fd, page, offsets, size)?, next: 0, seen: 0 })
    }

    /// Takes the next entry, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.next == self.seen {
            // Acquire: the entry, and the frame it names, were written before.
            self.seen = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.seen {
                return None;
            }
        }
        // SAFETY: the place is inside the ring; the kernel published it and does not write there
        // again before it is released. Every pattern of bits is an entry.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of all entries taken back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        // Release: the entries are read before.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

/// Both ends of one ring, as if each were the other's kernel. Indices begin at `start`.
#[cfg(test)]
pub fn pair<T: Entry>(size: u32, start: u32) -> (Producer<T>, Consumer<T>) {
    let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let shared = || {
        let mapping = Mapping::shared(std::os::fd::AsFd::as_fd(&file), 0, 4096).unwrap();
        let ring = Shared::new(mapping, [0, 64, 128], 192, size).unwrap();
        ring.producer().store(start, Ordering::Relaxed);
        ring.consumer().store(start, Ordering::Relaxed);
        ring
    };
    (
        Producer { ring: shared(), next: start, seen: start },
        Consumer { ring: shared(), next: start, seen: start },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_arrive_once_in_order_and_only_when_published() {
        // Indices overflow on the way.
        let (mut producer, mut consumer) = pair::<u64>(8, u32::MAX - 20);
        let mut wanted = 0;
        for round in 0..100u64 {
            for entry in 0..5 {
                assert!(producer.push(round * 5 + entry));
            }
            assert_eq!(consumer.take(), None);
            assert!(producer.outstanding());
            producer.publish();
            while let Some(entry) = consumer.take() {
                assert_eq!(entry, wanted);
                wanted += 1;
            }
            consumer.release();
            assert!(!producer.outstanding());
        }
        assert_eq!(wanted, 500);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_entries_are_released() {
        let (mut producer, mut consumer) = pair::<u64>(4, u32::MAX - 1);
        assert!((0..4).all(|entry| producer.push(entry)));
        assert!(!producer.push(4));
        producer.publish();
        assert_eq!(consumer.take(), Some(0));
        assert!(!producer.push(4));
        consumer.release();
        assert!(producer.push(4));
        assert!(!producer.push(5));
    }

    #[test]
    fn the_wakeup_flag_is_read_from_the_ring() {
        let (producer, consumer) = pair::<u64>(4, 0);
        assert!(!producer.needs_wakeup());
        consumer.ring.flags().store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    #[test]
    fn a_ring_outside_its_mapping_is_refused() {
        for (words, entries, size) in [
            ([4096, 64, 128], 192, 4),
            ([0, 4094, 128], 192, 4),
            ([0, 64, 2], 192, 4),
            ([0, 64, 128], 4072, 4),
        ] {
            let mapping = Mapping::anonymous(4096).unwrap();
            assert!(
                Shared::<u64>::new(mapping, words, entries, size).is_err(),
                "{words:?} {entries} {size}"
            );
        }
    }
}
