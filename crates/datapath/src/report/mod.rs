//! Reports: answers to an operator's questions. Reads, and never moves a frame.

pub(crate) mod counts;
pub(crate) mod drops;
pub(crate) mod explain;
pub(crate) mod observe;
pub(crate) mod taps;
pub(crate) mod tunnel;
pub(crate) mod uplink;
pub(crate) mod watch;
pub(crate) mod workers;
