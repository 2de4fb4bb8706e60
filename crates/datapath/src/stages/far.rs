//! Far routers: takes what routers of other hosts passed on.
//!
//! Each host routes for its own machines, so a packet between two hosts arrives in the receiver's
//! network with one hop less, from the router address of the host that sent it, which has to be
//! that of the outer source. Then it is looked at who the packet says it is from: only machines of
//! networks that a router of this network joins may send so.

use arrayvec::ArrayVec;
use butterfly_model::host_mac;
use butterfly_packet::Mac;

use crate::engine::{
    batch::{Batch, Hop, Verdict},
    inside::Inside,
    mac::{address, number},
    place::{NetworkRef, PeerRef},
    reason::DropReason,
    reserved::is_host,
};
use crate::ip::{Address, HEADERS_TOO_LONG, frame::inside};
use crate::overlay::FORGED_ROUTER;
use crate::stages::{
    asks::of_far_router,
    context::Context,
    course::is_host as is_host_address,
    forward::{ROUTER_MAC, learn_router},
    route::{FOREIGN_SOURCE, L3, OWN_SOURCE_ROUTED, ROUTE_GROUP, read},
};
use crate::world::{rules::address as ip_of, ways::MAX_WAYS};

/// Lowest bit of a MAC address as [`crate::engine::mac::number`]: of a group.
const GROUP_BIT: u64 = 1;

/// Notes frames that came from routers, and drops those that none may have sent. The sender of the
/// batch is a trunk.
#[inline(always)]
pub(super) fn take(batch: &mut Batch<'_>, context: &Context<'_>) {
    let each = batch.metas().iter().enumerate();
    let of = each.fold(0, |of, (index, meta)| of | u64::from(is_host(meta.source)) << index);
    if of != 0 {
        check(batch, of, context);
    }
}

/// Checks the frames of `of`, a bit for each.
#[cold]
#[inline(never)]
fn check(batch: &mut Batch<'_>, of: u64, context: &Context<'_>) {
    batch.read(inside);
    // Packets of a batch tend to have the source of the one before.
    let mut last: Option<(Address, Result<Hop, DropReason>)> = None;
    let (mut passed, mut left) = (0, of);
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(meta) = batch.metas().get(index).copied() else { break };
        if meta.verdict != Verdict::Undecided {
            continue;
        }
        if is_of(meta.source, meta.peer, context)
            && let Some(verdict) = of_far_router(batch.frames.head(index), &meta, context)
        {
            // By what is learnt its answers find the host.
            let learn = |_: &Verdict| learn_router(meta.source, meta.peer, context);
            let drop = |reason| Verdict::Drop(reason, context.sender.place.slot);
            let verdict = verdict.inspect(learn).unwrap_or_else(drop);
            batch.parts().1.get_mut(index).into_iter().for_each(|meta| meta.verdict = verdict);
            continue;
        }
        let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
        let source = match meta.inside {
            _ if !is_of(meta.source, meta.peer, context) => Err(FORGED_ROUTER),
            Inside::Ip { at, vlan: 0 } if usize::from(at) == L3 => {
                let packet = match read(batch.frames.head(index), len) {
                    Err(HEADERS_TOO_LONG) => read(batch.parts().0.extend_head(index), len),
                    packet => packet,
                };
                packet.map(|packet| packet.source)
            }
            _ => Err(ROUTER_MAC), // routers pass on IP, without tags
        };
        let hop = source.and_then(|source| match last {
            _ if meta.destination & GROUP_BIT != 0 => Err(ROUTE_GROUP),
            Some((before, hop)) if before == source => hop,
            _ => last.insert((source, from(source, context))).1,
        });
        match (hop, batch.parts_and_hops()) {
            (Ok(hop), (_, _, hops)) => {
                passed |= 1 << index;
                hops.get_mut(index).into_iter().for_each(|place| *place = hop);
            }
            (Err(reason), (_, metas, _)) => metas.get_mut(index).into_iter().for_each(|meta| {
                meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
                meta.offload = false; // nobody will look at what it claims
            }),
        }
    }
    batch.route(passed);
}

/// Returns whether a router address is that of the host that a frame came from. One that was passed
/// on came by a third host, and keeps it.
fn is_of(source: u64, peer: PeerRef, context: &Context<'_>) -> bool {
    let peers = context.tunnel.map(|tunnel| &tunnel.peers);
    let from = peers.and_then(|peers| peers.get(peer)).map(|peer| ip_of(peer.address()));
    peer == PeerRef::PASSED_ON || from.is_some_and(|from| number(Mac(host_mac(from))) == source)
}

/// Checks the source of a packet that a router of another host passed on. Returns the way on which
/// its receiver gets it: from the gateway that leads back to the source.
fn from(source: Address, context: &Context<'_>) -> Result<Hop, DropReason> {
    if !is_host_address(source) {
        return Err(FOREIGN_SOURCE);
    }
    // A network that is not declared here may be on other hosts, with routers.
    let stays = NetworkRef(context.sender.network);
    let Some(routing) = &context.entry.routing else { return Ok(Hop::from_far(None, stays)) };
    let (gateway, _) = routing.beyond(source, context.entry.vni).ok_or(FOREIGN_SOURCE)?;
    if routing.gateways.iter().any(|gateway| gateway.router.has(source)) {
        return Err(FOREIGN_SOURCE);
    }
    // Of several routers and ways nobody knows by which it came, so none may be wrong.
    let mut checked = ArrayVec::<(u32, bool), MAX_WAYS>::new();
    for (gateway, vni) in routing.all_beyond(source, context.entry.vni) {
        // A part of a network may be behind a machine of another one.
        let connected = gateway.router.connected(source);
        let other = connected.filter(|connected| *connected != vni).map(|vni| (vni, true));
        for network in [Some((vni, connected == Some(vni))), other].into_iter().flatten() {
            if !checked.contains(&network) {
                is_believed(source, network, context)?;
                // Of more than that, some are checked more than once.
                let _ = checked.try_push(network);
            }
        }
    }
    Ok(Hop::from_far(Some(address(gateway.mac).0), stays))
}

/// Checks that a source may be of a machine on another host, in a network or behind a machine of
/// it. `own` tells whether it is in a block of the network.
fn is_believed(
    source: Address,
    (vni, own): (u32, bool),
    context: &Context<'_>,
) -> Result<(), DropReason> {
    let network = context.snapshot.network(vni);
    let home = network.and_then(|network| network.routing.as_ref());
    if home.is_some_and(|home| own && !home.owns(source) || home.by_address(source).is_some()) {
        return Err(FOREIGN_SOURCE); // nobody's, or another router's
    }
    // A filtered vnic whose machine runs here speaks here alone.
    let holding = network.and_then(|network| network.holders.get(source));
    match holding.is_some_and(|holding| holding.excludes(context.sender, context.snapshot)) {
        true => Err(OWN_SOURCE_ROUTED),
        false => Ok(()),
    }
}
