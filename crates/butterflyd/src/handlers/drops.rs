//! Requests about what was dropped.

use super::{Daemon, advice::Adviser};
use crate::dataplane::Dataplane;
use butterfly_api::{
    Answer, Failure,
    proto::{
        DropListReq, DropListRes, Response,
        drop_list_res::{Drop, Place, Reason, place::Kind},
    },
};
use butterfly_datapath::{DropPlace, DropReport, DropRow, PlaceDrops, reasons};
use protobuf::MessageField;
use std::{collections::BTreeSet, time::Duration};

/// Most vnics and networks of a reply: this many surely fit.
const MOST: usize = 10_000;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn drop_list(&self, request: &DropListReq) -> Answer {
        if let Some(id) = &request.nic_id {
            self.vnic_or_wire(id)?;
        }
        let report = self.dataplane.drops(request.nic_id.as_deref()).ok_or_else(|| {
            Failure::new(format!("NIC {} is not in the data path", request.nic_id()))
                .with_help("please report this; nic del and nic add repair it")
        })?;
        Ok(Response { drop_list: MessageField::some(self.list(report)), ..Default::default() })
    }

    fn list(&self, report: DropReport) -> DropListRes {
        let DropReport { at, window, mut places } = report;
        let total = places.iter().flat_map(|place| &place.rows).map(|row| row.count).sum();
        let left_out = fit(&mut places, MOST);
        let occur: BTreeSet<&str> =
            places.iter().flat_map(|place| &place.rows).map(|row| row.info.name).collect();
        let reason = reasons().filter(|info| occur.contains(info.name)).map(|info| Reason {
            name: Some(info.name.to_owned()),
            description: Some(info.description.trim().to_owned()),
            cause: Some(info.cause.to_owned()),
            remedy: Some(info.remedy.to_owned()),
            charged: Some(info.charged.to_owned()),
            harmless: info.harmless.then_some(true),
            ..Default::default()
        });
        let mut adviser = self.adviser();
        DropListRes {
            time_ms: Some(milliseconds(at)),
            window_ms: Some(milliseconds(window)),
            total: Some(total),
            reason: reason.collect(),
            place: places.into_iter().map(|drops| place(drops, &mut adviser)).collect(),
            left_out: (left_out > 0).then_some(left_out),
            ..Default::default()
        }
    }
}

fn place<D: Dataplane>(drops: PlaceDrops, adviser: &mut Adviser<'_, D>) -> Place {
    let (kind, nic_id, vni) = match drops.place {
        DropPlace::Vnic { id, vni } => (Kind::NIC, Some(id), Some(vni)),
        DropPlace::Network(vni) => (Kind::NETWORK, None, Some(vni)),
        DropPlace::Uplink => (Kind::UPLINK, None, None),
        DropPlace::Gone => (Kind::GONE, None, None),
    };
    let drop = drops
        .rows
        .into_iter()
        .map(|row| entry(row, nic_id.as_deref().unwrap_or_default(), adviser))
        .collect();
    Place { kind: Some(kind.into()), nic_id, vni, drop, ..Default::default() }
}

/// `charged`: the vnic, if it is one.
fn entry<D: Dataplane>(row: DropRow, charged: &str, adviser: &mut Adviser<'_, D>) -> Drop {
    let remedy = adviser.advice(row.info.remedy, &row.head, charged);
    let (last, packet) = row.last.map(|last| (milliseconds(last.age), last.summary)).unzip();
    Drop {
        reason: Some(row.info.name.to_owned()),
        count: Some(row.count),
        recent: row.recent,
        last_ms: last,
        last_packet: packet.flatten(),
        remedy: Some(remedy).filter(|remedy| remedy != row.info.remedy),
        ..Default::default()
    }
}

/// Leaves out what is more than so many, from among vnics and networks; says how many that were.
fn fit(places: &mut Vec<PlaceDrops>, most: usize) -> u64 {
    let before = places.len();
    let mut room = most;
    places.retain(|drops| {
        if matches!(drops.place, DropPlace::Uplink | DropPlace::Gone) {
            return true;
        }
        let fits = room > 0;
        room = room.saturating_sub(1);
        fits
    });
    (before - places.len()) as u64
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_vnics_is_never_left_out() {
        let place = |place| PlaceDrops { place, rows: Vec::new() };
        let vnic = |id: &str| place(DropPlace::Vnic { id: id.into(), vni: 1 });
        let all = || {
            vec![
                vnic("a"),
                vnic("b"),
                place(DropPlace::Network(1)),
                place(DropPlace::Uplink),
                place(DropPlace::Gone),
            ]
        };
        for (most, left) in [(0, 2), (1, 3), (3, 5), (4, 5)] {
            let mut places = all();
            assert_eq!((fit(&mut places, most), places.len()), (5 - left as u64, left));
            assert_eq!(places.last().map(|last| last.place.clone()), Some(DropPlace::Gone));
        }
    }
}
