//! Fragments follow their first fragment. Only the first one tells the ports, so the verdict on it
//! holds for all.
//!
//! Nothing is put together. The table remembers the bytes that passed, so that no receiver can be
//! made to see bytes twice (RFC 1858, 3128, 5722). A fragment that repeats some, or lies beyond the
//! last, is dropped. There is one table per worker, of fixed size.
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
    /// Protocol of IPv4; 0 for IPv6, where fragments of one packet may name different ones (RFC
    /// 8200, 4.5).
    protocol: u8,
}

impl FragmentKey {
    pub fn new(tuple: &Tuple, piece: &Piece, vni: u32, sender: u32) -> FragmentKey {
        let Tuple { source, destination, vlan, protocol, .. } = *tuple;
        let protocol = if is_v4(source) { protocol } else { 0 };
        FragmentKey { source, destination, id: piece.id, vni, sender, vlan, protocol }
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
        let FragmentKey { source, destination, id, vni, sender, vlan, protocol } = *key;
        self.hasher.hash_one((source, destination, id, vni, sender, vlan, protocol)) as usize
            & (ENTRIES - 1)
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
            .is_none_or(|entry| now.wrapping_sub(entry.born) >= self.life)
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
            self.of_sender.greatest(|of| of == network, key.sender)
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(id: u32, sender: u32) -> FragmentKey {
        let tuple = Tuple {
            source: 1,
            destination: 2,
            source_port: 0,
            destination_port: 0,
            vlan: 0,
            protocol: 17,
        };
        FragmentKey::new(&tuple, &Piece { id, ..piece(0, 8, true) }, 5, sender)
    }

    fn piece(offset: u32, end: u32, more: bool) -> Piece {
        Piece { id: 0, offset, end, more }
    }

    /// One packet under way, and the verdicts on its fragments.
    struct One(Fragments<u8>);

    impl One {
        fn new(end: u32) -> One {
            let mut table = Fragments::new(LIFE);
            table.first(key(1, 0), piece(0, end, true), 7, 100).unwrap();
            One(table)
        }

        fn later(&mut self, offset: u32, end: u32, more: bool) -> Result<u8, DropReason> {
            self.0.later(key(1, 0), piece(offset, end, more), 100)
        }
    }

    /// Within one sender, the address with most packets gives up its oldest.
    #[test]
    fn an_address_with_few_loses_nothing_to_others_behind_its_port() {
        let mut table = Fragments::new(LIFE);
        let mut first = |source: Address, id| {
            let piece = Piece { id, ..piece(0, 8, true) };
            let tuple = Tuple {
                source,
                destination: 2,
                source_port: 0,
                destination_port: 0,
                vlan: 0,
                protocol: 17,
            };
            table.first(FragmentKey::new(&tuple, &piece, 5, 9), piece, id as u8, 100).unwrap();
            let of = |source| {
                table
                    .entries
                    .iter()
                    .zip(&table.senders)
                    .filter(move |(entry, of)| **of != NOBODY && entry.key.source == source)
            };
            [of(1).count(), of(2).count(), of(3).count()]
        };
        assert_eq!((0..20).map(|id| first(1, id)).last(), Some([20, 0, 0]));
        let counts: Vec<_> = (0..200).map(|id| first(2, id)).collect();
        assert_eq!((counts[43], counts[199]), ([20, 44, 0], [20, 44, 0]));
        // Another address takes from the one with most, until both have as many; then each takes
        // from itself.
        assert_eq!(first(3, 0), [20, 43, 1]);
        let counts: Vec<_> = (1..100).map(|id| first(3, id)).collect();
        assert_eq!((counts[10], counts[98]), ([20, 32, 12], [20, 22, 22]));
        // Of so many addresses, none has more than one.
        let last = (100..164).map(|source| first(source, 0)).last();
        assert!(last.is_some_and(|of| of.iter().all(|packets| *packets <= 1)), "{last:?}");
    }

    #[test]
    fn fragments_follow_their_first() {
        let mut one = One::new(16);
        assert_eq!(one.later(32, 48, true), Ok(7));
        assert_eq!(one.later(16, 32, true), Ok(7));
        assert_eq!(one.later(48, 50, false), Ok(7));
        // All of it was seen: the number may be used again.
        assert_eq!(one.later(48, 50, false), Err(FRAGMENT_ORPHAN));
        assert_eq!(one.0.first(key(1, 0), piece(0, 8, true), 8, 100), Ok(()));
        assert_eq!(one.later(8, 16, true), Ok(8));
    }

    #[test]
    fn nothing_passes_twice() {
        let mut one = One::new(16);
        assert_eq!(one.later(24, 40, true), Ok(7));
        for (offset, end) in
            [(24, 40), (8, 16), (8, 24), (16, 32), (32, 48), (32, 40), (24, 32), (16, 48), (8, 64)]
        {
            assert_eq!(one.later(offset, end, true), Err(FRAGMENT_OVERLAP), "{offset} to {end}");
        }
        assert_eq!(one.0.first(key(1, 0), piece(0, 16, true), 9, 100), Err(FRAGMENT_OVERLAP));
        assert_eq!(one.0.first(key(1, 0), piece(0, 8, true), 9, 100), Err(FRAGMENT_OVERLAP));
        // The refused fragment took no place.
        assert_eq!(one.later(16, 24, true), Ok(7));
        assert_eq!(one.later(40, 48, true), Ok(7));
    }

    #[test]
    fn nothing_passes_beyond_the_end() {
        let mut one = One::new(16);
        assert_eq!(one.later(64, 70, false), Ok(7));
        assert_eq!(one.later(72, 80, true), Err(FRAGMENT_OVERLAP));
        assert_eq!(one.later(72, 80, false), Err(FRAGMENT_OVERLAP));
        assert_eq!(one.later(56, 64, false), Err(FRAGMENT_OVERLAP));
        assert_eq!(one.later(56, 64, true), Ok(7));
        // Nor may the end come before what passed.
        let mut one = One::new(16);
        assert_eq!(one.later(64, 72, true), Ok(7));
        assert_eq!(one.later(32, 40, false), Err(FRAGMENT_OVERLAP));
        assert_eq!(one.later(72, 73, false), Ok(7));
    }

    #[test]
    fn who_else_sends_is_an_orphan() {
        let tuple = Tuple {
            source: 1,
            destination: 2,
            source_port: 0,
            destination_port: 0,
            vlan: 0,
            protocol: 17,
        };
        let next = Piece { id: 1, ..piece(8, 16, true) };
        let v4 = |last: u128| super::super::mapped(std::net::Ipv4Addr::from_bits(last as u32));
        let tuple4 = Tuple { source: v4(1), destination: v4(2), ..tuple };
        for (tuple, v6) in [(tuple, true), (tuple4, false)] {
            let own = FragmentKey::new(&tuple, &next, 5, 0);
            let mut table = Fragments::new(LIFE);
            table.first(own, piece(0, 8, true), (), 1).unwrap();
            for other in [
                FragmentKey::new(&tuple.reversed(), &next, 5, 0),
                FragmentKey::new(&Tuple { vlan: 0x1001, ..tuple }, &next, 5, 0),
                FragmentKey::new(&Tuple { destination: 9, ..tuple }, &next, 5, 0),
                FragmentKey::new(&tuple, &next, 6, 0),
                FragmentKey::new(&tuple, &next, 5, 1),
                FragmentKey::new(&tuple, &Piece { id: 2, ..next }, 5, 0),
            ] {
                assert_eq!(table.later(other, next, 1), Err(FRAGMENT_ORPHAN), "{other:?}");
            }
            // Ports are not known of those that follow; the protocol tells packets apart in IPv4
            // only.
            let other =
                FragmentKey::new(&Tuple { source_port: 4, protocol: 60, ..tuple }, &next, 5, 0);
            assert_eq!(other == own, v6);
            assert_eq!(table.later(own, next, 1), Ok(()));
        }
    }

    #[test]
    fn they_live_for_their_time() {
        let mut table = Fragments::new(LIFE);
        table.first(key(1, 0), piece(0, 8, true), (), 100).unwrap();
        assert_eq!(table.later(key(1, 0), piece(8, 16, true), 129), Ok(()));
        assert_eq!(table.later(key(1, 0), piece(16, 24, true), 130), Err(FRAGMENT_ORPHAN));
        assert_eq!(table.later(key(1, 0), piece(16, 24, true), 100), Err(FRAGMENT_ORPHAN));
        table.first(key(1, 0), piece(0, 8, true), (), 100).unwrap();
        assert_eq!(table.first(key(1, 0), piece(0, 8, true), (), 130), Ok(()));
        assert_eq!(table.later(key(1, 0), piece(8, 16, true), 159), Ok(()));
    }

    #[test]
    fn a_sender_with_too_many_forgets_its_oldest() {
        let mut table = Fragments::new(LIFE);
        table.first(key(7, 1), piece(0, 8, true), (), 100).unwrap();
        for id in 0..1000 {
            table.first(key(id, 0), piece(0, 8, true), (), 100).unwrap();
            assert_eq!(
                table.later(key(id, 0), piece(8, 16, true), 100),
                Ok(()),
                "the newest is there"
            );
        }
        let known =
            |table: &mut Fragments<()>, id| table.later(key(id, 0), piece(16, 24, true), 100);
        assert_eq!(known(&mut table, 999 - PER_SENDER as u32), Err(FRAGMENT_ORPHAN));
        for id in 1000 - PER_SENDER as u32..1000 {
            assert_eq!(known(&mut table, id), Ok(()), "{id}");
        }
        // A sender with few packets keeps them.
        assert_eq!(table.later(key(7, 1), piece(8, 16, true), 100), Ok(()));
        // One that was completed makes room.
        table.later(key(970, 0), piece(24, 32, false), 100).unwrap();
        table.first(key(1000, 0), piece(0, 8, true), (), 100).unwrap();
        assert_eq!(table.later(key(1000 - PER_SENDER as u32, 0), piece(24, 32, true), 100), Ok(()));
    }

    fn of(id: u32, vni: u32, sender: u32) -> FragmentKey {
        FragmentKey { vni, ..key(id, sender) }
    }

    /// A table that 16 vnics of one network fill.
    fn full() -> Fragments<u32> {
        let mut table = Fragments::new(LIFE);
        // Numbers that go round between them.
        table.clock = u32::MAX - 100;
        for sender in 0..(ENTRIES / PER_SENDER) as u32 {
            for id in 0..PER_SENDER as u32 {
                table.first(of(id, 5, sender), piece(0, 8, true), sender, 100).unwrap();
            }
        }
        table
    }

    #[test]
    fn a_full_table_takes_from_the_network_and_the_sender_with_most() {
        let mut table = full();
        let room = (table.entries.capacity(), table.senders.capacity(), table.made.capacity());
        // Another vnic of that network: each of the others has more.
        for id in 0..5 {
            assert_eq!(table.first(of(id, 5, 99), piece(0, 8, true), 99, 100), Ok(()));
            assert_eq!(table.later(of(id, 5, 99), piece(8, 16, true), 100), Ok(99));
        }
        let lost = (0..16).flat_map(|sender| (0..64).map(move |id| (sender, id)));
        let lost: Vec<_> = lost
            .filter(|(sender, id)| {
                table.later(of(*id, 5, *sender), piece(8, 16, true), 100).is_err()
            })
            .collect();
        assert_eq!(
            lost.iter().map(|(_, id)| *id).collect::<Vec<_>>(),
            [0; 5],
            "the oldest of five vnics: {lost:?}"
        );
        assert_eq!(
            (table.entries.capacity(), table.senders.capacity(), table.made.capacity()),
            room
        );
        assert_eq!(table.entries.len(), ENTRIES);
    }

    /// 17 vnics of one network that never send the rest: a vnic of another network, and one of
    /// theirs, keep what they have.
    #[test]
    fn no_number_of_vnics_pushes_out_others() {
        let mut table = full();
        for id in 0..40 {
            table.first(of(id, 6, 1000), piece(0, 8, true), 1000, 100).unwrap();
            table.first(of(id, 5, 1001), piece(0, 8, true), 1001, 100).unwrap();
        }
        for id in 100..5_000 {
            let sender = id % 17;
            table.first(of(id, 5, sender), piece(0, 8, true), sender, 100).unwrap();
        }
        for id in 0..40 {
            assert_eq!(table.later(of(id, 6, 1000), piece(8, 16, true), 100), Ok(1000), "{id}");
            assert_eq!(table.later(of(id, 5, 1001), piece(8, 16, true), 100), Ok(1001), "{id}");
        }
        // A vnic of the fullest network gives way to one of a network with fewer packets, and
        // pushes out no packets of other networks.
        assert_eq!(table.of_network.of(5) + table.of_network.of(6), ENTRIES as u16);
    }

    /// Fragments without a byte, or whose place contradicts their kind.
    #[test]
    fn pieces_that_cannot_be() {
        let mut one = One::new(16);
        for (offset, end) in [
            (0, 8),
            (0, 16),
            (16, 16),
            (24, 16),
            (32, 32),
            (8, 0),
            (65_528, 65_536),
            (65_536, 65_544),
        ] {
            for more in [true, false] {
                assert_eq!(
                    one.later(offset, end, more),
                    Err(FRAGMENT_OVERLAP),
                    "{offset} to {end}"
                );
            }
        }
        assert_eq!(one.later(16, 65_535, false), Ok(7));
        let mut table = Fragments::new(LIFE);
        for (offset, end) in [(8, 16), (0, 0), (0, 65_536)] {
            assert_eq!(
                table.first(key(1, 0), piece(offset, end, true), (), 1),
                Err(FRAGMENT_OVERLAP),
                "{offset} to {end}"
            );
        }
        // A whole packet has no fragments that follow.
        assert_eq!(table.first(key(1, 0), piece(0, 8, false), (), 1), Ok(()));
        assert_eq!(table.later(key(1, 0), piece(8, 16, false), 1), Err(FRAGMENT_ORPHAN));
        assert_eq!(table.first(key(1, 0), piece(0, 65_535, true), (), 1), Ok(()));
    }

    /// Any of the packets in one chain goes, and the others stay.
    #[test]
    fn a_chain_of_many() {
        for gone in 0..5u32 {
            let mut table = Fragments::new(LIFE);
            // All in one chain, as by chance.
            let keys: Vec<FragmentKey> = {
                let of = |id: u32| table.chain(&key(id, id % 3));
                (0..).filter(|id| of(*id) == 7).take(5).map(|id| key(id, id % 3)).collect()
            };
            for (n, key) in keys.iter().enumerate() {
                table.first(*key, piece(0, 8, true), n, 1).unwrap();
            }
            assert_eq!(table.later(keys[gone as usize], piece(8, 16, false), 1), Ok(gone as usize));
            for (n, key) in keys.iter().enumerate() {
                let expected = if n == gone as usize { Err(FRAGMENT_ORPHAN) } else { Ok(n) };
                assert_eq!(
                    table.later(*key, piece(8, 16, true), 1),
                    expected,
                    "{n} without {gone}"
                );
            }
            // Its place is the next one's.
            table.first(keys[gone as usize], piece(0, 8, true), 99, 1).unwrap();
            assert_eq!(
                (table.entries.len(), table.later(keys[gone as usize], piece(8, 16, true), 1)),
                (5, Ok(99))
            );
        }
    }

    #[test]
    fn who_has_most_gives_and_who_wants_one_more_counts_it() {
        let mut census = Census::new();
        for (who, network, times) in [(1, 5, 3), (2, 5, 4), (3, 6, 5)] {
            (0..times).for_each(|_| census.add(who, network));
        }
        let of = |network: u32| move |other: u32| other == network;
        assert_eq!((census.greatest(of(5), 9), census.greatest(of(5), 1)), (2, 1));
        assert_eq!((census.greatest(of(5), 2), census.greatest(|_| true, 2)), (2, 2));
        assert_eq!(
            (census.greatest(|_| true, 9), census.greatest(|_| true, 1), census.greatest(of(7), 9)),
            (3, 3, 9)
        );
        census.take(3);
        census.take(3);
        assert_eq!((census.of(3), census.greatest(|_| true, 9)), (3, 2));
    }

    /// Returns numbers whose rows are the last two and the first two. They are in each other's
    /// places and wrap around the end.
    fn crowd() -> &'static [u32] {
        static CROWD: std::sync::OnceLock<Vec<u32>> = std::sync::OnceLock::new();
        CROWD.get_or_init(|| {
            let of = |home: usize| (0..).filter(move |who| Census::home(*who) == home).take(5);
            [ROWS - 2, ROWS - 1, 0, 1].into_iter().flat_map(of).collect()
        })
    }

    #[test]
    fn gaps_are_bounded() {
        let mut one = One::new(8);
        for gap in 1..=GAPS as u32 {
            assert_eq!(one.later(gap * 16, gap * 16 + 8, true), Ok(7));
        }
        assert_eq!(one.later(1024, 1032, true), Err(FRAGMENTS_FULL));
        assert_eq!(one.later(8, 16, true), Ok(7));
        assert_eq!(one.later(1024, 1032, true), Ok(7));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Against a set of the bytes that passed: no byte twice, none beyond the end, and all that
        /// is new passes.
        #[test]
        fn as_a_set_of_bytes_has_it(pieces in prop::collection::vec((0u32..24, 1u32..5, prop::bool::weighted(0.9)), 1..40)) {
            let mut table = Fragments::new(LIFE);
            table.first(key(1, 0), piece(0, 8, true), (), 1).unwrap();
            let (mut passed, mut total) = (std::collections::BTreeSet::from([0u32]), None);
            for (start, len, more) in pieces {
                let end = start + len;
                let beyond = match total {
                    Some(total) => !more || end >= total,
                    None => !more && passed.last().is_some_and(|last| *last >= start),
                };
                let good = start > 0 && !beyond && (start..end).all(|unit| !passed.contains(&unit));
                let found = table.later(key(1, 0), piece(start * 8, end * 8, more), 1);
                prop_assert_eq!(found.is_ok(), good, "{} to {}, {}: {:?}", start, end, more, found);
                if good {
                    passed.extend(start..end);
                    total = if more { total } else { Some(end) };
                    if total == Some(passed.len() as u32) {
                        prop_assert_eq!(table.later(key(1, 0), piece(8, 16, true), 1), Err(FRAGMENT_ORPHAN));
                        break;
                    }
                }
            }
        }

        /// Owners come and go in neighbouring rows; compared with a map.
        #[test]
        fn a_census_is_a_map(calls in prop::collection::vec((0usize..20, prop::bool::weighted(0.6)), 1..300)) {
            let mut census = Census::new();
            let mut expected = std::collections::BTreeMap::<u32, u16>::new();
            for (at, more) in calls {
                let who = crowd()[at];
                if more {
                    census.add(who, who + 1);
                    *expected.entry(who).or_default() += 1;
                } else {
                    census.take(who);
                    expected.entry(who).and_modify(|n| *n = n.saturating_sub(1));
                }
                expected.retain(|_, n| *n > 0);
                for who in crowd() {
                    prop_assert_eq!(census.of(*who), expected.get(who).copied().unwrap_or(0));
                }
                let mut rows: Vec<_> = census.rows.iter().filter(|row| row.0 != NOBODY).copied().collect();
                rows.sort_unstable();
                prop_assert_eq!(rows, expected.iter().map(|(who, n)| (*who, who + 1, *n)).collect::<Vec<_>>());
            }
        }

        /// Any calls: never more entries than there may be, and the chains hold together.
        #[test]
        fn any_order_of_calls(calls in prop::collection::vec((0u32..100, 0u32..4, 0u32..6, any::<bool>(), 0u32..3), 1..600)) {
            let mut table = Fragments::new(LIFE);
            let mut now = 1;
            for (id, sender, start, more, seconds) in calls {
                now += seconds / 2 * 7;
                let piece = piece(start * 8, start * 8 + 8, more);
                let key = key(id, sender);
                let _ = if start == 0 { table.first(key, piece, (), now) } else { table.later(key, piece, now) };
                for sender in 0..4 {
                    let has = table.senders.iter().filter(|&&other| other == sender).count();
                    prop_assert!(has <= PER_SENDER && table.of_sender.of(sender) == has as u16);
                }
            }
            let all = table.senders.iter().filter(|&&other| other != NOBODY).count();
            prop_assert_eq!(table.of_network.of(5), all as u16);
            let entry = |at: u16| table.entries.get(usize::from(at));
            let length = |head: &u16| std::iter::successors(entry(*head), |before| entry(before.next)).count();
            let chained: usize = table.chains.iter().map(length).sum();
            prop_assert_eq!(chained, table.senders.iter().filter(|&&sender| sender != NOBODY).count());
        }

        /// Owners come and go at random. The census agrees with counting, and an owner within its
        /// max-min fair part loses nothing.
        #[test]
        fn a_fair_part_is_safe(calls in prop::collection::vec((0u32..40, 0u32..6), 1..4000)) {
            let mut table: Fragments<()> = Fragments::new(LIFE);
            let mut expected: std::collections::BTreeMap<(u32, u32), u32> = Default::default();
            for (number, (sender, vni)) in (0..).zip(calls) {
                // A sender is in one network.
                let sender = sender * 8 + vni;
                table.first(of(number, vni, sender), piece(0, 8, true), (), 1).unwrap();
                *expected.entry((vni, sender)).or_default() += 1;
            }
            let mut networks: std::collections::BTreeMap<u32, u32> = Default::default();
            for ((vni, sender), sent) in &expected {
                *networks.entry(*vni).or_default() += sent.min(&(PER_SENDER as u32));
                let has = table.senders.iter().filter(|&&other| other == *sender).count() as u32;
                prop_assert_eq!(u32::from(table.of_sender.of(*sender)), has);
            }
            for (vni, wanted) in &networks {
                let has = u32::from(table.of_network.of(*vni));
                let part = ENTRIES as u32 / networks.len() as u32;
                prop_assert!(has >= (*wanted).min(part.saturating_sub(1)), "network {} has {} of {}", vni, has, wanted);
            }
        }
    }
}
