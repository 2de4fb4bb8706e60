//! Selection of frames, as workers look at it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::engine::numbers::Numbers;
use crate::engine::tap::ring::Ring;
use crate::engine::writer::PerWorker;

/// Frames that a sink is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapWhat {
    /// All networks.
    All,
    /// One network.
    Vni(u32),
    /// Frames that one vnic sends, and frames for it.
    Nic(String),
    /// Frames that pass the uplink, with outer headers.
    Uplink,
}

/// Receiver of copies of frames.
#[derive(Debug)]
pub struct TapSink {
    /// Number of the sink; no two sinks ever have the same.
    pub number: u32,
    /// The frames it is about.
    pub what: TapWhat,
    /// Takes one of so many frames.
    pub every: u32,
    /// Takes at most so many bytes of each.
    pub snap: u32,
    seen: AtomicU64,
    lost: AtomicU64,
}

impl TapSink {
    /// Makes a sink that wants `snap` bytes of one in `every` frames.
    pub fn new(number: u32, what: TapWhat, every: u32, snap: u32) -> TapSink {
        TapSink {
            number,
            what,
            every: every.max(1),
            snap,
            seen: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Returns the number of frames that found no room because the reader was too slow.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// Counts a frame and returns whether the sink takes it.
    pub(crate) fn turn(&self) -> bool {
        self.every == 1 || self.seen.fetch_add(1, Relaxed).is_multiple_of(self.every.into())
    }
}

/// A vnic that gets copies of all frames that another vnic of its network sends and receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Mirror {
    /// Slot of the vnic that is copied.
    pub target: u32,
    /// Slot of the mirror.
    pub mirror: u32,
}

/// All sinks, by the frames they are about, and all mirrors. Immutable: part of the snapshot.
#[derive(Clone)]
pub(crate) struct Selection {
    /// A ring for each worker, if there are sinks.
    pub(crate) rings: Option<Arc<PerWorker<Ring>>>,
    /// Sinks of all networks.
    pub(crate) all: Vec<Arc<TapSink>>,
    /// Sinks of one network.
    pub(crate) networks: Vec<(u32, Arc<TapSink>)>,
    /// Positions in `vnics`, by the slots of vnics.
    slots: Numbers,
    vnics: Vec<Vec<Arc<TapSink>>>,
    pub(crate) uplink: Vec<Arc<TapSink>>,
    /// Mirrors, sorted by target.
    mirrors: Vec<Mirror>,
}

impl Selection {
    /// Makes a selection of these sinks; `slot` finds vnics by their ids. A sink whose vnic does
    /// not exist gets nothing.
    pub fn new(
        rings: Option<Arc<PerWorker<Ring>>>,
        sinks: &[Arc<TapSink>],
        slot: &dyn Fn(&str) -> Option<u32>,
    ) -> Selection {
        let mut selection = Selection {
            rings,
            all: Vec::new(),
            networks: Vec::new(),
            slots: Numbers::default(),
            vnics: Vec::new(),
            uplink: Vec::new(),
            mirrors: Vec::new(),
        };
        let mut by_slot = std::collections::BTreeMap::<u32, Vec<Arc<TapSink>>>::new();
        for sink in sinks {
            match &sink.what {
                TapWhat::All => selection.all.push(sink.clone()),
                TapWhat::Vni(vni) => selection.networks.push((*vni, sink.clone())),
                TapWhat::Nic(id) => {
                    if let Some(slot) = slot(id) {
                        by_slot.entry(slot).or_default().push(sink.clone());
                    }
                }
                TapWhat::Uplink => selection.uplink.push(sink.clone()),
            }
        }
        selection.slots =
            Numbers::new(by_slot.keys().zip(0..).map(|(slot, at)| (u64::from(*slot), at)));
        selection.vnics = by_slot.into_values().collect();
        selection
    }

    /// Returns the sinks of the vnic in a slot.
    pub(crate) fn of_slot(&self, slot: u32) -> &[Arc<TapSink>] {
        if self.vnics.is_empty() {
            return &[];
        }
        let at = self.slots.get(slot.into());
        at.and_then(|at| self.vnics.get(at as usize)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns `old` with these mirrors; nothing if no sink and no mirror is left.
    pub fn mirroring(
        old: Option<Arc<Selection>>,
        mut mirrors: Vec<Mirror>,
    ) -> Option<Arc<Selection>> {
        mirrors.sort_unstable();
        match old {
            Some(old) if old.mirrors == mirrors => {
                Some(old).filter(|old| old.has_sinks() || !old.mirrors.is_empty())
            }
            Some(old) if old.has_sinks() => {
                Some(Arc::new(Selection { mirrors, ..Selection::clone(&old) }))
            }
            _ if mirrors.is_empty() => None,
            _ => Some(Arc::new(Selection { mirrors, ..Selection::new(None, &[], &|_| None) })),
        }
    }

    /// Returns whether any sink wants records.
    pub fn has_sinks(&self) -> bool {
        self.rings.is_some()
    }

    pub fn has_mirrors(&self) -> bool {
        !self.mirrors.is_empty()
    }

    /// Returns the number of mirrors of all vnics.
    pub fn mirrors(&self) -> usize {
        self.mirrors.len()
    }

    /// Returns the mirrors of the vnic in a slot.
    pub fn mirrors_of(&self, target: u32) -> &[Mirror] {
        let from = self.mirrors.partition_point(|mirror| mirror.target < target);
        let of = self.mirrors.get(from..).unwrap_or_default();
        of.get(..of.partition_point(|mirror| mirror.target == target)).unwrap_or_default()
    }

    /// Returns whether any vnic is watched.
    pub(crate) fn any_slot(&self) -> bool {
        !self.vnics.is_empty()
    }
}
