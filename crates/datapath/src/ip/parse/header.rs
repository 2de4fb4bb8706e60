//! IP headers (RFC 791, RFC 8200), and the place of a fragment.

use butterfly_packet::{
    Error,
    ipv4::{self, Ipv4},
    ipv6::{self, Ipv6},
};

use crate::ip::{
    Packet, Piece, Tuple,
    discovery::Envelope,
    is_v4, mapped,
    parse::{
        chain::Chain,
        sight::{Fault, Sight},
        upper::Upper,
    },
    reasons::{MALFORMED_IP, TINY_FRAGMENT, TRUNCATED},
};

pub(super) fn parse_v4(sight: Sight<'_>, room: usize, vlan: u16) -> Result<Packet, Fault> {
    let Some(first) = sight.packet.first().filter(|_| sight.packet.len() >= ipv4::MIN_LEN) else {
        return Err(sight.missing_of(ipv4::MIN_LEN, room));
    };
    let ip = match Ipv4::parse(sight.packet) {
        Ok(ip) => ip,
        Err(Error::Malformed) => return Err(Fault::Drop(MALFORMED_IP)),
        Err(Error::Truncated) => return Err(sight.missing_of(usize::from(first & 0xf) * 4, room)),
    };
    let (at, end) = (ip.header_len(), ip.total_len());
    if end > room {
        return Err(Fault::Drop(TRUNCATED));
    }
    let fragment = if ip.is_fragment() {
        let offset = ip.fragment_offset();
        // All of it, put together, must still be an IP packet.
        if at + offset + (end - at) > usize::from(u16::MAX) {
            return Err(Fault::Drop(MALFORMED_IP));
        }
        Some(piece(ip.identification().into(), offset, end - at, ip.more_fragments())?)
    } else {
        None
    };
    let tuple = Tuple {
        source: mapped(ip.source()),
        destination: mapped(ip.destination()),
        source_port: 0,
        destination_port: 0,
        vlan,
        protocol: ip.protocol(),
    };
    let envelope = Envelope {
        source: tuple.source,
        destination: tuple.destination,
        hop_limit: ip.ttl(),
        fragmented: fragment.is_some(),
    };
    Upper { sight, at, end, v6: false, fragment, envelope }.read(tuple)
}

pub(super) fn parse_v6(sight: Sight<'_>, room: usize, vlan: u16) -> Result<Packet, Fault> {
    let Ok(ip) = Ipv6::parse(sight.packet) else { return Err(sight.missing_of(ipv6::LEN, room)) };
    let end = ipv6::LEN + ip.payload_len();
    let (source, destination) = (ip.source().to_bits(), ip.destination().to_bits());
    // Jumbograms (RFC 2675) have no length here; no link of ours carries them.
    if ip.payload_len() == 0 || is_v4(source) || is_v4(destination) {
        return Err(Fault::Drop(MALFORMED_IP));
    }
    if end > room {
        return Err(Fault::Drop(TRUNCATED));
    }
    let mut walk = ip.extensions();
    let chain = match Chain::walk(&mut walk) {
        Ok(chain) => chain,
        Err((Error::Malformed, _)) => return Err(Fault::Drop(MALFORMED_IP)),
        Err((Error::Truncated, _)) if sight.packet.len() < end => return Err(sight.missing()),
        Err((Error::Truncated, true)) => return Err(Fault::Drop(TINY_FRAGMENT)), // RFC 7112
        Err((Error::Truncated, false)) => return Err(Fault::Drop(MALFORMED_IP)),
    };
    let fragment = match chain.fragment {
        Some((fragment, start)) if !fragment.is_atomic() => {
            Some(piece(fragment.identification, fragment.offset(), end - start, fragment.more())?)
        }
        _ => None,
    };
    let tuple = Tuple {
        source,
        destination,
        source_port: 0,
        destination_port: 0,
        vlan,
        protocol: walk.next_header(),
    };
    let envelope = Envelope {
        source,
        destination,
        hop_limit: ip.hop_limit(),
        fragmented: chain.fragment.is_some(),
    };
    Upper { sight, at: chain.end, end, v6: true, fragment, envelope }.read(tuple)
}

/// Returns the place of a fragment of `len` bytes.
fn piece(id: u32, offset: usize, len: usize, more: bool) -> Result<Piece, Fault> {
    let end = offset + len;
    match () {
        () if offset == 0 && len == 0 => Err(Fault::Drop(TINY_FRAGMENT)),
        () if len == 0 || more && !len.is_multiple_of(8) || end > usize::from(u16::MAX) => {
            Err(Fault::Drop(MALFORMED_IP))
        }
        () => Ok(Piece { id, offset: offset as u32, end: end as u32, more }),
    }
}
