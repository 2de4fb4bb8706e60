//! Chains that the device has used: counted, checked, taken.

use std::sync::atomic::Ordering::Acquire;

use crate::{
    queue::{Half, VirtQueue, chain::Used, error::DeviceError, packed::PackedHalf},
    ring::Position,
};

impl VirtQueue {
    /// True if used entries wait to be taken.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.batch.0 != 0
            || match &self.half {
                Half::Split(half) => half.ready() != 0,
                Half::Packed(half) => half.used_at(half.last_used).is_some(),
            }
    }

    /// Used chains that can be taken. On a packed ring all of them are looked at:
    /// [`Self::used_ready_of`] is for callers that want few.
    #[inline]
    pub fn used_ready(&self) -> u16 {
        self.used_ready_of(u16::MAX)
    }

    /// Used chains that can be taken, as far as `wanted`.
    pub fn used_ready_of(&self, wanted: u16) -> u16 {
        match &self.half {
            Half::Split(half) => half.ready().min(wanted),
            Half::Packed(half) => self.walk_used(half, wanted).0,
        }
    }

    /// Counts the used chains of a packed ring, at most `wanted`. Returns the place behind them,
    /// too.
    ///
    /// A used descriptor that is wrong counts as one chain, so that [`Self::pop`] finds it.
    fn walk_used(&self, half: &PackedHalf, wanted: u16) -> (u16, Position) {
        let size = half.ring.size();
        let (mut count, mut at) = (0, half.last_used);
        let descs = |id: u16| self.chains.get(usize::from(id)).copied().flatten().map(|c| c.descs);
        let mut order = self.order.iter().copied();
        for id in order.by_ref().take(usize::from(self.batch.0.min(wanted))) {
            (count, at) = (count + 1, at.after(descs(id).unwrap_or(1), size));
        }
        while count < wanted.min(self.outstanding)
            && let Some((id, _)) = half.used_at(at)
        {
            if !self.in_order {
                count += 1;
                let Some(descs) = descs(id) else { break };
                at = at.after(descs, size);
                continue;
            }
            // The entry stands for all chains up to the one that it names.
            while count < wanted
                && let Some(next) = order.next()
            {
                (count, at) = (count + 1, at.after(descs(next).unwrap_or(1), size));
                if next == id {
                    break;
                }
            }
        }
        (count, at)
    }

    /// Returns the position at which a device that lost its state goes on, as SET_VRING_BASE says
    /// it: behind every chain that was used, since that is done in order.
    ///
    /// A split ring tells it in its used index. A packed one tells only its driver, which knows
    /// the chains: QEMU has no way to learn it.
    pub fn restart_position(&self) -> u16 {
        match &self.half {
            Half::Split(half) => half.ring.used_idx().load(Acquire),
            Half::Packed(half) => self.walk_used(half, u16::MAX).1.bits(),
        }
    }

    /// Takes the next used chain.
    pub fn pop(&mut self) -> Result<Option<Used>, DeviceError> {
        let ready = match &self.half {
            Half::Split(half) => half.ready(),
            Half::Packed(half) => half.used_at(half.last_used).is_some().into(),
        };
        if ready == 0 && self.batch.0 == 0 {
            return Ok(None);
        }
        if ready > self.outstanding {
            return Err(DeviceError::UsedIndex { moved: ready, outstanding: self.outstanding });
        }
        let (id, len) = if self.in_order { self.next_in_order(ready)? } else { self.next_by_id()? };
        let Some(chain) = self.chains[usize::from(id)].take() else {
            return Err(DeviceError::UsedId(id.into()));
        };
        let len = len.unwrap_or(chain.writable);
        if len > chain.writable {
            return Err(DeviceError::UsedLen { len, writable: chain.writable });
        }
        self.free_count += chain.descs;
        if let Some((addr, len)) = chain.table {
            self.link.ring.memory().free(addr, len);
        }
        match &mut self.half {
            Half::Split(half) => half.taken(id, chain.descs),
            Half::Packed(half) => half.taken(id, chain.descs),
        }
        self.outstanding -= 1;
        self.stats.used += 1;
        Ok(Some(Used { token: chain.token, len }))
    }

    /// Returns id and length of the next used entry, which is there.
    fn next_used(&self) -> (u32, u32) {
        match &self.half {
            Half::Split(half) => half.used(),
            Half::Packed(half) => {
                half.used_at(half.last_used).map_or((u32::MAX, 0), |(id, len)| (id.into(), len))
            }
        }
    }

    fn next_by_id(&self) -> Result<(u16, Option<u32>), DeviceError> {
        let (id, len) = self.next_used();
        let known = u16::try_from(id).ok().filter(|id| *id < self.link.ring.size());
        Ok((known.ok_or(DeviceError::UsedId(id))?, Some(len)))
    }

    /// Returns the next chain of a batch, with IN_ORDER.
    ///
    /// One used entry may stand for several chains, at the first one's place, naming the last one
    /// (virtio 1.2, 2.7.9 and 2.8.8). Those before the last count as written completely. The used
    /// index of a split ring says how far that may reach; on a packed ring it may reach as far as
    /// there are chains.
    fn next_in_order(&mut self, ready: u16) -> Result<(u16, Option<u32>), DeviceError> {
        if self.batch.0 == 0 {
            let (id, len) = self.next_used();
            let reach = match self.half {
                Half::Split(_) => ready,
                Half::Packed(_) => self.outstanding,
            };
            let at = self.order.iter().take(reach.into()).position(|head| u32::from(*head) == id);
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
