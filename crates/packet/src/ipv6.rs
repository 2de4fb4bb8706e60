//! IPv6 and its extension headers (RFC 8200).

use std::net::Ipv6Addr;

use crate::{Error, cut, head, protocol};

/// Bytes of the fixed header.
pub const LEN: usize = 40;
/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;
/// Every station on the link (RFC 4291, 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Every router on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Returns the group in which the owner of an address listens for neighbour solicitations:
/// ff02::1:ff00:0 and its low 24 bits (RFC 4291, 2.7.1).
#[inline]
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02 << 112 | 0x01_ff00_0000 | address.to_bits() & 0xff_ffff)
}

/// An IPv6 header and what follows it.
///
/// ```
/// use butterfly_packet::{Mac, build, ethernet::Ethernet, ipv6::Ipv6, protocol};
/// let frame = build::ethernet(Mac::ZERO, Mac::ZERO)
///     .ipv6([0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2])
///     .extension(protocol::DESTINATION_OPTIONS, &[])
///     .udp(4000, 53, b"?");
/// let ip = Ipv6::parse(Ethernet::parse(&frame)?.payload())?;
/// let upper = ip.upper_layer()?;
/// assert_eq!((upper.protocol, upper.offset), (protocol::UDP, 40 + 8));
/// # Ok::<(), butterfly_packet::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    fixed: &'a [u8; LEN],
    bytes: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Reads a header; `bytes` may be longer than the packet (padding) or shorter (only headers
    /// were gathered). [`Error::Malformed`]: version other than 6. [`Error::Truncated`]: fewer than
    /// [`LEN`] bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (fixed, _) = head::<LEN>(bytes)?;
        if fixed[0] >> 4 == 6 { Ok(Ipv6 { fixed, bytes }) } else { Err(Error::Malformed) }
    }

    /// Returns the traffic class: DSCP and ECN.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// Returns the flow label, 20 bits, in host order.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        u32::from_be_bytes([0, self.fixed[1] & 0xf, self.fixed[2], self.fixed[3]])
    }

    /// Returns the bytes behind the fixed header, extension headers included, as the sender says.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]]) as usize
    }

    /// Returns the bytes behind the fixed header, as many as the payload length says. Fails with
    /// [`Error::Truncated`] if the bytes end before.
    #[inline]
    pub fn payload(&self) -> Result<&'a [u8], Error> {
        cut(self.bytes, LEN, LEN + self.payload_len()).map(|(_, payload)| payload)
    }

    /// Returns the type of the header that follows ([`protocol`]).
    #[inline]
    pub const fn next_header(&self) -> u8 {
        self.fixed[6]
    }

    /// Returns the hop limit.
    #[inline]
    pub const fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        address(self.fixed.first_chunk::<24>().and_then(|head| head.last_chunk()))
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        address(self.fixed.last_chunk())
    }

    /// Returns the extension headers, in order.
    #[inline]
    pub fn extensions(&self) -> Extensions<'a> {
        let end = self.bytes.len().min(LEN + self.payload_len());
        let rest = self.bytes.get(LEN..end).unwrap_or_default();
        Extensions { next: self.next_header(), rest, offset: LEN, first: true }
    }

    /// Walks all extension headers to the upper layer. Fails as [`Extensions::take_next`] does.
    #[inline]
    pub fn upper_layer(&self) -> Result<UpperLayer, Error> {
        let mut walk = self.extensions();
        let mut fragment = None;
        while let Some(extension) = walk.take_next()? {
            if extension.kind == protocol::FRAGMENT {
                let found = Fragment::parse(extension.bytes)?;
                fragment = Some(found);
                if found.offset() != 0 {
                    break; // what follows is the middle of something
                }
            }
        }
        Ok(UpperLayer { protocol: walk.next, offset: walk.offset, fragment })
    }
}

#[inline]
fn address(bytes: Option<&[u8; 16]>) -> Ipv6Addr {
    // None cannot be: both chunks are inside 40 bytes.
    bytes.map_or(Ipv6Addr::UNSPECIFIED, |bytes| Ipv6Addr::from(*bytes))
}

/// End of the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpperLayer {
    /// Protocol of the payload. For a fragment that is not the first, the protocol in the fragment
    /// header.
    pub protocol: u8,
    /// Offset of its first byte from the first byte of the IPv6 header, in bytes.
    pub offset: usize,
    /// Last fragment header met.
    pub fragment: Option<Fragment>,
}

/// A fragment header (RFC 8200, 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    offset_and_more: u16,
    /// Identification of the packet's fragments, in host order.
    pub identification: u32,
}

impl Fragment {
    /// Reads the 8 bytes of a fragment header. [`Error::Truncated`] if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Fragment, Error> {
        let (&[_, _, a, b, c, d, e, f], _) = head::<FRAGMENT_LEN>(bytes)?;
        Ok(Fragment {
            offset_and_more: u16::from_be_bytes([a, b]),
            identification: u32::from_be_bytes([c, d, e, f]),
        })
    }

    /// Returns the position in the packet, in bytes.
    #[inline]
    pub const fn offset(self) -> usize {
        (self.offset_and_more & 0xfff8) as usize
    }

    /// True if more fragments follow.
    #[inline]
    pub const fn more(self) -> bool {
        self.offset_and_more & 1 != 0
    }

    /// True if it is the only fragment (RFC 6946): not really one.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.offset() == 0 && !self.more()
    }
}

/// One extension header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension<'a> {
    /// Kind of the header ([`protocol`]).
    pub kind: u8,
    /// Offset of its first byte from the first byte of the IPv6 header, in bytes.
    pub offset: usize,
    /// The whole header.
    pub bytes: &'a [u8],
}

/// Walks extension headers.
///
/// Each has at least 8 bytes, so the walk is bounded by the packet. The mobility header, HIP and
/// Shim6 end it: the data sent with them is their own (RFC 6275, 6.1.1; RFC 7401, 5.1; RFC 5533,
/// 5.1). No host looks behind them for another protocol.
#[derive(Clone, Copy, Debug)]
pub struct Extensions<'a> {
    next: u8,
    rest: &'a [u8],
    offset: usize,
    first: bool,
}

impl<'a> Extensions<'a> {
    /// Returns the next extension header, or `None` at the upper layer.
    ///
    /// [`Error::Truncated`]: the header is incomplete. [`Error::Malformed`]: hop-by-hop options
    /// anywhere but first (RFC 8200, 4.1).
    #[inline]
    pub fn take_next(&mut self) -> Result<Option<Extension<'a>>, Error> {
        let kind = self.next;
        let (unit, base) = match kind {
            protocol::HOP_BY_HOP if !self.first => return Err(Error::Malformed),
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => (8, 8),
            protocol::FRAGMENT => (0, FRAGMENT_LEN),
            protocol::AUTHENTICATION => (4, 8), // RFC 4302, 2.2: in 4-byte units, minus 2
            _ => return Ok(None),
        };
        let [next, len, ..] = *self.rest else { return Err(Error::Truncated) };
        let (bytes, rest) =
            self.rest.split_at_checked(base + unit * usize::from(len)).ok_or(Error::Truncated)?;
        let extension = Extension { kind, offset: self.offset, bytes };
        self.offset += bytes.len();
        (self.next, self.rest, self.first) = (next, rest, false);
        Ok(Some(extension))
    }

    /// Returns the type in force: of the next extension header, or of the upper layer when all were
    /// taken.
    #[inline]
    pub const fn next_header(&self) -> u8 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
        bytes.extend([0; 32]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn extensions_lead_to_the_upper_layer() {
        let mut chain = vec![protocol::AUTHENTICATION, 0, 1, 4, 0, 0, 0, 0]; // hop-by-hop
        chain.extend([protocol::FRAGMENT, 4]); // authentication header of (4 + 2) * 4 bytes
        chain.extend([0; 22]);
        chain.extend([protocol::TCP, 99, 0x00, 0x01, 0, 0, 0, 7]); // fragment, second byte reserved
        chain.extend([1, 2, 3]);
        let bytes = packet(protocol::HOP_BY_HOP, &chain);
        let upper = Ipv6::parse(&bytes).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.offset), (protocol::TCP, 40 + 8 + 24 + 8));
        let fragment = upper.fragment.unwrap();
        assert_eq!((fragment.offset(), fragment.more(), fragment.identification), (0, true, 7));
    }

    #[test]
    fn a_later_fragment_is_not_walked_into() {
        let chain = [protocol::DESTINATION_OPTIONS, 0, 0x05, 0xa8, 0, 0, 0, 7, 0xff, 0xff];
        let upper =
            Ipv6::parse(&packet(protocol::FRAGMENT, &chain)).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.offset), (protocol::DESTINATION_OPTIONS, 48));
        assert_eq!(upper.fragment.unwrap().offset(), 1448);
    }

    #[test]
    fn hop_by_hop_is_first_or_wrong() {
        let chain = [protocol::HOP_BY_HOP, 0, 0, 0, 0, 0, 0, 0, protocol::TCP, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(
            Ipv6::parse(&packet(protocol::DESTINATION_OPTIONS, &chain)).unwrap().upper_layer(),
            Err(Error::Malformed)
        );
    }

    #[test]
    fn an_extension_beyond_the_packet_is_truncated() {
        let chain = [protocol::TCP, 1, 0, 0, 0, 0, 0, 0];
        let mut bytes = packet(protocol::ROUTING, &chain);
        bytes.extend([0; 100]); // padding is not part of the packet
        assert_eq!(Ipv6::parse(&bytes).unwrap().upper_layer(), Err(Error::Truncated));
    }

    #[test]
    fn the_example_of_rfc_4291() {
        let group = solicited_node("4037::01:800:200e:8c6c".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff0e:8c6c");
    }
}
