//! Answers of routers, and of networks that lease addresses: to what machines ask them, and about
//! packets that go no further (RFC 792; RFC 1812, 4.3).

use butterfly_packet::{
    arp, echo,
    icmp::v6,
    icmp_error::{self, of_router},
    mac::Mac,
    neighbour,
};

use butterfly_vhost::ring::HEAD;

use crate::engine::{
    batch::{Batch, Consumed, Meta, Verdict},
    inside::Inside,
    mac::address,
    reason::{DropReason, drop_reasons},
};
use crate::ip::{L4, frame::arp as read_arp, mapped};
use crate::stages::{
    context::Context,
    filter::read::read as read_packet,
    leases, leases6,
    leave::{ANSWERS, ANSWERS_PER_SECOND, Answer, Departures},
    route::{error_about, refused},
};
use crate::world::rules::address as ip_of;

drop_reasons! { 11;
    /// A router's answer found no room: the machine asks more than it may.
    BORN_FULL = "born-full" {
        cause: "a machine that asks its gateway without end",
        remedy: "look at what the machine sends: it gets a hundred answers a second, and sixteen for frames that it sends at once",
        charged: "the sender",
    }
}

/// Answers of each second that are kept for ARP and neighbour discovery: a machine that pings its
/// gateway without end still finds it.
const FOR_NEIGHBOURS: u32 = ANSWERS_PER_SECOND / 5;

/// Makes the answers to the frames of a batch that routers consumed, or could not pass on.
#[cold]
#[inline(never)]
pub(crate) fn consume(batch: &mut Batch<'_>, context: &Context<'_>, departures: &mut Departures) {
    let mut open = batch.answers;
    while open != 0 {
        let index = open.trailing_zeros() as usize;
        open &= open - 1;
        let Some(meta) = batch.metas().get(index).copied() else { return };
        let (pace, now) = (&context.sender.shared.answered, context.now);
        let room = (&mut *departures.answers, BORN_FULL);
        let served = match meta.verdict {
            Verdict::Consumed(Consumed::Dhcp) => {
                Some(leases::serve(batch, (&meta, index), context, room))
            }
            Verdict::Consumed(Consumed::Dhcp6) => {
                Some(leases6::serve(batch, (&meta, index), context, room))
            }
            Verdict::Consumed(Consumed::Solicitation) => {
                Some(match pace.left(now, ANSWERS_PER_SECOND, ANSWERS_PER_SECOND) {
                    0..=FOR_NEIGHBOURS => Err(BORN_FULL),
                    _ => {
                        pace.take(now, ANSWERS_PER_SECOND, ANSWERS_PER_SECOND);
                        leases6::advertise(batch, (&meta, index), context, room)
                    }
                })
            }
            _ => None,
        };
        if let Some(served) = served {
            if let Err(reason) = served {
                refuse(batch, index, reason, context);
            }
            continue;
        }
        // Many machines are behind a wire.
        let most = ANSWERS_PER_SECOND * if context.sender.is_wire() { 10 } else { 1 };
        let left = pace.left(now, most, most);
        let (answer, reserve) = match meta.verdict {
            Verdict::Consumed(Consumed::Arp) => (arp_answer(batch, &meta, index, context), 0),
            Verdict::Consumed(Consumed::Discovery) => {
                (discovery_answer(batch, &meta, index, context), 0)
            }
            Verdict::Consumed(Consumed::Echo) => (echo_answer(batch, index), FOR_NEIGHBOURS),
            // What is not sent is not written either: there may be many.
            Verdict::Drop(..) if left <= FOR_NEIGHBOURS => continue,
            Verdict::Drop(reason, _) => {
                (error(batch, &meta, (index, reason), context), FOR_NEIGHBOURS)
            }
            _ => continue,
        };
        let Some(answer) = answer else { continue };
        let room = left > reserve && departures.answers.len() < ANSWERS;
        if room && departures.answers.try_push(answer).is_ok() {
            pace.take(now, most, most);
        } else if matches!(meta.verdict, Verdict::Consumed(_)) {
            refuse(batch, index, BORN_FULL, context);
        }
    }
}

/// Drops a frame that gets no answer.
fn refuse(batch: &mut Batch<'_>, index: usize, reason: DropReason, context: &Context<'_>) {
    context.count_drop(context.sender, reason, &batch.frames, index);
    if let Some(meta) = batch.parts().1.get_mut(index) {
        meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
    }
}

/// Returns the answer to a request for a gateway's address. An answer gets none.
fn arp_answer(
    batch: &Batch<'_>,
    meta: &Meta,
    index: usize,
    context: &Context<'_>,
) -> Option<Answer> {
    let Inside::Arp(at) = meta.inside else { return None };
    let head = batch.frames.head(index);
    let packet = read_arp(head, at).filter(|packet| packet.operation() == arp::REQUEST)?;
    let asked = packet.target_ip();
    let own = context.entry.routing.as_ref()?.answers_for(mapped(asked))?;
    let asker = head.get(6..12)?.first_chunk().map(|mac| Mac(*mac))?;
    kept(&arp::reply((asker, packet.sender_ip()), (address(own), asked)))
}

/// Returns the answer to an echo request, which is what was sent and not what the machine makes of
/// it meanwhile.
fn echo_answer(batch: &mut Batch<'_>, index: usize) -> Option<Answer> {
    let len = echo::request(batch.frames.head(index))?;
    let mut answer = kept(batch.frames.keep(index)?.get(..len)?)?;
    echo::answer(&mut answer)?;
    Some(answer)
}

/// Returns the answer to a solicitation of a gateway. An advertisement gets none.
fn discovery_answer(
    batch: &mut Batch<'_>,
    meta: &Meta,
    index: usize,
    context: &Context<'_>,
) -> Option<Answer> {
    let Inside::Ip { at, vlan } = meta.inside else { return None };
    let len = batch.frames.frames().get(index)?.len;
    let packet = read_packet(batch, index, at, vlan, len).ok()?;
    let L4::Discovery(found) = packet.l4 else { return None };
    if found.kind != v6::NEIGHBOUR_SOLICITATION {
        return None;
    }
    let own = context.entry.routing.as_ref()?.answers_for(found.target)?;
    let asker = (address(meta.source), found.source.into());
    kept(&neighbour::advertisement(asker, (address(own), found.target.into())))
}

/// Returns the error about a packet that goes no further, if it gets one.
fn error(
    batch: &mut Batch<'_>,
    meta: &Meta,
    (index, reason): (usize, DropReason),
    context: &Context<'_>,
) -> Option<Answer> {
    let packet = refused(batch.frames.head(index), (meta, reason), context)?;
    let error = error_about(reason, packet.inner, packet.mtu)?;
    let routing = context.entry.routing.as_ref()?;
    let from = ip_of(routing.address_for(packet.gateway, packet.source)?);
    let quoted = match batch.frames.keep(index) {
        // As much as fits (RFC 4443, 2.4 c).
        Some(whole) if from.is_ipv6() => whole,
        // No more than is at hand for every frame.
        _ => {
            let head = batch.frames.head(index);
            head.get(..HEAD).unwrap_or(head)
        }
    };
    let mut bytes = [0; icmp_error::MAX_LEN];
    let len = of_router(quoted, (address(packet.gateway.mac), from), error, &mut bytes)?;
    kept(bytes.get(..len)?)
}

fn kept(bytes: &[u8]) -> Option<Answer> {
    let mut answer = Answer::new();
    answer.try_extend_from_slice(bytes).ok()?;
    Some(answer)
}
