use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::ip::{
    Tuple,
    tcp::{ADRIFT, TcpState, Track},
};
use crate::session::{
    former::FormerSessions,
    hash::HashKey,
    key::{Key, Zone},
    layout::{HEAD_FREE, HEAD_USED},
    names::Name,
    pen::{Died, Pen},
    record::{Admitted, FIRST_STAMP, Life, NO_TRACK, Past},
    state::{State, Timeouts},
    table::{LOCK, Table},
};

const KEY: HashKey = HashKey([2, 4, 6, 8]);
const NOW: u32 = 1000;
/// Vnics in the first slots, all of one network.
const VNICS: u32 = 8;
const BORN: u32 = 50;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn key(n: u32) -> Key {
    let tuple = Tuple {
        source: 0xffff_0a00_0000 + u128::from(n),
        destination: 1,
        source_port: n as u16,
        destination_port: 80,
        vlan: 0,
        protocol: 6,
    };
    Key::new(&tuple, Zone::of(7), n % VNICS, (n + 1) % VNICS)
}

fn admission(stamp: u32, n: u32) -> Admitted {
    Admitted { stamp, cells: [n, !n], answers: n.is_multiple_of(2) }
}

fn add(table: &Table, n: u32, stamp: u32) -> Option<u32> {
    let life = Life {
        now: NOW - 10,
        state: State::Tcp(TcpState::Established),
        track: NO_TRACK,
        past: Past::NONE,
    };
    let key = key(n);
    table.insert(table.hash(&key), &key, admission(stamp, n), &life, |_| true, |_, _, _| ()).ok()
}

fn remove(table: &Table, n: u32) {
    if let Some(found) = table.lookup(table.hash(&key(n)), &key(n)) {
        table.remove(found.index, &key(n));
    }
}

/// Has the second line of a record be held by a thread that is gone.
fn hold(table: &Table, index: u32) {
    std::mem::forget(table.record(index).hold());
}

fn table(capacity: u32) -> Table {
    let table = Table::with_names(capacity, KEY).unwrap();
    for slot in 0..VNICS {
        let name = Name { id: format!("nic-{slot}").into(), vni: 7, born: BORN };
        table.name(slot, Some(&name));
    }
    table
}

/// Returns a table with this memory.
fn left(words: &[u64], capacity: u32) -> Table {
    let table = Table::with_names(capacity, KEY).unwrap();
    table.set_words(words.iter().copied());
    table
}

fn repair(table: &Table) -> FormerSessions {
    table.repair(&Timeouts::default(), NOW)
}

/// Returns the sessions by their numbers. All must be such that each is decided again.
fn sessions(table: &Table) -> Vec<u32> {
    let mut all = Vec::new();
    table.for_each(|index, record, key, admission| {
        assert_eq!((admission.stamp, admission.cells), (FIRST_STAMP, [0, 0]));
        let n = key.tuple().source as u32 & 0xff_ffff;
        assert_eq!(key, self::key(n));
        assert_eq!(table.lookup(table.hash(&key), &key).map(|found| found.index), Some(index));
        assert_eq!(record.line2().made, NOW - 10);
        all.push(n);
    });
    all.sort_unstable();
    assert_eq!(table.whole(), Ok(all.len() as u64));
    all
}

/// Fills, empties and fills a table again, tears it apart, and returns its memory and the sessions
/// that can go on.
fn torn() -> (Vec<u64>, Vec<u32>) {
    let table = table(64);
    for n in 0..60 {
        add(&table, n, BORN + n);
    }
    for n in (0..60).step_by(3) {
        remove(&table, n);
    }
    // A record of earlier vnics, one in change, locks that the dead process held, and counts that
    // it did not come to write.
    add(&table, 100, BORN - 1);
    let changing = table.lookup(table.hash(&key(1)), &key(1)).unwrap().index;
    let sequence = table.record(changing).word(0);
    sequence.fetch_or(1 << 32, Relaxed);
    // Second lines that it was changing: of sessions, of the record in change, and of a free one.
    for n in [2, 4, 5, 1] {
        hold(&table, table.lookup(table.hash(&key(n)), &key(n)).map_or(changing, |at| at.index));
    }
    let free = table.head().word(HEAD_FREE).load(Relaxed) as u32 - 1;
    assert!(table.record(free).is_free());
    hold(&table, free);
    (0..=table.mask).for_each(|at| _ = table.bucket(at)[0].fetch_or(LOCK, Relaxed));
    table.head().word(HEAD_USED).store(77, Relaxed);
    table.head().word(HEAD_FREE).store(5, Relaxed);
    (table.words(), (2..60).filter(|n| n % 3 != 0).collect())
}

#[test]
fn a_torn_table_is_whole_again() {
    let (words, good) = torn();
    let table = left(&words, 64);
    assert!(table.whole().is_err());
    let found = repair(&table);
    assert_eq!(found, FormerSessions { sessions: good.len() as u64, idle: 10, unusable: 2 });
    assert_eq!(sessions(&table), good);
    assert!(table.owners().iter().flatten().all(|name| name.born == FIRST_STAMP));
    // A repaired table is as good as it was.
    let words = table.words();
    assert_eq!(repair(&table).sessions, good.len() as u64);
    assert_eq!((sessions(&table), table.words()), (good, words));
}

/// Marks that are half written are those of a handshake. Such connections go, others stay.
#[test]
fn a_session_that_was_being_changed_stays_unless_it_is_being_opened() {
    use TcpState::*;
    let tcp = State::Tcp;
    let track =
        Track { fins: 1, scale: [1, 2], end: [3, 4], allow: [5, 6], acked: [7, 8], ..NO_TRACK };
    for (state, fins, protocol, held, stays) in [
        (tcp(New), 0, 6, false, true),
        (tcp(New), 0, 6, true, false),
        (tcp(SynReceived), 0, 6, true, false),
        (tcp(PickedUp), 1, 6, true, false),
        (tcp(Established), 0, 6, true, true),
        // Its marks are out of date in any case.
        (tcp(Established), ADRIFT, 6, true, true),
        (tcp(HalfClosed), 1, 6, true, true),
        (tcp(TimeWait), 3, 6, true, true),
        (State::UdpNew, 0, 17, true, true),
        (State::UdpAnswered, 0, 17, true, true),
        (State::SctpNew, 0, 132, true, true),
        (State::OtherNew, 0, 47, true, true),
    ] {
        let table = table(64);
        let key = Key::new(&Tuple { protocol, ..key(1).tuple() }, Zone::of(7), 1, 2);
        let tcp = match state {
            State::Tcp(state) => state,
            _ => New,
        };
        let track = Track { state: tcp, fins, ..track };
        let life = Life { now: NOW - 1, state, track, past: Past::first(0, 100) };
        let none = |_: u32, _: &Key, _: &Admitted| ();
        let index = table
            .insert(table.hash(&key), &key, admission(BORN, 1), &life, |_| true, none)
            .unwrap();
        if held {
            hold(&table, index);
        }
        let found = repair(&table);
        let of = (found.sessions, found.unusable);
        assert_eq!(of, (u64::from(stays), u64::from(!stays)), "{state:?} {held}");
        assert_eq!(table.whole(), Ok(found.sessions), "{state:?} {held}");
        if stays {
            let line = table.record(index).line2();
            assert_eq!((line.state, line.seen, line.packets), (state, NOW - 1, [1, 0]));
            assert!(line.track == track || state.protocol() != "tcp");
        } else {
            // The record can be used again: nothing waits for the dead thread.
            assert_eq!(add(&table, 1, BORN), Some(index));
        }
    }
}

/// Nothing waits for a lock in a record that was never used, which a repair does not look at.
#[test]
fn a_record_that_was_never_used_may_have_anything_in_it() {
    let table = table(64);
    (0..64).for_each(|index| table.record(index).word(8).store(u64::MAX, Relaxed));
    assert_eq!(repair(&table).sessions, 0);
    let made = (0..40).filter(|n| add(&table, *n, BORN).is_some()).count();
    assert_eq!((made as u64, Ok(table.used().into())), (40, table.whole()));
}

/// A process that repairs may die at any store, and the next one as well.
#[test]
fn a_repair_may_end_at_any_store() {
    let (words, good) = torn();
    let die = |table: &Table, stores| {
        table.repair_with(&mut Pen::that_dies_after(stores), &Timeouts::default(), NOW)
    };
    let mut stores = 0;
    loop {
        let table = left(&words, 64);
        if die(&table, stores).is_ok() {
            break;
        }
        let second = left(&table.words(), 64);
        assert_eq!(die(&second, stores / 2), Err(Died));
        for table in [table, second] {
            repair(&table);
            assert_eq!(sessions(&table), good, "after {stores} stores");
        }
        stores += 1;
    }
    // Two of each session, and those of what is not a session any more.
    assert!(stores > 2 * good.len() as u64 + 50, "{stores}");
}

/// Buckets of a table that was left in order stay, but for entries of sessions that go. What is
/// there then is what would be there if all were made anew.
#[test]
fn buckets_in_order_stay() {
    let mut state = 1;
    for round in 0..200 {
        let table = table(64 << (round % 4));
        let fill = table.capacity() * (round % 10 + 1) / 10;
        let mut n = 0;
        while table.used() < fill {
            let _ = add(&table, n, BORN);
            n += 1;
            if random(&mut state).is_multiple_of(3) {
                remove(&table, random(&mut state) as u32 % n);
            }
        }
        let gone = [None, Some(3), Some(5)][round as usize % 3];
        gone.iter().for_each(|slot| table.name(*slot, None));
        let words = table.words();
        let anew = left(&words, table.capacity());
        anew.bucket(0)[0].fetch_or(LOCK, Relaxed);
        let kept = left(&words, table.capacity());
        assert_eq!(repair(&kept), repair(&anew), "round {round}");
        assert_eq!(sessions(&kept), sessions(&anew), "round {round}");
        let buckets = |table: &Table| -> Vec<u64> {
            let words = (0..=table.mask).flat_map(|at| table.bucket(at));
            words.map(|word| word.load(Relaxed)).collect()
        };
        let stayed = buckets(&kept) == buckets(&table);
        assert!(stayed == gone.is_none() || kept.used() == table.used(), "round {round}");
    }
}

/// Buckets in which anything is wrong are made anew, and no session is lost by it.
#[test]
fn buckets_that_are_not_in_order_are_made_anew() {
    let whole = table(64);
    (0..60).for_each(|n| _ = add(&whole, n, BORN));
    let good = whole.used() as usize;
    let words = whole.words();
    let mut state = 7;
    let mut changed = 0;
    for _ in 0..2000 {
        let table = left(&words, 64);
        let at = random(&mut state) % (table.mask + 1);
        let word = &table.bucket(at)[random(&mut state) as usize % 8];
        let drawn = random(&mut state);
        let old = word.load(Relaxed);
        let new = match drawn % 5 {
            0 => 0,
            1 => old ^ (1 << ((drawn >> 32) % 64)),
            2 => drawn,
            3 => table.bucket(drawn >> 8 & table.mask)[1].load(Relaxed),
            _ => (old & !0xffff_ffff) | ((drawn >> 32) % 70),
        };
        word.store(new, Relaxed);
        changed += u32::from(new != old);
        assert_eq!(repair(&table).sessions as usize, good);
        assert_eq!(sessions(&table).len(), good);
    }
    assert!(changed > 1000, "{changed}");
}

#[test]
fn a_full_table_stays_full() {
    for capacity in [64, 80, 1000, 5120] {
        let table = table(capacity);
        let mut n = 0;
        while table.used() < capacity {
            let _ = add(&table, n, BORN);
            n += 1;
        }
        let found = repair(&table);
        // Some of the fullest buckets may give up one.
        assert!(found.sessions + found.unusable == u64::from(capacity), "{found:?}");
        assert!(found.unusable <= u64::from(capacity) / 100, "{capacity} {found:?}");
        assert_eq!(sessions(&table).len() as u64, found.sessions);
        for n in n..n + 100 {
            assert!(add(&table, n, 9).is_some(), "one that may go makes room");
            assert_eq!(table.whole(), Ok(table.used().into()));
        }
    }
}

/// Copies a table word by word while threads change it. A death leaves less disorder.
#[test]
fn a_copy_of_any_moment_can_be_repaired() {
    let table = table(64);
    let stop = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(2);
    let (mut copies, mut all) = (0, 0);
    std::thread::scope(|scope| {
        for seed in [1, 2] {
            let (table, stop) = (&table, &stop);
            scope.spawn(move || {
                let mut state = seed;
                while !stop.load(Relaxed) {
                    let drawn = random(&mut state);
                    let n = (drawn >> 32) as u32 % 90;
                    match drawn % 4 {
                        0 | 1 => _ = add(table, n, BORN + 5),
                        2 => remove(table, n),
                        _ => {
                            if let Some(found) = table.lookup(table.hash(&key(n)), &key(n)) {
                                table.readmit(found.index, &key(n), admission(BORN + 6, n));
                            }
                        }
                    }
                }
            });
        }
        while Instant::now() < end {
            let copy = left(&table.words(), 64);
            repair(&copy);
            // Records may be mixtures of two flows in such a copy, but each is in one place.
            match copy.whole() {
                Ok(sessions) => all += sessions,
                Err(why) => {
                    stop.store(true, Relaxed);
                    panic!("{why}");
                }
            }
            copies += 1;
        }
        stop.store(true, Relaxed);
    });
    assert!(copies > 50 && all > copies, "{copies} copies with {all} sessions");
}

/// Random changes, each of which may be the last; then also torn by hand.
#[test]
fn any_history_can_be_repaired() {
    let mut state = 7;
    for round in 0..300 {
        let table = table(64);
        for _ in 0..random(&mut state) % 200 {
            let drawn = random(&mut state);
            let n = (drawn >> 32) as u32 % 120;
            if drawn.is_multiple_of(3) { remove(&table, n) } else { _ = add(&table, n, BORN) }
        }
        let mut before = Vec::new();
        let mut tear = random(&mut state);
        table.for_each(|_, record, key, _| {
            tear = tear.rotate_left(1);
            if tear.is_multiple_of(8) {
                record.word(0).fetch_or(1 << 32, Relaxed);
            } else {
                before.push(key.tuple().source as u32 & 0xff_ffff);
            }
        });
        (0..=table.mask).filter(|at| (tear >> at).is_multiple_of(2)).for_each(|at| {
            table.bucket(at)[0].fetch_or(LOCK, Relaxed);
        });
        before.sort_unstable();
        repair(&table);
        let after = sessions(&table);
        let lost = before.iter().filter(|n| !after.contains(n)).count();
        assert!(after.iter().all(|n| before.contains(n)) && lost <= 1, "round {round}: {lost}");
    }
}

/// The figure of docs/design/lasting.md: 100,000 sessions in a table of the usual size.
#[test]
fn a_large_table_is_repaired_at_once() {
    let table = Table::with_names(1_000_000, KEY).unwrap();
    for slot in 0..VNICS {
        let name = Name { id: format!("nic-{slot}").into(), vni: 7, born: BORN };
        table.name(slot, Some(&name));
    }
    for n in 0..100_000 {
        add(&table, n, BORN);
    }
    let begun = Instant::now();
    let found = repair(&table);
    let took = begun.elapsed();
    println!("{} sessions of 1,000,000: repaired in {} us", found.sessions, took.as_micros());
    assert_eq!((found.sessions, found.unusable), (100_000, 0));
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(table.whole(), Ok(100_000));
}
