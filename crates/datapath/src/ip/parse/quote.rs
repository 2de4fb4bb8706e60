//! The start of a packet that an ICMP error quotes, as far as it names a session (RFC 792).

use butterfly_packet::{Error, be16, be32, icmp::Icmp, ipv4::Ipv4, ipv6::Ipv6, protocol};

use crate::ip::{
    Quoted, Tuple, is_v4, mapped,
    parse::{chain::Chain, echo::echo_ports},
};

/// Reason for not knowing the session that an error is about.
pub(super) enum Unread {
    /// The quote goes on beyond the bytes at hand.
    Beyond,
    /// The quote is too short, or of a packet that has no session.
    Useless,
}

/// The start of a packet, as an ICMP error quotes it.
pub(super) struct Quote<'a> {
    pub(super) bytes: &'a [u8],
    /// True if all of the quote is at hand.
    pub(super) whole: bool,
}

/// Bytes of a transport header in a quote (RFC 792).
const QUOTED: usize = 8;

impl Quote<'_> {
    const fn short(&self) -> Unread {
        if self.whole { Unread::Useless } else { Unread::Beyond }
    }

    fn unread(&self, error: Error) -> Unread {
        match error {
            Error::Truncated => self.short(),
            Error::Malformed => Unread::Useless,
        }
    }

    pub(super) fn read_v4(&self, vlan: u16) -> Result<Quoted, Unread> {
        let ip = Ipv4::parse(self.bytes).map_err(|error| self.unread(error))?;
        if ip.fragment_offset() != 0 {
            return Err(Unread::Useless);
        }
        let (source, destination) = (mapped(ip.source()), mapped(ip.destination()));
        let tuple = Tuple {
            source,
            destination,
            source_port: 0,
            destination_port: 0,
            vlan,
            protocol: ip.protocol(),
        };
        self.upper(ip.header_len(), tuple, false)
    }

    pub(super) fn read_v6(&self, vlan: u16) -> Result<Quoted, Unread> {
        let ip = Ipv6::parse(self.bytes).map_err(|error| self.unread(error))?;
        let (source, destination) = (ip.source().to_bits(), ip.destination().to_bits());
        let mut walk = ip.extensions();
        let chain = Chain::walk(&mut walk).map_err(|(error, _)| self.unread(error))?;
        if is_v4(source)
            || is_v4(destination)
            || chain.fragment.is_some_and(|(fragment, _)| fragment.offset() != 0)
        {
            return Err(Unread::Useless);
        }
        let tuple = Tuple {
            source,
            destination,
            source_port: 0,
            destination_port: 0,
            vlan,
            protocol: walk.next_header(),
        };
        self.upper(chain.end, tuple, true)
    }

    fn upper(&self, at: usize, tuple: Tuple, v6: bool) -> Result<Quoted, Unread> {
        let header = self.bytes.get(at..at + QUOTED);
        let ((source_port, destination_port), sequence) = match (tuple.protocol, v6) {
            (protocol::TCP | protocol::UDP | protocol::SCTP, _) => {
                let header = header.ok_or(self.short())?;
                let port = |at| be16(header, at).ok_or(Unread::Useless);
                ((port(0)?, port(2)?), be32(header, 4).filter(|_| tuple.protocol == protocol::TCP))
            }
            (protocol::ICMP, false) | (protocol::ICMPV6, true) => {
                let message =
                    Icmp::parse(header.ok_or(self.short())?).map_err(|_| Unread::Useless)?;
                (echo_ports(&message, v6).ok_or(Unread::Useless)?.0, None)
            }
            _ => ((0, 0), None),
        };
        Ok(Quoted { tuple: Tuple { source_port, destination_port, ..tuple }, sequence })
    }
}
