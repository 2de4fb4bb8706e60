//! Looks up the session of a decided frame once more, for the tap. So the decision itself has
//! nothing to remember.

use crate::engine::{
    batch::{Batch, Verdict},
    inside::Inside,
};
use crate::ip::parse::parse;
use crate::session::Key;
use crate::stages::{
    context::Context,
    filter::{far_end, zone_of},
};

/// Returns the rules that admitted the session of a frame, at the opener's egress and at the other
/// end's ingress. Also returns whether the frame is for the opener.
pub(crate) fn session_of(
    batch: &Batch<'_>,
    index: usize,
    context: &Context<'_>,
) -> Option<([u32; 2], bool)> {
    let exit = context.exit(batch.exits(), index);
    if !context.entry.filtered && !exit.filtered {
        return None;
    }
    let meta = batch.metas().get(index)?;
    let receiver = match meta.verdict {
        Verdict::Deliver(slot) => slot,
        Verdict::Tunnel(_) | Verdict::Flood { unknown: true } => {
            far_end(batch.exits(), index, context)?.slot
        }
        _ => return None,
    };
    let Inside::Ip { at, vlan } = meta.inside else { return None };
    let len = batch.frames.frames().get(index)?.len;
    let packet = parse(batch.frames.head(index), at.into(), vlan, len).ok()?;
    let other = context.snapshot.vnics.get(receiver)?;
    let zone = zone_of(batch.exits().is_routed(index), other, context);
    let key = Key::new(&packet.tuple, zone, context.sender.place.slot, receiver);
    let found = context.table.lookup(context.table.hash(&key), &key)?;
    Some((found.admission.cells, found.direction == 1))
}
