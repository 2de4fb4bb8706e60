//! Front ends that come, wait, leave and return; devices that stop, and that go on where another
//! one left.

mod control_support;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use butterfly_guest_driver::{
    Connection, DirtyLog, Guest, GuestConfig, Listener, Memory, MemoryConfig, MemoryMessages,
    ProtocolFeatures, Start, Vm, VmConfig, positions,
    raw::{self, FrontendReq},
};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceState, Name, Named, Role},
    net::{Features, NetHeader},
    port::Queue,
};
use control_support::{Bed, Event, PROMPT, WAIT, eventually};

fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(256), ..VmConfig::default() }
}

#[test]
fn a_device_goes_on_with_what_another_one_left() {
    let mut old = Bed::server();
    assert!(old.device().export().is_none(), "nobody is attached");
    let config =
        VmConfig { memory: Some(MemoryConfig::split(2, small().guest.memory_needed())), ..small() };
    let mut vm = old.vm(&config);
    let log = DirtyLog::new(vm.guest.memory()).unwrap();
    vm.connection.set_log(&log).unwrap();
    vm.connection.set_logging(&vm.guest, true).unwrap();
    old.ping(&mut vm, 100);

    let exported = old.device().export().unwrap();
    assert_eq!(
        exported.state.rings.iter().map(|ring| ring.position).collect::<Vec<_>>(),
        [100, 100]
    );
    // Positions move on after an export: the used index in guest memory is what counts.
    old.ping(&mut vm, 23);
    old.stop();
    assert!(!vm.connection.is_closed(), "a copy of the connection is still open");
    vm.guest.send(&[9; 60], NetHeader::default()).unwrap(); // while no front end is there

    let mut new = old.successor();
    new.resume(exported.connection, exported.state).unwrap();
    assert_eq!(new.echo(), 1);
    assert_eq!(vm.guest.recv().unwrap().unwrap().1, [9; 60]);
    new.ping(&mut vm, 300);
    new.events.wait_attached(1);
    let status = new.status();
    assert_eq!((status.tx.unwrap().next_avail, status.rx.unwrap().next_avail), (424, 424));
    let attached = status.attached.unwrap();
    assert_eq!(
        attached.features,
        Some(config.features.with(Features::PROTOCOL_FEATURES).with(Features::LOG_ALL))
    );
    assert!(attached.logging);
    assert_eq!(attached.memory.len(), 2);
    log.clear();
    new.ping(&mut vm, 1);
    assert!(log.is_dirty(vm.guest.tx().ring().addr().used));
    // The front end's own control messages go on too: acknowledged, and with protocol features in
    // force.
    let region = vm.guest.memory().add_region(None, 1 << 20).unwrap();
    vm.connection.add_region(&region).unwrap();
    assert_eq!(vm.connection.queue_num().unwrap(), 16);
    assert_eq!(vm.restart().unwrap(), positions([425, 425]));
    new.ping(&mut vm, 10);
    let _again = new.device().export().unwrap();
    drop(vm);
    assert_eq!(new.events.detached(1), "the front end closed the connection");
    // And then as any other.
    let mut vm = new.vm(&small());
    new.ping(&mut vm, 10);
}

/// The guest's firmware still runs, say: there are protocol features already, and no features yet.
#[test]
fn a_front_end_that_is_half_way_goes_on_too() {
    let mut old = Bed::server();
    let mut connection = old.connect();
    let features = connection.negotiate(small().features, Connection::usual_protocol()).unwrap();
    connection.sync().unwrap();
    let exported = old.device().export().unwrap();
    assert_eq!((exported.state.features, exported.state.rings[1].kick.is_none()), (None, true));
    old.stop();
    let mut new = old.successor();
    new.resume(exported.connection, exported.state).unwrap();
    let memory = Memory::new(&MemoryConfig::new(small().guest.memory_needed())).unwrap();
    let mut guest = Guest::new(&memory, features, &small().guest).unwrap();
    // Every message of this is acknowledged: the front end would wait for ever.
    connection
        .start(&guest, &Start { memory: Some(MemoryMessages::Slots), ..Start::default() })
        .unwrap();
    guest.send(&[1; 60], NetHeader::default()).unwrap();
    assert_eq!(new.echo(), 1);
    assert_eq!(guest.recv().unwrap().unwrap().1, [1; 60]);
}

#[test]
fn a_state_is_checked_like_messages() {
    let mut old = Bed::server();
    let vm = old.vm(&small());
    type Break = fn(&mut DeviceState);
    let break_it: [(&str, Break); 6] = [
        ("not offered", |state| state.features = Some(Features(1 << 23))),
        ("not offered", |state| state.protocol_features = Some(1 << 9)),
        ("power of two", |state| state.rings[0].size = Some(1000)),
        ("not an eventfd", |state| {
            let it = std::fs::File::open("/dev/null").unwrap().into();
            state.rings[1].call = Some(Named { name: Name::default(), it })
        }),
        ("its file", |state| state.regions[0].it.size = 1 << 30),
        ("regular file", |state| {
            state.regions[0].it.file = std::fs::File::open("/dev/null").unwrap().into()
        }),
    ];
    let mut exported: Vec<_> = break_it.iter().map(|_| old.device().export().unwrap()).collect();
    old.stop();
    for (expected, break_it) in break_it {
        let mut exported = exported.pop().unwrap();
        break_it(&mut exported.state);
        let mut new = old.successor();
        let refused = new.resume(exported.connection, exported.state).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        assert!(new.port.status(Queue::TX).is_none() && new.port.status(Queue::RX).is_none());
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
fn a_truncated_dirty_log_detaches_too() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let log = DirtyLog::new(vm.guest.memory()).unwrap();
    vm.connection.set_log(&log).unwrap();
    vm.connection.set_logging(&vm.guest, true).unwrap();
    bed.ping(&mut vm, 5);
    rustix::fs::ftruncate(&*log.region().file, 0).unwrap();
    bed.ping(&mut vm, 5); // marks go nowhere now, and frames still pass
    assert!(bed.port.poisoned());
    bed.device().poke();
    assert_eq!(bed.events.detached(1), "the dirty log was truncated");
}

#[test]
fn one_front_end_at_a_time_in_the_order_they_came() {
    let bed = Bed::server();
    let mut first = bed.vm(&small());
    let second = std::thread::spawn({
        let path = bed.path.clone();
        move || Vm::connect(path, &small(), WAIT).unwrap()
    });
    eventually("the second in the queue", || bed.status().others_waiting);
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
    assert_eq!(
        bed.status().last_detach.unwrap().reason,
        "the peer said nothing, and another front end was waiting"
    );
    assert_eq!(bed.events.all()[0], Event::Attached);
    assert!(
        !bed.events.all().iter().any(|e| matches!(e, Event::Detached(_))),
        "nobody heard of the silent one"
    );
    // A front end that has spoken stays, even without rings.
    drop(vm);
    let mut speaker = bed.connect();
    speaker.sync().unwrap();
    let _waiting = bed.connect();
    eventually("the second in the queue", || bed.status().others_waiting);
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
    // the thread is in the middle of the message now, or will be
    std::thread::sleep(Duration::from_millis(50));
    timed(bed, "half a message");
    // Answers that the front end does not read.
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
    eventually("a reason", || bed.status().trouble.is_some());
    assert!(bed.status().trouble.unwrap().starts_with("cannot connect to the socket: "));
    let listener = Listener::bind(&bed.path).unwrap();
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

#[test]
fn an_idle_device_uses_no_processor() {
    let mut bed = Bed::server();
    bed.stop();
    // Found by its name among the threads of other tests.
    bed.device =
        Some(Device::start(DeviceConfig { name: "is-idle".to_owned(), ..bed.config() }).unwrap());
    let vm = bed.vm(&small());
    let named = |task: &Path| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "vu-is-idle")
    };
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let task = tasks.find(|task| named(task)).expect("a control thread");
    let switches = || {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches:"));
        lines
            .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    // Asleep again after the last message.
    eventually("sleep", || std::fs::read_to_string(task.join("stat")).unwrap().contains(") S "));
    let before = switches();
    std::thread::sleep(Duration::from_millis(300));
    assert!(switches() <= before + 1, "it was woken {} times", switches() - before);
    drop(vm);
}

/// Shows a live migration as the target host sees it: the front end connects long before the VM
/// arrives.
#[test]
fn a_machine_that_comes_from_another_device_is_announced_and_no_other_is() {
    let (old, new) = (Bed::server(), Bed::server());
    let announced =
        |bed: &Bed| bed.events.all().iter().filter(|event| **event == Event::Announce).count();
    let mut vm = old.vm(&small());
    old.ping(&mut vm, 10);
    let mut connection = Connection::connect(&new.path, WAIT).unwrap();
    connection.sync().unwrap();
    new.events.wait_attached(1);
    let machine = vm.detach().unwrap();
    assert_eq!(
        (announced(&old), announced(&new)),
        (0, 0),
        "one began here, the other has not come yet"
    );
    let mut vm = machine.reattach(connection).unwrap();
    new.ping(&mut vm, 10);
    assert_eq!(announced(&new), 1);
    // Switching logging moves the rings, and causes no event.
    vm.connection.set_logging(&vm.guest, false).unwrap();
    new.ping(&mut vm, 10);
    assert_eq!(announced(&new), 1);
    // One that boots begins anew.
    let mut machine = vm.detach().unwrap();
    machine.reboot();
    let mut vm = machine.reattach(Connection::connect(&new.path, WAIT).unwrap()).unwrap();
    new.ping(&mut vm, 10);
    assert_eq!(announced(&new), 1);
}

/// QEMU asks for it after a migration if the guest cannot announce itself.
#[test]
fn a_front_end_may_have_its_machine_announced() {
    let rarp = |protocol, body: &[u8]| {
        let bed = Bed::server();
        let mut connection = Connection::connect(&bed.path, WAIT).unwrap();
        connection.negotiate(Features::VERSION_1, protocol).unwrap();
        raw::send_bytes(
            connection.stream(),
            &raw::message(FrontendReq::SEND_RARP, raw::VERSION, body),
            &[],
        )
        .unwrap();
        (bed, connection)
    };
    let usual = Connection::usual_protocol();
    let (bed, mut connection) = rarp(usual, &raw::words(&[0x0302_0100_5452]));
    bed.events.wait("an announcement", |events| events.contains(&Event::Announce).then_some(()));
    assert!(connection.queue_num().is_ok(), "it goes on");
    let without = usual & !ProtocolFeatures::RARP;
    for (protocol, body, why) in [(without, 8, "it was not negotiated"), (usual, 6, "in 8 bytes")] {
        let (bed, _connection) = rarp(protocol, &[0; 8][..body]);
        let reason = bed.events.detached(1);
        assert!(reason.contains("SEND_RARP was refused") && reason.contains(why), "{reason}");
        assert!(!bed.events.all().contains(&Event::Announce));
    }
}
