//! Subnets of networks: blocks of addresses, and their gateways.

use crate::{
    address::{AddressError, canonical, parse_ip},
    cidr::{Cidr, CidrError},
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A block of addresses of a network, and the address in it by which machines leave the network.
///
/// ```
/// use butterfly_model::Subnet;
/// let subnet = Subnet::parse("10.0.0.0/24", Some("10.0.0.1"))?;
/// assert_eq!(subnet.to_string(), "10.0.0.0/24 gateway 10.0.0.1");
/// assert!(Subnet::parse("10.0.0.0/24", Some("10.0.1.1")).is_err());
/// # Ok::<(), butterfly_model::SubnetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    cidr: Cidr,
    gateway: Option<IpAddr>,
}

/// Reason why a block, or its gateway, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// A text without a length.
    #[error("\"{0}\" is not a subnet; write 10.0.0.0/24 or 2001:db8::/64")]
    Form(String),
    /// The block is none.
    #[error(transparent)]
    Cidr(#[from] CidrError),
    /// The gateway is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Bits beyond the length are set.
    #[error("{given} is an address in a subnet, not the subnet; write {meant}")]
    HostBits {
        /// The block as declared.
        given: Cidr,
        /// The block without those bits.
        meant: Cidr,
    },
    /// A block with addresses that no host can have.
    #[error(
        "{0} has addresses that no host of a network can have, as those of {1}; choose another"
    )]
    Special(Cidr, Cidr),
    /// The gateway is of another block.
    #[error("the gateway {gateway} is not in its subnet {cidr}; choose an address of the subnet")]
    GatewayOutside {
        /// The gateway.
        gateway: IpAddr,
        /// The subnet.
        cidr: Cidr,
    },
    /// The gateway is the first address, or the last one of IPv4.
    #[error(
        "the gateway {gateway} is not the address of a host in {cidr}; choose another one of the subnet"
    )]
    GatewayNotAHost {
        /// The gateway.
        gateway: IpAddr,
        /// The subnet.
        cidr: Cidr,
    },
}

/// Blocks whose addresses are never those of hosts in a network: "this network", loopback,
/// multicast, broadcast; of IPv6 also mapped IPv4 and link-local addresses, which are not routed.
pub(crate) const SPECIAL: [(IpAddr, u8); 8] = [
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8),
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 127),
    (IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0)), 96),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

/// Reads a block of addresses: `10.0.0.0/24`.
pub(crate) fn parse_block(block: &str) -> Result<Cidr, SubnetError> {
    let form = || SubnetError::Form(block.to_owned());
    let (address, length) = block.split_once('/').ok_or_else(form)?;
    let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let mask_size = length.parse().ok().filter(|_| digits).ok_or_else(form)?;
    Ok(Cidr::new(address, mask_size)?)
}

impl Subnet {
    /// Makes a subnet of a block. Fails if the block has bits set beyond its length or addresses
    /// that no host can have, and if the gateway is not the address of a host in it.
    pub fn new(cidr: Cidr, gateway: Option<IpAddr>) -> Result<Self, SubnetError> {
        if cidr.address() != cidr.network() {
            return Err(SubnetError::HostBits { given: cidr, meant: cidr.without_host_bits() });
        }
        for (address, mask_size) in SPECIAL {
            let special = Cidr::from_parts(address, mask_size);
            if cidr.overlaps(&special) {
                return Err(SubnetError::Special(cidr, special));
            }
        }
        match gateway {
            Some(gateway) if !cidr.contains(gateway) => {
                Err(SubnetError::GatewayOutside { gateway, cidr })
            }
            Some(gateway) if !cidr.is_host(gateway) => {
                Err(SubnetError::GatewayNotAHost { gateway, cidr })
            }
            gateway => Ok(Self { cidr, gateway }),
        }
    }

    /// Reads a subnet of the texts of its block (`10.0.0.0/24`) and its gateway.
    pub fn parse(block: &str, gateway: Option<&str>) -> Result<Self, SubnetError> {
        Self::new(parse_block(block)?, gateway.map(parse_ip).transpose()?)
    }

    /// Returns the block.
    pub fn cidr(&self) -> Cidr {
        self.cidr
    }

    /// Returns the gateway, if it has one.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Returns the same block without a gateway.
    pub fn without_gateway(self) -> Self {
        Self { gateway: None, ..self }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cidr)?;
        match self.gateway {
            Some(gateway) => write!(f, " gateway {}", canonical(gateway)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(block: &str, gateway: Option<&str>) -> String {
        Subnet::parse(block, gateway).unwrap_err().to_string()
    }

    #[test]
    fn a_gateway_is_the_address_of_a_host_in_its_subnet() {
        for (block, gateway) in [
            ("10.0.0.0/24", "10.0.0.1"),
            ("10.0.0.0/24", "10.0.0.254"),
            ("10.0.0.0/31", "10.0.0.0"),
            ("10.0.0.0/31", "10.0.0.1"),
            ("10.0.0.7/32", "10.0.0.7"),
            ("fd00::/64", "fd00::1"),
            ("fd00::/64", "fd00::ffff:ffff:ffff:ffff"),
            ("fd00::/127", "fd00::"),
        ] {
            let subnet = Subnet::parse(block, Some(gateway)).unwrap();
            assert_eq!(subnet.gateway(), Some(gateway.parse().unwrap()));
            assert_eq!(subnet.to_string(), format!("{block} gateway {gateway}"));
            assert_eq!(subnet.without_gateway().to_string(), block);
        }
        for gateway in ["10.0.1.1", "fd00::1"] {
            let text = refused("10.0.0.0/24", Some(gateway));
            assert!(text.starts_with(&format!("the gateway {gateway} is not in its ")), "{text}");
        }
        for (block, gateway) in
            [("10.0.0.0/24", "10.0.0.0"), ("10.0.0.0/24", "10.0.0.255"), ("fd00::/64", "fd00::")]
        {
            let text = refused(block, Some(gateway));
            assert!(text.contains("is not the address of a host in"), "{text}");
        }
        assert!(refused("10.0.0.0/24", Some("x")).contains("\"x\" is not an IP address"));
    }

    #[test]
    fn what_is_no_subnet_is_refused() {
        for text in ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/24/1", "10.0.0.0/x"] {
            assert_eq!(Subnet::parse(text, None), Err(SubnetError::Form(text.to_owned())));
        }
        assert!(matches!(Subnet::parse("10.0.0.0/33", None), Err(SubnetError::Cidr(_))));
        let text = refused("10.0.0.7/24", None);
        assert_eq!(
            text,
            "10.0.0.7/24 is an address in a subnet, not the subnet; write 10.0.0.0/24"
        );
        for block in [
            "0.0.0.0/0",
            "0.0.0.0/8",
            "126.0.0.0/7",
            "127.1.0.0/16",
            "192.0.0.0/2",
            "239.0.0.0/8",
            "255.255.255.255/32",
            "::/0",
            "::1/128",
            "::ffff:0:0/95",
            "fe80::/64",
            "fe00::/8",
            "ff02::/16",
        ] {
            let special = Subnet::parse(block, None);
            // The mapped form of IPv4 is no address of IPv6 to begin with.
            let mapped = matches!(special, Err(SubnetError::Cidr(CidrError::Address(_))));
            assert!(matches!(special, Err(SubnetError::Special(..))) || mapped, "{special:?}");
        }
    }
}
