//! Addresses that are asked for, or that nobody answered for (RFC 6583).
//!
//! A worker notes here for which address it needs a machine, and what it hears; the thread that
//! looks for neighbours has the questions sent and ends them: see [`crate::plane::seek`]. A worker
//! only tries for the lock, and only for packets that have no next hop. What others can lengthen
//! is bounded: by the vnic that asks, by the network in which is asked, and in all.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError},
    thread::Thread,
};

use crate::engine::{pace::Pace, place::PortRef};
use crate::ip::Address;
use crate::world::found::FoundNeighbour;

/// Most addresses asked for or failed, of all networks, of one, and of a vnic.
pub(crate) const MOST: usize = 4096;
pub(crate) const MOST_IN_NETWORK: u32 = 1024;
pub(crate) const MOST_OF_VNIC: u32 = 64;
/// New ones of a vnic in a second, when it has had its [`MOST_OF_VNIC`].
const PER_SECOND: u32 = 16;
/// Looks of a vnic in a second, for packets without a next hop.
const LOOKS: u32 = 1000;
/// Tries for the lock, which is held for microseconds.
const TRIES: usize = 64;
/// Questions for an address, and the tenths of a second between them.
const QUESTIONS: u8 = 3;
const BETWEEN: u32 = 10;
/// Tenths of a second for which a silent address is not asked for again.
const SILENCE: u32 = 50;

/// An address in a network.
pub(crate) type AskPlace = (u32, Address);

/// Budgets of a vnic whose packets have no next hop.
#[derive(Default)]
pub(crate) struct AskPaces {
    looks: Pace,
    new: Pace,
}

/// State of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AskState {
    /// It was asked for so often. The next question is due at this tenth of a second.
    Asked { questions: u8, next: u32 },
    /// This MAC address answered.
    Answered(u64),
    /// Nobody answered. It is not asked for again until this tenth of a second.
    Silent { until: u32 },
    /// A machine answered for which there was no room; likewise.
    NoRoom { until: u32 },
}

impl AskState {
    /// Returns whether no answer is awaited any more.
    pub fn is_over(self) -> bool {
        matches!(self, AskState::Silent { .. } | AskState::NoRoom { .. })
    }
}

#[derive(Clone, Copy)]
struct Ask {
    state: AskState,
    /// The vnic that needs it; `None` if it was found before and is asked again.
    asker: Option<PortRef>,
    /// MAC address that is asked: all machines, if it is not known.
    to: Option<u64>,
}

#[derive(Clone)]
struct Asks {
    all: HashMap<AskPlace, Ask>,
    /// Number of them by vnic, and by network. Never 0.
    of: HashMap<PortRef, u32>,
    within: HashMap<u32, u32>,
}

/// All addresses that are asked for.
pub(crate) struct Asking {
    asks: Mutex<Asks>,
    /// The thread that has questions sent, once one does; before, nobody is asked. Tests have none.
    keeper: OnceLock<Option<Thread>>,
    is_copy: bool,
}

/// Fate of a packet without a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Its next hop is being asked for: it waits.
    Asked,
    /// Nobody answers.
    Silent,
    /// Too much is asked for already.
    Limit,
}

/// Outcome of a pass over all addresses.
#[derive(Default)]
pub(crate) struct AskPass {
    /// Questions to be sent now, and the machine that is asked, if it is known.
    pub due: Vec<(AskPlace, Option<u64>)>,
    /// Addresses and those who answered.
    pub answered: Vec<(AskPlace, u64)>,
    /// Machines that were found before and answer no more.
    pub lost: Vec<AskPlace>,
    /// True if nobody answered for an address.
    pub silent: bool,
    /// Addresses that are left.
    pub left: usize,
}

impl Asks {
    fn new() -> Asks {
        // Removed entries leave room in a map that is at most half full: workers never allocate.
        let room = 2 * MOST + 2;
        Asks {
            all: HashMap::with_capacity(room),
            of: HashMap::with_capacity(room),
            within: HashMap::with_capacity(room),
        }
    }

    fn has_room(&self, vni: u32) -> bool {
        self.all.len() < MOST && self.within.get(&vni).is_none_or(|held| *held < MOST_IN_NETWORK)
    }

    fn add(&mut self, at: AskPlace, ask: Ask) {
        *self.within.entry(at.0).or_default() += 1;
        if let Some(asker) = ask.asker {
            *self.of.entry(asker).or_default() += 1;
        }
        self.all.insert(at, ask);
    }

    fn end(&mut self, at: &AskPlace) {
        let Some(ask) = self.all.remove(at) else { return };
        less(&mut self.within, at.0);
        if let Some(asker) = ask.asker {
            less(&mut self.of, asker);
        }
    }
}

/// Counts one less.
fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, of: K) {
    let Some(count) = counts.get_mut(&of) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        counts.remove(&of);
    }
}

impl Asking {
    pub fn new() -> Asking {
        let asks = Mutex::new(Asks::new());
        Asking { asks, keeper: OnceLock::new(), is_copy: false }
    }

    /// Copies all that is known, for packets that are walked and not sent: the copy asks nobody.
    pub fn copy(&self) -> Asking {
        let keeper = OnceLock::new();
        if self.keeper.get().is_some() {
            let _ = keeper.set(None);
        }
        Asking { asks: Mutex::new(self.hold().clone()), keeper, is_copy: true }
    }

    /// Has addresses asked for from now on: a thread has the questions sent, which is woken when
    /// there is one, or tests do.
    pub fn begin(&self, keeper: Option<Thread>) {
        let _ = self.keeper.set(keeper);
    }

    fn hold(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_hold(&self) -> Option<MutexGuard<'_, Asks>> {
        for _ in 0..TRIES {
            match self.asks.try_lock() {
                Ok(held) => return Some(held),
                Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn wake(&self) {
        if let Some(Some(keeper)) = self.keeper.get() {
            keeper.unpark();
        }
    }

    /// Has an address asked for, unless it is, or was a moment ago. `now` is in seconds. Never
    /// waits or allocates.
    pub fn want(&self, at: AskPlace, asker: PortRef, paces: &AskPaces, now: u32) -> Wanted {
        if self.keeper.get().is_none() {
            return Wanted::Silent;
        }
        if !paces.looks.take(now, LOOKS, LOOKS) {
            return Wanted::Limit;
        }
        let Some(mut asks) = self.try_hold() else { return Wanted::Limit };
        match asks.all.get(&at).map(|ask| ask.state) {
            Some(AskState::Asked { .. } | AskState::Answered(_)) => return Wanted::Asked,
            Some(AskState::Silent { .. }) => return Wanted::Silent,
            Some(AskState::NoRoom { .. }) => return Wanted::Limit,
            None => {}
        }
        let own = asks.of.get(&asker).copied().unwrap_or(0);
        let has_room = own < MOST_OF_VNIC && asks.has_room(at.0);
        if !has_room || !paces.new.take(now, MOST_OF_VNIC, PER_SECOND) {
            return Wanted::Limit;
        }
        let state = AskState::Asked { questions: 0, next: 0 };
        asks.add(at, Ask { state, asker: Some(asker), to: None });
        drop(asks);
        self.wake();
        Wanted::Asked
    }

    /// Notes an answer, if the address is asked for and nobody answered before. Returns whether it
    /// counts. Never waits or allocates.
    pub fn hear(&self, at: AskPlace, mac: u64) -> bool {
        let Some(mut asks) = self.try_hold() else { return false };
        let Some(ask) = asks.all.get_mut(&at) else { return false };
        if !matches!(ask.state, AskState::Asked { questions: 1.., .. }) {
            return false;
        }
        ask.state = AskState::Answered(mac);
        drop(asks);
        self.wake();
        true
    }

    /// Notes that a packet goes to a machine that was found.
    pub fn goes_to(&self, found: &FoundNeighbour, now: u32) {
        if !self.is_copy {
            found.is_used(now);
        }
    }

    /// Returns whether an address is being asked for.
    pub fn is_asked(&self, at: AskPlace) -> bool {
        let state = self.try_hold().and_then(|asks| asks.all.get(&at).map(|ask| ask.state));
        matches!(state, Some(AskState::Asked { .. } | AskState::Answered(_)))
    }

    /// Has a machine asked that was found before, whether it is still there. Returns whether there
    /// was room.
    pub fn ask_again(&self, at: AskPlace, mac: u64) -> bool {
        let mut asks = self.hold();
        if asks.all.contains_key(&at) {
            return true;
        }
        let room = asks.has_room(at.0);
        if room {
            let state = AskState::Asked { questions: 0, next: 0 };
            asks.add(at, Ask { state, asker: None, to: Some(mac) });
        }
        room
    }

    /// Notes that there was no room for a machine that answered. `now` is in tenths of a second.
    pub fn had_no_room(&self, at: AskPlace, now: u32) {
        let mut asks = self.hold();
        if asks.has_room(at.0) && !asks.all.contains_key(&at) {
            let state = AskState::NoRoom { until: now.wrapping_add(SILENCE) };
            asks.add(at, Ask { state, asker: None, to: None });
        }
    }

    /// Forgets addresses of networks in which nobody is asked any more.
    pub fn keep(&self, is_asked: impl Fn(AskPlace) -> bool) {
        let mut asks = self.hold();
        let gone: HashSet<AskPlace> =
            asks.all.keys().copied().filter(|at| !is_asked(*at)).collect();
        gone.iter().for_each(|at| asks.end(at));
    }

    /// Looks at all addresses: which are to be asked for now, in tenths of a second, which have an
    /// answer, and for which nobody answered.
    pub fn pass(&self, now: u32) -> AskPass {
        let mut pass = AskPass::default();
        let mut asks = self.hold();
        let mut over = Vec::new();
        let is_over = |until: u32| (until.wrapping_sub(now) as i32) <= 0;
        for (at, ask) in &mut asks.all {
            match ask.state {
                AskState::Asked { questions, next } if questions == 0 || is_over(next) => {
                    if questions < QUESTIONS {
                        let next = now.wrapping_add(BETWEEN);
                        ask.state = AskState::Asked { questions: questions + 1, next };
                        pass.due.push((*at, ask.to));
                    } else if ask.to.is_some() {
                        pass.lost.push(*at);
                        over.push(*at);
                    } else {
                        ask.state = AskState::Silent { until: now.wrapping_add(SILENCE) };
                        pass.silent = true;
                    }
                }
                AskState::Answered(mac) => {
                    pass.answered.push((*at, mac));
                    over.push(*at);
                }
                AskState::Silent { until } | AskState::NoRoom { until } if is_over(until) => {
                    over.push(*at);
                }
                _ => {}
            }
        }
        over.iter().for_each(|at| asks.end(at));
        pass.left = asks.all.len();
        pass
    }

    /// Returns all addresses with their states, for the operator, in no order.
    pub fn list(&self) -> Vec<(AskPlace, AskState)> {
        self.hold().all.iter().map(|(at, ask)| (*at, ask.state)).collect()
    }
}
