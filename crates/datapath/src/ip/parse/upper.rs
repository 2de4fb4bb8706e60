//! The upper layer: ports, and what a filter needs of TCP, UDP and SCTP.

use butterfly_packet::{
    ipv4, ipv6, protocol,
    sctp::{self, Sctp},
    tcp::{self, Tcp},
    udp::{self, Udp},
};

use crate::ip::{
    Dhcp, L4, Packet, Piece, Segment, Tuple, dhcp,
    discovery::Envelope,
    parse::{
        echo::PortPair,
        sight::{Fault, Sight},
    },
    reasons::{MALFORMED_IP, TINY_FRAGMENT},
};

/// A packet from its transport header on.
pub(super) struct Upper<'a> {
    pub(super) sight: Sight<'a>,
    /// Start of the transport header and end of the packet, from the first byte of the IP header.
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) v6: bool,
    pub(super) fragment: Option<Piece>,
    pub(super) envelope: Envelope,
}

impl<'a> Upper<'a> {
    /// Returns the number of bytes of header and payload.
    pub(super) const fn len(&self) -> usize {
        self.end.saturating_sub(self.at)
    }

    /// Returns the first `len` bytes.
    #[inline]
    pub(super) fn need(&self, len: usize) -> Result<&'a [u8], Fault> {
        if len > self.len() {
            return Err(Fault::Drop(if self.fragment.is_some() {
                TINY_FRAGMENT
            } else {
                MALFORMED_IP
            }));
        }
        self.sight.packet.get(self.at..self.at + len).ok_or(self.sight.missing())
    }

    /// Returns all bytes at hand, which may be fewer than there are.
    pub(super) fn seen(&self) -> &'a [u8] {
        self.sight.packet.get(self.at..self.end.min(self.sight.packet.len())).unwrap_or_default()
    }

    pub(super) fn read(self, tuple: Tuple) -> Result<Packet, Fault> {
        if self.fragment.is_some_and(|piece| piece.offset != 0) {
            return Ok(Packet { tuple, l4: L4::Fragment, fragment: self.fragment });
        }
        let (ports, l4) = match (tuple.protocol, self.v6) {
            (protocol::TCP, _) => self.tcp()?,
            (protocol::UDP, _) => self.udp()?,
            (protocol::SCTP, _) => self.sctp()?,
            (protocol::ICMP, false) => self.icmp(&tuple)?,
            (protocol::ICMPV6, true) => self.icmpv6(&tuple)?,
            _ => ((0, 0), L4::Other),
        };
        let (source_port, destination_port) = ports;
        Ok(Packet {
            tuple: Tuple { source_port, destination_port, ..tuple },
            l4,
            fragment: self.fragment,
        })
    }

    fn tcp(&self) -> Result<(PortPair, L4), Fault> {
        let fixed = self.need(tcp::MIN_LEN)?;
        let header_len = fixed.get(12).map_or(0, |byte| usize::from(byte >> 4) * 4);
        if header_len < tcp::MIN_LEN {
            return Err(Fault::Drop(MALFORMED_IP));
        }
        let header = Tcp::parse(self.need(header_len)?).map_err(|_| Fault::Drop(MALFORMED_IP))?;
        let payload = self.len() - header_len;
        Ok((
            (header.source_port(), header.destination_port()),
            L4::Tcp(Segment::new(&header, payload as u32)),
        ))
    }

    fn udp(&self) -> Result<(PortPair, L4), Fault> {
        let header = Udp::parse(self.need(udp::LEN)?).map_err(|_| Fault::Drop(MALFORMED_IP))?;
        let len = usize::from(header.length());
        // Of a first fragment the rest is still to come.
        if len < udp::LEN || self.fragment.is_none() && len > self.len() {
            return Err(Fault::Drop(MALFORMED_IP));
        }
        let ports = (header.source_port(), header.destination_port());
        let l4 = match Dhcp::between(ports.0, ports.1, self.v6) {
            Some(request) if self.fragment.is_none() => {
                // Nothing between the headers, and nothing behind the message.
                let plain =
                    self.at == if self.v6 { ipv6::LEN } else { ipv4::MIN_LEN } && len == self.len();
                let place = ((self.at + udp::LEN) as u16, self.end as u16);
                let at = (plain && self.end <= dhcp::MAX_PACKET.into()).then_some(place);
                L4::Dhcp(Dhcp { request, v6: self.v6, at, message: None })
            }
            _ => L4::Udp,
        };
        Ok((ports, l4))
    }

    fn sctp(&self) -> Result<(PortPair, L4), Fault> {
        const CHUNK: usize = 4;
        let whole = self.len() >= sctp::LEN + CHUNK;
        let bytes = self.need(if whole { sctp::LEN + CHUNK } else { sctp::LEN })?;
        let header = Sctp::parse(bytes).map_err(|_| Fault::Drop(MALFORMED_IP))?;
        let is = |kind| header.first_chunk_type() == Some(kind);
        let l4 = L4::Sctp {
            init: is(sctp::INIT),
            abort: is(sctp::ABORT),
            shutdown_complete: is(sctp::SHUTDOWN_COMPLETE),
        };
        Ok(((header.source_port(), header.destination_port()), l4))
    }
}
