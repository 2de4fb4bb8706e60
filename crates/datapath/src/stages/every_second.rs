//! Drops every second frame. This stage exists for tests alone, to show that a stage is one file
//! and one line of the pipeline.

use crate::engine::{
    batch::{Batch, Verdict},
    reason::{ReasonInfo, drop_reasons},
};
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};

drop_reasons! { 9;
    /// The frame is the second of two.
    SECOND = "second" {
        cause: "a build that is made for tests",
        remedy: "build without the feature every-second",
        charged: "the sender",
    }
}

/// Drops every second frame of each worker.
pub(crate) struct EverySecond;

impl Stage for EverySecond {
    const NAME: &'static str = "every_second";
    const REASONS: &'static [ReasonInfo] = REASONS;
    /// True if the next frame is a second one.
    type Scratch = bool;

    fn scratch(_: &StageConfig<'_>) -> bool {
        false
    }

    fn run(batch: &mut Batch<'_>, context: &Context<'_>, second: &mut bool) {
        every_second(batch, context, second);
    }
}

#[inline(never)] // one call per batch; measurements tell stages apart by it
fn every_second(batch: &mut Batch<'_>, context: &Context<'_>, second: &mut bool) {
    let undecided = batch.parts().1.iter_mut().filter(|meta| meta.verdict == Verdict::Undecided);
    for meta in undecided {
        if std::mem::replace(second, !*second) {
            meta.verdict = Verdict::Drop(SECOND, context.sender.place.slot);
        }
    }
}
