//! Leases: the IPv4 addresses that a network gives its vnics by DHCP, and what it tells with them.
//!
//! All of it is made when something is declared. Nothing is noted about a lease: every host and
//! every process gives a vnic the same one.

use std::net::Ipv4Addr;

use butterfly_model as model;
use butterfly_packet::{
    Mac,
    dhcp::{Terms, classless_route, search_list},
};

use crate::engine::mac::{address, number};
use crate::ip::mapped;
use crate::world::routing::{Block, Gateway};

/// A subnet whose addresses are leased.
#[derive(Debug)]
pub(crate) struct LeasedSubnet {
    block: Block,
    gateway: Ipv4Addr,
    /// The MAC address from which its answers come.
    pub mac: Mac,
    mask: Ipv4Addr,
    broadcast: Option<Ipv4Addr>,
    /// Routes in the form of [`Terms::routes`].
    routes: Box<[u8]>,
}

/// DHCP of a network.
#[derive(Debug)]
pub(crate) struct Leasing {
    /// In the order of their addresses. There is none while gateways change: nothing is leased
    /// then, and other servers are not heard either.
    subnets: Box<[LeasedSubnet]>,
    lease: u32,
    mtu: Option<u16>,
    dns: Box<[u8]>,
    search: Box<[u8]>,
    domain: Box<[u8]>,
    next_server: Ipv4Addr,
    boot_file: Box<[u8]>,
}

impl Leasing {
    /// Makes the DHCP of a network that these gateways route for, if it is declared.
    pub fn new(network: &model::Network, gateways: &[Gateway]) -> Option<Leasing> {
        let dhcp = network.dhcp()?;
        let is_taken = |mac| gateways.iter().any(|gateway| gateway.mac == number(Mac(mac)));
        let service = Mac(model::service_mac(network.vni(), is_taken));
        let subnet = |subnet: &model::Subnet| {
            let std::net::IpAddr::V4(gateway) = subnet.gateway()? else { return None };
            let router = gateways.iter().find(|it| it.addresses.contains(&mapped(gateway)));
            let cidr = subnet.cidr();
            let beyond = u32::MAX.checked_shr(cidr.mask_size().into()).unwrap_or(0);
            let std::net::IpAddr::V4(first) = cidr.network() else { return None };
            let last = Ipv4Addr::from(first.to_bits() | beyond);
            Some(LeasedSubnet {
                block: Block::new(&cidr),
                gateway,
                mac: router.map_or(service, |router| address(router.mac)),
                mask: (!beyond).into(),
                broadcast: (beyond > 1).then_some(last),
                routes: routes(dhcp, subnet, gateway),
            })
        };
        let subnets: Box<[LeasedSubnet]> = network.subnets().iter().filter_map(subnet).collect();
        let search = dhcp.search();
        Some(Leasing {
            subnets,
            lease: dhcp.lease(),
            mtu: network.mtu(),
            dns: dhcp.dns().iter().filter_map(four).flat_map(|ip| ip.octets()).collect(),
            search: search_list(search.iter().map(String::as_str)).unwrap_or_default().into(),
            domain: search.first().map(|domain| domain.as_bytes().into()).unwrap_or_default(),
            next_server: dhcp.next_server().unwrap_or(Ipv4Addr::UNSPECIFIED),
            boot_file: dhcp.boot_file().unwrap_or_default().as_bytes().into(),
        })
    }

    /// Returns the subnet in which an address may be leased: no gateway's, and no network's own or
    /// broadcast.
    pub fn subnet_of(&self, address: Ipv4Addr) -> Option<&LeasedSubnet> {
        let number = mapped(address);
        let subnet = self.subnets.iter().find(|subnet| subnet.block.has(number))?;
        let free = !subnet.block.is_nobodys(number) && subnet.gateway != address;
        free.then_some(subnet)
    }

    /// Returns the subnet whose gateway this is: the server of its leases.
    pub fn by_server(&self, server: Ipv4Addr) -> Option<&LeasedSubnet> {
        self.subnets.iter().find(|subnet| subnet.gateway == server)
    }

    /// Returns the first subnet.
    pub fn first(&self) -> Option<&LeasedSubnet> {
        self.subnets.first()
    }

    /// Returns the terms of a lease in a subnet.
    pub fn terms<'a>(&'a self, subnet: &'a LeasedSubnet) -> Terms<'a> {
        Terms {
            gateway: subnet.gateway,
            mask: subnet.mask,
            broadcast: subnet.broadcast,
            lease: self.lease,
            mtu: self.mtu,
            dns: &self.dns,
            search: &self.search,
            domain: &self.domain,
            routes: &subnet.routes,
            next_server: self.next_server,
            boot_file: &self.boot_file,
        }
    }
}

fn four(address: &std::net::IpAddr) -> Option<Ipv4Addr> {
    match address {
        std::net::IpAddr::V4(ip) => Some(*ip),
        std::net::IpAddr::V6(_) => None,
    }
}

/// Returns the declared routes by machines of a subnet, and the default route behind them; nothing
/// if there are none.
fn routes(dhcp: &model::Dhcp, subnet: &model::Subnet, gateway: Ipv4Addr) -> Box<[u8]> {
    let mut routes = Vec::new();
    let mut has_default = false;
    for route in dhcp.routes().iter().filter(|route| subnet.cidr().contains(route.via())) {
        let (std::net::IpAddr::V4(to), std::net::IpAddr::V4(via)) =
            (route.to().network(), route.via())
        else {
            continue;
        };
        let length = route.to().mask_size();
        has_default |= length == 0;
        classless_route(&mut routes, (to, length), via);
    }
    if !routes.is_empty() && !has_default {
        classless_route(&mut routes, (Ipv4Addr::UNSPECIFIED, 0), gateway);
    }
    routes.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::world::routing::Joined;

    /// A router whose id has the hash from which the network would answer.
    #[test]
    fn answers_without_a_router_come_from_no_router_of_the_network() {
        let vni = model::Vni::new(42).unwrap();
        let subnet = model::Subnet::parse("10.0.0.0/24", Some("10.0.0.1")).unwrap();
        let network = model::Network::new(vni, vec![subnet], None).unwrap();
        let network = network.with_dhcp(Some(model::Dhcp::new(None).unwrap())).unwrap();
        let router = model::Router::new(model::RouterId::new("r").unwrap());
        let joined = Arc::new(Joined::new(&router, |_| None));
        let with = |macs: &[[u8; 6]]| {
            let gateway = |mac: &[u8; 6]| Gateway {
                mac: number(Mac(*mac)),
                addresses: [mapped([10, 0, 0, 2].into())].into(),
                router: joined.clone(),
            };
            let gateways: Vec<Gateway> = macs.iter().map(gateway).collect();
            Leasing::new(&network, &gateways).unwrap().first().unwrap().mac.0
        };
        let own = with(&[]);
        assert_eq!(own, model::service_mac(vni, |_| false));
        let second = with(&[own]);
        let third = with(&[own, second]);
        assert!(second != own && third != own && third != second);
        assert!([second, third].into_iter().all(model::is_reserved_mac));
        assert_eq!(with(&[[0xb2, 0xf0, 0, 0, 0, 1]]), own, "another router is in nobody's way");
    }
}
