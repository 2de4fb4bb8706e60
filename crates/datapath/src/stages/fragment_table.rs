//! Tables of the host for fragmented packets, for all workers: see [`Fragments`]. One has the
//! filter's decisions on first fragments, another one the translations of those that routers
//! translate by their ports.

use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Release},
    },
};

use crate::engine::reason::DropReason;
use crate::ip::{
    Piece, Tuple,
    fragments::{FragmentKey, Fragments},
};
use crate::session::Timeouts;
use crate::world::{snapshot::Vnic, steering::mix};

/// Values kept for first fragments, by whichever worker they came.
///
/// Its lock is a leaf: it is taken for one fragment at a time, and no other is taken under it.
pub(crate) struct FragmentTable<V> {
    table: Mutex<Fragments<V>>,
    /// Number of first fragments that were remembered, to be looked at without the lock.
    firsts: AtomicU32,
}

impl<V: Copy> FragmentTable<V> {
    /// Allocates all memory it will ever use.
    pub fn new(timeouts: &Timeouts) -> FragmentTable<V> {
        FragmentTable {
            table: Mutex::new(Fragments::new(timeouts.fragment)),
            firsts: AtomicU32::new(0),
        }
    }

    /// Uses another time-out from now on, also for what is known already.
    pub fn retime(&self, timeouts: &Timeouts) {
        self.table().set_life(timeouts.fragment);
    }

    /// Remembers a first fragment that passes.
    pub fn first(
        &self,
        key: FragmentKey,
        piece: Piece,
        value: V,
        now: u32,
    ) -> Result<(), DropReason> {
        let mut table = self.table();
        let remembered = table.first(key, piece, value, now);
        self.firsts.store(table.firsts(), Release);
        remembered
    }

    /// Judges a fragment that is not the first.
    pub fn later(&self, key: FragmentKey, piece: Piece, now: u32) -> Result<V, DropReason> {
        self.table().later(key, piece, now)
    }

    /// Returns the value kept for the first fragment of a packet, without judging a later one.
    pub fn value(&self, key: &FragmentKey, now: u32) -> Option<V> {
        self.table().value(key, now)
    }

    /// Returns a look at the table if a first fragment came since the last one, whose number is
    /// `seen`. Never waits: while another worker has the table, there is no news yet.
    pub fn news(&self, seen: &mut u32) -> Option<FragmentLook<'_, V>> {
        let firsts = self.firsts.load(Acquire);
        if *seen == firsts {
            return None;
        }
        let table = match self.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        *seen = firsts;
        Some(FragmentLook(table))
    }

    fn table(&self) -> MutexGuard<'_, Fragments<V>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at the table.
pub(crate) struct FragmentLook<'a, V>(MutexGuard<'a, Fragments<V>>);

impl<V: Copy> FragmentLook<'_, V> {
    /// Returns whether the first fragment of a packet is known.
    pub fn has(&self, key: &FragmentKey, now: u32) -> bool {
        self.0.has(key, now)
    }
}

/// Returns the sender of a packet, which has a part of the table: a vnic, or each address behind a
/// wire or on another host. Incarnations of vnics are below those numbers.
pub(super) fn sender_of(tuple: &Tuple, sender: &Vnic) -> u32 {
    if !sender.is_wire() && !sender.is_trunk() {
        return sender.place.incarnation;
    }
    let source = [(tuple.source >> 64) as u64, tuple.source as u64];
    let [high, low] = OF_SENDER;
    let number = mix([high ^ u64::from(sender.place.incarnation), low], source);
    (number >> 34) as u32 | OF_ADDRESSES
}

/// First number of a sender that is an address.
const OF_ADDRESSES: u32 = 1 << 31;
/// Digits of pi.
const OF_SENDER: [u64; 2] = [0x2ffd_72db_d01a_dfb7, 0xb8e1_afed_6a26_7e96];
