//! Stage: the common interface of the stages of the packet path.

use crate::engine::{batch::Batch, reason::ReasonInfo};
use crate::session::Timeouts;
use crate::stages::context::Context;

/// A stage: decides one thing about the frames of a batch.
///
/// A stage skips frames that an earlier one dropped. Facts about each frame that a later stage asks
/// for are in its scratch, which has public functions for that.
pub(crate) trait Stage {
    /// Name in explanations and in counts of instructions: that of its module, and of the function
    /// in it which is kept out of line.
    const NAME: &'static str;
    /// Reasons for which it drops frames.
    const REASONS: &'static [ReasonInfo];
    /// Memory of a stage from batch to batch, one for each worker.
    type Scratch;

    /// Allocates everything that the stage will ever need.
    fn scratch(config: &StageConfig) -> Self::Scratch;

    /// Gives a scratch other settings, between two batches. Never allocates.
    fn retime(scratch: &mut Self::Scratch, config: &StageConfig) {
        let _ = (scratch, config);
    }

    /// Decides. Never allocates, waits or does I/O.
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, scratch: &mut Self::Scratch);
}

/// Settings for which scratches are made, and which may change later.
pub(crate) struct StageConfig<'a> {
    /// Time-outs of sessions and fragments.
    pub timeouts: &'a Timeouts,
}
