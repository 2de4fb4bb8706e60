//! Requests about declared neighbours, and their messages.

use super::Daemon;
use crate::{dataplane::Dataplane, handlers::convert};
use butterfly_api::{
    Answer, Failure,
    proto::{self, NeighbourListReq, Response},
};
use butterfly_control::{Change, neighbour_name};
use butterfly_model::{Neighbour, Vni, canonical, parse_ip};
use std::net::IpAddr;
use tracing::warn;

/// Most neighbours of one reply, which so is far from being too long.
const MOST_LISTED: usize = 65_536;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn neighbour_add(&mut self, declared: &proto::Neighbour) -> Answer {
        let new = neighbour(declared)?;
        if self.desired.routed().neighbour(new.vni(), new.address()) != Some(&new) {
            self.change(Change::DeclareNeighbour(new))?;
        }
        Ok(Response::new())
    }

    pub(super) fn neighbour_del(&mut self, declared: &proto::Neighbour) -> Answer {
        let (vni, address) = place(declared)?;
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
        let after = request.after.as_ref().map(place).transpose()?;
        let limit = request.limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.map_or(MOST_LISTED, |limit| limit.min(MOST_LISTED));
        let listed = self.desired.routed().neighbours_after(vni, after).take(limit);
        Ok(Response {
            neighbour_list: listed.map(neighbour_details).collect(),
            ..Default::default()
        })
    }
}

/// Checks the declaration of a neighbour.
pub(super) fn neighbour(declared: &proto::Neighbour) -> Result<Neighbour, Failure> {
    let (address, mac) = (declared.address(), declared.mac());
    let neighbour = Neighbour::parse(network_of(declared)?, address, mac, declared.host.as_deref());
    neighbour.map_err(|error| Failure::new(error.to_string()))
}

/// Reads the network and the address of a neighbour.
fn place(declared: &proto::Neighbour) -> Result<(Vni, IpAddr), Failure> {
    let address = parse_ip(declared.address());
    let address = address.map_err(|error| Failure::new(error.to_string()))?;
    Ok((network_of(declared)?, address))
}

fn network_of(declared: &proto::Neighbour) -> Result<Vni, Failure> {
    let vni = declared.vni.ok_or_else(|| Failure::new("a neighbour needs the VNI of its network"));
    vni.and_then(convert::network)
}

/// A neighbour as it is echoed. Given back as a declaration, it changes nothing.
pub(super) fn neighbour_details(neighbour: &Neighbour) -> proto::Neighbour {
    proto::Neighbour {
        vni: Some(neighbour.vni().number()),
        address: Some(canonical(neighbour.address())),
        mac: Some(neighbour.mac().text().to_owned()),
        host: neighbour.host().map(canonical),
        ..Default::default()
    }
}
