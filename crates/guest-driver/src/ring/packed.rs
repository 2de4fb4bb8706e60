//! The memory of a packed virtqueue: descriptor ring, driver event suppression, device event
//! suppression (virtio 1.2, 2.8).
//!
//! [`PackedRing`] gives raw access to every field, the ones only a device may write included.

use std::sync::{
    Arc,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{
    memory::{Memory, MemoryError, Span},
    ring::parts::{DESC_LEN, MAX_SIZE, RingAddr, passed},
};

/// Descriptor flag: available, in a lap whose wrap counter equals the flag.
pub const PACKED_AVAIL: u16 = 1 << 7;
/// Descriptor flag: used, in a lap whose wrap counter equals the flag.
pub const PACKED_USED: u16 = 1 << 15;
/// Event flags: notify always.
pub const EVENT_ENABLE: u16 = 0;
/// Event flags: never notify.
pub const EVENT_DISABLE: u16 = 1;
/// Event flags: notify at one descriptor (needs EVENT_IDX).
pub const EVENT_DESC: u16 = 2;

/// Bytes of an event suppression structure.
const EVENT_LEN: usize = 4;

/// A descriptor of a packed ring (`struct pvirtq_desc`). A used one has no address.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PackedDesc {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes; of a used descriptor those that the device wrote.
    pub len: u32,
    /// Buffer id, which the last descriptor of a chain and a used descriptor have.
    pub id: u16,
    /// `DESC_*`, [`PACKED_AVAIL`], [`PACKED_USED`].
    pub flags: u16,
}

impl PackedDesc {
    /// Returns length, id and flags as the one number that they are in memory.
    #[inline]
    pub fn word(self) -> u64 {
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.flags) << 48
    }

    /// Makes a descriptor of its address, and of its length, id and flags as one number.
    #[inline]
    pub fn from_words(addr: u64, word: u64) -> PackedDesc {
        PackedDesc { addr, len: word as u32, id: (word >> 32) as u16, flags: (word >> 48) as u16 }
    }

    /// Returns the bytes as they lie in memory.
    pub fn to_bytes(self) -> [u8; DESC_LEN] {
        let mut bytes = [0; DESC_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..].copy_from_slice(&self.word().to_le_bytes());
        bytes
    }
}

/// An event suppression structure (virtio 1.2, 2.8.10): what one side asks of the other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PackedEvent {
    /// Position ([`Position::bits`]) of the descriptor to be notified at, with [`EVENT_DESC`].
    pub off_wrap: u16,
    /// `EVENT_*`; the upper 14 bits are reserved.
    pub flags: u16,
}

impl PackedEvent {
    /// Notify always.
    pub const ENABLE: PackedEvent = PackedEvent { off_wrap: 0, flags: EVENT_ENABLE };
    /// Never notify.
    pub const DISABLE: PackedEvent = PackedEvent { off_wrap: 0, flags: EVENT_DISABLE };

    /// Notify when the descriptor at this position is made available, or used.
    pub const fn at(position: Position) -> PackedEvent {
        PackedEvent { off_wrap: position.bits(), flags: EVENT_DESC }
    }

    /// True if this structure asks for a notification after `moved` descriptors up to `now` were
    /// made available or used. `size` is the ring's.
    #[inline]
    pub fn wants(self, now: Position, moved: u16, size: u16) -> bool {
        let kind = self.flags & 3; // the other bits are reserved
        if kind != EVENT_DESC {
            return kind != EVENT_DISABLE;
        }
        let asked = Position::from_bits(self.off_wrap);
        // A descriptor of the lap before lies below the first one of this lap.
        let before = if asked.wrap == now.wrap { 0 } else { size };
        passed(asked.index.wrapping_sub(before), now.index, now.index.wrapping_sub(moved))
    }
}

/// A place in a packed ring: a descriptor, and the wrap counter of the lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Descriptor.
    pub index: u16,
    /// Wrap counter: true in the first lap, then changing with each.
    pub wrap: bool,
}

impl Position {
    /// Place at which both sides of a fresh ring begin (virtio 1.2, 2.8.1).
    pub const START: Position = Position { index: 0, wrap: true };

    /// Reads the form of SET_VRING_BASE and of event suppression: 15 bits and the wrap counter.
    #[inline]
    pub const fn from_bits(bits: u16) -> Position {
        Position { index: bits & 0x7fff, wrap: bits >> 15 != 0 }
    }

    /// Returns the form of SET_VRING_BASE and of event suppression.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.index | (self.wrap as u16) << 15
    }

    /// Returns the place `count` descriptors on, at most a lap, in a ring of `size`.
    #[inline]
    pub const fn after(self, count: u16, size: u16) -> Position {
        let index = self.index as u32 + count as u32;
        if index < size as u32 {
            Position { index: index as u16, ..self }
        } else {
            Position { index: (index - size as u32) as u16, wrap: !self.wrap }
        }
    }

    /// Returns the flags of a descriptor that is made available here.
    #[inline]
    pub const fn available(self) -> u16 {
        if self.wrap { PACKED_AVAIL } else { PACKED_USED }
    }

    /// Returns the flags of a descriptor that is used here.
    #[inline]
    pub const fn used(self) -> u16 {
        if self.wrap { PACKED_AVAIL | PACKED_USED } else { 0 }
    }

    /// True if a descriptor here with these flags was made available in this lap.
    #[inline]
    pub const fn is_available(self, flags: u16) -> bool {
        flags & (PACKED_AVAIL | PACKED_USED) == self.available()
    }

    /// True if a descriptor here with these flags was used in this lap.
    #[inline]
    pub const fn is_used(self, flags: u16) -> bool {
        flags & (PACKED_AVAIL | PACKED_USED) == self.used()
    }
}

/// The three parts of one packed ring. Indices are taken modulo the size.
#[derive(Clone, Debug)]
pub struct PackedRing {
    memory: Arc<Memory>,
    size: u16,
    desc: Span,
    driver: Span,
    device: Span,
}

impl PackedRing {
    /// Allocates a ring, all zero: descriptors, driver event suppression, device event suppression
    /// on a page of its own. A split ring of that size would fit, too.
    ///
    /// # Panics
    /// If `size` is 0 or more than [`MAX_SIZE`].
    pub fn new(memory: &Arc<Memory>, size: u16) -> Result<PackedRing, MemoryError> {
        let ring = PackedRing::at(memory, size, RingAddr::allocate(memory, size)?)?;
        ring.clear();
        Ok(ring)
    }

    /// Makes a ring of parts that the caller allocated. Their contents stay as they are.
    ///
    /// # Panics
    /// If `size` is 0 or more than [`MAX_SIZE`], or an address is not aligned.
    pub fn at(memory: &Arc<Memory>, size: u16, addr: RingAddr) -> Result<PackedRing, MemoryError> {
        assert!((1..=MAX_SIZE).contains(&size), "ring size {size} is not 1 to {MAX_SIZE}");
        let aligned = addr.desc.is_multiple_of(16)
            && addr.avail.is_multiple_of(4)
            && addr.used.is_multiple_of(4);
        assert!(aligned, "{addr:x?} is not aligned");
        Ok(PackedRing {
            memory: Arc::clone(memory),
            size,
            desc: memory.span(addr.desc, DESC_LEN * usize::from(size))?,
            driver: memory.span(addr.avail, EVENT_LEN)?,
            device: memory.span(addr.used, EVENT_LEN)?,
        })
    }

    /// Gives the memory of a ring made by [`Self::new`] back. The device must have stopped.
    pub fn free(self) {
        self.addr().free(&self.memory, self.size);
    }

    /// Zeroes all three parts.
    pub fn clear(&self) {
        for part in [&self.desc, &self.driver, &self.device] {
            part.fill(0);
        }
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The memory it lies in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Guest-physical addresses. vhost-user calls the driver's events `avail`, the device's `used`.
    pub fn addr(&self) -> RingAddr {
        RingAddr { desc: self.desc.addr(), avail: self.driver.addr(), used: self.device.addr() }
    }

    /// Addresses in this process, which vhost-user front ends hand over.
    pub fn user_addr(&self) -> RingAddr {
        RingAddr {
            desc: self.desc.user_addr(),
            avail: self.driver.user_addr(),
            used: self.device.user_addr(),
        }
    }

    #[inline]
    fn place(&self, index: u16) -> usize {
        let index = if index < self.size { index } else { index % self.size };
        usize::from(index) * DESC_LEN
    }

    /// Reads a descriptor, length, id and flags first (Acquire).
    #[inline]
    pub fn desc(&self, index: u16) -> PackedDesc {
        let [addr, word] = self.desc.atomic_u64_pair(self.place(index));
        let word = word.load(Acquire);
        PackedDesc::from_words(addr.load(Relaxed), word)
    }

    /// Reads length, id and flags of a descriptor as one number (Acquire).
    #[inline]
    pub fn word(&self, index: u16) -> u64 {
        self.desc.atomic_u64(self.place(index) + 8).load(Acquire)
    }

    /// Writes a descriptor, length, id and flags last (Release).
    #[inline]
    pub fn set_desc(&self, index: u16, desc: PackedDesc) {
        let [addr, word] = self.desc.atomic_u64_pair(self.place(index));
        addr.store(desc.addr, Relaxed);
        word.store(desc.word(), Release);
    }

    /// Writes the address of a descriptor, which stays what it was otherwise.
    #[inline]
    pub fn set_addr(&self, index: u16, addr: u64) {
        self.desc.atomic_u64(self.place(index)).store(addr, Relaxed);
    }

    /// Writes length, id and flags of a descriptor as one number (Release): the driver to make it
    /// available, the device to use it.
    #[inline]
    pub fn set_word(&self, index: u16, word: u64) {
        self.desc.atomic_u64(self.place(index) + 8).store(word, Release);
    }

    /// Prefetches the descriptor at `index`.
    #[inline]
    pub fn prefetch(&self, index: u16) {
        self.desc.prefetch(self.place(index));
    }

    /// Reads what the driver asks of the device.
    #[inline]
    pub fn driver_event(&self) -> PackedEvent {
        load(self.driver.atomic_u32(0))
    }

    /// Asks the device for interrupts.
    #[inline]
    pub fn set_driver_event(&self, event: PackedEvent) {
        store(self.driver.atomic_u32(0), event);
    }

    /// Reads what the device asks of the driver.
    #[inline]
    pub fn device_event(&self) -> PackedEvent {
        load(self.device.atomic_u32(0))
    }

    /// Asks the driver for notifications, as a device does.
    #[inline]
    pub fn set_device_event(&self, event: PackedEvent) {
        store(self.device.atomic_u32(0), event);
    }
}

#[inline]
fn load(event: &AtomicU32) -> PackedEvent {
    let bits = event.load(Relaxed);
    PackedEvent { off_wrap: bits as u16, flags: (bits >> 16) as u16 }
}

/// Writes both fields at once: the other side never sees a new flag with an old position.
#[inline]
fn store(event: &AtomicU32, PackedEvent { off_wrap, flags }: PackedEvent) {
    event.store(u32::from(off_wrap) | u32::from(flags) << 16, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryConfig;

    #[test]
    fn packed_fields_are_where_the_standard_puts_them() {
        let memory = Memory::new(&MemoryConfig::new(1 << 20)).unwrap();
        let ring = PackedRing::new(&memory, 3).unwrap();
        let addr = ring.addr();
        let desc =
            PackedDesc { addr: 0x1122334455667788, len: 0x99aabbcc, id: 0x0304, flags: 0x0102 };
        ring.set_desc(4, desc);
        assert_eq!((ring.desc(1), ring.desc(4)), (desc, desc), "indices wrap");
        let bytes = memory.read_vec(addr.desc + 16, 16).unwrap();
        assert_eq!(
            bytes,
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99, 4, 3, 2, 1]
        );
        assert_eq!(bytes, desc.to_bytes());
        ring.set_driver_event(PackedEvent { off_wrap: 0x8001, flags: 2 });
        ring.set_device_event(PackedEvent { off_wrap: 5, flags: 1 });
        assert_eq!(memory.read_vec(addr.avail, 4).unwrap(), [1, 0x80, 2, 0]);
        assert_eq!(memory.read_vec(addr.used, 4).unwrap(), [5, 0, 1, 0]);
        assert_eq!(ring.driver_event(), PackedEvent::at(Position { index: 1, wrap: true }));
    }

    #[test]
    fn largest_packed_ring_fits_and_is_given_back() {
        let memory = Memory::new(&MemoryConfig::new(2 << 20)).unwrap();
        let before = memory.free_bytes();
        for size in [1, 3, MAX_SIZE] {
            PackedRing::new(&memory, size).unwrap().free();
            assert_eq!(memory.free_bytes(), before);
        }
    }

    #[test]
    fn positions_wrap_at_the_size() {
        let at = |index, wrap| Position { index, wrap };
        assert_eq!(at(6, true).after(1, 7), at(0, false));
        assert_eq!(at(6, false).after(7, 7), at(6, true));
        assert_eq!(at(32767, true).after(32767, 32768), at(32766, false));
        for position in [Position::START, at(32767, false)] {
            assert_eq!(Position::from_bits(position.bits()), position);
        }
        assert_eq!(Position::START.bits(), 0x8000);
        // The table of virtio 1.2, 2.8.1: a zeroed ring has nothing available and nothing used.
        assert!(!Position::START.is_available(0) && !Position::START.is_used(0));
        assert!(at(0, false).is_used(0) && at(0, false).is_available(PACKED_USED));
    }

    /// Compares with counting by hand: all events, positions and distances of small rings.
    #[test]
    fn packed_events_are_asked_for_once() {
        for size in [1u16, 2, 3, 5, 8] {
            let lap = 2 * u32::from(size);
            let place = |n: u32| {
                let wrap = (n / u32::from(size)).is_multiple_of(2);
                Position { index: (n % u32::from(size)) as u16, wrap }
            };
            for now in lap..2 * lap {
                for moved in 0..=u32::from(size) {
                    // The other side may ask for what lies up to a lap behind or ahead.
                    for asked in now - u32::from(size)..now + u32::from(size) {
                        let event = PackedEvent::at(place(asked));
                        let wanted = (now - moved..now).contains(&asked);
                        let got = event.wants(place(now), moved as u16, size);
                        assert_eq!(got, wanted, "{asked} of {moved} to {now}, ring of {size}");
                    }
                }
            }
        }
        assert!(PackedEvent::ENABLE.wants(Position::START, 1, 8));
        assert!(!PackedEvent::DISABLE.wants(Position::START, 1, 8));
    }
}
