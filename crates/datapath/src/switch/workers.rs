//! The workers: how many there are, where they run, and what each serves.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread::Builder,
};

use butterfly_mem::blackbox::signals;

use crate::engine::{
    place::{PollSource, uplink_queue},
    writer::{MAX_WORKERS, WorkerId},
};
use crate::report::workers::{WorkerReport, worker};
use crate::switch::{
    Switch,
    crew::{Crew, WORKER, keep_others_off, pin},
    threads::work,
};
use crate::worker::{Handle, Worker};

impl Switch {
    fn crew(&self) -> MutexGuard<'_, Crew> {
        self.crew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts all workers. Fails if they run already.
    pub(super) fn start_workers(&self) -> io::Result<()> {
        let mut crew = self.crew();
        if crew.goes {
            return Err(io::Error::other("the workers run already"));
        }
        let active = self.plane.board.active();
        // Before they start, when they do not look like all others for a moment.
        keep_others_off(crew.of(active), &[]);
        self.start_some(&mut crew, active)?;
        crew.goes = true;
        Ok(())
    }

    /// Starts the workers up to this number.
    fn start_some(&self, crew: &mut Crew, workers: usize) -> io::Result<()> {
        let handles = self.plane.board.handles();
        for handle in handles.iter().take(workers).skip(crew.threads.len()) {
            let (shared, handle) = (self.plane.shared.clone(), handle.clone());
            let (core, poll) = (crew.core(handle.index), self.config.poll);
            let name = format!("{WORKER}{}", handle.index);
            let claimed = handle.claim();
            let id = claimed.ok_or_else(|| io::Error::other(format!("{name} runs already")))?;
            // A thread that cannot be started leaves it here.
            let id = Arc::new(Mutex::new(Some(id)));
            let (given, worker) = (id.clone(), handle.clone());
            let take = |id: &Mutex<Option<WorkerId>>| {
                id.lock().unwrap_or_else(PoisonError::into_inner).take()
            };
            handle.ends.store(false, Ordering::Release);
            handle.core.store(core.map_or(-1, |core| core as i32), Ordering::Relaxed);
            // Made in its own thread, so that its memory is near the processor that it runs on.
            let body = move || {
                let Some(id) = take(&given) else { return };
                signals::this_thread_is(handle.line);
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                handle.thread.store(thread, Ordering::Relaxed);
                work(core, handle.line, || Worker::new(shared, handle.clone(), id, poll));
            };
            let started = Builder::new().name(name).spawn(body);
            crew.threads.push(started.inspect_err(|_| {
                take(&id).into_iter().for_each(|id| worker.give_back(id));
            })?);
        }
        Ok(())
    }

    /// Changes the number of workers, and the processors they are pinned to, while frames pass. A
    /// worker beyond the last processor is not pinned. Returns when those that are too many have
    /// given up all their rings and ended. What is refused changes nothing.
    pub fn set_workers(&self, workers: usize, cores: &[usize]) -> Result<(), String> {
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(format!("{workers} workers: a switch has 1 to {MAX_WORKERS}"));
        }
        let mut crew = self.crew();
        let before = self.plane.board.active();
        let failed = |why: io::Error| format!("worker: {why}");
        self.plane.add_workers(workers).map_err(failed)?;
        let former = crew.cores.clone();
        let had = former.get(..before.min(former.len())).unwrap_or_default();
        crew.set_cores(cores);
        if crew.goes {
            keep_others_off(crew.of(workers), had);
        }
        if crew.goes
            && workers > before
            && let Err(why) = self.start_some(&mut crew, workers)
        {
            self.end_workers(&mut crew, before);
            keep_others_off(had, crew.of(workers));
            crew.cores = former;
            return Err(failed(why));
        }
        self.plane.board.set_active(workers);
        self.end_workers(&mut crew, workers);
        let handles = self.plane.board.handles();
        for handle in handles.iter().take(workers.min(before)).filter(|_| crew.goes) {
            pin(handle, crew.core(handle.index), crew.of(workers));
        }
        Ok(())
    }

    /// Ends the workers from this number on, when others have their rings.
    fn end_workers(&self, crew: &mut Crew, workers: usize) {
        let handles = self.plane.board.handles();
        for handle in handles.iter().skip(workers) {
            while let rings = self.plane.board.rings_of(handle.index)
                && !rings.is_empty()
                && !self.plane.shared.stop.load(Ordering::Acquire)
            {
                for (at, (ring, _)) in rings.iter().enumerate() {
                    self.plane.hand_over(*ring, at % workers.max(1));
                }
            }
            handle.ends.store(true, Ordering::Release);
            handle.wake();
        }
        for thread in crew.threads.drain(workers.min(crew.threads.len())..) {
            let _ = thread.join(); // a worker that panicked has ended the process
            // What it had sent to the uplink and that did not leave yet is another's to see off.
            let tunnel = self.plane.shared.tunnel.as_ref();
            let halves = tunnel.map_or(0, |tunnel| tunnel.port.halves());
            if let Some(first) = self.plane.board.first() {
                (0..halves).for_each(|half| first.look_at(PollSource::Outward(half as u8)));
            }
        }
    }

    /// Returns the counters of each worker, and what it serves.
    pub fn workers(&self) -> Vec<WorkerReport> {
        let (board, snapshot) = (&self.plane.board, self.plane.shared.snapshot.load());
        let handles = board.handles();
        let active = handles.iter().take(board.active());
        let report = |handle: &Arc<Handle>| {
            let all = board.rings_of(handle.index);
            let mut rings: Vec<(String, u8)> = all
                .iter()
                .filter_map(|((place, pair), _)| {
                    Some((snapshot.vnic(*place)?.id.to_string(), *pair))
                })
                .collect();
            rings.sort();
            let mut queues: Vec<u16> =
                all.iter().filter_map(|((place, _), _)| uplink_queue(*place)).collect();
            queues.sort();
            worker(handle, (rings, queues), self.config.poll)
        };
        active.map(report).collect()
    }
}
