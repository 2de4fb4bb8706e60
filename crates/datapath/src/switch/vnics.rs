//! Vnics: added with their sockets, changed, replaced and removed.

use std::sync::{Arc, atomic::Ordering};

use butterfly_vhost::net::Features;

use crate::plane::AddError;
use crate::switch::{
    Switch,
    declared::{Declared, VnicSpec},
    front::{Front, HostFacts, first},
    link::VnicLink,
};
use crate::world::policy::VnicPolicy;

/// The MTU of a network that ends at this host, for the daemon's own guests.
const USUAL_MTU: u32 = 1500;

impl Switch {
    fn host(&self) -> HostFacts {
        HostFacts { mtu: self.inner_mtu().unwrap_or(USUAL_MTU), worker: self.core }
    }

    /// Adds a vnic and opens its socket, or attaches the daemon's own guest. Its policy is in force
    /// before a guest can attach. On an error nothing has changed. No vnic may have the same id:
    /// the desired state has each once.
    pub fn add_vnic(&self, spec: VnicSpec) -> Result<(), AddError> {
        let mut vnics = self.vnics();
        debug_assert!(!vnics.contains_key(&spec.id), "vnic {} was not removed", spec.id);
        let ready = spec.front.prepare(&spec, self.host())?;
        let mirrors = spec.sniff_target.as_deref();
        let (vnic, attachment) = self.plane.insert_as(
            &spec.id,
            spec.mac,
            spec.vni,
            &spec.policy,
            mirrors,
            Some(spec.order),
        )?;
        let offered = if self.config.no_offload {
            Features::OFFERED.without(Features::OFFLOADS)
        } else {
            Features::OFFERED
        };
        let link = Arc::new(VnicLink {
            id: spec.id.clone(),
            vni: spec.vni.number(),
            offered,
            attachment,
            events: self.events.clone(),
            shared: vnic.shared.clone(),
            plane: self.plane.clone(),
        });
        let events = self.events.clone();
        let told = Box::new(move |times| events.measured(times));
        match ready.open(&spec.id, vnic.shared.port.clone(), offered, link, told) {
            Ok(open) => {
                vnics.insert(spec.id.clone(), Declared { spec, open });
                Ok(())
            }
            Err(why) => {
                self.plane.remove(&spec.id);
                Err(why)
            }
        }
    }

    /// Checks whether a vnic could be made in place of the one with its id, which goes on
    /// meanwhile. Returns the error with which [`Switch::add_vnic`] would fail after that.
    pub fn may_replace(&self, spec: &VnicSpec) -> Result<(), AddError> {
        let old = self.vnics().get(&spec.id).map(|declared| declared.spec.front.clone());
        let old = old.ok_or_else(|| AddError::Unknown(spec.id.clone()))?;
        spec.front.may_replace(&old, spec, self.host())
    }

    /// Checks whether a vnic could be added, as far as that can be tried while others that go
    /// before it are still there. Returns the error with which [`Switch::add_vnic`] would fail.
    pub fn may_add(&self, spec: &VnicSpec) -> Result<(), AddError> {
        let taken = match &spec.front {
            Front::Socket { path, .. } => {
                self.vnics().values().any(|declared| declared.spec.front.serves(path))
            }
            Front::Inside(_) => false,
        };
        spec.front.may_open(spec, self.host(), taken)
    }

    /// Keeps a vnic's MAC address while the vnic is made again. No vnic that waits for it gets it
    /// until [`Switch::give_up_address`].
    pub fn keep_address(&self, id: &str) {
        self.plane.keep_address(id);
    }

    /// Ends [`Switch::keep_address`], whether the vnic came back or not.
    pub fn give_up_address(&self) {
        self.plane.give_up_address();
    }

    /// Gives a vnic another policy; its guest stays attached. When this returns, no worker uses the
    /// old one.
    pub fn update_vnic(&self, id: &str, policy: VnicPolicy) -> Result<(), AddError> {
        let mut vnics = self.vnics();
        let declared = vnics.get_mut(id).ok_or_else(|| AddError::Unknown(id.to_owned()))?;
        self.plane.update(id, &policy)?;
        if let Some(guest) = &declared.open.guest {
            guest.readdress(first(&policy.ips));
        }
        declared.spec.policy = policy;
        Ok(())
    }

    /// Notes that a vnic's machine leaves for another host: once its driver stops here, its
    /// addresses may be there. Returns whether there is such a vnic.
    pub fn export_vnic(&self, id: &str) -> bool {
        let Some(vnic) = self.plane.vnic(id) else { return false };
        vnic.shared.leaving.store(true, Ordering::Relaxed);
        if !vnic.shared.presence.attached() {
            vnic.shared.elsewhere.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Closes a vnic's socket, which detaches its guest, and forgets the vnic. Returns whether
    /// there was one.
    pub fn remove_vnic(&self, id: &str) -> bool {
        let mut vnics = self.vnics();
        let Some(declared) = vnics.remove(id) else { return false };
        declared.open.close();
        self.plane.remove(id);
        true
    }

    /// Returns the ids of all vnics, sorted.
    pub fn ids(&self) -> Vec<String> {
        self.vnics().keys().cloned().collect()
    }
}
