//! `butterfly tunnels` for people.

use crate::text::page::{field, host_mtu, section};
use crate::text::table::{Align, counted, duration, safe};
use butterfly_api::proto::{Counter, TunnelShow, tunnel_show};
use std::fmt::Write;

/// The page; with `all`, counters that counted nothing too.
pub fn page(show: &TunnelShow, all: bool) -> String {
    let mut page = format!("{}\n", safe(show.endpoint()));
    endpoint(&mut page, show);
    groups(&mut page, &show.groups);
    peers(&mut page, &show.peers);
    learnt(&mut page, &show.learnt);
    neighbours(&mut page, &show.neighbours);
    networks(&mut page, &show.networks, all);
    counters(&mut page, "frames for the endpoint itself", &show.control, all);
    page
}

fn endpoint(page: &mut String, show: &TunnelShow) {
    let answers = match show.answers() {
        true => "by the daemon",
        false => "by the host, which holds the address",
    };
    let heard = match show.strict_peers() {
        true => "those that are named (--strict-peers)",
        false => "all that send VXLAN to it",
    };
    field(page, "link address", show.mac());
    field(page, "ARP, ND, ping", &format!("answered {answers}"));
    field(page, "hosts heard", heard);
    field(page, "machines", &host_mtu(show.host_mtu()));
}

fn groups(page: &mut String, groups: &[tunnel_show::Group]) {
    let rows: Vec<_> =
        groups.iter().map(|group| [group.vni().to_string(), safe(group.address())]).collect();
    section(page, "groups joined", [("vni", Align::Right), ("group", Align::Left)], &rows);
}

fn peers(page: &mut String, peers: &[tunnel_show::Peer]) {
    let rows: Vec<_> = peers
        .iter()
        .map(|peer| {
            [
                safe(peer.address()),
                known(&peer.mac),
                named_for(peer),
                peer.idle.map_or("never".into(), duration),
                peer.in_packets().to_string(),
                peer.in_bytes().to_string(),
                peer.out_packets().to_string(),
                peer.out_bytes().to_string(),
                peer.drops().to_string(),
            ]
        })
        .collect();
    let columns = [
        ("address", Align::Left),
        ("next hop", Align::Left),
        ("named for", Align::Left),
        ("last heard", Align::Right),
        ("in packets", Align::Right),
        ("in bytes", Align::Right),
        ("out packets", Align::Right),
        ("out bytes", Align::Right),
        ("drops", Align::Right),
    ];
    section(page, "peers (in is what came from them)", columns, &rows);
    for (peer, told) in peers.iter().filter_map(|peer| Some((peer, silence(peer)?))) {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "  {}: {told}", safe(peer.address()));
    }
}

/// Seconds without an answer below which nothing is said of it.
const SOON: u64 = 5;

/// Returns the words for a peer that is silent.
fn silence(peer: &tunnel_show::Peer) -> Option<String> {
    match (trouble(peer), peer.unanswered_since) {
        (Some(trouble), _) => Some(trouble),
        (None, Some(since)) if since >= SOON => Some(format!(
            "nothing came back for {}, while {} left for it (traffic may be one-way)",
            duration(since),
            counted(peer.unanswered_packets(), "frame")
        )),
        (None, _) => None,
    }
}

/// Returns why frames for a peer arrive nowhere, if a station on the way says so.
pub fn trouble(peer: &tunnel_show::Peer) -> Option<String> {
    let trouble = safe(peer.trouble.as_deref()?);
    Some(format!("for {}, {trouble}", duration(peer.trouble_since())))
}

/// True if a peer that spoke before has been silent for a while, though this host sends to it.
pub fn is_silent(peer: &tunnel_show::Peer) -> bool {
    const LONG: u64 = 60;
    peer.idle.is_some() && peer.unanswered_since() >= LONG
}

/// The networks that an operator named a peer for.
fn named_for(peer: &tunnel_show::Peer) -> String {
    match (peer.named(), peer.vni.as_slice()) {
        _ if peer.of_neighbours() => "routers".into(),
        (false, _) => "learnt".into(),
        (true, []) => "all".into(),
        (true, vnis) => vnis.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}

fn learnt(page: &mut String, learnt: &[tunnel_show::RemoteMac]) {
    let row = |row: &tunnel_show::RemoteMac| {
        [row.vni().to_string(), safe(row.mac()), safe(row.peer()), duration(row.age())]
    };
    let rows: Vec<_> = learnt.iter().map(row).collect();
    let columns = [
        ("vni", Align::Right),
        ("mac", Align::Left),
        ("peer", Align::Left),
        ("last seen", Align::Right),
    ];
    section(page, "addresses learnt on them", columns, &rows);
}

fn neighbours(page: &mut String, neighbours: &[tunnel_show::Neighbour]) {
    let row = |row: &tunnel_show::Neighbour| {
        [
            safe(row.address()),
            known(&row.mac),
            safe(row.state()),
            row.age.map_or("never".into(), duration),
        ]
    };
    let rows: Vec<_> = neighbours.iter().map(row).collect();
    let columns = [
        ("address", Align::Left),
        ("mac", Align::Left),
        ("state", Align::Left),
        ("confirmed", Align::Right),
    ];
    section(page, "next hops", columns, &rows);
}

fn networks(page: &mut String, networks: &[tunnel_show::Network], all: bool) {
    let row = |network: &tunnel_show::Network| {
        [
            network.vni().to_string(),
            network.in_packets().to_string(),
            network.in_bytes().to_string(),
            network.out_packets().to_string(),
            network.out_bytes().to_string(),
        ]
    };
    let rows: Vec<_> = networks.iter().map(row).collect();
    let columns = [
        ("vni", Align::Right),
        ("in packets", Align::Right),
        ("in bytes", Align::Right),
        ("out packets", Align::Right),
        ("out bytes", Align::Right),
    ];
    section(page, "networks (in is what came from other hosts)", columns, &rows);
    let rows: Vec<_> = networks
        .iter()
        .flat_map(|network| network.drops.iter().map(|drop| (network.vni(), drop)))
        .filter(|(_, drop)| all || drop.count() != 0)
        .map(|(vni, drop)| {
            [
                vni.to_string(),
                safe(drop.reason()),
                drop.count().to_string(),
                safe(drop.description()),
            ]
        })
        .collect();
    let columns = [
        ("vni", Align::Right),
        ("reason", Align::Left),
        ("frames", Align::Right),
        ("meaning", Align::Left),
    ];
    section(page, "drops of networks", columns, &rows);
}

/// Counters under a title; those at zero only if `all` are wanted.
pub fn counters(page: &mut String, title: &str, counters: &[Counter], all: bool) {
    let rows: Vec<_> = counters
        .iter()
        .filter(|counter| all || counter.value() != 0)
        .map(|counter| {
            [safe(counter.name()), counter.value().to_string(), safe(counter.description())]
        })
        .collect();
    section(
        page,
        title,
        [("name", Align::Left), ("number", Align::Right), ("meaning", Align::Left)],
        &rows,
    );
}

fn known(mac: &Option<String>) -> String {
    mac.as_deref().map_or("unknown".into(), safe)
}
