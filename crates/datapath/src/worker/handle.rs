//! Handle of a worker, for the rest of the daemon.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering},
    },
};

use crossbeam_utils::CachePadded;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::engine::place::{MAX_PAIRS, PollSource, PortRef, uplink_ring};
use crate::engine::writer::{WorkerId, Writer};
use crate::worker::under_way::Parcel;
use crate::world::snapshot::Vnic;
use butterfly_mem::blackbox::Line;

/// Epoll data of the event that makes a worker look around.
const WAKE: u64 = u64::MAX;
/// Number of classes of batch sizes: 1, 2, 3-4, 5-8, .. 33-64.
const SIZE_CLASSES: usize = 7;

/// Order of the rest of the daemon to a worker.
#[allow(clippy::large_enum_variant)] // those with a parcel are few
pub(crate) enum Order {
    /// A transmit ring, or a receive queue of the uplink, runs.
    Started { source: PollSource, kicked: bool },
    /// The ring at a place is the worker's from now on. With what a former one left.
    /// `timed`: it runs and has no kick descriptor.
    Take { place: PortRef, pair: u8, timed: bool, parcel: Option<Parcel> },
    /// Another worker is to have the ring at a place.
    GiveUp { place: PortRef, pair: u8 },
    /// The cycles that were spent on each ring are to be told.
    Weigh,
    /// It stopped.
    Stopped(PollSource),
    /// The transmit ring of a pair of the vnic holds frames that are to be discarded, maybe after a
    /// while.
    Discard { place: PortRef, pair: u8 },
    /// A ring that was held is let go.
    Look(PollSource),
    /// Complete frames are to be sent in the vnic's name.
    Announce { place: PortRef, frames: Arc<Vec<Vec<u8>>> },
    /// Questions of this host's routers are to be sent in a network.
    Ask { asker: Arc<Vnic>, frames: Arc<Vec<Vec<u8>>> },
}

/// The outside of a worker.
pub(crate) struct Handle {
    pub index: usize,
    pub(super) epoll: OwnedFd,
    wake: OwnedFd,
    /// Number of kick descriptors in `epoll`.
    kicks: AtomicUsize,
    pub(super) orders: Mutex<Vec<Order>>,
    /// There are orders.
    pub(super) told: AtomicBool,
    /// Parcel of the ring that was given up last.
    pub(super) parcel: Mutex<Option<Parcel>>,
    /// True if it is to end, as all its rings were given up.
    pub ends: AtomicBool,
    /// The epoch of the snapshot that the worker uses. It uses no older one any more.
    pub seen: AtomicU64,
    /// True if a thread runs it, so that publications wait for it.
    pub running: AtomicBool,
    pub stats: CachePadded<Stats>,
    /// Line of the black box.
    pub line: &'static Line,
    /// Processor it is pinned to; negative if it is not.
    pub core: AtomicI32,
    /// Number of the thread that runs it; 0 before.
    pub thread: AtomicI32,
    /// The worker's right to write its cells, until it takes it.
    id: Mutex<Option<WorkerId>>,
}

/// Counters of a worker since it started.
#[derive(Default)]
pub(crate) struct Stats {
    pub busy_cycles: AtomicU64,
    pub packets: AtomicU64,
    pub batches: AtomicU64,
    pub sleeps: AtomicU64,
    pub idle_polls: AtomicU64,
    pub active: AtomicU64,
    /// Load of late, in thousandths of its processor. The thread that balances writes it.
    pub load: AtomicU64,
    /// Number of rings that came from other workers.
    pub moves: AtomicU64,
    /// Cycles of the longest turn.
    pub longest: AtomicU64,
    pub sizes: [AtomicU64; SIZE_CLASSES],
}

/// Adds without a read-modify-write, as there is only one writer.
pub(super) fn bump(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Names of a worker's counters that only grow, in the order of [`Stats::growing`].
const GROWING: [&str; 5 + SIZE_CLASSES] = [
    "busy-cycles",
    "packets",
    "batches",
    "sleeps",
    "idle-polls",
    "batches-of-1",
    "batches-of-2",
    "batches-of-4",
    "batches-of-8",
    "batches-of-16",
    "batches-of-32",
    "batches-of-64",
];

impl Stats {
    fn growing(&self) -> impl Iterator<Item = (&'static str, &AtomicU64)> {
        let Stats { busy_cycles, packets, batches, sleeps, idle_polls, sizes, .. } = self;
        let cells = [busy_cycles, packets, batches, sleeps, idle_polls].into_iter().chain(sizes);
        GROWING.into_iter().zip(cells)
    }

    /// Returns a number that changes with every turn and with every look at idle rings.
    pub fn progress(&self) -> u64 {
        let cells = [&self.busy_cycles, &self.batches, &self.idle_polls, &self.sleeps];
        cells.iter().fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }

    /// Returns the counters that only grow, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.growing().map(|(name, cell)| (name, cell.load(Ordering::Relaxed)))
    }

    /// Adds what a former worker counted. Returns whether there is a counter of this name. The
    /// caller shows that it may write the worker's cells.
    pub fn add_former(&self, _: Writer<'_>, name: &str, n: u64) -> bool {
        let cell = self.growing().find(|(known, _)| *known == name);
        cell.inspect(|(_, cell)| bump(cell, n)).is_some()
    }
}

fn pack(source: PollSource) -> u64 {
    let (place, pair) = match source {
        PollSource::Queue { place, pair } => (place, pair),
        PollSource::Uplink(queue) => uplink_ring(queue),
        PollSource::Outward(_) | PollSource::Waiting => return WAKE, // have no descriptor
    };
    u64::from(place.slot) << 36 | u64::from(pair) << 32 | u64::from(place.incarnation)
}

/// Returns what an event is about; `None` for that of [`Handle::wake`].
pub(super) fn unpack(data: u64) -> Option<PollSource> {
    match data {
        WAKE => None,
        _ => {
            let place = PortRef { slot: (data >> 36) as u32, incarnation: data as u32 };
            Some(PollSource::of((place, (data >> 32) as u8 % MAX_PAIRS as u8)))
        }
    }
}

impl Handle {
    pub fn new(index: usize, line: &'static Line) -> Result<Handle, rustix::io::Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Edge triggered: no counter is ever read, each write is an event.
        epoll::add(
            &epoll,
            &wake,
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(Handle {
            index,
            epoll,
            wake,
            kicks: AtomicUsize::new(0),
            orders: Mutex::default(),
            told: AtomicBool::new(false),
            parcel: Mutex::default(),
            ends: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            running: AtomicBool::new(false),
            stats: CachePadded::default(),
            line,
            core: AtomicI32::new(-1),
            thread: AtomicI32::new(0),
            id: Mutex::new(Some(WorkerId::new(index))),
        })
    }

    /// Takes the right to write the worker's cells. The first caller gets it, and nobody else.
    pub fn claim(&self) -> Option<WorkerId> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Gives back the right that [`Handle::claim`] took.
    pub fn give_back(&self, id: WorkerId) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    /// Makes a sleeping worker look around.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn order(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.told.store(true, Ordering::Release);
        self.wake();
    }

    /// Has `kick` say that a source is to be looked at. Returns false for a descriptor that cannot
    /// be waited for, which is like none.
    pub fn register(&self, source: PollSource, kick: BorrowedFd<'_>) -> bool {
        let data = epoll::EventData::new_u64(pack(source));
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let kicked = epoll::add(&self.epoll, kick, data, events).is_ok();
        self.kicks.fetch_add(usize::from(kicked), Ordering::Relaxed);
        kicked
    }

    /// Ends [`Self::register`].
    pub fn unregister(&self, kick: BorrowedFd<'_>) {
        if epoll::delete(&self.epoll, kick).is_ok() {
            self.kicks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has a source looked at that started, and again whenever it is kicked.
    pub fn started(&self, source: PollSource, kicked: bool) {
        self.order(Order::Started { source, kicked });
    }

    /// Has the worker take a ring that nobody has, with what the worker before left.
    pub fn take(&self, (place, pair): (PortRef, u8), timed: bool, parcel: Option<Parcel>) {
        self.order(Order::Take { place, pair, timed, parcel });
    }

    /// Has the worker give up a ring, between two batches.
    pub fn give_up(&self, place: PortRef, pair: u8) {
        self.order(Order::GiveUp { place, pair });
    }

    /// Takes what the worker left for the next one that has the ring it gave up.
    pub fn take_parcel(&self, source: PollSource) -> Option<Parcel> {
        let mut parcel = self.parcel.lock().unwrap_or_else(PoisonError::into_inner);
        parcel.take().filter(|parcel| parcel.is_of(source))
    }

    /// Takes the orders that a worker which ended did not obey.
    pub fn take_orders(&self) -> Vec<Order> {
        self.told.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the cycles told that were spent on each ring.
    pub fn weigh(&self) {
        self.order(Order::Weigh);
    }

    /// Returns the number of sources that say by a descriptor that there is something.
    pub(super) fn kicks(&self) -> usize {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Has a ring looked at that was held.
    pub fn look_at(&self, source: PollSource) {
        self.order(Order::Look(source));
    }

    /// Has frames sent in a vnic's name, one in a turn.
    pub fn announce(&self, place: PortRef, frames: Arc<Vec<Vec<u8>>>) {
        self.order(Order::Announce { place, frames });
    }

    /// Has questions sent, one in a turn.
    pub fn ask(&self, asker: Arc<Vnic>, frames: Arc<Vec<Vec<u8>>>) {
        self.order(Order::Ask { asker, frames });
    }

    /// Notes that a vnic's transmit ring holds what is to be discarded. Housekeeping calls it ten
    /// times per second.
    pub fn discard(&self, place: PortRef, pair: usize) {
        self.order(Order::Discard { place, pair: pair as u8 });
    }

    /// Notes that a transmit ring stopped.
    pub fn stopped(&self, source: PollSource) {
        self.order(Order::Stopped(source));
    }
}
