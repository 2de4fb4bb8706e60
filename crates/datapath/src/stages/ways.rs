//! Ways: the networks by which the frames of a batch leave, for what goes to a whole network.

use crate::engine::batch::Exits;
use crate::stages::context::Context;
use crate::world::snapshot::Network;

/// A network by which some frames of a batch leave.
pub(crate) struct Way<'a, F> {
    pub exit: &'a Network,
    /// Returns whether a frame leaves by it.
    pub has: F,
}

/// Returns the next network by which frames of a batch leave: first the one by which they came,
/// then those to which some crossed. `left` begins with `None` and keeps a bit for each frame that
/// is still to come.
#[inline(always)]
pub(crate) fn next_way<'a>(
    left: &mut Option<u64>,
    exits: Exits<'_>,
    context: &Context<'a>,
) -> Option<Way<'a, impl Fn(usize) -> bool + use<'a>>> {
    let (exit, frames) = match left {
        None => (context.entry, !*left.insert(exits.crossed())),
        Some(0) => return None,
        Some(left) => of_first(left, exits, context),
    };
    let has = move |index: usize| frames.wrapping_shr(index as u32) & 1 == 1;
    Some(Way { exit, has })
}

/// Takes the frames that leave by the same network as the first that is left.
#[cold]
#[inline(never)]
fn of_first<'a>(left: &mut u64, exits: Exits<'_>, context: &Context<'a>) -> (&'a Network, u64) {
    let first = left.trailing_zeros() as usize;
    let is_same =
        |index: &u32| *left >> index & 1 == 1 && exits.of(*index as usize) == exits.of(first);
    let frames = (0..u64::BITS).filter(is_same).fold(0, |frames, index| frames | 1 << index);
    *left &= !frames;
    (context.exit(exits, first), frames)
}
