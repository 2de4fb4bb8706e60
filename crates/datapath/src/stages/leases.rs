//! Leases: networks give their vnics IPv4 addresses by DHCP (RFC 2131), where that is declared.
//!
//! Called by [`crate::stages::route`], which has requests answered by the network itself: nobody
//! else hears them. Decides what a client gets, from what is declared alone, and when it is
//! delivered: a request that waits for its turn was not read. In VLANs of their own (RFC 2131 knows
//! none) machines do as they like. Of IPv6 is [`crate::stages::leases6`].

use std::net::Ipv4Addr;

use arrayvec::ArrayVec;
use butterfly_packet::{
    checksum::Sum,
    dhcp::{
        CHADDR, CLIENT_PORT, HOPS, Kind, MAX_ANSWER, RELAY, Reply, Request, SERVER_PORT, answer,
    },
    ethernet::{self, Ethernet},
    ipv4::{self, Ipv4},
    protocol::UDP,
    udp::{self, Udp},
};

use crate::engine::{
    batch::{Batch, Consumed, Meta, Verdict},
    inside::{Inside, PLAIN_IP},
    mac::number,
    reason::{DropReason, drop_reasons},
};
use crate::ip::{BAD_DHCP, DHCP_LIMIT, mapped};
use crate::stages::{context::Context, leave::Answers};
use crate::world::{
    leases::{LeasedSubnet, Leasing},
    routing::Routing,
};

drop_reasons! { 12;
    /// To a DHCP client's port, in a network that gives its vnics their addresses itself or led
    /// into it by a router; or there behind more VLAN tags than can be read.
    DHCP_OTHER_SERVER = "dhcp-other-server" {
        cause: "a machine that is a DHCP server, on purpose or as some programs are by themselves (dnsmasq, libvirt, a hypervisor in the machine), or one that wants to be taken for it",
        remedy: "stop the server in the machine; if it is to serve the network, declare that without DHCP: `butterfly network add --vni VNI ...` without `--dhcp`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A DHCP request for another MAC address than the vnic's, or from another one.
    DHCP_OTHER_CLIENT = "dhcp-other-client" {
        cause: "a bridge or a container in the machine that asks for an address of its own",
        remedy: "declare a vnic for it, or give it an address in the machine: a network leases to its vnics alone",
        charged: "the sender",
    }
    /// A DHCP request that a relay agent passed on.
    DHCP_RELAYED = "dhcp-relayed" {
        cause: "a DHCP relay agent in the machine, in a network that gives its vnics their addresses itself",
        remedy: "stop the relay agent, or have it ask a server by its address: networks answer their own vnics",
        charged: "the sender",
    }
    /// A DHCP client looks for an address, and its vnic has none that could be leased.
    DHCP_NO_LEASE = "dhcp-no-lease" {
        cause: "a vnic without an address in a subnet of its network, for IPv4 one that has a gateway, or with the gateway's own",
        remedy: "declare one: `butterfly nic update --id NIC --ip ADDRESS..`; `butterfly network list` tells the subnets",
        charged: "the sender",
    }
    /// A DHCP client chose the offer of another server.
    DHCP_OTHER_CHOICE = "dhcp-other-choice" {
        cause: "a machine that had its address from another server when the network began to lease them, or was given another gateway",
        remedy: "nothing: the machine begins anew by itself; restart its network to have it begin now",
        charged: "the sender",
    }
    /// A DHCP client says that another machine has the address that it was given.
    DHCP_DECLINED = "dhcp-declined" {
        cause: "two machines with one address: two vnics that declare it, or a machine that was given it by hand",
        remedy: "look for the other one with `arping`, or `ndisc6` for IPv6, in a machine of the network, and give one of the two another address",
        charged: "the sender",
    }
    /// A router advertisement, in a network that tells its vnics of its routers itself; or headers
    /// of IPv6 that cannot be read to their end, behind which there may be one.
    FOREIGN_ADVERTISEMENT = "foreign-advertisement" {
        cause: "a machine that is a router, on purpose or as some programs are by themselves (radvd, dnsmasq, shared connections), or one that wants to be taken for it",
        remedy: "stop the advertisements in the machine; if it is to be the network's router, declare the network without DHCP: `butterfly network add --vni VNI ...` without `--dhcp`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A machine looks for routers by a message that RFC 4861, 6.1.1 has receivers discard.
    BAD_SOLICITATION = "bad-solicitation" {
        cause: "a broken network stack in the machine, or a program that writes raw packets",
        remedy: "find the program that sends it; the machine is told of routers without asking, too",
        charged: "the sender",
    }
}

/// Requests of a vnic that are read, at once and per second: so many of each family.
pub(super) const REQUESTS: u32 = 8;
pub(super) const REQUESTS_PER_SECOND: u32 = 4;

/// Direction of a DHCP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    ToServer,
    ToClient,
}

/// Has the network answer DHCP requests, and drops the word of other servers. What is for a gateway
/// is judged by the network by which it leaves: see [`crate::stages::leases6::stop_others`].
#[inline(never)]
pub(super) fn hear(
    batch: &mut Batch<'_>,
    (routing, leasing): (&Routing, &Leasing),
    context: &Context<'_>,
) {
    let trunk = context.sender.is_trunk();
    let mut asked = 0;
    let (frames, metas) = batch.parts();
    let frames = &*frames;
    let serves = |to: Ipv4Addr| {
        to.is_broadcast()
            || routing.by_address(mapped(to)).is_some()
            || leasing.by_server(to).is_some()
    };
    for (index, (meta, (frame, slot))) in metas.iter_mut().zip(frames.each()).enumerate() {
        let &[_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, kind, ..] =
            slot.bytes();
        if meta.inside == PLAIN_IP && kind != UDP || meta.verdict != Verdict::Undecided {
            continue;
        }
        match way((frames.head(index), frame.len), meta.inside, serves) {
            Some(Way::ToClient) if routing.by_mac(meta.destination).is_none() => {
                meta.verdict = Verdict::Drop(DHCP_OTHER_SERVER, context.sender.place.slot);
            }
            Some(Way::ToServer) if !trunk => {
                meta.verdict = Verdict::Consumed(Consumed::Dhcp);
                asked |= 1 << index;
            }
            _ => continue,
        }
        meta.offload = false; // nobody will look at what it claims
    }
    batch.answers |= asked;
}

/// Returns whether a packet is DHCP to a client, in a frame of `len` bytes that begins so.
pub(super) fn is_to_client((head, len): (&[u8], u32), inside: Inside) -> bool {
    way((head, len), inside, |_| false) == Some(Way::ToClient)
}

/// Returns where IP starts in a frame that names no VLAN; behind tags, IP of this type. Tags that
/// name none have a priority, and receivers take off any number of them.
pub(super) fn start_of(head: &[u8], inside: Inside, ethertype: u16) -> Option<usize> {
    match inside {
        Inside::Ip { at, vlan: 0 } => Some(at.into()),
        Inside::HiddenIp => {
            let mut tags = Ethernet::parse(head).ok()?.tags();
            let in_none = tags.by_ref().all(|tag| tag.vlan() == 0);
            // Those that go on beyond the bytes at hand may lead to it.
            let leads = tags.ethertype() == ethertype || ethernet::is_vlan(tags.ethertype());
            (in_none && leads).then(|| head.len() - tags.rest().len())
        }
        _ => None,
    }
}

/// Returns the way of a DHCP message in a frame of `len` bytes that begins so; `None` if it is
/// none, or in a VLAN. Clients believe messages from any port, and ones behind so many tags that
/// they cannot be read here. What goes from a server's port to one may be a relay agent's, which
/// has its own business with servers elsewhere: `serves` says which addresses are the network's.
fn way(
    (head, len): (&[u8], u32),
    inside: Inside,
    serves: impl Fn(Ipv4Addr) -> bool,
) -> Option<Way> {
    let packet = head.get(start_of(head, inside, ethernet::IPV4)?..)?;
    let cut = (head.len() < len as usize).then_some(Way::ToClient);
    let Some(header) = packet.first_chunk::<{ ipv4::MIN_LEN }>() else { return cut };
    let &[first, _, _, _, _, _, f0, f1, _, protocol, _, _, _, _, _, _, to @ ..] = header;
    let later = u16::from_be_bytes([f0, f1]) & 0x1fff != 0;
    if first >> 4 != 4 || protocol != UDP || later {
        return None;
    }
    let udp = packet.get(usize::from(first & 0xf) * 4..).unwrap_or_default();
    let Some(udp) = udp.first_chunk::<{ udp::LEN }>() else { return cut };
    let &[s0, s1, d0, d1, _, _, _, _] = udp;
    match (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])) {
        (_, CLIENT_PORT) => Some(Way::ToClient),
        (CLIENT_PORT, SERVER_PORT) => Some(Way::ToServer),
        (SERVER_PORT, SERVER_PORT) if serves(to.into()) => Some(Way::ToServer),
        _ => None,
    }
}

/// Answers a request. Fails with the reason for which it gets no answer, `no_room` among them; a
/// release gets none by itself.
///
/// A request is read whole once it has room for its answer, and a token: before that, only by whom
/// it is from.
pub(super) fn serve(
    batch: &mut Batch<'_>,
    (meta, index): (&Meta, usize),
    context: &Context<'_>,
    (answers, no_room): (&mut Answers, DropReason),
) -> Result<(), DropReason> {
    let routing = context.entry.routing.as_ref().ok_or(DHCP_NO_LEASE)?;
    let leasing = routing.leasing.as_ref().ok_or(DHCP_NO_LEASE)?;
    let at = start_of(batch.frames.head(index), meta.inside, ethernet::IPV4).ok_or(BAD_DHCP)?;
    is_from_itself(batch.frames.head(index), at, meta, context)?;
    if answers.is_full() {
        return Err(no_room);
    }
    let pace = &context.sender.shared.dhcp.leased;
    if !pace.take(context.now, REQUESTS, REQUESTS_PER_SECOND) {
        return Err(DHCP_LIMIT);
    }
    let message = batch.frames.keep(index).and_then(|frame| message(frame.get(at..)?));
    let request = Request::parse(message.ok_or(BAD_DHCP)?).map_err(|_| BAD_DHCP)?;
    if request.mac != context.sender.mac {
        return Err(DHCP_OTHER_CLIENT);
    }
    let Some((reply, subnet)) = decide(&request, leasing, context)? else { return Ok(()) };
    let mut bytes = [0; MAX_ANSWER];
    let len = answer(&request, reply, &leasing.terms(subnet), subnet.mac, &mut bytes);
    let frame = len.and_then(|len| bytes.get(..len)).ok_or(BAD_DHCP)?;
    let mut kept = ArrayVec::new();
    kept.try_extend_from_slice(frame).map_err(|_| BAD_DHCP)?;
    answers.try_push(kept).map_err(|_| no_room)
}

/// Checks that a request is from the vnic itself, and for it, by the first bytes of its frame. One
/// that a relay agent passed on is from others, and tells so first.
fn is_from_itself(
    head: &[u8],
    at: usize,
    meta: &Meta,
    context: &Context<'_>,
) -> Result<(), DropReason> {
    let own = context.sender.mac;
    let packet = head.get(at..).ok_or(BAD_DHCP)?;
    let header = usize::from(packet.first().ok_or(BAD_DHCP)? & 0xf) * 4;
    let message = packet.get(header + udp::LEN..).ok_or(BAD_DHCP)?;
    let relay = message.get(RELAY..RELAY + 4).ok_or(BAD_DHCP)?;
    if message.get(HOPS) != Some(&0) || relay != [0; 4] {
        return Err(DHCP_RELAYED);
    }
    let client = message.get(CHADDR..).ok_or(BAD_DHCP)?;
    match client.starts_with(&own.0) && meta.source == number(own) {
        true => Ok(()),
        false => Err(DHCP_OTHER_CLIENT),
    }
}

/// Returns the message in an IP packet that is whole, with right checksums. UDP's may be left to
/// others: then it is that of the pseudo header.
fn message(packet: &[u8]) -> Option<&[u8]> {
    let ip = Ipv4::parse(packet).ok().filter(|ip| ip.checksum_is_valid() && !ip.is_fragment())?;
    let datagram = ip.payload().ok()?;
    let udp = Udp::parse(datagram).ok()?;
    let message = udp.payload().ok()?;
    let pseudo = Sum::pseudo_v4(ip.source(), ip.destination(), UDP, udp.length());
    let whole = datagram.get(..usize::from(udp.length()))?;
    let right =
        udp.checksum() == 0 || udp.checksum() == pseudo.fold() || pseudo.push(whole).is_valid();
    right.then_some(message)
}

/// Decides what a client gets (RFC 2131, 4.3), and in which subnet; `None` if nothing. A client
/// that asks for what it cannot have is told so, also where there is nothing to have: it then looks
/// for another address, and does not go on with one that is not its own.
fn decide<'a>(
    request: &Request<'_>,
    leasing: &'a Leasing,
    context: &Context<'_>,
) -> Result<Option<(Reply, &'a LeasedSubnet)>, DropReason> {
    if request.hops != 0 || !request.relay.is_unspecified() {
        return Err(DHCP_RELAYED);
    }
    let vnic = context.sender;
    let may_have = |address: &Ipv4Addr| {
        vnic.rules.owns(mapped(*address)) && leasing.subnet_of(*address).is_some()
    };
    let first = context.entry.leased(vnic.place.slot);
    let has = Some(request.client).filter(|client| !client.is_unspecified());
    let (reply, subnet) = match request.kind {
        Kind::Discover => {
            let address = request.wanted.filter(may_have).or(first).ok_or(DHCP_NO_LEASE)?;
            (Reply::Offer(address), leasing.subnet_of(address))
        }
        Kind::Request => {
            let chosen = match request.server {
                Some(server) => Some(leasing.by_server(server).ok_or(DHCP_OTHER_CHOICE)?),
                None => None,
            };
            let address = request.wanted.or(has).ok_or(BAD_DHCP)?;
            let subnet = leasing.subnet_of(address).filter(|_| may_have(&address));
            let near = |it: &&LeasedSubnet| chosen.is_none_or(|chosen| std::ptr::eq(*it, chosen));
            match subnet.filter(near) {
                Some(subnet) => (Reply::Acknowledge(address), Some(subnet)),
                None => {
                    let own = || first.and_then(|first| leasing.subnet_of(first));
                    (Reply::Refuse, chosen.or_else(own).or(leasing.first()))
                }
            }
        }
        // It has the address from elsewhere: all else goes with that.
        Kind::Inform => (Reply::Parameters, has.and_then(|has| leasing.subnet_of(has))),
        Kind::Decline => return Err(DHCP_DECLINED),
        Kind::Release => return Ok(None),
    };
    Ok(Some((reply, subnet.ok_or(DHCP_NO_LEASE)?)))
}
