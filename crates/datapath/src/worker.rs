//! Workers: threads that own transmit rings, poll those that are busy and sleep when none is.

use std::{
    cell::Cell,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
};

use arc_swap::ArcSwap;
use butterfly_vhost::{
    cpu,
    ring::{BATCH, FrameStore, Gathered},
};
use rustix::event::{EventfdFlags, epoll, eventfd};

mod bill;
mod fair;
mod later;
mod under_way;
mod uplink;

use bill::Bill;
use fair::{Account, Fair};
use later::{LATER, Later};
use under_way::UnderWay;

use crate::{
    antispoof::antispoof,
    batch::{Batch, Context, Meta, Metas, Origin},
    budget::Budget,
    claims::{Bindings, claims},
    clock::Clock,
    counters::Counter,
    deliver::{Calls, deliver},
    fdb::Fdb,
    filter::{Judged, Room, filter},
    forward::forward,
    headers::{TX_DISABLED, headers},
    offload::offload,
    plane::SessionConfig,
    port::PortRef,
    rules::Cells,
    session::{Shares, Table},
    snapshot::{Network, Snapshot, Vnic},
    tap::Notes,
    tunnel::{Departures, Tunnel, UPLINK},
    turn::{Turn, fit},
};

/// A ring that was found empty so often in a row, and for so long, leaves the poll set and returns
/// by its kick. A kick costs the guest a system call: by count alone, a fast worker would make a
/// guest pay it that pauses for a few microseconds.
const EMPTY_POLLS: u8 = 64;
const EMPTY_US: u64 = 50;
/// Pauses (some 50 ns each) after a round in which nothing was found.
const IDLE_PAUSES: u32 = 4;
/// While something is polled, kicks of other rings are looked at so often.
const EVENTS_EVERY_US: u64 = 20;
/// A ring without a kick descriptor is looked at so often.
const TIMER_US: u64 = 1000;
/// Most vnics a switch has: more than it can have descriptors. An FDB entry has room for 24 bits.
pub(crate) const MAX_SLOTS: u32 = 1 << 20;
const CALLS: usize = 4096;
const WAKE: u64 = u64::MAX;
/// Batch sizes are counted in classes 1, 2, 3-4, 5-8, .. 33-64.
pub(crate) const SIZE_CLASSES: usize = 7;

/// What all threads of a switch share.
pub(crate) struct Shared {
    pub snapshot: ArcSwap<Snapshot>,
    /// Counts publications of snapshots.
    pub epoch: AtomicU64,
    pub fdb: Fdb,
    pub clock: Clock,
    pub stop: AtomicBool,
    pub table: Table,
    /// Link-local addresses that machines made up.
    pub bindings: Bindings,
    pub cells: Cells,
    pub shares: Shares,
    pub sessions: SessionConfig,
    /// The way to other hosts.
    pub tunnel: Option<Tunnel>,
}

/// What a worker is told from outside.
pub(crate) enum Order {
    /// A transmit ring runs.
    Started { place: PortRef, kicked: bool },
    /// It stopped.
    Stopped(PortRef),
    /// The vnic's transmit ring is disabled: what is in it is to be discarded after a while.
    Discard(PortRef),
    /// Complete frames are to be sent as if the vnic had.
    Announce { place: PortRef, frames: Arc<Vec<Vec<u8>>> },
}

/// The outside of a worker.
pub(crate) struct Handle {
    pub index: usize,
    epoll: OwnedFd,
    wake: OwnedFd,
    orders: Mutex<Vec<Order>>,
    /// The epoch whose snapshot the worker uses; it uses nothing older any more.
    pub seen: AtomicU64,
    /// Someone runs it: publications wait for it.
    pub running: AtomicBool,
    pub stats: Stats,
}

/// What a worker did, since it started.
#[derive(Default)]
pub(crate) struct Stats {
    pub busy_cycles: AtomicU64,
    pub packets: AtomicU64,
    pub batches: AtomicU64,
    pub sleeps: AtomicU64,
    pub idle_polls: AtomicU64,
    pub active: AtomicU64,
    /// Cycles of the longest turn.
    pub longest: AtomicU64,
    pub sizes: [AtomicU64; SIZE_CLASSES],
}

/// The only writer needs no read-modify-write.
fn bump(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn pack(place: PortRef) -> u64 {
    u64::from(place.slot) << 32 | u64::from(place.incarnation)
}

fn unpack(data: u64) -> PortRef {
    PortRef { slot: (data >> 32) as u32, incarnation: data as u32 }
}

impl Handle {
    pub fn new(index: usize) -> Result<Handle, rustix::io::Errno> {
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
            orders: Mutex::default(),
            seen: AtomicU64::new(0),
            running: AtomicBool::new(false),
            stats: Stats::default(),
        })
    }

    /// Makes a sleeping worker look around.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn order(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.wake();
    }

    /// A transmit ring runs: polls it, and again whenever `kick` says so.
    pub fn started(&self, place: PortRef, kick: Option<BorrowedFd<'_>>) {
        let kicked = kick.is_some_and(|kick| {
            let data = epoll::EventData::new_u64(pack(place));
            // A descriptor that cannot be waited for is like none.
            epoll::add(&self.epoll, kick, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
                .is_ok()
        });
        self.order(Order::Started { place, kicked });
    }

    /// Frames are to be sent for a vnic, one in a turn.
    pub fn announce(&self, place: PortRef, frames: Arc<Vec<Vec<u8>>>) {
        self.order(Order::Announce { place, frames });
    }

    /// A vnic's transmit ring is disabled. Said ten times a second.
    pub fn discard(&self, place: PortRef) {
        self.order(Order::Discard(place));
    }

    /// A transmit ring stopped.
    pub fn stopped(&self, place: PortRef, kick: Option<BorrowedFd<'_>>) {
        if let Some(kick) = kick {
            let _ = epoll::delete(&self.epoll, kick);
        }
        self.order(Order::Stopped(place));
    }
}

/// A ring that is being polled.
#[derive(Clone, Copy)]
struct Polled {
    place: PortRef,
    empty: u8,
    /// When the last frame was found.
    busy: u64,
    /// Where most of the last batch went: its ring is fetched ahead.
    likely: u32,
    account: Account,
    /// How many receivers have the first waiting frame, a flood for more of them than a turn has
    /// time for.
    flooded: u32,
}

/// What came of looking at all rings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// A batch was served.
    Moved,
    /// None was, and some rings are in debt.
    Waiting,
    /// No ring has anything.
    Idle,
}

/// What became of a batch.
struct Walked {
    /// Where most of the next frames will go.
    likely: Option<u32>,
    /// Frames that were taken; what did not fit the turn stays in its ring.
    frames: usize,
    /// Receivers that have a flood which is not done, what was decided of it, and by what its
    /// bytes are known again.
    flooded: u32,
    judged: Option<Judged>,
    print: Option<u64>,
}

/// What came of looking at a ring.
enum Found {
    Frames(usize),
    Empty,
    /// Someone changes the ring.
    Held,
    /// There is no such ring any more, or it rests.
    Gone,
}

/// The inside of a worker.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    poll: bool,
    snapshot: Arc<Snapshot>,
    polled: Vec<Polled>,
    is_polled: Vec<bool>,
    /// Rings without a kick descriptor.
    timed: Vec<PortRef>,
    orders: Vec<Order>,
    events: Vec<epoll::Event>,
    /// The time stamp counter at the beginning of a round, and how much of it an empty ring stays.
    now: u64,
    patience: u64,
    fair: Fair,
    bill: Bill,
    calls: Calls,
    later: Later,
    under_way: UnderWay,
    store: FrameStore,
    metas: Box<Metas>,
    room: Room,
    departures: Departures,
    notes: Notes,
}

impl Worker {
    /// Everything a worker needs is allocated here; pages of the large tables are touched when they
    /// are used.
    pub fn new(shared: Arc<Shared>, handle: Arc<Handle>, poll: bool) -> Worker {
        let snapshot = shared.snapshot.load_full();
        let room = Room::new(&shared.sessions.timeouts);
        Worker {
            shared,
            handle,
            poll,
            snapshot,
            polled: Vec::with_capacity(MAX_SLOTS as usize),
            is_polled: vec![false; MAX_SLOTS as usize],
            timed: Vec::with_capacity(MAX_SLOTS as usize),
            orders: Vec::new(),
            events: Vec::with_capacity(256),
            now: 0,
            patience: cpu::tsc_hz() / 1_000_000 * EMPTY_US,
            fair: Fair::new(),
            bill: Bill::new(),
            calls: Vec::with_capacity(CALLS),
            later: Later::new(),
            under_way: UnderWay::new(),
            store: FrameStore::default(),
            metas: Box::new([Meta::NEW; BATCH]),
            room,
            departures: Departures::default(),
            notes: Notes::default(),
        }
    }

    /// For tests and fixed-work measurements: no batch is cut because it takes long, as all do
    /// under a simulator of processors.
    pub fn without_prices(shared: Arc<Shared>, handle: Arc<Handle>) -> Worker {
        Worker { fair: Fair::blind(), ..Worker::new(shared, handle, false) }
    }

    /// Ends that.
    pub fn heed_prices(&mut self) {
        self.fair = Fair::new();
    }

    /// Works until the switch stops.
    pub fn run(&mut self) {
        let ticks = |us: u64| cpu::tsc_hz() / 1_000_000 * us;
        let (events_every, timer_every) = (ticks(EVENTS_EVERY_US), ticks(TIMER_US));
        let mut last_events = cpu::tsc();
        let mut last_timer = last_events;
        let mut now = last_events;
        self.handle.running.store(true, Ordering::Release);
        // Whoever publishes from now on waits for this worker, or was early enough for it to see
        // the new epoch.
        fence(Ordering::SeqCst);
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.adopt();
            if self.polled.is_empty() || now.wrapping_sub(last_events) > events_every {
                self.wait(true);
                now = cpu::tsc();
                last_events = now;
            }
            if !self.timed.is_empty() && now.wrapping_sub(last_timer) > timer_every {
                for at in 0..self.timed.len() {
                    if let Some(place) = self.timed.get(at).copied() {
                        self.add(place);
                    }
                }
                last_timer = now;
            }
            self.now = now;
            let moved = self.round();
            if self.shared.tunnel.as_ref().is_some_and(|tunnel| tunnel.punt.wants_to_send()) {
                self.send_own();
            }
            let end = cpu::tsc();
            if moved {
                bump(&self.handle.stats.busy_cycles, end.wrapping_sub(now));
            } else {
                bump(&self.handle.stats.idle_polls, 1);
                // Every look takes the line that the guest is about to write: fewer looks, a faster
                // guest.
                for _ in 0..IDLE_PAUSES {
                    std::hint::spin_loop();
                }
            }
            now = end;
        }
        self.handle.running.store(false, Ordering::Release);
    }

    /// Takes the newest snapshot, if it is not the one in use. Between batches only.
    fn adopt(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.handle.seen.load(Ordering::Relaxed) {
            // The publisher keeps a reference to the old one until all workers have let go: nothing
            // is freed here.
            self.snapshot = self.shared.snapshot.load_full();
            self.handle.seen.store(epoch, Ordering::Release);
        }
    }

    /// Looks at kicks; sleeps until there is one if it may and nothing else is to do.
    fn wait(&mut self, may_sleep: bool) {
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: (TIMER_US * 1000) as _ };
        let timeout =
            match (!may_sleep || self.poll || !self.polled.is_empty(), self.timed.is_empty()) {
                (true, _) => Some(&none),
                (false, false) => Some(&soon),
                (false, true) => None,
            };
        if timeout != Some(&none) {
            bump(&self.handle.stats.sleeps, 1);
        }
        self.events.clear();
        // The only error that is possible is an interruption by a signal: look again in the next
        // round.
        let _ = epoll::wait(
            &self.handle.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            timeout,
        );
        let mut woken = false;
        for at in 0..self.events.len() {
            match self.events.get(at).map(|event| event.data.u64()) {
                Some(WAKE) => woken = true,
                Some(data) => self.add(unpack(data)),
                None => {}
            }
        }
        if woken {
            self.obey();
        }
    }

    #[cold]
    fn obey(&mut self) {
        self.adopt();
        let mut orders = std::mem::take(&mut self.orders);
        std::mem::swap(
            &mut *self.handle.orders.lock().unwrap_or_else(PoisonError::into_inner),
            &mut orders,
        );
        for order in orders.drain(..) {
            match order {
                Order::Started { place, kicked } => {
                    self.timed.retain(|other| *other != place);
                    if !kicked && self.timed.len() < self.timed.capacity() {
                        self.timed.push(place);
                    }
                    // The slot's former user may still be there.
                    if let Some(polled) =
                        self.polled.iter_mut().find(|polled| polled.place.slot == place.slot)
                    {
                        if polled.place != place {
                            polled.account = self.fair.open(false, cpu::tsc());
                        }
                        polled.place = place;
                        polled.flooded = 0;
                    }
                    self.add(place);
                }
                Order::Stopped(place) => self.timed.retain(|other| *other != place),
                Order::Discard(place) => self.discard(place),
                Order::Announce { place, frames } => {
                    if !self.later.announce(place, frames)
                        && let Some(vnic) = self.snapshot.vnic(place)
                    {
                        vnic.shared.announcing.again();
                    }
                    self.add(LATER);
                }
            }
        }
        self.orders = orders;
    }

    fn discard(&mut self, place: PortRef) {
        let Some(vnic) = self.snapshot.vnic(place) else { return };
        let Some(mut guard) = vnic.shared.port.try_tx() else { return };
        let Some((frames, call)) = guard.as_mut().map(|ring| ring.discard()) else { return };
        drop(guard);
        if let Some(cells) = vnic.shared.counters.of(self.handle.index).filter(|_| frames > 0) {
            cells.drop(TX_DISABLED, frames);
        }
        if let Some(call) = call {
            call.signal();
        }
    }

    /// Puts a ring into the poll set. Rings of vnics that are gone leave it at their next turn.
    fn add(&mut self, place: PortRef) {
        if let Some(is_polled) = self.is_polled.get_mut(place.slot as usize)
            && !*is_polled
        {
            *is_polled = true;
            // One short of leaving: a kick without a frame costs one look.
            let empty = EMPTY_POLLS - 1;
            let polled = Polled {
                place,
                empty,
                busy: 0,
                likely: place.slot,
                // It may have slept since the last look.
                account: self.fair.open(place == UPLINK || place == LATER, cpu::tsc()),
                flooded: 0,
            };
            self.polled.push(polled);
        }
    }

    /// For tests and fixed-work measurements: looks at kicks and orders, then at every polled ring
    /// once.
    #[inline(never)]
    pub fn turn(&mut self) -> bool {
        self.adopt();
        self.wait(false);
        self.now = cpu::tsc();
        let moved = self.round();
        if self.shared.tunnel.as_ref().is_some_and(|tunnel| tunnel.punt.wants_to_send()) {
            self.send_own();
        }
        moved
    }

    /// Looks at every polled ring once. Returns whether any frame was found.
    #[inline(never)] // measurements find it by its name
    fn round(&mut self) -> bool {
        self.bill.begin(self.now);
        let pass = loop {
            match self.pass() {
                Pass::Waiting => self.forgive(),
                pass => break pass,
            }
        };
        if self.departures.pending {
            self.uplink_again();
        }
        self.handle.stats.active.store(self.polled.len() as u64, Ordering::Relaxed);
        pass == Pass::Moved
    }

    #[inline(always)]
    fn pass(&mut self) -> Pass {
        let mut moved = false;
        let mut waiting = false;
        let mut at = 0;
        self.fair.begin();
        while let Some(polled) = self.polled.get_mut(at) {
            if polled.account.debt > 0 && !self.fair.is_due(&mut polled.account, at) {
                waiting = true;
                self.bill.looked();
                at += 1;
                continue;
            }
            self.bill.open(cpu::tsc);
            let mut served = None;
            let stays = match self.serve(at) {
                Found::Frames(n) => {
                    moved = true;
                    served = Some(n);
                    self.account(n);
                    true
                }
                Found::Held => true,
                Found::Empty => self.stays_though_empty(at),
                Found::Gone => false,
            };
            if !self.calls.is_empty() {
                self.interrupt();
            }
            if stays {
                if let Some(frames) = served {
                    self.charge(at, frames);
                    // No batch is judged by what was taken back while others were served.
                    self.adopt();
                } else {
                    self.bill.looked();
                }
                at += 1;
            } else {
                self.bill.looked();
                let left = self.polled.swap_remove(at);
                if let Some(is_polled) = self.is_polled.get_mut(left.place.slot as usize) {
                    *is_polled = false;
                }
            }
        }
        match (moved, waiting) {
            (true, _) => Pass::Moved,
            (false, true) => Pass::Waiting,
            (false, false) => Pass::Idle,
        }
    }

    /// Interrupts guests; those for which this turn has no time left by a thread of their own.
    #[inline(always)]
    fn interrupt(&mut self) {
        let mut left = self.fair.for_signals();
        for call in self.calls.drain(..) {
            if left > 0 {
                left = left.saturating_sub(call.signal());
            } else {
                call.hand_over();
            }
        }
        self.bill.signals(self.fair.for_signals() - left);
    }

    /// Ends a turn: its ring pays for what it cost.
    #[inline(always)]
    fn charge(&mut self, at: usize, frames: usize) {
        let now = cpu::tsc();
        let spent = self.bill.close(now);
        if self.polled.get(at).is_some_and(|polled| self.fair.is_owed(&polled.account, spent.0)) {
            self.owe(at, spent, frames, now);
        }
    }

    #[cold]
    fn owe(&mut self, at: usize, spent: (u64, u64), frames: usize, now: u64) {
        let cost = self.bill.cost(spent, frames);
        let longest = &self.handle.stats.longest;
        if cost.cycles > longest.load(Ordering::Relaxed) {
            longest.store(cost.cycles, Ordering::Relaxed);
        }
        let rings = self.polled.len();
        match self.polled.get_mut(at) {
            Some(polled) if rings == 1 => polled.account.settle(),
            Some(polled) => self.fair.owe(&mut polled.account, cost, rings, now),
            None => {}
        }
    }

    #[cold]
    fn forgive(&mut self) {
        let debts = self.polled.iter().map(|polled| polled.account.debt);
        let least = debts.filter(|debt| *debt > 0).min().unwrap_or(0);
        self.fair.forgive(self.polled.iter_mut().map(|polled| &mut polled.account), least);
    }

    fn account(&self, n: usize) {
        let stats = &self.handle.stats;
        bump(&stats.packets, n as u64);
        bump(&stats.batches, 1);
        let class = n.saturating_sub(1).checked_ilog2().map_or(0, |log| log as usize + 1);
        if let Some(size) = stats.sizes.get(class) {
            bump(size, 1);
        }
    }

    /// After 64 empty looks in a row the guest is asked to kick; if it did not add something
    /// meanwhile, the ring leaves.
    fn stays_though_empty(&mut self, at: usize) -> bool {
        let Some(polled) = self.polled.get_mut(at) else { return false };
        polled.empty = polled.empty.saturating_add(1);
        if polled.empty < EMPTY_POLLS || self.now.wrapping_sub(polled.busy) < self.patience {
            return true;
        }
        if polled.place == UPLINK {
            return self.uplink_stays();
        }
        let Some(vnic) = self.snapshot.vnic(polled.place) else { return false };
        let Some(mut ring) = vnic.shared.port.try_tx() else { return true };
        let Some(ring) = ring.as_mut() else { return false };
        if ring.arm() {
            return false;
        }
        ring.disarm();
        polled.empty = 0;
        true
    }

    /// One batch of one ring.
    #[inline(always)] // a part of the round
    fn serve(&mut self, at: usize) -> Found {
        let Some(polled) = self.polled.get_mut(at) else { return Found::Gone };
        let size = polled.account.size;
        let Some(sender) = self.snapshot.vnic(polled.place) else {
            return match polled.place {
                UPLINK => self.serve_uplink(at, size),
                LATER => self.serve_later(size),
                _ => Found::Gone,
            };
        };
        let Some(mut guard) = sender.shared.port.try_tx() else { return Found::Held };
        let Some(ring) = guard.as_mut() else { return Found::Gone };
        let n = match ring.available() {
            None => return Found::Gone,
            Some(0) => return Found::Empty,
            Some(n) => n.min(size),
        };
        if polled.empty != 0 {
            if polled.empty >= EMPTY_POLLS - 1 {
                ring.disarm(); // it may just have come back by its kick
            }
            polled.empty = 0;
        }
        polled.busy = self.now;
        let Some(network) = self.snapshot.networks.get(sender.network) else { return Found::Gone };
        ring.prefetch(n);
        let likely =
            self.snapshot.vnics.get(polled.likely).filter(|vnic| vnic.place != polled.place);
        if let Some(mut rx) = likely.and_then(|vnic| vnic.shared.port.try_rx())
            && let Some(rx) = rx.as_mut()
        {
            rx.prefetch(n);
        }
        let Gathered::Frames(frames) = ring.gather(&mut self.store, n, |n| {
            if let Some(mut rx) = likely.and_then(|vnic| vnic.shared.port.try_rx())
                && let Some(rx) = rx.as_mut()
            {
                rx.prepare(n);
            }
        }) else {
            return Found::Empty;
        };
        let mut frames = frames;
        let mut from = polled.flooded as usize;
        if from > 0 {
            (from, self.room.judged) = self.under_way.resume(polled.place, from, &mut frames);
        }
        let context =
            self.shared.context(&self.snapshot, sender, network, self.handle.index, &self.notes);
        let budget = Budget::of(size);
        context.budget.set(budget);
        let batch = Batch::new(frames, &mut self.metas);
        let walked = walk(
            batch,
            &context,
            &mut self.room,
            &mut self.departures,
            &mut self.calls,
            &mut self.later,
            from,
        );
        self.bill.used(budget, context.budget.get());
        if let Some(slot) = walked.likely {
            polled.likely = slot;
        }
        if (polled.flooded | walked.flooded) > 0 {
            polled.flooded = walked.flooded;
            self.room.judged = None;
            self.under_way.note(polled.place, &walked);
        }
        if ring.poisoned() {
            ring.rest();
        }
        Found::Frames(walked.frames)
    }
}

impl Shared {
    /// What stages need, for frames of this sender.
    #[inline(always)]
    fn context<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        sender: &'a Vnic,
        network: &'a Network,
        worker: usize,
        notes: &'a Notes,
    ) -> Context<'a> {
        Context {
            snapshot,
            fdb: &self.fdb,
            sender,
            network,
            worker,
            now: self.clock.now(),
            clock: &self.clock,
            table: &self.table,
            cells: &self.cells,
            bindings: &self.bindings,
            timeouts: &self.sessions.timeouts,
            tcp_pickup: self.sessions.tcp_pickup,
            shares: &self.shares,
            tunnel: self.tunnel.as_ref(),
            watched: notes.begin(snapshot),
            notes,
            budget: Cell::new(Budget::WHOLE),
            floods: Cell::new(false),
        }
    }
}

/// All stages, in order. `from`: how many receivers have the first frame already, if it is a flood.
#[inline(always)]
fn walk(
    mut batch: Batch<'_>,
    context: &Context<'_>,
    room: &mut Room,
    departures: &mut Departures,
    calls: &mut Calls,
    later: &mut Later,
    from: usize,
) -> Walked {
    headers(&mut batch, context);
    if batch.origin != Origin::Own {
        antispoof(&mut batch, context);
        if batch.unusual {
            claims(&mut batch, context);
        }
    }
    let segments = offload(&mut batch, context);
    forward(&mut batch, context);
    let turn = if segments || context.floods.get() || context.watched.is_some() {
        fit(&mut batch, context, from)
    } else {
        Turn::WHOLE
    };
    if turn.later {
        later.take(&mut batch, context);
    }
    let n = batch.frames.len();
    let counts = batch.origin == Origin::Port;
    let bytes = batch.frames.frames().iter().map(|frame| u64::from(frame.len)).sum();
    filter(&mut batch, context, room);
    let print = if turn.part { under_way::print(&mut batch.frames) } else { None };
    let (likely, done) = deliver(batch, context, room, departures, calls, &turn);
    if !done {
        let judged = room.first_flood(context.snapshot.version);
        return Walked { likely, frames: 0, flooded: turn.receivers.end as u32, judged, print };
    }
    if counts {
        count_in(context.sender, context.worker, bytes, n);
    }
    Walked { likely, frames: n, flooded: 0, judged: None, print: None }
}

pub(crate) fn count_in(sender: &Vnic, worker: usize, bytes: u64, n: usize) {
    if let Some(cells) = sender.shared.counters.of(worker) {
        cells.add(Counter::InPackets, n as u64);
        cells.add(Counter::InBytes, bytes);
    }
}

#[cfg(test)]
mod tests;
