//! Texts that processes keep for others, read and checked like a client's word: records of the
//! store, and the declaration.

use super::convert;
use crate::keeper::{Birth, nat_key, neighbour_key, peer_name};
use butterfly_api::{Failure, proto};
use butterfly_control::{Declaration, Desired, Refused, Unnamed};
use butterfly_model::{SocketDir, Vni};
use butterfly_store::{Contents, Key, Sort};

/// Returns the words of a failure.
fn told(failure: Failure) -> String {
    let parts = [failure.description, failure.help];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// Reads a record of a layout. It goes through the checks of a request.
pub(super) fn object(
    key: &Key,
    value: &[u8],
    layout: u32,
    sockets: &SocketDir,
) -> Result<(Declaration, Option<Birth>), String> {
    let named = |name: &str| match name == key.name {
        true => Ok(()),
        false => Err(format!("it is called {name:?}")),
    };
    #[cfg(debug_assertions)]
    assert!(
        key.name != "poison-store" || std::env::var_os("BUTTERFLY_FAIL_POINTS").is_none(),
        "a fail point was asked for"
    );
    let mut object = Declaration::default();
    let mut birth = None;
    match key.sort {
        Sort::Vnic => {
            let (number, rest) = value.split_first_chunk().ok_or("it is too short")?;
            let (place, rest) = rest.split_first_chunk().ok_or("it is too short")?;
            let (number, place) = (u64::from_le_bytes(*number), u64::from_le_bytes(*place));
            birth = Some(Birth { number, place });
            let rest = match butterfly_layout::rehearsed(layout) {
                None => rest,
                Some(rehearsed) => rest
                    .strip_prefix(&rehearsed.to_le_bytes())
                    .ok_or("it lacks a field of its layout")?,
            };
            let nic: proto::Nic = read(rest)?;
            let nic = convert::nic(&nic, sockets).map_err(told)?;
            named(nic.id.as_str())?;
            object.vnics.push(nic);
        }
        Sort::Group => {
            let group: proto::Sg = read(value)?;
            let group = convert::security_group(&group).map_err(told)?;
            named(group.name().as_str())?;
            object.groups.push(group);
        }
        Sort::Peer => {
            let peer: proto::TunnelPeer = read(value)?;
            let peer = convert::peer(&peer).map_err(told)?;
            named(&peer_name(&peer))?;
            object.peers.push(peer);
        }
        Sort::Network => {
            let network: proto::Network = read(value)?;
            let network = convert::declared_network(&network).map_err(told)?;
            named(&network.vni().to_string())?;
            object.networks.push(network);
        }
        Sort::Router => {
            let router: proto::Router = read(value)?;
            let router = convert::router(&router).map_err(told)?;
            named(router.id().as_str())?;
            object.routers.push(router);
        }
        Sort::External => {
            let external: proto::External = read(value)?;
            let external = convert::external(&external, without_number).map_err(told)?;
            named(external.id().as_str())?;
            object.externals.push(external);
        }
        Sort::Nat => {
            let rule: proto::Nat = read(value)?;
            let rule = convert::nat(&rule).map_err(told)?;
            named(&nat_key(&rule.external, &rule.nat.place()))?;
            object.nats.push(rule);
        }
        Sort::Neighbour => {
            let neighbour: proto::Neighbour = read(value)?;
            let neighbour = convert::neighbour(&neighbour).map_err(told)?;
            named(&neighbour_key(neighbour.vni(), neighbour.address()))?;
            object.neighbours.push(neighbour);
        }
    }
    Ok((object, birth))
}

/// Refuses an external that was kept without its number.
fn without_number(id: &str) -> Result<Vni, Refused> {
    Err(Refused::NoNumber(id.to_owned()))
}

/// Reads a message. One with more than this release knows may mean less by what is left.
fn read<M: protobuf::MessageFull>(bytes: &[u8]) -> Result<M, String> {
    let message = M::parse_from_bytes(bytes).map_err(|why| why.to_string())?;
    match butterfly_api::knows_all(&message) {
        true => Ok(message),
        false => Err("it has fields that this release does not know".to_owned()),
    }
}

/// Reads what a store has, as this process would declare it. Returns the reason if it cannot.
pub fn stored_in(contents: &Contents, sockets: &SocketDir) -> Result<Desired, String> {
    let mut all = Declaration::default();
    for (key, value) in &contents.records {
        let (read, _) = object(key, value, contents.layout, sockets)
            .map_err(|why| format!("{:?} {:?}: {why}", key.sort, key.name))?;
        all.join(read);
    }
    Desired::default().with(all, Unnamed::Stay).map_err(|why| why.to_string())
}

/// Reads a declaration that another process kept, as this one would take it up. Returns the reason
/// if it cannot.
pub fn declared_in(bytes: &[u8], sockets: &SocketDir) -> Result<Desired, String> {
    let request: proto::ApplyReq = read(bytes)?;
    let nics = request.nic.iter().map(|nic| convert::nic(nic, sockets));
    let groups = request.security_group.iter().map(convert::security_group);
    let peers = request.peer.iter().map(convert::peer);
    let networks = request.network.iter().map(convert::declared_network);
    let routers = request.router.iter().map(convert::router);
    let neighbours = request.neighbour.iter().map(convert::neighbour);
    let externals = request.external.iter().map(|it| convert::external(it, without_number));
    let nats = request.nat.iter().map(convert::nat);
    let declaration = Declaration {
        vnics: nics.collect::<Result<_, _>>().map_err(told)?,
        groups: groups.collect::<Result<_, _>>().map_err(told)?,
        peers: peers.collect::<Result<_, _>>().map_err(told)?,
        networks: networks.collect::<Result<_, _>>().map_err(told)?,
        routers: routers.collect::<Result<_, _>>().map_err(told)?,
        neighbours: neighbours.collect::<Result<_, _>>().map_err(told)?,
        externals: externals.collect::<Result<_, _>>().map_err(told)?,
        nats: nats.collect::<Result<_, _>>().map_err(told)?,
    };
    Desired::default().with(declaration, Unnamed::Stay).map_err(|why| why.to_string())
}
