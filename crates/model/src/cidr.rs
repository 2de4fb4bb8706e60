//! Blocks of addresses.

use crate::address::{AddressError, canonical, parse_ip};
use std::{fmt, net::IpAddr};

/// An address and the length of its network part.
///
/// Bits of the address beyond the length are kept, because the declared text is part of a rule's
/// identity; they mean nothing else: see [`Cidr::network`].
///
/// ```
/// use butterfly_model::Cidr;
/// let block = Cidr::new("10.0.0.7", 24)?;
/// assert_eq!(block.to_string(), "10.0.0.7/24");
/// assert_eq!(block.network().to_string(), "10.0.0.0");
/// assert!(block.contains("10.0.0.255".parse().unwrap()));
/// assert!(Cidr::new("10.0.0.0", 33).is_err());
/// # Ok::<(), butterfly_model::CidrError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    mask_size: u8,
}

/// Reason why a text and a mask are no block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// The address is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The length does not fit the family.
    #[error("mask size {mask_size} of {address} is out of range: 0 to {}", if .address.is_ipv4() { 32 } else { 128 })]
    MaskSize {
        /// The address it is for.
        address: IpAddr,
        /// Mask size in bits, as declared.
        mask_size: u32,
    },
}

impl Cidr {
    /// Makes a block of the text of an address and a number of bits: 0 to 32, or 0 to 128 for IPv6.
    /// Fails for a text that is no address, and for more bits.
    pub fn new(address: &str, mask_size: u32) -> Result<Self, CidrError> {
        let address = parse_ip(address)?;
        match u8::try_from(mask_size) {
            Ok(bits) if u32::from(bits) <= width(address) => Ok(Self { address, mask_size: bits }),
            _ => Err(CidrError::MaskSize { address, mask_size }),
        }
    }

    /// Makes a block of parts that fit each other.
    pub(crate) fn from_parts(address: IpAddr, mask_size: u8) -> Self {
        Self { address, mask_size }
    }

    /// Returns the address as declared.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the bits of the network part.
    pub fn mask_size(&self) -> u8 {
        self.mask_size
    }

    /// Returns the first address of the block.
    pub fn network(&self) -> IpAddr {
        let host_bits = width(self.address) - u32::from(self.mask_size);
        match self.address {
            IpAddr::V4(v4) => {
                IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into())
            }
            IpAddr::V6(v6) => {
                IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into())
            }
        }
    }

    /// True if an address is in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        let of = Self { address, ..*self };
        address.is_ipv4() == self.address.is_ipv4() && of.network() == self.network()
    }

    /// True if some address is in both blocks.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network()) || other.contains(self.network())
    }

    /// True if `address`, one of the block, can be a host's there: not the first one (of IPv6 the
    /// routers' anycast address: RFC 4291, 2.6.1), nor the last one of IPv4, the broadcast address.
    /// In the smallest blocks, of one or two addresses, each can (RFC 3021, RFC 6164).
    pub fn is_host(&self, address: IpAddr) -> bool {
        let host_bits = width(self.address) - u32::from(self.mask_size);
        let last = match address {
            IpAddr::V4(v4) => v4.to_bits() | !u32::MAX.checked_shl(host_bits).unwrap_or(0),
            IpAddr::V6(_) => 0,
        };
        let broadcast = matches!(address, IpAddr::V4(v4) if v4.to_bits() == last);
        self.contains(address) && (host_bits < 2 || address != self.network() && !broadcast)
    }

    /// Returns the same block without bits beyond its length.
    pub fn without_host_bits(&self) -> Self {
        Self { address: self.network(), ..*self }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", canonical(self.address), self.mask_size)
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_kept_in_the_text_and_masked_in_the_network() {
        for (address, mask_size, text, network) in [
            ("10.0.0.1", 24, "10.0.0.1/24", "10.0.0.0"),
            ("255.255.255.255", 0, "255.255.255.255/0", "0.0.0.0"),
            ("255.255.255.255", 32, "255.255.255.255/32", "255.255.255.255"),
            ("2001:db8:0:85a3:0:0:ac1f:8001", 8, "2001:db8:0:85a3::ac1f:8001/8", "2000::"),
            ("ffff::ffff", 0, "ffff::ffff/0", "::"),
            ("ffff::ffff", 128, "ffff::ffff/128", "ffff::ffff"),
            ("ffff::ffff", 127, "ffff::ffff/127", "ffff::fffe"),
        ] {
            let cidr = Cidr::new(address, mask_size).unwrap();
            assert_eq!(
                (cidr.to_string().as_str(), cidr.network()),
                (text, network.parse().unwrap())
            );
        }
    }

    #[test]
    fn addresses_are_in_a_block_or_not() {
        for (block, bits, address, inside) in [
            ("10.0.0.77", 24, "10.0.0.1", true),
            ("10.0.0.77", 24, "10.0.1.1", false),
            ("10.0.0.77", 0, "192.0.2.1", true),
            ("10.0.0.77", 32, "10.0.0.76", false),
            ("10.0.0.0", 8, "::", false),
            ("::", 0, "10.0.0.1", false),
            ("fd00::1", 64, "fd00::2:3", true),
            ("fd00::1", 64, "fd00:0:0:1::1", false),
        ] {
            let contains = Cidr::new(block, bits).unwrap().contains(address.parse().unwrap());
            assert_eq!(contains, inside, "{address} in {block}/{bits}");
        }
    }

    #[test]
    fn blocks_overlap_if_one_is_in_the_other() {
        for (one, other, overlap) in [
            (("10.0.0.0", 8), ("10.7.0.0", 16), true),
            (("10.0.0.0", 24), ("10.0.1.0", 24), false),
            (("0.0.0.0", 0), ("10.0.1.7", 32), true),
            (("0.0.0.0", 0), ("::", 0), false),
            (("fd00::", 64), ("fd00::7", 128), true),
            (("fd00::", 64), ("fd00:0:0:1::", 64), false),
        ] {
            let [one, other] = [one, other].map(|(text, bits)| Cidr::new(text, bits).unwrap());
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (overlap, overlap));
        }
    }

    #[test]
    fn the_first_and_the_broadcast_address_are_no_host_s() {
        for (block, bits, address, host) in [
            ("10.0.0.0", 24, "10.0.0.0", false),
            ("10.0.0.0", 24, "10.0.0.1", true),
            ("10.0.0.0", 24, "10.0.0.255", false),
            ("10.0.0.0", 24, "10.0.1.1", false),
            ("10.0.0.0", 31, "10.0.0.0", true),
            ("10.0.0.0", 31, "10.0.0.1", true),
            ("10.0.0.7", 32, "10.0.0.7", true),
            ("0.0.0.0", 0, "255.255.255.255", false),
            ("fd00::", 64, "fd00::", false),
            ("fd00::", 64, "fd00::ffff:ffff:ffff:ffff", true),
            ("fd00::", 127, "fd00::", true),
            ("::", 0, "fd00::1", true),
        ] {
            let is_host = Cidr::new(block, bits).unwrap().is_host(address.parse().unwrap());
            assert_eq!(is_host, host, "{address} in {block}/{bits}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(matches!(Cidr::new("10.0.0", 8), Err(CidrError::Address(_))));
        for (address, mask_size) in
            [("10.0.0.0", 33), ("10.0.0.0", 256 + 8), ("::", 129), ("::", u32::MAX)]
        {
            assert!(
                matches!(Cidr::new(address, mask_size), Err(CidrError::MaskSize { .. })),
                "{address}/{mask_size}"
            );
        }
        let error = Cidr::new("10.0.0.0", 33).unwrap_err().to_string();
        assert_eq!(error, "mask size 33 of 10.0.0.0 is out of range: 0 to 32");
    }
}
