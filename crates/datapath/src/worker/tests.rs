use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock, atomic::Ordering},
};

use butterfly_guest_driver::guest::Guest;
use butterfly_mem::cpu;
use butterfly_packet::{build, mac::Mac};
use butterfly_uplink::{Halves, Inward, Outward};
use butterfly_vhost::{net::NetHeader, ring::BATCH};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::engine::{
    budget::Budget,
    place::{PollSource, PortRef},
};
use crate::harness::Host;
use crate::overlay::TunnelConfig;
use crate::plane::Plane;
use crate::world::policy::VnicPolicy;

/// An uplink without frames. While the worker looks at it, a change takes everything back.
struct TakesBack {
    event: OwnedFd,
    shared: Arc<OnceLock<Arc<Shared>>>,
}

impl Inward for TakesBack {
    fn receive(&mut self, _: usize) -> usize {
        if let Some(shared) = self.shared.get() {
            shared.snapshot.store(Arc::default());
            shared.epoch.fetch_add(1, Ordering::SeqCst);
        }
        0
    }

    fn frame(&self, _: usize) -> &[u8] {
        &[]
    }

    fn release(&mut self) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Sends nothing.
struct Nowhere;

impl Outward for Nowhere {
    fn room(&mut self, _: usize) -> Option<&mut [u8]> {
        None
    }

    fn send(&mut self) {}

    fn flush(&mut self) {}
}

/// A rule that is taken back while a worker is busy holds for one batch more, not for a whole
/// round.
#[test]
fn a_new_snapshot_does_not_wait_for_a_round_of_attackers() {
    const VNICS: u8 = 20;
    let shared = Arc::new(OnceLock::new());
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let wire = TakesBack { event, shared: shared.clone() };
    let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let halves = Halves { inward: vec![Box::new(wire)], outward: vec![Box::new(Nowhere)] };
    let mut host = Host::on_wire(&config, halves, 1).unwrap();
    let mac = |n: u8| Mac([2, 0, 0, 0, 0, n]);
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    for n in 0..=VNICS {
        host.vnic(&format!("v{n}"), mac(n), 42, &policy).unwrap();
    }
    host.settle();
    for n in 1..=VNICS {
        let frame = build::ethernet(mac(n), mac(0)).payload(0x88b5, &[0; 46]);
        host.guest(&format!("v{n}")).unwrap().enqueue(&frame, NetHeader::default()).unwrap();
        host.guest(&format!("v{n}")).unwrap().flush();
    }
    // The uplink is the first ring that is looked at.
    let (plane, worker) = host.inside();
    worker.polled.clear();
    worker.habits.clear();
    worker.add(PollSource::Uplink(0));
    (0..u32::from(VNICS) + 1).for_each(|slot| {
        let place = worker.snapshot.vnics.get(slot).map(|vnic| vnic.place);
        place.into_iter().for_each(|place| worker.add(PollSource::first(place)));
    });
    assert!(shared.set(plane.shared.clone()).is_ok());
    worker.turn();
    assert_eq!(
        worker.handle.seen.load(Ordering::SeqCst),
        plane.shared.epoch.load(Ordering::SeqCst)
    );
    let delivered = host.received().unwrap().values().map(Vec::len).sum::<usize>();
    assert!(delivered <= 1, "{delivered} frames were judged by what was taken back");
}

fn crowd(vnics: u8) -> Host {
    let mut host = Host::new().unwrap();
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    for n in 0..vnics {
        host.vnic(&format!("v{n}"), Mac([2, 0, 0, 0, 0, n]), 42, &policy).unwrap();
    }
    host.settle();
    host
}

/// A flood of one frame to forty counts as many frames. Otherwise the next frames of its ring would
/// be judged by its cost.
#[test]
fn a_flood_is_the_work_of_many_frames() {
    let mut host = crowd(40);
    let frame = build::ethernet(Mac([2, 0, 0, 0, 0, 0]), Mac::BROADCAST).payload(0x88b5, &[0; 46]);
    // Frames it counts as in whole batches, and in those of eight frames, which have room for eight
    // visits.
    for (size, counts) in [(fair::WHOLE, vec![40]), (8, vec![8; 5])] {
        host.guest("v0").unwrap().enqueue(&frame, NetHeader::default()).unwrap();
        host.guest("v0").unwrap().flush();
        let (_, worker) = host.inside();
        let mut seen = Vec::new();
        for _ in 0..10 {
            worker.polled.iter_mut().for_each(|polled| polled.account.size = size);
            worker.bill.used(Budget::WHOLE, Budget::WHOLE);
            if worker.turn() {
                seen.push(worker.bill.cost((0, 0), 0).frames);
            }
        }
        assert_eq!(seen, counts, "batches of {size}");
        assert_eq!(host.received().unwrap().values().map(Vec::len).sum::<usize>(), 39);
    }
}

/// A worker that slept knows the time before it slept. A price of that time would be forgotten at
/// once.
#[test]
fn a_ring_that_comes_back_has_a_price_of_today() {
    let mut host = crowd(1);
    let (_, worker) = host.inside();
    worker.heed_prices();
    worker.polled.clear();
    worker.habits.clear();
    worker.now = 0;
    let place = worker.snapshot.vnics.get(0).unwrap().place;
    worker.add(PollSource::first(place));
    let account = &mut worker.polled[0].account;
    let first = account.size;
    assert!(first < fair::WHOLE);
    worker.fair.owe(account, fair::Cost { cycles: 1, signals: 0, frames: 1 }, 100, 1, cpu::tsc());
    assert!(account.size <= 2 * first, "{} after {first}", account.size);
}

/// A machine that floods by many queues sends no more than one that floods by a single one, and
/// each of its queues gets on.
#[test]
fn many_queues_have_the_part_of_one() {
    const QUEUES: u32 = 8;
    const ROUNDS: usize = 400;
    let mut host = crowd(3);
    let mut further: Vec<_> =
        (1..QUEUES).map(|pair| host.further_pair("v0", pair).unwrap()).collect();
    host.settle();
    host.moved();
    // Without prices each batch is whole, and costs the same.
    let frame = |from| {
        build::ethernet(Mac([2, 0, 0, 0, 0, from]), Mac([2, 0, 0, 0, 0, 2]))
            .payload(0x88b5, &[0; 46])
    };
    let fill = |guest: &mut Guest, frame: &[u8]| {
        while guest.enqueue(frame, NetHeader::default()).is_ok() {}
        guest.flush();
    };
    let mut rounds = |both: bool| {
        for _ in 0..ROUNDS {
            fill(host.guest("v0").unwrap(), &frame(0));
            for guest in &mut further {
                fill(guest, &frame(0));
            }
            if both {
                fill(host.guest("v1").unwrap(), &frame(1));
            }
            host.inside().1.turn();
        }
        let moved = host.moved();
        let sent = |id: &str| moved.get(&format!("{id}.in.packets")).copied().unwrap_or(0);
        let each: Vec<_> = further.iter().map(|guest| guest.stats().sent).collect();
        (sent("v0"), sent("v1"), each)
    };
    let (many, one, before) = rounds(true);
    assert!(one * 9 < many * 10 && many * 9 < one * 10, "{many} by {QUEUES} queues, {one} by one");
    // Debts are forgiven as soon as nobody else has frames: each turn serves one ring at least.
    let (alone, _, after) = rounds(false);
    assert!(alone * 11 > (ROUNDS * BATCH * 10) as u64, "{alone}");
    let got: Vec<_> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert!(got.iter().all(|frames| *frames * u64::from(QUEUES) * 2 > alone), "{got:?}");
}

/// Debts are the vnic's, not its slot's.
#[test]
fn who_gets_a_slot_does_not_pay_for_who_had_it() {
    let mut host = crowd(1);
    let (_, worker) = host.inside();
    let place = worker.snapshot.vnics.get(0).unwrap().place;
    worker.polled.clear();
    worker.habits.clear();
    worker.add(PollSource::first(place));
    worker.polled[0].account.debt = 1000;
    let mut debt_of = |place| {
        worker.handle.started(PollSource::first(place), false);
        worker.obey();
        worker.polled[0].account.debt
    };
    assert_eq!(debt_of(place), 1000);
    assert_eq!(debt_of(PortRef { incarnation: place.incarnation + 1, ..place }), 0);
}

/// Kicks are looked for often only while a ring is not polled.
#[test]
fn who_polls_all_rings_awaits_no_kick() {
    let mut host = crowd(1);
    let (_, worker) = host.inside();
    worker.polled.clear();
    worker.habits.clear();
    worker.timed.clear();
    let first = worker.snapshot.vnics.get(0).unwrap().place;
    worker.add(PollSource::first(first));
    assert_eq!(worker.handle.kicks(), 1);
    let sources = [7, 8].map(|slot| PollSource::first(PortRef { slot, incarnation: 1 }));
    let kicks = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    for (source, kick) in sources.into_iter().zip(&kicks) {
        let kicked = worker.handle.register(source, kick.as_fd());
        worker.handle.started(source, kicked);
    }
    worker.obey();
    assert!(worker.polls_all() && worker.polled.len() == 3);
    let left = worker.polled.pop().unwrap();
    worker.habits.end(left.source, left.rhythm);
    assert!(!worker.polls_all());
    // Frames without a ring have no kick.
    worker.add(PollSource::Waiting);
    assert!(!worker.polls_all());
    worker.handle.unregister(kicks[1].as_fd());
    assert!(worker.polls_all());
    // So are those that have a pause, or no descriptor.
    worker.pauses.begin(3, 100);
    assert!(!worker.polls_all());
    assert_eq!(worker.pauses.ended(100), Some(3));
    worker.timed.push(sources[1]);
    assert!(!worker.polls_all());
    worker.timed.clear();
    worker.handle.unregister(kicks[1].as_fd());
    assert_eq!(worker.handle.kicks(), 2, "it has gone already");
}

/// A worker that has nothing else to do sleeps while a fragment waits, and wakes to end its wait.
#[test]
fn a_fragment_waits_while_its_worker_sleeps() {
    let a = Mac([2, 0, 0, 0, 0, 1]);
    let mut host = Host::new().unwrap();
    let ips = vec![[10, 0, 0, 1].into()];
    host.vnic("a", a, 7, &VnicPolicy { ips, ..VnicPolicy::default() }).unwrap();
    host.heed_prices();
    host.settle();
    let ip = build::ethernet(a, Mac::BROADCAST).ipv4([10, 0, 0, 1], [255; 4]);
    let late = ip.fragment(1, 24, false).payload(17, &[0; 24]);
    host.guest("a").unwrap().send(&late, NetHeader::default()).unwrap();
    let (plane, worker) = host.inside();
    let (shared, handle) = (plane.shared.clone(), plane.board.first().unwrap());
    let vnic = shared.snapshot.load().vnics.get(0).unwrap().shared.clone();
    let orphans = || vnic.counters.totals().drops(crate::ip::FRAGMENT_ORPHAN);
    std::thread::scope(|scope| {
        scope.spawn(|| worker.run());
        let start = std::time::Instant::now();
        while orphans() == 0 && start.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        shared.stop.store(true, Ordering::Relaxed);
        handle.wake();
    });
    assert_eq!(orphans(), 1);
    assert!(handle.stats.sleeps.load(Ordering::Relaxed) > 1, "it did not sleep");
}

/// A worker that is to end gets no ring any more, also from who chose it before.
#[test]
fn who_is_to_end_gets_no_ring() {
    let mut host = Host::with_workers(2).unwrap();
    let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    host.vnic("a", Mac([2, 0, 0, 0, 0, 1]), 42, &policy).unwrap();
    let (plane, _) = host.inside();
    let place = plane.place("a").unwrap();
    let by = |plane: &Plane| plane.vnic("a").unwrap().shared.serving.by(0);
    assert!(plane.hand_over((place, 0), 1) && by(plane) == Some(1));
    assert!(plane.hand_over((place, 0), 0) && by(plane) == Some(0));
    plane.board.set_active(1);
    assert!(!plane.hand_over((place, 0), 1) && by(plane) == Some(0));
    assert_eq!(plane.board.rings_of(0).len(), 1);
    // Nor does one that has it already, or a ring that is not there.
    assert!(!plane.hand_over((place, 0), 0) && !plane.hand_over((place, 7), 0));
}
