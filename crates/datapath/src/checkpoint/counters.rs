//! Counters: of vnics, networks, the uplink, other hosts, workers, and of all that is gone.
//!
//! An answer or a page of metrics tells a number only after a checkpoint holds as much, so no
//! reader ever sees a counter fall. The successor's workers go on counting in their own cells, in
//! which these numbers are put before they start: neither counting nor reading costs more.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{
    MOST, Named, Noted, TakenOver, Text, fitting,
    peers::{self, OfPeer},
    sound,
};
use crate::endpoint::side::EndpointSide;
use crate::engine::{
    counters::{Counter, Totals},
    writer::Writer,
};
use crate::plane::Plane;
use crate::session::Here;
use crate::stages::reasons::{counted, reasons};

/// Counters of one vnic, network or uplink.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counted: Named,
    /// By drop reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    dropped: Named,
}

#[derive(Serialize, Deserialize)]
struct OfVnic {
    id: Cow<'static, str>,
    vni: u32,
    #[serde(default)]
    attachments: u64,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Serialize, Deserialize)]
struct OfNetwork {
    vni: u32,
    #[serde(flatten)]
    counts: Counts,
}

/// The whole text.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CountersText {
    layout: u32,
    boot: [u64; 2],
    vnics: Vec<OfVnic>,
    networks: Vec<OfNetwork>,
    /// Sum of the vnics, and of the networks, that are gone.
    gone: Counts,
    gone_networks: Counts,
    uplink: Counts,
    /// Counters of the port, and of frames for the endpoint itself.
    port: Named,
    control: Named,
    peers: Vec<OfPeer>,
    updates: Named,
    workers: Vec<Named>,
}

impl Text for CountersText {
    fn layout(&self) -> u32 {
        self.layout
    }
}

impl Counts {
    pub(super) fn of(totals: &Totals) -> Counts {
        let counted_ones =
            Counter::NAMED.iter().map(|(counter, name)| (*name, totals.get(*counter)));
        let dropped = counted(totals).map(|(info, count)| (info.name, count));
        Counts { counted: named(counted_ones), dropped: named(dropped) }
    }

    /// Returns the sums that the names stand for here.
    pub(super) fn read(&self, taken: &mut TakenOver) -> Totals {
        let mut totals = Totals::default();
        for (name, n) in sound(&self.counted, taken) {
            match Counter::NAMED.iter().find(|(_, known)| *known == name) {
                Some((counter, _)) => totals.add(*counter, n),
                None => taken.unknown("counter", name),
            }
        }
        for (name, n) in sound(&self.dropped, taken) {
            match reasons().find(|info| info.name == name) {
                Some(info) => totals.add_drops(info.reason, n),
                None => taken.unknown("drop reason", name),
            }
        }
        totals
    }
}

fn named<'a>(list: impl Iterator<Item = (&'static str, u64)> + 'a) -> Named {
    list.filter(|(_, n)| *n > 0).map(|(name, n)| (name.into(), n)).collect()
}

/// Notes all counters. If there is no room for all, other hosts are left out, then the vnics that
/// come last by their ids: those count for the host as if they were gone.
pub(crate) fn note(plane: &Plane, side: Option<&EndpointSide>, room: usize) -> Noted {
    let parts = plane.gone.parts(&plane.shared.snapshot);
    let (mut vnics, mut networks) = (Vec::new(), Vec::new());
    for (vnic, totals) in parts.present {
        if vnic.is_trunk() {
            networks.push(OfNetwork { vni: vnic.vni, counts: Counts::of(&totals) });
        } else {
            let attachments = vnic.shared.presence.attachments();
            let of = OfVnic {
                id: vnic.id.to_string().into(),
                vni: vnic.vni,
                attachments,
                counts: Counts::of(&totals),
            };
            vnics.push((of, totals));
        }
    }
    vnics.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
    let (vnics, totals): (Vec<OfVnic>, Vec<Totals>) = vnics.into_iter().unzip();
    let pairs = |rows: Vec<(&'static str, &'static str, u64)>| {
        named(rows.into_iter().map(|(name, _, n)| (name, n)))
    };
    let text = CountersText {
        layout: butterfly_layout::in_force(),
        boot: Here::read().boot,
        vnics,
        networks,
        gone: Counts::of(&parts.vnics),
        gone_networks: Counts::of(&parts.trunks),
        uplink: plane.shared.tunnel.as_ref().map(|t| Counts::of(&t.totals())).unwrap_or_default(),
        port: side.map(|side| pairs(side.counted())).unwrap_or_default(),
        control: side.map(|side| pairs(side.control_counts())).unwrap_or_default(),
        peers: peers::note(plane),
        updates: named(plane.updates.list().into_iter()),
        workers: plane.board.handles().iter().map(|worker| named(worker.stats.named())).collect(),
    };
    let mut gone = parts.vnics;
    let mut peers_out = 0;
    fitting(text, room, |text, keep| {
        if !text.peers.is_empty() {
            peers_out = text.peers.len();
            text.peers.clear();
        } else {
            let left = text.vnics.len() * keep / 1000;
            totals.iter().take(text.vnics.len()).skip(left).for_each(|of| gone.merge(of));
            text.vnics.truncate(left);
            text.gone = Counts::of(&gone);
        }
        peers_out + totals.len() - text.vnics.len()
    })
}

/// Adds a former process's counters to those of here.
pub(super) fn take_over(
    plane: &Plane,
    side: Option<&EndpointSide>,
    worker: Writer<'_>,
    text: CountersText,
    taken: &mut TakenOver,
) {
    let (mut gone, mut gone_networks) = (text.gone.read(taken), text.gone_networks.read(taken));
    let snapshot = plane.shared.snapshot.load_full();
    let mut seen = HashSet::new();
    for OfVnic { id, vni, attachments, counts } in &text.vnics {
        if !seen.insert(&**id) {
            taken.refuse("told twice");
            continue;
        }
        let totals = counts.read(taken);
        // One of this name in another network is another vnic.
        match plane.vnic(id).filter(|vnic| vnic.vni == *vni) {
            Some(vnic) => {
                if let Some(cells) = vnic.shared.counters.of(worker) {
                    cells.merge(&totals);
                }
                if *attachments < MOST {
                    vnic.shared.presence.add_former(*attachments);
                }
                taken.vnics += 1;
            }
            None => {
                gone.merge(&totals);
                taken.vnics_gone += 1;
            }
        }
    }
    let mut seen = HashSet::new();
    for OfNetwork { vni, counts } in &text.networks {
        if !seen.insert(*vni) {
            taken.refuse("told twice");
            continue;
        }
        let totals = counts.read(taken);
        match snapshot.trunk(*vni).and_then(|(_, trunk)| trunk.shared.counters.of(worker)) {
            Some(cells) => cells.merge(&totals),
            None => gone_networks.merge(&totals),
        }
    }
    let uplink = text.uplink.read(taken);
    match plane.shared.tunnel.as_ref().and_then(|tunnel| tunnel.counters.of(worker)) {
        Some(cells) => cells.merge(&uplink),
        // Its drops are the host's, too.
        None => gone.merge(&uplink.drops_only()),
    }
    plane.gone.add_former(&gone, &gone_networks);
    of_the_rest(plane, side, worker, &text, taken);
    let boot = Here::read().boot;
    peers::take_over(plane, &text.peers, text.boot == boot && boot != [0; 2], taken);
}

/// Adds counters of the port, of changes and of workers.
fn of_the_rest(
    plane: &Plane,
    side: Option<&EndpointSide>,
    worker: Writer<'_>,
    text: &CountersText,
    taken: &mut TakenOver,
) {
    if let Some(side) = side {
        let sound_ones = |counts, taken: &mut _| -> Named {
            sound(counts, taken).into_iter().map(|(name, n)| (name.to_owned().into(), n)).collect()
        };
        let (port, control) = (sound_ones(&text.port, taken), sound_ones(&text.control, taken));
        for name in side.add_former(&port, &control) {
            taken.unknown("counter of the uplink", &name);
        }
    }
    for (name, n) in sound(&text.updates, taken) {
        if !plane.updates.add_former(name, n) {
            taken.unknown("kind of change", name);
        }
    }
    // The right to write this is the first worker's, so what all did counts for it.
    let all = text.workers.iter().zip(std::iter::repeat(plane.board.first()));
    for (counts, handle) in all.filter_map(|(counts, handle)| Some((counts, handle?))) {
        for (name, n) in sound(counts, taken) {
            if !handle.stats.add_former(worker, name, n) {
                taken.unknown("counter of a worker", name);
            }
        }
    }
}
