//! The tap: copies of frames for operators that trace and capture, with the fate of each frame.
//!
//! The sinks and mirrors ([`selection`]) are part of the snapshot. A worker without any tests for
//! that once per batch. Otherwise the worker copies the wanted frames into its [`ring`]
//! ([`tapped`]), each as a [`record`]. It does so after all verdicts, before the sender gets its
//! frames back. A record that finds no room is counted for the sinks that miss it. Everything slow
//! is on the reading side, in the reports.

pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod selection;
pub(crate) mod tapped;

pub(crate) use record::{FrameFate, TapRecord};
pub use record::{TapPoint, TapRole};
pub(crate) use ring::Ring;
pub(crate) use selection::{Mirror, Selection};
pub use selection::{TapSink, TapWhat};
pub(crate) use tapped::{Takers, Tap, TapNotes, plain};
