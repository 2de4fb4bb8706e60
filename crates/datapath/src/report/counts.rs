//! Counters as reports show them.

use crate::engine::counters::{Counter, Totals};
use crate::stages::reasons::reasons;

/// Returns two counters that belong together.
pub(crate) fn pair(totals: &Totals, packets: Counter, bytes: Counter) -> (u64, u64) {
    (totals.get(packets), totals.get(bytes))
}

/// Returns drops by reason, without reasons that did not occur.
pub(crate) fn happened(totals: &Totals) -> Vec<(&'static str, u64)> {
    reasons()
        .map(|info| (info.name, totals.drops(info.reason)))
        .filter(|(_, count)| *count > 0)
        .collect()
}
