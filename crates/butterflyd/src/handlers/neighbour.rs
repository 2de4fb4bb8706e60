//! Requests about neighbours.

use super::Daemon;
use crate::{dataplane::Dataplane, handlers::convert};
use butterfly_api::{
    Answer,
    proto::{self, NeighbourListReq, Response},
};
use butterfly_control::{Change, neighbour_name};
use butterfly_datapath::SoughtNeighbour;
use butterfly_model::canonical;
use tracing::warn;

/// Most neighbours of one reply, which so is far from being too long.
const MOST_LISTED: usize = 65_536;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn neighbour_add(&mut self, declared: &proto::Neighbour) -> Answer {
        let new = convert::neighbour(declared)?;
        if self.desired.routed().neighbour(new.vni(), new.address()) != Some(&new) {
            self.change(Change::DeclareNeighbour(new))?;
        }
        Ok(Response::new())
    }

    pub(super) fn neighbour_del(&mut self, declared: &proto::Neighbour) -> Answer {
        let (vni, address) = convert::neighbour_place(declared)?;
        match self.desired.routed().neighbour(vni, address) {
            Some(_) => self.change(Change::RemoveNeighbour(vni, address))?,
            None => {
                let name = neighbour_name(vni, address);
                warn!("neighbour {name} is not declared and is deleted all the same");
            }
        }
        Ok(Response::new())
    }

    pub(super) fn neighbour_list(&self, request: &NeighbourListReq) -> Answer {
        let vni = request.vni.map(convert::network).transpose()?;
        let after = request.after.as_ref().map(convert::neighbour_place).transpose()?;
        let limit = request.limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.map_or(MOST_LISTED, |limit| limit.min(MOST_LISTED));
        let listed = self.desired.routed().neighbours_after(vni, after).take(limit);
        let sought = request.sought().then(|| self.dataplane.sought_neighbours());
        let is_of = |it: &SoughtNeighbour| vni.is_none_or(|vni| vni.number() == it.vni);
        let sought = sought.into_iter().flatten().filter(is_of);
        Ok(Response {
            neighbour_list: listed.map(convert::neighbour_details).collect(),
            neighbour_sought: sought.map(neighbour_sought).collect(),
            ..Default::default()
        })
    }
}

fn neighbour_sought(sought: SoughtNeighbour) -> proto::Neighbour {
    proto::Neighbour {
        vni: Some(sought.vni),
        address: Some(canonical(sought.address)),
        mac: sought.mac.map(|mac| mac.to_string()),
        source: Some("asked".to_owned()),
        state: Some(sought.state.name().to_owned()),
        age_s: sought.age.map(u64::from),
        ..proto::Neighbour::default()
    }
}
