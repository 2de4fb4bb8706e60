//! Chains that the device has used: counted, checked, taken.

use std::sync::atomic::Ordering::Acquire;

use crate::queue::{VirtQueue, chain::Used, error::DeviceError};

impl VirtQueue {
    /// True if used entries wait to be taken.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.used_ready() != 0
    }

    /// Used chains that can be taken.
    #[inline]
    pub fn used_ready(&self) -> u16 {
        self.link.ring.used_idx().load(Acquire).wrapping_sub(self.last_used)
    }

    /// Takes the next used chain.
    pub fn pop(&mut self) -> Result<Option<Used>, DeviceError> {
        let ready = self.used_ready();
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.outstanding {
            return Err(DeviceError::UsedIndex { moved: ready, outstanding: self.outstanding });
        }
        let (head, len) =
            if self.in_order { self.next_in_order(ready)? } else { self.next_by_id()? };
        let Some(chain) = self.chains[usize::from(head)].take() else {
            return Err(DeviceError::UsedId(head.into()));
        };
        let len = len.unwrap_or(chain.writable);
        if len > chain.writable {
            return Err(DeviceError::UsedLen { len, writable: chain.writable });
        }
        self.free_count += chain.descs;
        if !self.in_order {
            let mut index = head;
            for _ in 0..chain.descs {
                self.free.push(index);
                index = self.following[usize::from(index)];
            }
        }
        if let Some((addr, len)) = chain.table {
            self.link.ring.memory().free(addr, len);
        }
        self.last_used = self.last_used.wrapping_add(1);
        self.outstanding -= 1;
        self.stats.used += 1;
        if self.event_idx && self.last_used & 0x3fff == 0 {
            // An event field left behind comes near again after 65,536 chains.
            self.suppress_interrupts();
        }
        Ok(Some(Used { token: chain.token, len }))
    }

    fn next_by_id(&self) -> Result<(u16, Option<u32>), DeviceError> {
        let (id, len) = self.link.ring.used_entry(self.last_used);
        let head = u16::try_from(id).ok().filter(|head| *head < self.link.ring.size());
        Ok((head.ok_or(DeviceError::UsedId(id))?, Some(len)))
    }

    /// Returns the next chain of a batch, with IN_ORDER.
    ///
    /// One used entry may stand for several chains, at the first one's place, naming the last one
    /// (virtio 1.2, 2.7.9). Those before the last count as written completely.
    fn next_in_order(&mut self, ready: u16) -> Result<(u16, Option<u32>), DeviceError> {
        if self.batch.0 == 0 {
            let (id, len) = self.link.ring.used_entry(self.last_used);
            let at = self.order.iter().take(ready.into()).position(|head| u32::from(*head) == id);
            let at = at.ok_or(DeviceError::OutOfOrder(id))?;
            self.batch = (at as u16 + 1, len);
        }
        self.batch.0 -= 1;
        let head = self
            .order
            .pop_front()
            .ok_or(DeviceError::UsedIndex { moved: ready, outstanding: 0 })?;
        Ok((head, (self.batch.0 == 0).then_some(self.batch.1)))
    }
}
