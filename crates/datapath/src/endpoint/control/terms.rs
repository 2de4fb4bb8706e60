//! Terms of the endpoint's protocols: its configuration, and what calls return.

use std::net::{IpAddr, Ipv6Addr};

use butterfly_packet::Mac;

use crate::endpoint::silence::Refusal;

/// Addresses and options of the endpoint.
#[derive(Clone, Debug)]
pub(crate) struct ControlConfig {
    /// Its link address on the uplink.
    pub mac: Mac,
    /// Its address.
    pub endpoint: IpAddr,
    /// Length of its network's prefix: hosts in it are reached directly.
    pub prefix: Option<u8>,
    /// True if no other station answers for the address. The endpoint then answers ARP, neighbour
    /// solicitations and pings.
    pub answers: bool,
    /// Gateways to other hosts; of one IP version, the first that answers is used. Without one, all
    /// hosts are reached directly.
    pub gateways: Vec<IpAddr>,
    /// Prefix of the IPv6 groups of networks.
    pub group6: Ipv6Addr,
}

/// Events that the packet path has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ControlEvent {
    /// Frames to this peer go to that link address.
    Resolved(IpAddr, Mac),
    /// The link address for frames to this peer is not known. A frame that waited for it was
    /// dropped.
    Unreachable(IpAddr),
    /// The peer's host, a router or the link says that our frames to this peer arrive nowhere.
    Refused(IpAddr, Refusal),
}

/// Results of a call. Calls only append.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Whole Ethernet frames to be sent.
    pub frames: Vec<Vec<u8>>,
    /// In the order in which they happened.
    pub events: Vec<ControlEvent>,
}

/// A group that is joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Membership {
    /// Its address.
    pub address: IpAddr,
    /// The network it stands for; `None`: the endpoint's own address needs it (RFC 4861, 7.2.1).
    pub vni: Option<u32>,
    /// Milliseconds since the last report.
    pub reported: u64,
}

/// A next hop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NextHop {
    /// Its address.
    pub address: IpAddr,
    /// "asking", "reachable", "stale", "probing" or "unreachable".
    pub state: &'static str,
    /// Its link address, if it is known.
    pub mac: Option<Mac>,
    /// Milliseconds since it was confirmed last, if it ever was.
    pub age: Option<u64>,
    /// Peers that are reached by it.
    pub peers: usize,
}

/// Returns whether an address can be a station's.
pub(super) fn is_station(mac: Mac) -> bool {
    !mac.is_group() && mac != Mac::ZERO
}
