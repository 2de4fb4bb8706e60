//! Routes: passes on what machines send to the gateways of their networks.
//!
//! Decides the network by which a packet leaves, who gets it there, and whether it may pass (RFC
//! 1812, 5.2 and 5.3). [`crate::stages::masquerade`] writes what is decided here, once the filter
//! has let the packet pass. A routed packet has one receiver: it is never flooded.

use butterfly_packet::{
    arp, echo, ethernet,
    icmp_error::IcmpError,
    ipv4::{Ipv4, is_host},
    protocol::{ICMP, TCP, UDP},
};
use butterfly_vhost::{
    net::NetHeader,
    ring::{HEAD_MAX, KEPT_MAX},
};

use crate::engine::{
    batch::{Batch, Consumed, Hop, Meta, Verdict},
    inside::Inside,
    mac::{address, number},
    reason::{DropReason, ReasonInfo, drop_reasons},
    reserved::is_reserved,
};
use crate::ip::{Address, frame::arp as read_arp, mapped};
use crate::stages::{
    context::Context,
    far,
    forward::{ROUTER_MAC, place_of},
    leave::ANSWER,
    stage::{Stage, StageConfig},
};
use crate::world::{
    routing::{Gateway, Routing},
    snapshot::Network,
};

drop_reasons! { 10;
    /// The packet is for a gateway of the network, and came from another host.
    GATEWAY_FROM_WIRE = "gateway-from-wire" {
        cause: "a host that takes part in the network and does not know the router, or one that forges its address",
        remedy: "declare the same routers on all hosts of the network: compare `butterfly router list` on both",
        charged: "the network",
    }
    /// An ARP packet says that its sender has the address of a gateway, or a router's MAC address.
    GATEWAY_CLAIMED = "gateway-claimed" {
        cause: "a machine that was given the gateway's address, or that wants to be taken for the gateway",
        remedy: "give the machine another address; if it is the network's router, detach this one: `butterfly router detach ROUTER --vni VNI`",
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
    /// Another host routed a packet from the address of a filtered vnic that runs here.
    OWN_SOURCE_ROUTED = "own-source-routed" {
        cause: "an address that two machines have, in the network of the packet's source, or somebody who forges it",
        remedy: "`butterfly explain` names who has the address: give one of the two another one, or declare the vnic here with `--shared-ip` if both are to have it",
        charged: "the network",
    }
    /// To a gateway, and for a group, a broadcast or no address at all.
    ROUTE_GROUP = "route-group" {
        cause: "a machine that sends multicast to the MAC address of its gateway",
        remedy: "nothing: groups are not routed",
        charged: "the sender",
    }
    /// No network of the router has the destination.
    NO_ROUTE = "no-route" {
        cause: "a destination that no network of the router has, or one of IPv6, which is not routed yet",
        remedy: "`butterfly router list` tells the networks: attach the missing one with `butterfly router attach`",
        charged: "the sender",
    }
    /// The destination is in the network from which the packet came.
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
    /// To the router itself, and no request for an echo that it answers.
    GATEWAY_NO_SERVICE = "gateway-no-service" {
        cause: "a machine that takes its gateway for more than a router: for its name server or NTP server",
        remedy: "give the machine the address of a server; a gateway answers ARP and ICMP echo alone, echo in packets of 1,514 bytes at most, whole and without options",
        charged: "the sender",
    }
    /// No machine that runs here has the destination, and nobody said where it is.
    NEXT_HOP_UNKNOWN = "next-hop-unknown" {
        cause: "an address that nobody has, that several vnics have or one with `--shared-ip`, whose machine is not started, or whose machine is on another host and not declared",
        remedy: "declare the address with its vnic (`butterfly nic update --id NIC --ip ADDRESS..`) and start the machine; if it is on another host: `butterfly neighbour add --vni VNI --ip ADDRESS --mac MAC --host HOST`",
        charged: "the sender",
    }
}

/// Offset of IP behind Ethernet.
pub(super) const L3: usize = ethernet::HEADER_LEN;

/// Passes packets on to other networks.
pub(crate) struct Route;

impl Stage for Route {
    const NAME: &'static str = "route";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        if context.sender.is_trunk() {
            far::take(batch, context);
        }
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
    // Packets of a batch tend to have the same way as the one before.
    let mut known = Known::NONE;
    let (mut routed, mut answers) = (0, 0);
    let (frames, metas, hops) = batch.parts_and_hops();
    let frames = &*frames;
    let each = frames.each().zip(metas.iter_mut()).zip(hops.iter_mut()).enumerate();
    for (index, (((frame, slot), meta), hop)) in each {
        if meta.verdict != Verdict::Undecided || !is_reserved(meta.destination) {
            continue;
        }
        if !known.has(slot.bytes(), meta, frame.len) {
            let Some(gateway) = routing.by_mac(meta.destination) else { continue };
            match decide((frames.head(index), frame.len), meta, (gateway, routing), context) {
                Ok(way) => known = way,
                Err(verdict) => {
                    // Nothing is said by IPv6 yet.
                    let is_v4 = frames.head(index).get(L3).is_some_and(|first| first >> 4 == 4);
                    answers |= u64::from(is_v4 && is_answered(verdict)) << index;
                    meta.verdict = verdict;
                    continue;
                }
            }
        }
        *hop = known.hop;
        meta.verdict = known.verdict;
        routed |= 1 << index;
    }
    batch.route(routed);
    batch.answers |= answers;
}

/// Way of packets with the same ends to the same gateway.
struct Known {
    /// MAC addresses of the gateway and of the sender, as [`crate::engine::mac::number`]; 0 if
    /// there is no way yet.
    gateway: u64,
    sender: u64,
    /// Source and destination, as they stand in a packet.
    ends: [u8; 8],
    /// Longest packet in bytes, with what may be behind it.
    mtu: u32,
    /// To the receiver, here or on another host.
    verdict: Verdict,
    hop: Hop,
}

impl Known {
    const NONE: Known = Known {
        gateway: 0,
        sender: 0,
        ends: [0; 8],
        mtu: 0,
        verdict: Verdict::Undecided,
        hop: Hop::NONE,
    };

    /// Returns whether a packet may go this way: whole IPv4 without options, with a right checksum
    /// and a hop left (RFC 1812, 5.2.2 and 5.3.1). [`decide`] decides all others.
    #[inline(always)]
    fn has(&self, bytes: &[u8; HEAD_MAX], meta: &Meta, len: u32) -> bool {
        let &[_, _, _, _, _, _, _, _, _, _, _, _, t0, t1, ref ip @ ..] = bytes;
        let Some((header, _)) = ip.split_first_chunk::<20>() else { return false };
        let &[first, _, l0, l1, _, _, _, _, ttl, _, _, _, ref ends @ ..] = header;
        let total = u32::from(u16::from_be_bytes([l0, l1]));
        meta.destination == self.gateway
            && meta.source == self.sender
            && *ends == self.ends
            && [t0, t1, first] == [0x08, 0x00, 0x45]
            && total >= 20
            && total + L3 as u32 <= len
            && len.saturating_sub(L3 as u32) <= self.mtu
            && ttl > 1
            && is_sum_right(header)
    }
}

/// Returns whether the checksum of a header without options is right (RFC 1071).
#[inline(always)]
fn is_sum_right(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff) == 0xffff
}

/// Decides on a packet to a gateway. Returns its way, or another verdict.
#[cold]
#[inline(never)]
fn decide(
    (head, len): (&[u8], u32),
    meta: &mut Meta,
    (gateway, routing): (&Gateway, &Routing),
    context: &Context<'_>,
) -> Result<Known, Verdict> {
    let way = match meta.inside {
        _ if is_reserved(meta.source) => Err(ROUTER_MAC),
        _ if context.sender.is_trunk() => Err(GATEWAY_FROM_WIRE),
        Inside::Ip { at, vlan: 0 } if usize::from(at) == L3 => {
            pass_on((head, len), meta, (gateway, routing), context)
        }
        Inside::Ip { .. } | Inside::HiddenIp => Err(GATEWAY_TAGGED),
        _ => Err(GATEWAY_NOT_IP),
    };
    way.map_err(|reason| {
        meta.offload = false; // nobody will look at what it claims
        let fits = len as usize <= KEPT_MAX;
        let echo = echo::request(head).filter(|len| *len <= ANSWER && fits);
        if reason == GATEWAY_NO_SERVICE && echo.is_some() {
            Verdict::Consumed(Consumed::Echo)
        } else {
            Verdict::Drop(reason, context.sender.place.slot)
        }
    })
}

/// Returns whether the sender hears of a verdict.
fn is_answered(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Consumed(_) => true,
        Verdict::Drop(reason, _) => error_about(reason, 0, 0).is_some(),
        _ => false,
    }
}

/// Returns the error about a packet of a protocol that goes no further for this reason. `mtu` is
/// the longest packet that would.
pub(crate) fn error_about(reason: DropReason, protocol: u8, mtu: u32) -> Option<IcmpError> {
    match reason {
        TTL_EXPIRED => Some(IcmpError::EXPIRED),
        NO_ROUTE => Some(IcmpError::NO_NETWORK),
        NEXT_HOP_UNKNOWN => Some(IcmpError::NO_HOST),
        ROUTE_TOO_BIG => Some(IcmpError::too_big(mtu)),
        GATEWAY_NO_SERVICE if [TCP, UDP].contains(&protocol) => Some(IcmpError::NO_PORT),
        GATEWAY_NO_SERVICE if protocol == ICMP => None, // it speaks ICMP
        GATEWAY_NO_SERVICE => Some(IcmpError::NO_PROTOCOL),
        _ => None,
    }
}

/// Returns the way of a packet.
fn pass_on(
    (head, len): (&[u8], u32),
    meta: &Meta,
    (gateway, routing): (&Gateway, &Routing),
    context: &Context<'_>,
) -> Result<Known, DropReason> {
    let packet = read(head, len)?;
    let owned = routing.owns(packet.source) || context.sender.rules.owns(packet.source);
    if !owned || routing.by_address(packet.source).is_some() {
        return Err(FOREIGN_SOURCE);
    }
    if gateway.router.has(packet.destination) {
        return Err(GATEWAY_NO_SERVICE); // also if it has no hop left: it is there
    }
    let known = resolve((gateway, meta), &packet, context)?;
    if packet.ttl <= 1 {
        return Err(TTL_EXPIRED);
    }
    if longest(meta, len) > known.mtu {
        return Err(ROUTE_TOO_BIG);
    }
    Ok(known)
}

/// Returns the length in bytes of the packet in a frame of `len` bytes, or of the longest that it
/// is cut into. Bytes behind the packet go along with it, so they count.
fn longest(meta: &Meta, len: u32) -> u32 {
    let len = len.saturating_sub(L3 as u32);
    if !meta.offload || meta.net.gso_type & !NetHeader::GSO_ECN == NetHeader::GSO_NONE {
        return len;
    }
    let headers = u32::from(meta.payload).saturating_sub(L3 as u32);
    len.min(headers + u32::from(meta.net.gso_size))
}

/// Header of a packet, as far as a router reads it.
pub(super) struct Header {
    pub source: Address,
    destination: Address,
    /// Both as they stand in the packet.
    ends: [u8; 8],
    ttl: u8,
}

/// Reads a header of IPv4, and checks its sum (RFC 791; RFC 1812, 5.2.2).
pub(super) fn read(head: &[u8], len: u32) -> Result<Header, DropReason> {
    let bytes = head.get(L3..).unwrap_or_default();
    if bytes.first().is_some_and(|first| first >> 4 == 6) {
        return Err(NO_ROUTE);
    }
    let room = len.saturating_sub(L3 as u32) as usize;
    let ip = Ipv4::parse(bytes)
        .ok()
        .filter(|ip| ip.total_len() <= room && ip.checksum_is_valid())
        .ok_or(IP_CHECKSUM)?;
    let ends = bytes.get(ENDS..).and_then(|ends| ends.first_chunk()).ok_or(IP_CHECKSUM)?;
    let (source, destination) = (mapped(ip.source()), mapped(ip.destination()));
    Ok(Header { source, destination, ends: *ends, ttl: ip.ttl() })
}

/// Offset of both addresses in a header of IPv4.
const ENDS: usize = 12;

/// Finds the way of a packet from a gateway.
fn resolve(
    (gateway, meta): (&Gateway, &Meta),
    packet: &Header,
    context: &Context<'_>,
) -> Result<Known, DropReason> {
    let destination = packet.destination;
    if !is_host((destination as u32).into()) {
        return Err(ROUTE_GROUP);
    }
    let vni = gateway.router.network_of(destination).ok_or(NO_ROUTE)?;
    // Without a tunnel, a network without vnics here leads nowhere.
    let exit = context.snapshot.network_ref(vni).ok_or(NEXT_HOP_UNKNOWN)?;
    let network = context.other(exit).ok_or(NEXT_HOP_UNKNOWN)?;
    let routing = network.routing.as_ref().ok_or(NO_ROUTE)?;
    if network.vni == context.entry.vni {
        return Err(ROUTE_BACK);
    }
    if !routing.owns(destination) {
        return Err(ROUTE_GROUP); // the network's broadcast
    }
    let (mac, verdict) = next_hop(destination, network, context).ok_or(NEXT_HOP_UNKNOWN)?;
    let from = match (verdict, context.tunnel) {
        (Verdict::Tunnel(_), Some(tunnel)) => tunnel.router_mac,
        _ => address(gateway.mac),
    };
    let mut macs = [0; 12];
    macs.iter_mut().zip(address(mac).0.into_iter().chain(from.0)).for_each(|(to, byte)| *to = byte);
    Ok(Known {
        gateway: meta.destination,
        sender: meta.source,
        ends: packet.ends,
        mtu: mtu_of(verdict, routing, context),
        verdict,
        hop: Hop { macs, exit },
    })
}

/// Returns the longest packet in bytes that may leave by a network with this verdict.
fn mtu_of(verdict: Verdict, routing: &Routing, context: &Context<'_>) -> u32 {
    match (verdict, context.tunnel) {
        (Verdict::Tunnel(_), Some(tunnel)) => routing.mtu.min(tunnel.inner_mtu()),
        _ => routing.mtu,
    }
}

/// Returns the gateway to which a machine sent a packet, and the longest one that may pass there,
/// in bytes.
pub(crate) fn gateway_of<'a>(
    head: &[u8],
    meta: &Meta,
    context: &Context<'a>,
) -> Option<(&'a Gateway, u32)> {
    let gateway = context.entry.routing.as_ref()?.by_mac(meta.destination)?;
    let &[d0, d1, d2, d3] = head.get(L3 + 16..)?.first_chunk::<4>()?;
    let destination = mapped([d0, d1, d2, d3].into());
    let exit = gateway.router.network_of(destination);
    let network = exit.and_then(|vni| context.snapshot.network(vni));
    let mtu = network.and_then(|network| {
        let (_, verdict) = next_hop(destination, network, context)?;
        Some(mtu_of(verdict, network.routing.as_ref()?, context))
    });
    Some((gateway, mtu.unwrap_or(u32::MAX)))
}

/// Returns the MAC address of the machine of a network that has an address, and the verdict that
/// leads there: to the one vnic here that declares it and whose machine runs, else to where the
/// address is declared to be, or the machine's MAC address was heard last.
fn next_hop(address: Address, network: &Network, context: &Context<'_>) -> Option<(u64, Verdict)> {
    let mut here = None;
    if let Some(holding) = network.holders.get(address) {
        // Of several machines with one address nobody knows which one has it now.
        let [slot] = holding.slots[..] else { return None };
        let vnic = context.snapshot.vnics.get(slot)?;
        if network.waits(slot) || vnic.is_mirror() || vnic.rules.shared_ip {
            return None;
        }
        if vnic.shared.driving.load(std::sync::atomic::Ordering::Relaxed) {
            return Some((number(vnic.mac), Verdict::Deliver(slot)));
        }
        here = Some((slot, number(vnic.mac)));
    }
    let found = context.snapshot.neighbours.get(network.vni, address);
    let mac = found.map(|found| found.mac).or(here.map(|(_, mac)| mac))?;
    let host = found.and_then(|found| found.host).zip(context.tunnel);
    let verdict = match host.filter(|(host, tunnel)| *host != tunnel.own) {
        Some((host, tunnel)) => Verdict::Tunnel(tunnel.peers.find(host)?),
        None => place_of(mac, network, context)?,
    };
    let leads = match verdict {
        Verdict::Tunnel(_) => network.remote.is_some() && context.remote().is_some(),
        // Its machine does not run.
        Verdict::Deliver(slot) => here.is_none_or(|(away, _)| away != slot),
        _ => false,
    };
    leads.then_some((mac, verdict))
}

#[cold]
fn drop_at(batch: &mut Batch<'_>, index: usize, reason: DropReason, context: &Context<'_>) {
    if let Some(meta) = batch.parts().1.get_mut(index) {
        meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
        meta.offload = false; // nobody will look at what it claims
    }
}

/// Hears ARP of machines that ask for a gateway, or say that they are one.
#[cold]
#[inline(never)]
fn asks(batch: &mut Batch<'_>, routing: &Routing, context: &Context<'_>) {
    for index in 0..batch.frames.len() {
        let Some(meta) = batch.metas().get(index).copied() else { return };
        let Inside::Arp(at) = meta.inside else { continue };
        if meta.verdict != Verdict::Undecided || is_reserved(meta.source) {
            continue;
        }
        let head = batch.frames.head(index);
        let claims = says(head, at)
            .is_some_and(|(mac, ip)| is_reserved(mac) || routing.by_address(ip).is_some());
        let verdict = match read_arp(head, at) {
            _ if claims => Some(Err(GATEWAY_CLAIMED)),
            Some(packet) => {
                let asks = packet.operation() == arp::REQUEST
                    && routing.by_address(mapped(packet.target_ip())).is_some();
                let concerns = asks || routing.by_mac(meta.destination).is_some();
                concerns.then_some(match context.sender.is_trunk() {
                    true => Err(GATEWAY_FROM_WIRE),
                    false if usize::from(at) != L3 => Err(GATEWAY_TAGGED),
                    // To a gateway that is not asked for: an answer that it did not ask for.
                    _ => Ok(Verdict::Consumed(Consumed::Arp)),
                })
            }
            None => None,
        };
        match (verdict, batch.parts().1.get_mut(index)) {
            (Some(Ok(verdict)), Some(meta)) => {
                meta.verdict = verdict;
                batch.answers |= 1 << index;
            }
            (Some(Err(reason)), Some(_)) => drop_at(batch, index, reason, context),
            _ => {}
        }
    }
}

/// Reads the addresses that an ARP packet says its sender has, as loosely as any host reads them:
/// Linux also takes the hardware type of IEEE 802.
fn says(head: &[u8], at: u16) -> Option<(u64, Address)> {
    let at = usize::from(at);
    match head.get(at..at + arp::LEN)? {
        &[_, _, 8, 0, 6, 4, _, _, m0, m1, m2, m3, m4, m5, s0, s1, s2, s3, ..] => {
            let mac = u64::from_le_bytes([m0, m1, m2, m3, m4, m5, 0, 0]);
            Some((mac, mapped([s0, s1, s2, s3].into())))
        }
        _ => None,
    }
}
