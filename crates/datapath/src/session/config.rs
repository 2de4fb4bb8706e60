//! How sessions are kept.

use crate::session::state::Timeouts;

/// How sessions are kept.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Most sessions there can be.
    pub capacity: u32,
    /// Name of the file that the table is in; without one it is in the process's own memory.
    pub file: Option<String>,
    /// Percent of the table that one network may have; a vnic of it has half of that. With 100
    /// there is no bound.
    pub share: u32,
    /// New sessions that a vnic, or a network's other hosts, may open per second; `u32::MAX` is no
    /// bound.
    pub rate: u32,
    /// Seconds after a vnic's guest attached in which TCP connections may be picked up mid-stream.
    pub tcp_pickup: u32,
    /// How long sessions last without a frame.
    pub timeouts: Timeouts,
}

/// New sessions per second: what they cost the switch stays below a tenth of a processor, whoever
/// opens them.
const SESSION_RATE: u32 = 200_000;

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            capacity: 1_000_000,
            file: None,
            share: 25,
            rate: SESSION_RATE,
            tcp_pickup: 120,
            timeouts: Timeouts::default(),
        }
    }
}
