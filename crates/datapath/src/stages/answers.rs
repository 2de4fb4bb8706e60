//! Answers of routers to what machines ask them.

use butterfly_packet::{arp, mac::Mac};

use crate::engine::{
    batch::{Batch, Consumed, Verdict},
    inside::Inside,
    mac::address,
    reason::drop_reasons,
};
use crate::ip::{frame::arp as read_arp, mapped};
use crate::stages::{
    context::Context,
    leave::{ANSWERS_PER_SECOND, Answer, Departures},
};

drop_reasons! { 11;
    /// A router's answer found no room: the machine asks more than it may.
    BORN_FULL = "born-full" {
        cause: "a machine that asks its gateway without end",
        remedy: "look at what the machine sends; a hundred answers a second are what it gets",
        charged: "the sender",
    }
}

/// Makes the answers to the frames of a batch that routers consumed.
#[cold]
#[inline(never)]
pub(crate) fn consume(batch: &Batch<'_>, context: &Context<'_>, departures: &mut Departures) {
    for (index, meta) in batch.metas().iter().enumerate() {
        let (Verdict::Consumed(Consumed::Arp), Inside::Arp(at)) = (meta.verdict, meta.inside)
        else {
            continue;
        };
        let Some(answer) = arp_answer(batch.frames.head(index), at, context) else { continue };
        let (pace, now) = (&context.sender.shared.answered, context.now);
        let mut kept = Answer::new();
        let room = pace.left(now, ANSWERS_PER_SECOND, ANSWERS_PER_SECOND) > 0;
        if room
            && kept.try_extend_from_slice(&answer).is_ok()
            && departures.answers.try_push(kept).is_ok()
        {
            pace.take(now, ANSWERS_PER_SECOND, ANSWERS_PER_SECOND);
        } else {
            context.count_drop(context.sender, BORN_FULL, &batch.frames, index);
        }
    }
}

/// Returns the answer to a request for a gateway's address. An answer gets none.
fn arp_answer(head: &[u8], at: u16, context: &Context<'_>) -> Option<[u8; arp::FRAME_LEN]> {
    let packet = read_arp(head, at).filter(|packet| packet.operation() == arp::REQUEST)?;
    let asked = packet.target_ip();
    let gateway = context.entry.routing.as_ref()?.by_address(mapped(asked))?;
    let asker = head.get(6..12)?.first_chunk().map(|mac| Mac(*mac))?;
    Some(arp::reply((asker, packet.sender_ip()), (address(gateway.mac), asked)))
}
