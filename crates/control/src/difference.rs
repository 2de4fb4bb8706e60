//! The difference of two states, object by object, for people and programs.

use crate::{
    change::{Change, NicChange},
    desired::Desired,
    neighbour::neighbours,
    object::{Difference, Object, What},
    outside::{attached_outside, externals, nats},
    peers::TunnelPeer,
    words::{difference, limit, member_of, rule_of},
};
use butterfly_model::{
    Dhcp, Network, Nic, Route, Router, RouterAddresses, RouterId, SecurityGroup, Vni, canonical,
};
use std::collections::{BTreeSet, HashSet};

/// Lists the objects that differ between `old` and `new`: networks, externals, routers,
/// translations, neighbours, vnics, groups, peers, each in the order of their names. `changes` is
/// their [`plan`](crate::plan()): it knows which VMs are cut off.
///
/// ```
/// # use butterfly_control::{Declaration, Desired, TunnelPeer, Unnamed, What, differences, plan};
/// let peer = TunnelPeer::new("192.0.2.7".parse().unwrap(), None).unwrap();
/// let file = Declaration { peers: vec![peer], ..Declaration::default() };
/// let (old, new) = (Desired::default(), Desired::default().with(file, Unnamed::Stay).unwrap());
/// let all = differences(&old, &new, &plan(&old, &new));
/// assert_eq!((all[0].name.as_str(), all[0].what), ("192.0.2.7", What::Added));
/// ```
pub fn differences(old: &Desired, new: &Desired, changes: &[Change]) -> Vec<Difference> {
    let mut all = networks(old, new);
    all.extend(externals(old.routed(), new.routed()));
    all.extend(routers(old, new));
    all.extend(nats(old.routed(), new.routed()));
    all.extend(neighbours(old.routed(), new.routed()));
    all.extend(vnics(old, new, changes));
    all.extend(groups(old, new));
    all.extend(peers(old, new));
    all
}

fn vnics(old: &Desired, new: &Desired, changes: &[Change]) -> Vec<Difference> {
    let removed: HashSet<&str> = changes
        .iter()
        .filter_map(|change| match change {
            Change::RemoveVnic(id) => Some(id.as_str()),
            _ => None,
        })
        .collect();
    let ids: BTreeSet<&str> = old.vnics().iter().chain(new.vnics().iter()).map(id).collect();
    let of = |id: &str| {
        let (was, will) = (old.vnics().get(id), new.vnics().get(id));
        let (what, text) = match (was, will) {
            (None, Some(new)) => (What::Added, description(new)),
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) => match NicChange::between(old, new) {
                NicChange::Recreate(_) => (What::Remade, changed(old, new)),
                _ if removed.contains(id) => {
                    let why =
                        "removed to make way for another nic and made again, so its traffic is cut";
                    let changed = changed(old, new);
                    let text = [changed.as_str(), why];
                    let text = text.into_iter().filter(|text| !text.is_empty());
                    (What::Remade, text.collect::<Vec<_>>().join(", "))
                }
                NicChange::InPlace => (What::Changed, changed(old, new)),
                NicChange::Nothing => return None,
            },
            (None, None) => return None,
        };
        Some(Difference { object: Object::Vnic, name: id.to_owned(), what, text })
    };
    ids.into_iter().filter_map(of).collect()
}

fn id(nic: &Nic) -> &str {
    nic.id.as_str()
}

/// A vnic that comes.
fn description(nic: &Nic) -> String {
    let mut text = format!("MAC {}, VNI {}", nic.mac, nic.vni);
    for (name, list) in [
        ("ip", nic.ips.texts()),
        ("prefix", nic.prefixes.texts()),
        ("security groups", nic.security_groups.texts()),
    ] {
        if !list.is_empty() {
            text.push_str(&format!(", {name} {}", list.join(" ")));
        }
    }
    for (word, said) in [
        ("antispoof", nic.ip_anti_spoof),
        ("bypasses filtering", nic.bypass_filtering),
        ("forwards", nic.forwards),
        ("shares its addresses", nic.shared_ip),
        ("is a router", nic.router),
    ] {
        if said {
            text.push_str(&format!(", {word}"));
        }
    }
    for (name, of_way) in
        [("limit in", &nic.limits.from_guest), ("limit out", &nic.limits.to_guest)]
    {
        if !of_way.is_none() {
            text.push_str(&format!(", {name} {}", limit(of_way)));
        }
    }
    if let Some(target) = &nic.sniff_target {
        text.push_str(&format!(", mirrors {target}"));
    }
    text
}

/// The properties of a vnic that change, those that make it anew first.
fn changed(old: &Nic, new: &Nic) -> String {
    let mut parts = Vec::new();
    if old.vni != new.vni {
        parts.push(format!("vni {} -> {}", old.vni, new.vni));
    }
    let said = difference(old, new);
    if let NicChange::Recreate(reasons) = NicChange::between(old, new) {
        let unsaid =
            reasons.into_iter().filter(|reason| !matches!(*reason, "vni" | "mac" | "sniff target"));
        parts.extend(unsaid.map(|reason| match (reason, old.kind.socket(), new.kind.socket()) {
            ("path", Some(old), Some(new)) => format!("path {old} -> {new}"),
            _ => reason.to_owned(),
        }));
    }
    if !said.is_empty() {
        parts.push(said);
    }
    parts.join(", ")
}

fn groups(old: &Desired, new: &Desired) -> Vec<Difference> {
    let names: BTreeSet<_> = old.groups().keys().chain(new.groups().keys()).collect();
    let of = |name: &_| {
        let (what, text) = match (old.groups().get(name), new.groups().get(name)) {
            (None, Some(new)) => {
                let rules = counted(new.rules().len(), "rule");
                (What::Added, format!("{rules}, {}", counted(new.members().len(), "member")))
            }
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) if old != new => (What::Changed, edited(old, new)),
            _ => return None,
        };
        Some(Difference { object: Object::Group, name: format!("{name}"), what, text })
    };
    names.into_iter().filter_map(of).collect()
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// At most so many rules and members of a group are told.
const TOLD: usize = 20;

/// Rules and members of a group that come and go.
fn edited(old: &SecurityGroup, new: &SecurityGroup) -> String {
    let rules = |of: &SecurityGroup, other: &SecurityGroup, sign: char| -> Vec<String> {
        let only = of.rules().filter(|rule| !other.has_rule(rule));
        only.map(|rule| format!("{sign}{}", after_name(&rule_of("", rule)))).collect()
    };
    let members = |of: &SecurityGroup, other: &SecurityGroup, sign: char| -> Vec<String> {
        let only = of.members().iter().filter(|member| !other.members().contains(*member));
        only.map(|member| format!("{sign}{}", after_name(&member_of("", member)))).collect()
    };
    let mut parts = rules(new, old, '+');
    parts.extend(rules(old, new, '-'));
    parts.extend(members(new, old, '+'));
    parts.extend(members(old, new, '-'));
    if parts.is_empty() {
        return "members in another order".to_owned();
    }
    let more = parts.len().saturating_sub(TOLD);
    parts.truncate(TOLD);
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    parts.join(", ")
}

fn after_name(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, rest)| rest)
}

fn peers(old: &Desired, new: &Desired) -> Vec<Difference> {
    let row = |what, peer: TunnelPeer| Difference {
        object: Object::Peer,
        name: canonical(peer.address()),
        what,
        text: peer.vni().map_or("for all networks".into(), |vni| format!("for network {vni}")),
    };
    let gone = old.peers().iter().filter(|peer| !new.peers().contains(peer));
    let come = new.peers().iter().filter(|peer| !old.peers().contains(peer));
    let gone = gone.map(|peer| row(What::Removed, peer));
    gone.chain(come.map(|peer| row(What::Added, peer))).collect()
}

fn networks(old: &Desired, new: &Desired) -> Vec<Difference> {
    let vnis: BTreeSet<Vni> =
        old.routed().networks().chain(new.routed().networks()).map(Network::vni).collect();
    let of = |vni: Vni| {
        let (what, text) = match (old.routed().network(vni), new.routed().network(vni)) {
            (None, Some(new)) => (What::Added, about_network(new)),
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) if old != new => (What::Changed, changed_network(old, new)),
            _ => return None,
        };
        Some(Difference { object: Object::Network, name: vni.to_string(), what, text })
    };
    vnis.into_iter().filter_map(of).collect()
}

/// The subnets and the MTU of a network, in words.
pub fn about_network(network: &Network) -> String {
    let mut parts: Vec<String> =
        network.subnets().iter().map(|subnet| format!("subnet {subnet}")).collect();
    parts.extend(network.mtu().map(|mtu| format!("MTU {mtu}")));
    parts.extend(network.is_public().then(|| "public".to_owned()));
    parts.extend(network.dhcp().map(|dhcp| format!("DHCP {}", about_dhcp(dhcp))));
    if parts.is_empty() { "no subnets".to_owned() } else { parts.join(", ") }
}

fn changed_network(old: &Network, new: &Network) -> String {
    let only = |of: &Network, other: &Network, sign: char| -> Vec<String> {
        let only = of.subnets().iter().filter(|subnet| !other.subnets().contains(subnet));
        only.map(|subnet| format!("{sign}subnet {subnet}")).collect()
    };
    let mut parts = only(new, old, '+');
    parts.extend(only(old, new, '-'));
    if old.mtu() != new.mtu() {
        let word = |mtu: Option<u16>| mtu.map_or("none".to_owned(), |mtu| mtu.to_string());
        parts.push(format!("MTU {} -> {}", word(old.mtu()), word(new.mtu())));
    }
    if old.is_public() != new.is_public() {
        parts.push(if new.is_public() { "+public" } else { "-public" }.to_owned());
    }
    match (old.dhcp(), new.dhcp()) {
        (Some(old), Some(new)) if old != new => {
            parts.push(format!("DHCP {} -> {}", about_dhcp(old), about_dhcp(new)));
        }
        (Some(_), None) => parts.push("-DHCP".to_owned()),
        (None, Some(new)) => parts.push(format!("+DHCP {}", about_dhcp(new))),
        _ => {}
    }
    parts.join(", ")
}

/// Returns the terms of DHCP in words.
fn about_dhcp(dhcp: &Dhcp) -> String {
    let mut words = vec![format!("lease {} s", dhcp.lease())];
    words.extend(dhcp.dns().iter().map(|server| format!("dns {server}")));
    words.extend(dhcp.search().iter().map(|domain| format!("search {domain}")));
    words.extend(dhcp.next_server().map(|server| format!("next server {server}")));
    words.extend(dhcp.boot_file().map(|file| format!("boot file {file}")));
    words.extend(dhcp.routes().iter().map(|route| format!("route {route}")));
    words.join(" ")
}

fn routers(old: &Desired, new: &Desired) -> Vec<Difference> {
    let ids: BTreeSet<_> =
        old.routed().routers().chain(new.routed().routers()).map(Router::id).collect();
    let of = |id: &RouterId| {
        let (was, will) = (old.routed().router(id.as_str()), new.routed().router(id.as_str()));
        let (what, text) = match (was, will) {
            (None, Some(new)) => (What::Added, about_router(new)),
            (Some(_), None) => (What::Removed, String::new()),
            (Some(old), Some(new)) if old != new => (What::Changed, changed_router(old, new)),
            _ => return None,
        };
        Some(Difference { object: Object::Router, name: id.as_str().to_owned(), what, text })
    };
    ids.into_iter().filter_map(of).collect()
}

/// Most routes of a router that a text names. A router may have many more.
const ROUTES_NAMED: usize = 16;

/// The networks that a router joins and its routes, in words.
pub fn about_router(router: &Router) -> String {
    let mut parts: Vec<String> = router.attachments().map(attached).collect();
    parts.extend(router.externals().map(attached_outside));
    if parts.is_empty() {
        parts.push("attached to no network".to_owned());
    }
    parts.extend(named(router.routes(), ""));
    parts.join(", ")
}

/// Routes in words, and how many more there are.
fn named<'a>(routes: impl Iterator<Item = &'a Route>, sign: &str) -> Vec<String> {
    let mut routes = routes.peekable();
    let some = routes.by_ref().take(ROUTES_NAMED).map(|route| format!("{sign}route {route}"));
    let mut parts: Vec<String> = some.collect();
    match routes.count() {
        0 => {}
        more => parts.push(format!("{sign}{more} more routes")),
    }
    parts
}

fn attached((vni, given): (Vni, RouterAddresses)) -> String {
    match given.is_empty() {
        true => format!("network {vni}"),
        false => format!("network {vni} as {}", given.texts().join(" ")),
    }
}

fn changed_router(old: &Router, new: &Router) -> String {
    let only = |of: &Router, other: &Router, sign: char| -> Vec<String> {
        let only = of.attachments().filter(|(vni, given)| other.attachment(*vni) != Some(*given));
        let outside =
            of.externals().filter(|(id, given)| other.external(id.as_str()) != Some(*given));
        let texts = only.map(attached).chain(outside.map(attached_outside));
        texts.map(|text| format!("{sign}{text}")).collect()
    };
    let mut parts = only(new, old, '+');
    parts.extend(only(old, new, '-'));
    let routes = |of: &Router, other: &Router, sign: &str| -> Vec<String> {
        named(of.routes().filter(|route| other.route(&route.to()) != Some(*route)), sign)
    };
    parts.extend(routes(new, old, "+"));
    parts.extend(routes(old, new, "-"));
    parts.join(", ")
}
