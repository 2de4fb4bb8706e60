//! Chains of the driver for measuring, whichever ring they go through.

use crate::{
    queue::DeviceError,
    ring::{DESC_NEXT, Desc},
};

/// The descriptors of a chain, one or two; `next` has no meaning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pieces {
    pub(super) first: Desc,
    pub(super) second: Option<Desc>,
}

impl Pieces {
    pub(super) fn one(first: Desc) -> Pieces {
        Pieces { first, second: None }
    }

    pub(super) fn two(mut first: Desc, second: Desc) -> Pieces {
        first.flags |= DESC_NEXT;
        Pieces { first, second: Some(second) }
    }
}

/// The chains that the device has, and the order in which they come back.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) chains: u16,
    pub(super) outstanding: u16,
    in_order: bool,
    /// True for each chain that the device has.
    owned: Vec<bool>,
    /// Next chain in turn, with IN_ORDER.
    next_in_order: u16,
}

impl Owned {
    pub(super) fn new(chains: u16, in_order: bool) -> Owned {
        Owned {
            chains,
            outstanding: 0,
            in_order,
            owned: vec![false; chains.into()],
            next_in_order: 0,
        }
    }

    #[inline]
    pub(super) fn give(&mut self, chain: u16) {
        if let Some(owned) = self.owned.get_mut(usize::from(chain)) {
            *owned = true;
        }
        self.outstanding += 1;
    }

    #[inline]
    fn after(&self, chain: u16) -> u16 {
        if chain + 1 < self.chains { chain + 1 } else { 0 }
    }

    /// Takes the chain back that a used entry names as `id`, and with IN_ORDER those before it, of
    /// `reach` at most. Returns how many.
    #[inline]
    pub(super) fn take(
        &mut self,
        (id, chain): (u32, u16),
        len: u32,
        reach: u16,
        with: &mut impl FnMut(u16, Option<u32>),
    ) -> Result<u16, DeviceError> {
        match self.owned.get_mut(usize::from(chain)) {
            Some(owned) if *owned => *owned = false,
            _ => return Err(DeviceError::UsedId(id)),
        }
        let mut covered = 1;
        if self.in_order {
            // Chains are used in turn, so the one named says how many of those before it go along.
            let back = if chain < self.next_in_order { self.chains } else { 0 };
            covered += chain + back - self.next_in_order;
            if covered > reach {
                return Err(DeviceError::OutOfOrder(id));
            }
            for _ in 1..covered {
                if let Some(owned) = self.owned.get_mut(usize::from(self.next_in_order)) {
                    *owned = false;
                }
                with(self.next_in_order, None);
                self.next_in_order = self.after(self.next_in_order);
            }
            self.next_in_order = self.after(chain);
        }
        with(chain, Some(len));
        self.outstanding -= covered;
        Ok(covered)
    }
}
