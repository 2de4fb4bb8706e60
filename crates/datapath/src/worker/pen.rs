//! Pen: fragments that came before the first of their packet, which tells what becomes of them.
//!
//! Senders may let the last fragment go first, and fragments of one packet may come by several
//! queues, whose workers do not wait for each other. So an early fragment is copied and waits for a
//! moment. When its first one was let through, by whichever worker, it goes all stages as if it had
//! just come, but it is not learnt, counted, or taken from a limit again. Else it is judged once
//! more when its time is over, which drops it. A fragment without a place is dropped at once.

use std::collections::VecDeque;

use butterfly_mem::cpu;

use super::copies::{LONGEST, copy};
use super::shared::Shared;
use crate::engine::{
    batch::{Batch, Meta, Verdict},
    place::{PeerRef, PortRef},
};
use crate::ip::fragments::FragmentKey;
use crate::stages::{context::Context, filter::Judged};

/// Most fragments that wait, of all senders and of one. All other hosts of a network are one, and
/// behind a wire each address is one, with a bound for all of them.
const FRAGMENTS: usize = 64;
const PER_SENDER: usize = 8;
const PER_WIRE: usize = 32;
/// Longest wait.
const WAIT_US: u64 = 2000;
/// Time between looks of a worker that has nothing else to do. Its first ones may come by others.
const LOOK_US: u64 = 200;

/// Fate of a first fragment for which later ones wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    /// Decision of the filter.
    Decision,
    /// Translation by its ports.
    Translation,
}

/// A fragment that waits.
pub(super) struct Penned {
    /// The sender: a vnic, or the trunk with the host that the frame came from.
    pub(super) from: PortRef,
    pub(super) peer: PeerRef,
    key: FragmentKey,
    awaited: Awaited,
    /// End of its wait, in ticks of the time stamp counter.
    until: u64,
    /// The wait is over: it goes, or is dropped.
    due: bool,
    /// Number of receivers that have it, if it is a flood, and the decision on it.
    pub(super) done: u32,
    pub(super) judged: Option<Judged>,
    pub(super) frame: Vec<u8>,
}

/// The fragments that wait at a worker, in the order in which they came.
pub(super) struct FragmentPen {
    fragments: VecDeque<Penned>,
    /// Buffers for more.
    spare: Vec<Vec<u8>>,
    /// Numbers of the last looks at the host's tables, of decisions and of translations.
    seen: [u32; 2],
    /// Ticks that each waits.
    wait: u64,
}

impl FragmentPen {
    /// Allocates all that it will ever need; pages are touched when they are used.
    pub fn new() -> FragmentPen {
        FragmentPen {
            fragments: VecDeque::with_capacity(FRAGMENTS),
            spare: (0..FRAGMENTS).map(|_| Vec::with_capacity(LONGEST)).collect(),
            seen: [0; 2],
            wait: ticks(WAIT_US),
        }
    }

    /// Returns whether nothing waits, and nothing is due.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Returns whether a fragment is due.
    pub fn is_due(&self) -> bool {
        self.fragments.iter().any(|penned| penned.due)
    }

    /// Returns the tick of the next look, if anything waits.
    #[inline(always)]
    pub fn next_look(&self) -> Option<u64> {
        if self.is_empty() { None } else { Some(cpu::tsc().wrapping_add(ticks(LOOK_US))) }
    }

    /// Copies the fragments of a batch that came before their first ones, as far as there are
    /// places. For the others the verdict stands.
    #[cold]
    pub fn take(
        &mut self,
        early: &[(usize, FragmentKey)],
        awaited: Awaited,
        batch: &mut Batch<'_>,
        context: &Context<'_>,
    ) {
        let from = context.sender.place;
        let until = cpu::tsc().saturating_add(self.wait);
        let (frames, metas) = batch.parts();
        for (index, key) in early {
            let has_place = self.has_place(key, context);
            // One that was noted and is of no place in the batch any more may be another frame's.
            let waits = |meta: &&mut Meta| {
                awaited == Awaited::Decision || matches!(meta.verdict, Verdict::Drop(..))
            };
            let Some(meta) = metas.get_mut(*index).filter(waits).filter(|_| has_place) else {
                continue;
            };
            let Some(mut frame) = self.spare.pop() else { return };
            if !copy(frames, *index, &mut frame) {
                self.spare.push(frame);
                continue;
            }
            meta.verdict = Verdict::Later;
            self.fragments.push_back(Penned {
                from,
                peer: meta.peer,
                key: *key,
                awaited,
                until,
                due: false,
                done: 0,
                judged: None,
                frame,
            });
        }
    }

    /// Returns whether a sender may have one more fragment wait. Behind a wire each address is one.
    fn has_place(&self, key: &FragmentKey, context: &Context<'_>) -> bool {
        let own = || self.fragments.iter().filter(|penned| penned.from == context.sender.place);
        if !context.sender.is_wire() {
            return own().count() < PER_SENDER;
        }
        let of_address = own().filter(|penned| penned.key.is_from_source_of(key)).count();
        of_address < PER_SENDER && own().count() < PER_WIRE
    }

    /// Looks for fragments whose first ones came, and for those whose time is over. Returns whether
    /// any is due.
    #[cold]
    pub fn look(&mut self, shared: &Shared) -> bool {
        let (tick, now) = (cpu::tsc(), shared.clock.now());
        let [decisions, translations] = &mut self.seen;
        let mut find = |awaited, has: &dyn Fn(&FragmentKey) -> bool| {
            let waiting = self.fragments.iter_mut().filter(|penned| penned.awaited == awaited);
            waiting.for_each(|penned| penned.due |= has(&penned.key));
        };
        // One look after the other: no lock is taken under another one.
        if let Some(news) = shared.fragments.news(decisions) {
            find(Awaited::Decision, &|key| news.has(key, now));
        }
        if let Some(news) = shared.nat_fragments.news(translations) {
            find(Awaited::Translation, &|key| news.has(key, now));
        }
        self.fragments.iter_mut().for_each(|penned| penned.due |= penned.until <= tick);
        self.is_due()
    }

    /// Has fragments wait until [`Self::end_waits`], or as long as those of a switch.
    #[cfg(feature = "harness")]
    pub fn heed_time(&mut self, heeds: bool) {
        self.wait = if heeds { ticks(WAIT_US) } else { u64::MAX };
    }

    /// Ends all waits. Returns whether there was any.
    #[cfg(feature = "harness")]
    pub fn end_waits(&mut self) -> bool {
        self.fragments.iter_mut().for_each(|penned| penned.due = true);
        !self.is_empty()
    }

    /// Takes the first fragment that is due out of its place.
    pub fn next_due(&mut self) -> Option<(usize, Penned)> {
        let at = self.fragments.iter().position(|penned| penned.due)?;
        self.fragments.remove(at).map(|penned| (at, penned))
    }

    /// Puts a flood back for which the turn had no time: it goes on in the next one.
    pub fn put_back(&mut self, at: usize, penned: Penned) {
        self.fragments.insert(at, penned); // within its capacity
    }

    /// Forgets a fragment.
    pub fn end(&mut self, penned: Penned) {
        self.spare.push(penned.frame); // within its capacity
    }
}

fn ticks(us: u64) -> u64 {
    cpu::tsc_hz() / 1_000_000 * us
}
