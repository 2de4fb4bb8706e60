//! Stage: what the stages of the packet path have in common.

use crate::{
    engine::{batch::Batch, reason::ReasonInfo},
    session::Timeouts,
    stages::site::Context,
};

/// A stage: decides one thing about the frames of a batch.
///
/// A stage skips frames that an earlier one dropped. What a stage knows of each frame and a later
/// one asks for is in its scratch, which has public functions for that.
pub(crate) trait Stage {
    /// Name in explanations and in counts of instructions: that of its module, and of the function
    /// in it which is kept out of line.
    const NAME: &'static str;
    /// Why it drops frames.
    const REASONS: &'static [ReasonInfo];
    /// What it needs from batch to batch, one for each worker.
    type Scratch;

    /// Allocates everything that the stage will ever need.
    fn scratch(config: &StageConfig) -> Self::Scratch;

    /// Decides. Never allocates, waits or does I/O.
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, scratch: &mut Self::Scratch);
}

/// What scratches are made for.
pub(crate) struct StageConfig<'a> {
    /// How long sessions and fragments last.
    pub timeouts: &'a Timeouts,
}
