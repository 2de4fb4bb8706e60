//! UDP (RFC 768).

use crate::{Error, cut, head};

/// Bytes of the header.
pub const LEN: usize = 8;
/// Offset of the length, in bytes from the first byte of the header.
pub const LENGTH_OFFSET: usize = 4;
/// Offset of the checksum, in bytes from the first byte of the header.
pub const CHECKSUM_OFFSET: usize = 6;

/// A UDP header and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a [u8; LEN],
    bytes: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Reads a header. Fails only on fewer than [`LEN`] bytes, with [`Error::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, _) = head(bytes)?;
        Ok(Udp { header, bytes })
    }

    /// Returns the source port, in host order.
    #[inline]
    pub const fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// Returns the destination port, in host order.
    #[inline]
    pub const fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the bytes of header and payload, as the sender says.
    #[inline]
    pub const fn length(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Returns the checksum as it stands, in host order; 0 means none.
    #[inline]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Returns the payload as far as the length says. [`Error::Malformed`] if that is below the
    /// header's, [`Error::Truncated`] if the bytes end before.
    #[inline]
    pub fn payload(&self) -> Result<&'a [u8], Error> {
        cut(self.bytes, LEN, self.length().into()).map(|(_, payload)| payload)
    }
}
