//! DHCP without a rule (RFC 2131, RFC 8415): a client's requests leave, and their answers enter; a
//! server answers clients whose requests a rule let in.
//!
//! Both are bounded: in the messages that pass (whole ones, a few requests per second, a few
//! answers to each) and in the memory for them. That memory is a vnic's own, so no other vnic fills
//! it.
//!
//! A message is judged from a private copy of its whole frame (`Frames::keep`), from which it is
//! delivered, too. The worker that serves a vnic's transmit ring opens exchanges and takes tokens;
//! workers that deliver to it count answers and note servers and requests, without a lock: see
//! [`Exchange`]. A broadcast answer is decided once, by the MAC address in it, when its sender is
//! judged.

use std::{net::Ipv4Addr, sync::atomic::Ordering::Relaxed};

use butterfly_packet::protocol::UDP;

use crate::stages::filter::reasons::{EGRESS_DENIED, SPOOFED_IP};

use crate::engine::{mac::number, pace::Pace, reason::DropReason};
use crate::ip::{
    Address, BAD_DHCP, DHCP_LIMIT, Dhcp, Tuple,
    dhcp::{Message, SERVERS_V6},
    discovery::is_link_local,
    mapped,
};
use crate::stages::{claims::has_link_local, context::Context};
use crate::world::snapshot::Vnic;

/// Requests that a rule lets out, at once and per second. A server has few places for clients, and
/// no vnic may push others out of them.
const RULED: u32 = 64;
const RULED_PER_SECOND: u32 = 16;
/// Requests of vnics without a filter that a server notes, at once (a quarter of its places) and
/// per second.
const UNFILTERED: u32 = CLIENTS as u32 / 4;
const UNFILTERED_PER_SECOND: u32 = 64;
/// Seconds between requests to a server while none is known: a client that is older than the daemon
/// renews its lease.
const UNKNOWN_SERVER: u32 = 60;
use crate::world::dhcp::{CLIENTS, Exchange};

/// Returns the client for [`crate::world::dhcp`]: the address that answers over IPv6 are sent to.
fn client(dhcp: &Dhcp, tuple: &Tuple) -> Address {
    match (dhcp.v6, dhcp.request) {
        (false, _) => 0,
        (true, true) => tuple.source,
        (true, false) => tuple.destination,
    }
}

const BROADCAST: Address = mapped(Ipv4Addr::BROADCAST);

/// Returns the message of a request that a vnic sends for itself, from its own address or none.
fn for_itself(
    dhcp: &Dhcp,
    sender: &Vnic,
    source: Address,
    context: &Context<'_>,
) -> Result<Message, DropReason> {
    let own = if dhcp.v6 {
        has_link_local(sender, source, context)
    } else {
        source == mapped(Ipv4Addr::UNSPECIFIED)
    };
    if !own && !sender.rules.owns(source) {
        return Err(SPOOFED_IP);
    }
    dhcp.message.filter(|message| dhcp.v6 || message.mac == sender.mac).ok_or(BAD_DHCP)
}

/// Checks whether a filtered vnic may send a request without a rule.
pub(super) fn may_ask(
    dhcp: &Dhcp,
    sender: &Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> Result<(), DropReason> {
    for_itself(dhcp, sender, tuple.source, context)?;
    let (state, now) = (&sender.shared.dhcp, context.now);
    if state.family(dhcp.v6).tokens(now) == 0 {
        return Err(DHCP_LIMIT);
    }
    if dhcp.v6 {
        let local = is_link_local(tuple.source);
        return if local && tuple.destination == SERVERS_V6 { Ok(()) } else { Err(EGRESS_DENIED) };
    }
    let last = state.unknown.load(Relaxed);
    match tuple.destination {
        BROADCAST => Ok(()),
        server if state.knows(server as u32) => Ok(()),
        _ if !state.knows_none() => Err(EGRESS_DENIED),
        _ if last != 0 && now.wrapping_sub(last) < UNKNOWN_SERVER => Err(DHCP_LIMIT),
        _ => Ok(()),
    }
}

/// Returns whether a filtered vnic may send a request that a rule lets out: a few per second,
/// whatever the rule says.
pub(super) fn may_ask_by_rule(sender: &Vnic, context: &Context<'_>) -> bool {
    sender.shared.dhcp.ruled.take(context.now, RULED, RULED_PER_SECOND)
}

/// Returns whether a filtered vnic may send an answer: to a request that one of its rules for a
/// DHCP server let in.
pub(super) fn may_serve(dhcp: &Dhcp, sender: &Vnic, tuple: &Tuple, context: &Context<'_>) -> bool {
    request_of(dhcp, sender, tuple, context).is_some()
}

fn request_of<'a>(
    dhcp: &Dhcp,
    sender: &'a Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> Option<&'a Exchange> {
    let message = dhcp.message.filter(|message| reaches(dhcp, message, tuple.destination))?;
    let clients = sender.shared.dhcp.clients.get()?;
    let holds =
        |stamp: u32, cell: u32| stamp >= sender.since && stamp >= context.cells.taken_back(cell);
    clients.request(
        clients.hash(&message, client(dhcp, tuple)),
        context.now,
        context.timeouts().dhcp,
        holds,
    )
}

/// Returns whether an answer is sent to its client (RFC 2131, 4.1; RFC 8415, 18.3.10).
fn reaches(dhcp: &Dhcp, message: &Message, destination: Address) -> bool {
    if dhcp.v6 {
        return is_link_local(destination);
    }
    destination == BROADCAST
        || message.leases.iter().any(|lease| *lease != 0 && mapped((*lease).into()) == destination)
}

/// Returns whether a filtered vnic may receive an answer without a rule: to its own request of a
/// moment ago.
pub(super) fn may_answer(
    dhcp: &Dhcp,
    receiver: &Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> bool {
    exchange_of(dhcp, receiver, tuple, context).is_some()
}

fn exchange_of<'a>(
    dhcp: &Dhcp,
    receiver: &'a Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> Option<&'a Exchange> {
    let own = |message: &Message| dhcp.v6 || message.mac == receiver.mac;
    let message = dhcp.message.filter(|message| {
        !dhcp.request && own(message) && reaches(dhcp, message, tuple.destination)
    })?;
    receiver.shared.dhcp.family(dhcp.v6).exchange(
        message.transaction,
        context.now,
        context.timeouts().dhcp,
    )
}

/// Notes that a message left its sender.
pub(super) fn left(dhcp: &Dhcp, tuple: &Tuple, context: &Context<'_>) {
    let sender = context.sender;
    if sender.rules.bypass {
        return;
    }
    if !dhcp.request {
        if let Some(request) = request_of(dhcp, sender, tuple, context) {
            request.count();
        }
        return;
    }
    let Ok(message) = for_itself(dhcp, sender, tuple.source, context) else { return };
    let state = &sender.shared.dhcp;
    let opened = state.family(dhcp.v6).open(message.transaction, context.now);
    if opened && !dhcp.v6 && tuple.destination != BROADCAST && state.knows_none() {
        state.unknown.store(context.now, Relaxed);
    }
}

/// Notes that a message entered its receiver.
pub(super) fn entered(dhcp: &Dhcp, receiver: &Vnic, tuple: &Tuple, context: &Context<'_>) {
    if receiver.rules.bypass {
        return;
    }
    if dhcp.request {
        asked(dhcp, receiver, tuple, context);
    } else if let (Some(exchange), Some(message)) =
        (exchange_of(dhcp, receiver, tuple, context), &dhcp.message)
    {
        exchange.count();
        receiver.shared.dhcp.learn(message);
    }
}

/// Notes the client as one that may be answered, if a rule for a DHCP server let the request in.
fn asked(dhcp: &Dhcp, receiver: &Vnic, tuple: &Tuple, context: &Context<'_>) {
    let (Some(clients), Some(message)) = (receiver.shared.dhcp.clients.get(), &dhcp.message) else {
        return;
    };
    let serves = &receiver.rules.policy.serves;
    let Some(cell) =
        serves.admits(tuple.source, UDP, tuple.destination_port, &context.snapshot.members)
    else {
        return;
    };
    let (sender, now) = (context.sender, context.now);
    let take =
        |pace: &Pace, parts: u32| pace.take(now, UNFILTERED / parts, UNFILTERED_PER_SECOND / parts);
    let client_of = || if dhcp.v6 { tuple.source } else { number(message.mac).into() };
    let may = match &sender.shared.crowd {
        _ if !sender.rules.bypass => true,
        Some(crowd) => crowd.dhcp.take(client_of(), now, take),
        None => take(&sender.shared.dhcp.unfiltered, 1),
    };
    if may {
        clients.asked(
            clients.hash(message, client(dhcp, tuple)),
            context.now,
            (context.snapshot.version, cell),
        );
    }
}

/// Returns the vnic of the network that gets a flooded answer without a rule. There is one at most,
/// by its MAC address.
pub(super) fn flooded_to(dhcp: &Dhcp, tuple: &Tuple, context: &Context<'_>) -> Option<u32> {
    let mac = dhcp.message.filter(|_| !dhcp.request && !dhcp.v6)?.mac;
    let receiver =
        context.entry.macs.get(number(mac)).and_then(|slot| context.snapshot.vnics.get(slot))?;
    if receiver.rules.bypass || !may_answer(dhcp, receiver, tuple, context) {
        return None;
    }
    entered(dhcp, receiver, tuple, context);
    Some(receiver.place.slot)
}

/// Kind of a packet to a DHCP client's port. It is never taken for anything but the word of a DHCP
/// server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ToClient {
    /// From a server's port: it passes as the answer to a request, in one piece, or not at all.
    Answer,
    /// From another port, which many clients accept as well: it passes by a rule that names the
    /// client's port.
    Other,
}

/// Returns the kind of UDP, in fragments or not, that goes to the port of DHCP clients.
pub(super) fn to_client(tuple: &Tuple, v6: bool) -> Option<ToClient> {
    match Dhcp::between(tuple.source_port, tuple.destination_port, v6) {
        _ if tuple.protocol != UDP || !Dhcp::is_client(tuple.destination_port, v6) => None,
        Some(_) => Some(ToClient::Answer),
        None => Some(ToClient::Other),
    }
}
