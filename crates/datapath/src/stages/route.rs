//! Routes: passes on what machines send to the gateways of their networks.
//!
//! Decides the network by which a packet leaves, who gets it there, and whether it may pass (RFC
//! 1812, 5.2 and 5.3). [`crate::stages::masquerade`] writes what is decided here, once the filter
//! has let the packet pass. A routed packet has one receiver: it is never flooded.

use butterfly_packet::{arp, checksum::Sum, ethernet};

use crate::engine::{
    batch::{Batch, Consumed, Hop, Verdict},
    inside::Inside,
    mac::number,
    reason::{DropReason, ReasonInfo, drop_reasons},
    reserved::is_reserved,
};
use crate::ip::{Address, frame::arp as read_arp, mapped};
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};
use crate::world::{
    routing::{Gateway, Routing},
    snapshot::{Network, Vnic},
};

drop_reasons! { 10;
    /// The packet is for a gateway of the network, and came from another host.
    GATEWAY_FROM_WIRE = "gateway-from-wire" {
        cause: "a host that takes part in the network and does not know the router, or one that forges its address",
        remedy: "declare the same routers on all hosts of the network: compare `butterfly router list` on both",
        charged: "the network",
    }
    /// An ARP packet says that its sender has the address of a gateway.
    GATEWAY_CLAIMED = "gateway-claimed" {
        cause: "a machine that was given the gateway's address, or that wants to be taken for the gateway",
        remedy: "give the machine another address; if it is the network's router, take the gateway away (`butterfly network add --vni VNI --subnet CIDR` without `--gateway`)",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To a gateway, behind a VLAN tag.
    GATEWAY_TAGGED = "gateway-tagged" {
        cause: "a machine that uses VLANs of its own inside the network, and believes the gateway to be in one",
        remedy: "let the machine reach its gateway without a tag",
        charged: "the sender",
    }
    /// To a gateway, and neither IP nor ARP.
    GATEWAY_NOT_IP = "gateway-not-ip" {
        cause: "a machine that speaks something else than IP to its gateway",
        remedy: "nothing: a router passes on IP",
        charged: "the sender",
    }
    /// The header of the packet that is to be routed is cut short, or its checksum is wrong (RFC
    /// 1812, 5.2.2).
    IP_CHECKSUM = "ip-checksum" {
        cause: "a broken network stack in the machine",
        remedy: "replace the machine's kernel or driver, or the program in it that writes raw packets",
        charged: "the sender",
    }
    /// The source of the packet that is to be routed is not of its network.
    FOREIGN_SOURCE = "foreign-source" {
        cause: "a machine that forwards for others, or has an address that its network does not have",
        remedy: "compare the packet's source with `butterfly network list`: add the subnet, or give the machine an address of it",
        charged: "the sender",
    }
    /// To a gateway, and for a group, a broadcast or no address at all.
    ROUTE_GROUP = "route-group" {
        cause: "a machine that sends multicast to the MAC address of its gateway",
        remedy: "nothing: groups are not routed",
        charged: "the sender",
    }
    /// No network of the router has the destination.
    NO_ROUTE = "no-route" {
        cause: "a destination that no network of the router has",
        remedy: "`butterfly router list` tells the networks: attach the missing one with `butterfly router attach`",
        charged: "the sender",
    }
    /// The packet would leave by the port by which it came.
    ROUTE_BACK = "route-back" {
        cause: "a machine that sends to its gateway what is for itself, or for a neighbour in its own network",
        remedy: "look at the machine's routes: what is in its own network needs no gateway",
        charged: "the sender",
    }
    /// The packet has passed as many routers as it may (RFC 1812, 5.3.1).
    TTL_EXPIRED = "ttl-expired" {
        cause: "a loop of routers, or `traceroute`, which looks for them so",
        remedy: "nothing if somebody traces a route; else look for two routers that send to each other",
        charged: "the sender",
    }
    /// The packet is longer than the network that it leaves by allows.
    ROUTE_TOO_BIG = "route-too-big" {
        cause: "an MTU of the sender's network that is larger than that of the receiver's",
        remedy: "declare one MTU for both: `butterfly network add --vni VNI ... --mtu N`",
        charged: "the sender",
    }
    /// No machine that runs here has the destination.
    NEXT_HOP_UNKNOWN = "next-hop-unknown" {
        cause: "an address that nobody has, or whose machine is not started",
        remedy: "declare the address with its vnic (`butterfly nic update --id NIC --ip ADDRESS..`), or start the machine",
        charged: "the sender",
    }
}

/// Offset of IP behind Ethernet.
const L3: usize = ethernet::HEADER_LEN;

/// Passes packets on to other networks.
pub(crate) struct Route;

impl Stage for Route {
    const NAME: &'static str = "route";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        if let Some(routing) = &context.entry.routing {
            route(batch, routing, context);
        }
    }
}

/// Decides on what is for a gateway of the network; all other frames stay as they are.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn route(batch: &mut Batch<'_>, routing: &Routing, context: &Context<'_>) {
    if batch.unusual {
        asks(batch, routing, context);
    }
    let mut last: Option<Known<'_>> = None;
    for index in 0..batch.frames.len() {
        let Some(meta) = batch.metas().get(index) else { return };
        if meta.verdict != Verdict::Undecided || !is_reserved(meta.destination) {
            continue;
        }
        let (mac, inside) = (meta.destination, meta.inside);
        let Some(gateway) = routing.by_mac(mac) else { continue };
        let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
        let routed = match inside {
            Inside::Ip { at, vlan: 0 } if usize::from(at) == L3 => {
                let packet = (batch.frames.head(index), len);
                pass_on(packet, gateway, routing, &mut last, context)
            }
            Inside::Ip { .. } | Inside::HiddenIp => Err(GATEWAY_TAGGED),
            _ => Err(GATEWAY_NOT_IP),
        };
        match routed {
            Ok((hop, slot)) => batch.route(index, hop, Verdict::Deliver(slot)),
            Err(reason) => drop_at(batch, index, reason, context),
        }
    }
}

#[cold]
fn drop_at(batch: &mut Batch<'_>, index: usize, reason: DropReason, context: &Context<'_>) {
    if let Some(meta) = batch.parts().1.get_mut(index) {
        meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
        meta.offload = false; // nobody will look at what it claims
    }
}

/// Way of a packet: packets of a batch tend to have the same as the one before.
#[derive(Clone, Copy)]
struct Known<'a> {
    gateway: &'a Gateway,
    destination: Address,
    hop: Hop,
    slot: u32,
    mtu: u32,
}

/// Returns the way of a packet, and the slot of its receiver.
#[inline(always)]
fn pass_on<'a>(
    (head, len): (&[u8], u32),
    gateway: &'a Gateway,
    routing: &Routing,
    last: &mut Option<Known<'a>>,
    context: &Context<'_>,
) -> Result<(Hop, u32), DropReason> {
    if context.sender.is_trunk() {
        return Err(GATEWAY_FROM_WIRE);
    }
    let packet = read(head, len)?;
    if !(routing.owns(packet.source, true) || context.sender.rules.owns(packet.source)) {
        return Err(FOREIGN_SOURCE);
    }
    let known = match last {
        Some(known)
            if std::ptr::eq(known.gateway, gateway) && known.destination == packet.destination =>
        {
            known
        }
        _ => last.insert(resolve(gateway, packet.destination, context)?),
    };
    if packet.ttl <= 1 {
        return Err(TTL_EXPIRED);
    }
    // The sender cuts large segments to what its own network carries.
    if packet.len > known.mtu {
        return Err(ROUTE_TOO_BIG);
    }
    Ok((known.hop, known.slot))
}

/// What a router reads of a packet.
struct Header {
    source: Address,
    destination: Address,
    /// Length of the packet in bytes, as its header says.
    len: u32,
    ttl: u8,
}

/// Reads a header of IPv4, and checks its sum (RFC 791; RFC 1812, 5.2.2).
#[inline(always)]
fn read(head: &[u8], len: u32) -> Result<Header, DropReason> {
    let ip = head.get(L3..).ok_or(IP_CHECKSUM)?;
    let &[first, _, l0, l1, _, _, _, _, ttl, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3, ..] = ip
    else {
        return Err(IP_CHECKSUM);
    };
    if first >> 4 == 6 {
        return Err(NO_ROUTE);
    }
    let header = usize::from(first & 0xf) * 4;
    let total = u32::from(u16::from_be_bytes([l0, l1]));
    let room = len.saturating_sub(L3 as u32);
    if header < 20 || total > room || header as u32 > total {
        return Err(IP_CHECKSUM);
    }
    let bytes = ip.get(..header).ok_or(IP_CHECKSUM)?;
    if !Sum::of(bytes).is_valid() {
        return Err(IP_CHECKSUM);
    }
    Ok(Header {
        source: mapped([s0, s1, s2, s3].into()),
        destination: mapped([d0, d1, d2, d3].into()),
        len: total,
        ttl,
    })
}

/// Finds the way to an address from a gateway.
#[cold]
#[inline(never)]
fn resolve<'a>(
    gateway: &'a Gateway,
    destination: Address,
    context: &Context<'_>,
) -> Result<Known<'a>, DropReason> {
    if !is_host(destination) {
        return Err(ROUTE_GROUP);
    }
    let vni = gateway.router.network_of(destination).ok_or(NO_ROUTE)?;
    // A network without vnics here has no machine here.
    let exit = context.snapshot.network_ref(vni).ok_or(NEXT_HOP_UNKNOWN)?;
    let network = context.other(exit).ok_or(NEXT_HOP_UNKNOWN)?;
    let routing = network.routing.as_ref().ok_or(NO_ROUTE)?;
    if network.vni == context.entry.vni {
        return Err(ROUTE_BACK);
    }
    if !routing.owns(destination, true) {
        return Err(ROUTE_GROUP); // the network's broadcast
    }
    let vnic = holder(destination, network, context).ok_or(NEXT_HOP_UNKNOWN)?;
    let hop = Hop { exit, destination: number(vnic.mac), source: gateway.mac };
    Ok(Known { gateway, destination, hop, slot: vnic.place.slot, mtu: routing.mtu })
}

/// Returns whether a machine may have an address: it is of no group, no broadcast, and not this
/// host's alone (RFC 1812, 5.3.7).
fn is_host(address: Address) -> bool {
    let [a, b, c, d] = (address as u32).to_be_bytes();
    let ip = std::net::Ipv4Addr::new(a, b, c, d);
    !(ip.is_multicast() || ip.is_broadcast() || ip.is_loopback() || a == 0 || a >= 240)
}

/// Returns the one vnic of a network that has an address and whose machine runs here.
fn holder<'a>(address: Address, network: &Network, context: &Context<'a>) -> Option<&'a Vnic> {
    let holding = network.holders.get(address)?;
    let [slot] = holding.slots[..] else { return None };
    let vnic = context.snapshot.vnics.get(slot)?;
    let runs = vnic.shared.driving.load(std::sync::atomic::Ordering::Relaxed);
    let speaks = !network.waits(slot) && !vnic.is_mirror() && !vnic.rules.shared_ip;
    (runs && speaks).then_some(&**vnic)
}

/// Hears ARP of machines that ask for a gateway, or say that they are one.
#[cold]
#[inline(never)]
fn asks(batch: &mut Batch<'_>, routing: &Routing, context: &Context<'_>) {
    for index in 0..batch.frames.len() {
        let Some(meta) = batch.metas().get(index).copied() else { return };
        let Inside::Arp(at) = meta.inside else { continue };
        if meta.verdict != Verdict::Undecided {
            continue;
        }
        let Some(packet) = read_arp(batch.frames.head(index), at) else { continue };
        let (sender, target) = (mapped(packet.sender_ip()), mapped(packet.target_ip()));
        let verdict = if routing.by_address(sender).is_some() {
            Some(Err(GATEWAY_CLAIMED))
        } else if packet.operation() == arp::REQUEST && routing.by_address(target).is_some() {
            match context.sender.is_trunk() {
                true => Some(Err(GATEWAY_FROM_WIRE)),
                false if usize::from(at) != L3 => Some(Err(GATEWAY_TAGGED)),
                false => Some(Ok(Verdict::Consumed(Consumed::Arp))),
            }
        } else if routing.by_mac(meta.destination).is_some() {
            // An answer that a gateway did not ask for.
            Some(Ok(Verdict::Consumed(Consumed::Arp)))
        } else {
            None
        };
        match (verdict, batch.parts().1.get_mut(index)) {
            (Some(Ok(verdict)), Some(meta)) => meta.verdict = verdict,
            (Some(Err(reason)), Some(_)) => drop_at(batch, index, reason, context),
            _ => {}
        }
    }
}
