//! Announcements, as after a live migration.

use crate::harness::{Host, error::Error};

impl Host {
    /// Has a vnic announced once, in one of the next turns.
    pub fn announce_once(&mut self, id: &str) -> Result<(), Error> {
        self.vnics.get(id).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        self.plane.announce();
        Ok(())
    }

    /// Has these vnics announced, if there is room in the next tick of housekeeping, and lets that
    /// pass.
    pub fn announce_in_a_tick(&mut self, ids: &[String]) -> Result<(), Error> {
        for id in ids {
            self.vnics.get(id.as_str()).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        }
        self.plane.announce();
        self.settle();
        Ok(())
    }

    /// Has these vnics announced. The worker is busy for some ticks of housekeeping, then it has
    /// nothing else to do.
    pub fn announce_while_busy(&mut self, ids: &[String], ticks: usize) -> Result<(), Error> {
        for id in ids {
            self.vnics.get(id.as_str()).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        }
        for _ in 0..ticks {
            self.plane.announce();
        }
        for _ in 0..100 {
            self.settle();
            self.plane.announce();
        }
        self.settle();
        Ok(())
    }

    /// Has a vnic announced, as after a live migration, and lets the rounds of that pass.
    pub fn announce(&mut self, id: &str) -> Result<(), Error> {
        self.vnics.get(id).ok_or("no such vnic")?.vnic.shared.announcing.begin();
        for _ in 0..20 {
            self.plane.announce();
            self.settle();
        }
        Ok(())
    }
}
