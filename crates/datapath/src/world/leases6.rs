//! Leases of IPv6: what a network gives its vnics by DHCPv6, and says in advertisements.
//!
//! All of it is made when something is declared, as [`crate::world::leases`] is. Where nothing is
//! leased, but a router has an address of IPv6, it is there as well, and says nothing: machines may
//! know such a router by its link-local address, and look whether that is there.

use std::{
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use arrayvec::ArrayVec;
use butterfly_model as model;
use butterfly_packet::{
    Mac,
    advert::{AdvertTerms, MAX_OWN, OwnBlock, OwnPart, message, withdraw},
    dhcp::search_list,
    dhcp6::Terms6,
};

use crate::engine::mac::{address, number};
use crate::ip::{Address, discovery::link_local, is_v4};
use crate::world::rules::number as number_of_ip;

// An advertisement has room for all prefixes of a vnic.
const _: () = assert!(MAX_OWN == model::MAX_PREFIXES);

/// Most addresses that a vnic gets.
pub(crate) const MAX_LEASED: usize = 8;
/// Most routers that are told of in a network.
const MAX_ROUTERS: usize = 4;
/// Seconds for which a router is one: three times as long as the longest time between two
/// advertisements (RFC 4861, 6.2.1). Servers and domains hold as long (RFC 8106, 5.1).
const LIFETIME: u16 = 1800;
/// Seconds for which blocks are of the network.
pub(crate) const VALID: u32 = 86_400;
const PREFERRED: u32 = 14_400;

/// Most blocks that a vnic alone is told of, with those that are taken back.
const MAX_OWN_BLOCKS: usize = MAX_OWN + 8;

/// Part of advertisements that is for one vnic: the prefixes in which its machine makes up
/// addresses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OwnPrefixes {
    pub blocks: ArrayVec<OwnBlock, MAX_OWN_BLOCKS>,
    /// True if it gets addresses by DHCPv6, or has none of these.
    pub managed: bool,
}

impl OwnPrefixes {
    /// Returns that of a vnic that is told of none.
    pub fn none() -> OwnPrefixes {
        OwnPrefixes { blocks: ArrayVec::new(), managed: true }
    }

    /// Returns the part of the message.
    pub fn part(&self) -> OwnPart<'_> {
        OwnPart { blocks: &self.blocks, managed: self.managed }
    }

    /// Adds prefixes that are taken back, as far as there is room.
    pub fn take_back(&mut self, prefixes: impl IntoIterator<Item = Ipv6Addr>) {
        for prefix in prefixes {
            let gone = OwnBlock { prefix, valid: 0, preferred: 0 };
            if self.blocks.try_push(gone).is_err() {
                return;
            }
        }
    }
}

/// Advertisement of a router, or of a network without one.
#[derive(Debug)]
pub(crate) struct RouterAdvert {
    /// MAC address and link-local address of its sender.
    pub from: (Mac, Ipv6Addr),
    /// Seconds for which it is a router; 0 if it is none.
    pub lifetime: u16,
    /// The message, without its sum.
    pub message: Box<[u8]>,
}

/// DHCPv6 and advertisements of a network whose routers have link-local addresses.
#[derive(Debug)]
pub(crate) struct Leasing6 {
    /// In the order of their addresses. None overlaps another.
    subnets: Box<[RangeInclusive<Address>]>,
    /// Addresses of gateways, which no vnic gets.
    gateways: Box<[Address]>,
    lease: u32,
    dns: Box<[u8]>,
    search: Box<[u8]>,
    /// The first is of the server. None: the network leases nothing and tells nothing.
    adverts: ArrayVec<RouterAdvert, MAX_ROUTERS>,
    /// Blocks that are told to be of the link, and their lengths.
    prefixes: Box<[(Ipv6Addr, u8)]>,
}

impl RouterAdvert {
    /// Returns the same, which says of these blocks that they are of the link no longer.
    pub fn without(&self, gone: &[(Ipv6Addr, u8)]) -> RouterAdvert {
        let mut message = self.message.to_vec();
        withdraw(&mut message, gone.iter().copied());
        RouterAdvert { from: self.from, lifetime: self.lifetime, message: message.into() }
    }

    /// Makes the last one of a router that left: it is none any more (RFC 4861, 6.2.5).
    pub fn farewell(mac: Mac) -> RouterAdvert {
        let from = (mac, link_local(mac).into());
        RouterAdvert { from, lifetime: 0, message: message(mac, &AdvertTerms::NONE).into() }
    }
}

impl Leasing6 {
    /// Makes what a network gives that these routers join, each with its MAC address, as
    /// [`number`], and its addresses there. It leases if DHCP and a subnet of IPv6 are declared;
    /// else it is quiet, and `None` if no router has an address of IPv6.
    pub fn new(network: &model::Network, gateways: &[(u64, &[Address])]) -> Option<Leasing6> {
        let of_six = || network.subnets().iter().filter(|it| it.cidr().network().is_ipv6());
        let mut subnets: Box<[_]> = of_six().map(|subnet| block(&subnet.cidr())).collect();
        subnets.sort_unstable_by_key(|block| *block.start());
        let speaks = |(_, own): &&(u64, &[Address])| own.iter().any(|it| !is_v4(*it));
        let Some(dhcp) = network.dhcp().filter(|_| !subnets.is_empty()) else {
            return gateways.iter().find(speaks).map(|_| Leasing6::quiet());
        };
        let declared: Vec<Address> =
            of_six().filter_map(model::Subnet::gateway).map(number_of_ip).collect();
        let has_any =
            |(_, own): &(u64, &[Address]), of: &[Address]| of.iter().any(|it| own.contains(it));
        // Those that the subnets name come before others.
        let named = gateways.iter().any(|gateway| has_any(gateway, &declared));
        let routers = gateways.iter().filter(speaks);
        let routers = routers.filter(|gateway| !named || has_any(gateway, &declared));
        let servers: Vec<Ipv6Addr> = dhcp.dns().iter().filter_map(six).collect();
        let domains = dhcp.search().iter().map(String::as_str);
        let search: Box<[u8]> = search_list(domains).unwrap_or_default().into();
        let prefixes: Vec<(Ipv6Addr, u8)> = of_six()
            .map(model::Subnet::cidr)
            .filter_map(|cidr| Some((six(&cidr.network())?, cidr.mask_size())))
            .collect();
        let advert = |mac: Mac, lifetime| {
            let terms = AdvertTerms {
                lifetime,
                mtu: network.mtu(),
                prefixes: &prefixes,
                valid: VALID,
                preferred: PREFERRED,
                dns: &servers,
                search: &search,
                told: LIFETIME.into(),
            };
            RouterAdvert {
                from: (mac, link_local(mac).into()),
                lifetime,
                message: message(mac, &terms).into(),
            }
        };
        let mut adverts: ArrayVec<RouterAdvert, MAX_ROUTERS> =
            routers.take(MAX_ROUTERS).map(|router| advert(address(router.0), LIFETIME)).collect();
        if adverts.is_empty() {
            let is_taken = |mac| gateways.iter().any(|gateway| gateway.0 == number(Mac(mac)));
            adverts.push(advert(Mac(model::service_mac(network.vni(), is_taken)), 0));
        }
        let own = gateways.iter().flat_map(|gateway| gateway.1.iter().copied());
        Some(Leasing6 {
            subnets,
            gateways: own.chain(declared).collect(),
            lease: dhcp.lease(),
            dns: servers.iter().flat_map(Ipv6Addr::octets).collect(),
            search,
            adverts,
            prefixes: prefixes.into(),
        })
    }

    /// Makes that of a network that leases nothing and tells nothing.
    fn quiet() -> Leasing6 {
        Leasing6 {
            subnets: Box::default(),
            gateways: Box::default(),
            lease: 0,
            dns: Box::default(),
            search: Box::default(),
            adverts: ArrayVec::new(),
            prefixes: Box::default(),
        }
    }

    /// Returns whether the network leases addresses and tells of its routers.
    pub fn leases(&self) -> bool {
        !self.adverts.is_empty()
    }

    /// Returns the advertisements of its routers, or the one that says that there is none.
    pub fn adverts(&self) -> &[RouterAdvert] {
        &self.adverts
    }

    /// Returns the MAC addresses of the routers of which it tells.
    pub fn routers(&self) -> impl Iterator<Item = Mac> {
        self.adverts.iter().filter(|advert| advert.lifetime > 0).map(|advert| advert.from.0)
    }

    /// Returns the blocks that it tells to be of the link, and their lengths.
    pub fn prefixes(&self) -> &[(Ipv6Addr, u8)] {
        &self.prefixes
    }

    /// Returns what a vnic alone is told, of its addresses and the upper halves of its prefixes:
    /// those that a subnet covers.
    pub fn own(&self, own: &[Address], prefixes: &[u64]) -> OwnPrefixes {
        let is_covered = |first: &Address| {
            let last = first | Address::from(u64::MAX);
            self.subnets.iter().any(|block| block.contains(first) && block.contains(&last))
        };
        let firsts = prefixes.iter().map(|upper| Address::from(*upper) << 64);
        let block =
            |first: Address| OwnBlock { prefix: first.into(), valid: VALID, preferred: PREFERRED };
        let mut told = OwnPrefixes::none();
        told.blocks.extend(firsts.filter(is_covered).take(MAX_OWN).map(block));
        told.managed = told.blocks.is_empty() || self.leases_of(own).next().is_some();
        told
    }

    /// Returns MAC address and link-local address of the server.
    pub fn server(&self) -> Option<(Mac, Ipv6Addr)> {
        self.adverts.first().map(|advert| advert.from)
    }

    /// Returns those of a vnic's addresses, sorted, that it gets: in a subnet, and no gateway's.
    pub fn leased(&self, own: &[Address]) -> ArrayVec<Ipv6Addr, MAX_LEASED> {
        self.leases_of(own).take(MAX_LEASED).map(Ipv6Addr::from).collect()
    }

    /// Looks only at those in subnets, so that a few of many are found at once.
    fn leases_of<'a>(&'a self, own: &'a [Address]) -> impl Iterator<Item = Address> + 'a {
        let within = |block: &'a RangeInclusive<Address>| {
            let from = own.partition_point(|address| address < block.start());
            let in_block = own.get(from..).unwrap_or_default().iter().copied();
            in_block.take_while(|address| block.contains(address))
        };
        self.subnets.iter().flat_map(within).filter(|address| !self.gateways.contains(address))
    }

    /// Returns the terms of an answer to a client with this MAC address and link-local address.
    pub fn terms<'a>(
        &'a self,
        from: (Mac, Ipv6Addr),
        to: (Mac, Ipv6Addr),
        addresses: &'a [Ipv6Addr],
    ) -> Terms6<'a> {
        let Leasing6 { lease, dns, search, .. } = self;
        Terms6 { from, to, addresses, lease: *lease, dns, search }
    }
}

/// Returns the addresses of a block of IPv6.
fn block(cidr: &model::Cidr) -> RangeInclusive<Address> {
    let first = number_of_ip(cidr.network());
    first..=first | Address::MAX.checked_shr(cidr.mask_size().into()).unwrap_or(0)
}

fn six(address: &IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(ip) => Some(*ip),
        IpAddr::V4(_) => None,
    }
}
