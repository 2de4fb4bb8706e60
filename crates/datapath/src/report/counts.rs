//! Counters as reports show them.

use crate::{
    engine::counters::{Counter, Totals},
    stages::reasons::reasons,
};

/// Two counters that belong together.
pub(crate) fn pair(totals: &Totals, packets: Counter, bytes: Counter) -> (u64, u64) {
    (totals.get(packets), totals.get(bytes))
}

/// Drops without reasons that did not happen.
pub(crate) fn happened(totals: &Totals) -> Vec<(&'static str, u64)> {
    reasons()
        .map(|info| (info.name, totals.drops(info.reason)))
        .filter(|(_, count)| *count > 0)
        .collect()
}
