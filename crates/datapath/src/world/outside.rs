//! Outsides: networks that lead out of what this host routes, by a wire or by vnics.

use butterfly_model::External;
use butterfly_packet::Mac;

use crate::engine::mac::number;
use crate::ip::{
    Address,
    discovery::{is_link_local, link_local},
    is_v4,
};
use crate::world::{nat::NatTable, rules::number as number_of_ip};

/// This host's place on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WirePlace {
    pub mac: Mac,
    /// Largest IP packet that it takes, in bytes.
    pub mtu: u32,
}

/// Outside of a declared network.
#[derive(Debug)]
pub(crate) struct Outside {
    /// MAC address that all routers of this host have on its wire, as [`number`]. Without a wire it
    /// is 0, and each router has its own.
    pub mac: u64,
    /// Addresses that this host answers for, ascending, and the MAC addresses that do.
    answered: Box<[(Address, u64)]>,
    /// This host's own addresses there.
    own: Box<[Address]>,
    /// Translations of its routers.
    pub nat: NatTable,
    /// The gateways outside, which only the wire has; none without a wire.
    gateways: Box<[Address]>,
    /// Largest IP packet that leaves, in bytes.
    pub mtu: u32,
}

impl Outside {
    /// Makes an outside. `routers` are addresses that routers have there, by translation or as
    /// their own, each with the MAC address of its router.
    pub fn new(
        external: &External,
        wire: Option<WirePlace>,
        routers: impl Iterator<Item = (Address, u64)>,
        nat: NatTable,
    ) -> Outside {
        let mac = wire.map_or(0, |wire| number(wire.mac));
        let own: Box<[Address]> =
            external.addresses().iter().map(|block| number_of_ip(block.address())).collect();
        let mut answered: Vec<(Address, u64)> = match wire {
            None => routers.collect(),
            Some(wire) => {
                // Neighbours ask for the address from which they were asked (RFC 4861, 7.3.3).
                let near = own.iter().any(|own| !is_v4(*own)).then(|| link_local(wire.mac));
                let all = routers.map(|(address, _)| address).chain(own.iter().copied());
                all.chain(near).map(|address| (address, mac)).collect()
            }
        };
        answered.sort_unstable();
        answered.dedup_by_key(|(address, _)| *address);
        let gateways = external.gateways().filter(|_| wire.is_some()).map(number_of_ip).collect();
        let mtu = wire.map_or(u32::MAX, |wire| wire.mtu);
        Outside { mac, answered: answered.into(), own, gateways, mtu, nat }
    }

    /// Returns the MAC address that answers for an address, if this host does.
    pub fn answers_for(&self, address: Address) -> Option<u64> {
        let found = self.answered.binary_search_by_key(&address, |(address, _)| *address);
        self.answered.get(found.ok()?).map(|(_, mac)| *mac)
    }

    /// Returns the address from which this host asks for one of the same family.
    pub fn asker(&self, address: Address) -> Option<Address> {
        self.own.iter().find(|own| is_v4(**own) == is_v4(address)).copied()
    }

    /// Returns whether an address is that of a gateway behind the wire, which no vnic has.
    pub fn is_behind_wire(&self, address: Address) -> bool {
        self.gateways.contains(&address)
    }

    /// Returns the addresses that are told on the wire: those that this host answers for, but its
    /// link-local one.
    pub fn announced(&self) -> impl Iterator<Item = Address> {
        let all = self.answered.iter().filter(|(_, mac)| self.mac != 0 && *mac == self.mac);
        all.map(|(address, _)| *address).filter(|address| !is_link_local(*address))
    }
}
