//! Parts of a host for several threads: changes, workers, guests.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use butterfly_guest_driver::guest::Guest;
use butterfly_model::GroupName;

use crate::harness::rings::Attached;
use crate::plane::{AddError, Plane};
use crate::worker::Worker;
use crate::world::rules::GroupChange;

/// The half that changes groups: see [`crate::harness::Host::halves`].
pub struct Changes<'a> {
    pub(super) plane: &'a Plane,
}

impl Changes<'_> {
    /// Changes a security group. When this returns, the worker does not use the old one any more.
    pub fn change_group(&self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        self.plane.change_group(name, change)
    }
}

/// The guests while the workers are busy: see [`crate::harness::Host::at_once`].
pub struct Guests<'a> {
    pub(super) vnics: &'a mut BTreeMap<String, Attached>,
}

impl Guests<'_> {
    /// Returns a vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }
}

/// The half with the workers and the guests: see [`crate::harness::Host::halves`].
pub struct Turns<'a> {
    pub(super) plane: &'a Plane,
    pub(super) workers: &'a mut [Worker],
    pub(super) vnics: &'a mut BTreeMap<String, Attached>,
}

impl Turns<'_> {
    /// Returns a vnic's guest.
    pub fn guest(&mut self, id: &str) -> Option<&mut Guest> {
        self.vnics.get_mut(id)?.guest.as_mut()
    }

    /// Lets every worker look at its rings once. Returns whether a frame was found.
    pub fn turn(&mut self) -> bool {
        self.workers.iter_mut().fold(false, |found, worker| worker.turn() | found)
    }
}

/// One worker apart from the others: see [`crate::harness::Host::apart`].
pub struct OneWorker<'a> {
    pub(super) worker: &'a mut Worker,
}

impl OneWorker<'_> {
    /// Lets it look at its rings once. Returns whether a frame was found.
    pub fn turn(&mut self) -> bool {
        self.worker.turn()
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.plane
            .board
            .handles()
            .iter()
            .for_each(|handle| handle.running.store(false, Ordering::SeqCst));
    }
}
