//! Drops, for the operator: place, reason, rate, and the last packet of each reason.

use std::time::Duration;

use butterfly_packet::summary::Summary;

use crate::engine::{
    counters::{Counters, Totals},
    last_drops::LastDrop,
    place::Place,
    reason::ReasonInfo,
};
use crate::overlay::Tunnel;
use crate::plane::Plane;
use crate::plane::drop_window::DropWindow;
use crate::stages::reasons::counted;
use crate::world::snapshot::{Snapshot, Vnic};

/// Place that drops are charged to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DropPlace {
    /// A vnic.
    Vnic {
        /// Its name.
        id: String,
        /// Its network.
        vni: u32,
    },
    /// A network, for frames from and to other hosts that are no vnic's.
    Network(u32),
    /// The uplink, for frames that are no network's.
    Uplink,
    /// Vnics that are gone, and networks that went with them.
    Gone,
}

/// A packet that was dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedPacket {
    /// Time since the drop, to a tenth of a second.
    pub age: Duration,
    /// Network, addresses, protocol, ports and length on one line; `None` if the packet could not
    /// be read.
    pub summary: Option<String>,
}

/// Drops of one place for one reason.
#[derive(Clone, Debug)]
pub struct DropRow {
    /// The reason.
    pub info: ReasonInfo,
    /// Frames since the place was added.
    pub count: u64,
    /// Frames in the report's window; `None` where not known.
    pub recent: Option<u64>,
    /// The last packet, to a tenth of a second; `None` where not known. A place keeps packets of
    /// the reasons that occurred last.
    pub last: Option<DroppedPacket>,
    /// Its first bytes; empty where not known.
    pub head: Vec<u8>,
}

/// Drops of one place.
#[derive(Clone, Debug)]
pub struct PlaceDrops {
    /// The place.
    pub place: DropPlace,
    /// Reasons with drops, in the order of the stages.
    pub rows: Vec<DropRow>,
}

/// Drops of a host, or of one vnic.
#[derive(Clone, Debug)]
pub struct DropReport {
    /// Time since the switch started, to a tenth of a second.
    pub at: Duration,
    /// Length of the window of `recent`, which ends now.
    pub window: Duration,
    /// Places with drops: vnics by id, then networks by number, the uplink, and vnics that are
    /// gone.
    pub places: Vec<PlaceDrops>,
}

fn tenths(n: u32) -> Duration {
    Duration::from_millis(u64::from(n) * 100)
}

/// Returns the drops of one vnic, or of all. `None` if there is no such vnic.
pub(crate) fn drop_report(plane: &Plane, only: Option<&str>) -> Option<DropReport> {
    let now = plane.shared.clock.tenths();
    let window = plane.drop_window();
    // A vnic's count is either its own or of the vnics that are gone, never both or neither.
    let places = plane.look(only, |place, snapshot, gone| {
        let look = Look { window: &window, now };
        match only {
            Some(_) => Some(vec![look.at_vnic(snapshot.vnic(place?)?)]),
            None => Some(look.at_all(snapshot, plane.shared.tunnel.as_ref(), gone)),
        }
    });
    let mut places = places?;
    places.retain(|place| !place.rows.is_empty());
    Some(DropReport {
        at: tenths(now),
        window: tenths(now.wrapping_sub(window.older.when)),
        places,
    })
}

/// A look at the drops until now.
struct Look<'a> {
    window: &'a DropWindow,
    now: u32,
}

impl Look<'_> {
    fn rows(
        &self,
        place: Place,
        vni: Option<u32>,
        counters: &Counters,
        totals: &Totals,
    ) -> Vec<DropRow> {
        let kept = counters.last_drops();
        let row = |(info, count): (ReasonInfo, u64)| {
            let last = kept.iter().find(|drop| drop.reason == info.reason);
            DropRow {
                info,
                count,
                recent: Some(count.saturating_sub(self.window.before(place, info.reason))),
                last: last.map(|drop| packet(drop, vni, self.now)),
                head: last.map(|drop| drop.head().to_vec()).unwrap_or_default(),
            }
        };
        counted(totals).map(row).collect()
    }

    fn at_vnic(&self, vnic: &Vnic) -> PlaceDrops {
        let place = match vnic.is_trunk() {
            true => DropPlace::Network(vnic.vni),
            false => DropPlace::Vnic { id: vnic.id.to_string(), vni: vnic.vni },
        };
        let counters = &vnic.shared.counters;
        PlaceDrops {
            place,
            rows: self.rows(Place::Port(vnic.place), Some(vnic.vni), counters, &counters.totals()),
        }
    }

    fn at_all(
        &self,
        snapshot: &Snapshot,
        tunnel: Option<&Tunnel>,
        gone: &Totals,
    ) -> Vec<PlaceDrops> {
        let mut places: Vec<PlaceDrops> =
            snapshot.vnics.iter().map(|(_, vnic)| self.at_vnic(vnic)).collect();
        places.sort_by(|a, b| order(&a.place).cmp(&order(&b.place)));
        places.extend(tunnel.map(|tunnel| PlaceDrops {
            place: DropPlace::Uplink,
            rows: self.rows(Place::Uplink, None, &tunnel.counters, &tunnel.totals()),
        }));
        let row =
            |(info, count)| DropRow { info, count, recent: None, last: None, head: Vec::new() };
        places.push(PlaceDrops { place: DropPlace::Gone, rows: counted(gone).map(row).collect() });
        places
    }
}

/// Returns the sort key: vnics first, by id; then networks, by number.
fn order(place: &DropPlace) -> (u8, &str, u32) {
    match place {
        DropPlace::Vnic { id, .. } => (0, id, 0),
        DropPlace::Network(vni) => (1, "", *vni),
        DropPlace::Uplink => (2, "", 0),
        DropPlace::Gone => (3, "", 0),
    }
}

fn packet(drop: &LastDrop, vni: Option<u32>, now: u32) -> DroppedPacket {
    let summary = Summary::new(drop.head(), drop.len);
    let text = || match vni {
        Some(vni) => format!("vni {vni}: {summary}"),
        None => summary.to_string(),
    };
    // A packet that was dropped while the others were looked at counts as dropped now.
    DroppedPacket {
        age: tenths(now.saturating_sub(drop.when)),
        summary: (!drop.head().is_empty()).then(text),
    }
}
