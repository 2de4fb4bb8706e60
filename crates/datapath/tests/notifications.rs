//! A guest pays a system call for each kick: it kicks once for a ring that rests, and never while
//! the ring is polled.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig, queue::QueueStats};
use butterfly_packet::build;
use butterfly_vhost::net::{Features, NetHeader};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);

fn host(features: Features) -> Host {
    let mut host = Host::new().unwrap();
    for (id, mac) in [("a", A), ("b", B)] {
        host.declare(id, mac, 7, &VnicPolicy { bypass: true, ..VnicPolicy::default() }).unwrap();
        let config = GuestConfig::default();
        host.attach(id, features, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host
}

/// Far more looks than a ring stays for, and far more time.
fn rest(host: &mut Host) {
    for _ in 0..10 {
        sleep(Duration::from_millis(1));
        for _ in 0..200 {
            host.turn();
        }
    }
}

fn sender(host: &mut Host) -> QueueStats {
    host.guest("a").unwrap().tx().stats()
}

/// Returns the longest time between two frames.
fn send(host: &mut Host, frames: u64) -> Duration {
    let frame = build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ping(1, 1, b"butterfly");
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    for _ in 0..frames {
        host.send("a", &frame, NetHeader::default()).unwrap();
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    assert_eq!(host.received().unwrap()["b"].len() as u64, frames);
    longest
}

fn kicks_are_suppressed(features: Features) {
    let mut host = host(features);
    rest(&mut host);
    let (mut round, mut tries) = (0, 0);
    while round < 20 {
        tries += 1;
        assert!(tries < 2000, "this machine never goes on for 100 frames");
        let before = sender(&mut host);
        let longest = send(&mut host, 100);
        let after = sender(&mut host);
        if longest > Duration::from_micros(40) {
            // The test had no processor meanwhile, and the ring may rest by rights.
            rest(&mut host);
            continue;
        }
        round += 1;
        assert_eq!(after.kicks - before.kicks, 1, "round {round}: the first one wakes the worker");
        assert_eq!(
            after.suppressed - before.suppressed,
            99,
            "round {round}: the others find it awake"
        );
        rest(&mut host);
    }
}

#[test]
fn with_event_indices() {
    assert!(LINUX.has(Features::EVENT_IDX));
    kicks_are_suppressed(LINUX);
}

#[test]
fn with_flags() {
    kicks_are_suppressed(LINUX.without(Features::EVENT_IDX));
}

/// A ring that starts is polled before it rests for the first time: no kick is needed.
#[test]
fn a_ring_that_starts_is_polled() {
    for features in [LINUX, LINUX.without(Features::EVENT_IDX)] {
        let (mut round, mut tries) = (0, 0);
        while round < 20 {
            tries += 1;
            assert!(tries < 2000, "this machine never goes on for 5 frames");
            let mut host = host(features);
            let longest = send(&mut host, 5);
            // Otherwise the test had no processor meanwhile, and the ring may rest by rights.
            if longest <= Duration::from_micros(40) {
                round += 1;
                assert!(sender(&mut host).kicks <= 1, "round {round}");
            }
        }
    }
}
