//! Wire formats: views and builders over byte slices, and the internet checksum.
//!
//! A view is a borrowed header whose length was checked when it was made, so its accessors can
//! neither fail nor panic. It says what the bytes mean, never whether they are allowed. Views do
//! not allocate. All byte order is in the accessors: they return values in host order. [`build`]
//! makes complete frames with right lengths and checksums, for tests and generators.
#![forbid(unsafe_code)]

pub mod advert;
pub mod arp;
pub mod build;
pub mod checksum;
pub mod dhcp;
pub mod dhcp6;
pub mod echo;
pub mod ethernet;
pub mod fragments;
pub mod icmp;
pub mod icmp_error;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod mac;
pub mod mld;
pub mod neighbour;
pub mod sctp;
pub mod summary;
pub mod tcp;
pub mod translate;
pub mod udp;
pub mod vxlan;

pub use mac::Mac;

/// Reason why bytes are not the header they were taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The bytes end before the header does.
    Truncated,
    /// A length or version field contradicts the format.
    Malformed,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Error::Truncated => "the bytes end before the header does",
            Error::Malformed => "a length or version field contradicts the format",
        })
    }
}

impl std::error::Error for Error {}

/// IP protocol numbers and IPv6 next-header values (IANA "Protocol Numbers").
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Encapsulating security payload.
    pub const ESP: u8 = 50;
    /// Authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// DCCP.
    pub const DCCP: u8 = 33;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;
}

/// Returns the big-endian 16-bit number at `at`, in host order, if it is there.
#[inline]
pub fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the big-endian 32-bit number at `at`, in host order, if it is there.
#[inline]
pub fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Splits a fixed header off the front.
#[inline]
pub(crate) fn head<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), Error> {
    bytes.split_first_chunk().ok_or(Error::Truncated)
}

/// Splits `[..header_len]` and `[header_len..end]` off `bytes`; both are the sender's claims.
#[inline]
pub(crate) fn cut(bytes: &[u8], header_len: usize, end: usize) -> Result<(&[u8], &[u8]), Error> {
    if end < header_len {
        return Err(Error::Malformed);
    }
    let all = bytes.get(..end).ok_or(Error::Truncated)?;
    all.split_at_checked(header_len).ok_or(Error::Malformed)
}
