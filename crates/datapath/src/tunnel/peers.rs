//! Peers: the tunnel endpoints of other hosts, learnt from what they send or named by the operator.
//!
//! One bounded table for all networks. Workers look up without locks and may add; only the control thread removes. A reference
//! carries a generation, so that what was learnt of a peer that is gone does not lead to the next one in its place.

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*},
    },
};

use butterfly_packet::mac::Mac;

use crate::{
    flow::Address,
    headers::{address as mac_of, number},
    rules::{address as ip_of, number as number_of_ip},
};

/// Most peers there can be.
pub(crate) const MAX_PEERS: usize = 4096;
const BUCKETS: usize = 2048;
const WAYS: usize = 8;

/// A peer's place (low half) and the generation of its user (high half). Odd generations are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) struct PeerRef(pub u32);

impl PeerRef {
    fn new(index: usize, generation: u16) -> PeerRef {
        PeerRef(u32::from(generation) << 16 | index as u32)
    }

    fn index(self) -> usize {
        self.0 as usize & 0xffff
    }

    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// What one worker counted of a peer.
#[derive(Default)]
#[repr(align(64))]
struct Counted([AtomicU64; 5]);

/// What is counted of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerCounter {
    InPackets,
    InBytes,
    OutPackets,
    OutBytes,
    /// Frames for it, or from it, that were dropped because of the tunnel.
    Drops,
}

/// Nobody waits for a next hop.
const NOBODY: u8 = 0;
/// It is being asked for, without a frame that waits.
const QUESTION: u8 = 1;
/// A frame waits for it.
const FRAME: u8 = 2;

/// One peer.
pub(crate) struct Peer {
    generation: AtomicU16,
    address: [AtomicU64; 2],
    /// Of its next hop, as a [`number`]; 0 while unknown.
    mac: AtomicU64,
    /// Second in which something came from it; 0: nothing ever did.
    seen: AtomicU32,
    /// The operator named it: it stays.
    configured: AtomicBool,
    /// [`NOBODY`], or who waits for its next hop.
    waiting: AtomicU8,
    counted: Box<[Counted]>,
}

impl Peer {
    fn set_address(&self, address: Address) {
        let [high, low] = &self.address;
        high.store((address >> 64) as u64, Relaxed);
        low.store(address as u64, Relaxed);
    }

    /// Its tunnel address, as a number.
    #[inline(always)]
    pub fn address(&self) -> Address {
        let [high, low] = &self.address;
        u128::from(high.load(Relaxed)) << 64 | u128::from(low.load(Relaxed))
    }

    /// The link address of its next hop, if it is known.
    #[inline(always)]
    pub fn mac(&self) -> Option<Mac> {
        match self.mac.load(Relaxed) {
            0 => None,
            mac => Some(mac_of(mac)),
        }
    }

    /// The next hop is there from now on, or is not known any more.
    pub fn set_mac(&self, mac: Option<Mac>) {
        let mac = mac.map_or(0, number);
        if self.mac.load(Relaxed) != mac {
            self.mac.store(mac, Relaxed);
        }
    }

    /// Something came from it.
    #[inline(always)]
    pub fn heard(&self, mac: Mac, now: u32) {
        self.set_mac(Some(mac));
        if self.seen.load(Relaxed) != now {
            self.seen.store(now, Relaxed);
        }
    }

    /// Whether something came from it in the last `seconds`.
    pub fn was_heard(&self, now: u32, seconds: u32) -> bool {
        match self.seen.load(Relaxed) {
            0 => false,
            seen => now.saturating_sub(seen) <= seconds,
        }
    }

    /// Whether the operator named it.
    pub fn is_configured(&self) -> bool {
        self.configured.load(Relaxed)
    }

    /// Takes the only place for a frame that waits. Returns whether it was free.
    pub fn may_wait(&self) -> bool {
        self.waiting.swap(FRAME, AcqRel) != FRAME
    }

    /// Whether the next hop is to be asked for though no frame waits for it: not if it is being asked for.
    pub fn may_ask(&self) -> bool {
        self.waiting.compare_exchange(NOBODY, QUESTION, AcqRel, Relaxed).is_ok()
    }

    /// Whether a frame waits.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Acquire) == FRAME
    }

    /// Nothing waits any more.
    pub fn stop_waiting(&self) {
        self.waiting.store(NOBODY, Release);
    }

    /// Counts for worker `worker`.
    #[inline(always)]
    pub fn count(&self, worker: usize, counter: PeerCounter, n: u64) {
        if let Some(cell) = self.counted.get(worker).and_then(|counted| counted.0.get(counter as usize)) {
            cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }
}

/// A peer for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerRow {
    pub at: PeerRef,
    pub address: IpAddr,
    pub mac: Option<Mac>,
    pub configured: bool,
    /// Seconds since something came from it.
    pub idle: Option<u32>,
    pub counters: [u64; 5],
}

impl PeerRow {
    fn of(&self, counter: PeerCounter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// Frames and bytes from it.
    pub fn received(&self) -> (u64, u64) {
        (self.of(PeerCounter::InPackets), self.of(PeerCounter::InBytes))
    }

    /// Frames sent to it.
    pub fn sent(&self) -> u64 {
        self.of(PeerCounter::OutPackets)
    }

    /// Their bytes.
    pub fn sent_bytes(&self) -> u64 {
        self.of(PeerCounter::OutBytes)
    }

    /// Frames for it that were dropped.
    pub fn drops(&self) -> u64 {
        self.of(PeerCounter::Drops)
    }
}

/// The table.
pub(crate) struct Peers {
    peers: Box<[Peer]>,
    buckets: Box<[[AtomicU16; WAYS]]>,
    seed: u64,
    free: Mutex<Vec<u16>>,
}

impl Peers {
    pub fn new(workers: usize) -> Peers {
        let peer = || Peer {
            generation: AtomicU16::new(0),
            address: Default::default(),
            mac: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            configured: AtomicBool::new(false),
            waiting: AtomicU8::new(NOBODY),
            counted: (0..workers).map(|_| Counted::default()).collect(),
        };
        Peers {
            peers: (0..MAX_PEERS).map(|_| peer()).collect(),
            buckets: (0..BUCKETS).map(|_| Default::default()).collect(),
            seed: RandomState::new().hash_one(BUCKETS),
            free: Mutex::new((0..MAX_PEERS as u16).rev().collect()),
        }
    }

    #[inline(always)]
    fn bucket(&self, address: Address) -> Option<&[AtomicU16; WAYS]> {
        let product = u128::from(address as u64 ^ self.seed) * u128::from((address >> 64) as u64 ^ 0x9e37_79b9_7f4a_7c15);
        let folded = (product as u64 ^ (product >> 64) as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.buckets.get((folded >> 32) as usize % BUCKETS)
    }

    /// A peer, if it is still the one that was meant.
    #[inline(always)]
    pub fn get(&self, at: PeerRef) -> Option<&Peer> {
        self.peers.get(at.index()).filter(|peer| peer.generation.load(Acquire) == at.generation() && at.generation() % 2 == 1)
    }

    /// Where a peer is.
    #[inline(always)]
    pub fn find(&self, address: Address) -> Option<PeerRef> {
        for way in self.bucket(address)? {
            let Some(index) = usize::from(way.load(Acquire)).checked_sub(1) else { continue };
            let Some(peer) = self.peers.get(index) else { continue };
            let generation = peer.generation.load(Acquire);
            if peer.address() == address && generation % 2 == 1 {
                return Some(PeerRef::new(index, generation));
            }
        }
        None
    }

    /// Where a peer is that something came from, from now on if it was not known. `None` if there is no room, or somebody else is
    /// changing the table: the next frame will see.
    #[cold]
    pub fn try_add(&self, address: Address, now: u32) -> Option<PeerRef> {
        let mut free = match self.free.try_lock() {
            Ok(free) => free,
            Err(TryLockError::Poisoned(free)) => free.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let at = self.insert(address, &mut free)?;
        // While nobody can remove it for having been silent since ever.
        self.get(at)?.seen.store(now, Relaxed);
        Some(at)
    }

    fn insert(&self, address: Address, free: &mut Vec<u16>) -> Option<PeerRef> {
        if let Some(at) = self.find(address) {
            return Some(at);
        }
        let way = self.bucket(address)?.iter().find(|way| way.load(Relaxed) == 0)?;
        let index = free.pop()?;
        let peer = self.peers.get(usize::from(index))?;
        peer.set_address(address);
        peer.mac.store(0, Relaxed);
        peer.seen.store(0, Relaxed);
        peer.configured.store(false, Relaxed);
        peer.waiting.store(NOBODY, Relaxed);
        let generation = peer.generation.load(Relaxed).wrapping_add(1);
        peer.generation.store(generation, Release);
        way.store(index + 1, Release);
        Some(PeerRef::new(usize::from(index), generation))
    }

    /// The operator names a peer. One that nobody named gives way to it if there is no room: anybody may forge those. `None` if
    /// all were named.
    pub fn configure(&self, address: IpAddr) -> Option<PeerRef> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let address = number_of_ip(address);
        let at = self.insert(address, &mut free).or_else(|| {
            self.make_room(address, &mut free);
            self.insert(address, &mut free)
        })?;
        self.get(at)?.configured.store(true, Relaxed);
        Some(at)
    }

    /// Removes the peer that was silent for longest among those that nobody named: of this address's bucket if that is full, else of all.
    fn make_room(&self, address: Address, free: &mut Vec<u16>) {
        let bucket = self.bucket(address).into_iter().flatten().map(|way| usize::from(way.load(Relaxed)));
        let rivals: Vec<usize> = match bucket.clone().all(|entry| entry != 0) {
            true => bucket.filter_map(|entry| entry.checked_sub(1)).collect(),
            false => (0..self.peers.len()).collect(),
        };
        let unnamed = rivals.into_iter().filter_map(|index| Some((index, self.peers.get(index)?)));
        let unnamed = unnamed.filter(|(_, peer)| peer.generation.load(Relaxed) % 2 == 1 && !peer.configured.load(Relaxed));
        if let Some((index, peer)) = unnamed.min_by_key(|(_, peer)| peer.seen.load(Relaxed)) {
            self.take_out(index, peer, free);
        }
    }

    fn take_out(&self, index: usize, peer: &Peer, free: &mut Vec<u16>) {
        peer.generation.fetch_add(1, Release);
        let entry = index as u16 + 1;
        for way in self.bucket(peer.address()).into_iter().flatten() {
            let _ = way.compare_exchange(entry, 0, AcqRel, Relaxed);
        }
        peer.counted.iter().flat_map(|counted| &counted.0).for_each(|cell| cell.store(0, Relaxed));
        free.push(index as u16);
    }

    /// The operator does not name it any more: it stays as long as something comes from it.
    pub fn unconfigure(&self, address: IpAddr) {
        if let Some(peer) = self.find(number_of_ip(address)).and_then(|at| self.get(at)) {
            peer.configured.store(false, Relaxed);
        }
    }

    /// Removes peers that were not heard of for `ageing` seconds and that nobody named.
    pub fn expire(&self, now: u32, ageing: u32) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, peer) in self.peers.iter().enumerate() {
            let generation = peer.generation.load(Relaxed);
            let idle = now.saturating_sub(peer.seen.load(Relaxed));
            if generation % 2 == 0 || peer.configured.load(Relaxed) || idle <= ageing {
                continue;
            }
            self.take_out(index, peer, &mut free);
        }
    }

    /// All peers, by address.
    pub fn list(&self, now: u32) -> Vec<PeerRow> {
        let row = |(index, peer): (usize, &Peer)| {
            let generation = peer.generation.load(Acquire);
            let seen = peer.seen.load(Relaxed);
            let mut counters = [0; 5];
            for counted in &peer.counted {
                for (sum, cell) in counters.iter_mut().zip(&counted.0) {
                    *sum += cell.load(Relaxed);
                }
            }
            (generation % 2 == 1).then(|| PeerRow {
                at: PeerRef::new(index, generation),
                address: ip_of(peer.address()),
                mac: peer.mac(),
                configured: peer.configured.load(Relaxed),
                idle: (seen != 0).then(|| now.saturating_sub(seen)),
                counters,
            })
        };
        let mut rows: Vec<PeerRow> = self.peers.iter().enumerate().filter_map(row).collect();
        rows.sort_by_key(|row| row.address);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn peers_are_found_until_they_are_silent_for_too_long() {
        let peers = Peers::new(1);
        let a = peers.try_add(number_of_ip(ip(1)), 100).unwrap();
        assert_eq!(peers.try_add(number_of_ip(ip(1)), 100), Some(a));
        assert_eq!(peers.find(number_of_ip(ip(1))), Some(a));
        peers.get(a).unwrap().heard(Mac([2, 0, 0, 0, 0, 1]), 100);
        let b = peers.configure(ip(2)).unwrap();
        peers.expire(400, 300);
        assert!(peers.get(a).is_some());
        peers.expire(401, 300);
        assert!(peers.get(a).is_none() && peers.find(number_of_ip(ip(1))).is_none());
        assert_eq!(peers.list(401).len(), 1);
        // The next one in its place is not it.
        let c = peers.try_add(number_of_ip(ip(3)), 401).unwrap();
        assert!(peers.get(a).is_none() && peers.get(c).is_some() && peers.get(b).is_some());
        peers.unconfigure(ip(2));
        peers.expire(402, 300);
        assert!(peers.get(b).is_none());
    }

    #[test]
    fn a_full_table_refuses_and_keeps() {
        let peers = Peers::new(1);
        let known: Vec<_> = (1..10_000).filter_map(|n| Some((n, peers.try_add(number_of_ip(ip(n)), 600)?))).collect();
        assert_eq!(known.len(), MAX_PEERS);
        assert_eq!(peers.try_add(number_of_ip(ip(20_000)), 600), None);
        assert!(known.iter().all(|(n, at)| peers.find(number_of_ip(ip(*n))) == Some(*at)));
        // But one that is named comes in, instead of a stranger; those that were named stay.
        let first = peers.configure(ip(30_000)).unwrap();
        for n in 30_001..30_000 + MAX_PEERS as u32 / 2 {
            assert!(peers.configure(ip(n)).is_some(), "{n}");
        }
        assert!(peers.get(first).is_some());
        assert_eq!(peers.list(600).len(), MAX_PEERS);
        peers.expire(1000, 300);
        assert!(peers.try_add(number_of_ip(ip(20_000)), 1000).is_some());
    }
}
