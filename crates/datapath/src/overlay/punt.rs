//! Between workers and the control thread: frames for the endpoint itself, frames that wait for a
//! next hop, and what the control thread sends. Buffers are made once and go round.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering, fence},
};

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::engine::place::PeerRef;

/// Frames under way in one direction at most.
const DEPTH: usize = 256;
/// Buffers that frames for the endpoint leave to those that wait: whoever floods us with questions
/// stops nobody's traffic.
const RESERVED: usize = DEPTH / 4;

/// What a frame given to the control thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Punted {
    /// For the endpoint: ARP, ND, ping, IGMP, MLD.
    Control,
    /// Complete, but for the link address of the peer's next hop.
    Waiting(PeerRef),
}

/// A frame that the control thread wants to have sent.
pub(crate) struct Own {
    pub frame: Vec<u8>,
    /// A network's, which has counted it already.
    pub counted: bool,
}

/// The queues.
pub(crate) struct Punt {
    free: ArrayQueue<Vec<u8>>,
    full: ArrayQueue<(Punted, Vec<u8>)>,
    /// What the control thread wants to have sent, and what was sent.
    own: ArrayQueue<Own>,
    spent: ArrayQueue<Vec<u8>>,
    wake: OwnedFd,
    /// The control thread waits for `wake`: only then a worker makes the system call.
    sleeping: AtomicBool,
}

impl Punt {
    /// Buffers hold frames of up to `largest` bytes.
    pub fn new(largest: usize) -> Result<Punt, rustix::io::Errno> {
        let punt = Punt {
            free: ArrayQueue::new(DEPTH),
            full: ArrayQueue::new(DEPTH),
            own: ArrayQueue::new(DEPTH),
            spent: ArrayQueue::new(DEPTH),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sleeping: AtomicBool::new(false),
        };
        for _ in 0..DEPTH {
            let _ = punt.free.push(Vec::with_capacity(largest));
        }
        Ok(punt)
    }

    /// Gives the control thread a frame of `len` bytes that `fill` writes. Returns whether there
    /// was room, and `fill` could.
    pub fn put(&self, what: Punted, len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> bool {
        if what == Punted::Control && self.free.len() <= RESERVED {
            return false;
        }
        let Some(mut buffer) = self.free.pop() else { return false };
        if len > buffer.capacity() {
            let _ = self.free.push(buffer);
            return false;
        }
        buffer.clear();
        buffer.resize(len, 0); // within its capacity
        if !fill(&mut buffer) {
            let _ = self.free.push(buffer);
            return false;
        }
        // There are as many places as buffers.
        let _ = self.full.push((what, buffer));
        // The other half is in sleeps(): one of us sees the other.
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        true
    }

    /// For the control thread: the next frame, to be given back.
    pub fn take(&self) -> Option<(Punted, Vec<u8>)> {
        self.full.pop()
    }

    /// For the control thread: a buffer it is done with.
    pub fn give_back(&self, buffer: Vec<u8>) {
        let _ = self.free.push(buffer);
    }

    /// For the control thread: a frame to be sent. The worker must be woken. It is returned if
    /// there was no room.
    pub fn send(&self, own: Own) -> Result<(), Own> {
        while self.spent.pop().is_some() {} // freed here, not by a worker
        self.own.push(own)
    }

    /// For the worker: whether there is something of the control thread's to send.
    #[inline(always)]
    pub fn wants_to_send(&self) -> bool {
        !self.own.is_empty()
    }

    /// For the worker: the next frame to send.
    pub fn next_own(&self) -> Option<Own> {
        self.own.pop()
    }

    /// For the worker: that frame was sent.
    pub fn sent(&self, frame: Vec<u8>) {
        let _ = self.spent.push(frame); // as many places as frames can be under way
    }

    /// Readable when there is something to take.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// For the control thread: it is about to wait for the descriptor. Returns whether it may: not
    /// if there is something to take.
    pub fn sleeps(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.full.is_empty()
    }

    /// For the control thread: it will look now.
    pub fn clear(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wakes(punt: &Punt) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(punt.descriptor(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn a_worker_wakes_the_control_thread_once_and_only_if_it_sleeps() {
        let punt = Punt::new(100).unwrap();
        let put = || assert!(punt.put(Punted::Control, 60, |_| true));
        put();
        assert_eq!(wakes(&punt), 0);
        assert!(!punt.sleeps(), "there is something to take");
        punt.give_back(punt.take().unwrap().1);
        punt.clear();
        assert!(punt.sleeps());
        put();
        put();
        assert_eq!(wakes(&punt), 1);
    }

    #[test]
    fn buffers_go_round_and_end() {
        let punt = Punt::new(100).unwrap();
        assert!(!punt.put(Punted::Control, 101, |_| true), "longer than a buffer");
        for _ in 0..3 * DEPTH {
            assert!(!punt.put(Punted::Control, 60, |_| false), "not filled");
        }
        for _ in 0..DEPTH - RESERVED {
            assert!(punt.put(Punted::Control, 100, |room| room.len() == 100));
        }
        assert!(!punt.put(Punted::Control, 60, |_| true), "none is free for questions");
        let waiting = Punted::Waiting(PeerRef(1));
        for _ in 0..RESERVED {
            assert!(punt.put(waiting, 60, |_| true));
        }
        assert!(!punt.put(waiting, 60, |_| true), "none is free");
        punt.give_back(punt.take().unwrap().1);
        assert!(!punt.put(Punted::Control, 60, |_| true) && punt.put(waiting, 60, |_| true));
    }
}
