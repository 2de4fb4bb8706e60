//! Declared neighbours: machines of a network that are not vnics of this host.

use crate::{
    address::{AddressError, canonical, may_be_endpoint, parse_ip},
    mac::{Mac, MacError},
    router::is_reserved_mac,
    vni::Vni,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

/// A machine of a network as routers find it: its IP address and MAC address, and maybe the host
/// on which it runs.
///
/// Addresses that vnics of this host have count before it, so all hosts may have the same list.
///
/// ```
/// use butterfly_model::{Neighbour, Vni};
/// let vni = Vni::new(42).unwrap();
/// let db = Neighbour::parse(vni, "10.6.0.10", "52:54:00:00:00:12", Some("192.0.2.2"))?;
/// assert_eq!(db.to_string(), "10.6.0.10 is at 52:54:00:00:00:12 on host 192.0.2.2");
/// assert!(Neighbour::parse(vni, "10.6.0.10", "01:00:5e:00:00:01", None).is_err());
/// # Ok::<(), butterfly_model::NeighbourError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    vni: Vni,
    address: IpAddr,
    mac: Mac,
    host: Option<IpAddr>,
}

/// Reason why a neighbour is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeighbourError {
    /// An address is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The MAC address is none.
    #[error(transparent)]
    Mac(#[from] MacError),
    /// No machine can have the address.
    #[error("{0} is not the address of a machine that routers reach; choose one of a subnet")]
    NotAMachine(String),
    /// Nothing can be sent to the MAC address alone.
    #[error("MAC address {0} is refused: {1}; give the one that the machine has")]
    NoStation(Mac, &'static str),
    /// The host has no such tunnel endpoint.
    #[error("{0} cannot be the tunnel endpoint of a host; give the address of the other host")]
    NotAHost(String),
}

impl Neighbour {
    /// Makes a neighbour. Fails for addresses that no machine has, or no host.
    pub fn new(
        vni: Vni,
        address: IpAddr,
        mac: Mac,
        host: Option<IpAddr>,
    ) -> Result<Self, NeighbourError> {
        if is_special(address) || is_link_local(address) {
            return Err(NeighbourError::NotAMachine(canonical(address)));
        }
        let reserved = || is_reserved_mac(mac.octets()).then_some("it is one of the switch's own");
        if let Some(why) = mac.no_station().or_else(reserved) {
            return Err(NeighbourError::NoStation(mac, why));
        }
        match host.filter(|host| !may_be_endpoint(*host)) {
            Some(host) => Err(NeighbourError::NotAHost(canonical(host))),
            None => Ok(Self { vni, address, mac, host }),
        }
    }

    /// Reads a neighbour of the texts of its addresses.
    pub fn parse(
        vni: Vni,
        address: &str,
        mac: &str,
        host: Option<&str>,
    ) -> Result<Self, NeighbourError> {
        let host = host.map(parse_ip).transpose()?;
        Self::new(vni, parse_ip(address)?, Mac::parse(mac)?, host)
    }

    /// Returns the number of its network.
    pub fn vni(&self) -> Vni {
        self.vni
    }

    /// Returns its IP address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns its MAC address.
    pub fn mac(&self) -> &Mac {
        &self.mac
    }

    /// Returns the tunnel endpoint of the host on which it runs; `None` if the switch is to learn
    /// that.
    pub fn host(&self) -> Option<IpAddr> {
        self.host
    }
}

/// Returns whether no machine has an address: nobody's, loopback, a group or broadcast.
fn is_special(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    let this_network = matches!(address, IpAddr::V4(ip) if ip.octets()[0] == 0);
    let none = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    none || broadcast || this_network
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is at {}", canonical(self.address), self.mac)?;
        match self.host {
            Some(host) => write!(f, " on host {}", canonical(host)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "52:54:00:00:00:12";

    fn refused(address: &str, mac: &str, host: Option<&str>) -> String {
        Neighbour::parse(Vni::new(42).unwrap(), address, mac, host).unwrap_err().to_string()
    }

    #[test]
    fn a_neighbour_is_a_machine() {
        for address in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            assert!(
                refused(address, MAC, None).starts_with(&format!("{address} is not the address"))
            );
        }
        for address in ["::", "::1", "ff02::1", "fe80::1"] {
            assert!(
                refused(address, MAC, None).starts_with(&format!("{address} is not the address"))
            );
        }
        for mac in ["00:00:00:00:00:00", "01:00:5e:00:00:01", "b2:f0:00:00:00:01", "b2:f1:0:0:0:1"]
        {
            assert!(refused("10.0.0.2", mac, None).contains(mac), "{mac}");
        }
        for host in ["0.0.0.0", "::", "224.0.0.1", "127.0.0.1"] {
            assert!(refused("10.0.0.2", MAC, Some(host)).starts_with(&format!("{host} cannot be")));
        }
        assert!(matches!(
            Neighbour::parse(Vni::new(42).unwrap(), "x", MAC, None),
            Err(NeighbourError::Address(_))
        ));
    }

    #[test]
    fn a_host_may_be_of_either_family() {
        for host in ["192.0.2.2", "2001:db8::2", "fe80::2"] {
            let vni = Vni::new(42).unwrap();
            let made = Neighbour::parse(vni, "fd00::2", MAC, Some(host)).unwrap();
            assert_eq!(made.to_string(), format!("fd00::2 is at {MAC} on host {host}"));
            assert_eq!((made.vni(), made.host()), (vni, Some(host.parse().unwrap())));
        }
    }
}
