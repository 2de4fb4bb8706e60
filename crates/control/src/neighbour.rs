//! Neighbours in words, and those that differ between two states.

use crate::{
    object::{Difference, Object, What},
    routed::Routed,
};
use butterfly_model::{Neighbour, Vni, canonical};
use std::{collections::BTreeSet, net::IpAddr};

/// The name of a neighbour: its address and its network.
pub fn neighbour_name(vni: Vni, address: IpAddr) -> String {
    format!("{} of network {vni}", canonical(address))
}

/// The MAC address of a neighbour and the tunnel endpoint of its host, in words.
pub fn about_neighbour(neighbour: &Neighbour) -> String {
    match neighbour.host() {
        Some(host) => format!("MAC {}, host {}", neighbour.mac(), canonical(host)),
        None => format!("MAC {}", neighbour.mac()),
    }
}

/// Lists the neighbours that differ, in the order of their networks and addresses.
pub(crate) fn neighbours(old: &Routed, new: &Routed) -> Vec<Difference> {
    let at = |neighbour: &Neighbour| (neighbour.vni(), neighbour.address());
    let all: BTreeSet<(Vni, IpAddr)> = old.neighbours().chain(new.neighbours()).map(at).collect();
    let of = |(vni, address): (Vni, IpAddr)| {
        let (what, text) = match (old.neighbour(vni, address), new.neighbour(vni, address)) {
            (None, Some(new)) => (What::Added, about_neighbour(new)),
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) if old != new => (What::Changed, changed(old, new)),
            _ => return None,
        };
        let name = neighbour_name(vni, address);
        Some(Difference { object: Object::Neighbour, name, what, text })
    };
    all.into_iter().filter_map(of).collect()
}

fn changed(old: &Neighbour, new: &Neighbour) -> String {
    let mut parts = Vec::new();
    if old.mac() != new.mac() {
        parts.push(format!("MAC {} -> {}", old.mac(), new.mac()));
    }
    if old.host() != new.host() {
        let word = |host: Option<IpAddr>| host.map_or("none".to_owned(), canonical);
        parts.push(format!("host {} -> {}", word(old.host()), word(new.host())));
    }
    parts.join(", ")
}
