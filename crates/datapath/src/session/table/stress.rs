//! All uses of a table by workers and the control side, at once, as fast as the machine can.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::session::table::{audit::*, *};

/// Few enough that all threads meet.
const FLOWS: u32 = 120;
const THREADS: u64 = 4;
const TIME: Duration = Duration::from_secs(2);

/// Ends the test for all threads when one leaves, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Checks that no flow is found with another's verdict.
fn seen(n: u32, found: Option<Found>) -> Option<u32> {
    let found = found?;
    assert_eq!((found.direction, found.admission), (0, verdict(n, found.admission.stamp)));
    Some(found.index)
}

#[test]
fn no_mixture_of_inserts_removals_and_lookups_confuses_flows() {
    let table = Table::new(64, HASH_KEY).unwrap();
    let stop = AtomicBool::new(false);
    // Made, exists, full, removed, admitted again, found.
    let counts: [AtomicU64; 6] = Default::default();
    let work = |seed: u64| {
        let _ends = Stop(&stop);
        let mut state = seed;
        let count = |which: usize| counts[which].fetch_add(1, Relaxed);
        // A record that was found some time ago: other threads have changed it since.
        let mut old = (0, 0);
        while !stop.load(Relaxed) {
            let drawn = random(&mut state);
            let (n, stamp) = ((drawn >> 32) as u32 % FLOWS, (drawn >> 16) as u32 & 0xff);
            let (index, other) = old;
            match drawn % 8 {
                0 | 1 => match table.add(n, stamp, drawn & 0x100 != 0) {
                    Ok(index) => {
                        count(0);
                        old = (index, n);
                    }
                    Err(NotInserted::Exists) => _ = count(1),
                    Err(NotInserted::Full) => _ = count(2),
                    Err(NotInserted::Copies) => panic!("there is one of each flow"),
                },
                2 if table.remove(index, &key(other)) => _ = count(3),
                3 if table.readmit(index, &key(other), verdict(other, stamp)) => _ = count(4),
                4 | 5 => {
                    seen(n, table.get_fast(n));
                }
                6 if drawn & 0xf00 == 0 => {
                    table.for_part(drawn >> 32 & 15, 16, |_, _, key, admission| {
                        genuine(&key, admission)
                    })
                }
                _ => {
                    if let Some(index) = seen(n, table.get(n)) {
                        count(5);
                        old = (index, n);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(0x1234_5678_9abc_def1 ^ thread << 40));
        }
        let _ends = Stop(&stop);
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            assert!(table.used() <= 64);
        }
    });
    assert!(table.audit().len() <= 64);
    for (what, count) in
        ["made", "exists", "full", "removed", "admitted anew", "found"].iter().zip(&counts)
    {
        assert!(count.load(Relaxed) > 1000, "{what}: {}", count.load(Relaxed));
    }
}
