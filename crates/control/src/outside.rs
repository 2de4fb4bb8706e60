//! Externals and translations in words, and those that differ between two states.

use crate::{
    object::{Difference, Object, What},
    routed::Routed,
};
use butterfly_model::{
    Cidr, External, ExternalId, Nat, NatPlace, RouterAddresses, RouterId, canonical,
};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a translation: its outside address, maybe with a port, and the external.
pub fn nat_name(external: &ExternalId, place: &NatPlace) -> String {
    match place {
        (address, None) => format!("{} at external {:?}", canonical(*address), external.as_str()),
        (address, Some((protocol, port))) => {
            let (protocol, address) = (protocol.name(), canonical(*address));
            format!("{protocol} {address}:{port} at external {:?}", external.as_str())
        }
    }
}

/// A translation and its router, in words.
pub fn about_nat(router: &RouterId, nat: &Nat) -> String {
    format!("{nat} of router {:?}", router.as_str())
}

/// The wire, the VNI, the addresses and the gateways of an external, in words.
pub fn about_external(external: &External) -> String {
    parts(external).join(", ")
}

fn parts(external: &External) -> Vec<String> {
    let mut parts = vec![wire(external)];
    if external.is_provider() {
        parts.push(format!("VNI {}", external.vni()));
    }
    parts.extend(external.addresses().iter().map(Cidr::to_string));
    parts.extend(external.gateways().map(|ip| format!("gateway {}", canonical(ip))));
    parts.extend(external.network().mtu().map(|mtu| format!("MTU {mtu}")));
    parts
}

fn wire(external: &External) -> String {
    if let Some(host) = external.via() {
        return format!("via host {}", canonical(host));
    }
    match (external.wire(), external.vlan()) {
        (None, _) => "no wire".to_owned(),
        (Some(wire), None) => format!("wire {wire}"),
        (Some(wire), Some(vlan)) => format!("wire {wire} VLAN {vlan}"),
    }
}

/// The attachment of a router to an external, in words.
pub(crate) fn attached_outside((id, given): (&ExternalId, RouterAddresses)) -> String {
    match given.is_empty() {
        true => format!("external {:?}", id.as_str()),
        false => format!("external {:?} as {}", id.as_str(), given.texts().join(" ")),
    }
}

/// Lists the externals that differ, in byte order of their ids.
pub(crate) fn externals(old: &Routed, new: &Routed) -> Vec<Difference> {
    let ids: BTreeSet<&ExternalId> =
        old.externals().chain(new.externals()).map(External::id).collect();
    let of = |id: &ExternalId| {
        let (what, text) = match (old.external(id.as_str()), new.external(id.as_str())) {
            (None, Some(new)) => (What::Added, about_external(new)),
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) if old != new => (What::Changed, changed(old, new)),
            _ => return None,
        };
        Some(Difference { object: Object::External, name: id.as_str().to_owned(), what, text })
    };
    ids.into_iter().filter_map(of).collect()
}

fn changed(old: &External, new: &External) -> String {
    let (was, will) = (parts(old), parts(new));
    let only = |of: &[String], other: &[String], sign: char| -> Vec<String> {
        of.iter().filter(|it| !other.contains(it)).map(|it| format!("{sign}{it}")).collect()
    };
    let all = [only(&will, &was, '+'), only(&was, &will, '-')].concat();
    match (all.is_empty(), old.vni() == new.vni()) {
        (true, true) => "addresses in another order".to_owned(),
        (true, false) => format!("VNI {} -> {}", old.vni(), new.vni()),
        (false, _) => all.join(", "),
    }
}

/// Lists the translations that differ, in the order of externals and outside addresses.
pub(crate) fn nats(old: &Routed, new: &Routed) -> Vec<Difference> {
    type Key = (ExternalId, NatPlace);
    let all = |of: &Routed| -> BTreeMap<Key, (RouterId, Nat)> {
        let rules = of.all_nats();
        rules.map(|it| ((it.external, it.nat.place()), (it.router, it.nat))).collect()
    };
    let (was, will) = (all(old), all(new));
    let places: BTreeSet<&Key> = was.keys().chain(will.keys()).collect();
    let of = |key: &Key| {
        let (what, text) = match (was.get(key), will.get(key)) {
            (None, Some((router, nat))) => (What::Added, about_nat(router, nat)),
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) if old != new => (
                What::Changed,
                format!("-{}, +{}", about_nat(&old.0, &old.1), about_nat(&new.0, &new.1)),
            ),
            _ => return None,
        };
        Some(Difference { object: Object::Nat, name: nat_name(&key.0, &key.1), what, text })
    };
    places.into_iter().filter_map(of).collect()
}
