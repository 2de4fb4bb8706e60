//! Segmentation in software, for receivers that do not take large segments of TCP (RFC 9293), or
//! several datagrams of UDP in one frame (IPv4 ids as in RFC 6864).
//!
//! Each segment has the sender's headers, rewritten, and a piece of its payload that stays where it
//! is until it is delivered.

use butterfly_packet::{checksum::Sum, ipv4, ipv6::Ipv6, protocol, tcp, udp};
use butterfly_vhost::{
    net::NetHeader,
    ring::{BATCH, HEAD_MAX},
};

use crate::engine::batch::Meta;

// The offload stage bounds the number of segments; a frame has less than 64 KiB.
const _: () = assert!(BATCH > 0 && HEAD_MAX >= 14 + 8 + 60 + 60);

/// One segment.
pub(crate) struct CutSegment<'a> {
    /// All headers. The checksum field holds the sum of the pseudo-header.
    pub head: &'a [u8],
    /// Start of its payload in the sender's frame.
    pub from: u32,
    /// Bytes of payload.
    pub len: u32,
}

/// Walks the segments of a frame whose `meta` the offload stage filled in. `head` is the sender's,
/// and has at least all headers.
pub(crate) struct Segments<'a> {
    head: &'a [u8],
    room: [u8; HEAD_MAX],
    l3: usize,
    l4: usize,
    payload: usize,
    size: u32,
    v6: bool,
    transport: Transport,
    /// True if the packet goes to another address than its header names. The sender's sum has that
    /// address, and the head may not.
    routed: bool,
    at: u32,
    end: u32,
    index: u16,
}

/// Protocol of segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    const fn checksum(self) -> usize {
        match self {
            Transport::Tcp => tcp::CHECKSUM_OFFSET,
            Transport::Udp => udp::CHECKSUM_OFFSET,
        }
    }

    const fn protocol(self) -> u8 {
        match self {
            Transport::Tcp => protocol::TCP,
            Transport::Udp => protocol::UDP,
        }
    }
}

/// Returns whether a frame that asks for segments is IPv6. The offload stage filled in `meta`.
pub(crate) fn is_v6(meta: &Meta, head: &[u8]) -> bool {
    match meta.net.gso_type & !NetHeader::GSO_ECN {
        NetHeader::GSO_TCPV6 => true,
        NetHeader::GSO_UDP_L4 => {
            head.get(usize::from(meta.l3)).is_some_and(|version| version >> 4 == 6)
        }
        _ => false,
    }
}

impl<'a> Segments<'a> {
    pub fn new(meta: &Meta, head: &'a [u8], frame_len: u32) -> Segments<'a> {
        let v6 = is_v6(meta, head);
        let transport = match meta.net.gso_type {
            NetHeader::GSO_UDP_L4 => Transport::Udp,
            _ => Transport::Tcp,
        };
        Segments {
            head,
            room: [0; HEAD_MAX],
            l3: usize::from(meta.l3),
            l4: usize::from(meta.net.csum_start),
            payload: usize::from(meta.payload),
            size: u32::from(meta.net.gso_size.max(1)),
            v6,
            transport,
            routed: v6 && is_routed(head.get(usize::from(meta.l3)..).unwrap_or_default()),
            at: u32::from(meta.payload),
            end: frame_len,
            index: 0,
        }
    }

    /// Returns the next segment; `None` after the last.
    pub fn next(&mut self) -> Option<CutSegment<'_>> {
        if self.at >= self.end {
            return None;
        }
        let (from, len) = (self.at, self.size.min(self.end - self.at));
        self.at += len;
        let first = self.index == 0;
        let last = self.at >= self.end;
        let head = self.room.get_mut(..self.payload)?;
        head.copy_from_slice(self.head.get(..self.payload)?);
        let field = self.l4 + self.transport.checksum();
        let given = get(head, field)?;
        rewrite(
            head,
            self.l3,
            self.l4,
            (self.v6, self.transport),
            len,
            from - self.payload as u32,
            self.index,
            first,
            last,
        )?;
        if self.routed {
            // The sum of a pseudo-header with the last destination, but for the length (RFC 8200,
            // 8.1).
            let (whole, own) = (self.end - self.l4 as u32, (head.len() - self.l4) as u32 + len);
            let sum =
                Sum::EMPTY.push_u16(given).push(&(!whole).to_be_bytes()).push(&own.to_be_bytes());
            put(head, field, sum.fold())?;
        }
        self.index = self.index.wrapping_add(1);
        Some(CutSegment { head, from, len })
    }
}

/// Returns whether an IPv6 packet has a routing header with addresses that it has not been to (RFC
/// 8200, 4.4).
fn is_routed(packet: &[u8]) -> bool {
    let Ok(ip) = Ipv6::parse(packet) else { return false };
    let mut walk = ip.extensions();
    while let Ok(Some(extension)) = walk.take_next() {
        if extension.kind == protocol::ROUTING
            && extension.bytes.get(3).is_some_and(|left| *left > 0)
        {
            return true;
        }
    }
    false
}

#[allow(clippy::too_many_arguments)] // one place, and a struct would only repeat the names
fn rewrite(
    head: &mut [u8],
    l3: usize,
    l4: usize,
    (v6, transport): (bool, Transport),
    len: u32,
    offset: u32,
    index: u16,
    first: bool,
    last: bool,
) -> Option<()> {
    let transport_len = (head.len() - l4) as u32 + len;
    let pseudo = if v6 {
        let ip = head.get_mut(l3..l4)?;
        let payload_len = (ip.len() - butterfly_packet::ipv6::LEN) as u32 + transport_len;
        put(ip, 4, payload_len as u16)?;
        Sum::of(ip.get(8..40)?)
            .push(&transport_len.to_be_bytes())
            .push_u16(transport.protocol().into())
    } else {
        let ip = head.get_mut(l3..l4)?;
        put(ip, 2, (ip.len() as u32 + transport_len) as u16)?;
        let id = get(ip, 4)?.wrapping_add(index);
        put(ip, 4, id)?;
        put(ip, ipv4::CHECKSUM_OFFSET, 0)?;
        let checksum = Sum::of(ip).checksum();
        put(ip, ipv4::CHECKSUM_OFFSET, checksum)?;
        Sum::of(ip.get(12..20)?)
            .push_u16(transport.protocol().into())
            .push_u16(transport_len as u16)
    };
    let segment = head.get_mut(l4..)?;
    if transport == Transport::Udp {
        put(segment, udp::LENGTH_OFFSET, transport_len as u16)?;
        return put(segment, udp::CHECKSUM_OFFSET, pseudo.fold());
    }
    let sequence = u32::from_be_bytes(*segment.get(4..8)?.first_chunk()?).wrapping_add(offset);
    segment.get_mut(4..8)?.copy_from_slice(&sequence.to_be_bytes());
    let flags = segment.get_mut(13)?;
    if !last {
        *flags &= !(tcp::FIN | tcp::PSH);
    }
    if !first {
        *flags &= !tcp::CWR; // RFC 3168, 6.1.2: once
    }
    put(segment, tcp::CHECKSUM_OFFSET, pseudo.fold())
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

fn get(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.first_chunk().map(|pair| u16::from_be_bytes(*pair))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::{build, ipv4::Ipv4, mac::Mac, tcp::Tcp};

    fn large(v6: bool) -> (Vec<u8>, Meta) {
        let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        let link = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let flags = tcp::ACK | tcp::PSH | tcp::FIN | tcp::CWR;
        let segment = build::Tcp { sequence: 0xffff_f000, ..build::Tcp::new(4000, 80, flags) };
        let l4: u16 = if v6 { 54 } else { 34 };
        let frame = if v6 {
            link.ipv6(
                "fd00::1".parse::<std::net::Ipv6Addr>().unwrap(),
                "fd00::2".parse::<std::net::Ipv6Addr>().unwrap(),
            )
            .tcp(&segment, &data)
        } else {
            link.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).identification(0xffff).tcp(&segment, &data)
        };
        let payload = (frame.len() - 5000) as u16;
        let net = NetHeader {
            flags: 1,
            gso_type: if v6 { NetHeader::GSO_TCPV6 } else { NetHeader::GSO_TCPV4 },
            gso_size: 1448,
            csum_start: l4,
            csum_offset: 16,
            ..NetHeader::default()
        };
        (frame, Meta { net, l3: 14, payload, ..Meta::NEW })
    }

    /// RFC 8200, 8.1: the pseudo-header has the last address of the route, whatever kind of route
    /// it is.
    #[test]
    fn a_route_leads_to_another_address() {
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap();
        let (source, next, last) = (address("fd00::1"), address("fd00::2"), address("fd00::99"));
        for left in [1, 0] {
            let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
            let link = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
            let route = [&[4, left, 0, 0, 0, 0][..], &last.octets()].concat();
            let mut frame = link
                .ipv6(source, next)
                .extension(43, &route)
                .tcp(&build::Tcp::new(4000, 80, tcp::ACK), &data);
            let (l4, payload) = (54 + 24, 54 + 24 + 20);
            let end = if left > 0 { last } else { next };
            let sum = Sum::pseudo_v6(source, end, 6, (frame.len() - l4) as u32).fold();
            frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
            let net = NetHeader {
                flags: 1,
                gso_type: NetHeader::GSO_TCPV6,
                gso_size: 1000,
                csum_start: l4 as u16,
                csum_offset: 16,
                ..NetHeader::default()
            };
            let meta = Meta { net, l3: 14, payload: payload as u16, ..Meta::NEW };
            let mut segments = Segments::new(&meta, &frame[..HEAD_MAX], frame.len() as u32);
            let mut count = 0;
            while let Some(segment) = segments.next() {
                let mut whole = segment.head.to_vec();
                whole.extend(&frame[segment.from as usize..(segment.from + segment.len) as usize]);
                let sum = Sum::of(&whole[l4..]).checksum();
                whole[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
                assert!(
                    Sum::pseudo_v6(source, end, 6, (whole.len() - l4) as u32)
                        .push(&whole[l4..])
                        .is_valid()
                );
                count += 1;
            }
            assert_eq!(count, 5);
        }
    }

    #[test]
    fn segments_are_whole_packets_of_the_same_stream() {
        for v6 in [false, true] {
            let (frame, meta) = large(v6);
            let mut segments = Segments::new(&meta, &frame[..HEAD_MAX], frame.len() as u32);
            let mut stream = Vec::<u8>::new();
            let mut flags = Vec::new();
            while let Some(segment) = segments.next() {
                let mut whole = segment.head.to_vec();
                whole.extend(&frame[segment.from as usize..(segment.from + segment.len) as usize]);
                let l4 = usize::from(meta.net.csum_start);
                let sum = Sum::of(&whole[l4..]).checksum();
                whole[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
                let pseudo = if v6 {
                    let ip = Ipv6::parse(&whole[14..]).unwrap();
                    assert_eq!(ip.payload().unwrap().len(), whole.len() - 54);
                    Sum::pseudo_v6(ip.source(), ip.destination(), 6, (whole.len() - l4) as u32)
                } else {
                    let ip = Ipv4::parse(&whole[14..]).unwrap();
                    assert!(ip.checksum_is_valid());
                    assert_eq!(ip.total_len(), whole.len() - 14);
                    assert_eq!(ip.identification(), 0xffffu16.wrapping_add(flags.len() as u16));
                    Sum::pseudo_v4(ip.source(), ip.destination(), 6, (whole.len() - l4) as u16)
                };
                assert!(pseudo.push(&whole[l4..]).is_valid());
                let tcp = Tcp::parse(&whole[l4..]).unwrap();
                assert_eq!(tcp.sequence(), 0xffff_f000u32.wrapping_add(stream.len() as u32));
                flags.push(tcp.flags());
                stream.extend(&whole[usize::from(meta.payload)..]);
            }
            assert_eq!(stream, frame[usize::from(meta.payload)..]);
            let (a, f, p, c) = (tcp::ACK, tcp::FIN, tcp::PSH, tcp::CWR);
            assert_eq!(flags, [a | c, a, a, a | f | p]);
        }
    }
}
