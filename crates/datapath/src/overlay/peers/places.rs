//! Places in the table: peers are added, named, and give way.

use std::{
    net::IpAddr,
    sync::{TryLockError, atomic::Ordering::*},
};

use crate::engine::place::PeerRef;
use crate::ip::Address;
use crate::overlay::peers::{
    PeerTable,
    peer::{IDLE, NOBODY, Peer},
    shares::PeerRoom,
};
use crate::world::rules::number as number_of_ip;

impl PeerTable {
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

    pub(super) fn take_out(&self, index: usize, peer: &Peer, room: &mut PeerRoom) {
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
}
