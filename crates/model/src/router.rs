//! Declared routers: the networks that they join, their addresses there, and their routes.

use crate::{
    address::{AddressError, canonical, parse_ip},
    cidr::Cidr,
    external::ExternalId,
    network::Network,
    route::Route,
    vni::Vni,
};
use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// First two bytes of the MAC addresses that routers have in networks.
const GATEWAY_PREFIX: [u8; 2] = [0xb2, 0xf0];
/// First two bytes of the MAC addresses by which hosts send what they routed.
const HOST_PREFIX: [u8; 2] = [0xb2, 0xf1];

/// The name of a router. It stands in lines that programs read, so control characters are refused.
///
/// ```
/// use butterfly_model::RouterId;
/// assert_eq!(RouterId::new("r1")?.as_str(), "r1");
/// assert!(RouterId::new("").is_err());
/// # Ok::<(), butterfly_model::RouterIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(Box<str>);

/// Error of a text that cannot name a router.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router id {id:?} is refused: {reason}")]
pub struct RouterIdError {
    id: String,
    reason: &'static str,
}

impl RouterId {
    /// Checks a name: any text that is not empty and has no control character in it. Fails for
    /// others.
    pub fn new(id: &str) -> Result<Self, RouterIdError> {
        let reason = if id.is_empty() {
            "it is empty"
        } else if id.contains(char::is_control) {
            "it has a control character in it"
        } else {
            return Ok(Self(id.into()));
        };
        Err(RouterIdError { id: id.to_owned(), reason })
    }

    /// Returns the id as it was declared.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the MAC address that the router has in each of its networks, on all hosts, in the
    /// order of transmission: a reserved prefix and the FNV-1a hash of the id.
    ///
    /// ```
    /// use butterfly_model::RouterId;
    /// let mac = RouterId::new("r1").unwrap().gateway_mac();
    /// assert_eq!(mac, [0xb2, 0xf0, 0x0c, 0x53, 0xfd, 0xac]);
    /// ```
    pub fn gateway_mac(&self) -> [u8; 6] {
        let [first, second] = GATEWAY_PREFIX;
        let [a, b, c, d] = fnv_1a(self.0.as_bytes()).to_be_bytes();
        [first, second, a, b, c, d]
    }
}

/// Orders and compares ids as their texts: byte by byte.
impl Borrow<str> for RouterId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the 32-bit FNV-1a hash of `bytes`. Part of what hosts agree on: it never changes.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns the MAC address from which a network's own DHCP answers for a gateway that no router
/// has, in the order of transmission. All hosts make it the same. `is_taken` tells addresses of the
/// network's routers.
pub fn service_mac(vni: Vni, is_taken: impl Fn([u8; 6]) -> bool) -> [u8; 6] {
    let [first, second] = GATEWAY_PREFIX;
    let mut hash = fnv_1a(&[b"dhcp", &vni.number().to_be_bytes()[..]].concat());
    loop {
        let [a, b, c, d] = hash.to_be_bytes();
        let mac = [first, second, a, b, c, d];
        if !is_taken(mac) {
            return mac;
        }
        hash = hash.wrapping_add(1);
    }
}

/// Returns the MAC address from which the host with this tunnel endpoint sends what its routers
/// passed on, in the order of transmission: two fixed bytes, and the address, or of an IPv6 address
/// its hash. All hosts make it the same.
///
/// ```
/// let mac = butterfly_model::host_mac("192.0.2.1".parse().unwrap());
/// assert_eq!(mac, [0xb2, 0xf1, 192, 0, 2, 1]);
/// ```
pub fn host_mac(endpoint: IpAddr) -> [u8; 6] {
    let [first, second] = HOST_PREFIX;
    let [a, b, c, d] = match endpoint {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => fnv_1a(&ip.octets()).to_be_bytes(),
    };
    [first, second, a, b, c, d]
}

/// True if a MAC address, in the order of transmission, is one that only routers and hosts have.
pub fn is_reserved_mac(octets: [u8; 6]) -> bool {
    let [first, second, ..] = octets;
    [GATEWAY_PREFIX, HOST_PREFIX].contains(&[first, second])
}

/// The addresses that a router is given in a network: one of each family, or none. With none it has
/// the gateways of the network's subnets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterAddresses {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

/// Reason why addresses of a router are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterAddressesError {
    /// A text that is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Two of one family.
    #[error("{} and {} are of one family: a router has one address of each in a network", canonical(*.0), canonical(*.1))]
    Two(IpAddr, IpAddr),
}

impl RouterAddresses {
    /// Reads `texts`. Fails for one that is no address, and for two of one family.
    pub fn parse<T: AsRef<str>>(
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Self, RouterAddressesError> {
        let mut all = Self::default();
        for text in texts {
            let address = parse_ip(text.as_ref())?;
            let before = match address {
                IpAddr::V4(v4) => all.v4.replace(v4).map(IpAddr::V4),
                IpAddr::V6(v6) => all.v6.replace(v6).map(IpAddr::V6),
            };
            if let Some(before) = before {
                return Err(RouterAddressesError::Two(before, address));
            }
        }
        Ok(all)
    }

    /// True if none is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the given addresses, that of IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Returns the addresses that a router with these has in `network`.
    pub fn in_network<'a>(&self, network: &'a Network) -> impl Iterator<Item = IpAddr> + use<'a> {
        let gateways = self.is_empty().then(|| network.gateways());
        self.iter().chain(gateways.into_iter().flatten())
    }

    /// Returns the given addresses as they are echoed.
    pub fn texts(&self) -> Vec<String> {
        self.iter().map(canonical).collect()
    }
}

/// A router, the networks that it joins, and where it leads beyond them.
///
/// ```
/// use butterfly_model::{Router, RouterAddresses, RouterId, Vni};
/// let mut router = Router::new(RouterId::new("r1").unwrap());
/// router.attach(Vni::new(42).unwrap(), RouterAddresses::default());
/// assert_eq!(router.attachments().count(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    id: RouterId,
    attachments: BTreeMap<Vni, RouterAddresses>,
    externals: BTreeMap<ExternalId, RouterAddresses>,
    /// By the first addresses of their blocks and the lengths of these.
    routes: BTreeMap<(IpAddr, u8), Route>,
    /// Never declared: control makes it of an external.
    second_hop: Option<SecondHop>,
}

/// Way out of a router by another host: that leads out what is for everything that the router does
/// not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondHop {
    /// Tunnel endpoint of that host.
    pub host: IpAddr,
    /// Largest IP packet that goes there, in bytes.
    pub mtu: u16,
}

impl Router {
    /// Makes a router that joins nothing.
    pub fn new(id: RouterId) -> Self {
        let (attachments, externals, routes) = Default::default();
        Self { id, attachments, externals, routes, second_hop: None }
    }

    /// Returns its name.
    pub fn id(&self) -> &RouterId {
        &self.id
    }

    /// Returns the networks that it joins, in the order of their numbers, and its addresses there.
    pub fn attachments(&self) -> impl ExactSizeIterator<Item = (Vni, RouterAddresses)> {
        self.attachments.iter().map(|(vni, addresses)| (*vni, *addresses))
    }

    /// Returns the addresses that it is given in a network, if it joins it.
    pub fn attachment(&self, vni: Vni) -> Option<RouterAddresses> {
        self.attachments.get(&vni).copied()
    }

    /// Attaches it to a network, with these addresses from now on. Returns those before, if it was
    /// attached.
    pub fn attach(&mut self, vni: Vni, addresses: RouterAddresses) -> Option<RouterAddresses> {
        self.attachments.insert(vni, addresses)
    }

    /// Detaches it from a network. Returns whether it was attached.
    pub fn detach(&mut self, vni: Vni) -> bool {
        self.attachments.remove(&vni).is_some()
    }

    /// Returns the externals that it is attached to, in byte order of their ids, and the addresses
    /// that it is given there. With none it has none there.
    pub fn externals(&self) -> impl ExactSizeIterator<Item = (&ExternalId, RouterAddresses)> {
        self.externals.iter().map(|(id, addresses)| (id, *addresses))
    }

    /// Returns the addresses that it is given at an external, if it is attached to it.
    pub fn external(&self, id: &str) -> Option<RouterAddresses> {
        self.externals.get(id).copied()
    }

    /// Attaches it to an external, with these addresses from now on. Returns those before, if it
    /// was attached.
    pub fn attach_external(
        &mut self,
        id: ExternalId,
        addresses: RouterAddresses,
    ) -> Option<RouterAddresses> {
        self.externals.insert(id, addresses)
    }

    /// Detaches it from an external. Returns whether it was attached.
    pub fn detach_external(&mut self, id: &str) -> bool {
        self.externals.remove(id).is_some()
    }

    /// Returns its routes, in the order of their blocks, those of IPv4 first.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Route> {
        self.routes.values()
    }

    /// Returns the route to exactly this block.
    pub fn route(&self, to: &Cidr) -> Option<&Route> {
        self.routes.get(&(to.network(), to.mask_size()))
    }

    /// Adds a route, in place of the one to the same block. Returns that one.
    pub fn add_route(&mut self, route: Route) -> Option<Route> {
        let to = route.to();
        self.routes.insert((to.network(), to.mask_size()), route)
    }

    /// Has another host lead out what is for no network and no route of it, or nobody any more.
    pub fn set_second_hop(&mut self, second_hop: Option<SecondHop>) {
        self.second_hop = second_hop;
    }

    /// Returns the host that leads out what it does not know, if one does.
    pub fn second_hop(&self) -> Option<SecondHop> {
        self.second_hop
    }

    /// Takes out the route to exactly this block. Returns it, if there was one.
    pub fn remove_route(&mut self, to: &Cidr) -> Option<Route> {
        self.routes.remove(&(to.network(), to.mask_size()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subnet::Subnet;

    #[test]
    fn names_are_texts_of_one_line() {
        for id in ["r1", "é b", "a/b", "-"] {
            assert_eq!(RouterId::new(id).unwrap().as_str(), id);
        }
        for id in ["", "a\nb", "\0", "\u{85}"] {
            let text = RouterId::new(id).unwrap_err().to_string();
            assert!(text.starts_with(&format!("router id {id:?} is refused: it ")), "{text}");
        }
    }

    /// Values of the authors' page; the last two are a known collision.
    #[test]
    fn the_gateway_address_is_that_of_the_name() {
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv_1a(text.as_bytes()), hash, "{text}");
        }
        let mac = |id: &str| RouterId::new(id).unwrap().gateway_mac();
        assert_eq!(mac("a"), [0xb2, 0xf0, 0xe4, 0x0c, 0x29, 0x2c]);
        assert_eq!(mac("costarring"), mac("liquid"));
        assert_ne!(mac("a"), mac("b"));
    }

    #[test]
    fn a_service_has_no_routers_address() {
        let vni = |number| Vni::new(number).unwrap();
        let own = service_mac(vni(42), |_| false);
        assert!(is_reserved_mac(own) && own[..2] == GATEWAY_PREFIX);
        assert_ne!(own, service_mac(vni(43), |_| false));
        let other = service_mac(vni(42), |mac| mac == own);
        assert!(other != own && other[..2] == GATEWAY_PREFIX);
    }

    #[test]
    fn the_address_of_a_host_is_that_of_its_endpoint() {
        assert_eq!(host_mac([10, 1, 2, 3].into()), [0xb2, 0xf1, 10, 1, 2, 3]);
        // Endpoints next to each other have different ones.
        let near = |n: u16| host_mac(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into());
        let all: std::collections::BTreeSet<[u8; 6]> = (0..u16::MAX).map(near).collect();
        assert_eq!(all.len(), usize::from(u16::MAX));
        assert!(all.into_iter().all(is_reserved_mac));
    }

    #[test]
    fn two_prefixes_are_reserved() {
        assert!(
            is_reserved_mac([0xb2, 0xf0, 0, 0, 0, 0]) && is_reserved_mac([0xb2, 0xf1, 1, 2, 3, 4])
        );
        assert!(
            !is_reserved_mac([0xb2, 0xf2, 0, 0, 0, 0])
                && !is_reserved_mac([0xb0, 0xf0, 0, 0, 0, 0])
        );
        assert!(is_reserved_mac(RouterId::new("r").unwrap().gateway_mac()));
    }

    #[test]
    fn a_router_has_given_addresses_or_the_gateways() {
        let subnets = [("10.0.0.0/24", Some("10.0.0.1")), ("fd00::/64", Some("fd00::1"))]
            .map(|(block, gateway)| Subnet::parse(block, gateway).unwrap());
        let network = Network::new(Vni::new(42).unwrap(), subnets.into(), None).unwrap();
        let has = |given: &[&str]| -> Vec<String> {
            RouterAddresses::parse(given).unwrap().in_network(&network).map(canonical).collect()
        };
        assert_eq!(has(&[]), ["10.0.0.1", "fd00::1"]);
        assert_eq!(has(&["10.0.0.2"]), ["10.0.0.2"]);
        assert_eq!(has(&["fd00::2", "10.0.0.2"]), ["10.0.0.2", "fd00::2"]);
        let two = RouterAddresses::parse(["10.0.0.2", "10.0.0.3"]).unwrap_err().to_string();
        assert!(two.starts_with("10.0.0.2 and 10.0.0.3 are of one family"), "{two}");
        assert!(matches!(RouterAddresses::parse(["x"]), Err(RouterAddressesError::Address(_))));
    }

    #[test]
    fn a_block_has_one_route() {
        let mut router = Router::new(RouterId::new("r").unwrap());
        let route = |to, via: &[&str]| Route::parse(to, via).unwrap();
        for it in [
            route("10.9.0.0/16", &["10.0.0.9"]),
            route("::/0", &[]),
            route("10.9.0.0/24", &[]),
            route("0.0.0.0/0", &["10.0.0.1"]),
        ] {
            assert_eq!(router.add_route(it), None);
        }
        let texts: Vec<String> = router.routes().map(Route::to_string).collect();
        let expected =
            ["0.0.0.0/0 via 10.0.0.1", "10.9.0.0/16 via 10.0.0.9", "10.9.0.0/24 blackhole"];
        assert_eq!(texts, [&expected[..], &["::/0 blackhole"]].concat());
        let other = route("10.9.0.0/16", &[]);
        assert_eq!(router.add_route(other.clone()), Some(route("10.9.0.0/16", &["10.0.0.9"])));
        assert_eq!(router.route(&other.to()), Some(&other));
        assert_eq!(router.remove_route(&other.to()), Some(other.clone()));
        assert_eq!((router.remove_route(&other.to()), router.routes().len()), (None, 3));
    }

    #[test]
    fn networks_are_joined_once() {
        let (vni, given) = (Vni::new(42).unwrap(), RouterAddresses::parse(["10.0.0.2"]).unwrap());
        let mut router = Router::new(RouterId::new("r").unwrap());
        assert_eq!(router.attach(vni, RouterAddresses::default()), None);
        assert_eq!(router.attach(vni, given), Some(RouterAddresses::default()));
        assert_eq!(router.attachments().collect::<Vec<_>>(), [(vni, given)]);
        assert_eq!(router.attachment(vni), Some(given));
        assert!(router.detach(vni) && !router.detach(vni));
        assert_eq!(router, Router::new(RouterId::new("r").unwrap()));
    }

    #[test]
    fn externals_are_joined_once() {
        let (id, given) =
            (ExternalId::new("x").unwrap(), RouterAddresses::parse(["192.0.2.7"]).unwrap());
        let mut router = Router::new(RouterId::new("r").unwrap());
        assert_eq!(router.attach_external(id.clone(), RouterAddresses::default()), None);
        assert_eq!(router.attach_external(id.clone(), given), Some(RouterAddresses::default()));
        assert_eq!(router.externals().collect::<Vec<_>>(), [(&id, given)]);
        assert_eq!((router.external("x"), router.attachments().len()), (Some(given), 0));
        assert!(router.detach_external("x") && !router.detach_external("x"));
        assert_eq!(router, Router::new(RouterId::new("r").unwrap()));
    }
}
