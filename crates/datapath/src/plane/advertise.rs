//! Advertisements that nobody asked for (RFC 4861, 6.2.4): each vnic of a network that tells of its
//! routers itself gets one each 200 to 600 s, one soon after it came, and one after each change. A
//! router that left says so in one of its own (6.2.5), also where nothing is told any more.
//!
//! Called once a second by the thread that looks for neighbours. What it sends in a second is
//! bounded; vnics that are due later get theirs in a later one.

use std::{
    collections::BTreeMap,
    hash::BuildHasher,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use butterfly_packet::{Mac, advert, ipv6};

use crate::plane::{Plane, seeker::Seeker};
use crate::stages::leave::ANSWER;
use crate::world::{
    leases6::RouterAdvert,
    snapshot::{Network, PortKind, Snapshot, Vnic},
};

/// Most advertisements in a second, of all networks: 256 are enough for 100,000 vnics.
const PER_SECOND: usize = 256;

impl Plane {
    /// Has advertisements sent that are due.
    pub(super) fn advertise(&self, seeker: &mut Seeker, now: u32) {
        let snapshot = self.shared.snapshot.load_full();
        seeker.advertising.told.retain(|place, _| snapshot.vnic(*place).is_some());
        let mut room = PER_SECOND;
        for (_, network) in snapshot.networks.iter() {
            if room == 0 {
                break;
            }
            let leasing = network.routing.as_ref().and_then(|it| it.leasing6.as_ref());
            let adverts = leasing.map_or(&[][..], |leasing| leasing.adverts());
            let messages: Vec<&[u8]> = adverts.iter().map(|it| &*it.message).collect();
            let contents = seeker.advertising.hash.hash_one(messages);
            // Where nothing is told any more, only those hear it who were told of a router.
            let hears = |vnic: &Vnic| match adverts {
                [] => seeker.advertising.gone(vnic.place, &[]).next().is_some(),
                _ => true,
            };
            let due: Vec<&Arc<Vnic>> = listeners(network, &snapshot)
                .filter(|vnic| hears(vnic))
                .filter(|vnic| seeker.advertising.is_due(vnic.place, contents, now))
                .take(room / adverts.len().max(1))
                .collect();
            if due.is_empty() {
                continue;
            }
            self.make_askers(&mut self.state(), seeker, std::iter::once(network.vni));
            let Some(asker) = seeker.askers.get(&network.vni).cloned() else { continue };
            let Some(worker) = self.board.announcer(asker.place.slot) else { continue };
            let routers = adverts.iter().filter(|it| it.lifetime > 0).map(|it| it.from.0);
            let routers: Arc<[Mac]> = routers.collect();
            room = room.saturating_sub(due.len() * adverts.len());
            let mut farewells = BTreeMap::<[u8; 6], Vec<Vec<u8>>>::new();
            for vnic in &due {
                for mac in seeker.advertising.gone(vnic.place, &routers) {
                    let farewell = frame(&RouterAdvert::farewell(mac), vnic);
                    farewells.entry(mac.0).or_default().extend(farewell);
                }
            }
            for (mac, frames) in farewells {
                room = room.saturating_sub(frames.len());
                let left = RouterAdvert::farewell(Mac(mac));
                worker.ask(Arc::new(speaker(&asker, &left)), Arc::new(frames));
            }
            for advert in adverts {
                let frames = due.iter().filter_map(|vnic| frame(advert, vnic)).collect();
                worker.ask(Arc::new(speaker(&asker, advert)), Arc::new(frames));
            }
            for vnic in due {
                match adverts {
                    [] => drop(seeker.advertising.told.remove(&vnic.place)),
                    _ => seeker.advertising.note(vnic.place, (contents, &routers), now),
                }
            }
        }
    }
}

/// Returns the vnics of a network whose guests run here.
fn listeners<'a>(
    network: &'a Network,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = &'a Arc<Vnic>> {
    let vnics = network.members.iter().filter_map(|slot| snapshot.vnics.get(*slot));
    vnics.filter(|vnic| vnic.shared.driving.load(Relaxed) && !vnic.is_mirror() && !vnic.is_wire())
}

/// Returns the sender of an advertisement: that of questions, with the router's MAC address.
fn speaker(asker: &Vnic, advert: &RouterAdvert) -> Vnic {
    Vnic {
        id: asker.id.clone(),
        place: asker.place,
        mac: advert.from.0,
        order: asker.order,
        vni: asker.vni,
        network: asker.network,
        kind: PortKind::Router,
        born: asker.born,
        since: asker.since,
        rules: asker.rules.clone(),
        shared: asker.shared.clone(),
    }
}

/// Returns an advertisement to a vnic: to its MAC address, so that nobody else gets it, and to the
/// address of all (RFC 6085).
fn frame(advert: &RouterAdvert, vnic: &Vnic) -> Option<Vec<u8>> {
    let mut bytes = vec![0; ANSWER];
    let to = (vnic.mac, ipv6::ALL_NODES);
    let len = advert::frame(&advert.message, advert.from, to, &mut bytes)?;
    bytes.truncate(len);
    Some(bytes)
}
