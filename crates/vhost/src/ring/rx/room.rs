//! Room for a frame: chains of the guest, searched at a bounded cost.

use crate::{
    net::Features,
    ring::{
        door::Room,
        packed::Packed,
        rx::{Chain, NotDelivered, RxRing},
        space::{BadChain, CHAIN_BUDGET, Chains, Space},
        vring::Layout,
    },
};

/// Most empty descriptors of one chain. Drivers make none; each costs a look and brings no room.
const MAX_EMPTY: u32 = 4;

impl RxRing {
    /// Collects chains until `need` bytes fit, into `chains` and `pieces`.
    ///
    /// The cost is bounded per ring and batch, for any buffers of the guest: see
    /// [`crate::ring::walks::Walks`].
    pub(super) fn find_room(&mut self, need: u32) -> Result<(), NotDelivered> {
        if let Some(why) = self.known_to_fail(need) {
            return Err(why);
        }
        let at = self.vring.next_avail;
        let Some(allowed) = self.walks.allowed(at, need) else { return Err(NotDelivered::Slow) };
        let mut budget = allowed.min(CHAIN_BUDGET);
        let given = budget;
        let found = self.search(need, &mut budget, given == CHAIN_BUDGET);
        self.walks.spent(need, given - budget);
        match found {
            Ok(()) | Err(NotDelivered::BadChain) => {}
            Err(why) => {
                self.walks.failed(at, need, why);
                if why == NotDelivered::Slow {
                    self.walks.too_few(at, need, allowed);
                }
            }
        }
        found
    }

    /// Returns why a frame of this size cannot fit: one that is no larger was refused already, and
    /// nothing has changed.
    #[inline(always)]
    fn known_to_fail(&mut self, need: u32) -> Option<NotDelivered> {
        let why = self.walks.has_failed(self.vring.next_avail, need)?;
        if why == NotDelivered::Full {
            let before = self.vring.avail_idx;
            if self.look().is_some() && self.vring.avail_idx != before {
                return None;
            }
        }
        Some(why)
    }

    /// `whole`: the budget is what the longest chain needs, not what a debt has left of it.
    #[inline(always)]
    fn search(&mut self, need: u32, budget: &mut u32, whole: bool) -> Result<(), NotDelivered> {
        self.pieces.clear();
        self.chains.clear();
        let mergeable = self.vring.space.features.has(Features::MRG_RXBUF);
        let mut room = 0u32;
        while room < need {
            let taken = self.chains.len() as u16;
            if taken > 0 && !mergeable {
                return Err(NotDelivered::TooLarge);
            }
            if taken == self.vring.known() {
                match self.look() {
                    None => return Err(NotDelivered::NotReady),
                    Some(n) if n == taken => {
                        // A frame that the whole ring cannot hold will never fit.
                        return Err(if taken >= self.vring.most_known() {
                            NotDelivered::TooLarge
                        } else {
                            NotDelivered::Full
                        });
                    }
                    Some(_) => {}
                }
            }
            let id = self.vring.head(taken);
            let walked = self.collect(id, budget);
            let Ok(capacity) = walked else {
                if *budget == 0 && !whole {
                    return Err(NotDelivered::Slow);
                }
                if *budget == 0 && taken > 0 {
                    return Err(NotDelivered::TooLarge);
                }
                self.walks.wasted(self.vring.entries_of(id));
                // Back to the guest with it, and with those before it, which the frame will not
                // use.
                for chain in &self.chains {
                    self.vring.push_used(chain.id, 0);
                }
                self.vring.push_used(id, 0);
                self.consume(taken + 1);
                return Err(NotDelivered::BadChain);
            };
            if self.chains.len() == self.chains.capacity() {
                return Err(NotDelivered::TooLarge);
            }
            if taken == self.vring.most_of_a_frame {
                return Err(NotDelivered::Slow);
            }
            self.chains.push(Chain { id, capacity });
            room = room.saturating_add(capacity);
            if capacity < self.vring.space.header_len as u32 {
                return Err(NotDelivered::TooLarge);
            }
        }
        Ok(())
    }

    /// Adds the pieces of a chain. Returns how many bytes they hold.
    #[inline(always)]
    fn collect(&mut self, id: u16, budget: &mut u32) -> Result<u32, BadChain> {
        match &self.vring.layout {
            Layout::Split(split) => {
                collect_from(&self.vring.space, split, &mut self.pieces, id, budget)
            }
            Layout::Packed(packed) => {
                collect_packed(&self.vring.space, packed, &mut self.pieces, id, budget)
            }
        }
    }

    pub(super) fn consume(&mut self, chains: u16) {
        let next = self.vring.next_avail.wrapping_add(chains);
        if self.prepared.wrapping_sub(self.vring.next_avail) < chains {
            self.prepared = next;
        }
        self.vring.next_avail = next;
    }
}

#[cold] // so that split rings get the registers
#[inline(never)]
fn collect_packed(
    space: &Space,
    packed: &Packed,
    pieces: &mut Vec<Room>,
    id: u16,
    budget: &mut u32,
) -> Result<u32, BadChain> {
    collect_from(space, packed, pieces, id, budget)
}

#[inline(always)]
fn collect_from(
    space: &Space,
    chains: &impl Chains,
    pieces: &mut Vec<Room>,
    id: u16,
    budget: &mut u32,
) -> Result<u32, BadChain> {
    let mut capacity = 0u32;
    let mut empty = 0;
    let mut hint = space.hint;
    chains.walk(space, id, budget, |space, desc| {
        if !desc.is_writable() {
            return Err(BadChain);
        }
        if desc.len == 0 {
            empty += 1;
            return if empty > MAX_EMPTY { Err(BadChain) } else { Ok(()) };
        }
        let (mut addr, mut left) = (desc.addr, desc.len);
        while left > 0 {
            let span = space.memory.span(addr, left, &mut hint).ok_or(BadChain)?;
            if pieces.len() == pieces.capacity() {
                return Err(BadChain);
            }
            // SAFETY: the span is mapped, in memory that `space` keeps.
            pieces.push(unsafe { Room::new(span.ptr, span.len, addr) });
            capacity = capacity.saturating_add(span.len);
            addr = addr.checked_add(u64::from(span.len)).ok_or(BadChain)?;
            left -= span.len;
        }
        Ok(())
    })?;
    Ok(capacity)
}
