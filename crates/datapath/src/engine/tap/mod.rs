//! The tap: copies of frames for those who trace and capture, with what became of each frame.
//!
//! What is wanted ([`selection`]) is part of the snapshot: a worker that is asked for nothing tests
//! that once per batch. Else it copies, when all is decided and before the sender gets its frames
//! back, what somebody wants into its [`ring`] ([`tapped`]), as a [`record`]. A record that finds no
//! room is counted for those who miss it. Everything slow is on the other side ([`crate::report::taps`]).

pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod selection;
pub(crate) mod tapped;

pub(crate) use record::{Fate, Record};
pub use record::{TapPoint, TapRole};
pub(crate) use ring::Ring;
pub(crate) use selection::{Mirror, Selection};
pub use selection::{TapSink, TapWhat};
pub(crate) use tapped::{Notes, Tap, Wanted, plain};
