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
        let len = entries + size as usize * size_of::<T>();
        let mapping = Mapping::shared(fd, page, len)?;
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

    /// Returns whether the ring of `fd` at `page` has more entries. The kernel maps no page behind
    /// a ring.
    fn is_longer(fd: BorrowedFd<'_>, page: u64, offsets: &XdpRingOffset, size: u32) -> bool {
        const PAGE: usize = 4096;
        let entries = usize::try_from(offsets.desc).unwrap_or(0);
        let len = entries + size as usize * size_of::<T>();
        Mapping::shared(fd, page, len + PAGE).is_ok()
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

    /// Reads the entry of an index.
    fn read(&self, index: u32) -> T {
        // SAFETY: the place is inside the ring, and every pattern of bits is an entry. The other
        // side may write there: it is the kernel, and the value is checked before it is used.
        unsafe { self.entry(index).as_ptr().read_volatile() }
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

    /// Returns whether the ring of `fd` at `page` has more entries than `size`.
    pub fn is_longer(fd: BorrowedFd<'_>, page: u64, offsets: &XdpRingOffset, size: u32) -> bool {
        Shared::<T>::is_longer(fd, page, offsets, size)
    }

    /// Goes on behind what a former process published.
    pub fn go_on(&mut self) {
        self.next = self.published();
        self.seen = self.consumed();
    }

    /// Returns the index behind the last entry that was published.
    pub fn published(&self) -> u32 {
        self.ring.producer().load(Ordering::Acquire)
    }

    /// Returns the index behind the last entry that was appended.
    #[inline]
    pub fn appended(&self) -> u32 {
        self.next
    }

    /// Returns an entry that was published and that the ring still holds.
    pub fn entry(&self, index: u32) -> T {
        self.ring.read(index)
    }

    /// Returns whether an entry can be appended.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.next.wrapping_sub(self.seen) < self.ring.size {
            return true;
        }
        // Acquire: the kernel has read the entries that it gave back.
        self.seen = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.seen) < self.ring.size
    }

    /// Appends an entry, not yet shown; `false` if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if !self.has_room() {
            return false;
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

    /// Returns whether the ring of `fd` at `page` has more entries than `size`.
    pub fn is_longer(fd: BorrowedFd<'_>, page: u64, offsets: &XdpRingOffset, size: u32) -> bool {
        Shared::<T>::is_longer(fd, page, offsets, size)
    }

    /// Goes on at an index.
    pub fn go_on_at(&mut self, index: u32) {
        (self.next, self.seen) = (index, index);
    }

    /// Writes the entries of the lap before the first one, as if the kernel had, and goes on with
    /// those. The kernel has not begun.
    pub fn begin_with(&mut self, entries: impl Iterator<Item = T>) {
        self.seen = self.produced();
        self.next = self.seen.wrapping_sub(self.ring.size);
        for (index, entry) in (0..self.ring.size).zip(entries) {
            let place = self.ring.entry(self.next.wrapping_add(index));
            // SAFETY: the place is inside the ring, and the kernel does not write yet.
            unsafe { place.write(entry) };
        }
        self.release();
    }

    /// Returns the index that was released last.
    pub fn released(&self) -> u32 {
        self.ring.consumer().load(Ordering::Acquire)
    }

    /// Returns the index behind the kernel's last entry.
    pub fn produced(&self) -> u32 {
        self.ring.producer().load(Ordering::Acquire)
    }

    /// Returns an entry that the kernel published and that the ring still holds.
    pub fn entry(&self, index: u32) -> T {
        self.ring.read(index)
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

/// A ring without a kernel, of which each call maps another end.
#[cfg(test)]
pub struct TestRing {
    file: std::os::fd::OwnedFd,
    size: u32,
}

#[cfg(test)]
impl TestRing {
    /// Its indices begin at `start`.
    pub fn new(size: u32, start: u32) -> TestRing {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        let ring = TestRing { file, size };
        let shared = ring.shared::<u64>();
        shared.producer().store(start, Ordering::Relaxed);
        shared.consumer().store(start, Ordering::Relaxed);
        ring
    }

    fn shared<T: Entry>(&self) -> Shared<T> {
        let mapping = Mapping::shared(std::os::fd::AsFd::as_fd(&self.file), 0, 1 << 20).unwrap();
        Shared::new(mapping, [0, 64, 128], 192, self.size).unwrap()
    }

    /// The end that fills it, as a former process left it.
    pub fn producer<T: Entry>(&self) -> Producer<T> {
        let mut producer = Producer { ring: self.shared(), next: 0, seen: 0 };
        producer.go_on();
        producer
    }

    /// The end that empties it, as a former process left it.
    pub fn consumer<T: Entry>(&self) -> Consumer<T> {
        let mut consumer = Consumer { ring: self.shared(), next: 0, seen: 0 };
        consumer.go_on_at(consumer.released());
        consumer
    }

    /// Overwrites the indices of producer and consumer, as no honest process would.
    pub fn forge(&self, producer: Option<u32>, consumer: Option<u32>) {
        let shared = self.shared::<u64>();
        producer.into_iter().for_each(|at| shared.producer().store(at, Ordering::Relaxed));
        consumer.into_iter().for_each(|at| shared.consumer().store(at, Ordering::Relaxed));
    }
}

/// Both ends of one ring, as if each were the other's kernel. Indices begin at `start`.
#[cfg(test)]
pub fn pair<T: Entry>(size: u32, start: u32) -> (Producer<T>, Consumer<T>) {
    let ring = TestRing::new(size, start);
    (ring.producer(), ring.consumer())
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
