//! Concurrent uses of the table, in every order that the memory model allows (with up to three
//! preemptions), by loom. `cargo test -p butterfly-datapath --features loom --lib loom`

use ::loom::{model::Builder, sync::Arc, thread};

use crate::ip::tcp::{self, ACK, FIN, Outcome, SYN, Segment, TcpState, Track};
use crate::session::{
    BatchChanges, NO_TRACK, Past, State,
    table::{audit::*, *},
};

/// Returns a table with two buckets of two entries each.
fn table(capacity: u32) -> Arc<Table> {
    let table = Table::new(capacity, HASH_KEY).unwrap();
    assert_eq!(table.mask, 1);
    Arc::new(table)
}

fn explore(preemptions: impl Into<Option<usize>>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Returns the `nth` flow with this first bucket.
fn flow(bucket: u64, nth: usize) -> u32 {
    (0..).filter(|n| Table::first(HASH_KEY.hash(&key(*n))) & 1 == bucket).nth(nth).unwrap()
}

fn seen(n: u32, found: Option<Found>) -> Option<Found> {
    if let Some(found) = found {
        genuine(&key(n), found.admission);
    }
    found
}

#[test]
fn one_flow_inserted_twice_has_one_record() {
    explore(3, || {
        let table = table(3);
        let n = flow(0, 0);
        let other = {
            let table = table.clone();
            thread::spawn(move || table.add(n, 2, false))
        };
        let back = key(n).reversed();
        let mine = table.insert(
            table.hash(&back),
            &back,
            verdict(n, 1),
            &life(n),
            |_| false,
            |_, _, _| {},
        );
        let other = other.join().unwrap();
        assert!(mine.is_ok() != other.is_ok(), "{mine:?} {other:?}");
        assert_eq!(table.used(), 1);
        if other.is_ok() {
            assert_eq!(table.audit(), [n].into());
        }
    });
}

/// The record is in the second bucket, whose lock an insert of the same flow does not hold.
#[test]
fn a_flow_that_is_admitted_anew_is_not_inserted_again() {
    explore(3, || {
        let table = table(3);
        let [a, b, n] = [flow(0, 0), flow(0, 1), flow(0, 2)];
        for n in [a, b, n] {
            table.add(n, 1, false).unwrap();
        }
        let index = table.get(n).unwrap().index;
        table.remove(table.get(a).unwrap().index, &key(a));
        let other = {
            let table = table.clone();
            thread::spawn(move || assert!(table.readmit(index, &key(n), verdict(n, 2))))
        };
        let inserted = table.add(n, 3, true);
        assert!(inserted.is_err(), "{inserted:?}");
        other.join().unwrap();
        assert_eq!(table.audit(), [b, n].into());
        assert_eq!(table.get(n).unwrap().admission, verdict(n, 2));
    });
}

/// Explores a writer and a reader, each as the thread that runs until it is interrupted: a bound on
/// preemptions reaches less of what follows in the other one. The reader returns whether it saw the
/// write; it must have, sometimes, and sometimes not.
fn write_and_read<T: Send + Sync + 'static>(
    preemptions: impl Into<Option<usize>> + Copy,
    new: fn() -> T,
    write: fn(&T),
    read: fn(&T) -> bool,
) {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let saw = std::sync::Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    for writer_first in [true, false] {
        let saw = saw.clone();
        explore(preemptions, move || {
            let shared = Arc::new(new());
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    if writer_first { Some(read(&shared)) } else { (write(&shared), None).1 }
                })
            };
            let mine = if writer_first { (write(&shared), None).1 } else { Some(read(&shared)) };
            let seen = other.join().unwrap().or(mine).unwrap();
            saw[usize::from(seen)].fetch_add(1, Relaxed);
        });
    }
    assert!(saw.iter().all(|n| n.load(Relaxed) > 0), "seen before and after: {saw:?}");
}

fn one_record() -> Units {
    let units = Units::anonymous(1).unwrap();
    Record::of(&units[0]).write(&key(1), verdict(1, 1), &life(1));
    units
}

fn words(units: &Units) -> Option<(u32, Admitted)> {
    let (words, admission) = Record::of(&units[0]).words()?;
    let read = Key::from_words(words);
    assert_eq!(read, key(number(&read)), "a key of no flow");
    genuine(&read, admission);
    Some((number(&read), admission))
}

#[test]
fn a_line_that_is_erased_is_read_whole() {
    let write = |units: &Units| {
        Record::of(&units[0]).erase();
        Record::of(&units[0]).set_next_free(0);
    };
    write_and_read(None, one_record, write, |units| words(units).is_none());
}

#[test]
fn a_line_that_is_admitted_anew_is_read_whole() {
    let write = |units: &Units| Record::of(&units[0]).readmit(&key(1), verdict(1, 2));
    write_and_read(2, one_record, write, |units| {
        words(units).is_some_and(|(_, admission)| admission.stamp == 2)
    });
}

#[test]
fn a_line_that_is_used_again_is_read_whole() {
    let write = |units: &Units| {
        Record::of(&units[0]).erase();
        Record::of(&units[0]).set_next_free(0);
        Record::of(&units[0]).write(&key(2), verdict(2, 2), &life(2));
    };
    write_and_read(2, one_record, write, |units| words(units).is_some_and(|(n, _)| n == 2));
}

#[test]
fn who_sees_the_first_line_sees_the_second() {
    let read = |units: &Units| {
        let seen = words(units).is_some();
        assert!(
            !seen || Record::of(&units[0]).seen() == (2, life(2).state),
            "a second line of before"
        );
        seen
    };
    let write = |units: &Units| Record::of(&units[0]).write(&key(2), verdict(2, 2), &life(2));
    write_and_read(2, || Units::anonymous(1).unwrap(), write, read);
}

#[test]
fn a_reader_sees_nothing_or_the_whole_record() {
    fn flows() -> [u32; 2] {
        [flow(0, 0), flow(0, 1)]
    }
    let new = || {
        let table = table(1);
        assert_eq!(table.add(flows()[0], 1, false), Ok(0));
        table
    };
    // Nothing is free: `a` has to go, and `b` has its record.
    let write = |table: &Arc<Table>| {
        let [_, b] = flows();
        assert_eq!(table.add(b, 2, true), Ok(0));
    };
    let read = |table: &Arc<Table>| {
        let [a, b] = flows();
        // A candidate that was found before, as in a batch.
        seen(a, table.check(0, &key(a)));
        let found = seen(b, table.get_fast(b));
        if let Some(found) = found {
            assert_eq!(table.record(found.index).seen(), (b, life(b).state));
            assert!(seen(a, table.check(0, &key(a))).is_none(), "a is seen after b");
        }
        found.is_some()
    };
    write_and_read(1, new, write, read);
}

#[test]
fn a_slow_reader_sees_nothing_or_the_whole_record() {
    fn flows() -> [u32; 2] {
        [flow(0, 0), flow(1, 0)]
    }
    let new = || {
        let table = table(1);
        table.add(flows()[0], 1, false).unwrap();
        table
    };
    let write = |table: &Arc<Table>| {
        let [a, b] = flows();
        assert!(table.remove(0, &key(a)));
        table.add(b, 2, false).unwrap();
    };
    let read = |table: &Arc<Table>| {
        let [_, b] = flows();
        seen(b, table.get(b)).is_some()
    };
    write_and_read(1, new, write, read);
}

#[test]
fn lookups_do_not_miss_a_flow_that_is_admitted_anew() {
    explore(3, || {
        let table = table(1);
        let n = flow(0, 0);
        let index = table.add(n, 1, false).unwrap();
        let writer = {
            let table = table.clone();
            thread::spawn(move || assert!(table.readmit(index, &key(n), verdict(n, 2))))
        };
        // `line1` waits a while, `read_surely` until it is so.
        table.record(index).read_surely().unwrap();
        seen(n, table.get(n));
        let mut visited = 0;
        table.for_each(|_, _, key, admission| {
            genuine(&key, admission);
            visited += 1;
        });
        assert_eq!(visited, 1);
        writer.join().unwrap();
        assert_eq!(table.get(n).unwrap().admission, verdict(n, 2));
    });
}

#[test]
fn removal_and_insertion_in_one_bucket() {
    explore(2, || {
        let table = table(2);
        let [a, b, c] = [flow(0, 0), flow(0, 1), flow(0, 2)];
        let index = table.add(a, 1, false).unwrap();
        table.add(b, 1, false).unwrap();
        let remover = {
            let table = table.clone();
            thread::spawn(move || table.remove(index, &key(a)))
        };
        let inserted = table.add(c, 2, false);
        let removed = remover.join().unwrap();
        let mut expected: std::collections::HashSet<u32> = [b].into();
        expected.extend((!removed).then_some(a));
        expected.extend(inserted.is_ok().then_some(c));
        assert_eq!(table.audit(), expected);
    });
}

#[test]
fn removal_and_eviction_of_one_record_free_it_once() {
    explore(3, || {
        let table = table(1);
        let [a, b] = [flow(0, 0), flow(0, 1)];
        let index = table.add(a, 1, false).unwrap();
        let remover = {
            let table = table.clone();
            thread::spawn(move || table.remove(index, &key(a)))
        };
        let mut evicted = false;
        let inserted = table
            .insert(
                table.hash(&key(b)),
                &key(b),
                verdict(b, 2),
                &life(b),
                |_| true,
                |_, _, _| evicted = true,
            )
            .is_ok();
        let removed = remover.join().unwrap();
        assert!(!(evicted && removed), "both took it out");
        assert_eq!(table.audit().contains(&a), !(evicted || removed));
        assert_eq!(table.audit().contains(&b), inserted);
    });
}

/// The stack of free records: one takes the first and knows the next, meanwhile another takes both
/// and brings back the first.
#[test]
fn a_free_record_is_taken_once() {
    explore(3, || {
        let table = table(3);
        let taken = [table.allocate().unwrap(), table.allocate().unwrap()];
        taken.iter().rev().for_each(|index| table.free(*index));
        let other = {
            let table = table.clone();
            thread::spawn(move || {
                let first = table.allocate().unwrap();
                let second = table.allocate().unwrap();
                table.free(first);
                second
            })
        };
        let mine = table.allocate().unwrap();
        let others = other.join().unwrap();
        let last = table.allocate().unwrap();
        let mut all = [mine, others, last];
        all.sort_unstable();
        assert_eq!((all, table.allocate()), ([0, 1, 2], None));
    });
}

#[test]
fn a_verdict_is_never_written_onto_another_flow() {
    explore(3, || {
        let table = table(1);
        let [a, b] = [flow(0, 0), flow(0, 1)];
        let index = table.add(a, 1, false).unwrap();
        let decider = {
            let table = table.clone();
            thread::spawn(move || table.readmit(index, &key(a), verdict(a, 3)))
        };
        let inserted = table.add(b, 2, true);
        let readmitted = decider.join().unwrap();
        let flows = table.audit();
        if inserted.is_ok() {
            assert_eq!((flows, table.get(b).unwrap().admission), ([b].into(), verdict(b, 2)));
        } else {
            assert_eq!(flows, [a].into());
            assert_eq!(table.get(a).unwrap().admission, verdict(a, if readmitted { 3 } else { 1 }));
        }
    });
}

#[test]
fn a_verdict_is_never_written_onto_what_another_bucket_got() {
    explore(2, || {
        let table = table(1);
        let [a, b] = [flow(0, 0), flow(1, 0)];
        let index = table.add(a, 1, false).unwrap();
        let decider = {
            let table = table.clone();
            thread::spawn(move || table.readmit(index, &key(a), verdict(a, 3)))
        };
        if table.remove(index, &key(a)) {
            assert_eq!(table.add(b, 2, false), Ok(index));
            assert_eq!(table.get(b).unwrap().admission, verdict(b, 2));
        }
        decider.join().unwrap();
        table.audit();
    });
}

#[test]
fn flows_in_their_second_bucket_are_counted_exactly() {
    explore(2, || {
        let table = table(4);
        let [a, b, c, d] = [flow(0, 0), flow(0, 1), flow(0, 2), flow(0, 3)];
        for n in [a, b, c] {
            table.add(n, 1, false).unwrap();
        }
        let index = table.get(c).unwrap().index;
        let remover = {
            let table = table.clone();
            thread::spawn(move || table.remove(index, &key(c)))
        };
        let inserted = table.add(d, 1, false);
        let removed = remover.join().unwrap();
        let flows = table.audit();
        assert_eq!((flows.contains(&c), flows.contains(&d)), (!removed, inserted.is_ok()));
        assert_eq!(table.overflow_of(0), u64::from(!removed) + u64::from(inserted.is_ok()));
    });
}

/// Each holds the bucket that is the other's second.
#[test]
fn two_that_want_each_other_s_bucket_both_end() {
    explore(2, || {
        let table = table(5);
        let (own, others) =
            ([flow(0, 0), flow(0, 1), flow(0, 2)], [flow(1, 0), flow(1, 1), flow(1, 2)]);
        for n in own.iter().chain(&others) {
            if *n != own[2] && *n != others[2] {
                table.add(*n, 1, false).unwrap();
            }
        }
        let other = {
            let table = table.clone();
            thread::spawn(move || table.add(others[2], 1, true))
        };
        let mine = table.add(own[2], 1, true);
        let other = other.join().unwrap();
        let flows = table.audit();
        assert_eq!(
            (flows.contains(&own[2]), flows.contains(&others[2])),
            (mine.is_ok(), other.is_ok())
        );
        assert!(mine.is_ok() || other.is_ok());
    });
}

/// Returns a table with four buckets of two entries each.
fn larger_table() -> Arc<Table> {
    let table = Table::new(8, HASH_KEY).unwrap();
    assert_eq!(table.mask, 3);
    Arc::new(table)
}

/// Returns the `nth` flow of a home and a second bucket of [`larger_table`].
fn flow_between(home: u64, second: u64, nth: usize) -> u32 {
    let buckets = |n: &u32| {
        (Table::first(HASH_KEY.hash(&key(*n))) & 3, Table::second(HASH_KEY.hash(&key(*n))) & 3)
    };
    (0..).filter(|n| buckets(n) == (home, second)).nth(nth).unwrap()
}

/// Buckets 0 and 1 are full, so a flow between them needs one of bucket 0 to leave for bucket 3.
/// Returns that one, and the new flow.
fn one_leaves() -> (Arc<Table>, u32, u32) {
    let table = larger_table();
    let leaves = flow_between(0, 3, 0);
    for n in [leaves, flow_between(0, 1, 0), flow_between(1, 0, 0), flow_between(1, 0, 1)] {
        table.add(n, 1, false).unwrap();
    }
    (table, leaves, flow_between(0, 1, 1))
}

/// Fills the table as [`one_leaves`] does, but a flow of bucket 3 is in bucket 0, and goes home.
/// Returns that one, and the new flow.
fn one_comes_home() -> (Arc<Table>, u32, u32) {
    let table = larger_table();
    let [first, other, guest] =
        [flow_between(3, 0, 0), flow_between(3, 0, 1), flow_between(3, 0, 2)];
    for n in
        [first, other, guest, flow_between(0, 1, 0), flow_between(1, 0, 0), flow_between(1, 0, 1)]
    {
        table.add(n, 1, false).unwrap();
    }
    assert!(table.get_fast(guest).is_none());
    assert!(table.remove(table.get(first).unwrap().index, &key(first)));
    (table, guest, flow_between(0, 1, 1))
}

/// A flow that moves is found at every moment, and found where the packet path looks if it is at
/// home.
#[test]
fn lookups_do_not_miss_a_flow_that_moves() {
    for (new, at_home) in
        [(one_leaves as fn() -> (Arc<Table>, u32, u32), false), (one_comes_home, true)]
    {
        explore(2, move || {
            let (table, moves, new) = new();
            let mover = {
                let table = table.clone();
                thread::spawn(move || table.add(new, 1, false).unwrap())
            };
            seen(moves, table.get_fast(moves));
            assert!(seen(moves, table.get(moves)).is_some(), "a flow that moves is missed");
            let mut visited = 0;
            table.for_each(|_, _, key, _| visited += u32::from(number(&key) == moves));
            assert_eq!(visited, 1);
            mover.join().unwrap();
            assert_eq!(table.get_fast(moves).is_some(), at_home);
            assert!(table.audit().contains(&moves));
        });
    }
}

/// Two threads decide on a flow while it moves: it is made once.
#[test]
fn a_flow_that_moves_is_not_inserted_again() {
    for new in [one_leaves, one_comes_home] {
        explore(2, move || {
            let (table, moves, new) = new();
            let mover = {
                let table = table.clone();
                thread::spawn(move || _ = table.add(new, 1, false))
            };
            let again = table.add(moves, 2, false);
            assert!(again.is_err(), "{again:?}");
            mover.join().unwrap();
            assert!(table.audit().contains(&moves));
        });
    }
}

#[test]
fn a_flow_that_moves_is_removed_once_and_counted_right() {
    for new in [one_leaves, one_comes_home] {
        explore(2, move || {
            let (table, moves, new) = new();
            let index = table.get(moves).unwrap().index;
            let mover = {
                let table = table.clone();
                thread::spawn(move || table.add(new, 1, false).is_ok())
            };
            let removed = table.remove(index, &key(moves));
            let made = mover.join().unwrap();
            // A lock that is held for long, as loom allows, may be in the way.
            let flows = table.audit();
            assert_eq!((flows.contains(&moves), flows.contains(&new)), (!removed, made));
        });
    }
}

/// Two threads at once: a place that one of them frees is not taken by another.
#[test]
fn two_that_make_way_at_once() {
    explore(2, || {
        let (table, moves, new) = one_leaves();
        let other = flow_between(2, 3, 0);
        let mover = {
            let table = table.clone();
            thread::spawn(move || table.add(other, 1, false).is_ok())
        };
        let made = table.add(new, 1, false).is_ok();
        let also = mover.join().unwrap();
        let flows = table.audit();
        assert!(flows.contains(&moves));
        assert_eq!((flows.contains(&new), flows.contains(&other)), (made, also));
    });
}

/// The control side and two workers, in the order in which `Plane::change_group`, `Plane::publish`,
/// `Worker::run`, `Worker::adopt` and the filter do it: version 1 has a rule that admits the flow,
/// version 2 has not.
mod policy {
    use ::loom::{
        sync::atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
            fence,
        },
        thread::yield_now,
    };

    use super::*;

    /// Place of the flow's session.
    trait Session: Send + Sync + 'static {
        /// Returns its index, and the version that admitted it.
        fn find(&self) -> Option<(u32, u32)>;
        fn readmit(&self, index: u32, version: u32) -> bool;
        fn remove(&self, index: u32);
        fn add(&self, version: u32);
    }

    /// A session in the table.
    struct Tabled(Arc<Table>, u32);

    impl Session for Tabled {
        fn find(&self) -> Option<(u32, u32)> {
            seen(self.1, self.0.get_fast(self.1)).map(|found| (found.index, found.admission.stamp))
        }

        fn readmit(&self, index: u32, version: u32) -> bool {
            self.0.readmit(index, &key(self.1), verdict(self.1, version))
        }

        fn remove(&self, index: u32) {
            self.0.remove(index, &key(self.1));
        }

        fn add(&self, version: u32) {
            let _ = self.0.add(self.1, version, false);
        }
    }

    /// A session as its stamp alone, for more threads than the whole table can be tried with; 0 is
    /// none.
    #[derive(Default)]
    struct Stamp(AtomicU64);

    impl Session for Stamp {
        fn find(&self) -> Option<(u32, u32)> {
            Some((0, self.0.load(Acquire) as u32)).filter(|(_, stamp)| *stamp != 0)
        }

        fn readmit(&self, _: u32, version: u32) -> bool {
            self.0
                .fetch_update(AcqRel, Acquire, |stamp| (stamp != 0).then_some(version.into()))
                .is_ok()
        }

        fn remove(&self, _: u32) {
            self.0.store(0, Release);
        }

        fn add(&self, version: u32) {
            let _ = self.0.compare_exchange(0, version.into(), AcqRel, Acquire);
        }
    }

    struct Plane<S> {
        session: S,
        /// Version of the last change that took back the rule of the cell.
        taken_back: AtomicU64,
        /// Stands for the snapshot: its version.
        snapshot: AtomicU64,
        epoch: AtomicU64,
        /// True when the API has answered.
        answered: AtomicBool,
        workers: [Handle; 2],
    }

    #[derive(Default)]
    struct Handle {
        running: AtomicBool,
        seen: AtomicU64,
    }

    impl<S: Session> Plane<S> {
        fn new(session: S) -> Arc<Plane<S>> {
            Arc::new(Plane {
                session,
                taken_back: AtomicU64::new(0),
                snapshot: AtomicU64::new(1),
                epoch: AtomicU64::new(0),
                answered: AtomicBool::new(false),
                workers: Default::default(),
            })
        }

        fn change_group(&self) {
            self.taken_back.store(2, Relaxed);
            self.snapshot.swap(2, AcqRel);
            let epoch = self.epoch.fetch_add(1, AcqRel) + 1;
            fence(SeqCst);
            for worker in &self.workers {
                while worker.running.load(Acquire) && worker.seen.load(Acquire) < epoch {
                    yield_now();
                }
            }
            self.answered.store(true, Release);
        }

        fn work(&self, worker: usize, batches: u32) {
            let handle = &self.workers[worker];
            // Before anything else, as `Worker::new`.
            let mut snapshot = self.snapshot.load(Acquire);
            handle.running.store(true, Release);
            fence(SeqCst);
            for _ in 0..batches {
                let epoch = self.epoch.load(Acquire);
                if epoch != handle.seen.load(Relaxed) {
                    snapshot = self.snapshot.load(Acquire);
                    handle.seen.store(epoch, Release);
                }
                // A frame that was sent after the answer must not pass.
                let late = self.answered.load(Acquire);
                let passed = self.passes(snapshot as u32);
                assert!(!(late && passed), "a frame passed by a rule that was removed before");
            }
            handle.running.store(false, Release);
        }

        fn passes(&self, version: u32) -> bool {
            let admits = version < 2;
            if let Some((index, stamp)) = self.session.find() {
                if stamp >= self.taken_back.load(Relaxed) as u32 {
                    return true;
                }
                if admits && self.session.readmit(index, version) {
                    return true;
                }
                self.session.remove(index);
            }
            if admits {
                self.session.add(version);
            }
            admits
        }
    }

    #[test]
    fn no_frame_passes_by_a_rule_that_was_removed_before() {
        explore(2, || {
            let n = flow(0, 0);
            let table = table(1);
            table.add(n, 1, false).unwrap();
            let plane = Plane::new(Tabled(table, n));
            let worker = {
                let plane = plane.clone();
                thread::spawn(move || plane.work(0, 3))
            };
            plane.change_group();
            worker.join().unwrap();
            plane.session.0.audit();
        });
    }

    #[test]
    fn nor_when_another_worker_brings_the_session_back() {
        explore(2, || {
            let plane = Plane::new(Stamp::default());
            let workers = [0, 1].map(|at| {
                let plane = plane.clone();
                thread::spawn(move || plane.work(at, 2))
            });
            plane.change_group();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}

// The second line: what two workers note at once.

const ESTABLISHED: Track = Track {
    state: TcpState::Established,
    fins: 0,
    scale: [0; 2],
    end: [1000, 5000],
    allow: [66_000, 62_000],
    acked: [5000, 1000],
};

fn segment(sequence: u32, acknowledgement: u32, flags: u8) -> Segment {
    let length = u32::from(flags & (SYN | FIN) != 0);
    Segment { sequence, acknowledgement, window: 1000, length, flags, scale: None }
}

fn data(sequence: u32, acknowledgement: u32, length: u32) -> Segment {
    Segment { length, ..segment(sequence, acknowledgement, ACK) }
}

/// Returns a record with a TCP connection, or of another protocol if there are no marks.
fn record_with(state: State, track: Track) -> Arc<Units> {
    let units = Units::anonymous(1).unwrap();
    let life = Life { now: 1, state, track, past: Past::NONE };
    Record::of(&units[0]).write(&key(1), verdict(1, 1), &life);
    Arc::new(units)
}

fn connection(track: Track) -> Arc<Units> {
    record_with(State::Tcp(track.state), track)
}

fn next(track: Track, direction: usize, segment: &Segment) -> Track {
    let (next, outcome) = tcp::step(track, direction, segment);
    assert_eq!(outcome, Outcome::Pass, "{track:?} {segment:?}");
    next
}

/// Notes what segments of one direction change, as a batch does. Returns whether the session was
/// there.
fn note(units: &Units, tenant: u16, direction: usize, segments: &[Segment]) -> bool {
    let record = Record::of(&units[0]);
    let mut track = NO_TRACK;
    if record.copy(tenant, &mut track).is_none() {
        return false;
    }
    let track = segments.iter().fold(track, |track, segment| next(track, direction, segment));
    record.settle(tenant, || noted(direction, &track));
    true
}

fn noted(direction: usize, track: &Track) -> BatchChanges<'_> {
    let seen = Some((2, track.state as u8));
    BatchChanges { direction, packets: 1, bytes: 10, track: Some(track), seen }
}

/// Runs two threads on one record, and returns its second line.
fn at_once(
    units: &Arc<Units>,
    other: impl FnOnce(&Units) + Send + 'static,
    mine: impl FnOnce(&Units),
) -> crate::session::Line2 {
    let thread = {
        let units = units.clone();
        thread::spawn(move || other(&units))
    };
    mine(units);
    thread.join().unwrap();
    assert!(!Record::of(&units[0]).is_held());
    Record::of(&units[0]).line2()
}

#[test]
fn notes_of_both_directions_lose_nothing() {
    explore(3, || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| assert!(note(units, 0, 1, &[data(5000, 1000, 70)])),
            |units| assert!(note(units, 0, 0, &[data(1000, 5000, 50)])),
        );
        let one = next(ESTABLISHED, 0, &data(1000, 5000, 50));
        let both = Track { end: [1050, 5070], ..one };
        assert_eq!((line.track.end, line.track.state), (both.end, TcpState::Established));
        assert_eq!((line.packets, line.bytes, line.seen), ([1, 1], [10, 10], 2));
    });
}

#[test]
fn notes_of_one_direction_lose_nothing() {
    explore(3, || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| assert!(note(units, 0, 0, &[data(1050, 5000, 50)])),
            |units| assert!(note(units, 0, 0, &[data(1000, 5000, 50)])),
        );
        assert_eq!((line.track.end, line.track.acked), ([1100, 5000], ESTABLISHED.acked));
        assert_eq!((line.packets, line.bytes), ([2, 0], [20, 0]));
    });
}

/// A FIN of one direction is noted while a worker that copied the marks before notes data of the
/// same direction.
#[test]
fn a_fin_and_older_data_of_one_direction_keep_the_fin() {
    explore(3, || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| assert!(note(units, 0, 0, &[segment(1050, 5000, FIN | ACK)])),
            |units| assert!(note(units, 0, 0, &[data(1000, 5000, 50)])),
        );
        assert_eq!((line.track.end[0], line.track.fins), (1051, 1));
        assert_eq!(line.state, State::Tcp(TcpState::HalfClosed));
    });
}

#[test]
fn fins_of_both_ends_at_once_close() {
    explore(3, || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| assert!(note(units, 0, 1, &[segment(5000, 1000, FIN | ACK)])),
            |units| assert!(note(units, 0, 0, &[segment(1000, 5000, FIN | ACK)])),
        );
        assert_eq!((line.track.fins, line.state), (3, State::Tcp(TcpState::Closing)));
    });
    // Each batch also has the acknowledgement of the other end's FIN.
    explore(3, || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| {
                let fin = segment(5000, 1000, FIN | ACK);
                assert!(note(units, 0, 1, &[fin, segment(5001, 1001, ACK)]))
            },
            |units| {
                let fin = segment(1000, 5000, FIN | ACK);
                assert!(note(units, 0, 0, &[fin, segment(1001, 5001, ACK)]))
            },
        );
        assert_eq!((line.track.fins, line.state), (3, State::Tcp(TcpState::TimeWait)));
    });
}

/// A SYN+ACK and a repeated SYN; then the last segment of the handshake, and data of the other end.
#[test]
fn a_handshake_by_two_workers_is_whole() {
    let syn = || segment(999, 0, SYN);
    explore(3, move || {
        let units = connection(tcp::open(&syn()));
        let line = at_once(
            &units,
            |units| {
                let (_, outcome) =
                    Record::of(&units[0]).step(0, 1, &segment(4999, 1000, SYN | ACK), 2).unwrap();
                assert_eq!(outcome, Outcome::Pass);
            },
            |units| {
                let (_, outcome) = Record::of(&units[0]).step(0, 0, &syn(), 2).unwrap();
                assert_eq!(outcome, Outcome::Pass);
            },
        );
        let expected = next(tcp::open(&syn()), 1, &segment(4999, 1000, SYN | ACK));
        assert_eq!((line.track, line.seen), (expected, 2));
    });
    explore(3, move || {
        let open = next(tcp::open(&syn()), 1, &segment(4999, 1000, SYN | ACK));
        let units = connection(open);
        let line = at_once(
            &units,
            |units| {
                let answer = data(5000, 1000, 30);
                let (track, _) = Record::of(&units[0]).step(0, 1, &answer, 2).unwrap();
                assert!(track.end[1] == 5030);
            },
            |units| {
                let last = segment(1000, 5000, ACK);
                let (track, _) = Record::of(&units[0]).step(0, 0, &last, 2).unwrap();
                assert_eq!(track.state, TcpState::Established);
                // From now on a note is merged.
                let track = next(track, 0, &data(1000, 5000, 50));
                Record::of(&units[0]).settle(0, || noted(0, &track));
            },
        );
        assert_eq!((line.track.end, line.track.acked), ([1050, 5030], [5000, 1000]));
        assert_eq!(line.state, State::Tcp(TcpState::Established));
    });
}

/// The record is another session's by the time that a worker writes its note.
#[test]
fn a_late_note_leaves_the_next_session_alone() {
    fn opened() -> Track {
        tcp::open(&segment(70, 0, SYN))
    }
    let second = || Life {
        now: 3,
        state: State::Tcp(TcpState::New),
        track: opened(),
        past: Past::first(0, 60),
    };
    explore(3, move || {
        let units = connection(ESTABLISHED);
        // Copied, and judged, in time.
        let late = next(ESTABLISHED, 0, &data(1000, 5000, 50));
        let line = at_once(
            &units,
            move |units| Record::of(&units[0]).settle(0, || noted(0, &late)),
            move |units| {
                let record = Record::of(&units[0]);
                record.erase();
                record.set_next_free(0);
                record.write(&key(2), verdict(2, 2), &second());
            },
        );
        assert_eq!((line.track, line.seen, line.made), (opened(), 3, 3));
        assert_eq!((line.packets, line.bytes), ([1, 0], [60, 0]));
    });
    // Nor does a copy that began with the former session mix both.
    explore(3, move || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| {
                let mut track = NO_TRACK;
                if let Some(seen) = Record::of(&units[0]).copy(0, &mut track) {
                    assert_eq!((track, seen), (ESTABLISHED, (1, TcpState::Established as u8)));
                }
                let record = Record::of(&units[0]);
                // The next session would take it.
                let answer = record.step(0, 1, &segment(1 << 31, 71, SYN | ACK), 4);
                assert!(answer.is_none_or(|(_, outcome)| outcome != Outcome::Pass));
            },
            move |units| {
                let record = Record::of(&units[0]);
                record.erase();
                record.write(&key(2), verdict(2, 2), &second());
            },
        );
        assert_eq!((line.track, line.seen), (opened(), 3));
    });
}

#[test]
fn a_connection_that_is_cut_stays_cut() {
    explore(3, || {
        let units = connection(ESTABLISHED);
        let line = at_once(
            &units,
            |units| Record::of(&units[0]).cut(2),
            |units| {
                let record = Record::of(&units[0]);
                let mut track = NO_TRACK;
                record.copy(0, &mut track).unwrap();
                let (track, outcome) = tcp::step(track, 0, &data(1000, 5000, 50));
                if outcome == Outcome::Pass {
                    record.settle(0, || noted(0, &track));
                }
            },
        );
        assert_eq!((line.state, line.seen), (State::Tcp(TcpState::Cut), 2));
    });
}

#[test]
fn an_answer_and_another_frame_at_once_are_both_noted() {
    explore(3, || {
        let units = record_with(State::UdpNew, NO_TRACK);
        let noted = |units: &Units, direction, now, state: State| {
            let seen = Some((now, state.number()));
            let changes = BatchChanges { direction, packets: 1, bytes: 10, track: None, seen };
            Record::of(&units[0]).settle(0, || changes);
        };
        let line = at_once(
            &units,
            move |units| noted(units, 1, 2, State::UdpAnswered),
            // Began before the answer, and was seen later.
            move |units| noted(units, 0, 3, State::UdpNew),
        );
        assert_eq!((line.state, line.seen), (State::UdpAnswered, 3));
        assert_eq!((line.packets, line.bytes), ([1, 1], [10, 10]));
    });
}
