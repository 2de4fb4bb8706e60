//! The plane: the control side of the packet path. Makes each change in a copy of the snapshot,
//! puts the copy in its place, and waits until every worker uses it.

mod adopted;
mod advertise;
mod advertising;
pub(crate) mod announce;
pub(crate) mod attachment;
pub(crate) mod balance;
pub(crate) mod board;
mod claims;
mod departed;
pub(crate) mod drop_window;
pub(crate) mod gone;
mod learnt;
mod mirrors;
pub(crate) mod moves;
mod networks;
pub(crate) mod policies;
pub(crate) mod ports;
pub(crate) mod routed;
mod routing;
pub(crate) mod seek;
mod seeker;
pub(crate) mod sessions;
mod trunks;
pub(crate) mod updates;
mod versions;
pub(crate) mod vnics;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use butterfly_mem::blackbox::BlackBox;

use crate::engine::{
    clock::Clock,
    counters::Totals,
    place::{MAX_SLOTS, PortRef, RingPlace, uplink_queue},
    tap::Ring,
    writer::PerWorker,
};
use crate::overlay::Tunnel;
use crate::plane::{
    board::Board, departed::Departed, drop_window::DropWindow, gone::Gone, routed::Routed,
    seeker::Seeker, updates::Updates,
};
use crate::session::{
    self, FIRST_STAMP, FormerTable, HashKey, SessionConfig, SessionTimes, Shares, tally::Tally,
};
use crate::stages::fragment_table::FragmentTable;
use crate::worker::Shared;
use crate::world::{
    asking::Asking,
    bindings::Bindings,
    fdb::Fdb,
    identifications::Identifications,
    rules::{Cells, Groups, MAX_CELLS},
    snapshot::{Snapshot, Vnic},
};

/// Settings of a plane.
pub(crate) struct PlaneConfig {
    pub workers: usize,
    pub fdb_ageing: u32,
    pub sessions: SessionConfig,
    /// The tunnel endpoint, if there is one.
    pub tunnel: Option<Tunnel>,
    /// Box in which workers note whose rings they touch.
    pub black_box: Arc<BlackBox>,
}

/// Returns a box that nobody reads.
#[cfg(any(test, feature = "harness"))]
pub(crate) fn nowhere() -> Arc<BlackBox> {
    Arc::new(BlackBox::nowhere())
}

/// Reason for which a vnic could not be added or changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum AddError {
    #[error("no vnic with id {0}")]
    Unknown(String),
    #[error("{} vnics and networks are the most one host can have", MAX_SLOTS)]
    TooMany,
    #[error("{MAX_CELLS} rules are the most one host can have")]
    TooManyRules,
    #[error("{0}")]
    Device(String),
}

/// First version of a policy, with which session stamps begin. 0 is older than all.
const FIRST_VERSION: u32 = FIRST_STAMP;

/// State that changes under the lock.
struct State {
    by_id: HashMap<Arc<str>, PortRef>,
    incarnation: u32,
    groups: Groups,
    /// Tunnel endpoints that get floods: of all networks, and of some.
    peers: Vec<IpAddr>,
    peers_of: BTreeMap<u32, Vec<IpAddr>>,
    routed: Routed,
}

impl State {
    /// Returns the place for the next user of a slot.
    fn place(&mut self, slot: u32) -> PortRef {
        self.incarnation = self.incarnation.wrapping_add(1);
        PortRef { slot, incarnation: self.incarnation }
    }
}

/// The shared part and its control side.
pub(crate) struct Plane {
    pub shared: Arc<Shared>,
    /// Workers, and which rings they serve.
    pub board: Arc<Board>,
    state: Mutex<State>,
    /// Vnics that left a moment ago, maybe for another host, by slot. Behind a lock of its own, as
    /// housekeeping does not wait for changes.
    departed: Mutex<Departed>,
    /// Slot of the vnic that was announced last.
    pub announced: AtomicU32,
    /// Behind a lock of its own, as observers do not wait for changes.
    pub gone: Gone,
    pub tally: Tally,
    pub updates: Updates,
    /// Drop counts of some time ago.
    pub(crate) drop_window: Mutex<DropWindow>,
    pub black_box: Arc<BlackBox>,
    /// Rings for the tap, one for each worker, while there are sinks.
    pub rings: Mutex<Option<Arc<PerWorker<Ring>>>>,
    /// Tables of sessions that were found at the start.
    pub former: Vec<FormerTable>,
    /// State of the search for neighbours.
    seeker: Mutex<Seeker>,
}

impl Plane {
    pub fn new(config: PlaneConfig) -> Result<Plane, std::io::Error> {
        let PlaneConfig { workers, fdb_ageing, sessions, tunnel, black_box } = config;
        let clock = Clock::new();
        let key = HashKey(secrets()?);
        let (table, former) =
            session::open(&sessions, key, clock.now()).map_err(std::io::Error::other)?;
        let shared = Shared {
            snapshot: ArcSwap::from_pointee(Snapshot {
                version: FIRST_VERSION,
                times: SessionTimes {
                    timeouts: sessions.timeouts,
                    tcp_pickup: sessions.tcp_pickup,
                },
                ..Snapshot::default()
            }),
            epoch: AtomicU64::new(0),
            fdb: Fdb::new(fdb_ageing),
            asking: Asking::new(),
            clock,
            stop: AtomicBool::new(false),
            cells: Cells::new().map_err(std::io::Error::other)?,
            shares: Shares::new(table.capacity(), sessions.share, sessions.rate),
            bindings: Bindings::new().map_err(std::io::Error::other)?,
            fragments: FragmentTable::new(&sessions.timeouts),
            nat_fragments: FragmentTable::new(&sessions.timeouts),
            identifications: Identifications::new(),
            table,
            tunnel,
            uplink_held: AtomicBool::new(false),
            skip_uplink: AtomicU64::new(0),
        };
        let adopted = former.iter().any(|former| former.adopted.is_some());
        let plane = Plane {
            shared: Arc::new(shared),
            board: Arc::new(Board::new(workers, &black_box)?),
            state: Mutex::new(State {
                by_id: HashMap::new(),
                incarnation: 0,
                groups: Groups::default(),
                peers: Vec::new(),
                peers_of: BTreeMap::new(),
                routed: Routed::default(),
            }),
            departed: Mutex::default(),
            announced: AtomicU32::default(),
            gone: Gone::default(),
            tally: Tally::default(),
            updates: Updates::default(),
            drop_window: Mutex::default(),
            black_box,
            rings: Mutex::default(),
            former,
            seeker: Mutex::default(),
        };
        if adopted {
            plane.await_adopted();
        }
        Ok(plane)
    }

    /// Makes the workers that are missing for so many, with all that they write. They get nothing
    /// to serve yet.
    pub fn add_workers(&self, workers: usize) -> Result<(), std::io::Error> {
        let _state = self.state();
        self.board.grow(workers, &self.black_box)?;
        for (_, vnic) in self.shared.snapshot.load().vnics.iter() {
            vnic.shared.counters.grow(workers);
        }
        if let Some(tunnel) = &self.shared.tunnel {
            tunnel.grow(workers);
        }
        if let Some(rings) = &*self.rings.lock().unwrap_or_else(PoisonError::into_inner) {
            rings.grow(workers, Ring::own);
        }
        Ok(())
    }

    /// Moves a ring to another worker. Returns when that one has it.
    pub fn hand_over(&self, ring: RingPlace, to: usize) -> bool {
        self.board.hand_over(ring, to, |(place, _)| {
            self.shared.stop.load(Ordering::Acquire)
                || uplink_queue(*place).is_none()
                    && self.shared.snapshot.load().vnic(*place).is_none()
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless a change is under way: housekeeping does not wait for it.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    /// Returns vnics that left a moment ago, by slot.
    pub fn departed(&self) -> Departed {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the vnic with an id.
    pub fn vnic(&self, id: &str) -> Option<Arc<Vnic>> {
        let place = self.state().by_id.get(id).copied()?;
        self.shared.snapshot.load().vnic(place).cloned()
    }

    /// Returns the place of the vnic with an id.
    pub fn place(&self, id: &str) -> Option<PortRef> {
        self.state().by_id.get(id).copied()
    }

    /// Looks at the place of a vnic, the snapshot, and the counts of vnics that are gone. No vnic
    /// comes or goes meanwhile.
    pub fn look<T>(
        &self,
        id: Option<&str>,
        look: impl FnOnce(Option<PortRef>, &Snapshot, &Totals) -> T,
    ) -> T {
        let state = self.state();
        let place = id.and_then(|id| state.by_id.get(id).copied());
        look(place, &self.shared.snapshot.load(), &self.gone.departed())
    }

    /// Returns the counters of the whole host, including vnics that are gone.
    pub fn totals(&self) -> Totals {
        let mut totals = self.gone.totals(&self.shared.snapshot).all;
        if let Some(tunnel) = &self.shared.tunnel {
            totals.merge(&tunnel.totals().drops_only());
        }
        totals
    }

    /// Exchanges the snapshot and waits until every worker uses the new one: at most one batch, or
    /// the time to wake up.
    fn publish(&self, next: Snapshot) {
        self.shared.divide(&next);
        let old = self.shared.snapshot.swap(Arc::new(next));
        let epoch = self.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        // The other half is where a worker says that it runs.
        fence(Ordering::SeqCst);
        let workers = self.board.handles();
        for worker in workers.iter() {
            worker.wake();
        }
        for worker in workers.iter() {
            let mut spins = 0u32;
            while worker.running.load(Ordering::Acquire)
                && worker.seen.load(Ordering::Acquire) < epoch
            {
                // Nothing to wait on: a worker that told us would have to make a system call.
                spins += 1;
                if spins < 100 {
                    std::thread::yield_now()
                } else {
                    std::thread::sleep(Duration::from_micros(20))
                }
            }
        }
        drop(old);
    }
}

/// Returns secret random numbers.
fn secrets() -> Result<[u64; 4], std::io::Error> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0u8; 32];
    let read = std::fs::File::open(SOURCE)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    read.map_err(|error| {
        std::io::Error::new(error.kind(), format!("cannot read {SOURCE}: {error}"))
    })?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word) | 1);
    Ok(std::array::from_fn(|_| words.next().unwrap_or(1)))
}
