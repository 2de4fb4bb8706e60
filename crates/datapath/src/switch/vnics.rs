//! Vnics: added with their sockets, changed, replaced and removed.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool},
};

use butterfly_vhost::{
    net::Features,
    port::{Port, Queue, QueueKind},
    ring::{BATCH, RingStatus},
};

use crate::checkpoint::moved::{self, ExportedVnic, Imported, Moved, MovedVnic};
use crate::plane::{AddError, moves::NotAHost, vnics::is_wire};
use crate::switch::{
    Switch,
    declared::{Declared, VnicSpec},
    front::{Front, HostFacts, first},
    held::Hold,
    link::VnicLink,
};
use crate::world::policy::VnicPolicy;

/// The MTU of a network that ends at this host, for the daemon's own guests.
const USUAL_MTU: u32 = 1500;

impl Switch {
    fn host(&self) -> HostFacts {
        HostFacts {
            mtu: self.inner_mtu().unwrap_or(USUAL_MTU),
            worker: self.config.cores.first().copied(),
        }
    }

    /// Adds a vnic and opens its socket, or attaches the daemon's own guest. Its policy is in force
    /// before a guest can attach. On an error nothing has changed. No vnic may have the same id:
    /// the desired state has each once.
    pub fn add_vnic(&self, spec: VnicSpec) -> Result<(), AddError> {
        let mut vnics = self.vnics();
        debug_assert!(!vnics.contains_key(&spec.id), "vnic {} was not removed", spec.id);
        let ready = spec.front.prepare(&spec, self.host(), self.hold.as_ref())?;
        let mirrors = spec.sniff_target.as_deref();
        let (vnic, attachment) = self.plane.insert_as(
            &spec.id,
            spec.mac,
            spec.vni,
            &spec.policy,
            mirrors,
            Some(spec.order),
        )?;
        // Before any guest can attach. A vnic that was declared before has this name, too.
        self.hold_if_named(&spec.id, &vnic.shared.port);
        let offered = if self.config.no_offload {
            Features::OFFERED.without(Features::OFFLOADS)
        } else {
            Features::OFFERED
        };
        let link = Arc::new(VnicLink {
            quiet: AtomicBool::new(false),
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
        let port = vnic.shared.port.clone();
        match ready.open(&spec, port, offered, link, told, self.hold.as_ref()) {
            Ok(open) => {
                if let Some(guest) = open.guest.as_ref().filter(|_| is_wire(&spec.id)) {
                    self.wire_guests().insert(spec.id.clone(), guest.watch());
                }
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
        self.may_keep(spec)?;
        spec.front.may_replace(&old, spec, self.host())
    }

    /// Checks that the holder is there, if a vnic's socket is to be given to it.
    fn may_keep(&self, spec: &VnicSpec) -> Result<(), AddError> {
        match (&spec.front, &self.hold) {
            (Front::Socket { .. }, Some(hold)) => hold.may_keep(),
            _ => Ok(()),
        }
    }

    /// Checks whether a vnic could be added, as far as that can be tried while others that go
    /// before it are still there. Returns the error with which [`Switch::add_vnic`] would fail.
    pub fn may_add(&self, spec: &VnicSpec) -> Result<(), AddError> {
        let taken = match &spec.front {
            Front::Socket { path, .. } => {
                self.vnics().values().any(|declared| declared.spec.front.serves(path))
                    || self.hold.as_ref().is_some_and(|holding| holding.serves(path))
            }
            Front::Inside(_) => false,
        };
        self.may_keep(spec)?;
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

    /// Notes that a vnic's machine leaves for another host, whose tunnel endpoint may be named.
    /// Once its driver stops here, its addresses may be there. Frames for it are passed on to a
    /// host that was named.
    pub fn vnic_leaves(&self, id: &str, to: Option<IpAddr>) -> Result<(), NotAHost> {
        let vnic = self.plane.vnic(id).ok_or(NotAHost::Vnic)?;
        self.plane.leaves(&vnic, to)
    }

    /// Returns all that another host needs to go on with a vnic; `None` if there is none.
    pub fn export_vnic(&self, vnic: MovedVnic) -> Option<ExportedVnic> {
        moved::export(&self.plane, vnic)
    }

    /// Takes over what a vnic was on another host. The caller shows that both are declared alike.
    /// Returns `None` if there is no such vnic.
    pub fn import_vnic(&self, moved: &Moved) -> Option<Imported> {
        moved::import(&self.plane, moved)
    }

    /// Closes a vnic's socket, which detaches its guest, and forgets the vnic. Returns whether
    /// there was one.
    pub fn remove_vnic(&self, id: &str) -> bool {
        let mut vnics = self.vnics();
        let Some(declared) = vnics.remove(id) else { return false };
        self.wire_guests().remove(id);
        declared.open.close();
        if let Some(hold) = &self.hold {
            declared.spec.front.forget(id, declared.spec.birth, hold);
        }
        self.plane.remove(id);
        true
    }

    /// Returns the ids of all vnics, sorted.
    pub fn ids(&self) -> Vec<String> {
        self.vnics().keys().cloned().collect()
    }

    /// Ends the time in which vnics that a dead process left may be declared again, and the
    /// sessions of an adopted table ([`crate::SwitchConfig::adopt`]) whose vnics were not. Returns
    /// the ids of those that the holder has let go.
    pub fn all_declared(&self) -> Vec<String> {
        let ended = self.plane.all_declared();
        if ended > 0 {
            tracing::warn!(ended, "adopted sessions end: their vnics are not declared any more");
        }
        self.hold.as_ref().map(Hold::let_go).unwrap_or_default()
    }

    /// Returns the most frames of which copies may come twice because a process died that this one
    /// goes on for: floods, copies for mirrors, packets beyond the 64th for the uplink. To be asked
    /// before workers start.
    ///
    /// A worker that dies has one batch of one ring. If its used index was not stored yet, the
    /// batch is taken again: so it is bounded by the longest batch that waits in any ring. If it
    /// was stored, nothing comes again, and the batch may be lost; that leaves no trace.
    pub fn may_come_again(&self) -> u64 {
        let snapshot = self.plane.shared.snapshot.load();
        let waiting = |ring: RingStatus| usize::from(ring.waiting).min(BATCH) as u64;
        let longest = |port: &Port| {
            let sending = Queue::all().filter(|queue| queue.kind() == QueueKind::Tx);
            sending.filter_map(|queue| port.status(queue)).map(waiting).max()
        };
        let vnics = snapshot.vnics.iter().filter_map(|(_, vnic)| longest(&vnic.shared.port));
        vnics.max().unwrap_or(0)
    }
}
