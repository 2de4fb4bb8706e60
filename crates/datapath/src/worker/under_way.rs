//! Floods from rings that go on in the next turn.
//!
//! The frame stays in its ring, where its guest may write another one in its place. So the decision
//! on it, and the count of receivers that have it, hold for the judged bytes only. A hash with a
//! secret key recognises these bytes. It is made of a private copy, which is also the copy that is
//! delivered.

use std::hash::{BuildHasher, RandomState};

use butterfly_vhost::ring::Frames;

use super::walk::Walked;
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

/// Floods of a worker.
pub(super) struct UnderWay(Vec<Flood>);

thread_local!(static KEY: RandomState = RandomState::new());

/// Returns the hash that recognises the first frame's bytes; `None` if the frame is too long to be
/// copied.
#[cold]
pub(super) fn print(frames: &mut Frames<'_>) -> Option<u64> {
    let bytes = frames.keep(0)?;
    KEY.with(|key| Some(key.hash_one(bytes)))
}

impl UnderWay {
    pub fn new() -> UnderWay {
        KEY.with(|_| ()); // made now, not for the first frame
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
            if self.0.len() == MOST {
                self.0.remove(0); // maybe of a ring that is gone
            }
            self.0.push(Flood { source, print, judged });
        }
    }
}
