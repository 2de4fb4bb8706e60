//! Vnics of a host: declared, changed, with guests that come and go.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use butterfly_guest_driver::{
    DirtyLog,
    guest::{Guest, GuestConfig, TX},
    memory::{Memory, MemoryConfig},
};
use butterfly_model::{External, GroupName, Vni};
use butterfly_packet::mac::Mac;
use butterfly_vhost::{
    dirty,
    net::Features,
    port::{PortEvents, Queue},
};

use crate::harness::{
    Host, LINUX,
    error::Error,
    rings::{Attached, attach_pair, attach_rings, setups},
};
use crate::plane::{AddError, routed::RoutingChange, vnics::WIRE};
use crate::world::{outside::WirePlace, policy::VnicPolicy, rules::GroupChange};

/// Makes the driver of another pair of queues, as Linux makes them.
fn pair_driver() -> Result<Guest, Error> {
    let config = GuestConfig::default();
    let memory = Memory::new(&MemoryConfig::new(config.memory_needed()))?;
    Ok(Guest::new(&memory, LINUX, &config)?)
}

impl Host {
    /// Declares a vnic. No guest is attached yet.
    pub fn declare(
        &mut self,
        id: &str,
        mac: Mac,
        vni: u32,
        policy: &VnicPolicy,
    ) -> Result<(), AddError> {
        let (vnic, attachment) = self.plane.insert(id, mac, network(vni)?, policy)?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        Ok(())
    }

    /// Declares a mirror of another vnic.
    pub fn declare_mirror(
        &mut self,
        id: &str,
        mac: Mac,
        vni: u32,
        target: &str,
    ) -> Result<(), AddError> {
        let (vnic, attachment) = self.plane.insert_as(
            id,
            mac,
            network(vni)?,
            &VnicPolicy::default(),
            Some(target),
            None,
        )?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        Ok(())
    }

    /// Changes a vnic's policy.
    pub fn update(&mut self, id: &str, policy: &VnicPolicy) -> Result<(), AddError> {
        self.plane.update(id, policy)
    }

    /// Changes what is declared of a network or router. Panics for a wire that cannot be had.
    pub fn change_routing(&self, change: RoutingChange) {
        let changed = self.plane.change_routing(change, &self.kept_ports);
        assert_eq!(changed, Ok(()));
    }

    /// Declares an external whose wire is a guest: it has this host's MAC address `own` there, and
    /// takes IP packets of 1,500 bytes. Its counters begin with `wire/`.
    pub fn lay_wire(&mut self, external: &External, own: Mac) -> Result<(), Error> {
        self.plane.set_wire(external.vni(), Some(WirePlace { mac: own, mtu: 1500 }));
        self.plane.change_routing(RoutingChange::DeclareWire(external.clone()), &())?;
        let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        let id = format!("{WIRE}{}", external.id());
        self.vnic(&id, own, external.vni().number(), &policy)
    }

    /// Changes a security group.
    pub fn change_group(&self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        self.plane.change_group(name, change)
    }

    /// Moves the numbers of changes near their end.
    pub fn near_last_version(&mut self) {
        self.plane.near_last_version();
        self.settle();
    }

    /// Removes a vnic and its guest.
    pub fn remove(&mut self, id: &str) {
        self.detach(id);
        self.vnics.remove(id);
        self.plane.remove(id);
        self.last.retain(|name, _| !name.starts_with(&format!("{id}.")));
    }

    /// Makes a vnic again, and calls `between` between its end and its return.
    pub fn remake(
        &mut self,
        id: &str,
        mac: Mac,
        policy: &VnicPolicy,
        between: impl FnOnce(&mut Host),
    ) -> Result<(), Error> {
        let (order, vni) = self
            .vnics
            .get(id)
            .map(|attached| (attached.vnic.order, attached.vnic.vni))
            .ok_or("no such vnic")?;
        self.plane.keep_address(id);
        self.remove(id);
        between(self);
        let (vnic, attachment) =
            self.plane.insert_as(id, mac, network(vni)?, policy, None, Some(order))?;
        self.vnics.insert(id.to_owned(), Attached { vnic, attachment, guest: None });
        self.plane.give_up_address();
        let config = GuestConfig::default();
        self.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))
    }

    /// Attaches a guest of this shape to a vnic.
    pub fn attach(
        &mut self,
        id: &str,
        features: Features,
        config: &GuestConfig,
        memory: &MemoryConfig,
    ) -> Result<(), Error> {
        let memory = Memory::new(memory)?;
        let guest = Guest::new(&memory, features, config)?;
        self.seat(id, features, guest)
    }

    fn seat(&mut self, id: &str, features: Features, guest: Guest) -> Result<(), Error> {
        let attached = self.vnics.get_mut(id).ok_or("no such vnic")?;
        attach_rings(&attached.vnic.shared.port, &attached.attachment, &guest, features)?;
        attached.vnic.shared.guest_came(self.plane.shared.clock.now());
        attached.vnic.shared.driving.store(true, Ordering::Relaxed);
        attached.guest = Some(guest);
        self.plane.is_here(attached.vnic.place);
        Ok(())
    }

    /// Attaches another pair of queues to a vnic with a guest. Returns their driver.
    #[cfg(test)]
    pub(crate) fn further_pair(&mut self, id: &str, pair: u32) -> Result<Guest, Error> {
        let attached = self.vnics.get(id).ok_or("no such vnic")?;
        let guest = pair_driver()?;
        let Attached { vnic, attachment, .. } = attached;
        attach_pair(&vnic.shared.port, attachment, (&guest, pair), LINUX)?;
        Ok(guest)
    }

    /// Attaches another pair of queues to a vnic with a guest, which this worker serves. Returns
    /// their driver.
    pub fn pair_at(&mut self, id: &str, pair: u32, worker: usize) -> Result<Guest, Error> {
        let guest = pair_driver()?;
        let Attached { vnic, attachment, .. } = self.vnics.get(id).ok_or("no such vnic")?;
        attach_pair(&vnic.shared.port, attachment, (&guest, pair), LINUX)?;
        self.plane.hand_over((vnic.place, pair as u8), worker);
        Ok(guest)
    }

    /// Attaches a guest that another host left: its rings go on where they stand in its memory.
    pub fn go_on(&mut self, id: &str, guest: Guest) -> Result<(), Error> {
        let features = guest.features();
        self.seat(id, features, guest)
    }

    /// Ends as a process that dies: nothing more is done to guests, which are returned.
    pub fn die(self) -> BTreeMap<String, Guest> {
        let guests = self.vnics.into_iter();
        guests.filter_map(|(id, attached)| Some((id, attached.guest?))).collect()
    }

    /// Adds a vnic with a guest as Linux makes them.
    pub fn vnic(&mut self, id: &str, mac: Mac, vni: u32, policy: &VnicPolicy) -> Result<(), Error> {
        self.declare(id, mac, vni, policy)?;
        let config = GuestConfig::default();
        self.attach(id, LINUX, &config, &MemoryConfig::new(config.memory_needed()))
    }

    /// Logs every store into a guest's memory from now on, as while it migrates. Its rings go on
    /// where they are.
    pub fn log(&mut self, id: &str, log: &DirtyLog) -> Result<(), Error> {
        let Attached { vnic, attachment, guest } = self.vnics.get(id).ok_or("no such vnic")?;
        let guest = guest.as_ref().ok_or("no guest")?;
        let file = log.region();
        let log = Arc::new(dirty::DirtyLog::map(
            &file.file.try_clone()?.into(),
            file.size,
            file.file_offset,
        )?);
        let [rx, tx] = setups(guest, guest.features(), Some(&log))?;
        let kick = Some(guest.queue(TX).kick_fd());
        attachment.tx_stopped(0, kick);
        vnic.shared.port.replace(Queue::TX, &tx)?;
        vnic.shared.port.replace(Queue::RX, &rx)?;
        attachment.tx_started(0, kick);
        Ok(())
    }

    /// Notes that a vnic's guest, which was taken away, is on another host now.
    pub fn export(&mut self, id: &str) {
        if let Some(attached) = self.vnics.get(id) {
            attached.vnic.shared.elsewhere.store(true, Ordering::Relaxed);
        }
    }

    /// Takes a vnic's guest away.
    pub fn detach(&mut self, id: &str) -> Option<Guest> {
        let attached = self.vnics.get_mut(id)?;
        attached.vnic.shared.driving.store(false, Ordering::Relaxed);
        attached
            .attachment
            .tx_stopped(0, attached.guest.as_ref().map(|guest| guest.queue(TX).kick_fd()));
        attached.vnic.shared.port.stop(Queue::TX);
        attached.vnic.shared.port.stop(Queue::RX);
        attached.guest.take()
    }

    /// Returns a vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }
}

/// Returns the network that a test names by its number.
fn network(vni: u32) -> Result<Vni, AddError> {
    Vni::new(vni).map_err(|error| AddError::Device(error.to_string()))
}
