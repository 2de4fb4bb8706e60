//! State shared by the thread that moves bytes and the one that answers requests.

use super::{
    bounds::{FOR_LONG, FOR_SHORT},
    fair::Fair,
    peer::Origin,
};
use crate::Caller;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A request that waits to be answered.
#[derive(Debug)]
pub(super) struct Job {
    /// The connection it came by.
    pub(super) peer: u64,
    pub(super) origin: Origin,
    pub(super) caller: Caller,
    pub(super) route: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// Part that it takes of the room for requests. A request that takes none is a short one.
    pub(super) room: usize,
}

/// A reply on its way to the connection.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) peer: u64,
    pub(super) route: Vec<u8>,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    short: Fair<Origin, Job>,
    long: Fair<Origin, Job>,
    replies: Vec<Reply>,
    /// Room that was given for requests.
    pub(super) bodies: usize,
    /// Replies that are not read yet.
    pub(super) unread: usize,
    /// Replies so far of requests that are being answered.
    so_far: usize,
    /// A request waits for room that replies or requests of others take.
    starved: bool,
    /// No more requests are answered.
    finished: bool,
    /// No more bytes are moved.
    broken: bool,
}

/// Both threads' view of each other.
#[derive(Debug)]
pub(super) struct Exchange {
    shared: Mutex<Shared>,
    /// Readable when there is something to answer.
    to_answer: OwnedFd,
    /// Readable when there is something to send.
    to_send: OwnedFd,
}

impl Exchange {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            shared: Mutex::default(),
            to_answer: eventfd(0, flags)?,
            to_send: eventfd(0, flags)?,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn to_answer(&self) -> BorrowedFd<'_> {
        self.to_answer.as_fd()
    }

    pub(super) fn to_send(&self) -> BorrowedFd<'_> {
        self.to_send.as_fd()
    }

    /// Has the thread look that answers.
    pub(super) fn wake_answering(&self) {
        wake(&self.to_answer);
    }

    /// A request came.
    pub(super) fn ask(&self, job: Job) {
        let mut shared = self.lock();
        let queue = if job.room == 0 { &mut shared.short } else { &mut shared.long };
        queue.push(job.origin, job);
        drop(shared);
        wake(&self.to_answer);
    }

    /// Forgets what waits of a connection.
    pub(super) fn forget(&self, peer: u64) {
        let mut shared = self.lock();
        let mut freed = 0;
        let mut keep = |job: &Job| {
            let kept = job.peer != peer;
            freed += if kept { 0 } else { job.room };
            kept
        };
        shared.short.retain(&mut keep);
        shared.long.retain(&mut keep);
        shared.bodies -= freed.min(shared.bodies);
    }

    /// The next short request, if there is memory for its reply.
    pub(super) fn next_short(&self) -> Option<Job> {
        let mut shared = self.lock();
        if shared.short.is_empty() {
            return None;
        }
        let fits = shared.bodies + shared.unread + shared.so_far <= FOR_SHORT;
        if fits { shared.short.pop() } else { self.starve(shared) }
    }

    /// The next long request.
    pub(super) fn next_long(&self) -> Option<Job> {
        self.lock().long.pop()
    }

    /// True if there is memory to go on with a long request.
    pub(super) fn may_go_on(&self) -> bool {
        let shared = self.lock();
        shared.bodies + shared.unread <= FOR_LONG || self.starve::<()>(shared).is_some()
    }

    /// Asks for room.
    fn starve<T>(&self, mut shared: MutexGuard<'_, Shared>) -> Option<T> {
        if !std::mem::replace(&mut shared.starved, true) {
            drop(shared);
            wake(&self.to_send);
        }
        None
    }

    /// Replies so far take so much now.
    pub(super) fn set_so_far(&self, bytes: usize) {
        self.lock().so_far = bytes;
    }

    /// A request is answered: frees the room that it took.
    pub(super) fn answered(&self, room: usize, reply: Reply) {
        let mut shared = self.lock();
        shared.bodies -= room.min(shared.bodies);
        shared.unread += reply.body.len();
        shared.replies.push(reply);
        drop(shared);
        wake(&self.to_send);
    }

    pub(super) fn finish(&self) {
        self.lock().finished = true;
        wake(&self.to_send);
    }

    pub(super) fn break_off(&self) {
        self.lock().broken = true;
        wake(&self.to_answer);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().broken
    }
}

impl Shared {
    pub(super) fn take_replies(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    pub(super) fn take_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }
}

fn wake(whom: &OwnedFd) {
    // It fails when it is readable already.
    let _ = rustix::io::write(whom, &1u64.to_ne_bytes());
}

/// Makes it unreadable until the next time.
pub(super) fn heard(descriptor: BorrowedFd<'_>) {
    let _ = rustix::io::read(descriptor, &mut [0; 8]);
}
