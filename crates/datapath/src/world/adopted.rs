//! Vnics of an adopted table of sessions that are not declared again yet: their slots, and the
//! counts of their sessions.
//!
//! A vnic that is declared with the id and the network of one of them gets its slot and its state,
//! and begins with the first version, as the stamps of its sessions say. Others get other slots.
//! Once all are declared, the rest is given up.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU32},
};

use crate::engine::slab::Slab;

/// A vnic, or a trunk, that is not declared again yet, with state of type `S`.
pub(crate) struct Waiting<S> {
    /// Its id; empty for a trunk.
    pub id: Box<str>,
    pub vni: u32,
    /// Its state from the moment it is declared, with the counts of its sessions until then.
    pub shared: Arc<S>,
}

/// Vnics of an adopted table, until all are declared.
pub(crate) struct Adopted<S> {
    waiting: Slab<Waiting<S>>,
    /// Slots of all of them. Those that were declared do not wait any more.
    slots: Arc<HashMap<(Box<str>, u32), u32>>,
    /// Counts of the sessions of their networks, which outlast those networks.
    networks: Arc<HashMap<u32, Arc<AtomicU32>>>,
}

impl<S> Clone for Adopted<S> {
    fn clone(&self) -> Self {
        let Adopted { waiting, slots, networks } = self;
        Adopted { waiting: waiting.clone(), slots: slots.clone(), networks: networks.clone() }
    }
}

impl<S> Adopted<S> {
    /// Makes the vnics that wait, by slot.
    pub fn new(vnics: impl Iterator<Item = (u32, Waiting<S>)>) -> Adopted<S> {
        let (mut waiting, mut slots, mut networks) =
            (Slab::default(), HashMap::new(), HashMap::new());
        for (slot, vnic) in vnics {
            slots.insert((vnic.id.clone(), vnic.vni), slot);
            networks.entry(vnic.vni).or_default();
            waiting.set(slot, Some(Arc::new(vnic)));
        }
        Adopted { waiting, slots: slots.into(), networks: networks.into() }
    }

    /// Returns the vnic that waits for a slot.
    pub fn waiting(&self, slot: u32) -> Option<&Waiting<S>> {
        self.waiting.get(slot).map(|waiting| &**waiting)
    }

    /// Returns all vnics that wait, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Waiting<S>)> {
        self.waiting.iter().map(|(slot, waiting)| (slot, &**waiting))
    }

    /// Returns the number of sessions of a network of theirs.
    pub fn sessions_in(&self, vni: u32) -> Option<&Arc<AtomicU32>> {
        self.networks.get(&vni)
    }

    /// Ends the waiting of a vnic. Returns its slot and its state.
    pub fn take(&mut self, id: &str, vni: u32) -> Option<(u32, Arc<S>)> {
        let slot = self.slots.get(&(id.into(), vni)).copied()?;
        let shared = self.waiting.get(slot)?.shared.clone();
        self.waiting.set(slot, None);
        Some((slot, shared))
    }
}
