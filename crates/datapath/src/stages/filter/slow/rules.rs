//! Rules, and what passes without one: discovery, DHCP, messages for routers.

use crate::engine::reason::DropReason;
use crate::ip::{
    Address, BAD_DISCOVERY, DHCP_LIMIT, DISCOVERY_LIMIT, Dhcp, L4, Packet, discovery, is_v4, mapped,
};
use crate::session::Zone;
use crate::stages::claims::{IP_CLAIMED, has_link_local, is_claimed};
use crate::stages::context::Context;
use crate::stages::filter::dhcp::{self, ToClient};
use crate::stages::filter::reasons::{EGRESS_DENIED, FOR_ROUTERS, INGRESS_DENIED, SPOOFED_IP};
use crate::world::bindings::Voice;
use crate::world::routing::Routing;
use crate::world::snapshot::{PortKind, Vnic};
use butterfly_packet::icmp::{v4, v6};
use butterfly_packet::protocol::{ICMP, ICMPV6, IGMP, UDP};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// All routers, and all IGMPv3 routers.
const TO_ROUTERS: [Address; 2] =
    [mapped(Ipv4Addr::new(224, 0, 0, 2)), mapped(Ipv4Addr::new(224, 0, 0, 22))];

/// Messages of discovery that a filtered vnic may send without a rule, at once and per second. Most
/// of them are answers: a machine that asks without end has only its part of the answers.
const DISCOVERIES: u32 = 1024;

const DISCOVERIES_PER_SECOND: u32 = 256;

/// Checks whether a sender may send a packet. Returns the cell of the rule that admits it. The
/// caller asks once for each packet, as a packet without a rule takes a token.
pub(super) fn leaves(
    sender: &Vnic,
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, (DropReason, u32)> {
    let refused = |reason| (reason, sender.place.slot);
    if sender.rules.bypass {
        return by_rules_leaves(sender, packet, false, context).map_err(refused);
    }
    match &packet.l4 {
        L4::Discovery(found) => {
            let own =
                |address| sender.rules.owns(address) || has_link_local(sender, address, context);
            if discovery::may_send(found, sender.mac, sender.rules.ip_anti_spoof, own) {
                let may =
                    sender.shared.discovery.take(found.to.into(), context.now, |pace, parts| {
                        pace.take(context.now, DISCOVERIES / parts, DISCOVERIES_PER_SECOND / parts)
                    });
                return if may { Ok(0) } else { Err(refused(DISCOVERY_LIMIT)) };
            }
            // Messages of routers, for a vnic that a rule lets be a router: from its own address,
            // about its own link address.
            let own = own(found.source);
            let honest = found.link_source.is_none_or(|mac| mac == sender.mac);
            let routers =
                matches!(found.kind, v6::ROUTER_ADVERTISEMENT | v6::REDIRECT | v6::LISTENER_QUERY);
            let allowed = if routers && found.valid && own && honest {
                by_router(sender, packet, context)
            } else {
                None
            };
            allowed.ok_or(refused(BAD_DISCOVERY))
        }
        L4::Dhcp(found) if found.request => {
            match dhcp::may_ask(found, sender, &packet.tuple, context) {
                Ok(()) => Ok(0),
                Err(reason) => match by_rules_leaves(sender, packet, false, context) {
                    Ok(_) if !dhcp::may_ask_by_rule(sender, context) => Err(refused(DHCP_LIMIT)),
                    ruled => ruled.map_err(|_| refused(reason)),
                },
            }
        }
        L4::Dhcp(found) => {
            // A DHCPv6 server answers from its link-local address.
            let local = found.v6 && has_link_local(sender, packet.tuple.source, context);
            if !local && !sender.rules.owns(packet.tuple.source) {
                return Err(refused(SPOOFED_IP));
            }
            if dhcp::may_serve(found, sender, &packet.tuple, context) {
                Ok(0)
            } else {
                Err(refused(EGRESS_DENIED))
            }
        }
        _ => by_rules_leaves(sender, packet, false, context).map_err(refused),
    }
}

/// Returns the cell of a rule that names a router's message, for a vnic that was declared a router.
fn by_router(sender: &Vnic, packet: &Packet, context: &Context<'_>) -> Option<u32> {
    if sender.rules.router { by_name(sender, packet, context) } else { None }
}

/// Returns the cell of an OUTBOUND rule that names the protocol and port. A rule for everything
/// does not mean infrastructure.
fn by_name(sender: &Vnic, packet: &Packet, context: &Context<'_>) -> Option<u32> {
    let tuple = &packet.tuple;
    sender.rules.policy.names.admits(
        tuple.destination,
        tuple.protocol,
        rule_port(packet),
        &context.snapshot.members,
    )
}

/// Returns the cell of the rule by which a packet may leave its sender. `routed`: a router passes
/// it on.
pub(super) fn by_rules_leaves(
    sender: &Vnic,
    packet: &Packet,
    routed: bool,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    let (rules, tuple) = (&sender.rules, &packet.tuple);
    may_speak_as(sender, tuple.source, routed, context)?;
    if rules.bypass {
        return Ok(0);
    }
    let allowed = match (dhcp::to_client(tuple, !is_v4(tuple.source)), &rules.policy.egress) {
        (Some(ToClient::Answer), _) => None,
        (Some(ToClient::Other), _) => by_name(sender, packet, context),
        _ if is_router_message(packet) => by_router(sender, packet, context),
        (None, None) => Some(0),
        (None, Some(egress)) => egress.admits(
            tuple.destination,
            tuple.protocol,
            rule_port(packet),
            &context.snapshot.members,
        ),
    };
    allowed.ok_or(EGRESS_DENIED)
}

/// Checks whether a receiver lets a packet in. Returns the cell of the rule that admits it.
pub(super) fn enters(
    receiver: &Vnic,
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    match &packet.l4 {
        L4::Dhcp(found)
            if !receiver.rules.bypass
                && dhcp::may_answer(found, receiver, &packet.tuple, context) =>
        {
            Ok(0)
        }
        _ => by_rules_or_discovery(receiver, packet, context),
    }
}

/// Checks a flood as [`enters`] does, except a DHCP answer, which was decided before.
pub(super) fn by_rules_or_discovery(
    receiver: &Vnic,
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    let free = receiver.rules.bypass
        || matches!(&packet.l4, L4::Discovery(found) if discovery::may_receive(found));
    if free { Ok(0) } else { by_rules_enters((context.sender, receiver), packet, context) }
}

pub(super) fn by_rules_enters(
    (sender, receiver): (&Vnic, &Vnic),
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    let rules = &receiver.rules;
    if rules.bypass {
        return Ok(0);
    }
    let tuple = &packet.tuple;
    let ingress = &rules.policy.ingress;
    let (peer, protocol, port) = (tuple.source, tuple.protocol, rule_port(packet));
    let admitted = match is_from_outside((sender, peer), receiver, context) {
        true => ingress.admits_stranger(peer, protocol, port),
        false => ingress.admits(peer, protocol, port, &context.snapshot.members),
    };
    admitted.ok_or_else(|| if is_to_all_routers(packet) { FOR_ROUTERS } else { INGRESS_DENIED })
}

/// Returns whether a packet comes from the outside of an external: nobody there is a member of a
/// group, as anybody there may write a member's address as the source.
pub(crate) fn is_from_outside(
    (sender, source): (&Vnic, Address),
    receiver: &Vnic,
    context: &Context<'_>,
) -> bool {
    // By another host, if a router of the receiver's network leads there so.
    let is_far = || {
        let network = context.snapshot.networks.get(receiver.network);
        let routing = network.and_then(|network| network.routing.as_ref());
        routing.is_some_and(|routing| routing.overs(source).next().is_some())
    };
    let is_outside = || {
        let network = context.snapshot.networks.get(sender.network);
        network
            .and_then(|network| network.routing.as_ref())
            .is_some_and(|routing| routing.outside.is_some())
    };
    sender.is_wire() || sender.vni != receiver.vni && is_outside() || sender.is_trunk() && is_far()
}

/// Returns the decisions of the rules at both ends on a packet by itself, without its session.
pub(crate) fn rules_say(
    packet: &Packet,
    receiver: &Vnic,
    zone: Zone,
    context: &Context<'_>,
) -> [Result<u32, DropReason>; 2] {
    if zone.is_routed() {
        return [
            by_rules_leaves(context.sender, packet, true, context),
            by_rules_enters((context.sender, receiver), packet, context),
        ];
    }
    [
        leaves(context.sender, packet, context).map_err(|(reason, _)| reason),
        enters(receiver, packet, context),
    ]
}

/// Returns the port that rules are about.
pub(crate) fn rule_port(packet: &Packet) -> u16 {
    match packet.tuple.protocol {
        ICMP | ICMPV6 => 0,
        _ => packet.tuple.destination_port,
    }
}

/// Returns whether a packet is UDP between the ports of DHCP, in fragments or not.
pub(super) fn is_dhcp(packet: &Packet) -> bool {
    let tuple = &packet.tuple;
    tuple.protocol == UDP
        && Dhcp::between(tuple.source_port, tuple.destination_port, !is_v4(tuple.source)).is_some()
}

/// Returns whether a packet is one that every machine multicasts to routers when it starts: a
/// router solicitation (RFC 4861, 6.3.7), or a report of its groups (RFC 3376, 4.2.14, and RFC
/// 2236, 3). Queries of routers have other destinations, and a packet that came through a router is
/// not valid.
fn is_to_all_routers(packet: &Packet) -> bool {
    let destination = packet.tuple.destination;
    match &packet.l4 {
        L4::Discovery(found) => {
            found.valid
                && found.kind == v6::ROUTER_SOLICITATION
                && discovery::is_multicast(destination)
        }
        _ => packet.tuple.protocol == IGMP && TO_ROUTERS.contains(&destination),
    }
}

/// Returns whether a packet is a message of IPv4 routers to hosts. IPv6 routers' messages are told
/// apart before.
fn is_router_message(packet: &Packet) -> bool {
    matches!(packet.l4, L4::Icmp { kind: v4::REDIRECT | v4::ROUTER_ADVERTISEMENT, .. } if packet.tuple.protocol == ICMP)
}

/// Checks whether a vnic, or the trunk, may send packets from an address. `routed`: a router passes
/// them on.
pub(super) fn may_speak_as(
    vnic: &Vnic,
    address: Address,
    routed: bool,
    context: &Context<'_>,
) -> Result<(), DropReason> {
    // Nobody here is a gateway; those of other hosts have its address, too.
    let network = context.snapshot.networks.get(vnic.network);
    let routing = network.and_then(|network| network.routing.as_ref());
    let is_gateway = |routing: &Arc<Routing>| routing.answers_for(address).is_some();
    match vnic.rules.bypass {
        _ if matches!(vnic.kind, PortKind::Router) => Ok(()), // of this host
        false if vnic.rules.owns(address) => Ok(()),
        false => Err(SPOOFED_IP),
        // From inside to an address of this host: `route` lets nobody else pass with one.
        true if routed && vnic.is_wire() && routing.is_some_and(is_gateway) => Ok(()),
        true if !vnic.is_trunk() && routing.is_some_and(is_gateway) => Err(IP_CLAIMED),
        true if vnic.rules.forwards || !is_claimed(vnic, address, Voice::Speaking, context) => {
            Ok(())
        }
        true => Err(IP_CLAIMED),
    }
}
