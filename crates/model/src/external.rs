//! Declared externals: networks whose outside is a wire of this host, or its vnics.

use crate::{
    address::{AddressError, canonical, may_be_endpoint, parse_ip},
    cidr::Cidr,
    network::{MtuError, Network},
    route::Route,
    router::{SecondHop, fnv_1a},
    subnet::{Subnet, SubnetError, parse_block},
    vni::Vni,
};
use std::{
    borrow::Borrow,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Most bytes of the name of an interface (`IFNAMSIZ` without the final zero).
const MAX_INTERFACE: usize = 15;
/// Most addresses of the host in an external.
const MAX_ADDRESSES: usize = 8;

/// The name of an external. It stands in lines that programs read, so control characters are
/// refused.
///
/// ```
/// use butterfly_model::ExternalId;
/// assert_eq!(ExternalId::new("internet")?.as_str(), "internet");
/// assert!(ExternalId::new("").is_err());
/// # Ok::<(), butterfly_model::ExternalIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalId(Box<str>);

/// Error of a text that cannot name an external.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("external id {id:?} is refused: {reason}")]
pub struct ExternalIdError {
    id: String,
    reason: &'static str,
}

impl ExternalId {
    /// Checks a name: any text that is not empty and has no control character in it. Fails for
    /// others.
    pub fn new(id: &str) -> Result<Self, ExternalIdError> {
        let reason = if id.is_empty() {
            "it is empty"
        } else if id.contains(char::is_control) {
            "it has a control character in it"
        } else {
            return Ok(Self(id.into()));
        };
        Err(ExternalIdError { id: id.to_owned(), reason })
    }

    /// Returns the id as it was declared.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Orders and compares ids as their texts: byte by byte.
impl Borrow<str> for ExternalId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The device by which an external leaves this host.
///
/// ```
/// use butterfly_model::WireDevice;
/// assert_eq!(WireDevice::parse("eth1")?, WireDevice::Interface("eth1".into()));
/// assert_eq!(WireDevice::parse("tap:out")?.to_string(), "tap:out");
/// assert_eq!(WireDevice::parse("tap")?, WireDevice::Tap(None));
/// assert!(WireDevice::parse("eth 1").is_err());
/// # Ok::<(), butterfly_model::WireDeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WireDevice {
    /// An interface of the host that is there.
    Interface(Box<str>),
    /// A TAP device that the daemon makes; without a name, of a name that the daemon chooses.
    Tap(Option<Box<str>>),
}

/// Error of a text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no device that leads out: {reason}; write the name of an interface, or tap, or tap:NAME"
)]
pub struct WireDeviceError {
    text: String,
    reason: &'static str,
}

impl WireDevice {
    /// Reads a device: the name of an interface, `tap`, or `tap:NAME`. Fails for names that Linux
    /// gives no interface.
    pub fn parse(text: &str) -> Result<Self, WireDeviceError> {
        let (name, is_tap) = match text.strip_prefix("tap") {
            Some("") => return Ok(Self::Tap(None)),
            Some(rest) if rest.starts_with(':') => (rest.get(1..).unwrap_or_default(), true),
            _ => (text, false),
        };
        match refused_name(name) {
            Some(reason) => Err(WireDeviceError { text: text.to_owned(), reason }),
            None if is_tap => Ok(Self::Tap(Some(name.into()))),
            None => Ok(Self::Interface(name.into())),
        }
    }

    /// Returns the name of the device, if one is declared.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Interface(name) => Some(name),
            Self::Tap(name) => name.as_deref(),
        }
    }

    /// Returns whether the daemon makes the device.
    pub fn is_tap(&self) -> bool {
        matches!(self, Self::Tap(_))
    }
}

/// Returns why a text is the name of no interface, as `dev_valid_name` of Linux has it.
fn refused_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it names none")
    } else if name.len() > MAX_INTERFACE {
        Some("names of interfaces have 15 bytes at most")
    } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        Some("names of interfaces have no spaces, slashes, colons or control characters")
    } else if matches!(name, "." | "..") {
        Some("it is a directory")
    } else {
        None
    }
}

/// Shows it as it is declared.
impl fmt::Display for WireDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Tap(None) => f.write_str("tap"),
            Self::Tap(Some(name)) => write!(f, "tap:{name}"),
        }
    }
}

/// Reason why an external is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExternalError {
    /// An address without a length.
    #[error("\"{0}\" is no address with its length; write 192.0.2.7/24 or 2001:db8::7/64")]
    Form(String),
    /// The block of an address is none.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// A gateway is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No address, or too many.
    #[error(
        "external {0} has 1 to {MAX_ADDRESSES} addresses of this host, with their lengths, not {1}"
    )]
    Addresses(ExternalId, usize),
    /// An address that no host can have.
    #[error("{0} is not the address of a host in its subnet; choose another one")]
    NotAHost(Cidr),
    /// Two addresses of one family in two subnets.
    #[error("{1} and {2} of external {0} are in two subnets: it has one of each address family")]
    TwoSubnets(ExternalId, Cidr, Cidr),
    /// An address that is named twice.
    #[error("{1} stands twice among the addresses of external {0}; name it once")]
    Twice(ExternalId, Cidr),
    /// Two gateways of one family.
    #[error("external {0} has two gateways of one family, {one} and {two}: give one of each", one = canonical(*.1), two = canonical(*.2))]
    TwoGateways(ExternalId, IpAddr, IpAddr),
    /// A gateway in no subnet.
    #[error("the gateway {gateway} is not in a subnet of external {0}: give an address of this host with that subnet's length", gateway = canonical(*.1))]
    GatewayOutside(ExternalId, IpAddr),
    /// A gateway that no machine can be, or that is this host.
    #[error("the gateway {gateway} of external {0} is not another machine of its subnet: give the address of the next router outside", gateway = canonical(*.1))]
    GatewayNotAHost(ExternalId, IpAddr),
    /// A tag that no VLAN has.
    #[error("VLAN {0} is out of range: 1 to 4094")]
    Vlan(u32),
    /// A tag without a wire.
    #[error("external {0} has a VLAN and no interface: name the interface of which it is a VLAN")]
    VlanWithoutWire(ExternalId),
    /// Nothing to lead out by.
    #[error(
        "external {0} leads nowhere: name the interface by which it leaves this host, or a VNI whose vnics are its outside"
    )]
    NoWayOut(ExternalId),
    /// The MTU does not fit.
    #[error(transparent)]
    Mtu(#[from] MtuError),
    /// A way out by another host, and something that only a way out of this host has.
    #[error(
        "external {0} leads out by another host (via), so {1} cannot be given here: declare that on the other host"
    )]
    ViaAnd(ExternalId, &'static str),
    /// The host that leads out is none.
    #[error("{host} cannot be the tunnel endpoint of a host by which external {0} leads out: give the one that `butterfly uplink` tells on that host", host = canonical(*.1))]
    NotAnEndpoint(ExternalId, IpAddr),
}

/// A network with an outside: what is behind a wire of this host, or, without a wire, its vnics
/// here.
///
/// ```
/// use butterfly_model::{External, ExternalId, Vni, WireDevice};
/// let id = ExternalId::new("internet").unwrap();
/// let vni = Vni::new(16_777_215).unwrap();
/// let external = External::parse(id, vni, ["192.0.2.7/24"], ["192.0.2.1"])?
///     .with_wire(WireDevice::parse("eth1").unwrap(), Some(7))?
///     .with_chosen_vni()?;
/// assert_eq!(external.default_routes()[0].to_string(), "0.0.0.0/0 via 192.0.2.1");
/// assert!(!external.is_provider());
/// # Ok::<(), butterfly_model::ExternalError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    id: ExternalId,
    /// Its number, subnets and MTU.
    network: Network,
    /// True if this host chose the number: vnics cannot be in it.
    chosen: bool,
    wire: Option<WireDevice>,
    vlan: Option<u16>,
    addresses: Vec<Cidr>,
    v4_gateway: Option<Ipv4Addr>,
    v6_gateway: Option<Ipv6Addr>,
    /// Tunnel endpoint of the host that leads out. Then it has no wire, addresses and gateways, and
    /// its number is a name alone.
    via: Option<IpAddr>,
}

/// Largest IP packet for a host that leads out, in bytes, if none is declared: that of Ethernet.
const MTU_OF_SECOND_HOP: u16 = 1500;

impl External {
    /// Makes an external without a wire, of the addresses that this host has there with the lengths
    /// of their subnets, and of the gateways outside. Fails for none and for more than 8 addresses,
    /// for two subnets or two gateways of a family, and for addresses that no host can have.
    pub fn new(
        id: ExternalId,
        vni: Vni,
        addresses: Vec<Cidr>,
        gateways: Vec<IpAddr>,
    ) -> Result<Self, ExternalError> {
        if !(1..=MAX_ADDRESSES).contains(&addresses.len()) {
            return Err(ExternalError::Addresses(id, addresses.len()));
        }
        for (at, address) in addresses.iter().enumerate() {
            Subnet::new(address.without_host_bits(), None)?;
            if !address.is_host(address.address()) {
                return Err(ExternalError::NotAHost(*address));
            }
            let same_family =
                |other: &&Cidr| other.address().is_ipv4() == address.address().is_ipv4();
            for other in addresses.iter().take(at).filter(same_family) {
                if other.without_host_bits() != address.without_host_bits() {
                    return Err(ExternalError::TwoSubnets(id, *other, *address));
                }
                if other.address() == address.address() {
                    return Err(ExternalError::Twice(id, *address));
                }
            }
        }
        let network = Network::new(vni, subnets_of(&addresses), None)?;
        let (v4_gateway, v6_gateway) = (None, None);
        let (chosen, wire, vlan, via) = (false, None, None, None);
        let mut all =
            Self { id, network, chosen, wire, vlan, addresses, v4_gateway, v6_gateway, via };
        for gateway in gateways {
            all.add_gateway(gateway)?;
        }
        Ok(all)
    }

    fn add_gateway(&mut self, gateway: IpAddr) -> Result<(), ExternalError> {
        let id = || self.id.clone();
        let Some(subnet) = self.addresses.iter().find(|address| address.contains(gateway)) else {
            return Err(ExternalError::GatewayOutside(id(), gateway));
        };
        if !subnet.is_host(gateway) || self.has_address(gateway) {
            return Err(ExternalError::GatewayNotAHost(id(), gateway));
        }
        let before = match gateway {
            IpAddr::V4(v4) => self.v4_gateway.replace(v4).map(IpAddr::V4),
            IpAddr::V6(v6) => self.v6_gateway.replace(v6).map(IpAddr::V6),
        };
        match before {
            Some(before) => Err(ExternalError::TwoGateways(id(), before, gateway)),
            None => Ok(()),
        }
    }

    /// Makes an external by which the host with this tunnel endpoint leads out for this one. `vni`
    /// is a number that nothing else has. Fails for an address that no other host can have, and for
    /// an MTU that is out of range.
    ///
    /// ```
    /// use butterfly_model::{External, ExternalId, Vni};
    /// let id = ExternalId::new("internet").unwrap();
    /// let vni = Vni::new(16_777_215).unwrap();
    /// let external = External::over(id, vni, "192.0.2.1".parse().unwrap(), None)?;
    /// assert_eq!(external.second_hop().unwrap().mtu, 1500);
    /// # Ok::<(), butterfly_model::ExternalError>(())
    /// ```
    pub fn over(
        id: ExternalId,
        vni: Vni,
        host: IpAddr,
        mtu: Option<u32>,
    ) -> Result<Self, ExternalError> {
        if !may_be_endpoint(host) {
            return Err(ExternalError::NotAnEndpoint(id, host));
        }
        let network = Network::new(vni, Vec::new(), mtu)?;
        let (v4_gateway, v6_gateway) = (None, None);
        let (chosen, wire, vlan, via, addresses) = (true, None, None, Some(host), Vec::new());
        Ok(Self { id, network, chosen, wire, vlan, addresses, v4_gateway, v6_gateway, via })
    }

    /// Returns the tunnel endpoint of the host that leads out for this one, if one does.
    pub fn via(&self) -> Option<IpAddr> {
        self.via
    }

    /// Returns what a router has by it, if another host leads out.
    pub fn second_hop(&self) -> Option<SecondHop> {
        let mtu = self.network.mtu().unwrap_or(MTU_OF_SECOND_HOP);
        self.via.map(|host| SecondHop { host, mtu })
    }

    /// Reads an external without a wire of the texts of addresses with their lengths
    /// (`192.0.2.7/24`), and of gateways.
    pub fn parse<T: AsRef<str>, U: AsRef<str>>(
        id: ExternalId,
        vni: Vni,
        addresses: impl IntoIterator<Item = T>,
        gateways: impl IntoIterator<Item = U>,
    ) -> Result<Self, ExternalError> {
        let read = |text: T| {
            parse_block(text.as_ref()).map_err(|error| match error {
                SubnetError::Form(text) => ExternalError::Form(text),
                error => error.into(),
            })
        };
        let addresses = addresses.into_iter().map(read).collect::<Result<_, _>>()?;
        let gateways = gateways.into_iter().map(|text| parse_ip(text.as_ref()));
        Self::new(id, vni, addresses, gateways.collect::<Result<_, _>>()?)
    }

    /// Has it leave this host by a device, or by one VLAN of it: a number from 1 to 4094. Fails for
    /// another number.
    pub fn with_wire(self, wire: WireDevice, vlan: Option<u32>) -> Result<Self, ExternalError> {
        let checked = |vlan: u32| match u16::try_from(vlan) {
            Ok(fits) if (1..=4094).contains(&fits) => Ok(fits),
            _ => Err(ExternalError::Vlan(vlan)),
        };
        let vlan = vlan.map(checked).transpose()?;
        Ok(Self { wire: Some(wire), vlan, ..self })
    }

    /// Says that this host chose the VNI, so that vnics cannot be in it. Fails without a wire, as
    /// nothing would be outside.
    pub fn with_chosen_vni(self) -> Result<Self, ExternalError> {
        match self.wire {
            Some(_) => Ok(Self { chosen: true, ..self }),
            None => Err(ExternalError::NoWayOut(self.id)),
        }
    }

    /// Declares the largest IP packet that leaves by it, in bytes. Fails for one that is out of
    /// range, or too small for its IPv6 subnet.
    pub fn with_mtu(self, mtu: Option<u32>) -> Result<Self, ExternalError> {
        let subnets = self.network.subnets().to_vec();
        Ok(Self { network: Network::new(self.network.vni(), subnets, mtu)?, ..self })
    }

    /// Returns its name.
    pub fn id(&self) -> &ExternalId {
        &self.id
    }

    /// Returns its number on this host: the only name of it that the data path knows.
    pub fn vni(&self) -> Vni {
        self.network.vni()
    }

    /// Returns whether its VNI was declared, so that vnics may be in it.
    pub fn is_provider(&self) -> bool {
        !self.chosen
    }

    /// Returns the device by which it leaves this host; `None` if its outside is its vnics here.
    pub fn wire(&self) -> Option<&WireDevice> {
        self.wire.as_ref()
    }

    /// Returns the MAC addresses of this host on a TAP device, and of the device itself, in the
    /// order of transmission. Both are the same after a restart, and others on other hosts, as far
    /// as the ids of their `machine`s differ.
    pub fn tap_macs(&self, machine: &[u8]) -> [[u8; 6]; 2] {
        let [a, b, c, d] = fnv_1a(&[machine, self.id.0.as_bytes()].concat()).to_be_bytes();
        [[0x02, 0xbe, a, b, c, d], [0x02, 0xbd, a, b, c, d]]
    }

    /// Returns this external without its wire: nothing leads out of this host.
    pub fn without_wire(&self) -> Self {
        Self { wire: None, vlan: None, ..self.clone() }
    }

    /// Returns the VLAN of the device that it is, 1 to 4094; `None` for untagged frames.
    pub fn vlan(&self) -> Option<u16> {
        self.vlan
    }

    /// Returns the addresses that this host has there, with the lengths of their subnets, as
    /// declared.
    pub fn addresses(&self) -> &[Cidr] {
        &self.addresses
    }

    /// Returns whether an address is one of this host there.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address() == address)
    }

    /// Returns the gateways outside, that of IPv4 first.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.v4_gateway.map(IpAddr::V4);
        v4.into_iter().chain(self.v6_gateway.map(IpAddr::V6))
    }

    /// Returns the network that it is for routers: its number, its subnets, at most one of each
    /// family, and the declared MTU in bytes of an IP packet. No subnet has a gateway, as routers
    /// of this host have no such addresses.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns whether `other` is the same wire, or by the same host, or has the same VNI if both
    /// have none.
    pub fn is_same_wire(&self, other: &External) -> bool {
        let of = |it: &Self| (it.vni(), it.chosen, it.wire.clone(), it.vlan, it.via);
        of(self) == of(other)
    }

    /// Returns this external with those of its addresses and gateways that `other` has, too. `None`
    /// if no address is left, or it is another wire there.
    pub fn in_common(&self, other: &External) -> Option<Self> {
        let mut addresses = self.addresses.clone();
        addresses.retain(|address| other.addresses.contains(address));
        if !self.is_same_wire(other) || addresses.is_empty() && self.via.is_none() {
            return None;
        }
        let v4_gateway = self.v4_gateway.filter(|_| self.v4_gateway == other.v4_gateway);
        let v6_gateway = self.v6_gateway.filter(|_| self.v6_gateway == other.v6_gateway);
        let mtu = self.network.mtu().map(u32::from);
        let network = Network::new(self.vni(), subnets_of(&addresses), mtu).ok()?;
        let gateway = |ip: IpAddr| network.subnet_of(ip).is_some();
        let v4_gateway = v4_gateway.filter(|ip| gateway((*ip).into()));
        let v6_gateway = v6_gateway.filter(|ip| gateway((*ip).into()));
        Some(Self { network, addresses, v4_gateway, v6_gateway, ..self.clone() })
    }

    /// Returns the routes to everything that a router has by it.
    pub fn default_routes(&self) -> Vec<Route> {
        let everything = |gateway: IpAddr| match gateway {
            IpAddr::V4(_) => Cidr::from_parts(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpAddr::V6(_) => Cidr::from_parts(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        let routes = self.gateways().map(|gateway| Route::new(everything(gateway), vec![gateway]));
        routes.flatten().collect()
    }
}

/// Returns the subnets of addresses, each once.
fn subnets_of(addresses: &[Cidr]) -> Vec<Subnet> {
    let mut all: Vec<Subnet> = Vec::new();
    for address in addresses {
        let subnet = Subnet::new(address.without_host_bits(), None).ok();
        all.extend(subnet.filter(|subnet| !all.contains(subnet)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ExternalId {
        ExternalId::new("internet").unwrap()
    }

    fn external(addresses: &[&str], gateways: &[&str]) -> Result<External, ExternalError> {
        External::parse(id(), Vni::new(77).unwrap(), addresses, gateways)
    }

    #[test]
    fn a_tap_device_has_the_same_addresses_on_one_host() {
        let one = external(&["192.0.2.7/24"], &[]).unwrap();
        let macs = one.tap_macs(b"host one");
        assert_eq!(macs, one.tap_macs(b"host one"));
        assert_ne!(macs[0], macs[1]);
        assert!(one.tap_macs(b"host two").iter().all(|mac| !macs.contains(mac)));
        for mac in macs {
            assert!(mac[0] & 3 == 2 && !crate::is_reserved_mac(mac), "{mac:02x?}");
        }
    }

    #[test]
    fn an_external_is_what_was_said() {
        let it = external(
            &["192.0.2.7/24", "2001:db8::7/64", "192.0.2.8/24"],
            &["2001:db8::1", "192.0.2.1"],
        )
        .unwrap();
        let routes: Vec<String> = it.default_routes().iter().map(Route::to_string).collect();
        assert_eq!(routes, ["0.0.0.0/0 via 192.0.2.1", "::/0 via 2001:db8::1"]);
        let subnets: Vec<String> = it.network().subnets().iter().map(Subnet::to_string).collect();
        assert_eq!(subnets, ["192.0.2.0/24", "2001:db8::/64"]);
        assert!(it.has_address("192.0.2.8".parse().unwrap()) && it.is_provider());
        assert!(!it.has_address("192.0.2.1".parse().unwrap()));
        assert_eq!((it.wire(), it.vlan(), it.network().mtu()), (None, None, None));
        let wire = WireDevice::parse("eth1").unwrap();
        let it = it.with_wire(wire.clone(), Some(4094)).unwrap().with_mtu(Some(9000)).unwrap();
        let it = it.with_chosen_vni().unwrap();
        assert_eq!((it.wire(), it.vlan()), (Some(&wire), Some(4094)));
        assert_eq!((it.network().mtu(), it.is_provider()), (Some(9000), false));
    }

    #[test]
    fn it_needs_addresses_of_one_subnet_a_family() {
        let nine: Vec<String> = (1..10).map(|n| format!("192.0.2.{n}/24")).collect();
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        assert!(external(&nine[..8], &[]).is_ok());
        for (addresses, gateways, why) in [
            (&[][..], &[][..], "has 1 to 8 addresses of this host, with their lengths, not 0"),
            (&nine[..], &[], "with their lengths, not 9"),
            (&["192.0.2.7"], &[], "write 192.0.2.7/24 or 2001:db8::7/64"),
            (&["192.0.2.7/33"], &[], "mask size 33 of 192.0.2.7 is out of range"),
            (&["127.0.0.1/8"], &[], "has addresses that no host of a network can have"),
            (&["fe80::1/64"], &[], "has addresses that no host of a network can have"),
            (&["192.0.2.0/24"], &[], "192.0.2.0/24 is not the address of a host in its subnet"),
            (&["192.0.2.255/24"], &[], "192.0.2.255/24 is not the address of a host"),
            (&["192.0.2.7/24", "192.0.2.8/25"], &[], "192.0.2.7/24 and 192.0.2.8/25 of external"),
            (&["192.0.2.7/24", "192.0.2.7/24"], &[], "192.0.2.7/24 stands twice among"),
            (&["192.0.2.7/24"], &["192.0.3.1"], "the gateway 192.0.3.1 is not in a subnet"),
            (&["192.0.2.7/24"], &["2001:db8::1"], "the gateway 2001:db8::1 is not in a subnet"),
            (
                &["192.0.2.7/24"],
                &["192.0.2.7"],
                "the gateway 192.0.2.7 of external internet is not another",
            ),
            (
                &["192.0.2.7/24"],
                &["192.0.2.255"],
                "192.0.2.255 of external internet is not another machine",
            ),
            (
                &["192.0.2.7/24"],
                &["192.0.2.1", "192.0.2.2"],
                "two gateways of one family, 192.0.2.1 and 192.0.2.2",
            ),
            (&["192.0.2.7/24"], &["x"], "\"x\" is not an IP address"),
        ] {
            let text = external(addresses, gateways).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
        // Both addresses of the smallest subnet are those of machines (RFC 3021).
        assert!(external(&["192.0.2.0/31"], &["192.0.2.1"]).is_ok());
    }

    #[test]
    fn two_declarations_have_in_common_what_both_say() {
        let (v4, v6) = ("192.0.2.7/24", "2001:db8::7/64");
        let both = external(&[v4, v6], &["192.0.2.1", "2001:db8::1"]).unwrap();
        let other = external(&["192.0.2.8/24", v4], &["192.0.2.2"]).unwrap();
        let left = both.in_common(&other).unwrap();
        assert_eq!(left, external(&[v4], &[]).unwrap());
        let left = both.in_common(&external(&[v6], &["2001:db8::1"]).unwrap()).unwrap();
        assert_eq!(left, external(&[v6], &["2001:db8::1"]).unwrap());
        assert_eq!(both.in_common(&external(&["192.0.2.7/25"], &[]).unwrap()), None);
        let wire = WireDevice::parse("eth1").unwrap();
        assert_eq!(both.in_common(&both.clone().with_wire(wire, None).unwrap()), None);
        assert_eq!(both.in_common(&both), Some(both.clone()));
    }

    #[test]
    fn it_leads_somewhere() {
        let four = external(&["192.0.2.7/24"], &[]).unwrap();
        let text = four.clone().with_chosen_vni().unwrap_err().to_string();
        assert!(text.starts_with("external internet leads nowhere: name the interface"), "{text}");
        for vlan in [0, 4095, 65_536 + 7, u32::MAX] {
            let wire = WireDevice::parse("eth1").unwrap();
            assert_eq!(four.clone().with_wire(wire, Some(vlan)), Err(ExternalError::Vlan(vlan)));
        }
        assert!(matches!(four.with_mtu(Some(67)), Err(ExternalError::Mtu(MtuError::Range(67)))));
        let six = external(&["2001:db8::7/64"], &[]).unwrap();
        let text = six.with_mtu(Some(1279)).unwrap_err().to_string();
        assert!(text.starts_with("MTU 1279 is too small for the IPv6 subnets"), "{text}");
    }

    #[test]
    fn a_device_has_a_name_that_linux_gives() {
        for text in ["eth1", "tap", "tap:out", "tap0", "tapestry", "fifteen-bytes-x"] {
            assert_eq!(WireDevice::parse(text).unwrap().to_string(), text);
        }
        assert!(!WireDevice::parse("tap0").unwrap().is_tap());
        assert_eq!(WireDevice::parse("tap:out").unwrap().name(), Some("out"));
        for text in ["", "tap:", "a b", "a/b", ".", "..", "a:b", "a\n", "sixteen-bytes-xx"] {
            let error = WireDevice::parse(text).unwrap_err().to_string();
            assert!(error.contains("write the name of an interface, or tap"), "{error}");
        }
    }

    #[test]
    fn names_are_texts_of_one_line() {
        assert_eq!(ExternalId::new("é b").unwrap().to_string(), "é b");
        for text in ["", "a\nb"] {
            let error = ExternalId::new(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("external id {text:?} is refused: it ")), "{error}");
        }
    }

    #[test]
    fn another_host_leads_out() {
        let vni = Vni::new(77).unwrap();
        let over = |host: &str, mtu| External::over(id(), vni, host.parse().unwrap(), mtu);
        let one = over("192.0.2.1", None).unwrap();
        assert_eq!((one.is_provider(), one.wire(), one.addresses().len()), (false, None, 0));
        let host = "192.0.2.1".parse().unwrap();
        assert_eq!(one.second_hop(), Some(SecondHop { host, mtu: 1500 }));
        assert_eq!(over("fd00::1", Some(9000)).unwrap().second_hop().unwrap().mtu, 9000);
        assert!(one.default_routes().is_empty() && one.network().subnets().is_empty());
        assert_eq!(external(&["192.0.2.7/24"], &[]).unwrap().second_hop(), None);
        for host in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"]
        {
            assert!(matches!(over(host, None), Err(ExternalError::NotAnEndpoint(..))), "{host}");
        }
        assert!(over("::ffff:192.0.2.1", None).is_err());
        assert!(matches!(over("192.0.2.1", Some(67)), Err(ExternalError::Mtu(_))));
        // What two declarations have in common is the way out.
        let wired = external(&["192.0.2.7/24"], &[]).unwrap();
        let small = over("192.0.2.1", Some(1400)).unwrap();
        assert_eq!(one.in_common(&small), Some(one.clone()));
        let other = over("192.0.2.2", None).unwrap();
        assert_eq!([&other, &wired].map(|it| one.in_common(it)), [None, None]);
        assert_eq!(wired.in_common(&one), None);
    }
}
