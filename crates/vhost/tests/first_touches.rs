//! A VM whose memory was never touched, or was taken back.
//!
//! Each page that a worker touches first costs it a page fault. There is a budget for that, and a
//! vnic beyond it rests. One program with one test, as counting is switched on for the whole
//! process.

mod control_support;

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use butterfly_guest_driver::{GuestConfig, Region, Vm, VmConfig};
use butterfly_vhost::{
    net::NetHeader,
    ring::{BATCH, FrameStore, Gathered, NotDelivered, TxRing, meter},
};
use control_support::Bed;
use rustix::fs::MemfdFlags;

const LEN: usize = 60_000;
/// The budget: so many pages at once, and per second.
const BURST: u32 = 4096;
const RATE: u32 = 2048;
/// Pages inside of a frame.
const PAGES: u64 = LEN as u64 / 4096 - 1;

fn machine(bed: &Bed) -> Vm {
    let guest =
        GuestConfig { rx_buffer: 65_536, max_frame: 65_536, ..GuestConfig::default().rings(64) };
    bed.vm(&VmConfig { guest, ..VmConfig::default() })
}

/// Takes back the pages that lie inside of a ring's buffers, as a balloon does.
fn punch(vm: &Vm, queue: usize) {
    let region = &vm.guest.memory().regions()[0];
    let ring = vm.guest.queue(queue).ring();
    for index in 0..ring.size() {
        let desc = ring.desc(index);
        if desc.len == 0 {
            continue;
        }
        let start = desc.addr.next_multiple_of(4096);
        let end = (desc.addr + u64::from(desc.len)) / 4096 * 4096;
        let at = region.file_offset + start - region.guest_addr;
        let how = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&region.file, how, at, end - start).unwrap();
    }
}

/// Fate of a batch of one frame.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Delivered,
    Refused(NotDelivered),
    /// The frame stays in the sender's ring.
    Waits,
}

/// Sends as a worker does.
fn send(from: (&Bed, &mut Vm), to: &Bed, store: &mut FrameStore) -> Sent {
    let (bed, vm) = from;
    let mut tx = bed.port.tx();
    let tx = tx.as_mut().unwrap();
    if tx.available() == Some(0) {
        vm.guest.send(&[7; LEN], NetHeader::default()).unwrap();
    }
    forward(tx, vm, to, store)
}

fn forward(tx: &mut TxRing, vm: &Vm, to: &Bed, store: &mut FrameStore) -> Sent {
    if vm.guest.tx().outstanding() == 0 || tx.available() == Some(0) {
        return Sent::Waits;
    }
    let Gathered::Frames(mut frames) = tx.gather(store, BATCH as u16, |_| {}) else {
        panic!("no frame")
    };
    let mut rx = to.port.rx();
    let rx = rx.as_mut().unwrap();
    rx.prepare(1);
    let (done, _) = rx.deliver_run(&frames, 0..1);
    let result = if done == 1 { Ok(()) } else { rx.deliver_one(&frames, 0) };
    frames.release();
    rx.publish();
    result.map_or_else(Sent::Refused, |()| Sent::Delivered)
}

#[test]
fn who_has_untouched_pages_touched_has_a_budget_of_its_own() {
    meter(BURST, RATE);
    let (sender, receiver, neighbour) = (Bed::server(), Bed::server(), Bed::server());
    let (mut sender_vm, mut receiver_vm, mut neighbour_vm) =
        (machine(&sender), machine(&receiver), machine(&neighbour));
    let mut store = FrameStore::default();
    let recv = |vm: &mut Vm| vm.guest.recv().unwrap().map(|(_, frame)| frame.len());
    let report = |bed: &Bed| bed.status().touches;

    let begun = Instant::now();
    let earned = || begun.elapsed().as_secs() * u64::from(RATE) + u64::from(RATE);
    let mut frames = 0;
    loop {
        if frames % 60 == 0 {
            punch(&receiver_vm, 0);
        }
        match send((&sender, &mut sender_vm), &receiver, &mut store) {
            Sent::Delivered => assert_eq!(recv(&mut receiver_vm), Some(LEN)),
            Sent::Refused(NotDelivered::Resting) => break,
            other => panic!("{other:?}"),
        }
        frames += 1;
        assert!(
            frames * PAGES / 4 < u64::from(BURST) + earned(),
            "it never rests: {:?}",
            report(&receiver)
        );
    }
    let touched = report(&receiver);
    assert!(
        touched.rests > 0
            && touched.pages > u64::from(BURST)
            && touched.pages < u64::from(BURST) + earned() + 64 * 16,
        "{touched:?}"
    );
    // Only the receiver caused it: the sender sends on, and a neighbour receives.
    assert_eq!(report(&sender).rests, 0);
    while send((&sender, &mut sender_vm), &neighbour, &mut store) != Sent::Delivered {}
    assert_eq!(recv(&mut neighbour_vm), Some(LEN));
    assert_eq!(report(&neighbour).rests, 0);
    // It gets as much as it earns, and frames again.
    let (begun, before) = (Instant::now(), report(&receiver).pages);
    let mut got = 0;
    while begun.elapsed() < Duration::from_secs(1) {
        if got % 16 == 0 {
            punch(&receiver_vm, 0);
        }
        if send((&sender, &mut sender_vm), &receiver, &mut store) == Sent::Delivered {
            assert_eq!(recv(&mut receiver_vm), Some(LEN));
            got += 1;
        }
    }
    let more = report(&receiver).pages - before;
    let rate = f64::from(RATE) * begun.elapsed().as_secs_f64();
    assert!(
        got > 0 && (more as f64) < 1.5 * rate + 64.0 * 16.0,
        "{more} pages and {got} frames, {rate} were earned"
    );

    // A sender pays for its own, and what it sends waits: nothing is lost.
    let mut sent = 0u64;
    loop {
        {
            let mut tx = sender.port.tx();
            let tx = tx.as_mut().unwrap();
            sender_vm.guest.send(&[7; LEN], NetHeader::default()).unwrap();
            punch(&sender_vm, 1);
            match forward(tx, &sender_vm, &neighbour, &mut store) {
                Sent::Delivered => assert_eq!(recv(&mut neighbour_vm), Some(LEN)),
                Sent::Waits => break,
                other => panic!("{other:?}"),
            }
        }
        sent += 1;
        assert!(
            sent * PAGES / 4 < u64::from(BURST) + 60 * u64::from(RATE),
            "it never rests: {:?}",
            report(&sender)
        );
    }
    assert!(report(&sender).rests > 0);
    assert_eq!(report(&neighbour).rests, 0);
    let end = Instant::now() + control_support::WAIT;
    loop {
        let mut tx = sender.port.tx();
        if forward(tx.as_mut().unwrap(), &sender_vm, &neighbour, &mut store) == Sent::Delivered {
            break;
        }
        assert!(Instant::now() < end, "what waits is sent when the rest is over");
    }
    assert_eq!(recv(&mut neighbour_vm), Some(LEN));

    // Of a machine that has large pages each fault counts as one of those, wherever it is.
    let file =
        rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).unwrap();
    rustix::fs::ftruncate(&file, 2 << 20).unwrap();
    let (guest_addr, file) = (1 << 40, Arc::new(File::from(file)));
    let large = Region { guest_addr, user_addr: guest_addr, size: 2 << 20, file_offset: 0, file };
    neighbour_vm.connection.max_mem_slots().unwrap();
    neighbour_vm.connection.add_region(&large).unwrap();
    let before = report(&neighbour);
    punch(&neighbour_vm, 0);
    while send((&sender, &mut sender_vm), &neighbour, &mut store) != Sent::Delivered {}
    assert_eq!(recv(&mut neighbour_vm), Some(LEN));
    let after = report(&neighbour);
    let pages = after.pages - before.pages;
    assert!(
        pages >= PAGES * 512 && pages % 512 == 0 && after.rests == before.rests + 1,
        "{after:?}"
    );
    let end = Instant::now() + control_support::WAIT;
    while send((&sender, &mut sender_vm), &neighbour, &mut store)
        != Sent::Refused(NotDelivered::Resting)
    {
        assert!(Instant::now() < end, "its own frames may have to wait first, no more");
    }
}
