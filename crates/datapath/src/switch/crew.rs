//! The crew: threads of workers, the processors they run on, and the thread that balances.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use butterfly_mem::cpu;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::engine::place::RingPlace;
use crate::plane::{Plane, balance::Balance};
use crate::worker::Handle;
use crate::world::serving::Serving;

/// Time between two looks at the workers' loads: while one is busy, while none is, and while there
/// is nothing to move, as a worker is alone or all sleep.
const BUSY: Duration = Duration::from_millis(10);
const QUIET: Duration = Duration::from_millis(30);
const NOTHING: Duration = Duration::from_millis(100);
/// Load from which on workers are looked at more often.
const QUIET_LOAD: f64 = 0.2;
/// Time in which a worker tells the cycles of its rings, and for which they are weighed.
const TELLS: Duration = Duration::from_millis(1);
const WEIGHS: Duration = Duration::from_millis(7);

/// Beginning of the names of workers' threads; their numbers follow.
pub(super) const WORKER: &str = "worker-";

/// Threads of the workers.
#[derive(Default)]
pub(super) struct Crew {
    /// They run.
    pub goes: bool,
    pub threads: Vec<JoinHandle<()>>,
    /// Processors, by worker. A worker beyond the last goes where the scheduler puts it.
    pub cores: Vec<usize>,
}

impl Crew {
    pub fn on(cores: &[usize]) -> Crew {
        let mut crew = Crew::default();
        crew.set_cores(cores);
        crew
    }

    pub fn set_cores(&mut self, cores: &[usize]) {
        let new = cores.iter().filter(|core| !self.cores.contains(core));
        for core in new.filter(|core| !exists(**core)) {
            tracing::warn!(core, "no such processor: the worker is not pinned");
        }
        self.cores = cores.to_vec();
    }

    /// Waits for the end of the workers, which are told to end.
    pub fn end(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a worker that panicked has ended the process
        }
    }

    /// Returns the processors of so many workers.
    pub fn of(&self, workers: usize) -> &[usize] {
        self.cores.get(..workers.min(self.cores.len())).unwrap_or_default()
    }

    pub fn core(&self, worker: usize) -> Option<usize> {
        self.cores.get(worker).copied().filter(|core| exists(*core))
    }
}

/// Returns whether the host has a processor of this number. Not by available_parallelism(): that
/// counts those the daemon was confined to, whatever their numbers.
fn exists(core: usize) -> bool {
    core < CpuSet::MAX_CPU && Path::new(&format!("/sys/devices/system/cpu/cpu{core}")).exists()
}

/// Returns the processors that the process was started with: what is taken from its threads, and
/// given back, is of those.
fn started_with() -> Option<&'static CpuSet> {
    static STARTED_WITH: OnceLock<Option<CpuSet>> = OnceLock::new();
    STARTED_WITH.get_or_init(|| sched_getaffinity(None).ok()).as_ref()
}

/// Pins a worker that runs, or lets it go where the scheduler puts it: not where others of these
/// processors are pinned, as if it had just been started.
pub(super) fn pin(handle: &Handle, core: Option<usize>, taken: &[usize]) {
    handle.core.store(core.map_or(-1, |core| core as i32), Ordering::Relaxed);
    let mut set = CpuSet::new();
    match (core, started_with()) {
        (Some(core), _) => set.set(core),
        (None, Some(all)) => {
            set = *all;
            taken.iter().filter(|core| exists(**core)).for_each(|core| set.unset(*core));
            if set.count() == 0 {
                set = *all;
            }
        }
        (None, None) => return,
    }
    let thread = Pid::from_raw(handle.thread.load(Ordering::Relaxed));
    if let Some(thread) = thread
        && let Err(why) = sched_setaffinity(Some(thread), &set)
    {
        tracing::warn!(worker = handle.index, core, %why, "cannot pin the worker");
    }
}

/// Keeps all threads but the workers off the processors that workers have to themselves, and gives
/// them back those that workers had. Threads that are started later are like the ones that start
/// them. A thread that has no other processor stays where it is.
pub(super) fn keep_others_off(cores: &[usize], former: &[usize]) {
    let all = started_with();
    let ours = |core: usize| core < CpuSet::MAX_CPU && all.is_some_and(|set| set.is_set(core));
    let tasks = match std::fs::read_dir("/proc/self/task") {
        Ok(tasks) => tasks,
        Err(why) => {
            tracing::warn!(%why, "other threads may run on the workers' processors");
            return;
        }
    };
    for task in tasks.flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let thread = task.file_name().to_str().and_then(|text| text.parse().ok());
        let Some(thread) = thread.and_then(Pid::from_raw) else { continue };
        let Ok(before) = sched_getaffinity(Some(thread)) else { continue };
        if name.starts_with(WORKER) {
            continue;
        }
        let mut set = before;
        former.iter().filter(|core| ours(**core)).for_each(|core| set.set(*core));
        cores.iter().filter(|core| ours(**core)).for_each(|core| set.unset(*core));
        if set != before && set.count() > 0 {
            // One that has just ended needs no place.
            let _ = sched_setaffinity(Some(thread), &set);
        }
    }
}

/// Moves rings from busy workers to others, until the regular work ends.
pub(super) fn balance(plane: &Plane, rests: &AtomicBool) {
    let mut balance = Balance::default();
    let mut last = cpu::tsc();
    let mut before = Vec::new();
    while !rests.load(Ordering::Acquire) {
        let handles = plane.board.handles();
        let active = handles.get(..plane.board.active()).unwrap_or(&handles);
        let busy: Vec<u64> =
            active.iter().map(|handle| handle.stats.busy_cycles.load(Ordering::Relaxed)).collect();
        let now = cpu::tsc();
        let uneven = balance.look(&busy, now.wrapping_sub(last));
        last = now;
        for handle in active {
            let load = (balance.load(handle.index) * 1000.0) as u64;
            handle.stats.load.store(load, Ordering::Relaxed);
        }
        if let Some((most, least)) = uneven
            && let Some(busiest) = active.get(most)
        {
            let loads = weigh(plane, busiest);
            for ring in balance.choose((most, least), &loads) {
                plane.hand_over(ring, least);
            }
        }
        let most = (0..active.len()).map(|at| balance.load(at)).fold(0.0, f64::max);
        let all_sleep = busy == before;
        before = busy;
        std::thread::park_timeout(match active.len() {
            0 | 1 => NOTHING,
            _ if all_sleep => NOTHING,
            _ if most < QUIET_LOAD => QUIET,
            _ => BUSY,
        });
    }
}

/// Returns the load of each ring of a worker.
fn weigh(plane: &Plane, worker: &Handle) -> Vec<(RingPlace, f64)> {
    let rings = plane.board.rings_of(worker.index);
    let cycles = |(ring, serving): &(RingPlace, Arc<Serving>)| serving.cycles(ring.1);
    worker.weigh();
    std::thread::sleep(TELLS);
    let (began, before): (u64, Vec<u64>) = (cpu::tsc(), rings.iter().map(cycles).collect());
    std::thread::sleep(WEIGHS);
    worker.weigh();
    std::thread::sleep(TELLS);
    let elapsed = cpu::tsc().wrapping_sub(began).max(1) as f64;
    let load = |(ring, before): (&(RingPlace, Arc<Serving>), u64)| {
        (ring.0, cycles(ring).wrapping_sub(before) as f64 / elapsed)
    };
    rings.iter().zip(before).map(load).collect()
}
