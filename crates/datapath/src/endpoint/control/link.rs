//! The endpoint's place on its link: its addresses, the addresses it reaches directly, and the
//! frames of its questions and answers (RFC 826, RFC 5227, RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use butterfly_packet::{Mac, arp, build, icmp, ipv6};

/// The hop limit of neighbour discovery. With any other, a router may have passed the frame on (RFC
/// 4861, 3.1).
pub(super) const ND_HOP_LIMIT: u8 = 255;
/// Flags of an advertisement (RFC 4861, 4.4).
pub(super) const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// The endpoint on its link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub mac: Mac,
    pub endpoint: IpAddr,
    prefix: Option<u8>,
    gateways: Vec<IpAddr>,
}

impl Link {
    /// Makes a link. Leaves out gateways of the other IP version.
    pub fn new(mac: Mac, endpoint: IpAddr, prefix: Option<u8>, gateways: &[IpAddr]) -> Link {
        let gateways = gateways
            .iter()
            .copied()
            .filter(|gateway| gateway.is_ipv4() == endpoint.is_ipv4())
            .collect();
        Link { mac, endpoint, prefix, gateways }
    }

    /// Returns whether frames can be sent to this address at all.
    pub fn can_be_peer(&self, peer: IpAddr) -> bool {
        peer != self.endpoint
            && match (self.endpoint, peer) {
                (IpAddr::V4(_), IpAddr::V4(peer)) => self.is_host_v4(peer),
                (IpAddr::V6(_), IpAddr::V6(peer)) => is_host_v6(peer),
                _ => false,
            }
    }

    /// Returns whether an IPv4 address can be one host's (RFC 1122, 3.2.1.3).
    pub fn is_host_v4(&self, ip: Ipv4Addr) -> bool {
        !matches!(ip.octets(), [0 | 127 | 224.., ..]) && !self.is_broadcast(ip)
    }

    /// Returns whether `ip` is the last address of our network, if that is more than a pair of
    /// hosts (RFC 3021).
    fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        match (self.endpoint, self.prefix) {
            (IpAddr::V4(_), Some(len @ 0..31)) => {
                let hosts = u32::MAX.checked_shr(len.into()).unwrap_or(0);
                self.is_in_prefix(ip.into()) && ip.to_bits() & hosts == hosts
            }
            _ => false,
        }
    }

    fn is_in_prefix(&self, ip: IpAddr) -> bool {
        let Some(len) = self.prefix.map(u32::from) else { return false };
        match (self.endpoint, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).leading_zeros() >= len.min(32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).leading_zeros() >= len.min(128)
            }
            _ => false,
        }
    }

    /// Returns the address whose link address frames to `peer` need. This is the peer itself if it
    /// is on the link, or if there is no gateway. Otherwise it is the first gateway that is not
    /// `known_silent`.
    pub fn next_hop(&self, peer: IpAddr, known_silent: impl Fn(IpAddr) -> bool) -> IpAddr {
        let link_local = matches!(peer, IpAddr::V6(peer) if peer.is_unicast_link_local());
        if link_local || self.is_in_prefix(peer) {
            return peer;
        }
        let answering = self.gateways.iter().find(|gateway| !known_silent(**gateway));
        *answering.or(self.gateways.first()).unwrap_or(&peer)
    }

    /// Returns whether an address is one of the gateways.
    pub fn is_gateway(&self, hop: IpAddr) -> bool {
        self.gateways.contains(&hop)
    }

    /// Returns the question for the link address of `target`: to all stations that may have it, or
    /// to `station` alone.
    pub fn who_has(&self, target: IpAddr, station: Option<Mac>) -> Vec<u8> {
        match (self.endpoint, target) {
            (IpAddr::V4(me), IpAddr::V4(target)) => {
                build::ethernet(self.mac, station.unwrap_or(Mac::BROADCAST)).arp_request(me, target)
            }
            (me, target) => {
                let (me, target) = (six(me), six(target));
                let group = ipv6::solicited_node(target);
                let (mac, destination) =
                    station.map_or((Mac::of_group_v6(group), group), |mac| (mac, target));
                let body = self.discovery(target, icmp::OPTION_SOURCE_LINK_ADDRESS);
                build::ethernet(self.mac, mac).ipv6(me, destination).ttl(ND_HOP_LIMIT).icmp(
                    icmp::v6::NEIGHBOUR_SOLICITATION,
                    0,
                    0,
                    &body,
                )
            }
        }
    }

    /// Returns the announcement "I have the endpoint's address", to all stations (RFC 5227, 2.3;
    /// RFC 4861, 7.2.6).
    pub fn announcement(&self) -> Vec<u8> {
        match self.endpoint {
            IpAddr::V4(me) => build::ethernet(self.mac, Mac::BROADCAST).arp_request(me, me),
            IpAddr::V6(me) => {
                self.advertisement(me, Mac::of_group_v6(ipv6::ALL_NODES), ipv6::ALL_NODES, 0)
            }
        }
    }

    /// Returns the ARP reply "I have it" to the station that asked.
    pub fn arp_reply(&self, me: Ipv4Addr, asker: (Mac, Ipv4Addr)) -> Vec<u8> {
        build::ethernet(self.mac, asker.0).arp(arp::REPLY, (self.mac, me), asker)
    }

    /// Returns the neighbour advertisement "I have it".
    pub fn advertisement(
        &self,
        me: Ipv6Addr,
        mac: Mac,
        destination: Ipv6Addr,
        flags: u32,
    ) -> Vec<u8> {
        let body = self.discovery(me, icmp::OPTION_TARGET_LINK_ADDRESS);
        build::ethernet(self.mac, mac).ipv6(me, destination).ttl(ND_HOP_LIMIT).icmp(
            icmp::v6::NEIGHBOUR_ADVERTISEMENT,
            0,
            flags | OVERRIDE,
            &body,
        )
    }

    /// Returns a target, and our link address as an option.
    fn discovery(&self, target: Ipv6Addr, option: u8) -> Vec<u8> {
        [&target.octets()[..], &[option, 1], &self.mac.0].concat()
    }
}

/// Returns whether an IPv6 address can be one host's.
pub(super) fn is_host_v6(ip: Ipv6Addr) -> bool {
    !ip.is_multicast() && !ip.is_unspecified() && !ip.is_loopback() && ip.to_ipv4_mapped().is_none()
}

fn six(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn link(endpoint: &str, prefix: Option<u8>, gateways: &[&str]) -> Link {
        let gateways: Vec<IpAddr> = gateways.iter().map(|text| ip(text)).collect();
        Link::new(MAC, ip(endpoint), prefix, &gateways)
    }

    #[test]
    fn next_hops() {
        let both = ["10.1.0.254", "fd00::ff"];
        for (endpoint, prefix, gateways, peer, hop) in [
            ("10.1.0.1", Some(24), &both[..], "10.1.0.2", "10.1.0.2"),
            ("10.1.0.1", Some(24), &both, "10.1.1.2", "10.1.0.254"),
            ("10.1.0.1", Some(0), &both, "192.0.2.1", "192.0.2.1"),
            ("10.1.0.1", Some(32), &both, "10.1.0.2", "10.1.0.254"),
            ("10.1.0.1", Some(200), &both, "10.1.0.2", "10.1.0.254"),
            ("10.1.0.1", None, &both, "10.1.0.2", "10.1.0.254"),
            ("10.1.0.1", None, &both, "10.1.0.254", "10.1.0.254"),
            ("10.1.0.1", Some(24), &both[1..], "10.1.1.2", "10.1.1.2"),
            ("10.1.0.1", None, &[], "192.0.2.1", "192.0.2.1"),
            ("fd00::1", Some(64), &both, "fd00::2", "fd00::2"),
            ("fd00::1", Some(64), &both, "fd01::2", "fd00::ff"),
            ("fd00::1", Some(64), &both, "fe80::2", "fe80::2"),
            ("fd00::1", Some(128), &both[..1], "fd01::2", "fd01::2"),
        ] {
            let found = link(endpoint, prefix, gateways).next_hop(ip(peer), |_| false);
            assert_eq!(found, ip(hop), "{endpoint}/{prefix:?} to {peer}");
        }
        // A second gateway takes over, and when both are silent the first is asked again.
        let link = link("10.1.0.1", Some(24), &["10.1.0.254", "10.1.0.253"]);
        assert_eq!(
            link.next_hop(ip("10.2.0.1"), |gateway| gateway == ip("10.1.0.254")),
            ip("10.1.0.253")
        );
        assert_eq!(link.next_hop(ip("10.2.0.1"), |_| true), ip("10.1.0.254"));
    }

    #[test]
    fn peers_are_single_hosts_of_the_same_family() {
        let v4 = link("10.1.0.1", Some(24), &[]);
        assert!(
            ["10.1.0.2", "192.0.2.255", "10.1.1.255"].iter().all(|peer| v4.can_be_peer(ip(peer)))
        );
        for peer in [
            "10.1.0.1",
            "10.1.0.255",
            "255.255.255.255",
            "0.0.0.0",
            "127.0.0.1",
            "230.0.0.1",
            "fd00::1",
        ] {
            assert!(!v4.can_be_peer(ip(peer)), "{peer}");
        }
        assert!(link("10.1.0.1", Some(31), &[]).can_be_peer(ip("10.1.0.0")));
        assert!(!link("10.1.0.1", Some(0), &[]).can_be_peer(ip("255.255.255.255")));
        let v6 = link("fd00::1", None, &[]);
        assert!(["fd00::2", "fe80::1"].iter().all(|peer| v6.can_be_peer(ip(peer))));
        for peer in ["fd00::1", "::", "::1", "ff02::1", "::ffff:10.0.0.1", "10.1.0.2"] {
            assert!(!v6.can_be_peer(ip(peer)), "{peer}");
        }
    }

    #[test]
    fn questions_byte_for_byte() {
        let v4 = link("10.1.0.1", None, &[]);
        let everyone = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0xbf, 0, 0, 0, 1, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, 2, 0xbf, 0, 0, 0, 1, 10, 1, 0, 1, 0, 0, 0, 0, 0, 0, 10, 1, 0,
            2,
        ];
        assert_eq!(v4.who_has(ip("10.1.0.2"), None), everyone);
        let one = v4.who_has(ip("10.1.0.2"), Some(Mac([2, 0, 0, 0, 0, 9])));
        assert_eq!((&one[..6], &one[6..]), (&[2, 0, 0, 0, 0, 9][..], &everyone[6..]));
        assert_eq!(v4.announcement()[38..], [10, 1, 0, 1]);

        let v6 = link("fd00::1", None, &[]);
        // Pseudo header: fd00+0001+ff02+0001+ff12+3456+0020+003a = 3_2fc6; message:
        // 8700+fd00+0012+3456+0101+02bf+0000+0001 = 1_bc29; sum 4_ebef -> ebf3, complement
        // 140c.
        let everyone = [
            0x33, 0x33, 0xff, 0x12, 0x34, 0x56, 2, 0xbf, 0, 0, 0, 1, 0x86, 0xdd, // Ethernet
            0x60, 0, 0, 0, 0, 32, 58, 255, // IPv6
            0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // source
            0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0x12, 0x34, 0x56, // destination
            135, 0, 0x14, 0x0c, 0, 0, 0, 0, // solicitation
            0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, // target
            1, 1, 2, 0xbf, 0, 0, 0, 1, // source link-layer address
        ];
        assert_eq!(v6.who_has(ip("fd00::12:3456"), None), everyone);
        let one = v6.who_has(ip("fd00::12:3456"), Some(Mac([2, 0, 0, 0, 0, 9])));
        assert_eq!((&one[..6], &one[38..54]), (&[2, 0, 0, 0, 0, 9][..], &everyone[62..78]));
        let announcement = v6.announcement();
        assert_eq!(announcement[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!((announcement[54], &announcement[58..62]), (136, &[0x20, 0, 0, 0][..]));
    }
}
