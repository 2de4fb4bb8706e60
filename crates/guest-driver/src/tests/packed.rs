//! The driver on packed rings: against a device by the book, and against one that breaks its
//! rules.

use std::{
    collections::{HashSet, VecDeque},
    os::unix::net::UnixStream,
    time::Duration,
};

use butterfly_vhost::net::{Features, NetHeader};
use proptest::prelude::*;

use super::{
    SECOND, Way, fast, fast_there_and_back, frame, guest, header,
    loopback::{DeviceChain, DeviceHalf, Loopback},
    packed_device::{PackedDevice, Spot},
    shape, there_and_back,
};
use crate::{
    raw::FrontendReq,
    ring::{DESC_WRITE, PACKED_AVAIL, PACKED_USED},
    *,
};

const PACKED: Features = Features(Features::VERSION_1.0 | Features::RING_PACKED.0);

fn packed_features() -> impl Strategy<Value = Features> {
    super::features().prop_map(|features| features.with(PACKED))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Frames that are sent come back and nothing leaks: with all features, layouts, sizes and
    /// places to begin.
    #[test]
    fn frames_come_back_on_packed_rings(
        features in packed_features(),
        tx_shape in shape(),
        rx_shape in shape(),
        size in 8u16..150,
        first: Option<u16>,
        lens in proptest::collection::vec(prop_oneof![1usize..100, 1400usize..1515, 8000usize..9000], 1..80),
        batch in 1usize..20,
        batch_used: bool,
        backwards: bool,
        interrupts: bool,
        regions in 1usize..4,
    ) {
        let config = GuestConfig { tx_shape, rx_shape, interrupts, first, ..GuestConfig::default() };
        let way = Way { batch, batch_used, backwards, regions };
        there_and_back(features, config.rings(size), &lens, way)?;
    }

    /// The fast driver behaves on packed rings as the general one does.
    #[test]
    fn fast_frames_come_back_on_packed_rings(
        features in packed_features(),
        size in 16u16..300,
        lens in proptest::collection::vec(prop_oneof![14usize..100, 1400usize..1515, 8000usize..9000], 1..200),
        batch in 1usize..70,
        batch_used: bool,
        backwards: bool,
        header_apart: bool,
        indirect: bool,
    ) {
        let way = Way { batch, batch_used, backwards, regions: 1 };
        fast_there_and_back(features, (size, header_apart, indirect), &lens, way)?;
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Adds a chain of so many readable and writable buffers, in a table or not.
    Add(usize, usize, bool),
    Publish,
    /// The device asks to be notified: never, always, or so many descriptors on.
    Ask(Option<Option<u16>>),
    Notify,
    /// The device takes what there is.
    Take,
    /// The device uses chains that it took: a choice, how many, one entry for all (IN_ORDER).
    Use(prop::sample::Index, usize, bool),
    Pop,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..4, 0usize..4, any::<bool>()).prop_map(|(r, w, table)| Op::Add(r, w, table)),
        2 => Just(Op::Publish),
        1 => proptest::option::of(proptest::option::of(0u16..20)).prop_map(Op::Ask),
        2 => Just(Op::Notify),
        2 => Just(Op::Take),
        3 => (any::<prop::sample::Index>(), 1usize..4, any::<bool>())
            .prop_map(|(index, count, one)| Op::Use(index, count, one)),
        4 => Just(Op::Pop),
    ]
}

/// A queue of its own, for a device.
struct Single {
    memory: std::sync::Arc<Memory>,
    features: Features,
    queue: VirtQueue,
}

impl Nic for Single {
    fn features(&self) -> Features {
        self.features
    }

    fn memory(&self) -> &std::sync::Arc<Memory> {
        &self.memory
    }

    fn link(&self, _: usize) -> &QueueLink {
        self.queue.as_ref()
    }
}

/// Both sides of a ring, and what has to be true of them.
struct Bookkeeper {
    nic: Single,
    device: PackedDevice,
    features: Features,
    size: u16,
    /// Chains added, by token: descriptors in the ring, writable bytes.
    chains: Vec<(u16, u32)>,
    /// Tokens that the device can take, in order; those before `published` are visible.
    added: VecDeque<u64>,
    published: usize,
    /// Descriptors published and not notified of.
    fresh: Vec<u16>,
    taken: Vec<(u64, DeviceChain)>,
    /// Tokens and lengths to be popped.
    used: VecDeque<(u64, u32)>,
    free: u16,
    end: Spot,
}

impl Bookkeeper {
    fn new(size: u16, features: Features, first: Option<u16>) -> Bookkeeper {
        let memory = Memory::new(&MemoryConfig::new(2 << 20)).unwrap();
        let mut queue = VirtQueue::new(&memory, size, features).unwrap();
        queue.reset_at(features, first);
        let nic = Single { memory, features, queue };
        let device = PackedDevice::of(&nic, 0);
        let end = device.avail;
        Bookkeeper {
            nic,
            device,
            features,
            size,
            chains: Vec::new(),
            added: VecDeque::new(),
            published: 0,
            fresh: Vec::new(),
            taken: Vec::new(),
            used: VecDeque::new(),
            free: size,
            end,
        }
    }

    fn add(&mut self, readable: usize, writable: usize, table: bool) {
        let token = self.chains.len() as u64;
        // The addresses carry the token, and the device checks them.
        let buffers: Vec<_> = (0..readable + writable)
            .map(|n| Buffer {
                addr: token << 16 | n as u64,
                len: n as u32 + 1,
                writable: n >= readable,
            })
            .collect();
        let placement = if table { Placement::Indirect } else { Placement::Direct };
        let descs = if table { 1 } else { buffers.len() as u16 };
        let result = self.nic.queue.add(&buffers, placement, token);
        if buffers.is_empty() || descs > self.size {
            assert!(matches!(result, Err(AddError::Shape(_))), "{result:?}");
        } else if descs > self.free {
            assert!(matches!(result, Err(AddError::Full)), "{result:?}");
        } else {
            result.unwrap();
            let room = buffers.iter().filter(|b| b.writable).map(|b| b.len).sum();
            self.chains.push((descs, room));
            self.added.push_back(token);
            self.free -= descs;
        }
    }

    fn publish(&mut self) {
        self.nic.queue.publish();
        for token in self.added.iter().skip(self.published) {
            for _ in 0..self.chains[*token as usize].0 {
                self.fresh.push(self.end.bits());
                self.end.step(self.size);
            }
        }
        self.published = self.added.len();
    }

    fn notify(&mut self, asked: Option<Option<u16>>) {
        let wanted = match asked {
            None => false,
            Some(None) => !self.fresh.is_empty(),
            Some(Some(at)) => {
                let lap = self.fresh.len().saturating_sub(self.size.into());
                self.fresh[lap..].contains(&at)
            }
        };
        assert_eq!(self.nic.queue.notify(), wanted, "{asked:?} of {:?}", self.fresh);
        self.fresh.clear();
    }

    fn take(&mut self) {
        while let Some(chain) = self.device.take() {
            let token = self.added.pop_front().expect("nothing that was not added");
            assert!(self.published > 0, "nothing that was not published");
            self.published -= 1;
            let all = chain.readable.iter().chain(&chain.writable);
            for (n, (addr, len)) in all.enumerate() {
                assert_eq!((*addr, *len), (token << 16 | n as u64, n + 1));
            }
            let room: usize = chain.writable.iter().map(|(_, len)| len).sum();
            assert_eq!((chain.descs, room as u32), self.chains[token as usize]);
            self.taken.push((token, chain));
        }
        assert_eq!(self.published, 0, "all that was published");
    }

    fn use_some(&mut self, index: &prop::sample::Index, count: usize, one: bool) {
        let in_order = self.features.has(Features::IN_ORDER);
        self.device.set_batch_used(in_order && one);
        let count = count.min(self.taken.len());
        for number in 0..count {
            let at = if in_order { 0 } else { index.index(self.taken.len()) };
            let (token, chain) = self.taken.remove(at);
            let room = self.chains[token as usize].1;
            let len = index.index(room as usize + 1) as u32;
            self.device.push_used(&chain, len);
            // Left out, it counts as written completely.
            let left_out = in_order && one && number + 1 < count;
            self.used.push_back((token, if left_out { room } else { len }));
        }
        self.device.publish();
    }

    fn pop(&mut self) {
        let popped = self.nic.queue.pop().unwrap().map(|used| (used.token, used.len));
        assert_eq!(popped, self.used.pop_front());
        self.free += popped.map_or(0, |(token, _)| self.chains[token as usize].0);
    }

    fn check(&self) {
        let queue = &self.nic.queue;
        let ready = self.used.len() as u16;
        assert_eq!((queue.has_used(), queue.used_ready()), (ready != 0, ready));
        assert_eq!(queue.used_ready_of(2), ready.min(2));
        assert_eq!(queue.free_descs(), self.free);
        let outstanding = self.added.len() + self.taken.len() + self.used.len();
        assert_eq!(usize::from(queue.outstanding()), outstanding);
        assert_eq!(queue.published(), self.end.bits());
        assert_eq!(queue.restart_position(), self.device.used.bits());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Each side sees what the other one did, all of it and once, in whichever order both act and
    /// the device uses chains.
    #[test]
    fn packed_rings_by_the_book(
        size in 1u16..20,
        first: Option<u16>,
        in_order: bool,
        ops in proptest::collection::vec(op(), 0..300),
    ) {
        let features = PACKED.with(Features::INDIRECT_DESC).with(Features::EVENT_IDX);
        let features = if in_order { features.with(Features::IN_ORDER) } else { features };
        let mut book = Bookkeeper::new(size, features, first);
        let mut asked = Some(None);
        for op in ops {
            match op {
                Op::Add(readable, writable, table) => book.add(readable, writable, table),
                Op::Publish => book.publish(),
                Op::Ask(None) => { asked = None; book.device.ask(None) }
                Op::Ask(Some(None)) => { asked = Some(None); book.device.ask(Some(None)) }
                Op::Ask(Some(Some(on))) => {
                    let mut at = book.end;
                    (0..on.min(size - 1)).for_each(|_| at.step(size));
                    asked = Some(Some(at.bits()));
                    book.device.ask(Some(Some(at)));
                }
                Op::Notify => book.notify(asked),
                Op::Take => book.take(),
                Op::Use(index, count, one) => book.use_some(&index, count, one),
                Op::Pop => book.pop(),
            }
            book.check();
        }
    }
}

#[test]
fn every_packed_ring_size() {
    for size in (1..40).chain([100, 255, 257, 1000, 32768]) {
        let config =
            GuestConfig { rx_buffer: 128, max_frame: 100, ..GuestConfig::default() }.rings(size);
        let mut guest = guest(PACKED, &config);
        let mut device = Loopback::of(&guest);
        // More than fits, so that both laps are seen.
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

#[test]
fn chains_of_any_cuts_on_packed_rings() {
    let mut guest = guest(PACKED.with(Features::INDIRECT_DESC), &GuestConfig::default());
    let mut device = Loopback::of(&guest);
    let cuts = [0, 1, 5, 5, 12, 13, 112, 112];
    for placement in [Placement::Direct, Placement::Indirect] {
        guest.enqueue_cut(&frame(1, 100), header(1), &cuts, placement).unwrap();
        guest.flush();
        device.run();
        assert_eq!(guest.recv().unwrap().unwrap().1, frame(1, 100));
    }
    let mixed = guest.enqueue_cut(&frame(1, 100), header(1), &cuts, Placement::IndirectAfter(3));
    assert!(matches!(mixed, Err(SendError::Chain(AddError::Shape(_)))), "{mixed:?}");
}

#[test]
fn ids_are_not_positions() {
    let mut guest = guest(PACKED, &GuestConfig::default());
    let mut device = PackedDevice::of(&guest, TX);
    guest.send_batch(vec![[0u8; 60]; 200]).unwrap();
    let mut seen = HashSet::new();
    for position in 0..200 {
        let id = device.take().unwrap().id;
        assert!(id < 256 && id != position && seen.insert(id), "{id} at {position}");
    }
}

#[test]
fn kicks_follow_a_packed_devices_wishes() {
    for features in [PACKED, PACKED.with(Features::EVENT_IDX)] {
        let mut guest = guest(features, &GuestConfig::default());
        let device = PackedDevice::of(&guest, TX);
        let mut send = |n: usize| {
            let before = guest.tx().stats().kicks;
            guest.send_batch(vec![[0u8; 60]; n]).unwrap();
            guest.tx().stats().kicks - before
        };
        assert_eq!((send(1), send(5)), (1, 1), "a zeroed structure asks for all");
        device.ask(None);
        assert_eq!((send(1), send(3)), (0, 0));
        if features.has(Features::EVENT_IDX) {
            device.ask(Some(Some(Spot { index: 15, wrap: 1 })));
            assert_eq!((send(5), send(1), send(1)), (0, 1, 0), "15, 16, 17 descriptors");
        }
    }
}

#[test]
fn polling_asks_for_no_interrupts_on_packed_rings() {
    for features in [PACKED, PACKED.with(Features::EVENT_IDX)] {
        let mut guest = guest(features, &GuestConfig::default());
        let mut device = Loopback::of(&guest);
        for i in 0..1000 {
            guest.send(&frame(i, 60), NetHeader::default()).unwrap();
            device.run();
            guest.recv().unwrap().unwrap();
        }
        let interrupts = (guest.rx_mut().take_interrupts(), guest.tx_mut().take_interrupts());
        assert_eq!(interrupts, (0, 0), "{features:?}");
    }
}

#[test]
fn a_sleeper_on_a_packed_ring_is_woken() {
    for features in [PACKED, PACKED.with(Features::EVENT_IDX)] {
        let config = GuestConfig { interrupts: true, ..GuestConfig::default() }.rings(7);
        let mut guest = guest(features, &config);
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
            guest.send(&frame(i, 60), NetHeader::default()).unwrap();
            let (_, got) = guest.recv_wait(Duration::from_secs(10)).unwrap().expect("a frame");
            assert_eq!(got, frame(i, 60));
        }
        worker.join().unwrap();
        assert!(guest.rx().stats().interrupts > 0, "it slept");
    }
}

#[test]
fn an_interrupt_forgotten_on_a_packed_ring_is_noticed() {
    let config = GuestConfig { interrupts: true, ..GuestConfig::default() };
    let mut guest = guest(PACKED, &config);
    let mut device = PackedDevice::of(&guest, RX);
    let ring = guest.rx().packed_ring().clone();
    let worker = std::thread::spawn(move || {
        while device.is_suppressed() {
            std::thread::yield_now();
        }
        // As on a split ring: nothing shows when the guest begins to sleep.
        std::thread::sleep(Duration::from_millis(20));
        let id = device.take().unwrap().id;
        ring.set_desc(0, used_desc(id, 72));
    });
    assert_eq!(guest.rx_mut().wait(Duration::from_millis(300)), Err(DeviceError::MissedInterrupt));
    worker.join().unwrap();
}

/// Makes a descriptor used in the first lap.
fn used_desc(id: u16, len: u32) -> PackedDesc {
    PackedDesc { addr: 0, len, id, flags: PACKED_AVAIL | PACKED_USED | DESC_WRITE }
}

/// Mistakes of the device are noticed, and named.
#[test]
fn a_device_that_lies_on_a_packed_ring_is_caught() {
    let cheat = |features: Features, with: &dyn Fn(&PackedRing, &mut PackedDevice)| {
        let mut guest = guest(features, &GuestConfig::default());
        let mut device = PackedDevice::of(&guest, RX);
        with(guest.rx().packed_ring(), &mut device);
        guest.recv()
    };
    // The first chain has the highest id.
    let used = |id, len| cheat(PACKED, &move |ring, _| ring.set_desc(0, used_desc(id, len)));
    assert_eq!(used(256, 72), Err(DeviceError::UsedId(256)));
    assert_eq!(used(u16::MAX, 72), Err(DeviceError::UsedId(65535)));
    assert_eq!(used(255, 2049), Err(DeviceError::UsedLen { len: 2049, writable: 2048 }));
    assert_eq!(used(255, 11), Err(DeviceError::ShortHeader(11)));
    let unwritten = DeviceError::NumBuffers { claimed: 0, available: 1 };
    assert_eq!(used(255, 72), Err(unwritten), "num_buffers was not written");
    assert_eq!(
        cheat(PACKED, &|ring, _| {
            let flags = PACKED_AVAIL | PACKED_USED;
            ring.set_desc(0, PackedDesc { flags, ..used_desc(255, 72) });
        }),
        Err(DeviceError::ShortHeader(0)),
        "without WRITE nothing was written"
    );
    for flags in [PACKED_AVAIL, PACKED_USED, 0] {
        let half_used = cheat(PACKED, &|ring, _| {
            ring.set_desc(0, PackedDesc { flags, ..used_desc(255, 72) });
        });
        assert_eq!(half_used, Ok(None), "not used in this lap: {flags:#x}");
    }
    let merged = cheat(PACKED.with(Features::MRG_RXBUF), &|ring, device| {
        let chain = device.take().unwrap();
        device.write(&chain, &NetHeader { num_buffers: 2, ..NetHeader::default() }.to_bytes());
        ring.set_desc(0, used_desc(chain.id, 72));
    });
    assert_eq!(merged, Err(DeviceError::NumBuffers { claimed: 2, available: 1 }));

    // Sent frames: used twice, a chain that was never sent, used though nothing was sent, and not
    // in order.
    let sent = |features: Features, count: usize, ids: &[u16]| {
        let mut guest = guest(features, &GuestConfig::default());
        guest.send_batch(vec![[0u8; 60]; count]).unwrap();
        for (at, id) in (0..).zip(ids) {
            guest.tx().packed_ring().set_desc(at, used_desc(*id, 0));
        }
        guest.reclaim()
    };
    let in_order = PACKED.with(Features::IN_ORDER);
    assert_eq!(sent(PACKED, 2, &[255, 254]), Ok(2));
    assert_eq!(sent(PACKED, 2, &[254, 255]), Ok(2), "in any order");
    assert_eq!(sent(PACKED, 2, &[255, 255]), Err(DeviceError::UsedId(255)));
    assert_eq!(sent(PACKED, 2, &[253]), Err(DeviceError::UsedId(253)));
    let nothing = DeviceError::UsedIndex { moved: 1, outstanding: 0 };
    assert_eq!(sent(PACKED, 0, &[255]), Err(nothing));
    assert_eq!(sent(in_order, 3, &[255, 253]), Ok(3), "the second entry stands for two");
    assert_eq!(sent(in_order, 3, &[253]), Ok(3), "the only entry stands for three");
    assert_eq!(sent(in_order, 3, &[254, 255]), Ok(2), "place 1 was left out");
    assert_eq!(sent(in_order, 3, &[255, 255]), Err(DeviceError::OutOfOrder(255)));
    assert_eq!(sent(in_order, 3, &[252]), Err(DeviceError::OutOfOrder(252)));
}

#[test]
fn the_fast_nic_catches_a_device_that_lies_on_a_packed_ring() {
    let config = FastConfig {
        queue_size: 7,
        max_frame: 100,
        rx_buffer: 256,
        header_apart: false,
        indirect: false,
    };
    let cheat = |features: Features, entries: &[PackedDesc]| {
        let mut guest = fast(features, &config);
        for (at, entry) in (0..).zip(entries) {
            guest.link(RX).ring.packed().set_desc(at, *entry);
        }
        guest.rx.poll(|_| ())
    };
    let (merged, used) = (PACKED.with(Features::MRG_RXBUF), used_desc);
    assert_eq!(cheat(merged, &[used(7, 72)]), Err(DeviceError::UsedId(7)));
    assert_eq!(cheat(merged, &[used(65535, 72)]), Err(DeviceError::UsedId(65535)));
    let long = DeviceError::UsedLen { len: 257, writable: 256 };
    assert_eq!(cheat(merged, &[used(0, 257)]), Err(long));
    assert_eq!(cheat(merged, &[used(0, 11)]), Err(DeviceError::ShortHeader(11)));
    let unwritten = DeviceError::NumBuffers { claimed: 0, available: 1 };
    assert_eq!(cheat(merged, &[used(0, 72)]), Err(unwritten));
    assert_eq!(cheat(PACKED, &[used(0, 72)]), Ok(1));
    assert_eq!(cheat(PACKED, &[used(3, 72), used(0, 72)]), Ok(2), "in any order");
    assert_eq!(cheat(PACKED, &[used(0, 72), used(0, 72)]), Err(DeviceError::UsedId(0)));
    let in_order = PACKED.with(Features::IN_ORDER);
    assert_eq!(cheat(in_order, &[used(2, 72)]), Ok(3), "one entry stands for three");
    assert_eq!(
        cheat(in_order, &[used(1, 72), used(0, 72), used(0, 72)]),
        Err(DeviceError::UsedId(0))
    );
    let mut idle = fast(PACKED, &config);
    idle.link(TX).ring.packed().set_desc(0, used(0, 0));
    let nothing = DeviceError::UsedIndex { moved: 1, outstanding: 0 };
    assert_eq!(idle.tx.reclaim(), Err(nothing));
}

/// A front end says where both rings of a guest are, and where the device begins: QEMU says that
/// twice for packed rings.
#[test]
fn packed_rings_are_announced() {
    let place = Position { index: 55, wrap: false }.bits();
    for (first, base, said) in [
        (None, None, 0x8000_8000),
        (Some(place), None, 0x0037_0037),
        (Some(place), Some(0x8005), 0x8005_8005),
    ] {
        let config = GuestConfig { first, ..GuestConfig::default() }.rings(100);
        let guest = guest(PACKED, &config);
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(SECOND)).unwrap();
        let mut connection = Connection::new(ours).unwrap();
        let mut start = Start::default();
        if let Some(base) = base {
            start.base.set(TX, base);
        }
        connection.set_up_queue(TX, guest.tx(), &start).unwrap();
        let state = |value| raw::vring_state(TX as u32, value);
        let addr = guest.tx().packed_ring().user_addr();
        let addr = [TX as u64, addr.desc, addr.used, addr.avail, 0];
        for (request, body) in [
            (FrontendReq::SET_VRING_NUM, state(100)),
            (FrontendReq::SET_VRING_BASE, state(said)),
            (FrontendReq::SET_VRING_ADDR, raw::words(&addr)),
        ] {
            let message = raw::recv(&theirs).unwrap();
            assert_eq!((message.request, message.body), (request as u32, body));
        }
    }
}

#[test]
fn a_driver_loaded_again_changes_the_layout() {
    let mut guest = guest(Features::VERSION_1, &GuestConfig::default());
    let free = guest.memory().free_bytes();
    for features in [PACKED, Features::VERSION_1, PACKED.with(Features::MRG_RXBUF), Features::NONE]
    {
        guest.send_batch(vec![[1u8; 60]; 10]).unwrap();
        guest.reset(features);
        let mut device = Loopback::of(&guest);
        for number in 0..600 {
            guest.send(&frame(number, 1000), NetHeader::default()).unwrap();
            device.run();
            assert_eq!(guest.recv().unwrap().unwrap().1, frame(number, 1000));
        }
        assert!(guest.drain(SECOND).unwrap());
    }
    assert_eq!(guest.memory().free_bytes(), free);
}
