//! Far routers: takes what routers of other hosts passed on, or want led out by this host.
//!
//! Each host routes for its own machines, so a packet between two hosts arrives in the receiver's
//! network with one hop less, from the router address of the host that sent it, which has to be
//! that of the outer source. Then it is looked at who the packet says it is from: only machines of
//! networks that a router of this network joins may send so, and the host that leads out for such a
//! router.
//!
//! A host without the outside reaches it by such a host, the *second hop*. The sender's host
//! decides as for any routed packet, and sends the frame in the *sender's* network to the router
//! address of the host that leads out, from the gateway's MAC address: that tells the router and
//! the network. The host that leads out looks again at who may send so, and lets it leave by its
//! own wire or not at all. It takes no hop, and nobody hears of errors.

use arrayvec::ArrayVec;
use butterfly_model::host_mac;
use butterfly_packet::Mac;

use crate::engine::{
    batch::{Batch, Hop, Meta, Verdict},
    inside::Inside,
    mac::{address, number},
    place::{NetworkRef, PeerRef},
    reason::DropReason,
    reserved::{is_host, is_reserved},
};
use crate::ip::{Address, HEADERS_TOO_LONG, discovery::is_link_local, frame::inside};
use crate::overlay::FORGED_ROUTER;
use crate::stages::{
    asks::{may_be_asked_for, of_far_router, with_block},
    context::Context,
    course::{is_free, is_host as is_host_address},
    cuts::Cuts,
    forward::{ROUTER_MAC, learn_router},
    outward::{SECOND_HOP, may_pass},
    route::{
        FOREIGN_SOURCE, Header, L3, NEXT_HOP_UNKNOWN, OWN_SOURCE_ROUTED, Onward, ROUTE_GROUP,
        Silent, TTL_EXPIRED, barred, choose, course_of, read, unfit, wanted,
    },
};
use crate::world::{
    asking::AskPlace,
    routing::{Gateway, Routing},
    rules::address as ip_of,
    ways::{Leads, MAX_WAYS, OtherHost},
};

/// Source of a packet, the router address from which it came, and the host.
type Sender = (Address, u64, PeerRef);

/// Lowest bit of a MAC address as [`crate::engine::mac::number`]: of a group.
const GROUP_BIT: u64 = 1;

/// Notes frames that came from routers, and drops those that none may have sent. The sender of the
/// batch is a trunk.
#[inline(always)]
pub(super) fn take(batch: &mut Batch<'_>, context: &Context<'_>) {
    let each = batch.metas().iter().enumerate();
    let of = each.fold(0, |of, (index, meta)| of | u64::from(is_reserved(meta.source)) << index);
    if of != 0 {
        check(batch, of, context);
    }
}

/// Checks the frames of `of`, a bit for each.
#[cold]
#[inline(never)]
fn check(batch: &mut Batch<'_>, of: u64, context: &Context<'_>) {
    batch.read(inside);
    // Packets of a batch tend to have the source of the one before, and to be of one host.
    let mut last: Option<(Sender, Result<Hop, DropReason>)> = None;
    let of_gateways = take_second_hops(batch, of, context);
    let (mut passed, mut left) = (0, of & !of_gateways);
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
            Some((before, hop)) if before == (source, meta.source, meta.peer) => hop,
            _ => last.insert(((source, meta.source, meta.peer), from(source, &meta, context))).1,
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
fn from(source: Address, meta: &Meta, context: &Context<'_>) -> Result<Hop, DropReason> {
    if !is_host_address(source) {
        return Err(FOREIGN_SOURCE);
    }
    // A network that is not declared here may be on other hosts, with routers.
    let stays = NetworkRef(context.sender.network);
    let Some(routing) = &context.entry.routing else { return Ok(Hop::from_far(None, stays)) };
    let beyond = routing.beyond(source, context.entry.vni).map(|(gateway, _)| gateway);
    // What is outside comes by the host that leads there.
    let outside = || {
        let mut hosts = routing.overs(source);
        hosts.find(|(_, host)| is_by(host, meta, context)).map(|(gateway, _)| gateway)
    };
    let gateway = beyond.or_else(outside).ok_or(FOREIGN_SOURCE)?;
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

/// Returns the way from a gateway to the host that leads out for its router.
pub(super) fn leave_by(
    gateway: &Gateway,
    host: &OtherHost,
    context: &Context<'_>,
) -> Result<Onward, DropReason> {
    // What came from outside, or from another host, does not go on so.
    let tunnel = context.tunnel.filter(|_| context.remote().is_some());
    let tunnel = tunnel.ok_or(NEXT_HOP_UNKNOWN)?;
    let peer = tunnel.peers.find(host.endpoint).ok_or(NEXT_HOP_UNKNOWN)?;
    let mut macs = [0; 12];
    let both = address(host.mac).0.into_iter().chain(address(gateway.mac).0);
    macs.iter_mut().zip(both).for_each(|(to, byte)| *to = byte);
    let hop = Hop { macs, exit: NetworkRef(context.sender.network) };
    let mtu = host.mtu.min(tunnel.inner_mtu());
    Ok(Onward { hop, verdict: Verdict::Tunnel(peer), mtu, leases: false, leaves: false })
}

/// Returns whether a frame that a router passed on is of the host that leads out. One that a third
/// host passed on, to where its machine went, keeps that host's router address.
fn is_by(host: &OtherHost, meta: &Meta, context: &Context<'_>) -> bool {
    match endpoint_of(meta, context) {
        Some(endpoint) => endpoint == host.endpoint,
        None => meta.peer == PeerRef::PASSED_ON && meta.source == host.mac,
    }
}

/// Returns the tunnel endpoint from which a frame came, if it is known.
fn endpoint_of(meta: &Meta, context: &Context<'_>) -> Option<Address> {
    context.tunnel?.peers.get(meta.peer).map(|peer| peer.address())
}

/// Decides on frames that other hosts want led out by this one, among those of `of`, a bit for
/// each, which came from reserved addresses. Returns a bit for each that is not from a host, which
/// nobody else need look at.
fn take_second_hops(batch: &mut Batch<'_>, of: u64, context: &Context<'_>) -> u64 {
    let own = context.tunnel.map(|tunnel| number(tunnel.router_mac));
    let (mut of_gateways, mut led, mut left) = (0, 0, of);
    let (mut silent, mut cuts) = (Silent::default(), Cuts::default());
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(mut meta) = batch.metas().get(index).copied() else { break };
        if is_host(meta.source) {
            continue;
        }
        of_gateways |= 1 << index;
        // To all others no gateway speaks: `forward` drops that.
        if meta.verdict != Verdict::Undecided || Some(meta.destination) != own {
            continue;
        }
        let decided = decide(batch, (index, &mut meta), (&mut silent, &mut cuts), context);
        if decided.is_ok() && meta.offload && meta.cut.packets != 0 {
            batch.cuts |= 1 << index;
            batch.segments = true;
        }
        let (_, metas, hops) = batch.parts_and_hops();
        if let (Some(place), Some(hop)) = (metas.get_mut(index), hops.get_mut(index)) {
            *place = meta;
            let meta = place;
            match decided {
                Ok(way) => {
                    *hop = way.hop;
                    meta.verdict = way.verdict;
                    // All that follows sees a packet to that gateway.
                    meta.destination = meta.source;
                    led |= 1 << index;
                }
                Err(reason) => {
                    meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
                    meta.offload = false; // nobody will look at what it claims
                }
            }
        }
    }
    batch.outward |= led != 0;
    batch.route(led);
    of_gateways
}

/// Decides on one frame. Returns its way, by a wire of this host.
fn decide<'a>(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &mut Meta),
    (silent, cuts): (&mut Silent<'a>, &mut Cuts),
    context: &Context<'a>,
) -> Result<Onward, DropReason> {
    // One that somebody passed on, or whose host has no place in the table, is of nobody.
    let from = endpoint_of(meta, context);
    // Of a packet that is not sent, nobody knows whose it would be.
    if from.is_none() && context.assumed.is_none() {
        return Err(SECOND_HOP);
    }
    if !matches!(meta.inside, Inside::Ip { at, vlan: 0 } if usize::from(at) == L3) {
        return Err(ROUTER_MAC); // routers pass on IP, without tags
    }
    let routing = context.entry.routing.as_deref().ok_or(SECOND_HOP)?;
    let gateway = routing.by_mac(meta.source).ok_or(SECOND_HOP)?;
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let packet = match read(batch.frames.head(index), len) {
        Err(HEADERS_TOO_LONG) => read(batch.parts().0.extend_head(index), len),
        packet => packet,
    }?;
    let behind = check_source(&packet, from, (gateway, routing), context)?;
    let head = batch.frames.head(index);
    let course = || course_of(head, len).ok_or(HEADERS_TOO_LONG);
    if gateway.router.has(packet.destination) {
        return Err(SECOND_HOP);
    }
    if let Some(Leads::Over(_)) = gateway.router.route_to(packet.destination).map(|it| &it.leads) {
        return Err(SECOND_HOP); // this host is led out itself
    }
    let way = match choose((gateway, routing), packet.destination, course, silent, context) {
        Err(NEXT_HOP_UNKNOWN) => {
            ask_outside(wanted((head, len), gateway, context), context);
            return Err(NEXT_HOP_UNKNOWN);
        }
        choice => choice?.way,
    };
    let exit = context.other(way.hop.exit).filter(|_| way.leaves).ok_or(SECOND_HOP)?;
    // A gateway outside that is a vnic is none: other hosts reach no vnic so.
    let wire = exit.wire.map(Verdict::Deliver);
    let to = exit.routing.as_deref().filter(|_| wire == Some(way.verdict)).ok_or(SECOND_HOP)?;
    may_pass((packet.destination, false), gateway, (routing, to), context).map_err(barred)?;
    if behind && !is_free(packet.source, exit, context) {
        return Err(FOREIGN_SOURCE);
    }
    if packet.hops == 0 {
        return Err(TTL_EXPIRED);
    }
    cuts.fit((head, len), meta, way.mtu, context).map_err(unfit)?;
    if !behind {
        look_for(packet.source, context);
    }
    Ok(way)
}

/// Checks that a machine on the host `from` may send from the source of a packet. Returns whether
/// it is behind a machine of the network.
fn check_source(
    packet: &Header,
    from: Option<Address>,
    (gateway, routing): (&Gateway, &Routing),
    context: &Context<'_>,
) -> Result<bool, DropReason> {
    let (source, vni) = (packet.source, context.entry.vni);
    let owned = routing.owns(source);
    let behind = || match gateway.router.route_to(source).map(|route| &route.leads) {
        Some(Leads::Via(ways)) => ways.iter().any(|way| way.vni == vni),
        _ => false,
    };
    let is_routers = routing.by_address(source).is_some() || gateway.router.has(source);
    let is_machine = is_host_address(source) && !is_link_local(source) && !is_routers;
    if !is_machine || !owned && !behind() {
        return Err(FOREIGN_SOURCE);
    }
    // A filtered vnic whose machine runs here speaks here alone.
    let holding = context.entry.holders.get(source);
    if holding.is_some_and(|holding| holding.excludes(context.sender, context.snapshot)) {
        return Err(OWN_SOURCE_ROUTED);
    }
    // One that is declared to be on a host sends from there.
    let declared = context.snapshot.neighbours.get(vni, source).and_then(|it| it.host);
    if declared.zip(from).is_some_and(|(host, from)| host != from) {
        return Err(FOREIGN_SOURCE);
    }
    Ok(!owned)
}

/// Has a machine outside asked for, mostly the gateway there: the next packet finds it.
fn ask_outside(place: Option<AskPlace>, context: &Context<'_>) {
    let is_wired = |place: &AskPlace| {
        context.snapshot.network(place.0).is_some_and(|network| network.wire.is_some())
    };
    if let Some(place) = place.filter(is_wired) {
        let sender = context.sender;
        let _ = context.asking.want(
            with_block(place, context.snapshot),
            sender.place,
            &sender.shared.asks,
            context.now,
        );
    }
}

/// Has a machine that nobody declared asked for, so that its answers find it: from outside nothing
/// waits.
fn look_for(source: Address, context: &Context<'_>) {
    let place = (context.entry.vni, source);
    let found = context.snapshot.found.get(place.0, source);
    let placed =
        found.and_then(|found| context.fdb.lookup(context.entry.vni, found.mac, context.now));
    if placed.is_none() && may_be_asked_for(place, context.snapshot) {
        let sender = context.sender;
        let _ = context.asking.want(
            with_block(place, context.snapshot),
            sender.place,
            &sender.shared.asks,
            context.now,
        );
    }
}
