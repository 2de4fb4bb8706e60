//! History of ends: who is to blame for them, and what follows. Pure: times are values, in
//! milliseconds since the host started.
//!
//! A worker that ends its process leaves a *point*: the ring that it served and the receive ring
//! that it touched. A sender with two points within ten minutes is held. A receiver in points of
//! two senders, or in two of the uplink, is held instead of them.

use butterfly_mem::blackbox::{Blamed, Cause, Notes, Side};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
/// Age up to which a point counts.
const WINDOW: u64 = 10 * MINUTE;
/// Longest hold, in minutes.
const LONGEST: u64 = 60;
/// Time after a hold for which the next one is a longer one.
const REMEMBERED: u64 = 24 * 60 * MINUTE;
/// Points on frames from the uplink after which these are held.
const UPLINK_POINTS: usize = 3;
/// Time after `ready` in which an end counts as one of a bad start.
const STEADY: u64 = 60 * SECOND;
/// Bad starts after which another step is taken.
const STEP: u32 = 3;
/// Most points and holds that are kept. The oldest go.
const POINTS: usize = 64;
const HOLDS: usize = 1024;
/// Longest name of a vnic that a text may have.
const NAME: usize = 256;

/// A party to an end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    Nobody,
    Vnic(String),
    Uplink,
    Switch,
}

impl From<&Side> for Party {
    fn from(side: &Side) -> Self {
        match side {
            Side::Nobody => Self::Nobody,
            Side::Vnic(id) => Self::Vnic(id.clone()),
            Side::Uplink => Self::Uplink,
            Side::Switch => Self::Switch,
        }
    }
}

/// An end that a worker caused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    at: u64,
    served: Party,
    written: Option<String>,
}

/// Rings that are held, or were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// For the operator: a sentence without a full stop.
    pub why: String,
    /// End of the hold.
    pub until: u64,
    /// Number of holds before this one, as far as they are remembered.
    level: u32,
    /// True while it is in force.
    pub active: bool,
    /// Held for what it received.
    as_receiver: bool,
}

/// Consequence of an end, for the record of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Held(String),
    Released(String),
    UplinkHeld,
    AllHeld,
}

/// How a process is to start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartOrder {
    /// The store is left alone.
    pub degraded: bool,
    /// The checkpoint and the table of sessions are left alone.
    pub set_aside: bool,
    /// Frames that wait at a vhost-user uplink are given back unseen.
    pub skip_uplink: bool,
}

/// The history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    layout: u32,
    /// Release that wrote it. Another one may have mended what ended the processes.
    version: String,
    /// Number of the last process whose end is counted.
    term: u64,
    /// Ends in a row before the process was steady.
    pub bad_starts: u32,
    points: Vec<Point>,
    held: BTreeMap<String, Hold>,
    uplink: Option<Hold>,
    all: Option<Hold>,
}

impl History {
    /// Begins one, all of whose processes up to `term` are counted.
    pub fn new(term: u64) -> Self {
        let version = butterfly_version::VERSION.into();
        Self { layout: butterfly_layout::in_force(), version, term, ..Self::default() }
    }

    /// Reads one that another process wrote. Parts that cannot be true are left out.
    pub fn read(text: &[u8], now: u64) -> Result<Self, String> {
        let mut read: Self = serde_json::from_slice(text).map_err(|why| why.to_string())?;
        butterfly_layout::check(read.layout)?;
        if read.version != butterfly_version::VERSION {
            return Ok(Self::new(read.term));
        }
        let is_name = |name: &str| !name.is_empty() && name.len() <= NAME;
        let latest = now.saturating_add(LONGEST * MINUTE);
        let may_be = |hold: &Hold| hold.until <= latest && hold.why.len() <= 4 * NAME;
        read.points.retain(|point| {
            point.at <= now
                && point.written.as_deref().is_none_or(is_name)
                && !matches!(&point.served, Party::Vnic(id) if !is_name(id))
        });
        read.held.retain(|id, hold| is_name(id) && may_be(hold));
        read.uplink = read.uplink.filter(may_be);
        read.all = read.all.filter(may_be);
        read.bound(now);
        Ok(read)
    }

    /// Returns it as text, in the layout in force.
    pub fn text(&self) -> Vec<u8> {
        let text = Self { layout: butterfly_layout::in_force(), ..self.clone() };
        serde_json::to_vec(&text).unwrap_or_default()
    }

    /// Counts the end of the processes before the one with the number `term`. `notes`: what the
    /// last one that had a box wrote there. Returns what follows.
    pub fn count(&mut self, term: u64, notes: Option<&Notes>, now: u64) -> Vec<Verdict> {
        let last = term.saturating_sub(1);
        let notes = notes.filter(|notes| notes.term > self.term && notes.term <= last);
        let mut verdicts = Vec::new();
        if let Some(notes) = notes {
            self.end_of(notes, now, &mut verdicts);
            self.term = notes.term;
        }
        // Those that ended before they had a box.
        let silent = u32::try_from(last.saturating_sub(self.term)).unwrap_or(u32::MAX);
        self.bad_starts = self.bad_starts.saturating_add(silent);
        self.term = last;
        if self.holds_all() && !self.all.as_ref().is_some_and(|hold| hold.active) {
            let why = format!("{} starts in a row came to nothing", self.bad_starts);
            self.all = Some(next(self.all.as_ref(), why, now, false));
            verdicts.push(Verdict::AllHeld);
        }
        self.bound(now);
        verdicts
    }

    fn end_of(&mut self, notes: &Notes, now: u64, verdicts: &mut Vec<Verdict>) {
        let ready = notes.ready.map(|ready| notes.alive.saturating_sub(ready).as_millis());
        let lived = ready.map(|lived| u64::try_from(lived).unwrap_or(u64::MAX));
        match (notes.cause, lived) {
            (Some(Cause::Stopped), Some(_)) => self.bad_starts = 0,
            // It gave up in good order, and said why.
            (Some(Cause::Stopped), None) => {}
            (_, None) => self.bad_starts = self.bad_starts.saturating_add(1),
            (cause, Some(lived)) if lived < STEADY => {
                // Others may kill it at any time.
                let own = u32::from(cause.is_some() || notes.blamed.is_some());
                self.bad_starts = self.bad_starts.saturating_add(own);
            }
            // What it started without may still be the cause.
            (_, Some(_)) if notes.degraded => {}
            (_, Some(_)) => self.bad_starts = 0,
        }
        if let Some(blamed) = &notes.blamed {
            self.blame(blamed, now, verdicts);
        }
        if !verdicts.is_empty() {
            // The next start is another attempt.
            self.bad_starts = 0;
        }
    }

    fn blame(&mut self, blamed: &Blamed, now: u64, verdicts: &mut Vec<Verdict>) {
        let written = match &blamed.written {
            Side::Vnic(id) => Some(id.clone()),
            _ => None,
        };
        let served = Party::from(&blamed.served);
        // Between turns: where it wrote before has nothing to do with it.
        if served == Party::Nobody {
            return;
        }
        self.points.push(Point { at: now, served: served.clone(), written: written.clone() });
        self.bound(now);
        let how = how(blamed.cause);
        if let Some(receiver) = written.filter(|receiver| self.is_poison_to_receive(receiver)) {
            let why = format!("a worker {how} while it wrote to it, for different senders");
            self.hold(&receiver, why, now, true, verdicts);
            self.exonerate(verdicts);
        } else if let Party::Vnic(sender) = &served {
            if self.unexplained(&served) >= 2 {
                let why = format!("a worker {how} twice within ten minutes while it served it");
                self.hold(sender, why, now, false, verdicts);
            }
        } else if served == Party::Uplink && self.unexplained(&served) >= UPLINK_POINTS {
            let why = format!("a worker {how} three times within ten minutes by its frames");
            self.uplink = Some(next(self.uplink.as_ref(), why, now, false));
            verdicts.push(Verdict::UplinkHeld);
        }
    }

    /// True if different senders' frames for a vnic ended the process, or two of senders that
    /// cannot be held.
    fn is_poison_to_receive(&self, receiver: &str) -> bool {
        let own = Party::Vnic(receiver.to_owned());
        let to = self
            .points
            .iter()
            .filter(|point| point.written.as_deref() == Some(receiver) && point.served != own);
        let mut senders = BTreeSet::new();
        to.map(|point| &point.served).any(|served| {
            let again = !senders.insert(served) && !matches!(served, Party::Vnic(_));
            again || senders.len() >= 2
        })
    }

    /// Number of a sender's points that no receiver explains that is held.
    fn unexplained(&self, sender: &Party) -> usize {
        let explained = |receiver: &String| {
            self.held.get(receiver).is_some_and(|hold| hold.active && hold.as_receiver)
        };
        let of = self.points.iter().filter(|point| point.served == *sender);
        of.filter(|point| !point.written.as_ref().is_some_and(explained)).count()
    }

    /// Releases senders that are held for what a receiver explains now.
    fn exonerate(&mut self, verdicts: &mut Vec<Verdict>) {
        let senders: Vec<String> = self
            .held
            .iter()
            .filter(|(_, hold)| hold.active && !hold.as_receiver)
            .map(|(id, _)| id.clone())
            .collect();
        for id in senders {
            // Points that are older than the window are not there any more: they explain nothing.
            let own = self.points.iter().any(|point| point.served == Party::Vnic(id.clone()));
            if own && self.unexplained(&Party::Vnic(id.clone())) == 0 {
                self.held.remove(&id);
                verdicts.push(Verdict::Released(id));
            }
        }
    }

    fn hold(
        &mut self,
        id: &str,
        why: String,
        now: u64,
        as_receiver: bool,
        verdicts: &mut Vec<Verdict>,
    ) {
        let hold = next(self.held.get(id), why, now, as_receiver);
        self.held.insert(id.to_owned(), hold);
        verdicts.push(Verdict::Held(id.to_owned()));
    }

    /// Forgets what is old, and the oldest of what is too much.
    fn bound(&mut self, now: u64) {
        self.points.retain(|point| now.saturating_sub(point.at) <= WINDOW);
        let more = self.points.len().saturating_sub(POINTS);
        self.points.drain(..more);
        self.held.retain(|_, hold| hold.active || now.saturating_sub(hold.until) <= REMEMBERED);
        while self.held.len() > HOLDS {
            let first = self.held.iter().min_by_key(|(_, hold)| (hold.active, hold.until));
            let Some(id) = first.map(|(id, _)| id.clone()) else { break };
            self.held.remove(&id);
        }
    }

    fn holds_all(&self) -> bool {
        (2 * STEP..3 * STEP).contains(&self.bad_starts)
    }

    /// Returns how the process is to start.
    pub fn order(&self) -> StartOrder {
        StartOrder {
            degraded: self.bad_starts >= STEP,
            set_aside: self.bad_starts >= 3 * STEP,
            skip_uplink: self.points.iter().any(|point| point.served == Party::Uplink),
        }
    }

    /// Returns the vnics that are held, and their holds.
    pub fn held(&self) -> impl Iterator<Item = (&str, &Hold)> {
        self.held.iter().filter(|(_, hold)| hold.active).map(|(id, hold)| (id.as_str(), hold))
    }

    /// Returns the hold of a vnic, whether by name or with all others.
    pub fn hold_of(&self, id: &str) -> Option<&Hold> {
        self.held.get(id).filter(|hold| hold.active).or_else(|| self.all_held())
    }

    /// Returns the hold of all vnics.
    pub fn all_held(&self) -> Option<&Hold> {
        self.all.as_ref().filter(|hold| hold.active)
    }

    /// Returns the hold of the uplink.
    pub fn uplink_held(&self) -> Option<&Hold> {
        self.uplink.as_ref().filter(|hold| hold.active)
    }

    /// Ends the holds whose time is over. Returns the vnics of these, and whether those of the
    /// uplink and of all others ended.
    pub fn end_due(&mut self, now: u64) -> (Vec<String>, bool, bool) {
        let is_due = |hold: &mut Hold| {
            let due = hold.active && hold.until <= now;
            hold.active &= !due;
            due
        };
        let of = self.held.iter_mut().filter_map(|(id, hold)| is_due(hold).then(|| id.clone()));
        let ended = of.collect();
        (ended, self.uplink.as_mut().is_some_and(is_due), self.all.as_mut().is_some_and(is_due))
    }

    /// Forgets a vnic: the operator wants that, or it is another one from now on. Returns whether
    /// anything was known of it, and whether it was held by name.
    pub fn forget(&mut self, id: &str) -> (bool, bool) {
        let before = self.points.len();
        let is = |party: &Party| matches!(party, Party::Vnic(other) if other == id);
        self.points.retain(|point| !is(&point.served) && point.written.as_deref() != Some(id));
        let hold = self.held.remove(id);
        let known = hold.is_some() || before != self.points.len();
        (known, hold.is_some_and(|hold| hold.active))
    }

    /// Ends the hold of all vnics. Returns whether there was one.
    pub fn forget_all(&mut self) -> bool {
        self.all.take().is_some_and(|hold| hold.active)
    }

    /// Ends the hold of the uplink. Returns whether there was one.
    pub fn forget_uplink(&mut self) -> bool {
        self.points.retain(|point| point.served != Party::Uplink);
        self.uplink.take().is_some_and(|hold| hold.active)
    }
}

/// Returns the next hold: longer than one that is remembered.
fn next(before: Option<&Hold>, why: String, now: u64, as_receiver: bool) -> Hold {
    let level = before.map_or(0, |before| before.level.saturating_add(1));
    let minutes = 1u64.checked_shl(level).map_or(LONGEST, |minutes| minutes.min(LONGEST));
    Hold { why, until: now + minutes * MINUTE, level, active: true, as_receiver }
}

/// How a worker ended, in the past tense.
fn how(cause: Cause) -> String {
    match cause {
        Cause::Panic => "panicked".to_owned(),
        Cause::Stuck => "hung".to_owned(),
        Cause::Signal(number) => format!("died by signal {number}"),
        Cause::Stopped => "ended".to_owned(),
    }
}
