//! The driver against a device that is as simple as the standard allows, and against one that
//! breaks its rules.

mod loopback;
mod packed;
mod packed_device;
mod split_device;

use std::{
    sync::atomic::Ordering::{Relaxed, Release},
    time::Duration,
};

use butterfly_vhost::net::{Features, NetHeader};
use proptest::prelude::*;

use crate::{
    ring::{AVAIL_NO_INTERRUPT, USED_NO_NOTIFY},
    *,
};
use loopback::{DeviceHalf, Loopback};
use split_device::DeviceQueue;

const SECOND: Duration = Duration::from_secs(1);

fn guest(features: Features, config: &GuestConfig) -> Guest {
    let memory = Memory::new(&MemoryConfig::new(config.memory_needed())).unwrap();
    Guest::new(&memory, features, config).unwrap()
}

fn frame(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed * 131) as u8).collect()
}

fn header(seed: usize) -> NetHeader {
    NetHeader { flags: 1, csum_start: seed as u16, csum_offset: 16, ..NetHeader::default() }
}

fn shape() -> impl Strategy<Value = Shape> {
    let placement = prop_oneof![
        Just(Placement::Direct),
        Just(Placement::Indirect),
        (0u16..4).prop_map(Placement::IndirectAfter)
    ];
    (any::<bool>(), 1usize..4, placement).prop_map(|(header_apart, pieces, placement)| Shape {
        header_apart,
        pieces,
        placement,
    })
}

fn features() -> impl Strategy<Value = Features> {
    let optional = [
        Features::EVENT_IDX,
        Features::IN_ORDER,
        Features::VERSION_1,
        Features::MRG_RXBUF,
        Features::ANY_LAYOUT,
    ];
    proptest::bits::u8::masked(0x1f).prop_map(move |bits| {
        let chosen = optional.iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0);
        chosen.fold(Features::INDIRECT_DESC, |all, (_, feature)| all.with(*feature))
    })
}

/// Way of a test's frames to the device.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Frames sent at once.
    batch: usize,
    /// One used entry for a batch, with IN_ORDER.
    batch_used: bool,
    /// Sent frames of a batch are used last first, without IN_ORDER.
    backwards: bool,
    /// Regions of the guest's memory.
    regions: usize,
}

/// Sends frames of these lengths through a device that returns them, and checks all of them.
fn there_and_back(
    features: Features,
    config: GuestConfig,
    lens: &[usize],
    way: Way,
) -> Result<(), TestCaseError> {
    let size = config.tx_size;
    // All receive buffers together hold the longest frame, also with four descriptors each in
    // small rings.
    let merged = if size < 32 { 4600 } else { 1526 };
    let rx_buffer = if features.has(Features::MRG_RXBUF) { merged } else { 9100 };
    let config = GuestConfig { rx_buffer, cross_regions: true, ..config };
    let memory = Memory::new(&MemoryConfig::split(way.regions, config.memory_needed())).unwrap();
    let before = memory.free_bytes();
    let mut guest = Guest::new(&memory, features, &config).unwrap();
    let mut device = Loopback::of(&guest);
    device.set_batch_used(way.batch_used && features.has(Features::IN_ORDER));
    device.backwards = way.backwards && !features.has(Features::IN_ORDER);
    let frames: Vec<_> =
        lens.iter().enumerate().map(|(i, len)| (header(i), frame(i, *len))).collect();
    let mut returned = Vec::new();
    for batch in frames.chunks(way.batch) {
        for (header, frame) in batch {
            while let Err(error) = guest.enqueue(frame, *header) {
                prop_assert!(matches!(error, SendError::Full), "{error}");
                guest.flush();
                device.run();
                returned.extend(std::iter::from_fn(|| guest.recv().unwrap()));
            }
        }
        guest.flush();
        device.run();
        while returned.len() < guest.stats().sent as usize {
            returned.push(guest.recv_wait(SECOND).unwrap().expect("a frame"));
            device.run(); // room for the backlog
        }
    }
    for ((got_header, got), (sent_header, sent)) in returned.iter().zip(&frames) {
        prop_assert_eq!(NetHeader { num_buffers: 0, ..*got_header }, *sent_header);
        prop_assert_eq!(got, sent);
    }
    prop_assert_eq!(returned.len(), frames.len());
    prop_assert!(guest.drain(SECOND).unwrap());
    prop_assert_eq!(guest.tx().free_descs(), size);
    guest.free();
    prop_assert_eq!(memory.free_bytes(), before);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Frames that are sent come back, in order, and nothing leaks: with all features, layouts and
    /// ring sizes.
    #[test]
    fn frames_come_back(
        features in features(),
        tx_shape in shape(),
        rx_shape in shape(),
        log_size in 3u32..8,
        lens in proptest::collection::vec(prop_oneof![1usize..100, 1400usize..1515, 8000usize..9000], 1..80),
        batch in 1usize..20,
        batch_used: bool,
        interrupts: bool,
        regions in 1usize..4,
    ) {
        let size = 1 << log_size;
        let config = GuestConfig { tx_shape, rx_shape, interrupts, ..GuestConfig::default() };
        let way = Way { batch, batch_used, backwards: false, regions };
        there_and_back(features, config.rings(size), &lens, way)?;
    }
}

#[test]
fn every_ring_size() {
    for size in (1..16).map(|log| 1u16 << log) {
        let config =
            GuestConfig { rx_buffer: 128, max_frame: 100, ..GuestConfig::default() }.rings(size);
        let mut guest = guest(Features::VERSION_1, &config);
        let mut device = Loopback::of(&guest);
        // More than fits, so that indices and descriptors wrap.
        for round in 0..3 {
            let sent =
                guest.send_batch((0..usize::from(size)).map(|i| frame(i + round, 60))).unwrap();
            assert_eq!(sent, usize::from(size));
            assert!(matches!(guest.send(&[0; 60], NetHeader::default()), Err(SendError::Full)));
            device.run();
            for i in 0..sent {
                assert_eq!(guest.recv().unwrap().unwrap().1, frame(i + round, 60));
            }
            assert_eq!(guest.recv().unwrap(), None);
        }
    }
}

/// As after a migration: indices go on, and soon come round.
#[test]
fn split_rings_begin_anywhere() {
    for features in [Features::VERSION_1, Features::VERSION_1.with(Features::EVENT_IDX)] {
        let first = Some(65_500);
        let config = GuestConfig { first, interrupts: true, ..GuestConfig::default() };
        let mut guest = guest(features, &config.rings(16));
        assert_eq!((guest.tx().published(), guest.tx().restart_position()), (65_500, 65_500));
        let mut device = Loopback::of(&guest);
        for number in 0..100 {
            guest.send(&frame(number, 60), NetHeader::default()).unwrap();
            device.run();
            assert_eq!(guest.recv_wait(SECOND).unwrap().unwrap().1, frame(number, 60));
        }
        assert_eq!(guest.tx().restart_position(), 65_500u16.wrapping_add(100));
    }
}

#[test]
fn any_cuts_even_empty_ones() {
    let mut guest =
        guest(Features::VERSION_1.with(Features::INDIRECT_DESC), &GuestConfig::default());
    let mut device = Loopback::of(&guest);
    for placement in [Placement::Direct, Placement::Indirect, Placement::IndirectAfter(3)] {
        guest
            .enqueue_cut(&frame(1, 100), header(1), &[0, 1, 5, 5, 12, 13, 112, 112], placement)
            .unwrap();
        guest.flush();
        device.run();
        assert_eq!(guest.recv().unwrap().unwrap().1, frame(1, 100));
    }
}

#[test]
fn a_legacy_header_stands_alone() {
    let mut guest = guest(Features::NONE, &GuestConfig::default());
    let mut device = DeviceQueue::of(&guest, TX);
    guest.send(&[7; 60], NetHeader::default()).unwrap();
    let lens: Vec<usize> = device.take().unwrap().readable.iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [10, 60]);
    let mut device = DeviceQueue::of(&guest, RX);
    let lens: Vec<usize> = device.take().unwrap().writable.iter().map(|(_, len)| *len).collect();
    assert_eq!(lens, [10, 2038]);
}

#[test]
fn kicks_follow_the_devices_wishes() {
    for features in [Features::VERSION_1, Features::VERSION_1.with(Features::EVENT_IDX)] {
        let mut guest = guest(features, &GuestConfig::default());
        let ring = guest.tx().ring().clone();
        let mut send = |n: usize| {
            let before = guest.tx().stats().kicks;
            guest.send_batch(vec![[0u8; 60]; n]).unwrap();
            guest.tx().stats().kicks - before
        };
        if features.has(Features::EVENT_IDX) {
            assert_eq!(send(1), 1, "event 0, index 0 to 1");
            assert_eq!(send(1), 0, "event 0 was passed before");
            ring.avail_event().store(5, Relaxed);
            ring.used_flags().store(USED_NO_NOTIFY, Relaxed); // without meaning here
            assert_eq!((send(3), send(1), send(1)), (0, 1, 0), "5, then 6, then 7 chains");
        } else {
            assert_eq!((send(1), send(5)), (1, 1));
            ring.used_flags().store(USED_NO_NOTIFY, Relaxed);
            assert_eq!(send(1), 0);
        }
    }
}

#[test]
fn polling_asks_for_no_interrupts() {
    for features in [Features::VERSION_1, Features::VERSION_1.with(Features::EVENT_IDX)] {
        let mut guest = guest(features, &GuestConfig::default());
        let mut device = Loopback::of(&guest);
        for i in 0..1000 {
            guest.send(&frame(i, 60), NetHeader::default()).unwrap();
            device.run();
            guest.recv().unwrap().unwrap();
        }
        assert_eq!(
            (guest.rx_mut().take_interrupts(), guest.tx_mut().take_interrupts()),
            (0, 0),
            "{features:?}"
        );
    }
}

#[test]
fn a_sleeper_is_woken() {
    for features in [Features::VERSION_1, Features::VERSION_1.with(Features::EVENT_IDX)] {
        let mut guest =
            guest(features, &GuestConfig { interrupts: true, ..GuestConfig::default() });
        let mut device = Loopback::of(&guest);
        let kick = guest.tx().kick_fd().clone();
        let worker = std::thread::spawn(move || {
            for _ in 0..100 {
                let mut count = [0; 8];
                while rustix::io::read(&*kick, &mut count) != Ok(8) {
                    std::thread::yield_now();
                }
                device.run();
            }
        });
        for i in 0..100 {
            // The device never suppresses (its avail_event stays behind at 0 with EVENT_IDX, so
            // force the kick).
            guest.enqueue(&frame(i, 60), NetHeader::default()).unwrap();
            guest.tx_mut().publish();
            guest.tx_mut().kick();
            let (_, got) = guest.recv_wait(Duration::from_secs(10)).unwrap().expect("a frame");
            assert_eq!(got, frame(i, 60));
        }
        worker.join().unwrap();
    }
}

#[test]
fn a_forgotten_interrupt_is_noticed() {
    let mut guest =
        guest(Features::VERSION_1, &GuestConfig { interrupts: true, ..GuestConfig::default() });
    let mut device = DeviceQueue::of(&guest, RX);
    let worker = std::thread::spawn(move || {
        while device.ring.avail_flags().load(Relaxed) & AVAIL_NO_INTERRUPT != 0 {
            std::thread::yield_now();
        }
        // The guest asked for an interrupt and looks at the index once more before it sleeps, which
        // nothing shows outside: a moment later, use a chain without one.
        std::thread::sleep(Duration::from_millis(20));
        let head = device.take().unwrap().id;
        device.used(head, 72);
        device.ring.used_idx().store(1, Release);
    });
    assert_eq!(guest.rx_mut().wait(Duration::from_millis(300)), Err(DeviceError::MissedInterrupt));
    worker.join().unwrap();
}

/// Mistakes of the device are noticed, and named.
#[test]
fn a_lying_device_is_caught() {
    let cheat = |features: Features, with: &dyn Fn(&Ring, &mut DeviceQueue)| {
        let mut guest = guest(features, &GuestConfig::default());
        let mut device = DeviceQueue::of(&guest, RX);
        let ring = device.ring.clone();
        with(&ring, &mut device);
        guest.recv()
    };
    let modern = Features::VERSION_1;
    let used = |ring: &Ring, id: u32, len: u32| {
        ring.set_used_entry(0, id, len, Relaxed);
        ring.used_idx().store(1, Release);
    };
    assert_eq!(
        cheat(modern, &|ring, _| ring.used_idx().store(257, Release)),
        Err(DeviceError::UsedIndex { moved: 257, outstanding: 256 })
    );
    assert_eq!(cheat(modern, &|ring, _| used(ring, 256, 12)), Err(DeviceError::UsedId(256)));
    assert_eq!(
        cheat(modern, &|ring, _| used(ring, u32::MAX, 12)),
        Err(DeviceError::UsedId(u32::MAX))
    );
    assert_eq!(
        cheat(modern, &|ring, _| used(ring, 3, 2049)),
        Err(DeviceError::UsedLen { len: 2049, writable: 2048 })
    );
    assert_eq!(cheat(modern, &|ring, _| used(ring, 3, 11)), Err(DeviceError::ShortHeader(11)));
    assert_eq!(
        cheat(modern, &|ring, _| used(ring, 3, 72)),
        Err(DeviceError::NumBuffers { claimed: 0, available: 1 }),
        "num_buffers was not written"
    );
    assert_eq!(
        cheat(modern.with(Features::IN_ORDER), &|ring, _| used(ring, 1, 72)),
        Err(DeviceError::OutOfOrder(1))
    );
    let merged = cheat(modern.with(Features::MRG_RXBUF), &|ring, device| {
        let chain = device.take().unwrap();
        device.write(&chain, &NetHeader { num_buffers: 2, ..NetHeader::default() }.to_bytes());
        used(ring, chain.id.into(), 72);
    });
    assert_eq!(merged, Err(DeviceError::NumBuffers { claimed: 2, available: 1 }));
    let twice = |guest: &mut Guest| {
        let ring = guest.tx().ring().clone();
        guest.send_batch(vec![[0u8; 60]; 2]).unwrap();
        let head = ring.avail_entry(0).load(Relaxed);
        ring.set_used_entry(0, head.into(), 0, Relaxed);
        ring.set_used_entry(1, head.into(), 0, Relaxed);
        ring.used_idx().store(2, Release);
        (guest.reclaim(), head)
    };
    let (result, head) = twice(&mut guest(modern, &GuestConfig::default()));
    assert_eq!(result, Err(DeviceError::UsedId(head.into())), "used twice");
}

#[test]
fn a_guest_that_does_not_refill_runs_dry() {
    let config =
        GuestConfig { refill: Refill::Manually, rx_fill: Some(3), ..GuestConfig::default() };
    let mut guest = guest(Features::VERSION_1, &config);
    let mut device = Loopback::of(&guest);
    guest.send_batch((0..5).map(|i| frame(i, 60))).unwrap();
    device.run();
    for i in 0..3 {
        assert_eq!(guest.recv().unwrap().unwrap().1, frame(i, 60));
    }
    device.run();
    assert_eq!((guest.recv().unwrap(), guest.rx_posted()), (None, 0));
    assert_eq!(guest.refill(1), 1);
    device.run();
    assert_eq!(guest.recv().unwrap().unwrap().1, frame(3, 60));
    assert_eq!((guest.refill(usize::MAX), guest.rx_posted()), (256, 256));
}

#[test]
fn reset_starts_from_zero_with_other_features() {
    let config = GuestConfig { rx_buffer: 9100, ..GuestConfig::default() };
    let mut guest = guest(Features::VERSION_1.with(Features::IN_ORDER), &config);
    let free = guest.memory().free_bytes();
    for features in
        [Features::NONE, Features::VERSION_1.with(Features::MRG_RXBUF), Features::EVENT_IDX]
    {
        guest.send_batch(vec![[1u8; 60]; 10]).unwrap();
        guest.reset(features);
        // A legacy guest needs two descriptors a buffer: the header stands alone, unless buffers
        // are merged.
        let posted = if features.has(Features::VERSION_1) { 256 } else { 128 };
        assert_eq!(
            (guest.tx().outstanding(), guest.tx().published(), guest.rx().published()),
            (0, 0, posted)
        );
        let mut device = Loopback::of(&guest);
        guest.send(&frame(1, 1000), NetHeader::default()).unwrap();
        device.run();
        assert_eq!(guest.recv().unwrap().unwrap().1, frame(1, 1000));
    }
    assert_eq!(guest.memory().free_bytes(), free);
}

fn fast(features: Features, config: &FastConfig) -> FastGuest {
    let memory = Memory::new(&MemoryConfig::new(config.memory_needed())).unwrap();
    FastGuest::new(&memory, features, config).unwrap()
}

/// Does with the fast driver what [`there_and_back`] does with the general one.
fn fast_there_and_back(
    features: Features,
    (queue_size, header_apart, indirect): (u16, bool, bool),
    lens: &[usize],
    way: Way,
) -> Result<(), TestCaseError> {
    let rx_buffer = if features.has(Features::MRG_RXBUF) { 1526 } else { 9100 };
    let config = FastConfig { queue_size, max_frame: 9000, rx_buffer, header_apart, indirect };
    let mut guest = fast(features, &config);
    let mut device = Loopback::of(&guest);
    device.set_batch_used(way.batch_used && features.has(Features::IN_ORDER));
    device.backwards = way.backwards && !features.has(Features::IN_ORDER);
    let frames: Vec<_> = lens.iter().enumerate().map(|(i, len)| frame(i, *len)).collect();
    let (mut next, mut returned) = (0, Vec::new());
    let mut buffer = vec![0; 9100];
    while returned.len() < frames.len() {
        guest
            .tx
            .send(way.batch.min(frames.len() - next), |out| {
                out.write(0, &frames[next]);
                next += 1;
                frames[next - 1].len()
            })
            .unwrap();
        device.run();
        guest
            .rx
            .poll(|got| {
                let len = got.read(&mut buffer);
                assert_eq!(len, got.len());
                assert_eq!(NetHeader { num_buffers: 0, ..got.header() }, NetHeader::default());
                returned.push(buffer[..len].to_vec());
            })
            .unwrap();
    }
    prop_assert_eq!(&returned, &frames);
    prop_assert!(guest.tx.drain(SECOND).unwrap());
    prop_assert_eq!(guest.tx.sent(), frames.len() as u64);
    prop_assert_eq!(guest.rx.received(), frames.len() as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The fast driver behaves on its rings as the general one does.
    #[test]
    fn fast_frames_come_back(
        features in features(),
        log_size in 4u32..9,
        lens in proptest::collection::vec(prop_oneof![14usize..100, 1400usize..1515, 8000usize..9000], 1..200),
        batch in 1usize..70,
        batch_used: bool,
        header_apart: bool,
        indirect: bool,
    ) {
        let rings = (1 << log_size, header_apart, indirect);
        let way = Way { batch, batch_used, backwards: false, regions: 1 };
        fast_there_and_back(features, rings, &lens, way)?;
    }
}

#[test]
fn the_fast_nic_catches_a_lying_device_too() {
    let config = FastConfig {
        queue_size: 8,
        max_frame: 100,
        rx_buffer: 256,
        header_apart: false,
        indirect: false,
    };
    let cheat = |features: Features, used_idx: u16, id: u32, len: u32| {
        let mut guest = fast(features, &config);
        let ring = guest.link(RX).ring.split().clone();
        ring.set_used_entry(0, id, len, Relaxed);
        ring.used_idx().store(used_idx, Release);
        guest.rx.poll(|_| ())
    };
    let merged = Features::VERSION_1.with(Features::MRG_RXBUF);
    assert_eq!(cheat(merged, 9, 0, 72), Err(DeviceError::UsedIndex { moved: 9, outstanding: 8 }));
    assert_eq!(cheat(merged, 1, 8, 72), Err(DeviceError::UsedId(8)));
    assert_eq!(cheat(merged, 1, 0, 257), Err(DeviceError::UsedLen { len: 257, writable: 256 }));
    assert_eq!(cheat(merged, 1, 0, 11), Err(DeviceError::ShortHeader(11)));
    assert_eq!(cheat(merged, 1, 0, 72), Err(DeviceError::NumBuffers { claimed: 0, available: 1 }));
    assert_eq!(
        cheat(Features::VERSION_1.with(Features::IN_ORDER), 1, 1, 72),
        Err(DeviceError::OutOfOrder(1))
    );
    assert_eq!(cheat(Features::VERSION_1, 1, 0, 72), Ok(1));
    assert_eq!(
        cheat(Features::VERSION_1, 2, 0, 72),
        Err(DeviceError::UsedId(0)),
        "entries 0 and 1 both say 0"
    );
}
