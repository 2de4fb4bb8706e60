//! Other hosts, with what was counted for them.
//!
//! A part of the counters: if a host were forgotten for whose frames a count was told, that would
//! begin anew.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::atomic::Ordering::Relaxed,
};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{TakenOver, is_recent, sound};
use crate::engine::mac::{address, number};
use crate::overlay::{
    Tunnel, impossible,
    peers::{Peer, PeerCounter},
};
use crate::plane::Plane;
use crate::world::rules::number as number_of_ip;

/// Numbers below this are MAC addresses.
const MACS: u64 = 1 << 48;

/// Another host.
#[derive(Serialize, Deserialize)]
pub(super) struct OfPeer {
    address: IpAddr,
    /// The network that holds it, if it was learnt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    /// Link address of its next hop, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_hop: Option<u64>,
    /// Second in which it was heard last, if it ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<Cow<'static, str>, u64>,
}

/// Notes all other hosts that were heard or counted for.
pub(super) fn note(plane: &Plane) -> Vec<OfPeer> {
    let Some(tunnel) = &plane.shared.tunnel else { return Vec::new() };
    let now = plane.shared.clock.now();
    let rows = tunnel.peers.list(now).into_iter();
    rows.filter_map(|row| {
        let counts = PeerCounter::NAMES.into_iter().zip(row.counters).filter(|(_, n)| *n > 0);
        Some(OfPeer {
            address: row.address,
            vni: tunnel.peers.get(row.at)?.holder(),
            next_hop: row.mac.map(number),
            seen: row.idle.map(|idle| now.saturating_sub(idle)),
            counted: counts.map(|(name, n)| (name.into(), n)).collect(),
        })
    })
    .filter(|peer| peer.seen.is_some() || !peer.counted.is_empty())
    .collect()
}

/// Learns hosts again that a former process knew. Times of another start of the host mean nothing:
/// then only named hosts, which are known already, get their counts.
pub(super) fn take_over(plane: &Plane, peers: &[OfPeer], same_boot: bool, taken: &mut TakenOver) {
    let mut seen = HashSet::new();
    for of in peers {
        if !seen.insert(of.address) {
            taken.refuse("told twice");
            continue;
        }
        let peer = plane.shared.tunnel.as_ref().ok_or("no uplink any more");
        match peer.and_then(|tunnel| again(plane, tunnel, of, same_boot)) {
            Ok(peer) => {
                peer.add_former(counts(of, taken));
                taken.peers += 1;
            }
            Err(why) => taken.refuse(why),
        }
    }
}

/// Checks a host as [`crate::overlay::arrive`] does. Adds it if it is not known.
fn again<'a>(
    plane: &Plane,
    tunnel: &'a Tunnel,
    of: &OfPeer,
    same_boot: bool,
) -> Result<&'a Peer, &'static str> {
    let ip = number_of_ip(of.address);
    if of.address.is_ipv4() != tunnel.source.ip.is_ipv4() || impossible(ip, tunnel.own) {
        return Err("no other host's address");
    }
    let next_hop = of.next_hop.map(|mac| match address(mac) {
        station if mac != 0 && mac < MACS && !station.is_group() => Ok(station),
        _ => Err("not a station's address"),
    });
    let next_hop = next_hop.transpose()?;
    let recent = match of.seen {
        Some(seen) if same_boot => is_recent(plane, seen).map(|()| seen),
        _ => Err("never seen"),
    };
    let at = match (tunnel.peers.find(ip), of.vni) {
        (Some(at), _) => at,
        (None, _) if tunnel.strict.load(Relaxed) => return Err("host that is not named"),
        (None, Some(vni)) if plane.shared.snapshot.load().network(vni).is_some() => {
            tunnel.peers.try_add(ip, vni, recent?).ok_or("no room")?
        }
        (None, _) => return Err("network that is gone"),
    };
    let peer = tunnel.peers.get(at).ok_or("no room")?;
    match recent {
        Ok(seen) => peer.was_heard_before(next_hop, seen),
        // A named host that is only sent to. Its next hop is looked at again within seconds.
        Err(_) if same_boot && next_hop.is_some() => peer.set_mac(next_hop),
        Err(_) => {}
    }
    Ok(peer)
}

fn counts(of: &OfPeer, taken: &mut TakenOver) -> [u64; PeerCounter::NAMES.len()] {
    let mut counts = [0; PeerCounter::NAMES.len()];
    for (name, n) in sound(&of.counted, taken) {
        let at = PeerCounter::NAMES.iter().position(|known| *known == name);
        match at.and_then(|at| counts.get_mut(at)) {
            Some(count) => *count = n,
            None => taken.unknown("counter of a host", name),
        }
    }
    counts
}
