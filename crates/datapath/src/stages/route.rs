//! Routes: passes on what machines send to the gateways of their networks.
//!
//! Decides the network by which a packet leaves, who gets it there, and whether it may pass (RFC
//! 1812, 5.2 and 5.3). [`crate::stages::masquerade`] writes what is decided here, once the filter
//! has let the packet pass. A routed packet has one receiver: it is never flooded.

use butterfly_packet::{
    Error, arp, echo, ethernet,
    icmp::v6,
    icmp_error::IcmpError,
    ipv4::Ipv4,
    ipv6::{self, Ipv6},
    protocol::{
        AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMP, ICMPV6, NO_NEXT_HEADER,
        ROUTING, TCP, UDP,
    },
};
use butterfly_vhost::ring::{HEAD_MAX, KEPT_MAX};

use crate::engine::{
    batch::{Batch, Consumed, Hop, Meta, Verdict},
    inside::Inside,
    mac::{address, number},
    reason::{DropReason, ReasonInfo, drop_reasons},
    reserved::{TRANSLATED, is_reserved},
};
use crate::ip::{
    Address, Discovery, HEADERS_TOO_LONG, L4, MALFORMED_IP, Packet,
    discovery::{is_link_local, is_multicast},
    frame::arp as read_arp,
    is_v4, mapped,
};
use crate::stages::{
    asks::{self, NEXT_HOP_LIMIT},
    claims::{IP_CLAIMED, is_claimed, may_be_discovery},
    context::Context,
    course::{course, is_behind, is_free, is_host},
    cuts::{Cuts, Unfit},
    far,
    filter::read::read as read_packet,
    forward::{MAC_CLAIMED, ROUTER_MAC, place_of},
    leases, leases6,
    leave::ANSWER,
    outward::{Barred, may_enter, may_pass, turns_at},
    stage::{Stage, StageConfig},
};
use crate::world::{
    asking::{AskPlace, Wanted},
    bindings::Voice,
    outside::Outside,
    routing::{Gateway, RouteEntry, Routing},
    snapshot::{Network, PortKind},
    ways::{Course, Leads, MAX_WAYS, Passage},
};

drop_reasons! { 10;
    /// The packet is for a gateway of the network, and came from another host.
    GATEWAY_FROM_WIRE = "gateway-from-wire" {
        cause: "a host that takes part in the network and does not know the router, or one that forges its address",
        remedy: "declare the same routers on all hosts of the network: compare `butterfly router list` on both",
        charged: "the network",
    }
    /// ARP or neighbour discovery says that its sender has the address of a gateway, or a router's
    /// MAC address.
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
    /// 1812, 5.2.2). IPv6 has none.
    IP_CHECKSUM = "ip-checksum" {
        cause: "a broken network stack in the machine",
        remedy: "replace the machine's kernel or driver, or the program in it that writes raw packets",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The source of the packet that is to be routed is not of its network.
    FOREIGN_SOURCE = "foreign-source" {
        cause: "a machine that forwards for others to which no route leads by it, or has an address that its network does not have; or one that sends from its link-local address, which is never routed. Of a network: another host routed the packet here, and no router of this host leads back to its source, a neighbour says that its machine is on another host, or what is outside did not come from the host that leads out (`--via`)",
        remedy: "compare the packet's source with `butterfly network list`: add the subnet, or give the machine an address of it; if it forwards, lead to the others by it with `butterfly route add`; of a network compare `butterfly network list` and `butterfly router list` on both hosts",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// Another host routed a packet from the address of a filtered vnic that runs here.
    OWN_SOURCE_ROUTED = "own-source-routed" {
        cause: "an address that two machines have, in the network of the packet's source, or somebody who forges it",
        remedy: "`butterfly explain` names who has the address: give one of the two another one, or declare the vnic here with `--shared-ip` if both are to have it, which no router then reaches",
        charged: "the network",
    }
    /// To a gateway, and for a group, a broadcast, a link-local address or none at all.
    ROUTE_GROUP = "route-group" {
        cause: "a machine that sends multicast to the MAC address of its gateway",
        remedy: "nothing: groups are not routed",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// No network of the router has the destination.
    NO_ROUTE = "no-route" {
        cause: "a destination that no network of the router has, and no route leads to; or to the outside, an external that is not in effect (`butterfly external list`) or not attached",
        remedy: "`butterfly router list` tells the networks, `butterfly route list` the routes: attach the missing network with `butterfly router attach`, or lead there with `butterfly route add`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The destination is in the network from which the packet came, or behind a machine of it.
    ROUTE_BACK = "route-back" {
        cause: "a machine that sends to its gateway what is for itself, or for a neighbour in its own network; or a route by a machine of the sender's network",
        remedy: "look at the machine's routes: what is in its own network needs no gateway, and what is behind a machine of it is sent to that machine",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The packet has passed as many routers as it may (RFC 1812, 5.3.1; RFC 8200, 3).
    TTL_EXPIRED = "ttl-expired" {
        cause: "a loop of routers, or `traceroute`, which looks for them so",
        remedy: "nothing if somebody traces a route; else look for two routers that send to each other",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The packet is longer than the network that it leaves by allows, and forbids fragments, as
    /// all of IPv6 does.
    ROUTE_TOO_BIG = "route-too-big" {
        cause: "an MTU of the sender's network that is larger than what the packet leaves by takes: the receiver's network, the tunnel or a wire",
        remedy: "nothing if a vnic of this host sent it and uses path MTU discovery, as it is told the MTU; else declare one MTU for both: `butterfly network add --vni VNI ... --mtu N`; of what another host leads out: `butterfly external add EXTERNAL --via HOST --mtu N`, as its interface takes",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To the router itself, and no request for an echo that it answers.
    GATEWAY_NO_SERVICE = "gateway-no-service" {
        cause: "a machine that takes its gateway for more than a router: for its name server or NTP server",
        remedy: "give the machine the address of a server; a gateway answers ARP, neighbour discovery and ICMP echo alone, echo in packets of 1,514 bytes at most, whole and without options or extension headers",
        charged: "the sender",
    }
    /// No machine that runs here has the destination, nobody said where it is, and nobody who was
    /// asked answered.
    NEXT_HOP_UNKNOWN = "next-hop-unknown" {
        cause: "an address that nobody has, that several vnics have or one with `--shared-ip`, whose machine is not started, or whose machine is on another host and neither declared nor answering, or on one that cannot be reached: the daemon has no tunnel (`-i`), or the neighbour's `--host` is this host, or of the other family",
        remedy: "declare the address with its vnic (`butterfly nic update --id NIC --ip ADDRESS..`) and start the machine; if it is on another host: `butterfly neighbour add --vni VNI --ip ADDRESS --mac MAC --host HOST`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A route of the router says that nobody has the destination.
    ROUTE_BLACKHOLE = "route-blackhole" {
        cause: "a destination that is in the block of a route without machines",
        remedy: "nothing if that is meant; else look for the block in `butterfly route list` and take the route back with `butterfly route del`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The packet has a routing header of type 0, which tells routers where to send it (RFC 5095).
    SOURCE_ROUTED = "source-routed" {
        cause: "a program that looks for a way round filters, or a very old one",
        remedy: "find the program that sends it: no network stack makes such packets by itself",
        charged: "the sender, or the network if the frame came from another host",
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
        if !context.entry.may_be_routed {
            return;
        }
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
    let wire = routing.wire_mac();
    if wire != u64::MAX
        && !context.sender.is_wire()
        && let Some(outside) = &routing.outside
    {
        keep_gateways(batch, outside, context);
    }
    if batch.unusual {
        hear(batch, routing, context);
    }
    if let Some(leasing) = &routing.leasing {
        leases::hear(batch, (routing, leasing), context);
    }
    if let Some(leasing) = &routing.leasing6 {
        leases6::hear(batch, (routing, leasing), context);
    }
    let mut ways = Ways::default();
    let mut extended = false;
    loop {
        let (mut routed, mut answers, mut deep) = (0, 0, 0);
        let (frames, metas, hops) = batch.parts_and_hops();
        let frames = &*frames;
        let each = frames.each().zip(metas.iter_mut()).zip(hops.iter_mut()).enumerate();
        for (index, (((frame, slot), meta), hop)) in each {
            let ours = is_reserved(meta.destination) || meta.destination == wire;
            if meta.verdict != Verdict::Undecided || !ours {
                continue;
            }
            let way = if ways.v4.has_v4(slot.bytes(), meta, frame.len) {
                &ways.v4.way
            } else if ways.v6.has_v6(slot.bytes(), meta, frame.len) {
                &ways.v6.way
            } else {
                let offload = meta.offload;
                match ways.another(index, (frames.head(index), frame.len), meta, routing, context) {
                    Ok(way) => way,
                    Err(Verdict::Undecided) => continue, // to no gateway
                    Err(Verdict::Drop(HEADERS_TOO_LONG, _)) if !extended => {
                        meta.offload = offload;
                        deep |= 1 << index;
                        continue;
                    }
                    Err(verdict) => {
                        answers |= u64::from(is_answered(verdict, routing)) << index;
                        meta.verdict = verdict;
                        continue;
                    }
                }
            };
            *hop = way.hop;
            meta.verdict = way.verdict;
            routed |= 1 << index;
        }
        batch.cuts |= ways.cut;
        batch.segments |= ways.cut != 0;
        batch.outward |= ways.leaves;
        if ways.leases {
            routed = leases6::stop_others(batch, routed, context);
        }
        batch.route(routed);
        batch.answers |= answers;
        if deep == 0 {
            return;
        }
        extend(batch, deep);
        extended = true;
    }
}

/// Ways that packets of a batch take: they tend to have the same as the one before.
struct Ways<'a> {
    v4: Known<8>,
    v6: Known<32>,
    /// Way of the last packet of a route with several. Packets with the same ends may have others.
    of_several: Onward,
    silent: Silent<'a>,
    /// Fragments of all packets so far, and a bit for each frame that is cut.
    cuts: Cuts,
    cut: u64,
    /// A packet goes to a network that gives its vnics their addresses itself.
    leases: bool,
    /// A packet leaves by the outside of an external.
    leaves: bool,
}

impl Default for Ways<'_> {
    #[inline(always)]
    fn default() -> Self {
        Ways {
            v4: Known::NONE,
            v6: Known::NONE,
            of_several: Onward::NONE,
            silent: Silent::default(),
            cuts: Cuts::default(),
            cut: 0,
            leases: false,
            leaves: false,
        }
    }
}

impl<'a> Ways<'a> {
    /// Decides on a packet that has none of these ways. Undecided is one to no gateway.
    #[cold]
    #[inline(never)]
    fn another(
        &mut self,
        index: usize,
        packet: (&[u8], u32),
        meta: &mut Meta,
        routing: &'a Routing,
        context: &Context<'_>,
    ) -> Result<&Onward, Verdict> {
        let gateway = if meta.destination == routing.wire_mac() {
            let gateway = gateway_on_wire(packet, meta, routing, context);
            gateway.map_err(|reason| refusal(reason, packet, meta, context))?
        } else {
            routing.by_mac(meta.destination).ok_or(Verdict::Undecided)?
        };
        let memory = (&mut self.silent, &mut self.cuts);
        let decided = decide(packet, meta, (gateway, routing), memory, context)?;
        let Decided { ends, way, several } = decided;
        self.cut |= u64::from(meta.offload && meta.cut.packets != 0) << index;
        self.leases |= way.leases;
        self.leaves |= way.leaves;
        if several {
            self.of_several = way;
            return Ok(&self.of_several);
        }
        Ok(match ends {
            Ends::V4(ends) => self.v4.note(ends, meta, way),
            Ends::V6(ends) => self.v6.note(ends, meta, way),
        })
    }
}

/// Way of a packet.
#[derive(Clone, Copy)]
pub(super) struct Onward {
    pub hop: Hop,
    /// To the receiver, here or on another host.
    pub verdict: Verdict,
    /// Longest packet in bytes, with what may be behind it.
    pub mtu: u32,
    /// The network that it leads to gives its vnics their addresses itself.
    pub leases: bool,
    /// It leads to the outside of an external.
    pub leaves: bool,
}

impl Onward {
    const NONE: Onward = Onward {
        hop: Hop::NONE,
        verdict: Verdict::Undecided,
        mtu: 0,
        leases: false,
        leaves: false,
    };
}

/// Way of a packet with these ends.
struct Decided {
    ends: Ends,
    way: Onward,
    /// The route has several ways, of which this is the flow's.
    several: bool,
}

/// Way of packets with the same ends to the same gateway. Source and destination, as they stand in
/// a packet, have `N` bytes.
struct Known<const N: usize> {
    /// MAC addresses of the gateway and of the sender, as [`crate::engine::mac::number`]; 0 if
    /// there is no way yet.
    gateway: u64,
    sender: u64,
    ends: [u8; N],
    way: Onward,
}

impl<const N: usize> Known<N> {
    const NONE: Known<N> = Known { gateway: 0, sender: 0, ends: [0; N], way: Onward::NONE };

    /// Notes the way of a packet, for those that follow.
    fn note(&mut self, ends: [u8; N], meta: &Meta, way: Onward) -> &Onward {
        *self = Known { gateway: meta.destination, sender: meta.source, ends, way };
        &self.way
    }
}

impl Known<8> {
    /// Returns whether a packet may go this way: whole IPv4 without options, with a right checksum
    /// and a hop left (RFC 1812, 5.2.2 and 5.3.1). [`decide`] decides all others.
    #[inline(always)]
    fn has_v4(&self, bytes: &[u8; HEAD_MAX], meta: &Meta, len: u32) -> bool {
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
            && len.saturating_sub(L3 as u32) <= self.way.mtu
            && ttl > 1
            && is_sum_right(header)
    }
}

impl Known<32> {
    /// The same of IPv6, whose header has no checksum: whole, without extension headers, and with a
    /// hop left (RFC 8200, 3).
    #[inline(always)]
    fn has_v6(&self, bytes: &[u8; HEAD_MAX], meta: &Meta, len: u32) -> bool {
        let &[_, _, _, _, _, _, _, _, _, _, _, _, t0, t1, ref ip @ ..] = bytes;
        let Some((header, _)) = ip.split_first_chunk::<{ ipv6::LEN }>() else { return false };
        let &[first, _, _, _, l0, l1, next, hops, ref ends @ ..] = header;
        let total = ipv6::LEN as u32 + u32::from(u16::from_be_bytes([l0, l1]));
        meta.destination == self.gateway
            && meta.source == self.sender
            && *ends == self.ends
            && [t0, t1, first & 0xf0] == [0x86, 0xdd, 0x60]
            && total + L3 as u32 <= len
            && len.saturating_sub(L3 as u32) <= self.way.mtu
            && hops > 1
            && !is_extension(next)
    }
}

/// Returns whether a header of IPv6 leads to another one.
#[inline(always)]
fn is_extension(kind: u8) -> bool {
    matches!(kind, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
}

/// Reads more of some frames: extension headers of IPv6 end behind the bytes at hand.
#[cold]
fn extend(batch: &mut Batch<'_>, which: u64) {
    for index in 0..batch.frames.len() {
        if which.wrapping_shr(index as u32) & 1 == 1 {
            batch.frames.extend_head(index);
        }
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

/// Returns the gateway to which a packet from a wire goes, or why it is dropped.
fn gateway_on_wire<'a>(
    (head, len): (&[u8], u32),
    meta: &Meta,
    routing: &'a Routing,
    context: &Context<'_>,
) -> Result<&'a Gateway, DropReason> {
    match meta.inside {
        Inside::Ip { at, vlan: 0 } if usize::from(at) == L3 => {}
        Inside::Ip { .. } | Inside::HiddenIp => return Err(GATEWAY_TAGGED),
        _ => return Err(GATEWAY_NOT_IP),
    }
    let destination = read(head, len)?.destination;
    let gateway = routing.on_wire(destination, context.entry.vni);
    gateway.ok_or(match routing.answers_for(destination) {
        Some(_) => GATEWAY_NO_SERVICE, // this host's own there, of no router
        None => NO_ROUTE,
    })
}

/// Returns the name of a bar.
pub(super) fn barred(why: Barred) -> DropReason {
    match why {
        Barred::Foreign => FOREIGN_SOURCE,
        Barred::NoRoute => NO_ROUTE,
        Barred::By(reason) => reason,
    }
}

/// Returns the name of the reason for which a packet cannot be made to fit.
pub(super) fn unfit(why: Unfit) -> DropReason {
    match why {
        Unfit::TooBig => ROUTE_TOO_BIG,
        Unfit::By(reason) => reason,
    }
}

/// Decides on a packet to a gateway. Returns its way, or another verdict.
#[cold]
#[inline(never)]
fn decide<'a>(
    (head, len): (&[u8], u32),
    meta: &mut Meta,
    (gateway, routing): (&'a Gateway, &Routing),
    (silent, cuts): (&mut Silent<'a>, &mut Cuts),
    context: &Context<'_>,
) -> Result<Decided, Verdict> {
    let way = match meta.inside {
        _ if is_reserved(meta.source) => Err(ROUTER_MAC),
        _ if context.sender.is_trunk() => Err(GATEWAY_FROM_WIRE),
        Inside::Ip { at, vlan: 0 } if usize::from(at) == L3 => {
            pass_on((head, len), meta, (gateway, routing), silent, context)
        }
        Inside::Ip { .. } | Inside::HiddenIp => Err(GATEWAY_TAGGED),
        _ => Err(GATEWAY_NOT_IP),
    };
    let way = way.and_then(|decided| {
        cuts.fit((head, len), meta, decided.way.mtu, context).map_err(unfit)?;
        Ok(decided)
    });
    way.map_err(|reason| {
        // From outside nothing waits, and nothing is asked for but what an operator named as the
        // inside of a translation: anybody there could have us ask without end.
        if reason == NEXT_HOP_UNKNOWN && (routing.outside.is_none() || is_translated(meta)) {
            meta.offload = false;
            let verdict = seek(wanted((head, len), gateway, context), context);
            let waits = verdict == Verdict::Consumed(Consumed::Waits);
            return match waits && is_translated(meta) {
                true => Verdict::Drop(NEXT_HOP_UNKNOWN, context.sender.place.slot),
                false => verdict,
            };
        }
        refusal(reason, (head, len), meta, context)
    })
}

/// Returns the verdict on a packet to a gateway that goes no further for this reason.
fn refusal(
    reason: DropReason,
    (head, len): (&[u8], u32),
    meta: &mut Meta,
    context: &Context<'_>,
) -> Verdict {
    meta.offload = false; // nobody will look at what it claims
    let fits = len as usize <= KEPT_MAX;
    let echo = echo::request(head).filter(|len| *len <= ANSWER && fits);
    if reason == GATEWAY_NO_SERVICE && echo.is_some() {
        Verdict::Consumed(Consumed::Echo)
    } else {
        Verdict::Drop(reason, context.sender.place.slot)
    }
}

/// Returns whether the destination of a packet was translated.
fn is_translated(meta: &Meta) -> bool {
    meta.destination & TRANSLATED != 0
}

/// Returns whether the sender hears of a verdict. Nobody outside gets errors.
fn is_answered(verdict: Verdict, routing: &Routing) -> bool {
    match verdict {
        Verdict::Consumed(_) => true,
        Verdict::Drop(reason, _) => {
            routing.outside.is_none() && error_about(reason, Inner::Ports, 0).is_some()
        }
        _ => false,
    }
}

/// Contents of a packet, as far as a router for which it is tells of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inner {
    /// A protocol whose ports it would have.
    Ports,
    /// ICMP of the packet's family, which it speaks, or nothing.
    Spoken,
    /// Another protocol.
    Unknown,
}

/// Returns the error about a packet that goes no further for this reason. `mtu` is the longest
/// packet that would.
pub(crate) fn error_about(reason: DropReason, inner: Inner, mtu: u32) -> Option<IcmpError> {
    match (reason, inner) {
        (TTL_EXPIRED, _) => Some(IcmpError::Expired),
        (NO_ROUTE | ROUTE_BLACKHOLE, _) => Some(IcmpError::NoNetwork),
        (NEXT_HOP_UNKNOWN, _) => Some(IcmpError::NoHost),
        (ROUTE_TOO_BIG, _) => Some(IcmpError::TooBig(mtu)),
        (GATEWAY_NO_SERVICE, Inner::Ports) => Some(IcmpError::NoPort),
        (GATEWAY_NO_SERVICE, Inner::Unknown) => Some(IcmpError::NoProtocol),
        _ => None,
    }
}

/// Returns the way of a packet.
fn pass_on<'a>(
    (head, len): (&[u8], u32),
    meta: &Meta,
    (gateway, routing): (&'a Gateway, &Routing),
    silent: &mut Silent<'a>,
    context: &Context<'_>,
) -> Result<Decided, DropReason> {
    let packet = read(head, len)?;
    let behind = if routing.outside.is_some() {
        let from = (packet.source, meta.source);
        may_enter(from, &gateway.router, routing, context).map_err(barred)?;
        let known = is_translated(meta)
            || gateway.router.is_known_outside(packet.destination, context.entry.vni);
        if !known && !gateway.addresses.contains(&packet.destination) {
            return Err(NO_ROUTE);
        }
        true
    } else {
        let owned = routing.owns(packet.source) || context.sender.rules.declares(packet.source);
        let behind = !owned && is_behind(packet.source, &gateway.router, context);
        // RFC 4291, 2.5.6.
        let is_near = is_link_local(packet.source);
        if !owned && !behind || is_near || routing.by_address(packet.source).is_some() {
            return Err(FOREIGN_SOURCE);
        }
        behind
    };
    if gateway.router.has(packet.destination) {
        return Err(GATEWAY_NO_SERVICE); // also if it has no hop left: it is there
    }
    let course = || course_of(head, len).ok_or(HEADERS_TOO_LONG);
    let to = packet.destination;
    let Choice { way, several } = choose((gateway, routing), to, course, silent, context)?;
    if let Some(exit) = context.other(way.hop.exit).and_then(|exit| exit.routing.as_deref()) {
        may_pass((to, is_translated(meta)), gateway, (routing, exit), context).map_err(barred)?;
    }
    // An address of this host outside is one that `may_enter` looked at.
    let of_host = || routing.outside.is_some() && routing.answers_for(packet.source).is_some();
    let is_free = |exit| of_host() || is_free(packet.source, exit, context);
    if behind && !context.other(way.hop.exit).is_some_and(is_free) {
        return Err(FOREIGN_SOURCE);
    }
    // Here the filter asks whose the source is, if the receiver has one. Another host cannot know,
    // and nobody outside.
    let sender = context.sender;
    let is_far = matches!(way.verdict, Verdict::Tunnel(_));
    if (is_far || way.leaves)
        && sender.rules.bypass
        && !sender.rules.forwards
        && is_claimed(sender, packet.source, Voice::Speaking, context)
    {
        return Err(IP_CLAIMED);
    }
    if packet.hops <= 1 {
        return Err(TTL_EXPIRED);
    }
    Ok(Decided { ends: packet.ends, way, several })
}

/// Source and destination, as they stand in a packet.
enum Ends {
    V4([u8; 8]),
    V6([u8; 32]),
}

/// Header of a packet, as far as a router reads it.
pub(super) struct Header {
    pub source: Address,
    pub destination: Address,
    ends: Ends,
    /// Time to live, or hop limit.
    pub hops: u8,
}

/// Reads the header of a packet that is whole, as far as the frame has `len` bytes.
pub(super) fn read(head: &[u8], len: u32) -> Result<Header, DropReason> {
    let bytes = head.get(L3..).unwrap_or_default();
    let room = len.saturating_sub(L3 as u32) as usize;
    match bytes.first().map(|first| first >> 4) {
        Some(6) => read_v6(bytes, room),
        _ => read_v4(bytes, room).ok_or(IP_CHECKSUM),
    }
}

/// Reads a header of IPv4, and checks its sum (RFC 791; RFC 1812, 5.2.2).
fn read_v4(bytes: &[u8], room: usize) -> Option<Header> {
    let ip = Ipv4::parse(bytes).ok()?;
    let ends = bytes.get(ENDS..)?.first_chunk()?;
    let (source, destination) = (mapped(ip.source()), mapped(ip.destination()));
    let header = Header { source, destination, ends: Ends::V4(*ends), hops: ip.ttl() };
    (ip.total_len() <= room && ip.checksum_is_valid()).then_some(header)
}

/// Reads a header of IPv6 (RFC 8200, 3), and looks for one that tells the way (RFC 5095).
fn read_v6(bytes: &[u8], room: usize) -> Result<Header, DropReason> {
    let ip = Ipv6::parse(bytes).map_err(|_| IP_CHECKSUM)?;
    let ends = bytes.get(ENDS_V6..).and_then(|ends| ends.first_chunk()).ok_or(IP_CHECKSUM)?;
    let end = ipv6::LEN + ip.payload_len();
    if end > room {
        return Err(IP_CHECKSUM);
    }
    let mut walk = ip.extensions();
    loop {
        match walk.take_next() {
            Ok(Some(it)) if it.kind == ROUTING && it.bytes.get(2) == Some(&0) => {
                return Err(SOURCE_ROUTED);
            }
            // What follows is the middle of something.
            Ok(Some(it)) if it.kind == FRAGMENT && is_later(it.bytes) => break,
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(Error::Truncated) if bytes.len() < end => return Err(HEADERS_TOO_LONG),
            Err(_) => return Err(MALFORMED_IP),
        }
    }
    // An address of IPv4 in a header of IPv6 is nobody's (RFC 4291, 2.5.5.2).
    let number = |ip: std::net::Ipv6Addr| Some(ip.to_bits()).filter(|ip| !is_v4(*ip)).unwrap_or(0);
    let (source, destination) = (number(ip.source()), number(ip.destination()));
    Ok(Header { source, destination, ends: Ends::V6(*ends), hops: ip.hop_limit() })
}

/// Returns whether a fragment is not the first.
fn is_later(header: &[u8]) -> bool {
    ipv6::Fragment::parse(header).is_ok_and(|fragment| fragment.offset() != 0)
}

/// Offset of both addresses in a header of IPv4, and of IPv6.
const ENDS: usize = 12;
const ENDS_V6: usize = 8;

/// Way that a router chose for a packet.
pub(super) struct Choice {
    pub way: Onward,
    /// There are several, of which another packet may have another one.
    pub several: bool,
}

/// Finds the way to an address from a gateway of a network, of a packet with this course.
pub(super) fn choose<'a>(
    (gateway, routing): (&'a Gateway, &Routing),
    destination: Address,
    course: impl FnOnce() -> Result<Course, DropReason>,
    silent: &mut Silent<'a>,
    context: &Context<'_>,
) -> Result<Choice, DropReason> {
    // What comes from outside does not leave again.
    if routing.outside.is_none()
        && let Some(vni) = turns_at(destination, &gateway.router, context)?
    {
        return Ok(Choice { way: turn(vni, context)?, several: false });
    }
    resolve(gateway, destination, course, silent, context)
}

/// Finds the way to an address of another host or of a machine.
fn resolve<'a>(
    gateway: &'a Gateway,
    destination: Address,
    course: impl FnOnce() -> Result<Course, DropReason>,
    silent: &mut Silent<'a>,
    context: &Context<'_>,
) -> Result<Choice, DropReason> {
    if !is_host(destination) {
        return Err(ROUTE_GROUP);
    }
    let route = gateway.router.route_to(destination).ok_or(NO_ROUTE)?;
    let (vni, next) = match &route.leads {
        Leads::Connected(vni) => (*vni, destination),
        Leads::Nowhere => return Err(ROUTE_BLACKHOLE),
        Leads::Over(host) => {
            return far::leave_by(gateway, host, context).map(|way| Choice { way, several: false });
        }
        Leads::Via(ways) => match &ways[..] {
            [way] => (way.vni, way.address),
            ways => {
                let order = course()?.order(ways);
                let way = first_of(&order, (route, ways), gateway, silent, context)?;
                return Ok(Choice { way, several: true });
            }
        },
    };
    leave(gateway, (vni, next), context).map(|way| Choice { way, several: false })
}

/// Finds the first way of several that leads on, in the order in which a packet takes them.
#[cold]
#[inline(never)]
fn first_of<'a>(
    order: &[&Passage],
    (route, ways): (&'a RouteEntry, &[Passage]),
    gateway: &Gateway,
    silent: &mut Silent<'a>,
    context: &Context<'_>,
) -> Result<Onward, DropReason> {
    let mut tried = order.iter().map(|way| {
        if silent.has(route, ways, way) {
            return Err(NEXT_HOP_UNKNOWN);
        }
        let left = leave(gateway, (way.vni, way.address), context);
        if let Err(NEXT_HOP_UNKNOWN) = left {
            silent.note(route, ways, way);
        }
        left
    });
    let first = tried.next().unwrap_or(Err(NEXT_HOP_UNKNOWN));
    // It is asked for all the same, so that its flows come to it.
    if let (Err(NEXT_HOP_UNKNOWN), Some(way)) = (&first, order.first()) {
        let at = (way.vni, way.address);
        if asks::may_be_asked_for(at, context.snapshot) {
            let _ = seek(Some(at), context);
        }
    }
    // One of a machine that is not known, or of the sender's own network, is no way.
    first.or_else(|why| tried.find_map(Result::ok).ok_or(why))
}

/// Ways of a route that lead nowhere, as packets of this batch found. Packets of a batch tend to
/// have one route, whose ways are the same for all of them.
#[derive(Default)]
pub(super) struct Silent<'a> {
    route: Option<&'a RouteEntry>,
    /// A bit for each way, in the order in which they were declared.
    ways: u16,
}

const _: () = assert!(MAX_WAYS <= u16::BITS as usize, "a mask has a bit for each way");

impl<'a> Silent<'a> {
    fn bit(ways: &[Passage], way: &Passage) -> u16 {
        let at = ways.iter().position(|it| it.address == way.address);
        at.map_or(0, |at| 1_u16.wrapping_shl(at as u32))
    }

    fn has(&self, route: &RouteEntry, ways: &[Passage], way: &Passage) -> bool {
        self.route.is_some_and(|it| std::ptr::eq(it, route))
            && self.ways & Silent::bit(ways, way) != 0
    }

    fn note(&mut self, route: &'a RouteEntry, ways: &[Passage], way: &Passage) {
        if !self.route.is_some_and(|it| std::ptr::eq(it, route)) {
            *self = Silent { route: Some(route), ways: 0 };
        }
        self.ways |= Silent::bit(ways, way);
    }
}

/// Returns the course of the packet in a frame of `len` bytes. `None` if its ports are beyond what
/// is at hand of it.
pub(super) fn course_of(head: &[u8], len: u32) -> Option<Course> {
    let room = len.saturating_sub(L3 as u32) as usize;
    course(head.get(L3..).unwrap_or_default(), room)
}

/// Returns the route that decides on a packet to a gateway, and the address of the machine to which
/// the packet goes next, if one is known.
pub(crate) fn decided_by<'a>(
    head: &[u8],
    meta: &Meta,
    context: &Context<'a>,
) -> Option<(&'a RouteEntry, Option<Address>)> {
    let gateway = context.entry.routing.as_ref()?.by_mac(meta.destination)?;
    let packet = read(head, u32::MAX).ok()?;
    let route = gateway.router.route_to(packet.destination)?;
    let leads = |vni, next| leave(gateway, (vni, next), context).is_ok().then_some(next);
    let next = match &route.leads {
        Leads::Connected(vni) => leads(*vni, packet.destination),
        Leads::Nowhere | Leads::Over(_) => None,
        Leads::Via(ways) => {
            let order = course_of(head, head.len() as u32)?.order(ways);
            order.iter().find_map(|way| leads(way.vni, way.address))
        }
    };
    Some((route, next))
}

/// Returns the route by which a gateway leads back to the source of a packet to it.
pub(crate) fn back_to<'a>(
    head: &[u8],
    meta: &Meta,
    context: &Context<'a>,
) -> Option<&'a RouteEntry> {
    let gateway = context.entry.routing.as_ref()?.by_mac(meta.destination)?;
    gateway.router.route_to(read(head, u32::MAX).ok()?.source)
}

/// Finds the way from a gateway to a machine with an address in a network.
fn leave(
    gateway: &Gateway,
    (vni, next): (u32, Address),
    context: &Context<'_>,
) -> Result<Onward, DropReason> {
    // Without a tunnel, a network without vnics here leads nowhere.
    let exit = context.snapshot.network_ref(vni).ok_or(NEXT_HOP_UNKNOWN)?;
    let network = context.other(exit).ok_or(NEXT_HOP_UNKNOWN)?;
    let routing = network.routing.as_ref().ok_or(NO_ROUTE)?;
    if network.vni == context.entry.vni {
        return Err(ROUTE_BACK);
    }
    if !routing.owns(next) {
        return Err(ROUTE_GROUP); // the network's broadcast
    }
    let (mac, verdict) = next_hop(next, network, context).ok_or(NEXT_HOP_UNKNOWN)?;
    let wire = routing.outside.as_ref().map_or(0, |outside| outside.mac);
    let from = match (verdict, context.tunnel) {
        (Verdict::Tunnel(_), Some(tunnel)) => tunnel.router_mac,
        _ if wire != 0 => address(wire),
        _ => address(gateway.mac),
    };
    let mut macs = [0; 12];
    macs.iter_mut().zip(address(mac).0.into_iter().chain(from.0)).for_each(|(to, byte)| *to = byte);
    let mtu = mtu_of(verdict, routing, context);
    let (leases, leaves) = (routing.leasing.is_some(), routing.outside.is_some());
    Ok(Onward { hop: Hop { macs, exit }, verdict, mtu, leases, leaves })
}

/// Returns the way of a packet to an address of this host at an external with a wire: out by the
/// wire to this host itself.
fn turn(vni: u32, context: &Context<'_>) -> Result<Onward, DropReason> {
    let exit = context.snapshot.network_ref(vni).ok_or(NEXT_HOP_UNKNOWN)?;
    let network = context.other(exit).ok_or(NEXT_HOP_UNKNOWN)?;
    let routing = network.routing.as_ref().ok_or(NO_ROUTE)?;
    let wire = network.wire.ok_or(NEXT_HOP_UNKNOWN)?;
    let own = address(routing.wire_mac()).0;
    let mut macs = [0; 12];
    macs.iter_mut().zip(own.into_iter().chain(own)).for_each(|(to, byte)| *to = byte);
    let verdict = Verdict::Deliver(wire);
    let (mtu, leases) = (routing.mtu, false);
    Ok(Onward { hop: Hop { macs, exit }, verdict, mtu, leases, leaves: true })
}

/// Returns the address to be asked for, and its network, for a packet without a next hop: none if
/// it is declared who has it.
pub(super) fn wanted(
    (head, len): (&[u8], u32),
    gateway: &Gateway,
    context: &Context<'_>,
) -> Option<AskPlace> {
    let destination = read(head, len).ok()?.destination;
    let may_be = |at: &AskPlace| asks::may_be_asked_for(*at, context.snapshot);
    match &gateway.router.route_to(destination)?.leads {
        Leads::Connected(vni) => Some((*vni, destination)).filter(may_be),
        Leads::Nowhere | Leads::Over(_) => None,
        Leads::Via(ways) => {
            let order = course_of(head, len)?.order(ways);
            let others = order.iter().filter(|way| way.vni != context.entry.vni);
            others.map(|way| (way.vni, way.address)).find(may_be)
        }
    }
}

/// Returns the verdict on a packet for which no next hop is known: it waits until it was asked for,
/// or is dropped.
fn seek(at: Option<AskPlace>, context: &Context<'_>) -> Verdict {
    let sender = context.sender;
    let drop = |reason: DropReason| Verdict::Drop(reason, sender.place.slot);
    let Some(at) = at else { return drop(NEXT_HOP_UNKNOWN) };
    match context.asking.want(
        asks::with_block(at, context.snapshot),
        sender.place,
        &sender.shared.asks,
        context.now,
    ) {
        Wanted::Asked => Verdict::Consumed(Consumed::Waits),
        Wanted::Silent => drop(NEXT_HOP_UNKNOWN),
        Wanted::Limit => drop(NEXT_HOP_LIMIT),
    }
}

/// Returns the same for a packet of a batch.
pub(crate) fn next_hop_of(
    batch: &Batch<'_>,
    index: usize,
    context: &Context<'_>,
) -> Option<AskPlace> {
    let meta = batch.metas().get(index)?;
    let gateway = context.entry.routing.as_ref()?.by_mac(meta.destination)?;
    let len = batch.frames.frames().get(index)?.len;
    wanted((batch.frames.head(index), len), gateway, context)
}

/// Returns the longest packet in bytes that may leave by a network with this verdict.
fn mtu_of(verdict: Verdict, routing: &Routing, context: &Context<'_>) -> u32 {
    match (verdict, context.tunnel) {
        (Verdict::Tunnel(_), Some(tunnel)) => routing.mtu.min(tunnel.inner_mtu()),
        _ => routing.mtu,
    }
}

/// Packet that a router refused, of which it tells the sender.
pub(crate) struct Undeliverable<'a> {
    /// The gateway to which a machine sent it.
    pub gateway: &'a Gateway,
    pub source: Address,
    pub inner: Inner,
    /// The longest one that may pass there, in bytes.
    pub mtu: u32,
}

/// Reads a packet that a router refused.
pub(crate) fn refused<'a>(
    head: &[u8],
    (meta, reason): (&Meta, DropReason),
    context: &Context<'a>,
) -> Option<Undeliverable<'a>> {
    let routing = context.entry.routing.as_ref()?;
    let gateway = routing.by_mac(meta.destination)?;
    let bytes = head.get(L3..)?;
    let (source, destination, inner) = if bytes.first()? >> 4 == 6 {
        let ip = Ipv6::parse(bytes).ok()?;
        let inner = match ip.upper_layer().ok()?.protocol {
            TCP | UDP => Inner::Ports,
            ICMPV6 | NO_NEXT_HEADER => Inner::Spoken,
            _ => Inner::Unknown,
        };
        (ip.source().to_bits(), ip.destination().to_bits(), inner)
    } else {
        let ip = Ipv4::parse(bytes).ok()?;
        let inner = match ip.protocol() {
            TCP | UDP => Inner::Ports,
            ICMP => Inner::Spoken,
            _ => Inner::Unknown,
        };
        (mapped(ip.source()), mapped(ip.destination()), inner)
    };
    let course = || course(bytes, bytes.len()).ok_or(HEADERS_TOO_LONG);
    // No other error tells of its way.
    let mut silent = Silent::default();
    let way = (reason == ROUTE_TOO_BIG)
        .then(|| choose((gateway, routing), destination, course, &mut silent, context));
    let mtu = way.and_then(Result::ok).map_or(u32::MAX, |choice| choice.way.mtu);
    Some(Undeliverable { gateway, source, inner, mtu })
}

/// Returns the MAC address of the machine of a network that has an address, and the verdict that
/// leads there: to the one vnic here that declares it and whose machine runs, else to where the
/// address is declared to be, or the machine's MAC address was heard last.
fn next_hop(address: Address, network: &Network, context: &Context<'_>) -> Option<(u64, Verdict)> {
    let mut here = None;
    if let Some(holding) = network.holders.get(address) {
        // Of several machines with one address nobody knows which one has it now.
        let slot = holding.one(network)?;
        let vnic = context.snapshot.vnics.get(slot)?;
        if vnic.is_mirror() || vnic.rules.shared_ip {
            return None;
        }
        if vnic.shared.driving.load(std::sync::atomic::Ordering::Relaxed) {
            return Some((number(vnic.mac), Verdict::Deliver(slot)));
        }
        here = Some((slot, number(vnic.mac)));
    }
    let found = context.snapshot.neighbours.get(network.vni, address);
    let mac = found.map(|found| found.mac).or(here.map(|(_, mac)| mac));
    let answered = || context.snapshot.found.get(network.vni, address);
    let answered = if mac.is_none() { answered() } else { None };
    let mac = mac.or(answered.map(|answered| answered.mac))?;
    let host = found.and_then(|found| found.host).zip(context.tunnel);
    let verdict = match host.filter(|(host, tunnel)| *host != tunnel.own) {
        Some((host, tunnel)) => Verdict::Tunnel(tunnel.peers.find(host)?),
        None => place_beside((address, mac), network, context)?,
    };
    let leads = match verdict {
        // An external has no other hosts, and the network of the machine has.
        Verdict::Tunnel(_) => {
            let from_here = context.remote().is_some() || context.sender.is_wire();
            network.remote.is_some() && from_here
        }
        // Its machine does not run.
        Verdict::Deliver(slot) => here.is_none_or(|(away, _)| away != slot),
        _ => false,
    };
    if let Some(answered) = answered.filter(|_| leads) {
        context.asking.goes_to(answered, context.now);
    }
    leads.then_some((mac, verdict))
}

/// Returns the verdict on a frame to a machine that is not declared to be on another host. A
/// gateway outside is behind the wire, whoever sends from its MAC address, and so is a machine
/// outside for whose place the table has no room.
fn place_beside(
    (address, mac): (Address, u64),
    network: &Network,
    context: &Context<'_>,
) -> Option<Verdict> {
    let outside = network.routing.as_ref().and_then(|routing| routing.outside.as_deref());
    let wire = network.wire.filter(|_| outside.is_some()).map(Verdict::Deliver);
    if wire.is_some() && outside.is_some_and(|outside| outside.is_behind_wire(address)) {
        return wire;
    }
    let learnt = place_of(mac, network, context);
    learnt.or(wire.filter(|_| network.macs.get(mac).is_none()))
}

/// Drops what comes from the MAC address of a gateway outside, or from this host's own there, but
/// not by the wire: its place would be learnt elsewhere.
#[cold]
#[inline(never)]
fn keep_gateways(batch: &mut Batch<'_>, outside: &Outside, context: &Context<'_>) {
    let (vni, snapshot) = (context.entry.vni, context.snapshot);
    let own = number(context.sender.mac);
    let of_gateway = |address: &Address| {
        let declared = snapshot.neighbours.get(vni, *address).map(|it| it.mac);
        declared.or_else(|| snapshot.found.get(vni, *address).map(|it| it.mac))
    };
    // This host asks from its own.
    let host = Some(outside.mac).filter(|_| matches!(context.sender.kind, PortKind::Vnic));
    let gateways = outside.gateways().iter().filter_map(of_gateway);
    for mac in gateways.chain(host).filter(|mac| *mac != own) {
        for index in 0..batch.frames.len() {
            let is_it = |meta: &Meta| meta.verdict == Verdict::Undecided && meta.source == mac;
            if batch.metas().get(index).is_some_and(is_it) {
                set(batch, index, Verdict::Drop(MAC_CLAIMED, context.sender.place.slot));
            }
        }
    }
}

#[cold]
fn set(batch: &mut Batch<'_>, index: usize, verdict: Verdict) {
    if let Some(meta) = batch.parts().1.get_mut(index) {
        meta.verdict = verdict;
        meta.offload = false; // nobody will look at what it claims
    }
}

/// Hears ARP and neighbour discovery of machines that ask for a gateway, or say that they are one.
#[cold]
#[inline(never)]
fn hear(batch: &mut Batch<'_>, routing: &Routing, context: &Context<'_>) {
    if matches!(context.sender.kind, PortKind::Router) {
        return; // a question of this host
    }
    let wire = routing.wire_mac();
    let has_wire = wire != u64::MAX;
    // Of the gateways outside only the wire tells.
    let others = routing.outside.as_deref().filter(|_| !context.sender.is_wire());
    let own = if has_wire { wire } else { number(asks::router_of(context.tunnel)) };
    for index in 0..batch.frames.len() {
        let Some(meta) = batch.metas().get(index).copied() else { return };
        if meta.verdict != Verdict::Undecided || is_reserved(meta.source) {
            continue;
        }
        let (told, at, consumed) = match meta.inside {
            Inside::Arp(at) => {
                let told = by_arp(batch.frames.head(index), at, (routing, others));
                (told, at, Consumed::Arp)
            }
            Inside::Ip { at, vlan } => {
                let told = by_discovery(batch, index, (at, vlan), (routing, others));
                (told, at, Consumed::Discovery)
            }
            _ => continue,
        };
        let verdict = match told {
            Told::Claims => Err(GATEWAY_CLAIMED),
            // On a wire, who asks this host and who answers it have one address of ours.
            Told::Asks if has_wire && usize::from(at) == L3 => Ok(Verdict::Consumed(consumed)),
            // Nobody else hears it, and it is not answered.
            _ if meta.destination == own => match asks::hear(batch, index, &meta, context) {
                Ok(false) => continue,
                Ok(true) => {
                    set(batch, index, Verdict::Consumed(consumed));
                    continue;
                }
                Err(reason) => Err(reason),
            },
            Told::Nothing => continue,
            // To a gateway that is not asked for: an answer that it did not ask for.
            Told::Other if routing.by_mac(meta.destination).is_none() => continue,
            _ if context.sender.is_trunk() => Err(GATEWAY_FROM_WIRE),
            _ if usize::from(at) != L3 => Err(GATEWAY_TAGGED),
            _ => Ok(Verdict::Consumed(consumed)),
        };
        match verdict {
            Ok(verdict) => {
                set(batch, index, verdict);
                batch.answers |= 1 << index;
            }
            Err(reason) => {
                set(batch, index, Verdict::Drop(reason, context.sender.place.slot));
            }
        }
    }
}

/// Contents of ARP or neighbour discovery, as far as they are about gateways.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Nothing: it is neither, or not valid, or for somebody else.
    Nothing,
    /// Its sender says that it has the address of a gateway, or a router's MAC address.
    Claims,
    /// Its sender asks for a gateway.
    Asks,
    Other,
}

fn by_arp(head: &[u8], at: u16, (routing, others): (&Routing, Option<&Outside>)) -> Told {
    let is_claim = |(mac, ip)| {
        let other = others.is_some_and(|outside| outside.is_behind_wire(ip));
        is_reserved(mac) || routing.answers_for(ip).is_some() || other
    };
    let claims = says(head, at).is_some_and(is_claim);
    let is_own = |ip| routing.answers_for(mapped(ip)).is_some();
    match read_arp(head, at) {
        _ if claims => Told::Claims,
        Some(packet) if packet.operation() == arp::REQUEST && is_own(packet.target_ip()) => {
            Told::Asks
        }
        Some(_) => Told::Other,
        None => Told::Nothing,
    }
}

fn by_discovery(
    batch: &mut Batch<'_>,
    index: usize,
    (at, vlan): (u16, u16),
    (routing, others): (&Routing, Option<&Outside>),
) -> Told {
    if !may_be_discovery(batch.frames.head(index), at.into()) {
        return Told::Nothing;
    }
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let Ok(Packet { l4: L4::Discovery(found), tuple, .. }) =
        read_packet(batch, index, at, vlan, len)
    else {
        return Told::Nothing;
    };
    let is_own = |address| routing.answers_for(address).is_some();
    if claims(&found, routing, others) {
        return Told::Claims;
    }
    let asks = found.kind == v6::NEIGHBOUR_SOLICITATION && is_own(found.target);
    let told = match asks && may_ask(found.source) {
        true => Told::Asks,
        false if is_own(tuple.destination) => Told::Other,
        false => return Told::Nothing,
    };
    // Last, as it takes the whole packet.
    if found.valid && asks::is_sum_right_of(batch, index, at) { told } else { Told::Nothing }
}

/// Returns whether a message says that its sender has the address of a gateway, or the MAC address
/// of a router. Hosts differ in what they take for valid, so that this need not be.
fn claims(found: &Discovery, routing: &Routing, others: Option<&Outside>) -> bool {
    let is_own = |address| {
        let other = others.is_some_and(|outside| outside.is_behind_wire(address));
        routing.answers_for(address).is_some() || other
    };
    let is_about_target = match found.kind {
        v6::NEIGHBOUR_ADVERTISEMENT => true,
        // Without the MAC address of the better way, it tells nothing about that (RFC 4861, 8.3).
        v6::REDIRECT => found.link_source.is_some() || !found.valid,
        _ => false,
    };
    is_own(found.source)
        || is_about_target && is_own(found.target)
        || found.link_source.is_some_and(|mac| is_reserved(number(mac)))
}

/// Returns whether a solicitation may be from an address: from a machine's, or from none if it
/// looks whether the address is free (RFC 4861, 7.1.1 and 7.2.4).
fn may_ask(source: Address) -> bool {
    source != 1 && !is_multicast(source)
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
