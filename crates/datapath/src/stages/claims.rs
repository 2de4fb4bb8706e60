//! Claims: the address of a filtered vnic of this host belongs to no other vnic.
//!
//! A rule that names the members of a group goes by addresses. So an attacker that answers ARP
//! faster would pass it. This stage reads ARP (RFC 826, RFC 5227) and neighbour discovery (RFC
//! 4861, RFC 4862) from every port of a network with filtered vnics, before anything learns from
//! it. The sources of other packets are compared where a session is made or decided again.

use std::sync::atomic::Ordering::Relaxed;

use butterfly_packet::{
    Mac, arp,
    icmp::v6,
    protocol::{TCP, UDP},
};

use crate::world::bindings::Voice;

use crate::engine::{
    batch::{Batch, BatchOrigin, Verdict},
    inside::Inside,
    reason::{ReasonInfo, drop_reasons},
    reserved::is_reserved,
};
use crate::ip::{
    Address, Discovery, L4, Packet,
    discovery::{link_local, solicited_node},
    frame::arp as read_arp,
    mapped,
};
use crate::stages::{
    context::Context,
    filter::read::read as read_packet,
    stage::{Stage, StageConfig},
};
use crate::world::snapshot::Vnic;

drop_reasons! { 8;
    /// The packet says that it is from the address of a filtered vnic of this host, or that its
    /// sender has that address, and the sender is another one.
    IP_CLAIMED = "ip-claimed" {
        cause: "an address that two machines have; a router or load balancer that passes on what others sent; or an attempt to be taken for somebody else",
        remedy: "`butterfly explain` names who has the address: give one of the two another one, declare it for both (`butterfly nic update --id NIC --ip ADDRESS..`), declare a router or load balancer anew with `butterfly nic add --id NIC ... --bypass-filtering --forwards`, or the owner with `butterfly nic update --id NIC --shared-ip true` if a machine on another host has its address too",
        charged: "the sender, or the network if the frame came from another host",
    }
}

/// Checks claims of addresses, in batches in which [`crate::stages::headers`] saw a possible one.
pub(crate) struct Claims;

impl Stage for Claims {
    const NAME: &'static str = "claims";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        if batch.unusual && batch.origin != BatchOrigin::Own {
            claims(batch, context);
        }
    }
}

/// Drops ARP and neighbour discovery that claim an address of another vnic; all other frames stay
/// as they are.
///
/// Called for batches in which [`crate::stages::headers`] saw a possible one.
#[cold]
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn claims(batch: &mut Batch<'_>, context: &Context<'_>) {
    let probes = !context.sender.is_trunk();
    for index in 0..batch.frames.len() {
        if batch.metas().get(index).is_some_and(|meta| is_reserved(meta.source)) {
            continue; // `forward` drops it
        }
        if probes {
            note_probe(batch, index, context);
        }
        if claimed(batch, index, context).is_some()
            && let Some(meta) = batch.parts().1.get_mut(index)
        {
            meta.verdict = Verdict::Drop(IP_CLAIMED, context.sender.place.slot);
            meta.offload = false; // nobody will look at what it claims
        } else {
            bind(batch, index, context);
        }
    }
}

/// Offset of the sender's address in ARP of IPv4 (RFC 826).
const ARP_SENDER: usize = 14;

/// Notes that a guest probes for an address by ARP (RFC 5227, 2.1.1). A host notes it whether it
/// has a router or not: routers of others ask here, too.
#[inline(always)]
fn note_probe(batch: &Batch<'_>, index: usize, context: &Context<'_>) {
    let inside = batch.metas().get(index).map(|meta| meta.inside);
    let Some(Inside::Arp(at)) = inside else { return };
    // Most ARP has one.
    let sender = batch.frames.head(index).get(usize::from(at) + ARP_SENDER..);
    if sender.and_then(<[u8]>::first_chunk) != Some(&0_u32.to_ne_bytes()) {
        return;
    }
    let probe = read_arp(batch.frames.head(index), at)
        .filter(|it| it.operation() == arp::REQUEST && it.sender_ip().is_unspecified());
    if let Some(probe) = probe {
        context.sender.shared.probed.note(probe.target_ip(), context.now);
    }
}

/// Returns the address of another vnic that a frame claims; 0 if it cannot be read.
pub(crate) fn claimed(
    batch: &mut Batch<'_>,
    index: usize,
    context: &Context<'_>,
) -> Option<Address> {
    let meta =
        batch.metas().get(index).copied().filter(|meta| meta.verdict == Verdict::Undecided)?;
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let claimed = match meta.inside {
        Inside::Arp(at) => match said_by_arp(batch.frames.head(index), usize::from(at), len) {
            Said::Nothing => None,
            Said::Has(address) => Some(address)
                .filter(|address| is_claimed(context.sender, *address, Voice::Speaking, context)),
            Said::Unseen => Some(0),
        },
        Inside::Ip { at, vlan } if may_be_discovery(batch.frames.head(index), usize::from(at)) => {
            match read_packet(batch, index, at, vlan, len).map(|packet| packet.l4) {
                Ok(L4::Discovery(found)) => claimed_by(&found, context),
                _ => None,
            }
        }
        _ => None,
    };
    claimed.filter(|address| !is_its_own(meta.source, *address, context))
}

/// Returns whether the frame is from the vnic that has the address, by its MAC address, so that it
/// is no claim. The frame came back by a loop, which the next stage sees, or from another host. If
/// the vnic's queues do not run here, that host is its place now.
fn is_its_own(source: u64, address: Address, context: &Context<'_>) -> bool {
    let owner = context.entry.macs.get(source).and_then(|slot| context.snapshot.vnics.get(slot));
    let Some(owner) = owner.filter(|owner| !owner.rules.bypass) else { return false };
    if !owner.rules.owns(address) && !has_link_local(owner, address, context) {
        return false;
    }
    if context.sender.is_trunk() && owner.shared.port.try_tx().is_some_and(|ring| ring.is_none()) {
        owner.shared.elsewhere.store(true, Relaxed);
    }
    true
}

/// Returns whether a link-local address is a filtered vnic's: the one of its MAC address, or one
/// that its machine made up and that is not declared.
pub(crate) fn has_link_local(vnic: &Vnic, address: Address, context: &Context<'_>) -> bool {
    address == link_local(vnic.mac)
        || vnic.shared.bound.has(address) && context.entry.holders.get(address).is_none()
}

/// Notes link-local addresses of which a machine is the first user: it probes for one, or sends
/// from or for one.
fn bind(batch: &mut Batch<'_>, index: usize, context: &Context<'_>) {
    let Some(meta) =
        batch.metas().get(index).copied().filter(|meta| meta.verdict == Verdict::Undecided)
    else {
        return;
    };
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let Inside::Ip { at, vlan } = meta.inside else { return };
    if !may_be_discovery(batch.frames.head(index), usize::from(at)) {
        return;
    }
    let Ok(Packet { l4: L4::Discovery(found), tuple, .. }) =
        read_packet(batch, index, at, vlan, len)
    else {
        return;
    };
    let sender = context.sender;
    let Some(voice) = voice(&found).filter(|_| found.valid) else { return };
    if !sender.rules.bypass {
        let honest = found.link_source.is_none_or(|mac| mac == sender.mac);
        let heard = voice != Voice::Probing
            || asks_its_owner(&found, tuple.destination, batch.frames.head(index));
        if voice == Voice::Router || !honest || !heard {
            return;
        }
    }
    let of_target = voice == Voice::Probing || found.kind == v6::NEIGHBOUR_ADVERTISEMENT;
    for address in [Some(found.source), of_target.then_some(found.target)].into_iter().flatten() {
        if context.entry.holders.get(address).is_none() {
            context.bindings.bind(
                address,
                sender,
                meta.source,
                voice,
                context.now,
                context.snapshot,
            );
        }
    }
}

/// Returns the role in which the sender claims an address, if it claims one.
fn voice(found: &Discovery) -> Option<Voice> {
    match found.kind {
        v6::NEIGHBOUR_SOLICITATION if found.source == 0 => Some(Voice::Probing),
        v6::ROUTER_SOLICITATION | v6::NEIGHBOUR_SOLICITATION | v6::NEIGHBOUR_ADVERTISEMENT => {
            Some(Voice::Speaking)
        }
        v6::ROUTER_ADVERTISEMENT => Some(Voice::Router),
        _ => None,
    }
}

/// Returns whether a probe reaches the address's owner: it is for the address's own group, and for
/// that group's MAC address or for all.
fn asks_its_owner(probe: &Discovery, destination: Address, head: &[u8]) -> bool {
    let group = Mac::of_group_v6(destination.into());
    destination == solicited_node(probe.target)
        && [&group.0[..], &Mac::BROADCAST.0].contains(&head.get(..6).unwrap_or_default())
}

/// Claim of an ARP packet about its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    /// None, as it is not about IPv4 over Ethernet.
    Nothing,
    /// The sender has this address, or is about to take it.
    Has(Address),
    /// Unreadable, as it lies behind too many tags.
    Unseen,
}

/// Reads ARP as loosely as any host does: Linux also takes the hardware type of IEEE 802, and no
/// host looks at the operation. A probe is from 0.0.0.0 and names the address that its sender
/// wants.
fn said_by_arp(head: &[u8], at: usize, len: u32) -> Said {
    let Some(&[_, _, ptype @ .., _, _]) =
        head.get(at..at + 8).and_then(|bytes| bytes.first_chunk::<8>())
    else {
        return if len as usize > head.len() { Said::Unseen } else { Said::Nothing };
    };
    if ptype != [8, 0, 6, 4] {
        return Said::Nothing;
    }
    let address = |from: usize| {
        let bytes = head.get(at + from..at + from + 4)?.first_chunk::<4>()?;
        Some(mapped((*bytes).into()))
    };
    match (address(14), address(24)) {
        (Some(sender), Some(target)) if sender == mapped([0; 4].into()) => Said::Has(target),
        (Some(sender), Some(_)) => Said::Has(sender),
        _ if len as usize > head.len() => Said::Unseen,
        _ => Said::Nothing,
    }
}

/// Returns whether the frame is IPv6 with the hop limit of discovery (RFC 4861, 3.1), and neither
/// TCP nor UDP right behind its header.
pub(crate) fn may_be_discovery(head: &[u8], at: usize) -> bool {
    match head.get(at..at + 8).and_then(|bytes| bytes.first_chunk::<8>()) {
        Some([version, _, _, _, _, _, next, hops]) => {
            version >> 4 == 6 && *hops == 255 && ![TCP, UDP].contains(next)
        }
        None => false,
    }
}

/// Returns the address of another vnic that a message of neighbour discovery claims, by its source
/// or by its target. The target counts for an advertisement, for a probe, and for a redirect with
/// another link address than its owner's.
fn claimed_by(found: &Discovery, context: &Context<'_>) -> Option<Address> {
    let of_target = match found.kind {
        v6::NEIGHBOUR_ADVERTISEMENT => true,
        v6::NEIGHBOUR_SOLICITATION => found.source == 0,
        v6::REDIRECT => found.link_source.filter(|_| found.valid).is_some_and(|mac| {
            let mut owners = context
                .entry
                .holders
                .get(found.target)
                .into_iter()
                .flat_map(|holding| holding.slots());
            !owners.any(|slot| context.snapshot.vnics.get(slot).is_some_and(|vnic| vnic.mac == mac))
        }),
        _ => false,
    };
    let said = [Some(found.source), of_target.then_some(found.target)];
    let voice = voice(found).filter(|_| found.valid).unwrap_or(Voice::Speaking);
    said.into_iter().flatten().find(|address| is_claimed(context.sender, *address, voice, context))
}

/// Returns whether an address is a filtered vnic's, and not also this one's. An address that is not
/// declared belongs to the vnic whose machine made it up.
pub(crate) fn is_claimed(
    vnic: &Vnic,
    address: Address,
    voice: Voice,
    context: &Context<'_>,
) -> bool {
    if let Some(holding) = context.entry.holders.get(address) {
        return holding.excludes(vnic, context.snapshot);
    }
    context.bindings.holder(address, vnic.vni, context.snapshot).is_some_and(|holder| {
        let may_be_elsewhere =
            holder.vnic.rules.shared_ip || !context.snapshot.keeps_addresses(holder.vnic);
        let is_theirs = !holder.vnic.rules.bypass
            && holder.vnic.place != vnic.place
            && !(vnic.is_trunk() && may_be_elsewhere);
        is_theirs && !holder.gives_way(vnic, voice, context.now)
    })
}

/// Returns the ids of the vnics that have an address.
pub(crate) fn owners(address: Address, context: &Context<'_>) -> Vec<String> {
    let holding = context.entry.holders.get(address);
    let slots = holding.into_iter().flat_map(|holding| holding.slots());
    let declared = slots.filter_map(|slot| context.snapshot.vnics.get(slot)).map(|vnic| &**vnic);
    let bound = context
        .bindings
        .holder(address, context.sender.vni, context.snapshot)
        .filter(|_| holding.is_none());
    declared.chain(bound.map(|holder| holder.vnic)).map(|vnic| vnic.id.to_string()).collect()
}
