//! Stations: addresses that were learnt, and link-local addresses that machines made up.
//!
//! Times are seconds since the host was started (CLOCK_BOOTTIME). So a station that was silent
//! while no daemon ran is that much older, and a text of another boot is not used.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Noted, TakenOver, Text, fitting, is_recent};
use crate::engine::{mac::address, place::PeerRef, tap::TapNotes, writer::Writer};
use crate::overlay::Tunnel;
use crate::plane::Plane;
use crate::session::Here;
use crate::stages::forward::learn_source;
use crate::world::{
    bound::identifier,
    fdb::{CAPACITY, Learning},
    rules::{address as ip_of, number as number_of_ip},
    snapshot::{Network, PortKind, Snapshot, Vnic},
};

/// Numbers below this are MAC addresses.
const MACS: u64 = 1 << 48;

/// Addresses behind one vnic, or behind another host.
#[derive(Serialize, Deserialize)]
struct Behind {
    vni: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vnic: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<IpAddr>,
    /// Each with the second in which it was last seen.
    seen: Vec<(u64, u32)>,
}

/// Link-local addresses behind one vnic, or behind other hosts.
#[derive(Serialize, Deserialize)]
struct Bindings {
    vni: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vnic: Option<String>,
    bound: Vec<(u64, u64, bool)>,
}

/// The whole text.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StationsText {
    layout: u32,
    boot: [u64; 2],
    bound: Vec<Bindings>,
    behind: Vec<Behind>,
}

impl Text for StationsText {
    fn layout(&self) -> u32 {
        self.layout
    }
}

/// Notes all stations. If there is no room for all, the learnt addresses that were silent for
/// longest are left out, then the rest.
pub(crate) fn note(plane: &Plane, room: usize) -> Noted {
    let snapshot = plane.shared.snapshot.load();
    let now = plane.shared.clock.now();
    let tunnel = plane.shared.tunnel.as_ref();
    let mut behind: BTreeMap<(u32, u32, u32), Behind> = BTreeMap::new();
    for learnt in plane.shared.fdb.list(now) {
        let place = learnt.place;
        let Some(vnic) = snapshot.behind(place) else { continue };
        let peer = tunnel.filter(|_| vnic.is_trunk());
        let peer = peer.and_then(|tunnel| tunnel.peers.get(PeerRef(place.incarnation)));
        if vnic.is_trunk() != peer.is_some() {
            continue;
        }
        let of = behind.entry((learnt.vni, place.slot, place.incarnation));
        let of = of.or_insert_with(|| Behind {
            vni: learnt.vni,
            vnic: (!vnic.is_trunk()).then(|| vnic.id.to_string()),
            peer: peer.map(|peer| ip_of(peer.address())),
            seen: Vec::new(),
        });
        of.seen.push((learnt.mac, now.saturating_sub(learnt.idle)));
    }
    let ports = snapshot.vnics.iter().filter(|(_, vnic)| !vnic.is_mirror());
    let bound = ports.map(|(_, vnic)| Bindings {
        vni: vnic.vni,
        vnic: (!vnic.is_trunk()).then(|| vnic.id.to_string()),
        bound: vnic.shared.bound.list(),
    });
    let text = StationsText {
        layout: butterfly_layout::in_force(),
        boot: Here::read().boot,
        bound: bound.filter(|of| !of.bound.is_empty()).collect(),
        behind: behind
            .into_values()
            .map(|mut of| {
                of.seen.sort_unstable();
                of
            })
            .collect(),
    };
    let mut left_out = 0;
    fitting(text, room, |text, keep| {
        left_out += thin_out(text, keep);
        left_out
    })
}

/// Leaves out all but `keep` in a thousand of the learnt addresses, the most silent ones, or all
/// that is left if there are none. Returns their number.
fn thin_out(text: &mut StationsText, keep: usize) -> usize {
    let mut times: Vec<u32> =
        text.behind.iter().flat_map(|of| &of.seen).map(|(_, seen)| *seen).collect();
    let all = times.len();
    if all == 0 {
        let bound = std::mem::take(&mut text.bound);
        return bound.iter().map(|of| of.bound.len()).sum();
    }
    times.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = all * keep / 1000;
    let oldest = times.get(left).copied().unwrap_or(u32::MAX);
    // All that are younger, then as many of that second as there is room for.
    left -= times.iter().filter(|seen| **seen > oldest).count();
    for of in &mut text.behind {
        of.seen.retain(|(_, seen)| {
            *seen > oldest
                || (*seen == oldest && left > 0 && {
                    left -= 1;
                    true
                })
        });
    }
    text.behind.retain(|of| !of.seen.is_empty());
    all - text.behind.iter().map(|of| of.seen.len()).sum::<usize>()
}

/// Learns again what a former process knew.
pub(super) fn take_over(
    plane: &Plane,
    worker: Writer<'_>,
    text: StationsText,
    taken: &mut TakenOver,
) {
    let boot = Here::read().boot;
    if text.boot != boot || boot == [0; 2] {
        return taken.problem("the stations are of another start of this host".to_owned());
    }
    let again = Again {
        plane,
        worker,
        snapshot: &plane.shared.snapshot.load_full(),
        now: plane.shared.clock.now(),
    };
    for of in &text.bound {
        for noted in &of.bound {
            match again.bind(of, *noted) {
                Ok(()) => taken.bound += 1,
                Err(why) => taken.refuse(why),
            }
        }
    }
    let mut all: Vec<(&Behind, (u64, u32))> =
        text.behind.iter().flat_map(|of| of.seen.iter().map(move |seen| (of, *seen))).collect();
    // The youngest first, should there be less room than before.
    all.sort_by_key(|(_, (_, seen))| std::cmp::Reverse(*seen));
    let mut places = HashMap::new();
    for (of, (mac, seen)) in all.into_iter().take(CAPACITY as usize) {
        let place = *places
            .entry((of.vni, &of.vnic, of.peer))
            .or_insert_with(|| again.place(of.vni, of.vnic.as_deref(), of.peer));
        match place.and_then(|place| again.learn(place, mac, seen)) {
            Ok(()) => taken.stations += 1,
            Err(why) => taken.refuse(why),
        }
    }
}

/// A port, its network, and the peer behind it if that is a trunk.
type Origin<'a> = (&'a Vnic, &'a Network, PeerRef);

/// Learns what a former process knew, by the checks of here and now.
struct Again<'a> {
    plane: &'a Plane,
    worker: Writer<'a>,
    snapshot: &'a Snapshot,
    now: u32,
}

impl<'a> Again<'a> {
    fn tunnel(&self) -> Result<&'a Tunnel, &'static str> {
        self.plane.shared.tunnel.as_ref().ok_or("no uplink any more")
    }

    /// Returns the port that a former process named.
    fn port(&self, vni: u32, id: Option<&str>) -> Result<(&'a Vnic, &'a Network), &'static str> {
        let network = self.snapshot.network(vni).ok_or("network that is gone")?;
        let vnic = match id {
            None => self.snapshot.trunk(vni).map(|(_, trunk)| trunk).ok_or("no uplink any more")?,
            Some(id) => {
                let place = self.plane.place(id).ok_or("vnic that is gone")?;
                self.snapshot.vnic(place).ok_or("vnic that is gone")?
            }
        };
        if vnic.vni != vni {
            return Err("vnic of another network");
        }
        match vnic.kind {
            PortKind::Mirror(_) => Err("mirror"),
            _ if network.waits(vnic.place.slot) => Err("vnic that waits"),
            _ => Ok((vnic, network)),
        }
    }

    fn place(
        &self,
        vni: u32,
        id: Option<&str>,
        peer: Option<IpAddr>,
    ) -> Result<Origin<'a>, &'static str> {
        if id.is_some() == peer.is_some() {
            return Err("neither behind a vnic nor behind a host");
        }
        let (vnic, network) = self.port(vni, id)?;
        // Of a filtered one, no address is learnt.
        if !vnic.rules.bypass {
            return Err("vnic that is filtered now");
        }
        let peer = match peer {
            None => PeerRef(0),
            Some(peer) => {
                let found = self.tunnel()?.peers.find(number_of_ip(peer));
                found.ok_or("host that is not known")?
            }
        };
        Ok((vnic, network, peer))
    }

    fn learn(
        &self,
        (vnic, network, peer): Origin<'a>,
        mac: u64,
        seen: u32,
    ) -> Result<(), &'static str> {
        is_recent(self.plane, seen)?;
        if mac == 0 || mac >= MACS || address(mac).is_group() {
            return Err("not a station's address");
        }
        let notes = TapNotes::default();
        let mut context =
            self.plane.shared.context(self.snapshot, vnic, network, self.worker, &notes);
        context.now = seen;
        match learn_source(mac, peer, &context) {
            Ok(Learning::New | Learning::Moved(_)) => Ok(()),
            Ok(Learning::Known) => Err("address that is a vnic's, or told twice"),
            Ok(Learning::Refused) => Err("no room"),
            Err(_) => Err("address of a filtered vnic"),
        }
    }

    fn bind(&self, of: &Bindings, noted: (u64, u64, bool)) -> Result<(), &'static str> {
        let (vnic, _) = self.port(of.vni, of.vnic.as_deref())?;
        let (number, about, _) = noted;
        if identifier(0xfe80 << 112 | u128::from(number)).is_none() {
            return Err("not an address that a machine may make up");
        }
        if vnic.rules.bypass && (about == 0 || about >= MACS) {
            return Err("not a station's address");
        }
        let shared = &self.plane.shared;
        if shared.bindings.bind_again(vnic, noted, self.now, self.snapshot) {
            Ok(())
        } else {
            Err("address that another machine has")
        }
    }
}
