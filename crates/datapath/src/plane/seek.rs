//! Neighbours that nobody declared: asks for them by ARP and neighbour discovery, and keeps what
//! answers.
//!
//! A worker that needs a next hop notes its address in [`crate::world::asking`]. A thread of its
//! own has the questions sent, in the name of this host's router address, three times, a second
//! apart. What a worker hears comes into the snapshot, from where all workers have it, and those
//! where packets wait are told. A machine that is used is asked again by unicast after a minute;
//! one that is not used, or answers no more, is forgotten.
//!
//! Declared addresses are never asked for: those of vnics of this host, neighbours and gateways.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
};

use butterfly_packet::{
    arp,
    build::{self, Link},
    icmp,
    mac::Mac,
};

use crate::engine::{
    mac::address as mac_address,
    place::{PollSource, PortRef},
};
use crate::ip::{
    Address,
    discovery::{link_local, solicited_node},
    is_v4,
};
use crate::plane::{Plane, State, policies::rules, seeker::Seeker};
use crate::stages::asks::{may_be_asked_for, may_hear, router_of};
use crate::world::{
    asking::{AskPass, AskPlace, DueQuestion},
    found::CAPACITY,
    outside::Outside,
    policy::VnicPolicy,
    rules::address as ip_of,
    snapshot::{Network, PortKind, Snapshot, Vnic},
};

/// Seconds after which a machine that is used is asked again, and one that is not is forgotten.
const FRESH: u32 = 60;
/// The same on wires, where a router that fails may give its address to another one.
const FRESH_OUTSIDE: u32 = 10;
/// Most questions in a network in a second.
const QUESTIONS: u32 = 256;
/// Seconds after the last question in which workers are told to look at what waits.
const AWAKE: u32 = 2;
/// Most addresses that are told on a wire in a second.
const TOLD: usize = 128;
/// Smallest Ethernet frame without its checksum.
const SMALLEST: usize = 60;
const ND_HOP_LIMIT: u8 = 255;

impl Plane {
    /// Has due questions sent, takes what was heard, and forgets what is old.
    pub fn seek(&self) -> SeekOutcome {
        let mut seeker = self.seeker.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.shared.clock.now();
        let is_due = now != seeker.looked;
        let pass = self.shared.asking.pass(self.shared.clock.tenths());
        if pass.left > 0 {
            seeker.awake = now;
        }
        let tells = now.saturating_sub(seeker.awake) <= AWAKE;
        let idle = !tells && self.shared.snapshot.load().found.is_empty();
        let look = is_due && !idle;
        seeker.looked = now;
        let mut published = false;
        if !pass.answered.is_empty() || !pass.lost.is_empty() || look {
            let state = self.state();
            published = self.take(&mut seeker, &pass, look, now);
            drop(state);
            // Not before: they would be asked for anew.
            self.shared.asking.end_answered(&pass.answered);
        }
        if !pass.due.is_empty() {
            let mut state = self.state();
            self.make_askers(&mut state, &mut seeker, pass.due.iter().map(|due| due.at.0));
            drop(state);
            let unsent = self.ask(&mut seeker, &pass.due, now);
            self.shared.asking.were_not_sent(&unsent);
        }
        if is_due {
            self.announce_outside(&mut seeker);
            self.advertise(&mut seeker, now);
        }
        // Packets may wait at any of them. A declaration may have ended a wait.
        if pass.silent || !pass.answered.is_empty() || look && tells {
            let workers = self.board.handles();
            workers.iter().take(self.board.active()).for_each(|it| it.look_at(PollSource::Waiting));
        }
        SeekOutcome { asks: pass.left > 0, published }
    }

    /// Takes what a pass found, and looks at all that was found before. Returns whether a snapshot
    /// was published: it is only copied if anything changes. The caller holds the state.
    fn take(&self, seeker: &mut Seeker, pass: &AskPass, look: bool, now: u32) -> bool {
        let current = self.shared.snapshot.load_full();
        let gone =
            if look { self.forgotten(seeker, &pass.lost, now, &current) } else { Vec::new() };
        if pass.answered.is_empty() && pass.lost.is_empty() && gone.is_empty() {
            return false;
        }
        let mut next = Snapshot::clone(&current);
        let mut changed = false;
        for at in gone {
            changed |= seeker.forget(at, &mut next);
        }
        for (at, mac) in &pass.lost {
            let is_it = next.found.get(at.0, at.1).is_some_and(|found| found.mac == *mac);
            changed |= is_it && seeker.forget(*at, &mut next);
        }
        for (at, mac) in &pass.answered {
            changed |= self.take_answer(seeker, (*at, *mac), now, &mut next);
        }
        if changed {
            self.publish(next);
        }
        changed
    }

    /// Takes an answer. Returns whether the snapshot changed.
    fn take_answer(
        &self,
        seeker: &mut Seeker,
        (at, mac): (AskPlace, u64),
        now: u32,
        next: &mut Snapshot,
    ) -> bool {
        if !may_be_asked_for(at, next) {
            return false; // it was declared meanwhile
        }
        if let Some(found) = next.found.get(at.0, at.1).filter(|found| found.mac == mac) {
            found.heard.store(now, Relaxed);
            return false;
        }
        let kept = seeker.keep(at, mac, now, next);
        if !kept {
            self.shared.asking.had_no_room(at, self.shared.clock.tenths());
        }
        kept
    }

    /// Looks at all that was found: what is used and old is asked again. Returns what is to be
    /// forgotten: what is not used, was declared meanwhile, or is of no declared network any more.
    fn forgotten(
        &self,
        seeker: &mut Seeker,
        lost: &[(AskPlace, u64)],
        now: u32,
        current: &Snapshot,
    ) -> Vec<AskPlace> {
        let lost: HashSet<AskPlace> = lost.iter().map(|(at, _)| *at).collect();
        self.shared.asking.keep(|at| may_be_asked_for(at, current));
        let mut gone = Vec::new();
        for (at, found) in current.found.iter() {
            let (heard, used) = found.ages(now);
            let network = current.network(at.0);
            let fresh = match network.and_then(|network| outside_of(network)) {
                Some(_) => FRESH_OUTSIDE,
                None => FRESH,
            };
            if !may_be_asked_for(at, current) || heard >= fresh && used >= FRESH {
                gone.push(at);
            } else if heard >= fresh && !lost.contains(&at) {
                self.shared.asking.ask_again(at, found.mac);
            }
        }
        seeker.held.retain(|_, held| held.load(Relaxed) > 0);
        seeker.askers.retain(|vni, _| current.network(*vni).is_some());
        seeker.paces.retain(|vni, _| current.network(*vni).is_some());
        // Networks share the room anew.
        let networks = current.networks.iter().filter(|(_, network)| network.routing.is_some());
        let held: Vec<u32> = seeker.held.values().map(|held| held.load(Relaxed)).collect();
        if let Some(most) = seeker.quota.settle(CAPACITY, networks.count() as u32, &held, 0) {
            let mut all: Vec<(AskPlace, u32)> =
                current.found.iter().map(|(at, found)| (at, found.ages(now).0)).collect();
            all.sort_unstable_by_key(|(_, heard)| *heard);
            let mut kept = HashMap::<u32, u32>::new();
            for (at, _) in all {
                let kept = kept.entry(at.0).or_default();
                *kept += 1;
                if *kept > most {
                    gone.push(at);
                }
            }
        }
        gone
    }

    /// Makes the senders of questions in these networks, as the networks are now.
    pub(super) fn make_askers(
        &self,
        state: &mut State,
        seeker: &mut Seeker,
        networks: impl Iterator<Item = u32>,
    ) {
        let snapshot = self.shared.snapshot.load();
        for vni in networks {
            let Some(at) = snapshot.network_ref(vni).map(|at| at.0) else { continue };
            let trunk = snapshot.trunk(vni).map(|(_, trunk)| trunk);
            let outside = snapshot.network(vni).and_then(|network| outside_of(network));
            let mac = match outside {
                Some(outside) => mac_address(outside.mac),
                None => router_of(self.shared.tunnel.as_ref()),
            };
            let is_of = |asker: &&Arc<Vnic>| {
                let place = trunk.map_or(u32::MAX, |trunk| trunk.place.slot);
                asker.network == at
                    && asker.mac == mac
                    && asker.place.slot == place
                    && trunk.is_none_or(|trunk| Arc::ptr_eq(&trunk.shared, &asker.shared))
            };
            if seeker.askers.get(&vni).is_some_and(|asker| is_of(&asker)) {
                continue;
            }
            let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
            let nowhere = PortRef { slot: u32::MAX, incarnation: 0 };
            let asker = Vnic {
                id: "".into(),
                // Its drops are charged to the network.
                place: trunk.map_or(nowhere, |trunk| trunk.place),
                mac,
                order: 0,
                vni,
                network: at,
                kind: PortKind::Router,
                born: snapshot.version,
                since: snapshot.version,
                rules: rules(&open, &mut state.groups),
                shared: trunk.map_or_else(|| self.vnic_state(false), |trunk| trunk.shared.clone()),
            };
            seeker.askers.insert(vni, Arc::new(asker));
        }
    }

    /// Has questions sent: those of a network by one worker, one in a turn. Returns those that were
    /// not: for want of a sender, beyond the network's pace, or as their machine may be probing.
    fn ask(&self, seeker: &mut Seeker, due: &[DueQuestion], now: u32) -> Vec<DueQuestion> {
        let snapshot = self.shared.snapshot.load();
        let mut frames = BTreeMap::<u32, Vec<Vec<u8>>>::new();
        let mut unsent = Vec::new();
        for question in due {
            let DueQuestion { at, to, .. } = *question;
            let asker = seeker.askers.get(&at.0);
            let asker = asker.filter(|it| self.board.announcer(it.place.slot).is_some());
            let network = snapshot.network(at.0);
            let heard =
                network.is_some_and(|it| to.is_none_or(|to| hears((to, at.1), it, now, &snapshot)));
            let Some(asker) = asker.filter(|_| heard && may_be_asked_for(at, &snapshot)) else {
                unsent.push(*question);
                continue;
            };
            if !seeker.paces.entry(at.0).or_default().take(now, QUESTIONS, QUESTIONS) {
                unsent.push(*question);
                continue;
            }
            let outside = network.and_then(|network| outside_of(network));
            let own = outside.and_then(|outside| outside.asker(at.1));
            frames.entry(at.0).or_default().push(frame_of((asker.mac, own), at.1, to));
        }
        for (vni, frames) in frames {
            if let Some(asker) = seeker.askers.get(&vni)
                && let Some(worker) = self.board.announcer(asker.place.slot)
            {
                worker.ask(asker.clone(), Arc::new(frames));
            }
        }
        unsent
    }

    /// Tells machines on wires the addresses that came there, three times, a second apart: those of
    /// an external whose wire came, and those of rules and routers. Called once a second, behind
    /// the questions, which these never keep waiting.
    fn announce_outside(&self, seeker: &mut Seeker) {
        let snapshot = self.shared.snapshot.load_full();
        let mut told = std::mem::take(&mut seeker.told);
        told.retain(|vni, _| snapshot.network(*vni).is_some_and(|it| it.wire.is_some()));
        for (_, network) in snapshot.networks.iter() {
            let Some(wire) = network.wire.and_then(|slot| snapshot.vnics.get(slot)) else {
                continue;
            };
            let Some(routing) = network.routing.as_ref().filter(|_| outside_of(network).is_some())
            else {
                continue;
            };
            let telling = told.entry(network.vni).or_default();
            telling.look(wire.place, routing);
            if !telling.is_left() {
                continue;
            }
            self.make_askers(&mut self.state(), seeker, std::iter::once(network.vni));
            let Some(asker) = seeker.askers.get(&network.vni) else { continue };
            // Without a worker nothing counts as told.
            if let Some(worker) = self.board.announcer(asker.place.slot) {
                let addresses = telling.take(TOLD).into_iter();
                let frames = addresses.map(|address| announcement(asker.mac, address));
                worker.ask(asker.clone(), Arc::new(frames.collect()));
            }
        }
        seeker.told = told;
    }

    /// Returns machines that were found, and addresses that are asked for: for the operator.
    pub fn sought(&self) -> Vec<SoughtNeighbour> {
        let snapshot = self.shared.snapshot.load();
        let now = self.shared.clock.now();
        let found = snapshot.found.iter().map(|((vni, address), found)| SoughtNeighbour {
            vni,
            address: ip_of(address),
            mac: Some(mac_address(found.mac)),
            state: if found.ages(now).0 < FRESH { SoughtState::Found } else { SoughtState::Old },
            age: Some(found.ages(now).0),
        });
        let asked = self.shared.asking.list().into_iter();
        let asked =
            asked.filter(|((vni, address), _)| snapshot.found.get(*vni, *address).is_none());
        let asked = asked.map(|((vni, address), state)| SoughtNeighbour {
            vni,
            address: ip_of(address),
            mac: None,
            state: if state.is_over() { SoughtState::Silent } else { SoughtState::Asked },
            age: None,
        });
        let mut all: Vec<SoughtNeighbour> = found.chain(asked).collect();
        all.sort_unstable_by_key(|it| (it.vni, it.address));
        all
    }
}

/// Outcome of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeekOutcome {
    /// True if anything is asked for.
    pub asks: bool,
    /// True if what is found changed.
    pub published: bool,
}

/// A neighbour that nobody declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoughtNeighbour {
    /// Its network.
    pub vni: u32,
    /// Its address there.
    pub address: std::net::IpAddr,
    /// Its MAC address, once it answered.
    pub mac: Option<Mac>,
    /// State of the search.
    pub state: SoughtState,
    /// Seconds since its last answer.
    pub age: Option<u32>,
}

/// State of the search for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoughtState {
    /// Asked for, and not answered yet.
    Asked,
    /// Answered within the last minute.
    Found,
    /// Answered before, and is asked again.
    Old,
    /// Nobody answered; for some seconds it is not asked for.
    Silent,
}

impl SoughtState {
    /// Returns its name in every output.
    pub fn name(self) -> &'static str {
        match self {
            SoughtState::Asked => "asked",
            SoughtState::Found => "found",
            SoughtState::Old => "old",
            SoughtState::Silent => "silent",
        }
    }
}

/// Returns whether a machine may be asked again: if a vnic of this host has its MAC address, its
/// guest must not be one that may be probing.
fn hears((mac, address): (u64, Address), network: &Network, now: u32, snapshot: &Snapshot) -> bool {
    let vnic = network.macs.get(mac).and_then(|slot| snapshot.vnics.get(slot));
    vnic.is_none_or(|vnic| may_hear(vnic, address, now))
}

/// Returns the outside of a network, if a wire leads there.
fn outside_of(network: &Network) -> Option<&Outside> {
    network.routing.as_ref()?.outside.as_deref().filter(|outside| outside.mac != 0)
}

/// Returns what says to all on a wire that an address of IPv4 (RFC 5227, 2.3) or IPv6 (RFC 4861,
/// 7.2.6) is at a MAC address.
fn announcement(mac: Mac, address: Address) -> Vec<u8> {
    if is_v4(address) {
        let own = std::net::Ipv4Addr::from(address as u32);
        let link: Link = build::ethernet(mac, Mac::BROADCAST);
        let mut frame = link.arp(arp::REQUEST, (mac, own), (Mac::ZERO, own));
        frame.resize(frame.len().max(SMALLEST), 0);
        return frame;
    }
    /// The flag "override" of an advertisement.
    const OVERRIDE: u32 = 1 << 29;
    let own = std::net::Ipv6Addr::from(address);
    let all = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let body = [&own.octets()[..], &[icmp::OPTION_TARGET_LINK_ADDRESS, 1], &mac.0].concat();
    let link: Link = build::ethernet(mac, Mac::of_group_v6(all));
    let packet = link.ipv6(own, all).ttl(ND_HOP_LIMIT);
    packet.icmp(icmp::v6::NEIGHBOUR_ADVERTISEMENT, 0, OVERRIDE, &body)
}

/// Returns the question for an address: to one machine, or to all. On a wire this host asks from an
/// address of its own, as some machines answer nobody else.
fn frame_of((from, own): (Mac, Option<Address>), address: Address, to: Option<u64>) -> Vec<u8> {
    let to = to.map(mac_address);
    if is_v4(address) {
        // Else a probe (RFC 5227, 2.1.1): nobody learns from it.
        let [target, asker] = [address, own.unwrap_or(0)].map(|it| it as u32);
        let [target, asker] = [target, asker].map(std::net::Ipv4Addr::from);
        let link: Link = build::ethernet(from, to.unwrap_or(Mac::BROADCAST));
        let mut frame = link.arp(arp::REQUEST, (from, asker), (Mac::ZERO, target));
        frame.resize(frame.len().max(SMALLEST), 0);
        return frame;
    }
    let [source, target, group] =
        [link_local(from), address, solicited_node(address)].map(std::net::Ipv6Addr::from);
    let body = [&target.octets()[..], &[icmp::OPTION_SOURCE_LINK_ADDRESS, 1], &from.0].concat();
    // By unicast, too, it is for the group: so the machine's own address is not needed twice.
    let link: Link = build::ethernet(from, to.unwrap_or(Mac::of_group_v6(group)));
    let packet = link.ipv6(source, group).ttl(ND_HOP_LIMIT);
    packet.icmp(icmp::v6::NEIGHBOUR_SOLICITATION, 0, 0, &body)
}

#[cfg(test)]
mod tests {
    use butterfly_packet::{arp::Arp, ethernet::Ethernet, neighbour};

    use super::*;
    use crate::{engine::mac::number, ip::mapped};

    const FROM: Mac = Mac([0xb2, 0xf1, 10, 0, 0, 1]);

    #[test]
    fn a_question_by_arp_is_a_probe() {
        let frame = frame_of((FROM, None), mapped([10, 0, 0, 9].into()), None);
        assert_eq!((&frame[..6], frame.len()), (&[0xff; 6][..], SMALLEST));
        let arp = Arp::parse(Ethernet::parse(&frame).unwrap().payload()).unwrap();
        assert_eq!((arp.operation(), arp.sender_mac()), (arp::REQUEST, FROM));
        assert_eq!((arp.sender_ip(), arp.target_ip()), ([0; 4].into(), [10, 0, 0, 9].into()));
        let again = frame_of((FROM, None), mapped([10, 0, 0, 9].into()), Some(number(Mac([2; 6]))));
        assert_eq!((&again[..6], &again[6..]), (&[2; 6][..], &frame[6..]));
    }

    #[test]
    fn a_question_by_discovery_is_valid() {
        let target: std::net::Ipv6Addr = "fd00::1:2:3".parse().unwrap();
        let frame = frame_of((FROM, None), target.to_bits(), None);
        assert_eq!(&frame[..6], &[0x33, 0x33, 0xff, 2, 0, 3]);
        assert!(neighbour::is_sum_right(&frame[14..]));
        assert_eq!((frame[21], frame[54]), (255, icmp::v6::NEIGHBOUR_SOLICITATION));
    }
}
