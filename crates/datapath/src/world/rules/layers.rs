//! Layers: what groups allow, compiled, and how a session is looked up in it.

use std::{net::IpAddr, sync::Arc};

use super::{blocks::Blocks, ports::Ports};
use crate::ip::{Address, is_v4, mapped};

/// Which groups an address is a member of, ascending. Copies share what did not change.
pub(crate) type Members = imbl::HashMap<Address, Arc<[u32]>>;

/// What the groups of a vnic allow.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// Towards the vnic: peers are sources.
    pub ingress: Layers,
    /// From it: peers are destinations. Without any OUTBOUND rule everything may leave.
    pub egress: Option<Layers>,
    /// The INBOUND rules that make a DHCP server of the vnic: UDP, [`NARROW`] ports at most, a
    /// server's among them.
    pub serves: Side,
    /// The OUTBOUND rules that name what only infrastructure says: ICMP, ICMPv6, and UDP with
    /// [`NARROW`] ports at most, a DHCP client's among them. "Everything" does not mean it.
    pub names: Side,
}

/// Most ports of a rule that means each of them.
pub(crate) const NARROW: usize = 16;

/// What all groups of a vnic allow in one direction.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    /// Of small groups together.
    pub merged: Side,
    /// Of a large group each, the same for all vnics that have it.
    pub shared: Box<[Arc<Side>]>,
}

impl Layers {
    /// Cell of a rule that allows a protocol and destination port with this peer.
    pub fn admits(
        &self,
        peer: Address,
        protocol: u8,
        destination_port: u16,
        members: &Members,
    ) -> Option<u32> {
        let shared = || {
            self.shared
                .iter()
                .find_map(|side| side.admits(peer, protocol, destination_port, members))
        };
        self.merged.admits(peer, protocol, destination_port, members).or_else(shared)
    }
}

/// What some groups allow in one direction.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub v4: Blocks<Ports>,
    pub v6: Blocks<Ports>,
    /// By number of the group, ascending.
    pub groups: Box<[(u32, Ports)]>,
}

/// An address as the packet path has it.
pub(crate) fn number(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(ip) => mapped(ip),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The address of a [`number`].
pub(crate) fn address(number: Address) -> IpAddr {
    if is_v4(number) { IpAddr::V4((number as u32).into()) } else { IpAddr::V6(number.into()) }
}

impl Side {
    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.groups.is_empty()
    }

    /// Cell of a rule that allows a protocol and destination port with this peer.
    pub fn admits(
        &self,
        peer: Address,
        protocol: u8,
        destination_port: u16,
        members: &Members,
    ) -> Option<u32> {
        let blocks = if is_v4(peer) { &self.v4 } else { &self.v6 };
        blocks.around(peer).find_map(|ports| ports.admits(protocol, destination_port)).or_else(
            || {
                if self.groups.is_empty() {
                    return None;
                }
                let of_peer: &[u32] = members.get(&peer)?;
                // Both are sorted: go through the shorter one.
                if of_peer.len() <= self.groups.len() {
                    of_peer.iter().find_map(|group| {
                        let at =
                            self.groups.binary_search_by_key(group, |(number, _)| *number).ok()?;
                        self.groups.get(at)?.1.admits(protocol, destination_port)
                    })
                } else {
                    let among = self
                        .groups
                        .iter()
                        .filter(|(group, _)| of_peer.binary_search(group).is_ok());
                    among
                        .into_iter()
                        .find_map(|(_, ports)| ports.admits(protocol, destination_port))
                }
            },
        )
    }
}
