//! A port: the pairs of rings of one guest, between the control channel that sets them up and the
//! workers that use them.
//!
//! A thread that touches a guest's memory holds the lock of one of its rings: a worker for a batch,
//! the control channel to change something. So a ring that was stopped, or moved to another memory
//! table, is out of use when the call returns. Nothing else is needed to wait for workers. The
//! control channel holds a lock only to exchange what was built before.
//!
//! Lock order: a transmit ring, then receive rings in the order of ports' slots and pairs.
//! Mirrors, the receive rings to which only copies go, come last, one at a time.
//!
//! An epoch that each worker confirms between batches would do, too. The lock needs no worker to be
//! awake, is not contended within a batch, and shows a reader of the code what it protects.

use std::{
    fmt,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU16, Ordering::Relaxed},
    },
};

use crossbeam_utils::CachePadded;

use crate::{
    ring::{
        CallFd, Discarded, Interrupts, RingError, RingSetup, RingStatus, RxRing, Touches, TxRing,
        Vring,
    },
    sigbus,
};

/// Most pairs of rings of a device.
pub const MAX_PAIRS: usize = 16;

/// Kind of a ring, by its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Receives: the switch writes.
    Rx,
    /// Transmits: the switch reads.
    Tx,
}

impl QueueKind {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            QueueKind::Rx => "rx",
            QueueKind::Tx => "tx",
        }
    }
}

/// A queue of a virtio-net device by its index: pair *n* receives by queue 2*n* and transmits by
/// queue 2*n* + 1 (virtio 1.2, 5.1.2). Below 2 * [`MAX_PAIRS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Queue(u8);

impl Queue {
    /// The receive queue of the first pair, of which each device has one.
    pub const RX: Queue = Queue(0);
    /// The transmit queue of the first pair.
    pub const TX: Queue = Queue(1);
    /// Number of queues.
    pub const COUNT: usize = 2 * MAX_PAIRS;

    /// Returns the queue with this vhost-user index.
    pub fn from_index(index: u32) -> Option<Queue> {
        u8::try_from(index).ok().filter(|index| usize::from(*index) < Queue::COUNT).map(Queue)
    }

    /// All queues by index.
    pub fn all() -> impl DoubleEndedIterator<Item = Queue> {
        (0..Queue::COUNT as u8).map(Queue)
    }

    /// Index in vhost-user messages.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Number of its pair.
    pub const fn pair(self) -> usize {
        self.index() / 2
    }

    /// Kind.
    pub const fn kind(self) -> QueueKind {
        if self.0.is_multiple_of(2) { QueueKind::Rx } else { QueueKind::Tx }
    }

    /// The other queue of its pair.
    pub const fn other(self) -> Queue {
        Queue(self.0 ^ 1)
    }

    /// Name of its kind, for people.
    pub const fn name(self) -> &'static str {
        self.kind().name()
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pair() {
            0 => write!(f, "{} ring", self.name()),
            pair => write!(f, "{} ring of pair {pair}", self.name()),
        }
    }
}

/// Tells the worker that polls a transmit ring when there is one. The control channel calls it
/// without locks held.
///
/// A kick descriptor is always an eventfd, but the guest shares its open file: it may set and clear
/// `O_NONBLOCK` and the counter at any moment. So it must never be read, as a read may sleep.
/// Register it edge-triggered (`EPOLLET`), where every kick is an edge.
pub trait PortEvents: Send + Sync {
    /// The transmit ring of a pair runs and is enabled now, or is another one than before: look at
    /// it once, then wait for kicks. Without a kick descriptor it has to be polled now and then. A
    /// ring that changes is announced by `tx_stopped` and `tx_started`.
    fn tx_started(&self, pair: usize, kick: Option<&Arc<OwnedFd>>);
    /// The transmit ring of a pair stopped or was disabled: `kick` is what the last `tx_started`
    /// was given. Who kept it has to let go of it.
    fn tx_stopped(&self, pair: usize, kick: Option<&Arc<OwnedFd>>);
}

/// A pair of rings. Each has lines of its own: one worker takes from the one while others put
/// frames into the other.
#[derive(Default)]
pub struct Pair {
    tx: CachePadded<Mutex<Option<TxRing>>>,
    rx: CachePadded<Mutex<Option<RxRing>>>,
    /// The transmit ring runs, and holds what is to be discarded ([`TxRing::discard`]).
    tx_stale: AtomicBool,
}

fn lock<R>(ring: &Mutex<Option<R>>) -> MutexGuard<'_, Option<R>> {
    // A panic while a ring was held leaves it as hostile as any guest may make it: still safe to
    // use.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline(always)]
fn try_lock<R>(ring: &Mutex<Option<R>>) -> Option<MutexGuard<'_, Option<R>>> {
    match ring.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Pair {
    /// Returns the transmit ring, if no thread holds it at this moment; `None` inside if there is
    /// none.
    #[inline(always)]
    pub fn try_tx(&self) -> Option<MutexGuard<'_, Option<TxRing>>> {
        try_lock(&self.tx)
    }

    /// The transmit ring. Waits for a worker's batch at most.
    pub fn tx(&self) -> MutexGuard<'_, Option<TxRing>> {
        lock(&self.tx)
    }

    /// The receive ring. Waits for a worker's batch at most.
    #[inline(always)]
    pub fn rx(&self) -> MutexGuard<'_, Option<RxRing>> {
        lock(&self.rx)
    }

    /// Returns the receive ring, if no thread holds it at this moment.
    #[inline(always)]
    pub fn try_rx(&self) -> Option<MutexGuard<'_, Option<RxRing>>> {
        try_lock(&self.rx)
    }

    /// Changes one of its rings, if it runs.
    fn with_vring<T>(&self, kind: QueueKind, change: impl FnOnce(&mut Vring) -> T) -> Option<T> {
        match kind {
            QueueKind::Tx => lock(&self.tx).as_mut().map(|ring| change(&mut ring.vring)),
            QueueKind::Rx => lock(&self.rx).as_mut().map(|ring| change(&mut ring.vring)),
        }
    }

    fn hold(&self, held: bool) {
        if let Some(ring) = lock(&self.tx).as_mut() {
            ring.vring.hold(held);
        }
        if let Some(ring) = lock(&self.rx).as_mut() {
            ring.vring.hold(held);
            ring.forget_prepared();
        }
    }

    fn holds_poisoned(&self) -> bool {
        lock(&self.tx).as_ref().is_some_and(TxRing::poisoned)
            || lock(&self.rx).as_ref().is_some_and(RxRing::poisoned)
    }
}

/// The rings of one guest.
pub struct Port {
    /// The pair that each device has, where it is found without a look at another line.
    first: Pair,
    /// Further pairs of a device with several. Made when the first of their rings starts, and kept.
    further: [OnceLock<Box<Pair>>; MAX_PAIRS - 1],
    /// A bit for each pair whose receive ring runs and is enabled. Written under that ring's lock.
    open: AtomicU16,
    /// The rings are held: nothing is taken from them, and nothing put into them.
    held: AtomicBool,
    interrupts: Arc<Interrupts>,
    touches: Arc<Touches>,
}

impl Default for Port {
    fn default() -> Port {
        Port {
            first: Pair::default(),
            further: Default::default(),
            open: AtomicU16::new(0),
            held: AtomicBool::new(false),
            interrupts: Arc::default(),
            touches: Touches::new(),
        }
    }
}

impl Port {
    /// Cost of interrupting the vnic's guests.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// Cost of touching the guests' memory.
    pub fn touches(&self) -> &Arc<Touches> {
        &self.touches
    }

    /// A pair of rings; `None` if none of them ever ran.
    #[inline(always)]
    pub fn pair(&self, number: usize) -> Option<&Pair> {
        match number.checked_sub(1) {
            None => Some(&self.first),
            Some(further) => self.further.get(further)?.get().map(Box::as_ref),
        }
    }

    /// The pairs that there are, with their numbers. The first one is always there.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, &Pair)> {
        (0..MAX_PAIRS).filter_map(|number| Some((number, self.pair(number)?)))
    }

    fn pair_of(&self, queue: Queue) -> &Pair {
        match queue.pair().checked_sub(1).and_then(|further| self.further.get(further)) {
            None => &self.first,
            Some(further) => further.get_or_init(Box::default),
        }
    }

    /// Does the work of [`Pair::try_tx`] for the first pair.
    #[inline(always)]
    pub fn try_tx(&self) -> Option<MutexGuard<'_, Option<TxRing>>> {
        self.first.try_tx()
    }

    /// Does the work of [`Pair::tx`] for the first pair.
    pub fn tx(&self) -> MutexGuard<'_, Option<TxRing>> {
        self.first.tx()
    }

    /// Does the work of [`Pair::rx`] for the first pair.
    #[inline(always)]
    pub fn rx(&self) -> MutexGuard<'_, Option<RxRing>> {
        self.first.rx()
    }

    /// Does the work of [`Pair::try_rx`] for the first pair.
    #[inline(always)]
    pub fn try_rx(&self) -> Option<MutexGuard<'_, Option<RxRing>>> {
        self.first.try_rx()
    }

    /// Does the work of [`Pair::rx`] for a pair, or for the first one if it never ran.
    #[inline(always)]
    pub fn rx_of(&self, pair: u8) -> MutexGuard<'_, Option<RxRing>> {
        self.pair(pair.into()).unwrap_or(&self.first).rx()
    }

    /// Pairs that receive: a bit for each whose receive ring runs and is enabled.
    #[inline(always)]
    pub fn open(&self) -> u16 {
        self.open.load(Relaxed)
    }

    /// Locks a pair's receive ring if a flow may leave it: the guest has taken everything out of
    /// it, or the flow was `quiet` for so long that nothing of it is there. Never waits; `None` for
    /// a ring that is held at this moment.
    pub fn to_leave(&self, pair: u8, quiet: bool) -> Option<MutexGuard<'_, Option<RxRing>>> {
        let ring = self.pair(pair.into()).and_then(Pair::try_rx)?;
        let may = quiet || ring.as_ref().is_none_or(RxRing::is_read);
        may.then_some(ring)
    }

    /// True if the guest has given a pair's receive ring buffers that are not used. Never waits;
    /// true for a ring that is held at this moment.
    pub fn has_room(&self, pair: u8) -> bool {
        let Some(pair) = self.pair(pair.into()) else { return false };
        pair.try_rx().is_none_or(|ring| ring.as_ref().is_some_and(RxRing::has_room))
    }

    /// Notes whether a pair receives. Its receive ring is locked.
    fn note_open(&self, queue: Queue, open: bool) {
        let bit = 1 << queue.pair();
        match open {
            true => self.open.fetch_or(bit, Relaxed),
            false => self.open.fetch_and(!bit, Relaxed),
        };
    }

    /// Starts a ring at `base`, the position the front end gave (SET_VRING_BASE), replacing one
    /// that runs.
    ///
    /// A device that drove it before stopped where the used index in the guest's memory says, or
    /// the note about a packed ring. That wins over a different `base`. Returns whether there was
    /// such a device.
    pub fn start(
        &self,
        queue: Queue,
        setup: &RingSetup,
        base: u16,
        enabled: bool,
    ) -> Result<bool, RingError> {
        let (mut vring, resumed) = Vring::start(setup, base)?;
        vring.touches = self.touches.clone();
        vring.disarm();
        let pair = self.pair_of(queue);
        match queue.kind() {
            QueueKind::Tx => {
                let mut ring = TxRing::new(vring);
                let mut tx = lock(&pair.tx);
                ring.vring.serve(enabled, self.is_held());
                let old = tx.replace(ring);
                pair.tx_stale.store(!enabled && queue == Queue::TX, Relaxed);
                drop(tx);
                drop(old);
            }
            QueueKind::Rx => {
                let mut ring = RxRing::new(vring);
                let mut rx = lock(&pair.rx);
                ring.vring.serve(enabled, self.is_held());
                let old = rx.replace(ring);
                self.note_open(queue, enabled);
                drop(rx);
                drop(old);
            }
        }
        Ok(resumed)
    }

    /// Moves a ring that runs to a new setup (another memory table, log, features, addresses or
    /// call descriptor), keeping its position. A ring that does not run stays stopped. On an error
    /// nothing is changed.
    pub fn replace(&self, queue: Queue, setup: &RingSetup) -> Result<(), RingError> {
        let mut vring = Vring::elsewhere(setup)?;
        let pair = self.pair_of(queue);
        // Unmapping takes its time: old rings are dropped when no worker may wait any more.
        match queue.kind() {
            QueueKind::Tx => {
                let mut tx = lock(&pair.tx);
                let Some(running) = tx.as_mut() else { return Ok(()) };
                vring.take_positions(&running.vring)?;
                let old = std::mem::replace(running, TxRing::new(vring));
                drop(tx);
                drop(old);
            }
            QueueKind::Rx => {
                let mut new = RxRing::new(vring);
                let mut rx = lock(&pair.rx);
                let Some(running) = rx.as_mut() else { return Ok(()) };
                new.vring.take_positions(&running.vring)?;
                new.forget_prepared();
                let old = std::mem::replace(running, new);
                drop(rx);
                drop(old);
            }
        }
        Ok(())
    }

    /// SET_VRING_ENABLE. With `stale`, a transmit ring is served only when what it holds was
    /// discarded: newer frames of the same flows went by other rings while it was disabled.
    pub fn set_enabled(&self, queue: Queue, enabled: bool, stale: bool) {
        let pair = self.pair_of(queue);
        match queue.kind() {
            QueueKind::Tx => {
                if let Some(ring) = lock(&pair.tx).as_mut() {
                    ring.set_enabled(enabled, stale);
                    pair.tx_stale.store(ring.is_stale(), Relaxed);
                }
            }
            QueueKind::Rx => {
                if let Some(ring) = lock(&pair.rx).as_mut() {
                    ring.vring.want(enabled);
                    // Buffers looked at in advance would still be filled.
                    ring.forget_prepared();
                    self.note_open(queue, enabled);
                }
            }
        }
    }

    /// Holds the rings, those that there are and later ones, or lets them go. When this returns, no
    /// worker touches the guest's memory through rings that are held. Who lets them go has the
    /// transmit rings looked at.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Relaxed);
        // A ring that starts meanwhile reads it under its lock.
        self.pairs().for_each(|(_, pair)| pair.hold(held));
    }

    /// True if the rings are held.
    pub fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// Gives back frames of a pair's transmit ring that are not to be sent; `None` if it does not
    /// run, or a thread holds it.
    ///
    /// A first pair that is disabled is looked at as long as it is. A further one is empty after
    /// that: what its guest puts there all the same is discarded when it is enabled.
    pub fn discard(&self, number: usize) -> Option<Discarded> {
        let pair = self.pair(number)?;
        let mut tx = pair.try_tx()?;
        let ring = tx.as_mut()?;
        let mut discarded = ring.discard();
        discarded.left |= number == 0 && ring.is_disabled();
        pair.tx_stale.store(discarded.left, Relaxed);
        Some(discarded)
    }

    /// Pairs whose transmit ring runs and holds what is to be discarded.
    pub fn stale(&self) -> impl Iterator<Item = usize> {
        self.pairs().filter(|(_, pair)| pair.tx_stale.load(Relaxed)).map(|(number, _)| number)
    }

    /// SET_VRING_CALL: changes how a ring that runs interrupts its guest.
    pub fn set_call(&self, queue: Queue, call: Option<Arc<CallFd>>) {
        let change = |vring: &mut Vring| std::mem::replace(&mut vring.call, call);
        let old = self.pair_of(queue).with_vring(queue.kind(), change);
        // Closing takes its time: not while a worker may wait.
        drop(old);
    }

    /// Stops a ring. Returns its position, for GET_VRING_BASE, or `None` if it did not run. No
    /// worker touches the guest's memory through it any more.
    pub fn stop(&self, queue: Queue) -> Option<u16> {
        let pair = self.pair(queue.pair())?;
        match queue.kind() {
            QueueKind::Tx => {
                let old = lock(&pair.tx).take();
                pair.tx_stale.store(false, Relaxed);
                old.map(|ring| ring.vring.position())
            }
            QueueKind::Rx => {
                let mut rx = lock(&pair.rx);
                let old = rx.take();
                self.note_open(queue, false);
                drop(rx);
                old.map(|ring| ring.vring.position())
            }
        }
    }

    /// True if a running ring lies in memory that was taken away: its file became shorter.
    pub fn poisoned(&self) -> bool {
        // Asked ten times a second for every vnic: usually no worker has to be locked out of a ring
        // for the answer.
        sigbus::any_poisoned() && self.pairs().any(|(_, pair)| pair.holds_poisoned())
    }

    /// True if the guest broke a ring of this kind: it said something impossible, and the ring
    /// rests until it is set up anew. Never waits, and leaves out rings that are held at this
    /// moment.
    pub fn broken(&self, kind: QueueKind) -> bool {
        let broken = |pair: &Pair| match kind {
            QueueKind::Tx => pair
                .try_tx()
                .is_some_and(|ring| ring.as_ref().is_some_and(|ring| ring.vring.broken)),
            QueueKind::Rx => pair
                .try_rx()
                .is_some_and(|ring| ring.as_ref().is_some_and(|ring| ring.vring.broken)),
        };
        self.pairs().any(|(_, pair)| broken(pair))
    }

    /// For the operator; `None` if the ring does not run.
    pub fn status(&self, queue: Queue) -> Option<RingStatus> {
        self.pair(queue.pair())?.with_vring(queue.kind(), |vring| vring.status())
    }
}
