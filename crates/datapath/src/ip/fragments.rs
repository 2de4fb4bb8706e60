//! Fragments follow their first fragment. Only the first one tells the ports, so the verdict on it
//! holds for all.
//!
//! Nothing is put together. The table remembers the bytes that passed, so that no receiver can be
//! made to see bytes twice (RFC 1858, 3128, 5722). A fragment that repeats some, or lies beyond the
//! last, is dropped. There is one table for the host, of fixed size, as fragments of one packet may
//! come by several workers.
//!
//! A full table takes from the network with most packets under way, and there from the sender with
//! most. So a sender with no more than its equal part of the table loses nothing to others, however
//! many vnics they have.

use std::hash::{BuildHasher, RandomState};

use crate::engine::reason::DropReason;
use crate::ip::reasons::{FRAGMENT_ORPHAN, FRAGMENT_OVERLAP, FRAGMENTS_FULL};
use crate::ip::{Address, Piece, Tuple, is_v4};

/// Most packets under way, of all vnics and of one vnic.
pub(crate) const ENTRIES: usize = 1024;
pub(crate) const PER_SENDER: usize = 64;
/// Most gaps of one packet.
const GAPS: usize = 16;
#[cfg(test)]
const LIFE: u32 = 30;

/// Fields that the fragments of one packet share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FragmentKey {
    source: Address,
    destination: Address,
    id: u32,
    vni: u32,
    /// Incarnation of the vnic that sent it, as slots are used again.
    sender: u32,
    vlan: u16,
    /// True if a router passes it on.
    routed: bool,
    /// Protocol of IPv4; 0 for IPv6, where fragments of one packet may name different ones (RFC
    /// 8200, 4.5).
    protocol: u8,
}

impl FragmentKey {
    pub fn new(tuple: &Tuple, piece: &Piece, vni: u32, sender: u32) -> FragmentKey {
        let Tuple { source, destination, vlan, protocol, .. } = *tuple;
        let protocol = if is_v4(source) { protocol } else { 0 };
        let routed = false;
        FragmentKey { source, destination, id: piece.id, vni, sender, vlan, routed, protocol }
    }

    /// Returns whether two packets are of one source.
    pub fn is_from_source_of(&self, other: &FragmentKey) -> bool {
        self.source == other.source
    }

    /// Returns the key of a packet with the same fields that a router passes on, or that does not
    /// leave its network.
    pub fn routed(self, routed: bool) -> FragmentKey {
        FragmentKey { routed, ..self }
    }
}

/// No entry.
const NONE: u16 = u16::MAX;
/// Sender of a free entry.
const NOBODY: u32 = u32::MAX;

struct Entry<V> {
    key: FragmentKey,
    value: V,
    born: u32,
    /// End of the packet; 0 until the last fragment was seen.
    total: u16,
    seen: Seen,
    /// The next entry of its chain, or of the free ones.
    next: u16,
}

/// Verdicts on first fragments, for the fragments that follow.
pub(crate) struct Fragments<V> {
    entries: Vec<Entry<V>>,
    /// Sender of each entry, in an array of its own so that a search through all is quick.
    senders: Vec<u32>,
    /// Number of packets of each sender, with its network, and of each network.
    of_sender: Census,
    of_network: Census,
    /// Age of each entry, as a count that wraps around.
    made: Vec<u32>,
    clock: u32,
    chains: Box<[u16]>,
    free: u16,
    life: u32,
    hasher: RandomState,
}

impl<V: Copy> Fragments<V> {
    /// Allocates all memory it will ever use. Entries live for `life` seconds.
    pub fn new(life: u32) -> Fragments<V> {
        Fragments {
            entries: Vec::with_capacity(ENTRIES),
            senders: Vec::with_capacity(ENTRIES),
            of_sender: Census::new(),
            of_network: Census::new(),
            made: Vec::with_capacity(ENTRIES),
            clock: 0,
            chains: vec![NONE; ENTRIES].into_boxed_slice(),
            free: NONE,
            life,
            hasher: RandomState::new(),
        }
    }

    /// Returns a number that changes with each first fragment that is remembered.
    pub fn firsts(&self) -> u32 {
        self.clock
    }

    /// Returns whether the first fragment of a packet is known.
    pub fn has(&self, key: &FragmentKey, now: u32) -> bool {
        self.value(key, now).is_some()
    }

    /// Returns the value kept for the first fragment of a packet, if that is known.
    pub fn value(&self, key: &FragmentKey, now: u32) -> Option<V> {
        let at = self.find(self.chain(key), key).filter(|at| !self.expired(*at, now))?;
        self.entries.get(usize::from(at)).map(|entry| entry.value)
    }

    /// Has entries live for `life` seconds from now on, also those that there are.
    pub fn set_life(&mut self, life: u32) {
        self.life = life;
    }

    /// Remembers a first fragment that passes. `now` is in seconds.
    pub fn first(
        &mut self,
        key: FragmentKey,
        piece: Piece,
        value: V,
        now: u32,
    ) -> Result<(), DropReason> {
        let chain = self.chain(&key);
        if let Some(at) = self.find(chain, &key) {
            if !self.expired(at, now) {
                return Err(FRAGMENT_OVERLAP);
            }
            self.remove(at);
        }
        let end = match u16::try_from(piece.end) {
            Ok(end) if piece.offset == 0 && end > 0 => end,
            _ => return Err(FRAGMENT_OVERLAP),
        };
        if !piece.more {
            return Ok(()); // nothing follows
        }
        self.make_room(&key);
        let head = self.chains.get(chain).copied().unwrap_or(NONE);
        let entry = Entry { key, value, born: now, total: 0, seen: Seen::new(end), next: head };
        let at = self.place(entry);
        if let Some(head) = self.chains.get_mut(chain) {
            *head = at;
        }
        Ok(())
    }

    /// Judges a fragment that is not the first, and returns the value kept for the first. Forgets a
    /// packet once all of it was seen, since its number may soon be used again.
    pub fn later(&mut self, key: FragmentKey, piece: Piece, now: u32) -> Result<V, DropReason> {
        let at = self.find(self.chain(&key), &key).ok_or(FRAGMENT_ORPHAN)?;
        if self.expired(at, now) {
            self.remove(at);
            return Err(FRAGMENT_ORPHAN);
        }
        let entry = self.entries.get_mut(usize::from(at)).ok_or(FRAGMENT_ORPHAN)?;
        let (Ok(start), Ok(end)) = (u16::try_from(piece.offset), u16::try_from(piece.end)) else {
            return Err(FRAGMENT_OVERLAP);
        };
        if start == 0 || start >= end {
            return Err(FRAGMENT_OVERLAP);
        }
        let fits = match (entry.total, piece.more) {
            (0, true) => true,
            (0, false) => entry.seen.last() <= start,
            (total, true) => end < total,
            (_, false) => false, // there was a last one
        };
        if !fits {
            return Err(FRAGMENT_OVERLAP);
        }
        entry.seen.add(start, end)?;
        if !piece.more {
            entry.total = end;
        }
        let value = entry.value;
        if entry.total != 0 && entry.seen.is_whole(entry.total) {
            self.remove(at);
        }
        Ok(value)
    }

    fn chain(&self, key: &FragmentKey) -> usize {
        let FragmentKey { source, destination, id, vni, sender, vlan, routed, protocol } = *key;
        let fields = (source, destination, id, vni, sender, vlan, routed, protocol);
        self.hasher.hash_one(fields) as usize & (ENTRIES - 1)
    }

    fn find(&self, chain: usize, key: &FragmentKey) -> Option<u16> {
        let mut at = *self.chains.get(chain)?;
        loop {
            let entry = self.entries.get(usize::from(at))?; // none at NONE
            if entry.key == *key {
                return Some(at);
            }
            at = entry.next;
        }
    }

    fn expired(&self, at: u16, now: u32) -> bool {
        self.entries
            .get(usize::from(at))
            // Another worker's second may be the next one already.
            .is_none_or(|entry| {
                let age = now.wrapping_sub(entry.born);
                age as i32 >= 0 && age >= self.life
            })
    }

    /// Makes room for a packet.
    ///
    /// A sender with too many packets loses its own oldest. So a sender that never sends the rest
    /// of its packets silences no other sender, and not even itself. In a full table the network
    /// with most packets loses one; that is this network if it would then have as many as any.
    ///
    /// Behind a sender there may be many machines: all other hosts of a network are one sender. So
    /// the sender loses the oldest packet of the address with most.
    fn make_room(&mut self, key: &FragmentKey) {
        let sender = if self.of_sender.of(key.sender) >= PER_SENDER as u16 {
            key.sender
        } else if self.free == NONE && self.entries.len() >= ENTRIES {
            let network = self.of_network.greatest(|_| true, key.vni);
            let most = self.of_sender.greatest(|of| of == network, key.sender);
            match self.of_sender.of(most) {
                // Of many with one each the oldest goes: it had its time.
                1 if most != key.sender => self.oldest_sender(network).unwrap_or(most),
                _ => most,
            }
        } else {
            return;
        };
        let mut sources = Sources::new();
        for (entry, _) in self.entries.iter().zip(&self.senders).filter(|(_, of)| **of == sender) {
            sources.add(entry.key.source);
        }
        let most = sources.greatest(key.source);
        let clock = self.clock;
        let all = self.senders.iter().zip(&self.made).zip(&self.entries).zip(0..);
        let theirs = all.filter(|(((of, _), entry), _)| **of == sender && entry.key.source == most);
        let oldest = theirs.max_by_key(|(((_, made), _), _)| clock.wrapping_sub(**made));
        if let Some((_, oldest)) = oldest {
            self.remove(oldest);
        }
    }

    /// Returns the sender of the oldest packet of a network.
    fn oldest_sender(&self, network: u32) -> Option<u32> {
        let all = self.senders.iter().zip(&self.made).zip(&self.entries);
        let its = all.filter(|((of, _), entry)| **of != NOBODY && entry.key.vni == network);
        let oldest = its.max_by_key(|((_, made), _)| self.clock.wrapping_sub(**made));
        oldest.map(|((of, _), _)| *of)
    }

    /// Puts an entry into a free place; there is one.
    fn place(&mut self, entry: Entry<V>) -> u16 {
        let (at, sender, vni) = (self.free, entry.key.sender, entry.key.vni);
        self.clock = self.clock.wrapping_add(1);
        self.of_sender.add(sender, vni);
        self.of_network.add(vni, vni);
        if let Some(free) = self.entries.get_mut(usize::from(at)) {
            self.free = free.next;
            *free = entry;
            if let (Some(of), Some(made)) =
                (self.senders.get_mut(usize::from(at)), self.made.get_mut(usize::from(at)))
            {
                (*of, *made) = (sender, self.clock);
            }
            return at;
        }
        self.entries.push(entry);
        self.senders.push(sender);
        self.made.push(self.clock);
        (self.entries.len() - 1) as u16
    }

    fn remove(&mut self, at: u16) {
        let Some(entry) = self.entries.get(usize::from(at)) else { return };
        let (chain, next) = (self.chain(&entry.key), entry.next);
        self.of_sender.take(entry.key.sender);
        self.of_network.take(entry.key.vni);
        self.unlink(chain, at, next);
        if let (Some(entry), Some(sender)) =
            (self.entries.get_mut(usize::from(at)), self.senders.get_mut(usize::from(at)))
        {
            (entry.next, self.free, *sender) = (self.free, at, NOBODY);
        }
    }

    fn unlink(&mut self, chain: usize, at: u16, next: u16) {
        let Some(head) = self.chains.get_mut(chain) else { return };
        if *head == at {
            *head = next;
            return;
        }
        let mut before = *head;
        while let Some(entry) = self.entries.get_mut(usize::from(before)) {
            if entry.next == at {
                entry.next = next;
                return;
            }
            before = entry.next;
        }
    }
}

/// Number of packets per owner, for each owner that has any. A table of fixed size with open
/// addressing.
struct Census {
    /// Owner, its network, and its number of packets; rows of `NOBODY` are free.
    rows: Box<[(u32, u32, u16)]>,
}

/// Number of rows. At most half of them are used, since every owner has an entry.
const ROWS: usize = 2 * ENTRIES;

impl Census {
    fn new() -> Census {
        Census { rows: vec![(NOBODY, 0, 0); ROWS].into_boxed_slice() }
    }

    fn home(who: u32) -> usize {
        (who.wrapping_mul(0x9e37_79b9) >> (32 - ROWS.trailing_zeros())) as usize
    }

    /// Returns the row of an owner, or the free row for it.
    fn find(&self, who: u32) -> usize {
        let mut at = Census::home(who);
        while self.rows.get(at).is_some_and(|row| row.0 != who && row.0 != NOBODY) {
            at = (at + 1) % ROWS;
        }
        at
    }

    /// Returns the number of packets of an owner.
    fn of(&self, who: u32) -> u16 {
        self.rows.get(self.find(who)).map_or(0, |row| row.2)
    }

    /// Counts one packet more.
    fn add(&mut self, who: u32, network: u32) {
        let at = self.find(who);
        if let Some(row) = self.rows.get_mut(at) {
            *row = (who, network, row.2 + 1);
        }
    }

    /// Counts one packet less.
    fn take(&mut self, who: u32) {
        let mut at = self.find(who);
        let Some(row) = self.rows.get_mut(at) else { return };
        row.2 = row.2.saturating_sub(1);
        if row.2 > 0 {
            return;
        }
        *row = (NOBODY, 0, 0);
        // A row behind a gap would not be found. So it moves into the gap, unless that is before
        // its home.
        let mut next = (at + 1) % ROWS;
        while let Some(row) = self.rows.get(next).copied().filter(|row| row.0 != NOBODY) {
            let home = Census::home(row.0);
            if (next + ROWS - home) % ROWS >= (next + ROWS - at) % ROWS {
                if let Some(gap) = self.rows.get_mut(at) {
                    *gap = row;
                }
                if let Some(moved) = self.rows.get_mut(next) {
                    *moved = (NOBODY, 0, 0);
                }
                at = next;
            }
            next = (next + 1) % ROWS;
        }
    }

    /// Returns the owner with most packets in the networks that `network` accepts. This is `own`,
    /// which wants one more, if it has any and would then have as many.
    fn greatest(&self, network: impl Fn(u32) -> bool, own: u32) -> u32 {
        let rows = self.rows.iter().filter(|row| row.0 != NOBODY && network(row.1));
        rows.max_by_key(|row| if row.0 == own { (row.2 + 1, true) } else { (row.2, false) })
            .map_or(own, |row| row.0)
    }
}

/// Number of packets that one sender has of each address.
struct Sources {
    /// Rows with open addressing; those that count none are free.
    rows: [(Address, u16); 2 * PER_SENDER],
}

impl Sources {
    fn new() -> Sources {
        Sources { rows: [(0, 0); 2 * PER_SENDER] }
    }

    fn add(&mut self, source: Address) {
        let words = (source >> 64) as u64 ^ (source as u64).rotate_left(32);
        let home = (words.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % self.rows.len();
        let (before, behind) = self.rows.split_at_mut(home);
        let mut rows = behind.iter_mut().chain(before);
        if let Some(row) = rows.find(|row| row.1 == 0 || row.0 == source) {
            *row = (source, row.1 + 1);
        }
    }

    /// Returns the address with most packets. This is `own`, which wants one more, if it has any
    /// and would then have as many.
    fn greatest(&self, own: Address) -> Address {
        let rows = self.rows.iter().filter(|row| row.1 > 0);
        let most =
            rows.max_by_key(|row| if row.0 == own { (row.1 + 1, true) } else { (row.1, false) });
        most.map_or(own, |row| row.0)
    }
}

/// Bytes of a packet that passed: separate stretches in order, the first of which starts at 0.
struct Seen {
    stretches: [(u16, u16); GAPS + 1],
    used: usize,
}

impl Seen {
    fn new(end: u16) -> Seen {
        let mut stretches = [(0, 0); GAPS + 1];
        stretches[0] = (0, end);
        Seen { stretches, used: 1 }
    }

    fn used(&self) -> &[(u16, u16)] {
        self.stretches.get(..self.used).unwrap_or_default()
    }

    /// Returns the end of the last byte that passed.
    fn last(&self) -> u16 {
        self.used().last().map_or(0, |&(_, end)| end)
    }

    fn is_whole(&self, total: u16) -> bool {
        *self.used() == [(0, total)]
    }

    fn add(&mut self, start: u16, end: u16) -> Result<(), DropReason> {
        // Stretches before it.
        let at = self.used().partition_point(|&(other, _)| other < start);
        let before = at.checked_sub(1).and_then(|before| self.used().get(before)).copied();
        let after = self.used().get(at).copied();
        if before.is_some_and(|(_, other)| other > start)
            || after.is_some_and(|(other, _)| other < end)
        {
            return Err(FRAGMENT_OVERLAP);
        }
        let joins_before = before.is_some_and(|(_, other)| other == start);
        let joins_after = after.is_some_and(|(other, _)| other == end);
        match (joins_before, joins_after) {
            (true, true) => {
                if let (Some(before), Some((_, end))) = (self.stretches.get_mut(at - 1), after) {
                    before.1 = end;
                }
                self.stretches.copy_within(at + 1..self.used, at);
                self.used -= 1;
            }
            (true, false) => {
                if let Some(before) = self.stretches.get_mut(at - 1) {
                    before.1 = end;
                }
            }
            (false, true) => {
                if let Some(after) = self.stretches.get_mut(at) {
                    after.0 = start;
                }
            }
            (false, false) => {
                if self.used > GAPS {
                    return Err(FRAGMENTS_FULL);
                }
                self.stretches.copy_within(at..self.used, at + 1);
                if let Some(free) = self.stretches.get_mut(at) {
                    *free = (start, end);
                }
                self.used += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
