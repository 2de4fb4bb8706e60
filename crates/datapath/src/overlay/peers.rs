//! Peers: the tunnel endpoints of other hosts, learnt from their frames or named by the operator.
//!
//! One bounded table for all networks. Workers look up without locks and may add a peer, if
//! necessary in place of a peer that is not needed; the control thread removes. A reference carries
//! a generation, so that facts about a peer that is gone do not count for its successor in the
//! table.
//!
//! An attacker who forges outer sources creates peers. So each learnt peer is held by the network
//! that it was first heard in, and networks share the room that named peers leave: half of it is
//! reserved for them in equal parts.

use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*},
    },
};

use butterfly_packet::mac::Mac;

use crate::engine::place::PeerRef;
use crate::engine::writer::{PerWorker, Writer};
use crate::engine::{
    mac::{address as mac_of, number},
    quota::Quota,
};
use crate::ip::Address;
use crate::world::rules::{address as ip_of, number as number_of_ip};

/// Most peers.
pub(crate) const MAX_PEERS: usize = 4096;
/// Number of buckets, one for each possible peer: a bucket that overflows is one in a million.
const BUCKETS: usize = 4096;
const WAYS: usize = 8;
/// Holder of a peer that no network holds: it was named, or its network is gone.
const NOBODY: u32 = u32::MAX;

/// One worker's counters of a peer.
#[derive(Default)]
#[repr(align(64))]
struct Counted([AtomicU64; 5]);

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

/// No frame waits for a next hop.
const IDLE: u8 = 0;
/// The next hop is being asked for, without a frame that waits.
const QUESTION: u8 = 1;
/// A frame waits for the next hop.
const FRAME: u8 = 2;

/// One peer.
pub(crate) struct Peer {
    generation: AtomicU16,
    address: [AtomicU64; 2],
    /// Link address of its next hop, as a [`number`]; 0 while unknown.
    mac: AtomicU64,
    /// Second of the last frame from it; 0 if there was none.
    seen: AtomicU32,
    /// True if the operator named it, so that it stays.
    configured: AtomicBool,
    /// VNI of the network that holds it, or [`NOBODY`]. Changes only under the table's lock.
    holder: AtomicU32,
    /// [`IDLE`], or the state of the question for its next hop.
    waiting: AtomicU8,
    counted: PerWorker<Counted>,
    /// The counts when this user of the place began. Only workers write the counters themselves.
    began: [AtomicU64; 5],
}

impl Peer {
    fn set_address(&self, address: Address) {
        let [high, low] = &self.address;
        high.store((address >> 64) as u64, Relaxed);
        low.store(address as u64, Relaxed);
    }

    /// Returns the sums of its counters since the switch began.
    fn sums(&self) -> [u64; 5] {
        let mut sums = [0u64; 5];
        for counted in self.counted.iter() {
            for (sum, cell) in sums.iter_mut().zip(&counted.0) {
                *sum = sum.wrapping_add(cell.load(Relaxed));
            }
        }
        sums
    }

    /// Returns the counters of this user of the place.
    fn counts(&self) -> [u64; 5] {
        let mut counts = self.sums();
        for (count, began) in counts.iter_mut().zip(&self.began) {
            *count = count.wrapping_sub(began.load(Relaxed));
        }
        counts
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

/// Row of a peer, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerRow {
    pub at: PeerRef,
    pub address: IpAddr,
    pub mac: Option<Mac>,
    pub configured: bool,
    /// Seconds since the last frame from it.
    pub idle: Option<u32>,
    pub counters: [u64; 5],
}

impl PeerRow {
    fn of(&self, counter: PeerCounter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// Returns frames and bytes from it.
    pub fn received(&self) -> (u64, u64) {
        (self.of(PeerCounter::InPackets), self.of(PeerCounter::InBytes))
    }

    /// Returns frames sent to it.
    pub fn sent(&self) -> u64 {
        self.of(PeerCounter::OutPackets)
    }

    /// Returns bytes sent to it.
    pub fn sent_bytes(&self) -> u64 {
        self.of(PeerCounter::OutBytes)
    }

    /// Returns frames for it that were dropped.
    pub fn drops(&self) -> u64 {
        self.of(PeerCounter::Drops)
    }
}

/// The table of peers.
pub(crate) struct PeerTable {
    peers: Box<[Peer]>,
    buckets: Box<[[AtomicU16; WAYS]]>,
    seeds: [u64; 2],
    room: Mutex<PeerRoom>,
}

/// Free places, and the number of peers that each network holds.
struct PeerRoom {
    free: Vec<u16>,
    /// Number of peers by the network that holds them, without networks that hold none. A worker
    /// never makes it grow: see [`PeerTable::new`].
    held: HashMap<u32, AtomicU32>,
    quota: Quota,
    /// Networks on this host.
    networks: u32,
    /// Number of named peers.
    named: u32,
}

impl PeerRoom {
    fn held(&self, vni: u32) -> u32 {
        self.held.get(&vni).map_or(0, |held| held.load(Relaxed))
    }

    /// Counts a peer of a network.
    fn take(&mut self, vni: u32) {
        self.quota.take(self.held.entry(vni).or_default());
    }

    /// Frees a peer from its holder.
    fn release(&mut self, peer: &Peer) {
        let vni = peer.holder.swap(NOBODY, Relaxed);
        let Some(held) = self.held.get(&vni) else { return };
        self.quota.give_back(held);
        if held.load(Relaxed) == 0 {
            self.held.remove(&vni);
        }
    }
}

impl PeerTable {
    pub fn new(workers: usize) -> PeerTable {
        let peer = || Peer {
            generation: AtomicU16::new(0),
            address: Default::default(),
            mac: AtomicU64::new(0),
            seen: AtomicU32::new(0),
            configured: AtomicBool::new(false),
            holder: AtomicU32::new(NOBODY),
            waiting: AtomicU8::new(IDLE),
            counted: PerWorker::new(workers, Counted::default),
            began: Default::default(),
        };
        let room = PeerRoom {
            free: (0..MAX_PEERS as u16).rev().collect(),
            // At most as many networks hold a peer as there are peers. Removed entries leave room
            // in a map that is at most half full.
            held: HashMap::with_capacity(2 * MAX_PEERS + 2),
            quota: Quota::new(MAX_PEERS as u32),
            networks: 1,
            named: 0,
        };
        PeerTable {
            peers: (0..MAX_PEERS).map(|_| peer()).collect(),
            buckets: (0..BUCKETS).map(|_| Default::default()).collect(),
            seeds: [0, 1].map(|n| RandomState::new().hash_one(n)),
            room: Mutex::new(room),
        }
    }

    fn room(&self) -> MutexGuard<'_, PeerRoom> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bucket of an address. Addresses are forged, so the seeds are secret: an attacker
    /// cannot tell which addresses share a bucket.
    #[inline(always)]
    fn bucket(&self, address: Address) -> Option<&[AtomicU16; WAYS]> {
        let [one, two] = self.seeds;
        let mixed = mix(mix(address as u64 ^ one) ^ (address >> 64) as u64 ^ two);
        self.buckets.get(mixed as usize % BUCKETS)
    }

    /// Returns a peer, unless its place has a new user.
    #[inline(always)]
    pub fn get(&self, at: PeerRef) -> Option<&Peer> {
        self.peers.get(at.index()).filter(|peer| {
            peer.generation.load(Acquire) == at.generation() && at.generation() % 2 == 1
        })
    }

    /// Returns the place of a peer.
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

    /// Returns the place of a peer after a frame from it in network `vni`; adds the peer if it was
    /// not known. `None` if this network has no room, or if another thread is changing the table:
    /// the next frame tries again.
    #[cold]
    pub fn try_add(&self, address: Address, vni: u32, now: u32) -> Option<PeerRef> {
        let mut room = match self.room.try_lock() {
            Ok(room) => room,
            Err(TryLockError::Poisoned(room)) => room.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if let Some(at) = self.find(address) {
            return Some(at);
        }
        let held = room.held(vni);
        if !room.quota.has_room(held) {
            return None;
        }
        let at = match self.insert(address, &mut room) {
            None if held < room.quota.part() => {
                // Its bucket is full, by chance: one of the peers in it gives way, as this network
                // has less than its part.
                self.make_room(address, &mut room);
                self.insert(address, &mut room)?
            }
            at => at?,
        };
        let peer = self.get(at)?;
        peer.holder.store(vni, Relaxed);
        room.take(vni);
        // Set under the lock, before the peer could be removed for a long silence.
        peer.seen.store(now, Relaxed);
        Some(at)
    }

    fn insert(&self, address: Address, room: &mut PeerRoom) -> Option<PeerRef> {
        if let Some(at) = self.find(address) {
            return Some(at);
        }
        let way = self.bucket(address)?.iter().find(|way| way.load(Relaxed) == 0)?;
        let index = room.free.pop()?;
        let peer = self.peers.get(usize::from(index))?;
        peer.set_address(address);
        peer.mac.store(0, Relaxed);
        peer.seen.store(0, Relaxed);
        peer.configured.store(false, Relaxed);
        peer.holder.store(NOBODY, Relaxed);
        peer.waiting.store(IDLE, Relaxed);
        peer.began.iter().zip(peer.sums()).for_each(|(began, sum)| began.store(sum, Relaxed));
        let generation = peer.generation.load(Relaxed).wrapping_add(1);
        peer.generation.store(generation, Release);
        way.store(index + 1, Release);
        Some(PeerRef::new(usize::from(index), generation))
    }

    /// Adds a peer that the operator names. A learnt peer gives way to it if there is no room,
    /// since any host may forge those. `None` if all peers were named.
    pub fn configure(&self, address: IpAddr) -> Option<PeerRef> {
        let mut room = self.room();
        let address = number_of_ip(address);
        let at = self.insert(address, &mut room).or_else(|| {
            self.make_room(address, &mut room);
            self.insert(address, &mut room)
        })?;
        let peer = self.get(at)?;
        if !peer.configured.swap(true, Relaxed) {
            room.named += 1;
            room.release(peer);
            self.divide(&mut room);
        }
        Some(at)
    }

    /// Removes a learnt peer: of this address's bucket if that is full, else of all. Peers of
    /// networks with more than their part go first, then the one that was silent for longest.
    fn make_room(&self, address: Address, room: &mut PeerRoom) {
        let bucket =
            self.bucket(address).into_iter().flatten().map(|way| usize::from(way.load(Relaxed)));
        let full = bucket.clone().all(|entry| entry != 0);
        let rivals = bucket
            .filter_map(|entry| entry.checked_sub(1))
            .filter(|_| full)
            .chain((0..self.peers.len()).filter(|_| !full));
        let unnamed = rivals.filter_map(|index| Some((index, self.peers.get(index)?)));
        let unnamed = unnamed.filter(|(_, peer)| {
            peer.generation.load(Relaxed) % 2 == 1 && !peer.configured.load(Relaxed)
        });
        let within = |peer: &Peer| {
            let vni = peer.holder.load(Relaxed);
            vni != NOBODY && room.held(vni) <= room.quota.part()
        };
        if let Some((index, peer)) =
            unnamed.min_by_key(|(_, peer)| (within(peer), peer.seen.load(Relaxed)))
        {
            self.take_out(index, peer, room);
        }
    }

    fn take_out(&self, index: usize, peer: &Peer, room: &mut PeerRoom) {
        peer.generation.fetch_add(1, Release);
        let entry = index as u16 + 1;
        for way in self.bucket(peer.address()).into_iter().flatten() {
            let _ = way.compare_exchange(entry, 0, AcqRel, Relaxed);
        }
        room.release(peer);
        room.free.push(index as u16);
    }

    /// Notes that the operator does not name it any more. It stays as long as frames come from it.
    pub fn unconfigure(&self, address: IpAddr) {
        let mut room = self.room();
        if let Some(peer) = self.find(number_of_ip(address)).and_then(|at| self.get(at))
            && peer.configured.swap(false, Relaxed)
        {
            room.named -= 1;
            self.divide(&mut room);
        }
    }

    /// Removes learnt peers that were silent for `ageing` seconds.
    pub fn expire(&self, now: u32, ageing: u32) {
        let mut room = self.room();
        for (index, peer) in self.unnamed() {
            if now.saturating_sub(peer.seen.load(Relaxed)) > ageing {
                self.take_out(index, peer, &mut room);
            }
        }
        self.divide(&mut room);
    }

    /// Divides the room among the networks that are on this host now. Networks that are gone hold
    /// no peers any more.
    pub fn settle(&self, networks: &HashMap<u32, u32>) {
        let mut room = self.room();
        for (_, peer) in
            self.unnamed().filter(|(_, peer)| !networks.contains_key(&peer.holder.load(Relaxed)))
        {
            room.release(peer);
        }
        room.networks = networks.len() as u32;
        self.divide(&mut room);
    }

    /// Returns the learnt peers. The caller holds the lock.
    fn unnamed(&self) -> impl Iterator<Item = (usize, &Peer)> + Clone {
        let known = self
            .peers
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.generation.load(Relaxed) % 2 == 1);
        known.filter(|(_, peer)| !peer.configured.load(Relaxed))
    }

    /// Gives each network its part. Removes peers beyond the parts, and without a holder, if they
    /// are too many together: the most silent first.
    fn divide(&self, room: &mut PeerRoom) {
        let capacity = MAX_PEERS as u32 - room.named;
        // Peers without a holder get at most half of the common half.
        let nobodys = self.keep(room, |vni| vni == NOBODY, capacity / 4);
        let held: Vec<u32> = room.held.values().map(|held| held.load(Relaxed)).collect();
        if let Some(most) = room.quota.settle(capacity, room.networks, &held, nobodys) {
            self.keep(room, |vni| vni != NOBODY, most);
        }
    }

    /// Leaves each of `holders` at most so many peers: those that were heard last. Returns the
    /// number of peers that are left.
    fn keep(&self, room: &mut PeerRoom, holders: impl Fn(u32) -> bool, most: u32) -> u32 {
        let mut all: Vec<(usize, &Peer)> =
            self.unnamed().filter(|(_, peer)| holders(peer.holder.load(Relaxed))).collect();
        all.sort_unstable_by_key(|(_, peer)| Reverse(peer.seen.load(Relaxed)));
        let mut kept: HashMap<u32, u32> = HashMap::new();
        for (index, peer) in all {
            let kept = kept.entry(peer.holder.load(Relaxed)).or_default();
            if *kept < most {
                *kept += 1;
            } else {
                self.take_out(index, peer, room);
            }
        }
        kept.values().sum()
    }

    /// Returns all peers, by address.
    pub fn list(&self, now: u32) -> Vec<PeerRow> {
        let row = |(index, peer): (usize, &Peer)| {
            let generation = peer.generation.load(Acquire);
            let seen = peer.seen.load(Relaxed);
            let counters = peer.counts();
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

/// Mixes a number by the finalizer of SplitMix64: every bit matters for every bit.
#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn peers_are_found_until_they_are_silent_for_too_long() {
        let peers = PeerTable::new(1);
        let a = peers.try_add(number_of_ip(ip(1)), 42, 100).unwrap();
        assert_eq!(peers.try_add(number_of_ip(ip(1)), 42, 100), Some(a));
        assert_eq!(peers.find(number_of_ip(ip(1))), Some(a));
        peers.get(a).unwrap().heard(Mac([2, 0, 0, 0, 0, 1]), 100);
        let b = peers.configure(ip(2)).unwrap();
        peers.expire(400, 300);
        assert!(peers.get(a).is_some());
        peers.expire(401, 300);
        assert!(peers.get(a).is_none() && peers.find(number_of_ip(ip(1))).is_none());
        assert_eq!(peers.list(401).len(), 1);
        // The next peer in its place is another one.
        let c = peers.try_add(number_of_ip(ip(3)), 42, 401).unwrap();
        assert!(peers.get(a).is_none() && peers.get(c).is_some() && peers.get(b).is_some());
        peers.unconfigure(ip(2));
        peers.expire(402, 300);
        assert!(peers.get(b).is_none());
    }

    #[test]
    fn a_full_table_refuses_and_keeps() {
        let peers = PeerTable::new(1);
        let known: Vec<_> = (1..10_000)
            .filter_map(|n| Some((n, peers.try_add(number_of_ip(ip(n)), 42, 600)?)))
            .collect();
        assert_eq!(known.len(), MAX_PEERS);
        assert_eq!(peers.try_add(number_of_ip(ip(20_000)), 42, 600), None);
        assert!(known.iter().all(|(n, at)| peers.find(number_of_ip(ip(*n))) == Some(*at)));
        // A named peer comes in, in place of a learnt one; named peers stay.
        let first = peers.configure(ip(30_000)).unwrap();
        for n in 30_001..30_000 + MAX_PEERS as u32 / 2 {
            assert!(peers.configure(ip(n)).is_some(), "{n}");
        }
        assert!(peers.get(first).is_some());
        assert_eq!(peers.list(600).len(), MAX_PEERS);
        peers.expire(1000, 300);
        assert!(peers.try_add(number_of_ip(ip(20_000)), 42, 1000).is_some());
    }

    /// An attacker forges outer sources of one network until there is no more room. Peers of other
    /// networks are learnt all the same.
    #[test]
    fn who_fills_the_table_in_one_network_leaves_others_their_part() {
        let mut peers = PeerTable::new(1);
        // With one of 200 keys some bucket overflows, and a forged peer gives way to a new one.
        peers.seeds = [1, 2];
        peers.settle(&(0..8).map(|vni| (vni, vni)).collect());
        let forged =
            (1..20_000).filter(|n| peers.try_add(number_of_ip(ip(*n)), 7, 600).is_some()).count();
        let part = MAX_PEERS / 2 / 8;
        assert_eq!(forged, part + MAX_PEERS / 2);
        for vni in 0..7u32 {
            for n in 0..part as u32 {
                let address = number_of_ip(ip(100_000 + 1000 * vni + n));
                assert!(peers.try_add(address, vni, 600).is_some(), "network {vni}, peer {n}");
            }
            assert_eq!(peers.try_add(number_of_ip(ip(200_000)), vni, 600), None);
        }
        // A named peer needs no share. Forged peers give way, and peers of other networks within
        // their parts do not.
        for n in 0..100 {
            assert!(peers.configure(ip(300_000 + n)).is_some(), "{n}");
        }
        let kept = |vni: u32| {
            let addresses = (0..part as u32).map(|n| number_of_ip(ip(100_000 + 1000 * vni + n)));
            addresses.filter(|address| peers.find(*address).is_some()).count()
        };
        // A part is smaller by now: of what is left by those that were named.
        assert!(
            (0..7).all(|vni| kept(vni) >= (MAX_PEERS - 100) / 2 / 8),
            "{:?}",
            (0..7).map(kept).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_network_more_finds_room_at_once_and_one_that_went_holds_nothing() {
        let peers = PeerTable::new(1);
        let add = |range: std::ops::Range<u32>, vni| {
            range.filter(|n| peers.try_add(number_of_ip(ip(*n)), vni, *n).is_some()).count()
        };
        assert_eq!(add(1..5_000, 7), MAX_PEERS);
        peers.settle(&[(7, 0), (8, 1)].into());
        assert_eq!(add(10_000..15_000, 8), MAX_PEERS / 4);
        // Those that were heard last stayed.
        assert!(
            peers.find(number_of_ip(ip(MAX_PEERS as u32))).is_some()
                && peers.find(number_of_ip(ip(1))).is_none()
        );
        peers.settle(&[(8, 1)].into());
        assert!(add(20_000..25_000, 8) >= MAX_PEERS / 2);
        peers.expire(100_000, 300);
        assert_eq!((peers.list(0).len(), peers.room().held.len()), (0, 0));
        assert_eq!(add(30_000..35_000, 8), MAX_PEERS);
    }
}
