//! Offloads: checks that a guest asks only for computations that its frame needs.
//!
//! The guest's virtio-net header is never forwarded. A frame that claims no offload gets an empty
//! one; for all others the header is rebuilt from the parsed frame, and claims that do not fit it
//! are refused. virtio 1.2, 5.1.6.2.

use butterfly_packet::{
    Error,
    ethernet::{self, Ethernet},
    icmp,
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol, sctp, tcp, udp,
};
use butterfly_vhost::{
    net::NetHeader,
    ring::{Frames, HEAD_MAX},
};

use crate::engine::{
    batch::{Batch, FrameCut, Meta, Verdict},
    reason::{ReasonInfo, drop_reasons},
};
use crate::ip::Dhcp;
use crate::stages::{
    context::Context,
    stage::{Stage, StageConfig},
};

drop_reasons! { 2;
    /// The virtio-net header asks for a checksum or segmentation that does not fit the frame, for
    /// segments of TCP of less than 432 bytes, for more than 152 datagrams of UDP, or for several
    /// messages of DHCP in one frame.
    BAD_OFFLOAD = "bad-offload" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "replace the machine's virtio-net driver, or let it claim nothing: `csum=off,gso=off` on QEMU's `-device virtio-net-pci`",
        charged: "the sender",
    }
}

/// Smallest segment size that is accepted. The smallest MTU that matters is 552 bytes, the least
/// that Linux takes from a path (`net.ipv4.route.min_pmtu`); headers of IPv4 and TCP take 60 bytes
/// each at most. A smaller size only multiplies work: a frame of 64 KiB is 152 segments at most.
pub(super) const MIN_SEGMENT: u16 = 552 - 60 - 60;
/// Most segments of a frame. Datagrams of UDP may be of any size, as long as there are no more.
pub(super) const MAX_SEGMENTS: u32 = (u16::MAX as u32).div_ceil(MIN_SEGMENT as u32);

/// Rebuilds virtio-net headers.
pub(crate) struct Offload;

impl Stage for Offload {
    const NAME: &'static str = "offload";
    const REASONS: &'static [ReasonInfo] = REASONS;
    type Scratch = ();

    fn scratch(_: &StageConfig<'_>) {}

    #[inline(always)]
    fn run(batch: &mut Batch<'_>, context: &Context<'_>, _: &mut ()) {
        batch.segments = batch.offloads && offload(batch, context);
    }
}

/// Rebuilds the virtio-net header of every frame that asks for an offload. Returns whether one asks
/// for segments.
#[inline(never)] // one call per batch; measurements tell stages apart by it
fn offload(batch: &mut Batch<'_>, context: &Context<'_>) -> bool {
    let (frames, metas) = batch.parts();
    let mut segments = false;
    for (index, meta) in metas.iter_mut().enumerate() {
        if !meta.offload || meta.verdict != Verdict::Undecided {
            continue;
        }
        let Some(frame) = frames.frames().get(index).copied() else { break };
        meta.cut = FrameCut::NONE;
        // Other flags are hints or for receivers, and DATA_VALID is not the sender's to say.
        meta.offload = frame.net.flags & NetHeader::FLAG_NEEDS_CSUM != 0
            || frame.net.gso_type != NetHeader::GSO_NONE;
        if meta.offload && rebuild(frames, index, frame.net, frame.len, meta).is_none() {
            meta.verdict = Verdict::Drop(BAD_OFFLOAD, context.sender.place.slot);
            meta.offload = false;
        }
        segments |= meta.offload && meta.net.gso_size > 0;
    }
    segments
}

/// Returns whether a datagram of UDP is between the ports of DHCP.
fn is_dhcp(head: &[u8], layout: &Layout) -> bool {
    let port = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk()).copied();
    match (port(layout.l4), port(layout.l4 + 2)) {
        (Some(source), Some(destination)) => {
            let [source, destination] = [source, destination].map(u16::from_be_bytes);
            Dhcp::between(source, destination, layout.v6).is_some()
        }
        _ => true,
    }
}

/// Places of the parts of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    l3: usize,
    l4: usize,
    /// End of the IP packet, by its own length.
    end: usize,
    protocol: u8,
    v6: bool,
}

fn rebuild(
    frames: &mut Frames<'_>,
    index: usize,
    claims: NetHeader,
    len: u32,
    meta: &mut Meta,
) -> Option<()> {
    // Segmentation without a partial checksum makes no sense (5.1.6.2.1).
    if claims.flags & NetHeader::FLAG_NEEDS_CSUM == 0 {
        return None;
    }
    let field = usize::from(claims.csum_offset);
    let read =
        |head: &[u8]| layout(head).and_then(|l| header_end(head, &l, field).map(|end| (l, end)));
    let mut found = read(frames.head(index));
    if found == Err(Error::Truncated) && frames.head(index).len() < HEAD_MAX {
        found = read(frames.extend_head(index));
    }
    let (layout, payload) = found.ok()?;
    if usize::from(claims.csum_start) != layout.l4 || layout.end > len as usize {
        return None;
    }
    meta.l3 = layout.l3 as u16;
    meta.payload = payload as u16;
    meta.net = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        csum_start: layout.l4 as u16,
        csum_offset: field as u16,
        ..NetHeader::default()
    };
    let ecn = claims.gso_type & NetHeader::GSO_ECN;
    let fits = match claims.gso_type & !NetHeader::GSO_ECN {
        NetHeader::GSO_NONE => return (ecn == 0).then_some(()),
        NetHeader::GSO_TCPV4 => layout.protocol == protocol::TCP && !layout.v6,
        NetHeader::GSO_TCPV6 => layout.protocol == protocol::TCP && layout.v6,
        // A message of DHCP is judged whole, so each has a frame.
        NetHeader::GSO_UDP_L4 => {
            let head = frames.head(index);
            let length = head.get(layout.l4 + udp::LENGTH_OFFSET..);
            let length = length.and_then(|rest| rest.first_chunk()).copied();
            layout.protocol == protocol::UDP
                && ecn == 0
                && length.is_some_and(|length| {
                    usize::from(u16::from_be_bytes(length)) == layout.end - layout.l4
                })
                && !is_dhcp(head, &layout)
        }
        _ => false,
    };
    let least = match layout.protocol {
        protocol::UDP => len.saturating_sub(payload as u32).div_ceil(MAX_SEGMENTS).max(1),
        _ => MIN_SEGMENT.into(),
    };
    // Segments are cut up to the frame's end, so nothing may stand behind the IP packet.
    if !fits
        || layout.end != len as usize
        || u32::from(claims.gso_size) < least
        || usize::from(claims.gso_size) > len as usize
    {
        return None;
    }
    if payload + usize::from(claims.gso_size) < len as usize {
        meta.net.gso_type = claims.gso_type;
        meta.net.gso_size = claims.gso_size;
        meta.net.hdr_len = payload as u16;
    }
    Some(())
}

/// Finds the transport header of an unfragmented IP packet behind any number of VLAN tags.
/// Truncated: more of the head is needed.
fn layout(head: &[u8]) -> Result<Layout, Error> {
    let mut tags = Ethernet::parse(head)?.tags();
    tags.by_ref().for_each(drop);
    let packet = tags.rest();
    let l3 = head.len() - packet.len();
    match tags.ethertype() {
        ethernet::IPV4 => {
            let ip = Ipv4::parse(packet)?;
            if ip.is_fragment() {
                return Err(Error::Malformed);
            }
            Ok(Layout {
                l3,
                l4: l3 + ip.header_len(),
                end: l3 + ip.total_len(),
                protocol: ip.protocol(),
                v6: false,
            })
        }
        ethernet::IPV6 => {
            let ip = Ipv6::parse(packet)?;
            let upper = ip.upper_layer()?;
            if upper.fragment.is_some() {
                return Err(Error::Malformed);
            }
            let end = l3 + butterfly_packet::ipv6::LEN + ip.payload_len();
            Ok(Layout { l3, l4: l3 + upper.offset, end, protocol: upper.protocol, v6: true })
        }
        ethertype if ethernet::is_vlan(ethertype) => Err(Error::Truncated),
        _ => Err(Error::Malformed),
    }
}

/// Returns whether a checksum may be written there, in bytes from the transport header, after all
/// decisions. It may only be where the protocol has it, or behind everything that a filter reads.
fn may_stand(protocol: u8, field: usize) -> bool {
    match protocol {
        protocol::TCP => field == tcp::CHECKSUM_OFFSET,
        protocol::UDP => field == udp::CHECKSUM_OFFSET,
        // Kind and code stand in front of it, an identifier or a quote behind it.
        protocol::ICMP | protocol::ICMPV6 => field == icmp::CHECKSUM_OFFSET,
        // Ports, tag, checksum and the first chunk's kind.
        protocol::SCTP => field >= sctp::LEN + 4,
        // The filter reads nothing of others.
        _ => true,
    }
}

/// Returns the end of the transport header, or of the checksum `field` if the protocol has no
/// segments. Truncated: it is not all in the head.
fn header_end(head: &[u8], layout: &Layout, field: usize) -> Result<usize, Error> {
    if !may_stand(layout.protocol, field) {
        return Err(Error::Malformed);
    }
    let len = match layout.protocol {
        protocol::TCP => match head.get(layout.l4 + 12).map(|byte| usize::from(byte >> 4) * 4) {
            None => return Err(Error::Truncated),
            Some(len) if len < tcp::MIN_LEN => return Err(Error::Malformed),
            Some(len) => len,
        },
        protocol::UDP => udp::LEN,
        _ => field + 2,
    };
    let end = layout.l4 + len;
    match end {
        end if end > layout.end => Err(Error::Malformed),
        end if end > head.len() => Err(Error::Truncated),
        end => Ok(end),
    }
}
