//! TCP (RFC 9293).

use crate::{Error, head};

/// Bytes of a header without options.
pub const MIN_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_LEN: usize = 60;
/// Offset of the checksum, in bytes from the first byte of the header.
pub const CHECKSUM_OFFSET: usize = 16;

/// Flag: no more data from the sender.
pub const FIN: u8 = 0x01;
/// Flag: synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Flag: reset the connection.
pub const RST: u8 = 0x04;
/// Flag: push.
pub const PSH: u8 = 0x08;
/// Flag: the acknowledgement field is significant.
pub const ACK: u8 = 0x10;
/// Flag: the urgent pointer is significant.
pub const URG: u8 = 0x20;
/// Flag: ECN echo.
pub const ECE: u8 = 0x40;
/// Flag: congestion window reduced.
pub const CWR: u8 = 0x80;

/// A TCP header and what follows it.
///
/// ```
/// use butterfly_packet::{Mac, build, ethernet::Ethernet, ipv4::Ipv4, tcp::{self, Tcp}};
/// let open = build::Tcp { options: &[2, 4, 5, 180], ..build::Tcp::new(4000, 80, tcp::SYN) };
/// let frame = build::ethernet(Mac::ZERO, Mac::ZERO)
///     .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
///     .tcp(&open, b"");
/// let ip = Ipv4::parse(Ethernet::parse(&frame)?.payload())?;
/// let tcp = Tcp::parse(ip.payload()?)?;
/// assert_eq!((tcp.destination_port(), tcp.flags(), tcp.header_len()), (80, tcp::SYN, 24));
/// assert_eq!(tcp.options().next(), Some((tcp::Options::MSS, [5, 180].as_slice())));
/// # Ok::<(), butterfly_packet::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    fixed: &'a [u8; MIN_LEN],
    bytes: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Reads a header. [`Error::Malformed`]: data offset below 20 bytes. [`Error::Truncated`]: the
    /// header, options included, is incomplete.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (fixed, _) = head::<MIN_LEN>(bytes)?;
        let segment = Tcp { fixed, bytes };
        if segment.header_len() < MIN_LEN {
            return Err(Error::Malformed);
        }
        if bytes.len() < segment.header_len() { Err(Error::Truncated) } else { Ok(segment) }
    }

    /// Returns the source port, in host order.
    #[inline]
    pub const fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.fixed[0], self.fixed[1]])
    }

    /// Returns the destination port, in host order.
    #[inline]
    pub const fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.fixed[2], self.fixed[3]])
    }

    /// Returns the sequence number of the first byte, in host order.
    #[inline]
    pub const fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.fixed[4], self.fixed[5], self.fixed[6], self.fixed[7]])
    }

    /// Returns the next sequence number expected from the other side, in host order.
    #[inline]
    pub const fn acknowledgement(&self) -> u32 {
        u32::from_be_bytes([self.fixed[8], self.fixed[9], self.fixed[10], self.fixed[11]])
    }

    /// Returns the bytes of the header with options, 20 to 60.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.fixed[12] >> 4) as usize * 4
    }

    /// Returns the flags, [`FIN`] to [`CWR`].
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.fixed[13]
    }

    /// Returns the window in bytes, not scaled.
    #[inline]
    pub const fn window(&self) -> u16 {
        u16::from_be_bytes([self.fixed[14], self.fixed[15]])
    }

    /// Returns the checksum as it stands, in host order.
    #[inline]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.fixed[16], self.fixed[17]])
    }

    /// Returns the options, padding included.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        Options(self.bytes.get(MIN_LEN..self.header_len()).unwrap_or_default())
    }

    /// Returns the bytes behind the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header_len()..).unwrap_or_default()
    }
}

/// One TCP option: its kind and the bytes behind kind and length.
pub type TcpOption<'a> = (u8, &'a [u8]);

/// Walks TCP options; ends at the end-of-options mark or at the first that does not fit.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 3;

    /// Returns the bytes not walked yet.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = TcpOption<'a>;

    #[inline]
    fn next(&mut self) -> Option<TcpOption<'a>> {
        loop {
            match *self.0 {
                [1, ref rest @ ..] => self.0 = rest, // no operation
                [kind, len, ..] if kind != 0 => {
                    let (option, rest) = self.0.split_at_checked(usize::from(len))?;
                    let value = option.get(2..)?;
                    self.0 = rest;
                    return Some((kind, value));
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_where_they_lie() {
        let of = |bytes: &'static [u8]| Options(bytes).collect::<Vec<_>>();
        assert_eq!(
            of(&[1, 2, 4, 5, 0xb4, 1, 3, 3, 7, 0, 9]),
            [(2, &[5u8, 0xb4][..]), (3, &[7][..])]
        );
        assert_eq!(of(&[2, 0, 1, 1]), []);
        assert_eq!(of(&[2, 1, 1, 1]), []);
        assert_eq!(of(&[2, 5, 1, 1]), []);
        assert_eq!(of(&[3]), []);
    }
}
