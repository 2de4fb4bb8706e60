//! The device's half of a split ring, for tests.

use std::sync::atomic::{
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use butterfly_vhost::net::Features;

use super::loopback::{DeviceChain, DeviceHalf};
use crate::{
    ring::{AVAIL_NO_INTERRUPT, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, passed},
    *,
};

/// The device's half of one ring: one chain at a time, addresses resolved through the driver's own
/// memory.
pub(super) struct DeviceQueue {
    pub(super) ring: Ring,
    memory: std::sync::Arc<Memory>,
    call: std::sync::Arc<std::os::fd::OwnedFd>,
    features: Features,
    next_avail: u16,
    next_used: u16,
    signalled: u16,
    batch_used: bool,
}

impl DeviceQueue {
    pub(super) fn of(nic: &impl Nic, index: usize) -> DeviceQueue {
        let link = nic.link(index);
        DeviceQueue {
            ring: link.ring.split().clone(),
            memory: nic.memory().clone(),
            call: link.call.clone(),
            features: nic.features(),
            next_avail: link.first,
            next_used: link.first,
            signalled: link.first,
            batch_used: false,
        }
    }

    fn table_desc(&self, table: u64, index: u16) -> Desc {
        let bytes = self.memory.read_vec(table + 16 * u64::from(index), 16).unwrap();
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
        };
        Desc {
            addr: number(0, 8),
            len: number(8, 12) as u32,
            flags: number(12, 14) as u16,
            next: number(14, 16) as u16,
        }
    }

    /// Writes a used entry, which [`DeviceHalf::publish`] shows.
    pub(super) fn used(&mut self, head: u16, len: u32) {
        self.ring.set_used_entry(self.next_used, head.into(), len, Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
    }
}

impl DeviceHalf for DeviceQueue {
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
        if self.ring.avail_idx().load(Acquire) == self.next_avail {
            return None;
        }
        let head = self.ring.avail_entry(self.next_avail).load(Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
        let mut chain = DeviceChain::new(head);
        let mut desc = self.ring.desc(head);
        let mut table = None;
        loop {
            assert!(desc.flags & DESC_INDIRECT == 0 || desc.flags & DESC_NEXT == 0, "never both");
            if desc.flags & DESC_INDIRECT != 0 {
                assert!(self.features.has(Features::INDIRECT_DESC) && table.is_none());
                assert!(desc.len > 0 && desc.len.is_multiple_of(16));
                table = Some(desc.addr);
                desc = self.table_desc(desc.addr, 0);
                continue;
            }
            let list = if desc.flags & DESC_WRITE != 0 {
                &mut chain.writable
            } else {
                &mut chain.readable
            };
            list.push((desc.addr, desc.len as usize));
            assert!(
                desc.flags & DESC_WRITE != 0 || chain.writable.is_empty(),
                "readable before writable"
            );
            if desc.flags & DESC_NEXT == 0 {
                return Some(chain);
            }
            desc = table.map_or_else(
                || self.ring.desc(desc.next),
                |table| self.table_desc(table, desc.next),
            );
        }
    }

    fn push_used(&mut self, chain: &DeviceChain, len: u32) {
        if self.batch_used {
            // Only the place of the batch's first is written, again and again, until it names the
            // last.
            self.ring.set_used_entry(self.signalled, chain.id.into(), len, Relaxed);
            self.next_used = self.next_used.wrapping_add(1);
        } else {
            self.used(chain.id, len);
        }
    }

    fn publish(&mut self) {
        self.ring.used_idx().store(self.next_used, Release);
        fence(SeqCst);
        let wanted = if self.features.has(Features::EVENT_IDX) {
            passed(self.ring.used_event().load(Relaxed), self.next_used, self.signalled)
        } else {
            self.next_used != self.signalled
                && self.ring.avail_flags().load(Relaxed) & AVAIL_NO_INTERRUPT == 0
        };
        self.signalled = self.next_used;
        if wanted {
            rustix::io::write(&*self.call, &1u64.to_ne_bytes()).unwrap();
        }
    }
    fn mark(&mut self) -> u64 {
        u64::from(self.next_avail) | u64::from(self.next_used) << 16
    }

    fn go_back(&mut self, mark: u64) {
        (self.next_avail, self.next_used) = (mark as u16, (mark >> 16) as u16);
    }
}
