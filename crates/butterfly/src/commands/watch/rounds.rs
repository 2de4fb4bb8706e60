//! Parts that both commands need: whose packets, and when to stop.

use crate::{
    failure::Failure,
    line::{options::word, reader::Arguments},
};
use butterfly_api::proto::TraceTarget;
use clap::Arg;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause after a look that found nothing new.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Returns the arguments for the target of both commands.
pub(super) fn target_words() -> [Arg; 2] {
    [
        word("TARGET").help("id of a NIC, number of a network, or all; nic:ID where an id looks like one of the others"),
        word("FILTER").required(false).num_args(1..).help("only these packets, in the syntax of tcpdump"),
    ]
}

/// Returns the target that the first word means.
pub(super) fn target(arguments: &Arguments) -> TraceTarget {
    let mut target = TraceTarget::default();
    let word = arguments.word(0).unwrap_or_default();
    match (word, word.parse(), word.strip_prefix("nic:")) {
        ("all", ..) => {}
        (_, Ok(vni), _) => target.vni = Some(vni),
        (_, _, Some(id)) => target.nic_id = Some(id.to_owned()),
        _ => target.nic_id = Some(word.to_owned()),
    }
    target
}

/// The words of the filter.
pub(super) fn filter(arguments: &Arguments) -> Option<String> {
    let words = arguments.words_from(1);
    (!words.is_empty()).then(|| words.join(" "))
}

/// Time to stop, as the options say.
pub(super) struct Until {
    pub(super) count: Option<u64>,
    pub(super) end: Option<Instant>,
    /// True once the operator pressed Ctrl-C: packets under way are still printed. A second Ctrl-C
    /// does not wait.
    interrupted: Arc<AtomicBool>,
}

impl Until {
    pub(super) fn read(arguments: &Arguments) -> Result<Until, Failure> {
        let seconds = arguments.parsed::<f64>("seconds", "a number of seconds")?;
        let limit = seconds.map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Failure::not_recognized(
                    "seconds",
                    arguments.value("seconds").unwrap_or_default(),
                    "a number of seconds",
                )
            })
        });
        let end = limit.transpose()?.and_then(|limit| Instant::now().checked_add(limit));
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                interrupted.clone(),
            )?;
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        Ok(Until { count: arguments.parsed("count", "a number")?, end, interrupted })
    }

    pub(super) fn is_over(&self, packets: u64) -> bool {
        self.interrupted.load(Ordering::Relaxed)
            || self.count.is_some_and(|count| packets >= count)
            || self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits a moment, but not beyond the end.
    pub(super) fn pause(&self) {
        let left = self.end.map_or(PAUSE, |end| end.saturating_duration_since(Instant::now()));
        std::thread::sleep(PAUSE.min(left));
    }
}
