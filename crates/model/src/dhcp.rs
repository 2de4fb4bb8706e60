//! DHCP of a network: what its vnics learn beside their addresses.

use crate::{
    address::{AddressError, canonical, parse_ip},
    cidr::{Cidr, CidrError},
    subnet::Subnet,
    vni::Vni,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

/// Reason why a declaration of DHCP is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DhcpError {
    /// A lease that is too short, or too long.
    #[error("a lease of {0} seconds is out of range: {least} to {most}", least = Dhcp::LEAST_LEASE, most = Dhcp::MOST_LEASE)]
    Lease(u32),
    /// An address that is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A block that is none.
    #[error(transparent)]
    Cidr(#[from] CidrError),
    /// An address that no server can have, or of IPv6 for one from which machines boot.
    #[error(
        "{} cannot be a {what}: that has the address of a machine, of either family if it is a name server, of IPv4 if machines boot from it; choose another", canonical(*.address)
    )]
    NotAServer {
        /// The address.
        address: IpAddr,
        /// Its use.
        what: &'static str,
    },
    /// More of something than there can be.
    #[error("more than {1} {0}: DHCP has no room for them; leave some out")]
    TooMany(&'static str, usize),
    /// The same twice.
    #[error("{0} is there twice; leave one of them out")]
    Twice(String),
    /// A domain that is none.
    #[error(
        "\"{0}\" is not a domain; write labels of letters, digits and hyphens with dots between them, as example.com"
    )]
    Domain(String),
    /// Domains that find no room in an option.
    #[error("the domains have more than 255 bytes together: leave some out")]
    Domains,
    /// A name of a file that finds no room, or has other characters.
    #[error("\"{0}\" is not the name of a boot file: 1 to 127 characters of ASCII without spaces")]
    BootFile(String),
    /// A text that is no route.
    #[error("\"{0}\" is not a route; write CIDR=VIA, as 10.9.0.0/16=10.0.0.7")]
    Route(String),
    /// A route of IPv6.
    #[error("the route {0} is not of IPv4, as DHCP of IPv4 has only those; leave it out")]
    Family(DhcpRoute),
    /// A route to a block with bits beyond its length.
    #[error("the route {given} has bits beyond the length of its block; write {meant}")]
    HostBits {
        /// The route as declared.
        given: DhcpRoute,
        /// The route without those bits.
        meant: DhcpRoute,
    },
    /// A route by an address that is no machine's in a subnet with a gateway.
    #[error(
        "the route {0} leads by an address that no machine of a subnet with a gateway has; choose an address of one of the subnets"
    )]
    ViaOutside(DhcpRoute),
    /// No subnet in which there is something to lease.
    #[error(
        "DHCP of network {0} needs an IPv4 subnet with a gateway, from whose address it answers, or an IPv6 subnet: declare one (--subnet, --gateway)"
    )]
    NeedsGateway(Vni),
    /// Something that only DHCP tells.
    #[error(
        "name servers and domains of network {0} are told by DHCP: turn it on (--dhcp), or leave them out"
    )]
    NotTold(Vni),
}

/// A route that machines get: to a block, by a machine of their subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpRoute {
    to: Cidr,
    via: IpAddr,
}

impl DhcpRoute {
    /// Makes a route. Fails if it is not of IPv4, or the block has bits beyond its length.
    pub fn new(to: Cidr, via: IpAddr) -> Result<Self, DhcpError> {
        let route = Self { to, via };
        if !to.address().is_ipv4() || !via.is_ipv4() {
            return Err(DhcpError::Family(route));
        }
        match to.address() == to.network() {
            true => Ok(route),
            false => {
                let meant = Self { to: to.without_host_bits(), via };
                Err(DhcpError::HostBits { given: route, meant })
            }
        }
    }

    /// Reads a route of a text, as `10.9.0.0/16=10.0.0.7`.
    pub fn parse(text: &str) -> Result<Self, DhcpError> {
        let form = || DhcpError::Route(text.to_owned());
        let (block, via) = text.split_once('=').ok_or_else(form)?;
        let (address, length) = block.split_once('/').ok_or_else(form)?;
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let mask_size = length.parse().ok().filter(|_| digits).ok_or_else(form)?;
        Self::new(Cidr::new(address, mask_size)?, parse_ip(via)?)
    }

    /// Returns the block that it leads to.
    pub fn to(&self) -> Cidr {
        self.to
    }

    /// Returns the machine that it leads by.
    pub fn via(&self) -> IpAddr {
        self.via
    }
}

impl fmt::Display for DhcpRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.to, canonical(self.via))
    }
}

/// DHCP of a network, as declared.
///
/// ```
/// use butterfly_model::Dhcp;
/// let dhcp = Dhcp::new(None)?.with_dns(&["9.9.9.9".parse().unwrap()])?;
/// assert_eq!(dhcp.lease(), 3600);
/// assert!(Dhcp::new(Some(5)).is_err());
/// # Ok::<(), butterfly_model::DhcpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dhcp {
    lease: u32,
    dns: Vec<IpAddr>,
    search: Vec<String>,
    next_server: Option<Ipv4Addr>,
    boot_file: Option<String>,
    routes: Vec<DhcpRoute>,
}

impl Dhcp {
    /// Shortest lease in seconds.
    pub const LEAST_LEASE: u32 = 60;
    /// Longest lease in seconds: a year.
    pub const MOST_LEASE: u32 = 31_536_000;
    /// Seconds of a lease of which nothing else is declared.
    pub const LEASE: u32 = 3600;
    /// Most name servers.
    pub const MOST_DNS: usize = 8;
    /// Most routes.
    pub const MOST_ROUTES: usize = 16;

    /// Makes one that leases addresses for so many seconds, and tells nothing else.
    pub fn new(lease: Option<u32>) -> Result<Self, DhcpError> {
        let lease = lease.unwrap_or(Self::LEASE);
        if !(Self::LEAST_LEASE..=Self::MOST_LEASE).contains(&lease) {
            return Err(DhcpError::Lease(lease));
        }
        let (dns, search, routes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { lease, dns, search, next_server: None, boot_file: None, routes })
    }

    /// Adds name servers.
    pub fn with_dns(mut self, servers: &[IpAddr]) -> Result<Self, DhcpError> {
        if servers.len() > Self::MOST_DNS {
            return Err(DhcpError::TooMany("name servers", Self::MOST_DNS));
        }
        for server in servers {
            let address = name_server(*server)?;
            if self.dns.contains(&address) {
                return Err(DhcpError::Twice(format!("name server {}", canonical(address))));
            }
            self.dns.push(address);
        }
        Ok(self)
    }

    /// Adds domains in which machines look for names. Looks at no more of them than find room.
    pub fn with_search<S: AsRef<str>>(mut self, domains: &[S]) -> Result<Self, DhcpError> {
        // Each label has a length before it, and each domain an end.
        let room_for = |domain: &str| domain.len() + 2;
        let mut len: usize = self.search.iter().map(|domain| room_for(domain)).sum();
        for domain in domains.iter().map(AsRef::as_ref) {
            if !is_domain(domain) {
                return Err(DhcpError::Domain(domain.to_owned()));
            }
            len += room_for(domain);
            if len > 255 {
                return Err(DhcpError::Domains);
            }
            if self.search.iter().any(|other| other.eq_ignore_ascii_case(domain)) {
                return Err(DhcpError::Twice(format!("domain {domain}")));
            }
            self.search.push(domain.to_owned());
        }
        Ok(self)
    }

    /// Sets the server from which machines boot, and the file that they load there.
    pub fn with_boot(
        mut self,
        next_server: Option<IpAddr>,
        file: Option<&str>,
    ) -> Result<Self, DhcpError> {
        self.next_server = next_server.map(|it| machine(it, "next server")).transpose()?;
        if let Some(file) = file {
            if !(1..=127).contains(&file.len()) || !file.bytes().all(|byte| byte.is_ascii_graphic())
            {
                return Err(DhcpError::BootFile(file.to_owned()));
            }
            self.boot_file = Some(file.to_owned());
        }
        Ok(self)
    }

    /// Adds routes.
    pub fn with_routes(mut self, routes: &[DhcpRoute]) -> Result<Self, DhcpError> {
        if routes.len() > Self::MOST_ROUTES {
            return Err(DhcpError::TooMany("routes", Self::MOST_ROUTES));
        }
        for route in routes {
            if self.routes.iter().any(|other| other.to == route.to) {
                return Err(DhcpError::Twice(format!("a route to {}", route.to)));
            }
            self.routes.push(*route);
        }
        Ok(self)
    }

    /// Checks that a network with these subnets can have it: one of them has a gateway of IPv4, or
    /// is of IPv6, and each route leads by a machine of such a subnet.
    pub(crate) fn check(&self, vni: Vni, subnets: &[Subnet]) -> Result<(), DhcpError> {
        let may_give = |subnet: &Subnet| is_serving(subnet) || subnet.cidr().network().is_ipv6();
        if !subnets.iter().any(may_give) {
            return Err(DhcpError::NeedsGateway(vni));
        }
        match self.routes.iter().find(|route| !is_near(route, subnets)) {
            Some(route) => Err(DhcpError::ViaOutside(*route)),
            None => Ok(()),
        }
    }

    /// Returns the same without the routes that lead by no machine of these subnets.
    pub(crate) fn in_subnets(&self, subnets: &[Subnet]) -> Self {
        let mut near = self.clone();
        near.routes.retain(|route| is_near(route, subnets));
        near
    }

    /// Returns the seconds of a lease.
    pub fn lease(&self) -> u32 {
        self.lease
    }

    /// Returns the name servers, the one that is asked first before the others. Those of IPv4 are
    /// told by DHCP, those of IPv6 by DHCPv6 and advertisements.
    pub fn dns(&self) -> &[IpAddr] {
        &self.dns
    }

    /// Returns the domains in which machines look for names, in this order.
    pub fn search(&self) -> &[String] {
        &self.search
    }

    /// Returns the server from which machines boot.
    pub fn next_server(&self) -> Option<Ipv4Addr> {
        self.next_server
    }

    /// Returns the file that machines boot.
    pub fn boot_file(&self) -> Option<&str> {
        self.boot_file.as_deref()
    }

    /// Returns the routes that machines get.
    pub fn routes(&self) -> &[DhcpRoute] {
        &self.routes
    }
}

/// True if a route leads by a machine of one of the subnets whose addresses are leased.
fn is_near(route: &DhcpRoute, subnets: &[Subnet]) -> bool {
    let mut serving = subnets.iter().filter(|subnet| is_serving(subnet)).map(Subnet::cidr);
    serving.any(|cidr| cidr.contains(route.via) && cidr.is_host(route.via))
}

/// True if addresses of a subnet are leased: it is of IPv4, and has a gateway.
fn is_serving(subnet: &Subnet) -> bool {
    subnet.gateway().is_some_and(|gateway| gateway.is_ipv4())
}

/// The address of a machine.
fn machine(address: IpAddr, what: &'static str) -> Result<Ipv4Addr, DhcpError> {
    match address {
        IpAddr::V4(ip)
            if !ip.is_unspecified()
                && !ip.is_loopback()
                && !ip.is_multicast()
                && !ip.is_broadcast() =>
        {
            Ok(ip)
        }
        _ => Err(DhcpError::NotAServer { address, what }),
    }
}

/// The address of a name server, of either family.
fn name_server(address: IpAddr) -> Result<IpAddr, DhcpError> {
    let IpAddr::V6(ip) = address else { return machine(address, NAME_SERVER).map(IpAddr::V4) };
    // Of a link-local address nobody would know the link.
    let never = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || ip.is_unicast_link_local()
        || ip.to_ipv4_mapped().is_some();
    match never {
        true => Err(DhcpError::NotAServer { address, what: NAME_SERVER }),
        false => Ok(address),
    }
}

const NAME_SERVER: &str = "name server";

/// RFC 1035, 2.3.1; labels may begin with digits (RFC 1123, 2.1).
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && bytes.first() != Some(&b'-')
            && bytes.last() != Some(&b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;
    use std::cell::Cell;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn dhcp() -> Dhcp {
        Dhcp::new(None).unwrap()
    }

    fn network(subnets: &[(&str, Option<&str>)], dhcp: Dhcp) -> Result<Network, DhcpError> {
        let read = |(block, gateway): &(&str, Option<&str>)| Subnet::parse(block, *gateway);
        let subnets = subnets.iter().map(read).collect::<Result<_, _>>().unwrap();
        Network::new(Vni::new(42).unwrap(), subnets, None).unwrap().with_dhcp(Some(dhcp))
    }

    #[test]
    fn leases_have_bounds() {
        for lease in [60, 3600, 31_536_000] {
            assert_eq!(Dhcp::new(Some(lease)).unwrap().lease(), lease);
        }
        for lease in [0, 59, 31_536_001, u32::MAX] {
            assert_eq!(Dhcp::new(Some(lease)), Err(DhcpError::Lease(lease)));
        }
    }

    #[test]
    fn servers_are_machines() {
        let all = ips(&["9.9.9.9", "fd00::53", "10.0.0.1"]);
        assert_eq!(dhcp().with_dns(&all).unwrap().dns(), all);
        assert!(dhcp().with_boot(Some("fd00::1".parse().unwrap()), None).is_err());
        for address in [
            "::",
            "::1",
            "ff02::1",
            "fe80::1",
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            let text = dhcp().with_dns(&ips(&[address])).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{address} cannot be a name server")), "{text}");
            assert!(dhcp().with_boot(Some(address.parse().unwrap()), None).is_err());
        }
        let twice = dhcp().with_dns(&ips(&["9.9.9.9", "9.9.9.9"])).unwrap_err().to_string();
        assert_eq!(twice, "name server 9.9.9.9 is there twice; leave one of them out");
        let many: Vec<IpAddr> = (1..=9).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        assert!(dhcp().with_dns(&many[..8]).is_ok());
        assert_eq!(dhcp().with_dns(&many), Err(DhcpError::TooMany("name servers", 8)));
    }

    #[test]
    fn domains_are_names() {
        assert!(dhcp().with_search(&["example.com", "a-1.0.x"]).is_ok());
        for text in ["", ".", "a.", ".a", "a b", "-a", "a-", "a..b", "ä.de", &"a".repeat(64)] {
            assert_eq!(dhcp().with_search(&[text]), Err(DhcpError::Domain(text.to_owned())));
        }
        assert!(matches!(dhcp().with_search(&["a.b", "A.B"]), Err(DhcpError::Twice(_))));
        let domain = |n: usize| format!("{n:061}");
        let domains = |n: usize| (0..n).map(domain).collect::<Vec<_>>();
        assert!(dhcp().with_search(&domains(4)).is_ok());
        assert_eq!(dhcp().with_search(&domains(5)), Err(DhcpError::Domains));
    }

    /// So many as one message of the API can have cost no more than those that find room.
    #[test]
    fn lists_without_end_are_refused_at_once() {
        struct Counted<'a>(&'a Cell<usize>, String);
        impl AsRef<str> for Counted<'_> {
            fn as_ref(&self) -> &str {
                self.0.set(self.0.get() + 1);
                &self.1
            }
        }
        let looks = Cell::new(0);
        let domains: Vec<Counted<'_>> =
            (0..300_000).map(|n| Counted(&looks, format!("d{n}"))).collect();
        assert_eq!(dhcp().with_search(&domains), Err(DhcpError::Domains));
        assert!(looks.get() <= 128, "{} of them", looks.get());
        let servers: Vec<IpAddr> = (0..300_000u32).map(|n| Ipv4Addr::from(n).into()).collect();
        assert!(matches!(dhcp().with_dns(&servers), Err(DhcpError::TooMany(..))));
        let block = |n: u32| Cidr::new(&Ipv4Addr::from(n << 8).to_string(), 24).unwrap();
        let via = IpAddr::from([10, 0, 0, 7]);
        let routes: Vec<_> = (1..3_000).map(|n| DhcpRoute::new(block(n), via).unwrap()).collect();
        assert!(matches!(dhcp().with_routes(&routes), Err(DhcpError::TooMany(..))));
    }

    #[test]
    fn boot_files_fit_their_field() {
        let file = |text: &str| dhcp().with_boot(None, Some(text));
        assert_eq!(file("a/b.efi").unwrap().boot_file(), Some("a/b.efi"));
        assert!(file(&"a".repeat(127)).is_ok());
        for text in ["", "a b", "a\n", "ä", &"a".repeat(128)] {
            assert_eq!(file(text), Err(DhcpError::BootFile(text.to_owned())));
        }
    }

    #[test]
    fn routes_lead_by_machines_of_subnets_with_a_gateway() {
        let with = |routes: &[&str], subnets: &[(&str, Option<&str>)]| {
            let routes = routes.iter().map(|text| DhcpRoute::parse(text));
            let dhcp = dhcp().with_routes(&routes.collect::<Result<Vec<_>, _>>()?)?;
            network(subnets, dhcp)
        };
        let a = ("10.0.0.0/24", Some("10.0.0.1"));
        let b = ("10.0.1.0/24", None);
        let six = ("fd00::/64", Some("fd00::1"));
        for route in ["10.9.0.0/16=10.0.0.7", "0.0.0.0/0=10.0.0.2", "10.9.0.1/32=10.0.0.1"] {
            let network = with(&[route], &[a, b, six]).unwrap();
            let routes: Vec<String> =
                network.dhcp().unwrap().routes().iter().map(DhcpRoute::to_string).collect();
            assert_eq!(routes, [route]);
        }
        for via in ["10.0.1.7", "10.2.0.7", "10.0.0.0", "10.0.0.255"] {
            let refused = with(&[&format!("10.9.0.0/16={via}")], &[a, b, six]);
            assert!(matches!(refused, Err(DhcpError::ViaOutside(_))), "{via}: {refused:?}");
        }
        assert_eq!(with(&[], &[b]), Err(DhcpError::NeedsGateway(Vni::new(42).unwrap())));
        assert!(with(&[], &[b, six]).is_ok() && with(&[], &[("fd00::/64", None)]).is_ok());
        for text in ["10.9.0.0/16=fd00::7", "fd00:1::/64=10.0.0.7"] {
            assert!(matches!(DhcpRoute::parse(text), Err(DhcpError::Family(_))), "{text}");
        }
        let text = DhcpRoute::parse("10.9.0.1/16=10.0.0.7").unwrap_err().to_string();
        assert!(text.ends_with("write 10.9.0.0/16=10.0.0.7"), "{text}");
        for text in ["", "10.9.0.0/16", "10.9.0.0=10.0.0.7", "10.9.0.0/+6=10.0.0.7"] {
            assert_eq!(DhcpRoute::parse(text), Err(DhcpError::Route(text.to_owned())));
        }
        let twice = with(&["10.9.0.0/16=10.0.0.7", "10.9.0.0/16=10.0.0.8"], &[a]);
        assert!(matches!(twice, Err(DhcpError::Twice(_))));
        let many: Vec<String> = (0..17).map(|n| format!("10.9.{n}.0/24=10.0.0.7")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(with(&many[..16], &[a]).is_ok());
        assert_eq!(with(&many, &[a]), Err(DhcpError::TooMany("routes", 16)));
    }
}
