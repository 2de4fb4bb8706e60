//! SCTP: the common header and the first chunk (RFC 9260).

use crate::{Error, head};

/// Bytes of the common header.
pub const LEN: usize = 12;
/// Offset of the CRC32c, in bytes from the first byte of the header.
pub const CHECKSUM_OFFSET: usize = 8;

/// Chunk type of user data.
pub const DATA: u8 = 0;
/// Chunk type that opens an association.
pub const INIT: u8 = 1;
/// Chunk type that answers [`INIT`].
pub const INIT_ACK: u8 = 2;
/// Chunk type that ends an association at once.
pub const ABORT: u8 = 6;
/// Chunk type that ends an association in order.
pub const SHUTDOWN: u8 = 7;
/// Chunk type of the last step of an orderly end.
pub const SHUTDOWN_COMPLETE: u8 = 14;

/// An SCTP common header and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Sctp<'a> {
    header: &'a [u8; LEN],
    chunks: &'a [u8],
}

impl<'a> Sctp<'a> {
    /// Reads a header. Fails only on fewer than [`LEN`] bytes, with [`Error::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, chunks) = head(bytes)?;
        Ok(Sctp { header, chunks })
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

    /// Returns the verification tag, in host order; 0 with an INIT chunk.
    #[inline]
    pub const fn verification_tag(&self) -> u32 {
        u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// Returns the type of the first chunk, if there is one.
    #[inline]
    pub fn first_chunk_type(&self) -> Option<u8> {
        self.chunks.first_chunk::<4>().map(|chunk| chunk[0])
    }

    /// Returns the chunks.
    #[inline]
    pub const fn chunks(&self) -> &'a [u8] {
        self.chunks
    }
}
