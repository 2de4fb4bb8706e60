//! Guests leave and come back in every possible way while others send to them. No frame is repeated
//! or lost without a named drop, and no other guest notices.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use butterfly_guest_driver::{Connection, Listener, Start, Vm, VmConfig};
use butterfly_tests::{
    Host, Nic, PATIENCE, Station, eventually,
    frames::{Choices, mac},
    station::{features, machine, usual},
    traffic::{Stream, exchange, streams},
};
use butterfly_vhost::net::Features;

/// Sets of features with which a guest may come back.
const SETS: [Features; 6] = [
    features::MODERN,
    features::LINUX,
    Features::VERSION_1,
    Features::NONE,
    Features(features::MODERN.0 | Features::IN_ORDER.0),
    Features(Features::MRG_RXBUF.0 | Features::EVENT_IDX.0),
];

/// Lengths of the frames that keep flowing.
fn some_len(choices: &mut Choices) -> usize {
    choices.one(&[60, 64, 200, 1514, 1514, 4000])
}

/// Sends and receives while `going` is true. Returns when the switch has taken all its frames.
fn keep_talking(
    mut station: Station,
    out: &mut Stream,
    back: &mut Stream,
    going: &AtomicBool,
) -> Station {
    let mut choices = Choices::new(out.sent);
    while going.load(Ordering::Relaxed) {
        for _ in 0..choices.between(1, 30) {
            out.send(&mut station, some_len(&mut choices));
        }
        back.take_all(&mut station);
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(station.vm.guest.drain(PATIENCE).unwrap());
    station
}

/// How a guest leaves and comes back.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The front end is killed; the guest comes back with its memory, as when QEMU reconnects.
    Crash,
    /// The guest stops in order and comes back with its memory.
    Detach,
    /// The guest is killed; another one with new memory and other features takes its place.
    Reboot,
    /// The guest stops and starts on the same connection.
    Restart,
    /// The guest loads its driver again with other features, on the same connection.
    Features,
}

struct Restless {
    station: Station,
    out: Stream,
    back: Stream,
    /// Frames that it put into its ring, and that were unsent when the ring was made anew.
    unsent: u64,
}

impl Restless {
    fn turn(mut self, host: &Host, how: Turn, choices: &mut Choices) -> Restless {
        let id = self.station.nic.id.clone();
        let left = host.show(&id).attach_count;
        self.station = match how {
            Turn::Crash | Turn::Detach => {
                let gone = if matches!(how, Turn::Crash) {
                    self.station.crash()
                } else {
                    self.station.detach()
                };
                eventually("the guest is gone", || !host.show(&id).attached);
                std::thread::sleep(Duration::from_millis(choices.below(3) as u64));
                gone.back()
            }
            Turn::Reboot => {
                let config = machine(choices.one(&SETS), 9000);
                let mut gone = self.station.crash();
                eventually("the guest is gone", || !host.show(&id).attached);
                while let Some((header, frame)) = gone.vm.guest.recv().unwrap() {
                    self.back.take(header, &frame);
                }
                let unsent = gone
                    .vm
                    .guest
                    .tx()
                    .published()
                    .wrapping_sub(gone.vm.guest.tx().restart_position());
                self.unsent += u64::from(unsent);
                let connection = Station::connection(&gone.path, gone.listener.as_ref());
                let vm = Vm::attach(connection, &config).unwrap();
                Station { nic: gone.nic, path: gone.path, listener: gone.listener, vm, config }
            }
            Turn::Restart => {
                self.station.vm.restart().unwrap();
                self.station
            }
            Turn::Features => {
                // As change_features(), but counts the frames that are in the rings when they stop.
                let Vm { connection, guest, .. } = &mut self.station.vm;
                connection.stop(1).unwrap();
                while let Some((header, frame)) = guest.recv().unwrap() {
                    self.back.take(header, &frame);
                }
                self.unsent +=
                    u64::from(guest.tx().published().wrapping_sub(guest.tx().restart_position()));
                let wanted = Features(connection.offered().0 & choices.one(&SETS).0);
                // A guest with mergeable buffers keeps them: otherwise its buffers are too small
                // for frames of 9,000 bytes.
                let wanted = if guest.features().has(Features::MRG_RXBUF) {
                    wanted.with(Features::MRG_RXBUF)
                } else {
                    wanted
                };
                guest.reset(wanted);
                connection.start(guest, &Start::default()).unwrap();
                self.station
            }
        };
        let came_back = matches!(how, Turn::Crash | Turn::Detach | Turn::Reboot);
        self.station.vm.connection.sync().unwrap();
        assert_eq!(host.show(&id).attach_count, left + u64::from(came_back), "{how:?}");
        self
    }
}

/// A guest leaves and comes back 60 times while another one talks to it all the time.
fn come_and_go(client: bool, seed: u64) {
    let host = Host::new();
    let role = |nic: Nic| if client { nic.client() } else { nic };
    let steady = host.station(&role(Nic::bypass("steady", mac(1), 7)), &usual());
    let restless = host.station(&role(Nic::bypass("restless", mac(2), 7)), &usual());
    let [mut out, talk] = streams(&steady, &restless);
    let (back, mut heard) = (out.far_end(), talk.far_end());
    let restless = Restless { station: restless, out: talk, back, unsent: 0 };
    let going = AtomicBool::new(true);
    let mut choices = Choices::new(seed);
    let (mut steady, mut restless) = std::thread::scope(|scope| {
        let mut restless = restless;
        let thread = scope.spawn(|| keep_talking(steady, &mut out, &mut heard, &going));
        for round in 0..60 {
            let begin = restless.back.received;
            eventually("frames flow again", || {
                restless.back.take_all(&mut restless.station);
                restless.out.send(&mut restless.station, some_len(&mut choices));
                restless.back.received > begin + 20
            });
            let turns = [Turn::Crash, Turn::Detach, Turn::Reboot, Turn::Restart, Turn::Features];
            let turn = turns[(round + choices.below(2)) % turns.len()];
            restless = restless.turn(&host, turn, &mut choices);
        }
        going.store(false, Ordering::Relaxed);
        (thread.join().unwrap(), restless)
    });
    host.settle(&mut [&mut steady, &mut restless.station]);
    restless.back.take_all(&mut restless.station);
    heard.take_all(&mut steady);

    let [a, b] = ["steady", "restless"].map(|id| host.show(id));
    assert_eq!(a.received.0, out.sent, "what was sent was taken");
    assert_eq!(
        b.delivered.0,
        restless.back.received + restless.back.announcements,
        "what was delivered was received"
    );
    assert_eq!(b.received.0, restless.out.sent - restless.unsent, "what was sent was taken, once");
    assert_eq!(
        a.delivered.0,
        heard.received + heard.announcements,
        "what was delivered was received"
    );
    assert_eq!(
        out.sent,
        restless.back.received + b.all_drops() + a.all_drops(),
        "{:?} {:?}",
        a.dropped(),
        b.dropped()
    );
    assert_eq!(a.dropped().len(), usize::from(a.drops("ring-full") > 0), "{:?}", a.dropped());
    let known = b.drops("not-attached") + b.drops("ring-full");
    assert_eq!(b.all_drops(), known, "{:?}", b.dropped());
    assert_eq!(heard.received + a.drops("ring-full"), b.received.0);
    assert!(out.sent > 1000 && restless.back.received > 1000);
}

#[test]
fn guests_come_and_go_on_our_socket() {
    come_and_go(false, 1);
}

#[test]
fn guests_come_and_go_on_their_socket() {
    come_and_go(true, 2);
}

/// Two guests lose no frame while a third one leaves and comes back.
#[test]
fn nobody_else_notices() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let restless = host.station(&Nic::bypass("restless", mac(3), 1), &usual());
    let mut both = streams(&a, &b);
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut station = restless;
            let mut choices = Choices::new(3);
            for _ in 0..60 {
                station = if choices.below(2) == 0 {
                    station.crash().back()
                } else {
                    station.reboot(&machine(choices.one(&SETS), 1514))
                };
            }
            going.store(false, Ordering::Relaxed);
        });
        while going.load(Ordering::Relaxed) {
            exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000, 64, 300]);
        }
    });
    assert_eq!(host.show("restless").attach_count, 61);
    assert_eq!((host.show("a").all_drops(), host.show("b").all_drops()), (0, 0));
}

/// A front end that leaves in the middle of its set-up does not keep the next one away.
#[test]
fn half_a_start_is_as_good_as_none() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let path = host.add(&Nic::bypass("b", mac(2), 1)).unwrap();
    let spare = VmConfig::default();
    for stage in 0..8 {
        let mut connection = Connection::connect(&path, PATIENCE).unwrap();
        if stage > 0 {
            let features = connection.negotiate(spare.features, spare.protocol).unwrap();
            let memory = butterfly_guest_driver::Memory::new(
                &butterfly_guest_driver::MemoryConfig::new(spare.guest.memory_needed()),
            );
            let guest =
                butterfly_guest_driver::Guest::new(&memory.unwrap(), features, &spare.guest)
                    .unwrap();
            if stage > 1 {
                connection.set_features(features).unwrap();
            }
            if stage > 2 {
                connection.set_mem_table(&guest.memory().regions()).unwrap();
            }
            if stage > 3 {
                connection.set_up_queue(0, guest.rx(), &spare.start).unwrap();
            }
            if stage > 4 {
                connection.set_up_queue(1, guest.tx(), &spare.start).unwrap();
            }
            if stage > 5 {
                connection.enable(1, true).unwrap();
            }
            if stage > 6 {
                connection.enable(0, true).unwrap();
                connection.enable(1, false).unwrap();
            }
            connection.sync().unwrap();
            // The rings that run by now may be used.
            a.send(&butterfly_tests::frames::numbered(mac(1), mac(2), 9, stage, 100));
            host.settle(&mut [&mut a]);
        }
        connection.disconnect();
        let mut b = Station {
            nic: Nic::bypass("b", mac(2), 1),
            path: path.clone(),
            listener: None,
            vm: Vm::connect(&path, &usual(), PATIENCE).unwrap(),
            config: usual(),
        };
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &[60, 9000, 1514]);
        drop(b.crash());
    }
    eventually("the last one is gone", || !host.show("b").attached);
    let show = host.show("b");
    // A connection without a message does not count as a guest.
    assert_eq!(show.attach_count, 15);
    assert!(show.last_detach.is_some());
}

/// A vnic has one front end at a time; the next one waits.
#[test]
fn a_second_front_end_waits() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut first = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let path = first.path.clone();
    let second = std::thread::spawn(move || Vm::connect(&path, &usual(), PATIENCE).unwrap());
    let mut both = streams(&a, &first);
    exchange(&mut a, &mut first, &mut both, &[60; 1000]);
    assert_eq!(host.show("b").attach_count, 1);
    let Station { nic, path, listener, vm, config } = first;
    drop(vm);
    let vm = second.join().unwrap();
    let mut second = Station { nic, path, listener, vm, config };
    assert_eq!(host.show("b").attach_count, 2);
    exchange(&mut a, &mut second, &mut both, &[60; 1000]);
}

/// Frames to a disabled ring are named drops. Frames from it wait; after half a second the daemon
/// gives them back unsent.
#[test]
fn rings_are_disabled_and_enabled() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    for round in 1..20 {
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        b.vm.connection.enable(0, false).unwrap();
        let lost = both[0].next_frame(60);
        a.send(&lost);
        host.settle(&mut [&mut a]);
        assert_eq!((b.pending().len(), host.show("b").drops("not-attached")), (0, round));
        b.vm.connection.enable(0, true).unwrap();

        a.vm.connection.enable(1, false).unwrap();
        let waiting = both[0].next_frame(100);
        a.send(&waiting);
        exchange_one(&mut b, &mut a, &mut both[1]);
        assert_eq!(b.pending().len(), 0, "its sender is disabled");
        a.vm.connection.enable(1, true).unwrap();
        b.expect(&waiting);
        both = streams(&a, &b);
    }
    a.vm.connection.enable(1, false).unwrap();
    // The second round sends more than the ring holds: the daemon goes on emptying it.
    let mut sent = 0;
    for more in [3, 600] {
        for _ in 0..more {
            a.send(&both[0].next_frame(60));
        }
        sent += more;
        eventually("what cannot be sent is discarded", || {
            host.show("a").drops("tx-disabled") == sent
        });
    }
    assert!(a.vm.guest.drain(Duration::from_secs(5)).unwrap());
    assert_eq!(b.pending().len(), 0, "its sender is disabled");
    a.vm.connection.enable(1, true).unwrap();
    both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
}

fn exchange_one(from: &mut Station, to: &mut Station, stream: &mut Stream) {
    let frame = stream.next_frame(77);
    from.send(&frame);
    to.expect(&frame);
}

/// After the switch confirmed that a ring stopped, it writes nothing more to the guest's memory.
#[test]
fn a_stopped_ring_is_left_alone() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let going = AtomicBool::new(true);
    let mut stream = Stream::new(1, mac(1), mac(2));
    std::thread::scope(|scope| {
        // Frames for the guest all the time, also after its ring stopped.
        scope.spawn(|| {
            while going.load(Ordering::Relaxed) {
                stream.send(&mut a, 1514);
            }
        });
        for round in 0..150 {
            let Vm { connection, guest, .. } = &mut b.vm;
            // Four ways to stop: disable, ask for the position, replace the memory, reset.
            match round % 4 {
                0 => connection.enable(0, false).unwrap(),
                1 => drop(connection.stop(1).unwrap()),
                2 => connection
                    .set_mem_table(
                        &butterfly_guest_driver::Memory::new(
                            &butterfly_guest_driver::MemoryConfig::new(1 << 21),
                        )
                        .unwrap()
                        .regions(),
                    )
                    .unwrap(),
                _ => connection.reset_device().unwrap(),
            }
            let memory = guest.memory().clone();
            let region = memory.regions().remove(0);
            let before = memory.read_vec(region.guest_addr, region.size as usize).unwrap();
            // A batch would have arrived within this time.
            std::thread::sleep(Duration::from_micros(500));
            let after = memory.read_vec(region.guest_addr, region.size as usize).unwrap();
            assert!(
                before == after,
                "round {round}: memory was written after the ring had stopped"
            );
            if round % 4 != 1 {
                let _ = connection.stop(1);
            }
            guest.reset(guest.features());
            connection.start(guest, &Start::default()).unwrap();
            // The ring runs again.
            assert!(guest.recv_wait(PATIENCE).unwrap().is_some(), "round {round}");
        }
        going.store(false, Ordering::Relaxed);
    });
}

/// RESET_DEVICE stops everything until the front end starts anew.
#[test]
fn a_device_is_reset() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    for _ in 0..10 {
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        let Vm { connection, guest, .. } = &mut b.vm;
        connection.reset_device().unwrap();
        guest.reset(guest.features());
        connection.start(guest, &Start::default()).unwrap();
    }
    assert_eq!(host.show("b").attach_count, 1);
}

/// Removing a vnic detaches its guest and deletes its socket. Frames to it are then named drops.
#[test]
fn a_vnic_is_removed_under_its_guest() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let _c = host.station(&Nic::filtered("c", mac(3), 1), &usual());
    for round in 1..=5 {
        let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &[60, 1514]);
        host.remove("b");
        assert!(b.vm.connection.wait_closed(PATIENCE), "its guest is cut");
        assert!(!b.path.exists(), "{} is left", b.path.display());
        let before = host.show("a").drops("no-receiver");
        a.send(&both[0].next_frame(60));
        host.settle(&mut [&mut a]);
        assert_eq!(
            host.show("a").drops("no-receiver"),
            before + 1,
            "round {round}: nobody can have it"
        );
    }
}

/// QEMU owns the socket and may not be there yet: the daemon tries again every 100 ms or sooner.
#[test]
fn a_socket_that_is_not_there_yet() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let path = host.add(&Nic::bypass("b", mac(2), 1).client()).unwrap();
    let mut waits = Vec::new();
    for _ in 0..21 {
        let listener = Listener::bind(&path).unwrap();
        let begin = Instant::now();
        let connection = listener.accept(PATIENCE).unwrap();
        waits.push(begin.elapsed());
        let vm = Vm::attach(connection, &usual()).unwrap();
        let mut b = Station {
            nic: Nic::bypass("b", mac(2), 1).client(),
            path: path.clone(),
            listener: Some(listener),
            vm,
            config: usual(),
        };
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        assert_eq!(host.show("b").role, "client");
        drop(b.crash()); // the listener and its file go, too
        assert!(!path.exists());
    }
    waits.sort();
    // The median: this machine may be busy with other tests.
    assert!(waits[waits.len() / 2] < Duration::from_millis(110), "{waits:?}");
}

/// The daemon treats a file that is no socket, or a socket without a listener, as a missing one.
#[test]
fn something_else_in_the_sockets_place() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let path = host.add(&Nic::bypass("b", mac(2), 1).client()).unwrap();
    fs::write(&path, b"no socket").unwrap();
    std::thread::sleep(Duration::from_millis(150)); // the daemon tries at least once
    fs::remove_file(&path).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // the file stays
    std::thread::sleep(Duration::from_millis(150));
    let listener = Listener::bind(&path).unwrap();
    let vm = Vm::attach(listener.accept(PATIENCE).unwrap(), &usual()).unwrap();
    let mut b = Station {
        nic: Nic::bypass("b", mac(2), 1).client(),
        path,
        listener: Some(listener),
        vm,
        config: usual(),
    };
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    // In the client role the socket is QEMU's: the daemon does not delete it.
    host.remove("b");
    assert!(b.vm.connection.wait_closed(PATIENCE));
    assert!(b.path.exists());
}
