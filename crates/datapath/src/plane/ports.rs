//! Ports of addresses that machines of routers share: their tables, from the rule that wants one
//! to the last worker that looked into it.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use butterfly_model::{Nat, RouterId, Vni};
use butterfly_packet::Mac;

use crate::engine::mac::number;
use crate::engine::place::PortRef;
use crate::world::ports::{PortProtocol, PortTable, PortsOf, VERSION};

/// Keeps the ports that machines share for a process to come, by names.
pub(crate) trait KeptPorts {
    /// Takes those that a process left.
    fn take(&self, name: &str) -> Option<OwnedFd>;
    /// Has them kept.
    fn keep(&self, name: &str, ports: BorrowedFd<'_>) -> io::Result<()>;
    /// Has them let go.
    fn forget(&self, name: &str);
}

/// Ports in use of an address that machines share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortsInUse {
    /// Number of the external's network.
    pub vni: u32,
    /// The address outside.
    pub address: Ipv4Addr,
    /// Ports of TCP.
    pub tcp: u32,
    /// Ports of UDP.
    pub udp: u32,
    /// Identifiers of ICMP echoes.
    pub echo: u32,
}

/// Beginning of these names.
pub(crate) const PORTS: &str = "ports:";

/// Nothing outlasts this process.
impl KeptPorts for () {
    fn take(&self, _: &str) -> Option<OwnedFd> {
        None
    }

    fn keep(&self, _: &str, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn forget(&self, _: &str) {}
}

/// Returns the name of an address's ports. A program with another layout has others beside them.
fn name_of(of: &PortsOf) -> String {
    format!("{PORTS}{VERSION}:{}:{:x}:{}", of.vni, of.router, Ipv4Addr::from_bits(of.address))
}

/// Returns the addresses that machines of a router share by these rules.
fn shared(router: &RouterId, vni: Vni, rules: &[Nat]) -> impl Iterator<Item = PortsOf> {
    let (router, vni) = (number(Mac(router.gateway_mac())), vni.number());
    rules.iter().filter_map(move |rule| match rule {
        Nat::Snat { outside, .. } => Some(PortsOf { router, vni, address: outside.to_bits() }),
        _ => None,
    })
}

/// Tables of ports.
#[derive(Default)]
pub(super) struct SharedPorts {
    tables: BTreeMap<PortsOf, Arc<PortTable>>,
    /// Tables without a rule, that workers may still look into.
    parted: Vec<Arc<PortTable>>,
}

impl SharedPorts {
    /// Returns the table of an address.
    pub fn of(&self, of: &PortsOf) -> Option<Arc<PortTable>> {
        self.tables.get(of).cloned()
    }

    /// Makes the tables that rules of a router at an external want, or takes up those that a
    /// process left. `now` is in seconds, `secret` a key that nobody knows. After an error, which
    /// is for an address, those before it wait for the next rules.
    pub fn open(
        &mut self,
        (router, vni): (&RouterId, Vni),
        rules: &[Nat],
        kept: &dyn KeptPorts,
        (now, secret): (u32, [u64; 2]),
    ) -> Result<(), (Ipv4Addr, io::Error)> {
        for of in shared(router, vni, rules) {
            if let Entry::Vacant(place) = self.tables.entry(of) {
                let table = make(of, kept, (now, secret));
                let table = table.map_err(|why| (Ipv4Addr::from_bits(of.address), why))?;
                place.insert(Arc::new(table));
            }
        }
        Ok(())
    }

    /// Parts with the tables that rules of a router at an external do not want any more.
    pub fn part(&mut self, (router, vni): (&RouterId, Vni), rules: &[Nat], kept: &dyn KeptPorts) {
        let stay: BTreeSet<PortsOf> = shared(router, vni, rules).collect();
        let (mac, vni) = (number(Mac(router.gateway_mac())), vni.number());
        let its = self.tables.keys().filter(|of| (of.router, of.vni) == (mac, vni));
        let gone: Vec<PortsOf> = its.filter(|of| !stay.contains(of)).copied().collect();
        for of in gone {
            kept.forget(&name_of(&of));
            self.parted.extend(self.tables.remove(&of));
        }
    }

    /// Frees the ports that rules of a router at an external, which are in effect, forward.
    pub fn forward(&self, (router, vni): (&RouterId, Vni), rules: &[Nat]) {
        let (router, vni) = (number(Mac(router.gateway_mac())), vni.number());
        for rule in rules {
            if let Nat::Forward { outside, protocol, port, .. } = rule
                && let Some(protocol) = PortProtocol::of(protocol.number())
                && let Some(table) =
                    self.tables.get(&PortsOf { router, vni, address: outside.to_bits() })
            {
                table.forward(protocol, *port);
            }
        }
    }

    /// Frees the ports of a vnic that went.
    pub fn release(&self, vnic: PortRef) {
        self.tables.values().for_each(|table| table.release(vnic));
    }

    /// Lets go of tables without a rule that no worker has any more: memory goes here, not in a
    /// worker.
    pub fn close(&mut self) {
        self.parted.retain(|table| Arc::strong_count(table) > 1);
    }
}

fn make(
    of: PortsOf,
    kept: &dyn KeptPorts,
    (now, secret): (u32, [u64; 2]),
) -> io::Result<PortTable> {
    let name = name_of(&of);
    let former = kept.take(&name).and_then(|file| PortTable::adopt(file, of, now));
    if let Some(table) = former {
        return Ok(table);
    }
    let (file, table) = PortTable::create(of, secret, now)?;
    if let Err(why) = kept.keep(&name, file.as_fd()) {
        tracing::error!(name, %why, "ports that machines share would not outlast this process");
    }
    Ok(table)
}
