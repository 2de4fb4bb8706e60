//! Packed rings against a driver that was written by the specification alone.

use std::{collections::VecDeque, fs::File, os::unix::fs::FileExt, sync::Arc};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::{
    memory::{GuestMemory, RegionSpec},
    ring::{
        CallFd, NoteTable,
        vring::{Layout, Vring},
    },
};

/// Guest addresses: the ring, both event structures, an indirect table, buffers.
const RING: u64 = 0x1000;
const DRIVER: u64 = 0x90_000;
const DEVICE: u64 = 0x90_010;
const TABLE: u64 = 0x91_000;
const BUFFERS: u64 = 0xa0_000;
const MEMORY: u64 = 0x100_000;
/// Number of the message that said where the ring starts.
const EPOCH: u64 = 3;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }
}

/// A guest's memory.
struct Guest {
    file: File,
    memory: Arc<GuestMemory>,
}

impl Guest {
    fn new() -> Guest {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY).unwrap();
        let region = RegionSpec {
            guest_addr: 0,
            size: MEMORY,
            user_addr: 0,
            mmap_offset: 0,
            file: file.try_clone().unwrap(),
        };
        Guest { file: file.into(), memory: Arc::new(GuestMemory::map(vec![region]).unwrap()) }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn setup(&self, size: u16, features: Features, note: &Note) -> RingSetup {
        RingSetup {
            memory: self.memory.clone(),
            log: None,
            features: features.with(Features::RING_PACKED).with(Features::VERSION_1),
            size,
            desc: RING,
            avail: DRIVER,
            used: DEVICE,
            used_log: None,
            call: None,
            note: Some(note.clone()),
        }
    }
}

/// A driver of a packed ring (virtio 1.2, 2.8).
struct Driver {
    size: u16,
    next: (u16, bool),
    used: (u16, bool),
    room: u16,
    free: Vec<u16>,
    /// Chains that the device has, in order: id, number of descriptors, serial number.
    out: VecDeque<(u16, u16, u64)>,
    serial: u64,
}

fn further((index, lap): (u16, bool), n: u16, size: u16) -> (u16, bool) {
    let index = index + n;
    if index >= size { (index - size, !lap) } else { (index, lap) }
}

impl Driver {
    /// One whose ring begins there. Its ids have nothing to do with places.
    fn new(guest: &Guest, size: u16, begins: (u16, bool)) -> Driver {
        for index in 0..size {
            // All were used: those before it in its lap, the others in the lap before.
            let lap = begins.1 == (index < begins.0);
            let flags = if lap { AVAIL | USED } else { 0 };
            guest.put(RING + 16 * u64::from(index) + 14, &flags.to_le_bytes());
        }
        let free = (0..size).map(|n| (n * 7 + 5) % 1021 + 4000 * (n % 3)).collect();
        Driver {
            size,
            next: begins,
            used: begins,
            room: size,
            free,
            out: VecDeque::new(),
            serial: 0,
        }
    }

    /// Makes a chain of so many descriptors available, if there is room.
    fn offer(&mut self, guest: &Guest, descriptors: u16, flags: u16) -> bool {
        if self.room < descriptors {
            return false;
        }
        let id = self.free.swap_remove(self.serial as usize % self.free.len());
        // The first one last, as 2.8.6 wants.
        for n in (0..descriptors).rev() {
            let (index, lap) = further(self.next, n, self.size);
            let next = if n + 1 < descriptors { NEXT } else { 0 };
            let lap = if lap { AVAIL } else { USED };
            let at = RING + 16 * u64::from(index);
            // The address tells which one it is.
            guest.put(at, &(BUFFERS + 64 * (self.serial % 900) + u64::from(n)).to_le_bytes());
            guest.put(at + 8, &64u32.to_le_bytes());
            guest.put(at + 12, &(if next == 0 { id } else { 0xdead }).to_le_bytes());
            guest.put(at + 14, &(flags | next | lap).to_le_bytes());
        }
        self.next = further(self.next, descriptors, self.size);
        self.room -= descriptors;
        self.out.push_back((id, descriptors, self.serial));
        self.serial += 1;
        true
    }

    /// Takes the next used chain: its serial number and length.
    fn reap(&mut self, guest: &Guest) -> Option<(u64, u32)> {
        let (index, lap) = self.used;
        let rest = guest.get::<8>(RING + 16 * u64::from(index) + 8);
        let flags = u16::from_le_bytes([rest[6], rest[7]]);
        if (flags & AVAIL != 0) != lap || (flags & USED != 0) != lap {
            return None;
        }
        let len = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        let id = u16::from_le_bytes([rest[4], rest[5]]);
        let (wanted, descriptors, serial) = self.out.pop_front().expect("used, but not offered");
        assert_eq!(id, wanted, "chains come back in order, by their ids");
        assert_eq!(flags & WRITE != 0, len > 0);
        self.free.push(id);
        self.room += descriptors;
        self.used = further(self.used, descriptors, self.size);
        Some((serial, len))
    }
}

/// The chain that the device would take next, as the driver numbered it.
fn serial_of(vring: &mut Vring, ahead: u16) -> (u64, u16) {
    let head = vring.head(ahead);
    let mut serial = None;
    let mut count = 0;
    let walked = packed(vring).walk(&vring.space, head, &mut 10_000, |_, desc| {
        let at = desc.addr - BUFFERS;
        assert_eq!(at % 64, count, "descriptors in order");
        assert!(*serial.get_or_insert(at / 64) == at / 64, "of one chain");
        count += 1;
        Ok(())
    });
    assert_eq!(walked, Ok(()));
    assert_eq!(count, u64::from(vring.entries_of(head)));
    (serial.unwrap(), count as u16)
}

fn packed(vring: &Vring) -> &Packed {
    match &vring.layout {
        Layout::Packed(packed) => packed,
        Layout::Split(_) => panic!("it is packed"),
    }
}

fn notes() -> Note {
    let (_file, table) = NoteTable::create().unwrap();
    table.take().unwrap().note(0, EPOCH).unwrap()
}

/// One step of a device: uses some of what is there, frame by frame. Returns the frames, as serial
/// numbers of their chains with lengths.
fn use_some(vring: &mut Vring, dice: &mut Dice) -> Vec<Vec<(u64, u32)>> {
    let mut frames = Vec::new();
    let known = vring.available().unwrap();
    let take = dice.below(u64::from(known) + 1) as u16;
    let mut left = take;
    while left > 0 {
        let chains = (1 + dice.below(3) as u16 * dice.below(2) as u16).min(left);
        let mut frame = Vec::new();
        for n in 0..chains {
            let (serial, _) = serial_of(vring, 0);
            let len = dice.below(2) as u32 * 17;
            vring.push_part(vring.head(0), len, n + 1 < chains);
            vring.next_avail = vring.next_avail.wrapping_add(1);
            frame.push((serial, len));
        }
        frames.push(frame);
        left -= chains;
    }
    frames
}

#[test]
fn whatever_is_offered_comes_back_in_order() {
    for seed in 0..300u64 {
        let mut dice = Dice(seed);
        let size = [1, 2, 3, 5, 7, 8, 13, 16, 100][dice.below(9) as usize];
        let begins = (dice.below(u64::from(size)) as u16, dice.below(2) == 0);
        let guest = Guest::new();
        let mut driver = Driver::new(&guest, size, begins);
        let base = begins.0 | if begins.1 { FRESH } else { 0 };
        let setup = guest.setup(size, Features::NONE, &notes());
        let (mut vring, resumed) = Vring::start(&setup, base).unwrap();
        assert_eq!((resumed, vring.position()), (base != FRESH, base));
        let mut due = VecDeque::new();
        for _ in 0..200 {
            for _ in 0..dice.below(6) {
                let descriptors = 1 + dice.below(4.min(u64::from(size))) as u16;
                driver.offer(&guest, descriptors, WRITE);
            }
            assert_eq!(vring.status().waiting, size - driver.room);
            assert_eq!(vring.has_all_entries(), vring.status().waiting == size);
            for frame in use_some(&mut vring, &mut dice) {
                due.extend(frame);
            }
            vring.publish(Point::RxPublished);
            while let Some((serial, len)) = driver.reap(&guest) {
                let (wanted, of) = due.pop_front().unwrap();
                assert_eq!((serial % 900, len), (wanted, of), "seed {seed}");
            }
            assert!(due.is_empty(), "all that was published is seen");
            let (index, lap) = driver.used;
            assert_eq!(vring.position(), index | if lap { FRESH } else { 0 });
            if dice.below(10) == 0 {
                // Another device goes on, as in a new memory table, or by the note.
                let (next, resumed) = match dice.below(2) {
                    0 => {
                        let mut next = Vring::elsewhere(&setup).unwrap();
                        next.take_positions(&vring).unwrap();
                        (next, true)
                    }
                    _ => Vring::start(&setup, 0x1234).unwrap(),
                };
                assert_eq!(next.position(), vring.position());
                assert!(resumed || next.position() == FRESH);
                vring = next;
            }
        }
    }
}

/// A ring with more chains than numbers, of a size that is no power of two.
#[test]
fn chain_numbers_begin_again() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, 1000, (0, true));
    let setup = guest.setup(1000, Features::NONE, &notes());
    let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
    while driver.offer(&guest, 1, WRITE) {}
    let mut seen = 0;
    while seen < 70_000 {
        let n = vring.available().unwrap();
        assert!(n > 0);
        for _ in 0..n {
            vring.push_used(vring.head(0), 9);
            vring.next_avail = vring.next_avail.wrapping_add(1);
        }
        vring.publish(Point::RxPublished);
        while let Some((serial, len)) = driver.reap(&guest) {
            assert_eq!((serial, len), (seen, 9));
            seen += 1;
            assert!(driver.offer(&guest, 1, WRITE));
        }
    }
}

#[test]
fn chains_that_break_the_rules() {
    let guest = Guest::new();
    // A chain without an end.
    for size in [4u16, 3000] {
        let setup = guest.setup(size, Features::NONE, &notes());
        let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
        for n in 0..u64::from(size) {
            guest.put(RING + 16 * n + 8, &(0x0081_0000_0000_0040u64 | 1 << 48).to_le_bytes());
        }
        assert_eq!((vring.available(), vring.broken), (None, true), "{size}");
        guest.put(RING, &vec![0; 16 * usize::from(size)]);
    }
    // Indirect tables: not negotiated; with NEXT; inside another; of no whole entries.
    let indirect = Features::INDIRECT_DESC;
    let cases = [
        (Features::NONE, INDIRECT, 16u32, WRITE, false),
        (indirect, INDIRECT, 16, WRITE, true),
        (indirect, INDIRECT, 32, WRITE, true),
        (indirect, INDIRECT, 16, INDIRECT, false),
        (indirect, INDIRECT, 0, WRITE, false),
        (indirect, INDIRECT, 17, WRITE, false),
        // NEXT means nothing in a table.
        (indirect, INDIRECT, 16, WRITE | NEXT, true),
    ];
    for (features, flags, len, inner, right) in cases {
        let setup = guest.setup(4, features, &notes());
        let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
        for n in 0..2 {
            guest.put(TABLE + 16 * n, &BUFFERS.to_le_bytes());
            guest.put(TABLE + 16 * n + 8, &(64 | u64::from(inner) << 48).to_le_bytes());
        }
        guest.put(RING, &TABLE.to_le_bytes());
        let rest = u64::from(len) | 7 << 32 | u64::from(flags | AVAIL) << 48;
        guest.put(RING + 8, &rest.to_le_bytes());
        assert_eq!(vring.available(), Some(1));
        let mut seen = 0;
        let walked = packed(&vring).walk(&vring.space, vring.head(0), &mut 100, |_, desc| {
            assert_eq!((desc.addr, desc.len), (BUFFERS, 64));
            seen += 1;
            Ok(())
        });
        assert_eq!(walked.is_ok(), right, "{flags} {len} {inner}");
        assert_eq!(seen, if right { len / 16 } else { 0 });
        guest.put(RING, &[0; 64]);
    }
    // A table with NEXT, and one behind another descriptor.
    for (first, second) in [(INDIRECT | NEXT, WRITE), (WRITE | NEXT, INDIRECT)] {
        let setup = guest.setup(4, indirect, &notes());
        let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
        for (n, flags) in [first, second].into_iter().enumerate() {
            guest.put(RING + 16 * n as u64, &TABLE.to_le_bytes());
            let rest = 16 | u64::from(flags | AVAIL) << 48;
            guest.put(RING + 16 * n as u64 + 8, &rest.to_le_bytes());
        }
        assert_eq!(vring.available(), Some(1));
        let walked = packed(&vring).walk(&vring.space, vring.head(0), &mut 100, |_, _| Ok(()));
        assert_eq!(walked, Err(BadChain));
        guest.put(RING, &[0; 64]);
    }
    // A budget that is used up is no fault of the chain's that ends it.
    let setup = guest.setup(8, Features::NONE, &notes());
    let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
    let mut driver = Driver::new(&guest, 8, (0, true));
    driver.offer(&guest, 4, WRITE);
    assert_eq!(vring.available(), Some(1));
    let mut budget = 3;
    assert_eq!(
        packed(&vring).walk(&vring.space, vring.head(0), &mut budget, |_, _| Ok(())),
        Err(BadChain)
    );
    assert_eq!(budget, 0);
}

#[test]
fn interrupts_are_sent_when_the_driver_wants_them() {
    let guest = Guest::new();
    let size = 8;
    let mut driver = Driver::new(&guest, size, (0, true));
    let mut setup = guest.setup(size, Features::EVENT_IDX, &notes());
    let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    setup.call = Some(Arc::new(CallFd::new(call, Arc::default()).unwrap()));
    let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
    let turn = |driver: &mut Driver, vring: &mut Vring, chains: u16| {
        for _ in 0..chains {
            assert!(driver.offer(&guest, 1, WRITE));
        }
        for _ in 0..chains {
            assert!(vring.available() > Some(0));
            vring.push_used(vring.head(0), 1);
            vring.next_avail = vring.next_avail.wrapping_add(1);
        }
        let call = vring.publish(Point::RxPublished);
        while driver.reap(&guest).is_some() {}
        call.is_some()
    };
    let event = |place: u16, flags: u16| {
        guest.put(DRIVER, &[place.to_le_bytes(), flags.to_le_bytes()].concat());
    };
    event(0, 0);
    assert!(
        turn(&mut driver, &mut vring, 1) && vring.publish(Point::RxPublished).is_none(),
        "once for each entry"
    );
    event(0, 1);
    assert!(!turn(&mut driver, &mut vring, 1));
    // At a place that is ahead: 2 is next, 4 is wanted.
    event(4 | FRESH, 2);
    assert!(!vring.awaits_next() && !turn(&mut driver, &mut vring, 2));
    assert!(vring.awaits_next(), "the driver has seen all");
    assert!(turn(&mut driver, &mut vring, 1), "4 is used");
    assert!(!turn(&mut driver, &mut vring, 2), "5 and 6");
    // Over the end: 7 is next, and 0 in the next lap is wanted.
    event(0, 2);
    assert!(!turn(&mut driver, &mut vring, 1) && turn(&mut driver, &mut vring, 1));
    // A whole lap at once, whichever is wanted in it: from 1 on.
    for wanted in [1, 7, FRESH] {
        event(wanted, 2);
        assert!(turn(&mut driver, &mut vring, 8), "{wanted:#x}");
        event(0, 1);
        assert!(!turn(&mut driver, &mut vring, 8));
    }
    // What was wanted long ago is wanted no more, however often it is passed.
    event(1, 2);
    assert!(vring.awaits_next() && turn(&mut driver, &mut vring, 8));
    assert!(!turn(&mut driver, &mut vring, 8));
    assert_eq!(vring.position(), 1);
    assert!(!vring.awaits_next(), "the driver said so two laps ago");
}

#[test]
fn kicks_are_asked_for_and_not() {
    let guest = Guest::new();
    let said = || guest.get::<4>(DEVICE);
    for features in [Features::NONE, Features::EVENT_IDX] {
        let setup = guest.setup(8, features, &notes());
        let mut driver = Driver::new(&guest, 8, (0, true));
        let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
        vring.disarm();
        assert_eq!(said(), [0, 0, 1, 0]);
        assert!(vring.arm());
        let at_first = if features == Features::NONE { [0, 0, 0, 0] } else { [0, 0x80, 2, 0] };
        assert_eq!(said(), at_first);
        driver.offer(&guest, 2, WRITE);
        assert!(!vring.arm(), "one came meanwhile");
        vring.push_used(vring.head(0), 0);
        vring.next_avail = vring.next_avail.wrapping_add(1);
        vring.publish(Point::RxPublished);
        assert!(vring.arm());
        let at_third = if features == Features::NONE { [0, 0, 0, 0] } else { [2, 0x80, 2, 0] };
        assert_eq!(said(), at_third);
        guest.put(RING, &[0; 128]);
    }
}

#[test]
fn setups_that_cannot_run() {
    let guest = Guest::new();
    let note = notes();
    let with = |change: fn(&mut RingSetup)| {
        let mut setup = guest.setup(8, Features::NONE, &note);
        change(&mut setup);
        Vring::start(&setup, FRESH).err()
    };
    assert_eq!(with(|_| {}), None);
    assert_eq!(with(|setup| setup.size = 0), Some(RingError::PackedSize(0)));
    assert_eq!(with(|setup| setup.size = 32_769), Some(RingError::PackedSize(32_769)));
    assert_eq!(with(|setup| setup.desc = MEMORY - 64), Some(RingError::Place("descriptor")));
    assert_eq!(with(|setup| setup.avail += 2), Some(RingError::Place("driver's event")));
    assert_eq!(with(|setup| setup.used = MEMORY), Some(RingError::Place("device's event")));
    assert_eq!(with(|setup| setup.note = None), Some(RingError::Lost));
    // One that runs becomes neither split nor smaller than where it stands.
    let setup = guest.setup(8, Features::NONE, &notes());
    let (vring, _) = Vring::start(&setup, FRESH | 7).unwrap();
    let mut split = guest.setup(8, Features::NONE, &note);
    split.features = Features::VERSION_1;
    let mut other = Vring::elsewhere(&split).unwrap();
    assert_eq!(other.take_positions(&vring), Err(RingError::Layout));
    let mut smaller = Vring::elsewhere(&guest.setup(7, Features::NONE, &note)).unwrap();
    assert_eq!(smaller.take_positions(&vring), Err(RingError::Position(7, 7)));
    // Positions outside of the ring, given or noted.
    let fresh = guest.setup(8, Features::NONE, &notes());
    assert_eq!(Vring::start(&fresh, 8).err(), Some(RingError::Position(8, 8)));
    let damaged = notes();
    damaged.begin(9);
    let setup = guest.setup(8, Features::NONE, &damaged);
    assert_eq!(Vring::start(&setup, FRESH).err(), Some(RingError::Lost));
    let chain = |descriptors| Listed { len: 0, id: 0, descriptors, more: false };
    for list in [[chain(0), chain(1)], [chain(8), chain(1)]] {
        damaged.begin(FRESH);
        damaged.listing(FRESH, list.into_iter());
        assert_eq!(Vring::start(&setup, FRESH).err(), Some(RingError::Lost));
    }
}

/// Descriptors of a ring that is discarded are counted, whatever their chains are.
#[test]
fn entries_are_descriptors() {
    let guest = Guest::new();
    let setup = guest.setup(300, Features::NONE, &notes());
    let (mut vring, _) = Vring::start(&setup, FRESH | 200).unwrap();
    let mut driver = Driver::new(&guest, 300, (200, true));
    for n in 0..=300u16 {
        assert_eq!((vring.entries(), vring.has_entries()), (n, n > 0));
        assert_eq!(vring.has_all_entries(), n == 300);
        assert_eq!(driver.offer(&guest, 1, WRITE), n < 300);
    }
}

/// Dies between each two stores of a publication; a successor goes on.
#[cfg(feature = "kill-points")]
#[test]
fn a_successor_finds_its_place_wherever_a_device_dies() {
    use butterfly_point::{Died, doom, spare};
    use std::{
        collections::BTreeMap,
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    let mut deaths = BTreeMap::new();
    for seed in 0..3000u64 {
        let mut dice = Dice(seed);
        let size = [2, 3, 7, 8, 64][dice.below(5) as usize];
        let guest = Guest::new();
        let mut driver = Driver::new(&guest, size, (0, true));
        let note = notes();
        let setup = guest.setup(size, Features::NONE, &note);
        let (mut vring, _) = Vring::start(&setup, FRESH).unwrap();
        for _ in 0..30 {
            for _ in 0..dice.below(10) {
                let descriptors = 1 + dice.below(3.min(u64::from(size))) as u16;
                driver.offer(&guest, descriptors, WRITE);
            }
            let frames = use_some(&mut vring, &mut dice);
            doom(None, 1 + dice.below(8), || {});
            let published = catch_unwind(AssertUnwindSafe(|| vring.publish()));
            spare();
            if let Err(why) = published {
                let died = why.downcast::<Died>().unwrap_or_else(|why| resume_unwind(why));
                *deaths.entry(died.0.name()).or_insert(0) += 1;
                // Perhaps the guest goes on before there is a successor.
                if dice.below(2) == 0 {
                    while driver.reap(&guest).is_some() {}
                    driver.offer(&guest, 1, WRITE);
                }
                vring = Vring::start(&setup, FRESH).unwrap().0;
            }
            while driver.reap(&guest).is_some() {}
            let (index, lap) = driver.used;
            assert_eq!(vring.position(), index | if lap { FRESH } else { 0 }, "seed {seed}");
            // Each frame was shown whole, or not at all.
            let oldest = driver.out.front().map_or(driver.serial, |(_, _, serial)| *serial);
            for frame in frames {
                let (first, last) = (frame[0].0, frame[frame.len() - 1].0);
                let shown = |serial: u64| (oldest % 900 + 899 - serial) % 900 < 450;
                assert!(
                    oldest == 0 || shown(first) == shown(last),
                    "seed {seed}: {first} to {last} of {oldest}"
                );
            }
        }
    }
    println!("{deaths:?}");
    assert!(deaths["packed-noted"] > 1000 && deaths["packed-entry"] > 1000, "{deaths:?}");
}

/// A guest offers chains that are as long as can be and cannot be used: looking at them is its
/// debt, which time pays, not its senders' loss.
#[test]
fn looks_at_long_chains_are_paid_for() {
    use crate::ring::{FrameStore, Frames, NotDelivered, RxRing};

    let guest = Guest::new();
    let setup = guest.setup(1024, Features::NONE, &notes());
    let mut rx = RxRing::new(Vring::start(&setup, FRESH).unwrap().0);
    rx.vring.serve(true, false);
    let last = 1023;
    for n in 0..=last {
        let next = if n < last { NEXT } else { 0 };
        let rest = 64 | 7 << 32 | u64::from(next | AVAIL) << 48;
        guest.put(RING + 16 * n + 8, &rest.to_le_bytes());
    }
    let mut store = FrameStore::default();
    let bytes = [7u8; 60];
    let mut looks = 0;
    for _ in 0..500 {
        let frames = Frames::private(&mut store, std::iter::once(&bytes[..]));
        match rx.deliver_one(&frames, 0) {
            Err(NotDelivered::BadChain) => {
                looks += 1;
                rx.publish();
                // All that it takes to offer it again: the first one, in the next lap.
                let lap = if rx.vring.position() & FRESH != 0 { AVAIL } else { USED };
                let rest = 64 | 7 << 32 | u64::from(NEXT | lap) << 48;
                guest.put(RING + 8, &rest.to_le_bytes());
            }
            Err(NotDelivered::Full | NotDelivered::Slow) => {}
            other => panic!("{other:?}"),
        }
    }
    // One for each 50 frames, and some for each millisecond that passed meanwhile.
    assert!((1..50).contains(&looks), "{looks} chains of 1,024 descriptors");
}

/// A guest writes anything into its ring and event structure, at any time.
#[test]
fn garbage_harms_nobody_else() {
    use crate::ring::{FrameStore, Frames, Gathered, RxRing, TxRing};

    let bytes = vec![7u8; 3000];
    let mut store = FrameStore::default();
    let mut given = FrameStore::default();
    let (mut sent, mut delivered, mut broken) = (0, 0, 0);
    for seed in 0..1500u64 {
        let mut dice = Dice(seed);
        let size = [1, 2, 5, 16, 300, 1500][dice.below(6) as usize];
        let guest = Guest::new();
        let mut features = Features::NONE;
        for feature in [Features::INDIRECT_DESC, Features::EVENT_IDX, Features::MRG_RXBUF] {
            features = if dice.below(2) == 0 { features.with(feature) } else { features };
        }
        let setup = guest.setup(size, features, &notes());
        let ring = || Vring::start(&setup, FRESH | dice_below(size, seed)).unwrap().0;
        let (mut tx, mut rx) = (TxRing::new(ring()), RxRing::new(ring()));
        tx.vring.serve(true, false);
        rx.vring.serve(true, false);
        rx.forget_prepared();
        for _ in 0..20 {
            for _ in 0..dice.below(40) {
                let at = RING + 16 * dice.below(u64::from(size));
                let addr = match dice.below(8) {
                    0 => dice.below(u64::MAX >> 33) << 20,
                    1 => RING + dice.below(64),
                    2 => MEMORY - dice.below(64),
                    _ => BUFFERS + dice.below(0x10_000),
                };
                let len = match dice.below(20) {
                    0 => u64::from(u32::MAX),
                    1..=5 => dice.below(64),
                    _ => dice.below(4000),
                };
                let one_of = |dice: &mut Dice, n| u64::from(dice.below(n) == 0);
                let next = one_of(&mut dice, 12);
                let kind = next | one_of(&mut dice, 2) << 1 | one_of(&mut dice, 12) << 2;
                // Mostly available in one of both laps.
                let lap = [1 << 7, 1 << 15, 0, 1 << 7 | 1 << 15][dice.below(9).min(3) as usize % 4];
                let lap = if dice.below(3) == 0 { lap } else { 1 << 7 };
                let flags = kind | lap;
                guest.put(at, &addr.to_le_bytes());
                let rest = len | dice.below(1 << 16) << 32 | flags << 48;
                guest.put(at + 8, &rest.to_le_bytes());
            }
            guest.put(DRIVER, &(dice.below(1 << 32) as u32).to_le_bytes());
            match tx.available() {
                None => {
                    broken += 1;
                    tx = TxRing::new(ring());
                    tx.vring.serve(true, false);
                }
                Some(n) => {
                    if let Gathered::Frames(mut frames) = tx.gather(&mut store, n, |_| {}) {
                        sent += frames.len();
                        frames.release();
                    }
                }
            }
            let lengths = [60, 1000, 3000].map(|len| &bytes[..len]);
            let frames = Frames::private(&mut given, lengths.into_iter());
            rx.prefetch(3);
            rx.prepare(3);
            let (done, _) = rx.deliver_run(&frames, 0..3);
            delivered += done;
            for index in done..3 {
                delivered += usize::from(rx.deliver_one(&frames, index).is_ok());
            }
            rx.publish();
            if rx.vring.broken {
                rx = RxRing::new(ring());
                rx.vring.serve(true, false);
            }
            for vring in [&mut tx.vring, &mut rx.vring] {
                assert!(vring.position() & !FRESH < size);
                if dice.below(3) == 0 {
                    vring.arm();
                    vring.disarm();
                }
            }
        }
    }
    println!("{sent} sent, {delivered} delivered, {broken} times broken");
    assert!(sent > 1000 && delivered > 300 && broken > 10);
}

fn dice_below(size: u16, seed: u64) -> u16 {
    Dice(seed ^ 0x55).below(u64::from(size)) as u16
}
