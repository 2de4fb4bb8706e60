//! Negotiation by a well-behaved front end, and memory and logs that change under running rings.

mod control_support;

use std::os::fd::AsFd;

use butterfly_guest_driver::{
    Connection, DirtyLog, GuestConfig, MemoryConfig, MemoryMessages, ProtocolFeatures, Start,
    VmConfig,
    raw::{self, FrontendReq},
};
use butterfly_vhost::{
    control::{Device, DeviceConfig, Role},
    net::Features,
    port::Queue,
};
use control_support::{Bed, WAIT};
use rustix::event::{EventfdFlags, eventfd};

fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(256), ..VmConfig::default() }
}

#[test]
fn frames_pass_in_both_roles_and_the_status_tells_it() {
    for role in [Role::Server, Role::Client] {
        let mut bed = Bed::new(role);
        assert!(bed.status().attached.is_none());
        let mut vm = bed.vm(&VmConfig::default());
        bed.ping(&mut vm, 300);
        let status = bed.status();
        assert_eq!(status.socket, Some((role, bed.path.clone())));
        assert_eq!(status.offered, Features::OFFERED);
        assert_eq!((status.attach_count, status.last_detach.as_ref()), (1, None));
        let attached = status.attached.as_ref().unwrap();
        let wanted = VmConfig::default().features.with(Features::PROTOCOL_FEATURES);
        assert_eq!(attached.features, Some(wanted));
        assert_eq!(attached.declined(), Features::OFFERED.without(wanted));
        assert_eq!(attached.peer_pid, Some(std::process::id()));
        assert_eq!(
            attached.protocol_feature_names(),
            ["mq", "log-shmfd", "rarp", "reply-ack", "reset-device", "configure-mem-slots"]
        );
        assert_eq!(attached.memory.len(), 1);
        assert_eq!(attached.troubles, []);
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

/// A device accepts no offload that it does not offer.
#[test]
fn offloads_can_be_kept_back() {
    let mut bed = Bed::server();
    bed.stop();
    let offered = Features::OFFERED.without(Features::OFFLOADS);
    bed.device = Some(Device::start(DeviceConfig { offered, ..bed.config() }).unwrap());
    let mut connection = bed.connect();
    connection.negotiate(Features(u64::MAX), ProtocolFeatures::all()).unwrap();
    assert_eq!(connection.offered(), offered);
    assert!(
        offered.has(Features::MRG_RXBUF.with(Features::VERSION_1)) && !offered.has(Features::CSUM)
    );
    assert!(connection.set_features(offered.with(Features::CSUM)).is_err());
    assert!(connection.wait_closed(WAIT), "checksums were not offered");
    assert!(bed.events.detached(1).contains("these features were not offered: csum"));
    let vm = bed.vm(&small());
    let status = bed.status();
    assert_eq!(
        (status.offered, status.attached.unwrap().declined().has(Features::CSUM)),
        (offered, false)
    );
    drop(vm);
}

#[test]
fn what_is_offered() {
    let bed = Bed::server();
    let mut connection = bed.connect();
    connection.negotiate(Features(u64::MAX), ProtocolFeatures::all()).unwrap();
    assert_eq!(connection.offered(), Features::OFFERED);
    assert_eq!(connection.protocol_offered(), Connection::usual_protocol());
    assert_eq!(connection.queue_num().unwrap(), 16, "front ends count queues or pairs of them");
    assert!(connection.max_mem_slots().unwrap() >= 32);
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
        assert_eq!(
            bed.status().attached.unwrap().features,
            Some(features.with(Features::PROTOCOL_FEATURES))
        );
    }
    assert_eq!(bed.status().attach_count, 1);
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
    let config = VmConfig {
        start: Start { memory: Some(MemoryMessages::Slots), ..Start::default() },
        ..small()
    };
    let mut vm = bed.vm(&config);
    bed.ping(&mut vm, 30);
    let region = vm.guest.memory().regions().remove(0);
    vm.connection.remove_region(&region).unwrap();
    let status = bed.status();
    assert!(status.rx.is_none() && status.tx.is_none());
    let trouble = status.attached.unwrap().trouble(Queue::TX).unwrap().to_owned();
    assert!(
        trouble.starts_with("the tx ring cannot run: its descriptor table at front-end address 0x"),
        "{trouble}"
    );
    assert!(trouble.ends_with("is outside of the guest's memory"), "{trouble}");
    assert_eq!(bed.echo(), 0);
    vm.connection.add_region(&region).unwrap();
    assert_eq!(bed.status().attached.unwrap().troubles, []);
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
    raw::send_bytes(
        vm.connection.stream(),
        &raw::message(FrontendReq::RESET_OWNER, flags, &[]),
        &[],
    )
    .unwrap();
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
        raw::send_bytes(
            vm.connection.stream(),
            &raw::message(FrontendReq::SET_LOG_FD, flags, &[]),
            &[error.as_fd()],
        )
        .unwrap();
        if flags != raw::VERSION {
            let reply = raw::recv(vm.connection.stream()).unwrap();
            assert_eq!(
                (reply.request, reply.flags, reply.u64()),
                (FrontendReq::SET_LOG_FD as u32, raw::VERSION | raw::REPLY, 0)
            );
        }
    }
    vm.connection.sync().unwrap();
    bed.ping(&mut vm, 1);
}
