//! Has frames leave by another network. This stage exists for tests alone, to show what a router
//! will do: it chooses the network by which a frame leaves, and rewrites its header.

use crate::engine::{batch::Batch, reason::ReasonInfo};
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};

/// Type of the frames that cross (IEEE 802, local experimental EtherType 2).
const CROSSES: [u8; 2] = [0x88, 0xb6];
/// Source address of frames that crossed.
const SOURCE: [u8; 6] = [0x02, 0xcc, 0, 0, 0, 0];

/// Passes experimental frames of network 2n on to network 2n + 1.
pub(crate) struct Crossover;

impl Stage for Crossover {
    const NAME: &'static str = "crossover";
    const REASONS: &'static [ReasonInfo] = &[];
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        crossover(batch, context);
    }
}

#[inline(never)] // one call per batch; measurements tell stages apart by it
fn crossover(batch: &mut Batch<'_>, context: &Context<'_>) {
    let Some(exit) = context.snapshot.network_ref(context.entry.vni | 1) else { return };
    for index in 0..batch.frames.len() {
        if batch.frames.head(index).get(12..14) == Some(&CROSSES) {
            batch.cross(index, exit);
            batch.rewrite(index, |head| {
                if let Some(source) = head.get_mut(6..12) {
                    source.copy_from_slice(&SOURCE);
                }
            });
        }
    }
}
