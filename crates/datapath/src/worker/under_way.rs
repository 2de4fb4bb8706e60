//! Floods from rings that go on in the next turn.
//!
//! The frame stays in its ring, where its guest may write another one in its place. So what was
//! decided of it, and that some receivers have it, holds for the bytes that were judged: they are
//! known again by a hash that the guest cannot know, made of a private copy, which is what is
//! delivered.

use std::hash::{BuildHasher, RandomState};

use butterfly_vhost::ring::Frames;

use super::walk::Walked;
use crate::{engine::place::PortRef, stages::filter::Judged};

/// Rings with one at a time. With more, what the first of them floods is judged anew in its next
/// turn.
const MOST: usize = 64;

struct Flood {
    place: PortRef,
    print: u64,
    judged: Judged,
}

/// Those of a worker.
pub(super) struct UnderWay(Vec<Flood>);

thread_local!(static KEY: RandomState = RandomState::new());

/// By what the first frame's bytes are known again; `None` if it is too long to be copied.
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

    /// The first frame of a ring some of whose floods' receivers, `from` of them, have it: how many
    /// have this one, and what was decided of it.
    #[cold]
    pub fn resume(
        &self,
        place: PortRef,
        from: usize,
        frames: &mut Frames<'_>,
    ) -> (usize, Option<Judged>) {
        match self.0.iter().find(|flood| flood.place == place) {
            Some(flood) if print(frames) == Some(flood.print) => (from, Some(flood.judged)),
            // Another frame: nobody has it.
            Some(_) => (0, None),
            None => (from, None),
        }
    }

    /// A turn of such a ring ended.
    #[cold]
    pub fn note(&mut self, place: PortRef, walked: &Walked) {
        self.0.retain(|flood| flood.place != place);
        if let (Some(print), Some(judged)) = (walked.print, walked.judged) {
            if self.0.len() == MOST {
                self.0.remove(0); // maybe of a ring that is gone
            }
            self.0.push(Flood { place, print, judged });
        }
    }
}
