//! `butterfly trace` and `butterfly capture`: packets as they pass, and what becomes of them.

mod capture;
mod line;
mod rounds;
mod trace;

pub use capture::node as capture;
pub use trace::node as trace;
