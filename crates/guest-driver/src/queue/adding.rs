//! Chains for the device: added, published, notified.

use std::sync::atomic::{
    Ordering::{Relaxed, Release, SeqCst},
    fence,
};

use crate::{
    memory::MemoryError,
    queue::{
        KickPolicy, VirtQueue,
        chain::{Buffer, Chain, Placement},
        error::AddError,
    },
    ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, Desc, USED_NO_NOTIFY, passed},
};

impl VirtQueue {
    /// Adds a chain. The device sees it after [`Self::publish`]. Returns the head's index.
    pub fn add(
        &mut self,
        buffers: &[Buffer],
        placement: Placement,
        token: u64,
    ) -> Result<u16, AddError> {
        let direct = match placement {
            Placement::Direct => buffers.len(),
            Placement::Indirect => 0,
            Placement::IndirectAfter(direct) => usize::from(direct).min(buffers.len()),
        };
        let (direct, in_table) = buffers.split_at(direct);
        let descs = direct.len() + usize::from(!in_table.is_empty());
        if descs == 0 || descs > usize::from(self.link.ring.size()) {
            return Err(AddError::Shape(
                "it has no buffers, or more than the ring has descriptors",
            ));
        }
        if !buffers.is_sorted_by_key(|buffer| buffer.writable) {
            return Err(AddError::Shape(
                "a buffer for the device to read stands behind one to write",
            ));
        }
        if !in_table.is_empty() && !self.indirect {
            return Err(AddError::Shape("INDIRECT_DESC was not negotiated"));
        }
        if descs > usize::from(self.free_count) {
            return Err(AddError::Full);
        }
        let table = if in_table.is_empty() { None } else { Some(self.write_table(in_table)?) };
        let last =
            table.map(|(addr, len)| Desc { addr, len: len as u32, flags: DESC_INDIRECT, next: 0 });
        let direct = direct.iter().map(|buffer| Desc {
            addr: buffer.addr,
            len: buffer.len,
            flags: write_flag(buffer),
            next: 0,
        });
        let mut head = None;
        let mut previous: Option<(u16, Desc)> = None;
        for desc in direct.chain(last) {
            let index = self.take_desc();
            if let Some((at, mut before)) = previous.replace((index, desc)) {
                (before.flags, before.next) = (before.flags | DESC_NEXT, index);
                self.following[usize::from(at)] = index;
                self.link.ring.set_desc(at, before);
            }
            head.get_or_insert(index);
        }
        if let Some((at, desc)) = previous {
            self.link.ring.set_desc(at, desc);
        }
        let head = head.unwrap_or_default();
        let writable =
            buffers.iter().filter(|buffer| buffer.writable).map(|buffer| buffer.len).sum();
        self.chains[usize::from(head)] =
            Some(Chain { token, descs: descs as u16, writable, table });
        if self.in_order {
            self.order.push_back(head);
        }
        self.link.ring.avail_entry(self.avail_idx).store(head, Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.outstanding += 1;
        self.stats.added += 1;
        Ok(head)
    }

    fn write_table(&mut self, buffers: &[Buffer]) -> Result<(u64, usize), MemoryError> {
        let len = buffers.len() * DESC_LEN;
        let addr = self.link.ring.memory().alloc(len, DESC_LEN)?;
        let span = self.link.ring.memory().span(addr, len)?;
        for (i, buffer) in buffers.iter().enumerate() {
            let more = i + 1 < buffers.len();
            let flags = write_flag(buffer) | if more { DESC_NEXT } else { 0 };
            let next = if more { i as u16 + 1 } else { 0 };
            span.write(
                i * DESC_LEN,
                &Desc { addr: buffer.addr, len: buffer.len, flags, next }.to_bytes(),
            );
        }
        Ok((addr, len))
    }

    fn take_desc(&mut self) -> u16 {
        self.free_count -= 1;
        if self.in_order {
            let index = self.next_desc;
            self.next_desc = (index + 1) & (self.link.ring.size() - 1);
            return index;
        }
        self.free.pop().unwrap_or_default()
    }

    /// Makes the chains added so far available. Does not notify.
    #[inline]
    pub fn publish(&mut self) {
        self.link.ring.avail_idx().store(self.avail_idx, Release);
        self.published = self.avail_idx;
    }

    /// Notifies the device of what was published since the last call, if it wants to know. Returns
    /// whether it was notified.
    pub fn notify(&mut self) -> bool {
        if self.published == self.notified {
            return false;
        }
        // The device must see the index before we look at what it asks for, or it could sleep.
        fence(SeqCst);
        let wanted = match self.kick_policy {
            KickPolicy::Always => true,
            KickPolicy::Never => false,
            KickPolicy::Standard if self.event_idx => {
                passed(self.link.ring.avail_event().load(Relaxed), self.published, self.notified)
            }
            KickPolicy::Standard => self.link.ring.used_flags().load(Relaxed) & USED_NO_NOTIFY == 0,
        };
        self.notified = self.published;
        if wanted {
            self.kick();
        } else {
            self.stats.suppressed += 1;
        }
        wanted
    }

    /// Notifies the device, even if it asked for no notification.
    pub fn kick(&mut self) {
        self.stats.kicks += 1;
        self.link.kick();
    }
}

fn write_flag(buffer: &Buffer) -> u16 {
    if buffer.writable { DESC_WRITE } else { 0 }
}
