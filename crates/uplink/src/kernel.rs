//! Knowledge of the host's kernel: interfaces, their addresses, the way to a destination, the
//! neighbour that answers at an address.
//!
//! Questions go to the network namespace in which the [`Kernel`] was opened. Each is a few system
//! calls: for control threads.

use std::{
    fmt, io,
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

use butterfly_packet::Mac;
use netlink_packet_core::parse_ip;

pub use crate::netlink::Changes;
use crate::{
    Error,
    netlink::{Message, Request, Socket, attribute},
};

/// Lengths of the fixed parts: `ifinfomsg`, `ifaddrmsg`, `rtmsg`, `ndmsg`.
const LINK: usize = 16;
const ADDRESS: usize = 8;
const ROUTE: usize = 12;
const NEIGHBOUR: usize = 12;
/// Attribute of a VLAN: its number.
const IFLA_VLAN_ID: u16 = 1;

/// A network interface, as of when it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// The largest IP packet it carries, in bytes.
    pub mtu: u32,
    /// True if it is up (`IFF_UP`); it may still have no carrier.
    pub up: bool,
    /// True if frames pass (`IFF_RUNNING`): it is up, and has a carrier if it is of a kind that may
    /// have none.
    pub running: bool,
    /// Number of times that its carrier came or went.
    pub carrier_changes: u32,
    /// Index of the interface it was put into: a bridge, for one.
    pub master: Option<u32>,
    /// True if that is a bridge.
    pub bridged: bool,
    /// Index of the interface under a VLAN's interface.
    pub vlan_of: Option<u32>,
    /// Kind of a virtual interface: `veth`, `bridge`, `vlan`.
    pub kind: Option<String>,
    /// Receive queues its driver made. Fewer may be in use.
    pub receive_queues: u32,
    /// The IP addresses it holds, if they were asked for.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// True if the host answers for `address` on this interface.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

/// Interface by which a packet leaves the host, and the next station it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// Index of the interface.
    pub interface: u32,
    /// The router, or the destination itself if it is on the link. May be of the other address
    /// family (RFC 5549).
    pub via: IpAddr,
}

/// A connection to the kernel of one network namespace.
pub struct Kernel {
    socket: Socket,
}

impl Kernel {
    /// Opens one in the network namespace of this thread.
    pub fn open() -> Result<Kernel, Error> {
        let socket = Socket::open().map_err(|error| {
            Error::failed("cannot open a netlink socket to ask the kernel", error)
        })?;
        Ok(Kernel { socket })
    }

    /// The interface of that name, and the addresses it holds.
    pub fn interface(&mut self, name: &str) -> Result<Interface, Error> {
        let link = self.link(name)?;
        let not_ethernet = || {
            Error::refused(format!("cannot look up the network interface \"{name}\": not Ethernet"))
        };
        let mut interface = link.iter().find_map(read_link).ok_or_else(not_ethernet)?;
        interface.addresses = self.addresses_of(interface.index, name)?;
        Ok(interface)
    }

    /// Returns the addresses of the interface with that name, of any kind.
    pub fn addresses(&mut self, name: &str) -> Result<Vec<IpAddr>, Error> {
        let link = self.link(name)?;
        link.iter()
            .find_map(|message| message.u32(4))
            .map_or(Ok(Vec::new()), |index| self.addresses_of(index, name))
    }

    fn link(&mut self, name: &str) -> Result<Vec<Message>, Error> {
        let what = format!("cannot look up the network interface \"{name}\"");
        let fixed = [0; LINK];
        let request = Request::new(libc::RTM_GETLINK, 0, &fixed)
            .with(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        self.socket.ask(&request).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => {
                Error::failed(what, error).help("`ip link` lists the interfaces there are")
            }
            _ => Error::failed(what, error),
        })
    }

    fn addresses_of(&mut self, index: u32, name: &str) -> Result<Vec<IpAddr>, Error> {
        let request = Request::new(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; ADDRESS]);
        let answer = self.socket.ask(&request).map_err(|error| {
            Error::failed(format!("cannot list the addresses of \"{name}\""), error)
        })?;
        Ok(answer.iter().filter_map(|message| read_address(message, index)).collect())
    }

    /// Returns the interface with that number, even if it was renamed. Its addresses are not asked
    /// for. `None`: there is none.
    pub fn interface_at(&mut self, index: u32) -> Result<Option<Interface>, Error> {
        let mut fixed = [0; LINK];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        match self.socket.ask(&Request::new(libc::RTM_GETLINK, 0, &fixed)) {
            Ok(answer) => Ok(answer.iter().find_map(read_link)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::failed(
                format!("cannot look up the network interface with number {index}"),
                error,
            )),
        }
    }

    /// True if an interface is that of a VLAN on another one.
    pub fn is_vlan_on(&mut self, interface: u32, on: u32, vlan: u16) -> bool {
        let mut fixed = [0; LINK];
        fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
        let found =
            self.socket.ask(&Request::new(libc::RTM_GETLINK, 0, &fixed)).unwrap_or_default();
        found.iter().any(|message| {
            vlan_id(message) == Some(vlan)
                && read_link(message).is_some_and(|found| found.vlan_of == Some(on))
        })
    }

    /// True if the host holds an address on the interface of a VLAN on this one.
    pub fn vlan_holds(&mut self, on: &Interface, vlan: u16, address: IpAddr) -> bool {
        if vlan == 0 {
            return false;
        }
        let all = self
            .socket
            .ask(&Request::new(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; LINK]))
            .unwrap_or_default();
        let of_vlan: Vec<Interface> = all
            .iter()
            .filter(|message| vlan_id(message) == Some(vlan))
            .filter_map(read_link)
            .filter(|found| found.vlan_of == Some(on.index))
            .collect();
        of_vlan.iter().any(|found| {
            let held = self.addresses_of(found.index, &found.name);
            held.is_ok_and(|held| held.contains(&address))
        })
    }

    /// Returns how the kernel would send to `destination`. `None`: not at all (no route, a
    /// forbidden one), or it is this host.
    pub fn next_hop(&mut self, destination: IpAddr) -> Result<Option<NextHop>, Error> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        let mut fixed = [0; ROUTE];
        fixed[0] = family(destination);
        fixed[1] = bits;
        let request =
            Request::new(libc::RTM_GETROUTE, 0, &fixed).with_address(libc::RTA_DST, destination);
        match self.socket.ask(&request) {
            Ok(answer) => Ok(answer.iter().find_map(|message| read_route(message, destination))),
            // How the kernel says unreachable, blackhole and prohibited.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(
                        libc::ENETUNREACH
                            | libc::EHOSTUNREACH
                            | libc::EINVAL
                            | libc::EACCES
                            | libc::ESRCH
                    )
                ) =>
            {
                Ok(None)
            }
            Err(error) => {
                Err(Error::failed(format!("cannot ask for the route to {destination}"), error))
            }
        }
    }

    /// The MAC address at which `address` is known to be on an interface. `None`: not known, or not
    /// any more; [`Self::ask`] for it.
    pub fn neighbour(&mut self, interface: u32, address: IpAddr) -> Result<Option<Mac>, Error> {
        self.neighbour_in(
            interface,
            address,
            CONFIRMED | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE,
        )
    }

    /// Returns the same as [`Self::neighbour`], but only if the kernel learnt it lately, or has it
    /// for good. Excludes entries that the kernel would verify before it relied on them.
    pub fn confirmed(&mut self, interface: u32, address: IpAddr) -> Result<Option<Mac>, Error> {
        self.neighbour_in(interface, address, CONFIRMED)
    }

    fn neighbour_in(
        &mut self,
        interface: u32,
        address: IpAddr,
        states: u16,
    ) -> Result<Option<Mac>, Error> {
        let request =
            Request::new(libc::RTM_GETNEIGH, 0, &neighbour_message(interface, address, 0))
                .with_address(libc::NDA_DST, address);
        match self.socket.ask(&request) {
            Ok(answer) => Ok(answer.iter().find_map(|message| read_neighbour(message, states))),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(Error::failed(
                format!("cannot ask for the neighbour {address} on interface {interface}"),
                error,
            )),
        }
    }

    /// Makes the kernel find out which neighbour is at `address` on an interface, as if it had
    /// something to send. Returns at once; [`Self::neighbour`] has the answer when there is one.
    /// Needs `CAP_NET_ADMIN`.
    pub fn ask(&mut self, interface: u32, address: IpAddr) -> Result<(), Error> {
        let fixed = neighbour_message(interface, address, libc::NTF_USE);
        let request = Request::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE, &fixed)
            .with_address(libc::NDA_DST, address);
        match self.socket.ask(&request) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::failed(
                format!("cannot make the kernel look for {address} on interface {interface}"),
                error,
            )),
        }
    }

    /// Gives an interface another MTU, in bytes. Needs `CAP_NET_ADMIN`; some drivers restart the
    /// card for it.
    pub fn set_mtu(&mut self, interface: &Interface, mtu: u32) -> Result<(), Error> {
        let request = Request::new(libc::RTM_NEWLINK, 0, &link_message(interface, false))
            .with(libc::IFLA_MTU, &mtu.to_ne_bytes());
        let failed = |error: io::Error| {
            Error::failed(format!("cannot set the MTU of \"{}\" to {mtu}", interface.name), error)
        };
        self.socket.ask(&request).map(|_| ()).map_err(failed)
    }

    /// Gives an interface that is down an address and an MTU in bytes, and takes it up if it stays
    /// here. Needs `CAP_NET_ADMIN`.
    pub fn set_station(
        &mut self,
        interface: &Interface,
        mac: Mac,
        mtu: u32,
        up: bool,
    ) -> io::Result<()> {
        let request = Request::new(libc::RTM_NEWLINK, 0, &link_message(interface, up))
            .with(libc::IFLA_ADDRESS, &mac.0)
            .with(libc::IFLA_MTU, &mtu.to_ne_bytes());
        self.socket.ask(&request).map(|_| ())
    }

    /// Gives an interface an address, and nothing else. Needs `CAP_NET_ADMIN`.
    pub fn set_mac(&mut self, interface: &Interface, mac: Mac) -> io::Result<()> {
        let request = Request::new(libc::RTM_NEWLINK, 0, &link_message(interface, false))
            .with(libc::IFLA_ADDRESS, &mac.0);
        self.socket.ask(&request).map(|_| ())
    }

    /// Moves an interface into a network namespace, gives it a name there, and takes it up.
    ///
    /// `%d` in the name is a number of the kernel's choice. After a failure the interface may be
    /// there all the same. Needs `CAP_NET_ADMIN`.
    pub fn move_to(
        &mut self,
        interface: &Interface,
        namespace: BorrowedFd<'_>,
        name: &str,
    ) -> io::Result<()> {
        let request = Request::new(libc::RTM_NEWLINK, 0, &link_message(interface, true))
            .with(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes())
            .with(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        self.socket.ask(&request).map(|_| ())
    }

    /// Takes an interface up.
    pub(crate) fn set_up(&mut self, interface: &Interface) -> Result<(), Error> {
        let failed = |error: io::Error| {
            Error::failed(format!("cannot take \"{}\" up", interface.name), error)
        };
        self.socket
            .ask(&Request::new(libc::RTM_NEWLINK, 0, &link_message(interface, true)))
            .map(|_| ())
            .map_err(failed)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Kernel")
    }
}

/// `struct ifinfomsg` about an interface: to be taken up, or left as it is.
fn link_message(interface: &Interface, up: bool) -> [u8; LINK] {
    let up = if up { libc::IFF_UP as u32 } else { 0 }.to_ne_bytes();
    let mut fixed = [0; LINK];
    fixed[4..8].copy_from_slice(&interface.index.to_ne_bytes());
    fixed[8..12].copy_from_slice(&up);
    fixed[12..16].copy_from_slice(&up);
    fixed
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// `struct ndmsg` about an address on an interface.
fn neighbour_message(interface: u32, address: IpAddr, flags: u8) -> [u8; NEIGHBOUR] {
    let mut fixed = [0; NEIGHBOUR];
    fixed[0] = family(address);
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    fixed[10] = flags;
    fixed
}

/// The VLAN that an interface stands for (`IFLA_VLAN_ID`).
fn vlan_id(message: &Message) -> Option<u16> {
    let data = attribute(message.attribute(LINK, libc::IFLA_LINKINFO)?, libc::IFLA_INFO_DATA)?;
    attribute(data, IFLA_VLAN_ID)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn read_link(message: &Message) -> Option<Interface> {
    let name = message.attribute(LINK, libc::IFLA_IFNAME)?;
    Some(Interface {
        index: message.u32(4)?,
        name: String::from_utf8_lossy(name.strip_suffix(b"\0").unwrap_or(name)).into_owned(),
        mac: Mac(message.attribute(LINK, libc::IFLA_ADDRESS)?.try_into().ok()?),
        mtu: message.number(LINK, libc::IFLA_MTU)?,
        up: message.u32(8)? & libc::IFF_UP as u32 != 0,
        running: message.u32(8)? & libc::IFF_RUNNING as u32 != 0,
        carrier_changes: message.number(LINK, libc::IFLA_CARRIER_CHANGES).unwrap_or(0),
        master: message.number(LINK, libc::IFLA_MASTER),
        bridged: port_kind_of(message).is_some_and(|kind| kind == b"bridge"),
        vlan_of: message
            .number(LINK, libc::IFLA_LINK)
            .filter(|_| kind_of(message) == Some(b"vlan")),
        kind: kind_of(message).map(|kind| String::from_utf8_lossy(kind).into_owned()),
        receive_queues: message.number(LINK, libc::IFLA_NUM_RX_QUEUES).unwrap_or(1),
        addresses: Vec::new(),
    })
}

/// Returns the kind of a virtual interface.
fn kind_of(message: &Message) -> Option<&[u8]> {
    let kind = attribute(message.attribute(LINK, libc::IFLA_LINKINFO)?, libc::IFLA_INFO_KIND)?;
    Some(kind.strip_suffix(b"\0").unwrap_or(kind))
}

/// The kind of what it was put into.
fn port_kind_of(message: &Message) -> Option<&[u8]> {
    let kind =
        attribute(message.attribute(LINK, libc::IFLA_LINKINFO)?, libc::IFLA_INFO_SLAVE_KIND)?;
    Some(kind.strip_suffix(b"\0").unwrap_or(kind))
}

/// The interface's own address. On a link with two ends, `IFA_ADDRESS` is the other end's.
fn read_address(message: &Message, interface: u32) -> Option<IpAddr> {
    if message.u32(4)? != interface {
        return None;
    }
    let own = message.attribute(ADDRESS, libc::IFA_LOCAL);
    own.or_else(|| message.attribute(ADDRESS, libc::IFA_ADDRESS)).and_then(read_ip)
}

fn read_route(message: &Message, destination: IpAddr) -> Option<NextHop> {
    if message.u8(7)? != libc::RTN_UNICAST {
        return None;
    }
    let gateway = message.attribute(ROUTE, libc::RTA_GATEWAY).and_then(read_ip);
    // RTA_VIA: a family, then an address of it.
    let via = || message.attribute(ROUTE, libc::RTA_VIA).and_then(|value| read_ip(value.get(2..)?));
    Some(NextHop {
        interface: message.number(ROUTE, libc::RTA_OIF)?,
        via: gateway.or_else(via).unwrap_or(destination),
    })
}

/// States of neighbours that need no confirmation now.
const CONFIRMED: u16 = libc::NUD_REACHABLE | libc::NUD_PERMANENT | libc::NUD_NOARP;

fn read_neighbour(message: &Message, states: u16) -> Option<Mac> {
    if message.u16(8)? & states == 0 {
        return None;
    }
    Some(Mac(message.attribute(NEIGHBOUR, libc::NDA_LLADDR)?.try_into().ok()?))
}

fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    parse_ip(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_vlan_is_on_another_interface() {
        let told = |kind: &[u8]| {
            // An attribute in an attribute: its length, what it is, its value.
            let kind = [
                &(4 + kind.len() as u16).to_ne_bytes()[..],
                &libc::IFLA_INFO_KIND.to_ne_bytes(),
                kind,
            ]
            .concat();
            let request =
                Request::new(libc::RTM_NEWLINK, 0, &[0; LINK]).with(libc::IFLA_IFNAME, b"eth0.7\0");
            let request = request
                .with(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1])
                .with(libc::IFLA_MTU, &1500u32.to_ne_bytes());
            let request =
                request.with(libc::IFLA_LINK, &3u32.to_ne_bytes()).with(libc::IFLA_LINKINFO, &kind);
            read_link(&Message::like(request)).unwrap()
        };
        assert_eq!(told(b"vlan\0").vlan_of, Some(3));
        assert_eq!(told(b"veth\0").kind.as_deref(), Some("veth"));
        assert_eq!(
            told(b"veth\0").vlan_of,
            None,
            "the number of its other end, perhaps in another namespace"
        );
    }
}
