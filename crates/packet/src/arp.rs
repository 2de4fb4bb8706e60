//! ARP and RARP for IPv4 over Ethernet (RFC 826, RFC 903).

use std::net::Ipv4Addr;

use crate::{Error, Mac, head};

/// Bytes of a packet for IPv4 over Ethernet.
pub const LEN: usize = 28;
/// Operation of a question for the station that has an address.
pub const REQUEST: u16 = 1;
/// Operation of the answer: the sender has the address.
pub const REPLY: u16 = 2;

/// Bytes of a frame with an ARP packet, without padding.
pub const FRAME_LEN: usize = crate::ethernet::HEADER_LEN + LEN;

/// Returns the frame that answers a request: `owner` has the address that `asker` asked for.
///
/// ```
/// use butterfly_packet::{Mac, arp::reply, build};
/// let (a, b) = ((Mac([2; 6]), [10, 0, 0, 2].into()), (Mac([4; 6]), [10, 0, 0, 1].into()));
/// assert_eq!(reply(a, b)[..], build::ethernet(b.0, a.0).arp_reply(b.1, a.1));
/// ```
pub fn reply(asker: (Mac, Ipv4Addr), owner: (Mac, Ipv4Addr)) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    let ends = [owner, asker].map(|(mac, ip)| (mac.0, ip.octets()));
    let parts: [&[u8]; 8] = [
        &asker.0.0,
        &owner.0.0,
        &crate::ethernet::ARP.to_be_bytes(),
        &[0, 1, 8, 0, 6, 4, 0, REPLY as u8],
        &ends[0].0,
        &ends[0].1,
        &ends[1].0,
        &ends[1].1,
    ];
    frame.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, byte)| *to = *byte);
    frame
}

/// An ARP packet.
///
/// ```
/// use butterfly_packet::{Mac, arp::Arp, build, ethernet::Ethernet};
/// let frame = build::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac::BROADCAST)
///     .arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
/// let arp = Arp::parse(Ethernet::parse(&frame)?.payload())?;
/// assert_eq!(arp.operation(), butterfly_packet::arp::REQUEST);
/// assert_eq!(arp.target_ip().to_string(), "10.0.0.2");
/// # Ok::<(), butterfly_packet::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a>(&'a [u8; LEN]);

impl<'a> Arp<'a> {
    /// Reads a packet. [`Error::Truncated`] below [`LEN`] bytes; [`Error::Malformed`] if it is not
    /// about IPv4 (4 bytes) over Ethernet (6 bytes).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (packet, _) = head::<LEN>(bytes)?;
        if packet[..6] == [0, 1, 8, 0, 6, 4] { Ok(Arp(packet)) } else { Err(Error::Malformed) }
    }

    /// Returns the operation in host order: [`REQUEST`], [`REPLY`], or another.
    #[inline]
    pub const fn operation(&self) -> u16 {
        u16::from_be_bytes([self.0[6], self.0[7]])
    }

    /// Returns the sender's hardware address.
    #[inline]
    pub const fn sender_mac(&self) -> Mac {
        let p = self.0;
        Mac([p[8], p[9], p[10], p[11], p[12], p[13]])
    }

    /// Returns the sender's protocol address; 0.0.0.0 in a probe (RFC 5227).
    #[inline]
    pub const fn sender_ip(&self) -> Ipv4Addr {
        let p = self.0;
        Ipv4Addr::new(p[14], p[15], p[16], p[17])
    }

    /// Returns the target's hardware address; without meaning in a request.
    #[inline]
    pub const fn target_mac(&self) -> Mac {
        let p = self.0;
        Mac([p[18], p[19], p[20], p[21], p[22], p[23]])
    }

    /// Returns the target's protocol address.
    #[inline]
    pub const fn target_ip(&self) -> Ipv4Addr {
        let p = self.0;
        Ipv4Addr::new(p[24], p[25], p[26], p[27])
    }
}
