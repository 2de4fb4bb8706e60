//! Addresses that are asked for, or that nobody answered for (RFC 6583).
//!
//! A worker notes here for which address it needs a machine, and what it hears; the thread that
//! looks for neighbours has the questions sent and ends them: see [`crate::plane::seek`]. A worker
//! only tries for the lock, and only for packets that have no next hop. What others can lengthen
//! is bounded: by the vnic that asks, by the network in which is asked, and in all. Networks share
//! the room, and a vnic with few takes the place of a silent one of the vnic with most.
//!
//! Machines that were found and are asked again need no room: the table of those bounds them.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread::Thread,
};

use crate::engine::{pace::Pace, place::PortRef, quota::Quota};
use crate::ip::{Address, is_v4};
use crate::world::found::FoundNeighbour;

/// Most addresses asked for or failed, of all networks, of one, and of a vnic.
pub(crate) const MOST: usize = 4096;
pub(crate) const MOST_IN_NETWORK: u32 = 1024;
pub(crate) const MOST_OF_VNIC: u32 = 64;
/// New ones of a vnic in a second, when it has had its [`MOST_OF_VNIC`].
const PER_SECOND: u32 = 16;
/// Most addresses asked for or failed of a block in which one machine may make up as many as it
/// likes: see [`crate::world::routing::Routing::block_of`].
const MOST_OF_BLOCK: u32 = 8;
/// Looks of a vnic in a second, for packets without a next hop.
const LOOKS: u32 = 1000;
/// Most machines of a network that are asked again at once. Others wait for the next second.
pub(crate) const MOST_AGAIN: u32 = 128;
/// Answers of a sender in a second: of a vnic, or of a network's other hosts together.
const ANSWERS: u32 = 1000;
/// Tries for the lock, which is held for microseconds: for a packet, and for an answer, which does
/// not come again.
const TRIES: usize = 64;
const ANSWER_TRIES: usize = 16_384;
/// Questions for an address, and the tenths of a second between them.
const QUESTIONS: u8 = 3;
const BETWEEN: u32 = 10;
/// Tenths of a second for which a silent address is not asked for again.
const SILENCE: u32 = 50;

/// Seconds in which a guest that attached, or probed for an address, hears no questions: it would
/// take one for the probe of a machine that wants its address (RFC 5227, 2.1.1).
pub(crate) const PROBING: u32 = 10;
/// Addresses of which it is remembered that a guest probed for them.
const PROBES: usize = 4;

/// An address in a network.
pub(crate) type AskPlace = (u32, Address);

/// Budgets of a vnic whose packets have no next hop, or that answers.
#[derive(Default)]
pub(crate) struct AskPaces {
    looks: Pace,
    new: Pace,
    /// The same for addresses of such blocks: half of each is kept for others.
    block_looks: Pace,
    block_new: Pace,
    answers: Pace,
}

impl AskPaces {
    /// Returns paces of their own with the same contents.
    pub fn copy(&self) -> AskPaces {
        let AskPaces { looks, new, block_looks, block_new, answers } = self;
        AskPaces {
            looks: looks.copy(),
            new: new.copy(),
            block_looks: block_looks.copy(),
            block_new: block_new.copy(),
            answers: answers.copy(),
        }
    }

    /// Takes one of the answers that may be looked at in this second, if there is one left.
    pub fn may_answer(&self, now: u32) -> bool {
        self.answers.take(now, ANSWERS, ANSWERS)
    }
}

/// Addresses for which a guest probed by ARP in the last seconds: a few, the newest ones. Each is
/// a second (high half) and an address (low half).
#[derive(Default)]
pub(crate) struct ArpProbes([AtomicU64; PROBES]);

impl ArpProbes {
    fn second(word: u64) -> u32 {
        (word >> 32) as u32
    }

    /// Notes a probe, in the place of the oldest one, or of one for the same address.
    pub fn note(&self, address: Ipv4Addr, now: u32) {
        let address = address.to_bits();
        let place = self.0.iter().min_by_key(|place| {
            let word = place.load(Relaxed);
            (word as u32 != address, Self::second(word))
        });
        if let Some(place) = place {
            place.store(u64::from(now) << 32 | u64::from(address), Relaxed);
        }
    }

    /// Returns whether there was one for an address.
    pub fn has(&self, address: Address, now: u32) -> bool {
        is_v4(address)
            && self.0.iter().map(|place| place.load(Relaxed)).any(|word| {
                word != 0
                    && word as u32 == address as u32
                    && now.saturating_sub(Self::second(word)) < PROBING
            })
    }

    /// Returns probes of their own with the same contents.
    pub fn copy(&self) -> ArpProbes {
        ArpProbes(self.0.each_ref().map(|place| AtomicU64::new(place.load(Relaxed))))
    }
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

/// An address for which a vnic needs a machine. All machines are asked.
#[derive(Clone, Copy)]
struct Ask {
    state: AskState,
    asker: PortRef,
    block: Option<u64>,
}

/// A machine that was found before, which alone is asked.
#[derive(Clone, Copy)]
struct AskAgain {
    state: AskState,
    mac: u64,
}

struct Asks {
    all: HashMap<AskPlace, Ask>,
    /// Number of them by vnic, and by network. Never 0.
    of: HashMap<PortRef, u32>,
    within: HashMap<u32, AtomicU32>,
    /// Number of them by network and block, likewise.
    of_block: HashMap<(u32, u64), u32>,
    quota: Quota,
    /// Machines that are asked again, and their number by network. Workers add none.
    again: HashMap<AskPlace, AskAgain>,
    again_within: HashMap<u32, u32>,
}

/// All addresses that are asked for. A copy shares them.
pub(crate) struct Asking {
    asks: Arc<Mutex<Asks>>,
    /// The thread that has questions sent, once one does; before, nobody is asked. Tests have none.
    keeper: Arc<OnceLock<Option<Thread>>>,
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

/// A question that is to be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DueQuestion {
    pub at: AskPlace,
    /// The machine that is asked: all, if none was found yet.
    pub to: Option<u64>,
    /// Questions for the address, with this one.
    pub questions: u8,
}

/// Outcome of a pass over all addresses.
#[derive(Default)]
pub(crate) struct AskPass {
    /// Questions to be sent now. Those to machines that were found come first, then addresses for
    /// which nobody was asked yet.
    pub due: Vec<DueQuestion>,
    /// Addresses and those who answered. They stay until [`Asking::end_answered`].
    pub answered: Vec<(AskPlace, u64)>,
    /// Machines that were found before and answer no more.
    pub lost: Vec<(AskPlace, u64)>,
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
            of_block: HashMap::with_capacity(room),
            quota: Quota::new(MOST as u32),
            again: HashMap::new(),
            again_within: HashMap::new(),
        }
    }

    fn count_of(&self, asker: PortRef) -> u32 {
        self.of.get(&asker).copied().unwrap_or(0)
    }

    fn held_by(&self, vni: u32) -> u32 {
        self.within.get(&vni).map_or(0, |held| held.load(Relaxed))
    }

    fn has_room(&self, vni: u32) -> bool {
        let held = self.held_by(vni);
        self.all.len() < MOST && held < MOST_IN_NETWORK && self.quota.has_room(held)
    }

    fn add(&mut self, at: AskPlace, ask: Ask) {
        self.quota.take(self.within.entry(at.0).or_default());
        *self.of.entry(ask.asker).or_default() += 1;
        if let Some(block) = ask.block {
            *self.of_block.entry((at.0, block)).or_default() += 1;
        }
        self.all.insert(at, ask);
    }

    fn end(&mut self, at: &AskPlace) {
        let Some(ask) = self.all.remove(at) else { return };
        less(&mut self.of, ask.asker);
        if let Some(block) = ask.block {
            less(&mut self.of_block, (at.0, block));
        }
        let Some(held) = self.within.get(&at.0) else { return };
        self.quota.give_back(held);
        if held.load(Relaxed) == 0 {
            self.within.remove(&at.0);
        }
    }

    fn end_again(&mut self, at: &AskPlace) {
        if self.again.remove(at).is_some() {
            less(&mut self.again_within, at.0);
        }
    }

    /// Returns the address whose place a vnic with `own` may have, in a network: a silent one of
    /// the vnic with most, which has at least two more.
    fn replaceable(&self, own: u32, vni: u32) -> Option<AskPlace> {
        // A network that has all that it may have takes no place of others.
        let held = self.held_by(vni);
        let is_full = held >= MOST_IN_NETWORK || !self.quota.has_room(held);
        let own_alone = |at: &AskPlace| !is_full || at.0 == vni;
        let silent = self.all.iter().filter(|(at, ask)| ask.state.is_over() && own_alone(at));
        let counted = silent.map(|(at, ask)| (self.count_of(ask.asker), *at));
        let (most, at) = counted.max_by_key(|(count, _)| *count)?;
        (most >= own.saturating_add(2)).then_some(at)
    }

    /// Shares the room anew among networks that ask, and one more.
    fn share(&mut self) {
        let held: Vec<u32> = self.within.values().map(|held| held.load(Relaxed)).collect();
        let networks = held.len() as u32 + 1;
        let Some(most) = self.quota.settle(MOST as u32, networks, &held, 0) else { return };
        let mut beyond: HashMap<u32, u32> = HashMap::new();
        for (vni, held) in &self.within {
            beyond.insert(*vni, held.load(Relaxed).saturating_sub(most));
        }
        let mut all: Vec<(bool, AskPlace)> =
            self.all.iter().map(|(at, ask)| (!ask.state.is_over(), *at)).collect();
        all.sort_unstable();
        for (_, at) in all {
            if let Some(beyond) = beyond.get_mut(&at.0).filter(|beyond| **beyond > 0) {
                *beyond -= 1;
                self.end(&at);
            }
        }
    }

    /// Returns the state of an address for which this machine may answer now.
    fn answerable(&mut self, at: AskPlace, mac: u64) -> Option<&mut AskState> {
        let is_asked = |state: &AskState| matches!(state, AskState::Asked { questions: 1.., .. });
        if let Some(ask) = self.all.get_mut(&at).filter(|ask| is_asked(&ask.state)) {
            return Some(&mut ask.state);
        }
        let again = self.again.get_mut(&at)?;
        (again.mac == mac && is_asked(&again.state)).then_some(&mut again.state)
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

/// Returns whether a tenth of a second is over.
fn is_over(until: u32, now: u32) -> bool {
    (until.wrapping_sub(now) as i32) <= 0
}

/// Takes a question that is due, if one is. `None` if the last one stayed without an answer.
fn next_question(state: &mut AskState, now: u32) -> Option<Option<u8>> {
    let AskState::Asked { questions, next } = *state else { return Some(None) };
    if questions > 0 && !is_over(next, now) {
        return Some(None);
    }
    if questions == QUESTIONS {
        return None;
    }
    let questions = questions + 1;
    *state = AskState::Asked { questions, next: now.wrapping_add(BETWEEN) };
    Some(Some(questions))
}

impl Asking {
    pub fn new() -> Asking {
        let asks = Arc::new(Mutex::new(Asks::new()));
        Asking { asks, keeper: Arc::default(), is_copy: false }
    }

    /// Returns one for packets that are walked and not sent: it tells the same, and asks nobody.
    pub fn copy(&self) -> Asking {
        Asking { asks: self.asks.clone(), keeper: self.keeper.clone(), is_copy: true }
    }

    /// Has addresses asked for from now on: a thread has the questions sent, which is woken when
    /// there is one, or tests do.
    pub fn begin(&self, keeper: Option<Thread>) {
        let _ = self.keeper.set(keeper);
    }

    fn hold(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_hold(&self, tries: usize) -> Option<MutexGuard<'_, Asks>> {
        for _ in 0..tries {
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
    ///
    /// `block` is that of the address, if one machine may make up as many there as it likes: such a
    /// block has a small part of all that others need.
    pub fn want(
        &self,
        (at, block): (AskPlace, Option<u64>),
        asker: PortRef,
        paces: &AskPaces,
        now: u32,
    ) -> Wanted {
        if self.keeper.get().is_none() {
            return Wanted::Silent;
        }
        if block.is_some() && !paces.block_looks.take(now, LOOKS / 2, LOOKS / 2) {
            return Wanted::Limit;
        }
        if !paces.looks.take(now, LOOKS, LOOKS) {
            return Wanted::Limit;
        }
        let Some(mut asks) = self.try_hold(TRIES) else { return Wanted::Limit };
        match asks.all.get(&at).map(|ask| ask.state) {
            Some(AskState::Asked { .. } | AskState::Answered(_)) => return Wanted::Asked,
            Some(AskState::Silent { .. }) => return Wanted::Silent,
            Some(AskState::NoRoom { .. }) => return Wanted::Limit,
            None => {}
        }
        if let Some(block) = block {
            let held = asks.of_block.get(&(at.0, block)).copied().unwrap_or(0);
            let pace = || paces.block_new.take(now, MOST_OF_VNIC / 2, PER_SECOND / 2);
            if held >= MOST_OF_BLOCK || !pace() {
                return Wanted::Limit;
            }
        }
        let own = asks.count_of(asker);
        if own >= MOST_OF_VNIC || !paces.new.take(now, MOST_OF_VNIC, PER_SECOND) {
            return Wanted::Limit;
        }
        let gives = match asks.has_room(at.0) {
            true => None,
            false => match asks.replaceable(own, at.0) {
                Some(gives) => Some(gives),
                None => return Wanted::Limit,
            },
        };
        if self.is_copy {
            return Wanted::Asked;
        }
        gives.iter().for_each(|at| asks.end(at));
        asks.add(at, Ask { state: AskState::Asked { questions: 0, next: 0 }, asker, block });
        drop(asks);
        self.wake();
        Wanted::Asked
    }

    /// Returns whether a machine's answer would count: the address is asked for, by a question that
    /// it may have heard, and nobody answered before. `None` if that cannot be told now. Never
    /// waits or allocates.
    pub fn awaits(&self, at: AskPlace, mac: u64) -> Option<bool> {
        Some(self.try_hold(ANSWER_TRIES)?.answerable(at, mac).is_some())
    }

    /// Notes an answer that [`Self::awaits`] lets count. `None` if it cannot be noted now. Never
    /// waits or allocates.
    pub fn hear(&self, at: AskPlace, mac: u64) -> Option<bool> {
        let mut asks = self.try_hold(ANSWER_TRIES)?;
        let Some(state) = asks.answerable(at, mac) else { return Some(false) };
        if self.is_copy {
            return Some(true);
        }
        *state = AskState::Answered(mac);
        drop(asks);
        self.wake();
        Some(true)
    }

    /// Notes that a packet goes to a machine that was found.
    pub fn goes_to(&self, found: &FoundNeighbour, now: u32) {
        if !self.is_copy {
            found.is_used(now);
        }
    }

    /// Returns whether packets may wait for an address: it is being asked for, or that cannot be
    /// told now.
    pub fn is_asked(&self, at: AskPlace) -> bool {
        let Some(asks) = self.try_hold(TRIES) else { return true };
        let state = asks.all.get(&at).map(|ask| ask.state);
        matches!(state, Some(AskState::Asked { .. } | AskState::Answered(_)))
    }

    /// Has a machine asked that was found before, whether it is still there. With many of its
    /// network it is tried again in a second.
    pub fn ask_again(&self, at: AskPlace, mac: u64) {
        let mut asks = self.hold();
        let within = asks.again_within.get(&at.0).copied().unwrap_or(0);
        if within < MOST_AGAIN && !asks.again.contains_key(&at) {
            let state = AskState::Asked { questions: 0, next: 0 };
            asks.again.insert(at, AskAgain { state, mac });
            *asks.again_within.entry(at.0).or_default() += 1;
        }
    }

    /// Notes that there was no room for a machine that answered. `now` is in tenths of a second.
    pub fn had_no_room(&self, at: AskPlace, now: u32) {
        if let Some(ask) = self.hold().all.get_mut(&at) {
            ask.state = AskState::NoRoom { until: now.wrapping_add(SILENCE) };
        }
    }

    /// Ends questions that have an answer, when it is where workers find it.
    pub fn end_answered(&self, answered: &[(AskPlace, u64)]) {
        let mut asks = self.hold();
        for (at, mac) in answered {
            let has_it = |state: AskState| state == AskState::Answered(*mac);
            if asks.all.get(at).is_some_and(|ask| has_it(ask.state)) {
                asks.end(at);
            }
            if asks.again.get(at).is_some_and(|again| has_it(again.state)) {
                asks.end_again(at);
            }
        }
    }

    /// Takes questions back that were not sent: they are due as before.
    pub fn were_not_sent(&self, unsent: &[DueQuestion]) {
        let mut asks = self.hold();
        for question in unsent {
            let state = match question.to {
                None => asks.all.get_mut(&question.at).map(|ask| &mut ask.state),
                Some(_) => asks.again.get_mut(&question.at).map(|again| &mut again.state),
            };
            if let Some(AskState::Asked { questions, next }) = state
                && *questions == question.questions
            {
                *questions -= 1;
                *next = next.wrapping_sub(BETWEEN);
            }
        }
    }

    /// Forgets addresses of networks in which nobody is asked any more, and shares the room anew.
    pub fn keep(&self, is_asked: impl Fn(AskPlace) -> bool) {
        let mut asks = self.hold();
        let gone: Vec<AskPlace> = asks.all.keys().copied().filter(|at| !is_asked(*at)).collect();
        gone.iter().for_each(|at| asks.end(at));
        let gone: Vec<AskPlace> = asks.again.keys().copied().filter(|at| !is_asked(*at)).collect();
        gone.iter().for_each(|at| asks.end_again(at));
        asks.share();
    }

    /// Looks at all addresses: which are to be asked for now, in tenths of a second, which have an
    /// answer, and for which nobody answered.
    pub fn pass(&self, now: u32) -> AskPass {
        let mut pass = AskPass::default();
        let mut asks = self.hold();
        let (mut over, mut lost) = (Vec::new(), Vec::new());
        for (at, again) in &mut asks.again {
            if let AskState::Answered(mac) = again.state {
                pass.answered.push((*at, mac));
                continue;
            }
            match next_question(&mut again.state, now) {
                Some(Some(questions)) => {
                    pass.due.push(DueQuestion { at: *at, to: Some(again.mac), questions });
                }
                Some(None) => {}
                None => lost.push((*at, again.mac)),
            }
        }
        for (at, ask) in &mut asks.all {
            match ask.state {
                AskState::Asked { .. } => match next_question(&mut ask.state, now) {
                    Some(Some(questions)) => {
                        pass.due.push(DueQuestion { at: *at, to: None, questions });
                    }
                    Some(None) => {}
                    None => {
                        ask.state = AskState::Silent { until: now.wrapping_add(SILENCE) };
                        pass.silent = true;
                    }
                },
                AskState::Answered(mac) => pass.answered.push((*at, mac)),
                AskState::Silent { until } | AskState::NoRoom { until } => {
                    if is_over(until, now) {
                        over.push(*at);
                    }
                }
            }
        }
        over.iter().for_each(|at| asks.end(at));
        lost.iter().for_each(|(at, _)| asks.end_again(at));
        pass.lost = lost;
        pass.left = asks.all.len() + asks.again.len();
        pass.due.sort_by_key(|question| (question.to.is_none(), question.questions));
        pass
    }

    /// Returns all addresses with their states, for the operator, in no order.
    pub fn list(&self) -> Vec<(AskPlace, AskState)> {
        self.hold().all.iter().map(|(at, ask)| (*at, ask.state)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VNI: u32 = 50;

    fn place(slot: u32) -> PortRef {
        PortRef { slot, incarnation: 1 }
    }

    fn asking() -> Asking {
        let asking = Asking::new();
        asking.begin(None);
        asking
    }

    /// Has a vnic ask for so many addresses. Returns the outcomes that were [`Wanted::Asked`].
    fn wants(asking: &Asking, vni: u32, slot: u32, many: u32) -> usize {
        let paces = AskPaces::default();
        let address = |n: u32| crate::ip::mapped((slot << 8 | n).into());
        let each =
            (0..many).map(|n| asking.want(((vni, address(n)), None), place(slot), &paces, 1));
        each.filter(|wanted| *wanted == Wanted::Asked).count()
    }

    /// Passes until all is silent that is asked for now.
    fn fall_silent(asking: &Asking, tenths: &mut u32) {
        for _ in 0..=QUESTIONS {
            *tenths += BETWEEN;
            asking.pass(*tenths);
        }
    }

    /// A full table takes nothing from machines that were found: they are asked again.
    #[test]
    fn a_full_table_loses_no_machine_that_is_used() {
        let asking = asking();
        // Networks enough that none has more than it may.
        for slot in 0..80 {
            wants(&asking, slot / 10, slot, MOST_OF_VNIC);
        }
        assert!(asking.pass(1).left > MOST / 2);
        asking.ask_again((VNI, 7), 0x77);
        let due = asking.pass(2).due;
        assert_eq!(due, [DueQuestion { at: (VNI, 7), to: Some(0x77), questions: 1 }]);
    }

    /// A network within its part finds room, whatever others have; and a vnic takes the place of a
    /// silent address of who has most.
    #[test]
    fn networks_and_vnics_share_the_room() {
        let asking = asking();
        let mut tenths = 0;
        for slot in 0..64 {
            wants(&asking, slot / 16, slot, MOST_OF_VNIC);
            asking.keep(|_| true);
        }
        assert_eq!(wants(&asking, VNI, 100, 32), 32, "another network finds room");
        assert_eq!(wants(&asking, 0, 101, 1), 0, "nobody is silent yet");
        fall_silent(&asking, &mut tenths);
        assert_eq!(wants(&asking, 0, 101, 30), 30, "another vnic of a full network");
        assert!(asking.list().len() <= MOST);
        let asks = asking.hold();
        assert_eq!(asks.count_of(place(101)), 30);
        assert!(asks.held_by(0) <= MOST_IN_NETWORK);
        let total: u32 = asks.within.values().map(|held| held.load(Relaxed)).sum();
        assert_eq!(total as usize, asks.all.len());
    }

    /// Only the machine that is asked again may answer.
    #[test]
    fn a_machine_answers_for_itself() {
        let asking = asking();
        asking.ask_again((VNI, 7), 0x77);
        asking.pass(1);
        assert_eq!(asking.awaits((VNI, 7), 0x66), Some(false));
        assert_eq!(asking.hear((VNI, 7), 0x66), Some(false));
        assert_eq!(asking.hear((VNI, 7), 0x77), Some(true));
    }

    /// An answer that meets the lock is neither lost in silence nor taken for one that counts.
    #[test]
    fn a_busy_lock_is_no_answer() {
        let asking = asking();
        wants(&asking, VNI, 1, 1);
        asking.pass(1);
        let at = (VNI, crate::ip::mapped((1 << 8).into()));
        let held = asking.hold();
        assert_eq!((asking.awaits(at, 5), asking.hear(at, 5)), (None, None));
        assert!(asking.is_asked(at));
        drop(held);
        assert_eq!(asking.hear(at, 5), Some(true));
    }

    /// A question that was not sent is due again, and is none of the three.
    #[test]
    fn what_was_not_sent_is_not_counted() {
        let asking = asking();
        asking.ask_again((VNI, 7), 0x77);
        for tenths in 1..100 {
            let pass = asking.pass(tenths);
            assert_eq!((pass.due.len(), pass.lost.len()), (1, 0), "{tenths}");
            asking.were_not_sent(&pass.due);
        }
        // After one that was sent, too.
        asking.pass(100);
        let second = asking.pass(110);
        assert_eq!(second.due[0].questions, 2);
        asking.were_not_sent(&second.due);
        assert_eq!(asking.pass(111).due, second.due);
    }

    /// An address with an answer stays asked for until workers see the answer.
    #[test]
    fn an_answered_address_is_not_asked_for_anew() {
        let asking = asking();
        let (at, paces) = ((VNI, 7), AskPaces::default());
        asking.want((at, None), place(1), &paces, 1);
        asking.pass(1);
        asking.hear(at, 5);
        assert_eq!(asking.pass(2).answered, [(at, 5)]);
        assert_eq!(asking.want((at, None), place(1), &paces, 1), Wanted::Asked);
        assert_eq!(asking.pass(3).due, []);
        asking.end_answered(&[(at, 5)]);
        assert_eq!(asking.pass(4).left, 0);
    }

    /// A copy tells what the switch would, and changes nothing.
    #[test]
    fn a_copy_asks_nobody() {
        let asking = asking();
        let (copy, paces) = (asking.copy(), AskPaces::default());
        assert_eq!(copy.want(((VNI, 7), None), place(1), &paces, 1), Wanted::Asked);
        assert_eq!(asking.pass(1).left, 0);
        asking.want(((VNI, 7), None), place(1), &paces, 1);
        asking.pass(2);
        assert_eq!(copy.hear((VNI, 7), 5), Some(true));
        assert_eq!(asking.pass(3).answered, []);
    }
}
