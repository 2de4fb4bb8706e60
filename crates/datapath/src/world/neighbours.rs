//! Neighbours: where machines are that are not vnics of this host, as declared.

use butterfly_model::Neighbour;
use butterfly_packet::Mac;

use crate::engine::mac::number;
use crate::ip::Address;
use crate::world::rules::number as number_of_ip;

/// Place of a declared machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Whereabouts {
    /// Its MAC address, as [`number`].
    pub mac: u64,
    /// Tunnel endpoint of its host, if that is declared.
    pub host: Option<Address>,
}

/// All declared neighbours. A copy shares all that does not change, and a look-up takes the same
/// time with any number of them.
#[derive(Clone, Default)]
pub(crate) struct Directory(imbl::HashMap<(u32, Address), Whereabouts>);

impl Directory {
    /// Returns where the machine is that has an address in a network.
    pub fn get(&self, vni: u32, address: Address) -> Option<&Whereabouts> {
        self.0.get(&(vni, address))
    }

    /// Adds a neighbour, in place of the one with its address. Returns that one.
    pub fn declare(&mut self, neighbour: &Neighbour) -> Option<Whereabouts> {
        let mac = number(Mac(neighbour.mac().octets()));
        let place = Whereabouts { mac, host: neighbour.host().map(number_of_ip) };
        self.0.insert((neighbour.vni().number(), number_of_ip(neighbour.address())), place)
    }

    /// Removes the neighbour with an address in a network. Returns it, if there was one.
    pub fn remove(&mut self, vni: u32, address: Address) -> Option<Whereabouts> {
        self.0.remove(&(vni, address))
    }
}
