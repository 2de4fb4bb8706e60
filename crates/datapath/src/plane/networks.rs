//! Networks: members, stations and holders of addresses, as of the vnics in a snapshot.

use std::{collections::HashMap, sync::Arc};

use butterfly_packet::mac::Mac;

use crate::engine::{mac::number, numbers::Numbers, slab::Slab};
use crate::plane::{FIRST_VERSION, policies::copy_with};
use crate::world::{
    holders::addresses,
    snapshot::{Network, Remote, Snapshot, Vnic},
    waiting::waiting,
};

/// Notes the holders of addresses after a vnic came, changed or went. Has the sessions decided
/// again of vnics that bypass filters in the network and do not forward: they may send from an
/// address that is not theirs any more.
pub(super) fn rehold(snapshot: &mut Snapshot, old: Option<&Vnic>, new: &Vnic) {
    let Some(network) = snapshot
        .networks
        .get(new.network)
        .filter(|_| snapshot.by_vni.get(&new.vni) == Some(&new.network))
    else {
        return;
    };
    let mut network = Network::clone(network);
    let of = old.into_iter().flat_map(addresses).chain(addresses(new));
    let tighter = network.holders.change(new.place.slot, of, &snapshot.vnics);
    network.leases = leases(&network, &snapshot.vnics);
    let others = network
        .members
        .clone()
        .into_iter()
        .chain(network.remote.as_ref().map(|remote| remote.slot));
    snapshot.networks.set(new.network, Some(Arc::new(network)));
    for slot in others.filter(|_| tighter) {
        if let Some(other) = snapshot
            .vnics
            .get(slot)
            .filter(|other| other.rules.bypass && !other.rules.forwards)
            .cloned()
        {
            let again = Vnic { since: snapshot.version, ..copy_with(&other, other.rules.clone()) };
            snapshot.vnics.set(slot, Some(Arc::new(again)));
        }
    }
}

/// Returns, by the slots of a network's vnics, the first address that each one declares and may get
/// by DHCP.
pub(super) fn leases(network: &Network, vnics: &Slab<Vnic>) -> Numbers {
    let leasing = network.routing.as_ref().and_then(|routing| routing.leasing.as_ref());
    let Some(leasing) = leasing else { return Numbers::default() };
    let lease = |slot: &u32| {
        let declared = &vnics.get(*slot)?.rules.declared;
        let address = declared.iter().find(|ip| leasing.subnet_of(**ip).is_some())?;
        Some((u64::from(*slot), address.to_bits()))
    };
    let found: Vec<(u64, u32)> = network.members.iter().filter_map(lease).collect();
    Numbers::new(found.into_iter())
}

pub(super) fn rebuild_network(snapshot: &mut Snapshot, vni: u32, at: u32, remote: Option<Remote>) {
    let vnics: &Slab<Vnic> = &snapshot.vnics;
    let own =
        || vnics.iter().map(|(_, vnic)| vnic).filter(|vnic| vnic.vni == vni && !vnic.is_trunk());
    let mut members: Vec<&Arc<Vnic>> = own().filter(|vnic| !vnic.is_mirror()).collect();
    let waiting = waiting(&members, snapshot.kept.filter(|kept| kept.vni == vni));
    members.retain(|vnic| waiting.binary_search(&vnic.place.slot).is_err());
    // A vnic with a group address or none cannot receive.
    let stations = members.iter().filter(|vnic| !vnic.mac.is_group() && vnic.mac != Mac::ZERO);
    let learnt =
        snapshot.networks.get(at).map(|network| network.learnt.clone()).unwrap_or_default();
    // Those of an adopted table, if it has sessions of this network.
    let adopted = snapshot.adopted.as_ref().and_then(|adopted| adopted.sessions_in(vni)).cloned();
    let first = if adopted.is_some() { FIRST_VERSION } else { snapshot.version };
    let relaying =
        snapshot.networks.get(at).map(|network| network.relaying.clone()).unwrap_or_default();
    let sessions = snapshot.networks.get(at).map(|network| network.sessions.clone());
    let sessions = sessions.or(adopted).unwrap_or_default();
    let holders =
        snapshot.networks.get(at).map(|network| network.holders.clone()).unwrap_or_default();
    let born = snapshot.networks.get(at).map_or(first, |network| network.born);
    // The network stays while it has vnics, even if all of them are mirrors, or leads to others.
    let leads = remote.is_some() && snapshot.is_joined(vni);
    let network = (leads || own().next().is_some()).then(|| Network {
        vni,
        members: members.iter().map(|vnic| vnic.place.slot).collect(),
        filtered: members.iter().any(|vnic| !vnic.rules.bypass),
        open: members.iter().any(|vnic| vnic.rules.bypass),
        may_be_routed: remote.is_some() || snapshot.routings.contains_key(&vni),
        routing: snapshot.routings.get(&vni).cloned(),
        macs: Numbers::new(stations.clone().map(|vnic| (number(vnic.mac), vnic.place.slot))),
        waiting: waiting.clone(),
        holders,
        leases: Numbers::default(),
        remote,
        learnt,
        relaying,
        sessions,
        born,
    });
    let network = network.map(|mut network| {
        network.leases = leases(&network, vnics);
        Arc::new(network)
    });
    let mut by_vni = HashMap::clone(&snapshot.by_vni);
    if network.is_some() {
        by_vni.insert(vni, at)
    } else {
        by_vni.remove(&vni)
    };
    snapshot.vnis = Arc::new(Numbers::new(by_vni.iter().map(|(vni, at)| (u64::from(*vni), *at))));
    snapshot.by_vni = Arc::new(by_vni);
    snapshot.networks.set(at, network);
}
