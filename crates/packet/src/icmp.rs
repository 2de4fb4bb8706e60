//! ICMP for IPv4 (RFC 792) and for IPv6 (RFC 4443), neighbour discovery (RFC 4861).

use std::net::Ipv6Addr;

use crate::{Error, Mac, head};

/// Bytes of type, code, checksum and the four that depend on the type.
pub const LEN: usize = 8;
/// Offset of the checksum, in bytes from the first byte of the header.
pub const CHECKSUM_OFFSET: usize = 2;

/// ICMPv4 types.
pub mod v4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: too large, and must not be fragmented (RFC 1191, 4).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Router advertisement (RFC 1256).
    pub const ROUTER_ADVERTISEMENT: u8 = 9;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// True if a message of this type quotes the packet that caused it.
    #[inline]
    pub const fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | 4 | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }
}

/// ICMPv6 types.
pub mod v6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Multicast listener query (RFC 2710, RFC 3810).
    pub const LISTENER_QUERY: u8 = 130;
    /// Multicast listener report, version 1.
    pub const LISTENER_REPORT: u8 = 131;
    /// Multicast listener done, version 1.
    pub const LISTENER_DONE: u8 = 132;
    /// Router solicitation.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
    /// Multicast listener report, version 2 (RFC 3810).
    pub const LISTENER_REPORT_V2: u8 = 143;

    /// True if a message of this type quotes the packet that caused it.
    #[inline]
    pub const fn is_error(kind: u8) -> bool {
        kind < 128
    }
}

/// Neighbour discovery option: the sender's link-layer address.
pub const OPTION_SOURCE_LINK_ADDRESS: u8 = 1;
/// Neighbour discovery option: the target's link-layer address.
pub const OPTION_TARGET_LINK_ADDRESS: u8 = 2;

/// An ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    header: &'a [u8; LEN],
    body: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Reads a message. Fails only on fewer than [`LEN`] bytes, with [`Error::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, body) = head(bytes)?;
        Ok(Icmp { header, body })
    }

    /// Returns the type ([`v4`], [`v6`]).
    #[inline]
    pub const fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Returns the code, whose meaning depends on the type.
    #[inline]
    pub const fn code(&self) -> u8 {
        self.header[1]
    }

    /// Returns the checksum as it stands, in host order.
    #[inline]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the four bytes behind the checksum, in host order: MTU, pointer, flags.
    #[inline]
    pub const fn rest_of_header(&self) -> u32 {
        u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// Returns the identifier of an echo, in host order.
    #[inline]
    pub const fn echo_id(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Returns the sequence number of an echo, in host order.
    #[inline]
    pub const fn echo_sequence(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Returns everything behind the first eight bytes: echo data, or the quoted packet.
    #[inline]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns the target address of a neighbour solicitation, advertisement or redirect. Fails
    /// with [`Error::Truncated`] if it is incomplete.
    #[inline]
    pub fn target(&self) -> Result<Ipv6Addr, Error> {
        head::<16>(self.body).map(|(target, _)| Ipv6Addr::from(*target))
    }

    /// Returns the neighbour discovery options, which start `skip` bytes behind the first eight: 0
    /// in a router solicitation, 16 in neighbour messages, 8 in a router advertisement, 32 in a
    /// redirect.
    #[inline]
    pub fn options(&self, skip: usize) -> NdOptions<'a> {
        NdOptions(self.body.get(skip..).unwrap_or_default())
    }
}

/// Walks neighbour discovery options: type, and the bytes behind type and length.
#[derive(Clone, Copy, Debug)]
pub struct NdOptions<'a>(&'a [u8]);

impl<'a> NdOptions<'a> {
    /// Walks these bytes, which start with an option.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        NdOptions(bytes)
    }

    /// Returns the next option, `None` at the end. [`Error::Malformed`] for length 0 (RFC 4861,
    /// 4.6); [`Error::Truncated`] if it is incomplete.
    #[inline]
    pub fn take_next(&mut self) -> Result<Option<(u8, &'a [u8])>, Error> {
        let (kind, len) = match *self.0 {
            [] => return Ok(None),
            [_, 0, ..] => return Err(Error::Malformed),
            [kind, len, ..] => (kind, usize::from(len) * 8),
            _ => return Err(Error::Truncated),
        };
        let (option, rest) = self.0.split_at_checked(len).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(Some((kind, option.get(2..).unwrap_or_default())))
    }
}

/// Returns the Ethernet address in a link-layer address option, `None` if it is too short.
#[inline]
pub fn link_address(option: &[u8]) -> Option<Mac> {
    option.first_chunk().map(|mac| Mac(*mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_solicitation() {
        let mut bytes = vec![135, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(Ipv6Addr::LOCALHOST.octets());
        bytes.extend([1, 1, 2, 0, 0, 0, 0, 1]);
        let message = Icmp::parse(&bytes).unwrap();
        assert_eq!(message.target(), Ok(Ipv6Addr::LOCALHOST));
        let mut options = message.options(16);
        let (kind, value) = options.take_next().unwrap().unwrap();
        assert_eq!(
            (kind, link_address(value)),
            (OPTION_SOURCE_LINK_ADDRESS, Some(Mac([2, 0, 0, 0, 0, 1])))
        );
        assert_eq!(options.take_next(), Ok(None));
        assert_eq!(NdOptions(&[1, 0, 0, 0, 0, 0, 0, 0]).take_next(), Err(Error::Malformed));
        assert_eq!(NdOptions(&[1, 2, 0, 0, 0, 0, 0, 0]).take_next(), Err(Error::Truncated));
        assert_eq!(NdOptions(&[1]).take_next(), Err(Error::Truncated));
    }
}
