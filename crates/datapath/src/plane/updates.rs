//! Counters of changes that are published to workers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Kind of a published change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    VnicAdded,
    VnicChanged,
    VnicRemoved,
    GroupChanged,
    PeersChanged,
    RoutingChanged,
}

/// Counters of changes, by kind.
#[derive(Default)]
pub(crate) struct Updates([AtomicU64; Self::NAMES.len()]);

impl Updates {
    /// Names in the order of [`Update`].
    const NAMES: [&str; 6] = [
        "nic-added",
        "nic-changed",
        "nic-removed",
        "group-changed",
        "peers-changed",
        "routing-changed",
    ];

    /// Counts a change that was published.
    pub fn add(&self, update: Update) {
        if let Some(cell) = self.0.get(update as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Adds what a former process counted. Returns whether there is a kind with this name.
    pub fn add_former(&self, name: &str, n: u64) -> bool {
        let at = Self::NAMES.iter().position(|known| *known == name);
        let cell = at.and_then(|at| self.0.get(at));
        cell.inspect(|cell| {
            cell.fetch_add(n, Relaxed);
        })
        .is_some()
    }

    pub fn list(&self) -> Vec<(&'static str, u64)> {
        Self::NAMES
            .into_iter()
            .zip(&self.0)
            .map(|(name, cell)| (name, cell.load(Relaxed)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_update_has_its_own_number() {
        let updates = Updates::default();
        let all = [
            Update::VnicAdded,
            Update::VnicChanged,
            Update::VnicRemoved,
            Update::GroupChanged,
            Update::PeersChanged,
            Update::RoutingChanged,
        ];
        for (n, update) in all.into_iter().enumerate() {
            (0..=n).for_each(|_| updates.add(update));
        }
        assert!(updates.list().into_iter().map(|(_, n)| n).eq(1..=all.len() as u64));
    }
}
