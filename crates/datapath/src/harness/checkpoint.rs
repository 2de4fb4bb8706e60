//! Checkpoints of a host, and their takeover by another one.

use crate::checkpoint::{Former, Noted, TakenOver, counters, rules, stations, take_over};
use crate::harness::{Host, error::Error};
use crate::report::observe::{Observation, observe};

impl Host {
    /// Notes all counters, in at most `room` bytes.
    pub fn note_counters(&self, room: usize) -> Noted {
        counters::note(&self.plane, None, room)
    }

    /// Notes the sessions that each rule admitted.
    pub fn note_rules(&self, room: usize) -> Noted {
        rules::note(&self.plane, room)
    }

    /// Notes all learnt addresses.
    pub fn note_stations(&self, room: usize) -> Noted {
        stations::note(&self.plane, room)
    }

    /// Goes on with what another host noted.
    pub fn take_over(&mut self, former: Former<'_>) -> Result<TakenOver, Error> {
        let worker = self.workers.first().ok_or("no worker")?;
        Ok(take_over(&self.plane, None, worker.writer(), former))
    }

    /// Returns the second of the host's clock.
    pub fn now(&self) -> u32 {
        self.plane.shared.clock.now()
    }

    /// Reads all counters, as monitoring does, but for those of workers and of the uplink.
    pub fn observe(&self) -> Observation {
        observe(&self.plane, Vec::new(), None)
    }
}
