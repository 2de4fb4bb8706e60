//! Sessions: who may talk to whom because of what was decided before.

mod key;
mod memory;
mod record;
mod state;
mod table;

pub(crate) use key::{HashKey, Key};
pub(crate) use record::{Admission, Life, NO_TRACK, Record};
pub(crate) use state::State;
pub use state::Timeouts;
pub(crate) use table::{Found, NotInserted, Table};
