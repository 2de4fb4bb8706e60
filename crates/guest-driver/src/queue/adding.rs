//! Chains for the device: added, published, notified.

use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::{
    memory::MemoryError,
    queue::{
        Half, KickPolicy, VirtQueue,
        chain::{Buffer, Chain, Piece, Placement},
        error::AddError,
    },
    ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, Desc, PackedDesc},
};

impl VirtQueue {
    /// Adds a chain. The device sees it after [`Self::publish`]. Returns its id: the head's
    /// index, or the buffer id on a packed ring.
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
        let table_in_chain = !direct.is_empty() && !in_table.is_empty();
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
        if table_in_chain && matches!(self.half, Half::Packed(_)) {
            return Err(AddError::Shape("on a packed ring no chain goes on in a table"));
        }
        if descs > usize::from(self.free_count) {
            return Err(AddError::Full);
        }
        let table = if in_table.is_empty() { None } else { Some(self.write_table(in_table)?) };
        let last = table.map(|(addr, len)| Piece { addr, len: len as u32, flags: DESC_INDIRECT });
        let direct = direct.iter().map(|buffer| Piece {
            addr: buffer.addr,
            len: buffer.len,
            flags: write_flag(buffer),
        });
        let id = match &mut self.half {
            Half::Split(half) => half.write(direct.chain(last)),
            Half::Packed(half) => half.write(descs, direct.chain(last)),
        };
        let writable =
            buffers.iter().filter(|buffer| buffer.writable).map(|buffer| buffer.len).sum();
        self.chains[usize::from(id)] = Some(Chain { token, descs: descs as u16, writable, table });
        if self.in_order {
            self.order.push_back(id);
        }
        self.free_count -= descs as u16;
        self.outstanding += 1;
        self.stats.added += 1;
        Ok(id)
    }

    fn write_table(&mut self, buffers: &[Buffer]) -> Result<(u64, usize), MemoryError> {
        let len = buffers.len() * DESC_LEN;
        let addr = self.link.ring.memory().alloc(len, DESC_LEN)?;
        let span = self.link.ring.memory().span(addr, len)?;
        let packed = matches!(self.half, Half::Packed(_));
        for (i, buffer) in buffers.iter().enumerate() {
            let more = i + 1 < buffers.len();
            let (addr, len, flags) = (buffer.addr, buffer.len, write_flag(buffer));
            let bytes = match more {
                // A packed ring's table has no links, and its ids are reserved (2.8.7).
                _ if packed => PackedDesc { addr, len, id: u16::MAX, flags }.to_bytes(),
                true => Desc { addr, len, flags: flags | DESC_NEXT, next: i as u16 + 1 }.to_bytes(),
                false => Desc { addr, len, flags, next: 0 }.to_bytes(),
            };
            span.write(i * DESC_LEN, &bytes);
        }
        Ok((addr, len))
    }

    /// Makes the chains added so far available. Does not notify.
    #[inline]
    pub fn publish(&mut self) {
        match &mut self.half {
            Half::Split(half) => half.publish(),
            Half::Packed(half) => half.publish(),
        }
    }

    /// Notifies the device of what was published since the last call, if it wants to know. Returns
    /// whether it was notified.
    pub fn notify(&mut self) -> bool {
        // The device must see the chains before we look at what it asks for, or it could sleep.
        fence(SeqCst);
        let announced = match &mut self.half {
            Half::Split(half) => half.announce(),
            Half::Packed(half) => half.announce(),
        };
        let wanted = match (announced, self.kick_policy) {
            (None, _) => return false,
            (_, KickPolicy::Always) => true,
            (_, KickPolicy::Never) => false,
            (Some(wanted), KickPolicy::Standard) => wanted,
        };
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
