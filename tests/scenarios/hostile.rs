//! A guest that breaks the rules harms only itself: its frames are named drops, or the daemon
//! detaches it with a reason. Two other guests that talk meanwhile lose nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use butterfly_guest_driver::{
    Buffer, Desc, GuestConfig, KickPolicy, MemoryConfig, Refill, Vm, VmConfig,
    ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE},
};
use butterfly_tests::{
    Host, Nic, PATIENCE, Show, Station, eventually,
    frames::{mac, numbered},
    station::{features, machine, usual},
    traffic::{Stream, exchange, streams},
};
use butterfly_vhost::net::{Features, NetHeader};
use rustix::fs::OFlags;

/// A host with two well-behaved guests, which share it with a hostile one.
struct Neighbours {
    host: Host,
    a: Station,
    b: Station,
    both: [Stream; 2],
}

impl Neighbours {
    fn new() -> Neighbours {
        let host = Host::new();
        let a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
        let b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
        let both = streams(&a, &b);
        Neighbours { host, a, b, both }
    }

    fn villain(&self, config: &VmConfig) -> Station {
        self.villain_in(1, config)
    }

    fn villain_in(&self, vni: u32, config: &VmConfig) -> Station {
        self.host.station(&Nic::bypass("villain", mac(66), vni), config)
    }

    /// Asserts that the two guests can talk and lose nothing.
    #[track_caller]
    fn are_fine(&mut self) {
        exchange(&mut self.a, &mut self.b, &mut self.both, &[60, 1514, 9000, 60, 200].repeat(20));
        for id in ["a", "b"] {
            let show = self.host.show(id);
            assert!(show.dropped().is_empty(), "{id}: {:?}", show.dropped());
        }
    }

    /// Sends a frame from guest a to the villain.
    fn send_villain(&mut self, number: u64) -> Vec<u8> {
        let frame = numbered(mac(1), mac(66), 9, number, 200);
        self.a.send(&frame);
        frame
    }
}

#[test]
fn a_guest_that_stops_reading() {
    let mut neighbours = Neighbours::new();
    let mut config = usual();
    config.guest = GuestConfig { refill: Refill::Manually, ..config.guest };
    let mut villain = neighbours.villain(&config);
    for number in 0..1000 {
        neighbours.send_villain(number);
        if number % 100 == 0 {
            neighbours.are_fine();
        }
    }
    neighbours.host.settle(&mut [&mut neighbours.a]);
    let show = neighbours.host.show("villain");
    assert_eq!((show.delivered.0, show.all_drops(), show.drops("ring-full")), (256, 744, 744));
    // The villain wakes up: it has the first frames, and then goes on.
    assert_eq!(villain.pending().len(), 256);
    villain.vm.guest.refill(usize::MAX);
    let frame = neighbours.send_villain(1000);
    villain.expect(&frame);
}

/// A guest kicks both rings without pause, with and without frames to send.
#[test]
fn a_storm_of_kicks() {
    let mut neighbours = Neighbours::new();
    let mut villain = neighbours.villain(&usual());
    let stop = Arc::new(AtomicBool::new(false));
    let storms: Vec<_> = [villain.vm.guest.tx().kick_fd(), villain.vm.guest.rx().kick_fd()]
        .map(|fd| {
            let (fd, stop) = (fd.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = rustix::io::write(&*fd, &1u64.to_ne_bytes());
                }
            })
        })
        .into();
    for number in 0..20 {
        neighbours.are_fine();
        let frame = neighbours.send_villain(number);
        villain.expect(&frame);
        let frame = numbered(mac(66), mac(2), 9, number, 100);
        villain.send(&frame);
        neighbours.b.expect(&frame);
    }
    stop.store(true, Ordering::Relaxed);
    storms.into_iter().for_each(|storm| storm.join().unwrap());
}

#[test]
fn descriptors_that_would_block() {
    let mut neighbours = Neighbours::new();
    let mut config = usual();
    config.guest.interrupts = false;
    let mut villain = neighbours.villain(&config);
    for fd in [0, 1]
        .map(|queue| villain.vm.guest.queue(queue))
        .iter()
        .flat_map(|queue| [queue.kick_fd(), queue.call_fd()])
    {
        let mut count = [0; 8];
        let _ = rustix::io::read(&**fd, &mut count);
        rustix::io::write(&**fd, &0xffff_ffff_ffff_fffe_u64.to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&**fd, OFlags::empty()).unwrap();
    }
    villain.vm.guest.tx_mut().set_kick_policy(KickPolicy::Never);
    for number in 0..100 {
        // The villain asks for an interrupt each time, and its eventfd is full.
        villain.vm.guest.rx_mut().arm_interrupt();
        let frame = neighbours.send_villain(number);
        villain.expect(&frame);
        if number % 10 == 0 {
            neighbours.are_fine();
        }
    }
    // The kick descriptor was full, too. After a read, the guest can kick again.
    let mut count = [0; 8];
    rustix::io::read(&**villain.vm.guest.tx().kick_fd(), &mut count).unwrap();
    let frame = numbered(mac(66), mac(2), 9, 1, 100);
    villain.send(&frame);
    villain.vm.guest.tx_mut().kick();
    neighbours.b.expect(&frame);
    neighbours.are_fine();
}

/// If the available index jumps ahead, the daemon leaves the ring alone until it is set up anew.
#[test]
fn an_index_that_jumps() {
    let mut neighbours = Neighbours::new();
    for jump in [257, 300, 0x8000, 0xffff] {
        for queue in ["rx", "tx"] {
            let mut villain = neighbours.villain(&usual());
            let index = {
                let guest = &villain.vm.guest;
                let ring = if queue == "rx" { guest.rx().ring() } else { guest.tx().ring() };
                // More than the ring holds, counted from the switch's position.
                let used = ring.used_idx().load(Ordering::Acquire);
                ring.avail_idx().store(used.wrapping_add(jump), Ordering::Release);
                used.wrapping_add(jump)
            };
            if queue == "tx" {
                villain.vm.guest.tx_mut().kick()
            } else {
                drop(neighbours.send_villain(1))
            }
            neighbours.host.settle(&mut [&mut neighbours.a]);
            let broken = |host: &Host| {
                host.show("villain").queues.iter().any(|ring| ring.name == queue && ring.broken)
            };
            eventually("the ring rests", || broken(&neighbours.host));
            neighbours.are_fine();
            if queue == "rx" {
                assert_eq!(
                    neighbours.host.show("villain").dropped(),
                    [("not-attached", 1)].into(),
                    "{index}"
                );
            }
            villain = villain.reboot(&usual());
            neighbours.host.settle(&mut []);
            let frame = neighbours.send_villain(2);
            villain.expect(&frame);
            let frame = numbered(mac(66), mac(1), 9, 3, 100);
            villain.send(&frame);
            neighbours.a.expect(&frame);
            neighbours.host.remove("villain");
        }
    }
}

/// A chain of descriptors as numbers: (index, descriptor).
type Chain = Vec<(u16, Desc)>;

/// Addresses in the villain's memory and around it.
struct Places {
    /// An unused page.
    buffer: u64,
    /// Room for an indirect table.
    table: u64,
    /// First address behind the memory.
    end: u64,
    tx: bool,
}

impl Places {
    fn desc(&self, addr: u64, len: u32, flags: u16, next: u16) -> Desc {
        let direction = if self.tx || flags & DESC_INDIRECT != 0 { 0 } else { DESC_WRITE };
        Desc { addr, len, flags: flags ^ direction, next }
    }

    /// Returns every kind of wrong chain: (name, chain in the ring's table from its head on,
    /// indirect table).
    fn bad_chains(&self) -> Vec<(&'static str, Chain, Vec<Desc>)> {
        let desc = |addr, len, flags, next| self.desc(addr, len, flags, next);
        let (buffer, table, end) = (self.buffer, self.table, self.end);
        let good = |flags, next| desc(buffer, 100, flags, next);
        let indirect =
            |len: u32| vec![(0, Desc { addr: table, len, flags: DESC_INDIRECT, next: 0 })];
        let two = 2 * DESC_LEN as u32;
        vec![
            ("a loop of one", vec![(0, good(DESC_NEXT, 0))], vec![]),
            ("a loop of two", vec![(0, good(DESC_NEXT, 1)), (1, good(DESC_NEXT, 0))], vec![]),
            (
                "a loop of empty ones",
                vec![(0, desc(buffer, 0, DESC_NEXT, 1)), (1, desc(buffer, 0, DESC_NEXT, 0))],
                vec![],
            ),
            ("a next one out of range", vec![(0, good(DESC_NEXT, 256))], vec![]),
            ("a next one far out of range", vec![(0, good(DESC_NEXT, 0xffff))], vec![]),
            ("an address before the memory", vec![(0, desc(0x1000, 100, 0, 0))], vec![]),
            ("an address behind the memory", vec![(0, desc(end, 100, 0, 0))], vec![]),
            ("an address that is none", vec![(0, desc(u64::MAX, 100, 0, 0))], vec![]),
            (
                "a buffer over the end of addresses",
                vec![(0, desc(u64::MAX - 50, 100, 0, 0))],
                vec![],
            ),
            ("a buffer over the end of memory", vec![(0, desc(end - 50, 100, 0, 0))], vec![]),
            ("a buffer of 4 GiB", vec![(0, desc(buffer, u32::MAX, 0, 0))], vec![]),
            ("the wrong direction", vec![(0, good(DESC_WRITE, 0))], vec![]),
            (
                "the wrong direction at the end",
                vec![(0, good(DESC_NEXT, 1)), (1, good(DESC_WRITE, 0))],
                vec![],
            ),
            (
                "a good one, then one outside",
                vec![(0, good(DESC_NEXT, 1)), (1, desc(end, 10, 0, 0))],
                vec![],
            ),
            ("an empty table", indirect(0), vec![good(0, 0)]),
            ("half a descriptor", indirect(8), vec![good(0, 0)]),
            ("a table and a half", indirect(24), vec![good(0, 0), good(0, 0)]),
            (
                "a table that goes on behind its end",
                indirect(two),
                vec![good(DESC_NEXT, 1), good(DESC_NEXT, 2), good(0, 0)],
            ),
            ("a loop in a table", indirect(two), vec![good(DESC_NEXT, 1), good(DESC_NEXT, 0)]),
            (
                "a table in a table",
                indirect(16),
                vec![Desc { addr: table, len: 16, flags: DESC_INDIRECT, next: 0 }],
            ),
            (
                "a table outside",
                vec![(0, Desc { addr: end, len: 16, flags: DESC_INDIRECT, next: 0 })],
                vec![],
            ),
            (
                "a table over the end",
                vec![(0, Desc { addr: end - 8, len: 16, flags: DESC_INDIRECT, next: 0 })],
                vec![],
            ),
            (
                "a table and a next one",
                vec![
                    (0, Desc { addr: table, len: 16, flags: DESC_INDIRECT | DESC_NEXT, next: 1 }),
                    (1, good(0, 0)),
                ],
                vec![good(0, 0)],
            ),
        ]
    }
}

/// Returns a villain whose descriptors the test writes by hand, and the addresses of [`Places`].
fn villain_by_hand(neighbours: &Neighbours, features: Features) -> (Station, u64, u64, u64) {
    let mut config = machine(features, 1514);
    config.guest = GuestConfig { rx_fill: Some(0), interrupts: false, ..config.guest };
    config.memory = Some(MemoryConfig::new(config.guest.memory_needed() + (1 << 20)));
    let villain = neighbours.villain(&config);
    let memory = villain.vm.guest.memory();
    let region = memory.regions().remove(0);
    let (buffer, table) = (memory.alloc(8192, 4096).unwrap(), memory.alloc(4096, 4096).unwrap());
    (villain, buffer, table, region.guest_addr + region.size)
}

/// Writes a chain by hand and makes it available as the ring's `at`th.
fn make_available(villain: &mut Station, tx: bool, at: u16, chain: &Chain, table: (u64, &[Desc])) {
    let guest = &villain.vm.guest;
    for (n, desc) in table.1.iter().enumerate() {
        guest.memory().write(table.0 + (n * DESC_LEN) as u64, &desc.to_bytes()).unwrap();
    }
    let ring = if tx { guest.tx().ring() } else { guest.rx().ring() };
    for (index, desc) in chain {
        ring.set_desc(*index, *desc);
    }
    ring.avail_entry(at).store(chain[0].0, Ordering::Relaxed);
    ring.avail_idx().store(at.wrapping_add(1), Ordering::Release);
    let queue = if tx { villain.vm.guest.tx_mut() } else { villain.vm.guest.rx_mut() };
    queue.kick();
}

#[test]
fn chains_that_break_the_rules_when_sending() {
    let mut neighbours = Neighbours::new();
    let (mut villain, buffer, table, end) = villain_by_hand(&neighbours, features::MODERN);
    let places = Places { buffer, table, end, tx: true };
    let frame = numbered(mac(66), mac(2), 9, 1, 100);
    villain.vm.guest.memory().write(buffer, &[&[0; NetHeader::LEN][..], &frame].concat()).unwrap();
    let good: Chain = vec![(0, Desc { addr: buffer, len: 112, flags: 0, next: 0 })];
    let mut at = 0;
    for (name, chain, indirect) in places.bad_chains() {
        println!("{name}");
        // An endless chain is longer than its table, so its reason is not `oversized`.
        let reason = if name == "a buffer of 4 GiB" { "oversized" } else { "bad-chain" };
        let before = neighbours.host.show("villain");
        make_available(&mut villain, true, at, &chain, (table, &indirect));
        eventually("the chain went back", || {
            villain.vm.guest.tx().ring().used_idx().load(Ordering::Acquire) == at + 1
        });
        assert_eq!(villain.vm.guest.tx().ring().used_entry(at), (0, 0), "{name}");
        neighbours.host.settle(&mut []);
        let show = neighbours.host.show("villain");
        let expected = (before.drops(reason) + 1, before.all_drops() + 1);
        assert_eq!(
            (show.drops(reason), show.all_drops()),
            expected,
            "{name}: {:?}",
            show.dropped()
        );
        // The ring goes on.
        make_available(&mut villain, true, at + 1, &good, (table, &[]));
        neighbours.b.expect(&frame);
        at += 2;
    }
    // A head that is no descriptor.
    villain.vm.guest.tx().ring().set_desc(0, good[0].1);
    for head in [256, 0xffff] {
        let ring = villain.vm.guest.tx().ring().clone();
        ring.avail_entry(at).store(head, Ordering::Relaxed);
        ring.avail_idx().store(at + 1, Ordering::Release);
        villain.vm.guest.tx_mut().kick();
        eventually("the chain went back", || ring.used_idx().load(Ordering::Acquire) == at + 1);
        at += 1;
    }
    neighbours.host.settle(&mut []);
    assert_eq!(neighbours.host.show("villain").all_drops(), u64::from(at - 2) / 2 + 2);
    neighbours.are_fine();
}

/// If INDIRECT_DESC was not negotiated, every chain with an indirect table is bad.
#[test]
fn tables_that_were_not_negotiated() {
    let neighbours = Neighbours::new();
    let (mut villain, buffer, table, _) = villain_by_hand(&neighbours, Features::VERSION_1);
    let chain = vec![(0, Desc { addr: table, len: 16, flags: DESC_INDIRECT, next: 0 })];
    make_available(
        &mut villain,
        true,
        0,
        &chain,
        (table, &[Desc { addr: buffer, len: 100, flags: 0, next: 0 }]),
    );
    eventually("the chain went back", || {
        villain.vm.guest.tx().ring().used_idx().load(Ordering::Acquire) == 1
    });
    neighbours.host.settle(&mut []);
    assert_eq!(neighbours.host.show("villain").dropped(), [("bad-chain", 1)].into());
}

#[test]
fn chains_that_break_the_rules_when_receiving() {
    let mut neighbours = Neighbours::new();
    let (mut villain, buffer, table, end) = villain_by_hand(&neighbours, features::MODERN);
    let places = Places { buffer, table, end, tx: false };
    let good: Chain = vec![(0, Desc { addr: buffer, len: 2048, flags: DESC_WRITE, next: 0 })];
    let (mut at, mut drops) = (0, 0);
    for (name, chain, indirect) in places.bad_chains() {
        println!("{name}");
        make_available(&mut villain, false, at, &chain, (table, &indirect));
        neighbours.send_villain(1);
        neighbours.host.settle(&mut [&mut neighbours.a]);
        drops += 1;
        let show = neighbours.host.show("villain");
        assert_eq!((show.drops("rx-bad-chain"), show.all_drops()), (drops, drops), "{name}");
        let ring = villain.vm.guest.rx().ring();
        assert_eq!(
            (ring.used_idx().load(Ordering::Acquire), ring.used_entry(at)),
            (at + 1, (0, 0)),
            "{name}: it goes back unused"
        );
        make_available(&mut villain, false, at + 1, &good, (table, &[]));
        let frame = neighbours.send_villain(2);
        let ring = villain.vm.guest.rx().ring().clone();
        eventually("the frame arrived", || ring.used_idx().load(Ordering::Acquire) == at + 2);
        assert_eq!(ring.used_entry(at + 1), (0, 212));
        assert_eq!(
            villain.vm.guest.memory().read_vec(buffer + NetHeader::LEN as u64, 200).unwrap(),
            frame,
            "{name}"
        );
        at += 2;
    }
    neighbours.are_fine();
}

/// Buffers that overlap each other, the rings and the descriptors harm only their guest.
#[test]
fn buffers_on_top_of_everything() {
    let mut neighbours = Neighbours::new();
    for overlap in 0..6 {
        let (mut villain, buffer, _, _) = villain_by_hand(&neighbours, features::MODERN);
        let guest = &villain.vm.guest;
        let (rx, tx) = (guest.rx().ring().addr(), guest.tx().ring().addr());
        let target = [rx.used, rx.avail, rx.desc, tx.used, tx.avail, tx.desc][overlap];
        for n in 0..64 {
            let ring = guest.rx().ring();
            // Half of the buffers are on the ring, the others one byte apart.
            let addr = if n % 2 == 0 { target } else { buffer + u64::from(n) };
            ring.set_desc(n, Desc { addr, len: 1600, flags: DESC_WRITE, next: 0 });
            ring.avail_entry(n).store(n, Ordering::Relaxed);
        }
        guest.rx().ring().avail_idx().store(64, Ordering::Release);
        // The villain also sends from these buffers.
        for n in 0..64 {
            let ring = guest.tx().ring();
            ring.set_desc(
                n,
                Desc { addr: target + u64::from(n) * 8, len: 1000, flags: 0, next: 0 },
            );
            ring.avail_entry(n).store(n, Ordering::Relaxed);
        }
        guest.tx().ring().avail_idx().store(64, Ordering::Release);
        for number in 0..50 {
            neighbours.send_villain(number);
            villain.vm.guest.tx_mut().kick();
        }
        assert!(neighbours.a.vm.guest.drain(PATIENCE).unwrap());
        // Its frames may have had any destination in its own network.
        std::thread::sleep(Duration::from_millis(20));
        neighbours.host.remove("villain");
        neighbours.a.pending();
        neighbours.b.pending();
        neighbours.are_fine();
    }
}

/// Two vnics share their memory: each sees the other's frames, and no other guest does.
#[test]
fn two_guests_share_their_memory() {
    let mut neighbours = Neighbours::new();
    let config = usual();
    let mut first = neighbours.villain(&config);
    let mut second = {
        let path = neighbours.host.add(&Nic::bypass("accomplice", mac(67), 1)).unwrap();
        let mut connection = butterfly_guest_driver::Connection::connect(&path, PATIENCE).unwrap();
        connection.negotiate(config.features, config.protocol).unwrap();
        // The second vnic uses the same rings, too.
        connection.start(&first.vm.guest, &config.start).unwrap();
        connection.sync().unwrap();
        connection
    };
    // The switch may take each frame twice, once for each vnic.
    for number in 0..100 {
        neighbours.send_villain(number);
        neighbours.a.send(&numbered(mac(1), mac(67), 9, number, 100));
        let _ =
            first.vm.guest.send(&numbered(mac(66), mac(2), 9, number, 100), NetHeader::default());
    }
    assert!(neighbours.a.vm.guest.drain(PATIENCE).unwrap());
    second.sync().unwrap();
    neighbours.host.remove("accomplice");
    neighbours.host.remove("villain");
    neighbours.b.pending();
    neighbours.are_fine();
}

/// A front end truncates its memory's file: the daemon detaches the guest with that reason, and the
/// guest may come back.
#[test]
fn memory_that_is_truncated() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Gone {
        /// The memory of the frames that the guest sends.
        Frames,
        /// The guest's receive buffers.
        Buffers,
        /// All memory, when the guest sends.
        AllAtOnce,
        /// All memory, while the guest is idle.
        AllAtRest,
    }
    let mut neighbours = Neighbours::new();
    for (round, what) in
        [Gone::Frames, Gone::Buffers, Gone::AllAtOnce, Gone::AllAtRest].into_iter().enumerate()
    {
        println!("{what:?}");
        let mut config = usual();
        config.guest = GuestConfig {
            max_frame: 1524,
            interrupts: false,
            kicks: KickPolicy::Never,
            ..config.guest
        };
        // The switch reads zeros from truncated memory, and may flood frames of zeros in the
        // guest's own network.
        let vni = if what == Gone::Frames { 2 } else { 1 };
        let Station { vm: Vm { mut guest, connection, .. }, .. } =
            neighbours.villain_in(vni, &config);
        let region = guest.memory().regions().remove(0);
        // The rings are first in memory, then the buffers.
        let rings = (guest.tx().ring().addr().used + 6 + 8 * 256 - region.guest_addr)
            .next_multiple_of(4096);
        let kick = guest.tx().kick_fd().clone();
        if what == Gone::Frames {
            for number in 0..64 {
                guest
                    .enqueue(&numbered(mac(66), mac(2), 9, number, 1514), NetHeader::default())
                    .unwrap();
            }
            guest.tx_mut().publish();
        }
        let left = if matches!(what, Gone::Frames | Gone::Buffers) { rings } else { 0 };
        region.file.set_len(left).unwrap();
        // From here on this process must not touch the memory either.
        match what {
            Gone::Frames | Gone::AllAtOnce => {
                rustix::io::write(&*kick, &1u64.to_ne_bytes()).unwrap();
            }
            // The first frame may still fit on the last page of the rings.
            Gone::Buffers => (0..4).for_each(|number| drop(neighbours.send_villain(number))),
            Gone::AllAtRest => {
                neighbours.are_fine();
                neighbours.send_villain(round as u64);
            }
        }
        neighbours.are_fine();
        assert!(connection.wait_closed(PATIENCE), "its front end is cut off");
        eventually("it is detached", || !neighbours.host.show("villain").attached);
        let show = neighbours.host.show("villain");
        assert_eq!(show.last_detach.as_deref(), Some("guest memory was truncated"), "{show:?}");
        // The daemon serves the next guest.
        let path = neighbours.host.dir().join("qemu-vhost-villain");
        let vm = Vm::connect(&path, &usual(), PATIENCE).unwrap();
        let mut next = Station {
            nic: Nic::bypass("villain", mac(66), vni),
            path,
            listener: None,
            vm,
            config: usual(),
        };
        if vni == 1 {
            let frame = neighbours.send_villain(99);
            next.expect(&frame);
        }
        next.send(&numbered(mac(66), mac(77), 9, 1, 60));
        neighbours.host.settle(&mut [&mut next]);
        assert_eq!(neighbours.a.pending().len(), usize::from(vni == 1));
        neighbours.b.pending();
        neighbours.host.remove("villain");
        drop(guest);
    }
    neighbours.are_fine();
}

/// Front ends that connect, send half a message and wait; and many front ends at once.
#[test]
fn front_ends_that_dawdle() {
    use std::{io::Write, os::unix::net::UnixStream};
    let mut neighbours = Neighbours::new();
    let path = neighbours.host.add(&Nic::bypass("villain", mac(66), 1)).unwrap();
    let mut dawdlers: Vec<UnixStream> =
        (0..10).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // Half a header, and a header without its body.
    dawdlers[0].write_all(&[1, 0, 0]).unwrap();
    dawdlers[1].write_all(&[2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0]).unwrap();
    dawdlers[2].write_all(&[5, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]).unwrap();
    neighbours.are_fine();
    dawdlers.truncate(3);
    let vm = Vm::connect(&path, &usual(), PATIENCE).unwrap();
    let mut guest = Station {
        nic: Nic::bypass("villain", mac(66), 1),
        path,
        listener: None,
        vm,
        config: usual(),
    };
    let frame = neighbours.send_villain(1);
    guest.expect(&frame);
    neighbours.are_fine();
}

/// A guest changes its frames while the switch decides on them. The switch delivers the headers on
/// which it decided.
#[test]
fn frames_that_change_under_the_switch() {
    let mut neighbours = Neighbours::new();
    let mut config = usual();
    config.guest = GuestConfig { max_frame: 1524, ..config.guest };
    let mut villain = neighbours.host.station(&Nic::filtered("villain", mac(66), 1), &config);
    let mut receiver = neighbours.host.station(&Nic::bypass("receiver", mac(67), 1), &usual());
    // An allowed frame, and three forbidden ones: IP, another source, another destination.
    let innocent = numbered(mac(66), mac(67), 9, 1, 1000);
    let ip = butterfly_packet::build::ethernet(mac(66), mac(67))
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .udp(1, 2, &[7; 900]);
    let spoofed = numbered(mac(1), mac(67), 9, 1, 1000);
    let elsewhere = numbered(mac(66), mac(2), 9, 1, 1000);
    let stop = AtomicBool::new(false);
    let memory = villain.vm.guest.memory().clone();
    let region = memory.regions().remove(0);
    // Fill all transmit buffers, to find their addresses by their content.
    while villain.vm.guest.tx().outstanding() < 256
        && villain.vm.guest.enqueue(&innocent, NetHeader::default()).is_ok()
    {}
    villain.vm.guest.flush();
    let bytes = memory.read_vec(region.guest_addr, region.size as usize).unwrap();
    let buffers: Vec<_> = bytes
        .windows(30)
        .enumerate()
        .filter(|(_, window)| *window == &innocent[..30])
        .map(|(at, _)| memory.span(region.guest_addr + at as u64, 60).unwrap())
        .collect();
    assert!(buffers.len() >= 256, "{}", buffers.len());
    let (mut sent, mut received) = (256u64, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for guilty in [&ip, &innocent, &spoofed, &innocent, &elsewhere, &innocent] {
                    buffers.iter().for_each(|buffer| buffer.write(0, &guilty[..60]));
                }
            }
        });
        let begin = std::time::Instant::now();
        let caught = |show: Show| show.drops("egress-denied") + show.drops("spoofed-mac");
        // Until the switch has caught at least 20 changed frames.
        while begin.elapsed() < PATIENCE
            && (sent % 1000 != 0 || caught(neighbours.host.show("villain")) < 20)
        {
            if villain.vm.guest.send(&innocent, NetHeader::default()).is_ok() {
                sent += 1;
            }
            while let Some((_, frame)) = receiver.vm.guest.recv().unwrap() {
                assert_eq!(frame[..12], innocent[..12], "addresses that were not decided on");
                assert_ne!(frame[12..14], [8, 0], "IP from a filtered vnic");
                received += 1;
            }
            while let Some((_, frame)) = neighbours.b.vm.guest.recv().unwrap() {
                assert_eq!(frame[..14], elsewhere[..14]);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    neighbours.host.settle(&mut [&mut villain]);
    neighbours.b.pending();
    receiver.pending();
    let show = neighbours.host.show("villain");
    assert_eq!(show.received.0, sent);
    assert!(received > 0);
    let caught = show.drops("egress-denied") + show.drops("spoofed-mac");
    println!("{sent} frames, {received} arrived, {caught} were caught");
    assert!(caught > 0, "nothing was ever changed in time: {:?}", show.dropped());
    neighbours.are_fine();
}

/// Chains with more descriptors than the switch follows, and frames that are too long.
#[test]
fn chains_without_end() {
    let mut neighbours = Neighbours::new();
    let mut config = machine(features::MODERN, 1524);
    config.guest = GuestConfig { rx_fill: Some(0), interrupts: false, ..config.guest }.rings(2048);
    let mut villain = neighbours.villain(&config);
    let buffer = villain.vm.guest.memory().alloc(4096, 4096).unwrap();
    let frame = numbered(mac(66), mac(2), 9, 1, 1514);
    let whole = [&[0; NetHeader::LEN][..], &frame].concat();
    villain.vm.guest.memory().write(buffer, &whole).unwrap();
    let piece = |at: u64, len: u32| Buffer { addr: buffer + at, len, writable: false };
    let in_bytes: Vec<Buffer> =
        (0..1000).map(|n| piece(n, 1)).chain([piece(1000, whole.len() as u32 - 1000)]).collect();
    let mut too_many = vec![piece(0, 0); 1100];
    too_many.push(piece(0, whole.len() as u32));
    let too_long: Vec<Buffer> = vec![piece(0, 4096); 17];
    for (buffers, drop) in [
        (&in_bytes, None),
        (&too_many, Some("bad-chain")),
        (&too_long, Some("oversized")),
        (&in_bytes, None),
    ] {
        for placement in
            [butterfly_guest_driver::Placement::Direct, butterfly_guest_driver::Placement::Indirect]
        {
            let before = drop.map(|reason| neighbours.host.show("villain").drops(reason));
            let queue = villain.vm.guest.tx_mut();
            queue.add(buffers, placement, 0).unwrap();
            queue.publish();
            queue.notify();
            assert!(queue.wait(PATIENCE).unwrap());
            queue.pop().unwrap().expect("the chain came back");
            match (drop, before) {
                (Some(reason), Some(before)) => {
                    neighbours.host.settle(&mut []);
                    assert_eq!(
                        neighbours.host.show("villain").drops(reason),
                        before + 1,
                        "{reason}"
                    );
                }
                _ => neighbours.b.expect(&frame),
            }
        }
    }
    neighbours.are_fine();
}
