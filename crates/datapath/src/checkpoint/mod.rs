//! Checkpoints: texts of what a daemon counted and learnt, with which its successor goes on after a
//! crash.
//!
//! There are three, each in a place of its own, since they are written at different times:
//! [`counters`] before each answer that tells any of them, [`stations`] and [`rules`] once per
//! second. Counters go by their names, vnics by their ids. So another release takes over what it
//! knows.
//!
//! A text is read like a guest's word. Each entry passes the checks that what it stands for passed
//! when it was new. What fails is counted by reason, and begins anew; nothing else does.

pub(crate) mod counters;
pub(crate) mod moved;
mod peers;
pub(crate) mod rules;
pub(crate) mod stations;
mod taken;

pub use taken::TakenOver;

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Serialize, de::DeserializeOwned};

use crate::endpoint::side::EndpointSide;
use crate::engine::writer::Writer;
use crate::plane::Plane;

/// A text for a successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The text, in JSON.
    pub text: Vec<u8>,
    /// Entries that found no room.
    pub left_out: usize,
}

/// Texts of a former process; an empty one is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Former<'a> {
    /// Its counters.
    pub counters: &'a [u8],
    /// Sessions that rules admitted.
    pub rules: &'a [u8],
    /// Addresses that it learnt.
    pub stations: &'a [u8],
}

/// Takes over what a former process noted. The caller shows that no worker counts yet.
pub(crate) fn take_over(
    plane: &Plane,
    side: Option<&EndpointSide>,
    worker: Writer<'_>,
    former: Former<'_>,
) -> TakenOver {
    let mut taken = TakenOver::default();
    if let Some(text) = read(former.counters, "counters", &mut taken) {
        counters::take_over(plane, side, worker, text, &mut taken);
    }
    if let Some(text) = read(former.rules, "rules", &mut taken) {
        rules::take_over(plane, text, &mut taken);
    }
    if let Some(text) = read(former.stations, "stations", &mut taken) {
        stations::take_over(plane, worker, text, &mut taken);
    }
    plane.forget_drop_rates();
    taken
}

/// Checks that texts of another process can be read here. Returns the reason if not.
pub fn check(former: Former<'_>) -> Result<(), String> {
    let mut taken = TakenOver::default();
    read::<counters::CountersText>(former.counters, "counters", &mut taken);
    read::<rules::RulesText>(former.rules, "rules", &mut taken);
    read::<stations::StationsText>(former.stations, "stations", &mut taken);
    taken.problems.into_iter().next().map_or(Ok(()), Err)
}

/// Numbers by name.
type Named = BTreeMap<Cow<'static, str>, u64>;

/// No counter comes that far. A larger one was forged.
const MOST: u64 = 1 << 62;

/// Returns the numbers that a counter may have.
fn sound<'a>(counts: &'a Named, taken: &mut TakenOver) -> Vec<(&'a str, u64)> {
    let (sound, forged): (Vec<_>, Vec<_>) =
        counts.iter().map(|(name, n)| (&**name, *n)).partition(|(_, n)| *n < MOST);
    forged.iter().for_each(|_| taken.refuse("impossible count"));
    sound
}

/// Checks that what was seen in a second is not to be forgotten yet.
fn is_recent(plane: &Plane, seen: u32) -> Result<(), &'static str> {
    match plane.shared.clock.now().checked_sub(seen) {
        _ if seen == 0 => Err("never seen"),
        None => Err("seen in the future"),
        Some(idle) if idle >= plane.shared.fdb.ageing() => Err("silent for too long"),
        Some(_) => Ok(()),
    }
}

/// A kind of text.
trait Text: Serialize + DeserializeOwned {
    /// Returns the number of its layout.
    fn layout(&self) -> u32;
}

fn read<T: Text>(text: &[u8], what: &'static str, taken: &mut TakenOver) -> Option<T> {
    if text.is_empty() {
        return None;
    }
    let read = serde_json::from_slice::<T>(text).map_err(|why| why.to_string());
    let read = read.and_then(|read| butterfly_layout::check(read.layout()).map(|()| read));
    read.map_err(|why| taken.problem(format!("the {what} were not read: {why}"))).ok()
}

/// Writes a text that fits `room` bytes. As long as it does not, `shrink` leaves out about as many
/// of so many parts in a thousand as the second number says, and returns the number of entries that
/// are left out by now.
fn fitting<T: Text>(
    mut text: T,
    room: usize,
    mut shrink: impl FnMut(&mut T, usize) -> usize,
) -> Noted {
    let mut left_out = 0;
    loop {
        // Texts hold no maps but by names, so they can be written.
        let bytes = serde_json::to_vec(&text).unwrap_or_default();
        if bytes.len() <= room {
            return Noted { text: bytes, left_out };
        }
        let before = left_out;
        left_out = shrink(&mut text, room.saturating_mul(950) / bytes.len());
        if left_out == before {
            return Noted { text: Vec::new(), left_out };
        }
    }
}
