//! Attacks on the transmit ring: broken chains and virtio-net headers that lie.

use std::sync::atomic::Ordering::Release;

use butterfly_guest_driver::{
    Desc, TX,
    ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE},
};
use butterfly_vhost::{net::NetHeader, ring::MAX_FRAME};

use super::{
    Attack,
    Outcome::{Drop, Harmless, Rests},
    d,
};
use crate::villain::{END, REGION, RING};

fn csum(gso_type: u8, gso_size: u16) -> NetHeader {
    NetHeader {
        flags: 1,
        gso_type,
        gso_size,
        csum_start: 34,
        csum_offset: 16,
        hdr_len: 54,
        num_buffers: 0,
    }
}

/// Attacks on the transmit ring.
pub const ATTACKS: &[Attack] = &[
    (
        "a chain that is its own next",
        |s| s.send(&[d(s.buffer, s.place_frame(60), DESC_NEXT, 0)]),
        Drop("bad-chain"),
    ),
    (
        "a loop of two",
        |s| s.send(&[d(s.buffer, s.place_frame(60), DESC_NEXT, 1), d(s.buffer, 1, DESC_NEXT, 0)]),
        Drop("bad-chain"),
    ),
    (
        "a loop of empty descriptors",
        |s| s.send(&[d(s.buffer, 0, DESC_NEXT, 1), d(s.buffer, 0, DESC_NEXT, 0)]),
        Drop("bad-chain"),
    ),
    (
        "a next behind the table",
        |s| s.send(&[d(s.buffer, s.place_frame(60), DESC_NEXT, RING)]),
        Drop("bad-chain"),
    ),
    (
        "a next far behind the table",
        |s| s.send(&[d(s.buffer, 100, DESC_NEXT, u16::MAX)]),
        Drop("bad-chain"),
    ),
    ("a head behind the table", |s| s.offer(TX, RING), Drop("bad-chain")),
    ("a head far behind the table", |s| s.offer(TX, u16::MAX), Drop("bad-chain")),
    ("memory at address 0", |s| s.send(&[d(0, 100, 0, 0)]), Drop("bad-chain")),
    ("memory behind the last region", |s| s.send(&[d(END, 100, 0, 0)]), Drop("bad-chain")),
    ("one byte behind the last region", |s| s.send(&[d(END - 99, 100, 0, 0)]), Drop("bad-chain")),
    (
        "one byte in front of the first region",
        |s| s.send(&[d(END - 2 * REGION - 1, 100, 0, 0)]),
        Drop("bad-chain"),
    ),
    (
        "memory around the end of addresses",
        |s| s.send(&[d(u64::MAX - 50, 100, 0, 0)]),
        Drop("bad-chain"),
    ),
    ("a length of 4 GiB", |s| s.send(&[d(s.buffer, u32::MAX, 0, 0)]), Drop("oversized")),
    (
        "a second piece outside of memory",
        |s| s.send(&[d(s.buffer, s.place_frame(60), DESC_NEXT, 1), d(1, 8, 0, 0)]),
        Drop("bad-chain"),
    ),
    (
        "writable where readable is due",
        |s| s.send(&[d(s.buffer, s.place_frame(60), DESC_WRITE, 0)]),
        Drop("bad-chain"),
    ),
    (
        "writable behind readable",
        |s| s.send(&[d(s.buffer, s.place_frame(60), DESC_NEXT, 1), d(s.buffer, 8, DESC_WRITE, 0)]),
        Drop("bad-chain"),
    ),
    ("nothing", |s| s.send(&[d(s.buffer, 0, 0, 0)]), Drop("short")),
    ("half a header", |s| s.send(&[d(s.buffer, 11, 0, 0)]), Drop("short")),
    ("a header alone", |s| s.send(&[d(s.buffer, 12, 0, 0)]), Drop("short")),
    ("half an Ethernet header", |s| s.send(&[d(s.buffer, 25, 0, 0)]), Drop("short")),
    (
        "one byte too long",
        |s| {
            s.place_frame(60);
            s.send(&[d(s.buffer, 12 + MAX_FRAME + 1, 0, 0)])
        },
        Drop("oversized"),
    ),
    (
        "too long in pieces",
        |s| {
            s.place_frame(60);
            s.send(&[d(s.buffer, 40000, DESC_NEXT, 1), d(s.buffer, 40000, 0, 0)])
        },
        Drop("oversized"),
    ),
    (
        "a table of 17 bytes",
        |s| s.send_table(&[d(s.buffer, s.place_frame(60), 0, 0)], 1, 0),
        Drop("bad-chain"),
    ),
    (
        "a table of no bytes",
        |s| s.send_table(&[d(s.buffer, s.place_frame(60), 0, 0)], -16, 0),
        Drop("bad-chain"),
    ),
    (
        "a table with NEXT",
        |s| s.send_table(&[d(s.buffer, s.place_frame(60), 0, 0)], 0, DESC_NEXT),
        Drop("bad-chain"),
    ),
    (
        "a table in a table",
        |s| s.send_table(&[d(s.buffer + (64 << 10), 16, DESC_INDIRECT, 0)], 0, 0),
        Drop("bad-chain"),
    ),
    (
        "a next behind an indirect table",
        |s| s.send_table(&[d(s.buffer, s.place_frame(60), DESC_NEXT, 1)], 0, 0),
        Drop("bad-chain"),
    ),
    (
        "a loop in a table",
        |s| s.send_table(&[d(s.buffer, 100, DESC_NEXT, 1), d(s.buffer, 1, DESC_NEXT, 0)], 0, 0),
        Drop("bad-chain"),
    ),
    ("a table outside of memory", |s| s.send(&[d(END, 64, DESC_INDIRECT, 0)]), Drop("bad-chain")),
    (
        "a table that ends outside of memory",
        |s| s.send(&[d(END - 8, 64, DESC_INDIRECT, 0)]),
        Drop("bad-chain"),
    ),
    ("a table of 4 GiB", |s| s.send(&[d(s.buffer, !15, DESC_INDIRECT, 0)]), Drop("short")),
    (
        "1,100 descriptors",
        |s| {
            let (len, b) = (s.place_frame(60), s.buffer);
            let all: Vec<Desc> = (1..=1100)
                .map(|next| {
                    let len = if next == 1 { len } else { 1 };
                    let flags = if next == 1100 { 0 } else { DESC_NEXT };
                    d(b, len, flags, next)
                })
                .collect();
            s.send_table(&all, 0, 0);
        },
        Drop("bad-chain"),
    ),
    (
        "an index one too far",
        |s| {
            s.ring(TX).avail_idx().store(RING + 1, Release);
            s.kick(TX)
        },
        Rests("tx"),
    ),
    (
        "an index that goes back",
        |s| {
            s.ring(TX).avail_idx().store(u16::MAX, Release);
            s.kick(TX)
        },
        Rests("tx"),
    ),
    (
        "an index half way round",
        |s| {
            s.ring(TX).avail_idx().store(0x8000, Release);
            s.kick(TX)
        },
        Rests("tx"),
    ),
    // Fields of the virtio-net header.
    (
        "a checksum behind the frame",
        |s| s.send_tcp(NetHeader { csum_start: 9000, ..csum(0, 0) }, 100),
        Drop("bad-offload"),
    ),
    (
        "a checksum that is not where it starts",
        |s| s.send_tcp(NetHeader { csum_start: 33, ..csum(0, 0) }, 100),
        Drop("bad-offload"),
    ),
    (
        "a checksum in the address",
        |s| s.send_tcp(NetHeader { csum_start: 0, csum_offset: 0, ..csum(0, 0) }, 100),
        Drop("bad-offload"),
    ),
    (
        "a checksum around the end",
        |s| {
            s.send_tcp(NetHeader { csum_start: u16::MAX, csum_offset: u16::MAX, ..csum(0, 0) }, 100)
        },
        Drop("bad-offload"),
    ),
    (
        "UDP's checksum in TCP",
        |s| s.send_tcp(NetHeader { csum_offset: 6, ..csum(0, 0) }, 100),
        Drop("bad-offload"),
    ),
    (
        "segments without a checksum",
        |s| s.send_tcp(NetHeader { flags: 0, ..csum(1, 500) }, 1400),
        Drop("bad-offload"),
    ),
    ("segments of no bytes", |s| s.send_tcp(csum(1, 0), 1400), Drop("bad-offload")),
    ("segments of one byte", |s| s.send_tcp(csum(1, 1), 1400), Drop("bad-offload")),
    (
        "segments longer than the frame",
        |s| s.send_tcp(csum(1, u16::MAX), 1400),
        Drop("bad-offload"),
    ),
    ("IPv6 segments of IPv4", |s| s.send_tcp(csum(4, 500), 1400), Drop("bad-offload")),
    ("UDP fragments, never offered", |s| s.send_tcp(csum(3, 500), 1400), Drop("bad-offload")),
    ("segments of an unknown kind", |s| s.send_tcp(csum(0x7f, 500), 1400), Drop("bad-offload")),
    ("ECN without segments", |s| s.send_tcp(csum(0x80, 500), 1400), Drop("bad-offload")),
    (
        "a checksum in what is not IP",
        |s| {
            let mut f = s.frame(100);
            f[12] = 0x88;
            s.vm.guest.send(&f, csum(0, 0)).expect("room")
        },
        Drop("bad-offload"),
    ),
    (
        "a header length that lies",
        |s| s.send_tcp(NetHeader { hdr_len: u16::MAX, ..csum(1, 500) }, 1400),
        Harmless,
    ),
    (
        "a number of buffers when sending",
        |s| s.send_tcp(NetHeader { num_buffers: 999, ..csum(0, 0) }, 100),
        Harmless,
    ),
    // Unusual, but allowed.
    (
        "one buffer many times",
        |s| {
            s.send(&[
                d(s.buffer, s.place_frame(60), DESC_NEXT, 1),
                d(s.buffer, 40, DESC_NEXT, 2),
                d(s.buffer, 40, 0, 0),
            ])
        },
        Harmless,
    ),
    (
        "a frame across regions",
        |s| {
            let frame = [&[0; 12][..], &s.frame(200)].concat();
            s.vm.guest.memory().write(END - REGION - 100, &frame).expect("in memory");
            s.send(&[d(END - REGION - 100, frame.len() as u32, 0, 0)]);
        },
        Harmless,
    ),
    (
        "the ring itself as a frame",
        |s| {
            let ring = s.ring(TX).addr();
            s.send(&[d(ring.desc, 1024, 0, 0)])
        },
        Drop("bad-offload"),
    ),
    (
        "kicks without pause",
        |s| {
            for _ in 0..20_000 {
                s.kick(TX)
            }
        },
        Harmless,
    ),
];
