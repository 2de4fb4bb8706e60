//! Queues between workers and the control thread: frames for the endpoint itself, frames that wait
//! for a next hop, and frames that the control thread sends. Buffers are made once and reused.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering, fence},
};

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::engine::place::PeerRef;

/// Most frames under way in one direction.
const DEPTH: usize = 256;
/// Buffers that frames for the endpoint leave to frames that wait. A flood of questions to the
/// endpoint thus stops no traffic.
const RESERVED: usize = DEPTH / 4;

/// Kind of a frame for the control thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Punted {
    /// For the endpoint: ARP, ND, ping, IGMP, MLD.
    Control,
    /// Complete, except for the link address of the peer's next hop.
    Waiting(PeerRef),
}

/// A frame that the control thread sends.
pub(crate) struct Own {
    pub frame: Vec<u8>,
    /// True for a network's frame, which its network has counted already.
    pub counted: bool,
}

/// The queues.
pub(crate) struct Punt {
    free: ArrayQueue<Vec<u8>>,
    full: ArrayQueue<(Punted, Vec<u8>)>,
    /// Frames that the control thread sends, and buffers of frames that were sent.
    own: ArrayQueue<Own>,
    spent: ArrayQueue<Vec<u8>>,
    wake: OwnedFd,
    /// True while the control thread waits for `wake`: only then a worker makes the system call.
    sleeping: AtomicBool,
}

impl Punt {
    /// Makes the queues. Buffers hold frames of up to `largest` bytes.
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
    /// was room, and `fill` succeeded.
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

    /// Returns the next frame to the control thread, which gives the buffer back.
    pub fn take(&self) -> Option<(Punted, Vec<u8>)> {
        self.full.pop()
    }

    /// Takes back a buffer from the control thread.
    pub fn give_back(&self, buffer: Vec<u8>) {
        let _ = self.free.push(buffer);
    }

    /// Takes a frame from the control thread to be sent. The caller wakes the worker. Returns the
    /// frame if there was no room.
    pub fn send(&self, own: Own) -> Result<(), Own> {
        while self.spent.pop().is_some() {} // freed here, not by a worker
        self.own.push(own)
    }

    /// Tells the worker whether the control thread has a frame to send.
    #[inline(always)]
    pub fn wants_to_send(&self) -> bool {
        !self.own.is_empty()
    }

    /// Returns the next frame to send to the worker.
    pub fn next_own(&self) -> Option<Own> {
        self.own.pop()
    }

    /// Takes back the buffer of a frame that the worker sent.
    pub fn sent(&self, frame: Vec<u8>) {
        let _ = self.spent.push(frame); // as many places as frames can be under way
    }

    /// Returns a descriptor that is readable when there is a frame to take.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Notes that the control thread is about to wait for the descriptor. Returns whether it may:
    /// false if there is a frame to take.
    pub fn sleeps(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.full.is_empty()
    }

    /// Notes that the control thread looks for frames now.
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
