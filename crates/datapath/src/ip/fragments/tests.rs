//! Packets in fragments: in any order, twice, overlapping, and more than there is room for.

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
        let other = FragmentKey::new(&Tuple { source_port: 4, protocol: 60, ..tuple }, &next, 5, 0);
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
    // Another time holds for those that there are, too.
    table.set_life(LIFE + 10);
    assert_eq!(table.later(key(1, 0), piece(16, 24, true), 169), Ok(()));
    table.set_life(5);
    assert_eq!(table.later(key(1, 0), piece(24, 32, true), 135), Err(FRAGMENT_ORPHAN));
}

/// The other worker's second is the one before: nothing has ended for that.
#[test]
fn an_older_clock_ends_nothing() {
    let mut table = Fragments::new(LIFE);
    table.first(key(1, 0), piece(0, 8, true), (), 100).unwrap();
    assert_eq!(table.first(key(1, 0), piece(0, 8, true), (), 99), Err(FRAGMENT_OVERLAP));
    assert_eq!(table.later(key(1, 0), piece(8, 16, true), 99), Ok(()));
}

#[test]
fn a_first_one_is_known_until_its_packet_ends() {
    let mut table = Fragments::new(LIFE);
    let none = table.firsts();
    assert!(!table.has(&key(1, 0), 100));
    table.first(key(1, 0), piece(0, 8, true), (), 100).unwrap();
    let one = table.firsts();
    assert!(one != none && table.has(&key(1, 0), 129));
    assert!(!table.has(&key(1, 0), 130) && !table.has(&key(1, 1), 100));
    assert_eq!(table.later(key(1, 0), piece(8, 16, true), 100), Ok(()));
    assert!(table.has(&key(1, 0), 100), "a look takes nothing");
    assert_eq!(table.later(key(1, 0), piece(16, 24, false), 100), Ok(()));
    assert!(!table.has(&key(1, 0), 100));
    assert_eq!(table.firsts(), one, "of first ones alone");
}

#[test]
fn a_sender_with_too_many_forgets_its_oldest() {
    let mut table = Fragments::new(LIFE);
    table.first(key(7, 1), piece(0, 8, true), (), 100).unwrap();
    for id in 0..1000 {
        table.first(key(id, 0), piece(0, 8, true), (), 100).unwrap();
        assert_eq!(table.later(key(id, 0), piece(8, 16, true), 100), Ok(()), "the newest is there");
    }
    let known = |table: &mut Fragments<()>, id| table.later(key(id, 0), piece(16, 24, true), 100);
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
        .filter(|(sender, id)| table.later(of(*id, 5, *sender), piece(8, 16, true), 100).is_err())
        .collect();
    assert_eq!(
        lost.iter().map(|(_, id)| *id).collect::<Vec<_>>(),
        [0; 5],
        "the oldest of five vnics: {lost:?}"
    );
    assert_eq!((table.entries.capacity(), table.senders.capacity(), table.made.capacity()), room);
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

/// Of senders with one packet each the oldest goes, so a newcomer has its time, however many there
/// are.
#[test]
fn of_many_with_one_each_the_oldest_goes() {
    let mut table = Fragments::new(LIFE);
    for n in 0..ENTRIES as u32 * 3 {
        table.first(of(1, 5, n), piece(0, 8, true), n, 100).unwrap();
        let Some(oldest) = (n + 1).checked_sub(ENTRIES as u32).filter(|it| *it > 0) else {
            continue;
        };
        assert!(table.has(&of(1, 5, n), 100) && table.has(&of(1, 5, oldest), 100));
        assert!(!table.has(&of(1, 5, oldest - 1), 100));
    }
}

/// Fragments without a byte, or whose place contradicts their kind.
#[test]
fn pieces_that_cannot_be() {
    let mut one = One::new(16);
    for (offset, end) in
        [(0, 8), (0, 16), (16, 16), (24, 16), (32, 32), (8, 0), (65_528, 65_536), (65_536, 65_544)]
    {
        for more in [true, false] {
            assert_eq!(one.later(offset, end, more), Err(FRAGMENT_OVERLAP), "{offset} to {end}");
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
            assert_eq!(table.later(*key, piece(8, 16, true), 1), expected, "{n} without {gone}");
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
