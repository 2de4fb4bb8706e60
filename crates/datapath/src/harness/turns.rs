//! Turns of the workers, and passing time.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
};

use butterfly_guest_driver::guest::Guest;

use crate::engine::place::RingPlace;
use crate::harness::{
    Host,
    halves::{Changes, Guests, OneWorker, Turns},
};
use crate::session::{SessionTimes, Timeouts};
use crate::worker::Worker;

impl Host {
    /// Lets every worker look at its rings once. Returns whether a frame was found.
    pub fn turn(&mut self) -> bool {
        self.workers.iter_mut().fold(false, |found, worker| worker.turn() | found)
    }

    /// Lets every worker work in a thread of its own while `play` plays the guests. Returns when
    /// that is over and nothing is left to do.
    pub fn at_once<T>(&mut self, play: impl FnOnce(&mut Guests<'_>) -> T) -> T {
        let Host { workers, vnics, .. } = self;
        let over = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            for worker in workers.iter_mut() {
                scope.spawn(|| while worker.turn() || !over.load(Ordering::Acquire) {});
            }
            let result = play(&mut Guests { vnics });
            over.store(true, Ordering::Release);
            result
        });
        self.settle();
        result
    }

    /// Does the same as [`Self::at_once`] while the transmit rings of these vnics, or of all, go
    /// from worker to worker, again and again. Returns the number of moves, too.
    pub fn at_once_moving<T>(
        &mut self,
        ids: &[&str],
        play: impl FnOnce(&mut Guests<'_>) -> T,
    ) -> (T, usize) {
        let Host { plane, workers, vnics, .. } = self;
        let handles = plane.board.handles();
        let places: Vec<_> = ids.iter().filter_map(|id| plane.place(id)).collect();
        handles.iter().for_each(|handle| handle.running.store(true, Ordering::SeqCst));
        let (played, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let result = std::thread::scope(|scope| {
            for worker in workers.iter_mut() {
                scope.spawn(|| while worker.turn() || !over.load(Ordering::Acquire) {});
            }
            let mover = scope.spawn(|| {
                let mut moves = 0;
                while !played.load(Ordering::Acquire) {
                    for from in 0..handles.len() {
                        let rings = plane.board.rings_of(from).into_iter().map(|(ring, _)| ring);
                        for ring in rings.filter(|(at, _)| places.is_empty() || places.contains(at))
                        {
                            let to = (from + 1) % handles.len();
                            moves += usize::from(plane.hand_over(ring, to));
                        }
                    }
                }
                over.store(true, Ordering::Release);
                moves
            });
            let result = play(&mut Guests { vnics });
            played.store(true, Ordering::Release);
            (result, mover.join().unwrap_or(0))
        });
        handles.iter().for_each(|handle| handle.running.store(false, Ordering::SeqCst));
        self.settle();
        result
    }

    /// Moves the transmit ring of a vnic's first pair to another worker, as a switch does: one
    /// worker gives it up in a turn, the other takes it in a later one. Returns whether it moved.
    pub fn move_to(&mut self, id: &str, worker: usize) -> bool {
        let Host { plane, workers, .. } = self;
        let Some(place) = plane.place(id) else { return false };
        let handles = plane.board.handles();
        handles.iter().for_each(|handle| handle.running.store(true, Ordering::SeqCst));
        let workers = RefCell::new(workers);
        // While the board waits for a worker, all take turns.
        let turns = |_: &RingPlace| {
            workers.borrow_mut().iter_mut().for_each(|worker| _ = worker.turn());
            false
        };
        let moved = plane.board.hand_over((place, 0), worker, turns);
        handles.iter().for_each(|handle| handle.running.store(false, Ordering::SeqCst));
        moved
    }

    /// Counts the cost of batches from now on, and the time that fragments wait, as a switch does.
    /// Until then turns depend only on the frames in the rings.
    pub fn heed_prices(&mut self) {
        self.workers.iter_mut().for_each(Worker::heed_prices);
    }

    /// Returns the cycles of the longest batch of one ring since the last look.
    pub fn longest_turn(&self) -> u64 {
        self.plane
            .board
            .first()
            .map_or(0, |worker| worker.stats.longest.swap(0, std::sync::atomic::Ordering::Relaxed))
    }

    /// Takes turns until nothing is left to do. Then no fragment waits any more for a first one
    /// that nobody sent.
    pub fn settle(&mut self) {
        loop {
            while self.turn() {}
            if !self.workers.iter_mut().fold(false, |any, worker| worker.end_waits() | any) {
                return;
            }
        }
    }

    /// Splits the host for two threads: one changes groups, the other is the worker. A change waits
    /// for the worker as in a switch. So the worker's thread must go on with turns until all
    /// changes are made, or let go of it.
    pub fn halves(&mut self) -> (Changes<'_>, Turns<'_>) {
        let Host { plane, workers, vnics, .. } = self;
        plane
            .board
            .handles()
            .iter()
            .for_each(|handle| handle.running.store(true, Ordering::SeqCst));
        (Changes { plane }, Turns { plane, workers, vnics })
    }

    /// Splits the host into its workers, in their order, and the guests, in the order of their
    /// vnics' ids, for threads that decide themselves when each does something. Nothing may be
    /// changed meanwhile.
    pub fn apart(&mut self) -> (Vec<OneWorker<'_>>, Vec<&mut Guest>) {
        let Host { workers, vnics, .. } = self;
        let workers = workers.iter_mut().map(|worker| OneWorker { worker }).collect();
        (workers, vnics.values_mut().filter_map(|vnic| vnic.guest.as_mut()).collect())
    }

    /// Lets seconds of the coarse clock pass, with what housekeeping does in them.
    pub fn pass(&mut self, seconds: u32) {
        self.plane.shared.clock.pass(seconds);
        self.plane.expire();
        self.plane.sweep(0, 1);
        self.plane.sweep_ports(0, 1);
    }

    /// Gives sessions other times, as [`crate::Switch::set_session_times`] does.
    pub fn set_session_times(&self, timeouts: Timeouts, tcp_pickup: u32) {
        self.plane.set_session_times(SessionTimes { timeouts, tcp_pickup });
    }

    /// Lets tenths of a second pass on the clock of drops.
    pub fn pass_tenths(&mut self, tenths: u32) {
        self.plane.shared.clock.pass_tenths(tenths);
        self.plane.sample_drops();
    }
}
