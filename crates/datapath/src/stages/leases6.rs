//! Leases of IPv6: networks give their vnics addresses by DHCPv6 (RFC 8415), and tell them of their
//! routers (RFC 4861), where that is declared.
//!
//! The counterpart of [`crate::stages::leases`], whose rules hold here, too: nobody else hears what
//! a network answers, and it decides when that is delivered, from what is declared alone.

use std::net::Ipv6Addr;

use arrayvec::ArrayVec;
use butterfly_packet::{
    Mac, advert,
    checksum::Sum,
    dhcp6::{
        Association, CLIENT_PORT6, Kind6, MAX_ANSWER6, RELAY_FORWARD, Reply6, Request6,
        SERVER_PORT6, SERVERS, SITE_SERVERS, answer6, server_id,
    },
    ethernet,
    icmp::v6,
    ipv6::{self, Ipv6},
    protocol::{AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, ROUTING, UDP},
    udp::{self, Udp},
};

use crate::engine::{
    batch::{Batch, Consumed, Hop, Meta, Verdict},
    inside::{Inside, PLAIN_IP},
    mac::number,
    reason::DropReason,
};
use crate::ip::{Address, BAD_DHCP, DHCP_LIMIT, L4, discovery::is_link_local};
use crate::stages::{
    asks::is_sum_right_of,
    claims::has_link_local,
    context::Context,
    filter::{SPOOFED_IP, read::read as read_packet},
    leases::{
        BAD_SOLICITATION, DHCP_DECLINED, DHCP_NO_LEASE, DHCP_OTHER_CHOICE, DHCP_OTHER_CLIENT,
        DHCP_OTHER_SERVER, DHCP_RELAYED, FOREIGN_ADVERTISEMENT, REQUESTS, REQUESTS_PER_SECOND,
        is_to_client as is_to_client_v4, start_of,
    },
    leave::{ANSWERS, Answer, Answers},
};
use crate::world::{
    leases6::{Leasing6, MAX_LEASED},
    routing::Routing,
    snapshot::PortKind,
};

/// Kind of a packet that is about addresses or routers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    /// Says that its sender is a router.
    Advertisement,
    /// Asks for routers.
    Solicitation,
    /// DHCPv6 to a client's port.
    ToClient,
    /// DHCPv6 to a server that the network is.
    ToServer,
    /// Its headers do not end within the bytes at hand: it may be any of these.
    Unread,
}

/// Has the network answer solicitations and DHCPv6, and drops the word of other routers and
/// servers.
#[inline(never)]
pub(super) fn hear(
    batch: &mut Batch<'_>,
    (routing, leasing): (&Routing, &Leasing6),
    context: &Context<'_>,
) {
    // What routers of this host send is its own.
    if !leasing.leases() || matches!(context.sender.kind, PortKind::Router) {
        return;
    }
    let deep = judge(batch, (routing, leasing), (u64::MAX, false), context);
    if deep != 0 {
        for index in 0..batch.frames.len() {
            if deep.wrapping_shr(index as u32) & 1 == 1 {
                batch.frames.extend_head(index);
            }
        }
        judge(batch, (routing, leasing), (deep, true), context);
    }
}

/// Decides on the frames that `which` has bits for. Returns those of which more is to be read:
/// `last`, there is no more.
fn judge(
    batch: &mut Batch<'_>,
    (routing, leasing): (&Routing, &Leasing6),
    (which, last): (u64, bool),
    context: &Context<'_>,
) -> u64 {
    let own = matches!(context.sender.kind, PortKind::Vnic);
    let (mut asked, mut deep) = (0, 0);
    let (frames, metas) = batch.parts();
    let frames = &*frames;
    let server = leasing.server().map(|(_, address)| address);
    let serves = |to: Ipv6Addr| {
        [SERVERS, SITE_SERVERS].contains(&to)
            || server == Some(to)
            || routing.by_address(to.to_bits()).is_some()
    };
    for (index, (meta, (frame, slot))) in metas.iter_mut().zip(frames.each()).enumerate() {
        let &[_, _, _, _, _, _, _, _, _, _, _, _, t0, t1, _, _, _, _, _, _, next, ..] =
            slot.bytes();
        let plain = meta.inside == PLAIN_IP;
        if plain && ([t0, t1] != [0x86, 0xdd] || !may_be(next))
            || meta.verdict != Verdict::Undecided
            || which.wrapping_shr(index as u32) & 1 == 0
        {
            continue;
        }
        let head = frames.head(index);
        let more = head.len() < frame.len as usize;
        let word = word((head, more), meta.inside, serves);
        let foreign = routing.by_mac(meta.destination).is_none();
        let refused = match word {
            Some(Word::Unread) if more && !last => {
                deep |= 1 << index;
                continue;
            }
            Some(Word::Advertisement | Word::Unread) if foreign => FOREIGN_ADVERTISEMENT,
            Some(Word::ToClient) if foreign => DHCP_OTHER_SERVER,
            Some(word @ (Word::Solicitation | Word::ToServer)) if own => {
                let solicits = word == Word::Solicitation;
                let what = if solicits { Consumed::Solicitation } else { Consumed::Dhcp6 };
                meta.verdict = Verdict::Consumed(what);
                meta.offload &= solicits; // its sum may be left to others
                asked |= 1 << index;
                continue;
            }
            _ => continue,
        };
        meta.verdict = Verdict::Drop(refused, context.sender.place.slot);
        meta.offload = false; // nobody will look at what it claims
    }
    batch.answers |= asked;
    deep
}

/// Returns whether the header behind that of IPv6 is one to look at.
fn may_be(next: u8) -> bool {
    matches!(
        next,
        UDP | ICMPV6 | HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS
    )
}

/// Drops the word of servers that a router leads into a network which leases addresses itself.
/// `routed` has a bit for each frame that a router passes on. Returns that without those.
#[cold]
#[inline(never)]
pub(super) fn stop_others(batch: &mut Batch<'_>, routed: u64, context: &Context<'_>) -> u64 {
    let mut left = routed;
    for index in 0..batch.frames.len() {
        let bit = 1_u64.wrapping_shl(index as u32);
        if routed & bit == 0 || !is_of_server(batch, index, context) {
            continue;
        }
        let (_, metas, hops) = batch.parts_and_hops();
        if let (Some(meta), Some(hop)) = (metas.get_mut(index), hops.get_mut(index)) {
            meta.verdict = Verdict::Drop(DHCP_OTHER_SERVER, context.sender.place.slot);
            meta.offload = false; // nobody will look at what it claims
            *hop = Hop::NONE;
            left &= !bit;
        }
    }
    left
}

/// Returns whether a frame that a router passes on is DHCP to a client of a network that leases
/// addresses itself, or may be: its headers do not end within the bytes that can be read.
fn is_of_server(batch: &mut Batch<'_>, index: usize, context: &Context<'_>) -> bool {
    let (frames, metas, hops) = batch.parts_and_hops();
    let Some((meta, hop)) = metas.get(index).zip(hops.get(index)) else { return false };
    let exit = context.other(hop.exit).and_then(|network| network.routing.as_ref());
    let Some(routing) = exit else { return false };
    let len = frames.frames().get(index).map_or(0, |frame| frame.len);
    if routing.leasing.is_some() && is_to_client_v4((frames.head(index), len), meta.inside) {
        return true;
    }
    if !routing.leasing6().is_some_and(Leasing6::leases) {
        return false;
    }
    let read = |head: &[u8]| word((head, head.len() < len as usize), meta.inside, |_| false);
    match read(frames.head(index)) {
        Some(Word::Unread) => {
            matches!(read(frames.extend_head(index)), Some(Word::ToClient | Word::Unread))
        }
        word => word == Some(Word::ToClient),
    }
}

/// Returns the kind of what a frame holds that begins so; `None` if it is none, or in a VLAN.
/// `more`: the frame goes on. Extension headers hide nothing (RFC 7113), nor does a first fragment.
fn word(
    (head, more): (&[u8], bool),
    inside: Inside,
    serves: impl Fn(Ipv6Addr) -> bool,
) -> Option<Word> {
    let packet = head.get(start_of(head, inside, ethernet::IPV6)?..)?;
    let cut = more.then_some(Word::Unread);
    let Ok(ip) = Ipv6::parse(packet) else { return cut.filter(|_| packet.len() < ipv6::LEN) };
    // A chain that is wrong or goes beyond the packet: hosts drop it, and differ in what is wrong.
    let Ok(upper) = ip.upper_layer() else { return Some(Word::Unread) };
    if upper.fragment.is_some_and(|fragment| fragment.offset() != 0) {
        return None;
    }
    let rest = packet.get(upper.offset..).unwrap_or_default();
    match (upper.protocol, rest) {
        (ICMPV6, [v6::ROUTER_ADVERTISEMENT, ..]) => Some(Word::Advertisement),
        (ICMPV6, [v6::ROUTER_SOLICITATION, ..]) => Some(Word::Solicitation),
        (UDP, [_, _, d0, d1, ..]) => match u16::from_be_bytes([*d0, *d1]) {
            CLIENT_PORT6 => Some(Word::ToClient),
            SERVER_PORT6 if serves(ip.destination()) => Some(Word::ToServer),
            _ => None,
        },
        (ICMPV6, []) | (UDP, _) => Some(Word::Unread),
        _ => None,
    }
}

/// Returns whether a link-local address is one that the sender may have.
fn may_have(address: Address, context: &Context<'_>) -> bool {
    let sender = context.sender;
    is_link_local(address) && (sender.rules.bypass || has_link_local(sender, address, context))
}

/// Answers a solicitation: with an advertisement of each router. Fails with the reason for which it
/// gets no answer.
pub(super) fn advertise(
    batch: &mut Batch<'_>,
    (meta, index): (&Meta, usize),
    context: &Context<'_>,
    (answers, no_room): (&mut Answers, DropReason),
) -> Result<(), DropReason> {
    let leasing = context.entry.routing.as_ref().and_then(|routing| routing.leasing6());
    let leasing = leasing.ok_or(BAD_SOLICITATION)?;
    let own = context.sender.mac;
    if meta.source != number(own) {
        return Err(DHCP_OTHER_CLIENT);
    }
    let Inside::Ip { at, vlan } = meta.inside else { return Err(BAD_SOLICITATION) };
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let packet = read_packet(batch, index, at, vlan, len)?;
    let L4::Discovery(found) = packet.l4 else { return Err(BAD_SOLICITATION) };
    if found.link_source.is_some_and(|mac| mac != own) {
        return Err(DHCP_OTHER_CLIENT);
    }
    if !found.valid || found.kind != v6::ROUTER_SOLICITATION || !is_sum_right_of(batch, index, at) {
        return Err(BAD_SOLICITATION);
    }
    let to = match found.source {
        0 => (Mac::of_group_v6(ipv6::ALL_NODES), ipv6::ALL_NODES),
        source if may_have(source, context) || context.sender.rules.owns(source) => {
            (own, source.into())
        }
        _ => return Err(SPOOFED_IP),
    };
    if answers.len() + leasing.adverts().len() > ANSWERS {
        return Err(no_room);
    }
    let rules = &context.sender.rules;
    let own = leasing.own(&rules.own, &rules.prefixes);
    for advert in leasing.adverts() {
        let mut bytes = [0; ethernet::HEADER_LEN + 1280];
        let message = (&*advert.message, own.part());
        let len = advert::frame_with(message, advert.from, to, &mut bytes);
        let frame = len.and_then(|len| bytes.get(..len)).ok_or(no_room)?;
        push(frame, answers).ok_or(no_room)?;
    }
    Ok(())
}

/// Answers a request by DHCPv6. Fails with the reason for which it gets no answer, `no_room` among
/// them, or gets one that says no.
pub(super) fn serve(
    batch: &mut Batch<'_>,
    (meta, index): (&Meta, usize),
    context: &Context<'_>,
    (answers, no_room): (&mut Answers, DropReason),
) -> Result<(), DropReason> {
    let leasing = context.entry.routing.as_ref().and_then(|routing| routing.leasing6());
    let leasing = leasing.ok_or(DHCP_NO_LEASE)?;
    let head = batch.frames.head(index);
    let at = start_of(head, meta.inside, ethernet::IPV6).ok_or(BAD_DHCP)?;
    let (source, destination) = is_from_itself(head.get(at..).unwrap_or_default(), meta, context)?;
    if answers.is_full() {
        return Err(no_room);
    }
    let pace = &context.sender.shared.dhcp.leased6;
    if !pace.take(context.now, REQUESTS, REQUESTS_PER_SECOND) {
        return Err(DHCP_LIMIT);
    }
    let message = batch.frames.keep(index).and_then(|frame| message(frame.get(at..)?));
    let request = Request6::parse(message.ok_or(BAD_DHCP)?).map_err(|_| BAD_DHCP)?;
    let from = leasing.server().ok_or(DHCP_NO_LEASE)?;
    let own = leasing.leased(&context.sender.rules.own);
    let multicast = destination.is_multicast();
    let (reply, told) = decide(&request, (from.0, multicast), &own)?;
    let terms = leasing.terms(from, (context.sender.mac, source), &own);
    let mut bytes = [0; MAX_ANSWER6];
    let len = answer6(&request, reply, &terms, &mut bytes);
    let frame = len.and_then(|len| bytes.get(..len)).ok_or(BAD_DHCP)?;
    push(frame, answers).ok_or(no_room)?;
    told.map_or(Ok(()), Err)
}

fn push(frame: &[u8], answers: &mut Answers) -> Option<()> {
    let mut kept = Answer::new();
    kept.try_extend_from_slice(frame).ok()?;
    answers.try_push(kept).ok()
}

/// Checks that a request is from the vnic itself, by the first bytes of its packet. Returns where
/// it is from and where it goes. One that a relay agent passed on is from others, and tells so
/// first.
fn is_from_itself(
    packet: &[u8],
    meta: &Meta,
    context: &Context<'_>,
) -> Result<(Ipv6Addr, Ipv6Addr), DropReason> {
    let ip = Ipv6::parse(packet).map_err(|_| BAD_DHCP)?;
    let upper = ip.upper_layer().map_err(|_| BAD_DHCP)?;
    match packet.get(upper.offset + udp::LEN) {
        Some(&RELAY_FORWARD) => return Err(DHCP_RELAYED),
        Some(_) => {}
        None => return Err(BAD_DHCP),
    }
    if meta.source != number(context.sender.mac) {
        return Err(DHCP_OTHER_CLIENT);
    }
    match may_have(ip.source().to_bits(), context) {
        true => Ok((ip.source(), ip.destination())),
        false => Err(SPOOFED_IP),
    }
}

/// Returns the message in an IP packet that is whole, with a right checksum, or that of the pseudo
/// header if it is left to others.
fn message(packet: &[u8]) -> Option<&[u8]> {
    let ip = Ipv6::parse(packet).ok()?;
    let upper = ip.upper_layer().ok()?;
    let whole = upper.protocol == UDP && upper.fragment.is_none_or(|fragment| fragment.is_atomic());
    let datagram = packet.get(upper.offset..ipv6::LEN + ip.payload_len()).filter(|_| whole)?;
    let udp = Udp::parse(datagram).ok()?;
    let message = udp.payload().ok()?;
    let datagram = datagram.get(..usize::from(udp.length()))?;
    let pseudo = Sum::pseudo_v6(ip.source(), ip.destination(), UDP, udp.length().into());
    let right =
        udp.checksum() == pseudo.fold() || udp.checksum() != 0 && pseudo.push(datagram).is_valid();
    right.then_some(message)
}

/// Decides what a client gets (RFC 8415, 18.3) of a server with this MAC address, and the reason
/// that is counted with an answer that does not help it. `own` are the addresses that it may have.
fn decide(
    request: &Request6<'_>,
    (server, multicast): (Mac, bool),
    own: &ArrayVec<Ipv6Addr, MAX_LEASED>,
) -> Result<(Reply6, Option<DropReason>), DropReason> {
    if request.server.is_some_and(|id| id != server_id(server)) {
        return Err(DHCP_OTHER_CHOICE);
    }
    let identities = || request.identities().iter();
    let named = || identities().flat_map(|identity| identity.addresses());
    let wants = identities().any(|identity| identity.association == Association::Addresses);
    let none = Some(DHCP_NO_LEASE).filter(|_| wants && own.is_empty());
    match request.kind {
        Kind6::Request | Kind6::Renew | Kind6::Release | Kind6::Decline if !multicast => {
            Ok((Reply6::UseMulticast, None))
        }
        // Sections 16.2, 16.5, 16.7 and 16.12.
        _ if !multicast => Err(BAD_DHCP),
        Kind6::Solicit if request.rapid && none.is_none() => Ok((Reply6::Assign, None)),
        Kind6::Solicit => Ok((Reply6::Advertise, none)),
        Kind6::Request | Kind6::Renew | Kind6::Rebind => Ok((Reply6::Assign, none)),
        Kind6::Confirm if named().next().is_none() => Err(BAD_DHCP),
        Kind6::Confirm => Ok((Reply6::OnLink(named().all(|it| own.contains(&it))), None)),
        Kind6::Release => Ok((Reply6::Heard, None)),
        Kind6::Decline => Ok((Reply6::Heard, Some(DHCP_DECLINED))),
        Kind6::Inform => Ok((Reply6::Parameters, None)),
    }
}
