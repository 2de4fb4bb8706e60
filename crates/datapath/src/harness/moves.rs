//! Vnics whose machines move between hosts.

use std::net::IpAddr;

use crate::checkpoint::moved::{self, ExportedVnic, Imported, Moved, MovedVnic};
use crate::harness::{Host, LINUX, error::Error};
use crate::plane::moves::NotAHost;
use crate::world::rules::number;

use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_packet::mac::Mac;

impl Host {
    /// Notes that a vnic's machine leaves for another host.
    pub fn leaves(&self, id: &str, to: Option<IpAddr>) -> Result<(), NotAHost> {
        let vnic = self.plane.vnic(id).ok_or(NotAHost::Vnic)?;
        self.plane.leaves(&vnic, to)
    }

    /// Notes the next hop to another host, as the keeper finds it.
    pub fn meets(&self, peer: IpAddr, vni: u32, mac: Mac) -> Result<(), Error> {
        let tunnel = self.plane.shared.tunnel.as_ref().ok_or("no tunnel")?;
        let now = self.plane.shared.clock.now();
        tunnel.peers.try_add(number(peer), vni, now).ok_or("no room")?;
        self.set_neighbour(peer, mac)
    }

    /// Takes a vnic's guest away, as one that stops for a migration.
    pub fn depart(&mut self, id: &str) -> Result<(), Error> {
        let place = self.plane.place(id).ok_or("no such vnic")?;
        self.detach(id);
        self.plane.left(place);
        self.settle();
        self.plane.see_off();
        Ok(())
    }

    /// Attaches a guest to a vnic that has none.
    pub fn arrives(&mut self, id: &str) -> Result<(), Error> {
        let config = GuestConfig::default();
        self.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))?;
        self.settle();
        Ok(())
    }

    /// Exports a vnic.
    pub fn export_vnic(&self, id: &str) -> Option<ExportedVnic> {
        moved::export(&self.plane, MovedVnic { id: id.to_owned(), ..MovedVnic::default() })
    }

    /// Imports a vnic; the error if the text is none.
    pub fn import_vnic(&self, text: &[u8]) -> Result<Option<Imported>, String> {
        Ok(moved::import(&self.plane, &Moved::read(text)?))
    }
}
