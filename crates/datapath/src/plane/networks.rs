//! Networks: members, stations and holders of addresses, as of the vnics in a snapshot.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
    sync::Arc,
};

use butterfly_packet::mac::Mac;

use crate::engine::{mac::number, numbers::Numbers, slab::Slab};
use crate::ip::{Address, is_v4, mapped};
use crate::plane::{FIRST_VERSION, policies::copy_with};
use crate::world::{
    holders::{addresses, prefixes},
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
    let of: Vec<_> = old.into_iter().flat_map(addresses).chain(addresses(new)).collect();
    let of_prefixes = old.into_iter().flat_map(prefixes).chain(prefixes(new));
    let all = (of.iter().copied(), of_prefixes);
    let tighter = network.holders.change(new.place.slot, all, &snapshot.vnics);
    release(&mut network, new.place.slot, &of, &snapshot.vnics);
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

/// Notes the lease of a vnic that came, changed or went, and those of others that have one of these
/// addresses, of which it had or has each.
fn release(network: &mut Network, slot: u32, of: &[Address], vnics: &Slab<Vnic>) {
    if network.routing.as_ref().is_none_or(|routing| routing.leasing.is_none()) {
        return;
    }
    let holdings = of.iter().filter(|it| is_v4(**it)).filter_map(|it| network.holders.get(*it));
    let others = holdings.flat_map(|holding| holding.slots());
    let slots: BTreeSet<u32> = others.chain([slot]).collect();
    for slot in slots {
        match vnics.get(slot).and_then(|vnic| lease(network, vnic)) {
            Some(address) => network.leases.insert(slot, address),
            None => network.leases.remove(&slot),
        };
    }
}

/// Returns the addresses that all vnics of a network get by DHCP, by their slots.
pub(super) fn leases(network: &Network, vnics: &Slab<Vnic>) -> imbl::HashMap<u32, Ipv4Addr> {
    let slots = network.members.iter().chain(&network.waiting);
    slots.filter_map(|slot| Some((*slot, lease(network, vnics.get(*slot)?)?))).collect()
}

/// Returns the address that a vnic gets by DHCP: the first one that it declares and may get, of
/// those that it alone has if there are any.
fn lease(network: &Network, vnic: &Vnic) -> Option<Ipv4Addr> {
    let leasing = network.routing.as_ref()?.leasing.as_ref()?;
    let declared = vnic.rules.declared.iter().copied();
    let mut may_get = declared.filter(|ip| leasing.subnet_of(*ip).is_some() && !vnic.is_mirror());
    let alone =
        |ip: &Ipv4Addr| network.holders.get(mapped(*ip)).is_some_and(|it| it.alone().is_some());
    may_get.clone().find(alone).or_else(|| may_get.next())
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
    let leases =
        snapshot.networks.get(at).map(|network| network.leases.clone()).unwrap_or_default();
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
        wire: members.iter().find(|vnic| vnic.is_wire()).map(|vnic| vnic.place.slot),
        holders,
        leases,
        remote,
        learnt,
        relaying,
        sessions,
        born,
    });
    let network = network.map(Arc::new);
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
