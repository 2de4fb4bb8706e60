//! Processors for threads of examples that measure.

use butterfly_datapath::harness::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How often the scheduler took the processor from this thread.
pub fn involuntary_switches() -> Result<u64, Error> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    Ok(line.ok_or("no count of context switches")?.trim().parse()?)
}

/// Returns the first and the last processor that this process may use.
pub fn cores() -> Result<(usize, usize), Error> {
    let set = sched_getaffinity(None)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    Ok((*all.first().ok_or("no processor")?, *all.last().ok_or("no processor")?))
}

/// Keeps this thread on a processor.
pub fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(why) = sched_setaffinity(None, &set) {
        eprintln!("cannot pin a thread to processor {core}: {why}");
    }
}
