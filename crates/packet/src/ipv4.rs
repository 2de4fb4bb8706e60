//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use crate::{Error, checksum::Sum, cut, head};

/// Bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_LEN: usize = 60;
/// Offset of the identification, in bytes from the first byte of the header.
pub const IDENTIFICATION_OFFSET: usize = 4;
/// Offset of the header checksum, in bytes from the first byte of the header.
pub const CHECKSUM_OFFSET: usize = 10;

/// An IPv4 header and the bytes that it says belong to it.
///
/// ```
/// use butterfly_packet::{Mac, build, ethernet::Ethernet, ipv4::Ipv4, protocol};
/// let frame = build::ethernet(Mac::ZERO, Mac::ZERO)
///     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
///     .ping(7, 1, b"hi");
/// let ip = Ipv4::parse(Ethernet::parse(&frame)?.payload())?;
/// assert_eq!((ip.protocol(), ip.ttl(), ip.total_len()), (protocol::ICMP, 64, 20 + 8 + 2));
/// assert!(ip.checksum_is_valid() && !ip.is_fragment());
/// # Ok::<(), butterfly_packet::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    fixed: &'a [u8; MIN_LEN],
    bytes: &'a [u8],
    header_len: usize,
}

impl<'a> Ipv4<'a> {
    /// Reads a header; `bytes` may be longer than the packet (padding) or shorter (only headers
    /// were gathered).
    ///
    /// [`Error::Malformed`]: version other than 4, header length below 20, total length below the
    /// header's. [`Error::Truncated`]: the header is incomplete. The total length is not compared
    /// with the bytes: see [`Self::payload`] and [`Self::total_len`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (fixed, _) = head::<MIN_LEN>(bytes)?;
        let header_len = usize::from(fixed[0] & 0xf) * 4;
        let packet = Ipv4 { fixed, bytes, header_len };
        if fixed[0] >> 4 != 4 || header_len < MIN_LEN || packet.total_len() < header_len {
            return Err(Error::Malformed);
        }
        if bytes.len() < header_len { Err(Error::Truncated) } else { Ok(packet) }
    }

    /// Returns the bytes of the header with options, 20 to 60.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// Returns the header with options.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        self.bytes.get(..self.header_len).unwrap_or_default()
    }

    /// Returns the options, padding included.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        self.bytes.get(MIN_LEN..self.header_len).unwrap_or_default()
    }

    /// Returns the bytes of header and payload, as the sender says; at least [`Self::header_len`].
    #[inline]
    pub const fn total_len(&self) -> usize {
        u16::from_be_bytes([self.fixed[2], self.fixed[3]]) as usize
    }

    /// Returns the payload as far as the total length says. [`Error::Truncated`] if the bytes end
    /// before.
    #[inline]
    pub fn payload(&self) -> Result<&'a [u8], Error> {
        cut(self.bytes, self.header_len, self.total_len()).map(|(_, payload)| payload)
    }

    /// Returns the type of service: DSCP and ECN.
    #[inline]
    pub const fn tos(&self) -> u8 {
        self.fixed[1]
    }

    /// Returns the identification of a datagram's fragments, in host order.
    #[inline]
    pub const fn identification(&self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    #[inline]
    const fn flags_and_offset(&self) -> u16 {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]])
    }

    /// True if routers must not fragment it.
    #[inline]
    pub const fn dont_fragment(&self) -> bool {
        self.flags_and_offset() & 0x4000 != 0
    }

    /// True if more fragments follow.
    #[inline]
    pub const fn more_fragments(&self) -> bool {
        self.flags_and_offset() & 0x2000 != 0
    }

    /// Returns the position of this fragment in the datagram, in bytes.
    #[inline]
    pub const fn fragment_offset(&self) -> usize {
        (self.flags_and_offset() & 0x1fff) as usize * 8
    }

    /// True if it is one of several fragments.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.flags_and_offset() & 0x3fff != 0
    }

    /// Returns the time to live, in hops.
    #[inline]
    pub const fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Returns the protocol of the payload ([`crate::protocol`]).
    #[inline]
    pub const fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// Returns the header checksum as it stands, in host order.
    #[inline]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.fixed[10], self.fixed[11]])
    }

    /// True if the header checksum is right.
    #[inline]
    pub fn checksum_is_valid(&self) -> bool {
        Sum::of(self.header()).is_valid()
    }

    /// Returns the source address.
    #[inline]
    pub const fn source(&self) -> Ipv4Addr {
        let h = self.fixed;
        Ipv4Addr::new(h[12], h[13], h[14], h[15])
    }

    /// Returns the destination address.
    #[inline]
    pub const fn destination(&self) -> Ipv4Addr {
        let h = self.fixed;
        Ipv4Addr::new(h[16], h[17], h[18], h[19])
    }
}
/// Returns whether an address can be one host's on a network: it is of no group and no broadcast,
/// and names neither this host nor nobody (RFC 1122, 3.2.1.3; RFC 1812, 5.3.7).
pub const fn is_host(address: Ipv4Addr) -> bool {
    !matches!(address.octets(), [0 | 127 | 224.., ..])
}
