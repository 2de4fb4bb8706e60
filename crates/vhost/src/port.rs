//! A port: the two rings of one guest, between the control channel that sets them up and the
//! workers that use them.
//!
//! A thread that touches a guest's memory holds the lock of one of its rings: a worker for a batch,
//! the control channel to change something. So a ring that was stopped, or moved to another memory
//! table, is out of use when the call returns. Nothing else is needed to wait for workers. The
//! control channel holds a lock only to exchange what was built before.
//!
//! Lock order: the transmit ring of a port, then receive rings in the order of ports' slots.
//! Mirrors, the receive rings to which only copies go, come last, one at a time.
//!
//! An epoch that each worker confirms between batches would do, too. The lock needs no worker to be
//! awake, is not contended within a batch, and shows a reader of the code what it protects.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::{
    ring::{CallFd, Interrupts, RingError, RingSetup, RingStatus, RxRing, Split, Touches, TxRing},
    sigbus,
};

/// The queue of a virtio-net device without multiqueue (virtio 1.2, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Queue 0, receiveq1: the switch writes.
    Rx,
    /// Queue 1, transmitq1: the switch reads.
    Tx,
}

impl Queue {
    /// Returns the queue with this vhost-user index.
    pub fn from_index(index: u32) -> Option<Queue> {
        match index {
            0 => Some(Queue::Rx),
            1 => Some(Queue::Tx),
            _ => None,
        }
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Queue::Rx => "rx",
            Queue::Tx => "tx",
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
    /// The transmit ring runs and is enabled now, or is another one than before: look at it once,
    /// then wait for kicks. Without a kick descriptor it has to be polled now and then. A ring
    /// that changes is announced by `tx_stopped` and `tx_started`.
    fn tx_started(&self, kick: Option<BorrowedFd<'_>>);
    /// The transmit ring stopped or was disabled: `kick` is what the last `tx_started` was given
    /// and may be closed soon.
    fn tx_stopped(&self, kick: Option<BorrowedFd<'_>>);
}

/// The rings of one guest.
pub struct Port {
    tx: Mutex<Option<TxRing>>,
    rx: Mutex<Option<RxRing>>,
    /// The transmit ring runs and is disabled.
    tx_disabled: AtomicBool,
    /// The rings are held: nothing is taken from them, and nothing put into them.
    held: AtomicBool,
    interrupts: Arc<Interrupts>,
    touches: Arc<Touches>,
}

impl Default for Port {
    fn default() -> Port {
        Port {
            tx: Mutex::default(),
            rx: Mutex::default(),
            tx_disabled: AtomicBool::new(false),
            held: AtomicBool::new(false),
            interrupts: Arc::default(),
            touches: Touches::new(),
        }
    }
}

fn lock<R>(ring: &Mutex<Option<R>>) -> MutexGuard<'_, Option<R>> {
    // A panic while a ring was held leaves it as hostile as any guest may make it: still safe to
    // use.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Returns the transmit ring, if no thread holds it at this moment; `None` inside if there is
    /// none.
    #[inline(always)]
    pub fn try_tx(&self) -> Option<MutexGuard<'_, Option<TxRing>>> {
        match self.tx.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
        match self.rx.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Starts a ring at `base`, the position the front end gave (SET_VRING_BASE), replacing one
    /// that runs.
    ///
    /// Every frame taken is completed at once and in order. So the used index in the guest's memory
    /// is the exact point where the last device stopped. It wins over a different `base`, which a
    /// front end gives if it resumes a device that died and counts on the available index. Returns
    /// the position at which the ring starts: above 0, another device drove it before.
    pub fn start(
        &self,
        queue: Queue,
        setup: &RingSetup,
        base: u16,
        enabled: bool,
    ) -> Result<u16, RingError> {
        let mut split = Split::new(setup, base)?;
        let used = split.used_idx_in_memory();
        if used != base {
            split = Split::new(setup, used)?;
        }
        split.touches = self.touches.clone();
        split.disarm();
        match queue {
            Queue::Tx => {
                let mut ring = TxRing::new(split);
                let mut tx = lock(&self.tx);
                ring.split.serve(enabled, self.is_held());
                let old = tx.replace(ring);
                self.tx_disabled.store(!enabled, Relaxed);
                drop(tx);
                drop(old);
            }
            Queue::Rx => {
                let mut ring = RxRing::new(split);
                let mut rx = lock(&self.rx);
                ring.split.serve(enabled, self.is_held());
                let old = rx.replace(ring);
                drop(rx);
                drop(old);
            }
        }
        Ok(used)
    }

    /// Moves the rings that run to new setups (another memory table, log, features, addresses or
    /// call descriptor), keeping their positions. `None` leaves a ring as it is; a ring that
    /// does not run stays stopped. On an error nothing is changed.
    pub fn replace(&self, tx: Option<&RingSetup>, rx: Option<&RingSetup>) -> Result<(), RingError> {
        let new_tx = tx.map(|setup| Split::new(setup, 0)).transpose()?;
        let new_rx = rx.map(|setup| Split::new(setup, 0)).transpose()?.map(RxRing::new);
        let mut tx = lock(&self.tx);
        let mut rx = lock(&self.rx);
        let old_tx = match (tx.as_mut(), new_tx) {
            (Some(old), Some(mut split)) => {
                split.take_positions(&old.split);
                Some(std::mem::replace(old, TxRing::new(split)))
            }
            _ => None,
        };
        let old_rx = match (rx.as_mut(), new_rx) {
            (Some(old), Some(mut new)) => {
                new.split.take_positions(&old.split);
                new.forget_prepared();
                Some(std::mem::replace(old, new))
            }
            _ => None,
        };
        // Unmapping takes its time: not while a worker may wait.
        drop((tx, rx));
        drop((old_tx, old_rx));
        Ok(())
    }

    /// SET_VRING_ENABLE.
    pub fn set_enabled(&self, queue: Queue, enabled: bool) {
        match queue {
            Queue::Tx => {
                if let Some(ring) = lock(&self.tx).as_mut() {
                    ring.set_enabled(enabled);
                    self.tx_disabled.store(!enabled, Relaxed);
                }
            }
            Queue::Rx => {
                if let Some(ring) = lock(&self.rx).as_mut() {
                    ring.split.want(enabled);
                    // Buffers looked at in advance would still be filled.
                    ring.forget_prepared();
                }
            }
        }
    }

    /// Holds the rings, those that there are and later ones, or lets them go. When this returns, no
    /// worker touches the guest's memory through rings that are held. Who lets them go has the
    /// transmit ring looked at.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Relaxed);
        // A ring that starts meanwhile reads it under its lock.
        if let Some(ring) = lock(&self.tx).as_mut() {
            ring.split.hold(held);
        }
        if let Some(ring) = lock(&self.rx).as_mut() {
            ring.split.hold(held);
            ring.forget_prepared();
        }
    }

    /// True if the rings are held.
    pub fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// True if the transmit ring runs and is disabled.
    pub fn is_tx_disabled(&self) -> bool {
        self.tx_disabled.load(Relaxed)
    }

    /// SET_VRING_CALL: changes how a ring that runs interrupts its guest.
    pub fn set_call(&self, queue: Queue, call: Option<Arc<CallFd>>) {
        let old = match queue {
            Queue::Tx => {
                lock(&self.tx).as_mut().map(|ring| std::mem::replace(&mut ring.split.call, call))
            }
            Queue::Rx => {
                lock(&self.rx).as_mut().map(|ring| std::mem::replace(&mut ring.split.call, call))
            }
        };
        // Closing takes its time: not while a worker may wait.
        drop(old);
    }

    /// Stops a ring. Returns its position, for GET_VRING_BASE, or `None` if it did not run. No
    /// worker touches the guest's memory through it any more.
    pub fn stop(&self, queue: Queue) -> Option<u16> {
        match queue {
            Queue::Tx => {
                let old = lock(&self.tx).take();
                self.tx_disabled.store(false, Relaxed);
                old.map(|ring| ring.split.next_used)
            }
            Queue::Rx => {
                let old = lock(&self.rx).take();
                old.map(|ring| ring.split.next_used)
            }
        }
    }

    /// True if a running ring lies in memory that was taken away: its file became shorter.
    pub fn poisoned(&self) -> bool {
        // Asked ten times a second for every vnic: usually no worker has to be locked out of a ring
        // for the answer.
        sigbus::any_poisoned() && self.holds_poisoned()
    }

    fn holds_poisoned(&self) -> bool {
        lock(&self.tx).as_ref().is_some_and(TxRing::poisoned)
            || lock(&self.rx).as_ref().is_some_and(RxRing::poisoned)
    }

    /// True if the guest broke a ring: it said something impossible, and the ring rests until it is
    /// set up anew. Never waits; false for a ring that is held at this moment.
    pub fn broken(&self, queue: Queue) -> bool {
        match queue {
            Queue::Tx => self
                .try_tx()
                .is_some_and(|ring| ring.as_ref().is_some_and(|ring| ring.split.broken)),
            Queue::Rx => self
                .try_rx()
                .is_some_and(|ring| ring.as_ref().is_some_and(|ring| ring.split.broken)),
        }
    }

    /// For the operator; `None` if the ring does not run.
    pub fn status(&self, queue: Queue) -> Option<RingStatus> {
        match queue {
            Queue::Tx => lock(&self.tx).as_ref().map(TxRing::status),
            Queue::Rx => lock(&self.rx).as_ref().map(RxRing::status),
        }
    }
}
