//! State shared by a device's handle and its control thread: wishes in one direction, the status in
//! the other.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{read, write},
};

use super::{
    socket::Listener,
    state::Exported,
    status::{Detach, Negotiated},
};

/// A wish for a copy of the device's state: `None` is sent if no front end is attached.
type ExportWish = SyncSender<Option<Exported>>;

/// Values that change while a device lives, for its status.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// The front end that is attached.
    pub attached: Option<Negotiated>,
    pub attach_count: u64,
    pub last_detach: Option<Detach>,
    /// Reason why no front end can attach, if known.
    pub trouble: Option<String>,
    /// Last words of the front end in this process before it left.
    pub farewell: Option<String>,
}

pub(super) struct Shared {
    wake: OwnedFd,
    stop: AtomicBool,
    poked: AtomicBool,
    exports: Mutex<Vec<ExportWish>>,
    live: Mutex<Live>,
    /// The listening socket of the server role, until the thread ends.
    pub listener: Option<Listener>,
}

impl Shared {
    pub fn new(listener: Option<Listener>) -> rustix::io::Result<Shared> {
        Ok(Shared {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            poked: AtomicBool::new(false),
            exports: Mutex::default(),
            live: Mutex::default(),
            listener,
        })
    }

    fn wake(&self) {
        // Full means that it is readable, which is all that is wanted.
        let _ = write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Resets the wake-up. What was wished for is found in this struct.
    pub fn take_wake(&self) {
        let _ = read(&self.wake, &mut [0u8; 8]);
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub fn poke(&self) {
        if !self.poked.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    pub fn take_poke(&self) -> bool {
        self.poked.swap(false, Ordering::AcqRel)
    }

    pub fn wish_export(&self, wish: ExportWish) {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner).push(wish);
        self.wake();
    }

    pub fn take_exports(&self) -> Vec<ExportWish> {
        std::mem::take(&mut *self.exports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a front end waits to be accepted.
    pub fn others_waiting(&self) -> bool {
        let Some(listener) = &self.listener else { return false };
        let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}
