//! State of the search for neighbours: machines that were found, and the senders of questions.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use crate::engine::{pace::Pace, place::PortRef, quota::Quota};
use crate::ip::{Address, upper};
use crate::plane::advertising::Advertising;
use crate::stages::asks::with_block;
use crate::world::{
    asking::AskPlace,
    found::{CAPACITY, FoundNeighbour, MAX_PER_BLOCK, MAX_PER_NETWORK},
    routing::Routing,
    snapshot::{Snapshot, Vnic},
};

/// Times that an address is told on a wire.
const ANNOUNCEMENTS: u8 = 3;

/// State of the search.
pub(super) struct Seeker {
    /// Senders of questions, by network.
    pub askers: HashMap<u32, Arc<Vnic>>,
    /// Number of machines found, by network.
    pub held: BTreeMap<u32, AtomicU32>,
    /// Number of them in such blocks as one machine may fill. Never 0.
    pub in_blocks: HashMap<(u32, u64), u32>,
    pub quota: Quota,
    /// Second of the last look at what was found.
    pub looked: u32,
    /// Second in which anything was asked for last.
    pub awake: u32,
    /// Questions in networks.
    pub paces: HashMap<u32, Pace>,
    /// Addresses that are to be told on wires, by the networks of these.
    pub told: HashMap<u32, Telling>,
    /// Advertisements that nobody asks for.
    pub advertising: Advertising,
}

impl Default for Seeker {
    fn default() -> Seeker {
        Seeker {
            askers: HashMap::new(),
            held: BTreeMap::new(),
            in_blocks: HashMap::new(),
            quota: Quota::new(CAPACITY),
            looked: 0,
            awake: 0,
            paces: HashMap::new(),
            told: HashMap::new(),
            advertising: Advertising::default(),
        }
    }
}

impl Seeker {
    /// Adds a machine, if there is room. Returns whether there was.
    pub fn keep(&mut self, at: AskPlace, mac: u64, now: u32, next: &mut Snapshot) -> bool {
        let block = (at.0, upper(at.1));
        let is_bounded = with_block(at, next).1.is_some();
        let held = self.held.entry(at.0).or_default();
        if next.found.get(at.0, at.1).is_none() {
            let count = held.load(Relaxed);
            let of_block = self.in_blocks.get(&block).copied().unwrap_or(0);
            // Counted whatever the subnets are, as these may change; where one machine cannot have
            // it, there is no bound.
            if is_bounded && of_block >= MAX_PER_BLOCK {
                return false;
            }
            if count >= MAX_PER_NETWORK || !self.quota.has_room(count) {
                return false;
            }
            self.quota.take(held);
            *self.in_blocks.entry(block).or_default() += 1;
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
        let block = (at.0, upper(at.1));
        if known && let Some(count) = self.in_blocks.get_mut(&block) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.in_blocks.remove(&block);
            }
        }
        known
    }
}

/// Addresses of this host that are still to be told on a wire.
#[derive(Default)]
pub(super) struct Telling {
    /// The wire, and what was declared there when it was looked at last.
    seen: Option<(PortRef, Arc<Routing>)>,
    /// Addresses, and how often each was told.
    left: VecDeque<(Address, u8)>,
}

impl Telling {
    /// Looks at what is declared: adds the addresses that came, or all of them if the wire came or
    /// has another MAC address. Does nothing if nothing changed.
    pub fn look(&mut self, wire: PortRef, routing: &Arc<Routing>) {
        let same = self.seen.as_ref().filter(|(place, _)| *place == wire);
        if same.is_some_and(|(_, seen)| Arc::ptr_eq(seen, routing)) {
            return;
        }
        let Some(outside) = routing.outside.as_deref() else { return };
        let before = same.and_then(|(_, seen)| seen.outside.as_deref());
        let before = before.filter(|before| before.mac == outside.mac);
        if before.is_none() {
            self.left.clear();
        }
        self.left.retain(|(address, _)| outside.answers_for(*address).is_some());
        let is_new =
            |address: &Address| before.is_none_or(|before| before.answers_for(*address).is_none());
        self.left.extend(outside.announced().filter(is_new).map(|address| (address, 0)));
        self.seen = Some((wire, routing.clone()));
    }

    /// Returns whether an address is to be told.
    pub fn is_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Takes the next addresses to be told, `most` of them, each of which counts as told once.
    pub fn take(&mut self, most: usize) -> Vec<Address> {
        let now: Vec<(Address, u8)> = self.left.drain(..most.min(self.left.len())).collect();
        let again = now.iter().map(|(address, times)| (*address, times + 1));
        self.left.extend(again.filter(|(_, times)| *times < ANNOUNCEMENTS));
        now.into_iter().map(|(address, _)| address).collect()
    }
}
