//! Declared translations: the addresses that machines of a router have outside.

use crate::{
    address::{AddressError, canonical, parse_ip},
    cidr::Cidr,
    external::ExternalId,
    router::RouterId,
    subnet::SPECIAL,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
};

/// A transport protocol that has ports which are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForwardProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl ForwardProtocol {
    /// Returns its number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// Returns its name: `tcp` or `udp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// One translation of a router at an external. Made by [`Nat::floating`], [`Nat::snat`] and
/// [`Nat::forward`] alone, which check its parts.
///
/// ```
/// use butterfly_model::Nat;
/// let web = Nat::floating("192.0.2.80".parse().unwrap(), "10.5.0.10".parse().unwrap())?;
/// assert_eq!(web.to_string(), "floating 192.0.2.80 to 10.5.0.10");
/// assert!(Nat::snat([127, 0, 0, 1].into()).is_err());
/// # Ok::<(), butterfly_model::NatError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nat {
    /// An address outside is one inside, in both directions. Both are of one family.
    #[non_exhaustive]
    Floating {
        /// The address outside.
        outside: IpAddr,
        /// The machine's own address.
        inside: IpAddr,
    },
    /// Machines of all networks of the router leave by this address, one of a pool, by ports that
    /// are chosen for them.
    #[non_exhaustive]
    Snat {
        /// The address outside.
        outside: Ipv4Addr,
    },
    /// A port of an address outside is a port of a machine inside. No port is 0.
    #[non_exhaustive]
    Forward {
        /// The address outside.
        outside: Ipv4Addr,
        /// The protocol that has the ports.
        protocol: ForwardProtocol,
        /// The port outside.
        port: u16,
        /// The machine's own address.
        inside: Ipv4Addr,
        /// The machine's port.
        to_port: u16,
    },
}

/// Place of a translation at an external: an address, and a port of it or all that no other
/// translation has.
pub type NatPlace = (IpAddr, Option<(ForwardProtocol, u16)>);

/// Reason why a translation is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatError {
    /// A text that is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An address that no machine has.
    #[error("{} is not the address of a machine; choose another", canonical(*.0))]
    NotAMachine(IpAddr),
    /// Two families.
    #[error("{} cannot be {}, which is of another address family", canonical(*.outside), canonical(*.inside))]
    Family {
        /// The address outside.
        outside: IpAddr,
        /// The address inside.
        inside: IpAddr,
    },
    /// One address on both sides.
    #[error("{} cannot be translated to itself; a public network needs no translation", canonical(*.0))]
    Same(IpAddr),
    /// A family that is not translated by ports.
    #[error(
        "{} is not translated by ports: IPv6 leaves as it is, or by a floating address; give an IPv4 address", canonical(*.0)
    )]
    FourOnly(IpAddr),
    /// An address and a port in another form.
    #[error("\"{0}\" is no IPv4 address with a port; write 192.0.2.80:443")]
    Endpoint(String),
    /// A protocol without ports that are forwarded.
    #[error("\"{0}\" is not forwarded: the protocol is tcp or udp")]
    Protocol(String),
    /// A port that is none.
    #[error("port {0} is out of range: 1 to 65535")]
    Port(u32),
}

impl Nat {
    /// Makes an address outside that of one machine. Fails for addresses that no machine has, of
    /// two families, or that are the same.
    pub fn floating(outside: IpAddr, inside: IpAddr) -> Result<Self, NatError> {
        for address in [outside, inside] {
            machine(address)?;
        }
        if outside.is_ipv4() != inside.is_ipv4() {
            return Err(NatError::Family { outside, inside });
        }
        if outside == inside {
            return Err(NatError::Same(outside));
        }
        Ok(Self::Floating { outside, inside })
    }

    /// Makes an address outside the one by which machines leave. Fails for one that no machine has,
    /// and for IPv6.
    pub fn snat(outside: IpAddr) -> Result<Self, NatError> {
        Ok(Self::Snat { outside: four(outside)? })
    }

    /// Makes a port outside that of a machine. Fails for addresses that no machine has, and for
    /// port 0.
    pub fn forward(
        protocol: ForwardProtocol,
        outside: SocketAddrV4,
        inside: SocketAddrV4,
    ) -> Result<Self, NatError> {
        for end in [outside, inside] {
            machine((*end.ip()).into())?;
            if end.port() == 0 {
                return Err(NatError::Port(0));
            }
        }
        Ok(Self::Forward {
            outside: *outside.ip(),
            protocol,
            port: outside.port(),
            inside: *inside.ip(),
            to_port: inside.port(),
        })
    }

    /// Returns the address outside.
    pub fn outside(&self) -> IpAddr {
        match self {
            Self::Floating { outside, .. } => *outside,
            Self::Snat { outside } | Self::Forward { outside, .. } => (*outside).into(),
        }
    }

    /// Returns the machine inside to which it leads; `None` for an address by which many leave.
    pub fn inside(&self) -> Option<IpAddr> {
        match self {
            Self::Floating { inside, .. } => Some(*inside),
            Self::Snat { .. } => None,
            Self::Forward { inside, .. } => Some((*inside).into()),
        }
    }

    /// Returns the machine inside to which it leads, and the protocol and port of it unless it
    /// leads to all of them. `None` for an address by which many leave.
    pub fn end(&self) -> Option<NatPlace> {
        let port = match self {
            Self::Forward { protocol, to_port, .. } => Some((*protocol, *to_port)),
            Self::Floating { .. } | Self::Snat { .. } => None,
        };
        self.inside().map(|inside| (inside, port))
    }

    /// Returns what it has of the external, by which it is known there.
    pub fn place(&self) -> NatPlace {
        let port = match self {
            Self::Forward { protocol, port, .. } => Some((*protocol, *port)),
            Self::Floating { .. } | Self::Snat { .. } => None,
        };
        (self.outside(), port)
    }
}

/// Shows it as people read it.
impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floating { outside, inside } => {
                write!(f, "floating {} to {}", canonical(*outside), canonical(*inside))
            }
            Self::Snat { outside } => write!(f, "snat {outside}"),
            Self::Forward { outside, protocol, port, inside, to_port } => {
                write!(f, "forward {} {outside}:{port} to {inside}:{to_port}", protocol.name())
            }
        }
    }
}

/// A translation, and the router and the external between which it translates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatRule {
    /// The router whose machines are inside.
    pub router: RouterId,
    /// The external that is outside.
    pub external: ExternalId,
    /// The translation.
    pub nat: Nat,
}

impl fmt::Display for NatRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of router {} at external {}", self.nat, self.router, self.external)
    }
}

/// Reads an IPv4 address and a port: `192.0.2.80:443`. Fails for other forms, and for port 0.
pub fn parse_endpoint(text: &str) -> Result<SocketAddrV4, NatError> {
    let form = || NatError::Endpoint(text.to_owned());
    let (address, port) = text.rsplit_once(':').ok_or_else(form)?;
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u32 = port.parse().ok().filter(|_| digits).ok_or_else(form)?;
    let IpAddr::V4(address) = parse_ip(address).map_err(|_| form())? else { return Err(form()) };
    match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(SocketAddrV4::new(address, port)),
        _ => Err(NatError::Port(port)),
    }
}

/// Checks that a machine can have an address which routers pass on.
fn machine(address: IpAddr) -> Result<(), NatError> {
    let special = SPECIAL.map(|(special, bits)| Cidr::from_parts(special, bits));
    match special.iter().any(|special| special.contains(address)) {
        true => Err(NatError::NotAMachine(address)),
        false => Ok(()),
    }
}

fn four(address: IpAddr) -> Result<Ipv4Addr, NatError> {
    machine(address)?;
    match address {
        IpAddr::V4(v4) => Ok(v4),
        IpAddr::V6(_) => Err(NatError::FourOnly(address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_translation_is_what_was_said() {
        let floating = Nat::floating(ip("2001:db8::80"), ip("fd00::10")).unwrap();
        assert_eq!(floating.to_string(), "floating 2001:db8::80 to fd00::10");
        assert_eq!(
            (floating.outside(), floating.inside()),
            (ip("2001:db8::80"), Some(ip("fd00::10")))
        );
        let snat = Nat::snat(ip("192.0.2.9")).unwrap();
        assert_eq!((snat.to_string().as_str(), snat.inside()), ("snat 192.0.2.9", None));
        let ends = ["192.0.2.9:443", "10.5.0.10:8443"].map(|text| parse_endpoint(text).unwrap());
        let forward = Nat::forward(ForwardProtocol::Tcp, ends[0], ends[1]).unwrap();
        assert_eq!(forward.to_string(), "forward tcp 192.0.2.9:443 to 10.5.0.10:8443");
        assert_eq!(forward.place(), (ip("192.0.2.9"), Some((ForwardProtocol::Tcp, 443))));
        assert_eq!((snat.place().1, floating.place().1), (None, None));
        let rule = NatRule {
            router: RouterId::new("r1").unwrap(),
            external: ExternalId::new("internet").unwrap(),
            nat: snat,
        };
        assert_eq!(rule.to_string(), "snat 192.0.2.9 of router r1 at external internet");
    }

    #[test]
    fn what_is_no_translation_is_refused() {
        let text = |made: Result<Nat, NatError>| made.unwrap_err().to_string();
        let of = |outside, inside| text(Nat::floating(ip(outside), ip(inside)));
        assert!(of("192.0.2.80", "fd00::10").contains("cannot be fd00::10, which is of another"));
        assert!(of("192.0.2.80", "192.0.2.80").contains("cannot be translated to itself"));
        for special in ["0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.0"] {
            let refused = Nat::floating(ip(special), ip("10.0.0.1")).is_err();
            assert_eq!(refused, special != "240.0.0.0", "{special}");
        }
        for special in ["::", "::1", "fe80::1", "ff02::1"] {
            assert!(of("2001:db8::1", special).contains("is not the address of a machine"));
        }
        assert!(text(Nat::snat(ip("2001:db8::1"))).contains("is not translated by ports"));
        let ends = |a: (&str, u16), b: (&str, u16)| {
            let end = |(ip, port): (&str, u16)| SocketAddrV4::new(ip.parse().unwrap(), port);
            text(Nat::forward(ForwardProtocol::Udp, end(a), end(b)))
        };
        assert!(ends(("192.0.2.9", 0), ("10.0.0.1", 1)).contains("port 0 is out of range"));
        assert!(ends(("192.0.2.9", 1), ("10.0.0.1", 0)).contains("port 0 is out of range"));
        assert!(ends(("192.0.2.9", 1), ("127.0.0.1", 1)).contains("127.0.0.1 is not the address"));
    }

    #[test]
    fn an_endpoint_is_an_address_and_a_port() {
        assert_eq!(parse_endpoint("192.0.2.80:65535").unwrap().port(), 65_535);
        for text in ["", "192.0.2.80", "192.0.2.80:", "192.0.2.80:+1", "x:1", "[fd00::1]:1"] {
            assert_eq!(parse_endpoint(text), Err(NatError::Endpoint(text.to_owned())), "{text}");
        }
        for port in [0, 65_536] {
            assert_eq!(parse_endpoint(&format!("192.0.2.80:{port}")), Err(NatError::Port(port)));
        }
    }
}
