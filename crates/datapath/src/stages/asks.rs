//! Questions for machines that nobody declared, and their answers (RFC 826, RFC 5227; RFC 4861,
//! 7.2).
//!
//! A router of this host asks from the host's router address, by ARP without an address of its own,
//! or by neighbour solicitation from the link-local address of that MAC address: machines answer
//! and learn no place from it. Here it is decided which packets are worth a question, who hears the
//! questions of this host and of others, and which answers count.

use std::sync::atomic::Ordering::Relaxed;

use butterfly_model::host_mac;
use butterfly_packet::{Mac, arp, ethernet, icmp::v6, ipv6, neighbour, protocol::ICMPV6};

use crate::engine::{
    batch::{Batch, Meta, Verdict},
    inside::Inside,
    mac::number,
    place::PeerRef,
    reason::{DropReason, drop_reasons},
    reserved::is_reserved,
};
use crate::ip::{
    Address, L4,
    discovery::{link_local, solicited_node},
    frame::arp as read_arp,
    mapped,
};
use crate::overlay::Tunnel;
use crate::stages::{
    claims::may_be_discovery,
    context::Context,
    filter::read::read as read_packet,
    forward::{NO_RECEIVER, learn_source},
};
use crate::world::{
    asking::{AskPlace, PROBING},
    fdb::Learning,
    snapshot::{Snapshot, Vnic},
};

drop_reasons! { 13;
    /// The router has no room to ask for the destination's machine, to keep it, or to have the
    /// packet wait for it.
    NEXT_HOP_LIMIT = "next-hop-limit" {
        cause: "a machine that looks for addresses which nobody has, as a scan does; or one that sends much to an address, in large frames, while its machine is asked for",
        remedy: "nothing if it passes within seconds; else look at what the machine sends, and declare machines that are there: `butterfly neighbour add --vni VNI --ip ADDRESS --mac MAC --host HOST`",
        charged: "the sender, or the network if an answer came from another host",
    }
    /// ARP or neighbour discovery to the router address of a host that answers no question of its
    /// routers.
    NO_ANSWER = "no-answer" {
        cause: "an answer that came late, twice, or by another machine than the one that was asked; or a machine that wants to be taken for another one",
        remedy: "nothing if it is rare: the router asks again; else look for two machines with the packet's source address",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The packet is longer than the network that it leaves by allows, and the router may cut it
    /// into fragments, but not into so many or so small ones.
    CUT_LIMIT = "cut-limit" {
        cause: "a machine that sends packets far longer than what they leave by takes: more than 250,000 fragments a second, 152 of one frame, 512 of what other hosts sent at once (one sender alone 256), less than a header of TCP in the first, or segments of TCP below 432 bytes",
        remedy: "let the machine send packets as long as the receiver's network takes: one MTU for both, and path MTU discovery in the machine (Linux: `net.ipv4.ip_no_pmtu_disc=0`)",
        charged: "the sender, or the network if the frame came from another host",
    }
}

/// Offset of ARP and IP behind Ethernet.
const L3: usize = ethernet::HEADER_LEN;
/// Lowest bit of a MAC address as [`number`]: of a group.
const GROUP_BIT: u64 = 1;

/// Returns the router address of this host. Without a tunnel it is one that no host has: nothing
/// from it leaves.
pub(crate) fn router_of(tunnel: Option<&Tunnel>) -> Mac {
    let nobody = || Mac(host_mac(std::net::Ipv4Addr::UNSPECIFIED.into()));
    tunnel.map_or_else(nobody, |tunnel| tunnel.router_mac)
}

/// Returns whether the guest of a vnic may hear a question for an address: it is not probing for
/// that one, and attached long enough ago to have no probe of which nobody here knows.
pub(crate) fn may_hear(vnic: &Vnic, address: Address, now: u32) -> bool {
    if vnic.is_wire() {
        return true; // it is asked from an address that nobody there has
    }
    let attached = vnic.shared.attached.load(Relaxed);
    let is_long_ago = attached == 0 || now.saturating_sub(attached) >= PROBING;
    is_long_ago && !vnic.shared.probed.has(address, now)
}

/// Returns whether a vnic may hear a frame of a batch that is from a router of this host, or of
/// another one.
pub(crate) fn may_hear_frame(vnic: &Vnic, head: &[u8], meta: &Meta, now: u32) -> bool {
    let asked = match meta.inside {
        Inside::Arp(at) => read_arp(head, at).map(|packet| mapped(packet.target_ip())),
        _ => Some(0), // guests probe by discovery in a form of its own
    };
    asked.is_some_and(|address| may_hear(vnic, address, now))
}

/// Returns whether routers may ask for an address: a machine of a declared network may have it, and
/// nothing of this host says who does.
pub(crate) fn may_be_asked_for((vni, address): AskPlace, snapshot: &Snapshot) -> bool {
    let Some(network) = snapshot.network(vni) else { return false };
    let declared = || {
        snapshot.neighbours.get(vni, address).is_some() || network.holders.get(address).is_some()
    };
    let owned = network
        .routing
        .as_ref()
        .is_some_and(|routing| routing.owns(address) && routing.answers_for(address).is_none());
    owned && (network.open || network.remote.is_some()) && !declared()
}

/// Returns an address that is asked for, with its block if that may be one vnic's: see
/// [`crate::world::routing::Routing::block_of`].
pub(crate) fn with_block(at: AskPlace, snapshot: &Snapshot) -> (AskPlace, Option<u64>) {
    let routing = snapshot.network(at.0).and_then(|network| network.routing.as_ref());
    (at, routing.and_then(|routing| routing.block_of(at.1)))
}

/// Hears what a machine says to the router address of this host. Returns whether it is ARP or
/// neighbour discovery, which nobody else hears, or why it is dropped.
pub(super) fn hear(
    batch: &mut Batch<'_>,
    index: usize,
    meta: &Meta,
    context: &Context<'_>,
) -> Result<bool, DropReason> {
    let said = match meta.inside {
        Inside::Arp(at) if usize::from(at) == L3 => {
            said_by_arp(batch.frames.head(index), at, meta, context)
        }
        Inside::Ip { at, vlan: 0 }
            if usize::from(at) == L3 && may_be_discovery(batch.frames.head(index), L3) =>
        {
            match said_by_discovery(batch, index, at, meta) {
                Some(said) => said,
                None => return Ok(false),
            }
        }
        _ => return Ok(false),
    };
    // A filtered vnic has what is declared, which nobody asks for.
    let speaks = context.sender.rules.bypass;
    let said = said.filter(|_| speaks && is_station(meta.source)).ok_or(NO_ANSWER)?;
    let routing = context.entry.routing.as_ref();
    let outside = routing.and_then(|routing| routing.outside.as_ref());
    if !context.sender.is_wire() && outside.is_some_and(|it| it.is_behind_wire(said)) {
        return Err(NO_ANSWER);
    }
    if !context.sender.shared.asks.may_answer(context.now) {
        return Err(NEXT_HOP_LIMIT);
    }
    let at = (context.sender.vni, said);
    let counts = |noted: Option<bool>| noted.ok_or(NEXT_HOP_LIMIT)?.then_some(()).ok_or(NO_ANSWER);
    counts(context.asking.awaits(at, meta.source))?;
    // Its place is known before it is used. One that another host passed on has none.
    let placed = !context.sender.is_trunk() || meta.peer != PeerRef::PASSED_ON;
    match learn_source(meta.source, meta.peer, context)? {
        Learning::Refused => Err(NEXT_HOP_LIMIT),
        _ if !placed => Err(NO_ANSWER),
        _ => counts(context.asking.hear(at, meta.source)).map(|()| true),
    }
}

/// Returns whether a machine may send from a MAC address.
fn is_station(mac: u64) -> bool {
    mac != 0 && mac & GROUP_BIT == 0 && !is_reserved(mac)
}

/// Returns the address that an ARP reply is about, if it is one to a question of ours: from the
/// machine that it names, to nobody's address, or on a wire to that from which this host asks.
fn said_by_arp(head: &[u8], at: u16, meta: &Meta, context: &Context<'_>) -> Option<Address> {
    let packet = read_arp(head, at)?;
    let outside = context.entry.routing.as_ref().and_then(|routing| routing.outside.as_ref());
    let (asker, asked) = (mapped(packet.target_ip()), mapped(packet.sender_ip()));
    let is_asker = outside.is_some_and(|it| it.mac != 0 && it.asker(asked) == Some(asker));
    let is_answer = packet.operation() == arp::REPLY
        && number(packet.sender_mac()) == meta.source
        && number(packet.target_mac()) == meta.destination
        && (is_asker || packet.target_ip().is_unspecified());
    is_answer.then_some(asked)
}

/// Returns the address that an advertisement is about, if it is a valid one of the machine that it
/// names. `None` if it is no discovery.
fn said_by_discovery(
    batch: &mut Batch<'_>,
    index: usize,
    at: u16,
    meta: &Meta,
) -> Option<Option<Address>> {
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let packet = read_packet(batch, index, at, 0, len).ok()?;
    let L4::Discovery(found) = packet.l4 else { return None };
    let own = link_local(crate::engine::mac::address(meta.destination));
    let is_answer = found.kind == v6::NEIGHBOUR_ADVERTISEMENT
        && found.valid
        && packet.tuple.destination == own
        && found.link_source.is_some_and(|mac| number(mac) == meta.source);
    // Last, as it takes the whole packet.
    Some((is_answer && is_sum_right_of(batch, index, at)).then_some(found.target))
}

/// Returns whether the checksum of ICMPv6 is right, or one that the sender leaves to others.
pub(super) fn is_sum_right_of(batch: &mut Batch<'_>, index: usize, at: u16) -> bool {
    let offload = batch.metas().get(index).is_some_and(|meta| meta.offload);
    let frame = batch.parts().0.keep(index).and_then(|frame| frame.get(usize::from(at)..));
    offload || frame.is_some_and(neighbour::is_sum_right)
}

/// Returns the verdict on a question of a router of another host, if a frame is one: for the one
/// machine here whose address that is declared to be, or for all whose addresses are not declared.
/// `source` was compared with the host that it came from.
pub(super) fn of_far_router(
    head: &[u8],
    meta: &Meta,
    context: &Context<'_>,
) -> Option<Result<Verdict, DropReason>> {
    let address = match meta.inside {
        Inside::Arp(at) if usize::from(at) == L3 => {
            let packet = read_arp(head, at)?;
            let is_question = packet.operation() == arp::REQUEST
                && packet.sender_ip().is_unspecified()
                && number(packet.sender_mac()) == meta.source;
            is_question.then(|| mapped(packet.target_ip()))?
        }
        Inside::Ip { at, vlan: 0 } if usize::from(at) == L3 => solicited(head, meta.source)?,
        _ => return None,
    };
    Some(receiver(address, meta.destination, context))
}

/// Returns the address that a neighbour solicitation is for, if it is one from the link-local
/// address of this MAC address.
fn solicited(head: &[u8], source: u64) -> Option<Address> {
    let ip = head.get(L3..)?;
    let (header, message) = ip.split_first_chunk::<{ ipv6::LEN }>()?;
    let address = |bytes: &[u8]| Some(Address::from_be_bytes(*bytes.first_chunk()?));
    let own = link_local(crate::engine::mac::address(source));
    let target = address(message.get(8..)?)?;
    let is_question = header.get(6..8)? == [ICMPV6, 255]
        && message.starts_with(&[v6::NEIGHBOUR_SOLICITATION, 0])
        && address(header.get(8..)?)? == own
        && address(header.get(24..)?)? == solicited_node(target);
    is_question.then_some(target)
}

/// Returns the verdict on a question for an address: [`Verdict::Undecided`] if all hear it who may
/// have addresses that are not declared.
fn receiver(
    address: Address,
    destination: u64,
    context: &Context<'_>,
) -> Result<Verdict, DropReason> {
    let network = context.entry;
    let routing = network.routing.as_ref();
    if routing.is_some_and(|routing| routing.answers_for(address).is_some()) {
        return Err(NO_RECEIVER);
    }
    let here = |slot: u32| context.snapshot.vnics.get(slot);
    let hears = |vnic: &&std::sync::Arc<Vnic>| {
        may_hear(vnic, address, context.now) && vnic.shared.driving.load(Relaxed)
    };
    if let Some(holding) = network.holders.get(address) {
        // Of several machines with one address nobody knows which one has it now.
        let slot = holding.one(network).ok_or(NO_RECEIVER)?;
        let plain = |vnic: &&std::sync::Arc<Vnic>| !vnic.is_mirror() && !vnic.rules.shared_ip;
        let holder = here(slot).filter(plain).filter(hears);
        return holder.map(|_| Verdict::Deliver(slot)).ok_or(NO_RECEIVER);
    }
    if destination & GROUP_BIT != 0 {
        return Ok(Verdict::Undecided);
    }
    let asked = network.macs.get(destination).and_then(here);
    match asked {
        Some(vnic) if !hears(&vnic) => Err(NO_RECEIVER),
        _ => Ok(Verdict::Undecided),
    }
}
