//! Advertisements that nobody asked for (RFC 4861, 6.2.4): each vnic of a network that tells of its
//! routers itself gets one each 200 to 600 s, one soon after it came, and one after each change. A
//! router that left says so in one of its own (6.2.5), also where nothing is told any more. Blocks
//! that left the link are told with lifetimes of 0 for a day (6.3.4), and a vnic's prefixes that
//! were taken back likewise, to that vnic alone.
//!
//! Called once a second by the thread that looks for neighbours. What it sends in a second is
//! bounded, and so is what waits at workers. Each network has a share before any gets more, and of
//! its vnics those come first who heard nothing for longest. Others get theirs in a later second.

use std::{
    collections::BTreeMap,
    hash::BuildHasher,
    net::Ipv6Addr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use butterfly_packet::{Mac, advert, ipv6};

use crate::engine::mac::number;
use crate::ip::upper;
use crate::plane::{Plane, seeker::Seeker};
use crate::stages::leave::ANSWER;
use crate::world::{
    leases6::{Leasing6, OwnPrefixes, RouterAdvert},
    snapshot::{Network, PortKind, Snapshot, Vnic},
};

/// Most advertisements in a second, farewells too, of all networks, with those that still wait at
/// workers. So many are enough for 102,400 vnics with one router each, or 25,600 with four, which
/// are due each 400 s on average; with more of them each is told later.
const PER_SECOND: usize = 256;
/// Most of them of a network while others wait.
const PER_NETWORK: usize = 32;

impl Plane {
    /// Has advertisements sent that are due.
    pub(super) fn advertise(&self, seeker: &mut Seeker, now: u32) {
        let (snapshot, untold, untold_prefixes) = {
            let mut state = self.state();
            // Together: what is told no more is not in the snapshot that follows it.
            let routed = &mut state.routed;
            let untold = std::mem::take(&mut routed.untold);
            let prefixes = std::mem::take(&mut routed.untold_prefixes);
            (self.shared.snapshot.load_full(), untold, prefixes)
        };
        seeker.advertising.told.retain(|place, _| snapshot.vnic(*place).is_some());
        seeker.advertising.links.retain(|vni, _| snapshot.network(*vni).is_some());
        seeker.advertising.own.retain(|place, _| snapshot.vnic(*place).is_some());
        for (place, prefixes) in untold_prefixes {
            if snapshot.vnic(place).is_some() {
                seeker.advertising.own.entry(place).or_default().heard(&prefixes, now);
            }
        }
        for (vni, untold) in untold {
            let Some(network) = snapshot.network(vni) else { continue };
            let link = seeker.advertising.links.entry(vni).or_default();
            link.heard(&untold.blocks, now);
            for vnic in listeners(network, &snapshot).filter(|_| !untold.routers.is_empty()) {
                seeker.advertising.note_asked(vnic.place, &untold.routers, now);
            }
        }
        let mut room = PER_SECOND.saturating_sub(seeker.advertising.under_way());
        // Starts behind the last network that had its turn.
        let from = seeker.advertising.served;
        let behind = snapshot.networks.iter().filter(|(at, _)| *at > from);
        let before = snapshot.networks.iter().filter(|(at, _)| *at <= from);
        let mut networks: Vec<_> = behind.chain(before).collect();
        for share in [PER_NETWORK, PER_SECOND] {
            networks.retain(|(at, network)| {
                if room == 0 {
                    return true;
                }
                let within = (&*snapshot, share.min(room));
                let (sent, more) = self.advertise_in(network, within, seeker, now);
                room = room.saturating_sub(sent);
                if sent > 0 {
                    seeker.advertising.served = *at;
                } else if more {
                    // Not one vnic's fit any more.
                    room = 0;
                }
                more
            });
        }
    }

    /// Has advertisements of a network sent that are due, `most` of them. Returns their number, and
    /// whether more are due.
    fn advertise_in(
        &self,
        network: &Network,
        (snapshot, most): (&Snapshot, usize),
        seeker: &mut Seeker,
        now: u32,
    ) -> (usize, bool) {
        let leasing = network.routing.as_ref().and_then(|it| it.leasing6());
        let adverts = leasing.map_or(&[][..], |leasing| leasing.adverts());
        let messages: Vec<&[u8]> = adverts.iter().map(|it| &*it.message).collect();
        let gone_blocks = withdrawn(network, seeker, now);
        let contents = seeker.advertising.hash.hash_one((messages, &gone_blocks));
        // Where nothing is told any more, only those hear it who were told of a router, or of a
        // prefix that they have no longer.
        let hears = |vnic: &Vnic| match adverts {
            [] => {
                let own = seeker.advertising.own.contains_key(&vnic.place);
                own || seeker.advertising.gone(vnic.place, &[]).next().is_some()
            }
            _ => true,
        };
        let hearing: Vec<&Arc<Vnic>> =
            listeners(network, snapshot).filter(|vnic| hears(vnic)).collect();
        let mut due: Vec<(&Arc<Vnic>, u64, OwnPrefixes)> = Vec::new();
        for vnic in hearing {
            let own = own_prefixes(vnic, leasing, seeker, now);
            let contents = match own.blocks.is_empty() {
                true => contents,
                false => seeker.advertising.hash.hash_one((contents, &own)),
            };
            let quiet = adverts.is_empty() && own.blocks.is_empty();
            if quiet && seeker.advertising.gone(vnic.place, &[]).next().is_none() {
                continue;
            }
            if seeker.advertising.is_due(vnic.place, contents, now) {
                due.push((vnic, contents, own));
            }
        }
        if due.is_empty() {
            return (0, false);
        }
        due.sort_by_key(|(vnic, ..)| seeker.advertising.last(vnic.place));
        self.make_askers(&mut self.state(), seeker, std::iter::once(network.vni));
        let Some(asker) = seeker.askers.get(&network.vni).cloned() else { return (0, false) };
        let Some(worker) = self.board.announcer(asker.place.slot) else { return (0, false) };
        let routers: Arc<[Mac]> = leasing.into_iter().flat_map(|it| it.routers()).collect();
        let adverts: Vec<_> = adverts.iter().map(|it| it.without(&gone_blocks)).collect();
        let mut told: Vec<Vec<Vec<u8>>> = vec![Vec::new(); adverts.len()];
        let mut farewells = BTreeMap::<[u8; 6], (RouterAdvert, Vec<Vec<u8>>)>::new();
        let (mut sent, mut more) = (0, false);
        for (vnic, contents, own) in due {
            let mut gone: Vec<Mac> = seeker.advertising.gone(vnic.place, &routers).collect();
            // Of no router: as the network told it before.
            if gone.is_empty() && adverts.is_empty() {
                gone.extend(own_voice(network));
            }
            if sent + gone.len() + adverts.len() > most {
                more = true;
                break;
            }
            sent += gone.len() + adverts.len();
            for mac in gone {
                let new = || (RouterAdvert::farewell(mac).without(&gone_blocks), Vec::new());
                let (left, frames) = farewells.entry(mac.0).or_insert_with(new);
                frames.extend(frame(left, vnic, &own));
            }
            for (advert, frames) in adverts.iter().zip(&mut told) {
                frames.extend(frame(advert, vnic, &own));
            }
            match adverts[..] {
                [] if own.blocks.is_empty() => {
                    seeker.advertising.told.remove(&vnic.place);
                }
                _ => seeker.advertising.note(vnic.place, (contents, &routers), now),
            }
        }
        if sent == 0 {
            return (0, more);
        }
        let farewells = farewells.values_mut().map(|(left, frames)| (&*left, frames));
        for (advert, frames) in farewells.chain(adverts.iter().zip(&mut told)) {
            if frames.is_empty() {
                continue;
            }
            let frames = Arc::new(std::mem::take(frames));
            seeker.advertising.send(&frames);
            worker.ask(Arc::new(speaker(&asker, advert)), frames);
        }
        (sent, more)
    }
}

/// Returns the blocks that vnics of a network were told to be of the link, and that are not of it
/// any more. A network that tells nothing any more takes back those that it does not have.
fn withdrawn(network: &Network, seeker: &mut Seeker, now: u32) -> Vec<(Ipv6Addr, u8)> {
    let links = &mut seeker.advertising.links;
    let routing = network.routing.as_ref();
    let leasing = routing.and_then(|it| it.leasing6()).filter(|it| it.leases());
    let link = match leasing {
        Some(leasing) => {
            let link = links.entry(network.vni).or_default();
            link.look(leasing.prefixes(), now);
            link
        }
        None => {
            let Some(link) = links.get_mut(&network.vni) else { return Vec::new() };
            let has = |block: &Ipv6Addr| routing.is_some_and(|it| it.owns(block.to_bits()));
            link.keep(|(block, _)| has(block), now);
            link
        }
    };
    let gone = link.gone();
    if link.is_empty() {
        links.remove(&network.vni);
    }
    gone
}

/// Returns what a vnic alone is told: its prefixes, and the newest of those that it was told and
/// that are not its own any more. Where nothing is told any more, one that it still has stays.
fn own_prefixes(
    vnic: &Vnic,
    leasing: Option<&Leasing6>,
    seeker: &mut Seeker,
    now: u32,
) -> OwnPrefixes {
    let rules = &vnic.rules;
    let all = &mut seeker.advertising.own;
    if rules.prefixes.is_empty() && !all.contains_key(&vnic.place) {
        return OwnPrefixes::none();
    }
    let link = all.entry(vnic.place).or_default();
    let mut own = match leasing.filter(|it| it.leases()) {
        Some(leasing) => {
            let own = leasing.own(&rules.own, &rules.prefixes);
            let blocks: Vec<(Ipv6Addr, u8)> = own.blocks.iter().map(|it| (it.prefix, 64)).collect();
            link.look(&blocks, now);
            own
        }
        None => {
            link.keep(|(block, _)| rules.has_prefix(upper(block.to_bits())), now);
            OwnPrefixes::none()
        }
    };
    own.take_back(link.gone().into_iter().rev().map(|(prefix, _)| prefix));
    if link.is_empty() {
        all.remove(&vnic.place);
    }
    own
}

/// Returns the vnics of a network whose guests run here.
fn listeners<'a>(
    network: &'a Network,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = &'a Arc<Vnic>> {
    let vnics = network.members.iter().filter_map(|slot| snapshot.vnics.get(*slot));
    vnics.filter(|vnic| vnic.shared.driving.load(Relaxed) && !vnic.is_mirror() && !vnic.is_wire())
}

/// Returns the MAC address from which a network without a router tells.
fn own_voice(network: &Network) -> Option<Mac> {
    let routing = network.routing.as_ref();
    let is_taken = |mac| routing.is_some_and(|it| it.by_mac(number(Mac(mac))).is_some());
    let vni = butterfly_model::Vni::new(network.vni).ok()?;
    Some(Mac(butterfly_model::service_mac(vni, is_taken)))
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
fn frame(advert: &RouterAdvert, vnic: &Vnic, own: &OwnPrefixes) -> Option<Vec<u8>> {
    let mut bytes = vec![0; ANSWER];
    let to = (vnic.mac, ipv6::ALL_NODES);
    let message = (&*advert.message, own.part());
    let len = advert::frame_with(message, advert.from, to, &mut bytes)?;
    bytes.truncate(len);
    Some(bytes)
}
