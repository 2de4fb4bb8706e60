//! Wires of externals that are declared and that this host lacks.

use butterfly_model::ExternalId;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Time between two attempts to have a wire.
const AGAIN: Duration = Duration::from_secs(5);

/// Wires that are declared and that this host lacks.
#[derive(Debug, Default)]
pub struct MissingWires {
    of: BTreeMap<ExternalId, MissingWire>,
    /// True while what was declared before is declared anew: a wire that is missing then does not
    /// refuse it.
    pub restoring: bool,
    /// Time of the next attempt.
    again: Option<Instant>,
}

#[derive(Debug)]
struct MissingWire {
    why: String,
    /// True once an event told of it.
    told: bool,
}

impl MissingWires {
    /// Returns why an external is not in effect, if it is not.
    pub fn why(&self, id: &ExternalId) -> Option<&str> {
        self.of.get(id).map(|missing| missing.why.as_str())
    }

    /// Returns those of which no event told yet, and why they are not in effect. One tells now.
    pub fn untold(&mut self) -> Vec<(ExternalId, String)> {
        let untold = self.of.iter_mut().filter(|(_, missing)| !missing.told);
        let tell = |(id, missing): (&ExternalId, &mut MissingWire)| {
            missing.told = true;
            (id.clone(), missing.why.clone())
        };
        untold.map(tell).collect()
    }

    /// Returns those that are to be tried, if it is time.
    pub fn due(&mut self) -> Vec<ExternalId> {
        if self.again.is_none_or(|again| again > Instant::now()) {
            return Vec::new();
        }
        self.again = Some(Instant::now() + AGAIN);
        self.of.keys().cloned().collect()
    }

    /// Has the next attempt be due.
    #[cfg(test)]
    pub fn try_now(&mut self) {
        self.again = self.again.and(Some(Instant::now()));
    }

    /// Notes that an external is not in effect, and why.
    pub fn note(&mut self, id: &ExternalId, why: String) {
        self.again.get_or_insert_with(|| Instant::now() + AGAIN);
        let known = self.of.get(id).is_some_and(|missing| missing.why == why && missing.told);
        self.of.insert(id.clone(), MissingWire { why, told: known });
    }

    /// Notes that an external is in effect, or gone.
    pub fn forget(&mut self, id: &ExternalId) {
        self.of.remove(id);
        if self.of.is_empty() {
            self.again = None;
        }
    }
}
