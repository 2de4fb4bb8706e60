//! What a well-behaved front end may say, in every order that real ones use.

mod control_support;

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceState, Role},
    driver::{
        Connection, DirtyLog, GuestConfig, Memory, MemoryConfig, MemoryMessages, ProtocolFeatures, RX, Start, TX, Vm, VmConfig,
        raw::{self, FrontendReq},
    },
    net::{Features, NetHeader},
    port::Queue,
};
use control_support::{Bed, Event, PROMPT, WAIT};
use rustix::event::{EventfdFlags, eventfd};

fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(256), ..VmConfig::default() }
}

fn reads(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

#[test]
fn frames_pass_in_both_roles_and_the_status_tells_it() {
    for role in [Role::Server, Role::Client] {
        let mut bed = Bed::new(role);
        assert!(bed.status().attached.is_none());
        let mut vm = bed.vm(&VmConfig::default());
        bed.ping(&mut vm, 300);
        let status = bed.status();
        assert_eq!((status.role, &status.path), (role, &bed.path));
        assert_eq!(status.offered, Features::OFFERED);
        assert_eq!((status.attach_count, status.last_detach.as_ref()), (1, None));
        let attached = status.attached.as_ref().unwrap();
        let wanted = VmConfig::default().features.with(Features::PROTOCOL_FEATURES);
        assert_eq!(attached.features, Some(wanted));
        assert_eq!(attached.declined(), Features::OFFERED.without(wanted));
        assert_eq!(attached.peer_pid, Some(std::process::id()));
        assert_eq!(attached.protocol_feature_names(), ["mq", "log-shmfd", "reply-ack", "reset-device", "configure-mem-slots"]);
        assert_eq!(attached.memory.len(), 1);
        assert_eq!((attached.rx_trouble.as_ref(), attached.tx_trouble.as_ref()), (None, None));
        let (rx, tx) = (status.rx.unwrap(), status.tx.unwrap());
        assert!(rx.enabled && tx.enabled && !rx.broken && !tx.broken);
        assert_eq!((tx.next_avail, tx.avail_idx, tx.used_idx), (300, 300, 300));
        assert_eq!(rx.used_idx, 300);

        drop(vm);
        assert_eq!(bed.events.detached(1), "the front end closed the connection");
        let status = bed.status();
        assert!(status.attached.is_none() && status.rx.is_none() && status.tx.is_none());
        assert_eq!(status.last_detach.unwrap().reason, "the front end closed the connection");
        let mut vm = bed.vm(&VmConfig::default());
        bed.ping(&mut vm, 10);
        assert_eq!(bed.status().attach_count, 2);
        bed.stop();
        assert!(vm.connection.wait_closed(WAIT));
        assert_eq!(bed.events.detached(2), "the vnic was removed");
        assert!(!bed.path.exists());
    }
}

#[test]
fn what_is_offered() {
    let bed = Bed::server();
    let mut connection = bed.connect();
    connection.negotiate(Features(u64::MAX), ProtocolFeatures::all()).unwrap();
    assert_eq!(connection.offered(), Features::OFFERED);
    assert!(!connection.offered().has(Features(1 << 22)), "VIRTIO_NET_F_MQ");
    assert_eq!(connection.protocol_offered(), Connection::usual_protocol());
    assert_eq!(connection.queue_num().unwrap(), 2, "front ends count queues or pairs of them");
    assert!(connection.max_mem_slots().unwrap() >= 32);
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
    let features = connection.negotiate(VmConfig::default().features, Connection::usual_protocol()).unwrap();
    let memory = Memory::new(&MemoryConfig::new(GuestConfig::default().memory_needed())).unwrap();
    let mut guest = butterfly_vhost::driver::Guest::new(&memory, features, &GuestConfig::default()).unwrap();
    guest.enqueue(&[0xff; 60], NetHeader::default()).unwrap();
    guest.tx_mut().publish(); // available, and no kick
    assert_eq!(bed.status().tx, None);
    connection.start(&guest, &Start::default()).unwrap();
    assert_eq!(bed.echo(), 1);
}

#[test]
fn rings_without_kick_and_call_descriptors_are_polled() {
    let bed = Bed::server();
    let config = VmConfig { start: Start { kick: false, call: false, ..Start::default() }, ..small() };
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
    let mut vm = bed.vm(&VmConfig { start: Start { enable: false, ..Start::default() }, ..small() });
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
    let mut store = butterfly_vhost::ring::FrameStore::default();
    let mut tx = bed.port.tx();
    let tx = tx.as_mut().unwrap();
    assert_eq!(tx.available(), Some(1));
    let butterfly_vhost::ring::Gathered::Frames(frames) = tx.gather(&mut store, |_| {}) else { panic!("one frame") };
    let delivery = butterfly_vhost::ring::Delivery {
        net: NetHeader::default(),
        head: frames.head(0),
        frame: 0,
        from: 60,
        len: 0,
        finish: butterfly_vhost::ring::Finish::Nothing,
    };
    let refused = bed.port.rx().as_mut().unwrap().deliver(&frames, &delivery);
    assert_eq!(refused, Err(butterfly_vhost::ring::NotDelivered::NotReady));
    frames.release();
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
        let enable = raw::message(FrontendReq::SET_VRING_ENABLE, raw::VERSION, &raw::vring_state(index as u32, 1));
        raw::send_bytes(connection.stream(), &enable, &[]).unwrap();
    }
    let memory = Memory::new(&MemoryConfig::new(config.guest.memory_needed())).unwrap();
    let guest = butterfly_vhost::driver::Guest::new(&memory, features, &config.guest).unwrap();
    connection.start(&guest, &Start { enable: false, ..Start::default() }).unwrap();
    let status = bed.status();
    assert!(status.tx.unwrap().enabled && status.rx.unwrap().enabled);
}

#[test]
fn a_guest_may_reboot_and_change_its_features_any_number_of_times() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    for round in 0..20 {
        let features = match round % 3 {
            0 => Features::VERSION_1.with(Features::MRG_RXBUF),
            1 => Features::NONE,
            _ => small().features,
        };
        let got = vm.change_features(features).unwrap();
        assert_eq!(got, features);
        bed.ping(&mut vm, 30);
        assert_eq!(bed.status().attached.unwrap().features, Some(features.with(Features::PROTOCOL_FEATURES)));
    }
    assert_eq!(bed.status().attach_count, 1);
}

#[test]
fn a_stopped_ring_says_where_it_was_and_goes_on_there() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 300);
    assert_eq!(vm.restart().unwrap(), [300, 300]);
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
    connection.frontend_base(TX, 77);
    assert_eq!(connection.stop_queue(TX).unwrap(), 77);
}

trait Base {
    fn frontend_base(&mut self, index: usize, base: u16);
}

impl Base for Connection {
    fn frontend_base(&mut self, index: usize, base: u16) {
        vhost::VhostBackend::set_vring_base(self.frontend(), index, base).unwrap();
    }
}

#[test]
fn the_used_index_in_guest_memory_wins_over_the_position_given() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 7);
    vm.connection.stop().unwrap();
    vm.connection.start(&vm.guest, &Start { base: [3, 1000], ..Start::default() }).unwrap();
    assert_eq!(bed.status().tx.unwrap().next_avail, 7);
    bed.ping(&mut vm, 7);
}

#[test]
fn memory_comes_and_goes_under_running_rings() {
    let bed = Bed::server();
    let needed = small().guest.memory_needed();
    let config = VmConfig {
        memory: Some(MemoryConfig::split(3, needed)),
        start: Start { memory: Some(MemoryMessages::Slots), ..Start::default() },
        ..small()
    };
    let mut vm = bed.vm(&config);
    bed.ping(&mut vm, 100);
    assert_eq!(bed.status().attached.unwrap().memory.len(), 3);
    for _ in 0..3 {
        let added = vm.guest.memory().add_region(None, 4 << 20).unwrap();
        vm.connection.add_region(&added).unwrap();
        assert_eq!(bed.status().attached.unwrap().memory.len(), 4);
        bed.ping(&mut vm, 100);
        vm.connection.remove_region(&added).unwrap();
        vm.guest.memory().remove_region(added.guest_addr).unwrap();
        bed.ping(&mut vm, 100);
    }
    // The same as whole tables, as front ends without memory slots say it.
    let added = vm.guest.memory().add_region(None, 4 << 20).unwrap();
    vm.connection.set_mem_table(&vm.guest.memory().regions()).unwrap();
    bed.ping(&mut vm, 100);
    vm.guest.memory().remove_region(added.guest_addr).unwrap();
    vm.connection.set_mem_table(&vm.guest.memory().regions()).unwrap();
    bed.ping(&mut vm, 100);
    assert_eq!(bed.status().attached.unwrap().memory.len(), 3);
    assert_eq!(bed.status().attach_count, 1, "never detached");
    assert_eq!(bed.status().tx.unwrap().next_avail, 900);
}

#[test]
fn a_ring_whose_memory_vanishes_rests_and_says_so_until_it_is_back() {
    let bed = Bed::server();
    let config = VmConfig { start: Start { memory: Some(MemoryMessages::Slots), ..Start::default() }, ..small() };
    let mut vm = bed.vm(&config);
    bed.ping(&mut vm, 30);
    let region = vm.guest.memory().regions().remove(0);
    vm.connection.remove_region(&region).unwrap();
    let status = bed.status();
    assert!(status.rx.is_none() && status.tx.is_none());
    let trouble = status.attached.unwrap().tx_trouble.unwrap();
    assert!(trouble.starts_with("the tx ring cannot run: its descriptor table at front-end address 0x"), "{trouble}");
    assert!(trouble.ends_with("is outside of the guest's memory"), "{trouble}");
    assert_eq!(bed.echo(), 0);
    vm.connection.add_region(&region).unwrap();
    assert_eq!(bed.status().attached.unwrap().tx_trouble, None);
    bed.ping(&mut vm, 30);
    assert_eq!(bed.status().tx.unwrap().next_avail, 60);
}

#[test]
fn dirty_logging_is_switched_under_running_rings() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 100);
    let log = DirtyLog::new(vm.guest.memory()).unwrap();
    vm.connection.set_log(&log).unwrap();
    bed.ping(&mut vm, 10);
    assert!(log.dirty_pages().is_empty(), "a log alone does not log");
    assert!(!bed.status().attached.unwrap().logging);

    vm.connection.set_logging(&vm.guest, true).unwrap();
    assert!(bed.status().attached.unwrap().logging);
    log.clear();
    bed.ping(&mut vm, 10);
    let (rx, tx) = (vm.guest.rx().ring().addr(), vm.guest.tx().ring().addr());
    assert!(log.is_dirty(rx.used) && log.is_dirty(tx.used), "used rings");
    assert!(log.dirty_pages().len() > 2, "and receive buffers");
    assert!(!log.is_dirty(tx.avail), "the device does not store there");

    vm.connection.set_logging(&vm.guest, false).unwrap();
    log.clear();
    bed.ping(&mut vm, 10);
    assert!(log.dirty_pages().is_empty());
    assert_eq!(bed.status().tx.unwrap().next_avail, 130, "positions were never reset");
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
    let Event::TxStarted(Some(first)) = bed.events.all()[1] else { panic!("{:?}", bed.events.all()) };
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

#[test]
fn resets() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 5);
    vm.connection.reset_device().unwrap();
    let status = bed.status();
    assert!(status.tx.is_none() && status.rx.is_none());
    let attached = status.attached.unwrap();
    assert_eq!((attached.features, attached.memory.len()), (None, 1));
    vm.guest.reset(small().features);
    vm.connection.start(&vm.guest, &Start::default()).unwrap();
    bed.ping(&mut vm, 5);

    let flags = raw::VERSION | raw::NEED_REPLY;
    raw::send_bytes(vm.connection.stream(), &raw::message(FrontendReq::RESET_OWNER, flags, &[]), &[]).unwrap();
    assert_eq!(raw::recv(vm.connection.stream()).unwrap().u64(), 0);
    assert!(bed.status().tx.is_none());
    vm.connection.start(&vm.guest, &Start { memory: None, ..Start::default() }).unwrap();
    bed.ping(&mut vm, 5);
    assert_eq!(bed.status().attach_count, 1);
}

/// An obsolete message without use that the specification still has.
#[test]
fn a_log_descriptor_is_accepted_and_closed() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let error = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    for flags in [raw::VERSION | raw::NEED_REPLY, raw::VERSION] {
        raw::send_bytes(vm.connection.stream(), &raw::message(FrontendReq::SET_LOG_FD, flags, &[]), &[error.as_fd()]).unwrap();
        if flags != raw::VERSION {
            let reply = raw::recv(vm.connection.stream()).unwrap();
            assert_eq!((reply.request, reply.flags, reply.u64()), (FrontendReq::SET_LOG_FD as u32, raw::VERSION | raw::REPLY, 0));
        }
    }
    vm.connection.sync().unwrap();
    bed.ping(&mut vm, 1);
}

#[test]
fn a_device_goes_on_with_what_another_one_left() {
    let mut old = Bed::server();
    assert!(old.device().export().is_none(), "nobody is attached");
    let config = VmConfig { memory: Some(MemoryConfig::split(2, small().guest.memory_needed())), ..small() };
    let mut vm = old.vm(&config);
    let log = DirtyLog::new(vm.guest.memory()).unwrap();
    vm.connection.set_log(&log).unwrap();
    vm.connection.set_logging(&vm.guest, true).unwrap();
    old.ping(&mut vm, 100);

    let exported = old.device().export().unwrap();
    assert_eq!(exported.state.rings.each_ref().map(|ring| ring.position), [100, 100]);
    // Positions move on after an export: the used index in guest memory is what counts.
    old.ping(&mut vm, 23);
    old.stop();
    assert!(!vm.connection.is_closed(), "a copy of the connection is still open");
    vm.guest.send(&[9; 60], NetHeader::default()).unwrap(); // while nobody is there

    let mut new = old.successor();
    new.resume(exported.connection, exported.state).unwrap();
    assert_eq!(new.echo(), 1);
    assert_eq!(vm.guest.recv().unwrap().unwrap().1, [9; 60]);
    new.ping(&mut vm, 300);
    new.events.wait_attached(1);
    let status = new.status();
    assert_eq!((status.tx.unwrap().next_avail, status.rx.unwrap().next_avail), (424, 424));
    let attached = status.attached.unwrap();
    assert_eq!(attached.features, Some(config.features.with(Features::PROTOCOL_FEATURES).with(Features::LOG_ALL)));
    assert!(attached.logging);
    assert_eq!(attached.memory.len(), 2);
    log.clear();
    new.ping(&mut vm, 1);
    assert!(log.is_dirty(vm.guest.tx().ring().addr().used));
    // The front end's own control messages go on too: acknowledged, and with protocol features in force.
    let region = vm.guest.memory().add_region(None, 1 << 20).unwrap();
    vm.connection.add_region(&region).unwrap();
    assert_eq!(vm.connection.queue_num().unwrap(), 2);
    assert_eq!(vm.restart().unwrap(), [425, 425]);
    new.ping(&mut vm, 10);
    let _again = new.device().export().unwrap();
    drop(vm);
    assert_eq!(new.events.detached(1), "the front end closed the connection");
    // And then as any other.
    let mut vm = new.vm(&small());
    new.ping(&mut vm, 10);
}

#[test]
fn a_state_is_checked_like_messages() {
    let mut old = Bed::server();
    let vm = old.vm(&small());
    type Break = fn(&mut DeviceState);
    let break_it: [(&str, Break); 6] = [
        ("not offered", |state| state.features = Some(Features(1 << 22))),
        ("not offered", |state| state.protocol_features = Some(1 << 9)),
        ("power of two", |state| state.rings[0].size = Some(1000)),
        ("not an eventfd", |state| state.rings[1].call = Some(std::fs::File::open("/dev/null").unwrap().into())),
        ("its file", |state| state.regions[0].size = 1 << 30),
        ("regular file", |state| state.regions[0].file = std::fs::File::open("/dev/null").unwrap().into()),
    ];
    let mut exported: Vec<_> = break_it.iter().map(|_| old.device().export().unwrap()).collect();
    old.stop();
    for (expected, break_it) in break_it {
        let mut exported = exported.pop().unwrap();
        break_it(&mut exported.state);
        let mut new = old.successor();
        let refused = new.resume(exported.connection, exported.state).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        assert!(new.port.status(Queue::Tx).is_none() && new.port.status(Queue::Rx).is_none());
        // What was announced was taken back.
        let announced = new.events.all();
        assert_eq!(announced.len() % 2, 0, "{announced:?}");
    }
    assert!(vm.connection.wait_closed(WAIT));
}

#[test]
fn truncated_memory_detaches_when_a_worker_says_so() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 5);
    bed.device().poke(); // for nothing
    vm.connection.sync().unwrap();
    bed.ping(&mut vm, 5);
    let file = vm.guest.memory().regions().remove(0).file;
    rustix::fs::ftruncate(&*file, 0).unwrap();
    let poisoned = bed.port.tx().as_mut().map(|tx| {
        tx.available();
        tx.poisoned()
    });
    assert_eq!(poisoned, Some(true));
    bed.device().poker().poke();
    assert_eq!(bed.events.detached(1), "guest memory was truncated");
    std::mem::forget(vm); // its memory is gone: nothing of it may be touched
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 5);
}

#[test]
fn one_front_end_at_a_time_in_the_order_they_came() {
    let bed = Bed::server();
    let mut first = bed.vm(&small());
    let second = std::thread::spawn({
        let path = bed.path.clone();
        move || Vm::connect(path, &small(), WAIT).unwrap()
    });
    control_support::eventually("the second in the queue", || bed.status().others_waiting);
    bed.ping(&mut first, 100);
    assert_eq!(bed.status().attach_count, 1);
    drop(first);
    let mut second = second.join().unwrap();
    bed.ping(&mut second, 100);
    assert!(!bed.status().others_waiting);
    assert_eq!(bed.status().attach_count, 2);
}

#[test]
fn who_says_nothing_gives_way() {
    let bed = Bed::server();
    let silent = bed.connect();
    let start = Instant::now();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 10);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(silent.is_closed());
    assert_eq!(bed.status().last_detach.unwrap().reason, "the peer said nothing, and another front end was waiting");
    assert_eq!(bed.events.all()[0], Event::Attached);
    assert!(!bed.events.all().iter().any(|e| matches!(e, Event::Detached(_))), "nobody heard of the silent one");
    // Somebody who has spoken stays, even without rings.
    drop(vm);
    let mut speaker = bed.connect();
    speaker.sync().unwrap();
    let _waiting = bed.connect();
    control_support::eventually("the second in the queue", || bed.status().others_waiting);
    std::thread::sleep(Duration::from_millis(1500)); // longer than a silent one would have lasted
    speaker.sync().unwrap();
}

#[test]
fn stopping_is_prompt_whatever_goes_on() {
    let timed = |mut bed: Bed, what: &str| {
        let start = Instant::now();
        bed.stop();
        assert!(start.elapsed() < PROMPT, "{what}: {:?}", start.elapsed());
    };
    timed(Bed::server(), "nobody came");
    timed(Bed::new(Role::Client), "nobody listens");
    let bed = Bed::server();
    let _vm = bed.vm(&small());
    timed(bed, "attached");
    let bed = Bed::server();
    let connection = bed.connect();
    raw::send_bytes(connection.stream(), &raw::header(1, raw::VERSION, 0)[..5], &[]).unwrap();
    std::thread::sleep(Duration::from_millis(50)); // it is in the middle of the message now, or will be
    timed(bed, "half a message");
    // Answers that nobody reads.
    let bed = Bed::server();
    let connection = bed.connect();
    connection.stream().set_nonblocking(true).unwrap();
    let ask = raw::message(FrontendReq::GET_FEATURES, raw::VERSION, &[]);
    while raw::send_bytes(connection.stream(), &ask, &[]).is_ok() {}
    timed(bed, "unread answers");
}

#[test]
fn a_client_comes_within_100_ms_and_again_and_again() {
    let bed = Bed::new(Role::Client);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(30));
        let mut vm = bed.vm(&small());
        bed.ping(&mut vm, 10);
    }
    control_support::eventually("a reason", || bed.status().trouble.is_some());
    assert!(bed.status().trouble.unwrap().starts_with("cannot connect to the socket: "));
    let listener = butterfly_vhost::driver::Listener::bind(&bed.path).unwrap();
    let start = Instant::now();
    let connection = listener.accept(WAIT).unwrap();
    assert!(start.elapsed() < Duration::from_millis(100) + PROMPT, "{:?}", start.elapsed());
    drop(connection);
    // A server that closes at once is not asked without a pause.
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < Duration::from_secs(1) {
        drop(listener.accept(WAIT).unwrap());
        count += 1;
    }
    assert!((5..60).contains(&count), "{count} connections in a second");
}

/// QEMU with `queues=2` speaks of rings that no guest will use, as VIRTIO_NET_F_MQ is not offered.
#[test]
fn what_is_said_of_a_second_pair_of_rings_is_ignored_until_it_is_to_run() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    for index in [2, 3] {
        vm.connection.set_vring_call(index, Some(call.as_fd())).unwrap();
        vm.connection.set_vring_err(index, Some(call.as_fd())).unwrap();
        let flags = raw::VERSION | raw::NEED_REPLY;
        let enable = raw::message(FrontendReq::SET_VRING_ENABLE, flags, &raw::vring_state(index as u32, 0));
        raw::send_bytes(vm.connection.stream(), &enable, &[]).unwrap();
        assert_eq!(raw::recv(vm.connection.stream()).unwrap().u64(), 0);
    }
    assert_eq!(reads(&call), 0);
    bed.ping(&mut vm, 10);
    vm.connection.set_vring_kick(2, None).unwrap_err();
    assert_eq!(
        bed.events.detached(1),
        "the front end's SET_VRING_KICK was refused: there is no ring 2: a vnic has rings 0 (rx) and 1 (tx)"
    );
}

#[test]
fn an_idle_device_uses_no_processor() {
    let mut bed = Bed::server();
    bed.stop();
    // Found by its name among the threads of other tests.
    bed.device = Some(Device::start(DeviceConfig { name: "is-idle".to_owned(), ..bed.config() }).unwrap());
    let vm = bed.vm(&small());
    let named = |task: &Path| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "vu-is-idle");
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let task = tasks.find(|task| named(task)).expect("a control thread");
    let switches = || {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches:"));
        lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    // Asleep again after the last message.
    control_support::eventually("sleep", || std::fs::read_to_string(task.join("stat")).unwrap().contains(") S "));
    let before = switches();
    std::thread::sleep(Duration::from_millis(300));
    assert!(switches() <= before + 1, "it was woken {} times", switches() - before);
    drop(vm);
}

#[test]
fn kick_and_call_descriptors_must_be_eventfds() {
    let bed = Bed::server();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut detached = 0;
    for fd in [pipe.as_fd(), epoll.as_fd(), null.as_fd(), bed.directory_fd().as_fd()] {
        for (what, request) in
            [("kick", FrontendReq::SET_VRING_KICK), ("call", FrontendReq::SET_VRING_CALL), ("error", FrontendReq::SET_VRING_ERR)]
        {
            let connection = bed.connect();
            raw::send_bytes(connection.stream(), &raw::message(request, raw::VERSION, &raw::words(&[1])), &[fd]).unwrap();
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

impl Bed {
    fn directory_fd(&self) -> std::fs::File {
        std::fs::File::open(self.directory.path()).unwrap()
    }
}
