//! Outsides: which packets enter from the outside of an external, and which leave by it.
//!
//! A source inside does not come from outside (RFC 2827), nothing passes from one outside to
//! another, and IPv4 leaves untranslated only from public networks.

use crate::engine::reason::{DropReason, drop_reasons};
use crate::ip::{Address, is_v4};
use crate::stages::{context::Context, course::is_host};
use crate::world::{
    outside::Outside,
    routing::{Gateway, Joined, Routing},
    ways::Leads,
};

drop_reasons! { 14;
    /// The packet came from the outside of an external, from an address inside: one that the router
    /// reaches by another network.
    INSIDE_SOURCE = "inside-source" {
        cause: "somebody outside who forges an address of your networks; or a network that is reached by the external and declared here as well",
        remedy: "nothing if it is forged; else compare the packet's source with `butterfly network list` and `butterfly route list`, and give one of the two networks another block",
        charged: "the wire of the external, or the vnic that is its outside",
    }
    /// IPv4 to the outside of an external that no rule translates, from a network that is not
    /// public: no answer would come back.
    NAT_NO_RULE = "nat-no-rule" {
        cause: "a machine with a private address that reaches for the outside, and a router that translates nothing for it",
        remedy: "declare the network public if the outside has a route to it: `butterfly network add --vni VNI ... --public`; else have the router translate its addresses: `butterfly snat add ROUTER --external EXTERNAL --address IP` for all machines, `butterfly floating add` for one",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// From a machine inside to an address outside that a router of this host translates, and no
    /// answer would come by that address: the sender's own is not translated, and the receiver's
    /// router reaches it inside; or the external has no wire.
    NAT_HAIRPIN = "nat-hairpin" {
        cause: "a machine of a public network, or IPv6, that reaches for a machine of its own router by the other one's address outside; or an external whose outside is vnics",
        remedy: "have the machine use the other one's address inside, or give it an address outside, too (`butterfly floating add`); without a wire: `butterfly external add EXTERNAL --uplink ...`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// Another host sent it here to be led out, and it does not leave by a wire of this host.
    SECOND_HOP = "second-hop" {
        cause: "a host with an external that leads out by this one (`--via`), where the router is not declared, is not attached to an external with a wire, or leads to the destination otherwise: inside, or by a third host; a frame that a third host passed on, as after a VM moved; a host for which the table of peers has no room; or one that forges such packets",
        remedy: "compare `butterfly router list` and `butterfly route list` on both hosts: here the router is attached to the external with the interface",
        charged: "the network",
    }
}

/// Bar to a packet from or to an outside. [`crate::stages::route`] has names for the first two.
pub(super) enum Barred {
    /// Nobody outside may have its source, or no answer would find it.
    Foreign,
    /// Nothing outside knows a way to its destination.
    NoRoute,
    By(DropReason),
}

/// Looks whether a packet from this source may come from the outside by which it came. `mac` is the
/// MAC address from which it came.
pub(super) fn may_enter(
    (source, mac): (Address, u64),
    router: &Joined,
    routing: &Routing,
    context: &Context<'_>,
) -> Result<(), Barred> {
    let own = context.entry.vni;
    // It left by this wire for an address of this host.
    let turned = context.sender.is_wire() && mac == routing.wire_mac();
    if !is_host(source) || !turned && routing.answers_for(source).is_some() {
        return Err(Barred::Foreign);
    }
    if turned && routing.answers_for(source).is_some() {
        return Ok(()); // translated, or this host's own
    }
    match router.route_to(source).map(|route| &route.leads) {
        Some(Leads::Connected(vni)) if *vni == own => {
            routing.owns(source).then_some(()).ok_or(Barred::Foreign)
        }
        Some(Leads::Via(ways)) if ways.iter().all(|way| way.vni == own) => Ok(()),
        Some(Leads::Connected(_) | Leads::Via(_)) => Err(Barred::By(INSIDE_SOURCE)),
        // No answer would find it.
        Some(Leads::Nowhere | Leads::Over(_)) | None => Err(Barred::Foreign),
    }
}

/// Looks whether a packet from a network may go on by another one, for a machine with this address,
/// which may be translated. `gateway` is that to which it was sent.
pub(super) fn may_pass(
    (destination, is_translated): (Address, bool),
    gateway: &Gateway,
    (from, to): (&Routing, &Routing),
    context: &Context<'_>,
) -> Result<(), Barred> {
    match (&from.outside, &to.outside) {
        (None, None) => Ok(()),
        (Some(_), _) if is_translated || knows(gateway, destination, context) => {
            // Not from one outside to another.
            to.outside.is_none().then_some(()).ok_or(Barred::NoRoute)
        }
        (Some(_), _) => Err(Barred::NoRoute),
        // What translates it, or nothing, is looked for when it leaves.
        (None, Some(outside)) if outside.nat.of(gateway.mac).is_some() => Ok(()),
        (None, Some(_)) if is_v4(destination) && !from.public => Err(Barred::By(NAT_NO_RULE)),
        (None, Some(_)) => Ok(()),
    }
}

/// Returns the number of the external that has an address of this host to which a packet from
/// inside goes: by its wire the packet leaves, and comes in again (RFC 4787, REQ-9). `None` if it
/// goes elsewhere.
pub(super) fn turns_at(
    destination: Address,
    router: &Joined,
    context: &Context<'_>,
) -> Result<Option<u32>, DropReason> {
    let has = |vni: &u32| {
        let outside = outside_of(*vni, context);
        outside.is_some_and(|outside| outside.answers_for(destination).is_some())
    };
    let at = match router.route_to(destination).map(|route| &route.leads) {
        Some(Leads::Connected(vni)) => Some(*vni).filter(has),
        Some(Leads::Via(ways)) => ways.iter().map(|way| way.vni).find(has),
        Some(Leads::Nowhere | Leads::Over(_)) | None => None,
    };
    match at.and_then(|vni| outside_of(vni, context)) {
        Some(outside) if outside.mac != 0 => Ok(at),
        Some(outside) if outside.nat.has(destination) => Err(NAT_HAIRPIN),
        _ => Ok(None),
    }
}

/// Looks whether a packet from this source, as it leaves by the outside `routing` with the number
/// `vni` for an address of this host there, is answered by the address to which it goes.
pub(super) fn may_turn(
    (source, destination): (Address, Address),
    (vni, routing): (u32, &Routing),
) -> Result<(), DropReason> {
    let owner = routing.outside.as_ref().and_then(|outside| outside.nat.owner_of(destination));
    let gateway = owner.and_then(|(mac, _)| routing.by_mac(mac));
    let leads_out = |gateway: &Gateway| match gateway.router.route_to(source).map(|it| &it.leads) {
        Some(Leads::Connected(at)) => *at == vni,
        Some(Leads::Via(ways)) => ways.iter().all(|way| way.vni == vni),
        Some(Leads::Nowhere | Leads::Over(_)) | None => false,
    };
    let answered = routing.answers_for(source).is_some() || gateway.is_none_or(leads_out);
    answered.then_some(()).ok_or(NAT_HAIRPIN)
}

fn outside_of<'a>(vni: u32, context: &Context<'a>) -> Option<&'a Outside> {
    let network = context.snapshot.network(vni)?;
    network.routing.as_deref()?.outside.as_deref()
}

/// Returns whether an address is one of a network that is known in the outside by which a packet
/// came.
fn knows(gateway: &Gateway, destination: Address, context: &Context<'_>) -> bool {
    gateway.router.is_known_outside(destination, context.entry.vni)
}
