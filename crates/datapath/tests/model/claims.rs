//! Owners of addresses: those that a port may claim, and those from which it may send.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    policy::{self, Declared},
    switch::{Model, Vnic},
    wire::{self, Carries, Packet},
};

/// How much of a frame is at hand for ARP.
const AT_HAND: usize = 128;

/// Link-local addresses that are not declared. Those of a filtered vnic have four places, as have
/// those of routers behind other ports; other machines behind these have 28.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    places: BTreeMap<usize, (IpAddr, About)>,
    /// Number of addresses so far, of both kinds.
    count: [usize; 2],
    /// Addresses that are declared in the network now: none of them counts as made up.
    declared: Vec<IpAddr>,
}

/// More facts about such an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// Second from which no other machine may claim it.
    Firm(u32),
    /// MAC address that claimed it.
    From([u8; 6]),
}

/// Role in which a machine claims an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    Probing,
    Speaking,
    Router,
}

impl Bound {
    pub fn contains(&self, ip: &IpAddr) -> bool {
        !self.declared.contains(ip) && self.place(*ip).is_some()
    }

    fn place(&self, ip: IpAddr) -> Option<usize> {
        self.places.iter().find(|(_, (other, _))| *other == ip).map(|(place, _)| *place)
    }

    fn about(&self, ip: IpAddr) -> Option<About> {
        Some(self.places[&self.place(ip)?].1)
    }

    fn put(&mut self, ip: IpAddr, about: About, first: bool) {
        let (from, places) = if first { (0, 4) } else { (4, 28) };
        let count = &mut self.count[usize::from(!first)];
        self.places.insert(from + *count % places, (ip, about));
        *count += 1;
    }
}

/// Returns whether an address was declared, or follows from declared ones.
fn has(declared: &Declared, ip: IpAddr) -> bool {
    declared.ips.iter().any(|own| own.to_canonical() == ip)
        || !declared.bypass && declared.link_local() == ip
}

impl Model {
    /// Returns whether an address is a filtered vnic's of this host, and not also this one's.
    pub fn is_claimed(&self, vnic: &Vnic, ip: IpAddr, voice: Voice) -> bool {
        let ip = ip.to_canonical();
        if ip.is_unspecified()
            || vnic.declared.bypass && !vnic.is_trunk() && has(&vnic.declared, ip)
        {
            return false;
        }
        let in_network =
            |other: &&Vnic| !other.is_trunk() && other.declared.vni == vnic.declared.vni;
        let declared = !self.is_made_up(vnic.declared.vni, ip);
        let has_it = |other: &&Vnic| {
            let made_up = || self.has_made_up(other, ip) && !self.gives_way(other, vnic, ip, voice);
            !other.declared.bypass && (has(&other.declared, ip) || !declared && made_up())
        };
        let holders: Vec<&Vnic> = self.vnics.iter().filter(in_network).filter(has_it).collect();
        let shared = vnic.is_trunk() && holders.iter().any(|other| other.declared.shared_ip);
        !holders.is_empty() && !shared && holders.iter().all(|other| other.port != vnic.port)
    }

    /// Returns whether no operator has declared the address for any vnic of this network.
    pub fn is_made_up(&self, vni: u32, ip: IpAddr) -> bool {
        let mut others =
            self.vnics.iter().filter(|other| !other.is_trunk() && other.declared.vni == vni);
        !others.any(|other| has(&other.declared, ip.to_canonical()))
    }

    /// Tells each vnic what is declared in its network.
    pub fn tell_declared(&mut self) {
        let all: Vec<Declared> = self
            .vnics
            .iter()
            .filter(|vnic| !vnic.is_trunk())
            .map(|vnic| vnic.declared.clone())
            .collect();
        for vnic in &mut self.vnics {
            let there = all.iter().filter(|other| other.vni == vnic.declared.vni);
            let local = |other: &Declared| (!other.bypass).then(|| other.link_local());
            let mut declared: Vec<IpAddr> =
                there.flat_map(|other| other.ips.iter().copied().chain(local(other))).collect();
            declared.sort();
            declared.dedup();
            vnic.declared.bound.declared = declared;
        }
    }

    fn has_made_up(&self, vnic: &Vnic, ip: IpAddr) -> bool {
        vnic.declared.bound.contains(&ip)
    }

    /// Returns whether the holder loses a made-up address to a machine that claims it now.
    fn gives_way(&self, holder: &Vnic, speaker: &Vnic, ip: IpAddr, voice: Voice) -> bool {
        match (holder.declared.bypass, speaker.declared.bypass, holder.declared.bound.about(ip)) {
            (false, true, Some(About::Firm(from))) => voice == Voice::Router || self.now < from,
            (true, false, Some(About::From(mac))) => mac == speaker.declared.mac,
            _ => false,
        }
    }

    /// Returns whether a vnic may not send a packet because its source belongs to another vnic.
    pub fn speaks_as_another(&self, vnic: &Vnic, packet: &Packet) -> bool {
        self.speaks_as(vnic, packet, self.is_across())
    }

    /// The same of a packet that goes from one network to another, or not: what comes from other
    /// hosts by a router is of the other network.
    pub fn speaks_as(&self, vnic: &Vnic, packet: &Packet, across: bool) -> bool {
        if across && vnic.is_trunk() {
            // Nobody elsewhere has an address that a filtered vnic has in the receiver's network.
            let mut homes = self.homes(vnic.declared.vni, packet.source);
            homes.push(vnic.declared.vni);
            return homes.iter().any(|vni| self.speaks_here(*vni, packet.source));
        }
        // Those of other hosts have its address, too.
        let is_gateway = !vnic.is_trunk()
            && self.routes.with_address(vnic.declared.vni, packet.source).is_some();
        let claimed = || self.is_claimed(vnic, packet.source, Voice::Speaking);
        vnic.declared.bypass && (is_gateway || !vnic.declared.forwards && claimed())
    }

    /// Returns whether a frame claims an address of another vnic for its sender.
    pub fn claims(&self, vnic: &Vnic, frame: &[u8], carries: &Carries) -> bool {
        let filtered =
            |other: &Vnic| other.declared.vni == vnic.declared.vni && !other.declared.bypass;
        if !self.vnics.iter().any(filtered) {
            return false;
        }
        match carries {
            Carries::Arp(at) => self.arp_claims(vnic, frame, *at),
            Carries::Ip(at, vlan) => match wire::packet(frame, *at, *vlan) {
                Ok(packet) => self.discovery_claims(vnic, frame, &packet),
                Err(_) => false,
            },
            _ => false,
        }
    }

    /// Notes the owner of a link-local address, if this frame is the first from or for it.
    pub fn bind(&mut self, sender: usize, carries: &Carries, frame: &[u8]) {
        let vnic = self.vnics[sender].declared.clone();
        let Carries::Ip(at, vlan) = carries else { return };
        let Ok(packet) = wire::packet(frame, *at, *vlan) else { return };
        let filtered = |other: &Vnic| other.declared.vni == vnic.vni && !other.declared.bypass;
        if policy::discovery(&packet).is_none()
            || packet.hops != 255
            || !self.vnics.iter().any(filtered)
        {
            return;
        }
        let source: [u8; 6] = frame[6..12].try_into().unwrap();
        let Some((ips, voice)) = policy::spoken_for(&vnic, &packet, &frame[..6]) else { return };
        for ip in ips {
            let IpAddr::V6(six) = ip else { continue };
            let bytes = six.octets();
            let of_mac = bytes[11..13] == [0xff, 0xfe];
            let made_up =
                bytes[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && bytes[8..] != [0; 8] && !of_mac;
            if made_up && self.is_made_up(vnic.vni, ip) {
                self.note(sender, ip, source, voice);
            }
        }
    }

    fn note(&mut self, sender: usize, ip: IpAddr, source: [u8; 6], voice: Voice) {
        let Declared { vni, bypass, .. } = self.vnics[sender].declared;
        let about = match voice {
            _ if bypass => About::From(source),
            Voice::Probing => About::Firm(self.now + 3),
            _ => About::Firm(self.now + 600),
        };
        let first = !bypass || voice == Voice::Router;
        if let Some(place) = self.vnics[sender].declared.bound.place(ip) {
            let bound = &mut self.vnics[sender].declared.bound;
            match (bound.places[&place].1, about) {
                // It may be noted that it is a router's.
                (About::From(_), _) if first && place >= 4 => _ = bound.places.remove(&place),
                (About::Firm(old), About::Firm(new)) => {
                    bound.places.insert(place, (ip, About::Firm(old.min(new))));
                    return;
                }
                _ => {
                    bound.places.insert(place, (ip, about));
                    return;
                }
            }
        } else if let Some(at) = self
            .vnics
            .iter()
            .position(|other| other.declared.vni == vni && self.has_made_up(other, ip))
        {
            let holder = &self.vnics[at];
            let came_back = bypass && source == holder.declared.mac;
            if came_back || !self.gives_way(holder, &self.vnics[sender], ip, voice) {
                return;
            }
            let bound = &mut self.vnics[at].declared.bound;
            if let Some(place) = bound.place(ip) {
                bound.places.remove(&place);
            }
        }
        self.vnics[sender].declared.bound.put(ip, about, first);
    }

    fn arp_claims(&self, vnic: &Vnic, frame: &[u8], at: usize) -> bool {
        let seen = &frame[..frame.len().min(AT_HAND)];
        let cut = frame.len() > seen.len();
        if seen.len() < at + 8 {
            return cut;
        }
        if seen[at + 2..at + 6] != [8, 0, 6, 4] {
            return false;
        }
        if seen.len() < at + 28 {
            return cut;
        }
        let address = |from: usize| {
            Ipv4Addr::from(<[u8; 4]>::try_from(&seen[at + from..at + from + 4]).unwrap())
        };
        let sender = address(14);
        let about = if sender.is_unspecified() { address(24) } else { sender };
        self.is_claimed(vnic, about.into(), Voice::Speaking)
            && !self.is_its_own(vnic, frame, about.into())
    }

    /// Returns whether the frame has the MAC address of the filtered vnic that has the address.
    fn is_its_own(&self, vnic: &Vnic, frame: &[u8], ip: IpAddr) -> bool {
        let owner = |other: &Vnic| {
            let Declared { vni, mac, bypass, .. } = &other.declared;
            (*vni, &mac[..], *bypass) == (vnic.declared.vni, &frame[6..12], false)
        };
        let mut owners = self.vnics.iter().filter(|other| owner(other));
        owners.any(|other| {
            has(&other.declared, ip.to_canonical()) || other.declared.bound.contains(&ip)
        })
    }

    fn discovery_claims(&self, vnic: &Vnic, frame: &[u8], packet: &Packet) -> bool {
        if policy::discovery(packet).is_none() || packet.hops != 255 {
            return false;
        }
        let whole = if packet.upper[0] == 137 { 40 } else { 24 };
        let target =
            (packet.upper.len() >= whole && matches!(packet.upper[0], 135..=137)).then(|| {
                IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&packet.upper[8..24]).unwrap()))
            });
        let about_target = match packet.upper[0] {
            136 => true,
            135 => packet.source.is_unspecified(),
            137 => policy::redirects_to(packet).is_some_and(|mac| {
                let owner = |other: &Vnic| {
                    other.declared.mac == mac && other.declared.vni == vnic.declared.vni
                };
                let target = target.unwrap().to_canonical();
                !self
                    .vnics
                    .iter()
                    .any(|other| !other.is_trunk() && owner(other) && has(&other.declared, target))
            }),
            _ => false,
        };
        // What is found first counts.
        let said = [Some(packet.source), target.filter(|_| about_target)];
        let voice = if policy::advertises_router(packet) { Voice::Router } else { Voice::Speaking };
        let claimed = said.into_iter().flatten().find(|ip| self.is_claimed(vnic, *ip, voice));
        claimed.is_some_and(|ip| !self.is_its_own(vnic, frame, ip))
    }
}
