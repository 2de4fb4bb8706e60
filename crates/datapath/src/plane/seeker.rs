//! State of the search for neighbours: machines that were found, and the senders of questions.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use crate::engine::{pace::Pace, place::PortRef, quota::Quota};
use crate::ip::Address;
use crate::world::{
    asking::AskPlace,
    found::{CAPACITY, FoundNeighbour, MAX_PER_NETWORK},
    snapshot::{Snapshot, Vnic},
};

/// State of the search.
pub(super) struct Seeker {
    /// Senders of questions, by network.
    pub askers: HashMap<u32, Arc<Vnic>>,
    /// Number of machines found, by network.
    pub held: BTreeMap<u32, AtomicU32>,
    pub quota: Quota,
    /// Second of the last look at what was found.
    pub looked: u32,
    /// Second in which anything was asked for last.
    pub awake: u32,
    /// Questions in networks.
    pub paces: HashMap<u32, Pace>,
    /// Times that addresses were told on wires, by wire.
    pub told: HashMap<(PortRef, Address), u8>,
}

impl Default for Seeker {
    fn default() -> Seeker {
        Seeker {
            askers: HashMap::new(),
            held: BTreeMap::new(),
            quota: Quota::new(CAPACITY),
            looked: 0,
            awake: 0,
            paces: HashMap::new(),
            told: HashMap::new(),
        }
    }
}

impl Seeker {
    /// Adds a machine, if there is room. Returns whether there was.
    pub fn keep(&mut self, at: AskPlace, mac: u64, now: u32, next: &mut Snapshot) -> bool {
        let held = self.held.entry(at.0).or_default();
        if next.found.get(at.0, at.1).is_none() {
            let count = held.load(Relaxed);
            if count >= MAX_PER_NETWORK || !self.quota.has_room(count) {
                return false;
            }
            self.quota.take(held);
        }
        next.found.insert(at, FoundNeighbour::new(mac, now));
        true
    }

    /// Forgets a machine. Returns whether it was known.
    pub fn forget(&mut self, at: AskPlace, next: &mut Snapshot) -> bool {
        let known = next.found.remove(at);
        if known && let Some(held) = self.held.get(&at.0) {
            self.quota.give_back(held);
        }
        known
    }
}
