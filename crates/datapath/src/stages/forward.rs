//! Forwarding: learns the places of sources, and finds those of destinations.
//!
//! One learning bridge per VNI (IEEE 802.1Q, 8.6 to 8.8). Addresses of local vnics are known
//! without learning and never move; a learnt address stays in its network.

use std::{cell::Cell, sync::atomic::Ordering};

use butterfly_packet::{ethernet, icmp::v6, ipv6, mac::Mac, protocol::ICMPV6};

use crate::engine::{
    batch::{Batch, BatchOrigin, Exits, Meta, Verdict},
    counters::Counter,
    inside::Inside,
    mac::number,
    place::{PeerRef, PortRef},
    reason::{DropReason, ReasonInfo, drop_reasons},
    reserved::{is_host, is_reserved},
};
use crate::stages::{
    claims::may_be_discovery,
    context::Context,
    stage::{Stage, StageConfig},
};
use crate::world::{
    fdb::{Learning, MAX_PER_NETWORK, MAX_PER_VNIC},
    snapshot::{Network, Vnic},
};

drop_reasons! { 3;
    /// The source MAC address is that of a local filtered vnic, and this is not it; or it waits for
    /// an address that another vnic has.
    MAC_CLAIMED = "mac-claimed" {
        cause: "a cloned machine that has kept its MAC address, one that exists on two hosts, a loop through another bridge, or two vnics that were declared with one MAC address, of which the first has it",
        remedy: "`butterfly nic show NIC` tells whether the sender waits, and for whom: delete that one, and the address is the sender's at once; else `butterfly fdb VNI` tells whose the packet's source address is: give one of the two another one, or delete the stale vnic",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A group address that bridges do not forward: 01:80:c2:00:00:00 to 0f (spanning tree, pause,
    /// LACP).
    LINK_LOCAL_GROUP = "link-local-group" {
        harmless: true,
        cause: "spanning tree, LLDP, LACP or pause frames",
        remedy: "nothing; switch spanning tree, LLDP or LACP off in the machine if the count disturbs",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The destination is behind the port the frame came from.
    SAME_PORT = "same-port" {
        cause: "a bridge inside the machine that sends out what it should keep; of a network: another host flooded an address that is on a third one, which is normal",
        remedy: "nothing if the machine bridges; else `butterfly fdb VNI` tells behind which vnic or host the destination is believed to be",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// No other vnic of the network can have it.
    NO_RECEIVER = "no-receiver" {
        cause: "a wrong VNI, a destination that is not declared or not started, a vnic that is alone in its network; of a network: another host flooded an address that is not here, which is normal",
        remedy: "compare the packet's destination with `butterfly fdb VNI`; declare it there (`butterfly nic add --vni VNI ...`), or if it is on another host see `butterfly tunnels VNI`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The frame says that it is from a router: its source begins with b2:f0 or b2:f1.
    ROUTER_MAC = "router-mac" {
        cause: "a machine that wants to be taken for a router, or whose MAC address happens to begin so",
        remedy: "give the machine another MAC address: those that begin with b2:f0 and b2:f1 are the switch's own",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To the MAC address of a router that the network does not have.
    GATEWAY_NOT_HERE = "gateway-not-here" {
        cause: "a router that was detached from the network while the machine remembers its address, or that this host does not know",
        remedy: "`butterfly router list` tells who routes in the network: attach the router again; else the machine forgets it within a minute",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// Multicast, and no other vnic or host is in the network.
    NO_LISTENER = "no-listener" {
        harmless: true,
        cause: "a machine that starts multicasts router solicitations, neighbour solicitations and MLD reports; it is alone in its network",
        remedy: "nothing; if others should be there, see `butterfly nic list --wide` and `butterfly tunnels VNI`",
        charged: "the sender, or the network if the frame came from another host",
    }
}

/// Returns the reason for which a flood has no receiver.
pub(crate) fn nobody(destination: u64) -> DropReason {
    if destination & GROUP_BIT != 0 && destination != number(Mac::BROADCAST) {
        NO_LISTENER
    } else {
        NO_RECEIVER
    }
}

/// Offset of ARP and IP behind Ethernet.
const L3: usize = ethernet::HEADER_LEN;
const GROUP_BIT: u64 = 1;
const LINK_LOCAL: u64 = number(Mac([1, 0x80, 0xc2, 0, 0, 0]));
const LINK_LOCAL_MASK: u64 = number(Mac([0xff, 0xff, 0xff, 0xff, 0xff, 0xf0]));

/// Learns sources and looks up destinations.
pub(crate) struct Forward;

impl Stage for Forward {
    const NAME: &'static str = "forward";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        forward(batch, context);
    }
}

/// Gives every undecided frame a verdict. Notes in the batch if one goes to several receivers.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn forward(batch: &mut Batch<'_>, context: &Context<'_>) {
    let origin = batch.origin;
    let (_, metas, exits) = batch.all_parts();
    let floods = if exits.any() {
        crossing(metas, exits, origin, context)
    } else {
        decide(metas, context.entry, origin, context)
    };
    batch.floods = floods;
    if context.sender.is_trunk() {
        if batch.crossed() != 0 {
            keep_from_floods(batch, context);
        }
        if context.entry.relays(context.now) {
            pass_on(batch, context);
        }
    }
}

/// Drops what vnics send to the router address of another host, but for ARP and neighbour
/// discovery: answers to its questions. [`lookup`] counts them as floods, so the next stage calls
/// this, and nothing else pays.
#[cold]
#[inline(never)]
pub(super) fn keep_from_routers(batch: &mut Batch<'_>, context: &Context<'_>) {
    for index in 0..batch.frames.len() {
        let to_router =
            |meta: &&Meta| is_host(meta.destination) && matches!(meta.verdict, Verdict::Tunnel(_));
        let Some(meta) = batch.metas().get(index).filter(to_router) else { continue };
        if !may_answer(batch.frames.head(index), meta.inside)
            && let Some(meta) = batch.parts().1.get_mut(index)
        {
            meta.verdict = Verdict::Drop(GATEWAY_NOT_HERE, context.sender.place.slot);
        }
    }
    let is_flood = |meta: &Meta| matches!(meta.verdict, Verdict::Flood { .. });
    batch.floods = batch.metas().iter().any(is_flood);
}

/// Returns whether a frame to the router address of another host may be an answer to its question:
/// ARP, or a message of discovery (RFC 4861, 7.1.2).
fn may_answer(head: &[u8], inside: Inside) -> bool {
    match inside {
        Inside::Arp(at) => usize::from(at) == L3,
        Inside::Ip { at, vlan: 0 } => {
            let is_message = matches!(
                (head.get(L3 + 6), head.get(L3 + ipv6::LEN)),
                (Some(&ICMPV6), Some(&(v6::NEIGHBOUR_SOLICITATION | v6::NEIGHBOUR_ADVERTISEMENT)))
            );
            usize::from(at) == L3 && may_be_discovery(head, L3) && is_message
        }
        _ => false,
    }
}

/// Drops what routers of other hosts passed on to a machine that is not here: it is for nobody
/// else.
#[cold]
#[inline(never)]
fn keep_from_floods(batch: &mut Batch<'_>, context: &Context<'_>) {
    let crossed = batch.crossed();
    let is_flood = |meta: &Meta| matches!(meta.verdict, Verdict::Flood { .. });
    let metas = batch.parts().1;
    for (index, meta) in metas.iter_mut().enumerate().filter(|(_, meta)| is_flood(meta)) {
        if crossed.wrapping_shr(index as u32) & 1 == 1 {
            meta.verdict = Verdict::Drop(NO_RECEIVER, context.sender.place.slot);
        }
    }
    batch.floods = batch.metas().iter().any(is_flood);
}

/// Has frames passed on that other hosts sent to a vnic whose machine left for another host a
/// moment ago. What came from that host, or was passed on before, stays.
#[cold]
#[inline(never)]
fn pass_on(batch: &mut Batch<'_>, context: &Context<'_>) {
    let mut relays = false;
    for meta in batch.parts().1 {
        let Verdict::Deliver(slot) = meta.verdict else { continue };
        let Some(vnic) = context.snapshot.vnics.get(slot).filter(|vnic| is_away(vnic)) else {
            continue;
        };
        let to = vnic.shared.relay.to(context.now).filter(|to| {
            ![*to, PeerRef::PASSED_ON].contains(&meta.peer)
                && context.tunnel.is_some_and(|tunnel| tunnel.peers.get(*to).is_some())
        });
        let Some(to) = to else { continue };
        meta.verdict = Verdict::Tunnel(to);
        relays = true;
        if let Some(cells) = vnic.shared.counters.of(context.worker) {
            cells.add(Counter::PassedOn, 1);
        }
    }
    batch.relays = relays;
}

/// Decides frames of which some leave by other networks.
#[cold]
#[inline(never)]
fn crossing(
    metas: &mut [Meta],
    exits: Exits<'_>,
    origin: BatchOrigin,
    context: &Context<'_>,
) -> bool {
    let each = metas.iter_mut().enumerate();
    // Routers have decided most of them.
    let open = each.filter(|(_, meta)| meta.verdict == Verdict::Undecided);
    open.fold(false, |floods, (index, meta)| {
        let exit = match exits.of(index) {
            None => Some(context.entry),
            Some(exit) => context.other(exit),
        };
        match exit {
            Some(exit) => decide(std::slice::from_mut(meta), exit, origin, context) | floods,
            None => {
                meta.verdict = Verdict::Drop(NO_RECEIVER, context.sender.place.slot);
                floods
            }
        }
    })
}

/// Decides frames that leave by one network. Returns whether one goes to several receivers.
#[inline(always)]
fn decide(metas: &mut [Meta], exit: &Network, origin: BatchOrigin, context: &Context<'_>) -> bool {
    let own = number(context.sender.mac);
    let slot = context.sender.place.slot;
    let floods = Cell::new(false);
    // Frames of a batch tend to have the same addresses as the one before.
    let mut learnt: Option<(u64, PeerRef, Result<(), DropReason>)> = None;
    let mut found: Option<(u64, Verdict)> = None;
    for meta in metas {
        if meta.verdict != Verdict::Undecided {
            continue;
        }
        if meta.source != own {
            let outcome = match learnt {
                Some((source, peer, outcome)) if source == meta.source && peer == meta.peer => {
                    outcome
                }
                _ => learn(meta, origin, context),
            };
            learnt = Some((meta.source, meta.peer, outcome));
            if let Err(reason) = outcome {
                meta.verdict = Verdict::Drop(reason, slot);
                continue;
            }
        }
        meta.verdict = match found {
            Some((destination, verdict)) if destination == meta.destination => verdict,
            _ => lookup(meta.destination, exit, &floods, context),
        };
        found = Some((meta.destination, meta.verdict));
    }
    floods.get()
}

/// Learns the source of a frame. The sender bypasses filters: a filtered one has no other source
/// than its own by now.
fn learn(meta: &Meta, origin: BatchOrigin, context: &Context<'_>) -> Result<(), DropReason> {
    if origin == BatchOrigin::Penned {
        // The station may be in another place by now, from where a newer frame came.
        return of_vnic(meta.source, context).unwrap_or(Ok(Learning::Known)).map(|_| ());
    }
    if learn_source(meta.source, meta.peer, context)? == Learning::Refused {
        refused(context);
    }
    Ok(())
}

/// Learns an address behind the context's sender, or behind a peer if that is a trunk. Addresses
/// that need not be learnt count as known.
#[inline]
pub(crate) fn learn_source(
    source: u64,
    peer: PeerRef,
    context: &Context<'_>,
) -> Result<Learning, DropReason> {
    let sender = context.sender;
    if let Some(known) = of_vnic(source, context) {
        return known;
    }
    if source & GROUP_BIT != 0 || source == 0 {
        return Ok(Learning::Known); // not the address of a station
    }
    if is_reserved(source) {
        // Of another host's router: `far` has looked at it.
        let far = sender.is_trunk() && is_host(source);
        return if far { Ok(Learning::Known) } else { Err(ROUTER_MAC) };
    }
    note_place(source, peer, context)
}

/// Learns the router address of another host, which asks for a machine. The caller compared it with
/// where it came from.
#[cold]
pub(super) fn learn_router(source: u64, peer: PeerRef, context: &Context<'_>) {
    let _ = note_place(source, peer, context);
}

/// Learns an address that is no vnic's.
#[inline(always)]
fn note_place(source: u64, peer: PeerRef, context: &Context<'_>) -> Result<Learning, DropReason> {
    let Context { sender, entry: network, .. } = context;
    let behind = &sender.shared.learnt;
    let (place, most) = match (sender.is_trunk(), peer) {
        (false, _) if sender.is_wire() => (sender.place, MAX_PER_NETWORK),
        (false, _) => (sender.place, MAX_PER_VNIC),
        // Its sender is behind another host than the one that it came from.
        (true, PeerRef::PASSED_ON) => return Ok(Learning::Known),
        (true, PeerRef(0)) => {
            // Of a host for which the table of peers had no room.
            return Ok(Learning::Refused);
        }
        (true, PeerRef(peer)) => {
            (PortRef { slot: sender.place.slot, incarnation: peer }, MAX_PER_NETWORK)
        }
    };
    let held = network.learnt.load(Ordering::Relaxed);
    let room = behind.load(Ordering::Relaxed) < most
        && held < MAX_PER_NETWORK
        && context.fdb.quota.has_room(held);
    let learning = context.fdb.learn(sender.vni, source, place, context.now, room);
    match learning {
        Learning::Known | Learning::Refused => {}
        Learning::New => {
            behind.fetch_add(1, Ordering::Relaxed);
            context.fdb.quota.take(&network.learnt);
        }
        Learning::Moved(from) => {
            behind.fetch_add(1, Ordering::Relaxed);
            if let Some(vnic) = context.snapshot.behind(from) {
                vnic.shared.learnt.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
    Ok(learning)
}

/// Returns whether a vnic here lends its address to other senders; `None` if it is no such vnic's.
#[inline(always)]
fn of_vnic(source: u64, context: &Context<'_>) -> Option<Result<Learning, DropReason>> {
    let Context { sender, entry, snapshot, .. } = context;
    let owner = entry.macs.get(source).and_then(|owner| snapshot.vnics.get(owner));
    let owner = owner.filter(|owner| !(sender.is_trunk() && is_away(owner)))?;
    // A local vnic's address is in its place. Only a vnic that is not filtered may lend it to
    // others.
    Some(if owner.rules.bypass { Ok(Learning::Known) } else { Err(MAC_CLAIMED) })
}

/// Returns whether the machine of a vnic does not run here. It may be on another host, from which a
/// live migration brings it or to which one took it.
#[inline(always)]
fn is_away(vnic: &Vnic) -> bool {
    !vnic.shared.driving.load(Ordering::Relaxed)
}

#[cold]
fn refused(context: &Context<'_>) {
    if let Some(cells) = context.sender.shared.counters.of(context.worker) {
        cells.add(Counter::LearnRefused, 1);
    }
}

/// Returns the verdict on a frame that leaves by this network.
#[inline(always)]
fn lookup(destination: u64, exit: &Network, floods: &Cell<bool>, context: &Context<'_>) -> Verdict {
    let flood = |unknown| {
        floods.set(true);
        Verdict::Flood { unknown }
    };
    let sender = context.sender;
    let drop = |reason| Verdict::Drop(reason, sender.place.slot);
    if destination & GROUP_BIT != 0 {
        return if destination & LINK_LOCAL_MASK == LINK_LOCAL {
            drop(LINK_LOCAL_GROUP)
        } else {
            flood(false)
        };
    }
    if let Some(slot) = exit.macs.get(destination) {
        if slot == sender.place.slot {
            return drop(SAME_PORT);
        }
        let away = !sender.is_trunk()
            && context.snapshot.vnics.get(slot).is_some_and(|vnic| is_away(vnic));
        return away
            .then(|| on_another_host(destination, exit, context))
            .flatten()
            .unwrap_or(Verdict::Deliver(slot));
    }
    if is_reserved(destination) {
        // Of a host that asked for a machine: what answers goes there.
        let asks = is_host(destination) && !sender.is_trunk();
        let asker = asks.then(|| on_another_host(destination, exit, context)).flatten();
        // It is looked at again, where its contents are at hand.
        floods.set(floods.get() || asker.is_some());
        return asker.unwrap_or(drop(GATEWAY_NOT_HERE));
    }
    let Some(place) = context.fdb.lookup(exit.vni, destination, context.now) else {
        return flood(true);
    };
    if exit.remote.as_ref().is_some_and(|remote| remote.slot == place.slot) {
        return match known_peer(place, context) {
            _ if sender.is_trunk() => drop(SAME_PORT),
            Some(peer) => Verdict::Tunnel(peer),
            None => flood(true),
        };
    }
    // The entry may be older than the vnic in that slot, or torn: see fdb.
    match context.snapshot.vnic(place).filter(|vnic| is_open(vnic, exit)) {
        Some(vnic) if vnic.place.slot == sender.place.slot => drop(SAME_PORT),
        Some(vnic) => Verdict::Deliver(vnic.place.slot),
        None => flood(true),
    }
}

/// Returns the verdict on a frame to a machine of a network, if its place is known.
pub(crate) fn place_of(mac: u64, exit: &Network, context: &Context<'_>) -> Option<Verdict> {
    let verdict = lookup(mac, exit, &Cell::new(false), context);
    matches!(verdict, Verdict::Deliver(_) | Verdict::Tunnel(_)).then_some(verdict)
}

/// Returns whether machines behind a vnic may be reached through it.
fn is_open(vnic: &Vnic, exit: &Network) -> bool {
    vnic.vni == exit.vni && vnic.rules.bypass && !exit.waits(vnic.place.slot)
}

/// Returns the other host of an entry behind the trunk, if it is still there.
fn known_peer(place: PortRef, context: &Context<'_>) -> Option<PeerRef> {
    let peer = PeerRef(place.incarnation);
    context.tunnel?.peers.get(peer).map(|_| peer)
}

/// Returns the verdict for a local vnic whose machine is on another host, if one has it.
#[cold]
fn on_another_host(destination: u64, exit: &Network, context: &Context<'_>) -> Option<Verdict> {
    let place = context.fdb.lookup(exit.vni, destination, context.now)?;
    let remote = exit.remote.as_ref().filter(|remote| remote.slot == place.slot);
    remote.and_then(|_| known_peer(place, context)).map(Verdict::Tunnel)
}

#[cfg(test)]
mod tests {
    use butterfly_packet::build;
    use butterfly_vhost::ring::{FrameStore, Frames};

    use super::*;
    use crate::engine::{batch::Metas, place::NetworkRef, tap::TapNotes, writer::WorkerId};
    use crate::harness::Host;
    use crate::world::policy::VnicPolicy;

    /// A frame for a network that does not exist is dropped. It does not stay in that by which it
    /// came.
    #[test]
    fn a_network_that_is_gone_gets_nothing_and_neither_does_another() {
        let mac = |n: u8| Mac([2, 0, 0, 0, 0, n]);
        let mut host = Host::new().unwrap();
        for n in 1..=2 {
            let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
            host.vnic(&format!("v{n}"), mac(n), 7, &policy).unwrap();
        }
        let (plane, _) = host.inside();
        let snapshot = plane.shared.snapshot.load_full();
        let (id, notes) = (WorkerId::new(0), TapNotes::default());
        let (sender, entry) = (snapshot.vnics.get(0).unwrap(), snapshot.network(7).unwrap());
        let context = plane.shared.context(&snapshot, sender, entry, id.writer(), &notes);
        for (to, stays) in
            [(mac(2), Verdict::Deliver(1)), (Mac::BROADCAST, Verdict::Flood { unknown: false })]
        {
            let frame = build::ethernet(mac(1), to).payload(0x88b5, &[0; 46]);
            let verdict = |exit: Option<NetworkRef>| {
                let (mut store, mut metas) = (FrameStore::default(), Metas::new());
                let frames = Frames::private(&mut store, std::iter::once(frame.as_slice()));
                let mut batch = Batch::new(frames, &mut metas);
                crate::stages::headers::Headers::run(&mut batch, &context, &mut ());
                exit.into_iter().for_each(|exit| batch.cross(0, exit));
                Forward::run(&mut batch, &context, &mut ());
                batch.metas()[0].verdict
            };
            assert_eq!(verdict(None), stays);
            assert_eq!(verdict(Some(NetworkRef(999))), Verdict::Drop(NO_RECEIVER, 0));
        }
    }
}
