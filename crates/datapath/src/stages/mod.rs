//! Stages: each decides one thing about the frames of a batch.

pub(crate) mod antispoof;
pub(crate) mod claims;
pub(crate) mod context;
#[cfg(feature = "every-second")]
pub(crate) mod crossover;
pub(crate) mod deliver;
#[cfg(feature = "every-second")]
pub(crate) mod every_second;
pub(crate) mod filter;
pub(crate) mod forward;
pub(crate) mod headers;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod leaving;
pub(crate) mod mirror;
pub(crate) mod offload;
pub(crate) mod outlet;
pub(crate) mod pipeline;
pub(crate) mod reasons;
pub(crate) mod segment;
pub(crate) mod stage;
pub(crate) mod take;
pub(crate) mod turn;
pub(crate) mod ways;
