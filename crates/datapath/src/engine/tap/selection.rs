//! What is wanted, as workers look at it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::engine::numbers::Numbers;
use crate::engine::tap::ring::Ring;

/// What a sink is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapWhat {
    /// All networks.
    All,
    /// One network.
    Vni(u32),
    /// What one vnic sends, and what is for it.
    Nic(String),
    /// What passes the uplink, with outer headers.
    Uplink,
}

/// Somebody who wants copies of frames.
#[derive(Debug)]
pub struct TapSink {
    /// Tells sinks apart; no two ever have the same.
    pub number: u32,
    /// Which frames.
    pub what: TapWhat,
    /// One in so many of them.
    pub every: u32,
    /// So many bytes of each at most.
    pub snap: u32,
    seen: AtomicU64,
    lost: AtomicU64,
}

impl TapSink {
    /// One that wants `snap` bytes of one in `every` frames.
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

    /// Frames that it should have had, for which there was no room: the reader was too slow.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// Whether it is this frame's turn.
    pub(crate) fn turn(&self) -> bool {
        self.every == 1 || self.seen.fetch_add(1, Relaxed).is_multiple_of(self.every.into())
    }
}

/// A vnic that gets copies of what another one of its network sends and receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Mirror {
    /// Slot of that one.
    pub target: u32,
    /// Its own.
    pub mirror: u32,
}

/// All sinks, by what they are about, and all mirrors. Immutable: part of the snapshot.
#[derive(Clone)]
pub(crate) struct Selection {
    /// One for each worker, if there are sinks.
    pub(crate) rings: Vec<Arc<Ring>>,
    /// Of all networks.
    pub(crate) all: Vec<Arc<TapSink>>,
    /// Of one.
    pub(crate) networks: Vec<(u32, Arc<TapSink>)>,
    /// By the slots of vnics: where they stand in `vnics`.
    slots: Numbers,
    vnics: Vec<Vec<Arc<TapSink>>>,
    pub(crate) uplink: Vec<Arc<TapSink>>,
    /// By target.
    mirrors: Vec<Mirror>,
}

impl Selection {
    /// Of these sinks; `slot` knows vnics by their ids. One whose vnic does not exist gets nothing.
    pub fn new(
        rings: Vec<Arc<Ring>>,
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

    /// Who watches the vnic in a slot.
    pub(crate) fn of_slot(&self, slot: u32) -> &[Arc<TapSink>] {
        if self.vnics.is_empty() {
            return &[];
        }
        let at = self.slots.get(slot.into());
        at.and_then(|at| self.vnics.get(at as usize)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The same with these mirrors; nothing, if then nobody watches.
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
            _ => {
                Some(Arc::new(Selection { mirrors, ..Selection::new(Vec::new(), &[], &|_| None) }))
            }
        }
    }

    /// Whether anybody wants records.
    pub fn has_sinks(&self) -> bool {
        !self.rings.is_empty()
    }

    pub fn has_mirrors(&self) -> bool {
        !self.mirrors.is_empty()
    }

    /// Number of mirrors of all vnics.
    pub fn mirrors(&self) -> usize {
        self.mirrors.len()
    }

    /// The mirrors of the vnic in a slot.
    pub fn mirrors_of(&self, target: u32) -> &[Mirror] {
        let from = self.mirrors.partition_point(|mirror| mirror.target < target);
        let of = self.mirrors.get(from..).unwrap_or_default();
        of.get(..of.partition_point(|mirror| mirror.target == target)).unwrap_or_default()
    }

    /// Whether any vnic is watched.
    pub(crate) fn any_slot(&self) -> bool {
        !self.vnics.is_empty()
    }
}
