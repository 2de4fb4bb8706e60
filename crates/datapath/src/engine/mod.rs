//! Engine: batches, verdicts, drop reasons, counters, the clock, the tap. Knows no stage and no
//! table of what is declared.

pub(crate) mod atomics;
pub(crate) mod batch;
pub(crate) mod bucket;
pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod crowd;
pub(crate) mod events;
#[cfg(debug_assertions)]
pub(crate) mod fail_points;
pub(crate) mod inside;
pub(crate) mod last_drops;
pub(crate) mod mac;
pub(crate) mod meter;
pub(crate) mod numbers;
pub(crate) mod pace;
pub(crate) mod place;
pub(crate) mod quota;
pub(crate) mod reason;
pub(crate) mod reserved;
pub(crate) mod sip;
pub(crate) mod slab;
pub(crate) mod tap;
pub(crate) mod writer;
