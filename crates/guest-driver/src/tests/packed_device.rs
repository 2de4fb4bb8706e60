//! The device's half of a packed ring, for tests.
//!
//! Written from virtio 1.2, 2.8, on bytes of memory: it shares no code with the driver, so that a
//! rule which the driver misunderstood is not misunderstood twice.

use std::sync::{
    Arc,
    atomic::{
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
};

use butterfly_vhost::net::Features;

use super::loopback::{DeviceChain, DeviceHalf};
use crate::{memory::Span, *};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// One of the two places of a device in its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) index: u16,
    pub(super) wrap: u16,
}

impl Spot {
    pub(super) fn step(&mut self, size: u16) {
        self.index += 1;
        if self.index == size {
            *self = Spot { index: 0, wrap: self.wrap ^ 1 };
        }
    }

    pub(super) fn bits(self) -> u16 {
        self.wrap << 15 | self.index
    }
}

/// A used descriptor that is not written yet.
struct UsedEntry {
    spot: Spot,
    id: u16,
    len: u32,
}

/// The device's half of a packed ring.
pub(super) struct PackedDevice {
    desc: Span,
    driver: Span,
    device: Span,
    size: u16,
    memory: Arc<Memory>,
    call: Arc<std::os::fd::OwnedFd>,
    features: Features,
    pub(super) avail: Spot,
    pub(super) used: Spot,
    pending: Vec<UsedEntry>,
    signalled: Spot,
    batch_used: bool,
}

impl PackedDevice {
    pub(super) fn of(nic: &impl Nic, index: usize) -> PackedDevice {
        let (link, memory) = (nic.link(index), nic.memory());
        let addr = link.ring.addr();
        let size = link.ring.size();
        let first = Spot { index: link.first & 0x7fff, wrap: link.first >> 15 };
        PackedDevice {
            desc: memory.span(addr.desc, 16 * usize::from(size)).unwrap(),
            driver: memory.span(addr.avail, 4).unwrap(),
            device: memory.span(addr.used, 4).unwrap(),
            size,
            memory: memory.clone(),
            call: link.call.clone(),
            features: nic.features(),
            avail: first,
            used: first,
            pending: Vec::new(),
            signalled: first,
            batch_used: false,
        }
    }

    fn flags(&self, spot: Spot) -> u16 {
        self.desc.atomic_u16(16 * usize::from(spot.index) + 14).load(Acquire)
    }

    /// True if the descriptor at `spot` is available in that lap: AVAIL is the wrap counter, USED
    /// is not.
    fn is_available(&self, spot: Spot) -> bool {
        let flags = self.flags(spot);
        (flags >> 7 & 1, flags >> 15) == (spot.wrap, spot.wrap ^ 1)
    }

    fn table(&self, chain: &mut DeviceChain, addr: u64, len: u32) {
        assert!(self.features.has(Features::INDIRECT_DESC), "a table was not negotiated");
        assert!(len > 0 && len.is_multiple_of(16));
        for entry in 0..u64::from(len / 16) {
            let bytes = self.memory.read_vec(addr + 16 * entry, 16).unwrap();
            let flags = u16::from_le_bytes([bytes[14], bytes[15]]);
            assert_eq!(flags & !WRITE, 0, "no other flag in a table");
            chain.push(
                u64::from_le_bytes(bytes[..8].try_into().unwrap()),
                u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
                flags & WRITE != 0,
            );
        }
    }

    /// Asks to be notified of the descriptor at `spot`, always (Some(None)), or never (None).
    pub(super) fn ask(&self, spot: Option<Option<Spot>>) {
        let (off_wrap, flags) = match spot {
            None => (0, 1),
            Some(None) => (0, 0),
            Some(Some(spot)) => (spot.bits(), 2),
        };
        self.device.atomic_u16(0).store(off_wrap, Relaxed);
        self.device.atomic_u16(2).store(flags, Relaxed);
        fence(SeqCst);
    }

    /// True if the driver wants an interrupt after descriptors from `signalled` up to `used` were
    /// used. Looks at each of them.
    fn interrupts(&self) -> bool {
        let mut spot = self.signalled;
        let asked = self.driver.atomic_u16(0).load(Relaxed);
        match self.driver.atomic_u16(2).load(Relaxed) {
            0 => spot != self.used,
            1 => false,
            2 => {
                assert!(self.features.has(Features::EVENT_IDX), "DESC needs EVENT_IDX");
                while spot != self.used {
                    if spot.bits() == asked {
                        return true;
                    }
                    spot.step(self.size);
                }
                false
            }
            flags => panic!("event flags {flags} are reserved"),
        }
    }

    /// True if the driver asked for no interrupts at all.
    pub(super) fn is_suppressed(&self) -> bool {
        self.driver.atomic_u16(2).load(Relaxed) == 1
    }
}

impl DeviceHalf for PackedDevice {
    fn features(&self) -> Features {
        self.features
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn set_batch_used(&mut self, on: bool) {
        self.batch_used = on;
    }

    fn take(&mut self) -> Option<DeviceChain> {
        if !self.is_available(self.avail) {
            return None;
        }
        let mut chain = DeviceChain::default();
        loop {
            assert!(chain.descs < self.size, "a chain that ends");
            assert!(self.is_available(self.avail), "a chain is available whole");
            let at = 16 * usize::from(self.avail.index);
            let flags = self.flags(self.avail);
            let addr = self.desc.atomic_u64(at).load(Relaxed);
            let len = self.desc.atomic_u32(at + 8).load(Relaxed);
            // Only the last one's counts.
            chain.id = self.desc.atomic_u16(at + 12).load(Relaxed);
            chain.descs += 1;
            self.avail.step(self.size);
            if flags & INDIRECT != 0 {
                assert!(flags & NEXT == 0 && chain.descs == 1, "a table stands alone");
                self.table(&mut chain, addr, len);
                return Some(chain);
            }
            chain.push(addr, len, flags & WRITE != 0);
            if flags & NEXT == 0 {
                return Some(chain);
            }
        }
    }

    fn push_used(&mut self, chain: &DeviceChain, len: u32) {
        match self.pending.last_mut().filter(|_| self.batch_used) {
            // The first one's place, the last one's id.
            Some(entry) => (entry.id, entry.len) = (chain.id, len),
            None => self.pending.push(UsedEntry { spot: self.used, id: chain.id, len }),
        }
        (0..chain.descs).for_each(|_| self.used.step(self.size));
    }

    /// Writes the first one last, so that the driver sees all or none.
    fn publish(&mut self) {
        for UsedEntry { spot, id, len } in self.pending.drain(..).rev() {
            let at = 16 * usize::from(spot.index);
            self.desc.atomic_u16(at + 12).store(id, Relaxed);
            // Without WRITE, the length says nothing.
            let (len, write) = if len > 0 { (len, WRITE) } else { (u32::MAX, 0) };
            self.desc.atomic_u32(at + 8).store(len, Relaxed);
            let flags = spot.wrap << 7 | spot.wrap << 15 | write;
            self.desc.atomic_u16(at + 14).store(flags, Release);
        }
        fence(SeqCst);
        if self.interrupts() {
            rustix::io::write(&*self.call, &1u64.to_ne_bytes()).unwrap();
        }
        self.signalled = self.used;
    }

    fn mark(&mut self) -> u64 {
        u64::from(self.avail.bits())
            | u64::from(self.used.bits()) << 16
            | (self.pending.len() as u64) << 32
    }

    fn go_back(&mut self, mark: u64) {
        let spot = |bits: u16| Spot { index: bits & 0x7fff, wrap: bits >> 15 };
        (self.avail, self.used) = (spot(mark as u16), spot((mark >> 16) as u16));
        self.pending.truncate((mark >> 32) as usize);
    }
}
