//! Outsides: networks that lead out of what this host routes, by a wire or by vnics.

use butterfly_model::External;
use butterfly_packet::Mac;

use crate::engine::mac::number;
use crate::ip::{Address, discovery::link_local, is_v4};
use crate::world::{nat::NatTable, rules::number as number_of_ip};

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
    /// What its routers translate.
    pub nat: NatTable,
}

impl Outside {
    /// Makes an outside. `routers` are addresses that routers have there, by translation or as
    /// their own, each with the MAC address of its router.
    pub fn new(
        external: &External,
        wire: Option<Mac>,
        routers: impl Iterator<Item = (Address, u64)>,
        nat: NatTable,
    ) -> Outside {
        let mac = wire.map_or(0, number);
        let own: Box<[Address]> =
            external.addresses().iter().map(|block| number_of_ip(block.address())).collect();
        let mut answered: Vec<(Address, u64)> = match wire {
            None => routers.collect(),
            Some(wire) => {
                // Neighbours ask for the address from which they were asked (RFC 4861, 7.3.3).
                let near = own.iter().any(|own| !is_v4(*own)).then(|| link_local(wire));
                let all = routers.map(|(address, _)| address).chain(own.iter().copied());
                all.chain(near).map(|address| (address, mac)).collect()
            }
        };
        answered.sort_unstable();
        answered.dedup_by_key(|(address, _)| *address);
        Outside { mac, answered: answered.into(), own, nat }
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
}
