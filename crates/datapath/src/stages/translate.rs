//! Translates destinations: what comes from outside for an address of a machine inside.
//!
//! Before `route`, which leads by the address inside, and `filter`, whose rules and sessions know
//! addresses inside alone. What does not pass is put back as it came
//! ([`crate::stages::masquerade`]), so drops and frames that wait show the address outside.

use std::net::Ipv4Addr;

use butterfly_packet::{
    Error, ethernet,
    icmp::v4::ECHO_REPLY,
    protocol::{ICMP, ICMPV6, TCP},
    translate::{End, Ends, Plain, Side, Transport, ends, is_error, quote, translate_quote},
};
use butterfly_vhost::net::NetHeader;

use crate::engine::{
    batch::{Batch, Meta, Verdict},
    inside::Inside,
    reason::{DropReason, ReasonInfo, drop_reasons},
    reserved::is_reserved,
};
use crate::ip::{Address, HEADERS_TOO_LONG, MALFORMED_IP, TINY_FRAGMENT};
use crate::stages::{
    context::Context,
    nat_fragments::{NatPiece, PieceScratch},
    stage::{Stage, StageConfig},
};
use crate::world::{
    nat::{FirstTranslation, Translations},
    outside::Outside,
    ports::Said,
    rules::{address as ip_of, number as number_of_ip},
};

drop_reasons! { 15;
    /// To an address outside that routers translate, where no machine inside has the packet's port.
    NAT_NO_MAPPING = "nat-no-mapping" {
        harmless: true,
        cause: "anybody outside who tries ports, or a conversation that is over",
        remedy: "nothing, unless a machine inside is to be reached there: give it a floating address, or forward the port to it",
        charged: "the wire of the external, or the vnic that is its outside",
    }
    /// An ICMP error about a packet that no router here translated.
    NAT_QUOTE = "nat-quote" {
        cause: "a forged error, or one about a conversation that is over",
        remedy: "nothing for a few; else find the machine that sends them",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To the outside from a machine that shares an address there, by a vnic that has as many of
    /// its ports as one may have.
    NAT_SHARE = "nat-share" {
        cause: "a machine that makes very many conversations at once, or scans: a vnic, or an address on another host, has at most 4,096 ports of a protocol at once, and at most a fourth of those that are free, and the machines of a network on other hosts have half of all together; or the address is nearly full: `butterfly nat list` tells the ports in use",
        remedy: "find out what it does; a machine that needs as many gets a floating address of its own; for more room add an address: `butterfly snat add`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To the outside from a machine that shares an address there: none of the ports that it could
    /// have is free.
    NAT_PORTS_FULL = "nat-ports-full" {
        cause: "too many machines behind one address outside: from nine tenths of its ports on, some find none",
        remedy: "add an address: `butterfly snat add`; or give busy machines floating addresses",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To the outside from a machine that shares an address there, of a protocol without ports that
    /// are shared: those of TCP, UDP and requests of ICMP echo are.
    NAT_PROTOCOL = "nat-protocol" {
        cause: "tunnels such as ESP and GRE, SCTP, or an echo reply that nobody outside asked for",
        remedy: "give the machine a floating address, by which every protocol passes",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// Fragment of a packet that is translated by its ports, to or from the outside, whose first
    /// fragment was not translated; or an ICMP error in fragments about such a packet.
    NAT_FRAGMENT = "nat-fragment" {
        cause: "a first fragment that was dropped (see the other reasons), did not come within 2 ms of this one, or was forgotten for others, as for `fragment-orphan`; or a translation that went meanwhile",
        remedy: "look for the drop of the first fragment with `butterfly drops`; avoid fragments: a smaller MTU in the machine that sends; or give the machine inside a floating address, by which each fragment passes alone",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// To the outside from an address inside that was not translated, or from one that a router
    /// there translates. This is a last look, which mostly nothing comes to.
    NAT_UNTRANSLATED = "nat-untranslated" {
        cause: "a public network with an address that a router translates for another machine; else an error in the daemon",
        remedy: "compare the packet's source with `butterfly nat list`; if no router translates it, report it, with `butterfly explain` of the packet and what is declared (`butterfly dump`)",
        charged: "the sender, or the network if the frame came from another host",
    }
}

/// Offset of the length of IPv4, and in a header of TCP that of its own, before the flags.
const LENGTH: usize = 2;
const TCP_OFFSET: usize = 12;

/// Offset of IP behind Ethernet.
pub(super) const L3: usize = ethernet::HEADER_LEN;

/// Translates destinations of what comes from outside.
pub(crate) struct Translate;

impl Stage for Translate {
    const NAME: &'static str = "translate";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = PieceScratch;

    fn scratch(_: &StageConfig<'_>) -> PieceScratch {
        PieceScratch::new()
    }

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, pieces: &mut PieceScratch) {
        if !context.entry.may_be_routed {
            return;
        }
        let Some(routing) = &context.entry.routing else { return };
        if let Some(outside) = &routing.outside
            && !outside.nat.is_empty()
            && !context.sender.is_trunk()
        {
            translate(batch, (outside, routing.wire_mac()), context, pieces);
        }
    }
}

/// Translates each frame that is for a router, to an address that this router translates.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn translate(
    batch: &mut Batch<'_>,
    (outside, wire): (&Outside, u64),
    context: &Context<'_>,
    pieces: &mut PieceScratch,
) {
    pieces.begin();
    for index in 0..batch.frames.len() {
        let Some(meta) = batch.metas().get(index).copied() else { return };
        let is_ours = is_reserved(meta.destination) || meta.destination == wire;
        let is_plain = matches!(meta.inside, Inside::Ip { at, vlan: 0 } if usize::from(at) == L3);
        if meta.verdict != Verdict::Undecided || !is_ours || !is_plain {
            continue;
        }
        if let Some((mac, was)) = inwards_plain(batch, (index, &meta), outside, wire, context) {
            batch.translate(index, mac, was);
            continue;
        }
        let mut found = ends(packet_of(batch, index));
        if let Err(Error::Truncated) = found {
            // Extension headers of IPv6 end behind the bytes at hand.
            batch.frames.extend_head(index);
            found = ends(packet_of(batch, index));
        }
        // `route` drops what has no header.
        let Ok(found) = found else { continue };
        let Some((mac, translations)) = outside.nat.owner_of(number_of_ip(found.destination))
        else {
            continue;
        };
        if meta.destination != mac && meta.destination != wire {
            continue; // to another router, which has no such address
        }
        match inwards(batch, (index, &meta), &found, (mac, translations), context, pieces) {
            Ok(was) => batch.translate(index, mac, was),
            Err(reason) => {
                let Some(meta) = batch.parts().1.get_mut(index) else { return };
                meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
                meta.offload = false; // nobody will look at what it claims
            }
        }
    }
}

/// Translates the destination of a plain packet from outside. Returns its router, and what it was.
/// `None`: [`inwards`] decides on it.
fn inwards_plain(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    outside: &Outside,
    wire: u64,
    context: &Context<'_>,
) -> Option<(u64, End)> {
    let found = plain_of(batch, index)?;
    let [_, port] = found.ports;
    let to = number_of_ip(Ipv4Addr::from_bits(found.destination).into());
    let (mac, translations) = outside.nat.owner_of(to)?;
    if meta.destination != mac && meta.destination != wire {
        return None;
    }
    let end = inside_of(to, (found.protocol, Some(port)), (mac, translations), context)?;
    let inside = (number_of_ip(end.address), end.port.unwrap_or(port));
    rewrite_plain(batch, (index, meta), Side::Destination, inside)?;
    Some((mac, End { address: ip_of(to), port: end.port.map(|_| port) }))
}

/// Returns the end inside that is an address outside, or a port of it.
fn inside_of(
    outside: Address,
    (protocol, port): (u8, Option<u16>),
    (router, translations): (u64, &Translations),
    context: &Context<'_>,
) -> Option<End> {
    let shared = |port| {
        let end = translations.sharer_of(outside, (protocol, port), context.sharing());
        // A machine of a public network leaves as it is, whatever it shared before.
        let gateway = context.entry.routing.as_ref().and_then(|routing| routing.by_mac(router))?;
        end.filter(|(inside, _)| !gateway.router.is_known_outside(*inside, context.entry.vni))
    };
    let own = translations.inside_of(outside, protocol, port);
    let inside = own.or_else(|| {
        let (inside, own) = shared(port?)?;
        Some((inside, Some(own)))
    });
    inside.map(|(inside, port)| End { address: ip_of(inside), port })
}

/// Translates the destination of a packet from outside, and what it quotes if it is an error.
/// Returns what it was: of an error, what was quoted.
fn inwards(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    found: &Ends,
    (router, translations): (u64, &Translations),
    context: &Context<'_>,
    pieces: &mut PieceScratch,
) -> Result<End, DropReason> {
    let outside = found.destination;
    let piece = match found.fragment {
        true if translations.inside_of(number_of_ip(outside), found.protocol, None).is_none() => {
            NatPiece::read(batch, index, found, context)?
        }
        _ => None, // each fragment has its address
    };
    let inside = |protocol, port| {
        inside_of(number_of_ip(outside), (protocol, port), (router, translations), context)
    };
    if let Some(piece) = piece.as_ref().filter(|piece| !piece.is_first()) {
        let Some(first) = pieces.first_of(piece, context) else {
            pieces.note_early(index, piece);
            return Err(NAT_FRAGMENT);
        };
        let end = inside(found.protocol, Some(first.port));
        // Else the port is another machine's by now.
        let end =
            end.filter(|end| (router, number_of_ip(end.address)) == (first.router, first.address));
        let end = End { port: None, ..end.ok_or(NAT_FRAGMENT)? };
        rewrite(batch, (index, meta), Side::Destination, &end, None)?;
        batch.pieces |= 1 << index;
        return Ok(End { address: outside, port: None });
    }
    let (end, was, quote) = match quoted(batch, index, found)? {
        Some(quoted) => {
            let [port, _] = ports_of(&quoted);
            let end = inside(quoted.protocol, port).filter(|_| quoted.source == outside);
            let end = end.ok_or(NAT_QUOTE)?;
            if found.fragment && end.port.is_some() {
                return Err(NAT_FRAGMENT); // what follows would not pass
            }
            (End { port: None, ..end }, end.port.and(port), Some(end))
        }
        None => {
            let [_, port] = ports_of(found);
            let end = inside(found.protocol, port).ok_or(NAT_NO_MAPPING)?;
            // Identifiers are shared by who asks: nobody outside does by them.
            let is_shared = found.protocol == ICMP && end.port.is_some();
            if is_shared && kind_of(batch, index, found) != Some(ECHO_REPLY) {
                return Err(NAT_NO_MAPPING);
            }
            (end, end.port.and(port), None)
        }
    };
    rewrite(batch, (index, meta), Side::Destination, &end, quote)?;
    if let (Some(piece), Some(port)) = (&piece, was) {
        let address = number_of_ip(end.address);
        pieces.note_first(piece, FirstTranslation { router, port, address, id: None });
        batch.pieces |= 1 << index;
    }
    Ok(End { address: outside, port: was })
}

/// Returns the ports by which a packet is translated, source first. Of fragments the first one has
/// them.
pub(super) fn ports_of(found: &Ends) -> [Option<u16>; 2] {
    match found.ports {
        Some([source, destination]) => [Some(source), Some(destination)],
        None => [None; 2],
    }
}

/// Returns the first byte of a packet's transport header: the type of a message of ICMP.
pub(super) fn kind_of(batch: &Batch<'_>, index: usize, found: &Ends) -> Option<u8> {
    packet_of(batch, index).get(found.transport?).copied()
}

/// Returns what a packet of TCP over IPv4 says of its connection; of another protocol nothing is
/// needed. `None` if that is not at hand.
pub(super) fn said_of(batch: &Batch<'_>, index: usize, found: &Ends) -> Option<Said> {
    if found.protocol != TCP {
        return Some(Said::default());
    }
    let packet = packet_of(batch, index);
    let at = found.transport?;
    let [offset, flags] = packet.get(at + TCP_OFFSET..)?.first_chunk().copied()?;
    let len = usize::from(u16::from_be_bytes(packet.get(LENGTH..)?.first_chunk().copied()?));
    Some(Said { flags, has_payload: len > at + usize::from(offset >> 4) * 4 })
}

/// Returns the packet of a frame if it is plain.
#[inline(always)]
pub(super) fn plain_of(batch: &Batch<'_>, index: usize) -> Option<Plain> {
    let len = batch.frames.frames().get(index)?.len as usize;
    Plain::read(packet_of(batch, index).first_chunk()?, len.checked_sub(L3)?)
}

/// Translates an end of a plain packet.
#[inline(always)]
pub(super) fn rewrite_plain(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    side: Side,
    to: (Address, u16),
) -> Option<()> {
    let packet = batch.frames.head_mut(index).get_mut(L3..)?.first_chunk_mut()?;
    Plain::translate(packet, side, (to.0 as u32, to.1), transport_of(meta));
    Some(())
}

/// Returns what the sum over a packet's transport header is.
#[inline(always)]
pub(super) fn transport_of(meta: &Meta) -> Transport {
    let is_partial = meta.offload && meta.net.flags & NetHeader::FLAG_NEEDS_CSUM != 0;
    if is_partial { Transport::Partial } else { Transport::Complete }
}

/// Returns the packet of a frame, as far as it is at hand.
pub(crate) fn packet_of<'b>(batch: &'b Batch<'_>, index: usize) -> &'b [u8] {
    batch.frames.head(index).get(L3..).unwrap_or_default()
}

/// Returns the ends of the packet that a frame quotes, if it is an ICMP error.
pub(super) fn quoted(
    batch: &mut Batch<'_>,
    index: usize,
    found: &Ends,
) -> Result<Option<Ends>, DropReason> {
    let may_be = matches!(found.protocol, ICMP | ICMPV6);
    if !may_be || !is_error(packet_of(batch, index)) {
        return Ok(None);
    }
    // The more of the quoted packet is at hand, the more of its sums are right again.
    batch.frames.extend_head(index);
    let packet = packet_of(batch, index);
    let quoted = quote(packet).map_err(|_| NAT_QUOTE)?;
    // Of another family it would fail after the header was translated.
    let fits = ends(packet).is_ok_and(|ends| ends.source.is_ipv4() == quoted.source.is_ipv4());
    if fits { Ok(Some(quoted)) } else { Err(NAT_QUOTE) }
}

/// Translates an end of a packet, and of the packet that it quotes the other end, with all sums.
/// Changes nothing if it fails.
pub(super) fn rewrite(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    side: Side,
    to: &End,
    quote_to: Option<End>,
) -> Result<(), DropReason> {
    let transport = transport_of(meta);
    let translate = butterfly_packet::translate::translate;
    let packet = |batch: &mut Batch<'_>| -> Result<(), Error> {
        let packet = batch.frames.head_mut(index).get_mut(L3..).unwrap_or_default();
        translate(packet, side, to, transport)
    };
    match packet(batch) {
        Err(Error::Truncated) => {
            batch.frames.extend_head(index);
            packet(batch).map_err(|error| reason(batch, index, error))?;
        }
        done => done.map_err(|error| reason(batch, index, error))?,
    }
    let Some(end) = quote_to else { return Ok(()) };
    let packet = batch.frames.head_mut(index).get_mut(L3..).unwrap_or_default();
    // It was read before.
    translate_quote(packet, side.other(), &end).map_err(|_| NAT_QUOTE)
}

/// Returns the reason for which a packet that cannot be translated is dropped.
pub(super) fn reason(batch: &Batch<'_>, index: usize, error: Error) -> DropReason {
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len as usize);
    let is_whole = batch.frames.head(index).len() >= len;
    let is_fragment = ends(packet_of(batch, index)).is_ok_and(|ends| ends.fragment);
    match error {
        Error::Truncated if !is_whole => HEADERS_TOO_LONG,
        Error::Truncated if is_fragment => TINY_FRAGMENT,
        _ => MALFORMED_IP,
    }
}
