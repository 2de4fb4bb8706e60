//! Settings of the table of sessions.

use crate::session::state::Timeouts;

/// Settings of the table of sessions.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Most sessions.
    pub capacity: u32,
    /// Name of the table's file; without one the table is in the process's own memory.
    pub file: Option<String>,
    /// True if the table of a process that died is adopted, with its sessions, if it is there and
    /// can be: then all vnics that are declared from then on get the slots that they had, until the
    /// plane is told that all are declared.
    pub adopt: bool,
    /// Percent of the table that one network may have; a vnic may have half of that. With 100 there
    /// is no bound.
    pub share: u32,
    /// New sessions that a vnic, or a network's other hosts, may open per second; `u32::MAX` is no
    /// bound.
    pub rate: u32,
    /// Seconds after a vnic's guest attached in which TCP connections may be picked up mid-stream.
    pub tcp_pickup: u32,
    /// Seconds that sessions last without a frame.
    pub timeouts: Timeouts,
}

/// Times of sessions that are in force. An operator may change them while frames pass, so they are
/// part of the snapshot: a worker uses those of one snapshot for a whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionTimes {
    /// Seconds that sessions last without a frame.
    pub timeouts: Timeouts,
    /// Seconds after an attachment in which TCP connections may be picked up mid-stream.
    pub tcp_pickup: u32,
}

impl Default for SessionTimes {
    fn default() -> Self {
        let SessionConfig { timeouts, tcp_pickup, .. } = SessionConfig::default();
        SessionTimes { timeouts, tcp_pickup }
    }
}

/// New sessions per second. Bounds their cost for the switch to a tenth of a processor per opening
/// vnic, and to a third while the table is full.
const SESSION_RATE: u32 = 200_000;

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            capacity: 1_000_000,
            file: None,
            adopt: false,
            share: 25,
            rate: SESSION_RATE,
            tcp_pickup: 120,
            timeouts: Timeouts::default(),
        }
    }
}
