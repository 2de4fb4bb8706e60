//! One peer: its address, the way to it, and its counters.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

use butterfly_packet::mac::Mac;

use crate::engine::{
    mac::{address as mac_of, number},
    writer::{PerWorker, Writer},
};
use crate::ip::Address;

/// Holder of a peer that no network holds: it was named, or its network is gone.
pub(super) const NOBODY: u32 = u32::MAX;

/// One worker's counters of a peer.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Counted([AtomicU64; 5]);

/// Counters of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerCounter {
    InPackets,
    InBytes,
    OutPackets,
    OutBytes,
    /// Frames for the peer, or from it, that were dropped because of the tunnel.
    Drops,
}

impl PeerCounter {
    /// Names, in the order of the counters.
    pub const NAMES: [&str; 5] = ["in-packets", "in-bytes", "out-packets", "out-bytes", "drops"];
}

/// No frame waits for a next hop.
pub(super) const IDLE: u8 = 0;
/// The next hop is being asked for, without a frame that waits.
const QUESTION: u8 = 1;
/// A frame waits for the next hop.
const FRAME: u8 = 2;

/// One peer.
pub(crate) struct Peer {
    pub(super) generation: AtomicU16,
    pub(super) address: [AtomicU64; 2],
    /// Link address of its next hop, as a [`number`]; 0 while unknown.
    pub(super) mac: AtomicU64,
    /// Second of the last frame from it; 0 if there was none.
    pub(super) seen: AtomicU32,
    /// True if the operator named it, so that it stays.
    pub(super) configured: AtomicBool,
    /// VNI of the network that holds it, or [`NOBODY`]. Changes only under the table's lock.
    pub(super) holder: AtomicU32,
    /// [`IDLE`], or the state of the question for its next hop.
    pub(super) waiting: AtomicU8,
    pub(super) counted: PerWorker<Counted>,
    /// The counts when this user of the place began. Only workers write the counters themselves.
    pub(super) began: [AtomicU64; 5],
}

impl Peer {
    pub(super) fn set_address(&self, address: Address) {
        let [high, low] = &self.address;
        high.store((address >> 64) as u64, Relaxed);
        low.store(address as u64, Relaxed);
    }

    /// Returns the sums of its counters since the switch began.
    pub(super) fn sums(&self) -> [u64; 5] {
        let mut sums = [0u64; 5];
        for counted in self.counted.iter() {
            for (sum, cell) in sums.iter_mut().zip(&counted.0) {
                *sum = sum.wrapping_add(cell.load(Relaxed));
            }
        }
        sums
    }

    /// Returns the counters of this user of the place.
    pub(super) fn counts(&self) -> [u64; 5] {
        let mut counts = self.sums();
        for (count, began) in counts.iter_mut().zip(&self.began) {
            *count = count.wrapping_sub(began.load(Relaxed));
        }
        counts
    }

    /// Adds counts of a former process, in the order of [`PeerCounter`].
    pub fn add_former(&self, counts: [u64; 5]) {
        for (began, count) in self.began.iter().zip(counts) {
            began.fetch_sub(count, Relaxed);
        }
    }

    /// Notes that a former process heard it, last at second `seen`, by way of this next hop.
    pub fn was_heard_before(&self, mac: Option<Mac>, seen: u32) {
        if mac.is_some() {
            self.set_mac(mac);
        }
        self.seen.fetch_max(seen, Relaxed);
    }

    /// Returns the network that holds it, if it was learnt.
    pub fn holder(&self) -> Option<u32> {
        Some(self.holder.load(Relaxed)).filter(|vni| *vni != NOBODY)
    }

    /// Returns its tunnel address, as a number.
    #[inline(always)]
    pub fn address(&self) -> Address {
        let [high, low] = &self.address;
        u128::from(high.load(Relaxed)) << 64 | u128::from(low.load(Relaxed))
    }

    /// Returns the link address of its next hop, if known.
    #[inline(always)]
    pub fn mac(&self) -> Option<Mac> {
        match self.mac.load(Relaxed) {
            0 => None,
            mac => Some(mac_of(mac)),
        }
    }

    /// Sets the link address of its next hop; `None` if it is not known any more.
    pub fn set_mac(&self, mac: Option<Mac>) {
        let mac = mac.map_or(0, number);
        if self.mac.load(Relaxed) != mac {
            self.mac.store(mac, Relaxed);
        }
    }

    /// Notes that a frame came from it.
    #[inline(always)]
    pub fn heard(&self, mac: Mac, now: u32) {
        self.set_mac(Some(mac));
        if self.seen.load(Relaxed) != now {
            self.seen.store(now, Relaxed);
        }
    }

    /// Returns whether a frame came from it in the last `seconds`.
    pub fn was_heard(&self, now: u32, seconds: u32) -> bool {
        match self.seen.load(Relaxed) {
            0 => false,
            seen => now.saturating_sub(seen) <= seconds,
        }
    }

    /// Takes the only place for a frame that waits. Returns whether it was free.
    pub fn may_wait(&self) -> bool {
        self.waiting.swap(FRAME, AcqRel) != FRAME
    }

    /// Starts a question for the next hop without a frame. Returns false if there is one already.
    pub fn may_ask(&self) -> bool {
        self.waiting.compare_exchange(IDLE, QUESTION, AcqRel, Relaxed).is_ok()
    }

    /// Returns whether a frame waits.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Acquire) == FRAME
    }

    /// Frees the place of a frame that waits.
    pub fn stop_waiting(&self) {
        self.waiting.store(IDLE, Release);
    }

    /// Adds to a worker's counter.
    #[inline(always)]
    pub fn count(&self, worker: Writer<'_>, counter: PeerCounter, n: u64) {
        if let Some(cell) =
            self.counted.of(worker).and_then(|counted| counted.0.get(counter as usize))
        {
            cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }
}
