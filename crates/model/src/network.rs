//! Declared networks.

use crate::{
    dhcp::{Dhcp, DhcpError},
    subnet::Subnet,
    vni::Vni,
};
use std::net::IpAddr;

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
    public: bool,
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
        let of_ipv6 = subnets.iter().any(|subnet| subnet.cidr().address().is_ipv6());
        let checked = |mtu: u32| match u16::try_from(mtu) {
            Ok(fits) if mtu >= Self::LEAST_MTU => match of_ipv6 && mtu < Self::LEAST_MTU_OF_IPV6 {
                true => Err(MtuError::OfIpv6(mtu, vni)),
                false => Ok(fits),
            },
            _ => Err(MtuError::Range(mtu)),
        };
        let mtu = mtu.map(checked).transpose()?;
        subnets.sort_by_key(|subnet| (subnet.cidr().network(), subnet.cidr().mask_size()));
        Ok(Self { vni, subnets, mtu, dhcp: None, public: false })
    }

    /// Says whether the outside has routes to its IPv4 subnets, so that their addresses leave by
    /// externals untranslated.
    pub fn with_public(self, public: bool) -> Self {
        Self { public, ..self }
    }

    /// Has the network give its vnics their addresses by DHCP, or not. Fails if no subnet of IPv4
    /// has a gateway and none is of IPv6, or if a route leads by no machine of the former.
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

    /// Returns whether its IPv4 addresses leave by externals untranslated.
    pub fn is_public(&self) -> bool {
        self.public
    }

    /// Returns the gateways of its subnets, in their order.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.subnets.iter().filter_map(Subnet::gateway)
    }

    /// Returns the subnet that `address` is in.
    pub fn subnet_of(&self, address: IpAddr) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.cidr().contains(address))
    }

    /// Returns this network with those of its subnets that `other` has, too. A subnet whose gateway
    /// is another one there has none. DHCP is as here, without routes that do not fit any more. If
    /// both have it, it stays on even if no such subnet is left: nobody else is to give addresses.
    pub fn in_common(&self, other: &Network) -> Self {
        let kept = |subnet: &Subnet| {
            let there = other.subnets.iter().find(|there| there.cidr() == subnet.cidr())?;
            let same = there.gateway() == subnet.gateway();
            Some(if same { *subnet } else { subnet.without_gateway() })
        };
        let subnets: Vec<Subnet> = self.subnets.iter().filter_map(kept).collect();
        let stays = |dhcp: &Dhcp| other.dhcp.is_some() || dhcp.check(self.vni, &subnets).is_ok();
        let dhcp = self.dhcp.as_ref().map(|dhcp| dhcp.in_subnets(&subnets)).filter(stays);
        Self { subnets, dhcp, public: self.public && other.public, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(subnets: &[&str], mtu: Option<u32>) -> Result<Network, MtuError> {
        let subnets = subnets.iter().map(|block| Subnet::parse(block, None).unwrap()).collect();
        Network::new(Vni::new(42).unwrap(), subnets, mtu)
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
