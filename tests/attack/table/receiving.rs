//! Attacks on the receive ring: buffers that no frame can be written into.

use std::sync::atomic::Ordering::{Relaxed, Release};

use butterfly_guest_driver::{
    RX,
    ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE},
};

use super::{
    Attack,
    Outcome::{Drop, Harmless, Rests},
    d,
};
use crate::villain::{END, RING};

/// Attacks on the receive ring; the sound guest then sends to the villain.
pub const ATTACKS: &[Attack] = &[
    (
        "readable where writable is due",
        |s| s.receive(d(s.buffer, 4096, 0, 0), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a buffer behind memory",
        |s| s.receive(d(END, 4096, DESC_WRITE, 0), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a buffer that ends behind memory",
        |s| s.receive(d(END - 4095, 4096, DESC_WRITE, 0), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a buffer around the end of addresses",
        |s| s.receive(d(u64::MAX - 100, 4096, DESC_WRITE, 0), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a buffer of 4 GiB",
        |s| s.receive(d(s.buffer, u32::MAX, DESC_WRITE, 0), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a loop of buffers",
        |s| s.receive(d(s.buffer, 1, DESC_WRITE | DESC_NEXT, 0), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a loop of empty buffers",
        |s| s.receive(d(s.buffer, 0, DESC_WRITE | DESC_NEXT, 3), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a next buffer behind the table",
        |s| s.receive(d(s.buffer, 10, DESC_WRITE | DESC_NEXT, RING), 100),
        Drop("rx-bad-chain"),
    ),
    (
        "a buffer of no bytes",
        |s| s.receive(d(s.buffer, 0, DESC_WRITE, 0), 100),
        Drop("rx-too-large"),
    ),
    (
        "a buffer shorter than the header",
        |s| s.receive(d(s.buffer, 11, DESC_WRITE, 0), 100),
        Drop("rx-too-large"),
    ),
    (
        "a ring of tiny buffers",
        |s| s.receive(d(s.buffer, 16, DESC_WRITE, 0), 1500),
        Drop("rx-too-large"),
    ),
    (
        "heads behind the table",
        |s| {
            let ring = s.ring(RX);
            (0..RING).for_each(|at| ring.avail_entry(at).store(RING, Relaxed));
            s.feed(100)
        },
        Drop("rx-bad-chain"),
    ),
    (
        "an indirect table as a loop",
        |s| {
            let b = s.buffer;
            s.write(0, &d(b, 4, DESC_WRITE | DESC_NEXT, 0).to_bytes());
            s.receive(d(b, 16, DESC_INDIRECT, 0), 100)
        },
        Drop("rx-bad-chain"),
    ),
    (
        "not reading",
        |s| {
            for _ in 0..RING + 40 {
                s.feed(1000)
            }
        },
        Drop("ring-full"),
    ),
    (
        "an index too far",
        |s| {
            s.ring(RX).avail_idx().store(RING * 2, Release);
            s.feed(100)
        },
        Rests("rx"),
    ),
    (
        "a disabled ring",
        |s| {
            s.vm.connection.enable(RX, false).expect("it is disabled");
            s.feed(100)
        },
        Drop("not-attached"),
    ),
    ("all buffers the same", |s| s.receive(d(s.buffer, 2048, DESC_WRITE, 0), 1500), Harmless),
    (
        "the used ring as a buffer",
        |s| {
            let used = s.ring(RX).addr().used;
            s.receive(d(used, 256, DESC_WRITE, 0), 100)
        },
        Harmless,
    ),
];
