use std::collections::HashSet;

use crate::ip::{Tuple, tcp::TcpState};
use crate::session::{
    BatchChanges, State,
    key::Zone,
    table::{audit::*, *},
};

fn table(capacity: u32) -> Table {
    Table::new(capacity, HASH_KEY).unwrap()
}

/// Returns flows with this first bucket.
fn flows_of(table: &Table, bucket: u64) -> impl Iterator<Item = u32> {
    let mask = table.mask;
    (0..1 << 16).filter(move |n| Table::first(HASH_KEY.hash(&key(*n))) & mask == bucket)
}

#[test]
fn what_was_added_is_found_from_both_ends_until_it_is_removed() {
    let table = table(64);
    let (a, b) = (table.add(1, 10, false).unwrap(), table.add(2, 11, false).unwrap());
    assert_eq!(
        table.get(1),
        Some(Found { index: a, direction: 0, admission: verdict(1, 10), session: a.into() })
    );
    assert_eq!(table.get_fast(1), table.get(1));
    let back = key(2).reversed();
    let found =
        Some(Found { index: b, direction: 1, admission: verdict(2, 11), session: b.into() });
    assert_eq!(table.lookup(table.hash(&back), &back), found);
    assert_eq!((table.get(3), table.get_fast(3), table.used()), (None, None, 2));
    let line = table.record(b).line2();
    assert_eq!((line.seen, line.made, line.packets, line.bytes), (2, 2, [0, 0], [0, 0]));

    // Only the record of that flow goes.
    assert!(!table.remove(b, &key(1)) && !table.remove(a, &key(2)) && !table.remove(63, &key(1)));
    assert!(!table.remove(a, &key(1).reversed()));
    assert!(table.remove(a, &key(1)) && !table.remove(a, &key(1)));
    assert_eq!(
        (table.get(1), table.get_fast(1), table.check(a, &key(1)), table.used()),
        (None, None, None, 1)
    );
    assert_eq!(table.audit(), [2].into());
}

#[test]
fn the_same_flow_is_made_once_whatever_its_direction() {
    let table = table(64);
    table.add(1, 10, false).unwrap();
    assert_eq!(table.add(1, 11, true), Err(NotInserted::Exists));
    let back = key(1).reversed();
    let again = table.insert(
        table.hash(&back),
        &back,
        verdict(1, 12),
        &life(1),
        |_| true,
        |_, _, _| panic!("evicted"),
    );
    assert_eq!(again, Err(NotInserted::Exists));
    assert_eq!(table.get(1).unwrap().admission, verdict(1, 10));
    table.audit();
}

#[test]
fn a_record_is_admitted_anew_only_if_it_is_that_flow_s() {
    let table = table(64);
    let a = table.add(1, 10, false).unwrap();
    let changes = BatchChanges { direction: 0, packets: 5, bytes: 500, track: None, seen: None };
    table.record(a).settle(0, || changes);
    assert!(
        !table.readmit(a, &key(2), verdict(2, 20))
            && !table.readmit(a + 1, &key(1), verdict(1, 20))
    );
    assert_eq!(table.get(1).unwrap().admission, verdict(1, 10));
    assert!(table.readmit(a, &key(1), verdict(1, 21)));
    assert_eq!(table.get(1).unwrap().admission, verdict(1, 21));
    // The rest stays.
    let line = table.record(a).line2();
    assert_eq!((line.packets, line.bytes, line.made), ([5, 0], [500, 0], 1));
    table.remove(a, &key(1));
    assert!(!table.readmit(a, &key(1), verdict(1, 22)));
    table.audit();
}

#[test]
fn an_address_that_answers_is_noted_and_nothing_else_changes() {
    let table = table(64);
    let n = (1..).find(|n| !verdict(*n, 10).answers).unwrap();
    let at = table.add(n, 10, false).unwrap();
    assert!(!table.answers(at, &key(n + 1), 10) && !table.answers(at + 1, &key(n), 10));
    // Decided again meanwhile, by a thread with the newer policy.
    assert!(!table.answers(at, &key(n), 9));
    assert_eq!(table.get(n).unwrap().admission, verdict(n, 10));
    assert!(table.answers(at, &key(n), 10));
    assert_eq!(table.get(n).unwrap().admission, Admitted { answers: true, ..verdict(n, 10) });
}

#[test]
fn a_record_s_next_session_is_another_tenant() {
    let table = table(64);
    let at = table.add(0, 10, false).unwrap();
    for n in 0..200_000u32 {
        let tenant = table.record(at).tenant();
        assert!(table.readmit(at, &key(n), verdict(n, 21)) && table.answers(at, &key(n), 21));
        // The count of changes below it carries into it now and then.
        assert!(table.record(at).tenant() == tenant || n > 5000);
        assert!(table.remove(at, &key(n)));
        assert_eq!(table.add(n + 1, 1, false), Ok(at));
        assert_ne!(table.record(at).tenant(), tenant, "{n}");
    }
}

#[test]
fn every_record_can_be_used_and_then_the_table_is_full() {
    // Some of five records for each bucket, which are the fullest that buckets get.
    for capacity in [80, 100, 1000, 5120, 10_240] {
        let table = table(capacity);
        let mut n = 0;
        while table.used() < capacity {
            // The last records may take a few tries in a table of so few buckets.
            let _ = table.add(n, n, false);
            n += 1;
        }
        assert!(n - capacity <= capacity / 50, "{n} tries for {capacity} sessions");
        let before = table.audit();
        assert_eq!(before.len(), capacity as usize);
        for n in n..n + 100 {
            assert_eq!(table.add(n, n, false), Err(NotInserted::Full));
        }
        assert_eq!(table.audit(), before);
        // All of it again, in the records that are free now.
        for n in &before {
            assert!(table.remove(table.get(*n).unwrap().index, &key(*n)));
        }
        assert!(table.audit().is_empty());
        assert_eq!(table.head().word(HEAD_FRESH).load(Relaxed), u64::from(capacity));
        let again: Vec<u32> =
            (0..capacity).filter_map(|n| table.add(1_000_000 + n, 1, false).ok()).collect();
        assert!(again.iter().all(|index| *index < capacity));
        assert_eq!(table.audit().len(), again.len());
    }
}

/// Replaces sessions by new ones, one after the other, in a table that is filled to 95 %. Returns
/// the number of refused ones.
fn refused_at_95_percent(capacity: u32, sessions: u32) -> u32 {
    let table = table(capacity);
    let live = (u64::from(capacity) * 95 / 100) as usize;
    let mut order = std::collections::VecDeque::new();
    let mut refused = 0;
    for n in 0..sessions {
        match table.add(n, n, false) {
            Ok(index) => order.push_back((n, index)),
            Err(NotInserted::Full) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        if order.len() >= live {
            let (n, index) = order.pop_front().unwrap();
            assert!(table.remove(index, &key(n)));
        }
    }
    assert_eq!(table.audit().len(), order.len());
    refused
}

/// Capacities from one that leaves buckets two thirds empty to one that fills five of seven places.
#[test]
fn a_table_that_is_not_full_refuses_nobody() {
    for (capacity, sessions) in
        [(1024, 30_000), (1280, 60_000), (5120, 60_000), (12_345, 40_000), (40_960, 100_000)]
    {
        assert_eq!(refused_at_95_percent(capacity, sessions), 0, "{capacity}");
    }
}

#[test]
#[ignore = "long: make test-long"]
fn a_table_that_is_not_full_refuses_less_than_one_in_a_million() {
    for capacity in [640, 1280, 10_000, 20_480, 65_536, 163_840, 1_000_000, 1_310_720] {
        assert_eq!(refused_at_95_percent(capacity, 4_000_000), 0, "{capacity}");
    }
}

/// IPv6 flows whose source ports cancel their interface identifiers. With a hash that adds these by
/// XOR, 14 of them fill both buckets of a chosen flow, which is then refused in an empty table.
#[test]
fn nobody_s_buckets_can_be_filled_by_choice() {
    let table = table(100_000);
    let flow = |port: u16| {
        let source = 0xfd00 << 112 | 0x1234_5678_9abc_def0 ^ u128::from(port) << 48;
        let destination = 0xfd00 << 112 | 2;
        Key::new(
            &Tuple {
                source,
                destination,
                source_port: port,
                destination_port: 80,
                vlan: 0,
                protocol: 17,
            },
            Zone::of(7),
            1,
            2,
        )
    };
    let mut hashes = HashSet::new();
    for port in 0..1000 {
        let key = flow(port);
        let hash = table.hash(&key);
        let made = table.insert(
            hash,
            &key,
            verdict(0, 1),
            &life(0),
            |_| false,
            |_, _, _| panic!("evicted"),
        );
        assert!(made.is_ok(), "flow {port}: {made:?}");
        hashes.insert(hash);
    }
    assert_eq!((hashes.len(), table.used()), (1000, 1000));
}

#[test]
fn sessions_of_one_tuple_between_other_vnics_are_few() {
    let table = table(1000);
    let copy = |vni: u32, to: u32| {
        let tuple = key(5).tuple();
        Key::new(&tuple, Zone::of(vni), 1, to)
    };
    let add = |key: Key| {
        table.insert(
            table.hash(&key),
            &key,
            verdict(5, 1),
            &life(5),
            |_| true,
            |_, _, _| panic!("evicted"),
        )
    };
    let made: Vec<u32> = (0..MAX_COPIES as u32).map(|to| add(copy(7, 10 + to)).unwrap()).collect();
    assert_eq!(add(copy(7, 20)), Err(NotInserted::Copies));
    assert_eq!(add(copy(7, 20).reversed()), Err(NotInserted::Copies));
    // One that is there already is no other, and another network has its own.
    assert_eq!(add(copy(7, 10)), Err(NotInserted::Exists));
    assert!(add(copy(8, 20)).is_ok());
    assert!(table.remove(made[2], &copy(7, 12)));
    assert!(add(copy(7, 20)).is_ok());
    assert_eq!(table.used() as usize, MAX_COPIES + 1);
}

/// Returns the flows of a home and a second bucket.
fn flow_between(table: &Table, home: u64, second: u64) -> impl Iterator<Item = u32> {
    let mask = table.mask;
    flows_of(table, home).filter(move |n| Table::second(HASH_KEY.hash(&key(*n))) & mask == second)
}

/// Returns a table with as many flows between each of these pairs of buckets, home and second, as a
/// bucket has places.
fn filled(pairs: &[(u64, u64)]) -> Table {
    let table = table(64);
    for (home, second) in pairs {
        let flows = flow_between(&table, *home, *second).take(BUCKET_WORDS - 1);
        flows.for_each(|n| assert!(table.add(n, 1, false).is_ok()));
    }
    table
}

/// Both ways: a session leaves its home for a new one, and comes home when there is room.
#[test]
fn sessions_make_way_for_others() {
    // One more flow of bucket 1 is in bucket 0, which then is full. So is bucket 3, whose flows
    // cannot move.
    let table = filled(&[(1, 0)]);
    let guest = flow_between(&table, 1, 0).nth(BUCKET_WORDS - 1).unwrap();
    assert!(table.add(guest, 1, false).is_ok());
    assert!(table.get_fast(guest).is_none() && table.get(guest).is_some());
    let own: Vec<u32> = flow_between(&table, 0, 5).take(BUCKET_WORDS - 2).collect();
    let others: Vec<u32> = flow_between(&table, 3, 0).take(BUCKET_WORDS - 1).collect();
    own.iter().chain(&others).for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    assert_eq!([table.overflow_of(0), table.overflow_of(1), table.overflow_of(3)], [0, 1, 0]);
    // The guest cannot go home, so a flow of this bucket leaves.
    let new: Vec<u32> = flow_between(&table, 0, 3).take(2).collect();
    assert!(table.has_room(table.hash(&key(new[0])), |_| false));
    assert!(table.add(new[0], 1, false).is_ok());
    assert!(
        table.get_fast(new[0]).is_some()
            && table.get_fast(own[0]).is_none()
            && table.get(own[0]).is_some()
    );
    assert_eq!([table.overflow_of(0), table.overflow_of(1)], [1, 1]);
    table.audit();
    // The guest goes home.
    let home = flow_between(&table, 1, 0).next().unwrap();
    assert!(table.remove(table.get(home).unwrap().index, &key(home)));
    assert!(table.add(new[1], 1, false).is_ok());
    assert!(table.get_fast(new[1]).is_some() && table.get_fast(guest).is_some());
    assert_eq!([table.overflow_of(0), table.overflow_of(1)], [1, 0]);
    // Readers see that a flow moved, each in the bucket that is its home.
    assert_eq!([0u64, 1, 3].map(|bucket| table.moves(bucket << 32)), [1, 1, 0]);
    table.audit();
    // Only places have changed: an index that was found still is that flow's record.
    let index = table.get(own[0]).unwrap().index;
    assert!(
        table.readmit(index, &key(own[0]), verdict(own[0], 2)) && table.remove(index, &key(own[0]))
    );
    assert_eq!(table.overflow_of(0), 0);
    table.audit();
}

/// The bucket a session would move to is full, and has one that can move on. The table does not
/// look further than that.
#[test]
fn one_that_makes_way_may_need_another_one_to() {
    for (pairs, room) in
        [(&[(0, 1), (3, 0), (1, 2)][..], true), (&[(0, 1), (3, 0), (1, 2), (2, 5)], false)]
    {
        let table = filled(pairs);
        let new = flow_between(&table, 0, 3).next().unwrap();
        let before = table.audit();
        assert_eq!(table.has_room(table.hash(&key(new)), |_| false), room);
        assert_eq!(table.add(new, 1, false).is_ok(), room);
        let moved = u64::from(room);
        assert_eq!(
            [table.overflow_of(0), table.overflow_of(1), table.overflow_of(2)],
            [moved, moved, 0]
        );
        let mut after = table.audit();
        assert!(after.remove(&new) == room && after == before);
    }
}

#[test]
fn the_record_that_was_freed_last_is_used_first() {
    let table = table(64);
    let indices: Vec<u32> = (0..4).map(|n| table.add(n, 1, false).unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert!(table.remove(1, &key(1)) && table.remove(3, &key(3)));
    assert_eq!(
        [table.add(11, 1, false), table.add(13, 1, false), table.add(14, 1, false)],
        [Ok(3), Ok(1), Ok(4)]
    );
    assert_eq!(table.audit(), [0, 2, 11, 13, 14].into());
}

#[test]
fn a_full_bucket_overflows_into_another_and_back() {
    let table = table(64);
    let flows: Vec<u32> = flows_of(&table, 3).take(9).collect();
    let (fits, over) = flows.split_at(BUCKET_WORDS - 1);
    let overflow = || table.overflow_of(3);
    fits.iter().for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    assert_eq!(overflow(), 0);
    over.iter().for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    assert_eq!((overflow(), over.len()), (2, 2));
    for n in &flows {
        assert!(table.get(*n).is_some());
        // The packet path looks at the first bucket only.
        assert_eq!(table.get_fast(*n).is_some(), fits.contains(n));
        assert_eq!(table.add(*n, 1, true), Err(NotInserted::Exists));
    }
    table.audit();
    let index = table.get(over[0]).unwrap().index;
    assert!(table.readmit(index, &key(over[0]), verdict(over[0], 2)));
    assert!(table.remove(index, &key(over[0])));
    assert_eq!((overflow(), table.get(over[0])), (1, None));
    assert!(table.get(over[1]).is_some());
    // There is room in the first one again.
    assert!(table.remove(table.get(fits[2]).unwrap().index, &key(fits[2])));
    table.add(over[0], 3, false).unwrap();
    assert_eq!(overflow(), 1);
    assert!(table.get_fast(over[0]).is_some());
    table.audit();
}

#[test]
fn second_buckets_are_spread_over_all_others() {
    let table = table(1000);
    let mut used = vec![0u32; table.mask as usize + 1];
    for n in 0..25_600 {
        let hash = HASH_KEY.hash(&key(n));
        let (first, second) = (Table::first(hash) & table.mask, Table::second(hash) & table.mask);
        assert_ne!(first, second);
        used[second as usize] += 1;
    }
    assert_eq!(used.len(), 256);
    assert!(used.iter().all(|n| (50..170).contains(n)), "{used:?}");
}

#[test]
fn who_may_go_makes_room_own_buckets_first() {
    let table = table(64);
    // Both buckets of some flow are full, and all records are in use.
    let flows: Vec<u32> = flows_of(&table, 5).take(BUCKET_WORDS - 1).collect();
    flows.iter().for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    let new = flows_of(&table, 5).nth(20).unwrap();
    let second = Table::second(HASH_KEY.hash(&key(new))) & table.mask;
    let others: Vec<u32> = flows_of(&table, second).take(BUCKET_WORDS - 1).collect();
    others.iter().for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    let buckets = |n: u32| {
        [
            Table::first(HASH_KEY.hash(&key(n))) & table.mask,
            Table::second(HASH_KEY.hash(&key(n))) & table.mask,
        ]
    };
    let mut elsewhere =
        (100_000..).filter(|n| buckets(*n).iter().all(|at| ![5, second].contains(at)));
    while table.used() < 64 {
        let _ = table.add(elsewhere.next().unwrap(), 1, false);
    }
    let before = table.audit();
    assert_eq!(table.add(new, 2, false), Err(NotInserted::Full));
    assert_eq!(table.audit(), before);

    let evicting = |n: u32, victim: u32| {
        let victim = table.get(victim).unwrap().index;
        let mut gone = Vec::new();
        let may_evict = |record: &Record<'_>| record.read() == table.record(victim).read();
        let insert = table.insert(
            table.hash(&key(n)),
            &key(n),
            verdict(n, 3),
            &life(n),
            may_evict,
            |index, key, admission| {
                gone.push((index, number(key), *admission));
            },
        );
        insert.map(|_| gone)
    };
    // One of the second bucket.
    assert_eq!(
        evicting(new, others[3]).unwrap().iter().map(|(_, n, _)| *n).collect::<Vec<_>>(),
        [others[3]]
    );
    assert_eq!(table.overflow_of(5), 1);
    table.audit();
    // One of the first, though it is the newest.
    let newer = flows_of(&table, 5)
        .skip(21)
        .find(|n| Table::second(HASH_KEY.hash(&key(*n))) & table.mask == second)
        .unwrap();
    let index = table.get(flows[6]).unwrap().index;
    assert_eq!(evicting(newer, flows[6]), Ok(vec![(index, flows[6], verdict(flows[6], 1))]));
    assert!(table.get_fast(newer).is_some_and(|found| found.index == index));
    assert_eq!((table.get(flows[6]), table.get(others[3])), (None, None));
    assert_eq!(table.used(), 64);
    table.audit();
}

#[test]
fn without_free_records_a_neighbour_makes_room() {
    let table = table(64);
    let mut n = 0;
    while table.used() < 64 {
        let _ = table.add(n, 1, false);
        n += 1;
    }
    let before = table.audit();
    // A flow with room in its bucket, and no session there that may go.
    let buckets = |n: u32| {
        let hash = HASH_KEY.hash(&key(n));
        [Table::first(hash) & table.mask, Table::second(hash) & table.mask]
    };
    let room = |at: u64| table.bucket(at).iter().any(|word| word.load(Relaxed) == 0);
    let new = (n..).find(|n| room(buckets(*n)[0])).unwrap();
    let own = buckets(new)[0];
    let elsewhere = |record: &Record<'_>| {
        let (key, _) = record.read().unwrap();
        let hash = HASH_KEY.hash(&key);
        Table::first(hash) & table.mask != own && Table::second(hash) & table.mask != own
    };
    let mut gone = Vec::new();
    let inserted = table.insert(
        table.hash(&key(new)),
        &key(new),
        verdict(new, 2),
        &life(new),
        elsewhere,
        |_, key, _| {
            gone.push(number(key));
        },
    );
    assert!(inserted.is_ok());
    let mut after = table.audit();
    assert!(after.remove(&new) && gone.len() == 1 && !after.contains(&gone[0]));
    after.extend(&gone);
    assert_eq!(after, before);
}

#[test]
fn a_visit_sees_every_session_once_and_may_take_it_out() {
    let table = table(1000);
    (0..600).for_each(|n| assert!(table.add(n, 7, false).is_ok()));
    let mut seen = Vec::new();
    table.for_each(|index, record, key, admission| {
        assert_eq!(table.record(index).read(), record.read());
        assert_eq!(admission, verdict(number(&key), 7));
        seen.push(number(&key));
    });
    seen.sort_unstable();
    assert_eq!(seen, Vec::from_iter(0..600));
    for parts in [1, 3, 7, 256, 1000] {
        let mut seen = Vec::new();
        (0..parts)
            .for_each(|part| table.for_part(part, parts, |_, _, key, _| seen.push(number(&key))));
        seen.sort_unstable();
        assert_eq!(seen, Vec::from_iter(0..600), "{parts} parts");
    }
    table.for_each(|index, _, key, _| {
        assert!(number(&key).is_multiple_of(3) || table.remove(index, &key))
    });
    assert_eq!(table.audit(), (0..600).step_by(3).collect());
}

/// A table without a free record: from 16 buckets behind one's own, and from both of one's own, a
/// session goes; from no other one.
#[test]
fn neighbours_are_the_next_sixteen_buckets() {
    for (ahead, near) in
        [(0u64, true), (1, true), (16, true), (17, false), (127, false), (64, false)]
    {
        let table = table(640);
        let mut n = 0;
        while table.used() < 640 {
            let _ = table.add(n, 1, false);
            n += 1;
        }
        assert_eq!(table.mask, 127);
        let bucket = |at: u64| table.bucket(at).iter().skip(1).map(|word| word.load(Relaxed));
        let new = (n..)
            .find(|n| {
                let hash = HASH_KEY.hash(&key(*n));
                let (first, second) =
                    (Table::first(hash) & table.mask, Table::second(hash) & table.mask);
                bucket(first).any(|word| word == 0)
                    && second.wrapping_sub(first + ahead) & table.mask != 0
            })
            .unwrap();
        let hash = table.hash(&key(new));
        let there: Vec<u32> = bucket(Table::first(hash) + ahead)
            .filter_map(|word| (word as u32).checked_sub(1))
            .collect();
        assert!(!there.is_empty());
        let keys: Vec<Key> =
            there.iter().map(|index| table.record(*index).read().unwrap().0).collect();
        let may_go =
            |record: &Record<'_>| record.read().is_some_and(|(key, _)| keys.contains(&key));
        assert_eq!(table.has_room(hash, may_go), near, "{ahead}");
        let inserted =
            table.insert(hash, &key(new), verdict(new, 2), &life(new), may_go, |_, _, _| ());
        assert_eq!(inserted.is_ok(), near, "{ahead}: {inserted:?}");
        table.audit();
    }
}

/// The one session that may go is found in one's own bucket and in the 256 behind it.
#[test]
fn so_many_buckets_are_searched() {
    let table = table(2000);
    assert_eq!(table.mask, 511);
    let n = 1;
    let own = Table::first(HASH_KEY.hash(&key(n))) & table.mask;
    for (ahead, found) in
        [(0u64, true), (1, true), (255, true), (256, true), (257, false), (511, false)]
    {
        table.add(n, 1, false).unwrap();
        let hash = own.wrapping_sub(ahead) << 32;
        assert_eq!(table.could_make_room(hash, |_| true), found, "{ahead}");
        assert!(
            !table.could_make_room(hash, |_| false)
                && !table.make_room(hash, |_| false, |_, _, _| panic!())
        );
        let mut gone = Vec::new();
        assert_eq!(
            table.make_room(
                hash,
                |_| true,
                |_, key, admission| gone.push((number(key), *admission))
            ),
            found,
            "{ahead}"
        );
        assert_eq!(gone, if found { vec![(n, verdict(n, 1))] } else { vec![] });
        if let Some(left) = table.get(n) {
            assert!(table.remove(left.index, &key(n)));
        }
        assert_eq!(table.used(), 0);
    }
}

/// And of 64 sessions at most: the last of them may be the one.
#[test]
fn so_many_sessions_are_looked_at() {
    let table = table(2000);
    // Nine buckets full of them and one more in each of the next two, from the last bucket on and
    // round the end.
    let at = |n: u64| (table.mask - 1 + n) & table.mask;
    let mut flows: Vec<u32> =
        (0..9).flat_map(|n| flows_of(&table, at(n)).take(BUCKET_WORDS - 1)).collect();
    flows.extend([9, 10].map(|n| flows_of(&table, at(n)).next().unwrap()));
    flows.iter().for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    assert_eq!(flows.len(), 65);
    for (nth, found) in [(65, false), (64, true), (63, true), (1, true)] {
        let hash = at(0) << 32;
        let wanted = key(flows[nth - 1]);
        let mut asked = 0;
        let only = |record: &Record<'_>| record.read().is_some_and(|(key, _)| key == wanted);
        let counted = |record: &Record<'_>| {
            asked += 1;
            only(record)
        };
        assert_eq!(table.could_make_room(hash, counted), found, "{nth}");
        assert!(asked <= 64);
        assert_eq!(table.make_room(hash, only, |_, _, _| ()), found, "{nth}");
        assert_eq!(table.get(flows[nth - 1]).is_none(), found);
        if found {
            assert!(table.add(flows[nth - 1], 1, false).is_ok());
        }
    }
    table.audit();
}

/// The count shows that the top of the free records was taken and came back meanwhile.
#[test]
fn who_takes_or_frees_a_record_is_counted() {
    let table = table(64);
    let count = || table.head().word(HEAD_FREE).load(Relaxed) >> 32;
    (0..3).for_each(|n| assert!(table.add(n, 1, false).is_ok()));
    assert_eq!(count(), 0);
    for round in 0..5 {
        assert!(table.remove(table.get(1).unwrap().index, &key(1)));
        assert_eq!(count(), 2 * round + 1);
        assert!(table.add(1, 1, false).is_ok());
        assert_eq!(count(), 2 * round + 2);
    }
}

/// A session with a free place to go makes way before one that needs another to make way.
#[test]
fn the_shortest_way_is_made() {
    let table = table(64);
    let fill = |home: u64, second: u64, n: usize| {
        flow_between(&table, home, second)
            .take(n)
            .for_each(|n| assert!(table.add(n, 1, false).is_ok()));
    };
    fill(0, 1, 1);
    fill(0, 5, BUCKET_WORDS - 2);
    fill(1, 2, BUCKET_WORDS - 1);
    fill(3, 0, BUCKET_WORDS - 1);
    let new = flow_between(&table, 0, 3).next().unwrap();
    assert!(table.add(new, 1, false).is_ok());
    assert_eq!([table.overflow_of(0), table.overflow_of(1)], [1, 0]);
    assert_eq!([0u64, 1, 2, 5].map(|bucket| table.moves(bucket << 32)), [1, 0, 0, 0]);
    table.audit();
}

/// A connection that policy took back: only its state and its time differ.
#[test]
fn what_is_cut_stays_where_it_is() {
    let table = table(64);
    let index = table.add(1, 10, false).unwrap();
    let found = table.get(1).unwrap();
    let changes = BatchChanges { direction: 1, packets: 5, bytes: 500, track: None, seen: None };
    table.record(index).settle(0, || changes);
    let other = Found { index: index + 1, ..found };
    let before = Found { session: found.session | 0xffff << 48, ..found };
    assert!(!table.cut(&found, &key(2), 99) && !table.cut(&other, &key(1), 99));
    assert!(!table.cut(&before, &key(1), 99) && !table.end(&before, &key(1)));
    assert_eq!(table.record(index).seen(), (1, State::OtherNew));
    assert!(table.cut(&found, &key(1), 99));
    assert_eq!(table.record(index).seen(), (99, State::Tcp(TcpState::Cut)));
    let line = table.record(index).line2();
    assert_eq!((line.made, line.packets, line.bytes), (1, [0, 5], [0, 500]));
    assert_eq!(table.get(1).unwrap().admission, verdict(1, 10));
}

/// All sessions with one hash, in either bucket, and no others.
#[test]
fn all_of_a_hash_are_visited() {
    let table = table(64);
    let flows: Vec<u32> = flows_of(&table, 3).take(9).collect();
    flows.iter().for_each(|n| assert!(table.add(*n, 1, false).is_ok()));
    for n in &flows {
        let mut seen = Vec::new();
        let all = table.find_map(table.hash(&key(*n)), |index, key, admission| {
            seen.push((index, number(&key), admission));
            None::<()>
        });
        assert_eq!((all, seen), (None, vec![(table.get(*n).unwrap().index, *n, verdict(*n, 1))]));
        let hash = table.hash(&key(*n));
        assert_eq!(
            table.find(hash, |found| *found == key(*n)),
            table.get(*n).map(|found| found.index)
        );
        assert_eq!(table.find(hash, |_| false), None);
    }
}

/// Another table of the same hash finds the same flows; its size is its own.
#[test]
fn a_table_like_another_one() {
    let one = table(1000);
    let other = Table::like(&one, 64).unwrap();
    assert_eq!((one.capacity(), other.capacity()), (1000, 64));
    (0..100).for_each(|n| assert_eq!(one.hash(&key(n)), other.hash(&key(n))));
}
