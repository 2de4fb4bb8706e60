//! The bodies of the switch's threads: a worker's, and housekeeping.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use butterfly_mem::blackbox::{Cause, Line};
use butterfly_vhost::ring::{look_at_workers, prepare_thread};
use rustix::thread::CpuSet;

use crate::engine::events::SwitchEvents;
use crate::plane::Plane;
use crate::report::watch::Watch;
use crate::switch::declared::Declared;
use crate::worker::Worker;

/// Runs a worker, on its processor if it has one, until it is to end.
pub(super) fn work(core: Option<usize>, line: &Line, make: impl FnOnce() -> Worker) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(why) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::warn!(core, %why, "cannot pin the worker");
        }
    }
    if let Err(why) = prepare_thread() {
        tracing::warn!(%why, "interrupting guests will cost the worker more: raise the sysctl fs.aio-max-nr");
    }
    // The loop must not panic. If it did, publications would wait for this thread for ever: a
    // restart is better.
    let run = || {
        let mut worker = make();
        worker.run();
        worker.retire();
    };
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
        line.ended(Cause::Panic);
        tracing::error!("a worker panicked");
        std::process::abort();
    }
}

/// Runs all regular work: the clock, ageing, guests whose memory was taken away, the daemon's own
/// guests when the MTU changes, and the watch over counters.
pub(super) fn housekeeping(
    plane: &Plane,
    vnics: &Mutex<BTreeMap<String, Declared>>,
    events: &dyn SwitchEvents,
    mut watch: Watch,
    rests: &AtomicBool,
) {
    const TICK: Duration = Duration::from_millis(100);
    /// Ticks in which every session is looked at once: more if there are many sessions, so that one
    /// tick looks at so many of them.
    const SWEEPS: u64 = 20;
    const SESSIONS: u64 = 50_000;
    /// Ticks in which every port that machines share is looked at once.
    const PORT_SWEEPS: usize = 200;
    let mut ticks = 0u32;
    let inner_mtu = || plane.shared.tunnel.as_ref().map(|tunnel| tunnel.inner_mtu());
    let mut mtu = inner_mtu();
    let sweeps = || (u64::from(plane.shared.table.used()) / SESSIONS).max(SWEEPS);
    let (mut part, mut parts) = (0, sweeps());
    while !rests.load(Ordering::Acquire) {
        plane.shared.clock.advance();
        look_at_workers();
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(10) {
            plane.expire();
            watch.look(plane, events);
        }
        plane.sweep(part, parts);
        plane.sweep_ports(ticks as usize % PORT_SWEEPS, PORT_SWEEPS);
        part += 1;
        if part >= parts {
            (part, parts) = (0, sweeps());
        }
        plane.announce();
        plane.see_off();
        plane.sample_drops();
        for (_, vnic) in plane.shared.snapshot.load().vnics.iter() {
            for pair in vnic.shared.port.stale() {
                // One in between is asked at the next tick.
                let worker = plane.board.worker_of(&vnic.shared.serving, pair as u8);
                worker.into_iter().for_each(|worker| worker.discard(vnic.place, pair));
            }
            if vnic.shared.port.poisoned()
                && let Some(declared) =
                    vnics.lock().unwrap_or_else(PoisonError::into_inner).get(&*vnic.id)
            {
                declared.open.device.poke();
            }
        }
        // A vnic that is just being added is in the list, or will be made with the new MTU: the
        // thread that adds holds the list.
        if let Some(new) = inner_mtu().filter(|new| Some(*new) != mtu) {
            mtu = Some(new);
            let vnics = vnics.lock().unwrap_or_else(PoisonError::into_inner);
            vnics
                .values()
                .filter_map(|declared| declared.open.guest.as_ref())
                .for_each(|guest| guest.resize(new));
        }
        std::thread::park_timeout(TICK);
    }
}

/// Looks for neighbours that nobody declared: when a worker needs one or hears one, and in between.
///
/// Publishes ten times in a second at most: each time all workers look.
pub(super) fn seek_neighbours(plane: &Plane, rests: &AtomicBool) {
    const SOON: Duration = Duration::from_millis(100);
    const IDLE: Duration = Duration::from_secs(1);
    plane.shared.asking.begin(Some(std::thread::current()));
    while !rests.load(Ordering::Acquire) {
        let outcome = plane.seek();
        if outcome.published {
            std::thread::sleep(SOON); // also if a worker wakes it
        } else {
            std::thread::park_timeout(if outcome.asks { SOON } else { IDLE });
        }
    }
}
