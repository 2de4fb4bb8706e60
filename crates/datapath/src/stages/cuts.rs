//! Cuts: what is longer than the network that it leaves by allows becomes fragments of IPv4, if its
//! sender allows that (RFC 791, 2.3; RFC 1812, 5.2.6).
//!
//! `route` decides, and marks the frame ([`FrameCut`]), which goes on whole: rules, sessions and
//! translations see one packet. It is cut where it is copied, like a frame of segments: into the
//! receiver's buffers, or for the uplink. Bytes in its slot, which were judged, come from there in
//! whichever fragment they fall; only those behind are read from the sender's memory.

use butterfly_packet::{
    fragments::Fragments,
    ipv4::{self, Ipv4},
    ipv6::{self, Ipv6},
    protocol::{SCTP, TCP},
    sctp, tcp, translate, udp,
};
use butterfly_vhost::{
    net::NetHeader,
    ring::{Finish, Frames, HEAD_MAX},
};

use crate::engine::{
    batch::{Batch, FrameCut, Meta, Verdict},
    reason::DropReason,
};
use crate::ip::{Address, MALFORMED_IP, mapped};
use crate::stages::{
    asks::CUT_LIMIT,
    context::Context,
    offload::{MAX_SEGMENTS, MIN_SEGMENT},
    segment::Segments,
    translate::{L3, packet_of},
};

/// Most fragments of the packets of a vnic per second. A wire and a trunk, which stand for many
/// machines, have no such limit: one of these would use it up. What they cost is bounded by turns.
const FRAGMENTS_PER_SECOND: u32 = 250_000;

/// Reason why a packet cannot be made to fit.
pub(super) enum Unfit {
    /// Too long, and not to be cut.
    TooBig,
    /// Another reason.
    By(DropReason),
}

impl From<DropReason> for Unfit {
    fn from(reason: DropReason) -> Unfit {
        Unfit::By(reason)
    }
}

/// Fragments of the packets of a batch, as far as it was looked at.
#[derive(Default)]
pub(super) struct Cuts {
    fragments: u32,
}

impl Cuts {
    /// Makes a packet fit where `mtu` bytes do: marks a frame that is to be cut, or has it cut into
    /// shorter segments. One that fits stays as it is.
    #[inline(always)]
    pub fn fit(
        &mut self,
        (head, len): (&[u8], u32),
        meta: &mut Meta,
        mtu: u32,
        context: &Context<'_>,
    ) -> Result<(), Unfit> {
        match longest(meta, len) > mtu {
            true => self.fit_long((head, len), meta, mtu, context),
            false => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn fit_long(
        &mut self,
        (head, len): (&[u8], u32),
        meta: &mut Meta,
        mtu: u32,
        context: &Context<'_>,
    ) -> Result<(), Unfit> {
        let most = u16::try_from(mtu).unwrap_or(u16::MAX);
        let packet = head.get(L3..).unwrap_or_default();
        let is_one = !meta.offload || meta.net.gso_type == NetHeader::GSO_NONE;
        if is_one && total_of(packet).is_some_and(|total| total <= most.into()) {
            mark(meta, FrameCut { most, packets: 1 });
            return Ok(());
        }
        let may_be_cut = Ipv4::parse(packet).is_ok_and(|ip| !ip.dont_fragment());
        if !may_be_cut {
            return Err(Unfit::TooBig);
        }
        if !is_one && meta.net.gso_type != NetHeader::GSO_UDP_L4 {
            return Ok(shorten(meta, len, most)?);
        }
        let source = Ipv4::parse(packet).map_err(|_| MALFORMED_IP)?.source();
        let packets = fragments(packet, len, meta, most)?;
        self.take(packets, mapped(source), context)?;
        mark(meta, FrameCut { most, packets: packets as u16 });
        Ok(())
    }

    /// Takes room for so many fragments of a packet from this source.
    fn take(
        &mut self,
        fragments: u32,
        source: Address,
        context: &Context<'_>,
    ) -> Result<(), DropReason> {
        let sender = context.sender;
        let left = if sender.is_trunk() || sender.is_wire() {
            u32::MAX
        } else {
            // They are taken when the packet has passed: `settle`.
            let pace = &sender.shared.cuts;
            pace.left(context.now, FRAGMENTS_PER_SECOND, FRAGMENTS_PER_SECOND)
        };
        let all = self.fragments.saturating_add(fragments);
        if fragments > MAX_SEGMENTS || all > left {
            return Err(CUT_LIMIT);
        }
        let who = (context.entry.vni, source);
        if context.far_cuts.is_some_and(|far| sender.is_trunk() && !far.take(who, fragments)) {
            return Err(CUT_LIMIT);
        }
        self.fragments = all;
        Ok(())
    }
}

/// Returns the length in bytes of the packet in a frame of `len` bytes, or of the longest that it
/// is cut into. Bytes behind the packet count here; `fit_long` takes them off if the packet alone
/// fits.
fn longest(meta: &Meta, len: u32) -> u32 {
    let len = len.saturating_sub(L3 as u32);
    if !meta.offload || meta.net.gso_type & !NetHeader::GSO_ECN == NetHeader::GSO_NONE {
        return len;
    }
    let headers = u32::from(meta.payload).saturating_sub(L3 as u32);
    len.min(headers + u32::from(meta.net.gso_size))
}

/// Returns the length of a packet by its header.
fn total_of(packet: &[u8]) -> Option<usize> {
    match packet.first()? >> 4 {
        6 => Ipv6::parse(packet).ok().map(|ip| ipv6::LEN + ip.payload_len()),
        _ => Ipv4::parse(packet).ok().map(|ip| ip.total_len()),
    }
}

/// Marks a frame, which may ask for nothing so far.
fn mark(meta: &mut Meta, cut: FrameCut) {
    if !meta.offload {
        meta.net = NetHeader::NONE;
        meta.l3 = L3 as u16;
        meta.offload = true;
    }
    meta.cut = cut;
}

/// Has TCP cut into segments that fit, which is what its sender left to others. They are more than
/// the sender has identifications for, so they are noted: [`settle`].
fn shorten(meta: &mut Meta, len: u32, most: u16) -> Result<(), DropReason> {
    let headers = meta.payload.saturating_sub(L3 as u16);
    let size = most.checked_sub(headers).filter(|size| *size >= MIN_SEGMENT).ok_or(CUT_LIMIT)?;
    let segments = len.saturating_sub(meta.payload.into()).div_ceil(size.into());
    meta.net.gso_size = size;
    meta.cut = FrameCut { most: 0, packets: segments as u16 };
    Ok(())
}

/// Returns the number of fragments of a packet, or of all datagrams of a frame.
fn fragments(packet: &[u8], len: u32, meta: &Meta, most: u16) -> Result<u32, DropReason> {
    let datagrams = datagrams(meta, len);
    let mut header = [0; ipv4::MAX_LEN];
    let own = Ipv4::parse(packet).map_err(|_| MALFORMED_IP)?.header();
    let room = header.get_mut(..own.len()).ok_or(MALFORMED_IP)?;
    room.copy_from_slice(own);
    if datagrams > 1 {
        // All but the last have as many bytes.
        let total = own.len() + udp::LEN + usize::from(meta.net.gso_size);
        let [_, _, high, low, ..] = &mut header;
        [*high, *low] = u16::try_from(total).map_err(|_| MALFORMED_IP)?.to_be_bytes();
    }
    let fragments = Fragments::new(&header, most.into()).map_err(|_| MALFORMED_IP)?;
    // What filters read is in the first one (RFC 1858, RFC 3128).
    let ip = Ipv4::parse(packet).map_err(|_| MALFORMED_IP)?;
    if ip.fragment_offset() == 0 && fragments.first_payload() < upper_header(&ip, packet) {
        return Err(CUT_LIMIT);
    }
    Ok(datagrams.saturating_mul(fragments.count() as u32))
}

/// Returns the bytes of a packet's transport header that belong together.
fn upper_header(ip: &Ipv4<'_>, packet: &[u8]) -> usize {
    match ip.protocol() {
        TCP => {
            let words = packet.get(ip.header_len() + 12).map_or(15, |byte| byte >> 4);
            (usize::from(words) * 4).max(tcp::MIN_LEN)
        }
        SCTP => sctp::LEN + 4, // with the first chunk's kind
        _ => udp::LEN,
    }
}

/// Returns the number of datagrams in a frame.
fn datagrams(meta: &Meta, len: u32) -> u32 {
    match meta.offload && meta.net.gso_type == NetHeader::GSO_UDP_L4 {
        true => len.saturating_sub(meta.payload.into()).div_ceil(meta.net.gso_size.max(1).into()),
        false => 1,
    }
}

/// Charges their sender for packets that pass and are cut. Gives those an identification whose own
/// may be another packet's: see [`identify`].
#[cold]
#[inline(never)]
pub(super) fn settle(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    passes: impl Fn(Verdict) -> bool,
) {
    let mut left = batch.cuts;
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(meta) = batch.metas().get(index).copied() else { return };
        if !passes(meta.verdict) || !meta.offload || meta.cut.packets < 2 {
            continue;
        }
        if meta.cut.is_some() && !context.sender.is_trunk() && !context.sender.is_wire() {
            let (pace, most) = (&context.sender.shared.cuts, FRAGMENTS_PER_SECOND);
            // Another worker may have taken some of what there was when this was decided.
            pace.take_most(meta.cut.packets.into(), context.now, most, most);
        }
        identify(batch, (index, &meta), context);
    }
}

/// Gives a packet an identification, or its datagrams or segments as many, if fragments of others
/// may have the same (RFC 6864, 4.3 and 5.3). A fragment has its packet's.
///
/// Machines behind one address may have chosen the same. Shorter segments are more than their
/// sender has numbers for. And 0 is what those write that leave it to others.
fn identify(batch: &mut Batch<'_>, (index, meta): (usize, &Meta), context: &Context<'_>) {
    let exit = context.exit(batch.exits(), index).routing.as_deref();
    let outside = exit.and_then(|exit| exit.outside.as_deref());
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let Ok(ip) = Ipv4::parse(packet_of(batch, index)) else { return };
    let (source, destination) = (mapped(ip.source()), mapped(ip.destination()));
    let ((ends, protocol), is_segments) =
        (((source, destination), ip.protocol()), !meta.cut.is_some());
    // A machine that has an address for itself counts for it, in fragments of its own as well.
    let is_shared = || {
        let owner = outside.and_then(|outside| outside.nat.owner_of(source));
        owner.is_some_and(|(_, by)| by.inside_of(source, protocol, None).is_none())
    };
    if ip.is_fragment() || !(is_segments || ip.identification() == 0 || is_shared()) {
        return;
    }
    let packets = if is_segments { meta.cut.packets.into() } else { datagrams(meta, len) };
    let id = context.identifications.next_of(packets, ends, protocol);
    let packet = batch.frames.head_mut(index).get_mut(L3..).unwrap_or_default();
    let _ = translate::identify(packet, id); // it was parsed
}

/// Returns the length of a frame without what is behind its packet.
pub(super) fn len_of_packet(head: &[u8], meta: &Meta, len: u32) -> u32 {
    let total = head.get(usize::from(meta.l3)..).and_then(total_of);
    total.map_or(len, |total| len.min(u32::from(meta.l3) + total as u32))
}

/// A packet of a frame that is cut.
pub(crate) struct CutPacket<'a> {
    /// The first bytes of its frame.
    pub head: &'a [u8],
    /// Start of the rest in the sender's frame.
    pub from: u32,
    /// Bytes of the rest.
    pub len: u32,
}

/// Hands each packet of a frame that is cut to `send`, in order, until that fails. Their checksums
/// are complete. Returns `broken` if the frame does not have all its bytes.
pub(crate) fn each<E: Copy>(
    frames: &Frames<'_>,
    (index, meta): (usize, &Meta),
    broken: E,
    mut send: impl FnMut(CutPacket<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (head, len) = (frames.head(index), frames.frames().get(index).map_or(0, |it| it.len));
    let place = (index, meta);
    if meta.net.gso_type == NetHeader::GSO_NONE {
        let whole = CutPacket { head, from: head.len() as u32, len };
        return cut(frames, place, &whole, &mut send).unwrap_or(Err(broken));
    }
    let mut segments = Segments::new(meta, head, len);
    while let Some(segment) = segments.next() {
        let datagram = CutPacket { head: segment.head, from: segment.from, len: segment.len };
        cut(frames, place, &datagram, &mut send).unwrap_or(Err(broken))?;
    }
    Ok(())
}

/// Cuts one packet. `None` if its frame does not have all its bytes.
fn cut<E>(
    frames: &Frames<'_>,
    (index, meta): (usize, &Meta),
    whole: &CutPacket<'_>,
    send: &mut impl FnMut(CutPacket<'_>) -> Result<(), E>,
) -> Option<Result<(), E>> {
    let (l3, most) = (usize::from(meta.l3), usize::from(meta.cut.most));
    let total = total_of(whole.head.get(l3..)?)?;
    // What is behind the packet goes no further.
    let end = l3 + total;
    let own = whole.head.get(..whole.head.len().min(end))?;
    let (at_hand, rest) = (own.len(), (end - own.len()) as u32);
    let mut head = [0; HEAD_MAX];
    let head = head.get_mut(..at_hand)?;
    head.copy_from_slice(own);
    if meta.net.flags & NetHeader::FLAG_NEEDS_CSUM != 0 {
        // One sum covers all fragments. A machine that writes meanwhile spoils its own.
        let sum = frames.sum(index, whole.from, rest)?;
        let start = meta.net.csum_start;
        let is_udp = meta.net.csum_offset == udp::CHECKSUM_OFFSET as u16;
        let field = start.saturating_add(meta.net.csum_offset);
        Finish::Checksum { start, field, udp: is_udp }.complete(head, sum);
    }
    if total <= most {
        return Some(send(CutPacket { head, from: whole.from, len: rest }));
    }
    let mut fragments = Fragments::new(head.get(l3..)?, most).ok()?;
    while let Some((header, payload)) = fragments.next() {
        let (start, stop) = (l3 + payload.start, l3 + payload.end);
        let judged = head.get(start.min(at_hand)..stop.min(at_hand))?;
        let mut room = [0; HEAD_MAX];
        let len = l3 + header.len() + judged.len();
        let (link, after) = room.get_mut(..len)?.split_at_mut_checked(l3)?;
        let (ip, payload) = after.split_at_mut_checked(header.len())?;
        link.copy_from_slice(head.get(..l3)?);
        ip.copy_from_slice(header);
        payload.copy_from_slice(judged);
        let behind = start.max(at_hand);
        let from = whole.from + (behind - at_hand) as u32;
        let piece =
            CutPacket { head: room.get(..len)?, from, len: stop.saturating_sub(behind) as u32 };
        if let Err(why) = send(piece) {
            return Some(Err(why));
        }
    }
    Some(Ok(()))
}

#[cfg(test)]
mod tests {
    use butterfly_packet::{Mac, build, checksum::Sum};
    use butterfly_vhost::ring::FrameStore;

    use super::*;

    /// Packets of a frame, as they would arrive.
    fn packets(frames: &Frames<'_>, meta: &Meta) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let sent = each(frames, (0, meta), "broken", |CutPacket { head, from, len }| {
            let mut rest = vec![0; len as usize];
            assert!(frames.copy_to(0, from, &mut rest, None));
            all.push([head, &rest].concat());
            Ok(())
        });
        sent.unwrap();
        all
    }

    fn payload(packets: &[Vec<u8>]) -> Vec<u8> {
        packets.iter().flat_map(|packet| packet[L3 + 20..].to_vec()).collect()
    }

    fn frame(len: usize) -> Vec<u8> {
        let data: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        build::ethernet(Mac::ZERO, Mac::ZERO).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, &data)
    }

    /// Bytes that were judged and rewritten in the slot arrive, in whichever fragment they fall:
    /// the sender may have changed its memory meanwhile.
    #[test]
    fn bytes_at_hand_are_never_read_again() {
        for most in [68, 100, 276, 300, 600] {
            let bytes = frame(1000);
            let mut store = FrameStore::default();
            let mut frames = Frames::private(&mut store, [&bytes[..]].into_iter());
            let head = frames.head_mut(0);
            assert_eq!(head.len(), HEAD_MAX);
            head[L3 + 20..].iter_mut().for_each(|byte| *byte ^= 0xff);
            let judged = head.to_vec();
            let mut meta = Meta::NEW;
            mark(&mut meta, FrameCut { most, packets: 0 });
            let all = packets(&frames, &meta);
            assert!(all.len() > 1 && all.iter().all(|it| it.len() <= L3 + usize::from(most)));
            assert!(all.iter().all(|it| it[..L3] == judged[..L3]));
            assert_eq!(payload(&all), [&judged[L3 + 20..], &bytes[HEAD_MAX..]].concat(), "{most}");
        }
    }

    /// Its field may be in any fragment.
    #[test]
    fn one_sum_is_of_all_fragments() {
        for (len, most) in [(1000, 68), (1001, 500), (999, 100), (100, 68), (227, 68), (51, 70)] {
            let whole = frame(len);
            let mut bytes = whole.clone();
            let pseudo = Sum::pseudo_v4(
                [10, 0, 0, 1].into(),
                [10, 0, 0, 2].into(),
                17,
                (bytes.len() - L3 - 20) as u16,
            );
            bytes[40..42].copy_from_slice(&pseudo.fold().to_be_bytes());
            bytes.extend([9; 5]); // behind the packet
            let mut store = FrameStore::default();
            let frames = Frames::private(&mut store, [&bytes[..]].into_iter());
            let net = NetHeader {
                flags: NetHeader::FLAG_NEEDS_CSUM,
                csum_start: 34,
                csum_offset: 6,
                ..NetHeader::NONE
            };
            let cut = FrameCut { most, packets: 0 };
            let meta = Meta { offload: true, l3: 14, net, cut, ..Meta::NEW };
            assert_eq!(payload(&packets(&frames, &meta)), whole[34..], "{len} {most}");
        }
    }
}
