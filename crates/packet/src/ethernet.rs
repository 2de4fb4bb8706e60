//! Ethernet II and 802.3 frames, VLAN tags, LLC and SNAP.
//!
//! IEEE 802.3, 802.1Q (tags), 802.2 (LLC), RFC 1042 (SNAP). Frames here have no FCS, as on a virtio
//! ring.

use crate::{Error, Mac, head};

/// Bytes of destination, source and type.
pub const HEADER_LEN: usize = 14;
/// Bytes of one VLAN tag (TPID and TCI).
pub const TAG_LEN: usize = 4;
/// Smallest type value; below, the field is an 802.3 length.
pub const MIN_TYPE: u16 = 0x0600;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of reverse ARP.
pub const RARP: u16 = 0x8035;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// TPID of a customer tag (802.1Q).
pub const VLAN: u16 = 0x8100;
/// TPID of a service tag (802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;
/// TPIDs used for stacked tags before 802.1ad; Linux, Cisco and Juniper still know them.
pub const OLD_SERVICE_VLANS: [u16; 3] = [0x9100, 0x9200, 0x9300];
/// EtherType of LLDP.
pub const LLDP: u16 = 0x88cc;

/// True if an EtherType announces a VLAN tag.
#[inline]
pub const fn is_vlan(ethertype: u16) -> bool {
    let [a, b, c] = OLD_SERVICE_VLANS;
    matches!(ethertype, VLAN | SERVICE_VLAN) || ethertype == a || ethertype == b || ethertype == c
}

/// An Ethernet header and what follows it.
///
/// ```
/// use butterfly_packet::{Mac, build, ethernet::{self, Ethernet}, ipv4::Ipv4, udp::Udp};
/// let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// let ip = build::ethernet(a, b).vlan(5).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
/// let frame = ip.udp(4000, 53, b"?");
/// let ethernet = Ethernet::parse(&frame)?;
/// let mut tags = ethernet.tags();
/// assert_eq!(tags.next().map(|tag| tag.vlan()), Some(5));
/// assert_eq!(tags.ethertype(), ethernet::IPV4);
/// let ip = Ipv4::parse(tags.rest())?;
/// let udp = Udp::parse(ip.payload()?)?;
/// assert_eq!((udp.destination_port(), udp.payload()?), (53, b"?".as_slice()));
/// # Ok::<(), butterfly_packet::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Reads a frame. Fails only on fewer than [`HEADER_LEN`] bytes, with [`Error::Truncated`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, payload) = head(bytes)?;
        Ok(Ethernet { header, payload })
    }

    /// Returns the destination address.
    #[inline]
    pub const fn destination(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// Returns the source address.
    #[inline]
    pub const fn source(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, _, _] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// Returns the EtherType in host order, or an 802.3 length in bytes if below [`MIN_TYPE`].
    #[inline]
    pub const fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.header[12], self.header[13]])
    }

    /// Returns everything behind the type field, tags included.
    #[inline]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the VLAN tags, outermost first. Ends at the first type that is none, or where the
    /// frame does (a half tag is left out: compare [`Tags::rest`]).
    #[inline]
    pub const fn tags(&self) -> Tags<'a> {
        Tags { ethertype: self.ethertype(), rest: self.payload }
    }
}

/// One VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The EtherType that announced it: [`VLAN`], [`SERVICE_VLAN`] or one of
    /// [`OLD_SERVICE_VLANS`].
    pub tpid: u16,
    /// Priority, drop eligibility and VLAN id, in host order.
    pub tci: u16,
}

impl Tag {
    /// Returns the VLAN id, 0 to 4095; 0 is a priority tag.
    #[inline]
    pub const fn vlan(self) -> u16 {
        self.tci & 0xfff
    }

    /// Returns the priority code point, 0 to 7.
    #[inline]
    pub const fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// Walks VLAN tags; afterwards holds what is behind them.
#[derive(Clone, Copy, Debug)]
pub struct Tags<'a> {
    ethertype: u16,
    rest: &'a [u8],
}

impl<'a> Tags<'a> {
    /// Returns the type in force, in host order: of the next tag, or of the payload when all tags
    /// were taken.
    #[inline]
    pub const fn ethertype(&self) -> u16 {
        self.ethertype
    }

    /// Returns the bytes behind that type.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    #[inline]
    fn next(&mut self) -> Option<Tag> {
        if !is_vlan(self.ethertype) {
            return None;
        }
        let (&[a, b, c, d], rest) = self.rest.split_first_chunk()?;
        let tag = Tag { tpid: self.ethertype, tci: u16::from_be_bytes([a, b]) };
        self.ethertype = u16::from_be_bytes([c, d]);
        self.rest = rest;
        Some(tag)
    }
}

/// An 802.2 LLC header, with SNAP if it announces one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Llc<'a> {
    /// Destination service access point.
    pub dsap: u8,
    /// Source service access point.
    pub ssap: u8,
    /// First control byte.
    pub control: u8,
    /// Organisation (24 bits) and protocol id, in host order, if it is SNAP: `AA AA 03`.
    pub snap: Option<(u32, u16)>,
    /// Bytes behind LLC and SNAP.
    pub payload: &'a [u8],
}

impl<'a> Llc<'a> {
    /// Bytes of LLC with one control byte.
    pub const LEN: usize = 3;
    /// Bytes of LLC and SNAP.
    pub const SNAP_LEN: usize = 8;

    /// Reads the bytes behind an 802.3 length. [`Error::Truncated`] if LLC, or an announced SNAP,
    /// is incomplete.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (&[dsap, ssap, control], rest) = head(bytes)?;
        if (dsap, ssap, control) != (0xaa, 0xaa, 0x03) {
            return Ok(Llc { dsap, ssap, control, snap: None, payload: rest });
        }
        let (&[a, b, c, d, e], payload) = head(rest)?;
        let snap = Some((u32::from_be_bytes([0, a, b, c]), u16::from_be_bytes([d, e])));
        Ok(Llc { dsap, ssap, control, snap, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacked_tags_then_the_type() {
        let mut frame = vec![0; 12];
        frame.extend([0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x05, 0x08, 0x00, 0x45]);
        let mut tags = Ethernet::parse(&frame).unwrap().tags();
        let all: Vec<Tag> = tags.by_ref().collect();
        assert_eq!(all, [Tag { tpid: SERVICE_VLAN, tci: 0x2064 }, Tag { tpid: VLAN, tci: 5 }]);
        assert_eq!((all[0].vlan(), all[0].priority()), (100, 1));
        assert_eq!((tags.ethertype(), tags.rest()), (IPV4, &[0x45u8][..]));
    }

    #[test]
    fn old_tags_are_tags() {
        for tpid in OLD_SERVICE_VLANS {
            let mut frame = vec![0; 12];
            frame.extend([&tpid.to_be_bytes()[..], &[0, 7, 0x86, 0xdd, 0x60]].concat());
            let mut tags = Ethernet::parse(&frame).unwrap().tags();
            assert_eq!(tags.next(), Some(Tag { tpid, tci: 7 }));
            assert_eq!((tags.next(), tags.ethertype()), (None, IPV6));
        }
        assert!(!is_vlan(0x9000) && !is_vlan(0x9400));
    }

    #[test]
    fn half_a_tag_is_none() {
        let mut frame = vec![0; 12];
        frame.extend([0x81, 0x00, 0x00, 0x05, 0x08]);
        let mut tags = Ethernet::parse(&frame).unwrap().tags();
        assert_eq!(tags.next(), None);
        assert_eq!((tags.ethertype(), tags.rest().len()), (VLAN, 3));
    }

    #[test]
    fn snap_needs_all_its_bytes() {
        let bytes = [0xaa, 0xaa, 0x03, 0, 0, 0, 0x08, 0x00, 0x45];
        let llc = Llc::parse(&bytes).unwrap();
        assert_eq!((llc.snap, llc.payload), (Some((0, IPV4)), &[0x45u8][..]));
        assert_eq!(Llc::parse(&bytes[..7]), Err(Error::Truncated));
        assert_eq!(Llc::parse(&[0x42, 0x42, 3, 9]).unwrap().snap, None);
    }
}
