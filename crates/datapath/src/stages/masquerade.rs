//! Writes what routers decided: MAC addresses, hop limit and header checksum, and the source of
//! what leaves by an outside.
//!
//! Behind the filter: what is dropped or waits is the packet as it was sent, also if its
//! destination was translated. What passes is traced and mirrored as it goes on. RFC 1812, 5.3.1
//! (time to live); RFC 1624 (checksum); RFC 8200, 3 (hop limit).

use std::net::IpAddr;

use butterfly_packet::{
    Error,
    icmp::v4::ECHO_REQUEST,
    protocol::{ICMP, TCP},
    tcp::{FIN, RST},
    translate::{End, Ends, PLAIN_LEN, Plain, Side, ends, is_error},
};
use butterfly_vhost::ring::{Frame, HEAD_MAX};

use crate::engine::{
    batch::{Batch, Hop, Meta, Verdict},
    place::NetworkRef,
    reason::{DropReason, ReasonInfo},
};
use crate::ip::{Address, is_v4};
use crate::stages::{
    context::Context,
    cuts,
    nat_fragments::{self, NatPiece, PieceScratch},
    outward::{NAT_NO_RULE, may_turn},
    stage::{Stage, StageConfig},
    translate::{
        self, L3, NAT_FRAGMENT, NAT_PORTS_FULL, NAT_PROTOCOL, NAT_QUOTE, NAT_SHARE,
        NAT_UNTRANSLATED, kind_of, packet_of, plain_of, ports_of, said_of, transport_of,
    },
};
use crate::world::{
    nat::{FirstTranslation, Translations},
    ports::{NoPort, Said},
    rules::{address as ip_of, number as number_of_ip},
};

/// First byte of the Ethernet type of IPv6.
const V6: u8 = 0x86;

/// Offset of the protocol in a header of IPv4.
const PROTOCOL: usize = 9;

/// Rewrites packets that routers pass on.
pub(crate) struct Masquerade;

impl Stage for Masquerade {
    const NAME: &'static str = "masquerade";
    const REASONS: &'static [ReasonInfo] = &[];
    type Scratch = PieceScratch;

    fn scratch(_: &StageConfig<'_>) -> PieceScratch {
        PieceScratch::new()
    }

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, pieces: &mut PieceScratch) {
        if batch.outward {
            if batch.pieces != 0 {
                nat_fragments::settle(batch, context, passes);
            }
            put_back(batch, context);
            outwards(batch, context, pieces);
        }
        if batch.crossed() != 0 {
            if batch.cuts != 0 {
                cuts::settle(batch, context, passes);
            }
            masquerade(batch, context);
        }
    }
}

/// Returns whether a frame goes to a receiver.
fn passes(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Deliver(_) | Verdict::Tunnel(_))
}

/// Notes that a session's other end, outside, ended a connection that came to a port that machines
/// share. To a vnic without filters anybody may have sent it, so that says nothing.
fn ended(batch: &Batch<'_>, index: usize, outside: (Address, u16), context: &Context<'_>) {
    let Some(Meta { verdict: Verdict::Deliver(slot), .. }) = batch.metas().get(index) else {
        return;
    };
    let is_filtered = context.snapshot.vnics.get(*slot).is_some_and(|to| !to.rules.bypass);
    let routing = context.entry.routing.as_ref().and_then(|routing| routing.outside.as_ref());
    if plain_of(batch, index).is_some_and(|found| found.flags & RST == 0) {
        return;
    }
    let Ok(found) = ends(packet_of(batch, index)) else { return };
    if let (Some(of), TCP, Some([_, port]), true, None) =
        (routing, found.protocol, found.ports, is_filtered, context.assumed)
        && said_of(batch, index, &found).is_some_and(|said| said.flags & RST != 0)
        && let Some((_, translations)) = of.nat.owner_of(outside.0)
    {
        translations.ended(outside, (number_of_ip(found.destination), port));
    }
}

/// Gives frames from outside that do not pass the destinations back with which they came, and notes
/// those that pass.
#[cold]
#[inline(never)]
fn put_back(batch: &mut Batch<'_>, context: &Context<'_>) {
    for index in 0..batch.frames.len() {
        let (Some(outside), Some(meta)) = (batch.outside(index), batch.metas().get(index).copied())
        else {
            continue;
        };
        if !passes(meta.verdict) {
            let quote = is_error(packet_of(batch, index)).then_some(outside);
            let end = if quote.is_some() { End { port: None, ..outside } } else { outside };
            // What was translated one way is translated the other.
            let _ = translate::rewrite(batch, (index, &meta), Side::Destination, &end, quote);
        } else if let Some(port) = outside.port {
            ended(batch, index, (number_of_ip(outside.address), port), context);
        }
    }
}

/// Returns the source that a packet has now.
fn source_of(packet: &[u8]) -> Option<Address> {
    let ip = match packet.first()? >> 4 {
        6 => IpAddr::from(*packet.get(8..)?.first_chunk::<16>()?),
        _ => IpAddr::from(*packet.get(12..)?.first_chunk::<4>()?),
    };
    Some(number_of_ip(ip))
}

/// Translates sources of what leaves by outsides.
#[inline(never)]
fn outwards(batch: &mut Batch<'_>, context: &Context<'_>, pieces: &mut PieceScratch) {
    let mut left = leave_plain(batch, context);
    if left == 0 {
        return;
    }
    // A filtered machine is no router on the way: it tells of its own packets alone.
    let sender = context.sender;
    // Of a machine of another host nobody here knows whether it is filtered.
    let tells = !sender.is_trunk() && (sender.rules.bypass || sender.rules.forwards);
    let public = context.entry.routing.as_ref().is_some_and(|routing| routing.public);
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(meta) = batch.metas().get(index).copied() else { return };
        let exit = context.exit(batch.exits(), index);
        let (vni, exit) = (exit.vni, exit.routing.as_deref());
        let outside = exit.and_then(|exit| exit.outside.as_deref());
        let is_routed = batch.exits().is_routed(index);
        let Some(outside) = outside.filter(|_| is_routed && passes(meta.verdict)) else { continue };
        let left = ends(packet_of(batch, index)).map_err(|_| NAT_UNTRANSLATED).and_then(|found| {
            // Without, `route` looked whether it may.
            if let Some(translations) = outside.nat.of(meta.destination) {
                let who = (public, tells);
                leave(batch, (index, &meta), &found, translations, who, context, pieces)?;
            }
            let after = source_of(packet_of(batch, index)).ok_or(NAT_UNTRANSLATED)?;
            // An address outside is only known as what a machine inside has by its router.
            let is_known = match outside.nat.has(after) {
                true => number_of_ip(found.source) != after,
                false => public || !is_v4(after),
            };
            match exit.filter(|_| batch.hop(index).is_some_and(|hop| hop.turns())) {
                _ if !is_known => Err(NAT_UNTRANSLATED),
                Some(exit) => may_turn((after, number_of_ip(found.destination)), (vni, exit)),
                None => Ok(()),
            }
        });
        if let (Err(reason), Some(meta)) = (left, batch.parts().1.get_mut(index)) {
            meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
            meta.offload = false; // nobody will look at what it claims
        }
    }
}

/// Translates the sources of plain packets for which nothing is to be noted: nearly all. Returns a
/// bit for each frame that leaves by an outside and is none of these.
#[inline(always)]
fn leave_plain(batch: &mut Batch<'_>, context: &Context<'_>) -> u64 {
    let crossed = batch.crossed();
    let public = context.entry.routing.as_ref().is_some_and(|routing| routing.public);
    let (frames, metas, hops) = batch.parts_and_hops();
    // Frames of a batch tend to leave by the exit and the router of the one before.
    let mut last: Option<((NetworkRef, u64), Option<Leaving<'_>>)> = None;
    let mut left = 0;
    // The end of a connection waits for its turn, so all behind it does, too: what a connection
    // says that follows by the same port is not to come first.
    let mut in_turn = context.assumed.is_none();
    let each = frames.each_mut().zip(metas.iter()).zip(hops.iter()).enumerate();
    for (index, (((frame, slot), meta), hop)) in each {
        let crossed = crossed.wrapping_shr(index as u32) & 1 == 1;
        if !crossed || !hop.is_routed() || !passes(meta.verdict) {
            continue;
        }
        let by = (hop.exit, meta.destination);
        let leaving = match last {
            Some((before, leaving)) if before == by => leaving,
            _ => last.insert((by, Leaving::of(by, context))).1,
        };
        let Some(leaving) = leaving else { continue };
        let translated = leaving.0.filter(|_| in_turn).and_then(|translations| {
            translate_plain(slot.bytes_mut(), (frame, meta), translations, public, context)
        });
        if translated.is_none() {
            left |= 1 << index;
            in_turn &= !may_end(slot.bytes(), frame);
        }
    }
    left
}

/// Returns whether a packet may end a connection of TCP over IPv4.
fn may_end(bytes: &[u8; HEAD_MAX], frame: &Frame) -> bool {
    let Some(packet) = bytes.get(L3..).and_then(|packet| packet.first_chunk()) else { return true };
    match Plain::read(packet, (frame.len as usize).saturating_sub(L3)) {
        Some(found) => found.flags & (FIN | RST) != 0,
        None => packet.get(PROTOCOL) == Some(&TCP),
    }
}

/// Outside by which packets leave, and what their router translates there, if it does.
#[derive(Clone, Copy)]
struct Leaving<'a>(Option<&'a Translations>);

impl<'a> Leaving<'a> {
    /// Returns the one of an exit and a router; `None` if the exit is no outside.
    fn of((exit, router): (NetworkRef, u64), context: &Context<'a>) -> Option<Leaving<'a>> {
        let outside = context.other(exit)?.routing.as_deref()?.outside.as_deref()?;
        Some(Leaving(outside.nat.of(router)))
    }
}

/// Translates the source of a plain packet. `None`, and nothing has changed, if it is another one,
/// or something is to be noted.
#[inline(always)]
fn translate_plain(
    bytes: &mut [u8; HEAD_MAX],
    (frame, meta): (&Frame, &Meta),
    translations: &Translations,
    public: bool,
    context: &Context<'_>,
) -> Option<()> {
    let packet = bytes.get_mut(L3..)?.first_chunk_mut()?;
    let len = frame.len as usize;
    let is_at_hand = frame.at_hand() >= len.min(L3 + PLAIN_LEN);
    let found = Plain::read(packet, len.checked_sub(L3)?).filter(|_| is_at_hand)?;
    let [port, _] = found.ports;
    let said = Said { flags: found.flags, has_payload: found.has_payload };
    let (address, port) =
        translations.noted((found.source, found.protocol, port), said, context.now, !public)?;
    // An address that a machine has inside is none outside.
    if address == found.source {
        return None;
    }
    Plain::translate(packet, Side::Source, (address, port), transport_of(meta));
    Some(())
}

/// Translates the source of a packet, and what it quotes if it is an error. `public`: the outside
/// knows its network. `tells`: the sender may tell of packets to other machines.
fn leave(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    found: &Ends,
    translations: &Translations,
    (public, tells): (bool, bool),
    context: &Context<'_>,
    pieces: &mut PieceScratch,
) -> Result<(), DropReason> {
    let of = |inside, protocol, port| {
        let outside = translations.outside_of(number_of_ip(inside), protocol, port);
        outside.map(|(outside, port)| End { address: ip_of(outside), port })
    };
    let stays = public || found.source.is_ipv6();
    let shares = !stays && !translations.pool().is_empty();
    let has_ports = || shares || translations.is_forwarded_to(number_of_ip(found.source));
    let piece = match found.fragment {
        true if of(found.source, found.protocol, None).is_none() && has_ports() => {
            NatPiece::read(batch, index, found, context)?
        }
        _ => None, // each fragment has its address, or none
    };
    if let Some(piece) = &piece {
        if !piece.is_first() {
            return follow(batch, (index, meta), (found, piece), translations, context, pieces);
        }
        piece.is_new(context)?;
    }
    let [port, _] = ports_of(found);
    let own = of(found.source, found.protocol, port);
    let quoted = translate::quoted(batch, index, found)?;
    let may_tell = |quoted: &Ends| tells || quoted.destination == found.source;
    let quoted_own = quoted.filter(may_tell).and_then(|quoted| {
        let [_, port] = ports_of(&quoted);
        of(quoted.destination, quoted.protocol, port).or_else(|| {
            let end = (number_of_ip(quoted.destination), quoted.protocol, port?);
            let (address, port) = translations.shared_of(end, context.now)?;
            Some(End { address: ip_of(address), port: Some(port) })
        })
    });
    if own.is_none() && quoted.is_none() && shares {
        return share(batch, (index, meta), (found, port), piece, translations, context);
    }
    if found.fragment && quoted_own.is_some_and(|end| end.port.is_some()) {
        return Err(NAT_FRAGMENT); // what follows would not pass
    }
    // A machine on the way has no address outside; the one that it tells of has (RFC 5508, 4.2).
    let end = own.or(quoted_own.map(|end| End { port: None, ..end }));
    let mut id = None;
    if let (Some(piece), Some(port), None) = (&piece, port, quoted)
        && (end.is_some() || stays)
    {
        let outside = end.map(|end| number_of_ip(end.address));
        let first = first_of((found, port), outside, meta, context);
        piece.begin(first, context)?;
        id = first.id;
    }
    match (end, quoted) {
        // The quote would tell an address inside.
        (Some(_), Some(_)) if quoted_own.is_none() && !stays => Err(NAT_QUOTE),
        (Some(end), _) => {
            translate::rewrite(batch, (index, meta), Side::Source, &end, quoted_own)?;
            nat_fragments::identify(batch, index, id)
        }
        (None, _) if stays => Ok(()),
        (None, Some(_)) if tells => Err(NAT_QUOTE),
        (None, _) => Err(NAT_NO_RULE),
    }
}

/// Translates the source of a fragment that is not the first, as that of the first was, while the
/// machine still has it.
#[cold]
fn follow(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    (found, piece): (&Ends, &NatPiece),
    translations: &Translations,
    context: &Context<'_>,
    pieces: &mut PieceScratch,
) -> Result<(), DropReason> {
    if piece.first_of(context).is_none() {
        // The filter has put them in order, and does not pass one twice.
        if !is_filtered(meta, context) {
            pieces.note_early(index, piece);
        }
        return Err(NAT_FRAGMENT);
    }
    let first = piece.pass(context)?;
    let source = number_of_ip(found.source);
    if first.address == source {
        return Ok(()); // of a public network
    }
    let end = (source, found.protocol, first.port);
    let own = translations.outside_of(source, found.protocol, Some(first.port));
    let outside = own.map(|(outside, _)| outside);
    let shared = || translations.shared_of(end, context.now).map(|(outside, _)| outside);
    let is_still = outside.or_else(shared) == Some(first.address);
    if !is_still || meta.destination != first.router {
        return Err(NAT_FRAGMENT);
    }
    let end = End { address: ip_of(first.address), port: None };
    translate::rewrite(batch, (index, meta), Side::Source, &end, None)?;
    nat_fragments::identify(batch, index, first.id)
}

/// Returns the translation of a first fragment from this port. `outside` is the address as which it
/// leaves, if that is another one, which other machines may have as well.
fn first_of(
    (found, port): (&Ends, u16),
    outside: Option<Address>,
    meta: &Meta,
    context: &Context<'_>,
) -> FirstTranslation {
    let to = number_of_ip(found.destination);
    let id = outside.map(|outside| context.identifications.next((outside, to), found.protocol));
    let address = outside.unwrap_or(number_of_ip(found.source));
    FirstTranslation { router: meta.destination, port, address, id }
}

/// Returns whether the sender or the receiver of a frame is filtered.
fn is_filtered(meta: &Meta, context: &Context<'_>) -> bool {
    let to = match meta.verdict {
        Verdict::Deliver(slot) => context.snapshot.vnics.get(slot),
        _ => None,
    };
    !context.sender.rules.bypass || to.is_some_and(|to| !to.rules.bypass)
}

/// Translates the source of a packet whose machine shares an address and its ports outside.
fn share(
    batch: &mut Batch<'_>,
    (index, meta): (usize, &Meta),
    (found, port): (&Ends, Option<u16>),
    piece: Option<NatPiece>,
    translations: &Translations,
    context: &Context<'_>,
) -> Result<(), DropReason> {
    let port = port.ok_or(NAT_PROTOCOL)?;
    // Replies belong to an identifier of somebody outside, who cannot have asked.
    if found.protocol == ICMP && kind_of(batch, index, found) != Some(ECHO_REQUEST) {
        return Err(NAT_PROTOCOL);
    }
    if said_of(batch, index, found).is_none() {
        batch.frames.extend_head(index);
    }
    let said = said_of(batch, index, found);
    let said = said.ok_or_else(|| translate::reason(batch, index, Error::Truncated))?;
    let end = (number_of_ip(found.source), found.protocol, port);
    // What cannot be translated, here to itself, opens nothing.
    let mut unfit = None;
    let same = End { address: found.source, port: Some(port) };
    let can_leave = || {
        let tried = translate::rewrite(batch, (index, meta), Side::Source, &same, None);
        unfit = tried.err();
        unfit.is_none()
    };
    let (address, port) = match translations.share(end, said, context.sharing(), can_leave) {
        Some(Ok(given)) => given,
        Some(Err(NoPort::Share)) => return Err(NAT_SHARE),
        Some(Err(NoPort::Full)) => return Err(NAT_PORTS_FULL),
        Some(Err(NoPort::Unfit)) => return Err(unfit.unwrap_or(NAT_PROTOCOL)),
        None => return Err(NAT_PROTOCOL),
    };
    let mut id = None;
    if let Some(piece) = &piece {
        let first = first_of((found, end.2), Some(address), meta, context);
        piece.begin(first, context)?;
        id = first.id;
    }
    let outside = End { address: ip_of(address), port: Some(port) };
    translate::rewrite(batch, (index, meta), Side::Source, &outside, None)?;
    nat_fragments::identify(batch, index, id)
}

/// Rewrites the headers of packets that pass; all other frames stay as they are.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn masquerade(batch: &mut Batch<'_>, context: &Context<'_>) {
    if context.sender.is_trunk() {
        return of_far_routers(batch);
    }
    let crossed = batch.crossed();
    let (frames, metas, hops) = batch.parts_and_hops();
    let each = frames.each_mut().zip(metas.iter()).zip(hops.iter()).enumerate();
    for (index, (((_, slot), meta), hop)) in each {
        let crossed = crossed.wrapping_shr(index as u32) & 1 == 1;
        if crossed && hop.is_routed() && passes(meta.verdict) {
            rewrite(slot.bytes_mut(), hop);
        }
    }
}

/// Gives packets that routers of other hosts passed on the source address of the gateway here, to
/// which their receivers answer, and those that this host leads out both addresses. All else of
/// them was written there.
#[cold]
#[inline(never)]
fn of_far_routers(batch: &mut Batch<'_>) {
    let crossed = batch.crossed();
    let (frames, metas, hops) = batch.parts_and_hops();
    let each = frames.each_mut().zip(metas.iter()).zip(hops.iter()).enumerate();
    for (index, (((_, slot), meta), hop)) in each {
        let crossed = crossed.wrapping_shr(index as u32) & 1 == 1;
        let [_, _, _, _, _, _, gateway @ ..] = hop.macs;
        let is_delivered = crossed && matches!(meta.verdict, Verdict::Deliver(_));
        if is_delivered && hop.is_routed() && !hop.is_from_far() {
            slot.bytes_mut().iter_mut().zip(hop.macs).for_each(|(place, byte)| *place = byte);
        } else if is_delivered && gateway != [0; 6] {
            let places = slot.bytes_mut().iter_mut().zip(hop.macs).skip(6);
            places.take(6).for_each(|(place, byte)| *place = byte);
        }
    }
}

/// Rewrites a header. The stage `route` has read it: it is whole, and it has a hop left.
#[inline(always)]
fn rewrite(head: &mut [u8; HEAD_MAX], hop: &Hop) {
    let Some((macs, rest)) = head.split_first_chunk_mut::<12>() else { return };
    *macs = hop.macs;
    let [kind, _, _, _, _, _, _, _, _, hops, ttl, _, high, low, ..] = rest else { return };
    if *kind == V6 {
        *hops = hops.wrapping_sub(1);
        return;
    }
    *ttl = ttl.wrapping_sub(1);
    // The time to live is the upper half of a word: a hop less adds 0x100 to the checksum.
    let sum = u32::from(u16::from_be_bytes([*high, *low])) + 0x100;
    [*high, *low] = ((sum + u32::from(sum >= 0xffff)) as u16).to_be_bytes();
}

#[cfg(test)]
mod tests {
    use butterfly_packet::{Mac, build, checksum::Sum};

    use super::*;
    use crate::engine::place::NetworkRef;

    /// Offset of IP behind Ethernet, and offsets in a header of IPv4.
    const L3: usize = 14;
    const TTL: usize = 8;
    const SUM: usize = 10;

    #[test]
    fn the_header_is_right_for_every_time_to_live() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([0xb2, 0xf0, 0, 0, 0, 2]));
        let (to, from) = (Mac([2, 0, 0, 0, 0, 3]), Mac([0xb2, 0xf0, 4, 5, 6, 7]));
        let macs: Vec<u8> = [to.0, from.0].concat();
        let hop = Hop { exit: NetworkRef(1), macs: macs.try_into().unwrap() };
        for ttl in 2..=255 {
            for id in [0u16, 1, 0x00ff, 0xfeff, 0xffff] {
                let mut frame =
                    build::ethernet(a, b).ipv4([10, 0, 0, 1], [10, 1, 0, 1]).udp(1, 2, b"x");
                frame[L3 + 4..L3 + 6].copy_from_slice(&id.to_be_bytes());
                frame[L3 + TTL] = ttl;
                frame[L3 + SUM..L3 + SUM + 2].copy_from_slice(&[0, 0]);
                let sum = Sum::of(&frame[L3..L3 + 20]).checksum();
                frame[L3 + SUM..L3 + SUM + 2].copy_from_slice(&sum.to_be_bytes());
                let before = frame.clone();
                let mut head = [0; HEAD_MAX];
                head[..frame.len()].copy_from_slice(&frame);
                rewrite(&mut head, &hop);
                frame.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
                assert_eq!((&frame[..6], &frame[6..12]), (&to.0[..], &from.0[..]));
                assert_eq!(frame[L3 + TTL], ttl - 1);
                assert!(Sum::of(&frame[L3..L3 + 20]).is_valid(), "{ttl} {id}");
                assert_eq!(frame[L3..L3 + TTL], before[L3..L3 + TTL]);
                assert_eq!(frame[L3 + SUM + 2..], before[L3 + SUM + 2..]);
            }
        }
    }
}
