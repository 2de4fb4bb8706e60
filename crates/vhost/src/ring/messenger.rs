//! The messenger: a thread that sends the interrupts of vnics whose signals are slow.
//!
//! Workers hand a vnic's descriptor over without waiting and without allocating. It is linked into
//! a list, at most once, so the list is at most as long as there are descriptors. Several
//! interrupts that fall due meanwhile become one signal.
//!
//! Vnics that are only suspected go first. Those that are slow share a quarter of the thread's
//! time: after one of their signals all of them wait three times as long as it took. So an innocent
//! vnic waits for at most one of those signals, and no processor is used up.

use std::{
    collections::VecDeque,
    io, ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicPtr, AtomicUsize, Ordering},
    },
    thread::{Builder, Thread},
    time::{Duration, Instant},
};

use butterfly_mem::cpu;
use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};

use super::{
    call::{self, CallFd},
    signaller::Signaller,
};

/// Rest after a slow signal, in multiples of its time.
const REST: u32 = 3;

static HANDED: AtomicPtr<CallFd> = AtomicPtr::new(ptr::null_mut());
static THREAD: OnceLock<Thread> = OnceLock::new();
/// Processors that workers have to themselves, and their number. A slow signal is sent with
/// interrupts disabled: not there.
static WORKERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Starts the thread, if it does not run.
pub(super) fn start() -> io::Result<()> {
    if THREAD.get().is_some() {
        return Ok(());
    }
    // Made now, so that nothing is opened when the first slow signal is to be sent.
    let own = Signaller::new()?;
    let body = move || {
        call::adopt(own);
        run();
    };
    let handle = Builder::new().name("interrupts".into()).stack_size(128 * 1024).spawn(body)?;
    // Of two that are started at once one has nothing to do, ever.
    let _ = THREAD.set(handle.thread().clone());
    Ok(())
}

/// True if there is a messenger.
pub(super) fn runs() -> bool {
    THREAD.get().is_some()
}

/// The calling thread is a worker: if it has one processor, the messenger keeps off it.
pub(super) fn keep_off() {
    if let Ok(set) = sched_getaffinity(None)
        && set.count() == 1
        && let Some(only) = (0..CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu))
    {
        let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        if !workers.contains(&only) {
            workers.push(only);
            KNOWN.store(workers.len(), Ordering::Release);
        }
    }
}

/// Has a guest interrupted. Never waits.
pub(super) fn hand_over(call: &Arc<CallFd>) {
    if call.handed.swap(true, Ordering::AcqRel) {
        return; // it will be, and what it is about was published before
    }
    let new = Arc::into_raw(call.clone()).cast_mut();
    let mut head = HANDED.load(Ordering::Relaxed);
    loop {
        call.next.store(head, Ordering::Relaxed);
        match HANDED.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            Err(other) => head = other,
        }
    }
    if let Some(thread) = THREAD.get() {
        thread.unpark();
    }
}

/// Everything that was handed over, in that order.
fn take() -> Vec<Arc<CallFd>> {
    let mut list = Vec::new();
    let mut at = HANDED.swap(ptr::null_mut(), Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: hand_over() made it of an Arc, and linked it once; the list was taken as a whole,
        // by one thread.
        let call = unsafe { Arc::from_raw(at.cast_const()) };
        at = call.next.load(Ordering::Relaxed);
        list.push(call);
    }
    list.reverse();
    list
}

fn run() {
    let mut slow: VecDeque<Arc<CallFd>> = VecDeque::new();
    let mut resting = Instant::now();
    let mut kept_off = 0;
    loop {
        let known = KNOWN.load(Ordering::Acquire);
        if known != std::mem::replace(&mut kept_off, known) {
            let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
            workers.into_iter().for_each(leave);
        }
        for call in take() {
            if call.of.slow() {
                slow.push_back(call);
            } else {
                send(&call);
            }
        }
        let now = Instant::now();
        if now >= resting
            && let Some(call) = slow.pop_front()
        {
            resting = Instant::now() + send(&call) * REST;
            continue;
        }
        match slow.is_empty() {
            true => std::thread::park(),
            false => std::thread::park_timeout(resting.saturating_duration_since(now)),
        }
    }
}

/// Sends a signal and judges it. Returns how much processor time it took.
fn send(call: &Arc<CallFd>) -> Duration {
    // Before it is sent: what is published from now on is another one.
    call.handed.store(false, Ordering::Release);
    let begun = spent();
    call.send();
    let took = spent().saturating_sub(begun);
    call.of.judge(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), cpu::tsc());
    took
}

/// Processor time of this thread.
fn spent() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Leaves a processor to a worker, if there is another.
fn leave(processor: usize) {
    if let Ok(mut set) = sched_getaffinity(None)
        && set.is_set(processor)
        && set.count() > 1
    {
        set.unset(processor);
        let _ = sched_setaffinity(None, &set);
    }
}
