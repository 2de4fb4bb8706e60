//! Floods from rings that go on in the next turn.
//!
//! The frame stays in its ring, where its guest may write another one in its place. So the decision
//! on it, and the count of receivers that have it, hold for the judged bytes only. A hash with a
//! secret key recognises these bytes. It is made of a private copy, which is also the copy that is
//! delivered.

use std::{
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

use butterfly_vhost::ring::Frames;

use super::{halves::FormerHalf, walk::Walked};
use crate::engine::place::PollSource;
use crate::stages::filter::Judged;

/// Most rings with such a flood. With more, the flood of the first of them is judged again in its
/// next turn.
const MOST: usize = 64;

struct Flood {
    source: PollSource,
    print: u64,
    judged: Judged,
}

impl Parcel {
    /// Returns whether it is of this ring.
    pub fn is_of(&self, source: PollSource) -> bool {
        self.source == source
    }
}

/// Floods of a worker.
pub(super) struct UnderWay(Vec<Flood>);

/// One key for all workers: a flood goes on where its ring goes.
static KEY: OnceLock<RandomState> = OnceLock::new();

/// State of a ring that a worker leaves for the next one that has it.
pub(crate) struct Parcel {
    source: PollSource,
    /// Number of receivers that have the first waiting frame, a flood.
    flooded: u32,
    flood: Option<Flood>,
    /// The half of the uplink by which it sent of late.
    pub(super) former: Option<FormerHalf>,
}

/// Returns the hash that recognises the first frame's bytes; `None` if the frame is too long to be
/// copied.
#[cold]
pub(super) fn print(frames: &mut Frames<'_>) -> Option<u64> {
    let bytes = frames.keep(0)?;
    Some(KEY.get_or_init(RandomState::new).hash_one(bytes))
}

impl UnderWay {
    pub fn new() -> UnderWay {
        KEY.get_or_init(RandomState::new); // made now, not for the first frame
        UnderWay(Vec::with_capacity(MOST))
    }

    /// Resumes the first frame of a ring that had such a flood, of which `from` receivers have the
    /// frame. Returns the number of receivers that have this frame, and the decision on it.
    #[cold]
    pub fn resume(
        &self,
        source: PollSource,
        from: usize,
        frames: &mut Frames<'_>,
    ) -> (usize, Option<Judged>) {
        match self.0.iter().find(|flood| flood.source == source) {
            Some(flood) if print(frames) == Some(flood.print) => (from, Some(flood.judged)),
            // Another frame: no receiver has it.
            Some(_) => (0, None),
            None => (from, None),
        }
    }

    /// Notes the end of a turn of such a ring.
    #[cold]
    pub fn note(&mut self, source: PollSource, walked: &Walked) {
        self.0.retain(|flood| flood.source != source);
        if let (Some(print), Some(judged)) = (walked.print, walked.judged) {
            self.put(Flood { source, print, judged });
        }
    }

    fn put(&mut self, flood: Flood) {
        if self.0.len() == MOST {
            self.0.remove(0); // maybe of a ring that is gone
        }
        self.0.push(flood);
    }

    /// Takes what the next worker needs that has the ring, of whose first frame so many receivers
    /// have a copy.
    pub fn pack(&mut self, source: PollSource, flooded: u32) -> Parcel {
        let at = self.0.iter().position(|flood| flood.source == source);
        let flood = at.map(|at| self.0.swap_remove(at));
        Parcel { source, flooded, flood, former: None }
    }

    /// Takes over what the worker before had. Returns how many receivers have the first frame.
    pub fn unpack(&mut self, parcel: Parcel) -> u32 {
        parcel.flood.into_iter().for_each(|flood| self.put(flood));
        parcel.flooded
    }
}
