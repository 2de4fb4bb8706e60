//! The simulated guest against a foreign switch: DPDK's testpmd, which forwards between two
//! vhost-user ports of its own.
//!
//! Testpmd is as widely used a back end as there is. Frames that it takes and gives back unchanged
//! were built by our driver by the book. Needs `dpdk-testpmd` (Debian: dpdk-dev); fails without.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use butterfly_guest_driver::{
    Connection, DirtyLog, GuestConfig, KickPolicy, Listener, MemoryConfig, Placement,
    ProtocolFeatures, SendError, Shape, Start, Vm, VmConfig, positions,
};
use butterfly_vhost::net::{Features, NetHeader};

const START: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);

/// One testpmd at a time: each of them polls on a core.
static ONE: Mutex<()> = Mutex::new(());

struct Testpmd {
    child: Child,
    _stdin: ChildStdin,
    dir: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Testpmd {
    /// Two vhost ports, `a` and `b`; with `client` testpmd connects to sockets we listen on.
    fn start(client: bool) -> Testpmd {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::Builder::new().prefix("driver-testpmd-").tempdir().unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let vdev = |n: usize, name: &str| {
            let role = if client { ",client=1" } else { "" };
            format!("--vdev=net_vhost{n},iface={},queues=1{role}", dir.path().join(name).display())
        };
        // Two lcores that float over all processors, so that one is enough.
        let processors = std::thread::available_parallelism().unwrap().get();
        let spawned = Command::new("dpdk-testpmd")
            .arg(format!("--lcores=(0,1)@(0-{})", processors - 1))
            .args(["--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "256"])
            .arg(format!("--file-prefix={}", dir.path().file_name().unwrap().display()))
            .args([vdev(0, "a"), vdev(1, "b")])
            .args([
                "--",
                "-i",
                "--auto-start",
                "--forward-mode=io",
                "--nb-cores=1",
                "--total-num-mbufs=16384",
            ])
            .env("RUNTIME_DIRECTORY", dir.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                panic!("cannot run dpdk-testpmd ({error}): install Debian's package dpdk-dev")
            }
        };
        let stdin = child.stdin.take().unwrap();
        Testpmd { child, _stdin: stdin, dir, _one: one }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn connect(&self, name: &str, config: &VmConfig) -> Vm {
        match Vm::connect(self.socket(name), config, START) {
            Ok(vm) => {
                let offered = vm.connection.offered();
                assert_eq!(vm.guest.features(), config.features, "testpmd offers {offered:?}");
                vm
            }
            Err(error) => panic!("{error}\n{}", self.log()),
        }
    }

    fn pair(&self, config: &VmConfig) -> (Vm, Vm) {
        (self.connect("a", config), self.connect("b", config))
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "testpmd said:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a frame that names its sender and its number, and whose every byte can be checked.
fn frame(sender: u8, number: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 3 - sender, 2, 0, 0, 0, 0, sender, 0x88, 0xb5];
    frame.extend((number as u32).to_be_bytes());
    frame.extend(
        (frame.len()..len.max(18)).map(|i| (i * 31 + number * 7 + usize::from(sender)) as u8),
    );
    frame
}

/// Number of the frames that only find out whether anything comes through.
const PROBE: usize = 0xffff_ffff;

/// The next frame that is no probe. Those may come late, when testpmd was off its core for a while.
fn next_frame(vm: &mut Vm, timeout: Duration) -> Option<(NetHeader, Vec<u8>)> {
    loop {
        let received = vm.guest.recv_wait(timeout).unwrap()?;
        if received.1 != frame(1, PROBE, 60) && received.1 != frame(2, PROBE, 60) {
            return Some(received);
        }
    }
}

/// testpmd drops what arrives before the other port is up: sends until something comes through.
fn wait_until_joined(from: &mut Vm, to: &mut Vm, sender: u8) {
    let deadline = Instant::now() + START;
    loop {
        assert!(Instant::now() < deadline, "nothing comes through testpmd");
        let _ = from.guest.send(&frame(sender, PROBE, 60), NetHeader::default());
        if to.guest.recv_wait(Duration::from_millis(20)).unwrap().is_some() {
            break;
        }
    }
    assert!(from.guest.drain(WAIT).unwrap(), "testpmd keeps sent buffers");
}

/// Sends frames of these lengths, few at a time so that testpmd has no reason to drop one, and
/// checks each that arrives.
fn exchange(from: &mut Vm, to: &mut Vm, sender: u8, lens: &[usize]) {
    let mut next = 0;
    for (number, len) in lens.iter().enumerate() {
        from.guest.enqueue(&frame(sender, number, *len), NetHeader::default()).unwrap();
        if number % 8 == 7 || number + 1 == lens.len() || from.guest.tx().free_descs() < 9 {
            from.guest.flush();
            while next <= number {
                let (header, got) = next_frame(to, WAIT)
                    .unwrap_or_else(|| panic!("frame {next} of {len} bytes did not arrive"));
                assert_eq!(header.gso_type, NetHeader::GSO_NONE);
                assert_eq!(got, frame(sender, next, lens[next]), "frame {next}");
                next += 1;
            }
            assert!(from.guest.drain(WAIT).unwrap(), "testpmd keeps sent buffers");
        }
    }
    assert_eq!(next_frame(to, Duration::ZERO), None, "nothing was sent twice");
}

fn both_ways(a: &mut Vm, b: &mut Vm, lens: &[usize]) {
    wait_until_joined(a, b, 1);
    wait_until_joined(b, a, 2);
    exchange(a, b, 1, lens);
    exchange(b, a, 2, lens);
}

/// Lengths that start, fill and overflow buffers of 2 KiB; jumbo frames where they fit.
fn lens(largest: usize) -> Vec<usize> {
    let all = [18, 60, 61, 64, 128, 1000, 1514, 2035, 2036, 2037, 2048, 4084, 4096, 9000];
    all.into_iter().cycle().filter(|len| *len <= largest).take(140).collect()
}

/// DPDK leaves num_buffers alone when buffers are not merged (virtio 1.2, 5.1.6.4.1, wants 1
/// there).
fn config(features: Features) -> VmConfig {
    let guest = GuestConfig { strict: false, ..GuestConfig::default() };
    VmConfig { features, guest, ..VmConfig::default() }
}

fn largest(features: Features) -> usize {
    if features.has(Features::MRG_RXBUF) { 9000 } else { 1514 }
}

const MODERN: Features = Features::VERSION_1;
const PACKED: Features = MODERN.with(Features::RING_PACKED);

#[test]
fn every_ring_feature_with_testpmd_as_server() {
    let testpmd = Testpmd::start(false);
    let merged = MODERN.with(Features::MRG_RXBUF);
    for features in [
        MODERN,
        merged,
        MODERN.with(Features::EVENT_IDX),
        MODERN.with(Features::IN_ORDER),
        merged.with(Features::IN_ORDER),
        merged.with(Features::INDIRECT_DESC),
        merged.with(Features::INDIRECT_DESC).with(Features::EVENT_IDX),
        merged.with(Features::INDIRECT_DESC).with(Features::EVENT_IDX).with(Features::IN_ORDER),
        Features::NONE,
        Features::ANY_LAYOUT,
        Features::MRG_RXBUF,
        Features::MRG_RXBUF
            .with(Features::ANY_LAYOUT)
            .with(Features::INDIRECT_DESC)
            .with(Features::EVENT_IDX),
    ] {
        println!("features: {features:?}");
        let (mut a, mut b) = testpmd.pair(&config(features));
        assert_eq!(a.guest.features(), features, "testpmd offers {:?}", a.connection.offered());
        both_ways(&mut a, &mut b, &lens(largest(features)));
    }
}

#[test]
fn every_ring_feature_with_testpmd_as_client() {
    let testpmd = Testpmd::start(true);
    let listeners = ["a", "b"].map(|name| Listener::bind(testpmd.socket(name)).unwrap());
    let merged = MODERN.with(Features::MRG_RXBUF);
    for features in [
        MODERN,
        merged.with(Features::INDIRECT_DESC).with(Features::EVENT_IDX),
        merged.with(Features::IN_ORDER),
        Features::NONE,
    ] {
        println!("features: {features:?}");
        // It tries again every second.
        let [mut a, mut b] =
            listeners.each_ref().map(|l| Vm::accept(l, &config(features), START).unwrap());
        both_ways(&mut a, &mut b, &lens(largest(features)));
    }
}

#[test]
fn chains_of_every_layout() {
    chains_with(MODERN.with(Features::MRG_RXBUF).with(Features::INDIRECT_DESC));
}

fn chains_with(features: Features) {
    let testpmd = Testpmd::start(false);
    let shapes = [
        Shape::HEADER_APART,
        Shape::default().pieces(3),
        Shape::HEADER_APART.pieces(5),
        Shape::default().indirect(),
        Shape::HEADER_APART.pieces(7).indirect(),
    ];
    for tx_shape in shapes {
        // Receive chains too, but for DPDK they must be merged or direct.
        for rx_shape in [Shape::default(), tx_shape] {
            println!("transmit {tx_shape:?}, receive {rx_shape:?}");
            let guest = GuestConfig { tx_shape, rx_shape, ..config(features).guest };
            let (mut a, mut b) = testpmd.pair(&VmConfig { guest, ..config(features) });
            both_ways(&mut a, &mut b, &lens(9000));
        }
    }
}

#[test]
fn big_buffers_instead_of_merged_ones() {
    let testpmd = Testpmd::start(false);
    let features = MODERN.with(Features::INDIRECT_DESC);
    for rx_shape in
        [Shape::default(), Shape::HEADER_APART.pieces(4), Shape::HEADER_APART.pieces(4).indirect()]
    {
        let guest = GuestConfig { rx_buffer: 9100, rx_shape, ..config(features).guest };
        let (mut a, mut b) = testpmd.pair(&VmConfig { guest, ..config(features) });
        both_ways(&mut a, &mut b, &lens(9000));
    }
}

#[test]
fn rings_of_every_size() {
    let testpmd = Testpmd::start(false);
    for size in [8, 64, 1024, 4096, 32768] {
        println!("rings of {size}");
        let guest = GuestConfig { max_frame: 1600, ..config(MODERN).guest }.rings(size);
        let (mut a, mut b) = testpmd.pair(&VmConfig { guest, ..config(MODERN) });
        both_ways(&mut a, &mut b, &lens(1514));
    }
}

#[test]
fn memory_in_pieces_and_buffers_across_them() {
    let testpmd = Testpmd::start(false);
    let features = MODERN.with(Features::MRG_RXBUF);
    let guest = GuestConfig { cross_regions: true, ..config(features).guest };
    let separate = MemoryConfig { separate_files: true, ..MemoryConfig::split(8, 2 << 20) };
    for memory in [MemoryConfig::split(4, 4 << 20), separate, MemoryConfig::identity(16 << 20)] {
        println!("{memory:?}");
        let vm = VmConfig { memory: Some(memory), guest: guest.clone(), ..config(features) };
        let (mut a, mut b) = testpmd.pair(&vm);
        both_ways(&mut a, &mut b, &lens(9000));
    }
}

#[test]
fn interrupts_and_kicks() {
    let testpmd = Testpmd::start(false);
    for features in [
        MODERN,
        MODERN.with(Features::EVENT_IDX),
        MODERN.with(Features::EVENT_IDX).with(Features::MRG_RXBUF),
    ] {
        for kicks in [KickPolicy::Standard, KickPolicy::Always, KickPolicy::Never] {
            println!("features: {features:?}, kicks: {kicks:?}");
            let guest = GuestConfig { interrupts: true, kicks, ..config(features).guest };
            let (mut a, mut b) = testpmd.pair(&VmConfig { guest, ..config(features) });
            both_ways(&mut a, &mut b, &lens(1514));
            assert!(b.guest.rx().stats().interrupts > 0, "the receiver slept");
        }
    }
}

#[test]
fn without_protocol_features_and_without_descriptors() {
    let testpmd = Testpmd::start(false);
    let bare = VmConfig { protocol: ProtocolFeatures::empty(), ..config(MODERN) };
    let (mut a, mut b) = testpmd.pair(&bare);
    both_ways(&mut a, &mut b, &lens(1514));
    drop((a, b));
    let silent = VmConfig {
        start: Start { kick: false, call: false, ..Start::default() },
        ..config(MODERN)
    };
    let (mut a, mut b) = testpmd.pair(&silent);
    both_ways(&mut a, &mut b, &lens(1514));
}

#[test]
fn stop_crash_reboot_and_other_features() {
    let testpmd = Testpmd::start(false);
    let features = MODERN.with(Features::MRG_RXBUF);
    let (mut a, mut b) = testpmd.pair(&config(features));
    both_ways(&mut a, &mut b, &lens(1514));

    // Stopped on the same connection, it goes on where it was: every chain was used.
    let base = a.restart().unwrap();
    let used = [a.guest.rx().restart_position(), a.guest.tx().restart_position()];
    assert_eq!(base, positions(used));
    both_ways(&mut a, &mut b, &lens(1514));

    // Over a new connection, with the same memory and rings.
    a = a
        .detach()
        .unwrap()
        .reattach(Connection::connect(testpmd.socket("a"), START).unwrap())
        .unwrap();
    both_ways(&mut a, &mut b, &lens(1514));
    a = a.crash().reattach(Connection::connect(testpmd.socket("a"), START).unwrap()).unwrap();
    both_ways(&mut a, &mut b, &lens(1514));

    // The guest boots again.
    let mut off = b.crash();
    off.reboot();
    b = off.reattach(Connection::connect(testpmd.socket("b"), START).unwrap()).unwrap();
    both_ways(&mut a, &mut b, &lens(1514));

    // And its driver wants less.
    let less = Features::MRG_RXBUF;
    assert_eq!(b.change_features(less).unwrap(), less);
    both_ways(&mut a, &mut b, &lens(1514));
}

#[test]
fn stores_are_logged_while_logging_is_on() {
    let testpmd = Testpmd::start(false);
    let features = MODERN.with(Features::MRG_RXBUF);
    let (mut a, mut b) = testpmd.pair(&config(features));
    both_ways(&mut a, &mut b, &lens(1514));
    let log = DirtyLog::new(b.guest.memory()).unwrap();
    b.connection.set_log(&log).unwrap();
    b.connection.set_logging(&b.guest, true).unwrap();
    both_ways(&mut a, &mut b, &[1000]);
    let used = b.guest.rx().ring().addr().used;
    assert!(log.is_dirty(used), "the used ring was written: {:x?}", log.dirty_pages());
    assert!(log.is_dirty(b.guest.tx().ring().addr().used));
    assert!(!log.is_dirty(b.guest.rx().ring().addr().desc), "descriptors are only read");
    assert!(log.dirty_pages().len() > 2, "and a buffer was");
    b.connection.set_logging(&b.guest, false).unwrap();
    log.clear();
    both_ways(&mut a, &mut b, &[1000]);
    assert_eq!(log.dirty_pages(), Vec::<u64>::new());
}

#[test]
fn bursts_are_delivered_or_dropped_but_never_spoiled() {
    let testpmd = Testpmd::start(false);
    let features = MODERN.with(Features::MRG_RXBUF).with(Features::EVENT_IDX);
    let (mut a, mut b) = testpmd.pair(&config(features));
    both_ways(&mut a, &mut b, &lens(1514));
    let (mut sent, mut received, mut last) = (0usize, 0usize, None);
    let end = Instant::now() + Duration::from_secs(1);
    let mut quiet = false;
    while Instant::now() < end || !quiet {
        while Instant::now() < end {
            match a.guest.enqueue(&frame(1, sent, 60 + sent % 1400), NetHeader::default()) {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        a.guest.flush();
        quiet = true;
        while let Some((_, got)) = next_frame(&mut b, Duration::ZERO) {
            let number = u32::from_be_bytes(got[14..18].try_into().unwrap()) as usize;
            assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
            assert_eq!(got, frame(1, number, 60 + number % 1400));
            (last, received, quiet) = (Some(number), received + 1, false);
        }
        if quiet && Instant::now() >= end {
            quiet = !b.guest.rx_mut().wait(Duration::from_millis(100)).unwrap();
        }
    }
    assert!(received > 100 && received <= sent, "{received} of {sent}");
}

#[test]
fn placements_may_be_mixed_freely() {
    let testpmd = Testpmd::start(false);
    let features = MODERN.with(Features::MRG_RXBUF).with(Features::INDIRECT_DESC);
    let (mut a, mut b) = testpmd.pair(&config(features));
    wait_until_joined(&mut a, &mut b, 1);
    for (number, cuts) in
        [&[][..], &[12], &[4, 12], &[12, 26], &[30, 40, 50, 60, 70]].iter().enumerate()
    {
        for placement in [Placement::Direct, Placement::Indirect] {
            a.guest
                .enqueue_cut(&frame(1, number, 100), NetHeader::default(), cuts, placement)
                .unwrap();
            a.guest.flush();
            let got = next_frame(&mut b, WAIT).expect("a frame").1;
            assert_eq!(got, frame(1, number, 100), "{cuts:?} {placement:?}");
        }
    }
}

#[test]
fn packed_rings_with_every_feature() {
    let testpmd = Testpmd::start(false);
    let merged = PACKED.with(Features::MRG_RXBUF);
    for features in [
        PACKED,
        merged,
        PACKED.with(Features::EVENT_IDX),
        PACKED.with(Features::IN_ORDER),
        merged.with(Features::IN_ORDER),
        merged.with(Features::INDIRECT_DESC),
        merged.with(Features::INDIRECT_DESC).with(Features::EVENT_IDX),
        merged.with(Features::INDIRECT_DESC).with(Features::EVENT_IDX).with(Features::IN_ORDER),
    ] {
        println!("features: {features:?}");
        let (mut a, mut b) = testpmd.pair(&config(features));
        assert_eq!(a.guest.features(), features, "testpmd offers {:?}", a.connection.offered());
        both_ways(&mut a, &mut b, &lens(largest(features)));
    }
}

#[test]
fn packed_rings_with_testpmd_as_client() {
    let testpmd = Testpmd::start(true);
    let listeners = ["a", "b"].map(|name| Listener::bind(testpmd.socket(name)).unwrap());
    let features = PACKED.with(Features::MRG_RXBUF).with(Features::EVENT_IDX);
    let [mut a, mut b] =
        listeners.each_ref().map(|l| Vm::accept(l, &config(features), START).unwrap());
    both_ways(&mut a, &mut b, &lens(largest(features)));
}

#[test]
fn packed_chains_of_every_layout() {
    chains_with(PACKED.with(Features::MRG_RXBUF).with(Features::INDIRECT_DESC));
}

#[test]
fn packed_rings_of_every_size_that_begin_anywhere() {
    let testpmd = Testpmd::start(false);
    for (size, first) in [
        (8, None),
        (9, Some(0)),
        (100, Some(0x8000 | 99)),
        (255, Some(77)),
        (1000, None),
        (32768, Some(0x7fff)),
    ] {
        println!("rings of {size} from {first:x?}");
        let guest = GuestConfig { max_frame: 1600, first, ..config(PACKED).guest }.rings(size);
        let (mut a, mut b) = testpmd.pair(&VmConfig { guest, ..config(PACKED) });
        both_ways(&mut a, &mut b, &lens(1514));
    }
}

#[test]
fn interrupts_and_kicks_of_packed_rings() {
    let testpmd = Testpmd::start(false);
    for features in [PACKED, PACKED.with(Features::EVENT_IDX).with(Features::MRG_RXBUF)] {
        for kicks in [KickPolicy::Standard, KickPolicy::Always, KickPolicy::Never] {
            println!("features: {features:?}, kicks: {kicks:?}");
            let guest = GuestConfig { interrupts: true, kicks, ..config(features).guest };
            let (mut a, mut b) = testpmd.pair(&VmConfig { guest, ..config(features) });
            both_ways(&mut a, &mut b, &lens(1514));
            assert!(b.guest.rx().stats().interrupts > 0, "the receiver slept");
        }
    }
}

#[test]
fn packed_rings_stop_crash_and_become_split() {
    let testpmd = Testpmd::start(false);
    let features = PACKED.with(Features::MRG_RXBUF);
    let (mut a, mut b) = testpmd.pair(&config(features));
    both_ways(&mut a, &mut b, &lens(1514));

    // Stopped on the same connection, it goes on where it was: every chain was used.
    let base = a.restart().unwrap();
    let used = [a.guest.rx().restart_position(), a.guest.tx().restart_position()];
    assert_eq!(base, positions(used));
    both_ways(&mut a, &mut b, &lens(1514));

    // Over a new connection, with the same memory and rings.
    a = a
        .detach()
        .unwrap()
        .reattach(Connection::connect(testpmd.socket("a"), START).unwrap())
        .unwrap();
    both_ways(&mut a, &mut b, &lens(1514));
    a = a.crash().reattach(Connection::connect(testpmd.socket("a"), START).unwrap()).unwrap();
    both_ways(&mut a, &mut b, &lens(1514));

    // The guest boots again.
    let mut off = b.crash();
    off.reboot();
    b = off.reattach(Connection::connect(testpmd.socket("b"), START).unwrap()).unwrap();
    both_ways(&mut a, &mut b, &lens(1514));

    // And its driver wants other rings, back and forth.
    for features in [MODERN, features] {
        assert_eq!(b.change_features(features).unwrap(), features);
        both_ways(&mut a, &mut b, &lens(1514));
    }
}

/// Tells a failure to start apart from a failure of the driver.
#[test]
fn testpmd_is_installed() {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| Path::new(&dir).join("dpdk-testpmd").exists())
    });
    assert!(found, "dpdk-testpmd is not in PATH: install Debian's package dpdk-dev");
}
