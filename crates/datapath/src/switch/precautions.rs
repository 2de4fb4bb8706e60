//! Rings that are held, and workers that are stuck.
//!
//! The rings of a vnic are held if a worker ended the process twice while it touched them. Its
//! control channel is answered, and its rings are not looked at. The uplink's frames may be held
//! likewise.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed},
        },
    },
    time::Duration,
};

use butterfly_mem::blackbox::{BlackBox, Cause};
use butterfly_vhost::port::Port;

use crate::{
    engine::{place::PollSource, writer::MAX_WORKERS},
    plane::Plane,
    switch::{Switch, config::Precautions},
    worker::{Handle, Shared},
};

/// Vnics that are held now.
pub(super) struct HeldRings {
    named: BTreeSet<String>,
    all: bool,
}

impl HeldRings {
    pub fn of(precautions: &Precautions) -> Mutex<HeldRings> {
        Mutex::new(HeldRings { named: precautions.held.clone(), all: precautions.all_held })
    }

    fn has(&self, id: &str) -> bool {
        self.all || self.named.contains(id)
    }
}

impl Switch {
    fn held_rings(&self) -> MutexGuard<'_, HeldRings> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the rings of the vnic with this id are held, or would be.
    pub fn is_held(&self, id: &str) -> bool {
        self.held_rings().has(id)
    }

    /// Holds the rings of a vnic that is new, if that was decided.
    pub(super) fn hold_if_named(&self, id: &str, port: &Port) {
        // Behind the lock, so that nobody lets them go meanwhile.
        let held = self.held_rings();
        if held.has(id) {
            port.hold(true);
        }
    }

    /// Lets a vnic's rings go. Returns whether they were held.
    pub fn release_vnic(&self, id: &str) -> bool {
        let mut held = self.held_rings();
        let was = held.named.remove(id);
        if was && !held.all {
            self.let_go(id);
        }
        was
    }

    /// Lets the rings of all vnics go that are not held by name.
    pub fn release_all(&self) {
        let mut held = self.held_rings();
        held.all = false;
        for (_, vnic) in self.plane().shared.snapshot.load().vnics.iter() {
            if !held.named.contains(&*vnic.id) {
                self.let_go(&vnic.id);
            }
        }
    }

    fn let_go(&self, id: &str) {
        let Some(vnic) = self.plane().vnic(id) else { return };
        vnic.shared.port.hold(false);
        let place = vnic.place;
        for (pair, _) in vnic.shared.port.pairs() {
            let pair = pair as u8;
            if let Some(worker) = self.plane().board.worker_of(&vnic.shared.serving, pair) {
                worker.look_at(PollSource::Queue { place, pair });
            }
        }
    }

    /// Looks at the uplink's frames again.
    pub fn release_uplink(&self) {
        let plane = self.plane();
        plane.shared.uplink_held.store(false, Relaxed);
        let queues = plane.shared.tunnel.iter().flat_map(|tunnel| &*tunnel.serving);
        for (queue, serving) in (0..).zip(queues) {
            let worker = plane.board.worker_of(serving, 0);
            worker.into_iter().for_each(|worker| worker.look_at(PollSource::Uplink(queue)));
        }
    }
}

/// Has the uplink treated as the precautions say.
pub(super) fn heed(precautions: &Precautions, shared: &Shared) {
    shared.uplink_held.store(precautions.uplink_held, Relaxed);
    let queues = if precautions.skip_uplink { u64::MAX } else { 0 };
    shared.skip_uplink.store(queues, Relaxed);
}

/// Time between two looks at workers.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks in a row without a turn, and hundredths of a second of computing meanwhile, after which a
/// worker is stuck. A worker that is stopped or waits for the processor does not compute, and one
/// in a page fault computes in the kernel only.
const STUCK_LOOKS: u32 = 20;
const STUCK_TIME: u64 = 100;

/// A worker as it was seen.
#[derive(Default)]
struct Seen {
    progress: u64,
    /// Processor time when the progress was new.
    since: u64,
    looks: u32,
}

impl Seen {
    /// Looks at a worker, which has made that progress and used that processor time. Returns
    /// whether it is stuck.
    fn is_stuck(&mut self, serving: bool, progress: u64, time: u64) -> bool {
        if !serving || progress != self.progress || self.looks == 0 {
            *self = Seen { progress, since: time, looks: 1 };
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks > STUCK_LOOKS && time.saturating_sub(self.since) >= STUCK_TIME
    }
}

/// Looks at workers until the switch stops, and says that the process lives. One that is stuck is
/// noted, and ends the process: a successor goes on.
pub(super) fn watch_workers(plane: &Plane, black_box: &BlackBox, rests: &AtomicBool) {
    let mut seen = [const { Seen { progress: 0, since: 0, looks: 0 } }; MAX_WORKERS];
    while !rests.load(Acquire) {
        black_box.is_alive();
        for (worker, seen) in plane.board.handles().iter().zip(&mut seen) {
            if seen.is_stuck(worker.line.is_serving(), worker.stats.progress(), user_time(worker)) {
                worker.line.ended(Cause::Stuck);
                black_box.ended(Cause::Stuck);
                tracing::error!("worker {} takes no turn any more", worker.index);
                std::process::abort();
            }
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Returns the time that a worker's thread has computed outside of the kernel, in hundredths of a
/// second.
fn user_time(worker: &Arc<Handle>) -> u64 {
    let thread = worker.thread.load(Relaxed);
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain any characters; the fields behind it may not.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(11).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_worker_that_computes_for_nothing_is_stuck() {
        let looks = |serving: bool, progress: fn(u64) -> u64, time: fn(u64) -> u64| {
            let mut seen = Seen::default();
            (0..100).position(|n| seen.is_stuck(serving, progress(n), time(n)))
        };
        assert_eq!(looks(true, |_| 7, |n| 10 * n), Some(20));
        assert_eq!(looks(true, |n| n / 5, |n| 10 * n), None, "it takes turns");
        assert_eq!(looks(false, |_| 7, |n| 10 * n), None, "between turns");
        assert_eq!(looks(true, |_| 7, |_| 5), None, "stopped, or in a page fault");
        assert_eq!(looks(true, |_| 7, |n| n), Some(100).filter(|_| false), "starved");
        assert_eq!(looks(true, |_| 7, |n| 5 * n), Some(20));
    }
}
