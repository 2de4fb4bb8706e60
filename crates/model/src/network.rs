//! Declared networks: their subnets, and the gateways of these.

use crate::{
    address::{AddressError, canonical, parse_ip},
    cidr::{Cidr, CidrError},
    dhcp::{Dhcp, DhcpError},
    vni::Vni,
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

/// A network as declared: the subnets of its machines, their largest packet, and what DHCP tells
/// them.
///
/// Its subnets are kept in the order of their addresses, those of IPv4 first: their order means
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    vni: Vni,
    subnets: Vec<Subnet>,
    mtu: Option<u16>,
    dhcp: Option<Dhcp>,
}

/// Error of an MTU that a network cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MtuError {
    /// Out of range.
    #[error("MTU {0} is out of range: {least} to {most} bytes", least = Network::LEAST_MTU, most = u16::MAX)]
    Range(u32),
    /// IPv6 needs more (RFC 8200, 5).
    #[error(
        "MTU {0} is too small for the IPv6 subnets of network {1}: {least} bytes at least",
        least = Network::LEAST_MTU_OF_IPV6
    )]
    OfIpv6(u32, Vni),
}

impl Network {
    /// Smallest MTU, in bytes of an IP packet (RFC 791, 3.2).
    pub const LEAST_MTU: u32 = 68;
    /// Smallest MTU of a network with an IPv6 subnet (RFC 8200, 5).
    pub const LEAST_MTU_OF_IPV6: u32 = 1280;

    /// Makes a network of its subnets and its MTU in bytes of an IP packet. Without an MTU there
    /// is no limit. Fails for an MTU that is out of range, or too small for an IPv6 subnet.
    pub fn new(vni: Vni, mut subnets: Vec<Subnet>, mtu: Option<u32>) -> Result<Self, MtuError> {
        let of_ipv6 = subnets.iter().any(|subnet| subnet.cidr.address().is_ipv6());
        let checked = |mtu: u32| match u16::try_from(mtu) {
            Ok(fits) if mtu >= Self::LEAST_MTU => match of_ipv6 && mtu < Self::LEAST_MTU_OF_IPV6 {
                true => Err(MtuError::OfIpv6(mtu, vni)),
                false => Ok(fits),
            },
            _ => Err(MtuError::Range(mtu)),
        };
        let mtu = mtu.map(checked).transpose()?;
        subnets.sort_by_key(|subnet| (subnet.cidr.network(), subnet.cidr.mask_size()));
        Ok(Self { vni, subnets, mtu, dhcp: None })
    }

    /// Has the network give its vnics their IPv4 addresses by DHCP, or not. Fails if no subnet of
    /// IPv4 has a gateway, or a route leads by no machine of such a subnet.
    pub fn with_dhcp(self, dhcp: Option<Dhcp>) -> Result<Self, DhcpError> {
        if let Some(dhcp) = &dhcp {
            dhcp.check(self.vni, &self.subnets)?;
        }
        Ok(Self { dhcp, ..self })
    }

    /// Returns its number.
    pub fn vni(&self) -> Vni {
        self.vni
    }

    /// Returns its subnets, in the order of their addresses.
    pub fn subnets(&self) -> &[Subnet] {
        &self.subnets
    }

    /// Returns its MTU in bytes of an IP packet, if one is declared.
    pub fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// Returns what it tells its vnics by DHCP, if it does.
    pub fn dhcp(&self) -> Option<&Dhcp> {
        self.dhcp.as_ref()
    }

    /// Returns the gateways of its subnets, in their order.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().filter_map(Subnet::gateway)
    }

    /// Returns the subnet that `address` is in.
    pub fn subnet_of(&self, address: IpAddr) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.cidr.contains(address))
    }

    /// Returns this network with those of its subnets that `other` has, too. A subnet whose gateway
    /// is another one there has none. DHCP is as here, without routes that do not fit any more. If
    /// both have it, it stays on even if no such subnet is left: nobody else is to give addresses.
    pub fn in_common(&self, other: &Network) -> Self {
        let kept = |subnet: &Subnet| {
            let there = other.subnets.iter().find(|there| there.cidr == subnet.cidr)?;
            let same = there.gateway == subnet.gateway;
            Some(if same { *subnet } else { subnet.without_gateway() })
        };
        let subnets: Vec<Subnet> = self.subnets.iter().filter_map(kept).collect();
        let stays = |dhcp: &Dhcp| other.dhcp.is_some() || dhcp.check(self.vni, &subnets).is_ok();
        let dhcp = self.dhcp.as_ref().map(|dhcp| dhcp.in_subnets(&subnets)).filter(stays);
        Self { subnets, dhcp, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(block: &str, gateway: Option<&str>) -> String {
        Subnet::parse(block, gateway).unwrap_err().to_string()
    }

    fn network(subnets: &[&str], mtu: Option<u32>) -> Result<Network, MtuError> {
        let subnets = subnets.iter().map(|block| Subnet::parse(block, None).unwrap()).collect();
        Network::new(Vni::new(42).unwrap(), subnets, mtu)
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

    #[test]
    fn an_mtu_fits_its_families() {
        assert_eq!(network(&["10.0.0.0/24"], Some(68)).unwrap().mtu(), Some(68));
        assert_eq!(network(&[], Some(65_535)).unwrap().mtu(), Some(65_535));
        assert_eq!(network(&["fd00::/64"], Some(1280)).unwrap().mtu(), Some(1280));
        assert_eq!(network(&[], None).unwrap().mtu(), None);
        for mtu in [0, 67, 65_536, u32::MAX] {
            assert_eq!(network(&[], Some(mtu)), Err(MtuError::Range(mtu)));
        }
        let small = network(&["10.0.0.0/24", "fd00::/64"], Some(1279)).unwrap_err().to_string();
        let text = "MTU 1279 is too small for the IPv6 subnets of network 42: 1280 bytes at least";
        assert_eq!(small, text);
    }

    #[test]
    fn the_order_of_subnets_means_nothing() {
        let blocks = ["10.0.0.0/24", "10.0.1.0/24", "fd00::/64"];
        let one = network(&["fd00::/64", "10.0.1.0/24", "10.0.0.0/24"], None).unwrap();
        assert_eq!(one, network(&blocks, None).unwrap());
        let texts: Vec<String> = one.subnets().iter().map(Subnet::to_string).collect();
        assert_eq!(texts, blocks);
        let of = |text: &str| one.subnet_of(text.parse().unwrap()).map(Subnet::to_string);
        assert_eq!(of("10.0.1.7").as_deref(), Some("10.0.1.0/24"));
        assert_eq!(of("10.0.2.7"), None);
    }

    #[test]
    fn what_two_declarations_have_in_common() {
        let network = |subnets: &[(&str, Option<&str>)]| {
            let read = |(block, gateway): &(&str, Option<&str>)| Subnet::parse(block, *gateway);
            let subnets = subnets.iter().map(read).collect::<Result<_, _>>().unwrap();
            Network::new(Vni::new(42).unwrap(), subnets, None).unwrap()
        };
        let (a, b) = (("10.0.0.0/24", Some("10.0.0.1")), ("10.0.1.0/24", Some("10.0.1.1")));
        let other = ("10.0.1.0/24", Some("10.0.1.2"));
        let left = network(&[a, b]).in_common(&network(&[a, other, ("fd00::/64", None)]));
        assert_eq!(left, network(&[a, ("10.0.1.0/24", None)]));
        assert_eq!(left.gateways().count(), 1);
        assert_eq!(network(&[a]).in_common(&network(&[b])), network(&[]));
        let dhcp = Dhcp::new(None).unwrap();
        let leasing = network(&[a, b]).with_dhcp(Some(dhcp.clone())).unwrap();
        let left = leasing.in_common(&network(&[a]));
        assert_eq!(left, network(&[a]).with_dhcp(Some(dhcp.clone())).unwrap());
        assert_eq!(leasing.in_common(&network(&[other])), network(&[("10.0.1.0/24", None)]));
        // Where both lease addresses, there is no time in which nobody does.
        let routes = ["10.8.0.0/16=10.0.0.7", "10.9.0.0/16=10.0.1.7"];
        let routes = routes.map(|text| crate::DhcpRoute::parse(text).unwrap());
        let routed = dhcp.clone().with_routes(&routes).unwrap();
        let both = network(&[a, b]).with_dhcp(Some(routed)).unwrap();
        let then = network(&[a, other]).with_dhcp(Some(dhcp.clone())).unwrap();
        let left = both.in_common(&then);
        assert_eq!(left.subnets(), network(&[a, ("10.0.1.0/24", None)]).subnets());
        let first = dhcp.clone().with_routes(&routes[..1]).unwrap();
        assert_eq!(left.dhcp(), Some(&first), "one route fits");
        let then = network(&[other]).with_dhcp(Some(dhcp.clone())).unwrap();
        let left = both.in_common(&then);
        assert_eq!((left.gateways().count(), left.dhcp()), (0, Some(&dhcp)));
    }
}
