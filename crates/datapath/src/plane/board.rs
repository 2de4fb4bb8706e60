//! The board: which worker is to serve each transmit ring and each receive queue of the uplink, and
//! how one goes from one worker to another. Here all of them are rings.
//!
//! A move has three steps. The board names the new owner, moves the kick descriptor into its
//! `epoll` and tells the old worker to give the ring up. That worker does so between two batches,
//! and leaves what the next one has to know in a parcel. The board then tells the owner to take
//! ring and parcel, which looks at the ring at once. So:
//!
//! - *Order holds.* All batches of the old worker are in their receive rings, or with the uplink,
//!   before the new one looks.
//! - *No kick is lost.* A kick that came before the second `epoll` had the descriptor is an event
//!   there, and the new worker looks in any case.
//! - *No worker waits.* Only the thread that moves rings waits for the worker that gives one up.
//!
//! The board's lock is a leaf, and no worker takes it. Frames that wait apart from their ring stay
//! with the worker where they wait.

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwap;
use butterfly_mem::blackbox::BlackBox;
use butterfly_point::{Point, pass};

use crate::engine::place::{PollSource, PortRef, RingPlace};
use crate::engine::writer::MAX_WORKERS;
use crate::worker::Handle;
use crate::world::serving::Serving;

/// Pause between looks at a worker that is to give up a ring.
const LOOK: Duration = Duration::from_micros(20);

/// A ring that was announced.
struct Seat {
    serving: Arc<Serving>,
    /// The worker that is to serve it.
    owner: usize,
    /// While it runs: its kick descriptor, if it has one.
    runs: Option<Option<Arc<OwnedFd>>>,
    /// The owner's `epoll` has the descriptor.
    kicked: bool,
    state: SeatState,
}

/// State of a seat.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SeatState {
    /// Its owner has the ring, or will when it runs.
    Kept,
    /// Its former owner has the ring, and is to give it up. `anew`: the ring is another one since.
    Leaves { anew: bool },
    /// Its owner was told to take the ring.
    Arrives,
}

struct BoardState {
    /// Workers that get rings: those before this number.
    active: usize,
    seats: HashMap<RingPlace, Seat>,
    /// Number of seats of each worker.
    owned: [usize; MAX_WORKERS],
}

/// The board.
pub(crate) struct Board {
    /// All workers that there ever were, by number.
    handles: ArcSwap<Vec<Arc<Handle>>>,
    state: Mutex<BoardState>,
    /// Held by who moves rings.
    moving: Mutex<()>,
}

impl Board {
    /// Makes a board of so many workers.
    pub fn new(workers: usize, black_box: &BlackBox) -> Result<Board, std::io::Error> {
        let board = Board {
            handles: ArcSwap::default(),
            state: Mutex::new(BoardState {
                active: 0,
                seats: HashMap::new(),
                owned: [0; MAX_WORKERS],
            }),
            moving: Mutex::default(),
        };
        board.grow(workers.clamp(1, MAX_WORKERS), black_box)?;
        board.set_active(workers.clamp(1, MAX_WORKERS));
        Ok(board)
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all workers that there ever were, by number. Those that ended stay.
    pub fn handles(&self) -> Arc<Vec<Arc<Handle>>> {
        self.handles.load_full()
    }

    /// Returns the first worker, which is always there.
    pub fn first(&self) -> Option<Arc<Handle>> {
        self.handles.load().first().cloned()
    }

    /// Returns the number of workers that get rings.
    pub fn active(&self) -> usize {
        self.state().active
    }

    /// Makes the workers that are missing. They get no rings yet.
    pub fn grow(&self, workers: usize, black_box: &BlackBox) -> Result<(), std::io::Error> {
        let mut handles = Vec::clone(&self.handles.load());
        for index in handles.len()..workers {
            handles.push(Arc::new(Handle::new(index, black_box.line(index))?));
        }
        self.handles.store(Arc::new(handles));
        Ok(())
    }

    /// Has the workers before this number get rings, and no others.
    pub fn set_active(&self, workers: usize) {
        self.state().active = workers.clamp(1, MAX_WORKERS);
    }

    /// Returns the worker that announces the vnic in this slot.
    pub fn announcer(&self, slot: u32) -> Option<Arc<Handle>> {
        let active = self.active();
        self.handles.load().get(slot as usize % active.max(1)).cloned()
    }

    /// Returns the worker that has the ring of a pair.
    pub fn worker_of(&self, serving: &Serving, pair: u8) -> Option<Arc<Handle>> {
        self.handles.load().get(serving.by(pair)?).cloned()
    }

    /// Has a ring served that runs, and again whenever `kick` says so.
    pub fn started(&self, ring: RingPlace, serving: &Arc<Serving>, kick: Option<&Arc<OwnedFd>>) {
        let handles = self.handles.load();
        let mut state = self.state();
        let BoardState { active, seats, owned } = &mut *state;
        let seat = seats.entry(ring).or_insert_with(|| {
            // Of those with the fewest rings the first. What they cost is known later.
            let owner = (0..*active).min_by_key(|at| owned.get(*at).copied()).unwrap_or(0);
            owned.iter_mut().skip(owner).take(1).for_each(|owned| *owned += 1);
            Seat {
                serving: serving.clone(),
                owner,
                runs: None,
                kicked: false,
                state: SeatState::Kept,
            }
        });
        let Some(owner) = handles.get(seat.owner) else { return };
        seat.kicked = kick.is_some_and(|kick| owner.register(source(ring), kick.as_fd()));
        seat.runs = Some(kick.cloned());
        let serving = &seat.serving;
        match seat.state {
            SeatState::Kept => {
                serving.give(ring.1, seat.owner);
                owner.started(source(ring), seat.kicked);
            }
            // It has orders before this one to give it up, or to take it.
            SeatState::Leaves { .. } => seat.state = SeatState::Leaves { anew: true },
            SeatState::Arrives => owner.started(source(ring), seat.kicked),
        }
    }

    /// Notes that a ring stopped.
    pub fn stopped(&self, ring: RingPlace, kick: Option<&Arc<OwnedFd>>) {
        let handles = self.handles.load();
        let mut state = self.state();
        let Some(seat) = state.seats.get_mut(&ring) else { return };
        seat.runs = None;
        if std::mem::take(&mut seat.kicked)
            && let (Some(kick), Some(owner)) = (kick, handles.get(seat.owner))
        {
            owner.unregister(kick.as_fd());
        }
        // While it is moved, either may have it.
        let by = seat.serving.by(ring.1).filter(|by| *by != seat.owner);
        for at in [Some(seat.owner), by].into_iter().flatten() {
            handles.get(at).into_iter().for_each(|worker| worker.stopped(source(ring)));
        }
    }

    /// Forgets the rings of a vnic that is gone.
    pub fn forget(&self, place: PortRef) {
        let BoardState { seats, owned, .. } = &mut *self.state();
        for (_, seat) in seats.extract_if(|(of, _), _| *of == place) {
            owned.iter_mut().skip(seat.owner).take(1).for_each(|owned| *owned -= 1);
        }
    }

    /// Returns the rings that a worker is to serve, with what is noted of that.
    pub fn rings_of(&self, worker: usize) -> Vec<(RingPlace, Arc<Serving>)> {
        let state = self.state();
        let theirs = state.seats.iter().filter(|(_, seat)| seat.owner == worker);
        theirs.map(|(ring, seat)| (*ring, seat.serving.clone())).collect()
    }

    /// Moves a ring to another worker that gets rings. Returns when that one has it, or if there is
    /// nothing to move. `over` says that waiting is in vain: the vnic is gone, or the switch ends.
    pub fn hand_over(&self, ring: RingPlace, to: usize, over: impl Fn(&RingPlace) -> bool) -> bool {
        let _moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Move { serving, from, to }) = self.begin_move(ring, to) else { return false };
        pass(Point::RingLeaves);
        // As in `publish`: a worker that told us would have to make a system call.
        let wait = |worker: &Handle, ends: &dyn Fn() -> bool| {
            while !ends() && worker.running.load(Ordering::Acquire) && !over(&ring) {
                std::thread::sleep(LOOK);
            }
        };
        if let Some(from) = &from {
            wait(from, &|| serving.by(ring.1) != Some(from.index));
            // One that does not run takes no ring from anybody.
            serving.give_up(ring.1, from.index);
        }
        pass(Point::GivenUp);
        if over(&ring) || !self.end_move(ring, from.as_deref(), &to) {
            return false;
        }
        wait(&to, &|| serving.by(ring.1).is_some());
        self.settle(ring)
    }

    /// Names a ring's new owner, and tells the worker that has it to give it up.
    fn begin_move(&self, ring: RingPlace, to: usize) -> Option<Move> {
        let handles = self.handles.load();
        let mut state = self.state();
        let BoardState { seats, owned, active } = &mut *state;
        // One that is to end gets nothing.
        let seat = seats.get_mut(&ring).filter(|seat| seat.owner != to && to < *active)?;
        let (old, new) = (handles.get(seat.owner)?, handles.get(to)?);
        if let Some(Some(kick)) = &seat.runs {
            if seat.kicked {
                old.unregister(kick.as_fd());
            }
            seat.kicked = new.register(source(ring), kick.as_fd());
        }
        owned.iter_mut().skip(seat.owner).take(1).for_each(|owned| *owned -= 1);
        owned.iter_mut().skip(to).take(1).for_each(|owned| *owned += 1);
        (seat.owner, seat.state) = (to, SeatState::Leaves { anew: false });
        let from = seat.serving.by(ring.1).and_then(|by| handles.get(by)).cloned();
        if let Some(from) = from.iter().find(|from| from.running.load(Ordering::Acquire)) {
            from.give_up(ring.0, ring.1);
        }
        Some(Move { serving: seat.serving.clone(), from, to: new.clone() })
    }

    /// Tells a ring's owner to take it, with what its former worker left.
    fn end_move(&self, ring: RingPlace, from: Option<&Handle>, to: &Handle) -> bool {
        let parcel = from.and_then(|from| from.take_parcel(source(ring)));
        let mut state = self.state();
        let Some(seat) = state.seats.get_mut(&ring) else { return false };
        let anew = seat.state == SeatState::Leaves { anew: true };
        seat.state = SeatState::Arrives;
        let timed = seat.runs.is_some() && !seat.kicked;
        to.take(ring, timed, parcel.filter(|_| !anew));
        to.stats.moves.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Ends a move: the owner has the ring, or does not run yet.
    fn settle(&self, ring: RingPlace) -> bool {
        let mut state = self.state();
        let Some(seat) = state.seats.get_mut(&ring) else { return false };
        seat.state = SeatState::Kept;
        if seat.serving.by(ring.1).is_none() {
            seat.serving.give(ring.1, seat.owner);
        }
        true
    }
}

/// A move that began: the service of the ring, the worker that has it, and its new owner.
struct Move {
    serving: Arc<Serving>,
    from: Option<Arc<Handle>>,
    to: Arc<Handle>,
}

fn source(ring: RingPlace) -> PollSource {
    PollSource::of(ring)
}
