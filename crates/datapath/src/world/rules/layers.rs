//! Layers: the compiled rules of groups, and the look-up of a session in them.

use std::{net::IpAddr, sync::Arc};

use super::{blocks::Blocks, ports::Ports};
use crate::ip::{Address, is_v4, mapped, upper};
use butterfly_model::Member;

/// Groups of which addresses and prefixes are members. Copies share all that did not change.
#[derive(Clone, Default)]
pub(crate) struct Members {
    /// Numbers of groups, ascending.
    addresses: imbl::HashMap<Address, Arc<[u32]>>,
    /// The same by the upper half of all addresses of a block.
    prefixes: imbl::HashMap<u64, Arc<[u32]>>,
}

impl Members {
    /// Returns the groups of which an address is a member: by itself, and by its prefix, both
    /// ascending.
    #[inline]
    pub fn groups(&self, address: Address) -> impl Iterator<Item = &[u32]> {
        let by_prefix = match self.prefixes.is_empty() {
            true => None,
            false => self.prefixes.get(&upper(address)),
        };
        self.addresses.get(&address).into_iter().chain(by_prefix).map(|groups| &**groups)
    }

    /// Notes that a member came to a group, or went.
    pub fn change(&mut self, member: Member, group: u32, came: bool) {
        match member {
            Member::Address(ip) => change(&mut self.addresses, number(ip), group, came),
            Member::Prefix(prefix) => change(&mut self.prefixes, prefix.bits(), group, came),
        }
    }
}

fn change<K: Clone + Eq + std::hash::Hash>(
    members: &mut imbl::HashMap<K, Arc<[u32]>>,
    member: K,
    group: u32,
    came: bool,
) {
    let mut of: Vec<u32> = members.get(&member).map(|of| of.to_vec()).unwrap_or_default();
    match (of.binary_search(&group), came) {
        (Err(at), true) => of.insert(at, group),
        (Ok(at), false) => drop(of.remove(at)),
        _ => return,
    }
    if of.is_empty() {
        members.remove(&member)
    } else {
        members.insert(member, of.into())
    };
}

/// Rules of a vnic's groups.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// Towards the vnic: peers are sources.
    pub ingress: Layers,
    /// From it: peers are destinations. Without any OUTBOUND rule everything may leave.
    pub egress: Option<Layers>,
    /// The INBOUND rules that make a DHCP server of the vnic: UDP, [`NARROW`] ports at most, a
    /// server's among them.
    pub serves: Allowance,
    /// The OUTBOUND rules that name infrastructure: ICMP, ICMPv6, and UDP with [`NARROW`] ports at
    /// most, a DHCP client's among them. A rule for everything does not include it.
    pub names: Allowance,
}

/// Most ports of a rule that still names each of them.
pub(crate) const NARROW: usize = 16;

/// Rules of all groups of a vnic in one direction.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    /// Rules of the small groups, merged.
    pub merged: Allowance,
    /// Rules of large groups, one side each, shared by all vnics that have the group.
    pub shared: Box<[Arc<Allowance>]>,
}

impl Layers {
    /// Returns the cell of a rule that allows a protocol and destination port with this peer.
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

    /// Returns the same for a peer that is a member of no group.
    pub fn admits_stranger(
        &self,
        peer: Address,
        protocol: u8,
        destination_port: u16,
    ) -> Option<u32> {
        let mut all = std::iter::once(&self.merged).chain(self.shared.iter().map(|side| &**side));
        all.find_map(|side| side.admits_stranger(peer, protocol, destination_port))
    }
}

/// Rules of some groups in one direction.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    pub v4: Blocks<Ports>,
    pub v6: Blocks<Ports>,
    /// By number of the group, ascending.
    pub groups: Box<[(u32, Ports)]>,
}

/// Returns an address in the form of the packet path.
pub(crate) fn number(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(ip) => mapped(ip),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Returns the address of a [`number`].
pub(crate) fn address(number: Address) -> IpAddr {
    if is_v4(number) { IpAddr::V4((number as u32).into()) } else { IpAddr::V6(number.into()) }
}

impl Allowance {
    /// Returns whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.groups.is_empty()
    }

    /// Returns the cell of a rule that allows a protocol and destination port with this peer.
    pub fn admits(
        &self,
        peer: Address,
        protocol: u8,
        destination_port: u16,
        members: &Members,
    ) -> Option<u32> {
        self.admits_stranger(peer, protocol, destination_port).or_else(|| {
            if self.groups.is_empty() {
                return None;
            }
            let mut all = members.groups(peer);
            all.find_map(|of_peer| self.admits_any(of_peer, protocol, destination_port))
        })
    }

    /// Returns the same for a peer that is a member of these groups, which are sorted.
    fn admits_any(&self, of_peer: &[u32], protocol: u8, destination_port: u16) -> Option<u32> {
        // Both are sorted: go through the shorter one.
        if of_peer.len() <= self.groups.len() {
            of_peer.iter().find_map(|group| {
                let at = self.groups.binary_search_by_key(group, |(number, _)| *number).ok()?;
                self.groups.get(at)?.1.admits(protocol, destination_port)
            })
        } else {
            let mut among =
                self.groups.iter().filter(|(group, _)| of_peer.binary_search(group).is_ok());
            among.find_map(|(_, ports)| ports.admits(protocol, destination_port))
        }
    }

    /// Returns the same for a peer that is a member of no group.
    fn admits_stranger(&self, peer: Address, protocol: u8, destination_port: u16) -> Option<u32> {
        let blocks = if is_v4(peer) { &self.v4 } else { &self.v6 };
        blocks.around(peer).find_map(|ports| ports.admits(protocol, destination_port))
    }
}
