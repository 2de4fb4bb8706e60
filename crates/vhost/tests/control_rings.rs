//! Rings: when they start, run, are enabled, stop, and by which descriptors they are kicked and
//! interrupted.

mod control_support;

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use butterfly_guest_driver::{
    Connection, Guest, GuestConfig, Memory, MemoryConfig, ProtocolFeatures, RX, Start, TX,
    VmConfig, positions,
    raw::{self, FrontendReq},
};
use butterfly_vhost::{
    net::{Features, NetHeader},
    ring::{BATCH, Delivery, Finish, FrameStore, Gathered, NotDelivered},
};
use control_support::{Bed, Event, WAIT, eventually};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, ftruncate, memfd_create},
};
use vhost::VhostBackend;

fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(256), ..VmConfig::default() }
}

fn reads(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

#[test]
fn every_ring_size_works() {
    let bed = Bed::server();
    for size in [1, 2, 64, 1024, 4096, 32768] {
        let config = VmConfig { guest: GuestConfig::default().rings(size), ..VmConfig::default() };
        let mut vm = bed.vm(&config);
        assert_eq!(bed.status().tx.unwrap().size, size);
        bed.ping(&mut vm, 3);
        drop(vm);
    }
}

#[test]
fn a_ring_runs_from_its_kick_message_on_and_not_from_the_first_kick() {
    let bed = Bed::server();
    let mut connection = bed.connect();
    let features =
        connection.negotiate(VmConfig::default().features, Connection::usual_protocol()).unwrap();
    let memory = Memory::new(&MemoryConfig::new(GuestConfig::default().memory_needed())).unwrap();
    let mut guest = Guest::new(&memory, features, &GuestConfig::default()).unwrap();
    guest.enqueue(&[0xff; 60], NetHeader::default()).unwrap();
    guest.tx_mut().publish(); // available, and no kick
    assert_eq!(bed.status().tx, None);
    connection.start(&guest, &Start::default()).unwrap();
    assert_eq!(bed.echo(), 1);
}

#[test]
fn rings_without_kick_and_call_descriptors_are_polled() {
    let bed = Bed::server();
    let config =
        VmConfig { start: Start { kick: false, call: false, ..Start::default() }, ..small() };
    let mut vm = bed.vm(&config);
    assert_eq!(bed.events.all(), [Event::Attached, Event::TxStarted(None)]);
    bed.ping(&mut vm, 300);
    vm.detach().unwrap();
    assert_eq!(bed.events.all()[2], Event::TxStopped(None));
}

#[test]
fn without_protocol_features_rings_are_enabled_from_the_start() {
    let bed = Bed::server();
    let mut vm = bed.vm(&VmConfig { protocol: ProtocolFeatures::empty(), ..small() });
    vm.connection.sync().unwrap();
    assert_eq!(bed.status().attached.unwrap().protocol_features, None);
    bed.ping(&mut vm, 10);
}

#[test]
fn with_protocol_features_only_a_message_enables_a_ring() {
    let bed = Bed::server();
    let mut vm =
        bed.vm(&VmConfig { start: Start { enable: false, ..Start::default() }, ..small() });
    vm.guest.send(&[1; 60], NetHeader::default()).unwrap();
    assert_eq!(bed.echo(), 0);
    assert_eq!(bed.events.all(), [Event::Attached], "a disabled transmit ring is not announced");
    let status = bed.status();
    assert!(!status.tx.unwrap().enabled && !status.rx.unwrap().enabled);

    vm.connection.enable(TX, true).unwrap();
    vm.connection.enable(RX, true).unwrap();
    bed.events.wait_started(1);
    assert_eq!(bed.echo(), 1);
    assert!(vm.guest.recv().unwrap().is_some());

    // Buffers that were looked at in advance are not filled either.
    bed.ping(&mut vm, 1);
    bed.port.rx().as_mut().unwrap().prepare(64);
    vm.connection.enable(RX, false).unwrap();
    vm.connection.enable(TX, false).unwrap();
    assert_eq!(bed.events.all().iter().filter(|e| matches!(e, Event::TxStopped(_))).count(), 1);
    vm.connection.enable(TX, true).unwrap();
    vm.guest.send(&[2; 60], NetHeader::default()).unwrap();
    let mut store = FrameStore::default();
    let mut tx = bed.port.tx();
    let tx = tx.as_mut().unwrap();
    assert_eq!(tx.available(), Some(1));
    let Gathered::Frames(mut frames) = tx.gather(&mut store, BATCH as u16, |_| {}) else {
        panic!("one frame")
    };
    let delivery = Delivery {
        net: NetHeader::default(),
        head: frames.head(0),
        frame: 0,
        from: 60,
        len: 0,
        finish: Finish::Nothing,
    };
    let refused = bed.port.rx().as_mut().unwrap().deliver(&frames, &delivery);
    assert_eq!(refused, Err(NotDelivered::NotReady));
    frames.release();
}

/// The inspected bytes are those that arrive, even if the guest writes meanwhile.
#[test]
fn a_kept_frame_is_delivered_from_private_memory() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let frames = [200usize, 700, 1523]
        .map(|len| (0..len).map(|i| (i * 7 + i / 256 + len) as u8).collect::<Vec<u8>>());
    for frame in &frames {
        vm.guest.send(frame, NetHeader::default()).unwrap();
    }
    let mut store = FrameStore::default();
    let mut tx = bed.port.tx();
    let tx = tx.as_mut().unwrap();
    assert_eq!(tx.available(), Some(3));
    let Gathered::Frames(mut batch) = tx.gather(&mut store, BATCH as u16, |_| {}) else {
        panic!("three frames")
    };
    assert_eq!(batch.keep(1), Some(&frames[1][..]));
    assert_eq!(batch.keep(2), None);
    assert_eq!(batch.keep(3), None);
    let memory = vm.guest.memory().clone();
    for region in memory.regions() {
        let bytes = memory.read_vec(region.guest_addr, region.size as usize).unwrap();
        for frame in &frames[..2] {
            let found = bytes.windows(frame.len()).position(|window| window == frame);
            if let Some(at) = found {
                memory.write(region.guest_addr + at as u64, &vec![0xee; frame.len()]).unwrap();
            }
        }
    }
    // Asked again, it is what it was.
    assert_eq!(batch.keep(1), Some(&frames[1][..]));
    let mut rx = bed.port.rx();
    let rx = rx.as_mut().unwrap();
    (0..2).for_each(|index| rx.deliver_one(&batch, index).unwrap());
    rx.publish();
    batch.release();
    let got: Vec<_> =
        std::iter::from_fn(|| vm.guest.recv().unwrap()).map(|(_, frame)| frame).collect();
    assert_eq!(got, [[&frames[0][..128], &[0xee; 72]].concat(), frames[1].clone()]);
}

/// QEMU 7.2 enables rings before it sends the features of the guest's driver.
#[test]
fn rings_may_be_enabled_before_features() {
    let bed = Bed::server();
    let mut connection = bed.connect();
    let config = small();
    let features = connection.negotiate(config.features, config.protocol).unwrap();
    for index in [RX, TX] {
        // The crate's front end would not send it.
        let enable = raw::message(
            FrontendReq::SET_VRING_ENABLE,
            raw::VERSION,
            &raw::vring_state(index as u32, 1),
        );
        raw::send_bytes(connection.stream(), &enable, &[]).unwrap();
    }
    let memory = Memory::new(&MemoryConfig::new(config.guest.memory_needed())).unwrap();
    let guest = Guest::new(&memory, features, &config.guest).unwrap();
    connection.start(&guest, &Start { enable: false, ..Start::default() }).unwrap();
    let status = bed.status();
    assert!(status.tx.unwrap().enabled && status.rx.unwrap().enabled);
}

#[test]
fn a_stopped_ring_says_where_it_was_and_goes_on_there() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 300);
    assert_eq!(vm.restart().unwrap(), positions([300, 300]));
    bed.ping(&mut vm, 300);
    // Over a new connection too, in order or not.
    let mut vm = vm.detach().unwrap().reattach(bed.connect()).unwrap();
    bed.ping(&mut vm, 10);
    let mut vm = vm.crash().reattach(bed.connect()).unwrap();
    bed.ping(&mut vm, 10);
    assert_eq!(bed.status().tx.unwrap().next_avail, 620);
    // A ring that was never started has the position it was given.
    let mut connection = bed.connect();
    drop(vm);
    connection.negotiate(Features::NONE, ProtocolFeatures::empty()).unwrap();
    connection.frontend().set_vring_base(TX, 77).unwrap();
    assert_eq!(connection.stop_queue(TX).unwrap(), 77);
}

#[test]
fn the_used_index_in_guest_memory_wins_over_the_position_given() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 7);
    vm.connection.stop(1).unwrap();
    vm.connection
        .start(&vm.guest, &Start { base: positions([3, 1000]), ..Start::default() })
        .unwrap();
    assert_eq!(bed.status().tx.unwrap().next_avail, 7);
    bed.ping(&mut vm, 7);
}

#[test]
fn a_new_call_descriptor_is_signalled_at_once() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 1);
    let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    vm.connection.set_vring_call(RX, Some(call.as_fd())).unwrap();
    // An interrupt may have gone to the old one while the guest changed it.
    assert_eq!(reads(&call), 1);
    vm.guest.rx_mut().arm_interrupt();
    bed.ping(&mut vm, 1);
    assert_eq!(reads(&call), 1);
    vm.connection.set_vring_call(RX, None).unwrap();
    bed.ping(&mut vm, 1);
}

#[test]
fn a_kick_descriptor_is_taken_back_before_it_is_closed() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let Event::TxStarted(Some(first)) = bed.events.all()[1] else {
        panic!("{:?}", bed.events.all())
    };
    let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    vm.connection.set_vring_kick(TX, Some(kick.as_fd())).unwrap();
    let events = bed.events.all();
    assert_eq!(events[2], Event::TxStopped(Some(first)));
    let Event::TxStarted(Some(second)) = events[3] else { panic!("{events:?}") };
    bed.ping(&mut vm, 3);
    drop(vm);
    bed.events.detached(1);
    assert_eq!(bed.events.all()[4], Event::TxStopped(Some(second)));
    assert_eq!(bed.events.all().len(), 6);
}

/// A front end may speak of rings that no guest will use.
#[test]
fn what_is_said_of_rings_beyond_the_last_is_ignored_until_they_are_to_run() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    for index in [32, 33, 255] {
        vm.connection.set_vring_call(index, Some(call.as_fd())).unwrap();
        vm.connection.set_vring_err(index, Some(call.as_fd())).unwrap();
        let flags = raw::VERSION | raw::NEED_REPLY;
        let enable =
            raw::message(FrontendReq::SET_VRING_ENABLE, flags, &raw::vring_state(index as u32, 0));
        raw::send_bytes(vm.connection.stream(), &enable, &[]).unwrap();
        assert_eq!(raw::recv(vm.connection.stream()).unwrap().u64(), 0);
    }
    assert_eq!(reads(&call), 0);
    bed.ping(&mut vm, 10);
    vm.connection.set_vring_kick(32, None).unwrap_err();
    assert_eq!(
        bed.events.detached(1),
        "the front end's SET_VRING_KICK was refused: there is no ring 32: the last is 31"
    );
}

#[test]
fn kick_and_call_descriptors_must_be_eventfds() {
    let bed = Bed::server();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut detached = 0;
    let directory = std::fs::File::open(bed.directory.path()).unwrap();
    for fd in [pipe.as_fd(), epoll.as_fd(), null.as_fd(), directory.as_fd()] {
        for (what, request) in [
            ("kick", FrontendReq::SET_VRING_KICK),
            ("call", FrontendReq::SET_VRING_CALL),
            ("error", FrontendReq::SET_VRING_ERR),
        ] {
            let connection = bed.connect();
            raw::send_bytes(
                connection.stream(),
                &raw::message(request, raw::VERSION, &raw::words(&[1])),
                &[fd],
            )
            .unwrap();
            assert!(connection.wait_closed(WAIT));
            detached += 1;
            let reason = bed.events.detached(detached);
            assert!(
                reason.starts_with(&format!(
                    "the front end's {request:?} was refused: the tx ring's {what} descriptor: it is not an eventfd but "
                )),
                "{} gave: {reason}",
                fd.as_raw_fd()
            );
        }
    }
}

/// QEMU without share=on: the VM does not write into the file that QEMU gives.
#[test]
fn memory_that_is_not_shared_is_told_of() {
    let bed = Bed::server();
    let config = GuestConfig::default();
    for shared in [false, true] {
        let mut connection = bed.connect();
        let features = connection
            .negotiate(VmConfig::default().features, Connection::usual_protocol())
            .unwrap();
        let memory = Memory::new(&MemoryConfig::new(config.memory_needed())).unwrap();
        let guest = Guest::new(&memory, features, &config).unwrap();
        let mut table = memory.regions();
        if !shared {
            for region in &mut table {
                let blank = memfd_create("blank", MemfdFlags::CLOEXEC).unwrap();
                ftruncate(&blank, region.file_offset + region.size).unwrap();
                region.file = Arc::new(blank.into());
            }
        }
        bed.events.clear();
        connection.set_mem_table(&table).unwrap();
        connection.start(&guest, &Start { memory: None, ..Start::default() }).unwrap();
        connection.sync().unwrap();
        let told: Vec<_> = bed
            .events
            .all()
            .into_iter()
            .filter(|event| matches!(event, Event::Trouble(_)))
            .collect();
        let shown = bed.status().attached.unwrap().memory_trouble;
        assert_eq!(
            told,
            shown.map(|why| Event::Trouble(why.to_owned())).into_iter().collect::<Vec<_>>()
        );
        assert_eq!(shown.is_some_and(|why| why.contains("share=on")), !shared, "{shown:?}");
        if !shared {
            // The warning was a guess: a frame that does arrive proves it wrong.
            let index = butterfly_guest_driver::Nic::link(&guest, TX).ring.user_addr().avail + 2;
            let region = table
                .iter()
                .find(|region| (region.user_addr..region.user_addr + region.size).contains(&index))
                .unwrap();
            let at = region.file_offset + index - region.user_addr;
            rustix::io::pwrite(&region.file, &1u16.to_le_bytes(), at).unwrap();
            assert_eq!(bed.status().attached.unwrap().memory_trouble, None);
        }
        drop(connection);
        bed.events.wait("the end", |events| {
            events.iter().any(|event| matches!(event, Event::Detached(_))).then_some(())
        });
    }
}

/// QEMU without a memory back end: it takes features and says no more.
#[test]
fn memory_that_is_not_announced_is_told_of() {
    let bed = Bed::server();
    let mut connection = bed.connect();
    let features =
        connection.negotiate(VmConfig::default().features, Connection::usual_protocol()).unwrap();
    connection.set_features(features).unwrap();
    let why = bed.events.wait("trouble", |events| {
        events.iter().find_map(|event| {
            if let Event::Trouble(why) = event { Some(why.clone()) } else { None }
        })
    });
    assert!(why.contains("no memory was announced"), "{why}");
    eventually("the status tells it, too", || {
        bed.status().attached.unwrap().memory_trouble == Some(&*why)
    });
    let memory = Memory::new(&MemoryConfig::new(GuestConfig::default().memory_needed())).unwrap();
    let guest = Guest::new(&memory, features, &GuestConfig::default()).unwrap();
    connection.start(&guest, &Start::default()).unwrap();
    connection.sync().unwrap();
    assert_eq!(bed.status().attached.unwrap().memory_trouble, None);
    assert_eq!(
        bed.events.all().iter().filter(|event| matches!(event, Event::Trouble(_))).count(),
        1
    );
}
