//! Workers: threads that own transmit rings, poll those that are busy and sleep when none is.

use std::{
    mem::MaybeUninit,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use butterfly_mem::cpu;
use butterfly_vhost::{
    control::MAX_FURTHER_PAIRS,
    port::Pair,
    ring::{FrameStore, Frames, Gathered},
};
use rustix::event::epoll;

use super::{
    bill::Bill,
    fair::{Account, Fair},
    halves::{Formers, GoesOn},
    handle::{Handle, Order, bump, unpack},
    later::Later,
    patience::{Habits, Patience, Rhythm},
    pauses::Pauses,
    shared::Shared,
    under_way::UnderWay,
    walk::walk,
};

use crate::engine::place::{MAX_PAIRS, MAX_SLOTS};
use crate::engine::tap::TapNotes;
use crate::engine::writer::WorkerId;
#[cfg(feature = "harness")]
use crate::engine::writer::Writer;
use crate::engine::{
    batch::{Batch, Metas},
    budget::Budget,
    place::{PollSource, PortRef, of_likely},
};
use crate::stages::{deliver::Calls, leave::Departures, outlet::Rings};
use crate::stages::{pipeline::Scratches, stage::StageConfig};
use crate::world::{
    far_cuts::FarCuts,
    limits::Room,
    serving::Serving,
    snapshot::{Snapshot, Vnic},
    steering::Steering,
};

/// Frames below which nothing is fetched ahead: they are needed at once.
const FEW: u16 = 4;
/// Pauses (some 50 ns each) after a round in which nothing was found.
const IDLE_PAUSES: u32 = 4;
/// Most orders to advertise that wait. Who gives them has no more frames under way, and each order
/// has one at least.
const ADVERTS: usize = 256;
/// Microseconds between looks at kicks of other rings while one is polled.
const EVENTS_EVERY_US: u64 = 20;
/// The same while all rings are polled, so that only orders may come. A look takes 2 us.
const ORDERS_EVERY_US: u64 = 500;
/// Microseconds between looks at a ring without a kick descriptor.
const TIMER_US: u64 = 1000;
/// Milliseconds in which a worker that ends serves the frames that wait.
const FINISH_MS: u64 = 10; // fragments wait for 2
const CALLS: usize = 4096;
/// Most rings that are polled: one of each vnic, and as many further ones as descriptors are shared
/// out for.
const MAX_QUEUES: usize = MAX_SLOTS as usize + MAX_FURTHER_PAIRS;
/// Most kicks that are taken at one look.
const EVENTS: usize = 256;

/// A source that is being polled.
#[derive(Clone, Copy)]
pub(super) struct Polled {
    pub(super) source: PollSource,
    pub(super) rhythm: Rhythm,
    /// Slot and pair that most of the last batch went to: its ring is fetched ahead.
    pub(super) likely: u32,
    pub(super) account: Account,
    /// Cycles spent on it that were not told yet.
    pub(super) spent: u64,
    /// Number of receivers that have the first waiting frame, a flood that takes several turns.
    pub(super) flooded: u32,
    /// It had frames when it was last looked at. Kept only where its vnic has several queues here.
    busy: bool,
}

impl Polled {
    /// Notes that it is not busy any more.
    #[inline(always)]
    fn rest(&mut self, habits: &mut Habits) {
        if std::mem::take(&mut self.busy)
            && let Some(slot) = self.source.slot()
        {
            habits.busy(slot, -1);
        }
    }
}

/// Outcome of a look at all rings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// A batch was served.
    Moved,
    /// None was, and some rings are in debt.
    Waiting,
    /// No ring has anything.
    Idle,
}

/// Outcome of a look at a ring.
pub(super) enum Looked {
    Frames(usize),
    Empty,
    /// Another thread changes the ring.
    Held,
    /// The ring is gone, or rests.
    Gone,
    /// The vnic has sent as much as it may: its ring has a pause.
    Limited,
}

/// The inside of a worker.
pub(crate) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) handle: Arc<Handle>,
    pub(super) id: WorkerId,
    pub(super) poll: bool,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) polled: Vec<Polled>,
    pub(super) habits: Habits,
    /// Sources without a kick descriptor.
    pub(super) timed: Vec<PollSource>,
    pub(super) orders: Vec<Order>,
    /// Orders to advertise for which there was no room, the oldest first.
    pub(super) adverts: Vec<Order>,
    /// The time stamp counter at the beginning of a round.
    pub(super) now: u64,
    pub(super) patience: Patience,
    pub(super) pauses: Pauses,
    /// Room of the vnic that is served, if its sending is limited.
    pub(super) room: Option<Room>,
    pub(super) fair: Fair,
    pub(super) bill: Bill,
    pub(super) calls: Calls,
    pub(super) later: Later,
    pub(super) under_way: UnderWay,
    pub(super) store: FrameStore,
    pub(super) metas: Box<Metas>,
    pub(super) scratches: Scratches,
    pub(super) departures: Departures,
    pub(super) notes: TapNotes,
    /// Fragments of a turn of the uplink.
    pub(super) far_cuts: FarCuts,
    /// Number of receive queues of the uplink in the poll set.
    pub(super) uplinks: usize,
    /// Rings that moved here and sent to other hosts of late.
    pub(super) formers: Formers,
    /// Rings of guests, this worker's line of the black box, and the half by which it sends.
    pub(super) outlet: Rings,
}

impl Worker {
    /// Allocates all that a worker needs; pages of the large tables are touched when they are used.
    /// The number is of [`Handle::claim`].
    pub fn new(shared: Arc<Shared>, handle: Arc<Handle>, id: WorkerId, poll: bool) -> Worker {
        let snapshot = shared.snapshot.load_full();
        let halves = shared.tunnel.as_ref().map_or(1, |tunnel| tunnel.port.halves());
        let outlet = Rings(handle.line, (handle.index % halves.max(1)) as u8);
        let scratches = Scratches::new(&StageConfig { timeouts: &snapshot.times.timeouts });
        Worker {
            shared,
            handle,
            id,
            poll,
            snapshot,
            polled: Vec::with_capacity(MAX_QUEUES),
            habits: Habits::new(),
            timed: Vec::with_capacity(MAX_QUEUES),
            orders: Vec::new(),
            adverts: Vec::with_capacity(ADVERTS),
            now: 0,
            patience: Patience::new(),
            pauses: Pauses::new(),
            room: None,
            fair: Fair::new(),
            bill: Bill::new(),
            calls: Vec::with_capacity(CALLS),
            later: Later::new(),
            under_way: UnderWay::new(),
            store: FrameStore::default(),
            metas: Metas::new(),
            scratches,
            departures: Departures::default(),
            notes: TapNotes::default(),
            far_cuts: FarCuts::default(),
            uplinks: 0,
            formers: Formers::default(),
            outlet,
        }
    }

    /// Makes a worker for tests and fixed-work measurements. It cuts no batch for taking long, as
    /// all do under a simulator of processors, and early fragments wait until the test has no more.
    #[cfg(feature = "harness")]
    pub fn without_prices(shared: Arc<Shared>, handle: Arc<Handle>, id: WorkerId) -> Worker {
        let mut worker = Worker { fair: Fair::blind(), ..Worker::new(shared, handle, id, false) };
        worker.later.pen.heed_time(false);
        worker
    }

    /// Lends the right to write the worker's cells.
    #[cfg(feature = "harness")]
    pub fn writer(&self) -> Writer<'_> {
        self.id.writer()
    }

    /// Ends [`Self::without_prices`].
    #[cfg(feature = "harness")]
    pub fn heed_prices(&mut self) {
        self.fair = Fair::new();
        self.later.pen.heed_time(true);
    }

    /// Works until the switch stops.
    pub fn run(&mut self) {
        let ticks = |us: u64| cpu::tsc_hz() / 1_000_000 * us;
        let (events_every, timer_every) = (ticks(EVENTS_EVERY_US), ticks(TIMER_US));
        let orders_every = ticks(ORDERS_EVERY_US);
        let mut last_events = cpu::tsc();
        let mut last_timer = last_events;
        let mut now = last_events;
        self.handle.running.store(true, Ordering::Release);
        // A later publisher waits for this worker; an earlier one was early enough for this worker
        // to see the new epoch.
        fence(Ordering::SeqCst);
        while !self.shared.stop.load(Ordering::Relaxed) && !self.handle.ends.load(Ordering::Relaxed)
        {
            self.adopt();
            if self.handle.told.load(Ordering::Relaxed) {
                self.obey();
            }
            let since = now.wrapping_sub(last_events);
            if self.polled.is_empty()
                || (since > events_every && (since > orders_every || !self.polls_all()))
            {
                self.wait(true);
                now = cpu::tsc();
                last_events = now;
            }
            if !self.timed.is_empty() && now.wrapping_sub(last_timer) > timer_every {
                for at in 0..self.timed.len() {
                    if let Some(source) = self.timed.get(at).copied() {
                        self.add(source);
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
        if self.handle.ends.load(Ordering::Relaxed) {
            self.finish();
        }
        self.handle.running.store(false, Ordering::Release);
    }

    /// Serves the frames that wait, as it has no rings any more, but not for long. Drops the rest.
    #[cold]
    fn finish(&mut self) {
        let end = cpu::tsc().wrapping_add(cpu::tsc_hz() / 1000 * FINISH_MS);
        // The thread that looks for neighbours does not know it any more.
        self.later.hops.end_waits();
        while !(self.later.is_empty() && self.later.pen.is_empty() && self.later.hops.is_empty())
            && (cpu::tsc() as i64).wrapping_sub(end as i64) < 0
        {
            self.adopt();
            self.now = cpu::tsc();
            self.add(PollSource::Waiting);
            self.round();
        }
        let context = (&*self.snapshot, self.id.writer(), self.shared.clock.tenths());
        self.later.drop_all(context);
    }

    /// Ends it, and gives back the right to write its cells.
    pub fn retire(self) {
        // What was ordered to it last is of rings that others have, and of vnics that another one
        // announces.
        for order in self.handle.take_orders() {
            if let Order::Announce { place, .. } = order
                && let Some(vnic) = self.snapshot.vnic(place)
            {
                vnic.shared.announcing.again();
            }
        }
        let Worker { handle, id, .. } = self;
        handle.give_back(id);
    }

    /// Returns whether nobody can kick: all rings are polled, and none has a pause.
    pub(super) fn polls_all(&self) -> bool {
        let polled = self.polled.len().saturating_sub(self.habits.without_kick());
        self.timed.is_empty() && self.pauses.next().is_none() && polled >= self.handle.kicks()
    }

    /// Takes the newest snapshot, if it is not the one in use. Between batches only.
    pub(super) fn adopt(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.handle.seen.load(Ordering::Relaxed) {
            self.adopt_next(epoch);
        }
    }

    #[cold]
    fn adopt_next(&mut self, epoch: u64) {
        let next = self.shared.snapshot.load_full();
        if next.times != self.snapshot.times {
            self.scratches.retime(&StageConfig { timeouts: &next.times.timeouts });
        }
        // The publisher keeps a reference to the old one until all workers have let go: nothing is
        // freed here.
        self.snapshot = next;
        self.handle.seen.store(epoch, Ordering::Release);
    }

    /// Looks at kicks; sleeps until there is one if it may and nothing else is to do.
    pub(super) fn wait(&mut self, may_sleep: bool) {
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: (TIMER_US * 1000) as _ };
        let until;
        let awake = !may_sleep || self.poll || !self.polled.is_empty();
        let timeout = match awake {
            true => Some(&none),
            false => match (self.timed.is_empty(), self.next_look()) {
                (true, None) => None,
                (false, None) => Some(&soon),
                (no_timer, Some(end)) => {
                    until = until_tick(end);
                    Some(if no_timer || until.tv_nsec < soon.tv_nsec { &until } else { &soon })
                }
            },
        };
        if timeout != Some(&none) {
            bump(&self.handle.stats.sleeps, 1);
        }
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        // The only possible error is an interruption by a signal: the next round looks again.
        let events = epoll::wait(&self.handle.epoll, &mut room, timeout);
        let Ok((events, _)) = events else { return };
        let mut woken = false;
        for event in events {
            match unpack(event.data.u64()) {
                Some(source) => self.add(source),
                None => woken = true,
            }
        }
        if woken {
            self.obey();
        }
        if self.pauses.next().is_some() {
            self.end_pauses();
        }
    }

    /// Returns the tick at which something has to be looked at, whatever comes until then.
    #[inline(always)]
    fn next_look(&self) -> Option<u64> {
        match (self.pauses.next(), self.later.pen.next_look()) {
            (Some(pause), Some(look)) => Some(pause.min(look)),
            (pause, look) => pause.or(look),
        }
    }

    /// Looks for fragments that need not wait any more.
    #[cold]
    #[inline(never)]
    fn look_at_pen(&mut self) {
        if self.later.pen.look(&self.shared) {
            self.add(PollSource::Waiting);
        }
    }

    /// Ends the waits of all fragments, as time does. Returns whether there was any.
    #[cfg(feature = "harness")]
    pub fn end_waits(&mut self) -> bool {
        let any = self.later.pen.end_waits();
        if any {
            self.add(PollSource::Waiting);
        }
        any
    }

    /// Looks again at rings whose pauses are over.
    #[cold]
    fn end_pauses(&mut self) {
        let now = cpu::tsc();
        while let Some(slot) = self.pauses.ended(now) {
            let Some(vnic) = self.snapshot.vnics.get(slot) else { continue };
            let (place, shared) = (vnic.place, vnic.shared.clone());
            // Another pair is the first one each time: who comes first may take all the room.
            let first = self.pauses.turn();
            for at in 0..MAX_PAIRS {
                let pair = (first + at) % MAX_PAIRS;
                if shared.port.pair(pair).is_some() {
                    self.add(PollSource::Queue { place, pair: pair as u8 });
                }
            }
        }
    }

    /// Puts a source into the poll set. Rings of vnics that are gone leave it at their next turn.
    pub(super) fn add(&mut self, source: PollSource) {
        if !self.has(source) {
            return;
        }
        if let Some(rhythm) = self.habits.begin(source) {
            let polled = Polled {
                source,
                rhythm,
                likely: u32::MAX,
                // It may have slept since the last look.
                account: self.fair.open(source.slot().is_none(), cpu::tsc()),
                flooded: 0,
                spent: 0,
                busy: false,
            };
            self.uplinks += usize::from(matches!(source, PollSource::Uplink(_)));
            self.polled.push(polled);
        }
    }

    /// Returns whether the worker has a source. One of a vnic that it does not know leaves the poll
    /// set at its next turn.
    pub(super) fn has(&self, source: PollSource) -> bool {
        let serving = self.serving(source);
        serving.is_none_or(|(serving, pair)| serving.by(pair) == Some(self.handle.index))
    }

    /// Returns who serves a source that has a ring, and the ring's number there.
    pub(super) fn serving(&self, source: PollSource) -> Option<(&Serving, u8)> {
        serving(&self.snapshot, &self.shared, source)
    }

    /// Takes a source out of the poll set.
    pub(super) fn leave(&mut self, at: usize) -> Polled {
        let mut left = self.polled.swap_remove(at);
        self.uplinks -= usize::from(matches!(left.source, PollSource::Uplink(_)));
        left.rest(&mut self.habits);
        self.habits.end(left.source, left.rhythm);
        if let Some((serving, pair)) = self.serving(left.source) {
            serving.spend(pair, left.spent);
        }
        left
    }

    /// Returns how many queues of this one's vnic are busy. This one is.
    fn busy_queues(&mut self, at: usize) -> usize {
        let Some(polled) = self.polled.get_mut(at) else { return 1 };
        // All that comes from other hosts has one part.
        let Some(slot) = polled.source.slot() else { return self.uplinks.max(1) };
        if !std::mem::replace(&mut polled.busy, true) {
            self.habits.busy(slot, 1);
        }
        self.habits.busy(slot, 0).max(1)
    }

    /// Looks at kicks and orders, then at every polled ring once. For tests and fixed-work
    /// measurements.
    #[inline(never)]
    #[cfg(feature = "harness")]
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
    pub(super) fn round(&mut self) -> bool {
        self.bill.begin(self.now);
        let pass = loop {
            match self.pass() {
                Pass::Waiting => self.forgive(),
                pass => break pass,
            }
        };
        if self.departures.pending != 0 {
            self.uplink_again();
        }
        if !self.later.pen.is_empty() {
            self.look_at_pen();
        }
        self.outlet.0.rest();
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
                Looked::Frames(n) => {
                    moved = true;
                    served = Some(n);
                    self.account(n);
                    true
                }
                Looked::Held => true,
                Looked::Empty => self.stays_though_empty(at),
                Looked::Gone | Looked::Limited => false,
            };
            if !self.calls.is_empty() {
                self.interrupt();
            }
            if stays {
                if let Some(frames) = served {
                    self.charge(at, frames);
                    // No batch is judged by a rule that was taken back while others were served.
                    self.adopt();
                } else {
                    self.bill.looked();
                }
                at += 1;
            } else {
                self.bill.looked();
                self.leave(at);
            }
        }
        match (moved, waiting) {
            (true, _) => Pass::Moved,
            (false, true) => Pass::Waiting,
            (false, false) => Pass::Idle,
        }
    }

    /// Interrupts guests. A separate thread sends interrupts for which this turn has no time left.
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
        let Some(polled) = self.polled.get_mut(at) else { return };
        polled.spent += spent.0;
        let several = self.habits.has_further(polled.source)
            || self.uplinks > 1 && matches!(polled.source, PollSource::Uplink(_));
        if several || self.fair.is_owed(&polled.account, spent.0) {
            self.owe(at, spent, frames, (now, several));
        }
    }

    #[cold]
    fn owe(&mut self, at: usize, spent: (u64, u64), frames: usize, (now, several): (u64, bool)) {
        let cost = self.bill.cost(spent, frames);
        let longest = &self.handle.stats.longest;
        if cost.cycles > longest.load(Ordering::Relaxed) {
            longest.store(cost.cycles, Ordering::Relaxed);
        }
        let rings = self.polled.len();
        let queues = if several { self.busy_queues(at) } else { 1 };
        match self.polled.get_mut(at) {
            Some(polled) if rings == 1 => polled.account.settle(),
            Some(polled) => self.fair.owe(&mut polled.account, cost, rings, queues, now),
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

    /// Returns whether an empty ring stays in the poll set. When it was empty for long enough, the
    /// guest is asked to kick. The ring leaves unless the guest added a frame meanwhile.
    fn stays_though_empty(&mut self, at: usize) -> bool {
        let Some(polled) = self.polled.get_mut(at) else { return false };
        polled.rest(&mut self.habits);
        if polled.rhythm.miss(self.now, &self.patience) {
            return true;
        }
        if !self.formers.is_empty() && self.formers.has(polled.source) {
            return true; // it rests, or goes on by its former half
        }
        let (place, pair) = match polled.source {
            PollSource::Queue { place, pair } => (place, pair),
            _ => return self.uplink_stays(),
        };
        let Some(vnic) = self.snapshot.vnic(place) else { return false };
        let Some(pair) = vnic.shared.port.pair(pair.into()) else { return false };
        let Some(mut ring) = pair.try_tx() else { return true };
        let Some(ring) = ring.as_mut() else { return false };
        if ring.arm() {
            return false;
        }
        ring.disarm();
        polled.rhythm.go_on();
        true
    }

    /// Serves one batch of what is no ring of a vnic.
    #[inline(never)] // rings of vnics need the registers
    fn serve_other(&mut self, at: usize, size: u16) -> Looked {
        match self.polled.get(at).map(|polled| polled.source) {
            Some(PollSource::Uplink(queue)) => self.serve_uplink(at, queue, size),
            Some(PollSource::Outward(half)) => self.see_off(half),
            Some(PollSource::Waiting) => self.serve_later(size),
            Some(PollSource::Queue { .. }) | None => Looked::Gone,
        }
    }

    /// Serves one batch of one ring.
    #[inline(always)] // a part of the round
    fn serve(&mut self, at: usize) -> Looked {
        let Some(polled) = self.polled.get_mut(at) else { return Looked::Gone };
        let size = polled.account.size;
        let PollSource::Queue { place, pair: by } = polled.source else {
            return self.serve_other(at, size);
        };
        let Some(sender) = self.snapshot.vnic(place) else { return Looked::Gone };
        let mut half = self.outlet.1;
        if !self.formers.is_empty() {
            match self.formers.goes_on(&self.shared, polled.source, self.now) {
                GoesOn::Not => return Looked::Held,
                GoesOn::By(former) => half = former,
                GoesOn::ByOwn => {}
            }
        }
        let Some(pair) = sender.shared.port.pair(by.into()) else { return Looked::Gone };
        let Some(mut guard) = pair.try_tx() else { return Looked::Held };
        let Some(ring) = guard.as_mut() else { return Looked::Gone };
        let n = match ring.available() {
            None => return Looked::Gone,
            Some(0) => return Looked::Empty,
            Some(n) => n.min(size),
        };
        if sender.rules.limits.from_guest.is_some() {
            // A flood that takes several turns was allowed in its first one.
            self.room = room_of(sender).filter(|_| polled.flooded == 0);
            if self.room.is_some_and(|room| !room.is_open()) {
                if !self.formers.is_empty() && self.formers.has(polled.source) {
                    return Looked::Held; // as when it is empty
                }
                if polled.rhythm.find(self.now, &self.patience) {
                    ring.disarm();
                }
                self.pauses.begin(place.slot, self.now.wrapping_add(pause_of(sender)));
                return Looked::Limited;
            }
        }
        let line = self.outlet.0;
        line.serve(place.slot);
        if polled.rhythm.find(self.now, &self.patience) {
            ring.disarm(); // it has just come back by its kick
        }
        let Some(network) = self.snapshot.networks.get(sender.network) else { return Looked::Gone };
        let mut next = None;
        if n >= FEW {
            next = likely(&self.snapshot, polled.likely, place);
            ring.prefetch(n);
            if let Some(mut rx) = next.and_then(|(_, pair)| pair.try_rx())
                && let Some(rx) = rx.as_mut()
            {
                rx.prefetch(n);
            }
        }
        let Gathered::Frames(frames) = ring.gather(&mut self.store, n, |n| {
            if let Some((slot, likely)) = next
                && let Some(mut rx) = likely.try_rx()
                && let Some(rx) = rx.as_mut()
            {
                line.write(slot);
                rx.prepare(n);
                line.written();
            }
        }) else {
            return Looked::Empty;
        };
        let mut frames = frames;
        if let Some(steering) = sender.shared.steering.get() {
            sent(&frames, steering, by);
        }
        if sender.rules.limits.from_guest.is_some() {
            keep(&mut frames, self.room);
        }
        let mut from = polled.flooded as usize;
        if from > 0 {
            (from, self.scratches.filter.judged) =
                self.under_way.resume(polled.source, from, &mut frames);
        }
        let context =
            self.shared.context(&self.snapshot, sender, network, self.id.writer(), &self.notes);
        let budget = Budget::of(size);
        context.budget.set(budget);
        if sender.rules.limits.from_guest.is_some() {
            context.room.set(self.room);
        }
        let batch = Batch::new(frames, &mut self.metas);
        let walked = walk(
            batch,
            &context,
            &mut self.scratches,
            &mut self.departures,
            &mut self.calls,
            &mut self.later,
            (from, Rings(self.outlet.0, half)),
        );
        if !self.formers.is_empty() {
            self.formers.sent(&self.shared, polled.source);
        }
        self.bill.used(budget, context.budget.get());
        if let Some(likely) = walked.likely {
            polled.likely = likely;
        }
        if (polled.flooded | walked.flooded) > 0 {
            polled.flooded = walked.flooded;
            self.scratches.filter.judged = None;
            self.under_way.note(polled.source, &walked);
        }
        if ring.poisoned() {
            ring.rest();
        }
        Looked::Frames(walked.frames)
    }
}

/// Returns who serves a source that has a ring, and the ring's number there.
pub(super) fn serving<'a>(
    snapshot: &'a Snapshot,
    shared: &'a Shared,
    source: PollSource,
) -> Option<(&'a Serving, u8)> {
    match source {
        PollSource::Queue { place, pair } => Some((&snapshot.vnic(place)?.shared.serving, pair)),
        PollSource::Uplink(queue) => {
            Some((shared.tunnel.as_ref()?.serving.get(usize::from(queue))?, 0))
        }
        PollSource::Outward(_) | PollSource::Waiting => None,
    }
}

/// Returns where most frames of the last batch went, unless to the sender itself.
#[inline(always)]
fn likely(snapshot: &Snapshot, likely: u32, sender: PortRef) -> Option<(u32, &Pair)> {
    let (slot, pair) = of_likely(likely);
    let vnic = snapshot.vnics.get(slot).filter(|vnic| vnic.place != sender)?;
    Some((slot, vnic.shared.port.pair(pair.into())?))
}

/// Notes by which pair a machine with several sends its flows.
#[cold]
#[inline(never)]
fn sent(frames: &Frames<'_>, steering: &Steering, pair: u8) {
    (0..frames.len()).for_each(|index| steering.sent(frames.head(index), pair));
}

/// Returns what a vnic with a limit may send now.
#[cold]
#[inline(never)]
fn room_of(sender: &Vnic) -> Option<Room> {
    let limit = sender.rules.limits.from_guest.as_deref()?;
    Some(sender.shared.limits.from_guest.room(limit))
}

/// Returns the ticks for which a vnic waits that has sent as much as it may.
#[cold]
#[inline(never)]
fn pause_of(sender: &Vnic) -> u64 {
    let limit = sender.rules.limits.from_guest.as_deref();
    limit.map_or(0, |limit| sender.shared.limits.from_guest.wait(limit))
}

/// Leaves in their ring the frames for which there is no room, even if each were one packet. The
/// stages find how many a frame is.
#[cold]
#[inline(never)]
fn keep(frames: &mut Frames<'_>, room: Option<Room>) {
    let Some(mut room) = room else { return };
    let go = frames.frames().iter().take_while(|frame| room.take(1, frame.len.into())).count();
    frames.truncate(go);
}

/// Returns the time until a tick of the time stamp counter, less than a second.
fn until_tick(end: u64) -> rustix::event::Timespec {
    let ticks = u128::from(end.saturating_sub(cpu::tsc()));
    let ns = ticks * 1_000_000_000 / u128::from(cpu::tsc_hz().max(1));
    rustix::event::Timespec { tv_sec: 0, tv_nsec: ns.min(999_999_999) as _ }
}
