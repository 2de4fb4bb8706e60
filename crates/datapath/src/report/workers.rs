//! Workers, for the operator.

use std::sync::atomic::{AtomicU64, Ordering};

use butterfly_mem::cpu;

use crate::worker::Handle;

/// Counters of a worker since it started.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// Number of the worker.
    pub index: usize,
    /// Processor it is pinned to.
    pub core: Option<usize>,
    /// True if it never sleeps.
    pub poll: bool,
    /// Vnic and pair of each transmit ring that it serves.
    pub rings: Vec<(String, u8)>,
    /// Receive queues of the uplink that it serves.
    pub uplink_queues: Vec<u16>,
    /// Load of late, in thousandths of its processor.
    pub load: u64,
    /// Number of rings, and of the uplink's queues, that came from other workers.
    pub moves: u64,
    /// Cycles of rounds in which frames were found.
    pub busy_cycles: u64,
    /// Frames taken from guests.
    pub packets: u64,
    /// Batches in which they came.
    pub batches: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Rounds in which nothing was found.
    pub idle_polls: u64,
    /// Rings polled now.
    pub active_rings: u64,
    /// Cycles of the longest turn, including those for which the host took the processor away.
    pub longest_turn: u64,
    /// Batches of 1, 2, 3-4, 5-8, 9-16, 17-32 and 33-64 frames.
    pub batch_sizes: Vec<u64>,
    /// Cycles per second.
    pub tsc_hz: u64,
}

/// Reads the counters of a worker.
pub(crate) fn worker(
    handle: &Handle,
    (rings, uplink_queues): (Vec<(String, u8)>, Vec<u16>),
    poll: bool,
) -> WorkerReport {
    let stats = &handle.stats;
    let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    WorkerReport {
        index: handle.index,
        core: usize::try_from(handle.core.load(Ordering::Relaxed)).ok(),
        poll,
        rings,
        uplink_queues,
        load: read(&stats.load),
        moves: read(&stats.moves),
        busy_cycles: read(&stats.busy_cycles),
        packets: read(&stats.packets),
        batches: read(&stats.batches),
        sleeps: read(&stats.sleeps),
        idle_polls: read(&stats.idle_polls),
        active_rings: read(&stats.active),
        longest_turn: read(&stats.longest),
        batch_sizes: stats.sizes.iter().map(read).collect(),
        tsc_hz: cpu::tsc_hz(),
    }
}
