//! Workers: threads that own transmit rings, poll those that are busy and sleep when none is.
//!
//! [`rounds`] has the loop, [`walk`] the way of a batch through the stages; [`fair`] decides on
//! turns; [`later`] keeps frames for which a turn had no time; [`orders`] come from the rest of the
//! daemon.

mod bill;
mod fair;
mod handle;
mod later;
mod orders;
mod rounds;
mod serve_later;
mod shared;
#[cfg(test)]
mod tests;
mod under_way;
mod uplink;
mod walk;

pub(crate) use handle::Handle;
pub(crate) use rounds::Worker;
pub(crate) use shared::Shared;
