//! Sessions: conversations that may go on because their first packet was admitted.

pub(crate) mod tally;

mod config;
mod former;
mod hash;
mod held;
mod key;
mod layout;
mod memory;
mod names;
mod open;
mod pen;
mod record;
mod shares;
mod state;
mod table;

pub use config::SessionConfig;
pub(crate) use config::SessionTimes;
pub use former::{FormerSessions, FormerTable, Unusable, look_at};
pub(crate) use hash::HashKey;
pub(crate) use held::{BatchChanges, FIRST_NOT_TCP, is_unsettled};
pub(crate) use key::{Key, Zone};
pub(crate) use layout::Here;
pub(crate) use names::Name;
pub(crate) use open::open;
pub(crate) use record::{Admitted, FIRST_STAMP, Life, Line2, NO_TRACK, Past, Record};
pub(crate) use shares::{Shares, VnicSessions, less};
pub(crate) use state::State;
pub use state::Timeouts;
pub(crate) use table::{Found, NotInserted, Table};
