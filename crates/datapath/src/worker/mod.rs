//! Workers: threads that own transmit rings, poll those that are busy and sleep when none is.
//!
//! [`rounds`] has the loop, [`walk`] the way of a batch through the stages; [`fair`] decides on
//! turns; [`patience`] when a ring is left; [`later`] keeps frames for which a turn had no time,
//! [`pen`] fragments that came too early; [`orders`] come from the rest of the daemon.
//!
//! # No wake-up is lost
//!
//! A worker polls a ring until it was empty for some time ([`patience`]). Then it arms the ring
//! (the event index or the flag asks for a kick), looks once more behind a full fence, and only
//! then leaves it. Each step has its counterpart on the other side:
//!
//! - The guest publishes, fences, then reads the event field. The worker writes the field, fences,
//!   then looks. One of them sees the other.
//! - A kick is an edge in `epoll`. If the ring is polled when it arrives, the worker looks at the
//!   ring anyway, and arms it before it leaves.
//! - A ring that starts, is enabled or moves is announced after its port was changed. `epoll`
//!   reports a kick that is there already, and an order makes the worker look in any case.
//! - For a front end without a kick descriptor, the worker looks every millisecond.
//!
//! Interrupts use the same handshake the other way round: publish the used index, fence, read the
//! guest's event field or flag. A ring gets one interrupt per batch, and one when a new call
//! descriptor arrives, as the last one may have gone to the old descriptor.

mod bill;
mod copies;
mod fair;
mod halves;
mod handle;
mod hops;
mod later;
mod orders;
mod patience;
mod pauses;
mod pen;
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
