//! VXLAN (RFC 7348, 5), and the multicast groups that stand for networks.
//!
//! One header of an extension is spoken between hosts of this switch: [`PASSED_ON`]. One with any
//! other flag (GPE, group policy), or with anything in a reserved field, is not ours.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{Error, head};

/// UDP port of VXLAN, as destination.
pub const PORT: u16 = 4789;
/// Bytes of the header.
pub const LEN: usize = 8;
/// First word of a frame that one host passes on for another: the VNI is valid, there is a group
/// policy (G) without a group, and the receiver does not learn the sender (D).
/// draft-smith-vxlan-group-policy-05, 2.1.
pub const PASSED_ON: [u8; 4] = [0x88, 0x40, 0, 0];
/// Largest VNI: 24 bits.
pub const MAX_VNI: u32 = (1 << 24) - 1;
/// Prefix of IPv6 groups of networks unless an operator says otherwise. Its scope is reserved (RFC
/// 4291, 2.7): Linux, for one, neither joins nor sends to such groups; `ff05::` is a prefix that
/// works there.
pub const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0);

/// A VXLAN header and the frame that follows it.
///
/// ```
/// use butterfly_packet::vxlan::{self, Vxlan};
/// let mut payload = vxlan::header(42).to_vec();
/// payload.extend([0; 60]);
/// let vxlan = Vxlan::parse(&payload)?;
/// assert_eq!((vxlan.vni(), vxlan.frame().len()), (42, 60));
/// # Ok::<(), butterfly_packet::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vxlan<'a> {
    vni: u32,
    frame: &'a [u8],
}

impl<'a> Vxlan<'a> {
    /// Reads a UDP payload. [`Error::Truncated`] below [`LEN`] bytes; [`Error::Malformed`] unless
    /// the flags are exactly "the VNI is valid" and all reserved bits are zero.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        match head::<LEN>(bytes)? {
            (&[0x08, 0, 0, 0, a, b, c, 0], frame) => {
                Ok(Vxlan { vni: u32::from_be_bytes([0, a, b, c]), frame })
            }
            _ => Err(Error::Malformed),
        }
    }

    /// Returns the network, 0 to [`MAX_VNI`], in host order.
    #[inline]
    pub const fn vni(&self) -> u32 {
        self.vni
    }

    /// Returns the inner Ethernet frame, of any length.
    #[inline]
    pub const fn frame(&self) -> &'a [u8] {
        self.frame
    }
}

/// Returns the header of a network in network order. Bits of `vni` above [`MAX_VNI`] are lost.
#[inline]
pub const fn header(vni: u32) -> [u8; LEN] {
    let [_, a, b, c] = vni.to_be_bytes();
    [0x08, 0, 0, 0, a, b, c, 0]
}

/// Returns the IPv4 group of a network: 230.a.b.c, a.b.c being its 24 bits. Bits above [`MAX_VNI`]
/// are lost.
#[inline]
pub const fn group_v4(vni: u32) -> Ipv4Addr {
    let [_, a, b, c] = vni.to_be_bytes();
    Ipv4Addr::new(230, a, b, c)
}

/// Returns the IPv6 group of a network: `prefix` (usually [`GROUP6`]), its last four bytes replaced
/// by the VNI in network order.
#[inline]
pub const fn group_v6(prefix: Ipv6Addr, vni: u32) -> Ipv6Addr {
    let prefix = prefix.to_bits() >> 32 << 32;
    Ipv6Addr::from_bits(prefix | (vni & MAX_VNI) as u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_two_exact_words() {
        assert_eq!(header(1337), [0x08, 0, 0, 0, 0x00, 0x05, 0x39, 0]);
        assert_eq!(header(0xff12_3456), [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        let bytes = [0x08, 0, 0, 0, 0xff, 0xff, 0xfe, 0, 1, 2];
        let vxlan = Vxlan::parse(&bytes).unwrap();
        assert_eq!((vxlan.vni(), vxlan.frame()), (0xff_fffe, &[1u8, 2][..]));
        assert_eq!(Vxlan::parse(&bytes[..7]), Err(Error::Truncated));
        // Every bit that is not the VNI's counts.
        for bit in (0..32).chain(56..64) {
            let mut other = bytes;
            other[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(Vxlan::parse(&other), Err(Error::Malformed), "bit {bit}");
        }
    }

    #[test]
    fn groups_are_the_contract_s() {
        for (vni, v4, v6) in [
            (0, "230.0.0.0", "ff00::"),
            (42, "230.0.0.42", "ff00::2a"),
            (1337, "230.0.5.57", "ff00::539"),
            (MAX_VNI, "230.255.255.255", "ff00::ff:ffff"),
        ] {
            assert_eq!(group_v4(vni).to_string(), v4);
            assert_eq!(group_v6(GROUP6, vni).to_string(), v6);
        }
        let prefix = "ff05::1:0:dead:beef".parse().unwrap();
        assert_eq!(group_v6(prefix, 42).to_string(), "ff05::1:0:0:2a");
    }
}
