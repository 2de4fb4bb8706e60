//! Several pairs of queues: set up, grown and shrunk by the guest, and taken up by a successor.

mod control_support;

use butterfly_guest_driver::{
    Guest, GuestConfig, Memory, MemoryConfig, MemoryMessages, Start, Vm, VmConfig,
};
use butterfly_vhost::{
    control::{Device, DeviceConfig, Exported},
    net::{Features, NetHeader},
    port::{Queue, QueueKind},
};
use control_support::{Bed, Event, echo_pair};

const PAIRS: usize = 16;

fn many(pairs: usize) -> VmConfig {
    let usual = VmConfig::default();
    VmConfig {
        features: usual.features.with(Features::MQ),
        pairs,
        guest: GuestConfig { rx_size: 64, tx_size: 64, ..usual.guest },
        ..usual
    }
}

/// Sends a frame by a pair, has it echoed there, and checks what came back.
fn ping(bed: &Bed, vm: &mut Vm, pair: usize, text: &str) {
    send(vm, pair, text);
    assert_eq!(echo_pair(bed.port.pair(pair).unwrap()), 1, "pair {pair}: {text}");
    assert_eq!(received(vm, pair), [text]);
}

fn send(vm: &mut Vm, pair: usize, text: &str) {
    let mut frame = vec![pair as u8; 60];
    frame[10..10 + text.len()].copy_from_slice(text.as_bytes());
    frame[9] = text.len() as u8;
    vm.pair(pair).send(&frame, NetHeader::default()).unwrap();
}

fn received(vm: &mut Vm, pair: usize) -> Vec<String> {
    let mut all = Vec::new();
    while let Some((_, frame)) = vm.pair(pair).recv().unwrap() {
        assert_eq!(frame[0], pair as u8);
        all.push(String::from_utf8(frame[10..10 + usize::from(frame[9])].to_vec()).unwrap());
    }
    all
}

fn started(bed: &Bed) -> usize {
    bed.events.all().iter().filter(|event| matches!(event, Event::TxStarted(_))).count()
}

#[test]
fn sixteen_pairs_run_and_each_has_its_own_frames() {
    let bed = Bed::server();
    let mut vm = bed.vm(&many(PAIRS));
    bed.events.wait_started(PAIRS);
    for pair in 0..PAIRS {
        ping(&bed, &mut vm, pair, "hello");
    }
    let status = bed.status();
    assert_eq!(status.further.len(), 2 * (PAIRS - 1));
    assert!(status.further.iter().all(|(_, ring)| ring.enabled && ring.used_idx == 1));
    assert_eq!(status.further.last().unwrap().0.to_string(), "tx ring of pair 15");
    // Memory that is taken away stops them all, another table moves them all.
    let positions = vm.restart().unwrap();
    assert_eq!(positions, [1; Queue::COUNT]);
    vm.connection.set_memory(&vm.guest.memory().clone(), MemoryMessages::Table).unwrap();
    for pair in (0..PAIRS).rev() {
        ping(&bed, &mut vm, pair, "again");
    }
    drop(vm);
    bed.events.detached(1);
    assert!(bed.status().further.is_empty());
    assert!((0..PAIRS).all(|pair| bed.port.pair(pair).unwrap().tx().is_none()));
}

#[test]
fn a_guest_grows_and_shrinks() {
    let bed = Bed::server();
    let mut vm = bed.vm(&many(4));
    for pairs in [4, 1, 3, 2, 4] {
        vm.use_pairs(pairs).unwrap();
        // What a ring that came back had held is gone.
        let stale: Vec<_> = bed.port.stale().collect();
        stale.iter().for_each(|pair| drop(bed.port.discard(*pair)));
        assert_eq!(bed.port.stale().collect::<Vec<_>>(), (pairs..4).collect::<Vec<_>>());
        for pair in 0..4 {
            if pair < pairs {
                ping(&bed, &mut vm, pair, "used");
            } else {
                send(&mut vm, pair, "not used");
                assert_eq!(echo_pair(bed.port.pair(pair).unwrap()), 0);
            }
        }
        let enabled = bed.status().further.iter().filter(|(_, ring)| ring.enabled).count();
        assert_eq!(enabled, 2 * (pairs - 1));
    }
    // A further ring that its guest gave up is looked at for half a second, not for ever.
    vm.use_pairs(2).unwrap();
    let mut looks = 0;
    while let Some(pair) = bed.port.stale().next() {
        assert!(pair >= 2);
        looks += 1;
        drop(bed.port.discard(pair));
    }
    assert_eq!(looks, 2 * 6);
    vm.use_pairs(4).unwrap();
    (2..4).for_each(|pair| ping(&bed, &mut vm, pair, "used"));
    // Each pair's transmit ring was announced once for each time that it was begun to be used.
    assert_eq!(started(&bed), 4 + 2 + 2 + 2);
}

/// Frames that were left in a ring which the guest gave up for a while are older than what it sent
/// by others since then.
#[test]
fn what_is_left_in_a_ring_is_not_sent_after_newer_frames() {
    let bed = Bed::server();
    let mut vm = bed.vm(&many(2));
    let pair = || bed.port.pair(1).unwrap();
    vm.use_pairs(1).unwrap();
    send(&mut vm, 1, "old");
    ping(&bed, &mut vm, 0, "new");
    vm.use_pairs(2).unwrap();
    send(&mut vm, 1, "waits");
    assert_eq!(echo_pair(pair()), 0, "first the old frame has to go");
    assert_eq!(bed.port.stale().collect::<Vec<_>>(), [1]);
    assert_eq!(bed.port.discard(1).unwrap().frames, 1);
    assert!(bed.port.stale().next().is_none());
    assert_eq!(echo_pair(pair()), 1);
    assert_eq!(received(&mut vm, 1), ["waits"]);
    ping(&bed, &mut vm, 1, "next");
    assert!(bed.port.discard(1).unwrap().frames == 0, "it is served");

    // While no ring is used, nothing is newer: a guest that stands still loses nothing.
    for index in 0..4 {
        vm.connection.enable(index, false).unwrap();
    }
    send(&mut vm, 1, "sent before it stood still");
    for index in (0..4).rev() {
        vm.connection.enable(index, true).unwrap();
    }
    assert_eq!(echo_pair(pair()), 1);
    assert_eq!(received(&mut vm, 1), ["sent before it stood still"]);

    // So does one whose rings are set up anew, as after a migration.
    vm.use_pairs(1).unwrap();
    send(&mut vm, 1, "in the ring");
    let positions = vm.stop().unwrap();
    vm.go_on(positions).unwrap();
    assert_eq!(echo_pair(pair()), 1);
    assert_eq!(received(&mut vm, 1), ["in the ring"]);

    // A ring that holds more than is given back at once rests until all are.
    let large = GuestConfig { rx_size: 64, tx_size: 2048, ..Default::default() };
    drop(vm);
    bed.events.detached(1);
    let mut vm = bed.vm(&VmConfig { guest: large, ..many(2) });
    vm.use_pairs(1).unwrap();
    (0..2000).for_each(|_| send(&mut vm, 1, "old"));
    vm.use_pairs(2).unwrap();
    send(&mut vm, 1, "new");
    assert_eq!(bed.port.discard(1).unwrap().frames, 1024);
    assert_eq!(echo_pair(pair()), 0);
    assert_eq!(bed.port.discard(1).unwrap().frames, 976);
    assert_eq!(echo_pair(pair()), 1);
    assert_eq!(received(&mut vm, 1), ["new"]);
    // One that is empty does not rest.
    vm.use_pairs(1).unwrap();
    vm.use_pairs(2).unwrap();
    ping(&bed, &mut vm, 1, "next");
}

#[test]
fn a_successor_goes_on_with_all_pairs() {
    let mut bed = Bed::server();
    let mut vm = bed.vm(&many(5));
    vm.use_pairs(3).unwrap();
    for pair in 0..3 {
        ping(&bed, &mut vm, pair, "before");
    }
    let Exported { connection, state } = bed.device().export().unwrap();
    assert_eq!(state.rings.len(), 10);
    assert_eq!(state.rings.iter().filter(|ring| ring.enabled == Some(true)).count(), 6);
    let mut new = bed.successor();
    for pair in 0..3 {
        send(&mut vm, pair, "between");
    }
    bed.stop();
    new.resume(connection, state).unwrap();
    for pair in 0..3 {
        assert_eq!(echo_pair(new.port.pair(pair).unwrap()), 1);
        assert_eq!(received(&mut vm, pair), ["between"]);
        ping(&new, &mut vm, pair, "after");
    }
    assert_eq!(new.status().further.len(), 8);
}

/// A ring of a further pair that cannot run does so for a reason of its own.
#[test]
fn one_pair_in_trouble_leaves_others_alone() {
    let bed = Bed::server();
    let mut vm = bed.vm(&many(3));
    let config = GuestConfig { rx_size: 64, tx_size: 64, ..GuestConfig::default() };
    let other = Memory::new(&MemoryConfig::new(config.memory_needed())).unwrap();
    let stranger = Guest::new(&other, vm.guest.features(), &config).unwrap();
    vm.connection.set_vring_addr(5, stranger.tx(), false).unwrap();
    let [(queue, why)] = &bed.status().attached.unwrap().troubles[..] else { panic!("one") };
    assert_eq!((queue.pair(), queue.kind()), (2, QueueKind::Tx));
    assert!(why.starts_with("the tx ring of pair 2 cannot run: its descriptor table"), "{why}");
    assert_eq!(bed.status().further.len(), 3);
    ping(&bed, &mut vm, 0, "fine");
    ping(&bed, &mut vm, 1, "fine");
    let tx = vm.further[1].tx();
    vm.connection.set_vring_addr(5, tx, false).unwrap();
    ping(&bed, &mut vm, 2, "back");
    assert_eq!(bed.status().attached.unwrap().troubles, []);
}

/// QEMU 7.2 adds and removes memory once for each pair of queues.
#[test]
fn memory_may_be_said_for_each_pair() {
    let bed = Bed::server();
    let start = Start { memory: Some(MemoryMessages::Slots), ..Start::default() };
    let mut vm = bed.vm(&VmConfig { start, ..many(3) });
    let regions = vm.guest.memory().regions();
    for _ in 0..3 {
        regions.iter().for_each(|region| vm.connection.add_region(region).unwrap());
    }
    let added = vm.guest.memory().add_region(None, 1 << 20).unwrap();
    for _ in 0..3 {
        vm.connection.add_region(&added).unwrap();
        vm.connection.set_features(vm.guest.features()).unwrap();
    }
    assert_eq!(bed.status().attached.unwrap().memory.len(), regions.len() + 1);
    for pair in 0..3 {
        ping(&bed, &mut vm, pair, "fine");
    }
    for _ in 0..3 {
        vm.connection.remove_region(&added).unwrap();
    }
    assert_eq!(bed.status().attached.unwrap().memory.len(), regions.len());
    // Another region at the same place is not the same one.
    let other = Memory::new(&MemoryConfig::new(added.size)).unwrap().regions().remove(0);
    vm.connection.add_region(&added).unwrap();
    let file = other.file.try_clone().unwrap();
    let wrong = butterfly_guest_driver::Region { file: file.into(), ..added };
    assert!(vm.connection.add_region(&wrong).is_err());
    assert!(bed.events.detached(1).contains("overlap"));
}

/// A device whose features were declared without VIRTIO_NET_F_MQ has one pair.
#[test]
fn without_the_feature_there_is_one_pair() {
    let mut bed = Bed::server();
    bed.stop();
    let offered = Features::OFFERED.without(Features::MQ);
    let config = DeviceConfig { offered, ..bed.config() };
    bed.device = Some(Device::start(config).unwrap());
    let mut vm = bed.vm(&many(1));
    assert_eq!(vm.connection.queue_num().unwrap(), 2);
    ping(&bed, &mut vm, 0, "one");
    vm.connection.set_vring_kick(2, None).unwrap_err();
    assert_eq!(
        bed.events.detached(1),
        "the front end's SET_VRING_KICK was refused: there is no ring 2: the last is 1"
    );
}
